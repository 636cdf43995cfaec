"""Shows tables of texts in which the worse cells are marked, on a terminal and as a page."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

WIDEST = 70  # characters of a cell on a terminal


@dataclass(frozen=True, slots=True)
class Cell:
    """A text; ``worse`` marks it."""

    text: str
    worse: bool = False


@dataclass(frozen=True, slots=True)
class Table:
    """Rows of cells below the names of the columns; the first cell of a row says what it is of."""

    title: str
    head: tuple[str, ...]
    rows: tuple[tuple[Cell, ...], ...]


@dataclass(frozen=True, slots=True)
class Tables:
    """Several tables with a line above them; ``str()`` is for a terminal."""

    title: str
    line: str
    tables: tuple[Table, ...]

    def __str__(self) -> str:
        return "\n".join([f"{self.title}: {self.line}", *(line for table in self.tables for line in _lines(table))])


def _lines(table: Table) -> Iterator[str]:
    cells = [table.head, *(tuple(cell.text + ("  !" if cell.worse else "") for cell in row) for row in table.rows)]
    widths = [min(WIDEST, max(map(len, column))) for column in zip(*cells, strict=True)]
    yield f"\n{table.title}"
    for row in cells:
        yield "  ".join(f"{text[:width]:<{width}}" for text, width in zip(row, widths, strict=True)).rstrip()
