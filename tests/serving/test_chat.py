"""OpenAI-compatible text, with the published openai client: whole, streamed, stopped, refused, abandoned."""

from __future__ import annotations

import base64
import io
import threading

import httpx
import numpy as np
import openai
import pytest
from oxygen_client import RobotClient
from PIL import Image
from serving.rig import SENTENCE, FakeRunner, Rig, observation, serve

from oxygen.core.config import EngineConfig

QUESTION = [{"role": "user", "content": "what are you doing?"}]


def client_of(rig: Rig, key: str = "none") -> openai.OpenAI:
    return openai.OpenAI(base_url=rig.http + "/v1", api_key=key, max_retries=0, timeout=60)


def test_whole_answer_with_frame_age_and_usage() -> None:
    with serve() as rig, RobotClient(rig.ws, "arm") as robot:
        robot.infer(observation(), frame_id=3)
        answer = client_of(rig).chat.completions.create(model="oxygen", messages=QUESTION, max_tokens=200)
        assert answer.choices[0].message.content == SENTENCE and answer.choices[0].finish_reason == "stop"
        assert answer.usage is not None and answer.usage.completion_tokens == len(SENTENCE.encode())
        assert answer.oxygen["session"] == "arm" and answer.oxygen["frame_id"] == 3 and answer.oxygen["age_s"] >= 0


def test_stream_equals_whole_and_ends_with_usage() -> None:
    with serve() as rig, RobotClient(rig.ws, "arm") as robot:
        robot.infer(observation())
        stream = client_of(rig).chat.completions.create(
            model="oxygen@arm", messages=QUESTION, max_completion_tokens=200, stream=True,
            stream_options={"include_usage": True},
        )  # fmt: skip
        chunks = list(stream)
        assert "".join(c.choices[0].delta.content or "" for c in chunks if c.choices) == SENTENCE
        assert chunks[-1].usage.completion_tokens == len(SENTENCE.encode())
        assert [c.choices[0].finish_reason for c in chunks if c.choices][-1] == "stop"


def test_stop_and_length() -> None:
    with serve() as rig, RobotClient(rig.ws, "arm") as robot:
        robot.infer(observation())
        create = client_of(rig).chat.completions.create
        stopped = create(model="oxygen", messages=QUESTION, max_tokens=200, stop=["cup", "left"])
        assert stopped.choices[0].message.content == SENTENCE.partition("cup")[0]
        assert stopped.choices[0].finish_reason == "stop"
        cut = create(model="oxygen", messages=QUESTION, max_tokens=4, temperature=0.7, top_p=0.9, seed=5)
        assert cut.choices[0].message.content == SENTENCE[:4] and cut.choices[0].finish_reason == "length"


def test_without_a_number_of_tokens_the_answer_fills_its_row_and_no_more() -> None:
    runner = FakeRunner()
    runner.sentence = "a" * 700
    with serve(runner) as rig, RobotClient(rig.ws, "arm") as robot:
        robot.infer(observation())
        create = client_of(rig).chat.completions.create
        room = runner.limits.tail_len - len("Question: what are you doing? Answer:")
        whole = create(model="oxygen", messages=QUESTION)
        assert whole.choices[0].finish_reason == "length" and len(whole.choices[0].message.content) == room
        assert len(create(model="oxygen", messages=QUESTION, max_tokens=room).choices[0].message.content) == room
        with pytest.raises(openai.BadRequestError, match=f"at most {room} after its prompt"):
            create(model="oxygen", messages=QUESTION, max_tokens=room + 1)


def test_models_name_each_robot() -> None:
    with serve() as rig, RobotClient(rig.ws, "arm"):
        assert [m.id for m in client_of(rig).models.list()] == ["oxygen", "oxygen@arm"]
        assert client_of(rig).models.retrieve("oxygen").id == "oxygen"
        with pytest.raises(openai.NotFoundError):
            client_of(rig).models.retrieve("gpt")


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"model": "gpt"}, "model"),
        ({"n": 2}, "n"),
        ({"temperature": 1000}, "temperature"),
        ({"max_tokens": 0}, "request.max_new_tokens"),
        ({"messages": []}, "messages"),
        ({"messages": [{"role": "system", "content": "hi"}]}, "messages"),
        ({"extra_body": {"kind": "poem"}}, "kind"),
        ({"extra_body": {"session": "nobody"}}, "session"),
    ],
)
def test_bad_requests_name_the_field(fields: dict, param: str) -> None:
    with serve() as rig, RobotClient(rig.ws, "arm") as robot:
        robot.infer(observation())
        request = {"model": "oxygen", "messages": QUESTION, **fields}
        with pytest.raises(openai.BadRequestError) as caught:
            client_of(rig).chat.completions.create(**request)
        assert caught.value.code == "invalid_input" and param in (caught.value.param or "")


def test_without_a_robot_there_is_nothing_to_ask() -> None:
    with serve() as rig:
        with pytest.raises(openai.ConflictError) as caught:
            client_of(rig).chat.completions.create(model="oxygen", messages=QUESTION)
        assert caught.value.code == "no_session"


