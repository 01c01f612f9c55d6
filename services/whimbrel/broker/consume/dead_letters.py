"""What becomes of a message that its group has given up: a dead letter, a copy in the topic %DLQ%<group>.

The copy is the original with its id, body, tag, keys, properties, born time and type, and says where it comes
from (`model/dead_letter.py`).

The number of redeliveries is RocketMQ's: one more than the record would have had that was delivered next.
There each redelivery is another record, with one more. Groups in order are redelivered the original one.
"""

from whimbrel.broker.consume.plan import HandOn
from whimbrel.broker.consume.policy import HandOnRule
from whimbrel.model.dead_letter import LEFT_OUT, origin_properties
from whimbrel.model.limits import TOPIC_CHARS_MAX
from whimbrel.model.names import DEAD_LETTER_PREFIX, RETRY_PREFIX
from whimbrel.model.properties import DEAD_AFTER_ATTEMPTS
from whimbrel.model.topic import GroupConfig
from whimbrel.store.codec import StoredMessage

__all__ = ["attempts_max", "dead_letter", "dead_letter_rule"]


def attempts_max(group: GroupConfig) -> int:
    """Return how often a message is delivered to a group; a group's bean may say never, which is no use."""
    return max(group.max_attempts, 1)


def dead_letter_rule(group: GroupConfig) -> HandOnRule | None:
    """Return the rule that makes dead letters of what was delivered to a group often enough.

    None for a group whose dead-letter topic would have too long a name: its messages come again without end.
    """
    if len(DEAD_LETTER_PREFIX + group.name) > TOPIC_CHARS_MAX:
        return None
    most = attempts_max(group)

    def hand_on(message: StoredMessage, attempt: int) -> HandOn | None:
        return dead_letter(group, message, attempt, attempts=attempt - 1) if attempt > most else None

    return hand_on


def dead_letter(group: GroupConfig, message: StoredMessage, redeliveries: int, *, attempts: int) -> HandOn:
    """Return the dead letter that a group makes of a message.

    Args:
        group: the group.
        message: the original.
        redeliveries: that RocketMQ would have made records of, the next one included; of a group that is
            not in order.
        attempts: how often the record was delivered to the group; records of 4.x's redeliveries tell how
            often those before them were.
    """
    before = max(message.reconsume_times, 0) if message.topic.startswith(RETRY_PREFIX) else 0
    after = (DEAD_AFTER_ATTEMPTS, str(attempts + before))
    return HandOn(
        topic=DEAD_LETTER_PREFIX + group.name,
        added=(*origin_properties(message.properties, message.topic, message.offset_message_id), after),
        removed=LEFT_OUT,
        reconsume_times=message.reconsume_times + (1 if group.fifo else redeliveries),
    )
