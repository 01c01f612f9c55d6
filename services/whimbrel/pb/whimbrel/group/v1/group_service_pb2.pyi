from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from typing import ClassVar as _ClassVar, Optional as _Optional

DESCRIPTOR: _descriptor.FileDescriptor

class ReadRequest(_message.Message):
    __slots__ = ("cluster", "broker_name", "after_revision", "wait_ms")
    CLUSTER_FIELD_NUMBER: _ClassVar[int]
    BROKER_NAME_FIELD_NUMBER: _ClassVar[int]
    AFTER_REVISION_FIELD_NUMBER: _ClassVar[int]
    WAIT_MS_FIELD_NUMBER: _ClassVar[int]
    cluster: str
    broker_name: str
    after_revision: int
    wait_ms: int
    def __init__(self, cluster: _Optional[str] = ..., broker_name: _Optional[str] = ..., after_revision: _Optional[int] = ..., wait_ms: _Optional[int] = ...) -> None: ...

class ReadResponse(_message.Message):
    __slots__ = ("record", "revision")
    RECORD_FIELD_NUMBER: _ClassVar[int]
    REVISION_FIELD_NUMBER: _ClassVar[int]
    record: bytes
    revision: int
    def __init__(self, record: _Optional[bytes] = ..., revision: _Optional[int] = ...) -> None: ...

class SwapRequest(_message.Message):
    __slots__ = ("cluster", "broker_name", "revision", "record")
    CLUSTER_FIELD_NUMBER: _ClassVar[int]
    BROKER_NAME_FIELD_NUMBER: _ClassVar[int]
    REVISION_FIELD_NUMBER: _ClassVar[int]
    RECORD_FIELD_NUMBER: _ClassVar[int]
    cluster: str
    broker_name: str
    revision: int
    record: bytes
    def __init__(self, cluster: _Optional[str] = ..., broker_name: _Optional[str] = ..., revision: _Optional[int] = ..., record: _Optional[bytes] = ...) -> None: ...

class SwapResponse(_message.Message):
    __slots__ = ("swapped", "record", "revision")
    SWAPPED_FIELD_NUMBER: _ClassVar[int]
    RECORD_FIELD_NUMBER: _ClassVar[int]
    REVISION_FIELD_NUMBER: _ClassVar[int]
    swapped: bool
    record: bytes
    revision: int
    def __init__(self, swapped: _Optional[bool] = ..., record: _Optional[bytes] = ..., revision: _Optional[int] = ...) -> None: ...
