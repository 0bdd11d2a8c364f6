"""What a π0.5 folder holds, as plain data for `oxygen inspect`: everything that can be said without running it.

Faults do not stop the report: each becomes one line of `problems`, and what could still be found out stands beside it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from oxygen.checkpoint.folder import Checkpoint
from oxygen.checkpoint.headers import TensorInfo
from oxygen.checkpoint.headers import names as listed
from oxygen.checkpoint.values import fingerprint, is_finite, same_values
from oxygen.core.errors import CheckpointError
from oxygen.layers.costs import DTYPE_BYTES
from oxygen.models.pi05.accounting import Account, account_for, trunk_tensors
from oxygen.models.pi05.names import EXPERT, PALIGEMMA, TABLE, TRUNK
from oxygen.models.pi05.opening import Pi05Folder, read_pi05
from oxygen.models.pi05.orbax import account_for_tree, read_placements
from oxygen.models.pi05.spec import Pi05Spec
from oxygen.processing.assembly import robot_of
from oxygen.processing.processor import Processor
from oxygen.processing.prompts import TemplateSet
from oxygen.processing.statistics import Statistics
from oxygen.processing.tokenizer import byte_tokenizer


@dataclass(frozen=True)
class Look:
    """How closely to look. with_values: read every weight. needs_statistics: their absence is a fault."""

    robot: str | None = None
    asset_id: str | None = None
    overrides: Mapping[str, Any] | None = None
    with_values: bool = True
    needs_statistics: bool = True


def report_pi05(checkpoint: Checkpoint, look: Look) -> dict[str, Any]:
    """Everything about one opened folder, JSON-ready. `problems` is empty when the folder can be loaded."""
    warnings: list[str] = []
    problems: list[str] = []
    report: dict[str, Any] = {
        "folder": str(checkpoint.folder),
        "family": checkpoint.family,
        "format": checkpoint.format,
        "statistics": {"available": [_statistics(found) for found in checkpoint.statistics], "chosen": None},
        "tokenizer": {"file": checkpoint.tokenizer.name} if checkpoint.tokenizer else None,
    }
    if checkpoint.tokenizer is None:
        warnings.append("no tokenizer in the folder: running it needs one (copy it there)")
    if not checkpoint.statistics and look.needs_statistics:
        problems.append(_refusal(lambda: checkpoint.statistics_for(look.asset_id)))
    try:
        opened = read_pi05(checkpoint, robot=look.robot, asset_id=look.asset_id, overrides=look.overrides)
    except CheckpointError as error:
        problems.append(str(error))
        if balanced := _balanced_anyway(checkpoint, look):
            report["tensors"] = _tensors(balanced, look, problems)
    else:
        warnings += opened.sizes.warnings
        report |= sizes_pi05(opened.spec)
        report["tensors"] = _tensors(opened, look, problems)
        report |= _processing(opened, warnings, problems)
    return report | {"warnings": warnings, "problems": problems}


def _balanced_anyway(checkpoint: Checkpoint, look: Look) -> Pi05Folder | None:
    """The folder with stand-ins for what no tensor shows: no shape depends on them, so the tensors can be balanced."""
    stand_ins = {"vision": {"num_heads": 1}, "horizon": 1} | dict(look.overrides or {})
    try:
        return read_pi05(checkpoint, overrides=stand_ins)
    except CheckpointError:
        return None


def _refusal(action: Any) -> str:
    try:
        action()
    except CheckpointError as error:
        return str(error)
    return ""


def sizes_pi05(spec: Pi05Spec) -> dict[str, Any]:
    """Sizes, parameters and memory of a context."""
    per_token = {name: spec.kv_bytes_per_token(size) for name, size in DTYPE_BYTES.items()}
    return {
        "sizes": spec.to_dict(),
        "parameters": spec.parameter_counts(),
        "context": {
            "tokens_per_image": spec.tokens_per_image,
            "max_tokens": spec.max_context_len,
            "kv_bytes_per_token": per_token,
            "kv_bytes_per_context": {name: size * spec.max_context_len for name, size in per_token.items()},
        },
    }


def _statistics(found: Statistics) -> dict[str, Any]:
    fields = {"state": found.state, "actions": found.actions}
    return {
        "asset_id": found.asset_id,
        "digest": found.digest,
        **{name: field.dim if field is not None else None for name, field in fields.items()},
    }


def _tensors(opened: Pi05Folder, look: Look, problems: list[str]) -> dict[str, Any]:
    checkpoint = opened.checkpoint
    if checkpoint.tensors is None:
        balance = account_for_tree(checkpoint.tree or (), opened.spec)
        problems += [f"{opened.where}: {problem}" for problem in balance.problems()]
        if look.with_values and not balance.problems():
            problems += _tree_values(opened)
        lora = sorted(path for pair in balance.lora.values() for path in pair)
        return {
            "leaves": len(checkpoint.tree or ()),
            "missing": balance.missing,
            "unknown": balance.unknown,
            "lora": lora,
        }
    index = checkpoint.tensors
    account = account_for(checkpoint, opened.spec)
    problems += [f"{opened.where}: {problem}" for problem in account.problems()]
    report: dict[str, Any] = {
        "stored": len(index),
        "files": [path.name for path in index.files],
        "dtypes": index.dtypes,
        "bytes": _bytes_by_part(account, index.tensors) | {"total": index.num_bytes},
        "used": len(account.names),
        "tied": account.tied,
        "unused": account.unused,
        "missing": account.missing,
        "unknown": account.unknown,
        "wrong_shape": account.misshapen,
        "wrong_type": account.mistyped,
        "lora": sorted(name for pair in account.adapters.values() for name in (pair.a, pair.b)),
        "lora_not_merged": account.unmerged,
    }
    if look.with_values:
        broken = sorted(name for name, info in index.tensors.items() if not is_finite(info))
        if broken:
            problems.append(f"{opened.where}: weights that are NaN or infinite: {listed(broken)}")
        table = next((name for place, name in account.names.items() if place.source == TABLE[0]), None)
        problems += [
            f"{opened.where}: tied tensors differ: {listed([table, other])}"
            for other in account.tied
            if table and not same_values(index[table], index[other])
        ]
        report["not_finite"] = broken
        report["trunk_fingerprint"] = fingerprint(trunk_tensors(account, index.tensors))
    return report


def _tree_values(opened: Pi05Folder) -> list[str]:
    """Read every leaf of a JAX tree, one at a time: shapes, LoRA and numbers."""
    try:
        broken = [
            place.source
            for place, array in read_placements(opened.checkpoint, opened.spec)
            if not np.isfinite(array).all()
        ]
    except CheckpointError as error:
        return [str(error)]
    return [f"{opened.where}: weights that are NaN or infinite: {listed(broken)}"] if broken else []


def _bytes_by_part(account: Account, tensors: Mapping[str, TensorInfo]) -> dict[str, int]:
    parts = {"vision": 0, "trunk": 0, "expert": 0, "heads": 0, "unused": 0}
    for place, name in account.names.items():
        is_trunk = place.source.startswith(TRUNK) or place.source == TABLE[0]
        is_vision = place.source.startswith(PALIGEMMA) and not is_trunk
        part = (
            "vision" if is_vision else "trunk" if is_trunk else "expert" if place.source.startswith(EXPERT) else "heads"
        )
        parts[part] += tensors[name].num_bytes
    parts["unused"] = sum(tensors[name].num_bytes for name in (*account.unused, *account.tied))
    return parts


def _processing(opened: Pi05Folder, warnings: list[str], problems: list[str]) -> dict[str, Any]:
    """Robot, prompts and the statistics in use. What is left open is a warning, what contradicts is a problem."""
    checkpoint = opened.checkpoint
    declared = checkpoint.declared.get("processor")
    report: dict[str, Any] = {"robot": {"name": opened.chosen.robot, "source": opened.chosen.source}}
    report["text"] = {"declared": False, "kinds": []}
    statistics = None
    try:
        statistics = opened.statistics if checkpoint.statistics else None
        if statistics:
            report["statistics"] = {
                "available": [_statistics(found) for found in checkpoint.statistics],
                "chosen": _statistics(statistics),
            }
    except CheckpointError as error:
        (problems if opened.named_asset else warnings).append(str(error))
    try:
        config = opened.processor_config
    except CheckpointError as error:
        is_open = opened.chosen.robot is None and declared is None and checkpoint.pipeline is None
        (warnings if is_open else problems).append(f"{error}{'; name it with --robot' if is_open else ''}")
        return report
    try:
        robot, templates = robot_of(config), TemplateSet.build(config.templates)
        opened.check_cameras(robot)
        report["robot"] |= {
            "name": robot.name,
            "cameras": {camera.name: camera.slot for camera in robot.cameras},
            "state_dim": robot.state_dim,
            "action_dim": robot.action_dim,
        }
        report["templates"] = templates.to_dict()
        report["text"] = {
            "declared": "templates" in (declared or {}) and bool(templates.text_kinds),
            "kinds": templates.text_kinds,
        }
        if statistics:
            if checkpoint.tokenizer:
                processor = opened.processor()
                vocab_size = processor.tokenizer.vocab_size
                report["tokenizer"] = {"file": checkpoint.tokenizer.name, "vocab_size": vocab_size}
            else:  # all but the words can be checked
                processor = Processor(config.with_(vocab_size=None), byte_tokenizer(), statistics)
            report["normalization"] = processor.describe()["normalization"]
    except CheckpointError as error:
        problems.append(f"{opened.where}: {error}")
    if checkpoint.pipeline or declared is not None:
        report["robot"]["source"] = "declared by the folder" if opened.chosen.robot is None else opened.chosen.source
    return report
