"""Outbound calls of our own services: the cluster's brokers, and the administration of one broker.

Made by `calls.perform`, as those of the client API are; errors arrive as a gRPC status with `ErrorInfo`.
"""

from collections.abc import Sequence

from whimbrel.model.cluster import (
    AbsentGroup,
    BrokerStatus,
    Cluster,
    DrainStatus,
    GroupConfig,
    GroupDescription,
    GroupProgress,
    ReplicationStatus,
    TopicConfig,
    TopicDescription,
)
from whimbrel.model.message import MessageType
from whimbrel.model.retry import RetryPolicy
from whimbrel.model.topic import OrderedBy
from whimbrel.model.wire import ADMIN_SERVICE, REGISTRY_SERVICE
from whimbrel.pb.whimbrel.admin.v1 import admin_service_pb2 as admin
from whimbrel.pb.whimbrel.registry.v1 import registry_service_pb2 as registry
from whimbrel.rpc.api import convert
from whimbrel.rpc.api.calls import Outbound, Trailers, of_text
from whimbrel.rpc.api.group_policies import ORDER_NUMBERS, retry_policy_message

__all__ = [
    "ADMIN",
    "REGISTRY",
    "create_group",
    "create_topic",
    "delete_group",
    "delete_topic",
    "describe_cluster",
    "describe_group",
    "describe_replication",
    "describe_topic",
    "drain_broker",
    "forget_absent",
    "forget_broker",
    "list_groups",
    "list_topics",
    "reset_offsets",
    "update_group",
    "update_topic",
]

ADMIN = f"/{ADMIN_SERVICE}/"
REGISTRY = f"/{REGISTRY_SERVICE}/"


@of_text
def describe_cluster(access_host: str, *, absent_topics: bool = False) -> Outbound[Cluster]:
    """Ask a nameserver which brokers live, and which groups are away, with their topics if wanted."""

    def decode(responses: Sequence[bytes], _: Trailers) -> Cluster:
        response = registry.DescribeClusterResponse.FromString(responses[0])
        brokers: list[BrokerStatus] = [convert.broker_status(broker) for broker in response.brokers]
        absent = tuple(map(convert.absent_broker, response.absent))
        groups = tuple(map(absent_group, response.absent_groups))
        return Cluster(tuple(brokers), response.settled, absent, groups, frozenset(response.forgotten))

    request = registry.DescribeClusterRequest(access_host=access_host, absent_topics=absent_topics)
    return Outbound(REGISTRY + "DescribeCluster", request.SerializeToString(), decode)


def absent_group(message: registry.AbsentGroup) -> AbsentGroup:
    """Return a group that is away."""
    return AbsentGroup(
        cluster=message.cluster,
        broker_name=message.broker_name,
        renewed_at=convert.seconds_of(message.renewed_at) if message.HasField("renewed_at") else None,
        topics=None if message.topics_unknown else frozenset(message.topics),
    )


@of_text
def forget_absent(name: str, only: int | None = None) -> Outbound[int]:
    """Have a nameserver let go of a broker name, or one id of it.

    Returns how many brokers were away, at least 1 where it knew of the name.
    """

    def decode(responses: Sequence[bytes], _: Trailers) -> int:
        response = registry.ForgetBrokerResponse.FromString(responses[0])
        return max(response.absent, int(response.known))

    request = registry.ForgetBrokerRequest(broker_name=name, id=only)
    return Outbound(REGISTRY + "ForgetBroker", request.SerializeToString(), decode)


@of_text
def create_topic(topic: TopicConfig) -> Outbound[TopicConfig]:
    """Create a topic on one broker; queue counts of 0 mean its default."""

    def decode(responses: Sequence[bytes], _: Trailers) -> TopicConfig:
        return convert.topic_config(admin.CreateTopicResponse.FromString(responses[0]).topic)

    request = admin.CreateTopicRequest(topic=convert.topic_message(topic))
    return Outbound(ADMIN + "CreateTopic", request.SerializeToString(), decode)


