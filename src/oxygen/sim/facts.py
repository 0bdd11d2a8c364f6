"""What is true of the arm's scene, from simulator state alone, and the sentences that say it."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from oxygen.sim.tasks import TASKS, ArmTask

AT_OFFSET = 0.07
"""Horizontal metres between gripper and part beyond which it is never at the part (nor above it)."""
MOVED = 0.1
"""Change of extent since the start of the episode that counts as moved."""


@dataclass(frozen=True, slots=True)
class SceneFacts:
    """Truth about one frame.

    extent: joint position over its full travel (1 = open, pressed or down; negative = a faucet turned closed).
    start_extent: the same at the start of the episode. offset: gripper minus part, metres. done: the task has
    been accomplished in this episode.
    """

    task: str
    extent: float
    start_extent: float
    offset: tuple[float, float, float]
    done: bool

    @property
    def arm_task(self) -> ArmTask:
        return TASKS[self.task]

    @property
    def is_at(self) -> bool:
        horizontal = float(np.hypot(self.offset[0], self.offset[1]))
        return horizontal < AT_OFFSET and float(np.linalg.norm(self.offset)) < self.arm_task.mechanism.at_distance

    @property
    def is_above(self) -> bool:
        return not self.is_at and float(np.hypot(self.offset[0], self.offset[1])) < AT_OFFSET and self.offset[2] > 0

    @property
    def has_moved(self) -> bool:
        return abs(self.extent - self.start_extent) > MOVED

    @property
    def phase(self) -> int:
        """0 on the way to the part, 1 acting on it, 2 done."""
        if self.done:
            return 2
        return 1 if self.is_at or self.has_moved else 0

    @property
    def level(self) -> str:
        mechanism = self.arm_task.mechanism
        size = 0 if abs(self.extent) < 0.2 else 1 if abs(self.extent) < 0.8 else 2
        if mechanism.opposite is not None and self.extent < 0 and size > 0:
            return mechanism.opposite[size - 1]
        # Only a faucet has a far side; the small negative play of other joints is their zero.
        return mechanism.levels[size if self.extent > 0 else 0]

    @property
    def is_full(self) -> bool:
        return self.extent >= 0.8

    @property
    def is_clear(self) -> bool:
        """No fact lies so near a border that the words for it are a matter of taste (used to report both numbers)."""
        distance = float(np.linalg.norm(self.offset))
        horizontal = float(np.hypot(self.offset[0], self.offset[1]))
        near_border = abs(distance - self.arm_task.mechanism.at_distance) < 0.01 or abs(horizontal - AT_OFFSET) < 0.01
        between = min(abs(abs(self.extent) - 0.2), abs(abs(self.extent) - 0.8)) < 0.05
        return not (near_border or between)


def subtask(facts: SceneFacts) -> str:
    task = facts.arm_task
    return (f"move to the {task.mechanism.part}", task.doing, "stop, it is done")[facts.phase]


def narration(facts: SceneFacts) -> str:
    """One sentence about what was done and what comes next."""
    task = facts.arm_task
    part, noun = task.mechanism.part, task.mechanism.noun
    if facts.phase == 0:
        return f"i am moving the gripper to the {part}, and next i will {task.doing}."
    if facts.phase == 1 and not facts.has_moved:
        return f"i have reached the {part}, and now i start to {task.doing}."
    if facts.phase == 1:
        return f"i {task.doing}, the {noun} is {facts.level} now, and i keep going until it is done."
    return f"i did what you asked, {task.outcome}, and now i will hold still."


def memory(facts: SceneFacts) -> str:
    """What the scene holds and what state it is in."""
    mechanism = facts.arm_task.mechanism
    place = "at" if facts.is_at else "above" if facts.is_above else "away from"
    return f"the {mechanism.noun} is {facts.level}, the gripper is {place} the {mechanism.part}."


@dataclass(frozen=True, slots=True)
class Question:
    """A question with its true answer. topic groups questions that are balanced and scored together."""

    text: str
    answer: str
    topic: str

    @property
    def is_yes_no(self) -> bool:
        return self.answer in ("yes", "no")


NOUNS = ("button", "drawer", "faucet", "window", "handle")


def questions(facts: SceneFacts, other_noun: str, other_task: str) -> list[Question]:
    """Every question that can be asked of this frame. `other_noun` and `other_task` fill those whose answer is no."""
    task = facts.arm_task
    mechanism = task.mechanism

    def yes_no(text: str, truth: bool, topic: str) -> Question:
        return Question(text, "yes" if truth else "no", topic)

    asked = [
        yes_no(f"is the {mechanism.noun} {mechanism.adjective}?", facts.is_full, "extent"),
        yes_no("is the task done?", facts.done, "done"),
        yes_no(f"is the gripper at the {mechanism.part}?", facts.is_at, "at"),
        yes_no(f"has the {mechanism.noun} moved?", facts.has_moved, "moved"),
        yes_no(f"is there a {mechanism.noun}?", True, "scene"),
        yes_no(f"is there a {other_noun}?", other_noun == mechanism.noun, "scene"),
        yes_no(f"are you told to {task.instruction}?", True, "told"),
        yes_no(f"are you told to {TASKS[other_task].instruction}?", other_task == task.name, "told"),
        Question("what are you doing?", subtask(facts), "doing"),
        Question("which task is this?", task.instruction, "task"),
        Question(f"how is the {mechanism.noun}?", facts.level, "level"),
        Question("what is in front of you?", f"a {mechanism.noun}", "object"),
    ]
    if mechanism.adjective == "open":
        closed = facts.extent <= -0.8 if mechanism.opposite else abs(facts.extent) < 0.2
        asked.append(yes_no(f"is the {mechanism.noun} closed?", closed, "closed"))
    return asked
