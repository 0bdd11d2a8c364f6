"""Random and mutated messages on every door: no crash, no leak, always a clear error, and the robot next door
notices nothing.

OXYGEN_FUZZ sets the number of messages for each door (the full run takes 10000).
"""

from __future__ import annotations

import contextlib
import gc
import json
import os
import pickle
import threading
from collections import Counter
from collections.abc import Iterator
from typing import Any

import grpc
import httpx
import psutil
import pytest
from oxygen_client import RobotClient
from serving.mutate import messages
from serving.rig import HORIZON, Rig, observation, serve
from websockets.exceptions import ConnectionClosed
from websockets.sync.client import connect

from oxygen.serving import wire
from oxygen.serving.lerobot import protobuf

COUNT = int(os.environ.get("OXYGEN_FUZZ", "400"))
FRAME = observation(size=14)


@contextlib.contextmanager
def undisturbed(rig: Rig) -> Iterator[None]:
    """A robot works all the while; afterwards nothing is left behind."""
    stop, frames = threading.Event(), Counter()

    def work() -> None:
        with RobotClient(rig.ws, "neighbour") as robot:
            while not stop.wait(0.005):
                frames["right"] += robot.infer(FRAME, timeout=200).actions.shape == (HORIZON, 7)
                frames["all"] += 1

    working = threading.Thread(target=work)
    working.start()
    rig.until(lambda: frames["all"] > 2, timeout=120)
    before = psutil.Process().memory_info().rss
    num_threads = threading.active_count()
    yield
    stop.set()
    working.join(60)
    assert frames["all"] == frames["right"] > 3 and rig.engine.status == "ready"
    rig.assert_idle()
    rig.until(lambda: rig.server.app.num_open == 0)
    assert threading.active_count() <= num_threads + 4  # the doors' pool grows to its size as it is needed
    assert rig.gateway.metrics.refusals.value("internal") == 0, "an error that nobody foresaw"
    gc.collect()
    assert psutil.Process().memory_info().rss - before < 200e6


def test_openpi_door() -> None:
    valid = [FRAME, {**FRAME, "tasks": ["narration", {"kind": "answer", "question": "why?"}], "frame_id": 3, "seed": 1}]
    with serve(max_frame_bytes=1_000_000) as rig, undisturbed(rig):
        link = None
        for data in messages(valid, wire.packb, COUNT, seed=1):
            if link is None:
                link = connect(rig.ws, compression=None).__enter__()
                link.recv()
            link.send(data)
            reply = link.recv(timeout=60)
            if isinstance(reply, str):
                assert reply and "Traceback" not in reply and not reply.startswith("internal"), reply
                with pytest.raises(ConnectionClosed):
                    link.recv(timeout=60)
                assert link.close_code == 1011
                link = None
            else:
                assert wire.unpackb(reply).keys() >= {"actions"} or wire.unpackb(reply) == {"reset": True}
        if link is not None:
            link.close()


def test_robot_door() -> None:
    frame = {"type": "observation", "seq": 1, "observation": FRAME, "tasks": ["narration"], "captured_at": 1.0}
    ask = {
        "type": "ask",
        "seq": 2,
        "task": {"kind": "answer", "question": "why?", "max_new_tokens": 3},
        "max_age_s": 1.0,
    }
    valid = [frame, frame, ask, {"type": "reset", "seq": 3}, {"type": "cancel", "id": "t1"}]
    kinds: Counter[str] = Counter()
    with serve(max_frame_bytes=1_000_000) as rig, undisturbed(rig):
        link = connect(rig.ws + "/v1/robot?session=odd", compression=None, max_queue=None).__enter__()
        link.recv()
        for number, data in enumerate(messages(valid, wire.packb, COUNT, seed=2)):
            link.send(data)
            link.send(wire.packb({"type": "nothing", "seq": 2**40 + number}))  # its refusal comes after every answer
            while True:
                answer: Any = wire.unpackb(link.recv(timeout=60))
                assert answer["type"] in ("actions", "asked", "reset", "error", "text", "warning", "gap")
                if answer.get("seq") == 2**40 + number:
                    break
                kinds[answer["type"]] += 1
                if answer["type"] == "error":
                    assert answer["code"] != "internal" and answer["message"], answer
        link.close()
    assert kinds["error"] > COUNT // 4 and kinds["actions"] > 3


