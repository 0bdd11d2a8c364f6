"""An engine for a checkpoint folder; or for a preset's name, with random weights, to try the doors without a
checkpoint.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from oxygen.core.config import EngineConfig
from oxygen.engine.engine import Engine
from oxygen.models.pi05.spec import PRESETS
from oxygen.processing.config import PRESETS as ROBOTS
from oxygen.processing.config import ProcessorConfig
from oxygen.processing.processor import Processor
from oxygen.processing.tokenizer import byte_tokenizer

if TYPE_CHECKING:
    from oxygen.runtime.torch.runner import TorchRunner


def open_engine(name: str, *, robot: str | None = None, config: EngineConfig | None = None, **device: Any) -> Engine:
    """A started engine. device: `device`, `dtype` and sizes, see `open_runner`. Raises CheckpointError,
    InvalidInput.
    """
    if name in PRESETS and not Path(name).exists():
        return _random_engine(name, robot or "libero", config, device)
    return Engine.from_pretrained(name, robot=robot, config=config, **device)


def _random_engine(name: str, robot: str, config: EngineConfig | None, device: dict[str, Any]) -> Engine:
    runner, processor = random_parts(name, robot, **device)
    engine = Engine(runner, processor, config, warm_up=runner.warm_up)
    engine.start()
    return engine


def random_parts(name: str, robot: str, **device: Any) -> tuple[TorchRunner, Processor]:
    """A preset's runner and processor. Random weights speak bytes and move at random: good for trying connections,
    not for robots.
    """
    from oxygen.runtime.torch.open import open_runner

    horizon = ROBOTS[robot]["horizon"] if robot in ROBOTS else PRESETS[name].horizon
    spec = replace(PRESETS[name], horizon=horizon)
    settings = ProcessorConfig(
        robot=robot,
        templates="shared",
        normalization="identity",
        image_size=spec.vision.image_size,
        tokens_per_image=spec.tokens_per_image,
        action_dim=spec.action_dim,
        horizon=horizon,
        max_token_len=spec.max_token_len,
        vocab_size=spec.vocab_size,
    )
    processor = Processor(settings, byte_tokenizer())
    runner = open_runner(
        name,
        spec={"horizon": horizon},
        eos_ids=processor.tokenizer.eos_ids,
        forbidden_ids=processor.forbidden_ids,
        **device,
    )
    return runner, processor
