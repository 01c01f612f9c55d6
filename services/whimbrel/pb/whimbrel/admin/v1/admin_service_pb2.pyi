import datetime

from google.protobuf import timestamp_pb2 as _timestamp_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class MessageType(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    MESSAGE_TYPE_UNSPECIFIED: _ClassVar[MessageType]
    MESSAGE_TYPE_NORMAL: _ClassVar[MessageType]
    MESSAGE_TYPE_FIFO: _ClassVar[MessageType]
    MESSAGE_TYPE_DELAY: _ClassVar[MessageType]
    MESSAGE_TYPE_TRANSACTION: _ClassVar[MessageType]
    MESSAGE_TYPE_MIXED: _ClassVar[MessageType]
    MESSAGE_TYPE_PRIORITY: _ClassVar[MessageType]

class OrderedBy(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    ORDERED_BY_UNSPECIFIED: _ClassVar[OrderedBy]
    ORDERED_BY_QUEUE: _ClassVar[OrderedBy]
    ORDERED_BY_MESSAGE_GROUP: _ClassVar[OrderedBy]
MESSAGE_TYPE_UNSPECIFIED: MessageType
MESSAGE_TYPE_NORMAL: MessageType
MESSAGE_TYPE_FIFO: MessageType
MESSAGE_TYPE_DELAY: MessageType
MESSAGE_TYPE_TRANSACTION: MessageType
MESSAGE_TYPE_MIXED: MessageType
MESSAGE_TYPE_PRIORITY: MessageType
ORDERED_BY_UNSPECIFIED: OrderedBy
ORDERED_BY_QUEUE: OrderedBy
ORDERED_BY_MESSAGE_GROUP: OrderedBy

class Topic(_message.Message):
    __slots__ = ("name", "read_queues", "write_queues", "permission", "message_type", "system", "answer", "drained")
    NAME_FIELD_NUMBER: _ClassVar[int]
    READ_QUEUES_FIELD_NUMBER: _ClassVar[int]
    WRITE_QUEUES_FIELD_NUMBER: _ClassVar[int]
    PERMISSION_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_TYPE_FIELD_NUMBER: _ClassVar[int]
    SYSTEM_FIELD_NUMBER: _ClassVar[int]
    ANSWER_FIELD_NUMBER: _ClassVar[int]
    DRAINED_FIELD_NUMBER: _ClassVar[int]
    name: str
    read_queues: int
    write_queues: int
    permission: int
    message_type: MessageType
    system: bool
    answer: str
    drained: bool
    def __init__(self, name: _Optional[str] = ..., read_queues: _Optional[int] = ..., write_queues: _Optional[int] = ..., permission: _Optional[int] = ..., message_type: _Optional[_Union[MessageType, str]] = ..., system: _Optional[bool] = ..., answer: _Optional[str] = ..., drained: _Optional[bool] = ...) -> None: ...

class CustomizedRetries(_message.Message):
    __slots__ = ("waits_ms",)
    WAITS_MS_FIELD_NUMBER: _ClassVar[int]
    waits_ms: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, waits_ms: _Optional[_Iterable[int]] = ...) -> None: ...

class ExponentialRetries(_message.Message):
    __slots__ = ("initial_ms", "max_ms", "multiplier")
    INITIAL_MS_FIELD_NUMBER: _ClassVar[int]
    MAX_MS_FIELD_NUMBER: _ClassVar[int]
    MULTIPLIER_FIELD_NUMBER: _ClassVar[int]
    initial_ms: int
    max_ms: int
    multiplier: int
    def __init__(self, initial_ms: _Optional[int] = ..., max_ms: _Optional[int] = ..., multiplier: _Optional[int] = ...) -> None: ...

class RetryPolicy(_message.Message):
    __slots__ = ("customized", "exponential")
    CUSTOMIZED_FIELD_NUMBER: _ClassVar[int]
    EXPONENTIAL_FIELD_NUMBER: _ClassVar[int]
    customized: CustomizedRetries
    exponential: ExponentialRetries
    def __init__(self, customized: _Optional[_Union[CustomizedRetries, _Mapping]] = ..., exponential: _Optional[_Union[ExponentialRetries, _Mapping]] = ...) -> None: ...

class Group(_message.Message):
    __slots__ = ("name", "fifo", "max_attempts", "consume_enabled", "ordered_by", "retry_policy", "priority_percent")
    NAME_FIELD_NUMBER: _ClassVar[int]
    FIFO_FIELD_NUMBER: _ClassVar[int]
    MAX_ATTEMPTS_FIELD_NUMBER: _ClassVar[int]
    CONSUME_ENABLED_FIELD_NUMBER: _ClassVar[int]
    ORDERED_BY_FIELD_NUMBER: _ClassVar[int]
    RETRY_POLICY_FIELD_NUMBER: _ClassVar[int]
    PRIORITY_PERCENT_FIELD_NUMBER: _ClassVar[int]
    name: str
    fifo: bool
    max_attempts: int
    consume_enabled: bool
    ordered_by: OrderedBy
    retry_policy: RetryPolicy
    priority_percent: int
    def __init__(self, name: _Optional[str] = ..., fifo: _Optional[bool] = ..., max_attempts: _Optional[int] = ..., consume_enabled: _Optional[bool] = ..., ordered_by: _Optional[_Union[OrderedBy, str]] = ..., retry_policy: _Optional[_Union[RetryPolicy, _Mapping]] = ..., priority_percent: _Optional[int] = ...) -> None: ...

class QueueState(_message.Message):
    __slots__ = ("queue_id", "min_offset", "max_offset", "last_stored_at", "unfinished")
    QUEUE_ID_FIELD_NUMBER: _ClassVar[int]
    MIN_OFFSET_FIELD_NUMBER: _ClassVar[int]
    MAX_OFFSET_FIELD_NUMBER: _ClassVar[int]
    LAST_STORED_AT_FIELD_NUMBER: _ClassVar[int]
    UNFINISHED_FIELD_NUMBER: _ClassVar[int]
    queue_id: int
    min_offset: int
    max_offset: int
    last_stored_at: _timestamp_pb2.Timestamp
    unfinished: int
    def __init__(self, queue_id: _Optional[int] = ..., min_offset: _Optional[int] = ..., max_offset: _Optional[int] = ..., last_stored_at: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., unfinished: _Optional[int] = ...) -> None: ...

class GroupProgress(_message.Message):
    __slots__ = ("topic", "queue_id", "committed_offset", "next_offset", "max_offset", "in_flight", "lag")
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    QUEUE_ID_FIELD_NUMBER: _ClassVar[int]
    COMMITTED_OFFSET_FIELD_NUMBER: _ClassVar[int]
    NEXT_OFFSET_FIELD_NUMBER: _ClassVar[int]
    MAX_OFFSET_FIELD_NUMBER: _ClassVar[int]
    IN_FLIGHT_FIELD_NUMBER: _ClassVar[int]
    LAG_FIELD_NUMBER: _ClassVar[int]
    topic: str
    queue_id: int
    committed_offset: int
    next_offset: int
    max_offset: int
    in_flight: int
    lag: int
    def __init__(self, topic: _Optional[str] = ..., queue_id: _Optional[int] = ..., committed_offset: _Optional[int] = ..., next_offset: _Optional[int] = ..., max_offset: _Optional[int] = ..., in_flight: _Optional[int] = ..., lag: _Optional[int] = ...) -> None: ...

class ClientDescription(_message.Message):
    __slots__ = ("client_id", "language", "version", "last_seen_at")
    CLIENT_ID_FIELD_NUMBER: _ClassVar[int]
    LANGUAGE_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    LAST_SEEN_AT_FIELD_NUMBER: _ClassVar[int]
    client_id: str
    language: str
    version: str
    last_seen_at: _timestamp_pb2.Timestamp
    def __init__(self, client_id: _Optional[str] = ..., language: _Optional[str] = ..., version: _Optional[str] = ..., last_seen_at: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ...) -> None: ...

class CreateTopicRequest(_message.Message):
    __slots__ = ("topic",)
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    topic: Topic
    def __init__(self, topic: _Optional[_Union[Topic, _Mapping]] = ...) -> None: ...

class CreateTopicResponse(_message.Message):
    __slots__ = ("topic",)
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    topic: Topic
    def __init__(self, topic: _Optional[_Union[Topic, _Mapping]] = ...) -> None: ...

class UpdateTopicRequest(_message.Message):
    __slots__ = ("name", "read_queues", "write_queues", "permission", "message_type", "answer", "hide_messages")
    NAME_FIELD_NUMBER: _ClassVar[int]
    READ_QUEUES_FIELD_NUMBER: _ClassVar[int]
    WRITE_QUEUES_FIELD_NUMBER: _ClassVar[int]
    PERMISSION_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_TYPE_FIELD_NUMBER: _ClassVar[int]
    ANSWER_FIELD_NUMBER: _ClassVar[int]
    HIDE_MESSAGES_FIELD_NUMBER: _ClassVar[int]
    name: str
    read_queues: int
    write_queues: int
    permission: int
    message_type: MessageType
    answer: str
    hide_messages: bool
    def __init__(self, name: _Optional[str] = ..., read_queues: _Optional[int] = ..., write_queues: _Optional[int] = ..., permission: _Optional[int] = ..., message_type: _Optional[_Union[MessageType, str]] = ..., answer: _Optional[str] = ..., hide_messages: _Optional[bool] = ...) -> None: ...

class UpdateTopicResponse(_message.Message):
    __slots__ = ("topic",)
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    topic: Topic
    def __init__(self, topic: _Optional[_Union[Topic, _Mapping]] = ...) -> None: ...

class DeleteTopicRequest(_message.Message):
    __slots__ = ("name",)
    NAME_FIELD_NUMBER: _ClassVar[int]
    name: str
    def __init__(self, name: _Optional[str] = ...) -> None: ...

class DeleteTopicResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ListTopicsRequest(_message.Message):
    __slots__ = ("include_system",)
    INCLUDE_SYSTEM_FIELD_NUMBER: _ClassVar[int]
    include_system: bool
    def __init__(self, include_system: _Optional[bool] = ...) -> None: ...

class ListTopicsResponse(_message.Message):
    __slots__ = ("topics",)
    TOPICS_FIELD_NUMBER: _ClassVar[int]
    topics: _containers.RepeatedCompositeFieldContainer[Topic]
    def __init__(self, topics: _Optional[_Iterable[_Union[Topic, _Mapping]]] = ...) -> None: ...

class DescribeTopicRequest(_message.Message):
    __slots__ = ("name",)
    NAME_FIELD_NUMBER: _ClassVar[int]
    name: str
    def __init__(self, name: _Optional[str] = ...) -> None: ...

class DescribeTopicResponse(_message.Message):
    __slots__ = ("topic", "queues", "groups")
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    QUEUES_FIELD_NUMBER: _ClassVar[int]
    GROUPS_FIELD_NUMBER: _ClassVar[int]
    topic: Topic
    queues: _containers.RepeatedCompositeFieldContainer[QueueState]
    groups: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, topic: _Optional[_Union[Topic, _Mapping]] = ..., queues: _Optional[_Iterable[_Union[QueueState, _Mapping]]] = ..., groups: _Optional[_Iterable[str]] = ...) -> None: ...

