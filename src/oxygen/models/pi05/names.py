"""Where every tensor of a π0.5 file goes, as data: openpi's names on the left, rows of our parameters on the right.

Fused parameters are rows of several tensors, one under the other, so one rule covers all: a tensor fills the rows from
`start` of one parameter. Our own folders use the same names, so openpi and LeRobot can read them too.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from oxygen.checkpoint.headers import names as listed
from oxygen.checkpoint.placement import Placement
from oxygen.core.errors import CheckpointError
from oxygen.models.pi05.spec import Pi05Spec

WRAPPERS = ("_orig_mod.", "module.", "base_model.model.", "model.")
"""What training frameworks put in front of every name: torch.compile, data parallel, PEFT, LeRobot's policy."""

RESPELLED = (
    (re.compile(r"\.base_layer\.(weight|bias)$"), r".\1"),  # PEFT moves the frozen weight there
    (re.compile(r"\.vision_tower\.(?!vision_model\.)"), ".vision_tower.vision_model."),  # transformers 5 and later
    (re.compile(r"^action_time_mlp_"), "time_mlp_"),  # early LeRobot
)
"""Other spellings of a name, by the version of the library that wrote it."""

PALIGEMMA = "paligemma_with_expert.paligemma."
TOWER = PALIGEMMA + "model.vision_tower.vision_model."
PROJECTOR = PALIGEMMA + "model.multi_modal_projector.linear."
TRUNK = PALIGEMMA + "model.language_model."
EXPERT = "paligemma_with_expert.gemma_expert.model."

TABLE = (PALIGEMMA + "lm_head.weight", TRUNK + "embed_tokens.weight", PALIGEMMA + "model.lm_head.weight")
"""Names of the token table, which is the text head too. A file may hold any of them; several must be equal."""

KNOWN_UNUSED = {
    "paligemma_with_expert.gemma_expert.lm_head.weight": "text head of the action expert: never trained, never read",
    EXPERT + "embed_tokens.weight": "token table of the action expert: it reads actions, not tokens",
}
"""Tensors that released files hold and that no computation of π0.5 reads."""


def canonical(name: str) -> str:
    """A name as openpi's PyTorch code writes it, without wrappers and later or earlier spellings."""
    stripped = True
    while stripped:
        stripped = False
        for wrapper in WRAPPERS:
            if name.startswith(wrapper):
                name, stripped = name.removeprefix(wrapper), True
    for pattern, spelling in RESPELLED:
        name = pattern.sub(spelling, name)
    return name


def canonical_names(found: Iterable[str], where: str) -> dict[str, str]:
    """Canonical name -> name in the file. Two names for one tensor raise CheckpointError."""
    names: dict[str, str] = {}
    for name in found:
        short = canonical(name)
        if short in names:
            raise CheckpointError(f"{where}: two tensors for one place: {listed([name, names[short]])}")
        names[short] = name
    return names


def placements(spec: Pi05Spec) -> list[Placement]:
    """Every tensor that a π0.5 of these sizes needs. The token table goes by its first name, TABLE[0]."""
    t, e = spec.trunk, spec.expert
    table = Placement(TABLE[0], "table", (spec.vocab_size, t.width))
    placed = [*_tower(spec), table]
    for i in range(t.depth):
        placed += _gemma_layer(spec, f"{TRUNK}layers.{i}.", f"trunk.layers.{i}.", "trunk")
        placed.append(
            Placement(
                f"{TRUNK}layers.{i}.input_layernorm.weight", f"trunk.layers.{i}.attention_norm.weight", (t.width,)
            )
        )
        placed.append(
            Placement(
                f"{TRUNK}layers.{i}.post_attention_layernorm.weight", f"trunk.layers.{i}.mlp_norm.weight", (t.width,)
            )
        )
    placed.append(Placement(TRUNK + "norm.weight", "trunk.norm.weight", (t.width,)))
    norms = []
    for i in range(e.depth):
        placed += _gemma_layer(spec, f"{EXPERT}layers.{i}.", f"expert.layers.{i}.", "expert")
        norms += [f"{EXPERT}layers.{i}.input_layernorm.", f"{EXPERT}layers.{i}.post_attention_layernorm."]
    norms.append(EXPERT + "norm.")
    for i, norm in enumerate(norms):
        placed += _linear(norm + "dense.", "time.modulation.", 3 * e.width, e.width, i * 3 * e.width)
    placed += _linear("time_mlp_in.", "time.time_in.", e.width, e.width)
    placed += _linear("time_mlp_out.", "time.time_out.", e.width, e.width)
    placed += _linear("action_in_proj.", "action_in.", e.width, spec.action_dim)
    placed += _linear("action_out_proj.", "action_out.", spec.action_dim, e.width)
    return placed


