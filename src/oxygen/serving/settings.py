"""Everything that can be set on a server, with defaults that are safe on a desk: loopback, bounded, no key needed."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from oxygen.core.errors import InvalidInput

MIB = 1024 * 1024
LOOPBACK = frozenset({"127.0.0.1", "::1", "localhost"})


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
        for name in ("port", "lerobot_port", "starvla_port"):
            port = getattr(self, name)
            if port is not None and not 0 <= port <= 65535:
                raise InvalidInput(name, "an integer from 0 to 65535", repr(port))
        for name in ("max_connections", "max_frame_bytes", "max_body_bytes", "max_sessions", "max_in_flight"):
            if getattr(self, name) < 1:
                raise InvalidInput(name, "an integer of at least 1", repr(getattr(self, name)))

    @property
    def is_loopback(self) -> bool:
        return self.host in LOOPBACK
