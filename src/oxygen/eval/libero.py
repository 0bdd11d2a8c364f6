"""LIBERO by openpi's protocol: which pictures and numbers a policy gets, when it is asked, when an episode ends.

Numbers follow openpi's `examples/libero/main.py`: 10 idle steps while objects fall into place, both camera pictures
turned by 180 degrees and fitted into 224 x 224, 5 actions of a chunk executed, a step limit per suite, the suite's own
initial states in order, seed 7. Nothing here needs the simulator; see `libero_scene`.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from rich.progress import Progress

from oxygen.core.errors import InvalidInput
from oxygen.core.tasks import ActionTask, Observation
from oxygen.eval.closed_loop import Report
from oxygen.eval.counts import count
from oxygen.eval.libero_arguments import SUITES
from oxygen.processing.images import resize_with_pad
from oxygen.sim.drive import Door

TASKS_PER_SUITE = 10
EPISODES = 50
IDLE_STEPS = 10
EXECUTED = 5
PICTURE = 224
SEED = 7
IDLE_ACTION = np.array([0.0, 0.0, 0.0, 0.0, 0.0, 0.0, -1.0])
"""No motion, gripper open."""


@dataclass(frozen=True, slots=True, eq=False)
class Reading:
    """What the robot's own sensors say. position: [3] m; quaternion: [4] x, y, z, w; gripper: [2] finger joints, m."""

    position: np.ndarray
    quaternion: np.ndarray
    gripper: np.ndarray


class Scene(Protocol):
    """One task of a suite; `libero_scene.LiberoScene` is the simulated one."""

    language: str
    num_states: int

    def reset(self, number: int) -> Reading:
        """Put the scene into its `number`-th initial state."""

    def step(self, action: np.ndarray) -> tuple[Reading, bool]:
        """One control step with [7] in [-1, 1]; the flag says that the task is done."""

    def pictures(self) -> tuple[np.ndarray, np.ndarray]:
        """Front and wrist camera as the benchmark delivers them, each [S, S, 3] uint8."""

    def close(self) -> None: ...


def turned(picture: np.ndarray) -> np.ndarray:
    """`picture` [H, W, 3] turned by 180 degrees and fitted into [224, 224, 3]."""
    return resize_with_pad(np.ascontiguousarray(picture[::-1, ::-1]), PICTURE, PICTURE)


def axis_angle(quaternion: np.ndarray) -> np.ndarray:
    """Rotation of a unit quaternion [4] (x, y, z, w) as axis times angle, [3] rad; angles up to 2 pi, as robosuite."""
    w = float(np.clip(quaternion[3], -1.0, 1.0))
    sine = float(np.sqrt(1.0 - w * w))
    if np.isclose(sine, 0.0):
        return np.zeros(3)
    scaled: np.ndarray = np.asarray(quaternion[:3], np.float64) * (2.0 * np.arccos(w) / sine)
    return scaled


def state_of(reading: Reading) -> np.ndarray:
    """[8] float64: position, axis-angle, finger joints."""
    return np.concatenate([reading.position, axis_angle(reading.quaternion), reading.gripper]).astype(np.float64)


@dataclass(frozen=True, slots=True)
class LiberoWishes:
    """What to run. max_steps: of an episode, the suite's own limit if None."""

    suite: str
    tasks: tuple[int, ...] = tuple(range(TASKS_PER_SUITE))
    episodes: int = EPISODES
    seed: int = SEED
    max_steps: int | None = None

    @property
    def limit(self) -> int:
        return SUITES[self.suite] if self.max_steps is None else self.max_steps


@dataclass(slots=True)
class Run:
    """An episode that ended. num_steps: control steps of the policy; ready_ms: wait for each chunk."""

    succeeded: bool
    num_steps: int
    chunks: list[np.ndarray]
    ready_ms: list[float]
    seconds: float


Noise = Callable[[int], np.ndarray]
"""Start of the flow [horizon, action_dim] for the frame taken at a control step."""


def run_libero_episode(
    scene: Scene,
    number: int,
    door: Door,
    *,
    limit: int,
    noise: Noise,
    session: str = "libero",
    timeout_s: float = 600.0,
) -> Run:
    """Drive the scene from its `number`-th initial state until its task is done or `limit` steps are spent.

    As in openpi, what the idle steps bring about does not end an episode. Raises what the door raises, and
    InvalidInput for a chunk that is not [at least 5, 7].
    """
    reading = scene.reset(number)
    for _ in range(IDLE_STEPS):
        reading, _ = scene.step(IDLE_ACTION)
    run = Run(False, 0, [], [], 0.0)
    started = time.perf_counter()
    while run.num_steps < limit and not run.succeeded:
        front, wrist = scene.pictures()
        images = {"image": turned(front), "wrist_image": turned(wrist)}
        observation = Observation(images, state_of(reading), scene.language, session, frame_id=len(run.chunks))
        handed_in = time.perf_counter()
        answer = door.submit(observation, ActionTask(noise=noise(run.num_steps)), ())
        chunk = answer.actions(timeout_s).actions
        run.ready_ms.append(1e3 * (time.perf_counter() - handed_in))
        if chunk.ndim != 2 or chunk.shape[0] < EXECUTED or chunk.shape[1] != len(IDLE_ACTION):
            raise InvalidInput("actions", f"[at least {EXECUTED}, {len(IDLE_ACTION)}]", str(list(chunk.shape)))
        run.chunks.append(chunk)
        for action in chunk[: min(EXECUTED, limit - run.num_steps)]:
            reading, run.succeeded = scene.step(action)
            run.num_steps += 1
            if run.succeeded:
                break
    run.seconds = time.perf_counter() - started
    return run


def evaluate_libero(
    open_scene: Callable[[int], Scene],
    door: Door,
    noise_shape: tuple[int, int],
    wishes: LiberoWishes,
    progress: Progress,
) -> Report:
    """Success of each task, with the sums over all chunks. open_scene: the scene of a task's number."""
    report = Report()
    bar = progress.add_task("episodes", total=len(wishes.tasks) * wishes.episodes)
    for task in wishes.tasks:
        flags, steps = [], []
        with closing(open_scene(task)) as scene:
            if wishes.episodes > scene.num_states:
                raise InvalidInput("episodes", f"at most {scene.num_states} initial states", str(wishes.episodes))
            name = f"{task}: {scene.language}"
            for number in range(wishes.episodes):
                noise = _noise([wishes.seed, task, number], noise_shape)
                run = run_libero_episode(scene, number, door, limit=wishes.limit, noise=noise)
                flags.append(run.succeeded)
                steps.append(run.num_steps)
                _collect(report, run)
                progress.advance(bar)
        report.success[name] = count(flags)
        said = f"{name}: {report.success[name]}, {np.mean(steps):.0f} steps on average"
        progress.console.print(said, markup=False, highlight=False, soft_wrap=True)
    return report


def _noise(key: Sequence[int], shape: tuple[int, int]) -> Noise:
    """Noise that depends on seed, task, episode and step alone, so every mode starts its flows alike."""

    def draw(num_steps: int) -> np.ndarray:
        return np.random.default_rng([*key, num_steps]).standard_normal(shape, dtype=np.float32)

    return draw


def _collect(report: Report, run: Run) -> None:
    report.num_frames += len(run.chunks)
    report.loop_s += run.seconds
    report.action_ready_ms += run.ready_ms
    for chunk in run.chunks:
        report.actions_sha256.update(chunk.tobytes())
