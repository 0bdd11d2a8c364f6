"""The demo's plot: the actions of one episode, executed and not, and how old the texts of both modes were."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import numpy as np

from oxygen.demo.measure import Run
from oxygen.sim.drive import EXECUTED, Episode

DIMENSIONS = (("x", "C0"), ("y", "C1"), ("z", "C2"), ("gripper", "C3"))
KINDS = (("subtask", "C0", "o"), ("narration", "C1", "s"), ("memory", "C2", "^"), ("answer", "C3", "D"))


def plot(path: Path, runs: list[Run]) -> bool:
    """Write the PNG; False without matplotlib."""
    try:
        import matplotlib
    except ModuleNotFoundError:
        return False
    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(
        1 + len(runs), figsize=(10, 3.6 + 2.4 * len(runs)), height_ratios=[1.5] + [1] * len(runs), layout="constrained"
    )
    _draw_actions(axes[0], runs[0].episodes[0])
    highest = max((1e3 * s.result.age_s for run in runs for s in run.texts), default=1.0)
    for axis, run in zip(axes[1:], runs, strict=True):
        _draw_ages(axis, run)
        axis.set_ylim(0, 1.3 * highest)  # room for the legend
    axes[-1].set_xlabel("camera frame that the text describes (grey lines: next episode)")
    figure.savefig(path, dpi=110)
    pyplot.close(figure)
    return True


def _draw_actions(axis: Any, episode: Episode) -> None:
    """Strong: what was executed. Pale: the rest of each chunk, which the next frame's chunk replaced."""
    start = 0
    done = []
    for look in episode.looks:
        executed = min(EXECUTED, episode.num_steps - start)  # fewer when the task is done
        steps = start + np.arange(len(look.chunk))
        rest = max(0, executed - 1)
        for column, (_, colour) in enumerate(DIMENSIONS):
            axis.plot(steps[rest:], look.chunk[rest:, column], color=colour, linewidth=0.8, alpha=0.35)
        done.append(look.chunk[:executed])
        start += executed
    for column, (name, colour) in enumerate(DIMENSIONS):
        axis.plot(np.concatenate(done)[:, column], color=colour, linewidth=2, label=name)
    axis.plot([], [], color="black", linewidth=2, label="executed")
    axis.plot([], [], color="black", linewidth=0.8, alpha=0.4, label="predicted, not executed")
    axis.set(
        title=f"actions of one episode: “{episode.instruction}”, {EXECUTED} executed per camera frame",
        xlabel="control step",
        ylabel="x, y, z: cm per control step\ngripper: -1 opens, 1 closes",
    )
    axis.legend(loc="upper center", bbox_to_anchor=(0.5, -0.17), ncols=6, fontsize=8, frameon=False)


def _draw_ages(axis: Any, run: Run) -> None:
    starts = [0, *itertools.accumulate(len(episode.looks) for episode in run.episodes)]
    for kind, colour, marker in KINDS:
        said = [s for s in run.texts if s.kind == kind]
        frames = [starts[s.episode] + s.frame for s in said]
        axis.scatter(frames, [1e3 * s.result.age_s for s in said], s=20, marker=marker, color=colour, label=kind)
    for boundary in starts[1:-1]:
        axis.axvline(boundary - 0.5, color="0.8", linewidth=1)
    axis.set(title=f"{run.mode}: age of each text, from its frame to its last word", ylabel="ms")
    axis.legend(loc="upper right", ncols=4, fontsize=8)
