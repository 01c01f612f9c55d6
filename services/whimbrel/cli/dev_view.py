"""What `whimbrel dev` shows: a live table on a terminal, plain lines elsewhere.

The table has one whole line for each process at any width: `fitted` leaves columns out, the least important
ones first, until the lines fit, and breaks no word.

    80     process, state, pid, address, MB, and in short: the log's size, slaves, or whether it is connected
    120    how far the log is written, flushed and dispatched, and how far the slowest slave is behind
    wider  how much of the memory is anonymous, and how much is pages of files

The log's state comes from the shared pages of the stores.
"""

import contextlib
import errno
import shlex
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from whimbrel.cli.output import size_text
from whimbrel.cli.supervisor import Child, View, memory
from whimbrel.cli.tables import wrapped
from whimbrel.store.shared_page import SharedPage

if TYPE_CHECKING:
    from rich.live import Live

__all__ = ["Column", "LiveView", "PlainView", "fitted", "megabytes", "reach", "summary", "viewing"]

GAP = "  "
REFUSING = (errno.ENOSPC, errno.EDQUOT, errno.EROFS)  # what a disk says that takes nothing now
FRAMES_PER_S = 2


@contextlib.contextmanager
def viewing(directory: Path, default: Path) -> Iterator[View]:
    """Yield the live view if standard output is a terminal, else the plain one.

    Args:
        directory: the cluster's.
        default: where commands look for a cluster by themselves.
    """
    if sys.stdout.isatty():
        with LiveView(directory, default) as live:
            yield live
    else:
        yield PlainView(directory, default)


def megabytes(count: int) -> str:
    """Return bytes in units of 10^6."""
    return f"{count / 1e6:.1f}"


def summary(child: Child) -> str:
    """Return one line about a ready child, of less than 80 characters."""
    size = memory(child.pid)
    resident = "gone" if size is None else f"{megabytes(size.resident)} MB"
    told = (f"ready in {child.ready_s:.2f} s", resident, f"pid {child.pid}", child.address)
    return f"{child.plan.name:<18} {', '.join(filter(None, told))}"


def described(children: Sequence[Child], directory: Path, default: Path) -> list[str]:
    """Return the lines that tell whether brokers have the lane, where all is described, and what finds it."""
    lanes = dict.fromkeys(child.ready.get("lane", "") for child in children if child.plan.program == "broker")
    where = f"described in {directory / 'cluster.json'}"
    return [line for line in (*lanes, where, reach(directory, default)) if line]


def readiness(endpoint: str, ready_s: float, lack: str) -> str:
    """Return whether a cluster is ready, and if not, why; see `View.ready`."""
    if lack:
        return f"the cluster runs and is NOT ready, it takes no messages: {lack}; endpoint {endpoint}"
    return f"cluster ready in {ready_s:.1f} s: endpoint {endpoint}"


def reach(directory: Path, default: Path) -> str:
    """Return how commands in another shell find a cluster that is not where they look, else ""."""
    if directory == default:
        return ""
    return f"commands find it after: export WHIMBREL_DEV_DIR={shlex.quote(str(directory))}"


def clock() -> str:
    return time.strftime("%H:%M:%S")


class PlainView:
    """Prints one line for each event."""

    def __init__(self, directory: Path, default: Path) -> None:
        self.directory, self.default = directory, default

    def notify(self, text: str) -> None:
        """Print an event with the time of day."""
        self.print(f"{clock()} {text}")

    def print(self, text: str) -> None:
        """Print lines; a cluster does not end because the disk of its log takes nothing."""
        try:
            print(text, flush=True)
        except OSError as error:
            if error.errno not in REFUSING:
                raise

    def ready(self, endpoint: str, children: Sequence[Child], ready_s: float, lack: str = "") -> None:
        """Print each process, whether the cluster is ready, and how to reach it."""
        lines = [summary(child) for child in children]
        lines.append(readiness(endpoint, ready_s, lack))
        self.print("\n".join(lines + described(children, self.directory, self.default)))

    def refresh(self, children: Sequence[Child]) -> None:
        """Do nothing: in a log, repeated lines would be noise."""


@dataclass(frozen=True, slots=True)
class Column:
    """A column of the table.

    Attributes:
        keep: columns with the lowest number are left out first; those of one number go together.
        cells: one text for each line.
        short: shorter texts, tried before the column is left out.
    """

    title: str
    keep: int
    cells: Sequence[str]
    short: Sequence[str] | None = None
    right: bool = False

    @property
    def width(self) -> int:
        """Return how many characters the column takes."""
        return max(map(len, (self.title, *self.cells)))


