"""What a hostile peer can do to the native server: each limit, and the memory that a connection can hold."""

import asyncio
import gc
import tracemalloc
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from support.http2.frames import (
    CONTINUATION,
    DATA,
    END_HEADERS,
    END_STREAM,
    HEADERS,
    HELLO,
    PING,
    RST,
    SETTINGS,
    WINDOW,
    block,
    call,
    frame,
    headers,
    message,
    setting,
    statuses,
    u32,
)
from support.http2.in_memory import RawPeer
from support.waiting import eventually, turns
from whimbrel.model.limits import RPC_MESSAGE_BYTES_MAX
from whimbrel.pb.apache.rocketmq.v2 import definition_pb2, service_pb2
from whimbrel.rpc.http2.errors import Code
from whimbrel.rpc.http2.grpc_format import prefixed
from whimbrel.rpc.http2.hpack import encode
from whimbrel.rpc.http2.stream import Limits
from whimbrel.rpc.server.calls import NativeOutbox
from whimbrel.rpc.server.certificates import TlsSettings
from whimbrel.rpc.server.connection import (
    KEEPALIVE_S,
    KEEPALIVE_TIMEOUT_S,
    REQUEST_S,
    NativeConnection,
)
from whimbrel.rpc.server.handlers import BidiMethod, Call, Outbox, PulledStreamMethod, Service, UnaryMethod
from whimbrel.rpc.server.limits import HELD_BYTES_MAX, OUTBOX_MESSAGES_MAX, UNREAD_BYTES_MAX, Guard
from whimbrel.rpc.server.native import NativeServer
from whimbrel.rpc.server.protocol_detection import HANDSHAKE_S, HELLO_PIECES_AT_ONCE
from whimbrel.rpc.server.serving import serve
from whimbrel.rpc.server.shared import WRITE_BYTES_HIGH

MIB = 1 << 20
DEADLINE_EXCEEDED, RESOURCE_EXHAUSTED, UNIMPLEMENTED = 4, 8, 12
REQUEST = service_pb2.HeartbeatRequest
RESPONSE = service_pb2.HeartbeatResponse
COMMAND = service_pb2.TelemetryCommand
OK = definition_pb2.Status(code=20000)  # type: ignore[arg-type]
WIDEST = setting(4, 2**31 - 1) + frame(WINDOW, 0, 0, u32(2**31 - 1 - 65_535))  # windows of who reads nothing

Measured = Callable[[str], None]


class Echo:
    """A stream both ways that sends back what it gets, and forgets what it can't."""

    def __init__(self, outbox: Outbox) -> None:
        self.outbox = outbox

    def received(self, message: Any) -> None:
        self.outbox.send(message)

    def half_closed(self) -> None:
        self.outbox.close()

    def closed(self) -> None:
        pass


def large(call: Call, request: Any) -> Any:
    """Answer few bytes with a megabyte."""
    return RESPONSE(status=definition_pb2.Status(code=20000, message="x" * MIB))  # type: ignore[arg-type]


made: list[str] = []  # a word for each response of a pulled stream


async def pulled(call: Call, request: Any) -> AsyncGenerator[Any, None]:
    while True:
        made.append(call.method)
        yield large(call, request)


def named(call: Call, request: Any) -> Any:
    """Look at a header field that other handlers do not look at."""
    return RESPONSE(status=definition_pb2.Status(message=call.metadata["x-who"]))


async def named_pulled(call: Call, request: Any) -> AsyncGenerator[Any, None]:
    yield named(call, request)


def named_both(call: Call, outbox: Outbox) -> Echo:
    outbox.send(named(call, None))
    return Echo(outbox)


METHODS = (
    UnaryMethod("Named", REQUEST, named),
    PulledStreamMethod("NamedPulled", REQUEST, named_pulled),
    BidiMethod("NamedBoth", COMMAND, named_both),
    UnaryMethod("U", REQUEST, lambda call, request: RESPONSE()),
    UnaryMethod("Large", REQUEST, large),
    PulledStreamMethod("Pulled", REQUEST, pulled),
    BidiMethod("B", COMMAND, lambda call, outbox: Echo(outbox)),
)


@asynccontextmanager
async def serving(
    limits: Limits | None = None, tls: TlsSettings | None = None, guard: Guard | None = None
) -> AsyncIterator[NativeServer]:
    services = [Service("t.T", METHODS)]
    server = await serve(services, host="127.0.0.1", port=0, limits=limits, tls=tls, guard=guard)
    try:
        yield server
    finally:
        await server.stop(grace=0)


