"""Texts: pieces, stop strings, limits, late questions, deadlines, priorities, superseding."""

from __future__ import annotations

import pytest
from fakes import EOS, ByteStream, expected_tokens, frame

from oxygen.core.errors import InvalidInput, Refused
from oxygen.core.tasks import Sampling, TextTask
from oxygen.processing.transcript import Transcript


def pieces_of(tokens, stop=(), ignore_eos=False, max_new_tokens=99):
    """Feed tokens; returns (pieces taken after each, why it ended, the transcript)."""
    transcript = Transcript(
        TextTask("narration", stop=stop, ignore_eos=ignore_eos, max_new_tokens=max_new_tokens), ByteStream(), (EOS,)
    )
    pieces, reason = [], ""
    for token in tokens:
        assert not reason, "fed after the end"
        reason = transcript.push(token)
        pieces.append(transcript.take())
    pieces.append(transcript.finish())
    return pieces, reason, transcript


def test_a_character_is_given_out_whole():
    pieces, _, transcript = pieces_of("né🤖".encode())
    assert [p for p in pieces if p] == ["n", "é", "🤖"]
    assert transcript.text == "né🤖"


def test_half_a_character_at_the_end_shows_as_a_mark():
    pieces, _, transcript = pieces_of("né".encode()[:-1])
    assert pieces[-1] == "�"
    assert transcript.text == "n�"


@pytest.mark.parametrize(("stop", "text"), [(("END",), "go on "), (("n E", "N"), "go o"), (("g",), "")])
def test_stop_strings_end_a_text_and_are_not_in_it(stop, text):
    fed = b"go on END"
    at = min(fed.decode().find(s) + len(s) for s in stop if s in fed.decode())
    pieces, reason, transcript = pieces_of(fed[:at], stop)
    assert (transcript.text, reason) == (text, "stop")
    assert "".join(pieces) == text


def test_what_may_begin_a_stop_string_is_held_back_and_given_out_when_it_does_not():
    pieces, _, _ = pieces_of(b"aEENx", stop=("END",))
    assert pieces == ["a", "", "E", "", "ENx", ""]


def test_a_held_back_rest_is_given_out_at_the_end():
    assert pieces_of(b"aEN", stop=("END",))[0] == ["a", "", "", "EN"]


def test_end_of_text_is_no_token_of_the_text_unless_it_is_ignored():
    assert pieces_of([97, EOS])[2].token_ids == [97]
    _, reason, transcript = pieces_of([97, EOS, 98], ignore_eos=True, max_new_tokens=3)
    assert (transcript.token_ids, transcript.text, reason) == ([97, EOS, 98], "ab", "length")


def test_a_stop_string_may_span_pieces_and_steps(make):
    engine = make(budget="fixed:1")
    task = TextTask("narration", max_new_tokens=40, ignore_eos=True)
    ticket = engine.submit(frame(), texts=task)
    while not ticket.is_done:
        engine.step()
    whole = ticket.text().result(0).text
    stop = whole[7:10]
    ticket = engine.submit(frame(), texts=TextTask("narration", max_new_tokens=40, ignore_eos=True, stop=(stop,)))
    while not ticket.is_done:
        engine.step()
        assert stop[:1] not in "".join(ticket.text()._pieces)[whole.index(stop) :]
    result = ticket.text().result(0)
    assert (result.text, result.finish_reason) == (whole[: whole.index(stop)], "stop")


@pytest.mark.parametrize("budget", ["fixed:1", "fixed:7", "idle", "rate:1"])
def test_text_resumed_over_frames_equals_text_in_one_go(make, budget):
    engine = make(budget=budget, eos_one_in=20)
    tasks = [
        TextTask("narration", question="why?", max_new_tokens=30, sampling=Sampling(1.0, seed=s)) for s in range(3)
    ]
    tickets = [engine.submit(frame(number=7), texts=task) for task in tasks[:1]]
    engine.step()
    tickets += [engine.submit(frame("other", number=7), texts=task) for task in tasks[1:2]]
    engine.step()
    tickets += [engine.submit(frame(number=7), texts=task) for task in tasks[2:]]
    while not all(t.is_done for t in tickets):
        engine.step()
    for ticket, task in zip(tickets, tasks, strict=True):
        inputs = engine.processor.encode(frame(ticket.session, number=7), (), (task,))
        wanted = expected_tokens(inputs.contexts[0], inputs.texts[0].tail_ids, task, eos_one_in=20)
        assert ticket.text().result(0).token_ids == tuple(t for t in wanted if t != EOS)


