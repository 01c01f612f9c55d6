from whimbrel.pb.whimbrel.admin.v1 import admin_service_pb2 as _admin_service_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Isolation(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    ISOLATION_UNSPECIFIED: _ClassVar[Isolation]
    ISOLATION_CONFIRMED: _ClassVar[Isolation]
    ISOLATION_LATEST: _ClassVar[Isolation]

class Role(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    ROLE_UNSPECIFIED: _ClassVar[Role]
    ROLE_MASTER: _ClassVar[Role]
    ROLE_SLAVE: _ClassVar[Role]
ISOLATION_UNSPECIFIED: Isolation
ISOLATION_CONFIRMED: Isolation
ISOLATION_LATEST: Isolation
ROLE_UNSPECIFIED: Role
ROLE_MASTER: Role
ROLE_SLAVE: Role

class ReadRecordsRequest(_message.Message):
    __slots__ = ("topic", "queue_id", "start_offset", "end_offset", "byte_budget", "tags", "isolation")
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    QUEUE_ID_FIELD_NUMBER: _ClassVar[int]
    START_OFFSET_FIELD_NUMBER: _ClassVar[int]
    END_OFFSET_FIELD_NUMBER: _ClassVar[int]
    BYTE_BUDGET_FIELD_NUMBER: _ClassVar[int]
    TAGS_FIELD_NUMBER: _ClassVar[int]
    ISOLATION_FIELD_NUMBER: _ClassVar[int]
    topic: str
    queue_id: int
    start_offset: int
    end_offset: int
    byte_budget: int
    tags: str
    isolation: Isolation
    def __init__(self, topic: _Optional[str] = ..., queue_id: _Optional[int] = ..., start_offset: _Optional[int] = ..., end_offset: _Optional[int] = ..., byte_budget: _Optional[int] = ..., tags: _Optional[str] = ..., isolation: _Optional[_Union[Isolation, str]] = ...) -> None: ...

class ReadRecordsResponse(_message.Message):
    __slots__ = ("records", "next_offset", "confirmed_offset", "min_offset", "max_offset")
    RECORDS_FIELD_NUMBER: _ClassVar[int]
    NEXT_OFFSET_FIELD_NUMBER: _ClassVar[int]
    CONFIRMED_OFFSET_FIELD_NUMBER: _ClassVar[int]
    MIN_OFFSET_FIELD_NUMBER: _ClassVar[int]
    MAX_OFFSET_FIELD_NUMBER: _ClassVar[int]
    records: bytes
    next_offset: int
    confirmed_offset: int
    min_offset: int
    max_offset: int
    def __init__(self, records: _Optional[bytes] = ..., next_offset: _Optional[int] = ..., confirmed_offset: _Optional[int] = ..., min_offset: _Optional[int] = ..., max_offset: _Optional[int] = ...) -> None: ...

class DescribeQueuesRequest(_message.Message):
    __slots__ = ("topics", "include_system")
    TOPICS_FIELD_NUMBER: _ClassVar[int]
    INCLUDE_SYSTEM_FIELD_NUMBER: _ClassVar[int]
    topics: _containers.RepeatedScalarFieldContainer[str]
    include_system: bool
    def __init__(self, topics: _Optional[_Iterable[str]] = ..., include_system: _Optional[bool] = ...) -> None: ...

class QueueOffsets(_message.Message):
    __slots__ = ("queue_id", "min_offset", "max_offset", "confirmed_offset")
    QUEUE_ID_FIELD_NUMBER: _ClassVar[int]
    MIN_OFFSET_FIELD_NUMBER: _ClassVar[int]
    MAX_OFFSET_FIELD_NUMBER: _ClassVar[int]
    CONFIRMED_OFFSET_FIELD_NUMBER: _ClassVar[int]
    queue_id: int
    min_offset: int
    max_offset: int
    confirmed_offset: int
    def __init__(self, queue_id: _Optional[int] = ..., min_offset: _Optional[int] = ..., max_offset: _Optional[int] = ..., confirmed_offset: _Optional[int] = ...) -> None: ...

class TopicQueues(_message.Message):
    __slots__ = ("name", "message_type", "permission", "system", "queues")
    NAME_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_TYPE_FIELD_NUMBER: _ClassVar[int]
    PERMISSION_FIELD_NUMBER: _ClassVar[int]
    SYSTEM_FIELD_NUMBER: _ClassVar[int]
    QUEUES_FIELD_NUMBER: _ClassVar[int]
    name: str
    message_type: _admin_service_pb2.MessageType
    permission: int
    system: bool
    queues: _containers.RepeatedCompositeFieldContainer[QueueOffsets]
    def __init__(self, name: _Optional[str] = ..., message_type: _Optional[_Union[_admin_service_pb2.MessageType, str]] = ..., permission: _Optional[int] = ..., system: _Optional[bool] = ..., queues: _Optional[_Iterable[_Union[QueueOffsets, _Mapping]]] = ...) -> None: ...

class DescribeQueuesResponse(_message.Message):
    __slots__ = ("broker_name", "broker_id", "role", "log_begin", "log_confirmed", "log_written", "topics", "log_file_size")
    BROKER_NAME_FIELD_NUMBER: _ClassVar[int]
    BROKER_ID_FIELD_NUMBER: _ClassVar[int]
    ROLE_FIELD_NUMBER: _ClassVar[int]
    LOG_BEGIN_FIELD_NUMBER: _ClassVar[int]
    LOG_CONFIRMED_FIELD_NUMBER: _ClassVar[int]
    LOG_WRITTEN_FIELD_NUMBER: _ClassVar[int]
    TOPICS_FIELD_NUMBER: _ClassVar[int]
    LOG_FILE_SIZE_FIELD_NUMBER: _ClassVar[int]
    broker_name: str
    broker_id: int
    role: Role
    log_begin: int
    log_confirmed: int
    log_written: int
    topics: _containers.RepeatedCompositeFieldContainer[TopicQueues]
    log_file_size: int
    def __init__(self, broker_name: _Optional[str] = ..., broker_id: _Optional[int] = ..., role: _Optional[_Union[Role, str]] = ..., log_begin: _Optional[int] = ..., log_confirmed: _Optional[int] = ..., log_written: _Optional[int] = ..., topics: _Optional[_Iterable[_Union[TopicQueues, _Mapping]]] = ..., log_file_size: _Optional[int] = ...) -> None: ...

class ChecksumLogRequest(_message.Message):
    __slots__ = ("begin_offset", "end_offset", "chunk_bytes")
    BEGIN_OFFSET_FIELD_NUMBER: _ClassVar[int]
    END_OFFSET_FIELD_NUMBER: _ClassVar[int]
    CHUNK_BYTES_FIELD_NUMBER: _ClassVar[int]
    begin_offset: int
    end_offset: int
    chunk_bytes: int
    def __init__(self, begin_offset: _Optional[int] = ..., end_offset: _Optional[int] = ..., chunk_bytes: _Optional[int] = ...) -> None: ...

class ChecksumLogResponse(_message.Message):
    __slots__ = ("offset", "size", "crc32", "log_begin", "log_confirmed", "log_written")
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    SIZE_FIELD_NUMBER: _ClassVar[int]
    CRC32_FIELD_NUMBER: _ClassVar[int]
    LOG_BEGIN_FIELD_NUMBER: _ClassVar[int]
    LOG_CONFIRMED_FIELD_NUMBER: _ClassVar[int]
    LOG_WRITTEN_FIELD_NUMBER: _ClassVar[int]
    offset: int
    size: int
    crc32: int
    log_begin: int
    log_confirmed: int
    log_written: int
    def __init__(self, offset: _Optional[int] = ..., size: _Optional[int] = ..., crc32: _Optional[int] = ..., log_begin: _Optional[int] = ..., log_confirmed: _Optional[int] = ..., log_written: _Optional[int] = ...) -> None: ...

class ReadLogRequest(_message.Message):
    __slots__ = ("begin_offset", "end_offset")
    BEGIN_OFFSET_FIELD_NUMBER: _ClassVar[int]
    END_OFFSET_FIELD_NUMBER: _ClassVar[int]
    begin_offset: int
    end_offset: int
    def __init__(self, begin_offset: _Optional[int] = ..., end_offset: _Optional[int] = ...) -> None: ...

class ReadLogResponse(_message.Message):
    __slots__ = ("offset", "data")
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    DATA_FIELD_NUMBER: _ClassVar[int]
    offset: int
    data: bytes
    def __init__(self, offset: _Optional[int] = ..., data: _Optional[bytes] = ...) -> None: ...
