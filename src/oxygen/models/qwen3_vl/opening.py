"""A Qwen3-VL or StarVLA folder with everything settled but the weights: sizes, heads, their balance, the processor.

What no tensor shows comes from config.json (transformers) or from `oxygen.json`, and is refused where it is missing.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from oxygen.checkpoint.fast import open_fast
from oxygen.checkpoint.folder import Checkpoint, open_folder
from oxygen.checkpoint.placement import Balance, balance
from oxygen.checkpoint.values import fingerprint
from oxygen.core.errors import CheckpointError
from oxygen.models.heads.spec import OftSpec, PiSpec
from oxygen.models.qwen3_vl.names import (
    ACTION,
    HEAD,
    PROJECT,
    STARVLA,
    head_placements,
    known_unused,
    trunk_placements,
)
from oxygen.models.qwen3_vl.sizes import read_heads, read_trunk
from oxygen.models.qwen3_vl.spec import Qwen3VLSpec
from oxygen.processing.chat import QUERY
from oxygen.processing.chat_config import ChatConfig
from oxygen.processing.chat_processor import ChatProcessor
from oxygen.processing.starvla import read_dataset_statistics
from oxygen.processing.statistics import Statistics
from oxygen.processing.tokenizer import load_tokenizer

_OF_MODEL, _OF_HEADS = {"vocab_size", "token_pixels"}, {"horizon", "action_dim", "state_dim"}
_FIRST_SIZE = 224
"""StarVLA presses every picture into this square before the trunk's own processor sees it."""


@dataclass(frozen=True)
class Qwen3VLFolder:
    """See read_qwen3_vl. prefix: what the file puts before the trunk's names. further: folders that lend their heads,
    which come behind its own in `spec`.
    """

    checkpoint: Checkpoint
    spec: Qwen3VLSpec
    prefix: str
    balance: Balance
    robot: str | None = None
    asset_id: str | None = None
    further: tuple[Qwen3VLFolder, ...] = ()

    @property
    def where(self) -> str:
        return str(self.checkpoint.folder)

    def trunk_fingerprint(self) -> str:
        """SHA-256 over the trunk's tensors by transformers' names: equal for folders that hold the same trunk."""
        tensors = self.checkpoint.tensors
        assert tensors is not None
        own = (ACTION, PROJECT)
        placed = self.balance.placed.items()
        return fingerprint((place.source, tensors[name]) for place, name in placed if not place.source.startswith(own))

    @property
    def processor_config(self) -> ChatConfig:
        """What oxygen.json says under `processor`, with the sizes of the model. Raises CheckpointError."""
        declared = self.checkpoint.declared
        told = {key: declared[key] for key in ("robot", "asset_id") if key in declared}
        told |= declared.get("processor") or {}
        if self.robot is not None:
            told["robot"] = self.robot
        if self.asset_id is not None:
            told["asset_id"] = self.asset_id
        heads = {head.name: head for head in self.spec.heads}
        given = told.get("experts") or {}
        if not isinstance(given, Mapping) or not all(isinstance(entry, Mapping) for entry in given.values()):
            raise CheckpointError(f"{self.where}: processor: experts: expected a map of maps, got {given!r:.80}")
        if unknown := sorted(given.keys() - heads.keys()):
            raise CheckpointError(
                f"{self.where}: processor.experts names heads that are not there: {', '.join(unknown)}"
            )
        if fixed := sorted((_OF_MODEL & told.keys()) | {key for e in given.values() for key in _OF_HEADS & e.keys()}):
            raise CheckpointError(f"{self.where}: processor: {', '.join(fixed)} must not be said: the model fixes it")
        self._check_prompts(told, given)
        told["experts"] = {
            name: {
                **given.get(name, {}),
                "horizon": head.horizon,
                "action_dim": head.action_dim,
                "state_dim": head.shape().state_dim,
            }
            for name, head in heads.items()
        }
        told |= {"vocab_size": self.spec.vocab_size, "token_pixels": self.spec.vision.token_pixels}
        if heads or told.get("fast"):
            told.setdefault("first_size", _FIRST_SIZE)
        try:
            return ChatConfig.from_dict(told)
        except CheckpointError as error:
            raise CheckpointError(f"{self.where}: {error}") from None

    def _check_prompts(self, told: Mapping[str, Any], given: Mapping[str, Any]) -> None:
        """What stood around the instruction in training is not in the weights, so it must have been said."""
        if (self.spec.heads or told.get("fast")) and "wrapper" not in told:
            raise CheckpointError(
                f"{self.where}: processor: wrapper must be said (a text around {{instruction}}, or null for none)"
            )
        templates = told.get("templates")
        for head in self.spec.heads:
            has_template = isinstance(templates, Mapping) and head.name in templates
            is_said = has_template or "prompt" in given.get(head.name, {})
            if isinstance(head, PiSpec) and head.projects and not is_said:
                raise CheckpointError(
                    f"{self.where}: processor: experts.{head.name}.prompt must be said: {{prompt}}, followed by "
                    "{state} between its two markers where the head was trained with the state as text"
                )

    def processor(self, tokenizer: str | Path | None = None) -> ChatProcessor:
        """The processor, complete. tokenizer: a file that takes the place of the folder's own."""
        path = Path(tokenizer) if tokenizer is not None else self.checkpoint.tokenizer
        if path is None:
            raise CheckpointError(f"{self.where}: no tokenizer (tokenizer.json); copy it from the original checkpoint")
        config, loaded = self.processor_config, load_tokenizer(path)
        sets = self._statistics(config)
        codec = None
        if (fast := config.fast) is not None:
            codec = open_fast(self.checkpoint.folder / fast.folder, fast.output.horizon, fast.output.action_dim)
        try:
            made = ChatProcessor(config, loaded, sets, codec)
        except CheckpointError as error:
            raise CheckpointError(f"{self.where}: {error}") from error
        spec = self.spec
        if made.image_token_ids != (wanted := (spec.vision_start_id, spec.image_id, spec.vision_end_id)):
            raise CheckpointError(
                f"{self.where}: the model's tokens around pictures are {list(wanted)}, "
                f"{' '.join(config.image_tokens)} are {list(made.image_token_ids)}"
            )
        for head in self.spec.heads:
            if isinstance(head, OftSpec):
                self._check_queries(head, made)
        return made

    def _check_queries(self, head: OftSpec, made: ChatProcessor) -> None:
        query = made.tokenizer.encode(QUERY)
        if query != [head.token_id]:
            raise CheckpointError(f"{self.where}: head {head.name} reads at token {head.token_id}, {QUERY} is {query}")
        template = made.templates.get(head.name) or made.templates.get("action")
        words = dict.fromkeys(("prompt", "state", "question"), "")
        found = template.token_ids(words, (), made.tokenizer)[0].count(head.token_id) if template else 0
        if found != head.horizon:
            raise CheckpointError(
                f"{self.where}: head {head.name} reads at {head.horizon} query tokens, its prompt has {found}"
            )

    def _statistics(self, config: ChatConfig) -> tuple[Statistics, ...]:
        """Every set of the folder. One for all heads, so lent heads must have been trained with the same."""
        sets, masks = read_dataset_statistics(self.checkpoint.folder)
        own = {found.asset_id: found.digest for found in sets}
        for other in self.further:
            theirs = {found.asset_id: found.digest for found in read_dataset_statistics(other.checkpoint.folder)[0]}
            if theirs and theirs != own:
                raise CheckpointError(f"{other.where}: its statistics are not those of {self.where}")
        outputs = {**config.experts, **({"fast": config.fast.output} if config.fast else {})}
        for name, expert in outputs.items():
            partly = [key for key, mask in masks.items() if not all(mask)]
            if partly and isinstance(expert.normalization, str):
                raise CheckpointError(
                    f"{self.where}: statistics {partly[0]!r} leave some actions as they are (mask); "
                    f"processor: experts.{name}: normalization must say a mode for each dimension"
                )
        return (*self.checkpoint.statistics, *sets)


