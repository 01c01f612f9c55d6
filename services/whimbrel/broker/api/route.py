"""QueryRoute and QueryAssignment at a broker.

QueryRoute is for clients that were configured with a broker's address instead of a nameserver's. A broker
knows only itself, and returns the address that the caller used, since that one works for the caller. It
lists itself under broker id 0, because SDKs use no other id; a slave without the write permission, unless it
hands messages on to the master (`leader_calls.py`).

The push consumers of most SDKs send QueryAssignment to brokers, whatever address they were configured with.
It is forwarded to a nameserver (`assignments.py`). While no nameserver answers, it is answered here for
clients that were configured with this broker's address.
"""

from collections.abc import Callable
from typing import Any

from whimbrel.broker.api.assignments import Assignments
from whimbrel.broker.tables.groups import GroupTable
from whimbrel.broker.tables.topics import TopicTable
from whimbrel.errors import Forbidden, TopicNotFound
from whimbrel.model.names import check_group, check_topic
from whimbrel.model.topic import MessageType, Permission, TopicConfig
from whimbrel.pb.apache.rocketmq.v2 import definition_pb2 as v2
from whimbrel.pb.apache.rocketmq.v2 import service_pb2 as messaging
from whimbrel.rpc.server.handlers import Call
from whimbrel.rpc.server.responses import ACCEPTED, OK, check_endpoints, namespace_of, permission_of

__all__ = ["RouteService"]


class RouteService:
    """Lists this broker's queues."""

    def __init__(
        self,
        topics: TopicTable,
        groups: GroupTable,
        assignments: Assignments,
        *,
        name: str,
        takes_messages: bool,
        ports: Callable[[], frozenset[int]],
    ) -> None:
        """Take the tables, and the ports under which this broker is known.

        Args:
            topics, groups, assignments: of this broker.
            name: that a master and its slaves share.
            takes_messages: whether it does so, for itself or for the master.
            ports: see above.
        """
        self.topics, self.groups = topics, groups
        self.assignments = assignments
        self.ports = ports
        self.name = name
        self.takes_messages = takes_messages

    def topic(self, name: str) -> TopicConfig:
        check_topic(name)
        topic = self.topics.get(name)
        if topic is None and self.takes_messages:
            topic = self.topics.would_create(name, MessageType.MIXED)  # it takes its first message's kind
        if topic is None:
            raise TopicNotFound(f"no topic {name}")
        return topic

    def queue(
        self,
        topic: TopicConfig,
        queue_id: int,
        permission: v2.Permission,
        resource: v2.Resource,
        endpoints: Any,
    ) -> v2.MessageQueue:
        return v2.MessageQueue(
            topic=resource,
            id=queue_id,
            permission=permission,
            broker=v2.Broker(name=self.name, id=0, endpoints=endpoints),
            accept_message_types=ACCEPTED[topic.message_type],
        )

    def query_route(self, call: Call, request: messaging.QueryRouteRequest) -> Any:
        """Return the queues of a topic on this broker."""
        topic = self.topic(request.topic.name)
        check_endpoints(request.endpoints)
        resource = v2.Resource(name=topic.name, resource_namespace=namespace_of(call, request.topic))
        response = messaging.QueryRouteResponse(status=OK)
        readable = topic.read_queues if topic.permission & Permission.READ else 0
        writable = topic.write_queues if topic.permission & Permission.WRITE and self.takes_messages else 0
        for queue_id in range(max(topic.read_queues, topic.write_queues)):
            permission = permission_of(read=queue_id < readable, write=queue_id < writable)
            response.message_queues.append(
                self.queue(topic, queue_id, permission, resource, request.endpoints)
            )
        return response

    def query_assignment(self, call: Call, request: messaging.QueryAssignmentRequest) -> Any:
        """Return an assignment for each broker that has the topic, as a nameserver knows them."""
        check_topic(request.topic.name)
        check_group(request.group.name)
        check_endpoints(request.endpoints)
        return self.assignments.answer(call, request, lambda: self.own_assignment(call, request))

    def own_assignment(
        self, call: Call, request: messaging.QueryAssignmentRequest
    ) -> messaging.QueryAssignmentResponse | None:
        """Return this broker as a whole, or each of its queues for an ordered group.

        None when the request names another server as the client's access point.
        """
        if self.ports().isdisjoint(address.port for address in request.endpoints.addresses):
            return None
        topic = self.topic(request.topic.name)
        if not topic.readable:
            raise Forbidden(f"topic {topic.name} has no readable queue here")
        group = self.groups.get(request.group.name)
        queue_ids = range(topic.read_queues) if group is not None and group.fifo else (-1,)
        permission = permission_of(read=True, write=topic.writable and self.takes_messages)
        resource = v2.Resource(name=topic.name, resource_namespace=namespace_of(call, request.topic))
        response = messaging.QueryAssignmentResponse(status=OK)
        for queue_id in queue_ids:
            queue = self.queue(topic, queue_id, permission, resource, request.endpoints)
            response.assignments.add(message_queue=queue)
        return response
