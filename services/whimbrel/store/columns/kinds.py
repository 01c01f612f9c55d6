"""What kind of message each record is: the column `type`.

By the topic, where that is one of the system's, and else by the properties, the first of these that there is:

    HALF, OP, UNDECIDED    transactions: not decided yet; which are decided; given up
    TIMER, SCHEDULE        not due yet: by time, and by RocketMQ's levels
    POP                    what RocketMQ 5 notes of its consumers
    RETRY, DEAD_LETTER     of a group
    TRANSACTION            committed
    DELAY, FIFO, PRIORITY  with a delivery time or level; with a message group; with a priority
    NORMAL                 all others
"""

from collections.abc import Callable

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from whimbrel.model.names import (
    DEAD_LETTER_PREFIX,
    HALF_OP_TOPIC,
    HALF_TOPIC,
    POP_PREFIX,
    RETRY_PREFIX,
    SCHEDULE_TOPIC,
    TIMER_TOPIC,
    UNDECIDED_TOPIC,
)
from whimbrel.model.properties import (
    DELAY,
    PRIORITY,
    SHARDING_KEY,
    TIMER_DELAY_MS,
    TIMER_DELAY_SEC,
    TIMER_DELIVER_MS,
    TRAN_MSG,
)
from whimbrel.store.columns.records import Mask

__all__ = ["DEAD_LETTER", "kind_of_topic", "kinds"]

DEAD_LETTER = "DEAD_LETTER"

TOPICS = {
    HALF_TOPIC: "HALF",
    HALF_OP_TOPIC: "OP",
    UNDECIDED_TOPIC: "UNDECIDED",
    TIMER_TOPIC: "TIMER",
    SCHEDULE_TOPIC: "SCHEDULE",
}
PREFIXES = {POP_PREFIX: "POP", RETRY_PREFIX: "RETRY", DEAD_LETTER_PREFIX: DEAD_LETTER}
# A property that makes a message of a kind; the later ones win.
PROPERTIES = (
    (PRIORITY, "PRIORITY"),
    (SHARDING_KEY, "FIFO"),
    (DELAY, "DELAY"),
    (TIMER_DELAY_MS, "DELAY"),
    (TIMER_DELAY_SEC, "DELAY"),
    (TIMER_DELIVER_MS, "DELAY"),
    (TRAN_MSG, "TRANSACTION"),
)
NAMES = ("NORMAL", *dict.fromkeys(kind for _, kind in PROPERTIES), *TOPICS.values(), *PREFIXES.values())
NUMBERS = {name: number for number, name in enumerate(NAMES)}


def kinds(topics: pa.Array, has: Callable[[str], Mask]) -> pa.Array:
    """Return the column.

    Args:
        topics: of the records, as strings.
        has: returns for each record whether it has a property.
    """
    found = np.zeros(len(topics), np.int64)
    for name, kind in PROPERTIES:
        found[has(name)] = NUMBERS[kind]
    encoded = pc.dictionary_encode(topics)
    for number, topic in enumerate(encoded.dictionary.to_pylist()):
        kind = kind_of_topic(topic)
        if kind:
            found[np.asarray(encoded.indices) == number] = NUMBERS[kind]
    return pc.take(pa.array(NAMES, pa.string()), pa.array(found))


def kind_of_topic(topic: str) -> str:
    """Return what a topic's records are whatever their properties say; empty for a topic of users."""
    if topic in TOPICS:
        return TOPICS[topic]
    return next((kind for prefix, kind in PREFIXES.items() if topic.startswith(prefix)), "")
