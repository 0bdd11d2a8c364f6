"""The image tower: pictures to tokens of the trunk's width. No pooling, no class token, no scaling of the result."""

from __future__ import annotations

import itertools

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from oxygen.layers.torch.linear import Linear
from oxygen.layers.torch.vit import VitBlock
from oxygen.models.pi05.spec import NORM_EPS, VisionSpec


class Stem(nn.Module):
    """pixels [n, 3, S, S] -> [n, tokens, width], row-major; in float32 whatever the tower's type."""

    def __init__(self, spec: VisionSpec, device: torch.device | str) -> None:
        super().__init__()
        channels = spec.stem_channels()
        kernel, stride, padding = (spec.patch_size, spec.patch_size, 0) if spec.stem == "patch" else (3, 2, 1)
        self.convolutions = nn.ModuleList(
            nn.Conv2d(a, b, kernel, stride, padding, dtype=torch.float32, device=device)
            for a, b in itertools.pairwise(channels)
        )

    def forward(self, pixels: Tensor) -> Tensor:
        x = pixels
        for i, convolution in enumerate(self.convolutions):
            x = convolution(x if i == 0 else F.gelu(x, approximate="tanh"))
        return x.flatten(2).transpose(1, 2)


class VisionTower(nn.Module):
    """pixels [n, 3, S, S] float32 in [-1, 1] -> [n, tokens_per_image, trunk width]. Pictures do not see each other."""

    def __init__(self, spec: VisionSpec, out_width: int, dtype: torch.dtype, device: torch.device | str) -> None:
        super().__init__()
        self.dtype = dtype
        self.stem = Stem(spec, device)
        self.positions = nn.Parameter(
            torch.empty(spec.tokens_per_image, spec.width, dtype=torch.float32, device=device)
        )
        self.blocks = nn.ModuleList(
            VitBlock(spec.width, spec.num_heads, spec.mlp_width, NORM_EPS, dtype=dtype, device=device)
            for _ in range(spec.depth)
        )
        self.norm = nn.LayerNorm(spec.width, eps=NORM_EPS, dtype=dtype, device=device)
        self.projector = Linear(spec.width, out_width, bias=True, dtype=dtype, device=device)

    def forward(self, pixels: Tensor) -> Tensor:
        embedded = (self.stem(pixels) + self.positions).to(self.dtype)
        num_images, num_tokens, width = embedded.shape
        x = embedded.reshape(num_images * num_tokens, width)
        for block in self.blocks:
            x = block(x, num_tokens)
        return self.projector(self.norm(x)).view(num_images, num_tokens, -1)
