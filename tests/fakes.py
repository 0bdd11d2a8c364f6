"""A runner, a processor, a tokenizer and a clock without a model: they run in microseconds and check the contracts.

What the fake model says is a pure function of (context content, known tokens of the tail, seed, position), so every
text has one right value, whatever the schedule was. `expected_tokens` computes it without an engine.
"""

from __future__ import annotations

import codecs
import zlib
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from oxygen.core.inputs import ContextInputs, EncodedTask, ModelInputs
from oxygen.core.plan import ActItem, AfterRound, DecodeItem, PrefillItem, RunnerLimits
from oxygen.core.tasks import ActionTask, InvalidInput, Observation, Sampling, TextTask
from oxygen.tickets.intake import experts_meant

EOS = 256
WORDS = b"ab c.\xc3"  # what the fake model says: 0xC3 begins a character of two bytes
ROBOT_DIM = 3


class FakeClock:
    """Stands still unless told otherwise."""

    def __init__(self, now: float = 100.0) -> None:
        self.now = now

    def __call__(self) -> float:
        return self.now

    def advance(self, seconds: float) -> None:
        self.now += seconds


class ByteStream:
    def __init__(self) -> None:
        self._utf8 = codecs.getincrementaldecoder("utf-8")("replace")

    def push(self, token_id: int) -> str:
        return self._utf8.decode(bytes([token_id]) if token_id < 256 else b"")

    def finish(self) -> str:
        return self._utf8.decode(b"", final=True)


class ByteTokenizer:
    """Tokens are bytes; 256 ends a text."""

    eos_ids = (EOS,)
    bos_id = None
    pad_id = None
    vocab_size = 257

    def encode(self, text: str, *, bos: bool = False) -> list[int]:
        return list(text.encode())

    def decode(self, ids: Sequence[int]) -> str:
        return bytes(i for i in ids if i < 256).decode("utf-8", "replace")

    def stream(self) -> ByteStream:
        return ByteStream()


class FakeProcessor:
    """Pictures of any size; the prompt is the prefix. Kinds in `apart` have a prefix of their own (promise E7)."""

    def __init__(self, apart: Sequence[str] = ("apart",)) -> None:
        self.tokenizer = ByteTokenizer()
        self.forbidden_ids = None
        self.kinds = ("narration", "subtask", "memory", "answer", *apart)
        self._apart = tuple(apart)

    def parse(
        self,
        raw: Mapping[str, Any],
        *,
        session: str = "default",
        frame_id: int | None = None,
        captured_at: float | None = None,
    ) -> Observation:
        """Take a map of pictures (uint8 arrays of three axes), `state` or `observation/state`, and `prompt`."""
        images = {str(k): v for k, v in raw.items() if isinstance(v, np.ndarray) and v.ndim == 3}
        if not images:
            raise InvalidInput("images", "at least one camera", "none")
        state = raw.get("observation/state", raw.get("state"))
        state = None if state is None else np.asarray(state, dtype=np.float64)
        if state is not None and not np.isfinite(state).all():
            raise InvalidInput("state", "finite numbers", "NaN or infinity")
        return Observation(images, state, raw.get("prompt"), session, frame_id, captured_at)

    def encode(self, observation: Observation, actions: Sequence[ActionTask], texts: Sequence[TextTask]) -> ModelInputs:
        pictures = tuple(observation.images.values())
        contexts: list[ContextInputs] = []

        def place(prefix: str) -> int:
            ids = tuple(self.tokenizer.encode(prefix + (observation.prompt or "")))
            for at, context in enumerate(contexts):
                if context.token_ids == ids:
                    return at
            contexts.append(ContextInputs(pictures, ids, 4 * len(pictures) + len(ids)))
            return len(contexts) - 1

        acting = tuple(EncodedTask(place("")) for _ in actions)
        speaking = tuple(EncodedTask(place(self._prefix(t)), self._tail(t)) for t in texts)
        state = None if observation.state is None else np.asarray(observation.state, dtype=np.float32)
        num_unshared = sum(e.context != 0 for e in speaking)
        return ModelInputs(tuple(contexts), acting, speaking, state, num_unshared)

    def encode_text(self, inputs: ModelInputs, text: TextTask) -> EncodedTask | None:
        own = tuple(self.tokenizer.encode(self._prefix(text)))
        if inputs.contexts[0].token_ids[:1] == (ord("<"),):
            return EncodedTask(0, self._tail(text)) if own and inputs.contexts[0].token_ids[: len(own)] == own else None
        if own:
            return None
        return EncodedTask(0, self._tail(text))

    def decode_actions(self, actions: np.ndarray, inputs: ModelInputs, expert: str = "action") -> np.ndarray:
        return actions[:, :ROBOT_DIM].astype(np.float64)

    def describe(self) -> dict[str, Any]:
        return {"robot": "fake", "text_kinds": list(self.kinds), "actions": {"dim": ROBOT_DIM}}

    def _prefix(self, task: TextTask) -> str:
        if task.kind not in self.kinds:
            raise InvalidInput("kind", f"one of {list(self.kinds)}", repr(task.kind))
        return f"<{task.kind}>" if task.kind in self._apart else ""

    def _tail(self, task: TextTask) -> tuple[int, ...]:
        return tuple(self.tokenizer.encode(task.question or ""))


