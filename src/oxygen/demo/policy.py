"""The shipped policy, running."""

from __future__ import annotations

from typing import Any

from oxygen.checkpoint.shipped import resolve
from oxygen.engine.engine import Engine


def load_demo_policy(**settings: Any) -> Engine:
    """An engine on the shipped checkpoint; takes what `Engine.from_pretrained` takes. Close it when done."""
    return Engine.from_pretrained(resolve("oxygen-tiny"), **settings)
