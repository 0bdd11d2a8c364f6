"""JSON as other programs may rely on it: no NaN, no duplicate keys, finite numbers, bounded depth."""

from __future__ import annotations

import json
import math
from typing import Any

from oxygen.core.errors import InvalidInput


def loads(data: bytes, name: str = "body") -> Any:
    """Decode strictly. Raises InvalidInput."""
    try:
        return json.loads(
            data.decode("utf-8"), parse_constant=_refuse, object_pairs_hook=_unique, parse_float=_finite_float
        )
    except UnicodeDecodeError as error:
        raise InvalidInput(name, "UTF-8", f"bytes that are not ({error.reason})") from None
    except RecursionError:
        raise InvalidInput(name, "JSON of moderate depth", "nesting without end") from None
    except json.JSONDecodeError as error:
        raise InvalidInput(name, "JSON", f"{error.msg} at byte {error.pos}") from None
    except ValueError as error:
        raise InvalidInput(name, "standard JSON", str(error)[:200]) from None


def dumps(value: Any) -> str:
    """Encode strictly: what is not a finite number becomes null, never a bare NaN."""
    return json.dumps(_finite(value), ensure_ascii=False, allow_nan=False, separators=(",", ":"))


def _finite(value: Any) -> Any:
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {str(k): _finite(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(v) for v in value]
    return value


def _refuse(constant: str) -> Any:
    raise ValueError(f"{constant} is not a JSON number")


def _finite_float(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise ValueError(f"{text} is not a finite number")
    return value


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    fields = dict(pairs)
    if len(fields) < len(pairs):
        raise ValueError("a key appears twice")
    return fields