def fake_limits(**sizes: Any) -> RunnerLimits:
    wanted: dict[str, Any] = dict(
        max_contexts=4, max_texts=4, context_len=64, tail_len=64, horizon=5, action_dim=4, num_steps=10
    )
    return RunnerLimits(**(wanted | dict(vocab_size=257, eos_ids=(EOS,)) | sizes))


def content_of(inputs: ContextInputs) -> int:
    """What a context says to the fake model: all that was in it."""
    number = zlib.crc32(bytes(i % 256 for i in inputs.token_ids), inputs.num_tokens)
    for picture in inputs.images:
        number = zlib.crc32(np.ascontiguousarray(picture).tobytes(), number)
    return number


def next_token(content: int, known: Sequence[int], sampling: Sampling, position: int, eos_one_in: int = 14) -> int:
    """The fake model: depends on the context, all known tail tokens, the seed and the position of the draw."""
    seed = sampling.seed if sampling.temperature else -1
    number = zlib.crc32(np.array([content, seed, position, *known], dtype=np.int64).tobytes())
    if eos_one_in and number % eos_one_in == 0:
        return EOS
    if known and known[-1] == 0xC3 and number % 8:
        return 0xA9  # é; once in a while the half character is left broken
    return WORDS[(number >> 8) % len(WORDS)]


def expected_tokens(inputs: ContextInputs, tail: Sequence[int], task: TextTask, eos_one_in: int = 14) -> list[int]:
    """All tokens of a text decoded in one go: up to its end-of-text (included, unless ignored) or its limit."""
    content, known = content_of(inputs), list(tail)
    while len(known) < len(tail) + task.max_new_tokens:
        known.append(next_token(content, known, task.sampling, len(known) - len(tail), eos_one_in))
        if known[-1] == EOS and not task.ignore_eos:
            break
    return known[len(tail) :]


