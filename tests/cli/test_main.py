"""The `oxygen` command: dispatch, exit statuses, and no import that was not asked for."""

from __future__ import annotations

import argparse
import subprocess
import sys
import types
from pathlib import Path

import pytest

from oxygen.cli import main as cli
from oxygen.core.errors import OxygenError


def stub(monkeypatch: pytest.MonkeyPatch, run) -> None:
    module = types.ModuleType("oxygen_stub")
    module.add_arguments = lambda parser: parser.add_argument("--n", type=int, default=1)
    module.run = run
    monkeypatch.setitem(sys.modules, "oxygen_stub", module)
    monkeypatch.setitem(cli.COMMANDS, "stub", cli.Command("oxygen_stub", "does what it is told"))


def test_a_subcommand_gets_its_arguments_and_gives_the_status(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[argparse.Namespace] = []
    stub(monkeypatch, lambda args: seen.append(args) or 7)
    assert cli.main(["stub", "--n", "3"]) == 7
    assert seen[0].n == 3


def raising(error: BaseException):
    def run(args: argparse.Namespace) -> int:
        raise error

    return run


def test_an_error_of_ours_is_one_line(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture) -> None:
    stub(monkeypatch, raising(OxygenError("the door is closed")))
    assert cli.main(["stub"]) == 1
    out, err = capsys.readouterr()
    assert (out, err) == ("", "oxygen stub: error: the door is closed\n")


def test_other_errors_are_not_hidden(monkeypatch: pytest.MonkeyPatch) -> None:
    stub(monkeypatch, raising(ZeroDivisionError()))
    with pytest.raises(ZeroDivisionError):
        cli.main(["stub"])


def test_interrupted(monkeypatch: pytest.MonkeyPatch) -> None:
    stub(monkeypatch, raising(KeyboardInterrupt()))
    assert cli.main(["stub"]) == 130


@pytest.mark.parametrize("argv", [["nonsense"], ["inspect"], ["inspect", "a", "b"]])
def test_wrong_usage_is_status_2(argv: list[str], capsys: pytest.CaptureFixture) -> None:
    with pytest.raises(SystemExit) as caught:
        cli.main(argv)
    assert caught.value.code == 2
    assert "usage: oxygen" in capsys.readouterr().err


def test_alone_it_prints_its_help(capsys: pytest.CaptureFixture) -> None:
    assert cli.main([]) == 2
    printed = capsys.readouterr().err
    assert all(name in printed for name in cli.COMMANDS)


def test_help_lists_every_command_and_imports_nothing_heavy() -> None:
    program = (
        "import sys; from oxygen.cli.main import main\n"
        "try: main(['--help'])\n"
        "except SystemExit as e: code = e.code\n"
        "heavy = [m for m in ('torch', 'rich', 'oxygen.cli.inspect') if m in sys.modules]\n"
        "print('HEAVY', code, heavy)"
    )
    source = Path(cli.__file__).parents[2]
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=60, env={"PYTHONPATH": str(source)}
    )
    assert done.stdout.splitlines()[-1] == "HEAVY 0 []"
    for name, command in cli.COMMANDS.items():
        assert name in done.stdout and command.module.startswith("oxygen.")


def test_every_command_can_be_imported_and_described(capsys: pytest.CaptureFixture) -> None:
    for name in cli.COMMANDS:
        with pytest.raises(SystemExit) as caught:
            cli.main([name, "--help"])
        assert caught.value.code == 0
        assert f"usage: oxygen {name}" in capsys.readouterr().out


def test_a_missing_package_is_one_line_with_what_to_install(monkeypatch, capsys):
    def gone(name):
        raise ModuleNotFoundError("No module named 'starlette'", name="starlette")

    monkeypatch.setattr(cli.importlib, "import_module", gone)
    assert cli.main(["serve", "oxygen-tiny"]) == 1
    assert capsys.readouterr().err == "oxygen serve: error: starlette is not installed: pip install '.[serve]'\n"


def test_a_missing_module_of_our_own_is_a_fault(monkeypatch):
    def gone(name):
        raise ModuleNotFoundError("No module named 'oxygen.nowhere'", name="oxygen.nowhere")

    monkeypatch.setattr(cli.importlib, "import_module", gone)
    with pytest.raises(ModuleNotFoundError):
        cli.main(["serve", "oxygen-tiny"])
