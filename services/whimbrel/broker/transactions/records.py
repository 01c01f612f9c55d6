"""The records of transactions, from and to values; RocketMQ's form in every byte.

    half        RMQ_SYS_TRANS_HALF_TOPIC, queue 0. The message with REAL_TOPIC, REAL_QID and __transactionId__
                (the message's id) added. No transaction bits, so that it has a queue entry
    committed   in the real topic and queue, transaction bits 8, prepared transaction offset = the half's
                place in the log. Body, born data, store host and text of the half
    discarded   TRANS_CHECK_MAX_TIME_TOPIC, queue 0. The half as it is, with the same prepared offset (which
                RocketMQ leaves 0): it shows which half it stands for
    op          RMQ_SYS_TRANS_OP_HALF_TOPIC, queue 0. Tag `d`, body: queue offsets of halves that are decided,
                each with a comma behind it: `8,9,`

RocketMQ: TransactionalMessageBridge, EndTransactionProcessor.
"""

import struct
from collections.abc import Iterable

from whimbrel.broker.produce.copied_text import check_waiting, copied_text
from whimbrel.broker.produce.replay import host_bytes
from whimbrel.broker.transactions.table import OpenTransaction
from whimbrel.errors import CorruptRecord
from whimbrel.model.names import HALF_OP_TOPIC, HALF_TOPIC, UNDECIDED_TOPIC
from whimbrel.model.properties import (
    CHECK_IMMUNITY_S,
    CHECK_TIMES,
    PREPARED_QUEUE_OFFSET,
    REAL_QUEUE_ID,
    REAL_TOPIC,
    TRANSACTION_ID,
)
from whimbrel.store.codec import (
    COMPRESSION_BITS,
    HEAD_SIZES,
    RAW_UNIQ_KEY,
    SYS_FLAG,
    TRANSACTION_COMMIT,
    TRANSACTION_MASK,
    V6_MASK,
    RecordDraft,
    StoredMessage,
    format_properties,
    property_of,
)

__all__ = [
    "HEAD_BYTES",
    "OP_QUEUE",
    "commits",
    "committed_draft",
    "discarded_draft",
    "halves_named",
    "make_half",
    "moved_draft",
    "op_draft",
    "open_transaction",
    "prepared_offset_of",
    "with_check_times",
]

OP_QUEUE = 0
OP_TAG = "d"
OP_TEXT = format_properties([("WAIT", "true"), ("TAGS", OP_TAG)])
OFFSET_DIGITS_MAX = 19  # of an int64
QUEUE_DIGITS_MAX = 9
SECONDS_DIGITS_MAX = 9

# The prepared offset stands before the body's length, the last field of a head; hosts make heads longer.
PREPARED = {bits: struct.Struct(f">{size - 12}xq") for bits, size in HEAD_SIZES.items()}
HEAD_BYTES = max(HEAD_SIZES.values())


def make_half(draft: RecordDraft) -> None:
    """Turn the draft of a transaction's message into its half.

    Raises:
        PropertiesTooLarge: it has too many properties to wait.
    """
    message_id = draft.keys[0]
    draft.properties += (
        f"{TRANSACTION_ID}\x01{message_id}\x02"
        f"{REAL_TOPIC}\x01{draft.topic}\x02{REAL_QUEUE_ID}\x01{draft.queue_id}\x02"
    ).encode()
    draft.topic, draft.queue_id = HALF_TOPIC, 0
    check_waiting(draft)


def open_transaction(half: StoredMessage) -> OpenTransaction:
    """Return what is kept of a half.

    Raises:
        CorruptRecord: it does not say where it goes to.
    """
    raw = half.properties_raw
    topic = text_of(raw, REAL_TOPIC)
    queue_id = text_of(raw, REAL_QUEUE_ID)
    message_id = property_of(raw, RAW_UNIQ_KEY).decode("utf-8", "replace") or text_of(raw, TRANSACTION_ID)
    if not (topic and message_id and queue_id.isdecimal()) or len(queue_id) > QUEUE_DIGITS_MAX:
        raise CorruptRecord(f"the half at {half.physical_offset} names no topic and queue, or has no id")
    seconds = text_of(raw, CHECK_IMMUNITY_S)
    return OpenTransaction(
        topic=topic,
        queue_id=int(queue_id),
        transaction_id=message_id,
        half_offset=half.queue_offset,
        physical_offset=half.physical_offset,
        size=half.size,
        stored_ms=half.store_timestamp,
        recovery_ms=(
            int(seconds) * 1000 if seconds.isdecimal() and len(seconds) <= SECONDS_DIGITS_MAX else None
        ),
        copied=any(property_of(raw, name.encode()) for name in (CHECK_TIMES, PREPARED_QUEUE_OFFSET)),
    )


