"""RecallMessage: a delayed message is not to be delivered; what that means decides `engine/recalls.py`.

A handle names the broker that has the message. Another one asks a nameserver, which hands the call on. A
slave answers 50002.
"""

from collections.abc import Callable, Sequence
from typing import Any

from whimbrel.broker.engine.message import born_host_of
from whimbrel.broker.engine.recalls import Recalls
from whimbrel.broker.engine.send import Elsewhere
from whimbrel.deferred import Deferred
from whimbrel.errors import BadRequest
from whimbrel.model.wire import CLIENT_PEER_HEADER
from whimbrel.pb.apache.rocketmq.v2 import service_pb2 as messaging
from whimbrel.rpc.server.forwarder import TO_NAMESERVER, Forwarder, Target
from whimbrel.rpc.server.handlers import Call
from whimbrel.rpc.server.responses import OK

__all__ = ["RecallService"]


class RecallService:
    """Handles the call on the loop's thread, at a master."""

    def __init__(
        self, recalls: Recalls, *, forwarder: Forwarder, nameservers: Callable[[], Sequence[str]]
    ) -> None:
        """Take what decides, what hands calls on, and addresses of nameservers that hold our registration."""
        self.recalls, self.forwarder, self.nameservers = recalls, forwarder, nameservers

    def recall(self, call: Call, request: messaging.RecallMessageRequest) -> Deferred[Any]:
        """Store that a message is recalled; answer when that is durable."""
        answer = self.recalls.recall(request.topic.name, request.recall_handle, born_host_of(call.peer))
        if isinstance(answer, Elsewhere):
            return self.hand_on(call, request, answer)
        return answer.mapped(lambda id_: messaging.RecallMessageResponse(status=OK, message_id=id_))

    def hand_on(self, call: Call, request: messaging.RecallMessageRequest, owner: Elsewhere) -> Deferred[Any]:
        """Have a nameserver hand the call on to the broker that it is for."""
        if call.metadata.get(CLIENT_PEER_HEADER):
            raise BadRequest(f"the recall handle names the broker {owner.broker}, which this is not")
        targets = [Target(address, address) for address in self.nameservers()]
        return self.forwarder.forward(
            call, request, targets, TO_NAMESERVER, messaging.RecallMessageResponse.FromString
        )
