"""What the stages of Qwen3-VL must at least do."""

from __future__ import annotations

from dataclasses import dataclass

from oxygen.layers.costs import Cost, attention, decode_round
from oxygen.models.heads.costs import chunk
from oxygen.models.qwen3_vl.spec import Qwen3VLSpec


@dataclass(frozen=True, slots=True)
class Qwen3VLCosts:
    """See `layers.costs.StageCosts`. image_side: pixels per side of a picture."""

    spec: Qwen3VLSpec
    dtype_bytes: int
    image_side: int

    def vision(self, num_images: int) -> Cost:
        v, out = self.spec.vision, self.spec.trunk.width
        patches = (self.image_side // v.patch_size) ** 2
        blocks = v.depth * (4 * v.width**2 + 2 * v.width * v.mlp_width) + v.patch_numbers * v.width
        merged = v.width * v.merge**2
        mergers = (1 + len(v.taps)) * (merged**2 + merged * out)
        scores = 4 * patches**2 * v.width * v.depth
        flops = num_images * (2 * patches * (blocks + mergers / v.merge**2) + scores)
        return Cost(flops, self.dtype_bytes * (blocks + mergers))

    def prefill(self, num_images: int, num_tokens: int) -> Cost:
        """Causal: half of the pairs of a query and a key. Where no head reads the last layer, its queries are one
        token's."""
        t = self.spec.trunk
        layer, last_kv = t.projections_of_a_layer(), 2 * t.width * t.kv_width
        flops = 2 * num_tokens * layer * t.depth + attention(t, num_tokens * (num_tokens + 1) / 2)
        if not self._is_last_read():
            flops -= 2 * (num_tokens - 1) * (layer - last_kv) + 2 * num_tokens * (num_tokens - 1) * t.attention_width
        written = num_tokens * self.spec.kv_bytes_per_token(self.dtype_bytes)
        return Cost(flops, self.dtype_bytes * layer * t.depth + written) + self.vision(num_images)

    def act(self, expert: str, context_len: int, num_steps: int) -> Cost:
        head = next(head for head in self.spec.heads if head.name == expert)
        return chunk(head, context_len, num_steps, self.dtype_bytes)

    def decode(self, batch: int, context_len: int, tail_len: float) -> Cost:
        s, size = self.spec, self.dtype_bytes
        return decode_round(s.trunk, s.vocab_size, s.kv_bytes_per_token(size), size, batch, context_len + tail_len)

    def _is_last_read(self) -> bool:
        last = self.spec.trunk.depth - 1
        return any(tap.layer == last for head in self.spec.heads for tap in head.shape().reads.hidden)
