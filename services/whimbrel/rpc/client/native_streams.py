"""Client calls with a stream of messages, one way or both; see `native_calls.py`.

**Bounds.** A stream that nobody reads holds one window and one message: received data is given back to the
peer when it is read. `write` waits while earlier data waits for a window or for the socket.
"""

import asyncio
import logging
from collections import deque
from collections.abc import AsyncIterable, AsyncIterator, Generator, Iterable
from typing import Any

import grpc
import grpc.aio

from whimbrel.rpc.client.native_calls import (
    NO_RESPONSE,
    NO_STATUS,
    PREFIX_BYTES,
    SECOND_RESPONSE,
    ClientCall,
    Method,
)
from whimbrel.rpc.http2.grpc_format import prefixed

__all__ = ["BidiCall", "StreamCall", "StreamUnaryCall"]

Status = grpc.StatusCode

logger = logging.getLogger(__name__)


class StreamCall(ClientCall):
    """One request, many responses."""

    def prepare(self) -> None:
        """Make the queue of responses."""
        self.messages: deque[bytes] = deque()
        self.reader: asyncio.Future[None] | None = None
        self.held = 0  # bytes of the peer's window that were not read

    def data(self, data: bytes, size: int, *, ended: bool) -> None:
        """Handle data of responses."""
        self.held += size
        self.messages.extend(self.messages_of(data) if data else ())
        if self.messages:
            self.wake()
        elif self.stream is not None:
            self.give_back(self.held)  # a part of a message, which may be larger than the window
        if ended:
            self.end(Status.UNKNOWN, NO_STATUS)

    def give_back(self, size: int) -> None:
        """Let the peer send as much again."""
        size = min(size, self.held)
        self.held -= size
        if self.connection is not None and self.stream is not None:
            self.connection.conn.consumed(self.stream, size)
            if self.connection.conn.out:
                self.connection.schedule_flush()

    def wake(self) -> None:
        """Wake the reader."""
        if self.reader is not None and not self.reader.done():
            self.reader.set_result(None)

    def finished(self) -> None:
        """Wake the reader; `cancel` drops what has come already."""
        if self.cancelled_locally:
            self.messages.clear()
        self.wake()

    async def read(self) -> Any:
        """Return the next response; `grpc.aio.EOF` when there are no more.

        Raises:
            grpc.aio.AioRpcError: the call has failed; responses that came before are returned first.
        """
        while not self.messages:
            if self.over:
                if (failure := self.failure()) is not None:
                    raise failure
                return grpc.aio.EOF
            assert self.reader is None, "two tasks read one stream"
            self.reader = self.channel.loop.create_future()
            try:
                await self.reader
            except asyncio.CancelledError:
                self.cancel()
                raise
            finally:
                self.reader = None
        message = self.messages.popleft()
        self.give_back(len(message) + PREFIX_BYTES if self.messages else self.held)
        deserializer = self.method.deserializer
        return message if deserializer is None else deserializer(message)

    async def __aiter__(self) -> AsyncIterator[Any]:
        """Yield the responses."""
        while (message := await self.read()) is not grpc.aio.EOF:
            yield message


class BidiCall(StreamCall):
    """Many requests, many responses."""

    client_streaming = True

    def __init__(self, method: Method, request: Any, timeout: float | None, metadata: Any) -> None:
        self.writer: asyncio.Future[None] | None = None
        self.pump: asyncio.Task[None] | None = None
        self.written = False  # all of it
        super().__init__(method, None, timeout, metadata)
        if request is not None and not self.over:
            self.pump = method.channel.loop.create_task(self.write_all(request))

    async def write_all(self, requests: AsyncIterable[Any] | Iterable[Any]) -> None:
        """Write all requests of an iterable."""
        try:
            async for request in iterate(requests):
                await self.write(request)
            await self.done_writing()
        except (grpc.aio.AioRpcError, asyncio.InvalidStateError):
            pass  # the call is over; its reader gets the error
        except Exception:
            logger.exception("%s: the requests can't be made", self.method.path)
            self.cancel()

    async def write(self, request: Any) -> None:
        """Send a request; wait until nothing of it waits. Not for two tasks at a time.

        Raises:
            grpc.aio.AioRpcError: the call has failed.
            asyncio.InvalidStateError: it has ended well, or `done_writing` was called.
        """
        self.check_open()
        payload = self.encoded(request)
        while self.stream is None:
            self.check_open()
            await self.wait_writable()
        if self.connection is not None:
            self.connection.conn.send_data(self.stream, prefixed(payload))
            self.connection.schedule_flush()
        while self.connection is not None and (self.stream.waiting or self.connection.paused):
            await self.wait_writable()
        if self.over and (failure := self.failure()) is not None:
            raise failure

    async def done_writing(self) -> None:
        """End the requests."""
        while self.stream is None and not self.over:
            await self.wait_writable()
        self.written = True
        if self.connection is not None and self.stream is not None:
            self.connection.conn.send_data(self.stream, b"", end=True)
            self.connection.schedule_flush()

    def check_open(self) -> None:
        """Refuse to write to a call that takes no more requests."""
        if self.over and (failure := self.failure()) is not None:
            raise failure
        if self.over or self.written:
            raise asyncio.InvalidStateError("the call takes no more requests: it is over, or done writing")

    async def wait_writable(self) -> None:
        """Wait for a stream, for room, or for the end."""
        assert self.writer is None, "two tasks write one stream"
        self.writer = self.channel.loop.create_future()
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
        if self.pump is not None and self.cancelled_locally:
            self.pump.cancel()


async def iterate(requests: AsyncIterable[Any] | Iterable[Any]) -> AsyncIterator[Any]:
    """Yield requests of either kind of iterable, as grpc.aio takes both."""
    if isinstance(requests, AsyncIterable):
        async for request in requests:
            yield request
    else:
        for request in requests:
            yield request


class StreamUnaryCall(BidiCall):
    """Many requests, one response."""

    def __await__(self) -> Generator[Any, None, Any]:
        """Wait for the response."""
        return self.response().__await__()

    async def response(self) -> Any:
        """Return the response.

        Raises:
            grpc.aio.AioRpcError: the call has failed.
        """
        response = await self.read()
        if response is grpc.aio.EOF:
            raise grpc.aio.AioRpcError(Status.INTERNAL, details=NO_RESPONSE)
        if await self.read() is not grpc.aio.EOF:
            self.cancel()
            raise grpc.aio.AioRpcError(Status.INTERNAL, details=SECOND_RESPONSE)
        return response
