"""Our Qwen3-VL against transformers 4.57.1 (golden file): positions, K, V, hidden states at every layer, logits."""

from __future__ import annotations

import pytest
import torch
from models.qwen3_vl.cases import CASES, golden, golden_model, near
from torch import Tensor

from oxygen.layers.torch.attention import masked_attention
from oxygen.layers.torch.context import add_after
from oxygen.layers.torch.rope import neighbour_order
from oxygen.models.qwen3_vl.layout import lay_out


@pytest.fixture(params=[False, True], ids=["plain", "prepared"])
def model(request):
    return golden_model(request.param)


@pytest.mark.parametrize("case", CASES)
@torch.inference_mode()
def test_trunk_equals_transformers(model, case):
    expected = golden(case)
    inputs = expected.inputs
    assert model.refusal(inputs) is None
    tokens = model.lay_out(inputs, model.embed_pictures(inputs.images))
    assert torch.equal(tokens.positions, expected.positions) and tokens.shift == expected.delta
    mask = torch.ones(len(inputs.token_ids), len(inputs.token_ids), dtype=torch.bool).tril()
    keys: list[Tensor] = []
    values: list[Tensor] = []
    residuals: list[Tensor] = []
    added = add_after(tokens.additions) or (lambda layer, x: x)

    def attend(layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        keys.append(k.transpose(0, 1))
        values.append(v.transpose(0, 1))
        return masked_attention(q, k, v, mask)

    def after(layer: int, x: Tensor) -> Tensor:
        residuals.append(added(layer, x))
        return residuals[-1]

    hidden = model.trunk(tokens.x, model.rope(tokens.positions), attend, after=after)
    order = neighbour_order(16) if model.is_prepared else torch.arange(16)
    near(torch.stack(keys), expected.k[..., order])
    near(torch.stack(values), expected.v)
    near(torch.stack(residuals), expected.residuals)
    near(model.logits(hidden), expected.logits)


POSITIONS = [
    # grids, tokens, positions of some tokens (index -> position on time, row, column), shift
    ([], "ttt", {0: (0, 0, 0), 2: (2, 2, 2)}, 0),
    ([(2, 2)], "tiiiit", {1: (1, 1, 1), 2: (1, 1, 2), 3: (1, 2, 1), 4: (1, 2, 2), 5: (3, 3, 3)}, -2),
    ([(2, 4)], "iiiiiiiitt", {7: (0, 1, 3), 8: (4, 4, 4), 9: (5, 5, 5)}, -4),
    ([(1, 2), (3, 1)], "iitiiit", {1: (0, 0, 1), 2: (2, 2, 2), 5: (3, 5, 3), 6: (6, 6, 6)}, 0),
]


@pytest.mark.parametrize(("grids", "tokens", "expected", "shift"), POSITIONS)
def test_positions(grids, tokens, expected, shift):
    layout = lay_out([9 if t == "i" else 1 for t in tokens], grids, 9)
    assert {i: tuple(layout.positions[i].tolist()) for i in expected} == expected
    assert layout.shift == shift and layout.open_from == max(tokens.rfind("i") + 1, 1)


@pytest.mark.parametrize(
    ("grids", "tokens", "message"),
    [
        ([(2, 2)], "tiiit", "fewer than 4"),
        ([(1, 2), (1, 1)], "tiit", "2 pictures"),
        ([(1, 1)], "titi", "beyond the last"),
    ],
)
def test_tokens_that_do_not_fit_the_pictures(grids, tokens, message):
    with pytest.raises(ValueError, match=message):
        lay_out([9 if t == "i" else 1 for t in tokens], grids, 9)
