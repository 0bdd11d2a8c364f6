"""π0.5 as plain data: the sizes of its three towers, its presets, and what they cost. No framework is imported here."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields, is_dataclass, replace
from typing import Any, TypeVar, get_type_hints

import numpy as np

from oxygen.core.errors import CheckpointError

NORM_EPS = 1e-6
ROPE_THETA = 10_000.0
TIME_MIN_PERIOD = 0.004
TIME_MAX_PERIOD = 4.0
STEMS = ("patch", "conv")
LARGEST = {"horizon": 1000, "num_steps": 1000, "num_cameras": 64, "depth": 1000, "vocab_size": 2**24}
LARGEST_OTHER = 65_536
"""Bounds of the sizes: a slip of the keyboard must not ask for all the memory there is."""


@dataclass(frozen=True, slots=True)
class GemmaSpec:
    """A stack of Gemma blocks. Attention width (num_heads · head_dim) need not equal `width`."""

    width: int
    depth: int
    mlp_width: int
    num_heads: int
    num_kv_heads: int
    head_dim: int

    @property
    def attention_width(self) -> int:
        return self.num_heads * self.head_dim

    @property
    def kv_width(self) -> int:
        return self.num_kv_heads * self.head_dim

    def projections_of_a_layer(self) -> int:
        """Weights of one layer's linear maps (q, k, v, output, gate, up, down); none has a bias."""
        return self.width * (2 * self.attention_width + 2 * self.kv_width + 3 * self.mlp_width)


