"""The processor as a whole: tokens, sharing, cameras, state, actions back to robot units, and what it refuses."""

from __future__ import annotations

import concurrent.futures
import json
import logging
from typing import Any

import numpy as np
import pytest
from processing.cases import ACTION_DIMS, STATE_DIMS, message, picture, processor, statistics, tokenizer

from oxygen.core.errors import CheckpointError, InvalidInput, OxygenError
from oxygen.core.inputs import ModelInputs
from oxygen.core.tasks import ActionTask, Observation, TextTask
from oxygen.processing import EncodedFrame, Processor, ProcessorConfig, Statistics, preset
from oxygen.processing.prompts import state_text

ROBOTS = ("libero", "droid", "aloha")
ACT = (ActionTask(),)


def encode(found: Processor, robot: str, texts: tuple[TextTask, ...] = (), **changes: Any) -> EncodedFrame:
    return found.encode(found.parse(message(robot) | changes), ACT, texts)


@pytest.mark.parametrize("robot", ROBOTS)
def test_a_frame_becomes_pictures_tokens_and_state(robot: str) -> None:
    found = processor(robot)
    inputs = encode(found, robot)
    (context,) = inputs.contexts
    assert len(context.images) == len(found.robot.cameras)
    assert all(image.shape == (224, 224, 3) and image.dtype == np.uint8 for image in context.images)
    assert context.num_tokens == 256 * len(context.images) + len(context.token_ids)
    assert inputs.state.shape == (32,) and inputs.state.dtype == np.float32
    assert not inputs.state[STATE_DIMS[robot] :].any()
    assert inputs.actions[0].context == 0 and inputs.num_unshared == 0


def test_the_prompt_is_one_sequence_with_the_state_at_its_own_length_and_precision() -> None:
    found = processor("droid")
    raw = message("droid")
    state = np.concatenate([raw["observation/joint_position"], raw["observation/gripper_position"]])
    q01, q99 = found.statistics.state.q01, found.statistics.state.q99
    normal = (state - q01) / (q99 - q01 + 1e-6) * 2.0 - 1.0
    text = f"Task: pick up the Red block, State: {state_text(normal)};\nAction: "
    assert encode(found, "droid").contexts[0].token_ids == tuple(tokenizer().encode(text, bos=True))
    assert len(state_text(normal).split()) == 8


def test_the_prompt_without_state_has_its_newline_apart_and_ignores_the_state() -> None:
    found = processor("libero")
    ids = encode(found, "libero").contexts[0].token_ids
    assert ids == (*tokenizer().encode("pick up the Red block", bos=True), *tokenizer().encode("\n"))
    assert encode(found, "libero", **{"observation/state": np.ones(8)}).contexts[0].token_ids == ids


@pytest.mark.parametrize(("at", "bins"), [("q01", {0, -1}), ("mid", {127, 128}), ("q99", {254, 255})])
def test_state_hits_the_ends_and_the_middle_of_the_bins(at: str, bins: set[int]) -> None:
    found = processor("droid")
    field = found.statistics.state
    state = {"q01": field.q01, "q99": field.q99, "mid": (field.q01 + field.q99) / 2}[at]
    inputs = encode(
        found, "droid", **{"observation/joint_position": state[:7], "observation/gripper_position": state[7]}
    )
    shown = tokenizer().decode(inputs.contexts[0].token_ids).split("State: ")[1].split(";")[0].split()
    assert len(shown) == 8 and {int(number) for number in shown} <= bins


def test_a_subtask_of_plain_pi05_has_its_own_prefix_and_is_counted() -> None:
    inputs = encode(processor("droid"), "droid", (TextTask("subtask"), TextTask("subtask")))
    assert len(inputs.contexts) == 2 and inputs.num_unshared == 2
    assert [task.context for task in inputs.texts] == [1, 1] and inputs.actions[0].context == 0
    assert inputs.contexts[0].images is inputs.contexts[1].images
    expected = tokenizer().encode("Task: pick up the red block. Subtask: ", bos=True)
    assert inputs.contexts[1].token_ids == tuple(expected)


