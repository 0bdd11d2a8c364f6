"""Qwen3-VL as plain data: sizes of its two towers, its presets, and what they cost. No framework is imported here."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields, replace
from typing import Any

from oxygen.checkpoint.fields import read_fields
from oxygen.core.errors import CheckpointError
from oxygen.models.heads.spec import Gr00tSpec, HeadSpec, OftSpec, PiSpec, head_from_dict, head_to_dict

NORM_EPS = 1e-6
CHANNELS, FRAMES = 3, 2  # a still picture is doubled to two frames


@dataclass(frozen=True, slots=True)
class QwenSpec:
    """The text layers. rope_sections: rotary frequencies that follow time, rows and columns; together half a head."""

    width: int
    depth: int
    mlp_width: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    rope_theta: float = 5_000_000.0
    rope_sections: tuple[int, int, int] = (24, 20, 20)

    @property
    def attention_width(self) -> int:
        return self.num_heads * self.head_dim

    @property
    def kv_width(self) -> int:
        return self.num_kv_heads * self.head_dim

    def projections_of_a_layer(self) -> int:
        """Weights of one layer's linear maps; none has a bias."""
        return self.width * (2 * self.attention_width + 2 * self.kv_width + 3 * self.mlp_width)

    def axes(self) -> tuple[int, ...]:
        """The axis of each rotary frequency: 0 time, 1 rows, 2 columns, interleaved as t, h, w, t, h, w, ..."""
        _, rows, columns = self.rope_sections
        return tuple(
            1 if i % 3 == 1 and i < 3 * rows else 2 if i % 3 == 2 and i < 3 * columns else 0
            for i in range(self.head_dim // 2)
        )


@dataclass(frozen=True, slots=True)
class QwenVisionSpec:
    """The image tower. merge: patches per side that become one token. table_side: of the learned positions, a square
    that is interpolated. taps: layers whose output goes into the text layers 0, 1, ... (DeepStack).
    """

    width: int
    depth: int
    mlp_width: int
    num_heads: int
    taps: tuple[int, ...]
    patch_size: int = 16
    merge: int = 2
    table_side: int = 48

    @property
    def head_dim(self) -> int:
        return self.width // self.num_heads

    @property
    def token_pixels(self) -> int:
        """Pixels per side of one token."""
        return self.patch_size * self.merge

    @property
    def patch_numbers(self) -> int:
        return CHANNELS * FRAMES * self.patch_size**2

    def num_parameters(self, out_width: int) -> int:
        w, merged = self.width, self.width * self.merge**2
        block = 4 * (w * w + w) + 2 * w * self.mlp_width + self.mlp_width + w + 4 * w
        merger = merged * merged + merged + merged * out_width + out_width
        count = self.patch_numbers * w + w + self.table_side**2 * w + self.depth * block + merger + 2 * w
        return count + len(self.taps) * (merger + 2 * merged)


@dataclass(frozen=True, slots=True)
class Qwen3VLSpec:
    """One Qwen3-VL. max_context_len bounds a prompt with its pictures, in tokens. image_id: the token that stands once
    for every token of a picture. max_images: pictures that a context may have.
    """

    trunk: QwenSpec
    vision: QwenVisionSpec
    vocab_size: int
    image_id: int
    vision_start_id: int
    vision_end_id: int
    eos_ids: tuple[int, ...]
    max_context_len: int = 768
    max_images: int = 3
    heads: tuple[HeadSpec, ...] = ()

    def __post_init__(self) -> None:
        _check(self)

    def kv_bytes_per_token(self, dtype_bytes: int) -> int:
        """Bytes of K and V that one token leaves behind in all layers."""
        return 2 * self.trunk.depth * self.trunk.kv_width * dtype_bytes

    def parameter_counts(self) -> dict[str, int]:
        """Trained numbers: `vision`, `trunk` (text layers), `table`, each head by its name, `total`."""
        t = self.trunk
        trunk = t.depth * (t.projections_of_a_layer() + 2 * t.width + 2 * t.head_dim) + t.width
        counts = {
            "vision": self.vision.num_parameters(t.width),
            "trunk": trunk,
            "table": self.vocab_size * t.width,
            **{head.name: head.num_parameters() for head in self.heads},
        }
        return counts | {"total": sum(counts.values())}

    def num_parameters(self) -> int:
        return self.parameter_counts()["total"]

    def to_dict(self) -> dict[str, Any]:
        """Plain nested data for a configuration file."""
        return asdict(replace(self, heads=())) | {"heads": [head_to_dict(head) for head in self.heads]}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Qwen3VLSpec:
        """Inverse of to_dict. Unknown, missing and wrongly typed fields raise CheckpointError naming them."""
        heads = tuple(head_from_dict(head) for head in data.get("heads", ()))
        return replace(read_fields(cls, {**data, "heads": ()}, "Qwen3-VL configuration"), heads=heads)


def _check(spec: Qwen3VLSpec) -> None:
    """Refuse sizes that cannot work, naming the field."""

    def need(good: bool, message: str) -> None:
        if not good:
            raise CheckpointError(f"Qwen3-VL configuration: {message}")

    t, v = spec.trunk, spec.vision
    for prefix, part in (("", spec), ("trunk.", t), ("vision.", v)):
        for f in fields(part):
            value = getattr(part, f.name)
            if type(value) is int and not f.name.endswith("_id"):
                need(value >= 1, f"{prefix}{f.name} must be at least 1, got {value}")
    need(t.rope_theta > 0, f"trunk.rope_theta must be above 0, got {t.rope_theta}")
    need(t.num_heads % t.num_kv_heads == 0, f"trunk.num_heads ({t.num_heads}) is no multiple of {t.num_kv_heads}")
    need(
        2 * sum(t.rope_sections) == t.head_dim,
        f"trunk.rope_sections {list(t.rope_sections)} must sum up to half of head_dim {t.head_dim}",
    )
    need(v.width % v.num_heads == 0 and v.head_dim % 4 == 0, f"vision.width ({v.width}) in {v.num_heads} heads")
    need(all(0 <= tap < v.depth for tap in v.taps), f"vision.taps {list(v.taps)} of {v.depth} layers")
    need(bool(spec.eos_ids), "eos_ids is empty: no text would end")
    need(len(v.taps) <= t.depth, f"vision.taps: {len(v.taps)} for {t.depth} text layers")
    names = [head.name for head in spec.heads]
    need(len(set(names)) == len(names), f"heads of the same name among {names}")
    for token in (spec.image_id, spec.vision_start_id, spec.vision_end_id, *spec.eos_ids):
        need(0 <= token < spec.vocab_size, f"token id {token} of a vocabulary of {spec.vocab_size}")


_IDS: dict[str, Any] = {
    "image_id": 151_655,
    "vision_start_id": 151_652,
    "vision_end_id": 151_653,
    "eos_ids": (151_645, 151_643),
    "vocab_size": 151_936,
}
_VISION = QwenVisionSpec(width=1024, depth=24, mlp_width=4096, num_heads=16, taps=(5, 11, 17))
_4B = Qwen3VLSpec(
    trunk=QwenSpec(width=2560, depth=36, mlp_width=9728, num_heads=32, num_kv_heads=8, head_dim=128),
    vision=_VISION,
    **_IDS,
)
_2B = replace(_4B, trunk=QwenSpec(width=2048, depth=28, mlp_width=6144, num_heads=16, num_kv_heads=8, head_dim=128))
_MEDIUM = Qwen3VLSpec(
    trunk=QwenSpec(width=1024, depth=12, mlp_width=4096, num_heads=8, num_kv_heads=2, head_dim=128),
    vision=QwenVisionSpec(width=768, depth=12, mlp_width=3072, num_heads=12, taps=(2, 5, 8)),
    vocab_size=32_768,
    image_id=32_763,
    vision_start_id=32_764,
    vision_end_id=32_765,
    eos_ids=(32_766, 32_767),
)
_TINY = Qwen3VLSpec(
    trunk=QwenSpec(width=64, depth=4, mlp_width=128, num_heads=4, num_kv_heads=2, head_dim=16, rope_sections=(4, 2, 2)),
    vision=QwenVisionSpec(width=48, depth=3, mlp_width=96, num_heads=3, taps=(0, 1), table_side=6),
    vocab_size=1024,
    image_id=1019,
    vision_start_id=1020,
    vision_end_id=1021,
    eos_ids=(1022, 1023),
    max_context_len=192,
)


def with_heads(spec: Qwen3VLSpec, names: tuple[str, ...]) -> Qwen3VLSpec:
    """The spec with heads of StarVLA's shapes (`pi`, `gr00t`, `oft`), in this order, sized for its trunk.

    On the 4B trunk they have the released sizes. OFT's query token is the first of the vocabulary's reserved ones here;
    a checkpoint says its own.
    """
    t = spec.trunk
    is_full = t.width >= 2048
    width, horizon = (1024, 16) if is_full else (max(t.width // 2, 32), 16 if t.width >= 512 else 6)
    head_dim = 64 if t.width >= 512 else 16
    small, inner = (768, 1024) if is_full else (width, width)
    common: dict[str, Any] = {"feature_width": t.width, "horizon": horizon, "action_dim": 7}
    made: dict[str, HeadSpec] = {
        "pi": PiSpec(
            name="pi", depth=t.depth, width=width, num_heads=width // head_dim, projects=True, state_dim=0, **common
        ),
        "gr00t": Gr00tSpec(
            name="gr00t",
            trunk_depth=t.depth,
            depth=16 if t.width >= 512 else 4,
            width=small,
            num_heads=small // head_dim,
            inner_width=inner,
            state_dim=7,
            **common,
        ),
        "oft": OftSpec(
            name="oft", trunk_depth=t.depth, width=2 * t.width, token_id=spec.image_id - 1, num_blocks=2, **common
        ),
    }
    if unknown := [name for name in names if name not in made]:
        raise CheckpointError(f"heads {unknown}: expected some of {', '.join(made)}")
    return replace(spec, heads=tuple(made[name] for name in names))


PRESETS: dict[str, Qwen3VLSpec] = {
    "qwen3vl-4b": _4B,
    "qwen3vl-2b": _2B,
    "qwen3vl-medium": _MEDIUM,
    "qwen3vl-tiny": _TINY,
}
"""Named sizes without heads; see `with_heads`."""
