"""`whimbrel dev`: a whole cluster on this machine, and a view of it.

`cli/supervisor.py` runs the processes. This module has the command line and two views: a live table on a
terminal, plain lines elsewhere. The table's column `log` is read from the shared pages.
"""

import contextlib
import sys
import time
from collections.abc import Iterator, Sequence
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from whimbrel.cli.lazy import examples
from whimbrel.model.wire import NAMESERVER_PORT

if TYPE_CHECKING:
    from rich.console import RenderableType

    from whimbrel.cli.supervisor import Child, Memory, View
    from whimbrel.store.shared_page import SharedPage

__all__ = ["EXAMPLES", "LiveView", "PlainView", "dev", "megabytes", "summary"]

EXAMPLES = examples(
    "whimbrel dev                                  a nameserver on 127.0.0.1:8081, a master and a slave",
    "whimbrel dev --slaves 2 --replication sync    answer a send when a slave has it",
    "whimbrel dev --flush sync                     answer a send when it is on the master's disk",
    "whimbrel dev --trace 1                        trace every message: whimbrel trace MESSAGE_ID",
    "whimbrel dev --port 0 --dir ./cluster         any free ports; see ./cluster/cluster.json",
    "touch DIR/run/master.hold                     keep the master down when it dies (kill it, and look)",
)


class Mode(StrEnum):
    """When a send is answered: after the disk or slave has it, or at once."""

    SYNC = "sync"
    ASYNC = "async"


def dev(
    directory: Annotated[
        Path | None,
        typer.Option("--dir", help="Stores, logs and cluster.json go there.", show_default="per user"),
    ] = None,
    port: Annotated[
        int,
        typer.Option(
            min=0, max=65535, help="Of the nameserver; others follow from PORT+10. 0: any free ports."
        ),
    ] = NAMESERVER_PORT,
    flush: Annotated[Mode, typer.Option(help="sync: answer a send when it is on the disk.")] = Mode.ASYNC,
    replication: Annotated[Mode, typer.Option(help="sync: answer a send when a slave has it.")] = Mode.ASYNC,
    slaves: Annotated[int, typer.Option(min=0, max=9, help="How many slaves.")] = 1,
    trace: Annotated[
        float,
        typer.Option(
            min=0, max=1, metavar="RATIO", help="Share of messages to trace; see `whimbrel trace MESSAGE_ID`."
        ),
    ] = 0.0,
    metrics: Annotated[
        bool, typer.Option("--metrics", help="Serve metrics; cluster.json says at which addresses.")
    ] = False,
    accept_replays: Annotated[
        bool,
        typer.Option(
            "--accept-replays", help="Take archived messages back, see `whimbrel spark replay --help`."
        ),
    ] = False,
) -> None:
    """Run a whole cluster on this machine: nameserver, master, slaves, a replicator beside each."""
    from whimbrel.cli.endpoint import default_dev_dir
    from whimbrel.cli.supervisor import DevOptions, StartError, Supervisor

    options = DevOptions(
        directory=(directory or default_dev_dir()).absolute(),
        port=port,
        flush=flush.value,
        replication=replication.value,
        slaves=slaves,
        trace_ratio=trace,
        metrics=metrics,
        accept_replays=accept_replays,
    )
    try:
        with viewing(options.directory) as view:
            Supervisor(options, view).run()
    except StartError as error:
        print(f"whimbrel dev: {error}", file=sys.stderr)
        raise typer.Exit(1) from None


@contextlib.contextmanager
def viewing(directory: Path) -> Iterator["View"]:
    """Yield the live view if standard output is a terminal, else the plain one."""
    if sys.stdout.isatty():
        with LiveView(directory) as live:
            yield live
    else:
        yield PlainView(directory)


def megabytes(count: int) -> str:
    """Return bytes in units of 10^6."""
    return f"{count / 1e6:.1f}"


def memory_text(size: "Memory | None") -> str:
    """Return a process's memory as text."""
    if size is None:
        return "gone"
    return (
        f"{megabytes(size.resident)} MB resident "
        f"({megabytes(size.anonymous)} anonymous, {megabytes(size.file)} of files)"
    )