def text_of(raw: bytes, name: str) -> str:
    return property_of(raw, name.encode()).decode("utf-8", "replace")


def committed_draft(half: StoredMessage, topic: str, queue_id: int) -> RecordDraft:
    """Return the record that consumers get."""
    return RecordDraft.from_properties(
        topic=topic,
        queue_id=queue_id,
        body=half.body,
        properties=half.properties_raw,
        born_timestamp=half.born_timestamp,
        born_host=host_bytes(half.born_host),
        store_host=half.store_host_raw,
        flag=half.flag,
        sys_flag=half.sys_flag & COMPRESSION_BITS | TRANSACTION_COMMIT,
        reconsume_times=half.reconsume_times,
        prepared_offset=half.physical_offset,
    )


def discarded_draft(half: StoredMessage) -> RecordDraft:
    """Return the copy of a half that nobody has decided."""
    draft = committed_draft(half, UNDECIDED_TOPIC, 0)
    draft.sys_flag &= COMPRESSION_BITS
    return draft


def moved_draft(half: StoredMessage) -> RecordDraft:
    """Return a half once more, as RocketMQ's check stores it."""
    times = text_of(half.properties_raw, CHECK_TIMES)
    count = int(times) + 1 if times.isdecimal() and len(times) <= QUEUE_DIGITS_MAX else 1
    draft = committed_draft(half, HALF_TOPIC, 0)
    draft.properties = with_check_times(half.properties_raw, count)
    draft.sys_flag &= COMPRESSION_BITS
    draft.prepared_offset = 0
    return draft


def with_check_times(raw: bytes, count: int) -> bytes:
    """Return a property text that says how often producers were asked."""
    return copied_text(raw, ((CHECK_TIMES, str(count)),))


def op_draft(half_offsets: Iterable[int], *, now_ms: int, host: bytes) -> RecordDraft:
    """Return the op that says that these halves are decided; `host` is this broker's address."""
    return RecordDraft.from_properties(
        topic=HALF_OP_TOPIC,
        queue_id=OP_QUEUE,
        body="".join(f"{offset}," for offset in half_offsets).encode(),
        properties=OP_TEXT,
        born_timestamp=now_ms,
        born_host=host,
        store_host=host,
    )


def commits(record: StoredMessage, transaction_id: str) -> bool:
    """Return whether a record is the message of a committed transaction."""
    committed = record.sys_flag & TRANSACTION_MASK == TRANSACTION_COMMIT
    own = property_of(record.properties_raw, RAW_UNIQ_KEY).decode("utf-8", "replace")
    return committed and own == transaction_id


def halves_named(body: bytes) -> list[int]:
    """Return the half offsets in the body of an op; RocketMQ 4.x writes one, without a comma."""
    return [
        int(part)
        for part in body.split(b",")
        if part.isdigit() and len(part) <= OFFSET_DIGITS_MAX  # else it is none of ours, nor RocketMQ's
    ]


def prepared_offset_of(head: bytes) -> int:
    """Return the place of the half that a record names, given its first `HEAD_BYTES`; -1 for none.

    A half may stand at 0; of a discarded one, which has no transaction bits, that can't be told from none.
    """
    try:
        (flags,) = SYS_FLAG.unpack_from(head)
        (offset,) = PREPARED[flags & V6_MASK].unpack_from(head)
    except struct.error:
        return -1
    return int(offset) if offset or flags & TRANSACTION_MASK == TRANSACTION_COMMIT else -1
