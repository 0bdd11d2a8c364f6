"""Tokenizers of a checkpoint behind one small face: a sentencepiece `.model` or a `tokenizer.json`.

Every token is known by the bytes that it stands for. Text is the UTF-8 reading of those bytes, so that decoding token
by token and decoding at once are the same thing, and a token that holds half a character waits for the other half.
"""

from __future__ import annotations

import codecs
import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import sentencepiece
import tokenizers

from oxygen.core.errors import CheckpointError

_SPACE = "\u2581"
_BYTE = re.compile(r"<0x([0-9A-Fa-f]{2})>")
_BOS_NAMES = ("<bos>", "<s>", "<|begin_of_text|>")
_EOS_NAMES = ("<eos>", "</s>", "<|endoftext|>", "<|im_end|>", "<|end_of_text|>")
_PAD_NAMES = ("<pad>", "<|pad|>", "[PAD]")
FORBIDDEN_CLASSES = {
    "special": "pad, bos, unk and other control tokens (not the end of text)",
    "unused": "<unused0>, ...",
    "location": "<loc0000>, ...",
    "segmentation": "<seg000>, ...",
    "non_ascii": "tokens with bytes that are neither printable ASCII nor a newline",
}
_NAMED = {
    "unused": re.compile(r"<\|?unused[_ ]?\d+\|?>|\[unused\d+\]"),
    "location": re.compile(r"<loc\d{4}>"),
    "segmentation": re.compile(r"<seg\d{3}>"),
}
_PRINTABLE = frozenset(range(0x20, 0x7F)) | {0x0A}


class Tokenizer(Protocol):
    """Text and tokens. All methods may be called from several threads."""

    vocab_size: int
    bos_id: int | None
    pad_id: int | None
    eos_ids: tuple[int, ...]

    def encode(self, text: str, *, bos: bool = False) -> list[int]: ...

    def decode(self, ids: Iterable[int]) -> str: ...

    def stream(self) -> TextStream: ...

    def forbidden(self, classes: Sequence[str], vocab_size: int) -> np.ndarray: ...


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """What each id stands for. names: as the file writes it. contents: bytes of text (empty for control tokens).

    strips_space: the text loses one leading space, which the tokenizer itself put there when it encoded.
    """

    names: tuple[str, ...]
    contents: tuple[bytes, ...]
    special: frozenset[int]
    strips_space: bool

    def decode(self, ids: Iterable[int]) -> str:
        text = b"".join([self.contents[i] for i in ids if 0 <= i < len(self.contents)]).decode("utf-8", "replace")
        return text[1:] if self.strips_space and text.startswith(" ") else text

    def forbidden(self, classes: Sequence[str], vocab_size: int, eos_ids: Sequence[int]) -> np.ndarray:
        """[vocab_size] bool, true for tokens of these classes and for ids that no token has. End of text stays
        allowed."""
        if unknown := [name for name in classes if name not in FORBIDDEN_CLASSES]:
            raise CheckpointError(f"forbidden tokens {unknown[0]!r}: expected {', '.join(FORBIDDEN_CLASSES)}")
        mask = np.ones(vocab_size, dtype=bool)
        patterns = [_NAMED[name] for name in classes if name in _NAMED]
        wants_special, wants_ascii = "special" in classes, "non_ascii" in classes
        for i, (name, content) in enumerate(zip(self.names[:vocab_size], self.contents, strict=False)):
            is_out = (i in self.special and wants_special) or any(pattern.fullmatch(name) for pattern in patterns)
            mask[i] = is_out or (wants_ascii and not _PRINTABLE.issuperset(content)) or (not name and not content)
        mask[[i for i in eos_ids if i < vocab_size]] = False
        return mask


