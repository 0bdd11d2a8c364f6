"""A safetensors file is read whole or refused with the reason; nothing else can happen to it."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors.numpy import save_file

from oxygen.checkpoint.headers import read_header
from oxygen.core.errors import CheckpointError


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "model.safetensors"
    save_file({"a": np.ones((2, 3), np.float32), "b": np.ones(5, np.float16)}, path, {"who": "test"})
    return path


def rewrite(path: Path, header: object, data: bytes) -> None:
    raw = header if isinstance(header, bytes) else json.dumps(header).encode()
    path.write_bytes(len(raw).to_bytes(8, "little") + raw + data)


def test_a_whole_file_is_described(file: Path) -> None:
    header = read_header(file)
    assert {name: (info.dtype, info.shape, info.num_bytes) for name, info in header.tensors.items()} == {
        "a": ("F32", (2, 3), 24),
        "b": ("F16", (5,), 10),
    }
    assert header.metadata == {"who": "test"}


def test_truncated_names_what_is_incomplete(file: Path) -> None:
    file.write_bytes(file.read_bytes()[:-4])
    with pytest.raises(CheckpointError, match=r"model\.safetensors: truncated: .* absent: b$"):
        read_header(file)


def test_trailing_bytes_are_counted(file: Path) -> None:
    file.write_bytes(file.read_bytes() + b"12345")
    with pytest.raises(CheckpointError, match="5 trailing bytes after the last tensor"):
        read_header(file)


@pytest.mark.parametrize("content", [b"", b"1234567", b"<html>not found</html>", bytes([200]) + bytes(7)])
def test_something_else_is_not_taken_for_weights(file: Path, content: bytes) -> None:
    file.write_bytes(content)
    with pytest.raises(CheckpointError, match="not a whole safetensors file"):
        read_header(file)


A = {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}


@pytest.mark.parametrize(
    ("header", "message"),
    [
        (b"{nope", "not JSON"),
        (b"[" * 100_000, "not JSON"),
        ([1], "not a map of tensors"),
        ({"a": {"dtype": "F32", "shape": [2]}}, "entry of a is malformed"),
        ({"a": A | {"shape": [-2]}}, "entry of a is malformed"),
        ({"a": A | {"shape": [True, 2]}}, "entry of a is malformed"),
        ({"a": A | {"dtype": "F99"}}, "a has the unknown dtype F99"),
        ({"a": A | {"shape": [3]}}, r"a is F32 \[3\], 12 bytes, but the header gives it 8"),
        ({"a": A, "b": A}, "b start at .*overlaps"),
        ({"a": A | {"data_offsets": [4, 12]}}, "a start at .*leaves a gap"),
        ({"a": A, "__metadata__": 3}, "__metadata__ .* is not a map"),
    ],
)
def test_malformed_headers(file: Path, header: object, message: str) -> None:
    rewrite(file, header, bytes(12))
    with pytest.raises(CheckpointError, match=message):
        read_header(file)


def test_an_absent_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"gone\.safetensors: cannot be read"):
        read_header(tmp_path / "gone.safetensors")


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(cut=st.integers(0, 250), at=st.integers(0, 249), byte=st.integers(0, 255))
def test_any_damage_is_noticed_or_harmless(file: Path, cut: int, at: int, byte: int) -> None:
    """Cut the file anywhere: refused. Change any byte: read, or refused; never another exception."""
    whole = file.read_bytes()
    copy = file.with_name("damaged.safetensors")
    if cut < len(whole):
        copy.write_bytes(whole[:cut])
        with pytest.raises(CheckpointError):
            read_header(copy)
    changed = bytearray(whole)
    changed[at % len(whole)] = byte
    copy.write_bytes(changed)
    try:
        header = read_header(copy)
    except CheckpointError as error:
        assert str(copy) in str(error)
    else:
        assert sum(info.num_bytes for info in header.tensors.values()) == 34
