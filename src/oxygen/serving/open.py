"""An engine for a checkpoint folder; or for a preset's name, with random weights, to try the doors without a
checkpoint.
"""

from __future__ import annotations

from typing import Any

from oxygen.core.config import EngineConfig
from oxygen.engine.engine import Engine
from oxygen.runtime.presets import is_preset

ROBOT = "libero"
"""Whom a preset is for, where nobody is named."""


def open_engine(name: str, *, robot: str | None = None, config: EngineConfig | None = None, **device: Any) -> Engine:
    """A started engine. device: `device`, `dtype` and sizes, see `open_runner`. Raises CheckpointError,
    InvalidInput.
    """
    if not is_preset(name):
        return Engine.from_pretrained(name, robot=robot, config=config, **device)
    from oxygen.runtime.torch.open import open_untrained

    runner, processor = open_untrained(name, robot or ROBOT, **device)
    engine = Engine(runner, processor, config, warm_up=runner.warm_up)
    engine.start()
    return engine
