"""The words of the checkpoint: prompt templates, its tokenizer, and which sentence a frame teaches."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from tokenizers import AddedToken, Regex, decoders, models, normalizers, pre_tokenizers, trainers
from tokenizers import Tokenizer as WordPieces

from oxygen.sim.facts import NOUNS, Question, SceneFacts, memory, narration, questions, subtask
from oxygen.sim.tasks import TASK_NAMES, TASKS
from oxygen.training.frames import Frames

PAD, EOS, BOS = 0, 1, 2
NUM_BINS = 256
VOCAB_SIZE = 1024

PREFIX = "Task: {prompt}, State: {state};\n"
TAILS = {
    "subtask": "Subtask:",
    "narration": "Narration:",
    "memory": "Memory:",
    "answer": "Question: {question} Answer:",
}
KINDS = tuple(TAILS)

# Words that no frame says but an operator may: they get whole tokens, so that a strange question stays short.
FURTHER_WORDS = "is are was the a an what where which how why when who can do did does you i it there this that not now"


def bins_text(normalised: np.ndarray) -> str:
    """State as bin numbers: [n] in [-1, 1] to n numbers from 0 to 255, as π0.5 writes them (below -1 it is -1)."""
    edges = np.linspace(-1.0, 1.0, NUM_BINS + 1)[:-1]
    return " ".join(str(i) for i in np.digitize(normalised, edges) - 1)


def all_texts() -> Iterator[str]:
    """Every sentence that a frame of any task can teach, with its prompts."""
    for name, task in TASKS.items():
        for instruction in (task.instruction, *task.phrasings):
            yield PREFIX.format(prompt=instruction, state="0")
        for facts in _all_facts(name):
            for text in (subtask(facts), narration(facts), memory(facts)):
                yield " " + text
            for noun in NOUNS:
                for question in questions(facts, noun, name):
                    yield TAILS["answer"].format(question=question.text)
                    yield " " + question.answer
    for tail in TAILS.values():
        yield tail.format(question="what is it?")
    yield " " + FURTHER_WORDS
    for number in range(-1, NUM_BINS):
        yield f" {number}"


def _all_facts(name: str) -> Iterator[SceneFacts]:
    start = 1.0 if name in ("drawer-close", "window-close") else 0.0
    for extent in (-1.0, -0.5, 0.0, 0.5, 1.0):
        for offset in ((0.0, 0.0, 0.0), (0.0, 0.0, 0.2), (0.3, 0.3, 0.3)):
            for done in (False, True):
                yield SceneFacts(name, extent, start, offset, done)


def train_tokenizer(path: Path) -> WordPieces:
    """Byte-pair pieces of at most VOCAB_SIZE; every word and every state bin of `all_texts` ends as one token.

    Same conventions as Gemma's file: `▁` for a space, single bytes for what has no piece, ids 0 pad, 1 end, 2 begin.
    """
    pieces = WordPieces(models.BPE(byte_fallback=True, unk_token=None))
    pieces.normalizer = normalizers.Replace(" ", "▁")
    # A space belongs to the word that follows it; punctuation and line ends stand alone.
    pieces.pre_tokenizer = pre_tokenizers.Split(Regex(r"▁?[^▁\s:;,.?]+|[▁\s:;,.?]"), "isolated")
    # Sentences follow their prompt after a space, which is not part of the answer: decoding strips it.
    pieces.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    special = [AddedToken(token, special=True, normalized=False) for token in ("<pad>", "<eos>", "<bos>", "<unk>")]
    bytes_ = [AddedToken(f"<0x{i:02X}>", special=False, normalized=False) for i in range(256)]
    trainer = trainers.BpeTrainer(
        vocab_size=VOCAB_SIZE,
        min_frequency=1,
        special_tokens=special + bytes_,
        show_progress=False,
        initial_alphabet=list("abcdefghijklmnopqrstuvwxyz0123456789-▁:;,.?\n'"),
    )
    pieces.train_from_iterator(sorted(set(all_texts())), trainer)
    # The trainer reserves ids only for special tokens; the bytes must not stay special, or decoding would drop them.
    data = json.loads(pieces.to_str())
    data["added_tokens"] = [token for token in data["added_tokens"] if token["id"] < len(special)]
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(data, ensure_ascii=False, indent=1), encoding="utf-8")
    return WordPieces.from_file(str(path))


class Words:
    """Texts to ids, remembered: the set of texts is small."""

    def __init__(self, pieces: WordPieces) -> None:
        self._pieces = pieces
        self._known: dict[str, tuple[int, ...]] = {}

    def encode(self, text: str) -> tuple[int, ...]:
        ids = self._known.get(text)
        if ids is None:
            ids = tuple(self._pieces.encode(text, add_special_tokens=False).ids)
            if len(self._known) < 100_000:
                self._known[text] = ids
        return ids

    def prefix(self, instruction: str, normalised_state: np.ndarray) -> tuple[int, ...]:
        """BOS and the prompt; the state's numbers are looked up one by one, since every one is a single token."""
        head, tail = PREFIX.format(prompt=instruction, state="\0").split(" \0")
        numbers = [i for n in bins_text(normalised_state).split() for i in self.encode(f" {n}")]
        return (BOS, *self.encode(head), *numbers, *self.encode(tail))

    def tail(self, kind: str, question: str | None = None) -> tuple[int, ...]:
        return self.encode(TAILS[kind].format(question=question))

    def target(self, text: str) -> tuple[int, ...]:
        return (*self.encode(" " + text), EOS)


class Lessons:
    """Chooses what a frame teaches; questions are drawn so that yes and no come equally often within a topic."""

    def __init__(self, frames: Frames, rng: np.random.Generator) -> None:
        counts: Counter[tuple[str, str, str]] = Counter()
        for index in rng.choice(len(frames), min(len(frames), 4000), replace=False):
            for question in self._ask(frames.facts(int(index)), rng):
                counts[(frames.facts(int(index)).task, question.topic, question.answer)] += 1
        self._counts = counts
        self._frames = frames

    @staticmethod
    def _ask(facts: SceneFacts, rng: np.random.Generator) -> list[Question]:
        noun = NOUNS[rng.integers(len(NOUNS))]
        return questions(facts, noun, TASK_NAMES[rng.integers(len(TASK_NAMES))])

    def lesson(self, index: int, kind: str, rng: np.random.Generator) -> tuple[str | None, str]:
        """(question or None, sentence) of frame `index` for a kind of text."""
        facts = self._frames.facts(index)
        if kind != "answer":
            return None, {"subtask": subtask, "narration": narration, "memory": memory}[kind](facts)
        asked = self._ask(facts, rng)
        weights = np.array([1.0 / (20 + self._counts[(facts.task, q.topic, q.answer)]) for q in asked])
        chosen = asked[rng.choice(len(asked), p=weights / weights.sum())]
        return chosen.text, chosen.answer
