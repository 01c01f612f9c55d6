"""Whole frames come out of the receive buffer; bodies that follow each other become one piece."""

import random

import pytest

from whimbrel.ha.frames import FRAME_HEADER
from whimbrel.replicator.buffers import RECEIVE_BYTES, AppendBuffer, ReceiveBuffer


def frame(offset: int, body: bytes) -> bytes:
    return FRAME_HEADER.pack(offset, len(body)) + body


def pour(buffer: ReceiveBuffer, data: bytes, body_left: int = 0) -> tuple[bytes, bytes]:
    """Put as much of `data` into the buffer as it asks for; return what comes out, and the rest of `data`."""
    room = buffer.room()
    count = min(len(room), len(data))
    room[:count] = data[:count]
    return bytes(buffer.fill(count, body_left)), data[count:]


def test_only_whole_frames_come_out() -> None:
    buffer = ReceiveBuffer()
    first, second = frame(0, b"a" * 100), frame(100, b"b" * 50)
    out, _ = pour(buffer, first + second[:-10])
    assert out == first
    assert buffer.missing == 10
    out, rest = pour(buffer, second[-10:] + first)  # no more than the frame lacks
    assert (out, rest) == (second, first)


@pytest.mark.parametrize("piece", [1, 7, 64, 10_000])
def test_what_comes_out_is_what_went_in(piece: int) -> None:
    chance = random.Random(piece)
    data = b"".join(frame(at, chance.randbytes(chance.randrange(200))) for at in range(30))
    buffer, found = ReceiveBuffer(), b""
    for at in range(0, len(data), piece):
        rest = data[at : at + piece]
        while rest:
            out, rest = pour(buffer, rest)
            found += out
    assert found == data


def test_a_frame_longer_than_the_buffer_comes_out_in_parts() -> None:
    buffer, body = ReceiveBuffer(), bytes(RECEIVE_BYTES + 1000)
    data = frame(0, body)
    out, rest = pour(buffer, data)
    assert len(out) == RECEIVE_BYTES
    left = len(body) - (RECEIVE_BYTES - FRAME_HEADER.size)
    out, rest = pour(buffer, rest[:10], left)
    assert len(out) == 10


def test_a_cleared_buffer_has_forgotten_the_half_frame() -> None:
    buffer = ReceiveBuffer()
    pour(buffer, frame(0, b"abc")[:-1])
    buffer.clear()
    assert pour(buffer, frame(7, b"x"))[0] == frame(7, b"x")


def test_a_single_body_is_not_copied_and_several_are_one_piece() -> None:
    buffer, source = AppendBuffer(), memoryview(bytearray(b"abcdef"))
    buffer.add(10, source[:3])
    assert buffer.data.obj is source.obj
    buffer.add(13, source[3:5])
    buffer.add(15, source[5:])
    assert (buffer.offset, bytes(buffer.data)) == (10, b"abcdef")
    assert buffer.data.obj is not source.obj
    buffer.appended()
    assert not buffer.data
    buffer.add(16, source[:1])
    assert (buffer.offset, bytes(buffer.data)) == (16, b"a")
