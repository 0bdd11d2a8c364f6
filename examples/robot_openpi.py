"""A robot with openpi's own client, unchanged: it connects to OxyGen as it does to openpi's server.

    pip install --no-deps openpi-client && pip install msgpack websockets pillow dm-tree
    oxygen serve pi05-tiny
    python examples/robot_openpi.py --port 8000

The only thing that is new is one more key in the observation, `tasks`, for those who want text: its pieces ride
along in later replies under `text`. Leave it out and the replies are openpi's.
"""

from __future__ import annotations

import argparse
import sys
import time

import numpy as np
from openpi_client.action_chunk_broker import ActionChunkBroker
from openpi_client.websocket_client_policy import WebsocketClientPolicy


def look(step: int) -> dict[str, object]:
    """A LIBERO-shaped observation of an invented scene."""
    picture = np.full((224, 224, 3), 40, np.uint8)
    picture[80:120, step % 180 : step % 180 + 40] = (230, 110, 50)
    return {
        "observation/image": picture,
        "observation/wrist_image": picture[::-1].copy(),
        "observation/state": np.zeros(8, np.float32),
        "prompt": "pick up the orange block",
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=8000)
    parser.add_argument("--steps", type=int, default=50)
    args = parser.parse_args()
    try:
        work(WebsocketClientPolicy(args.host, args.port), args.steps)
    except (RuntimeError, OSError) as error:  # openpi's client raises RuntimeError with the server's words
        print(f"robot_openpi: {' '.join(str(error).split())}", file=sys.stderr)
        return 1
    return 0


def work(policy: WebsocketClientPolicy, steps: int) -> None:
    """Act for a number of steps, then go on until a narration is complete. Raises RuntimeError for a refusal."""
    print("metadata:", {k: v for k, v in policy.get_server_metadata().items() if k != "robot"})

    broker = ActionChunkBroker(policy, action_horizon=5)
    started = time.monotonic()
    for step in range(steps):
        action = broker.infer(look(step))["actions"]
    print(f"{steps} actions in {time.monotonic() - started:.2f} s, the last one {np.round(action, 3)}")

    words = ""
    for step in range(200):
        observation = look(step)
        observation["frame_id"] = step
        if step == 0:
            observation["tasks"] = [{"kind": "narration", "max_new_tokens": 24}]
        for event in policy.infer(observation)["text"]:
            words += event["delta"]
            if event["done"]:
                print(f"narration of frame {event['frame_id']}, {event['age_frames']} frames old: {words!r}")
                return


if __name__ == "__main__":
    sys.exit(main())
