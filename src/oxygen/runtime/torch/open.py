"""From a checkpoint folder, or the name of a preset, to a runner that is ready to work."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import replace
from math import inf
from numbers import Integral
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import torch

from oxygen.checkpoint.shipped import SHIPPED, resolve
from oxygen.core.errors import CheckpointError, InvalidInput, Refused, check_number
from oxygen.runtime.presets import PRESETS, is_preset
from oxygen.runtime.torch.families import FAMILIES, family_of_preset, load, read_folder
from oxygen.runtime.torch.graphs import MODES
from oxygen.runtime.torch.runner import TorchRunner, store_shape

log = logging.getLogger(__name__)

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}
WORKING_BYTES = 256 * 2**20
"""What a step needs besides weights and storage (activations, scores): an estimate that holds for the presets."""


def open_runner(
    source: Any,
    *,
    device: str = "cpu",
    dtype: str = "float32",
    max_contexts: int = 40,
    max_texts: int = 40,
    context_len: int | None = None,
    tail_len: int = 128,
    eos_ids: Sequence[int] = (1,),
    forbidden_ids: np.ndarray | None = None,
    poison_freed: bool = False,
    graphs: str = "auto",
    lookahead: bool | None = None,
    threads: int | None = None,
    seed: int = 0,
    spec: dict[str, Any] | None = None,
) -> TorchRunner:
    """A runner on weights of a checkpoint folder, of a preset (random, from `seed`), or of a model made elsewhere.

    A folder opened by `read_folder` brings its robot's chunk length and whatever sizes it was told.

    context_len: tokens of the longest context (None: what the model can take). tail_len: tokens of the longest text
    with its prompt tail. graphs: `auto` is `cuda` on a GPU and `off` on a CPU. lookahead: None takes it on a GPU
    only. threads: of a CPU, for the whole process. spec: sizes of a preset to replace, or sizes that no tensor of
    the folder shows. A model made elsewhere brings its device and dtype and is prepared for inference here. Raises
    CheckpointError, InvalidInput, or Refused("memory") when weights and storage cannot fit.
    """
    limits = {"max_contexts": max_contexts, "max_texts": max_texts, "tail_len": tail_len}
    optional = {"context_len": context_len, "threads": threads}
    _check_numbers(limits | {name: told for name, told in optional.items() if told is not None} | {"seed": seed})
    _check_choices({"dtype": (dtype, tuple(DTYPES)), "graphs": (graphs, ("auto", *MODES))})
    _check_choices({"lookahead": (lookahead, (None, True, False)), "poison_freed": (poison_freed, (True, False))})
    chosen = _device(device)
    if threads is not None:
        torch.set_num_threads(threads)
    model = _open_model(source, chosen, DTYPES[dtype], seed, spec or {})
    for token_id in eos_ids if isinstance(eos_ids, Sequence) else (eos_ids, None):
        check_number("eos_ids", token_id, "a list of token ids", 0, model.spec.vocab_size - 1, Integral)
    context_len = context_len or model.spec.max_context_len
    shape = store_shape(model.spec, max_contexts, max_texts, context_len, tail_len)
    _refuse_if_too_large(shape.total_bytes(model.dtype) + WORKING_BYTES, model.device, "context and tail storage")
    model.prepare_for_inference()
    on_gpu = model.device.type == "cuda"
    return TorchRunner(
        model,
        context_len=context_len,
        **limits,
        eos_ids=eos_ids,
        forbidden_ids=forbidden_ids,
        poison_freed=poison_freed,
        graphs=("cuda" if on_gpu else "off") if graphs == "auto" else graphs,
        lookahead=on_gpu if lookahead is None else lookahead,
    )


def _check_numbers(told: Mapping[str, Any]) -> None:
    most = {"seed": 2**63 - 1, "threads": 1024}  # more threads than that end the process
    for name, value in told.items():
        least = int(name != "seed")
        bound = f"from {least} to {most[name]}" if name in most else f"of at least {least}"
        check_number(name, value, f"an integer {bound}", least, most.get(name, inf), Integral)


def _check_choices(told: Mapping[str, tuple[Any, tuple[Any, ...]]]) -> None:
    for name, (value, known) in told.items():
        if not isinstance(value, str | bool | None) or value not in known:
            raise InvalidInput(name, f"one of {', '.join(map(str, known))}", f"{value!r:.80}")


def _device(name: str) -> torch.device:
    """The device of this name, if the machine has it."""
    try:
        device = torch.device(name)
        if device.type not in ("cpu", "cuda") or (device.type == "cuda" and not torch.cuda.is_available()):
            raise RuntimeError("not on this machine")
    except (TypeError, RuntimeError) as error:
        raise InvalidInput("device", "cpu, or cuda where there is one", f"{name!r:.80}") from error
    return device


def open_untrained(name: str, robot: str, **device: Any) -> tuple[TorchRunner, Any]:
    """Runner and processor of a preset. Random weights speak bytes and move at random: good for trying connections,
    not for robots.
    """
    changes, processor = family_of_preset(name).untrained(PRESETS[name], robot)
    ids = {"eos_ids": processor.tokenizer.eos_ids, "forbidden_ids": processor.forbidden_ids}
    return open_runner(name, spec=changes, **ids, **device), processor


def open_parts(folder: str | Path, *, robot: str | None = None, **device: Any) -> tuple[TorchRunner, Any]:
    """Runner and processor of one checkpoint folder, made for each other. device: as `open_runner` takes it.

    Raises CheckpointError.
    """
    opened = read_folder(folder, robot=robot, overrides=device.pop("spec", None))
    processor = opened.processor()
    runner = open_runner(opened, eos_ids=processor.tokenizer.eos_ids, forbidden_ids=processor.forbidden_ids, **device)
    return runner, processor


def _open_model(source: Any, device: torch.device, dtype: torch.dtype, seed: int, changes: dict[str, Any]) -> Any:
    if isinstance(source, torch.nn.Module):
        return source
    opened: tuple[Any, ...] = tuple(family.opened for family in FAMILIES.values())
    if isinstance(source, opened):
        _refuse_if_too_large(weight_bytes(source.spec, dtype), device, f"weights of {source.where}")
        return load(source, device, dtype)
    folder = resolve(source)
    if is_preset(source):
        try:
            preset = replace(PRESETS[str(source)], **changes)
        except (TypeError, CheckpointError) as error:
            raise InvalidInput("spec", f"sizes that {source} can have ({error})", f"{changes!r:.80}") from error
        _refuse_if_too_large(weight_bytes(preset, dtype), device, f"weights of {source}")
        log.info("%s: random weights from seed %d", source, seed)
        return family_of_preset(str(source)).build(preset, device, dtype, seed=seed)
    if not folder.exists():
        known = ", ".join((*SHIPPED, *PRESETS))
        raise InvalidInput("model", f"a checkpoint folder or one of {known}", f"{str(source)!r:.80}")
    return _open_model(read_folder(source, overrides=changes or None), device, dtype, seed, {})


def weight_bytes(spec: Any, dtype: torch.dtype) -> int:
    """Bytes of the weights in use. On a CPU the token table counts twice: as a table, and packed as the head."""
    table = spec.vocab_size * spec.trunk.width
    return (spec.num_parameters() + table) * dtype.itemsize


def _refuse_if_too_large(needed: int, device: torch.device, what: str) -> None:
    """Compare with the memory that is free now."""
    free = torch.cuda.mem_get_info(device)[0] if device.type == "cuda" else psutil.virtual_memory().available
    if needed > free:
        raise Refused("memory", f"{what} need {needed / 1e9:.1f} GB, {free / 1e9:.1f} GB are free on {device}")
