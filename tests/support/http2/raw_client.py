"""A gRPC client that shows everything: raw messages over our own HTTP/2 core, every response counted.

    client = await Client.connect("127.0.0.1:8091")
    call = client.call("/apache.rocketmq.v2.MessagingService/SendMessage", request, timeout_s=3)
    await call.ended()
    call.status, call.messages

What a server may not do is an assertion that fails: data for a call that has ended, a second response, a
message cut short, frames that break the rules of HTTP/2.
"""

import asyncio
from collections.abc import Sequence
from typing import Self, cast

from support.http2.frames import block, status_of
from whimbrel.rpc.http2.connection import Connection
from whimbrel.rpc.http2.errors import Code
from whimbrel.rpc.http2.grpc_format import Assembler, prefixed
from whimbrel.rpc.http2.stream import Data, Drained, Event, GoAway, Headers, Limits, Reset, Stream

__all__ = ["CANCELLED", "LOST", "Client", "RawCall"]

LOST = -1  # the connection went before the answer came
CANCELLED = -2  # by `RawCall.cancel`
ANSWER_BYTES_MAX = 256 << 20
ANSWER_S = 60.0  # without an answer for as long, it is missing


class RawCall:
    """One call.

    Attributes:
        messages: that have come.
        status: its gRPC status, LOST or CANCELLED; None until it has ended.
    """

    def __init__(self, client: "Client", stream: Stream, path: str) -> None:
        self.client, self.stream, self.path = client, stream, path
        self.messages: list[bytes] = []
        self.status: int | None = None
        self.assembler = Assembler(ANSWER_BYTES_MAX)
        self.changed = asyncio.Event()

    def send(self, message: bytes, *, end: bool = False) -> None:
        """Send a message."""
        self.client.conn.send_data(self.stream, prefixed(message), end=end)
        self.client.write()

    def half_close(self) -> None:
        """Send no more."""
        self.client.conn.send_data(self.stream, b"", end=True)
        self.client.write()

    def cancel(self) -> None:
        """Leave the call."""
        if self.status is None:
            self.client.conn.reset(self.stream, Code.CANCEL)
            self.client.calls.pop(self.stream.id, None)
            self.client.write()
            self.end(CANCELLED)

    def end(self, status: int) -> None:
        """Note how it ended."""
        assert self.status is None, f"{self.path}: answered with {self.status}, and then with {status}"
        self.status = status
        self.changed.set()

    async def next(self, count: int) -> None:
        """Wait until so many messages have come, or it has ended."""
        async with asyncio.timeout(ANSWER_S):
            while len(self.messages) < count and self.status is None:
                self.changed.clear()
                await self.changed.wait()

    async def ended(self) -> Self:
        """Wait for its end."""
        try:
            await self.next(1 << 62)
        except TimeoutError:
            raise AssertionError(f"{self.path}: no answer within {ANSWER_S} s") from None
        return self


class Client(asyncio.Protocol):
    """One connection."""

    def __init__(self, limits: Limits) -> None:
        self.conn = Connection(server=False, limits=limits)
        self.calls: dict[int, RawCall] = {}
        self.transport: asyncio.Transport = None  # type: ignore[assignment]
        self.going = self.lost = False
        self.loop: asyncio.AbstractEventLoop = None  # type: ignore[assignment]
        self.headers: list[tuple[bytes, bytes]] = []
        self.fault: AssertionError | None = None

    @classmethod
    async def connect(
        cls, address: str, headers: Sequence[tuple[str, str]] = (), limits: Limits | None = None
    ) -> Self:
        """Connect; `headers` go with every call."""
        host, _, port = address.rpartition(":")
        loop = asyncio.get_running_loop()
        _, client = await loop.create_connection(lambda: cls(limits or Limits()), host, int(port))
        client.loop = loop
        client.headers = [(name.encode(), value.encode()) for name, value in headers]
        return client

    def call(
        self, path: str, request: bytes | None, *, timeout_s: float | None = None, end: bool = True
    ) -> RawCall:
        """Begin a call; without a request its stream stays open."""
        self.check()
        more = list(self.headers)
        if timeout_s is not None:
            more.append((b"grpc-timeout", b"%dm" % max(timeout_s * 1000, 1)))
        stream = self.conn.request()
        call = self.calls[stream.id] = RawCall(self, stream, path)
        self.conn.send_headers(stream, block(path, more))
        if request is not None:
            self.conn.send_data(stream, prefixed(request), end=end)
        self.write()
        return call

    def check(self) -> None:
        """Raise what the server did wrong."""
        if self.fault is not None:
            raise self.fault

    def write(self) -> None:
        """Write what there is."""
        if not self.lost and (data := self.conn.take()):
            self.transport.write(data)

    def close(self) -> None:
        """End the connection, and what is open on it."""
        self.transport.abort()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Begin."""
        self.transport = cast(asyncio.Transport, transport)
        self.write()

    def data_received(self, data: bytes) -> None:
        """Take what comes."""
        try:
            for event in self.conn.receive(data):
                self.handle(event)
            assert self.conn.error is None, f"the server broke a rule: {self.conn.error}"
        except AssertionError as error:
            self.fault = error
            self.transport.abort()
        self.write()

    def handle(self, event: Event) -> None:
        """Take one event."""
        if isinstance(event, GoAway):
            self.going = True
        if not isinstance(event, Data | Headers | Reset):
            assert isinstance(event, GoAway | Drained), event
            return
        call = self.calls[event.stream.id]
        if isinstance(event, Data):
            self.conn.consumed(event.stream, event.size)
            assert call.status is None, f"{call.path}: more after its end"
            call.messages += call.assembler.feed(event.data)
            assert not event.ended, f"{call.path}: no trailers"
            call.changed.set()
        elif isinstance(event, Headers) and event.ended:
            assert not call.assembler.buffer, f"{call.path}: a message was cut short"
            if event.stream.local_closed:  # else the server resets what it does not want to hear
                del self.calls[event.stream.id]
            status = status_of(event)
            assert status is not None, f"{call.path}: trailers without a status"
            call.end(status)
        elif isinstance(event, Reset):
            assert event.by_peer, f"{call.path}: the server broke a rule ({event.code})"
            del self.calls[event.stream.id]
            if call.status is None:
                call.end(1)  # CANCELLED, as gRPC has it

    def connection_lost(self, error: Exception | None) -> None:
        """End all calls."""
        self.lost = True
        for call in list(self.calls.values()):
            if call.status is None:
                call.end(LOST)
        self.calls.clear()
