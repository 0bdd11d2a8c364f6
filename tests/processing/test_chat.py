"""Chat prompts: bytes, cores and tails, pictures' sizes, statistics and grippers."""

from __future__ import annotations

import hashlib
import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from processing.chat_cases import CONTROL, EXPERTS, STATISTICS, picture, processor, tokenizer

from oxygen.core.errors import CheckpointError, InvalidInput, OxygenError
from oxygen.core.tasks import ActionTask, Observation, TextTask
from oxygen.processing.chat import BUILT_IN, QUERY, build_templates, common_length
from oxygen.processing.chat_config import ChatConfig, ExpertOutput
from oxygen.processing.grid import fit_to_grid, grid_size
from oxygen.processing.prompts import state_text
from oxygen.processing.starvla import KeyedObservation, from_units, read_dataset_statistics, to_units
from oxygen.processing.statistics import FieldStatistics, Statistics

ALL = tuple(ActionTask(name) for name in EXPERTS)
SEEN = Observation({"front": picture()}, np.array([0.5, 1.0, 8.0]), "pick up the red block")
GRIDS = {  # height x width -> tokens of 32 x 32 pixels
    (224, 224): 64,
    (256, 256): 64,
    (240, 320): 80,
    (256, 320): 80,
    (180, 320): 66,
    (480, 640): 300,
}


def whole(found, encoded, task):
    """All tokens that a task's reader meets."""
    context = encoded.contexts[task.context].token_ids
    return context[: task.context_len or len(context)] + task.tail_ids


@pytest.mark.parametrize(("size", "tokens"), GRIDS.items())
def test_pictures_become_whole_tokens(size, tokens):
    height, width = grid_size(*size, 32, 65_536, 16_777_216)
    assert height % 32 == width % 32 == 0 and height * width // 1024 == tokens
    assert fit_to_grid(picture(*size), None, 32, 65_536, 16_777_216).shape == (height, width, 3)


def test_starvla_presses_pictures_into_a_square_first():
    assert fit_to_grid(picture(480, 640), 224, 32, 65_536, 16_777_216).shape == (256, 256, 3)
    large = grid_size(6000, 8000, 32, 65_536, 16_777_216)
    assert large[0] * large[1] <= 16_777_216
    with pytest.raises(InvalidInput, match="proportions"):
        grid_size(10, 3000, 32, 65_536, 16_777_216)


def test_the_query_sentence_has_the_published_digest():
    sentence = BUILT_IN["starvla"]["oft"].removeprefix("{prompt}")
    for horizon, digest in ((8, "5397e76d63b537b7"), (16, "bb020afeedd15a22")):
        said = sentence.replace("{horizon}", str(horizon)).replace("{queries}", QUERY * horizon)
        assert hashlib.sha256(said.encode()).hexdigest()[:16] == digest


def test_state_text_has_the_known_edges():
    assert state_text(np.array([-0.5, -1.5, 0.0, 2.0])) == "64 -1 128 255"


def test_experts_share_what_their_prompts_begin_with():
    found = processor()
    encoded = found.encode(SEEN, ALL, ())
    (context,) = encoded.contexts
    pi, gr00t, oft = (whole(found, encoded, task) for task in encoded.actions)
    assert pi == gr00t and context.num_tokens == len(context.token_ids) < len(oft)
    assert oft.count(tokenizer().encode(QUERY)[0]) == 6 and len(tokenizer().encode(QUERY)) == 1
    start, pad, end = (
        tokenizer().vocabulary.names.index(n) for n in ("<|vision_start|>", "<|image_pad|>", "<|vision_end|>")
    )
    assert context.token_ids.count(pad) == 64 and context.token_ids.count(start) == context.token_ids.count(end) == 1
    text = tokenizer().decode(pi)
    assert text == "user\npick up the red block\nassistant\n"
    assert encoded.num_unshared == 0 and np.array_equal(encoded.state, np.array([0.5, 1, 8], np.float32))


