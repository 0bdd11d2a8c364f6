"""What a checkpoint says about its inputs and outputs, as plain data that travels in its config.json."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, fields, replace
from typing import Any

from oxygen.core.errors import CheckpointError
from oxygen.processing.normalize import NEEDED, Dialect, Mode
from oxygen.processing.robots.robot import SLOTS


def _is_listed(value: Any, kind: type) -> bool:
    return isinstance(value, tuple | list) and all(isinstance(item, kind) for item in value)


_COUNTS = {
    "image_size": 65_536,
    "tokens_per_image": 65_536,
    "action_dim": 65_536,
    "horizon": 65_536,
    "max_token_len": 65_536,
    "max_tail_len": 65_536,
    "max_prompt_chars": 10_000_000,
}
"""The largest of each."""
_KINDS: dict[str, tuple[Callable[[Any], bool], str]] = {
    "robot": (lambda v: isinstance(v, str | Mapping), "a name or a map"),
    "templates": (lambda v: isinstance(v, str | Mapping), "a name or a map"),
    "slots": (lambda v: _is_listed(v, str), "a list of names"),
    "forbidden": (lambda v: _is_listed(v, str), "a list of names"),
    "required_cameras": (lambda v: v is None or _is_listed(v, str), "a list of names"),
    "delta_mask": (lambda v: v is None or _is_listed(v, bool), "a list of true and false"),
    "default_prompt": (lambda v: v is None or isinstance(v, str), "text"),
    "asset_id": (lambda v: v is None or isinstance(v, str), "a name"),
    "text_trained": (lambda v: v is None or isinstance(v, bool), "true or false"),
    "vocab_size": (lambda v: v is None or (type(v) is int and v >= 1), "an integer of at least 1"),
}
"""What a config.json may hold, by setting; the numbers and modes are checked after."""


@dataclass(frozen=True)
class ProcessorConfig:
    """Settings of a Processor. Lengths are tokens, image sizes pixels.

    robot: a name, or a map with `name` and options. templates: name of a built-in set, or a map kind -> template.
    normalization: mode of the state and of the actions; action_normalization: of the actions where it differs.
    action_dim: width that the model works in; horizon: actions in a chunk. slots: image slots of the prefix, in order.
    delta_mask: actions predicted relative to the state (None: as the robot has it). required_cameras: the robot's
    cameras that must come (None: as the robot has it). forbidden: classes of tokens that no text may contain.
    vocab_size: rows of the model's token table (None: as many as the tokenizer has). asset_id: which set of
    statistics, where there are several. text_trained: whether the checkpoint was taught to speak (None: unknown);
    without it, what it says is not to be acted upon.
    """

    robot: str | Mapping[str, Any]
    templates: str | Mapping[str, Any] = "pi05"
    normalization: Mode = "quantile"
    action_normalization: Mode | None = None
    dialect: Dialect = "openpi"
    image_size: int = 224
    tokens_per_image: int = 256
    slots: tuple[str, ...] = SLOTS
    action_dim: int = 32
    horizon: int = 50
    max_token_len: int = 200
    max_tail_len: int = 256
    max_prompt_chars: int = 16_384
    delta_mask: tuple[bool, ...] | None = None
    required_cameras: tuple[str, ...] | None = None
    default_prompt: str | None = None
    text_trained: bool | None = None
    forbidden: tuple[str, ...] = ("special", "unused", "location", "segmentation")
    vocab_size: int | None = None
    asset_id: str | None = None

    def __post_init__(self) -> None:
        for name, (is_kind, expected) in _KINDS.items():
            value = getattr(self, name)
            if not is_kind(value):
                raise CheckpointError(f"processor: {name} is {value!r:.80}, expected {expected}")
        for name, most in _COUNTS.items():
            value = getattr(self, name)
            if type(value) is not int or not 1 <= value <= most:
                raise CheckpointError(f"processor: {name} is {value!r:.80}, expected an integer from 1 to {most}")
        for name in ("normalization", "action_normalization"):
            mode = getattr(self, name)
            if mode not in tuple(NEEDED) and not (mode is None and name == "action_normalization"):
                raise CheckpointError(f"processor: {name} is {mode!r:.80}, expected one of {', '.join(NEEDED)}")
        if self.dialect not in ("openpi", "lerobot"):
            raise CheckpointError(f"processor: dialect is {self.dialect!r:.80}, expected openpi or lerobot")

    @classmethod
    def from_dict(cls, written: Mapping[str, Any]) -> ProcessorConfig:
        """Read what `to_dict` wrote; unknown and missing keys raise CheckpointError."""
        known = {field.name for field in fields(cls)}
        if unknown := sorted(set(written) - known):
            raise CheckpointError(f"processor: unknown settings {', '.join(unknown)}")
        if "robot" not in written:
            raise CheckpointError("processor: no robot named")
        settings: dict[str, Any] = {k: tuple(v) if isinstance(v, list) else v for k, v in written.items()}
        return cls(**settings)

    def to_dict(self) -> dict[str, Any]:
        """Plain data for config.json."""
        return {name: list(value) if isinstance(value, tuple) else value for name, value in asdict(self).items()}

    def with_(self, **changes: Any) -> ProcessorConfig:
        return replace(self, **changes)


PRESETS: dict[str, dict[str, Any]] = {
    "libero": {"robot": "libero", "templates": "pi05-libero", "horizon": 10, "text_trained": False},
    "droid": {"robot": "droid", "horizon": 15, "text_trained": False},
    "droid-joint-position": {
        "robot": {"name": "droid", "action_space": "joint_position"},
        "horizon": 15,
        "text_trained": False,
    },
    "aloha": {"robot": "aloha", "horizon": 50},
}
"""What openpi's released π0.5 checkpoints assume for each robot, where a folder does not say it itself."""


def preset(name: str, /, **changes: Any) -> ProcessorConfig:
    """The configuration of one of openpi's robots. Raises CheckpointError for an unknown name, never guesses."""
    if name not in PRESETS:
        raise CheckpointError(f"robot {name!r}: expected one of {', '.join(PRESETS)}")
    return ProcessorConfig(**{**PRESETS[name], **changes})
