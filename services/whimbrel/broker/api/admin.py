"""AdminService: topics, groups, offsets and replication of this broker, for operators and tools.

A slave refuses changes, since its tables are copies of its master's. Errors travel as gRPC statuses.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from typing import Any

from google.protobuf.message import Message

from whimbrel.broker.api.message_codec import timestamp
from whimbrel.broker.consume.unread_queues import readers_among
from whimbrel.broker.engine.table_checks import (
    fields_asked,
    group_named,
    group_of_clients,
    group_there,
    nothing_hidden,
    refused_at_slave,
    topic_named,
    topic_there,
)
from whimbrel.broker.engine.tables import Asked, Change, ChangeRules, Drained, TableChanges
from whimbrel.broker.tables.clients import Clients
from whimbrel.broker.tables.remoting_clients import RemotingClients
from whimbrel.broker.tables.topics import QUEUES_DEFAULT
from whimbrel.deferred import rendered
from whimbrel.errors import (
    BadRequest,
    TopicNotFound,
)
from whimbrel.model.answers import answer_text
from whimbrel.model.cluster import GroupProgress
from whimbrel.model.limits import RETRY_MAX_DEFAULT
from whimbrel.model.names import BUILT_IN_GROUPS
from whimbrel.model.replication import ReplicationView
from whimbrel.model.topic import READ, WRITE, GroupConfig, MessageType, TopicConfig
from whimbrel.model.wire import ADMIN_SERVICE
from whimbrel.pb.whimbrel.admin.v1 import admin_service_pb2 as admin
from whimbrel.rpc.api.group_policies import ORDER_NUMBERS, order_of, retry_policy_message, retry_policy_of
from whimbrel.rpc.server.handlers import Call, Service, UnaryMethod

__all__ = ["TYPE_NUMBERS", "AdminService", "progress_message"]

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

TOPIC_CREATES = ChangeRules(checks=(refused_at_slave, topic_named, fields_asked))
TOPIC_UPDATES = ChangeRules(checks=(refused_at_slave, topic_named, topic_there, fields_asked, nothing_hidden))
TOPIC_DELETES = ChangeRules(checks=(refused_at_slave, topic_named, topic_there))
GROUP_FIELDS = (
    "fifo", "max_attempts", "consume_enabled", "ordered_by", "retry_policy", "priority_percent"
)  # fmt: skip
GROUP_CREATES = ChangeRules(checks=(refused_at_slave, group_named, fields_asked))
GROUP_UPDATES = ChangeRules(checks=(refused_at_slave, group_there, fields_asked))
GROUP_DELETES = ChangeRules(checks=(refused_at_slave, group_there, group_of_clients))


class AdminService:
    """Handles the administration calls on the loop's thread."""

    def __init__(
        self,
        changes: TableChanges,
        clients: Clients,
        *,
        replication: Callable[[], ReplicationView],
        wall_ms: Callable[[float], int],
        members: RemotingClients | None = None,
    ) -> None:
        """Take the parts that are shown or changed.

        Args:
            changes: the tables, and what stands on them, with what changes them.
            clients: the known clients.
            replication: returns the state of replication.
            wall_ms: turns a time of the monotonic clock into epoch milliseconds.
            members: those of groups by the remoting protocol.
        """
        self.changes, self.topics, self.groups = changes, changes.topics, changes.groups
        self.consumer, self.store, self.unread = changes.consumption, changes.store, changes.unread
        self.clients, self.members = clients, members
        self.replication, self.wall_ms = replication, wall_ms

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
        wanted = request.topic
        change = Change(rules=TOPIC_CREATES, name=wanted.name, asked=new_topic(wanted))
        return rendered(
            self.changes.put_topic(change),
            lambda done: admin.CreateTopicResponse(topic=self.topic_message(done.made)),
        )

    def update_topic(self, call: Call, request: admin.UpdateTopicRequest) -> Any:
        """Change what the request sets."""
        asked = set_fields(request, "read_queues", "write_queues", "permission", "message_type", "answer")
        change = Change(rules=TOPIC_UPDATES, name=request.name, asked=asked, hides=request.hide_messages)
        return rendered(
            self.changes.put_topic(change),
            lambda done: admin.UpdateTopicResponse(topic=self.topic_message(done.made)),
        )

    def delete_topic(self, call: Call, request: admin.DeleteTopicRequest) -> Any:
        """Remove a topic, its queues, and the groups' offsets on it; its messages stay in the log."""
        found = self.changes.delete_topic(Change(rules=TOPIC_DELETES, name=request.name))
        return rendered(found, lambda _: admin.DeleteTopicResponse())

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
        wanted = request.group
        change = Change(rules=GROUP_CREATES, name=wanted.name, asked=new_group(wanted))
        return rendered(
            self.changes.put_group(change),
            lambda done: admin.CreateGroupResponse(group=group_message(done.made)),
        )

    def update_group(self, call: Call, request: admin.UpdateGroupRequest) -> Any:
        """Change what the request sets."""
        change = Change(rules=GROUP_UPDATES, name=request.name, asked=set_fields(request, *GROUP_FIELDS))
        return rendered(
            self.changes.put_group(change),
            lambda done: admin.UpdateGroupResponse(group=group_message(done.made)),
        )

    def delete_group(self, call: Call, request: admin.DeleteGroupRequest) -> Any:
        """Remove a group, its offsets and its leases."""
        found = self.changes.delete_group(Change(rules=GROUP_DELETES, name=request.name))
        return rendered(found, lambda _: admin.DeleteGroupResponse())

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
                progress_message(row)
                for row in self.consumer.positions.progress(group.name, self.changes.queues_of)
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

    # Replication

    def drain_broker(self, call: Call, request: admin.DrainBrokerRequest) -> Any:
        """Take the write bit from topics of clients, and from what topics are made of, or give it back."""
        drained = request.drain if request.HasField("drain") else None
        return rendered(self.changes.drain(drained=drained), drain_message)

    def forget_broker(self, call: Call, request: admin.ForgetBrokerRequest) -> Any:
        """Let go of a broker that never comes back."""
        return rendered(
            self.changes.forget_broker(request.broker_name),
            lambda topics: admin.ForgetBrokerResponse(topics=topics or (), known=topics is not None),
        )

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


