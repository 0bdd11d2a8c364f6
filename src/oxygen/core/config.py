"""Everything that can be set on an engine, and the text budget in its written form."""

from __future__ import annotations

import math
from contextlib import suppress
from dataclasses import dataclass, fields
from numbers import Integral, Real

from oxygen.core.errors import InvalidInput, check_number

_NUMBERS = {"int": ("an integer", 2**31 - 1, Integral), "float": ("seconds", 1e18, Real)}


@dataclass(frozen=True, slots=True)
class Budget:
    """How much text a step may decode. kind: `fixed` (value: rounds), `rate` (value: frames per second) or `idle`."""

    kind: str
    value: float = 0.0

    @classmethod
    def parse(cls, written: str) -> Budget:
        """Read `fixed:5`, `rate:10` or `idle`; raises InvalidInput with the forms that are known."""
        kind, colon, number = (written if isinstance(written, str) else "").strip().partition(":")
        if kind == "idle" and not colon:
            return cls("idle")
        with suppress(ValueError, OverflowError):
            value = float(int(number)) if kind == "fixed" else float(number)
            if (kind == "fixed" and value >= 1) or (kind == "rate" and 0 < value < math.inf):
                return cls(kind, value)
        forms = "fixed:K (K >= 1 rounds a frame), rate:F (F > 0 frames per second to hold) or idle"
        raise InvalidInput("budget", forms, repr(written)[:80])

    def __str__(self) -> str:
        return self.kind if self.kind == "idle" else f"{self.kind}:{self.value:g}"


@dataclass(frozen=True, slots=True)
class EngineConfig:
    """Settings of an engine. Times are seconds.

    budget: text per step, see Budget. max_batch: frames prefilled and acted upon in one step.
    max_waiting_texts: texts that may wait for a tail row; more are refused.
    keep_context_s: how long a session's latest context is held for late questions (0: not at all).
    max_wait_s: how long a question waits for the next frame when no held context suits it.
    superseded_kinds: text kinds whose newer text ends the older one of the same session.
    max_paused_steps: after so many steps in a row without text, one round runs although a frame waits (0: never).
    text_slice_s: under `idle`, decoding returns this often to deliver text and to take in new work.
    quiet_s: with `fixed`, text alone goes on once no frame has come for so long (with `rate`: one frame time).
    session_timeout_s: a session with nothing to do is forgotten after this. debug: check invariants after every step.
    """

    budget: str = "idle"
    max_batch: int = 8
    max_waiting_texts: int = 64
    keep_context_s: float = 5.0
    max_wait_s: float = 5.0
    superseded_kinds: frozenset[str] = frozenset()
    max_paused_steps: int = 30
    text_slice_s: float = 0.1
    quiet_s: float = 0.25
    session_timeout_s: float = 600.0
    debug: bool = False

    def __post_init__(self) -> None:
        Budget.parse(self.budget)
        for field in fields(self):
            if str(field.type) in _NUMBERS:
                (what, most, kind), least = _NUMBERS[str(field.type)], int(field.name == "max_batch")
                expected = f"{what} from {least} to {most:g}"
                check_number(field.name, getattr(self, field.name), expected, least, most, kind)
        kinds = self.superseded_kinds
        if not isinstance(kinds, set | frozenset | tuple | list) or not all(isinstance(kind, str) for kind in kinds):
            raise InvalidInput("superseded_kinds", "a set of text kinds", repr(kinds)[:80])
        if not isinstance(self.debug, bool):
            raise InvalidInput("debug", "true or false", repr(self.debug)[:80])
