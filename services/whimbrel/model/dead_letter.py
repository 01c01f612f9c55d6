"""What a dead letter says of itself: properties that RocketMQ knows, and one of ours.

    RETRY_TOPIC, DLQ_ORIGIN_TOPIC   the topic of the original
    DLQ_ORIGIN_MESSAGE_ID           its message id; SDKs show these two as the dead letter's origin
    ORIGIN_MESSAGE_ID               the offset message id of the original record: host and place in the log
    HANDED_ON_FROM                  the same, where ORIGIN_MESSAGE_ID is there already: a dead letter that was
                                    put back and failed again, or one of another group's dead letter
    UNIQ_KEY                        the offset message id where there is none: the copy stands elsewhere

Those that the original has already stay, but for HANDED_ON_FROM. So the log tells of each dead letter which
record is its cause, whatever else is lost. RocketMQ adds DELAY=0, which makes all dead letters messages of
type DELAY; here it is left out, and so is the original's.
"""

from collections.abc import Mapping

from whimbrel.model.names import GROUP_TOPIC_PREFIXES, RETRY_PREFIX
from whimbrel.model.properties import (
    DELAY,
    DLQ_ORIGIN_MESSAGE_ID,
    DLQ_ORIGIN_TOPIC,
    HANDED_ON_FROM,
    ORIGIN_MESSAGE_ID,
    RETRY_TOPIC,
    UNIQ_KEY,
)

__all__ = ["LEFT_OUT", "LETTER_PROPERTIES", "cause_of", "origin_of", "origin_properties"]

LEFT_OUT = frozenset((DELAY,))
# What only a dead letter has.
LETTER_PROPERTIES = frozenset(
    (RETRY_TOPIC, DLQ_ORIGIN_TOPIC, DLQ_ORIGIN_MESSAGE_ID, ORIGIN_MESSAGE_ID, HANDED_ON_FROM)
)


def origin_properties(properties: Mapping[str, str], topic: str, place: str) -> tuple[tuple[str, str], ...]:
    """Return what a dead letter adds to the properties of a message; `place` is its offset message id."""
    wanted = {
        RETRY_TOPIC: topic,
        DLQ_ORIGIN_TOPIC: topic,
        DLQ_ORIGIN_MESSAGE_ID: properties.get(UNIQ_KEY) or place,
        ORIGIN_MESSAGE_ID: place,
        UNIQ_KEY: place,
    }
    added = [(name, value) for name, value in wanted.items() if name not in properties]
    if ORIGIN_MESSAGE_ID in properties:
        added.append((HANDED_ON_FROM, place))
    return tuple(added)


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
