"""BulkService: records, offsets and checksums in bulk, for data pipelines and audits. On masters and slaves.

Frames are made on the loop (`engine/frames.py`), one in several iterations of the loop however many readers
there are, so that the loop serves all other calls between two frames. Checksums are computed in threads,
which open the log's files themselves.
"""

import asyncio
import os
import zlib
from collections.abc import AsyncGenerator, Callable, Iterator
from contextlib import contextmanager
from itertools import chain, islice
from pathlib import Path
from typing import Any

from whimbrel.broker.api.admin import TYPE_NUMBERS
from whimbrel.broker.consume.filters import compile_filter
from whimbrel.broker.engine.frames import BulkReader, ReadRange
from whimbrel.broker.tables.topics import TopicTable
from whimbrel.deferred import Deferred
from whimbrel.errors import (
    BadRequest,
    BeyondConfirmed,
    CorruptRecord,
    Forbidden,
    IllegalOffset,
    NotReady,
    QueueNotFound,
    RangeGone,
    Throttled,
    TopicNotFound,
)
from whimbrel.model.names import GROUP_TOPIC_PREFIXES, check_topic
from whimbrel.model.topic import TopicConfig
from whimbrel.model.wire import BULK_SERVICE
from whimbrel.pb.whimbrel.admin.v1 import admin_service_pb2 as admin
from whimbrel.pb.whimbrel.bulk.v1 import bulk_service_pb2 as bulk
from whimbrel.rpc.server.handlers import Call, PulledStreamMethod, Service, UnaryMethod
from whimbrel.store.bulk_source import BulkSource
from whimbrel.store.segment import segment_name
from whimbrel.store.store import MessageStore

__all__ = ["READERS_MAX", "BulkService", "checksum_chunks"]

READERS_MAX = 128  # streams at a time; one whose reader has stopped reading keeps some MiB in buffers
# Iterations of the loop between two frames, of whichever readers. A send takes several iterations; with a
# frame in each of them it would wait for as many frames.
TICKS_PER_FRAME = 8
QUEUES_AT_ONCE = 512  # described in one iteration of the loop
CHUNK_BYTES, CHUNK_BYTES_MIN, CHUNK_BYTES_MAX = 16 << 20, 4 << 10, 256 << 20
READ_BYTES = 1 << 20  # of the log at a time, by a thread that computes checksums or reads
THREADS_MAX = 2  # that compute checksums; more would take the processor from sends and receives


