"""Frames on disk, batches from frames, and the balance of questions."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from training.made_frames import make_frames

from oxygen.sim.tasks import TASK_NAMES
from oxygen.training.batches import IGNORED, Curriculum, Scales
from oxygen.training.frames import COLUMNS, load_frames
from oxygen.training.language import EOS, Lessons, Words, train_tokenizer
from oxygen.training.pipeline import select, split


@pytest.fixture(scope="module")
def words(tmp_path_factory: pytest.TempPathFactory) -> Words:
    return Words(train_tokenizer(tmp_path_factory.mktemp("words") / "tokenizer.json"))


def test_frames_survive_the_disk_and_join_in_order(tmp_path: Path) -> None:
    one, other = make_frames(5), make_frames(7, seed=1)
    one.save(tmp_path / "a.npz")
    other.save(tmp_path / "b.npz")
    both = load_frames([tmp_path / "a.npz", tmp_path / "b.npz"])
    assert len(both) == 12
    for name in COLUMNS:
        assert np.array_equal(getattr(both, name), np.concatenate([getattr(one, name), getattr(other, name)]))
    assert both.facts(6) == other.facts(1)
    with pytest.raises(FileNotFoundError):
        load_frames([])


def test_held_out_layouts_are_whole_and_apart() -> None:
    taught, held_out = split(make_frames())
    assert not set(taught.seeds.tolist()) & set(held_out.seeds.tolist())
    assert len(taught) + len(held_out) == 200
    assert (held_out.seeds % 10 == 9).all()


def test_a_batch_depends_on_seed_and_step_alone(words: Words) -> None:
    frames = make_frames()
    a, b = (Curriculum(frames, Scales.of(frames), words) for _ in range(2))
    a.draw(8, 0, 3)
    for x, y in ((a.draw(8, 0, 4), b.draw(8, 0, 4)),):
        for name in ("images", "prefix_ids", "tail_ids", "tail_targets", "chunks", "aux"):
            assert np.array_equal(getattr(x, name), getattr(y, name)), name
    assert not np.array_equal(a.draw(8, 0, 5).images, a.draw(8, 0, 4).images)


def test_targets_are_the_next_words_after_the_prompt(words: Words) -> None:
    frames = make_frames()
    batch = Curriculum(frames, Scales.of(frames), words, text_share=1.0).draw(16, 0, 0)
    assert len(batch.tail_kind) == len(batch.tail_ids)
    for ids, targets, kind in zip(batch.tail_ids, batch.tail_targets, batch.tail_kind, strict=True):
        taught = np.flatnonzero(targets != IGNORED)
        assert (np.diff(taught) == 1).all(), "the taught words are one run"
        assert targets[taught[-1]] == EOS
        assert ids[taught[0] + 1 : taught[-1] + 1].tolist() == targets[taught[:-1]].tolist()
        prompt = ids[: taught[0] + 1].tolist()
        if kind != "answer":
            assert tuple(prompt) == words.tail(kind)


def test_without_augmentation_pictures_and_state_are_exact(words: Words) -> None:
    frames = make_frames(20)
    curriculum = Curriculum(frames, Scales.of(frames), words)
    batch = curriculum.batch(np.arange(4), np.random.default_rng(0), augment=False)
    assert np.allclose((batch.images + 1.0) * 127.5, frames.images[:4], atol=1e-3)
    assert np.allclose(batch.aux[:, 3], frames.extents[:4])
    assert np.allclose(batch.aux[:, :3], 10 * frames.offsets[:4], atol=1e-5)


def test_questions_with_rare_answers_are_asked_more_often() -> None:
    frames = make_frames(1200)
    rng = np.random.default_rng(0)
    lessons = Lessons(frames, rng)
    is_drawer = np.flatnonzero(frames.tasks == TASK_NAMES.index("drawer-open"))
    asked = Counter(lessons.lesson(int(i), "answer", rng) for i in np.tile(is_drawer, 25))
    yes, no = asked[("is the task done?", "yes")], asked[("is the task done?", "no")]
    assert yes / (yes + no) > 0.2, "one frame in ten is done; a question drawn blindly would say yes as rarely"


def test_select_keeps_columns_aligned() -> None:
    frames = make_frames(30)
    chosen = select(frames, frames.done)
    assert len(chosen) == int(frames.done.sum())
    assert chosen.done.all()
