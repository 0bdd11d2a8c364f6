"""What one chunk of a head must at least do: what it prepares once per frame, and its steps."""

from __future__ import annotations

from oxygen.layers.costs import Cost
from oxygen.models.heads.spec import Gr00tSpec, HeadSpec, OftSpec, PiSpec


def chunk(head: HeadSpec, context_len: int, num_steps: int, dtype_bytes: int) -> Cost:
    """context_len: tokens whose features it reads. num_steps: of a flow head."""
    if isinstance(head, OftSpec):
        return _one_shot(head, dtype_bytes)
    if isinstance(head, PiSpec):
        is_cross = [head.topology == "all_cross" or i % 2 == 0 for i in range(head.depth)]
        num_lead = 0 if all(is_cross) else head.num_learned + bool(head.state_dim)
        # Features to the head's width first, where they are projected; then to K and V.
        keys = 2 * head.width**2 + (head.feature_width * head.width if head.projects else 0)
        out = head.width**2 + head.width * head.action_dim
        num_read = sum(is_cross)
    else:
        is_cross = [i % 2 == 0 for i in range(head.depth)]
        num_lead = head.num_learned + bool(head.state_dim)
        keys = 2 * head.feature_width * head.width
        out = head.width * head.inner_width + head.inner_width**2 + head.inner_width * head.action_dim
        num_read = 1  # all its blocks look at the same features
    prepare = keys * sum(is_cross)
    features = num_read * context_len * head.feature_width
    once = Cost(2 * context_len * prepare, dtype_bytes * (prepare + features))
    return once + _step(head, is_cross, num_lead, context_len, out, dtype_bytes).times(num_steps)


def _step(
    head: PiSpec | Gr00tSpec, is_cross: list[bool], num_lead: int, context_len: int, out: int, dtype_bytes: int
) -> Cost:
    """One flow step: the head's own tokens through all blocks. Time is embedded once and kept."""
    w, rows, cross = head.width, num_lead + head.horizon, sum(is_cross)
    weights = head.depth * 10 * w**2 + (head.depth - cross) * 2 * w**2  # queries, output, MLP; own K and V
    # The action encoder's map of actions and time to the width is split: only the half of the actions is left.
    ends = head.action_dim * w + 2 * w**2 + out
    scores = 4 * rows * w * (cross * context_len + (head.depth - cross) * rows)
    read = weights + ends + cross * 2 * context_len * w
    return Cost(2 * rows * weights + 2 * head.horizon * ends + scores, dtype_bytes * read)


def _one_shot(head: OftSpec, dtype_bytes: int) -> Cost:
    weights = head.feature_width * head.width + head.num_blocks * head.width**2 + head.width * head.action_dim
    return Cost(2 * head.horizon * weights, dtype_bytes * weights)
