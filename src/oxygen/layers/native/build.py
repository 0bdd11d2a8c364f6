"""Compiles the kernels on first use with the machine's own C++ compiler (GCC from 12 on, or Clang); without one,
callers use the library.

The result is kept in the user's cache folder under a name that holds everything it depends on, so another processor,
compiler or version of the source gets a build of its own. `OXYGEN_NATIVE=0` turns the kernels off.
"""

from __future__ import annotations

import ctypes
import hashlib
import logging
import os
import platform
import shutil
import struct
import subprocess
import tempfile
from functools import cache
from pathlib import Path

log = logging.getLogger(__name__)

SOURCES = ("attention.cpp", "passes.cpp", "products.cpp", "lanes.h")
FLAGS = ("-std=c++17", "-O3", "-march=native", "-fopenmp", "-fPIC", "-shared")
BUILD_SECONDS = 120
SWITCH = "OXYGEN_NATIVE"
OFF = ("0", "off", "false", "no")


class Unavailable(Exception):
    """Why there are no kernels here."""


@cache
def kernels() -> ctypes.CDLL | None:
    """The library with its functions declared, or None; the reason is logged once and in `state()`."""
    found = _find()
    return None if isinstance(found, str) else found


def state() -> str:
    """`on`, or why the kernels are off."""
    found = _find()
    return found if isinstance(found, str) else "on"


@cache
def _find() -> ctypes.CDLL | str:
    try:
        path, before = _built(), _openmp_runtimes()
        library = _declared(ctypes.CDLL(str(path)))
        if before and (second := _openmp_runtimes() - before):
            # Two pools of threads would wait for each other's cores.
            raise Unavailable(f"the compiler's OpenMP runtime is not torch's: {', '.join(second)}")
        return library
    except (Unavailable, OSError) as error:
        reason = f"off: {error}"
        if os.environ.get(SWITCH, "").lower() not in OFF:
            log.warning("compiled kernels are %s; slower library calls do their work", reason)
        return reason


def _built() -> Path:
    """The compiled library, made now if there is none yet."""
    if (value := os.environ.get(SWITCH, "").lower()) in OFF:
        raise Unavailable(f"{SWITCH}={value}")
    if platform.system() != "Linux":
        raise Unavailable(f"built on Linux only, this is {platform.system()}")
    compiler = shutil.which(os.environ.get("CXX") or "g++") or shutil.which("c++")
    if compiler is None:
        raise Unavailable("no C++ compiler (g++) found")
    sources = [Path(__file__).with_name(name) for name in SOURCES]
    depends = ([source.read_bytes() for source in sources], FLAGS, _run(compiler, "--version"), _processor())
    name = hashlib.sha256(repr(depends).encode())
    path = _cache_folder() / f"kernels-{name.hexdigest()[:16]}.so"
    if not _is_whole(path):  # a power cut may have left a part, which would kill whoever loads it
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=path.parent) as folder:  # moved whole: others may build at the same time
            made = Path(folder) / path.name
            _run(compiler, *FLAGS, *(str(source) for source in sources if source.suffix == ".cpp"), "-o", str(made))
            if not _is_whole(made):
                raise Unavailable(f"{compiler} made no library")
            made.replace(path)
    return path


def _is_whole(path: Path) -> bool:
    """Whether this is a 64-bit ELF file up to its last byte: its section table comes last."""
    try:
        with path.open("rb") as file:
            head = file.read(64)
    except FileNotFoundError:
        return False
    if len(head) < 64 or head[:5] != b"\x7fELF\x02":
        return False
    start, size, count = struct.unpack_from("Q", head, 40)[0], *struct.unpack_from("HH", head, 58)
    return path.stat().st_size >= start + size * count


def _openmp_runtimes() -> set[str]:
    """Files of the OpenMP runtimes that this process has loaded."""
    maps = Path("/proc/self/maps").read_text(encoding="utf-8", errors="replace").splitlines()
    files = {line.split()[-1] for line in maps if "/" in line}
    return {file for file in files if Path(file).name.startswith(("libgomp", "libomp", "libiomp"))}


def _run(*command: str) -> str:
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, errors="replace", timeout=BUILD_SECONDS, check=True
        )
    except subprocess.CalledProcessError as error:
        lines = error.stderr.splitlines() or ["no message"]
        said = next((line for line in lines if "error" in line), lines[0])  # warnings may come before
        raise Unavailable(f"{command[0]} failed: {said}") from error
    except subprocess.TimeoutExpired as error:
        raise Unavailable(f"{command[0]} took over {BUILD_SECONDS} s") from error
    return done.stdout


def _processor() -> str:
    """What `-march=native` depends on."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.machine()
    return "".join(next((line for line in lines if line.startswith(key)), "") for key in ("flags", "Features", "model"))


def _cache_folder() -> Path:
    try:
        return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "oxygen"
    except RuntimeError as error:
        raise Unavailable("this user has no home, and XDG_CACHE_HOME names no folder to keep them in") from error


class Rows(ctypes.Structure):
    """Rows of a store, as the kernels see them: [layer][row][kv head][position][head_dim]."""

    _fields_ = (
        ("keys", ctypes.c_void_p),
        ("values", ctypes.c_void_p),
        ("num_rows", ctypes.c_int64),
        ("length", ctypes.c_int64),
    )


class Call(ctypes.Structure):
    """Who attends to what in one call: the same over its layers. places: [num_places, 4] int64, each a context row and
    length, then a tail row and the tail position that gets written (decode), or 0 and the number of tokens (act)."""

    _fields_ = (
        ("contexts", Rows),
        ("tails", Rows),
        ("places", ctypes.c_void_p),
        ("num_places", ctypes.c_int64),
        ("num_heads", ctypes.c_int64),
        ("kv_heads", ctypes.c_int64),
        ("head_dim", ctypes.c_int64),
        ("is_bfloat16", ctypes.c_int64),
    )


class Tokens(ctypes.Structure):
    """q [tokens, heads, head_dim], k and v [tokens, kv heads, head_dim] with strides between tokens; out is dense."""

    _fields_ = (
        ("q", ctypes.c_void_p),
        ("k", ctypes.c_void_p),
        ("v", ctypes.c_void_p),
        ("out", ctypes.c_void_p),
        ("q_stride", ctypes.c_int64),
        ("k_stride", ctypes.c_int64),
        ("v_stride", ctypes.c_int64),
    )


def _declared(library: ctypes.CDLL) -> ctypes.CDLL:
    pointer, integer, flag = ctypes.c_void_p, ctypes.c_int64, ctypes.c_int
    library.oxygen_rms_norm.argtypes = (flag, pointer, pointer, pointer, pointer, integer, integer, ctypes.c_float)
    library.oxygen_rotate.argtypes = (flag, pointer, pointer, pointer, integer, integer, integer, integer)
    library.oxygen_attend.argtypes = (pointer, pointer, integer, flag)
    library.oxygen_product.argtypes = (flag, *[pointer] * 6, *[integer] * 4)
    library.oxygen_rms_norm.restype = library.oxygen_rotate.restype = library.oxygen_product.restype = None
    library.oxygen_attend.restype = library.oxygen_has_bfloat16_products.restype = flag
    return library
