"""Steps between a robot's numbers and the model's: pure functions over one frame, composed so that undoing mirrors
doing.

A frame is a map with `state` [n] and `actions` [H, n], both float64 (either may be absent). Inputs run in the order in
which groups were pushed, outputs in the reverse: what a robot does first on the way in is undone last on the way out.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

Frame = dict[str, np.ndarray]
Step = Callable[[Frame], Frame]


@dataclass(frozen=True, slots=True)
class Pipeline:
    """Input steps and output steps. `push` appends inputs and prepends outputs."""

    inputs: tuple[Step, ...] = ()
    outputs: tuple[Step, ...] = ()

    def push(self, inputs: Iterable[Step] = (), outputs: Iterable[Step] = ()) -> Pipeline:
        return Pipeline((*self.inputs, *inputs), (*outputs, *self.outputs))

    def run_inputs(self, frame: Frame) -> Frame:
        for step in self.inputs:
            frame = step(frame)
        return frame

    def run_outputs(self, frame: Frame) -> Frame:
        for step in self.outputs:
            frame = step(frame)
        return frame


def bool_mask(*runs: int) -> tuple[bool, ...]:
    """(6, -1, 6, -1) -> six true, one false, six true, one false."""
    return tuple(run > 0 for run in runs for _ in range(abs(run)))


@dataclass(frozen=True, slots=True)
class DeltaActions:
    """Actions relative to the current state where `mask` is true (training). The other dimensions stay absolute."""

    mask: tuple[bool, ...]

    def __call__(self, frame: Frame) -> Frame:
        if "actions" not in frame:
            return frame
        return {**frame, "actions": _shifted(frame["actions"], frame["state"], self.mask, -1)}


@dataclass(frozen=True, slots=True)
class AbsoluteActions:
    """The inverse of DeltaActions: the current state added to every step of the chunk where `mask` is true."""

    mask: tuple[bool, ...]

    def __call__(self, frame: Frame) -> Frame:
        if "actions" not in frame:
            return frame
        return {**frame, "actions": _shifted(frame["actions"], frame["state"], self.mask, 1)}


@dataclass(frozen=True, slots=True)
class SliceActions:
    """Keep the first `dim` action dimensions: what the robot has, without the model's padding."""

    dim: int

    def __call__(self, frame: Frame) -> Frame:
        return {**frame, "actions": frame["actions"][..., : self.dim]} if "actions" in frame else frame


@dataclass(frozen=True, slots=True)
class MapFields:
    """Apply a function to some fields of a frame."""

    maps: Mapping[str, Callable[[np.ndarray], np.ndarray]]

    def __call__(self, frame: Frame) -> Frame:
        return {name: self.maps[name](value) if name in self.maps else value for name, value in frame.items()}


def pad_to(x: np.ndarray, dim: int) -> np.ndarray:
    """Zeros after the last dimension of x [..., n] up to [..., dim]; x itself where it is wide enough."""
    missing = dim - x.shape[-1]
    if missing <= 0:
        return x
    return np.concatenate([x, np.zeros((*x.shape[:-1], missing), dtype=x.dtype)], axis=-1)


def _shifted(actions: np.ndarray, state: np.ndarray, mask: Sequence[bool], sign: int) -> np.ndarray:
    dims = len(mask)
    offset = np.where(np.asarray(mask), state[..., :dims], 0)
    shifted = actions.copy()
    shifted[..., :dims] += sign * np.expand_dims(offset, axis=-2)
    return shifted
