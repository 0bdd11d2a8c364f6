"""The robots that are known: what each one sends, which camera goes to which slot, and what it takes back."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from oxygen.core.errors import InvalidInput
from oxygen.processing.robots.aloha import aloha
from oxygen.processing.robots.droid import droid
from oxygen.processing.robots.generic import generic
from oxygen.processing.robots.libero import libero
from oxygen.processing.robots.robot import Camera, Robot, StatePart

__all__ = ["ROBOTS", "Camera", "Robot", "StatePart", "build_robot"]

ROBOTS: dict[str, Callable[..., Robot]] = {"libero": libero, "droid": droid, "aloha": aloha, "generic": generic}


def build_robot(described: str | Mapping[str, Any]) -> Robot:
    """A robot by name, or from a map with its `name` and its options (for `generic`: cameras, state_dim,
    action_dim)."""
    options = {"name": described} if isinstance(described, str) else dict(described)
    name = options.pop("name", None)
    if not isinstance(name, str) or name not in ROBOTS:
        raise InvalidInput("robot.name", f"one of {', '.join(ROBOTS)}", f"{name!r:.80}")
    try:
        return ROBOTS[name](**options)
    except TypeError as error:
        got = f"{sorted(map(str, options))!s:.200} ({error!s:.200})"
        raise InvalidInput(f"robot {name}", "options that this robot knows", got) from error
