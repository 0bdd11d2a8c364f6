from __future__ import annotations

from dataclasses import replace

import pytest

from oxygen.bench import costs
from oxygen.bench.costs import Ceilings, Cost
from oxygen.models.pi05.spec import PRESETS

SPEC = PRESETS["pi05-medium"]


def test_weights_read_agree_with_the_parameter_counts() -> None:
    counts = SPEC.parameter_counts()
    round_of_one = costs.decode(SPEC, 1, 0, 0, dtype_bytes=1)
    assert round_of_one.bytes == pytest.approx(counts["trunk"], rel=1e-3)  # all but norms
    assert costs.vision(SPEC, 1, dtype_bytes=1).bytes == pytest.approx(counts["vision"], rel=0.03)
    chunk = costs.act(SPEC, 0, num_steps=1, dtype_bytes=1)
    assert chunk.bytes < counts["expert"]  # the modulation of all steps is computed once and kept


def test_operations_are_two_per_weight_and_token() -> None:
    t = SPEC.trunk
    layers = t.projections_of_a_layer() * t.depth
    one, two = costs.prefill(SPEC, 0, 100, 2), costs.prefill(SPEC, 0, 200, 2)
    assert one.flops == pytest.approx(2 * 100 * layers, rel=0.1)  # the last layer does less, attention a little
    assert two.flops > 2 * one.flops * 0.99
    pictures = costs.prefill(SPEC, 2, 100, 2).flops - costs.prefill(SPEC, 0, 100, 2).flops
    assert pictures == costs.vision(SPEC, 2, 2).flops


def test_live_contexts_are_read_once_per_round_and_weights_once_for_all() -> None:
    one, eight = costs.decode(SPEC, 1, 500, 15, 2), costs.decode(SPEC, 8, 500, 15, 2)
    assert eight.bytes - one.bytes == 7 * 515 * SPEC.kv_bytes_per_token(2)
    assert eight.flops == pytest.approx(8 * one.flops)


def test_steps_multiply_and_horizon_does_not_read_more() -> None:
    ten, one = costs.act(SPEC, 500, 10, 2), costs.act(SPEC, 500, 1, 2)
    assert ten.bytes == 10 * one.bytes and ten.flops == 10 * one.flops
    longer = costs.act(replace(SPEC, horizon=100), 500, 1, 2)
    assert longer.bytes == one.bytes and longer.flops > 1.9 * one.flops


def test_the_floor_is_the_higher_of_the_two() -> None:
    cost, ceilings = Cost(flops=4e9, bytes=1e9), Ceilings(flops_per_s=1e12, bytes_per_s=1e11)
    assert cost.compute_floor_ms(ceilings) == pytest.approx(4.0)
    assert cost.bandwidth_floor_ms(ceilings) == pytest.approx(10.0)
    assert cost.floor_ms(ceilings) == pytest.approx(10.0)
    assert (cost + cost).flops == 8e9
