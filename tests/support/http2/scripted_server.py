"""A gRPC server of a few lines on the sans-IO core, for tests of clients: a script answers each event."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any, cast

from whimbrel.rpc.http2.connection import Connection
from whimbrel.rpc.http2.grpc_format import OK_TRAILERS, RESPONSE_HEADERS, prefixed
from whimbrel.rpc.http2.stream import Data, Limits, Stream

Script = Callable[["Peer", Any], None]


class Peer(asyncio.Protocol):
    """One connection.

    Attributes:
        number: of connections before this one.
        events: all that came, for checks afterwards.
        mute: nothing is written any more.
        reads: gives back what was received.
    """

    def __init__(self, listening: "Listening") -> None:
        self.listening = listening
        self.number = len(listening.peers)
        listening.peers.append(self)
        self.conn = Connection(server=True, limits=listening.limits)
        self.transport: asyncio.Transport = None  # type: ignore[assignment]
        self.events: list[Any] = []
        self.mute = listening.mute
        self.reads = True
        self.lost = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Send the settings."""
        self.transport = cast(asyncio.Transport, transport)
        self.flush()

    def data_received(self, data: bytes) -> None:
        """Let the script answer."""
        for event in self.conn.receive(data):
            self.events.append(event)
            if isinstance(event, Data) and self.reads:
                self.conn.consumed(event.stream, event.size)
            self.listening.script(self, event)
        self.flush()

    def connection_lost(self, error: Exception | None) -> None:
        """Note it."""
        self.lost = True

    def flush(self) -> None:
        """Write what there is."""
        data = self.conn.take()
        if data and not self.mute:
            self.transport.write(data)

    def begin(self, stream: Stream) -> None:
        """Send the first headers."""
        self.conn.send_headers(stream, RESPONSE_HEADERS)

    def answer(self, stream: Stream, *messages: bytes, last: bytes = OK_TRAILERS) -> None:
        """Answer a call, and end it."""
        self.begin(stream)
        for message in messages:
            self.conn.send_data(stream, prefixed(message))
        self.conn.send_headers(stream, last, end=True)

    def of(self, kind: type[Any]) -> list[Any]:
        """Return the events of one kind."""
        return [event for event in self.events if type(event) is kind]


class Listening:
    """Where peers are to be reached, and those that were."""

    def __init__(self, script: Script, limits: Limits, *, mute: bool) -> None:
        self.script, self.limits, self.mute = script, limits, mute
        self.peers: list[Peer] = []
        self.address = ""


@asynccontextmanager
async def listening(
    script: Script = lambda peer, event: None, *, limits: Limits | None = None, mute: bool = False
) -> AsyncIterator[Listening]:
    """Serve by a script."""
    made = Listening(script, limits or Limits(), mute=mute)
    server = await asyncio.get_running_loop().create_server(lambda: Peer(made), "127.0.0.1", 0)
    made.address = f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
    try:
        yield made
    finally:
        server.close()
        for peer in made.peers:
            peer.transport.abort()


def echo(peer: Peer, event: Any) -> None:
    """Answer each request with itself, prefix and all."""
    if isinstance(event, Data) and event.ended:
        peer.answer(event.stream, event.data[5:])
