"""Prompts as data of the checkpoint: what the model reads before it acts or speaks, for every kind of task.

A template has a `prefix`, read together with the pictures, and may have a causal `tail`, private to its task. Each is
a text with the fields {prompt}, {state} and {question}, or a list of texts that are tokenised one by one (a checkpoint
is bound to the way in which its training tokenised). Tasks share a context where their prefix tokens are equal, and
only there.
"""

from __future__ import annotations

import re
import string
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from oxygen.core.errors import CheckpointError, InvalidInput

ACTION = "action"
FIELDS = ("prompt", "state", "question")
_EDGES = np.arange(256) / 128.0 - 1.0
_FIELD = re.compile(r"\{(\w+)\}")
_BINS = [str(i) for i in range(-1, 256)]

CLEANING: dict[str, Callable[[str], str]] = {
    "strip": str.strip,
    "underscores": lambda text: text.replace("_", " "),
    "newlines": lambda text: text.replace("\n", " "),
    "lower": str.lower,
    "final_punctuation": lambda text: text[:-1] if text and text[-1] in string.punctuation else text,
}
_OPENPI_CLEANING = ("strip", "underscores", "newlines")

_SHARED = "Task: {prompt}, State: {state};\n"
BUILT_IN: dict[str, dict[str, Any]] = {
    "pi05": {
        "action": {"prefix": "Task: {prompt}, State: {state};\nAction: "},
        "subtask": {
            "prefix": "Task: {prompt}. Subtask: ",
            "clean": ["lower", *_OPENPI_CLEANING, "final_punctuation"],
        },
    },
    "pi05-libero": {
        "action": {"prefix": ["{prompt}", "\n"]},
        "subtask": {
            "prefix": "Task: {prompt}. Subtask: ",
            "clean": ["lower", *_OPENPI_CLEANING, "final_punctuation"],
        },
    },
    "shared": {
        "action": {"prefix": _SHARED},
        "subtask": {"prefix": _SHARED, "tail": "Subtask:"},
        "narration": {"prefix": _SHARED, "tail": "Narration:"},
        "memory": {"prefix": _SHARED, "tail": "Memory:"},
        "answer": {"prefix": _SHARED, "tail": "Question: {question} Answer:"},
    },
}
"""Template sets by name. `pi05`: openpi's action prompt, and the subtask prompt of its reproductions (its own prefix,
E7). `pi05-libero`: the action prompt without state. `shared`: one prefix for all, tails per kind (what OxyGen
trains)."""


@dataclass(frozen=True, slots=True)
class Piece:
    """One text that is tokenised by itself: literals and field names in turn."""

    parts: tuple[str, ...]
    is_field: tuple[bool, ...]

    @classmethod
    def parse(cls, written: str, where: str) -> Piece:
        split = _FIELD.split(written)  # literal, field, literal, ..., literal
        if unknown := sorted(set(split[1::2]) - set(FIELDS)):
            raise CheckpointError(f"{where}: unknown field {unknown[0]!r}, expected {', '.join(FIELDS)}")
        pairs = [(part, i % 2 == 1) for i, part in enumerate(split) if part]
        return cls(tuple(part for part, _ in pairs), tuple(flag for _, flag in pairs))

    def fields(self) -> set[str]:
        return {part for part, flag in zip(self.parts, self.is_field, strict=True) if flag}

    def fill(self, values: Mapping[str, str]) -> str:
        return "".join(values[part] if flag else part for part, flag in zip(self.parts, self.is_field, strict=True))


