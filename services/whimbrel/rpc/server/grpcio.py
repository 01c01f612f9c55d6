"""Serves handlers over grpc.aio: bytes in, bytes out, one adapter for each kind of method.

    grpc.aio task ──► adapter ──► method.handle(call, request) ──► response       immediate
                                                                └─► Deferred ─► future  flush, replica, poll

grpcio starts a task for each call. The adapter adds nothing to that unless the handler returns a `Deferred`,
and then one future. When the caller leaves, grpcio cancels the task, and the adapter cancels the `Deferred`.

A pulled stream is advanced by its adapter, one response after each completed write: the transport's flow
control reaches the generator that makes them.

    peer ◄── write ◄── one response ◄── generator        (peer gone, error, the server's stop) ──► closed

A bidirectional stream lives as long as its adapter, which drains the outbox, while a second task reads:

    open ──► serving ──(Outbox.close, an error of the handler, the peer gone, the server's stop)──► closed

The initial metadata leave at once on opening: the Rust SDK waits for them before it writes. The reading task
is never cancelled: grpcio's core still owns the read's memory then. It ends by itself once the stream is
over. For a stream with a single request, `received` is called once and `half_closed` never.

Business errors of `apache.rocketmq.v2` are bodies, made by the method's `fail`; every other error is a gRPC
status with `google.rpc.Status` details (`rpc/api/status.py`). An exception that is no `WhimbrelError` is a
bug: it is logged once, here.
"""

import asyncio
import logging
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

import grpc
import grpc.aio
from google.protobuf.message import DecodeError

from whimbrel.deferred import Deferred
from whimbrel.errors import BadRequest, Refused, WhimbrelError
from whimbrel.machine import open_files_limit
from whimbrel.model.limits import RPC_MESSAGE_BYTES_MAX
from whimbrel.model.wire import REASON_TRAILER
from whimbrel.rpc.api.status import grpc_status
from whimbrel.rpc.http2.grpc_format import unprefixed
from whimbrel.rpc.remoting.handlers import RemotingService
from whimbrel.rpc.server.admission import connections_max
from whimbrel.rpc.server.budget import OutboxQueue, unread_too_much
from whimbrel.rpc.server.handlers import (
    BidiMethod,
    Call,
    EncodedMany,
    PulledStreamMethod,
    ServerStreamMethod,
    Service,
    StreamHandler,
    UnaryMethod,
    methods_by_path,
)
from whimbrel.rpc.server.health import Health
from whimbrel.rpc.server.limits import (
    STOP_GRACE_S,
    UNREAD_BYTES_MAX,
    Guard,
    OnCallEnd,
    body_code,
    known_error,
)
from whimbrel.rpc.server.reflection import with_standard_services
from whimbrel.rpc.server.request_limits import RequestTooLarge

__all__ = ["GrpcioServer", "StreamOutbox", "peer_address", "serve_grpcio"]

OPTIONS: tuple[tuple[str, Any], ...] = (
    ("grpc.max_receive_message_length", RPC_MESSAGE_BYTES_MAX),
    ("grpc.max_send_message_length", RPC_MESSAGE_BYTES_MAX),
    ("grpc.so_reuseport", 0),  # else a second process on a taken port starts, and gets half of the calls
    # The C++ SDK pings every 60 s and the Java SDK every 300 s, without calls too.
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.http2.min_recv_ping_interval_without_data_ms", 10_000),
    # A peer whose machine vanished sends no FIN; without pings its streams would stay for ever.
    ("grpc.keepalive_time_ms", 60_000),
    ("grpc.keepalive_timeout_ms", 20_000),
)
# Of the whole server; one beyond is closed without a word. grpcio knows no such limit by host.
CONNECTIONS_OPTION = "grpc.max_allowed_incoming_connections"

logger = logging.getLogger(__name__)

Context = grpc.aio.ServicerContext[bytes, bytes]
if TYPE_CHECKING:
    Adapter = grpc.RpcMethodHandler[Any, Any]


@lru_cache(maxsize=1024)  # a peer sends many calls over one connection
def peer_address(text: str) -> str:
    """Return `host:port` for grpcio's `ipv4:1.2.3.4:5` or `ipv6:%5B::1%5D:5`; others stay as they are."""
    scheme, _, rest = text.partition(":")
    return unquote(rest) if scheme in ("ipv4", "ipv6") else text


def make_call(path: str, context: Context) -> Call:
    """Return the call as its handler sees it."""
    remaining = context.time_remaining()
    return Call(
        method=path,
        peer=peer_address(context.peer()),
        metadata=dict(context.invocation_metadata() or ()),  # type: ignore[arg-type]
        deadline=None if remaining is None else time.monotonic() + remaining,
    )


