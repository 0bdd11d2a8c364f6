"""What a person sees while the demo runs: a live panel on a terminal, a line per episode elsewhere."""

from __future__ import annotations

import threading
import time
from collections import deque
from types import TracebackType

from rich.console import Console, Group
from rich.live import Live
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from oxygen.demo.measure import Run
from oxygen.sim.drive import Body, Look
from oxygen.sim.drive import Text as TextInProgress
from oxygen.tickets.record import StepRecord

WINDOW = 30
KINDS = ("subtask", "narration", "memory", "answer")


class View:
    """Use as a context manager; feed it frames (`look`), the engine's records (`record`), and ends (`end`)."""

    def __init__(self, console: Console, out: str) -> None:
        self._console, self._out = console, out
        self._lock = threading.Lock()
        self._live = Live(console=console, refresh_per_second=8, transient=True) if console.is_terminal else None
        self._growing: dict[tuple[str, int], str] = {}
        self._last: dict[str, tuple[str, int, int]] = {}
        self._tokens: deque[tuple[float, int]] = deque(maxlen=400)
        self._frames: deque[float] = deque(maxlen=WINDOW)
        self._waiting: list[TextInProgress] = []
        self._run: Run | None = None
        self._body: Body | None = None
        self._look: Look | None = None

    def __enter__(self) -> View:
        if self._live is not None:
            self._live.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if self._live is not None:
            self._live.stop()

    def record(self, record: StepRecord) -> None:
        """One step of the engine (its thread): pieces of text and ended texts."""
        with self._lock:
            self._tokens.append((time.perf_counter(), record.num_tokens))
            for _, kind, frame, piece in record.pieces:
                self._growing[(kind, frame)] = self._growing.get((kind, frame), "") + piece
            for result in record.results:
                self._growing.pop((result.kind, result.frame_id), None)
                self._last[result.kind] = (result.text, result.frame_id, result.age_frames)

    def look(self, run: Run, body: Body, look: Look) -> None:
        """A frame whose actions have just come."""
        with self._lock:
            self._frames.append(time.perf_counter())
            self._run, self._body, self._look = run, body, look
            if run.mode == "isolated":
                self._waiting += look.answer.texts
                for text in [text for text in self._waiting if text.is_done]:
                    result = text.result()
                    self._last[text.kind] = (result.text, result.frame_id, result.age_frames)
                    self._waiting.remove(text)
        if self._live is not None:
            self._live.update(self._panel())

    def end(self, run: Run) -> None:
        """An episode is over."""
        episode = run.episodes[-1]
        outcome = "succeeded" if episode.succeeded else "did not succeed" if run.is_closed_loop else "was replayed"
        words = [s.result.text for s in run.texts if s.episode == len(run.episodes) - 1 and s.kind == "narration"]
        self._console.print(
            f"[{run.mode}] {episode.instruction!r} {outcome} in {episode.num_steps} control steps, "
            f"{len(episode.looks)} frames, {episode.seconds:.1f} s; last narration: {words[-1] if words else '-'}",
            markup=False,
            highlight=False,
        )
        with self._lock:
            self._growing.clear()
            self._waiting.clear()
            self._last.clear()
            self._frames.clear()

    def _panel(self) -> Panel:
        with self._lock:
            run, body, look = self._run, self._body, self._look
            assert run is not None and body is not None and look is not None
            table = Table(box=None, show_header=False, padding=(0, 2, 0, 0))
            table.add_column(style="dim", no_wrap=True)
            table.add_column(overflow="fold")
            successes = sum(e.succeeded for e in run.episodes)
            table.add_row("task", Text(look.observation.prompt or "", style="bold"))
            table.add_row("episodes", f"{len(run.episodes)} done, {successes} succeeded; control step {body.num_steps}")
            table.add_row("frames/s", f"{self._frame_rate():.1f}")
            table.add_row("action ready", f"{1e3 * look.action_wait_s:.1f} ms")
            table.add_row("tokens/s", f"{self._token_rate():.0f}")
            now = look.observation.frame_id or 0
            for (kind, frame), words in sorted(self._growing.items(), key=lambda item: item[0][1]):
                table.add_row(f"… {kind}", Text(f"{words}  (frame {frame}, {max(0, now - frame)} ago)", style="yellow"))
            for kind in KINDS:
                if kind in self._last:
                    words, frame, age = self._last[kind]
                    table.add_row(kind, Text(f"{words}  (of frame {frame}, came {age} frames later)", style="green"))
        title = f"oxygen demo: {run.mode}" + ("" if run.is_closed_loop else ", recorded episode (open loop)")
        return Panel(Group(table), title=title, subtitle=self._out)

    def _frame_rate(self) -> float:
        if len(self._frames) < 2:
            return 0.0
        return (len(self._frames) - 1) / max(1e-9, self._frames[-1] - self._frames[0])

    def _token_rate(self) -> float:
        recent = [(at, n) for at, n in self._tokens if at > time.perf_counter() - 3.0]
        if len(recent) < 2:
            return 0.0
        return sum(n for _, n in recent) / max(1e-9, recent[-1][0] - recent[0][0])
