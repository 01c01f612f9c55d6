"""Calls of the native transport, from their headers to their end.

    NonGrpcCall         a request that is not gRPC
    UnaryServerCall     a method with one response (a message or a list of them), immediate or a `Deferred`
    PulledStreamCall    responses made one after the other, each after the one before was sent
    BidiServerCall      messages both ways, or one in and any number out

A call ends once: here (`end`), or with its stream or connection (`abandon`). The deadline of a parked or long
call ends it here, too (`expire`); the `Deferred` or the generator behind it is then cancelled.
"""

import asyncio
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from google.protobuf.message import DecodeError

from whimbrel.deferred import Deferred
from whimbrel.errors import BadRequest, NotSupported, RequestTimeout, WhimbrelError
from whimbrel.model.wire import REASON_TRAILER
from whimbrel.rpc.api.status import grpc_status
from whimbrel.rpc.http2.errors import Code, ProtocolError
from whimbrel.rpc.http2.grpc_format import (
    OK_TRAILERS,
    PREFIX,
    RESPONSE_HEADERS,
    Assembler,
    CompressedMessage,
    MessageTooLong,
    prefixed,
    status_block,
    whole_response,
)
from whimbrel.rpc.http2.hpack import HpackError, encode
from whimbrel.rpc.http2.stream import Stream
from whimbrel.rpc.server.budget import OutboxQueue, unread_too_much
from whimbrel.rpc.server.handlers import (
    BidiMethod,
    Call,
    EncodedMany,
    Method,
    PulledStreamMethod,
    ServerStreamMethod,
    StreamHandler,
    UnaryMethod,
)
from whimbrel.rpc.server.limits import Guard, body_code, known_error
from whimbrel.rpc.server.request_limits import RequestTooLarge

if TYPE_CHECKING:
    from whimbrel.rpc.server.connection import NativeConnection

__all__ = [
    "BidiServerCall",
    "NativeOutbox",
    "NonGrpcCall",
    "PulledStreamCall",
    "ServerCall",
    "UnaryServerCall",
]

ABOUT = b"This port speaks gRPC (HTTP/2): apache.rocketmq.v2 for clients. `whimbrel --help` tells more.\n"
ABOUT_HEAD = encode(
    [(b":status", b"200"), (b"content-type", b"text/plain"), (b"content-length", b"%d" % len(ABOUT))]
)
FIELD_BYTES = 96  # of a header field, besides the bytes of its name and its value

NOT_FOUND = encode([(b":status", b"404"), (b"content-length", b"0")])
NOT_GRPC = encode([(b":status", b"415"), (b"content-length", b"0")])


