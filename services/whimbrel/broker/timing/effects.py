"""Finds in the log what a message that waited has become, so that it does not become that twice.

`Doubt` knows for which messages of the timer the log has to be asked; for all others it is not.
"""

from typing import Protocol

from whimbrel.broker.timing import records
from whimbrel.errors import CorruptRecord, IllegalOffset
from whimbrel.model.names import TIMER_TOPIC
from whimbrel.model.properties import REAL_TOPIC, TIMER_OUT_MS, UNIQ_KEY
from whimbrel.store.codec import StoredMessage, decode_record
from whimbrel.store.store import MessageStore
from whimbrel.store.timer_layout import SECOND_MS, floor_second

__all__ = ["CLOCK_SLACK_MS", "COPIES_MAX", "Doubt", "EffectStore", "find_effect"]

COPIES_MAX = 64  # records of one id that are looked at
CLOCK_SLACK_MS = 10_000  # how far the clock may have been set back between a record and its effect


class EffectStore(Protocol):
    """What is read of the store."""

    def find_written(self, topic: str, key: str, *, limit: int, begin: int) -> list[int]:
        """Places of the records of a topic with a key, stored since a time, committed or not."""

    def read_log(self, physical_offset: int, size: int) -> bytes:
        """Bytes of the log."""

    def read(self, physical_offset: int, size: int) -> bytes:
        """A record's bytes."""


def find_effect(store: EffectStore, message: StoredMessage, topic: str, key: str) -> bool:
    """Return whether a topic holds the delivery, or the next rolling, of a message with this id."""
    if not key:
        return False  # by other programs than ours; then it may come twice
    begin = max(message.store_timestamp - CLOCK_SLACK_MS, 0)
    for place in store.find_written(topic, key, limit=COPIES_MAX, begin=begin):
        size = int.from_bytes(store.read_log(place, 4), "big")
        try:
            found = decode_record(store.read(place, size), check_crc=False)
        except (CorruptRecord, IllegalOffset):
            continue
        if records.is_effect(found, message):
            return True
    return False


class Doubt:
    """What of the timer may have had its effect already.

    Attributes:
        asked_below: the log is asked about records below this place,
        asked_until_ms: if they are due until then.
        rolled_below: records below may have been stored again, for retention.
    """

    def __init__(self, store: MessageStore) -> None:
        """Doubt nothing yet."""
        self.store = store
        self.asked_below = self.asked_until_ms = self.rolled_below = 0

    def everything(self, read_ms: int) -> None:
        """Ask from now on about all that may have had an effect when R was this."""
        self.asked_below = self.store.written
        newest = max(self.store.store_time_ms, self.store.last_store_time(self.store.written))
        self.asked_until_ms = max(self.asked_until_ms, floor_second(newest) + SECOND_MS, read_ms)
        if self.store.min_offset + self.store.file_size <= self.store.written:
            self.rolled_below = self.store.min_offset + self.store.file_size

    def until(self, time_ms: int) -> None:
        """Ask from now on about all that is in the log and due until then."""
        self.asked_below = self.store.written
        self.asked_until_ms = max(self.asked_until_ms, time_ms)

    def rolled(self, below: int) -> None:
        """Ask from now on whether what stands below a place was stored again."""
        self.rolled_below = max(self.rolled_below, below)

    def has_effect(self, message: StoredMessage, slot_ms: int, *, rolls: bool) -> bool:
        """Return whether the log holds the record that a message is to become; asked only where it may."""
        properties, place = message.properties, message.physical_offset
        topic, key = properties[REAL_TOPIC], properties.get(UNIQ_KEY, "")
        out_ms = min(slot_ms, records.number(properties.get(TIMER_OUT_MS)))
        if place < self.asked_below and (rolls or out_ms <= self.asked_until_ms):
            if find_effect(self.store, message, TIMER_TOPIC if rolls else topic, key):
                return True
        return place < self.rolled_below and not rolls and find_effect(self.store, message, TIMER_TOPIC, key)
