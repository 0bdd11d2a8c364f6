"""What the runner must compute, computed without any storage: whole padded sequences, masks, recomputation."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from oxygen.core.inputs import ContextInputs
from oxygen.core.tasks import Sampling
from oxygen.models.pi05.spec import PRESETS, Pi05Spec
from oxygen.models.pi05.torch import Pi05, build
from oxygen.runtime.torch.sampler import SamplingRows, sample


def small_spec(num_kv_heads: int = 1) -> Pi05Spec:
    """One KV head: of a size with compiled attention. Two: of one without."""
    tiny, head_dim = PRESETS["pi05-tiny"], 32 if num_kv_heads == 1 else 16
    return replace(
        tiny,
        trunk=replace(tiny.trunk, width=64, mlp_width=128, num_kv_heads=num_kv_heads, head_dim=head_dim, depth=3),
        expert=replace(tiny.expert, width=48, mlp_width=96, num_kv_heads=num_kv_heads, head_dim=head_dim, depth=3),
        vision=replace(tiny.vision, width=48, mlp_width=96, depth=1, image_size=32),
        vocab_size=211,
        horizon=5,
        max_token_len=24,
    )


@torch.no_grad()
def lively_model(spec: Pi05Spec, seed: int = 0) -> Pi05:
    """Random weights that do not merely echo the last token (a tied head on near-identity layers does)."""
    model = build(spec, "cpu", torch.float32, seed=seed)
    for name, parameter in model.named_parameters():
        if name.startswith(("trunk", "expert")) and name.endswith(("out.weight", "down.weight")):
            parameter.mul_(6.0)
        elif name == "time.modulation.weight":
            parameter.mul_(5.0)
    return model


def make_inputs(spec: Pi05Spec, seed: int, num_images: int, num_ids: int) -> ContextInputs:
    rng = np.random.default_rng(seed)
    size = spec.vision.image_size
    images = tuple(rng.integers(0, 256, (size, size, 3), dtype=np.uint8) for _ in range(num_images))
    ids = tuple(int(i) for i in rng.integers(2, spec.vocab_size, num_ids))
    return ContextInputs(images, ids, num_images * spec.tokens_per_image + num_ids)


def attention(q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Tensor:
    """q [N, Hq, D] on k, v [M, Hkv, D]; mask [N, M] is true where a query may look."""
    group = q.shape[1] // k.shape[1]
    k, v = k.repeat_interleave(group, 1), v.repeat_interleave(group, 1)
    logits = torch.einsum("nhd,mhd->hnm", q, k) * q.shape[-1] ** -0.5
    weights = logits.masked_fill(~mask, float("-inf")).softmax(-1).nan_to_num(0.0)
    return torch.einsum("hnm,mhd->nhd", weights, v)


class Reference:
    """One context on a model that was not prepared for inference."""

    def __init__(self, model: Pi05, inputs: ContextInputs) -> None:
        self.model, self.inputs, self.spec = model, inputs, model.spec
        spec = model.spec
        num_slots = spec.num_cameras * spec.tokens_per_image + spec.max_token_len
        valid = torch.zeros(num_slots, dtype=torch.bool)
        embedded = torch.randn(num_slots, spec.trunk.width, generator=torch.Generator().manual_seed(9))
        for i, image in enumerate(inputs.images):
            # the last camera slot is used before the middle one, so that there is a hole between them
            slot = i if i == 0 or len(inputs.images) == spec.num_cameras else spec.num_cameras - 1
            place = slice(slot * spec.tokens_per_image, (slot + 1) * spec.tokens_per_image)
            pixels = torch.from_numpy(image).permute(2, 0, 1)[None].float() / 255.0 * 2.0 - 1.0
            embedded[place] = model.embed_images(pixels)[0]
            valid[place] = True
        text = spec.num_cameras * spec.tokens_per_image
        ids = torch.tensor(inputs.token_ids)
        embedded[text : text + len(ids)] = model.embed_tokens(ids)
        valid[text : text + len(ids)] = True
        self.embedded, self.valid, self.last = embedded, valid, text + len(ids) - 1

    def run(self, tail: Sequence[int] = ()) -> tuple[Tensor, list[tuple[Tensor, Tensor]]]:
        """The whole sequence in one masked pass -> hidden state of the last real token, K and V of all layers."""
        x = self.embedded
        valid, size = self.valid, self.valid.shape[0]
        if tail:
            x = torch.cat((x, self.model.embed_tokens(torch.tensor(tail))))
            valid = torch.cat((valid, torch.ones(len(tail), dtype=torch.bool)))
        total = x.shape[0]
        mask = valid[None].expand(total, total).clone()
        mask[:, size:] &= torch.arange(total)[:, None] >= torch.arange(size, total)[None]
        layers: list[tuple[Tensor, Tensor]] = []

        def attend(layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            layers.append((k, v))
            return attention(q, k, v, mask)

        hidden = self.model.trunk(x, self.model.rope((valid.cumsum(0) - 1).clamp(min=0)), attend)
        return hidden[total - 1 if tail else self.last], layers

    def logits(self, tail: Sequence[int] = ()) -> Tensor:
        return self.model.logits(self.run(tail)[0][None])[0]

    def text(self, count: int, prompt: Sequence[int] = (), sampling: Sampling | None = None) -> list[int]:
        """`count` tokens, the whole sequence computed anew for each."""
        tail: list[int] = list(prompt)
        for position in range(count):
            rows = SamplingRows.of([sampling or Sampling()], torch.device("cpu"))
            tail += sample(self.logits(tail)[None].clone(), rows, torch.tensor([position])).tolist()
        return tail[len(prompt) :]

    def actions(self, noise: np.ndarray, num_steps: int) -> np.ndarray:
        """The flow loop written out, on the padded prefix."""
        _, layers = self.run()
        valid, horizon = self.valid, noise.shape[0]
        mask = torch.cat((valid, torch.ones(horizon, dtype=torch.bool)))[None].expand(horizon, -1)

        def attend(layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            context_k, context_v = layers[layer]
            return attention(q, torch.cat((context_k, k)), torch.cat((context_v, v)), mask)

        x = torch.from_numpy(noise.copy())[None]
        rope = self.model.rope(int(valid.sum()) + torch.arange(horizon))
        for step in range(num_steps):
            x = x - self.model.velocity(x, self.model.conditions(num_steps), step, rope, attend) / num_steps
        return x[0].numpy()
