"""Resets of a group on a topic: 222 INVOKE_BROKER_TO_RESET_OFFSET, and 220 RESET_CONSUMER_CLIENT_OFFSET.

With them 314, CLONE_GROUP_OFFSET: a group gets another one's positions.

The position moves here, at once, as in RocketMQ 5; in 4.9.3 only clients move it. Members are told by 220:
those that know it stop, commit the new position after 10 s, and go on from there. To others, and to those
that miss it, pulls say it: the answer to the next one is 21 with the new position
(`consume/client_positions.py`). A group without live members is reset as well; 4.9.3 answers 206 then, and
its tools commit by 15.

Members that consume by broadcast have positions of their own: they are told, and nothing moves here.

    {"offsetTable":{{"brokerName":"broker-a","queueId":2,"topic":"T"}:6}}                  the answer, and 220
    {"offsetTable":[{"brokerName":"broker-a","offset":6,"queueId":2,"topic":"T"}]}         220 to C++

`timestamp` -1 is the end of the queue. Without `isForce` a position only goes back. 5.x may name one queue
(`queueId`), and an offset in place of the time (`offset`). What is decided: `engine/resets.py`.
"""

from collections.abc import Mapping
from functools import partial
from typing import Final, cast

from whimbrel.broker.engine import resets as goals
from whimbrel.broker.engine.resets import Clone, Goal, Moved, Reset, ResetRules, Resets
from whimbrel.broker.tables.remoting_clients import RemotingClients
from whimbrel.errors import BadRequest
from whimbrel.rpc.remoting.codes import RequestCode
from whimbrel.rpc.remoting.command import Command
from whimbrel.rpc.remoting.fastjson import MessageQueue, dump_body
from whimbrel.rpc.remoting.handlers import Handle, Outcome, Peer, Reply

__all__ = ["REMOTING_RESETS", "RemotingResets"]

REMOTING_RESETS: Final = ResetRules(no_topic=BadRequest, queues=goals.all_queues, spares_broadcast=True)


class RemotingResets:
    """Handles resets. On the loop's thread."""

    def __init__(self, resets: Resets, clients: RemotingClients, *, broker_name: str) -> None:
        """Take what decides, and members, who are told; `broker_name` names the queues."""
        self.resets, self.clients, self.broker_name = resets, clients, broker_name

    def handles(self) -> dict[int, Handle]:
        """Return the handlers by code."""
        return {
            RequestCode.INVOKE_BROKER_TO_RESET_OFFSET: self.reset,
            RequestCode.CLONE_GROUP_OFFSET: self.clone,
        }

    def reset(self, peer: Peer, request: Command) -> Outcome:
        """Reset a group on a topic."""
        return self.resets.reset(partial(reset_of, request), partial(self.tell, request))

    def tell(self, request: Command, moved: Moved) -> Reply:
        """Tell members where to go on, and return the reply."""
        table = {
            MessageQueue(self.broker_name, queue_id, moved.topic): offset
            for queue_id, offset in moved.offsets.items()
        }
        body, members = dump_body({"offsetTable": table}), self.clients.group(moved.group)
        if members is not None:
            fields = {
                "topic": moved.topic,
                "group": moved.group,
                "timestamp": str(request.int64("timestamp")),
                "isForce": "false",
            }
            for connection, member in list(members.members.items()):
                told = list_body(table) if member.identity.language == "CPP" else body
                cast(Peer, connection).push(RequestCode.RESET_CONSUMER_CLIENT_OFFSET, fields, told)
        return Reply(body=[body])

    def clone(self, peer: Peer, request: Command) -> Outcome:
        """Give a group the positions of another one on a topic, or on all of its topics."""
        done = self.resets.clone(partial(clone_of, request))
        return Reply() if done is None else done.mapped(lambda _: Reply())


def reset_of(request: Command) -> Reset:
    """Return what a request says of a reset."""
    topic, group = request.text("topic"), request.text("group")
    return Reset(REMOTING_RESETS, topic, group, partial(queue_of, request), partial(goal_of, request))


def queue_of(request: Command) -> int | None:
    """Return the queue that it names; None for all."""
    queue_id = request.int32("queueId", -1)
    return None if queue_id < 0 else queue_id


def goal_of(request: Command) -> Goal:
    """Return where a group is to go."""
    at_ms, offset = request.int64("timestamp"), request.int64("offset", -1)
    goal = goals.queue_end if at_ms < 0 else goals.stored_at(at_ms)
    if offset >= 0:
        goal = goals.nearest(offset)
    return goal if request.boolean("isForce") else goals.back(goal)


def clone_of(request: Command) -> Clone:
    """Return what a request says of positions to copy."""
    return Clone(request.text("srcGroup"), request.text("destGroup"), request.fields.get("topic", ""))


def list_body(table: Mapping[MessageQueue, int]) -> bytes:
    """Return positions as C++ reads them."""
    rows = [
        {
            "brokerName": queue.broker_name,
            "offset": offset,
            "queueId": queue.queue_id,
            "topic": queue.topic,
        }
        for queue, offset in table.items()
    ]
    return dump_body({"offsetTable": rows})
