"""The compiled kernels (`layers/native`) on tensors. Each has a twin in library calls next to its caller."""

from __future__ import annotations

import ctypes

import torch
from torch import Tensor

from oxygen.layers.native.build import kernels

HEAD_DIMS = (32, 64, 128, 256)
"""Head sizes that the attention kernel is compiled for."""
LANES = 16
"""Widths must be a multiple of this."""
MOST_ROWS = 60
"""Rows up to which `FewRows` is quicker than the library's product (measured: by a tenth to a fifth); the kernel has no
room for more.
"""
ACTIVATIONS = {"none": 0, "gelu": 1, "silu": 2}
TILE = 64
"""Outputs whose packed weights lie side by side."""


def takes(x: Tensor) -> bool:
    """Whether the kernels can work on x: for inference, on a CPU that they could be compiled for."""
    return (
        x.device.type == "cpu"
        and (x.dtype == torch.bfloat16 or x.dtype == torch.float32)
        and x.shape[-1] % LANES == 0
        and not torch.is_grad_enabled()
        and kernels() is not None
    )


def rms_norm(x: Tensor, gain: Tensor, shift: Tensor | None, floor: float) -> Tensor:
    """x / hypot(‖x‖, floor) · gain + shift over the last axis, in one pass. gain and shift: float32, [width], dense."""
    x, gain, width = x.contiguous(), gain.contiguous(), x.shape[-1]
    out, library = torch.empty_like(x), kernels()
    assert library is not None, "ask `takes` first"
    library.oxygen_rms_norm(
        x.dtype == torch.bfloat16,
        x.data_ptr(),
        gain.data_ptr(),
        None if shift is None else shift.data_ptr(),
        out.data_ptr(),
        x.numel() // width,
        width,
        floor,
    )
    return out


def rotate(x: Tensor, turns: Tensor) -> Tensor:
    """x [N, heads, head_dim], heads side by side, turned by complex turns [N, 1, head_dim / 2]; the result is dense."""
    if x.stride(2) != 1 or x.stride(1) != x.shape[2]:
        x = x.contiguous()
    out, library = torch.empty(x.shape, dtype=x.dtype), kernels()
    assert library is not None, "ask `takes` first"
    is_bfloat16 = x.dtype == torch.bfloat16
    library.oxygen_rotate(is_bfloat16, x.data_ptr(), turns.data_ptr(), out.data_ptr(), *x.shape, x.stride(0))
    return out


class FewRows:
    """Products of at most MOST_ROWS rows with a weight that oneDNN has packed, read where it lies; so it is kept."""

    __slots__ = ("_bias", "_dtype", "_is_bfloat16", "_packed", "_product", "_widths", "weights")

    def __init__(self, weight: Tensor, packed: Tensor, bias: Tensor | None) -> None:
        library = kernels()
        assert library is not None, "made by `few_rows` only"
        self._product, self._packed, self.weights = library.oxygen_product, packed, torch.ops.mkldnn.data_ptr(packed)
        self._bias = None if bias is None else bias.contiguous()
        self._dtype, self._is_bfloat16 = weight.dtype, weight.dtype == torch.bfloat16
        self._widths = (weight.shape[1], weight.shape[0])

    def __call__(
        self, x: Tensor, activation: int = 0, factor: FewRows | None = None, residual: Tensor | None = None
    ) -> Tensor:
        """activation(x · weights + bias) · (x · factor's weights) + residual, rounded once: x [rows, in_width] ->
        [rows, out_width]. activation: 0 none, 1 GELU in its tanh form, 2 SiLU. factor: of the same shape, no bias.
        """
        assert x.dtype == self._dtype and x.shape[1] == self._widths[0], "x: of the weight's type and width"
        x, rows = x.contiguous(), x.shape[0]
        out = torch.empty(rows, self._widths[1], dtype=x.dtype)
        added = None if residual is None else residual.contiguous()
        self._product(
            self._is_bfloat16,
            self.weights,
            None if self._bias is None else self._bias.data_ptr(),
            None if factor is None else factor.weights,
            x.data_ptr(),
            None if added is None else added.data_ptr(),
            out.data_ptr(),
            rows,
            *self._widths,
            activation,
        )
        return out


@torch.inference_mode()
def few_rows(weight: Tensor, packed: Tensor, bias: Tensor | None = None) -> FewRows | None:
    """`FewRows` of a weight [out, in] and its packed form; None where the kernels or the expected layout are missing.

    The layout is oneDNN's affair and may change, so the first and the last tile are compared with the weight.
    """
    out_width, in_width = weight.shape
    num_tiles, size, library = -(-out_width // TILE), weight.element_size(), kernels()
    per_input = 4 // size  # inputs that lie next to each other
    if (
        library is None
        or (bias is not None and bias.dtype != weight.dtype)
        or in_width % per_input
        or not hasattr(torch.ops.mkldnn, "_nbytes")
    ):
        return None
    if weight.dtype == torch.bfloat16 and not library.oxygen_has_bfloat16_products():
        return None
    if torch.ops.mkldnn._nbytes(packed) != num_tiles * TILE * in_width * size:
        return None
    start = torch.ops.mkldnn.data_ptr(packed)
    for first in {0, (num_tiles - 1) * TILE}:
        rows = weight[first : first + TILE].reshape(-1, in_width // per_input, per_input).transpose(0, 1)
        memory = (ctypes.c_char * (TILE * in_width * size)).from_address(start + first * in_width * size)
        held = torch.frombuffer(memory, dtype=weight.dtype).view(-1, TILE, per_input)
        if not torch.equal(held[:, : rows.shape[1]], rows):
            return None
    return FewRows(weight, packed, bias)
