"""The record of a message that waits in a delay level (RocketMQ 4: DELAY_TIME_LEVEL).

It stands in SCHEDULE_TOPIC_XXXX, queue `level - 1`, with the topic and queue that it goes to as REAL_TOPIC
and REAL_QID; `timing/levels.py` delivers it. Levels count from 1; a greater one than there are is the last.

RocketMQ: CommitLog.asyncPutMessage.
"""

from whimbrel.errors import IllegalDeliveryTime
from whimbrel.model.names import SCHEDULE_TOPIC
from whimbrel.model.properties import DELAY, REAL_QUEUE_ID, REAL_TOPIC
from whimbrel.store.codec import RecordDraft, property_of

__all__ = ["level_of", "levelled", "wanted_level"]

LEVEL_DIGITS_MAX = 9
RAW_DELAY = DELAY.encode()


def level_of(text: str) -> int:
    """Return the level that a stored property names; 0 for none, or for what is no number."""
    return int(text) if text.isascii() and text.isdigit() and len(text) <= LEVEL_DIGITS_MAX else 0


def wanted_level(text: str) -> int:
    """Return the level that a send asks for; 0 for none: a text that is negative, or 0.

    Raises:
        IllegalDeliveryTime: that is no number. (RocketMQ: an error without an answer's code of its own.)
    """
    digits = text.removeprefix("-")
    if not (digits.isascii() and digits.isdigit() and len(digits) <= LEVEL_DIGITS_MAX):
        raise IllegalDeliveryTime(f"{DELAY}={text[:32]!r} names no delay level: a number of up to 9 digits")
    return 0 if digits is not text else int(digits)


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
