"""Prompts: state bins and texts equal the references, templates are data and stay data."""

from __future__ import annotations

import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from processing.cases import DATA

from oxygen.core.errors import CheckpointError, InvalidInput
from oxygen.processing.prompts import BUILT_IN, Template, TemplateSet, state_bins, state_text

GOLDEN = json.loads((DATA / "state_discretization.json").read_text())
LEROBOT = json.loads((DATA / "prompt_text_lerobot.json").read_text())


@pytest.mark.parametrize("example", GOLDEN["examples"], ids=lambda e: e["dtype"])
def test_bins_equal_openpi(example: dict) -> None:
    kind = "<f8" if example["dtype"] == "float64" else "<f4"
    values = np.frombuffer(bytes.fromhex(example["hex_le"]), dtype=kind)
    assert state_bins(values).tolist() == example["bins"]


@given(st.lists(st.floats(allow_nan=True, width=64), max_size=20))
def test_bins_are_what_the_edges_say(values: list[float]) -> None:
    edges = np.linspace(-1, 1, 257)[:-1]
    assert state_bins(np.array(values)).tolist() == (np.digitize(np.array(values), edges) - 1).tolist()


@given(st.floats(-1, 1, exclude_max=True))
def test_a_bin_holds_its_value(value: float) -> None:
    bin_ = int(state_bins(np.array([value]))[0])
    assert bin_ / 128 - 1 <= value < (bin_ + 1) / 128 - 1


@pytest.mark.parametrize(
    ("prompt", "state", "text"), [(c["prompt"], c["state"], c["text"]) for c in GOLDEN["prompt_text"]]
)
def test_action_prompt_equals_openpi(prompt: str, state: list[float], text: str) -> None:
    template = TemplateSet.build("pi05").for_action("action")
    assert template.fill({"prompt": prompt, "state": state_text(np.array(state))}) == ((text,), ())


@pytest.mark.parametrize("case", LEROBOT)
def test_action_prompt_equals_lerobot(case: dict) -> None:
    template = TemplateSet.build("pi05").for_action("action")
    words = {"prompt": case["task"], "state": state_text(np.array(case["state"], dtype=np.float32))}
    assert template.fill(words) == ((case["text"],), ())


def test_the_form_without_state_keeps_its_newline_apart() -> None:
    template = TemplateSet.build("pi05-libero").for_action("action")
    assert template.fill({"prompt": " Put_it\nthere ", "state": "1 2"}) == (("Put it there", "\n"), ())


@pytest.mark.parametrize(
    ("prompt", "expected"),
    [
        ("Pick up the Cup.", "pick up the cup"),
        ("  go_on!! ", "go on!"),
        ("wait", "wait"),
        ("", ""),
        ("?", ""),
    ],
)
def test_subtask_prompt_is_lowered_and_loses_its_last_punctuation(prompt: str, expected: str) -> None:
    template = TemplateSet.build("pi05").for_text("subtask")
    assert template.fill({"prompt": prompt}) == ((f"Task: {expected}. Subtask: ",), ())


def test_the_shared_set_has_one_prefix_and_a_tail_for_every_kind() -> None:
    templates = TemplateSet.build("shared")
    words = {"prompt": "open it", "state": "1 2", "question": "is it open?"}
    prefix = templates.for_action("action").fill(words)[0]
    filled = {kind: templates.for_text(kind).fill(words) for kind in templates.text_kinds}
    assert {found[0] for found in filled.values()} == {prefix}
    assert len({found[1] for found in filled.values()}) == len(filled) == 4
    assert filled["answer"][1] == ("Question: is it open? Answer:",)


@given(st.text(max_size=40))
def test_words_of_people_are_never_read_as_template(prompt: str) -> None:
    template = Template.from_dict("x", {"prefix": "<{prompt}|{state}>", "clean": []})
    words = {"prompt": prompt + "{state}{question}", "state": "7"}
    assert template.fill(words) == ((f"<{prompt}{{state}}{{question}}|7>",), ())


def test_a_missing_word_is_refused_by_name() -> None:
    with pytest.raises(InvalidInput, match="question"):
        TemplateSet.build("shared").for_text("answer").fill({"prompt": "x", "state": "1"})


def test_unknown_kinds_are_refused_with_the_known_ones() -> None:
    templates = TemplateSet.build("pi05")
    for kind in ("answer", "action", ""):
        with pytest.raises(InvalidInput, match="subtask"):
            templates.for_text(kind)
    with pytest.raises(InvalidInput, match="no action prompt"):
        TemplateSet.build({"subtask": {"prefix": "x"}}).for_action("action")
    assert TemplateSet.build({"action": {"prefix": "x"}, "other": {"prefix": "y"}}).for_action("other").kind == "other"


@pytest.mark.parametrize("name", BUILT_IN)
def test_sets_survive_being_written(name: str) -> None:
    templates = TemplateSet.build(name)
    again = TemplateSet.build(json.loads(json.dumps(templates.to_dict())))
    assert again == templates


@pytest.mark.parametrize(
    "written",
    [
        "unknown-set",
        {},
        {"action": {"tail": "x"}},
        {"action": {"prefix": "{instruction}"}},
        {"action": {"prefix": ""}},
        {"action": {"prefix": 3}},
        {"action": {"prefix": "x", "clean": ["upper"]}},
        {"action": {"prefix": "x", "suffix": "y"}},
        {"action": {"prefix": "{question}", "tail": "x"}},
        {"action": "x"},
    ],
)
def test_broken_sets_are_refused(written: object) -> None:
    with pytest.raises(CheckpointError):
        TemplateSet.build(written)
