"""The doors on a real, tiny model: its chunks through the socket are its chunks in process; many robots; the
examples.
"""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from oxygen_client import RobotClient
from serving.rig import observation

from oxygen.core.config import EngineConfig
from oxygen.core.tasks import ActionTask
from oxygen.engine.engine import Engine
from oxygen.serving.open import open_engine
from oxygen.serving.server import BackgroundServer
from oxygen.serving.settings import ServeSettings

EXAMPLES = Path(__file__).parents[2] / "examples"


@pytest.fixture(scope="module")
def engine() -> Iterator[Engine]:
    engine = open_engine("pi05-tiny", config=EngineConfig(debug=True), max_contexts=140, max_texts=70, tail_len=96)
    while engine.status == "warming":
        threading.Event().wait(0.01)
    yield engine
    engine.close()


@pytest.fixture
def server(engine: Engine) -> Iterator[BackgroundServer]:
    with BackgroundServer(engine, ServeSettings(port=0, drain_s=2.0)) as server:
        yield server


def test_chunks_through_the_socket_are_those_in_process(engine: Engine, server: BackgroundServer) -> None:
    noise = np.random.default_rng(0).standard_normal((10, 32)).astype(np.float32)
    with RobotClient(f"ws://{server.address}", "arm") as robot:
        for seed in range(2):
            wanted = engine.submit(engine.processor.parse(observation(seed)), ActionTask(noise=noise)).actions(20)
            chunk = robot.infer(observation(seed), noise=noise, timeout=60)
            np.testing.assert_array_equal(chunk.actions, wanted.actions)


def test_actions_and_text_after_a_reset_are_those_of_a_fresh_session(server: BackgroundServer) -> None:
    noise = np.random.default_rng(0).standard_normal((10, 32)).astype(np.float32)
    tasks = [{"kind": "narration", "max_new_tokens": 12}]

    def first(robot: RobotClient) -> tuple[np.ndarray, str]:
        chunk = robot.infer(observation(5), tasks, noise=noise, frame_id=0, timeout=60)
        return chunk.actions, robot.text(chunk.text_ids[0]).result(60)

    with RobotClient(f"ws://{server.address}", "fresh") as fresh, RobotClient(f"ws://{server.address}", "used") as used:
        wanted = first(fresh)
        for seed in range(3):
            used.infer(observation(seed), [{"kind": "narration", "max_new_tokens": 60}], frame_id=seed, timeout=60)
        used.reset()
        actions, text = first(used)
        np.testing.assert_array_equal(actions, wanted[0])
        assert text == wanted[1]


def test_sixty_four_robots_at_once(engine: Engine, server: BackgroundServer) -> None:
    noise = np.random.default_rng(1).standard_normal((10, 32)).astype(np.float32)
    alone = engine.submit(engine.processor.parse(observation(1)), ActionTask(noise=noise)).actions(20).actions
    url, failures = f"ws://{server.address}", []
    start = threading.Barrier(64)

    def work(index: int) -> None:
        try:
            with RobotClient(url, f"robot-{index}") as robot:
                start.wait(60)
                for frame_id in range(2):
                    tasks = [{"kind": "narration", "max_new_tokens": 6}] if index % 4 == frame_id else []
                    chunk = robot.infer(observation(1), tasks, noise=noise, frame_id=frame_id, timeout=60)
                    np.testing.assert_allclose(chunk.actions, alone, rtol=1e-4, atol=1e-5)
                for text_id in chunk.text_ids:
                    robot.text(text_id).result(60)
        except BaseException as error:
            failures.append(error)

    robots = [threading.Thread(target=work, args=(i,)) for i in range(64)]
    for robot in robots:
        robot.start()
    for robot in robots:
        robot.join(120)
    assert not failures, failures[0]
    stats = engine.stats()
    assert stats.status == "ready" and stats.live_texts == stats.tail_rows == 0


@pytest.mark.parametrize(
    ("script", "arguments", "wanted"),
    [
        ("robot_openpi.py", ["--port", "{port}", "--steps", "12"], "narration of frame 0"),
        ("robot_oxygen.py", ["--url", "ws://127.0.0.1:{port}", "--seconds", "3"], "actions executed"),
    ],
)
def test_the_examples_run(server: BackgroundServer, script: str, arguments: list[str], wanted: str) -> None:
    filled = [a.format(port=server.port) for a in arguments]
    environment = {"PYTHONPATH": ":".join(sys.path), "PATH": "/usr/bin:/bin"}
    done = subprocess.run(
        [sys.executable, str(EXAMPLES / script), *filled], capture_output=True, text=True, timeout=60, env=environment
    )
    assert done.returncode == 0 and wanted in done.stdout, done.stdout + done.stderr


def test_the_asking_example_prints_an_answer_and_its_frame(server: BackgroundServer) -> None:
    with RobotClient(f"ws://{server.address}", "arm") as robot:
        robot.infer(observation(), frame_id=1007, timeout=60)
        command = [sys.executable, str(EXAMPLES / "ask.py"), "why?", "--url", f"http://{server.address}/v1"]
        environment = {"PYTHONPATH": ":".join(sys.path), "PATH": "/usr/bin:/bin"}
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, env=environment)
    assert done.returncode == 0 and "about frame 1007" in done.stdout, done.stdout + done.stderr