@dataclass(frozen=True, slots=True)
class Hooks:
    """A server's hooks around calls."""

    on_call_end: OnCallEnd | None
    guard: Guard | None

    def check(self, call: Call) -> None:
        """Raise what the guard raises."""
        if self.guard is not None:
            self.guard(call)


async def abort(context: Context, call: Call, error: WhimbrelError) -> None:
    """End the call with the error's gRPC status; always raises."""
    code, text, trailers = grpc_status(error)
    await context.abort(code, text, (*call.trailers, *trailers))


async def result_of(deferred: Deferred[Any]) -> Any:
    """Wait for a `Deferred`; cancel it when the caller leaves meanwhile."""
    if not deferred.done:
        handle_once = asyncio.get_running_loop().create_future()

        def wake() -> None:
            if not handle_once.done():
                handle_once.set_result(None)

        deferred.waker = wake
        try:
            await handle_once
        except asyncio.CancelledError:
            deferred.cancel()
            raise
    if deferred.error is not None:
        raise deferred.error
    return deferred.result


async def handle_once(
    path: str,
    method: UnaryMethod | ServerStreamMethod,
    raw: bytes,
    context: Context,
    hooks: Hooks,
    *,
    full: bool = False,
) -> Any:
    """Run a handler to its response, or to the body or the status that its error becomes.

    `full` refuses the call: its peer leaves too much unread.
    """
    call = make_call(path, context)
    on_call_end = hooks.on_call_end
    started = 0.0 if on_call_end is None else time.perf_counter()
    response: Any = None
    ended, was_deferred = "CANCELLED", False
    try:
        hooks.check(call)
        if full:
            raise unread_too_much()
        response = method.handle(call, method.limit.read(method.request, raw))
        if isinstance(response, Deferred):
            deferred, response, was_deferred = response, None, True
            response = await result_of(deferred)
        ended = "OK"
    except DecodeError as error:
        ended = BadRequest.grpc
        await abort(context, call, BadRequest(f"the request does not decode: {error}"))
    except Exception as error:  # noqa: BLE001 - every error becomes a status
        known = known_error(call, error)
        ended = known.grpc
        if method.fail is None or isinstance(error, RequestTooLarge):
            await abort(context, call, known)
        else:
            call.trailers.append((REASON_TRAILER, known.reason))
            response = method.fail(call, known)
    finally:
        if on_call_end is not None:
            code = body_code(response) if response and method.fail is not None else ended
            on_call_end(method.name, code, was_deferred, time.perf_counter() - started)
    if call.trailers:
        context.set_trailing_metadata(tuple(call.trailers))
    return response


def unary(path: str, method: UnaryMethod, hooks: Hooks) -> "Adapter":
    """Adapt a method with one response."""

    async def respond(raw: bytes, context: Context) -> bytes:
        response = await handle_once(path, method, raw, context, hooks)
        return response.SerializeToString()  # type: ignore[no-any-return]

    return grpc.unary_unary_rpc_method_handler(respond)


def server_stream(path: str, method: ServerStreamMethod, unread: dict[str, int], hooks: Hooks) -> "Adapter":
    """Adapt a method that returns all of its responses together.

    `unread` counts the bytes that wait for each peer.
    """

    async def respond(raw: bytes, context: Context) -> None:
        peer = context.peer()
        full = unread.get(peer, 0) > UNREAD_BYTES_MAX
        responses = await handle_once(path, method, raw, context, hooks, full=full)
        frames: list[bytes] = []
        for response in responses:
            many = type(response) is EncodedMany
            frames += unprefixed(response.framed) if many else (response.SerializeToString(),)
        del responses
        size = sum(map(len, frames))
        unread[peer] = unread.get(peer, 0) + size
        try:
            for frame in frames:
                await context.write(frame)
        except grpc.aio.InternalError:
            return  # the peer left while a message was being written
        finally:
            left = unread.pop(peer, 0) - size
            if left > 0:
                unread[peer] = left

    return grpc.unary_stream_rpc_method_handler(respond)


def pulled_stream(path: str, method: PulledStreamMethod, streams: "Streams", hooks: Hooks) -> "Adapter":
    """Adapt a method whose responses are made one at a time, each after the one before was written."""

    async def respond(raw: bytes, context: Context) -> None:
        call = make_call(path, context)
        responses: AsyncGenerator[Any, None] | None = None
        streams.count_opened(method.name)
        try:
            hooks.check(call)
            responses = method.open(call, method.limit.read(method.request, raw))
            async for response in responses:
                if streams.ending is not None:
                    raise streams.ending
                await context.write(response.SerializeToString())
                del response  # else it stays in memory while the next one is made
            context.set_trailing_metadata(tuple(call.trailers))
        except (grpc.aio.InternalError, grpc.aio.UsageError):
            return  # the peer left while a message was being written
        except DecodeError as error:
            await abort(context, call, BadRequest(f"the request does not decode: {error}"))
        except Exception as error:  # noqa: BLE001 - every error becomes a status
            await abort(context, call, known_error(call, error))
        finally:
            streams.open_by_method[method.name] -= 1
            if responses is not None:
                await responses.aclose()

    return grpc.unary_stream_rpc_method_handler(respond)


