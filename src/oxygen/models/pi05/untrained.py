"""Inputs and outputs for π0.5 with random weights: it speaks bytes and moves at random."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from oxygen.models.pi05.spec import Pi05Spec
from oxygen.processing.config import PRESETS as ROBOTS
from oxygen.processing.config import ProcessorConfig
from oxygen.processing.processor import Processor
from oxygen.processing.tokenizer import byte_tokenizer


def untrained_pi05(spec: Pi05Spec, robot: str) -> tuple[dict[str, Any], Processor]:
    """Sizes that this robot changes, and a processor for the changed model. Raises CheckpointError."""
    changes: dict[str, Any] = {"horizon": ROBOTS[robot]["horizon"] if robot in ROBOTS else spec.horizon}
    spec = replace(spec, **changes)
    config = ProcessorConfig(
        robot=robot,
        templates="shared",
        normalization="identity",
        image_size=spec.vision.image_size,
        tokens_per_image=spec.tokens_per_image,
        action_dim=spec.action_dim,
        horizon=spec.horizon,
        max_token_len=spec.max_token_len,
        vocab_size=spec.vocab_size,
    )
    return changes, Processor(config, byte_tokenizer())
