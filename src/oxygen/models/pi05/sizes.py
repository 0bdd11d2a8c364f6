"""The sizes of a π0.5, from its tensors: what they tell is a fact, what the configuration says beside it is checked.

Released configurations name variants (`gemma_2b`) and often lie after a fine-tune or in a test model, so the tensors
win and the disagreement becomes a warning. What no tensor shows (how many heads share a width, how long a chunk is)
comes, in this order, from the caller, from the folder's `oxygen.json`, from `config.json`, and from rules stated here.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from oxygen.checkpoint.folder import OXYGEN, Checkpoint
from oxygen.checkpoint.headers import names as listed
from oxygen.checkpoint.orbax import tree_shapes
from oxygen.core.errors import CheckpointError
from oxygen.models.pi05.names import EXPERT, TABLE, TOWER, TRUNK, canonical_names
from oxygen.models.pi05.spec import LARGEST_OTHER, PRESETS, Pi05Spec

Shapes = Mapping[str, tuple[int, ...]]

VARIANTS = {"gemma_2b": PRESETS["pi05"].trunk, "gemma_300m": PRESETS["pi05"].expert}
"""The variants that openpi and LeRobot name in their configurations; a suffix `_lora` changes no size."""

SIGLIP_HEADS = {1152: 16}
"""Heads by width of the image towers that π0.5 was released with (SigLIP So400m)."""

DEFAULT_MAX_TOKEN_LEN = 200
"""Prompt tokens of every published pi05 configuration."""

LORA_MARK = ".lora_"


@dataclass(frozen=True)
class Sizes:
    """The sizes, and where the folder contradicts itself without harm."""

    spec: Pi05Spec
    warnings: tuple[str, ...] = ()


def derive_sizes(
    checkpoint: Checkpoint, overrides: Mapping[str, Any] | None = None, horizon: int | None = None
) -> Sizes:
    """Sizes of a checkpoint. overrides: a partial configuration, nested as Pi05Spec.to_dict() nests.

    horizon: of the configuration of openpi that was named; it stands where neither overrides nor oxygen.json give one.

    Raises CheckpointError where tensors and what was told contradict each other, and where something is told nowhere.
    """
    where = str(checkpoint.folder) + ("" if checkpoint.config else " (which has no config.json)")
    told = _merged(checkpoint.declared.get("spec") or {}, overrides or {})
    if checkpoint.format == OXYGEN:
        return Sizes(Pi05Spec.from_dict(told))
    if checkpoint.tree_folder is None:
        facts, rows = _torch_facts(checkpoint, where)
    else:
        facts, rows = _jax_facts(tree_shapes(checkpoint.tree_folder), where)
    wrong = [f"{key} is {value} by the tensors, told {asked!s:.80}" for key, value, asked in _both(facts, told)]
    if wrong:
        raise CheckpointError(f"{where}: sizes do not fit the tensors: {'; '.join(wrong)}")
    config = checkpoint.config
    data = _merged(_settings(checkpoint), told)
    warnings = list(_disagreements(facts, config))
    if horizon is not None and "horizon" not in told:
        if data.setdefault("horizon", horizon) != horizon:
            warnings.append(f"config.json says chunks of {data['horizon']}; the named configuration has {horizon}")
        data["horizon"] = horizon
    heads = _gemma_heads(facts, rows, told, config, where)
    for part in ("trunk", "expert"):
        data[part] = dict(data.get(part, {})) | facts[part] | heads
    tower = facts["vision"] | {"num_heads": _vision_heads(facts, told, config, where)}
    data["vision"] = dict(data.get("vision", {})) | tower
    data["vision"].setdefault("stem", "patch")
    data |= {key: value for key, value in facts.items() if not isinstance(value, dict)}
    if "horizon" not in data:
        raise CheckpointError(
            f"{where}: the length of an action chunk is told nowhere (config.json has neither action_horizon nor "
            "chunk_size); give the robot, the openpi configuration, or spec.horizon in oxygen.json"
        )
    return Sizes(Pi05Spec.from_dict(data), tuple(warnings))


def _merged(base: Mapping[str, Any], more: Mapping[str, Any]) -> dict[str, Any]:
    merged = dict(base)
    for key, value in more.items():
        both_maps = isinstance(value, Mapping) and isinstance(merged.get(key), Mapping)
        merged[key] = _merged(merged[key], value) if both_maps else value
    return merged


def _both(facts: Mapping[str, Any], told: Mapping[str, Any], path: str = "") -> Iterator[tuple[str, Any, Any]]:
    """Keys that both have, with different values."""
    for key in facts.keys() & told.keys():
        if isinstance(facts[key], Mapping) and isinstance(told[key], Mapping):
            yield from _both(facts[key], told[key], f"{path}{key}.")
        elif facts[key] != told[key]:
            yield f"{path}{key}", facts[key], told[key]


def _torch_facts(checkpoint: Checkpoint, where: str) -> tuple[dict[str, Any], tuple[int, int]]:
    """(sizes that the tensors show, rows of the q and k maps)."""
    assert checkpoint.tensors is not None
    index = checkpoint.tensors
    by_name = canonical_names((name for name in index if LORA_MARK not in name), where)
    shapes = {name: index[original].shape for name, original in by_name.items()}
    table = next((shapes[name] for name in TABLE if name in shapes), None)
    if table is None:
        raise CheckpointError(f"{where}: missing tensors: the token table, under any of {', '.join(TABLE)}")
    need = _Needed(shapes, where)
    patch = need.one(TOWER + "embeddings.patch_embedding.weight", 4)
    num_tokens, vision_width = need.one(TOWER + "embeddings.position_embedding.weight", 2)
    facts: dict[str, Any] = {
        "vision": {
            "width": vision_width,
            "depth": need.depth(TOWER + "encoder.layers."),
            "mlp_width": need.layers(TOWER + "encoder.layers.", "mlp.fc1.weight")[0],
            "patch_size": patch[2],
            "image_size": math.isqrt(num_tokens) * patch[2],
        },
        "vocab_size": table[0],
        "action_dim": need.one("action_in_proj.weight", 2)[1],
    }
    for part, prefix in (("trunk", TRUNK), ("expert", EXPERT)):
        mlp_width, width = need.layers(prefix + "layers.", "mlp.gate_proj.weight")
        facts[part] = {"width": width, "depth": need.depth(prefix + "layers."), "mlp_width": mlp_width}
    layers = TRUNK + "layers."
    rows = need.layers(layers, "self_attn.q_proj.weight")[0], need.layers(layers, "self_attn.k_proj.weight")[0]
    return facts, rows


@dataclass(frozen=True)
class _Needed:
    """Shapes by canonical name; asks for those that tell sizes and names the ones that are missing."""

    shapes: Shapes
    where: str

    def one(self, name: str, rank: int) -> tuple[int, ...]:
        if name not in self.shapes:
            raise CheckpointError(f"{self.where}: missing tensors: {name}")
        if len(self.shapes[name]) != rank:
            raise CheckpointError(f"{self.where}: {name} has shape {list(self.shapes[name])}, expected {rank} axes")
        return self.shapes[name]

    def layers(self, prefix: str, leaf: str) -> tuple[int, int]:
        """The shape that most layers' matrix `leaf` has: one odd layer is then the error, not all the others."""
        pattern = re.compile(re.escape(prefix) + r"\d+\." + re.escape(leaf))
        found = Counter(s for name, s in self.shapes.items() if pattern.fullmatch(name) and len(s) == 2)
        if not found:
            raise CheckpointError(f"{self.where}: missing tensors: {prefix}*.{leaf}")
        rows, columns = found.most_common(1)[0][0]
        return rows, columns

    def depth(self, prefix: str) -> int:
        pattern = re.compile(re.escape(prefix) + r"(\d+)\.")
        return 1 + max((int(m[1]) for name in self.shapes if (m := pattern.match(name))), default=-1)


