"""Decides what becomes of records that were cut off a log and are to be put back. Pure but for the index.

No consumer has seen them, and nobody was told that they are stored: their senders may have sent them again,
to the leader that followed. So a message whose id its topic holds is not stored again.

    a message of a topic                      put back, into its queue if there is one
    a delayed message, not due yet            put back as one, due when it was
    a delayed message that is due             put back into its topic
    a committed transaction's, half cut, too  put back: its producer had decided
      whose half is in the log                refused: the leader asks the producer, and stores it itself
    a delayed message's delivery or rolling   refused: what waits in the log, or is put back, is delivered
    a recall                                  refused: recall the message again
    a half, a decision, an undecided one      refused: the producer was never told that it is stored
    a redelivery, a dead letter               refused: the group's messages are delivered anew
    other topics of the broker's own          refused

`begin` says where the cut does: what lies below is in the log that counts.

A message that is put back keeps what `produce/replay.py` says of replays, and names as its origin the broker,
the cut and its place in the queue as it was: REPLAYED_FROM = broker@cut:topic:queue:offset. No broker's name
has an @, so nobody takes it for a message of an archive.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from whimbrel.broker.produce.placement import queue_of_group
from whimbrel.broker.produce.replay import QueueLog, ReplayedMessage, Source, draft_of
from whimbrel.broker.tables.topics import TopicTable
from whimbrel.errors import CorruptRecord, IllegalOffset
from whimbrel.model.names import (
    DEAD_LETTER_PREFIX,
    HALF_OP_TOPIC,
    HALF_TOPIC,
    RETRY_PREFIX,
    TIMER_TOPIC,
    UNDECIDED_TOPIC,
    is_system_topic,
)
from whimbrel.model.properties import (
    REAL_QUEUE_ID,
    REAL_TOPIC,
    REPLAYED_FROM,
    SHARDING_KEY,
    TIMER_DELETE_ID,
    TIMER_OUT_MS,
)
from whimbrel.store.codec import (
    RAW_UNIQ_KEY,
    RECORD_BYTES_MAX,
    TRANSACTION_COMMIT,
    TRANSACTION_MASK,
    RecordDraft,
    StoredMessage,
    decode_record,
    property_of,
)

__all__ = ["Fate", "draft_back", "fate_of", "holds_id", "id_of"]

SAME_ID_MAX: Final = 64  # messages under one id that are looked at
WAITED = tuple(name.encode() for name in (TIMER_OUT_MS, REAL_TOPIC, REAL_QUEUE_ID, REPLAYED_FROM))
OWN_TOPICS = {
    HALF_TOPIC: "a half of a transaction: its producer was never told that it is stored, and begins anew",
    HALF_OP_TOPIC: "a decision about a transaction: the leader asks the producer about what is open",
    UNDECIDED_TOPIC: "a transaction that was given up without a decision",
}


@dataclass(frozen=True, slots=True)
class Fate:
    """What is to become of a record.

    Attributes:
        topic, queue_id: where it goes.
        due_ms: when it is due, 0: at once.
        why: it is not put back; "" where it is.
    """

    topic: str
    queue_id: int
    due_ms: int = 0
    why: str = ""


def fate_of(message: StoredMessage, begin: int, now_ms: int) -> Fate:
    """Return what is to become of a record of a cut that begins at `begin`."""
    topic, properties = message.topic, message.properties
    target = Fate(topic, message.queue_id)
    if topic == TIMER_TOPIC:
        target = Fate(properties.get(REAL_TOPIC, topic), number(properties.get(REAL_QUEUE_ID)))
        if TIMER_DELETE_ID in properties:
            return refused(target, "a recall: recall the message again")
        if message.prepared_offset:
            return refused(target, "a delayed message that waits on: what waited first is delivered anew")
        due_ms = number(properties.get(TIMER_OUT_MS)) + 1
        return Fate(target.topic, target.queue_id, due_ms if due_ms > now_ms else 0)
    if topic in OWN_TOPICS:
        return refused(target, OWN_TOPICS[topic])
    if topic.startswith(DEAD_LETTER_PREFIX):
        return refused(target, "a dead letter: its message is delivered anew, and given up anew")
    if topic.startswith(RETRY_PREFIX):
        return refused(target, "a redelivery: its message is delivered anew")
    if is_system_topic(topic):
        return refused(target, f"topic {topic} is the broker's own")
    bits = message.sys_flag & TRANSACTION_MASK
    if bits and bits != TRANSACTION_COMMIT:
        return refused(target, "a message of a transaction that is not committed")
    if bits and message.prepared_offset < begin:
        return refused(
            target, "its transaction's half is in the log: the leader asks the producer, and stores it itself"
        )
    if not bits and message.prepared_offset:
        return refused(
            target, "the delivery of a delayed message: what waits in the log, or is put back, is delivered"
        )
    return target


def refused(target: Fate, why: str) -> Fate:
    """Return a fate that is none."""
    return Fate(target.topic, target.queue_id, 0, why)


def number(text: str | None) -> int:
    """Return a property's number, 0 when it has none."""
    return int(text) if text is not None and text.isascii() and text.isdecimal() and len(text) < 19 else 0


