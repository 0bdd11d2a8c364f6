"""A StarVLA-shaped folder of tiny random weights."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

from processing.chat_cases import ROBOT, STATISTICS, tokenizer, tokenizer_file

from oxygen.checkpoint.torch import save_tensors
from oxygen.models.heads.spec import HeadSpec, OftSpec, PiSpec
from oxygen.models.qwen3_vl.names import STARVLA, head_placements, trunk_placements
from oxygen.models.qwen3_vl.spec import PRESETS, Qwen3VLSpec
from oxygen.models.qwen3_vl.torch import build
from oxygen.processing.chat import QUERY


def spec_for(*heads: HeadSpec, vocab_size: int = 512) -> Qwen3VLSpec:
    names = tokenizer().vocabulary.names
    tiny = PRESETS["qwen3vl-tiny"]
    plain = {name: getattr(tiny, name) for name in ("trunk", "vision")}
    at = {
        key: names.index(token)
        for key, token in (("image_id", "<|image_pad|>"), ("vision_start_id", "<|vision_start|>"))
    }
    end = names.index("<|vision_end|>")
    return Qwen3VLSpec(
        **plain,
        **at,
        vision_end_id=end,
        vocab_size=vocab_size,
        eos_ids=tokenizer().eos_ids,
        max_context_len=192,
        heads=heads,
    )


PI = PiSpec(name="pi", feature_width=64, depth=4, width=64, num_heads=1, horizon=4, action_dim=7)
OFT = OftSpec(
    name="oft",
    feature_width=64,
    trunk_depth=4,
    width=32,
    token_id=tokenizer().encode(QUERY)[0],
    horizon=6,
    action_dim=7,
)


OUTPUT = {"normalization": "minmax", "is_clipped": True, "binary": {}}
TOLD = {"topology": "all_cross", "horizon": 4, "num_heads": 1}
"""What oxygen.json must say of PI."""


def starvla(folder: Path, head: HeadSpec = PI, told: dict[str, Any] | None = None, **processor: Any) -> Path:
    """What a StarVLA run leaves, as safetensors, with statistics of two data sets, a tokenizer and oxygen.json.

    told: of the head. processor: settings to replace.
    """
    spec = spec_for(head)
    model = build(spec, seed=3)
    parameters = dict(model.named_parameters())
    tensors = {}
    for prefix, places in ((STARVLA, trunk_placements(spec)), ("", head_placements(head))):
        for place in places:
            rows = parameters[place.parameter].detach()[place.start : place.start + place.shape[0]]
            tensors[prefix + place.source] = rows.reshape(place.shape)
    save_tensors(folder, tensors)
    shutil.copyfile(tokenizer_file(), folder / "tokenizer.json")
    told_spec = {
        "trunk": {"rope_sections": [4, 2, 2]},
        "vision": {"num_heads": 3, "taps": [0, 1]},
        **{
            key: getattr(spec, key)
            for key in ("image_id", "vision_start_id", "vision_end_id", "eos_ids", "max_context_len")
        },
        "heads": [TOLD if told is None else told],
    }
    settings = {"robot": ROBOT, "asset_id": "bridge", "first_size": None, "wrapper": None}
    settings |= {"experts": {head.name: OUTPUT}} | processor
    (folder / "oxygen.json").write_text(json.dumps({"spec": told_spec, "processor": settings}))
    groups = STATISTICS.to_groups()
    wider = {key: [2 * number for number in numbers] for key, numbers in groups["actions"].items()}
    statistics = {
        "bridge": {"action": groups["actions"], "state": groups["state"]},
        "other": {"action": wider, "state": groups["state"]},
    }
    (folder / "dataset_statistics.json").write_text(json.dumps(statistics))
    return folder