def test_texts_never_change_what_actions_read():
    found = processor()
    alone = found.encode(SEEN, ALL[:1], ())
    texts = (TextTask("answer", "why?"), TextTask("narration"))
    busy = found.encode(SEEN, ALL[:1], texts)
    assert busy.contexts[0].token_ids == alone.contexts[0].token_ids and busy.actions == alone.actions
    for task, asked in zip(busy.texts, texts, strict=True):
        assert task.context == 0 and 0 < task.context_len < len(busy.contexts[0].token_ids)
        own = found.encode(SEEN, (), (asked,))
        assert whole(found, busy, task) == whole(found, own, own.texts[0])
        assert found.encode_text(alone, asked) == task


def test_a_text_that_is_the_context_itself_reads_all_of_it():
    found = processor(templates={"action": "{prompt}", "echo": "{prompt}"})
    encoded = found.encode(SEEN, ALL[:1], (TextTask("echo"),))
    assert encoded.texts[0].tail_ids == () and encoded.texts[0].context_len == 0
    shorter = processor(
        templates={"action": "{prompt}", "echo": {"text": "{prompt}", "chat": "<|im_start|>{images}{text}"}}
    )
    encoded = shorter.encode(SEEN, (ActionTask("oft"),), (TextTask("echo"),))
    assert encoded.num_unshared == 1 and encoded.texts[0].context == 1  # it differs before the pictures end


def test_text_alone_shares_among_texts():
    found = processor()
    texts = (TextTask("answer", "why?"), TextTask("answer", "what now?"))
    encoded = found.encode(SEEN, (), texts)
    assert len(encoded.contexts) == 1 and all(task.context == 0 and task.tail_ids for task in encoded.texts)


@given(st.lists(st.text(max_size=12), min_size=2, max_size=4))
def test_cores_and_tails_are_whole_prompts(words):
    """Whatever the words are, also such as look like control tokens, nothing is joined, lost or made up."""
    found = processor()
    texts = tuple(TextTask("answer", word + CONTROL[2]) for word in words[1:])
    seen = Observation(SEEN.images, SEEN.state, words[0])
    encoded = found.encode(seen, ALL, texts)
    im_end = tokenizer().vocabulary.names.index("<|im_end|>")
    for task, asked in zip(encoded.texts, texts, strict=True):
        ids = whole(found, encoded, task)
        template = found.templates["answer"]
        values = {"prompt": words[0], "question": asked.question, "state": None}
        assert ids == template.token_ids(values, encoded.image_ids, tokenizer())[0]
        assert ids.count(im_end) == 1
        assert task.context_len == 0 or common_length(ids, encoded.contexts[0].token_ids) >= task.context_len


def test_a_wrapper_goes_around_the_instruction():
    found = processor(wrapper="Do this: {instruction} Say where.")
    encoded = found.encode(SEEN, (ActionTask("oft"),), (TextTask("answer", "why?"),))
    said = tokenizer().decode(encoded.contexts[0].token_ids)
    assert said.startswith("user\nDo this: pick up the red block Please predict") and said.endswith(
        "Say where.\nassistant\n"
    )
    assert "Say where" not in tokenizer().decode(whole(found, encoded, encoded.texts[0]))
    with pytest.raises(CheckpointError, match="instruction"):
        processor(wrapper="nothing")


def test_pictures_come_in_the_robots_order():
    both = Observation({"wrist": picture(256, 320, 1), "front": picture()}, SEEN.state, "go")
    encoded = processor().encode(both, ALL[:1], ())
    assert [p.shape for p in encoded.contexts[0].images] == [(256, 256, 3), (256, 320, 3)]
    with pytest.raises(InvalidInput, match="front"):
        processor().encode(Observation({"wrist": picture()}, SEEN.state, "go"), ALL[:1], ())


