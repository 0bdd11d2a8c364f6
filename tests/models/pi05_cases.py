"""The golden cases of π0.5 and the plainest possible way to run the model on them: storage is a list per layer."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import load_file
from torch import Tensor

from oxygen.layers.torch.attention import masked_attention
from oxygen.layers.torch.rope import neighbour_order
from oxygen.models.pi05.spec import flow_dt
from oxygen.models.pi05.torch import Pi05
from oxygen.models.pi05.torch.weights import load_pi05

DATA = Path(__file__).parent.parent / "data"
CASES = ("a_b1_all", "b_b1_mask_right", "d_b2_mixed")


def golden_model(dtype: torch.dtype = torch.float32, *, prepared: bool = True) -> Pi05:
    """The reference's small model; prepared: with weights laid out for inference."""
    model = load_pi05(DATA / "openpi_torch", dtype=dtype)
    return model.prepare_for_inference() if prepared else model.eval()


def golden_case(name: str) -> dict[str, Tensor]:
    return load_file(DATA / "goldens_pi05" / f"{name}.safetensors")


@dataclass
class Context:
    """K and V of every layer for one sequence, [N, Hkv, Dh] each; `attend` appends to them, `read` does not."""

    k: list[Tensor] = field(default_factory=list)
    v: list[Tensor] = field(default_factory=list)

    def __len__(self) -> int:
        return len(self.k[0]) if self.k else 0

    def append(self, mask: Tensor | None = None, keep: Tensor | None = None):
        """An `attend` that stores. mask [new, old + new]: what the new tokens see (None: everything)."""

        def attend(layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            if layer == len(self.k):
                self.k.append(k)
                self.v.append(v)
            else:
                self.k[layer] = torch.cat((self.k[layer], k))
                self.v[layer] = torch.cat((self.v[layer], v))
            seen = mask[keep] if mask is not None and keep is not None and len(q) == len(keep) else mask
            return masked_attention(q, self.k[layer], self.v[layer], seen)

        return attend

    def read(self, layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """An `attend` that leaves the context as it is: the new tokens see it and each other."""
        return masked_attention(q, torch.cat((self.k[layer], k)), torch.cat((self.v[layer], v)))


def pixels(images: Tensor) -> Tensor:
    """uint8 [n, S, S, 3] -> float32 [n, 3, S, S] in [-1, 1], rounded as the reference rounds."""
    array = images.numpy().astype(np.float32) / np.float32(255.0) * np.float32(2.0) - np.float32(1.0)
    return torch.from_numpy(array).permute(0, 3, 1, 2).contiguous()


def case_image_embeddings(model: Pi05, case: dict[str, Tensor], sample: int) -> Tensor:
    """[valid cameras, tokens, width] of one sample: from its pictures, or as the reference embedded them."""
    if "image_embeddings" in case:
        first = int(case["camera_mask"][:sample].sum())
        return case["image_embeddings"][first : first + int(case["camera_mask"][sample].sum())].to(model.dtype)
    return model.embed_images(pixels(torch.stack([case[f"image_{i}"] for i in range(3) if f"image_{i}" in case])))


def case_prompt(case: dict[str, Tensor], sample: int) -> Tensor:
    return case["prompt"][sample][case["prompt_mask"][sample]]


def prefill(
    model: Pi05, x: Tensor, *, start: int = 0, context: Context | None = None, mask: Tensor | None = None
) -> tuple[Context, Tensor]:
    """Run the trunk over x [N, width] at positions from `start`, on top of `context` if there is one."""
    context = context or Context()
    hidden = model.trunk(x, model.rope(torch.arange(start, start + len(x))), context.append(mask))
    return context, hidden


def prefix(model: Pi05, case: dict[str, Tensor], sample: int) -> Tensor:
    """The valid prefix, [N, width]: nothing masked is in it."""
    images = case_image_embeddings(model, case, sample).flatten(0, 1)
    return torch.cat((images, model.embed_tokens(case_prompt(case, sample))))


def flow(model: Pi05, context: Context, noise: Tensor, num_steps: int) -> list[Tensor]:
    """x before each step and at the end, each [1, H, A]."""
    rope = model.rope(len(context) + torch.arange(model.spec.horizon))
    conditions = model.conditions(num_steps)
    trace = [noise]
    for step in range(num_steps):
        v = model.velocity(trace[-1], conditions, step, rope, context.read)
        trace.append(trace[-1] + flow_dt(num_steps) * v)
    return trace


def half_split_keys(model: Pi05, context: Context) -> list[Tensor]:
    """The keys of each layer, [N, Dh], in the reference's order of a head's elements."""
    keys = [k[:, 0] for k in context.k]
    if not model.is_prepared:
        return keys
    back = torch.argsort(neighbour_order(model.spec.trunk.head_dim))
    return [k[:, back] for k in keys]


def decode(model: Pi05, context: Context, hidden: Tensor, count: int) -> tuple[list[int], Tensor]:
    """Greedy tokens from the last hidden state [width]; all of them end up in the context. Also their logits."""
    tokens, logits = [], []
    for _ in range(count):
        logits.append(model.logits(hidden[None])[0])
        tokens.append(int(logits[-1].argmax()))
        x = model.embed_tokens(torch.tensor(tokens[-1:]))
        _, hidden_all = prefill(model, x, start=len(context), context=context)
        hidden = hidden_all[-1]
    return tokens, torch.stack(logits)
