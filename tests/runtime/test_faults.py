"""One item's fault ends that request only; bad items are refused with what is wrong; pictures are embedded once."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from runtime.harness import KINDS, Text, act_item, fill, frame, make_runner, model_of, noise_of, play, play_out

from oxygen.core.errors import RequestFault
from oxygen.core.inputs import ContextInputs
from oxygen.core.plan import PrefillItem
from oxygen.core.tasks import Sampling


@pytest.fixture(params=KINDS)
def runner(request):
    return make_runner(**KINDS[request.param])


def spoil(runner, row: int) -> None:
    """Make a context's hidden state and values NaN, as an overflow would."""
    runner.store.last_hidden[row] = float("nan")
    runner.store.contexts.values[1][row] = float("nan")


def test_a_faulty_text_leaves_the_others_as_they_were(runner):
    inputs = {row: frame(row) for row in range(3)}
    fill(runner, inputs)
    texts = [Text(row, inputs[row].num_tokens, row, 8) for row in range(3)]
    whole = play_out(runner, [t.fresh() for t in texts], 8)
    play(runner, texts, 3)
    spoil(runner, 1)
    with pytest.raises(RequestFault) as fault:
        play(runner, texts, 3)
    assert fault.value.request_id == 1 and [len(t.got) for t in texts] == [3, 3, 3]
    rest = [texts[0], texts[2]]
    assert play_out(runner, rest, 3) == [whole[0], whole[2]]


def test_a_faulty_context_does_not_reach_the_next_user_of_its_row():
    runner = make_runner(poison_freed=False)
    long, short = frame(1, 3, 9), frame(2, 1, 4)
    fill(runner, {0: short})
    expected = play_out(runner, [Text(0, short.num_tokens, 0, 6)], 3)
    fill(runner, {0: long, 1: long})
    spoil(runner, 0)
    runner.store.tails.values[0][0] = float("nan")
    fill(runner, {0: short})
    assert play_out(runner, [Text(0, short.num_tokens, 0, 6), Text(1, long.num_tokens, 1, 6)], 3)[:1] == expected


def test_a_chunk_that_is_not_finite_blames_its_request(runner):
    inputs = {row: frame(row) for row in range(3)}
    fill(runner, inputs)
    items = [act_item(row, inputs[row], noise_of(row)) for row in range(3)]
    good = runner.act(items)
    spoil(runner, 2)
    with pytest.raises(RequestFault, match="not finite") as fault:
        runner.act(items)
    assert fault.value.request_id == 2
    for a, b in zip(runner.act(items[:2]), good, strict=False):
        assert np.abs(a - b).max() <= 1e-5 * np.abs(b).max()


def test_prefill_refuses_what_does_not_fit(runner):
    good = frame(0)
    size = good.images[0].shape[0]
    bad: list[tuple[ContextInputs, str]] = [
        (replace(good, num_tokens=3), "declared 3"),
        (replace(good, token_ids=(*good.token_ids[:-1], 211)), "token ids"),
        (replace(good, token_ids=(*good.token_ids[:-1], -1)), "token ids"),
        (replace(good, images=(good.images[0][:-1], good.images[1])), f"\\[{size}, {size}, 3\\] uint8"),
        (replace(good, images=(good.images[0].astype(np.float32), good.images[1])), "uint8"),
        (frame(0, 3, 40), "room for 40"),
        (ContextInputs((), (), 0), "0 tokens"),
    ]
    for inputs, message in bad:
        with pytest.raises(RequestFault, match=message) as fault:
            runner.prefill([PrefillItem(4, 0, good, 0), PrefillItem(5, 1, inputs, 1)])
        assert fault.value.request_id == 5
    with pytest.raises(RequestFault, match="row 7"):
        runner.prefill([PrefillItem(4, 7, good, 0)])


def test_act_refuses_what_does_not_fit(runner):
    inputs = frame(0)
    fill(runner, {0: inputs})
    item = act_item(0, inputs, noise_of(0))
    for changes, message in (
        ({"expert": "other"}, "other"),
        ({"noise": np.zeros((2, 32), np.float32)}, "noise"),
        ({"tail_ids": (3,)}, "private"),
        ({"num_steps": 0}, "num_steps"),
        ({"context_row": -1}, "row -1"),
        ({"context_len": 41}, "41"),
    ):
        with pytest.raises(RequestFault, match=message):
            runner.act([replace(item, **changes)])
    assert runner.act([]) == []


