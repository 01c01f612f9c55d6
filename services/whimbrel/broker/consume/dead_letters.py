"""What becomes of a message that its group has given up: a dead letter, a copy in the topic %DLQ%<group>.

The copy is the original with its id, body, tag, keys, properties, born time and type. It says where it comes
from, in properties that RocketMQ knows and in one of ours; those that the original has already stay:

    RETRY_TOPIC, DLQ_ORIGIN_TOPIC   the topic of the original
    DLQ_ORIGIN_MESSAGE_ID           its message id; SDKs show these two as the dead letter's origin
    ORIGIN_MESSAGE_ID               the offset message id of the original record: host and place in the log
    HANDED_ON_FROM                  the same, where ORIGIN_MESSAGE_ID is there already: a dead letter that was
                                    put back and failed again, or one of another group's dead letter
    UNIQ_KEY                        the offset message id where there is none: the copy stands elsewhere

So the log tells of each dead letter which record is its cause (`cause_of`), whatever else is lost. RocketMQ
adds DELAY=0, which makes all dead letters messages of type DELAY; here it is left out, and so is the
original's.

The number of redeliveries is RocketMQ's: one more than the record would have had that was delivered next.
There each redelivery is another record, with one more. Groups in order are redelivered the original one.
"""

from collections.abc import Mapping

from whimbrel.broker.consume.plan import HandOn
from whimbrel.broker.consume.policy import HandOnRule
from whimbrel.model.names import DEAD_LETTER_PREFIX
from whimbrel.model.properties import (
    DELAY,
    DLQ_ORIGIN_MESSAGE_ID,
    DLQ_ORIGIN_TOPIC,
    HANDED_ON_FROM,
    ORIGIN_MESSAGE_ID,
    RETRY_TOPIC,
    UNIQ_KEY,
)
from whimbrel.model.topic import GroupConfig
from whimbrel.store.codec import StoredMessage

__all__ = ["attempts_max", "cause_of", "dead_letter", "dead_letter_rule"]

LEFT_OUT = frozenset((DELAY,))


def attempts_max(group: GroupConfig) -> int:
    """Return how often a message is delivered to a group; a group's bean may say never, which is no use."""
    return max(group.max_attempts, 1)


def dead_letter_rule(group: GroupConfig) -> HandOnRule:
    """Return the rule that makes dead letters of what was delivered to a group often enough."""
    most = attempts_max(group)

    def hand_on(message: StoredMessage, attempt: int) -> HandOn | None:
        return dead_letter(group, message, attempt) if attempt > most else None

    return hand_on


def dead_letter(group: GroupConfig, message: StoredMessage, redeliveries: int) -> HandOn:
    """Return the dead letter that a group makes of a message.

    Args:
        group: the group.
        message: the original.
        redeliveries: that RocketMQ would have made records of, the next one included; of a group that is
            not in order.
    """
    properties = message.properties
    place = message.offset_message_id
    wanted = {
        RETRY_TOPIC: message.topic,
        DLQ_ORIGIN_TOPIC: message.topic,
        DLQ_ORIGIN_MESSAGE_ID: properties.get(UNIQ_KEY) or place,
        ORIGIN_MESSAGE_ID: place,
        UNIQ_KEY: place,
    }
    added = [(name, value) for name, value in wanted.items() if name not in properties]
    if ORIGIN_MESSAGE_ID in properties:
        added.append((HANDED_ON_FROM, place))
    return HandOn(
        topic=DEAD_LETTER_PREFIX + group.name,
        added=tuple(added),
        removed=LEFT_OUT,
        reconsume_times=message.reconsume_times + (1 if group.fifo else redeliveries),
    )


def cause_of(properties: Mapping[str, str]) -> str:
    """Return the offset message id of the record of which a dead letter is the copy; empty for none."""
    return properties.get(HANDED_ON_FROM) or properties.get(ORIGIN_MESSAGE_ID, "")
