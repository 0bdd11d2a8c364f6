"""openpi's JAX parameter tree made from PyTorch tensors: the specification's table read the other way round."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from checkpoint.folders import P, Tensors

HEADS, HEAD_DIM, VISION_HEADS = 8, 16, 4
V, G, X = (
    P + "model.vision_tower.vision_model.",
    P + "model.language_model.",
    "paligemma_with_expert.gemma_expert.model.",
)
Tree = dict[str, Any]


def stack(count: int, of_layer: Callable[[int], np.ndarray]) -> np.ndarray:
    return np.stack([of_layer(i) for i in range(count)])


def jax_tree(t: Tensors, depth: int = 4, vision_depth: int = 2) -> Tree:
    """The tree below `params`, arrays as leaves."""
    layers: Tree = {"attn": {}}
    for prefix, suffix in ((G, ""), (X, "_1")):
        layers |= _gemma(t, prefix, suffix, layers["attn"], depth)
    for name, source in (("pre_attention_norm", "input_layernorm"), ("pre_ffw_norm", "post_attention_layernorm")):
        layers[name] = {"scale": stack(depth, lambda i, s=source: t[f"{G}layers.{i}.{s}.weight"])}
        layers[name + "_1"] = {
            "Dense_0": {
                "kernel": stack(depth, lambda i, s=source: t[f"{X}layers.{i}.{s}.dense.weight"].T),
                "bias": stack(depth, lambda i, s=source: t[f"{X}layers.{i}.{s}.dense.bias"]),
            }
        }
    llm = {
        "embedder": {"input_embedding": t[P + "lm_head.weight"]},
        "layers": layers,
        "final_norm": {"scale": t[G + "norm.weight"]},
        "final_norm_1": {"Dense_0": {"kernel": t[X + "norm.dense.weight"].T, "bias": t[X + "norm.dense.bias"]}},
    }
    heads = ("action_in_proj", "action_out_proj", "time_mlp_in", "time_mlp_out")
    small = {head: {"kernel": t[head + ".weight"].T, "bias": t[head + ".bias"]} for head in heads}
    return {"PaliGemma": {"img": _tower(t, vision_depth), "llm": llm}} | small


def _gemma(t: Tensors, prefix: str, suffix: str, attention: Tree, depth: int) -> Tree:
    def weight(i: int, name: str) -> np.ndarray:
        return t[f"{prefix}layers.{i}.{name}.weight"]

    def heads(i: int, letter: str, count: int) -> np.ndarray:
        rows = weight(i, f"self_attn.{letter}_proj")
        return np.stack([rows[h * HEAD_DIM : (h + 1) * HEAD_DIM].T for h in range(count)])

    def out(i: int) -> np.ndarray:
        columns = weight(i, "self_attn.o_proj")
        return np.stack([columns[:, h * HEAD_DIM : (h + 1) * HEAD_DIM].T for h in range(HEADS)])

    attention["q_einsum" + suffix] = {"w": stack(depth, lambda i: heads(i, "q", HEADS))}
    attention["kv_einsum" + suffix] = {"w": stack(depth, lambda i: np.stack([heads(i, "k", 1), heads(i, "v", 1)]))}
    attention["attn_vec_einsum" + suffix] = {"w": stack(depth, out)}
    gating = stack(depth, lambda i: np.stack([weight(i, "mlp.gate_proj").T, weight(i, "mlp.up_proj").T]))
    linear = stack(depth, lambda i: weight(i, "mlp.down_proj").T)
    return {"mlp" + suffix: {"gating_einsum": gating, "linear": linear}}


def _tower(t: Tensors, depth: int) -> Tree:
    def layer(i: int, name: str) -> np.ndarray:
        return t[f"{V}encoder.layers.{i}.{name}"]

    def split(array: np.ndarray) -> np.ndarray:
        return array.reshape(*array.shape[:-1], VISION_HEADS, -1)

    attention: Tree = {}
    for name, letter in (("query", "q"), ("key", "k"), ("value", "v")):
        attention[name] = {
            "kernel": stack(depth, lambda i, c=letter: split(layer(i, f"self_attn.{c}_proj.weight").T)),
            "bias": stack(depth, lambda i, c=letter: split(layer(i, f"self_attn.{c}_proj.bias"))),
        }
    attention["out"] = {
        "kernel": stack(depth, lambda i: split(layer(i, "self_attn.out_proj.weight")).transpose(1, 2, 0)),
        "bias": stack(depth, lambda i: layer(i, "self_attn.out_proj.bias")),
    }
    block: Tree = {"MultiHeadDotProductAttention_0": attention, "MlpBlock_0": {}}
    for k in (0, 1):
        block["MlpBlock_0"][f"Dense_{k}"] = {
            "kernel": stack(depth, lambda i, k=k: layer(i, f"mlp.fc{k + 1}.weight").T),
            "bias": stack(depth, lambda i, k=k: layer(i, f"mlp.fc{k + 1}.bias")),
        }
        block[f"LayerNorm_{k}"] = {
            "scale": stack(depth, lambda i, k=k: layer(i, f"layer_norm{k + 1}.weight")),
            "bias": stack(depth, lambda i, k=k: layer(i, f"layer_norm{k + 1}.bias")),
        }
    projector = P + "model.multi_modal_projector.linear."
    return {
        "embedding": {
            "kernel": t[V + "embeddings.patch_embedding.weight"].transpose(2, 3, 1, 0),
            "bias": t[V + "embeddings.patch_embedding.bias"],
        },
        "pos_embedding": t[V + "embeddings.position_embedding.weight"][None],
        "Transformer": {
            "encoderblock": block,
            "encoder_norm": {"scale": t[V + "post_layernorm.weight"], "bias": t[V + "post_layernorm.bias"]},
        },
        "head": {"kernel": t[projector + "weight"].T, "bias": t[projector + "bias"]},
    }


def flat(tree: Tree, path: str = "") -> dict[str, np.ndarray]:
    """Slash-separated path -> array."""
    found: dict[str, np.ndarray] = {}
    for key, value in tree.items():
        found |= flat(value, f"{path}{key}/") if isinstance(value, dict) else {path + key: value}
    return found


def nested(leaves: dict[str, np.ndarray], *end: str) -> Tree:
    """The inverse of `flat`; `end`: keys put after every path, as openpi's training does with `value`."""
    tree: Tree = {}
    for path, array in leaves.items():
        *outer, last = (*path.split("/"), *end)
        inner = tree
        for key in outer:
            inner = inner.setdefault(key, {})
        inner[last] = np.ascontiguousarray(array)
    return tree
