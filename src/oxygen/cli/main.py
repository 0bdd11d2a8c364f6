"""Entry point of the `oxygen` command: finds the subcommand's module, and nothing is imported that is not asked for."""

from __future__ import annotations

import argparse
import importlib
import logging
import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from oxygen.core.errors import InvalidInput, OxygenError


@dataclass(frozen=True, slots=True)
class Command:
    """One subcommand: the module that has `add_arguments` and `run`, and a line for `oxygen --help`."""

    module: str
    summary: str


COMMANDS = {
    "serve": Command("oxygen.serving.command", "a checkpoint behind one port, for robots, people and programs"),
    "inspect": Command("oxygen.cli.inspect", "what a checkpoint folder holds, and whether it can be loaded"),
    "replay": Command("oxygen.serving.replay", "play a recording back to a running server"),
    "bench": Command("oxygen.bench.main", "the paper's tables and figures on this machine, against honest baselines"),
    "demo": Command("oxygen.demo.command", "a simulated robot at work through the engine, with and without sharing"),
    "eval": Command("oxygen.eval.command", "closed-loop success and truth of texts on the simulated robot"),
    "train": Command("oxygen.training.command", "make the shipped checkpoint from nothing"),
}
"""One line per subcommand. Its module is imported when it is asked for, so `oxygen --help` needs no torch."""


EXTRAS = {"serve": "serve", "inspect": "serve", "replay": "serve", "bench": "bench,serve"}
EXTRAS |= {"demo": "demo,serve", "eval": "demo", "train": "demo"}
"""What a command needs beyond the plain installation."""


class CommandModule(Protocol):
    """What a subcommand's module offers."""

    def add_arguments(self, parser: argparse.ArgumentParser) -> None: ...

    def run(self, args: argparse.Namespace) -> int:
        """Do it and return the exit status. An OxygenError becomes one line on stderr and status 1."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run one subcommand; returns the exit status (2: wrong usage, 1: an error said in one line, 130: interrupted)."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    parser = argparse.ArgumentParser(
        prog="oxygen", description="One prefill per camera frame, shared by actions and text."
    )
    parser.add_argument("--version", action="version", version=f"oxygen {_version()}")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)
    asked = next((word for word in arguments if not word.startswith("-")), None)
    module: CommandModule | None = None
    for name, command in COMMANDS.items():
        subparser = commands.add_parser(name, help=command.summary, description=command.summary)
        if name == asked:
            try:
                module = importlib.import_module(command.module)
            except ModuleNotFoundError as error:
                return _without(name, error)
            module.add_arguments(subparser)
    if not arguments:
        parser.print_help(sys.stderr)
        return 2
    args = parser.parse_args(arguments)
    assert module is not None  # parse_args lets only known commands through
    try:
        _set_up_log(os.environ.get("OXYGEN_LOG", "WARNING").upper())
        return module.run(args)
    except OxygenError as error:
        print(f"oxygen {args.command}: error: {error}", file=sys.stderr)
        return 1
    except ModuleNotFoundError as error:
        return _without(args.command, error)
    except BrokenPipeError:
        # Whoever read the output has gone; the interpreter must not try to flush into the closed pipe at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except KeyboardInterrupt:
        return 130


def _without(name: str, error: ModuleNotFoundError) -> int:
    """Say which optional package is missing; one of our own is a fault and no matter of installing."""
    if error.name is None or error.name.split(".")[0] == "oxygen":
        raise error
    print(f"oxygen {name}: error: {error.name} is not installed: pip install '.[{EXTRAS[name]}]'", file=sys.stderr)
    return 1


def _set_up_log(level: str) -> None:
    if level not in logging.getLevelNamesMapping():
        raise InvalidInput("OXYGEN_LOG", ", ".join(logging.getLevelNamesMapping()), f"{level!r:.80}")
    logging.basicConfig(level=level, format="%(name)s: %(message)s")


def _version() -> str:
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version("oxygen-vla")
    except PackageNotFoundError:
        return "(not installed)"


if __name__ == "__main__":
    sys.exit(main())