def test_decode_refuses_what_does_not_fit(runner):
    inputs = frame(0)
    fill(runner, {0: inputs})
    item = Text(0, inputs.num_tokens, 0, 4).item()
    for changes, message in (
        ({"tail_row": 8}, "tail row 8"),
        ({"context_row": 9}, "row 9"),
        ({"pending": (300,)}, "token ids"),
        ({"num_computed": 3}, "pending"),
        ({"pending": (4,) * 39}, "tail positions"),
        ({"max_tokens": 0}, "max_tokens"),
    ):
        with pytest.raises(RequestFault, match=message):
            runner.decode([replace(item, **changes)], 4, lambda tokens: [True] * len(tokens))
    runner.decode([replace(item, pending=(4,) * 37)], 4, lambda tokens: [True] * len(tokens))  # 37 + 4 - 1 just fit
    runner.decode([], 4, lambda tokens: [])


def test_an_answer_for_the_wrong_number_of_texts_is_an_error(runner):
    inputs = frame(0)
    fill(runner, {0: inputs})
    with pytest.raises(ValueError, match="0 of 1"):
        runner.decode([Text(0, inputs.num_tokens, 0, 4).item()], 4, lambda tokens: [])


def test_forbidden_ids(runner):
    inputs = frame(0)
    fill(runner, {0: inputs})
    text = Text(0, inputs.num_tokens, 0, 12)
    (free,) = play_out(runner, [text.fresh()], 4)
    forbidden = np.zeros(211, dtype=bool)
    forbidden[list(set(free))] = True
    runner.forbid(forbidden)
    (masked,) = play_out(runner, [text.fresh()], 4)
    (drawn,) = play_out(runner, [text.fresh(sampling=Sampling(3.0, seed=2))], 4)
    assert not set(masked) & set(free) and not set(drawn) & set(free)
    runner.forbid(None)
    assert play_out(runner, [text.fresh()], 4) == [free]
    with pytest.raises(ValueError, match="forbidden_ids"):
        runner.forbid(np.zeros(210, dtype=bool))


def test_pictures_of_a_frame_are_embedded_once(monkeypatch):
    runner = make_runner()
    counts: list[int] = []
    embed = runner._model.embed_images
    monkeypatch.setattr(runner._model, "embed_images", lambda pixels: counts.append(len(pixels)) or embed(pixels))
    a, b = frame(1), frame(2)
    other = replace(a, token_ids=(5, 6), num_tokens=a.num_tokens - 7)
    runner.prefill([PrefillItem(1, 0, a, 10), PrefillItem(1, 1, other, 10), PrefillItem(2, 2, b, 11)])
    assert counts == [4]
    runner.prefill([PrefillItem(1, 3, other, 10)])
    assert counts == [4]
    for tensor in (*runner.store.contexts.keys, *runner.store.contexts.values):
        torch.testing.assert_close(tensor[1, :, : other.num_tokens], tensor[3, :, : other.num_tokens])
    runner.prefill([PrefillItem(2, 2, b, 11)])
    assert counts == [4, 2]
    play_out(runner, [Text(2, b.num_tokens, 0, 2)], 2)
    runner.prefill([PrefillItem(2, 2, b, 11)])
    assert counts == [4, 2, 2]


def test_timings_count_stages():
    runner = make_runner()
    inputs = frame(1)
    fill(runner, {0: inputs})
    runner.act([act_item(0, inputs, noise_of(0))])
    play_out(runner, [Text(0, inputs.num_tokens, 0, 5)], 5)
    stages = runner.timings.stages
    assert {name: times.count for name, times in stages.items()} == {"vision": 1, "prefill": 1, "act": 1, "round": 5}
    assert all(times.total_s >= times.last_s > 0 for times in stages.values())
    runner.timings.reset()
    assert runner.timings.mean_s("act") == 0 == runner.timings.stages["round"].count


def test_warm_up_leaves_nothing_behind(runner):
    runner.warm_up()
    inputs = frame(1)
    fill(runner, {0: inputs})
    warm = play_out(runner, [Text(0, inputs.num_tokens, 0, 5)], 5)
    cold = make_runner()
    fill(cold, {0: inputs})
    assert warm == play_out(cold, [Text(0, inputs.num_tokens, 0, 5)], 5)
    assert runner.timings.stages["act"].count == 0
    runner.close()
    assert not hasattr(runner, "store")


def test_the_model_is_not_shared_with_the_reference():
    """The harness prepares a copy; the reference model still holds its plain weights."""
    make_runner()
    assert all(p.numel() for p in model_of().parameters())