class BulkService:
    """Handles the bulk calls on the loop's thread."""

    def __init__(
        self,
        topics: TopicTable,
        store: MessageStore,
        *,
        confirmed: Callable[[], int],
        name: str,
        broker_id: int,
        master: bool,
    ) -> None:
        """Take the topics and the store; `confirmed` returns the confirmed offset of the log, as of now."""
        self.topics, self.store = topics, store
        self.records = BulkSource(store)
        self.confirmed = confirmed
        self.name, self.id = name, broker_id
        self.role = bulk.ROLE_MASTER if master else bulk.ROLE_SLAVE
        self.readers = 0
        self.frame_lock = asyncio.Lock()
        self.threads = asyncio.Semaphore(THREADS_MAX)
        self.closed = ""  # why the store may not be touched any more

    def service(self) -> Service:
        """Return the service for the transport."""
        return Service(
            BULK_SERVICE,
            (
                PulledStreamMethod("ReadRecords", bulk.ReadRecordsRequest, self.read_records),
                UnaryMethod("DescribeQueues", bulk.DescribeQueuesRequest, self.describe_queues),
                PulledStreamMethod("ChecksumLog", bulk.ChecksumLogRequest, self.checksum_log),
                PulledStreamMethod("ReadLog", bulk.ReadLogRequest, self.read_log),
            ),
        )

    def close(self, reason: str) -> None:
        """End open streams and pending answers with NotReady at their next step, and refuse new calls.

        The store is not touched any more after this.
        """
        self.closed = reason

    def check_open(self) -> None:
        if self.closed:
            raise NotReady(self.closed)

    @contextmanager
    def counted(self) -> Iterator[None]:
        """Count a stream while it lasts."""
        if self.readers >= READERS_MAX:
            raise Throttled(f"{READERS_MAX} bulk readers are served already")
        self.readers += 1
        try:
            yield
        finally:
            self.readers -= 1

    # Records

    async def read_records(
        self, call: Call, request: bulk.ReadRecordsRequest
    ) -> AsyncGenerator[bulk.ReadRecordsResponse, None]:
        """Yield the frames of a range of a queue."""
        self.check_open()
        with self.counted():
            reader = BulkReader(self.records, self.range_of(request), self.confirmed(), self.store.passes)
            first = True
            while first or not reader.done:
                first = False
                async with self.frame_lock:
                    self.check_open()
                    self.check_queue(request.topic, request.queue_id)  # it may have been deleted meanwhile
                    frame = reader.next(self.confirmed())
                    for _ in range(TICKS_PER_FRAME):
                        await asyncio.sleep(0)
                response = bulk.ReadRecordsResponse(
                    records=frame.records,
                    next_offset=frame.next_offset,
                    confirmed_offset=frame.confirmed,
                    min_offset=frame.min_offset,
                    max_offset=frame.max_offset,
                )
                del frame  # so that one copy is kept for a slow reader, not two
                yield response
                del response

    def range_of(self, request: bulk.ReadRecordsRequest) -> ReadRange:
        self.check_queue(request.topic, request.queue_id)
        wanted = compile_filter("tag", request.tags)
        return ReadRange(
            topic=request.topic,
            queue_id=request.queue_id,
            start=request.start_offset,
            end=request.end_offset,
            budget=request.byte_budget,
            codes=wanted.codes,
            latest=request.isolation == bulk.ISOLATION_LATEST,
        )

    def check_queue(self, name: str, queue_id: int) -> None:
        """Raise unless there is such a queue, and it may be read.

        A queue that holds messages exists, whatever the topic's configuration says by now.
        """
        check_topic(name, system_allowed=True)
        topic = self.topics.get(name)
        if topic is not None and not topic.readable:
            raise Forbidden(f"topic {name} has no readable queue here")
        if self.records.queue(name, queue_id) is not None:
            return
        if topic is None:
            raise TopicNotFound(f"no topic {name}")
        count = max(topic.read_queues, topic.write_queues)
        if not 0 <= queue_id < count:
            raise QueueNotFound(f"topic {name} has no queue {queue_id} here, only 0 to {count - 1}")

    # Offsets

    def describe_queues(self, call: Call, request: bulk.DescribeQueuesRequest) -> Any:
        """Return the offsets of queues; with very many, a part of them in each iteration of the loop."""
        self.check_open()
        store, log_confirmed = self.store, self.confirmed()
        response = bulk.DescribeQueuesResponse(
            broker_name=self.name,
            broker_id=self.id,
            role=self.role,
            log_begin=store.min_offset,
            log_confirmed=log_confirmed,
            log_written=store.written,
            log_file_size=store.file_size,
        )
        left = self.described(request, response, log_confirmed)
        if exhaust(left):
            return response
        deferred: Deferred[Any] = Deferred()
        loop = asyncio.get_running_loop()

        def go_on() -> None:
            if deferred.cancelled:
                return
            if self.closed:
                deferred.fail(NotReady(self.closed))
            elif exhaust(left):
                deferred.complete(response)
            else:
                loop.call_soon(go_on)

        loop.call_soon(go_on)
        return deferred

    def described(
        self,
        request: bulk.DescribeQueuesRequest,
        response: bulk.DescribeQueuesResponse,
        log_confirmed: int,
    ) -> Iterator[None]:
        """Add the topics and their queues to the response, one queue at each step."""
        stored: dict[str, set[int]] = {}
        for name, queue_id in self.store.queues.by_key:
            stored.setdefault(name, set()).add(queue_id)
        named = set(request.topics)
        for name in sorted(named or {*self.topics.rows, *stored}):
            topic = self.topics.get(name)
            system = self.topics.is_system(name) or name.startswith(GROUP_TOPIC_PREFIXES)
            if (topic is None and name not in stored) or (system and not (named or request.include_system)):
                continue
            # Queues without a topic's configuration: of a topic that brokers keep without registering it.
            config = topic or TopicConfig(name=name, read_queues=0, write_queues=0, permission=0)
            described = response.topics.add(
                name=name,
                message_type=TYPE_NUMBERS.get(config.message_type, admin.MESSAGE_TYPE_UNSPECIFIED),
                permission=config.permission,
                system=system,
            )
            for queue_id in sorted(
                {*range(max(config.read_queues, config.write_queues)), *stored.get(name, ())}
            ):
                low, confirmed, high = self.records.queue_range(name, queue_id, log_confirmed)
                described.queues.add(
                    queue_id=queue_id, min_offset=low, max_offset=high, confirmed_offset=confirmed
                )
                yield

    # Checksums

    async def checksum_log(
        self, call: Call, request: bulk.ChecksumLogRequest
    ) -> AsyncGenerator[bulk.ChecksumLogResponse, None]:
        """Yield the checksums of a range of the log, chunk by chunk."""
        self.check_open()
        store, confirmed = self.store, self.confirmed()
        begin = request.begin_offset if request.HasField("begin_offset") else store.min_offset
        end = request.end_offset if request.HasField("end_offset") else max(begin, confirmed)
        chunk_bytes = request.chunk_bytes or CHUNK_BYTES
        self.check_log_range(begin, end, confirmed)
        if not CHUNK_BYTES_MIN <= chunk_bytes <= CHUNK_BYTES_MAX:
            raise BadRequest(f"a chunk has {CHUNK_BYTES_MIN} to {CHUNK_BYTES_MAX} bytes, not {chunk_bytes}")
        directory, file_size = self.store.root / "commitlog", store.file_size
        with self.counted():
            nothing = ((begin, 0),) if begin == end else ()
            for offset, size in chain(nothing, checksum_chunks(begin, end, chunk_bytes, file_size)):
                async with self.threads:
                    self.check_open()
                    crc = await asyncio.to_thread(checksum, directory, file_size, offset, size)
                self.check_open()
                yield bulk.ChecksumLogResponse(
                    offset=offset,
                    size=size,
                    crc32=crc,
                    log_begin=store.min_offset,
                    log_confirmed=self.confirmed(),
                    log_written=store.written,
                )

    async def read_log(
        self, call: Call, request: bulk.ReadLogRequest
    ) -> AsyncGenerator[bulk.ReadLogResponse, None]:
        """Yield the bytes of a range of the log, piece by piece."""
        self.check_open()
        begin, end = request.begin_offset, request.end_offset
        self.check_log_range(begin, end, self.confirmed())
        directory, file_size = self.store.root / "commitlog", self.store.file_size
        with self.counted():
            for offset, size in checksum_chunks(begin, end, READ_BYTES, file_size):
                async with self.threads:
                    self.check_open()
                    data = await asyncio.to_thread(bytes_of, directory, file_size, offset, size)
                yield bulk.ReadLogResponse(offset=offset, data=data)

    def check_log_range(self, begin: int, end: int, confirmed: int) -> None:
        """Raise unless all of a range of the log is present and confirmed."""
        store = self.store
        if end < begin:
            raise BadRequest(f"the range {begin} to {end} ends before it begins")
        if begin < store.min_offset:
            raise RangeGone(f"byte {begin} of the log is gone: it begins at {store.min_offset}")
        if end > store.written:
            raise IllegalOffset(
                f"the log ends at {store.written} here, so byte {end} can't be read: it was cut, or this is a"
                " slave that lags"
            )
        if end > confirmed:
            raise BeyondConfirmed(
                f"the log is confirmed up to {confirmed} of {store.written}, and not up to {end} yet"
            )


