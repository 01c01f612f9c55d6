"""A million wrong inputs to the protocol's core, and more to gRPC above it: typed errors, and nothing else.

An input is one frame of a recorded connection (`recordings/`) that was changed: bits flipped, cut, doubled,
repeated, put behind the next one, given another length, kind, flags, stream or number, filled with random
bytes, or with one of another client or a random one before it. A connection goes through a recording frame by
frame, wrong ones among right ones, each fed by itself (or in two pieces), until it ends with an error, or
waits for bytes that a wrong length has promised, or the recording ends; then the next connection begins.

    FUZZ_SEED     repeats a run; without it always the same
    FUZZ_INPUTS   how many; a tenth of them goes on through gRPC's layer, with handlers behind it,
                  and a twentieth is a server's answers, which our client's side takes

A million takes about half a minute of CPU time. What is checked of each connection is in `bounded` and
`ended_properly`.
"""

import asyncio
import os
import random
import socket
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from support.http2.frames import block, frames_of
from support.http2.in_memory import connected
from support.http2.recordings import NAMES, echo_server, recording
from support.waiting import eventually
from whimbrel.rpc.http2.connection import Connection
from whimbrel.rpc.http2.errors import Code
from whimbrel.rpc.http2.frames import GOAWAY, HEAD, HEAD_BYTES, PREFACE
from whimbrel.rpc.http2.hpack import TABLE_BYTES, HeaderDecoder, encode
from whimbrel.rpc.http2.sending import GONE_KEPT
from whimbrel.rpc.http2.stream import Data, Headers, Limits, Stream

SEED = int(os.environ.get("FUZZ_SEED") or 6)
INPUTS = int(os.environ.get("FUZZ_INPUTS") or 1_000_000)
GRPC_INPUTS, CLIENT_INPUTS = INPUTS // 10, INPUTS // 20
CORE_INPUTS = INPUTS - GRPC_INPUTS - CLIENT_INPUTS
WRONG, WRONG_FIRST = 0.5, 0.05  # of the frames; without SETTINGS at the begin nothing else is taken
TWO_PIECES = 0.1
REPEATED_MAX = 30  # more than the limits below let pass
WAITING_BYTES = 2000  # of a frame whose length is wrong: what follows would only be swallowed
GROWTH_BYTES_MAX = 48 << 20  # of the process, from its tenth part of the inputs to the last one

# So small that floods and refusals come within a recording.
LIMITS = Limits(
    streams=8, window=20_000, connection_window=70_000, frame=16_384, block=4096, header_list=4096,
    resets=20, pings=20, settings=10, empty=20,
)  # fmt: skip

RESPONSE_HEADERS = encode([(b":status", b"200"), (b"content-type", b"application/grpc")])
OK = encode([(b"grpc-status", b"0")])
BODIES = (b"", bytes(40), bytes(70_000))
NUMBERS = tuple(
    number.to_bytes(4, "big")
    for number in (0, 1, 4, 16_384, 65_535, 1 << 24, (1 << 31) - 1, 1 << 31, (1 << 32) - 1)
)
EDGES = (0, 1, 4, 5, 6, 8, 9, 16_384, 16_385, (1 << 24) - 1)
FRAMES = {name: frames_of(recording(name)) for name in NAMES}
# The SDKs' header blocks are long, and cost five times those of plain clients: these come more often.
CHOSEN = tuple(name for name in NAMES for _ in range(4 if name.startswith("echo") else 1))
OTHERS = tuple(frame for frames in FRAMES.values() for frame in frames)


class Chance(random.Random):
    """Draws faster than `randrange`; the small bias does not matter here."""

    def below(self, limit: int) -> int:
        """Return a number from 0 to below a limit."""
        return int(self.random() * limit)


def put(frame: bytes, at: int, data: bytes) -> bytes:
    return frame[:at] + data + frame[at + len(data) :]


def flipped(chance: Chance, frame: bytes, _: bytes) -> bytes:
    at = chance.below(len(frame))
    return put(frame, at, bytes((frame[at] ^ 1 << chance.below(8),)))


def flipped_head(chance: Chance, frame: bytes, _: bytes) -> bytes:
    at = chance.below(HEAD_BYTES)
    return put(frame, at, bytes((frame[at] ^ 1 << chance.below(8),)))


def flipped_payload(chance: Chance, frame: bytes, following: bytes) -> bytes:
    at = HEAD_BYTES + chance.below(len(frame) - HEAD_BYTES + 1)
    return frame + frame if at == len(frame) else put(frame, at, bytes((frame[at] ^ 1 << chance.below(8),)))


def cut(chance: Chance, frame: bytes, _: bytes) -> bytes:
    return frame[: chance.below(len(frame))]


def shortened(chance: Chance, frame: bytes, _: bytes) -> bytes:
    length = chance.below(len(frame) - HEAD_BYTES + 1)
    return length.to_bytes(3, "big") + frame[3 : HEAD_BYTES + length]


def doubled(_: Chance, frame: bytes, __: bytes) -> bytes:
    return frame + frame


