"""What a person sees while the demo runs: a live panel on a terminal, two lines per episode everywhere."""

from __future__ import annotations

import threading
import time
from collections import deque
from types import TracebackType

from rich.console import Console, Group
from rich.live import Live
from rich.padding import Padding
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from oxygen.core.tasks import TextResult
from oxygen.demo.measure import Run
from oxygen.sim.drive import Body, Look
from oxygen.sim.drive import Text as TextInProgress
from oxygen.tickets.record import StepRecord

WINDOW = 30
RATE_WINDOW_S = 3.0
KINDS = ("subtask", "narration", "memory", "answer")
MEANINGS = {
    "oxygen": "one prefill per camera frame, read by the actions and by all texts",
    "isolated": "the same without sharing: a prefill for every task, one after another",
}
LEGEND = "late: camera frames that came between a text's frame and its last word"


class View:
    """Use as a context manager; feed it frames (`look`), the engine's records (`record`), and ends (`end`)."""

    def __init__(self, console: Console, mode: str, num_episodes: int) -> None:
        self._console, self._mode, self._num_episodes = console, mode, num_episodes
        self._lock = threading.Lock()
        self._live = Live(console=console, refresh_per_second=8, transient=True) if console.is_terminal else None
        self._growing: dict[tuple[str, int], str] = {}
        self._last: dict[str, TextResult] = {}
        self._questions: dict[int, str] = {}
        self._tokens: deque[tuple[float, int]] = deque(maxlen=400)
        self._frames: deque[float] = deque(maxlen=WINDOW)
        self._waiting: list[TextInProgress] = []
        self._run: Run | None = None
        self._body: Body | None = None
        self._look: Look | None = None

    def __enter__(self) -> View:
        self._console.print(f"[bold]{self._mode}[/]: {MEANINGS[self._mode]}", highlight=False)
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
                self._last[result.kind] = result

    def look(self, run: Run, body: Body, look: Look) -> None:
        """A frame whose actions have just come."""
        with self._lock:
            self._frames.append(time.perf_counter())
            self._run, self._body, self._look = run, body, look
            for question in [task.question for task in look.texts if task.question]:
                self._questions[look.observation.frame_id or 0] = question
            if run.mode == "isolated":  # no engine, no records: its texts come whole
                self._waiting += look.answer.texts
                for text in [text for text in self._waiting if text.is_done]:
                    result = self._last[text.kind] = text.result()
                    self._tokens.append((time.perf_counter(), len(result.token_ids)))
                    self._waiting.remove(text)
        if self._live is not None:
            self._live.update(self.panel())

    def end(self, run: Run) -> None:
        """An episode is over."""
        episode = run.episodes[-1]
        outcome = "done" if episode.succeeded else "not done" if run.is_closed_loop else "replayed"
        words = [s.result.text for s in run.texts if s.episode == len(run.episodes) - 1 and s.kind == "narration"]
        self._console.print(
            f"  {episode.instruction:<22} {outcome:<9} {episode.num_steps:>4} control steps, {len(episode.looks):>3} "
            f"frames, {episode.seconds:5.1f} s",
            markup=False,
            highlight=False,
        )
        if words:
            self._console.print(Padding(Text(f"“{words[-1]}”", style="dim italic"), (0, 0, 0, 4), expand=False))
        with self._lock:
            for kept in (self._growing, self._waiting, self._last, self._questions, self._frames, self._tokens):
                kept.clear()

    def panel(self) -> Panel:
        """The state of the run after the newest frame."""
        with self._lock:
            assert self._run is not None
            parts = Group(self._figures(), "", self._words())
            number = len(self._run.episodes) + 1
        how = "" if self._run.is_closed_loop else ", recorded (open loop)"
        title = f"oxygen demo: {self._mode}{how}, episode {number} of {self._num_episodes}"
        return Panel(parts, title=title, subtitle=LEGEND, width=min(self._console.width, 110))

    def _figures(self) -> Table:
        run, body, look = self._run, self._body, self._look
        assert run is not None and body is not None and look is not None
        table = Table.grid(padding=(0, 2))
        table.add_column(style="dim", no_wrap=True)
        table.add_column(no_wrap=True, overflow="ellipsis")
        table.add_row("task", Text(look.observation.prompt or "", style="bold"))
        done = sum(e.succeeded for e in run.episodes)
        before = f"; tasks done before: {done} of {len(run.episodes)}" if run.episodes and run.is_closed_loop else ""
        table.add_row("robot", f"control step {body.num_steps}, camera frame {look.observation.frame_id}{before}")
        table.add_row("frames", f"{_rate(self._frame_rate(), 1)} per second")
        table.add_row("actions", f"ready {1e3 * look.action_wait_s:.1f} ms after this frame")
        num_texts = len(self._growing) + len(self._waiting)
        table.add_row("text", f"{_rate(self._token_rate(), 0)} tokens per second; texts in progress: {num_texts}")
        return table

    def _words(self) -> Table:
        """Newest complete text of each kind, then what is being written."""
        table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False, expand=True, header_style="dim")
        table.add_column("what it says", style="dim", no_wrap=True)
        table.add_column("", ratio=1)
        table.add_column("of frame", justify="right", no_wrap=True)
        table.add_column("late", justify="right", no_wrap=True)
        for kind in KINDS:
            result = self._last.get(kind)
            if result is None:
                table.add_row(kind, "")
                continue
            words = self._asked(kind, result.frame_id) + result.text
            table.add_row(kind, Text(words, style="green"), str(result.frame_id), str(result.age_frames))
        for (kind, frame), words in sorted(self._growing.items(), key=lambda item: item[0][1]):
            growing = Text(self._asked(kind, frame) + words + "▌", style="yellow", no_wrap=True, overflow="ellipsis")
            table.add_row(kind, growing, str(frame), "…")
        return table

    def _asked(self, kind: str, frame: int) -> str:
        return f"{self._questions[frame]} " if kind == "answer" and frame in self._questions else ""

    def _frame_rate(self) -> float | None:
        if len(self._frames) < 2:
            return None
        return (len(self._frames) - 1) / max(1e-9, self._frames[-1] - self._frames[0])

    def _token_rate(self) -> float | None:
        recent = [(at, n) for at, n in self._tokens if at > time.perf_counter() - RATE_WINDOW_S]
        if len(recent) < 2:
            return None
        return sum(n for _, n in recent) / max(1e-9, recent[-1][0] - recent[0][0])


def _rate(value: float | None, digits: int) -> str:
    return "–" if value is None else f"{value:.{digits}f}"
