"""Our own client against the robot door: actions, text, faults of the link, faults of the server."""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time

import numpy as np
import pytest
from oxygen_client import (
    AsyncRobotClient,
    ConnectionLost,
    NoAnswer,
    RobotClient,
    ServerError,
    TakenOver,
)
from oxygen_client.backoff import Backoff, is_local
from serving.relay import Relay
from serving.rig import HORIZON, SENTENCE, FakeRunner, observation, processor, serve

from oxygen.engine.engine import Engine
from oxygen.serving.server import BackgroundServer
from oxygen.serving.settings import ServeSettings


def quick(url: str, session: str | None = "arm", **options: object) -> RobotClient:
    return RobotClient(url, session, ping_s=0.2, backoff=Backoff(0.02, 0.1), **options)


def test_chunk_and_text_of_one_frame() -> None:
    with serve() as rig, quick(rig.ws) as robot:
        assert robot.metadata["session"] == "arm" and robot.metadata["status"] == "ready"
        chunk = robot.infer(observation(), ["narration", {"kind": "subtask", "max_new_tokens": 5}], frame_id=7, step=3)
        assert chunk.actions.shape == (HORIZON, 7) and chunk.frame_id == 7 and chunk.step == 3
        narration, subtask = (robot.text(text_id) for text_id in chunk.text_ids)
        assert narration.result(30) == SENTENCE[:32] or narration.final is not None
        assert subtask.result(30) == SENTENCE[:5]
        assert subtask.final is not None and subtask.final.finish_reason == "length" and subtask.final.frame_id == 7


def test_pieces_arrive_in_order_and_whole() -> None:
    with serve() as rig, quick(rig.ws) as robot:
        chunk = robot.infer(observation(), [{"kind": "narration", "max_new_tokens": 200}])
        assert "".join(robot.text(chunk.text_ids[0])) == SENTENCE


def test_a_question_is_answered_on_the_held_frame_while_actions_go_on() -> None:
    with serve() as rig, quick(rig.ws) as robot:
        robot.infer(observation(), frame_id=1)
        answer = robot.ask("what are you doing?", max_new_tokens=200)
        for frame_id in range(2, 6):
            assert robot.infer(observation(frame_id), frame_id=frame_id).frame_id == frame_id
        assert answer.result(30) == SENTENCE
        assert answer.final is not None and answer.final.frame_id in (1, 2)  # the newest when the device took it up


def test_cancel_ends_a_text() -> None:
    runner = FakeRunner()
    runner.sentence, runner.round_s = "a" * 500, 0.01
    with serve(runner) as rig, quick(rig.ws) as robot:
        robot.infer(observation())
        answer = robot.ask("go on for ever", max_new_tokens=400)
        next(iter(answer))
        answer.cancel()
        answer.result(30)
        assert answer.final is not None and answer.final.finish_reason == "cancelled"
        rig.assert_idle()


def test_errors_end_one_request_not_the_link() -> None:
    with serve() as rig, quick(rig.ws) as robot:
        with pytest.raises(ServerError) as caught:
            robot.infer({"prompt": "no pictures"})
        assert caught.value.code == "invalid_input" and caught.value.field == "observation"
        with pytest.raises(ServerError) as caught:
            robot.infer(observation(), [{"kind": "narration", "max_new_tokens": 0}])
        assert caught.value.field == "tasks[0].max_new_tokens"
        rig.runner.fault = "request"
        with pytest.raises(ServerError) as caught:
            robot.infer(observation())
        assert caught.value.code == "request_fault" and caught.value.reference and "/secret" not in str(caught.value)
        assert robot.infer(observation()).actions.shape == (HORIZON, 7)
        assert robot.num_connects == 1


def test_frames_out_of_order_are_refused_until_a_reset() -> None:
    with serve() as rig, quick(rig.ws) as robot:
        robot.infer(observation(), frame_id=5)
        with pytest.raises(ServerError, match="out_of_order"):
            robot.infer(observation(), frame_id=4)
        robot.reset()
        assert robot.infer(observation(), frame_id=0).frame_id == 0


def test_same_seed_same_chunk_other_seed_another() -> None:
    with serve() as rig, quick(rig.ws) as robot:
        chunks = [robot.infer(observation(), seed=seed).actions for seed in (1, 1, 2)]
        np.testing.assert_array_equal(chunks[0], chunks[1])
        assert not np.array_equal(chunks[0], chunks[2])
        assert not np.array_equal(robot.infer(observation()).actions, robot.infer(observation()).actions)


