"""`oxygen bench frame --experts pi,gr00t,oft`: one to three action experts and the language expert on one prefill.

Random weights and made-up prompts: it measures what the system does, the actions mean nothing. E counts the language
expert, as the paper's Table 4 does. Either every expert has a prompt of its own behind a common core (as they are
trained), or all have the identical prompt (the paper's simplification); every row says which.
"""

from __future__ import annotations

import argparse
import itertools
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from oxygen.bench.arrivals import warm_up_frames
from oxygen.bench.families import SIDE, picture_ids, readers
from oxygen.bench.machine import Machine
from oxygen.bench.measure import expected_batch, is_due, put
from oxygen.bench.probe import Probe
from oxygen.bench.processor import Letters
from oxygen.bench.report import Report
from oxygen.core.config import EngineConfig
from oxygen.core.errors import InvalidInput
from oxygen.core.inputs import ContextInputs, EncodedTask, ModelInputs
from oxygen.core.plan import ActItem, DecodeItem, PrefillItem, Runner
from oxygen.core.tasks import ActionTask, Observation, Sampling, TextTask
from oxygen.engine.engine import Engine
from oxygen.models.qwen3_vl.spec import PRESETS, Qwen3VLSpec, with_heads

PROMPT_LEN = 116
"""Tokens of the paper's frame in all, with one picture."""
MARKS_LEN, QUESTION_LEN = 5, 12
STATE = np.zeros(7, dtype=np.float32)
"""Of the robot, as the heads of a preset read it."""
OBSERVED = Observation(images={})
COLUMNS = (
    *("num_experts", "prompts", "new_tokens", "k", "frame_ms", "ideal_frame_ms", "isolated_ms", "speedup"),
    *("action_hz", "tokens_per_s", "mean_batch", "management_share", "prefill_ms", "act_ms", "round_ms"),
)
_frame_keys = itertools.count(1)


@dataclass(frozen=True)
class Prompts:
    """Token ids of the core, of each expert's tail, and of a text's; pictures come from a small pool."""

    spec: Qwen3VLSpec
    is_identical: bool
    core_ids: tuple[int, ...]
    tails: dict[str, tuple[int, ...]]
    text_tail: tuple[int, ...]

    @classmethod
    def make(cls, spec: Qwen3VLSpec, is_identical: bool) -> Prompts:
        rng = np.random.default_rng(0)
        words = tuple(int(i) for i in rng.integers(2, spec.image_id - 1, PROMPT_LEN))
        image, queries = picture_ids(spec), dict(readers(spec))
        longest = max(queries.values(), key=len, default=())
        left = PROMPT_LEN - len(image) - len(longest) - MARKS_LEN
        core = (*image, *words[:left])
        if is_identical:
            return cls(spec, True, (*core, *longest, *words[-MARKS_LEN:]), dict.fromkeys(queries, ()), ())
        tails = {name: (*query, *words[-MARKS_LEN:]) for name, query in queries.items()}
        return cls(spec, False, core, tails, words[-QUESTION_LEN:])

    def frames(self) -> Iterator[ContextInputs]:
        """Contexts for ever, each an object of its own."""
        pictures = np.random.default_rng(1).integers(0, 256, (4, SIDE, SIDE, 3), dtype=np.uint8)
        for picture in itertools.cycle(pictures):
            yield ContextInputs((picture,), self.core_ids, len(self.core_ids))

    def readers(self) -> tuple[tuple[str, tuple[int, ...]], ...]:
        return tuple(self.tails.items())


class PromptsProcessor:
    """Gives every observation the next of the prepared frames."""

    kinds = ("narration",)
    tokenizer = Letters()

    def __init__(self, prompts: Prompts) -> None:
        self._prompts, self._frames = prompts, prompts.frames()

    def encode(self, observation: Observation, actions: Sequence[ActionTask], texts: Sequence[TextTask]) -> ModelInputs:
        acting = tuple(EncodedTask(0, self._prompts.tails[task.expert]) for task in actions)
        speaking = (EncodedTask(0, self._prompts.text_tail),) * len(texts)
        return ModelInputs((next(self._frames),), acting, speaking, STATE)

    def encode_text(self, inputs: ModelInputs, text: TextTask) -> EncodedTask | None:
        return EncodedTask(0, self._prompts.text_tail)

    def decode_actions(self, actions: np.ndarray, inputs: ModelInputs, expert: str = "action") -> np.ndarray:
        return actions.astype(np.float64)


