"""Calls over our own HTTP/2 from the caller's side (`native_channel.py`), from their start to their end.

    UnaryCall      one request, one answer: `await` it. A future, and no task
    StreamCall     one or many requests, many answers: `read`, `async for`, `write`, `done_writing`
    GatheredCall   many requests, one answer: `await` it

    parked (no connection, or no room in it) ──► open: a stream ──► over
      any of them ──(deadline, cancel, an error of the stream or the connection)──► over

They have the face of grpc.aio's calls, as far as our code uses it, and raise the same `AioRpcError`, so that
callers need not know which transport they have. A call is over once (`finish`); then it holds no stream and
no timer. Differences from grpcio's, all of them meant:

- calls that `close` of a channel ends raise AioRpcError (CANCELLED), not CancelledError: nobody has cancelled
  the task that waits.
- `write` after a stream has failed raises what it failed with, not InvalidStateError.
- who leaves a stream half read must `cancel` it; nothing is cancelled when an object goes.

**Bounds.** A stream that nobody reads holds one window and one message: what was received is given back to
the peer when it is read. `write` waits while what it wrote waits for a window or for the socket.
"""

import asyncio
import base64
import logging
from collections import deque
from collections.abc import AsyncIterable, AsyncIterator, Callable, Generator
from typing import TYPE_CHECKING, Any, ClassVar
from urllib.parse import unquote

import grpc
import grpc.aio

from whimbrel.rpc.http2.errors import Code
from whimbrel.rpc.http2.hpack import Field, value_of
from whimbrel.rpc.http2.stream import Stream
from whimbrel.rpc.http2.wire import PREFIX, Assembler, CompressedMessage, MessageTooLong

if TYPE_CHECKING:
    from whimbrel.rpc.deadlines import Bucket
    from whimbrel.rpc.native_channel import NativeChannel
    from whimbrel.rpc.native_link import Link

__all__ = ["Call", "GatheredCall", "Method", "StreamCall", "UnaryCall"]

Status = grpc.StatusCode

STATUSES = {status.value[0]: status for status in Status}
BY_HTTP = {
    b"400": Status.INTERNAL, b"401": Status.UNAUTHENTICATED, b"403": Status.PERMISSION_DENIED,
    b"404": Status.UNIMPLEMENTED, b"429": Status.UNAVAILABLE, b"502": Status.UNAVAILABLE,
    b"503": Status.UNAVAILABLE, b"504": Status.UNAVAILABLE,
}  # fmt: skip
BY_RESET = {
    Code.REFUSED_STREAM: Status.UNAVAILABLE,
    Code.CANCEL: Status.CANCELLED,
    Code.ENHANCE_YOUR_CALM: Status.RESOURCE_EXHAUSTED,
    Code.INADEQUATE_SECURITY: Status.PERMISSION_DENIED,
}
OK_TRAILERS: list[Field] = [(b"grpc-status", b"0", False)]
STATUS_200: Field = (b":status", b"200", False)
GRPC_TYPE: Field = (b"content-type", b"application/grpc", False)
NOT_METADATA = frozenset(
    (b"content-type", b"grpc-status", b"grpc-message", b"grpc-encoding", b"grpc-accept-encoding")
)
PREFIX_BYTES = PREFIX.size
CANCELLED_HERE = "Locally cancelled by application!"  # as grpcio says it

log = logging.getLogger(__name__)


class Method:
    """What a channel's `unary_unary` and its kin return: call it to make a call."""

    __slots__ = ("channel", "deserializer", "kind", "path", "serializer")

    def __init__(
        self,
        channel: "NativeChannel",
        kind: "type[Call]",
        path: str,
        serializer: Callable[[Any], bytes] | None,
        deserializer: Callable[[bytes], Any] | None,
    ) -> None:
        self.channel, self.kind, self.path = channel, kind, path
        self.serializer, self.deserializer = serializer, deserializer

    def __call__(self, request: Any = None, timeout: float | None = None, metadata: Any = ()) -> Any:
        """Begin a call.

        Args:
            request: the request; of a method that takes a stream, an async iterable of them, or None where
                they come by `write`.
            timeout: seconds, None for as long as it takes.
            metadata: pairs of name and value; values of names in -bin are bytes.
        """
        return self.kind(self, request, timeout, metadata)