def test_chunks_in_robot_units():
    found = processor()
    inputs = found.encode(SEEN, ALL, ())
    normal = np.full((4, 7), 0.5, np.float32)
    assert found.decode_actions(normal, inputs, "pi")[0].tolist() == [0.5, 3.0, 1.0]
    assert found.decode_actions(normal, inputs, "gr00t")[0].tolist() == [0.25, 2.5, 0.5]
    assert found.decode_actions(normal * 1.1, inputs, "oft")[0, 2] == 1.0
    assert found.decode_actions(normal, inputs, "oft")[0].tolist() == [0.5, 3.0, 0.0]  # at its threshold: not above
    assert found.decode_actions(normal * 9, inputs, "pi")[0].tolist() == [1.0, 4.0, 2.0]  # clipped
    for bad, error in (
        (np.full((4, 7), np.nan, np.float32), OxygenError),
        (np.zeros((4, 3), np.float32), InvalidInput),
    ):
        with pytest.raises(error):
            found.decode_actions(bad, inputs, "pi")


def test_the_state_is_normalised_where_it_is_asked_for():
    found = processor(state_normalization="minmax", templates={"action": "{prompt} state {state}"})
    encoded = found.encode(SEEN, ALL[:1], ())
    assert encoded.state.tolist() == [-0.5, -0.5, 1.0]
    assert "state 64 64 255" in tokenizer().decode(encoded.contexts[0].token_ids)
    with pytest.raises(InvalidInput, match="state"):
        found.encode(Observation(SEEN.images, None, "go"), ALL[:1], ())


def test_units_by_dimension_and_back():
    """Modes of StarVLA's training transforms; quantiles end in [-1, 1] on the way in."""
    ranges = {"min": [0, 1, 0, 5], "max": [2, 1, 4, 5], "q01": [0, 1, 0, 5], "q99": [1, 1, 2, 5]}
    found = FieldStatistics.read(ranges | {"mean": [1, 1, 1, 1], "std": [2, 2, 2, 0]}, "x")
    modes = ("minmax", "mean_std", "quantile", "identity")
    values = np.array([[0.5, 4.0, 1.5, 9.0], [2.0, 1.0, 0.0, -9.0]])
    normal = from_units(values, modes, found)
    assert normal.tolist() == [[-0.5, 1.5, 0.5, 9.0], [1.0, 0.0, -1.0, -9.0]]
    assert np.allclose(to_units(normal, modes, found), values)
    assert from_units(np.array([7.0]), ("quantile",), found).tolist() == [1.0]
    assert to_units(np.array([7.0]), ("quantile",), found).tolist() == [4.0]
    flat = [from_units(np.array([0, 0.5, 0, 3.0]), (mode,) * 4, found) for mode in ("minmax", "quantile", "mean_std")]
    assert (flat[0][1], flat[1][1], flat[2][3]) == (0.0, 0.5, 3.0)  # no width: 0, or left alone


def test_a_request_names_one_of_several_data_sets():
    wider = {"min": [-2, 0, -4], "max": [2, 8, 4], "q01": [-1, 2, -2], "q99": [1, 6, 2]}
    other = Statistics.from_groups("other", {"actions": wider})
    small = Statistics.from_groups("small", {"actions": {"min": [0], "max": [1]}})
    found = processor((STATISTICS, other, small))
    assert found.describe()["normalization"]["asset_ids"] == ["bridge", "other"]  # `small` does not fit the robot
    normal = np.full((4, 7), 0.5, np.float32)
    for key, expected in (("bridge", [0.5, 3.0, 1.0]), ("other", [1.0, 6.0, 2.0])):
        seen = found.parse({"images": {"front": picture()}, "state": [0, 0, 0], "prompt": "go", "unnorm_key": key})
        inputs = found.encode(seen, ALL, ())
        assert found.decode_actions(normal, inputs, "pi")[0].tolist() == expected
    for key, got in (("small", "'small'"), (5, "5"), (None, "none, and the checkpoint has several")):
        with pytest.raises(InvalidInput, match=f"unnorm_key: expected one of bridge, other, got {got}"):
            found.encode(KeyedObservation(SEEN.images, SEEN.state, "go", unnorm_key=key), ALL, ())
    found.encode(SEEN, (), (TextTask("narration"),))  # nothing of it goes through statistics
    named = processor((STATISTICS, other), asset_id="other")
    assert named.decode_actions(normal, named.encode(SEEN, ALL, ()), "pi")[0].tolist() == [1.0, 6.0, 2.0]
    with pytest.raises(CheckpointError, match="'mars'; there are: bridge, other"):
        processor((STATISTICS, other), asset_id="mars")
    with pytest.raises(CheckpointError, match="know 1 dimensions of actions, the robot has 3"):
        processor((STATISTICS, small), asset_id="small")
    with pytest.raises(CheckpointError, match="no statistics"):
        processor(())


