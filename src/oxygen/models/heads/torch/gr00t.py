"""The flow DiT of StarVLA's GR00T head: even blocks look at the last hidden states, odd ones at the head's own tokens.

K and V of the context are made once per frame, for all even blocks.
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
from oxygen.models.heads.spec import Gr00tSpec
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

OUT_EPS = 1e-6


@dataclass(frozen=True, slots=True, eq=False)
class Prepared:
    """context: per block, each item's K and V, None for odd ones. lead [B, m, width]: the tokens before the actions."""

    steps: Steps
    context: Sequence[Sequence[KeysValues] | None]
    lead: Tensor


class Gr00tHead(nn.Module):
    """See Gr00tSpec. Tokens: the state, if there is one, the learned ones, the actions."""

    def __init__(self, spec: Gr00tSpec, dtype: torch.dtype, device: torch.device | str) -> None:
        super().__init__()
        self.spec, self.dtype = spec, dtype
        width, inner, place = spec.width, spec.inner_width, (dtype, device)
        self.blocks = nn.ModuleList(
            Block(width, spec.num_heads, width if i % 2 else spec.feature_width, *place) for i in range(spec.depth)
        )
        self.time = TimeEmbedding(width, *place)
        self.action_encoder = ActionEncoder(spec.action_dim, width, *place)
        self.state_encoder = TwoLayers(spec.state_dim, inner, width, *place) if spec.state_dim else None
        self.learned = nn.Parameter(torch.empty(spec.num_learned, width, dtype=dtype, device=device))
        self.out_modulation = Linear(width, 2 * width, bias=True, dtype=dtype, device=device)
        self.out = Linear(width, inner, bias=True, dtype=dtype, device=device)
        self.decoder = TwoLayers(inner, inner, spec.action_dim, *place)
        self._steps: dict[int, Steps] = {}

    @property
    def shape(self) -> ExpertShape:
        return self.spec.shape()

    def prepare(self, reading: Reading, num_steps: int) -> Prepared:
        """Once per frame: features to K and V of the even blocks, and the tokens that stay the same in all steps."""
        (tap,) = self.shape.reads.hidden
        lengths = [len(found.token_ids) for found in reading.features]
        features = joined([found.hidden[tap] for found in reading.features]).to(self.dtype)
        context = [None if i % 2 else block.keys_values(features, lengths) for i, block in enumerate(self.blocks)]
        lead = self.learned.expand(reading.num_items, -1, -1)
        if self.state_encoder is not None:
            states = torch.stack([torch.as_tensor(state) for state in reading.states])
            lead = torch.cat((self.state_encoder(states.to(self.learned.device, self.dtype))[:, None], lead), dim=1)
        return Prepared(self.steps(num_steps), context, lead)

    def velocity(self, prepared: Prepared, x_t: Tensor, step: int) -> Tensor:
        """x_t [B, H, A] float32 -> dx/dt of the same shape at `step`."""
        steps = prepared.steps
        assert steps.out is not None
        x = torch.cat((prepared.lead, self.action_encoder(x_t, steps.encoder[step])), dim=1)
        num_items, count = x.shape[:2]
        x = x.flatten(0, 1)
        for block, (scale, shift), context in zip(self.blocks, steps.blocks, prepared.context, strict=True):
            x = block(x, scale[step], shift[step], context, count)
        x = x.view(num_items, count, -1)[:, -x_t.shape[1] :]
        shift, scale = steps.out[0][step], steps.out[1][step]
        x = self.out(F.layer_norm(x, x.shape[-1:], eps=OUT_EPS) * (1 + scale) + shift)
        return self.decoder(x).float()

    def steps(self, num_steps: int) -> Steps:
        """Kept per number of steps, so the weights must be frozen."""
        found = self._steps.get(num_steps)
        if found is None:
            buckets = torch.tensor(time_buckets(num_steps), device=self.learned.device)
            embedded = F.silu(self.time(buckets))
            modulations = (block.modulation(embedded).chunk(2, dim=-1) for block in self.blocks)
            blocks = tuple((scale, shift) for scale, shift in modulations)
            shift, scale = self.out_modulation(embedded).chunk(2, dim=-1)
            found = self._steps[num_steps] = Steps(self.action_encoder.times(buckets), blocks, (shift, scale))
        return found

    def prepare_for_inference(self) -> None:
        """Freeze and pack."""
        self._steps.clear()
        for block in self.blocks:
            block.pack()