class Call:
    """What all calls have.

    Attributes:
        request: the encoded request of a call that has one; None of a stream of them.
        deadline: of the loop's clock, in seconds.
        link, stream: while it is open.
        over: it has ended; the rest says how.
        again: it was sent once to a connection that has not seen it.
    """

    many: ClassVar[bool] = False  # whether it has a stream of requests

    __slots__ = (
        "again", "assembler", "bucket", "code_", "deadline", "first", "last", "link", "metadata", "method",
        "over", "request", "stream", "text", "timeout", "waiters",
    )  # fmt: skip

    def __init__(self, method: Method, request: Any, timeout: float | None, metadata: Any) -> None:
        self.method = method
        self.metadata = metadata
        self.timeout = timeout
        self.link: Link | None = None
        self.stream: Stream | None = None
        self.assembler: Assembler | None = None
        self.bucket: Bucket | None = None
        self.over = self.again = False
        self.first: list[Field] | None = None
        self.last: list[Field] | None = None
        self.code_ = Status.OK
        self.text = ""
        self.waiters: list[asyncio.Future[None]] | None = None  # for the end, or for the first headers
        self.request: bytes | None = None
        self.deadline: float | None = None
        self.prepare()
        channel = method.channel
        if not self.many:
            self.request = self.encoded(request)
        if timeout is not None and timeout <= 0:
            self.expire()
        if self.over:
            return
        if timeout is not None:
            channel.deadlines.add(self, timeout)
        channel.begin(self)

    def encoded(self, request: Any) -> bytes:
        """Return a request's bytes; one that is too long ends the call."""
        serializer, limit = self.method.serializer, self.method.channel.send_max
        payload: bytes = request if serializer is None else serializer(request)
        if len(payload) > limit:
            self.end(Status.RESOURCE_EXHAUSTED, f"a request of {len(payload)} bytes, and {limit} are allowed")
        return payload

    # What the connection tells

    def opened(self) -> None:
        """Note that the call has its stream."""

    def headers(self, fields: list[Field], *, ended: bool) -> None:
        """Take header fields: the first ones, or those that end the call."""
        if ended:
            self.ended(fields)
        elif fields[0] == STATUS_200 and GRPC_TYPE in fields:
            self.first = fields
            if self.waiters is not None:
                self.tell()
        elif fields[0][0] == b":status" and not value_of(fields[0]).startswith(b"1"):
            self.first = fields
            code, text = self.judged(fields)
            if code is not Status.OK:
                self.end(code, text)
            elif self.waiters is not None:
                self.tell()

    def judged(self, fields: list[Field]) -> tuple[Status, str]:
        """Return what first headers say of who answers: OK for somebody who speaks gRPC."""
        found = {field[0]: value_of(field) for field in fields}
        status, kind = found.get(b":status", b""), found.get(b"content-type", b"")
        if status == b"200" and kind.startswith(b"application/grpc"):
            return Status.OK, ""
        text = f"the answer is no gRPC: HTTP status {status.decode('latin-1')}, {kind.decode('latin-1')!r}"
        return BY_HTTP.get(status, Status.UNKNOWN), text

    def data(self, data: bytes, size: int, *, ended: bool) -> None:
        """Take data of the answer; `size` is what it counts for the windows."""
        raise NotImplementedError

    def messages_of(self, data: bytes) -> list[bytes]:
        """Return the messages that are whole by now; none when they end the call."""
        if self.first is None:
            self.end(Status.INTERNAL, "the answer begins without headers", reset=Code.PROTOCOL_ERROR)
            return []
        if self.assembler is None:
            self.assembler = Assembler(self.method.channel.receive_max)
        try:
            return self.assembler.feed(data)
        except CompressedMessage as error:
            self.end(Status.INTERNAL, str(error))
        except MessageTooLong as error:
            self.end(Status.RESOURCE_EXHAUSTED, str(error))
        return []

    def decoded(self, message: bytes) -> Any:
        """Return a message as the caller wants it."""
        deserializer = self.method.deserializer
        return message if deserializer is None else deserializer(message)

    def ended(self, fields: list[Field]) -> None:
        """Take the fields that end the call."""
        self.last = fields
        if fields == OK_TRAILERS:
            self.end(Status.OK, "")
            return
        found = {field[0]: field for field in fields}
        status = found.get(b"grpc-status")
        if status is None:
            code, text = self.judged(fields) if self.first is None else (Status.OK, "")
            if code is Status.OK:
                code, text = Status.UNKNOWN, "the answer ends without a status"
            self.end(code, text)
            return
        text = ""
        if b"grpc-message" in found:
            text = unquote(value_of(found[b"grpc-message"]), errors="replace")
        number = value_of(status)
        known = STATUSES.get(int(number)) if number.isdigit() and len(number) < 4 else None
        self.end(known or Status.UNKNOWN, text)

    def reset(self, code: int) -> None:
        """Take the end of the stream by its peer, or by what that did wrong."""
        if code == Code.REFUSED_STREAM and self.retry():
            return
        status = BY_RESET.get(Code(code) if code in Code._value2member_map_ else Code.INTERNAL_ERROR)
        name = Code(code).name if code in Code._value2member_map_ else str(code)
        self.end(status or Status.INTERNAL, f"the server has reset the stream: {name}")

    def retry(self) -> bool:
        """Begin once more, on another connection, what the peer has never seen; return whether it does."""
        if self.over or self.again or self.request is None or self.first is not None:
            return False
        self.again = True
        self.leave(Code.CANCEL)
        self.method.channel.begin(self)
        return True

    def drained(self) -> None:
        """Note that what had to wait was sent."""

    # The end

    def leave(self, code: Code) -> None:
        """Let go of the stream; its peer is told, unless it knows."""
        link, stream = self.link, self.stream
        if link is None or stream is None:
            self.method.channel.parked.pop(self, None)
            return
        self.link = self.stream = None
        stream.app = None
        if not (stream.local_closed and stream.remote_closed):
            link.conn.reset(stream, code)
            link.touched()
        if link.watched:
            link.left()

    def end(self, code: Status, text: str, *, reset: Code = Code.CANCEL) -> None:
        """End the call, for everybody who waits; `reset` is what its peer is told, unless it knows."""
        if self.over:
            return
        self.over, self.code_, self.text = True, code, text
        bucket = self.bucket
        if bucket is not None:
            self.bucket = None
            bucket.calls.pop(self, None)
        self.leave(reset)
        self.request = self.assembler = None
        self.finished()
        if self.waiters is not None:
            self.tell()

    def finished(self) -> None:
        """Wake who waits for the answer."""
        raise NotImplementedError

    def prepare(self) -> None:
        """Make what the kind of call needs besides."""
        raise NotImplementedError

    def expire(self) -> None:
        """End a call whose deadline has passed."""
        self.end(Status.DEADLINE_EXCEEDED, "Deadline Exceeded")

    def cancel(self) -> bool:
        """End the call at once; who waits for it gets CancelledError. Return whether it was under way."""
        if self.over:
            return False
        self.end(Status.CANCELLED, CANCELLED_HERE)
        return True

    def failure(self) -> BaseException | None:
        """Return what the call ended with; None for OK."""
        if self.code_ is Status.OK:
            return None
        if self.text is CANCELLED_HERE:
            return asyncio.CancelledError()
        return grpc.aio.AioRpcError(
            self.code_, metadata_of(self.first), metadata_of(self.last), details=self.text
        )

    def tell(self) -> None:
        """Wake who waits for the end, or for the first headers."""
        waiters, self.waiters = self.waiters or (), None
        for waiter in waiters:
            if not waiter.done():
                waiter.set_result(None)

    async def changed(self) -> None:
        """Wait for the first headers, or for the end."""
        waiter = self.method.channel.loop.create_future()
        self.waiters = self.waiters or []
        self.waiters.append(waiter)
        await waiter

    # What callers ask

    def done(self) -> bool:
        """Return whether the call is over."""
        return self.over

    def cancelled(self) -> bool:
        """Return whether it was cancelled, by either side."""
        return self.over and self.code_ is Status.CANCELLED

    def time_remaining(self) -> float | None:
        """Return the seconds until the deadline."""
        return None if self.deadline is None else max(0.0, self.deadline - self.method.channel.loop.time())

    async def code(self) -> Status:
        """Return the status, once the call is over."""
        while not self.over:
            await self.changed()
        return self.code_

    async def details(self) -> str:
        """Return the status's text, once the call is over."""
        await self.code()
        return self.text

    async def initial_metadata(self) -> grpc.aio.Metadata:
        """Return the metadata before the answer."""
        while not self.over and self.first is None:
            await self.changed()
        return metadata_of(self.first)

    async def trailing_metadata(self) -> grpc.aio.Metadata:
        """Return the metadata behind the answer, once the call is over."""
        while not self.over:
            await self.changed()
        return metadata_of(self.last)

    async def wait_for_connection(self) -> None:
        """Wait for the first headers.

        Raises:
            grpc.aio.AioRpcError: the call has failed.
        """
        await self.initial_metadata()
        if self.over and (failure := self.failure()) is not None:
            raise failure