async def held_bytes(attack: Callable[[RawPeer], Any], server: NativeServer) -> tuple[RawPeer, int]:
    """Return how many bytes more are held after an attack on a connection than before it."""
    peer = RawPeer(server)
    peer.send(HELLO)
    gc.collect()
    tracemalloc.start()
    try:
        attack(peer)
        await asyncio.sleep(0)
        gc.collect()
        return peer, tracemalloc.get_traced_memory()[0]
    finally:
        tracemalloc.stop()


def connection(peer: RawPeer) -> NativeConnection:
    assert isinstance(peer.protocol, NativeConnection)
    return peer.protocol


# Memory


@pytest.mark.parametrize("whole", [False, True], ids=["half messages", "requests that do not end"])
async def test_requests_that_are_not_whole_take_bounded_memory(whole: bool, measured: Measured) -> None:
    piece = bytes(MIB - 5)
    begin = prefixed(piece) if whole else b"\x00" + u32(100 * MIB) + piece

    def attack(peer: RawPeer) -> None:
        for number in range(1, 601, 2):  # 300 MiB on as many streams
            peer.send(headers(number) + frame(DATA, 0, number, begin))

    async with serving() as server:
        peer, size = await held_bytes(attack, server)
        measured(f"{size / MIB:.0f} MiB held of {HELD_BYTES_MAX / MIB:.0f} MiB that one connection may send")
        assert size < HELD_BYTES_MAX * 5 // 4
        refused = statuses(peer.frames())
        assert len(refused) == 300 - HELD_BYTES_MAX // MIB
        assert set(refused.values()) == {RESOURCE_EXHAUSTED}
        assert connection(peer).budget.held <= HELD_BYTES_MAX
        # What is let go makes room: by the peer, and by an answer.
        peer.send(frame(RST, 0, 1, u32(8)) + call(701))
        assert statuses(peer.frames()) == {701: 0}
        assert connection(peer).budget.held <= HELD_BYTES_MAX - MIB + 5
        peer.leave()
        assert connection(peer).budget.held == 0


@pytest.mark.parametrize("window", ["widest", "none"])
async def test_answers_that_nobody_reads_take_bounded_memory(window: str, measured: Measured) -> None:
    asked = 200

    def attack(peer: RawPeer) -> None:
        peer.stuck = True
        peer.send(WIDEST if window == "widest" else setting(4, 0))
        peer.send(b"".join(call(2 * n + 1, "/t.T/Large") for n in range(asked)))  # in one read

    async with serving() as server:
        peer, size = await held_bytes(attack, server)
        measured(f"{size / MIB:.0f} MiB held, {asked} MiB asked for")
        # The transport holds what its peer may have a second time: this one by copying, as asyncio's does.
        assert size < UNREAD_BYTES_MAX * 9 // 4
        assert connection(peer).unread <= UNREAD_BYTES_MAX + 2 * MIB
        peer.loosen()
        if window == "none":
            peer.send(WIDEST)
        answered = statuses(peer.frames())
        assert len(answered) == asked
        assert sorted(set(answered.values())) == [0, RESOURCE_EXHAUSTED]
        assert 30 <= list(answered.values()).count(0) <= 34
        peer.send(call(1001, "/t.T/Large"))  # who reads is served again
        assert statuses(peer.frames()) == {1001: 0}


async def test_streams_that_nobody_reads_take_bounded_memory(measured: Measured) -> None:
    body = COMMAND(status=definition_pb2.Status(message="x" * (MIB - 100))).SerializeToString()

    def attack(peer: RawPeer) -> None:
        peer.send(setting(4, 0))
        for round_ in range(4):
            for number in range(1, 81, 2):
                begin = b"" if round_ else headers(number, "/t.T/B")
                peer.send(begin + message(number, body, end=False))

    async with serving() as server:
        peer, size = await held_bytes(attack, server)
        measured(f"{size / MIB:.0f} MiB held, 160 MiB were to be sent back")
        assert size < UNREAD_BYTES_MAX + 4 * MIB
        assert len(server.streams.outboxes) == 40
        assert connection(peer).unread <= UNREAD_BYTES_MAX + 2 * MIB
        peer.leave()
        assert connection(peer).budget.queued == 0