class CreateGroupRequest(_message.Message):
    __slots__ = ("group",)
    GROUP_FIELD_NUMBER: _ClassVar[int]
    group: Group
    def __init__(self, group: _Optional[_Union[Group, _Mapping]] = ...) -> None: ...

class CreateGroupResponse(_message.Message):
    __slots__ = ("group",)
    GROUP_FIELD_NUMBER: _ClassVar[int]
    group: Group
    def __init__(self, group: _Optional[_Union[Group, _Mapping]] = ...) -> None: ...

class UpdateGroupRequest(_message.Message):
    __slots__ = ("name", "fifo", "max_attempts", "consume_enabled", "ordered_by", "retry_policy", "priority_percent")
    NAME_FIELD_NUMBER: _ClassVar[int]
    FIFO_FIELD_NUMBER: _ClassVar[int]
    MAX_ATTEMPTS_FIELD_NUMBER: _ClassVar[int]
    CONSUME_ENABLED_FIELD_NUMBER: _ClassVar[int]
    ORDERED_BY_FIELD_NUMBER: _ClassVar[int]
    RETRY_POLICY_FIELD_NUMBER: _ClassVar[int]
    PRIORITY_PERCENT_FIELD_NUMBER: _ClassVar[int]
    name: str
    fifo: bool
    max_attempts: int
    consume_enabled: bool
    ordered_by: OrderedBy
    retry_policy: RetryPolicy
    priority_percent: int
    def __init__(self, name: _Optional[str] = ..., fifo: _Optional[bool] = ..., max_attempts: _Optional[int] = ..., consume_enabled: _Optional[bool] = ..., ordered_by: _Optional[_Union[OrderedBy, str]] = ..., retry_policy: _Optional[_Union[RetryPolicy, _Mapping]] = ..., priority_percent: _Optional[int] = ...) -> None: ...

