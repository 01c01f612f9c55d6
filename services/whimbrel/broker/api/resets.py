"""ResetOffsets of the admin service: the request as a `Reset` of the engine, and how far the group is then.

The engine's answer: `engine/resets.py`. None is moved when one of the targets is outside its queue.
"""

from functools import partial
from typing import Any, Final

from whimbrel.broker.api.admin import progress_message
from whimbrel.broker.engine import resets as goals
from whimbrel.broker.engine.resets import Goal, Moved, Reset, ResetRules, Resets
from whimbrel.errors import TopicNotFound
from whimbrel.pb.whimbrel.admin.v1 import admin_service_pb2 as admin
from whimbrel.rpc.server.handlers import Call, UnaryMethod

__all__ = ["V2_RESETS", "ResetService"]

V2_RESETS: Final = ResetRules(no_topic=TopicNotFound, queues=goals.read_queues, spares_broadcast=False)


class ResetService:
    """Handles the call on the loop's thread."""

    def __init__(self, resets: Resets) -> None:
        """Take what decides."""
        self.resets = resets

    def methods(self) -> tuple[UnaryMethod, ...]:
        """Return the call for the admin service."""
        return (UnaryMethod("ResetOffsets", admin.ResetOffsetsRequest, self.reset),)

    def reset(self, call: Call, request: admin.ResetOffsetsRequest) -> Any:
        """Move a group's offsets."""
        queue_id = request.queue_id if request.HasField("queue_id") else None
        asked = Reset(V2_RESETS, request.topic, request.group, lambda: queue_id, partial(goal_of, request))
        return self.resets.reset(lambda: asked, self.response)

    def response(self, moved: Moved) -> admin.ResetOffsetsResponse:
        """Return how far the group is."""
        return admin.ResetOffsetsResponse(progress=map(progress_message, self.resets.progress(moved)))


def goal_of(request: admin.ResetOffsetsRequest) -> Goal:
    """Return where a group is to go."""
    target = request.WhichOneof("target")
    if target == "timestamp":
        return goals.stored_at(request.timestamp.seconds * 1000 + request.timestamp.nanos // 1_000_000)
    if target == "offset":
        return goals.offset(request.offset)
    return {"earliest": goals.queue_begin, "latest": goals.queue_end, None: goals.unsaid}[target]
