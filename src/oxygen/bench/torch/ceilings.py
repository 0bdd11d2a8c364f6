"""What this machine can do at best, measured: the rate of matrix products and the bandwidth of matrix-vector
products."""

from __future__ import annotations

import time
from collections.abc import Callable
from statistics import median

import torch
import torch.nn.functional as F
from torch import Tensor

from oxygen.bench.costs import Ceilings
from oxygen.layers.torch.linear import PackedLinear, can_pack
from oxygen.models.pi05.spec import Pi05Spec

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}
VECTOR_BYTES = 256 * 2**20
"""Weights of the matrix-vector product: far more than any cache holds."""


@torch.inference_mode()
def measure_ceilings(spec: Pi05Spec, num_tokens: int, dtype: str, device: str, seconds: float = 1.0) -> Ceilings:
    """Measure both, at the model's own widths and `num_tokens` rows. The best layout counts: it is a ceiling."""
    kind = DTYPES[dtype]
    t, v = spec.trunk, spec.vision
    shapes = [(t.width, 2 * t.mlp_width), (t.mlp_width, t.width), (v.width, v.mlp_width)]
    rates = [_matrix_rate(num_tokens, a, b, kind, device, seconds / 6) for a, b in shapes]
    return Ceilings(max(rates), _vector_bandwidth(t.width, kind, device, seconds / 4))


def _matrix_rate(rows: int, in_width: int, out_width: int, dtype: torch.dtype, device: str, seconds: float) -> float:
    """Operations per second of [rows, in] x [in, out]."""
    x = torch.randn(rows, in_width, device=device).to(dtype)
    weight = torch.randn(out_width, in_width, device=device).to(dtype)
    return 2 * rows * in_width * out_width / _best(x, weight, device, seconds)


def _vector_bandwidth(in_width: int, dtype: torch.dtype, device: str, seconds: float) -> float:
    """Bytes per second of one row times a large matrix of the trunk's width."""
    x = torch.randn(1, in_width, device=device).to(dtype)
    weight = torch.randn(VECTOR_BYTES // dtype.itemsize // in_width, in_width, device=device).to(dtype)
    return weight.numel() * dtype.itemsize / _best(x, weight, device, seconds)


def _best(x: Tensor, weight: Tensor, device: str, seconds: float) -> float:
    """Seconds of x · weightᵀ in the better of the layouts that there are."""
    products: list[Callable[[], Tensor]] = [lambda: F.linear(x, weight)]
    if can_pack(weight):
        packed = PackedLinear(weight)
        products.append(lambda: packed(x))
    return min(_seconds_of(product, device, seconds) for product in products)


def _seconds_of(product: Callable[[], Tensor], device: str, seconds: float) -> float:
    """Median time of one call. On a GPU calls are queued ten at a time, so that queueing does not count."""
    repeats = 10 if device.startswith("cuda") else 1

    def run() -> float:
        started = time.perf_counter()
        for _ in range(repeats):
            product()
        if device.startswith("cuda"):
            torch.cuda.synchronize(device)
        return (time.perf_counter() - started) / repeats

    run()
    times = [run() for _ in range(3)]
    while sum(times) * repeats < seconds:
        times.append(run())
    return median(times)
