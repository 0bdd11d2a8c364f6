"""How results leave: a table and a last line of JSON on stdout, CSV, JSON and figures in a folder, progress on
stderr."""

from __future__ import annotations

import csv
import json
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

from oxygen.bench.machine import Machine, commit
from oxygen.bench.words import cautions, filled, heading, legend

Row = Mapping[str, Any]
TABLE_WIDTH = 240


class Estimated(Exception):
    """The benchmark was only asked how long it takes. seconds: its answer."""

    def __init__(self, seconds: float) -> None:
        super().__init__(f"{seconds:.0f} s")
        self.seconds = seconds


def minutes(seconds: float) -> str:
    """`40 s`, `3 min 20 s`."""
    whole = round(seconds)
    return f"{whole} s" if whole < 60 else f"{whole // 60} min {whole % 60} s"


@dataclass(slots=True)
class Report:
    """One benchmark's results. The printed table shows chosen columns (keys of `words.WORDS`), the files hold all."""

    bench: str
    config: dict[str, Any]
    machine: Machine
    command: str = ""
    out: Path | None = None
    rows: list[dict[str, Any]] = field(default_factory=list)
    extra: dict[str, Any] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    figures: list[Path] = field(default_factory=list)

    def note(self, text: str) -> None:
        """Say something at once, and keep it for the report."""
        self.notes.append(text)
        print(text, file=sys.stderr)

    def expect(self, seconds: float, is_asked: bool, what: str = "") -> None:
        """Say how long the run will take. Raises Estimated where only that was asked."""
        self.extra["expected_s"] = round(seconds, 3)
        print(f"{self.bench}: {what + ', ' if what else ''}about {minutes(seconds)}", file=sys.stderr)
        if is_asked:
            raise Estimated(seconds)

    def figure(self, name: str, draw: Callable[[Any], None]) -> None:
        """Draw a figure with matplotlib into the folder, if there is one; says what is missing otherwise."""
        if self.out is None:
            return
        from oxygen.bench import plot

        self.out.mkdir(parents=True, exist_ok=True)
        path = self.out / f"{self.bench}_{name}.png"
        said = (self.config.get(key) for key in ("model", "dtype", "robot"))
        missing = plot.draw(path, draw, f"{self.bench}: {', '.join(str(part) for part in said if part)}")
        if missing:
            self.note(missing)
        else:
            self.figures.append(path)

    def finish(self, columns: Sequence[str], title: str = "") -> dict[str, Any]:
        """Print the table and its legend, write the files, print the line of JSON; returns what the line holds."""
        for caution in cautions(self.rows):
            self.note(caution)
        columns = filled(columns, self.rows)
        record = {
            "bench": self.bench,
            "commit": commit(),
            "command": self.command,
            "machine": self.machine.end(),
            "config": self.config,
            "rows": self.rows,
            **self.extra,
            "notes": self.notes,
        }
        # As wide as the table is: a narrow terminal wraps lines, which is better than figures cut off.
        Console(width=TABLE_WIDTH).print(table(self.rows, columns, title or self.bench))
        print("\n".join(f"  {line}" for line in legend(columns, self.rows)))
        if self.out is not None:
            self.out.mkdir(parents=True, exist_ok=True)
            write_csv(self.out / f"{self.bench}.csv", self.rows)
            (self.out / f"{self.bench}.json").write_text(json.dumps(record, indent=1) + "\n")
            text = markdown(record, columns, [f.name for f in self.figures])
            (self.out / f"{self.bench}.md").write_text(text)
        print(json.dumps(record), flush=True)
        return record


def table(rows: Sequence[Row], columns: Sequence[str], title: str) -> Table:
    made = Table(title=title, title_justify="left")
    for key in columns:
        made.add_column(heading(key), justify="right", no_wrap=True)
    for row in rows:
        made.add_row(*(shown(row.get(key)) for key in columns))
    return made


def shown(value: Any) -> str:
    """A figure as people read it: four digits that count."""
    if value is None:
        return "-"
    if isinstance(value, bool | str | int):
        return str(value)
    if isinstance(value, float):
        if value == 0:
            return "0"
        return f"{value:.4g}" if abs(value) < 1000 else f"{value:.0f}"
    return str(value)


def write_csv(path: Path, rows: Sequence[Row]) -> None:
    names = list(dict.fromkeys(key for row in rows for key in row))
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, names)
        writer.writeheader()
        writer.writerows(rows)


def markdown(record: Mapping[str, Any], columns: Sequence[str], figures: Sequence[str]) -> str:
    """One section of a report: what ran where, the table, its legend, the notes, the figures."""
    machine, rows = record["machine"], record["rows"]
    config = ", ".join(f"{key} {value}" for key, value in record["config"].items() if value is not None)
    lines = [f"## {record['bench']}", "", f"`{record['command']}`", "", f"{config}.", ""]
    lines.append(
        f"Commit {record['commit']}; {machine['cpu']}, {machine['cores']} cores, {machine['gpu'] or 'no GPU'}, torch"
        f" {machine['torch']}, compiled kernels {machine['kernels']}, {machine['threads']} threads; other programs used"
        f" {machine['load_during']} cores."
    )
    lines += ["", "| " + " | ".join(map(heading, columns)) + " |", "|" + " ---: |" * len(columns)]
    lines += ["| " + " | ".join(shown(row.get(key)) for key in columns) + " |" for row in rows]
    lines += ["", *(f"* {note}" for note in record["notes"])]
    lines += ["", "<details><summary>What the columns mean</summary>", ""]
    lines += [*(f"* {line}" for line in legend(columns, rows)), "", "</details>"]
    lines += [f"\n![{name}]({name})" for name in figures]
    return "\n".join(lines).rstrip() + "\n"


@contextmanager
def progress(title: str, total: int) -> Iterator[Callable[[int], None]]:
    """A progress bar on stderr; gives a function that counts on."""
    shown_as = [TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn()]
    console = Console(stderr=True)
    # Redrawing by a thread would take time from what is measured.
    with Progress(*shown_as, console=console, auto_refresh=False, disable=not console.is_terminal) as bar:
        task = bar.add_task(title, total=total)

        def advance(count: int = 1) -> None:
            bar.update(task, advance=count, refresh=True)

        yield advance
