"""What is measured: a model on a device, at work on frames of one robot's shape. Plain data, so other processes can
have it."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from oxygen.bench.shapes import SHAPES, Frames, Shape
from oxygen.checkpoint.shipped import SHIPPED, resolve
from oxygen.core.errors import InvalidInput
from oxygen.core.plan import Runner
from oxygen.models.pi05.spec import PRESETS, Pi05Spec
from oxygen.models.qwen3_vl.spec import PRESETS as QWEN3_VL


@dataclass(frozen=True, slots=True)
class Setup:
    """model: preset (random weights), shipped name or checkpoint folder. robot: a name of SHAPES. threads: of a CPU,
    None for torch's choice."""

    model: str = "pi05-tiny"
    device: str = "cpu"
    dtype: str = "float32"
    robot: str = "libero"
    num_steps: int = 10
    threads: int | None = None

    def __post_init__(self) -> None:
        if self.robot not in SHAPES:
            raise InvalidInput("robot", f"one of {', '.join(SHAPES)}", repr(self.robot))
        if self.model in QWEN3_VL:
            raise InvalidInput("model", f"one of {', '.join(PRESETS)}: Qwen3-VL has bench frame", repr(self.model))
        if self.model not in PRESETS and not resolve(self.model).exists():
            known = ", ".join((*PRESETS, *SHIPPED))
            raise InvalidInput("model", f"one of {known} or a checkpoint folder", f"{self.model!r:.80}")

    @property
    def is_preset(self) -> bool:
        return self.model in PRESETS

    def spec(self) -> Pi05Spec:
        """Return the model's sizes: a preset takes its horizon from the robot, a checkpoint keeps its own."""
        if self.is_preset:
            return replace(PRESETS[self.model], horizon=SHAPES[self.robot].horizon)
        from oxygen.models.pi05.opening import read_pi05

        return read_pi05(self.model).spec

    def shape(self) -> Shape:
        """Return the robot's shape, cut to what the model takes."""
        spec, shape = self.spec(), SHAPES[self.robot]
        return replace(
            shape,
            num_cameras=min(shape.num_cameras, spec.num_cameras),
            prompt_len=min(shape.prompt_len, spec.max_token_len),
            horizon=spec.horizon,
        )

    def frames(self, seed: int = 0) -> Frames:
        spec = self.spec()
        return Frames(self.shape(), spec.vision.image_size, spec.tokens_per_image, spec.vocab_size, seed)

    def open(self, *, max_contexts: int, max_texts: int, tail_len: int) -> Runner:
        """Open a runner with this much room."""
        from oxygen.runtime.torch.open import open_runner

        spec = self.spec()
        changes: dict[str, Any] = {"spec": {"horizon": spec.horizon}} if self.is_preset else {}
        return open_runner(
            self.model,
            device=self.device,
            dtype=self.dtype,
            max_contexts=max_contexts,
            max_texts=max_texts,
            context_len=self.shape().context_len(spec.tokens_per_image),
            tail_len=tail_len,
            threads=self.threads,
            **changes,
        )
