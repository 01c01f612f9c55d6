"""AdminService: topics, groups, offsets and replication of this broker, for operators and tools.

A slave refuses changes, since its tables are copies of its master's. Errors travel as gRPC statuses.
"""

from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from whimbrel.broker.api.message_codec import timestamp
from whimbrel.broker.api.table_changes import TableChanges, checked_permission, checked_queues
from whimbrel.broker.consume.group_consumption import GroupConsumption
from whimbrel.broker.consume.unread_queues import UnreadQueues, readers_among
from whimbrel.broker.tables.clients import Clients
from whimbrel.broker.tables.groups import GroupTable
from whimbrel.broker.tables.remoting_clients import RemotingClients
from whimbrel.broker.tables.shared_topics import TopicSharing
from whimbrel.broker.tables.topics import QUEUES_DEFAULT, TopicTable
from whimbrel.errors import (
    BadRequest,
    TopicNotFound,
)
from whimbrel.model.answers import answer_text, parse_answer
from whimbrel.model.cluster import GroupProgress
from whimbrel.model.limits import RETRY_MAX_DEFAULT
from whimbrel.model.names import BUILT_IN_GROUPS, check_group
from whimbrel.model.topic import READ, WRITE, GroupConfig, MessageType, TopicConfig
from whimbrel.model.wire import ADMIN_SERVICE
from whimbrel.pb.whimbrel.admin.v1 import admin_service_pb2 as admin
from whimbrel.rpc.api.group_policies import ORDER_NUMBERS, order_of, retry_policy_message, retry_policy_of
from whimbrel.rpc.server.handlers import Call, Service, UnaryMethod
from whimbrel.store.store import MessageStore

__all__ = ["TYPE_NUMBERS", "AdminService", "ReplicationView", "SlaveView", "progress_message"]

TYPES = {
    admin.MESSAGE_TYPE_UNSPECIFIED: MessageType.NORMAL,
    admin.MESSAGE_TYPE_NORMAL: MessageType.NORMAL,
    admin.MESSAGE_TYPE_FIFO: MessageType.FIFO,
    admin.MESSAGE_TYPE_DELAY: MessageType.DELAY,
    admin.MESSAGE_TYPE_TRANSACTION: MessageType.TRANSACTION,
    admin.MESSAGE_TYPE_MIXED: MessageType.MIXED,
    admin.MESSAGE_TYPE_PRIORITY: MessageType.PRIORITY,
}
TYPE_NUMBERS = {kind: number for number, kind in TYPES.items()}  # NORMAL has two; the last one counts


@dataclass(frozen=True, slots=True, kw_only=True)
class SlaveView:
    """One connection of a slave to this master's replication port."""

    peer: str
    acknowledged: int
    sent: int
    sent_bytes: int
    connected_at_ms: int
    broker_id: int
    uncounted: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class ElectionView:
    """What a member of a group that elects its leader knows of that; the fields of `ElectionState`."""

    member: int
    state: str
    why: str
    may_lead: bool
    promised: int
    record: bytes
    coordinator_trouble: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicationView:
    """Offsets of the log and the state of replication, as this broker knows them."""

    broker_name: str
    broker_id: int
    role: str
    log_begin: int
    log_end: int
    flushed: int
    confirmed: int
    dispatched: int
    replicator_alive: bool
    ha_address: str
    slaves: tuple[SlaveView, ...]
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
    election: ElectionView | None = None


