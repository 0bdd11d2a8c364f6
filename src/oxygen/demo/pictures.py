"""The demo's souvenirs: an animated GIF of what the cameras saw and what was said, and a plot of actions and ages."""

from __future__ import annotations

import textwrap
from pathlib import Path

import numpy as np
from PIL import Image, ImageDraw, ImageFont

from oxygen.demo.measure import Run
from oxygen.sim.drive import Look

SCALE = 2
NUM_LINES = 7
LINE_HEIGHT = 14
FRAME_MS = 90
LINE_CHARS = 76


class Filmstrip:
    """Collects pictures while the robot works; the words are added at the end, when they are known."""

    def __init__(self) -> None:
        self._shots: list[tuple[int, int, str, np.ndarray]] = []

    def add(self, run: Run, large: dict[str, np.ndarray], look: Look) -> None:
        """Keep one frame: both cameras side by side, [128, 256, 3] uint8."""
        picture = np.concatenate(list(large.values()), axis=1)
        frame = look.observation.frame_id or 0
        self._shots.append((len(run.episodes), frame, look.observation.prompt or "", picture))

    def write(self, path: Path, run: Run) -> None:
        """Write the GIF; every caption shows the newest words that had come by that frame."""
        font = ImageFont.load_default(size=11)
        images = []
        for episode, frame, prompt, picture in self._shots:
            lines = [f"task: {prompt}", *_captions(run, episode, frame)]
            images.append(_captioned(picture, lines, font))
        if not images:
            return
        palette = images[len(images) // 2].quantize(128)
        drawn = [image.quantize(128, palette=palette, dither=Image.Dither.NONE) for image in images]
        drawn[0].save(path, save_all=True, append_images=drawn[1:], duration=FRAME_MS, loop=0, optimize=True)


def _captions(run: Run, episode: int, frame: int) -> list[str]:
    lines = []
    for kind in ("subtask", "narration", "memory", "answer"):
        heard = [
            s for s in run.texts if s.episode == episode and s.kind == kind and s.frame + s.result.age_frames <= frame
        ]
        if heard:
            newest = max(heard, key=lambda s: s.frame)
            question = f"{newest.question} - " if newest.question else ""
            lines += textwrap.wrap(f"{kind}: {question}{newest.result.text}", LINE_CHARS, subsequent_indent="    ")
    return lines


def _captioned(
    picture: np.ndarray, lines: list[str], font: ImageFont.FreeTypeFont | ImageFont.ImageFont
) -> Image.Image:
    shown = Image.fromarray(picture).resize(
        (picture.shape[1] * SCALE, picture.shape[0] * SCALE), Image.Resampling.NEAREST
    )
    image = Image.new("RGB", (shown.width, shown.height + NUM_LINES * LINE_HEIGHT + 4), (16, 18, 24))
    image.paste(shown, (0, 0))
    draw = ImageDraw.Draw(image)
    for number, line in enumerate(lines[:NUM_LINES]):
        colour = (255, 255, 255) if number == 0 else (150, 220, 170)
        draw.text((4, shown.height + 2 + LINE_HEIGHT * number), line, fill=colour, font=font)
    return image


def plot(path: Path, runs: list[Run]) -> bool:
    """Actions of the first episode, and how old each text was when it was complete. False without matplotlib."""
    try:
        import matplotlib
    except ModuleNotFoundError:
        return False
    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, (top, bottom) = pyplot.subplots(2, 1, figsize=(9, 6.5), constrained_layout=True)
    first = runs[0].episodes[0]
    executed = np.concatenate([look.chunk[:5] for look in first.looks])
    for column, name in enumerate(("x", "y", "z", "gripper")):
        top.plot(executed[:, column], label=name, linewidth=1.2)
    top.set(title=f"actions: {first.instruction}", xlabel="control step", ylabel="action")
    top.legend(loc="upper right", ncols=4, fontsize=8)
    for run, marker in zip(runs, ("o", "x"), strict=False):
        for kind, colour in zip(("subtask", "narration", "memory", "answer"), ("C0", "C1", "C2", "C3"), strict=True):
            said = [s for s in run.texts if s.kind == kind]
            ages = [1e3 * s.result.age_s for s in said]
            bottom.scatter(
                range(len(ages)), ages, s=18, marker=marker, color=colour, alpha=0.7, label=f"{kind}, {run.mode}"
            )
    bottom.set(title="age of each text when complete", xlabel="text", ylabel="ms")
    bottom.legend(loc="upper right", ncols=2, fontsize=7)
    figure.savefig(path, dpi=110)
    pyplot.close(figure)
    return True
