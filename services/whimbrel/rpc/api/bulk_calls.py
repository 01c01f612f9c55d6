"""Reading in bulk from one broker, without sessions, routes or retries: for tasks of data pipelines.

    with open_bulk_channel("127.0.0.1:8091") as channel:                    inside of the task, never before
        queues = perform_blocking(channel, describe_queues(), (), 10.0)
        for frame in stream_blocking(channel, read_records("orders", 3, start=0), timeout_s=30.0):
            decode(frame.records)                                           whole records, as the log has them

A frame is fetched when it is asked for: a reader that stops holds some 4 MiB, and the broker 3 MiB. Errors
are typed: RangeGone, BeyondConfirmed, IllegalOffset, TopicNotFound, QueueNotFound, CorruptRecord, and those
of a broker that can't be reached. They may come after frames.
"""

from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass
from typing import Any, Generic, Literal, TypeVar

import grpc

from whimbrel.model.limits import BULK_RESPONSE_BYTES_MAX
from whimbrel.model.message import MessageType
from whimbrel.model.wire import BULK_SERVICE
from whimbrel.pb.whimbrel.bulk.v1 import bulk_service_pb2 as bulk
from whimbrel.rpc.api.calls import Outbound, Trailers, of_text
from whimbrel.rpc.api.convert import topic_type
from whimbrel.rpc.api.status import error_of
from whimbrel.rpc.client.channel import open_channel

__all__ = [
    "BULK",
    "OPTIONS",
    "BrokerQueues",
    "Chunk",
    "OutboundStream",
    "QueueOffsets",
    "RecordFrame",
    "TopicQueues",
    "checksum_log",
    "describe_queues",
    "log_bytes",
    "open_bulk_channel",
    "read_records",
    "stream_blocking",
]

T = TypeVar("T")
Isolation = Literal["confirmed", "latest"]

