"""`oxygen bench NAME`: which benchmarks there are, and how one is run."""

from __future__ import annotations

import argparse
import json
import shlex
import sys
from collections.abc import Sequence
from importlib import import_module

from oxygen.bench.command import Parser
from oxygen.bench.report import Estimated
from oxygen.core.errors import InvalidInput, OxygenError

BENCHES = {
    "frame": "one operating point, all modes side by side",
    "pareto": "action frequency against tokens per second over k and N",
    "speedup": "maps over k and S, over N and S; curves over N and over k",
    "ablation": "what sharing and what batching bring, over N",
    "workloads": "uniform, Poisson and mixed arrivals of texts",
    "breakdown": "stage times, what prefix reuse is worth, when a text is complete",
    "management": "cost of keeping the batch at 6 and at 30 live texts",
    "memory": "peak memory of each mode in a process of its own; energy where there is a meter",
    "stability": "3,000 frames of a fluctuating workload: memory, drift, rows",
    "budget": "rate:F and idle against fixed k under a camera's clock",
    "roofline": "every stage beside its two floors",
    "compare": "other people's code on the same sizes, where installed",
    "serve": "what the network door adds, and many robots at it",
    "all": "every one of these, and a report with the figures",
}
"""Each is a module of this room with add_arguments(parser) and run(args) -> exit status."""
_MODULES = {"all": "suite"}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.epilog = "\n".join(f"  {name:<12}{summary}" for name, summary in BENCHES.items())
    parser.add_argument(
        "bench", metavar="NAME", choices=tuple(BENCHES), help="see below; `NAME --help` for its options"
    )
    parser.add_argument("rest", nargs=argparse.REMAINDER, help=argparse.SUPPRESS)


def run(args: argparse.Namespace) -> int:
    """Run the benchmark that was chosen. Its module is imported only now."""
    return run_bench(args.bench, args.rest)


def run_bench(name: str, arguments: Sequence[str]) -> int:
    if name not in BENCHES:
        raise InvalidInput("bench", f"one of {', '.join(BENCHES)}", repr(name))
    module = import_module(f"oxygen.bench.{_MODULES.get(name, name)}")
    keep = argparse.RawDescriptionHelpFormatter
    parser = Parser(prog=f"oxygen bench {name}", description=module.__doc__, formatter_class=keep)
    module.add_arguments(parser)
    args = parser.parse_args(arguments)
    args.command = shlex.join(["oxygen", "bench", name, *arguments])
    try:
        return int(module.run(args))
    except Estimated as estimated:
        print(json.dumps({"bench": name, "command": args.command, "expected_s": round(estimated.seconds, 3)}))
        return 0


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="oxygen bench", description=__doc__)
    add_arguments(parser)
    args = parser.parse_args(argv)
    try:
        return run(args)
    except OxygenError as error:
        print(f"oxygen bench {args.bench}: error: {error}", file=sys.stderr)
        return 1