# What a field's value is in the model.
READ_BY: Mapping[str, Callable[[Any], Any]] = {
    "message_type": message_type_of,
    "ordered_by": order_of,
    "retry_policy": retry_policy_of,
}


def set_fields(request: Message, *names: str) -> Asked:
    """Yield those of the fields that a request sets."""
    for name in names:
        if request.HasField(name):
            value = getattr(request, name)
            yield name, READ_BY[name](value) if name in READ_BY else value


def new_topic(wanted: admin.Topic) -> Asked:
    """Yield what a new topic is to be."""
    yield "read_queues", wanted.read_queues or wanted.write_queues or QUEUES_DEFAULT
    yield "write_queues", wanted.write_queues or wanted.read_queues or QUEUES_DEFAULT
    yield "permission", wanted.permission or READ | WRITE
    yield "message_type", message_type_of(wanted.message_type)
    if wanted.answer:
        yield "answer", wanted.answer


def new_group(wanted: admin.Group) -> Asked:
    """Yield what a new group is to be."""
    yield "max_attempts", wanted.max_attempts or RETRY_MAX_DEFAULT + 1
    yield "fifo", wanted.fifo
    if wanted.ordered_by:
        yield "ordered_by", order_of(wanted.ordered_by)
    yield from set_fields(wanted, "retry_policy", "priority_percent")


def drain_message(left: Drained) -> admin.DrainBrokerResponse:
    return admin.DrainBrokerResponse(
        drained_topics=left.topics,
        undelivered=left.undelivered,
        in_flight=left.in_flight,
        delayed=left.delayed,
        open_transactions=left.open_transactions,
        unread=[admin.UnreadTopic(topic=topic, messages=messages) for topic, messages in left.unread.items()],
    )


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
