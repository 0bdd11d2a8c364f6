"""The greeting: what a client needs to know before its first frame. Strings, numbers, lists and maps only, never
arrays.
"""

from __future__ import annotations

from collections.abc import Mapping
from importlib.metadata import PackageNotFoundError, version
from typing import Any

import numpy as np

from oxygen.serving.gateway import Gateway

PROTOCOL = 1


def server_version() -> str:
    try:
        return version("oxygen-vla")
    except PackageNotFoundError:
        return "unknown"


def greeting(gateway: Gateway, session: str | None = None) -> dict[str, Any]:
    """Server, model, robot, horizon, rate, and the name under which this link is known."""
    engine, settings = gateway.engine, gateway.settings
    robot = plain(gateway.processor.describe())
    fields: dict[str, Any] = {
        **plain(gateway.processor.robot.metadata),
        "server": "oxygen",
        "version": server_version(),
        "protocol": PROTOCOL,
        "status": engine.status,
        "model": settings.model_name,
        "horizon": engine.runner.limits.horizon,
        "num_steps": engine.runner.limits.num_steps,
        "control_hz": settings.control_hz or robot.get("control_hz"),
        "budget": engine.config.budget,
        "max_frame_bytes": settings.max_frame_bytes,
        "max_session_texts": settings.max_session_texts,
        "robot": robot,
        "session": session,
    }
    return {name: value for name, value in fields.items() if value is not None}


def plain(value: Any) -> Any:
    """NumPy and other values as what every message format knows."""
    if isinstance(value, Mapping):
        return {str(k): plain(v) for k, v in value.items()}
    if isinstance(value, np.ndarray):
        return plain(value.tolist())
    if isinstance(value, list | tuple | set | frozenset):
        return [plain(v) for v in value]
    if isinstance(value, np.generic):
        return value.item()
    return value if value is None or isinstance(value, str | int | float | bool) else str(value)