class ServerCall:
    """One call, whatever its method's kind.

    Attributes:
        method: what is called; `NonGrpcCall` has none.
        headers_sent: the response has begun, so that a status comes as trailers.
        held: bytes that were received and no handler has, as they count in the connection's budget.
        over: nothing may be sent any more.
        timer: of the deadline, where one runs.
        lasts: its requests may come for as long as it likes.
        seen_at: when a check saw it first without its whole request; 0.0 before.
        fields_counted: bytes of its header fields; -1 before somebody asked.
    """

    method: Method
    headers_sent = over = lasts = False
    held, seen_at, fields_counted = 0, 0.0, -1
    assembler: Assembler | None = None
    timer: asyncio.TimerHandle | None = None

    def __init__(self, connection: "NativeConnection", stream: Stream, call: Call) -> None:
        self.connection, self.stream, self.call = connection, stream, call

    def data(self, data: bytes) -> None:
        """Take data of the peer."""
        assembler = self.assembler
        if assembler is None:
            if data[0] == 0 and len(data) == PREFIX.size + int.from_bytes(data[1:5], "big"):
                self.received(data[PREFIX.size :])  # one whole message in one frame
                return
            assembler = self.assembler = Assembler(self.method.limit.bytes)
        try:
            for message in assembler.feed(data):
                if self.over:
                    return
                self.received(message)
        except CompressedMessage as error:
            self.end(NotSupported(str(error)))
        except MessageTooLong as error:
            self.end(RequestTooLarge(str(error)))

    def received(self, message: bytes) -> None:
        """Take a whole message."""
        raise NotImplementedError

    def half_closed(self) -> None:
        """Note that the peer sends no more."""
        raise NotImplementedError

    def authorize(self, guard: Guard) -> bool:
        """Ask the guard before any message is taken; return False when it has ended the call."""
        try:
            guard(self.call)
        except HpackError as error:
            self.fail_connection(error)
        except Exception as error:  # noqa: BLE001 - every error becomes a status
            self.refuse(known_error(self.call, error))
        else:
            return True
        return False

    def fail_connection(self, error: HpackError) -> None:
        """End the connection: a field that was decoded only now is wrongly coded."""
        self.connection.fail(ProtocolError(Code.COMPRESSION_ERROR, str(error)))

    def refuse(self, error: WhimbrelError) -> None:
        """End a call that the guard refuses."""
        ServerCall.end(self, error)  # a handler was never opened

    def abandon(self) -> None:
        """End the call without a response: its stream is gone. Not called after `end`."""
        self.over = True
        self.release_held()
        self.stop_timer()

    def received_bytes(self) -> int:
        """Return how many bytes were received that no handler has."""
        return 0 if self.assembler is None else len(self.assembler.buffer)

    def release_held(self) -> None:
        """Take what was received off the budget: it goes to the handler, or is dropped."""
        self.connection.budget.release(self.held)
        self.held = 0

    def watch_deadline(self) -> None:
        """Start the timer of the deadline; one that has passed fires at once."""
        if self.call.deadline is not None:
            loop = self.connection.server.loop
            self.timer = loop.call_later(max(self.call.deadline - time.monotonic(), 0), self.expire)

    def expire(self) -> None:
        """End a call whose deadline has passed; what waits for the peer's window is dropped."""
        self.timer = None
        if self.stream.waiting:
            self.connection.conn.reset(self.stream, Code.CANCEL)
            self.connection.schedule_flush()
            self.stream.app = None
            self.abandon()
        else:
            self.end(RequestTimeout("the call's deadline has come"))

    def stop_timer(self) -> None:
        """Stop the timer of the deadline."""
        if self.timer is not None:
            self.timer.cancel()
            self.timer = None

    def drained(self) -> None:
        """Note that all data that had to wait was sent."""

    def request_missing(self, seconds: float) -> None:
        """End the call: its request did not become whole in time."""
        self.end(RequestTimeout(f"the request was not whole after {seconds:g} s"))

    def field_bytes(self) -> int:
        """Return about how many bytes the header fields take."""
        if self.fields_counted < 0:
            fields = self.call.metadata.fields  # type: ignore[attr-defined]  # CallMetadata, as all of native's
            self.fields_counted = sum(FIELD_BYTES + len(each[0]) + len(each[1]) for each in fields)
        return self.fields_counted

    def send(self, message: bytes) -> bool:
        """Send a message; return False when data waits now, so that the caller should pause."""
        conn = self.connection.conn
        if not self.headers_sent:
            self.headers_sent = True
            conn.send_headers(self.stream, RESPONSE_HEADERS)
        waiting = self.stream.waiting_bytes
        sent = conn.send_data(self.stream, prefixed(message))
        self.connection.budget.responded(len(message) + waiting - self.stream.waiting_bytes)
        return sent and not self.connection.paused

    def end(self, error: WhimbrelError | None = None) -> None:
        """End the call, with OK or with an error's status."""
        if self.over:
            return
        self.over = True
        if self.held:
            self.release_held()
        if self.timer is not None:
            self.stop_timer()
        trailers = self.call.trailers
        if error is None and not trailers and self.headers_sent:
            block = OK_TRAILERS
        elif error is None:
            block = status_block(0, "", trailers, first=not self.headers_sent)
        else:
            code, text, details = grpc_status(error)
            block = status_block(code.value[0], text, (*trailers, *details), first=not self.headers_sent)
        self.connection.conn.send_headers(self.stream, block, end=True)
        self.stream.app = None  # breaks the reference cycle
        self.connection.schedule_flush()


class NonGrpcCall(ServerCall):
    """An HTTP/2 request that is not gRPC, such as a browser's; a short text says what this port is."""

    def __init__(
        self, connection: "NativeConnection", stream: Stream, call: Call, http_method: bytes
    ) -> None:
        super().__init__(connection, stream, call)
        self.http_method = http_method

    def data(self, data: bytes) -> None:
        """Ignore the request's body."""

    def request_missing(self, seconds: float) -> None:
        """Reset the stream: there is no status for one that is not gRPC."""
        self.over, self.stream.app = True, None
        self.connection.conn.reset(self.stream, Code.CANCEL)
        self.connection.schedule_flush()

    def half_closed(self) -> None:
        """Respond once the whole request is there, so that protocol errors in it come first."""
        if self.over:
            return
        self.over = True
        conn, stream = self.connection.conn, self.stream
        stream.app = None
        if self.call.method == "/" and self.http_method in (b"GET", b"HEAD", b"POST"):
            conn.send_headers(stream, ABOUT_HEAD, end=self.http_method == b"HEAD")
            conn.send_data(stream, ABOUT, end=True)
        else:
            conn.send_headers(stream, NOT_GRPC if self.http_method == b"POST" else NOT_FOUND, end=True)


