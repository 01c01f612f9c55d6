"""What real clients sent means the same however the network cuts it.

Every recording is replayed at every fragment size, from 1 byte to all at once: some thousand replays each.
"""

import socket
from typing import Any

import pytest

from support.http2.frames import frames_of
from support.http2.in_memory import connected
from support.http2.recordings import NAMES, echo_server, recording
from support.waiting import eventually
from whimbrel.rpc.http2.connection import Connection
from whimbrel.rpc.http2.frames import HEAD_BYTES, RST_STREAM
from whimbrel.rpc.http2.stream import Data, Headers, Limits, Reset

CLIENTS_MIN = 14
KIND = 3  # where a frame's head has it
GRPC_SIZES = (*range(1, 65), 100, 256, 1000, 1 << 20)


def stream_of(frame: bytes) -> int:
    return int.from_bytes(frame[5:HEAD_BYTES], "big")


def replayed(data: bytes, size: int) -> tuple[list[Any], bytes]:
    """Feed a connection; return what it told, in values that can be compared, and what it sent."""
    conn = Connection(server=True)
    events: list[Any] = []
    for at in range(0, len(data), size):
        for event in conn.receive(data[at : at + size]):
            if type(event) is Data:
                conn.consumed(event.stream, event.size)
                events.append((event.stream.id, event.data, event.ended))
            elif type(event) is Headers:
                events.append((event.stream.id, event.fields, event.ended, event.trailers))
            elif type(event) is Reset:
                events.append((event.stream.id, event.code, event.by_peer))
            else:
                events.append(event)
    assert conn.error is None
    return events, conn.take()


def test_there_are_recordings_of_many_clients() -> None:
    assert len(NAMES) >= CLIENTS_MIN


@pytest.mark.parametrize("name", NAMES)
def test_events_are_the_same_at_every_fragment_size(name: str) -> None:
    data = recording(name)
    whole = replayed(data, len(data))
    assert sum(type(each[1]) is list for each in whole[0] if type(each) is tuple) >= 3  # calls
    for size in range(1, len(data)):
        assert replayed(data, size) == whole, f"{size} bytes at a time"


@pytest.mark.parametrize("name", NAMES)
async def test_answers_are_the_same_whatever_the_fragments(name: str) -> None:
    data = recording(name)
    # Whether a call that is cancelled was answered before depends on whether both came in one piece.
    cancelled = {stream_of(frame) for frame in frames_of(data) if frame[KIND] == RST_STREAM}
    server = echo_server(Limits())
    seen: dict[int, list[bytes]] | None = None
    with socket.socket() as socket_stub:
        for size in GRPC_SIZES:
            connection, sink = connected(server, socket_stub)
            for at in range(0, len(data), size):
                connection.data_received(data[at : at + size])
            await eventually(lambda: not (server.tasks or server.unflushed), within_s=60)
            assert connection.conn.error is None
            answers: dict[int, list[bytes]] = {}
            for frame in frames_of(sink.sent):
                if stream_of(frame) not in cancelled:
                    answers.setdefault(stream_of(frame), []).append(frame)
            seen = seen or answers
            assert answers == seen, f"{size} bytes at a time"
            connection.connection_lost(None)
