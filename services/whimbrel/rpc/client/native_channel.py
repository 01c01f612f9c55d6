"""A channel over our own HTTP/2: what a channel of grpc.aio does, without its threads and tasks.

    call ──► a connection with room ──► headers and message ──┐
     │                                                        ├──► few writes an iteration of the loop
     └─► parked: none yet, or all of its streams are taken    │
                                                              │
    bytes of a read ──► Connection ──► events ──► calls ──► futures

    idle ──(a call)──► connecting ──► ready ──(lost, GOAWAY)──► idle
                         │    ▲
                         ▼    │ backoff, as the options say
                        failing ──(no call for WANTED_S)──► idle

A channel has one connection, made at the first call and again after it was lost. While it is connecting,
calls wait; while it fails they fail at once (UNAVAILABLE), and attempts go on in the background, as with
grpcio. A connection is ready when the peer's settings have come, so that no call exceeds its streams or its
header table.

**GOAWAY**: calls that the peer has seen go on; the others and new ones use a new connection. A call that the
peer has not seen (beyond the last stream that GOAWAY names, or REFUSED_STREAM) is begun again, if it has a
single request; otherwise, and the second time, it is UNAVAILABLE. All other retries are the caller's.

**Dead peers** are found by pings, sent only while calls are open: other servers punish more.

**Options** are grpc.aio's, as far as `OPTIONS` in `channel.py` has them; others are ignored. No TLS: our
servers are dialled in plaintext, and a channel with credentials is grpcio's. So are channels for threads.
"""

import asyncio
import contextlib
import ipaddress
import math
import random
import socket
import threading
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Any, Self

import grpc
import grpc.aio

import whimbrel
from whimbrel.model.route import Endpoint
from whimbrel.rpc.client.deadlines import Deadlines
from whimbrel.rpc.client.native_calls import ClientCall, Method, UnaryCall
from whimbrel.rpc.client.native_connection import ChannelConnection, reason_of
from whimbrel.rpc.client.native_streams import BidiCall, StreamCall, StreamUnaryCall
from whimbrel.rpc.http2.encoder import Pair
from whimbrel.rpc.http2.frames import STREAM_ID_MAX, WINDOW_MAX
from whimbrel.rpc.http2.stream import Limits

__all__ = ["NativeChannel"]

State = grpc.ChannelConnectivity
Status = grpc.StatusCode

PARKED_MAX = 65_536  # calls that wait for a connection, or for a stream of it
FIELDS_BYTES_MAX = 64 << 10  # of a response; more ends the connection. Details of an error may be long
ADDRESSES_MAX = 8  # of one name, that one attempt tries in turn
LOOK_UPS_MAX = (
    16  # of names that a process waits for; a resolver without an answer keeps one for half a minute
)
WANTED_S = 30.0  # attempts go on for so long after the last call
BACKOFF_GROWTH, BACKOFF_JITTER = 1.6, 0.2  # as grpcio's
CLOSE_S = 1.0  # how long closing waits for a socket that takes nothing
TIMEOUT_MAX = 99_999_999  # eight digits
TIMEOUTS_KEPT = 256


