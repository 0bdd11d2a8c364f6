"""The golden tiny Qwen3-VL of transformers 4.57.1, and our own model with its weights."""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor

from oxygen.core.inputs import ContextInputs
from oxygen.models.qwen3_vl.torch import Qwen3VL
from oxygen.models.qwen3_vl.torch.weights import load_qwen3_vl

GOLDENS = Path(__file__).parents[2] / "data" / "qwen3_vl" / "goldens.safetensors"
CASES = ("none", "one", "two", "three")


@dataclass(frozen=True, eq=False)
class Golden:
    """What transformers computed: k, v [layers, Hkv, n, D]; residuals [layers, n, width]; logits [n, vocab]."""

    inputs: ContextInputs
    positions: Tensor
    delta: int
    k: Tensor
    v: Tensor
    residuals: Tensor
    logits: Tensor


@cache
def golden(case: str) -> Golden:
    with safe_open(GOLDENS, "pt") as file:
        own = [name for name in sorted(file.keys()) if name.startswith(f"{case}/")]
        found = {name.split("/")[1]: file.get_tensor(name) for name in own}
    pictures = tuple(np.asarray(found[name]) for name in sorted(found) if name.startswith("picture"))
    ids = tuple(found["ids"].tolist())
    inputs = ContextInputs(pictures, ids, len(ids))
    parts = (found[name] for name in ("k", "v", "residuals", "logits"))
    return Golden(inputs, found["positions"], int(found["delta"]), *parts)


@cache
def golden_weights() -> dict[str, Tensor]:
    with safe_open(GOLDENS, "pt") as file:
        return {n.removeprefix("weights/"): file.get_tensor(n) for n in sorted(file.keys()) if n.startswith("weights/")}


@cache
def golden_config() -> dict:
    """As a folder's config.json says it."""
    with safe_open(GOLDENS, "pt") as file:
        about = file.metadata()
    return {
        "model_type": "qwen3_vl",
        "architectures": ["Qwen3VLForConditionalGeneration"],
        "text_config": json.loads(about["text"]) | {"eos_token_id": [126, 127]},
        "vision_config": json.loads(about["vision"]),
        "image_token_id": 120,
        "vision_start_token_id": 121,
        "vision_end_token_id": 122,
        "tie_word_embeddings": True,
    }


def near(ours: Tensor, theirs: Tensor, tolerance: float = 1e-5) -> None:
    assert ours.shape == theirs.shape, (ours.shape, theirs.shape)
    assert (ours - theirs).abs().max() <= tolerance * theirs.abs().max(), (ours - theirs).abs().max()


def golden_folder(folder: Path, changes: dict | None = None) -> Path:
    """A folder as transformers writes one."""
    folder.mkdir(parents=True, exist_ok=True)
    save_file(golden_weights(), folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps(golden_config() | (changes or {})))
    return folder


@cache
def golden_model(is_prepared: bool = False) -> Qwen3VL:
    with TemporaryDirectory() as folder:
        model = load_qwen3_vl(golden_folder(Path(folder)))
    return model.prepare_for_inference() if is_prepared else model.eval()