def fitted(columns: Sequence[Column], width: int) -> list[str]:
    """Return the table's lines, the titles first, with as many columns as fit; the last one always stays."""
    left = list(columns)
    while len(left) > 1 and sum(column.width + len(GAP) for column in left) - len(GAP) > width:
        least = min(column.keep for column in left)
        if least == max(column.keep for column in left):
            break
        kept = []
        for column in left:
            if column.keep != least:
                kept.append(column)
            elif column.short is not None:
                rest = max(each.keep for each in left) - 1
                kept.append(Column(column.title, rest, column.short, right=column.right))
        left = kept
    rows = zip(*((column.title, *column.cells) for column in left), strict=True)
    return [
        GAP.join(
            cell.rjust(column.width) if column.right else cell.ljust(column.width)
            for cell, column in zip(row, left, strict=True)
        ).rstrip()
        for row in rows
    ]


class LiveView:
    """Shows a table that is kept up to date once the cluster is ready, and events above it."""

    def __init__(self, directory: Path, default: Path) -> None:
        self.directory, self.default = directory, default
        self.live: Live | None = None
        self.pages: dict[Path, SharedPage] = {}
        self.shown: tuple[object, ...] = ()

    def __enter__(self) -> "LiveView":
        return self

    def __exit__(self, *error: object) -> None:
        if self.live is not None:
            self.live.stop()

    def notify(self, text: str) -> None:
        """Print an event above the table, with the time of day."""
        self.print(f"{clock()} {text}")

    def ready(self, endpoint: str, children: Sequence[Child], ready_s: float, lack: str = "") -> None:
        """Print whether the cluster is ready and how to reach it, and begin to draw the table below."""
        from rich.console import Console  # not before: it costs a tenth of a second of the start
        from rich.live import Live

        self.live = Live(console=Console(highlight=False), auto_refresh=False, transient=True)
        self.live.start()
        self.print(f"{readiness(endpoint, ready_s, lack)}. Ctrl-C ends it.")
        for line in described(children, self.directory, self.default):
            self.print(line)

    def print(self, text: str) -> None:
        """Print text above the table; a line that is too long goes on in the next one, from word to word."""
        if self.live is None:
            print(text, flush=True)
            return
        self.live.console.print(wrapped(text, self.live.console.width), markup=False, soft_wrap=True)

    def refresh(self, children: Sequence[Child]) -> None:
        """Draw the table, twice a second, and when a state has changed."""
        if self.live is None:
            return
        now = (int(time.monotonic() * FRAMES_PER_S), *(child.state for child in children))
        if now != self.shown:
            from rich.text import Text

            self.shown = now
            lines = fitted(self.columns(children), self.live.console.width)
            self.live.update(Text("\n".join(lines), no_wrap=True, overflow="crop"), refresh=True)

    def columns(self, children: Sequence[Child]) -> list[Column]:
        """Return the table's columns."""
        sizes = [memory(child.pid) if child.pid else None for child in children]
        return [
            Column("process", 9, [child.plan.name for child in children]),
            Column("state", 9, [child.state for child in children]),
            Column("pid", 5, [str(child.pid or "") for child in children], right=True),
            Column("address", 7, [child.address for child in children]),
            Column("MB", 4, [megabytes(size.resident) if size else "" for size in sizes], right=True),
            Column("anon", 1, [megabytes(size.anonymous) if size else "" for size in sizes], right=True),
            Column("files", 1, [megabytes(size.file) if size else "" for size in sizes], right=True),
            Column(
                "log",
                2,
                [self.log_state(child) for child in children],
                short=[self.log_state(child, short=True) for child in children],
            ),
        ]

    def log_state(self, child: Child, *, short: bool = False) -> str:
        """Return the state of a log from its shared page: offsets for brokers, peers for replicators."""
        page = self.page(child)
        if page is None or child.state != "ready":
            return child.ended if child.state == "waiting" else ""
        if child.plan.program == "broker":
            if short:
                return size_text(page.written)
            return f"end {page.written:,}, flushed {page.flushed:,}, dispatched {page.dispatched:,}"
        follows = child.plan.role == "slave-replicator"
        if child.plan.role == "member-replicator":
            follows = not page.leader_log or page.leader_log != page.epoch
        if follows:
            return "connected" if page.connected else "not connected"
        acks = page.live_acks()
        behind = f", slowest {page.written - min(acks):,} behind" if acks and not short else ""
        return f"slaves {len(acks)}{behind}"

    def page(self, child: Child) -> SharedPage | None:
        """Return the shared page of a child's store, None while there is none."""
        store = child.plan.store
        if store is None or not (store / "whimbrel" / "watermark").exists():
            return None
        if store not in self.pages:
            self.pages[store] = SharedPage.open(store)
        return self.pages[store]
