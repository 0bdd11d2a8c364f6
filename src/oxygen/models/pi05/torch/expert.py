"""The action expert as runtimes see it: a reader of the trunk's K and V, where they lie."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from torch import Tensor

from oxygen.layers.experts import ExpertShape, Reads
from oxygen.layers.torch.attention import Attend
from oxygen.layers.torch.context import Reading
from oxygen.layers.torch.rope import Rope
from oxygen.models.pi05.torch.conditions import StepConditions

if TYPE_CHECKING:
    from oxygen.models.pi05.torch.model import Pi05

NAME = "action"


@dataclass(frozen=True, slots=True, eq=False)
class Prepared:
    """What the flow steps share: modulation of all of them, phases of the action tokens, the context."""

    conditions: StepConditions
    rope: Rope
    attend: Attend


class ActionExpert:
    """Time runs from 1 (noise) to 0 (action)."""

    def __init__(self, model: Pi05) -> None:
        self._model = model
        spec = model.spec
        self.shape = ExpertShape(NAME, "flow", spec.horizon, spec.action_dim, spec.num_steps, -1, Reads(kv=True))

    def prepare(self, reading: Reading, num_steps: int) -> Prepared:
        """Once per chunk."""
        assert reading.attend is not None and reading.positions is not None
        return Prepared(self._model.conditions(num_steps), self._model.rope(reading.positions), reading.attend)

    def velocity(self, prepared: Prepared, x_t: Tensor, step: int) -> Tensor:
        """x_t [B, H, A] float32 -> dx/dt [B, H, A] float32."""
        return self._model.velocity(x_t, prepared.conditions, step, prepared.rope, prepared.attend)
