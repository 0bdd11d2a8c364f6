"""The golden openpi folder, read by hand: its sizes and its parameters, without the code under test."""

from __future__ import annotations

import json

import torch
from checkpoint.folders import OPENPI
from safetensors.torch import load_file
from torch import Tensor

from oxygen.models.pi05.spec import GemmaSpec, Pi05Spec, VisionSpec


def golden_spec() -> Pi05Spec:
    """Sizes of the reference's small model, from the configuration beside its weights."""
    raw = json.loads((OPENPI / "config.json").read_text())

    def gemma(part: dict) -> GemmaSpec:
        part = dict(part)
        return GemmaSpec(mlp_width=part.pop("mlp_dim"), **part)

    vision = raw["vision"]
    return Pi05Spec(
        trunk=gemma(raw["trunk"]),
        expert=gemma(raw["expert"]),
        vision=VisionSpec(
            width=vision["hidden_size"],
            depth=vision["num_hidden_layers"],
            mlp_width=vision["intermediate_size"],
            num_heads=vision["num_attention_heads"],
            patch_size=vision["patch_size"],
            image_size=vision["image_size"],
        ),
        vocab_size=raw["vocab_size"],
        action_dim=raw["action_dim"],
        horizon=raw["action_horizon"],
        max_token_len=raw["max_token_len"],
    )


def golden_state() -> dict[str, Tensor]:
    """Our parameters, assembled from the file by hand: what the loader must come to by its table."""
    state: dict[str, Tensor] = {}
    get = load_file(OPENPI / "model.safetensors").__getitem__
    pg, ge = "paligemma_with_expert.paligemma.", "paligemma_with_expert.gemma_expert.model."
    vt = pg + "model.vision_tower.vision_model."

    def gemma(ours: str, theirs: str, depth: int) -> None:
        for i in range(depth):
            a, b = f"{ours}.layers.{i}.", f"{theirs}layers.{i}."
            state[a + "projection.qkv.weight"] = torch.cat([get(f"{b}self_attn.{n}_proj.weight") for n in "qkv"])
            state[a + "out.weight"] = get(b + "self_attn.o_proj.weight")
            state[a + "mlp.gate_up.weight"] = torch.cat([get(f"{b}mlp.{n}_proj.weight") for n in ("gate", "up")])
            state[a + "mlp.down.weight"] = get(b + "mlp.down_proj.weight")

    s = golden_spec()
    gemma("trunk", pg + "model.language_model.", s.trunk.depth)
    gemma("expert", ge, s.expert.depth)
    state["trunk.norm.weight"] = get(pg + "model.language_model.norm.weight")
    for i in range(s.trunk.depth):
        b = f"{pg}model.language_model.layers.{i}."
        state[f"trunk.layers.{i}.attention_norm.weight"] = get(b + "input_layernorm.weight")
        state[f"trunk.layers.{i}.mlp_norm.weight"] = get(b + "post_attention_layernorm.weight")
    norms = [
        f"{ge}layers.{i}.{n}.dense."
        for i in range(s.expert.depth)
        for n in ("input_layernorm", "post_attention_layernorm")
    ]
    for leaf in ("weight", "bias"):
        state["time.modulation." + leaf] = torch.cat([get(n + leaf) for n in (*norms, ge + "norm.dense.")])
        state["time.time_in." + leaf] = get("time_mlp_in." + leaf)
        state["time.time_out." + leaf] = get("time_mlp_out." + leaf)
        state["action_in." + leaf] = get("action_in_proj." + leaf)
        state["action_out." + leaf] = get("action_out_proj." + leaf)
        state["vision.stem.convolutions.0." + leaf] = get(vt + "embeddings.patch_embedding." + leaf)
        state["vision.norm." + leaf] = get(vt + "post_layernorm." + leaf)
        state["vision.projector." + leaf] = get(pg + "model.multi_modal_projector.linear." + leaf)
        for i in range(s.vision.depth):
            a, b = f"vision.blocks.{i}.", f"{vt}encoder.layers.{i}."
            state[a + "attention_norm." + leaf] = get(b + "layer_norm1." + leaf)
            state[a + "mlp_norm." + leaf] = get(b + "layer_norm2." + leaf)
            state[a + "qkv." + leaf] = torch.cat([get(f"{b}self_attn.{n}_proj.{leaf}") for n in "qkv"])
            state[a + "out." + leaf] = get(b + "self_attn.out_proj." + leaf)
            state[a + "mlp.up." + leaf] = get(b + "mlp.fc1." + leaf)
            state[a + "mlp.down." + leaf] = get(b + "mlp.fc2." + leaf)
    state["vision.positions"] = get(vt + "embeddings.position_embedding.weight")
    state["table"] = get(pg + "lm_head.weight")
    return state
