"""The StarVLA door over real sockets: a client of that protocol gets actions, and is told what is wrong."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgpack
import numpy as np
import pytest
from models.qwen3_vl.folders import starvla
from models.qwen3_vl.test_fast import checkpoint
from openpi_client.websocket_client_policy import WebsocketClientPolicy
from processing.chat_cases import picture
from processing.fast_cases import chunks, encode, write_tokenizer
from serving.rig import HORIZON, observation, serve
from websockets.exceptions import ConnectionClosed
from websockets.sync.client import ClientConnection, connect

from oxygen.core.config import EngineConfig
from oxygen.core.tasks import ActionTask, TextTask
from oxygen.engine.engine import Engine
from oxygen.processing.chat_processor import ChatProcessor
from oxygen.processing.starvla import KeyedObservation
from oxygen.serving import wire
from oxygen.serving.server import BackgroundServer
from oxygen.serving.settings import ServeSettings

WORDS = "pick up the red block"
STATE = np.array([0.5, 1.0, 2.0])


class Client:
    """As StarVLA's own: metadata first, then answers in order. One message is one map."""

    def __init__(self, port: int, **options: Any) -> None:
        self._link = connect(f"ws://127.0.0.1:{port}", compression=None, max_size=None, **options)
        self.link: ClientConnection = self._link.__enter__()
        self.metadata = wire.unpackb(self.link.recv())

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._link.__exit__(*exc_info)

    def ask(self, **message: Any) -> dict[str, Any]:
        self.link.send(wire.packb(message))
        answer = self.link.recv()
        assert isinstance(answer, bytes)
        return wire.unpackb(answer)

    def refused(self, **message: Any) -> str:
        answer = self.ask(**message)
        assert answer["ok"] is False and answer["status"] == "error" and "data" not in answer
        assert "Traceback" not in answer["error"]["message"] and answer["error"]["code"]
        return answer["error"]["message"]


def example(seed: int = 0, **changes: Any) -> dict[str, Any]:
    return {"image": [picture(seed=seed)], "lang": WORDS, "state": STATE} | changes


@contextlib.contextmanager
def served(folder: Path, **settings: Any) -> Iterator[tuple[BackgroundServer, Engine]]:
    engine = Engine.from_pretrained(
        folder, config=EngineConfig(debug=True), max_contexts=8, max_texts=4, tail_len=64, context_len=160
    )
    try:
        with BackgroundServer(engine, ServeSettings(port=0, starvla_port=0, drain_s=2.0, **settings)) as server:
            yield server, engine
    finally:
        engine.close()


@pytest.fixture(scope="module")
def several(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[BackgroundServer, Engine]]:
    """A checkpoint of two data sets that names neither."""
    with served(starvla(tmp_path_factory.mktemp("door") / "pi", asset_id=None)) as found:
        yield found


def test_a_client_gets_unnormalised_actions(several: tuple[BackgroundServer, Engine]) -> None:
    server, engine = several
    with Client(server.starvla_port or 0) as client:
        told = client.metadata
        assert told["action_chunk_size"] == 4 and told["available_unnorm_keys"] == ["bridge", "other"]
        assert "default_unnorm_key" not in told or told["default_unnorm_key"] is None
        assert client.ask(type="ping", request_id="p1") == {
            "status": "ok",
            "ok": True,
            "type": "ping",
            "request_id": "p1",
        }
        payload = {"examples": [example()], "unnorm_key": "bridge", "seed": 3, "do_sample": False}
        answer = client.ask(type="predict_action", request_id="r1", payload=payload)
        assert (answer["status"], answer["ok"], answer["request_id"]) == ("ok", True, "r1")
        actions = answer["data"]["actions"]
        assert actions.shape == (1, 4, 3) and actions.dtype == np.float64
        flat = client.ask(**payload)["data"]["actions"]  # as StarVLA's own client sends it
        wider = client.ask(type="infer", payload=payload | {"unnorm_key": "other"})["data"]["actions"]
    seen = KeyedObservation({"front": picture()}, STATE, WORDS, "alone", unnorm_key="bridge")
    alone = engine.submit(seen, ActionTask(seed=3)).actions(60).actions
    np.testing.assert_array_equal(actions[0], alone)
    np.testing.assert_array_equal(actions, flat)
    np.testing.assert_allclose(wider, 2 * actions)


def test_the_examples_of_a_list_are_robots_of_their_own(several: tuple[BackgroundServer, Engine]) -> None:
    server, engine = several
    with Client(server.starvla_port or 0) as client:
        rows = [example(seed) for seed in range(3)]
        together = client.ask(examples=rows, unnorm_key="bridge", seed=1)["data"]["actions"]
        assert together.shape == (3, 4, 3)
        for row, actions in zip(rows, together, strict=True):
            alone = client.ask(examples=[row], unnorm_key="bridge", seed=1)["data"]["actions"]
            np.testing.assert_allclose(actions, alone[0], rtol=1e-4, atol=1e-6)
        assert np.abs(together[0] - together[1]).max() > 1e-4
        message = client.refused(examples=[example(), example(lang=5), example()], unnorm_key="bridge")
        assert "examples[1].lang" in message
        assert "1 to 4 examples" in client.refused(examples=[example()] * 5, unnorm_key="bridge")
        assert client.ask(examples=example(), unnorm_key="bridge")["ok"]
    stats = engine.stats()
    assert stats.status == "ready" and stats.tail_rows == 0


