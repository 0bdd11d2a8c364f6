"""The house rules as tests: rooms import lower floors only, torch stays in its rooms, files and rooms stay small."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

import oxygen

ROOT = Path(oxygen.__file__).parent
FLOORS = {
    "core": 0,
    "cache": 1,
    "processing": 1,
    "scheduler": 2,
    "layers": 2,
    "checkpoint": 2,
    "models": 3,
    "tickets": 3,
    "runtime": 4,
    "engine": 5,
    "serving": 6,
    "bench": 6,
    "demo": 6,
    "sim": 6,
    "training": 6,
    "eval": 6,
    "cli": 7,  # only dispatches
}
# On the top floor the programs use each other on purpose: a demo runs the simulator through the evaluation.
SIBLINGS_ALLOWED_FROM = 6
MAX_FILE_LINES = 500
MAX_FUNCTION_LINES = 60
MAX_HEART_LINES = 1500
FILES = sorted(ROOT.rglob("*.py"))


def parts_of(path: Path) -> tuple[str, ...]:
    return path.relative_to(ROOT).with_suffix("").parts


def room_of(parts: tuple[str, ...]) -> tuple[str, ...]:
    """Return the room that a module belongs to; families of models are rooms of their own."""
    return parts[:2] if parts[0] == "models" and len(parts) > 1 else parts[:1]


def imports_of(path: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            module = node.module or ""
            yield module
            yield from (f"{module}.{alias.name}" for alias in node.names)


@pytest.mark.parametrize("path", [p for p in FILES if len(parts_of(p)) > 1], ids=lambda p: "/".join(parts_of(p)))
def test_rooms_import_lower_floors_only(path: Path) -> None:
    parts = parts_of(path)
    here = room_of(parts)
    assert here[0] in FLOORS, f"unknown room {here[0]}: give it a floor in this test and in ARCHITECTURE.md"
    floor = FLOORS[here[0]]
    for name in imports_of(path):
        target = tuple(name.split(".")[1:])
        if not name.startswith("oxygen.") or target[0] not in FLOORS:
            continue
        there, other = room_of(target), FLOORS[target[0]]
        # Families are put together from heads.
        if there == here or there in (("models",), ("models", "heads")):
            continue
        assert other < floor or (other == floor >= SIBLINGS_ALLOWED_FROM), f"{'.'.join(parts)} imports {name}"


@pytest.mark.parametrize("path", FILES, ids=lambda p: "/".join(parts_of(p)))
def test_torch_stays_in_its_rooms(path: Path) -> None:
    uses_torch = any(name.split(".")[0] == "torch" for name in imports_of(path))
    assert not uses_torch or "torch" in parts_of(path), "torch is imported outside a folder or file named torch"


@pytest.mark.parametrize("path", FILES, ids=lambda p: "/".join(parts_of(p)))
def test_files_and_functions_are_small(path: Path) -> None:
    source = path.read_text()
    assert len(source.splitlines()) <= MAX_FILE_LINES
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.end_lineno:
            assert node.end_lineno - node.lineno < MAX_FUNCTION_LINES, (
                f"{node.name} is {node.end_lineno - node.lineno + 1} lines"
            )


def test_the_heart_is_small() -> None:
    heart = [p for p in FILES if parts_of(p)[0] in ("core", "cache", "scheduler", "engine")]
    assert sum(len(p.read_text().splitlines()) for p in heart) < MAX_HEART_LINES
