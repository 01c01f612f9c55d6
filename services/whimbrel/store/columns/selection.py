"""Which records become rows, by their fixed fields and topics, before anything else of them is read.

Records without a queue entry: prepared and rolled-back transactions of RocketMQ before 4.3, whose state is in
the system flag. Half messages of later versions are plain records of a system topic, as are delayed messages
(SCHEDULE_TOPIC_XXXX), retries and dead letters; a committed or delivered message is a second record, of its
own topic. An inner batch (RocketMQ 5, sysFlag 0x80) is one record, and one row.
"""

from collections.abc import Mapping, Set
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from whimbrel.store.codec import RAW_TAGS, TRANSACTION_MASK, TRANSACTION_PREPARED, TRANSACTION_ROLLBACK
from whimbrel.store.columns.records import Ints, Mask, Records
from whimbrel.store.columns.texts import Pairs, slices, texts

__all__ = ["EVERYTHING", "Selection", "Topics"]

I64_MIN, I64_MAX = -(2**63), 2**63 - 1
Range = tuple[int, int]


@dataclass(frozen=True, slots=True, eq=False)
class Topics:
    """The topics of records: each name once, and the number of its name for each record."""

    names: list[str]
    ids: Ints

    @classmethod
    def of(cls, records: Records) -> "Topics":
        """Find the topics of records."""
        found = slices(
            records.buffer, records.topic_start, records.topic_end, pa.binary()
        ).dictionary_encode()
        names: list[str] = texts(found.dictionary).to_pylist()
        return cls(names, np.asarray(found.indices).astype(np.int64))


@dataclass(frozen=True, slots=True, kw_only=True)
class Selection:
    """Which records are selected: those that match all fields that are given. Ranges are half open.

    Attributes:
        topics: only these topics.
        queues: only these queues, by topic and id, each in a range of queue offsets.
        queue_ids: only queues of these numbers, whatever the topic.
        queue_offsets, physical_offsets, stored_ms: only records within.
        tags: only records with one of these tags, compared as text.
        queued_only: without prepared and rolled-back transactions.
    """

    topics: Set[str] | None = None
    queues: Mapping[tuple[str, int], Range] | None = None
    queue_ids: Set[int] | None = None
    queue_offsets: Range | None = None
    physical_offsets: Range | None = None
    stored_ms: Range | None = None
    tags: Set[str] | None = None
    queued_only: bool = False

    def mask(self, records: Records) -> Mask:
        """Return for each record whether it is selected, tags aside."""
        wanted = np.ones(len(records), np.bool_)
        for name, limits in (
            ("queue_offset", self.queue_offsets),
            ("physical_offset", self.physical_offsets),
            ("stored_ms", self.stored_ms),
        ):
            if limits is not None:
                values = records.ints(name)
                wanted &= (values >= limits[0]) & (values < limits[1])
        if self.queued_only:
            state = records.head["sys_flag"] & TRANSACTION_MASK
            wanted &= (state != TRANSACTION_PREPARED) & (state != TRANSACTION_ROLLBACK)
        if self.queue_ids is not None:
            wanted &= np.isin(records.ints("queue_id"), list(self.queue_ids))
        if self.topics is not None or self.queues is not None:
            topics = Topics.of(records)
            if self.topics is not None:
                wanted &= np.array([name in self.topics for name in topics.names], np.bool_)[topics.ids]
            if self.queues is not None:
                wanted &= within(self.queues, topics, records)
        return wanted

    def pick(self, records: Records) -> Records:
        """Return the selected records."""
        wanted = self.mask(records)
        if not wanted.all():
            records = records.pick(wanted)
        if self.tags is not None and len(records):
            pairs = Pairs(records)
            rows, found = pairs.find(RAW_TAGS)
            tags = slices(
                pairs.buffer, pairs.middle[found] + 1, pairs.end[found], pa.string()
            ).dictionary_encode()
            good = np.array([tag in self.tags for tag in tags.dictionary.to_pylist()], np.bool_)
            tagged = np.zeros(len(records), np.bool_)
            tagged[rows] = good[np.asarray(tags.indices)]
            records = records.pick(tagged)
        return records


EVERYTHING = Selection()


def within(queues: Mapping[tuple[str, int], Range], topics: Topics, records: Records) -> Mask:
    """Return for each record whether its queue is among some, and its queue offset in that queue's range."""
    queue_ids, offsets = records.ints("queue_id"), records.ints("queue_offset")
    kinds, which = np.unique(topics.ids << 32 | queue_ids & 0xFFFFFFFF, return_inverse=True)
    limits = np.zeros((len(kinds), 2), np.int64)
    for number, kind in enumerate(kinds.tolist()):
        queue_id = (kind & 0xFFFFFFFF ^ 0x80000000) - 0x80000000
        first, last = queues.get((topics.names[kind >> 32], queue_id), (0, 0))
        limits[number] = max(first, I64_MIN), min(last, I64_MAX)
    wanted: Mask = (offsets >= limits[which, 0]) & (offsets < limits[which, 1])
    return wanted