async def test_messages_of_a_stream_that_nobody_reads_are_counted() -> None:
    async with serving() as server:
        peer = RawPeer(server)
        peer.send(HELLO + setting(4, 0) + headers(1, "/t.T/B"))
        peer.send(message(1, COMMAND(status=OK).SerializeToString(), end=False) * (OUTBOX_MESSAGES_MAX + 100))
        (outbox,) = server.streams.outboxes
        assert isinstance(outbox, NativeOutbox)
        assert len(outbox.server_call.queue) == OUTBOX_MESSAGES_MAX
        peer.send(frame(WINDOW, 0, 1, u32(MIB)) + frame(DATA, END_STREAM, 1))
        assert not server.streams.outboxes
        sent = b"".join(payload for kind, _, _, payload in peer.frames() if kind == DATA)
        assert sent == prefixed(COMMAND(status=OK).SerializeToString()) * (1 + OUTBOX_MESSAGES_MAX)


@pytest.mark.parametrize(
    ("begin", "status"),
    [(b"\x00" + u32(RPC_MESSAGE_BYTES_MAX + 1), RESOURCE_EXHAUSTED), (b"\x01" + u32(1), UNIMPLEMENTED)],
    ids=["too long", "compressed"],
)
async def test_message_that_is_not_taken_is_refused_at_its_first_bytes(begin: bytes, status: int) -> None:
    async with serving() as server:
        peer = RawPeer(server)
        peer.send(HELLO + headers(1) + frame(DATA, 0, 1, begin))
        assert statuses(peer.frames()) == {1: status}
        peer.send(call(3))
        assert statuses(peer.frames()) == {3: 0}


async def test_data_beyond_a_stream_s_window_end_the_stream() -> None:
    async with serving(Limits(window=65_536)) as server:
        peer = RawPeer(server)
        peer.send(HELLO + headers(1) + headers(3))
        peer.send(frame(DATA, 0, 1, bytes(40_000)) * 2)  # in one read, before anything could be given back
        assert (RST, 0, 1, u32(Code.FLOW_CONTROL_ERROR)) in peer.frames()
        peer.send(message(3))
        assert statuses(peer.frames()) == {3: 0}


async def test_who_does_not_read_is_not_read_from() -> None:
    async with serving() as server:
        peer = RawPeer(server)
        peer.send(HELLO + WIDEST)
        peer.stuck = True
        peer.send(call(1, "/t.T/Large"))
        assert peer.paused and peer.high == WRITE_BYTES_HIGH
        peer.loosen()
        assert not peer.paused


async def test_pulled_streams_make_one_response_for_who_does_not_read() -> None:
    async with serving() as server:
        peer = RawPeer(server)
        peer.send(HELLO + setting(4, 0))
        made.clear()
        peer.send(b"".join(call(number, "/t.T/Pulled") for number in range(1, 17, 2)))
        for rounds in (1, 2):
            await turns(9)
            assert len(made) == 8 * rounds
            assert 7 * MIB < connection(peer).unread < 9 * MIB
            peer.send(frame(WINDOW, 0, 0, u32(9 * MIB)))
            peer.send(b"".join(frame(WINDOW, 0, number, u32(MIB + 64)) for number in range(1, 17, 2)))


@pytest.mark.parametrize(
    ("streams", "fields", "bytes_max"), [(1024, 0, 2048), (64, 420, 64 << 10)], ids=["many", "long headers"]
)
async def test_open_streams_take_bounded_memory(
    streams: int, fields: int, bytes_max: int, measured: Measured
) -> None:
    more = [(b"x-%d" % n, b"v") for n in range(fields)]  # 420 have 16 KiB, as they are counted
    begins = [headers(2 * n + 1, more=more) for n in range(streams + 10)]

    async with serving(Limits(streams=streams)) as server:
        peer, size = await held_bytes(lambda peer: peer.send(b"".join(begins)), server)
        measured(f"{size / streams:.0f} bytes a stream")
        assert size < bytes_max * streams
        assert len(connection(peer).conn.streams) == streams
        assert sum(kind == RST for kind, *_ in peer.frames()) == 10


