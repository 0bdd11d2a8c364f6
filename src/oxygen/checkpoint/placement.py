"""Where tensors of a file go, and the balance of a file: every tensor used or known to be unused, every place
filled.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from oxygen.checkpoint.headers import TensorInfo
from oxygen.checkpoint.headers import names as listed
from oxygen.core.errors import CheckpointError

WEIGHT_TYPES = ("F64", "F32", "F16", "BF16")
"""Stored types that weights may have. Eight-bit types need scales, which these formats have no place for."""


@dataclass(frozen=True, slots=True)
class Placement:
    """Tensor `source`, of this shape, fills the rows from `start` of `parameter`."""

    source: str
    parameter: str
    shape: tuple[int, ...]
    start: int = 0


@dataclass
class Faults:
    """What is wrong with a file, by its own names of tensors."""

    missing: list[str] = field(default_factory=list)
    unknown: list[str] = field(default_factory=list)
    misshapen: list[str] = field(default_factory=list)
    mistyped: list[str] = field(default_factory=list)

    def weigh(self, name: str, info: TensorInfo, shape: tuple[int, ...]) -> None:
        """Note a tensor that has another shape or a type that weights cannot have."""
        if info.shape != shape:
            self.misshapen.append(f"{name} {list(info.shape)}, expected {list(shape)}")
        if info.dtype not in WEIGHT_TYPES:
            self.mistyped.append(f"{name} {info.dtype}")

    def problems(self) -> list[str]:
        """One line per kind of fault, each with all the names concerned."""
        kinds = (
            ("missing tensors", self.missing),
            ("unknown tensors", self.unknown),
            ("tensors of a wrong shape", self.misshapen),
            ("tensors of a type that weights cannot have", self.mistyped),
        )
        return [f"{kind}: {listed(found, None)}" for kind, found in kinds if found]

    def check(self, where: str) -> None:
        """Raise CheckpointError with every fault unless the balance is even."""
        if problems := self.problems():
            raise CheckpointError(f"{where}: {'; '.join(problems)}")


@dataclass
class Balance(Faults):
    """placed: placement -> name in the file. unused: name -> why."""

    placed: dict[Placement, str] = field(default_factory=dict)
    tied: list[str] = field(default_factory=list)
    unused: dict[str, str] = field(default_factory=dict)


def balance(
    tensors: Mapping[str, TensorInfo],
    placements: Iterable[Placement],
    prefix: str = "",
    tied: Iterable[str] = (),
    unused: Mapping[str, str] | None = None,
) -> Balance:
    """Weigh names and shapes of a file against the placements. Nothing is read.

    prefix: what the file puts before a source, where it does so. tied: further names of a tensor that is placed.
    unused: beginnings of names that are known to be of no use, with the reason.
    """
    found, left = Balance(), dict(tensors)
    for place in placements:
        name = next((n for n in (prefix + place.source, place.source) if n in left), None)
        if name is None:
            found.missing.append(prefix + place.source)
            continue
        found.placed[place] = name
        found.weigh(name, left.pop(name), place.shape)
    for name in tied:
        found.tied += [n for n in {prefix + name, name} if left.pop(n, None) is not None]
    for start, why in (unused or {}).items():
        for name in [n for n in left if n.startswith(start)]:
            found.unused[name] = why
            del left[name]
    found.unknown = sorted(left)
    return found
