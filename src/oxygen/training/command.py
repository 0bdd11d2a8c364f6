"""`oxygen train`: from nothing to the shipped checkpoint in one command that can be stopped and run again."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from oxygen.sim.graphics import NoSimulator, require_simulator
from oxygen.sim.threads import keep_threads_quiet
from oxygen.training.recipe import SMOKE, Recipe


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--work", type=Path, default=Path("out/train"), help="folder for recordings and training state")
    parser.add_argument("--out", type=Path, help="folder of the checkpoint (default: oxygen-tiny in the work folder)")
    parser.add_argument("--threads", type=int, default=1, help="CPU threads of the trainer")
    parser.add_argument("--smoke", action="store_true", help="the same road in a few minutes; learns nothing")
    parser.add_argument("--no-eval", action="store_true", help="leave out the evaluation that fills the model card")


def run(args: argparse.Namespace) -> int:
    """Go on from whatever is in the work folder; 0 when the checkpoint is written, 2 where no simulator can run."""
    keep_threads_quiet()
    try:
        require_simulator()
    except NoSimulator as error:
        print(f"oxygen train: {error}", file=sys.stderr)
        return 2
    from oxygen.training.pipeline import train
    from oxygen.training.torch.device import use_threads

    use_threads(args.threads)
    recipe = SMOKE if args.smoke else Recipe()
    out = args.out or args.work / "oxygen-tiny"
    train(args.work, recipe, out)
    if args.no_eval or args.smoke:
        return 0
    from oxygen.training.films import film_into
    from oxygen.training.results import evaluate_into

    film_into(args.work / "episodes.npz", out)
    evaluate_into(args.work, out)
    train(args.work, recipe, out)  # everything is done: this writes the card again, with the results
    return 0
