"""`oxygen bench serve`: what the network door adds to an in-process call, and many robots at one server.

The clients run in a process of their own, as robots do. The added latency is measured without a model (a runner that
answers at once), turn by turn with the in-process call, so that it is the plumbing and nothing else: socket, decoding,
checks, encoding, two changes of thread, and the way back. The robots then work on the real model, as fast as they are
answered.
"""

from __future__ import annotations

import argparse
import asyncio
import time
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from multiprocessing import get_context
from typing import Any

import numpy as np

from oxygen.bench.command import add_common, begin, integers, positive
from oxygen.core.config import EngineConfig
from oxygen.core.plan import ActItem, AfterRound, DecodeItem, PrefillItem, RunnerLimits
from oxygen.engine.engine import Engine
from oxygen.processing.chat_processor import ChatProcessor
from oxygen.processing.processor import Processor
from oxygen.processing.robots import Robot
from oxygen.serving import wire
from oxygen.serving.open import open_engine
from oxygen.serving.server import BackgroundServer
from oxygen.serving.settings import ServeSettings

COLUMNS = (
    *("mode", "robots", "in_process_ms_p50", "websocket_ms_p50", "added_ms_p50", "added_ms_p99"),
    *("action_ready_ms_p50", "action_ready_ms_p99", "slowest_robot_ms_p50", "fairness", "frames_per_s"),
    "tokens_per_s",
)
_WARM_UP = 20


class NullRunner:
    """Answers at once: what is left is the plumbing."""

    def __init__(self, limits: RunnerLimits) -> None:
        self.limits = limits

    def prefill(self, items: Sequence[PrefillItem]) -> None:
        pass

    def act(self, items: Sequence[ActItem]) -> list[np.ndarray]:
        return [item.noise for item in items]

    def decode(self, items: Sequence[DecodeItem], rounds: int, after_round: AfterRound) -> None:
        raise AssertionError("no text is asked for")

    def forget(self, context_rows: Sequence[int], tail_rows: Sequence[int]) -> None:
        pass

    def close(self) -> None:
        pass


@dataclass(slots=True)
class Client:
    """What the process of the robots is told, and what it brings back (milliseconds, per robot)."""

    url: str
    robots: int
    frames: int = 0
    seconds: float = 0.0
    text_every: int = 0
    num_tokens: int = 30
    observation: dict[str, Any] = field(default_factory=dict)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_common(parser, model="pi05-tiny", frames=300)
    parser.add_argument("--robots", type=integers, default=[1, 8, 32], help="robots at once, with commas")
    parser.add_argument("--seconds", type=float, default=6.0, help="how long the robots work at each point")
    parser.add_argument("--text-every", type=positive, default=10, help="a narration is asked of every so many frames")
    parser.add_argument("--new-tokens", type=positive, default=30, help="tokens of a narration")


def run(args: argparse.Namespace) -> int:
    run = begin("serve", args, robots=args.robots, seconds=args.seconds, text_every=args.text_every)
    most = max(args.robots)
    device = {"device": args.device, "dtype": args.dtype, "max_contexts": 2 * most + 8, "max_texts": most + 8}
    engine = open_engine(args.model, robot=args.robot, config=EngineConfig(), tail_len=64 + args.new_tokens, **device)
    try:
        _until_ready(engine)
        assert isinstance(engine.processor, Processor | ChatProcessor)
        observation = frame_of(engine.processor.robot)
        run.expect(len(args.robots) * (args.seconds + 3) + 10, f"{len(args.robots)} numbers of robots")
        with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
            run.report.rows.append(added_latency(engine, observation, args.frames, pool))
            for robots in args.robots:
                run.report.rows.append(many_robots(engine, observation, robots, args, pool))
    finally:
        engine.close()
    run.report.finish(COLUMNS, f"serve, {args.model}")
    return 0


def frame_of(robot: Robot, size: int = 224) -> dict[str, Any]:
    """A random frame of this robot, as its openpi client sends it."""
    rng = np.random.default_rng(0)
    raw: dict[str, Any] = {"prompt": "pick up the red block"}
    for camera in robot.cameras:
        shape = (3, size, size) if camera.layout == "CHW" else (size, size, 3)
        _put(raw, camera.keys[0], rng.integers(0, 256, shape, dtype=np.uint8))
    for part in robot.state:
        _put(raw, part.keys[0], rng.uniform(-0.5, 0.5, part.dim))
    return raw


