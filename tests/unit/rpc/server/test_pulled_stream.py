"""Streams whose responses are made one at a time, over a real loopback connection."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import grpc
import grpc.aio
import pytest

from support.broker.bulk import stream
from support.waiting import eventually
from whimbrel.errors import RangeGone, Refused, Throttled
from whimbrel.pb.whimbrel.bulk.v1 import bulk_service_pb2 as bulk
from whimbrel.rpc.api.bulk_calls import OutboundStream, RecordFrame, open_bulk_channel, read_records
from whimbrel.rpc.api.bulk_calls import stream_blocking as blocking
from whimbrel.rpc.client.channel import open_aio_channel
from whimbrel.rpc.server.handlers import Call, PulledStreamMethod, Service
from whimbrel.rpc.server.native import NativeServer
from whimbrel.rpc.server.serving import serve
from whimbrel.rpc.server.shared import WRITE_BYTES_HIGH

pytestmark = pytest.mark.transport

MIB = 1 << 20
# What may be made that nobody reads, in MiB: both ends' buffers and the client's fixed window. Measured: 1.
IN_FLIGHT_MAX = 8
ROUND_TRIPS = 100  # of calls beside a stream, in which a maker that does not wait would make hundreds
# By itself grpcio's client widens its window the quicker data come, to 32 MiB and more, on some machines.
FIXED_WINDOW = (("grpc.http2.bdp_probe", 0),)


class Source:
    """Makes responses, and notes how many."""

    def __init__(self, count: int, size: int = 10, fail_at: int = -1, error: Exception | None = None) -> None:
        self.count, self.size, self.fail_at = count, size, fail_at
        self.error = error or RangeGone("the rest is gone")
        self.made = 0
        self.closed = False

    async def open(self, call: Call, request: Any) -> AsyncGenerator[Any, None]:
        try:
            for number in range(self.count):
                if number == self.fail_at:
                    raise self.error
                self.made += 1
                yield bulk.ReadRecordsResponse(records=bytes(self.size), next_offset=number + 1)
        finally:
            self.closed = True


@asynccontextmanager
async def serving(source: Source) -> AsyncIterator[tuple[NativeServer, grpc.aio.Channel]]:
    method = PulledStreamMethod("ReadRecords", bulk.ReadRecordsRequest, source.open)
    server = await serve([Service("whimbrel.bulk.v1.BulkService", (method,))], host="127.0.0.1", port=0)
    channel = open_aio_channel(server.address, FIXED_WINDOW)
    try:
        yield server, channel
    finally:
        await channel.close()
        await server.stop(grace=0)


def reading() -> OutboundStream[RecordFrame]:
    return read_records("t", 0, start=0)


async def quiet(source: Source, server: NativeServer) -> int:
    """Wait until nothing is made any more, and return how much was.

    Calls over another connection give the maker its chance: each takes both ends through several turns.
    """
    async with open_aio_channel(server.address) as other:
        check: Any = other.unary_unary("/grpc.health.v1.Health/Check")
        while True:
            made = source.made
            for _ in range(ROUND_TRIPS):
                await check(b"", timeout=10)
            if source.made == made:
                return made


async def test_responses_come_in_order_to_the_end() -> None:
    source = Source(50)
    async with serving(source) as (server, channel):
        found = [frame.next_offset async for frame in stream(channel, reading(), timeout_s=10)]
        assert found == list(range(1, 51))
        await eventually(lambda: server.streams.open_by_method["ReadRecords"] == 0)
    assert source.closed


async def test_blocking_client_reads_the_same() -> None:
    async with serving(Source(50)) as (server, _):

        def read() -> list[int]:
            with open_bulk_channel(server.address) as channel:
                return [frame.next_offset for frame in blocking(channel, reading(), timeout_s=10)]

        assert await asyncio.to_thread(read) == list(range(1, 51))


async def test_error_in_mid_stream_comes_after_the_responses_and_by_its_name() -> None:
    source = Source(50, fail_at=3)
    async with serving(source) as (_, channel):
        found = []
        with pytest.raises(RangeGone, match="the rest is gone"):
            async for frame in stream(channel, reading(), timeout_s=10):
                found.append(frame.next_offset)  # noqa: PERF401 - what came before the error counts
        assert found == [1, 2, 3]
        await eventually(lambda: source.closed)


async def test_bug_in_mid_stream_keeps_its_text_to_itself() -> None:
    async with serving(Source(50, fail_at=1, error=KeyError("secret"))) as (_, channel):
        with pytest.raises(Exception, match="internal error") as caught:
            [frame async for frame in stream(channel, reading(), timeout_s=10)]
        assert "secret" not in str(caught.value)


async def test_error_before_the_first_response_is_a_status() -> None:
    async with serving(Source(50, fail_at=0, error=Throttled("too many"))) as (_, channel):
        with pytest.raises(Throttled, match="too many"):
            [frame async for frame in stream(channel, reading(), timeout_s=10)]


async def test_request_that_does_not_decode_is_an_invalid_argument() -> None:
    async with serving(Source(1)) as (_, channel):
        method: Any = channel.unary_stream("/whimbrel.bulk.v1.BulkService/ReadRecords")
        call = method(b"\xff\xff")
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await call.read()
        assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT


async def test_slow_reader_slows_the_maker_down() -> None:
    source = Source(500, size=MIB)
    async with serving(source) as (server, channel):
        frames = stream(channel, reading())
        assert (await anext(frames)).next_offset == 1
        assert await quiet(source, server) <= 1 + IN_FLIGHT_MAX
        for _ in range(20):
            await anext(frames)
        assert await quiet(source, server) <= 21 + IN_FLIGHT_MAX
        assert max(peer.unread for peer in server.connections) <= WRITE_BYTES_HIGH + 2 * MIB
        await frames.aclose()
        await eventually(lambda: source.closed)
        assert source.made <= 22 + IN_FLIGHT_MAX


async def test_reader_that_goes_closes_the_maker() -> None:
    source = Source(500, size=MIB)
    async with serving(source) as (server, channel):
        async for _ in stream(channel, reading()):
            break
        await channel.close()
        await eventually(lambda: source.closed)
        await eventually(lambda: server.streams.open_by_method["ReadRecords"] == 0)


async def test_deadline_closes_the_maker_of_a_reader_that_hangs() -> None:
    source = Source(500, size=MIB)
    async with serving(source) as (_, channel):
        frames = stream(channel, reading(), timeout_s=0.5)
        await anext(frames)
        await eventually(lambda: source.closed)


async def test_stop_ends_a_stream_that_is_read_with_a_reason() -> None:
    source = Source(1_000_000)
    async with serving(source) as (server, channel):
        stopping: asyncio.Future[None] | None = None
        with pytest.raises(Refused, match="stopping"):
            async for _ in stream(channel, reading()):
                if stopping is None:
                    stopping = asyncio.ensure_future(server.stop(grace=20))
        assert stopping is not None
        async with asyncio.timeout(5):
            await stopping
    assert source.closed


async def test_stop_ends_a_stream_that_nobody_reads_after_the_grace() -> None:
    source = Source(500, size=MIB)
    async with serving(source) as (server, channel):
        frames = stream(channel, reading())
        await anext(frames)
        await quiet(source, server)
        async with asyncio.timeout(5):
            await server.stop(grace=0.1)
        await eventually(lambda: source.closed)