class FakeRunner:
    """Keeps what a device would keep, and asserts that rows are written once, read only when written, and freed.

    on_call(verb, items) runs before each verb and before each round ("round"); it may raise what a device would raise.
    costs: verb -> seconds that the clock moves; `round` per round. log: the last verbs with their request ids.
    """

    def __init__(
        self,
        limits: RunnerLimits | None = None,
        clock: FakeClock | None = None,
        costs: Mapping[str, float] | None = None,
        eos_one_in: int = 14,
    ) -> None:
        self.limits = limits or fake_limits()
        self.clock, self.costs, self.eos_one_in = clock, dict(costs or {}), eos_one_in
        self.on_call: Callable[[str, Sequence[Any]], None] = lambda verb, items: None
        self.log: deque[tuple[str, tuple[int, ...]]] = deque(maxlen=10_000)
        self.contexts: dict[int, tuple[int, int]] = {}  # row -> (content, length)
        self.readers: dict[int, set[tuple[str, tuple[int, ...]]]] = {}  # row -> experts that it was prefilled for
        self.tails: dict[int, tuple[int, list[int]]] = {}  # row -> (task, tokens whose K and V exist)
        self.generated: dict[int, int] = {}  # row -> tokens sampled
        self.is_closed = False

    def prefill(self, items: Sequence[PrefillItem]) -> None:
        self._enter("prefill", items)
        assert len({i.context_row for i in items}) == len(items), "two contexts in one row"
        for item in items:
            assert 0 <= item.context_row < self.limits.max_contexts
            assert item.context_row not in self.contexts, "a context in use is written over"
            assert item.inputs.num_tokens <= self.limits.context_len
        for item in items:
            self.contexts[item.context_row] = (content_of(item.inputs), item.inputs.num_tokens)
            self.readers[item.context_row] = set(item.readers)

    def act(self, items: Sequence[ActItem]) -> list[np.ndarray]:
        self._enter("act", items)
        chunks = []
        for item in items:
            content = self._content(item)
            readers = self.readers[item.context_row] or {(item.expert, ())}  # readers of K and V need not be named
            assert (item.expert, item.tail_ids) in readers, "prefilled for other experts"
            (expert,) = experts_meant(self.limits, ActionTask(item.expert))
            assert item.noise.shape == (expert.horizon, expert.action_dim)
            chunks.append((item.noise * 0.5 + content % 1000 / 1000 + item.num_steps).astype(np.float32))
        return chunks

    def decode(self, items: Sequence[DecodeItem], rounds: int, after_round: AfterRound) -> None:
        self._enter("decode", items)
        assert rounds >= 1
        assert len({i.tail_row for i in items}) == len(items), "two texts in one tail row"
        going = [(item, self._known(item)) for item in items]
        for done in range(rounds):
            self._enter("round", [item for item, _ in going])
            tokens = []
            for item, known in going:
                position = item.num_generated + done
                self.tails[item.tail_row] = (item.task_id, list(known))
                tokens.append(next_token(self._content(item), known, item.sampling, position, self.eos_one_in))
                known.append(tokens[-1])
                self.generated[item.tail_row] = position + 1
            stays = after_round(tokens)
            assert len(stays) == len(going)
            for (item, _), stay in zip(going, stays, strict=True):
                assert not (stay and done + 1 >= item.max_tokens), "a text goes on beyond its limit"
            going = [pair for pair, stay in zip(going, stays, strict=True) if stay]
            if not going:
                return
        raise AssertionError("texts go on beyond the rounds that were asked for")

    def forget(self, context_rows: Sequence[int], tail_rows: Sequence[int]) -> None:
        for row in context_rows:
            self.contexts.pop(row, None)
            self.readers.pop(row, None)
        for row in tail_rows:
            self.tails.pop(row, None)
            self.generated.pop(row, None)

    def close(self) -> None:
        assert not self.is_closed
        self.is_closed = True

    def _enter(self, verb: str, items: Sequence[Any]) -> None:
        assert not self.is_closed and items
        self.log.append((verb, tuple(i.request_id for i in items)))
        self.on_call(verb, items)
        if self.clock is not None:
            self.clock.advance(self.costs.get(verb, 0.0))

    def _content(self, item: ActItem | DecodeItem) -> int:
        assert item.context_row in self.contexts, "a context is read that was not written"
        content, length = self.contexts[item.context_row]
        assert length == item.context_len
        return content

    def _known(self, item: DecodeItem) -> list[int]:
        """The tail's tokens so far, after checking that the item agrees with what the rows hold."""
        task_id, computed = self.tails.get(item.tail_row, (item.task_id, []))
        assert task_id == item.task_id, "a tail row is used by a second text before it was freed"
        assert len(computed) == item.num_computed, f"{item.num_computed} computed, the row has {len(computed)}"
        assert self.generated.get(item.tail_row, 0) == item.num_generated
        assert item.max_tokens >= 1 and item.num_generated + item.max_tokens <= self.limits.tail_len
        assert len(item.pending) == 1 or not item.num_generated, "many pending tokens after the first round"
        assert item.num_computed + len(item.pending) + item.max_tokens <= self.limits.tail_len + 1
        return [*computed, *item.pending]


def frame(session: str = "default", number: int = 0, prompt: str = "go", **fields: Any) -> Observation:
    """An observation whose picture says its number."""
    picture = np.array([[[number % 256, number // 256 % 256, len(session)]]], dtype=np.uint8)
    fields.setdefault("state", np.zeros(3))
    return Observation(images={"base": picture}, prompt=prompt, session=session, **fields)