async def test_fragments_of_one_byte_take_bounded_memory(measured: Measured) -> None:
    body = bytes(20_000)

    def attack(peer: RawPeer) -> None:
        peer.send(headers(1))
        peer.send(b"".join(frame(DATA, 0, 1, bytes((byte,))) for byte in prefixed(body)[:-1]))
        peer.send(frame(HEADERS, 0, 3, block("/t.T/U")[:3]), pieces=1)
        rest = block("/t.T/U")[3:]
        peer.send(b"".join(frame(CONTINUATION, 0, 3, rest[at : at + 1]) for at in range(len(rest))), pieces=1)

    async with serving() as server:
        peer, size = await held_bytes(attack, server)
        measured(f"{size} bytes held of {len(body)}")
        assert not peer.closing
        assert size < 3 * len(body)


async def test_call_in_pieces_of_one_byte_is_answered() -> None:
    async with serving() as server:
        peer = RawPeer(server)
        peer.send(HELLO + call(1), pieces=1)
        assert statuses(peer.frames()) == {1: 0}


# Floods and broken rules: each ends its connection with a typed GOAWAY

FEW = Limits(
    streams=4, frame=16_384, block=4096, header_list=4096, resets=20, pings=20, settings=10, empty=20
)


def bomb() -> bytes:
    """Return a block that puts a long field into the table and then names it again and again."""
    return block("/t.T/U") + b"\x40\x01x\x7f\x81\x16" + bytes(2944) + b"\xbe" * 1000


@pytest.mark.parametrize(
    ("attack", "code"),
    [
        (frame(PING, 0, 0, bytes(8)) * 21, Code.ENHANCE_YOUR_CALM),
        ((frame(WINDOW, 0, 0, u32(1)) + frame(PING, 0, 0, bytes(8))) * 21, Code.ENHANCE_YOUR_CALM),
        (frame(SETTINGS, 0, 0) * 11, Code.ENHANCE_YOUR_CALM),
        (b"".join(headers(n) + frame(RST, 0, n, u32(8)) for n in range(1, 43, 2)), Code.ENHANCE_YOUR_CALM),
        (frame(HEADERS, 0, 1) + frame(CONTINUATION, 0, 1) * 21, Code.ENHANCE_YOUR_CALM),
        (frame(HEADERS, 0, 1, bytes(4000)) + frame(CONTINUATION, 0, 1, bytes(97)), Code.ENHANCE_YOUR_CALM),
        (headers(1, more=[(b"x", b"y" * 3990)]), Code.ENHANCE_YOUR_CALM),
        (frame(HEADERS, END_HEADERS, 1, bomb()), Code.ENHANCE_YOUR_CALM),
        (headers(1) + frame(DATA, 0, 1) * 21, Code.ENHANCE_YOUR_CALM),
        (frame(0xAB, 0, 0, bytes(16_385)), Code.FRAME_SIZE_ERROR),
        (frame(HEADERS, END_HEADERS, 1, b"\x00\x81\xff\x81\xff"), Code.COMPRESSION_ERROR),
        (frame(WINDOW, 0, 0, u32(2**31 - 1)), Code.FLOW_CONTROL_ERROR),
    ],
    ids=[
        "pings",
        "pings and windows",
        "settings",
        "rapid reset",
        "empty continuations",
        "continuations",
        "header list",
        "hpack bomb",
        "empty data",
        "oversized frame",
        "wrong code",
        "window",
    ],
)
async def test_what_is_too_much_ends_the_connection_and_no_other(attack: bytes, code: Code) -> None:
    async with serving(FEW) as server:
        peer, other = RawPeer(server), RawPeer(server)
        other.send(HELLO + headers(1))
        peer.send(HELLO)
        peer.send(attack)
        assert peer.closing
        end = peer.goaway()
        assert end is not None and end[0] == code and end[1]
        other.send(message(1))
        assert statuses(other.frames()) == {1: 0}


@pytest.mark.parametrize("update", [0, 1000], ids=["ping alone", "window given back before"])
async def test_pings_that_follow_answers_are_no_flood(update: int) -> None:
    """As a Java client measures its connection: once an answer has come, and not again before the ping's."""
    before = frame(WINDOW, 0, 0, u32(update)) if update else b""
    async with serving(FEW) as server:
        peer = RawPeer(server)
        peer.send(HELLO)
        for number in range(1, 121, 2):
            peer.send(call(number))
            assert statuses(peer.frames()) == {number: 0}
            peer.send(before + frame(PING, 0, 0, bytes(8)))
            assert peer.frames() == [(PING, 1, 0, bytes(8))]


