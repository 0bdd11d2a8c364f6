"""`oxygen replay FILE`: play a recording back to a running server, at its own pace, as the robots that it recorded."""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import quote

import numpy as np
from websockets.exceptions import WebSocketException
from websockets.sync.client import ClientConnection, connect

from oxygen.core.errors import OxygenError, check_number
from oxygen.serving import record, wire
from oxygen.serving.record import Recorded


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("file", type=Path, help="MCAP file that `oxygen serve --record` wrote")
    parser.add_argument("--url", default="ws://127.0.0.1:8000", help="server to play to (default: %(default)s)")
    parser.add_argument("--speed", type=float, default=1.0, help="1: as recorded, 0: as fast as answered")
    parser.add_argument("--task", action="append", default=[], metavar="KIND", help="a text to ask of every frame")
    parser.add_argument("--api-key", help="key of the server")
    parser.add_argument("--list", action="store_true", help="only say what the file holds")


def run(args: argparse.Namespace) -> int:
    records = record.read(args.file)
    summary = describe(records) if args.list else play(records, args.url, args.speed, args.task, args.api_key)
    print(json.dumps(summary))
    return 0


def describe(records: Iterable[Recorded]) -> dict[str, Any]:
    """Sessions, with the number of records of each kind and the time that they span."""
    sessions: dict[str, dict[str, Any]] = {}
    for entry in records:
        told = sessions.setdefault(entry.session, {"first": entry.at, "observation": 0, "actions": 0, "text": 0})
        told[entry.kind] += 1
        told["seconds"] = entry.at - told["first"]
    return {"sessions": sessions}


def play(
    records: Iterable[Recorded], url: str, speed: float, kinds: list[str], api_key: str | None = None
) -> dict[str, Any]:
    """Send every recorded observation. speed 0 sends the next as soon as the last is answered. Raises OxygenError."""
    check_number("speed", speed, "a number of at least 0", 0)
    links: dict[str, _Robot] = {}
    first_at, started = None, time.monotonic()
    try:
        for entry in (e for e in records if e.kind == "observation"):
            first_at = entry.at if first_at is None else first_at
            if speed:
                time.sleep(max(0.0, (entry.at - first_at) / speed - (time.monotonic() - started)))
            if entry.session not in links:
                links[entry.session] = _Robot(url, entry.session, api_key)
            links[entry.session].send(entry.fields, kinds)
    except (OSError, WebSocketException, TimeoutError) as error:
        raise OxygenError(f"no server to play to at {url}: {error}") from error
    finally:
        for link in links.values():
            link.close()
    ready = sorted(ms for link in links.values() for ms in link.ready_ms)
    return {
        "frames": len(ready),
        "refused": sum(link.num_refused for link in links.values()),
        "sessions": sorted(links),
        "seconds": time.monotonic() - started,
        "answer_ms_p50": float(np.median(ready)) if ready else None,
    }


class _Robot:
    """One recorded robot, played over the robot door."""

    def __init__(self, url: str, session: str, api_key: str | None) -> None:
        headers = {"Authorization": f"Api-Key {api_key}"} if api_key else None
        address = f"{url.rstrip('/')}/v1/robot?session={quote(session, safe='')}"
        self._link: ClientConnection = connect(
            address, compression=None, max_size=None, proxy=None, additional_headers=headers
        )
        self._link.recv(timeout=10)
        self._seq = 0
        self.num_refused = 0
        self.ready_ms: list[float] = []

    def send(self, fields: Mapping[str, Any], kinds: list[str]) -> None:
        self._seq += 1
        observation = {f"observation.images.{name}": image for name, image in fields["images"].items()}
        observation |= {"observation.state": fields["state"], "task": fields["prompt"]}
        given = {name: value for name, value in observation.items() if value is not None}
        message = {"type": "observation", "seq": self._seq, "observation": given, "tasks": kinds}
        started = time.monotonic()
        self._link.send(wire.packb({**message, "frame_id": fields["frame_id"]}))
        while True:
            answer = wire.unpackb(self._link.recv(timeout=120, decode=False))
            if answer.get("seq") == self._seq:
                break
        if answer["type"] == "error":
            self.num_refused += 1
        else:
            self.ready_ms.append(1000 * (time.monotonic() - started))

    def close(self) -> None:
        self._link.close()
