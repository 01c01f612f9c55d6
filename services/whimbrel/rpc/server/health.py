"""The standard health service, `grpc.health.v1.Health`: Check and Watch.

A service of this server is SERVING until the server stops. The empty name stands for the whole server.
"""

from collections.abc import Iterable

from grpc_health.v1 import health_pb2

from whimbrel.errors import WhimbrelError
from whimbrel.rpc.server.handlers import BidiMethod, Call, Outbox, Service, UnaryMethod

__all__ = ["Health", "ServiceUnknown"]

SERVING = health_pb2.HealthCheckResponse.SERVING
NOT_SERVING = health_pb2.HealthCheckResponse.NOT_SERVING
SERVICE_UNKNOWN = health_pb2.HealthCheckResponse.SERVICE_UNKNOWN

NAME_CHARS_SHOWN = 128  # of a name that came from outside


class ServiceUnknown(WhimbrelError):
    """The server has no service of that name."""

    reason = "SERVICE_UNKNOWN"
    grpc = "NOT_FOUND"
    effect = "none"


class Health:
    """The state behind the health service; `service` is what to serve."""

    def __init__(self, names: Iterable[str]) -> None:
        self.names = {"", *names}
        self.serving = True
        self.watchers: dict[Outbox, str] = {}
        request = health_pb2.HealthCheckRequest
        self.service = Service(
            "grpc.health.v1.Health",
            (
                UnaryMethod("Check", request, self.check),
                BidiMethod("Watch", request, lambda _, outbox: Watcher(self, outbox), single_request=True),
            ),
        )

    def status(self, name: str) -> health_pb2.HealthCheckResponse:
        """Return the state of a service as a response."""
        if name not in self.names:
            return health_pb2.HealthCheckResponse(status=SERVICE_UNKNOWN)
        return health_pb2.HealthCheckResponse(status=SERVING if self.serving else NOT_SERVING)

    def check(self, call: Call, request: health_pb2.HealthCheckRequest) -> health_pb2.HealthCheckResponse:
        """Return a service's state."""
        if request.service not in self.names:
            raise ServiceUnknown(f"no service {request.service[:NAME_CHARS_SHOWN]!r} here")
        return self.status(request.service)

    def stop(self) -> None:
        """Report to all watchers that the server stops."""
        self.serving = False
        for outbox, name in self.watchers.items():
            outbox.send(self.status(name))


class Watcher:
    """One Watch stream: gets the state now, and whenever it changes."""

    def __init__(self, health: Health, outbox: Outbox) -> None:
        self.health = health
        self.outbox = outbox

    def received(self, message: health_pb2.HealthCheckRequest) -> None:
        """Start to watch."""
        self.health.watchers[self.outbox] = message.service
        self.outbox.send(self.health.status(message.service))

    def half_closed(self) -> None:
        """Not called: the stream has a single request."""

    def closed(self) -> None:
        """Stop to watch."""
        self.health.watchers.pop(self.outbox, None)