class UnaryServerCall(ServerCall):
    """A method that responds once: with one message, or with a list of them.

    Attributes:
        payload: the request's bytes; empty once the handler has them.
        deferred: the response of a parked call.
        started: when the request was complete; 0.0 when nobody measures.
        was_deferred: the handler returned a `Deferred`.
    """

    payload: bytes | None = None
    deferred: Deferred[Any] | None = None
    started, was_deferred = 0.0, False
    method: UnaryMethod | ServerStreamMethod

    def __init__(
        self,
        connection: "NativeConnection",
        stream: Stream,
        call: Call,
        method: UnaryMethod | ServerStreamMethod,
    ) -> None:
        self.connection, self.stream, self.call, self.method = connection, stream, call, method

    def data(self, data: bytes) -> None:
        """Take data of the peer: nearly always the whole request in one frame."""
        if (
            self.payload is None
            and self.assembler is None
            and data[0] == 0
            and len(data) == PREFIX.size + int.from_bytes(data[1:5], "big")
        ):
            self.payload = data[PREFIX.size :]
        else:
            super().data(data)

    def received(self, message: bytes) -> None:
        """Keep the request."""
        if self.payload is not None:
            self.end(BadRequest("the call takes one message, and more came"))
            return
        self.payload = message

    def received_bytes(self) -> int:
        """Return how many bytes were received that no handler has, the request among them."""
        return super().received_bytes() + len(self.payload or b"")

    def refuse(self, error: WhimbrelError) -> None:
        """End a call that the guard refuses, in the method's own way of reporting errors."""
        self.started = time.perf_counter()
        self.respond_error(error)

    def half_closed(self) -> None:
        """Call the handler, and respond or park the call."""
        if self.over:
            return
        if self.held:
            self.release_held()
        if self.payload is None:
            self.end(BadRequest("the call takes one message, and none came"))
            return
        on_call_end = self.connection.server.on_call_end
        self.started = 0.0 if on_call_end is None else time.perf_counter()
        call, method, payload = self.call, self.method, self.payload
        self.payload = b""
        try:
            connection = self.connection
            budget = connection.budget
            # Cheap checks first.
            if ((budget.unflushed or budget.queued) and budget.exceeded()) or (
                (connection.conn.blocked or type(method) is ServerStreamMethod)
                and budget.exceeded(connection.waiting_bytes())
            ):
                raise unread_too_much()
            limit = method.limit
            if len(payload) <= limit.free_bytes:
                request = method.request.FromString(payload)
            else:
                request = limit.read(method.request, payload)
            if method.admit is not None:
                method.admit(call)
            response = method.handle(call, request)
        except DecodeError as error:
            self.respond_error(BadRequest(f"the request does not decode: {error}"), in_body=False)
        except RequestTooLarge as error:
            self.respond_error(error, in_body=False)
        except HpackError as error:
            self.fail_connection(error)
        except Exception as error:  # noqa: BLE001 - every error becomes a status
            self.respond_error(error)
        else:
            if isinstance(response, Deferred):
                self.park(response)
            else:
                self.respond(response)

    def park(self, deferred: Deferred[Any]) -> None:
        """Wait for a `Deferred`, or for the deadline."""
        self.was_deferred = True
        self.deferred = deferred
        if deferred.done:
            self.complete()
            return
        deferred.waker = self.complete
        self.watch_deadline()

    def complete(self) -> None:
        """Respond with the result of the `Deferred`."""
        deferred = self.deferred
        assert deferred is not None and deferred.done
        self.stop_timer()
        if self.over:
            return
        if deferred.error is not None:
            self.respond_error(deferred.error)
            return
        try:
            self.respond(deferred.result)
        except Exception as error:  # noqa: BLE001 - must not reach what completed the Deferred
            self.end(known_error(self.call, error))

    def expire(self) -> None:
        """End a call whose deadline has passed, and cancel its `Deferred`."""
        if self.deferred is not None:
            self.deferred.cancel()
        self.report_end("CANCELLED")
        super().expire()

    def respond(self, response: Any) -> None:
        """Send the response."""
        if self.over:
            return
        connection, stream = self.connection, self.stream
        conn = connection.conn
        if connection.server.on_call_end is not None:
            self.report_end(body_code(response) if response and self.method.fail is not None else "OK")
        if type(self.method) is UnaryMethod:
            message = response.SerializeToString()
            size = PREFIX.size + len(message)
            if not self.call.trailers and conn.fits(stream, size):
                self.over = True
                stream.app = None
                conn.send_response(stream, whole_response(stream.id, message), size)
                connection.budget.responded(size)
                connection.schedule_flush()
                return
            self.send(message)
        else:
            # In one frame: a frame for each message would cost more than most messages.
            self.headers_sent = True
            conn.send_headers(stream, RESPONSE_HEADERS)
            messages = b"".join(map(framed, response))
            conn.send_data(stream, messages)
            connection.budget.responded(len(messages) - stream.waiting_bytes)
        self.end()

    def respond_error(self, error: Exception, *, in_body: bool = True) -> None:
        """Send the response or the status that an error becomes."""
        known = known_error(self.call, error)
        if self.method.fail is None or not in_body:
            self.report_end(known.grpc)
            self.end(known)
        else:
            self.call.trailers.append((REASON_TRAILER, known.reason))
            self.respond(self.method.fail(self.call, known))

    def report_end(self, code: int | str) -> None:
        """Call the server's `on_call_end`."""
        on_call_end = self.connection.server.on_call_end
        if on_call_end is not None:
            on_call_end(self.method.name, code, self.was_deferred, time.perf_counter() - self.started)

    def abandon(self) -> None:
        """Cancel the `Deferred`."""
        super().abandon()
        if self.deferred is not None and not self.deferred.done:
            self.deferred.cancel()
            self.report_end("CANCELLED")


