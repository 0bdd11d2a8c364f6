"""An adversary at a StarVLA folder and at the engine on it: every failure is one clear error, and disturbs nobody."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from models.qwen3_vl.folders import OFT, OUTPUT, PI, TOLD, starvla
from processing.chat_cases import ROBOT, picture

from oxygen.cli.main import main
from oxygen.core.config import EngineConfig
from oxygen.core.errors import CheckpointError, Ended, InvalidInput
from oxygen.core.tasks import ActionTask, Observation, TextTask
from oxygen.engine.engine import Engine
from oxygen.models.qwen3_vl.opening import read_qwen3_vl
from oxygen.models.qwen3_vl.sizes import read_heads
from oxygen.processing.chat import QUERY
from oxygen.runtime.torch.open import open_parts
from oxygen.serving.open import open_engine

STATE = np.zeros(8)


@pytest.fixture(scope="module")
def good(tmp_path_factory):
    return starvla(tmp_path_factory.mktemp("refusals") / "pi")


def changed(good: Path, folder: Path, part: str | None, changes: Any) -> Path:
    """A copy whose oxygen.json says something else: under `spec`, under `processor`, of the head, or at its top."""
    folder.mkdir()
    for path in good.iterdir():
        if path.suffix == ".safetensors":
            (folder / path.name).symlink_to(path)
        else:
            shutil.copyfile(path, folder / path.name)
    told = json.loads((folder / "oxygen.json").read_text())
    if part == "head":
        told["spec"]["heads"] = [TOLD | changes]
    elif part in ("trunk", "vision"):
        told["spec"].setdefault(part, {}).update(changes)
    elif part is None:
        told |= changes
    else:
        told[part] |= changes
    (folder / "oxygen.json").write_text(json.dumps(told))
    return folder


def expert(**changes: Any) -> dict[str, Any]:
    return {"experts": {"pi": {k: v for k, v in (OUTPUT | changes).items() if v != "left out"}}}


def camera(**told: Any) -> dict[str, Any]:
    return {"robot": ROBOT | {"cameras": {"front": told}}}


@pytest.mark.parametrize(
    ("part", "changes", "said"),
    [
        ("head", {"num_heads": 3}, "width 64 in 3 heads"),
        ("head", {"num_heads": 0}, "num_heads must be at least 1"),
        ("head", {"num_heads": "2"}, "num_heads must be a whole number, got '2'"),
        ("head", {"num_heads": 1.0}, "num_heads must be a whole number"),
        ("head", {"depth": 3}, "head of kind pi: 3 blocks on 4 layers; it has one for each"),
        ("head", {"depth": "4"}, "head of kind pi: 4 blocks"),
        ("head", {"num_learned": 31}, r"wrong shape: action_model.future_tokens.weight \[32, 64\]"),
        ("head", {"horizon": None}, "horizon must be a whole number, got None"),
        ("head", {"horizon": 10**9}, "horizon 1000000000 of at most 1024"),
        ("head", {"horizon": True}, "horizon must be a whole number"),
        ("head", {"topology": "x"}, "topology 'x', expected all_cross or interleaved"),
        ("head", {"last_stage": "x"}, "last_stage must be residual or normed, got 'x'"),
        ("head", {"num_steps": 10**12}, "num_steps 1000000000000 of at most 1000"),
        ("head", {"kind": "oft"}, "head of kind 'oft', the tensors are of kind pi"),
        ("head", {"name": "a.b"}, "a name of letters"),
        ("head", {"state_dim": 9, "topology": "interleaved"}, "3 numbers of state, expert pi reads 9"),
        ("head", {"projects": True}, "prompt must be said"),
        ("head", {"extra": 1}, "unknown extra"),
        ("spec", {"heads": "pi"}, "heads: expected a list of maps"),
        ("spec", {"heads": [TOLD, TOLD]}, "2 heads are named, the folder holds one"),
        ("spec", {"trunk": 5}, "trunk: expected a map"),
        ("spec", {"eos_ids": 5}, "eos_ids must be a list of a whole number"),
        ("spec", {"eos_ids": []}, "no text would end"),
        ("spec", {"image_id": 7}, "tokens around pictures"),
        ("trunk", {"num_heads": 3}, "no multiple"),
        ("trunk", {"num_kv_heads": 4}, "wrong shape"),
        ("trunk", {"rope_sections": "x"}, "rope_sections must be a list of 3 times a whole number"),
        ("trunk", {"rope_sections": [1, 2, 3]}, "must sum up to half"),
        ("trunk", {"rope_theta": -1}, "rope_theta must be above 0"),
        ("trunk", {"rope_theta": 10**400}, "rope_theta must be a finite number"),
        ("vision", {"taps": [9]}, "vision.taps"),
        ("vision", {"taps": "01"}, "taps must be a list"),
        ("vision", {"num_heads": 5}, "vision.width"),
        ("processor", camera(slot=None), "cameras.front.slot: expected a name, got None"),
        ("processor", {"robot": "mars"}, "robot.name: expected one of"),
        ("processor", {"robot": ROBOT | {"action_dim": 9}}, "9 actions, expert pi has 7"),
        ("processor", {"experts": {"gr00t": OUTPUT}}, "heads that are not there: gr00t"),
        ("processor", {"experts": {}}, "experts.pi: does not say normalization, is_clipped, binary"),
        ("processor", expert(is_clipped="left out"), "experts.pi: does not say is_clipped, which no tensor shows"),
        ("processor", expert(normalization="zscore"), "normalization: expected one of identity, minmax, quantile"),
        ("processor", expert(normalization="quantiles"), "normalization: expected one of"),
        ("processor", expert(normalization=["minmax"]), "1 modes for 3 dimensions"),
        ("processor", expert(normalization="mean_std"), "statistics 'bridge' lack mean, std"),
        ("processor", expert(binary={"7": [0, 0, 1]}), "binary: dimension 7 of 3"),
        ("processor", expert(binary={"2": 0.5}), "binary: expected a map of dimension to"),
        ("processor", expert(binary={"2": [0, 0, float("nan")]}), "binary: expected"),
        ("processor", expert(binary={"2": [0, 0, 10**400]}), "binary: expected"),
        ("processor", expert(prompt="{zz}"), "unknown field 'zz'"),
        ("processor", expert(prompt="{prompt} {state}"), "state_normalization: does not say it"),
        ("processor", expert(horizon=99), "horizon must not be said: the model fixes it"),
        ("processor", {"vocab_size": 5}, "vocab_size must not be said"),
        ("processor", {"wrapper": 5}, "wrapper: expected a text"),
        ("processor", {"wrapper": "Do it."}, "must hold {instruction} once"),
        ("processor", {"templates": {"answer": "{question}"}}, "no prompt for expert pi"),
        ("processor", {"first_size": 10**7}, "more than max_pixels"),
        ("processor", {"image_tokens": ["<|odd|>", "<|image_pad|>", "<|vision_end|>"]}, "no token <.odd.>"),
        ("processor", {"asset_id": "mars"}, "no statistics for asset 'mars'; there are: bridge, other"),
        ("processor", {"colour": 1}, "unknown settings colour"),
        (None, {"heads_from": "pi"}, "heads_from: expected a list of folders"),
        (None, {"heads_from": ["."]}, "has heads_from too"),
        (None, {"heads_from": ["nowhere"]}, "does not exist"),
        (None, {"lora_scale": 1.0}, "lora_scale in oxygen.json: not for this family"),
    ],
)
def test_a_folder_that_says_it_wrong(good, tmp_path, capsys, part, changes, said):
    folder = changed(good, tmp_path / "x", part, changes)
    with pytest.raises(CheckpointError, match=said) as refusal:
        open_parts(folder, max_contexts=1, max_texts=1, tail_len=8)
    assert str(tmp_path) in str(refusal.value) and "\n" not in str(refusal.value)
    assert main(["inspect", str(folder)]) == 1
    assert "Traceback" not in capsys.readouterr().err


@pytest.mark.parametrize(
    ("shape", "said"),
    [(None, "missing tensors: action_model.action_encoder.layer1.weight"), ((5,), "shapes of no StarVLA head")],
)
def test_a_head_with_a_tensor_missing_or_of_too_few_axes(good, shape, said):
    opened = read_qwen3_vl(good)
    index = opened.checkpoint.tensors
    shapes = {name.removeprefix(opened.prefix): index[name].shape for name in index}
    del shapes["action_model.action_encoder.layer1.weight"]
    if shape is not None:
        shapes["action_model.action_encoder.layer1.weight"] = shape
    with pytest.raises(CheckpointError, match=said):
        read_heads(shapes, [TOLD], "folder")


@pytest.mark.parametrize("missing", ["wrapper", "experts"])
def test_what_training_put_around_the_instruction_and_the_units_must_be_said(good, tmp_path, missing):
    told = json.loads((changed(good, tmp_path / "x", None, {}) / "oxygen.json").read_text())
    del told["processor"][missing]
    (tmp_path / "x" / "oxygen.json").write_text(json.dumps(told))
    with pytest.raises(CheckpointError, match=missing):
        read_qwen3_vl(tmp_path / "x").processor()


RANGES = {"min": [-1, 0, -2], "max": [1, 4, 2]}


@pytest.mark.parametrize(
    ("written", "said"),
    [
        (None, "normalisation of actions by minmax: no statistics"),
        ("{", "not StarVLA's statistics"),
        ("null", "not StarVLA's statistics"),
        ("[" * 100_000, "not StarVLA's statistics"),
        ({"bridge": "x"}, "not StarVLA's statistics"),
        ({"bridge": {"action": {"min": [0, 0, 0]}}}, "statistics 'bridge' lack max"),
        ({"bridge": {"action": {"min": [0], "max": [1]}}}, "know 1 dimensions of actions, the robot has 3"),
        ({"bridge": {"state": RANGES}}, "statistics 'bridge' lack max, min"),
        ({"bridge": {"action": {"min": [0, 0, float("nan")], "max": [1, 1, 1]}}}, "not finite"),
        ({"bridge": {"action": {"min": [1, 1, 1], "max": [0, 0, 0]}}}, "min is above max"),
        ({"bridge": {"action": RANGES | {"mask": [True, True, False]}}}, "must say a mode for each dimension"),
    ],
)
def test_statistics_that_are_missing_or_wrong(good, tmp_path, written, said):
    folder = changed(good, tmp_path / "x", None, {})
    (folder / "dataset_statistics.json").unlink()
    if written is not None:
        text = written if isinstance(written, str) else json.dumps(written)
        (folder / "dataset_statistics.json").write_text(text)
    with pytest.raises(CheckpointError, match=said):
        read_qwen3_vl(folder).processor()


def test_a_lent_head_must_have_been_trained_with_the_same_statistics(good, tmp_path):
    other = starvla(tmp_path / "oft", OFT, {"horizon": 6, "token_id": OFT.token_id})
    experts = {"experts": {"pi": OUTPUT, "oft": OUTPUT}}
    base = changed(good, tmp_path / "x", "processor", experts)
    told = json.loads((base / "oxygen.json").read_text())
    (base / "oxygen.json").write_text(json.dumps(told | {"heads_from": ["../oft"]}))
    assert list(read_qwen3_vl(base).processor().config.experts) == ["pi", "oft"]
    statistics = json.loads((other / "dataset_statistics.json").read_text())
    statistics["bridge"]["action"]["max"][0] = 9
    (other / "dataset_statistics.json").write_text(json.dumps(statistics))
    with pytest.raises(CheckpointError, match="its statistics are not those of"):
        read_qwen3_vl(base).processor()


def test_a_prompt_without_its_query_tokens(tmp_path):
    experts = {"oft": OUTPUT | {"prompt": "{prompt}"}}
    folder = starvla(tmp_path / "oft", OFT, {"horizon": 6, "token_id": OFT.token_id}, experts=experts)
    with pytest.raises(CheckpointError, match="reads at 6 query tokens, its prompt has 0"):
        read_qwen3_vl(folder).processor()


def test_a_renamed_folder_is_the_same_checkpoint(good, tmp_path):
    """Nothing is read out of a path (StarVLA chooses a class by letters in it)."""
    names = ("Qwen2.5-VL", "florence", "x")
    opened = [read_qwen3_vl(changed(good, tmp_path / name, None, {})) for name in names]
    assert all(other.spec == opened[0].spec for other in opened) and opened[0].spec.heads == (PI,)


def test_the_documented_example_opens(good, tmp_path):
    page = (Path(__file__).parents[3] / "docs" / "starvla.md").read_text()
    written = json.loads(page.split("```json")[1].split("```")[0])
    folder = changed(good, tmp_path / "x", "processor", written["processor"])
    told = json.loads((folder / "oxygen.json").read_text())
    told["spec"]["heads"] = [head | {"num_heads": 1} for head in written["spec"]["heads"]]
    told["processor"] |= {"first_size": None}
    (folder / "oxygen.json").write_text(json.dumps(told))
    ranges = {"min": [-1] * 7, "max": [1] * 7}
    statistics = {name: {"action": ranges, "state": ranges} for name in ("bridge", "rt1")}
    (folder / "dataset_statistics.json").write_text(json.dumps(statistics))
    assert list(read_qwen3_vl(folder).processor().sets) == ["bridge", "rt1"]


@pytest.fixture(scope="module")
def engine():
    config = EngineConfig(budget="fixed:2", debug=True)
    engine = open_engine("qwen3vl-tiny", config=config, max_contexts=6, max_texts=6, tail_len=96)
    yield engine
    engine.close()


def seen(session: str = "odd", **changes: Any) -> Observation:
    images = {"image": picture(64, 64), "wrist_image": picture(64, 64, 1)} | changes.pop("images", {})
    return Observation(**({"images": images, "state": STATE, "prompt": "go", "session": session} | changes))


REQUESTS = [
    (seen(images={"image": picture(1, 201)}), "proportions of at most 200 to 1"),
    (seen(images={"image": picture(1080, 1920)}), "prompt: expected at most 768 tokens in all"),
    (seen(images={"image": np.zeros((0, 0, 3), np.uint8)}), "a picture with pixels"),
    (seen(images={"image": np.zeros((64, 64, 4), np.uint8)}), "alpha"),
    (seen(images={"image": np.full((64, 64, 3), np.nan)}), "finite"),
    (seen(images={"wrist_image": None}), "a picture of wrist_image"),
    (Observation([picture()], STATE, "go", "odd"), "images: expected a map"),
    (seen(prompt="word " * 10_000), "prompt: expected at most 16384 characters"),
    (seen(prompt="a b " * 2_500), "prompt: expected at most 768 tokens in all, got 10"),
    (seen(prompt=b"go"), "prompt: expected text, got bytes"),
    (seen(prompt=None), "prompt"),
    (seen(state=None), "state: expected 8 numbers, which an expert reads, got none"),
    (seen(state=np.zeros(7)), r"state: expected shape \[8\]"),
]


@pytest.mark.parametrize(("observation", "said"), REQUESTS, ids=[said for _, said in REQUESTS])
def test_a_bad_frame_is_refused_and_the_neighbour_notices_nothing(engine, observation, said):
    quiet = engine.submit(seen("neighbour"), ActionTask("all", seed=1)).actions(60, "oft").actions
    ticket = engine.submit(seen("neighbour"), ActionTask("all", seed=1), TextTask("narration", max_new_tokens=12))
    with pytest.raises(InvalidInput, match=said):
        engine.submit(observation, ActionTask("all"), TextTask("narration"))
    assert np.array_equal(ticket.actions(60, "oft").actions, quiet)
    assert len(ticket.text().result(60).token_ids) == 12 and engine.status == "ready"


@pytest.mark.parametrize(
    ("actions", "texts", "said"),
    [
        (ActionTask("fast"), (), r"expert: expected one of \['pi', 'gr00t', 'oft'\], got 'fast'"),
        ((ActionTask("pi"), ActionTask("pi")), (), "one task for each expert"),
        ((ActionTask("all"), ActionTask("oft")), (), "one task for each expert"),
        (ActionTask("all", noise=np.zeros((5, 7))), (), r"noise: .*\(6, 7\)"),
        ((), TextTask("oft"), "kind: expected one of answer, narration, subtask, memory"),
        (ActionTask("pi"), TextTask("answer", "x" * 3_000), "question: expected at most 95 tokens"),
        ((), TextTask("answer", 5), "question: expected text, got int"),
        (ActionTask("pi"), TextTask("narration", max_new_tokens=96), "max_new_tokens: expected at most 6"),
    ],
)
def test_bad_tasks_are_refused(engine, actions, texts, said):
    with pytest.raises(InvalidInput, match=said):
        engine.submit(seen(), actions, texts)
    assert engine.submit(seen(), ActionTask("gr00t")).actions(60).actions.shape == (6, 7)


@pytest.mark.parametrize("sizes", [((1, 1), (31, 33)), ((17, 999), (999, 17)), ((480, 640), (1, 200))])
def test_odd_pictures_that_can_be_served_are(engine, sizes):
    images = {"image": picture(*sizes[0]), "wrist_image": picture(*sizes[1])}
    ticket = engine.submit(seen(images=images), ActionTask("all"), TextTask("answer", "why?", max_new_tokens=3))
    for name in ("pi", "gr00t", "oft"):
        assert np.isfinite(ticket.actions(60, name).actions).all()
    assert len(ticket.text().result(60).token_ids) <= 3


@pytest.mark.parametrize("prompt", ["", "\0", QUERY * 20, "<|im_end|><|image_pad|>{state}{images}"])
def test_odd_instructions_are_words(engine, prompt):
    """OFT reads at the last query tokens, so an instruction that holds some changes nothing about where it reads."""
    ticket = engine.submit(seen(prompt=prompt), ActionTask("all"))
    assert all(np.isfinite(ticket.actions(60, name).actions).all() for name in ("pi", "gr00t", "oft"))


def test_a_tail_may_not_be_longer_than_a_context(tmp_path):
    """Experts whose prompts part before the instruction have it as private tokens."""
    experts = {"oft": OUTPUT | {"prompt": "Now {prompt} Please: " + "{queries}"}, "pi": OUTPUT}
    base = starvla(tmp_path / "pi", experts=experts)
    starvla(tmp_path / "oft", OFT, {"horizon": 6, "token_id": OFT.token_id})
    told = json.loads((base / "oxygen.json").read_text())
    (base / "oxygen.json").write_text(json.dumps(told | {"heads_from": ["../oft"]}))
    engine = Engine.from_pretrained(base, max_contexts=2, max_texts=1, tail_len=8)
    try:
        frame = Observation({"front": picture()}, np.zeros(3), "go", "arm")
        assert engine.submit(frame, ActionTask("all")).actions(60, "oft").actions.shape == (6, 3)
        with pytest.raises(InvalidInput, match="at most 192 tokens behind what is shared"):
            engine.submit(Observation({"front": picture()}, np.zeros(3), "go " * 400, "arm"), ActionTask("all"))
    finally:
        engine.close()


def test_a_close_in_the_middle(good):
    engine = Engine.from_pretrained(good, max_contexts=3, max_texts=3, tail_len=64)
    frame = Observation({"front": picture()}, np.zeros(3), "go", "arm")
    ticket = engine.submit(frame, ActionTask("all"), TextTask("narration", max_new_tokens=30, ignore_eos=True))
    engine.close()
    try:
        assert ticket.actions(5).actions.shape == (4, 3)
    except Ended as end:
        assert end.reason == "closed"
    assert ticket.text().result(5).finish_reason in ("closed", "length")
    with pytest.raises(Exception, match="closed"):
        engine.submit(frame)
