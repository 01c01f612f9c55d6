"""Reads the records of messages that wait: what is gone, or can't be such a message, is left out."""

import logging

from whimbrel.errors import CorruptRecord, IllegalOffset
from whimbrel.model.properties import REAL_TOPIC
from whimbrel.store.codec import (
    StoredMessage,
    decode_record,
    property_of,
    store_time_of,
    topic_and_properties,
)
from whimbrel.store.store import MessageStore

__all__ = ["properties_waiting", "read_waiting"]

logger = logging.getLogger(__name__)

RAW_TOPIC = REAL_TOPIC.encode()


def properties_waiting(store: MessageStore, topic: bytes, place: int, size: int) -> tuple[bytes, int]:
    """Return property text and store time of a message that waits; no text where it is gone, or none."""
    try:
        data = store.read(place, size)
        found, text = topic_and_properties(data, 0)
    except IllegalOffset:
        return b"", 0
    except CorruptRecord as error:
        logger.error("a delayed message is lost, its record is damaged: %s", error)
        return b"", 0
    if found != topic or not property_of(text, RAW_TOPIC):
        logger.error("the record at %d is no delayed message: it is left out", place)
        return b"", 0
    return text, store_time_of(data)


def read_waiting(store: MessageStore, topic: str, place: int, size: int) -> StoredMessage | None:
    """Return a message that waits in a system topic; None when there is none."""
    try:
        message = decode_record(store.read(place, size), check_crc=False)
    except IllegalOffset:
        return None  # its file was removed: it was stored again before, or delivered
    except CorruptRecord as error:
        logger.error("a delayed message is lost, its record is damaged: %s", error)
        return None
    if message.topic != topic or not message.properties.get(REAL_TOPIC):
        logger.error("the record at %d is no delayed message: it is left out", place)
        return None
    return message
