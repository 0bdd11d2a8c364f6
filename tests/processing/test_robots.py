"""Robots: messages are read by name, refused by name, and units go there and back."""

from __future__ import annotations

import logging
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as st_numpy
from processing.cases import ACTION_DIMS, DATA, STATE_DIMS, message, picture

from oxygen.core.errors import InvalidInput
from oxygen.processing.robots import ROBOTS, build_robot
from oxygen.processing.robots.aloha import GRIPPERS, actions_from_pi, actions_to_pi, state_to_pi
from oxygen.processing.transforms import AbsoluteActions, DeltaActions, Pipeline, bool_mask, pad_to

NAMES = ("libero", "droid", "aloha")
GENERIC = {
    "name": "generic",
    "cameras": {"corner": "base_0_rgb", "gripper": {"slot": "left_wrist_0_rgb", "required": False}},
    "state_dim": 4,
    "action_dim": 4,
}


@pytest.mark.parametrize("name", NAMES)
def test_complete_messages_are_read(name: str) -> None:
    robot = build_robot(name)
    images, state, prompt = robot.parse(message(name), set())
    assert list(images) == [camera.name for camera in robot.cameras]
    assert all(image.shape == (224, 224, 3) and image.dtype == np.uint8 for image in images.values())
    assert state.shape == (STATE_DIMS[name],) == (robot.state_dim,) and state.dtype == np.float64
    assert robot.action_dim == ACTION_DIMS[name]
    assert prompt == "pick up the Red_block"


def test_droid_state_is_joints_then_gripper() -> None:
    raw = message("droid") | {"observation/joint_position": np.arange(7), "observation/gripper_position": 0.25}
    _, state, _ = build_robot("droid").parse(raw, set())
    assert state.tolist() == [0, 1, 2, 3, 4, 5, 6, 0.25]


@pytest.mark.parametrize("name", NAMES)
def test_order_of_keys_never_matters(name: str) -> None:
    robot = build_robot(name)
    raw = message(name)
    turned: dict[str, Any] = {
        key: dict(reversed(value.items())) if isinstance(value, dict) else value for key, value in reversed(raw.items())
    }
    (one, state, _), (other, same, _) = robot.parse(raw, set()), robot.parse(turned, set())
    assert list(one) == list(other) and np.array_equal(state, same)
    assert all(np.array_equal(one[camera], other[camera]) for camera in one)


@pytest.mark.parametrize("name", NAMES)
def test_every_missing_required_key_is_refused_with_both_lists(name: str) -> None:
    robot = build_robot(name)
    required = [camera.keys[0] for camera in robot.cameras if camera.required]
    for path in [*required, *(part.keys[0] for part in robot.state)]:
        raw = {key: dict(value) if isinstance(value, dict) else value for key, value in message(name).items()}
        holder = raw
        for part in path[:-1]:
            holder = holder[part]
        holder["renamed"] = holder.pop(path[-1])
        with pytest.raises(InvalidInput) as caught:
            robot.parse(raw, set())
        assert ".".join(path) in caught.value.expected and "renamed" in caught.value.got


def test_the_key_style_of_another_robot_is_refused() -> None:
    with pytest.raises(InvalidInput, match="cam_high"):
        build_robot("aloha").parse(message("libero"), set())


@pytest.mark.parametrize("name", NAMES)
def test_an_undeclared_camera_is_ignored_with_one_warning(name: str, caplog: pytest.LogCaptureFixture) -> None:
    robot, seen = build_robot(name), set()
    raw = message(name) | {"observation/ceiling": picture(9)}
    if "images" in raw:
        raw = message(name)
        raw["images"] = raw["images"] | {"ceiling": picture(9), "cam_low": picture(8)}
    with caplog.at_level(logging.WARNING):
        plain, extra = robot.parse(message(name), seen)[0], robot.parse(raw, seen)[0]
        robot.parse(raw, seen)
    assert list(plain) == list(extra)
    assert [record.getMessage().count("ceiling") for record in caplog.records] == [1]


def test_a_flood_of_unknown_keys_is_neither_remembered_nor_logged_without_end(caplog: pytest.LogCaptureFixture) -> None:
    robot, seen = build_robot("libero"), set()
    with caplog.at_level(logging.WARNING):
        for n in range(300):
            robot.parse(message("libero") | {f"extra{n}": 1}, seen)
    assert len(seen) <= 64 and len(caplog.records) <= 64


