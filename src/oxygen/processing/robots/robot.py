"""A robot as data: its keys, cameras, state and actions; and the one parser that reads all of them.

Cameras and state are found by name, never by order. A missing required key is refused with what was expected and what
came; a camera that the robot does not declare is ignored with one warning.
"""

from __future__ import annotations

import itertools
import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from oxygen.core.errors import InvalidInput
from oxygen.processing.images import Layout, as_picture
from oxygen.processing.transforms import Pipeline

log = logging.getLogger("oxygen.processing")

SLOTS = ("base_0_rgb", "left_wrist_0_rgb", "right_wrist_0_rgb")
"""The model's image slots of every π0.5 that openpi released, in the order of the prefix."""
MAX_STATE = 1e8
"""A larger number is a broken sensor, not a position in any unit."""
_MAX_WARNINGS, _MAX_NAME = 64, 80
_MASKS = "image_mask"

Path = tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Camera:
    """name: the robot's name for it. slot: the model's. keys: where it may lie in a message, each a path into the
    map."""

    name: str
    slot: str
    keys: tuple[Path, ...]
    required: bool = True
    layout: Layout = "auto"


@dataclass(frozen=True, slots=True)
class StatePart:
    """`dim` numbers of the state under one of `keys`. A part of one number may come as a scalar."""

    keys: tuple[Path, ...]
    dim: int


@dataclass(frozen=True, slots=True)
class ActionPart:
    """Some neighbouring action dimensions, for people and clients. kind: `absolute`, `velocity`, `delta`, ..."""

    name: str
    dim: int
    kind: str
    unit: str
    frame: str = "joint"


@dataclass(frozen=True, slots=True)
class Robot:
    """What one kind of robot sends and takes.

    pipeline: between robot units and those of the statistics. delta_mask: actions that the model predicts relative to
    the state (checkpoints may say otherwise). ignored: keys that may come and are not read, without a warning.
    control_hz and replan_steps are advice to clients, None where unknown.
    """

    name: str
    cameras: tuple[Camera, ...]
    state: tuple[StatePart, ...]
    actions: tuple[ActionPart, ...]
    prompt_keys: tuple[Path, ...] = (("prompt",),)
    pipeline: Pipeline = field(default_factory=Pipeline)
    delta_mask: tuple[bool, ...] = ()
    ignored: tuple[Path, ...] = ()
    control_hz: float | None = None
    replan_steps: int | None = None
    metadata: Mapping[str, Any] = field(default_factory=dict)

    @property
    def state_dim(self) -> int:
        return sum(part.dim for part in self.state)

    @property
    def action_dim(self) -> int:
        return sum(part.dim for part in self.actions)

    def parse(
        self, raw: Mapping[str, Any], seen: set[str]
    ) -> tuple[dict[str, np.ndarray], np.ndarray | None, str | None]:
        """Pictures by camera name ([h, w, 3] uint8), state [state_dim] float64 in robot units, and the prompt.

        seen: names already warned about. Raises InvalidInput for anything missing, misshapen or not finite.
        """
        if not isinstance(raw, Mapping):
            raise InvalidInput("observation", "a map", type(raw).__name__)
        missing = [
            _written(camera.keys[0]) for camera in self.cameras if camera.required and _find(raw, camera.keys) is None
        ]
        missing += [_written(part.keys[0]) for part in self.state if _find(raw, part.keys) is None]
        if missing:
            raise InvalidInput(
                "observation", f"the keys {self._expected()}", f"{sorted(_leaves(raw))}, without {missing}"
            )
        images = self._pictures(raw)
        self._warn_of_extras(raw, seen)
        parts = [as_state(found[1], found[0], part.dim) for part in self.state if (found := _find(raw, part.keys))]
        state = np.concatenate(parts) if parts else None
        prompt = _find(raw, self.prompt_keys)
        return images, state, None if prompt is None else as_text(prompt[1], prompt[0])

    def _pictures(self, raw: Mapping[str, Any]) -> dict[str, np.ndarray]:
        masks = raw.get(_MASKS) or {}
        if not isinstance(masks, Mapping):
            raise InvalidInput(_MASKS, "a map of camera name to true or false", type(masks).__name__)
        images: dict[str, np.ndarray] = {}
        for camera in self.cameras:
            found = _find(raw, camera.keys)
            if found is None:
                continue
            if not _is_valid(masks, camera, found[0]):
                if camera.required:
                    raise InvalidInput(found[0], "a picture that counts: this camera is required", "image_mask false")
                continue
            images[camera.name] = as_picture(found[1], found[0], camera.layout)
        return images

    def _expected(self) -> list[str]:
        keys = [_written(camera.keys[0]) + ("" if camera.required else " (optional)") for camera in self.cameras]
        return keys + [_written(part.keys[0]) for part in self.state]

    def _warn_of_extras(self, raw: Mapping[str, Any], seen: set[str]) -> None:
        declared = [camera.keys for camera in self.cameras] + [part.keys for part in self.state] + [self.prompt_keys]
        known = {path for keys in declared for path in keys} | set(self.ignored)
        for path in _paths(raw):
            name = _written(path)[:_MAX_NAME]
            if path in known or path[:1] == (_MASKS,) or name in seen or len(seen) >= _MAX_WARNINGS:
                continue
            seen.add(name)
            log.warning(
                "robot %s: ignoring %s, which it does not declare (cameras: %s)", self.name, name, self._names()
            )

    def _names(self) -> str:
        return ", ".join(camera.name for camera in self.cameras)


