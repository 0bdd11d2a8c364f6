"""What a benchmark has to know of a family of models: its frames, what its stages cost. A new family is one entry."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from oxygen.bench.shapes import Frames, Shape
from oxygen.layers.costs import StageCosts
from oxygen.models.pi05.costs import Pi05Costs
from oxygen.models.pi05.spec import Pi05Spec
from oxygen.models.qwen3_vl.costs import Qwen3VLCosts
from oxygen.models.qwen3_vl.spec import Qwen3VLSpec, with_heads

SIDE = 256
"""Pixels per side of a picture for Qwen3-VL: the paper's 224, enlarged by the model's processor."""


@dataclass(frozen=True, slots=True)
class Family:
    """spec_type: of its sizes. sized(preset, shape, experts): a preset for a robot; changes(spec): how the preset was
    changed, for whoever opens it. fit(spec, shape): the robot's shape, cut to what the model takes. frames(spec, shape,
    seed); costs(spec, bytes of a number). num_steps(spec): flow steps where nobody names them.
    """

    spec_type: type
    sized: Callable[[Any, Shape, tuple[str, ...]], Any]
    changes: Callable[[Any], dict[str, Any]]
    fit: Callable[[Any, Shape], Shape]
    frames: Callable[[Any, Shape, int], Frames]
    costs: Callable[[Any, int], StageCosts]
    num_steps: Callable[[Any], int]


def _fit_pi05(spec: Pi05Spec, shape: Shape) -> Shape:
    return replace(
        shape,
        num_cameras=min(shape.num_cameras, spec.num_cameras),
        prompt_len=min(shape.prompt_len, spec.max_token_len),
        horizon=spec.horizon,
    )


def _frames_pi05(spec: Pi05Spec, shape: Shape, seed: int) -> Frames:
    return Frames(shape, spec.vision.image_size, spec.tokens_per_image, spec.vocab_size, seed)


def picture_ids(spec: Qwen3VLSpec) -> tuple[int, ...]:
    """Token ids of one picture in a prompt."""
    count = (SIDE // spec.vision.token_pixels) ** 2
    return (spec.vision_start_id, *(spec.image_id,) * count, spec.vision_end_id)


def readers(spec: Qwen3VLSpec) -> tuple[tuple[str, tuple[int, ...]], ...]:
    """Every head with its private tokens: the query tokens of those that read at such."""
    reads = {head.name: head.shape().reads for head in spec.heads}
    return tuple((n, (r.token_id,) * r.num_tokens if r.token_id is not None else ()) for n, r in reads.items())


def _fit_qwen(spec: Qwen3VLSpec, shape: Shape) -> Shape:
    room = spec.max_context_len - max((len(tail) for _, tail in readers(spec)), default=0)
    each = len(picture_ids(spec))
    cameras = max(1, min(shape.num_cameras, spec.max_images, (room - 1) // each))
    horizon = spec.heads[0].horizon if spec.heads else shape.horizon
    return replace(shape, num_cameras=cameras, prompt_len=min(shape.prompt_len, room - cameras * each), horizon=horizon)


def _frames_qwen(spec: Qwen3VLSpec, shape: Shape, seed: int) -> Frames:
    lead = picture_ids(spec) * shape.num_cameras
    state_dim = max((head.shape().state_dim for head in spec.heads), default=0)
    state = np.zeros(state_dim, dtype=np.float32) if state_dim else None
    return Frames(shape, SIDE, 0, spec.image_id - 1, seed, lead_ids=lead, readers=readers(spec), state=state)


FAMILIES = (
    Family(
        spec_type=Pi05Spec,
        sized=lambda preset, shape, experts: replace(preset, horizon=shape.horizon),
        changes=lambda spec: {"horizon": spec.horizon},
        fit=_fit_pi05,
        frames=_frames_pi05,
        costs=Pi05Costs,
        num_steps=lambda spec: spec.num_steps,
    ),
    Family(
        spec_type=Qwen3VLSpec,
        sized=lambda preset, shape, experts: with_heads(preset, experts or ("pi",)),
        changes=lambda spec: {"heads": spec.heads},
        fit=_fit_qwen,
        frames=_frames_qwen,
        costs=lambda spec, dtype_bytes: Qwen3VLCosts(spec, dtype_bytes, SIDE),
        num_steps=lambda spec: spec.heads[0].shape().num_steps if spec.heads else 1,
    ),
)


def family_of(spec: Any) -> Family:
    """The family that these sizes belong to."""
    return next(family for family in FAMILIES if isinstance(spec, family.spec_type))
