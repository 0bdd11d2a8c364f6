"""The golden cases of π0.5 and the plainest possible way to run the model on them: storage is a list per layer."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import load_file
from torch import Tensor

from oxygen.layers.torch.attention import masked_attention
from oxygen.layers.torch.rope import neighbour_order
from oxygen.models.pi05.spec import GemmaSpec, Pi05Spec, VisionSpec, flow_dt
from oxygen.models.pi05.torch import Pi05, build

DATA = Path(__file__).parent.parent / "data"
CASES = ("a_b1_all", "b_b1_mask_right", "d_b2_mixed")


def golden_spec() -> Pi05Spec:
    """Sizes of the reference's small model, from the configuration beside its weights."""
    raw = json.loads((DATA / "openpi_torch" / "config.json").read_text())

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


def golden_model(dtype: torch.dtype = torch.float32, *, prepared: bool = True) -> Pi05:
    """The reference's small model; prepared: with weights laid out for inference."""
    model = build(golden_spec(), dtype=dtype, seed=None)
    fill(model, load_file(DATA / "openpi_torch" / "model.safetensors"))
    return model.prepare_for_inference() if prepared else model.eval()


def golden_case(name: str) -> dict[str, Tensor]:
    return load_file(DATA / "goldens_pi05" / f"{name}.safetensors")


@dataclass
class Context:
    """K and V of every layer for one sequence, [N, Hkv, Dh] each; `attend` appends to them, `read` does not."""

    k: list[Tensor] = field(default_factory=list)
    v: list[Tensor] = field(default_factory=list)

    def __len__(self) -> int:
        return len(self.k[0]) if self.k else 0

    def append(self, mask: Tensor | None = None, keep: Tensor | None = None):
        """An `attend` that stores. mask [new, old + new]: what the new tokens see (None: everything)."""

        def attend(layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            if layer == len(self.k):
                self.k.append(k)
                self.v.append(v)
            else:
                self.k[layer] = torch.cat((self.k[layer], k))
                self.v[layer] = torch.cat((self.v[layer], v))
            seen = mask[keep] if mask is not None and keep is not None and len(q) == len(keep) else mask
            return masked_attention(q, self.k[layer], self.v[layer], seen)

        return attend

    def read(self, layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """An `attend` that leaves the context as it is: the new tokens see it and each other."""
        return masked_attention(q, torch.cat((self.k[layer], k)), torch.cat((self.v[layer], v)))


def pixels(images: Tensor) -> Tensor:
    """uint8 [n, S, S, 3] -> float32 [n, 3, S, S] in [-1, 1], rounded as the reference rounds."""
    array = images.numpy().astype(np.float32) / np.float32(255.0) * np.float32(2.0) - np.float32(1.0)
    return torch.from_numpy(array).permute(0, 3, 1, 2).contiguous()


def case_image_embeddings(model: Pi05, case: dict[str, Tensor], sample: int) -> Tensor:
    """[valid cameras, tokens, width] of one sample: from its pictures, or as the reference embedded them."""
    if "image_embeddings" in case:
        first = int(case["camera_mask"][:sample].sum())
        return case["image_embeddings"][first : first + int(case["camera_mask"][sample].sum())].to(model.dtype)
    return model.embed_images(pixels(torch.stack([case[f"image_{i}"] for i in range(3) if f"image_{i}" in case])))


def case_prompt(case: dict[str, Tensor], sample: int) -> Tensor:
    return case["prompt"][sample][case["prompt_mask"][sample]]


def prefill(
    model: Pi05, x: Tensor, *, start: int = 0, context: Context | None = None, mask: Tensor | None = None
) -> tuple[Context, Tensor]:
    """Run the trunk over x [N, width] at positions from `start`, on top of `context` if there is one."""
    context = context or Context()
    hidden = model.trunk(x, model.rope(torch.arange(start, start + len(x))), context.append(mask))
    return context, hidden


def prefix(model: Pi05, case: dict[str, Tensor], sample: int) -> Tensor:
    """The valid prefix, [N, width]: nothing masked is in it."""
    images = case_image_embeddings(model, case, sample).flatten(0, 1)
    return torch.cat((images, model.embed_tokens(case_prompt(case, sample))))


def flow(model: Pi05, context: Context, noise: Tensor, num_steps: int) -> list[Tensor]:
    """x before each step and at the end, each [1, H, A]."""
    rope = model.rope(len(context) + torch.arange(model.spec.horizon))
    conditions = model.conditions(num_steps)
    trace = [noise]
    for step in range(num_steps):
        v = model.velocity(trace[-1], conditions, step, rope, context.read)
        trace.append(trace[-1] + flow_dt(num_steps) * v)
    return trace


def half_split_keys(model: Pi05, context: Context) -> list[Tensor]:
    """The keys of each layer, [N, Dh], in the reference's order of a head's elements."""
    keys = [k[:, 0] for k in context.k]
    if not model.is_prepared:
        return keys
    back = torch.argsort(neighbour_order(model.spec.trunk.head_dim))
    return [k[:, back] for k in keys]


def decode(model: Pi05, context: Context, hidden: Tensor, count: int) -> tuple[list[int], Tensor]:
    """Greedy tokens from the last hidden state [width]; all of them end up in the context. Also their logits."""
    tokens, logits = [], []
    for _ in range(count):
        logits.append(model.logits(hidden[None])[0])
        tokens.append(int(logits[-1].argmax()))
        x = model.embed_tokens(torch.tensor(tokens[-1:]))
        _, hidden_all = prefill(model, x, start=len(context), context=context)
        hidden = hidden_all[-1]
    return tokens, torch.stack(logits)


def fill(model: Pi05, tensors: dict[str, Tensor]) -> None:
    state = {}
    pg, ge = "paligemma_with_expert.paligemma.", "paligemma_with_expert.gemma_expert.model."
    vt = pg + "model.vision_tower.vision_model."
    get = tensors.__getitem__

    def gemma(ours: str, theirs: str, depth: int) -> None:
        for i in range(depth):
            a, b = f"{ours}.layers.{i}.", f"{theirs}layers.{i}."
            state[a + "projection.qkv.weight"] = torch.cat([get(f"{b}self_attn.{n}_proj.weight") for n in "qkv"])
            state[a + "out.weight"] = get(b + "self_attn.o_proj.weight")
            state[a + "mlp.gate_up.weight"] = torch.cat([get(f"{b}mlp.{n}_proj.weight") for n in ("gate", "up")])
            state[a + "mlp.down.weight"] = get(b + "mlp.down_proj.weight")

    s = model.spec
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
    model.load_state_dict(state)
