"""What a checkpoint of a chat model says about its inputs and outputs, as plain data of its configuration file."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from typing import Any, Literal

from oxygen.core.errors import CheckpointError

NORMALIZATIONS = {"quantile": ("q01", "q99"), "minmax": ("min", "max"), "identity": ()}


@dataclass(frozen=True)
class ExpertOutput:
    """The chunk of one expert, and how its numbers become robot units.

    is_clipped: to [-1, 1] first. binary: dimension -> threshold; such a dimension becomes 0 below it and 1 from it on
    and is not un-normalised (grippers).
    """

    horizon: int
    action_dim: int
    normalization: Literal["quantile", "minmax", "identity"] = "minmax"
    is_clipped: bool = True
    binary: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class ChatConfig:
    """Settings of a ChatProcessor.

    robot: a name, or a map with `name` and options. experts: outputs by expert. templates: name of a built-in set, or a
    map kind -> text. wrapper: put around the instruction, with {instruction} in it. first_size: square that pictures
    are pressed into before anything else (None: not at all). min_pixels, max_pixels and token_pixels: of the model's
    own resize. image_tokens: names of the control tokens before a picture, for each of its tokens, and behind it.
    state_normalization: of the state that prompts and experts read. asset_id: which statistics (`unnorm_key`).
    """

    robot: str | Mapping[str, Any]
    experts: Mapping[str, ExpertOutput]
    templates: str | Mapping[str, Any] = "starvla"
    wrapper: str | None = None
    first_size: int | None = 224
    min_pixels: int = 65_536
    max_pixels: int = 16_777_216
    token_pixels: int = 32
    image_tokens: tuple[str, str, str] = ("<|vision_start|>", "<|image_pad|>", "<|vision_end|>")
    state_normalization: str = "identity"
    default_prompt: str | None = None
    max_prompt_chars: int = 16_384
    max_tail_len: int = 256
    forbidden: tuple[str, ...] = ("special",)
    vocab_size: int | None = None
    asset_id: str | None = None
    text_trained: bool | None = None

    def __post_init__(self) -> None:
        modes = {"state_normalization": self.state_normalization}
        modes |= {f"experts.{name}.normalization": expert.normalization for name, expert in self.experts.items()}
        for name, mode in modes.items():
            if mode not in NORMALIZATIONS:
                raise CheckpointError(f"processor: {name} is {mode!r}, expected one of {', '.join(NORMALIZATIONS)}")

    @classmethod
    def from_dict(cls, written: Mapping[str, Any]) -> ChatConfig:
        """Read what `to_dict` wrote; unknown keys, and a robot that is not named, raise CheckpointError."""
        if unknown := sorted(set(written) - {f.name for f in fields(cls)}):
            raise CheckpointError(f"processor: unknown settings {', '.join(unknown)}")
        if missing := sorted({"robot", "experts"} - set(written)):
            raise CheckpointError(f"processor: does not say {', '.join(missing)}")
        settings: dict[str, Any] = {
            key: tuple(value) if isinstance(value, list) else value for key, value in written.items()
        }
        try:
            settings["experts"] = {name: ExpertOutput(**told) for name, told in written["experts"].items()}
        except TypeError as error:
            raise CheckpointError(f"processor: experts: {error}") from None
        return cls(**settings)

    def to_dict(self) -> dict[str, Any]:
        """Plain data for a configuration file."""
        return {name: list(value) if isinstance(value, tuple) else value for name, value in asdict(self).items()}
