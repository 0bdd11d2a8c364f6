"""The dashboard in a real headless Chromium: it draws what the robot sees and does, and the chat box talks to it."""

from __future__ import annotations

import contextlib
import os
import shutil
import threading
from collections.abc import Iterator
from pathlib import Path

import httpx
import numpy as np
import pytest
from oxygen_client import RobotClient, ServerError
from serving.rig import SENTENCE, FakeRunner, Rig, serve

selenium = pytest.importorskip("selenium.webdriver")
if shutil.which("chromium") is None or shutil.which("chromedriver") is None:
    pytest.skip("no Chromium on this machine", allow_module_level=True)

from selenium.webdriver.chrome.options import Options  # noqa: E402
from selenium.webdriver.chrome.service import Service  # noqa: E402
from selenium.webdriver.common.by import By  # noqa: E402
from selenium.webdriver.support.ui import WebDriverWait  # noqa: E402

FLAGS = """--headless --no-sandbox --disable-gpu --disable-quic --no-first-run --disable-background-networking
--disable-component-update --disable-sync --window-size=1400,1000 --hide-scrollbars --force-device-scale-factor=1"""
SHOTS = os.environ.get("OXYGEN_SCREENSHOTS")


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[object]:
    options = Options()
    options.binary_location = shutil.which("chromium")
    for flag in (*FLAGS.split(), f"--user-data-dir={tmp_path_factory.mktemp('chromium')}"):
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    driver = selenium.Chrome(options=options, service=Service(shutil.which("chromedriver")))
    yield driver
    driver.quit()


@pytest.fixture
def rig() -> Iterator[Rig]:
    runner = FakeRunner()
    runner.act_s, runner.round_s = 0.01, 0.004
    with serve(runner) as rig:
        yield rig


