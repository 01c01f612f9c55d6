"""`apache.rocketmq.v2.MessagingService` of a broker: which handler serves which call.

Every call names its client, and the first one registers it. Errors become the `Status` of the call's own
response, and the gRPC status stays OK. NotMaster comes with a trailer that says where the leader serves.
"""

from collections.abc import Callable, Mapping
from typing import Any

from whimbrel.broker.api.receive import ReceiveService
from whimbrel.broker.api.route import RouteService
from whimbrel.broker.api.send import SendService
from whimbrel.broker.api.session import SessionService
from whimbrel.broker.tables.clients import Clients
from whimbrel.errors import NotMaster
from whimbrel.model.wire import CLIENT_ID_HEADER, LEADER_TRAILER, MESSAGING_SERVICE
from whimbrel.pb.apache.rocketmq.v2 import service_pb2 as messaging
from whimbrel.rpc.server.handlers import BidiMethod, Call, ServerStreamMethod, Service, UnaryMethod
from whimbrel.rpc.server.lane_calls import CallLane
from whimbrel.rpc.server.lite import refuse_lite
from whimbrel.rpc.server.responses import check_client_id, failing_with, status_of

__all__ = ["Handle", "messaging_service"]


Handle = Callable[[Call, Any], Any]
Fail = Callable[[Call, Exception], Any]


def messaging_service(
    *,
    routes: RouteService,
    sends: SendService,
    receives: ReceiveService,
    sessions: SessionService,
    clients: Clients,
    special: Mapping[str, Handle],
    clock: Callable[[], float],
    leader: Callable[[], str] = str,
    call_lane: CallLane | None = None,
) -> Service:
    """Return the service for the transport.

    Args:
        routes, sends, receives, sessions: handle their calls.
        clients: the known clients.
        special: the calls about messages that are not plain ones, by name.
        clock: seconds of the monotonic clock.
        leader: where the group's leader serves, `host:port`; "" where nobody knows, or this broker leads.
        call_lane: takes plain sends and acknowledgements.
    """

    known = clients.clients

    def admit(call: Call) -> None:
        """Note that a client is alive."""
        client = known.get(call.metadata.get(CLIENT_ID_HEADER, ""))
        if client is None:
            clients.seen(check_client_id(call), call.metadata, clock())
        else:
            client.last_seen = clock()

    def naming_leader(fail: Fail) -> Fail:
        def failed(call: Call, error: Exception) -> Any:
            if isinstance(error, NotMaster) and (address := leader()):
                call.trailers.append((LEADER_TRAILER, address))
            return fail(call, error)

        return failed

    def query_route(call: Call, request: Any) -> Any:
        sessions.credentials.note(call, clock())
        return routes.query_route(call, request)

    def unary(name: str, handle: Handle, lane: CallLane | None = None) -> UnaryMethod:
        response = getattr(messaging, f"{name}Response")
        return UnaryMethod(
            name,
            getattr(messaging, f"{name}Request"),
            handle,
            naming_leader(failing_with(response)),
            admit=admit,
            lane=lane,
        )

    return Service(
        MESSAGING_SERVICE,
        (
            unary("QueryRoute", query_route),
            unary("QueryAssignment", routes.query_assignment),
            unary("Heartbeat", sessions.heartbeat),
            unary("NotifyClientTermination", sessions.terminate),
            BidiMethod("Telemetry", messaging.TelemetryCommand, sessions.open_telemetry),
            unary("SendMessage", sends.send, call_lane),
            ServerStreamMethod(
                "ReceiveMessage",
                messaging.ReceiveMessageRequest,
                receives.receive,
                naming_leader(receives.receive_failed),
                admit=admit,
            ),
            unary("AckMessage", receives.acknowledge),
            unary("ChangeInvisibleDuration", receives.change_invisible),
            ServerStreamMethod(
                "PullMessage",
                messaging.PullMessageRequest,
                receives.pull,
                naming_leader(lambda call, error: [messaging.PullMessageResponse(status=status_of(error))]),
                admit=admit,
            ),
            unary("UpdateOffset", receives.update_offset),
            unary("GetOffset", receives.get_offset),
            unary("QueryOffset", receives.query_offset),
            unary("SyncLiteSubscription", refuse_lite),
            *(unary(name, handle) for name, handle in special.items()),
        ),
    )
