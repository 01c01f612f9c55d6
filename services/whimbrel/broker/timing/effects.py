"""Finds in the log what a message that waited has become, so that it does not become that twice."""

from typing import Protocol

from whimbrel.broker.timing import records
from whimbrel.errors import CorruptRecord, IllegalOffset
from whimbrel.store.codec import StoredMessage, decode_record

__all__ = ["CLOCK_SLACK_MS", "COPIES_MAX", "EffectStore", "find_effect"]

COPIES_MAX = 64  # records of one id that are looked at
CLOCK_SLACK_MS = 10_000  # how far the clock may have been set back between a record and its effect


class EffectStore(Protocol):
    """What is read of the store."""

    def find_by_key(self, topic: str, key: str, *, limit: int, begin: int) -> list[int]:
        """Places of the records of a topic with a key, stored since a time."""

    def read_log(self, physical_offset: int, size: int) -> bytes:
        """Bytes of the log."""

    def read(self, physical_offset: int, size: int) -> bytes:
        """A record's bytes."""


def find_effect(store: EffectStore, message: StoredMessage, topic: str, key: str) -> bool:
    """Return whether a topic holds the delivery, or the next rolling, of a message with this id."""
    if not key:
        return False  # by other programs than ours; then it may come twice
    begin = max(message.store_timestamp - CLOCK_SLACK_MS, 0)
    for place in store.find_by_key(topic, key, limit=COPIES_MAX, begin=begin):
        size = int.from_bytes(store.read_log(place, 4), "big")
        try:
            found = decode_record(store.read(place, size), check_crc=False)
        except (CorruptRecord, IllegalOffset):
            continue
        if records.is_effect(found, message):
            return True
    return False
