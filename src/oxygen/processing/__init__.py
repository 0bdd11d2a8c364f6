"""Floor 1: between a robot's message and the model's numbers, both ways. NumPy only.

Front door: `Processor(ProcessorConfig(...), load_tokenizer(path), statistics)`.
"""

from __future__ import annotations

from oxygen.processing.config import PRESETS, ProcessorConfig, preset
from oxygen.processing.processor import EncodedFrame, Processor
from oxygen.processing.statistics import Statistics
from oxygen.processing.tokenizer import Tokenizer, load_tokenizer

__all__ = [
    "PRESETS",
    "EncodedFrame",
    "Processor",
    "ProcessorConfig",
    "Statistics",
    "Tokenizer",
    "load_tokenizer",
    "preset",
]