def test_full_queue_is_429_with_a_retry_hint() -> None:
    runner = FakeRunner()
    runner.sentence, runner.round_s = "a" * 500, 0.01
    with serve(runner, max_session_texts=1) as rig, RobotClient(rig.ws, "arm") as robot:
        robot.infer(observation())
        robot.ask("talk for long", max_new_tokens=400)
        rig.until(lambda: rig.engine.stats().live_texts == 1)
        with pytest.raises(openai.RateLimitError) as caught:
            client_of(rig).chat.completions.create(model="oxygen", messages=QUESTION)
        assert int(caught.value.response.headers["retry-after"]) >= 1


def test_the_engines_own_refusal_is_429_too() -> None:
    runner = FakeRunner(max_texts=1)
    runner.sentence, runner.round_s = "a" * 500, 0.01
    config = EngineConfig(max_waiting_texts=0, debug=True)
    with serve(runner, config) as rig, RobotClient(rig.ws, "arm") as robot:
        robot.infer(observation())
        robot.ask("talk for long", max_new_tokens=400)
        rig.until(lambda: rig.engine.stats().live_texts == 1)
        with pytest.raises(openai.RateLimitError):
            client_of(rig).chat.completions.create(model="oxygen", messages=QUESTION)


@pytest.mark.parametrize("is_stream", [True, False])
def test_a_client_that_goes_away_frees_its_row(is_stream: bool) -> None:
    runner = FakeRunner()
    runner.sentence, runner.round_s = "a" * 590, 0.01
    with serve(runner) as rig, RobotClient(rig.ws, "arm") as robot:
        robot.infer(observation())
        body = {"model": "oxygen", "messages": QUESTION, "max_tokens": 500, "stream": is_stream}
        client = httpx.Client(timeout=60)

        def ask() -> None:
            try:
                with client.stream("POST", rig.http + "/v1/chat/completions", json=body) as response:
                    for _ in response.iter_lines():
                        break
            except httpx.HTTPError:
                return

        asking = threading.Thread(target=ask)
        asking.start()
        rig.until(lambda: rig.engine.stats().live_texts == 1)
        before = rig.engine.stats().counts.get("rounds", 0)
        if not is_stream:
            _abort(client)
        asking.join(30)
        client.close()
        rig.assert_idle()
        assert rig.engine.stats().counts["rounds"] - before < 100  # of 500
        assert rig.engine.stats().counts.get("cancelled") == 1


def _abort(client: httpx.Client) -> None:
    for connection in client._transport._pool.connections:
        connection._connection._network_stream.get_extra_info("socket").shutdown(2)


def test_next_frame_and_age_limits() -> None:
    with serve() as rig, RobotClient(rig.ws, "arm") as robot:
        robot.infer(observation(), frame_id=1)
        answers: list = []

        def ask() -> None:
            create = client_of(rig).chat.completions.create
            answers.append(create(model="oxygen", messages=QUESTION, max_tokens=5, extra_body={"frame": "next"}))

        asking = threading.Thread(target=ask)
        asking.start()
        rig.until(lambda: next(iter(rig.gateway.sessions)).live_texts)
        robot.infer(observation(), frame_id=2)
        asking.join(30)
        assert answers[0].oxygen["frame_id"] == 2


@pytest.mark.parametrize("is_stream", [True, False])
def test_an_answer_without_a_first_word_is_an_error(is_stream: bool) -> None:
    with serve() as rig, RobotClient(rig.ws, "arm") as robot:
        robot.infer(observation())
        fields = {"stream": is_stream, "extra_body": {"frame": "next", "deadline_s": 0.05}}
        with pytest.raises(openai.InternalServerError) as caught:
            client_of(rig).chat.completions.create(model="oxygen", messages=QUESTION, max_tokens=5, **fields)
        assert (caught.value.status_code, caught.value.code) == (504, "expired")


def test_pictures_of_its_own_are_read_without_a_robot() -> None:
    buffer = io.BytesIO()
    Image.fromarray(np.zeros((32, 48, 3), np.uint8)).save(buffer, "PNG")
    url = "data:image/png;base64," + base64.b64encode(buffer.getvalue()).decode()
    content = [{"type": "text", "text": "what is this?"}, *[{"type": "image_url", "image_url": {"url": url}}] * 2]
    with serve() as rig:
        create = client_of(rig).chat.completions.create
        fields = {"model": "oxygen", "max_tokens": 200, "extra_body": {"prompt": "look"}}
        answer = create(messages=[{"role": "user", "content": content}], **fields)
        assert answer.choices[0].message.content == SENTENCE
        for bad in ("http://127.0.0.1/x.png", "data:image/png;base64,AAAA", "file:///etc/passwd"):
            part = {"type": "image_url", "image_url": {"url": bad}}
            with pytest.raises(openai.BadRequestError):
                create(messages=[{"role": "user", "content": [part]}], **fields)


@pytest.mark.parametrize(
    "body", [b'{"a": NaN}', b'{"a":1,"a":2}', b"\xff\xfe", b"[" * 100_000, b"{", b"null", b"1e999"]
)
def test_bad_json_is_a_400(body: bytes) -> None:
    with serve() as rig:
        response = httpx.post(rig.http + "/v1/chat/completions", content=body)
        assert response.status_code == 400 and response.json()["error"]["code"] == "invalid_input"


def test_too_large_a_body_is_413_with_and_without_a_length() -> None:
    with serve(max_body_bytes=1000) as rig:
        for content in (b" " * 5000, iter([b" " * 600, b" " * 600])):
            response = httpx.post(rig.http + "/v1/chat/completions", content=content)
            assert response.status_code == 413 and "1000 bytes" in response.text