def test_what_does_not_fit_the_tail_is_refused_at_the_door(make):
    engine = make(tail_len=20)
    engine.submit(frame(), texts=TextTask("narration", question="12345", max_new_tokens=15))
    with pytest.raises(InvalidInput, match="max_new_tokens: expected at most 15"):
        engine.submit(frame(), texts=TextTask("narration", question="12345", max_new_tokens=16))
    with pytest.raises(InvalidInput, match="max_new_tokens"):
        engine.ask("default", TextTask("narration", question="12345", max_new_tokens=16))


def test_a_result_says_what_it_is_about_and_how_old_it_is(make):
    engine = make(budget="fixed:1", costs={"round": 0.5})
    ticket = engine.submit(frame(frame_id=41, captured_at=7.0), texts=TextTask("narration", max_new_tokens=3))
    for number in range(3):
        engine.step()
        engine.submit(frame(number=number))
    result = ticket.text().result(0)
    assert (result.frame_id, result.captured_at, result.kind, result.session) == (41, 7.0, "narration", "default")
    assert result.finish_reason == "length"
    assert (result.age_frames, result.age_s, result.ttft_s) == (2, 1.5, 0.5)


def test_deadlines_end_texts_that_wait_and_texts_that_run(make):
    engine = make(budget="fixed:1", max_texts=1)
    live, waiting = (TextTask("narration", max_new_tokens=30, deadline_s=d) for d in (2.0, 1.0))
    ticket = engine.submit(frame(), texts=[live, waiting])
    engine.step()
    engine.clock.advance(1.0)
    engine.step()
    assert ticket.text(1).result(0).finish_reason == "expired"
    assert not ticket.text(0).is_done
    engine.clock.advance(1.0)
    engine.step()
    result = ticket.text(0).result(0)
    assert (result.finish_reason, len(result.token_ids)) == ("expired", 2)
    assert engine.stats().tail_rows == 0


def test_rows_go_by_priority_then_to_the_session_with_fewest_then_by_age(make):
    engine = make(budget="fixed:1", max_texts=2, max_batch=4)
    short = TextTask("narration", max_new_tokens=1, ignore_eos=True)
    long = TextTask("narration", max_new_tokens=9, ignore_eos=True)
    urgent = TextTask("answer", max_new_tokens=1, ignore_eos=True, priority=1)
    first = engine.submit(frame("a"), texts=[long, short, short])
    second = engine.submit(frame("b"), texts=[short, urgent])
    engine.step()
    assert second.text("answer").is_done  # priority first; then `a`, who is oldest
    assert [t.is_done for t in (*first.texts, second.text(0))] == [False, False, False, False]
    engine.step()
    assert second.text(0).is_done and not first.text(1).is_done  # `b` has no row, `a` has one
    engine.step()
    assert first.text(1).is_done and not first.text(2).is_done


def test_rows_that_come_free_together_are_shared_out_fairly(make):
    engine = make(budget="fixed:1", max_texts=2, max_batch=2)
    task = TextTask("narration", max_new_tokens=2, ignore_eos=True)
    greedy, modest = engine.submit(frame("a"), texts=[task] * 3), engine.submit(frame("b"), texts=task)
    engine.step()
    engine.step()
    assert [t.is_done for t in (*greedy.texts, modest.text())] == [True, False, False, True]


def test_a_newer_text_of_the_kind_ends_the_older_one_of_its_session_only(make):
    engine = make(budget="fixed:1", superseded_kinds=frozenset({"subtask"}))
    tasks = [TextTask(kind, max_new_tokens=20) for kind in ("subtask", "narration")]
    old, other = engine.submit(frame("a"), texts=tasks), engine.submit(frame("b"), texts=tasks[0])
    engine.step()
    engine.submit(frame("a"), texts=[tasks[0], tasks[0]])
    engine.step()
    result = old.text("subtask").result(0)
    assert (result.finish_reason, len(result.token_ids), result.age_frames) == ("superseded", 1, 1)
    assert not old.text("narration").is_done and not other.text().is_done
    assert engine.stats().live_texts == 4


def test_texts_beyond_the_queue_are_refused_with_a_reason_and_actions_still_come(make):
    engine = make(max_texts=1, max_waiting_texts=1, budget="fixed:1")
    task = TextTask("narration", max_new_tokens=9)
    ticket = engine.submit(frame(), texts=[task] * 3)
    engine.step()
    assert ticket.actions(0).actions.shape == (5, 3)
    with pytest.raises(Refused, match="wait already") as refused:
        ticket.text(2).result(0)
    assert (refused.value.reason, refused.value.retry_after_s) == ("queue_full", 1.0)
    with pytest.raises(Refused):
        list(ticket.text(2))
    with pytest.raises(Refused):
        engine.ask("default", task)
    with pytest.raises(Refused):
        engine.submit(frame("b"), None, task)
    assert engine.stats().counts["refused"] == 3


