"""The families that the runtime's tests run on: a small lively model each, frames for it, and what must come out."""

from __future__ import annotations

from collections.abc import Sequence
from copy import deepcopy
from dataclasses import dataclass, field, replace
from functools import cache
from itertools import count
from typing import Any

import numpy as np
import torch
from models.heads import plain
from runtime.reference import Reference, attention, lively_model, make_inputs, small_spec
from torch import Tensor

from oxygen.core.inputs import ContextInputs
from oxygen.core.plan import ActItem, PrefillItem
from oxygen.core.tasks import Sampling
from oxygen.layers.torch.context import add_after
from oxygen.models.qwen3_vl.spec import PRESETS, Qwen3VLSpec, with_heads
from oxygen.models.qwen3_vl.torch import Qwen3VL, build
from oxygen.runtime.torch.open import open_runner
from oxygen.runtime.torch.runner import TorchRunner
from oxygen.runtime.torch.sampler import SamplingRows, sample

_frame_keys = count()
WORDS = 190
"""Token ids from here on are not words in frames of Qwen3-VL."""


def small_qwen(num_kv_heads: int = 1) -> Qwen3VLSpec:
    """One KV head: of a size with compiled attention. Two: of one without."""
    tiny = PRESETS["qwen3vl-tiny"]
    kernels = {"head_dim": 32, "rope_sections": (8, 4, 4)} if num_kv_heads == 1 else {}
    sized = replace(
        tiny,
        trunk=replace(tiny.trunk, depth=3, num_kv_heads=num_kv_heads, **kernels),
        vocab_size=211,
        image_id=200,
        vision_start_id=201,
        vision_end_id=202,
        eos_ids=(209, 210),
    )
    made = with_heads(sized, ("pi", "gr00t", "oft"))
    return replace(made, heads=(replace(made.heads[0], topology="interleaved", state_dim=7), *made.heads[1:]))


@cache
def qwen_model(num_kv_heads: int = 1) -> Qwen3VL:
    """Not prepared for inference."""
    model = build(small_qwen(num_kv_heads), seed=0)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name.startswith("trunk") and name.endswith(("out.weight", "down.weight")):
                parameter.mul_(4.0)
            elif name.startswith("heads") and parameter.dim() == 1:
                parameter.add_(0.1 * torch.randn(parameter.shape, generator=torch.Generator().manual_seed(1)))
    return model.eval()


@cache
def pi05_model(num_kv_heads: int = 1):
    return lively_model(small_spec(num_kv_heads))


