"""What can go wrong between a robot and its server, one class per thing a control loop can do about it."""

from __future__ import annotations

from typing import Optional


class ClientError(Exception):
    """Base of all errors of this package."""


class ConnectionLost(ClientError):
    """There is no link, or it went away and did not come back in time. Hold; the client goes on reconnecting."""


class NoAnswer(ClientError, TimeoutError):
    """The link looks alive but no answer came in time. A late answer is thrown away, never paired with a later
    frame.
    """


class Superseded(ClientError):
    """A newer observation took this one's place before it was answered."""


class ServerError(ClientError):
    """The server answered with an error instead of actions.

    code: one stable word (`invalid_input`, `refused`, `replaced`, `warming`, `device_fault`, ...). field: the
    offending field, if one. retry_after_s: a hint, or None where a retry will not help. reference: number of the
    server's log entry.
    """

    def __init__(
        self,
        code: str,
        message: str,
        field: Optional[str] = None,
        retry_after_s: Optional[float] = None,
        reference: Optional[str] = None,
    ) -> None:
        super().__init__(f"{code}: {message}")
        self.code = code
        self.field = field
        self.retry_after_s = retry_after_s
        self.reference = reference


class TakenOver(ClientError):
    """Another connection presented this session's name, and the newest link wins. The client does not reconnect."""


class Stale(ClientError):
    """No action is valid any more: the chunk ran out and nothing newer came. Switch to the robot's safe behaviour.

    age_s: seconds since the last valid action's period ended; infinite when there never was one.
    """

    def __init__(self, message: str, age_s: float) -> None:
        super().__init__(message)
        self.age_s = age_s
