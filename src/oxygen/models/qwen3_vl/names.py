"""Where every tensor of a Qwen3-VL or StarVLA file goes, as data: the file's names, then our parameters.

The names are those of transformers 4.57; StarVLA puts `qwen_vl_interface.model.` before them and one head beside them.
"""

from __future__ import annotations

from collections.abc import Iterator

from oxygen.checkpoint.placement import Placement
from oxygen.models.heads.spec import MAX_POSITIONS, TIME_WIDTH, Gr00tSpec, HeadSpec, OftSpec, PiSpec
from oxygen.models.qwen3_vl.spec import CHANNELS, FRAMES, Qwen3VLSpec

STARVLA = "qwen_vl_interface.model."
TEXT, VISUAL = "model.language_model.", "model.visual."
TABLE, HEAD = TEXT + "embed_tokens.weight", "lm_head.weight"
ACTION, DIT, PROJECT = "action_model.", "action_model.model.", "project_layers."


def trunk_placements(spec: Qwen3VLSpec) -> Iterator[Placement]:
    """Of the trunk with its image tower, by transformers' names."""
    t, w = spec.trunk, spec.trunk.width
    yield Placement(TABLE, "table", (spec.vocab_size, w))
    yield Placement(TEXT + "norm.weight", "trunk.norm.weight", (w,))
    for i in range(t.depth):
        source, ours = f"{TEXT}layers.{i}.", f"trunk.layers.{i}."
        yield Placement(source + "input_layernorm.weight", ours + "attention_norm.weight", (w,))
        yield Placement(source + "post_attention_layernorm.weight", ours + "mlp_norm.weight", (w,))
        start = 0
        for name, rows in (("q", t.attention_width), ("k", t.kv_width), ("v", t.kv_width)):
            yield Placement(f"{source}self_attn.{name}_proj.weight", ours + "projection.qkv.weight", (rows, w), start)
            start += rows
        for name in ("q_norm", "k_norm"):
            yield Placement(f"{source}self_attn.{name}.weight", f"{ours}projection.{name}.weight", (t.head_dim,))
        yield Placement(source + "self_attn.o_proj.weight", ours + "out.weight", (w, t.attention_width))
        for n, name in enumerate(("gate", "up")):
            shape = (t.mlp_width, w)
            yield Placement(f"{source}mlp.{name}_proj.weight", ours + "mlp.gate_up.weight", shape, n * t.mlp_width)
        yield Placement(source + "mlp.down_proj.weight", ours + "mlp.down.weight", (w, t.mlp_width))
    yield from _vision_placements(spec)


def _vision_placements(spec: Qwen3VLSpec) -> Iterator[Placement]:
    v, w = spec.vision, spec.vision.width
    kernel = (w, CHANNELS, FRAMES, v.patch_size, v.patch_size)
    yield Placement(VISUAL + "patch_embed.proj.weight", "vision.patch.weight", kernel)
    yield Placement(VISUAL + "patch_embed.proj.bias", "vision.patch.bias", (w,))
    yield Placement(VISUAL + "pos_embed.weight", "vision.positions", (v.table_side**2, w))
    for i in range(v.depth):
        source, ours = f"{VISUAL}blocks.{i}.", f"vision.blocks.{i}."
        yield from _norm(source + "norm1", ours + "attention_norm", w)
        yield from _norm(source + "norm2", ours + "mlp_norm", w)
        yield from _linear(source + "attn.qkv", ours + "qkv", w, 3 * w)
        yield from _linear(source + "attn.proj", ours + "out", w, w)
        yield from _linear(source + "mlp.linear_fc1", ours + "mlp.up", w, v.mlp_width)
        yield from _linear(source + "mlp.linear_fc2", ours + "mlp.down", v.mlp_width, w)
    joined = w * v.merge**2
    mergers = [("merger.", "merger.", w)]
    mergers += [(f"deepstack_merger_list.{n}.", f"deep_mergers.{n}.", joined) for n in range(len(v.taps))]
    for source, ours, norm_width in mergers:
        yield from _norm(f"{VISUAL}{source}norm", f"vision.{ours}norm", norm_width)
        yield from _linear(f"{VISUAL}{source}linear_fc1", f"vision.{ours}inner", joined, joined)
        yield from _linear(f"{VISUAL}{source}linear_fc2", f"vision.{ours}out", joined, spec.trunk.width)


