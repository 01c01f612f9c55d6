"""A connection to a slave sends exactly the log, however little the socket takes at once."""

import random
import socket
from pathlib import Path

import pytest

from support.store.master_log import MasterLog, log_files
from whimbrel.errors import ConnectionClosed
from whimbrel.ha.frames import FRAME_HEADER, REPORT
from whimbrel.ha.protocol import MasterProtocol, OutOfRange
from whimbrel.replicator.slave_connection import REPORTS_BYTES_MAX, SendResult, SlaveConnection
from whimbrel.replicator.sockets import Network
from whimbrel.store.log_reader import LogReader

FILE = 1 << 18


def connected(frame_bytes_max: int = 100_000) -> tuple[SlaveConnection, socket.socket]:
    """Return both ends of a connection."""
    ours, theirs = socket.socketpair()
    ours.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 8192)
    ours.setblocking(False)
    theirs.settimeout(10)
    core = MasterProtocol(file_size=FILE, frame_bytes_max=frame_bytes_max, first_offset="log", now=0.0)
    return SlaveConnection(Network(), ours, "slave:1", core), theirs


def bodies(stream: bytes) -> tuple[list[int], bytes]:
    """Return the offsets and the bodies of the frames in a stream."""
    offsets, found, at = [], b"", 0
    while at < len(stream):
        offset, size = FRAME_HEADER.unpack_from(stream, at)
        offsets.append(offset)
        found += stream[at + FRAME_HEADER.size : at + FRAME_HEADER.size + size]
        at += FRAME_HEADER.size + size
    assert at == len(stream)
    return offsets, found


@pytest.mark.parametrize("frame_bytes_max", [5_000, 100_000])
def test_what_arrives_is_the_log(tmp_path: Path, frame_bytes_max: int) -> None:
    chance = random.Random(3)
    with MasterLog(tmp_path, file_size=FILE) as master:
        end = master.append(600, body_bytes=1000)
        log = LogReader.open(tmp_path, page=master.page)
        connection, slave = connected(frame_bytes_max)
        slave.sendall(REPORT.pack(0))
        assert connection.receive(begin=0, end=end, now=0.0)
        arrived = b""
        while connection.send(log, begin=0, end=end, now=0.0) is not SendResult.IDLE:
            assert connection.blocked
            arrived += slave.recv(chance.randrange(1, 50_000))
        slave.setblocking(False)
        arrived += slave.recv(1 << 20)
        offsets, found = bodies(arrived)
        assert offsets[0] == 0
        assert connection.sent_bytes == len(arrived)
        assert found == b"".join(path.read_bytes() for path in log_files(tmp_path).values())[:end]
        log.close()


def test_a_slave_that_left_is_noticed(tmp_path: Path) -> None:
    connection, slave = connected()
    assert not connection.receive(begin=0, end=0, now=0.0)  # nothing there yet
    slave.close()
    with pytest.raises(ConnectionClosed):
        connection.receive(begin=0, end=0, now=0.0)


def test_a_report_past_the_log_end_confirms_nothing() -> None:
    connection, slave = connected()
    slave.sendall(REPORT.pack(101))
    with pytest.raises(OutOfRange):
        connection.receive(begin=0, end=100, now=0.0)
    assert connection.core.acknowledged == -1


def test_only_so_many_reports_are_read_at_once() -> None:
    connection, slave = connected()
    slave.sendall(REPORT.pack(0) * (REPORTS_BYTES_MAX // REPORT.size + 1))
    assert connection.receive(begin=0, end=0, now=0.0)
    assert not connection.receive(begin=0, end=0, now=0.0)  # the rest, which brings nothing new
