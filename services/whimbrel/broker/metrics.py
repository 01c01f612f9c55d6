"""The metrics of a broker, under RocketMQ 5.3.3's names where it has one.

What is added up on the way is in `counted.py`. The rest is read at each scrape, in the serving thread: marks,
tables, lease states. A lease state may change while it is read, so a lag may be off by what is acknowledged
in that moment.
"""

import os
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal, Protocol

from whimbrel import __version__
from whimbrel.broker.api.leader_calls import LeaderCalls
from whimbrel.broker.consume.lease_store import LeaseStore
from whimbrel.broker.consume.leases import LeaseTable
from whimbrel.broker.consume.queue_leases import QueueLeases
from whimbrel.broker.counted import Counted
from whimbrel.broker.engine.waiting import Waiting
from whimbrel.broker.options import BrokerOptions
from whimbrel.broker.produce.appender import Appender
from whimbrel.broker.tables.clients import Clients
from whimbrel.broker.tables.groups import GroupTable
from whimbrel.broker.tables.topics import TopicTable
from whimbrel.broker.timing.snapshot import BOUNDS_S
from whimbrel.broker.timing.timers import Timers
from whimbrel.broker.transactions.transactions import Transactions
from whimbrel.lane import Lane
from whimbrel.metrics import (
    Family,
    Histogram,
    Labels,
    Number,
    Point,
    Traffic,
    bounded,
)
from whimbrel.model.names import RETRY_PREFIX, TRANSACTION_GROUP, is_system_topic
from whimbrel.model.topic import MessageType, TopicConfig
from whimbrel.rpc.server.forwarder import Forwarder, forward_family
from whimbrel.store.master_store import MasterStore
from whimbrel.store.recovery import store_time_at
from whimbrel.store.retention import DiskUse
from whimbrel.store.segment import segment_name
from whimbrel.store.shared_page import SharedPage
from whimbrel.store.store import MessageStore

if TYPE_CHECKING:
    from whimbrel.broker.cluster.leader_state import LeaderState
    from whimbrel.broker.elections.elector import Elector

__all__ = [
    "Behind",
    "ReserveTime",
    "behind",
    "connections",
    "consumers",
    "elections",
    "held_calls",
    "labels_of",
    "lag_of",
    "lane_metrics",
    "master_metrics",
    "replication",
    "serving",
    "slave_metrics",
    "state_metrics",
    "storage",
    "timing_metrics",
    "traffic",
    "transaction_metrics",
    "upkeep_metrics",
]

READ_WRITE, READ_ONLY = 6, 4  # RocketMQ's bits
STORAGE = ("storage_type", "storage_medium")  # RocketMQ's labels, each with one value
DISK = ("local", "disk")
SYSTEM_GROUP = "cid_rmq_sys_"
TEXT_MAX = 64  # of what clients say of themselves

# Numbers of `apache.rocketmq.v2.ClientType`, and RocketMQ's word for how such consumers consume.
PRODUCER = 1
CONSUME_MODES = {2: "push", 3: "pull", 4: "pull"}

QueuesOf = Callable[[str], Iterable[int]]  # numbers of a topic's queues
RangeOf = Callable[[str, int], tuple[int, int]]  # first and next offset of a topic's queue


def lane_metrics(lane: Lane) -> list[Family]:
    """Return what the compiled lane is doing."""
    return [
        Family(
            name="whimbrel_lane",
            kind="gauge",
            labels=("version",),
            help="1 while the compiled lane is used, else 0.",
            read=lambda: [((__version__,), int(lane.active))],
        ),
        Family(
            name="whimbrel_lane_failures",
            kind="counter",
            help="Faults of the compiled lane; the first one switches it off.",
            read=lambda: [((), lane.failures)],
        ),
        Family(
            name="whimbrel_lane_messages",
            kind="counter",
            help="Messages of producers that the compiled lane has stored.",
            read=lambda: [((), lane.messages)],
        ),
        Family(
            name="whimbrel_lane_delivered",
            kind="counter",
            help="Messages for consumers that the compiled lane has made from the log.",
            read=lambda: [((), lane.delivered)],
        ),
        Family(
            name="whimbrel_lane_acknowledged",
            kind="counter",
            help="Messages that consumers have acknowledged by the compiled lane.",
            read=lambda: [((), lane.acknowledged)],
        ),
    ]


