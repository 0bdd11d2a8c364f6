"""The act verb: items of the same expert and number of steps share one batch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from oxygen.core.errors import RequestFault
from oxygen.core.plan import ActItem
from oxygen.layers.torch.context import Features, Reading
from oxygen.runtime.torch.attention import Scratch
from oxygen.runtime.torch.flow import action_positions, denoise
from oxygen.runtime.torch.graphs import Graphs, StaticAct, act_key
from oxygen.runtime.torch.native_attention import act_attend
from oxygen.runtime.torch.store import Store

FeaturesOf = dict[tuple[int, str], Features]
"""(context row, expert) -> what the expert reads there, from the prefill of this step."""


def run_chunks(
    experts: Any, store: Store, features: FeaturesOf, items: Sequence[ActItem], scratch: Scratch, graphs: Graphs
) -> list[np.ndarray]:
    """Each item's chunk, [horizon, action_dim] float32, in item order. One that is not finite raises RequestFault."""
    chunks: list[np.ndarray | None] = [None] * len(items)
    groups: dict[tuple[str, int], list[int]] = {}
    for i, item in enumerate(items):
        groups.setdefault((item.expert, item.num_steps), []).append(i)
    for (name, num_steps), members in groups.items():
        group, expert = [items[i] for i in members], experts[name]
        if expert.shape.reads.kv:
            actions = _from_keys(expert, store, group, num_steps, scratch, graphs)
        else:
            actions = _from_features(expert, store, features, group, num_steps)
        for i, chunk in zip(members, actions, strict=True):
            if not np.isfinite(chunk).all():
                raise RequestFault(items[i].request_id, "the action chunk is not finite")
            chunks[i] = chunk
    return [chunk for chunk in chunks if chunk is not None]


def _from_keys(
    expert: Any, store: Store, items: Sequence[ActItem], num_steps: int, scratch: Scratch, graphs: Graphs
) -> np.ndarray:
    """A reader of K and V, on items with the same number of steps -> [B, H, A]."""
    rows = [item.context_row for item in items]
    lens = [item.context_len for item in items]
    noise = _noise(items)
    if graphs.enabled:
        key = act_key(items[0].expert, rows, max(lens), num_steps, store.shape.context_len)
        static = graphs.get(key, lambda: StaticAct(expert, store, key, noise.shape))
        if isinstance(static, StaticAct):
            static.load(noise, lens)
            static.replay()
            return static.x.cpu().numpy().copy()
    x = noise.to(store.device, copy=True)
    first = torch.tensor([store.position(r, n) for r, n in zip(rows, lens, strict=True)], device=store.device)
    attend = act_attend(store, rows, lens, x.shape[1], scratch)
    reading = Reading(len(items), attend, action_positions(first, x.shape[1]))
    return denoise(expert, expert.prepare(reading, num_steps), x, num_steps).cpu().numpy()


def _from_features(
    expert: Any, store: Store, features: FeaturesOf, items: Sequence[ActItem], num_steps: int
) -> np.ndarray:
    """A reader of hidden states, on items with the same number of steps -> [B, H, A]."""
    read = [features[item.context_row, item.expert] for item in items]
    states = [item.state for item in items]
    prepared = expert.prepare(Reading(len(items), features=read, states=states), num_steps)
    if expert.shape.kind == "one_shot":
        return expert.predict(prepared).cpu().numpy()
    x = _noise(items).to(store.device, copy=True)
    return denoise(expert, prepared, x, num_steps).cpu().numpy()


def _noise(items: Sequence[ActItem]) -> torch.Tensor:
    return torch.from_numpy(np.stack([np.asarray(item.noise, dtype=np.float32) for item in items]))
