"""What goes wrong around the doors: settings, ports, disks, recordings, clients that leave at the worst moment."""

from __future__ import annotations

import json
import math
import socket
import sys
import threading
import time
import types
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from mcap.writer import Writer
from oxygen_client import RobotClient
from serving.mutate import garble
from serving.rig import FakeRunner, observation, serve
from websockets.sync.client import connect

from oxygen.cli.main import main
from oxygen.core.errors import InvalidInput
from oxygen.core.tasks import Observation
from oxygen.serving import record, replay, wire
from oxygen.serving.record import Recorder
from oxygen.serving.settings import ServeSettings

SETTINGS = [
    *((name, v) for name in ("port", "lerobot_port") for v in (-1, 65536, 1.5, "8000", True)),
    *((name, v) for name in ("max_connections", "max_in_flight", "max_prompt_chars") for v in (0, 1.5, None, "3")),
    *((name, v) for name in ("max_frame_bytes", "max_session_texts") for v in (-1, 2**60, math.nan)),
    *((name, v) for name in ("ping_interval_s", "send_timeout_s", "control_hz") for v in (0, -1, math.nan, "1")),
    *((name, v) for name in ("drain_s", "max_frame_age_s") for v in (-1, math.nan, math.inf, 10**400)),
    *(("host", v) for v in ("", "x" * 5000, None, 5)),
    *(("api_key", v) for v in ("", " ", "schlüssel", "a\nb", 5)),
    *(("model_name", v) for v in ("", "a@b", "a\nb", None)),
    *(("debug", v) for v in (None, 1)),
    ("record", "file.mcap"),
]


@pytest.mark.parametrize(("field", "value"), SETTINGS, ids=lambda v: repr(v)[:20])
def test_settings_are_refused_by_name(field: str, value: Any) -> None:
    with pytest.raises(InvalidInput) as caught:
        ServeSettings(**{field: value})
    assert caught.value.field == field and len(str(caught.value)) < 200


