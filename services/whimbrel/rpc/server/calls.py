"""Calls that come over our own HTTP/2 (`native.py`), from their headers to their end.

    PlainCall           a request that is not gRPC
    UnaryServerCall     a method that answers once: a message or a list of them, now or by a `Deferred`
    PulledStreamCall    responses made one after the other, each when the one before is on its way
    BidiServerCall      messages both ways, or one in and any number out

An exchange ends once: answered here (`end`), or by its peer, its stream or its connection (`gone`). The
deadline of a call that is parked or lasts ends it here, too, and who holds it hears of that.
"""

import asyncio
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from google.protobuf.message import DecodeError

from whimbrel.deferred import Deferred
from whimbrel.errors import BadRequest, NotSupported, RequestTimeout, Throttled, WhimbrelError
from whimbrel.model.limits import RPC_MESSAGE_BYTES_MAX
from whimbrel.model.wire import REASON_TRAILER
from whimbrel.rpc.api.status import grpc_status
from whimbrel.rpc.http2.errors import Code, ProtocolError
from whimbrel.rpc.http2.hpack import HpackError, encode
from whimbrel.rpc.http2.stream import Stream
from whimbrel.rpc.http2.wire import (
    ANSWER,
    OK,
    PREFIX,
    Assembler,
    CompressedMessage,
    MessageTooLong,
    prefixed,
    prefixed_all,
    status_block,
    whole_answer,
)
from whimbrel.rpc.server.budget import OutboxQueue, unread_too_much
from whimbrel.rpc.server.handlers import (
    BidiMethod,
    Call,
    PulledStreamMethod,
    ServerStreamMethod,
    StreamHandler,
    UnaryMethod,
)
from whimbrel.rpc.server.limits import Guard, body_code, known_error

if TYPE_CHECKING:
    from whimbrel.rpc.server.native import NativeConnection

__all__ = ["BidiServerCall", "NativeOutbox", "PlainCall", "PulledStreamCall", "ServerCall", "UnaryServerCall"]

ABOUT = b"This port speaks gRPC (HTTP/2): apache.rocketmq.v2 for clients. `whimbrel --help` tells more.\n"
ABOUT_HEAD = encode(
    [(b":status", b"200"), (b"content-type", b"text/plain"), (b"content-length", b"%d" % len(ABOUT))]
)
NOT_FOUND = encode([(b":status", b"404"), (b"content-length", b"0")])
NOT_GRPC = encode([(b":status", b"415"), (b"content-length", b"0")])


