"""π0.5 against what the reference implementations computed with the same weights (tests/data/goldens_pi05)."""

from __future__ import annotations

import pytest
import torch
from models.pi05_cases import (
    CASES,
    case_image_embeddings,
    case_prompt,
    decode,
    flow,
    golden_case,
    golden_model,
    half_split_keys,
    prefill,
    prefix,
)
from torch import Tensor

from oxygen.models.pi05.spec import flow_times
from oxygen.models.pi05.torch.conditions import time_embedding


@pytest.fixture(scope="module", params=[True, False], ids=["prepared", "plain"])
def model(request):
    with torch.inference_mode():
        yield golden_model(prepared=request.param)


def near(ours: Tensor, theirs: Tensor, tolerance: float) -> None:
    assert ours.shape == theirs.shape
    difference = (ours.float() - theirs).abs().max().item()
    assert difference <= tolerance, f"{difference} is above {tolerance}"


def samples(case: dict[str, Tensor]) -> range:
    return range(len(case["noise"]))


@pytest.mark.parametrize("name", CASES[:2])
def test_image_embeddings(model, name):
    case = golden_case(name)
    ours = case_image_embeddings(model, case, 0)
    near(ours[:, ::16], case["image_embeddings_every_16"][0, : len(ours)], 2e-5)


@pytest.mark.parametrize("name", CASES)
def test_language_embeddings(model, name):
    case = golden_case(name)
    for b in samples(case):
        near(model.embed_tokens(case_prompt(case, b)), case["language_embeddings"][b][case["prompt_mask"][b]], 1e-6)


@pytest.mark.parametrize("name", CASES)
def test_prefix(model, name):
    """Dropped cameras and padding: every valid position's K, V and hidden state is the masked reference's."""
    case = golden_case(name)
    for b in samples(case):
        context, hidden = prefill(model, prefix(model, case, b))
        rows = case[f"rows_{b}"]
        assert len(context) == case["bidir.prefix_len_valid"][b]
        assert rows.tolist() == case[f"positions_{b}"].tolist()
        near(torch.stack([k[rows] for k in half_split_keys(model, context)]), case[f"prefix_k_{b}"], 2e-4)
        near(torch.stack([v[rows, 0] for v in context.v]), case[f"prefix_v_{b}"], 1e-4)
        near(hidden[rows], case[f"last_hidden_{b}"], 1e-4)


def test_time_conditioning(model):
    case = golden_case(CASES[0])
    times = torch.tensor([1.0, 0.5, 0.1])
    near(time_embedding(times, model.spec.expert.width), case["time_embedding_t1_t05_t01"], 1e-6)
    near(model.time.condition(times), case["adarms_cond_t1_t05_t01"], 2e-5)
    assert torch.equal(torch.tensor(flow_times(10)), case["times_10"])


@pytest.mark.parametrize("name", CASES)
def test_actions(model, name):
    case = golden_case(name)
    for b in samples(case):
        context, _ = prefill(model, prefix(model, case, b))
        noise = case["noise"][b : b + 1]
        rope = model.rope(len(context) + torch.arange(model.spec.horizon))
        velocity = model.velocity(noise, model.conditions(1), 0, rope, context.read)
        near(velocity, case["velocity_t1"][b : b + 1], 1e-4)
        for num_steps, tolerance in ((1, 1e-4), (4, 5e-5), (10, 5e-5)):
            near(flow(model, context, noise, num_steps)[-1], case[f"actions_{num_steps}"][b : b + 1], tolerance)
        near(torch.cat(flow(model, context, noise, 10)), case["x_trace_10"][:, b], 5e-5)


@pytest.mark.parametrize("name", CASES)
def test_actions_of_lerobot_and_jax(model, name):
    """Their times and time embeddings differ from openpi's PyTorch code: distances are those between the references."""
    case = golden_case(name)
    for b in samples(case):
        context, _ = prefill(model, prefix(model, case, b))
        for num_steps in (1, 4, 10):
            ours = flow(model, context, case["noise"][b : b + 1], num_steps)[-1]
            near(ours, case[f"lerobot.actions_{num_steps}"][b : b + 1], 3e-4)
            near(ours, case[f"jax.actions_{num_steps}"][b : b + 1], 3e-4)


@pytest.mark.parametrize("name", CASES)
def test_text_after_a_bidirectional_prefix(model, name):
    case = golden_case(name)
    for b in samples(case):
        context, hidden = prefill(model, prefix(model, case, b))
        num_valid = len(context)
        near(hidden[-1], case["bidir.hidden_for_first_logits"][b], 1e-4)
        tokens, logits = decode(model, context, hidden[-1], 24)
        assert tokens == case["bidir.tokens"][b].tolist()
        near(logits[:4], case["bidir.logits_first4"][b], 5e-5)
        near(torch.stack([k[num_valid:] for k in half_split_keys(model, context)]), case["bidir.generated_k"][b], 2e-4)
        near(torch.stack([v[num_valid:, 0] for v in context.v]), case["bidir.generated_v"][b], 1e-4)
        after = flow(model, context, case["noise"][b : b + 1], 10)[-1]
        near(after, case["bidir.actions_10_after_24_tokens"][b : b + 1], 5e-5)


@pytest.mark.parametrize("name", CASES)
def test_text_after_a_causal_prompt(model, name):
    """Pictures are the context, the prompt is a causal tail on top of it (what the community's subtask code does)."""
    case = golden_case(name)
    for b in samples(case):
        context, _ = prefill(model, case_image_embeddings(model, case, b).flatten(0, 1))
        tail = model.embed_tokens(case_prompt(case, b))
        causal = torch.ones(len(tail), len(context) + len(tail), dtype=torch.bool).tril(len(context))
        _, hidden = prefill(model, tail, start=len(context), context=context, mask=causal)
        tokens, logits = decode(model, context, hidden[-1], 24)
        assert tokens == case["ar.tokens"][b].tolist()
        near(logits[:4], case["ar.logits_first4"][b], 5e-5)
        after = flow(model, context, case["noise"][b : b + 1], 10)[-1]
        near(after, case["ar.actions_10_after_24_tokens"][b : b + 1], 5e-5)
