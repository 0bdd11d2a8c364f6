"""Weights of a π0.5 in and out of checkpoint folders, strictly: see `accounting` for what strict means.

Types: the model decides. A float32 model takes any stored float type exactly (bfloat16 and float16 widen without loss);
in a bfloat16 model the large maps are rounded to bfloat16 while norms, modulation and the small heads stay float32.
"""

from __future__ import annotations

import logging
import shutil
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from oxygen.checkpoint.folder import CONFIG_FILE, FORMAT_VERSION, OXYGEN, Checkpoint
from oxygen.checkpoint.headers import names as listed
from oxygen.checkpoint.index import TensorIndex
from oxygen.checkpoint.jsonfile import write_json
from oxygen.checkpoint.torch import TensorReader, is_finite, save_tensors
from oxygen.checkpoint.values import same_values
from oxygen.core.errors import CheckpointError
from oxygen.models.pi05.accounting import Account, Adapter, account_for
from oxygen.models.pi05.names import Placement, placements
from oxygen.models.pi05.opening import Pi05Folder, read_pi05
from oxygen.models.pi05.orbax import read_placements
from oxygen.models.pi05.torch.model import Pi05, build
from oxygen.processing.statistics import Statistics, write_statistics

log = logging.getLogger("oxygen.checkpoint")


@torch.no_grad()
def load_pi05(
    folder: Pi05Folder | Checkpoint | str | Path,
    device: torch.device | str = "cpu",
    dtype: torch.dtype = torch.float32,
    *,
    overrides: Mapping[str, Any] | None = None,
) -> Pi05:
    """A π0.5 with all its weights, as loaded (call `prepare_for_inference()` to run it).

    folder: of openpi (PyTorch or JAX), LeRobot or our own, or one already opened (`read_pi05` also takes the robot).
    overrides: sizes that no tensor shows, nested as in Pi05Spec; for a folder not opened yet.
    Peak memory: the model, and one tensor where the type changes. Raises CheckpointError naming every tensor that is
    missing, unknown, of a wrong shape, unequal to the one it is tied to, or not finite.
    """
    opened = folder if isinstance(folder, Pi05Folder) else read_pi05(folder, overrides=overrides)
    checkpoint, sizes = opened.checkpoint, opened.sizes
    for warning in sizes.warnings:
        log.warning("%s: %s", checkpoint.folder, warning)
    if checkpoint.tensors is None:
        model = build(sizes.spec, device, dtype, seed=None)
        _fill_from_tree(model, checkpoint)
        return model
    account = account_for(checkpoint, sizes.spec)
    account.check(str(checkpoint.folder))
    _check_ties(checkpoint.tensors, account)
    with TensorReader(checkpoint.tensors) as reader:
        model = build(sizes.spec, device, dtype, seed=None)
        _fill(model, reader, account, str(checkpoint.folder))
    log.info("%s: %s", checkpoint.folder, account.summary())
    return model


def save_pi05(
    model: Pi05,
    folder: str | Path,
    *,
    processor: Mapping[str, Any] | None = None,
    tokenizer: str | Path | None = None,
    statistics: Statistics | Iterable[Statistics] = (),
    asset_id: str | None = None,
    model_card: str | None = None,
    dtype: torch.dtype | None = None,
    max_shard_bytes: int = 5_000_000_000,
    overwrite: bool = False,
) -> Path:
    """Write a folder of our own format; the tensors have openpi's names, so openpi and LeRobot can read them.

    processor: the processor's description, kept as it is. tokenizer: a file to copy. asset_id: which of several sets of
    statistics is meant. dtype: of the stored tensors (None: as they are). Call it before `prepare_for_inference()`.
    """
    folder = Path(folder)
    tensors = _parts(model)
    sets = (statistics,) if isinstance(statistics, Statistics) else tuple(statistics)
    if asset_id is not None and asset_id not in [found.asset_id for found in sets]:
        raise CheckpointError(f"{folder}: asset {asset_id!r} is not among the statistics to save")
    save_tensors(folder, tensors, max_shard_bytes, overwrite, dtype)
    config: dict[str, Any] = {
        "format": OXYGEN,
        "version": FORMAT_VERSION,
        "family": "pi05",
        "spec": model.spec.to_dict(),
    }
    if processor is not None:
        config["processor"] = dict(processor)
    if tokenizer is not None:
        target = folder / Path(tokenizer).name
        if target.resolve() != Path(tokenizer).resolve():
            shutil.copyfile(tokenizer, target)
        config["tokenizer"] = target.name
    if asset_id is not None:
        config["asset_id"] = asset_id
    for found in sets:
        write_statistics(found, folder)
    if model_card is not None:
        (folder / "MODEL_CARD.md").write_text(model_card, encoding="utf-8")
    write_json(folder / CONFIG_FILE, config)
    return folder


def _parts(model: Pi05) -> dict[str, Tensor]:
    """Every stored tensor as a view of the model's parameters."""
    if model.is_prepared:  # rows are in another order then, or packed away
        raise CheckpointError("the model is laid out for inference; save it before prepare_for_inference()")
    parameters = dict(model.named_parameters())
    return {place.source: _rows(parameters[place.parameter], place) for place in placements(model.spec)}


def _rows(parameter: Tensor, place: Placement) -> Tensor:
    return parameter.detach()[place.start : place.start + place.shape[0]]


def _check_ties(index: TensorIndex, account: Account) -> None:
    """The token table under its several names must be one table."""
    first = next((name for place, name in account.names.items() if place.parameter == "table"), None)
    for other in account.tied:
        assert first is not None
        if not same_values(index[first], index[other]):
            raise CheckpointError(
                f"{index[other].file}: tied tensors differ: {listed([first, other])}; "
                'say which one was trained: {"token_table": "embed_tokens"} or "lm_head" in oxygen.json'
            )


def _fill(model: Pi05, reader: TensorReader, account: Account, where: str) -> None:
    parameters = dict(model.named_parameters())
    broken = []
    for place, name in account.names.items():
        out = _rows(parameters[place.parameter], place)
        if adapter := account.adapters.get(name):
            out.copy_(_merged(reader, name, adapter))
        else:
            reader.read_into(name, out)
        if not is_finite(out):
            broken.append(name)
    if broken:
        raise CheckpointError(f"{where}: weights that are NaN or infinite: {listed(broken)}")


def _merged(reader: TensorReader, name: str, adapter: Adapter) -> Tensor:
    """W + scale · B A in float32."""
    weight, a, b = (reader.read(n).to(torch.float32) for n in (name, adapter.a, adapter.b))
    return torch.addmm(weight, b, a, alpha=adapter.scale)


def _fill_from_tree(model: Pi05, checkpoint: Checkpoint) -> None:
    parameters = dict(model.named_parameters())
    broken = []
    for place, array in read_placements(checkpoint, model.spec):
        out = _rows(parameters[place.parameter], place)
        out.copy_(torch.from_numpy(array))
        if not is_finite(out):
            broken.append(place.source)
    if broken:
        raise CheckpointError(f"{checkpoint.folder}: weights that are NaN or infinite: {listed(broken)}")
