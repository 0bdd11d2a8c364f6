"""LeRobot's four calls with raw gRPC stubs: real pickles of stand-in classes in, torch tensors out, nothing
executed.
"""

from __future__ import annotations

import contextlib
import os
import pickle
import sys
import types
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

import grpc
import numpy as np
import pytest
import torch
from serving.rig import FakeRunner, serve

from oxygen.core.errors import InvalidInput
from oxygen.serving.lerobot import pickles, protobuf

HELPERS = "lerobot.async_inference.helpers"


@dataclass
class TimedObservation:
    timestamp: float
    timestep: int
    observation: dict
    must_go: bool = False


@dataclass
class TimedAction:
    timestamp: float
    timestep: int
    action: torch.Tensor


@dataclass
class RemotePolicyConfig:
    policy_type: str
    pretrained_name_or_path: str
    lerobot_features: dict
    actions_per_chunk: int
    device: str = "cpu"
    rename_map: dict = field(default_factory=dict)


@pytest.fixture(autouse=True)
def lerobot(monkeypatch: pytest.MonkeyPatch) -> None:
    """The classes under the names that LeRobot gives them, so that this process pickles as its client does."""
    for name in ("lerobot", "lerobot.async_inference", HELPERS):
        monkeypatch.setitem(sys.modules, name, types.ModuleType(name))
    for kind in (TimedObservation, TimedAction, RemotePolicyConfig):
        monkeypatch.setattr(kind, "__module__", HELPERS)
        setattr(sys.modules[HELPERS], kind.__name__, kind)


class Stub:
    """The client's side of the service, without generated code."""

    def __init__(self, port: int) -> None:
        self.channel = grpc.insecure_channel(f"127.0.0.1:{port}", options=[("grpc.use_local_subchannel_pool", 1)])

    def call(self, name: str, message: bytes = b"") -> bytes:
        stub = self.channel.unary_unary(f"/transport.AsyncInference/{name}", bytes, bytes)
        return stub(message, timeout=30)

    def setup(self, policy: str = "pi05", **options: Any) -> None:
        names = [f"joint_{i}.pos" for i in range(8)]
        features = {"observation.state": {"dtype": "float32", "shape": (8,), "names": names}}
        config = RemotePolicyConfig(policy, "anyone/policy", features, options.pop("per_chunk", 6), **options)
        self.call("Ready")
        self.call("SendPolicyInstructions", protobuf.write_data(pickle.dumps(config, 4)))

    def observe(self, timed: object, size: int = 1 << 21) -> str | None:
        data = pickle.dumps(timed, 4)
        parts = [data[i : i + size] for i in range(0, len(data), size)]
        states = [protobuf.MIDDLE] * len(parts)
        states[0], states[-1] = protobuf.BEGIN, protobuf.END
        messages = [protobuf.write_observation(s, p) for s, p in zip(states, parts, strict=True)]
        stub = self.channel.stream_unary("/transport.AsyncInference/SendObservations", bytes, bytes)
        _, call = stub.with_call(iter(messages), timeout=30)
        return dict(call.trailing_metadata()).get("oxygen-skipped")

    def actions(self) -> list[TimedAction]:
        data = protobuf.read_data(self.call("GetActions"))
        return pickle.loads(data) if data else []


def raw(seed: int = 0, **changes: Any) -> dict:
    rng = np.random.default_rng(seed)
    joints = {f"joint_{i}.pos": float(x) for i, x in enumerate(rng.standard_normal(8))}
    pictures = {name: rng.integers(0, 256, (48, 64, 3), dtype=np.uint8) for name in ("image", "wrist_image")}
    return {**joints, **pictures, "task": "pick up the cup", **changes}


@contextlib.contextmanager
def stub(**settings: Any) -> Iterator[tuple[Any, Stub]]:
    with serve(lerobot_port=0, control_hz=30.0, **settings) as rig:
        client = Stub(rig.server.lerobot_port)
        try:
            yield rig, client
        finally:
            client.channel.close()


