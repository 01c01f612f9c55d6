"""Outbound calls that replay messages of another queue; made by `calls.perform` or `perform_blocking`."""

from collections.abc import Sequence
from dataclasses import dataclass

from whimbrel.pb.whimbrel.admin.v1 import admin_service_pb2 as admin
from whimbrel.rpc.api.admin_calls import ADMIN
from whimbrel.rpc.api.calls import Outbound, Trailers, of_text

__all__ = [
    "ReplayResult",
    "ReplayState",
    "SourceMessage",
    "SourceQueue",
    "append_replay",
    "describe_replay",
]


@dataclass(frozen=True, slots=True)
class SourceQueue:
    """The queue in which replayed messages were stored first."""

    broker: str
    topic: str
    queue_id: int

    def __str__(self) -> str:
        return f"{self.topic}, queue {self.queue_id} of {self.broker}"


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceMessage:
    """A message as it was stored in its source queue.

    Attributes:
        source_offset: in its source queue.
        born_ms: epoch milliseconds.
        born_host: IP:PORT, empty for unknown.
        flag: of the record.
        sys_flag: of the record; only the bits of the body's compression are kept.
        properties: the property text as stored.
        body: as stored.
        message_id: becomes UNIQ_KEY where the text has none.
    """

    source_offset: int
    born_ms: int
    born_host: str
    flag: int
    sys_flag: int
    properties: bytes
    body: bytes
    message_id: str

    @property
    def size(self) -> int:
        """The bytes that count for the bound of a call."""
        return len(self.body) + len(self.properties)


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayState:
    """How far a source was replayed; -1 stands for no message.

    Attributes:
        complete: False while the broker is still searching; ask again then.
        left: messages that it has to search.
        last, first: source offsets of replayed messages.
    """

    complete: bool
    left: int
    last: int
    first: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayResult:
    """The outcome for the messages of a call.

    Attributes:
        last: source offset of the last one in the queue, -1 for none.
        stored: messages that this call has stored.
        skipped: messages that were there already.
        refused: source offsets of messages that can't be stored, and why.
        first_offset, last_offset: queue offsets of the stored ones, -1 for none.
    """

    last: int
    stored: int
    skipped: int
    refused: tuple[tuple[int, str], ...]
    first_offset: int
    last_offset: int


@of_text
def describe_replay(
    topic: str, queue_id: int, source: SourceQueue, *, with_first: bool = False
) -> Outbound[ReplayState]:
    """Ask how far a source was replayed into a queue."""

    def decode(responses: Sequence[bytes], _: Trailers) -> ReplayState:
        response = admin.DescribePreservedResponse.FromString(responses[0])
        return ReplayState(
            complete=response.complete,
            left=response.left,
            last=response.last_source_offset,
            first=response.first_source_offset,
        )

    request = admin.DescribePreservedRequest(
        topic=topic, queue_id=queue_id, source=source_message(source), with_first=with_first
    )
    return Outbound(ADMIN + "DescribePreserved", request.SerializeToString(), decode)


@of_text
def append_replay(
    topic: str,
    queue_id: int,
    source: SourceQueue,
    messages: Sequence[SourceMessage],
    *,
    after: int = -1,
    selection: bool = False,
) -> Outbound[ReplayResult]:
    """Append messages of a source, by rising source offset; a repeated call stores nothing twice.

    Args:
        topic, queue_id: the target.
        source: where the messages were stored first.
        messages: at most REPLAY_BATCH_MAX, REPLAY_SELECTION_MAX of a selection.
        after: source offset of the last one in the target, as far as the caller knows.
        selection: single messages of a dead-letter topic.
    """

    def decode(responses: Sequence[bytes], _: Trailers) -> ReplayResult:
        response = admin.AppendPreservedResponse.FromString(responses[0])
        return ReplayResult(
            last=response.last_source_offset,
            stored=response.stored,
            skipped=response.skipped,
            refused=tuple((refusal.source_offset, refusal.why) for refusal in response.refusals),
            first_offset=response.first_offset,
            last_offset=response.last_offset,
        )

    request = admin.AppendPreservedRequest(
        topic=topic,
        queue_id=queue_id,
        source=source_message(source),
        after_offset=after,
        records=[record_message(message) for message in messages],
        selection=selection,
    )
    return Outbound(ADMIN + "AppendPreserved", request.SerializeToString(), decode)


def source_message(source: SourceQueue) -> admin.PreservedSource:
    """Return a source in its form on the wire."""
    return admin.PreservedSource(broker_name=source.broker, topic=source.topic, queue_id=source.queue_id)


def record_message(message: SourceMessage) -> admin.PreservedRecord:
    """Return a message in its form on the wire."""
    record = admin.PreservedRecord(
        source_offset=message.source_offset,
        born_host=message.born_host,
        flag=message.flag,
        sys_flag=message.sys_flag,
        properties=message.properties,
        body=message.body,
        message_id=message.message_id,
    )
    seconds, milliseconds = divmod(message.born_ms, 1000)
    record.born_at.seconds, record.born_at.nanos = seconds, milliseconds * 1_000_000
    return record
