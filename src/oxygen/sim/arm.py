"""The simulated arm: a Meta-World environment with two cameras, a scripted expert and exact save and restore."""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np

from oxygen.sim.facts import SceneFacts
from oxygen.sim.graphics import require_simulator
from oxygen.sim.tasks import LAYOUTS_PER_BLOCK, TASKS

CAMERAS = ("front", "wrist")
PICTURE = 64
"""Side of a camera picture in pixels. Pictures are rendered at twice this and averaged: MuJoCo's own antialiasing
halves the frame rate, four times the pixels cost a tenth of it."""
JOINT = 9
"""Index in qpos of the mechanism's joint: the arm's seven joints and two fingers come first in all eight scenes."""
READING = 18
"""Numbers of an environment observation that describe the present (the rest repeats the step before)."""
MAX_STEPS = 150


@dataclass(frozen=True, slots=True, eq=False)
class Snapshot:
    """Everything the arm's future depends on."""

    physics: np.ndarray
    reading: np.ndarray
    num_steps: int
    succeeded: bool


@lru_cache(maxsize=4)
def _block(env: str, block: int) -> Any:
    import metaworld

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return metaworld.MT1(env, seed=block)


class Arm:
    """One arm on one task at a time. Control steps are 80 Hz; actions are [4] in [-1, 1]: motion x, y, z and gripper.

    `large` holds the last pictures as they were rendered, for people. An episode may take `max_steps` control steps.
    Only one Arm of a process may have its camera open (two software renderers in one process give broken pictures):
    close one before the next looks.
    """

    def __init__(self, task: str) -> None:
        require_simulator()
        import mujoco
        from metaworld.policies import ENV_POLICY_MAP

        self.task = TASKS[task]
        self._mujoco = mujoco
        self._env = _block(self.task.env, 0).train_classes[self.task.env]()
        make_expert: Any = ENV_POLICY_MAP[self.task.env]
        self._expert = make_expert()
        self._model, self._data = self._env.model, self._env.data
        self._model.vis.quality.offsamples = 0
        self._model.cam_pos[self._model.camera("corner2").id] = (0.75, 0.075, 0.7)
        self._state_kind = mujoco.mjtState.mjSTATE_INTEGRATION
        self._state_len = mujoco.mj_stateSize(self._model, self._state_kind)
        self._renderer: Any = None
        self.reading = np.zeros(READING)
        self.num_steps = 0
        self.succeeded = False
        self._start_extent = 0.0
        self.max_steps = MAX_STEPS
        self.large: dict[str, np.ndarray] = {}

    def reset(self, seed: int) -> None:
        """Start an episode on the layout that `seed` names."""
        block, item = divmod(seed, LAYOUTS_PER_BLOCK)
        self._env.set_task(_block(self.task.env, block).train_tasks[item])
        observation, _ = self._env.reset()
        self.reading = np.array(observation[:READING])
        self.num_steps, self.succeeded = 0, False
        self._start_extent = self._extent()

    def step(self, action: np.ndarray) -> None:
        observation, _, _, _, info = self._env.step(np.clip(action, -1.0, 1.0).astype(np.float32))
        self.reading = np.array(observation[:READING])
        self.num_steps += 1
        # Some scenes take success back when the arm presses on; an episode that once succeeded has succeeded.
        self.succeeded = self.succeeded or bool(info["success"] > 0.5)

    @property
    def state(self) -> np.ndarray:
        """Proprioception: gripper position x, y, z (m) and finger opening (0 to 1), [4] float32."""
        return self.reading[:4].astype(np.float32)

    def expert_action(self) -> np.ndarray:
        """The scripted expert's action for the present state, [4] float32."""
        full = np.concatenate([self.reading, self.reading, np.zeros(3)])
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # it warns that its own gains saturate, which the clip below is for
            action = self._expert.get_action(full)
        return np.clip(action, -1.0, 1.0).astype(np.float32)

    def expert_chunk(self, horizon: int) -> np.ndarray:
        """What the expert would do from here, [horizon, 4] float32, found by running it and going back."""
        saved = self.save()
        actions = []
        for _ in range(horizon):
            actions.append(self.expert_action())
            self.step(actions[-1])
        self.restore(saved)
        return np.array(actions)

    def facts(self) -> SceneFacts:
        offset = self.reading[:3] - self.reading[4:7]
        return SceneFacts(
            self.task.name,
            self._extent(),
            self._start_extent,
            (float(offset[0]), float(offset[1]), float(offset[2])),
            self.succeeded,
        )

    def _extent(self) -> float:
        return float(self._data.qpos[JOINT] / self.task.mechanism.full)

    def save(self) -> Snapshot:
        physics = np.empty(self._state_len)
        self._mujoco.mj_getState(self._model, self._data, physics, self._state_kind)
        return Snapshot(physics, self.reading, self.num_steps, self.succeeded)

    def restore(self, saved: Snapshot) -> None:
        """Go back to a snapshot of this episode; the same actions then lead to the same numbers, bit for bit."""
        self._mujoco.mj_setState(self._model, self._data, saved.physics, self._state_kind)
        self._mujoco.mj_forward(self._model, self._data)
        self._env.curr_path_length = saved.num_steps
        self.reading, self.num_steps, self.succeeded = saved.reading, saved.num_steps, saved.succeeded

    def look(self) -> dict[str, np.ndarray]:
        """Both cameras, each [64, 64, 3] uint8 RGB."""
        return {name: shrink(picture) for name, picture in self.look_large().items()}

    def look_large(self) -> dict[str, np.ndarray]:
        """Both cameras as rendered, each [128, 128, 3] uint8 RGB."""
        mujoco = self._mujoco
        if self._renderer is None:
            self._renderer = mujoco.Renderer(self._model, 2 * PICTURE, 2 * PICTURE)
        pictures = {}
        for name, camera in zip(CAMERAS, ("corner2", "gripperPOV"), strict=True):
            self._renderer.update_scene(self._data, camera=camera)
            # Shadows and reflections cost five to ten times the rest under software rendering.
            for flag in (mujoco.mjtRndFlag.mjRND_SHADOW, mujoco.mjtRndFlag.mjRND_REFLECTION):
                self._renderer.scene.flags[flag] = 0
            picture = self._renderer.render()
            pictures[name] = (picture[::-1, ::-1] if name == "front" else picture).copy()
        self.large = pictures
        return pictures

    def close(self) -> None:
        if self._renderer is not None:
            self._renderer.close()
            self._renderer = None

    def __enter__(self) -> Arm:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def shrink(picture: np.ndarray) -> np.ndarray:
    """Mean of each 2 x 2 block, rounded: [2S, 2S, 3] uint8 to [S, S, 3] uint8."""
    height, width, channels = picture.shape
    blocks = picture.reshape(height // 2, 2, width // 2, 2, channels).astype(np.uint16)
    return ((blocks.sum(axis=(1, 3)) + 2) // 4).astype(np.uint8)
