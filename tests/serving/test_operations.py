"""Health, metrics, key, limits, events, recording, stop: what an operator counts on."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
from oxygen_client import RobotClient, ServerError
from serving.rig import SENTENCE, FakeRunner, observation, serve
from websockets.exceptions import ConnectionClosed, InvalidStatus
from websockets.sync.client import connect

from oxygen.serving import logs, record, replay, wire


def test_readiness_follows_warm_up_fault_and_stop() -> None:
    warm = threading.Event()
    with serve(warm_up=lambda: warm.wait(60)) as rig:
        answer = httpx.get(rig.http + "/readyz")
        assert answer.status_code == 503 and answer.json()["status"] == "warming" and answer.headers["retry-after"]
        assert httpx.get(rig.http + "/livez").status_code == httpx.get(rig.http + "/healthz").status_code == 200
        warm.set()
        rig.until(lambda: httpx.get(rig.http + "/readyz").status_code == 200)
        rig.runner.fault = RuntimeError("illegal access")
        with RobotClient(rig.ws) as robot, pytest.raises(ServerError) as caught:
            robot.infer(observation())
        assert caught.value.code == "device_fault" and "illegal" not in str(caught.value)
        rig.until(lambda: httpx.get(rig.http + "/readyz").status_code == 503, timeout=5.0)
        for path in ("/livez", "/healthz"):
            assert httpx.get(rig.http + path).status_code == 503
        assert httpx.get(rig.http + "/readyz").json()["status"] == "failed"


def test_a_step_that_hangs_is_alive_but_not_ready() -> None:
    with serve(stuck_after_s=0.2) as rig, RobotClient(rig.ws, "arm") as robot:
        rig.runner.gate.clear()
        frame = threading.Thread(target=lambda: robot.infer(observation(), timeout=60))
        frame.start()
        rig.until(lambda: httpx.get(rig.http + "/readyz").json()["status"] == "stuck")
        assert httpx.get(rig.http + "/livez").status_code == 200
        rig.runner.gate.set()
        frame.join(60)
        rig.until(lambda: httpx.get(rig.http + "/readyz").status_code == 200)


def test_sessions_that_nobody_owns_are_forgotten() -> None:
    with serve(session_idle_s=0.2) as rig:
        with RobotClient(rig.ws, "arm") as robot:
            robot.infer(observation())
            time.sleep(0.5)
            assert len(rig.gateway.sessions) == 1
        rig.until(lambda: len(rig.gateway.sessions) == 0)


def test_a_server_full_of_sessions_refuses_the_newcomer_with_a_hint() -> None:
    with serve(max_sessions=1) as rig, RobotClient(rig.ws, "arm") as robot:
        robot.infer(observation())
        with connect(rig.ws + "/v1/robot?session=leg") as link:
            answer = wire.unpackb(link.recv())
            assert answer["code"] == "too_many_sessions" and answer["retry_after_s"]
        with connect(rig.ws + "/v1/robot?session=%00") as link:
            assert wire.unpackb(link.recv())["field"] == "session"
        assert robot.infer(observation()).frame_id == 1


def test_metrics_are_prometheus_text_and_count() -> None:
    with serve() as rig, RobotClient(rig.ws, "arm") as robot:
        chunk = robot.infer(observation(), [{"kind": "narration", "max_new_tokens": 200}])
        robot.text(chunk.text_ids[0]).result(30)
        with pytest.raises(ServerError):
            robot.infer({})
        text = httpx.get(rig.http + "/metrics").text
        samples = dict(line.rsplit(" ", 1) for line in text.splitlines() if not line.startswith("#"))
        assert samples['oxygen_frames_total{door="robot"}'] == "1"
        assert samples['oxygen_refusals_total{reason="invalid_input"}'] == "1"
        assert samples['oxygen_texts_total{kind="narration",finish_reason="stop"}'] == "1"
        assert float(samples["oxygen_text_tokens_total"]) == len(SENTENCE.encode())
        assert samples['oxygen_action_ready_ms_count{door="robot"}'] == "1"
        assert samples['oxygen_action_ready_ms_bucket{door="robot",le="+Inf"}'] == "1"
        assert samples["oxygen_ready"] == "1" and float(samples['oxygen_stage_ms_count{stage="act"}']) >= 1
        assert "nan" not in text.lower().replace("finance", "")


def test_the_key_opens_every_door_and_health_needs_none() -> None:
    with serve(api_key="secret") as rig:
        for path in ("/metrics", "/v1/models", "/v1/events", "/", "/v1/dashboard"):
            assert httpx.get(rig.http + path).status_code == 401, path
        for path in ("/", "/v1/robot", "/v1/events", "/v1/realtime/robot/openpi"):
            with pytest.raises(InvalidStatus) as refused, connect(rig.ws + path):
                pass
            assert refused.value.response.status_code == 401, path
        assert httpx.get(rig.http + "/healthz").status_code == 200
        for headers in (
            {"Authorization": "Bearer secret"},
            {"Authorization": "Api-Key secret"},
            {"X-Api-Key": "secret"},
        ):
            assert httpx.get(rig.http + "/v1/models", headers=headers).status_code == 200
        with RobotClient(rig.ws, api_key="secret") as robot:
            assert robot.infer(observation()).frame_id == 0
        with pytest.raises(ServerError, match="401"):
            RobotClient(rig.ws, api_key="wrong").connect(5)
        with httpx.Client(follow_redirects=True) as browser:
            assert "OxyGen" in browser.get(rig.http + "/?key=secret").text
            assert browser.get(rig.http + "/v1/models").status_code == 200


def test_pages_of_other_sites_and_foreign_host_names_are_refused() -> None:
    with serve() as rig:
        assert httpx.get(rig.http + "/v1/models", headers={"Origin": "http://evil.example"}).status_code == 403
        assert httpx.get(rig.http + "/v1/models", headers={"Host": "evil.example"}).status_code == 403
        assert httpx.get(rig.http + "/v1/models", headers={"Origin": rig.http}).status_code == 200
        with pytest.raises(InvalidStatus) as refused, connect(rig.ws, origin="http://evil.example"):  # type: ignore
            pass
        assert refused.value.response.status_code == 403


def test_more_connections_than_the_limit_are_told_and_a_place_is_free_again() -> None:
    with serve(max_connections=2) as rig:
        links = [connect(rig.ws), connect(rig.ws)]
        for link in links:
            link.__enter__()
            link.recv()
        with pytest.raises(InvalidStatus) as refused, connect(rig.ws):
            pass
        assert refused.value.response.status_code == 503 and refused.value.response.headers["Retry-After"]
        assert httpx.get(rig.http + "/healthz").status_code == 200
        links[0].__exit__(None, None, None)
        rig.until(lambda: rig.server.app.num_open == 1)
        with connect(rig.ws) as link:
            assert isinstance(link.recv(), bytes)
        links[1].__exit__(None, None, None)


@pytest.mark.parametrize("door", ["sse", "websocket"])
def test_events_carry_the_text_of_one_session(door: str) -> None:
    with serve() as rig, RobotClient(rig.ws, "arm") as robot, RobotClient(rig.ws, "leg") as other:
        events: list[dict[str, Any]] = []
        ready = threading.Event()

        def listen_sse() -> None:
            with httpx.stream("GET", rig.http + "/v1/events?session=arm&kinds=narration", timeout=30) as response:
                for line in response.iter_lines():
                    ready.set()
                    if line.startswith("data: "):
                        events.append(json.loads(line[6:]))
                        if events[-1]["done"]:
                            return

        def listen_websocket() -> None:
            with connect(rig.ws + "/v1/events?session=arm&kinds=narration") as link:
                ready.set()
                while not events or not events[-1]["done"]:
                    events.append(json.loads(link.recv(30)))

        listening = threading.Thread(target=listen_sse if door == "sse" else listen_websocket)
        listening.start()
        assert ready.wait(30)
        rig.until(lambda: rig.gateway.feed.num_subscriptions >= 3)
        other.infer(observation(), [{"kind": "narration", "max_new_tokens": 200}])
        robot.infer(observation(), ["subtask", {"kind": "narration", "max_new_tokens": 200}])
        listening.join(30)
        assert {e["session"] for e in events} == {"arm"} and {e["kind"] for e in events} == {"narration"}
        assert "".join(e["delta"] for e in events) == SENTENCE == events[-1]["text"]


def test_a_reader_that_stops_reading_costs_bounded_memory_and_nobody_else() -> None:
    runner = FakeRunner()
    runner.sentence = "a" * 590
    with serve(runner, send_timeout_s=0.5) as rig, RobotClient(rig.ws, "arm") as robot:
        slow = socket.create_connection(("127.0.0.1", rig.server.port))
        slow.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        request = f"GET /v1/events HTTP/1.1\r\nHost: 127.0.0.1:{rig.server.port}\r\n\r\n"
        slow.sendall(request.encode())
        rig.until(lambda: rig.gateway.feed.num_subscriptions >= 2)
        started = time.monotonic()
        while time.monotonic() - started < 1.5:
            robot.infer(observation(size=28), [{"kind": "narration", "max_new_tokens": 500}] * 4, timeout=30)
        for group in rig.gateway.feed._subscriptions.values():
            assert all(len(s._queue) <= 512 for s in group)
        slow.close()
        rig.until(lambda: rig.gateway.feed.num_subscriptions == 1)


def test_a_robot_that_stops_reading_is_let_go() -> None:
    with serve(send_timeout_s=0.3) as rig, connect(rig.ws + "/v1/robot?session=deaf", max_queue=1) as link:
        link.recv()
        event = {"type": "warning", "code": "x", "message": "y" * 4_000_000}
        for _ in range(6):  # more than both sides' buffers; the client reads none of it
            rig.server.call_soon(rig.gateway.feed.publish, "deaf", event)
        rig.until(lambda: rig.gateway.sessions.get("deaf").owner is None)
        with connect(rig.ws) as other:
            other.recv()
            other.send(wire.packb(observation()))
            assert isinstance(other.recv(), bytes)


def test_stale_jumping_and_frozen_frames_are_told_apart() -> None:
    with serve(max_frame_age_s=1.0, repeated_frames_warning=5) as rig, RobotClient(rig.ws, "arm") as robot:
        clock = 1000.0  # a robot whose clock is far away from ours
        started = time.monotonic()

        def now() -> float:
            return clock + time.monotonic() - started

        robot.infer(observation(), captured_at=now())
        for late, code in ((3.0, "capture_time_decreased"), (-50.0, "clock_jump"), (2.0, "capture_time_decreased")):
            with pytest.raises(ServerError) as caught:
                robot.infer(observation(), captured_at=now() - late)
            assert caught.value.code == code
        robot.reset()
        robot.infer(observation(), captured_at=now())
        robot.infer(observation(), captured_at={"image": now(), "wrist_image": now()})
        for bad in (float("nan"), "yesterday", {"image": float("inf")}):
            with pytest.raises(ServerError) as caught:
                robot.infer(observation(), captured_at=bad)
            assert caught.value.field.startswith("captured_at")
        frozen = observation(0)
        for step in range(6):
            frozen["observation/state"] = np.full(8, step, np.float32)
            frozen["observation/image"] = observation(step)["observation/image"]
            robot.infer(frozen)
        session = rig.gateway.sessions.get("arm")
        assert [w["code"] for w in session.warnings] == ["frozen_camera"]
        assert "wrist_image" in session.warnings[0]["message"]


def test_recording_holds_everything_and_replays_exactly(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    first, second = tmp_path / "first.mcap", tmp_path / "second.mcap"
    with serve(record=first) as rig, RobotClient(rig.ws, "arm") as robot:
        for step in range(3):
            chunk = robot.infer(observation(step), [{"kind": "narration", "max_new_tokens": 60}], frame_id=step)
            robot.text(chunk.text_ids[0]).result(30)
    records = list(record.read(first))
    assert [r.kind for r in records].count("observation") == [r.kind for r in records].count("actions") == 3
    texts = [r.fields for r in records if r.kind == "text"]
    assert [t["text"] for t in texts] == [SENTENCE] * 3
    with serve(record=second) as rig:
        summary = replay.play(record.read(first), rig.ws, 0, ["narration"])
        assert summary["frames"] == 3 and summary["refused"] == 0 and summary["sessions"] == ["arm"]
    before, after = ([r.fields for r in record.read(p) if r.kind == "observation"] for p in (first, second))
    for old, new in zip(before, after, strict=True):
        assert (old["frame_id"], old["prompt"]) == (new["frame_id"], new["prompt"])
        np.testing.assert_array_equal(old["state"], new["state"])
        for name in ("image", "wrist_image"):
            np.testing.assert_array_equal(old["images"][name], new["images"][name])
    assert replay.describe(record.read(first))["sessions"]["arm"]["observation"] == 3
    broken = tmp_path / "broken.mcap"
    broken.write_bytes(first.read_bytes()[:500])
    with pytest.raises(ValueError, match="MCAP"):
        list(record.read(broken))


def test_rerun_gets_pictures_and_text(tmp_path: Path) -> None:
    pytest.importorskip("rerun")
    from oxygen.serving.viewer import Viewer

    path = tmp_path / "view.rrd"
    with serve() as rig, RobotClient(rig.ws, "arm") as robot:
        rig.gateway.taps.append(Viewer(lambda stream: stream.save(path)))
        chunk = robot.infer(observation(), [{"kind": "narration", "max_new_tokens": 60}])
        robot.text(chunk.text_ids[0]).result(30)
    data = path.read_bytes()
    assert len(data) > 100_000 and b"wrist_image" in data


def test_logs_are_one_json_object_a_line_with_what_was_attached(capsys: pytest.CaptureFixture[str]) -> None:
    import logging

    before = logging.getLogger().handlers[:]
    try:
        logs.set_up("json", "info")
        try:
            raise ValueError("inner")
        except ValueError:
            logging.getLogger("oxygen.x").exception("outer %d", 1, extra={"reference": "abc"})
    finally:
        logging.getLogger().handlers[:] = before
    line = json.loads(capsys.readouterr().err.strip())
    assert line["message"] == "outer 1" and line["reference"] == "abc" and "ValueError: inner" in line["traceback"]


def test_the_command_serves_and_stops_and_refuses_a_port_that_is_taken() -> None:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, "-m", "oxygen.cli.main", "serve", "pi05-tiny", "--max-contexts", "4", "--max-texts", "2"]
    process = subprocess.Popen(
        [*command, "--port", "0"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment
    )
    try:
        assert process.stdout is not None and process.stderr is not None
        port = int(process.stdout.readline().rsplit(":", 1)[1])
        taken = subprocess.run(
            [*command, "--port", str(port)], capture_output=True, text=True, env=environment, timeout=60
        )
        assert taken.returncode == 1 and "in use" in taken.stderr and "Traceback" not in taken.stderr
        with RobotClient(f"ws://127.0.0.1:{port}") as robot:
            while httpx.get(f"http://127.0.0.1:{port}/readyz").status_code != 200:
                time.sleep(0.05)
            assert robot.infer(observation(), timeout=30).actions.shape == (10, 7)
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 0
        lines = process.stderr.read().splitlines()
        assert lines and all(json.loads(line)["level"] != "error" for line in lines)
    finally:
        process.kill()
        process.wait()


def test_a_device_that_fails_ends_the_server_after_telling_everybody() -> None:
    with serve(exit_on_fault=True) as rig, connect(rig.ws) as idle:
        idle.recv()
        rig.runner.fault = RuntimeError("illegal access")
        with RobotClient(rig.ws) as robot, pytest.raises(ServerError) as caught:
            robot.infer(observation())
        assert caught.value.code == "device_fault"
        with pytest.raises(ConnectionClosed):
            idle.recv(timeout=30)
        assert idle.close_code == 1001
        rig.until(lambda: not rig.server.is_running)


_PROGRAM = """
import asyncio, sys
sys.path[:0] = {path!r}
from serving.rig import FakeRunner, processor
from oxygen.engine.engine import Engine
from oxygen.serving.app import build_app
from oxygen.serving.server import Server, listen
from oxygen.serving.settings import ServeSettings
settings = ServeSettings(port={port}, drain_s=5.0)
runner = FakeRunner()
runner.act_s = 0.3
engine = Engine(runner, processor())
engine.start()
listeners = listen(settings)
print(listeners[0].getsockname()[1], flush=True)
asyncio.run(Server(build_app(engine, settings), settings).serve(listeners))
engine.close()
print("done", flush=True)
"""


def test_sigterm_answers_open_frames_tells_clients_and_exits_cleanly() -> None:
    def start(port: int = 0) -> subprocess.Popen[str]:
        program = _PROGRAM.format(path=[str(Path(__file__).parents[1])], port=port)
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
        return subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True, env=environment)

    process = start()
    try:
        assert process.stdout is not None
        port = int(process.stdout.readline())
        with connect(f"ws://127.0.0.1:{port}") as idle, connect(f"ws://127.0.0.1:{port}") as link:
            idle.recv()
            link.recv()
            link.send(wire.packb(observation()))
            time.sleep(0.15)
            process.send_signal(signal.SIGTERM)
            assert wire.unpackb(link.recv(timeout=30))["actions"].shape == (10, 7)  # the open frame is answered
            with pytest.raises(ConnectionClosed):
                idle.recv(timeout=30)
            assert idle.close_code == 1001 and "stopping" in (idle.close_reason or "")
        assert process.wait(60) == 0 and process.stdout.read().strip() == "done"
    finally:
        process.kill()
        process.wait()