@pytest.mark.parametrize("name", ["Named", "NamedPulled", "NamedBoth", "U"])
async def test_field_that_is_wrongly_coded_ends_the_connection_when_it_is_looked_at(name: str) -> None:
    def read_metadata(call: Call) -> None:
        if name == "U":  # the guard does, in the other cases the handler
            _ = call.metadata["x-who"]

    wrong = headers(1, f"/t.T/{name}")[9:] + b"\x00\x05x-who\x81\x00"  # Huffman's, wrongly padded
    async with serving(guard=read_metadata) as server:
        peer = RawPeer(server)
        peer.send(HELLO + frame(HEADERS, END_HEADERS, 1, wrong) + message(1))
        await turns(2)
        end = peer.goaway()
        assert end is not None and end[0] == Code.COMPRESSION_ERROR
        assert peer.closing
        peer.leave()
        assert not any(server.streams.open_by_method.values())


async def test_streams_beyond_the_limit_are_refused_and_the_others_go_on() -> None:
    async with serving(FEW) as server:
        peer = RawPeer(server)
        peer.send(HELLO + b"".join(headers(number) for number in (1, 3, 5, 7, 9)))
        assert (RST, 0, 9, u32(Code.REFUSED_STREAM)) in peer.frames()
        peer.send(message(1))
        peer.send(call(11))
        assert statuses(peer.frames()) == {1: 0, 11: 0}


# What all connections hold together


async def test_who_holds_most_is_ended_when_all_hold_too_much(caplog: pytest.LogCaptureFixture) -> None:
    async with serving() as server:
        server.budget.limit = 12 * MIB
        peers = [RawPeer(server, host=f"192.0.2.{number}") for number in range(4)]
        for peer, pieces in zip(peers, (2, 5, 3, 1), strict=True):
            peer.send(HELLO + headers(1) + frame(DATA, 0, 1, b"\x00" + u32(100 * MIB)))
            for _ in range(pieces):
                peer.send(frame(DATA, 0, 1, bytes(MIB - 5)))
        assert not any(peer.closing for peer in peers)
        for _ in range(2):
            peers[3].send(frame(DATA, 0, 1, bytes(MIB - 5)))
        assert [peer.closing for peer in peers] == [False, True, False, False]
        end = peers[1].goaway()
        assert end is not None and end[0] == Code.ENHANCE_YOUR_CALM and "holds most" in end[1]
        assert "192.0.2.1:4711 is cut off" in caplog.text
        assert 7 * MIB < server.budget.total < 9 * MIB and server.budget.cut_off == 1
        for peer in peers:
            peer.leave()
        assert (server.budget.total, server.budget.holders) == (0, {})


async def test_answers_that_nobody_reads_count_for_the_process() -> None:
    async with serving() as server:
        server.budget.limit = 10 * MIB
        peers = [RawPeer(server, host=f"192.0.2.{number}") for number in range(3)]
        for peer, calls in zip(peers, (2, 6, 1), strict=True):
            peer.send(HELLO + setting(4, 0) + b"".join(call(2 * n + 1, "/t.T/Large") for n in range(calls)))
        assert not any(peer.closing for peer in peers)
        peers[2].send(b"".join(call(2 * n + 1, "/t.T/Large") for n in range(1, 4)))
        assert [peer.closing for peer in peers] == [False, True, False]
        assert connection(peers[1]).unread < MIB


async def test_open_calls_with_long_headers_count_at_the_next_check() -> None:
    async with serving() as server:
        peer = RawPeer(server)
        peer.send(HELLO + b"".join(headers(2 * n + 1, more=[(b"x", b"y" * 1000)]) for n in range(50)))
        connection(peer).check_timeouts(server.loop.time())
        assert 50 * 2000 < server.budget.total < 50 * 4000
        for number in range(50):
            peer.send(frame(RST, 0, 2 * number + 1, u32(8)))
        connection(peer).check_timeouts(server.loop.time())
        assert server.budget.total == 0


async def test_48_sends_of_4_mib_at_a_time_are_taken() -> None:
    async with serving() as server:
        peer = RawPeer(server)
        peer.send(HELLO)
        numbers = range(1, 97, 2)
        body = b"\x7a\x80\x80\x80\x02" + bytes(4 * MIB)  # in a field that nobody knows
        whole = prefixed(body)
        peer.send(b"".join(headers(number) for number in numbers))
        for at in range(0, len(whole), MIB):
            for number in numbers:
                last = at + MIB >= len(whole)
                peer.send(frame(DATA, END_STREAM if last else 0, number, whole[at : at + MIB]))
        assert statuses(peer.frames()) == dict.fromkeys(numbers, 0)


