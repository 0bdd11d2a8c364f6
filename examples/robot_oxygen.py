"""A robot with OxyGen's own client: acts at a fixed rate, thinks in another thread, talks meanwhile.

    oxygen serve oxygen-tiny
    python examples/robot_oxygen.py --url ws://127.0.0.1:8000

The robot here is invented: pictures of a moving square, a state that follows the actions, with the cameras and the
numbers that the server says it expects. Put your own cameras into `look` and your own motors into `move`.
"""

from __future__ import annotations

import argparse
import sys
import threading
import time
from collections.abc import Mapping
from typing import Any

import numpy as np
from oxygen_client import ActionBuffer, ClientError, RobotClient, ServerError, Stale


class Arm:
    """An invented arm. described: the server's word on its robot, the entry `robot` of its metadata."""

    def __init__(self, described: Mapping[str, Any]) -> None:
        self.cameras = [camera["key"] for camera in described["cameras"].values()]
        self.size = int(described["image"].get("size") or 224)
        self.parts: dict[str, int] = described["state"]["keys"]
        self.state = np.zeros(described["state"]["dim"])

    def look(self) -> dict[str, object]:
        picture = np.full((self.size, self.size, 3), 40, np.uint8)
        side = self.size // 6
        x, y = (int((0.45 + 0.35 * np.tanh(v)) * self.size) for v in (*self.state, 0.0, 0.0)[:2])
        picture[y : y + side, x : x + side] = (230, 110, 50)
        observation: dict[str, object] = {"prompt": "pick up the orange block"}
        for number, key in enumerate(self.cameras):
            observation[key] = np.rot90(picture, 2 * number).copy()
        first = 0
        for key, dim in self.parts.items():
            observation[key] = self.state[first : first + dim].astype(np.float32)
            first += dim
        return observation

    def move(self, action: np.ndarray) -> None:
        num = min(len(self.state), len(action))
        self.state[:num] = 0.95 * self.state[:num] + 0.05 * action[:num]

    def hold(self) -> None:
        """The safe behaviour: stay where you are."""


def think(robot: RobotClient, arm: Arm, buffer: ActionBuffer, stop: threading.Event, refusals: list[str]) -> None:
    """Ask for a new chunk whenever half of the last one is used; ask for a narration now and then.

    An answer that will be the same the next time is put into `refusals` and ends the work.
    """
    count = 0
    while not stop.is_set():
        if buffer.remaining > 5:
            time.sleep(0.005)
            continue
        tasks = [{"kind": "narration", "max_new_tokens": 24}] if count % 10 == 0 else []
        try:
            buffer.add(robot.infer(arm.look(), tasks, step=buffer.step, timeout=1.0))
            count += 1
        except ServerError as error:
            if error.retry_after_s is None:
                refusals.append(str(error))
                stop.set()
                return
            print(f"no chunk: {error}")
            time.sleep(error.retry_after_s)
        except ClientError as error:  # the control loop goes stale by itself and holds
            print(f"no chunk: {error}")
            time.sleep(0.1)


def listen(robot: RobotClient, stop: threading.Event) -> None:
    """Print every text when it is complete."""
    while not stop.is_set():
        for event in robot.events(timeout=0.5):
            if event.done:
                text = robot.text(event.id).result(timeout=1)
                print(f"[{event.kind}, frame {event.frame_id}, {event.age_s or 0:.1f} s old] {text!r}")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--url", default="ws://127.0.0.1:8000")
    parser.add_argument("--session", default="arm-1")
    parser.add_argument("--seconds", type=float, default=10.0)
    parser.add_argument("--api-key")
    args = parser.parse_args()
    try:
        with RobotClient(args.url, args.session, args.api_key) as robot:
            return work(robot, args.seconds)
    except ClientError as error:
        print(f"robot_oxygen: {error}", file=sys.stderr)
        return 1


def work(robot: RobotClient, seconds: float) -> int:
    """The control loop; returns the exit status. Raises ClientError."""
    arm, stop = Arm(robot.metadata["robot"]), threading.Event()
    rate = float(robot.metadata.get("control_hz") or 20.0)
    buffer = ActionBuffer(period_s=1.0 / rate)
    refusals: list[str] = []
    threads = [
        threading.Thread(target=think, args=(robot, arm, buffer, stop, refusals)),
        threading.Thread(target=listen, args=(robot, stop)),
    ]
    for thread in threads:
        thread.start()
    answer, moved, held, ends = None, 0, 0, time.monotonic() + seconds
    try:
        while time.monotonic() < ends and not stop.is_set():
            started = time.monotonic()
            try:
                action = buffer.next()
            except Stale:
                action = None
            if action is None:
                arm.hold()
                held += 1
            else:
                arm.move(action)
                moved += 1
            if moved == 20 and answer is None:
                answer = robot.ask("what are you doing?", max_new_tokens=24)
            time.sleep(max(0.0, 1.0 / rate - (time.monotonic() - started)))
    finally:
        stop.set()
        for thread in threads:
            thread.join()
    if refusals:
        print(f"robot_oxygen: {refusals[0]}", file=sys.stderr)
        return 1
    print(f"{moved} actions executed, {held} periods held, {robot.num_connects} connections")
    if answer is not None:
        print(f"answer: {answer.result(timeout=10)!r}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
