"""What a replicator shows of itself: how far slaves are behind, and how long acknowledgements take.

On the master, `AckTimes` is notified of every move of the written mark and of every acknowledgement; the rest
is read from the page of marks. A mark counts from when the replicator sees it, which is after the bell has
woken it.
"""

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from whimbrel.metrics import SECONDS, Family, Histogram, Labels, Number, Trail, build_info
from whimbrel.probes import Probes
from whimbrel.replicator.feeder import Feeder
from whimbrel.replicator.follower import Follower
from whimbrel.replicator.options import ReplicatorOptions
from whimbrel.replicator.promises import Promises
from whimbrel.store.cut import Cut, list_cuts
from whimbrel.store.page_processes import Processes

if TYPE_CHECKING:
    from whimbrel.exposition import Exposition

__all__ = ["AckTimes", "MetricsPort", "feeder_families", "follower_families"]

SLAVE = ("slave", "slot")  # two slaves of one host differ by their slots


class AckTimes:
    """When the log was written where, and how long slaves take to acknowledge."""

    def __init__(self) -> None:
        self.trail = Trail()
        self.latency = Histogram(SECONDS)

    def written(self, end: int, now: float) -> None:
        """Note where the log ends."""
        self.trail.note(end, now)

    def acknowledged(self, offset: int, now: float) -> None:
        """Note that a slave has the log up to an offset; bytes written before the first note do not count."""
        at = self.trail.reached(offset)
        if at is not None:
            self.latency.observe(now - at)


class MetricsPort:
    """The port for Prometheus, where it is switched on: one for the process, whatever its role.

    Attributes:
        address: `host:port`, "" when metrics are off.
    """

    def __init__(self, options: ReplicatorOptions, probes: Probes) -> None:
        self.options, self.probes = options, probes
        self.exposition: Exposition | None = None
        self.address = ""

    def show(self, role: str, families: Callable[[], list[Family]]) -> None:
        """Serve what a role measures, instead of what was served before.

        Raises:
            OSError: the port can't be had.
        """
        if self.options.metrics_port < 0:
            return
        served = [build_info(), *families()]
        labels = {"node_type": "replicator", "role": role}
        if self.exposition is not None:
            self.exposition.replace(served, labels)
            return
        from whimbrel.exposition import serve_metrics

        self.exposition = serve_metrics(
            served,
            host=self.options.host,
            port=self.options.metrics_port,
            service="whimbrel.replicator",
            labels=labels,
            probes=self.probes,
        )
        self.address = self.exposition.address

    def close(self) -> None:
        """Serve nothing more."""
        if self.exposition is not None:
            self.exposition.close()
            self.exposition = None


def feeder_families(feeder: Feeder, times: AckTimes) -> list[Family]:
    """Return what the master's side knows."""
    page = feeder.page

    def by_slave(number: Callable[[int], Number]) -> Iterator[tuple[Labels, Number]]:
        for slot, acknowledged in enumerate(page.acks):
            peer = page.peer(slot)
            if peer and acknowledged >= 0:
                yield (peer.rpartition(":")[0], str(slot)), number(acknowledged)

    return [
        Family(
            name="whimbrel_replication_lag_bytes",
            kind="gauge",
            unit="By",
            labels=SLAVE,
            help="Bytes of the log that a slave has not acknowledged.",
            read=lambda: by_slave(lambda acknowledged: max(page.written - acknowledged, 0)),
            fixed=False,
        ),
        Family(
            name="whimbrel_replication_lag_seconds",
            kind="gauge",
            unit="s",
            labels=SLAVE,
            help="For how long the log has been beyond what a slave has acknowledged.",
            read=lambda: by_slave(lambda acknowledged: times.trail.age(acknowledged, time.monotonic())),
            fixed=False,
        ),
        Family(
            name="whimbrel_replication_ack_latency_seconds",
            kind="histogram",
            unit="s",
            help="From written at the master to acknowledged, for each acknowledgement of a slave.",
            read=lambda: [((), times.latency)],
        ),
        Family(
            name="whimbrel_replication_slaves",
            kind="gauge",
            help="Connected slaves, each once, however many connections it has.",
            read=lambda: [((), len(page.count_slaves().slaves))],
        ),
        Family(
            name="whimbrel_replication_sent_bytes_total",
            kind="counter",
            unit="By",
            help="Bytes sent to slaves, with the headers of frames.",
            read=lambda: [((), feeder.sent_bytes)],
        ),
        Family(
            name="whimbrel_replication_refused_total",
            kind="counter",
            help="Slaves turned away because their log ends beyond the master's.",
            read=lambda: [((), page.refused_count)],
        ),
        broker_alive(page),
    ]


def follower_families(follower: Follower, flushes: Histogram) -> list[Family]:
    """Return what the slave's side knows."""
    page = follower.page
    return [
        Family(
            name="whimbrel_replication_connected",
            kind="gauge",
            help="1 while the slave is connected to its master.",
            read=lambda: [((), page.connected)],
        ),
        Family(
            name="whimbrel_append_bytes_total",
            kind="counter",
            unit="By",
            help="Bytes by which the log has grown since the start.",
            read=lambda: [((), follower.appended_bytes)],
        ),
        Family(
            name="whimbrel_flush_seconds",
            kind="histogram",
            unit="s",
            help="How long it took to put the log on disk, each time.",
            read=lambda: [((), flushes)],
        ),
        Family(
            name="whimbrel_failed_syncs_total",
            kind="counter",
            help="Syncs of the log that the disk refused since the start.",
            read=lambda: [((), follower.log.failed_syncs)],
        ),
        Family(
            name="rocketmq_storage_flush_behind_bytes",
            kind="gauge",
            unit="bytes",
            labels=("storage_type", "storage_medium"),
            help="Bytes of the log that are not on disk.",
            read=lambda: [(("local", "disk"), max(page.written - page.flushed, 0))],
        ),
        *([] if follower.promises is None else cut_families(follower.root, follower.promises)),
        broker_alive(page),
    ]


def cut_families(root: Path, promises: Promises) -> list[Family]:
    """Return what is known of what was cut off the log of a member that elects its leader."""
    return [
        Family(
            name="whimbrel_cuts",
            kind="gauge",
            help="Cuts of the log that are kept for `whimbrel replication cut`.",
            read=lambda: [((), len(kept_cuts(root)))],
        ),
        Family(
            name="whimbrel_cut_bytes",
            kind="gauge",
            unit="By",
            help="Bytes of the cuts that are kept.",
            read=lambda: [((), sum(cut.size for cut in kept_cuts(root)))],
        ),
        Family(
            name="whimbrel_cuts_removed_total",
            kind="counter",
            help="Cuts that had to go since the start, because of --cut-keep-bytes.",
            read=lambda: [((), promises.cuts_removed)],
        ),
    ]


def kept_cuts(root: Path) -> list[Cut]:
    """Return the cuts that are kept; none where the disk can't tell."""
    try:
        return list_cuts(root)
    except OSError:
        return []


def broker_alive(page: Processes) -> Family:
    """Return the metric of the broker beside."""
    return Family(
        name="whimbrel_broker_alive",
        kind="gauge",
        help="1 while the broker beside this replicator beats.",
        read=lambda: [((), int(page.broker_alive(time.monotonic_ns())))],
    )
