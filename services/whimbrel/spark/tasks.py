"""What runs in a task: pieces of queues, from a broker to Arrow batches.

A piece is one call; its frames are decoded as they come. When a broker fails in the middle, the next member
of its group goes on at the offset that was reached, and when none can, the group is looked up anew, as often
as the options say. Nothing is yielded twice: the offset moves with each frame, after its batches are out.

Everything is opened in here. A channel does not survive the fork by which Spark makes its workers.
"""

import logging
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import pyarrow as pa

from whimbrel.errors import (
    BeyondConfirmed,
    IllegalOffset,
    QueueNotFound,
    RangeGone,
    TopicNotFound,
    WhimbrelError,
)
from whimbrel.rpc.api.bulk_calls import RecordFrame, open_bulk_channel, read_records, stream_blocking
from whimbrel.spark.brokers import Brokers, Groups, NoBroker
from whimbrel.spark.options import SourceOptions
from whimbrel.spark.planning import DataLoss, Piece
from whimbrel.store.columns import Decoder, Selection, frame

__all__ = ["Task", "read_task"]

log = logging.getLogger(__name__)

# Small batches of several queues are put together: each that goes to the JVM costs a millisecond or two.
GATHER_ROWS = 4_000
GATHER_BYTES = 4 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class Task:
    """What one task reads; `groups` says where brokers were at planning."""

    pieces: tuple[Piece, ...]
    groups: Groups
    columns: tuple[str, ...]
    options: SourceOptions


def read_task(task: Task) -> Iterator[pa.RecordBatch]:
    """Yield the batches of a task.

    Raises:
        DataLoss: messages are gone, and that is to fail.
        CorruptRecord: a body is not what it should be, and that is to fail.
        NoBroker: a broker group does not answer.
    """
    return gathered(batches for piece in task.pieces for batches in read_piece(task, piece))


def gathered(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Put small batches together."""
    held: list[pa.RecordBatch] = []
    rows = size = 0
    for batch in batches:
        held.append(batch)
        rows, size = rows + batch.num_rows, size + batch.nbytes
        if rows >= GATHER_ROWS or size >= GATHER_BYTES:
            yield from together(held)
            held, rows, size = [], 0, 0
    yield from together(held)


def together(batches: Sequence[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Yield several batches as one."""
    if len(batches) < 2:
        yield from batches
    else:
        yield from pa.Table.from_batches(batches).combine_chunks().to_batches()


def read_piece(task: Task, piece: Piece) -> Iterator[pa.RecordBatch]:
    """Yield the batches of one range of one queue."""
    options = task.options
    decoder = Decoder(
        task.columns,
        broker_name=piece.broker,
        verify_crc=options.verify_crc,
        on_corrupt=options.on_corrupt,
        raw_bodies=not options.decompress,
        raw_properties=options.properties == "raw",
        selection=Selection(tags=options.wanted_tags),
    )
    addresses: Sequence[str] = task.groups.get(piece.broker, ())
    at, tries = piece.start, 0
    while at < piece.end:
        failure: WhimbrelError | None = None
        before = at
        for address in addresses:
            try:
                for found in frames(address, piece, at, options):
                    if found.records:
                        yield from decoder.batches(frame(found.records))
                    at = found.next_offset
            except RangeGone as error:
                at = past_the_gap(piece, at, address, options, error)
            except (BeyondConfirmed, IllegalOffset, TopicNotFound, QueueNotFound) as error:
                failure = error  # a slave that lags; the next one, or the master, may have it
            except WhimbrelError as error:
                failure = error
            if at >= piece.end or at != before:
                break
        if at != before:
            tries = 0
            continue
        tries += 1
        if tries > options.retries:
            raise NoBroker(
                f"{piece.topic}, queue {piece.queue_id} of {piece.broker} can't be read at {at}: "
                f"{failure or 'no broker of that name is known'}"
            )
        time.sleep(options.retry_s)
        addresses = found_again(piece, options, addresses)


def frames(address: str, piece: Piece, at: int, options: SourceOptions) -> Iterator[RecordFrame]:
    """Yield the frames of a piece from `at` on, as one broker sends them."""
    call = read_records(
        piece.topic,
        piece.queue_id,
        start=at,
        end=piece.end,
        tags=options.tags,
        isolation=options.isolation,
    )
    with open_bulk_channel(address) as channel:
        yield from stream_blocking(channel, call, timeout_s=options.timeout_s)


def past_the_gap(piece: Piece, at: int, address: str, options: SourceOptions, error: RangeGone) -> int:
    """Return the first offset that is there, when what is gone may be passed over.

    Raises:
        DataLoss: it may not.
    """
    if options.fail_on_data_loss:
        raise DataLoss(
            f"{piece.topic}, queue {piece.queue_id} of {piece.broker}: {error};"
            " failOnDataLoss=false goes on at the first message that is there"
        ) from error
    brokers = Brokers(options)
    for topic in brokers.describe([address]).topics:
        for queue in topic.queues:
            if (topic.name, queue.queue_id) == (piece.topic, piece.queue_id):
                first = min(max(queue.min_offset, at), piece.end)
                log.warning("%s, queue %d: offsets %d to %d are gone", piece.topic, piece.queue_id, at, first)
                return first
    return piece.end


def found_again(piece: Piece, options: SourceOptions, before: Sequence[str]) -> Sequence[str]:
    """Return where a piece's broker group is now; as before when nobody can say."""
    try:
        return Brokers(options).groups().get(piece.broker, before)
    except WhimbrelError as error:
        log.warning("looking for broker %s failed: %s", piece.broker, error)
        return before