def head_placements(head: HeadSpec) -> Iterator[Placement]:
    """Of one head, by StarVLA's names."""
    ours = f"heads.{head.name}."
    if isinstance(head, OftSpec):
        yield from _norm(DIT + "layer_norm1", ours + "in_norm", head.feature_width)
        yield from _linear(DIT + "fc1", ours + "first", head.feature_width, head.width)
        for i in range(head.num_blocks):
            yield from _norm(f"{DIT}mlp_resnet_blocks.{i}.ffn.0", f"{ours}blocks.{i}.norm", head.width)
            yield from _linear(f"{DIT}mlp_resnet_blocks.{i}.ffn.1", f"{ours}blocks.{i}.inner", head.width, head.width)
        yield from _norm(DIT + "layer_norm2", ours + "out_norm", head.width)
        yield from _linear(DIT + "fc2", ours + "last", head.width, head.action_dim)
        return
    w = head.width
    is_gr00t = isinstance(head, Gr00tSpec)
    inner = head.inner_width if isinstance(head, Gr00tSpec) else w
    if isinstance(head, PiSpec) and head.projects:
        for i in range(head.depth):
            yield from _norm(f"{PROJECT}{i}.0", f"{ours}projections.{i}.norm", head.feature_width)
            yield from _linear(f"{PROJECT}{i}.1", f"{ours}projections.{i}.out", head.feature_width, w)
    for i in range(head.depth):
        source, block = f"{DIT}transformer_blocks.{i}.", f"{ours}blocks.{i}."
        kv_width = head.feature_width if is_gr00t and i % 2 == 0 else w
        yield from _linear(source + "norm1.linear", block + "modulation", w, 2 * w)
        yield from _linear(source + "attn1.to_q", block + "q", w, w)
        yield from _linear(source + "attn1.to_k", block + "kv", kv_width, w)
        yield from _linear(source + "attn1.to_v", block + "kv", kv_width, w, start=w)
        yield from _linear(source + "attn1.to_out.0", block + "out", w, w)
        yield from _linear(source + "ff.net.0.proj", block + "mlp.up", w, 4 * w)
        yield from _linear(source + "ff.net.2", block + "mlp.down", 4 * w, w)
    embedder = DIT + "timestep_encoder.timestep_embedder.linear_"
    yield from _linear(embedder + "1", ours + "time.inner", TIME_WIDTH, w)
    yield from _linear(embedder + "2", ours + "time.out", w, w)
    if is_gr00t:
        yield from _linear(DIT + "proj_out_1", ours + "out_modulation", w, 2 * w)
        yield from _linear(DIT + "proj_out_2", ours + "out", w, inner)
    if head.state_dim:
        yield from _linear(ACTION + "state_encoder.layer1", ours + "state_encoder.inner", head.state_dim, inner)
        yield from _linear(ACTION + "state_encoder.layer2", ours + "state_encoder.out", inner, w)
    yield from _linear(ACTION + "action_encoder.layer1", ours + "action_encoder.first", head.action_dim, w)
    yield from _linear(ACTION + "action_encoder.layer2", ours + "action_encoder.mix", 2 * w, w)
    yield from _linear(ACTION + "action_encoder.layer3", ours + "action_encoder.last", w, w)
    yield from _linear(ACTION + "action_decoder.layer1", ours + "decoder.inner", inner, inner)
    yield from _linear(ACTION + "action_decoder.layer2", ours + "decoder.out", inner, head.action_dim)
    yield Placement(ACTION + "future_tokens.weight", ours + "learned", (head.num_learned, w))
    yield Placement(ACTION + "position_embedding.weight", ours + "action_encoder.positions", (MAX_POSITIONS, w))


def known_unused(head: HeadSpec) -> dict[str, str]:
    """Beginnings of names that a StarVLA file of this head holds and that no computation reads, with the reason."""
    unused = {}
    if isinstance(head, PiSpec):
        unused[DIT + "proj_out_"] = "output norm and maps of the head: its decoder reads the last block directly"
    if not isinstance(head, OftSpec) and not head.state_dim:
        unused[ACTION + "state_encoder."] = "state encoder: the head was trained without a state token"
    return unused


def _linear(source: str, ours: str, in_width: int, out_width: int, start: int = 0) -> Iterator[Placement]:
    yield Placement(source + ".weight", ours + ".weight", (out_width, in_width), start)
    yield Placement(source + ".bias", ours + ".bias", (out_width,), start)


def _norm(source: str, ours: str, width: int) -> Iterator[Placement]:
    yield Placement(source + ".weight", ours + ".weight", (width,))
    yield Placement(source + ".bias", ours + ".bias", (width,))
