"""The openpi door, with openpi's own published client and with raw sockets."""

from __future__ import annotations

import threading
import time

import httpx
import msgpack
import numpy as np
import pytest
from openpi_client.action_chunk_broker import ActionChunkBroker
from openpi_client.websocket_client_policy import WebsocketClientPolicy
from serving.rig import HORIZON, observation, serve
from websockets.exceptions import ConnectionClosed
from websockets.sync.client import connect

from oxygen.serving import wire


def test_published_client_gets_openpis_fields_and_nothing_else() -> None:
    with serve() as rig:
        policy = WebsocketClientPolicy("127.0.0.1", rig.server.port)
        metadata = policy.get_server_metadata()
        assert metadata["horizon"] == HORIZON and metadata["robot"]["robot"] == "libero"
        first, second = policy.infer(observation(0)), policy.infer(observation(1))
        assert first.keys() == {"actions", "policy_timing", "server_timing"}
        assert first["actions"].shape == (HORIZON, 7) and first["actions"].dtype == np.float64
        assert "prev_total_ms" not in first["server_timing"] and second["server_timing"]["prev_total_ms"] > 0


def test_published_chunk_broker_survives_our_extra_fields() -> None:
    with serve() as rig:
        broker = ActionChunkBroker(WebsocketClientPolicy("127.0.0.1", rig.server.port), action_horizon=5)
        frame = {**observation(), "tasks": ["narration"], "frame_id": 4}
        replies = [broker.infer(frame) for _ in range(5)]
        assert all(reply["actions"].shape == (7,) for reply in replies)
        assert replies[0]["frame_id"] == 4 and len(replies[0]["texts"]) == 1


def test_text_rides_along_in_later_replies() -> None:
    with serve() as rig, connect(rig.ws, compression=None) as link:
        link.recv()
        text_id, pieces, final = None, [], None
        for frame_id in range(40):
            extra = {"tasks": [{"kind": "narration", "max_new_tokens": 100}]} if frame_id == 0 else {}
            link.send(wire.packb({**observation(frame_id), "frame_id": frame_id, **extra}))
            reply = wire.unpackb(link.recv())
            text_id = text_id or reply["texts"][0]
            for event in reply["text"]:
                assert event["id"] == text_id
                pieces.append(event["delta"])
                final = event if event["done"] else final
            if final:
                break
        assert final is not None and "".join(pieces) == rig.runner.sentence == final["text"]
        assert final["frame_id"] == 0 and final["finish_reason"] == "stop" and final["age_frames"] >= 0


def test_error_is_a_text_frame_then_1011_without_paths() -> None:
    with serve() as rig, connect(rig.ws) as link:
        link.recv()
        link.send(wire.packb({**observation(), "observation/state": np.full(8, np.nan, np.float32)}))
        message = link.recv()
        assert isinstance(message, str) and "observation/state" in message and "Traceback" not in message
        with pytest.raises(ConnectionClosed):
            link.recv()
        assert link.close_code == 1011


@pytest.mark.parametrize("fault", ["request", "bad"])
def test_faults_never_look_like_actions(fault: str) -> None:
    with serve() as rig, connect(rig.ws) as link:
        link.recv()
        if fault == "request":
            rig.runner.fault = "request"
        else:
            rig.runner.bad_actions = True
        link.send(wire.packb(observation()))
        message = link.recv()
        assert isinstance(message, str) and "reference" in message and "/secret" not in message
        rig.runner.bad_actions = False
        assert WebsocketClientPolicy("127.0.0.1", rig.server.port).infer(observation())["actions"].shape == (HORIZON, 7)


def test_healthz_is_openpis_and_any_path_opens_the_door() -> None:
    with serve() as rig:
        response = httpx.get(rig.http + "/healthz")
        assert response.status_code == 200 and response.content == b"OK\n"
        for path in ("/", "/anything/at/all", "/openpi/policy"):
            with connect(rig.ws + path) as link:
                assert wire.unpackb(link.recv())["server"] == "oxygen"
                assert link.protocol.extensions == []