class UpdateGroupResponse(_message.Message):
    __slots__ = ("group",)
    GROUP_FIELD_NUMBER: _ClassVar[int]
    group: Group
    def __init__(self, group: _Optional[_Union[Group, _Mapping]] = ...) -> None: ...

class DeleteGroupRequest(_message.Message):
    __slots__ = ("name",)
    NAME_FIELD_NUMBER: _ClassVar[int]
    name: str
    def __init__(self, name: _Optional[str] = ...) -> None: ...

class DeleteGroupResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ListGroupsRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ListGroupsResponse(_message.Message):
    __slots__ = ("groups",)
    GROUPS_FIELD_NUMBER: _ClassVar[int]
    groups: _containers.RepeatedCompositeFieldContainer[Group]
    def __init__(self, groups: _Optional[_Iterable[_Union[Group, _Mapping]]] = ...) -> None: ...

class DescribeGroupRequest(_message.Message):
    __slots__ = ("name",)
    NAME_FIELD_NUMBER: _ClassVar[int]
    name: str
    def __init__(self, name: _Optional[str] = ...) -> None: ...

class DescribeGroupResponse(_message.Message):
    __slots__ = ("group", "progress", "clients")
    GROUP_FIELD_NUMBER: _ClassVar[int]
    PROGRESS_FIELD_NUMBER: _ClassVar[int]
    CLIENTS_FIELD_NUMBER: _ClassVar[int]
    group: Group
    progress: _containers.RepeatedCompositeFieldContainer[GroupProgress]
    clients: _containers.RepeatedCompositeFieldContainer[ClientDescription]
    def __init__(self, group: _Optional[_Union[Group, _Mapping]] = ..., progress: _Optional[_Iterable[_Union[GroupProgress, _Mapping]]] = ..., clients: _Optional[_Iterable[_Union[ClientDescription, _Mapping]]] = ...) -> None: ...