@pytest.mark.parametrize("size", [1 << 21, 5000])
def test_a_chunk_in_torch_tensors_stamped_by_the_client(size: int) -> None:
    with stub() as (rig, client):
        client.setup()
        assert client.observe(TimedObservation(100.0, 7, raw(), True), size) is None
        chunk = client.actions()
        assert [a.timestep for a in chunk] == list(range(7, 13))
        assert chunk[3].timestamp == pytest.approx(100.0 + 3 / 30)
        assert all(type(a) is TimedAction and a.action.shape == (7,) and a.action.dtype == torch.float32 for a in chunk)
        session = next(iter(rig.gateway.sessions))
        np.testing.assert_allclose(
            torch.stack([a.action for a in chunk]).numpy(), session.action.actions[:6], rtol=1e-6
        )
        expected = raw()
        np.testing.assert_array_equal(session.observation.images["image"], expected["image"])
        assert (
            session.observation.state[3] == expected["joint_3.pos"] and session.observation.prompt == "pick up the cup"
        )


def test_joints_follow_the_declared_order_and_cameras_the_rename_map() -> None:
    with stub() as (rig, client):
        client.setup(rename_map={"observation.images.front": "observation.images.image"})
        mixed = dict(reversed(raw().items()))
        mixed["front"] = mixed.pop("image")
        client.observe(TimedObservation(0.0, 0, mixed, True))
        assert client.actions()
        session = next(iter(rig.gateway.sessions))
        assert session.observation.state.tolist() == [raw()[f"joint_{i}.pos"] for i in range(8)]
        np.testing.assert_array_equal(session.observation.images["image"], raw()["image"])


def test_the_newest_observation_wins_and_a_robot_at_rest_is_told() -> None:
    with stub() as (_, client):
        client.setup()
        for step in range(3):
            client.observe(TimedObservation(0.0, step, raw(step), True))
        assert client.actions()[0].timestep == 2
        assert client.observe(TimedObservation(0.0, 2, raw(9))) == "predicted"
        assert client.observe(TimedObservation(0.0, 3, raw(2))) == "unchanged"
        changed = raw(2, image=np.zeros((48, 64, 3), np.uint8))
        assert client.observe(TimedObservation(0.0, 4, changed)) is None
        assert client.observe(TimedObservation(0.0, 5, raw(2, task="put it down"))) is None
        assert client.observe(TimedObservation(0.0, 6, raw(2), must_go=True)) is None
        assert client.actions()[0].timestep == 6


def test_nothing_yet_is_an_empty_answer() -> None:
    with stub() as (_, client):
        client.setup()
        assert client.actions() == []


def test_several_robots_at_once_keep_their_own_state() -> None:
    with stub() as (rig, first):
        others = [Stub(rig.server.lerobot_port) for _ in range(3)]
        clients = [first, *others]
        for client in clients:
            client.setup()

        def robot(index: int) -> list[int]:
            steps = []
            for step in range(5):
                clients[index].observe(TimedObservation(0.0, 100 * index + step, raw(step), True))
                steps.append(clients[index].actions()[0].timestep)
            return steps

        with ThreadPoolExecutor(4) as pool:
            assert list(pool.map(robot, range(4))) == [[100 * i + s for s in range(5)] for i in range(4)]
        first.call("Ready")  # a reset of one robot
        others[0].observe(TimedObservation(0.0, 500, raw(1), True))
        assert others[0].actions()[0].timestep == 500
        for client in others:
            client.channel.close()


