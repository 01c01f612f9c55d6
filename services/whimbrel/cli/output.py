"""Prints results of commands: a table for people, JSON for programs.

Standard output has only the result; everything else goes to standard error. With `-o json` a list stays a
list even if it has one item, so that scripts do not depend on their number.
"""

import base64
import dataclasses
import json
import sys
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from enum import StrEnum
from typing import Annotated, Any

import typer

__all__ = [
    "Format",
    "OutputOption",
    "body_fields",
    "emit",
    "note",
    "plain",
    "shorten",
    "size_text",
    "time_text",
]

TEXT_CHARS_MAX = 60  # of a message body in a table


class Format(StrEnum):
    """How results are printed."""

    TABLE = "table"
    JSON = "json"


OutputOption = Annotated[
    Format,
    typer.Option("-o", "--output", help="table for people, json for programs."),
]


def plain(value: Any) -> Any:
    """Return a value that JSON can hold: data classes as objects, times as numbers."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: plain(getattr(value, field.name)) for field in dataclasses.fields(value)}
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, Sequence) and not isinstance(value, str | bytes):
        return [plain(item) for item in value]
    return value


def body_fields(body: bytes) -> dict[str, str]:
    """Return a message body for JSON: `body` when it is text, else `body_base64`."""
    try:
        return {"body": body.decode()}
    except UnicodeDecodeError:
        return {"body_base64": base64.b64encode(body).decode()}


def shorten(body: bytes) -> str:
    """Return a message body for a table cell: one line, cut, control characters escaped."""
    text = body[: 4 * TEXT_CHARS_MAX].decode(errors="backslashreplace")
    text = "".join(character if character.isprintable() else repr(character)[1:-1] for character in text)
    cut = len(text) > TEXT_CHARS_MAX or len(body) > 4 * TEXT_CHARS_MAX
    return f"{text[: TEXT_CHARS_MAX - 1]}…" if cut else text


def time_text(at: float | None) -> str:
    """Return a time for a table cell, in UTC to the millisecond."""
    if at is None:
        return "-"
    return datetime.fromtimestamp(at, UTC).strftime("%Y-%m-%d %H:%M:%S.%f")[:-3]


def size_text(count: int) -> str:
    """Return a number of bytes with a unit."""
    size = float(count)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if abs(size) < 1024:
            return f"{count} B" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1024
    return f"{size:.1f} TiB"


def emit(
    value: Any, output: Format, *, columns: Sequence[str], rows: Sequence[Sequence[Any]], title: str = ""
) -> None:
    """Print a result: `value` as JSON, or the rows as a table under the column names."""
    if output is Format.JSON:
        print(json.dumps(plain(value), ensure_ascii=False, indent=2))
        return
    sys.stdout.write(table_text(columns, rows, title))


def table_text(columns: Sequence[str], rows: Sequence[Sequence[Any]], title: str) -> str:
    """Return the table; columns of numbers are aligned to the right."""
    from rich import box
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(
        box=box.SIMPLE_HEAD, title=title or None, title_justify="left", pad_edge=False, highlight=False
    )
    for index, column in enumerate(columns):
        numeric = bool(rows) and all(is_number(row[index]) for row in rows)
        table.add_column(column, justify="right" if numeric else "left", overflow="fold")
    for row in rows:
        table.add_row(*(Text("-" if cell is None else str(cell)) for cell in row))
    # A pipe has no width: lines are neither cut nor folded there.
    width = None if sys.stdout.isatty() else 10_000
    console = Console(width=width, soft_wrap=False)
    with console.capture() as capture:
        console.print(table, crop=False)
    lines = [line.rstrip() for line in capture.get().splitlines()]
    return "\n".join(line for line in lines if line) + "\n"


def note(text: str) -> None:
    """Print to standard error what is not part of the result."""
    print(text, file=sys.stderr)


def is_number(cell: Any) -> bool:
    return isinstance(cell, int | float) and not isinstance(cell, bool)
