"""Energy, where the machine has a meter: RAPL for processors (Linux), NVML for GPUs. Otherwise None, never a guess."""

from __future__ import annotations

import time
from importlib import import_module
from pathlib import Path
from typing import Any

RAPL = Path("/sys/class/powercap")


class Energy:
    """Joules since it was made, for the device at work."""

    def __init__(self, device: str) -> None:
        self._nvml = _nvml_handle(device) if device.startswith("cuda") else None
        self._started = time.perf_counter()
        self._before = self._read()

    @property
    def name(self) -> str | None:
        """The meter that is read, None without one."""
        if self._before is None:
            return None
        return "NVML" if self._nvml is not None else "RAPL"

    def joules(self) -> float | None:
        after = self._read()
        return None if after is None or self._before is None or after < self._before else after - self._before

    def seconds(self) -> float:
        return time.perf_counter() - self._started

    def _read(self) -> float | None:
        if self._nvml is not None:
            module, handle = self._nvml
            return float(module.nvmlDeviceGetTotalEnergyConsumption(handle)) / 1e3
        packages = sorted(RAPL.glob("intel-rapl:[0-9]"))
        try:
            return sum(int((p / "energy_uj").read_text()) for p in packages) / 1e6 if packages else None
        except OSError:  # readable by root only on most systems
            return None


def _nvml_handle(device: str) -> tuple[Any, Any] | None:
    try:
        nvml = import_module("pynvml")
    except ImportError:
        return None
    try:
        nvml.nvmlInit()
        index = int(device.partition(":")[2] or 0)
        handle = nvml.nvmlDeviceGetHandleByIndex(index)
        nvml.nvmlDeviceGetTotalEnergyConsumption(handle)
    except nvml.NVMLError:
        return None
    return nvml, handle
