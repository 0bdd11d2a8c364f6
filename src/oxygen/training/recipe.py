"""How the shipped checkpoint is made: sizes, seeds and stages, as data."""

from __future__ import annotations

from dataclasses import dataclass, replace

from oxygen.models.pi05.spec import PRESETS, GemmaSpec, VisionSpec

FLOW_STEPS = 5


@dataclass(frozen=True, slots=True)
class Stage:
    """One stretch of training. rollouts: policy episodes per task gathered before it (0: none), labelled by the expert.

    decays: the learning rate falls to its end over this stage (cosine); otherwise it stays at the top.
    """

    name: str
    steps: int
    rollouts: int = 0
    decays: bool = False


@dataclass(frozen=True, slots=True)
class Recipe:
    """Everything that decides the weights, besides the code."""

    num_demos: int = 40
    batch_size: int = 64
    learning_rate: float = 1.2e-3
    final_rate: float = 0.02
    warmup_steps: int = 100
    weight_decay: float = 0.05
    ema_decay: float = 0.995
    seed: int = 0
    stages: tuple[Stage, ...] = (
        Stage("imitate", 2200),
        Stage("correct", 800, rollouts=12),
        Stage("settle", 1400, rollouts=12, decays=True),
    )

    @property
    def num_steps(self) -> int:
        return sum(stage.steps for stage in self.stages)


SMOKE = Recipe(
    num_demos=1,
    batch_size=8,
    warmup_steps=2,
    stages=(Stage("imitate", 4), Stage("settle", 4, rollouts=1, decays=True)),
)
"""The same road in a few minutes: for tests and for trying the machinery. Its checkpoint knows nothing."""


SPEC = replace(
    PRESETS["pi05-tiny"],
    trunk=GemmaSpec(width=128, depth=4, mlp_width=384, num_heads=4, num_kv_heads=1, head_dim=32),
    expert=GemmaSpec(width=96, depth=4, mlp_width=256, num_heads=4, num_kv_heads=1, head_dim=32),
    vision=VisionSpec(width=192, depth=1, mlp_width=384, num_heads=6, patch_size=16, image_size=64, stem="conv"),
    vocab_size=1024,
    action_dim=4,
    horizon=10,
    max_token_len=48,
    num_steps=FLOW_STEPS,
    num_cameras=2,
)
"""Sizes of oxygen-tiny. The vision tower is wide in its stem and short: pictures of 64 pixels need edges, not depth."""
