"""The table of several experts, on the tiny model."""

from __future__ import annotations

import argparse
import json

import pytest

from oxygen.bench import frame
from oxygen.bench.experts import PROMPT_LEN, Prompts
from oxygen.core.errors import InvalidInput
from oxygen.models.qwen3_vl.spec import PRESETS, with_heads


def parse(*given: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    frame.add_arguments(parser)
    return parser.parse_args(list(given))


@pytest.mark.parametrize("extra", [[], ["--identical-prompt"]])
def test_a_small_table(capsys, extra):
    args = parse(
        "--model",
        "qwen3vl-tiny",
        "--experts",
        "pi,oft",
        "--text-lengths",
        "4",
        "--rounds",
        "1,2",
        "--frames",
        "3",
        *extra,
    )
    assert frame.run(args) == 0
    record = json.loads(capsys.readouterr().out.strip().splitlines()[-1])
    points = [(row["num_experts"], row["new_tokens"], row["k"], row["mean_batch"]) for row in record["rows"]]
    assert points == [(2, 4, 1, 4.0), (2, 4, 2, 2.0), (3, 4, 1, 4.0), (3, 4, 2, 2.0)]
    assert {row["prompts"] for row in record["rows"]} == {"identical" if extra else "own tails"}
    assert all(row["frame_ms"] > 0 and row["ideal_frame_ms"] > 0 and row["speedup"] > 0 for row in record["rows"])


def test_a_preset_of_this_family_has_all_its_experts_by_default(capsys):
    assert frame.run(parse("--model", "qwen3vl-tiny", "--text-lengths", "2", "--rounds", "1", "--frames", "2")) == 0
    record = json.loads(capsys.readouterr().out.strip().splitlines()[-1])
    assert [row["num_experts"] for row in record["rows"]] == [2, 3, 4]


def test_the_prompt_has_the_papers_length():
    spec = with_heads(PRESETS["qwen3vl-medium"], ("pi", "gr00t", "oft"))
    same, own = Prompts.make(spec, True), Prompts.make(spec, False)
    assert len(same.core_ids) == PROMPT_LEN == len(own.core_ids) + len(own.tails["oft"])
    assert same.core_ids[: len(own.core_ids)] == own.core_ids
    assert same.tails["oft"] == () and len(own.tails["pi"]) < len(own.tails["oft"])


def test_other_families_are_refused():
    with pytest.raises(InvalidInput, match="model"):
        frame.run(parse("--model", "pi05-tiny", "--experts", "pi"))
