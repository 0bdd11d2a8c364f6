"""A Qwen3-VL or StarVLA folder with everything settled but the weights: sizes of the trunk, heads, and their balance.

Sizes come from the tensors' shapes; what no shape shows comes from config.json (transformers) or from `oxygen.json`
(`spec`), and where the two disagree with a shape the folder is refused. How a PI head's blocks look, and how many
actions a head makes, is never guessed: the same weights load either way.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from oxygen.checkpoint.folder import Checkpoint, open_folder
from oxygen.checkpoint.placement import Balance, balance
from oxygen.checkpoint.values import fingerprint
from oxygen.core.errors import CheckpointError
from oxygen.models.heads.spec import HeadSpec, OftSpec, head_from_dict
from oxygen.models.qwen3_vl.names import (
    ACTION,
    DIT,
    HEAD,
    PROJECT,
    STARVLA,
    TABLE,
    TEXT,
    VISUAL,
    head_placements,
    known_unused,
    trunk_placements,
)
from oxygen.models.qwen3_vl.spec import PRESETS, Qwen3VLSpec, QwenSpec, QwenVisionSpec
from oxygen.processing.chat import QUERY
from oxygen.processing.chat_config import ChatConfig
from oxygen.processing.chat_processor import ChatProcessor
from oxygen.processing.starvla import read_dataset_statistics
from oxygen.processing.statistics import choose_statistics
from oxygen.processing.tokenizer import load_tokenizer

_STANDARD = PRESETS["qwen3vl-4b"]
_EXPLICIT = {"pi": ("topology", "horizon"), "gr00t": ("horizon",), "oft": ("horizon", "token_id")}
_DIT_HEAD_DIM = 64

Shapes = Mapping[str, tuple[int, ...]]


@dataclass(frozen=True)
class Qwen3VLFolder:
    """See read_qwen3_vl. prefix: what the file puts before the trunk's names. further: folders that lend their heads,
    which come behind its own in `spec`.
    """

    checkpoint: Checkpoint
    spec: Qwen3VLSpec
    prefix: str
    balance: Balance
    robot: str | None = None
    asset_id: str | None = None
    further: tuple[Qwen3VLFolder, ...] = ()

    @property
    def where(self) -> str:
        return str(self.checkpoint.folder)

    def trunk_fingerprint(self) -> str:
        """SHA-256 over the trunk's tensors by transformers' names: equal for folders that hold the same trunk."""
        tensors = self.checkpoint.tensors
        assert tensors is not None
        own = (ACTION, PROJECT)
        placed = self.balance.placed.items()
        return fingerprint((place.source, tensors[name]) for place, name in placed if not place.source.startswith(own))

    @property
    def processor_config(self) -> ChatConfig:
        """What oxygen.json says under `processor`, with the sizes of the model. Raises CheckpointError."""
        told = dict(self.checkpoint.declared.get("processor") or {})
        if self.robot is not None:
            told["robot"] = self.robot
        given = dict(told.get("experts") or {})
        if unknown := sorted(set(given) - {head.name for head in self.spec.heads}):
            raise CheckpointError(
                f"{self.where}: processor.experts names heads that are not there: {', '.join(unknown)}"
            )
        told["experts"] = {
            head.name: {**given.get(head.name, {}), "horizon": head.horizon, "action_dim": head.action_dim}
            for head in self.spec.heads
        }
        told |= {"vocab_size": self.spec.vocab_size, "token_pixels": self.spec.vision.token_pixels}
        return ChatConfig.from_dict(told)

    def processor(self, tokenizer: str | Path | None = None) -> ChatProcessor:
        """The processor, complete. tokenizer: a file that takes the place of the folder's own."""
        path = Path(tokenizer) if tokenizer is not None else self.checkpoint.tokenizer
        if path is None:
            raise CheckpointError(f"{self.where}: no tokenizer (tokenizer.json); copy it from the original checkpoint")
        config, loaded = self.processor_config, load_tokenizer(path)
        sets, masks = read_dataset_statistics(self.checkpoint.folder)
        sets = (*self.checkpoint.statistics, *sets)
        chosen = choose_statistics(sets, self.asset_id or config.asset_id, self.where) if sets else None
        for head in self.spec.heads:
            query = loaded.encode(QUERY)
            if isinstance(head, OftSpec) and query != [head.token_id]:
                raise CheckpointError(
                    f"{self.where}: head {head.name} reads at token {head.token_id}, {QUERY} is {query}"
                )
        mask = masks.get(chosen.asset_id) if chosen else None
        return ChatProcessor(config, loaded, chosen, mask)