class ResetOffsetsRequest(_message.Message):
    __slots__ = ("group", "topic", "queue_id", "earliest", "latest", "timestamp", "offset")
    GROUP_FIELD_NUMBER: _ClassVar[int]
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    QUEUE_ID_FIELD_NUMBER: _ClassVar[int]
    EARLIEST_FIELD_NUMBER: _ClassVar[int]
    LATEST_FIELD_NUMBER: _ClassVar[int]
    TIMESTAMP_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    group: str
    topic: str
    queue_id: int
    earliest: bool
    latest: bool
    timestamp: _timestamp_pb2.Timestamp
    offset: int
    def __init__(self, group: _Optional[str] = ..., topic: _Optional[str] = ..., queue_id: _Optional[int] = ..., earliest: _Optional[bool] = ..., latest: _Optional[bool] = ..., timestamp: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., offset: _Optional[int] = ...) -> None: ...

class ResetOffsetsResponse(_message.Message):
    __slots__ = ("progress",)
    PROGRESS_FIELD_NUMBER: _ClassVar[int]
    progress: _containers.RepeatedCompositeFieldContainer[GroupProgress]
    def __init__(self, progress: _Optional[_Iterable[_Union[GroupProgress, _Mapping]]] = ...) -> None: ...

class DrainBrokerRequest(_message.Message):
    __slots__ = ("drain",)
    DRAIN_FIELD_NUMBER: _ClassVar[int]
    drain: bool
    def __init__(self, drain: _Optional[bool] = ...) -> None: ...

class DrainBrokerResponse(_message.Message):
    __slots__ = ("drained_topics", "undelivered", "in_flight", "delayed", "open_transactions", "unread")
    DRAINED_TOPICS_FIELD_NUMBER: _ClassVar[int]
    UNDELIVERED_FIELD_NUMBER: _ClassVar[int]
    IN_FLIGHT_FIELD_NUMBER: _ClassVar[int]
    DELAYED_FIELD_NUMBER: _ClassVar[int]
    OPEN_TRANSACTIONS_FIELD_NUMBER: _ClassVar[int]
    UNREAD_FIELD_NUMBER: _ClassVar[int]
    drained_topics: int
    undelivered: int
    in_flight: int
    delayed: int
    open_transactions: int
    unread: _containers.RepeatedCompositeFieldContainer[UnreadTopic]
    def __init__(self, drained_topics: _Optional[int] = ..., undelivered: _Optional[int] = ..., in_flight: _Optional[int] = ..., delayed: _Optional[int] = ..., open_transactions: _Optional[int] = ..., unread: _Optional[_Iterable[_Union[UnreadTopic, _Mapping]]] = ...) -> None: ...