def summary(child: "Child") -> str:
    """Return one line about a ready child: seconds until it was ready, memory, address."""
    from whimbrel.cli.supervisor import memory

    return (
        f"{child.plan.name:<18} ready in {child.ready_s:.2f} s, {memory_text(memory(child.pid))}, "
        f"pid {child.pid}{', ' if child.address else ''}{child.address}"
    )


class PlainView:
    """Prints one line for each event."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory

    def notify(self, text: str) -> None:
        """Print an event with the time of day."""
        print(f"{time.strftime('%H:%M:%S')} {text}", flush=True)

    def ready(self, endpoint: str, children: "Sequence[Child]") -> None:
        """Print each process, and how to reach the cluster."""
        for child in children:
            print(summary(child), flush=True)
        print(
            f"cluster ready: endpoint {endpoint}, described in {self.directory / 'cluster.json'}", flush=True
        )

    def refresh(self, children: "Sequence[Child]") -> None:
        """Do nothing: in a log, repeated lines would be noise."""


class LiveView:
    """Shows a table that is kept up to date, and events above it."""

    def __init__(self, directory: Path) -> None:
        from rich.console import Console
        from rich.live import Live

        self.plain = PlainView(directory)
        self.console = Console(highlight=False)
        self.live = Live(console=self.console, auto_refresh=False, transient=True)
        self.pages: dict[Path, SharedPage] = {}
        self.endpoint = ""
        self.shown: tuple[object, ...] = ()

    def __enter__(self) -> "LiveView":
        self.live.start()
        return self

    def __exit__(self, *error: object) -> None:
        self.live.stop()

    def notify(self, text: str) -> None:
        """Print an event above the table."""
        self.console.print(f"{time.strftime('%H:%M:%S')} {text}", markup=False)

    def ready(self, endpoint: str, children: "Sequence[Child]") -> None:
        """Print lines that stay above the table: each process at this moment, and the endpoint."""
        self.endpoint = endpoint
        for child in children:
            self.console.print(summary(child), markup=False)
        self.console.print(
            f"cluster ready: endpoint {endpoint}, described in {self.plain.directory / 'cluster.json'}. "
            "Ctrl-C ends it.",
            markup=False,
        )

    def refresh(self, children: "Sequence[Child]") -> None:
        """Draw the table, twice a second, and when a state has changed."""
        now = (int(time.monotonic() * 2), *(child.state for child in children))
        if now != self.shown:
            self.shown = now
            self.live.update(self.table(children), refresh=True)

    def table(self, children: "Sequence[Child]") -> "RenderableType":
        """Return the table."""
        from rich.table import Table

        from whimbrel.cli.supervisor import memory

        table = Table(title=f"whimbrel dev {self.endpoint}", title_justify="left")
        for column in ("process", "state", "pid", "address", "MB", "anon", "files", "log"):
            right = column in ("pid", "MB", "anon", "files")
            table.add_column(column, justify="right" if right else "left", no_wrap=True)
        for child in children:
            size = memory(child.pid) if child.pid else None
            sizes = (size.resident, size.anonymous, size.file) if size else ()
            table.add_row(
                child.plan.name,
                child.state,
                str(child.pid or ""),
                child.address,
                *(megabytes(each) for each in sizes or ()),
                *([""] * (3 - len(sizes))),
                self.log_state(child),
            )
        return table

    def log_state(self, child: "Child") -> str:
        """Return the state of a log from its shared page: offsets for brokers, peers for replicators."""
        page = self.page(child)
        if page is None or child.state != "ready":
            return child.ended if child.state == "waiting" else ""
        if child.plan.program == "broker":
            return f"end {page.written:,}, flushed {page.flushed:,}, dispatched {page.dispatched:,}"
        if child.plan.role == "slave-replicator":
            return "connected" if page.connected else "not connected"
        acks = page.live_acks()
        behind = f", slowest {page.written - min(acks):,} behind" if acks else ""
        return f"slaves {len(acks)}{behind}"

    def page(self, child: "Child") -> "SharedPage | None":
        """Return the shared page of a child's store, None while there is none."""
        from whimbrel.store.shared_page import SharedPage

        store = child.plan.store
        if store is None or not (store / "whimbrel" / "watermark").exists():
            return None
        if store not in self.pages:
            self.pages[store] = SharedPage.open(store)
        return self.pages[store]
