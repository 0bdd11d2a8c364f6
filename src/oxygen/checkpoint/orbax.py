"""openpi's JAX checkpoints: an Orbax tree, described without any framework and read through the optional extra `orbax`.

Names are slash-separated paths below the top key `params`. Checkpoints written by openpi's training end every path in
`value`; that element is dropped if all leaves have it (specification: openpi's loader does the same).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from oxygen.checkpoint.jsonfile import read_json
from oxygen.core.errors import CheckpointError

METADATA_FILE = "_METADATA"
EXTRA = "pip install 'oxygen-vla[orbax]'"


def find_tree(folder: Path) -> Path | None:
    """The folder that holds the tree: `folder` itself or its `params`; None if neither does."""
    for candidate in (folder, folder / "params"):
        if (candidate / METADATA_FILE).is_file():
            return candidate
    return None


def tree_shapes(tree: Path) -> dict[str, tuple[int, ...]]:
    """Path -> shape of every leaf, from the JSON that Orbax writes beside the data (() where not written)."""
    shapes = {}
    for keys, entry in _leaves(tree):
        shapes["/".join(keys)] = tuple(entry.get("value_metadata", {}).get("write_shape") or ())
    return _short(shapes)


def read_tree(tree: Path, wanted: Iterable[str]) -> dict[str, np.ndarray]:
    """Read some leaves as NumPy arrays, whatever devices they were saved from. Needs the extra `orbax`."""
    try:
        import orbax.checkpoint as ocp
    except ImportError as error:
        raise CheckpointError(f"{tree}: reading an Orbax checkpoint needs the optional extra: {EXTRA}") from error
    paths = {"/".join(keys): keys for keys, _ in _leaves(tree)}
    short = dict(zip(_short(dict.fromkeys(paths)), paths.values(), strict=True))
    absent = sorted(set(wanted) - short.keys())
    if absent:
        raise CheckpointError(f"{tree}: lacks {', '.join(absent)}")
    item: dict[str, Any] = {}
    arguments: dict[str, Any] = {}
    for name in wanted:
        _put(item, short[name], 0)
        _put(arguments, short[name], ocp.RestoreArgs(restore_type=np.ndarray))
    try:
        with ocp.PyTreeCheckpointer() as checkpointer:
            restored = checkpointer.restore(
                tree.resolve(), args=ocp.args.PyTreeRestore(item=item, restore_args=arguments, transforms={})
            )
    except (ValueError, KeyError, OSError) as error:
        raise CheckpointError(f"{tree}: Orbax cannot read it: {error}") from error
    return {name: np.asarray(_get(restored, short[name])) for name in wanted}


def _leaves(tree: Path) -> Iterator[tuple[tuple[str, ...], Mapping[str, Any]]]:
    metadata = read_json(tree / METADATA_FILE).get("tree_metadata")
    if not isinstance(metadata, dict) or not metadata:
        raise CheckpointError(f"{tree / METADATA_FILE}: has no tree_metadata")
    for name, entry in metadata.items():
        try:
            yield tuple(str(part["key"]) for part in entry["key_metadata"]), entry
        except (KeyError, TypeError) as error:
            raise CheckpointError(f"{tree / METADATA_FILE}: entry {name} is malformed") from error


def _short(paths: dict[str, Any]) -> dict[str, Any]:
    """Without the leading `params` and, where every leaf has it, without the trailing `value`."""
    ends = all(path.endswith("/value") for path in paths)
    return {path.removeprefix("params/").removesuffix("/value" if ends else ""): value for path, value in paths.items()}


def _put(tree: dict[str, Any], keys: tuple[str, ...], value: Any) -> None:
    for key in keys[:-1]:
        tree = tree.setdefault(key, {})
    tree[keys[-1]] = value


def _get(tree: Any, keys: tuple[str, ...]) -> Any:
    for key in keys:
        tree = tree[key]
    return tree
