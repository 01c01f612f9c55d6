"""The interface between connections that speak the remoting protocol and services. No I/O.

A *handler* gets the connection that a request came by (`Peer`) and the request, and returns

- a `Reply`, or
- a `Deferred` of one, which is completed later: flush, replica, long poll; or
- None: the request is not answered (RocketMQ leaves some so, though they are no oneway ones).

It runs on the loop's thread and never blocks it. A `WhimbrelError` becomes a reply with the error's
`remoting` code and its text. What is oneway is never answered, whatever its handler returns.

The server may send requests as well: `Peer.push` for those that nobody answers, `Peer.ask` for others.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol, TypeAlias

from whimbrel.deferred import Deferred
from whimbrel.errors import WhimbrelError
from whimbrel.rpc.remoting.codes import ResponseCode
from whimbrel.rpc.remoting.command import NO_FIELDS, Command
from whimbrel.rpc.remoting.json_header import encode_response

__all__ = ["Handle", "Outcome", "Peer", "Reply", "reply_to_error"]


@dataclass(slots=True)
class Reply:
    """The response to a request.

    Attributes:
        code: how it went (`codes.py`).
        fields: by name.
        body: its parts, in order; none for no body.
        remark: text for people.
    """

    code: int = ResponseCode.SUCCESS
    fields: Mapping[str, str] = field(default_factory=lambda: NO_FIELDS)
    body: Sequence[bytes | memoryview] = ()
    remark: str | None = None

    def header(self, opaque: int) -> bytes:
        """Return the header of the response to the request with this number."""
        return encode_response(self.code, opaque, self.fields, self.remark)


Outcome: TypeAlias = "Reply | Deferred[Reply] | None"


class Peer(Protocol):
    """A connection, as handlers see it; the same object for all of its requests, and a key of dicts.

    Attributes:
        peer: its address, `host:port`; IPv6 hosts in brackets.
        local: this server's address as it came to it, in the same form.
    """

    peer: str
    local: str

    @property
    def overloaded(self) -> bool:
        """Whether it leaves so much unread that large answers should wait."""

    def push(self, code: int, fields: Mapping[str, str], body: bytes = b"") -> bool:
        """Send a oneway request; return whether the connection is open and has room."""

    def ask(self, code: int, fields: Mapping[str, str], body: bytes, seconds: float) -> Deferred[Command]:
        """Send a request; return its response, or RequestTimeout or ConnectionClosed.

        Raises:
            Throttled: too many are under way on this connection.
        """

    def close(self) -> None:
        """End the connection, behind what is written."""


Handle: TypeAlias = Callable[[Peer, Command], Outcome]


def reply_to_error(error: WhimbrelError) -> Reply:
    """Return the response to a request that fails."""
    return Reply(error.remoting, remark=str(error))
