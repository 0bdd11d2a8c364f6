"""What the demo asks of every frame: a subtask always, and other texts in turn, so that text spans frames."""

from __future__ import annotations

from collections.abc import Sequence

from oxygen.core.tasks import TextTask
from oxygen.sim.drive import Wanted
from oxygen.sim.tasks import TASKS


def operator_questions(task: str) -> tuple[str, ...]:
    """What a person beside this scene might ask, in the words that the policy was taught."""
    mechanism = TASKS[task].mechanism
    return (
        "what are you doing?",
        f"is the {mechanism.noun} {mechanism.adjective}?",
        f"is the gripper at the {mechanism.part}?",
        "which task is this?",
        "is the task done?",
    )


def wanted_texts(task: str) -> Wanted:
    """Texts of the n-th frame: one to three of them."""
    questions = operator_questions(task)

    def wanted(frame: int) -> Sequence[TextTask]:
        texts = [TextTask("subtask", max_new_tokens=12)]
        if frame % 3 == 0:
            texts.append(TextTask("narration", max_new_tokens=32))
        if frame % 3 == 1:
            texts.append(TextTask("memory", max_new_tokens=24))
        if frame % 4 == 2:
            texts.append(TextTask("answer", question=questions[frame // 4 % len(questions)], max_new_tokens=16))
        return texts

    return wanted
