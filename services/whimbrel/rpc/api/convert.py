"""Model values to protobuf messages and back, for the calling side.

Decoding is lenient: unknown enum numbers and missing fields of a response become the plainest value, because
servers may be newer than we are. Endpoints are the exception: a queue without an address can't be used, so it
is left out of a route.
"""

import math
import zlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from whimbrel.errors import BadRequest, WhimbrelError, error_for_code
from whimbrel.model.cluster import (
    AbsentBroker,
    BrokerStatus,
    ClientStatus,
    ElectionStatus,
    GroupConfig,
    GroupProgress,
    QueueState,
    ReplicationStatus,
    SlaveStatus,
    TopicConfig,
)
from whimbrel.model.group_record import GroupRecord
from whimbrel.model.limits import INFLATED_BYTES_MAX
from whimbrel.model.message import DeadLetterOrigin, Filter, Message, MessageType, ReceivedMessage, SqlFilter
from whimbrel.model.retry import RetryPolicy
from whimbrel.model.route import Endpoint, Queue
from whimbrel.model.topic import OrderedBy
from whimbrel.pb.apache.rocketmq.v2 import definition_pb2 as v2
from whimbrel.pb.whimbrel.admin.v1 import admin_service_pb2 as admin
from whimbrel.pb.whimbrel.registry.v1 import registry_service_pb2 as registry
from whimbrel.rpc.api.group_policies import ORDER_NUMBERS, ORDERS, retry_policy_message, retry_policy_of

if TYPE_CHECKING:  # the pool's own classes are like these, but checkers can't see them
    from google.protobuf.duration_pb2 import Duration
    from google.protobuf.timestamp_pb2 import Timestamp
else:
    from whimbrel.pb import Duration, Timestamp

__all__ = [
    "CLIENT_TYPES",
    "TOPIC_TYPE_NUMBERS",
    "ClientSettings",
    "ServerSettings",
    "broker_status",
    "client_status",
    "duration",
    "endpoints_message",
    "error_of_status",
    "filter_message",
    "group_config",
    "group_message",
    "group_progress",
    "message_to_send",
    "queue_from",
    "queue_message",
    "queue_state",
    "received_message",
    "replication_status",
    "seconds_of",
    "server_settings",
    "settings_message",
    "timestamp",
    "topic_config",
    "topic_message",
    "topic_type",
]

TYPE_NUMBERS = {
    MessageType.NORMAL: v2.NORMAL,
    MessageType.FIFO: v2.FIFO,
    MessageType.DELAY: v2.DELAY,
    MessageType.TRANSACTION: v2.TRANSACTION,
    MessageType.LITE: v2.LITE,
    MessageType.PRIORITY: v2.PRIORITY,
}
TYPES = {number: name for name, number in TYPE_NUMBERS.items()}
TOPIC_TYPE_NUMBERS = {
    MessageType.NORMAL: admin.MESSAGE_TYPE_NORMAL,
    MessageType.FIFO: admin.MESSAGE_TYPE_FIFO,
    MessageType.DELAY: admin.MESSAGE_TYPE_DELAY,
    MessageType.TRANSACTION: admin.MESSAGE_TYPE_TRANSACTION,
    MessageType.MIXED: admin.MESSAGE_TYPE_MIXED,
    MessageType.PRIORITY: admin.MESSAGE_TYPE_PRIORITY,
}
TOPIC_TYPES = {number: name for name, number in TOPIC_TYPE_NUMBERS.items()}
CLIENT_TYPES = {
    "producer": v2.PRODUCER,
    "push": v2.PUSH_CONSUMER,
    "simple": v2.SIMPLE_CONSUMER,
    "pull": v2.PULL_CONSUMER,
}
ROLES = {registry.BROKER_ROLE_MASTER: "master", registry.BROKER_ROLE_SLAVE: "slave"}
GZIP_OR_ZLIB = 47  # window bits: both wrappers are recognised; the C++ SDK labels zlib streams GZIP


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientSettings:
    """The settings that a client writes on its Telemetry streams.

    Attributes:
        client_type: `producer`, `push`, `simple` or `pull`.
        access: the client's access point.
        group: the consumer group; empty for producers.
        topics: of a producer's messages; may be empty.
        subscriptions: topic and filter of a consumer.
    """

    client_type: str
    access: tuple[Endpoint, ...]
    version: str
    platform: str
    host_name: str
    request_timeout_s: float
    group: str = ""
    topics: tuple[str, ...] = ()
    subscriptions: tuple[tuple[str, Filter], ...] = ()
    namespace: str = ""

    def texts(self) -> Iterator[str]:
        """Yield what a program has named: group, topics and filters."""
        yield from (self.group, *self.topics)
        for topic, filter_ in self.subscriptions:
            yield from (topic, filter_.expression if isinstance(filter_, SqlFilter) else filter_)


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerSettings:
    """The settings that the server decides, as far as our client uses them.

    Attributes:
        backoff_s: delays before the next deliveries of a message; () when the server sets none.
        fifo: whether the group's messages come in order.
        max_attempts: deliveries before a message becomes a dead letter; 0 when the server does not say.
    """

    backoff_s: tuple[float, ...] = ()
    fifo: bool = False
    max_attempts: int = 0


