"""The nameserver's part of the client API: routes, and the calls that SDKs make before they have one.

QueryRoute and QueryAssignment are served from the registry, with addresses that the asking client can dial.
Heartbeat and NotifyClientTermination keep no state, Telemetry only who can be asked (`sessions.py`).
"""

from collections.abc import Callable, Collection
from typing import Any, TypeVar

from whimbrel.deferred import Deferred
from whimbrel.errors import Forbidden, WhimbrelError
from whimbrel.model.names import check_group, check_topic
from whimbrel.model.topic import READ, WRITE
from whimbrel.model.wire import CLIENT_PEER_HEADER, LANGUAGE_HEADER, MESSAGING_SERVICE, VERSION_HEADER
from whimbrel.nameserver.addresses import Access, Meanings, access_of, dial_address, host_of, scheme_of
from whimbrel.nameserver.calls import CallsForBrokers
from whimbrel.nameserver.registry import Registry, RouteEntry
from whimbrel.nameserver.resolver import Resolver
from whimbrel.nameserver.sessions import Sessions, TelemetryHandler
from whimbrel.pb.apache.rocketmq.v2 import definition_pb2 as v2
from whimbrel.pb.apache.rocketmq.v2 import service_pb2 as messaging
from whimbrel.rpc.server.credentials import IgnoredCredentials
from whimbrel.rpc.server.forwarder import Forwarder
from whimbrel.rpc.server.handlers import BidiMethod, Call, Outbox, Service, UnaryMethod
from whimbrel.rpc.server.lite import refuse_lite
from whimbrel.rpc.server.responses import (
    ACCEPTED,
    OK,
    check_client_id,
    check_endpoints,
    failing_with,
    namespace_of,
    permission_of,
)

__all__ = ["RoutesService"]

SCHEMES = {"IPv4": v2.IPv4, "IPv6": v2.IPv6, "DOMAIN_NAME": v2.DOMAIN_NAME}
# Ids below zero stand for all queues of a broker. The master has RocketMQ's, each slave its own, and so has
# each member of a group that elects its leader: Node's push consumer identifies queues by topic, broker name
# and this id, and would go on polling a dead master's address. Where all members are named, one id is theirs.
ANY_QUEUE = -1

# Languages, as SDKs name them, that take the addresses of an endpoint together for one gRPC target, HOST:PORT
# with commas between (RocketMQ: Endpoints.getGrpcTarget, nodejs 1.0.8, which calls itself HTTP). For gRPC
# that is one host name, unless it begins with a scheme, so the first host gets one. A producer of that SDK
# keeps the addresses of its first route: told the leader's alone, it waits for that member for ever. Versions
# that nobody has looked at may put a scheme before it themselves; they are told the leader alone.
ONE_TARGET = frozenset({"HTTP", "NODE_JS"})
ONE_TARGET_VERSIONS = ("1.0.",)
IPV4_TARGET = "ipv4:"

R = TypeVar("R")


