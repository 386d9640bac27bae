"""What a section of the bench hands back, and how it is printed: rows with ratios, tables, floors with PASS or FAIL."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from textwrap import wrap
from typing import Any, Final

Progress = Callable[[str], None]
"""Told in one line what runs now, on work that takes longer than a few seconds."""

NOT_MEASURED: Final = "-"

NARROWEST_NAME: Final = 11
"""Characters of a column's name before it is broken: a dozen systems beside each other fit a wide terminal."""


@dataclass(frozen=True, slots=True)
class Row:
    """One figure of ours beside one of theirs, from the same run."""

    name: str
    ours: float | None
    """None: not measured, and the note says why."""
    theirs: float | None = None
    """None: nobody has a figure to compare with."""
    unit: str = ""
    more_is_better: bool = False
    against: str = ""
    """Whose figure `theirs` is."""
    note: str = ""

    @property
    def ratio(self) -> float | None:
        """Return how many times better ours is; above 1 is better in either direction. None: not to be told."""
        if self.ours is None or self.theirs is None:
            return None
        better, worse = (self.ours, self.theirs) if self.more_is_better else (self.theirs, self.ours)
        return better / worse if worse else None


@dataclass(frozen=True, slots=True)
class Floor:
    """A figure that a release must keep (the floors of the design), with the goal beside it."""

    name: str
    measured: float
    floor: float
    unit: str = ""
    goal: float | None = None
    at_least: bool = False
    """Whether the measured figure may not fall below the floor; else it may not rise above it."""

    @property
    def holds(self) -> bool:
        return self.measured >= self.floor if self.at_least else self.measured <= self.floor

    @property
    def reaches_goal(self) -> bool | None:
        """Return whether the goal is reached, None where there is no goal."""
        if self.goal is None:
            return None
        return self.measured >= self.goal if self.at_least else self.measured <= self.goal


@dataclass(frozen=True, slots=True)
class Table:
    """A table whose columns are more than ours and theirs. All rows are as long as the header."""

    title: str
    header: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]

    def __post_init__(self) -> None:
        for row in self.rows:
            if len(row) != len(self.header):
                raise ValueError(f"{self.title}: a row has {len(row)} cells, expected {len(self.header)}: {row}")


@dataclass(frozen=True, slots=True)
class Section:
    """What one part of the bench measured."""

    title: str
    rows: tuple[Row, ...] = ()
    tables: tuple[Table, ...] = ()
    floors: tuple[Floor, ...] = ()
    notes: tuple[str, ...] = ()
    """Sentences a reader of the figures must know: what was not run, where everyone ties."""


def as_text(section: Section) -> str:
    """Return the section as lines for a terminal."""
    lines = [f"== {section.title} =="]
    for table in section.tables:
        lines += ["", table.title, *_columns(table.header, table.rows)]
    if section.rows:
        header = ("what", "ours", "theirs", "unit", "ratio", "against", "note")
        lines += ["", *_columns(header, [_cells(row) for row in section.rows])]
    if section.notes:
        lines += ["", *(f"* {note}" for note in section.notes)]
    return "\n".join(lines) + "\n"


def floors_as_text(floors: Sequence[Floor]) -> str:
    """Return one line a floor: PASS or FAIL, what was measured, the floor, and whether the goal is reached."""
    lines = []
    for floor in floors:
        bound = f"{'>=' if floor.at_least else '<='} {number(floor.floor)} {floor.unit}".rstrip()
        goal = {True: f", goal {number(floor.goal)} reached", False: f", goal {number(floor.goal)} not reached"}
        told = "" if floor.reaches_goal is None else goal[floor.reaches_goal]
        verdict = "PASS" if floor.holds else "FAIL"
        lines.append(f"{verdict}  {floor.name}: {number(floor.measured)} {floor.unit}".rstrip() + f" ({bound}{told})")
    return "\n".join(lines) + "\n"


def as_document(sections: Sequence[Section]) -> list[dict[str, Any]]:
    """Return the sections as JSON values; a row carries its ratio, a floor whether it holds."""
    documents = []
    for section in sections:
        document = asdict(section)
        for row, value in zip(section.rows, document["rows"], strict=True):
            value["ratio"] = row.ratio
        for floor, value in zip(section.floors, document["floors"], strict=True):
            value["holds"] = floor.holds
        documents.append(document)
    return documents


def number(value: float | None) -> str:
    """Return a figure with three significant digits or more, never in exponents."""
    if value is None:
        return NOT_MEASURED
    if value == int(value):
        return f"{int(value):,}"
    magnitude = abs(value)
    digits = 1 if magnitude >= 100 else 2 if magnitude >= 10 else 3 if magnitude >= 0.1 else 5
    return f"{value:,.{digits}f}"


def _cells(row: Row) -> tuple[str, ...]:
    ratio = NOT_MEASURED if row.ratio is None else f"{row.ratio:.3f}x" if row.ratio < 2 else f"{row.ratio:.1f}x"
    return (row.name, number(row.ours), number(row.theirs), row.unit, ratio, row.against, row.note)


def _columns(header: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """Lay rows out in columns; a name wider than its column is broken between words."""
    cells = [max((len(row[place]) for row in rows), default=0) for place in range(len(header))]
    stacks = [
        wrap(name, max(NARROWEST_NAME, cell), break_long_words=False) or [""]
        for name, cell in zip(header, cells, strict=True)
    ]
    depth = max(map(len, stacks))
    heads = list(zip(*([""] * (depth - len(stack)) + stack for stack in stacks), strict=True))
    widths = [max(len(line[place]) for line in (*heads, *rows)) for place in range(len(header))]
    rule = ["-" * width for width in widths]
    return [
        "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip()
        for line in (*heads, rule, *rows)
    ]