def timestamp(at: float) -> Timestamp:
    """Return the protobuf time of seconds since the epoch, to the microsecond."""
    micros = round(at * 1_000_000)
    return Timestamp(seconds=micros // 1_000_000, nanos=micros % 1_000_000 * 1000)


def duration(length_s: float) -> Duration:
    """Return the protobuf duration of a number of seconds."""
    fraction, whole = math.modf(length_s)
    return Duration(seconds=int(whole), nanos=round(fraction * 1e9))


def seconds_of(message: Timestamp | Duration) -> float:
    """Return a protobuf time or duration as seconds."""
    return float(message.seconds + message.nanos / 1e9)


def error_of_status(status: v2.Status) -> WhimbrelError | None:
    """Return None for success, else the error; a missing status is an error of the server."""
    if status.code in (v2.OK, v2.MULTIPLE_RESULTS):
        return None
    if status.code == v2.CODE_UNSPECIFIED:
        return WhimbrelError("the server's answer carries no status")
    return error_for_code(status.code, status.message or v2.Code.Name(status.code))


def endpoints_message(endpoints: Sequence[Endpoint]) -> v2.Endpoints:
    """Return the access point as `Endpoints`; a name takes one address only, as the SDKs have it."""
    first = endpoints[0].host
    if ":" in first:
        scheme, kept = v2.IPv6, [endpoint for endpoint in endpoints if ":" in endpoint.host]
    elif first.replace(".", "").isdigit():
        scheme, kept = v2.IPv4, [item for item in endpoints if item.host.replace(".", "").isdigit()]
    else:
        scheme, kept = v2.DOMAIN_NAME, list(endpoints[:1])
    return v2.Endpoints(
        scheme=scheme, addresses=[v2.Address(host=item.host, port=item.port) for item in kept]
    )


def queue_from(message: v2.MessageQueue, topic: str) -> Queue | None:
    """Return the queue of a route or assignment; None when it has no address that can be dialled."""
    endpoints = tuple(
        Endpoint(address.host, address.port)
        for address in message.broker.endpoints.addresses
        if address.host and 0 < address.port < 65536
    )
    if not endpoints:
        return None
    return Queue(
        topic=message.topic.name or topic,
        broker_name=message.broker.name,
        broker_id=message.broker.id,
        queue_id=message.id,
        readable=message.permission in (v2.READ, v2.READ_WRITE),
        writable=message.permission in (v2.WRITE, v2.READ_WRITE),
        endpoints=endpoints,
        message_types=tuple(TYPES[kind] for kind in message.accept_message_types if kind in TYPES),
    )


def queue_message(queue: Queue, namespace: str = "") -> v2.MessageQueue:
    """Return the queue in the form of a request."""
    permission = {
        (True, True): v2.READ_WRITE,
        (True, False): v2.READ,
        (False, True): v2.WRITE,
        (False, False): v2.NONE,
    }[queue.readable, queue.writable]
    return v2.MessageQueue(
        topic=v2.Resource(resource_namespace=namespace, name=queue.topic),
        id=queue.queue_id,
        permission=permission,
        broker=v2.Broker(
            name=queue.broker_name, id=queue.broker_id, endpoints=endpoints_message(queue.endpoints)
        ),
    )


def filter_message(wanted: Filter) -> v2.FilterExpression:
    """Return a filter in the form of a request."""
    if isinstance(wanted, SqlFilter):
        return v2.FilterExpression(type=v2.SQL, expression=wanted.expression)
    return v2.FilterExpression(type=v2.TAG, expression=wanted)


def message_to_send(
    message: Message,
    *,
    now: float,
    host_name: str,
    queue_id: int | None = None,
    namespace: str = "",
    transaction: bool = False,
    recovery_s: float | None = None,
) -> v2.Message:
    """Return the message in the form of SendMessage; its id must be set.

    Args:
        message: to be sent.
        now: its born time, seconds since the epoch; a delay counts from it.
        host_name: of this machine.
        queue_id: where to; None leaves it to the broker.
        namespace: of the topic.
        transaction: whether it is a part of one.
        recovery_s: how long the broker waits before it asks about the transaction; None: its default.
    """
    system = v2.SystemProperties(
        message_id=message.message_id,
        keys=message.keys,
        body_encoding=v2.IDENTITY,
        message_type=TYPE_NUMBERS[message.type],
        born_timestamp=timestamp(now),
        born_host=host_name,
    )
    if queue_id is not None:
        system.queue_id = queue_id
    if message.tag is not None:
        system.tag = message.tag
    if message.message_group is not None:
        system.message_group = message.message_group
    if message.trace_context is not None:
        system.trace_context = message.trace_context
    if message.deliver_at is not None:
        system.delivery_timestamp.CopyFrom(timestamp(message.deliver_at))
    elif message.delay_s is not None:
        system.delivery_timestamp.CopyFrom(timestamp(now + message.delay_s))
    if message.priority is not None:
        system.priority = message.priority
    if transaction:
        system.message_type = v2.TRANSACTION
        if recovery_s is not None:
            system.orphaned_transaction_recovery_duration.CopyFrom(duration(recovery_s))
    return v2.Message(
        topic=v2.Resource(resource_namespace=namespace, name=message.topic),
        user_properties=dict(message.properties),
        system_properties=system,
        body=message.body,
    )


def inflated(body: bytes) -> tuple[bytes, str]:
    """Return what a compressed body holds, and ""; or the body as it is, and why it can't be had."""
    engine = zlib.decompressobj(GZIP_OR_ZLIB)
    try:
        plain = engine.decompress(body, INFLATED_BYTES_MAX)
    except zlib.error as error:
        return body, f"the body does not decompress: {error}"
    if engine.unconsumed_tail:
        return body, f"the body inflates to over {INFLATED_BYTES_MAX} bytes"
    if not engine.eof:
        return body, "the compressed body has no end"
    return plain, ""


def received_message(message: v2.Message, queue: Queue) -> ReceivedMessage:
    """Return a delivered or pulled message; compressed bodies are inflated.

    One that can't be inflated is marked: others come in the same answer.
    """
    system = message.system_properties
    body, corrupted = message.body, ""
    if system.body_encoding == v2.GZIP and body:  # an empty one is not compressed
        body, corrupted = inflated(body)
    return ReceivedMessage(
        topic=message.topic.name or queue.topic,
        body=body,
        message_id=system.message_id,
        tag=system.tag if system.HasField("tag") else None,
        keys=tuple(system.keys),
        properties=dict(message.user_properties),
        type=TYPES.get(system.message_type, MessageType.NORMAL),
        queue=queue,
        queue_id=system.queue_id,
        queue_offset=system.queue_offset,
        born_at=seconds_of(system.born_timestamp) if system.HasField("born_timestamp") else None,
        born_host=system.born_host,
        stored_at=seconds_of(system.store_timestamp) if system.HasField("store_timestamp") else None,
        store_host=system.store_host,
        message_group=system.message_group if system.HasField("message_group") else None,
        deliver_at=seconds_of(system.delivery_timestamp) if system.HasField("delivery_timestamp") else None,
        priority=system.priority if system.HasField("priority") else None,
        dead_letter=dead_letter_of(system),
        receipt_handle=system.receipt_handle,
        delivery_attempt=system.delivery_attempt,
        trace_context=system.trace_context if system.HasField("trace_context") else None,
        corrupted=corrupted,
    )


def dead_letter_of(system: v2.SystemProperties) -> DeadLetterOrigin | None:
    if not system.HasField("dead_letter_queue"):
        return None
    origin = system.dead_letter_queue
    return DeadLetterOrigin(origin.topic, origin.message_id)


def settings_message(settings: ClientSettings) -> v2.Settings:
    """Return the settings that a client writes first on a Telemetry stream."""
    message = v2.Settings(
        client_type=CLIENT_TYPES[settings.client_type],
        access_point=endpoints_message(settings.access),
        request_timeout=duration(settings.request_timeout_s),
        user_agent=v2.UA(
            language=v2.PYTHON,
            version=settings.version,
            platform=settings.platform,
            hostname=settings.host_name,
        ),
    )
    if settings.client_type == "producer":
        message.publishing.SetInParent()
        for topic in settings.topics:
            message.publishing.topics.add(resource_namespace=settings.namespace, name=topic)
        return message
    message.subscription.group.name = settings.group
    message.subscription.group.resource_namespace = settings.namespace
    for topic, wanted in settings.subscriptions:
        entry = message.subscription.subscriptions.add()
        entry.topic.resource_namespace, entry.topic.name = settings.namespace, topic
        entry.expression.CopyFrom(filter_message(wanted))
    return message


def server_settings(message: v2.Settings) -> ServerSettings:
    """Return the server's settings, as far as our client uses them."""
    policy = message.backoff_policy
    backoff = tuple(seconds_of(step) for step in policy.customized_backoff.next)
    if policy.WhichOneof("strategy") == "exponential_backoff":
        backoff = tuple(exponential(policy.exponential_backoff, min(policy.max_attempts, 64)))
    return ServerSettings(backoff_s=backoff, fifo=message.subscription.fifo, max_attempts=policy.max_attempts)


def exponential(policy: v2.ExponentialBackoff, count: int) -> Iterable[float]:
    step, most = seconds_of(policy.initial), seconds_of(policy.max)
    for _ in range(count):
        yield min(step, most)
        step = min(step * policy.multiplier, most)


def topic_type(number: int) -> MessageType:
    """Return a topic's message type; one that this version does not know counts as NORMAL."""
    return TOPIC_TYPES.get(number, MessageType.NORMAL)  # type: ignore[call-overload,no-any-return]


def topic_config(message: admin.Topic) -> TopicConfig:
    """Return a topic's configuration on one broker."""
    return TopicConfig(
        name=message.name,
        read_queues=message.read_queues,
        write_queues=message.write_queues,
        permission=message.permission,
        type=TOPIC_TYPES.get(message.message_type, MessageType.NORMAL),
        system=message.system,
        answer=message.answer or "committed",  # a broker of an earlier version says nothing
        drained=message.drained,
    )


def topic_message(topic: TopicConfig) -> admin.Topic:
    """Return a topic's configuration in the form of a request."""
    return admin.Topic(
        name=topic.name,
        read_queues=topic.read_queues,
        write_queues=topic.write_queues,
        permission=topic.permission,
        message_type=TOPIC_TYPE_NUMBERS[topic.type],
        answer=topic.answer,
    )


def queue_state(message: admin.QueueState) -> QueueState:
    """Return a queue's range."""
    stored = message.last_stored_at if message.HasField("last_stored_at") else None
    return QueueState(
        queue_id=message.queue_id,
        min_offset=message.min_offset,
        max_offset=message.max_offset,
        last_stored_at=None if stored is None else seconds_of(stored),
        unfinished=message.unfinished,
    )


def group_config(message: admin.Group) -> GroupConfig:
    """Return a group's configuration."""
    policy: RetryPolicy | None = None
    if message.HasField("retry_policy"):
        try:
            policy = retry_policy_of(message.retry_policy)
        except BadRequest:  # a newer broker's
            policy = None
    return GroupConfig(
        name=message.name,
        fifo=message.fifo,
        max_attempts=message.max_attempts,
        consume_enabled=message.consume_enabled,
        ordered_by=ORDERS.get(message.ordered_by, OrderedBy.QUEUE),
        retry_policy=policy,
        priority_percent=message.priority_percent if message.HasField("priority_percent") else None,
    )


def group_message(group: GroupConfig) -> admin.Group:
    """Return a group's configuration in the form of a request."""
    return admin.Group(
        name=group.name,
        fifo=group.fifo,
        max_attempts=group.max_attempts,
        consume_enabled=group.consume_enabled,
        ordered_by=ORDER_NUMBERS[group.ordered_by],
        retry_policy=None if group.retry_policy is None else retry_policy_message(group.retry_policy),
        priority_percent=group.priority_percent,
    )


def group_progress(message: admin.GroupProgress) -> GroupProgress:
    """Return a group's state on one queue."""
    return GroupProgress(
        topic=message.topic,
        queue_id=message.queue_id,
        committed_offset=message.committed_offset,
        next_offset=message.next_offset,
        max_offset=message.max_offset,
        in_flight=message.in_flight,
        lag=message.lag,
    )


def client_status(message: admin.ClientDescription) -> ClientStatus:
    """Return a client as a broker knows it."""
    return ClientStatus(
        client_id=message.client_id,
        language=message.language,
        version=message.version,
        last_seen_at=seconds_of(message.last_seen_at) if message.HasField("last_seen_at") else None,
    )


def broker_status(message: registry.BrokerDescription) -> BrokerStatus:
    """Return a live broker as the nameserver knows it."""
    return BrokerStatus(
        cluster=message.cluster,
        broker_name=message.broker_name,
        broker_id=message.broker_id,
        role=ROLES.get(message.role, "unknown"),
        address=message.address,
        ha_address=message.ha_address,
        log_begin=message.log_begin,
        log_end=message.log_end,
        writable=message.writable,
        renewed_at=seconds_of(message.renewed_at) if message.HasField("renewed_at") else None,
        topic_count=message.topic_count,
        epoch=message.epoch,
        member_id=message.member_id,
    )


def absent_broker(message: registry.AbsentBroker) -> AbsentBroker:
    """Return a broker that is away."""
    return AbsentBroker(
        cluster=message.cluster,
        broker_name=message.broker_name,
        broker_id=message.broker_id,
        member_id=message.member_id,
        since=seconds_of(message.since) if message.HasField("since") else None,
    )


def replication_status(message: admin.DescribeReplicationResponse) -> ReplicationStatus:
    """Return a broker's view of its replication."""
    return ReplicationStatus(
        broker_name=message.broker_name,
        broker_id=message.broker_id,
        role=message.role.lower(),
        log_begin=message.log_begin,
        log_end=message.log_end,
        flushed_offset=message.flushed_offset,
        confirmed_offset=message.confirmed_offset,
        dispatched_offset=message.dispatched_offset,
        replicator_alive=message.replicator_alive,
        ha_address=message.ha_address,
        slaves=tuple(
            SlaveStatus(
                peer=slave.peer,
                acknowledged_offset=slave.acknowledged_offset,
                sent_offset=slave.sent_offset,
                sent_bytes=slave.sent_bytes,
                connected_at=seconds_of(slave.connected_at) if slave.HasField("connected_at") else None,
                lag_bytes=slave.lag_bytes,
                broker_id=slave.broker_id,
                uncounted=slave.uncounted,
            )
            for slave in message.slaves
        ),
        connected=message.connected,
        writable=message.writable,
        advice=message.advice,
        replication=message.replication.lower(),
        flush=message.flush.lower(),
        expected_slaves=message.expected_slaves,
        lane=message.lane,
        notes=tuple(message.notes),
        known_ends=dict(message.known_ends),
        drained=message.drained,
        election=election_status(message.election) if message.HasField("election") else None,
    )


def election_status(message: admin.ElectionState) -> ElectionStatus:
    """Return what a member says of its group's elections."""
    return ElectionStatus(
        member=message.member,
        state=message.state,
        why=message.why,
        may_lead=message.may_lead,
        promised=message.promised,
        record=GroupRecord.decode(message.record) if message.record else None,
        coordinator_trouble=message.coordinator_trouble,
    )
