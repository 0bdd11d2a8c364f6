"""What `oxygen eval` must know of LIBERO before anything heavy is imported."""

from __future__ import annotations

import argparse

METAWORLD = "metaworld"
SUITES = {"libero_spatial": 220, "libero_object": 280, "libero_goal": 300, "libero_10": 520}
"""Control steps that a policy has, the idle ones not counted."""


def add_libero_arguments(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("LIBERO (extra `libero`)")
    group.add_argument(
        "--rendering",
        choices=("full", "fast"),
        default="full",
        help="pictures as the benchmark makes them, or without shadows and smoothing (default: %(default)s)",
    )
    group.add_argument("--robot", help="who a folder is for, if it does not say or says wrong (libero, pi05_libero)")
    group.add_argument("--max-steps", type=int, help="shorter episodes, to try things out (default: the suite's limit)")
