"""Prints items as they come, and says which of them have been printed: only those may be acknowledged.

    table      held until `end`, since widths depend on all rows
    lines      one for each item, for people, where there is no end
    json       one array, written item by item
    jsonl      one line for each item
    template   the bytes of `--format`

Lines are escaped here (`escapes.py`), tables and JSON in `output.py`. A template's bytes go out as they are,
for files and programs; for a terminal, `Template.render_for_terminal` escapes what messages hold.

All raise BrokenPipeError when the reader of a pipe is gone. One that stops after a few lines (`| head -1`)
goes a moment after it has read them. So each batch is given that moment (`was_read`), and the first item
of all should go out alone (`portions`).
"""

import fcntl
import os
import select
import stat
import struct
import sys
import termios
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Generic, TypeVar

from whimbrel.cli.output import Format, emit, json_line, json_text
from whimbrel.escapes import printable

__all__ = [
    "HELD_MAX",
    "Items",
    "Printer",
    "portions",
    "printer_of",
    "reader_gone",
    "was_read",
]

T = TypeVar("T")

HELD_MAX = 1000  # rows of one table; what comes then makes another one
TAKEN_S = 0.2  # how long a reader gets to take what is in the pipe; it may be paused
LEAVES_S = 0.005  # how long a reader that has enough takes to go
LOOK_S = 0.001  # between looks at the pipe


class Items(Generic[T]):
    """How items of one kind are shown.

    Args:
        table: makes column names and rows.
        line: makes one line for people.
        as_object: makes what JSON can hold.
    """

    def __init__(
        self,
        *,
        table: Callable[[Sequence[T]], tuple[Sequence[str], Sequence[Sequence[Any]]]],
        line: Callable[[T], str],
        as_object: Callable[[T], Any],
    ) -> None:
        self.table = table
        self.line = line
        self.as_object = as_object


class Printer(Generic[T]):
    """Prints items one after the other; base of those that do otherwise."""

    def __init__(self, render: Callable[[T], bytes]) -> None:
        """Take what makes an item's bytes."""
        self.render = render
        self.held: list[T] = []

    def add(self, items: Sequence[T]) -> Sequence[T]:
        """Print items, or hold them; return those that are printed now."""
        write(b"".join([self.render(item) for item in items]))
        return items

    def end(self) -> Sequence[T]:
        """Print what is held, and the end; return the items that are printed now."""
        return ()


class TablePrinter(Printer[T]):
    """Holds its items until the end, or until they are many."""

    def __init__(self, items: Items[T]) -> None:
        """Take how items are shown."""
        super().__init__(lambda _: b"")
        self.items = items

    def add(self, items: Sequence[T]) -> Sequence[T]:
        """Hold items."""
        self.held += items
        return self.end() if len(self.held) >= HELD_MAX else ()

    def end(self) -> Sequence[T]:
        """Print a table of what is held, if that is something."""
        printed, self.held = self.held, []
        if printed:
            columns, rows = self.items.table(printed)
            emit(printed, Format.TABLE, columns=columns, rows=rows)
            sys.stdout.flush()
        return printed


class ArrayPrinter(Printer[T]):
    """Prints a JSON array, item by item."""

    def __init__(self, items: Items[T]) -> None:
        """Take how items are shown."""
        super().__init__(self.element)
        self.items = items
        self.opened = False

    def element(self, item: T) -> bytes:
        """Return an item with what stands before it."""
        before, self.opened = ",\n" if self.opened else "[\n", True
        text = json_text(self.items.as_object(item))
        return (before + "\n".join(f"  {line}" for line in text.split("\n"))).encode()

    def end(self) -> Sequence[T]:
        """Close the array; an empty one is written, too."""
        write(b"\n]\n" if self.opened else b"[]\n")
        return ()


def printer_of(
    items: Items[T],
    output: Format,
    template: Callable[[T], bytes] | None = None,
    *,
    endless: bool = False,
) -> Printer[T]:
    """Return what prints items in a format.

    Args:
        items: how they are shown.
        output: the format.
        template: makes an item's bytes instead, if there is one.
        endless: whether a table would never end, so that there are lines instead.
    """
    if template is not None:
        return Printer(template)
    match output:
        case Format.JSON:
            return ArrayPrinter(items)
        case Format.JSONL:
            return Printer(lambda item: f"{json_line(items.as_object(item))}\n".encode())
        case Format.TABLE if endless:
            return Printer(lambda item: f"{printable(items.line(item))}\n".encode())
        case _:
            return TablePrinter(items)


def portions(items: Sequence[T], *, first: bool) -> Iterator[Sequence[T]]:
    """Yield items in one piece; the first of all apart."""
    if first and len(items) > 1:
        yield items[:1]
        items = items[1:]
    yield items


def write(data: bytes) -> None:
    """Write bytes to standard output at once.

    Raises:
        BrokenPipeError: nobody reads them.
    """
    sys.stdout.flush()
    sys.stdout.buffer.write(data)
    sys.stdout.buffer.flush()


def reader_gone() -> bool:
    """Return whether standard output is a pipe that nobody reads any more."""
    descriptor = pipe()
    return descriptor is not None and gone(descriptor, 0.0)


def was_read(count: int) -> bool:
    """Return whether so many items, which have just been printed, count as read.

    They do where standard output is no pipe, and where the reader stays, even if it is paused. From a reader
    that goes we know only that it has taken what was in the pipe: a single item was for it, of several
    perhaps one.
    """
    descriptor = pipe()
    if descriptor is None:
        return True
    end = time.monotonic() + TAKEN_S
    while unread(descriptor) and time.monotonic() < end:
        if gone(descriptor, LOOK_S):
            break
    if count == 1:
        return not gone(descriptor, 0.0) or not unread(descriptor)
    return not gone(descriptor, LEAVES_S)


def pipe() -> int | None:
    """Return the descriptor of standard output if that is a pipe."""
    try:
        descriptor = sys.stdout.fileno()
        return descriptor if stat.S_ISFIFO(os.fstat(descriptor).st_mode) else None
    except (OSError, ValueError):  # no file at all, as in tests
        return None


def gone(descriptor: int, wait_s: float) -> bool:
    poll = select.poll()
    poll.register(descriptor, 0)  # errors are always told
    return bool(poll.poll(wait_s * 1000))


def unread(descriptor: int) -> int:
    """Return how many bytes of a pipe wait for its reader."""
    return int(struct.unpack("i", fcntl.ioctl(descriptor, termios.FIONREAD, bytes(4)))[0])
