"""A small FAST tokenizer made as the public recipe makes one: cosines over time, rounded, one character each, BPE."""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
from tokenizers import ByteLevelBPETokenizer, trainers

HORIZON, DIM, SCALE = 4, 3, 10
NUM_IDS = 320


def chunks(seed: int, count: int) -> np.ndarray:
    """Smooth [count, H, A] within [-1, 1]."""
    rng = np.random.default_rng(seed)
    time = np.linspace(0, 1, HORIZON)[None, :, None]
    return 0.8 * np.sin(3 * time * rng.uniform(0, 1, (count, 1, DIM)) + rng.uniform(0, 6, (count, 1, DIM)))


def coefficients(chunk: np.ndarray) -> np.ndarray:
    """DCT-II by its definition, number by number, scaled and rounded, [H, A]."""
    made = np.zeros((HORIZON, DIM))
    for k in range(HORIZON):
        weight = math.sqrt((1 if k == 0 else 2) / HORIZON)
        for t in range(HORIZON):
            made[k] += weight * chunk[t] * math.cos(math.pi * k * (2 * t + 1) / (2 * HORIZON))
    return np.around(SCALE * made).astype(int)


def write_tokenizer(folder: Path, **changes: object) -> tuple[ByteLevelBPETokenizer, int]:
    """The folder; returns its tokenizer and the smallest coefficient."""
    folder.mkdir(parents=True, exist_ok=True)
    numbers = [coefficients(chunk) for chunk in chunks(0, 200)]
    low = min(int(n.min()) for n in numbers) - 3
    texts = ["".join(chr(c - low) for c in n.flatten()) for n in numbers]
    tokenizer = ByteLevelBPETokenizer()
    trainer = trainers.BpeTrainer(
        vocab_size=NUM_IDS, min_frequency=2, show_progress=False, special_tokens=[], initial_alphabet=[]
    )
    tokenizer._tokenizer.train_from_iterator(texts, trainer)
    tokenizer.save(str(folder / "tokenizer.json"))
    told = {
        "processor_class": "UniversalActionProcessor",
        "scale": SCALE,
        "min_token": low,
        "vocab_size": NUM_IDS,
        "time_horizon": None,
        "action_dim": None,
    }
    (folder / "processor_config.json").write_text(json.dumps(told | changes))
    return tokenizer, low


def encode(tokenizer: ByteLevelBPETokenizer, low: int, chunk: np.ndarray) -> list[int]:
    return list(tokenizer.encode("".join(chr(c - low) for c in coefficients(chunk).flatten())).ids)
