"""Our cores in place of RocketMQ's, on the recorded replication streams of both versions.

`fresh`: an empty slave; `catchup`: it comes back in the middle of a file and is killed; `restart`: it comes
back again; `below-min`: what it asks for is gone; `sync`: both start empty, every send waits for the report.
"""

import itertools
import random
from collections.abc import Iterator
from pathlib import Path

import pytest

from support.store.goldens import chunks, rows, shared, sizes
from whimbrel.ha.frames import CLASSIC_FRAME_BYTES_MAX, FRAME_HEADER, REPORT, Frame
from whimbrel.ha.protocol import Append, FrameReceived, MasterProtocol, OutOfRange, SlaveProtocol

VERSIONS = ("ha493", "ha533")
SITUATIONS = ("fresh", "catchup", "restart", "below-min", "sync")
FILE_SIZE = 65536
TO_MASTER, TO_SLAVE = 0, 1

recorded = pytest.mark.parametrize("name", [f"{v}-{s}.1" for v, s in itertools.product(VERSIONS, SITUATIONS)])


def stream(name: str, direction: int) -> bytes:
    """Return all bytes of one direction."""
    return b"".join(data for _, side, data in chunks(name) if side == direction)


def reports(name: str) -> list[int]:
    """Return the recorded reports."""
    return [offset for (offset,) in REPORT.iter_unpack(stream(name, TO_MASTER))]


def frames(name: str) -> Iterator[tuple[int, bytes]]:
    """Yield the recorded whole frames as (offset, body)."""
    data, at = stream(name, TO_SLAVE), 0
    while at + FRAME_HEADER.size <= len(data):
        offset, size = FRAME_HEADER.unpack_from(data, at)
        body = data[at + FRAME_HEADER.size : at + FRAME_HEADER.size + size]
        at += FRAME_HEADER.size + size
        if len(body) == size:
            yield offset, body


def log_sent(name: str) -> tuple[int, bytes]:
    """Return where the recorded log bytes start, and the bytes."""
    bodies = [(offset, body) for offset, body in frames(name) if body]
    return (bodies[0][0] if bodies else -1), b"".join(body for _, body in bodies)


def without_repeats(offsets: list[int]) -> list[int]:
    """Drop what a timer repeated."""
    return [offset for offset, _ in itertools.groupby(offsets)]


def store_of(name: str, role: str) -> Path:
    """Return the store behind a recording."""
    return shared(f"{name.partition('-')[0]}-{'sync' if 'sync' in name else 'async'}-{role}")


def log_bytes(store: Path, begin: int, end: int) -> bytes:
    """Return a range of a stored log."""
    found = bytearray()
    while begin + len(found) < end:
        at = begin + len(found)
        path = store / "commitlog" / f"{at - at % FILE_SIZE:020d}"
        part = path.read_bytes()[at % FILE_SIZE :]
        found += part[: end - at]
    return bytes(found)


def pieces(data: bytes, how: str) -> Iterator[bytes]:
    """Cut a stream."""
    chance, at = random.Random(5), 0
    while at < len(data):
        size = {"bytes": 1, "whole": len(data), "random": chance.choice((1, 3, 11, 12, 13, 900, 40_000))}[how]
        yield data[at : at + size]
        at += size


@recorded
@pytest.mark.parametrize("how", ["bytes", "random", "whole"])
def test_our_slave_reports_and_holds_what_the_recorded_slave_did(name: str, how: str) -> None:
    first = reports(name)[0]
    core = SlaveProtocol(end=first, file_size=FILE_SIZE, now=0.0)
    held, start = bytearray(), -1
    said = [*REPORT.unpack(core.report(first, 0.0))]
    for piece in pieces(stream(name, TO_SLAVE), how):
        for event in core.receive(memoryview(piece), 0.0):
            if isinstance(event, Append):
                start = event.offset if not held else start
                assert event.offset == start + len(held)
                held += event.data
            elif isinstance(event, FrameReceived):
                said += REPORT.unpack(core.report(event.end, 0.0))
    theirs = without_repeats(reports(name))
    if "catchup" in name:  # it was killed while frames were on their way
        assert said[: len(theirs)] == theirs
        assert len(said) >= len(theirs)
    else:
        assert said == theirs
    offset, body = log_sent(name)
    assert bytes(held[: len(body)]) == body
    if body and "catchup" not in name:
        assert start == offset
        assert bytes(held) == log_bytes(store_of(name, "slave"), offset, offset + len(body))


def situation(name: str) -> tuple[MasterProtocol, int, int]:
    """Return core, log begin and log end as the recorded master stood when the slave connected."""
    first = reports(name)[0]
    offset, _ = log_sent(name)
    first_body = next((body for _, body in frames(name) if body), b"")
    end = max(first, offset + len(first_body))
    begin = 0
    if "below-min" in name:  # all files up to the slave's end had been removed
        begin = (first // FILE_SIZE + 1) * FILE_SIZE
        end = begin + 1
    core = MasterProtocol(
        file_size=FILE_SIZE, frame_bytes_max=CLASSIC_FRAME_BYTES_MAX, first_offset="last-file", now=0.0
    )
    return core, begin, end


@recorded
@pytest.mark.parametrize("how", ["bytes", "random", "whole"])
def test_our_master_sends_the_log_bytes_that_the_recorded_master_sent(name: str, how: str) -> None:
    core, begin, end = situation(name)
    sent: list[Frame] = []

    def send() -> None:
        while frame := core.next_frame(begin=begin, end=end, now=0.0):
            sent.append(frame)

    parsed, unparsed = iter(list(frames(name))), 0
    for _, side, data in chunks(name):
        if side == TO_SLAVE:
            unparsed += len(data)
            for offset, body in parsed:  # the log had grown at least this far
                end = max(end, offset + len(body)) if body else end
                unparsed -= FRAME_HEADER.size + len(body)
                if unparsed <= 0:
                    break
        else:
            for piece in pieces(data, how):
                try:
                    core.receive(piece, begin=begin, end=end, now=0.0)
                except OutOfRange as refusal:
                    assert "below-min" in name
                    assert not refusal.ahead
                    assert sent == []
                    return
        send()
    assert "below-min" not in name
    offset, body = log_sent(name)
    assert sent[0].offset == offset
    assert [a.end for a in sent[:-1]] == [b.offset for b in sent[1:]]
    assert all(frame.offset // FILE_SIZE == (frame.end - 1) // FILE_SIZE for frame in sent if frame.size)
    assert sum(frame.size for frame in sent) == len(body)
    master = store_of(name, "master")
    assert b"".join(log_bytes(master, frame.offset, frame.end) for frame in sent) == body
    if "catchup" not in name:
        assert core.acknowledged == offset + len(body)


def test_the_recordings_used_the_file_size_assumed_here() -> None:
    assert all(sizes(f"{version}-async-master")["commitlog_file_size"] == FILE_SIZE for version in VERSIONS)
    assert rows("ha493-async-master", "loaded")
