"""Everything that can be set on a server, with defaults that are safe on a desk: loopback, bounded, no key needed."""

from __future__ import annotations

from dataclasses import dataclass, fields
from numbers import Integral, Real
from pathlib import Path

from oxygen.core.errors import InvalidInput, check_number

MIB = 1024 * 1024
LOOPBACK = frozenset({"127.0.0.1", "::1", "localhost"})
_NUMBERS = {"int": ("an integer", Integral, 1, 2**31 - 1), "float": ("a number", Real, 1e-3, 1e6)}
_BOUNDS: dict[str, tuple[float, float]] = {
    "port": (0, 65535),
    "lerobot_port": (0, 65535),
    "starvla_port": (0, 65535),
    "max_frame_bytes": (1, 2**40),
    "max_body_bytes": (1, 2**40),
    "max_session_texts": (0, 2**31 - 1),
    "drain_s": (0, 1e6),
    "max_frame_age_s": (0, 1e9),
    "max_camera_skew_s": (0, 1e9),
}
"""Where a number's range is not that of its kind."""


@dataclass(frozen=True, slots=True)
class ServeSettings:
    """Settings of a server. Times are seconds, sizes bytes.

    api_key: wanted by every door when set. max_connections: open websockets and streams together. max_frame_bytes:
    one websocket message. max_body_bytes: one HTTP request. max_session_texts: texts of one robot at a time.
    max_in_flight: unanswered frames of one link. max_prompt_chars: instruction or question. ping_interval_s /
    ping_timeout_s: how soon a dead link is noticed. send_timeout_s: how long a peer may refuse to read.
    answer_timeout_s: how long a frame may wait for its actions. max_frame_age_s / max_camera_skew_s: None does not
    check. control_hz: the rate at which the robot executes actions, told to clients. drain_s: patience with open
    work at a stop. stuck_after_s: age of a step at which the server stops being ready. exit_on_fault: leave when
    the device has failed. debug: send tracebacks to clients.
    """

    host: str = "127.0.0.1"
    port: int = 8000
    api_key: str | None = None
    model_name: str = "oxygen"
    max_connections: int = 256
    max_frame_bytes: int = 64 * MIB
    max_body_bytes: int = 32 * MIB
    max_sessions: int = 256
    max_session_texts: int = 8
    max_in_flight: int = 4
    max_prompt_chars: int = 8192
    ping_interval_s: float = 20.0
    ping_timeout_s: float = 20.0
    send_timeout_s: float = 20.0
    answer_timeout_s: float = 120.0
    session_idle_s: float = 600.0
    stuck_after_s: float = 60.0
    exit_on_fault: bool = False
    max_frame_age_s: float | None = None
    max_camera_skew_s: float | None = None
    repeated_frames_warning: int = 20
    control_hz: float | None = None
    lerobot_port: int | None = None
    starvla_port: int | None = None
    record: Path | None = None
    rerun: bool = False
    drain_s: float = 10.0
    debug: bool = False

    def __post_init__(self) -> None:
        for field in fields(self):
            kind, optional, _ = str(field.type).partition(" | None")
            value = getattr(self, field.name)
            if kind not in _NUMBERS or (optional and value is None):
                continue
            what, number, low, high = _NUMBERS[kind]
            low, high = _BOUNDS.get(field.name, (low, high))
            check_number(field.name, value, f"{what} from {low:g} to {high:g}", low, high, number)
        for name in ("exit_on_fault", "rerun", "debug"):
            self._need(name, isinstance(getattr(self, name), bool), "true or false")
        self._need("host", isinstance(self.host, str) and 0 < len(self.host) < 256, "a name or an address")
        is_key = isinstance(self.api_key, str) and self.api_key.isascii() and self.api_key.isprintable()
        # An empty key would let everybody in who brings none.
        self._need("api_key", self.api_key is None or (is_key and bool(self.api_key.strip())), "printable ASCII")
        is_name = isinstance(self.model_name, str) and self.model_name.isprintable() and "@" not in self.model_name
        self._need("model_name", is_name and bool(self.model_name.strip()), "printable text without @")
        self._need("record", isinstance(self.record, Path | None), "a path")

    def _need(self, name: str, is_good: bool, expected: str) -> None:
        if not is_good:
            raise InvalidInput(name, expected, f"{getattr(self, name)!r:.80}")

    @property
    def is_loopback(self) -> bool:
        return self.host in LOOPBACK
