"""What the administration calls return: brokers, topics, groups, replication.

Times are seconds since the epoch as floats, None when unknown.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from whimbrel.errors import Unavailable
from whimbrel.model.group_record import GroupRecord
from whimbrel.model.message import MessageType, ReceivedMessage
from whimbrel.model.retry import RetryPolicy
from whimbrel.model.route import Endpoint
from whimbrel.model.topic import OrderedBy

__all__ = [
    "AbsentBroker",
    "AbsentGroup",
    "BrokerStatus",
    "ClientStatus",
    "Cluster",
    "DeadLetter",
    "DeadLetterOutcome",
    "DeadLetterResult",
    "DrainStatus",
    "ElectionStatus",
    "GroupConfig",
    "GroupDescription",
    "GroupProgress",
    "OffsetMove",
    "QueueState",
    "ReplicationStatus",
    "SlaveStatus",
    "Takes",
    "TopicConfig",
    "TopicDescription",
]


class Takes(StrEnum):
    """Whether a broker takes messages: the words for it, wherever that is told."""

    MESSAGES = "takes messages"
    DRAINED = "drained"
    NOTHING = "reads only"

    @classmethod
    def of(cls, *, writable: bool, drained: bool) -> "Takes":
        """Return the word; a drained broker takes only what it stores of itself."""
        if not writable:
            return cls.NOTHING
        return cls.DRAINED if drained else cls.MESSAGES


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerStatus:
    """One live broker as a nameserver knows it; `role` is `master` or `slave`.

    Attributes:
        lane: as in `ReplicationStatus`; "" where only the nameserver was asked.
        epoch: in a group that elects its leader: which one it leads or follows, else 0.
        member_id: its id in such a group, else 0.
        drained: as in `ReplicationStatus`; False where only the nameserver was asked.
    """

    cluster: str
    broker_name: str
    broker_id: int
    role: str
    address: str
    ha_address: str
    log_begin: int
    log_end: int
    writable: bool
    renewed_at: float | None
    topic_count: int
    lane: str = ""
    epoch: int = 0
    member_id: int = 0
    drained: bool = False

    @property
    def takes(self) -> Takes:
        """Whether it takes messages."""
        return Takes.of(writable=self.writable, drained=self.drained)

    def endpoint(self) -> Endpoint:
        """Return where it is dialled.

        Raises:
            Unavailable: the nameserver has no address of it that can be.
        """
        try:
            return Endpoint.parse(self.address)
        except ValueError as error:
            raise Unavailable(f"the nameserver's address of {self.broker_name!r} is none: {error}") from None


@dataclass(frozen=True, slots=True, kw_only=True)
class AbsentBroker:
    """A broker that had a place at a nameserver and is away; `member_id` 0 where nobody is elected."""

    cluster: str
    broker_name: str
    broker_id: int
    member_id: int = 0
    since: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class AbsentGroup:
    """A broker group that was registered with a nameserver, and of which nobody is now.

    Attributes:
        topics: what it had, if that was asked for; None where those were too many to remember.
    """

    cluster: str
    broker_name: str
    renewed_at: float | None
    topics: frozenset[str] | None = frozenset()


@dataclass(frozen=True, slots=True)
class Cluster:
    """All live brokers; `settled` is False while a young nameserver may still miss some.

    Attributes:
        absent: who had a place and is away, as far as the nameserver remembers.
        absent_groups: groups of which nobody is there; empty from a nameserver of an earlier version.
        forgotten: names of groups that were let go of, and have not registered since.
    """

    brokers: tuple[BrokerStatus, ...]
    settled: bool
    absent: tuple[AbsentBroker, ...] = ()
    absent_groups: tuple[AbsentGroup, ...] = ()
    forgotten: frozenset[str] = frozenset()

    def masters(self) -> tuple[BrokerStatus, ...]:
        """Return the brokers of id 0 that are masters."""
        return tuple(broker for broker in self.brokers if broker.role == "master")


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicConfig:
    """A topic on one broker. Permission bits: 4 read, 2 write, 1 inherit.

    Attributes:
        answer: when its sends are answered where a majority commits, see `model/answers.py`.
        drained: its broker is, so it takes no messages.
    """

    name: str
    read_queues: int = 0
    write_queues: int = 0
    permission: int = 6
    type: MessageType = MessageType.NORMAL
    system: bool = False
    answer: str = "committed"
    drained: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class DrainStatus:
    """What is left at a broker that is drained.

    Delayed messages and open transactions become messages of their topics here, also while the broker is
    drained, so it is not empty before they have.

    Attributes:
        topics: that take no messages because of the drain.
        undelivered: messages that groups have not finished, summed over all groups.
        in_flight: of these, messages that consumers hold.
        delayed: messages that wait for their time; an estimate after a crash.
        open_transactions: that are undecided.
        unread: topics that no group has begun to read, and how many messages they hold.
    """

    broker_name: str
    topics: int
    undelivered: int
    in_flight: int
    delayed: int = 0
    open_transactions: int = 0
    unread: Mapping[str, int] = field(default_factory=dict)

    @property
    def drained(self) -> bool:
        """Whether the broker is drained."""
        return self.topics > 0

    @property
    def empty(self) -> bool:
        """Whether stopping it for good loses nothing: all messages are read, and none is to come."""
        return self.read_out and not self.unread

    @property
    def read_out(self) -> bool:
        """Whether it is empty but for topics that no group reads."""
        return self.drained and not (self.undelivered or self.delayed or self.open_transactions)


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueState:
    """A queue's range: first offset that can be read, and one past the last.

    Attributes:
        unfinished: messages that some group which reads the topic has not finished; all where no group does.
            0 from a broker of an earlier version.
    """

    queue_id: int
    min_offset: int
    max_offset: int
    last_stored_at: float | None
    unfinished: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicDescription:
    """A topic on one broker with the state of its queues."""

    broker_name: str
    topic: TopicConfig
    queues: tuple[QueueState, ...]
    groups: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupConfig:
    """A consumer group; `max_attempts` counts the first delivery.

    Attributes:
        fifo: whether its consumers get messages in order.
        ordered_by: what a message of an ordered group waits for.
        retry_policy: the waits between attempts; None where the broker does not tell, or for its default.
        priority_percent: how many of a hundred receives on a topic of priorities begin with the greatest
            ones; None where the broker does not tell, or for its default, 100.
    """

    name: str
    fifo: bool = False
    max_attempts: int = 0
    consume_enabled: bool = True
    ordered_by: OrderedBy = OrderedBy.QUEUE
    retry_policy: RetryPolicy | None = None
    priority_percent: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupProgress:
    """A group's state on one queue: see `GroupProgress` in the admin proto."""

    topic: str
    queue_id: int
    committed_offset: int
    next_offset: int
    max_offset: int
    in_flight: int
    lag: int


