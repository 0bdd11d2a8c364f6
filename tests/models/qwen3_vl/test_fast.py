"""FAST on a folder: chunks written as text, from ids of their own, in one batch with other texts."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import tokenizers
from models.qwen3_vl.folders import OUTPUT, spec_for
from processing.chat_cases import ROBOT, STATISTICS, picture, tokenizer_file
from processing.fast_cases import DIM, HORIZON, NUM_IDS, SCALE, chunks, coefficients, encode, write_tokenizer

from oxygen.checkpoint.fast import open_fast
from oxygen.checkpoint.torch import save_tensors
from oxygen.core.config import EngineConfig
from oxygen.core.errors import CheckpointError, InvalidInput, OxygenError
from oxygen.core.tasks import ActionTask, Observation, Sampling, TextTask
from oxygen.engine.engine import Engine
from oxygen.models.qwen3_vl.names import STARVLA, trunk_placements
from oxygen.models.qwen3_vl.opening import read_qwen3_vl
from oxygen.models.qwen3_vl.torch import build

SEEN = Observation({"front": picture()}, np.zeros(3), "pick up the red block", "arm")


def test_a_chunk_comes_back_but_for_its_rounding(tmp_path):
    bpe, low = write_tokenizer(tmp_path)
    codec = open_fast(tmp_path, HORIZON, DIM)
    for chunk in chunks(5, 20):
        ids = encode(bpe, low, chunk)
        found = codec.decode(ids)
        np.testing.assert_allclose(coefficients(found), coefficients(chunk), atol=0)
        assert len(ids) < HORIZON * DIM and np.abs(found - chunk).max() < HORIZON * 0.5 / SCALE
        with pytest.raises(OxygenError, match="coefficients, a chunk has 4 x 3"):
            codec.decode(ids[:-1])
    for ids, said in (([], "0 coefficients"), ([NUM_IDS], "stand for no text")):
        with pytest.raises(OxygenError, match=said):
            codec.decode(ids)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"time_horizon": 5}, "time_horizon is 5, the checkpoint says 4"),
        ({"action_dim": 7}, "action_dim is 7"),
        ({"scale": 0}, "scale and vocab_size must be above 0"),
        ({"scale": "10"}, "scale: expected a number, got '10'"),
        ({"min_token": None}, "min_token: expected a number"),
        ({"vocab_size": 8}, "vocab_size 8 for"),
    ],
)
def test_a_folder_that_says_it_wrong(tmp_path, changes, said):
    write_tokenizer(tmp_path, **changes)
    with pytest.raises(CheckpointError, match=said):
        open_fast(tmp_path, HORIZON, DIM)


def checkpoint(where: Path, **changes: object) -> tuple[Path, int]:
    """A trunk without heads whose vocabulary has rows for FAST's tokens; and the first of them."""
    where.mkdir()
    words = tokenizers.Tokenizer.from_file(str(tokenizer_file()))
    first_id = words.get_vocab_size()
    words.add_special_tokens([f"<robot_action_{i}>" for i in range(NUM_IDS)])
    words.save(str(where / "tokenizer.json"))
    spec = spec_for(vocab_size=1024)
    parameters = dict(build(spec, seed=3).named_parameters())
    tensors = {}
    for place in trunk_placements(spec):
        rows = parameters[place.parameter].detach()[place.start : place.start + place.shape[0]]
        scale = 4.0 if place.parameter.startswith("trunk") and place.parameter.endswith("out.weight") else 1.0
        tensors[STARVLA + place.source] = scale * rows.reshape(place.shape)
    save_tensors(where, tensors)
    write_tokenizer(where / "fast")
    told = {key: getattr(spec, key) for key in ("image_id", "vision_start_id", "vision_end_id", "max_context_len")}
    told |= {"trunk": {"rope_sections": [4, 2, 2]}, "vision": {"num_heads": 3, "taps": [0, 1]}, "eos_ids": [0, 2]}
    fast = {"folder": "fast", "first_id": first_id, "horizon": HORIZON, "action_dim": DIM, **OUTPUT} | changes
    processor = {"robot": ROBOT, "wrapper": None, "first_size": None, "fast": fast}
    (where / "oxygen.json").write_text(json.dumps({"spec": told, "processor": processor}))
    statistics = {"bridge": {"action": STATISTICS.to_groups()["actions"]}}
    (where / "dataset_statistics.json").write_text(json.dumps(statistics))
    return where, first_id