def exhaust(left: Iterator[None]) -> bool:
    """Take as many steps as fit into an iteration of the loop; return whether none is left."""
    return sum(1 for _ in islice(left, QUEUES_AT_ONCE)) < QUEUES_AT_ONCE


def checksum_chunks(begin: int, end: int, chunk_bytes: int, file_size: int) -> Iterator[tuple[int, int]]:
    """Split [begin, end) into chunks, each an offset and a size.

    Borders lie at multiples of `chunk_bytes` from the begin of each log file, and at its end.
    """
    while begin < end:
        position = begin % file_size
        border = min(position - position % chunk_bytes + chunk_bytes, file_size)
        size = min(border - position, end - begin)
        yield begin, size
        begin += size


def checksum(directory: Path, file_size: int, offset: int, size: int) -> int:
    """Return the CRC32 of a piece of one log file; for a thread."""
    crc = 0
    for piece in pieces(directory, file_size, offset, size):
        crc = zlib.crc32(piece, crc)
    return crc


def bytes_of(directory: Path, file_size: int, offset: int, size: int) -> bytes:
    """Return a piece of one log file; for a thread."""
    return b"".join(pieces(directory, file_size, offset, size))


def pieces(directory: Path, file_size: int, offset: int, size: int) -> Iterator[bytes]:
    """Yield the bytes of a piece of one log file, a little at a time; for a thread."""
    if not size:
        return
    position = offset % file_size
    try:
        fd = os.open(directory / segment_name(offset - position), os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError as error:
        raise RangeGone(f"byte {offset} of the log is gone: its file was removed") from error
    try:
        end = position + size
        while position < end:
            data = os.pread(fd, min(READ_BYTES, end - position), position)
            if not data:
                raise CorruptRecord(f"the log file {segment_name(offset - offset % file_size)} is cut off")
            yield data
            position += len(data)
    finally:
        os.close(fd)
