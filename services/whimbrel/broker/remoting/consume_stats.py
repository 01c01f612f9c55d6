"""Requests about how far groups are: what `consumerProgress` and RocketMQ's Dashboard show.

    208  GET_CONSUME_STATS          a group: end, position and time on each queue of its topics, or of one
    317  GET_BROKER_CONSUME_STATS   all groups; computed in pieces, one request at a time
    303  QUERY_CONSUME_TIME_SPAN    a group on a topic: times of the first, the last and the next message
    308  QUERY_CORRECTION_OFFSET    by queue of a topic, where the group that is furthest behind stands
    43   GET_ALL_CONSUMER_OFFSET    positions of all groups

While members live, topics that the group does not subscribe to any more are left out, as in RocketMQ. Where a
group has read nothing of a queue it stands at the first message that is there.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from whimbrel.broker.consume.client_positions import ClientPositions
from whimbrel.broker.engine.tables import TableChanges
from whimbrel.broker.remoting.traffic import GOT, Traffic, of_group
from whimbrel.broker.tables.remoting_clients import RemotingClients
from whimbrel.deferred import Deferred
from whimbrel.errors import Throttled, TopicNotFound, WhimbrelError
from whimbrel.rpc.remoting.codes import RequestCode
from whimbrel.rpc.remoting.command import Command
from whimbrel.rpc.remoting.fastjson import MessageQueue, dump_body
from whimbrel.rpc.remoting.handlers import Handle, Outcome, Peer, Reply

__all__ = ["RemotingConsumeStats"]

STEP = 200  # queues that 317 looks at before others get their turn: about a millisecond


@dataclass(frozen=True, slots=True)
class Row:
    """A group on a queue."""

    queue_id: int
    committed: int
    next: int
    end: int


class RemotingConsumeStats:
    """Handles these requests. On the loop's thread."""

    def __init__(
        self,
        changes: TableChanges,
        clients: RemotingClients,
        positions: ClientPositions,
        traffic: Traffic,
        *,
        broker_name: str,
        address: Callable[[], str],
        wall_ms: Callable[[], int],
        soon: Callable[[Callable[[], None]], object],
    ) -> None:
        """Take what is read.

        Args:
            changes: the tables and the store.
            clients: members, and what groups subscribe to.
            positions: those of groups.
            traffic: rates.
            broker_name: names the queues.
            address: returns where clients reach this broker.
            wall_ms: the clock, in epoch milliseconds.
            soon: calls back in the loop's next iteration.
        """
        self.changes, self.topics, self.groups = changes, changes.topics, changes.groups
        self.store, self.clients, self.positions, self.traffic = changes.store, clients, positions, traffic
        self.broker_name, self.address, self.wall_ms, self.soon = broker_name, address, wall_ms, soon
        self.running: Deferred[Reply] | None = None  # a 317

    def handles(self) -> dict[int, Handle]:
        """Return the handlers by code."""
        return {
            RequestCode.GET_CONSUME_STATS: self.stats,
            RequestCode.GET_BROKER_CONSUME_STATS: self.all_stats,
            RequestCode.QUERY_CONSUME_TIME_SPAN: self.time_span,
            RequestCode.QUERY_CORRECTION_OFFSET: self.correction,
            RequestCode.GET_ALL_CONSUMER_OFFSET: self.all_offsets,
        }

    # What is shown of a queue

    def rows(self, group: str, only: str = "") -> dict[str, list[Row]]:
        """Return where a group stands, by topic and queue."""
        found: dict[str, list[Row]] = {}
        for one in self.positions.positions.progress(group, self.queues_of):
            if one.topic in self.topics.rows and only in ("", one.topic) and self.wants(group, one.topic):
                row = Row(one.queue_id, one.committed_offset, one.next_offset, one.max_offset)
                found.setdefault(one.topic, []).append(row)
        return found

    def queues_of(self, topic: str) -> list[int]:
        config = self.topics.get(topic)
        return [] if config is None else self.store.queue_ids(topic, config.read_queues)

    def wants(self, group: str, topic: str) -> bool:
        """Tell whether a group consumes a topic still, as far as its members say."""
        members = self.clients.group(group)
        return members is None or topic in members.subscriptions

    def table(self, topic: str, rows: Iterable[Row]) -> dict[MessageQueue, Any]:
        return {
            MessageQueue(self.broker_name, row.queue_id, topic): {
                "brokerOffset": row.end,
                "consumerOffset": row.committed,
                "lastTimestamp": self.stored_at(topic, row.queue_id, row.committed - 1),
                "pullOffset": max(row.next, row.committed),
            }
            for row in rows
        }

    def stored_at(self, topic: str, queue_id: int, offset: int) -> int:
        """Return when a message was stored, 0 where it is not there."""
        low, high = self.store.queue_range(topic, queue_id)
        if not low <= offset < high:
            return 0
        unit = self.store.queue_units(topic, queue_id, offset, 1)
        return self.store.store_time_of(unit[0][0]) if unit else 0

    def rate(self, group: str, topics: Iterable[str]) -> float:
        """Return messages by the second that a group finished in the last minute."""
        spans = (self.traffic.spans.get((GOT, of_group(topic, group))) for topic in topics)
        return sum((one.last_minute().tps for one in spans if one is not None), 0.0)

    # 208

    def stats(self, peer: Peer, request: Command) -> Reply:
        """Show how far a group is."""
        group = request.text("consumerGroup")
        found = self.rows(group, request.fields.get("topic", ""))
        table: dict[MessageQueue, Any] = {}
        for topic, rows in found.items():
            table |= self.table(topic, rows)
        return Reply(body=[dump_body({"consumeTps": self.rate(group, found), "offsetTable": table})])

    # 317

    def all_stats(self, peer: Peer, request: Command) -> Outcome:
        """Show how far all groups are, on topics that are ordered or on all."""
        if self.running is not None and not self.running.cancelled:
            raise Throttled("another request about all groups is under way: ask again")
        deferred = self.running = Deferred[Reply]()
        steps = self.collect_all(request.boolean("isOrder"), deferred)

        def step() -> None:
            if self.running is not deferred or deferred.cancelled:
                return
            try:
                if next(steps, self) is self:
                    self.running = None
                else:
                    self.soon(step)
            except WhimbrelError as error:
                self.running = None
                deferred.fail(error)

        self.soon(step)
        return deferred

    def collect_all(self, ordered: bool, deferred: Deferred[Reply]) -> Iterator[None]:
        """Complete a request, some queues in each step."""
        by_group: dict[str, dict[str, dict[int, int]]] = {group: {} for group in self.groups.rows}
        for (topic, group), offsets in self.positions.positions.committed_offsets().items():
            config = self.topics.get(topic)
            if group in by_group and config is not None and (config.order or not ordered):
                by_group[group][topic] = offsets
        yield
        rows, behind, seen = [], 0, 0
        for group, topics in sorted(by_group.items()):
            stats = []
            for topic, offsets in sorted(topics.items()):
                if not self.wants(group, topic):
                    continue
                table: dict[MessageQueue, Any] = {}
                for queue_id in self.queues_of(topic):
                    low, end = self.store.queue_range(topic, queue_id)
                    committed = offsets.get(queue_id, low)
                    table |= self.table(topic, [Row(queue_id, committed, committed, end)])
                    behind += end - committed
                    seen += 1
                    if seen % STEP == 0:
                        yield
                stats.append({"consumeTps": self.rate(group, [topic]), "offsetTable": table})
            rows.append({group: stats})
        body = {
            "brokerAddr": self.address(),
            "consumeStatsList": rows,
            "totalDiff": behind,
            "totalInflightDiff": 0,
        }
        deferred.complete(Reply(body=[dump_body(body)]))

    # 303

    def time_span(self, peer: Peer, request: Command) -> Reply:
        """Show how old a group's next messages on a topic are."""
        name, group = request.text("topic"), request.text("group")
        topic = self.topics.get(name)
        if topic is None:
            raise TopicNotFound(f"no topic {name}")
        spans = []
        for queue_id in range(topic.write_queues):
            low, high = self.store.queue_range(name, queue_id)
            known = self.positions.get(group, name, queue_id)
            committed = low if known is None else known
            first = self.stored_at(name, queue_id, low)
            last = self.stored_at(name, queue_id, high - 1)
            consumed = self.stored_at(name, queue_id, committed - 1) or first
            waiting = self.stored_at(name, queue_id, committed)
            spans.append(
                {
                    "consumeTimeStamp": consumed,
                    "delayTime": max(self.wall_ms() - waiting, 0) if waiting else 0,
                    "maxTimeStamp": last,
                    "messageQueue": MessageQueue(self.broker_name, queue_id, name),
                    "minTimeStamp": first,
                }
            )
        return Reply(body=[dump_body({"consumeTimeSpanSet": spans})])

    # 308, 43

    def correction(self, peer: Peer, request: Command) -> Reply:
        """Show, by queue of a topic, where the group stands that is furthest behind.

        Those below the position of `compareGroup` do not count, if one is named, nor do `filterGroups`.
        """
        topic, compared = request.text("topic"), request.fields.get("compareGroup", "")
        left_out = set(request.fields.get("filterGroups", "").split(","))
        every = self.positions.positions.committed_offsets()
        least = every.get((topic, compared), {})
        found: dict[int, int] = {}
        for (named, group), offsets in every.items():
            if named != topic or group in left_out:
                continue
            for queue_id, offset in offsets.items():
                if offset >= least.get(queue_id, 0):
                    found[queue_id] = min(offset, found.get(queue_id, offset))
        return Reply(body=[dump_body({"correctionOffsets": found})])

    def all_offsets(self, peer: Peer, request: Command) -> Reply:
        """Show the positions of all groups."""
        every = self.positions.positions.committed_offsets()
        table = {f"{topic}@{group}": offsets for (topic, group), offsets in every.items()}
        return Reply(body=[dump_body({"offsetTable": table})])
