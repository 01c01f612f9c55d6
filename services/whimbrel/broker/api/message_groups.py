"""Sends of ordered messages on topics that several brokers have: each message group has one queue in all.

SDKs choose a broker by hashes of their own, which differ between languages (and in C# between processes). The
broker that gets such a message looks up whose it is (`tables/shared_topics.py`), and hands it on if it is
another one's:

    the topic is ours alone      nothing to look up: the queue is chosen as for every message group
    the queue is ours            stored here
    it is another broker's       handed on, once; its answer is the client's. Away: OwnerAway, and the client
                                 tries again
    it was handed on to us       stored in the queue that the other broker found; QueueNotFound if there is
                                 none here, since the two know different queues for a moment

Messages of transactions stay here, whatever their group: who sent the half ends it at the same broker.
"""

from collections.abc import Sequence
from typing import Any

from whimbrel.broker.produce.admission import Admission, MessageExtras, SendTarget, born_host_of, group_of
from whimbrel.broker.produce.placement import owner_of_group
from whimbrel.broker.tables.shared_topics import TopicSharing
from whimbrel.deferred import Deferred
from whimbrel.model.topic import MessageType
from whimbrel.model.wire import CLIENT_PEER_HEADER, QUEUE_HEADER
from whimbrel.pb.apache.rocketmq.v2 import service_pb2 as messaging
from whimbrel.rpc.server.forwarder import TO_OWNER, Forwarder, Target, made
from whimbrel.rpc.server.handlers import Call
from whimbrel.store.codec import RecordDraft

__all__ = ["MessageGroups"]


class MessageGroups:
    """Finds the queue of ordered messages among all brokers of a topic."""

    def __init__(self, sharing: TopicSharing, admission: Admission, forwarder: Forwarder) -> None:
        """Take who shares topics with us, what knows the queues here, and what hands calls on."""
        self.sharing, self.admission, self.forwarder = sharing, admission, forwarder

    def place(
        self,
        call: Call,
        request: Any,
        target: SendTarget,
        special: Sequence[MessageExtras],
        drafts: Sequence[RecordDraft],
    ) -> int | Deferred[Any] | None:
        """Return the queue of a request here, or the answer to come of the broker that owns it.

        None where this broker alone decides.

        Raises:
            BadRequest: the messages are of several groups.
            OwnerAway, Throttled: it can't be handed on.
            QueueNotFound: it was handed on to a queue that is not here.
        """
        if special[0].kind is not MessageType.FIFO:
            return None
        headers = call.metadata
        if made(call, TO_OWNER):
            born_host = born_host_of(headers.get(CLIENT_PEER_HEADER, ""))
            for draft in drafts:
                draft.born_host = born_host
            return self.admission.queue(target, headers.get(QUEUE_HEADER))
        sharing = self.sharing
        others = sharing.others.get(target.topic.name)
        if not others:
            return None
        queues = {**others, sharing.name: target.queues}
        if not any(queues.values()):
            return None
        owner, queue_id = owner_of_group(group_of(special), queues)
        if owner == sharing.name:
            return queue_id
        return self.forwarder.forward(
            call,
            request,
            [Target(owner, sharing.address(owner))],
            TO_OWNER,
            messaging.SendMessageResponse.FromString,
            headers=((QUEUE_HEADER, str(queue_id)),),
        )
