"""A small byte-level tokenizer of Qwen's kind and a processor on it."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

import numpy as np
import tokenizers
from tokenizers import decoders, models, pre_tokenizers, trainers

from oxygen.processing.chat import QUERY
from oxygen.processing.chat_config import ChatConfig, ExpertOutput
from oxygen.processing.chat_processor import ChatProcessor
from oxygen.processing.statistics import Statistics
from oxygen.processing.tokenizer import Tokenizer, load_tokenizer

CONTROL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|vision_start|>", "<|vision_end|>", "<|image_pad|>")
ROBOT = {
    "name": "generic",
    "cameras": {"front": "a", "wrist": {"slot": "b", "required": False}},
    "state_dim": 3,
    "action_dim": 3,
}
EXPERTS = {
    "pi": ExpertOutput(4, 7, "minmax", True, {}),
    "gr00t": ExpertOutput(5, 7, ("quantile", "quantile", "identity"), True, {}, state_dim=3),
    "oft": ExpertOutput(6, 7, "minmax", True, {"2": (0.5, 0.0, 1.0)}),
}
STATISTICS = Statistics.from_groups(
    "bridge",
    {
        "actions": {"min": [-1, 0, -2], "max": [1, 4, 2], "q01": [-0.5, 1, -1], "q99": [0.5, 3, 1]},
        "state": {"min": [0, 0, 0], "max": [2, 4, 8]},
    },
)


@cache
def tokenizer_file() -> Path:
    model = tokenizers.Tokenizer(models.BPE())
    model.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    model.decoder = decoders.ByteLevel()
    words = ["user assistant pick up the red block . \n Please predict the next 6 robot actions : <action> "] * 9
    trainer = trainers.BpeTrainer(
        vocab_size=420,
        special_tokens=list(CONTROL),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    model.train_from_iterator([*words, *[QUERY] * 9], trainer)
    path = Path(mkdtemp()) / "tokenizer.json"
    model.save(str(path))
    return path


@cache
def tokenizer() -> Tokenizer:
    return load_tokenizer(tokenizer_file())


def processor(sets: Sequence[Statistics] = (STATISTICS,), **changes: Any) -> ChatProcessor:
    settings: dict[str, Any] = {"robot": ROBOT, "experts": EXPERTS, "state_normalization": "identity"} | changes
    return ChatProcessor(ChatConfig(**settings), tokenizer(), sets)


def picture(height: int = 256, width: int = 256, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, (height, width, 3), dtype=np.uint8)
