"""Frames to training batches: augmented pictures, prompts with noisy state, tails with their targets. NumPy only.

Everything random is drawn from (seed, step), so a run that stops and resumes sees the same batches.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from oxygen.sim.tasks import TASK_NAMES, TASKS
from oxygen.training.frames import Frames
from oxygen.training.language import PAD, Lessons, Words

IGNORED = -100
AUX_OFFSET_SCALE = 10.0
"""The auxiliary head learns offsets in decimetres, so that they weigh about as much as extents."""
STATE_NOISE = np.array([0.004, 0.004, 0.004, 0.02])
"""Standard deviation of the noise on the state (m, m, m, opening)."""
MAX_SHIFT = 2
CANONICAL_SHARE = 0.7
TAIL_MIX = (("narration",), ("subtask", "memory"), ("answer", "answer"))
"""Each sample with text gets one of these groups of tails; tails of a group do not see each other."""


@dataclass(frozen=True, slots=True)
class Scales:
    """Quantile normalisation, y = (x - low) / (high - low + 1e-6) * 2 - 1, as openpi writes it."""

    state_low: np.ndarray
    state_high: np.ndarray
    action_low: np.ndarray
    action_high: np.ndarray

    @classmethod
    def of(cls, frames: Frames) -> Scales:
        """State: the range of the data with a twentieth to spare, since a bin must not saturate where the arm works."""
        low, high = np.quantile(frames.states.astype(np.float64), (0.0005, 0.9995), axis=0)
        margin = 0.05 * (high - low)
        ones = np.ones(frames.chunks.shape[-1])
        return cls(np.round(low - margin, 6), np.round(high + margin, 6), -ones, ones)

    def state(self, values: np.ndarray) -> np.ndarray:
        return (values - self.state_low) / (self.state_high - self.state_low + 1e-6) * 2.0 - 1.0

    def action(self, values: np.ndarray) -> np.ndarray:
        return (values - self.action_low) / (self.action_high - self.action_low + 1e-6) * 2.0 - 1.0


@dataclass(frozen=True, slots=True, eq=False)
class Batch:
    """B samples, of which the first R rows of `tails` say which sample they hang on.

    images [B, cameras, S, S, 3] float32 in [-1, 1]; prefix_ids [B, P] padded at the end, prefix_lens [B];
    tail_ids and tail_targets [R, T] (targets IGNORED where there is none), tail_owner [R]; chunks [B, H, A] normalised;
    aux [B, 4]: offset gripper minus part (dm) and extent.
    """

    images: np.ndarray
    prefix_ids: np.ndarray
    prefix_lens: np.ndarray
    tail_ids: np.ndarray
    tail_targets: np.ndarray
    tail_owner: np.ndarray
    tail_kind: tuple[str, ...]
    chunks: np.ndarray
    aux: np.ndarray


class Curriculum:
    """Draws batches from frames. text_share: share of samples with text; weights: relative chance of each frame."""

    def __init__(
        self,
        frames: Frames,
        scales: Scales,
        words: Words,
        *,
        text_share: float = 0.5,
        weights: np.ndarray | None = None,
    ) -> None:
        self.frames, self.scales, self.words = frames, scales, words
        self._lessons = Lessons(frames, np.random.default_rng(11))
        self._text_share = text_share
        counts = np.bincount(frames.tasks, minlength=len(TASK_NAMES)).clip(1)
        # Tasks whose episodes are long would otherwise be learnt at the cost of the short ones.
        chance = counts[frames.tasks] ** -0.5 * (1.0 if weights is None else weights)
        self._chance = np.cumsum(chance / chance.sum())

    def draw(self, size: int, seed: int, step: int) -> Batch:
        rng = np.random.default_rng([seed, step])
        indices = np.searchsorted(self._chance, rng.random(size)).clip(max=len(self.frames) - 1)
        return self.batch(indices, rng, augment=True)

    def batch(self, indices: np.ndarray, rng: np.random.Generator, *, augment: bool) -> Batch:
        frames = self.frames
        states = frames.states[indices].astype(np.float64)
        if augment:
            states = states + STATE_NOISE * rng.normal(size=states.shape)
        normalised = self.scales.state(states)
        prefixes = []
        for index, state in zip(indices, normalised, strict=True):
            task = TASKS[TASK_NAMES[frames.tasks[index]]]
            instruction = task.instruction
            if augment and rng.random() > CANONICAL_SHARE:
                instruction = task.phrasings[rng.integers(len(task.phrasings))]
            prefixes.append(self.words.prefix(instruction, state))
        prefix_ids, prefix_lens = _padded(prefixes)
        tails, prompts, owners, kinds = self._tails(indices, rng)
        tail_ids, targets = _teacher_forced(tails, prompts)
        return Batch(
            images=_pictures(frames.images[indices], rng, augment=augment),
            prefix_ids=prefix_ids,
            prefix_lens=prefix_lens,
            tail_ids=tail_ids,
            tail_targets=targets,
            tail_owner=np.array(owners, np.int64),
            tail_kind=tuple(kinds),
            chunks=self.scales.action(frames.chunks[indices]).astype(np.float32),
            aux=np.concatenate(
                [AUX_OFFSET_SCALE * frames.offsets[indices], frames.extents[indices, None]], axis=1
            ).astype(np.float32),
        )

    def _tails(
        self, indices: np.ndarray, rng: np.random.Generator
    ) -> tuple[list[tuple[int, ...]], list[int], list[int], list[str]]:
        tails: list[tuple[int, ...]] = []
        prompts: list[int] = []
        owners: list[int] = []
        kinds: list[str] = []
        for row in range(round(self._text_share * len(indices))):
            for kind in TAIL_MIX[rng.integers(len(TAIL_MIX))]:
                question, sentence = self._lessons.lesson(int(indices[row]), kind, rng)
                prompt = self.words.tail(kind, question)
                tails.append((*prompt, *self.words.target(sentence)))
                prompts.append(len(prompt))
                owners.append(row)
                kinds.append(kind)
        return tails, prompts, owners, kinds


def _padded(rows: list[tuple[int, ...]]) -> tuple[np.ndarray, np.ndarray]:
    lens = np.array([len(row) for row in rows], np.int64)
    ids = np.full((len(rows), int(lens.max())), PAD, np.int64)
    for row, values in zip(ids, rows, strict=True):
        row[: len(values)] = values
    return ids, lens


def _teacher_forced(tails: list[tuple[int, ...]], prompts: list[int]) -> tuple[np.ndarray, np.ndarray]:
    """Inputs (all but the last token) and targets (the next token, from the last prompt token on)."""
    ids, _ = _padded([tail[:-1] for tail in tails])
    targets = np.full(ids.shape, IGNORED, np.int64)
    for row, tail, prompt in zip(targets, tails, prompts, strict=True):
        row[prompt - 1 : len(tail) - 1] = tail[prompt:]
    return ids, targets


def _pictures(images: np.ndarray, rng: np.random.Generator, *, augment: bool) -> np.ndarray:
    """[B, cameras, S, S, 3] uint8 to float32 in [-1, 1]; augmented: shifted, brighter or darker, tinted."""
    if not augment:
        return images.astype(np.float32) / 127.5 - 1.0
    size = images.shape[2]
    out = np.empty(images.shape, np.float32)
    shifts = rng.integers(-MAX_SHIFT, MAX_SHIFT + 1, size=(*images.shape[:2], 2))
    positions = np.arange(size)
    for sample in range(images.shape[0]):
        for camera in range(images.shape[1]):
            dy, dx = shifts[sample, camera]
            rows, columns = (positions + dy).clip(0, size - 1), (positions + dx).clip(0, size - 1)
            out[sample, camera] = images[sample, camera][rows[:, None], columns]
    out *= (1.0 / 255.0) * (1.0 + 0.1 * rng.normal(size=(len(out), 1, 1, 1, 1))).astype(np.float32)
    out += (0.03 * rng.normal(size=(*out.shape[:2], 1, 1, 3))).astype(np.float32)
    return out * 2.0 - 1.0
