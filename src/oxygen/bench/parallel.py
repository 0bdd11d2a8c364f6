"""The isolated-parallel baseline: two processes with a model each, one makes the actions, the other the texts of a
frame."""

from __future__ import annotations

import multiprocessing
import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from typing import Any

from oxygen.bench.modes import FrameSample, Isolated
from oxygen.bench.probe import Rooms, VerbTimes
from oxygen.bench.setup import Setup
from oxygen.core.errors import OxygenError, Refused


@dataclass(frozen=True, slots=True)
class Job:
    """One frame's work for one of the two."""

    lengths: tuple[int, ...]
    num_steps: int
    threads: int


@dataclass(frozen=True, slots=True)
class _Refusal:
    """Why a process could not open its model."""

    message: str


class Pair:
    """The two processes. Both open the model once and wait, without using the processor, for their next frame."""

    def __init__(self, setup: Setup, tail_len: int) -> None:
        self.cores = os.cpu_count() or 1
        self.is_cpu = setup.device == "cpu"
        context = multiprocessing.get_context("spawn")
        self._children = []
        self.links: dict[str, Connection] = {}
        for role in ("actions", "texts"):
            ours, theirs = context.Pipe()
            child = context.Process(target=_serve, args=(theirs, setup, role, tail_len), daemon=True)
            child.start()
            theirs.close()
            self._children.append(child)
            self.links[role] = ours
        try:
            for role in self.links:
                self._receive(role)
        except (OxygenError, EOFError):
            self.close()
            raise

    def run(self, jobs: dict[str, Job]) -> dict[str, float]:
        """Hand out a frame; returns when each was done, in seconds from now."""
        started = time.perf_counter()
        for role, job in jobs.items():
            self.links[role].send(job)
        done: dict[str, float] = {}
        waiting = {role: self.links[role] for role in jobs}
        while waiting:
            ready = wait(list(waiting.values()))
            for role in [role for role, link in waiting.items() if link in ready]:
                self._receive(role)
                done[role] = time.perf_counter() - started
                del waiting[role]
        return done

    def peak_bytes(self) -> int:
        """Both peaks together."""
        for link in self.links.values():
            link.send("peak")
        return sum(int(self._receive(role)) for role in self.links)

    def close(self) -> None:
        for link in self.links.values():
            link.close()
        for child in self._children:
            child.join(timeout=10)
            if child.is_alive():
                child.kill()

    def _receive(self, role: str) -> Any:
        answer = self.links[role].recv()
        if isinstance(answer, _Refusal):
            raise Refused("memory", answer.message)
        return answer


class Parallel:
    """A frame is over when both processes are done with it; the next one then begins. threads: of each process."""

    name = "parallel"
    k = None

    def __init__(self, pair: Pair, num_steps: int, threads: int) -> None:
        self.threads = threads
        self._pair, self._num_steps = pair, num_steps

    def frame(self, lengths: Sequence[int]) -> FrameSample:
        job = Job(tuple(lengths), self._num_steps, self.threads)
        done = self._pair.run({"actions": job, "texts": job} if lengths else {"actions": job})
        frame_s, text_s = max(done.values()), done.get("texts", 0.0)
        count = len(lengths)
        verbs = VerbTimes(decode_s=frame_s, rounds=sum(lengths), tokens=sum(lengths))
        return FrameSample(frame_s, done["actions"], verbs, [], [0] * count, [text_s] * count, count)

    def close(self) -> None:
        """The pair is closed by who made it."""


def variants(cores: int) -> tuple[int, ...]:
    """Threads per process worth trying: half of the cores each, and all of them each."""
    return tuple(sorted({max(1, cores // 2), cores}))


def open_pair(setup: Setup, tail_len: int, tell: Callable[[str], None]) -> Pair | None:
    """Open both processes; where memory does not allow it, say so and return None."""
    try:
        return Pair(setup, tail_len)
    except Refused as refused:
        tell(f"parallel: not measured, two more copies of the model do not fit ({refused})")
        return None


def _serve(link: Connection, setup: Setup, role: str, tail_len: int) -> None:
    """A child's life: open, say so, do frames until the pipe is closed."""
    from oxygen.bench.torch.device import peak_bytes, reset_peak, set_threads

    try:
        rooms = Rooms(setup.open(max_contexts=1, max_texts=1, tail_len=tail_len))
    except OxygenError as error:
        link.send(_Refusal(str(error)))
        return
    reset_peak(setup.device)  # opening is no part of a frame's work
    link.send("ready")
    worker: Isolated | None = None
    made_for = -1
    while True:
        try:
            job = link.recv()
        except EOFError:
            return
        if job == "peak":
            link.send(peak_bytes(setup.device))
            continue
        if setup.device == "cpu":
            set_threads(job.threads)
        if worker is None or made_for != job.num_steps:
            rooms.clear()
            worker, made_for = Isolated(rooms.take(1, 1), setup.frames(), job.num_steps), job.num_steps
        worker.frame(()) if role == "actions" else worker.texts_alone(job.lengths)
        link.send("done")