def repeated(chance: Chance, frame: bytes, __: bytes) -> bytes:
    return frame * (2 + chance.below(REPEATED_MAX))


def swapped(_: Chance, frame: bytes, following: bytes) -> bytes:
    return following + frame


def another_length(chance: Chance, frame: bytes, _: bytes) -> bytes:
    return put(frame, 0, EDGES[chance.below(len(EDGES))].to_bytes(3, "big"))


def another_head(chance: Chance, frame: bytes, _: bytes) -> bytes:
    stream = chance.below(80) if chance.random() < 0.9 else chance.getrandbits(32)
    head = HEAD.pack(0, len(frame) - HEAD_BYTES, chance.below(12), chance.getrandbits(6), stream)
    return head + frame[HEAD_BYTES:]


def another_number(chance: Chance, frame: bytes, _: bytes) -> bytes:
    at = HEAD_BYTES + 4 * chance.below((len(frame) - HEAD_BYTES) // 4 + 1)
    return put(frame, min(at, len(frame)), NUMBERS[chance.below(len(NUMBERS))])


def scrambled(chance: Chance, frame: bytes, _: bytes) -> bytes:
    return frame[:HEAD_BYTES] + chance.randbytes(len(frame) - HEAD_BYTES)


def of_another(chance: Chance, frame: bytes, _: bytes) -> bytes:
    return OTHERS[chance.below(len(OTHERS))] + frame


def inserted(chance: Chance, frame: bytes, _: bytes) -> bytes:
    payload = chance.randbytes(chance.below(40))
    head = HEAD.pack(0, len(payload), chance.below(12), chance.getrandbits(6), chance.below(80))
    return head + payload + frame


CHANGES: tuple[Callable[[Chance, bytes, bytes], bytes], ...] = (
    flipped, flipped_head, flipped_payload, cut, shortened, doubled, repeated, swapped, another_length,
    another_head, another_number, scrambled, of_another, inserted,
)  # fmt: skip


def pieces(chance: Chance, frames: list[bytes]) -> Iterator[tuple[bytes, bool]]:
    """Yield what a connection is fed, and whether it is wrong."""
    last = len(frames) - 1
    for at, frame in enumerate(frames):
        draw = chance.random()
        if draw >= (WRONG if at else WRONG_FIRST):
            yield frame, False
            continue
        data = CHANGES[chance.below(len(CHANGES))](chance, frame, frames[min(at + 1, last)])
        if chance.random() < TWO_PIECES and len(data) > 1:
            part = 1 + chance.below(len(data) - 1)
            yield data[:part], False
            data = data[part:]
        yield data, True


def answer(chance: Chance, conn: Connection, stream: Stream) -> None:
    """Do what a server may do with a request."""
    draw = chance.below(8)
    if draw == 0:
        return  # parked
    if draw == 1:
        conn.reset(stream, Code.CANCEL)
        return
    conn.send_headers(stream, RESPONSE_HEADERS)
    conn.send_data(stream, BODIES[draw % len(BODIES)])
    conn.send_headers(stream, OK, end=True)


def bounded(conn: Connection, limits: Limits) -> None:
    """Fail if a peer has made a connection hold more than it may."""
    assert len(conn.streams) <= limits.streams
    assert len(conn.blocked) <= limits.streams
    assert len(conn.gone) <= GONE_KEPT
    assert len(conn.buffer) <= limits.frame + HEAD_BYTES + len(PREFACE)
    assert conn.block is None or conn.block_bytes <= limits.block
    assert isinstance(conn.decoder, HeaderDecoder)
    assert conn.decoder.size <= TABLE_BYTES
    assert sum(stream.unread for stream in conn.streams.values()) <= limits.connection_window


def ended_properly(conn: Connection, sent: bytes) -> None:
    """Fail unless a connection that was ended said so last, and why, and takes nothing more."""
    assert conn.error is not None
    assert conn.error.code is not Code.INTERNAL_ERROR, conn.error
    text = str(conn.error).encode()[:256]
    at = len(sent) - HEAD_BYTES - 8 - len(text)
    assert sent[at + 3] == GOAWAY and sent.endswith(text), sent[-80:]
    assert int.from_bytes(sent[at + 13 : at + 17], "big") == conn.error.code
    assert (conn.receive(PREFACE), conn.take()) == ([], b"")


def resident_bytes() -> int:
    """Return what the process holds."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


@pytest.mark.timeout(600)
def test_the_core_answers_wrong_input_with_typed_errors(measured: Callable[[str], None]) -> None:
    chance = Chance(SEED)
    count, connections, begun_with, ends = 0, 0, 0, dict.fromkeys(Code, 0)
    while count < CORE_INPUTS:
        conn = Connection(server=True, limits=LIMITS)
        conn.receive(PREFACE)
        conn.take()
        connections += 1
        for data, wrong in pieces(chance, FRAMES[CHOSEN[chance.below(len(CHOSEN))]]):
            count += wrong
            for event in conn.receive(data):
                kind = type(event)
                if kind is Data:
                    if chance.random() < 0.9:
                        conn.consumed(event.stream, event.size)  # type: ignore[union-attr]
                    if event.ended:  # type: ignore[union-attr]
                        answer(chance, conn, event.stream)  # type: ignore[union-attr]
                elif kind is Headers and event.ended:  # type: ignore[union-attr]
                    answer(chance, conn, event.stream)  # type: ignore[union-attr]
            sent = conn.take()
            if conn.error is not None:
                ended_properly(conn, sent)
                ends[conn.error.code] += 1
                break
            if len(conn.buffer) + WAITING_BYTES < conn.needed:
                break
        bounded(conn, LIMITS)
        if not begun_with and count > CORE_INPUTS // 10:
            begun_with = resident_bytes()
    grown = resident_bytes() - begun_with
    told = ", ".join(f"{code.name} {number}" for code, number in ends.items() if number)
    measured(f"seed {SEED}: {count} inputs, {connections} connections; {told}; {grown >> 10} KiB more memory")
    # So that the loop never comes to test nothing.
    for code in (
        Code.PROTOCOL_ERROR, Code.FLOW_CONTROL_ERROR, Code.STREAM_CLOSED, Code.FRAME_SIZE_ERROR,
        Code.COMPRESSION_ERROR, Code.ENHANCE_YOUR_CALM,
    ):  # fmt: skip
        assert ends[code] >= CORE_INPUTS // 100_000, f"{code.name} came {ends[code]} times"
    assert grown < GROWTH_BYTES_MAX


@pytest.mark.timeout(600)
async def test_grpc_above_it_does_as_well(
    measured: Callable[[str], None], caplog: pytest.LogCaptureFixture
) -> None:
    chance = Chance(SEED)
    server = echo_server(LIMITS)
    count, connections, answered, begun_with = 0, 0, 0, 0
    caplog.set_level("ERROR")
    with socket.socket() as socket_stub:
        while count < GRPC_INPUTS:
            connection, sink = connected(server, socket_stub)
            conn = connection.conn
            connection.data_received(PREFACE)
            connections += 1
            for data, wrong in pieces(chance, FRAMES[CHOSEN[chance.below(len(CHOSEN))]]):
                count += wrong
                connection.data_received(data)
                if conn.error is not None or len(conn.buffer) + WAITING_BYTES < conn.needed:
                    break
            if connections % 16 == 0:
                await asyncio.sleep(0)  # streams that are pulled
            bounded(conn, LIMITS)
            if conn.error is not None:
                assert sink.closing
                ended_properly(conn, sink.sent)
            answered += len(sink.written)
            connection.connection_lost(None)
            if not begun_with and count > GRPC_INPUTS // 10:
                begun_with = resident_bytes()
        await eventually(lambda: not (server.tasks or server.unflushed), within_s=60)
    grown = resident_bytes() - begun_with
    measured(f"seed {SEED}: {count} inputs, {connections} connections; {grown >> 10} KiB more memory")
    assert [record.getMessage() for record in caplog.records] == []  # nothing took anybody by surprise
    assert not server.connections and not server.streams.outboxes
    assert set(server.streams.open_by_method.values()) <= {0}
    assert answered > connections
    assert grown < GROWTH_BYTES_MAX


REQUEST = block("/a.B/C")


def calling(streams: int) -> Connection:
    """Return a client's connection that has so many calls open, and waits for their answers."""
    conn = Connection(server=False, limits=LIMITS)
    for _ in range(streams):
        stream = conn.request()
        conn.send_headers(stream, REQUEST)
        conn.send_data(stream, b"question", end=True)
    conn.take()
    return conn


@pytest.mark.timeout(600)
async def test_our_client_takes_wrong_answers_as_well(measured: Callable[[str], None]) -> None:
    chance = Chance(SEED)
    answers: list[tuple[int, list[bytes]]] = []
    server = echo_server(Limits())
    with socket.socket() as socket_stub:
        for name in NAMES:
            connection, sink = connected(server, socket_stub)
            connection.data_received(recording(name))
            await eventually(lambda: not (server.tasks or server.unflushed), within_s=60)
            answers.append(((connection.conn.last_id + 1) // 2, frames_of(sink.sent)))
            connection.connection_lost(None)
    count, ended, told = 0, 0, 0
    while count < CLIENT_INPUTS:
        streams, frames = answers[chance.below(len(answers))]
        conn = calling(streams)
        for data, wrong in pieces(chance, frames):
            count += wrong
            for event in conn.receive(data):
                told += 1
                if isinstance(event, Data):
                    conn.consumed(event.stream, event.size)
            sent = conn.take()
            if conn.error is not None:
                ended_properly(conn, sent)
                ended += 1
                break
            if len(conn.buffer) + WAITING_BYTES < conn.needed:
                break
        assert len(conn.streams) <= streams and len(conn.gone) <= GONE_KEPT
        assert len(conn.buffer) <= LIMITS.frame + HEAD_BYTES
        assert isinstance(conn.decoder, HeaderDecoder)
        assert conn.decoder.size <= TABLE_BYTES
    measured(f"seed {SEED}: {count} inputs, {ended} connections ended, {told} events")
    assert ended > CLIENT_INPUTS // 100 and told > CLIENT_INPUTS // 10
