"""Between a model and whoever runs it: a context's tokens on their way in, and what experts may read afterwards."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from oxygen.layers.experts import Tap
from oxygen.layers.torch.attention import Attend

After = Callable[[int, Tensor], Tensor]
"""(layer, residual [N, width]) -> the residual that goes on. A trunk calls it behind every layer."""


@dataclass(frozen=True, slots=True, eq=False)
class ContextTokens:
    """One context laid out, ready for the trunk. x [n, width]; positions [n], or [n, axes] where tokens have several.

    shift: position of a token that follows, minus its index. open_from: the first index from which that holds (a text
    may read the context up to any index from there on). additions [layers, n, width]: what is added to the residual
    behind each of the first layers.
    """

    x: Tensor
    positions: Tensor
    shift: int = 0
    open_from: int = 1
    additions: Tensor | None = None


def add_after(additions: Tensor | None) -> After | None:
    """The `After` that adds additions [layers, n, width] to the first n tokens; None where there are none."""
    if additions is None or additions.shape[0] == 0:
        return None

    def after(layer: int, x: Tensor) -> Tensor:
        if layer >= additions.shape[0]:
            return x
        n = additions.shape[1]
        return x + additions[layer] if n == x.shape[0] else torch.cat((x[:n] + additions[layer], x[n:]))

    return after


@dataclass(frozen=True, slots=True, eq=False)
class Features:
    """What one prefill left for one reader of hidden states; scratch of a step. hidden: tap -> [n, width]."""

    token_ids: tuple[int, ...]
    hidden: Mapping[Tap, Tensor]


@dataclass(frozen=True, slots=True, eq=False)
class Reading:
    """What an expert gets for the B items of one call; it finds here what it declared (`Reads`).

    attend and positions [B · horizon]: for readers of K and V. features: one per item, for readers of hidden states.
    states: the robot's state per item, [state_dim] float32 or None.
    """

    num_items: int
    attend: Attend | None = None
    positions: Tensor | None = None
    features: Sequence[Features] = ()
    states: Sequence[np.ndarray | None] = field(default_factory=tuple)