def _jax_facts(tree: Shapes, where: str) -> tuple[dict[str, Any], tuple[int, int]]:
    """The same from the shapes of a JAX tree, which shows the heads too."""
    llm, img = "PaliGemma/llm/", "PaliGemma/img/"
    wanted = {
        "table": llm + "embedder/input_embedding",
        "q": llm + "layers/attn/q_einsum/w",
        "kv": llm + "layers/attn/kv_einsum/w",
        "trunk": llm + "layers/mlp/gating_einsum",
        "expert": llm + "layers/mlp_1/gating_einsum",
        "patch": img + "embedding/kernel",
        "positions": img + "pos_embedding",
        "query": img + "Transformer/encoderblock/MultiHeadDotProductAttention_0/query/kernel",
        "fc1": img + "Transformer/encoderblock/MlpBlock_0/Dense_0/kernel",
        "action": "action_in_proj/kernel",
    }
    missing = [path for path in wanted.values() if path not in tree]
    if missing:
        raise CheckpointError(f"{where}: missing tensors: {listed(missing, None)}")
    shape = {key: tree[path] for key, path in wanted.items()}
    ranks = {"table": 2, "q": 4, "kv": 5, "trunk": 4, "expert": 4, "patch": 4, "positions": 3, "query": 4, "fc1": 3}
    odd = [f"{wanted[key]} {list(shape[key])}" for key, rank in ranks.items() if len(shape[key]) != rank]
    if odd or len(shape["action"]) != 2:
        raise CheckpointError(f"{where}: shapes that are not those of the specification's tree: {listed(odd, None)}")
    facts: dict[str, Any] = {
        "vision": {
            "width": shape["query"][1],
            "depth": shape["query"][0],
            "mlp_width": shape["fc1"][2],
            "num_heads": shape["query"][2],
            "patch_size": shape["patch"][0],
            "image_size": math.isqrt(shape["positions"][1]) * shape["patch"][0],
        },
        "vocab_size": shape["table"][0],
        "action_dim": shape["action"][0],
    }
    heads = {"num_heads": shape["q"][1], "num_kv_heads": shape["kv"][2], "head_dim": shape["q"][3]}
    for part in ("trunk", "expert"):
        depth, _, width, mlp_width = shape[part]
        facts[part] = {"width": width, "depth": depth, "mlp_width": mlp_width} | heads
    return facts, (shape["q"][1] * shape["q"][3], shape["kv"][2] * shape["q"][3])