def labels_of(options: BrokerOptions, role: str) -> dict[str, str]:
    """Return the labels of every series of a broker."""
    return {
        "cluster": options.cluster,
        "node_type": "broker",
        "node_id": options.name,  # as RocketMQ has it, so a master and its slaves share it
        "role": role,
    }


# Sends and deliveries


def traffic(topic_of: Callable[[str], TopicConfig | None], counted: Counted) -> list[Family]:
    """Return what goes in and out; `topic_of` finds a topic by its name."""
    incoming = ("topic", "message_type", "is_system")
    outgoing = ("topic", "consumer_group", "is_retry", "is_system")

    def into(number: Callable[[Histogram], Number | Histogram]) -> Iterator[Point]:
        for (topic,), sizes in counted.sizes.items():
            config = topic_of(topic)
            kind = MessageType.NORMAL if config is None else config.message_type
            yield (topic, kind.lower(), is_system(topic, "")), number(sizes)

    def out(number: Callable[[Traffic], int]) -> Iterator[Point]:
        for (topic, group), sent in counted.delivered.items():
            yield (topic, group, is_retry(topic), is_system(topic, group)), number(sent)

    def dead() -> Iterator[Point]:
        for (group, topic), sent in counted.dead_letters.items():
            yield (group, topic, is_system(topic, group)), sent.messages

    def counter(name: str, labels: Labels, read: Callable[[], Iterable[Point]], help: str) -> Family:
        return Family(name=name, kind="counter", labels=labels, read=read, help=help, fixed=False)

    return [
        counter("rocketmq_messages_in_total", incoming, lambda: into(lambda sizes: sizes.count),
                "Messages stored, by topic."),
        counter("rocketmq_throughput_in_total", incoming, lambda: into(lambda sizes: int(sizes.total)),
                "Bytes of the records of stored messages, by topic."),
        counter("rocketmq_messages_out_total", outgoing, lambda: out(lambda sent: sent.messages),
                "Messages delivered, by topic and group."),
        counter("rocketmq_throughput_out_total", outgoing, lambda: out(lambda sent: sent.bytes),
                "Bytes of the records of delivered messages, by topic and group."),
        counter("rocketmq_send_to_dlq_messages_total", ("consumer_group", "topic", "is_system"), dead,
                "Messages that groups gave up, by group and by the topic that they were sent to."),
        Family(
            name="rocketmq_message_size", kind="histogram", labels=incoming,
            read=lambda: into(lambda sizes: sizes), fixed=False,
            help="Bytes of the records of stored messages.",
        ),
    ]  # fmt: skip


def is_retry(topic: str) -> str:
    """Return RocketMQ's label."""
    return "true" if topic.startswith(RETRY_PREFIX) else "false"


def is_system(topic: str, group: str) -> str:
    """Return RocketMQ's label."""
    return "true" if is_system_topic(topic) or group.lower().startswith(SYSTEM_GROUP) else "false"


# Clients


