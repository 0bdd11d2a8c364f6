"""The demo's film: an animated GIF of what the cameras saw and what was said by then."""

from __future__ import annotations

import textwrap
from pathlib import Path

import numpy as np
from PIL import Image, ImageDraw, ImageFont

from oxygen.demo.measure import Run
from oxygen.sim.drive import Look

SCALE = 2
NUM_LINES = 7
LINE_HEIGHT = 15
FRAME_MS = 90
LINE_CHARS = 78


class Filmstrip:
    """Collects pictures while the robot works; the words are added at the end, when they are known."""

    def __init__(self) -> None:
        self._shots: list[tuple[int, int, str, np.ndarray]] = []
        self._cameras: tuple[str, ...] = ()

    def add(self, run: Run, large: dict[str, np.ndarray], look: Look) -> None:
        """Keep one frame: both cameras side by side, [128, 256, 3] uint8."""
        self._cameras = tuple(large)
        picture = np.concatenate(list(large.values()), axis=1)
        frame = look.observation.frame_id or 0
        self._shots.append((len(run.episodes), frame, look.observation.prompt or "", picture))

    def write(self, path: Path, run: Run) -> None:
        """Write the GIF; every caption shows the newest words that had come by that frame."""
        font = ImageFont.load_default(size=12)
        images = []
        for episode, frame, prompt, picture in self._shots:
            lines = [f"task: {prompt}   (camera frame {frame}, {run.mode})", *_captions(run, episode, frame)]
            images.append(_captioned(picture, self._cameras, lines, font))
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
            question = f"{newest.question} " if newest.question else ""
            words = f"{kind}, of frame {newest.frame}: {question}{newest.result.text}"
            lines += textwrap.wrap(words, LINE_CHARS, subsequent_indent="    ")
    return lines


def _captioned(
    picture: np.ndarray,
    cameras: tuple[str, ...],
    lines: list[str],
    font: ImageFont.FreeTypeFont | ImageFont.ImageFont,
) -> Image.Image:
    shown = Image.fromarray(picture).resize(
        (picture.shape[1] * SCALE, picture.shape[0] * SCALE), Image.Resampling.NEAREST
    )
    image = Image.new("RGB", (shown.width, shown.height + NUM_LINES * LINE_HEIGHT + 4), (16, 18, 24))
    image.paste(shown, (0, 0))
    draw = ImageDraw.Draw(image)
    for number, name in enumerate(cameras):
        at = (4 + number * shown.width // len(cameras), 2)
        draw.text(at, f"{name} camera", fill=(255, 255, 255), font=font, stroke_width=1, stroke_fill=(0, 0, 0))
    for number, line in enumerate(lines[:NUM_LINES]):
        colour = (255, 255, 255) if number == 0 else (150, 220, 170)
        draw.text((4, shown.height + 2 + LINE_HEIGHT * number), line, fill=colour, font=font)
    return image