def _settings(checkpoint: Checkpoint) -> dict[str, Any]:
    """What no tensor shows and config.json may say, in openpi's and in LeRobot's words."""
    config = checkpoint.config
    for key in ("max_token_len", "tokenizer_max_length", "num_inference_steps", "action_horizon", "chunk_size"):
        size = config.get(key)
        if size is not None and (type(size) is not int or not 1 <= size <= LARGEST_OTHER):
            expected = f"an integer from 1 to {LARGEST_OTHER}"
            raise CheckpointError(f"{checkpoint.folder}: config.json: {key}: expected {expected}, got {size!r:.80}")
    features = config.get("input_features") or {}
    if not isinstance(features, Mapping):
        raise CheckpointError(f"{checkpoint.folder}: input_features: expected a map, got {features!r:.80}")
    num_cameras = sum(isinstance(f, Mapping) and f.get("type") == "VISUAL" for f in features.values())
    pipeline_len = checkpoint.pipeline.max_token_len if checkpoint.pipeline else None
    data: dict[str, Any] = {
        "max_token_len": config.get("max_token_len", config.get("tokenizer_max_length", pipeline_len))
        or DEFAULT_MAX_TOKEN_LEN,
        "num_steps": config.get("num_inference_steps") or 10,
        "num_cameras": num_cameras or 3,
    }
    horizon = config.get("action_horizon", config.get("chunk_size"))
    return data if horizon is None else data | {"horizon": horizon}


