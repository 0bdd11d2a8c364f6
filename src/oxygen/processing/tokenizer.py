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
from typing import Any

import numpy as np
import sentencepiece
import tokenizers

from oxygen.core.errors import CheckpointError

_SPACE = "\u2581"
_MAX_IDS = 2**24
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


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """What each id stands for. names: as the file writes it. contents: bytes of text (empty for control tokens).

    A text loses one leading space: it only parts the text from what stood before it.
    """

    names: tuple[str, ...]
    contents: tuple[bytes, ...]
    special: frozenset[int]

    def decode(self, ids: Iterable[int]) -> str:
        text = b"".join([self.contents[i] for i in ids if 0 <= i < len(self.contents)]).decode("utf-8", "replace")
        return text.removeprefix(" ")

    def forbidden(self, classes: Sequence[str], vocab_size: int, eos_ids: Sequence[int]) -> np.ndarray:
        """[vocab_size] bool, true for tokens of these classes and for ids that no token has; never for `eos_ids`."""
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
    """Tokens to text, piece by piece: the pieces, joined with what `finish` returns, are what `decode` gives."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        self._contents = vocabulary.contents
        self._utf8 = codecs.getincrementaldecoder("utf-8")("replace")
        self._has_begun = False

    def push(self, token_id: int) -> str:
        """Take one more token; return the characters that it completes (often none or one)."""
        content = self._contents[token_id] if 0 <= token_id < len(self._contents) else b""
        return self._begun(self._utf8.decode(content))

    def finish(self) -> str:
        """Bytes that never became a character, as replacement marks."""
        return self._begun(self._utf8.decode(b"", final=True))

    def _begun(self, text: str) -> str:
        if self._has_begun or not text:
            return text
        self._has_begun = True
        return text.removeprefix(" ")


@dataclass(frozen=True, slots=True, eq=False)
class Tokenizer:
    """Text and tokens. All methods may be called from several threads.

    to_ids: the library's encoder, without control tokens. eos_ids: tokens that end a text.
    """

    vocabulary: Vocabulary
    to_ids: Callable[[str], list[int]]
    bos_id: int | None
    pad_id: int | None
    eos_ids: tuple[int, ...]

    @property
    def vocab_size(self) -> int:
        return len(self.vocabulary.names)

    def encode(self, text: str, *, bos: bool = False) -> list[int]:
        if not bos:
            return self.to_ids(text)
        if self.bos_id is None:
            raise CheckpointError("the tokenizer has no token for the beginning of a text")
        return [self.bos_id, *self.to_ids(text)]

    def decode(self, ids: Iterable[int]) -> str:
        return self.vocabulary.decode(ids)

    def stream(self) -> TextStream:
        return TextStream(self.vocabulary)

    def forbidden(self, classes: Sequence[str], vocab_size: int) -> np.ndarray:
        """[vocab_size] bool, see Vocabulary.forbidden."""
        return self.vocabulary.forbidden(classes, vocab_size, self.eos_ids)


def load_tokenizer(path: Path | str, *, bos: str | None = None, eos: Sequence[str] = ()) -> Tokenizer:
    """Open a `.model` (sentencepiece) or `.json` (tokenizers) file. Raises CheckpointError.

    bos and eos: names of the control tokens of a `.json`, where they are not the usual ones.
    """
    path = Path(path)
    if path.suffix == ".model":
        return _from_sentencepiece(path)
    if path.suffix == ".json":
        return _from_json(path, bos, eos)
    raise CheckpointError(f"{path}: expected a tokenizer file, .model or .json")


def byte_tokenizer() -> Tokenizer:
    """One token per byte, for models without a vocabulary of their own (random weights, tests): 0 pad, 1 end, 2
    begin."""
    control = ("<pad>", "<eos>", "<bos>")
    names = control + tuple(f"<0x{byte:02X}>" for byte in range(256))
    contents = (b"",) * len(control) + tuple(bytes([byte]) for byte in range(256))
    vocabulary = Vocabulary(names, contents, frozenset(range(len(control))))
    return Tokenizer(vocabulary, lambda text: [byte + len(control) for byte in text.encode()], 2, 0, (1,))


def byte_tokenizer_with(control: Mapping[str, int], symbols: Mapping[str, int], eos_ids: Sequence[int]) -> Tokenizer:
    """One token per byte, under its own number; control tokens, and symbols that are one token each, at ids above 255.

    For chat models with random weights: their sizes say where the control tokens are.
    """
    size = max((*control.values(), *symbols.values())) + 1
    names, contents = [""] * size, [b""] * size
    for byte in range(256):
        names[byte], contents[byte] = f"<0x{byte:02X}>", bytes([byte])
    for name, i in (*control.items(), *symbols.items()):
        names[i] = name
    for name, i in symbols.items():
        contents[i] = name.encode()
    parts = re.compile("(" + "|".join(map(re.escape, symbols)) + ")")

    def to_ids(text: str) -> list[int]:
        return [i for part in parts.split(text) for i in ([symbols[part]] if part in symbols else part.encode())]

    vocabulary = Vocabulary(tuple(names), tuple(contents), frozenset(control.values()))
    return Tokenizer(vocabulary, to_ids, None, None, tuple(eos_ids))


def _from_sentencepiece(path: Path) -> Tokenizer:
    try:
        model = sentencepiece.SentencePieceProcessor(model_file=str(path))
    except (RuntimeError, OSError) as error:
        raise CheckpointError(f"{path}: not a sentencepiece model: {error}") from error
    ids = range(model.get_piece_size())
    names = tuple(model.id_to_piece(list(ids)))
    special = frozenset(i for i in ids if model.is_control(i) or model.is_unknown(i))
    contents = tuple(_piece_bytes(model, i, name) for i, name in enumerate(names))
    bos, pad, eos = (i if i >= 0 else None for i in (model.bos_id(), model.pad_id(), model.eos_id()))
    return Tokenizer(Vocabulary(names, contents, special), model.encode, bos, pad, () if eos is None else (eos,))


def _from_json(path: Path, bos: str | None, eos: Sequence[str]) -> Tokenizer:
    try:
        written = json.loads(path.read_text(encoding="utf-8"))
        model = tokenizers.Tokenizer.from_file(str(path))
    except BaseException as error:  # the library raises bare Exception, or panics (no Exception), for an unfit file
        if not isinstance(error, Exception) and type(error).__name__ != "PanicException":
            raise
        raise CheckpointError(f"{path}: not a tokenizer file: {error!s:.200}") from error
    # Words of an operator that look like a control token are words, not control.
    model.encode_special_tokens = True
    model.no_padding()
    model.no_truncation()
    ids = model.get_vocab(with_added_tokens=True)
    added = {token["id"]: bool(token["special"]) for token in written.get("added_tokens") or ()}
    special = frozenset(i for i, is_special in added.items() if is_special)
    # A word of the vocabulary may look like a control token (</s> is one of HTML's): only what is declared so is one.
    control = {name: i for name, i in ids.items() if i in special} or ids
    if not ids or max(ids.values()) >= _MAX_IDS:
        raise CheckpointError(
            f"{path}: expected from 1 to {_MAX_IDS} tokens, got ids to {max(ids.values(), default=-1)}"
        )
    names = [""] * (max(ids.values()) + 1)
    for name, i in ids.items():
        names[i] = name
    to_bytes = _reader(written.get("decoder"), path)
    contents = tuple(
        b"" if i in special else name.encode() if i in added else to_bytes(name) for i, name in enumerate(names)
    )
    return Tokenizer(
        vocabulary=Vocabulary(tuple(names), contents, special),
        to_ids=lambda text: list(model.encode(text, add_special_tokens=False).ids),
        bos_id=next((control[name] for name in ((bos,) if bos else _BOS_NAMES) if name in control), None),
        pad_id=next((control[name] for name in _PAD_NAMES if name in control), None),
        eos_ids=tuple(control[name] for name in (eos or _EOS_NAMES) if name in control),
    )


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
        return lambda name: f" {name}".encode()  # whole words, parted by spaces
    kinds = {str(part["type"]) for part in decoder.get("decoders", [decoder])}
    if "ByteLevel" in kinds:
        table = _byte_alphabet()
        return lambda name: bytes(table[c] for c in name) if all(c in table for c in name) else name.encode()
    if kinds <= {"Replace", "ByteFallback", "Fuse", "Strip", "Metaspace"}:
        return _spelled
    raise CheckpointError(f"{path}: unknown decoder {sorted(kinds)!s:.200}")


def _spelled(name: str) -> bytes:
    byte = _BYTE.fullmatch(name)
    return bytes([int(byte[1], 16)]) if byte else name.replace(_SPACE, " ").encode()


def _byte_alphabet() -> dict[str, int]:
    """Character -> byte of byte-level vocabularies: printable Latin-1 stands for itself, the rest from U+0100 on."""
    own = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    rest = [byte for byte in range(256) if byte not in own]
    return {chr(byte): byte for byte in own} | {chr(0x100 + i): byte for i, byte in enumerate(rest)}
