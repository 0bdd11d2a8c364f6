"""Closed-loop evaluation: success per task, the wrong-instruction control, and the truth of the texts."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from rich.progress import Progress

from oxygen.core.tasks import TextTask
from oxygen.eval.counts import Count, count
from oxygen.eval.doors import OpenDoor
from oxygen.eval.texts import MAX_TOKENS, TextScores, all_questions, ask, balanced, open_questions
from oxygen.sim.arm import Arm
from oxygen.sim.drive import Episode, Look, no_texts, run_episode
from oxygen.sim.tasks import EVALUATION_SEEDS, TASKS


@dataclass(slots=True)
class Report:
    """Everything an evaluation found. action_ready_ms: of every frame, as the robot saw it.

    actions_sha256, texts_sha256: over all chunks and all texts in order. Two modes that serve the same frames exactly
    (promises E1 and E2) leave the same sums.
    """

    success: dict[str, Count] = field(default_factory=dict)
    twin: dict[str, Count] = field(default_factory=dict)
    texts: dict[str, tuple[Count, Count]] = field(default_factory=dict)
    yes_no: dict[str, Count] = field(default_factory=dict)
    open_answers: dict[str, Count] = field(default_factory=dict)
    num_frames: int = 0
    loop_s: float = 0.0
    action_ready_ms: list[float] = field(default_factory=list)
    actions_sha256: Any = field(default_factory=hashlib.sha256)
    texts_sha256: Any = field(default_factory=hashlib.sha256)

    @property
    def total_success(self) -> Count:
        return sum(self.success.values(), Count(0, 0))

    @property
    def total_twin(self) -> Count:
        return sum(self.twin.values(), Count(0, 0))

    @property
    def total_yes_no(self) -> Count:
        return sum(self.yes_no.values(), Count(0, 0))


@dataclass(frozen=True, slots=True)
class Wishes:
    """How much to evaluate. seed: which layouts (offset into EVALUATION_SEEDS). questions: per topic and answer."""

    tasks: tuple[str, ...] = tuple(TASKS)
    episodes: int = 20
    twin_episodes: int = 10
    seed: int = 0
    kinds: tuple[str, ...] = ("subtask", "memory", "narration")
    questions: int = 40

    def layouts(self, episodes: int) -> range:
        """Layout seeds never used in training or selection. Raises ValueError past their end."""
        chosen = EVALUATION_SEEDS[self.seed : self.seed + episodes]
        if len(chosen) < episodes:
            raise ValueError(f"seed {self.seed}: only {len(EVALUATION_SEEDS)} evaluation layouts are set apart")
        return chosen


def evaluate(opened: OpenDoor, wishes: Wishes, progress: Progress) -> Report:
    """Run everything that is wished for."""
    report = Report()
    scores = TextScores()
    looks: list[Look] = []
    bar = progress.add_task("episodes", total=len(wishes.tasks) * wishes.episodes)
    for name in wishes.tasks:
        episodes = []
        with Arm(name) as arm:
            for seed in wishes.layouts(wishes.episodes):
                episodes.append(_episode(arm, seed, opened, wishes.kinds))
                progress.advance(bar)
        _collect(report, scores, looks, name, episodes)
        progress.console.print(f"{name}: {report.success[name]}")
    report.texts = scores.counts()
    if wishes.twin_episodes:
        report.twin = twins(opened, wishes, progress)
    if wishes.questions and looks:
        asked = all_questions(looks, wishes.seed)
        progress.console.print(f"asking {wishes.questions} questions of each topic and answer")
        report.yes_no = dict(ask(opened.door, balanced(asked, wishes.questions, wishes.seed)))
        report.open_answers = dict(ask(opened.door, open_questions(asked, wishes.questions, wishes.seed)))
    return report


def _episode(arm: Arm, seed: int, opened: OpenDoor, kinds: Sequence[str]) -> Episode:
    """One episode with texts of every frame, waited for, so that no text of one episode meets the next."""
    texts = tuple(TextTask(kind, max_new_tokens=MAX_TOKENS[kind]) for kind in kinds)
    episode = run_episode(arm, seed, opened.door, wanted=lambda _: texts, noise_shape=opened.noise_shape)
    for look in episode.looks:
        for text in look.answer.texts:
            text.result(60.0)
    return episode


def _collect(report: Report, scores: TextScores, looks: list[Look], name: str, episodes: Sequence[Episode]) -> None:
    report.success[name] = count([episode.succeeded for episode in episodes])
    for episode in episodes:
        report.num_frames += len(episode.looks)
        report.loop_s += episode.seconds
        report.action_ready_ms += [1e3 * look.action_wait_s for look in episode.looks]
        looks += episode.looks
        for look in episode.looks:
            scores.add(look)
            report.actions_sha256.update(look.chunk.tobytes())
            for text in look.answer.texts:
                report.texts_sha256.update(text.result().text.encode() + b"\0")


def twins(opened: OpenDoor, wishes: Wishes, progress: Progress) -> dict[str, Count]:
    """Success of the scene's own task under the twin's instruction: it should be near zero if words matter."""
    found = {}
    chosen = [name for name in wishes.tasks if TASKS[name].twin is not None]
    bar = progress.add_task("wrong instruction", total=len(chosen) * wishes.twin_episodes)
    for name in chosen:
        twin = TASKS[name].twin
        assert twin is not None
        flags = []
        with Arm(name) as arm:
            for seed in wishes.layouts(wishes.twin_episodes):
                episode = run_episode(
                    arm,
                    seed,
                    opened.door,
                    wanted=no_texts,
                    instruction=TASKS[twin].instruction,
                    noise_shape=opened.noise_shape,
                    keep_looks=False,
                )
                flags.append(episode.succeeded)
                progress.advance(bar)
        found[name] = count(flags)
        progress.console.print(f"{name} told to {TASKS[twin].instruction}: {found[name]}")
    return found


def median_ms(values: Sequence[float]) -> float:
    return float(np.median(values)) if values else float("nan")


def timed(opened: OpenDoor, wishes: Wishes, progress: Progress) -> tuple[Report, float]:
    started = time.perf_counter()
    return evaluate(opened, wishes, progress), time.perf_counter() - started
