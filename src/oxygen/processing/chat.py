"""Prompts of chat models: the whole prompt of every task as token segments, and what several of them have in common.

A prompt is written as one text with control tokens by name (`<|im_start|>`), fields ({prompt}, {state}, {question}) and
{images}. Only control tokens of the template count as such; an operator's words are words whatever they look like. What
lies between control tokens is tokenised as one piece, so a field joins its surroundings just as in training.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from oxygen.core.errors import CheckpointError, InvalidInput
from oxygen.processing.prompts import Piece
from oxygen.processing.tokenizer import Tokenizer

CHAT = "<|im_start|>user\n{images}{text}<|im_end|>\n<|im_start|>assistant\n"
QUERY = "\N{LEFT-POINTING MAGNIFYING GLASS}"
_QUERIES = " Please predict the next {horizon} robot actions: <action>{queries}<action>."
_SPLIT = re.compile(r"(\{images\}|<\|[^|<>]+\|>)")

BUILT_IN: dict[str, dict[str, Any]] = {
    "starvla": {
        "action": "{prompt}",
        "pi": "{prompt}",
        "gr00t": "{prompt}",
        "oft": "{prompt}" + _QUERIES,
        "answer": {"text": "{prompt}\n{question}", "is_wrapped": False},
        "narration": {"text": "{prompt}\nSay what you see.", "is_wrapped": False},
        "subtask": {"text": "{prompt}\nName the next step.", "is_wrapped": False},
        "memory": {"text": "{prompt}\nNote what to remember.", "is_wrapped": False},
    }
}
"""What a user's turn says, by expert or text kind. The experts' are those that StarVLA trains with (PI_v3 with a
state in its prompt, and other markers, must be declared by the checkpoint); the text kinds are plain requests."""


@dataclass(frozen=True, slots=True)
class ChatTemplate:
    """parts in order: a control token's id, a piece of text, or None for the pictures."""

    kind: str
    parts: tuple[int | Piece | None, ...]

    @classmethod
    def build(cls, kind: str, written: str, tokenizer: Tokenizer) -> ChatTemplate:
        """Raises CheckpointError for control tokens that the tokenizer does not have, and for unknown fields."""
        parts: list[int | Piece | None] = []
        control = {tokenizer.vocabulary.names[i]: i for i in tokenizer.vocabulary.special}
        for part in _SPLIT.split(written):
            if part == "{images}":
                parts.append(None)
            elif _SPLIT.fullmatch(part):
                if part not in control:
                    raise CheckpointError(f"template {kind}: the tokenizer has no control token {part}")
                parts.append(control[part])
            elif part:
                parts.append(Piece.parse(part, f"template {kind}"))
        if parts.count(None) != 1:
            raise CheckpointError(f"template {kind}: expected {{images}} once")
        return cls(kind, tuple(parts))

    def fields(self) -> set[str]:
        return set().union(*(part.fields() for part in self.parts if isinstance(part, Piece)))

    def token_ids(
        self, values: Mapping[str, str | None], images: Sequence[int], tokenizer: Tokenizer
    ) -> tuple[tuple[int, ...], int]:
        """The whole prompt, and how many tokens it has up to the end of the pictures. images: their tokens."""
        for name in sorted(self.fields()):
            if values.get(name) is None:
                raise InvalidInput(name, f"a {name}, which a {self.kind} task is asked with", "none")
        ids: list[int] = []
        open_from = 1
        for part in self.parts:
            if part is None:
                ids += images
                open_from = max(1, len(ids))
            elif isinstance(part, Piece):
                ids += tokenizer.encode(part.fill({name: str(values[name]) for name in part.fields()}))
            else:
                ids.append(part)
        return tuple(ids), open_from


def build_templates(
    described: str | Mapping[str, Any],
    prompts: Mapping[str, str],
    wrapper: str | None,
    horizons: Mapping[str, int],
    tokenizer: Tokenizer,
) -> dict[str, ChatTemplate]:
    """Templates by kind: a built-in set by name, or a map kind -> text, or -> {text, is_wrapped, chat}.

    prompts: texts by expert that take the place of the set's. wrapper: a text with {instruction}, put around what the
    turn says (StarVLA's CoT prompt). horizons: actions of each expert, for the query sentence.
    """
    if isinstance(described, str):
        if described not in BUILT_IN:
            raise CheckpointError(f"templates {described!r}: expected a map or one of {', '.join(BUILT_IN)}")
        described = {k: v for k, v in BUILT_IN[described].items() if k in horizons or k not in ("pi", "gr00t", "oft")}
    if wrapper is not None and wrapper.count("{instruction}") != 1:
        raise CheckpointError("processor: the wrapper must hold {instruction} once")
    built: dict[str, ChatTemplate] = {}
    for kind, told in {**described, **prompts}.items():
        if not isinstance(told, str | Mapping):
            raise CheckpointError(f"template {kind}: expected a text or a map, got {told!r:.80}")
        entry = {"text": told} if isinstance(told, str) else dict(told)
        if unknown := sorted(entry.keys() - {"text", "is_wrapped", "chat"}):
            raise CheckpointError(f"template {kind}: unknown {', '.join(unknown)}")
        text, chat = entry.get("text", ""), entry.get("chat", CHAT)
        if not isinstance(text, str) or not isinstance(chat, str):
            raise CheckpointError(f"template {kind}: text and chat must be texts, got {told!r:.80}")
        if wrapper is not None and entry.get("is_wrapped", True):
            text = wrapper.replace("{instruction}", text)
        horizon = horizons.get(kind, 0)
        text = text.replace("{horizon}", str(horizon)).replace("{queries}", QUERY * horizon)
        built[kind] = ChatTemplate.build(kind, chat.replace("{text}", text), tokenizer)
    return built


def common_length(a: Sequence[int], b: Sequence[int]) -> int:
    """Tokens that two prompts begin with in common."""
    return next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))


def check_words(name: str, text: str | None, max_chars: int) -> None:
    """Refuse what is no text, too long, or not to be written in UTF-8. Raises InvalidInput."""
    if text is not None and not isinstance(text, str):
        raise InvalidInput(name, "text", type(text).__name__)
    if text is not None and len(text) > max_chars:
        raise InvalidInput(name, f"at most {max_chars} characters", f"{len(text)}")
    try:
        (text or "").encode()
    except UnicodeEncodeError as error:
        raise InvalidInput(name, "text that UTF-8 can hold", f"{error.reason} at {error.start}") from None