def id_of(message: StoredMessage) -> str:
    """Return the id under which a message is stored."""
    found = property_of(message.properties_raw, RAW_UNIQ_KEY)
    return found.decode("utf-8", "replace") or message.offset_message_id


def why_not(topics: TopicTable, name: str) -> str:
    """Return why a topic takes no messages that are put back; "" where it does."""
    topic = topics.get(name)
    if topic is None:
        return f"there is no topic {name}: make it, then replay this cut with --again"
    if not topic.writable or topics.is_system(name):
        return f"topic {name} takes no messages: change that, then replay this cut with --again"
    return ""


def draft_back(
    message: StoredMessage,
    fate: Fate,
    *,
    topics: TopicTable,
    broker: str,
    cut: str,
    store_host: bytes,
    waiting: Callable[[RecordDraft, int], RecordDraft],
) -> tuple[RecordDraft | None, str]:
    """Return the record to append, or why there is none.

    Args:
        waiting: turns a record into one that waits until a time.

    Raises:
        RequestError: it can't be stored.
    """
    if why := why_not(topics, fate.topic):
        return None, why
    topic = topics.get(fate.topic)
    assert topic is not None
    queue_id, group = fate.queue_id, message.properties.get(SHARDING_KEY, "")
    queues = topic.onward_queues
    if not 0 <= queue_id < queues:
        queue_id = queue_of_group(group, queues) if group else queue_id % queues
    text = b"".join(
        pair + b"\x02"
        for pair in message.properties_raw.split(b"\x02")
        if pair and pair.partition(b"\x01")[0] not in WAITED
    )
    replayed = ReplayedMessage(
        source_offset=message.queue_offset,
        born_ms=message.born_timestamp,
        born_host=message.born_host,
        flag=message.flag,
        sys_flag=message.sys_flag,
        properties=text,
        body=message.body,
        message_id=message.offset_message_id,
    )
    source = Source(f"{broker}@{cut}", fate.topic, max(message.queue_id, 0))
    draft = draft_of(replayed, fate.topic, queue_id, source, store_host)
    return (waiting(draft, fate.due_ms) if fate.due_ms else draft), ""


def holds_id(log: QueueLog, topic: str, message_id: str) -> bool:
    """Return whether the log has a message of that id for a topic: there, or waiting for its time.

    The index counts, so what retention has removed is not there.
    """
    for name in (topic, TIMER_TOPIC):
        for place in log.find_written(name, message_id, limit=SAME_ID_MAX):
            try:
                size = int.from_bytes(log.read_log(place, 4), "big")
                if not 0 < size <= RECORD_BYTES_MAX:
                    continue
                found = decode_record(log.read(place, size), check_crc=False)
            except (CorruptRecord, IllegalOffset):
                continue
            if TIMER_DELETE_ID in found.properties:
                continue
            if name == TIMER_TOPIC and found.properties.get(REAL_TOPIC) != topic:
                continue
            if id_of(found) == message_id:
                return True
    return False
