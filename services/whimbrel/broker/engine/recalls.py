"""A delayed message is not to be delivered.

    a message that waits, an unknown id, one that was recalled already    done, once that is durable
    delivered, or being delivered; a handle that is none, or another      BadRequest
    topic's; a time that nobody may wait for
    a topic that has no delayed messages, or is unknown                   MessageTypeConflict
    a handle that names another broker                                    Elsewhere

A recall that is answered holds: the slot of its message is read only when everything stored before has its
place, recalls too. (RocketMQ may lose one in the second of the delivery, and its errors are 50001.)
"""

from collections.abc import Callable

from whimbrel.broker.engine.send import Elsewhere
from whimbrel.broker.produce.internal_append import InternalAppender
from whimbrel.broker.tables.topics import TopicTable
from whimbrel.broker.timing.records import recall
from whimbrel.broker.timing.timers import Timers
from whimbrel.deferred import Deferred
from whimbrel.errors import BadRequest, MessageTypeConflict
from whimbrel.model.names import check_message_id, check_topic
from whimbrel.model.recall import RecallHandle
from whimbrel.model.topic import MessageType
from whimbrel.store.timer_layout import floor_second

__all__ = ["Recalls"]

DELAYED = (MessageType.DELAY, MessageType.MIXED)


class Recalls:
    """Decides recalls, on the loop's thread of a master."""

    def __init__(
        self,
        topics: TopicTable,
        timers: Timers,
        internal: InternalAppender,
        *,
        broker_name: str,
        delay_max_ms: int,
        clock: Callable[[], int],
    ) -> None:
        """Take what knows the delayed messages.

        Args:
            topics, timers, internal: this broker's.
            broker_name: that a master and its slaves share.
            delay_max_ms: how long a message may wait.
            clock: epoch milliseconds.
        """
        self.topics, self.timers, self.internal = topics, timers, internal
        self.broker_name, self.delay_max_ms, self.clock = broker_name, delay_max_ms, clock

    def recall(self, topic: str, handle: str, born_host: bytes) -> Deferred[str] | Elsewhere:
        """Store that a message is recalled; answer with its id when that is durable.

        Args:
            topic: the message's.
            handle: that its sender was given.
            born_host: the caller's address as records hold it.

        Raises:
            WhimbrelError: see above; nothing is stored.
        """
        check_topic(topic)
        named = RecallHandle.decode(handle)
        if named.topic != topic:
            raise BadRequest(f"the recall handle is of topic {named.topic}, not of {topic}")
        if named.broker_name != self.broker_name:
            return Elsewhere(named.broker_name)
        config = self.topics.get(topic)
        if config is None or config.message_type not in DELAYED:
            raise MessageTypeConflict(f"topic {topic} has no delayed messages to recall")
        check_message_id(named.message_id)
        now = self.clock()
        if named.time_ms > now + self.delay_max_ms:
            raise BadRequest("the recall handle names a time that no message may wait for")
        if not self.timers.is_open(floor_second(named.time_ms)):
            raise BadRequest("the message was delivered already: it can't be recalled any more")
        draft = recall(
            topic,
            named.message_id,
            named.time_ms,
            now_ms=now,
            born_host=born_host,
            store_host=self.internal.store_host(),
        )
        deferred: Deferred[str] = Deferred()
        self.internal.append(draft, lambda error: deferred.settle(named.message_id, error))
        return deferred