@dataclass(frozen=True, slots=True, kw_only=True)
class OffsetMove:
    """What a reset of a group's offset would do on one queue.

    Attributes:
        before, after: the first offset that is not finished, and where the group would go on.
        again: messages that are finished and would come again.
        skipped: messages that are not finished and would not come, at the most.
        in_flight: messages that consumers hold, whose leases would end.
    """

    topic: str
    queue_id: int
    before: int
    after: int
    again: int
    skipped: int
    in_flight: int

    @classmethod
    def of(cls, progress: GroupProgress, after: int) -> "OffsetMove":
        """Return what it does to put a group with this progress to an offset."""
        before = progress.committed_offset
        ahead = progress.max_offset - before - progress.lag  # finished out of order, behind the first one
        return cls(
            topic=progress.topic,
            queue_id=progress.queue_id,
            before=before,
            after=after,
            again=before - after + ahead
            if after <= before
            else max(progress.max_offset - after - progress.lag, 0),
            skipped=min(max(after - before, 0), progress.lag),
            in_flight=progress.in_flight,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientStatus:
    """A client of a group, with the time of its last call."""

    client_id: str
    language: str
    version: str
    last_seen_at: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupDescription:
    """A group on one broker: configuration, progress by topic and queue, clients."""

    broker_name: str
    group: GroupConfig
    progress: tuple[GroupProgress, ...]
    clients: tuple[ClientStatus, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class SlaveStatus:
    """One connection of a slave to a master's replication port.

    Attributes:
        broker_id: whose it is, 0 while that is not known.
        uncounted: its slave has a newer one, which counts.
    """

    peer: str
    acknowledged_offset: int
    sent_offset: int
    sent_bytes: int
    connected_at: float | None
    lag_bytes: int
    broker_id: int = 0
    uncounted: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class ElectionStatus:
    """What a member of a group that elects its leader says of that.

    Attributes:
        member: its id.
        state: what it is about: following, leading and so on.
        why: for people; may be empty.
        may_lead: its store is a voter's, and has lost nothing that it acknowledged.
        promised: the newest epoch that it has promised itself to.
        record: of the group, as it knows it; None before the group is made.
        coordinator_trouble: why the coordinator can't be asked for an election now; empty when it can.
    """

    member: int
    state: str
    why: str
    may_lead: bool
    promised: int
    record: GroupRecord | None
    coordinator_trouble: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicationStatus:
    """A broker's own view of its log and of its slaves.

    Attributes:
        slaves: the connections on a master's replication port.
        expected_slaves: how many connected slaves a master is to have; 0 on slaves, and when it is not known.
        lane: "on" where it uses the compiled lane, else "off, because ..."; from an earlier version that of
            the lane, or "".
        notes: what is worth knowing though nothing is wrong; for people.
        known_ends: of a master: how far its slaves were known to hold its log, by id, since it has led.
        drained: it takes no messages of clients until that is taken back.
        election: None where roles are configured.
    """

    broker_name: str
    broker_id: int
    role: str
    log_begin: int
    log_end: int
    flushed_offset: int
    confirmed_offset: int
    dispatched_offset: int
    replicator_alive: bool
    ha_address: str
    slaves: tuple[SlaveStatus, ...]
    connected: bool
    writable: bool
    advice: str
    replication: str
    flush: str
    expected_slaves: int = 0
    lane: str = ""
    notes: tuple[str, ...] = ()
    known_ends: Mapping[int, int] = field(default_factory=dict)
    drained: bool = False
    election: ElectionStatus | None = None

    @property
    def takes(self) -> "Takes":
        """Whether it takes messages."""
        return Takes.of(writable=self.writable, drained=self.drained)


@dataclass(frozen=True, slots=True, kw_only=True)
class DeadLetter:
    """A message that a group has given up.

    Attributes:
        message: as it stands in the dead-letter topic; its `delivery_attempt` is one more than the number of
            redeliveries that its record has.
        origin_topic: where it was sent to; empty where its record does not tell.
        attempts: how often it was delivered to the group before that gave it up.
    """

    group: str
    message: ReceivedMessage
    origin_topic: str
    attempts: int = 0


class DeadLetterResult(StrEnum):
    """What became of a dead letter that was to be put back or dropped."""

    DONE = "done"
    BEFORE = "before"  # it was put back or dropped before
    GONE = "gone"  # it is no longer there
    REFUSED = "refused"


@dataclass(frozen=True, slots=True, kw_only=True)
class DeadLetterOutcome:
    """What became of a dead letter; `topic`: where it was put back, `why`: why it was refused."""

    result: DeadLetterResult
    topic: str = ""
    why: str = ""
