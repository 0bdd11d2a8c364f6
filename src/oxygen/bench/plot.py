"""Figures, with matplotlib where it is installed (extra `bench`). Colours and marks are the same in all of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

COLOURS = {
    "isolated": "#8c8c8c",
    "parallel": "#b08d57",
    "shared": "#5b8db8",
    "oxygen": "#c0392b",
    "upper_bound": "#3c763d",
}
MARKS = {"isolated": "s", "parallel": "D", "shared": "^", "oxygen": "o", "upper_bound": "x"}
NAMES = {
    "isolated": "isolated, sequential",
    "parallel": "isolated, parallel",
    "shared": "shared prefill only",
    "oxygen": "OxyGen",
    "upper_bound": "single-frame bound",
}


def draw(path: Path, paint: Callable[[Any], None], title: str) -> str:
    """Let `paint` draw on a figure and save it; returns what is missing, or an empty string."""
    try:
        from matplotlib.figure import Figure
    except ImportError:
        return f"{path.name}: not drawn, matplotlib is missing (pip install 'oxygen-vla[bench]')"
    figure = Figure(figsize=(7.2, 4.4), layout="constrained")
    figure.suptitle(title, fontsize="medium")
    paint(figure)
    figure.savefig(path, dpi=140)
    return ""


def legend(figure: Any, axes: Any, columns: int = 3) -> None:
    """Below the axes: it never lies on what is drawn."""
    marks, names = axes.get_legend_handles_labels()
    figure.legend(marks, names, loc="outside lower center", ncols=columns, frameon=False)


def bars(axes: Any, rows: Sequence[Mapping[str, Any]], key: str, label: str) -> list[str]:
    """A bar for every mode, with its value, and its spread where there is one; returns the names of the bars."""
    names = [NAMES[r["mode"]] + (f", k = {r['k']}" if r["k"] else "") for r in rows]
    spreads = [(r.get(f"{key}_spread") or 0) / 2 for r in rows]
    drawn = axes.barh(names, [r[key] for r in rows], color=[COLOURS[r["mode"]] for r in rows], xerr=spreads)
    axes.bar_label(drawn, [f"{r[key]:.4g}" for r in rows], padding=4, fontsize="small")
    axes.margins(x=0.15)
    axes.set_xlim(left=0)
    axes.invert_yaxis()
    axes.set_xlabel(label)
    return names


def lines(
    axes: Any, rows: Sequence[Mapping[str, Any]], x: str, y: str, *, label: str = "", mode: str = "oxygen"
) -> None:
    """One line through rows, in order of x."""
    points = sorted((r[x], r[y]) for r in rows if r.get(x) is not None and r.get(y) is not None)
    if points:
        xs, ys = zip(*points, strict=True)
        axes.plot(xs, ys, marker=MARKS.get(mode, "o"), color=COLOURS.get(mode), label=label or NAMES.get(mode, mode))


def heat(axes: Any, values: Sequence[Sequence[float | None]], xs: Sequence[Any], ys: Sequence[Any], title: str) -> None:
    """A map of numbers, each written into its cell."""
    shown = [[float("nan") if v is None else v for v in line] for line in values]
    axes.imshow(shown, cmap="OrRd", aspect="auto")
    axes.set_xticks(range(len(xs)), [str(x) for x in xs])
    axes.set_yticks(range(len(ys)), [str(y) for y in ys])
    axes.set_title(title)
    known = [v for line in values for v in line if v is not None]
    middle = (min(known) + max(known)) / 2 if known else 0.0
    for i, line in enumerate(values):
        for j, value in enumerate(line):
            if value is not None:
                colour = "white" if value > middle else "black"
                axes.text(j, i, f"{value:.2f}", ha="center", va="center", color=colour)


def shades(count: int) -> list[tuple[float, float, float]]:
    """Reds from light to dark, for lines of one mode."""
    return [
        (0.95 - 0.45 * i / max(1, count - 1), 0.55 * (1 - (i + 1) / count), 0.35 * (1 - (i + 1) / count))
        for i in range(count)
    ]