class UnaryCall(Call):
    """One request, one answer."""

    __slots__ = ("future", "message")

    def prepare(self) -> None:
        """Make the future."""
        self.message: bytes | None = None
        self.future: asyncio.Future[Any] = self.method.channel.loop.create_future()

    def data(self, data: bytes, size: int, *, ended: bool) -> None:
        """Take the answer."""
        if self.stream is not None and self.link is not None:
            self.link.conn.consumed(self.stream, size)
        if data:
            # Nearly every answer comes in one frame.
            if (
                self.assembler is None
                and self.message is None
                and data[0] == 0
                and len(data) >= PREFIX_BYTES
                and int.from_bytes(data[1:PREFIX_BYTES]) == len(data) - PREFIX_BYTES
                and len(data) - PREFIX_BYTES <= self.method.channel.receive_max
                and self.first is not None
            ):
                self.message = data[PREFIX_BYTES:]
            else:
                for message in self.messages_of(data):
                    if self.message is not None:
                        self.end(Status.INTERNAL, "a second answer came to one request")
                        return
                    self.message = message
        if ended:
            self.end(Status.UNKNOWN, "the answer ends without a status")

    def finished(self) -> None:
        """Give the answer to who waits."""
        future = self.future
        if future.done():
            return
        if self.code_ is Status.OK:
            if self.message is None:
                self.code_, self.text = Status.INTERNAL, "the call ended with OK, and without an answer"
            else:
                try:
                    future.set_result(self.decoded(self.message))
                    return
                except Exception as error:  # noqa: BLE001  whatever a deserializer raises
                    self.code_, self.text = Status.INTERNAL, f"the answer can't be read: {error!r}"
        failure = self.failure()
        if failure is None or isinstance(failure, asyncio.CancelledError):
            future.cancel()
            return
        future.set_exception(failure)
        future.exception()  # nobody has to wait for a call

    def __await__(self) -> Generator[Any, None, Any]:
        """Wait for the answer; a task that is cancelled meanwhile cancels the call."""
        try:
            return (yield from self.future)
        except asyncio.CancelledError:
            self.cancel()
            raise


