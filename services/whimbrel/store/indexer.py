"""Feeds the index: from a queue in memory while it keeps up, else from the log.

Indexing a message costs as much as appending it. So an append only queues its keys, and the index is built at
the ends of ticks, by a bounded number of groups: hashes are cheap only for many keys at once. Fewer records
than a group wait for `step(..., rest=True)`. The queue is dropped and the log is read from `Index.position`
on when the queue is full, when the disk has no room for an index file, after a recovery, and always on a
slave.
"""

import logging
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from itertools import islice, takewhile
from typing import Any, NamedTuple

from whimbrel.errors import CorruptRecord, StoreFull
from whimbrel.machine import MACHINE
from whimbrel.store.codec import (
    RECORD_BYTES_MIN,
    STORE_TIMES,
    SYS_FLAG,
    TRANSACTION_MASK,
    TRANSACTION_ROLLBACK,
    V6_MASK,
    keys_of,
    topic_and_properties,
)
from whimbrel.store.index import Index, KeyedRecord
from whimbrel.store.lane_passes import FOREIGN_BYTES, LanePasses, Reach
from whimbrel.store.recovery import ReadAt
from whimbrel.store.walk import Chunk, Walk

__all__ = ["PENDING_MAX", "STEP_BYTES", "STEP_RECORDS", "Indexer"]

logger = logging.getLogger(__name__)

PENDING_MAX = 65536  # records whose keys wait in memory: some 20 MiB at worst, seconds of sending
STEP_RECORDS = 128  # indexed in one tick; more would delay the messages of the next
GROUP_RECORDS = 64  # mostly two keys each
STEP_BYTES = 128 * 1024  # of log walked in one tick
RETRY_S = 1.0  # on a full disk


class HashedKeys(NamedTuple):
    """Keys of records that follow each other, hashed by the lane (`whimbrel_lane.Keys`)."""

    keys: Any
    records: int


def leading(pending: Iterable[Any], kind: type) -> Iterator[Any]:
    """Return the entries of a kind before the first of another one, at most a group."""
    return takewhile(lambda each: type(each) is kind, islice(pending, GROUP_RECORDS))


def place_of(pending: KeyedRecord | HashedKeys) -> int:
    """Return the physical offset of the first record in an entry of the queue."""
    return int(pending.keys.first_offset) if isinstance(pending, HashedKeys) else pending[2]


