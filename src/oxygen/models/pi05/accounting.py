"""The balance of a π0.5 file: every tensor used or known to be unused, every parameter filled, every shape right.

Nothing is read here but names and shapes, so `oxygen inspect` and the loader judge a folder by the same rules.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from oxygen.checkpoint.folder import Checkpoint
from oxygen.checkpoint.headers import TensorInfo
from oxygen.checkpoint.headers import names as listed
from oxygen.checkpoint.placement import Faults, Placement
from oxygen.core.errors import CheckpointError
from oxygen.models.pi05.names import EXPERT, KNOWN_UNUSED, TABLE, canonical, canonical_names, placements
from oxygen.models.pi05.spec import Pi05Spec

_LORA = re.compile(r"(?P<base>.+)\.lora_(?P<side>[AB])(\.[^.]+)?\.weight")
_ADAPTER_PLAIN = {"use_dora": False, "fan_in_fan_out": False, "bias": "none", "rank_pattern": {}, "alpha_pattern": {}}
"""Settings of a PEFT adapter under which W + scale · B A is the whole truth; absent counts as plain."""


@dataclass(frozen=True)
class Adapter:
    """One low-rank update of a tensor: W + scale · B A, with A [rank, columns] and B [rows, rank] under these names."""

    a: str
    b: str
    scale: float


@dataclass
class Account(Faults):
    """names: placement -> tensor in the file. unused: tensor -> why. unmerged: LoRA leaves, a fault like the others."""

    names: dict[Placement, str] = field(default_factory=dict)
    tied: list[str] = field(default_factory=list)
    unused: dict[str, str] = field(default_factory=dict)
    adapters: dict[str, Adapter] = field(default_factory=dict)
    unmerged: list[str] = field(default_factory=list)

    def problems(self) -> list[str]:
        leaves = [f"LoRA leaves that cannot be merged: {listed(self.unmerged, None)}"] if self.unmerged else []
        return super().problems() + leaves

    def summary(self) -> str:
        """Counts for the log: loaded, tied, merged, ignored."""
        parts = [f"{len(self.names)} tensors loaded"]
        parts += [f"{len(self.tied)} tied"] if self.tied else []
        parts += [f"{len(self.adapters)} LoRA updates merged"] if self.adapters else []
        parts += [f"{len(self.unused)} known to be unused"] if self.unused else []
        return ", ".join(parts)


def account_for(checkpoint: Checkpoint, spec: Pi05Spec) -> Account:
    """Balance a safetensors folder against the sizes. Never raises for an uneven balance: see Account.check."""
    assert checkpoint.tensors is not None
    index = checkpoint.tensors
    account = Account()
    leaves = {name: match for name in index if (match := _LORA.fullmatch(name))}
    odd = [name for name in index if "lora_" in name and name not in leaves]
    account.unmerged += odd
    by_name = canonical_names((n for n in index if n not in leaves and n not in odd), str(checkpoint.folder))
    for name in KNOWN_UNUSED.keys() & by_name.keys():
        account.unused[by_name.pop(name)] = KNOWN_UNUSED[name]
    _settle_table(account, by_name, checkpoint)
    for place in placements(spec):
        original = by_name.pop(place.source, None)
        if original is None:
            account.missing.append(place.source)
            continue
        account.names[place] = original
        account.weigh(original, index[original], place.shape)
    account.unknown += by_name.values()
    _settle_adapters(account, leaves, index.tensors, checkpoint.adapter)
    return account


def _settle_table(account: Account, by_name: dict[str, str], checkpoint: Checkpoint) -> None:
    """Let the table go by TABLE[0], whatever names the file has for it; the others are tied to it.

    Where a fine-tune has let the two names drift apart, `token_table` in oxygen.json says which one was trained.
    """
    chosen = checkpoint.declared.get("token_table")
    found = [name for name in TABLE if name in by_name]
    if chosen is not None:
        wanted = [name for name in found if name.removesuffix(".weight").endswith("." + str(chosen))]
        if not wanted:
            raise CheckpointError(f"{checkpoint.folder}: token_table {chosen!r} is none of {listed(found, None)}")
        for name in found:
            if name != wanted[0]:
                account.unused[by_name.pop(name)] = f"oxygen.json says that the token table is {chosen}"
        found = wanted[:1]
    originals = [by_name.pop(name) for name in found]
    if originals:
        by_name[TABLE[0]] = originals[0]
        account.tied = originals[1:]


def _settle_adapters(
    account: Account,
    leaves: Mapping[str, re.Match[str]],
    tensors: Mapping[str, TensorInfo],
    adapter: Mapping[str, Any] | None,
) -> None:
    """Pair the LoRA leaves, or list those that cannot be merged with the reason: none is ever dropped."""
    pairs: dict[str, dict[str, str]] = {}
    for name, match in leaves.items():
        pairs.setdefault(canonical(match["base"] + ".weight"), {})[match["side"]] = name
    targets = {place.source: name for place, name in account.names.items()}
    for base, sides in sorted(pairs.items()):
        reason = _obstacle(base, sides, targets, tensors, adapter)
        if reason:
            account.unmerged += [f"{name} ({reason})" for name in sides.values()]
            continue
        assert adapter is not None
        rank = tensors[sides["A"]].shape[0]
        scale = float(adapter["lora_alpha"]) / (math.sqrt(rank) if adapter.get("use_rslora") else rank)
        account.adapters[targets[base]] = Adapter(sides["A"], sides["B"], scale)


def _obstacle(
    base: str,
    sides: Mapping[str, str],
    targets: Mapping[str, str],
    tensors: Mapping[str, TensorInfo],
    adapter: Mapping[str, Any] | None,
) -> str | None:
    """Why a pair cannot be merged, or None."""
    if adapter is None or not isinstance(adapter.get("lora_alpha"), int | float):
        return "no adapter_config.json with lora_alpha, so the scale is unknown"
    strange = [key for key, plain in _ADAPTER_PLAIN.items() if adapter.get(key, plain) not in (plain, None)]
    if strange:
        return f"adapter_config.json sets {', '.join(strange)}"
    if base not in targets:
        return "no such tensor in the model"
    if len(sides) != 2:
        return "its other half is missing"
    a, b, weight = tensors[sides["A"]].shape, tensors[sides["B"]].shape, tensors[targets[base]].shape
    if len(a) != 2 or len(b) != 2 or len(weight) != 2 or (b[0], a[1]) != weight or a[0] != b[1]:
        return f"shapes {list(b)} x {list(a)} do not make {list(weight)}"
    if adapter.get("r") not in (None, a[0]):
        return f"rank {a[0]}, adapter_config.json says {adapter['r']}"
    return None


def trunk_tensors(account: Account, tensors: Mapping[str, TensorInfo]) -> list[tuple[str, TensorInfo]]:
    """What every expert of this trunk shares: image tower, token table, language layers; by canonical name."""
    own = (EXPERT, "time_mlp_", "action_")
    return [(p.source, tensors[name]) for p, name in account.names.items() if not p.source.startswith(own)]