def test_text_keyed_markers_are_read_and_answered_alike() -> None:
    def encode(value: object) -> object:
        assert isinstance(value, np.ndarray)
        return {"__ndarray__": True, "data": value.tobytes(), "dtype": value.dtype.str, "shape": value.shape}

    with serve() as rig, connect(rig.ws) as link:
        link.recv()
        link.send(msgpack.packb(observation(), default=encode))
        reply = msgpack.unpackb(link.recv())
        assert reply["actions"]["__ndarray__"] is True and reply["actions"]["shape"] == [HORIZON, 7]


def test_sglang_keys_name_the_robots_cameras() -> None:
    with serve() as rig, connect(rig.ws + "/openpi/policy") as link:
        link.recv()
        frame = observation()
        renamed = {
            "observation.images.image": frame["observation/image"],
            "observation.images.wrist_image": frame["observation/wrist_image"],
            "observation.state": frame["observation/state"],
            "task": "pick up the cup",
        }
        link.send(wire.packb(renamed))
        assert wire.unpackb(link.recv())["actions"].shape == (HORIZON, 7)
        session = next(iter(rig.gateway.sessions))
        assert session.observation.prompt == "pick up the cup"
        np.testing.assert_array_equal(session.observation.images["image"], frame["observation/image"])


def test_vllm_omni_dialect_bare_array_reset_and_errors_that_stay_open() -> None:
    with serve() as rig, connect(rig.ws + "/v1/realtime/robot/openpi") as link:
        link.recv()
        link.send(wire.packb({**observation(), "session_id": "arm", "endpoint": "infer"}))
        assert wire.unpackb(link.recv()).shape == (HORIZON, 7)
        link.send(wire.packb({"endpoint": "reset", "session_id": "arm"}))
        assert link.recv() == "reset successful"
        link.send(wire.packb({"prompt": "no pictures"}))
        assert "invalid_input" in wire.unpackb(link.recv())["error"]
        link.send(wire.packb(observation()))
        assert wire.unpackb(link.recv()).shape == (HORIZON, 7)


def test_a_slow_model_call_blocks_no_ping_greeting_health_or_text() -> None:
    with serve(ping_interval_s=0.2, ping_timeout_s=0.3) as rig:
        policy = WebsocketClientPolicy("127.0.0.1", rig.server.port)
        rig.runner.gate.clear()
        answers: list[dict] = []
        waiting = threading.Thread(target=lambda: answers.append(policy.infer(observation())))
        waiting.start()
        rig.until(lambda: rig.gateway.in_flight == 1)
        started = time.monotonic()
        with connect(rig.ws, ping_interval=0.2, ping_timeout=0.3) as second:
            second.recv()
            assert time.monotonic() - started < 8.0
            assert httpx.get(rig.http + "/healthz").status_code == 200
            time.sleep(1.0)  # several keepalive periods of both sides
            rig.runner.gate.set()
            waiting.join(30)
            assert answers and answers[0]["actions"].shape == (HORIZON, 7)
            second.send(wire.packb(observation()))
            assert isinstance(second.recv(), bytes)


def test_old_clients_wait_for_the_warm_up_as_for_a_late_port() -> None:
    warm = threading.Event()
    with serve(warm_up=lambda: warm.wait(60)) as rig:
        assert httpx.get(rig.http + "/readyz").json()["status"] == "warming"
        got: list[object] = []
        waiting = threading.Thread(target=lambda: got.append(WebsocketClientPolicy("127.0.0.1", rig.server.port)))
        waiting.start()
        time.sleep(0.2)
        assert not got
        warm.set()
        waiting.join(30)
        assert got and httpx.get(rig.http + "/readyz").status_code == 200


def test_large_pictures_pass_and_the_limit_is_named() -> None:
    with serve(max_frame_bytes=12_000_000) as rig:
        with connect(rig.ws, max_size=None) as link:
            link.recv()
            frame = observation()
            frame["observation/image"] = np.zeros((720, 1280, 3), np.uint8)
            frame["observation/wrist_image"] = np.zeros((720, 1280, 3), np.uint8)
            link.send(wire.packb(frame))
            assert isinstance(link.recv(), bytes)
        with connect(rig.ws, max_size=None) as link:
            link.recv()
            with pytest.raises(ConnectionClosed):
                link.send(bytes(13_000_000))
                link.recv()
            assert link.close_code == 1009 and "12000000" in link.close_reason