@of_text
def update_topic(
    name: str,
    *,
    read_queues: int | None = None,
    write_queues: int | None = None,
    permission: int | None = None,
    message_type: MessageType | None = None,
    answer: str | None = None,
    hide_messages: bool = False,
) -> Outbound[TopicConfig]:
    """Change a topic on one broker; None keeps a value. `hide_messages`: also if that hides some."""

    def decode(responses: Sequence[bytes], _: Trailers) -> TopicConfig:
        return convert.topic_config(admin.UpdateTopicResponse.FromString(responses[0]).topic)

    request = admin.UpdateTopicRequest(
        name=name,
        read_queues=read_queues,
        write_queues=write_queues,
        permission=permission,
        answer=answer,
        hide_messages=hide_messages,
    )
    if message_type is not None:
        request.message_type = convert.TOPIC_TYPE_NUMBERS[message_type]
    return Outbound(ADMIN + "UpdateTopic", request.SerializeToString(), decode)


@of_text
def delete_topic(name: str) -> Outbound[None]:
    """Remove a topic from one broker."""
    request = admin.DeleteTopicRequest(name=name)
    return Outbound(ADMIN + "DeleteTopic", request.SerializeToString(), lambda _answers, _trailers: None)


@of_text
def list_topics(*, include_system: bool = False) -> Outbound[tuple[TopicConfig, ...]]:
    """List the topics of one broker."""

    def decode(responses: Sequence[bytes], _: Trailers) -> tuple[TopicConfig, ...]:
        response = admin.ListTopicsResponse.FromString(responses[0])
        return tuple(convert.topic_config(topic) for topic in response.topics)

    request = admin.ListTopicsRequest(include_system=include_system)
    return Outbound(ADMIN + "ListTopics", request.SerializeToString(), decode)


@of_text
def describe_topic(name: str, broker_name: str) -> Outbound[TopicDescription]:
    """Ask one broker for a topic and the state of its queues."""

    def decode(responses: Sequence[bytes], _: Trailers) -> TopicDescription:
        response = admin.DescribeTopicResponse.FromString(responses[0])
        return TopicDescription(
            broker_name=broker_name,
            topic=convert.topic_config(response.topic),
            queues=tuple(convert.queue_state(queue) for queue in response.queues),
            groups=tuple(response.groups),
        )

    request = admin.DescribeTopicRequest(name=name)
    return Outbound(ADMIN + "DescribeTopic", request.SerializeToString(), decode)


@of_text
def create_group(group: GroupConfig) -> Outbound[GroupConfig]:
    """Create a consumer group on one broker; max_attempts of 0 means its default."""

    def decode(responses: Sequence[bytes], _: Trailers) -> GroupConfig:
        return convert.group_config(admin.CreateGroupResponse.FromString(responses[0]).group)

    request = admin.CreateGroupRequest(group=convert.group_message(group))
    return Outbound(ADMIN + "CreateGroup", request.SerializeToString(), decode)


@of_text
def update_group(
    name: str,
    *,
    fifo: bool | None = None,
    max_attempts: int | None = None,
    consume_enabled: bool | None = None,
    ordered_by: OrderedBy | None = None,
    retry_policy: RetryPolicy | None = None,
    priority_percent: int | None = None,
) -> Outbound[GroupConfig]:
    """Change a consumer group on one broker; None keeps a value."""

    def decode(responses: Sequence[bytes], _: Trailers) -> GroupConfig:
        return convert.group_config(admin.UpdateGroupResponse.FromString(responses[0]).group)

    request = admin.UpdateGroupRequest(
        name=name,
        fifo=fifo,
        max_attempts=max_attempts,
        consume_enabled=consume_enabled,
        ordered_by=None if ordered_by is None else ORDER_NUMBERS[ordered_by],
        retry_policy=None if retry_policy is None else retry_policy_message(retry_policy),
        priority_percent=priority_percent,
    )
    return Outbound(ADMIN + "UpdateGroup", request.SerializeToString(), decode)


@of_text
def delete_group(name: str) -> Outbound[None]:
    """Remove a consumer group, its offsets and leases, from one broker."""
    request = admin.DeleteGroupRequest(name=name)
    return Outbound(ADMIN + "DeleteGroup", request.SerializeToString(), lambda _answers, _trailers: None)


