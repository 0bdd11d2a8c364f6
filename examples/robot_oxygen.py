"""A robot with OxyGen's own client: acts at a fixed rate, thinks in another thread, talks meanwhile.

    oxygen serve pi05-tiny
    python examples/robot_oxygen.py --url ws://127.0.0.1:8000

The robot here is invented: pictures of a moving square, a state that follows the actions. Put your own cameras into
`look` and your own motors into `move`.
"""

from __future__ import annotations

import argparse
import threading
import time

import numpy as np
from oxygen_client import ActionBuffer, ClientError, RobotClient, Stale


class Arm:
    """An invented arm with two cameras, as the LIBERO robot of openpi has them."""

    def __init__(self) -> None:
        self.state = np.zeros(8)

    def look(self) -> dict[str, object]:
        picture = np.full((224, 224, 3), 40, np.uint8)
        x, y = (int(100 + 80 * np.tanh(v)) for v in self.state[:2])
        picture[y : y + 40, x : x + 40] = (230, 110, 50)
        return {
            "observation/image": picture,
            "observation/wrist_image": picture[::-1].copy(),
            "observation/state": self.state.astype(np.float32),
            "prompt": "pick up the orange block",
        }

    def move(self, action: np.ndarray) -> None:
        self.state[: len(action)] = 0.95 * self.state[: len(action)] + 0.05 * action

    def hold(self) -> None:
        """The safe behaviour: stay where you are."""


def think(robot: RobotClient, arm: Arm, buffer: ActionBuffer, stop: threading.Event) -> None:
    """Ask for a new chunk whenever half of the last one is used; ask for a narration now and then."""
    count = 0
    while not stop.is_set():
        if buffer.remaining > 5:
            time.sleep(0.005)
            continue
        tasks = [{"kind": "narration", "max_new_tokens": 24}] if count % 10 == 0 else []
        try:
            buffer.add(robot.infer(arm.look(), tasks, step=buffer.step, timeout=1.0))
            count += 1
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


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--url", default="ws://127.0.0.1:8000")
    parser.add_argument("--session", default="arm-1")
    parser.add_argument("--seconds", type=float, default=10.0)
    parser.add_argument("--api-key")
    args = parser.parse_args()
    arm, stop = Arm(), threading.Event()
    with RobotClient(args.url, args.session, args.api_key) as robot:
        rate = float(robot.metadata.get("control_hz") or 20.0)
        buffer = ActionBuffer(period_s=1.0 / rate)
        threads = [
            threading.Thread(target=think, args=(robot, arm, buffer, stop)),
            threading.Thread(target=listen, args=(robot, stop)),
        ]
        for thread in threads:
            thread.start()
        answer, moved, held, ends = None, 0, 0, time.monotonic() + args.seconds
        while time.monotonic() < ends:
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
        stop.set()
        for thread in threads:
            thread.join()
        print(f"{moved} actions executed, {held} periods held, {robot.num_connects} connections")
        if answer is not None:
            print(f"answer: {answer.result(timeout=10)!r}")


if __name__ == "__main__":
    main()