def read_qwen3_vl(
    folder: Checkpoint | str | Path,
    *,
    robot: str | None = None,
    asset_id: str | None = None,
    overrides: Mapping[str, Any] | None = None,
) -> Qwen3VLFolder:
    """Open a folder without its weights. overrides: sizes as in Qwen3VLSpec, before those of oxygen.json.

    robot and asset_id: take the place of what oxygen.json says under `processor`. There, `heads_from` names further
    folders, relative to this one, whose heads run on this trunk.

    Raises CheckpointError where a size is not settled; the balance is not judged here (see Balance.check).
    """
    checkpoint = folder if isinstance(folder, Checkpoint) else open_folder(folder)
    if checkpoint.family != "qwen3_vl" or checkpoint.tensors is None:
        raise CheckpointError(f"{checkpoint.folder}: wrong family: {checkpoint.family}, expected qwen3_vl")
    index, where = checkpoint.tensors, str(checkpoint.folder)
    if foreign := sorted({"token_table", "lora_scale"} & checkpoint.declared.keys()):
        raise CheckpointError(f"{where}: {', '.join(foreign)} in oxygen.json: not for this family")
    prefix = STARVLA if any(name.startswith(STARVLA) for name in index) else ""
    shapes = {name.removeprefix(prefix): index[name].shape for name in index}
    told: dict[str, Any] = {**dict(checkpoint.declared.get("spec") or {}), **dict(overrides or {})}
    heads = tuple(read_heads(shapes, told.pop("heads", None), where))
    spec = replace(read_trunk(shapes, checkpoint.config, told, where), heads=heads)
    placements = [*trunk_placements(spec), *(place for head in heads for place in head_placements(head))]
    unused = {start: why for head in heads for start, why in known_unused(head).items()}
    weighed = balance(index.tensors, placements, prefix, tied=(HEAD,), unused=unused)
    further = tuple(_further(checkpoint, name) for name in checkpoint.declared.get("heads_from", ()))
    spec = replace(spec, heads=(*heads, *(head for other in further for head in other.spec.heads)))
    return Qwen3VLFolder(checkpoint, spec, prefix, weighed, robot, asset_id, further)


def _further(checkpoint: Checkpoint, name: str) -> Qwen3VLFolder:
    other = open_folder(checkpoint.folder / name)
    if other.declared.get("heads_from"):
        raise CheckpointError(f"{other.folder}: a folder that lends its head to {checkpoint.folder} has heads_from too")
    return read_qwen3_vl(other)
