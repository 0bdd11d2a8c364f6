"""What the exported folder says about itself: the robot, its prompts, its statistics and its model card."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from oxygen.processing.statistics import FieldStatistics, Statistics
from oxygen.sim.arm import CAMERAS
from oxygen.sim.drive import EXECUTED
from oxygen.sim.tasks import TASKS
from oxygen.training.batches import Scales
from oxygen.training.language import KINDS, PREFIX, TAILS
from oxygen.training.recipe import SPEC

ASSET_ID = "metaworld-8"
CONTROL_HZ = 80.0


def processor_settings() -> dict[str, Any]:
    """Settings of the processor for this robot, as plain data."""
    slots = [f"{name}_rgb" for name in CAMERAS]
    motion = {"dim": 1, "kind": "delta", "unit": "cm of the hand per control step, in [-1, 1]", "frame": "world"}
    return {
        "robot": {
            "name": "generic",
            "label": "metaworld-sawyer",
            "cameras": dict(zip(CAMERAS, slots, strict=True)),
            "state_dim": 4,
            "action_dim": SPEC.action_dim,
            "actions": [
                *({"name": f"motion {axis}", **motion} for axis in "xyz"),
                {"name": "gripper", "dim": 1, "kind": "effort", "unit": "-1 opens, 1 closes", "frame": "gripper"},
            ],
            "control_hz": CONTROL_HZ,
            "replan_steps": EXECUTED,
            "metadata": {"tasks": {name: task.instruction for name, task in TASKS.items()}},
        },
        "templates": {
            "action": {"prefix": PREFIX},
            **{kind: {"prefix": PREFIX, "tail": TAILS[kind]} for kind in KINDS},
        },
        "slots": slots,
        "normalization": "quantile",
        "max_tail_len": 64,
        "asset_id": ASSET_ID,
    }


def statistics_of(scales: Scales, states: np.ndarray) -> Statistics:
    """Quantile statistics; the ends are those of training: the data's range with room to spare, not exact quantiles."""
    return Statistics(
        ASSET_ID,
        FieldStatistics(mean=states.mean(0), std=states.std(0), q01=scales.state_low, q99=scales.state_high),
        FieldStatistics(q01=scales.action_low, q99=scales.action_high),
    )


def read_log(path: Path) -> list[dict[str, Any]]:
    """Rows of a training log by step; where a run was resumed, the later row counts."""
    rows = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines() if line.strip()]
    return [row for _, row in sorted({row["step"]: row for row in rows}.items())]


def curves(rows: list[dict[str, Any]], num_lines: int = 24) -> str:
    """A table of the training log, thinned to about `num_lines` rows with held-out numbers."""
    measured = [row for row in rows if "held_out_flow" in row]
    chosen = [measured[i] for i in sorted({round(i) for i in np.linspace(0, len(measured) - 1, num_lines)})]
    head = "| step | samples/s | rate | flow | text | held-out flow | held-out words right | action error |\n"
    lines = [
        f"| {row['step']} | {row['samples_per_s']:.0f} | {row['rate']:.1e} | {row['flow']:.4f} | {row['text']:.4f} | "
        f"{row['held_out_flow']:.4f} | {row['held_out_text_hits']:.4f} | {row['held_out_action_error']:.4f} |"
        for row in chosen
    ]
    return head + "|---" * 8 + "|\n" + "\n".join(lines)


def plot_curves(rows: list[dict[str, Any]], path: Path) -> bool:
    """Losses over steps, taught and held out. False without matplotlib."""
    try:
        import matplotlib
    except ModuleNotFoundError:
        return False
    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, (left, right) = pyplot.subplots(1, 2, figsize=(9, 3.2), constrained_layout=True)
    held_out = [row for row in rows if "held_out_flow" in row]
    for axis, name in ((left, "flow"), (right, "text")):
        axis.plot([r["step"] for r in rows], [r[name] for r in rows], label="training batches", linewidth=1.0)
        axis.plot(
            [r["step"] for r in held_out],
            [r[f"held_out_{name}"] for r in held_out],
            "o-",
            label="held out",
            markersize=3,
        )
        axis.set(title=f"{name} loss", xlabel="step", yscale="log")
        axis.legend(fontsize=8)
    figure.savefig(path, dpi=90)
    pyplot.close(figure)
    return True


def model_card(facts: Mapping[str, Any], results: str) -> str:
    """The card. facts: numbers of the run; results: the evaluation's own tables, or a line that says there are none."""
    return CARD.format(
        tasks="\n".join(f"| {name} | {task.instruction} |" for name, task in TASKS.items()), results=results, **facts
    )


CARD = """# oxygen-tiny

A π0.5-shaped policy of {parameters} parameters for a simulated Sawyer arm (Meta-World 3.1.1), trained from nothing
by `oxygen train` (`make train`) on a CPU. It exists so that the whole engine can be tried on any machine: it acts
from two camera pictures of 64 x 64 pixels, four numbers of state and an instruction, and it speaks. It is not a
foundation model, and nothing in it was taken from other weights.

## What it does

| task | instruction |
|---|---|
{tasks}

Actions: chunks of {horizon} x {action_dim} at 80 control steps per second, of which the robot executes {executed};
{num_steps} flow steps. Texts on the same context, each with its own causal tail: `subtask`, `narration`, `memory`,
and `answer` (yes/no and open questions about the scene and the task). The words are those of the training texts;
other words are spelled out from pieces that were never trained.

## Data

* {num_demos} scripted demonstrations of each task (layout seeds {train_seeds}), {demo_frames} frames. The executed
  motion is disturbed by correlated noise and pushes; the label of a frame is the undisturbed expert's next
  {horizon} actions, found by running it from that state and going back.
* {rollout_frames} frames that the half-trained policy reached on other layouts (seeds from {dagger_seeds} on),
  labelled by the expert in the same way (DAgger).
* Texts and answers are computed from the simulator's state. Every tenth layout is held out of training.

## Training

Seed {seed}, {steps} steps of batch {batch_size} ({samples} samples), AdamW at {learning_rate}, constant and then a
cosine, averaged weights (EMA {ema_decay}). Loss: flow matching with t from Beta(1.5, 1), {text_weight} x text,
{aux_weight} x position of the part relative to the hand and of the joint (a head that exists in training only).
Stages: {stages}. Stored as {dtype}.

{rollouts}

{curves}

All rows: `training_log.jsonl`; the same as a picture: `curves.png`.

## Results

{results}

## Limits

* Layouts of evaluation are new draws from the ranges of training: this is interpolation within the benchmark's own
  randomisation. Other objects, cameras, lights or arms are unknown to it.
* The goal marker of Meta-World (a small sphere) is visible in some pictures.
* Texts near a border of the rules that label them (the gripper just about to arrive) are often judged wrong; the
  rules are sharp. Answers to questions outside the trained ones mean nothing.
* One run, one seed: nothing here says how much another seed would differ.

Licence: Apache-2.0, like the code. Meta-World is MIT-licensed.
"""
