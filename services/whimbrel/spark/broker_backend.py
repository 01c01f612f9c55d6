"""Reads from running brokers: ranges of queues, planned on the driver and read in tasks by the bulk service.

A range is one call; its frames are decoded as they come. Where a range ends its master has said, so a slave
that lags, or that holds less, serves what it has. When a broker has no more or fails in the middle, the next
member of its group goes on at the offset that was reached. When none can, the nameserver is asked again for
the members, as often as the options say. No record is yielded twice: the offset moves with each frame, after
the frame's batches are out.

A task opens its channels itself: a channel does not survive the fork by which Spark makes its workers.
"""

import logging
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import pyarrow as pa

from whimbrel.errors import CorruptRecord, RangeGone, WhimbrelError
from whimbrel.rpc.api.bulk_calls import RecordFrame, open_bulk_channel, read_records, stream_blocking
from whimbrel.spark.backend import ON_CORRUPT_HINT, Backend, ReadRequest
from whimbrel.spark.brokers import BrokerAddresses, Brokers, NoBroker
from whimbrel.spark.offsets import Key, Positions
from whimbrel.spark.options import SourceOptions
from whimbrel.spark.planning import DataLoss, Extent, OffsetRange, pack
from whimbrel.store.columns import Decoder, Selection, frame

__all__ = ["BrokerBackend", "BrokerTask"]

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class BrokerBackend(Backend):
    """The queues of a cluster.

    Attributes:
        extents: of the brokers that answered.
        addresses: where each broker is asked.
        away: as in `Backend`.
    """

    has_physical_offsets = False
    shows_empty_queues = True

    options: SourceOptions
    extents: dict[Key, Extent]
    addresses: BrokerAddresses
    away: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def describe(
        cls,
        options: SourceOptions,
        *,
        first_contact: bool = False,
        whole: bool = True,
        known: Collection[str] = (),
    ) -> "BrokerBackend":
        """Ask the brokers.

        Raises:
            NoBroker: no broker answered, after all tries.
            Incomplete: `whole`, and a broker can't be asked, after all tries.
            NotThere: no broker has a topic that is named.
        """
        seen = Brokers(options).extents(first_contact=first_contact, whole=whole, known=known)
        return cls(options, seen.extents, seen.addresses, seen.away)

    @property
    def selects_by_time(self) -> bool:
        """Whether tasks select records by store time."""
        return False

    def offsets_by_time(self, keys: Sequence[Key], at_ms: int) -> Positions:
        """Return the first offset of each queue that was stored at a time or later, else the queue's end.

        Raises:
            NoBroker: a queue's broker does not answer, after all tries.
        """
        return Brokers(self.options).offsets_by_time(keys, at_ms, self.addresses)

    def confirmed_end(self, key: Key) -> int | None:
        """Return where the master's queue ends; None when no master of its name answers."""
        return Brokers(self.options).master_end(key)

    def plan(self, ranges: Sequence[OffsetRange], request: ReadRequest) -> "list[BrokerTask]":
        """Return the tasks that read some ranges."""
        packed = pack(
            ranges,
            task_bytes=request.task_bytes,
            tasks_max=request.tasks_max,
            tasks_min=request.options.min_partitions,
        )
        return [BrokerTask(tuple(task), self.addresses, request.columns, request.options) for task in packed]


@dataclass(frozen=True, slots=True)
class BrokerTask:
    """What one task reads; `addresses` are those of the brokers at planning."""

    ranges: tuple[OffsetRange, ...]
    addresses: BrokerAddresses
    columns: tuple[str, ...]
    options: SourceOptions

    def read(self) -> Iterator[pa.RecordBatch]:
        """Yield the batches.

        Raises:
            DataLoss: messages are gone, and the options say that this fails.
            CorruptRecord: a body is damaged, and the options say that this fails.
            NoBroker: a broker does not answer, after all tries.
        """
        for wanted in self.ranges:
            yield from read_range(self, wanted)


