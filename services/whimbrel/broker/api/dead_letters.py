"""ForwardMessageToDeadLetterQueue: a consumer gives a message up.

Consumers in order call it, and repeat it every second until the answer is OK, whatever the error. So OK is
whatever leaves them nothing to do:

    done already, or the group's position was reset since    OK, nothing is stored
    the record is gone, or there is no such group or queue   OK, nothing is stored
    the delivery is over, and the message is not done        OK, it goes to the dead letters and is done
    no master, or it takes no writes                         50002: the SDK repeats it until there is one
    what is no receipt handle, or another one's              40013
"""

from typing import Any

from whimbrel.broker.consume.dead_letters import dead_letter
from whimbrel.broker.consume.group_consumption import GroupConsumption
from whimbrel.broker.consume.plan import HandOn
from whimbrel.broker.tables.groups import GroupTable
from whimbrel.deferred import Deferred
from whimbrel.errors import WhimbrelError
from whimbrel.model.names import check_group, check_topic
from whimbrel.model.topic import GroupConfig
from whimbrel.pb.apache.rocketmq.v2 import service_pb2 as messaging
from whimbrel.rpc.server.handlers import Call
from whimbrel.rpc.server.responses import OK
from whimbrel.store.codec import StoredMessage

__all__ = ["DeadLetterService"]


class DeadLetterService:
    """Handles the call on the loop's thread, at a master."""

    def __init__(self, groups: GroupTable, consumption: GroupConsumption) -> None:
        """Take the groups, and what knows of their messages."""
        self.groups, self.consumption = groups, consumption

    def forward(self, call: Call, request: messaging.ForwardMessageToDeadLetterQueueRequest) -> Any:
        """Hand a message on to the dead letters of its group; answer when it is done."""
        topic, name = request.topic.name, request.group.name
        check_topic(topic)
        check_group(name)
        group = self.groups.get(name) or GroupConfig(name=name)
        deferred: Deferred[Any] = Deferred()

        def give_up(message: StoredMessage, deliveries: int) -> HandOn:
            return dead_letter(group, message, deliveries, attempts=max(deliveries, 1))

        def done(error: WhimbrelError | None) -> None:
            if error is None:
                deferred.complete(messaging.ForwardMessageToDeadLetterQueueResponse(status=OK))
            else:
                deferred.fail(error)

        self.consumption.hand_ons.forward(name, topic, request.receipt_handle, give_up, done)
        return deferred
