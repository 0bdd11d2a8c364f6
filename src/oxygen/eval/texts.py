"""Whether what the policy said of a frame is true of that frame."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

import numpy as np

from oxygen.core.tasks import Observation, TextTask
from oxygen.eval.counts import Count, count
from oxygen.sim.drive import Door, Look
from oxygen.sim.facts import NOUNS, Question, SceneFacts, memory, narration, questions, subtask
from oxygen.sim.tasks import TASK_NAMES

TRUTH = {"subtask": subtask, "narration": narration, "memory": memory}
MAX_TOKENS = {"subtask": 12, "narration": 32, "memory": 24, "answer": 16}
ANSWER_TIMEOUT_S = 60.0


@dataclass(slots=True)
class TextScores:
    """Exact sentences by kind; `clear` counts only frames whose facts are not within a hair of a rule's border."""

    exact: dict[str, list[bool]] = field(default_factory=lambda: defaultdict(list))
    clear: dict[str, list[bool]] = field(default_factory=lambda: defaultdict(list))

    def add(self, look: Look) -> None:
        for text in look.answer.texts:
            said = text.result(ANSWER_TIMEOUT_S).text
            is_right = said == TRUTH[text.kind](look.facts)
            self.exact[text.kind].append(is_right)
            if look.facts.is_clear:
                self.clear[text.kind].append(is_right)

    def counts(self) -> dict[str, tuple[Count, Count]]:
        return {kind: (count(flags), count(self.clear[kind])) for kind, flags in self.exact.items()}


@dataclass(frozen=True, slots=True, eq=False)
class Asked:
    """A question put to one frame."""

    observation: Observation
    facts: SceneFacts
    question: Question


def all_questions(looks: Iterable[Look], seed: int) -> list[Asked]:
    """Every question of every frame, those with another noun or task drawn from `seed`."""
    rng = np.random.default_rng(seed)
    asked = []
    for look in looks:
        noun, task = NOUNS[rng.integers(len(NOUNS))], TASK_NAMES[rng.integers(len(TASK_NAMES))]
        asked += [Asked(look.observation, look.facts, q) for q in questions(look.facts, noun, task)]
    return asked


def balanced(asked: list[Asked], per_answer: int, seed: int) -> list[Asked]:
    """As many with the answer yes as with no in every topic: at most `per_answer` of each, drawn from `seed`."""
    rng = np.random.default_rng(seed)
    groups: dict[tuple[str, str], list[Asked]] = defaultdict(list)
    for one in asked:
        if one.question.is_yes_no:
            groups[(one.question.topic, one.question.answer)].append(one)
    chosen: list[Asked] = []
    for topic in sorted({topic for topic, _ in groups}):
        sides = [groups[(topic, answer)] for answer in ("yes", "no")]
        size = min(per_answer, *(len(side) for side in sides))
        for side in sides:
            chosen += [side[i] for i in rng.permutation(len(side))[:size]]
    return chosen


def open_questions(asked: list[Asked], per_topic: int, seed: int) -> list[Asked]:
    """Questions with other answers than yes and no, at most `per_topic` of each topic."""
    rng = np.random.default_rng(seed)
    groups: dict[str, list[Asked]] = defaultdict(list)
    for one in asked:
        if not one.question.is_yes_no:
            groups[one.question.topic].append(one)
    return [group[i] for _, group in sorted(groups.items()) for i in rng.permutation(len(group))[:per_topic]]


def ask(door: Door, asked: list[Asked]) -> Mapping[str, Count]:
    """Put every question to its frame (text only); right answers by topic."""
    flags: dict[str, list[bool]] = defaultdict(list)
    for one in asked:
        task = TextTask("answer", question=one.question.text, max_new_tokens=MAX_TOKENS["answer"])
        answer = door.submit(one.observation, None, (task,))
        said = answer.texts[0].result(ANSWER_TIMEOUT_S).text
        flags[one.question.topic].append(said == one.question.answer)
    return {topic: count(found) for topic, found in flags.items()}
