"""The averaged weights as a checkpoint folder that the engine opens."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

import torch

from oxygen.models.pi05.torch import Pi05
from oxygen.models.pi05.torch.weights import save_pi05
from oxygen.sim.drive import EXECUTED
from oxygen.sim.tasks import DAGGER_SEEDS, TRAIN_SEEDS
from oxygen.training.batches import Scales
from oxygen.training.export import (
    curves,
    model_card,
    plot_curves,
    processor_settings,
    read_log,
    statistics_of,
)
from oxygen.training.frames import Frames
from oxygen.training.recipe import SPEC, Recipe
from oxygen.training.torch.losses import AUX_WEIGHT, TEXT_WEIGHT

STORED = torch.float16
RESULTS_FILE = "results.md"
NO_RESULTS = "Not evaluated yet: run `oxygen eval` on this folder."


def export(
    model: Pi05,
    folder: Path,
    work: Path,
    recipe: Recipe,
    demonstrations: Frames,
    scales: Scales,
    rollouts: Mapping[str, Frames],
) -> Path:
    """Write weights, config, tokenizer, statistics and card. Results are those of `oxygen eval`, if it has run."""
    results = work / RESULTS_FILE
    facts = {
        "parameters": f"{SPEC.num_parameters() / 1e6:.2f} M",
        "horizon": SPEC.horizon,
        "action_dim": SPEC.action_dim,
        "num_steps": SPEC.num_steps,
        "executed": EXECUTED,
        "num_demos": recipe.num_demos,
        "train_seeds": f"{TRAIN_SEEDS.start} to {TRAIN_SEEDS.start + recipe.num_demos - 1}",
        "dagger_seeds": DAGGER_SEEDS.start,
        "demo_frames": len(demonstrations),
        "rollout_frames": sum(len(frames) for frames in rollouts.values()),
        "seed": recipe.seed,
        "steps": recipe.num_steps,
        "batch_size": recipe.batch_size,
        "samples": recipe.num_steps * recipe.batch_size,
        "learning_rate": recipe.learning_rate,
        "ema_decay": recipe.ema_decay,
        "text_weight": TEXT_WEIGHT,
        "aux_weight": AUX_WEIGHT,
        "stages": ", ".join(
            f"{s.name} {s.steps} steps" + (f" after {s.rollouts} rollouts per task" if s.rollouts else "")
            for s in recipe.stages
        ),
        "dtype": str(STORED).removeprefix("torch."),
        "rollouts": "\n".join(_rollout_line(name, frames) for name, frames in rollouts.items()),
        "curves": curves(read_log(work / "train" / "log.jsonl")),
    }
    card = model_card(facts, results.read_text(encoding="utf-8") if results.exists() else NO_RESULTS)
    rows = read_log(work / "train" / "log.jsonl")
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "training_log.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    plot_curves(rows, folder / "curves.png")
    return save_pi05(
        model,
        folder,
        processor=processor_settings(),
        tokenizer=work / "tokenizer.json",
        statistics=statistics_of(scales, demonstrations.states.astype(float)),
        model_card=card,
        dtype=STORED,
        overwrite=True,
    )


def _rollout_line(stage: str, frames: Frames) -> str:
    """How the policy fared before a stage; an episode that succeeded has frames after its success."""
    episodes = set(zip(frames.tasks.tolist(), frames.seeds.tolist(), strict=True))
    done = set(zip(frames.tasks[frames.done].tolist(), frames.seeds[frames.done].tolist(), strict=True))
    return f"* Rollouts before stage {stage}: {len(done)} of {len(episodes)} episodes succeeded."