def test_tasks_of_the_shared_prefix_share_one_context_with_their_own_tails() -> None:
    found = processor("droid", templates="shared")
    texts = (TextTask("subtask"), TextTask("narration"), TextTask("answer", question="is it open?"))
    inputs = encode(found, "droid", texts)
    assert len(inputs.contexts) == 1 and inputs.num_unshared == 0
    assert [task.context for task in inputs.texts] == [0, 0, 0]
    assert inputs.texts[2].tail_ids == tuple(tokenizer().encode("Question: is it open? Answer:"))
    assert 2 not in inputs.texts[0].tail_ids, "no beginning of text in the middle"
    assert len({task.tail_ids for task in inputs.texts}) == 3


def test_prefixes_with_equal_tokens_share_whatever_their_templates_are_called() -> None:
    templates = {"action": {"prefix": "Do {prompt}"}, "subtask": {"prefix": ["Do {prompt}"], "tail": "Now:"}}
    inputs = encode(processor("droid", templates=templates), "droid", (TextTask("subtask"),))
    assert len(inputs.contexts) == 1 and inputs.num_unshared == 0


def test_text_alone_reads_its_own_context() -> None:
    found = processor("droid")
    inputs = found.encode(found.parse(message("droid")), (), (TextTask("subtask"),))
    assert len(inputs.contexts) == 1 and inputs.texts[0].context == 0 and inputs.num_unshared == 0
    assert found.encode(found.parse(message("droid")), (), ()).contexts == ()


def test_a_late_question_joins_only_where_that_is_exact() -> None:
    shared, plain = processor("droid", templates="shared"), processor("droid")
    question = TextTask("answer", question="is it open?")
    inputs = encode(shared, "droid")
    asked = encode(shared, "droid", (question,))
    assert shared.encode_text(inputs, question) == asked.texts[0]
    assert plain.encode_text(encode(plain, "droid"), TextTask("subtask")) is None
    only_text = plain.encode(plain.parse(message("droid")), (), (TextTask("subtask"),))
    assert plain.encode_text(only_text, TextTask("subtask")) == only_text.texts[0]
    assert shared.encode_text(ModelInputs(inputs.contexts, inputs.actions, ()), question) is None


@pytest.mark.parametrize(
    "task", [TextTask("answer"), TextTask("answer", question=" "), TextTask("subtask", question="x"), TextTask("poem")]
)
def test_tasks_that_do_not_fit_their_template_are_refused(task: TextTask) -> None:
    found = processor("droid", templates="shared")
    with pytest.raises(InvalidInput):
        encode(found, "droid", (task,))
    with pytest.raises(InvalidInput):
        found.encode_text(encode(found, "droid"), task)


def test_long_prompts_are_cut_at_the_end_with_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    found = processor("droid", max_token_len=20)
    with caplog.at_level(logging.WARNING):
        ids = encode(found, "droid").contexts[0].token_ids
    assert len(ids) == 20 and ids == encode(processor("droid"), "droid").contexts[0].token_ids[:20]
    assert "cut to 20" in caplog.text


def test_endless_prompts_and_questions_are_refused_before_they_cost_anything() -> None:
    found = processor("droid", templates="shared")
    with pytest.raises(InvalidInput, match="characters"):
        encode(found, "droid", prompt="x" * 200_000)
    with pytest.raises(InvalidInput, match="characters"):
        encode(found, "droid", (TextTask("answer", question="x" * 200_000),))
    with pytest.raises(InvalidInput, match="256 tokens"):
        encode(found, "droid", (TextTask("answer", question="qx " * 300),))


@pytest.mark.parametrize("prompt", ["half a pair \ud800", "\udfff"])
def test_words_that_no_tokenizer_can_read_are_refused(prompt: str) -> None:
    found = processor("droid", templates="shared")
    with pytest.raises(InvalidInput, match="prompt"):
        encode(found, "droid", prompt=prompt)
    with pytest.raises(InvalidInput, match="question"):
        encode(found, "droid", (TextTask("answer", question=prompt),))
    assert encode(found, "droid", prompt="zero \0 byte, tab\t, \u200b, 🤖").contexts


