"""The evaluation whose tables go into the model card."""

from __future__ import annotations

from pathlib import Path

from oxygen.core.config import EngineConfig
from oxygen.eval.closed_loop import Wishes, timed
from oxygen.eval.doors import open_door
from oxygen.eval.report import tables
from oxygen.training.pipeline import progress_bars
from oxygen.training.torch.export import RESULTS_FILE

INTRO = (
    "`oxygen eval` through the engine (mode `oxygen`), on layouts set apart from training and selection "
    "(seeds {first} to {last}). Intervals are Wilson's, 95 %."
)


def evaluate_into(work: Path, checkpoint: Path) -> None:
    """Evaluate and write RESULTS_FILE in the work folder; an existing file is kept."""
    target = work / RESULTS_FILE
    if target.exists():
        return
    wishes = Wishes()
    with open_door(checkpoint, "oxygen", config=EngineConfig(budget="fixed:6")) as opened, progress_bars() as progress:
        report, _ = timed(opened, wishes, progress)
    seeds = wishes.layouts(wishes.episodes)
    intro = INTRO.format(first=seeds.start, last=seeds.stop - 1)
    target.write_text(f"{intro}\n\n{tables(report)}\n", encoding="utf-8")
