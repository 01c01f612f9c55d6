"""What a dead letter says of itself: properties that RocketMQ knows, and two of ours.

    RETRY_TOPIC, DLQ_ORIGIN_TOPIC   the topic of the original
    DLQ_ORIGIN_MESSAGE_ID           its message id; SDKs show these two as the dead letter's origin
    ORIGIN_MESSAGE_ID               the offset message id of the original record: host and place in the log
    HANDED_ON_FROM                  the same, where ORIGIN_MESSAGE_ID is another one
    DEAD_AFTER_ATTEMPTS             how often the group had got the message; what RocketMQ counts in the
                                    record is one more after a timeout, and 1 in ordered groups
    UNIQ_KEY                        the offset message id where there is none: the copy stands elsewhere

**A redelivery or another group's dead letter** has the first four already, of the broker or of a 4.x client
that stored it again itself: they stay, and HANDED_ON_FROM tells the record. In any other topic these names
are the broker's alone: what a client has sent by them counts for nothing, and a dead letter has its own.
So the log tells of each dead letter which record is its cause, whatever else is lost. RocketMQ adds DELAY=0,
which makes all dead letters messages of type DELAY; here it is left out, and so is the original's.
"""

from collections.abc import Mapping

from whimbrel.model.names import GROUP_TOPIC_PREFIXES, RETRY_PREFIX
from whimbrel.model.properties import (
    DEAD_AFTER_ATTEMPTS,
    DELAY,
    DLQ_ORIGIN_MESSAGE_ID,
    DLQ_ORIGIN_TOPIC,
    HANDED_ON_FROM,
    ORIGIN_MESSAGE_ID,
    RETRY_TOPIC,
    UNIQ_KEY,
)

__all__ = [
    "LEFT_OUT",
    "LETTER_PROPERTIES",
    "attempts_of",
    "cause_of",
    "known_origin",
    "origin_of",
    "origin_properties",
]

LEFT_OUT = frozenset((DELAY, HANDED_ON_FROM, DEAD_AFTER_ATTEMPTS))
ATTEMPTS_DIGITS_MAX = 10  # of an int32
ID_CHARS_MAX = 255  # of a message id that is reported: those of clients have 32, and may have any number
# What only a dead letter has.
LETTER_PROPERTIES = frozenset(
    (
        RETRY_TOPIC,
        DLQ_ORIGIN_TOPIC,
        DLQ_ORIGIN_MESSAGE_ID,
        ORIGIN_MESSAGE_ID,
        HANDED_ON_FROM,
        DEAD_AFTER_ATTEMPTS,
    )
)


def known_origin(properties: Mapping[str, str], topic: str) -> dict[str, str]:
    """Return what a message says of its origin, by name; nothing where its topic is none for redeliveries."""
    if not topic.startswith(GROUP_TOPIC_PREFIXES):
        return {}
    found = {name: properties[name] for name in LETTER_PROPERTIES if name in properties}
    return {name: value for name, value in found.items() if len(value) <= ID_CHARS_MAX}


def origin_properties(properties: Mapping[str, str], topic: str, place: str) -> tuple[tuple[str, str], ...]:
    """Return what a dead letter adds to the properties of a message; `place` is its offset message id."""
    known = known_origin(properties, topic)
    message_id = properties.get(UNIQ_KEY) or place
    wanted = {
        RETRY_TOPIC: topic,
        DLQ_ORIGIN_TOPIC: topic,
        DLQ_ORIGIN_MESSAGE_ID: message_id if len(message_id) <= ID_CHARS_MAX else place,
        ORIGIN_MESSAGE_ID: place,
    }
    added = [(name, value) for name, value in wanted.items() if name not in known]
    if UNIQ_KEY not in properties:
        added.append((UNIQ_KEY, place))
    if ORIGIN_MESSAGE_ID in known:
        added.append((HANDED_ON_FROM, place))
    return tuple(added)


def attempts_of(properties: Mapping[str, str], reconsume_times: int, attempts_max: int | None) -> int:
    """Return how often a dead letter was delivered to its group before it was given up.

    Args:
        properties: of its record.
        reconsume_times: of its record. Where the properties do not tell it is the number of deliveries, or
            one more.
        attempts_max: of its group; None where that is not known.
    """
    text = properties.get(DEAD_AFTER_ATTEMPTS, "")
    if text.isascii() and text.isdecimal() and len(text) <= ATTEMPTS_DIGITS_MAX:
        return int(text)
    return max(reconsume_times if attempts_max is None else min(reconsume_times, attempts_max), 0)


def cause_of(properties: Mapping[str, str]) -> str:
    """Return the offset message id of the record of which a dead letter is the copy; empty for none."""
    return properties.get(HANDED_ON_FROM) or properties.get(ORIGIN_MESSAGE_ID, "")


def origin_of(properties: Mapping[str, str], group: str) -> str:
    """Return the topic that a dead letter of a group was sent to; empty where nobody wrote it down.

    RocketMQ 5 names the topic of the group's redeliveries instead, whose name ends with the topic's.
    """
    topic = properties.get(RETRY_TOPIC) or properties.get(DLQ_ORIGIN_TOPIC, "")
    for between in ("_", "+"):
        topic = topic.removeprefix(f"{RETRY_PREFIX}{group}{between}")
    return "" if topic.startswith(GROUP_TOPIC_PREFIXES) else topic
