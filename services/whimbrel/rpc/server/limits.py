"""What a server shares with those who start it: bounds, hooks, and what errors become."""

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from whimbrel.errors import WhimbrelError
from whimbrel.model.limits import RPC_MESSAGE_BYTES_MAX
from whimbrel.rpc.server.handlers import Call, RemotingService, Service

if TYPE_CHECKING:
    from whimbrel.rpc.server.admission import Admission
    from whimbrel.rpc.server.budget import ProcessBudget

__all__ = [
    "HELD_BYTES_MAX",
    "OUTBOX_BYTES_MAX",
    "OUTBOX_MESSAGES_MAX",
    "PROCESS_BYTES_MAX",
    "STOP_GRACE_S",
    "UNREAD_BYTES_MAX",
    "Guard",
    "HeaderGuard",
    "OnCallEnd",
    "OnRequestEnd",
    "OpenStreams",
    "RunningServer",
    "ServerLoad",
    "body_code",
    "known_error",
]

# Messages that may wait for the peer of one stream. Telemetry commands are few, and lease streams batch. A
# peer so far behind hangs, or never reads (the Python SDK's push consumer); it must be able to ask again for
# what it misses.
OUTBOX_MESSAGES_MAX = 1024
OUTBOX_BYTES_MAX = 16 * 1024 * 1024  # so that a thousand hung peers are survivable; one message may be larger

# Bytes of responses that one connection may leave unread; each response may have 4 MiB, and the transport
# holds them a second time. A peer that does not read gets no more until it does; others are not concerned.
UNREAD_BYTES_MAX = 32 * 1024 * 1024

# Bytes of incomplete requests that one connection may have sent, over all of its streams: two of the largest
# ones at the same time, or sixty of 4 MiB.
HELD_BYTES_MAX = 2 * RPC_MESSAGE_BYTES_MAX

# Bytes that all connections of a process may hold together: incomplete requests, responses that nobody reads,
# open calls. Two connections may each be in the middle of their 48 sends of 4 MiB.
PROCESS_BYTES_MAX = 512 * 1024 * 1024

STOP_GRACE_S = 1.0  # calls that have not ended by then are cancelled

logger = logging.getLogger(__name__)

# Called at the end of each call with the method's name, how the call ended, whether the response was
# deferred, and the seconds it took. How it ended is the code of a `Status` in the body, or the name of a gRPC
# status.
OnCallEnd = Callable[[str, int | str, bool, float], None]

# Called at the end of requests of the remoting protocol with their code, that of the responses, whether they
# were deferred, the seconds that they took, and how many they were.
OnRequestEnd = Callable[[int, int, bool, float, int], None]

# Called before each call's handler, streams included. The error that it raises (Forbidden, say) becomes the
# response, as if the handler had raised it. It must not block.
Guard = Callable[[Call], None]


@dataclass(eq=False, slots=True)
class HeaderGuard:
    """A guard that decides by the method and by some headers, so that what it has let in may be remembered.

    The compiled lane takes calls with the same headers as one that was let in, and leaves all others to
    Python. Any other guard keeps the lane out.

    Attributes:
        decide: the guard. headers: all that it looks at, but for the method.
        generation: another number whenever it may decide otherwise than before; nothing is remembered then.
    """

    decide: Guard
    headers: tuple[str, ...]
    generation: int = 0

    def __call__(self, call: Call) -> None:
        """Raise what refuses the call."""
        self.decide(call)


class OpenStreams(Protocol):
    """Counts of the streams that are open."""

    open_by_method: dict[str, int]


@dataclass(frozen=True, slots=True)
class ServerLoad:
    """The connections of a server, and what they hold."""

    admission: "Admission"
    budget: "ProcessBudget[Any]"


class RunningServer(Protocol):
    """A server that takes calls. `port` is the bound one, also when 0 was asked for."""

    @property
    def host(self) -> str:
        """The host that it was bound to."""

    @property
    def port(self) -> int:
        """The port that it listens on."""

    @property
    def extra_ports(self) -> tuple[int, ...]:
        """Other ports on which it listens as well; also bound ones."""

    @property
    def streams(self) -> OpenStreams:
        """Counts of its streams."""

    @property
    def load(self) -> "ServerLoad":
        """What its connections are and hold."""

    @property
    def address(self) -> str:
        """Return `host:port` as it was bound."""

    def replace(self, services: Sequence[Service], remoting: RemotingService | None = None) -> None:
        """Serve these services of the same names from the next call on; calls that have begun go on.

        Args:
            remoting: what is served by the remoting protocol from then on.
        """

    async def stop(self, grace: float = STOP_GRACE_S) -> None:
        """Take no new calls, end the streams, and give calls in flight `grace` seconds.

        Holders of a `Deferred` should complete it before, else its caller waits until the grace has passed.
        """


def known_error(call: Call, error: Exception) -> WhimbrelError:
    """Return the error to respond with; an unexpected one is logged, and its text stays here."""
    if isinstance(error, WhimbrelError):
        return error
    logger.error("%s from %s failed", call.method, call.peer, exc_info=error)
    return WhimbrelError("internal error; the server's log says more")


def body_code(response: Any) -> int:
    """Return the code of the `Status` in a response of the client API; a list's is in its first message."""
    first = response[0] if type(response) is list else response
    return first.status.code  # type: ignore[no-any-return]
