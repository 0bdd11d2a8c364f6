"""Action heads in PyTorch. Each offers what runtimes call: `shape`, `prepare`, and `velocity` or `predict`."""

from __future__ import annotations

import torch

from oxygen.models.heads.spec import Gr00tSpec, HeadSpec, OftSpec, PiSpec
from oxygen.models.heads.torch.gr00t import Gr00tHead
from oxygen.models.heads.torch.oft import OftHead
from oxygen.models.heads.torch.pi import PiHead

__all__ = ["Gr00tHead", "OftHead", "PiHead", "build_head"]


def build_head(spec: HeadSpec, dtype: torch.dtype, device: torch.device | str) -> PiHead | Gr00tHead | OftHead:
    """A head of these sizes, weights unset."""
    if isinstance(spec, PiSpec):
        return PiHead(spec, dtype, device)
    if isinstance(spec, Gr00tSpec):
        return Gr00tHead(spec, dtype, device)
    assert isinstance(spec, OftSpec)
    return OftHead(spec, dtype, device)
