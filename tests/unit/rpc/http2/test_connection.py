"""HTTP/2's rules: what a peer may do, what ends a stream or the connection, and what a flood costs."""

import random
from collections.abc import Callable
from typing import Any

import h2.config
import h2.connection
import h2.events
import h2.exceptions
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from support.http2.frames import (
    ACK,
    CONTINUATION,
    DATA,
    END_HEADERS,
    END_STREAM,
    GOAWAY,
    HEADERS,
    HELLO,
    PADDED,
    PING,
    PRIORITIZED,
    PRIORITY,
    PUSH,
    RST,
    SETTINGS,
    WINDOW,
    frame,
    request_fields,
    split,
    u32,
)
from whimbrel.rpc.http2.connection import Connection
from whimbrel.rpc.http2.errors import Code
from whimbrel.rpc.http2.frames import PREFACE
from whimbrel.rpc.http2.hpack import encode, value_of
from whimbrel.rpc.http2.stream import Data, Drained, GoAway, Headers, Limits, Pong, Reset

REQUEST = request_fields("/a.B/C")
RESPONSE_HEADERS = encode([(b":status", b"200")])
LIMITS = Limits(
    streams=4, frame=16_384, block=4096, header_list=4096, resets=20, pings=20, settings=10, empty=20
)


def request(stream: int = 1, *, end: bool = True, fields: Any = REQUEST) -> bytes:
    return frame(HEADERS, END_HEADERS | (END_STREAM if end else 0), stream, encode(fields))


def server(limits: Limits = LIMITS) -> Connection:
    """Give a server that has been greeted."""
    conn = Connection(server=True, limits=limits)
    assert conn.receive(HELLO) == []
    conn.take()
    return conn


def test_a_call_and_its_answer() -> None:
    conn = server()
    headers, data = conn.receive(request(end=False) + frame(DATA, END_STREAM, 1, b"body"))
    assert isinstance(headers, Headers) and isinstance(data, Data)
    assert [(field[0], value_of(field)) for field in headers.fields] == REQUEST
    assert (data.data, data.ended) == (b"body", True)
    conn.send_headers(data.stream, RESPONSE_HEADERS)
    assert conn.send_data(data.stream, b"answer")
    conn.send_headers(data.stream, encode([(b"grpc-status", b"0")]), end=True)
    kinds = [(kind, flags, stream) for kind, flags, stream, _ in split(conn.take())]
    assert kinds == [(HEADERS, END_HEADERS, 1), (DATA, 0, 1), (HEADERS, END_HEADERS | END_STREAM, 1)]
    assert conn.streams == {}


