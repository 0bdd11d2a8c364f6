"""StarVLA's one-shot head: every action of the chunk from the hidden state of its own query token."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from oxygen.layers.experts import ExpertShape
from oxygen.layers.torch.context import Features, Reading
from oxygen.layers.torch.linear import Linear
from oxygen.models.heads.spec import OftSpec


class OftBlock(nn.Module):
    """x ← x + relu(W norm x)."""

    def __init__(self, width: int, dtype: torch.dtype, device: torch.device | str) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width, dtype=dtype, device=device)
        self.inner = Linear(width, width, bias=True, dtype=dtype, device=device)

    def forward(self, x: Tensor) -> Tensor:
        return x + F.relu(self.inner(self.norm(x)))


@dataclass(frozen=True, slots=True, eq=False)
class Prepared:
    """queries [B · H, feature_width]."""

    queries: Tensor


class OftHead(nn.Module):
    """See OftSpec."""

    def __init__(self, spec: OftSpec, dtype: torch.dtype, device: torch.device | str) -> None:
        super().__init__()
        self.spec, self.dtype = spec, dtype
        place: dict[str, Any] = {"bias": True, "dtype": dtype, "device": device}
        self.in_norm = nn.LayerNorm(spec.feature_width, dtype=dtype, device=device)
        self.first = Linear(spec.feature_width, spec.width, **place)
        self.blocks = nn.ModuleList(OftBlock(spec.width, dtype, device) for _ in range(spec.num_blocks))
        self.out_norm = nn.LayerNorm(spec.width, dtype=dtype, device=device)
        self.last = Linear(spec.width, spec.action_dim, **place)

    @property
    def shape(self) -> ExpertShape:
        return self.spec.shape()

    def prepare(self, reading: Reading, num_steps: int) -> Prepared:
        """Gather the query tokens' hidden states, in order."""
        return Prepared(torch.cat([self._gather(found) for found in reading.features]).to(self.dtype))

    def predict(self, prepared: Prepared) -> Tensor:
        """[B, H, A] float32."""
        x = F.relu(self.first(self.in_norm(prepared.queries)))
        for block in self.blocks:
            x = block(x)
        actions = self.last(self.out_norm(x)).float()
        return actions.view(-1, self.spec.horizon, self.spec.action_dim)

    def _gather(self, features: Features) -> Tensor:
        reads = self.shape.reads
        at = np.flatnonzero(np.asarray(features.token_ids) == reads.token_id)[-reads.num_tokens :]
        hidden = features.hidden[reads.hidden[0]]
        return hidden[torch.from_numpy(at).to(hidden.device)]

    def prepare_for_inference(self) -> None:
        """Pack."""
        for linear in (self.first, self.last, *(block.inner for block in self.blocks)):
            linear.pack()