def test_what_the_doors_cannot_have_ends_the_start_and_leaves_nothing(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        for settings, name in (({"record": tmp_path}, "record"), ({"lerobot_port": port}, "lerobot_port")):
            before = threading.active_count()
            with pytest.raises(InvalidInput, match=name), serve(**settings):
                pass
            assert threading.active_count() <= before + 1  # gRPC keeps one


def test_a_viewer_that_cannot_be_started_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    def absent(*_: Any) -> None:
        raise RuntimeError("no executable")

    monkeypatch.setitem(sys.modules, "oxygen.serving.viewer", types.SimpleNamespace(Viewer=absent))
    with pytest.raises(InvalidInput, match="rerun"), serve(rerun=True):
        pass


def test_a_log_level_that_is_none_is_said(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("OXYGEN_LOG", "loud")
    assert main(["inspect", "oxygen-tiny"]) == 1
    assert capsys.readouterr().err.startswith("oxygen inspect: error: OXYGEN_LOG: expected")


@pytest.mark.parametrize("path", ["/", "/v1/robot"])
def test_a_frame_handed_in_for_a_client_that_is_gone_is_cancelled(path: str) -> None:
    """It leaves while its frame is being encoded, so that no door ever holds the ticket."""
    entered, gate, tickets = threading.Event(), threading.Event(), []
    runner = FakeRunner()
    runner.round_s = 0.2
    with serve(runner) as rig:
        submit = rig.engine.submit

        def slow(*args: Any) -> Any:
            entered.set()
            gate.wait(60)
            tickets.append(submit(*args))
            return tickets[-1]

        rig.engine.submit = slow  # type: ignore[method-assign]
        wanted = [{"kind": "narration", "max_new_tokens": 40}]
        with connect(rig.ws + path) as link:
            link.recv()
            frame = observation() if path == "/" else {"type": "observation", "seq": 1, "observation": observation()}
            link.send(wire.packb({**frame, "tasks": wanted}))
            assert entered.wait(30)
        rig.until(lambda: all(session.owner is None for session in rig.gateway.sessions))
        gate.set()
        rig.until(lambda: bool(tickets))
        assert tickets[0].text().result(30).finish_reason == "cancelled"
        rig.assert_idle()


def test_a_takeover_whose_reset_fails_is_told_once() -> None:
    with serve() as rig:
        reset, failing = rig.engine.reset, [TimeoutError("the device is busy")]
        rig.engine.reset = lambda *args: reset(*args) if not failing else _raise(failing.pop())  # type: ignore[method-assign]
        with RobotClient(rig.ws, "arm") as first:
            first.infer(observation())
        with RobotClient(rig.ws, "arm") as second:
            with pytest.raises(Exception, match="busy"):
                second.infer(observation())
            assert second.infer(observation()).actions.shape == (10, 7)


def _raise(error: Exception) -> Any:
    raise error


class Unwritable:
    """In the place of a picture."""


def test_a_record_that_cannot_be_written_does_not_end_the_recording(tmp_path: Path) -> None:
    recorder = Recorder(tmp_path / "x.mcap")
    for images in ({"a": Unwritable()}, {"a": np.zeros((2, 2, 3), np.uint8)}):
        recorder.on_observation("arm", Observation(images, None, "go"), 0, time.time())  # type: ignore[arg-type]
    for _ in range(2000):  # more than may wait: a dead writer would fill the queue and hang the end
        recorder.on_observation("arm", Observation({"a": Unwritable()}), 0, time.time())  # type: ignore[dict-item]
    recorder.close()
    assert recorder.num_dropped > 0
    assert [r.fields["prompt"] for r in record.read(tmp_path / "x.mcap")] == ["go"]


def test_a_full_disk_is_logged_and_harms_no_robot(caplog: pytest.LogCaptureFixture) -> None:
    full = Path("/dev/full")
    if not full.exists():  # Linux has one
        return
    with serve(record=full) as rig, RobotClient(rig.ws, "arm") as robot:
        for step in range(3):
            assert robot.infer(observation(step)).actions.shape == (10, 7)
    assert "No space left" in caplog.text


def foreign(path: Path, topic: str, encoding: str, data: bytes) -> Path:
    with path.open("wb") as file:
        writer = Writer(file)
        writer.start()
        channel = writer.register_channel(topic, encoding, writer.register_schema("x", "jsonschema", b"{}"))
        writer.add_message(channel, log_time=1, publish_time=1, data=data)
        writer.finish()
    return path


@pytest.mark.parametrize(
    ("topic", "encoding", "data"),
    [
        ("/tf", "json", b"{}"),
        ("/arm/odometry", "json", b"{}"),
        ("/arm/observation", "json", b"[]"),
        ("/arm/observation", "json", b"{}"),
        ("/arm/observation", "json", json.dumps(dict(frame_id=0, prompt=None, state=None, images=5)).encode()),
        ("/arm/observation", "msgpack", b"\xc1"),
        ("/arm/text", "protobuf", b"\x08\x01"),
    ],
    ids=repr,
)
def test_files_of_others_are_refused(tmp_path: Path, capsys: Any, topic: str, encoding: str, data: bytes) -> None:
    path = foreign(tmp_path / "x.mcap", topic, encoding, data)
    for options in ([], ["--list"]):
        assert main(["replay", str(path), *options]) == 1
        error = capsys.readouterr().err
        assert error.count("\n") == 1 and error.startswith("oxygen replay: error: file: expected")


def test_damaged_recordings_are_read_or_refused(tmp_path: Path) -> None:
    recorder = Recorder(tmp_path / "good.mcap")
    for step in range(3):
        recorder.on_observation(
            "arm", Observation({"a": np.zeros((8, 8, 3), np.uint8)}, np.zeros(3)), step, time.time()
        )
    recorder.close()
    good, rng = (tmp_path / "good.mcap").read_bytes(), np.random.default_rng(0)
    num_refused = 0
    for _ in range(300):
        (tmp_path / "bad.mcap").write_bytes(garble(good, rng))
        try:
            replay.describe(record.read(tmp_path / "bad.mcap"))
        except InvalidInput as error:
            num_refused += 1
            assert len(str(error)) < 600
    assert num_refused > 100


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--speed", "nan"], "speed"),
        (["--speed", "-1"], "speed"),
        (["--url", "http://"], "no server"),
        (["--url", "ws://127.0.0.1:1"], "no server"),
        (["--url", ""], "no server"),
    ],
    ids=repr,
)
def test_odd_ways_to_replay(tmp_path: Path, capsys: Any, options: list[str], words: str) -> None:
    recorder = Recorder(tmp_path / "x.mcap")
    recorder.on_observation("arm", Observation({"a": np.zeros((8, 8, 3), np.uint8)}, np.zeros(3)), 0, time.time())
    recorder.close()
    assert main(["replay", str(tmp_path / "x.mcap"), *options]) == 1
    assert words in capsys.readouterr().err
