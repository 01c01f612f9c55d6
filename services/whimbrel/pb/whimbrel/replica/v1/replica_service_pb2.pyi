from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class IntroduceRequest(_message.Message):
    __slots__ = ("broker_name", "broker_id", "replica_address", "trouble", "settings_json")
    BROKER_NAME_FIELD_NUMBER: _ClassVar[int]
    BROKER_ID_FIELD_NUMBER: _ClassVar[int]
    REPLICA_ADDRESS_FIELD_NUMBER: _ClassVar[int]
    TROUBLE_FIELD_NUMBER: _ClassVar[int]
    SETTINGS_JSON_FIELD_NUMBER: _ClassVar[int]
    broker_name: str
    broker_id: int
    replica_address: str
    trouble: str
    settings_json: str
    def __init__(self, broker_name: _Optional[str] = ..., broker_id: _Optional[int] = ..., replica_address: _Optional[str] = ..., trouble: _Optional[str] = ..., settings_json: _Optional[str] = ...) -> None: ...

class IntroduceResponse(_message.Message):
    __slots__ = ("settings_json",)
    SETTINGS_JSON_FIELD_NUMBER: _ClassVar[int]
    settings_json: str
    def __init__(self, settings_json: _Optional[str] = ...) -> None: ...

class WatchMetadataRequest(_message.Message):
    __slots__ = ("broker_name", "broker_id", "log_end", "takes_changes", "epoch")
    BROKER_NAME_FIELD_NUMBER: _ClassVar[int]
    BROKER_ID_FIELD_NUMBER: _ClassVar[int]
    LOG_END_FIELD_NUMBER: _ClassVar[int]
    TAKES_CHANGES_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    broker_name: str
    broker_id: int
    log_end: int
    takes_changes: bool
    epoch: int
    def __init__(self, broker_name: _Optional[str] = ..., broker_id: _Optional[int] = ..., log_end: _Optional[int] = ..., takes_changes: _Optional[bool] = ..., epoch: _Optional[int] = ...) -> None: ...

class MetadataVersion(_message.Message):
    __slots__ = ("epoch", "counter")
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    COUNTER_FIELD_NUMBER: _ClassVar[int]
    epoch: int
    counter: int
    def __init__(self, epoch: _Optional[int] = ..., counter: _Optional[int] = ...) -> None: ...

class TableVersion(_message.Message):
    __slots__ = ("timestamp_ms", "counter", "state")
    TIMESTAMP_MS_FIELD_NUMBER: _ClassVar[int]
    COUNTER_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    timestamp_ms: int
    counter: int
    state: int
    def __init__(self, timestamp_ms: _Optional[int] = ..., counter: _Optional[int] = ..., state: _Optional[int] = ...) -> None: ...

class TableChange(_message.Message):
    __slots__ = ("before", "after", "rows_json", "removed")
    BEFORE_FIELD_NUMBER: _ClassVar[int]
    AFTER_FIELD_NUMBER: _ClassVar[int]
    ROWS_JSON_FIELD_NUMBER: _ClassVar[int]
    REMOVED_FIELD_NUMBER: _ClassVar[int]
    before: TableVersion
    after: TableVersion
    rows_json: str
    removed: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, before: _Optional[_Union[TableVersion, _Mapping]] = ..., after: _Optional[_Union[TableVersion, _Mapping]] = ..., rows_json: _Optional[str] = ..., removed: _Optional[_Iterable[str]] = ...) -> None: ...

class WatchMetadataResponse(_message.Message):
    __slots__ = ("topics_json", "groups_json", "offsets_json", "delay_offsets_json", "queue_floors_json", "confirmed_offset", "queue_offsets_json", "queue_offsets_at", "timer_read_ms", "timer_log_end", "shared_topics_json", "topics_change", "groups_change", "version", "log_begin", "log_begin_at")
    TOPICS_JSON_FIELD_NUMBER: _ClassVar[int]
    GROUPS_JSON_FIELD_NUMBER: _ClassVar[int]
    OFFSETS_JSON_FIELD_NUMBER: _ClassVar[int]
    DELAY_OFFSETS_JSON_FIELD_NUMBER: _ClassVar[int]
    QUEUE_FLOORS_JSON_FIELD_NUMBER: _ClassVar[int]
    CONFIRMED_OFFSET_FIELD_NUMBER: _ClassVar[int]
    QUEUE_OFFSETS_JSON_FIELD_NUMBER: _ClassVar[int]
    QUEUE_OFFSETS_AT_FIELD_NUMBER: _ClassVar[int]
    TIMER_READ_MS_FIELD_NUMBER: _ClassVar[int]
    TIMER_LOG_END_FIELD_NUMBER: _ClassVar[int]
    SHARED_TOPICS_JSON_FIELD_NUMBER: _ClassVar[int]
    TOPICS_CHANGE_FIELD_NUMBER: _ClassVar[int]
    GROUPS_CHANGE_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    LOG_BEGIN_FIELD_NUMBER: _ClassVar[int]
    LOG_BEGIN_AT_FIELD_NUMBER: _ClassVar[int]
    topics_json: str
    groups_json: str
    offsets_json: str
    delay_offsets_json: str
    queue_floors_json: str
    confirmed_offset: int
    queue_offsets_json: str
    queue_offsets_at: int
    timer_read_ms: int
    timer_log_end: int
    shared_topics_json: str
    topics_change: TableChange
    groups_change: TableChange
    version: MetadataVersion
    log_begin: int
    log_begin_at: int
    def __init__(self, topics_json: _Optional[str] = ..., groups_json: _Optional[str] = ..., offsets_json: _Optional[str] = ..., delay_offsets_json: _Optional[str] = ..., queue_floors_json: _Optional[str] = ..., confirmed_offset: _Optional[int] = ..., queue_offsets_json: _Optional[str] = ..., queue_offsets_at: _Optional[int] = ..., timer_read_ms: _Optional[int] = ..., timer_log_end: _Optional[int] = ..., shared_topics_json: _Optional[str] = ..., topics_change: _Optional[_Union[TableChange, _Mapping]] = ..., groups_change: _Optional[_Union[TableChange, _Mapping]] = ..., version: _Optional[_Union[MetadataVersion, _Mapping]] = ..., log_begin: _Optional[int] = ..., log_begin_at: _Optional[int] = ...) -> None: ...

