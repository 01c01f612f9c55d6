"""Pulls: reading one queue from an offset on, without leases.

Where responses are wanted, the lane makes them of the first messages, up to one that is not plain; that one
and all that follow are Python's.
"""

from dataclasses import dataclass

from whimbrel.broker.consume.filters import Filter
from whimbrel.broker.consume.scan import RecordSource, Scan
from whimbrel.errors import IllegalOffset
from whimbrel.store.codec import StoredMessage
from whimbrel.store.lane_messages import PackedMessages

__all__ = ["PullRequest", "Pulled", "read_queue"]


@dataclass(frozen=True, slots=True, kw_only=True)
class PullRequest:
    """What a pull asks for.

    Attributes:
        namespace: of the topic, as it was asked for; with it the lane may make responses. None: only messages
            are wanted.
    """

    topic: str
    queue_id: int
    offset: int
    batch: int
    filter: Filter
    namespace: str | None = None


@dataclass(frozen=True, slots=True)
class Pulled:
    """What a pull got, and the offset of the next pull.

    Attributes:
        packed: the first messages, as responses that the lane has made. messages: those that follow.
    """

    messages: list[StoredMessage]
    next_offset: int
    packed: tuple[PackedMessages, ...] = ()

    @property
    def found(self) -> bool:
        """Whether there is any message."""
        return bool(self.messages or self.packed)


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
    packed: tuple[PackedMessages, ...] = ()
    messages: list[StoredMessage] = []
    scan = Scan(store, topic, request.filter, request.batch)
    namespace = request.namespace
    while position < high and scan.room > 0 and scan.entries_left > 0:
        stop = min(position + scan.fetch_count(), high)
        if namespace is not None:
            done = scan.walk_packed(queue_id, position, stop, namespace)
            if done is not None and done.messages:
                packed += (done,)
            position = scan.reached
            if position < stop:
                namespace = None  # what follows is Python's
            continue
        for _, offset, _, _, _, found in scan.walk(queue_id, position, stop):
            if isinstance(found, list):
                messages += found
            elif messages or packed:
                return Pulled(messages, offset, packed), False
            else:
                raise found
        position = scan.reached
        if position < stop:
            break  # the answer is full
    pulled = Pulled(messages, position, packed)
    return pulled, scan.entries_left <= 0 and not pulled.found