@pytest.mark.parametrize(
    ("frames", "code"),
    [
        (frame(DATA, 0, 0, b"x"), Code.PROTOCOL_ERROR),
        (frame(DATA, 0, 1, b"x"), Code.PROTOCOL_ERROR),
        (frame(HEADERS, END_HEADERS, 0), Code.PROTOCOL_ERROR),
        (request(2), Code.PROTOCOL_ERROR),
        (request(5) + request(3), Code.PROTOCOL_ERROR),
        (request(1, end=False) + frame(DATA, PADDED, 1, b"\x05abc"), Code.PROTOCOL_ERROR),
        (frame(HEADERS, END_HEADERS, 1, b"\x80"), Code.COMPRESSION_ERROR),
        (
            frame(HEADERS, END_HEADERS | PRIORITIZED, 1, u32(1) + b"\x00" + encode(REQUEST)),
            Code.PROTOCOL_ERROR,
        ),
        (frame(HEADERS, 0, 1, b"") + frame(PING, 0, 0, bytes(8)), Code.PROTOCOL_ERROR),
        (frame(HEADERS, 0, 1, b"") + frame(CONTINUATION, END_HEADERS, 3), Code.PROTOCOL_ERROR),
        (frame(CONTINUATION, END_HEADERS, 1), Code.PROTOCOL_ERROR),
        (frame(PRIORITY, 0, 0, bytes(5)), Code.PROTOCOL_ERROR),
        (frame(RST, 0, 0, bytes(4)), Code.PROTOCOL_ERROR),
        (frame(RST, 0, 1, bytes(4)), Code.PROTOCOL_ERROR),
        (request() + frame(RST, 0, 1, bytes(3)), Code.FRAME_SIZE_ERROR),
        (frame(SETTINGS, ACK, 0, bytes(6)), Code.FRAME_SIZE_ERROR),
        (frame(SETTINGS, 0, 1), Code.PROTOCOL_ERROR),
        (frame(SETTINGS, 0, 0, bytes(5)), Code.FRAME_SIZE_ERROR),
        (frame(SETTINGS, 0, 0, b"\x00\x02" + u32(2)), Code.PROTOCOL_ERROR),
        (frame(SETTINGS, 0, 0, b"\x00\x04" + u32(1 << 31)), Code.FLOW_CONTROL_ERROR),
        (frame(SETTINGS, 0, 0, b"\x00\x05" + u32(16_383)), Code.PROTOCOL_ERROR),
        (frame(PUSH, END_HEADERS, 1, bytes(4)), Code.PROTOCOL_ERROR),
        (frame(PING, 0, 1, bytes(8)), Code.PROTOCOL_ERROR),
        (frame(PING, 0, 0, bytes(7)), Code.FRAME_SIZE_ERROR),
        (frame(GOAWAY, 0, 1, bytes(8)), Code.PROTOCOL_ERROR),
        (frame(GOAWAY, 0, 0, bytes(7)), Code.FRAME_SIZE_ERROR),
        (frame(WINDOW, 0, 0, u32(0)), Code.PROTOCOL_ERROR),
        (frame(WINDOW, 0, 0, bytes(3)), Code.FRAME_SIZE_ERROR),
        (frame(WINDOW, 0, 0, u32(2**31 - 1)), Code.FLOW_CONTROL_ERROR),
        (frame(WINDOW, 0, 1, u32(1)), Code.PROTOCOL_ERROR),
        (frame(DATA, 0, 1, bytes(16_385)), Code.FRAME_SIZE_ERROR),
        (frame(HEADERS, 0, 1, bytes(4000)) + frame(CONTINUATION, 0, 1, bytes(100)), Code.ENHANCE_YOUR_CALM),
        (request(fields=[*REQUEST, (b"n", b"v" * 4000)]), Code.ENHANCE_YOUR_CALM),
    ],
)
def test_what_ends_a_connection(frames: bytes, code: Code) -> None:
    conn = server()
    conn.receive(frames)
    assert conn.error is not None and conn.error.code == code
    kind, _, _, payload = split(conn.take())[-1]
    assert (kind, payload[4:8]) == (GOAWAY, u32(code))
    assert conn.receive(request(7)) == []
    assert conn.take() == b""


@pytest.mark.parametrize(
    ("frames", "code"),
    [
        (request() + frame(DATA, 0, 1, b"x"), Code.STREAM_CLOSED),
        (request() + request(), Code.STREAM_CLOSED),
        (request(end=False) + request(end=False, fields=[(b"x", b"y")]), Code.PROTOCOL_ERROR),
        (request(fields=[*REQUEST, (b"Upper", b"case")]), Code.PROTOCOL_ERROR),
        (request(fields=[*REQUEST, (b":late", b"")]), Code.PROTOCOL_ERROR),
        (request(fields=[(b":status", b"200"), *REQUEST]), Code.PROTOCOL_ERROR),
        (request(fields=REQUEST[1:]), Code.PROTOCOL_ERROR),
        (request(fields=[REQUEST[0], *REQUEST]), Code.PROTOCOL_ERROR),
        (request(fields=[*REQUEST[:2], (b":path", b"")]), Code.PROTOCOL_ERROR),
        (request(fields=[*REQUEST, (b"connection", b"keep-alive")]), Code.PROTOCOL_ERROR),
        (request(fields=[*REQUEST[:4], (b"te", b"gzip")]), Code.PROTOCOL_ERROR),
        (request(fields=[*REQUEST, (b"content-length", b"1")]), Code.PROTOCOL_ERROR),
        (request(end=False) + frame(WINDOW, 0, 1, u32(0)), Code.PROTOCOL_ERROR),
        (request(end=False) + frame(WINDOW, 0, 1, u32(2**31 - 1)), Code.FLOW_CONTROL_ERROR),
        (request(end=False) + frame(PRIORITY, 0, 1, bytes(4)), Code.FRAME_SIZE_ERROR),
        (b"".join(request(number, end=False) for number in (1, 3, 5, 7, 9)), Code.REFUSED_STREAM),
    ],
)
def test_what_ends_a_stream_and_leaves_the_connection(frames: bytes, code: Code) -> None:
    conn = server()
    conn.receive(frames)
    assert conn.error is None
    kind, _, _, payload = split(conn.take())[-1]
    assert (kind, payload) == (RST, u32(code))
    opened = [event for event in conn.receive(request(99)) if isinstance(event, Headers)]
    assert len(opened) == (code != Code.REFUSED_STREAM)


