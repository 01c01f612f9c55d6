"""What a receipt handle stands for, and whether it counts for the caller.

A handle names broker, group, topic, queue and delivery. It is compared with the lease state first. One of a
delivery that the state does not know (another broker's, or of a journal's lost tail) counts if its message is
in the log as the handle says, or may still come to a log that follows another one.
"""

from collections.abc import Callable

from whimbrel.broker.consume.leases import LeaseTable
from whimbrel.broker.consume.queue_leases import QueueLeases, Standing
from whimbrel.broker.consume.receipts import ReceiptHandle
from whimbrel.broker.consume.retry_topics import RetryTopics
from whimbrel.errors import IllegalOffset, InvalidReceiptHandle
from whimbrel.store.codec import StoredMessage, decode_record
from whimbrel.store.scan import RecordSource

__all__ = ["Handles"]


class Handles:
    """Reads handles against the lease state and the log; changes nothing."""

    def __init__(
        self,
        store: RecordSource,
        table: LeaseTable,
        retry_topics: RetryTopics,
        *,
        broker_name: str,
        follows: bool,
        exists: Callable[[str, str, int], bool],
    ) -> None:
        """Take what handles are compared with.

        Args:
            store: where the messages are. table: the lease state. retry_topics: what a group reads beside a
            topic. broker_name: in the handles of this broker. follows: the log is another broker's. exists:
            returns whether there is such a group, and a topic with such a queue.
        """
        self.store, self.table, self.retry_topics = store, table, retry_topics
        self.broker_name, self.follows, self.exists = broker_name, follows, exists

    def topic_of(self, handle: ReceiptHandle, group: str, topic: str) -> str:
        """Return the topic that a handle stands for: the named one, or one that is read beside it."""
        if handle.broker_name != self.broker_name or handle.group != group:
            raise InvalidReceiptHandle("the receipt handle belongs to another broker or group")
        if handle.topic != topic and handle.topic not in (
            name for name, _ in self.retry_topics.get((group, topic), ())
        ):
            raise InvalidReceiptHandle("the receipt handle belongs to another topic")
        return handle.topic

    def check(self, handle: ReceiptHandle, group: str, topic: str, now: int) -> tuple[QueueLeases, Standing]:
        """Return the state that a handle belongs to, and what the handle stands for there.

        Raises:
            InvalidReceiptHandle: it does not count, or not for this group and topic.
        """
        topic = self.topic_of(handle, group, topic)
        state = self.table.find(group, topic, handle.queue_id)
        if state is not None:
            standing = state.standing(handle, now)
            if standing is not Standing.UNKNOWN:
                return state, standing
        elif not self.exists(group, topic, handle.queue_id):
            raise InvalidReceiptHandle("the receipt handle names a group or a queue that there is not")
        # A delivery that only another broker, or a journal's lost tail, knows: the record must at least be
        # there.
        low, high = self.store.queue_range(topic, handle.queue_id)
        if handle.offset < high:
            if handle.offset >= low:
                unit = self.store.queue_units(topic, handle.queue_id, handle.offset, 1)
                if not unit or unit[0][:2] != (handle.physical_offset, handle.size):
                    raise InvalidReceiptHandle("the receipt handle does not fit the message at its offset")
        elif not self.follows:
            raise InvalidReceiptHandle("the receipt handle names a message that the log does not hold")
        return state or self.table.state(group, topic, handle.queue_id), Standing.UNKNOWN

    def message_of(self, handle: ReceiptHandle) -> StoredMessage | None:
        """Return the message that a handle names; None when its record is gone, or another one has its place.

        Raises:
            CorruptRecord: it does not decode.
        """
        units = self.store.queue_units(handle.topic, handle.queue_id, handle.offset, 1)
        low, high = self.store.queue_range(handle.topic, handle.queue_id)
        if not low <= handle.offset < high or not units:
            return None
        physical_offset, size, _ = units[0]
        if (physical_offset, size) != (handle.physical_offset, handle.size):
            return None
        try:
            return decode_record(self.store.read(physical_offset, size))
        except IllegalOffset:
            return None
