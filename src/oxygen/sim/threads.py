"""Settings of the OpenMP runtime that must stand before it is loaded."""

from __future__ import annotations

import os


def keep_threads_quiet() -> None:
    """Make waiting threads sleep. By default they spin, and beside a simulator that costs most of the machine.

    Has no effect once torch is imported; values that are already set are kept.
    """
    os.environ.setdefault("OMP_WAIT_POLICY", "passive")
    os.environ.setdefault("GOMP_SPINCOUNT", "0")