class NativeChannel(grpc.aio.Channel):
    """Calls to one target; see the module. Belongs to the loop that runs when it is made.

    Attributes:
        connection: takes new calls; None while there is none.
        retiring: connections whose last calls are under way.
        parked: calls that wait for a connection, in their order.
        failure: why attempts fail, while they do.
    """

    def __init__(self, target: str, options: Sequence[tuple[str, Any]]) -> None:
        """Prepare; the first call connects.

        Args:
            target: `host:port` or `[v6]:port`.
            options: as grpc.aio takes them.

        Raises:
            ValueError: the target is malformed; the text says why.
        """
        endpoint = Endpoint.parse(target)
        self.host, self.port, self.target = endpoint.host, endpoint.port, target
        self.loop = asyncio.get_running_loop()
        values = dict(options)
        self.receive_max: int = values["grpc.max_receive_message_length"]
        self.send_max: int = values["grpc.max_send_message_length"]
        self.attempt_s = values["grpc.min_reconnect_backoff_ms"] / 1000
        self.backoff_s = values["grpc.initial_reconnect_backoff_ms"] / 1000
        self.backoff_max_s = values["grpc.max_reconnect_backoff_ms"] / 1000
        self.keepalive_s = values["grpc.keepalive_time_ms"] / 1000
        self.keepalive_timeout_s = values["grpc.keepalive_timeout_ms"] / 1000
        window = values.get("grpc.http2.lookahead_bytes", Limits().window)
        # Each stream has its own bound; one for all of them would let slow readers stop the others.
        self.limits = Limits(
            window=window,
            connection_window=WINDOW_MAX,
            header_list=FIELDS_BYTES_MAX,
            block=2 * FIELDS_BYTES_MAX,
        )
        self.stream_id_max = STREAM_ID_MAX
        self.head: tuple[Pair, ...] = (
            (":authority", target),
            ("te", "trailers"),
            ("content-type", "application/grpc"),
            ("user-agent", f"whimbrel-python/{whimbrel.__version__}"),
        )
        self.deadlines = Deadlines(self.loop)
        self.timeouts: dict[float, Pair] = {}
        self.methods: dict[tuple[type[ClientCall], str], Method] = {}
        self.connection: ChannelConnection | None = None
        self.retiring: set[ChannelConnection] = set()
        self.parked: dict[ClientCall, None] = {}
        self.connecting: asyncio.Task[None] | None = None
        self.failure = ""
        self.asked_at = 0.0
        self.closed = False
        self.good_address = ""  # the one that took the last connection
        self.watchers: list[asyncio.Future[None]] = []

    # Methods

    def method(
        self,
        kind: type[ClientCall],
        path: str,
        serializer: Callable[[Any], bytes] | None,
        deserializer: Callable[[bytes], Any] | None,
    ) -> Any:
        """Return a callable that makes calls of one method."""
        if serializer is not None or deserializer is not None:
            return Method(self, kind, path, serializer, deserializer)
        found = self.methods.get((kind, path))
        if found is None:
            found = self.methods[kind, path] = Method(self, kind, path, None, None)
        return found

    def unary_unary(
        self, method: str, request_serializer: Any = None, response_deserializer: Any = None
    ) -> Any:
        """Return a method with one request and one response."""
        return self.method(UnaryCall, method, request_serializer, response_deserializer)

    def unary_stream(
        self, method: str, request_serializer: Any = None, response_deserializer: Any = None
    ) -> Any:
        """Return a method with one request and many responses."""
        return self.method(StreamCall, method, request_serializer, response_deserializer)

    def stream_unary(
        self, method: str, request_serializer: Any = None, response_deserializer: Any = None
    ) -> Any:
        """Return a method with many requests and one response."""
        return self.method(StreamUnaryCall, method, request_serializer, response_deserializer)

    def stream_stream(
        self, method: str, request_serializer: Any = None, response_deserializer: Any = None
    ) -> Any:
        """Return a method with many requests and many responses."""
        return self.method(BidiCall, method, request_serializer, response_deserializer)

    # Calls

    def begin(self, call: ClientCall) -> None:
        """Begin a call, or park it."""
        connection = self.connection
        if connection is not None and not self.parked and connection.has_room():
            connection.open(call)
        else:
            self.park(call)

    def park(self, call: ClientCall) -> None:
        """Let a call wait for a connection, or for a stream of it."""
        self.asked_at = self.loop.time()
        if self.closed:
            call.end(Status.CANCELLED, f"the channel to {self.target} is closed")
        elif self.failure:
            call.end(Status.UNAVAILABLE, self.failure)
        elif len(self.parked) >= PARKED_MAX:
            call.end(
                Status.RESOURCE_EXHAUSTED,
                f"{PARKED_MAX} calls wait for {self.target} already: begin fewer at a time",
            )
        else:
            self.parked[call] = None
            if self.connection is None:
                self.connect()
            else:
                self.connection.stream_end_awaited = True

    def unpark(self) -> None:
        """Begin parked calls, as far as there is room."""
        parked = self.parked
        while parked:
            connection = self.connection
            if connection is None:
                self.connect()
                return
            if not connection.has_room():
                connection.stream_end_awaited = True
                return
            call = next(iter(parked))
            del parked[call]
            connection.open(call)

    def fields_of(self, call: ClientCall) -> list[Pair]:
        """Return the fields that a call adds to a request."""
        fields: list[Pair] = []
        timeout = call.timeout
        if timeout is not None:
            pair = self.timeouts.get(timeout)
            if pair is None:
                pair = ("grpc-timeout", timeout_text(timeout))
                if len(self.timeouts) < TIMEOUTS_KEPT:
                    self.timeouts[timeout] = pair
            fields.append(pair)
        fields.extend(call.metadata or ())
        return fields

    # Connections

    def connect(self) -> None:
        """Start to connect, unless that is under way."""
        if self.connecting is None and not self.closed:
            self.connecting = self.loop.create_task(self.attempts())
            self.notify_state()

    async def attempts(self) -> None:
        """Connect, again and again while there are calls."""
        pause = self.backoff_s
        try:
            while True:
                try:
                    self.connection = await self.attempt()
                except OSError as error:
                    self.fail_parked(f"can't connect to {self.target}: {reason_of(error)}")
                else:
                    self.failure = ""
                    break
                if self.loop.time() - self.asked_at > WANTED_S:
                    self.failure = ""
                    break
                jitter = random.uniform(1 - BACKOFF_JITTER, 1 + BACKOFF_JITTER)
                await asyncio.sleep(pause * jitter)
                pause = min(pause * BACKOFF_GROWTH, self.backoff_max_s)
        finally:
            self.connecting = None
        self.notify_state()
        self.unpark()

    def fail_parked(self, why: str) -> None:
        """Let all calls fail, until an attempt succeeds."""
        self.failure = why
        parked, self.parked = self.parked, {}
        for call in parked:
            call.end(Status.UNAVAILABLE, why)
        self.notify_state()

    async def attempt(self) -> ChannelConnection:
        """Return a connection whose peer has sent its settings.

        Raises:
            OSError: no address of the target gives one; the last one's.
        """
        failure: OSError = ConnectionError("the name has no address")
        for address in await self.addresses():
            try:
                connection = await self.dial(address)
            except OSError as error:
                failure = error
            else:
                self.good_address = address
                return connection
        raise failure

    async def dial(self, address: str) -> ChannelConnection:
        """Connect to one address.

        Raises:
            OSError: nothing listens there, or something that is not HTTP/2.
        """
        connection: ChannelConnection | None = None
        try:
            async with asyncio.timeout(self.attempt_s):
                _, connection = await self.loop.create_connection(
                    lambda: ChannelConnection(self), address, self.port
                )
                await connection.ready
            if connection.transport.is_closing() or connection.retiring:
                raise ConnectionError(connection.why or "the server closed it")
        except BaseException as error:
            if connection is not None:
                connection.transport.abort()
            if isinstance(error, TimeoutError) and not error.errno:
                what = "connection" if connection is None else "HTTP/2 settings: is it a gRPC server?"
                raise TimeoutError(f"within {self.attempt_s:g} s came no {what}") from None
            raise
        return connection

    async def addresses(self) -> list[str]:
        """Return the target's addresses, the one that took the last connection first.

        Raises:
            OSError: the name can't be resolved.
        """
        try:
            ipaddress.ip_address(self.host)
        except ValueError:
            pass
        else:
            return [self.host]
        try:
            async with asyncio.timeout(self.attempt_s):
                found = await look_up(self.loop, self.host, self.port)
        except TimeoutError:
            raise OSError(f"DNS resolution failed: no answer within {self.attempt_s:g} s") from None
        except UnicodeError as error:
            raise OSError(f"DNS resolution failed: {error}") from None
        hosts = dict.fromkeys(str(sockaddr[0]) for *_, sockaddr in found)
        return sorted(hosts, key=lambda host: host != self.good_address)[:ADDRESSES_MAX]

    def retired(self, connection: ChannelConnection) -> None:
        """Use another connection for new calls."""
        self.retiring.add(connection)
        if self.connection is connection:
            self.connection = None
            self.notify_state()
        if self.parked:
            self.connect()

    def lost(self, connection: ChannelConnection) -> None:
        """Forget a connection; parked calls get another one."""
        self.retiring.discard(connection)
        if self.connection is connection:
            self.connection = None
            self.notify_state()
        if self.parked and self.connection is None:
            self.connect()

    # For callers

    async def close(self, grace: float | None = None) -> None:
        """End all calls, those under way after `grace` seconds, and close the connections."""
        self.closed = True
        text = f"the channel to {self.target} was closed"
        for call in list(self.parked):
            call.end(Status.CANCELLED, text)
        if self.connecting is not None:
            self.connecting.cancel()
            await asyncio.wait({self.connecting})
        if self.connection is not None:
            self.connection.retire()
        gone = {connection.gone for connection in self.retiring}
        if gone and grace:
            await asyncio.wait(gone, timeout=grace)
        for connection in tuple(self.retiring):
            for stream in list(connection.conn.streams.values()):
                if isinstance(stream.app, ClientCall):
                    stream.app.end(Status.CANCELLED, text)
            connection.on_stream_end()
        if gone:
            await asyncio.wait(gone, timeout=CLOSE_S)
        for connection in tuple(self.retiring):
            connection.transport.abort()
        self.deadlines.close()
        self.notify_state()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    def get_state(self, try_to_connect: bool = False) -> State:
        """Return the state of the connection."""
        if self.closed:
            return State.SHUTDOWN
        if self.connection is not None:
            return State.READY
        if self.failure:
            return State.TRANSIENT_FAILURE
        if self.connecting is None and not try_to_connect:
            return State.IDLE
        self.asked_at = self.loop.time()
        self.connect()
        return State.CONNECTING

    async def wait_for_state_change(self, last_observed_state: State) -> None:
        """Return when the state is another one."""
        while self.get_state() is last_observed_state:
            watcher: asyncio.Future[None] = self.loop.create_future()
            self.watchers.append(watcher)
            await watcher

    async def channel_ready(self) -> None:
        """Return when there is a connection.

        Raises:
            grpc.aio.UsageError: the channel is closed.
        """
        while (state := self.get_state(try_to_connect=True)) is not State.READY:
            if state is State.SHUTDOWN:
                raise grpc.aio.UsageError("the channel is closed")
            await self.wait_for_state_change(state)

    def notify_state(self) -> None:
        """Wake what waits for another state."""
        watchers, self.watchers = self.watchers, []
        for watcher in watchers:
            if not watcher.done():
                watcher.set_result(None)