def read_qwen3_vl(
    folder: Checkpoint | str | Path,
    *,
    robot: str | None = None,
    asset_id: str | None = None,
    overrides: Mapping[str, Any] | None = None,
) -> Qwen3VLFolder:
    """Open a folder without its weights. overrides: sizes as in Qwen3VLSpec, before those of oxygen.json.

    robot and asset_id: take the place of what oxygen.json says under `processor`. There, `heads_from` names further
    folders, relative to this one, whose heads run on this trunk.

    Raises CheckpointError where a size is not settled; the balance is not judged here (see Balance.check).
    """
    checkpoint = folder if isinstance(folder, Checkpoint) else open_folder(folder)
    if checkpoint.family != "qwen3_vl" or checkpoint.tensors is None:
        raise CheckpointError(f"{checkpoint.folder}: wrong family: {checkpoint.family}, expected qwen3_vl")
    index, where = checkpoint.tensors, str(checkpoint.folder)
    prefix = STARVLA if any(name.startswith(STARVLA) for name in index) else ""
    shapes = {name.removeprefix(prefix): index[name].shape for name in index}
    told: dict[str, Any] = {**dict(checkpoint.declared.get("spec") or {}), **dict(overrides or {})}
    heads = tuple(_heads(shapes, told.pop("heads", None), where))
    spec = replace(_trunk(shapes, checkpoint.config, told, where), heads=heads)
    placements = [*trunk_placements(spec), *(place for head in heads for place in head_placements(head))]
    unused = {start: why for head in heads for start, why in known_unused(head).items()}
    weighed = balance(index.tensors, placements, prefix, tied=(HEAD,), unused=unused)
    further = tuple(read_qwen3_vl(checkpoint.folder / name) for name in checkpoint.declared.get("heads_from", ()))
    spec = replace(spec, heads=(*heads, *(head for other in further for head in other.spec.heads)))
    return Qwen3VLFolder(checkpoint, spec, prefix, weighed, robot, asset_id, further)


