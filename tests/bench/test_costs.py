from __future__ import annotations

from dataclasses import replace

import pytest

from oxygen.bench.setup import Setup
from oxygen.layers.costs import Ceilings, Cost
from oxygen.models.heads.costs import chunk
from oxygen.models.pi05.costs import Pi05Costs
from oxygen.models.pi05.spec import PRESETS
from oxygen.models.qwen3_vl.costs import Qwen3VLCosts
from oxygen.models.qwen3_vl.spec import PRESETS as QWEN_PRESETS
from oxygen.models.qwen3_vl.spec import with_heads

SPEC = PRESETS["pi05-medium"]
COSTS = Pi05Costs(SPEC, 2)
BYTES = Pi05Costs(SPEC, 1)  # one byte a number: bytes are numbers
QWEN = with_heads(QWEN_PRESETS["qwen3vl-medium"], ("pi", "gr00t", "oft"))


def test_weights_read_agree_with_the_parameter_counts() -> None:
    counts = SPEC.parameter_counts()
    round_of_one = BYTES.decode(1, 0, 0)
    assert round_of_one.bytes == pytest.approx(counts["trunk"], rel=1e-3)  # all but norms
    assert BYTES.vision(1).bytes == pytest.approx(counts["vision"], rel=0.03)
    chunk = BYTES.act("action", 0, 1)
    assert chunk.bytes < counts["expert"]  # the modulation of all steps is computed once and kept


def test_operations_are_two_per_weight_and_token() -> None:
    t = SPEC.trunk
    layers = t.projections_of_a_layer() * t.depth
    one, two = COSTS.prefill(0, 100), COSTS.prefill(0, 200)
    assert one.flops == pytest.approx(2 * 100 * layers, rel=0.1)  # the last layer does less, attention a little
    assert two.flops > 2 * one.flops * 0.99
    pictures = COSTS.prefill(2, 100).flops - COSTS.prefill(0, 100).flops
    assert pictures == COSTS.vision(2).flops


def test_live_contexts_are_read_once_per_round_and_weights_once_for_all() -> None:
    one, eight = COSTS.decode(1, 500, 15), COSTS.decode(8, 500, 15)
    assert eight.bytes - one.bytes == 7 * 515 * SPEC.kv_bytes_per_token(2)
    assert eight.flops == pytest.approx(8 * one.flops)


def test_steps_multiply_and_horizon_does_not_read_more() -> None:
    ten, one = COSTS.act("action", 500, 10), COSTS.act("action", 500, 1)
    assert ten.bytes == 10 * one.bytes and ten.flops == 10 * one.flops
    longer = Pi05Costs(replace(SPEC, horizon=100), 2).act("action", 500, 1)
    assert longer.bytes == one.bytes and longer.flops > 1.9 * one.flops


def test_the_floor_is_the_higher_of_the_two() -> None:
    cost, ceilings = Cost(flops=4e9, bytes=1e9), Ceilings(flops_per_s=1e12, bytes_per_s=1e11)
    assert cost.compute_floor_ms(ceilings) == pytest.approx(4.0)
    assert cost.bandwidth_floor_ms(ceilings) == pytest.approx(10.0)
    assert cost.floor_ms(ceilings) == pytest.approx(10.0)
    assert (cost + cost).flops == 8e9


def test_qwen_reads_its_weights_once() -> None:
    counts, costs = QWEN.parameter_counts(), Qwen3VLCosts(QWEN, 1, image_side=256)
    assert costs.decode(1, 0, 0).bytes == pytest.approx(counts["trunk"] + counts["table"], rel=1e-3)
    positions = QWEN.vision.table_side**2 * QWEN.vision.width
    assert costs.vision(1).bytes == pytest.approx(counts["vision"] - positions, rel=0.01)
    assert costs.prefill(1, 0).bytes - costs.vision(1).bytes == pytest.approx(counts["trunk"], rel=1e-3)


def test_qwen_prefill_is_causal_and_whole_where_a_head_reads_the_last_layer() -> None:
    costs, bare = Qwen3VLCosts(QWEN, 2, 256), Qwen3VLCosts(replace(QWEN, heads=()), 2, 256)
    one, two = costs.prefill(0, 1000), costs.prefill(0, 2000)
    weights = 2 * QWEN.trunk.projections_of_a_layer() * QWEN.trunk.depth
    pairs = (two.flops - 2000 * weights) / (one.flops - 1000 * weights)
    assert pairs == pytest.approx(4, rel=1e-2)
    saved = 1 - bare.prefill(0, 1000).flops / one.flops
    assert 0.5 / QWEN.trunk.depth < saved < 1 / QWEN.trunk.depth


@pytest.mark.parametrize("head", QWEN.heads, ids=lambda head: head.name)
def test_a_chunk_of_a_head_reads_less_than_all_its_weights_once_a_step(head) -> None:
    one = chunk(head, 100, 1, 1)
    features = len(head.shape().reads.hidden) * 100 * head.feature_width
    assert 0 < one.bytes - features < head.num_parameters()
    steps = chunk(head, 100, 11, 1).bytes - one.bytes
    assert (steps == 0) == (head.shape().kind == "one_shot")


@pytest.mark.parametrize("model", ["pi05-tiny", "qwen3vl-tiny", "qwen3vl-medium"])
@pytest.mark.parametrize("robot", ["libero", "full"])
def test_every_family_has_frames_and_costs(model: str, robot: str) -> None:
    setup = Setup(model, robot=robot)
    frames, costs = setup.frames(), setup.costs()
    inputs = frames.make()
    assert inputs.num_tokens == frames.context_len <= setup.spec().max_context_len
    assert len(inputs.images) == setup.shape().num_cameras
    expert = frames.readers[0][0] if frames.readers else "action"
    for cost in (
        costs.prefill(2, 100),
        costs.vision(2),
        costs.act(expert, 100, setup.steps()),
        costs.decode(8, 100, 5),
    ):
        assert cost.flops > 0 and cost.bytes > 0
