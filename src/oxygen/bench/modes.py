"""One frame of work, as each mode does it: OxyGen's engine in lockstep, and the baselines from the same runner's verbs.

Every mode gets the same frames and the same texts: `frame(lengths)` does one frame with one text per length (tokens).
The baselines are as quick as these verbs allow; what they lack is sharing and batching, which is what is to be
measured.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from oxygen.bench.probe import Probe, VerbTimes
from oxygen.bench.processor import BenchProcessor
from oxygen.bench.shapes import Frames
from oxygen.core.config import EngineConfig
from oxygen.core.inputs import ContextInputs
from oxygen.core.plan import DecodeItem, PrefillItem
from oxygen.core.tasks import ActionTask, Observation, Sampling, TextTask
from oxygen.engine.engine import Engine
from oxygen.tickets.record import StepRecord

GREEDY = Sampling()
Readers = tuple[tuple[str, tuple[int, ...]], ...]
_frame_keys = itertools.count(1_000_000)
_observed = Observation(images={})


@dataclass(slots=True)
class FrameSample:
    """One frame, measured.

    ready_s: from the frame's arrival to its actions. live: texts alive. parts: management by part (OxyGen). ttft_s and
    age: of texts that ended in this frame.
    """

    frame_s: float = 0.0
    ready_s: float = 0.0
    verbs: VerbTimes = field(default_factory=VerbTimes)
    ttft_s: list[float] = field(default_factory=list)
    age_frames: list[int] = field(default_factory=list)
    age_s: list[float] = field(default_factory=list)
    live: int = 0
    parts: dict[str, float] = field(default_factory=dict)

    @property
    def management_s(self) -> float:
        return self.frame_s - self.verbs.runner_s


class Mode(Protocol):
    """name as in the rows of a report. k: rounds a frame, None where it means nothing."""

    @property
    def name(self) -> str: ...

    @property
    def k(self) -> int | None: ...

    def frame(self, lengths: Sequence[int]) -> FrameSample:
        """Do one frame with one new text per length."""

    def close(self) -> None: ...


class OneByOne:
    """What the baselines have in common: one context row, one tail row, one thing after another."""

    name = ""
    k: int | None = None
    finishes = True

    def __init__(
        self, probe: Probe, frames: Frames, num_steps: int, clock: Callable[[], float] = time.perf_counter
    ) -> None:
        self._probe, self._frames, self._clock = probe, frames, clock
        self._chunks = frames.chunks(probe.limits, 0, num_steps)

    def frame(self, lengths: Sequence[int]) -> FrameSample:
        self._probe.take()
        started = self._clock()
        inputs = self.act()
        sample = FrameSample(ready_s=self._clock() - started, live=len(lengths))
        for length in lengths:
            sample.ttft_s.append(self.text(inputs, length) - started)
            if self.finishes:
                sample.age_s.append(self._clock() - started)
                sample.age_frames.append(0)
        self._probe.forget([0], [])
        sample.frame_s, sample.verbs = self._clock() - started, self._probe.take()
        return sample

    def act(self) -> ContextInputs:
        """Prefill the next frame and make its actions."""
        inputs = self._frames.make()
        self.prefill(inputs, self._frames.readers)
        self._probe.act(self._chunks)
        return inputs

    def prefill(self, inputs: ContextInputs, readers: Readers = ()) -> None:
        """Write a context anew, pictures and all: isolated tasks know nothing of each other."""
        self._probe.prefill([PrefillItem(0, 0, inputs, next(_frame_keys), readers)])

    def text(self, inputs: ContextInputs, length: int) -> float:
        """Make one text of the frame; returns when its first token was there."""
        return self.decode(inputs.num_tokens, length)

    def decode(self, context_len: int, num_tokens: int) -> float:
        """Decode in one go, at batch one."""
        first_at = 0.0
        left = num_tokens

        def after_round(tokens: Sequence[int]) -> list[bool]:
            nonlocal first_at, left
            first_at = first_at or self._clock()
            left -= 1
            return [left > 0]

        self._probe.decode([DecodeItem(0, 0, 0, context_len, 0, 0, (), 0, num_tokens, GREEDY)], num_tokens, after_round)
        self._probe.forget([], [0])
        return first_at

    def close(self) -> None:
        self._probe.close()


class Isolated(OneByOne):
    """Each task on its own, one after another: prefill and act; then for every text, prefill and decode to the end."""

    name = "isolated"

    def text(self, inputs: ContextInputs, length: int) -> float:
        self._probe.forget([0], [])
        self.prefill(inputs)
        return self.decode(inputs.num_tokens, length)

    def texts_alone(self, lengths: Sequence[int]) -> None:
        """The texts of the next frame, without its actions."""
        inputs = self._frames.make()
        for length in lengths:
            self.text(inputs, length)
        self._probe.forget([0], [])


class Shared(OneByOne):
    """One prefill for all tasks of the frame, but its texts are decoded to the end, alone, before the next frame."""

    name = "shared"


class UpperBound(OneByOne):
    """The single-frame bound of the paper: k tokens of each text, and the rest of it is dropped. No text is
    finished."""

    name = "upper_bound"
    finishes = False

    def __init__(
        self,
        probe: Probe,
        frames: Frames,
        num_steps: int,
        k: int,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        super().__init__(probe, frames, num_steps, clock)
        self.k = k

    def text(self, inputs: ContextInputs, length: int) -> float:
        return self.decode(inputs.num_tokens, min(length, self.k or length))


class OwnTime:
    """A clock that runs only during a mode's own frames: what the others do meanwhile makes no answer older."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._before, self._since = 0.0, clock()
        self._is_running = False

    def __call__(self) -> float:
        return self._before + (self._clock() - self._since if self._is_running else 0.0)

    def run(self) -> None:
        self._since, self._is_running = self._clock(), True

    def stop(self) -> None:
        self._before, self._is_running = self(), False


