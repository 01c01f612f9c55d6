"""`whimbrel cluster`: the registered brokers.

The nameserver lists them. The end of a log is asked of the broker itself, since the nameserver learns it only
with each renewal; of a broker that does not answer, the nameserver's last value is shown.
"""

import dataclasses
import time

from whimbrel.cli.endpoint import EndpointOption, resolve_endpoint
from whimbrel.cli.lazy import examples
from whimbrel.cli.output import Format, OutputOption, emit, note, size_text

__all__ = ["EXAMPLES", "cluster"]

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
    "writable",
    "topics",
    "renewed",
)


def cluster(endpoint: EndpointOption = "", output: OutputOption = Format.TABLE) -> None:
    """Show the brokers that a nameserver knows to live, and how far their logs reach."""
    from whimbrel.client import Cluster, sync

    notes = []
    with sync.Admin(resolve_endpoint(endpoint)) as admin:
        known = admin.cluster()
        views = {}
        for view in admin.replication():
            if isinstance(view, tuple):
                broker, error = view
                notes.append(f"{broker.broker_name} ({broker.role}) could not be asked: {error}")
                continue
            views[view.broker_name, view.broker_id] = view
            if view.advice:
                notes.append(f"{view.broker_name} ({view.role}): {view.advice}")
    brokers = []
    for broker in known.brokers:
        own = views.get((broker.broker_name, broker.broker_id))
        if own is not None:
            broker = dataclasses.replace(
                broker, log_begin=own.log_begin, log_end=own.log_end, writable=own.writable
            )
        brokers.append(broker)
    now = time.time()
    rows = [
        (
            broker.cluster,
            broker.broker_name,
            broker.broker_id,
            broker.role,
            broker.address,
            broker.ha_address or "-",
            broker.log_end,
            size_text(broker.log_end - broker.log_begin),
            "yes" if broker.writable else "no",
            broker.topic_count,
            "-" if broker.renewed_at is None else f"{max(0.0, now - broker.renewed_at):.1f} s ago",
        )
        for broker in brokers
    ]
    emit(Cluster(tuple(brokers), known.settled), output, columns=COLUMNS, rows=rows)
    if not brokers:
        note("no broker is registered with this nameserver")
    if not known.settled:
        note("the nameserver has just started: brokers may still be missing")
    for line in notes:
        note(line)