def test_a_camera_may_reuse_its_buffer() -> None:
    found = processor("libero")
    buffer = picture(0)
    frozen = picture(1)
    frozen.setflags(write=False)
    inputs = found.encode(Observation({"image": buffer, "wrist_image": frozen}, np.zeros(8), "go"), ACT, ())
    buffer[:] = 0
    assert np.array_equal(views(inputs)[0], picture(0))
    assert views(inputs)[1] is frozen, "what nobody can write to is not copied"


def test_default_prompt_fills_a_missing_one_only() -> None:
    raw = message("droid")
    without = {key: value for key, value in raw.items() if key != "prompt"}
    found = processor("droid", default_prompt=raw["prompt"])
    inputs = found.encode(found.parse(without), ACT, ())
    assert inputs.contexts[0].token_ids == encode(processor("droid"), "droid").contexts[0].token_ids
    assert encode(found, "droid", prompt="other").contexts[0].token_ids != inputs.contexts[0].token_ids
    strict = processor("droid")
    with pytest.raises(InvalidInput, match="prompt"):
        strict.encode(strict.parse(without), ACT, ())


def views(inputs: ModelInputs) -> list[np.ndarray]:
    return list(inputs.contexts[0].images)


@pytest.mark.parametrize("hole", ["cam_left_wrist", "cam_right_wrist"])
def test_an_absent_camera_is_dropped_and_differs_from_a_black_picture(hole: str) -> None:
    found = processor("aloha")
    raw = message("aloha")
    rest = {name: image for name, image in raw["images"].items() if name != hole}
    omitted = encode(found, "aloha", images=rest)
    masked = encode(found, "aloha", image_mask={hole: False})
    black = encode(found, "aloha", images=raw["images"] | {hole: np.zeros((3, 224, 224), np.uint8)})
    assert len(views(omitted)) == len(views(masked)) == 2 and len(views(black)) == 3
    assert all(np.array_equal(a, b) for a, b in zip(views(omitted), views(masked), strict=True))
    assert omitted.contexts[0].num_tokens == black.contexts[0].num_tokens - 256


def test_cameras_stand_in_slot_order_whatever_order_they_came_in() -> None:
    found = processor("aloha")
    raw = message("aloha")
    turned = encode(found, "aloha", images=dict(reversed(raw["images"].items())))
    for image, name in zip(views(turned), ("cam_high", "cam_left_wrist", "cam_right_wrist"), strict=True):
        assert np.array_equal(image, raw["images"][name].transpose(1, 2, 0))


def test_observations_made_by_hand_are_checked_like_messages() -> None:
    found = processor("libero")
    good = {"image": picture(0, 48, 64), "left_wrist_0_rgb": picture(1).astype(np.float32) / 255}
    inputs = found.encode(Observation(good, np.zeros(8), "go"), ACT, ())
    assert len(views(inputs)) == 2 and np.array_equal(
        views(inputs)[1], (255 * good["left_wrist_0_rgb"]).astype(np.uint8)
    )
    bad: list[tuple[str, Observation]] = [
        ("images", Observation({"image": picture(0)}, np.zeros(8), "go")),
        ("images", Observation(good | {"wrist_image": picture(2)}, np.zeros(8), "go")),
        ("images", Observation({}, np.zeros(8), "go")),
        ("image", Observation(good | {"image": picture(0)[None]}, np.zeros(8), "go")),
        ("state", Observation(good, np.zeros(7), "go")),
        ("state[0]", Observation(good, np.full(8, np.nan), "go")),
        ("image", Observation(good | {"image": picture(0, 1, 999)}, np.zeros(8), "go")),
    ]
    for field, observation in bad:
        with pytest.raises(InvalidInput) as caught:
            found.encode(observation, ACT, ())
        assert caught.value.field == field


