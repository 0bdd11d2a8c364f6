"""How tasks are served without sharing: every task of a frame has a prefill of its own and runs to its end in turn.

The same runner, processor and arithmetic as the engine's, so actions and texts are the same; only their times differ.
Frames wait for the texts of the frames before them, as they do behind servers that answer one request after another;
within a frame the action goes first, and the robot may move while the texts run.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

from oxygen.core.inputs import ContextInputs, EncodedTask, ModelInputs
from oxygen.core.plan import ActItem, DecodeItem, PrefillItem, Runner
from oxygen.core.tasks import ActionResult, ActionTask, Observation, TextResult, TextTask
from oxygen.processing.interface import Processor

ROW = 0


class LateText:
    """A text that comes whole."""

    def __init__(self, kind: str) -> None:
        self.kind = kind
        self.future: Future[TextResult] = Future()

    @property
    def is_done(self) -> bool:
        return self.future.done()

    def result(self, timeout: float | None = None) -> TextResult:
        return self.future.result(timeout)


class LateAnswer:
    """What a frame will have brought once its turn has come."""

    def __init__(self, texts: Sequence[LateText]) -> None:
        self.texts = tuple(texts)
        self.chunk: Future[ActionResult] = Future()

    def actions(self, timeout: float | None = None) -> ActionResult:
        return self.chunk.result(timeout)

    def fail(self, error: BaseException) -> None:
        futures: list[Future[Any]] = [self.chunk, *(text.future for text in self.texts)]
        for future in futures:
            if not future.done():
                future.set_exception(error)


@dataclass(frozen=True, slots=True)
class Frame:
    """A frame in the queue, encoded."""

    observation: Observation
    action: ActionTask | None
    texts: Sequence[TextTask]
    inputs: ModelInputs
    number: int
    submitted_at: float


class IsolatedDoor:
    """Serves frame after frame on one thread. Close it; the runner stays open."""

    def __init__(self, runner: Runner, processor: Processor) -> None:
        self._runner, self._processor = runner, processor
        self._ids = itertools.count()
        self._num_frames = 0
        self._worker = ThreadPoolExecutor(1, thread_name_prefix="oxygen-isolated")

    def submit(
        self, observation: Observation, actions: ActionTask | None = None, texts: Sequence[TextTask] = ()
    ) -> LateAnswer:
        """Queue a frame. Encodes in the caller's thread; raises InvalidInput."""
        submitted_at = time.perf_counter()
        inputs = self._processor.encode(observation, () if actions is None else (actions,), texts)
        self._num_frames += 1
        frame = Frame(observation, actions, tuple(texts), inputs, self._num_frames, submitted_at)
        answer = LateAnswer([LateText(task.kind) for task in texts])
        self._worker.submit(self._serve, frame, answer)
        return answer

    def close(self) -> None:
        """Serve what is queued, then let the thread go."""
        self._worker.shutdown()

    def _serve(self, frame: Frame, answer: LateAnswer) -> None:
        try:
            if frame.action is not None:
                answer.chunk.set_result(self._act(frame, frame.action))
            for task, encoded, text in zip(frame.texts, frame.inputs.texts, answer.texts, strict=True):
                text.future.set_result(self._speak(frame, task, encoded))
        except Exception as error:  # whoever waits for this frame is told; the next frame has its own chance
            answer.fail(error)

    def _prefill(self, context: ContextInputs) -> int:
        request_id = next(self._ids)
        # A frame key of its own: the pictures are embedded again for every task, as separate servers would.
        self._runner.prefill([PrefillItem(request_id, ROW, context, frame_key=request_id)])
        return request_id

    def _act(self, frame: Frame, task: ActionTask) -> ActionResult:
        if task.noise is None:
            raise ValueError("an isolated action needs its noise")
        encoded = frame.inputs.actions[0]
        context = frame.inputs.contexts[encoded.context]
        request_id = self._prefill(context)
        num_steps = task.num_steps or self._runner.limits.num_steps
        item = ActItem(request_id, 0, ROW, context.num_tokens, task.expert, num_steps, task.noise, encoded.tail_ids)
        in_units = self._processor.decode_actions(self._runner.act([item])[0], frame.inputs)
        ready_s = time.perf_counter() - frame.submitted_at
        frame_id, captured_at = _identity(frame)
        return ActionResult(in_units, frame.observation.session, frame_id, captured_at, task.expert, ready_s)

    def _speak(self, frame: Frame, task: TextTask, encoded: EncodedTask) -> TextResult:
        context = frame.inputs.contexts[encoded.context]
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
        said = tokens[:-1] if is_stop else tokens
        stream = self._processor.tokenizer.stream()
        frame_id, captured_at = _identity(frame)
        return TextResult(
            text="".join([stream.push(token) for token in said]) + stream.finish(),
            token_ids=tuple(said),
            kind=task.kind,
            session=frame.observation.session,
            frame_id=frame_id,
            captured_at=captured_at,
            finish_reason="stop" if is_stop else "length",
            age_frames=self._num_frames - frame.number,
            age_s=time.perf_counter() - frame.submitted_at,
            ttft_s=first_at - frame.submitted_at,
        )


def _identity(frame: Frame) -> tuple[int, float]:
    observation = frame.observation
    frame_id = frame.number if observation.frame_id is None else observation.frame_id
    return frame_id, time.time() if observation.captured_at is None else observation.captured_at
