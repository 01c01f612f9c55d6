"""AckMessage, ChangeInvisibleDuration and ForwardMessageToDeadLetterQueue: what consumers say of a message.

    request ──► a call of the engine, by receipt handles (`engine/settle.py`) ──► response

A change that fails is answered with a handle all the same; one that is not tried, or waits for a majority in
vain, with a status alone, as other calls are.
"""

from operator import itemgetter
from typing import Any

from whimbrel.broker.api.message_frames import milliseconds
from whimbrel.broker.api.response_bytes import ack_answer
from whimbrel.broker.engine.settle import Changed, Settles
from whimbrel.deferred import Deferred
from whimbrel.pb.apache.rocketmq.v2 import service_pb2 as messaging
from whimbrel.rpc.server.handlers import Call
from whimbrel.rpc.server.responses import OK, status_of

__all__ = ["SettleService"]


class SettleService:
    """Handles the calls on the loop's thread."""

    def __init__(self, settles: Settles) -> None:
        """Take what decides."""
        self.settles = settles

    def acknowledge(self, call: Call, request: messaging.AckMessageRequest) -> Any:
        """Finish messages; one entry each, in order."""
        entries = [(entry.message_id, entry.receipt_handle) for entry in request.entries]
        handles = list(map(itemgetter(1), entries))
        errors = self.settles.acknowledge(request.group.name, request.topic.name, handles)
        if isinstance(errors, Deferred):
            return errors.mapped(lambda found: ack_answer(entries, found))
        return ack_answer(entries, errors)

    def change_invisible(self, call: Call, request: messaging.ChangeInvisibleDurationRequest) -> Any:
        """Set when a message becomes visible again."""
        changed = self.settles.change(
            request.group.name,
            request.topic.name,
            request.receipt_handle,
            milliseconds(request.invisible_duration),
            suspend=request.suspend,
        )
        return changed.mapped(answer_change) if isinstance(changed, Deferred) else answer_change(changed)

    def forward(self, call: Call, request: messaging.ForwardMessageToDeadLetterQueueRequest) -> Any:
        """Give a message up."""
        done = self.settles.forward(request.group.name, request.topic.name, request.receipt_handle)
        return done.mapped(lambda _: messaging.ForwardMessageToDeadLetterQueueResponse(status=OK))


def answer_change(changed: Changed) -> messaging.ChangeInvisibleDurationResponse:
    """Return the response to a change of the invisible time."""
    status = OK if changed.error is None else status_of(changed.error)
    return messaging.ChangeInvisibleDurationResponse(status=status, receipt_handle=changed.handle)
