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
    "replicator",
    "peer",
    "acknowledged",
    "lag",
    "writable",
)
WATCH_S = 1.0  # between two looks of --watch


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
            _watch(admin, output)
        else:
            _show(admin.replication(), output)


def _watch(admin: "sync.Admin", output: Format) -> None:
    """Show the state until interrupted; a cluster that can't be reached for a while is waited for."""
    clear = "\x1b[H\x1b[2J" if sys.stdout.isatty() and output is Format.TABLE else ""
    while True:
        try:
            views = admin.replication()
        except WhimbrelError as error:
            note(str(error))
        else:
            sys.stdout.write(clear)
            _show(views, output)
            sys.stdout.flush()
        time.sleep(WATCH_S)


def _show(views: "list[View]", output: Format) -> None:
    if output is Format.JSON:
        emit([_object(view) for view in views], output, columns=(), rows=())
        return
    ends = {
        view.broker_name: view.log_end
        for view in views
        if not isinstance(view, tuple) and view.role == "master"
    }
    rows = [row for view in views for row in _rows(view, ends)]
    sys.stdout.write(table_text(COLUMNS, rows, ""))
    for view in views:
        if isinstance(view, tuple):
            note(f"{view[0].broker_name} ({view[0].role}) could not be asked: {view[1]}")
        elif view.advice:
            note(f"{view.broker_name} ({view.role}): {view.advice}")


def _object(view: "View") -> dict[str, Any]:
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


def _rows(view: "View", ends: dict[str, int]) -> list[tuple[Any, ...]]:
    """Return a broker's rows, one for each slave of a master; `ends` has the masters' log ends by name."""
    if isinstance(view, tuple):
        broker = view[0]
        return [(broker.broker_name, broker.role, broker.log_end, *("?",) * 8)]
    alive = "alive" if view.replicator_alive else "dead"
    writable = "yes" if view.writable else "no"
    if view.role != "master":
        peer = view.ha_address or "unknown master"
        state = peer if view.connected else f"{peer} (not connected)"
        end = ends.get(view.broker_name)
        return [
            (
                view.broker_name,
                f"slave {view.broker_id}",
                view.log_end,
                view.flushed_offset,
                view.dispatched_offset,
                "-",
                alive,
                state,
                "-",
                "-" if end is None else size_text(end - view.log_end),
                writable,
            )
        ]
    own = (
        view.broker_name,
        f"master ({view.replication}, flush {view.flush})",
        view.log_end,
        view.flushed_offset,
        view.dispatched_offset,
        view.confirmed_offset,
        alive,
    )
    if not view.slaves:
        return [(*own, "no slave", "-", "-", writable)]
    blank = ("",) * len(own)
    return [
        (
            *(own if index == 0 else blank),
            slave.peer,
            slave.acknowledged_offset,
            size_text(slave.lag_bytes),
            writable if index == 0 else "",
        )
        for index, slave in enumerate(view.slaves)
    ]
