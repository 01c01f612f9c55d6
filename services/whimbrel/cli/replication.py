"""`whimbrel replication status`: who follows whom, how far, and what is wrong."""

import sys
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from whimbrel.cli.endpoint import EndpointOption, resolve_endpoint
from whimbrel.cli.lazy import examples, group
from whimbrel.cli.output import Format, OutputOption, emit, note, plain, print_table, size_text
from whimbrel.errors import WhimbrelError
from whimbrel.model.health import (
    NO_BROKER,
    UNSETTLED,
    View,
    advice_without_master,
    groups_without_master,
    log_ends,
    master_state,
    problem_of,
    slave_lag,
    slave_state,
    step,
    what_may_be_lost,
)

if TYPE_CHECKING:
    from whimbrel.client import BrokerStatus, Cluster, ReplicationStatus, SlaveStatus, sync

__all__ = ["COLUMNS", "OPTIONAL", "app", "rows_of"]

app = group("Show who follows whom, and how far.")

COLUMNS = (
    "broker",
    "role",
    "state",
    "lag",
    "peer",
    "log end",
    "confirmed",
    "flushed",
    "dispatched",
    "acknowledged",
    "sends",
)
OPTIONAL = ("sends", "dispatched", "flushed", "acknowledged", "confirmed", "log end")
WATCH_S = 1.0  # between two polls of --watch


@app.command(
    epilog=examples(
        "whimbrel replication status",
        "whimbrel replication status --watch",
        "whimbrel replication status -o json",
        "whimbrel replication status > /dev/null || echo 'look at it'",
    )
)
def status(
    watch: Annotated[
        bool, typer.Option("--watch", "-w", help="Show it again every second, whatever it says.")
    ] = False,
    endpoint: EndpointOption = "",
    output: OutputOption = Format.TABLE,
) -> None:
    """Show each broker's log, its slaves, and what is wrong; exit code 1 if anything is.

    Wrong is: no broker, a group without a master, a broker that does not answer, a master that takes no
    messages or has fewer slaves than it is to have, a slave that is not connected, a dead replicator. A slave
    that is merely behind is not.
    """
    from whimbrel.client import sync

    with sync.Admin(resolve_endpoint(endpoint)) as admin:
        if watch:
            watch_views(admin, output)
        elif not show(*look(admin), output):
            raise typer.Exit(1)


def look(admin: "sync.Admin") -> "tuple[Cluster, list[View]]":
    """Return what a nameserver knows, and what the brokers say of themselves."""
    known = admin.cluster()
    return known, admin.replication(known.brokers)


def watch_views(admin: "sync.Admin", output: Format) -> None:
    """Show the state until interrupted; while the cluster does not answer, poll again."""
    clear = "\x1b[H\x1b[2J" if sys.stdout.isatty() and output is Format.TABLE else ""
    while True:
        try:
            known, views = look(admin)
        except WhimbrelError as error:
            note(str(error))
        else:
            sys.stdout.write(clear)
            sys.stdout.flush()
            show(known, views, output)
            sys.stdout.flush()
        time.sleep(WATCH_S)


def show(known: "Cluster", views: "Sequence[View]", output: Format) -> bool:
    """Show the state; return whether all is well."""
    missing = groups_without_master(known.brokers)
    problems = [f"{name} (master): {advice_without_master(slaves)}" for name, slaves in missing.items()]
    for view in views:
        if problem := problem_of(view):
            broker = view[0] if isinstance(view, tuple) else view
            problems.append(f"{broker.broker_name} ({broker.role}): {problem}")
    if not known.brokers:
        problems.append(NO_BROKER)
    if not known.settled:
        problems.append(UNSETTLED)
    if output is Format.TABLE:
        rows = [missing_row(name, slaves) for name, slaves in missing.items()]
        ends = log_ends(views)
        rows += [row for view in views for row in rows_of(view, ends)]
        if rows:
            print_table(COLUMNS, rows, optional=OPTIONAL)
        for view in views:
            if not isinstance(view, tuple) and view.role == "master":
                note(what_may_be_lost(view))
    else:
        objects = [missing_object(name, slaves) for name, slaves in missing.items()]
        emit([*objects, *map(as_object, views)], output, columns=(), rows=())
    for problem in problems:
        note(problem)
    return not problems


def missing_object(name: str, slaves: "Sequence[BrokerStatus]") -> dict[str, Any]:
    """Return a master that is missing, for JSON."""
    problem = advice_without_master(slaves)
    return {"broker_name": name, "broker_id": 0, "role": "master", "error": "missing"} | verdict(problem)


def as_object(view: View) -> dict[str, Any]:
    """Return a broker's view for JSON, with the verdict on it."""
    if isinstance(view, tuple):
        broker, error = view
        return {
            "broker_name": broker.broker_name,
            "broker_id": broker.broker_id,
            "role": broker.role,
            "error": str(error),
        } | verdict(problem_of(view))
    value = plain(view)
    assert isinstance(value, dict)
    if view.role == "master":
        value["may_be_lost"] = what_may_be_lost(view)
    return value | verdict(problem_of(view))


def verdict(problem: str) -> dict[str, Any]:
    return {"healthy": not problem, "problem": problem}


def missing_row(name: str, slaves: "Sequence[BrokerStatus]") -> tuple[Any, ...]:
    """Return the row of a master that is missing."""
    return name, "master", f"missing, slave {slaves[0].broker_id} serves reads", *("-",) * 8


def rows_of(view: View, ends: dict[str, int]) -> list[tuple[Any, ...]]:
    """Return a broker's rows, one for each slave of a master; `ends` has the masters' log ends by name."""
    if isinstance(view, tuple):
        broker = view[0]
        role = "master" if broker.role == "master" else f"slave {broker.broker_id}"
        return [(broker.broker_name, role, "no answer", "?", "?", broker.log_end, *("?",) * 5)]
    if view.role == "master":
        return [master_row(view), *map(peer_row, view.slaves)]
    lag = slave_lag(view, ends.get(view.broker_name))
    return [
        (
            view.broker_name,
            f"slave {view.broker_id}",
            slave_state(view, lag),
            "-" if lag is None else size_text(lag),
            view.ha_address or "unknown master",
            view.log_end,
            "-",
            view.flushed_offset,
            view.dispatched_offset,
            "-",
            "-",
        )
    ]


def master_row(view: "ReplicationStatus") -> tuple[Any, ...]:
    return (
        view.broker_name,
        "master",
        master_state(view),
        "",
        "",
        view.log_end,
        view.confirmed_offset,
        view.flushed_offset,
        view.dispatched_offset,
        "",
        f"{view.replication}, flush {view.flush}",
    )


def peer_row(slave: "SlaveStatus") -> tuple[Any, ...]:
    """Return the row of a slave's connection as its master sees it."""
    lag = slave.lag_bytes
    whose = f"of slave {slave.broker_id}" if slave.broker_id else ""
    state = "does not count" if slave.uncounted else step(lag)
    return ("", whose, state, size_text(lag), slave.peer, "", "", "", "", slave.acknowledged_offset, "")
