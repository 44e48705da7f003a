"""Results of a run, and their output as text, Markdown and JSON.

Must not know: servers, clocks.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeAlias

Cell: TypeAlias = str | float | int | None

BEGIN, END = "<!-- bench:begin -->", "<!-- bench:end -->"
"""Markers in a Markdown file; the text between them is replaced."""


@dataclass
class Table:
    """A table of figures."""

    title: str
    columns: list[str]
    rows: list[list[Cell]] = field(default_factory=list)
    note: str = ""


@dataclass
class Aim:
    """A figure that the project wants to reach.

    Attributes:
        what: What is measured.
        measured: The figure.
        limit: The aim.
        unit: Unit of both, or an empty string for a ratio.
        at_most: Whether the limit is an upper one.
    """

    what: str
    measured: float
    limit: float
    unit: str
    at_most: bool

    @property
    def met(self) -> bool:
        """Whether the aim is reached."""
        return self.measured <= self.limit if self.at_most else self.measured >= self.limit

    def cells(self) -> list[Cell]:
        """Return the row of a table: aim, limit, measured, verdict."""
        sign = "≤" if self.at_most else "≥"
        unit = f" {self.unit}" if self.unit else ""
        return [
            self.what,
            f"{sign} {_text(self.limit)}{unit}",
            f"{_text(self.measured)}{unit}",
            "met" if self.met else "missed",
        ]


@dataclass
class Section:
    """The tables and aims of one subject."""

    name: str
    tables: list[Table] = field(default_factory=list)
    aims: list[Aim] = field(default_factory=list)
    seconds: float = 0.0


@dataclass
class Report:
    """The results of a whole run."""

    machine: dict[str, str]
    sections: list[Section] = field(default_factory=list)

    def aims(self) -> Table:
        """Return a table of all aims."""
        rows = [aim.cells() for section in self.sections for aim in section.aims]
        return Table("Aims", ["aim", "limit", "measured", "verdict"], rows)

    def to_json(self) -> str:
        """Return all results as JSON."""
        content = dataclasses.asdict(self)
        for section, plain in zip(self.sections, content["sections"], strict=True):
            for aim, entry in zip(section.aims, plain["aims"], strict=True):
                entry["met"] = aim.met
        return json.dumps(content, indent=2, ensure_ascii=False) + "\n"

    def to_markdown(self) -> str:
        """Return machine, aims and all tables as Markdown."""
        parts = [
            _markdown(Table("Machine", ["", ""], [[k, v] for k, v in self.machine.items()])),
            _markdown(self.aims()),
        ]
        parts += [_markdown(table) for section in self.sections for table in section.tables]
        return "\n".join(parts)


def print_section(section: Section) -> None:
    """Print the tables of a section on stdout."""
    for table in section.tables:
        print_table(table)


def print_table(table: Table) -> None:
    """Print one aligned table on stdout."""
    rows = [table.columns] + [[_text(cell) for cell in row] for row in table.rows]
    widths = [max(len(row[i]) for row in rows) for i in range(len(table.columns))]
    numeric = [_is_numeric(table, i) for i in range(len(table.columns))]
    print(f"\n{table.title}")
    for row in rows:
        cells = (
            cell.rjust(width) if right else cell.ljust(width)
            for cell, width, right in zip(row, widths, numeric, strict=True)
        )
        print("  " + "  ".join(cells).rstrip())
    if table.note:
        print(f"  ({table.note})")


def write_markdown(path: Path, report: Report) -> None:
    """Write the tables to a file, between its markers if it has them."""
    text = f"{BEGIN}\n{report.to_markdown()}{END}\n"
    if path.exists():
        before, begin, rest = path.read_text().partition(BEGIN)
        _, end, after = rest.partition(END)
        if begin and end:
            text = before + text.rstrip("\n") + after
    path.write_text(text)


def _markdown(table: Table) -> str:
    lines = [f"### {table.title}", ""]
    lines.append("| " + " | ".join(table.columns) + " |")
    lines.append("|" + "|".join(_rule(table, i) for i in range(len(table.columns))) + "|")
    lines += ["| " + " | ".join(_text(cell) for cell in row) + " |" for row in table.rows]
    if table.note:
        lines += ["", table.note]
    return "\n".join([*lines, ""])


def _rule(table: Table, column: int) -> str:
    return "---:" if _is_numeric(table, column) else "---"


def _is_numeric(table: Table, column: int) -> bool:
    cells: Sequence[Cell] = [row[column] for row in table.rows if row[column] is not None]
    return bool(cells) and all(isinstance(cell, int | float) for cell in cells)


def _text(cell: Cell) -> str:
    if cell is None:
        return "-"
    if isinstance(cell, float):
        if abs(cell) >= 1000:
            return f"{cell:,.0f}"
        return f"{cell:.0f}" if abs(cell) >= 100 else f"{cell:.3g}"
    return f"{cell:,}" if isinstance(cell, int) else cell