def _trunk(shapes: Shapes, config: Mapping[str, Any], told: Mapping[str, Any], where: str) -> Qwen3VLSpec:
    text, vision = config.get("text_config") or {}, config.get("vision_config") or {}
    rope = text.get("rope_scaling") or text.get("rope_parameters") or {}
    try:
        layer, block = TEXT + "layers.0.", VISUAL + "blocks.0."
        vocab_size, width = shapes[TABLE]
        (head_dim,) = shapes[layer + "self_attn.q_norm.weight"]
        trunk = QwenSpec(
            width=width,
            depth=_count(shapes, TEXT + r"layers\.(\d+)\."),
            mlp_width=shapes[layer + "mlp.up_proj.weight"][0],
            num_heads=shapes[layer + "self_attn.q_proj.weight"][0] // head_dim,
            num_kv_heads=shapes[layer + "self_attn.k_proj.weight"][0] // head_dim,
            head_dim=head_dim,
            rope_theta=float(text.get("rope_theta", rope.get("rope_theta", _STANDARD.trunk.rope_theta))),
            rope_sections=tuple(rope.get("mrope_section", _STANDARD.trunk.rope_sections)),
        )
        tower_width = shapes[VISUAL + "patch_embed.proj.bias"][0]
        tower = QwenVisionSpec(
            width=tower_width,
            depth=_count(shapes, VISUAL + r"blocks\.(\d+)\."),
            mlp_width=shapes[block + "mlp.linear_fc1.bias"][0],
            num_heads=vision.get("num_heads", _STANDARD.vision.num_heads),
            taps=tuple(vision.get("deepstack_visual_indexes", _STANDARD.vision.taps)),
            patch_size=shapes[VISUAL + "patch_embed.proj.weight"][-1],
            merge=math.isqrt(shapes[VISUAL + "merger.linear_fc1.bias"][0] // tower_width),
            table_side=math.isqrt(shapes[VISUAL + "pos_embed.weight"][0]),
        )
    except KeyError as error:
        raise CheckpointError(f"{where}: missing tensors: {error.args[0]}") from None
    eos = text.get("eos_token_id", _STANDARD.eos_ids)
    spec = {
        "trunk": trunk,
        "vision": tower,
        "vocab_size": vocab_size,
        "image_id": config.get("image_token_id", _STANDARD.image_id),
        "vision_start_id": config.get("vision_start_token_id", _STANDARD.vision_start_id),
        "vision_end_id": config.get("vision_end_token_id", _STANDARD.vision_end_id),
        "eos_ids": (eos,) if isinstance(eos, int) else tuple(eos),
    }
    written = Qwen3VLSpec(**spec).to_dict() if not told else _merged(spec, told)  # type: ignore[arg-type]
    return Qwen3VLSpec.from_dict(written)


def _merged(spec: Mapping[str, Any], told: Mapping[str, Any]) -> dict[str, Any]:
    """Sizes with those told put over them, part by part; unknown names are refused where the spec is built."""
    parts = {"trunk": spec["trunk"], "vision": spec["vision"]}
    plain: dict[str, Any] = {key: value for key, value in spec.items() if key not in parts}
    for name, part in parts.items():
        plain[name] = {field: getattr(part, field) for field in part.__slots__} | dict(told.get(name) or {})
    return plain | {key: value for key, value in told.items() if key not in parts}


def _heads(shapes: Shapes, told: Any, where: str) -> list[HeadSpec]:
    """The head that lies beside the trunk, if one does; what no shape shows must have been told."""
    derived = _derived_head(shapes)
    given = [dict(head) for head in told or ()]
    if derived is None:
        if given:
            raise CheckpointError(f"{where}: oxygen.json names heads, but the folder holds no action_model tensors")
        return []
    if len(given) > 1:
        raise CheckpointError(f"{where}: {len(given)} heads are named, the folder holds one")
    merged = {**derived, **(given[0] if given else {})}
    if open_ := [name for name in _EXPLICIT[merged["kind"]] if name not in merged]:
        raise CheckpointError(
            f"{where}: head of kind {merged['kind']}: {', '.join(open_)} must be said in oxygen.json "
            f'({{"spec": {{"heads": [{{...}}]}}}}): no tensor shows it'
        )
    return [head_from_dict(merged)]


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
        "num_heads": max(width // _DIT_HEAD_DIM, 1),
        "action_dim": shapes[ACTION + "action_encoder.layer1.weight"][1],
        "num_learned": shapes[ACTION + "future_tokens.weight"][0],
    }
    odd = shapes.get(DIT + "transformer_blocks.1.attn1.to_k.weight")
    if odd is not None and odd[1] != key_width:
        state = shapes.get(ACTION + "state_encoder.layer1.weight")
        return common | {
            "kind": "gr00t",
            "name": "gr00t",
            "feature_width": key_width,
            "trunk_depth": _count(shapes, TEXT + r"layers\.(\d+)\."),
            "inner_width": shapes[ACTION + "action_decoder.layer1.weight"][0],
            "state_dim": 0 if state is None else state[1],
        }
    projection = shapes.get(PROJECT + "0.1.weight")
    return common | {
        "kind": "pi",
        "name": "pi",
        "projects": projection is not None,
        "feature_width": width if projection is None else projection[1],
    }


def _count(shapes: Shapes, pattern: str) -> int:
    """Number of layers: one more than the highest number in the names."""
    return 1 + max((int(m[1]) for name in shapes if (m := re.match(pattern, name))), default=-1)
