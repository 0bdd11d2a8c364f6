"""One item's fault ends that request only; bad items are refused with what is wrong; pictures are embedded once.

On small models of every family.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from runtime.families import FAMILIES
from runtime.harness import KINDS, Text, play, play_out

from oxygen.core.errors import RequestFault
from oxygen.core.inputs import ContextInputs
from oxygen.core.plan import PrefillItem
from oxygen.core.tasks import Sampling

BAD_TAILS = {  # expert -> private tokens that it cannot take, and what is said of them
    "action": ((3,), "private"),
    "pi": ((211,), "token ids"),
    "gr00t": ((-1,), "token ids"),
    "oft": ((5,) * 6, "6 query tokens, its prompt has 0"),
}


@pytest.fixture(params=[(family, kind) for family in FAMILIES for kind in KINDS], ids="-".join)
def rig(request):
    family, kind = request.param
    return FAMILIES[family].rig(**KINDS[kind])


@pytest.fixture(params=FAMILIES)
def plain_rig(request):
    return FAMILIES[request.param].rig()


def test_a_faulty_text_leaves_the_others_as_they_were(rig):
    inputs = {row: rig.frame(row) for row in range(3)}
    rig.fill(inputs)
    texts = [Text(row, inputs[row].num_tokens, row, 8) for row in range(3)]
    whole = play_out(rig.runner, [t.fresh() for t in texts], 8)
    play(rig.runner, texts, 3)
    rig.spoil(1)
    with pytest.raises(RequestFault) as fault:
        play(rig.runner, texts, 3)
    assert fault.value.request_id == 1 and [len(t.got) for t in texts] == [3, 3, 3]
    rest = [texts[0], texts[2]]
    assert play_out(rig.runner, rest, 3) == [whole[0], whole[2]]


@pytest.mark.parametrize("name", FAMILIES)
def test_a_faulty_context_does_not_reach_the_next_user_of_its_row(name):
    rig = FAMILIES[name].rig(poison_freed=False)
    long, short = rig.frame(1, 3, 9), rig.frame(2, 1, 4)
    rig.fill({0: short})
    chunks = rig.runner.act(rig.acts(0, short, 0))
    expected = play_out(rig.runner, [Text(0, short.num_tokens, 0, 6)], 3)
    rig.fill({0: long, 1: long})
    rig.spoil(0)
    rig.runner.store.tails.values[0][0] = float("nan")
    rig.fill({0: short})
    for again, before in zip(rig.runner.act(rig.acts(0, short, 0)), chunks, strict=True):
        assert np.array_equal(again, before)
    texts = [Text(0, short.num_tokens, 0, 6), Text(1, long.num_tokens, 1, 6)]
    assert play_out(rig.runner, texts, 3)[:1] == expected


def test_a_chunk_that_is_not_finite_blames_its_request(rig):
    inputs = {row: rig.frame(row) for row in range(3)}
    rig.fill(inputs)
    items = rig.acts_of(inputs)
    good = rig.runner.act(items)
    rig.spoil(2)
    for item in items[-len(rig.family.tails) :]:
        with pytest.raises(RequestFault, match="not finite") as fault:
            rig.runner.act([*items[: -len(rig.family.tails)], item])
        assert fault.value.request_id == 2
    rest = items[: -len(rig.family.tails)]
    for a, b in zip(rig.runner.act(rest), good, strict=False):
        assert np.abs(a - b).max() <= 1e-5 * np.abs(b).max()


def test_prefill_refuses_what_does_not_fit(rig):
    runner, good = rig.runner, rig.frame(0)
    first, second = good.images
    bad: list[tuple[ContextInputs, str]] = [
        (replace(good, num_tokens=3), "declared 3"),
        (replace(good, token_ids=(*good.token_ids[:-1], 211)), "token ids"),
        (replace(good, token_ids=(*good.token_ids[:-1], -1)), "token ids"),
        (replace(good, images=(first[:-1], second)), r"expected \[.*\] uint8"),
        (replace(good, images=(first[:, :, :2], second)), r"expected \[.*\] uint8"),
        (replace(good, images=(first.astype(np.float32), second)), "uint8"),
        (replace(good, images=(first,)), "context"),
        (rig.frame(0, 3, 40), "room for 40"),
        (ContextInputs((), (), 0), "0 tokens"),
    ]
    for inputs, message in bad:
        with pytest.raises(RequestFault, match=message) as fault:
            runner.prefill([PrefillItem(4, 0, good, 0), PrefillItem(5, 1, inputs, 1)])
        assert fault.value.request_id == 5
    with pytest.raises(RequestFault, match="row 7"):
        runner.prefill([PrefillItem(4, 7, good, 0)])
    with pytest.raises(RequestFault, match="other"):
        runner.prefill([PrefillItem(4, 0, good, 0, (("other", ()),))])


def test_act_refuses_what_does_not_fit(rig):
    inputs = rig.frame(0)
    rig.fill({0: inputs})
    for item in rig.acts(0, inputs, 0):
        for changes, message in (
            ({"expert": "other"}, "other"),
            ({"noise": np.zeros((2, 32), np.float32)}, "noise"),
            ({"num_steps": 0}, "num_steps"),
            ({"context_row": -1}, "row -1"),
            ({"context_len": 41}, "41"),
        ):
            with pytest.raises(RequestFault, match=message):
                rig.runner.act([replace(item, **changes)])
        tail, said = BAD_TAILS[item.expert]
        with pytest.raises(RequestFault, match=said):
            rig.runner.prefill([PrefillItem(0, 0, inputs, 0, ((item.expert, tail),))])
            rig.runner.act([replace(item, tail_ids=tail)])
        rig.fill({0: inputs})
    assert rig.runner.act([]) == []


def test_experts_that_read_what_is_not_there_are_refused(plain_rig):
    """A state that does not come, features of another step: only for experts that read them."""
    inputs = plain_rig.frame(0)
    plain_rig.fill({0: inputs})
    for item in plain_rig.acts(0, inputs, 0):
        shape = plain_rig.runner._experts[item.expert].shape
        for state in (None, np.zeros(shape.state_dim + 1, np.float32)):
            if shape.state_dim:
                with pytest.raises(RequestFault, match="state: expert"):
                    plain_rig.runner.act([replace(item, state=state)])
            else:
                assert np.isfinite(plain_rig.runner.act([replace(item, state=state)])[0]).all()
    play_out(plain_rig.runner, [Text(0, inputs.num_tokens, 0, 1)], 1)
    for item in plain_rig.acts(0, inputs, 0):
        if plain_rig.runner._experts[item.expert].shape.reads.kv:
            assert np.isfinite(plain_rig.runner.act([item])[0]).all()
        else:
            with pytest.raises(RequestFault, match="not prefilled"):
                plain_rig.runner.act([item])


def test_decode_refuses_what_does_not_fit(rig):
    inputs = rig.frame(0)
    rig.fill({0: inputs})
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
            rig.runner.decode([replace(item, **changes)], 4, lambda tokens: [True] * len(tokens))
    # 37 + 4 - 1 just fit
    rig.runner.decode([replace(item, pending=(4,) * 37)], 4, lambda tokens: [True] * len(tokens))
    rig.runner.decode([], 4, lambda tokens: [])


def test_an_answer_for_the_wrong_number_of_texts_is_an_error(rig):
    inputs = rig.frame(0)
    rig.fill({0: inputs})
    with pytest.raises(ValueError, match="0 of 1"):
        rig.runner.decode([Text(0, inputs.num_tokens, 0, 4).item()], 4, lambda tokens: [])


def test_forbidden_ids(rig):
    runner, inputs = rig.runner, rig.frame(0)
    rig.fill({0: inputs})
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


def test_pictures_of_a_frame_are_embedded_once(monkeypatch, plain_rig):
    runner = plain_rig.runner
    counts: list[int] = []
    embed = runner._model.embed_pictures
    monkeypatch.setattr(runner._model, "embed_pictures", lambda images: counts.append(len(images)) or embed(images))
    a, b = plain_rig.frame(1), plain_rig.frame(2)
    other = replace(a, token_ids=(*a.token_ids[:-9], 5, 6), num_tokens=a.num_tokens - 7)
    runner.prefill([PrefillItem(1, 0, a, 10), PrefillItem(1, 1, other, 10), PrefillItem(2, 2, b, 11)])
    assert counts == [4]
    runner.prefill([PrefillItem(1, 3, other, 10)])
    assert counts == [4, 0]
    for tensor in (*runner.store.contexts.keys, *runner.store.contexts.values):
        torch.testing.assert_close(tensor[1, :, : other.num_tokens], tensor[3, :, : other.num_tokens])
    runner.prefill([PrefillItem(2, 2, b, 11)])
    assert counts == [4, 0, 2]
    play_out(runner, [Text(2, b.num_tokens, 0, 2)], 2)
    runner.prefill([PrefillItem(2, 2, b, 11)])
    assert counts == [4, 0, 2, 2]


def test_timings_count_stages(plain_rig):
    runner, inputs = plain_rig.runner, plain_rig.frame(1)
    plain_rig.fill({0: inputs})
    runner.act(plain_rig.acts(0, inputs, 0))
    play_out(runner, [Text(0, inputs.num_tokens, 0, 5)], 5)
    stages = runner.timings.stages
    assert {name: times.count for name, times in stages.items()} == {"vision": 1, "prefill": 1, "act": 1, "round": 5}
    assert all(times.total_s >= times.last_s > 0 for times in stages.values())
    runner.timings.reset()
    assert runner.timings.mean_s("act") == 0 == runner.timings.stages["round"].count


def test_warm_up_leaves_nothing_behind(rig):
    rig.runner.warm_up()
    inputs = rig.frame(1)
    rig.fill({0: inputs})
    warm = play_out(rig.runner, [Text(0, inputs.num_tokens, 0, 5)], 5)
    cold = rig.family.rig()
    cold.fill({0: inputs})
    assert warm == play_out(cold.runner, [Text(0, inputs.num_tokens, 0, 5)], 5)
    assert rig.runner.timings.stages["act"].count == 0
    rig.runner.close()
    assert not hasattr(rig.runner, "store")


@pytest.mark.parametrize("name", FAMILIES)
def test_the_model_is_not_shared_with_the_reference(name):
    """A rig prepares a copy; the reference model still holds its plain weights."""
    FAMILIES[name].rig()
    assert all(p.numel() for p in FAMILIES[name].model().parameters())
