"""Who is connected: one session per robot name, owned by at most one link.

The rule for a name presented twice: the newest link takes over at once, the old one is closed and told why. A link that
dies releases its name without any handshake, because the name never blocked anybody.
"""

from __future__ import annotations

import asyncio
import itertools
import re
import time
from collections import deque
from typing import Any, Protocol

from oxygen.core.errors import InvalidInput, Refused
from oxygen.core.tasks import ActionResult, Observation
from oxygen.serving.freshness import Freshness
from oxygen.serving.settings import ServeSettings
from oxygen.tickets.ticket import TextHandle

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:@-]{0,63}")


class Owner(Protocol):
    """A link, as seen from here."""

    def evict(self, reason: str) -> None:
        """Another link took the session over: close, and say so."""

    async def dismiss(self, reason: str) -> None:
        """The server stops: say so, and close."""


class Session:
    """What is known of one robot: its newest frame, its newest chunk, its texts."""

    def __init__(self, name: str, door: str, settings: ServeSettings) -> None:
        self.name = name
        self.door = door
        self.owner: Owner | None = None
        self.resetting: asyncio.Task[None] | None = None
        self.opened_at = time.time()
        self.last_seen = time.monotonic()
        self.observation: Observation | None = None
        self.frame_id: int | None = None
        self.action: ActionResult | None = None
        self.live_texts: dict[str, TextHandle] = {}
        self.recent_texts: deque[dict[str, Any]] = deque(maxlen=50)
        self.ready_ms: deque[float] = deque(maxlen=256)
        self.frame_times: deque[float] = deque(maxlen=64)
        self.num_frames = 0
        self.num_refused = 0
        self.warnings: deque[dict[str, Any]] = deque(maxlen=20)
        self.freshness = Freshness(
            settings.max_frame_age_s, settings.max_camera_skew_s, settings.repeated_frames_warning
        )

    @property
    def frame_rate_hz(self) -> float:
        times = self.frame_times
        span = times[-1] - times[0] if len(times) > 1 else 0.0
        return (len(times) - 1) / span if span > 0 and time.monotonic() - times[-1] < 2.0 + span else 0.0

    def clear(self) -> None:
        """Forget the episode, not the identity."""
        self.observation = self.frame_id = self.action = None
        self.freshness.reset()


class Sessions:
    """All sessions of the server. Event loop only."""

    def __init__(self, settings: ServeSettings) -> None:
        self._settings = settings
        self._sessions: dict[str, Session] = {}
        self._numbers = itertools.count(1)

    def __iter__(self) -> Any:
        return iter(list(self._sessions.values()))

    def __len__(self) -> int:
        return len(self._sessions)

    def claim(self, name: str | None, door: str, owner: Owner) -> tuple[Session, bool]:
        """Open a session for a link, or take it over; also says whether the name was known before.

        Raises InvalidInput for a name that is none, Refused when the server is full of live sessions.
        """
        if name is None:
            name = next(n for i in self._numbers if (n := f"robot-{i}") not in self._sessions)
        if not isinstance(name, str) or not _NAME.fullmatch(name):
            raise InvalidInput("session", "1 to 64 letters, digits or . _ : @ -", repr(name)[:80])
        session = self._sessions.get(name)
        was_known = session is not None
        if session is None:
            self._make_room()
            session = self._sessions[name] = Session(name, door, self._settings)
        if session.owner is not None and session.owner is not owner:
            session.owner.evict(f"session {name} was taken over by a newer connection")
        session.owner, session.door = owner, door
        session.last_seen = time.monotonic()
        return session, was_known

    def release(self, session: Session, owner: Owner) -> None:
        """The link is gone. A session that another link has taken over is left alone."""
        if session.owner is owner:
            session.owner = None
            session.last_seen = time.monotonic()

    def get(self, name: str) -> Session:
        session = self._sessions.get(name)
        if session is None:
            raise InvalidInput("session", f"one of {sorted(self._sessions)}", repr(name)[:80])
        return session

    def find(self, name: str | None) -> Session:
        """The named session, or the only one that is connected."""
        if name is not None:
            return self.get(name)
        live = [s for s in self._sessions.values() if s.owner is not None]
        if len(live) == 1:
            return live[0]
        if not live:
            raise Refused("no_session", "no robot is connected, so there is nothing to look at", retry_after_s=1.0)
        raise InvalidInput("session", f"one of {sorted(s.name for s in live)}", "none, and several are connected")

    def sweep(self) -> list[Session]:
        """Drop sessions that nobody has owned for a while; returns them."""
        horizon = time.monotonic() - self._settings.session_idle_s
        gone = [s for s in self._sessions.values() if s.owner is None and s.last_seen < horizon]
        for session in gone:
            del self._sessions[session.name]
        return gone

    def _make_room(self) -> None:
        if len(self._sessions) < self._settings.max_sessions:
            return
        ownerless = [s for s in self._sessions.values() if s.owner is None]
        if not ownerless:
            raise Refused(
                "too_many_sessions", f"all {self._settings.max_sessions} sessions are in use", retry_after_s=5.0
            )
        del self._sessions[min(ownerless, key=lambda s: s.last_seen).name]