def connections(clients: Clients) -> list[Family]:
    """Return the connected clients; one counts until it terminates or is silent for too long."""
    producing = ("language", "version", "protocol_type")

    def producers() -> Iterator[Point]:
        found = Counter(
            (client.language.lower()[:TEXT_MAX], client.version[:TEXT_MAX], "grpc")
            for client in clients.all()
            if client.client_type == PRODUCER
        )
        return bounded(found.items())

    def consuming() -> Iterator[Point]:
        found = Counter(
            (
                client.group,
                client.language.lower()[:TEXT_MAX],
                client.version[:TEXT_MAX],
                CONSUME_MODES[client.client_type],
                "grpc",
                is_system("", client.group),
            )
            for client in clients.all()
            if client.client_type in CONSUME_MODES
        )
        return bounded(found.items())

    return [
        Family(
            name="rocketmq_producer_connections",
            kind="gauge",
            labels=producing,
            help="Producers that this broker knows.",
            read=producers,
            fixed=False,
        ),
        Family(
            name="rocketmq_consumer_connections",
            kind="gauge",
            labels=("consumer_group", "language", "version", "consume_mode", "protocol_type", "is_system"),
            help="Consumers that this broker knows.",
            read=consuming,
            fixed=False,
        ),
        Family(
            name="whimbrel_clients",
            kind="gauge",
            help="Clients that this broker knows, also those that have not said what they are.",
            read=lambda: [((), len(clients))],
        ),
    ]


# Consumer groups


@dataclass(frozen=True, slots=True)
class Behind:
    """How far a group is on one queue, in messages."""

    group: str
    topic: str
    queue_id: int
    lag: int
    inflight: int
    ready: int


def behind(table: LeaseTable, queues_of: QueuesOf, range_of: RangeOf) -> Iterator[Behind]:
    """Yield how far groups are on every queue of the topics that they read.

    A group that has taken nothing from a queue yet begins at its first message, so all of it lies ahead. The
    positions of transactions are no group's: they are how far all is decided.
    """
    started: dict[tuple[str, str], dict[int, int]] = {}
    for group, topic, (queue_id, _, committed) in table.positions():
        if committed >= 0 and group != TRANSACTION_GROUP:
            started.setdefault((group, topic), {})[queue_id] = committed
    for (group, topic), known in started.items():
        for queue_id in sorted({*known, *queues_of(topic)}):
            low, high = range_of(topic, queue_id)
            kept = high - low
            if queue_id not in known:
                yield Behind(group, topic, queue_id, kept, 0, kept)
                continue
            one = table.by_queue.get((group, topic, queue_id))
            if one is None:  # it rests: nothing is held
                lag = min(max(high - known[queue_id], 0), kept)
                yield Behind(group, topic, queue_id, lag, 0, lag)
                continue
            ready = min(max(high - one.next, 0), kept)
            yield Behind(group, topic, queue_id, min(lag_of(one, high), kept), len(one.leases), ready)


def consumers(table: LeaseTable, topics: TopicTable, store: MessageStore) -> list[Family]:
    """Return how far groups are."""
    by_topic = ("consumer_group", "topic", "is_retry", "is_system")

    def queues_of(topic: str) -> list[int]:
        config = topics.get(topic)
        return [] if config is None else store.queue_ids(topic, config.read_queues)

    def all_behind() -> Iterator[Behind]:
        return behind(table, queues_of, store.queue_range)

    def summed(number: Callable[[Behind], int]) -> Iterator[Point]:
        found: Counter[tuple[str, str]] = Counter()
        for one in all_behind():
            found[one.group, one.topic] += number(one)
        return bounded(
            ((group, topic, is_retry(topic), is_system(topic, group)), value)
            for (group, topic), value in found.items()
        )

    def by_queue() -> Iterator[Point]:
        return bounded(((one.group, one.topic, str(one.queue_id)), one.lag) for one in all_behind())

    def gauge(name: str, labels: Labels, read: Callable[[], Iterable[Point]], help: str) -> Family:
        return Family(name=name, kind="gauge", labels=labels, read=read, help=help, fixed=False)

    return [
        gauge("rocketmq_consumer_lag_messages", by_topic, lambda: summed(lambda one: one.lag),
              "Messages that a group has not acknowledged, delivered or not."),
        gauge("rocketmq_consumer_inflight_messages", by_topic, lambda: summed(lambda one: one.inflight),
              "Messages that a group has received and not acknowledged."),
        gauge("rocketmq_consumer_ready_messages", by_topic, lambda: summed(lambda one: one.ready),
              "Messages that a group has not received yet."),
        gauge("whimbrel_consumer_queue_lag_messages", ("consumer_group", "topic", "queue_id"), by_queue,
              "Messages that a group has not acknowledged, by queue."),
    ]  # fmt: skip


