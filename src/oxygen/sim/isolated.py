"""How tasks are served without sharing: every task of a frame has a prefill of its own and runs to its end in turn.

The same runner, processor and arithmetic as the engine's, so actions and texts are the same; only their times differ.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Sequence
from concurrent.futures import Future

from oxygen.core.inputs import ContextInputs, EncodedTask
from oxygen.core.plan import ActItem, DecodeItem, PrefillItem, Runner
from oxygen.core.tasks import ActionResult, ActionTask, Observation, TextResult, TextTask
from oxygen.processing.interface import Processor

ROW = 0


class Finished:
    """A text that is complete when it is handed out."""

    def __init__(self, result: TextResult) -> None:
        self.kind = result.kind
        self._result = result

    @property
    def is_done(self) -> bool:
        return True

    def result(self, timeout: float | None = None) -> TextResult:
        return self._result


class FinishedAnswer:
    def __init__(self, actions: ActionResult | None, texts: Sequence[Finished]) -> None:
        self.texts = tuple(texts)
        self._actions: Future[ActionResult] = Future()
        if actions is not None:
            self._actions.set_result(actions)

    def actions(self, timeout: float | None = None) -> ActionResult:
        return self._actions.result(timeout)


class IsolatedDoor:
    """Serves one frame at a time in the caller's thread: first its action, then each text from start to end."""

    def __init__(self, runner: Runner, processor: Processor) -> None:
        self._runner, self._processor = runner, processor
        self._ids = itertools.count()

    def submit(
        self, observation: Observation, actions: ActionTask | None = None, texts: Sequence[TextTask] = ()
    ) -> FinishedAnswer:
        started = time.perf_counter()
        acting = [] if actions is None else [actions]
        inputs = self._processor.encode(observation, acting, texts)
        frame_id = -1 if observation.frame_id is None else observation.frame_id
        captured_at = time.time() if observation.captured_at is None else observation.captured_at
        chunk: ActionResult | None = None
        for task, encoded in zip(acting, inputs.actions, strict=True):
            item = self._act_item(task, encoded, inputs.contexts[encoded.context])
            normalised = self._runner.act([item])[0]
            in_units = self._processor.decode_actions(normalised, inputs)
            ready_s = time.perf_counter() - started
            chunk = ActionResult(in_units, observation.session, frame_id, captured_at, task.expert, ready_s)
        done = []
        for text, encoded in zip(texts, inputs.texts, strict=True):
            tokens, reason, ttft_s = self._speak(text, encoded, inputs.contexts[encoded.context], started)
            stream = self._processor.tokenizer.stream()
            written = "".join([stream.push(token) for token in tokens]) + stream.finish()
            age_s = time.perf_counter() - started
            done.append(
                Finished(
                    TextResult(
                        written,
                        tuple(tokens),
                        text.kind,
                        observation.session,
                        frame_id,
                        captured_at,
                        reason,
                        0,
                        age_s,
                        ttft_s,
                    )
                )
            )
        return FinishedAnswer(chunk, done)

    def _prefill(self, context: ContextInputs) -> int:
        request_id = next(self._ids)
        # A frame key of its own: the pictures are embedded again for every task, as separate servers would.
        self._runner.prefill([PrefillItem(request_id, ROW, context, frame_key=request_id)])
        return request_id

    def _act_item(self, task: ActionTask, encoded: EncodedTask, context: ContextInputs) -> ActItem:
        if task.noise is None:
            raise ValueError("an isolated action needs its noise")
        request_id = self._prefill(context)
        num_steps = task.num_steps or self._runner.limits.num_steps
        return ActItem(request_id, 0, ROW, context.num_tokens, task.expert, num_steps, task.noise, encoded.tail_ids)

    def _speak(
        self, task: TextTask, encoded: EncodedTask, context: ContextInputs, started: float
    ) -> tuple[list[int], str, float]:
        request_id = self._prefill(context)
        eos = () if task.ignore_eos else self._runner.limits.eos_ids
        tokens: list[int] = []
        first_at = 0.0
        item = DecodeItem(
            request_id, 0, ROW, context.num_tokens, ROW, 0, encoded.tail_ids, 0, task.max_new_tokens, task.sampling
        )

        def after_round(round_tokens: Sequence[int]) -> list[bool]:
            nonlocal first_at
            first_at = first_at or time.perf_counter()
            tokens.append(int(round_tokens[0]))
            return [tokens[-1] not in eos and len(tokens) < task.max_new_tokens]

        self._runner.decode([item], task.max_new_tokens, after_round)
        self._runner.forget((ROW,), (ROW,))
        is_stop = bool(tokens) and tokens[-1] in eos
        return (tokens[:-1] if is_stop else tokens), ("stop" if is_stop else "length"), first_at - started
