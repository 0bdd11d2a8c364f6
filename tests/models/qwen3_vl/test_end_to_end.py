"""From a StarVLA-shaped folder to an engine: experts and texts of one frame, and what `oxygen inspect` says of it."""

from __future__ import annotations

import json
import shutil

import numpy as np
import pytest
import torch
from models.qwen3_vl.cases import golden_folder
from models.qwen3_vl.folders import OFT, OUTPUT, PI, starvla
from processing.chat_cases import ROBOT, STATISTICS, picture, tokenizer

from oxygen.cli.main import main
from oxygen.core.config import EngineConfig
from oxygen.core.errors import InvalidInput
from oxygen.core.tasks import ActionTask, Observation, TextTask
from oxygen.engine.engine import Engine
from oxygen.models.qwen3_vl.torch.weights import load_qwen3_vl
from oxygen.processing.chat_config import ChatConfig, ExpertOutput
from oxygen.processing.chat_processor import ChatProcessor
from oxygen.runtime.torch.open import open_runner

FRAME = Observation({"front": picture()}, np.array([0.5, 1.0, 2.0]), "pick up the red block", "arm")
QUESTION = TextTask("answer", "why?", max_new_tokens=6, ignore_eos=True)


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    base = tmp_path_factory.mktemp("starvla")
    return (
        starvla(base / "pi"),
        starvla(base / "oft", OFT, {"horizon": 6, "token_id": OFT.token_id}),
    )


def test_a_folder_serves_actions_and_text(folders):
    engine = Engine.from_pretrained(
        folders[0], config=EngineConfig(budget="fixed:2"), max_contexts=4, max_texts=4, tail_len=64
    )
    try:
        ticket = engine.submit(FRAME, ActionTask(seed=1), QUESTION)
        found = ticket.actions(60)
        assert found.expert == "pi" and found.actions.shape == (4, 3)
        assert len(ticket.text().result(60).token_ids) == 6
        assert len(engine.ask("arm", QUESTION).text().result(60).token_ids) == 6
        with pytest.raises(InvalidInput, match="expert"):
            engine.submit(FRAME, ActionTask("gr00t"))
    finally:
        engine.close()


def test_a_folder_may_name_others_whose_heads_it_runs(folders, tmp_path):
    base = tmp_path / "pi"
    shutil.copytree(folders[0], base)
    told = json.loads((base / "oxygen.json").read_text())
    told["processor"]["experts"]["oft"] = OUTPUT
    (base / "oxygen.json").write_text(json.dumps(told | {"heads_from": [str(folders[1])]}))
    engine = Engine.from_pretrained(base, max_contexts=2, max_texts=2, tail_len=32)
    try:
        ticket = engine.submit(FRAME, ActionTask("all"))
        assert ticket.actions(60, "pi").actions.shape == (4, 3) and ticket.actions(60, "oft").actions.shape == (6, 3)
    finally:
        engine.close()
    assert main(["inspect", str(base)]) == 0


def engine_of_both(folders) -> Engine:
    """Two heads on one trunk; driven by hand."""
    model = load_qwen3_vl(folders[0], heads_from=[folders[1]])
    runner = open_runner(model, max_contexts=5, max_texts=5, tail_len=64, context_len=160, poison_freed=True)
    outputs = {
        "pi": ExpertOutput(4, 7, "minmax", True, {}),
        "oft": ExpertOutput(6, 7, "quantile", True, {"2": (0.0, 0.0, 1.0)}),
    }
    processor = ChatProcessor(ChatConfig(ROBOT, outputs, vocab_size=512), tokenizer(), [STATISTICS])
    return Engine(runner, processor, EngineConfig(budget="fixed:2", debug=True))


def test_every_experts_chunk_is_delivered_when_it_is_ready(folders):
    engine = engine_of_both(folders)
    order, act = [], engine.runner.act

    def watched(items):
        order.append(items[0].expert)
        if len(order) == 2:  # the first expert's chunk is out before the second begins
            assert ticket._chunks["pi"].done() and not ticket._chunks["oft"].done()
        return act(items)

    engine.runner.act = watched
    ticket = engine.submit(FRAME, ActionTask("all", seed=5), QUESTION)
    engine.step()
    assert order == ["pi", "oft"]
    assert ticket.actions(0, "pi").actions.shape == (4, 3) and ticket.actions(0, "oft").actions.shape == (6, 3)
    assert set(ticket.actions(0, "oft").actions[:, 2]) <= {0.0, 1.0}
    with pytest.raises(InvalidInput, match="one task for each expert"):
        engine.submit(FRAME, (ActionTask("all"), ActionTask("pi")))
    engine.close()


def test_actions_are_the_same_with_and_without_texts_and_texts_as_alone(folders):
    """E1 and E2 through the engine: chunks bit for bit, a text over frames token for token."""
    engine = engine_of_both(folders)
    quiet = engine.submit(FRAME, ActionTask("all", seed=5))
    engine.step()
    alone = engine.submit(FRAME, (), QUESTION)
    while not alone.is_done:
        engine.step()
    busy = []
    for number in range(4):
        seen = Observation(FRAME.images, FRAME.state, FRAME.prompt, "arm", number + 10)
        busy.append(engine.submit(seen, ActionTask("all", seed=5), (QUESTION, TextTask("narration", max_new_tokens=5))))
        engine.step()
    while not all(ticket.is_done for ticket in busy):
        engine.step()
    for ticket in busy:
        for expert in ("pi", "oft"):
            assert np.array_equal(ticket.actions(0, expert).actions, quiet.actions(0, expert).actions)
        assert ticket.text().result(0).token_ids == alone.text().result(0).token_ids
    engine.reset("arm")
    stats = engine.stats()
    assert (stats.context_rows, stats.tail_rows) == (0, 0) and stats.counts.get("unshared", 0) == 0
    engine.close()


def test_inspect_of_both_kinds_of_folder(folders, tmp_path, capsys):
    assert main(["inspect", str(folders[0])]) == 0
    said = capsys.readouterr().out
    for words in ("starvla", "all_cross", "hidden states of layer 0 to 3", "bridge", "sha256"):
        assert words in said, said
    assert main(["inspect", "--json", str(folders[1])]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["experts"]["oft"]["horizon"] == 6 and report["text"]["kinds"] and not report["warnings"]
    assert main(["inspect", str(golden_folder(tmp_path / "plain"))]) == 0
    assert "transformers" in capsys.readouterr().out
    report_of_broken = starvla(tmp_path / "broken", PI, {"horizon": 4, "num_heads": 1})
    assert main(["inspect", str(report_of_broken)]) == 1
    assert "topology must be said" in capsys.readouterr().err


def test_a_query_token_that_is_another_is_refused(tmp_path):
    from oxygen.models.qwen3_vl.opening import read_qwen3_vl

    folder = starvla(tmp_path / "odd", OFT, {"horizon": 6, "token_id": 7})
    with pytest.raises(Exception, match="reads at token 7"):
        read_qwen3_vl(folder).processor()
    assert torch.is_tensor(load_qwen3_vl(folder).table)