@dataclass(frozen=True, slots=True)
class VisionSpec:
    """The image tower. stem `patch`: one convolution of patch size and stride (SigLIP). stem `conv`: halving 3x3
    convolutions with GELU between them (learns from little data; patch_size must be a power of two)."""

    width: int
    depth: int
    mlp_width: int
    num_heads: int
    patch_size: int
    image_size: int
    stem: str = "patch"

    @property
    def head_dim(self) -> int:
        return self.width // self.num_heads

    @property
    def tokens_per_image(self) -> int:
        return (self.image_size // self.patch_size) ** 2

    def stem_channels(self) -> tuple[int, ...]:
        """Channels after each convolution of the stem, input channels (3) first."""
        if self.stem == "patch":
            return (3, self.width)
        num_halvings = self.patch_size.bit_length() - 1
        return (3, *(max(8, self.width >> (num_halvings - 1 - i)) for i in range(num_halvings - 1)), self.width)

    def num_stem_parameters(self) -> int:
        kernel = self.patch_size if self.stem == "patch" else 3
        channels = self.stem_channels()
        return sum(kernel * kernel * a * b + b for a, b in itertools.pairwise(channels))


@dataclass(frozen=True, slots=True)
class Pi05Spec:
    """One π0.5. Lengths are tokens; `max_token_len` bounds the prompt; action_dim is the width the model works in.

    num_cameras: image slots of the prefix (fewer may be valid in a frame). num_steps: flow steps where a task names
    none.
    """

    trunk: GemmaSpec
    expert: GemmaSpec
    vision: VisionSpec
    vocab_size: int
    action_dim: int
    horizon: int
    max_token_len: int
    num_steps: int = 10
    num_cameras: int = 3

    def __post_init__(self) -> None:
        _check(self)

    @property
    def tokens_per_image(self) -> int:
        return self.vision.tokens_per_image

    @property
    def max_context_len(self) -> int:
        """Tokens of a prefix with every camera and a full prompt."""
        return self.num_cameras * self.tokens_per_image + self.max_token_len

    def kv_bytes_per_token(self, dtype_bytes: int) -> int:
        """Bytes of K and V that one token leaves behind in all layers."""
        return 2 * self.trunk.depth * self.trunk.kv_width * dtype_bytes

    def parameter_counts(self) -> dict[str, int]:
        """Trained numbers: `vision` (with the projector), `trunk` (with the tied table), `expert`, `heads`, `total`."""
        v, t, e = self.vision, self.trunk, self.expert
        block = 4 * (v.width * v.width + v.width) + 2 * v.width * v.mlp_width + v.mlp_width + v.width + 4 * v.width
        vision = v.num_stem_parameters() + v.tokens_per_image * v.width + v.depth * block + 2 * v.width
        vision += v.width * t.width + t.width
        trunk = self.vocab_size * t.width + t.depth * (t.projections_of_a_layer() + 2 * t.width) + t.width
        modulation = (2 * e.depth + 1) * (e.width + 1) * 3 * e.width
        expert = e.depth * e.projections_of_a_layer() + modulation
        heads = 2 * (e.width * e.width + e.width) + 2 * e.width * self.action_dim + e.width + self.action_dim
        counts = {"vision": vision, "trunk": trunk, "expert": expert, "heads": heads}
        return counts | {"total": sum(counts.values())}

    def num_parameters(self) -> int:
        return self.parameter_counts()["total"]

    def to_dict(self) -> dict[str, Any]:
        """Plain nested data for config.json."""
        return asdict(self)

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Pi05Spec:
        """Inverse of to_dict. Unknown, missing and wrongly typed fields raise CheckpointError naming them."""
        return _build(cls, data, "")


def flow_times(num_steps: int) -> tuple[float, ...]:
    """Times of the flow steps, 1 (noise) down to about 1 / num_steps, accumulated in float32 as openpi does it.

    Not recomputed as 1 - i / num_steps: the time embedding multiplies the last bit's difference by up to 1571.
    """
    dt = np.float32(flow_dt(num_steps))
    times, t = [], np.float32(1.0)
    while t >= -dt / 2:
        times.append(float(t))
        t = t + dt
    return tuple(times)


def flow_dt(num_steps: int) -> float:
    """Time between two flow steps (negative), a float32 value: x ← x + dt · velocity."""
    return float(np.float32(-1.0 / num_steps))


_T = TypeVar("_T")


def _build(cls: type[_T], data: Any, path: str) -> _T:
    if not isinstance(data, Mapping):
        raise CheckpointError(f"π0.5 configuration: {path.rstrip('.') or 'all of it'} must be a map, got {data!r:.80}")
    names = {f.name for f in fields(cls)}  # type: ignore[arg-type]
    unknown, missing = sorted(map(str, set(data) - names)), sorted(names - set(data))
    if unknown or missing:
        parts = [
            f"{word} {', '.join(path + n for n in found)}"
            for word, found in (("unknown", unknown), ("missing", missing))
            if found
        ]
        raise CheckpointError(f"π0.5 configuration: {'; '.join(parts)}")
    hints = get_type_hints(cls)
    values: dict[str, Any] = {}
    for name, value in data.items():
        kind = hints[name]
        if isinstance(kind, type) and is_dataclass(kind):
            value = _build(kind, value, f"{path}{name}.")
        elif type(value) is not kind:
            raise CheckpointError(f"π0.5 configuration: {path}{name} must be {kind.__name__}, got {value!r:.80}")
        values[name] = value
    return cls(**values)


def _check(spec: Pi05Spec) -> None:
    """Refuse sizes that cannot work, naming the field."""

    def need(good: bool, message: str) -> None:
        if not good:
            raise CheckpointError(f"π0.5 configuration: {message}")

    parts: tuple[tuple[str, Any], ...] = (
        ("", spec),
        ("trunk.", spec.trunk),
        ("expert.", spec.expert),
        ("vision.", spec.vision),
    )
    for prefix, part in parts:
        for f in fields(part):
            value = getattr(part, f.name)
            if f.type == "int":
                most = LARGEST.get(f.name, LARGEST_OTHER)
                need(
                    type(value) is int and 1 <= value <= most,
                    f"{prefix}{f.name} must be from 1 to {most}, got {value!r:.80}",
                )
    t, e, v = spec.trunk, spec.expert, spec.vision
    for name in ("depth", "num_heads", "num_kv_heads", "head_dim"):
        a, b = getattr(t, name), getattr(e, name)
        need(a == b, f"expert.{name} must equal trunk.{name} (the expert reads the trunk's K and V), got {b} and {a}")
    need(
        t.num_heads % t.num_kv_heads == 0,
        f"trunk.num_heads ({t.num_heads}) must be a multiple of num_kv_heads ({t.num_kv_heads})",
    )
    need(t.head_dim % 2 == 0, f"trunk.head_dim must be even for RoPE, got {t.head_dim}")
    need(e.width % 2 == 0, f"expert.width must be even for the time embedding, got {e.width}")
    need(v.width % v.num_heads == 0, f"vision.width ({v.width}) must be a multiple of vision.num_heads ({v.num_heads})")
    need(
        v.image_size % v.patch_size == 0,
        f"vision.image_size ({v.image_size}) must be a multiple of patch_size ({v.patch_size})",
    )
    need(v.stem in STEMS, f"vision.stem must be one of {', '.join(STEMS)}, got {v.stem!r:.80}")
    if v.stem == "conv":
        power_of_two = v.patch_size >= 2 and v.patch_size & (v.patch_size - 1) == 0
        need(power_of_two, f"vision.patch_size must be a power of two for stem conv, got {v.patch_size}")


_PI05 = Pi05Spec(
    trunk=GemmaSpec(width=2048, depth=18, mlp_width=16384, num_heads=8, num_kv_heads=1, head_dim=256),
    expert=GemmaSpec(width=1024, depth=18, mlp_width=4096, num_heads=8, num_kv_heads=1, head_dim=256),
    vision=VisionSpec(width=1152, depth=27, mlp_width=4304, num_heads=16, patch_size=14, image_size=224),
    vocab_size=257_152,
    action_dim=32,
    horizon=50,
    max_token_len=200,
)
_MEDIUM = Pi05Spec(
    trunk=GemmaSpec(width=1024, depth=12, mlp_width=4096, num_heads=8, num_kv_heads=1, head_dim=128),
    expert=GemmaSpec(width=512, depth=12, mlp_width=2048, num_heads=8, num_kv_heads=1, head_dim=128),
    vision=VisionSpec(width=768, depth=12, mlp_width=3072, num_heads=12, patch_size=14, image_size=224),
    vocab_size=32_768,
    action_dim=32,
    horizon=50,
    max_token_len=200,
)
_TINY = Pi05Spec(
    trunk=GemmaSpec(width=128, depth=4, mlp_width=512, num_heads=4, num_kv_heads=1, head_dim=32),
    expert=GemmaSpec(width=96, depth=4, mlp_width=256, num_heads=4, num_kv_heads=1, head_dim=32),
    vision=VisionSpec(width=96, depth=2, mlp_width=192, num_heads=3, patch_size=16, image_size=64, stem="conv"),
    vocab_size=1024,
    action_dim=32,
    horizon=10,
    max_token_len=64,
)

PRESETS: dict[str, Pi05Spec] = {
    "pi05": _PI05,
    "pi05-medium": _MEDIUM,
    "pi05-medium-56px": replace(_MEDIUM, vision=replace(_MEDIUM.vision, image_size=56)),
    "pi05-tiny": _TINY,
}
"""Named sizes. `dataclasses.replace(PRESETS[name], horizon=10)` changes one of them."""
