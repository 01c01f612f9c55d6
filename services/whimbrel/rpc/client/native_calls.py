"""Client calls over our own HTTP/2: their common base, and those with one request and one response.

    UnaryCall          one request, one response: `await` it. A future, and no task
    StreamCall         one request, many responses: `read`, `async for`                 native_streams.py
    BidiCall           many requests besides: `write`, `done_writing`
    StreamUnaryCall    many requests, one response: `await` it

    parked (no connection, or no room in it) ──► open: a stream ──► over
      any of them ──(deadline, cancel, an error of the stream or the connection)──► over

They have the interface of grpc.aio's calls, as far as our code uses it, and raise the same `AioRpcError`, so
that callers need not know their transport. A call is over once (`end`); then it holds no stream and no timer.
Intended differences from grpcio's:

- calls that `close` of a channel ends raise AioRpcError (CANCELLED), not CancelledError: nobody has cancelled
  the task that waits.
- `write` after a stream has failed raises its failure, not InvalidStateError.
- callers that leave a stream half read must `cancel` it; nothing is cancelled when an object is collected.
"""

import asyncio
import base64
import contextlib
from collections.abc import Callable, Generator
from typing import TYPE_CHECKING, Any, ClassVar, Protocol
from urllib.parse import unquote

import grpc
import grpc.aio

from whimbrel.rpc.http2.errors import Code
from whimbrel.rpc.http2.grpc_format import PREFIX, Assembler, CompressedMessage, MessageTooLong
from whimbrel.rpc.http2.hpack import Field, value_of
from whimbrel.rpc.http2.stream import Stream

if TYPE_CHECKING:
    from whimbrel.rpc.client.deadlines import Bucket, Deadlines
    from whimbrel.rpc.http2.client import ClientConnection

__all__ = [
    "FIRST_FIELDS",
    "NO_RESPONSE",
    "NO_STATUS",
    "PREFIX_BYTES",
    "SECOND_RESPONSE",
    "ClientCall",
    "Method",
    "UnaryCall",
]

Status = grpc.StatusCode

STATUSES = {status.value[0]: status for status in Status}
BY_HTTP = {
    b"400": Status.INTERNAL, b"401": Status.UNAUTHENTICATED, b"403": Status.PERMISSION_DENIED,
    b"404": Status.UNIMPLEMENTED, b"429": Status.UNAVAILABLE, b"502": Status.UNAVAILABLE,
    b"503": Status.UNAVAILABLE, b"504": Status.UNAVAILABLE,
}  # fmt: skip
BY_RESET: dict[int, Status] = {
    Code.REFUSED_STREAM: Status.UNAVAILABLE,
    Code.CANCEL: Status.CANCELLED,
    Code.ENHANCE_YOUR_CALM: Status.RESOURCE_EXHAUSTED,
    Code.INADEQUATE_SECURITY: Status.PERMISSION_DENIED,
}
CODES = frozenset(Code)
FIRST_FIELDS: list[Field] = [(b":status", b"200", False), (b"content-type", b"application/grpc", False)]
NOT_METADATA = frozenset(
    (b"content-type", b"grpc-status", b"grpc-message", b"grpc-encoding", b"grpc-accept-encoding")
)
PREFIX_BYTES = PREFIX.size
CANCELLED_HERE = "Locally cancelled by application!"  # grpcio's words
NO_STATUS = "the answer ends without a status"
SECOND_RESPONSE = "a second answer came where one was asked for"
NO_RESPONSE = "the call ended with OK, and without an answer"


class Channel(Protocol):
    """What calls need of their channel (`native_channel.py`).

    Attributes:
        send_max, receive_max: bytes of a message.
        parked: calls that wait for room on a connection.
    """

    loop: asyncio.AbstractEventLoop
    deadlines: "Deadlines"
    send_max: int
    receive_max: int
    parked: "dict[ClientCall, None]"

    def begin(self, call: "ClientCall") -> None:
        """Send a call, or park it."""


class Connection(Protocol):
    """What calls need of the connection that they are open on (`native_connection.py`).

    Attributes:
        paused: its transport takes no more for now.
        stream_end_awaited: `on_stream_end` is to be called.
    """

    conn: "ClientConnection"
    paused: bool
    stream_end_awaited: bool

    def schedule_flush(self) -> None:
        """Write what there is, soon."""

    def on_stream_end(self) -> None:
        """There is room for a call."""


