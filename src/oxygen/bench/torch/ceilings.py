"""What this machine can do at best, measured: the rate of matrix products, the bandwidth of matrix-vector products."""

from __future__ import annotations

import time
from collections.abc import Callable
from statistics import median
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from oxygen.layers.costs import Ceilings
from oxygen.layers.torch.linear import PackedLinear, can_pack

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}
VECTOR_BYTES = 256 * 2**20
"""Weights of the matrix-vector product: far more than any cache holds."""
REPEATS = 5


class Product:
    """x [rows, in_width] times a matrix of that width, in the better of the layouts that there are."""

    def __init__(self, rows: int, in_width: int, out_width: int, dtype: torch.dtype, device: str) -> None:
        x = torch.randn(rows, in_width, device=device).to(dtype)
        weight = torch.empty(out_width, in_width, dtype=dtype, device=device).fill_(0.01)
        self._device = device
        self.flops = 2 * rows * in_width * out_width
        self.bytes = weight.numel() * dtype.itemsize
        layouts: list[Callable[[], Tensor]] = [lambda: F.linear(x, weight)]
        if can_pack(weight):
            packed = PackedLinear(weight)
            layouts.append(lambda: packed(x))
        self._run = min(layouts, key=self._seconds_of)

    def seconds(self) -> float:
        """Median time of a few calls."""
        return self._seconds_of(self._run)

    def _seconds_of(self, product: Callable[[], Tensor]) -> float:
        # On a GPU calls are queued ten at a time, so that queueing does not count.
        is_gpu = self._device.startswith("cuda")
        calls = 10 if is_gpu else 1
        product()
        times = []
        for _ in range(REPEATS):
            started = time.perf_counter()
            for _ in range(calls):
                product()
            if is_gpu:
                torch.cuda.synchronize(self._device)
            times.append((time.perf_counter() - started) / calls)
        return median(times)


class CeilingMeter:
    """Both ceilings at the model's own widths and `num_tokens` rows.

    They are measured again and again beside the stages: on a machine shared with others the bandwidth of one minute is
    not that of the next.
    """

    @torch.inference_mode()
    def __init__(self, spec: Any, num_tokens: int, dtype: str, device: str) -> None:
        kind, t, v = DTYPES[dtype], spec.trunk, spec.vision
        shapes = [(t.width, 2 * t.mlp_width), (t.mlp_width, t.width), (v.width, v.mlp_width)]
        products = [Product(num_tokens, a, b, kind, device) for a, b in shapes]
        self._matrix = max(products, key=lambda p: p.flops / p.seconds())
        self._vector = Product(1, t.width, VECTOR_BYTES // kind.itemsize // t.width, kind, device)
        self.found: list[Ceilings] = []

    @torch.inference_mode()
    def sample(self) -> Ceilings:
        """Measure both once more; `found` keeps all."""
        matrix, vector = self._matrix, self._vector
        self.found.append(Ceilings(matrix.flops / matrix.seconds(), vector.bytes / vector.seconds()))
        return self.found[-1]

    def typical(self) -> Ceilings:
        """Medians of what was found."""
        return Ceilings(median(c.flops_per_s for c in self.found), median(c.bytes_per_s for c in self.found))