class SyncLeasesRequest(_message.Message):
    __slots__ = ("broker_name", "entries", "snapshot_done", "broker_id", "log_end", "reads_orders", "seat", "epoch", "metadata", "stored", "metadata_stored", "tables", "tables_done", "lost", "takeovers")
    BROKER_NAME_FIELD_NUMBER: _ClassVar[int]
    ENTRIES_FIELD_NUMBER: _ClassVar[int]
    SNAPSHOT_DONE_FIELD_NUMBER: _ClassVar[int]
    BROKER_ID_FIELD_NUMBER: _ClassVar[int]
    LOG_END_FIELD_NUMBER: _ClassVar[int]
    READS_ORDERS_FIELD_NUMBER: _ClassVar[int]
    SEAT_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    METADATA_FIELD_NUMBER: _ClassVar[int]
    STORED_FIELD_NUMBER: _ClassVar[int]
    METADATA_STORED_FIELD_NUMBER: _ClassVar[int]
    TABLES_FIELD_NUMBER: _ClassVar[int]
    TABLES_DONE_FIELD_NUMBER: _ClassVar[int]
    LOST_FIELD_NUMBER: _ClassVar[int]
    TAKEOVERS_FIELD_NUMBER: _ClassVar[int]
    broker_name: str
    entries: bytes
    snapshot_done: bool
    broker_id: int
    log_end: int
    reads_orders: bool
    seat: str
    epoch: int
    metadata: MetadataVersion
    stored: int
    metadata_stored: int
    tables: bytes
    tables_done: bool
    lost: bool
    takeovers: int
    def __init__(self, broker_name: _Optional[str] = ..., entries: _Optional[bytes] = ..., snapshot_done: _Optional[bool] = ..., broker_id: _Optional[int] = ..., log_end: _Optional[int] = ..., reads_orders: _Optional[bool] = ..., seat: _Optional[str] = ..., epoch: _Optional[int] = ..., metadata: _Optional[_Union[MetadataVersion, _Mapping]] = ..., stored: _Optional[int] = ..., metadata_stored: _Optional[int] = ..., tables: _Optional[bytes] = ..., tables_done: _Optional[bool] = ..., lost: _Optional[bool] = ..., takeovers: _Optional[int] = ...) -> None: ...

class SyncLeasesResponse(_message.Message):
    __slots__ = ("entries", "snapshot_done", "reads_orders", "number", "epoch", "metadata", "begun", "takeovers")
    ENTRIES_FIELD_NUMBER: _ClassVar[int]
    SNAPSHOT_DONE_FIELD_NUMBER: _ClassVar[int]
    READS_ORDERS_FIELD_NUMBER: _ClassVar[int]
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    METADATA_FIELD_NUMBER: _ClassVar[int]
    BEGUN_FIELD_NUMBER: _ClassVar[int]
    TAKEOVERS_FIELD_NUMBER: _ClassVar[int]
    entries: bytes
    snapshot_done: bool
    reads_orders: bool
    number: int
    epoch: int
    metadata: MetadataVersion
    begun: bool
    takeovers: int
    def __init__(self, entries: _Optional[bytes] = ..., snapshot_done: _Optional[bool] = ..., reads_orders: _Optional[bool] = ..., number: _Optional[int] = ..., epoch: _Optional[int] = ..., metadata: _Optional[_Union[MetadataVersion, _Mapping]] = ..., begun: _Optional[bool] = ..., takeovers: _Optional[int] = ...) -> None: ...