class AdminService:
    """Handles the administration calls on the loop's thread."""

    def __init__(
        self,
        topics: TopicTable,
        groups: GroupTable,
        consumer: GroupConsumption,
        clients: Clients,
        store: MessageStore,
        *,
        master: bool,
        replication: Callable[[], ReplicationView],
        wall_ms: Callable[[float], int],
        waiting: Callable[[], tuple[int, int]],
        sharing: TopicSharing | None = None,
        members: RemotingClients | None = None,
    ) -> None:
        """Take the parts that are shown or changed.

        Args:
            topics: the topic table.
            groups: the group table.
            consumer: offsets and leases of groups.
            clients: the known clients.
            store: the log and its queues.
            master: changes are taken.
            replication: returns the state of replication.
            wall_ms: turns a time of the monotonic clock into epoch milliseconds.
            waiting: returns how many delayed messages wait, and how many transactions are open.
            sharing: what other brokers have of our topics; None at a slave.
            members: those of groups by the remoting protocol.
        """
        self.waiting, self.sharing, self.members = waiting, sharing, members
        self.topics, self.groups, self.consumer = topics, groups, consumer
        self.clients, self.store = clients, store
        self.unread = UnreadQueues(topics, consumer.positions, store)
        self.changes = TableChanges(topics, groups, consumer, store, master=master)
        self.replication = replication
        self.wall_ms = wall_ms

    def service(self, others: Sequence[UnaryMethod] = ()) -> Service:
        """Return the service for the transport, together with calls that have other handlers."""
        methods = (
            ("CreateTopic", admin.CreateTopicRequest, self.create_topic),
            ("UpdateTopic", admin.UpdateTopicRequest, self.update_topic),
            ("DeleteTopic", admin.DeleteTopicRequest, self.delete_topic),
            ("ListTopics", admin.ListTopicsRequest, self.list_topics),
            ("DescribeTopic", admin.DescribeTopicRequest, self.describe_topic),
            ("CreateGroup", admin.CreateGroupRequest, self.create_group),
            ("UpdateGroup", admin.UpdateGroupRequest, self.update_group),
            ("DeleteGroup", admin.DeleteGroupRequest, self.delete_group),
            ("ListGroups", admin.ListGroupsRequest, self.list_groups),
            ("DescribeGroup", admin.DescribeGroupRequest, self.describe_group),
            ("DrainBroker", admin.DrainBrokerRequest, self.drain_broker),
            ("ForgetBroker", admin.ForgetBrokerRequest, self.forget_broker),
            ("DescribeReplication", admin.DescribeReplicationRequest, self.describe_replication),
        )
        return Service(
            ADMIN_SERVICE,
            (*(UnaryMethod(name, request, handle) for name, request, handle in methods), *others),
        )

    # Topics

    def topic_message(self, topic: TopicConfig) -> admin.Topic:
        return admin.Topic(
            name=topic.name,
            read_queues=topic.read_queues,
            write_queues=topic.write_queues,
            permission=topic.permission,
            message_type=TYPE_NUMBERS.get(topic.message_type, admin.MESSAGE_TYPE_UNSPECIFIED),
            system=self.topics.is_system(topic.name),
            answer=answer_text(topic.answer_copies),
            drained=topic.drained,
        )

    def create_topic(self, call: Call, request: admin.CreateTopicRequest) -> Any:
        """Create a topic."""
        self.changes.check_master()
        wanted = request.topic
        self.changes.check_topic_name(wanted.name)
        made = TopicConfig(
            name=wanted.name,
            read_queues=checked_queues(wanted.read_queues or wanted.write_queues or QUEUES_DEFAULT),
            write_queues=checked_queues(wanted.write_queues or wanted.read_queues or QUEUES_DEFAULT),
            permission=checked_permission(wanted.permission or READ | WRITE),
        ).with_type(message_type_of(wanted.message_type))
        if wanted.answer:
            made = made.with_answer(parse_answer(wanted.answer))
        made = self.changes.put_new_topic(made)
        return admin.CreateTopicResponse(topic=self.topic_message(made))

    def update_topic(self, call: Call, request: admin.UpdateTopicRequest) -> Any:
        """Change what the request sets."""
        self.changes.check_master()
        topic = self.changes.changeable_topic(request.name)
        if request.HasField("read_queues"):
            topic = replace(topic, read_queues=checked_queues(request.read_queues))
        if request.HasField("write_queues"):
            topic = replace(topic, write_queues=checked_queues(request.write_queues))
        if request.HasField("permission"):
            topic = replace(topic, permission=checked_permission(request.permission))
        if request.HasField("message_type"):
            topic = topic.with_type(message_type_of(request.message_type))
        if request.HasField("answer"):
            topic = topic.with_answer(parse_answer(request.answer))
        if not request.hide_messages:
            self.unread.check(self.changes.changeable_topic(request.name), topic)
        self.topics.put(topic)
        return admin.UpdateTopicResponse(topic=self.topic_message(topic))

    def delete_topic(self, call: Call, request: admin.DeleteTopicRequest) -> Any:
        """Remove a topic, its queues, and the groups' offsets on it; its messages stay in the log."""
        self.changes.check_master()
        self.changes.delete_topic(self.changes.changeable_topic(request.name))
        return admin.DeleteTopicResponse()

    def list_topics(self, call: Call, request: admin.ListTopicsRequest) -> Any:
        """List by name."""
        topics = (topic for _, topic in sorted(self.topics.rows.items()))
        return admin.ListTopicsResponse(
            topics=[
                self.topic_message(topic)
                for topic in topics
                if request.include_system or not self.topics.is_system(topic.name)
            ]
        )

    def describe_topic(self, call: Call, request: admin.DescribeTopicRequest) -> Any:
        """Show a topic with the state of its queues."""
        topic = self.topics.get(request.name)
        if topic is None:
            raise TopicNotFound(f"no topic {request.name}")
        queues = self.store.queue_ids(topic.name, max(topic.read_queues, topic.write_queues))
        committed = self.consumer.positions.committed_offsets()
        groups = sorted(group for name, group in committed if name == topic.name)
        readers = readers_among(groups)
        return admin.DescribeTopicResponse(
            topic=self.topic_message(topic),
            queues=[self.queue_state(topic.name, queue_id, readers) for queue_id in queues],
            groups=groups,
        )

    def queue_state(self, topic: str, queue_id: int, readers: Sequence[str]) -> admin.QueueState:
        low, high = self.store.queue_range(topic, queue_id)
        unfinished = self.unread.unfinished(topic, queue_id, readers)
        state = admin.QueueState(queue_id=queue_id, min_offset=low, max_offset=high, unfinished=unfinished)
        newest = self.store.newest_message(topic, queue_id)
        if newest is not None:  # else the range is shown without the time
            state.last_stored_at.CopyFrom(timestamp(newest.store_timestamp))
        return state

    # Groups

    def create_group(self, call: Call, request: admin.CreateGroupRequest) -> Any:
        """Create a group."""
        self.changes.check_master()
        wanted = request.group
        check_group(wanted.name)
        attempts = checked_attempts(wanted.max_attempts or RETRY_MAX_DEFAULT + 1)
        made = GroupConfig(name=wanted.name, fifo=wanted.fifo, retry_max=attempts - 1)
        if wanted.ordered_by:
            made = made.with_ordered_by(order_of(wanted.ordered_by))
        if wanted.HasField("retry_policy"):
            made = made.with_retry_policy(retry_policy_of(wanted.retry_policy))
        if wanted.HasField("priority_percent"):
            made = made.with_priority_percent(checked_percent(wanted.priority_percent))
        self.groups.add(made)
        return admin.CreateGroupResponse(group=group_message(made))

    def update_group(self, call: Call, request: admin.UpdateGroupRequest) -> Any:
        """Change what the request sets."""
        self.changes.check_master()
        group = self.changes.group(request.name)
        if request.HasField("fifo"):
            group = replace(group, fifo=request.fifo)
        if request.HasField("max_attempts"):
            group = replace(group, retry_max=checked_attempts(request.max_attempts) - 1)
        if request.HasField("consume_enabled"):
            group = replace(group, consume_enabled=request.consume_enabled)
        if request.HasField("ordered_by"):
            group = group.with_ordered_by(order_of(request.ordered_by))
        if request.HasField("retry_policy"):
            group = group.with_retry_policy(retry_policy_of(request.retry_policy))
        if request.HasField("priority_percent"):
            group = group.with_priority_percent(checked_percent(request.priority_percent))
        self.groups.put(group)
        return admin.UpdateGroupResponse(group=group_message(group))

    def delete_group(self, call: Call, request: admin.DeleteGroupRequest) -> Any:
        """Remove a group, its offsets and its leases."""
        self.changes.check_master()
        self.changes.delete_group(self.changes.group(request.name).name)
        return admin.DeleteGroupResponse()

    def list_groups(self, call: Call, request: admin.ListGroupsRequest) -> Any:
        """List by name; RocketMQ's built-in groups are left out, as system topics are."""
        groups = (group for _, group in sorted(self.groups.rows.items()))
        return admin.ListGroupsResponse(
            groups=[group_message(group) for group in groups if group.name not in BUILT_IN_GROUPS]
        )

    def describe_group(self, call: Call, request: admin.DescribeGroupRequest) -> Any:
        """Show a group, its progress, and its clients at this broker."""
        group = self.changes.group(request.name)
        response = admin.DescribeGroupResponse(
            group=group_message(group),
            progress=[
                progress_message(row) for row in self.consumer.positions.progress(group.name, self.queues_of)
            ],
        )
        for client in self.clients.of_group(group.name):
            response.clients.add(
                client_id=client.client_id,
                language=client.language,
                version=client.version,
                last_seen_at=timestamp(self.wall_ms(client.last_seen)),
            )
        found = None if self.members is None else self.members.group(group.name)
        for member in [] if found is None else found.members.values():
            response.clients.add(
                client_id=member.identity.client_id,
                language=member.identity.language,
                version=f"{member.identity.version} (remoting)",
                last_seen_at=timestamp(self.wall_ms(member.last_seen)),
            )
        return response

    def queues_of(self, topic: str) -> list[int]:
        config = self.topics.get(topic)
        return [] if config is None else self.store.queue_ids(topic, config.read_queues)

    # Replication

    def drain_broker(self, call: Call, request: admin.DrainBrokerRequest) -> Any:
        """Take the write bit from topics of clients, and from what topics are made of, or give it back."""
        self.changes.check_master()
        if request.HasField("drain"):
            self.changes.drain(drained=request.drain)
        rows = [
            row
            for name in self.groups.rows
            if name not in BUILT_IN_GROUPS
            for row in self.consumer.positions.progress(name, self.queues_of)
        ]
        delayed, open_transactions = self.waiting()
        return admin.DrainBrokerResponse(
            drained_topics=self.topics.drained,
            undelivered=sum(row.lag for row in rows),
            in_flight=sum(row.in_flight for row in rows),
            delayed=delayed,
            open_transactions=open_transactions,
            unread=self.unread_topics({row.topic for row in rows}),
        )

    def unread_topics(self, read: Set[str]) -> list[admin.UnreadTopic]:
        """Return the topics of clients that hold messages and that no group reads."""
        found = []
        for name, topic in sorted(self.topics.rows.items()):
            if name in read or self.topics.is_system(name):
                continue
            queues = self.store.queue_ids(name, max(topic.read_queues, topic.write_queues))
            ranges = [self.store.queue_range(name, queue_id) for queue_id in queues]
            if messages := sum(high - low for low, high in ranges):
                found.append(admin.UnreadTopic(topic=name, messages=messages))
        return found

    def forget_broker(self, call: Call, request: admin.ForgetBrokerRequest) -> Any:
        """Let go of a broker that never comes back."""
        self.changes.check_master()
        assert self.sharing is not None, "a master has it"
        topics = self.sharing.forget(request.broker_name)
        return admin.ForgetBrokerResponse(topics=topics or (), known=topics is not None)

    def describe_replication(self, call: Call, request: admin.DescribeReplicationRequest) -> Any:
        """Show the log's offsets and the connected slaves."""
        view = self.replication()
        response = admin.DescribeReplicationResponse(
            broker_name=view.broker_name,
            broker_id=view.broker_id,
            role=view.role,
            log_begin=view.log_begin,
            log_end=view.log_end,
            flushed_offset=view.flushed,
            confirmed_offset=view.confirmed,
            dispatched_offset=view.dispatched,
            replicator_alive=view.replicator_alive,
            ha_address=view.ha_address,
            connected=view.connected,
            writable=view.writable,
            advice=view.advice,
            replication=view.replication,
            flush=view.flush,
            expected_slaves=view.expected_slaves,
            lane=view.lane,
            notes=view.notes,
            known_ends=view.known_ends,
            drained=view.drained,
        )
        for slave in view.slaves:
            response.slaves.add(
                peer=slave.peer,
                acknowledged_offset=slave.acknowledged,
                sent_offset=slave.sent,
                sent_bytes=slave.sent_bytes,
                connected_at=timestamp(slave.connected_at_ms),
                lag_bytes=max(view.log_end - max(slave.acknowledged, 0), 0),
                broker_id=slave.broker_id,
                uncounted=slave.uncounted,
            )
        if view.election is not None:
            response.election.CopyFrom(admin.ElectionState(**asdict(view.election)))
        return response


def message_type_of(number: admin.MessageType) -> MessageType:
    try:
        return TYPES[number]
    except KeyError:
        raise BadRequest(f"message type {number} is not known") from None


def checked_attempts(count: int) -> int:
    if count < 1:
        raise BadRequest(f"{count} attempts: a message is delivered once at least")
    return count


def checked_percent(percent: int) -> int:
    if not 0 <= percent <= 100:
        raise BadRequest(f"{percent} of a hundred receives: give 0 to 100")
    return percent


def group_message(group: GroupConfig) -> admin.Group:
    return admin.Group(
        name=group.name,
        fifo=group.fifo,
        max_attempts=group.max_attempts,
        consume_enabled=group.consume_enabled,
        ordered_by=ORDER_NUMBERS[group.ordered_by],
        retry_policy=retry_policy_message(group.retry_policy),
        priority_percent=group.priority_percent,
    )


def progress_message(progress: GroupProgress) -> admin.GroupProgress:
    return admin.GroupProgress(
        topic=progress.topic,
        queue_id=progress.queue_id,
        committed_offset=progress.committed_offset,
        next_offset=progress.next_offset,
        max_offset=progress.max_offset,
        in_flight=progress.in_flight,
        lag=progress.lag,
    )