@pytest.mark.parametrize(
    ("flood", "limit"),
    [
        (lambda n: frame(PING, 0, 0, bytes(8)), 20),
        (lambda n: frame(SETTINGS, 0, 0), 10),
        (lambda n: request(2 * n + 1, end=False) + frame(RST, 0, 2 * n + 1, u32(8)), 20),
        (lambda n: request(2 * n + 1, fields=REQUEST[1:]), 20),
        (lambda n: frame(PRIORITY, 0, 1, bytes(5)), 20),
        (lambda n: frame(0xAB, 0, 0), 20),
        (lambda n: frame(SETTINGS, ACK, 0), 20),
        (lambda n: request(1, end=False) if not n else frame(DATA, 0, 1), 20),
        (lambda n: frame(HEADERS, 0, 1) if not n else frame(CONTINUATION, 0, 1), 20),
    ],
    ids=[
        "ping",
        "settings",
        "rapid reset",
        "malformed",
        "priority",
        "unknown",
        "acks",
        "empty data",
        "continuation",
    ],
)
def test_a_flood_ends_the_connection(flood: Callable[[int], bytes], limit: int) -> None:
    conn = server()
    for number in range(limit + 2):
        conn.receive(flood(number), now=1.0)
    assert conn.error is not None and conn.error.code == Code.ENHANCE_YOUR_CALM
    assert len(conn.take()) < 200 * limit


def test_what_is_slow_is_no_flood() -> None:
    conn = server()
    for number in range(200):
        conn.receive(frame(PING, 0, 0, bytes(8)) + frame(SETTINGS, 0, 0), now=number * 2.0)
        assert len(split(conn.take())) == 2
    assert conn.error is None


def test_answers_wait_for_windows_in_their_order() -> None:
    conn = server()
    conn.receive(frame(SETTINGS, 0, 0, b"\x00\x04" + u32(10)))
    (headers,) = conn.receive(request())
    stream = headers.stream  # type: ignore[union-attr]
    conn.take()
    conn.send_headers(stream, RESPONSE_HEADERS)
    assert not conn.send_data(stream, b"0123456789abcdef")
    conn.send_headers(stream, encode([(b"grpc-status", b"0")]), end=True)
    assert [(kind, data) for kind, _, _, data in split(conn.take())][1:] == [(DATA, b"0123456789")]
    assert stream.waiting_bytes == 6
    assert conn.receive(frame(WINDOW, 0, 1, u32(2))) == []
    assert split(conn.take()) == [(DATA, 0, 1, b"ab")]
    (drained,) = conn.receive(frame(SETTINGS, 0, 0, b"\x00\x04" + u32(100)))
    assert isinstance(drained, Drained)
    sent = split(conn.take())
    # The peer counts by its old window until it sees the acknowledgement.
    assert [(kind, flags) for kind, flags, _, _ in sent] == [
        (SETTINGS, ACK),
        (DATA, 0),
        (HEADERS, END_HEADERS | END_STREAM),
    ]
    assert sent[1][3] == b"cdef"
    assert conn.streams == {}


def test_a_window_may_fall_below_nothing() -> None:
    conn = server()
    (headers,) = conn.receive(request())
    stream = headers.stream  # type: ignore[union-attr]
    conn.send_data(stream, bytes(1000))
    conn.receive(frame(SETTINGS, 0, 0, b"\x00\x04" + u32(0)))
    assert stream.send_window == -1000
    assert not conn.send_data(stream, b"x")
    conn.take()
    conn.receive(frame(WINDOW, 0, 1, u32(1000)))
    assert conn.take() == b""
    conn.receive(frame(WINDOW, 0, 1, u32(1)))
    assert split(conn.take()) == [(DATA, 0, 1, b"x")]


