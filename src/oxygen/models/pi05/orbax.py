"""openpi's JAX parameter tree as the tensors of the PyTorch names: which leaf, which slice of it, turned which way.

Layers are stacked on the first axis of a leaf, so a leaf serves many tensors. LoRA leaves lie beside the weight that
they change and are merged into it. For q, k, v and the MLP that is W + scale · A B, per head or branch. The attention
output is different: its two einsums each sum over the heads, so every head has its own A but the sum of all heads' B.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass

import numpy as np

from oxygen.checkpoint.folder import Checkpoint
from oxygen.checkpoint.headers import names as listed
from oxygen.checkpoint.orbax import read_tree
from oxygen.checkpoint.placement import Placement
from oxygen.core.errors import CheckpointError
from oxygen.models.pi05.names import EXPERT, PROJECTOR, TABLE, TOWER, TRUNK, placements
from oxygen.models.pi05.spec import Pi05Spec

Turn = Callable[[np.ndarray], np.ndarray]

LLM, IMG = "PaliGemma/llm/", "PaliGemma/img/"
BLOCK = IMG + "Transformer/encoderblock/"
ATTENTION = BLOCK + "MultiHeadDotProductAttention_0/"
LORA_RANKS = {"": 16, "_1": 32}
"""Ranks of the published variants gemma_2b_lora and gemma_300m_lora (suffix `_1`: the expert's leaves). Their alpha
equals the rank, so the scale is 1; a tree does not say its alpha, so other ranks need `lora_scale` in oxygen.json."""


@dataclass(frozen=True, slots=True)
class Leaf:
    """A tensor's place in the tree: `path`, then `at` on its first axes, then `turn`. lora: paths of its A and B."""

    path: str
    at: tuple[int, ...]
    turn: Turn
    lora: tuple[str, str] | None = None
    sums_heads: bool = False


def _same(x: np.ndarray) -> np.ndarray:
    return x


def _flat(x: np.ndarray) -> np.ndarray:
    return x.reshape(-1)


def _linear(x: np.ndarray) -> np.ndarray:
    """[in, out] -> [out, in]."""
    return x.T


def _from_heads(x: np.ndarray) -> np.ndarray:
    """[heads, head_dim, out] -> [out, heads · head_dim]."""
    return x.reshape(-1, x.shape[-1]).T


def _to_heads_vision(x: np.ndarray) -> np.ndarray:
    """[in, heads, head_dim] -> [heads · head_dim, in]."""
    return x.reshape(x.shape[0], -1).T


def _to_heads(x: np.ndarray) -> np.ndarray:
    """[heads, in, head_dim] -> [heads · head_dim, in]."""
    return x.transpose(0, 2, 1).reshape(-1, x.shape[1])


def _convolution(x: np.ndarray) -> np.ndarray:
    """[height, width, in, out] -> [out, in, height, width]."""
    return x.transpose(3, 2, 0, 1)


def leaves(spec: Pi05Spec) -> dict[str, Leaf]:
    """PyTorch name -> leaf, for every tensor of a π0.5 of these sizes."""
    found = _tower_leaves(spec.vision.depth)
    found[TABLE[0]] = Leaf(LLM + "embedder/input_embedding", (), _same)
    for prefix, suffix in ((TRUNK, ""), (EXPERT, "_1")):
        for i in range(spec.trunk.depth):
            found |= _gemma_leaves(f"{prefix}layers.{i}.", suffix, i)
    norms = {"input_layernorm": "pre_attention_norm", "post_attention_layernorm": "pre_ffw_norm"}
    for i in range(spec.trunk.depth):
        for ours, theirs in norms.items():
            found[f"{TRUNK}layers.{i}.{ours}.weight"] = Leaf(f"{LLM}layers/{theirs}/scale", (i,), _same)
            found |= _dense(f"{EXPERT}layers.{i}.{ours}.dense.", f"{LLM}layers/{theirs}_1/Dense_0/", (i,))
    found[TRUNK + "norm.weight"] = Leaf(LLM + "final_norm/scale", (), _same)
    found |= _dense(EXPERT + "norm.dense.", LLM + "final_norm_1/Dense_0/", ())
    for head in ("action_in_proj", "action_out_proj", "time_mlp_in", "time_mlp_out"):
        found |= _dense(head + ".", head + "/", ())
    return found


def _dense(ours: str, theirs: str, at: tuple[int, ...]) -> dict[str, Leaf]:
    return {ours + "weight": Leaf(theirs + "kernel", at, _linear), ours + "bias": Leaf(theirs + "bias", at, _same)}


def _gemma_leaves(ours: str, suffix: str, i: int) -> dict[str, Leaf]:
    attention, mlp = f"{LLM}layers/attn/", f"{LLM}layers/mlp{suffix}/"

    def einsum(name: str, at: tuple[int, ...], turn: Turn, sums_heads: bool = False) -> Leaf:
        path = f"{attention}{name}{suffix}/"
        return Leaf(path + "w", at, turn, (path + "lora_a", path + "lora_b"), sums_heads)

    def matrix(name: str, at: tuple[int, ...]) -> Leaf:
        return Leaf(mlp + name, at, _linear, (f"{mlp}{name}_lora_a", f"{mlp}{name}_lora_b"))

    return {
        ours + "self_attn.q_proj.weight": einsum("q_einsum", (i,), _to_heads),
        ours + "self_attn.k_proj.weight": einsum("kv_einsum", (i, 0), _to_heads),
        ours + "self_attn.v_proj.weight": einsum("kv_einsum", (i, 1), _to_heads),
        ours + "self_attn.o_proj.weight": einsum("attn_vec_einsum", (i,), _from_heads, sums_heads=True),
        ours + "mlp.gate_proj.weight": matrix("gating_einsum", (i, 0)),
        ours + "mlp.up_proj.weight": matrix("gating_einsum", (i, 1)),
        ours + "mlp.down_proj.weight": matrix("linear", (i,)),
    }


def _tower_leaves(depth: int) -> dict[str, Leaf]:
    found = {
        TOWER + "embeddings.patch_embedding.weight": Leaf(IMG + "embedding/kernel", (), _convolution),
        TOWER + "embeddings.patch_embedding.bias": Leaf(IMG + "embedding/bias", (), _same),
        TOWER + "embeddings.position_embedding.weight": Leaf(IMG + "pos_embedding", (0,), _same),
        TOWER + "post_layernorm.weight": Leaf(IMG + "Transformer/encoder_norm/scale", (), _same),
        TOWER + "post_layernorm.bias": Leaf(IMG + "Transformer/encoder_norm/bias", (), _same),
    } | _dense(PROJECTOR, IMG + "head/", ())
    for i in range(depth):
        layer = f"{TOWER}encoder.layers.{i}."
        for ours, theirs in (("layer_norm1.", "LayerNorm_0/"), ("layer_norm2.", "LayerNorm_1/")):
            found[layer + ours + "weight"] = Leaf(BLOCK + theirs + "scale", (i,), _same)
            found[layer + ours + "bias"] = Leaf(BLOCK + theirs + "bias", (i,), _same)
        for letter, name in (("q", "query"), ("k", "key"), ("v", "value")):
            attention = f"{layer}self_attn.{letter}_proj."
            found[attention + "weight"] = Leaf(f"{ATTENTION}{name}/kernel", (i,), _to_heads_vision)
            found[attention + "bias"] = Leaf(f"{ATTENTION}{name}/bias", (i,), _flat)
        found[layer + "self_attn.out_proj.weight"] = Leaf(ATTENTION + "out/kernel", (i,), _from_heads)
        found[layer + "self_attn.out_proj.bias"] = Leaf(ATTENTION + "out/bias", (i,), _same)
        found |= _dense(layer + "mlp.fc1.", BLOCK + "MlpBlock_0/Dense_0/", (i,))
        found |= _dense(layer + "mlp.fc2.", BLOCK + "MlpBlock_0/Dense_1/", (i,))
    return found


@dataclass(frozen=True)
class TreeAccount:
    """The balance of a tree: paths that lack, that nobody knows, and the LoRA pairs (weight path -> A, B) to merge."""

    missing: tuple[str, ...]
    unknown: tuple[str, ...]
    lora: Mapping[str, tuple[str, str]]

    def problems(self) -> list[str]:
        kinds = (("missing leaves", self.missing), ("unknown leaves", self.unknown))
        return [f"{kind}: {listed(list(found), None)}" for kind, found in kinds if found]


def account_for_tree(tree: Collection[str], spec: Pi05Spec) -> TreeAccount:
    """Balance the paths of a tree against the sizes. A LoRA leaf without its partner counts as unknown."""
    known = leaves(spec).values()
    pairs = {leaf.path: leaf.lora for leaf in known if leaf.lora and all(path in tree for path in leaf.lora)}
    used = {leaf.path for leaf in known} | {path for pair in pairs.values() for path in pair}
    missing = tuple(sorted({leaf.path for leaf in known} - set(tree)))
    return TreeAccount(missing, tuple(sorted(set(tree) - used)), pairs)


def read_placements(checkpoint: Checkpoint, spec: Pi05Spec) -> Iterator[tuple[Placement, np.ndarray]]:
    """Every tensor of the model from an Orbax folder, float32, one leaf of the tree in memory at a time."""
    assert checkpoint.tree is not None and checkpoint.tree_folder is not None
    folder = checkpoint.tree_folder
    return convert(
        checkpoint.tree,
        spec,
        lambda paths: read_tree(folder, paths),
        checkpoint.declared.get("lora_scale"),
        str(folder),
    )


def convert(
    tree: Collection[str],
    spec: Pi05Spec,
    read: Callable[[list[str]], Mapping[str, np.ndarray]],
    lora_scale: float | None = None,
    where: str = "tree",
) -> Iterator[tuple[Placement, np.ndarray]]:
    """The tensors of the tree with these paths, of which `read` gives the arrays.

    Raises CheckpointError naming all leaves that are missing or unknown.
    """
    account = account_for_tree(tree, spec)
    if problems := account.problems():
        raise CheckpointError(f"{where}: {'; '.join(problems)}")
    by_path: dict[str, list[tuple[Placement, Leaf]]] = {}
    by_name = leaves(spec)
    for place in placements(spec):
        leaf = by_name[place.source]
        by_path.setdefault(leaf.path, []).append((place, leaf))
    for path, wanted in by_path.items():
        pair = account.lora.get(path)
        arrays = read([path, *(pair or ())])
        scale = _lora_scale(path, arrays[pair[0]], lora_scale, where) if pair else 0.0
        for place, leaf in wanted:
            weight = arrays[path][leaf.at].astype(np.float32)
            if pair:
                a, b = (arrays[half][leaf.at].astype(np.float32) for half in pair)
                weight += scale * (a @ (b.sum(axis=0) if leaf.sums_heads else b))
            array = np.ascontiguousarray(leaf.turn(weight))
            if array.shape != place.shape:
                raise CheckpointError(
                    f"{where}: {path} {list(arrays[path].shape)} gives {place.source} the shape {list(array.shape)}, "
                    f"expected {list(place.shape)}"
                )
            yield place, array


def _lora_scale(path: str, a: np.ndarray, told: float | None, where: str) -> float:
    if told is not None:
        return float(told)
    rank = a.shape[-1]
    if rank != LORA_RANKS["_1" if "_1/" in path else ""]:
        raise CheckpointError(
            f"{where}: LoRA leaves of rank {rank} beside {path}: no published variant has it, so its alpha is unknown; "
            'give alpha / rank: {"lora_scale": X} in oxygen.json'
        )
    return 1.0
