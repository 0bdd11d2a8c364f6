"""Which family of models a set of tensor names belongs to. Derived from the names alone, never from a path.

A family is recognised by marks: every pattern must be found in some tensor name, none of `without` may be. Families
that are recognised but not served are listed too, so that the refusal can say what the folder really is.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

from oxygen.checkpoint.headers import names
from oxygen.core.errors import CheckpointError


@dataclass(frozen=True, slots=True)
class Family:
    """Marks of one family. note: what the user should know, for families that are not served."""

    name: str
    marks: tuple[str, ...]
    without: tuple[str, ...] = ()
    note: str | None = None


FAMILIES = (
    Family("pi05", (r"gemma_expert\.model\.(layers\.\d+\.\w+|norm)\.dense\.",)),
    Family("pi05", (r"PaliGemma/llm/(layers/)?\w+_norm_1/Dense_0/",)),
    Family(
        "pi0",
        (r"gemma_expert\.model\.(layers\.\d+\.\w+norm|norm)\.weight",),
        note="a π0 checkpoint (its action expert has plain norms and a state token)",
    ),
    Family(
        "pi0",
        (r"PaliGemma/llm/(layers/)?\w+_norm_1/scale",),
        note="a π0 checkpoint (its action expert has plain norms and a state token)",
    ),
    Family("qwen3_vl", (r"language_model\.layers\.\d+\.self_attn\.q_norm\.", r"visual\.deepstack_merger_list\.")),
    Family(
        "paligemma",
        (r"(language_model|llm)", r"(vision_tower|/img/)"),
        without=(r"action_in_proj", r"expert"),
        note="a vision-language model without an action expert (PaliGemma or π0-FAST)",
    ),
)


def detect_family(tensor_names: Iterable[str], where: str) -> str:
    """The family of these names (dotted, or slash-separated paths of a JAX tree).

    Raises CheckpointError, saying what it is instead, if it is none that is served.
    """
    found = list(tensor_names)
    for family in FAMILIES:
        if all(_any(mark, found) for mark in family.marks) and not any(_any(mark, found) for mark in family.without):
            if family.note:
                raise CheckpointError(f"{where}: wrong family: {family.note}; served: {', '.join(served())}")
            return family.name
    raise CheckpointError(
        f"{where}: wrong family: the tensors are of no known one (served: {', '.join(served())}); "
        f"it holds {names(found, 6)}"
    )


def served() -> list[str]:
    """Names of the families that can be loaded."""
    return sorted({family.name for family in FAMILIES if family.note is None})


def _any(pattern: str, found: list[str]) -> bool:
    search = re.compile(pattern).search
    return any(search(name) for name in found)