def test_a_late_answer_is_never_paired_with_another_frame() -> None:
    with serve() as rig, quick(rig.ws) as robot:
        rig.runner.gate.clear()
        with pytest.raises(NoAnswer):
            robot.infer(observation(0), seed=0, timeout=0.2)
        rig.until(lambda: rig.gateway.in_flight == 1)
        rig.runner.gate.set()
        wanted = robot.infer(observation(1), seed=1, timeout=30).actions
        np.testing.assert_array_equal(wanted, robot.infer(observation(1), seed=1).actions)
        rig.until(lambda: robot.num_late_answers == 1)


def test_half_open_link_is_noticed_and_the_newest_frame_sent_again() -> None:
    with serve() as rig, Relay(rig.server.port) as relay, quick(f"ws://127.0.0.1:{relay.port}") as robot:
        robot.infer(observation(0), frame_id=0)
        relay.swallow_answers()
        chunk = robot.infer(observation(1), timeout=30)  # pings fail, the client connects again and repeats its frame
        assert robot.num_connects >= 2 and chunk.actions.shape == (HORIZON, 7)


def test_the_server_reaps_a_frozen_link_within_its_keepalive_bound() -> None:
    runner = FakeRunner()
    runner.sentence, runner.round_s = "a" * 590, 0.01
    options = {"ping_interval_s": 0.2, "ping_timeout_s": 0.2}
    with serve(runner, **options) as rig, Relay(rig.server.port) as relay:
        robot = RobotClient(f"ws://127.0.0.1:{relay.port}", "arm", ping_s=60.0)
        robot.connect()
        robot.infer(observation(), [{"kind": "narration", "max_new_tokens": 500}])
        rig.until(lambda: rig.engine.stats().live_texts == 1)
        relay.freeze()
        rig.until(lambda: rig.gateway.sessions.get("arm").owner is None, timeout=30)
        rig.assert_idle()
        robot.close()


def test_a_dead_link_does_not_keep_the_name() -> None:
    with serve() as rig, Relay(rig.server.port) as relay:
        first = quick(f"ws://127.0.0.1:{relay.port}")
        first.connect()
        first.infer(observation())
        relay.close()
        started = time.monotonic()
        with quick(rig.ws) as second:
            second.infer(observation())
        assert time.monotonic() - started < 8
        first.close()


def test_the_newest_link_takes_a_name_over_and_the_old_one_is_told() -> None:
    with serve() as rig, quick(rig.ws) as old:
        old.infer(observation())
        with quick(rig.ws) as new:
            new.infer(observation())
            with pytest.raises(TakenOver, match="taken over"):
                old.infer(observation(), timeout=30)
            time.sleep(0.3)
            assert old.num_connects == 1 and new.num_connects == 1
            assert new.infer(observation()).actions.shape == (HORIZON, 7)


def test_a_takeover_during_a_slow_call_is_greeted_at_once_and_starts_clean() -> None:
    with serve() as rig, quick(rig.ws) as old:
        old.infer(observation(0), frame_id=10)
        rig.runner.gate.clear()

        def infer() -> None:
            with contextlib.suppress(TakenOver):
                old.infer(observation(), frame_id=11)

        slow = threading.Thread(target=infer)
        slow.start()
        rig.until(lambda: rig.gateway.in_flight == 1)
        started = time.monotonic()
        with quick(rig.ws) as new:
            assert time.monotonic() - started < 8
            first: list[object] = []
            frame = threading.Thread(target=lambda: first.append(new.infer(observation(1), frame_id=0, timeout=60)))
            frame.start()
            time.sleep(0.1)
            assert not first
            rig.runner.gate.set()
            frame.join(60)
            slow.join(60)
            assert first and first[0].frame_id == 0


def test_client_killed_in_mid_frame_and_in_mid_text_frees_everything() -> None:
    runner = FakeRunner()
    runner.sentence, runner.round_s = "a" * 500, 0.005
    with serve(runner) as rig, Relay(rig.server.port) as relay:
        robot = quick(f"ws://127.0.0.1:{relay.port}")
        robot.connect()
        robot.infer(observation(), [{"kind": "narration", "max_new_tokens": 400}])
        rig.until(lambda: rig.engine.stats().live_texts == 1)
        runner.gate.clear()

        def lose() -> None:
            with pytest.raises(ConnectionLost):
                robot.infer(observation(), timeout=1.0)

        frame = threading.Thread(target=lose)
        frame.start()
        rig.until(lambda: rig.gateway.in_flight == 1)
        relay.cut()
        relay.close()
        runner.gate.set()
        rig.until(lambda: rig.gateway.in_flight == 0)
        rig.assert_idle()
        frame.join(30)
        robot.close()


