"""`oxygen inspect FOLDER`: what a checkpoint holds; exit status 1, and why, if it cannot be loaded."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Mapping
from typing import Any

from oxygen.checkpoint import open_folder
from oxygen.checkpoint.shipped import SHIPPED, resolve
from oxygen.cli.layout import Section, show
from oxygen.core.errors import CheckpointError, InvalidInput
from oxygen.models.pi05.report import Look, report_pi05, sizes_pi05
from oxygen.models.pi05.spec import PRESETS as PI05
from oxygen.models.qwen3_vl.report import report_qwen3_vl, sizes_qwen3_vl
from oxygen.models.qwen3_vl.spec import with_heads
from oxygen.models.qwen3_vl.untrained import HEADS
from oxygen.runtime.presets import PRESETS, is_preset

REPORTS = {"pi05": report_pi05, "qwen3_vl": report_qwen3_vl}
"""Report of each family that is served."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    formats = "openpi (PyTorch or JAX), LeRobot, transformers (Qwen3-VL), StarVLA or OxyGen"
    parser.add_argument("folder", help=f"checkpoint folder of {formats}, a shipped name, or a preset's name")
    parser.add_argument("--robot", help="robot or openpi configuration, for folders that do not name theirs")
    parser.add_argument("--asset-id", help="which statistics, where the folder has several")
    parser.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="KEY=N",
        help="a size that no tensor shows, e.g. vision.num_heads=16",
    )
    parser.add_argument("--without-statistics", action="store_true", help="their absence is not a fault")
    parser.add_argument(
        "--skip-values", action="store_true", help="do not read the weights (no NaN check, no fingerprint)"
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object")


def run(args: argparse.Namespace) -> int:
    if is_preset(args.folder) and (args.set or args.robot or args.asset_id):
        raise InvalidInput("folder", "a checkpoint, for --set, --robot and --asset-id", f"the preset {args.folder}")
    report = report_preset(args.folder) if is_preset(args.folder) else report_folder(args)
    if args.json:
        print(json.dumps(report, ensure_ascii=False))
    else:
        show(sections(report))
    sys.stdout.flush()
    for problem in report["problems"]:
        print(f"oxygen inspect: error: {problem}", file=sys.stderr)
    return 1 if report["problems"] else 0


def report_folder(args: argparse.Namespace) -> dict[str, Any]:
    """Raises CheckpointError, with the names that there are, for what is neither a folder nor a known name."""
    if not resolve(args.folder).exists():
        names = f"shipped names: {', '.join(SHIPPED)}; presets: {', '.join(PRESETS)}"
        raise CheckpointError(f"{args.folder}: does not exist; {names}")
    checkpoint = open_folder(args.folder)
    look = Look(
        robot=args.robot,
        asset_id=args.asset_id,
        overrides=parse_overrides(args.set),
        with_values=not args.skip_values,
        needs_statistics=not args.without_statistics,
    )
    return REPORTS[checkpoint.family](checkpoint, look)


def report_preset(name: str) -> dict[str, Any]:
    """What a preset's name stands for: sizes, and nothing trained."""
    is_pi05 = name in PI05
    sizes = sizes_pi05(PI05[name]) if is_pi05 else sizes_qwen3_vl(with_heads(PRESETS[name], HEADS))
    return {
        "folder": "none",
        "family": "pi05" if is_pi05 else "qwen3_vl",
        "format": f"preset {name}",
        **sizes,
        "statistics": {"available": [], "chosen": None},
        "tokenizer": None,
        "warnings": ["random weights: texts and actions mean nothing"],
        "problems": [],
    }


def parse_overrides(pairs: list[str]) -> dict[str, Any]:
    """`["vision.num_heads=16"]` -> nested sizes. Raises InvalidInput."""
    overrides: dict[str, Any] = {}
    for pair in pairs:
        path, _, number = pair.partition("=")
        *outer, last = path.split(".")
        if not number.isdigit() or not all((*outer, last)):
            raise InvalidInput("--set", "KEY=N with a whole number N", repr(pair))
        inner = overrides
        for key in outer:
            inner = inner.setdefault(key, {})
            if not isinstance(inner, dict):
                raise InvalidInput("--set", f"{key} as a size or as a part that has sizes", repr(pair))
        inner[last] = int(number)
    return overrides


def sections(report: Mapping[str, Any]) -> list[Section]:
    """The report for people, in reading order; parts that could not be found out are left out."""
    head = [("folder", report["folder"]), ("family", report["family"]), ("format", report["format"])]
    found = [Section("checkpoint", head)]
    if "sizes" in report:
        found += [_sizes(report), _memory(report)]
    found.append(_robot(report))
    if "templates" in report:
        found.append(Section("prompts", [(kind, _template(text)) for kind, text in report["templates"].items()]))
    found.append(_statistics(report))
    if "tensors" in report:
        found.append(_tensors(report["tensors"]))
    if report["warnings"]:
        found.append(Section("warnings", [("", text) for text in report["warnings"]], "yellow"))
    if report["problems"]:
        found.append(Section("problems", [("", text) for text in report["problems"]], "red"))
    return found


def _sizes(report: Mapping[str, Any]) -> Section:
    sizes, rows = report["sizes"], []
    parts = {name: part for name, part in sizes.items() if isinstance(part, Mapping)}
    parts |= {head["name"]: head for head in sizes.get("heads", ())}
    for name, part in parts.items():
        rows.append((name, ", ".join(f"{key} {value}" for key, value in part.items() if key != "name")))
    for name, expert in report.get("experts", {}).items():
        rows.append((f"{name} reads", expert["reads"]))
    plain = {key: value for key, value in sizes.items() if key not in parts and key != "heads"}
    rows.append(("model", ", ".join(f"{key} {value}" for key, value in plain.items())))
    counts = report["parameters"]
    rows.append(("parameters", ", ".join(f"{part} {count / 1e6:,.2f} M" for part, count in counts.items())))
    return Section("sizes", rows)


def _memory(report: Mapping[str, Any]) -> Section:
    context, rows = report["context"], []
    stored = report.get("tensors", {}).get("bytes")
    if stored:
        rows.append(("stored", ", ".join(f"{part} {_bytes(size)}" for part, size in stored.items() if size)))
    for dtype, size in context["kv_bytes_per_token"].items():
        full = context["kv_bytes_per_context"][dtype]
        rows.append(
            (f"KV, {dtype}", f"{_bytes(size)} a token, {_bytes(full)} a context of {context['max_tokens']} tokens")
        )
    return Section("memory", rows)


def _robot(report: Mapping[str, Any]) -> Section:
    robot, text = report.get("robot", {}), report.get("text", {})
    rows = [("robot", f"{robot.get('name') or 'not settled'} ({robot.get('source', 'unknown')})")]
    if "cameras" in robot:
        rows.append(("cameras", ", ".join(f"{name} as {slot}" for name, slot in robot["cameras"].items())))
        rows.append(("dims", f"state {robot['state_dim']}, actions {robot['action_dim']}"))
    kinds = ", ".join(text.get("kinds", ()))
    capability = f"declared: {kinds}" if text.get("declared") else "not declared by the folder"
    rows.append(
        ("text", capability + (f" (prompts are known for {kinds})" if kinds and not text.get("declared") else ""))
    )
    tokenizer = report["tokenizer"] or {"file": "none in the folder"}
    size = f", {tokenizer['vocab_size']} tokens" if "vocab_size" in tokenizer else ""
    rows.append(("tokenizer", tokenizer["file"] + size))
    return Section("robot and text", rows)


def _template(text: Mapping[str, Any]) -> str:
    def joined(part: Any) -> str:
        return " + ".join(json.dumps(piece, ensure_ascii=False) for piece in part)

    return joined(text["prefix"]) + (f", then causally {joined(text['tail'])}" if text.get("tail") else "")


def _statistics(report: Mapping[str, Any]) -> Section:
    statistics = report["statistics"]
    chosen = statistics["chosen"]
    rows = []
    for found in statistics["available"]:
        mark = "chosen" if chosen and found["asset_id"] == chosen["asset_id"] else "available"
        dims = ", ".join(f"{name} {found[name]}" for name in ("state", "actions") if found[name] is not None)
        rows.append((mark, f"{found['asset_id']}: {dims}, sha256 {found['digest'][:16]}"))
    normalization = report.get("normalization", {})
    for name in ("state", "actions"):
        if name in normalization:
            flat = normalization[name]["degenerate_dims"]
            rows.append((name, normalization[name]["mode"] + (f", without width in dimensions {flat}" if flat else "")))
    return Section("statistics", rows or [("", "none")])


def _tensors(tensors: Mapping[str, Any]) -> Section:
    rows = []
    if "stored" in tensors:
        dtypes = ", ".join(f"{count} {dtype}" for dtype, count in tensors["dtypes"].items())
        rows.append(("stored", f"{tensors['stored']} ({dtypes}) in {', '.join(tensors['files'])}"))
        rows.append(("used", str(tensors["used"])))
    else:
        rows.append(("leaves", str(tensors["leaves"])))
    for key in ("missing", "unknown", "wrong_shape", "wrong_type", "lora_not_merged", "not_finite"):
        if key in ("missing", "unknown") or tensors.get(key):
            rows.append((key.replace("_", " "), _listed(tensors[key])))
    if tensors.get("unused"):
        rows.append(("known unused", "; ".join(f"{name}: {why}" for name, why in tensors["unused"].items())))
    for key, label in (("tied", "tied"), ("lora", "LoRA merged")):
        if tensors.get(key):
            rows.append((label, _listed(tensors[key])))
    if "trunk_fingerprint" in tensors:
        rows.append(("trunk", f"sha256 {tensors['trunk_fingerprint']}"))
    return Section("tensors", rows)


def _listed(found: Any, limit: int = 8) -> str:
    if not found:
        return "none"
    more = f" and {len(found) - limit} more" if len(found) > limit else ""
    return f"{len(found)}: {', '.join(list(found)[:limit])}{more}"


def _bytes(size: int) -> str:
    power = min(max(len(str(size)) - 1, 0) // 3, 3)
    return f"{size / 1000**power:.4g} {('B', 'kB', 'MB', 'GB')[power]}"
