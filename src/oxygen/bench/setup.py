"""What is measured: a model on a device, at work on frames of one robot's shape. Plain data, so other processes can
have it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from oxygen.bench.families import family_of
from oxygen.bench.shapes import SHAPES, Frames, Shape
from oxygen.checkpoint.shipped import SHIPPED, resolve
from oxygen.core.errors import InvalidInput
from oxygen.core.plan import Runner
from oxygen.layers.costs import DTYPE_BYTES, StageCosts
from oxygen.runtime.presets import PRESETS, is_preset


@dataclass(frozen=True, slots=True)
class Setup:
    """model: preset (random weights), shipped name or checkpoint folder. robot: a name of SHAPES. num_steps: flow
    steps, 0 for the model's own. threads: of a CPU, None for torch's choice. experts: the action experts of a preset
    that can have several (none: its usual one)."""

    model: str = "pi05-tiny"
    device: str = "cpu"
    dtype: str = "float32"
    robot: str = "libero"
    num_steps: int = 0
    threads: int | None = None
    experts: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if self.robot not in SHAPES:
            raise InvalidInput("robot", f"one of {', '.join(SHAPES)}", repr(self.robot))
        if self.model not in PRESETS and not resolve(self.model).exists():
            known = ", ".join((*PRESETS, *SHIPPED))
            raise InvalidInput("model", f"one of {known} or a checkpoint folder", f"{self.model!r:.80}")

    @property
    def is_preset(self) -> bool:
        return is_preset(self.model)

    def spec(self) -> Any:
        """Return the model's sizes: a preset takes its horizon from the robot, a checkpoint keeps its own."""
        if self.is_preset:
            preset = PRESETS[self.model]
            return family_of(preset).sized(preset, SHAPES[self.robot], self.experts)
        from oxygen.runtime.torch.families import read_folder

        return read_folder(self.model).spec

    def steps(self) -> int:
        """Flow steps of a chunk."""
        spec = self.spec()
        return self.num_steps or family_of(spec).num_steps(spec)

    def shape(self) -> Shape:
        """Return the robot's shape, cut to what the model takes."""
        spec = self.spec()
        return family_of(spec).fit(spec, SHAPES[self.robot])

    def frames(self, seed: int = 0) -> Frames:
        spec = self.spec()
        return family_of(spec).frames(spec, self.shape(), seed)

    def costs(self) -> StageCosts:
        """What the stages must at least do."""
        spec = self.spec()
        return family_of(spec).costs(spec, DTYPE_BYTES[self.dtype])

    def open(self, *, max_contexts: int, max_texts: int, tail_len: int) -> Runner:
        """Open a runner with this much room."""
        from oxygen.runtime.torch.open import open_runner

        spec = self.spec()
        changes: dict[str, Any] = {"spec": family_of(spec).changes(spec)} if self.is_preset else {}
        return open_runner(
            self.model,
            device=self.device,
            dtype=self.dtype,
            max_contexts=max_contexts,
            max_texts=max_texts,
            context_len=self.frames().context_len,
            tail_len=tail_len,
            threads=self.threads,
            **changes,
        )