class StreamCall(Call):
    """One request, many answers."""

    __slots__ = ("held", "messages", "reader")

    def prepare(self) -> None:
        """Make the queue of answers."""
        self.messages: deque[bytes] = deque()
        self.reader: asyncio.Future[None] | None = None
        self.held = 0  # bytes for the peer's window that nobody has read

    def data(self, data: bytes, size: int, *, ended: bool) -> None:
        """Take answers."""
        self.held += size
        self.messages.extend(self.messages_of(data) if data else ())
        if self.messages:
            self.wake()
        elif self.stream is not None:
            self.give_back(self.held)  # a part of a message, which may be larger than the window
        if ended:
            self.end(Status.UNKNOWN, "the answer ends without a status")

    def give_back(self, size: int) -> None:
        """Let the peer send as much again."""
        size = min(size, self.held)
        self.held -= size
        if self.link is not None and self.stream is not None:
            self.link.conn.consumed(self.stream, size)
            self.link.touched()

    def wake(self) -> None:
        """Wake the reader."""
        if self.reader is not None and not self.reader.done():
            self.reader.set_result(None)

    def finished(self) -> None:
        """Wake the reader; who cancels does not want what has come already."""
        if self.text is CANCELLED_HERE:
            self.messages.clear()
        self.wake()

    async def read(self) -> Any:
        """Return the next answer; `grpc.aio.EOF` when there are no more.

        Raises:
            grpc.aio.AioRpcError: the call has failed; answers that came before are returned first.
        """
        while not self.messages:
            if self.over:
                if (failure := self.failure()) is not None:
                    raise failure
                return grpc.aio.EOF
            assert self.reader is None, "two tasks read one stream"
            self.reader = self.method.channel.loop.create_future()
            try:
                await self.reader
            except asyncio.CancelledError:
                self.cancel()
                raise
            finally:
                self.reader = None
        message = self.messages.popleft()
        self.give_back(len(message) + PREFIX_BYTES if self.messages else self.held)
        return self.decoded(message)

    async def __aiter__(self) -> AsyncIterator[Any]:
        """Yield the answers."""
        while (message := await self.read()) is not grpc.aio.EOF:
            yield message


