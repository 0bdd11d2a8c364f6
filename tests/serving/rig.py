"""A whole server without a model: the real engine, processor and doors on a runner that invents its results.

The chunk depends on the frame's noise alone; a text is a fixed sentence, one byte a token, that says which request
it is.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Iterator, Sequence

import numpy as np

from oxygen.core.config import EngineConfig
from oxygen.core.errors import RequestFault
from oxygen.core.plan import ActItem, AfterRound, DecodeItem, PrefillItem, RunnerLimits
from oxygen.engine.engine import Engine
from oxygen.processing.config import ProcessorConfig
from oxygen.processing.processor import Processor
from oxygen.processing.tokenizer import byte_tokenizer
from oxygen.serving.server import BackgroundServer
from oxygen.serving.settings import ServeSettings

SENTENCE = "I am moving the cup to the left. Żółw is done.\n"
EOS = 1
HORIZON, ACTION_DIM = 10, 32


class FakeRunner:
    """act_s / round_s: how long the device takes. gate: cleared, the next act waits for it. fault: raised by the
    next act.
    """

    def __init__(self, max_contexts: int = 160, max_texts: int = 64) -> None:
        self.limits = RunnerLimits(
            max_contexts=max_contexts,
            max_texts=max_texts,
            context_len=700,
            tail_len=600,
            horizon=HORIZON,
            action_dim=ACTION_DIM,
            num_steps=10,
            vocab_size=259,
            eos_ids=(EOS,),
        )
        self.act_s = 0.0
        self.round_s = 0.0
        self.gate = threading.Event()
        self.gate.set()
        self.fault: Exception | str | None = None
        self.sentence = SENTENCE
        self.bad_actions = False
        self.num_acts = 0

    def prefill(self, items: Sequence[PrefillItem]) -> None:
        pass

    def act(self, items: Sequence[ActItem]) -> list[np.ndarray]:
        self.gate.wait(60)
        if self.act_s:
            time.sleep(self.act_s)
        fault, self.fault = self.fault, None
        if fault == "request":
            raise RequestFault(items[0].request_id, "/secret/path went wrong")
        if isinstance(fault, Exception):
            raise fault
        self.num_acts += len(items)
        return [np.full_like(item.noise, np.nan) if self.bad_actions else item.noise for item in items]

    def decode(self, items: Sequence[DecodeItem], rounds: int, after_round: AfterRound) -> None:
        ids = [byte + 3 for byte in self.sentence.encode()] + [EOS]
        live, done = list(items), {item.task_id: item.num_generated for item in items}
        for _ in range(rounds):
            if not live:
                return
            if self.round_s:
                time.sleep(self.round_s)
            tokens = [ids[done[item.task_id] % len(ids)] for item in live]
            for item in live:
                done[item.task_id] += 1
            live = [item for item, stays in zip(live, after_round(tokens), strict=True) if stays]

    def forget(self, context_rows: Sequence[int], tail_rows: Sequence[int]) -> None:
        pass

    def close(self) -> None:
        pass


def processor() -> Processor:
    """LIBERO's robot, all text kinds, numbers as they come."""
    config = ProcessorConfig(
        robot="libero", templates="shared", normalization="identity", horizon=HORIZON, image_size=28, tokens_per_image=4
    )
    return Processor(config, byte_tokenizer())


def observation(seed: int = 0, size: int = 224) -> dict[str, object]:
    """A LIBERO frame as openpi's clients send it."""
    rng = np.random.default_rng(seed)
    return {
        "observation/image": rng.integers(0, 256, (size, size, 3), dtype=np.uint8),
        "observation/wrist_image": rng.integers(0, 256, (size, size, 3), dtype=np.uint8),
        "observation/state": rng.standard_normal(8).astype(np.float32),
        "prompt": "pick up the cup",
    }


@contextlib.contextmanager
def serve(
    runner: FakeRunner | None = None, config: EngineConfig | None = None, warm_up: object = None, **settings: object
) -> Iterator[Rig]:
    """A running server on a free port of the loopback."""
    runner = runner or FakeRunner()
    engine = Engine(runner, processor(), config or EngineConfig(debug=True), warm_up=warm_up)  # type: ignore[arg-type]
    engine.start()
    chosen = {"port": 0, "drain_s": 2.0, **settings}
    try:
        with BackgroundServer(engine, ServeSettings(**chosen)) as server:  # type: ignore[arg-type]
            yield Rig(server, engine, runner)
    finally:
        runner.gate.set()
        engine.close()


class Rig:
    def __init__(self, server: BackgroundServer, engine: Engine, runner: FakeRunner) -> None:
        self.server, self.engine, self.runner = server, engine, runner
        self.gateway = server.gateway
        self.http = f"http://{server.address}"
        self.ws = f"ws://{server.address}"

    def until(self, condition: object, timeout: float = 30.0) -> None:
        """Wait for a condition; fails the test when it does not come true."""
        deadline = time.monotonic() + timeout
        while not condition():  # type: ignore[operator]
            assert time.monotonic() < deadline, "the condition did not come true"
            time.sleep(0.005)

    def assert_idle(self) -> None:
        """No row is held by anything but the sessions' newest contexts, no text lives."""

        def idle() -> bool:
            stats = self.engine.stats()
            return stats.live_texts == stats.waiting_texts == stats.tail_rows == 0

        self.until(idle)
