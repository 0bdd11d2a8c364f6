"""What passes through the gateway: a frame as a door read it, the same frame on its way, and who may listen in."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from oxygen.core.tasks import ActionResult, ActionTask, Observation, TextTask
from oxygen.serving.feed import Event
from oxygen.serving.sessions import Session
from oxygen.tickets.ticket import Ticket


class Tap(Protocol):
    """Sees everything that passes (the recorder, the viewer). Called on the event loop; must not block."""

    def on_observation(self, session: str, observation: Observation, frame_id: int | None, at: float) -> None: ...

    def on_actions(self, session: str, result: ActionResult, at: float) -> None: ...

    def on_text(self, event: Event) -> None: ...

    def close(self) -> None: ...


@dataclass(slots=True)
class Frame:
    """A request as a door read it: the openpi-style map (or an observation already made) and what is wanted of it."""

    raw: Mapping[str, Any] | None
    action: ActionTask | None
    texts: tuple[TextTask, ...] = ()
    frame_id: int | None = None
    captured_at: Any = None
    observation: Observation | None = None


@dataclass(slots=True)
class Flight:
    """A frame on its way: the engine's ticket, ids of its texts, and what looked odd about it."""

    session: Session
    observation: Observation
    ticket: Ticket
    door: str
    started: float
    text_ids: tuple[str, ...] = ()
    warnings: list[tuple[str, str]] = field(default_factory=list)
    refused_texts: tuple[TextTask, ...] = ()

    @property
    def frame_id(self) -> int | None:
        return self.ticket.frame_id
