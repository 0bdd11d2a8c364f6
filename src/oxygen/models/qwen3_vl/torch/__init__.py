"""Qwen3-VL in PyTorch."""

from oxygen.models.qwen3_vl.torch.model import Qwen3VL, build

__all__ = ["Qwen3VL", "build"]
