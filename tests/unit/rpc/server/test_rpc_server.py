"""Handlers behind a server, over a real loopback connection."""

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import grpc
import grpc.aio
import pytest
from grpc_health.v1 import health_pb2

from support.waiting import eventually
from whimbrel.deferred import Deferred
from whimbrel.errors import NotReady, NotWritable, ReplicaTimeout, TopicNotFound, WhimbrelError
from whimbrel.pb.apache.rocketmq.v2 import definition_pb2, service_pb2
from whimbrel.rpc.api.status import error_of
from whimbrel.rpc.client.channel import open_aio_channel, open_channel
from whimbrel.rpc.server.handlers import BidiMethod, Call, Outbox, ServerStreamMethod, Service, UnaryMethod
from whimbrel.rpc.server.native import NativeServer
from whimbrel.rpc.server.protocol_detection import host_and_port
from whimbrel.rpc.server.serving import serve

pytestmark = pytest.mark.transport

REQUEST = service_pb2.HeartbeatRequest
RESPONSE = service_pb2.HeartbeatResponse
COMMAND = service_pb2.TelemetryCommand


def response(text: str, code: int = 20000) -> Any:
    return RESPONSE(status=definition_pb2.Status(code=code, message=text))  # type: ignore[arg-type]


@asynccontextmanager
async def serving(*methods: Any) -> AsyncIterator[tuple[NativeServer, grpc.aio.Channel]]:
    server = await serve([Service("t.T", methods)], host="127.0.0.1", port=0)
    channel = open_aio_channel(server.address)
    try:
        yield server, channel
    finally:
        await channel.close()
        await server.stop(grace=0)


def unary(channel: grpc.aio.Channel, name: str = "U") -> Callable[..., Awaitable[Any]]:
    return channel.unary_unary(
        f"/t.T/{name}",
        request_serializer=REQUEST.SerializeToString,
        response_deserializer=RESPONSE.FromString,
    )


def stream(channel: grpc.aio.Channel) -> Any:
    return channel.stream_stream(
        "/t.T/B", request_serializer=COMMAND.SerializeToString, response_deserializer=COMMAND.FromString
    )()


async def test_handler_gets_the_call_as_plain_values() -> None:
    calls: list[Call] = []

    def handle(call: Call, request: Any) -> Any:
        calls.append(call)
        call.trailers.append(("x-suggest", "1"))
        return response(request.group.name)

    async with serving(UnaryMethod("U", REQUEST, handle)) as (_, channel):
        pending: Any = unary(channel)(
            REQUEST(group=definition_pb2.Resource(name="g")), timeout=9, metadata=(("x-mq-client-id", "c"),)
        )
        assert (await pending).status.message == "g"
        assert ("x-suggest", "1") in list(await pending.trailing_metadata())
    host, _, port = calls[0].peer.rpartition(":")
    assert (host, int(port) > 0, calls[0].method) == ("127.0.0.1", True, "/t.T/U")
    assert calls[0].metadata["x-mq-client-id"] == "c"
    assert calls[0].deadline is not None


async def test_no_deadline_is_none() -> None:
    calls: list[Call] = []

    def handle(call: Call, _: Any) -> Any:
        calls.append(call)
        return response("ok")

    async with serving(UnaryMethod("U", REQUEST, handle)) as (_, channel):
        await unary(channel)(REQUEST())
    assert calls[0].deadline is None


async def test_deferred_is_answered_when_it_completes() -> None:
    held: list[Deferred[Any]] = []

    def handle(call: Call, request: Any) -> Deferred[Any]:
        held.append(Deferred())
        return held[-1]

    async with serving(UnaryMethod("U", REQUEST, handle)) as (_, channel):
        pending = asyncio.ensure_future(unary(channel)(REQUEST()))
        await eventually(lambda: held and held[0].waker)
        assert held[0].complete(response("later"))
        assert not held[0].complete(response("again"))
        assert (await pending).status.message == "later"


async def test_caller_that_goes_cancels_the_deferred() -> None:
    held: list[Deferred[Any]] = []
    cancelled: list[bool] = []

    def handle(call: Call, request: Any) -> Deferred[Any]:
        deferred: Deferred[Any] = Deferred()
        deferred.on_cancel = lambda: cancelled.append(True)
        held.append(deferred)
        return deferred

    async with serving(UnaryMethod("U", REQUEST, handle)) as (_, channel):
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await unary(channel)(REQUEST(), timeout=0.1)
        assert caught.value.code() is grpc.StatusCode.DEADLINE_EXCEEDED
        await eventually(lambda: cancelled)
        assert held[0].cancelled
        assert not held[0].complete(response("too late"))


