"""The metrics of a nameserver: registrations, tables, and its calls."""

import time
from collections import Counter
from collections.abc import Iterator
from typing import TYPE_CHECKING

from whimbrel.metrics import Family, Labels, Number, bounded, build_info
from whimbrel.nameserver.options import NameserverOptions
from whimbrel.nameserver.registry import Registry
from whimbrel.nameserver.registry_service import RegistryService
from whimbrel.probes import Probes
from whimbrel.rpc.server.call_metrics import CallTimes, server_families
from whimbrel.rpc.server.forwarder import Forwarder, forward_family
from whimbrel.rpc.server.limits import RunningServer

if TYPE_CHECKING:
    from whimbrel.exposition import Exposition

__all__ = ["expose", "families"]


def expose(
    options: NameserverOptions,
    registry: Registry,
    brokers: RegistryService,
    forwarder: Forwarder,
    server: RunningServer,
    times: CallTimes,
    probes: Probes,
) -> "Exposition":
    """Serve the metrics, and the process's health.

    Raises:
        OSError: the port can't be had.
    """
    from whimbrel.exposition import serve_metrics

    return serve_metrics(
        [times.family(), forward_family(forwarder), *server_families(server), *families(registry, brokers)],
        host=options.host,
        port=options.metrics_port,
        service="whimbrel.nameserver",
        labels={"node_type": "nameserver", "role": "nameserver"},
        probes=probes,
    )


def families(registry: Registry, brokers: RegistryService) -> list[Family]:
    """Return the metrics of the tables."""

    def live() -> Iterator[tuple[Labels, Number]]:
        found: Counter[Labels] = Counter()
        for session in list(registry.live.values()):
            broker = session.broker
            group = registry.groups.get(broker.name)
            if group is not None and group.holders.get(broker.id) is session.session:
                found[group.cluster, "master" if broker.master else "slave"] += 1
        return bounded(found.items())

    return [
        build_info(),
        Family(
            name="whimbrel_nameserver_brokers",
            kind="gauge",
            labels=("cluster", "role"),
            help="Live brokers that routes may name.",
            read=live,
            fixed=False,
        ),
        Family(
            name="whimbrel_nameserver_sessions",
            kind="gauge",
            help="Registrations of brokers, also of those whose place another one has taken.",
            read=lambda: [((), len(registry.live))],
        ),
        Family(
            name="whimbrel_nameserver_groups_without_master",
            kind="gauge",
            help="Broker groups that only slaves have registered.",
            read=lambda: [((), registry.groups_without_master())],
        ),
        Family(
            name="whimbrel_nameserver_topics",
            kind="gauge",
            help="Topics with a route.",
            read=lambda: [((), len(registry.topics))],
        ),
        Family(
            name="whimbrel_nameserver_wiped_brokers",
            kind="gauge",
            help="Broker names whose write bit RocketMQ's tools have taken out of routes.",
            read=lambda: [((), len(registry.wiped))],
        ),
        Family(
            name="whimbrel_nameserver_expired_leases_total",
            kind="counter",
            help="Brokers removed because their renewals did not come.",
            read=lambda: [((), brokers.expired)],
        ),
        Family(
            name="whimbrel_nameserver_settled",
            kind="gauge",
            help="1 once every living broker had the time to register.",
            read=lambda: [((), int(registry.settled(time.monotonic())))],
        ),
    ]