def test_ready_after_a_takeover_begins_anew_and_resets_nobody_else() -> None:
    name = (("x-robot-session", "arm"),)
    with stub() as (rig, first):
        second = Stub(rig.server.lerobot_port)
        ready = [c.channel.unary_unary("/transport.AsyncInference/Ready", bytes, bytes) for c in (first, second)]
        ready[0](b"", timeout=30, metadata=name)
        ready[1](b"", timeout=30, metadata=name)
        owner = rig.gateway.sessions.get("arm").owner
        with pytest.raises(grpc.RpcError, match="taken over"):
            first.call("GetActions")
        first.setup()  # a new session, of no name
        assert rig.gateway.sessions.get("arm").owner is owner and len(rig.gateway.sessions) == 2
        ready[0](b"", timeout=30, metadata=name)
        second.channel.close()


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        (dict(rename_map={"a": ["b"]}), "rename_map"),
        (dict(rename_map={5: "b"}), "rename_map"),
        (dict(per_chunk=10**30, rename_map=5), "rename_map"),
    ],
    ids=repr,
)
def test_odd_policies_are_refused_by_name(changes: dict, words: str) -> None:
    with stub() as (_, client), pytest.raises(grpc.RpcError) as caught:
        client.setup(**changes)
    assert caught.value.code() == grpc.StatusCode.INVALID_ARGUMENT and words in caught.value.details()


@pytest.mark.parametrize(
    ("timed", "words"),
    [
        (TimedObservation(1e200, 0, {}), "timestamp"),
        (TimedObservation(0.0, 0, {"joint_3.pos": 1e200}), "joint_3.pos"),
    ],
    ids=["time", "joint"],
)
def test_numbers_beyond_all_measure_are_refused_by_name(timed: TimedObservation, words: str) -> None:
    with stub() as (_, client):
        client.setup()
        client.observe(TimedObservation(0.0, 0, raw(), True))
        with pytest.raises(grpc.RpcError) as caught:
            client.observe(timed)
        assert caught.value.code() == grpc.StatusCode.INVALID_ARGUMENT and words in caught.value.details()


def test_faults_are_a_status_with_a_reason_never_an_empty_chunk() -> None:
    runner = FakeRunner()
    with stub(runner=runner) as (_rig, client):
        with pytest.raises(grpc.RpcError) as caught:
            client.call("GetActions")
        assert caught.value.code() == grpc.StatusCode.FAILED_PRECONDITION and "Ready" in caught.value.details()
        with pytest.raises(grpc.RpcError) as caught:
            client.setup(policy="act")
        assert caught.value.code() == grpc.StatusCode.INVALID_ARGUMENT and "policy_type" in caught.value.details()
        client.setup()
        runner.fault = "request"
        client.observe(TimedObservation(0.0, 0, raw(), True))
        with pytest.raises(grpc.RpcError) as caught:
            client.actions()
        assert caught.value.code() == grpc.StatusCode.INTERNAL and "/secret" not in caught.value.details()
        client.observe(TimedObservation(0.0, 1, raw(**{"joint_3.pos": float("nan")}), True))
        with pytest.raises(grpc.RpcError) as caught:
            client.actions()
        assert caught.value.code() == grpc.StatusCode.INVALID_ARGUMENT
        client.observe(TimedObservation(0.0, 2, raw(), True))
        assert len(client.actions()) == 6


class Evil:
    def __init__(self, call: Any, *args: Any) -> None:
        self.call, self.args = call, args

    def __reduce__(self) -> Any:
        return self.call, self.args


@pytest.mark.parametrize(
    "payload",
    [
        Evil(os.system, "touch {mark}"),
        Evil(eval, "open('{mark}', 'w')"),
        Evil(exec, "open('{mark}', 'w')"),
        Evil(getattr, "x", "format"),
        TimedObservation(0.0, 0, {"task": Evil(os.system, "touch {mark}")}, True),
        TimedObservation(0.0, 0, {"image": np.array([Evil(os.system, "touch {mark}")], dtype=object)}, True),
        TimedObservation(0.0, 0, {"image": np.zeros(3, dtype=[("a", "<f4")])}, True),
    ],
    ids=["system", "eval", "exec", "getattr", "nested", "object array", "structured array"],
)
def test_malicious_pickles_are_refused_before_they_run(payload: object, tmp_path: Any) -> None:
    mark = tmp_path / "mark"
    data = pickle.dumps(payload, 4)
    data = data.replace(b"{mark}", str(mark).encode()) if b"{mark}" in data else data
    with stub() as (_, client):
        client.setup()
        call = client.channel.stream_unary("/transport.AsyncInference/SendObservations", bytes, bytes)
        for attempt in (
            lambda: call(iter([protobuf.write_observation(protobuf.END, data)]), timeout=30),
            lambda: client.call("SendPolicyInstructions", protobuf.write_data(data)),
        ):
            with pytest.raises(grpc.RpcError) as caught:
                attempt()
            assert caught.value.code() == grpc.StatusCode.INVALID_ARGUMENT
        assert not mark.exists()
        client.observe(TimedObservation(0.0, 1, raw(), True))
        assert len(client.actions()) == 6


