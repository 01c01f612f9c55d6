"""Resets of a group on a topic: 222 INVOKE_BROKER_TO_RESET_OFFSET, and 220 RESET_CONSUMER_CLIENT_OFFSET.

The position moves here, at once, as in RocketMQ 5; in 4.9.3 only clients move it. Members are told by 220:
those that know it stop, commit the new position after 10 s, and go on from there. To others, and to those
that miss it, pulls say it: the answer to the next one is 21 with the new position
(`consume/client_positions.py`). A group without live members is reset as well; 4.9.3 answers 206 then, and
its tools commit by 15.

Members that consume by broadcast have positions of their own: they are told, and nothing moves here.

    {"offsetTable":{{"brokerName":"broker-a","queueId":2,"topic":"T"}:6}}                  the answer, and 220
    {"offsetTable":[{"brokerName":"broker-a","offset":6,"queueId":2,"topic":"T"}]}         220 to C++

`timestamp` -1 is the end of the queue. Without `isForce` a position only goes back. 5.x may name one queue
(`queueId`), and an offset in place of the time (`offset`).
"""

from collections.abc import Mapping
from typing import cast

from whimbrel.broker.consume.client_positions import ClientPositions
from whimbrel.broker.engine.tables import TableChanges
from whimbrel.broker.tables.remoting_clients import RemotingClients
from whimbrel.errors import BadRequest
from whimbrel.rpc.remoting.codes import RequestCode
from whimbrel.rpc.remoting.command import Command
from whimbrel.rpc.remoting.fastjson import MessageQueue, dump_body
from whimbrel.rpc.remoting.handlers import Handle, Peer, Reply

__all__ = ["RemotingResets"]


class RemotingResets:
    """Handles resets. On the loop's thread."""

    def __init__(
        self,
        changes: TableChanges,
        clients: RemotingClients,
        positions: ClientPositions,
        *,
        broker_name: str,
    ) -> None:
        """Take what is read and changed.

        Args:
            changes: the tables and the store.
            clients: members, who are told.
            positions: those of groups.
            broker_name: names the queues.
        """
        self.changes, self.topics, self.store = changes, changes.topics, changes.store
        self.clients, self.positions = clients, positions
        self.broker_name = broker_name

    def handles(self) -> dict[int, Handle]:
        """Return the handlers by code."""
        return {RequestCode.INVOKE_BROKER_TO_RESET_OFFSET: self.reset}

    def reset(self, peer: Peer, request: Command) -> Reply:
        """Reset a group on a topic."""
        self.changes.check_master()
        topic, group = request.text("topic"), self.changes.group(request.text("group")).name
        targets = self.targets(topic, group, request)
        members = self.clients.group(group)
        if members is None or not members.broadcasting:
            for queue_id, offset in targets.items():
                self.positions.positions.reset_offset(group, topic, queue_id, offset)
        table = {
            MessageQueue(self.broker_name, queue_id, topic): offset for queue_id, offset in targets.items()
        }
        body = dump_body({"offsetTable": table})
        if members is not None:
            fields = {
                "topic": topic,
                "group": group,
                "timestamp": str(request.int64("timestamp")),
                "isForce": "false",
            }
            for connection, member in list(members.members.items()):
                told = list_body(table) if member.identity.language == "CPP" else body
                cast(Peer, connection).push(RequestCode.RESET_CONSUMER_CLIENT_OFFSET, fields, told)
        return Reply(body=[body])

    def targets(self, topic: str, group: str, request: Command) -> dict[int, int]:
        """Return where a group is to stand, by queue.

        Raises:
            BadRequest: there is no such topic or queue.
        """
        config = self.topics.get(topic)
        if config is None:
            raise BadRequest(f"no topic {topic}")
        queues = range(max(config.read_queues, config.write_queues))
        chosen = request.int32("queueId", -1)
        if chosen >= 0 and chosen not in queues:
            raise BadRequest(f"queue {chosen} is not one of the {len(queues)} of {topic}")
        at_ms, place, force = (
            request.int64("timestamp"),
            request.int64("offset", -1),
            request.boolean("isForce"),
        )
        found = {}
        for queue_id in queues if chosen < 0 else (chosen,):
            low, high = self.store.queue_range(topic, queue_id)
            if place >= 0:
                target = min(max(place, low), high)
            else:
                target = high if at_ms < 0 else self.store.offset_by_time(topic, queue_id, at_ms)
            known = self.positions.get(group, topic, queue_id)
            found[queue_id] = target if force or known is None or target < known else known
        return found


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