def test_all_cameras_optional_still_needs_one() -> None:
    found = processor("libero", required_cameras=())
    only_wrist = {"wrist_image": picture(0)}
    assert len(views(found.encode(Observation(only_wrist, np.zeros(8), "go"), ACT, ()))) == 1
    with pytest.raises(InvalidInput, match="at least one"):
        found.encode(Observation({}, np.zeros(8), "go"), ACT, ())


def test_a_bad_frame_leaves_no_trace() -> None:
    found, fresh = processor("droid"), processor("droid")
    with pytest.raises(InvalidInput):
        encode(found, "droid", **{"observation/joint_position": np.full(7, np.nan)})
    one, other = encode(found, "droid"), encode(fresh, "droid")
    assert one.contexts[0].token_ids == other.contexts[0].token_ids and np.array_equal(one.state, other.state)


def test_state_is_needed_only_where_it_is_read() -> None:
    images = {"image": picture(0), "wrist_image": picture(1)}
    inputs = processor("libero").encode(Observation(images, None, "go"), ACT, ())
    assert inputs.state is None
    droid = {"exterior_image_1_left": picture(0), "wrist_image_left": picture(1)}
    with pytest.raises(InvalidInput, match="state"):
        processor("droid").encode(Observation(droid, None, "go"), ACT, ())


def unnormalized(y: np.ndarray, robot: str) -> np.ndarray:
    field, n = statistics(robot).actions, ACTION_DIMS[robot]
    return (y[:, :n] + 1.0) / 2.0 * (field.q99 - field.q01 + 1e-6) + field.q01


@pytest.mark.parametrize("robot", ["libero", "droid"])
@pytest.mark.parametrize("value", [0.0, 1.0, -0.37])
def test_absolute_actions_come_back_in_robot_units(robot: str, value: float) -> None:
    found = processor(robot)
    actions = np.full((found.config.horizon, 32), value, dtype=np.float32)
    decoded = found.decode_actions(actions, encode(found, robot))
    assert decoded.dtype == np.float64 and decoded.shape == (found.config.horizon, ACTION_DIMS[robot])
    assert np.array_equal(decoded, unnormalized(actions, robot))


def test_offsets_are_added_to_the_state_that_the_model_was_given() -> None:
    found = Processor(preset("aloha", robot={"name": "aloha", "adapt_to_pi": False}), tokenizer(), statistics("aloha"))
    actions = np.random.default_rng(0).normal(size=(50, 32)).astype(np.float32)
    inputs = encode(found, "aloha")
    field = statistics("aloha").state
    given = (inputs.state[:14] + np.float32(1)) / np.float32(2) * (field.q99 - field.q01 + 1e-6) + field.q01
    expected = unnormalized(actions, "aloha")
    joints = [i for i in range(14) if i not in (6, 13)]
    expected[:, joints] += given[joints]
    assert np.array_equal(found.decode_actions(actions, inputs), expected)


@pytest.mark.parametrize("seed", range(3))
def test_no_offset_returns_the_joints_where_they_are(seed: int) -> None:
    state = np.random.default_rng(seed).uniform(0.0, 0.4, 14)
    found = processor("aloha")
    inputs = encode(found, "aloha", state=state)
    field = found.statistics.actions
    # The normalised value of an offset of zero, per dimension.
    zero = np.zeros((50, 32), dtype=np.float32)
    zero[:, :14] = (0 - field.q01) / (field.q99 - field.q01 + 1e-6) * 2 - 1
    decoded = found.decode_actions(zero, inputs)
    joints = [i for i in range(14) if i not in (6, 13)]
    np.testing.assert_allclose(decoded[:, joints], np.tile(state[joints], (50, 1)), atol=1e-6)
    np.testing.assert_allclose(decoded[:, [6, 13]], (0.5476 + 0.6213) / (1.4910 + 0.6213), atol=1e-6)