class Oxygen:
    """The engine itself, stepped in lockstep: one frame in, one step. It needs a probe with rows for every live
    text."""

    name = "oxygen"

    def __init__(
        self,
        probe: Probe,
        frames: Frames,
        num_steps: int,
        k: int,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self.k = k
        self._probe, self._clock = probe, clock
        self._task = ActionTask("all" if frames.readers else "action", num_steps=num_steps, seed=0)
        config = EngineConfig(budget=f"fixed:{k}", keep_context_s=0.0, max_waiting_texts=0)
        self._time = OwnTime(clock)
        self.engine = Engine(probe, BenchProcessor(frames), config, clock=self._time)

    def frame(self, lengths: Sequence[int]) -> FrameSample:
        texts = [TextTask("narration", max_new_tokens=length, ignore_eos=True) for length in lengths]
        self._probe.take()
        self._time.run()
        started = self._clock()
        ticket = self.engine.submit(_observed, self._task, texts)
        record = self.engine.step()
        frame_s = self._clock() - started
        self._time.stop()
        return self._sample(frame_s, ticket.actions(0).ready_s, record)

    def _sample(self, frame_s: float, ready_s: float, record: StepRecord) -> FrameSample:
        done, verbs, seconds = record.results, self._probe.take(), record.seconds
        parts = {name: seconds.get(name, 0.0) for name in ("plan", "deliver", "commit", "deliver_text")}
        parts["rounds"] = verbs.host_s
        parts["rest"] = frame_s - verbs.runner_s - sum(parts.values())
        return FrameSample(
            frame_s,
            ready_s,
            verbs,
            ttft_s=[r.ttft_s for r in done if r.ttft_s is not None],
            age_frames=[r.age_frames for r in done],
            age_s=[r.age_s for r in done],
            live=record.live_texts,
            parts=parts,
        )

    def close(self) -> None:
        """End what is live; all rows are free after."""
        self.engine.close()
        stats = self.engine.stats()
        if stats.context_rows or stats.tail_rows:
            raise RuntimeError(f"{stats.context_rows} context and {stats.tail_rows} tail rows are not free at the end")
        limits = self._probe.limits
        self._probe.forget(range(limits.max_contexts), range(limits.max_texts))