async def test_error_without_fail_is_a_status_that_comes_back_as_the_same_class() -> None:
    def handle(call: Call, request: Any) -> Any:
        raise NotWritable("a slave takes no writes")

    async with serving(UnaryMethod("U", REQUEST, handle)) as (server, channel):
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await unary(channel)(REQUEST())
        assert caught.value.code() is grpc.StatusCode.UNAVAILABLE
        error = error_of(caught.value)
        assert (type(error), str(error)) == (NotWritable, "a slave takes no writes")

        def call_from_a_thread() -> WhimbrelError:
            with open_channel(server.address) as plain:
                try:
                    plain.unary_unary(
                        "/t.T/U",
                        request_serializer=REQUEST.SerializeToString,
                        response_deserializer=RESPONSE.FromString,
                    )(REQUEST(), timeout=5)
                except grpc.RpcError as failure:
                    return error_of(failure)
            raise AssertionError

        assert type(await asyncio.to_thread(call_from_a_thread)) is NotWritable


async def test_error_with_fail_is_a_body_in_an_ok_call() -> None:
    def handle(call: Call, request: Any) -> Deferred[Any]:
        deferred: Deferred[Any] = Deferred()
        deferred.fail(ReplicaTimeout("stored, not confirmed"))
        return deferred

    def fail(call: Call, error: Any) -> Any:
        return response(str(error), error.code)

    async with serving(UnaryMethod("U", REQUEST, handle, fail)) as (_, channel):
        answer = await unary(channel)(REQUEST())
    assert (answer.status.code, answer.status.message) == (50402, "stored, not confirmed")


async def test_bug_is_logged_once_and_keeps_its_text_to_itself(caplog: pytest.LogCaptureFixture) -> None:
    def handle(call: Call, request: Any) -> Any:
        raise KeyError("secret")

    async with serving(UnaryMethod("U", REQUEST, handle)) as (_, channel):
        with caplog.at_level(logging.ERROR), pytest.raises(grpc.aio.AioRpcError) as caught:
            await unary(channel)(REQUEST())
    assert caught.value.code() is grpc.StatusCode.INTERNAL
    assert "secret" not in (caught.value.details() or "")
    assert len([record for record in caplog.records if record.exc_info]) == 1


async def test_request_that_does_not_decode_is_an_invalid_argument() -> None:
    async with serving(UnaryMethod("U", REQUEST, lambda *_: response("never"))) as (_, channel):
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            call: Any = channel.unary_unary("/t.T/U")
            await call(b"\xff\xff\xff")
    assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT


async def test_unknown_method_is_unimplemented() -> None:
    async with serving() as (_, channel):
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await unary(channel, "Missing")(REQUEST())
    assert caught.value.code() is grpc.StatusCode.UNIMPLEMENTED


async def test_server_stream_sends_the_whole_list() -> None:
    def handle(call: Call, request: Any) -> Any:
        if request.group.name == "bad":
            raise TopicNotFound("no such topic")
        return [response(str(number)) for number in range(5)]

    async with serving(
        ServerStreamMethod("S", REQUEST, handle, lambda call, error: [response("failed", 40402)])
    ) as (_, channel):
        method: Any = channel.unary_stream(
            "/t.T/S", request_serializer=REQUEST.SerializeToString, response_deserializer=RESPONSE.FromString
        )
        assert [item.status.message async for item in method(REQUEST())] == list("01234")
        bad = REQUEST(group=definition_pb2.Resource(name="bad"))
        assert [item.status.code async for item in method(bad)] == [40402]


class Recorder:
    """A stream handler that notes what happens, and answers each message when told to."""

    def __init__(self, call: Call, outbox: Outbox, *, echo: bool = True) -> None:
        self.outbox = outbox
        self.echo = echo
        self.events: list[str] = []

    def received(self, message: Any) -> None:
        self.events.append(f"received {message.status.message}")
        if message.status.message == "raise":
            raise NotReady("not yet")
        if self.echo:
            self.outbox.send(message)

    def half_closed(self) -> None:
        self.events.append("half closed")
        self.outbox.close()

    def closed(self) -> None:
        self.events.append("closed")


def command(text: str) -> Any:
    return COMMAND(status=definition_pb2.Status(message=text))


