"""From nothing to the shipped checkpoint, stage by stage; a stage whose result is on disk is not done again."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path

import numpy as np
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from tokenizers import Tokenizer as WordPieces

from oxygen.sim.graphics import require_simulator
from oxygen.training.batches import Batch, Curriculum, Scales
from oxygen.training.frames import COLUMNS, Frames, load_frames
from oxygen.training.language import Words, train_tokenizer
from oxygen.training.recipe import Recipe
from oxygen.training.record import record_demonstrations
from oxygen.training.rollouts import record_rollouts

HELD_OUT_FRAMES = 128


def progress_bars() -> Progress:
    return Progress(
        TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(), TimeRemainingColumn()
    )


def train(work: Path, recipe: Recipe, out: Path) -> None:
    """Run all stages in `work` and export to `out`: demonstrations, tokenizer, each stage with its rollouts first."""
    require_simulator()
    work.mkdir(parents=True, exist_ok=True)
    (work / "recipe.json").write_text(json.dumps(asdict(recipe), indent=1), encoding="utf-8")
    with progress_bars() as progress:
        files = record_demonstrations(work / "demos", recipe.num_demos, progress)
        demonstrations = load_frames(files)
        scales = Scales.of(demonstrations)
        words = open_words(work)
        from oxygen.training.torch.export import export
        from oxygen.training.torch.policy import Policy
        from oxygen.training.torch.trainer import Trainer

        trainer = Trainer(work / "train", recipe, words)
        rollouts: dict[str, Frames] = {}
        until = 0
        for number, stage in enumerate(recipe.stages):
            until += stage.steps
            if stage.rollouts:
                path = work / "rollouts" / f"{number}-{stage.name}.npz"
                policy = Policy(trainer.average, scales, words, seed=number)
                record_rollouts(path, policy, number, stage.rollouts, progress)
                files.append(path)
                rollouts[stage.name] = load_frames([path])
            if trainer.step >= until:
                continue
            taught, held_out = split(load_frames(files))
            curriculum = Curriculum(taught, scales, words)
            progress.console.print(f"stage {stage.name}: {len(taught)} frames, steps {trainer.step} to {until}")
            trainer.fit(curriculum, held_out_batch(held_out, scales, words), until, progress)
        export(trainer.average, out, work, recipe, demonstrations, scales, rollouts)
        progress.console.print(f"exported to {out}", highlight=False)


def open_words(work: Path) -> Words:
    path = work / "tokenizer.json"
    return Words(WordPieces.from_file(str(path)) if path.exists() else train_tokenizer(path))


def split(frames: Frames) -> tuple[Frames, Frames]:
    """Every tenth layout is held out of training (episodes stay whole)."""
    is_out = frames.seeds % 10 == 9
    if not is_out.any():  # too few demonstrations to spare one
        return frames, frames
    return select(frames, ~is_out), select(frames, is_out)


def select(frames: Frames, chosen: np.ndarray) -> Frames:
    return Frames(**{name: getattr(frames, name)[chosen] for name in COLUMNS})


def held_out_batch(frames: Frames, scales: Scales, words: Words) -> Batch:
    rng = np.random.default_rng(3)
    chosen = rng.choice(len(frames), min(HELD_OUT_FRAMES, len(frames)), replace=False)
    return Curriculum(frames, scales, words, text_share=1.0).batch(chosen, rng, augment=False)
