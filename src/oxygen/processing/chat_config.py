"""What a checkpoint of a chat model says about its inputs and outputs, as plain data of its configuration file."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import MISSING, asdict, dataclass, fields
from sys import float_info
from typing import Any

import numpy as np

from oxygen.core.errors import CheckpointError
from oxygen.processing.robots import Robot
from oxygen.processing.starvla import NORMALIZATIONS, modes_of, to_units
from oxygen.processing.statistics import Statistics

Modes = str | tuple[str, ...]
"""A name of NORMALIZATIONS for all dimensions, or one for each."""


@dataclass(frozen=True)
class ExpertOutput:
    """The chunk of one expert, and how its numbers become robot units: nothing of it is in the weights, so nothing has
    a default.

    is_clipped: to [-1, 1] first. binary: dimension -> [threshold, below, above]; such a dimension becomes `above` where
    it is larger than the threshold, else `below`, and is not un-normalised (grippers). prompt: what the user's turn
    says to this expert; None takes that of the template set. state_dim: numbers of the robot's state that it reads
    beside its prompt.
    """

    horizon: int
    action_dim: int
    normalization: Modes
    is_clipped: bool
    binary: Mapping[str, tuple[float, float, float]]
    prompt: str | None = None
    state_dim: int = 0

    @classmethod
    def read(cls, name: str, written: Any) -> ExpertOutput:
        """From plain data. Raises CheckpointError naming what is unknown, missing or of a wrong kind."""
        where = f"processor: experts.{name}"
        if not isinstance(written, Mapping):
            raise CheckpointError(f"{where}: expected a map, got {written!r:.80}")
        if missing := [f.name for f in fields(cls) if f.default is MISSING and f.name not in written]:
            raise CheckpointError(f"{where}: does not say {', '.join(missing)}, which no tensor shows")
        read = _checked(where, written, _EXPERT)
        read["binary"] = {str(place): tuple(told) for place, told in read["binary"].items()}
        return cls(**read)

    def modes(self, name: str, robot: Robot) -> tuple[str, ...]:
        """One for each of the robot's actions. Raises CheckpointError where they do not fit it."""
        dim = robot.action_dim
        if dim > self.action_dim:
            raise CheckpointError(f"robot {robot.name}: {dim} actions, expert {name} has {self.action_dim}")
        if odd := [place for place in self.binary if int(place) >= dim]:
            raise CheckpointError(f"processor: experts.{name}: binary: dimension {odd[0]} of {dim}")
        return modes_of(self.normalization, dim, f"processor: experts.{name}: normalization")

    def units(self, chunk: np.ndarray, modes: tuple[str, ...], statistics: Statistics | None) -> np.ndarray:
        """[H, action_dim] normalised -> [H, D] float64 in robot units. modes: one for each of the robot's D actions."""
        normal = chunk[:, : len(modes)].astype(np.float64)
        if self.is_clipped:
            normal = np.clip(normal, -1.0, 1.0)
        decoded = to_units(normal, modes, statistics.actions if statistics else None)
        for place, (threshold, below, above) in self.binary.items():
            decoded[:, int(place)] = np.where(normal[:, int(place)] > threshold, above, below)
        return decoded


@dataclass(frozen=True)
class FastOutput:
    """Action chunks as FAST tokens. folder: of the FAST tokenizer, below the checkpoint's. first_id: of its tokens, in
    the trunk's vocabulary.
    """

    folder: str
    first_id: int
    output: ExpertOutput

    @classmethod
    def read(cls, written: Any) -> FastOutput:
        """From plain data: the fields of an ExpertOutput, `folder` and `first_id`. Raises CheckpointError."""
        told = dict(written) if isinstance(written, Mapping) else {}
        folder, first_id = told.pop("folder", None), told.pop("first_id", None)
        if not isinstance(folder, str) or type(first_id) is not int or first_id < 0:
            raise CheckpointError(f"processor: fast: expected a map with folder and first_id, got {written!r:.80}")
        return cls(folder, first_id, ExpertOutput.read("fast", told))


