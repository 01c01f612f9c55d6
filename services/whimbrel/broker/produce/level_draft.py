"""The record of a message that waits in a delay level (RocketMQ 4: DELAY_TIME_LEVEL).

It stands in SCHEDULE_TOPIC_XXXX, queue `level - 1`, with the topic and queue that it goes to as REAL_TOPIC
and REAL_QID; `timing/levels.py` delivers it. Levels count from 1; a greater one than there are is the last.

RocketMQ: CommitLog.asyncPutMessage.
"""

from whimbrel.model.names import SCHEDULE_TOPIC
from whimbrel.model.properties import DELAY, REAL_QUEUE_ID, REAL_TOPIC
from whimbrel.store.codec import RecordDraft, property_of

__all__ = ["level_of", "levelled"]

LEVEL_DIGITS_MAX = 9
RAW_DELAY = DELAY.encode()


def level_of(text: str) -> int:
    """Return the level that a property names; 0 for none, or for what is no number."""
    return int(text) if text.isascii() and text.isdigit() and len(text) <= LEVEL_DIGITS_MAX else 0


def levelled(draft: RecordDraft, levels: int, level: int | None = None) -> RecordDraft:
    """Return the record to store instead of a message's own; the same one for level 0.

    Args:
        draft: the message's.
        levels: how many there are.
        level: None: as the message's property DELAY says.
    """
    if level is None:
        level = level_of(property_of(draft.properties, RAW_DELAY).decode("utf-8", "replace"))
    if level > 0:
        added = f"{REAL_TOPIC}\x01{draft.topic}\x02{REAL_QUEUE_ID}\x01{draft.queue_id}\x02"
        end = b"" if draft.properties.endswith(b"\x02") else b"\x02"
        draft.properties += end + added.encode()
        draft.topic, draft.queue_id = SCHEDULE_TOPIC, min(level, levels) - 1
    return draft
