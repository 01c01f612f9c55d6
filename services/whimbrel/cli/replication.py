"""`whimbrel replication status`: who follows whom, and how far."""

import sys
import time
from typing import TYPE_CHECKING, Annotated, Any

import typer

from whimbrel.cli.endpoint import EndpointOption, resolve_endpoint
from whimbrel.cli.lazy import examples, group
from whimbrel.cli.output import Format, OutputOption, emit, note, plain, size_text, table_text
from whimbrel.errors import WhimbrelError

if TYPE_CHECKING:
    from whimbrel.client import BrokerStatus, ReplicationStatus, sync

    View = ReplicationStatus | tuple[BrokerStatus, WhimbrelError]

__all__ = ["app"]

app = group("Show who follows whom, and how far.")

COLUMNS = (
    "broker",
    "role",
    "log end",
    "flushed",
    "dispatched",
    "confirmed",
    "peer",
    "acknowledged",
    "lag",
    "state",
)
WATCH_S = 1.0  # between two polls of --watch
STEP_BYTES = 1 << 20  # a slave with no more lag is in step: under load some of the log is always in flight


@app.command(
    epilog=examples(
        "whimbrel replication status",
        "whimbrel replication status --watch",
        "whimbrel replication status -o json",
    )
)
def status(
    watch: Annotated[bool, typer.Option("--watch", "-w", help="Show it again every second.")] = False,
    endpoint: EndpointOption = "",
    output: OutputOption = Format.TABLE,
) -> None:
    """Show each broker's log, its slaves, and what is wrong, if anything is."""
    from whimbrel.client import sync

    with sync.Admin(resolve_endpoint(endpoint)) as admin:
        if watch:
            watch_views(admin, output)
        else:
            show(admin.replication(), output)


def watch_views(admin: "sync.Admin", output: Format) -> None:
    """Show the state until interrupted; while the cluster does not answer, poll again."""
    clear = "\x1b[H\x1b[2J" if sys.stdout.isatty() and output is Format.TABLE else ""
    while True:
        try:
            views = admin.replication()
        except WhimbrelError as error:
            note(str(error))
        else:
            sys.stdout.write(clear)
            show(views, output)
            sys.stdout.flush()
        time.sleep(WATCH_S)


def show(views: "list[View]", output: Format) -> None:
    if output is Format.JSON:
        emit([as_object(view) for view in views], output, columns=(), rows=())
        return
    ends = {
        view.broker_name: view.log_end
        for view in views
        if not isinstance(view, tuple) and view.role == "master"
    }
    rows = [row for view in views for row in rows_of(view, ends)]
    sys.stdout.write(table_text(COLUMNS, rows, ""))
    for view in views:
        if isinstance(view, tuple):
            note(f"{view[0].broker_name} ({view[0].role}) could not be asked: {view[1]}")
        elif view.advice:
            note(f"{view.broker_name} ({view.role}): {view.advice}")


def as_object(view: "View") -> dict[str, Any]:
    if isinstance(view, tuple):
        broker, error = view
        return {
            "broker_name": broker.broker_name,
            "broker_id": broker.broker_id,
            "role": broker.role,
            "error": str(error),
        }
    value = plain(view)
    assert isinstance(value, dict)
    return value


def rows_of(view: "View", ends: dict[str, int]) -> list[tuple[Any, ...]]:
    """Return a broker's rows, one for each slave of a master; `ends` has the masters' log ends by name."""
    if isinstance(view, tuple):
        broker = view[0]
        return [(broker.broker_name, broker.role, broker.log_end, *("?",) * 6, "no answer")]
    if view.role != "master":
        end = ends.get(view.broker_name)
        lag = None if end is None else max(end - view.log_end, 0)
        return [
            (
                view.broker_name,
                f"slave {view.broker_id}",
                view.log_end,
                view.flushed_offset,
                view.dispatched_offset,
                "-",
                view.ha_address or "unknown master",
                "-",
                "-" if lag is None else size_text(lag),
                slave_state(view, lag),
            )
        ]
    own = (
        view.broker_name,
        f"master ({view.replication}, flush {view.flush})",
        view.log_end,
        view.flushed_offset,
        view.dispatched_offset,
        view.confirmed_offset,
    )
    blank = ("",) * len(own)
    slaves = [
        (*blank, slave.peer, slave.acknowledged_offset, size_text(slave.lag_bytes), step(slave.lag_bytes))
        for slave in view.slaves
    ]
    return [(*own, *("",) * 3, master_state(view)), *slaves]


def master_state(view: "ReplicationStatus") -> str:
    if not view.replicator_alive:
        return "no replicator"
    taking = "takes messages" if view.writable else "reads only"
    return taking if view.slaves else f"{taking}, no slave"


def slave_state(view: "ReplicationStatus", lag: int | None) -> str:
    if not view.replicator_alive:
        return "no replicator"
    return step(lag or 0) if view.connected else "not connected"


def step(lag: int) -> str:
    return "in step" if lag <= STEP_BYTES else "catching up"
