"""Tokenizers: both kinds of files agree with their libraries, and text streams are exact at every cut."""

from __future__ import annotations

import concurrent.futures
from pathlib import Path

import numpy as np
import pytest
import sentencepiece
import tokenizers
from hypothesis import given, settings
from hypothesis import strategies as st
from processing.cases import TEXTS, TOKENIZER_FILES, byte_fallback_file, byte_level_file, sentencepiece_file, tokenizer

from oxygen.core.errors import CheckpointError
from oxygen.processing.tokenizer import Tokenizer, byte_tokenizer, load_tokenizer

HARD_TEXTS = ["plain words", "日本語 émoji 🤖🦾 ok", "a  b\tc\n\nd", "👩‍👩‍👧‍👦", "ꙮ", "x <eos> y </s> <|im_end|>"]


@pytest.fixture(params=[*TOKENIZER_FILES, "bytes"])
def any_tokenizer(request: pytest.FixtureRequest) -> Tokenizer:
    return byte_tokenizer() if request.param == "bytes" else load_tokenizer(TOKENIZER_FILES[request.param]())


def streamed(found: Tokenizer, ids: list[int]) -> list[str]:
    stream = found.stream()
    return [*(stream.push(i) for i in ids), stream.finish()]


@pytest.mark.parametrize("text", HARD_TEXTS)
def test_text_survives_encoding(any_tokenizer: Tokenizer, text: str) -> None:
    ids = any_tokenizer.encode(text)
    assert any_tokenizer.decode(ids) == text
    assert "".join(streamed(any_tokenizer, ids)) == text
    assert not set(ids) & {*any_tokenizer.eos_ids, any_tokenizer.bos_id, any_tokenizer.pad_id}


def test_ids_equal_the_libraries() -> None:
    model = sentencepiece.SentencePieceProcessor(model_file=str(sentencepiece_file()))
    pieces = tokenizers.Tokenizer.from_file(str(byte_level_file()))
    ours, theirs = load_tokenizer(sentencepiece_file()), load_tokenizer(byte_level_file())
    for text in TEXTS[:4]:
        assert ours.encode(text, bos=True) == [2, *model.encode(text)]
        assert ours.decode(model.encode(text)) == model.decode(model.encode(text))
        assert theirs.encode(text) == pieces.encode(text).ids
        assert theirs.decode(theirs.encode(text)) == pieces.decode(theirs.encode(text))


@settings(max_examples=60)
@given(st.data())
def test_streaming_any_tokens_equals_decoding_them_at_once(data: st.DataObject) -> None:
    for name in (*TOKENIZER_FILES, "bytes"):
        found = byte_tokenizer() if name == "bytes" else load_cached(name)
        ids = data.draw(st.lists(st.integers(0, found.vocab_size - 1), max_size=30))
        pieces = streamed(found, ids)
        assert "".join(pieces) == found.decode(ids)
        for piece in pieces:
            piece.encode("utf-8")  # no half characters


_LOADED: dict[str, Tokenizer] = {}


def load_cached(name: str) -> Tokenizer:
    if name not in _LOADED:
        _LOADED[name] = load_tokenizer(TOKENIZER_FILES[name]())
    return _LOADED[name]


def test_a_character_appears_only_when_it_is_whole(any_tokenizer: Tokenizer) -> None:
    names = {name: i for i, name in enumerate(any_tokenizer.vocabulary.names)}
    spelled = [f"<0x{byte:02X}>" for byte in "🦾".encode()]
    ids = [names[name] for name in spelled] if spelled[0] in names else any_tokenizer.encode("🦾")
    assert len(ids) == 4
    pieces = streamed(any_tokenizer, ids)
    assert [piece for piece in pieces if piece] == ["🦾"]
    assert streamed(any_tokenizer, ids[:-1])[-1] == "\ufffd"


def test_control_tokens() -> None:
    found = tokenizer()
    assert (found.pad_id, found.eos_ids, found.bos_id) == (0, (1,), 2)
    assert found.decode([2, 0, 1]) == ""
    chat = load_tokenizer(byte_level_file())
    assert chat.eos_ids == (0, 1) and chat.bos_id is None
    with pytest.raises(CheckpointError, match="beginning"):
        chat.encode("x", bos=True)
    assert load_tokenizer(byte_level_file(), eos=("<|im_end|>",)).eos_ids == (1,)


def test_a_plain_word_that_looks_like_control_is_a_word() -> None:
    found = load_tokenizer(byte_fallback_file())
    assert found.eos_ids == (1,)
    assert found.decode([found.vocabulary.names.index("</s>")]) == "</s>"


def test_forbidden_ids_are_the_classes_asked_for() -> None:
    found = tokenizer()
    names = found.vocabulary.names
    mask = found.forbidden(("special", "unused", "location", "segmentation"), found.vocab_size + 10)
    out = {names[i] for i in np.flatnonzero(mask[: found.vocab_size])}
    assert out == {"<pad>", "<s>", "<unk>", "<unused0>", "<loc0001>", "<seg001>"}
    assert mask[found.vocab_size :].all() and not mask[1]
    ascii_only = found.forbidden(("non_ascii",), found.vocab_size)
    assert (
        ascii_only[names.index("<0xE2>")]
        and not ascii_only[names.index("\n")]
        and not ascii_only[names.index("<0x41>")]
    )
    with pytest.raises(CheckpointError, match="expected special"):
        found.forbidden(("images",), 10)


def test_four_threads_get_the_same_ids(any_tokenizer: Tokenizer) -> None:
    texts = [f"{text} {n}" for n in range(50) for text in HARD_TEXTS]
    expected = [any_tokenizer.encode(text) for text in texts]
    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        for found in pool.map(lambda _: [any_tokenizer.encode(text) for text in texts], range(4)):
            assert found == expected


@pytest.mark.parametrize("name", ["tokenizer.model", "tokenizer.json", "tokenizer.txt"])
def test_files_that_are_no_tokenizers_are_refused(name: str, tmp_path: Path) -> None:
    path = tmp_path / name
    path.write_text("{}")
    with pytest.raises(CheckpointError, match=name):
        load_tokenizer(path)
    with pytest.raises(CheckpointError):
        load_tokenizer(tmp_path / f"absent-{name}")
