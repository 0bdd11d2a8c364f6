"""Checkpoint folders: structure, statistics and strict reading. Torch is needed only by `oxygen.checkpoint.torch`."""

from oxygen.checkpoint.folder import Checkpoint, open_folder
from oxygen.checkpoint.statistics import StatisticsSet

__all__ = ["Checkpoint", "StatisticsSet", "open_folder"]