class TextStream:
    """Tokens to text, piece by piece; all pieces and the rest that `finish` returns, joined, are what `decode`
    gives."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        self._contents = vocabulary.contents
        self._utf8 = codecs.getincrementaldecoder("utf-8")("replace")
        self._strips_space = vocabulary.strips_space

    def push(self, token_id: int) -> str:
        """Take one more token; return the characters that it completes (often none or one)."""
        content = self._contents[token_id] if 0 <= token_id < len(self._contents) else b""
        return self._stripped(self._utf8.decode(content))

    def finish(self) -> str:
        """Bytes that never became a character, as replacement marks."""
        return self._stripped(self._utf8.decode(b"", final=True))

    def _stripped(self, text: str) -> str:
        if text and self._strips_space:
            self._strips_space = False
            return text.removeprefix(" ")
        return text


class SentencePieceTokenizer:
    """A sentencepiece model file."""

    def __init__(self, path: Path) -> None:
        try:
            self._model = sentencepiece.SentencePieceProcessor(model_file=str(path))
        except (RuntimeError, OSError) as error:
            raise CheckpointError(f"{path}: not a sentencepiece model: {error}") from error
        model = self._model
        self.vocab_size = model.get_piece_size()
        self.bos_id = model.bos_id() if model.bos_id() >= 0 else None
        self.pad_id = model.pad_id() if model.pad_id() >= 0 else None
        self.eos_ids = (model.eos_id(),) if model.eos_id() >= 0 else ()
        names = tuple(model.id_to_piece(list(range(self.vocab_size))))
        special = frozenset(i for i in range(self.vocab_size) if model.is_control(i) or model.is_unknown(i))
        contents = tuple(_piece_bytes(model, i, name) for i, name in enumerate(names))
        self.vocabulary = Vocabulary(names, contents, special, _strips_space(contents, model.decode))

    def encode(self, text: str, *, bos: bool = False) -> list[int]:
        ids = self._model.encode(text)
        return [self._bos(), *ids] if bos else ids

    def decode(self, ids: Iterable[int]) -> str:
        return self.vocabulary.decode(ids)

    def stream(self) -> TextStream:
        return TextStream(self.vocabulary)

    def forbidden(self, classes: Sequence[str], vocab_size: int) -> np.ndarray:
        return self.vocabulary.forbidden(classes, vocab_size, self.eos_ids)

    def _bos(self) -> int:
        if self.bos_id is None:
            raise CheckpointError("the tokenizer has no token for the beginning of a text")
        return self.bos_id


class JsonTokenizer:
    """A `tokenizer.json` of the `tokenizers` library: byte-level, byte-fallback or plain pieces."""

    def __init__(self, path: Path, bos: str | None = None, eos: Sequence[str] = ()) -> None:
        try:
            written = json.loads(path.read_text(encoding="utf-8"))
            self._model = tokenizers.Tokenizer.from_file(str(path))
        except Exception as error:  # the library raises bare Exception for a file that it cannot use
            raise CheckpointError(f"{path}: not a tokenizer file: {error}") from error
        # Words of an operator that look like a control token are words, not control.
        self._model.encode_special_tokens = True
        self._model.no_padding()
        self._model.no_truncation()
        ids = self._model.get_vocab(with_added_tokens=True)
        self.vocab_size = max(ids.values()) + 1
        added = {token["id"]: bool(token["special"]) for token in written.get("added_tokens") or ()}
        special = frozenset(i for i, is_special in added.items() if is_special)
        self.bos_id = _one(ids, (bos,) if bos else _BOS_NAMES)
        self.pad_id = next((ids[name] for name in _PAD_NAMES if name in ids), None)
        self.eos_ids = tuple(ids[name] for name in (eos or _EOS_NAMES) if name in ids)
        names = [""] * self.vocab_size
        for name, i in ids.items():
            names[i] = name
        to_bytes = _reader(written.get("decoder"), path)
        contents = tuple(
            b"" if i in special else name.encode() if i in added else to_bytes(name) for i, name in enumerate(names)
        )
        self.vocabulary = Vocabulary(tuple(names), contents, special, _strips_space(contents, self._model.decode))

    def encode(self, text: str, *, bos: bool = False) -> list[int]:
        ids = self._model.encode(text, add_special_tokens=False).ids
        if not bos:
            return ids
        if self.bos_id is None:
            raise CheckpointError("the tokenizer has no token for the beginning of a text")
        return [self.bos_id, *ids]

    def decode(self, ids: Iterable[int]) -> str:
        return self.vocabulary.decode(ids)

    def stream(self) -> TextStream:
        return TextStream(self.vocabulary)

    def forbidden(self, classes: Sequence[str], vocab_size: int) -> np.ndarray:
        return self.vocabulary.forbidden(classes, vocab_size, self.eos_ids)


def load_tokenizer(path: Path | str, *, bos: str | None = None, eos: Sequence[str] = ()) -> Tokenizer:
    """Open a `.model` (sentencepiece) or `.json` (tokenizers) file. Raises CheckpointError.

    bos and eos: names of the control tokens of a `.json`, where they are not the usual ones.
    """
    path = Path(path)
    if path.suffix == ".model":
        return SentencePieceTokenizer(path)
    if path.suffix == ".json":
        return JsonTokenizer(path, bos, eos)
    raise CheckpointError(f"{path}: expected a tokenizer file, .model or .json")


def _piece_bytes(model: sentencepiece.SentencePieceProcessor, i: int, name: str) -> bytes:
    if model.is_control(i):
        return b""
    if model.is_unknown(i):
        return " \u2047 ".encode()  # what the library itself shows for it
    if model.is_byte(i):
        return bytes([int(name[3:5], 16)])
    return name.replace(_SPACE, " ").encode()


def _reader(decoder: dict[str, Any] | None, path: Path) -> Callable[[str], bytes]:
    """How the names of a `tokenizer.json` spell bytes, from the decoder that the file declares."""
    if decoder is None:
        return lambda name: f" {name}".encode()  # plain words, joined by spaces
    kinds = {part["type"] for part in decoder.get("decoders", [decoder])}
    if "ByteLevel" in kinds:
        table = _byte_alphabet()
        return lambda name: bytes(table[c] for c in name) if all(c in table for c in name) else name.encode()
    if kinds <= {"Replace", "ByteFallback", "Fuse", "Strip", "Metaspace"}:
        return _spelled
    raise CheckpointError(f"{path}: unknown decoder {sorted(kinds)}")


def _spelled(name: str) -> bytes:
    byte = _BYTE.fullmatch(name)
    return bytes([int(byte[1], 16)]) if byte else name.replace(_SPACE, " ").encode()


def _byte_alphabet() -> dict[str, int]:
    """Character -> byte of byte-level vocabularies: printable Latin-1 stands for itself, the rest from U+0100 on."""
    own = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    rest = [byte for byte in range(256) if byte not in own]
    return {chr(byte): byte for byte in own} | {chr(0x100 + i): byte for i, byte in enumerate(rest)}


def _strips_space(contents: Sequence[bytes], decode: Callable[[list[int]], str]) -> bool:
    """Whether the library itself drops the space in front of a text, asked of one piece that begins with a space."""
    for i, content in enumerate(contents):
        if content.startswith(b" ") and content[1:2].isalnum():
            return not decode([i]).startswith(" ")
    return False


def _one(ids: Mapping[str, int], names: Sequence[str | None]) -> int | None:
    return next((ids[name] for name in names if name in ids), None)
