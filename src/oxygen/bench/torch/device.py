"""Threads, names and memory of the device, as torch knows them."""

from __future__ import annotations

import torch

from oxygen.bench import machine


def num_threads() -> int:
    return torch.get_num_threads()


def set_threads(count: int) -> None:
    torch.set_num_threads(count)


def gpu_name(device: str) -> str | None:
    return torch.cuda.get_device_name(device) if device.startswith("cuda") else None


def synchronize(device: str) -> None:
    """Wait until the device has done all that was asked of it."""
    if device.startswith("cuda"):
        torch.cuda.synchronize(device)


def reset_peak(device: str) -> None:
    if device.startswith("cuda"):
        torch.cuda.reset_peak_memory_stats(device)
    else:
        machine.reset_peak()


def peak_bytes(device: str) -> int:
    """Return the peak since the last reset: allocated on a GPU, resident of the process on a CPU."""
    return torch.cuda.max_memory_allocated(device) if device.startswith("cuda") else machine.peak_bytes()


def allocated_bytes(device: str) -> int | None:
    """Return what is allocated on a GPU now; None on a CPU, where the resident size says it."""
    return torch.cuda.memory_allocated(device) if device.startswith("cuda") else None