def _gemma_heads(
    facts: Mapping[str, Any], rows: tuple[int, int], told: Mapping[str, Any], config: Mapping[str, Any], where: str
) -> dict[str, int]:
    """Heads of trunk and expert (they share them). Without a word from anywhere: one KV head, as every π0.5 has."""
    keys = ("num_heads", "num_kv_heads", "head_dim")
    q_rows, kv_rows = rows
    variant = VARIANTS.get(str(config.get("paligemma_variant", "")).removesuffix("_lora"))
    if "num_heads" in facts["trunk"]:
        return {key: facts["trunk"][key] for key in keys}
    sources = [told.get("trunk"), told.get("expert"), config.get("trunk")]
    if variant and (variant.attention_width, variant.kv_width) == rows:
        sources.append({key: getattr(variant, key) for key in keys})
    known: dict[str, int] = {}
    for source in sources:
        if isinstance(source, Mapping):
            known = {key: source[key] for key in keys if key in source} | known
    for key, count in known.items():
        if type(count) is not int or count < 1:
            raise CheckpointError(f"{where}: {key}: expected an integer of at least 1, got {count!r:.80}")
    head_dim = (
        known.get("head_dim")
        or _divided(q_rows, known.get("num_heads"))
        or _divided(kv_rows, known.get("num_kv_heads", 1))
    )
    heads = {
        "num_heads": known.get("num_heads", q_rows // max(head_dim, 1)),
        "num_kv_heads": known.get("num_kv_heads", kv_rows // max(head_dim, 1)),
        "head_dim": head_dim,
    }
    if heads["num_heads"] * head_dim != q_rows or heads["num_kv_heads"] * head_dim != kv_rows:
        raise CheckpointError(
            f"{where}: sizes do not fit the tensors: {heads} for q and k maps of {q_rows} and {kv_rows} rows"
        )
    return heads


def _divided(rows: int, count: int | None) -> int:
    return rows // count if count else 0


def _vision_heads(facts: Mapping[str, Any], told: Mapping[str, Any], config: Mapping[str, Any], where: str) -> int:
    width = facts["vision"]["width"]
    tower = config.get("vision") if isinstance(config.get("vision"), Mapping) else {}
    candidates = (
        facts["vision"].get("num_heads"),
        (told.get("vision") or {}).get("num_heads"),
        (tower or {}).get("num_attention_heads"),
        SIGLIP_HEADS.get(width),
    )
    for heads in candidates:
        if heads is not None:
            if type(heads) is not int or heads < 1:
                raise CheckpointError(
                    f"{where}: vision.num_heads: expected an integer of at least 1, got {heads!r:.80}"
                )
            return heads
    raise CheckpointError(
        f"{where}: an image tower of width {width} is none of the released ones, and no tensor shows its number of "
        'heads; give it: {"spec": {"vision": {"num_heads": N}}} in oxygen.json'
    )


def _disagreements(facts: Mapping[str, Any], config: Mapping[str, Any]) -> Iterator[str]:
    """Sizes that config.json states and the tensors contradict; the tensors win."""
    stated = [("action_dim", config.get("action_dim", config.get("max_action_dim")), facts["action_dim"])]
    for part, key in (("trunk", "paligemma_variant"), ("expert", "action_expert_variant")):
        name = config.get(key)
        variant = VARIANTS.get(str(name).removesuffix("_lora"))
        if variant and (variant.width, variant.depth) != (facts[part]["width"], facts[part]["depth"]):
            said = f"{key} {name} (width {variant.width}, depth {variant.depth})"
            yield f"config.json says {said}; the tensors are width {facts[part]['width']}, depth {facts[part]['depth']}"
        if isinstance(config.get(part), Mapping):
            stated += [(f"{part}.{size}", config[part].get(size), facts[part][size]) for size in ("width", "depth")]
    stated.append(("vocab_size", config.get("vocab_size"), facts["vocab_size"]))
    for key, said, found in stated:
        if said is not None and said != found:
            yield f"config.json says {key} {said}; the tensors are {found}"
