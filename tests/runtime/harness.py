"""A small runner and a player that carries texts over several decode calls, as the engine does."""

from __future__ import annotations

from collections.abc import Sequence
from copy import deepcopy
from dataclasses import dataclass, field, replace
from functools import cache
from itertools import count
from typing import Any

import numpy as np
from runtime.reference import lively_model, make_inputs, small_spec

from oxygen.core.inputs import ContextInputs
from oxygen.core.plan import ActItem, DecodeItem, PrefillItem
from oxygen.core.tasks import Sampling
from oxygen.models.pi05.torch import Pi05
from oxygen.runtime.torch.open import open_runner
from oxygen.runtime.torch.runner import TorchRunner

KINDS: dict[str, dict[str, Any]] = {
    "eager": {},
    "static": {"graphs": "plain"},
    "lookahead": {"lookahead": True},
    "static-lookahead": {"graphs": "plain", "lookahead": True},
}


_frame_keys = count()


@cache
def model_of(num_kv_heads: int = 1, seed: int = 0) -> Pi05:
    return lively_model(small_spec(num_kv_heads), seed)


def make_runner(model: Pi05 | None = None, **options: Any) -> TorchRunner:
    sizes = {"max_contexts": 7, "max_texts": 8, "context_len": 40, "tail_len": 40, "poison_freed": True}
    return open_runner(deepcopy(model or model_of()), **(sizes | options))


def frame(seed: int, num_images: int = 2, num_ids: int = 9, num_kv_heads: int = 1) -> ContextInputs:
    return make_inputs(small_spec(num_kv_heads), seed, num_images, num_ids)


def fill(runner: TorchRunner, frames: dict[int, ContextInputs]) -> None:
    """Write contexts: row -> inputs, all in one call, each a frame of its own."""
    runner.prefill([PrefillItem(row, row, inputs, frame_key=next(_frame_keys)) for row, inputs in frames.items()])


def noise_of(seed: int) -> np.ndarray:
    spec = small_spec()
    return np.random.default_rng(seed).standard_normal((spec.horizon, spec.action_dim)).astype(np.float32)


def act_item(row: int, inputs: ContextInputs, noise: np.ndarray, num_steps: int = 4) -> ActItem:
    return ActItem(row, row, row, inputs.num_tokens, "action", num_steps, noise)


@dataclass
class Text:
    """One text and what it has gained. `wanted` tokens in all."""

    context_row: int
    context_len: int
    tail_row: int
    wanted: int
    prompt: tuple[int, ...] = ()
    sampling: Sampling = field(default_factory=Sampling)
    got: list[int] = field(default_factory=list)

    def item(self, task_id: int = 0) -> DecodeItem:
        computed = len(self.prompt) + len(self.got) - 1 if self.got else 0
        return DecodeItem(
            request_id=task_id,
            task_id=task_id,
            context_row=self.context_row,
            context_len=self.context_len,
            tail_row=self.tail_row,
            num_computed=computed,
            pending=(self.got[-1],) if self.got else self.prompt,
            num_generated=len(self.got),
            max_tokens=self.wanted - len(self.got),
            sampling=self.sampling,
        )

    def fresh(self, **changes: Any) -> Text:
        return replace(self, got=[], **changes)


def play(runner: TorchRunner, texts: Sequence[Text], rounds: int, leave: dict[int, int] | None = None) -> None:
    """One decode call. leave: text index -> number of tokens after which it ends early."""
    live = [t for t in texts if len(t.got) < t.wanted]
    going = list(live)

    def after_round(tokens: Sequence[int]) -> list[bool]:
        nonlocal going
        assert len(tokens) == len(going)
        for text, token in zip(going, tokens, strict=True):
            text.got.append(token)
        stays = []
        for text in going:
            end = (leave or {}).get(texts.index(text), text.wanted)
            stays.append(len(text.got) < min(end, text.wanted))
        going = [text for text, stay in zip(going, stays, strict=True) if stay]
        return stays

    runner.decode([t.item(i) for i, t in enumerate(live)], rounds, after_round)


def play_out(runner: TorchRunner, texts: Sequence[Text], rounds: int) -> list[list[int]]:
    """Decode calls of `rounds` rounds until every text has what it wants."""
    while any(len(t.got) < t.wanted for t in texts):
        play(runner, texts, rounds)
    return [t.got for t in texts]
