"""The compiled kernels against the same written out in float64, and what happens where they cannot be had."""

from __future__ import annotations

import logging
import os
import subprocess
import sys

import pytest
import torch
import torch.nn.functional as F

from oxygen.layers.native import build
from oxygen.layers.torch import native
from oxygen.layers.torch.linear import PackedLinear, can_pack
from oxygen.layers.torch.norm import RMSNorm, modulated_rms_norm, norm_floor
from oxygen.layers.torch.rope import apply_rope_to_neighbours, rope_phases

needs_kernels = pytest.mark.skipif(build.kernels() is None, reason=f"compiled kernels are {build.state()}")
ROUNDING = {torch.float32: 2e-6, torch.bfloat16: 2**-8}


@pytest.fixture(autouse=True)
def inference():
    with torch.inference_mode():
        yield


def require_layout(few):
    """oneDNN's layout with AVX-512 is known; other processors may pack otherwise, which the kernels leave alone."""
    if few is None and torch.backends.cpu.get_cpu_capability() != "AVX512":
        pytest.skip("oneDNN packs otherwise on this processor")
    assert few is not None


def packed(out_width, in_width, dtype, seed=0):
    weight = torch.randn(out_width, in_width, generator=torch.Generator().manual_seed(seed)).div_(in_width**0.5)
    if not can_pack(weight.to(dtype)):
        pytest.skip(f"oneDNN packs no {dtype} here")
    if dtype == torch.bfloat16 and not build.kernels().oxygen_has_bfloat16_products():
        pytest.skip("no bfloat16 product on this processor")
    few = PackedLinear(weight.to(dtype))
    require_layout(few._few)
    return weight.to(dtype), few


def close(got, wanted, scale=1.0):
    assert got.dtype in ROUNDING
    limit = scale * ROUNDING[got.dtype] * max(1.0, wanted.abs().max().item())
    assert (got.double() - wanted).abs().max().item() <= limit


@needs_kernels
@pytest.mark.parametrize("dtype", ROUNDING)
@pytest.mark.parametrize("rows", [1, 2, 3, 7, 8, 10, 11, 14, 25, 30, 60])
@pytest.mark.parametrize(("out_width", "in_width"), [(64, 64), (257, 96), (70, 1056), (33, 128)])
def test_products_of_few_rows(dtype, rows, out_width, in_width):
    weight, few = packed(out_width, in_width, dtype)
    x = torch.randn(rows, in_width).to(dtype)
    residual = torch.randn(rows, out_width).to(dtype)
    exact = x.double() @ weight.double().t()
    close(few(x), exact, 8)
    close(few(x, "gelu"), F.gelu(exact, approximate="tanh"), 8)
    close(few(x, "silu"), F.silu(exact), 8)
    close(few.add(x, residual), residual.double() + exact, 8)
    bias = torch.randn(out_width).to(dtype)
    close(PackedLinear(weight, bias)(x, "gelu"), F.gelu(exact + bias.double(), approximate="tanh"), 8)
    other_weight, other = packed(out_width, in_width, dtype, seed=1)
    close(few.gated(x, "silu", other), F.silu(exact) * (x.double() @ other_weight.double().t()), 16)


@needs_kernels
@pytest.mark.parametrize("dtype", ROUNDING)
def test_a_product_of_no_rows_is_empty(dtype):
    _, few = packed(70, 64, dtype)
    assert few(torch.zeros(0, 64, dtype=dtype)).shape == (0, 70)


@needs_kernels
@pytest.mark.parametrize("dtype", ROUNDING)
def test_a_row_of_a_product_does_not_depend_on_the_others(dtype):
    _, few = packed(200, 288, dtype)
    x = torch.randn(native.MOST_ROWS, 288).to(dtype)
    alone = torch.cat([few(row[None]) for row in x])
    for rows in range(1, native.MOST_ROWS + 1):
        assert torch.equal(few(x[:rows]), alone[:rows])
    assert torch.equal(few(x[::3]), alone[::3]), "rows that do not lie together"


@needs_kernels
def test_a_layout_that_is_not_the_expected_one_is_left_to_the_library():
    weight = torch.randn(130, 64)
    right = torch.ops.mkldnn._reorder_linear_weight(weight, 16)
    require_layout(native.few_rows(weight, right))
    last = weight.clone()
    last[129, 63] += 1
    assert native.few_rows(last, right) is None
    assert native.few_rows(weight[:, :63].contiguous(), right) is None


