"""The records of delayed messages: as they wait, as they are stored again, and as they are delivered.

Pure. A message that waits is a record of the topic `rmq_sys_wheel_timer` with all that it was sent with, and

    TIMER_OUT_MS    the time of its slot (`store/timer_layout.py`)
    REAL_TOPIC      where it goes
    REAL_QID

It keeps them when it is delivered, and gains TIMER_ENQUEUE_MS, when it got its unit, and TIMER_DEQUEUE_MS,
when it left. Rolled, it gains TIMER_ROLL_TIMES. A recall is a record of the same topic for the same slot,
which names the message by TIMER_DEL_UNIQKEY and is never delivered. RocketMQ writes all of these.

**A delivered or rolled record names its cause**: the physical offset of the record that waited stands in its
field for the prepared offset of a transaction, where RocketMQ leaves 0 and which nobody reads of a record
that is none. So the log itself says whether a message was delivered, on this broker or on the one that led
before, and a crash between the delivery and the note that it is done delivers nothing twice. The text stays
RocketMQ's.
"""

from typing import NamedTuple

from whimbrel.broker.produce.copied_text import check_waiting
from whimbrel.broker.produce.internal_append import onward_draft
from whimbrel.model.names import TIMER_TOPIC
from whimbrel.model.properties import (
    REAL_QUEUE_ID,
    REAL_TOPIC,
    TAGS,
    TIMER_DELETE_ID,
    TIMER_DELIVER_MS,
    TIMER_DEQUEUE_MS,
    TIMER_ENQUEUE_MS,
    TIMER_OUT_MS,
    TIMER_ROLL_TIMES,
    UNIQ_KEY,
)
from whimbrel.store.codec import RecordDraft, StoredMessage
from whimbrel.store.timer_layout import out_time

__all__ = [
    "RECALL_BODY",
    "RECALL_TAG",
    "Onward",
    "caused",
    "delivered",
    "is_effect",
    "number",
    "recall",
    "rolled",
    "waiting",
]

RECALL_TAG, RECALL_BODY = "_RECALL_TAG_", b"0"
TIMER_QUEUE = 0


class Onward(NamedTuple):
    """What changes of a record (see `internal_append.OnwardTarget`)."""

    topic: str
    added: tuple[tuple[str, str], ...]
    removed: tuple[str, ...] = ()
    reconsume_times: int | None = None


def number(text: str | None) -> int:
    """Return a property's number, 0 when it has none."""
    return int(text) if text is not None and text.isascii() and text.isdecimal() and len(text) < 19 else 0


def waiting(draft: RecordDraft, due_ms: int) -> RecordDraft:
    """Return the record to store instead of a message's own, until it is due.

    Raises:
        PropertiesTooLarge: it has too many properties to wait.
    """
    added = (
        f"{TIMER_OUT_MS}\x01{out_time(due_ms)}\x02{REAL_TOPIC}\x01{draft.topic}\x02"
        f"{REAL_QUEUE_ID}\x01{draft.queue_id}\x02"
    )
    draft.properties += added.encode()
    draft.topic, draft.queue_id = TIMER_TOPIC, TIMER_QUEUE
    check_waiting(draft)
    return draft


def delivered(message: StoredMessage, queue_id: int, *, seen_ms: int, now_ms: int) -> RecordDraft:
    """Return the record of a message whose time has come.

    Args:
        message: as it waited.
        queue_id: of its topic.
        seen_ms: when it got its unit.
        now_ms: now.
    """
    added = ((TIMER_ENQUEUE_MS, str(seen_ms)), (TIMER_DEQUEUE_MS, str(now_ms)))
    return caused(message, Onward(message.properties[REAL_TOPIC], added), queue_id)


def rolled(message: StoredMessage) -> RecordDraft:
    """Return the record with which a message goes on waiting."""
    times = number(message.properties.get(TIMER_ROLL_TIMES)) + 1
    return caused(message, Onward(TIMER_TOPIC, ((TIMER_ROLL_TIMES, str(times)),)), TIMER_QUEUE)


def caused(message: StoredMessage, target: Onward, queue_id: int) -> RecordDraft:
    """Return a record that names another one as its cause."""
    draft = onward_draft(message, target, queue_id, message.store_host_raw)
    draft.prepared_offset = message.physical_offset
    return draft


def is_effect(found: StoredMessage, cause: StoredMessage) -> bool:
    """Return whether a record is the delivery, or the next rolling, of another one.

    RocketMQ's do not name their cause, and count where id and time are the same.
    """
    if found.physical_offset <= cause.physical_offset:
        return False
    mine, its = cause.properties, found.properties
    # A recall has the id of its message, and is rolled like that.
    if any(its.get(name) != mine.get(name) for name in (UNIQ_KEY, TIMER_OUT_MS, TIMER_DELETE_ID)):
        return False
    if found.topic == TIMER_TOPIC:
        if number(its.get(TIMER_ROLL_TIMES)) != number(mine.get(TIMER_ROLL_TIMES)) + 1:
            return False
    elif found.topic != mine.get(REAL_TOPIC):
        return False
    return found.prepared_offset in (0, cause.physical_offset)


def recall(
    topic: str, message_id: str, time_ms: int, *, now_ms: int, born_host: bytes, store_host: bytes
) -> RecordDraft:
    """Return the record that keeps a message from being delivered.

    Args:
        topic, message_id: the message's.
        time_ms: as its handle says.
        now_ms, born_host, store_host: the record's own.
    """
    text = (
        f"{UNIQ_KEY}\x01{message_id}\x02{TAGS}\x01{RECALL_TAG}\x02{TIMER_DELIVER_MS}\x01{time_ms}\x02"
        f"{TIMER_DELETE_ID}\x01{topic}+{message_id}\x02"
    )
    draft = RecordDraft.from_properties(
        topic=topic,
        queue_id=0,
        body=RECALL_BODY,
        properties=text.encode(),
        born_timestamp=now_ms,
        born_host=born_host,
        store_host=store_host,
    )
    return waiting(draft, time_ms)
