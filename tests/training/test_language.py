"""The tokenizer and the prompts of training are those that the engine's processor makes of the exported settings."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from oxygen.core.tasks import ActionTask, Observation, TextTask
from oxygen.processing.config import ProcessorConfig
from oxygen.processing.processor import Processor
from oxygen.processing.tokenizer import load_tokenizer
from oxygen.training.batches import Scales
from oxygen.training.export import processor_settings, statistics_of
from oxygen.training.language import BOS, EOS, NUM_BINS, PAD, VOCAB_SIZE, Words, all_texts, train_tokenizer
from oxygen.training.recipe import SPEC


@pytest.fixture(scope="module")
def tokenizer_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("words") / "tokenizer.json"
    train_tokenizer(path)
    return path


def words_of(path: Path) -> Words:
    from tokenizers import Tokenizer

    return Words(Tokenizer.from_file(str(path)))


def test_every_state_bin_is_one_token(tokenizer_file: Path) -> None:
    words = words_of(tokenizer_file)
    ids = {words.encode(f" {n}") for n in range(-1, NUM_BINS)}
    assert all(len(one) == 1 for one in ids)
    assert len(ids) == NUM_BINS + 1


def test_every_sentence_comes_back_and_has_no_odd_pieces(tokenizer_file: Path) -> None:
    words, tokenizer = words_of(tokenizer_file), load_tokenizer(tokenizer_file)
    assert (tokenizer.pad_id, tokenizer.eos_ids, tokenizer.bos_id) == (PAD, (EOS,), BOS)
    assert tokenizer.vocab_size <= VOCAB_SIZE == SPEC.vocab_size
    for text in all_texts():
        ids = words.encode(text)
        assert tokenizer.decode(ids) == text.removeprefix(" ")
        assert len(ids) == len(tokenizer.encode(text))
        num_words = len(text.split())
        assert len(ids) <= 2 * num_words + 4, f"{text!r} fell into pieces"


def test_unknown_words_are_spelled_not_lost(tokenizer_file: Path) -> None:
    tokenizer = load_tokenizer(tokenizer_file)
    text = "is the Kühlschrank open?"
    assert tokenizer.decode(tokenizer.encode(text)) == text


def test_narrations_span_several_frames(tokenizer_file: Path) -> None:
    from oxygen.sim.facts import SceneFacts, narration

    words = words_of(tokenizer_file)
    for done in (False, True):
        for extent in (0.0, 0.5, 1.0):
            facts = SceneFacts("window-open", extent, 0.0, (0.0, 0.0, 0.05), done)
            assert 8 <= len(words.target(narration(facts))) <= 25


def test_the_engine_sees_the_tokens_of_training(tokenizer_file: Path) -> None:
    words = words_of(tokenizer_file)
    scales = Scales(np.array([-0.3, 0.4, 0.0, 0.2]), np.array([0.3, 0.9, 0.5, 1.0]), -np.ones(4), np.ones(4))
    settings = processor_settings() | {
        "image_size": 64,
        "tokens_per_image": SPEC.tokens_per_image,
        "action_dim": SPEC.action_dim,
        "horizon": SPEC.horizon,
        "max_token_len": SPEC.max_token_len,
        "vocab_size": SPEC.vocab_size,
    }
    statistics = statistics_of(scales, np.zeros((3, 4)))
    processor = Processor(ProcessorConfig.from_dict(settings), load_tokenizer(tokenizer_file), statistics)
    pictures = {name: np.zeros((64, 64, 3), np.uint8) for name in ("front", "wrist")}
    rng = np.random.default_rng(0)
    for _ in range(50):
        state = rng.uniform([-0.35, 0.35, -0.05, 0.1], [0.35, 0.95, 0.55, 1.1])
        observation = Observation(pictures, state, "open the drawer")
        texts = [TextTask("subtask"), TextTask("answer", question="is the drawer open?")]
        inputs = processor.encode(observation, [ActionTask()], texts)
        assert len(inputs.contexts) == 1
        assert inputs.num_unshared == 0
        assert inputs.contexts[0].token_ids == words.prefix("open the drawer", scales.state(state))
        assert inputs.texts[0].tail_ids == words.tail("subtask")
        assert inputs.texts[1].tail_ids == words.tail("answer", "is the drawer open?")
        actions = rng.uniform(-1, 1, (10, 4)).astype(np.float32)
        assert np.allclose(processor.decode_actions(actions, inputs), actions, atol=1e-5)
        assert np.allclose(scales.action(actions), actions, atol=1e-5)
