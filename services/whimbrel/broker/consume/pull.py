"""Pulls: reading one queue from an offset on, without leases."""

from dataclasses import dataclass

from whimbrel.broker.consume.delivery_planner import ANSWER_BYTES_MAX, SCAN_MAX, RecordSource
from whimbrel.broker.consume.filters import TagFilter
from whimbrel.errors import CorruptRecord, IllegalOffset
from whimbrel.model.limits import RECEIVE_BATCH_MAX
from whimbrel.store.codec import StoredMessage, decode_record

__all__ = ["PullRequest", "Pulled", "read_queue"]

# Queue entries fetched at a time when not all of them will match.
FILTERED_UNITS = 256


@dataclass(frozen=True, slots=True, kw_only=True)
class PullRequest:
    """What a pull asks for."""

    topic: str
    queue_id: int
    offset: int
    batch: int
    filter: TagFilter


@dataclass(frozen=True, slots=True)
class Pulled:
    """What a pull got, and where to go on."""

    messages: list[StoredMessage]
    next_offset: int


def read_queue(
    store: RecordSource, wish: PullRequest, position: int, *, follows: bool
) -> tuple[Pulled, bool]:
    """Read matching messages from `position` on; also tell whether to answer at once although there are none.

    Args:
        store: where the messages are.
        wish: what to read.
        position: where to begin: the wish's offset, or beyond it what did not match.
        follows: the log may lag behind another broker's: an offset beyond its end is not wrong, only early.

    Raises:
        CorruptRecord: the first record there does not decode.
        IllegalOffset: the position lies outside the queue.
    """
    low, high = store.queue_range(wish.topic, wish.queue_id)
    if position < low or (position > high and not follows):
        raise IllegalOffset(
            f"offset {position} lies outside {wish.topic}/{wish.queue_id}, which holds {low} to {high}"
        )
    messages: list[StoredMessage] = []
    size_left, room, scan = ANSWER_BYTES_MAX, min(wish.batch, RECEIVE_BATCH_MAX), SCAN_MAX
    while position < high and scan > 0 and len(messages) < room:
        limit = room - len(messages) if wish.filter.tags is None else FILTERED_UNITS
        units = store.queue_units(wish.topic, wish.queue_id, position, limit)
        if not units:
            break
        scan -= len(units)
        for physical_offset, size, code in units:
            if len(messages) >= room or (messages and size > size_left):
                return Pulled(messages, position), False
            if wish.filter.admits_code(code):
                try:
                    message = decode_record(store.read(physical_offset, size))
                except (CorruptRecord, IllegalOffset):
                    if messages:
                        return Pulled(messages, position), False
                    raise
                if wish.filter.tags is None or wish.filter.admits(message.properties.get("TAGS")):
                    messages.append(message)
                    size_left -= size
            position += 1
    return Pulled(messages, position), scan <= 0 and not messages