def lag_of(state: QueueLeases, end: int) -> int:
    """Return how many messages below `end` are not done; may run while the state changes."""
    try:
        return max(state.unfinished(end), 0)
    except ValueError:  # read between two halves of a change: count what lies beyond the committed offset
        return max(end - state.committed, 0)


# The store


def storage(directory: Path, store: MessageStore, leases: LeaseStore) -> list[Family]:
    """Return what the store and its disk are like; `directory`: of its log."""

    def disk_gauge(name: str, unit: str, help: str, read: Callable[[], Iterable[Number]]) -> Family:
        return Family(name=name, kind="gauge", unit=unit, labels=STORAGE, help=help,
                      read=lambda: [(DISK, value) for value in read()])  # fmt: skip

    def gauge(name: str, unit: str, help: str, read: Callable[[], Number]) -> Family:
        return Family(name=name, kind="gauge", unit=unit, help=help, read=lambda: [((), read())])

    def counter(name: str, help: str, read: Callable[[], int]) -> Family:
        return Family(name=name, kind="counter", help=help, read=lambda: [((), read())])

    reserve = ReserveTime(directory, lambda: store.min_offset)
    return [
        disk_gauge("rocketmq_storage_size", "bytes", "Bytes used on the file system of the store.",
                   lambda: [used_bytes(directory)]),
        disk_gauge("rocketmq_storage_flush_behind_bytes", "bytes", "Bytes of the log that are not on disk.",
                   lambda: [max(store.written - store.flushed, 0)]),
        disk_gauge("rocketmq_storage_dispatch_behind_bytes", "bytes",
                   "Bytes of the log that do not stand in the consume queues yet.",
                   lambda: [max(store.written - store.dispatched, 0)]),
        gauge("whimbrel_uncommitted_bytes", "By", "Bytes of the log that no majority holds yet.",
              lambda: max(store.written - store.visible_end, 0)),
        disk_gauge("rocketmq_storage_message_reserve_time", "milliseconds",
                   "Age of the oldest message in the log.", lambda: reserve.milliseconds(time.time())),
        gauge("whimbrel_disk_used_ratio", "1", "How full the file system of the store is, 0 to 1.",
              lambda: DiskUse.of(directory).ratio),
        gauge("whimbrel_disk_free_bytes", "By", "Bytes that the store could still take.",
              lambda: free_bytes(directory)),
        counter("whimbrel_lease_sync_failures_total", "Syncs of the lease journal that the disk refused.",
                lambda: leases.journal.sync_failures),
        counter("whimbrel_lease_entries_refused_total",
                "Lease entries of other brokers and of the journal that were left out.",
                lambda: leases.checks.refused),
    ]  # fmt: skip


def serving(
    topics: TopicTable, groups: GroupTable, polls: Waiting, writable: Callable[[], bool]
) -> list[Family]:
    """Return what is served, and who waits for messages."""

    def gauge(name: str, help: str, read: Callable[[], Number]) -> Family:
        return Family(name=name, kind="gauge", help=help, read=lambda: [((), read())])

    return [
        gauge("rocketmq_topic_number", "Topics.", lambda: len(topics.rows)),
        gauge("rocketmq_consumer_group_number", "Consumer groups.", lambda: len(groups.rows)),
        gauge("rocketmq_broker_permission", "6 while the broker takes messages, else 4.",
              lambda: READ_WRITE if writable() else READ_ONLY),
        gauge("whimbrel_long_polls_held", "Receives and pulls that wait for messages.",
              lambda: polls.parked),
    ]  # fmt: skip


