"""openpi's JAX checkpoints: an Orbax tree, named without any framework and read through the optional extra `orbax`.

Names are slash-separated paths below the top key `params`. Checkpoints written by openpi's training end every path in
`value`; that element is dropped if all leaves have it, as openpi's own loader does.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np

from oxygen.checkpoint.headers import names as listed
from oxygen.checkpoint.jsonfile import read_json
from oxygen.core.errors import CheckpointError

METADATA_FILE = "_METADATA"
EXTRA = "pip install 'oxygen-vla[orbax]'"

Keys = tuple[str, ...]


def find_tree(folder: Path) -> Path | None:
    """The folder that holds the tree: `folder` itself or its `params`; None if neither does."""
    for candidate in (folder, folder / "params"):
        if (candidate / METADATA_FILE).is_file():
            return candidate
    return None


def tree_paths(tree: Path) -> dict[str, Keys]:
    """Path -> keys of every leaf, from the JSON that Orbax writes beside the data (it has no shapes)."""
    metadata = read_json(tree / METADATA_FILE).get("tree_metadata")
    if not isinstance(metadata, dict) or not metadata:
        raise CheckpointError(f"{tree / METADATA_FILE}: has no tree_metadata")
    found: list[Keys] = []
    for name, entry in metadata.items():
        try:
            found.append(tuple(str(part["key"]) for part in entry["key_metadata"]))
        except (KeyError, TypeError) as error:
            raise CheckpointError(f"{tree / METADATA_FILE}: entry {name} is malformed") from error
    drops_value = all(keys[-1:] == ("value",) for keys in found)
    paths = {}
    for keys in found:
        inner = keys[1:] if keys[0] == "params" else keys
        paths["/".join(inner[:-1] if drops_value else inner)] = keys
    return paths


def tree_shapes(tree: Path) -> dict[str, tuple[int, ...]]:
    """Path -> shape of every leaf. Needs the extra `orbax`."""
    paths = tree_paths(tree)
    with _orbax(tree) as ocp, ocp.PyTreeCheckpointer() as checkpointer:
        metadata = checkpointer.metadata(tree.resolve()).item_metadata.tree
        return {name: tuple(_get(metadata, keys).shape) for name, keys in paths.items()}


def read_tree(tree: Path, wanted: Iterable[str]) -> dict[str, np.ndarray]:
    """Read some leaves as NumPy arrays, whatever devices they were saved from. Needs the extra `orbax`."""
    wanted = list(wanted)
    paths = tree_paths(tree)
    if absent := [name for name in wanted if name not in paths]:
        raise CheckpointError(f"{tree}: missing leaves: {listed(absent, None)}")
    item: dict[str, Any] = {}
    arguments: dict[str, Any] = {}
    with _orbax(tree) as ocp, ocp.PyTreeCheckpointer() as checkpointer:
        for name in wanted:
            _put(item, paths[name], 0)
            _put(arguments, paths[name], ocp.RestoreArgs(restore_type=np.ndarray))
        asked = ocp.args.PyTreeRestore(item=item, restore_args=arguments, partial_restore=True)
        restored = checkpointer.restore(tree.resolve(), args=asked)
    return {name: np.asarray(_get(restored, paths[name])) for name in wanted}


@contextmanager
def _orbax(tree: Path) -> Iterator[ModuleType]:
    """The library, with its warnings about itself silenced and its errors told as ours."""
    try:
        import orbax.checkpoint as ocp
    except ImportError as error:
        raise CheckpointError(f"{tree}: reading an Orbax checkpoint needs the optional extra: {EXTRA}") from error
    chatter = logging.getLogger("absl")
    level = chatter.level
    chatter.setLevel(logging.ERROR)
    try:
        yield ocp
    except (ValueError, KeyError, OSError, AttributeError) as error:
        raise CheckpointError(f"{tree}: Orbax cannot read it: {error}") from error
    finally:
        chatter.setLevel(level)


def _put(tree: dict[str, Any], keys: Keys, value: Any) -> None:
    for key in keys[:-1]:
        tree = tree.setdefault(key, {})
    tree[keys[-1]] = value


def _get(tree: Any, keys: Keys) -> Any:
    for key in keys:
        tree = tree[key]
    return tree
