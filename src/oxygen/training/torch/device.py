"""Threads of the trainer."""

from __future__ import annotations

import torch


def use_threads(num_threads: int) -> None:
    torch.set_num_threads(num_threads)
