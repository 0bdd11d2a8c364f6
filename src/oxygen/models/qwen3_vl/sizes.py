"""Sizes of a Qwen3-VL or StarVLA folder: from the tensors' shapes, from config.json, and from what oxygen.json says.

How a PI head's blocks look, how many actions a head makes and whether it was trained with a state token is never
guessed: the same weights load either way.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import Any

from oxygen.core.errors import CheckpointError
from oxygen.models.heads.spec import HeadSpec, head_from_dict
from oxygen.models.qwen3_vl.names import ACTION, DIT, PROJECT, TABLE, TEXT, VISUAL
from oxygen.models.qwen3_vl.spec import PRESETS, Qwen3VLSpec

_STANDARD = PRESETS["qwen3vl-4b"]
_EXPLICIT: dict[str, tuple[str, ...]] = {
    "pi": ("topology", "horizon"),
    "gr00t": ("horizon", "state_dim"),
    "oft": ("horizon", "token_id"),
}
_DIT_HEAD_DIM = 64

Shapes = Mapping[str, tuple[int, ...]]


def read_trunk(shapes: Shapes, config: Mapping[str, Any], told: Mapping[str, Any], where: str) -> Qwen3VLSpec:
    """The spec without heads. told: sizes that go before those of config.json. Raises CheckpointError."""
    text, vision = (_map(config, name, where) for name in ("text_config", "vision_config"))
    rope = _map(text, "rope_scaling", where) or _map(text, "rope_parameters", where)
    try:
        layer, block = TEXT + "layers.0.", VISUAL + "blocks.0."
        vocab_size, width = shapes[TABLE]
        (head_dim,) = shapes[layer + "self_attn.q_norm.weight"]
        trunk = {
            "width": width,
            "depth": _count(shapes, TEXT + r"layers\.(\d+)\."),
            "mlp_width": shapes[layer + "mlp.up_proj.weight"][0],
            "num_heads": shapes[layer + "self_attn.q_proj.weight"][0] // head_dim,
            "num_kv_heads": shapes[layer + "self_attn.k_proj.weight"][0] // head_dim,
            "head_dim": head_dim,
            "rope_theta": text.get("rope_theta", rope.get("rope_theta", _STANDARD.trunk.rope_theta)),
            "rope_sections": rope.get("mrope_section", _STANDARD.trunk.rope_sections),
        }
        tower_width = shapes[VISUAL + "patch_embed.proj.bias"][0]
        tower = {
            "width": tower_width,
            "depth": _count(shapes, VISUAL + r"blocks\.(\d+)\."),
            "mlp_width": shapes[block + "mlp.linear_fc1.bias"][0],
            "num_heads": vision.get("num_heads", _STANDARD.vision.num_heads),
            "taps": vision.get("deepstack_visual_indexes", _STANDARD.vision.taps),
            "patch_size": shapes[VISUAL + "patch_embed.proj.weight"][-1],
            "merge": math.isqrt(shapes[VISUAL + "merger.linear_fc1.bias"][0] // tower_width),
            "table_side": math.isqrt(shapes[VISUAL + "pos_embed.weight"][0]),
        }
    except KeyError as error:
        raise CheckpointError(f"{where}: missing tensors: {error.args[0]}") from None
    except (ValueError, IndexError, ZeroDivisionError):
        raise CheckpointError(f"{where}: tensors of the first layers have shapes of no Qwen3-VL") from None
    eos = text.get("eos_token_id", _STANDARD.eos_ids)
    spec = {
        "trunk": trunk | _map(told, "trunk", where),
        "vision": tower | _map(told, "vision", where),
        "vocab_size": vocab_size,
        "image_id": config.get("image_token_id", _STANDARD.image_id),
        "vision_start_id": config.get("vision_start_token_id", _STANDARD.vision_start_id),
        "vision_end_id": config.get("vision_end_token_id", _STANDARD.vision_end_id),
        "eos_ids": (eos,) if isinstance(eos, int) else eos,
    }
    spec |= {key: value for key, value in told.items() if key not in ("trunk", "vision")}
    try:
        return Qwen3VLSpec.from_dict(spec)
    except CheckpointError as error:
        raise CheckpointError(f"{where}: {error}") from None


def _map(data: Mapping[str, Any], name: str, where: str) -> dict[str, Any]:
    found = data.get(name) or {}
    if not isinstance(found, Mapping):
        raise CheckpointError(f"{where}: {name}: expected a map, got {found!r:.80}")
    return dict(found)


def read_heads(shapes: Shapes, told: Any, where: str) -> list[HeadSpec]:
    """The head that lies beside the trunk, if one does; what no shape shows must have been told."""
    try:
        derived = _derived_head(shapes)
    except KeyError as error:
        raise CheckpointError(f"{where}: missing tensors: {error.args[0]}") from None
    except (ValueError, IndexError):
        raise CheckpointError(f"{where}: tensors of the head have shapes of no StarVLA head") from None
    if not isinstance(told or [], list | tuple) or not all(isinstance(head, Mapping) for head in told or ()):
        raise CheckpointError(f"{where}: spec: heads: expected a list of maps, got {told!r:.80}")
    given = [dict(head) for head in told or ()]
    if derived is None:
        if given:
            raise CheckpointError(f"{where}: oxygen.json names heads, but the folder holds no action_model tensors")
        return []
    if len(given) > 1:
        raise CheckpointError(f"{where}: {len(given)} heads are named, the folder holds one")
    merged = {**derived, **(given[0] if given else {})}
    if merged["kind"] != derived["kind"]:
        raise CheckpointError(f"{where}: head of kind {merged['kind']!r}, the tensors are of kind {derived['kind']}")
    wanted = _EXPLICIT[merged["kind"]]
    if merged.get("topology") == "interleaved":  # in the other form the state token has no effect
        wanted += ("state_dim",)
    if merged["kind"] == "pi" and not merged["projects"]:  # the others' attention heads are known to have 64 numbers
        wanted += ("num_heads",)
    if open_ := [name for name in wanted if name not in merged]:
        raise CheckpointError(
            f"{where}: head of kind {merged['kind']}: {', '.join(open_)} must be said in oxygen.json "
            f'({{"spec": {{"heads": [{{...}}]}}}}): no tensor shows it'
            + (" (horizon: future_action_window_size + 1)" if "horizon" in open_ else "")
        )
    layers = _count(shapes, TEXT + r"layers\.(\d+)\.")
    if merged["kind"] == "pi" and merged["depth"] != layers:
        raise CheckpointError(
            f"{where}: head of kind pi: {merged['depth']} blocks on {layers} layers; it has one for each"
        )
    try:
        return [head_from_dict(merged)]
    except CheckpointError as error:
        raise CheckpointError(f"{where}: {error}") from None


def _derived_head(shapes: Shapes) -> dict[str, Any] | None:
    if DIT + "fc1.weight" in shapes:
        width, feature_width = shapes[DIT + "fc1.weight"]
        return {
            "kind": "oft",
            "name": "oft",
            "feature_width": feature_width,
            "trunk_depth": _count(shapes, TEXT + r"layers\.(\d+)\."),
            "width": width,
            "action_dim": shapes[DIT + "fc2.weight"][0],
            "num_blocks": _count(shapes, DIT + r"mlp_resnet_blocks\.(\d+)\."),
        }
    first = DIT + "transformer_blocks.0."
    if first + "attn1.to_k.weight" not in shapes:
        return None
    width, key_width = shapes[first + "attn1.to_k.weight"]
    common = {
        "width": width,
        "depth": _count(shapes, DIT + r"transformer_blocks\.(\d+)\."),
        "action_dim": shapes[ACTION + "action_encoder.layer1.weight"][1],
        "num_learned": shapes[ACTION + "future_tokens.weight"][0],
    }
    odd = shapes.get(DIT + "transformer_blocks.1.attn1.to_k.weight")
    if odd is not None and odd[1] != key_width:
        return common | {
            "kind": "gr00t",
            "num_heads": max(width // _DIT_HEAD_DIM, 1),
            "name": "gr00t",
            "feature_width": key_width,
            "trunk_depth": _count(shapes, TEXT + r"layers\.(\d+)\."),
            "inner_width": shapes[ACTION + "action_decoder.layer1.weight"][0],
        }
    projection = shapes.get(PROJECT + "0.1.weight")
    if projection is not None:
        common["num_heads"] = max(width // _DIT_HEAD_DIM, 1)
    return common | {
        "kind": "pi",
        "name": "pi",
        "projects": projection is not None,
        "feature_width": width if projection is None else projection[1],
    }


def _count(shapes: Shapes, pattern: str) -> int:
    """Number of layers: one more than the highest number in the names."""
    return 1 + max((int(m[1]) for name in shapes if (m := re.match(pattern, name))), default=-1)
