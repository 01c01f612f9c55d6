"""`apache.rocketmq.v2.MessagingService` of a broker: which handler serves which call.

Every call names its client, and the first one registers it. Errors become the `Status` of the call's own
response, and the gRPC status stays OK. NotMaster comes with a trailer that says where the leader serves.
"""

from collections.abc import Callable, Mapping
from typing import Any

from whimbrel.broker.api.positions import PositionService
from whimbrel.broker.api.pulls import PullService
from whimbrel.broker.api.receive import ReceiveService
from whimbrel.broker.api.route import RouteService
from whimbrel.broker.api.send import SendService
from whimbrel.broker.api.session import SessionService
from whimbrel.broker.api.settle import SettleService
from whimbrel.broker.tables.clients import Clients
from whimbrel.errors import NotMaster
from whimbrel.model.wire import CLIENT_ID_HEADER, LEADER_TRAILER, MESSAGING_SERVICE
from whimbrel.pb.apache.rocketmq.v2 import service_pb2 as messaging
from whimbrel.rpc.server.handlers import BidiMethod, Call, ServerStreamMethod, Service, UnaryMethod
from whimbrel.rpc.server.lanes import CallLane
from whimbrel.rpc.server.lite import refuse_lite
from whimbrel.rpc.server.responses import check_client_id, failing_with, status_of

__all__ = ["Handle", "messaging_service"]


Handle = Callable[[Call, Any], Any]
Fail = Callable[[Call, Exception], Any]


class Methods:
    """Makes methods whose callers are noted as alive, and told where the leader serves."""

    def __init__(self, clients: Clients, clock: Callable[[], float], leader: Callable[[], str]) -> None:
        """See `messaging_service`."""
        self.clients, self.known, self.clock, self.leader = clients, clients.clients, clock, leader

    def admit(self, call: Call) -> None:
        """Note that a client is alive."""
        client = self.known.get(call.metadata.get(CLIENT_ID_HEADER, ""))
        if client is None:
            self.clients.seen(check_client_id(call), call.metadata, self.clock())
        else:
            client.last_seen = self.clock()

    def naming_leader(self, fail: Fail) -> Fail:
        """Return what words an error, with the leader's address where another member leads."""

        def failed(call: Call, error: Exception) -> Any:
            if isinstance(error, NotMaster) and (address := self.leader()):
                call.trailers.append((LEADER_TRAILER, address))
            return fail(call, error)

        return failed

    def unary(self, name: str, handle: Handle, lane: CallLane | None = None) -> UnaryMethod:
        """Return a method of one answer."""
        fail = self.naming_leader(failing_with(getattr(messaging, f"{name}Response")))
        request = getattr(messaging, f"{name}Request")
        return UnaryMethod(name, request, handle, fail, admit=self.admit, lane=lane)

    def stream(self, name: str, handle: Handle, fail: Fail) -> ServerStreamMethod:
        """Return a method of many answers."""
        request = getattr(messaging, f"{name}Request")
        return ServerStreamMethod(name, request, handle, self.naming_leader(fail), admit=self.admit)


def messaging_service(
    *,
    routes: RouteService,
    sends: SendService,
    receives: ReceiveService,
    settles: SettleService,
    pulls: PullService,
    positions: PositionService,
    sessions: SessionService,
    clients: Clients,
    special: Mapping[str, Handle],
    clock: Callable[[], float],
    leader: Callable[[], str] = str,
    call_lane: CallLane | None = None,
) -> Service:
    """Return the service for the transport.

    Args:
        routes, sends, receives, settles, pulls, positions, sessions: handle their calls.
        clients: the known clients.
        special: by name, calls about messages that are not plain ones, and those that this broker refuses.
        clock: seconds of the monotonic clock.
        leader: where the group's leader serves, `host:port`; "" where nobody knows, or this broker leads.
        call_lane: takes plain sends and acknowledgements.
    """
    methods = Methods(clients, clock, leader)

    def query_route(call: Call, request: Any) -> Any:
        sessions.credentials.note(call, clock())
        return routes.query_route(call, request)

    def pull_failed(call: Call, error: Exception) -> Any:
        return [messaging.PullMessageResponse(status=status_of(error))]

    handlers = {
        "QueryRoute": query_route,
        "QueryAssignment": routes.query_assignment,
        "Heartbeat": sessions.heartbeat,
        "NotifyClientTermination": sessions.terminate,
        "AckMessage": settles.acknowledge,
        "ChangeInvisibleDuration": settles.change_invisible,
        "ForwardMessageToDeadLetterQueue": settles.forward,
        "UpdateOffset": positions.update_offset,
        "GetOffset": positions.get_offset,
        "QueryOffset": positions.query_offset,
        "SyncLiteSubscription": refuse_lite,
        **special,
    }
    return Service(
        MESSAGING_SERVICE,
        (
            *(methods.unary(name, handle) for name, handle in handlers.items()),
            methods.unary("SendMessage", sends.send, call_lane),
            BidiMethod("Telemetry", messaging.TelemetryCommand, sessions.open_telemetry),
            methods.stream("ReceiveMessage", receives.receive, receives.receive_failed),
            methods.stream("PullMessage", pulls.pull, pull_failed),
        ),
    )
