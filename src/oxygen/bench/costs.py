"""The two floors of every stage, from the sizes of the model: operations over the matrix rate, bytes over the
bandwidth.

Counted as the work needs it: weights are read once per forward pass, the live K and V once per forward pass, nothing is
copied. A multiplication with its addition is two operations. What is small (norms, activations, phases) is left out, so
these are true lower bounds.
"""

from __future__ import annotations

from dataclasses import dataclass

from oxygen.models.pi05.spec import GemmaSpec, Pi05Spec

DTYPE_BYTES = {"float32": 4, "bfloat16": 2}


@dataclass(frozen=True, slots=True)
class Ceilings:
    """What the machine reached in products of the model's own widths: operations and bytes per second."""

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


def vision(spec: Pi05Spec, num_images: int, dtype_bytes: int) -> Cost:
    """Pictures to tokens of the trunk's width."""
    v, tokens = spec.vision, spec.tokens_per_image
    weights = v.depth * (4 * v.width**2 + 2 * v.width * v.mlp_width) + v.width * spec.trunk.width
    attention = 4 * tokens**2 * v.width * v.depth
    stem = 2 * tokens * v.num_stem_parameters()
    flops = num_images * (2 * tokens * weights + attention + stem)
    return Cost(flops, dtype_bytes * weights + 4 * v.num_stem_parameters())


def prefill(spec: Pi05Spec, num_images: int, num_tokens: int, dtype_bytes: int) -> Cost:
    """One context of `num_tokens` (image tokens among them), pictures included. The last layer's queries are one
    token's."""
    t = spec.trunk
    whole = t.projections_of_a_layer() * (t.depth - 1)
    last_kv = 2 * t.width * t.kv_width
    attention = 4 * num_tokens**2 * t.attention_width * (t.depth - 1) + 4 * num_tokens * t.attention_width
    last = 2 * (t.projections_of_a_layer() - last_kv)
    flops = 2 * num_tokens * (whole + last_kv) + attention + last
    weights = t.projections_of_a_layer() * t.depth
    written = num_tokens * spec.kv_bytes_per_token(dtype_bytes)
    return Cost(flops, dtype_bytes * weights + written) + vision(spec, num_images, dtype_bytes)


def act(spec: Pi05Spec, context_len: int, num_steps: int, dtype_bytes: int) -> Cost:
    """All flow steps of one chunk. Time conditioning is left out: it is computed once and kept."""
    e, h = spec.expert, spec.horizon
    weights = e.projections_of_a_layer() * e.depth
    small = 2 * e.width * spec.action_dim
    flops = 2 * h * (weights + small) + _attention(e, h, context_len + h)
    read = dtype_bytes * weights + 4 * small + context_len * spec.kv_bytes_per_token(dtype_bytes)
    return Cost(flops, read).times(num_steps)


def decode(spec: Pi05Spec, batch: int, context_len: int, tail_len: float, dtype_bytes: int) -> Cost:
    """One round of `batch` texts, each on a context of its own, head included."""
    t = spec.trunk
    weights = t.projections_of_a_layer() * t.depth + spec.vocab_size * t.width
    keys = context_len + tail_len
    flops = batch * (2 * weights + _attention(t, 1, keys))
    return Cost(flops, dtype_bytes * weights + batch * keys * spec.kv_bytes_per_token(dtype_bytes))


def _attention(t: GemmaSpec, num_queries: int, num_keys: float) -> float:
    return 4 * num_queries * num_keys * t.attention_width * t.depth