def test_who_does_not_consume_stops_its_peer() -> None:
    conn = server(Limits(window=1000, connection_window=70_000, frame=16_384))
    (headers,) = conn.receive(request(end=False))
    stream = headers.stream  # type: ignore[union-attr]
    conn.receive(frame(DATA, 0, 1, bytes(1000)))
    assert conn.take() == b""
    conn.receive(frame(DATA, 0, 1, b"x"))
    assert split(conn.take()) == [(RST, 0, 1, u32(Code.FLOW_CONTROL_ERROR))]
    conn.receive(request(3, end=False))
    (data,) = conn.receive(frame(DATA, 0, 3, bytes(600)))
    conn.consumed(data.stream, 600)  # type: ignore[union-attr]
    assert split(conn.take()) == [(WINDOW, 0, 3, u32(600))]
    assert stream.id not in conn.streams


def test_late_frames_to_a_stream_that_was_reset_here_are_let_pass() -> None:
    conn = server()
    (headers,) = conn.receive(request(end=False))
    conn.reset(headers.stream, Code.CANCEL)  # type: ignore[union-attr]
    conn.take()
    assert (
        conn.receive(frame(DATA, 0, 1, b"late") + frame(WINDOW, 0, 1, u32(1)) + frame(RST, 0, 1, u32(8)))
        == []
    )
    assert (conn.take(), conn.error) == (b"", None)


def test_a_reset_of_the_peer_is_told_once() -> None:
    conn = server()
    conn.receive(request(end=False))
    events = conn.receive(frame(RST, 0, 1, u32(Code.CANCEL)) + frame(RST, 0, 1, u32(Code.CANCEL)))
    assert [(type(event), getattr(event, "code", None)) for event in events] == [(Reset, Code.CANCEL)]


def test_draining_refuses_new_streams_and_finishes_old_ones() -> None:
    conn = server()
    (headers,) = conn.receive(request(1))
    conn.drain()
    conn.receive(request(3))
    sent = split(conn.take())
    assert (sent[0][0], sent[0][3][:4]) == (GOAWAY, u32(1))
    assert sent[1] == (RST, 0, 3, u32(Code.REFUSED_STREAM))
    conn.send_headers(headers.stream, RESPONSE_HEADERS, end=True)  # type: ignore[union-attr]
    assert split(conn.take())[0][0] == HEADERS


def test_something_else_than_http2_is_refused() -> None:
    for data in (
        b"GET / HTTP/1.1\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01",
        PREFACE + frame(PING, 0, 0, bytes(8)),
    ):
        conn = Connection(server=True, limits=LIMITS)
        conn.receive(data)
        assert conn.error is not None and conn.error.code == Code.PROTOCOL_ERROR


Bodies = dict[int, bytes]


def conversation(seed: int, cut: Callable[[], int]) -> tuple[Bodies, Bodies, Bodies]:
    """Let the `h2` package call our server, its bytes cut anywhere; return what was sent, taken, answered."""
    chance = random.Random(seed)
    client = h2.connection.H2Connection(h2.config.H2Configuration(client_side=True, header_encoding=None))
    client.initiate_connection()
    ours = Connection(server=True, limits=Limits(window=70_000, connection_window=100_000, frame=16_384))
    wanted = {2 * n + 1: chance.randbytes(chance.choice((0, 10, 40_000, 200_000))) for n in range(6)}
    unsent = {number: memoryview(body) for number, body in wanted.items()}
    for number in wanted:
        client.send_headers(number, [*REQUEST, (b"x-mq-request-id", b"%d" % chance.getrandbits(64))])
    taken: dict[int, bytearray] = {number: bytearray() for number in wanted}
    answers: dict[int, bytearray] = {number: bytearray() for number in wanted}
    ended: set[int] = set()
    for _ in range(20_000):
        for number, left in list(unsent.items()):
            room = min(client.local_flow_control_window(number), client.max_outbound_frame_size, len(left))
            if room or not left:
                client.send_data(number, left[:room].tobytes(), end_stream=room == len(left))
                unsent[number] = left[room:]
                if room == len(left):
                    del unsent[number]
        data = client.data_to_send()
        while data:
            size = cut()
            for event in ours.receive(data[:size]):
                if isinstance(event, Data):
                    taken[event.stream.id] += event.data
                    ours.consumed(event.stream, event.size)
                    if event.ended:
                        ours.send_headers(event.stream, RESPONSE_HEADERS)
                        ours.send_data(event.stream, bytes(taken[event.stream.id][::-1]), end=True)
            data = data[size:]
        assert ours.error is None
        back = ours.take()
        while back:
            size = cut()
            for found in client.receive_data(back[:size]):
                if isinstance(found, h2.events.DataReceived):
                    answers[found.stream_id] += found.data
                    client.acknowledge_received_data(found.flow_controlled_length, found.stream_id)
                elif isinstance(found, h2.events.StreamEnded):
                    ended.add(found.stream_id)
            back = back[size:]
        if len(ended) == len(wanted):
            break
    return wanted, {n: bytes(b) for n, b in taken.items()}, {n: bytes(b) for n, b in answers.items()}


