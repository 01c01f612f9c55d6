import datetime

from whimbrel.pb.apache.rocketmq.v2 import service_pb2 as _service_pb2
from google.protobuf import duration_pb2 as _duration_pb2
from google.protobuf import timestamp_pb2 as _timestamp_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class BrokerRole(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    BROKER_ROLE_UNSPECIFIED: _ClassVar[BrokerRole]
    BROKER_ROLE_MASTER: _ClassVar[BrokerRole]
    BROKER_ROLE_SLAVE: _ClassVar[BrokerRole]
BROKER_ROLE_UNSPECIFIED: BrokerRole
BROKER_ROLE_MASTER: BrokerRole
BROKER_ROLE_SLAVE: BrokerRole

class DataVersion(_message.Message):
    __slots__ = ("timestamp_ms", "counter")
    TIMESTAMP_MS_FIELD_NUMBER: _ClassVar[int]
    COUNTER_FIELD_NUMBER: _ClassVar[int]
    timestamp_ms: int
    counter: int
    def __init__(self, timestamp_ms: _Optional[int] = ..., counter: _Optional[int] = ...) -> None: ...

class TopicQueues(_message.Message):
    __slots__ = ("topic", "read_queues", "write_queues", "permission", "message_type", "system_flag")
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    READ_QUEUES_FIELD_NUMBER: _ClassVar[int]
    WRITE_QUEUES_FIELD_NUMBER: _ClassVar[int]
    PERMISSION_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_TYPE_FIELD_NUMBER: _ClassVar[int]
    SYSTEM_FLAG_FIELD_NUMBER: _ClassVar[int]
    topic: str
    read_queues: int
    write_queues: int
    permission: int
    message_type: str
    system_flag: int
    def __init__(self, topic: _Optional[str] = ..., read_queues: _Optional[int] = ..., write_queues: _Optional[int] = ..., permission: _Optional[int] = ..., message_type: _Optional[str] = ..., system_flag: _Optional[int] = ...) -> None: ...

class Registration(_message.Message):
    __slots__ = ("cluster", "broker_name", "broker_id", "role", "advertised_host", "advertised_explicitly", "port", "ha_address", "nameserver_host", "host_name", "instance_id", "epoch", "member_id", "voters")
    CLUSTER_FIELD_NUMBER: _ClassVar[int]
    BROKER_NAME_FIELD_NUMBER: _ClassVar[int]
    BROKER_ID_FIELD_NUMBER: _ClassVar[int]
    ROLE_FIELD_NUMBER: _ClassVar[int]
    ADVERTISED_HOST_FIELD_NUMBER: _ClassVar[int]
    ADVERTISED_EXPLICITLY_FIELD_NUMBER: _ClassVar[int]
    PORT_FIELD_NUMBER: _ClassVar[int]
    HA_ADDRESS_FIELD_NUMBER: _ClassVar[int]
    NAMESERVER_HOST_FIELD_NUMBER: _ClassVar[int]
    HOST_NAME_FIELD_NUMBER: _ClassVar[int]
    INSTANCE_ID_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    MEMBER_ID_FIELD_NUMBER: _ClassVar[int]
    VOTERS_FIELD_NUMBER: _ClassVar[int]
    cluster: str
    broker_name: str
    broker_id: int
    role: BrokerRole
    advertised_host: str
    advertised_explicitly: bool
    port: int
    ha_address: str
    nameserver_host: str
    host_name: str
    instance_id: str
    epoch: int
    member_id: int
    voters: int
    def __init__(self, cluster: _Optional[str] = ..., broker_name: _Optional[str] = ..., broker_id: _Optional[int] = ..., role: _Optional[_Union[BrokerRole, str]] = ..., advertised_host: _Optional[str] = ..., advertised_explicitly: _Optional[bool] = ..., port: _Optional[int] = ..., ha_address: _Optional[str] = ..., nameserver_host: _Optional[str] = ..., host_name: _Optional[str] = ..., instance_id: _Optional[str] = ..., epoch: _Optional[int] = ..., member_id: _Optional[int] = ..., voters: _Optional[int] = ...) -> None: ...

class SessionRequest(_message.Message):
    __slots__ = ("registration", "topics", "topics_included", "version", "log_end", "log_begin", "writable", "held_place", "changed_topics", "deleted_topics", "change_base")
    REGISTRATION_FIELD_NUMBER: _ClassVar[int]
    TOPICS_FIELD_NUMBER: _ClassVar[int]
    TOPICS_INCLUDED_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    LOG_END_FIELD_NUMBER: _ClassVar[int]
    LOG_BEGIN_FIELD_NUMBER: _ClassVar[int]
    WRITABLE_FIELD_NUMBER: _ClassVar[int]
    HELD_PLACE_FIELD_NUMBER: _ClassVar[int]
    CHANGED_TOPICS_FIELD_NUMBER: _ClassVar[int]
    DELETED_TOPICS_FIELD_NUMBER: _ClassVar[int]
    CHANGE_BASE_FIELD_NUMBER: _ClassVar[int]
    registration: Registration
    topics: _containers.RepeatedCompositeFieldContainer[TopicQueues]
    topics_included: bool
    version: DataVersion
    log_end: int
    log_begin: int
    writable: bool
    held_place: bool
    changed_topics: _containers.RepeatedCompositeFieldContainer[TopicQueues]
    deleted_topics: _containers.RepeatedScalarFieldContainer[str]
    change_base: DataVersion
    def __init__(self, registration: _Optional[_Union[Registration, _Mapping]] = ..., topics: _Optional[_Iterable[_Union[TopicQueues, _Mapping]]] = ..., topics_included: _Optional[bool] = ..., version: _Optional[_Union[DataVersion, _Mapping]] = ..., log_end: _Optional[int] = ..., log_begin: _Optional[int] = ..., writable: _Optional[bool] = ..., held_place: _Optional[bool] = ..., changed_topics: _Optional[_Iterable[_Union[TopicQueues, _Mapping]]] = ..., deleted_topics: _Optional[_Iterable[str]] = ..., change_base: _Optional[_Union[DataVersion, _Mapping]] = ...) -> None: ...

class Member(_message.Message):
    __slots__ = ("broker_id", "address", "ha_address", "log_end", "log_begin", "epoch", "member_id")
    BROKER_ID_FIELD_NUMBER: _ClassVar[int]
    ADDRESS_FIELD_NUMBER: _ClassVar[int]
    HA_ADDRESS_FIELD_NUMBER: _ClassVar[int]
    LOG_END_FIELD_NUMBER: _ClassVar[int]
    LOG_BEGIN_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    MEMBER_ID_FIELD_NUMBER: _ClassVar[int]
    broker_id: int
    address: str
    ha_address: str
    log_end: int
    log_begin: int
    epoch: int
    member_id: int
    def __init__(self, broker_id: _Optional[int] = ..., address: _Optional[str] = ..., ha_address: _Optional[str] = ..., log_end: _Optional[int] = ..., log_begin: _Optional[int] = ..., epoch: _Optional[int] = ..., member_id: _Optional[int] = ...) -> None: ...

class SharedQueues(_message.Message):
    __slots__ = ("broker_name", "write_queues")
    BROKER_NAME_FIELD_NUMBER: _ClassVar[int]
    WRITE_QUEUES_FIELD_NUMBER: _ClassVar[int]
    broker_name: str
    write_queues: int
    def __init__(self, broker_name: _Optional[str] = ..., write_queues: _Optional[int] = ...) -> None: ...

class SharedTopic(_message.Message):
    __slots__ = ("topic", "brokers")
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    BROKERS_FIELD_NUMBER: _ClassVar[int]
    topic: str
    brokers: _containers.RepeatedCompositeFieldContainer[SharedQueues]
    def __init__(self, topic: _Optional[str] = ..., brokers: _Optional[_Iterable[_Union[SharedQueues, _Mapping]]] = ...) -> None: ...

class Master(_message.Message):
    __slots__ = ("broker_name", "address")
    BROKER_NAME_FIELD_NUMBER: _ClassVar[int]
    ADDRESS_FIELD_NUMBER: _ClassVar[int]
    broker_name: str
    address: str
    def __init__(self, broker_name: _Optional[str] = ..., address: _Optional[str] = ...) -> None: ...

class SharedTopics(_message.Message):
    __slots__ = ("topics", "masters")
    TOPICS_FIELD_NUMBER: _ClassVar[int]
    MASTERS_FIELD_NUMBER: _ClassVar[int]
    topics: _containers.RepeatedCompositeFieldContainer[SharedTopic]
    masters: _containers.RepeatedCompositeFieldContainer[Master]
    def __init__(self, topics: _Optional[_Iterable[_Union[SharedTopic, _Mapping]]] = ..., masters: _Optional[_Iterable[_Union[Master, _Mapping]]] = ...) -> None: ...

class SessionResponse(_message.Message):
    __slots__ = ("lease", "renew_interval", "members", "settled", "displaced_by", "shared", "takes_changes", "topics_wanted")
    LEASE_FIELD_NUMBER: _ClassVar[int]
    RENEW_INTERVAL_FIELD_NUMBER: _ClassVar[int]
    MEMBERS_FIELD_NUMBER: _ClassVar[int]
    SETTLED_FIELD_NUMBER: _ClassVar[int]
    DISPLACED_BY_FIELD_NUMBER: _ClassVar[int]
    SHARED_FIELD_NUMBER: _ClassVar[int]
    TAKES_CHANGES_FIELD_NUMBER: _ClassVar[int]
    TOPICS_WANTED_FIELD_NUMBER: _ClassVar[int]
    lease: _duration_pb2.Duration
    renew_interval: _duration_pb2.Duration
    members: _containers.RepeatedCompositeFieldContainer[Member]
    settled: bool
    displaced_by: str
    shared: SharedTopics
    takes_changes: bool
    topics_wanted: bool
    def __init__(self, lease: _Optional[_Union[datetime.timedelta, _duration_pb2.Duration, _Mapping]] = ..., renew_interval: _Optional[_Union[datetime.timedelta, _duration_pb2.Duration, _Mapping]] = ..., members: _Optional[_Iterable[_Union[Member, _Mapping]]] = ..., settled: _Optional[bool] = ..., displaced_by: _Optional[str] = ..., shared: _Optional[_Union[SharedTopics, _Mapping]] = ..., takes_changes: _Optional[bool] = ..., topics_wanted: _Optional[bool] = ...) -> None: ...

class DescribeClusterRequest(_message.Message):
    __slots__ = ("access_host", "absent_topics")
    ACCESS_HOST_FIELD_NUMBER: _ClassVar[int]
    ABSENT_TOPICS_FIELD_NUMBER: _ClassVar[int]
    access_host: str
    absent_topics: bool
    def __init__(self, access_host: _Optional[str] = ..., absent_topics: _Optional[bool] = ...) -> None: ...

class AbsentGroup(_message.Message):
    __slots__ = ("cluster", "broker_name", "renewed_at", "topics", "topics_unknown")
    CLUSTER_FIELD_NUMBER: _ClassVar[int]
    BROKER_NAME_FIELD_NUMBER: _ClassVar[int]
    RENEWED_AT_FIELD_NUMBER: _ClassVar[int]
    TOPICS_FIELD_NUMBER: _ClassVar[int]
    TOPICS_UNKNOWN_FIELD_NUMBER: _ClassVar[int]
    cluster: str
    broker_name: str
    renewed_at: _timestamp_pb2.Timestamp
    topics: _containers.RepeatedScalarFieldContainer[str]
    topics_unknown: bool
    def __init__(self, cluster: _Optional[str] = ..., broker_name: _Optional[str] = ..., renewed_at: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., topics: _Optional[_Iterable[str]] = ..., topics_unknown: _Optional[bool] = ...) -> None: ...

class BrokerDescription(_message.Message):
    __slots__ = ("cluster", "broker_name", "broker_id", "role", "address", "ha_address", "log_begin", "log_end", "writable", "renewed_at", "topic_count", "epoch", "member_id")
    CLUSTER_FIELD_NUMBER: _ClassVar[int]
    BROKER_NAME_FIELD_NUMBER: _ClassVar[int]
    BROKER_ID_FIELD_NUMBER: _ClassVar[int]
    ROLE_FIELD_NUMBER: _ClassVar[int]
    ADDRESS_FIELD_NUMBER: _ClassVar[int]
    HA_ADDRESS_FIELD_NUMBER: _ClassVar[int]
    LOG_BEGIN_FIELD_NUMBER: _ClassVar[int]
    LOG_END_FIELD_NUMBER: _ClassVar[int]
    WRITABLE_FIELD_NUMBER: _ClassVar[int]
    RENEWED_AT_FIELD_NUMBER: _ClassVar[int]
    TOPIC_COUNT_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    MEMBER_ID_FIELD_NUMBER: _ClassVar[int]
    cluster: str
    broker_name: str
    broker_id: int
    role: BrokerRole
    address: str
    ha_address: str
    log_begin: int
    log_end: int
    writable: bool
    renewed_at: _timestamp_pb2.Timestamp
    topic_count: int
    epoch: int
    member_id: int
    def __init__(self, cluster: _Optional[str] = ..., broker_name: _Optional[str] = ..., broker_id: _Optional[int] = ..., role: _Optional[_Union[BrokerRole, str]] = ..., address: _Optional[str] = ..., ha_address: _Optional[str] = ..., log_begin: _Optional[int] = ..., log_end: _Optional[int] = ..., writable: _Optional[bool] = ..., renewed_at: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., topic_count: _Optional[int] = ..., epoch: _Optional[int] = ..., member_id: _Optional[int] = ...) -> None: ...

class AbsentBroker(_message.Message):
    __slots__ = ("cluster", "broker_name", "broker_id", "member_id", "since")
    CLUSTER_FIELD_NUMBER: _ClassVar[int]
    BROKER_NAME_FIELD_NUMBER: _ClassVar[int]
    BROKER_ID_FIELD_NUMBER: _ClassVar[int]
    MEMBER_ID_FIELD_NUMBER: _ClassVar[int]
    SINCE_FIELD_NUMBER: _ClassVar[int]
    cluster: str
    broker_name: str
    broker_id: int
    member_id: int
    since: _timestamp_pb2.Timestamp
    def __init__(self, cluster: _Optional[str] = ..., broker_name: _Optional[str] = ..., broker_id: _Optional[int] = ..., member_id: _Optional[int] = ..., since: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ...) -> None: ...

class DescribeClusterResponse(_message.Message):
    __slots__ = ("brokers", "settled", "absent", "forgotten", "absent_groups")
    BROKERS_FIELD_NUMBER: _ClassVar[int]
    SETTLED_FIELD_NUMBER: _ClassVar[int]
    ABSENT_FIELD_NUMBER: _ClassVar[int]
    FORGOTTEN_FIELD_NUMBER: _ClassVar[int]
    ABSENT_GROUPS_FIELD_NUMBER: _ClassVar[int]
    brokers: _containers.RepeatedCompositeFieldContainer[BrokerDescription]
    settled: bool
    absent: _containers.RepeatedCompositeFieldContainer[AbsentBroker]
    forgotten: _containers.RepeatedScalarFieldContainer[str]
    absent_groups: _containers.RepeatedCompositeFieldContainer[AbsentGroup]
    def __init__(self, brokers: _Optional[_Iterable[_Union[BrokerDescription, _Mapping]]] = ..., settled: _Optional[bool] = ..., absent: _Optional[_Iterable[_Union[AbsentBroker, _Mapping]]] = ..., forgotten: _Optional[_Iterable[str]] = ..., absent_groups: _Optional[_Iterable[_Union[AbsentGroup, _Mapping]]] = ...) -> None: ...

class ForgetBrokerRequest(_message.Message):
    __slots__ = ("broker_name", "id")
    BROKER_NAME_FIELD_NUMBER: _ClassVar[int]
    ID_FIELD_NUMBER: _ClassVar[int]
    broker_name: str
    id: int
    def __init__(self, broker_name: _Optional[str] = ..., id: _Optional[int] = ...) -> None: ...

class ForgetBrokerResponse(_message.Message):
    __slots__ = ("absent", "known")
    ABSENT_FIELD_NUMBER: _ClassVar[int]
    KNOWN_FIELD_NUMBER: _ClassVar[int]
    absent: int
    known: bool
    def __init__(self, absent: _Optional[int] = ..., known: _Optional[bool] = ...) -> None: ...

class AskProducerRequest(_message.Message):
    __slots__ = ("topic", "question")
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    QUESTION_FIELD_NUMBER: _ClassVar[int]
    topic: str
    question: _service_pb2.RecoverOrphanedTransactionCommand
    def __init__(self, topic: _Optional[str] = ..., question: _Optional[_Union[_service_pb2.RecoverOrphanedTransactionCommand, _Mapping]] = ...) -> None: ...

class AskProducerResponse(_message.Message):
    __slots__ = ("asked",)
    ASKED_FIELD_NUMBER: _ClassVar[int]
    asked: bool
    def __init__(self, asked: _Optional[bool] = ...) -> None: ...