class Indexer:
    """Builds an index step by step.

    Attributes:
        is_fed: `add` is called for what is appended; on a slave nothing is, and the log is always read.
        behind: whether it reads the log; `add` then does nothing, since the log has those records.
        pending: what was appended and is not indexed yet, in the log's order.
        waiting: the records of `pending`.
    """

    def __init__(
        self,
        index: Index,
        read: ReadAt,
        file_size: int,
        clock: Callable[[], float] = MACHINE.monotonic,
        passes: LanePasses | None = None,
    ) -> None:
        self.clock = clock
        self.passes = passes
        self.reach = Reach()
        self.index = index
        self.read = read
        self.file_size = file_size
        self.pending: deque[KeyedRecord | HashedKeys] = deque()
        self.waiting = 0
        self.is_fed = self.behind = True
        self.retry_at = 0.0

    def add(self, topic: str, keys: tuple[str, ...], physical_offset: int, store_time_ms: int) -> None:
        """Queue the keys of a record just appended."""
        if self.behind:
            return
        self.pending.append((topic, keys, physical_offset, store_time_ms))
        self.waiting += 1
        if self.waiting > PENDING_MAX:
            self.fall_behind()

    def add_hashed(self, keys: Any, records: int) -> None:
        """Queue the keys of so many records just appended, which the lane has hashed."""
        if self.behind or not len(keys):
            return
        self.pending.append(HashedKeys(keys, records))
        self.waiting += records
        if self.waiting > PENDING_MAX:
            self.fall_behind()

    def fall_behind(self) -> None:
        """Drop the queue and read the log from now on."""
        self.pending.clear()
        self.waiting = 0
        self.behind = True

    def step(
        self, end: int, *, records: int = STEP_RECORDS, step_bytes: int = STEP_BYTES, rest: bool = True
    ) -> bool:
        """Index a bounded part of what lies below `end`; return whether something is left to do now.

        Args:
            rest: also index what is queued in memory and makes no full group.
        """
        if self.index.position >= end and not self.pending:
            self.behind = not self.is_fed
            return False
        if self.retry_at and self.clock() < self.retry_at:
            return False
        try:
            if self.behind:
                self.walk_log(end, step_bytes)
            else:
                self.drain(end, records, 1 if rest else GROUP_RECORDS)
        except (StoreFull, OSError) as error:  # the log has what the disk does not take now
            self.fall_behind()
            if not self.retry_at:
                logger.warning("the index waits for the disk: %s", error)
            self.retry_at = self.clock() + RETRY_S
            return False
        self.retry_at = 0.0
        if self.behind:
            return self.index.position < end
        return self.waiting >= (1 if rest else GROUP_RECORDS)

    def drain(self, end: int, records: int, at_least: int) -> None:
        """Index from the queue in memory, while it holds at least `at_least` records."""
        pending, index = self.pending, self.index
        while self.waiting >= at_least and records > 0:
            index.position = place_of(pending[0])
            hashed = list(leading(pending, HashedKeys))
            if not hashed:
                some: list[KeyedRecord] = list(leading(pending, tuple))
                index.put(some)
                count = len(some)
            elif self.put_hashed(hashed):
                count = sum(each.records for each in hashed)
            else:
                index.truncate(index.position)
                self.fall_behind()
                return
            for _ in hashed or some:
                pending.popleft()
            self.waiting -= count
            records -= count
        index.position = place_of(pending[0]) if pending else end

    def put_hashed(self, some: list[HashedKeys]) -> bool:
        """Index keys that the lane has hashed; return whether it did."""
        assert self.passes is not None
        keys = self.passes.joined([each.keys for each in some])
        return keys is not None and self.index.put_keys(keys)

    def walk_log(self, end: int, step_bytes: int) -> None:
        """Index from the log."""
        index = self.index
        walk = Walk(self.read, index.position, end, self.file_size)
        goal = index.position + step_bytes
        passes = self.passes
        while walk.position < goal:
            if passes is not None and passes.lane.active:
                if self.pass_over(walk, passes, step_bytes):
                    index.position = walk.position
                    continue
                chunk = walk.next_chunk(min(step_bytes, FOREIGN_BYTES))
            else:
                chunk = walk.next_chunk(step_bytes)
            if chunk is None:
                if walk.fault and walk.skip_file():
                    index.position = walk.position
                    continue
                index.position = end if walk.fault else walk.position
                break
            self.index_chunk(chunk)
            index.position = walk.position
        if index.position >= end:
            self.behind = not self.is_fed

    def pass_over(self, walk: Walk, passes: LanePasses, step_bytes: int) -> bool:
        """Have the lane index plain records from the walk's position on; return whether there were any."""
        base, index = walk.position, self.index
        file_end = base - base % walk.file_size + walk.file_size
        available = min(walk.limit, file_end) - base
        if available < RECORD_BYTES_MIN:
            return False
        data = walk.read(base, min(self.reach.size, step_bytes, available))
        done = passes.keys(data, base, tags=index.options.index_tags)
        if done is None:
            return False
        size, foreign, keys = done
        self.reach.passed(foreign=foreign)
        if not size:
            return False
        if len(keys):
            index.position = keys.first_offset
            if index.end_offset >= index.position:
                index.truncate(index.position)
            if not index.put_keys(keys):
                index.truncate(index.position)
                return False
        walk.position = base + size
        return True

    def index_chunk(self, chunk: Chunk) -> None:
        """Index the records of a chunk; entries of its records that are in the index already are removed
        first."""
        base, data, positions = chunk
        index = self.index
        records: list[KeyedRecord] = []
        for at in positions:
            (sys_flag,) = SYS_FLAG.unpack_from(data, at)
            if sys_flag & TRANSACTION_MASK == TRANSACTION_ROLLBACK:
                continue
            try:
                topic, properties = topic_and_properties(data, at)
            except CorruptRecord:  # dispatch says so
                continue
            keys = keys_of(properties, tags=index.options.index_tags)
            if not keys:
                continue
            (store_time_ms,) = STORE_TIMES[sys_flag & V6_MASK].unpack_from(data, at)
            records.append((topic.decode("utf-8", "replace"), keys, base + at, store_time_ms))
        if records:
            index.position = records[0][2]
            if index.end_offset >= index.position:
                index.truncate(index.position)
            index.put(records)
