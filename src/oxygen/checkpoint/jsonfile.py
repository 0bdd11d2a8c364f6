"""JSON files of a checkpoint folder: a map at the top, no key twice, errors that name the file."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from oxygen.core.errors import CheckpointError


def read_json(path: Path) -> dict[str, Any]:
    """Read a JSON object. Raises CheckpointError naming the file and what is wrong with it."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"), object_pairs_hook=_once)
    except OSError as error:
        raise CheckpointError(f"{path}: cannot be read: {error.strerror or error}") from error
    except (ValueError, RecursionError) as error:
        raise CheckpointError(f"{path}: not valid JSON ({error})") from error
    if not isinstance(content, dict):
        raise CheckpointError(f"{path}: expected a JSON object, got {type(content).__name__}")
    return content


def write_json(path: Path, content: dict[str, Any]) -> None:
    """Write a JSON object, readable by people. Non-finite numbers are refused: other readers could not take them."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(content, indent=2, ensure_ascii=False, allow_nan=False) + "\n", encoding="utf-8")


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    content = dict(pairs)
    if len(content) != len(pairs):
        keys = [key for key, _ in pairs]
        raise ValueError(f"key given twice: {next(key for key in keys if keys.count(key) > 1)!r}")
    return content