class QwenReference:
    """One context, whole sequences recomputed under a causal mask, heads in their plain form."""

    def __init__(self, model: Qwen3VL, inputs: ContextInputs) -> None:
        self.model, self.inputs = model, inputs
        self.tokens = model.lay_out(inputs, model.embed_pictures(inputs.images))

    def _pass(self, tail: Sequence[int]) -> tuple[Tensor, list[tuple[Tensor, Tensor]], list[Tensor]]:
        x, positions = self.tokens.x, self.tokens.positions
        if tail:
            first = len(x) + self.tokens.shift
            x = torch.cat((x, self.model.embed_tokens(torch.tensor(tail))))
            new = torch.arange(first, first + len(tail))[:, None].expand(-1, 3)
            positions = torch.cat((positions, new))
        mask = torch.ones(len(x), len(x), dtype=torch.bool).tril()
        layers: list[tuple[Tensor, Tensor]] = []
        residuals: list[Tensor] = []
        added = add_after(self.tokens.additions) or (lambda layer, residual: residual)

        def attend(layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            layers.append((k, v))
            return attention(q, k, v, mask)

        def after(layer: int, residual: Tensor) -> Tensor:
            residuals.append(added(layer, residual))
            return residuals[-1]

        return self.model.trunk(x, self.model.rope(positions), attend, after=after), layers, residuals

    def context(self) -> tuple[Tensor, list[tuple[Tensor, Tensor]]]:
        """Last hidden state, and K and V of all tokens in every layer."""
        hidden, layers, _ = self._pass(())
        return hidden[-1], layers

    def text(self, count: int, prompt: Sequence[int] = (), sampling: Sampling | None = None) -> list[int]:
        tail: list[int] = list(prompt)
        rows = SamplingRows.of([sampling or Sampling()], torch.device("cpu"))
        for position in range(count):
            logits = self.model.logits(self._pass(tail)[0][-1:])
            tail += sample(logits, rows, torch.tensor([position])).tolist()
        return tail[len(prompt) :]

    def chunk(self, item: ActItem) -> Tensor:
        """What an act item must give."""
        _, _, residuals = self._pass(item.tail_ids)
        spec = next(head for head in self.model.spec.heads if head.name == item.expert)
        weights = plain.starvla_weights(self.model.heads[item.expert], spec)
        ids = (*self.inputs.token_ids, *item.tail_ids)
        return plain.actions(weights, spec, residuals, ids, item.state, item.noise, item.num_steps)


class Pi05Reference(Reference):
    """Adds what the families' tests ask for."""

    def context(self) -> tuple[Tensor, list[tuple[Tensor, Tensor]]]:
        hidden, layers = self.run()
        return hidden, [(k[self.valid], v[self.valid]) for k, v in layers]

    def chunk(self, item: ActItem) -> Tensor:
        return torch.from_numpy(self.actions(item.noise, item.num_steps))


@dataclass(frozen=True)
class Family:
    """tails: private tokens of each action expert, in the order of the experts."""

    name: str
    tails: dict[str, tuple[int, ...]] = field(default_factory=dict)

    def model(self, num_kv_heads: int = 1) -> Any:
        return pi05_model(num_kv_heads) if self.name == "pi05" else qwen_model(num_kv_heads)

    def frame(self, seed: int, num_images: int = 2, num_ids: int = 9) -> ContextInputs:
        if self.name == "pi05":
            return make_inputs(small_spec(), seed, num_images, num_ids)
        rng = np.random.default_rng(seed)
        sizes = [(64, 64), (32, 96), (64, 32)][:num_images]
        ids: list[int] = []
        for height, width in sizes:
            ids += [201, *[200] * (height // 32 * (width // 32)), 202]
        ids += rng.integers(2, WORDS, num_ids).tolist()
        images = tuple(rng.integers(0, 256, (*size, 3), dtype=np.uint8) for size in sizes)
        return ContextInputs(images, tuple(ids), len(ids))

    def reference(self, inputs: ContextInputs, num_kv_heads: int = 1) -> Any:
        with torch.inference_mode():
            kind = Pi05Reference if self.name == "pi05" else QwenReference
            return kind(self.model(num_kv_heads), inputs)

    def rig(self, num_kv_heads: int = 1, **options: Any) -> Rig:
        sizes = {"max_contexts": 7, "max_texts": 8, "context_len": 40, "tail_len": 40, "poison_freed": True}
        return Rig(self, open_runner(deepcopy(self.model(num_kv_heads)), **(sizes | options)), num_kv_heads)


QUERY = small_qwen().heads[2].token_id
FAMILIES = {
    "pi05": Family("pi05", {"action": ()}),
    "qwen3_vl": Family("qwen3_vl", {"pi": (11, 12, 13), "gr00t": (), "oft": (5, *(QUERY,) * 6, 7)}),
}


@dataclass
class Rig:
    """A runner with poisoned free rows, and how to fill it."""

    family: Family
    runner: TorchRunner
    num_kv_heads: int = 1

    def frame(self, seed: int, num_images: int = 2, num_ids: int = 9) -> ContextInputs:
        return self.family.frame(seed, num_images, num_ids)

    def fill(self, frames: dict[int, ContextInputs]) -> None:
        """Write contexts: row -> inputs, all in one call, each a frame of its own that all experts read."""
        readers = tuple(self.family.tails.items())
        self.runner.prefill([PrefillItem(row, row, i, next(_frame_keys), readers) for row, i in frames.items()])

    def acts(self, row: int, inputs: ContextInputs, seed: int, num_steps: int = 4) -> list[ActItem]:
        """An item for every expert of the family."""
        rng = np.random.default_rng(seed)
        items: list[ActItem] = []
        for name, tail in self.family.tails.items():
            (sizes,) = (expert for expert in self.runner.limits.experts if expert.name == name)
            noise = rng.standard_normal((sizes.horizon, sizes.action_dim)).astype(np.float32)
            state = rng.standard_normal(7).astype(np.float32)
            items.append(ActItem(row, row, row, inputs.num_tokens, name, num_steps, noise, tail, state))
        return items

    def acts_of(self, frames: dict[int, ContextInputs]) -> list[ActItem]:
        return [item for row, inputs in frames.items() for item in self.acts(row, inputs, row)]

    def spoil(self, row: int) -> None:
        """Make a context's hidden state, values and features NaN, as an overflow would."""
        with torch.inference_mode():
            self.runner.store.last_hidden[row] = float("nan")
            self.runner.store.contexts.values[1][row] = float("nan")
            for (at, _), features in self.runner._prefill.features.items():
                for tensor in features.hidden.values() if at == row else ():
                    tensor.fill_(float("nan"))