class Method:
    """What a channel's `unary_unary` and the like return: call it to make a call."""

    __slots__ = ("channel", "deserializer", "kind", "path", "serializer")

    def __init__(
        self,
        channel: Channel,
        kind: "type[ClientCall]",
        path: str,
        serializer: Callable[[Any], bytes] | None,
        deserializer: Callable[[bytes], Any] | None,
    ) -> None:
        self.channel, self.kind, self.path = channel, kind, path
        self.serializer, self.deserializer = serializer, deserializer

    def __call__(self, request: Any = None, timeout: float | None = None, metadata: Any = ()) -> Any:
        """Begin a call.

        Args:
            request: the request; of a method that takes a stream, an async iterable of them, or None to send
                them with `write`.
            timeout: seconds; None for no deadline.
            metadata: pairs of name and value; values of names in -bin are bytes.
        """
        return self.kind(self, request, timeout, metadata)


class ClientCall:
    """The base of all calls.

    Attributes:
        request: the encoded request of a call that has one; None of a stream of them.
        deadline: of the loop's clock, in seconds.
        connection, stream: while it is open.
        over: it has ended, with `status` and `text`.
        cancelled_locally: it was ended by `cancel`.
        retried: it was sent once to a connection that has not seen it.
        first, last: header fields before and behind the response, with their values decoded.
        waiters: for the end, or for the first headers.

    Rarely used attributes have their defaults in the class, which saves setting them for each call.
    """

    client_streaming: ClassVar[bool] = False  # whether it has a stream of requests

    request: bytes | None = None
    deadline: float | None = None
    connection: Connection | None = None
    stream: Stream | None = None
    assembler: Assembler | None = None
    bucket: "Bucket | None" = None
    over: bool = False
    cancelled_locally: bool = False
    retried: bool = False
    first: list[Field] | None = None
    last: list[Field] | None = None
    status: Status = Status.OK
    text: str = ""
    waiters: list[asyncio.Future[None]] | None = None

    def __init__(self, method: Method, request: Any, timeout: float | None, metadata: Any) -> None:
        self.method, self.timeout, self.metadata = method, timeout, metadata
        channel = self.channel = method.channel
        self.prepare()
        if not self.client_streaming:
            self.request = self.encoded(request)
        if timeout is not None:
            if timeout <= 0:
                self.expire()
            elif not self.over:
                channel.deadlines.add(self, timeout)
        if not self.over:
            channel.begin(self)

    def encoded(self, request: Any) -> bytes:
        """Return a request's bytes; one that is too long ends the call."""
        serializer, limit = self.method.serializer, self.channel.send_max
        payload: bytes = request if serializer is None else serializer(request)
        if len(payload) > limit:
            self.end(Status.RESOURCE_EXHAUSTED, f"a request of {len(payload)} bytes, and {limit} are allowed")
        return payload

    # Called by the connection

    def opened(self) -> None:
        """Note that the call has its stream."""

    def headers(self, fields: list[Field], *, ended: bool) -> None:
        """Handle header fields: the first ones, or those that end the call.

        Raises:
            HpackError: a value is wrongly coded.
        """
        if ended:
            self.ended(decoded(fields))
        elif not value_of(fields[0]).startswith(b"1"):  # informational headers
            fields = decoded(fields)
            code, text = self.judge_headers(fields)
            if code is Status.OK:
                self.begun(fields)
            else:
                self.end(code, text)

    def begun(self, fields: list[Field]) -> None:
        """Handle the first header fields of a response, decoded."""
        self.first = fields
        if self.waiters is not None:
            self.wake_waiters()

    def judge_headers(self, fields: list[Field]) -> tuple[Status, str]:
        """Return the status that first headers amount to: OK when the peer speaks gRPC."""
        found = {field[0]: field[1] for field in fields}
        status, kind = found.get(b":status", b""), found.get(b"content-type", b"")
        if status == b"200" and kind.startswith(b"application/grpc"):
            return Status.OK, ""
        text = f"the answer is no gRPC: HTTP status {status.decode('latin-1')}, {kind.decode('latin-1')!r}"
        return BY_HTTP.get(status, Status.UNKNOWN), text

    def data(self, data: bytes, size: int, *, ended: bool) -> None:
        """Handle data of the response; `size` is what it counts for the windows."""
        raise NotImplementedError

    def messages_of(self, data: bytes) -> list[bytes]:
        """Return the messages that are whole now; none when they end the call."""
        if self.first is None:
            self.end(Status.INTERNAL, "the answer begins without headers", reset=Code.PROTOCOL_ERROR)
            return []
        if self.assembler is None:
            self.assembler = Assembler(self.channel.receive_max)
        try:
            return self.assembler.feed(data)
        except CompressedMessage as error:
            self.end(Status.INTERNAL, str(error))
        except MessageTooLong as error:
            self.end(Status.RESOURCE_EXHAUSTED, str(error))
        return []

    def ended(self, fields: list[Field]) -> None:
        """Handle the fields that end the call, decoded."""
        self.last = fields
        found = {field[0]: field[1] for field in fields}
        number = found.get(b"grpc-status")
        if number is not None:
            known = STATUSES.get(int(number)) if number.isdigit() and len(number) < 4 else None
            self.end(known or Status.UNKNOWN, unquote(found.get(b"grpc-message", b""), errors="replace"))
            return
        code, text = (Status.OK, "") if self.first is not None else self.judge_headers(fields)
        if code is Status.OK:
            code, text = Status.UNKNOWN, NO_STATUS
        self.end(code, text)

    def reset(self, code: int) -> None:
        """Handle a stream that has ended early, by the peer or by its fault."""
        if code == Code.REFUSED_STREAM and self.retry():
            return
        name = Code(code).name if code in CODES else str(code)
        self.end(BY_RESET.get(code, Status.INTERNAL), f"the server has reset the stream: {name}")

    def retry(self) -> bool:
        """Begin again on another connection, unless the peer has seen the call; return whether it does."""
        if self.over or self.retried or self.request is None or self.first is not None:
            return False
        self.retried = True
        self.release_stream(Code.CANCEL)
        self.channel.begin(self)
        return True

    def drained(self) -> None:
        """Note that all data that had to wait was sent."""

    # The end

    def release_stream(self, code: Code) -> None:
        """Release the stream; unless both sides have ended, it is reset with `code`."""
        connection, stream = self.connection, self.stream
        if connection is None or stream is None:
            self.channel.parked.pop(self, None)
            return
        self.connection = self.stream = None
        stream.app = None
        if not (stream.local_closed and stream.remote_closed):
            connection.conn.reset(stream, code)
            connection.schedule_flush()
        if connection.stream_end_awaited:
            connection.on_stream_end()

    def end(self, code: Status, text: str, *, reset: Code = Code.CANCEL) -> None:
        """End the call and wake all waiters; a stream that is still open is reset with `reset`."""
        if self.over:
            return
        self.over, self.status, self.text = True, code, text
        bucket = self.bucket
        if bucket is not None:
            self.bucket = None
            bucket.calls.pop(self, None)
        self.release_stream(reset)
        self.request = self.assembler = None
        self.finished()
        if self.waiters is not None:
            self.wake_waiters()

    def finished(self) -> None:
        """Wake what waits for the response."""
        raise NotImplementedError

    def prepare(self) -> None:
        """Make what this kind of call needs besides."""
        raise NotImplementedError

    def expire(self) -> None:
        """End a call whose deadline has passed."""
        self.end(Status.DEADLINE_EXCEEDED, "Deadline Exceeded")

    def cancel(self) -> bool:
        """End the call; its waiters get CancelledError. Return whether it was under way."""
        if self.over:
            return False
        self.cancelled_locally = True
        self.end(Status.CANCELLED, CANCELLED_HERE)
        return True

    def failure(self) -> BaseException | None:
        """Return the exception of a call that has failed; None for OK."""
        if self.status is Status.OK:
            return None
        if self.cancelled_locally:
            return asyncio.CancelledError()
        return grpc.aio.AioRpcError(
            self.status, metadata_of(self.first), metadata_of(self.last), details=self.text
        )

    def wake_waiters(self) -> None:
        """Wake all that wait for the end, or for the first headers."""
        waiters, self.waiters = self.waiters or (), None
        for waiter in waiters:
            if not waiter.done():
                waiter.set_result(None)

    async def wait_for_headers(self) -> None:
        """Wait for the first headers, or for the end."""
        waiter = self.channel.loop.create_future()
        self.waiters = self.waiters or []
        self.waiters.append(waiter)
        await waiter

    # For callers

    def done(self) -> bool:
        """Return whether the call is over."""
        return self.over

    def cancelled(self) -> bool:
        """Return whether it was cancelled, by either side."""
        return self.over and self.status is Status.CANCELLED

    def time_remaining(self) -> float | None:
        """Return the seconds until the deadline."""
        return None if self.deadline is None else max(0.0, self.deadline - self.channel.loop.time())

    async def code(self) -> Status:
        """Return the status, once the call is over."""
        while not self.over:
            await self.wait_for_headers()
        return self.status

    async def details(self) -> str:
        """Return the status's text, once the call is over."""
        await self.code()
        return self.text

    async def initial_metadata(self) -> grpc.aio.Metadata:
        """Return the metadata before the response."""
        while not self.over and self.first is None:
            await self.wait_for_headers()
        return metadata_of(self.first)

    async def trailing_metadata(self) -> grpc.aio.Metadata:
        """Return the metadata behind the response, once the call is over."""
        while not self.over:
            await self.wait_for_headers()
        return metadata_of(self.last)

    async def wait_for_connection(self) -> None:
        """Wait for the first headers.

        Raises:
            grpc.aio.AioRpcError: the call has failed.
        """
        await self.initial_metadata()
        if self.over and (failure := self.failure()) is not None:
            raise failure