def read_range(task: BrokerTask, wanted: OffsetRange) -> Iterator[pa.RecordBatch]:
    """Yield the batches of one range."""
    options = task.options
    decoder = Decoder(
        task.columns,
        broker_name=wanted.broker,
        verify_crc=options.verify_crc,
        on_corrupt=options.on_corrupt,
        raw_bodies=not options.decompress,
        raw_properties=options.properties == "raw",
        selection=Selection(tags=options.wanted_tags),
    )
    addresses: Sequence[str] = task.addresses.get(wanted.broker, ())
    at, tries = wanted.start, 0
    while at < wanted.end:
        failure: WhimbrelError | None = None
        gone: dict[str, RangeGone] = {}
        before = at
        for address in addresses:
            stream = frames(address, wanted, at, options)
            while isinstance(found := next_frame(stream), RecordFrame):
                if found.records:
                    yield from decoded(decoder, found.records, wanted)
                at = found.next_offset
            if isinstance(found, RangeGone):
                gone[address] = found  # retention, or a copy that began later; others may have it
            elif found is not None:
                failure = found  # it lags, or does not answer; the next one, or the master, may have it
            if at >= wanted.end or at != before:
                break
        if gone and at == before and len(gone) == len(addresses):
            at = skip_gap(wanted, at, gone, options)
        if at != before:
            tries = 0
            continue
        tries += 1
        if tries > options.retries:
            raise NoBroker(
                f"{wanted.queue} can't be read at {at}:"
                f" {failure or next(iter(gone.values()), 'no broker of that name is known')}"
            )
        time.sleep(options.retry_s)
        addresses = current_addresses(wanted, options, addresses)


def next_frame(stream: Iterator[RecordFrame]) -> RecordFrame | WhimbrelError | None:
    """Return a member's next frame, its error, or None at its end."""
    try:
        return next(stream, None)
    except WhimbrelError as error:
        return error


def decoded(decoder: Decoder, records: bytes, wanted: OffsetRange) -> Iterator[pa.RecordBatch]:
    """Yield the batches of a frame.

    Raises:
        CorruptRecord: a body is damaged, and the options say that this fails. Another member has the same.
    """
    try:
        yield from decoder.batches(frame(records))
    except CorruptRecord as error:
        raise CorruptRecord(f"{wanted.queue}: {error}; {ON_CORRUPT_HINT}") from error


def frames(address: str, wanted: OffsetRange, at: int, options: SourceOptions) -> Iterator[RecordFrame]:
    """Yield the frames of a range from `at` on, as one broker sends them."""
    call = read_records(
        wanted.topic,
        wanted.queue_id,
        start=at,
        end=wanted.end,
        tags=options.tags,
        isolation=options.isolation,
    )
    with open_bulk_channel(address) as channel:
        yield from stream_blocking(channel, call, timeout_s=options.timeout_s)


def skip_gap(wanted: OffsetRange, at: int, gone: Mapping[str, RangeGone], options: SourceOptions) -> int:
    """Return the first offset that any member has, at `at` or behind it.

    Args:
        gone: what each member said, by address.

    Raises:
        DataLoss: messages are gone, and the options say that this fails.
    """
    if options.fail_on_data_loss:
        raise DataLoss(
            f"{wanted.queue}: {list(gone.values())[-1]}; failOnDataLoss=false goes on at the first"
            " message that is there"
        )
    brokers = Brokers(options)
    found = [
        queue.min_offset
        for address in gone
        for topic in brokers.describe_queues([address]).topics
        for queue in topic.queues
        if (topic.name, queue.queue_id) == (wanted.topic, wanted.queue_id)
    ]
    first = min(max(min(found, default=wanted.end), at), wanted.end)
    logger.warning("%s, queue %d: offsets %d to %d are gone", wanted.topic, wanted.queue_id, at, first)
    return first


def current_addresses(wanted: OffsetRange, options: SourceOptions, before: Sequence[str]) -> Sequence[str]:
    """Return where a range's broker is asked now; as before when no nameserver can tell."""
    try:
        return Brokers(options).addresses().get(wanted.broker, before)

    except WhimbrelError as error:
        logger.warning("looking for broker %s failed: %s", wanted.broker, error)
        return before
