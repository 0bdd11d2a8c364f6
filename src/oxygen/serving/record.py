"""`--record FILE`: every observation, chunk and text of every session, in one MCAP file.

Observations are msgpack with arrays (lossless, so that a replay is exact); chunks and texts are JSON, which viewers
of MCAP files can plot. Writing happens in a thread of its own; if the disk cannot follow, records are dropped and
counted in the file.
"""

from __future__ import annotations

import json
import logging
import queue
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mcap.reader import make_reader
from mcap.writer import Writer

from oxygen.core.errors import InvalidInput
from oxygen.core.tasks import ActionResult, Observation
from oxygen.serving import strictjson, wire
from oxygen.serving.feed import Event

log = logging.getLogger("oxygen.serving")

_MAX_WAITING = 512
_NS = 1_000_000_000
_SCHEMA = json.dumps({"type": "object"}).encode()


class Recorder:
    """A tap that writes. `close` waits until everything that was taken is in the file."""

    def __init__(self, path: Path) -> None:
        self._file = path.open("wb")
        self._writer = Writer(self._file)
        self._writer.start(profile="oxygen", library="oxygen")
        self._schemas: dict[str, int] = {}
        self._channels: dict[str, int] = {}
        self._waiting: queue.Queue[Callable[[], None] | None] = queue.Queue(_MAX_WAITING)
        self.num_dropped = 0
        self._thread = threading.Thread(target=self._run, name="oxygen-record", daemon=True)
        self._thread.start()

    def on_observation(self, session: str, observation: Observation, frame_id: int | None, at: float) -> None:
        fields = {
            "session": session,
            "frame_id": frame_id,
            "captured_at": observation.captured_at,
            "prompt": observation.prompt,
            "state": observation.state,
            "images": dict(observation.images),
        }
        self._put(session, "observation", "msgpack", lambda: wire.packb(fields), at)

    def on_actions(self, session: str, result: ActionResult, at: float) -> None:
        def encode() -> bytes:
            fields = {"frame_id": result.frame_id, "expert": result.expert, "captured_at": result.captured_at}
            return strictjson.dumps({**fields, "actions": result.actions.tolist(), "ready_s": result.ready_s}).encode()

        self._put(session, "actions", "json", encode, at)

    def on_text(self, event: Event) -> None:
        self._put(str(event["session"]), "text", "json", lambda: strictjson.dumps(event).encode(), float(event["at"]))

    def close(self) -> None:
        self._waiting.put(None)
        self._thread.join()
        if self.num_dropped:
            log.warning("the recording lacks %d records: the disk could not follow", self.num_dropped)
        try:
            with self._file:
                self._writer.add_metadata("oxygen", {"dropped": str(self.num_dropped)})
                self._writer.finish()  # type: ignore[no-untyped-call]
        except OSError as error:
            log.error("the recording has no end: %s", error)

    def _put(self, session: str, kind: str, encoding: str, encode: Callable[[], bytes], at: float) -> None:
        def write() -> None:
            stamp = int(at * _NS)
            channel = self._channel(f"/{session}/{kind}", kind, encoding)
            self._writer.add_message(channel, log_time=stamp, data=encode(), publish_time=stamp)

        try:
            self._waiting.put_nowait(write)
        except queue.Full:
            self.num_dropped += 1

    def _channel(self, topic: str, kind: str, encoding: str) -> int:
        if topic not in self._channels:
            if kind not in self._schemas:
                form = "jsonschema" if encoding == "json" else ""
                self._schemas[kind] = self._writer.register_schema(f"oxygen.{kind}", form, _SCHEMA if form else b"")
            self._channels[topic] = self._writer.register_channel(topic, encoding, self._schemas[kind])
        return self._channels[topic]

    def _run(self) -> None:
        while (write := self._waiting.get()) is not None:
            try:
                write()
            except Exception as error:  # one record that cannot be written must not end the recording
                if not self.num_dropped:
                    log.error("a record cannot be written: %s", error, exc_info=error)
                self.num_dropped += 1


@dataclass(frozen=True, slots=True)
class Recorded:
    """One record. at: epoch seconds. kind: `observation`, `actions` or `text`."""

    at: float
    session: str
    kind: str
    fields: dict[str, Any]


def read(path: Path) -> Iterator[Recorded]:
    """Records of a file in the order of their time. Raises InvalidInput for a file that is none."""
    try:
        with path.open("rb") as file:
            for _, channel, message in make_reader(file).iter_messages():
                _, session, kind = channel.topic.split("/", 2)
                decode = wire.unpackb if channel.message_encoding == "msgpack" else json.loads
                yield Recorded(message.log_time / _NS, session, kind, _checked(kind, decode(message.data)))
    except OSError as error:
        raise InvalidInput("file", "a readable file", f"{path}: {error.strerror}") from None
    except Exception as error:
        got = f"{path}: {error!s:.200}"
        raise InvalidInput("file", "an MCAP file that `oxygen serve --record` wrote", got) from None


def _checked(kind: str, fields: Any) -> dict[str, Any]:
    """The fields of a record that a replay can use. Raises InvalidInput."""
    if kind not in ("observation", "actions", "text"):
        raise InvalidInput("kind", "observation, actions or text", f"{kind!r:.80}")
    if not isinstance(fields, dict):
        raise InvalidInput(kind, "a map", type(fields).__name__)
    if kind == "observation":
        missing = [name for name in ("frame_id", "prompt", "state", "images") if name not in fields]
        if missing or not isinstance(fields["images"], dict):
            raise InvalidInput("observation", "frame_id, prompt, state and a map of images", f"{sorted(fields)!s:.80}")
    return fields
