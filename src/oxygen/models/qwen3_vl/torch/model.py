"""Qwen3-VL with its action heads: pictures and tokens in, K and V, hidden states and logits out. Maths only."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from oxygen.core.inputs import ContextInputs
from oxygen.layers.experts import check_reads
from oxygen.layers.torch.context import ContextTokens
from oxygen.layers.torch.linear import PackedLinear, can_pack
from oxygen.layers.torch.rope import Rope, multi_axis_phases
from oxygen.models.heads.torch import build_head
from oxygen.models.qwen3_vl.layout import lay_out
from oxygen.models.qwen3_vl.spec import Qwen3VLSpec
from oxygen.models.qwen3_vl.torch.trunk import Trunk
from oxygen.models.qwen3_vl.torch.vision import VisionTower

Picture = tuple[Tensor, Tensor]
"""One picture's tokens [T, width] and DeepStack sets [taps, T, width]."""


class Qwen3VL(nn.Module):
    """Tokens are flattened: N counts all tokens of all sequences of a call. heads: action experts by name, in order.

    Inference: call `prepare_for_inference()` once after loading, then run under `torch.inference_mode()`. is_causal:
    whether a token of a context sees only those before it.
    """

    is_causal = True

    def __init__(self, spec: Qwen3VLSpec, dtype: torch.dtype, device: torch.device | str) -> None:
        super().__init__()
        self.spec = spec
        self.dtype = dtype
        self.vision = VisionTower(spec.vision, spec.trunk.width, dtype, device)
        self.table = nn.Parameter(torch.empty(spec.vocab_size, spec.trunk.width, dtype=dtype, device=device))
        self.trunk = Trunk(spec.trunk, dtype, device)
        for head in spec.heads:
            check_reads(head.shape(), spec.trunk.depth, spec.trunk.width, spec.vocab_size)
        self.heads = nn.ModuleDict({head.name: build_head(head, dtype, device) for head in spec.heads})
        self.is_prepared = False
        self._packed_head: PackedLinear | None = None
        self._axes = torch.tensor(spec.trunk.axes(), device=device)

    @property
    def device(self) -> torch.device:
        return self.table.device

    @property
    def experts(self) -> Mapping[str, Any]:
        """Action experts by name; the first is the one meant where none is named."""
        return dict(self.heads.items())

    def refusal(self, inputs: ContextInputs) -> str | None:
        """Why these inputs cannot be a context of this model; None where they can."""
        side = self.spec.vision.token_pixels
        for image in inputs.images:
            good = image.ndim == 3 and image.shape[2] == 3 and image.dtype == np.uint8
            if not good or image.shape[0] % side or image.shape[1] % side or 0 in image.shape:
                expected = f"[height, width, 3] uint8 in multiples of {side}"
                return f"picture: expected {expected}, got {list(image.shape)} {image.dtype}"
        if len(inputs.token_ids) != inputs.num_tokens:
            return f"context: {len(inputs.token_ids)} tokens, declared {inputs.num_tokens}"
        try:
            lay_out(inputs.token_ids, self._grids(inputs.images), self.spec.image_id)
        except ValueError as error:
            return f"context: {error}"
        return None

    def embed_images(self, pixels: Tensor) -> tuple[Tensor, Tensor]:
        """pixels [n, 3, H, W] float32 in [-1, 1] -> [n, T, width] and the DeepStack sets [taps, n, T, width]."""
        return self.vision(pixels)

    def embed_pictures(self, images: Sequence[np.ndarray]) -> list[Picture]:
        """Pictures [H, W, 3] uint8; those of one size go through the tower together."""
        embedded: list[Picture | None] = [None] * len(images)
        sizes: dict[tuple[int, ...], list[int]] = {}
        for i, image in enumerate(images):
            sizes.setdefault(image.shape, []).append(i)
        for members in sizes.values():
            stacked = torch.from_numpy(np.stack([images[i] for i in members])).to(self.device)
            pixels = stacked.permute(0, 3, 1, 2).to(torch.float32).mul_(2.0 / 255.0).sub_(1.0)
            tokens, deep = self.embed_images(pixels)
            for at, i in enumerate(members):
                embedded[i] = tokens[at], deep[:, at]
        return [picture for picture in embedded if picture is not None]

    def lay_out(self, inputs: ContextInputs, pictures: Sequence[Picture]) -> ContextTokens:
        """A context's tokens, ready for the trunk. pictures: of `embed_pictures`, of these inputs."""
        layout = lay_out(inputs.token_ids, self._grids(inputs.images), self.spec.image_id)
        x = self.embed_tokens(torch.tensor(inputs.token_ids, dtype=torch.int64, device=self.device))
        additions = None
        if pictures:
            additions = x.new_zeros((len(self.spec.vision.taps), *x.shape))
            for (start, stop), (tokens, deep) in zip(layout.images, pictures, strict=True):
                x[start:stop] = tokens
                additions[:, start:stop] = deep
        positions = torch.from_numpy(layout.positions).to(self.device)
        return ContextTokens(x, positions, layout.shift, layout.open_from, additions)

    def embed_tokens(self, ids: Tensor) -> Tensor:
        """ids [n] -> [n, width], unscaled."""
        return F.embedding(ids, self.table)

    def rope(self, positions: Tensor) -> Rope:
        """positions [N, 3], or [N] where the three axes agree -> phases in float32. Make them once per call."""
        return multi_axis_phases(positions, self._axes, self.spec.trunk.head_dim, self.spec.trunk.rope_theta)

    def logits(self, hidden: Tensor) -> Tensor:
        """hidden [n, width], after the final norm -> [n, vocab] float32, by the token table."""
        packed = self._packed_head
        return (F.linear(hidden, self.table) if packed is None else packed(hidden)).float()

    def example(self, max_tokens: int) -> ContextInputs:
        """Made-up inputs of at most `max_tokens`, to warm up with."""
        side, tokens = self.spec.vision.token_pixels, 4
        has_image = max_tokens >= tokens + 4
        image = np.zeros((2 * side, 2 * side, 3), dtype=np.uint8)
        ids = (self.spec.vision_start_id, *(self.spec.image_id,) * tokens, self.spec.vision_end_id)
        ids = (*(ids if has_image else ()), *(0,) * min(2, max_tokens))
        return ContextInputs((image,) * has_image, ids, len(ids))

    def _grids(self, images: Sequence[np.ndarray]) -> list[tuple[int, int]]:
        side = self.spec.vision.token_pixels
        return [(image.shape[0] // side, image.shape[1] // side) for image in images]

    @torch.no_grad()
    def prepare_for_inference(self) -> Qwen3VL:
        """Freeze the weights and lay them out for the device; plain weights of packed maps are given up on the way."""
        self.requires_grad_(False).eval()
        if not self.is_prepared:
            self.is_prepared = True
            self.vision.prepare()
            self.trunk.prepare()
            for head in self.heads.values():
                head.prepare_for_inference()
            if can_pack(self.table):
                self._packed_head = PackedLinear(self.table)
        return self


def build(
    spec: Qwen3VLSpec,
    device: torch.device | str = "cpu",
    dtype: torch.dtype = torch.float32,
    *,
    seed: int | None = 0,
) -> Qwen3VL:
    """A Qwen3-VL of these sizes with its heads. seed: of random weights; None leaves them unset, for a loader."""
    if dtype not in (torch.float32, torch.bfloat16):
        raise ValueError(f"dtype: expected torch.float32 or torch.bfloat16, got {dtype}")
    model = Qwen3VL(spec, dtype, device)
    if seed is not None:
        initialize(model, seed)
    return model


@torch.no_grad()
def initialize(model: Qwen3VL, seed: int) -> None:
    """Random weights: maps 1/√fan-in, those that end a residual branch smaller by √(2 · depth), norms unity."""
    generator = torch.Generator(device=model.device).manual_seed(seed)
    depth = {"vision": model.spec.vision.depth, "trunk": model.spec.trunk.depth}
    for name, parameter in model.named_parameters():
        part = name.split(".")[0]
        if name == "table" or name.endswith(("positions", "learned")):
            parameter.normal_(0.0, parameter.shape[-1] ** -0.5 if name == "table" else 0.02, generator=generator)
        elif "norm" in name and parameter.dim() == 1 and name.endswith("weight"):
            parameter.fill_(1.0)
        elif name.endswith("bias"):
            parameter.zero_()
        else:
            std = parameter[0].numel() ** -0.5
            if name.endswith(("out.weight", "down.weight")) and part in depth:
                std *= (2 * depth[part]) ** -0.5
            parameter.normal_(0.0, std, generator=generator)
