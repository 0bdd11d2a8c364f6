"""The layer-wise flow head (QwenPI, PI_v3): as many blocks as the trunk has layers, each looking at one layer's output.

K and V of the context are made once per frame, not once per step. Where every block looks at the context (`all_cross`),
an action token never meets another token: the state and the learned tokens then have no effect and are left out.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from oxygen.layers.experts import ExpertShape
from oxygen.layers.torch.context import Reading
from oxygen.layers.torch.linear import Linear
from oxygen.models.heads.spec import PiSpec
from oxygen.models.heads.torch.parts import (
    ActionEncoder,
    Block,
    KeysValues,
    Steps,
    TimeEmbedding,
    TwoLayers,
    joined,
    time_buckets,
)


class Projection(nn.Module):
    """A trunk layer's features to the head's width."""

    def __init__(self, feature_width: int, width: int, dtype: torch.dtype, device: torch.device | str) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(feature_width, dtype=dtype, device=device)
        self.out = Linear(feature_width, width, bias=True, dtype=dtype, device=device)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(self.norm(x))


@dataclass(frozen=True, slots=True, eq=False)
class Prepared:
    """context: per block, each item's K and V (None: the block looks at the head's own tokens). lead [B, m, width]: the
    tokens before the actions."""

    steps: Steps
    context: Sequence[Sequence[KeysValues] | None]
    lead: Tensor | None


class PiHead(nn.Module):
    """See PiSpec."""

    def __init__(self, spec: PiSpec, dtype: torch.dtype, device: torch.device | str) -> None:
        super().__init__()
        self.spec, self.dtype = spec, dtype
        width, place = spec.width, (dtype, device)
        self.projections = nn.ModuleList(
            Projection(spec.feature_width, width, *place) for _ in range(spec.depth if spec.projects else 0)
        )
        self.blocks = nn.ModuleList(Block(width, spec.num_heads, width, *place) for _ in range(spec.depth))
        self.time = TimeEmbedding(width, *place)
        self.action_encoder = ActionEncoder(spec.action_dim, width, *place)
        self.state_encoder = TwoLayers(spec.state_dim, width, width, *place) if spec.state_dim else None
        self.learned = nn.Parameter(torch.empty(spec.num_learned, width, dtype=dtype, device=device))
        self.decoder = TwoLayers(width, width, spec.action_dim, *place)
        self._steps: dict[int, Steps] = {}

    @property
    def shape(self) -> ExpertShape:
        return self.spec.shape()

    def looks_at_context(self, block: int) -> bool:
        return self.spec.topology == "all_cross" or block % 2 == 0

    def prepare(self, reading: Reading, num_steps: int) -> Prepared:
        """Once per frame: features to K and V of every block, and the tokens that stay the same in all steps."""
        lengths = [len(found.token_ids) for found in reading.features]
        context: list[Sequence[KeysValues] | None] = []
        for i, (block, tap) in enumerate(zip(self.blocks, self.shape.reads.hidden, strict=True)):
            if not self.looks_at_context(i):
                context.append(None)
                continue
            features = joined([found.hidden[tap] for found in reading.features]).to(self.dtype)
            context.append(
                block.keys_values(self.projections[i](features) if self.spec.projects else features, lengths)
            )
        return Prepared(self.steps(num_steps), context, self._lead(reading))

    def velocity(self, prepared: Prepared, x_t: Tensor, step: int) -> Tensor:
        """x_t [B, H, A] float32 -> dx/dt of the same shape at `step`."""
        steps = prepared.steps
        x = self.action_encoder(x_t, steps.encoder[step])
        if prepared.lead is not None:
            x = torch.cat((prepared.lead, x), dim=1)
        num_items, count = x.shape[:2]
        x = x.flatten(0, 1)
        for block, (scale, shift), context in zip(self.blocks, steps.blocks, prepared.context, strict=True):
            x = block(x, scale[step], shift[step], context, count)
        x = x.view(num_items, count, -1)[:, -x_t.shape[1] :]
        return self.decoder(x.flatten(0, 1)).float().view(x_t.shape)

    def steps(self, num_steps: int) -> Steps:
        """Kept per number of steps, so the weights must be frozen."""
        found = self._steps.get(num_steps)
        if found is None:
            buckets = torch.tensor(time_buckets(num_steps), device=self.learned.device)
            embedded = F.silu(self.time(buckets))
            modulations = (block.modulation(embedded).chunk(2, dim=-1) for block in self.blocks)
            blocks = tuple((scale, shift) for scale, shift in modulations)
            found = self._steps[num_steps] = Steps(self.action_encoder.times(buckets), blocks)
        return found

    def _lead(self, reading: Reading) -> Tensor | None:
        if self.spec.topology == "all_cross":
            return None
        lead = self.learned.expand(reading.num_items, -1, -1)
        if self.state_encoder is None:
            return lead
        states = torch.stack([torch.as_tensor(state) for state in reading.states])
        return torch.cat((self.state_encoder(states.to(self.learned.device, self.dtype))[:, None], lead), dim=1)

    def prepare_for_inference(self) -> None:
        """Freeze and pack."""
        self._steps.clear()
        for block in self.blocks:
            block.pack()
        for projection in self.projections:
            projection.out.pack()