@pytest.mark.parametrize(
    "value", ["pick", b"pick", np.str_("pick"), np.array("pick"), np.array(["pick"]), np.array([b"pick"])]
)
def test_prompts_come_in_several_dresses(value: object) -> None:
    assert build_robot("droid").parse(message("droid") | {"prompt": value}, set())[2] == "pick"


@pytest.mark.parametrize("value", [b"\xff\xfe", 3, ["pick"], np.array(["a", "b"]), {"text": "pick"}, np.array(3)])
def test_prompts_that_are_no_text_are_refused(value: object) -> None:
    with pytest.raises(InvalidInput, match="prompt"):
        build_robot("droid").parse(message("droid") | {"prompt": value}, set())


def test_prompts_may_be_empty_or_missing() -> None:
    raw = message("libero")
    assert build_robot("libero").parse(raw | {"prompt": ""}, set())[2] == ""
    del raw["prompt"]
    assert build_robot("libero").parse(raw, set())[2] is None


@pytest.mark.parametrize("value", [[0, 1, 2, 3, 4, 5, 6, 7], np.arange(8), np.arange(8.0, dtype=np.float32), range(8)])
def test_states_of_harmless_types_are_the_same(value: object) -> None:
    _, state, _ = build_robot("libero").parse(message("libero") | {"observation/state": value}, set())
    assert state.dtype == np.float64 and state.tolist() == list(range(8))


@pytest.mark.parametrize(
    "value",
    [
        np.zeros(7),
        np.zeros(9),
        np.zeros((1, 8)),
        np.zeros((8, 1)),
        np.zeros((2, 8)),
        3.0,
        ["a"] * 8,
        [[1, 2], [3]],
        np.zeros(8, complex),
        np.zeros(8, bool),
        {"x": 1},
    ],
)
def test_states_of_wrong_shape_or_kind_are_refused_with_the_expected_shape(value: object) -> None:
    with pytest.raises(InvalidInput) as caught:
        build_robot("libero").parse(message("libero") | {"observation/state": value}, set())
    assert caught.value.field == "observation/state" and "[8]" in caught.value.expected


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf, 1e30])
def test_a_broken_number_is_refused_with_key_and_index(bad: float) -> None:
    state = np.zeros(8)
    state[5] = bad
    with pytest.raises(InvalidInput) as caught:
        build_robot("libero").parse(message("libero") | {"observation/state": state}, set())
    assert caught.value.field == "observation/state[5]"
    state[5] = 5e-324  # a denormal is a number
    build_robot("libero").parse(message("libero") | {"observation/state": state}, set())


def test_a_batch_of_two_is_refused_in_every_field() -> None:
    raw = message("libero")
    for key in ("observation/image", "observation/wrist_image", "observation/state"):
        with pytest.raises(InvalidInput, match=key):
            build_robot("libero").parse(raw | {key: np.stack([raw[key], raw[key]])}, set())


def test_masks_leave_a_camera_out_exactly_as_omitting_it_does() -> None:
    robot, raw = build_robot("aloha"), message("aloha")
    masked = robot.parse(raw | {"image_mask": {"cam_left_wrist": False, "right_wrist_0_rgb": np.True_}}, set())[0]
    omitted = dict(raw["images"])
    del omitted["cam_left_wrist"]
    assert list(masked) == list(robot.parse(raw | {"images": omitted}, set())[0]) == ["cam_high", "cam_right_wrist"]
    with pytest.raises(InvalidInput, match="required"):
        robot.parse(raw | {"image_mask": {"cam_high": False}}, set())
    for odd in ({"cam_left_wrist": 0}, [False]):
        with pytest.raises(InvalidInput, match="image_mask"):
            robot.parse(raw | {"image_mask": odd}, set())


