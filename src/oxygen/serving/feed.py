"""Events to whoever listens, bounded: a listener that stops reading loses the oldest events and is told how many.

Lives on the event loop; nothing here is called from another thread.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator
from typing import Any

Event = dict[str, Any]
ANY = "*"


class Subscription:
    """One listener's queue of events of some types (None: all). Iterate it; leaving the `with` block ends it."""

    def __init__(self, feed: Feed, session: str, types: frozenset[str] | None, limit: int) -> None:
        self.session = session
        self._feed = feed
        self._types = types
        self._queue: deque[Event] = deque()
        self._limit = limit
        self._num_dropped = 0
        self._changed = asyncio.Event()
        self._is_closed = False

    def __enter__(self) -> Subscription:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._feed.unsubscribe(self)

    def put(self, event: Event) -> None:
        if self._types is not None and event["type"] not in self._types:
            return
        if len(self._queue) >= self._limit:
            self._queue.popleft()
            self._num_dropped += 1
        self._queue.append(event)
        self._changed.set()

    def close(self) -> None:
        self._is_closed = True
        self._changed.set()

    def drain(self) -> list[Event]:
        """Everything that waits, with a `gap` event first if some was lost."""
        events = list(self._queue)
        self._queue.clear()
        if self._num_dropped:
            events.insert(0, {"type": "gap", "dropped": self._num_dropped})
            self._num_dropped = 0
        return events

    async def wait(self, timeout: float | None = None) -> list[Event]:
        """The next events; an empty list after `timeout` seconds without any, or when the feed has been closed."""
        if not self._queue and not self._is_closed:
            self._changed.clear()
            try:
                await asyncio.wait_for(self._changed.wait(), timeout)
            except TimeoutError:
                return []
        return self.drain()

    @property
    def is_closed(self) -> bool:
        return self._is_closed and not self._queue

    async def __aiter__(self) -> AsyncIterator[Event]:
        while not self.is_closed:
            for event in await self.wait():
                yield event


class Feed:
    """Fans events out to the subscriptions of a session (or of all sessions)."""

    def __init__(self, limit: int = 512) -> None:
        self._limit = limit
        self._subscriptions: dict[str, set[Subscription]] = {}

    def subscribe(self, session: str = ANY, types: frozenset[str] | None = None) -> Subscription:
        subscription = Subscription(self, session, types, self._limit)
        self._subscriptions.setdefault(session, set()).add(subscription)
        return subscription

    def unsubscribe(self, subscription: Subscription) -> None:
        group = self._subscriptions.get(subscription.session, set())
        group.discard(subscription)
        if not group:
            self._subscriptions.pop(subscription.session, None)

    def publish(self, session: str, event: Event) -> None:
        for name in (session, ANY):
            for subscription in self._subscriptions.get(name, ()):
                subscription.put(event)

    def close(self) -> None:
        for group in self._subscriptions.values():
            for subscription in group:
                subscription.close()

    @property
    def num_subscriptions(self) -> int:
        return sum(len(group) for group in self._subscriptions.values())
