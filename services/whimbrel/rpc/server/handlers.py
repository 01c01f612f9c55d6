"""The interface between the server and services: calls as plain values, responses now or later.

A *handler* knows no transport. It gets a `Call` (peer, metadata, deadline) and the decoded request, and
returns

- the response message (or its bytes, `Encoded`), or
- a `Deferred`, which it (or a later stage) completes later: flush, replica, long poll.

An immediate response needs no task and no future. A handler for a response stream returns the whole list of
response messages (RocketMQ's streams are short), or a `Deferred` of such a list. Handlers run on the loop's
thread and never block it. When a handler raises a `WhimbrelError`, its method's `fail` turns that into the
response: the client API responds to an OK gRPC call with a `Status` in the body, our own services (no `fail`)
with a gRPC status.

A `PulledStreamMethod` is for streams that are long and large: its handler is an asynchronous generator, from
which the transport takes one response after it has written the one before. So a peer that reads slowly slows
the generator down, and nothing piles up. It is closed when the peer leaves.

Bidirectional streams (Telemetry, Session) get a `StreamHandler`: callbacks in, a bounded outbox out.

What is served by the remoting protocol is a `RemotingService`; what its handlers get and return is in
`rpc/remoting/handlers.py`.

Times are seconds of `time.monotonic()`.
"""

from collections.abc import AsyncGenerator, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

from whimbrel.rpc.remoting.handlers import Handle, Peer
from whimbrel.rpc.server.lanes import CallLane, RemotingLane
from whimbrel.rpc.server.request_limits import UNBOUNDED, RequestLimit, limit_of

__all__ = [
    "BidiMethod",
    "Call",
    "Encoded",
    "EncodedMany",
    "Method",
    "Outbox",
    "PulledStreamMethod",
    "RemotingService",
    "ServerStreamMethod",
    "Service",
    "StreamHandler",
    "UnaryMethod",
    "methods_by_path",
]


@dataclass(slots=True)
class Call:
    """One call as its handler sees it.

    Attributes:
        method: full gRPC path, `/package.Service/Method`.
        peer: address of the caller, `host:port`; IPv6 hosts in brackets.
        metadata: header names in lower case, to text values.
        deadline: when the caller stops waiting; None when it set none.
        trailers: trailing metadata that the handler adds before it responds.
    """

    method: str
    peer: str
    metadata: Mapping[str, str]
    deadline: float | None
    trailers: list[tuple[str, str]] = field(default_factory=list)


class Encoded:
    """A response that its handler has serialised already, where making a message first would cost more.

    Attributes:
        data: the message's bytes.
        status: the message's `Status`, for metrics.
    """

    __slots__ = ("data", "status")

    def __init__(self, data: bytes, status: Any) -> None:
        self.data, self.status = data, status

    def SerializeToString(self) -> bytes:
        """Return the bytes, as a message does."""
        return self.data


class EncodedMany:
    """Some of the responses of a `ServerStreamMethod`, serialised already.

    Attributes:
        framed: the bytes of each behind gRPC's prefix, one after the other.
        status: the `Status` of the first one, where a call's responses begin with it; for metrics.
    """

    __slots__ = ("framed", "status")

    def __init__(self, framed: bytes, status: Any = None) -> None:
        self.framed, self.status = framed, status


class Outbox(Protocol):
    """The sending half of a bidirectional stream. Bounded; never blocks."""

    def send(self, message: Any) -> bool:
        """Queue a message; return False, and drop it, when the stream is closed or its queue is full."""

    def close(self, error: Exception | None = None) -> None:
        """End the stream after what is queued, with a status when `error` is given."""


class StreamHandler(Protocol):
    """The receiving half of a bidirectional stream; `BidiMethod.open` makes one for each stream."""

    def received(self, message: Any) -> None:
        """Take one message from the peer. Raising ends the stream with the error's status."""

    def half_closed(self) -> None:
        """The peer sends no more; the usual reaction is `Outbox.close`."""

    def closed(self) -> None:
        """The stream is over, for whatever reason. Called exactly once, last."""


@dataclass(frozen=True, slots=True)
class UnaryMethod:
    """One request, one response."""

    name: str
    request: type[Any]
    handle: Callable[[Call, Any], Any]  # -> response | Deferred[response]
    fail: Callable[[Call, Exception], Any] | None = None  # error -> response; None: a gRPC status
    limit: RequestLimit = UNBOUNDED  # of all kinds: set by `methods_by_path`
    admit: Callable[[Call], None] | None = None  # called before the handler: notes the caller, or raises
    lane: CallLane | None = None  # takes the plain ones of its calls


@dataclass(frozen=True, slots=True)
class ServerStreamMethod:
    """One request, and several responses that the handler returns together."""

    name: str
    request: type[Any]
    handle: Callable[[Call, Any], Any]  # -> Sequence[response] | Deferred[Sequence[response]]
    fail: Callable[[Call, Exception], Sequence[Any]] | None = None
    limit: RequestLimit = UNBOUNDED
    admit: Callable[[Call], None] | None = None


@dataclass(frozen=True, slots=True)
class PulledStreamMethod:
    """One request, many responses, each made when the transport asks for it.

    An error that the generator raises ends the stream with its gRPC status, after what was sent.
    """

    name: str
    request: type[Any]
    open: Callable[[Call, Any], AsyncGenerator[Any, None]]
    limit: RequestLimit = UNBOUNDED


@dataclass(frozen=True, slots=True)
class BidiMethod:
    """Messages both ways for as long as it lasts (or one request in, and a long response stream)."""

    name: str
    request: type[Any]
    open: Callable[[Call, Outbox], StreamHandler]
    single_request: bool = False  # True: the client sends exactly one message (server streaming on the wire)
    limit: RequestLimit = UNBOUNDED


Method = UnaryMethod | ServerStreamMethod | PulledStreamMethod | BidiMethod


@dataclass(frozen=True, slots=True)
class Service:
    """A gRPC service as a list of methods; `name` is the full name, `apache.rocketmq.v2.MessagingService`."""

    name: str
    methods: tuple[Method, ...]


def nobody(peer: Peer) -> None:
    """Do nothing about a connection that has ended."""


@dataclass(frozen=True, slots=True)
class RemotingService:
    """What is served by the remoting protocol.

    Attributes:
        handles: by the code of the request.
        closed: called when a connection has ended, after its last request.
        lane: takes plain requests before them; None where nothing does.
    """

    handles: Mapping[int, Handle]
    closed: Callable[[Peer], None] = nobody
    lane: RemotingLane | None = None


def methods_by_path(services: Iterable[Service]) -> dict[str, Method]:
    """Return the methods of services by their full gRPC paths, each of which may be served once.

    They get the limits that `request_limits.py` has for their paths.
    """
    found: dict[str, Method] = {}
    for service in services:
        for method in service.methods:
            path = f"/{service.name}/{method.name}"
            assert path not in found, f"{path} is served twice"
            found[path] = replace(method, limit=limit_of(path, method.request))
    return found
