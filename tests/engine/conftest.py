"""An engine on the fake runner, driven by hand."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from fakes import FakeClock, FakeProcessor, FakeRunner, fake_limits

from oxygen.core.config import EngineConfig
from oxygen.engine.engine import Engine

LIMITS = {"max_contexts", "max_texts", "context_len", "tail_len", "horizon", "action_dim", "num_steps"}


@pytest.fixture
def make() -> Any:
    """make(budget=..., max_texts=..., costs=..., eos_one_in=...) -> engine; its runner and its clock are fakes.

    At the end of the test every engine is closed and its books are checked (promise E8).
    """
    engines: list[Engine] = []

    def made(costs: dict[str, float] | None = None, eos_one_in: int = 0, **options: Any) -> Engine:
        sizes = {name: options.pop(name) for name in LIMITS & set(options)}
        clock = FakeClock()
        runner = FakeRunner(fake_limits(**sizes), clock, costs, eos_one_in)
        config = EngineConfig(**({"budget": "fixed:5", "debug": True} | options))
        engine = Engine(runner, FakeProcessor(), config, clock=clock)
        engine.clock = clock
        engines.append(engine)
        return engine

    yield made
    for engine in engines:
        engine.close()
        ledger = engine._scheduler.ledger
        ledger.check()
        assert (ledger.context_rows.num_used, ledger.tail_rows.num_used) == (0, 0)


def steps(engine: Engine, until: Callable[[], bool], at_most: int = 50) -> int:
    """Step until something is so; returns how many steps it took."""
    for count in range(at_most):
        if until():
            return count
        engine.step()
    raise AssertionError(f"not so after {at_most} steps")