@pytest.mark.parametrize(
    ("message", "said"),
    [
        ({"examples": [example()]}, "unnorm_key: expected one of bridge, other, got none"),
        ({"examples": [example()], "unnorm_key": "mars"}, "unnorm_key: expected one of bridge, other, got 'mars'"),
        ({"examples": [example()], "unnorm_key": 7}, "unnorm_key"),
        ({"type": "dance"}, "type: expected ping, infer or predict_action"),
        ({"type": 3}, "type"),
        ({"request_id": [1]}, "request_id"),
        ({"payload": 5}, "payload: expected a map"),
        ({}, "examples: expected a list"),
        ({"examples": []}, "examples"),
        ({"examples": [5]}, "message: expected a map"),
        ({"examples": [{"lang": WORDS}]}, "examples[0].image"),
        (
            {"examples": [example(image=[])]},
            "examples[0].image: expected pictures of front, wrist, in this order, got 0",
        ),
        ({"examples": [example(image=[picture()] * 3)]}, "in this order, got 3"),
        ({"examples": [example(image="front.png")]}, "examples[0].image"),
        ({"examples": [example(image=[np.zeros((4, 4), np.float64)])]}, "front"),
        ({"examples": [example(lang=None)]}, "examples[0].lang"),
        ({"examples": [example(lang="x" * 9000)]}, "8192 characters"),
        ({"examples": [example(state=np.array([np.nan, 0, 0]))]}, "state"),
        ({"examples": [example(state=np.zeros(9))]}, "state"),
        ({"examples": [example(state=[[1, 2], [3]])]}, "state"),
        ({"examples": [example()], "expert": "gr00t"}, "expert: expected one of"),
        ({"examples": [example()], "expert": "all"}, "expert: expected the name of one expert"),
        ({"examples": [example()], "num_steps": 0}, "num_steps"),
    ],
)
def test_bad_requests_are_told_why_and_the_link_stays(
    several: tuple[BackgroundServer, Engine], message: dict[str, Any], said: str
) -> None:
    server, engine = several
    with Client(server.starvla_port or 0) as client:
        given = message if "unnorm_key" in message or said.startswith("unnorm") else message | {"unnorm_key": "bridge"}
        assert said in client.refused(**given)
        assert client.ask(examples=[example()], unnorm_key="bridge")["ok"]
    assert engine.stats().status == "ready"


def test_what_is_no_map_is_told_why(several: tuple[BackgroundServer, Engine]) -> None:
    with Client(several[0].starvla_port or 0) as client:
        for sent in ("hello", b"\xc1", b"", wire.packb([1, 2]), wire.packb({1: 2})):
            client.link.send(sent)
            answer = wire.unpackb(client.link.recv())
            assert answer["ok"] is False and answer["error"]["message"].startswith("invalid_input: message")
        assert client.ask(type="ping")["ok"]


def test_text_keyed_markers_are_answered_alike(several: tuple[BackgroundServer, Engine]) -> None:
    def encode(value: Any) -> Any:
        return {"__ndarray__": True, "data": value.tobytes(), "dtype": value.dtype.str, "shape": value.shape}

    with Client(several[0].starvla_port or 0) as client:
        client.link.send(msgpack.packb({"examples": [example()], "unnorm_key": "bridge"}, default=encode))
        answer = msgpack.unpackb(client.link.recv())
        assert answer["data"]["actions"]["__ndarray__"] is True and answer["data"]["actions"]["shape"] == [1, 4, 3]


def test_a_checkpoint_that_names_its_data_set_needs_no_key(tmp_path: Path) -> None:
    with served(starvla(tmp_path / "pi")) as (server, engine), Client(server.starvla_port or 0) as client:
        assert client.metadata["default_unnorm_key"] == "bridge"
        by_default = client.ask(examples=[example()], seed=2)["data"]["actions"]
        named = client.ask(examples=[example()], seed=2, unnorm_key="bridge")["data"]["actions"]
        np.testing.assert_array_equal(by_default, named)
        # The same engine, beside this door: openpi's client on the other port, and a question through the API.
        policy = WebsocketClientPolicy("127.0.0.1", server.port)
        frame = {"images": {"front": picture()}, "state": STATE, "prompt": WORDS, "seed": 2}
        np.testing.assert_array_equal(policy.infer(frame)["actions"], by_default[0])
        name = client.metadata["session"]
        assert len(engine.ask(name, TextTask("answer", "why?", max_new_tokens=5)).text().result(60).token_ids) <= 5


