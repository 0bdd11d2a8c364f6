"""OxyGen: one prefill per camera frame, shared by actions and language."""

from __future__ import annotations

from typing import Any

from oxygen.core.config import Budget, EngineConfig
from oxygen.core.errors import (
    CheckpointError,
    DeviceFault,
    Ended,
    InvalidInput,
    OxygenError,
    Refused,
    RequestFault,
)
from oxygen.core.tasks import ActionResult, ActionTask, Observation, Sampling, TextResult, TextTask

__all__ = [
    "ActionResult",
    "ActionTask",
    "Budget",
    "CheckpointError",
    "DeviceFault",
    "Ended",
    "Engine",
    "EngineConfig",
    "InvalidInput",
    "Observation",
    "OxygenError",
    "Refused",
    "RequestFault",
    "Sampling",
    "TextResult",
    "TextTask",
    "load_demo_policy",
]
_LAZY = {"Engine": "oxygen.engine.engine", "load_demo_policy": "oxygen.demo.policy"}  # imported when first asked for


def __getattr__(name: str) -> Any:
    if name in _LAZY:
        from importlib import import_module

        return getattr(import_module(_LAZY[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
