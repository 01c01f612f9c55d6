"""`whimbrel cluster`: the brokers that live."""

import time

from whimbrel.cli.endpoint import EndpointOption, resolve_endpoint
from whimbrel.cli.lazy import examples
from whimbrel.cli.output import Format, OutputOption, emit, note, size_text

__all__ = ["EXAMPLES", "cluster"]

EXAMPLES = examples("whimbrel cluster", "whimbrel cluster --endpoint 127.0.0.1:8081 -o json")


def cluster(endpoint: EndpointOption = "", output: OutputOption = Format.TABLE) -> None:
    """Show the brokers that a nameserver knows to live, and how far their logs reach."""
    from whimbrel.client import sync

    with sync.Admin(resolve_endpoint(endpoint)) as admin:
        found = admin.cluster()
        advice = [
            f"{view.broker_name} ({view.role}): {view.advice}"
            for view in admin.replication()
            if not isinstance(view, tuple) and view.advice
        ]
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
        for broker in found.brokers
    ]
    emit(
        found,
        output,
        columns=(
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
        ),
        rows=rows,
    )
    if not found.brokers:
        note("no broker is registered with this nameserver")
    if not found.settled:
        note("the nameserver has just started: brokers may still be missing")
    for line in advice:
        note(line)
