"""Writes goldens.safetensors: a tiny random Qwen3-VL of transformers 4.57.1, run on one to three pictures.

Run in an environment with torch and transformers 4.57.1 (its hidden states are the meaning that StarVLA's heads were
trained with): python make_goldens.py. The tests need neither. Weights are rounded to bfloat16 to keep the file small.
"""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import torch
import transformers
from safetensors.torch import save_file
from transformers import Qwen2VLImageProcessor, Qwen3VLConfig, Qwen3VLForConditionalGeneration

IMAGE, START, END, VOCAB = 120, 121, 122, 128
CASES = {
    "one": ([(64, 64)], 5),
    "two": ([(64, 160), (96, 64)], 7),
    "three": ([(96, 96), (64, 64), (160, 96)], 4),
    "none": ([], 9),
}
TEXT = {
    "hidden_size": 48,
    "num_hidden_layers": 4,
    "intermediate_size": 64,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "vocab_size": VOCAB,
    "rms_norm_eps": 1e-6,
    "rope_theta": 5_000_000.0,
    "rope_scaling": {"rope_type": "default", "mrope_interleaved": True, "mrope_section": [4, 2, 2]},
    "tie_word_embeddings": True,
}
VISION = {
    "hidden_size": 32,
    "depth": 4,
    "intermediate_size": 48,
    "num_heads": 2,
    "patch_size": 16,
    "spatial_merge_size": 2,
    "temporal_patch_size": 2,
    "num_position_embeddings": 36,
    "out_hidden_size": 48,
    "deepstack_visual_indexes": [0, 1, 2],
}


def make_model() -> Qwen3VLForConditionalGeneration:
    config = Qwen3VLConfig(
        text_config=TEXT,
        vision_config=VISION,
        image_token_id=IMAGE,
        vision_start_token_id=START,
        vision_end_token_id=END,
        tie_word_embeddings=True,
    )
    model = Qwen3VLForConditionalGeneration(config).eval()
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if (
                name.endswith("norm.weight")
                or ".norm1.weight" in name
                or ".norm2.weight" in name
                or "layernorm" in name
            ):
                parameter.uniform_(0.5, 1.5, generator=generator)
            else:
                fan_in = parameter[0].numel() if parameter.dim() > 1 else 16
                parameter.normal_(0.0, 1.2 * fan_in**-0.5, generator=generator)
            parameter.copy_(parameter.bfloat16().float())
    return model


@torch.no_grad()
def run(model: Qwen3VLForConditionalGeneration, sizes: list[tuple[int, int]], num_words: int, seed: int) -> dict:
    rng = np.random.default_rng(seed)
    pictures = [rng.integers(0, 256, (*size, 3), dtype=np.uint8) for size in sizes]
    ids: list[int] = rng.integers(0, 100, 3).tolist()
    for height, width in sizes:
        ids += [START, *[IMAGE] * (height // 32 * (width // 32)), END, *rng.integers(0, 100, 1).tolist()]
    ids += rng.integers(0, 100, num_words).tolist()
    inputs = {"input_ids": torch.tensor([ids]), "attention_mask": torch.ones(1, len(ids), dtype=torch.int64)}
    if pictures:
        processor = Qwen2VLImageProcessor(
            patch_size=16, merge_size=2, do_resize=False, image_mean=[0.5] * 3, image_std=[0.5] * 3
        )
        seen = processor(images=pictures, return_tensors="pt")
        inputs |= {"pixel_values": seen["pixel_values"], "image_grid_thw": seen["image_grid_thw"]}
    positions, delta = model.model.get_rope_index(inputs["input_ids"], inputs.get("image_grid_thw"))
    out = model(**inputs, use_cache=True, output_hidden_states=True)
    layers = range(TEXT["num_hidden_layers"])
    found = {
        "ids": torch.tensor(ids),
        "positions": positions[:, 0].T.contiguous(),
        "delta": delta.flatten().contiguous(),
        "k": torch.stack([out.past_key_values.layers[i].keys[0] for i in layers]),
        "v": torch.stack([out.past_key_values.layers[i].values[0] for i in layers]),
        "residuals": torch.stack([h[0] for h in out.hidden_states[1:]]),
        "logits": out.logits[0],
    }
    return found | {f"picture{i}": torch.from_numpy(p) for i, p in enumerate(pictures)}


def main() -> None:
    assert transformers.__version__ == "4.57.1", transformers.__version__
    model = make_model()
    tensors = {
        f"weights/{name}": value.bfloat16()
        for name, value in model.state_dict().items()
        if "inv_freq" not in name and name != "lm_head.weight"
    }
    for seed, (case, (sizes, num_words)) in enumerate(CASES.items()):
        tensors |= {f"{case}/{name}": value.contiguous() for name, value in run(model, sizes, num_words, seed).items()}
    about = {"transformers": transformers.__version__, "text": json.dumps(TEXT), "vision": json.dumps(VISION)}
    path = Path(__file__).parents[2] / "data" / "qwen3_vl" / "goldens.safetensors"
    path.parent.mkdir(parents=True, exist_ok=True)
    save_file(tensors, path, about)
    print(path, path.stat().st_size)


if __name__ == "__main__":
    main()
