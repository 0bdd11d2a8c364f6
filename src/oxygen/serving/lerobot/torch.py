"""Torch's own bytes for a tensor's storage, which LeRobot's client expects inside the pickles that it loads."""

from __future__ import annotations

import numpy as np
import torch


def storage_bytes(numbers: np.ndarray) -> bytes:
    """float32 numbers as the argument of `torch.storage._load_from_bytes`, made by torch's own pickling."""
    tensor = torch.from_numpy(np.ascontiguousarray(numbers, dtype=np.float32).reshape(-1))
    storage = tensor.__reduce_ex__(4)[1][0]  # type: ignore[no-untyped-call]
    data: bytes = storage.__reduce__()[1][0]
    return data
