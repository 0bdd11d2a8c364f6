"""Runs the demo's episodes behind one door and keeps what is compared."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np

from oxygen.core.tasks import TextResult
from oxygen.demo.workload import wanted_texts
from oxygen.eval.doors import OpenDoor
from oxygen.sim.drive import Body, Episode, Look, run_episode

TEXT_TIMEOUT_S = 60.0


@dataclass(slots=True, eq=False)
class Spoken:
    """A finished text and the frame it describes. age_frames: frames that began between that frame and its end."""

    episode: int
    frame: int
    kind: str
    question: str | None
    result: TextResult


@dataclass(slots=True, eq=False)
class Run:
    """All episodes of one mode. loop_s: from first look to last action; drain_s: until the last text was out."""

    mode: str
    episodes: list[Episode] = field(default_factory=list)
    texts: list[Spoken] = field(default_factory=list)
    loop_s: float = 0.0
    drain_s: float = 0.0
    is_closed_loop: bool = True

    @property
    def looks(self) -> list[Look]:
        return [look for episode in self.episodes for look in episode.looks]

    @property
    def num_tokens(self) -> int:
        return sum(len(spoken.result.token_ids) for spoken in self.texts)

    def summary(self) -> dict[str, Any]:
        """The numbers of the comparison. Times are medians over frames or texts."""
        looks = self.looks
        seconds = max(self.loop_s, 1e-9)
        ready = [1e3 * look.action_wait_s for look in looks]
        return {
            "mode": self.mode,
            "success": sum(e.succeeded for e in self.episodes) if self.is_closed_loop else None,
            "episodes": len(self.episodes),
            "frames": len(looks),
            "frames_per_s": round(len(looks) / seconds, 2),
            "frame_ms": round(1e3 * seconds / max(1, len(looks)), 2),
            "action_ready_ms_p50": _median(ready),
            "action_ready_ms_p99": round(float(np.quantile(ready, 0.99)), 2) if ready else None,
            "texts": len(self.texts),
            "tokens_per_s": round(self.num_tokens / (seconds + self.drain_s), 1),
            "answer_age_frames_p50": _median([spoken.result.age_frames for spoken in self.texts]),
            "answer_age_ms_p50": _median([1e3 * spoken.result.age_s for spoken in self.texts]),
        }


def _median(values: list[Any]) -> float | None:
    return round(float(np.median(values)), 2) if values else None


def run_all(
    opened: OpenDoor,
    arms: Iterable[tuple[Callable[[], Body], int]],
    on_look: Callable[[Run, Body, Look], None],
    on_end: Callable[[Run], None],
    is_closed_loop: bool,
) -> Run:
    """Run each (arm, layout seed) in turn; on_look sees frames as their actions arrive, on_end every episode's end."""
    run = Run(opened.mode, is_closed_loop=is_closed_loop)
    for make_arm, seed in arms:
        arm = make_arm()
        try:
            episode = run_episode(
                arm,
                seed,
                opened.door,
                wanted=wanted_texts(arm.task.name),
                noise_shape=opened.noise_shape,
                on_look=partial(on_look, run, arm),
            )
        finally:
            arm.close()
        run.loop_s += episode.seconds
        started = time.perf_counter()
        for look in episode.looks:
            frame = look.observation.frame_id or 0
            for task, text in zip(look.texts, look.answer.texts, strict=True):
                result = text.result(TEXT_TIMEOUT_S)
                run.texts.append(Spoken(len(run.episodes), frame, task.kind, task.question, result))
        run.drain_s += time.perf_counter() - started
        run.episodes.append(episode)
        on_end(run)
    return run


def same_actions(a: Run, b: Run) -> bool:
    """Whether two runs executed the same chunks, bit for bit."""
    pairs = list(zip(a.looks, b.looks, strict=False))
    return len(a.looks) == len(b.looks) and all(np.array_equal(x.chunk, y.chunk) for x, y in pairs)


def same_texts(a: Run, b: Run) -> bool:
    """Whether two runs said the same of the same frames, token for token."""

    def said(run: Run) -> list[tuple[Any, ...]]:
        return [(s.episode, s.frame, s.kind, s.question, s.result.token_ids) for s in run.texts]

    return said(a) == said(b)
