"""Pulls: reading one queue from an offset on, without leases."""

from dataclasses import dataclass

from whimbrel.broker.consume.filters import Filter
from whimbrel.broker.consume.scan import RecordSource, Scan
from whimbrel.errors import IllegalOffset
from whimbrel.store.codec import StoredMessage

__all__ = ["PullRequest", "Pulled", "read_queue"]


@dataclass(frozen=True, slots=True, kw_only=True)
class PullRequest:
    """What a pull asks for."""

    topic: str
    queue_id: int
    offset: int
    batch: int
    filter: Filter


@dataclass(frozen=True, slots=True)
class Pulled:
    """What a pull got, and the offset of the next pull."""

    messages: list[StoredMessage]
    next_offset: int


def read_queue(
    store: RecordSource, request: PullRequest, position: int, *, follows: bool
) -> tuple[Pulled, bool]:
    """Read matching messages from `position` on; also return whether to answer at once without any.

    Args:
        store: where the messages are.
        request: what to read.
        position: where to begin: the request's offset, or an offset behind it when what lies between does not
            match.
        follows: the log may lag behind another broker's: an offset beyond its end is not wrong, only early.

    Raises:
        CorruptRecord: the first record there does not decode.
        IllegalOffset: the position lies outside the queue.
    """
    topic, queue_id = request.topic, request.queue_id
    low, high = store.queue_range(topic, queue_id)
    if position < low or (position > high and not follows):
        raise IllegalOffset(f"offset {position} lies outside {topic}/{queue_id}, which holds {low} to {high}")
    messages: list[StoredMessage] = []
    scan = Scan(store, topic, request.filter, request.batch)
    while position < high and scan.room > 0 and scan.entries_left > 0:
        stop = min(position + scan.fetch_count(), high)
        for _, offset, _, _, _, found in scan.walk(queue_id, position, stop):
            if isinstance(found, list):
                messages += found
            elif messages:
                return Pulled(messages, offset), False
            else:
                raise found
        position = scan.reached
        if position < stop:
            break  # the answer is full
    return Pulled(messages, position), scan.entries_left <= 0 and not messages