@of_text
def list_groups() -> Outbound[tuple[GroupConfig, ...]]:
    """List the consumer groups of one broker."""

    def decode(responses: Sequence[bytes], _: Trailers) -> tuple[GroupConfig, ...]:
        response = admin.ListGroupsResponse.FromString(responses[0])
        return tuple(convert.group_config(group) for group in response.groups)

    return Outbound(ADMIN + "ListGroups", admin.ListGroupsRequest().SerializeToString(), decode)


@of_text
def describe_group(name: str, broker_name: str) -> Outbound[GroupDescription]:
    """Ask one broker for a group's configuration, progress and clients."""

    def decode(responses: Sequence[bytes], _: Trailers) -> GroupDescription:
        response = admin.DescribeGroupResponse.FromString(responses[0])
        return GroupDescription(
            broker_name=broker_name,
            group=convert.group_config(response.group),
            progress=tuple(convert.group_progress(item) for item in response.progress),
            clients=tuple(convert.client_status(client) for client in response.clients),
        )

    request = admin.DescribeGroupRequest(name=name)
    return Outbound(ADMIN + "DescribeGroup", request.SerializeToString(), decode)


@of_text
def reset_offsets(
    group: str, topic: str, *, to: str | int | float, queue_id: int | None = None
) -> Outbound[tuple[GroupProgress, ...]]:
    """Move a group on one broker: `earliest`, `latest`, an offset (int), or a time (float, epoch seconds)."""

    def decode(responses: Sequence[bytes], _: Trailers) -> tuple[GroupProgress, ...]:
        response = admin.ResetOffsetsResponse.FromString(responses[0])
        return tuple(convert.group_progress(item) for item in response.progress)

    request = admin.ResetOffsetsRequest(group=group, topic=topic, queue_id=queue_id)
    if to == "earliest":
        request.earliest = True
    elif to == "latest":
        request.latest = True
    elif isinstance(to, int):
        request.offset = to
    else:
        request.timestamp.CopyFrom(convert.timestamp(float(to)))
    return Outbound(ADMIN + "ResetOffsets", request.SerializeToString(), decode)


@of_text
def drain_broker(broker_name: str, *, drain: bool | None) -> Outbound[DrainStatus]:
    """Drain one broker, or end that; None changes nothing."""

    def decode(responses: Sequence[bytes], _: Trailers) -> DrainStatus:
        response = admin.DrainBrokerResponse.FromString(responses[0])
        return DrainStatus(
            broker_name=broker_name,
            topics=response.drained_topics,
            undelivered=response.undelivered,
            in_flight=response.in_flight,
            delayed=response.delayed,
            open_transactions=response.open_transactions,
            unread={unread.topic: unread.messages for unread in response.unread},
        )

    request = admin.DrainBrokerRequest(drain=drain)
    return Outbound(ADMIN + "DrainBroker", request.SerializeToString(), decode)


@of_text
def forget_broker(broker_name: str) -> Outbound[tuple[str, ...] | None]:
    """Have one broker let go of another one; return the topics whose message groups move.

    None: it knows nothing of it.
    """

    def decode(responses: Sequence[bytes], _: Trailers) -> tuple[str, ...] | None:
        response = admin.ForgetBrokerResponse.FromString(responses[0])
        return tuple(response.topics) if response.known else None

    request = admin.ForgetBrokerRequest(broker_name=broker_name)
    return Outbound(ADMIN + "ForgetBroker", request.SerializeToString(), decode)


@of_text
def describe_replication() -> Outbound[ReplicationStatus]:
    """Ask one broker for its log's marks and, of a master, for its slaves."""

    def decode(responses: Sequence[bytes], _: Trailers) -> ReplicationStatus:
        return convert.replication_status(admin.DescribeReplicationResponse.FromString(responses[0]))

    request = admin.DescribeReplicationRequest()
    return Outbound(ADMIN + "DescribeReplication", request.SerializeToString(), decode)