class UnreadTopic(_message.Message):
    __slots__ = ("topic", "messages")
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    MESSAGES_FIELD_NUMBER: _ClassVar[int]
    topic: str
    messages: int
    def __init__(self, topic: _Optional[str] = ..., messages: _Optional[int] = ...) -> None: ...

class ForgetBrokerRequest(_message.Message):
    __slots__ = ("broker_name",)
    BROKER_NAME_FIELD_NUMBER: _ClassVar[int]
    broker_name: str
    def __init__(self, broker_name: _Optional[str] = ...) -> None: ...

class ForgetBrokerResponse(_message.Message):
    __slots__ = ("topics", "known")
    TOPICS_FIELD_NUMBER: _ClassVar[int]
    KNOWN_FIELD_NUMBER: _ClassVar[int]
    topics: _containers.RepeatedScalarFieldContainer[str]
    known: bool
    def __init__(self, topics: _Optional[_Iterable[str]] = ..., known: _Optional[bool] = ...) -> None: ...

class DescribeReplicationRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class SlaveConnection(_message.Message):
    __slots__ = ("peer", "acknowledged_offset", "sent_offset", "sent_bytes", "connected_at", "lag_bytes", "broker_id", "uncounted")
    PEER_FIELD_NUMBER: _ClassVar[int]
    ACKNOWLEDGED_OFFSET_FIELD_NUMBER: _ClassVar[int]
    SENT_OFFSET_FIELD_NUMBER: _ClassVar[int]
    SENT_BYTES_FIELD_NUMBER: _ClassVar[int]
    CONNECTED_AT_FIELD_NUMBER: _ClassVar[int]
    LAG_BYTES_FIELD_NUMBER: _ClassVar[int]
    BROKER_ID_FIELD_NUMBER: _ClassVar[int]
    UNCOUNTED_FIELD_NUMBER: _ClassVar[int]
    peer: str
    acknowledged_offset: int
    sent_offset: int
    sent_bytes: int
    connected_at: _timestamp_pb2.Timestamp
    lag_bytes: int
    broker_id: int
    uncounted: bool
    def __init__(self, peer: _Optional[str] = ..., acknowledged_offset: _Optional[int] = ..., sent_offset: _Optional[int] = ..., sent_bytes: _Optional[int] = ..., connected_at: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., lag_bytes: _Optional[int] = ..., broker_id: _Optional[int] = ..., uncounted: _Optional[bool] = ...) -> None: ...

