"""What both ways of serving share (`server.py`, `native.py`): bounds, what errors become, what is counted."""

import logging
from collections.abc import Callable, Sequence
from typing import Any, Protocol

from whimbrel.errors import WhimbrelError
from whimbrel.model.limits import RPC_MESSAGE_BYTES_MAX
from whimbrel.rpc.server.handlers import Call, Service

__all__ = [
    "HELD_BYTES_MAX",
    "OUTBOX_BYTES_MAX",
    "OUTBOX_MESSAGES_MAX",
    "STOP_GRACE_S",
    "UNREAD_BYTES_MAX",
    "Guard",
    "OnCallEnd",
    "OpenStreams",
    "RunningServer",
    "body_code",
    "known_error",
]

# Messages that may wait for one stream's peer. Telemetry commands are few; a journal stream batches. A peer
# so far behind is hung, or does not read at all (the Python SDK's push consumer), and what it misses it must
# be able to ask for again.
OUTBOX_MESSAGES_MAX = 1024
OUTBOX_BYTES_MAX = (
    16 * 1024 * 1024
)  # so that a thousand hung peers can't eat the machine; one message may be larger

# Answers that one connection may leave unread; each may have 4 MiB, and the transport holds them a second
# time. Who does not read gets no more until it does; others are not concerned. Behind grpcio, which tells
# nothing of what it holds, only answers of several messages count.
UNREAD_BYTES_MAX = 32 * 1024 * 1024

# What one connection may have sent of requests that are not whole, over all of its streams: two of the
# largest ones at the same time, or sixty of 4 MiB. grpcio has no such bound.
HELD_BYTES_MAX = 2 * RPC_MESSAGE_BYTES_MAX

STOP_GRACE_S = 1.0  # calls that have not ended by then are cancelled

log = logging.getLogger(__name__)

# Called at the end of each call with the method's name, how the call ended, whether the response was
# deferred, and the seconds it took. How it ended is the code of a `Status` in the body, or the name of a gRPC
# status.
OnCallEnd = Callable[[str, int | str, bool, float], None]

# What is asked before each call's handler, streams included: who may not make the call gets the error that it
# raises (Forbidden, say), as if the handler had. It must not block.
Guard = Callable[[Call], None]


class OpenStreams(Protocol):
    """Streams that last."""

    open_by_method: dict[str, int]


class RunningServer(Protocol):
    """A server that takes calls. `port` is the real one, also when any free one was asked for."""

    @property
    def host(self) -> str:
        """What it was bound to."""

    @property
    def port(self) -> int:
        """Where it listens."""

    @property
    def streams(self) -> OpenStreams:
        """What is counted of its streams."""

    @property
    def address(self) -> str:
        """Return `host:port` as it was bound."""

    def replace(self, services: Sequence[Service]) -> None:
        """Serve these services of the same names from the next call on; calls that have begun go on."""

    async def stop(self, grace: float = STOP_GRACE_S) -> None:
        """Take no new calls, end the streams, and give calls in flight `grace` seconds.

        Whoever holds `Deferred` answers completes them first, else their callers wait for the grace to end.
        """


def known_error(call: Call, error: Exception) -> WhimbrelError:
    """Return the error to answer with; a bug is logged, and its text stays here."""
    if isinstance(error, WhimbrelError):
        return error
    log.error("%s from %s failed", call.method, call.peer, exc_info=error)
    return WhimbrelError("internal error; the server's log says more")


def body_code(response: Any) -> int:
    """Return the code of the `Status` in an answer of the client API; a list's is in its first message."""
    first = response[0] if type(response) is list else response
    return first.status.code  # type: ignore[no-any-return]