def test_pickles_that_grow_without_end_are_refused() -> None:
    bomb: list = []
    for _ in range(40):
        bomb = [bomb, bomb]
    with pytest.raises(InvalidInput):
        pickles.load(pickle.dumps(bomb, 4), "TimedObservation")
    with pytest.raises(InvalidInput):
        pickles.load(pickle.dumps(TimedObservation(0.0, 10**100, {}), 4), "TimedObservation")


@pytest.mark.parametrize("core", ["numpy.core", "numpy._core"])
def test_arrays_and_numbers_under_both_spellings_of_numpys_module(core: str) -> None:
    observation = {
        "a": np.arange(6, dtype=">f4").reshape(2, 3),
        "b": np.float32(1.5),
        "c": np.asfortranarray(np.eye(3)),
    }
    data = pickle.dumps(TimedObservation(1.0, 2, observation), 4)
    for known in (b"numpy._core", b"numpy.core"):
        for module in (b".multiarray", b".numeric"):
            old, new = known + module, core.encode() + module
            data = data.replace(bytes([len(old)]) + old, bytes([len(new)]) + new)
    # frames of another length than declared would be refused: leave them out
    held = pickles.load(_without_frames(data), "TimedObservation")
    read = held.fields["observation"]
    np.testing.assert_array_equal(read["a"], observation["a"])
    np.testing.assert_array_equal(read["c"], np.eye(3))
    assert read["b"] == 1.5


def _without_frames(data: bytes) -> bytes:
    assert data[2:3] == b"\x95"
    return data[:2] + data[11:]


def test_random_and_mutated_pickles_raise_one_error_only() -> None:
    rng = np.random.default_rng(5)
    good = pickle.dumps(TimedObservation(1.0, 2, raw()), 4)[:4000]
    small = pickle.dumps(TimedObservation(1.0, 2, {"a": 1.0, "b": np.arange(3)}), 4)
    for i in range(3000):
        data = bytearray(small if i % 3 else good)
        for at in rng.integers(0, len(data), rng.integers(1, 6)):
            data[at] = rng.integers(0, 256)
        with contextlib.suppress(InvalidInput):
            pickles.load(bytes(data), "TimedObservation")


def test_a_client_that_leaves_in_mid_frame_holds_nothing() -> None:
    runner = FakeRunner()
    with stub(runner=runner) as (rig, client):
        client.setup()
        client.observe(TimedObservation(0.0, 0, raw(), True))
        runner.gate.clear()
        future = client.channel.unary_unary("/transport.AsyncInference/GetActions", bytes, bytes).future(b"")
        rig.until(lambda: rig.gateway.in_flight == 1)
        future.cancel()
        rig.until(lambda: rig.gateway.in_flight == 0)
        runner.gate.set()
        rig.assert_idle()


def test_the_key_is_wanted_here_too() -> None:
    with stub(api_key="secret") as (_, client):
        with pytest.raises(grpc.RpcError) as caught:
            client.call("Ready")
        assert caught.value.code() == grpc.StatusCode.UNAUTHENTICATED
        ready = client.channel.unary_unary("/transport.AsyncInference/Ready", bytes, bytes)
        ready(b"", metadata=(("authorization", "Bearer secret"),), timeout=30)