class ServerCall:
    """One call, whatever its method's kind.

    Attributes:
        answered: something was sent already, so that a status comes as trailers.
        held: bytes that were received and no handler has, as they are counted in its connection.
        over: nothing may be sent any more.
        timer: of the deadline, where one runs.
    """

    answered = over = False
    held = 0
    assembler: Assembler | None = None
    timer: asyncio.TimerHandle | None = None

    def __init__(self, connection: "NativeConnection", stream: Stream, call: Call) -> None:
        self.connection, self.stream, self.call = connection, stream, call

    def data(self, data: bytes) -> None:
        """Take data of the peer."""
        assembler = self.assembler
        if assembler is None:
            if data[0] == 0 and len(data) == PREFIX.size + int.from_bytes(data[1:5], "big"):
                self.received(data[PREFIX.size :])  # one message in one frame: nothing to put together
                return
            assembler = self.assembler = Assembler(RPC_MESSAGE_BYTES_MAX)
        try:
            for message in assembler.feed(data):
                if self.over:
                    return
                self.received(message)
        except CompressedMessage as error:
            self.end(NotSupported(str(error)))
        except MessageTooLong as error:
            self.end(Throttled(str(error)))

    def received(self, message: bytes) -> None:
        """Take a message."""
        raise NotImplementedError

    def half_closed(self) -> None:
        """Note that the peer sends no more."""
        raise NotImplementedError

    def may_begin(self, guard: Guard) -> bool:
        """Ask whether the call may be made, before anything of it was taken; else it has ended."""
        try:
            guard(self.call)
        except HpackError as error:
            self.broken(error)
        except Exception as error:  # noqa: BLE001 - the edge: whatever it is becomes a status
            self.refuse(known_error(self.call, error))
        else:
            return True
        return False

    def broken(self, error: HpackError) -> None:
        """End the connection: a field that was looked at for the first time is wrongly coded."""
        self.connection.fail(ProtocolError(Code.COMPRESSION_ERROR, str(error)))

    def refuse(self, error: WhimbrelError) -> None:
        """End a call that may not be made."""
        ServerCall.end(self, error)  # a stream that was never opened has nobody to tell

    def gone(self) -> None:
        """Note that nobody waits any more; called once, unless the call was ended here."""
        self.over = True
        self.let_go()
        self.stop_timer()

    def received_bytes(self) -> int:
        """Return how much was received that no handler has."""
        return 0 if self.assembler is None else len(self.assembler.buffer)

    def let_go(self) -> None:
        """Count what was received no more: it goes to the handler, or nobody wants it."""
        self.connection.budget.release(self.held)
        self.held = 0

    def watch_deadline(self) -> None:
        """End the call when its caller stops to wait; what came too late is found out at once."""
        if self.call.deadline is not None:
            loop = self.connection.server.loop
            self.timer = loop.call_later(max(self.call.deadline - time.monotonic(), 0), self.expire)

    def expire(self) -> None:
        """End a call whose deadline has come; what still waits for its caller's window is dropped."""
        self.timer = None
        if self.stream.waiting:
            self.connection.conn.reset(self.stream, Code.CANCEL)
            self.connection.touched()
            self.stream.app = None
            self.gone()
        else:
            self.end(RequestTimeout("the call's deadline has come"))

    def stop_timer(self) -> None:
        """Forget the deadline."""
        if self.timer is not None:
            self.timer.cancel()
            self.timer = None

    def drained(self) -> None:
        """Note that what had to wait was sent."""

    def send(self, message: bytes) -> bool:
        """Send a message; return whether it is on its way, and nothing waits."""
        conn = self.connection.conn
        if not self.answered:
            self.answered = True
            conn.send_headers(self.stream, ANSWER)
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
            self.let_go()
        if self.timer is not None:
            self.stop_timer()
        trailers = self.call.trailers
        if error is None and not trailers and self.answered:
            block = OK
        elif error is None:
            block = status_block(0, "", trailers, first=not self.answered)
        else:
            code, text, details = grpc_status(error)
            block = status_block(code.value[0], text, (*trailers, *details), first=not self.answered)
        self.connection.conn.send_headers(self.stream, block, end=True)
        self.stream.app = None  # the two hold each other
        self.connection.touched()


class PlainCall(ServerCall):
    """A request of somebody who does not speak gRPC; it is answered with a word of what this is."""

    def __init__(self, connection: "NativeConnection", stream: Stream, call: Call, verb: bytes) -> None:
        super().__init__(connection, stream, call)
        self.verb = verb

    def data(self, data: bytes) -> None:
        """Let what was sent along pass."""

    def half_closed(self) -> None:
        """Answer: not before all of the request was there, so that what is wrong with it is told."""
        if self.over:
            return
        self.over = True
        conn, stream = self.connection.conn, self.stream
        stream.app = None
        if self.call.method == "/" and self.verb in (b"GET", b"HEAD", b"POST"):
            conn.send_headers(stream, ABOUT_HEAD, end=self.verb == b"HEAD")
            conn.send_data(stream, ABOUT, end=True)
        else:
            conn.send_headers(stream, NOT_GRPC if self.verb == b"POST" else NOT_FOUND, end=True)