def _linear(source: str, target: str, rows: int, columns: int, start: int = 0) -> list[Placement]:
    """A map with bias, `rows` outputs."""
    return [
        Placement(source + "weight", target + "weight", (rows, columns), start),
        Placement(source + "bias", target + "bias", (rows,), start),
    ]


def _gemma_layer(spec: Pi05Spec, source: str, target: str, part: str) -> list[Placement]:
    """The seven maps of one Gemma layer; none has a bias."""
    g = spec.trunk if part == "trunk" else spec.expert
    q, kv, w, m = g.attention_width, g.kv_width, g.width, g.mlp_width
    return [
        Placement(source + "self_attn.q_proj.weight", target + "projection.qkv.weight", (q, w)),
        Placement(source + "self_attn.k_proj.weight", target + "projection.qkv.weight", (kv, w), q),
        Placement(source + "self_attn.v_proj.weight", target + "projection.qkv.weight", (kv, w), q + kv),
        Placement(source + "self_attn.o_proj.weight", target + "out.weight", (w, q)),
        Placement(source + "mlp.gate_proj.weight", target + "mlp.gate_up.weight", (m, w)),
        Placement(source + "mlp.up_proj.weight", target + "mlp.gate_up.weight", (m, w), m),
        Placement(source + "mlp.down_proj.weight", target + "mlp.down.weight", (w, m)),
    ]


def _tower(spec: Pi05Spec) -> list[Placement]:
    v = spec.vision
    placed: list[Placement] = []
    channels = v.stem_channels()
    kernel = v.patch_size if v.stem == "patch" else 3
    for i in range(len(channels) - 1):
        # The convolutional stem is our own; openpi's tower has one convolution, called patch_embedding.
        source = TOWER + ("embeddings.patch_embedding." if v.stem == "patch" else f"embeddings.stem.{i}.")
        target = f"vision.stem.convolutions.{i}."
        placed.append(Placement(source + "weight", target + "weight", (channels[i + 1], channels[i], kernel, kernel)))
        placed.append(Placement(source + "bias", target + "bias", (channels[i + 1],)))
    placed.append(
        Placement(TOWER + "embeddings.position_embedding.weight", "vision.positions", (v.tokens_per_image, v.width))
    )
    for i in range(v.depth):
        placed += _tower_block(spec, f"{TOWER}encoder.layers.{i}.", f"vision.blocks.{i}.")
    placed += _layer_norm(TOWER + "post_layernorm.", "vision.norm.", v.width)
    return placed + _linear(PROJECTOR, "vision.projector.", spec.trunk.width, v.width)


def _tower_block(spec: Pi05Spec, source: str, target: str) -> list[Placement]:
    w, m = spec.vision.width, spec.vision.mlp_width
    placed = _layer_norm(source + "layer_norm1.", target + "attention_norm.", w)
    placed += _layer_norm(source + "layer_norm2.", target + "mlp_norm.", w)
    for i, letter in enumerate("qkv"):
        placed += _linear(f"{source}self_attn.{letter}_proj.", target + "qkv.", w, w, i * w)
    placed += _linear(source + "self_attn.out_proj.", target + "out.", w, w)
    placed += _linear(source + "mlp.fc1.", target + "mlp.up.", m, w)
    return placed + _linear(source + "mlp.fc2.", target + "mlp.down.", w, m)


def _layer_norm(source: str, target: str, width: int) -> list[Placement]:
    return [Placement(source + leaf, target + leaf, (width,)) for leaf in ("weight", "bias")]
