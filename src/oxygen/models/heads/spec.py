"""Heads as plain data: sizes, what they read, and what they cost. No framework is imported here."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any

from oxygen.checkpoint.fields import read_fields
from oxygen.core.errors import CheckpointError
from oxygen.layers.experts import ExpertShape, Reads, Stage, Tap

TIME_WIDTH = 256
MAX_POSITIONS = 1024
NUM_LEARNED = 32
MAX_STEPS = 1000
TOPOLOGIES = ("all_cross", "interleaved")


def _linear(a: int, b: int) -> int:
    return a * b + b


@dataclass(frozen=True, slots=True, kw_only=True)
class PiSpec:
    """Layer-wise flow head of StarVLA (QwenPI, PI_v3): block l reads the output of trunk layer l.

    topology `all_cross`: every block looks at the context. `interleaved`: odd blocks look at the head's own tokens
    instead. The same weights load under both, so a checkpoint must say which. projects: features go through a norm
    and a map to `width` first (PI_v3). state_dim: of a continuous state token, 0 without. last_stage: `residual`
    where the last layer is read before the trunk's final norm (trained with transformers 4.57), `normed` after it.
    """

    name: str
    feature_width: int
    depth: int
    width: int
    num_heads: int
    horizon: int
    action_dim: int
    topology: str = "all_cross"
    projects: bool = False
    state_dim: int = 0
    num_steps: int = 4
    last_stage: Stage = "residual"
    num_learned: int = NUM_LEARNED

    def __post_init__(self) -> None:
        _check(self)
        if self.topology not in TOPOLOGIES:
            raise CheckpointError(f"head {self.name}: topology {self.topology!r}, expected {' or '.join(TOPOLOGIES)}")
        if not self.projects and self.feature_width != self.width:
            raise CheckpointError(
                f"head {self.name}: without projection, features of {self.width}, not {self.feature_width}"
            )

    def shape(self) -> ExpertShape:
        """What it declares."""
        last = self.depth - 1
        taps = tuple(Tap(i, self.last_stage if i == last else "residual") for i in range(self.depth))
        reads = Reads(hidden=taps, width=self.feature_width)
        state_dim = self.state_dim if self.topology == "interleaved" else 0  # all_cross: no token sees another
        return ExpertShape(self.name, "flow", self.horizon, self.action_dim, self.num_steps, 1, reads, state_dim)

    def num_parameters(self) -> int:
        w = self.width
        block = _linear(w, 2 * w) + 4 * _linear(w, w) + _linear(w, 4 * w) + _linear(4 * w, w)
        count = self.depth * block + _common_parameters(self, w)
        if self.projects:
            count += self.depth * (2 * self.feature_width + _linear(self.feature_width, w))
        return count + _linear(w, w) + _linear(w, self.action_dim)


@dataclass(frozen=True, slots=True, kw_only=True)
class Gr00tSpec:
    """Flow DiT of StarVLA's GR00T head: even blocks look at the last hidden states, odd ones at the head's own
    tokens. state_dim: of its state token, 0 for a head that was trained without one.
    """

    name: str
    feature_width: int
    trunk_depth: int
    depth: int
    width: int
    num_heads: int
    inner_width: int
    horizon: int
    action_dim: int
    state_dim: int
    num_steps: int = 4
    stage: Stage = "residual"
    num_learned: int = NUM_LEARNED

    def __post_init__(self) -> None:
        _check(self)

    def shape(self) -> ExpertShape:
        """What it declares."""
        reads = Reads(hidden=(Tap(self.trunk_depth - 1, self.stage),), width=self.feature_width)
        return ExpertShape(self.name, "flow", self.horizon, self.action_dim, self.num_steps, 1, reads, self.state_dim)

    def num_parameters(self) -> int:
        w, inner = self.width, self.inner_width
        block = _linear(w, 2 * w) + 2 * _linear(w, w) + _linear(w, 4 * w) + _linear(4 * w, w)
        keys = sum(2 * _linear(w if i % 2 else self.feature_width, w) for i in range(self.depth))
        out = _linear(w, 2 * w) + _linear(w, inner) + _linear(inner, inner) + _linear(inner, self.action_dim)
        return self.depth * block + keys + out + _common_parameters(self, w)


@dataclass(frozen=True, slots=True, kw_only=True)
class OftSpec:
    """One-shot head: a small network on the hidden states of the last `horizon` query tokens of the prompt."""

    name: str
    feature_width: int
    trunk_depth: int
    width: int
    token_id: int
    horizon: int
    action_dim: int
    num_blocks: int = 2
    stage: Stage = "residual"

    def __post_init__(self) -> None:
        _check(self)

    def shape(self) -> ExpertShape:
        """What it declares."""
        tap = Tap(self.trunk_depth - 1, self.stage)
        reads = Reads(hidden=(tap,), width=self.feature_width, token_id=self.token_id, num_tokens=self.horizon)
        return ExpertShape(self.name, "one_shot", self.horizon, self.action_dim, 1, 1, reads)

    def num_parameters(self) -> int:
        w = self.width
        count = 2 * self.feature_width + _linear(self.feature_width, w) + 2 * w + _linear(w, self.action_dim)
        return count + self.num_blocks * (2 * w + _linear(w, w))


HeadSpec = PiSpec | Gr00tSpec | OftSpec
KINDS: dict[str, type[PiSpec] | type[Gr00tSpec] | type[OftSpec]] = {"pi": PiSpec, "gr00t": Gr00tSpec, "oft": OftSpec}


def head_to_dict(head: HeadSpec) -> dict[str, Any]:
    """Plain data with the kind of head under `kind`."""
    kind = next(name for name, cls in KINDS.items() if isinstance(head, cls))
    return {"kind": kind, **asdict(head)}


def head_from_dict(data: Mapping[str, Any]) -> HeadSpec:
    """Inverse of head_to_dict. Raises CheckpointError naming what is unknown, missing or of a wrong type."""
    kind = data.get("kind")
    if not isinstance(kind, str) or kind not in KINDS:
        raise CheckpointError(f"head: kind {kind!r}, expected one of {', '.join(KINDS)}")
    given = {key: value for key, value in data.items() if key != "kind"}
    return read_fields(KINDS[kind], given, f"head of kind {kind}")


def _common_parameters(head: PiSpec | Gr00tSpec, width: int) -> int:
    """Time, action and state encoders, learned tokens, positions of the actions."""
    inner = getattr(head, "inner_width", width)
    state = _linear(head.state_dim, inner) + _linear(inner, width) if head.state_dim else 0
    action = _linear(head.action_dim, width) + _linear(2 * width, width) + _linear(width, width)
    time = _linear(TIME_WIDTH, width) + _linear(width, width)
    return time + action + state + head.num_learned * width + MAX_POSITIONS * width


def _check(head: Any) -> None:
    for f in fields(head):
        value = getattr(head, f.name)
        least = 0 if f.name in ("state_dim", "token_id", "num_learned") else 1
        if type(value) is int and value < least:
            raise CheckpointError(f"head {head.name}: {f.name} must be at least {least}, got {value}")
    if not head.name.isidentifier():
        raise CheckpointError(f"head {head.name!r}: a name of letters, digits and _ is expected")
    if getattr(head, "num_steps", 1) > MAX_STEPS:
        raise CheckpointError(f"head {head.name}: num_steps {head.num_steps} of at most {MAX_STEPS}")
    if hasattr(head, "num_heads") and head.width % head.num_heads:
        raise CheckpointError(f"head {head.name}: width {head.width} in {head.num_heads} heads")
    if head.horizon > MAX_POSITIONS:
        raise CheckpointError(f"head {head.name}: horizon {head.horizon} of at most {MAX_POSITIONS}")
