"""Prints results of commands: a table for people, JSON for programs, a JSON object a line for pipes.

Standard output has only the result; everything else goes to standard error. With `-o json` a list stays a
list even if it has one item, so that scripts do not depend on their number. With `-o jsonl` each item is a
line, and what is no list is one line. `printing.py` prints items as they come, in the same formats.

What others chose, names above all, is printed with its control characters escaped (`escapes.py`): in tables
and lines by backslashes, in JSON by JSON's own escapes, which mean the same.
"""

import base64
import dataclasses
import json
import shutil
import sys
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from enum import StrEnum
from typing import Annotated, Any

import typer

from whimbrel.cli.tables import lay_out, wrapped
from whimbrel.escapes import printable, printable_json, printable_lines

__all__ = [
    "Format",
    "OutputOption",
    "body_fields",
    "emit",
    "json_line",
    "json_text",
    "note",
    "plain",
    "print_table",
    "shorten",
    "size_text",
    "time_text",
    "width_of_terminal",
]

TEXT_CHARS_MAX = 60  # of a message body in a table


class Format(StrEnum):
    """How results are printed."""

    TABLE = "table"
    JSON = "json"
    JSONL = "jsonl"


OutputOption = Annotated[
    Format,
    typer.Option("-o", "--output", help="table for people, json for programs, jsonl: a line for each item."),
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


def json_line(value: Any) -> str:
    """Return a value as JSON without line breaks."""
    return printable_json(json.dumps(plain(value), ensure_ascii=False, separators=(", ", ": ")))


def json_text(value: Any) -> str:
    """Return a value as JSON for people, in lines."""
    return printable_json(json.dumps(plain(value), ensure_ascii=False, indent=2))


def body_fields(body: bytes) -> dict[str, str]:
    """Return a message body for JSON: `body` when it is text, else `body_base64`."""
    try:
        return {"body": body.decode()}
    except UnicodeDecodeError:
        return {"body_base64": base64.b64encode(body).decode()}


def shorten(body: bytes, chars: int | None = TEXT_CHARS_MAX) -> str:
    """Return a message body on one line: cut (None: whole), control characters escaped."""
    text = (body if chars is None else body[: 4 * chars]).decode(errors="backslashreplace")
    text = printable(text)
    if chars is None or (len(text) <= chars and len(body) <= 4 * chars):
        return text
    return f"{text[: chars - 1]}…"


def time_text(at: float | None) -> str:
    """Return a time for a table cell, in UTC to the millisecond; in seconds where no calendar has it."""
    if at is None:
        return "-"
    try:
        return datetime.fromtimestamp(at, UTC).strftime("%Y-%m-%d %H:%M:%S.%f")[:-3]
    except (ValueError, OverflowError, OSError):
        return f"{at:g} s"


def size_text(count: int) -> str:
    """Return a number of bytes with a unit."""
    size = float(count)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if abs(size) < 1024:
            return f"{count} B" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1024
    return f"{size:.1f} TiB"


def emit(
    value: Any,
    output: Format,
    *,
    columns: Sequence[str],
    rows: Sequence[Sequence[Any]],
    title: Sequence[str] = (),
    optional: Sequence[str] = (),
) -> None:
    """Print a result: `value` as JSON, or the rows as a table under the column names.

    Columns that are `optional` are left out where the terminal is narrow, the first one first.
    """
    if output is Format.JSON:
        print(json_text(value))
        return
    if output is Format.JSONL:
        for item in value if isinstance(value, list | tuple) else [value]:
            print(json_line(item))
        return
    print_table(columns, rows, title, optional)


def print_table(
    columns: Sequence[str],
    rows: Sequence[Sequence[Any]],
    title: Sequence[str] = (),
    optional: Sequence[str] = (),
) -> None:
    """Print a table as it fits standard output; says on standard error which columns did not.

    Args:
        columns, rows, title, optional: see `tables.lay_out`.
    """
    made = lay_out(columns, rows, title=title, width=width_of_terminal(), optional=optional)
    sys.stdout.write(made.text)
    sys.stdout.flush()  # before what stands on standard error
    if made.left_out:
        note(f"left out at this width: {', '.join(made.left_out)} (-o json has them)")


def note(text: str) -> None:
    """Print to standard error what is not part of the result; a terminal gets lines that break no word."""
    text = printable_lines(text)
    if sys.stderr.isatty():
        text = wrapped(text, shutil.get_terminal_size().columns)
    print(text, file=sys.stderr)


def width_of_terminal() -> int | None:
    """Return the columns of the terminal that we write to; None for a file or a pipe."""
    return shutil.get_terminal_size().columns if sys.stdout.isatty() else None
