"""A checkpoint folder, opened: what it says about itself, before any weight is read and without a framework.

Known formats: openpi's PyTorch folder, LeRobot's policy folder, our own, openpi's JAX (Orbax) folder, a model of
transformers, and a StarVLA state dictionary (as safetensors).
Format and family come from the content of the files, never from the path. A file `oxygen.json` beside a foreign
checkpoint may say what that format has no place for (sizes that no tensor shows, robot, prompt templates).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from oxygen.checkpoint.family import detect_family
from oxygen.checkpoint.index import INDEX_FILE, SINGLE_FILE, TensorIndex, read_index, with_adapter
from oxygen.checkpoint.jsonfile import read_json
from oxygen.checkpoint.orbax import find_tree, tree_paths
from oxygen.checkpoint.shipped import SHIPPED, resolve
from oxygen.core.errors import CheckpointError
from oxygen.processing.lerobot import FILES as LEROBOT_PIPELINES
from oxygen.processing.lerobot import LeRobotPipeline, read_pipeline
from oxygen.processing.statistics import Statistics, choose_statistics, find_statistics

OXYGEN, OPENPI, LEROBOT, ORBAX = "oxygen", "openpi-pytorch", "lerobot", "openpi-jax"
TRANSFORMERS, STARVLA = "transformers", "starvla"
STARVLA_TRUNK = "qwen_vl_interface."
"""What StarVLA puts before the names of its trunk."""
FORMAT_VERSION = 1
CONFIG_FILE = "config.json"
SIDECAR_FILE = "oxygen.json"
ADAPTER_FILE, ADAPTER_CONFIG = "adapter_model.safetensors", "adapter_config.json"
_DECLARED: dict[str, tuple[Callable[[Any], bool], str]] = {
    "spec": (lambda v: isinstance(v, Mapping), "a map"),
    "processor": (lambda v: isinstance(v, Mapping), "a map"),
    "robot": (lambda v: isinstance(v, str), "a name"),
    "tokenizer": (
        lambda v: isinstance(v, str) and Path(v).name == v != "" and len(v) < 256,
        "the name of a file of the folder",
    ),
    "asset_id": (lambda v: isinstance(v, str), "a name"),
    "token_table": (lambda v: isinstance(v, str), "a name"),
    "lora_scale": (lambda v: type(v) in (int, float) and abs(v) < 1e30, "a number"),
    "heads_from": (lambda v: isinstance(v, list) and all(isinstance(n, str) and n for n in v), "a list of folders"),
}
SIDECAR_KEYS = frozenset(_DECLARED)
TOKENIZER_FILES = ("tokenizer.model", "paligemma_tokenizer.model", "tokenizer.json")
"""Where no file is declared, the first of these that the folder has is its tokenizer."""


@dataclass(frozen=True)
class Checkpoint:
    """One folder. `declared` is what an oxygen config or sidecar says (`spec`, `processor`, `robot`, ...).

    `tensors` indexes safetensors weights, `tree` names the leaves of an Orbax tree by slash-separated path; exactly one
    of them is set. `adapter` configures a PEFT adapter whose tensors lie beside the model's (they are in `tensors`).
    `pipeline` is what LeRobot's processor files say, where there are any (its statistics are among `statistics`).
    """

    folder: Path
    format: str
    family: str
    config: Mapping[str, Any]
    declared: Mapping[str, Any]
    tensors: TensorIndex | None = None
    tree: tuple[str, ...] | None = None
    tree_folder: Path | None = None
    statistics: tuple[Statistics, ...] = ()
    pipeline: LeRobotPipeline | None = None
    tokenizer: Path | None = None
    adapter: Mapping[str, Any] | None = None

    def statistics_for(self, asset_id: str | None = None) -> Statistics:
        """The statistics meant: by argument, else as the folder declares, else the only set. See choose_statistics."""
        return choose_statistics(self.statistics, asset_id or self.declared.get("asset_id"), str(self.folder))


def open_folder(path: str | Path) -> Checkpoint:
    """Open a checkpoint folder, or one that comes with the package by its name.

    Raises CheckpointError, with the file and the names concerned, for anything broken.
    """
    folder = resolve(path)
    try:
        return _opened(folder)
    except OSError as error:
        raise CheckpointError(f"{folder}: cannot be read: {error!s:.300}") from error


def _opened(folder: Path) -> Checkpoint:
    if not folder.is_dir():
        absent = f"does not exist; shipped names: {', '.join(SHIPPED)}"
        raise CheckpointError(f"{folder}: {'is a file; give the folder it lies in' if folder.exists() else absent}")
    config = read_json(folder / CONFIG_FILE) if (folder / CONFIG_FILE).is_file() else {}
    tensors = read_index(folder)
    adapter = _adapter(folder) if tensors is not None else None
    if adapter is not None and tensors is not None:
        tensors = with_adapter(tensors, folder / ADAPTER_FILE)
    tree_folder = find_tree(folder) if tensors is None else None
    if tensors is None and tree_folder is None:
        raise CheckpointError(_no_weights(folder))
    format = _format(folder, config, tensors)
    tree = tuple(tree_paths(tree_folder)) if tree_folder is not None else None
    family = detect_family(tensors if tensors is not None else tree or (), str(folder))
    declared = _declared(folder, config, format, family)
    has_pipeline = any((folder / name).is_file() for name in LEROBOT_PIPELINES)
    pipeline = read_pipeline(folder) if has_pipeline else None
    base = folder.parent if tree_folder == folder and folder.name == "params" else folder
    return Checkpoint(
        folder=folder,
        format=format,
        family=family,
        config=config,
        declared=declared,
        tensors=tensors,
        tree=tree,
        tree_folder=tree_folder,
        statistics=find_statistics(base) + ((pipeline.statistics,) if pipeline else ()),
        pipeline=pipeline,
        tokenizer=_tokenizer(folder, declared),
        adapter=adapter,
    )


def _format(folder: Path, config: Mapping[str, Any], tensors: TensorIndex | None) -> str:
    if config.get("format") == OXYGEN:
        version = config.get("version")
        if type(version) is not int or version != FORMAT_VERSION:
            raise CheckpointError(
                f"{folder / CONFIG_FILE}: version {version!r:.80} of the oxygen format; "
                f"this release reads version {FORMAT_VERSION}"
            )
        return OXYGEN
    if tensors is None:
        return ORBAX
    if "format" in config and not {"type", "model_type"} & config.keys():
        raise CheckpointError(f"{folder / CONFIG_FILE}: format: expected {OXYGEN!r}, got {config['format']!r:.80}")
    if any(name.startswith(STARVLA_TRUNK) for name in tensors):
        return STARVLA
    if "model_type" in config:
        return TRANSFORMERS
    return LEROBOT if "type" in config else OPENPI


def _declared(folder: Path, config: Mapping[str, Any], format: str, family: str) -> Mapping[str, Any]:
    """What is declared for us: the oxygen config itself, or the sidecar; checked against what the tensors are."""
    sidecar = folder / SIDECAR_FILE
    if format == OXYGEN:
        if config.get("family") != family:
            raise CheckpointError(
                f"{folder / CONFIG_FILE}: wrong family: declares {config.get('family')!r:.80}, the tensors are {family}"
            )
        if sidecar.is_file():
            raise CheckpointError(
                f"{sidecar}: a folder of the oxygen format says everything in {CONFIG_FILE}; remove it"
            )
        return _typed({key: config[key] for key in SIDECAR_KEYS & config.keys()}, folder / CONFIG_FILE)
    if format == LEROBOT and config["type"] != family:
        raise CheckpointError(
            f"{folder / CONFIG_FILE}: wrong family: declares type {config['type']!r:.80}, the tensors are {family}"
        )
    declared = read_json(sidecar) if sidecar.is_file() else {}
    if unknown := sorted(declared.keys() - SIDECAR_KEYS):
        raise CheckpointError(f"{sidecar}: unknown {', '.join(unknown)}; known: {', '.join(sorted(SIDECAR_KEYS))}")
    return _typed(declared, sidecar)


def _typed(declared: Mapping[str, Any], path: Path) -> Mapping[str, Any]:
    for key, value in declared.items():
        is_good, expected = _DECLARED[key]
        if not is_good(value):
            raise CheckpointError(f"{path}: {key}: expected {expected}, got {value!r:.80}")
    return declared


def _tokenizer(folder: Path, declared: Mapping[str, Any]) -> Path | None:
    if name := declared.get("tokenizer"):
        path = folder / str(name)
        if not path.is_file():
            raise CheckpointError(f"{folder}: the declared tokenizer {name!r:.80} is not a file of the folder")
        return path
    return next((folder / name for name in TOKENIZER_FILES if (folder / name).is_file()), None)


def _adapter(folder: Path) -> Mapping[str, Any] | None:
    if not (folder / ADAPTER_FILE).is_file():
        return None
    return read_json(folder / ADAPTER_CONFIG)


def _no_weights(folder: Path) -> str:
    if (folder / ADAPTER_FILE).is_file():
        return f"{folder}: has only an adapter ({ADAPTER_FILE}); put the base model's {SINGLE_FILE} beside it"
    pickled = sorted(path.name for path in folder.iterdir() if path.suffix in (".bin", ".pt", ".pth", ".ckpt", ".pkl"))
    if pickled:
        return f"{folder}: only pickled weights ({', '.join(pickled[:6])}), which are never loaded; save as safetensors"
    return f"{folder}: no weights: neither {SINGLE_FILE}, nor {INDEX_FILE}, nor params/_METADATA (Orbax)"