class DescribeReplicationResponse(_message.Message):
    __slots__ = ("broker_name", "broker_id", "role", "log_begin", "log_end", "flushed_offset", "confirmed_offset", "dispatched_offset", "replicator_alive", "ha_address", "slaves", "connected", "writable", "advice", "replication", "flush", "expected_slaves", "lane", "election", "notes", "known_ends", "drained")
    class KnownEndsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: int
        value: int
        def __init__(self, key: _Optional[int] = ..., value: _Optional[int] = ...) -> None: ...
    BROKER_NAME_FIELD_NUMBER: _ClassVar[int]
    BROKER_ID_FIELD_NUMBER: _ClassVar[int]
    ROLE_FIELD_NUMBER: _ClassVar[int]
    LOG_BEGIN_FIELD_NUMBER: _ClassVar[int]
    LOG_END_FIELD_NUMBER: _ClassVar[int]
    FLUSHED_OFFSET_FIELD_NUMBER: _ClassVar[int]
    CONFIRMED_OFFSET_FIELD_NUMBER: _ClassVar[int]
    DISPATCHED_OFFSET_FIELD_NUMBER: _ClassVar[int]
    REPLICATOR_ALIVE_FIELD_NUMBER: _ClassVar[int]
    HA_ADDRESS_FIELD_NUMBER: _ClassVar[int]
    SLAVES_FIELD_NUMBER: _ClassVar[int]
    CONNECTED_FIELD_NUMBER: _ClassVar[int]
    WRITABLE_FIELD_NUMBER: _ClassVar[int]
    ADVICE_FIELD_NUMBER: _ClassVar[int]
    REPLICATION_FIELD_NUMBER: _ClassVar[int]
    FLUSH_FIELD_NUMBER: _ClassVar[int]
    EXPECTED_SLAVES_FIELD_NUMBER: _ClassVar[int]
    LANE_FIELD_NUMBER: _ClassVar[int]
    ELECTION_FIELD_NUMBER: _ClassVar[int]
    NOTES_FIELD_NUMBER: _ClassVar[int]
    KNOWN_ENDS_FIELD_NUMBER: _ClassVar[int]
    DRAINED_FIELD_NUMBER: _ClassVar[int]
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
    slaves: _containers.RepeatedCompositeFieldContainer[SlaveConnection]
    connected: bool
    writable: bool
    advice: str
    replication: str
    flush: str
    expected_slaves: int
    lane: str
    election: ElectionState
    notes: _containers.RepeatedScalarFieldContainer[str]
    known_ends: _containers.ScalarMap[int, int]
    drained: bool
    def __init__(self, broker_name: _Optional[str] = ..., broker_id: _Optional[int] = ..., role: _Optional[str] = ..., log_begin: _Optional[int] = ..., log_end: _Optional[int] = ..., flushed_offset: _Optional[int] = ..., confirmed_offset: _Optional[int] = ..., dispatched_offset: _Optional[int] = ..., replicator_alive: _Optional[bool] = ..., ha_address: _Optional[str] = ..., slaves: _Optional[_Iterable[_Union[SlaveConnection, _Mapping]]] = ..., connected: _Optional[bool] = ..., writable: _Optional[bool] = ..., advice: _Optional[str] = ..., replication: _Optional[str] = ..., flush: _Optional[str] = ..., expected_slaves: _Optional[int] = ..., lane: _Optional[str] = ..., election: _Optional[_Union[ElectionState, _Mapping]] = ..., notes: _Optional[_Iterable[str]] = ..., known_ends: _Optional[_Mapping[int, int]] = ..., drained: _Optional[bool] = ...) -> None: ...

class ElectionState(_message.Message):
    __slots__ = ("member", "state", "why", "may_lead", "promised", "record", "coordinator_trouble")
    MEMBER_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    WHY_FIELD_NUMBER: _ClassVar[int]
    MAY_LEAD_FIELD_NUMBER: _ClassVar[int]
    PROMISED_FIELD_NUMBER: _ClassVar[int]
    RECORD_FIELD_NUMBER: _ClassVar[int]
    COORDINATOR_TROUBLE_FIELD_NUMBER: _ClassVar[int]
    member: int
    state: str
    why: str
    may_lead: bool
    promised: int
    record: bytes
    coordinator_trouble: str
    def __init__(self, member: _Optional[int] = ..., state: _Optional[str] = ..., why: _Optional[str] = ..., may_lead: _Optional[bool] = ..., promised: _Optional[int] = ..., record: _Optional[bytes] = ..., coordinator_trouble: _Optional[str] = ...) -> None: ...

class PreservedSource(_message.Message):
    __slots__ = ("broker_name", "topic", "queue_id")
    BROKER_NAME_FIELD_NUMBER: _ClassVar[int]
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    QUEUE_ID_FIELD_NUMBER: _ClassVar[int]
    broker_name: str
    topic: str
    queue_id: int
    def __init__(self, broker_name: _Optional[str] = ..., topic: _Optional[str] = ..., queue_id: _Optional[int] = ...) -> None: ...

class PreservedRecord(_message.Message):
    __slots__ = ("source_offset", "born_at", "born_host", "flag", "sys_flag", "properties", "body", "message_id")
    SOURCE_OFFSET_FIELD_NUMBER: _ClassVar[int]
    BORN_AT_FIELD_NUMBER: _ClassVar[int]
    BORN_HOST_FIELD_NUMBER: _ClassVar[int]
    FLAG_FIELD_NUMBER: _ClassVar[int]
    SYS_FLAG_FIELD_NUMBER: _ClassVar[int]
    PROPERTIES_FIELD_NUMBER: _ClassVar[int]
    BODY_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_ID_FIELD_NUMBER: _ClassVar[int]
    source_offset: int
    born_at: _timestamp_pb2.Timestamp
    born_host: str
    flag: int
    sys_flag: int
    properties: bytes
    body: bytes
    message_id: str
    def __init__(self, source_offset: _Optional[int] = ..., born_at: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., born_host: _Optional[str] = ..., flag: _Optional[int] = ..., sys_flag: _Optional[int] = ..., properties: _Optional[bytes] = ..., body: _Optional[bytes] = ..., message_id: _Optional[str] = ...) -> None: ...