@pytest.mark.parametrize("seed", range(4))
def test_another_implementation_calls_us_over_bytes_cut_anywhere(seed: int) -> None:
    chance = random.Random(seed)
    sent, taken, answers = conversation(seed, lambda: chance.choice((1, 7, 100, 5000, 100_000)))
    assert taken == sent
    assert answers == {number: body[::-1] for number, body in sent.items()}


def test_our_client_speaks_to_our_server() -> None:
    client, ours = Connection(server=False, limits=LIMITS), Connection(server=True, limits=LIMITS)
    stream = client.request()
    client.send_headers(stream, encode(REQUEST))
    client.send_data(stream, b"question", end=True)
    headers, data = ours.receive(client.take())
    assert isinstance(data, Data) and data.data == b"question"
    ours.send_headers(headers.stream, RESPONSE_HEADERS)  # type: ignore[union-attr]
    ours.send_data(data.stream, b"answer")
    ours.send_headers(data.stream, encode([(b"grpc-status", b"0")]), end=True)
    ours.ping(b"12345678")
    ours.drain()
    found = client.receive(ours.take())
    assert [type(event) for event in found] == [Headers, Data, Headers, GoAway]
    last = found[2]
    assert isinstance(last, Headers) and last.trailers and last.ended
    assert [type(event) for event in ours.receive(client.take())] == [Pong]
    assert client.streams == ours.streams == {}


@given(st.lists(st.binary(max_size=60), max_size=20), st.booleans())
@settings(max_examples=300)
def test_any_bytes_leave_typed_errors_only(pieces: list[bytes], greeted: bool) -> None:
    conn = server() if greeted else Connection(server=True, limits=LIMITS)
    for piece in pieces:
        conn.receive(piece)
    assert len(conn.streams) <= LIMITS.streams
    assert len(conn.buffer) <= LIMITS.frame + 9


@given(st.data())
@settings(max_examples=200)
def test_frames_in_any_order_leave_typed_errors_only(data: st.DataObject) -> None:
    conn = server()
    payloads = st.sampled_from(
        [b"", bytes(4), bytes(5), bytes(8), u32(1), encode(REQUEST), b"\x00\x04" + u32(5)]
    )
    for _ in range(data.draw(st.integers(1, 30))):
        kind, flags = data.draw(st.integers(0, 11)), data.draw(st.sampled_from([0, 1, 4, 5, 8, 0x20, 0x2D]))
        stream = data.draw(st.sampled_from([0, 1, 2, 3, 5, 7]))
        for event in conn.receive(frame(kind, flags, stream, data.draw(payloads | st.binary(max_size=30)))):
            if isinstance(event, Data):
                conn.consumed(event.stream, event.size)
            elif isinstance(event, Headers) and event.ended:
                conn.send_headers(event.stream, RESPONSE_HEADERS)
                conn.send_data(event.stream, bytes(20), end=True)
    assert len(conn.streams) <= LIMITS.streams
    assert conn.error is None or isinstance(conn.error.code, Code)
