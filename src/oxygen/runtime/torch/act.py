"""The act verb: items of the same number of steps share one batch through the flow loop."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from oxygen.core.errors import RequestFault
from oxygen.core.plan import ActItem
from oxygen.runtime.torch.attention import ActAttend, Scratch
from oxygen.runtime.torch.flow import action_positions, denoise
from oxygen.runtime.torch.graphs import Graphs, StaticAct, act_key
from oxygen.runtime.torch.store import Store


def run_chunks(
    model: Any, store: Store, items: Sequence[ActItem], scratch: Scratch, graphs: Graphs
) -> list[np.ndarray]:
    """Each item's chunk, [horizon, action_dim] float32, in item order. One that is not finite raises RequestFault."""
    chunks: list[np.ndarray | None] = [None] * len(items)
    groups: dict[int, list[int]] = {}
    for i, item in enumerate(items):
        groups.setdefault(item.num_steps, []).append(i)
    for num_steps, members in groups.items():
        group = [items[i] for i in members]
        actions = _run_group(model, store, group, num_steps, scratch, graphs)
        for i, chunk in zip(members, actions, strict=True):
            if not np.isfinite(chunk).all():
                raise RequestFault(items[i].request_id, "the action chunk is not finite")
            chunks[i] = chunk
    return [chunk for chunk in chunks if chunk is not None]


def _run_group(
    model: Any, store: Store, items: Sequence[ActItem], num_steps: int, scratch: Scratch, graphs: Graphs
) -> np.ndarray:
    """Items with the same number of steps -> [B, H, A]."""
    rows = [item.context_row for item in items]
    lens = [item.context_len for item in items]
    noise = torch.from_numpy(np.stack([np.asarray(item.noise, dtype=np.float32) for item in items]))
    if graphs.enabled:
        key = act_key(rows, max(lens), num_steps, store.shape.context_len)
        static = graphs.get(key, lambda: StaticAct(model, store, key, noise.shape))
        if isinstance(static, StaticAct):
            static.load(noise, lens)
            static.replay()
            return static.x.cpu().numpy().copy()
    x = noise.to(store.device, copy=True)
    positions = action_positions(torch.tensor(lens, device=store.device), x.shape[1])
    denoise(model, x, num_steps, model.rope(positions), ActAttend(store, rows, lens, scratch))
    return x.cpu().numpy()
