"""The property text of a record that the broker makes of another one: it always fits. Pure.

    text = what the record has, but for what is replaced or left out, and behind it what the broker adds

A record has room for PROPERTIES_BYTES_MAX bytes of that, and one that was sent may have used all of them.
Where the copy has no room,

1. what the broker adds for readers alone (FOR_READERS) is not added;
2. then the record's largest properties are left out, one after the other, and PROPERTIES_LEFT_OUT names them.

So a dead letter can be made of every message, and a queue in order is not blocked by one that can't go on.
The record itself stays as it was sent, while its topic keeps it. A delayed message, and one of a transaction,
has no record beside: its send is refused where what the broker adds until it is delivered has no room.
"""

from collections.abc import Collection

from whimbrel.errors import PropertiesTooLarge
from whimbrel.model.properties import (
    DLQ_ORIGIN_MESSAGE_ID,
    DLQ_ORIGIN_TOPIC,
    PROPERTIES_LEFT_OUT,
    TIMER_DEQUEUE_MS,
    TIMER_ENQUEUE_MS,
)
from whimbrel.store.codec import PROPERTIES_BYTES_MAX, SEAL_SIZE, RecordDraft

__all__ = ["LEFT_OUT_MARK", "SEALED_BYTES_MAX", "WAITING_BYTES_MAX", "check_waiting", "copied_text"]

SEALED_BYTES_MAX = PROPERTIES_BYTES_MAX - SEAL_SIZE - 1  # in a log that seals its records
# Of one that waits: TRANSACTION_CHECK_TIMES, TIMER_ROLL_TIMES, REAL_TOPIC and REAL_QID of a level may come.
WAITING_BYTES_MAX = SEALED_BYTES_MAX - 256
FOR_READERS = frozenset((DLQ_ORIGIN_MESSAGE_ID, DLQ_ORIGIN_TOPIC, TIMER_ENQUEUE_MS, TIMER_DEQUEUE_MS))
NAMES_BYTES_MAX = 255  # of those that are left out
LEFT_OUT_MARK = f"{PROPERTIES_LEFT_OUT}\x01".encode()


def copied_text(
    raw: bytes,
    added: Collection[tuple[str, str]] = (),
    removed: Collection[str] = (),
    room: int = PROPERTIES_BYTES_MAX,
) -> bytes:
    """Return the property text of a copy.

    Args:
        raw: the record's. added: take the place of its own of these names; at most some hundred bytes.
        removed: names that are left out. room: in bytes.
    """
    dropped = {name.encode() for name, _ in added}.union(name.encode() for name in removed)
    kept = [pair for pair in raw.split(b"\x02") if pair and pair.partition(b"\x01")[0] not in dropped]
    new = [f"{name}\x01{value}".encode() for name, value in added]
    text = joined(kept, new)
    if len(text) <= room:
        return text
    new = [f"{name}\x01{value}".encode() for name, value in added if name not in FOR_READERS]
    text = joined(kept, new)
    left_out: list[bytes] = []
    while len(text) > room:
        largest = max(kept, key=len)
        kept.remove(largest)
        left_out.append(largest.partition(b"\x01")[0])
        text = joined(kept, [*new, LEFT_OUT_MARK + b" ".join(left_out)[:NAMES_BYTES_MAX]])
    return text


def check_waiting(draft: RecordDraft) -> None:
    """Raise PropertiesTooLarge where a record that is to wait has no room for what it gets until then."""
    if len(draft.properties) > WAITING_BYTES_MAX:
        raise PropertiesTooLarge(
            f"the properties have {len(draft.properties)} bytes with the broker's own; at most"
            f" {WAITING_BYTES_MAX} are allowed for a message that is delayed, or of a transaction"
        )


def joined(*parts: list[bytes]) -> bytes:
    """Return pairs as a text, each with its separator behind it."""
    return b"".join(pair + b"\x02" for part in parts for pair in part)
