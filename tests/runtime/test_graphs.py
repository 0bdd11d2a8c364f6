"""Buckets, padding and trash rows of the static path; what happens when a capture fails. No GPU is needed."""

from __future__ import annotations

import logging

import pytest
from runtime.harness import Text, act_item, fill, frame, make_runner, noise_of, play_out

from oxygen.runtime.torch.graphs import Graphs, Static, act_key, bucket, prefill_key, round_key, round_up
from oxygen.runtime.torch.runs import LiveText


def test_buckets():
    assert [round_up(n, 64, 200) for n in (1, 64, 65, 199, 200)] == [64, 64, 128, 200, 200]
    assert [bucket(n, 40) for n in (1, 3, 9, 33, 40)] == [1, 4, 16, 40, 40]
    assert bucket(129, 1000) == 192


def test_keys_leave_out_what_varies_within_a_bucket():
    store = make_runner(max_contexts=40, max_texts=40, context_len=700, tail_len=64).store
    a = round_key([LiveText(0, 530, 3, 0), LiveText(2, 540, 1, 5)], store)
    assert a == round_key([LiveText(1, 520, 2, 30), LiveText(3, 600, 0, 1)], store)
    assert a != round_key([LiveText(1, 520, 2, 32), LiveText(3, 600, 0, 1)], store)
    assert act_key("a", [3], 513, 10, 700) == act_key("a", [3], 640, 10, 700) != act_key("a", [2], 640, 10, 700)
    assert prefill_key(513, 700) == prefill_key(576, 700) != prefill_key(577, 700)


def test_the_static_path_is_used_and_writes_nothing_elsewhere():
    runner = make_runner(graphs="plain", poison_freed=False)
    contexts, tails = runner.store.contexts, runner.store.tails
    for tensor in (*contexts.keys, *contexts.values, *tails.keys, *tails.values):
        tensor.fill_(7.0)
    inputs = {row: frame(row) for row in (1, 3, 4)}
    for row in inputs:
        fill(runner, {row: inputs[row]})
    runner.act([act_item(3, inputs[3], noise_of(1))])
    play_out(runner, [Text(row, inputs[row].num_tokens, row + 1, 5) for row in inputs], 3)
    assert runner.info()["graphs"]["shapes"] == 3
    for tensor in (*contexts.keys, *contexts.values):
        assert (tensor[[0, 2, 5, 6]] == 7.0).all()
    for tensor in (*tails.keys, *tails.values):
        assert (tensor[[0, 1, 3, 6, 7]] == 7.0).all()
        assert (tensor[tails.trash] != 7.0).any()  # three texts were padded to four


def test_the_number_of_shapes_is_bounded():
    graphs = Graphs("plain", limit=3)
    made = [graphs.get(("k", i), Static) for i in range(3)]
    assert graphs.get(("k", 0), Static) is made[0]
    graphs.get(("k", 3), Static)
    assert graphs.state()["shapes"] == 3 and graphs.get(("k", 0), Static) is made[0]
    assert graphs.get(("k", 1), Static) is not made[1]
    with pytest.raises(ValueError, match="off, plain, cuda"):
        Graphs("yes")


def test_a_failed_capture_falls_back_to_eager_and_says_so(caplog, monkeypatch):
    def fail(self, pool):
        raise RuntimeError("no capture today")

    monkeypatch.setattr(Static, "capture", fail)
    monkeypatch.setattr("torch.cuda.graph_pool_handle", lambda: None)
    runner = make_runner(graphs="cuda")
    inputs = frame(1)
    with caplog.at_level(logging.WARNING):
        for _ in range(3):
            fill(runner, {0: inputs})
            got = play_out(runner, [Text(0, inputs.num_tokens, 0, 6)], 6)
    eager = make_runner()
    fill(eager, {0: inputs})
    assert got == play_out(eager, [Text(0, inputs.num_tokens, 0, 6)], 6)
    assert "no capture today" in runner.info()["graphs"]["failure"]
    assert len(caplog.records) == 1


def test_shapes_are_captured_when_they_come_again(monkeypatch):
    captured = []
    monkeypatch.setattr(Static, "capture", lambda self, pool: captured.append(type(self).__name__))
    monkeypatch.setattr("torch.cuda.graph_pool_handle", lambda: None)
    runner = make_runner(graphs="cuda")
    inputs = frame(1)
    fill(runner, {0: inputs})
    runner.act([act_item(0, inputs, noise_of(0))])
    assert captured == []
    fill(runner, {0: inputs})
    for _ in range(2):
        runner.act([act_item(0, inputs, noise_of(0))])
    assert captured == ["StaticPrefill", "StaticAct"]
