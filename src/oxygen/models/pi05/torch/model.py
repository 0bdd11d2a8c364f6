"""π0.5: image tower, trunk, action expert, flow head, text head. Maths only; storage and masks belong to `attend`."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from oxygen.core.inputs import ContextInputs
from oxygen.layers.torch.attention import Attend
from oxygen.layers.torch.context import ContextTokens
from oxygen.layers.torch.linear import Linear, PackedLinear, can_pack
from oxygen.layers.torch.rope import Rope, rope_phases
from oxygen.models.pi05.spec import ROPE_THETA, Pi05Spec, flow_times
from oxygen.models.pi05.torch.conditions import Modulation, StepConditions, TimeConditioning
from oxygen.models.pi05.torch.expert import NAME, ActionExpert
from oxygen.models.pi05.torch.gemma import Expert, Trunk
from oxygen.models.pi05.torch.vision import VisionTower


class Pi05(nn.Module):
    """One π0.5. Tokens are flattened: N counts all tokens of all sequences of a call.

    Inference: call `prepare_for_inference()` once after loading, then run under `torch.inference_mode()`. Training: use
    the same methods before that call; `modulation_at` gives every sample its own flow time. is_causal: whether a token
    of a context sees only those before it.
    """

    is_causal = False

    def __init__(self, spec: Pi05Spec, dtype: torch.dtype, device: torch.device | str) -> None:
        super().__init__()
        self.spec = spec
        self.dtype = dtype
        self.vision = VisionTower(spec.vision, spec.trunk.width, dtype, device)
        self.table = nn.Parameter(torch.empty(spec.vocab_size, spec.trunk.width, dtype=dtype, device=device))
        self.trunk = Trunk(spec.trunk, dtype, device)
        self.expert = Expert(spec.expert, dtype, device)
        self.time = TimeConditioning(spec.expert, device)
        place: dict[str, Any] = {"bias": True, "dtype": torch.float32, "device": device}
        self.action_in = Linear(spec.action_dim, spec.expert.width, **place)
        self.action_out = Linear(spec.expert.width, spec.action_dim, **place)
        self.is_prepared = False
        self._packed_head: PackedLinear | None = None
        self._conditions: dict[int, StepConditions] = {}

    @property
    def device(self) -> torch.device:
        return self.table.device

    @property
    def experts(self) -> Mapping[str, ActionExpert]:
        """Action experts by name."""
        return {NAME: ActionExpert(self)}

    def refusal(self, inputs: ContextInputs) -> str | None:
        """Why these inputs cannot be a context of this model; None where they can."""
        size = self.spec.vision.image_size
        for image in inputs.images:
            if image.shape != (size, size, 3) or image.dtype != np.uint8:
                return f"picture: expected [{size}, {size}, 3] uint8, got {list(image.shape)} {image.dtype}"
        count = len(inputs.images) * self.spec.tokens_per_image + len(inputs.token_ids)
        return None if count == inputs.num_tokens else f"context: {count} tokens, declared {inputs.num_tokens}"

    def embed_pictures(self, images: Sequence[np.ndarray]) -> list[Tensor]:
        """Pictures [S, S, 3] uint8 -> the tokens of each, [tokens_per_image, trunk width]."""
        if not images:
            return []
        stacked = torch.from_numpy(np.stack(images)).to(self.device)
        return list(self.embed_images(stacked.permute(0, 3, 1, 2).to(torch.float32).mul_(2.0 / 255.0).sub_(1.0)))

    def lay_out(self, inputs: ContextInputs, pictures: Sequence[Tensor]) -> ContextTokens:
        """A context's tokens, ready for the trunk: pictures before words. pictures: of `embed_pictures`."""
        words = self.embed_tokens(torch.tensor(inputs.token_ids, dtype=torch.int64, device=self.device))
        x = torch.cat((*pictures, words))
        return ContextTokens(x, torch.arange(len(x), device=self.device), open_from=len(x))

    def example(self, max_tokens: int) -> ContextInputs:
        """Made-up inputs of at most `max_tokens`, to warm up with."""
        size, tokens = self.spec.vision.image_size, self.spec.tokens_per_image
        num_images = max(0, min(2, (max_tokens - 1) // tokens))
        num_ids = min(8, max_tokens - num_images * tokens)
        images = tuple(np.zeros((size, size, 3), dtype=np.uint8) for _ in range(num_images))
        return ContextInputs(images, (0,) * num_ids, num_images * tokens + num_ids)

    def embed_images(self, pixels: Tensor) -> Tensor:
        """pixels [n, 3, S, S] float32 in [-1, 1] -> [n, tokens_per_image, trunk width]."""
        return self.vision(pixels)

    def embed_tokens(self, ids: Tensor) -> Tensor:
        """ids [n] -> [n, trunk width]: rows of the table times √width."""
        return F.embedding(ids, self.table) * math.sqrt(self.spec.trunk.width)

    def rope(self, positions: Tensor) -> Rope:
        """positions [N] integers -> phases in float32. Make them once per call."""
        return rope_phases(positions, self.spec.trunk.head_dim, ROPE_THETA)

    def logits(self, hidden: Tensor) -> Tensor:
        """hidden [n, width] -> [n, vocab] float32, by the unscaled table."""
        packed = self._packed_head
        return (F.linear(hidden, self.table) if packed is None else packed(hidden)).float()

    def conditions(self, num_steps: int) -> StepConditions:
        """Modulation of every norm for all flow steps, in one product; made once per num_steps when prepared."""
        found = self._conditions.get(num_steps)
        if found is None:
            times = flow_times(num_steps)
            gain, shift, gate = self.time(torch.tensor(times, dtype=torch.float32, device=self.device))
            found = StepConditions(times, gain, shift, gate.to(self.dtype))
            if self.is_prepared:  # the weights are frozen
                self._conditions[num_steps] = found
        return found

    def modulation_at(self, times: Tensor) -> Modulation:
        """times [B] -> modulation for B sequences of `horizon` action tokens, each with its own time. Not cached."""
        gain, shift, gate = (m.transpose(0, 1).repeat_interleave(self.spec.horizon, dim=1) for m in self.time(times))
        return Modulation(gain, shift, gate.to(self.dtype))

    def velocity(self, x_t: Tensor, conditions: StepConditions, step: int, rope: Rope, attend: Attend) -> Tensor:
        """x_t [B, H, A] float32 -> dx/dt [B, H, A] float32 at the time of `step`. rope: of all B · H action tokens."""
        return self.velocity_at(x_t, conditions.of_step(step), rope, attend)

    def velocity_at(self, x_t: Tensor, modulation: Modulation, rope: Rope, attend: Attend) -> Tensor:
        """Like `velocity`, for a modulation of one's own."""
        x = self.action_in(x_t.flatten(0, 1)).to(self.dtype)
        hidden = self.expert(x, modulation, rope, attend)
        return self.action_out(hidden.float()).view(x_t.shape)

    @torch.no_grad()
    def prepare_for_inference(self) -> Pi05:
        """Freeze the weights and lay them out for the device.

        The plain weights of packed maps are given up on the way, so save before. The token table is the exception: it
        stays for the embedding beside its packed copy for the head. From then on the elements of q and k heads come in
        `neighbour_order`.
        """
        self.requires_grad_(False).eval()
        self._conditions.clear()
        self.is_prepared = True
        layers: list[Any] = list(self.trunk.layers)  # what holds modules forgets their types
        expert_layers: list[Any] = list(self.expert.layers)
        blocks: list[Any] = list(self.vision.blocks)
        for layer in layers:
            layer.projection.prepare(split=layer is layers[-1])
            layer.attention_norm.prepare()
            layer.mlp_norm.prepare()
        self.trunk.norm.prepare()
        for layer in expert_layers:
            layer.projection.prepare()
        for layer in (*layers, *expert_layers):
            layer.out.pack()
            layer.mlp.pack()
        for block in blocks:
            for linear in (block.qkv, block.out, block.mlp.up, block.mlp.down):
                linear.pack()
        self.vision.projector.pack()
        if self._packed_head is None and can_pack(self.table):
            self._packed_head = PackedLinear(self.table)
        return self


def build(
    spec: Pi05Spec,
    device: torch.device | str = "cpu",
    dtype: torch.dtype = torch.float32,
    *,
    seed: int | None = 0,
) -> Pi05:
    """A π0.5 of these sizes. seed: of its random weights; None leaves them unset, for a loader that fills every one.

    dtype is float32 or bfloat16. In bfloat16 these stay float32, as in openpi: RMSNorm weights, the modulation,
    patch and position embeddings, the time maps and the action maps.
    """
    if dtype not in (torch.float32, torch.bfloat16):
        raise ValueError(f"dtype: expected torch.float32 or torch.bfloat16, got {dtype}")
    model = Pi05(spec, dtype, device)
    if seed is not None:
        initialize(model, seed)
    return model


@torch.no_grad()
def initialize(model: Pi05, seed: int) -> None:
    """Random weights fit to train from: maps 1/√fan-in, output maps smaller by √(2 · depth), gates one, norms unity."""
    generator = torch.Generator(device=model.device).manual_seed(seed)
    depth = {
        "vision": model.spec.vision.depth,
        "trunk": model.spec.trunk.depth,
        "expert": model.spec.expert.depth,
    }
    for name, parameter in model.named_parameters():
        part, leaf = name.split(".")[0], name.rsplit(".", 1)[-1]
        if name == "table":
            parameter.normal_(0.0, model.spec.trunk.width**-0.5, generator=generator)
        elif name == "vision.positions":
            parameter.normal_(0.0, 0.02, generator=generator)
        elif "norm" in name:
            parameter.fill_(1.0 if part == "vision" and leaf == "weight" else 0.0)
        elif leaf == "bias":
            parameter.zero_()
        else:
            std = math.prod(parameter.shape[1:]) ** -0.5
            if name.endswith(("out.weight", "down.weight")) and part in depth:
                std *= (2 * depth[part]) ** -0.5
            parameter.normal_(0.0, 0.1 * std if name == "time.modulation.weight" else std, generator=generator)
    model.time.modulation.bias.view(model.time.num_norms, 3, -1)[:, 2].fill_(1.0)  # type: ignore[union-attr]
