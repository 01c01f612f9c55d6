"""`whimbrel cluster`: the registered brokers, and the masters that are missing among them.

The nameserver lists them. The end of a log is asked of the broker itself, since the nameserver learns it only
with each renewal; of a broker that does not answer, the nameserver's last value is shown.
"""

import dataclasses
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import typer

from whimbrel.cli.endpoint import EndpointOption, resolve_endpoint
from whimbrel.cli.lazy import examples
from whimbrel.cli.output import Format, OutputOption, emit, note, plain, size_text
from whimbrel.model.health import (
    NO_BROKER,
    UNSETTLED,
    View,
    advice_without_master,
    groups_without_master,
    missing_brokers,
    problem_of,
)
from whimbrel.model.unasked import lost_at

if TYPE_CHECKING:
    from whimbrel.client import BrokerStatus

__all__ = ["COLUMNS", "EXAMPLES", "OPTIONAL", "cluster"]

EXAMPLES = examples("whimbrel cluster", "whimbrel cluster --endpoint 127.0.0.1:8081 -o json")
COLUMNS = (
    "cluster",
    "broker",
    "id",
    "role",
    "address",
    "ha address",
    "log end",
    "log",
    "state",
    "topics",
    "renewed",
    "lane",
)
OPTIONAL = ("lane", "ha address", "log end", "cluster", "topics", "renewed")


def cluster(endpoint: EndpointOption = "", output: OutputOption = Format.TABLE) -> None:
    """Show the brokers that a nameserver knows to live, how far their logs reach, and what is wrong.

    Exit code 1 if there is no broker at all, one is missing, or one could not be asked; `whimbrel health` is
    for scripts that want to know more.
    """
    from whimbrel.client import sync

    with sync.Admin(resolve_endpoint(endpoint)) as admin:
        known = admin.cluster()
        views = admin.replication(known.brokers)
    brokers = updated(known.brokers, views)
    missing = groups_without_master(brokers)
    lost = missing_brokers(known.brokers, views, known.absent)
    now = time.time()
    rows = [missing_row(name, slaves) for name, slaves in missing.items()]
    rows += [row(broker, now) for broker in brokers]
    value = {
        "brokers": [plain(one) | {"state": one.takes.value} for one in brokers],
        "settled": known.settled,
        "missing_masters": list(missing),
        "missing": plain(lost),
    }
    if rows or output is not Format.TABLE:
        emit(value, output, columns=COLUMNS, rows=rows, optional=OPTIONAL)
    for name, slaves in missing.items():
        note(f"{name} (master): {advice_without_master(slaves, lost_at(name, known.absent))}")
    for view in views:
        if problem := problem_of(view):
            broker = view[0] if isinstance(view, tuple) else view
            note(f"{broker.broker_name} ({broker.role}): {problem}")
    for one in lost:
        note(f"{one.broker_name} ({one.who}): {one.advice}")
    if not known.settled:
        note(UNSETTLED)
    if not brokers:
        note(NO_BROKER)
    if not brokers or not known.settled or missing or lost or any(isinstance(view, tuple) for view in views):
        raise typer.Exit(1)


def updated(brokers: "Sequence[BrokerStatus]", views: Sequence[View]) -> "list[BrokerStatus]":
    """Return the brokers with what they say of their own logs."""
    own = {(view.broker_name, view.broker_id): view for view in views if not isinstance(view, tuple)}
    found = []
    for broker in brokers:
        view = own.get((broker.broker_name, broker.broker_id))
        if view is not None:
            broker = dataclasses.replace(
                broker,
                log_begin=view.log_begin,
                log_end=view.log_end,
                writable=view.writable,
                lane=view.lane,
                drained=view.drained,
            )
        found.append(broker)
    return found


def row(broker: "BrokerStatus", now: float) -> tuple[Any, ...]:
    return (
        broker.cluster,
        broker.broker_name,
        broker.broker_id,
        broker.role,
        broker.address,
        broker.ha_address or "-",
        broker.log_end,
        size_text(broker.log_end - broker.log_begin),
        broker.takes.value,
        broker.topic_count,
        "-" if broker.renewed_at is None else f"{max(0.0, now - broker.renewed_at):.1f} s ago",
        broker.lane.replace(",", " ").partition(" ")[0] or "-",  # why one is off stands in the other formats
    )


def missing_row(name: str, slaves: "Sequence[BrokerStatus]") -> tuple[Any, ...]:
    """Return the row of a master that is missing."""
    return slaves[0].cluster, name, 0, "master", "missing", "-", "-", "-", "missing", "-", "-", "-"