@dataclass(frozen=True, slots=True)
class Template:
    """How one kind of task is asked for. prefix and tail: pieces, each tokenised by itself. clean: names in
    CLEANING."""

    kind: str
    prefix: tuple[Piece, ...]
    tail: tuple[Piece, ...] = ()
    clean: tuple[str, ...] = _OPENPI_CLEANING

    @classmethod
    def from_dict(cls, kind: str, written: Mapping[str, Any]) -> Template:
        where = f"template {kind}"
        if not isinstance(written, Mapping) or "prefix" not in written or written.keys() - {"prefix", "tail", "clean"}:
            raise CheckpointError(f"{where}: expected a map with prefix and perhaps tail and clean")
        clean = tuple(written.get("clean", _OPENPI_CLEANING))
        if unknown := [name for name in clean if name not in CLEANING]:
            raise CheckpointError(f"{where}: unknown cleaning {unknown[0]!r}, expected {', '.join(CLEANING)}")
        prefix, tail = (_pieces(written.get(part, ()), f"{where}, {part}") for part in ("prefix", "tail"))
        if not prefix:
            raise CheckpointError(f"{where}: the prefix is empty")
        if any("question" in piece.fields() for piece in prefix) and tail:
            raise CheckpointError(f"{where}: a question in the prefix and a tail: the tail could never be shared")
        return cls(kind, prefix, tail, clean)

    def fields(self) -> set[str]:
        return set().union(*(piece.fields() for piece in (*self.prefix, *self.tail)))

    def fill(self, values: Mapping[str, str | None]) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """Texts of the prefix and of the tail. Raises InvalidInput for a field that has no value."""
        ready = self._ready(values, self.fields())
        return tuple(piece.fill(ready) for piece in self.prefix), tuple(piece.fill(ready) for piece in self.tail)

    def fill_tail(self, values: Mapping[str, str | None]) -> tuple[str, ...]:
        """Texts of the tail alone, for which the fields of the prefix need no value."""
        ready = self._ready(values, set().union(*(piece.fields() for piece in self.tail)))
        return tuple(piece.fill(ready) for piece in self.tail)

    def _ready(self, values: Mapping[str, str | None], names: set[str]) -> dict[str, str]:
        ready: dict[str, str] = {}
        for name in names:
            value = values.get(name)
            if value is None:
                raise InvalidInput(name, f"a {name}, which the task {self.kind!r} is asked with", "none")
            ready[name] = value if name == "state" else self.cleaned(value)
        return ready

    def cleaned(self, text: str) -> str:
        for name in self.clean:
            text = CLEANING[name](text)
        return text

    def to_dict(self) -> dict[str, Any]:
        written: dict[str, Any] = {"prefix": [_written(piece) for piece in self.prefix], "clean": list(self.clean)}
        if self.tail:
            written["tail"] = [_written(piece) for piece in self.tail]
        return written


@dataclass(frozen=True, slots=True)
class TemplateSet:
    """Templates by kind. `action` is the one of the action expert; a text kind must be named in the set."""

    templates: Mapping[str, Template]

    @classmethod
    def build(cls, described: str | Mapping[str, Any]) -> TemplateSet:
        """A built-in set by name, or a set as a map kind -> {prefix, tail, clean}. Raises CheckpointError."""
        if isinstance(described, str):
            if described not in BUILT_IN:
                raise CheckpointError(f"templates {described!r:.80}: expected a map or one of {', '.join(BUILT_IN)}")
            described = BUILT_IN[described]
        if not described:
            raise CheckpointError("templates: the set is empty")
        return cls({kind: Template.from_dict(kind, written) for kind, written in described.items()})

    @property
    def text_kinds(self) -> tuple[str, ...]:
        return tuple(kind for kind in self.templates if kind != ACTION)

    def for_text(self, kind: str) -> Template:
        if kind == ACTION or kind not in self.templates:
            raise InvalidInput(
                "kind", f"one of {', '.join(self.text_kinds) or '(none: this checkpoint has no text)'}", repr(kind)
            )
        return self.templates[kind]

    def for_action(self, expert: str) -> Template:
        """The template named like the expert, otherwise `action`."""
        found = self.templates.get(expert) or self.templates.get(ACTION)
        if found is None:
            raise InvalidInput("actions", "no action task: this checkpoint has no action prompt", f"expert {expert!r}")
        return found

    def to_dict(self) -> dict[str, Any]:
        return {kind: template.to_dict() for kind, template in self.templates.items()}


def state_bins(state: np.ndarray) -> np.ndarray:
    """Bin of each number of a normalised state [n]: 256 bins of width 1/128 from -1 on; below gives -1, from 1 on
    255."""
    return np.searchsorted(_EDGES, state, side="right") - 1


def state_text(state: np.ndarray) -> str:
    """The normalised state as the prompt writes it: its bins, parted by single spaces."""
    return " ".join([_BINS[i + 1] for i in state_bins(state).tolist()])


def _pieces(written: Any, where: str) -> tuple[Piece, ...]:
    texts = [written] if isinstance(written, str) else written
    if not isinstance(texts, list | tuple) or not all(isinstance(text, str) for text in texts):
        raise CheckpointError(f"{where}: expected a text or a list of texts")
    return tuple(Piece.parse(text, where) for text in texts if text)


def _written(piece: Piece) -> str:
    return "".join(f"{{{part}}}" if flag else part for part, flag in zip(piece.parts, piece.is_field, strict=True))