looking_up = threading.BoundedSemaphore(LOOK_UPS_MAX)


def look_up(loop: asyncio.AbstractEventLoop, host: str, port: int) -> "asyncio.Future[list[Any]]":
    """Return what `socket.getaddrinfo` says of a name, when it does.

    It runs in a daemon thread: the loop's own threads are waited for at the interpreter's exit, and a
    resolver without an answer takes half a minute. So long such a thread may live on after its attempt has
    been given up.

    Raises:
        OSError: LOOK_UPS_MAX of them wait already.
    """
    if not looking_up.acquire(blocking=False):
        raise OSError(f"{LOOK_UPS_MAX} names are being looked up, and the resolver does not answer")
    future: asyncio.Future[list[Any]] = loop.create_future()

    def settle(found: list[Any] | Exception) -> None:
        if future.done():
            return
        if isinstance(found, Exception):
            future.set_exception(found)
        else:
            future.set_result(found)

    def ask() -> None:
        found: list[Any] | Exception
        try:
            found = list(socket.getaddrinfo(host, port, type=socket.SOCK_STREAM))
        except (OSError, UnicodeError) as error:
            found = error
        finally:
            looking_up.release()
        with contextlib.suppress(RuntimeError):  # the loop is closed
            loop.call_soon_threadsafe(settle, found)

    try:
        threading.Thread(target=ask, name="whimbrel-resolver", daemon=True).start()
    except RuntimeError as error:  # no more threads
        looking_up.release()
        raise OSError(str(error)) from error
    return future


def timeout_text(timeout_s: float) -> str:
    """Return a timeout in its form on the wire, rounded up."""
    for unit, per_s in (("u", 1_000_000), ("m", 1000), ("S", 1)):
        number = math.ceil(timeout_s * per_s)
        if number <= TIMEOUT_MAX:
            return f"{number}{unit}"
    return f"{min(TIMEOUT_MAX, math.ceil(timeout_s / 3600))}H"
