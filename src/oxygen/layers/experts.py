"""What an action expert declares about itself, as plain data that is checked when a model is put together."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from oxygen.core.errors import CheckpointError

Stage = Literal["residual", "normed"]


@dataclass(frozen=True, slots=True)
class Tap:
    """Hidden states at one place of the trunk, all tokens.

    stage `residual`: after layer `layer` and after whatever the trunk adds there (DeepStack). `normed`: after the final
    norm; `layer` is then the last one. The meaning is ours and does not change with any library.
    """

    layer: int
    stage: Stage = "residual"


@dataclass(frozen=True, slots=True)
class Reads:
    """What an expert reads of a context. kv: K and V of every layer, where they lie. hidden: taps of `width` numbers.

    token_id and num_tokens: of the hidden states, only those at the last `num_tokens` occurrences of this token.
    """

    kv: bool = False
    hidden: tuple[Tap, ...] = ()
    width: int = 0
    token_id: int | None = None
    num_tokens: int = 0


@dataclass(frozen=True, slots=True)
class ExpertShape:
    """One action expert. kind `flow`: num_steps Euler steps, x ← x + direction / num_steps · velocity. `one_shot`: a
    single prediction. direction is -1 where time runs from 1 (noise) to 0, +1 where it runs from 0 (noise) to 1.
    state_dim: numbers of the robot's state that it takes besides the context.
    """

    name: str
    kind: Literal["flow", "one_shot"]
    horizon: int
    action_dim: int
    num_steps: int
    direction: int
    reads: Reads
    state_dim: int = 0


def check_reads(shape: ExpertShape, depth: int, width: int, vocab_size: int) -> None:
    """Refuse an expert that reads what a trunk of these sizes does not have. Raises CheckpointError."""
    reads, where = shape.reads, f"expert {shape.name}"
    for tap in reads.hidden:
        if not 0 <= tap.layer < depth:
            raise CheckpointError(f"{where}: reads layer {tap.layer} of a trunk with {depth} layers")
        if tap.stage == "normed" and tap.layer != depth - 1:
            raise CheckpointError(f"{where}: layer {tap.layer} has no final norm, only layer {depth - 1} has")
    if reads.hidden and reads.width != width:
        raise CheckpointError(f"{where}: reads hidden states of width {reads.width}, the trunk's have {width}")
    if reads.token_id is not None and not 0 <= reads.token_id < vocab_size:
        raise CheckpointError(f"{where}: reads at token {reads.token_id} of a vocabulary of {vocab_size}")
    if not (reads.kv or reads.hidden):
        raise CheckpointError(f"{where}: reads nothing of the context")