def framed(response: Any) -> bytes:
    """Return a response of several behind gRPC's prefix."""
    if type(response) is EncodedMany:
        return response.framed
    return prefixed(response.SerializeToString())


class PulledStreamCall(ServerCall):
    """A method whose responses are made one after the other, each after the one before was sent.

    Attributes:
        task: runs the generator.
        writable: completed when data that had to wait was sent.
    """

    method: PulledStreamMethod

    def __init__(
        self, connection: "NativeConnection", stream: Stream, call: Call, method: PulledStreamMethod
    ) -> None:
        super().__init__(connection, stream, call)
        self.method = method
        self.payload: bytes | None = None
        self.task: asyncio.Task[None] | None = None
        self.writable: asyncio.Future[None] | None = None

    def received(self, message: bytes) -> None:
        """Keep the request."""
        if self.payload is None:
            self.payload = message

    def received_bytes(self) -> int:
        """Return how many bytes were received that no handler has, the request among them."""
        return super().received_bytes() + len(self.payload or b"")

    def half_closed(self) -> None:
        """Start the generator."""
        if self.over:
            return
        self.release_held()
        if self.payload is None:
            self.end(BadRequest("the call takes one message, and none came"))
            return
        self.watch_deadline()
        server = self.connection.server
        self.task = server.loop.create_task(self.run(self.payload))
        server.tasks.add(self.task)
        self.task.add_done_callback(server.tasks.discard)

    async def run(self, payload: bytes) -> None:
        """Send response after response."""
        streams = self.connection.server.streams
        streams.count_opened(self.method.name)
        responses = None
        try:
            responses = self.method.open(self.call, self.method.limit.read(self.method.request, payload))
            async for response in responses:
                if streams.ending is not None:
                    raise streams.ending
                if self.over:
                    return
                sent = self.send(response.SerializeToString())
                del response
                self.connection.schedule_flush()
                if not sent:
                    self.writable = self.connection.server.loop.create_future()
                    await self.writable
            self.end()
        except asyncio.CancelledError:
            return  # the call is over
        except HpackError as error:
            self.fail_connection(error)
        except DecodeError as error:
            self.end(BadRequest(f"the request does not decode: {error}"))
        except Exception as error:  # noqa: BLE001 - every error becomes a status
            self.end(known_error(self.call, error))
        finally:
            streams.open_by_method[self.method.name] -= 1
            if responses is not None:
                await responses.aclose()

    def drained(self) -> None:
        """Let the generator go on."""
        if self.writable is not None and not self.writable.done():
            self.writable.set_result(None)

    def abandon(self) -> None:
        """Stop the generator."""
        super().abandon()
        if self.task is not None:
            self.task.cancel()

    def expire(self) -> None:
        """Stop the generator when the deadline has passed."""
        super().expire()
        if self.task is not None:
            self.task.cancel()


