"""Plain data to the fields of a dataclass, names and types checked: a configuration file is not trusted."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import MISSING, fields, is_dataclass
from typing import Any, Literal, TypeVar, get_args, get_origin, get_type_hints

from oxygen.core.errors import CheckpointError

T = TypeVar("T")
_NAMES: dict[Any, str] = {int: "a whole number", float: "a finite number", str: "a text", bool: "true or false"}


def read_fields(cls: type[T], data: Any, where: str, path: str = "") -> T:
    """An instance of a dataclass; parts that are dataclasses are read in the same way, lists become tuples.

    Raises CheckpointError naming every unknown and missing field, or the first of a wrong type.
    """
    if not isinstance(data, Mapping):
        raise CheckpointError(f"{where}: {path.rstrip('.') or 'it'} must be a mapping, got {data!r:.80}")
    known = {f.name: f for f in fields(cls)}  # type: ignore[arg-type]
    needed = {name for name, f in known.items() if f.default is MISSING and f.default_factory is MISSING}
    for word, found in (("unknown", data.keys() - known.keys()), ("missing", needed - data.keys())):
        if found:
            raise CheckpointError(f"{where}: {word} {', '.join(sorted(f'{path}{name}' for name in found))}")
    hints = get_type_hints(cls)
    values: dict[str, Any] = {}
    for name, value in data.items():
        hint = hints[name]
        if is_dataclass(hint):
            values[name] = read_fields(hint, value, where, f"{path}{name}.")  # type: ignore[arg-type]
        elif not _fits(value, hint):
            raise CheckpointError(f"{where}: {path}{name} must be {_named(hint)}, got {value!r:.80}")
        else:
            values[name] = tuple(value) if isinstance(value, list) else float(value) if hint is float else value
    return cls(**values)


def _fits(value: Any, hint: Any) -> bool:
    if hint is float:
        return type(value) in (int, float) and abs(value) <= sys.float_info.max
    if hint in _NAMES:
        return type(value) is hint
    if get_origin(hint) is Literal:
        return isinstance(value, str) and value in get_args(hint)
    if get_origin(hint) is tuple:
        of = get_args(hint)
        if not isinstance(value, list | tuple) or (of[-1] is not Ellipsis and len(value) != len(of)):
            return False
        return all(_fits(item, of[0]) for item in value)
    return True


def _named(hint: Any) -> str:
    if get_origin(hint) is Literal:
        return " or ".join(get_args(hint))
    if get_origin(hint) is tuple:
        of = get_args(hint)
        count = "" if of[-1] is Ellipsis else f"{len(of)} times "
        return f"a list of {count}{_NAMES[of[0]]}"
    return _NAMES[hint]
