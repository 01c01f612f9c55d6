from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from typing import ClassVar as _ClassVar, Optional as _Optional

DESCRIPTOR: _descriptor.FileDescriptor

class SuspectRequest(_message.Message):
    __slots__ = ("broker_name", "group", "epoch", "member")
    BROKER_NAME_FIELD_NUMBER: _ClassVar[int]
    GROUP_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    MEMBER_FIELD_NUMBER: _ClassVar[int]
    broker_name: str
    group: str
    epoch: int
    member: int
    def __init__(self, broker_name: _Optional[str] = ..., group: _Optional[str] = ..., epoch: _Optional[int] = ..., member: _Optional[int] = ...) -> None: ...

class SuspectResponse(_message.Message):
    __slots__ = ("silent", "epoch", "last_epoch", "log_end", "votes", "seat", "group", "member")
    SILENT_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    LAST_EPOCH_FIELD_NUMBER: _ClassVar[int]
    LOG_END_FIELD_NUMBER: _ClassVar[int]
    VOTES_FIELD_NUMBER: _ClassVar[int]
    SEAT_FIELD_NUMBER: _ClassVar[int]
    GROUP_FIELD_NUMBER: _ClassVar[int]
    MEMBER_FIELD_NUMBER: _ClassVar[int]
    silent: bool
    epoch: int
    last_epoch: int
    log_end: int
    votes: bool
    seat: str
    group: str
    member: int
    def __init__(self, silent: _Optional[bool] = ..., epoch: _Optional[int] = ..., last_epoch: _Optional[int] = ..., log_end: _Optional[int] = ..., votes: _Optional[bool] = ..., seat: _Optional[str] = ..., group: _Optional[str] = ..., member: _Optional[int] = ...) -> None: ...

class SealRequest(_message.Message):
    __slots__ = ("broker_name", "group", "epoch", "candidate", "log_begin")
    BROKER_NAME_FIELD_NUMBER: _ClassVar[int]
    GROUP_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    CANDIDATE_FIELD_NUMBER: _ClassVar[int]
    LOG_BEGIN_FIELD_NUMBER: _ClassVar[int]
    broker_name: str
    group: str
    epoch: int
    candidate: int
    log_begin: int
    def __init__(self, broker_name: _Optional[str] = ..., group: _Optional[str] = ..., epoch: _Optional[int] = ..., candidate: _Optional[int] = ..., log_begin: _Optional[int] = ...) -> None: ...

class SealResponse(_message.Message):
    __slots__ = ("sealed", "promised", "promised_to", "last_epoch", "log_end", "seat", "why", "member", "votes", "waiting_below")
    SEALED_FIELD_NUMBER: _ClassVar[int]
    PROMISED_FIELD_NUMBER: _ClassVar[int]
    PROMISED_TO_FIELD_NUMBER: _ClassVar[int]
    LAST_EPOCH_FIELD_NUMBER: _ClassVar[int]
    LOG_END_FIELD_NUMBER: _ClassVar[int]
    SEAT_FIELD_NUMBER: _ClassVar[int]
    WHY_FIELD_NUMBER: _ClassVar[int]
    MEMBER_FIELD_NUMBER: _ClassVar[int]
    VOTES_FIELD_NUMBER: _ClassVar[int]
    WAITING_BELOW_FIELD_NUMBER: _ClassVar[int]
    sealed: bool
    promised: int
    promised_to: int
    last_epoch: int
    log_end: int
    seat: str
    why: str
    member: int
    votes: bool
    waiting_below: int
    def __init__(self, sealed: _Optional[bool] = ..., promised: _Optional[int] = ..., promised_to: _Optional[int] = ..., last_epoch: _Optional[int] = ..., log_end: _Optional[int] = ..., seat: _Optional[str] = ..., why: _Optional[str] = ..., member: _Optional[int] = ..., votes: _Optional[bool] = ..., waiting_below: _Optional[int] = ...) -> None: ...

class EmptyRequest(_message.Message):
    __slots__ = ("broker_name", "group", "epoch", "leader")
    BROKER_NAME_FIELD_NUMBER: _ClassVar[int]
    GROUP_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    LEADER_FIELD_NUMBER: _ClassVar[int]
    broker_name: str
    group: str
    epoch: int
    leader: int
    def __init__(self, broker_name: _Optional[str] = ..., group: _Optional[str] = ..., epoch: _Optional[int] = ..., leader: _Optional[int] = ...) -> None: ...

class EmptyResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...
