"""Small checkpoint folders for the tests: copies of the golden ones, with something changed."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import load_file, save_file

DATA = Path(__file__).parent.parent / "data"
OPENPI, LEROBOT = DATA / "openpi_torch", DATA / "lerobot_torch"

P = "paligemma_with_expert.paligemma."
LM_HEAD, EMBED = P + "lm_head.weight", P + "model.language_model.embed_tokens.weight"
Q0 = P + "model.language_model.layers.0.self_attn.q_proj.weight"
NORM2 = P + "model.language_model.layers.2.input_layernorm.weight"
ACTION_IN = "action_in_proj.weight"

Tensors = dict[str, np.ndarray]


def tensors_of(folder: Path = OPENPI) -> Tensors:
    return load_file(folder / "model.safetensors")


def copy_of(source: Path, target: Path, change: Callable[[Tensors], Any] | None = None) -> Path:
    """A copy of a folder whose tensors `change` may alter in place."""
    shutil.copytree(source, target)
    if change is not None:
        tensors = tensors_of(source)
        change(tensors)
        save_file(
            {name: np.ascontiguousarray(tensor) for name, tensor in tensors.items()}, target / "model.safetensors"
        )
    return target


def edit_json(path: Path, **changes: Any) -> None:
    """Set keys of a JSON file (made if absent); None removes one."""
    content = json.loads(path.read_text()) if path.is_file() else {}
    content |= changes
    path.write_text(json.dumps({key: value for key, value in content.items() if value is not None}))


def sharded(source: Path, target: Path, num_shards: int = 3) -> Path:
    """A copy of a folder with its weights in shards and an index, written with the safetensors library."""
    shutil.copytree(source, target)
    (target / "model.safetensors").unlink()
    tensors = tensors_of(source)
    weight_map = {}
    for i in range(num_shards):
        name = f"model-{i + 1:05}-of-{num_shards:05}.safetensors"
        part = {key: tensors[key] for key in sorted(tensors)[i::num_shards]}
        save_file(part, target / name)
        weight_map |= dict.fromkeys(part, name)
    (target / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": weight_map}))
    return target
