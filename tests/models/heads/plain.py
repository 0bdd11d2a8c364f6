"""StarVLA's heads once more, written straight from their description: one item, no reuse between steps, no fusing.

Weights go by StarVLA's names. Features are [n, feature_width] of the whole prompt.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from oxygen.models.heads.spec import Gr00tSpec, HeadSpec, OftSpec, PiSpec
from oxygen.models.qwen3_vl.names import head_placements

Weights = Mapping[str, Tensor]
DIT = "action_model.model."


def starvla_weights(head: nn.Module, spec: HeadSpec) -> dict[str, Tensor]:
    """A head's parameters under StarVLA's names. Call it before the head is prepared for inference."""
    parameters = dict(head.named_parameters())
    own = f"heads.{spec.name}."
    return {
        p.source: parameters[p.parameter.removeprefix(own)].detach()[p.start : p.start + p.shape[0]].clone()
        for p in head_placements(spec)
    }


def linear(w: Weights, name: str, x: Tensor) -> Tensor:
    return x @ w[name + ".weight"].T + w[name + ".bias"]


def normed(x: Tensor, eps: float = 1e-5) -> Tensor:
    return (x - x.mean(-1, keepdim=True)) / (x.var(-1, keepdim=True, unbiased=False) + eps).sqrt()


def layer_norm(w: Weights, name: str, x: Tensor) -> Tensor:
    return normed(x) * w[name + ".weight"] + w[name + ".bias"]


def attention(w: Weights, name: str, x: Tensor, keys: Tensor, num_heads: int) -> Tensor:
    q, k, v = linear(w, name + "to_q", x), linear(w, name + "to_k", keys), linear(w, name + "to_v", keys)
    size = q.shape[1] // num_heads
    heads = []
    for h in range(num_heads):
        cut = slice(h * size, (h + 1) * size)
        weights = torch.softmax(q[:, cut] @ k[:, cut].T / math.sqrt(size), dim=-1)
        heads.append(weights @ v[:, cut])
    return linear(w, name + "to_out.0", torch.cat(heads, dim=1))


def block(w: Weights, i: int, x: Tensor, time: Tensor, keys: Tensor | None, num_heads: int) -> Tensor:
    name = f"{DIT}transformer_blocks.{i}."
    scale, shift = linear(w, name + "norm1.linear", F.silu(time)).chunk(2)
    h = normed(x) * (1 + scale) + shift
    x = x + attention(w, name + "attn1.", h, h if keys is None else keys, num_heads)
    h = F.gelu(linear(w, name + "ff.net.0.proj", normed(x)), approximate="tanh")
    return x + linear(w, name + "ff.net.2", h)


def time_vector(w: Weights, bucket: int) -> Tensor:
    angles = bucket * torch.exp(-math.log(10_000) * torch.arange(128, dtype=torch.float32) / 127)
    wave = torch.cat((angles.cos(), angles.sin()))
    name = DIT + "timestep_encoder.timestep_embedder.linear_"
    return linear(w, name + "2", F.silu(linear(w, name + "1", wave)))


def action_tokens(w: Weights, x_t: Tensor, bucket: int) -> Tensor:
    name = "action_model.action_encoder.layer"
    a = linear(w, name + "1", x_t)
    half = a.shape[1] // 2
    angles = bucket * torch.exp(-torch.arange(half, dtype=torch.float32) * (math.log(10_000) / half))
    wave = torch.cat((angles.sin(), angles.cos())).expand(len(a), -1)
    h = linear(w, name + "3", F.silu(linear(w, name + "2", torch.cat((a, wave), dim=1))))
    return h + w["action_model.position_embedding.weight"][: len(h)]


def two_layers(w: Weights, name: str, x: Tensor) -> Tensor:
    return linear(w, name + ".layer2", F.relu(linear(w, name + ".layer1", x)))


def all_tokens(w: Weights, x_t: Tensor, bucket: int, state: Tensor | None) -> Tensor:
    """State, learned tokens, actions; nothing is left out."""
    lead = [] if state is None else [two_layers(w, "action_model.state_encoder", state[None])]
    return torch.cat((*lead, w["action_model.future_tokens.weight"], action_tokens(w, x_t, bucket)))


def pi_velocity(
    w: Weights, spec: PiSpec, features: Sequence[Tensor], state: Tensor | None, x_t: Tensor, bucket: int
) -> Tensor:
    if spec.projects:
        features = [
            linear(w, f"project_layers.{i}.1", layer_norm(w, f"project_layers.{i}.0", f))
            for i, f in enumerate(features)
        ]
    x, time = all_tokens(w, x_t, bucket, state), time_vector(w, bucket)
    for i, keys in enumerate(features):
        looks_inside = spec.topology == "interleaved" and i % 2 == 1
        x = block(w, i, x, time, None if looks_inside else keys, spec.num_heads)
    return two_layers(w, "action_model.action_decoder", x)[-len(x_t) :]


def gr00t_velocity(
    w: Weights, spec: Gr00tSpec, features: Tensor, state: Tensor | None, x_t: Tensor, bucket: int
) -> Tensor:
    x, time = all_tokens(w, x_t, bucket, state), time_vector(w, bucket)
    for i in range(spec.depth):
        x = block(w, i, x, time, None if i % 2 else features, spec.num_heads)
    shift, scale = linear(w, DIT + "proj_out_1", F.silu(time)).chunk(2)
    x = linear(w, DIT + "proj_out_2", normed(x, 1e-6) * (1 + scale) + shift)
    return two_layers(w, "action_model.action_decoder", x)[-len(x_t) :]


def oft_actions(w: Weights, spec: OftSpec, features: Tensor, token_ids: Sequence[int]) -> Tensor:
    at = [i for i, token in enumerate(token_ids) if token == spec.token_id][-spec.horizon :]
    x = F.relu(linear(w, DIT + "fc1", layer_norm(w, DIT + "layer_norm1", features[at])))
    for i in range(spec.num_blocks):
        name = f"{DIT}mlp_resnet_blocks.{i}.ffn."
        x = x + F.relu(linear(w, name + "1", layer_norm(w, name + "0", x)))
    return linear(w, DIT + "fc2", layer_norm(w, DIT + "layer_norm2", x))


def actions(
    w: Weights,
    spec: HeadSpec,
    residuals: Sequence[Tensor],
    token_ids: Sequence[int],
    state: np.ndarray | None,
    noise: np.ndarray,
    num_steps: int,
) -> Tensor:
    """A whole chunk, [H, A]. residuals: outputs of all trunk layers on the whole prompt."""
    if isinstance(spec, OftSpec):
        return oft_actions(w, spec, residuals[-1], token_ids)
    x = torch.from_numpy(noise.copy())
    given = torch.from_numpy(state) if spec.state_dim and state is not None else None
    for step in range(num_steps):
        bucket = int(step / num_steps * 1000)
        if isinstance(spec, PiSpec):
            x = x + pi_velocity(w, spec, residuals, given, x, bucket) / num_steps
        else:
            x = x + gr00t_velocity(w, spec, residuals[-1], given, x, bucket) / num_steps
    return x