def as_text(value: Any, field_name: str) -> str:
    """A prompt as text: a string, UTF-8 bytes, or an array that holds one of them."""
    if isinstance(value, np.ndarray) and value.size == 1 and value.dtype.kind in "US":
        value = value.item()
    if isinstance(value, bytes):
        try:
            value = value.decode("utf-8")
        except UnicodeDecodeError as error:
            raise InvalidInput(field_name, "text in UTF-8", f"bytes that are not ({error.reason})") from None
    if not isinstance(value, str):
        raise InvalidInput(field_name, "text", type(value).__name__)
    return str(value)


def as_state(value: Any, field_name: str, dim: int) -> np.ndarray:
    """[dim] float64, finite. Lists, integers and any float type are accepted; another rank or length is refused."""
    try:
        array = np.asarray(value)
    except ValueError:  # ragged lists
        raise InvalidInput(field_name, f"shape [{dim}]", "lists of different lengths") from None
    if array.dtype.kind not in "iuf":
        raise InvalidInput(field_name, f"numbers, shape [{dim}]", f"{array.dtype}, shape {list(array.shape)}")
    if array.ndim == 0 and dim == 1:
        array = array.reshape(1)
    if array.shape != (dim,):
        raise InvalidInput(field_name, f"shape [{dim}]", f"shape {list(array.shape)}")
    state = array.astype(np.float64)
    if not np.abs(state).max(initial=0.0) <= MAX_STATE:  # also true for NaN
        bad = int(np.flatnonzero(~(np.abs(state) <= MAX_STATE))[0])
        raise InvalidInput(f"{field_name}[{bad}]", f"a finite number of at most {MAX_STATE:g}", f"{state[bad]}")
    return state


def _is_valid(masks: Mapping[str, Any], camera: Camera, key: str) -> bool:
    for name in (camera.name, camera.slot, key):
        if name in masks:
            value = masks[name]
            if not isinstance(value, bool | np.bool_):
                raise InvalidInput(f"{_MASKS}.{name}", "true or false", repr(value)[:80])
            return bool(value)
    return True


def _find(raw: Mapping[str, Any], keys: Sequence[Path]) -> tuple[str, Any] | None:
    """The written key and the value under the first path that leads to one; None counts as absent."""
    for path in keys:
        value: Any = raw
        for part in path:
            value = value.get(part) if isinstance(value, Mapping) else None
        if value is not None:
            return _written(path), value
    return None


def _written(path: Path) -> str:
    return ".".join(path)


def _paths(raw: Mapping[str, Any]) -> Iterator[Path]:
    for key, value in raw.items():
        if isinstance(value, Mapping):
            yield from ((str(key), str(inner)) for inner in value)
        else:
            yield (str(key),)


def _leaves(raw: Mapping[str, Any]) -> list[str]:
    return [_written(path)[:_MAX_NAME] for path in itertools.islice(_paths(raw), _MAX_WARNINGS)]