def test_chunks_that_are_written_as_text(tmp_path: Path) -> None:
    """A FAST checkpoint: the ids of a text become the chunk; one that says no whole chunk is an error, never zeros."""
    folder, first_id = checkpoint(tmp_path / "fast")
    bpe, low = write_tokenizer(tmp_path / "same")
    script = [first_id + i for i in encode(bpe, low, chunks(9, 1)[0])]
    with served(folder) as (server, engine), Client(server.starvla_port or 0) as client:
        assert client.metadata["action_chunk_size"] == 4 and client.metadata["model_action_dim"] == 3
        assert "reference" in client.refused(examples=[example()])  # what random weights write

        def said(items: Any, rounds: int, after_round: Any) -> None:
            live, place = list(items), 0
            while live and place < rounds:
                tokens = [[*script, 0][item.num_generated + place] for item in live]
                live = [item for item, stays in zip(live, after_round(tokens), strict=True) if stays]
                place += 1

        engine.runner.decode = said  # type: ignore[method-assign]
        actions = client.ask(examples=[example(), example(1)], unnorm_key="bridge")["data"]["actions"]
        processor = engine.processor
        assert isinstance(processor, ChatProcessor)
        expected = processor.fast.chunk(script, processor.sets["bridge"])
        np.testing.assert_array_equal(actions, [expected, expected])


def test_a_client_that_leaves_takes_its_frame_with_it_and_a_fault_is_an_answer() -> None:
    with serve(starvla_port=0) as rig:
        port = rig.server.starvla_port
        frame = observation()
        row = {"image": [frame["observation/image"], frame["observation/wrist_image"]], "lang": "go"}
        row["state"] = np.asarray(frame["observation/state"])[None]
        rig.runner.gate.clear()
        client = Client(port)
        client.link.send(wire.packb({"examples": [row, row]}))
        rig.until(lambda: rig.gateway.in_flight == 1)
        client.link.close()
        rig.until(lambda: rig.gateway.in_flight == 0)
        rig.runner.gate.set()
        with Client(port) as again:
            assert again.ask(examples=[row])["data"]["actions"].shape == (1, HORIZON, 7)
            rig.runner.fault = "request"
            said = again.refused(examples=[row])
            assert "reference" in said and "/secret" not in said
            rig.runner.bad_actions = True
            assert "reference" in again.refused(examples=[row])
            rig.runner.bad_actions = False
            assert again.ask(examples=[row])["ok"]
            assert "unnorm_key" in again.refused(examples=[row], unnorm_key="mars")
        rig.assert_idle()


def test_the_door_wants_the_key_and_waits_for_the_warm_up() -> None:
    warm = threading.Event()
    with serve(warm_up=lambda: warm.wait(60), starvla_port=0, api_key="secret") as rig:
        with pytest.raises(Exception, match="401"):
            Client(rig.server.starvla_port)
        got: list[Any] = []
        headers = {"Authorization": "Api-Key secret"}
        waiting = threading.Thread(
            target=lambda: got.append(Client(rig.server.starvla_port, additional_headers=headers))
        )
        waiting.start()
        waiting.join(0.3)
        assert not got
        warm.set()
        waiting.join(30)
        assert got[0].ask(type="ping")["ok"]
        got[0].link.close()


def test_serving_a_preset_from_the_command_line() -> None:
    """`oxygen serve qwen3vl-tiny`: random weights, said so; the StarVLA door, the openpi door and a goodbye."""
    command = [sys.executable, "-m", "oxygen.cli.main", "serve", "qwen3vl-tiny", "--port", "0", "--starvla-port", "0"]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    server = subprocess.Popen(
        [*command, "--max-contexts", "6", "--max-texts", "4"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment,
    )
    try:
        assert server.stdout is not None
        line = server.stdout.readline()
        assert "random weights" in line, line + server.communicate()[1]
        port, door = (
            int(re.search(pattern, line)[1]) for pattern in (r"robots ws://[\d.]+:(\d+)", r"StarVLA ws://[\d.]+:(\d+)")
        )
        frame = observation()
        row = {"image": [frame["observation/image"], frame["observation/wrist_image"]], "lang": "go"}
        with Client(door) as client:
            row["state"] = frame["observation/state"]
            assert list(client.metadata["robot"]["experts"]) == ["pi", "gr00t", "oft"]
            for expert in ("pi", "gr00t", "oft"):
                answer = client.ask(examples=[row], expert=expert, seed=1)
                assert answer["ok"] and answer["data"]["actions"].shape == (1, 6, 7), answer
            server.send_signal(signal.SIGTERM)
            with pytest.raises(ConnectionClosed):
                client.link.recv(timeout=30)
        assert server.wait(300) == 0 and port != door
        assert all(json.loads(said) for said in server.stderr.read().splitlines())
    finally:
        server.kill()
        server.wait()
