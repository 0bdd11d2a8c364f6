"""What training minimises: flow matching on chunks, next words on tails, and where the part is (training only)."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from oxygen.models.pi05.torch import Pi05
from oxygen.training.batches import IGNORED, Batch
from oxygen.training.torch.joint import ChunksOnPrefix, PrefixAndTails

TEXT_WEIGHT, AUX_WEIGHT = 0.15, 0.3
NUM_DRAWS = 2
"""Noise draws per sample: the expert is small beside the prefix it reads, so a second draw is nearly free."""


@dataclass(frozen=True, slots=True)
class Losses:
    """Means over the batch. text_hits: share of target words predicted exactly."""

    flow: Tensor
    text: Tensor
    aux: Tensor
    text_hits: Tensor

    @property
    def total(self) -> Tensor:
        return self.flow + TEXT_WEIGHT * self.text + AUX_WEIGHT * self.aux


@dataclass(frozen=True, slots=True)
class Encoded:
    """A prefix after the trunk: K and V per layer, which tokens exist [B, L], lengths [B], kept hidden states."""

    kept: list[tuple[Tensor, Tensor]]
    valid: Tensor
    lens: Tensor
    hidden: Tensor


def encode(model: Pi05, batch: Batch) -> Encoded:
    """Trunk over prefixes and tails. hidden: the B last prompt tokens, then the R x T tail tokens."""
    images = torch.from_numpy(batch.images).permute(0, 1, 4, 2, 3)
    size = len(images)
    pictures = model.embed_images(images.flatten(0, 1).contiguous())
    pictures = pictures.reshape(size, -1, pictures.shape[-1])
    prefix_ids = torch.from_numpy(batch.prefix_ids)
    words = model.embed_tokens(prefix_ids.flatten()).view(*prefix_ids.shape, -1)
    prefix = torch.cat([pictures, words], dim=1)
    num_pictures, length = pictures.shape[1], prefix.shape[1]
    lens = num_pictures + torch.from_numpy(batch.prefix_lens)
    positions = torch.arange(length).expand(size, -1)
    tail_ids, owner = torch.from_numpy(batch.tail_ids), torch.from_numpy(batch.tail_owner)
    tail_positions = lens[owner][:, None] + torch.arange(tail_ids.shape[1])
    x = torch.cat([prefix.flatten(0, 1), model.embed_tokens(tail_ids.flatten())])
    keep = torch.cat([torch.arange(size) * length + lens - 1, torch.arange(size * length, len(x))])
    attend = PrefixAndTails(positions < lens[:, None], owner, (len(owner), tail_ids.shape[1]))
    rope = model.rope(torch.cat([positions.flatten(), tail_positions.flatten()]))
    hidden = model.trunk(x, rope, attend, keep)
    return Encoded(attend.kept, attend.valid, lens, hidden)


def losses(model: Pi05, aux_head: nn.Linear, batch: Batch, generator: torch.Generator) -> Losses:
    """All three losses of one batch; noise and flow times come from `generator`."""
    encoded = encode(model, batch)
    size = len(batch.chunks)
    aux = F.mse_loss(aux_head(encoded.hidden[:size]), torch.from_numpy(batch.aux))
    targets = torch.from_numpy(batch.tail_targets).flatten()
    taught = (targets != IGNORED).nonzero()[:, 0]
    logits = model.logits(encoded.hidden[size:][taught])
    text = F.cross_entropy(logits, targets[taught])
    text_hits = (logits.argmax(-1) == targets[taught]).float().mean()
    flow = _flow_loss(model, encoded, torch.from_numpy(batch.chunks), generator)
    return Losses(flow, text, aux, text_hits)


def _flow_loss(model: Pi05, encoded: Encoded, chunks: Tensor, generator: torch.Generator) -> Tensor:
    """x_t = t ε + (1 - t) a with t ~ Beta(1.5, 1) in (0.001, 1]; the velocity to learn is ε - a (π0, appendix)."""
    size, horizon, width = chunks.shape
    clean = chunks[:, None].expand(-1, NUM_DRAWS, -1, -1)
    noise = torch.randn(clean.shape, generator=generator)
    times = torch.rand(size, NUM_DRAWS, generator=generator).pow(1.0 / 1.5) * 0.999 + 0.001
    mix = times[:, :, None, None]
    x_t = mix * noise + (1.0 - mix) * clean
    positions = encoded.lens[:, None, None] + torch.arange(horizon).expand(size, NUM_DRAWS, -1)
    attend = ChunksOnPrefix(encoded.kept, encoded.valid, NUM_DRAWS, horizon)
    velocity = model.velocity_at(
        x_t.reshape(-1, horizon, width), model.modulation_at(times.flatten()), model.rope(positions.flatten()), attend
    )
    return F.mse_loss(velocity.view_as(clean), noise - clean)


@torch.no_grad()
def denoise(model: Pi05, encoded: Encoded, noise: np.ndarray, num_steps: int) -> np.ndarray:
    """Chunks from noise [B, H, A] float32 by `num_steps` Euler steps, normalised, for validation while training."""
    x = torch.from_numpy(noise).clone()
    size, horizon = x.shape[:2]
    positions = encoded.lens[:, None] + torch.arange(horizon)
    rope = model.rope(positions.flatten())
    attend = ChunksOnPrefix(encoded.kept, encoded.valid, 1, horizon)
    for step in range(num_steps):
        times = torch.full((size,), 1.0 - step / num_steps)
        x -= model.velocity_at(x, model.modulation_at(times), rope, attend) / num_steps
    return x.numpy()
