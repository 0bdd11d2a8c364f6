"""openpi's wire: golden bytes, all dialects of plain arrays, and refusal of everything else without crash or cost."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgpack
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as st_numpy

from oxygen.core.errors import InvalidInput
from oxygen.serving.wire import WireLimits, packb, unpackb, uses_text_keys

GOLDEN = json.loads((Path(__file__).parents[1] / "data" / "preprocessing" / "msgpack.json").read_text())
SPEC_HEX = (
    "84a16184c40b5f5f6e6461727261795f5fc3c40464617461c403000102c4056474797065a37c7531c405736861706591"
    "03a17383c40d5f5f6e7067656e657269635f5fc3c40464617461cb3ff8000000000000c4056474797065a33c6634a670"
    "726f6d7074a26869a16e81a174920102"
)


def built(content: dict[str, Any]) -> Any:
    """The value that a typed description of the golden file stands for."""
    match content["type"]:
        case "plain":
            return content["value"]
        case "map":
            return {key: built(item) for key, item in content["items"]}
        case "array":
            return [built(item) for item in content["items"]]
        case "npgeneric":
            return np.dtype(content["dtype"]).type(content["value"])
        case "ndarray":
            array = np.frombuffer(bytes.fromhex(content["data_hex"]), dtype=content["dtype"]).reshape(content["shape"])
            # Some of the originals did not lie in C order; their bytes on the wire do.
            return np.asfortranarray(array) if content["note"] else array
    raise AssertionError(content["type"])


def same(one: Any, other: Any) -> bool:
    if isinstance(one, np.ndarray | np.generic):
        return one.dtype == other.dtype and one.shape == other.shape and one.tobytes() == other.tobytes()
    if isinstance(one, dict):
        return list(one) == list(other) and all(same(one[key], other[key]) for key in one)
    if isinstance(one, list | tuple):
        return len(one) == len(other) and all(map(same, one, other))
    return type(one) is type(other) and (one == other or one != one)


@pytest.mark.parametrize("case", GOLDEN["cases"], ids=lambda case: case["name"])
def test_bytes_equal_openpi(case: dict[str, Any]) -> None:
    assert packb(built(case["content"])).hex() == case["hex"]


@pytest.mark.parametrize("case", GOLDEN["cases"], ids=lambda case: case["name"])
def test_openpi_bytes_are_read(case: dict[str, Any]) -> None:
    read = unpackb(bytes.fromhex(case["hex"]))
    # A float64 scalar is a Python float on this wire.
    expected = json.loads(json.dumps(case["content"]).replace('"npgeneric", "dtype": "<f8"', '"plain", "dtype": "<f8"'))
    assert same(read, built(expected))


def test_the_measured_bytes_of_the_format() -> None:
    value = {"a": np.arange(3, dtype=np.uint8), "s": np.float32(1.5), "prompt": "hi", "n": {"t": (1, 2)}}
    assert packb(value).hex() == SPEC_HEX
    assert packb({"a": np.float64(-2.25)}).hex() == GOLDEN["np_float64_note"] == packb({"a": -2.25}).hex()


def test_arrays_are_read_only_views() -> None:
    array = unpackb(packb(np.arange(3)))
    with pytest.raises(ValueError, match="read-only"):
        array[0] = 1


@pytest.mark.parametrize(
    "value",
    [
        np.zeros(2, complex),
        np.complex64(1),
        np.array([object()]),
        np.zeros(2, dtype=[("x", "f4")]),
        np.void(b"ab"),
        np.datetime64("2020-01-01"),
        object(),
        {1, 2},
        2**70,
        "\ud800",
        {"x": {"y": [object()]}},
    ],
)
def test_what_is_not_plain_is_not_packed(value: Any) -> None:
    with pytest.raises(InvalidInput):
        packb(value)


ARRAYS = st.one_of(
    st_numpy.arrays(kind, st_numpy.array_shapes(min_dims=0, max_dims=4, min_side=0, max_side=4))
    for kind in ("u1", "i8", "<f4", ">f4", "<f8", "f2", "?", "<U3", "S2")
)
PLAIN = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.floats() | st.text() | st.binary() | ARRAYS,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=5), inner, max_size=4),
    max_leaves=8,
)


@settings(max_examples=150)
@given(PLAIN, st.booleans())
def test_plain_data_survives(value: Any, text_keys: bool) -> None:
    assert same(unpackb(packb(value, text_keys=text_keys)), value)


@settings(max_examples=300)
@given(st.binary(max_size=80))
def test_noise_is_read_or_refused(data: bytes) -> None:
    try:
        unpackb(data)
    except InvalidInput:
        return


@settings(max_examples=300)
@given(st.data())
def test_damaged_messages_are_read_or_refused(data: st.DataObject) -> None:
    message = bytearray.fromhex(data.draw(st.sampled_from([case["hex"] for case in GOLDEN["cases"]])))
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, len(message) - 1))
        message[at] = data.draw(st.integers(0, 255))
    try:
        unpackb(message[: data.draw(st.integers(0, len(message)))])
    except InvalidInput:
        return


MARKS = st.sampled_from([b"__ndarray__", "__ndarray__", b"__npgeneric__", b"nd", b"data", b"dtype", b"shape", b"type"])
PARTS = st.one_of(
    st.booleans(),
    st.sampled_from(
        ["<f4", "|u1", "<U9", "|O", "|V8", "<c8", "f4,i4", "<M8[ns]", "O8", b"<f4", "<f16", "<U0", "float32"]
    ),
    st.binary(max_size=16),
    st.lists(st.integers(-2, 2**66), max_size=3),
    st.none(),
)


@settings(max_examples=300)
@given(st.dictionaries(MARKS, PARTS, max_size=6))
def test_forged_arrays_are_read_or_refused(forged: dict[Any, Any]) -> None:
    try:
        read = unpackb(msgpack.packb(forged))
    except (InvalidInput, OverflowError):  # OverflowError: the forger's own packer
        return
    if isinstance(read, np.ndarray):
        assert read.dtype.kind not in "OVc" and not read.flags.writeable


def array_map(**changes: Any) -> dict[Any, Any]:
    parts = {"__ndarray__": True, "data": b"\0" * 8, "dtype": "<f4", "shape": [2]} | changes
    return {key.encode(): value for key, value in parts.items() if value is not ...}


@pytest.mark.parametrize(
    "changes",
    [
        {"shape": [3]},
        {"shape": [2**40, 0]},
        {"shape": [2**63]},
        {"shape": [-2]},
        {"shape": [True, 2]},
        {"shape": [1] * 9},
        {"shape": "2"},
        {"shape": ...},
        {"data": "text"},
        {"data": ...},
        {"data": b"\0" * 7},
        {"dtype": "|O"},
        {"dtype": "<c8", "shape": [1]},
        {"dtype": "|V8", "shape": [1]},
        {"dtype": [["x", "<f4"]]},
        {"dtype": "f4,f4", "shape": [1]},
        {"dtype": "<U0", "shape": [10**9], "data": b""},
        {"dtype": "no"},
        {"dtype": None},
        {"dtype": ...},
    ],
)
def test_arrays_that_do_not_add_up_are_refused(changes: dict[str, Any]) -> None:
    assert isinstance(unpackb(msgpack.packb(array_map())), np.ndarray)
    with pytest.raises(InvalidInput):
        unpackb(msgpack.packb(array_map(**changes)))


@pytest.mark.parametrize(
    ("dtype", "data"),
    [
        ("<i4", 2**40),
        ("|u1", -1),
        ("<f4", "x"),
        ("<i8", 1.5),
        ("|b1", 1),
        ("<f4", None),
        ("|O", 1),
        ("<c8", 1.0),
        ("<U2", 3),
    ],
)
def test_scalars_that_do_not_fit_are_refused(dtype: str, data: Any) -> None:
    with pytest.raises(InvalidInput):
        unpackb(msgpack.packb({b"__npgeneric__": True, b"data": data, b"dtype": dtype}))


def test_every_dialect_of_a_plain_array_reads_the_same() -> None:
    array = np.arange(6, dtype="<f4").reshape(2, 3)
    data, shape = array.tobytes(), [2, 3]
    dialects: list[dict[Any, Any]] = [
        {b"__ndarray__": True, b"data": data, b"dtype": "<f4", b"shape": shape},
        {"__ndarray__": True, "data": data, "dtype": "<f4", "shape": shape},
        {"__ndarray__": True, "data": data, "dtype": b"<f4", "shape": shape},
        {b"nd": True, b"type": "<f4", b"kind": b"", b"shape": shape, b"data": data},
        {b"nd": True, b"type": b"<f4", b"shape": shape, b"data": data},
        {"nd": True, "type": "<f4", "kind": "", "shape": shape, "data": data},
    ]
    for dialect in dialects:
        assert same(unpackb(msgpack.packb({"x": dialect}))["x"], array)
    scalar = unpackb(msgpack.packb({b"nd": False, b"type": "<f4", b"data": np.float32(1.5).tobytes()}))
    assert scalar == np.float32(1.5) and isinstance(scalar, np.float32)
    with pytest.raises(InvalidInput, match="kind"):
        unpackb(msgpack.packb({b"nd": True, b"type": "<f4", b"kind": b"V", b"shape": shape, b"data": data}))


def test_a_reply_can_take_the_callers_dialect() -> None:
    value = {"actions": np.zeros((2, 7))}
    assert uses_text_keys(packb(value, text_keys=True)) and not uses_text_keys(packb(value))
    assert not uses_text_keys(packb({"prompt": "__ndarray__"}) + packb(value))


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\xc1",
        packb({"a": 1})[:-1],
        packb({"a": 1}) + b"\0",
        msgpack.packb(msgpack.ExtType(5, b"x")),
        msgpack.packb(msgpack.Timestamp(1)),
        msgpack.packb({1: 2}),
        b"\x82\xa1a\x01\xa1a\x02",
        b"\xa2\xff\xfe",
        b"\xdd\xff\xff\xff\xff",
        b"\xdf\xff\xff\xff\xff",
        b"\xc6\xff\xff\xff\xff",
        b"\x91" * 2000 + b"\0",
        b"\x91" * 100_000 + b"\0",
    ],
    ids=range(14),
)
def test_broken_and_hostile_messages_are_refused(data: bytes) -> None:
    with pytest.raises(InvalidInput):
        unpackb(data)


def test_limits_are_what_they_say() -> None:
    limits = WireLimits(num_bytes=100, depth=3, num_items=4, num_axes=2)
    assert unpackb(packb([[[1]]]), limits) == [[[1]]]
    assert unpackb(packb([1] * 4), limits) == [1] * 4
    for value in ([[[[1]]]], [1] * 5, {str(i): i for i in range(5)}, b"\0" * 100, np.zeros((1, 1, 1), np.uint8)):
        with pytest.raises(InvalidInput):
            unpackb(packb(value), limits)


def test_three_raw_camera_frames_fit() -> None:
    frames = {f"cam{i}": np.zeros((720, 1280, 3), np.uint8) for i in range(3)}
    assert same(unpackb(packb(frames)), frames)
