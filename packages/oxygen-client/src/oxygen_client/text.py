"""Text that arrives in pieces while the robot moves."""

from __future__ import annotations

import asyncio
from typing import AsyncIterator, List, Optional

from oxygen_client.messages import TextEvent


class AsyncText:
    """One text in progress. Iterate it for the pieces, or await `result()` for the whole.

    After the end, `final` is the last event: why it ended, and how old the described frame was by then.
    """

    def __init__(self, text_id: str) -> None:
        self.id = text_id
        self.final: Optional[TextEvent] = None
        self._pieces: List[str] = []
        self._changed = asyncio.Event()

    @property
    def text(self) -> str:
        """What has arrived so far."""
        return "".join(self._pieces)

    def feed(self, event: TextEvent) -> None:
        """Called by the client for every event of this text."""
        if self.final is not None:
            return
        if event.delta:
            self._pieces.append(event.delta)
        if event.done:
            self.final = event
        self._changed.set()

    async def __aiter__(self) -> AsyncIterator[str]:
        num_read = 0
        while True:
            while num_read < len(self._pieces):
                num_read += 1
                yield self._pieces[num_read - 1]
            if self.final is not None:
                return
            self._changed.clear()
            await self._changed.wait()

    async def result(self, timeout: Optional[float] = None) -> str:
        """The whole text. Raises asyncio.TimeoutError when it is not complete in time."""

        async def complete() -> str:
            async for _ in self:
                pass
            return self.text

        return await asyncio.wait_for(complete(), timeout)
