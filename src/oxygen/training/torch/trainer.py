"""The training loop: batches in, weights out, everything needed to go on exactly where it stopped on disk."""

from __future__ import annotations

import copy
import json
import math
import os
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import torch
from rich.progress import Progress
from torch import Tensor, nn

from oxygen.models.pi05.torch import Pi05, build
from oxygen.training.batches import Batch, Curriculum
from oxygen.training.language import NUM_BINS, Words
from oxygen.training.recipe import SPEC, Recipe
from oxygen.training.torch.losses import denoise, encode, losses

SAVE_EVERY, LOG_EVERY, VALIDATE_EVERY = 200, 50, 200
AUX_WIDTH = 4


class Trainer:
    """Model, averaged weights and optimiser of one run, kept in `folder`.

    A new Trainer on a folder that holds a state goes on from there. Batches and noise depend on (seed, step) alone, so
    a run in pieces equals a run in one go as long as the frames are the same.
    """

    def __init__(self, folder: Path, recipe: Recipe, words: Words) -> None:
        self.folder, self.recipe = folder, recipe
        folder.mkdir(parents=True, exist_ok=True)
        torch.manual_seed(recipe.seed)
        self.model = build(SPEC, seed=recipe.seed)
        _order_bins(self.model, words, recipe.seed)
        self.aux_head = nn.Linear(SPEC.trunk.width, AUX_WIDTH)
        self.average = copy.deepcopy(self.model).requires_grad_(False)
        self._trained = [*self.model.parameters(), *self.aux_head.parameters()]
        matrices = [p for p in self._trained if p.ndim > 1 and p is not self.model.table]
        others = [p for p in self._trained if p.ndim <= 1 or p is self.model.table]
        groups = [{"params": matrices, "weight_decay": recipe.weight_decay}, {"params": others, "weight_decay": 0.0}]
        self.optimizer = torch.optim.AdamW(groups, lr=recipe.learning_rate, betas=(0.9, 0.95), fused=True)
        self.step = 0
        self._sums = np.zeros(4)
        self._summed = 0
        if self.state_path.exists():
            self._load()

    @property
    def state_path(self) -> Path:
        return self.folder / "state.pt"

    def fit(self, curriculum: Curriculum, held_out: Batch, until: int, progress: Progress) -> None:
        """Train up to step `until`; saves on the way and at the end."""
        bar = progress.add_task("train", total=until, completed=self.step)
        started, first = time.perf_counter(), self.step
        while self.step < until:
            self._train_step(curriculum.draw(self.recipe.batch_size, self.recipe.seed, self.step))
            progress.advance(bar)
            at_end = self.step == until
            if self.step % LOG_EVERY == 0 or at_end:
                rate = (self.step - first) * self.recipe.batch_size / (time.perf_counter() - started)
                row: dict[str, Any] = {
                    "step": self.step,
                    "samples_per_s": round(rate, 1),
                    "rate": self._rate(self.step),
                }
                row |= self._means()
                if self.step % VALIDATE_EVERY == 0 or at_end:
                    row |= self.validate(held_out)
                self._log(row, progress)
            if self.step % SAVE_EVERY == 0 or at_end:
                self.save()
        progress.remove_task(bar)

    def _train_step(self, batch: Batch) -> None:
        rate = self._rate(self.step)
        for group in self.optimizer.param_groups:
            group["lr"] = rate
        generator = torch.Generator().manual_seed(self.recipe.seed * 1_000_003 + self.step)
        found = losses(self.model, self.aux_head, batch, generator)
        found.total.backward()
        nn.utils.clip_grad_norm_(self._trained, 1.0)
        self.optimizer.step()
        self.optimizer.zero_grad()
        self.step += 1
        decay = min(self.recipe.ema_decay, (1 + self.step) / (10 + self.step))
        with torch.no_grad():
            torch._foreach_lerp_(list(self.average.parameters()), list(self.model.parameters()), 1.0 - decay)
        self._sums += [float(v.detach()) for v in (found.flow, found.text, found.aux, found.text_hits)]
        self._summed += 1

    def _rate(self, step: int) -> float:
        """Warm up, stay, and fall as a cosine over the stages that decay."""
        recipe = self.recipe
        start = sum(stage.steps for stage in recipe.stages if not stage.decays)
        length = max(1, recipe.num_steps - start)
        fallen = min(1.0, max(0.0, (step - start) / length))
        cosine = recipe.final_rate + (1.0 - recipe.final_rate) * 0.5 * (1.0 + math.cos(math.pi * fallen))
        return recipe.learning_rate * min(1.0, (step + 1) / recipe.warmup_steps) * cosine

    @torch.no_grad()
    def validate(self, batch: Batch) -> dict[str, float]:
        """Losses of the averaged weights on held-out episodes, and the mean error of denoised actions."""
        generator = torch.Generator().manual_seed(5)
        found = losses(self.average, self.aux_head, batch, generator)
        noise = np.random.default_rng(5).standard_normal(batch.chunks.shape).astype(np.float32)
        chunks = denoise(self.average, encode(self.average, batch), noise, SPEC.num_steps)
        values = {
            "held_out_flow": float(found.flow),
            "held_out_text": float(found.text),
            "held_out_text_hits": float(found.text_hits),
            "held_out_action_error": float(np.abs(chunks - batch.chunks).mean()),
        }
        return {name: round(value, 5) for name, value in values.items()}

    def _means(self) -> dict[str, float]:
        names = ("flow", "text", "aux", "text_hits")
        means = {name: round(float(v), 5) for name, v in zip(names, self._sums / max(1, self._summed), strict=True)}
        self._sums[:], self._summed = 0.0, 0
        return means

    def _log(self, row: dict[str, Any], progress: Progress) -> None:
        with (self.folder / "log.jsonl").open("a", encoding="utf-8") as file:
            file.write(json.dumps(row) + "\n")
        progress.console.print(" ".join(f"{k}={v:.4g}" for k, v in row.items()))

    def save(self) -> None:
        state = {
            "model": self.model.state_dict(),
            "aux": self.aux_head.state_dict(),
            "average": self.average.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "step": self.step,
            "recipe": json.dumps(asdict(self.recipe)),
        }
        partial = self.state_path.with_suffix(".partial")
        torch.save(state, partial)
        os.replace(partial, self.state_path)

    def _load(self) -> None:
        state = torch.load(self.state_path, weights_only=True)
        self.model.load_state_dict(state["model"])
        self.aux_head.load_state_dict(state["aux"])
        self.average.load_state_dict(state["average"])
        self.optimizer.load_state_dict(state["optimizer"])
        self.step = int(state["step"])


@torch.no_grad()
def _order_bins(model: Pi05, words: Words, seed: int) -> None:
    """Start the state bins' embeddings as smooth functions of their number, so that neighbours begin as neighbours."""
    numbers = torch.arange(NUM_BINS, dtype=torch.float32)
    waves = [f(2 * math.pi * numbers / period) for period in (512, 256, 128, 64, 32) for f in (torch.sin, torch.cos)]
    features = torch.stack(waves, dim=1)  # [256, 10]
    mixing = torch.randn(features.shape[1], model.table.shape[1], generator=torch.Generator().manual_seed(seed + 1))
    smooth: Tensor = features @ mixing
    smooth *= model.table.std() / smooth.std()
    model.table[[words.encode(f" {n}")[0] for n in range(NUM_BINS)]] = smooth
