"""The client package keeps its promises: Python 3.9, three dependencies, no loggers touched."""

from __future__ import annotations

import ast
import logging
import subprocess
import sys
from pathlib import Path

import oxygen_client
import pytest

FILES = sorted(Path(oxygen_client.__file__).parent.glob("*.py"))
ALLOWED = {"numpy", "msgpack", "websockets", "oxygen_client", *sys.stdlib_module_names}


@pytest.mark.parametrize("path", FILES, ids=lambda p: p.stem)
def test_every_file_reads_as_python_3_9_and_imports_little(path: Path) -> None:
    tree = ast.parse(path.read_text(), feature_version=(3, 9))
    for node in ast.walk(tree):
        names = [a.name for a in node.names] if isinstance(node, ast.Import) else []
        names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
        assert {name.split(".")[0] for name in names} <= ALLOWED


def test_importing_it_changes_no_logger() -> None:
    code = "import logging; before = (logging.root.level, logging.root.handlers[:]); import oxygen_client; "
    code += "assert before == (logging.root.level, logging.root.handlers)"
    subprocess.run([sys.executable, "-c", code], check=True, env={"PYTHONPATH": str(FILES[0].parents[1])}, timeout=60)
    assert logging.getLogger("oxygen_client").handlers == []
