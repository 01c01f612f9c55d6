from whimbrel.pb.apache.rocketmq.v2 import definition_pb2 as _definition_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class DeadLetterResult(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    DEAD_LETTER_RESULT_UNSPECIFIED: _ClassVar[DeadLetterResult]
    DEAD_LETTER_RESULT_DONE: _ClassVar[DeadLetterResult]
    DEAD_LETTER_RESULT_BEFORE: _ClassVar[DeadLetterResult]
    DEAD_LETTER_RESULT_GONE: _ClassVar[DeadLetterResult]
    DEAD_LETTER_RESULT_REFUSED: _ClassVar[DeadLetterResult]
DEAD_LETTER_RESULT_UNSPECIFIED: DeadLetterResult
DEAD_LETTER_RESULT_DONE: DeadLetterResult
DEAD_LETTER_RESULT_BEFORE: DeadLetterResult
DEAD_LETTER_RESULT_GONE: DeadLetterResult
DEAD_LETTER_RESULT_REFUSED: DeadLetterResult

class DeadLetterPlace(_message.Message):
    __slots__ = ("queue_id", "offset")
    QUEUE_ID_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    queue_id: int
    offset: int
    def __init__(self, queue_id: _Optional[int] = ..., offset: _Optional[int] = ...) -> None: ...

class DeadLetter(_message.Message):
    __slots__ = ("message", "origin_topic", "attempts")
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    ORIGIN_TOPIC_FIELD_NUMBER: _ClassVar[int]
    ATTEMPTS_FIELD_NUMBER: _ClassVar[int]
    message: _definition_pb2.Message
    origin_topic: str
    attempts: int
    def __init__(self, message: _Optional[_Union[_definition_pb2.Message, _Mapping]] = ..., origin_topic: _Optional[str] = ..., attempts: _Optional[int] = ...) -> None: ...

class ListDeadLettersRequest(_message.Message):
    __slots__ = ("group", "count", "with_bodies")
    GROUP_FIELD_NUMBER: _ClassVar[int]
    FROM_FIELD_NUMBER: _ClassVar[int]
    COUNT_FIELD_NUMBER: _ClassVar[int]
    WITH_BODIES_FIELD_NUMBER: _ClassVar[int]
    group: str
    count: int
    with_bodies: bool
    def __init__(self, group: _Optional[str] = ..., count: _Optional[int] = ..., with_bodies: _Optional[bool] = ..., **kwargs) -> None: ...

class ListDeadLettersResponse(_message.Message):
    __slots__ = ("letters", "next")
    LETTERS_FIELD_NUMBER: _ClassVar[int]
    NEXT_FIELD_NUMBER: _ClassVar[int]
    letters: _containers.RepeatedCompositeFieldContainer[DeadLetter]
    next: DeadLetterPlace
    def __init__(self, letters: _Optional[_Iterable[_Union[DeadLetter, _Mapping]]] = ..., next: _Optional[_Union[DeadLetterPlace, _Mapping]] = ...) -> None: ...

class DeadLetterOutcome(_message.Message):
    __slots__ = ("place", "result", "topic", "why")
    PLACE_FIELD_NUMBER: _ClassVar[int]
    RESULT_FIELD_NUMBER: _ClassVar[int]
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    WHY_FIELD_NUMBER: _ClassVar[int]
    place: DeadLetterPlace
    result: DeadLetterResult
    topic: str
    why: str
    def __init__(self, place: _Optional[_Union[DeadLetterPlace, _Mapping]] = ..., result: _Optional[_Union[DeadLetterResult, str]] = ..., topic: _Optional[str] = ..., why: _Optional[str] = ...) -> None: ...

class ReplayDeadLettersRequest(_message.Message):
    __slots__ = ("group", "places")
    GROUP_FIELD_NUMBER: _ClassVar[int]
    PLACES_FIELD_NUMBER: _ClassVar[int]
    group: str
    places: _containers.RepeatedCompositeFieldContainer[DeadLetterPlace]
    def __init__(self, group: _Optional[str] = ..., places: _Optional[_Iterable[_Union[DeadLetterPlace, _Mapping]]] = ...) -> None: ...

class ReplayDeadLettersResponse(_message.Message):
    __slots__ = ("outcomes",)
    OUTCOMES_FIELD_NUMBER: _ClassVar[int]
    outcomes: _containers.RepeatedCompositeFieldContainer[DeadLetterOutcome]
    def __init__(self, outcomes: _Optional[_Iterable[_Union[DeadLetterOutcome, _Mapping]]] = ...) -> None: ...

class DropDeadLettersRequest(_message.Message):
    __slots__ = ("group", "places")
    GROUP_FIELD_NUMBER: _ClassVar[int]
    PLACES_FIELD_NUMBER: _ClassVar[int]
    group: str
    places: _containers.RepeatedCompositeFieldContainer[DeadLetterPlace]
    def __init__(self, group: _Optional[str] = ..., places: _Optional[_Iterable[_Union[DeadLetterPlace, _Mapping]]] = ...) -> None: ...

class DropDeadLettersResponse(_message.Message):
    __slots__ = ("outcomes",)
    OUTCOMES_FIELD_NUMBER: _ClassVar[int]
    outcomes: _containers.RepeatedCompositeFieldContainer[DeadLetterOutcome]
    def __init__(self, outcomes: _Optional[_Iterable[_Union[DeadLetterOutcome, _Mapping]]] = ...) -> None: ...