class UnaryServerCall(ServerCall):
    """A method that answers once: with one message, or with a list of them."""

    raw: bytes | None = None
    deferred: Deferred[Any] | None = None
    started, later = 0.0, False

    def __init__(
        self,
        connection: "NativeConnection",
        stream: Stream,
        call: Call,
        method: UnaryMethod | ServerStreamMethod,
    ) -> None:
        self.connection, self.stream, self.call, self.method = connection, stream, call, method

    def received(self, message: bytes) -> None:
        """Keep the request."""
        if self.raw is not None:
            self.end(BadRequest("the call takes one message, and more came"))
            return
        self.raw = message

    def received_bytes(self) -> int:
        """Return how much was received that no handler has: the request, too."""
        return super().received_bytes() + len(self.raw or b"")

    def refuse(self, error: WhimbrelError) -> None:
        """End a call that may not be made: as the method tells of errors."""
        self.started = time.perf_counter()
        self.failed(error)

    def half_closed(self) -> None:
        """Answer, or leave that to who holds the `Deferred`."""
        if self.over:
            return
        if self.held:
            self.let_go()
        if self.raw is None:
            self.end(BadRequest("the call takes one message, and none came"))
            return
        on_call_end = self.connection.server.on_call_end
        self.started = 0.0 if on_call_end is None else time.perf_counter()
        call, method, raw = self.call, self.method, self.raw
        self.raw = b""
        try:
            connection = self.connection
            # In this order: mostly the first two are false.
            if connection.budget.exceeded() or (
                (connection.conn.blocked or type(method) is ServerStreamMethod)
                and connection.budget.exceeded(connection.waiting_bytes())
            ):
                raise unread_too_much()
            response = method.handle(call, method.request.FromString(raw))
        except DecodeError as error:
            self.failed(BadRequest(f"the request does not decode: {error}"), in_body=False)
        except HpackError as error:
            self.broken(error)
        except Exception as error:  # noqa: BLE001 - the edge: whatever it is becomes a status
            self.failed(error)
        else:
            if isinstance(response, Deferred):
                self.wait_for(response)
            else:
                self.respond(response)

    def wait_for(self, deferred: Deferred[Any]) -> None:
        """Park the call until it is answered, or its deadline is there."""
        self.later = True
        self.deferred = deferred
        if deferred.done:
            self.settle()
            return
        deferred.waker = self.settle
        self.watch_deadline()

    def settle(self) -> None:
        """Answer with what a `Deferred` was completed with."""
        deferred = self.deferred
        assert deferred is not None and deferred.done
        self.stop_timer()
        if self.over:
            return
        if deferred.error is not None:
            self.failed(deferred.error)
            return
        try:
            self.respond(deferred.result)
        except Exception as error:  # noqa: BLE001 - who completed the call has no part in this
            self.end(known_error(self.call, error))

    def expire(self) -> None:
        """End a call whose deadline has come; who holds it hears of that."""
        if self.deferred is not None:
            self.deferred.cancel()
        self.tell("CANCELLED")
        super().expire()

    def respond(self, response: Any) -> None:
        """Send the answer."""
        if self.over:
            return
        connection, stream = self.connection, self.stream
        conn = connection.conn
        if connection.server.on_call_end is not None:
            self.tell(body_code(response) if response and self.method.fail is not None else "OK")
        if type(self.method) is UnaryMethod:
            message = response.SerializeToString()
            size = PREFIX.size + len(message)
            if not self.call.trailers and conn.fits(stream, size):
                self.over = True
                stream.app = None
                conn.send_answer(stream, whole_answer(stream.id, message), size)
                connection.budget.responded(size)
                connection.touched()
                return
            self.send(message)
        else:
            # Together: a frame for each message would cost more than most messages.
            self.answered = True
            conn.send_headers(stream, ANSWER)
            messages = prefixed_all([one.SerializeToString() for one in response])
            conn.send_data(stream, messages)
            connection.budget.responded(len(messages) - stream.waiting_bytes)
        self.end()

    def failed(self, error: Exception, *, in_body: bool = True) -> None:
        """Send the answer or the status that an error becomes."""
        known = known_error(self.call, error)
        if self.method.fail is None or not in_body:
            self.tell(known.grpc)
            self.end(known)
        else:
            self.call.trailers.append((REASON_TRAILER, known.reason))
            self.respond(self.method.fail(self.call, known))

    def tell(self, code: int | str) -> None:
        """Tell who counts how the call ended."""
        on_call_end = self.connection.server.on_call_end
        if on_call_end is not None:
            on_call_end(self.method.name, code, self.later, time.perf_counter() - self.started)

    def gone(self) -> None:
        """Tell who holds the call that nobody waits."""
        super().gone()
        if self.deferred is not None and not self.deferred.done:
            self.deferred.cancel()
            self.tell("CANCELLED")


