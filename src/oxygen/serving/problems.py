"""Exceptions as clients see them: a stable word, a sentence, a hint when to try again, and never a path or a
traceback.
"""

from __future__ import annotations

import logging
import traceback
import uuid
from dataclasses import dataclass
from typing import Any

from oxygen.core.errors import DeviceFault, Ended, InvalidInput, OxygenError, Refused, RequestFault

log = logging.getLogger("oxygen.serving")

_REFUSALS = {"queue_full": 429, "no_session": 409}
_REFUSALS |= dict.fromkeys(("warming", "stopping", "closed", "failed", "engine_failed", "engine_closed"), 503)


class TooLarge(OxygenError):
    """A request's body passed the limit while it was read."""

    def __init__(self, limit: int) -> None:
        super().__init__(f"a request holds at most {limit} bytes")


@dataclass(frozen=True, slots=True)
class Problem:
    """One failure, in the form that every door can write.

    code: one stable word. status: the HTTP status that fits. reference: number of the log entry, for faults of our own.
    """

    code: str
    status: int
    message: str
    field: str | None = None
    retry_after_s: float | None = None
    reference: str | None = None

    def as_dict(self) -> dict[str, Any]:
        fields = {
            "code": self.code,
            "message": self.message,
            "field": self.field,
            "retry_after_s": self.retry_after_s,
            "reference": self.reference,
        }
        return {name: value for name, value in fields.items() if value is not None}

    def __str__(self) -> str:
        hint = f" (retry after {self.retry_after_s:g} s)" if self.retry_after_s is not None else ""
        number = f" [reference {self.reference}]" if self.reference else ""
        return f"{self.code}: {self.message}{hint}{number}"


def describe(error: BaseException, *, debug: bool = False) -> Problem:
    """Turn an exception into a problem. Faults that are ours are logged, once, under the reference that the client
    gets.
    """
    if isinstance(error, InvalidInput):
        return Problem("invalid_input", 400, str(error), field=error.field)
    if isinstance(error, Refused):
        status = _REFUSALS.get(error.reason, 429 if error.retry_after_s is not None else 409)
        return Problem(error.reason, status, str(error), retry_after_s=error.retry_after_s)
    if isinstance(error, TooLarge):
        return Problem("too_large", 413, str(error))
    if isinstance(error, Ended):
        return Problem(error.reason, 409 if error.reason != "closed" else 503, str(error))
    if isinstance(error, TimeoutError):
        return Problem("timeout", 504, str(error) or "no answer in time")
    reference = uuid.uuid4().hex[:12]
    log.error("fault %s: %s", reference, error, exc_info=error, extra={"reference": reference})
    detail = "".join(traceback.format_exception(error)) if debug else ""
    if isinstance(error, DeviceFault):
        return Problem(
            "device_fault", 503, detail or "the device failed; the server must be restarted", None, None, reference
        )
    if isinstance(error, RequestFault):
        return Problem(
            "request_fault", 500, detail or "this request failed; others are not concerned", None, None, reference
        )
    code = "fault" if isinstance(error, OxygenError) else "internal"
    return Problem(code, 500, detail or "an error inside the server", None, None, reference)
