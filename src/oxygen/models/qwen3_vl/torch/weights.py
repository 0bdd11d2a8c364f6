"""Weights of Qwen3-VL folders and StarVLA state dictionaries into a model, strictly, with heads of further folders."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from oxygen.checkpoint.folder import Checkpoint
from oxygen.checkpoint.headers import names as listed
from oxygen.checkpoint.placement import Placement
from oxygen.checkpoint.torch import TensorReader, is_finite
from oxygen.checkpoint.values import same_values
from oxygen.core.errors import CheckpointError
from oxygen.models.qwen3_vl.names import ACTION, PROJECT, TABLE
from oxygen.models.qwen3_vl.opening import Qwen3VLFolder, read_qwen3_vl
from oxygen.models.qwen3_vl.torch.model import Qwen3VL, build

log = logging.getLogger("oxygen.checkpoint")


@torch.no_grad()
def load_qwen3_vl(
    folder: Qwen3VLFolder | Checkpoint | str | Path,
    device: torch.device | str = "cpu",
    dtype: torch.dtype = torch.float32,
    *,
    overrides: Mapping[str, Any] | None = None,
    heads_from: Sequence[str | Path] = (),
    is_trunk_trusted: bool = False,
) -> Qwen3VL:
    """The trunk of a folder with its head, if it has one, and with the heads of further StarVLA folders.

    A head works on the very trunk that it was trained with and says nothing on another; so a further folder whose trunk
    differs is refused unless `is_trunk_trusted`. Raises CheckpointError naming every tensor that is missing,
    unknown, of a wrong shape or not finite.
    """
    first = folder if isinstance(folder, Qwen3VLFolder) else read_qwen3_vl(folder, overrides=overrides)
    lent = [read_qwen3_vl(other) for other in heads_from]
    others = [*first.further, *lent]
    for opened in (first, *others):
        opened.balance.check(opened.where)
        _check_ties(opened)
    if others and not is_trunk_trusted:
        print_of = first.trunk_fingerprint()
        if foreign := [o.where for o in others if o.trunk_fingerprint() != print_of]:
            raise CheckpointError(f"{foreign[0]}: its head was trained on another trunk than that of {first.where}")
    spec = replace(first.spec, heads=tuple(head for opened in (first, *lent) for head in opened.spec.heads))
    model = build(spec, device, dtype, seed=None)
    parameters = dict(model.named_parameters())
    _fill(parameters, first, first.balance.placed)
    for opened in others:
        _fill(
            parameters,
            opened,
            {p: n for p, n in opened.balance.placed.items() if p.source.startswith((ACTION, PROJECT))},
        )
    log.info("%s: %d tensors, heads %s", first.where, len(first.balance.placed), [head.name for head in spec.heads])
    return model


def _check_ties(opened: Qwen3VLFolder) -> None:
    """The head of the text is the token table; a file that has both must have them equal."""
    index = opened.checkpoint.tensors
    assert index is not None
    table = next(name for place, name in opened.balance.placed.items() if place.source == TABLE)
    for other in opened.balance.tied:
        if not same_values(index[table], index[other]):
            raise CheckpointError(f"{opened.where}: tied tensors differ: {listed([table, other])}")


def _fill(parameters: Mapping[str, Any], opened: Qwen3VLFolder, placed: Mapping[Placement, str]) -> None:
    index, broken = opened.checkpoint.tensors, []
    assert index is not None
    with TensorReader(index) as reader:
        for place, name in placed.items():
            rows = parameters[place.parameter].detach()[place.start : place.start + place.shape[0]]
            reader.read_into(name, rows.view(place.shape))
            if not is_finite(rows):
                broken.append(name)
    if broken:
        raise CheckpointError(f"{opened.where}: weights that are NaN or infinite: {listed(broken)}")
