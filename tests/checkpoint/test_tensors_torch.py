"""Tensors in and out of files: equal to the safetensors library's, one at a time, whole or not at all."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from oxygen.checkpoint.index import read_index
from oxygen.checkpoint.torch import TORCH_TYPES, TensorReader, is_finite, save_tensors
from oxygen.checkpoint.values import fingerprint, same_values
from oxygen.checkpoint.values import is_finite as is_finite_in_file
from oxygen.core.errors import CheckpointError


def samples() -> dict[str, torch.Tensor]:
    torch.manual_seed(0)
    tensors = {f"t.{name}": (torch.randn(3, 5) * 4).to(dtype) for name, dtype in TORCH_TYPES.items()}
    return tensors | {"scalar": torch.tensor(2.5), "empty": torch.zeros(0, 4), "view": torch.randn(4, 6)[1:3]}


def read_all(folder: Path) -> dict[str, torch.Tensor]:
    index = read_index(folder)
    assert index is not None
    with TensorReader(index) as reader:
        return {name: reader.read(name) for name in index}


def test_reads_what_the_library_wrote(tmp_path: Path) -> None:
    tensors = {name: tensor.contiguous() for name, tensor in samples().items()}
    save_file(tensors, tmp_path / "model.safetensors")
    ours = read_all(tmp_path)
    assert ours.keys() == tensors.keys()
    assert all(torch.equal(ours[name], tensor) and ours[name].dtype == tensor.dtype for name, tensor in tensors.items())


@pytest.mark.parametrize("max_shard_bytes", [10**9, 120, 1])
def test_the_library_reads_what_we_wrote(tmp_path: Path, max_shard_bytes: int) -> None:
    tensors = samples()
    files = save_tensors(tmp_path, tensors, max_shard_bytes)
    assert (len(files) == 1) == (max_shard_bytes == 10**9)
    theirs: dict[str, torch.Tensor] = {}
    for file in files:
        if file.suffix == ".safetensors":
            theirs |= load_file(file)
    ours = read_all(tmp_path)
    for name, tensor in tensors.items():
        assert torch.equal(theirs[name], tensor) and torch.equal(ours[name], tensor)
        assert ours[name].dtype == theirs[name].dtype == tensor.dtype
    assert not list(tmp_path.glob("*.partial"))


def test_read_into_converts_and_checks_the_shape(tmp_path: Path) -> None:
    save_tensors(tmp_path, {"x": torch.tensor([1.0, 2.0**-9, 3.0])})
    index = read_index(tmp_path)
    assert index is not None
    with TensorReader(index) as reader:
        rows = torch.zeros(3, 3)
        reader.read_into("x", rows[1])
        assert torch.equal(rows[1], torch.tensor([1.0, 2.0**-9, 3.0])) and rows[0].sum() == rows[2].sum() == 0
        column = torch.zeros(3, 2, dtype=torch.bfloat16)
        reader.read_into("x", column[:, 1])
        assert torch.equal(column[:, 1].float(), torch.tensor([1.0, 2.0**-9, 3.0])) and column[:, 0].sum() == 0
        with pytest.raises(CheckpointError, match=r"x is \[3\], expected \[4\]"):
            reader.read_into("x", torch.zeros(4))


def test_a_file_that_shrinks_while_it_is_read(tmp_path: Path) -> None:
    (file,) = save_tensors(tmp_path, {"x": torch.ones(1000)})
    index = read_index(tmp_path)
    assert index is not None
    file.write_bytes(file.read_bytes()[:-8])
    with TensorReader(index) as reader, pytest.raises(CheckpointError, match="ended inside x"):
        reader.read("x")


def test_overwriting_is_asked_for_and_leaves_no_old_shard(tmp_path: Path) -> None:
    save_tensors(tmp_path, {"a": torch.ones(4), "b": torch.ones(4)}, 16)
    with pytest.raises(CheckpointError, match="already holds weights"):
        save_tensors(tmp_path, {"a": torch.zeros(4)})
    save_tensors(tmp_path, {"a": torch.zeros(4)}, overwrite=True)
    assert [path.name for path in tmp_path.iterdir()] == ["model.safetensors"]
    assert torch.equal(read_all(tmp_path)["a"], torch.zeros(4))


def test_what_cannot_be_stored_is_not(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="x is NaN or infinite as F16; not saved"):
        save_tensors(tmp_path, {"x": torch.tensor([1e6])}, dtype=torch.float16)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf"), None])
def test_finite(tmp_path: Path, dtype: torch.dtype, value: float | None) -> None:
    x = torch.randn(7, 3).to(dtype)
    x[0, 0] = torch.finfo(dtype).max
    if value is not None:
        x[5, 1] = value
    assert is_finite(x) == (value is None)
    save_file({"x": x}, tmp_path / "model.safetensors")
    index = read_index(tmp_path)
    assert index is not None and is_finite_in_file(index["x"]) == (value is None)


def test_same_values_across_types(tmp_path: Path) -> None:
    exact = torch.tensor([[1.5, -2.0], [0.25, 2.0**-8]])
    save_file(
        {
            "f32": exact,
            "bf16": exact.bfloat16(),
            "f16": exact.half(),
            "f64": exact.double(),
            "flat": exact.flatten().clone(),
            "other": exact + 1,
        },
        tmp_path / "model.safetensors",
    )
    index = read_index(tmp_path)
    assert index is not None
    assert all(same_values(index["f32"], index[name]) for name in ("f32", "bf16", "f16", "f64"))
    assert not same_values(index["bf16"], index["other"]) and not same_values(index["f32"], index["other"])
    assert not same_values(index["f32"], index["flat"])


def test_fingerprint_sees_names_shapes_and_numbers(tmp_path: Path) -> None:
    tensors = {"a": torch.arange(6.0), "b": torch.arange(6.0).view(2, 3), "c": torch.arange(1.0, 7.0)}
    save_file(tensors, tmp_path / "model.safetensors")
    index = read_index(tmp_path)
    assert index is not None
    prints = [fingerprint([("x", index[name])]) for name in "abc"] + [fingerprint([("y", index["a"])])]
    assert len(set(prints)) == 4
    both = [("x", index["a"]), ("y", index["b"])]
    assert fingerprint(both) == fingerprint(both[::-1])
