"""Every error that a caller of OxyGen can meet, and what each one means."""

from __future__ import annotations

from math import inf
from numbers import Real


class OxygenError(Exception):
    """Base of all errors raised on purpose by this package."""


class InvalidInput(OxygenError, ValueError):
    """Input refused at the door: names the field, what was expected and what came."""

    def __init__(self, field: str, expected: str, got: str) -> None:
        super().__init__(f"{field}: expected {expected}, got {got}")
        self.field = field
        self.expected = expected
        self.got = got

    def __reduce__(self) -> tuple[type[InvalidInput], tuple[str, str, str]]:
        return type(self), (self.field, self.expected, self.got)


def check_number(field: str, value: object, expected: str, low: float, high: float = inf, kind: type = Real) -> None:
    """Refuse what is not a number in [low, high] (kind: `Integral` for whole ones). Raises InvalidInput."""
    if isinstance(value, bool) or not isinstance(value, kind) or not low <= value <= high:  # type: ignore[operator]
        raise InvalidInput(field, expected, repr(value)[:80])


class CheckpointError(OxygenError):
    """A checkpoint folder that cannot be used, with the reason and the names concerned."""


class Refused(OxygenError):
    """Work turned away for lack of room, with a reason that the client can read.

    `reason` is one stable word (it labels a metric); `retry_after_s` is a hint, or None when a retry will not help.
    """

    def __init__(self, reason: str, message: str, retry_after_s: float | None = None) -> None:
        super().__init__(message)
        self.reason = reason
        self.retry_after_s = retry_after_s


class RequestFault(OxygenError):
    """A fault that belongs to one request: it ends that request and nothing else."""

    def __init__(self, request_id: int, message: str) -> None:
        super().__init__(message)
        self.request_id = request_id


class DeviceFault(OxygenError):
    """The device failed: the engine is dead and every ticket ends with this cause."""


class Ended(OxygenError):
    """What was waited for will not come: `reason` is `cancelled`, `replaced`, `dropped`, `expired` or `closed`."""

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(message)
        self.reason = reason