def test_starvla_door() -> None:
    pictures = [FRAME["observation/image"], FRAME["observation/wrist_image"]]
    row = {"image": pictures, "lang": "go", "state": FRAME["observation/state"]}
    whole = {"type": "predict_action", "request_id": "r", "payload": {"examples": [row, row], "unnorm_key": None}}
    valid = [{"examples": [row], "seed": 1}, whole, {"type": "ping", "request_id": 7}]
    kinds: Counter[str] = Counter()
    with serve(max_frame_bytes=1_000_000, starvla_port=0) as rig, undisturbed(rig):
        link = connect(f"ws://127.0.0.1:{rig.server.starvla_port}", compression=None).__enter__()
        link.recv()
        for data in messages(valid, wire.packb, COUNT, seed=6):
            link.send(data)
            answer = wire.unpackb(link.recv(timeout=60))
            assert answer["ok"] is (answer["status"] == "ok")
            kinds[answer["type"] if answer["ok"] else "error"] += 1
            if not answer["ok"]:
                assert answer["error"]["message"] and answer["error"]["code"] != "internal", answer
        link.close()
    assert kinds["error"] > COUNT // 4 and kinds["inference_result"] > 3


def test_chat_door() -> None:
    body = {"model": "oxygen", "messages": [{"role": "user", "content": "why?"}], "max_tokens": 3, "stream": False}
    picture = {"type": "image_url", "image_url": {"url": "data:image/png;base64,iVBORw0KGgo="}}
    valid = [body, {**body, "stop": ["x"], "seed": 1, "messages": [{"role": "user", "content": [picture]}]}]
    statuses: Counter[int] = Counter()

    def pack(value: Any) -> bytes:
        return json.dumps(value).encode()

    with serve(max_body_bytes=100_000) as rig, undisturbed(rig), httpx.Client(timeout=60) as client:
        for data in messages(valid, pack, COUNT, seed=3):
            response = client.post(rig.http + "/v1/chat/completions", content=data)
            statuses[response.status_code] += 1
            assert response.status_code < 500, response.text
            if response.status_code != 200:
                assert response.json()["error"]["message"]
    assert statuses[400] > COUNT // 4