class Bench:
    """All experts of a runner. The engine, its stages and the isolated frame take turns: a slow minute hits all three.

    The engine has the first rows; the stages work on as many rows behind them, isolated tasks on the last.
    """

    def __init__(self, runner: Runner, prompts: Prompts, clock: Callable[[], float] = time.perf_counter) -> None:
        self.runner, self.prompts, self.clock = runner, prompts, clock
        self._frames = prompts.frames()
        self._last = runner.limits.max_contexts - 1

    def measure(self, new_tokens: int, k: int, num_frames: int, num_isolated: int) -> dict[str, Any]:
        """One operating point: one frame and one text a step, from balance on."""
        batch = expected_batch(new_tokens, k)
        rows = batch + 1
        probe = Probe(self.runner, first_context=0, max_contexts=rows, first_text=0, max_texts=rows, clock=self.clock)
        config = EngineConfig(budget=f"fixed:{k}", keep_context_s=0.0, max_waiting_texts=0)
        engine = Engine(probe, PromptsProcessor(self.prompts), config, clock=self.clock)
        task = TextTask("narration", max_new_tokens=new_tokens, ignore_eos=True)

        def step() -> None:
            engine.submit(OBSERVED, ActionTask("all", seed=0), task)
            engine.step()

        for _ in range(warm_up_frames(new_tokens, k) + 1):
            step()
        inputs = next(self._frames)
        self.runner.prefill([PrefillItem(0, rows + i, inputs, next(_frame_keys)) for i in range(batch)])
        frames, verbs, isolated = [], [], []
        stages: dict[str, list[float]] = {"prefill_ms": [], "act_ms": [], "round_ms": []}
        for turn in range(num_frames):
            probe.take()
            frames.append(self._timed(step))
            verbs.append(probe.take())
            self._add_stages(stages, inputs, rows, batch, new_tokens, k)
            if is_due(turn, num_isolated, num_frames):
                isolated.append(self._timed(lambda: self._isolated_frame(new_tokens)))
        engine.close()
        row: dict[str, Any] = {"new_tokens": new_tokens, "k": k}
        put(row, "frame_ms", frames)
        put(row, "isolated_ms", isolated)
        for name, values in stages.items():
            put(row, name, values)
        put(row, "management_share", [1 - 1e3 * v.runner_s / ms for v, ms in zip(verbs, frames, strict=True)], digits=6)
        num_tokens = sum(v.tokens for v in verbs)
        row["mean_batch"] = round(num_tokens / sum(v.rounds for v in verbs), 3)
        row["tokens_per_s"] = round(1e3 * num_tokens / len(verbs) / row["frame_ms"], 3)
        row["ideal_frame_ms"] = round(row["prefill_ms"] + row["act_ms"] + k * row["round_ms"], 3)
        row["ideal_share"] = round(row["ideal_frame_ms"] / row["frame_ms"], 3)
        row["speedup"] = round(row["isolated_ms"] / row["frame_ms"], 3)
        row["action_hz"] = round(1e3 * self.runner.limits.horizon / row["frame_ms"], 3)
        return row

    def _add_stages(
        self, stages: dict[str, list[float]], inputs: ContextInputs, first: int, batch: int, new_tokens: int, k: int
    ) -> None:
        """Each stage by itself: a prefill with all readers, all chunks, a round of the full batch, half done."""
        runner, half = self.runner, new_tokens // 2
        rounds = min(k, new_tokens - half)
        texts = [
            DecodeItem(0, 0, row, inputs.num_tokens, row, half, (5,), half, rounds, Sampling())
            for row in range(first, first + batch)
        ]
        item = PrefillItem(0, self._last, inputs, next(_frame_keys), self.prompts.readers())
        stages["prefill_ms"].append(self._timed(lambda: runner.prefill([item])))
        stages["act_ms"].append(self._timed(lambda: [runner.act([chunk]) for chunk in self._chunks(inputs)]))
        decoding = self._timed(lambda: runner.decode(texts, rounds, lambda got: [True] * len(got)))
        stages["round_ms"].append(decoding / rounds)

    def _isolated_frame(self, new_tokens: int) -> None:
        """Tasks that know nothing of each other: each prefills for itself, in turn."""
        inputs, runner, row = next(self._frames), self.runner, self._last
        for item in self._chunks(inputs):
            runner.prefill([PrefillItem(0, row, inputs, next(_frame_keys), ((item.expert, item.tail_ids),))])
            runner.act([item])
        runner.prefill([PrefillItem(0, row, inputs, next(_frame_keys))])
        tail = self.prompts.text_tail
        text = DecodeItem(0, 0, row, inputs.num_tokens, row, 0, tail, 0, new_tokens, Sampling())
        left = iter(range(new_tokens - 1, -1, -1))
        runner.decode([text], new_tokens, lambda got: [next(left) > 0])

    def _chunks(self, inputs: ContextInputs) -> list[ActItem]:
        items = []
        for expert in self.runner.limits.experts:
            noise = np.zeros((expert.horizon, expert.action_dim), dtype=np.float32)
            tail = self.prompts.tails[expert.name]
            items.append(
                ActItem(0, 0, self._last, inputs.num_tokens, expert.name, expert.num_steps, noise, tail, STATE)
            )
        return items

    def _timed(self, work: Callable[[], Any]) -> float:
        started = self.clock()
        work()
        return 1e3 * (self.clock() - started)


