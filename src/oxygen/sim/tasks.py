"""The eight tasks of the simulated arm, as plain data: environment, instruction, words, and what its joint means."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Mechanism:
    """What the arm acts on: its words and how far its joint travels.

    noun: the thing; part: what the gripper goes to; at_distance: metres between the two below which it is there.
    full: joint value (m or rad) that counts as extent 1.
    levels: words for extent below 0.2, between, and above 0.8; `opposite` the same for negative extents (a faucet turns
    both ways), or empty. adjective: the word of the question about the far end of the joint.
    """

    noun: str
    part: str
    at_distance: float
    full: float
    levels: tuple[str, str, str]
    adjective: str
    opposite: tuple[str, str] | None = None


BUTTON = Mechanism("button", "button", 0.075, -0.07, ("up", "half pressed", "pressed"), "pressed")
DRAWER = Mechanism("drawer", "drawer handle", 0.06, -0.15, ("closed", "half open", "open"), "open")
FAUCET = Mechanism(
    "faucet", "faucet handle", 0.085, 1.25, ("in the middle", "half open", "open"), "open", ("half closed", "closed")
)
WINDOW = Mechanism("window", "window handle", 0.115, 0.195, ("closed", "half open", "open"), "open")
HANDLE = Mechanism("handle", "handle", 0.05, -0.082, ("up", "half down", "down"), "down")


@dataclass(frozen=True, slots=True)
class ArmTask:
    """One task. `instruction` is what evaluation uses; `phrasings` are further words for it that training mixes in.

    doing / next_step: the acting phase as a subtask and inside a sentence. outcome: what is said when it is done.
    twin: the task with the opposite instruction in the same kind of scene, or None.
    """

    name: str
    env: str
    mechanism: Mechanism
    instruction: str
    phrasings: tuple[str, ...]
    doing: str
    outcome: str
    twin: str | None = None


TASKS: dict[str, ArmTask] = {
    task.name: task
    for task in (
        ArmTask(
            "button-press-topdown",
            "button-press-topdown-v3",
            BUTTON,
            "press the button",
            ("push the button down", "press the button from the top"),
            "press the button down",
            "the button is pressed",
        ),
        ArmTask(
            "drawer-open",
            "drawer-open-v3",
            DRAWER,
            "open the drawer",
            ("pull the drawer open", "please open the drawer"),
            "pull the drawer open",
            "the drawer is open",
            "drawer-close",
        ),
        ArmTask(
            "drawer-close",
            "drawer-close-v3",
            DRAWER,
            "close the drawer",
            ("push the drawer closed", "please close the drawer"),
            "push the drawer closed",
            "the drawer is closed",
            "drawer-open",
        ),
        ArmTask(
            "faucet-open",
            "faucet-open-v3",
            FAUCET,
            "open the faucet",
            ("turn the faucet open", "please open the faucet"),
            "turn the faucet open",
            "the faucet is open",
            "faucet-close",
        ),
        ArmTask(
            "faucet-close",
            "faucet-close-v3",
            FAUCET,
            "close the faucet",
            ("turn the faucet closed", "please close the faucet"),
            "turn the faucet closed",
            "the faucet is closed",
            "faucet-open",
        ),
        ArmTask(
            "window-open",
            "window-open-v3",
            WINDOW,
            "open the window",
            ("slide the window open", "please open the window"),
            "slide the window open",
            "the window is open",
            "window-close",
        ),
        ArmTask(
            "window-close",
            "window-close-v3",
            WINDOW,
            "close the window",
            ("slide the window closed", "please close the window"),
            "slide the window closed",
            "the window is closed",
            "window-open",
        ),
        ArmTask(
            "handle-press",
            "handle-press-v3",
            HANDLE,
            "press the handle down",
            ("push the handle down", "press down the handle"),
            "push the handle down",
            "the handle is down",
        ),
    )
}

TASK_NAMES: tuple[str, ...] = tuple(TASKS)

# Layout seeds. One block of 50 layouts per (task, block); blocks are disjoint by construction of the splits below.
LAYOUTS_PER_BLOCK = 50
TRAIN_SEEDS = range(50, 250)
DAGGER_SEEDS = range(1_000, 3_000)
SELECTION_SEEDS = range(4_000, 4_050)
DEMO_SEEDS = range(6_000, 6_050)
EVALUATION_SEEDS = range(50_000, 60_000)