class StreamOutbox:
    """The sending half of a stream: messages are encoded when queued, and written by `drain`.

    Attributes:
        closing: `close` was called; the stream ends after what is queued.
        over: the stream has ended; nothing may reach the handler any more.
        error: the status to end with; None for OK.
    """

    __slots__ = ("closing", "error", "idle", "over", "queue")

    def __init__(self) -> None:
        self.queue = OutboxQueue()
        self.closing = False
        self.over = False
        self.error: Exception | None = None
        self.idle: asyncio.Future[None] | None = None

    def send(self, message: Any) -> bool:
        """Queue a message; return False, and drop it, when the stream is closed or its queue full."""
        if self.closing or self.over or self.queue.full():
            return False
        data: bytes = message.SerializeToString()
        if not self.queue.put(data):
            return False
        self.wake()
        return True

    def close(self, error: Exception | None = None) -> None:
        """End the stream after what is queued, with a status when `error` is given."""
        if not self.closing:
            self.closing, self.error = True, error
            self.wake()

    def wake(self) -> None:
        """Let `drain` go on."""
        if self.idle is not None and not self.idle.done():
            self.idle.set_result(None)

    async def drain(self, write: Callable[[bytes], Awaitable[None]]) -> None:
        """Write what is queued until the outbox is closed."""
        loop = asyncio.get_running_loop()
        while True:
            while self.queue:
                await write(self.queue.get())
            if self.closing:
                return
            self.idle = loop.create_future()
            await self.idle


class Streams:
    """The open streams of a server, so that its stop can end them, and the tasks that read them."""

    def __init__(self) -> None:
        self.outboxes: set[StreamOutbox] = set()
        self.open_by_method: dict[str, int] = {}
        self.unread: dict[str, int] = {}  # bytes of responses, by peer
        self.readers: set[asyncio.Task[None]] = set()
        self.ending: Exception | None = None  # what pulled streams end with instead of the next response

    def count_opened(self, method: str) -> None:
        """Count a stream in."""
        self.open_by_method[method] = self.open_by_method.get(method, 0) + 1

    def close(self, error: Exception) -> None:
        """End all streams; a pulled one whose peer does not read ends with the server."""
        self.ending = error
        for outbox in tuple(self.outboxes):
            outbox.close(error)

    def read(self, work: Awaitable[None]) -> None:
        """Run a reading task, and keep a reference to it: asyncio itself keeps none."""
        task = asyncio.ensure_future(work)
        self.readers.add(task)
        task.add_done_callback(self.readers.discard)


async def read_stream(
    call: Call, context: Context, parse: Callable[[bytes], Any], handler: StreamHandler, outbox: StreamOutbox
) -> None:
    """Pass the peer's messages to the handler until the stream is over."""
    try:
        while True:
            raw: Any = await context.read()
            if outbox.over:
                return
            if raw is grpc.aio.EOF:
                handler.half_closed()
                return
            handler.received(parse(raw))
            if outbox.closing:
                return
    except DecodeError as error:
        outbox.close(BadRequest(f"a message of the stream does not decode: {error}"))
    except Exception as error:  # noqa: BLE001 - every error becomes a status
        # grpcio raises UsageError, and others, from a read that is under way when the stream ends.
        if not outbox.over:
            outbox.close(known_error(call, error))


def bidi(path: str, method: BidiMethod, streams: Streams, hooks: Hooks) -> "Adapter":
    """Adapt a stream of messages both ways, or of one request and many responses."""
    parse = partial(method.limit.read, method.request)

    async def serve_stream(first: Any, context: Context) -> None:
        call = make_call(path, context)
        outbox = StreamOutbox()
        try:
            hooks.check(call)
            await context.send_initial_metadata(())
            handler = method.open(call, outbox)
        except Exception as error:  # noqa: BLE001 - every error becomes a status
            await abort(context, call, known_error(call, error))
            return
        streams.outboxes.add(outbox)
        streams.count_opened(method.name)
        try:
            if method.single_request:
                receive_only(call, parse, first, handler, outbox)
            else:
                streams.read(read_stream(call, context, parse, handler, outbox))
            await outbox.drain(context.write)
        except grpc.aio.UsageError:
            return  # the peer left while a message was being written
        finally:
            outbox.over = True
            streams.open_by_method[method.name] -= 1
            streams.outboxes.discard(outbox)
            handler.closed()
        if outbox.error is not None:
            await abort(context, call, known_error(call, outbox.error))
        context.set_trailing_metadata(tuple(call.trailers))

    if method.single_request:
        return grpc.unary_stream_rpc_method_handler(serve_stream)
    return grpc.stream_stream_rpc_method_handler(serve_stream)


