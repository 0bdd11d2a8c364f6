"""Checkpoint folders: structure, statistics and strict reading. Torch is needed only by `oxygen.checkpoint.torch`."""

from oxygen.checkpoint.folder import Checkpoint, open_folder

__all__ = ["Checkpoint", "open_folder"]