class RoutesService:
    """`apache.rocketmq.v2.MessagingService` as far as a nameserver serves it; `service` is what to serve.

    Args:
        registry: the tables.
        own: gives the addresses of this machine's interfaces.
        resolver: knows what names in access points mean.
        now: gives the registry's time.
        route_members: whether a group that elects its leader is routed to all of its members.
    """

    def __init__(
        self,
        registry: Registry,
        *,
        own: Callable[[], Collection[str]],
        resolver: Resolver,
        now: Callable[[], float],
        route_members: bool = True,
    ) -> None:
        self.registry = registry
        self.own = own
        self.resolver = resolver
        self.now = now
        self.route_members = route_members
        self.forwarder = Forwarder()
        self.sessions = Sessions()
        self.calls = CallsForBrokers(registry, self.forwarder)
        self.credentials = IgnoredCredentials()
        self.service = Service(
            MESSAGING_SERVICE,
            (
                self.method("QueryRoute", self.query_route),
                self.method("QueryAssignment", self.query_assignment),
                self.method("Heartbeat", self.heartbeat),
                self.method("NotifyClientTermination", self.notify_client_termination),
                self.method("RecallMessage", self.recall),
                self.method("EndTransaction", self.end_transaction),
                self.method("SyncLiteSubscription", refuse_lite),
                BidiMethod("Telemetry", messaging.TelemetryCommand, self.open_telemetry),
            ),
        )

    @staticmethod
    def method(name: str, handle: Callable[[Call, Any], Any]) -> UnaryMethod:
        """Return a method whose errors are bodies."""
        request, response = getattr(messaging, f"{name}Request"), getattr(messaging, f"{name}Response")
        return UnaryMethod(name, request, handle, failing_with(response))

    def query_route(
        self, call: Call, request: messaging.QueryRouteRequest
    ) -> Deferred[messaging.QueryRouteResponse]:
        """Return a topic's queues on all brokers."""
        self.credentials.note(call, self.now())
        check_client_id(call)
        check_topic(request.topic.name)
        check_endpoints(request.endpoints)
        return self.respond(call, request.endpoints, lambda access: self.routes(call, request, access))

    def routes(
        self, call: Call, request: messaging.QueryRouteRequest, access: Access
    ) -> messaging.QueryRouteResponse:
        """Return a topic's queues on all brokers, with addresses that the client can dial."""
        response = messaging.QueryRouteResponse(status=OK)
        resource = v2.Resource(name=request.topic.name, resource_namespace=namespace_of(call, request.topic))
        for entry in self.registry.route(request.topic.name, self.now()):
            broker, _ = self.broker(call, entry, access)
            for queue_id, permission in enumerate(queue_permissions(entry)):
                response.message_queues.add(
                    topic=resource,
                    id=queue_id,
                    permission=permission,
                    broker=broker,
                    accept_message_types=ACCEPTED.get(entry.queues.message_type, ACCEPTED["NORMAL"]),
                )
        return response

    def query_assignment(
        self, call: Call, request: messaging.QueryAssignmentRequest
    ) -> Deferred[messaging.QueryAssignmentResponse]:
        """Assign every readable broker as a whole: only the brokers know which groups are ordered."""
        check_client_id(call)
        check_topic(request.topic.name)
        check_group(request.group.name)
        check_endpoints(request.endpoints)
        return self.respond(call, request.endpoints, lambda access: self.assignments(call, request, access))

    def assignments(
        self, call: Call, request: messaging.QueryAssignmentRequest, access: Access
    ) -> messaging.QueryAssignmentResponse:
        """Return the assignments, with addresses that the client can dial."""
        response = messaging.QueryAssignmentResponse(status=OK)
        resource = v2.Resource(name=request.topic.name, resource_namespace=namespace_of(call, request.topic))
        for entry in self.registry.route(request.topic.name, self.now()):
            queues = entry.queues
            if not queues.permission & READ or queues.read_queues <= 0:
                continue
            writable = bool(queues.permission & WRITE) and queues.write_queues > 0
            broker, whole = self.broker(call, entry, access)
            response.assignments.add().message_queue.CopyFrom(
                v2.MessageQueue(
                    topic=resource,
                    id=ANY_QUEUE if whole else ANY_QUEUE - (entry.broker.member_id or entry.broker.id),
                    permission=permission_of(read=True, write=writable),
                    broker=broker,
                    accept_message_types=ACCEPTED.get(queues.message_type, ACCEPTED["NORMAL"]),
                )
            )
        if not response.assignments:
            raise Forbidden(f"topic {request.topic.name} has no readable queue")
        return response

    def end_transaction(self, call: Call, request: messaging.EndTransactionRequest) -> Deferred[Any]:
        """Hand a decision on to the broker that has the transaction."""
        self.sessions.ended(check_client_id(call), request.topic.name)
        return self.calls.end(call, request, self.now())

    def recall(self, call: Call, request: messaging.RecallMessageRequest) -> Deferred[Any]:
        """Hand the call on to the broker that has the message."""
        return self.calls.recall(call, request, self.now())

    def respond(
        self, call: Call, endpoints: v2.Endpoints, make_response: Callable[[Access], R]
    ) -> Deferred[R]:
        """Respond once it is known how the client came: at once, unless a name must be looked up."""
        hosts = [address.host for address in endpoints.addresses]
        peer = host_of(call.metadata.get(CLIENT_PEER_HEADER) or call.peer)
        deferred: Deferred[R] = Deferred()

        def then(meanings: Meanings) -> None:
            brokers = self.registry.peers()
            access = access_of(hosts, peer=peer, own=self.own(), meanings=meanings, brokers=brokers)
            try:
                deferred.complete(make_response(access))
            except WhimbrelError as error:
                deferred.fail(error)

        self.resolver.when_known(hosts, then)
        return deferred

    def broker(self, call: Call, entry: RouteEntry, access: Access) -> tuple[v2.Broker, bool]:
        """Return the broker with addresses that the client can dial; SDKs use id 0 only.

        SDKs take several addresses of one endpoint if these are IP addresses of one kind, Node.js those of
        version 4 only. Where those of all members are not, the leader's stands alone.

        Returns:
            The broker, and whether an assignment to it stays the same whoever leads: one to all members of a
            group that elects its leader. Not for Node.js, whose push consumer leaves one that hangs by that.
        """
        own = self.own()
        one_target = call.metadata.get(LANGUAGE_HEADER) in ONE_TARGET
        known = call.metadata.get(VERSION_HEADER, "").startswith(ONE_TARGET_VERSIONS)
        named = entry.members if self.route_members and (known or not one_target) else ()
        members = named or (entry.broker,)
        dialled = [dial_address(member.address, access, own) for member in members]
        schemes = {scheme_of(host) for host, _ in dialled}
        whole = bool(named) and schemes in ([{"IPv4"}] if one_target else [{"IPv4"}, {"IPv6"}])
        # Behind a published port several may look the same.
        addresses = list(dict.fromkeys(dialled if whole else dialled[:1]))
        endpoints = v2.Endpoints(
            scheme=SCHEMES[scheme_of(addresses[0][0])],
            addresses=[v2.Address(host=host, port=port) for host, port in addresses],
        )
        if one_target and len(addresses) > 1:
            endpoints.addresses[0].host = IPV4_TARGET + endpoints.addresses[0].host
        return v2.Broker(name=entry.broker.name, id=0, endpoints=endpoints), whole and not one_target

    def open_telemetry(self, call: Call, outbox: Outbox) -> TelemetryHandler:
        """Take a new Telemetry stream."""
        self.credentials.note(call, self.now())
        return self.sessions.open(call, outbox)

    def heartbeat(self, call: Call, request: messaging.HeartbeatRequest) -> messaging.HeartbeatResponse:
        """Return OK; brokers keep track of clients, the nameserver does not."""
        check_client_id(call)
        return messaging.HeartbeatResponse(status=OK)

    def notify_client_termination(
        self, call: Call, request: messaging.NotifyClientTerminationRequest
    ) -> messaging.NotifyClientTerminationResponse:
        """Return OK; there is nothing to forget."""
        check_client_id(call)
        return messaging.NotifyClientTerminationResponse(status=OK)


def queue_permissions(entry: RouteEntry) -> list[Any]:
    """Return a permission for each queue: first those of both kinds, then the surplus of either kind."""
    queues = entry.queues
    readable = queues.read_queues if queues.permission & READ else 0
    writable = queues.write_queues if queues.permission & WRITE else 0
    return [
        permission_of(read=queue_id < readable, write=queue_id < writable)
        for queue_id in range(max(queues.read_queues, queues.write_queues))
    ]
