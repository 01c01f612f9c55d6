"""Our own transport's channel, against a scripted peer: what a server may do, and what callers hear of it."""

import asyncio
import contextlib
import logging
import socket
import subprocess
import sys
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from random import Random
from typing import Any

import grpc
import grpc.aio
import pytest

from support.cluster.processes import environment
from support.http2.frames import block
from support.http2.in_memory import Sink
from support.http2.scripted_server import Listening, Peer, echo, listening
from support.waiting import eventually
from whimbrel.errors import ClientError
from whimbrel.rpc.client import native_channel
from whimbrel.rpc.client.channel import OPTIONS, chosen, open_aio_channel
from whimbrel.rpc.client.native_channel import NativeChannel, timeout_text
from whimbrel.rpc.client.native_connection import WRITE_PARTS, ChannelConnection
from whimbrel.rpc.http2.connection import Connection
from whimbrel.rpc.http2.errors import Code
from whimbrel.rpc.http2.grpc_format import RESPONSE_HEADERS, prefixed, status_block
from whimbrel.rpc.http2.hpack import HeaderDecoder, encode, value_of
from whimbrel.rpc.http2.stream import Data, Headers, Limits, Reset

State = grpc.ChannelConnectivity
Status = grpc.StatusCode

FUZZED = 300
FAST = (("grpc.initial_reconnect_backoff_ms", 1), ("grpc.max_reconnect_backoff_ms", 5))


@asynccontextmanager
async def channel_to(address: str, *options: tuple[str, Any]) -> AsyncIterator[NativeChannel]:
    channel = open_aio_channel(address, (*FAST, *options), transport="native")
    assert isinstance(channel, NativeChannel)
    async with asyncio.timeout(20), channel:
        yield channel


@asynccontextmanager
async def talking(
    script: Any, *options: tuple[str, Any], **more: Any
) -> AsyncIterator[tuple[Listening, NativeChannel]]:
    async with listening(script, **more) as made, channel_to(made.address, *options) as channel:
        yield made, channel


async def until_many(found: list[Any], count: int) -> None:
    await eventually(lambda: len(found) >= count)


async def failure_of(call: Any) -> grpc.aio.AioRpcError:
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await call
    return caught.value


def requests(event: Any) -> bool:
    return isinstance(event, Data) and event.ended


# The choice


def test_the_environment_names_the_transport() -> None:
    assert chosen({"WHIMBREL_CLIENT_TRANSPORT": "native"}) == "native"
    assert chosen({"WHIMBREL_CLIENT_TRANSPORT": "grpcio"}) == "grpcio"
    with pytest.raises(ClientError, match="write grpcio or native"):
        chosen({"WHIMBREL_CLIENT_TRANSPORT": "carrier pigeon"})


# One connection