class BidiServerCall(ServerCall):
    """A stream both ways, or of one request and any number of responses; it is its own outbox.

    Attributes:
        queue: messages that wait for the peer.
        closing: `close` was called; the stream ends after what is queued, with `error` as its status.
        handler: None once the stream is over.
    """

    method: BidiMethod
    lasts = True

    def __init__(
        self, connection: "NativeConnection", stream: Stream, call: Call, method: BidiMethod
    ) -> None:
        super().__init__(connection, stream, call)
        self.method = method
        self.queue = OutboxQueue()
        self.closing = False
        self.error: Exception | None = None
        self.handler: StreamHandler | None = None

    def open(self) -> None:
        """Let the method make the stream's handler; the initial metadata leave at once."""
        self.headers_sent = True
        self.connection.conn.send_headers(self.stream, RESPONSE_HEADERS)
        streams = self.connection.server.streams
        streams.outboxes.add(self.outbox)
        streams.count_opened(self.method.name)
        self.watch_deadline()
        try:
            self.handler = self.method.open(self.call, self.outbox)
        except HpackError as error:
            self.fail_connection(error)
        except Exception as error:  # noqa: BLE001 - every error becomes a status
            self.end(known_error(self.call, error))

    @property
    def outbox(self) -> "NativeOutbox":
        """The sending half, as handlers see it."""
        return NativeOutbox(self)

    def received(self, message: bytes) -> None:
        """Pass a message to the handler."""
        if self.handler is None or self.closing:
            return
        try:
            self.handler.received(self.method.limit.read(self.method.request, message))
        except DecodeError as error:
            self.close(BadRequest(f"a message of the stream does not decode: {error}"))
        except Exception as error:  # noqa: BLE001 - every error becomes a status
            self.close(known_error(self.call, error))

    def half_closed(self) -> None:
        """Pass the end of the requests to the handler."""
        if self.handler is not None and not self.closing and not self.over and not self.method.single_request:
            self.handler.half_closed()

    def enqueue(self, message: Any) -> bool:
        """Send or queue a message; return False, and drop it, when closed or at a bound."""
        if self.closing or self.over or self.queue.full():
            return False
        connection = self.connection
        budget = connection.budget
        if budget.exceeded() or (connection.conn.blocked and budget.exceeded(connection.waiting_bytes())):
            return False
        data: bytes = message.SerializeToString()
        if not self.queue and not self.stream.waiting and not connection.paused:
            self.send(data)
        elif self.queue.put(data):
            budget.enqueued(len(data))
        else:
            return False
        connection.schedule_flush()
        return True

    def drained(self) -> None:
        """Send queued messages."""
        while self.queue and not self.stream.waiting and not self.connection.paused:
            data = self.queue.get()
            self.connection.budget.dequeued(len(data))
            self.send(data)
        if self.closing and not self.queue:
            self.finish()
        self.connection.schedule_flush()

    def close(self, error: Exception | None = None) -> None:
        """End the stream after what is queued."""
        if not self.closing:
            self.closing, self.error = True, error
            if not self.queue:
                self.finish()

    def finish(self) -> None:
        """End the stream now."""
        if not self.over:
            self.end(None if self.error is None else known_error(self.call, self.error))

    def end(self, error: WhimbrelError | None = None) -> None:
        """End the stream, and close the handler."""
        if not self.over:
            super().end(error)
            self.close_handler()

    def abandon(self) -> None:
        """Close the handler."""
        super().abandon()
        self.close_handler()

    def close_handler(self) -> None:
        """Count the stream out, drop its queue, and call `closed` of its handler, once."""
        streams = self.connection.server.streams
        streams.outboxes.discard(self.outbox)
        streams.open_by_method[self.method.name] -= 1
        self.connection.budget.dequeued(self.queue.clear())
        handler, self.handler = self.handler, None
        if handler is not None:
            handler.closed()


@dataclass(frozen=True, slots=True, eq=True)
class NativeOutbox:
    """What handlers send by; equal to every other outbox of the same stream."""

    server_call: BidiServerCall = field(hash=True)

    def send(self, message: Any) -> bool:
        """Queue a message; return False, and drop it, when the stream is closed or a bound is reached."""
        return self.server_call.enqueue(message)

    def close(self, error: Exception | None = None) -> None:
        """End the stream after what is queued, with a status when `error` is given."""
        self.server_call.close(error)