class ReserveTime:
    """The store time of the log's first record; it changes only when files are removed."""

    def __init__(self, directory: Path, begin: Callable[[], int]) -> None:
        self.directory, self.begin = directory, begin
        self.known: tuple[int, int] = (-1, 0)  # the log's begin, and the time in its first record

    def milliseconds(self, now: float) -> list[int]:
        """Return how old the record is; nothing when there is none."""
        begin = self.begin()
        at, stored_ms = self.known
        if at != begin or not stored_ms:
            stored_ms = store_time_at(self.read, begin)
            self.known = begin, stored_ms
        return [max(int(now * 1000) - stored_ms, 0)] if stored_ms else []

    def read(self, offset: int, size: int) -> bytes:
        """Return the first bytes of the file that begins at an offset; none when it has just gone."""
        try:
            with (self.directory / segment_name(offset)).open("rb") as file:
                return file.read(size)
        except OSError:
            return b""


def used_bytes(path: Path) -> int:
    """Return what RocketMQ takes for the storage's size: what of its file system is used."""
    stats = os.statvfs(path)
    return (stats.f_blocks - stats.f_bfree) * stats.f_frsize


def free_bytes(path: Path) -> int:
    """Return what ordinary processes may still use of a file system."""
    stats = os.statvfs(path)
    return stats.f_bavail * stats.f_frsize


# Replication, as far as a broker sees it


def replication(page: SharedPage) -> list[Family]:
    """Return the state of the replicator as the shared page has it."""
    return [
        Family(
            name="whimbrel_replicator_alive",
            kind="gauge",
            help="1 while the replicator beside this broker beats.",
            read=lambda: [((), int(page.replica_alive(time.monotonic_ns())))],
        )
    ]


# What only one role has


def master_metrics(
    store: MasterStore, appender: Appender, forwarder: Forwarder, counted: Counted
) -> list[Family]:
    """Return what a master appends, flushes and waits for."""
    began = store.written
    return [
        forward_family(forwarder),
        Family(
            name="whimbrel_append_bytes_total",
            kind="counter",
            unit="By",
            help="Bytes by which the log has grown since the start.",
            read=lambda: [((), max(store.written - began, 0))],
        ),
        Family(
            name="whimbrel_append_records_total",
            kind="counter",
            help="Records appended to the log since the start.",
            read=lambda: [((), sum(sizes.count for _, sizes in counted.sizes.items()))],
        ),
        Family(
            name="whimbrel_flush_seconds",
            kind="histogram",
            unit="s",
            help="How long it took to put the log on disk, each time.",
            read=lambda: [((), counted.flushes)],
        ),
        Family(
            name="whimbrel_failed_syncs_total",
            kind="counter",
            help="Syncs of the log that the disk refused since the start.",
            read=lambda: [((), store.writer.failed_syncs)],
        ),
        Family(
            name="whimbrel_sends_parked",
            kind="gauge",
            help="Sends that wait for the disk or for slaves.",
            read=lambda: [((), appender.waiting_count)],
        ),
        Family(
            name="whimbrel_replication_in_sync_slaves",
            kind="gauge",
            help="Connected slaves that lack less than `slave_fallbehind_max_bytes`.",
            read=lambda: [((), appender.in_sync_slaves())],
        ),
    ]


class Upkeep(Protocol):
    """What goes for want of space, and how near that is (`roles/upkeep.py`)."""

    @property
    def dropped(self) -> int: ...
    @property
    def unread(self) -> int: ...
    @property
    def limit(self) -> float: ...
    @property
    def limit_s(self) -> float | None: ...