@pytest.mark.parametrize("robot", ROBOTS)
def test_training_targets_come_back_as_the_actions_they_were(robot: str) -> None:
    found = processor(robot)
    inputs = encode(found, robot)
    _, state, _ = found.robot.parse(message(robot), set())
    actions = np.random.default_rng(1).uniform(-0.5, 0.5, (found.config.horizon, ACTION_DIMS[robot]))
    targets = found.encode_actions(actions, state)
    assert targets.shape == (found.config.horizon, 32) and targets.dtype == np.float32
    np.testing.assert_allclose(found.decode_actions(targets, inputs), actions, atol=1e-5)


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_no_action_that_is_not_finite_leaves(bad: float) -> None:
    found = processor("droid")
    actions = np.zeros((15, 32), dtype=np.float32)
    actions[3, 2] = bad
    with pytest.raises(OxygenError, match="step 3, dimension 2"):
        found.decode_actions(actions, encode(found, "droid"))
    actions[3, 2] = 0
    actions[3, 20] = bad  # a padded dimension: no robot ever sees it
    assert np.isfinite(found.decode_actions(actions, encode(found, "droid"))).all()


def test_actions_of_the_wrong_width_and_offsets_without_a_state_are_refused() -> None:
    found = processor("aloha")
    with pytest.raises(InvalidInput, match="actions"):
        found.decode_actions(np.zeros((50, 14), np.float32), encode(found, "aloha"))
    with pytest.raises(InvalidInput, match="state"):
        found.decode_actions(np.zeros((50, 32), np.float32), ModelInputs((), (), ()))


@pytest.mark.parametrize(
    ("make", "message_part"),
    [
        (lambda: Processor(preset("aloha"), tokenizer(), statistics("droid")), "know 8 dimensions"),
        (lambda: Processor(preset("droid"), tokenizer(), None), "no statistics"),
        (lambda: Processor(preset("droid", action_dim=7), tokenizer(), statistics("droid")), "do not fit"),
        (lambda: Processor(preset("droid", slots=("front",)), tokenizer(), statistics("droid")), "slots"),
        (lambda: Processor(preset("droid", vocab_size=100), tokenizer(), statistics("droid")), "tokens"),
        (lambda: Processor(preset("droid", required_cameras=("x",)), tokenizer(), statistics("droid")), "no cameras"),
        (lambda: Processor(preset("droid", delta_mask=(True,) * 9), tokenizer(), statistics("droid")), "delta_mask"),
        (lambda: Processor(preset("droid", robot="ur5"), tokenizer(), statistics("droid")), "ur5"),
        (lambda: preset("ur5"), "ur5"),
        (lambda: preset("droid", normalization="sigmoid"), "sigmoid"),
        (lambda: preset("droid", dialect="german"), "german"),
        (lambda: preset("droid", image_size=0), "image_size"),
        (lambda: ProcessorConfig.from_dict({"robot": "droid", "wheels": 4}), "wheels"),
        (lambda: ProcessorConfig.from_dict({}), "no robot"),
    ],
)
def test_settings_that_do_not_fit_each_other_refuse_to_start(make: Any, message_part: str) -> None:
    with pytest.raises(CheckpointError, match=message_part):
        make()


def test_wide_statistics_are_cut_and_narrow_ones_refused() -> None:
    wide = np.linspace(1, 2, 32)
    groups = {"q01": (-wide).tolist(), "q99": wide.tolist()}
    found = Processor(
        preset("droid"), tokenizer(), Statistics.from_groups("base", {"state": groups, "actions": groups})
    )
    decoded = found.decode_actions(np.zeros((15, 32), np.float32), encode(found, "droid"))
    np.testing.assert_allclose(decoded, 0, atol=1e-6)
    assert found.describe()["normalization"]["actions"]["dim"] == 32


def test_flat_dimensions_are_reported(caplog: pytest.LogCaptureFixture) -> None:
    groups = {"q01": [0.0] * 8, "q99": [1.0] * 7 + [0.0]}
    with caplog.at_level(logging.WARNING):
        found = Processor(
            preset("droid"), tokenizer(), Statistics.from_groups("x", {"state": groups, "actions": groups})
        )
    assert found.describe()["normalization"]["state"]["degenerate_dims"] == [7]
    assert "[7]" in caplog.text


