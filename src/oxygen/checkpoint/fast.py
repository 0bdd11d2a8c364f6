"""A folder of a FAST tokenizer: `tokenizer.json`, whose text has one character per coefficient, and
`processor_config.json` with `scale`, `min_token`, `vocab_size`, and `time_horizon` and `action_dim`, which may be null.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from oxygen.checkpoint.jsonfile import read_json
from oxygen.core.errors import CheckpointError
from oxygen.processing.fast import FastCodec
from oxygen.processing.tokenizer import load_tokenizer

CONFIG = "processor_config.json"


def open_fast(folder: Path, horizon: int, action_dim: int) -> FastCodec:
    """The codec, for chunks of this size. Raises CheckpointError naming what is missing, odd, or in conflict."""
    path = folder / CONFIG
    told = read_json(path)
    numbers: dict[str, Any] = {name: told.get(name) for name in ("scale", "min_token", "vocab_size")}
    for name, value in numbers.items():
        if type(value) is not int and not (name == "scale" and type(value) is float):
            raise CheckpointError(f"{path}: {name}: expected a number, got {value!r:.80}")
    if not numbers["scale"] > 0 or numbers["vocab_size"] < 1:
        raise CheckpointError(f"{path}: scale and vocab_size must be above 0")
    for name, ours in (("time_horizon", horizon), ("action_dim", action_dim)):
        if told.get(name) not in (None, ours):
            raise CheckpointError(f"{path}: {name} is {told[name]!r:.80}, the checkpoint says {ours}")
    tokenizer = load_tokenizer(folder / "tokenizer.json")
    if tokenizer.vocab_size > numbers["vocab_size"]:
        raise CheckpointError(f"{path}: vocab_size {numbers['vocab_size']} for {tokenizer.vocab_size} tokens")
    return FastCodec(tokenizer, numbers["vocab_size"], numbers["scale"], numbers["min_token"], horizon, action_dim)
