"""What a Qwen3-VL or StarVLA folder holds, as plain data for `oxygen inspect`: all that can be said without
running it.
"""

from __future__ import annotations

from typing import Any

from oxygen.checkpoint.folder import Checkpoint
from oxygen.checkpoint.headers import names as listed
from oxygen.checkpoint.values import is_finite, same_values
from oxygen.core.errors import CheckpointError
from oxygen.layers.costs import DTYPE_BYTES
from oxygen.models.qwen3_vl.names import ACTION, PROJECT, TABLE, VISUAL
from oxygen.models.qwen3_vl.opening import Qwen3VLFolder, read_qwen3_vl
from oxygen.models.qwen3_vl.spec import Qwen3VLSpec
from oxygen.processing.starvla import read_dataset_statistics
from oxygen.processing.statistics import Statistics


def report_qwen3_vl(checkpoint: Checkpoint, look: Any) -> dict[str, Any]:
    """Everything about one opened folder, JSON-ready. `problems` is empty when the folder can be loaded.

    look: as closely as `oxygen inspect` was asked to (robot, asset_id, overrides, with_values, needs_statistics).
    """
    problems: list[str] = []
    warnings: list[str] = []
    report: dict[str, Any] = {
        "folder": str(checkpoint.folder),
        "family": checkpoint.family,
        "format": checkpoint.format,
        "statistics": {"available": [], "chosen": None},
        "tokenizer": {"file": checkpoint.tokenizer.name} if checkpoint.tokenizer else None,
        "robot": {"name": None, "source": "not declared"},
        "text": {"declared": False, "kinds": []},
    }
    if checkpoint.tokenizer is None:
        warnings.append("no tokenizer in the folder: running it needs one (copy it there)")
    try:
        sets, _ = read_dataset_statistics(checkpoint.folder)
        sets = (*checkpoint.statistics, *sets)
        report["statistics"]["available"] = [_statistics(found) for found in sets]
        opened = read_qwen3_vl(checkpoint, robot=look.robot, asset_id=look.asset_id, overrides=look.overrides)
    except CheckpointError as error:
        problems.append(str(error))
        return report | {"warnings": warnings, "problems": problems}
    report |= sizes_qwen3_vl(opened.spec)
    report["tensors"] = _tensors(opened, look.with_values, problems)
    _processing(opened, report, warnings, problems)
    if opened.spec.heads and not sets and look.needs_statistics:
        problems.append(f"{opened.where}: no statistics (dataset_statistics.json), so actions have no units")
    return report | {"warnings": warnings, "problems": problems}


def sizes_qwen3_vl(spec: Qwen3VLSpec) -> dict[str, Any]:
    """Sizes, parameters, experts and memory of a context."""
    per_token = {name: spec.kv_bytes_per_token(size) for name, size in DTYPE_BYTES.items()}
    return {
        "sizes": spec.to_dict(),
        "parameters": spec.parameter_counts(),
        "experts": {
            head.name: {
                "kind": head.shape().kind,
                "horizon": head.horizon,
                "action_dim": head.action_dim,
                "topology": getattr(head, "topology", None),
                "reads": _reads(head.shape().reads),
            }
            for head in spec.heads
        },
        "context": {
            "max_tokens": spec.max_context_len,
            "kv_bytes_per_token": per_token,
            "kv_bytes_per_context": {name: size * spec.max_context_len for name, size in per_token.items()},
        },
    }


def _reads(reads: Any) -> str:
    layers = [tap.layer for tap in reads.hidden]
    told = f"hidden states of layer {layers[0]}" + (f" to {layers[-1]}" if len(layers) > 1 else "")
    told += f", the last {reads.hidden[-1].stage}"
    return told + (f", at the last {reads.num_tokens} tokens {reads.token_id}" if reads.token_id is not None else "")


def _tensors(opened: Qwen3VLFolder, with_values: bool, problems: list[str]) -> dict[str, Any]:
    index, weighed = opened.checkpoint.tensors, opened.balance
    assert index is not None
    problems += [f"{opened.where}: {problem}" for problem in weighed.problems()]
    parts = {
        "vision": 0,
        "trunk": 0,
        "heads": 0,
        "unused": sum(index[n].num_bytes for n in (*weighed.unused, *weighed.tied)),
    }
    for place, name in weighed.placed.items():
        is_head = place.source.startswith((ACTION, PROJECT))
        part = "heads" if is_head else "vision" if place.source.startswith(VISUAL) else "trunk"
        parts[part] += index[name].num_bytes
    report: dict[str, Any] = {
        "stored": len(index),
        "files": [path.name for path in index.files],
        "dtypes": index.dtypes,
        "bytes": parts | {"total": index.num_bytes},
        "used": len(weighed.placed),
        "tied": weighed.tied,
        "unused": weighed.unused,
        "missing": weighed.missing,
        "unknown": weighed.unknown,
        "wrong_shape": weighed.misshapen,
        "wrong_type": weighed.mistyped,
    }
    if with_values:
        report["not_finite"] = sorted(name for name, info in index.tensors.items() if not is_finite(info))
        if report["not_finite"]:
            problems.append(f"{opened.where}: weights that are NaN or infinite: {listed(report['not_finite'])}")
        table = next((name for place, name in weighed.placed.items() if place.source == TABLE), None)
        for other in weighed.tied:
            if table and not same_values(index[table], index[other]):
                problems.append(f"{opened.where}: tied tensors differ: {listed([table, other])}")
        report["trunk_fingerprint"] = opened.trunk_fingerprint()
    return report


def _statistics(found: Statistics) -> dict[str, Any]:
    fields = {"state": found.state, "actions": found.actions}
    dims = {name: field.dim if field is not None else None for name, field in fields.items()}
    return {"asset_id": found.asset_id, "digest": found.digest, **dims}


def _processing(opened: Qwen3VLFolder, report: dict[str, Any], warnings: list[str], problems: list[str]) -> None:
    """Robot, prompts and statistics. A folder that says nothing of them is warned about, one that says it wrong is at
    fault.
    """
    try:
        config = opened.processor_config
        report["robot"] = {"name": config.robot if isinstance(config.robot, str) else config.robot.get("name")}
        report["robot"]["source"] = "asked for" if opened.robot else "declared by the folder"
        if opened.checkpoint.tokenizer is not None:
            found = opened.processor()
            report["tokenizer"]["vocab_size"] = found.tokenizer.vocab_size
            report["text"] = {"declared": True, "kinds": list(found.kinds)}
            report["robot"] |= {
                "cameras": {camera.name: camera.slot for camera in found.robot.cameras},
                "state_dim": found.robot.state_dim,
                "action_dim": found.robot.action_dim,
            }
            if found.statistics is not None:
                report["statistics"]["chosen"] = _statistics(found.statistics)
            elif found.sets:
                warnings.append(f"every request must name its statistics (unnorm_key): one of {', '.join(found.sets)}")
    except CheckpointError as error:
        is_declared = opened.robot is not None or "processor" in opened.checkpoint.declared
        (problems if is_declared else warnings).append(str(error))