def test_an_experts_own_prompt_goes_before_the_sets_and_inside_the_wrapper():
    """PI_v3 with its state as text: behind the instruction, before the wrapper's end."""
    experts = EXPERTS | {"pi": ExpertOutput(4, 7, "minmax", True, {}, "{prompt} <s>{state}<a>")}
    found = processor(experts=experts, wrapper="Do: {instruction} Say.", state_normalization="minmax")
    encoded = found.encode(SEEN, (ActionTask("pi"),), ())
    assert tokenizer().decode(encoded.contexts[0].token_ids) == (
        "user\nDo: pick up the red block <s>64 64 255<a> Say.\nassistant\n"
    )
    both = found.encode(SEEN, (ActionTask("pi"), ActionTask("gr00t")), ())
    assert tokenizer().decode(both.contexts[0].token_ids) == "user\nDo: pick up the red block"
    assert [bool(task.tail_ids) for task in both.actions] == [True, True]


def test_bad_requests_say_what_is_wrong():
    found = processor()
    for task, message in (
        (TextTask("poem"), "kind"),
        (TextTask("narration", "why?"), "question"),
        (TextTask("answer"), "question"),
    ):
        with pytest.raises(InvalidInput, match=message):
            found.encode(SEEN, (), (task,))
    with pytest.raises(InvalidInput, match="prompt"):
        found.encode(Observation(SEEN.images, SEEN.state, None), ALL[:1], ())
    with pytest.raises(InvalidInput, match="UTF-8"):
        found.encode(Observation(SEEN.images, SEEN.state, "\ud800"), ALL[:1], ())


def test_bad_configurations_are_refused():
    with pytest.raises(CheckpointError, match="no control token"):
        build_templates({"a": {"text": "x", "chat": "<|odd|>{images}{text}"}}, {}, None, {}, tokenizer())
    with pytest.raises(CheckpointError, match="images"):
        build_templates({"a": {"text": "x", "chat": "{text}"}}, {}, None, {}, tokenizer())
    with pytest.raises(CheckpointError, match="unknown settings colour"):
        ChatConfig.from_dict({"robot": "x", "experts": {}, "colour": 1})
    with pytest.raises(CheckpointError, match="experts"):
        ChatConfig.from_dict({"robot": "x"})
    with pytest.raises(CheckpointError, match=r"no token <.odd.>"):
        processor(image_tokens=("<|odd|>", "<|image_pad|>", "<|vision_end|>"))
    found = processor().config
    assert ChatConfig.from_dict(json.loads(json.dumps(found.to_dict()))) == found


def test_statistics_of_data_sets(tmp_path):
    assert read_dataset_statistics(tmp_path) == ((), {})
    told = {"action": STATISTICS.to_groups()["actions"] | {"mask": [True, False, True]}, "num_transitions": 7}
    (tmp_path / "dataset_statistics.json").write_text(json.dumps({"bridge": told}))
    (found,), masks = read_dataset_statistics(tmp_path)
    assert (
        found.asset_id == "bridge"
        and found.actions.max.tolist() == [1, 4, 2]
        and masks == {"bridge": (True, False, True)}
    )
    (tmp_path / "dataset_statistics.json").write_text("[1]")
    with pytest.raises(CheckpointError, match="StarVLA"):
        read_dataset_statistics(tmp_path)
