"""The machine and the code that was measured, and whether others were using the machine meanwhile."""

from __future__ import annotations

import os
import platform
import subprocess
import sys
import time
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import psutil

import oxygen
from oxygen.layers.native.build import state

BUSY_CORES = 0.15
"""Other programs using more than this disturb a measurement: threads that wait for each other wait for the slowest."""


def commit() -> str:
    """Return the commit of this checkout (with `+` where files differ from it), or `unknown`."""
    package = Path(oxygen.__file__)

    def git(*args: str) -> str | None:
        try:
            done = subprocess.run(["git", *args], cwd=package.parent, capture_output=True, text=True, timeout=10)
        except (OSError, subprocess.TimeoutExpired):
            return None
        return done.stdout.strip() if done.returncode == 0 else None

    if git("ls-files", "--error-unmatch", package.name) is None:
        return "unknown"
    found = git("rev-parse", "--short=12", "HEAD")
    return "unknown" if found is None else found + ("+" if git("status", "--porcelain", "--", ".") else "")


def cpu_name() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    names = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()


def torch_version() -> str:
    try:
        return version("torch")
    except PackageNotFoundError:
        return "none"


def others_load(seconds: float = 0.5) -> float:
    """Return how many cores other programs use, watched for so long."""
    watch = Load()
    time.sleep(seconds)
    return watch.cores()


class Load:
    """Cores used by other programs (and by other guests of the host) since it was made."""

    def __init__(self) -> None:
        self._started, self._busy, self._own = time.perf_counter(), _busy_s(), _own_s()

    def cores(self) -> float:
        seconds = time.perf_counter() - self._started
        others = (_busy_s() - self._busy) - (_own_s() - self._own)
        return round(max(0.0, others / seconds), 2) if seconds > 0 else 0.0


def _busy_s() -> float:
    times = psutil.cpu_times()
    return float(sum(times) - times.idle - getattr(times, "iowait", 0.0) - getattr(times, "guest", 0.0))


def _own_s() -> float:
    """CPU seconds of this process and of its children, the living and the ended."""
    me = psutil.Process()
    times = me.cpu_times()
    total = times.user + times.system + times.children_user + times.children_system
    for child in me.children(recursive=True):
        try:
            own = child.cpu_times()
        except psutil.NoSuchProcess:
            continue
        total += own.user + own.system
    return float(total)


@dataclass(slots=True)
class Machine:
    """What a report says about the machine. `begin` before, `end` after; loads are cores used by others."""

    device: str
    dtype: str
    threads: int
    gpu: str | None
    load_before: float = 0.0
    load_after: float = 0.0
    load_during: float = 0.0
    _watch: Load | None = None

    @classmethod
    def begin(cls, device: str, dtype: str) -> Machine:
        from oxygen.bench.torch.device import gpu_name, num_threads

        machine = cls(device, dtype, num_threads(), gpu_name(device), load_before=others_load())
        machine.warn("before", machine.load_before)
        machine._watch = Load()
        return machine

    def end(self) -> dict[str, Any]:
        if self._watch is not None:
            self.load_during = self._watch.cores()
        self.load_after = others_load()
        self.warn("during", self.load_during)
        return {
            "cpu": cpu_name(),
            "cores": os.cpu_count(),
            "gpu": self.gpu,
            "torch": torch_version(),
            "kernels": state() if self.device == "cpu" else "for CPUs only",
            "dtype": self.dtype,
            "device": self.device,
            "threads": self.threads,
            "load_before": self.load_before,
            "load_during": self.load_during,
            "load_after": self.load_after,
        }

    @staticmethod
    def warn(when: str, load: float) -> None:
        if load > BUSY_CORES:
            print(
                f"warning: other programs used {load:.2f} cores {when} the run: its times are too long", file=sys.stderr
            )


def peak_bytes() -> int:
    """Return the largest resident size of this process since the last reset."""
    for line in _status():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) * 1024
    import resource  # not on every system

    used = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return used if sys.platform == "darwin" else used * 1024


def reset_peak() -> None:
    """Begin a new measurement of the peak, where the system can (Linux); elsewhere peaks only grow."""
    try:
        Path("/proc/self/clear_refs").write_text("5")
    except OSError:
        return


def resident_bytes() -> int:
    return int(psutil.Process().memory_info().rss)


def _status() -> list[str]:
    try:
        return Path("/proc/self/status").read_text().splitlines()
    except OSError:
        return []
