"""Tells whether a recall takes a message from those that wait, so that their count falls with it.

RocketMQ counts each recall as one less, also a second one of the same message, and one of an id that nobody
has; here these change nothing. The log is asked, by the index of ids: for the message, and for an earlier
recall of it. It is asked about what stands before the recall alone, so that a slave comes to the same answer.
"""

from whimbrel.broker.timing import records
from whimbrel.broker.timing.effects import COPIES_MAX
from whimbrel.broker.timing.waiting import read_waiting
from whimbrel.model.names import TIMER_TOPIC
from whimbrel.model.properties import REAL_TOPIC, TIMER_DELETE_ID, TIMER_OUT_MS, UNIQ_KEY
from whimbrel.store.codec import StoredMessage
from whimbrel.store.store import MessageStore

__all__ = ["takes_one"]


def takes_one(store: MessageStore, recall: StoredMessage) -> bool:
    """Return whether a recall is the first one of a message that waits.

    Without an index of ids nobody knows; then each does, as RocketMQ has it.
    """
    if not store.options.index_enabled:
        return True
    key = recall.properties.get(UNIQ_KEY, "")
    if not key:
        return False
    found = False
    for place in store.find_by_key(TIMER_TOPIC, key, limit=COPIES_MAX, end=recall.store_timestamp):
        if place >= recall.physical_offset:
            continue
        size = int.from_bytes(store.read_log(place, 4), "big")
        other = read_waiting(store, TIMER_TOPIC, place, size)
        if other is None or not same(other, recall):
            continue
        if TIMER_DELETE_ID in other.properties:
            return False
        found = True
    return found


def same(one: StoredMessage, other: StoredMessage) -> bool:
    """Return whether two records are of the same topic and time."""
    mine, its = one.properties, other.properties
    return mine[REAL_TOPIC] == its[REAL_TOPIC] and records.number(mine.get(TIMER_OUT_MS)) == records.number(
        its.get(TIMER_OUT_MS)
    )