def added_latency(model: Engine, observation: dict[str, Any], frames: int, pool: ProcessPoolExecutor) -> dict[str, Any]:
    """In-process call and websocket path in turns of frames, on an engine whose device takes no time."""
    engine = Engine(NullRunner(model.runner.limits), model.processor, EngineConfig(keep_context_s=0.0))
    engine.start()
    assert isinstance(model.processor, Processor | ChatProcessor)
    parse = model.processor.parse
    inside: list[float] = []
    outside: list[float] = []
    try:
        with BackgroundServer(engine, ServeSettings(port=0)) as server:
            client = Client(f"ws://{server.address}", 1, frames=max(1, frames // 6), observation=observation)
            for turn in range(7):
                for _ in range(client.frames):
                    started = time.perf_counter()
                    engine.submit(parse(observation)).actions()
                    inside.append(1000 * (time.perf_counter() - started))
                outside += pool.submit(drive, client).result()[0]
                if turn == 0:
                    inside.clear()
                    outside.clear()
    finally:
        engine.close()
    row: dict[str, Any] = {
        "mode": "added_latency",
        "robots": 1,
        "frame_bytes": len(wire.packb(observation)),
        "frames": len(outside),
    }
    for name, times in (("in_process", inside), ("websocket", outside)):
        p10, p50, p90, p99 = np.percentile(times, (10, 50, 90, 99))
        row |= {f"{name}_ms_p50": p50, f"{name}_ms_p50_spread": p90 - p10, f"{name}_ms_p99": p99}
    for name in ("p50", "p99"):
        row[f"added_ms_{name}"] = row[f"websocket_ms_{name}"] - row[f"in_process_ms_{name}"]
    return {key: float(value) if isinstance(value, np.floating) else value for key, value in row.items()}


def many_robots(
    engine: Engine, observation: dict[str, Any], robots: int, args: argparse.Namespace, pool: ProcessPoolExecutor
) -> dict[str, Any]:
    """So many robots, each sending its next frame when the last is answered."""
    with BackgroundServer(engine, ServeSettings(port=0, max_sessions=2 * robots + 8)) as server:
        client = Client(f"ws://{server.address}", robots, observation=observation, text_every=args.text_every)
        client.num_tokens = args.new_tokens
        client.frames = 2
        pool.submit(drive, client).result()  # first shapes of this batch
        client.frames, client.seconds = 0, args.seconds
        before = engine.stats().counts
        times = pool.submit(drive, client).result()
        after = engine.stats().counts
    every = np.concatenate([np.asarray(t) for t in times])
    counts = np.array([len(t) for t in times], dtype=float)
    p10, p50, p90, p99 = np.percentile(every, (10, 50, 90, 99))
    tokens = after.get("tokens", 0) - before.get("tokens", 0)
    return {
        "mode": "robots",
        "robots": robots,
        "action_ready_ms_p50": float(p50),
        "action_ready_ms_p50_spread": float(p90 - p10),
        "action_ready_ms_p99": float(p99),
        "slowest_robot_ms_p50": float(max(np.median(t) for t in times)),
        "slowest_robot_ms_p99": float(max(np.percentile(t, 99) for t in times)),
        "fairness": float(counts.sum() ** 2 / (len(counts) * (counts**2).sum())),  # Jain's index: 1 is even
        "frames_per_s": float(counts.sum() / args.seconds),
        "tokens_per_s": tokens / args.seconds,
    }


def drive(client: Client) -> list[list[float]]:
    """In the clients' process: milliseconds from sending a frame to holding its actions, for each robot."""
    return asyncio.run(_drive(client))


async def _drive(client: Client) -> list[list[float]]:
    return list(await asyncio.gather(*(_robot(client, i) for i in range(client.robots))))


async def _robot(client: Client, index: int) -> list[float]:
    from websockets.asyncio.client import connect

    warm_up = 0 if client.seconds else _WARM_UP
    times: list[float] = []
    url = f"{client.url}/?session=robot-{index}"
    async with connect(url, compression=None, max_size=None, proxy=None) as link:
        await link.recv()
        deadline = time.monotonic() + client.seconds
        count = 0
        while count < client.frames + warm_up if client.frames else time.monotonic() < deadline:
            message = dict(client.observation)
            if client.text_every and count % client.text_every == index % client.text_every:
                message["tasks"] = [{"kind": "narration", "max_new_tokens": client.num_tokens}]
            started = time.perf_counter()
            await link.send(wire.packb(message))
            reply = await link.recv()
            if count >= warm_up:
                times.append(1000 * (time.perf_counter() - started))
            if isinstance(reply, str):
                raise RuntimeError(reply)
            count += 1
    return times


def _until_ready(engine: Engine) -> None:
    while engine.status == "warming":
        time.sleep(0.02)


def _put(target: dict[str, Any], path: tuple[str, ...], value: Any) -> None:
    for part in path[:-1]:
        target = target.setdefault(part, {})
    target[path[-1]] = value
