"""`--rerun`: cameras, state, chunks and texts in the Rerun viewer (extra `rerun`). Pictures are sent at a modest
rate.
"""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable

import rerun as rr

from oxygen.core.tasks import ActionResult, Observation
from oxygen.serving.feed import Event

_PICTURE_S = 0.2
_MAX_WAITING = 64


class Viewer:
    """A tap that logs to Rerun from a thread of its own; what it cannot follow, it leaves out."""

    def __init__(self, start: Callable[[rr.RecordingStream], None] = lambda stream: stream.spawn()) -> None:
        self.stream = rr.RecordingStream("oxygen")
        start(self.stream)
        self._shown: dict[str, float] = {}
        self._waiting: queue.Queue[Callable[[], None] | None] = queue.Queue(_MAX_WAITING)
        self._thread = threading.Thread(target=self._run, name="oxygen-rerun", daemon=True)
        self._thread.start()

    def on_observation(self, session: str, observation: Observation, frame_id: int | None, at: float) -> None:
        if time.monotonic() - self._shown.get(session, 0.0) < _PICTURE_S:
            return
        self._shown[session] = time.monotonic()

        def show() -> None:
            self.stream.set_time("time", timestamp=at)
            for name, picture in observation.images.items():
                self.stream.log(f"{session}/cameras/{name}", rr.Image(picture))
            if observation.state is not None:
                self.stream.log(f"{session}/state", rr.Scalars(observation.state))

        self._put(show)

    def on_actions(self, session: str, result: ActionResult, at: float) -> None:
        def show() -> None:
            self.stream.set_time("time", timestamp=at)
            self.stream.log(f"{session}/action", rr.Scalars(result.actions[0]))
            self.stream.log(f"{session}/chunk", rr.Tensor(result.actions))
            self.stream.log(f"{session}/ready_ms", rr.Scalars([1000 * result.ready_s]))

        self._put(show)

    def on_text(self, event: Event) -> None:
        def show() -> None:
            self.stream.set_time("time", timestamp=event["at"])
            self.stream.log(f"{event['session']}/text/{event['kind']}", rr.TextLog(event.get("text", "")))

        self._put(show)

    def close(self) -> None:
        self._waiting.put(None)
        self._thread.join(timeout=5)
        self.stream.disconnect()

    def _put(self, show: Callable[[], None]) -> None:
        if not self._waiting.full():
            self._waiting.put_nowait(show)

    def _run(self) -> None:
        while (show := self._waiting.get()) is not None:
            show()