@dataclass(frozen=True)
class ChatConfig:
    """Settings of a ChatProcessor.

    robot: a name, or a map with `name` and options. experts: outputs by expert. templates: name of a built-in set, or a
    map kind -> text. wrapper: put around the instruction, with {instruction} in it. first_size: square that pictures
    are pressed into before anything else (None: not at all). min_pixels, max_pixels and token_pixels: of the model's
    own resize. image_tokens: names of the control tokens before a picture, for each of its tokens, and behind it.
    state_normalization: of the state that prompts and experts read; None where none does. asset_id: which statistics
    are meant where a request does not say it (StarVLA's `unnorm_key`). fast: of chunks that are written as text.
    """

    robot: str | Mapping[str, Any]
    experts: Mapping[str, ExpertOutput]
    templates: str | Mapping[str, Any] = "starvla"
    wrapper: str | None = None
    first_size: int | None = None
    min_pixels: int = 65_536
    max_pixels: int = 16_777_216
    token_pixels: int = 32
    image_tokens: tuple[str, str, str] = ("<|vision_start|>", "<|image_pad|>", "<|vision_end|>")
    state_normalization: Modes | None = None
    default_prompt: str | None = None
    max_prompt_chars: int = 16_384
    forbidden: tuple[str, ...] = ("special",)
    vocab_size: int | None = None
    asset_id: str | None = None
    fast: FastOutput | None = None
    text_trained: bool | None = None

    def __post_init__(self) -> None:
        if self.min_pixels > self.max_pixels:
            raise CheckpointError(f"processor: min_pixels {self.min_pixels} is above max_pixels {self.max_pixels}")
        if (self.first_size or 0) ** 2 > self.max_pixels:
            raise CheckpointError(f"processor: first_size {self.first_size}: more than max_pixels {self.max_pixels}")

    @classmethod
    def from_dict(cls, written: Mapping[str, Any]) -> ChatConfig:
        """Read what `to_dict` wrote. Unknown and missing keys, and values of a wrong kind, raise CheckpointError."""
        if missing := sorted({"robot", "experts"} - set(written)):
            raise CheckpointError(f"processor: does not say {', '.join(missing)}")
        read = _checked("processor", written, _SETTINGS)
        read["experts"] = {name: ExpertOutput.read(name, told) for name, told in read["experts"].items()}
        read["fast"] = None if read.get("fast") is None else FastOutput.read(read["fast"])
        return cls(**read)

    def to_dict(self) -> dict[str, Any]:
        """Plain data for a configuration file."""
        fast = self.fast
        told = None if fast is None else {"folder": fast.folder, "first_id": fast.first_id, **asdict(fast.output)}
        return {name: list(value) if isinstance(value, tuple) else value for name, value in asdict(self).items()} | {
            "fast": told
        }


def _is_whole(value: Any) -> bool:
    return type(value) is int and value >= 1


def _is_modes(value: Any) -> bool:
    modes = (value,) if isinstance(value, str) else value
    return isinstance(modes, tuple) and bool(modes) and all(mode in NORMALIZATIONS for mode in modes)


def _is_binary(value: Any) -> bool:
    def is_rule(told: Any) -> bool:
        numbers = told if isinstance(told, list | tuple) else ()
        return len(numbers) == 3 and all(type(n) in (int, float) and abs(n) <= float_info.max for n in numbers)

    return isinstance(value, Mapping) and all(str(k).isdecimal() and is_rule(v) for k, v in value.items())


def _is_words(value: Any) -> bool:
    return isinstance(value, tuple) and all(isinstance(word, str) for word in value)


def _or_none(check: Callable[[Any], bool]) -> Callable[[Any], bool]:
    return lambda value: value is None or check(value)


_Kind = tuple[Callable[[Any], bool], str]
_WHOLE: _Kind = (_is_whole, "a whole number of at least 1")
_WHOLE_OR_NONE: _Kind = (_or_none(_is_whole), "a whole number of at least 1, or null")
_TEXT_OR_NONE: _Kind = (lambda value: value is None or isinstance(value, str), "a text, or null")
_NAMED: _Kind = (lambda value: isinstance(value, str | Mapping), "a name or a map")
_MODES = f"one of {', '.join(NORMALIZATIONS)}, or one for each dimension"
_EXPERT: dict[str, _Kind] = {
    "horizon": _WHOLE,
    "action_dim": _WHOLE,
    "normalization": (_is_modes, _MODES),
    "is_clipped": (lambda value: isinstance(value, bool), "true or false"),
    "binary": (_is_binary, "a map of dimension to [threshold, below, above]"),
    "prompt": _TEXT_OR_NONE,
    "state_dim": (lambda value: type(value) is int and value >= 0, "a whole number"),
}
_SETTINGS: dict[str, _Kind] = {
    "robot": _NAMED,
    "experts": (lambda value: isinstance(value, Mapping), "a map"),
    "templates": _NAMED,
    "wrapper": _TEXT_OR_NONE,
    "first_size": _WHOLE_OR_NONE,
    "min_pixels": _WHOLE,
    "max_pixels": _WHOLE,
    "token_pixels": _WHOLE,
    "image_tokens": (lambda value: _is_words(value) and len(value) == 3, "three names"),
    "state_normalization": (_or_none(_is_modes), f"{_MODES}, or null"),
    "default_prompt": _TEXT_OR_NONE,
    "max_prompt_chars": _WHOLE,
    "forbidden": (_is_words, "a list of names"),
    "vocab_size": _WHOLE_OR_NONE,
    "asset_id": _TEXT_OR_NONE,
    "fast": (lambda value: value is None or isinstance(value, Mapping), "a map, or null"),
    "text_trained": (lambda value: value is None or isinstance(value, bool), "true, false or null"),
}


def _checked(where: str, written: Mapping[str, Any], kinds: Mapping[str, _Kind]) -> dict[str, Any]:
    """The settings, lists as tuples, each of its kind."""
    if unknown := sorted(str(name) for name in written.keys() - kinds.keys()):
        raise CheckpointError(f"{where}: unknown settings {', '.join(unknown)}")
    read = {name: tuple(value) if isinstance(value, list) else value for name, value in written.items()}
    for name, value in read.items():
        is_right, expected = kinds[name]
        if not is_right(value):
            raise CheckpointError(f"{where}: {name}: expected {expected}, got {written[name]!r:.80}")
    return read
