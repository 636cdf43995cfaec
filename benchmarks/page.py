"""Writes what benchmarks have measured into docs/performance.md: tables with machine, versions and date, and the curve.

A section of the page stands between `<!-- NAME: COMMAND -->` and `<!-- end -->`. What COMMAND wrote into its folder for
NAME takes its place; sections that nothing was measured for stay. On another device the names have that device behind
them: `models cuda`.
"""

from __future__ import annotations

import argparse
import csv
import re
from collections.abc import Mapping
from pathlib import Path

from benchmarks.calls.curve import plot
from benchmarks.harness.processes import ROOT
from benchmarks.harness.report import Row, Value

PAGE = ROOT / "docs" / "performance.md"
PICTURE = ROOT / "docs" / "curve.svg"
SECTION = re.compile(
    r"(?P<open><!-- (?P<name>[^:\n]+): (?P<command>[^\n]+) -->\n)(?P<text>.*?)(?P<close><!-- end -->)", re.DOTALL
)


def sections(page: str) -> dict[str, str]:
    """The command of each section of a page, by its name."""
    return {section["name"]: section["command"] for section in SECTION.finditer(page)}


def replaced(page: str, texts: Mapping[str, str]) -> str:
    """The page with these texts in the sections of their names."""

    def fill(section: re.Match[str]) -> str:
        text = texts.get(section["name"])
        return section[0] if text is None else f"{section['open']}\n{text.strip()}\n\n{section['close']}"

    return SECTION.sub(fill, page)


def measured(folder: Path, device: str) -> dict[str, str]:
    """The tables that benchmarks have written into a folder, by the names of their sections."""
    behind = "" if device == "cpu" else f" {device}"
    return {path.stem + behind: path.read_text() for path in sorted(folder.glob("*.md"))}


def value(text: str) -> Value:
    """A cell of a sheet."""
    try:
        return float(text)
    except ValueError:
        return text or None


def draw(sheet: Path, picture: Path) -> None:
    """Draws the curve of a sheet."""
    with sheet.open(newline="") as file:
        rows: list[Row] = [{key: value(text) for key, text in row.items()} for row in csv.DictReader(file)]
    plot(rows, picture, str(rows[0].get("measured_on") or ""))


def add_page_options(parser: argparse.ArgumentParser) -> None:
    """Where the tables are, and on which device they were measured."""
    parser.add_argument("--out", type=Path, default=Path("bench-out"), help="folder of the tables (bench-out)")
    parser.add_argument("--device", default="cpu", help="where they were measured: cpu, cuda (cpu)")


def write(options: argparse.Namespace) -> int:
    """Rewrites the page; the exit status is 1 where the folder has nothing for it."""
    page = PAGE.read_text()
    texts = measured(options.out, options.device)
    known = [name for name in texts if name in sections(page)]
    PAGE.write_text(replaced(page, texts))
    if "curve" in known:
        draw(options.out / "curve.csv", PICTURE)
    print(f"{PAGE.relative_to(ROOT)}: {', '.join(known) or 'nothing new'}")
    return int(not known)