def test_paths_headers_and_raw_bytes() -> None:
    with serve(max_body_bytes=100_000) as rig, undisturbed(rig):
        import socket

        request = (
            "GET /v1/events?session=%00&kinds=a HTTP/1.1\r\nHost: 127.0.0.1\r\nUpgrade: websocket\r\n"
            "Connection: Upgrade\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n\r\n"
        )
        for data in messages([request], lambda r: str(r).encode(), COUNT // 2, seed=4):
            with socket.create_connection(("127.0.0.1", rig.server.port), timeout=60) as link:
                link.sendall(data)
                link.shutdown(socket.SHUT_WR)
                link.settimeout(0.05)
                with contextlib.suppress(TimeoutError, ConnectionResetError):
                    while link.recv(65536):
                        continue


def test_lerobot_door() -> None:
    good = protobuf.write_observation(protobuf.END, pickle.dumps({"timestep": 1, "observation": {}}, 4))
    codes: Counter[Any] = Counter()
    with serve(lerobot_port=0) as rig, undisturbed(rig):
        channel = grpc.insecure_channel(f"127.0.0.1:{rig.server.lerobot_port}")
        ready = channel.unary_unary("/transport.AsyncInference/Ready", bytes, bytes)
        setup = channel.unary_unary("/transport.AsyncInference/SendPolicyInstructions", bytes, bytes)
        send = channel.stream_unary("/transport.AsyncInference/SendObservations", bytes, bytes)
        ready(b"", timeout=60)
        for i, data in enumerate(messages([good], bytes, COUNT, seed=5)):
            try:
                setup(data, timeout=60) if i % 2 else send(iter([data]), timeout=60)
                codes["ok"] += 1
            except grpc.RpcError as error:
                codes[error.code()] += 1
        channel.close()
    assert codes[grpc.StatusCode.INVALID_ARGUMENT] > COUNT // 2


@pytest.mark.parametrize(
    "bytes_",
    [
        b"\xdf\xff\xff\xff\xff" + b"\xa1a" * 10,  # a map that declares four thousand million keys
        b"\xdd\xff\xff\xff\xff",  # a list likewise
        b"\x81\xa1a" * 5000,  # nesting
        b"\xc6\xff\xff\xff\xff",  # bytes that never come
        wire.packb([0] * 99_999),
        b"\xc7\x05\x01abcde",  # an extension type
    ],
)
def test_messages_that_promise_more_than_they_hold(bytes_: bytes) -> None:
    with serve() as rig, connect(rig.ws) as link:
        link.recv()
        before = psutil.Process().memory_info().rss
        link.send(bytes_)
        assert "invalid_input" in link.recv(timeout=30)
        assert psutil.Process().memory_info().rss - before < 100e6


def test_a_frame_header_that_declares_ten_gigabytes_is_refused_at_once() -> None:
    with serve() as rig, connect(rig.ws) as link:
        link.recv()
        link.socket.sendall(b"\x82\xff" + (10 * 2**30).to_bytes(8, "big") + b"\0\0\0\0" + b"x" * 1000)
        with pytest.raises(ConnectionClosed):
            link.recv(timeout=30)
        assert link.close_code == 1009 and str(64 * 2**20) in link.close_reason


def test_fragments_without_end_are_cut_off_at_the_limit() -> None:
    with serve(max_frame_bytes=1_000_000) as rig, connect(rig.ws) as link:
        link.recv()
        with contextlib.suppress(ConnectionClosed):
            link.send(bytes(100_000) for _ in range(1000))
        with pytest.raises(ConnectionClosed):
            link.recv(timeout=30)
        assert link.close_code == 1009 and "1000000" in link.close_reason


def test_pickles_are_refused_at_each_door(tmp_path: Any) -> None:
    mark = tmp_path / "mark"

    class Evil:
        def __reduce__(self) -> Any:
            return os.system, (f"touch {mark}",)

    data = pickle.dumps(Evil())
    with serve(lerobot_port=0) as rig:
        with connect(rig.ws) as link:
            link.recv()
            link.send(data)
            assert "invalid_input" in link.recv(timeout=30)
        with connect(rig.ws + "/v1/robot") as link:
            link.recv()
            link.send(data)
            assert wire.unpackb(link.recv(timeout=30))["code"] == "invalid_input"
        hidden = {b"nd": True, b"type": "O", b"kind": b"O", b"data": data, b"shape": [1]}
        with connect(rig.ws) as link:
            link.recv()
            link.send(wire.packb({**FRAME, "observation/state": hidden}))
            assert "invalid_input" in link.recv(timeout=30)
        assert httpx.post(rig.http + "/v1/chat/completions", content=data).status_code == 400
        channel = grpc.insecure_channel(f"127.0.0.1:{rig.server.lerobot_port}")
        channel.unary_unary("/transport.AsyncInference/Ready", bytes, bytes)(b"", timeout=30)
        call = channel.unary_unary("/transport.AsyncInference/SendPolicyInstructions", bytes, bytes)
        with pytest.raises(grpc.RpcError):
            call(protobuf.write_data(data), timeout=30)
        channel.close()
    assert not mark.exists()
