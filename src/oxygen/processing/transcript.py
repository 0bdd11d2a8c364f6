"""A text as it grows: detokenized, cut at stop strings, and held back while a stop string may have begun."""

from __future__ import annotations

from oxygen.core.tasks import TextTask
from oxygen.processing.interface import TokenStream


class Transcript:
    """Takes tokens, gives pieces. All that `take` and `finish` return, joined, is the text; no part of a stop string
    shows."""

    def __init__(self, task: TextTask, stream: TokenStream, eos_ids: tuple[int, ...]) -> None:
        self.token_ids: list[int] = []  # of the text: an end-of-text token is not among them
        self.pieces: list[str] = []
        self._task = task
        self._stream = stream
        self._eos_ids = () if task.ignore_eos else eos_ids
        self._held = ""
        self._is_over = False

    @property
    def text(self) -> str:
        return "".join(self.pieces)

    def push(self, token_id: int) -> str:
        """Take one sampled token; return why the text is over (`stop`, `length`), or an empty string."""
        if token_id in self._eos_ids:
            self._extend(self._stream.finish())
            self._is_over = True
        else:
            self.token_ids.append(token_id)
            self._extend(self._stream.push(token_id))
        if self._is_over:
            return "stop"
        return "length" if len(self.token_ids) >= self._task.max_new_tokens else ""

    def take(self) -> str:
        """Return what can no longer become part of a stop string."""
        at = len(self._held) - (0 if self._is_over else self._num_doubtful())
        piece, self._held = self._held[:at], self._held[at:]
        if piece:
            self.pieces.append(piece)
        return piece

    def finish(self) -> str:
        """The text is over, for whatever reason: return what is left."""
        if not self._is_over:
            self._extend(self._stream.finish())
            self._is_over = True
        return self.take()

    def _extend(self, piece: str) -> None:
        self._held += piece
        found = [at for stop in self._task.stop if (at := self._held.find(stop)) >= 0]
        if found:
            self._held, self._is_over = self._held[: min(found)], True

    def _num_doubtful(self) -> int:
        """Length of the longest end of the held text with which some stop string begins."""
        stops = self._task.stop
        longest = min(len(self._held), max(map(len, stops), default=1) - 1)
        return next((n for n in range(longest, 0, -1) if any(s.startswith(self._held[-n:]) for s in stops)), 0)