class UnaryCall(ClientCall):
    """One request, one response."""

    message: bytes | None = None

    def prepare(self) -> None:
        """Make the future."""
        self.future: asyncio.Future[Any] = self.channel.loop.create_future()

    def data(self, data: bytes, size: int, *, ended: bool) -> None:
        """Handle the response's data."""
        if self.stream is not None and self.connection is not None:
            self.connection.conn.consumed(self.stream, size)
        if data:
            # Nearly every response comes in one frame.
            if (
                self.assembler is None
                and self.message is None
                and data[0] == 0
                and len(data) >= PREFIX_BYTES
                and int.from_bytes(data[1:PREFIX_BYTES]) == len(data) - PREFIX_BYTES
                and len(data) - PREFIX_BYTES <= self.channel.receive_max
                and self.first is not None
            ):
                self.message = data[PREFIX_BYTES:]
            else:
                for message in self.messages_of(data):
                    if self.message is not None:
                        self.end(Status.INTERNAL, SECOND_RESPONSE)
                        return
                    self.message = message
        if ended:
            self.end(Status.UNKNOWN, NO_STATUS)

    def finished(self) -> None:
        """Complete the future."""
        future = self.future
        if future.done():
            return
        if self.status is Status.OK:
            if self.message is None:
                self.status, self.text = Status.INTERNAL, NO_RESPONSE
            else:
                deserializer = self.method.deserializer
                try:
                    future.set_result(self.message if deserializer is None else deserializer(self.message))
                    return
                except Exception as error:  # noqa: BLE001 - whatever a deserializer raises
                    self.status, self.text = Status.INTERNAL, f"the answer can't be read: {error!r}"
        failure = self.failure()
        if failure is None or isinstance(failure, asyncio.CancelledError):
            future.cancel()
            return
        future.set_exception(failure)
        future.exception()  # a call need not be awaited

    def __await__(self) -> Generator[Any, None, Any]:
        """Wait for the response; a task that is cancelled meanwhile cancels the call."""
        try:
            return (yield from self.future)
        except asyncio.CancelledError:
            self.cancel()
            raise


def decoded(fields: list[Field]) -> list[Field]:
    """Return fields with their values decoded.

    Raises:
        HpackError: one is wrongly coded.
    """
    return [(field[0], value_of(field), False) for field in fields]


def metadata_of(fields: list[Field] | None) -> grpc.aio.Metadata:
    """Return decoded fields as metadata; of names in -bin as bytes, without malformed base64."""
    found = grpc.aio.Metadata()
    for name, value, _ in fields or ():
        if name[:1] == b":" or name in NOT_METADATA:
            continue
        if not name.endswith(b"-bin"):
            found.add(name.decode("latin-1"), value.decode("utf-8", "replace"))
            continue
        for part in value.split(b","):  # several values of one name may stand in one field
            with contextlib.suppress(ValueError):
                found.add(name.decode("latin-1"), base64.b64decode(part + b"=" * (-len(part) % 4)))
    return found