def upkeep_metrics(upkeep: Upkeep) -> list[Family]:
    """Return what goes for want of space."""
    return [
        Family(
            name="whimbrel_dropped_messages_total",
            kind="counter",
            help="Messages that went for want of space since the start, though they were not old enough.",
            read=lambda: [((), upkeep.dropped)],
        ),
        Family(
            name="whimbrel_dropped_unfinished_total",
            kind="counter",
            help="Those of them that groups had not finished, each group's added.",
            read=lambda: [((), upkeep.unread)],
        ),
        Family(
            name="whimbrel_disk_limit_ratio",
            kind="gauge",
            help="How full the disk may be before messages go, or sends are refused.",
            read=lambda: [((), upkeep.limit)],
        ),
        Family(
            name="whimbrel_disk_limit_seconds",
            kind="gauge",
            unit="s",
            help="In how long that is, as the disk has filled lately; none while it does not.",
            read=lambda: [((), seconds)] if (seconds := upkeep.limit_s) is not None else [],
        ),
    ]


def state_metrics(state: "LeaderState", clamped: Callable[[], int]) -> list[Family]:
    """Return what an elected leader's clients wait for beside the log; `clamped`: see the last of them."""
    kinds = (("leases", state.leases), ("metadata", state.metadata))
    return [
        Family(
            name="whimbrel_state_waiting",
            kind="gauge",
            labels=("kind",),
            help="Answers that wait until a majority has stored a change.",
            read=lambda: [((kind,), quorum.waiting_count) for kind, quorum in kinds],
        ),
        Family(
            name="whimbrel_state_expired_total",
            kind="counter",
            labels=("kind",),
            help="Answers of which nobody knows whether their effect stays: no majority stored it in time.",
            read=lambda: [((kind,), quorum.expired) for kind, quorum in kinds],
        ),
        Family(
            name="whimbrel_state_members",
            kind="gauge",
            labels=("kind",),
            help="Other voters that have stored all that this leader began with.",
            read=lambda: [
                (("leases",), len(state.leases.holders(max(state.begun_at, 1)))),
                (("metadata",), len(state.metadata.holders(1))),
            ],
        ),
        Family(
            name="whimbrel_state_clamped_queues_total",
            kind="counter",
            help="Queues of which leases went beyond the log when this leader began to serve; never, unless"
            " a majority has lost messages.",
            read=lambda: [((), clamped())],
        ),
    ]


def transaction_metrics(transactions: Transactions) -> list[Family]:
    """Return how many transactions are open, and how others have ended."""

    def by_topic(counts: Mapping[str, int]) -> Callable[[], Iterable[Point]]:
        return lambda: bounded(((topic,), count) for topic, count in dict(counts).items())

    def counter(name: str, counts: Mapping[str, int], help: str) -> Family:
        return Family(
            name=name, kind="counter", labels=("topic",), read=by_topic(counts), help=help, fixed=False
        )

    return [
        Family(
            name="rocketmq_half_messages", kind="gauge", labels=("topic",), fixed=False,
            help="Transactions that are undecided.", read=by_topic(transactions.table.count_by_topic),
        ),
        counter("rocketmq_commit_messages_total", transactions.committed, "Transactions committed."),
        counter("rocketmq_rollback_messages_total", transactions.rolled_back, "Transactions rolled back."),
        Family(
            # RocketMQ's unit, though it counts seconds.
            name="rocketmq_finish_message_latency", kind="histogram", unit="ms", labels=("topic",),
            fixed=False, help="Seconds from the message of a transaction to its decision.",
            read=transactions.latency.items,
        ),
    ]  # fmt: skip


def held_calls(calls: LeaderCalls | None) -> list[Family]:
    """Return how many calls of clients wait for a leader; None: none ever does."""
    return [
        Family(
            name="whimbrel_held_calls",
            kind="gauge",
            help="Calls of clients that wait for a leader, or for a role.",
            read=lambda: [((), 0 if calls is None else len(calls.held))],
        ),
        Family(
            name="whimbrel_held_bytes",
            kind="gauge",
            unit="By",
            help="Bytes of the calls that wait for a leader, or for a role.",
            read=lambda: [((), 0 if calls is None else calls.held.bytes)],
        ),
    ]


