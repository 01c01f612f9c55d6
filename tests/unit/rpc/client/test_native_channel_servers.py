"""Our own transport's channel, against our server and grpcio's, over a real loopback connection."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, Self

import grpc
import grpc.aio
import pytest

from whimbrel.deferred import Deferred
from whimbrel.errors import RequestTimeout, TopicNotFound, Unavailable, WhimbrelError
from whimbrel.pb.apache.rocketmq.v2 import definition_pb2, service_pb2
from whimbrel.rpc.api.calls import Outbound, perform
from whimbrel.rpc.api.status import error_of, grpc_status
from whimbrel.rpc.client.channel import open_aio_channel
from whimbrel.rpc.server.handlers import (
    BidiMethod,
    Call,
    Outbox,
    PulledStreamMethod,
    ServerStreamMethod,
    Service,
    UnaryMethod,
)
from whimbrel.rpc.server.limits import known_error
from whimbrel.rpc.server.serving import serve

Status = grpc.StatusCode
MESSAGE = service_pb2.TelemetryCommand
MIB = 1 << 20
PULLED = 200
CALL = Call("", "", {}, None)
AT_A_TIME = 300  # more than one read, less than a server's streams


def message(text: str) -> Any:
    return MESSAGE(status=definition_pb2.Status(message=text))


def unary(call: Call, request: Any) -> Any:
    match request.status.message:
        case "error":
            raise TopicNotFound("there is no such topic: näh")
        case "bug":
            raise RuntimeError("secret")
        case "never":
            return Deferred()
    call.trailers.append(("x-length", str(len(request.status.message))))
    return request


def listed(call: Call, request: Any) -> list[Any]:
    return [message(request.status.message) for _ in range(3)]


async def pulled(call: Call, request: Any) -> AsyncGenerator[Any, None]:
    for number in range(PULLED):
        yield message(f"{number:04}" * 4096)


class Echo:
    """Sends back what comes."""

    def __init__(self, outbox: Outbox) -> None:
        self.outbox = outbox

    def received(self, request: Any) -> None:
        if request.status.message == "error":
            raise TopicNotFound("not here")
        self.outbox.send(request)

    def half_closed(self) -> None:
        self.outbox.close()

    def closed(self) -> None:
        pass


METHODS = (
    UnaryMethod("U", MESSAGE, unary),
    ServerStreamMethod("L", MESSAGE, listed),
    PulledStreamMethod("P", MESSAGE, pulled),
    BidiMethod("B", MESSAGE, lambda call, outbox: Echo(outbox)),
)


class ForeignServer:
    """The same methods behind another implementation of HTTP/2 and gRPC."""

    async def start(self) -> Self:
        """Serve on a free port."""
        handlers = {
            "U": grpc.unary_unary_rpc_method_handler(self.unary, MESSAGE.FromString, bytes_of),
            "L": grpc.unary_stream_rpc_method_handler(self.listed, MESSAGE.FromString, bytes_of),
            "P": grpc.unary_stream_rpc_method_handler(self.pulled, MESSAGE.FromString, bytes_of),
            "B": grpc.stream_stream_rpc_method_handler(self.both, MESSAGE.FromString, bytes_of),
        }
        self.server = grpc.aio.server(options=[("grpc.max_receive_message_length", 2 * 4 * MIB)])
        self.server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("t.T", handlers),))
        self.address = f"127.0.0.1:{self.server.add_insecure_port('127.0.0.1:0')}"
        await self.server.start()
        return self

    async def stop(self, grace: float) -> None:
        """Serve no longer."""
        await self.server.stop(grace)

    async def unary(self, request: Any, context: Any) -> Any:
        call = Call("/t.T/U", "", {}, None)
        try:
            response = unary(call, request)
        except Exception as error:  # noqa: BLE001 - every error becomes a status
            await abort(context, known_error(call, error))
        if isinstance(response, Deferred):
            await asyncio.Event().wait()
        context.set_trailing_metadata(call.trailers)
        return response

    async def listed(self, request: Any, context: Any) -> AsyncIterator[Any]:
        for each in listed(CALL, request):
            yield each

    async def pulled(self, request: Any, context: Any) -> AsyncIterator[Any]:
        async for each in pulled(CALL, request):
            yield each

    async def both(self, requests: AsyncIterator[Any], context: Any) -> AsyncIterator[Any]:
        async for request in requests:
            if request.status.message == "error":
                await abort(context, TopicNotFound("not here"))
            yield request


async def abort(context: Any, error: WhimbrelError) -> None:
    code, text, trailers = grpc_status(error)
    await context.abort(code, text, tuple(trailers))


def bytes_of(message: Any) -> bytes:
    data: bytes = message.SerializeToString()
    return data


@pytest.fixture(params=["ours", "foreign"])
def server(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@asynccontextmanager
async def serving(server: str) -> AsyncIterator[tuple[Any, grpc.aio.Channel]]:
    running: Any
    if server == "ours":
        running = await serve([Service("t.T", METHODS)], host="127.0.0.1", port=0)
    else:
        running = await ForeignServer().start()
    try:
        async with open_aio_channel(running.address, transport="native") as channel:
            async with asyncio.timeout(30):
                yield running, channel
    finally:
        await running.stop(grace=0)


def method(channel: grpc.aio.Channel, kind: str, name: str) -> Any:
    return getattr(channel, kind)(f"/t.T/{name}", MESSAGE.SerializeToString, MESSAGE.FromString)


async def test_unary_calls_of_all_sizes(server: str) -> None:
    async with serving(server) as (_, channel):
        call = method(channel, "unary_unary", "U")
        for size in (0, 1, 1000, 70_000, 4 * MIB):
            text = "x" * size
            single = call(message(text), timeout=20)
            assert (await single).status.message == text
            assert ("x-length", str(size)) in list(await single.trailing_metadata())


async def test_many_calls_at_a_time(server: str) -> None:
    async with serving(server) as (_, channel):
        call = method(channel, "unary_unary", "U")
        for _ in range(3):
            answers = await asyncio.gather(
                *(call(message(str(n)), timeout=20, metadata=(("x-n", str(n)),)) for n in range(AT_A_TIME))
            )
            assert [answer.status.message for answer in answers] == [str(n) for n in range(AT_A_TIME)]


async def test_errors_arrive_as_their_classes(server: str) -> None:
    async with serving(server) as (_, channel):
        call = method(channel, "unary_unary", "U")
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await call(message("error"))
        error = error_of(caught.value)
        assert (type(error), str(error)) == (TopicNotFound, "there is no such topic: näh")
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await call(message("bug"))
        assert "secret" not in (caught.value.details() or "")
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await method(channel, "unary_unary", "Nothing")(message(""))
        assert (caught.value.code(), caught.value.details()) == (Status.UNIMPLEMENTED, "Method not found!")


async def test_perform_raises_what_grpcio_would_have_let_it(server: str) -> None:
    def outbound(text: str) -> Outbound[str]:
        return Outbound(
            "/t.T/U",
            message(text).SerializeToString(),
            lambda answers, trailers: MESSAGE.FromString(answers[0]).status.message + trailers["x-length"],
        )

    async with serving(server) as (running, channel):
        assert await perform(channel, outbound("abc"), (), 9) == "abc3"
        with pytest.raises(TopicNotFound):
            await perform(channel, outbound("error"), (("x", "y"),), 9)
        with pytest.raises(RequestTimeout):
            await perform(channel, outbound("never"), (), 0.05)
        await running.stop(grace=0)
        with pytest.raises(Unavailable):
            await perform(channel, outbound("abc"), (), 9)


async def test_streams_of_all_kinds(server: str) -> None:
    async with serving(server) as (_, channel):
        listed = [m.status.message async for m in method(channel, "unary_stream", "L")(message("a"))]
        assert listed == ["a", "a", "a"]
        call = method(channel, "unary_stream", "P")(message(""))
        found = [answer.status.message[:4] async for answer in call]
        assert found == [f"{number:04}" for number in range(PULLED)]
        call = method(channel, "stream_stream", "B")()
        for text in ("a", "", "x" * MIB):
            await call.write(message(text))
            assert (await call.read()).status.message == text
        await call.done_writing()
        assert await call.read() is grpc.aio.EOF
        assert await call.code() is Status.OK
        call = method(channel, "stream_stream", "B")()
        await call.write(message("error"))
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await call.read()
        assert isinstance(error_of(caught.value), TopicNotFound)


async def test_a_server_that_stops_ends_its_streams_and_its_connection() -> None:
    async with serving("ours") as (running, channel):
        call = method(channel, "stream_stream", "B")()
        await call.write(message("a"))
        await call.read()
        await running.stop(grace=5)
        assert await call.code() is Status.UNAVAILABLE
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await method(channel, "unary_unary", "U")(message("a"))
        assert caught.value.code() is Status.UNAVAILABLE
