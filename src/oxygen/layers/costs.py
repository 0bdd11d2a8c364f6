"""What a stage must at least do, from a model's sizes: operations and bytes. Families declare theirs in `costs.py`.

Counted as the work needs it: weights are read once per forward pass, the live K and V once per forward pass, nothing is
copied. A multiplication with its addition is two operations. What is small (norms, activations, phases) is left out, so
times made of these are true lower bounds.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

DTYPE_BYTES = {"float32": 4, "bfloat16": 2}
"""Bytes of a number, by the types that weights, K and V may have."""


@dataclass(frozen=True, slots=True)
class Ceilings:
    """What a machine reached in products of the model's own widths: operations and bytes per second."""

    flops_per_s: float
    bytes_per_s: float


@dataclass(frozen=True, slots=True)
class Cost:
    """Operations and bytes of one stage."""

    flops: float
    bytes: float

    def __add__(self, other: Cost) -> Cost:
        return Cost(self.flops + other.flops, self.bytes + other.bytes)

    def times(self, count: float) -> Cost:
        return Cost(self.flops * count, self.bytes * count)

    def compute_floor_ms(self, ceilings: Ceilings) -> float:
        return 1e3 * self.flops / ceilings.flops_per_s

    def bandwidth_floor_ms(self, ceilings: Ceilings) -> float:
        return 1e3 * self.bytes / ceilings.bytes_per_s

    def floor_ms(self, ceilings: Ceilings) -> float:
        """The higher of the two: no order of work can be quicker."""
        return max(self.compute_floor_ms(ceilings), self.bandwidth_floor_ms(ceilings))


class StageCosts(Protocol):
    """A family's stages at one set of sizes and one number type. Lengths are tokens."""

    def vision(self, num_images: int) -> Cost:
        """Pictures to tokens of the trunk's width."""

    def prefill(self, num_images: int, num_tokens: int) -> Cost:
        """One context of `num_tokens` (image tokens among them), pictures included."""

    def act(self, expert: str, context_len: int, num_steps: int) -> Cost:
        """One chunk of an expert, what it prepares once per frame included."""

    def decode(self, batch: int, context_len: int, tail_len: float) -> Cost:
        """One round of `batch` texts, each on a context of its own, head included."""


class Stack(Protocol):
    """Sizes of a stack of transformer layers with K and V."""

    @property
    def width(self) -> int: ...

    @property
    def depth(self) -> int: ...

    @property
    def attention_width(self) -> int: ...

    @property
    def kv_width(self) -> int: ...

    def projections_of_a_layer(self) -> int: ...


def attention(stack: Stack, num_pairs: float) -> float:
    """Operations of all layers on `num_pairs` of a query and a key."""
    return 4 * num_pairs * stack.attention_width * stack.depth


def decode_round(
    stack: Stack, vocab_size: int, kv_bytes_per_token: int, dtype_bytes: int, batch: int, keys: float
) -> Cost:
    """One token of `batch` texts, each with `keys` keys of its own, through all layers and the table."""
    weights = stack.projections_of_a_layer() * stack.depth + vocab_size * stack.width
    flops = batch * (2 * weights + attention(stack, keys))
    return Cost(flops, dtype_bytes * weights + batch * keys * kv_bytes_per_token)