@needs_kernels
@pytest.mark.parametrize("dtype", ROUNDING)
@pytest.mark.parametrize("rows", [1, 5, 300])
def test_norms(dtype, rows):
    x = torch.randn(rows, 208).to(dtype) * 3
    norm = RMSNorm(208, 1e-6)
    norm.weight.data.normal_()
    norm.prepare()
    unit = x.double() / (x.double().square().mean(-1, keepdim=True) + 1e-6).sqrt()
    close(norm(x), unit * (1 + norm.weight.double()), 2)
    gain, shift, floor = torch.randn(208), torch.randn(208), norm_floor(208, 1e-6)
    wanted = unit / 208**0.5 * gain.double() + shift.double()
    close(modulated_rms_norm(x, gain, shift, floor), wanted, 2)
    assert norm(torch.zeros(1, 208, dtype=dtype)).count_nonzero() == 0


@needs_kernels
@pytest.mark.parametrize("dtype", ROUNDING)
@pytest.mark.parametrize("tokens", [1, 9, 200])
def test_rotary_positions(dtype, tokens):
    x = torch.randn(tokens, 7, 64).to(dtype)[:, 1:6]
    rope = rope_phases(torch.arange(tokens) + 400, 64, 10000.0)
    pairs = torch.view_as_complex(x.double().unflatten(-1, (-1, 2)).contiguous())
    close(apply_rope_to_neighbours(x, rope), torch.view_as_real(pairs * rope.turns).flatten(-2), 2)


def test_tensors_that_the_kernels_cannot_take_go_through_the_library():
    assert not native.takes(torch.zeros(2, 15))
    assert not native.takes(torch.zeros(2, 16, dtype=torch.float16))
    with torch.enable_grad():
        assert not native.takes(torch.zeros(2, 16))


def test_without_a_compiler_the_reason_is_told(monkeypatch, caplog):
    monkeypatch.setattr(build.shutil, "which", lambda name: None)
    monkeypatch.delenv(build.SWITCH, raising=False)
    with caplog.at_level(logging.WARNING):
        assert build._find.__wrapped__() == "off: no C++ compiler (g++) found"
    assert "no C++ compiler" in caplog.text


def test_a_compiler_that_fails_is_no_error(monkeypatch, tmp_path):
    compiler = tmp_path / "g++"
    compiler.write_text("#!/bin/sh\n[ $1 = --version ] && exit 0\necho 'passes.cpp:1: no such thing' >&2\nexit 1\n")
    compiler.chmod(0o755)
    monkeypatch.setenv("CXX", str(compiler))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.delenv(build.SWITCH, raising=False)
    assert build._find.__wrapped__() == f"off: {compiler} failed: passes.cpp:1: no such thing"
    assert not list((tmp_path / "oxygen").iterdir()), "nothing half-made stays behind"


@needs_kernels
def test_a_user_without_a_home_goes_without(monkeypatch):
    def no_home(cls):
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.setattr(build.Path, "home", classmethod(no_home))
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    assert build._find.__wrapped__().startswith("off: this user has no home")


@needs_kernels
def test_kernels_are_built_once_and_anew_for_another_compiler(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    first = build._built()
    made = first.stat().st_mtime_ns
    assert build._built() == first
    assert first.stat().st_mtime_ns == made
    monkeypatch.setattr(build, "FLAGS", (*build.FLAGS, "-DOTHER"))
    assert build._built() != first


@needs_kernels
@pytest.mark.parametrize("size", [0, 1000, -1])
def test_a_file_that_broke_off_is_built_anew(monkeypatch, tmp_path, size):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    path = build._built()
    whole = path.read_bytes()
    path.write_bytes(whole[:size])
    assert build._built() == path
    assert path.read_bytes() == whole


def test_a_compiler_that_makes_nothing_is_no_error(monkeypatch, tmp_path):
    monkeypatch.setenv("CXX", "true")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.delenv(build.SWITCH, raising=False)
    assert build._find.__wrapped__().endswith("made no library")


@pytest.mark.parametrize("value", ["0", "off"])
def test_the_switch_turns_them_off(value):
    program = "from oxygen.layers.native.build import kernels, state; print(kernels(), state())"
    environment = {**os.environ, build.SWITCH: value}
    done = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=True)
    assert (done.stdout, done.stderr) == (f"None off: {build.SWITCH}={value}\n", "")
