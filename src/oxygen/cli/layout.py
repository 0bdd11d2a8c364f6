"""Sections of labelled lines on a terminal, or as plain text where the output is read by something else."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Section:
    """A title and (label, text) rows; a row may go without a label. style: colour of the title on a terminal."""

    title: str
    rows: Sequence[tuple[str, str]]
    style: str = "cyan"


def show(sections: Sequence[Section]) -> None:
    """Print sections on stdout: aligned and coloured on a terminal, `title: label: text` lines otherwise."""
    if sys.stdout.isatty():
        _show_rich(sections)
        return
    for section in sections:
        for label, text in section.rows:
            print(": ".join(part for part in (section.title, label, text) if part))


def _show_rich(sections: Sequence[Section]) -> None:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    console = Console(highlight=False)
    for section in sections:
        console.print(Text(section.title, style=f"bold {section.style}"))
        table = Table(box=None, show_header=False, padding=(0, 1, 0, 2), pad_edge=True)
        table.add_column(style="dim", no_wrap=True)
        table.add_column(overflow="fold")
        for label, text in section.rows:
            table.add_row(Text(label), Text(text))
        console.print(table)
