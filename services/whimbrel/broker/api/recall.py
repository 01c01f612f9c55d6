"""RecallMessage: a delayed message is not to be delivered.

    a message that waits, an unknown id, one that was recalled already    OK, once that is durable
    delivered, or being delivered; a handle that is none, or another      40000
    topic's; a time that nobody may wait for
    a topic that has no delayed messages, or is unknown                   40014
    a slave                                                               50002

A recall that is answered OK holds: the slot of its message is read only when everything stored before has its
place, recalls too. (RocketMQ may lose one in the second of the delivery, and its errors are 50001.)

A handle names the broker that has the message. Another one asks a nameserver, which hands the call on.
"""

from collections.abc import Callable, Sequence
from typing import Any

from whimbrel.broker.produce.admission import born_host_of
from whimbrel.broker.produce.internal_append import InternalAppender
from whimbrel.broker.tables.topics import TopicTable
from whimbrel.broker.timing.records import recall
from whimbrel.broker.timing.timers import Timers
from whimbrel.deferred import Deferred
from whimbrel.errors import BadRequest, MessageTypeConflict, WhimbrelError
from whimbrel.model.names import check_message_id, check_topic
from whimbrel.model.recall import RecallHandle
from whimbrel.model.topic import MessageType
from whimbrel.model.wire import CLIENT_PEER_HEADER
from whimbrel.pb.apache.rocketmq.v2 import service_pb2 as messaging
from whimbrel.rpc.server.forwarder import TO_NAMESERVER, Forwarder, Target
from whimbrel.rpc.server.handlers import Call
from whimbrel.rpc.server.responses import OK
from whimbrel.store.timer_layout import floor_second

__all__ = ["RecallService"]

DELAYED = (MessageType.DELAY, MessageType.MIXED)


class RecallService:
    """Handles the call on the loop's thread, at a master."""

    def __init__(
        self,
        topics: TopicTable,
        timers: Timers,
        internal: InternalAppender,
        *,
        broker_name: str,
        delay_max_ms: int,
        clock: Callable[[], int],
        forwarder: Forwarder,
        nameservers: Callable[[], Sequence[str]],
    ) -> None:
        """Take what knows the delayed messages.

        Args:
            topics, timers, internal: this broker's.
            broker_name: that a master and its slaves share.
            delay_max_ms: how long a message may wait.
            clock: epoch milliseconds.
            forwarder: hands calls on.
            nameservers: addresses of those that hold our registration.
        """
        self.topics, self.timers, self.internal = topics, timers, internal
        self.broker_name, self.delay_max_ms = broker_name, delay_max_ms
        self.clock, self.forwarder, self.nameservers = clock, forwarder, nameservers

    def recall(self, call: Call, request: messaging.RecallMessageRequest) -> Deferred[Any]:
        """Store that a message is recalled; answer when that is durable."""
        name = request.topic.name
        check_topic(name)
        handle = RecallHandle.decode(request.recall_handle)
        if handle.topic != name:
            raise BadRequest(f"the recall handle is of topic {handle.topic}, not of {name}")
        if handle.broker_name != self.broker_name:
            return self.hand_on(call, request, handle)
        topic = self.topics.get(name)
        if topic is None or topic.message_type not in DELAYED:
            raise MessageTypeConflict(f"topic {name} has no delayed messages to recall")
        check_message_id(handle.message_id)
        now = self.clock()
        if handle.time_ms > now + self.delay_max_ms:
            raise BadRequest("the recall handle names a time that no message may wait for")
        if not self.timers.is_open(floor_second(handle.time_ms)):
            raise BadRequest("the message was delivered already: it can't be recalled any more")
        draft = recall(
            name,
            handle.message_id,
            handle.time_ms,
            now_ms=now,
            born_host=born_host_of(call.peer),
            store_host=self.internal.store_host(),
        )
        deferred: Deferred[Any] = Deferred()

        def done(error: WhimbrelError | None) -> None:
            if error is not None:
                deferred.fail(error)
                return
            deferred.complete(messaging.RecallMessageResponse(status=OK, message_id=handle.message_id))

        self.internal.append(draft, done)
        return deferred

    def hand_on(
        self, call: Call, request: messaging.RecallMessageRequest, handle: RecallHandle
    ) -> Deferred[Any]:
        """Have a nameserver hand the call on to the broker that it is for."""
        if call.metadata.get(CLIENT_PEER_HEADER):
            raise BadRequest(f"the recall handle names the broker {handle.broker_name}, which this is not")
        targets = [Target(address, address) for address in self.nameservers()]
        return self.forwarder.forward(
            call, request, targets, TO_NAMESERVER, messaging.RecallMessageResponse.FromString
        )