# Who says nothing, or not enough


@pytest.mark.parametrize(
    ("begin", "ends"),
    [
        (headers(1), True),
        (headers(1) + frame(DATA, 0, 1, b"\x00" + u32(9) + b"x"), True),
        (headers(1) + frame(DATA, 0, 1, prefixed(b"")), True),
        (headers(1, "/t.T/Pulled"), True),
        (headers(1, "/t.T/B"), False),
        (headers(1, "/t.T/B") + frame(DATA, 0, 1, prefixed(b"")), False),
    ],
    ids=["nothing", "half a message", "no end", "pulled", "stream", "stream with a message"],
)
async def test_requests_that_do_not_become_whole_end(begin: bytes, ends: bool) -> None:
    async with serving() as server:
        peer = RawPeer(server)
        peer.send(HELLO + begin)
        now = server.loop.time()
        for late in (0.0, REQUEST_S - 1, REQUEST_S + 1):
            assert statuses(peer.frames()) == {}
            connection(peer).received_at = now + late  # it sends something else meanwhile
            connection(peer).check_timeouts(now + late)
            await asyncio.sleep(0)
        assert statuses(peer.frames()) == ({1: DEADLINE_EXCEEDED} if ends else {})
        assert (len(connection(peer).conn.streams) == 0) is ends
        assert connection(peer).budget.held == 0
        peer.send(call(3))
        assert statuses(peer.frames()) == {3: 0}


async def test_request_that_is_not_grpc_and_does_not_end_is_reset() -> None:
    async with serving() as server:
        peer = RawPeer(server)
        fields = [(b":method", b"POST"), (b":scheme", b"http"), (b":path", b"/")]
        peer.send(HELLO + frame(HEADERS, END_HEADERS, 1, encode(fields)))
        now = server.loop.time()
        for late in (0.0, REQUEST_S + 1):
            connection(peer).received_at = now + late
            connection(peer).check_timeouts(now + late)
        await asyncio.sleep(0)
        assert (RST, 0, 1, u32(Code.CANCEL)) in peer.frames()


@pytest.mark.parametrize(
    "begin",
    [b"", b"P", HELLO[:24], b"\x16", bytes.fromhex("16030100c8010000c40303") + bytes(40)],
    ids=["nothing", "one byte", "preface", "first byte of TLS", "half a ClientHello"],
)
async def test_half_open_connections_are_cut_off(begin: bytes, certificate: Path) -> None:
    async with serving(tls=TlsSettings(certificate=str(certificate), key=str(certificate))) as server:
        peer = RawPeer(server)
        if begin:
            peer.send(begin)
        now = server.loop.time()
        peer.protocol.check_timeouts(now + HANDSHAKE_S - 1)
        assert not peer.closing
        peer.protocol.check_timeouts(now + HANDSHAKE_S + 1)
        assert peer.aborted
        assert not peer.written or begin[:1] == b"P"  # nothing leaves before it is known who it is
        peer.leave()
        assert not server.handshaking and not server.connections


async def test_client_hello_in_many_pieces_is_read_in_few(certificate: Path) -> None:
    async with serving(tls=TlsSettings(certificate=str(certificate), key=str(certificate))) as server:
        peer = RawPeer(server)
        hello = b"\x16\x03\x01\x10\x00\x01\x00\x0f\xfc" + bytes(4000)
        for byte in hello[:HELLO_PIECES_AT_ONCE]:
            assert not peer.paused
            peer.send(bytes((byte,)))
        peer.send(hello[HELLO_PIECES_AT_ONCE:][:1])
        assert peer.paused
        await eventually(lambda: not peer.paused)
        assert not peer.closing and not peer.written


async def test_who_does_not_answer_pings_is_cut_off() -> None:
    async with serving() as server:
        peer = RawPeer(server)
        peer.send(HELLO)
        now = server.loop.time()
        connection(peer).check_timeouts(now + KEEPALIVE_S + 1)
        assert peer.frames()[-1][0] == PING
        connection(peer).check_timeouts(now + KEEPALIVE_S + KEEPALIVE_TIMEOUT_S - 1)
        assert not peer.closing
        connection(peer).check_timeouts(now + KEEPALIVE_S + KEEPALIVE_TIMEOUT_S + 1)
        assert peer.aborted
