from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class CutResult(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    CUT_RESULT_UNSPECIFIED: _ClassVar[CutResult]
    CUT_RESULT_STORED: _ClassVar[CutResult]
    CUT_RESULT_PRESENT: _ClassVar[CutResult]
    CUT_RESULT_REFUSED: _ClassVar[CutResult]
CUT_RESULT_UNSPECIFIED: CutResult
CUT_RESULT_STORED: CutResult
CUT_RESULT_PRESENT: CutResult
CUT_RESULT_REFUSED: CutResult

class ListCutsRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ListCutsResponse(_message.Message):
    __slots__ = ("cuts",)
    CUTS_FIELD_NUMBER: _ClassVar[int]
    cuts: _containers.RepeatedCompositeFieldContainer[Cut]
    def __init__(self, cuts: _Optional[_Iterable[_Union[Cut, _Mapping]]] = ...) -> None: ...

class Cut(_message.Message):
    __slots__ = ("name", "epoch", "begin", "end", "records", "why", "time_ms", "size", "mark")
    NAME_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    BEGIN_FIELD_NUMBER: _ClassVar[int]
    END_FIELD_NUMBER: _ClassVar[int]
    RECORDS_FIELD_NUMBER: _ClassVar[int]
    WHY_FIELD_NUMBER: _ClassVar[int]
    TIME_MS_FIELD_NUMBER: _ClassVar[int]
    SIZE_FIELD_NUMBER: _ClassVar[int]
    MARK_FIELD_NUMBER: _ClassVar[int]
    name: str
    epoch: int
    begin: int
    end: int
    records: int
    why: str
    time_ms: int
    size: int
    mark: CutMark
    def __init__(self, name: _Optional[str] = ..., epoch: _Optional[int] = ..., begin: _Optional[int] = ..., end: _Optional[int] = ..., records: _Optional[int] = ..., why: _Optional[str] = ..., time_ms: _Optional[int] = ..., size: _Optional[int] = ..., mark: _Optional[_Union[CutMark, _Mapping]] = ...) -> None: ...

class CutMark(_message.Message):
    __slots__ = ("position", "done", "stored", "present", "refused", "time_ms")
    POSITION_FIELD_NUMBER: _ClassVar[int]
    DONE_FIELD_NUMBER: _ClassVar[int]
    STORED_FIELD_NUMBER: _ClassVar[int]
    PRESENT_FIELD_NUMBER: _ClassVar[int]
    REFUSED_FIELD_NUMBER: _ClassVar[int]
    TIME_MS_FIELD_NUMBER: _ClassVar[int]
    position: int
    done: bool
    stored: int
    present: int
    refused: int
    time_ms: int
    def __init__(self, position: _Optional[int] = ..., done: _Optional[bool] = ..., stored: _Optional[int] = ..., present: _Optional[int] = ..., refused: _Optional[int] = ..., time_ms: _Optional[int] = ...) -> None: ...

class ReadCutRequest(_message.Message):
    __slots__ = ("name", "position", "count")
    NAME_FIELD_NUMBER: _ClassVar[int]
    POSITION_FIELD_NUMBER: _ClassVar[int]
    COUNT_FIELD_NUMBER: _ClassVar[int]
    name: str
    position: int
    count: int
    def __init__(self, name: _Optional[str] = ..., position: _Optional[int] = ..., count: _Optional[int] = ...) -> None: ...

class ReadCutResponse(_message.Message):
    __slots__ = ("records", "next", "begin")
    RECORDS_FIELD_NUMBER: _ClassVar[int]
    NEXT_FIELD_NUMBER: _ClassVar[int]
    BEGIN_FIELD_NUMBER: _ClassVar[int]
    records: _containers.RepeatedCompositeFieldContainer[CutRecord]
    next: int
    begin: int
    def __init__(self, records: _Optional[_Iterable[_Union[CutRecord, _Mapping]]] = ..., next: _Optional[int] = ..., begin: _Optional[int] = ...) -> None: ...

class CutRecord(_message.Message):
    __slots__ = ("offset", "record")
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    RECORD_FIELD_NUMBER: _ClassVar[int]
    offset: int
    record: bytes
    def __init__(self, offset: _Optional[int] = ..., record: _Optional[bytes] = ...) -> None: ...

class MarkCutRequest(_message.Message):
    __slots__ = ("name", "mark")
    NAME_FIELD_NUMBER: _ClassVar[int]
    MARK_FIELD_NUMBER: _ClassVar[int]
    name: str
    mark: CutMark
    def __init__(self, name: _Optional[str] = ..., mark: _Optional[_Union[CutMark, _Mapping]] = ...) -> None: ...

class MarkCutResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ReplayCutRequest(_message.Message):
    __slots__ = ("member", "name", "position", "count", "topics", "message_ids", "dry_run", "records", "begin")
    MEMBER_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    POSITION_FIELD_NUMBER: _ClassVar[int]
    COUNT_FIELD_NUMBER: _ClassVar[int]
    TOPICS_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_IDS_FIELD_NUMBER: _ClassVar[int]
    DRY_RUN_FIELD_NUMBER: _ClassVar[int]
    RECORDS_FIELD_NUMBER: _ClassVar[int]
    BEGIN_FIELD_NUMBER: _ClassVar[int]
    member: int
    name: str
    position: int
    count: int
    topics: _containers.RepeatedScalarFieldContainer[str]
    message_ids: _containers.RepeatedScalarFieldContainer[str]
    dry_run: bool
    records: _containers.RepeatedCompositeFieldContainer[CutRecord]
    begin: int
    def __init__(self, member: _Optional[int] = ..., name: _Optional[str] = ..., position: _Optional[int] = ..., count: _Optional[int] = ..., topics: _Optional[_Iterable[str]] = ..., message_ids: _Optional[_Iterable[str]] = ..., dry_run: _Optional[bool] = ..., records: _Optional[_Iterable[_Union[CutRecord, _Mapping]]] = ..., begin: _Optional[int] = ...) -> None: ...

class ReplayCutResponse(_message.Message):
    __slots__ = ("outcomes", "next")
    OUTCOMES_FIELD_NUMBER: _ClassVar[int]
    NEXT_FIELD_NUMBER: _ClassVar[int]
    outcomes: _containers.RepeatedCompositeFieldContainer[CutOutcome]
    next: int
    def __init__(self, outcomes: _Optional[_Iterable[_Union[CutOutcome, _Mapping]]] = ..., next: _Optional[int] = ...) -> None: ...

class CutOutcome(_message.Message):
    __slots__ = ("offset", "topic", "message_id", "result", "why")
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_ID_FIELD_NUMBER: _ClassVar[int]
    RESULT_FIELD_NUMBER: _ClassVar[int]
    WHY_FIELD_NUMBER: _ClassVar[int]
    offset: int
    topic: str
    message_id: str
    result: CutResult
    why: str
    def __init__(self, offset: _Optional[int] = ..., topic: _Optional[str] = ..., message_id: _Optional[str] = ..., result: _Optional[_Union[CutResult, str]] = ..., why: _Optional[str] = ...) -> None: ...