def receive_only(
    call: Call, parse: Callable[[bytes], Any], raw: bytes, handler: StreamHandler, outbox: StreamOutbox
) -> None:
    """Pass the single request of a stream to its handler."""
    try:
        handler.received(parse(raw))
    except DecodeError as error:
        outbox.close(BadRequest(f"the request does not decode: {error}"))
    except Exception as error:  # noqa: BLE001 - every error becomes a status
        outbox.close(known_error(call, error))


class Methods(grpc.GenericRpcHandler):
    """Finds the adapter of a call by its path."""

    def __init__(self, services: Iterable[Service], streams: Streams, hooks: Hooks) -> None:
        self.streams, self.hooks = streams, hooks
        self.replace(services)

    def replace(self, services: Iterable[Service]) -> None:
        """Find the methods of these services from the next call on."""
        self.by_path = {
            path: adapt(path, method, self.streams, self.hooks)
            for path, method in methods_by_path(services).items()
        }

    def service(self, handler_call_details: grpc.HandlerCallDetails) -> "Adapter | None":
        """Return the adapter, or None: UNIMPLEMENTED."""
        return self.by_path.get(handler_call_details.method)


def adapt(
    path: str,
    method: UnaryMethod | ServerStreamMethod | PulledStreamMethod | BidiMethod,
    streams: Streams,
    hooks: Hooks,
) -> "Adapter":
    """Return the adapter for a method's kind."""
    if isinstance(method, UnaryMethod):
        return unary(path, method, hooks)
    if isinstance(method, ServerStreamMethod):
        return server_stream(path, method, streams.unread, hooks)
    if isinstance(method, PulledStreamMethod):
        return pulled_stream(path, method, streams, hooks)
    return bidi(path, method, streams, hooks)


@dataclass(frozen=True, slots=True)
class GrpcioServer:
    """A server that takes calls. `port` is the bound one, also when 0 was asked for."""

    host: str
    port: int
    server: grpc.aio.Server
    streams: Streams
    health: Health
    methods: Methods

    def replace(self, services: Sequence[Service], remoting: RemotingService | None = None) -> None:
        """Serve these services of the same names from the next call on; calls that have begun go on."""
        self.methods.replace(with_standard_services(services, self.health))

    @property
    def extra_ports(self) -> tuple[int, ...]:
        """Return none: it listens on one port."""
        return ()

    @property
    def load(self) -> None:
        """Return nothing: grpcio does not show its connections."""

    @property
    def address(self) -> str:
        """Return `host:port` as it was bound."""
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    async def stop(self, grace: float = STOP_GRACE_S) -> None:
        """Take no new calls, end the streams, and give calls in flight `grace` seconds.

        Holders of a `Deferred` should complete it before, else its caller waits until the grace has passed.
        """
        self.health.stop()
        self.streams.close(Refused("this server is stopping"))
        await self.server.stop(grace)
        if self.streams.readers:
            await asyncio.wait(self.streams.readers, timeout=grace)


async def serve_grpcio(
    services: Sequence[Service],
    *,
    host: str,
    port: int,
    on_call_end: OnCallEnd | None = None,
    guard: Guard | None = None,
    connections: int | None = None,
) -> GrpcioServer:
    """Start to serve on `host` and `port`, as `serving.serve` does.

    Args:
        connections: how many are let in; None: as many as leave descriptors for files.

    Raises:
        OSError: the port is taken, or the host is not one of this machine's; the text says so.
    """
    streams = Streams()
    health = Health(service.name for service in services)
    methods = Methods(with_standard_services(services, health), streams, Hooks(on_call_end, guard))
    server = grpc.aio.server(
        handlers=(methods,),
        options=(*OPTIONS, (CONNECTIONS_OPTION, connections or connections_max(open_files_limit()))),
    )
    bracketed = f"[{host}]" if ":" in host else host
    try:
        bound = server.add_insecure_port(f"{bracketed}:{port}")
    except RuntimeError as error:
        raise OSError(f"can't listen on {bracketed}:{port}: is another process there? ({error})") from error
    await server.start()
    return GrpcioServer(host, bound, server, streams, health, methods)