async def test_many_calls_share_one_connection_and_those_of_one_tick_few_writes() -> None:
    async with talking(echo) as (made, channel):
        call = channel.unary_unary("/t.T/U")
        assert await call(b"first") == b"first"
        assert channel.connection is not None
        writes: list[Any] = []
        write = channel.connection.transport.write

        def counted(data: Any) -> None:
            writes.append(data)
            write(data)

        channel.connection.transport.write = counted  # type: ignore[method-assign]
        answers = await asyncio.gather(*(call(b"%d" % number, timeout=9) for number in range(100)))
        assert answers == [b"%d" % number for number in range(100)]
        assert (len(made.peers), len(writes)) == (1, 100 * 3 // WRITE_PARTS + 1)
        assert not channel.connection.conn.streams
        assert not any(bucket.calls for bucket in channel.deadlines.buckets.values())


async def test_a_call_carries_its_timeout_and_metadata_and_gets_the_servers() -> None:
    def script(peer: Peer, event: Any) -> None:
        if requests(event):
            peer.conn.send_headers(
                event.stream,
                encode([(b":status", b"200"), (b"content-type", b"application/grpc+proto"), (b"x", b"1")]),
            )
            peer.conn.send_data(event.stream, prefixed(b""))
            last = status_block(0, "", (("y", "2"), ("z-bin", b"\x00\xff")))
            peer.conn.send_headers(event.stream, last, end=True)

    async with talking(script) as (made, channel):
        call = channel.unary_unary("/t.T/U")(b"", timeout=3, metadata=(("a", "b"), ("c-bin", b"\x01\xfe")))
        assert await call == b""
        assert list(await call.initial_metadata()) == [("x", "1")]
        assert list(await call.trailing_metadata()) == [("y", "2"), ("z-bin", b"\x00\xff")]
        assert (await call.code(), await call.details()) == (Status.OK, "")
    fields = {field[0]: value_of(field) for field in made.peers[0].of(Headers)[0].fields}
    assert fields[b":path"] == b"/t.T/U"
    assert fields[b":authority"] == made.address.encode()
    assert (fields[b"grpc-timeout"], fields[b"a"], fields[b"c-bin"]) == (b"3000000u", b"b", b"Af4")


def test_timeouts_are_rounded_up_and_fit_into_eight_digits() -> None:
    found = [timeout_text(seconds) for seconds in (1e-9, 0.0000015, 3, 30.5, 86400.0, 1e12)]
    assert found == ["1u", "2u", "3000000u", "30500000u", "86400000m", "99999999H"]


async def test_no_more_streams_than_the_peer_takes_and_the_rest_waits_in_turn(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    held: list[Any] = []

    def script(peer: Peer, event: Any) -> None:
        if requests(event):
            held.append(event)

    async with talking(script, limits=Limits(streams=1)) as (made, channel):
        call = channel.unary_unary("/t.T/U")
        calls = [call(b"%d" % number) for number in range(4)]
        await eventually(lambda: held)
        calls[1].cancel()
        assert (await failure_of(call(b"late", timeout=0.01))).code() is Status.DEADLINE_EXCEEDED
        assert len(channel.parked) == 2
        monkeypatch.setattr(native_channel, "PARKED_MAX", 2)
        full = await failure_of(call(b"too many"))
        assert full.code() is Status.RESOURCE_EXHAUSTED
        assert "begin fewer at a time" in (full.details() or "")
        for number in range(3):
            await until_many(held, number + 1)
            made.peers[0].answer(held[number].stream, held[number].data[5:])
            made.peers[0].flush()
        assert [await calls[number] for number in (0, 2, 3)] == [b"0", b"2", b"3"]
        with pytest.raises(asyncio.CancelledError):
            await calls[1]


async def test_a_connection_whose_numbers_run_out_is_followed_by_another_one() -> None:
    async with talking(echo) as (made, channel):
        channel.stream_id_max = 3
        call = channel.unary_unary("/t.T/U")
        assert [await call(b"%d" % number) for number in range(5)] == [b"0", b"1", b"2", b"3", b"4"]
        assert len(made.peers) == 3
        await eventually(lambda: made.peers[0].lost and made.peers[1].lost)


@pytest.mark.parametrize("size", [0, 100, 1000])
async def test_a_peers_smaller_table_of_fields_is_kept_to(size: int) -> None:
    def script(peer: Peer, event: Any) -> None:
        if isinstance(event, Headers) and event.stream.id == 3:
            assert isinstance(peer.conn.decoder, HeaderDecoder)
            peer.conn.decoder.table_bytes_max = size
            peer.conn.frame(4, 0, 0, bytes((0, 1, 0, 0, size >> 8, size & 255)))
        echo(peer, event)

    async with talking(script) as (made, channel):
        call = channel.unary_unary("/t.T/U")
        for number in range(6):
            assert await call(b"x", metadata=(("a", "same"), ("b", f"{number}"))) == b"x"
        fields = made.peers[0].of(Headers)[-1].fields
        assert [value_of(field) for field in fields if field[0] in (b"a", b"b")] == [b"same", b"5"]
        decoder = made.peers[0].conn.decoder
        assert isinstance(decoder, HeaderDecoder)
        assert decoder.size <= size


async def test_metadata_that_cant_be_sent_fails_the_call_and_no_other() -> None:
    async with talking(echo) as (made, channel):
        call = channel.unary_unary("/t.T/U")
        assert await call(b"1", metadata=(("a", "1"),)) == b"1"
        for bad in (("Upper", "x"), ("text", "ä"), ("line", "a\nb")):
            failure = await failure_of(call(b"2", metadata=(("fresh", "2"), bad)))
            assert failure.code() is Status.INTERNAL
        assert await call(b"3", metadata=(("a", "1"), ("fresh", "2"))) == b"3"
        fields = made.peers[0].of(Headers)[-1].fields
        assert [value_of(field) for field in fields if field[0] in (b"a", b"fresh")] == [b"1", b"2"]


# Ends of calls


async def test_deadline_and_cancellation_reset_the_stream() -> None:
    async with talking(lambda peer, event: None) as (made, channel):
        call = channel.unary_unary("/t.T/U")
        late = await failure_of(call(b"", timeout=0.02))
        assert (late.code(), late.details()) == (Status.DEADLINE_EXCEEDED, "Deadline Exceeded")
        assert (await failure_of(call(b"", timeout=0))).code() is Status.DEADLINE_EXCEEDED
        waiting = asyncio.ensure_future(call(b""))
        await eventually(lambda: len(made.peers[0].of(Headers)) == 2)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        streaming = channel.unary_stream("/t.T/S")(b"")
        reading = asyncio.ensure_future(streaming.read())
        await eventually(lambda: len(made.peers[0].of(Headers)) == 3)
        reading.cancel()
        with pytest.raises(asyncio.CancelledError):
            await reading
        assert streaming.cancelled()
        assert await streaming.code() is Status.CANCELLED
        await eventually(lambda: len(made.peers[0].of(Reset)) == 3)
        assert {event.code for event in made.peers[0].of(Reset)} == {Code.CANCEL}


@pytest.mark.parametrize(
    ("code", "status"),
    [
        (Code.CANCEL, Status.CANCELLED),
        (Code.ENHANCE_YOUR_CALM, Status.RESOURCE_EXHAUSTED),
        (Code.INTERNAL_ERROR, Status.INTERNAL),
        (99, Status.INTERNAL),
    ],
)
async def test_a_reset_stream_has_the_status_of_its_code(code: Any, status: grpc.StatusCode) -> None:
    def script(peer: Peer, event: Any) -> None:
        if requests(event):
            peer.conn.reset(event.stream, code)

    async with talking(script) as (_, channel):
        assert (await failure_of(channel.unary_unary("/t.T/U")(b""))).code() is status


async def test_a_refused_stream_is_begun_once_more() -> None:
    def script(peer: Peer, event: Any) -> None:
        if requests(event) and event.data[5:] == b"never":
            peer.conn.reset(event.stream, Code.REFUSED_STREAM)
        elif requests(event) and event.stream.id == 1:
            peer.conn.reset(event.stream, Code.REFUSED_STREAM)
        else:
            echo(peer, event)

    async with talking(script) as (made, channel):
        call = channel.unary_unary("/t.T/U")
        assert await call(b"x") == b"x"
        failure = await failure_of(call(b"never"))
        assert failure.code() is Status.UNAVAILABLE
        assert len(made.peers[0].of(Headers)) == 4


BAD_ANSWERS: dict[str, tuple[list[tuple[str, bytes]], grpc.StatusCode, str]] = {
    "no trailers": (
        [("head", RESPONSE_HEADERS), ("end", prefixed(b"x"))],
        Status.UNKNOWN,
        "without a status",
    ),
    "no status": (
        [("head", RESPONSE_HEADERS), ("data", prefixed(b"x")), ("last", encode([(b"x", b"y")]))],
        Status.UNKNOWN,
        "without a status",
    ),
    "no message": (
        [("head", RESPONSE_HEADERS), ("last", status_block(0, ""))],
        Status.INTERNAL,
        "without an answer",
    ),
    "two messages": (
        [("head", RESPONSE_HEADERS), ("data", prefixed(b"x")), ("data", prefixed(b"y"))],
        Status.INTERNAL,
        "a second answer",
    ),
    "compressed": ([("head", RESPONSE_HEADERS), ("data", b"\x01\0\0\0\x01x")], Status.INTERNAL, "compressed"),
    "too long": (
        [("head", RESPONSE_HEADERS), ("data", prefixed(bytes(2000)))],
        Status.RESOURCE_EXHAUSTED,
        "2000 bytes, and 1000 are allowed",
    ),
    "an unknown code": ([("last", status_block(77, "what", first=True))], Status.UNKNOWN, "what"),
    "a code that is no number": (
        [("last", encode([(b":status", b"200"), (b"grpc-status", b"x")]))],
        Status.UNKNOWN,
        "",
    ),
    "a page": (
        [("head", encode([(b":status", b"503"), (b"content-type", b"text/html")])), ("end", b"<html>")],
        Status.UNAVAILABLE,
        "HTTP status 503, 'text/html'",
    ),
    "an empty page": ([("last", encode([(b":status", b"404")]))], Status.UNIMPLEMENTED, "HTTP status 404"),
    "an error in words": (
        [("last", status_block(5, "no 100% \u00fc", first=True))],
        Status.NOT_FOUND,
        "no 100% \u00fc",
    ),
}


@pytest.mark.parametrize("case", BAD_ANSWERS)
@pytest.mark.parametrize("kind", ["unary_unary", "unary_stream"])
async def test_an_answer_that_is_none_has_a_status_that_says_so(case: str, kind: str) -> None:
    parts, status, text = BAD_ANSWERS[case]

    def script(peer: Peer, event: Any) -> None:
        if not requests(event):
            return
        for part, data in parts:
            if part in ("head", "last"):
                peer.conn.send_headers(event.stream, data, end=part == "last")
            else:
                peer.conn.send_data(event.stream, data, end=part == "end")

    if kind == "unary_stream" and case in ("no message", "two messages"):
        return  # a stream may have any number of them
    async with talking(script, ("grpc.max_receive_message_length", 1000)) as (_, channel):
        call = getattr(channel, kind)("/t.T/U")(b"")

        async def whole() -> None:
            if kind == "unary_unary":
                await call
            else:
                async for _ in call:
                    pass

        failure = await failure_of(whole())
        assert failure.code() is status
        assert text in (failure.details() or "")
        await eventually(lambda: channel.connection is not None and not channel.connection.conn.streams)


async def test_an_answer_before_its_status_is_informative_and_passed_over() -> None:
    def script(peer: Peer, event: Any) -> None:
        if requests(event):
            peer.conn.send_headers(event.stream, encode([(b":status", b"103")]))
            peer.answer(event.stream, b"x")

    async with talking(script) as (_, channel):
        assert await channel.unary_unary("/t.T/U")(b"") == b"x"


async def test_a_request_that_is_too_long_is_not_sent() -> None:
    async with talking(echo, ("grpc.max_send_message_length", 10)) as (made, channel):
        failure = await failure_of(channel.unary_unary("/t.T/U")(bytes(11)))
        assert failure.code() is Status.RESOURCE_EXHAUSTED
        call = channel.stream_stream("/t.T/B")()
        with pytest.raises(grpc.aio.AioRpcError, match="11 bytes, and 10 are allowed"):
            await call.write(bytes(11))
        assert not any(peer.of(Data) for peer in made.peers)


async def test_a_deserializer_that_fails_fails_the_call() -> None:
    def deserializer(_: bytes) -> Any:
        raise ValueError("not what was expected")

    async with talking(echo) as (_, channel):
        failure = await failure_of(channel.unary_unary("/t.T/U", bytes, deserializer)(b""))
        assert (failure.code(), "not what was expected" in (failure.details() or "")) == (
            Status.INTERNAL,
            True,
        )


# Ends of connections


async def test_goaway_lets_open_calls_end_and_sends_the_unseen_elsewhere() -> None:
    held: list[Any] = []

    def script(peer: Peer, event: Any) -> None:
        if peer.number == 0 and requests(event):
            held.append(event)
            if len(held) == 3:
                peer.conn.frame(7, 0, 0, (1).to_bytes(4, "big") + bytes(4))
        else:
            echo(peer, event)

    async with talking(script) as (made, channel):
        call = channel.unary_unary("/t.T/U")
        seen, unseen = call(b"seen"), call(b"unseen")
        stream = channel.stream_stream("/t.T/B")()
        await stream.write(b"s")
        await eventually(lambda: len(held) == 2)
        last = call(b"last")
        assert [await unseen, await last] == [b"unseen", b"last"]
        assert (await failure_of(stream.read())).code() is Status.UNAVAILABLE
        assert not seen.done()
        made.peers[0].answer(held[0].stream, b"at last")
        made.peers[0].flush()
        assert await seen == b"at last"
        await eventually(lambda: made.peers[0].lost)
        assert await call(b"new") == b"new"
        assert len(made.peers) == 2


async def test_calls_that_wait_for_a_stream_of_a_server_that_goes_get_another_connection() -> None:
    held: list[Any] = []

    def script(peer: Peer, event: Any) -> None:
        if peer.number == 0 and requests(event):
            held.append(event)
        else:
            echo(peer, event)

    async with talking(script, limits=Limits(streams=1)) as (made, channel):
        call = channel.unary_unary("/t.T/U")
        first, parked = call(b"first"), call(b"parked")
        await until_many(held, 1)
        made.peers[0].conn.drain()
        made.peers[0].flush()
        assert await parked == b"parked"
        made.peers[0].answer(held[0].stream, b"x")
        made.peers[0].flush()
        assert await first == b"x"
        assert len(made.peers) == 2


async def test_a_server_that_goes_away_each_time_is_unavailable() -> None:
    def script(peer: Peer, event: Any) -> None:
        if requests(event):
            peer.conn.frame(7, 0, 0, bytes(8) + b"maintenance")

    async with talking(script) as (made, channel):
        failure = await failure_of(channel.unary_unary("/t.T/U")(b""))
        assert (failure.code(), len(made.peers)) == (Status.UNAVAILABLE, 2)
        assert "maintenance" in (failure.details() or "")


async def test_pings_become_rarer_when_a_server_calls_them_too_many() -> None:
    def script(peer: Peer, event: Any) -> None:
        if requests(event):
            peer.conn.frame(7, 0, 0, bytes(4) + (11).to_bytes(4, "big") + b"too_many_pings")

    async with talking(script) as (_, channel):
        before = channel.keepalive_s
        await failure_of(channel.unary_stream("/t.T/U")(b"").read())
        assert channel.keepalive_s == 4 * before  # the call was begun twice


async def test_a_lost_connection_ends_its_calls_and_the_next_one_connects_again() -> None:
    def script(peer: Peer, event: Any) -> None:
        if not requests(event):
            return
        if peer.number == 0:
            peer.begin(event.stream)
            peer.conn.send_data(event.stream, prefixed(b"half of it")[:9])
            peer.flush()
            peer.transport.close()
        else:
            echo(peer, event)

    async with talking(script) as (made, channel):
        call = channel.unary_unary("/t.T/U")
        failure = await failure_of(call(b""))
        assert failure.code() is Status.UNAVAILABLE
        assert f"the connection to {made.address} is lost" in (failure.details() or "")
        assert channel.get_state() is State.IDLE
        assert await call(b"again") == b"again"


async def test_a_server_of_another_protocol_is_called_that() -> None:
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.0 505 HTTP Version Not Supported\r\n\r\n")
        await reader.read()  # to the end: what is unread when it closes would take the answer with it
        writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    host, port = server.sockets[0].getsockname()
    async with server, open_aio_channel(f"{host}:{port}", transport="native") as channel:
        call: Any = channel.unary_unary("/t.T/U")
        failure = await failure_of(call(b""))
    assert failure.code() is Status.UNAVAILABLE
    assert "this is no HTTP/2: it begins with b'HTTP/1.0 '" in (failure.details() or "")


@pytest.mark.parametrize("garbage", [b"\xff" * 64, b"\0\0\x05\x01\x05\0\0\0\x01\x88\x0f\x0d\x81\xff"])
async def test_garbage_ends_the_connection_and_no_call_hangs(garbage: bytes) -> None:
    def script(peer: Peer, event: Any) -> None:
        if requests(event) and peer.number == 0:
            peer.flush()
            peer.transport.write(garbage)
        else:
            echo(peer, event)

    async with talking(script) as (made, channel):
        call = channel.unary_unary("/t.T/U")
        failures = await asyncio.gather(*(failure_of(call(b"")) for _ in range(3)))
        assert {failure.code() for failure in failures} == {Status.UNAVAILABLE}
        assert "breaks the protocol" in (failures[0].details() or "")
        assert await call(b"again") == b"again"
        await eventually(lambda: made.peers[0].lost)


async def test_a_peer_that_falls_silent_is_found_by_pings() -> None:
    def script(peer: Peer, event: Any) -> None:
        peer.mute = True

    options = (("grpc.keepalive_time_ms", 20), ("grpc.keepalive_timeout_ms", 20))
    async with talking(script, *options) as (made, channel):
        failure = await failure_of(channel.unary_unary("/t.T/U")(b""))
        assert failure.code() is Status.UNAVAILABLE
        assert "does not answer pings" in (failure.details() or "")
        await eventually(lambda: made.peers[0].lost)


async def test_a_peer_that_answers_pings_may_take_its_time() -> None:
    held: list[Any] = []

    def script(peer: Peer, event: Any) -> None:
        if requests(event):
            held.append(event)

    options = (("grpc.keepalive_time_ms", 5), ("grpc.keepalive_timeout_ms", 60_000))
    async with talking(script, *options) as (made, channel):
        call = channel.unary_unary("/t.T/U")(b"")
        await until_many(held, 1)
        connection, conn = channel.connection, made.peers[0].conn
        assert connection is not None
        for _ in range(3):
            before = conn.pings
            await eventually(lambda: conn.pings > before and not connection.pinged)  # noqa: B023 - awaited here
            assert connection.keepalive_timer is not None
            connection.keepalive_timer.cancel()
            connection.check_alive()  # as it will when the time for an answer is over
        made.peers[0].answer(held[0].stream, b"x")
        made.peers[0].flush()
        assert await call == b"x"


def answers_to(count: int) -> bytes:
    """Return what a server sends that answers so many calls in several ways."""
    server = Connection(server=True)
    client = Connection(server=False)
    for _ in range(count):
        client.send_headers(client.request(), block("/"))
    server.receive(client.take())
    for number, stream in enumerate(list(server.streams.values())):
        server.send_headers(stream, RESPONSE_HEADERS)
        server.send_data(stream, prefixed(bytes(number)))
        server.send_headers(stream, status_block(number % 3, "text", (("a-bin", b"b"),)), end=True)
    server.ping(bytes(8))
    server.drain()
    return server.take()


async def test_a_value_that_cant_be_decoded_ends_the_calls_whose_streams_have_ended_with_it() -> None:
    channel = NativeChannel("127.0.0.1:1", OPTIONS)
    connection, wire = ChannelConnection(channel), Sink()
    connection.connection_made(wire)
    channel.connection = connection
    calls = [channel.unary_unary("/t.T/U")(b"") for _ in range(2)]
    server = Connection(server=True)
    connection.flush()
    server.receive(wire.sent)
    bad = status_block(1, "", first=True) + b"\x00\x0cgrpc-message\x81\x00"  # wrongly padded
    first, second = server.streams.values()
    server.send_headers(first, bad, end=True)
    server.send_headers(second, status_block(1, "", first=True), end=True)
    connection.data_received(server.take())
    assert wire.closing
    assert [call.done() for call in calls] == [True, True]
    for call in calls:
        failure = await failure_of(call)
        assert failure.code() is Status.UNAVAILABLE
        assert "not padded" in (failure.details() or "")
    await channel.close()


async def test_nothing_is_written_to_a_connection_that_its_peer_has_closed() -> None:
    channel = NativeChannel("127.0.0.1:1", OPTIONS)
    connection, wire = ChannelConnection(channel), Sink()
    connection.connection_made(wire)
    channel.connection = connection
    call = channel.stream_stream("/t.T/B")()
    connection.flush()
    await call.write(b"renewal")  # it waits for the next iteration of the loop ...
    wire.close()  # ... and in this one the peer is killed: `connection_lost` comes later still
    connection.flush()
    assert not connection.has_room(), "a call began on a connection that is gone"
    connection.connection_lost(ConnectionResetError("reset"))
    with pytest.raises(grpc.aio.AioRpcError, match="is lost"):
        await call.read()
    await channel.close()


async def test_whatever_comes_calls_end_with_their_connection_and_nothing_else_is_raised(
    caplog: pytest.LogCaptureFixture,
) -> None:
    random = Random(20)
    good = answers_to(6)
    channel = NativeChannel("127.0.0.1:1", OPTIONS)
    statuses = set()
    for _ in range(FUZZED):
        data = bytearray(good)
        for _ in range(random.randrange(4)):
            at = random.randrange(len(data))
            data[at : at + random.randrange(3)] = random.randbytes(random.randrange(3))
        connection, wire = ChannelConnection(channel), Sink()
        connection.connection_made(wire)
        channel.connection = connection
        calls = [channel.unary_unary("/t.T/U")(b"") for _ in range(3)]
        calls += [channel.unary_stream("/t.T/S")(b"") for _ in range(3)]
        at = 0
        while at < len(data) and not wire.closing:
            size = random.choice((1, 7, 50, 1000))
            connection.data_received(bytes(data[at : at + size]))
            at += size
        connection.connection_lost(None)
        channel.connection = None
        for call in list(channel.parked):
            call.cancel()
        assert all(call.done() for call in calls)
        statuses |= {await call.code() for call in calls}
    assert {Status.OK, Status.UNAVAILABLE, Status.CANCELLED} < statuses
    assert not [record for record in caplog.records if record.levelno >= logging.ERROR]
    await channel.close()


# Connecting


async def test_nobody_there_is_unavailable_at_once_until_somebody_is() -> None:
    taken = socket.create_server(("127.0.0.1", 0))
    host, port = taken.getsockname()
    taken.close()
    async with channel_to(f"{host}:{port}") as channel:
        call = channel.unary_unary("/t.T/U")
        failure = await failure_of(call(b"", timeout=9))
        assert failure.code() is Status.UNAVAILABLE
        assert failure.details() == f"can't connect to {host}:{port}: Connection refused"
        assert channel.get_state() is State.TRANSIENT_FAILURE
        assert (await failure_of(call(b""))).details() == failure.details()
        server = await asyncio.get_running_loop().create_server(
            lambda: Peer(Listening(echo, Limits(), mute=False)), host, port
        )
        await channel.channel_ready()
        assert await call(b"at last") == b"at last"
        server.close()


async def test_attempts_end_when_nobody_wants_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(native_channel, "WANTED_S", -1.0)
    async with channel_to("127.0.0.1:1") as channel:
        await failure_of(channel.unary_unary("/t.T/U")(b""))
        await eventually(lambda: channel.get_state() is State.IDLE)
        assert channel.connecting is None


@pytest.mark.parametrize("says", [b"", b"HTTP/1.1 400 Bad Request\r\n\r\n"])
async def test_who_speaks_no_http2_is_no_peer(says: bytes) -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(says)
        with contextlib.suppress(ConnectionError):
            await reader.read()
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    address = f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
    async with server, channel_to(address, ("grpc.min_reconnect_backoff_ms", 50)) as channel:
        failure = await failure_of(channel.unary_unary("/t.T/U")(b""))
        assert failure.code() is Status.UNAVAILABLE
        text = "breaks the protocol" if says else "is it a gRPC server?"
        assert address in (failure.details() or "") and text in (failure.details() or "")


async def test_all_addresses_of_a_name_are_tried_and_the_good_one_first_next_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with listening(echo) as made:
        _, _, port = made.address.rpartition(":")
        async with channel_to(f"localhost:{port}") as channel:
            found = [(0, 0, 0, "", (host, 0)) for host in ("127.0.0.2", "127.0.0.1", "127.0.0.3")]

            async def getaddrinfo(*_: Any, **__: Any) -> Any:
                return found

            monkeypatch.setattr(native_channel, "look_up", getaddrinfo)
            assert await channel.unary_unary("/t.T/U")(b"x") == b"x"
            assert await channel.addresses() == ["127.0.0.1", "127.0.0.2", "127.0.0.3"]
            found.clear()
            made.peers[0].transport.abort()
            await eventually(lambda: channel.get_state() is State.IDLE)
            failure = await failure_of(channel.unary_unary("/t.T/U")(b"x"))
            assert "the name has no address" in (failure.details() or "")


async def test_a_name_that_nobody_knows_is_unavailable(monkeypatch: pytest.MonkeyPatch) -> None:
    async def getaddrinfo(*_: Any, **__: Any) -> Any:
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

    async with channel_to("nowhere.invalid:1") as channel:
        monkeypatch.setattr(native_channel, "look_up", getaddrinfo)
        failure = await failure_of(channel.unary_unary("/t.T/U")(b""))
        assert (failure.code(), "DNS resolution failed" in (failure.details() or "")) == (
            Status.UNAVAILABLE,
            True,
        )


async def test_a_resolver_without_an_answer_keeps_a_bounded_number_of_threads(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    answers = threading.Event()

    def getaddrinfo(*_: Any, **__: Any) -> Any:
        answers.wait(30)
        raise socket.gaierror(socket.EAI_AGAIN, "no answer")

    monkeypatch.setattr(socket, "getaddrinfo", getaddrinfo)
    loop = asyncio.get_running_loop()
    waiting = [native_channel.look_up(loop, "name", 1) for _ in range(native_channel.LOOK_UPS_MAX)]
    with pytest.raises(OSError, match="resolver does not answer"):
        native_channel.look_up(loop, "name", 1)
    answers.set()
    assert all(
        isinstance(found, socket.gaierror) for found in await asyncio.gather(*waiting, return_exceptions=True)
    )
    with pytest.raises(socket.gaierror):
        await native_channel.look_up(loop, "name", 1)


def test_a_resolver_without_an_answer_does_not_hold_up_the_exit() -> None:
    program = (
        "import asyncio, socket, threading\n"
        "from whimbrel.client import Admin\n"
        "from whimbrel.client import retry\n"
        "from whimbrel.errors import ClusterUnreachable\n"
        "retry.FIRST_CONTACT_S = 0.1\n"
        "never = threading.Event()\n"
        "socket.getaddrinfo = lambda *_, **__: never.wait()\n"
        "async def ask():\n"
        "    async with Admin('name:1') as admin:\n"
        "        try:\n"
        "            await admin.cluster()\n"
        "        except ClusterUnreachable as error:\n"
        "            print(error)\n"
        "asyncio.run(ask())\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program],
        env=environment(),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.stdout.startswith("no answer from name:1 within"), done.stderr


async def test_a_target_without_a_port_is_refused() -> None:
    with pytest.raises(ValueError, match="HOST:PORT"):
        NativeChannel("localhost", OPTIONS)


# Streams


async def test_a_stream_goes_both_ways_until_both_have_said_everything() -> None:
    def script(peer: Peer, event: Any) -> None:
        if isinstance(event, Headers) and not event.trailers:
            peer.begin(event.stream)
        elif isinstance(event, Data):
            if event.data:
                peer.conn.send_data(event.stream, event.data)
            if event.ended:
                peer.conn.send_headers(event.stream, status_block(0, ""), end=True)

    async with talking(script) as (_, channel):
        call = channel.stream_stream("/t.T/B")()
        await call.wait_for_connection()
        for message in (b"a", b"", b"c"):
            await call.write(message)
            assert await call.read() == message
        assert not call.done()
        await call.done_writing()
        assert await call.read() is grpc.aio.EOF
        assert await call.read() is grpc.aio.EOF
        assert await call.code() is Status.OK
        with pytest.raises(asyncio.InvalidStateError):
            await call.write(b"late")

        async def numbers(count: int) -> AsyncIterator[bytes]:
            for number in range(count):
                yield b"%d" % number

        found = [message async for message in channel.stream_stream("/t.T/B")(numbers(5))]
        assert found == [b"0", b"1", b"2", b"3", b"4"]
        gathered = channel.stream_unary("/t.T/G")
        assert await gathered(numbers(1)) == b"0"
        for count, text in ((0, "without an answer"), (2, "a second answer")):
            failure = await failure_of(gathered(numbers(count)))
            assert (failure.code(), text in (failure.details() or "")) == (Status.INTERNAL, True)


async def test_requests_that_cant_be_made_cancel_their_call(caplog: pytest.LogCaptureFixture) -> None:
    async def broken() -> AsyncIterator[bytes]:
        yield b"a"
        raise RuntimeError("out of requests")

    async with talking(lambda peer, event: None) as (made, channel):
        with caplog.at_level(logging.ERROR), pytest.raises(asyncio.CancelledError):
            await channel.stream_stream("/t.T/B")(broken()).read()
        assert "out of requests" in caplog.text
        await eventually(lambda: made.peers[0].of(Reset))


async def test_write_waits_for_the_peers_window() -> None:
    unread: list[Any] = []

    def script(peer: Peer, event: Any) -> None:
        if isinstance(event, Data):
            unread.append(event)

    async with talking(script, limits=Limits(window=1000)) as (made, channel):
        call = channel.stream_stream("/t.T/B")()
        await call.write(b"x")
        peer = made.peers[0]
        peer.reads = False
        writing = asyncio.ensure_future(call.write(bytes(5000)))
        await eventually(lambda: sum(len(event.data) for event in unread) == 1000)
        assert not writing.done()
        peer.reads = True
        peer.conn.consumed(unread[0].stream, 1000)
        peer.flush()
        await writing
        peer.reads = False
        stuck = asyncio.ensure_future(call.write(bytes(50_000)))
        await eventually(lambda: call.writer)
        stuck.cancel()
        with pytest.raises(asyncio.CancelledError):
            await stuck
        assert call.cancelled()


async def test_who_reads_slowly_stops_the_peer() -> None:
    size, window = 1000, 10_000
    sent: list[Any] = []

    def script(peer: Peer, event: Any) -> None:
        if requests(event):
            sent.append(event.stream)
            peer.begin(event.stream)
            for number in range(100):
                peer.conn.send_data(event.stream, prefixed(bytes([number]) * size))
            peer.conn.send_headers(event.stream, status_block(0, ""), end=True)

    async with talking(script, ("grpc.http2.lookahead_bytes", window)) as (_, channel):
        call = channel.unary_stream("/t.T/S")(b"")
        assert await call.read() == bytes(size)
        other = await channel.unary_unary("/t.T/S")(b"", timeout=0.05).code()
        assert other is Status.INTERNAL  # two answers: the connection goes on for others
        assert 0 < len(call.messages) <= window // size
        assert sent[0].waiting_bytes > 80 * size
        rest = [message async for message in call]
        assert [message[0] for message in rest] == list(range(1, 100))


async def test_a_message_larger_than_the_window_comes_through() -> None:
    def script(peer: Peer, event: Any) -> None:
        if requests(event):
            peer.answer(event.stream, bytes(100_000), bytes(5))

    async with talking(script, ("grpc.http2.lookahead_bytes", 1000)) as (_, channel):
        found = [len(message) async for message in channel.unary_stream("/t.T/S")(b"")]
        assert found == [100_000, 5]


async def test_a_stream_that_answers_before_it_was_asked_everything_is_over() -> None:
    def script(peer: Peer, event: Any) -> None:
        if isinstance(event, Data) and not event.ended:
            peer.answer(event.stream, b"enough")

    async with talking(script) as (_, channel):
        call = channel.stream_stream("/t.T/B")()
        await call.write(b"a")
        assert [await call.read(), await call.read()] == [b"enough", grpc.aio.EOF]
        with pytest.raises(asyncio.InvalidStateError):
            await call.write(b"b")
        assert channel.connection is not None
        assert not channel.connection.conn.streams


async def test_answers_that_came_before_an_error_are_read_before_it() -> None:
    def script(peer: Peer, event: Any) -> None:
        if requests(event):
            peer.answer(event.stream, b"a", b"b", last=status_block(14, "no more"))

    async with talking(script) as (_, channel):
        call = channel.unary_stream("/t.T/S")(b"")
        assert await call.code() is Status.UNAVAILABLE
        assert [await call.read(), await call.read()] == [b"a", b"b"]
        assert (await failure_of(call.read())).details() == "no more"


# Closing


async def test_close_ends_calls_under_way_and_refuses_new_ones() -> None:
    async with talking(lambda peer, event: None, limits=Limits(streams=1)) as (made, channel):
        call = channel.unary_unary("/t.T/U")
        under_way, parked = call(b""), call(b"")
        await eventually(lambda: made.peers and made.peers[0].of(Headers))
        await channel.close()
        for ended in (under_way, parked, call(b"")):
            assert (await failure_of(ended)).code() is Status.CANCELLED
        assert channel.get_state() is State.SHUTDOWN
        await eventually(lambda: made.peers[0].lost)
        with pytest.raises(grpc.aio.UsageError):
            await channel.channel_ready()


async def test_close_with_grace_lets_calls_end() -> None:
    held: list[Any] = []

    def script(peer: Peer, event: Any) -> None:
        if requests(event):
            held.append(event)

    async with talking(script) as (made, channel):
        call = channel.unary_unary("/t.T/U")(b"")
        await eventually(lambda: held)
        closing = asyncio.ensure_future(channel.close(grace=10))
        await asyncio.sleep(0)
        made.peers[0].answer(held[0].stream, b"x")
        made.peers[0].flush()
        assert await call == b"x"
        await closing


async def test_close_while_connecting_ends_the_attempt() -> None:
    async with listening(mute=True) as made, channel_to(made.address) as channel:
        call = channel.unary_unary("/t.T/U")(b"")
        await eventually(lambda: made.peers)
        await channel.close()
        assert (await failure_of(call)).code() is Status.CANCELLED
        await eventually(lambda: made.peers[0].lost)