@asynccontextmanager
async def streaming() -> AsyncIterator[tuple[NativeServer, grpc.aio.Channel, list[Recorder]]]:
    opened: list[Recorder] = []

    def open_stream(call: Call, outbox: Outbox) -> Recorder:
        opened.append(Recorder(call, outbox))
        return opened[-1]

    async with serving(BidiMethod("B", COMMAND, open_stream)) as (server, channel):
        yield server, channel, opened


async def test_stream_sends_initial_metadata_before_any_message() -> None:
    async with streaming() as (_, channel, _opened):
        call = stream(channel)
        async with asyncio.timeout(5):
            await call.initial_metadata()
        call.cancel()


async def test_stream_carries_messages_both_ways_until_the_peer_is_done() -> None:
    async with streaming() as (_, channel, opened):
        call = stream(channel)
        await call.write(command("a"))
        assert (await call.read()).status.message == "a"
        await call.write(command("b"))
        assert (await call.read()).status.message == "b"
        await call.done_writing()
        assert await call.read() is grpc.aio.EOF
        assert await call.code() is grpc.StatusCode.OK
        await eventually(lambda: opened[0].events[-1] == "closed")
        assert opened[0].events == ["received a", "received b", "half closed", "closed"]


async def test_error_while_receiving_ends_the_stream_with_its_status() -> None:
    async with streaming() as (_, channel, opened):
        call = stream(channel)
        await call.write(command("raise"))
        with pytest.raises(grpc.aio.AioRpcError):
            await call.read()
        assert await call.code() is grpc.StatusCode.UNAVAILABLE
        await eventually(lambda: opened[0].events == ["received raise", "closed"])


async def test_peer_that_goes_closes_the_handler_once() -> None:
    async with streaming() as (_, channel, opened):
        call = stream(channel)
        await call.write(command("a"))
        await call.read()
        call.cancel()
        await eventually(lambda: "closed" in opened[0].events)
        assert opened[0].events.count("closed") == 1
        assert opened[0].events[-1] == "closed"
        assert not opened[0].outbox.send(command("late"))


async def test_stop_ends_open_streams_at_once() -> None:
    async with streaming() as (server, channel, opened):
        call = stream(channel)
        await call.write(command("a"))
        await call.read()
        async with asyncio.timeout(5):
            await server.stop(grace=30)
        assert await call.code() is grpc.StatusCode.UNAVAILABLE
        assert opened[0].events[-1] == "closed"


async def test_health_knows_the_services() -> None:
    async with serving(UnaryMethod("U", REQUEST, lambda *_: response("ok"))) as (_, channel):
        check: Any = channel.unary_unary(
            "/grpc.health.v1.Health/Check",
            request_serializer=health_pb2.HealthCheckRequest.SerializeToString,
            response_deserializer=health_pb2.HealthCheckResponse.FromString,
        )
        for name in ("", "t.T"):
            assert (await check(health_pb2.HealthCheckRequest(service=name))).status == 1
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await check(health_pb2.HealthCheckRequest(service="other"))
        assert caught.value.code() is grpc.StatusCode.NOT_FOUND


async def test_health_watch_tells_of_the_stop() -> None:
    async with serving() as (server, channel):
        watch: Any = channel.unary_stream(
            "/grpc.health.v1.Health/Watch",
            request_serializer=health_pb2.HealthCheckRequest.SerializeToString,
            response_deserializer=health_pb2.HealthCheckResponse.FromString,
        )(health_pb2.HealthCheckRequest())
        assert (await watch.read()).status == health_pb2.HealthCheckResponse.SERVING
        stop = asyncio.ensure_future(server.stop(grace=5))
        assert (await watch.read()).status == health_pb2.HealthCheckResponse.NOT_SERVING
        await stop


async def test_taken_port_is_a_clear_error() -> None:
    async with serving() as (server, _):
        with pytest.raises(OSError, match=f"can't listen on 127.0.0.1:{server.port}"):
            await serve([], host="127.0.0.1", port=server.port)


@pytest.mark.parametrize(
    ("name", "address"),
    [
        (("127.0.0.1", 50), "127.0.0.1:50"),
        (("::1", 50, 0, 0), "[::1]:50"),
        (("fe80::1%eth0", 50, 0, 2), "[fe80::1%eth0]:50"),
        ("/run/x", "/run/x"),
    ],
)
def test_peer_address_is_host_and_port(name: Any, address: str) -> None:
    assert host_and_port(name) == address