class DescribePreservedRequest(_message.Message):
    __slots__ = ("topic", "queue_id", "source", "with_first")
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    QUEUE_ID_FIELD_NUMBER: _ClassVar[int]
    SOURCE_FIELD_NUMBER: _ClassVar[int]
    WITH_FIRST_FIELD_NUMBER: _ClassVar[int]
    topic: str
    queue_id: int
    source: PreservedSource
    with_first: bool
    def __init__(self, topic: _Optional[str] = ..., queue_id: _Optional[int] = ..., source: _Optional[_Union[PreservedSource, _Mapping]] = ..., with_first: _Optional[bool] = ...) -> None: ...

class DescribePreservedResponse(_message.Message):
    __slots__ = ("complete", "left", "last_source_offset", "first_source_offset")
    COMPLETE_FIELD_NUMBER: _ClassVar[int]
    LEFT_FIELD_NUMBER: _ClassVar[int]
    LAST_SOURCE_OFFSET_FIELD_NUMBER: _ClassVar[int]
    FIRST_SOURCE_OFFSET_FIELD_NUMBER: _ClassVar[int]
    complete: bool
    left: int
    last_source_offset: int
    first_source_offset: int
    def __init__(self, complete: _Optional[bool] = ..., left: _Optional[int] = ..., last_source_offset: _Optional[int] = ..., first_source_offset: _Optional[int] = ...) -> None: ...

class AppendPreservedRequest(_message.Message):
    __slots__ = ("topic", "queue_id", "source", "after_offset", "records", "selection")
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    QUEUE_ID_FIELD_NUMBER: _ClassVar[int]
    SOURCE_FIELD_NUMBER: _ClassVar[int]
    AFTER_OFFSET_FIELD_NUMBER: _ClassVar[int]
    RECORDS_FIELD_NUMBER: _ClassVar[int]
    SELECTION_FIELD_NUMBER: _ClassVar[int]
    topic: str
    queue_id: int
    source: PreservedSource
    after_offset: int
    records: _containers.RepeatedCompositeFieldContainer[PreservedRecord]
    selection: bool
    def __init__(self, topic: _Optional[str] = ..., queue_id: _Optional[int] = ..., source: _Optional[_Union[PreservedSource, _Mapping]] = ..., after_offset: _Optional[int] = ..., records: _Optional[_Iterable[_Union[PreservedRecord, _Mapping]]] = ..., selection: _Optional[bool] = ...) -> None: ...

class PreservedRefusal(_message.Message):
    __slots__ = ("source_offset", "why")
    SOURCE_OFFSET_FIELD_NUMBER: _ClassVar[int]
    WHY_FIELD_NUMBER: _ClassVar[int]
    source_offset: int
    why: str
    def __init__(self, source_offset: _Optional[int] = ..., why: _Optional[str] = ...) -> None: ...

class AppendPreservedResponse(_message.Message):
    __slots__ = ("last_source_offset", "stored", "skipped", "refusals", "first_offset", "last_offset")
    LAST_SOURCE_OFFSET_FIELD_NUMBER: _ClassVar[int]
    STORED_FIELD_NUMBER: _ClassVar[int]
    SKIPPED_FIELD_NUMBER: _ClassVar[int]
    REFUSALS_FIELD_NUMBER: _ClassVar[int]
    FIRST_OFFSET_FIELD_NUMBER: _ClassVar[int]
    LAST_OFFSET_FIELD_NUMBER: _ClassVar[int]
    last_source_offset: int
    stored: int
    skipped: int
    refusals: _containers.RepeatedCompositeFieldContainer[PreservedRefusal]
    first_offset: int
    last_offset: int
    def __init__(self, last_source_offset: _Optional[int] = ..., stored: _Optional[int] = ..., skipped: _Optional[int] = ..., refusals: _Optional[_Iterable[_Union[PreservedRefusal, _Mapping]]] = ..., first_offset: _Optional[int] = ..., last_offset: _Optional[int] = ...) -> None: ...
