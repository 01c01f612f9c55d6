"""Which queue the messages of a group go to: RocketMQ's function, so that all brokers and versions agree.

    group --javaHash--> 32 bits --consistentHash--> index among the topic's writable queues

`java_hash` is Java's `String.hashCode`, over UTF-16 code units. `consistent_index` is Guava's
`Hashing.consistentHash` (a jump hash): with one queue more, a group keeps its queue or moves to the new one.
Guava's generator walks a linear congruential sequence of 64 bits and takes its upper 31 as a fraction:

    s = the hash; b = 0
    repeat    s = s * 2862933555777941757 + 1 mod 2^64;  d = ((s >>> 33) + 1) / 2^31;  x = int((b + 1) / d)
              x < count ? b = x : the index is b

The index counts the queues of all brokers of a topic, sorted by broker name and queue id
(RocketMQ: SendMessageQueueSelector); on a topic of one broker it is the queue's id.
"""

from collections.abc import Mapping

__all__ = ["consistent_index", "java_hash", "owner_of_group", "queue_of_group"]

MULTIPLIER = 2862933555777941757
MASK = (1 << 64) - 1
SCALE = float(1 << 31)


def java_hash(text: str) -> int:
    """Return Java's hash code of a text, a signed number of 32 bits."""
    units = text.encode("utf-16-le", "surrogatepass")
    found = 0
    for at in range(0, len(units), 2):
        found = (31 * found + (units[at] | units[at + 1] << 8)) & 0xFFFFFFFF
    return found - (1 << 32) if found >> 31 else found


def consistent_index(hashed: int, count: int) -> int:
    """Return the index below `count` (at least 1) of a signed hash, in about ln(count) + 1 steps."""
    state, index = hashed & MASK, 0
    while True:
        state = (state * MULTIPLIER + 1) & MASK
        following = int((index + 1) / (((state >> 33) + 1) / SCALE))
        if following >= count:
            return index
        index = following


def queue_of_group(group: str, count: int) -> int:
    """Return which of `count` queues (at least 1) the messages of a group go to."""
    return consistent_index(java_hash(group), count)


def owner_of_group(group: str, queues: Mapping[str, int]) -> tuple[str, int]:
    """Return the broker and the id of the queue that the messages of a group go to.

    Args:
        group: the message group.
        queues: how many queues each broker has, by its name; at least one queue in all.
    """
    index = queue_of_group(group, sum(queues.values()))
    for broker in sorted(queues):
        if index < queues[broker]:
            return broker, index
        index -= queues[broker]
    raise AssertionError("an index lies beyond all queues")
