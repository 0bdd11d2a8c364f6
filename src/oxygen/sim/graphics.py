"""Which off-screen OpenGL this machine offers to MuJoCo, decided before MuJoCo is imported."""

from __future__ import annotations

import ctypes.util
import importlib.util
import os
import sys
from collections.abc import Sequence

from oxygen.core.errors import OxygenError


class NoSimulator(OxygenError):
    """The simulator cannot run here; the message says what is missing and how to get it."""


def require_simulator(needed: Sequence[str] = ("metaworld", "mujoco", "gymnasium"), extra: str = "demo") -> str:
    """Choose MUJOCO_GL (`osmesa`, then `egl`; a value already set is kept) and return it.

    needed: packages that must be installed; extra: the extra that brings them. Raises NoSimulator when one is missing
    or no off-screen OpenGL library is found.
    """
    missing = [name for name in needed if importlib.util.find_spec(name) is None]
    if missing:
        raise NoSimulator(f"the simulator needs {', '.join(missing)}: pip install 'oxygen-vla[{extra}]'")
    chosen = os.environ.get("MUJOCO_GL", "").lower()
    if not chosen:
        chosen = _find_backend()
        os.environ["MUJOCO_GL"] = chosen
    if chosen in ("osmesa", "egl"):
        os.environ.setdefault("PYOPENGL_PLATFORM", chosen)
    return chosen


def _find_backend() -> str:
    if not sys.platform.startswith("linux"):
        return "glfw"
    for backend, library in (("osmesa", "OSMesa"), ("egl", "EGL")):
        if ctypes.util.find_library(library):
            return backend
    raise NoSimulator(
        "no off-screen OpenGL found (looked for OSMesa and EGL); on Debian or Ubuntu: "
        "apt-get install libosmesa6 libegl1 libgl1 libgles2 libopengl0 libegl-mesa0 libgl1-mesa-dri"
    )