@pytest.mark.parametrize("robot", ROBOTS)
def test_the_description_is_plain_data_and_says_what_was_chosen(robot: str) -> None:
    found = processor(robot)
    told = json.loads(json.dumps(found.describe()))
    assert told["robot"] == robot and told["actions"]["dim"] == ACTION_DIMS[robot]
    assert told["normalization"]["asset_id"] == robot
    assert told["normalization"]["digest"] == found.statistics.digest
    assert told["normalization"]["state"]["mode"] == "quantile"
    assert sum(part["dim"] for part in told["actions"]["parts"]) == ACTION_DIMS[robot]
    assert (robot == "aloha") == ("reset_pose" in told)
    assert told["text_kinds"] == ["subtask"] and told["text_trained"] is (None if robot == "aloha" else False)


@pytest.mark.parametrize("robot", ROBOTS)
def test_the_configuration_survives_being_written(robot: str) -> None:
    config = preset(robot, delta_mask=(True, False), default_prompt="go")
    assert ProcessorConfig.from_dict(json.loads(json.dumps(config.to_dict()))) == config


def test_a_described_robot_with_its_own_slots_and_sizes() -> None:
    robot = {"name": "generic", "cameras": {"corner": "corner", "hand": "hand"}, "state_dim": 4, "action_dim": 4}
    config = ProcessorConfig(
        robot=robot,
        templates="shared",
        slots=("corner", "hand"),
        image_size=56,
        tokens_per_image=16,
        action_dim=4,
        horizon=10,
    )
    field = {"q01": [-1.0] * 4, "q99": [1.0] * 4}
    found = Processor(config, tokenizer(), Statistics.from_groups("own", {"state": field, "actions": field}))
    raw = {"images": {"corner": picture(0, 64, 64), "hand": picture(1, 64, 64)}, "state": [0.0] * 4, "prompt": "open"}
    inputs = found.encode(found.parse(raw), ACT, (TextTask("memory"),))
    assert [image.shape for image in views(inputs)] == [(56, 56, 3)] * 2
    assert inputs.contexts[0].num_tokens == 32 + len(inputs.contexts[0].token_ids)
    assert found.decode_actions(np.zeros((10, 4), np.float32), inputs).shape == (10, 4)


def test_a_robot_without_state_cannot_serve_prompts_that_show_it() -> None:
    robot = {"name": "generic", "cameras": {"eye": "base_0_rgb"}, "state_dim": 0, "action_dim": 2}
    with pytest.raises(CheckpointError, match="sends no state"):
        Processor(ProcessorConfig(robot=robot, normalization="identity"), tokenizer())
    found = Processor(ProcessorConfig(robot=robot, normalization="identity", templates="pi05-libero"), tokenizer())
    inputs = found.encode(found.parse({"images": {"eye": picture(0)}, "prompt": "go"}), ACT, ())
    assert inputs.state is None
    assert found.decode_actions(np.ones((50, 32), np.float32), inputs).tolist() == [[1.0, 1.0]] * 50


def test_forbidden_ids_cover_the_model_and_spare_the_end() -> None:
    found = processor("droid", vocab_size=512)
    assert found.forbidden_ids.shape == (512,) and found.forbidden_ids[tokenizer().vocab_size :].all()
    assert not found.forbidden_ids[list(tokenizer().eos_ids)].any()
    assert processor("droid", forbidden=()).forbidden_ids is None


def test_threads_share_one_processor() -> None:
    found = processor("droid", templates="shared")
    questions = [TextTask("answer", question=f"is it {n}?") for n in range(40)]
    expected = [encode(found, "droid", (question,)) for question in questions]
    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        got = list(pool.map(lambda question: encode(found, "droid", (question,)), questions))
    for one, other in zip(expected, got, strict=True):
        assert one.texts == other.texts and one.contexts[0].token_ids == other.contexts[0].token_ids