def test_a_question_joins_the_held_context_without_a_prefill(make):
    engine = make(keep_context_s=1.0)
    engine.submit(frame(number=3, frame_id=12))
    engine.step()
    engine.clock.advance(0.9)
    answer = engine.ask("default", TextTask("answer", question="what?", max_new_tokens=4))
    assert answer.frame_id is None
    engine.step()
    assert answer.text().result(0).frame_id == answer.frame_id == 12
    assert [verb for verb, _ in engine.runner.log].count("prefill") == 1
    assert engine.stats().counts["joined"] == 1


def test_a_question_waits_for_the_next_frame_when_none_is_held(make):
    engine = make(keep_context_s=1.0, max_wait_s=5.0)
    engine.submit(frame(frame_id=1))
    engine.step()
    engine.clock.advance(1.0)
    answer = engine.ask("default", TextTask("answer", max_new_tokens=4))
    engine.step()
    assert not answer.is_done and engine.stats().context_rows == 0
    engine.submit(frame(frame_id=2))
    engine.step()
    assert answer.text().result(0).frame_id == 2


def test_a_question_before_any_frame_reads_the_first_and_one_right_after_submit_reads_that(make):
    engine = make(keep_context_s=0.0)
    early = engine.ask("default", TextTask("answer", max_new_tokens=2))
    engine.submit(frame(frame_id=5))
    late = engine.ask("default", TextTask("answer", max_new_tokens=2))
    engine.step()
    assert [t.text().result(0).frame_id for t in (early, late)] == [5, 5]


def test_a_question_outlives_a_replaced_frame(make):
    engine = make()
    answer = engine.ask("default", TextTask("answer", max_new_tokens=2))
    engine.submit(frame(frame_id=1))
    engine.submit(frame(frame_id=2))
    engine.step()
    assert answer.text().result(0).frame_id == 2


def test_a_question_that_no_frame_answers_expires(make):
    engine = make(max_wait_s=2.0)
    answer = engine.ask("nobody", TextTask("answer"))
    engine.step()
    engine.clock.advance(2.0)
    engine.step()
    result = answer.text().result(0)
    assert (result.finish_reason, result.frame_id, result.text) == ("expired", -1, "")
    assert result.extras["reason"] == "no frame came in time"


def test_a_question_may_ask_for_a_frame_or_for_a_fresh_one(make):
    engine = make(keep_context_s=9.0)
    engine.submit(frame(frame_id=1))
    engine.step()
    engine.clock.advance(1.0)
    task = TextTask("answer", max_new_tokens=2)
    right, wrong = engine.ask("default", task, frame_id=1), engine.ask("default", task, frame_id=0)
    fresh = engine.ask("default", task, max_age_s=0.5)
    engine.step()
    assert right.text().result(0).frame_id == 1
    with pytest.raises(Refused, match="frame 0 is not held") as gone:
        wrong.text().result(0)
    assert gone.value.reason == "frame_gone"
    assert not fresh.is_done
    engine.submit(frame(frame_id=2))
    engine.step()
    assert fresh.text().result(0).frame_id == 2


def test_a_question_whose_prefix_differs_gets_a_context_of_its_own(make):
    engine = make()
    engine.submit(frame(number=9, frame_id=4))
    engine.step()
    answer = engine.ask("default", TextTask("apart", max_new_tokens=4))
    engine.step()
    assert answer.text().result(0).frame_id == 4
    assert [verb for verb, _ in engine.runner.log].count("prefill") == 2
    inputs = engine.processor.encode(frame(number=9), (), (TextTask("apart"),))
    wanted = expected_tokens(inputs.contexts[0], (), TextTask("apart", max_new_tokens=4), 0)
    assert list(answer.text().result(0).token_ids) == wanted


def test_unknown_kinds_are_refused_at_both_doors(make):
    engine = make()
    for call in (lambda: engine.submit(frame(), texts=TextTask("poem")), lambda: engine.ask("x", TextTask("poem"))):
        with pytest.raises(InvalidInput, match="kind"):
            call()


def test_text_alone_is_served_too_and_its_context_is_held(make):
    engine = make()
    ticket = engine.submit(frame(frame_id=3), None, TextTask("narration", max_new_tokens=4))
    engine.step()
    assert ticket.text().result(0).frame_id == 3
    with pytest.raises(InvalidInput, match="expert"):
        ticket.actions(0)
    answer = engine.ask("default", TextTask("answer", max_new_tokens=4))
    engine.step()
    assert answer.text().result(0).frame_id == 3
