"""Shows the rows of a benchmark as a table with progress, and saves them as CSV and Markdown."""

from __future__ import annotations

import csv
import os
import platform
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import date
from pathlib import Path

import torch
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

Value = float | int | str | None
Row = Mapping[str, Value]
Say = Callable[[str], None]


@dataclass(frozen=True)
class Field:
    """One column on screen: the `key` of a row under a `heading`, printed with `style` ("{:.2f}", say)."""

    key: str
    heading: str
    style: str = "{}"

    def text(self, row: Row) -> str:
        """The cell of `row`; a dash where it has no value."""
        value = row.get(self.key)
        return "-" if value is None else self.style.format(value)


def number(row: Row, key: str) -> float:
    """The figure under `key`; raises TypeError where the row has none."""
    value = row.get(key)
    if not isinstance(value, (int, float)):
        raise TypeError(f"{key} is {value!r} in a row that needs a figure")
    return float(value)


def hardware(device: str = "cpu") -> str:
    """What a figure was measured on, in one line: processor, cores, threads, torch, date."""
    if device != "cpu":
        name = torch.cuda.get_device_name(device)
    else:
        name = f"{processor()}, {os.cpu_count()} cores, torch threads {torch.get_num_threads()}"
    return f"{name}; torch {torch.__version__}, Python {platform.python_version()}; {date.today().isoformat()}"


def processor() -> str:
    """The name that the system gives the processor."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()


def show(console: Console, title: str, fields: Sequence[Field], rows: Sequence[Row]) -> None:
    """Prints the rows, figures to the right, headings one word a line so that 80 columns are enough."""
    shown = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for index, field in enumerate(fields):
        heading = field.heading.replace(" ", "\n")
        shown.add_column(heading, justify="right" if index else "left", header_style="dim", no_wrap=True)
    for row in rows:
        shown.add_row(*(field.text(row) for field in fields))
    console.print(title, style="bold", highlight=False, soft_wrap=True)
    console.print(shown)


def told(fields: Sequence[Field], row: Row) -> str:
    """One row as a line of its own: each figure with its heading."""
    first, *others = fields
    return ", ".join([first.text(row), *(f"{field.heading} {field.text(row)}" for field in others)])


def markdown(title: str, fields: Sequence[Field], rows: Sequence[Row], caption: str) -> str:
    """The same table for a document, between its title and a caption that says what it was measured on."""
    lines = [" | ".join(field.heading for field in fields), " | ".join("---:" for _ in fields)]
    lines += [" | ".join(field.text(row) for field in fields) for row in rows]
    return f"**{title}**\n\n" + "\n".join(f"| {line} |" for line in lines) + f"\n\n{caption}\n"


def save(folder: Path, name: str, title: str, fields: Sequence[Field], rows: Sequence[Row], caption: str) -> list[Path]:
    """Writes `name`.csv with every value of every row, and `name`.md with the fields shown; returns both paths."""
    folder.mkdir(parents=True, exist_ok=True)
    sheet, text = folder / f"{name}.csv", folder / f"{name}.md"
    keys = list(dict.fromkeys(key for row in rows for key in row))
    with sheet.open("w", newline="") as file:
        writer = csv.DictWriter(file, [*keys, "measured_on"])
        writer.writeheader()
        for row in rows:
            writer.writerow({**row, "measured_on": caption})
    text.write_text(markdown(title, fields, rows, caption))
    return [sheet, text]


@contextmanager
def progress(console: Console, total: int) -> Iterator[Say]:
    """A progress bar of `total` steps; the function it gives names the step that begins."""
    parts = (TextColumn("{task.description:<44}"), BarColumn(24), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*parts, console=console, transient=True) as bar:
        task = bar.add_task("", total=total)
        begun = False

        def say(step: str) -> None:
            nonlocal begun
            bar.update(task, advance=int(begun), description=step)
            begun = True

        yield say