BULK = f"/{BULK_SERVICE}/"
OPTIONS: tuple[tuple[str, Any], ...] = (
    ("grpc.max_receive_message_length", BULK_RESPONSE_BYTES_MAX),
    # Bytes that may be under way for each stream. By default gRPC lets it grow to 16 MiB.
    ("grpc.http2.bdp_probe", 0),
    ("grpc.http2.lookahead_bytes", 2 << 20),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordFrame:
    """Whole stored records, one after the other, and where their queue stands.

    Attributes:
        records: as in the log; may be empty.
        next_offset: queue offset at which to go on.
        confirmed_offset, min_offset, max_offset: of the queue.
    """

    records: bytes
    next_offset: int
    confirmed_offset: int
    min_offset: int
    max_offset: int


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueOffsets:
    """A queue's range; what may be read is [min_offset, confirmed_offset)."""

    queue_id: int
    min_offset: int
    max_offset: int
    confirmed_offset: int


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicQueues:
    """A topic's queues on one broker, by id."""

    name: str
    message_type: MessageType
    permission: int
    system: bool
    queues: tuple[QueueOffsets, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerQueues:
    """All queues of one broker, or those that were asked for."""

    broker_name: str
    broker_id: int
    role: Literal["master", "slave"]
    log_begin: int
    log_confirmed: int
    log_written: int
    topics: tuple[TopicQueues, ...]
    log_file_size: int = 0  # 0 from an older broker


@dataclass(frozen=True, slots=True, kw_only=True)
class Chunk:
    """The CRC32 of a piece of the log, and where the log stood."""

    offset: int
    size: int
    crc32: int
    log_begin: int
    log_confirmed: int
    log_written: int


@dataclass(frozen=True, slots=True)
class OutboundStream(Generic[T]):
    """One call whose responses come one after the other; `decode` takes one of them."""

    path: str
    payload: bytes
    decode: Callable[[bytes], T]


def open_bulk_channel(target: str) -> grpc.Channel:
    """Return a channel for use from threads; it connects by itself at the first call."""
    return open_channel(target, OPTIONS)


def read_records(
    topic: str,
    queue_id: int,
    *,
    start: int,
    end: int = 0,
    byte_budget: int = 0,
    tags: str = "",
    isolation: Isolation = "confirmed",
) -> OutboundStream[RecordFrame]:
    """Read a range of a queue.

    Args:
        topic: its name.
        queue_id: of the queue.
        start: first queue offset.
        end: one past the last; 0 reads what may be read at the moment of the call.
        byte_budget: end before the record that would exceed it; 0 for no bound.
        tags: joined by `||`. The broker compares hashes: compare the text of received messages.
        isolation: up to the confirmed offset, or to the last one.
    """

    def decode(response: bytes) -> RecordFrame:
        frame = bulk.ReadRecordsResponse.FromString(response)
        return RecordFrame(
            records=frame.records,
            next_offset=frame.next_offset,
            confirmed_offset=frame.confirmed_offset,
            min_offset=frame.min_offset,
            max_offset=frame.max_offset,
        )

    request = bulk.ReadRecordsRequest(
        topic=topic,
        queue_id=queue_id,
        start_offset=start,
        end_offset=end,
        byte_budget=byte_budget,
        tags=tags,
        isolation=bulk.ISOLATION_LATEST if isolation == "latest" else bulk.ISOLATION_CONFIRMED,
    )
    return OutboundStream(BULK + "ReadRecords", request.SerializeToString(), decode)


@of_text
def describe_queues(topics: Sequence[str] = (), *, include_system: bool = False) -> Outbound[BrokerQueues]:
    """Ask for the offsets of all queues of all topics, or of those named; for `calls.perform`."""

    def decode(responses: Sequence[bytes], _: Trailers) -> BrokerQueues:
        response = bulk.DescribeQueuesResponse.FromString(responses[0])
        return BrokerQueues(
            broker_name=response.broker_name,
            broker_id=response.broker_id,
            role="master" if response.role == bulk.ROLE_MASTER else "slave",
            log_begin=response.log_begin,
            log_confirmed=response.log_confirmed,
            log_written=response.log_written,
            log_file_size=response.log_file_size,
            topics=tuple(
                TopicQueues(
                    name=topic.name,
                    message_type=topic_type(topic.message_type),
                    permission=topic.permission,
                    system=topic.system,
                    queues=tuple(
                        QueueOffsets(
                            queue_id=queue.queue_id,
                            min_offset=queue.min_offset,
                            max_offset=queue.max_offset,
                            confirmed_offset=queue.confirmed_offset,
                        )
                        for queue in topic.queues
                    ),
                )
                for topic in response.topics
            ),
        )

    request = bulk.DescribeQueuesRequest(topics=topics, include_system=include_system)
    return Outbound(BULK + "DescribeQueues", request.SerializeToString(), decode)


def checksum_log(
    begin: int | None = None, end: int | None = None, *, chunk_bytes: int = 0
) -> OutboundStream[Chunk]:
    """Ask for checksums of the log; without a range, of all that is confirmed."""

    def decode(response: bytes) -> Chunk:
        chunk = bulk.ChecksumLogResponse.FromString(response)
        return Chunk(
            offset=chunk.offset,
            size=chunk.size,
            crc32=chunk.crc32,
            log_begin=chunk.log_begin,
            log_confirmed=chunk.log_confirmed,
            log_written=chunk.log_written,
        )

    request = bulk.ChecksumLogRequest(begin_offset=begin, end_offset=end, chunk_bytes=chunk_bytes)
    return OutboundStream(BULK + "ChecksumLog", request.SerializeToString(), decode)


def log_bytes(begin: int, end: int) -> OutboundStream[tuple[int, bytes]]:
    """Read a range of the log as it stands, in pieces of up to 1 MiB: (offset, bytes)."""

    def decode(response: bytes) -> tuple[int, bytes]:
        piece = bulk.ReadLogResponse.FromString(response)
        return piece.offset, piece.data

    request = bulk.ReadLogRequest(begin_offset=begin, end_offset=end)
    return OutboundStream(BULK + "ReadLog", request.SerializeToString(), decode)


def stream_blocking(
    channel: grpc.Channel, call: OutboundStream[T], *, timeout_s: float | None = None
) -> Generator[T, None, None]:
    """Make the call and yield its responses on demand; closing the iterator ends the call.

    Raises:
        WhimbrelError: the broker's or the transport's error, typed.
    """
    open_stream: grpc.UnaryStreamMultiCallable[bytes, bytes] = channel.unary_stream(call.path)
    responses = open_stream(call.payload, timeout=timeout_s)
    try:
        for response in responses:
            yield call.decode(response)
    except grpc.RpcError as error:
        raise error_of(error) from error
    finally:
        responses.cancel()
