"""The example in README.md runs as it is printed, and its commands and files exist."""

from __future__ import annotations

import re
from pathlib import Path

from oxygen.cli.main import COMMANDS

README = Path(__file__).parents[2] / "README.md"


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", README.read_text(), re.MULTILINE | re.DOTALL)


def test_the_example_runs(capsys) -> None:
    (example,) = blocks("python")
    exec(compile(example, "README.md", "exec"), {})
    shape, narration, answer = capsys.readouterr().out.splitlines()
    assert shape == "(10, 4)"
    assert len(narration.split()) >= 5 and answer.split()


def test_commands_and_files_exist() -> None:
    commands = re.findall(r"^oxygen (\w+)", "\n".join(blocks("sh")), re.MULTILINE)
    assert commands and set(commands) <= set(COMMANDS), commands
    targets = re.findall(r"^make (\w+)", "\n".join(blocks("sh")), re.MULTILINE)
    makefile = (README.parent / "Makefile").read_text()
    assert targets and all(re.search(rf"^{target}:", makefile, re.MULTILINE) for target in targets)
    for link in re.findall(r"\]\((?!http)([^)#]+)\)", README.read_text()):
        assert (README.parent / link).exists(), link