def test_a_described_robot_reads_three_key_styles() -> None:
    robot = build_robot(GENERIC)
    views = {"corner": picture(0, 64, 64), "gripper": picture(1, 64, 64)}
    styles = (
        {"images": views, "state": [0.0] * 4, "prompt": "x"},
        {f"observation/{name}": view for name, view in views.items()} | {"observation/state": [0] * 4, "prompt": "x"},
        {f"observation.images.{n}": v for n, v in views.items()} | {"observation.state": [0] * 4, "task": "x"},
        {f"images.{n}": v for n, v in views.items()} | {"state": [0] * 4, "prompt": "x"},
    )
    for raw in styles:
        images, state, prompt = robot.parse(raw, set())
        assert list(images) == ["corner", "gripper"] and state.tolist() == [0] * 4 and prompt == "x"
    assert list(robot.parse({"images": {"corner": views["corner"]}, "state": [0] * 4}, set())[0]) == ["corner"]


@pytest.mark.parametrize(
    "described",
    [
        "ur5",
        {"name": "generic"},
        {"name": "libero", "wheels": 4},
        GENERIC | {"cameras": {}},
        GENERIC | {"action_dim": 0},
        GENERIC | {"cameras": {"a": "base_0_rgb", "b": "base_0_rgb"}},
        GENERIC | {"actions": [{"name": "hand", "dim": 3, "kind": "delta", "unit": "m"}]},
        {"name": "droid", "action_space": "cartesian"},
    ],
)
def test_unknown_and_broken_robots_are_refused(described: Any) -> None:
    with pytest.raises(InvalidInput, match=r"robot|action_space"):
        build_robot(described)


def test_aloha_turns_signs_and_grippers() -> None:
    state = np.full(14, 0.5)
    turned = state_to_pi(state)
    signs = [1, -1, -1, 1, 1, 1] * 2
    joints = [i for i in range(14) if i not in GRIPPERS]
    assert turned[joints].tolist() == [0.5 * sign for sign in signs]
    # By the law of cosines on the gripper's linkage, in the open text of ALOHA's own constants.
    opening = 0.5 * (0.05800 - 0.01844) + 0.01844
    angle = np.arcsin((0.022**2 + opening**2 - 0.036**2) / (2 * 0.022 * opening))
    assert turned[6] == turned[13] == pytest.approx((angle - 0.5476) / (1.6296 - 0.5476))
    back = actions_from_pi(np.zeros((2, 14)))
    assert back[0, 6] == back[1, 13] == pytest.approx((0.5476 + 0.6213) / (1.4910 + 0.6213))
    assert np.array_equal(state, np.full(14, 0.5)), "the input is left alone"


@given(st_numpy.arrays(np.float64, (3, 14), elements=st.floats(-3, 3)))
def test_aloha_actions_go_there_and_back(actions: np.ndarray) -> None:
    np.testing.assert_allclose(actions_to_pi(actions_from_pi(actions)), actions, atol=1e-12)


@given(st.floats(-5, 5))
def test_aloha_gripper_is_finite_for_any_reading(value: float) -> None:
    state = np.zeros(14)
    state[6] = value
    assert np.isfinite(state_to_pi(state)).all()


def test_delta_and_absolute_actions_equal_openpi() -> None:
    golden = np.load(DATA / "delta_actions.npz")
    mask = tuple(bool(flag) for flag in golden["mask"])
    assert mask == bool_mask(6, -1, 3)
    frame = {"state": golden["state"], "actions": golden["actions"]}
    delta = DeltaActions(mask)(frame)["actions"]
    assert np.array_equal(delta, golden["delta"])
    back = AbsoluteActions(mask)(frame | {"actions": delta})["actions"]
    assert np.array_equal(back, golden["absolute_of_delta"])
    batch = {"state": golden["state_batch"], "actions": golden["actions_batch"]}
    assert np.array_equal(DeltaActions(mask)(batch)["actions"], golden["delta_batch"])
    assert np.array_equal(pad_to(golden["pad_in"], 12), golden["pad_out"])
    wide = golden["pad_out"]
    assert pad_to(wide, 7) is wide


def test_undoing_mirrors_doing() -> None:
    trace: list[str] = []

    def step(name: str) -> Any:
        return lambda frame: (trace.append(name), frame)[1]

    pipeline = Pipeline().push([step("robot in")], [step("robot out")]).push([step("norm in")], [step("norm out")])
    pipeline.run_outputs(pipeline.run_inputs({}))
    assert trace == ["robot in", "norm in", "norm out", "robot out"]


def test_all_robots_can_be_built_by_name() -> None:
    assert {name for name in ROBOTS if name != "generic"} == {build_robot(name).name for name in NAMES}
