"""How calls end that last: trailing metadata, deadlines, and the server's stop."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import grpc
import grpc.aio
import pytest

from support.http2.frames import HELLO, RST, call, frame, headers, setting, statuses, u32
from support.http2.in_memory import RawPeer
from support.waiting import eventually
from whimbrel.deferred import Deferred
from whimbrel.errors import NotReady
from whimbrel.pb.apache.rocketmq.v2 import definition_pb2, service_pb2
from whimbrel.rpc.api.status import DETAILS_KEY
from whimbrel.rpc.client.channel import open_aio_channel
from whimbrel.rpc.http2.errors import Code
from whimbrel.rpc.server.connection import NativeConnection
from whimbrel.rpc.server.handlers import (
    BidiMethod,
    Call,
    Outbox,
    PulledStreamMethod,
    ServerStreamMethod,
    Service,
    UnaryMethod,
)
from whimbrel.rpc.server.native import NativeServer
from whimbrel.rpc.server.serving import serve

REQUEST, RESPONSE = service_pb2.HeartbeatRequest, service_pb2.HeartbeatResponse
OK = RESPONSE(status=definition_pb2.Status(code=20000))  # type: ignore[arg-type]
DEADLINE_EXCEEDED = 4


class Rig:
    """Methods that end in the ways that tests ask for."""

    def __init__(self) -> None:
        self.held: list[Deferred[Any]] = []
        self.outboxes: list[Outbox] = []
        self.error: Exception | None = None
        self.ended = 0

    def later(self, call: Call, request: Any) -> Deferred[Any]:
        self.held.append(Deferred())
        return self.held[-1]

    def answers(self, call: Call, request: Any) -> list[Any]:
        call.trailers.append(("x-end", "here"))
        if self.error is not None:
            raise self.error
        return [OK]

    async def pulled(self, call: Call, request: Any) -> AsyncGenerator[Any, None]:
        try:
            yield OK
            if request.group.name:
                await asyncio.Event().wait()
            call.trailers.append(("x-end", "here"))
            if self.error is not None:
                raise self.error
        finally:
            self.ended += 1

    def opened(self, call: Call, outbox: Outbox) -> "Rig":
        call.trailers.append(("x-end", "here"))
        self.outboxes.append(outbox)
        return self

    def received(self, message: Any) -> None:
        self.outboxes[-1].send(OK)
        if not message.group.name:
            self.outboxes[-1].close(self.error)

    def half_closed(self) -> None:
        pass

    def closed(self) -> None:
        self.ended += 1

    @property
    def service(self) -> Service:
        return Service(
            "t.T",
            (
                UnaryMethod("Later", REQUEST, self.later),
                ServerStreamMethod("Several", REQUEST, self.answers),
                PulledStreamMethod("Pulled", REQUEST, self.pulled),
                BidiMethod("Both", REQUEST, self.opened),
                BidiMethod("Single", REQUEST, self.opened, single_request=True),
            ),
        )


LASTS = REQUEST(group=definition_pb2.Resource(name="lasts"))


@asynccontextmanager
async def serving(rig: Rig) -> AsyncIterator[tuple[NativeServer, grpc.aio.Channel]]:
    server = await serve([rig.service], host="127.0.0.1", port=0)
    channel = open_aio_channel(server.address)
    try:
        yield server, channel
    finally:
        await channel.close()
        await server.stop(grace=0)


def begun(channel: grpc.aio.Channel, name: str, request: Any) -> Any:
    """Begin a call of a method with many answers."""
    words: Any = {
        "request_serializer": REQUEST.SerializeToString,
        "response_deserializer": RESPONSE.FromString,
    }
    if name == "Both":
        return channel.stream_stream(f"/t.T/{name}", **words)(iter([request]), timeout=20)
    return channel.unary_stream(f"/t.T/{name}", **words)(request, timeout=20)


@pytest.mark.transport
@pytest.mark.parametrize("name", ["Several", "Pulled", "Both", "Single"])
async def test_trailing_metadata_come_with_the_end_and_with_an_error(name: str) -> None:
    rig = Rig()
    async with serving(rig) as (_, channel):
        call = begun(channel, name, REQUEST())
        assert [each async for each in call] == [OK]
        assert ("x-end", "here") in list(await call.trailing_metadata())
        rig.error = NotReady("not yet")
        call = begun(channel, name, REQUEST())
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            _ = [each async for each in call]
        assert caught.value.code() is grpc.StatusCode.UNAVAILABLE
        trailing = dict(await call.trailing_metadata())
        assert trailing["x-end"] == "here" and b"NOT_READY" in trailing[DETAILS_KEY]


@pytest.mark.transport
async def test_stop_lets_calls_in_flight_end_and_takes_no_new_ones() -> None:
    rig = Rig()
    async with serving(rig) as (server, channel):
        later: Any = channel.unary_unary(
            "/t.T/Later",
            request_serializer=REQUEST.SerializeToString,
            response_deserializer=RESPONSE.FromString,
        )
        parked = asyncio.ensure_future(later(REQUEST(), timeout=20))
        await eventually(lambda: rig.held)
        stopping = asyncio.ensure_future(server.stop(grace=20))
        await asyncio.sleep(0)
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await later(REQUEST(), timeout=20)
        assert caught.value.code() is grpc.StatusCode.UNAVAILABLE
        assert len(rig.held) == 1 and not stopping.done()
        assert rig.held[0].complete(OK)
        assert await parked == OK
        async with asyncio.timeout(10):
            await stopping


# grpcio's clients end a call at its deadline themselves; here nobody but the server looks at it.


@asynccontextmanager
async def raw(rig: Rig) -> AsyncIterator[tuple[NativeServer, RawPeer]]:
    server = await serve([rig.service], host="127.0.0.1", port=0)
    peer = RawPeer(server)
    peer.send(HELLO)
    try:
        yield server, peer
    finally:
        await server.stop(grace=0)


SOON = [(b"grpc-timeout", b"10m")]


@pytest.mark.parametrize("name", ["Later", "Pulled", "Both", "Single"])
async def test_deadline_ends_a_call_at_the_server(name: str) -> None:
    rig = Rig()
    async with raw(rig) as (server, peer):
        # The call's begin with a deadline, and the rest of it, which begins behind the headers' frame.
        peer.send(headers(1, f"/t.T/{name}", SOON))
        peer.send(call(1, body=LASTS.SerializeToString())[len(headers(1)) :])
        ended: dict[int, int] = {}
        await eventually(lambda: ended.update(statuses(peer.frames())) or ended)
        assert ended == {1: DEADLINE_EXCEEDED}
        await eventually(lambda: rig.ended or rig.held)
        assert all(deferred.cancelled for deferred in rig.held)
        assert all(count == 0 for count in server.streams.open_by_method.values())
        assert not server.streams.outboxes
        await eventually(lambda: not server.tasks)


@pytest.mark.parametrize("name", ["Pulled", "Both"])
async def test_deadline_drops_what_waits_for_a_window(name: str) -> None:
    rig = Rig()
    async with raw(rig) as (_, peer):
        peer.send(setting(4, 0) + headers(1, f"/t.T/{name}", SOON))
        peer.send(call(1, body=LASTS.SerializeToString())[len(headers(1)) :])
        await eventually(lambda: (RST, 0, 1, u32(Code.CANCEL)) in peer.frames())
        await eventually(lambda: rig.ended == 1)
        assert isinstance(peer.protocol, NativeConnection)
        assert peer.protocol.unread == 0 and not peer.protocol.conn.streams


async def test_reset_of_the_peer_reaches_who_holds_the_call() -> None:
    rig = Rig()
    cancelled: list[bool] = []
    async with raw(rig) as (_, peer):
        peer.send(call(1, "/t.T/Later"))
        rig.held[0].on_cancel = lambda: cancelled.append(True)
        peer.frames()
        peer.send(frame(RST, 0, 1, u32(Code.CANCEL)))
        assert cancelled == [True] and not rig.held[0].complete(OK)
        assert peer.frames() == []