def test_text_lost_with_the_link_says_so() -> None:
    runner = FakeRunner()
    runner.sentence, runner.round_s = "a" * 500, 0.01
    with serve(runner) as rig, Relay(rig.server.port) as relay, quick(f"ws://127.0.0.1:{relay.port}") as robot:
        chunk = robot.infer(observation(), [{"kind": "narration", "max_new_tokens": 400}])
        text = robot.text(chunk.text_ids[0])
        next(iter(text))
        relay.cut()
        text.result(30)
        assert text.final is not None and text.final.finish_reason == "lost"


def test_a_server_killed_and_restarted_under_a_running_client() -> None:
    runner = FakeRunner()
    engine = Engine(runner, processor())
    engine.start()
    with BackgroundServer(engine, ServeSettings(port=0)) as server:
        port = server.port
        robot = quick(f"ws://127.0.0.1:{port}")
        robot.connect()
        robot.infer(observation())
        server.kill()
    engine.close()
    with pytest.raises(ConnectionLost):
        robot.infer(observation(), timeout=0.3)
    engine = Engine(FakeRunner(), processor())
    engine.start()
    with BackgroundServer(engine, ServeSettings(port=port)):
        chunk = robot.infer(observation(), timeout=30)
        assert chunk.actions.shape == (HORIZON, 7) and robot.num_connects == 2
        robot.close()
    engine.close()


def test_stopping_tells_every_client_and_frees_the_port() -> None:
    with serve() as rig, quick(rig.ws) as robot:
        robot.infer(observation())
        port = rig.server.port
        rig.server.stop()
        rig.until(lambda: not robot.is_connected)
        with pytest.raises(ConnectionLost):
            robot.infer(observation(), timeout=0.2)
        with BackgroundServer(rig.engine, ServeSettings(port=port)):
            assert robot.infer(observation(), timeout=30).actions.shape == (HORIZON, 7)


def test_early_clients_are_told_that_the_model_is_warming() -> None:
    warm = threading.Event()
    with serve(warm_up=lambda: warm.wait(60)) as rig, quick(rig.ws) as robot:
        assert robot.metadata["status"] == "warming"
        with pytest.raises(ServerError) as caught:
            robot.infer(observation())
        assert caught.value.code == "warming" and caught.value.retry_after_s
        warm.set()
        rig.until(lambda: rig.engine.status == "ready")
        assert robot.infer(observation()).actions.shape == (HORIZON, 7)


def test_text_beyond_the_limit_is_refused_while_actions_go_on() -> None:
    runner = FakeRunner()
    runner.sentence, runner.round_s = "a" * 500, 0.01
    with serve(runner, max_session_texts=2) as rig, quick(rig.ws) as robot:
        chunk = robot.infer(observation(), [{"kind": "narration", "max_new_tokens": 400}] * 4)
        assert len(chunk.text_ids) == 2
        refused = [e for e in _take(robot, lambda e: e.finish_reason == "refused", 2)]
        assert len(refused) == 2
        with pytest.raises(ServerError, match="too_many_texts"):
            robot.ask("one more?")
        assert robot.infer(observation()).actions.shape == (HORIZON, 7)


def _take(robot: RobotClient, wanted: object, count: int) -> list:
    found = []
    for event in robot.events(timeout=5):
        if wanted(event):  # type: ignore[operator]
            found.append(event)
        if len(found) == count:
            break
    return found


def test_many_frames_in_flight_keep_their_own_answers() -> None:
    async def run(url: str) -> None:
        async with AsyncRobotClient(url, "arm") as robot:
            alone = {seed: (await robot.infer(observation(seed), seed=seed)).actions for seed in range(4)}
            for _ in range(5):
                tasks = [asyncio.ensure_future(robot.infer(observation(s), seed=s, timeout=30)) for s in range(4)]
                results = await asyncio.gather(*tasks, return_exceptions=True)
                for seed, result in enumerate(results):
                    if isinstance(result, ServerError):
                        assert result.code == "replaced"
                    else:
                        np.testing.assert_array_equal(result.actions, alone[seed])
                assert not isinstance(results[-1], Exception)

    with serve() as rig:
        asyncio.run(run(rig.ws))


def test_no_greeting_is_given_up_in_time() -> None:
    with Relay(None) as relay:  # accepts and never answers
        robot = quick(f"ws://127.0.0.1:{relay.port}", greeting_timeout_s=0.2)
        started = time.monotonic()
        with pytest.raises(ConnectionLost):
            robot.connect(timeout=1.0)
        assert time.monotonic() - started < 15
        robot.close()


def test_local_links_never_go_through_a_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("http_proxy", "https_proxy", "all_proxy", "HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    with serve() as rig, quick(rig.ws) as robot:
        assert robot.infer(observation()).actions.shape == (HORIZON, 7)
    assert is_local("ws://192.168.1.4:8000") and is_local("ws://[::1]:1") and is_local("ws://robot.local")
    assert not is_local("wss://example.org")
