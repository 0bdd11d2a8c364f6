"""The simulated arm: exact save and restore, expert chunks, pictures, success. Needs the extra `demo` and OpenGL."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator

import numpy as np
import pytest

from oxygen.sim import graphics
from oxygen.sim.graphics import NoSimulator, require_simulator


def _has_simulator() -> bool:
    try:
        require_simulator()
    except NoSimulator:
        return False
    return True


pytestmark = pytest.mark.skipif(not _has_simulator(), reason="needs the extra 'demo' and an off-screen OpenGL")


@pytest.fixture(scope="module")
def arm() -> Iterator[object]:
    from oxygen.sim.arm import Arm

    with Arm("drawer-close") as found:
        yield found


def test_restoring_is_exact(arm) -> None:
    arm.reset(4000)
    rng = np.random.default_rng(0)
    for action in rng.uniform(-1, 1, (7, 4)):
        arm.step(action)
    saved = arm.save()
    actions = rng.uniform(-1, 1, (6, 4))
    for action in actions:
        arm.step(action)
    first = arm.reading.copy()
    arm.restore(saved)
    assert arm.num_steps == 7
    for action in actions:
        arm.step(action)
    assert np.array_equal(arm.reading, first)


def test_an_expert_chunk_is_what_the_expert_then_does(arm) -> None:
    arm.reset(4001)
    before = arm.reading.copy()
    chunk = arm.expert_chunk(10)
    assert np.array_equal(arm.reading, before)
    for action in chunk:
        assert np.array_equal(arm.expert_action(), action)
        arm.step(action)


def test_the_expert_succeeds_and_success_stays(arm) -> None:
    arm.reset(4002)
    assert not arm.facts().done
    while not arm.succeeded:
        assert arm.num_steps < 120
        arm.step(arm.expert_action())
    arm.step(np.array([0.0, 0.0, 1.0, 0.0]))
    assert arm.facts().done
    assert arm.facts().level == "closed"


def test_the_same_seed_is_the_same_layout_and_another_is_not(arm) -> None:
    arm.reset(4003)
    first = arm.reading.copy()
    arm.reset(4004)
    assert not np.array_equal(arm.reading, first)
    arm.reset(4003)
    assert np.array_equal(arm.reading, first)


def test_pictures_are_what_the_policy_was_trained_on(arm) -> None:
    from oxygen.sim.arm import CAMERAS, shrink

    arm.reset(4000)
    pictures = arm.look()
    assert list(pictures) == list(CAMERAS)
    for name, picture in pictures.items():
        assert picture.shape == (64, 64, 3)
        assert picture.dtype == np.uint8
        assert picture.std() > 10, "a picture of one colour shows nothing"
        assert np.array_equal(picture, shrink(arm.large[name]))
    again = arm.look()
    assert all(np.array_equal(again[name], pictures[name]) for name in CAMERAS)


def test_shrinking_averages_blocks() -> None:
    from oxygen.sim.arm import shrink

    blocks = np.zeros((4, 4, 3), np.uint8)
    blocks[:2, :2] = [[[10] * 3, [20] * 3], [[30] * 3, [40] * 3]]
    assert shrink(blocks)[:, :, 0].tolist() == [[25, 0], [0, 0]]


def test_missing_parts_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    real = importlib.util.find_spec
    monkeypatch.setattr(graphics.importlib.util, "find_spec", lambda n: None if n == "metaworld" else real(n))
    with pytest.raises(NoSimulator, match=r"metaworld.*oxygen-vla\[demo\]"):
        require_simulator()


def test_missing_opengl_is_said_with_the_packages_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MUJOCO_GL", raising=False)
    monkeypatch.setattr(graphics.ctypes.util, "find_library", lambda _: None)
    monkeypatch.setattr(graphics.sys, "platform", "linux")
    with pytest.raises(NoSimulator, match="libosmesa6"):
        require_simulator()