class Robot:
    """A robot at work in the background: a picture that moves, a state that changes, narration now and then."""

    def __init__(self, rig: Rig, name: str) -> None:
        self.client = RobotClient(rig.ws, name)
        self.client.connect()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> Robot:
        self._thread.start()
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._stop.set()
        self._thread.join(30)
        self.client.close()

    def _run(self) -> None:
        y, x = np.mgrid[:224, :224]
        step = 0
        while not self._stop.wait(0.04):
            base = np.stack([x, y, 255 - (x + y) // 2], -1).astype(np.uint8)
            base[60:120, (3 * step) % 160 : (3 * step) % 160 + 60] = (235, 104, 52)
            frame = {"observation/image": base, "observation/wrist_image": base[::-1].copy()}
            frame |= {
                "observation/state": np.sin(step / 9 + np.arange(8)),
                "prompt": "put the orange block into the bowl",
            }
            tasks = ["subtask", {"kind": "narration", "max_new_tokens": 100}] if step % 12 == 0 else []
            noise = np.cumsum(np.random.default_rng(step // 9).standard_normal((10, 32)) / 3, axis=0)
            with contextlib.suppress(ServerError):  # a reset from the page ends the frame under way
                self.client.infer(frame, tasks, frame_id=step, noise=noise.astype(np.float32), timeout=60)
            step += 1


def test_it_draws_cameras_curves_text_steps_and_figures_and_chats(browser: object, rig: Rig) -> None:
    with Robot(rig, "arm-1"), Robot(rig, "arm-2"):
        browser.get(rig.http)
        wait = WebDriverWait(browser, 60)
        wait.until(lambda d: d.find_element(By.ID, "status").text == "ready")
        wait.until(lambda d: len(d.find_elements(By.CSS_SELECTOR, "#sessions button")) == 2)
        wait.until(lambda d: all(_width(i) == 224 for i in d.find_elements(By.CSS_SELECTOR, "#cameras img")))
        assert len(browser.find_elements(By.CSS_SELECTOR, "#cameras img")) == 2
        wait.until(lambda d: len(d.find_elements(By.CSS_SELECTOR, "#curves .curve")) == 7)
        assert "end-effector position x" in browser.find_element(By.ID, "curves").text
        wait.until(lambda d: SENTENCE.strip() in d.find_element(By.ID, "texts").text)
        assert "frames" in browser.find_element(By.ID, "texts").text
        wait.until(lambda d: float(d.find_element(By.ID, "fps").text) > 1)
        wait.until(lambda d: float(d.find_element(By.ID, "tps").text) > 1)
        assert browser.find_element(By.ID, "budget").text == "idle"
        wait.until(lambda d: _inked(d) > 200)
        question = browser.find_element(By.ID, "question")
        question.send_keys("What are you doing?\n")
        wait.until(lambda d: "about frame" in d.find_element(By.ID, "talk").text)
        assert SENTENCE.strip() in browser.find_element(By.ID, "talk").text
        _shoot(browser, "light")
        browser.find_element(By.ID, "theme").click()
        assert browser.execute_script("return getComputedStyle(document.body).backgroundColor") == "rgb(18, 18, 17)"
        wait.until(lambda d: _inked(d) > 200)
        _shoot(browser, "dark")
        browser.set_window_size(420, 900)
        width = browser.execute_script(
            "return document.documentElement.scrollWidth - document.documentElement.clientWidth"
        )
        assert width == 0
        _shoot(browser, "narrow")
        browser.set_window_size(1400, 1000)
        buttons = browser.find_elements(By.CSS_SELECTOR, "#sessions button")
        buttons[1].click()
        wait.until(
            lambda d: d.find_elements(By.CSS_SELECTOR, "#sessions button")[1].get_attribute("aria-pressed") == "true"
        )
    assert not [e for e in browser.get_log("browser") if e["level"] == "SEVERE"]


def test_without_robots_and_after_the_server_is_gone_it_says_so(browser: object) -> None:
    with serve() as rig:
        browser.get(rig.http)
        wait = WebDriverWait(browser, 60)
        wait.until(lambda d: d.find_element(By.ID, "empty").is_displayed())
        assert not browser.find_element(By.TAG_NAME, "main").is_displayed()
        rig.server.stop()
        wait.until(lambda d: d.find_element(By.ID, "status").text == "unreachable")


def test_pictures_files_and_figures_by_plain_requests(rig: Rig) -> None:
    with Robot(rig, "arm"):
        rig.until(lambda: rig.gateway.sessions.find(None).action is not None)
        picture = httpx.get(rig.http + "/v1/sessions/arm/cameras/image")
        assert picture.headers["content-type"] == "image/jpeg" and picture.content[:2] == b"\xff\xd8"
        assert httpx.get(rig.http + "/v1/sessions/arm/cameras/none").status_code == 404
        assert httpx.get(rig.http + "/v1/sessions/nobody/cameras/image").status_code == 404
        for name in ("..%2fcommand.py", "../command.py", "none.js", ".hidden.js"):
            assert httpx.get(rig.http + "/static/" + name).status_code == 404
        state = httpx.get(rig.http + "/v1/dashboard").json()
        assert state["condition"]["status"] == "ready" and state["sessions"][0]["name"] == "arm" and state["steps"]
        last = state["steps"][-1]["step"]
        assert all(s["step"] > last for s in httpx.get(rig.http + f"/v1/dashboard?after={last}").json()["steps"])
        assert httpx.post(rig.http + "/v1/sessions/arm/reset").json() == {"reset": True, "session": "arm"}


def _width(image: object) -> int:
    return int(image.get_property("naturalWidth"))


def _inked(driver: object) -> int:
    """Pixels of the timeline that hold a bar's colour."""
    script = """
    const canvas = document.getElementById('steps'), pen = canvas.getContext('2d');
    const data = pen.getImageData(50, 0, canvas.width - 50, canvas.height - 24).data;
    let count = 0;
    for (let i = 0; i < data.length; i += 4) {
        const [r, g, b, a] = data.slice(i, i + 4);
        if (a > 200 && Math.max(r, g, b) - Math.min(r, g, b) > 60) count++;
    }
    return count;"""
    return int(driver.execute_script(script))


def _shoot(driver: object, name: str) -> None:
    if SHOTS:
        driver.save_screenshot(str(Path(SHOTS) / f"{name}.png"))