@pytest.fixture(scope="module")
def opened(tmp_path_factory):
    return checkpoint(tmp_path_factory.mktemp("fast") / "checkpoint")


def test_finished_ids_become_a_chunk_in_robot_units(opened):
    folder, first_id = opened
    found = read_qwen3_vl(folder).processor()
    bpe, low = write_tokenizer(folder / "fast")
    chunk = chunks(9, 1)[0]
    ids = [first_id + i for i in encode(bpe, low, chunk)]
    normal = found.fast.codec.decode([i - first_id for i in ids])
    low_units, high_units = STATISTICS.actions.min, STATISTICS.actions.max
    expected = (np.clip(normal, -1, 1) + 1) / 2 * (high_units - low_units) + low_units
    np.testing.assert_allclose(found.fast.chunk(ids, found.statistics_of(SEEN)), expected)
    with pytest.raises(OxygenError, match=f"token {first_id - 1} is not one of {first_id} to"):
        found.fast.chunk([first_id - 1, *ids], found.statistics_of(SEEN))


@pytest.mark.parametrize("sampling", [{}, {"temperature": 1.5, "seed": 3}], ids=["greedy", "drawn"])
def test_it_speaks_its_own_tokens_and_nobody_else_does(opened, sampling):
    """In one batch with a text, over frames: each as if it were alone (E2, E3), neither with a token of the other's."""
    folder, _ = opened
    engine = Engine.from_pretrained(
        folder, config=EngineConfig(budget="fixed:2", debug=True), max_contexts=6, max_texts=6, tail_len=64
    )
    try:
        fast = engine.processor.fast
        plain = TextTask("narration", max_new_tokens=16, sampling=Sampling(**sampling), ignore_eos=True)
        wanted = fast.task(16, **sampling)
        alone = [engine.submit(SEEN, (), task).text().result(60).token_ids for task in (wanted, plain)]
        busy = [engine.submit(SEEN, (), [wanted, plain, wanted]) for _ in range(2)]
        for ticket in busy[-1:]:
            got = [handle.result(60).token_ids for handle in ticket.texts]
            assert got == [alone[0], alone[1], alone[0]]
        assert alone[0] and set(alone[0]) <= set(fast.ids) and not set(alone[1]) & set(fast.ids)
        for task, said in (
            (TextTask("fast"), "sampling.allowed: .*FAST speaks its own tokens, got None"),
            (TextTask("fast", sampling=Sampling(allowed=range(5, 9))), "sampling.allowed"),
            (TextTask("narration", sampling=Sampling(allowed=[1])), "sampling.allowed: expected of type range"),
            (TextTask("narration", sampling=Sampling(allowed=range(9, 9))), "a range of ids"),
        ):
            with pytest.raises(InvalidInput, match=said):
                engine.submit(SEEN, (), task)
        with pytest.raises(InvalidInput, match=r"expert: expected one of \(none\)"):
            engine.submit(SEEN, ActionTask())
        with pytest.raises(OxygenError, match="FAST"):
            fast.chunk(alone[0][:1], None)
    finally:
        engine.close()


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"first_id": 5}, "token 5 must be <robot_action_0>"),
        ({"first_id": 1000}, "must be <robot_action_0>, the tokenizer says none"),
        ({"first_id": -1}, "expected a map with folder and first_id"),
        ({"folder": 5}, "expected a map with folder and first_id"),
        ({"folder": "nowhere"}, "cannot be read"),
        ({"horizon": 0}, "horizon: expected a whole number"),
        ({"action_dim": 2}, "3 actions, expert fast has 2"),
        ({"zz": 2}, "unknown settings zz"),
    ],
)
def test_a_checkpoint_that_says_it_wrong(tmp_path, changes, said):
    folder, _ = checkpoint(tmp_path / "x", **changes)
    with pytest.raises(CheckpointError, match=said):
        read_qwen3_vl(folder).processor()