def expected_s(bench: Bench, args: argparse.Namespace, num_experts: int) -> float:
    """Seconds of the whole table, from one frame of its first point."""
    n, k = min(args.text_lengths), min(args.rounds)
    probe = bench.measure(n, k, 1, 1)
    total = 0.0
    for new_tokens, rounds in itertools.product(args.text_lengths, args.rounds):
        frame_ms = probe["frame_ms"] + (rounds - k) * probe["round_ms"]
        # A frame, and its stages once more; the frames before the balance; the isolated ones.
        frames = warm_up_frames(new_tokens, rounds) + 1 + 2 * args.frames
        total += frames * frame_ms + max(2, args.frames // 3) * probe["isolated_ms"] * (1 + new_tokens / n) / 2
    # Each further expert makes both about as much longer again as its chunk takes.
    return total / 1e3 * sum(1 + i * probe["act_ms"] / probe["frame_ms"] for i in range(num_experts))


def run(args: argparse.Namespace) -> int:
    """The table: E from 2 to all experts and the language one, every length, every budget."""
    from oxygen.runtime.torch.open import open_runner

    names = tuple(name for name in args.experts.split(",") if name)
    if args.model not in PRESETS or not names:
        raise InvalidInput("model", f"with --experts, one of {', '.join(PRESETS)}", repr(args.model))
    prompts_name = "identical" if args.identical_prompt else "own tails"
    config = {"model": args.model, "dtype": args.dtype, "device": args.device, "experts": list(names)}
    config |= {"prompts": prompts_name, "prompt_len": PROMPT_LEN, "frames": args.frames}
    command = getattr(args, "command", "")
    report = Report("frame_experts", config, Machine.begin(args.device, args.dtype), command, args.out)
    report.note(f"random weights; the experts' prompts: {prompts_name}")
    rows_needed = 2 * max(expected_batch(n, k) for n in args.text_lengths for k in args.rounds) + 2
    for count in range(1, len(names) + 1):
        spec = with_heads(PRESETS[args.model], names[:count])
        runner = open_runner(
            args.model,
            device=args.device,
            dtype=args.dtype,
            spec={"heads": spec.heads},
            max_contexts=rows_needed,
            max_texts=rows_needed,
            context_len=PROMPT_LEN,
            tail_len=max(args.text_lengths) + QUESTION_LEN,
            threads=args.threads,
        )
        runner.warm_up()
        report.config[f"num_parameters_{count + 1}"] = spec.num_parameters()
        bench = Bench(runner, Prompts.make(spec, args.identical_prompt))
        if count == 1:
            report.expect(expected_s(bench, args, len(names)), args.estimate)
        for new_tokens, k in itertools.product(args.text_lengths, args.rounds):
            point = bench.measure(new_tokens, min(k, new_tokens), args.frames, max(2, args.frames // 3))
            report.rows.append({"num_experts": count + 1, "prompts": prompts_name} | point)
        runner.close()
    report.finish(COLUMNS, f"experts: {args.model} {args.dtype}, {prompts_name}")
    return 0
