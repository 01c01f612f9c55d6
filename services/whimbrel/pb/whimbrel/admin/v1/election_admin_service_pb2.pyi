from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class SwitchoverRequest(_message.Message):
    __slots__ = ("member",)
    MEMBER_FIELD_NUMBER: _ClassVar[int]
    member: int
    def __init__(self, member: _Optional[int] = ...) -> None: ...

class SwitchoverResponse(_message.Message):
    __slots__ = ("member",)
    MEMBER_FIELD_NUMBER: _ClassVar[int]
    member: int
    def __init__(self, member: _Optional[int] = ...) -> None: ...

class PauseElectionsRequest(_message.Message):
    __slots__ = ("paused",)
    PAUSED_FIELD_NUMBER: _ClassVar[int]
    paused: bool
    def __init__(self, paused: _Optional[bool] = ...) -> None: ...

class PauseElectionsResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class SetVotersRequest(_message.Message):
    __slots__ = ("members",)
    MEMBERS_FIELD_NUMBER: _ClassVar[int]
    members: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, members: _Optional[_Iterable[int]] = ...) -> None: ...

class SetVotersResponse(_message.Message):
    __slots__ = ("epoch",)
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    epoch: int
    def __init__(self, epoch: _Optional[int] = ...) -> None: ...

class ReinitRequest(_message.Message):
    __slots__ = ("member",)
    MEMBER_FIELD_NUMBER: _ClassVar[int]
    member: int
    def __init__(self, member: _Optional[int] = ...) -> None: ...

class ReinitResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class FailoverRequest(_message.Message):
    __slots__ = ("voters", "accept_loss", "revision")
    VOTERS_FIELD_NUMBER: _ClassVar[int]
    ACCEPT_LOSS_FIELD_NUMBER: _ClassVar[int]
    REVISION_FIELD_NUMBER: _ClassVar[int]
    voters: _containers.RepeatedScalarFieldContainer[int]
    accept_loss: bool
    revision: int
    def __init__(self, voters: _Optional[_Iterable[int]] = ..., accept_loss: _Optional[bool] = ..., revision: _Optional[int] = ...) -> None: ...

class FailoverResponse(_message.Message):
    __slots__ = ("epoch", "revision", "answered", "missing", "voters", "committed", "refusal")
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    REVISION_FIELD_NUMBER: _ClassVar[int]
    ANSWERED_FIELD_NUMBER: _ClassVar[int]
    MISSING_FIELD_NUMBER: _ClassVar[int]
    VOTERS_FIELD_NUMBER: _ClassVar[int]
    COMMITTED_FIELD_NUMBER: _ClassVar[int]
    REFUSAL_FIELD_NUMBER: _ClassVar[int]
    epoch: int
    revision: int
    answered: _containers.RepeatedCompositeFieldContainer[MemberPosition]
    missing: _containers.RepeatedScalarFieldContainer[int]
    voters: _containers.RepeatedScalarFieldContainer[int]
    committed: int
    refusal: str
    def __init__(self, epoch: _Optional[int] = ..., revision: _Optional[int] = ..., answered: _Optional[_Iterable[_Union[MemberPosition, _Mapping]]] = ..., missing: _Optional[_Iterable[int]] = ..., voters: _Optional[_Iterable[int]] = ..., committed: _Optional[int] = ..., refusal: _Optional[str] = ...) -> None: ...

class MemberPosition(_message.Message):
    __slots__ = ("member", "last_epoch", "log_end", "votes")
    MEMBER_FIELD_NUMBER: _ClassVar[int]
    LAST_EPOCH_FIELD_NUMBER: _ClassVar[int]
    LOG_END_FIELD_NUMBER: _ClassVar[int]
    VOTES_FIELD_NUMBER: _ClassVar[int]
    member: int
    last_epoch: int
    log_end: int
    votes: bool
    def __init__(self, member: _Optional[int] = ..., last_epoch: _Optional[int] = ..., log_end: _Optional[int] = ..., votes: _Optional[bool] = ...) -> None: ...