class BothCall(StreamCall):
    """Many requests, many answers."""

    many = True

    __slots__ = ("pump", "writer", "written")

    def __init__(self, method: Method, request: Any, timeout: float | None, metadata: Any) -> None:
        self.writer: asyncio.Future[None] | None = None
        self.pump: asyncio.Task[None] | None = None
        self.written = False  # all of it
        super().__init__(method, None, timeout, metadata)
        if request is not None and not self.over:
            self.pump = method.channel.loop.create_task(self.write_all(request))

    async def write_all(self, requests: AsyncIterable[Any]) -> None:
        """Write what an iterator gives."""
        try:
            async for request in requests:
                await self.write(request)
            await self.done_writing()
        except (grpc.aio.AioRpcError, asyncio.InvalidStateError):
            pass  # the call is over, and whoever reads it hears why
        except Exception:
            log.exception("%s: the requests can't be made", self.method.path)
            self.cancel()

    async def write(self, request: Any) -> None:
        """Send a request; wait until it is on its way. Not for two tasks at a time.

        Raises:
            grpc.aio.AioRpcError: the call has failed.
            asyncio.InvalidStateError: it has ended well, or `done_writing` was called.
        """
        self.check_open()
        payload = self.encoded(request)
        while self.stream is None:
            self.check_open()
            await self.turn()
        if self.link is not None:
            self.link.send(self.stream, payload)
        while self.link is not None and (self.stream.waiting or self.link.paused):
            await self.turn()
        if self.over and (failure := self.failure()) is not None:
            raise failure

    async def done_writing(self) -> None:
        """Tell the peer that there are no more requests."""
        while self.stream is None and not self.over:
            await self.turn()
        self.written = True
        if self.link is not None and self.stream is not None:
            self.link.conn.send_data(self.stream, b"", end=True)
            self.link.touched()

    def check_open(self) -> None:
        """Refuse to write what nobody will read."""
        if self.over and (failure := self.failure()) is not None:
            raise failure
        if self.over or self.written:
            raise asyncio.InvalidStateError("the call takes no more requests: it is over, or done writing")

    async def turn(self) -> None:
        """Wait for a stream, for room, or for the end."""
        assert self.writer is None, "two tasks write one stream"
        self.writer = self.method.channel.loop.create_future()
        try:
            await self.writer
        except asyncio.CancelledError:
            self.cancel()
            raise
        finally:
            self.writer = None

    def opened(self) -> None:
        """Let the writer begin."""
        self.drained()

    def drained(self) -> None:
        """Let the writer go on."""
        if self.writer is not None and not self.writer.done():
            self.writer.set_result(None)

    def finished(self) -> None:
        """Wake reader and writer."""
        super().finished()
        self.drained()
        if self.pump is not None and self.text is CANCELLED_HERE:
            self.pump.cancel()


class GatheredCall(BothCall):
    """Many requests, one answer."""

    __slots__ = ()

    def __await__(self) -> Generator[Any, None, Any]:
        """Wait for the answer."""
        return self.answer().__await__()

    async def answer(self) -> Any:
        """Return the answer.

        Raises:
            grpc.aio.AioRpcError: the call has failed.
        """
        answer = await self.read()
        if answer is grpc.aio.EOF:
            raise grpc.aio.AioRpcError(
                Status.INTERNAL, details="the call ended with OK, and without an answer"
            )
        await self.read()
        return answer


def metadata_of(fields: list[Field] | None) -> grpc.aio.Metadata:
    """Return header fields as metadata; values of names in -bin as bytes."""
    found = grpc.aio.Metadata()
    for field in fields or ():
        name = field[0]
        if name[:1] == b":" or name in NOT_METADATA:
            continue
        value = value_of(field)
        if name.endswith(b"-bin"):
            # Several values of one name may stand in one field.
            for part in value.split(b","):
                found.add(name.decode("latin-1"), base64.b64decode(part + b"=" * (-len(part) % 4)))
        else:
            found.add(name.decode("latin-1"), value.decode("utf-8", "replace"))
    return found
