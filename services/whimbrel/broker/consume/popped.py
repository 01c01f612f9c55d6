"""What groups held when RocketMQ 5 used the store last: its checkpoints minus its acknowledgements.

RocketMQ advances a group's offset when it hands messages out ("pop"), so what was not acknowledged lies below
that offset. It is known from records that wait in the timer's topic until shortly before, and at, the end of
the invisible time, and then stand in `rmq_sys_REVIVE_LOG_<cluster>` (RocketMQ: PopCheckPoint, AckMsg,
BatchAckMsg); bodies are JSON:

    TAGS ck     c group, t topic, q queue, so first offset, d distances of all n offsets from it, pt time of
                the pop, it invisible time, both in ms; bm a bit for each offset that was acknowledged before
    TAGS ack    of one offset: c, t, q, so, pt as in the checkpoint; ao the offset
    TAGS bAck   of several: aol the offsets

What counts are those in the revive topic behind the offset of CID_RMQ_SYS_REVIVE_GROUP, which is that of the
last one dealt with, not of the next one (PopReviveService), and those that the timer has not moved there yet.
What a checkpoint has left without an acknowledgement is under a lease until pt + it; RocketMQ would append a
copy to the group's retry topic then.

Only checkpoints of the last `AGE_MAX_MS` count, and of the timer's entries the last `ENTRIES_MAX`: RocketMQ
lets nothing be invisible for longer than 12 hours. At most `NOTED_MAX` are looked at, the newest of each
queue. Damaged or foreign bodies are passed over.
"""

import json
import logging
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

from whimbrel.errors import CorruptRecord, IllegalOffset
from whimbrel.model.limits import INVISIBLE_MS_MAX
from whimbrel.model.names import POP_PREFIX, TIMER_TOPIC
from whimbrel.model.properties import REAL_TOPIC, TAGS, TIMER_OUT_MS
from whimbrel.store.codec import StoredMessage, decode_record, tags_code
from whimbrel.store.scan import RecordSource

__all__ = ["REVIVE_GROUP", "Held", "Queue", "popped"]

logger = logging.getLogger(__name__)

REVIVE_GROUP = "CID_RMQ_SYS_REVIVE_GROUP"
ENTRIES_MAX = 1_000_000  # of a queue, from its end
NOTED_MAX = 500_000  # checkpoints and acknowledgements of one queue: 100 to 300 MB
UNITS_AT_ONCE = 1024
OFFSETS_MAX = 64  # of a checkpoint: RocketMQ keeps their acknowledgements in the bits of a number
AGE_MAX_MS = INVISIBLE_MS_MAX + 3_600_000
CHECKPOINT, ACK, BATCH_ACK = "ck", "ack", "bAck"
CODES = frozenset(tags_code(tag) for tag in (CHECKPOINT, ACK, BATCH_ACK))

Queue = tuple[str, str, int]  # group, topic, queue id
Pop = tuple[Queue, int, int]  # with the first offset and the time


class Held(NamedTuple):
    """One message that a group holds: until when, in epoch milliseconds, and since when."""

    offset: int
    taken_at: int
    visible_at: int


def popped(
    store: RecordSource,
    revive_topics: Mapping[str, int],
    *,
    revived: Callable[[str, int], int],
    moved_ms: int,
    now_ms: int,
) -> dict[Queue, list[Held]]:
    """Return what groups hold, by queue, in the order of the offsets.

    Args:
        store: the store.
        revive_topics: names, with their numbers of queues.
        revived: returns where what has not been dealt with begins in a queue of a revive topic.
        moved_ms: the timer has moved what was due before this time (RocketMQ's `timercheck`).
        now_ms: the time.
    """
    oldest = now_ms - AGE_MAX_MS
    checkpoints: dict[Pop, tuple[set[int], int]] = {}
    acknowledged: dict[Pop, set[int]] = {}

    def take(message: StoredMessage) -> None:
        note(message, checkpoints, acknowledged)

    for topic, queues in revive_topics.items():
        for queue_id in range(queues):
            begin = revived(topic, queue_id)
            for message in newest(store, topic, queue_id, begin, oldest):
                take(message)
    for message in newest(store, TIMER_TOPIC, 0, 0, oldest):
        properties = message.properties
        due = properties.get(TIMER_OUT_MS, "")
        if properties.get(REAL_TOPIC, "").startswith(POP_PREFIX) and due.isdecimal() and int(due) >= moved_ms:
            take(message)
    held: dict[Queue, dict[int, Held]] = {}
    for pop, (offsets, visible_at) in checkpoints.items():
        queue, _, taken_at = pop
        for offset in offsets - acknowledged.get(pop, set()):
            last = held.setdefault(queue, {}).get(offset)
            if last is None or last.taken_at < taken_at:
                held[queue][offset] = Held(offset, taken_at, visible_at)
    return {queue: [found[offset] for offset in sorted(found)] for queue, found in held.items()}


def newest(
    store: RecordSource, topic: str, queue_id: int, begin: int, oldest_ms: int
) -> Iterator[StoredMessage]:
    """Yield checkpoints and acknowledgements of a queue, the last one first, as far back as they count."""
    low, high = store.queue_range(topic, queue_id)
    low = max(low, begin, high - ENTRIES_MAX)
    noted = 0
    while high > low:
        start = max(low, high - UNITS_AT_ONCE)
        units = store.queue_units(topic, queue_id, start, high - start)
        stored_ms = None
        for physical_offset, size, code in reversed(units):
            if code not in CODES:
                continue
            try:
                message = decode_record(store.read(physical_offset, size))
            except (CorruptRecord, IllegalOffset) as error:
                logger.warning("%s/%d: an entry before %d is passed over: %s", topic, queue_id, high, error)
                continue
            stored_ms, noted = message.store_timestamp, noted + 1
            yield message
        if noted >= NOTED_MAX:
            logger.warning(
                "%s/%d holds more pops than are looked at: those before %d are not", topic, queue_id, start
            )
            return
        if stored_ms is not None and stored_ms < oldest_ms:
            return
        high = start


def note(
    message: StoredMessage,
    checkpoints: dict[Pop, tuple[set[int], int]],
    acknowledged: dict[Pop, set[int]],
) -> None:
    """Take note of one checkpoint or acknowledgement."""
    try:
        body = json.loads(message.body)
        queue = str(body["c"]), str(body["t"]), int(body["q"])
        pop = queue, int(body["so"]), int(body["pt"])
        tag = message.properties.get(TAGS)
        if tag == CHECKPOINT:
            offsets = offsets_of(body)
            checkpoints[pop] = offsets, pop[2] + int(body["it"])
        elif tag == ACK:
            acknowledged.setdefault(pop, set()).add(int(body["ao"]))
        elif tag == BATCH_ACK:
            acknowledged.setdefault(pop, set()).update(map(int, body["aol"][:OFFSETS_MAX]))
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        logger.warning("a record of RocketMQ's pops at %d is passed over: %r", message.physical_offset, error)


def offsets_of(checkpoint: dict[str, Any]) -> set[int]:
    """Return the offsets of a checkpoint that had no acknowledgement when it was written."""
    first, bits = int(checkpoint["so"]), int(checkpoint.get("bm", 0))
    count = min(int(checkpoint["n"]), OFFSETS_MAX)
    distances = list(map(int, checkpoint.get("d") or range(count)))[:count]
    return {first + distance for index, distance in enumerate(distances) if not bits >> index & 1}
