"""Draws depend on (seed, position) and the row's own logits only; filters and masks do what they say."""

from __future__ import annotations

import pytest
import torch

from oxygen.core.tasks import Sampling
from oxygen.runtime.torch.sampler import FAULTY, SamplingRows, sample, uniform

CPU = torch.device("cpu")


def draw(logits: torch.Tensor, settings: list[Sampling], positions: list[int], forbidden=None) -> list[int]:
    rows = SamplingRows.of(settings, CPU)
    return sample(logits.clone(), rows, torch.tensor(positions), forbidden).tolist()


def test_uniform_is_uniform_and_reproducible():
    seeds, positions = torch.arange(300)[:, None].expand(300, 300), torch.arange(300)[None].expand(300, 300)
    u = uniform(seeds, positions)
    assert u.min() >= 0 and u.max() < 1 and u.unique().numel() == u.numel()
    assert abs(u.mean() - 0.5) < 0.005 and (torch.histc(u, 20, 0, 1) / u.numel() - 0.05).abs().max() < 0.004
    for a, b in ((u[1:], u[:-1]), (u[:, 1:], u[:, :-1])):  # neighbouring seeds and positions are not correlated
        assert abs(((a - 0.5) * (b - 0.5)).mean() * 12) < 0.02
    expected = [_reference_uniform(seed, position) for seed, position in ((0, 0), (7, 3), (2**62 + 5, 1999))]
    ours = uniform(torch.tensor([0, 7, 2**62 + 5]), torch.tensor([0, 3, 1999]))
    assert ours.tolist() == expected


def _reference_uniform(seed: int, position: int) -> float:
    """The same with Python's integers."""

    def mix(x: int) -> int:
        x &= 2**64 - 1
        x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9 % 2**64
        x = (x ^ (x >> 27)) * 0x94D049BB133111EB % 2**64
        return x ^ (x >> 31)

    golden = 0x9E3779B97F4A7C15
    return (mix(mix(seed + golden) + (position + 1) * golden) >> 11) / 2**53


def test_batch_mates_and_row_numbers_do_not_matter():
    torch.manual_seed(0)
    logits = torch.randn(9, 500) * 3
    settings = [
        Sampling(),
        Sampling(1.0, seed=1),
        Sampling(0.7, top_k=20, seed=2),
        Sampling(1.5, top_p=0.8, seed=3),
        Sampling(1.5, top_k=50, top_p=0.5, seed=4),
        Sampling(2.0, top_k=3, seed=5),
        Sampling(),
        Sampling(1.0, top_p=0.1, seed=6),
        Sampling(1e-6, seed=7),
    ]
    positions = [0, 5, 1, 900, 3, 4, 8, 2, 0]
    together = draw(logits, settings, positions)
    assert together == [draw(logits[i : i + 1], [settings[i]], [positions[i]])[0] for i in range(9)]
    turned = draw(logits.flip(0), settings[::-1], positions[::-1])
    assert turned[::-1] == together
    assert together[8] == logits[8].argmax()


def test_frequencies_follow_the_probabilities():
    logits = torch.tensor([1.0, 0.0, -1.0, 2.0, float("-inf")])
    n = 20_000
    tokens = torch.tensor(draw(logits.expand(n, 5), [Sampling(0.8, seed=3)] * n, list(range(n))))
    shares = torch.bincount(tokens, minlength=5) / n
    assert (shares - (logits / 0.8).softmax(-1)).abs().max() < 0.012 and shares[4] == 0


@pytest.mark.parametrize(
    ("sampling", "allowed"),
    [
        (Sampling(1.0, top_k=1), {3}),
        (Sampling(1.0, top_k=2), {3, 0}),
        (Sampling(1.0, top_p=0.3), {3}),
        (Sampling(1.0, top_p=0.8), {3, 0}),
        (Sampling(1.0, top_k=3, top_p=0.99), {3, 0, 1}),
        (Sampling(1.0, top_k=99), {0, 1, 2, 3}),
    ],
)
def test_filters_keep_the_likeliest(sampling, allowed):
    logits = torch.tensor([1.0, 0.0, -1.0, 2.0]).expand(2000, 4)
    settings = [Sampling(sampling.temperature, sampling.top_k, sampling.top_p, seed) for seed in range(2000)]
    assert set(draw(logits, settings, [0] * 2000)) == allowed


def test_forbidden_tokens_never_come():
    torch.manual_seed(1)
    logits = torch.randn(400, 6)
    forbidden = torch.tensor([0.0, float("-inf"), 0.0, float("-inf"), 0.0, 0.0])
    settings = [Sampling(), Sampling(3.0, seed=1), Sampling(2.0, top_k=2, seed=2), Sampling(2.0, top_p=0.7)] * 100
    tokens = draw(logits, settings, list(range(400)), forbidden)
    assert set(tokens) == {0, 2, 4, 5}
    assert draw(logits, [Sampling()] * 400, [0] * 400) == logits.argmax(-1).tolist()


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
@pytest.mark.parametrize("sampling", [Sampling(), Sampling(1.0), Sampling(1.0, top_k=2, top_p=0.5)])
def test_only_the_row_with_bad_logits_is_faulty(bad, sampling):
    logits = torch.randn(3, 8)
    clean = draw(logits, [sampling] * 3, [0, 1, 2])
    logits[1, 4] = bad
    assert draw(logits, [sampling] * 3, [0, 1, 2]) == [clean[0], FAULTY, clean[2]]
    assert draw(torch.full((1, 8), float("-inf")), [sampling], [0]) == [FAULTY]


@pytest.mark.parametrize("value", [5e-324, 1e-300, 1e-40, 1e-30])
def test_settings_too_small_for_float32_are_greedy(value):
    logits = torch.tensor([[0.0, 3.0, 1.0], [2.0, 0.0, 1.0]])
    rows = SamplingRows.of([Sampling(temperature=value), Sampling(1.0, top_p=value)], torch.device("cpu"))
    assert sample(logits, rows, torch.tensor([0, 0])).tolist() == [1, 0]


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_confined_rows_say_ids_of_their_range_or_end(temperature):
    """Even where all others are likelier and theirs are forbidden to everybody else; the neighbours are as alone."""
    logits = torch.randn(4, 40, generator=torch.Generator().manual_seed(1))
    logits[:, :20] += 5
    forbidden = torch.zeros(40)
    forbidden[30:] = float("-inf")
    free, confined = Sampling(temperature, seed=7), Sampling(temperature, seed=7, allowed=range(30, 34))
    settings = [free, confined, free, confined]
    said: set[int] = set()
    for position in range(60):
        rows = SamplingRows.of(settings, CPU)
        got = sample(logits.clone(), rows, torch.tensor([position] * 4), forbidden, (25,)).tolist()
        alone = [draw(logits[i : i + 1], [free], [position], forbidden)[0] for i in (0, 2)]
        assert [got[0], got[2]] == alone and max(alone) < 30
        said |= {got[1], got[3]}
    assert said <= {25, 30, 31, 32, 33} and (len(said) > 2 if temperature else len(said) <= 2)
    logits[1, 30:34] = logits[1, 25] = float("nan")
    assert sample(logits, SamplingRows.of(settings, CPU), torch.tensor([0] * 4), forbidden, (25,)).tolist()[1] == FAULTY