def elections(elector_of: Callable[[], "Elector | None"]) -> list[Family]:
    """Return what this member has to do with who leads; zeros where roles are configured."""

    def gauge(name: str, help_text: str, value: Callable[["Elector"], int]) -> Family:
        def read() -> list[tuple[Labels, Number]]:
            elector = elector_of()
            return [((), 0 if elector is None else value(elector))]

        return Family(name=name, kind="gauge", help=help_text, read=read)

    return [
        gauge("whimbrel_epoch", "Epoch that this member leads or follows.", lambda elector: elector.epoch),
        gauge(
            "whimbrel_leads", "1 while this member leads.", lambda elector: elector.takeover.term is not None
        ),
        gauge(
            "whimbrel_may_lead",
            "1 while this member may be elected: its store is a voter's, and has lost nothing.",
            lambda elector: elector.state().may_lead,
        ),
        gauge(
            "whimbrel_waiting_elsewhere",
            "Delayed messages and undecided transactions that this leader lacks, and another member has.",
            lambda elector: sum(elector.takeover.waiting_elsewhere.values()),
        ),
    ]


def slave_metrics(store: MessageStore, calls: LeaderCalls | None, counted: Counted) -> list[Family]:
    """Return how far dispatching is behind, and what was handed on to the leader."""
    return [
        forward_family(None if calls is None else calls.forwarder),
        Family(
            name="whimbrel_dispatch_lag_seconds",
            kind="gauge",
            unit="s",
            help="For how long the log has been beyond what stands in the consume queues.",
            read=lambda: [((), counted.trail.age(store.dispatched, time.monotonic()))],
        ),
    ]


def timing_metrics(timers: Timers) -> list[Family]:
    """Return how many messages wait for their time, and how far delivery and intake are behind."""

    def gauge(name: str, unit: str, help: str, read: Callable[[], int]) -> Family:
        return Family(name=name, kind="gauge", unit=unit, labels=STORAGE, help=help,
                      read=lambda: [(DISK, read())])  # fmt: skip

    def by_topic(
        name: str, kind: Literal["counter", "gauge"], counts: Mapping[str, int], help: str
    ) -> Family:
        return Family(
            name=name, kind=kind, labels=("topic", *STORAGE), fixed=False, help=help,
            read=lambda: bounded(((topic, *DISK), count) for topic, count in list(counts.items())),
        )  # fmt: skip

    return [
        by_topic("rocketmq_timing_messages", "gauge", timers.counts,
                 "Messages that wait for their time, by topic; an estimate after a crash."),
        Family(
            name="rocketmq_timer_message_snapshot", kind="gauge", labels=("timer_bound_s", *STORAGE),
            fixed=False, help="Messages that wait, by how far ahead their time is.",
            read=lambda: [
                ((str(bound), *DISK), count)
                for bound, count in zip(BOUNDS_S, timers.snapshot.ask(), strict=False)
            ],
        ),
        by_topic("rocketmq_timer_enqueue_total", "counter", timers.enqueued,
                 "Messages that got their place in the timer since the start."),
        by_topic("rocketmq_timer_dequeue_total", "counter", timers.slots.delivered,
                 "Messages delivered at their time since the start."),
        gauge("rocketmq_timer_enqueue_lag", "", "Messages of the timer topic without a place yet.",
              timers.enqueue_lag),
        gauge("rocketmq_timer_enqueue_latency", "ms",
              "For how long some messages of the timer topic have been without a place.", timers.enqueue_ms),
        gauge("rocketmq_timer_dequeue_lag", "", "Messages that have a place and wait, due or not.",
              lambda: sum(list(timers.counts.values()))),
        gauge("rocketmq_timer_dequeue_latency", "ms", "How far delivery is behind the clock.",
              timers.behind_ms),
        Family(
            name="rocketmq_delay_message_latency", kind="histogram", unit="seconds",
            labels=("topic", *STORAGE), fixed=False,
            help="Seconds that messages had left when they got their place in the timer.",
            read=lambda: [((*labels, *DISK), found) for labels, found in timers.delays.items()],
        ),
    ]  # fmt: skip
