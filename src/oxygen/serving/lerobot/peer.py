"""What one LeRobot client has told: its policy, its robot's features, its newest observation. State never crosses
peers.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from oxygen.core.errors import InvalidInput
from oxygen.core.tasks import ActionTask
from oxygen.processing.robots import Robot
from oxygen.serving.flight import Frame
from oxygen.serving.frames import robot_keys
from oxygen.serving.lerobot.pickles import Held
from oxygen.serving.sessions import Session

POLICIES = ("pi05", "pi0")
_KNOWN = ("act", "smolvla", "diffusion", "tdmpc", "vqbet", "pi0", "pi05", "groot")
_IMAGES, _STATE = "observation.images.", "observation.state"
_STILL = 1.0
_LARGEST = 1e100


@dataclass(slots=True)
class Timed:
    """One observation as the client stamped it."""

    timestamp: float
    timestep: int
    must_go: bool
    observation: Mapping[str, Any]
    helpers: str


class Peer:
    """One client. Also the owner of its session: evicted when another client takes the same name."""

    def __init__(self, session: Session) -> None:
        self.session = session
        self.actions_per_chunk: int | None = None
        self.features: Mapping[str, Any] = {}
        self.rename: Mapping[str, str] = {}
        self.last_call = time.monotonic()
        self.evicted: str | None = None
        self._waiting: Timed | None = None
        self._arrived = asyncio.Event()
        self._done: deque[int] = deque(maxlen=4096)
        self._last: Timed | None = None

    def evict(self, reason: str) -> None:
        self.evicted = reason

    async def dismiss(self, reason: str) -> None:
        self.evicted = reason

    def restart(self) -> None:
        """Ready: as if the client had never been here."""
        self.actions_per_chunk, self.features, self.rename = None, {}, {}
        self._waiting, self._last = None, None
        self._arrived.clear()
        self._done.clear()

    def configure(self, config: Held) -> None:
        """Take the policy's settings. Raises InvalidInput: what is served here is not chosen by clients."""
        fields = config.fields
        policy, count = fields.get("policy_type"), fields.get("actions_per_chunk")
        if policy not in POLICIES:
            known = "another policy" if policy in _KNOWN else "an unknown policy"
            raise InvalidInput(
                "policy_type", f"{' or '.join(POLICIES)}, which this server runs", f"{known}: {policy!r}"[:120]
            )
        if type(count) is not int or count < 1:
            raise InvalidInput("actions_per_chunk", "an integer of at least 1", repr(count)[:80])
        features, rename = fields.get("lerobot_features") or {}, fields.get("rename_map") or {}
        if not isinstance(features, dict):
            raise InvalidInput("lerobot_features", "a map", type(features).__name__)
        if not isinstance(rename, dict) or not all(isinstance(name, str) for pair in rename.items() for name in pair):
            raise InvalidInput("rename_map", "a map of names", f"{rename!r:.80}")
        self.actions_per_chunk, self.features, self.rename = count, features, rename

    def offer(self, timed: Timed) -> str | None:
        """Keep the observation for the next GetActions, the newest only; or say why it is skipped.

        A change in a picture or in the instruction always counts: a robot at rest is not blind.
        """
        if self.actions_per_chunk is None:
            raise InvalidInput("SendPolicyInstructions", "to be called before observations", "an observation")
        if not timed.must_go:
            if timed.timestep in self._done:
                return "predicted"
            if self._last is not None and _is_still(self._last.observation, timed.observation):
                return "unchanged"
        self._waiting = timed
        self._arrived.set()
        return None

    async def take(self, timeout: float) -> Timed | None:
        """The newest observation, or None when none came."""
        try:
            await asyncio.wait_for(self._arrived.wait(), timeout)
        except TimeoutError:
            return None
        self._arrived.clear()
        timed, self._waiting = self._waiting, None
        if timed is not None:
            self._last = timed
            self._done.append(timed.timestep)
        return timed

    def frame(self, timed: Timed, robot: Robot) -> Frame:
        """LeRobot's raw observation under the robot's own keys. Raises InvalidInput."""
        raw: dict[str, Any] = {}
        for key, value in timed.observation.items():
            if isinstance(value, np.ndarray) and value.ndim == 3:
                name = self.rename.get(_IMAGES + key, _IMAGES + key)
                raw[name] = value
            elif key == "task" and isinstance(value, str):
                raw["task"] = value
        raw[_STATE] = self._state(timed.observation)
        return Frame(raw=robot_keys(raw, robot), action=ActionTask())

    def _state(self, observation: Mapping[str, Any]) -> np.ndarray:
        """Joints in the order that the client declared; without a declaration, in the order in which they came."""
        declared = self.features.get(_STATE)
        names = declared.get("names") if isinstance(declared, Mapping) else None
        if not isinstance(names, list | tuple) or not all(isinstance(name, str) for name in names):
            names = [k for k, v in observation.items() if isinstance(v, int | float) and not isinstance(v, bool)]
        missing = [name for name in names if not isinstance(observation.get(name), int | float)]
        if missing:
            raise InvalidInput(_STATE, f"numbers for {list(names)}"[:300], f"without {missing}"[:200])
        return np.array([observation[name] for name in names], dtype=np.float64)


def timed_observation(held: Held) -> Timed:
    """Read a TimedObservation. Raises InvalidInput."""
    fields = held.fields
    timestamp, timestep, observation = fields.get("timestamp"), fields.get("timestep"), fields.get("observation")
    if not isinstance(timestamp, int | float) or not abs(timestamp) < _LARGEST:
        raise InvalidInput("timestamp", "finite seconds", repr(timestamp)[:80])
    if type(timestep) is not int or not 0 <= timestep < 2**62:
        raise InvalidInput("timestep", "an integer of at least 0", repr(timestep)[:80])
    if not isinstance(observation, dict) or not all(isinstance(key, str) for key in observation):
        raise InvalidInput("observation", "a map with text keys", type(observation).__name__)
    for key, value in observation.items():
        if isinstance(value, int | float) and abs(value) > _LARGEST:
            raise InvalidInput(key[:80], f"a number of at most {_LARGEST:g}", f"{value!r:.80}")
    return Timed(float(timestamp), timestep, bool(fields.get("must_go", False)), observation, held.module)


def _is_still(before: Mapping[str, Any], now: Mapping[str, Any]) -> bool:
    """Joints moved by less than 1 (norm), and every picture and word is the same."""
    if before.keys() != now.keys():
        return False
    moved = 0.0
    for key, value in now.items():
        other = before[key]
        if isinstance(value, np.ndarray) or isinstance(other, np.ndarray):
            if not np.array_equal(value, other):
                return False
        elif isinstance(value, int | float) and isinstance(other, int | float):
            moved += (value - other) ** 2
        elif value != other:
            return False
    return moved < _STILL**2
