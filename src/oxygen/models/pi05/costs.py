"""What the stages of π0.5 must at least do."""

from __future__ import annotations

from dataclasses import dataclass

from oxygen.layers.costs import Cost, attention, decode_round
from oxygen.models.pi05.spec import Pi05Spec


@dataclass(frozen=True, slots=True)
class Pi05Costs:
    """See `layers.costs.StageCosts`."""

    spec: Pi05Spec
    dtype_bytes: int

    def vision(self, num_images: int) -> Cost:
        v, tokens = self.spec.vision, self.spec.tokens_per_image
        weights = v.depth * (4 * v.width**2 + 2 * v.width * v.mlp_width) + v.width * self.spec.trunk.width
        scores = 4 * tokens**2 * v.width * v.depth
        stem = 2 * tokens * v.num_stem_parameters()
        flops = num_images * (2 * tokens * weights + scores + stem)
        return Cost(flops, self.dtype_bytes * weights + 4 * v.num_stem_parameters())

    def prefill(self, num_images: int, num_tokens: int) -> Cost:
        """The last layer's queries are one token's."""
        t = self.spec.trunk
        whole = t.projections_of_a_layer() * (t.depth - 1)
        last_kv = 2 * t.width * t.kv_width
        scores = 4 * num_tokens**2 * t.attention_width * (t.depth - 1) + 4 * num_tokens * t.attention_width
        last = 2 * (t.projections_of_a_layer() - last_kv)
        flops = 2 * num_tokens * (whole + last_kv) + scores + last
        weights = t.projections_of_a_layer() * t.depth
        written = num_tokens * self.spec.kv_bytes_per_token(self.dtype_bytes)
        return Cost(flops, self.dtype_bytes * weights + written) + self.vision(num_images)

    def act(self, expert: str, context_len: int, num_steps: int) -> Cost:
        """Time conditioning is left out: it is computed once and kept."""
        e, h = self.spec.expert, self.spec.horizon
        weights = e.projections_of_a_layer() * e.depth
        small = 2 * e.width * self.spec.action_dim
        flops = 2 * h * (weights + small) + attention(e, h * (context_len + h))
        read = self.dtype_bytes * weights + 4 * small + context_len * self.spec.kv_bytes_per_token(self.dtype_bytes)
        return Cost(flops, read).times(num_steps)

    def decode(self, batch: int, context_len: int, tail_len: float) -> Cost:
        s, size = self.spec, self.dtype_bytes
        return decode_round(s.trunk, s.vocab_size, s.kv_bytes_per_token(size), size, batch, context_len + tail_len)
