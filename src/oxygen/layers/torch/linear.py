"""Linear maps that train as plain weights and infer from weights packed for the processor.

On a CPU the plain layout is far from what the machine can do: the library's own float32 and bfloat16 paths reach a
quarter to three quarters of what oneDNN reaches with weights that it laid out itself, and float32 with two rows costs
twice one row. `pack()` trades the plain weight for the packed one (memory is not doubled; the module then only infers).
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from oxygen.layers.torch import native

PACKED_DTYPES = (torch.float32, torch.bfloat16)
_ROWS_HINT = 16
ACTIVATIONS = {"none": ("none", ""), "gelu": ("gelu", "tanh"), "silu": ("swish", "")}
"""oneDNN's names of what a product may take along, and their forms."""


def can_pack(weight: Tensor) -> bool:
    """Whether this build of torch has oneDNN's packed product for this weight."""
    if weight.device.type != "cpu" or weight.dtype not in PACKED_DTYPES or not torch.backends.mkldnn.is_available():
        return False
    if not hasattr(torch.ops.mkldnn, "_linear_pointwise"):
        return False
    return weight.dtype == torch.float32 or torch.ops.mkldnn._is_mkldnn_bf16_supported()


class PackedLinear:
    """x @ weightᵀ + bias with `weight` in oneDNN's own layout. x is [N, in_width]; strided rows are copied first, for
    oneDNN would fall back to its reference code on them.

    A GELU or SiLU is taken along in registers: alone it costs more than a third of the product. oneDNN's sums and
    products with another tensor are not used: done in place on the result they are as fast, and the call is dearer. Up
    to MOST_ROWS rows compiled kernels (`native`) read the same packed weight, and they take those along.
    """

    __slots__ = ("_few", "_product", "bias", "weight")

    def __init__(self, weight: Tensor, bias: Tensor | None = None) -> None:
        weight = weight.detach().contiguous()
        self.weight = torch.ops.mkldnn._reorder_linear_weight(weight, _ROWS_HINT)
        self.bias = None if bias is None else bias.detach()
        self._product = torch.ops.mkldnn._linear_pointwise.default  # naming the overload halves the cost of a call
        self._few = native.few_rows(weight, self.weight, self.bias)

    def __call__(self, x: Tensor, activation: str = "none") -> Tensor:
        """activation(x @ weightᵀ + bias); activation is a key of ACTIVATIONS."""
        if self._few is not None and x.shape[0] <= native.MOST_ROWS:
            return self._few(x, native.ACTIVATIONS[activation])
        name, form = ACTIVATIONS[activation]
        return self._product(x.contiguous(), self.weight, self.bias, name, [], form)

    def add(self, x: Tensor, residual: Tensor) -> Tensor:
        """residual + the map."""
        if self._few is not None and x.shape[0] <= native.MOST_ROWS:
            return self._few(x, residual=residual)
        return self(x).add_(residual)

    def gated(self, x: Tensor, activation: str, factor: PackedLinear) -> Tensor:
        """activation(the map) · (another map of the same shape, without bias)."""
        if self._few is not None and factor._few is not None and x.shape[0] <= native.MOST_ROWS:
            return self._few(x, native.ACTIVATIONS[activation], factor._few)
        return factor(x).mul_(self(x, activation))


class Linear(nn.Module):
    """x [N, in_width] -> [N, out_width]. Several maps of one input are one `Linear` (q, k, v; gate and up)."""

    def __init__(
        self,
        in_width: int,
        out_width: int,
        *,
        bias: bool = False,
        dtype: torch.dtype | None = None,
        device: torch.device | str | None = None,
    ) -> None:
        super().__init__()
        self.weight: nn.Parameter | None = nn.Parameter(torch.empty(out_width, in_width, dtype=dtype, device=device))
        self.bias = nn.Parameter(torch.empty(out_width, dtype=dtype, device=device)) if bias else None
        self.packed: PackedLinear | None = None

    def forward(self, x: Tensor) -> Tensor:
        if self.packed is not None:
            return self.packed(x)
        assert self.weight is not None, "plain weights are given up for packed ones only"
        return F.linear(x, self.weight, self.bias)

    def gelu(self, x: Tensor) -> Tensor:
        """GELU (tanh form) of the map."""
        return F.gelu(self(x), approximate="tanh") if self.packed is None else self.packed(x, "gelu")

    def add(self, x: Tensor, residual: Tensor) -> Tensor:
        """residual [N, out_width] + the map."""
        return residual + self(x) if self.packed is None else self.packed.add(x, residual)

    def pack(self) -> None:
        """Give up the plain weight for the packed one, where that is possible."""
        if self.packed is None and self.weight is not None and can_pack(self.weight):
            self.packed = PackedLinear(self.weight, self.bias)
            self.weight = None