class PulledStreamCall(ServerCall):
    """A method whose responses are made one after the other, each when the one before is on its way."""

    def __init__(
        self, connection: "NativeConnection", stream: Stream, call: Call, method: PulledStreamMethod
    ) -> None:
        super().__init__(connection, stream, call)
        self.method = method
        self.raw: bytes | None = None
        self.task: asyncio.Task[None] | None = None
        self.room: asyncio.Future[None] | None = None

    def received(self, message: bytes) -> None:
        """Keep the request."""
        if self.raw is None:
            self.raw = message

    def received_bytes(self) -> int:
        """Return how much was received that no handler has: the request, too."""
        return super().received_bytes() + len(self.raw or b"")

    def half_closed(self) -> None:
        """Begin to answer."""
        if self.over:
            return
        self.let_go()
        if self.raw is None:
            self.end(BadRequest("the call takes one message, and none came"))
            return
        self.watch_deadline()
        server = self.connection.server
        self.task = server.loop.create_task(self.run(self.raw))
        server.tasks.add(self.task)
        self.task.add_done_callback(server.tasks.discard)

    async def run(self, raw: bytes) -> None:
        """Send response after response."""
        streams = self.connection.server.streams
        streams.opened(self.method.name)
        responses = None
        try:
            responses = self.method.open(self.call, self.method.request.FromString(raw))
            async for response in responses:
                if streams.ending is not None:
                    raise streams.ending
                if self.over:
                    return
                sent = self.send(response.SerializeToString())
                del response
                self.connection.touched()
                if not sent:
                    self.room = self.connection.server.loop.create_future()
                    await self.room
            self.end()
        except asyncio.CancelledError:
            return  # nobody waits any more
        except HpackError as error:
            self.broken(error)
        except DecodeError as error:
            self.end(BadRequest(f"the request does not decode: {error}"))
        except Exception as error:  # noqa: BLE001 - the edge: whatever it is becomes a status
            self.end(known_error(self.call, error))
        finally:
            streams.open_by_method[self.method.name] -= 1
            if responses is not None:
                await responses.aclose()

    def drained(self) -> None:
        """Go on."""
        if self.room is not None and not self.room.done():
            self.room.set_result(None)

    def gone(self) -> None:
        """Stop making responses."""
        super().gone()
        if self.task is not None:
            self.task.cancel()

    def expire(self) -> None:
        """Stop making responses, since nobody waits for them any more."""
        super().expire()
        if self.task is not None:
            self.task.cancel()


class BidiServerCall(ServerCall):
    """A stream both ways, or of one request and as many responses as somebody has; it is its own outbox."""

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
        """Let the method open its handler; the initial metadata leave at once."""
        self.answered = True
        self.connection.conn.send_headers(self.stream, ANSWER)
        streams = self.connection.server.streams
        streams.outboxes.add(self.outbox)
        streams.opened(self.method.name)
        self.watch_deadline()
        try:
            self.handler = self.method.open(self.call, self.outbox)
        except HpackError as error:
            self.broken(error)
        except Exception as error:  # noqa: BLE001 - the edge: whatever it is becomes a status
            self.end(known_error(self.call, error))

    @property
    def outbox(self) -> "NativeOutbox":
        """The sending half, as handlers see it."""
        return NativeOutbox(self)

    def received(self, message: bytes) -> None:
        """Hand a message to the handler."""
        if self.handler is None or self.closing:
            return
        try:
            self.handler.received(self.method.request.FromString(message))
        except DecodeError as error:
            self.close(BadRequest(f"a message of the stream does not decode: {error}"))
        except Exception as error:  # noqa: BLE001 - the edge: whatever it is becomes a status
            self.close(known_error(self.call, error))

    def half_closed(self) -> None:
        """Tell the handler."""
        if self.handler is not None and not self.closing and not self.over and not self.method.single_request:
            self.handler.half_closed()

    def put(self, message: Any) -> bool:
        """Queue a message; return False, and drop it, when the stream is closed or its queue full."""
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
        connection.touched()
        return True

    def drained(self) -> None:
        """Send what was queued meanwhile."""
        while self.queue and not self.stream.waiting and not self.connection.paused:
            data = self.queue.get()
            self.connection.budget.dequeued(len(data))
            self.send(data)
        if self.closing and not self.queue:
            self.finish()
        self.connection.touched()

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
        """End the stream, and tell the handler that it is over."""
        if not self.over:
            super().end(error)
            self.leave()

    def gone(self) -> None:
        """Tell the handler that it is over."""
        super().gone()
        self.leave()

    def leave(self) -> None:
        """Count the stream out, once."""
        streams = self.connection.server.streams
        streams.outboxes.discard(self.outbox)
        streams.open_by_method[self.method.name] -= 1
        self.connection.budget.dequeued(self.queue.clear())
        handler, self.handler = self.handler, None
        if handler is not None:
            handler.closed()


@dataclass(frozen=True, slots=True, eq=True)
class NativeOutbox:
    """What handlers send by; equal to any other one of its stream."""

    exchange: BidiServerCall = field(hash=True)

    def send(self, message: Any) -> bool:
        """Queue a message; return False, and drop it, when the stream is closed or its queue full."""
        return self.exchange.put(message)

    def close(self, error: Exception | None = None) -> None:
        """End the stream after what is queued, with a status when `error` is given."""
        self.exchange.close(error)
