"""Lays out tables for a width, so that no word is broken. Pure.

Three forms, the first that fits:

    the table                 columns side by side, under their names
    without some columns      those that the caller calls optional are left out, one after the other
    records                   `name: value` pairs of a row, as many on a line as it takes, all columns

A value is shown whole or not at all. In records, a value with spaces that is longer than a line goes on in
the next one; only a word longer than the width itself is left to the terminal.
"""

import textwrap
import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from whimbrel.escapes import printable

__all__ = ["Layout", "lay_out", "wrapped"]

GAP = "  "  # between columns, and between the pairs of a record
NO_VALUE = (None, "", "-", "?")
INDENT = "  "  # of a record's further lines


@dataclass(frozen=True, slots=True)
class Layout:
    """A table as text, and the names of the columns that did not fit."""

    text: str
    left_out: tuple[str, ...] = ()


def lay_out(
    columns: Sequence[str],
    rows: Sequence[Sequence[Any]],
    *,
    title: Sequence[str] = (),
    width: int | None,
    optional: Sequence[str] = (),
) -> Layout:
    """Lay out a table; columns of numbers are aligned to the right.

    Args:
        columns: their names.
        rows: their cells, as many as there are columns; None is shown as `-`.
        title: the lines above it.
        width: of the terminal; None for a pipe or a file, which has no width.
        optional: columns that may be left out, the least important first.
    """
    cells = [["-" if cell is None else printable(str(cell)) for cell in row] for row in rows]
    numeric = [holds_numbers([row[index] for row in rows]) for index in range(len(columns))]
    shown = list(range(len(columns)))
    left_out: list[str] = []
    head = [printable(line) for line in title]
    while True:
        lines = side_by_side(columns, cells, numeric, shown)
        if width is None or all(columns_of(line) <= width for line in lines):
            return Layout("\n".join([*head, *lines]) + "\n", tuple(left_out))
        if len(left_out) == len(optional):
            break
        name = optional[len(left_out)]
        left_out.append(name)
        shown.remove(columns.index(name))
    lines = [line for row in cells for line in record(columns, row, width)]
    return Layout("\n".join([*head, *lines]) + "\n")


def side_by_side(
    columns: Sequence[str], cells: Sequence[Sequence[str]], numeric: Sequence[bool], shown: Sequence[int]
) -> list[str]:
    """Return the lines of a table: names, a rule, rows."""
    widths = {
        index: max(columns_of(text) for text in (columns[index], *(row[index] for row in cells)))
        for index in shown
    }

    def line(texts: Sequence[str]) -> str:
        padded = []
        for index in shown:
            blank = " " * (widths[index] - columns_of(texts[index]))
            padded.append(blank + texts[index] if numeric[index] else texts[index] + blank)
        return GAP.join(padded).rstrip()

    rule = "─" * (sum(widths.values()) + len(GAP) * (len(shown) - 1))
    return [line(columns), rule, *map(line, cells)]


def record(columns: Sequence[str], cells: Sequence[str], width: int) -> list[str]:
    """Return a row as lines of pairs; cells that are empty are left out."""
    lines: list[str] = []
    current = ""
    for name, cell in zip(columns, cells, strict=True):
        if not cell:
            continue
        pair = f"{name}: {cell}"
        joined = f"{current}{GAP}{pair}" if current.strip() else current + pair
        if columns_of(joined) <= width:
            current = joined
            continue
        if current.strip():
            lines.append(current)
        *whole, current = folded(pair, width, first=INDENT if lines else "", further=INDENT)
        lines += whole
    return [*lines, current]


def wrapped(text: str, width: int) -> str:
    """Return a text in lines that break between words."""
    return "\n".join(line for part in text.splitlines() for line in folded(part, width) or [""])


def folded(text: str, width: int, *, first: str = "", further: str = "") -> list[str]:
    """Return a text's lines; a word longer than a line stays whole.

    Args:
        first, further: what stands before the first line, and before the further ones.
    """
    return textwrap.wrap(
        text,
        width,
        initial_indent=first,
        subsequent_indent=further,
        break_long_words=False,
        break_on_hyphens=False,
    )


def columns_of(text: str) -> int:
    """Return how many columns of a terminal a text takes."""
    if text.isascii():
        return len(text)
    return sum(
        0 if unicodedata.combining(character) else 2 if unicodedata.east_asian_width(character) in "WF" else 1
        for character in text
    )


def holds_numbers(cells: Sequence[Any]) -> bool:
    """Tell whether a column has numbers, and besides nothing but cells without a value."""
    return any(map(is_number, cells)) and all(is_number(cell) or cell in NO_VALUE for cell in cells)


def is_number(cell: Any) -> bool:
    return isinstance(cell, int | float) and not isinstance(cell, bool)
