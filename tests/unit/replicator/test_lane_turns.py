"""What the compiled lane decides for replicators: the same as Python, and only what is plain."""

import contextlib
import random
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from support.lane.logs import lane_or_skip
from support.replication.member_pair import MEMBER, begin_epoch
from support.store.master_log import MasterLog, same_log
from support.waiting import polls
from unit.replicator import test_feeder, test_follower
from unit.replicator.test_feeder import SLAVE, closed
from unit.replicator.test_follower import FILE, frame, framed, records
from whimbrel.ha.frames import FRAME_HEADER, REPORT
from whimbrel.ha.switching import DIALECT, HEADER, MEMBER_REPORT
from whimbrel.machine import Machine
from whimbrel.replicator.follower import Follower
from whimbrel.replicator.loop import Loop
from whimbrel.replicator.metrics import AckTimes
from whimbrel.replicator.options import ReplicatorOptions
from whimbrel.replicator.replicator import Replicator
from whimbrel.replicator.roles import MasterRole, Role, SlaveRole
from whimbrel.store.commitlog import LogWriter
from whimbrel.store.shared_page import SharedPage

DEADLINE_S = 20
FAR = (1 << 40, 1 << 40, 1 << 60)  # heartbeat, silence, end of the run


@pytest.fixture
def master(tmp_path: Path) -> Iterator[test_feeder.Stage]:
    """Return a master's side with the lane."""
    with contextlib.ExitStack() as stack:
        yield test_feeder.Stage(tmp_path, stack, lane_or_skip())


@pytest.fixture
def slave(tmp_path: Path) -> Iterator[test_follower.Stage]:
    """Return a slave's side with the lane, connected, with some log that it has followed."""
    made = test_follower.Stage(tmp_path, lane=lane_or_skip())
    made.connect()
    made.send(frame(0, b"a" * 100))
    made.reported(100)
    yield made
    made.close()


def proven(stage: test_feeder.Stage, host: str = SLAVE) -> socket.socket:
    """Connect a slave whose reports acknowledge."""
    peer = stage.connect(host)
    peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)  # what it sends is there at once
    assert stage.reported(peer, stage.end)
    stage.end = stage.master.append(1)
    received(stage, peer, stage.end)
    assert stage.reported(peer, stage.end)
    stage.turns(lambda: stage.feeder.steady())
    return peer


def received(stage: test_feeder.Stage, peer: socket.socket, end: int) -> list[tuple[int, bytes]]:
    """Take what a slave is sent up to an end; return the frames with a body."""
    data, frames = bytearray(), []
    at = -1

    def done() -> bool:
        nonlocal at
        with contextlib.suppress(BlockingIOError):
            data.extend(peer.recv(1 << 20))
        while len(data) >= FRAME_HEADER.size:
            offset, size = FRAME_HEADER.unpack_from(data)
            if len(data) < FRAME_HEADER.size + size:
                return False
            if size:
                frames.append((offset, bytes(data[FRAME_HEADER.size : FRAME_HEADER.size + size])))
            at = offset + size
            del data[: FRAME_HEADER.size + size]
        return at == end

    stage.turns(done)
    return frames


def slot_of(stage: test_feeder.Stage, peer: socket.socket) -> int:
    return stage.page.peers.index("{}:{}".format(*peer.getsockname()))


# The master's end


def test_the_log_is_sent_and_reports_acknowledge(master: test_feeder.Stage) -> None:
    peer = proven(master)
    before, start, sent = master.shell.frames, master.end, master.feeder.sent_bytes
    end = master.master.append(20)
    frames = received(master, peer, end)
    assert master.shell.frames > before
    assert b"".join(body for _, body in frames) == master.master.log.read(start, end - start)
    assert frames[0][0] == start
    slot = slot_of(master, peer)
    assert (master.page.sent[slot], master.page.sent_bytes[slot]) == (
        end,
        master.feeder.connections[slot].sent_bytes,
    )
    assert master.feeder.sent_bytes == sent + end - start + FRAME_HEADER.size * len(frames)
    for byte in REPORT.pack(end)[:-1]:  # a report in pieces
        peer.sendall(bytes([byte]))
        master.turns(lambda: True)
    assert master.page.acks[slot] == start
    while master.master.bell.take():
        pass
    master.page.broker_sleeping = 1
    peer.sendall(REPORT.pack(end)[-1:])
    master.turns(lambda: master.page.acks[slot] == end)
    assert master.master.bell.take()  # the broker hears of it


def test_frames_end_where_the_longest_would(tmp_path: Path) -> None:
    with contextlib.ExitStack() as stack:
        master = test_feeder.Stage(tmp_path, stack, lane_or_skip())
        object.__setattr__(master.feeder.options, "frame_bytes_max", 1000)
        peer = proven(master)
        end = master.master.append(10)
        frames = received(master, peer, end)
        assert len(frames) > 5
        assert all((offset + len(body)) % 1000 == 0 for offset, body in frames[:-1])


def test_a_frame_does_not_cross_a_files_end(master: test_feeder.Stage) -> None:
    peer = proven(master)
    start = master.end
    while master.end < 3 * 65536:
        master.end = master.master.append(7)
    frames = received(master, peer, master.end)
    assert all(offset // 65536 == (offset + len(body) - 1) // 65536 for offset, body in frames)
    assert sum(len(body) for _, body in frames) == master.end - start


@pytest.mark.parametrize(("wrong", "why"), [(-1, "never negative"), (1, "past this log's end")])
def test_a_wrong_report_ends_the_connection(master: test_feeder.Stage, wrong: int, why: str) -> None:
    peer = proven(master)
    offset = -1 if wrong < 0 else master.end + 1
    peer.sendall(REPORT.pack(master.end) + REPORT.pack(offset))
    master.turns(lambda: closed(peer))
    assert master.hosts() == []
    if wrong > 0:
        assert why in master.page.trouble


def test_a_report_of_what_was_not_sent_ends_the_connection(master: test_feeder.Stage) -> None:
    peer = proven(master)
    connection = master.feeder.connections[slot_of(master, peer)]
    master.turns(master.feeder.steady)
    end = master.master.append(1)
    # Sent in the same read as the log grows: it is there, but this slave can't have it.
    native = lane_or_skip().native
    assert native is not None
    feeding = native.Feeding((1, 0, end, 0), 1 << 20, (0, 65536), FAR, False)
    feeding.add(0, connection.core.next_offset, 0, 0, 0, 0, b"")
    assert not feeding.received(0, REPORT.pack(end), end, 1)
    assert feeding.links()[0][6] == REPORT.pack(end)
    assert feeding.next((1, 0, end, 0), 1) == ("leave",)


def test_a_silent_slave_is_given_up_and_an_idle_one_hears_of_us(master: test_feeder.Stage) -> None:
    peer = proven(master)
    closed(peer)  # what was sent is dropped
    master.now += master.feeder.options.heartbeat_ms / 1000 + 0.01
    assert received(master, peer, master.end) == []  # a heartbeat
    master.now += master.feeder.options.housekeeping_ms / 1000
    master.turns(lambda: closed(peer))
    native = lane_or_skip().native
    assert native is not None
    for limits, end in (((100, 1000, 1 << 60), 100), ((1000, 90, 1 << 60), 90), ((1000, 1000, 50), 50)):
        feeding = native.Feeding((1, 0, 500, 0), 1 << 20, (0, 65536), limits, False)
        feeding.add(0, 500, 500, 0, 0, 0, b"")
        assert feeding.next((1, 0, 500, 0), end - 1) == ("wait", end)
        assert feeding.next((1, 0, 500, 0), end) == ("leave",)
        assert feeding.timed_out == (end == 50)
        following = native.Following((40, FILE, FILE), (40, 0), 0, (False, 0, 1), (0, 0), limits)
        assert following.next(bytearray(10), end - 1) == ("wait", end)
        assert following.next(bytearray(10), end) == ("leave",)
        assert following.timed_out == (end == 50)


def test_a_slave_that_retention_has_passed_is_told_so(master: test_feeder.Stage) -> None:
    peer = proven(master)
    master.page.begin = master.end + 1
    master.page.written = master.end + 5
    master.turns(lambda: closed(peer))
    assert "fell behind" in master.page.trouble


def test_another_epoch_ends_all_connections(master: test_feeder.Stage) -> None:
    peer = proven(master)
    master.turns(master.feeder.steady)
    native = lane_or_skip().native
    assert native is not None
    for marks in ((2, 0, 500, 0), (1, 0, 500, 1), (1, 450, 500, 0), (1, 0, 300, 0)):
        feeding = native.Feeding((1, 0, 500, 0), 1 << 20, (0, 65536), FAR, False)
        feeding.add(0, 400, 400, 0, 0, 0, b"")
        assert feeding.next(marks, 1) == ("leave",)
        assert not feeding.timed_out
    master.master.reopen()
    master.turns(lambda: closed(peer))


def test_a_full_socket_gets_the_rest_of_its_frame(tmp_path: Path) -> None:
    with contextlib.ExitStack() as stack:
        master = test_feeder.Stage(tmp_path, stack, lane_or_skip())
        peer = proven(master)
        connection = master.feeder.connections[slot_of(master, peer)]
        rng = random.Random(1)

        class Narrow:
            """A socket that takes a part of what it is given."""

            def __init__(self, sock: socket.socket) -> None:
                self.sock = sock

            def __getattr__(self, name: str) -> Any:
                return getattr(self.sock, name)

            def send(self, data: Any, flags: int = 0) -> int:
                if rng.random() < 0.3:
                    raise BlockingIOError
                return self.sock.send(data[: rng.randrange(1, 2000)], flags)

        connection.sock = Narrow(connection.sock)  # type: ignore[assignment]
        for _ in range(30):
            start = master.end
            master.end = end = master.master.append(rng.randrange(1, 9))
            frames = received(master, peer, end)
            assert b"".join(body for _, body in frames) == logged(master, start, end)
            assert master.reported(peer, end)
            master.turns(master.feeder.steady)
        assert master.shell.frames >= 30  # each is begun by the lane


def logged(stage: test_feeder.Stage, start: int, end: int) -> bytes:
    """Return a piece of the master's log, across files."""
    log = stage.feeder.log
    assert log is not None
    data = b""
    while start < end:
        piece = log.read(start, end - start)
        data, start = data + piece, start + len(piece)
    return data


def test_all_slaves_are_fed(master: test_feeder.Stage) -> None:
    peers = [proven(master), proven(master, "127.0.0.2")]
    slots = [slot_of(master, peer) for peer in peers]
    received(master, peers[0], master.end)
    before, start = master.page.acks[slots[0]], master.end
    end = master.master.append(20)
    for peer in peers:
        assert sum(len(body) for _, body in received(master, peer, end)) == end - start
    assert master.reported(peers[1], end)
    assert [master.page.acks[slot] for slot in slots] == [before, end]


def test_metrics_hear_when_it_was_written_and_acknowledged(master: test_feeder.Stage) -> None:
    times = AckTimes()
    master.feeder.ack_timer = times
    peer = proven(master)
    counted = times.latency.count
    for _ in range(5):
        end = master.master.append(1)
        received(master, peer, end)
        master.now += 0.25
        assert master.reported(peer, end)
    assert times.latency.count == counted + 5
    assert times.latency.total == pytest.approx(1.25, abs=0.1)
    native = lane_or_skip().native
    assert native is not None
    feeding = native.Feeding((1, 0, 0, 0), 1 << 20, (0, 65536), FAR, True)
    feeding.add(0, 0, 0, 0, 0, 0, b"")
    for end in range(1, 2000):
        what, *about = feeding.next((1, 0, end, 0), end)
        if what == "leave":
            break
        feeding.sent(about[0], about[2], about[2] + FRAME_HEADER.size, end)
        feeding.waited(True)
    assert feeding.timed_out  # what is kept for metrics has a bound
    assert 900 < len(feeding.notes()) <= 1024


# The slave's end


def test_frames_are_appended_and_the_newest_end_reported(slave: test_follower.Stage) -> None:
    data = records(200_000)
    before, rest = slave.shell.bodies, data[100:]
    slave.send(framed(rest, 5000, 100))
    slave.reported(len(data))
    assert slave.shell.bodies > before
    assert slave.log.read(100, len(rest)) == rest
    assert slave.follower.appended_bytes == len(data)
    assert slave.log.end == slave.loop.page.written == len(data)


@pytest.mark.parametrize("seed", range(20))
def test_any_stream_has_the_same_effect_by_both(tmp_path: Path, seed: int) -> None:
    results = []
    for name, lane in (("python", None), ("lane", lane_or_skip())):
        rng = random.Random(seed)
        stage = test_follower.Stage(tmp_path / name, lane=lane)
        stage.wait_s = 0.001
        stage.connect()
        data = b"a" * 100 + records(120_000, seed=seed)
        stage.send(frame(0, data[:100]))
        stage.reported(100)
        sent = stream(rng, data)
        at = 0
        while at < len(sent) and stage.loop.page.connected:
            size = rng.choice([1, 5, 12, 100, 5000, 50_000])
            with contextlib.suppress(OSError):
                stage.send(sent[at : at + size])
            at += size
            if rng.random() < 0.5:
                stage.turns(idle_for(stage, rng.randrange(1, 4)))
        stage.turns(idle_for(stage, 50))
        stage.heard()
        end, page = stage.log.end, stage.loop.page
        assert page.written == end
        assert (stage.shell.bodies > 0) == (lane is not None)
        trouble = page.trouble.partition(": ")[2]
        # What came in one read with a broken frame is reported by the lane, and not by Python.
        results.append((end, stage.log.read(0, end), trouble, -1 if trouble else stage.reports[-1]))
        stage.close()
    assert results[0] == results[1]


def idle_for(stage: test_follower.Stage, turns: int) -> Any:
    """Return what is so after some turns."""
    left = [turns]

    def done() -> bool:
        with contextlib.suppress(ConnectionError):
            stage.heard()
        left[0] -= 1
        return left[0] < 0

    return done


def stream(rng: random.Random, data: bytes) -> bytes:
    """Return frames of a log from 100 on, heartbeats among them, and perhaps one that is wrong."""
    at, sent = 100, b""
    wrong_at = rng.choice([1 << 60, rng.randrange(100, len(data))])
    while at < len(data):
        if at >= wrong_at:
            offset, size = rng.choice([(at + 1, 5), (at - 50, 5), (at, -1), (at, FILE), (-1, 5)])
            return sent + FRAME_HEADER.pack(offset, size) + b"x" * 50
        if rng.random() < 0.1:
            sent += frame(at, b"")
        size = rng.choice([1, 50, 5000, 20_000])
        sent += frame(at, data[at : at + size])
        at += len(data[at : at + size])
    return sent


def test_the_log_goes_on_in_the_next_file(slave: test_follower.Stage) -> None:
    data = b"a" * 100 + random.Random(1).randbytes(2 * FILE)
    at = 100
    while at < len(data):
        size = min(300_000, FILE - at % FILE, len(data) - at)
        slave.send(frame(at, data[at : at + size]))
        at += size
    slave.reported(len(data))
    assert slave.log.read(FILE - 1000, 1000) + slave.log.read(FILE, 1000) == data[FILE - 1000 : FILE + 1000]
    with contextlib.suppress(ConnectionResetError):  # it may leave before all of it is sent
        slave.send(frame(len(data), b"b" * (FILE + 1)))  # longer than a file
    slave.turns(lambda: slave.follower.core is None)
    assert slave.log.end == len(data)
    native = lane_or_skip().native
    assert native is not None
    following = native.Following((FILE - 50, FILE, 2 * FILE), (FILE - 50, 0), 0, (False, 0, 1), (112, 0), FAR)
    assert following.next(bytearray(frame(FILE - 50, b"x" * 100)), 1) == ("leave",)


def test_what_follows_a_log_hears_of_its_growth(slave: test_follower.Stage) -> None:
    woken: list[int] = []
    slave.log.preallocator.wake = lambda current, end, **_: woken.append(end)  # type: ignore[method-assign]
    flushes: list[int] = []
    slave.log.flusher.wake = lambda: flushes.append(slave.log.end)  # type: ignore[method-assign]
    slave.log.flush_bytes = 1 << 20
    data = random.Random(1).randbytes(3 << 20)
    for at in range(0, len(data), 1 << 16):
        slave.send(frame(100 + at, data[at : at + (1 << 16)]))
    slave.reported(100 + len(data))
    assert woken
    assert flushes
    native = lane_or_skip().native
    assert native is not None
    following = native.Following((0, FILE, 50), (0, 0), 0, (False, 0, 1), (3 * 52, 0), FAR)
    buffer = bytearray(frame(0, b"x" * 40) + frame(40, b"x" * 40) + frame(80, b"x" * 40))
    for at in (0, 40):
        assert following.next(buffer, 1) == ("append", at // 40 * 52 + 12, 40, at)
        following.appended(40, True)
    assert following.next(buffer, 1) == ("publish", 80)  # from 50 on it is Python's


def test_reports_follow_what_is_shown(slave: test_follower.Stage) -> None:
    native = lane_or_skip().native
    assert native is not None
    following = native.Following((0, FILE, FILE), (0, 0), 0, (False, -10, 5), (52, 0), FAR)
    buffer = bytearray(frame(0, b"x" * 40))
    assert following.next(buffer, 0)[0] == "append"
    following.appended(40, True)
    assert following.next(buffer, 0) == ("publish", 40)
    assert following.next(buffer, 0) == ("report", 40, REPORT.pack(40))
    following.sent_report(3, 7)  # a part of it
    assert (following.unsent, following.reported) == (REPORT.pack(40)[3:], (40, 7))
    assert following.next(buffer, 0) == ("ring",)
    following.rang(True, 0)
    assert following.next(buffer, 0) == ("leave",)
    assert (following.rung, following.timed_out) == ((False, 0), False)


def test_a_silent_master_is_given_up(slave: test_follower.Stage) -> None:
    slave.now += slave.follower.options.heartbeat_ms / 1000 + 0.1
    slave.turns(lambda: slave.heard() > 2)  # the end is repeated
    assert slave.reports[-1] == 100
    slave.now += slave.follower.options.housekeeping_ms / 1000
    slave.turns(lambda: slave.follower.core is None)
    assert "nothing came from the master" in slave.loop.page.trouble or not slave.loop.page.connected


# Groups that commit by majority; `tests/property/test_lane_members.py` has histories of them

GROUP = (100, 1000, 300, 0, 0, 50, 10)  # start, beat, heard, needed, until, idle, apart


def leading(
    group: tuple[int, ...] = GROUP,
    *,
    told: int = 70,
    end: int = 1 << 60,
    connected: int = 5,
    next_at: int = 200,
) -> Any:
    """Return a run that feeds member 2, which has all up to `next_at`, in epoch 4 from 100 on."""
    native = lane_or_skip().native
    assert native is not None
    feeding = native.Feeding((1, 0, 200, 0), 1 << 20, (0, 65536), FAR, False, group)
    feeding.add(0, next_at, next_at, 0, 0, 0, b"", (2, True, 4, 100, end, connected, told))
    return feeding


MARKS = (1, 0, 200, 0)


def test_a_leader_tells_a_member_that_it_lives_and_what_is_committed() -> None:
    feeding = leading()
    assert feeding.next(MARKS, 49, (5, 70, 0, True)) == ("wait", 50)
    assert feeding.next(MARKS, 50, (5, 70, 0, True)) == (
        "send",
        0,
        200,
        0,
        HEADER.pack(2, 0, 200, 4, 100, 70),
    )
    feeding.sent(0, 0, HEADER.size, 50)
    assert feeding.next(MARKS, 50, (5, 70, 0, True)) == ("wait", 100)
    assert feeding.next(MARKS, 50, (5, 80, 0, True)) == ("wait", 60)  # it is committed up to 80
    assert feeding.next(MARKS, 60, (5, 80, 0, True))[4] == HEADER.pack(2, 0, 200, 4, 100, 80)
    feeding.sent(0, 0, HEADER.size, 60)
    assert feeding.links()[0][8] == 80
    assert feeding.next(MARKS, 60, (5, 80, 0, True)) == ("wait", 110)
    grown = (1, 0, 230, 0)
    assert feeding.next(grown, 61, (5, 90, 0, True)) == (
        "send",
        0,
        200,
        30,
        HEADER.pack(2, 30, 200, 4, 100, 90),
    )
    feeding.sent(0, 30, 40, 62)  # a part of it
    assert feeding.links()[0][7:] == ((200, 30, 40), 90)
    assert feeding.next(grown, 62, (5, 90, 0, True)) == ("leave",)


def test_a_member_is_told_only_what_was_committed_after_it_was_seen() -> None:
    feeding = leading(told=-1)
    assert feeding.next(MARKS, 20, (4, 80, 0, True)) == ("wait", 50)
    assert feeding.next((1, 0, 230, 0), 20, (4, 80, 0, True))[4] == HEADER.pack(2, 30, 200, 4, 100, -1)
    assert leading(told=-1).next(MARKS, 20, (5, 80, 0, True))[4] == HEADER.pack(2, 0, 200, 4, 100, 80)


def test_a_frame_ends_with_the_epoch_and_the_next_one_is_pythons() -> None:
    feeding = leading(end=150, next_at=120)
    assert feeding.next(MARKS, 1, (5, 70, 0, True))[1:4] == (0, 120, 30)
    feeding.sent(0, 30, HEADER.size + 30, 1)
    assert feeding.next(MARKS, 1, (5, 70, 0, True)) == ("leave",)
    assert leading(end=300, next_at=99).next(MARKS, 1, (5, 70, 0, True)) == ("leave",)


def test_a_run_ends_as_soon_as_what_it_stands_on_is_another() -> None:
    assert leading().next(MARKS, 1, (5, 70, 0, False)) == ("leave",)
    native = lane_or_skip().native
    assert native is not None
    buffer = bytearray(frame(0, b"x" * 40) * 2)
    following = native.Following((0, FILE, FILE), (0, 0), 0, (False, -10, 5), (52, 0), FAR)
    assert following.next(buffer, 0, False, 0) == ("leave",)
    assert (following.end, following.buffer) == (0, (52, 0))


def test_a_broker_that_does_not_beat_and_too_few_voters_end_a_run() -> None:
    assert leading().next(MARKS, 999, (5, 70, 0, True))[0] == "send"
    assert leading().next(MARKS, 1000, (5, 70, 0, True)) == ("leave",)
    group = (100, 1 << 40, 300, 1, 500, 1 << 40, 10)
    feeding = leading(group)
    for now in (299, 300, 499):  # it reported at 0, and the leader has led since 200
        assert feeding.next(MARKS, now, (5, 70, 0, True))[0] == "wait"
    assert feeding.next(MARKS, 500, (5, 70, 0, True)) == ("leave",)
    feeding = leading(group)
    assert not feeding.received(0, MEMBER_REPORT.pack(2, 200), 200, 400)  # the same again
    assert feeding.next(MARKS, 699, (5, 70, 0, True))[0] == "wait"
    assert feeding.next(MARKS, 700, (5, 70, 0, True)) == ("leave",)
    native = lane_or_skip().native
    assert native is not None
    feeding = native.Feeding(MARKS, 1 << 20, (0, 65536), FAR, False, group)
    feeding.add(0, 200, 200, 0, 0, 490, b"", (2, False, 4, 100, 1 << 60, 5, 70))  # it does not count
    assert feeding.next(MARKS, 499, (5, 70, 0, True))[0] == "wait"
    assert feeding.next(MARKS, 500, (5, 70, 0, True)) == ("leave",)


def test_an_observer_gets_what_is_committed_in_the_leaders_epoch() -> None:
    native = lane_or_skip().native
    assert native is not None
    plain = ("send", 0, 120, 30, FRAME_HEADER.pack(120, 30))
    for start, commit, expected in ((100, 150, plain), (100, 99, ("leave",)), (151, 150, ("leave",))):
        feeding = native.Feeding(MARKS, 1 << 20, (0, 65536), FAR, False, (start, *GROUP[1:]))
        feeding.add(0, 120, 120, 0, 0, 0, b"")
        assert feeding.next(MARKS, 1, (5, commit, 0, True)) == expected
    feeding = native.Feeding(MARKS, 1 << 20, (0, 65536), FAR, False, GROUP)
    feeding.add(0, 160, 160, 0, 0, 0, b"")  # it was sent more than is committed now
    assert feeding.next(MARKS, 1, (5, 150, 0, True)) == ("leave",)


@pytest.mark.parametrize(
    ("data", "plain"),
    [
        (MEMBER_REPORT.pack(2, 180) + MEMBER_REPORT.pack(2, 200), True),
        (MEMBER_REPORT.pack(2, 180)[:7], True),
        (MEMBER_REPORT.pack(2, 201), False),
        (MEMBER_REPORT.pack(2, 149), False),
        (MEMBER_REPORT.pack(2, 180) + MEMBER_REPORT.pack(2, 170), False),
        (MEMBER_REPORT.pack(1, 180), False),
        (MEMBER_REPORT.pack(2, 180) + b"\0\0\0\1", False),
    ],
)
def test_reports_of_members(data: bytes, plain: bool) -> None:
    native = lane_or_skip().native
    assert native is not None
    feeding = native.Feeding(MARKS, 1 << 20, (0, 65536), FAR, False, GROUP)
    feeding.add(0, 200, 150, 0, 0, 0, b"", (2, True, 4, 100, 1 << 60, 5, 70))
    moved = feeding.received(0, data, 1000, 7)
    assert moved == (plain and len(data) >= MEMBER_REPORT.size)
    _, acknowledged, _, _, received_ns, partial, unread, *_ = feeding.links()[0]
    if plain:
        assert (acknowledged, received_ns) == (200 if moved else 150, 7)
        assert (partial, unread) == (data[len(data) - len(data) % 12 :], b"")
    else:
        assert (acknowledged, received_ns, partial, unread) == (150, 0, b"", data)


def member_frame(
    at: int, body: bytes, commit: int, *, state: int = 2, era: tuple[int, int] = (4, 100)
) -> bytes:
    return HEADER.pack(state, len(body), at, *era, commit) + body


def followed(data: bytes, *, commit: int = 50, shown: int = 50, sync: bool = False) -> Any:
    """Return a run of a log that ends at 200 in epoch 4, of which the next one starts at 300."""
    native = lane_or_skip().native
    assert native is not None
    leader = (4, 100, 300, commit, shown)
    return native.Following(
        (200, FILE, FILE), (200, 0), 0, (False, -10, 5), (len(data), 0), FAR, sync, leader
    )


def test_a_member_shows_what_it_has_heard_before_it_reports() -> None:
    buffer = bytearray(1000)
    data = member_frame(200, b"x" * 40, 210) + member_frame(240, b"", 230) + member_frame(240, b"", 220)
    buffer[: len(data)] = data
    following = followed(b"")
    assert following.next(buffer, 0)[0] == "wait"
    assert following.make_room(buffer) == 0
    following.received(len(data), 3)
    assert following.next(buffer, 3) == ("append", HEADER.size, 40, 200)
    following.appended(40, True)
    assert following.next(buffer, 3) == ("publish", 240)
    assert following.next(buffer, 3) == ("hear", 230)
    assert following.commit == 230
    assert following.next(buffer, 3) == ("report", 240, MEMBER_REPORT.pack(2, 240))
    following.sent_report(MEMBER_REPORT.size, 3)
    assert following.next(buffer, 3) == ("ring",)
    following.rang(True, 3)
    assert following.next(buffer, 3)[0] == "wait"
    data = member_frame(240, b"", 290)  # of more than the log has
    at = following.make_room(buffer)
    buffer[at : at + len(data)] = data
    following.received(len(data), 10)
    assert following.next(buffer, 10) == ("hear", 240)
    assert following.commit == 290
    assert following.next(buffer, 10) == ("ring",)  # the broker makes visible what is committed
    following.rang(True, 10)
    following.make_room(buffer)
    following.received(1, 20)
    assert following.next(buffer, 20) == ("hear", 240)  # whatever comes, the leader has said something
    assert following.next(buffer, 20)[0] == "wait"


@pytest.mark.parametrize(
    "data",
    [
        member_frame(200, b"x" * 100, 50),  # its end is the next epoch's start
        member_frame(200, b"x", 50, state=1),
        member_frame(200, b"x", -2),
        member_frame(200, b"x", 50, era=(5, 100)),
        member_frame(200, b"x", 50, era=(4, 101)),
        member_frame(201, b"x", 50),
        member_frame(199, b"", 50),
        HEADER.pack(2, -1, 200, 4, 100, 50),
    ],
)
def test_frames_of_a_leader_that_are_pythons(data: bytes) -> None:
    buffer = bytearray(1000)
    buffer[: len(data)] = data
    following = followed(data)
    assert following.next(buffer, 1) == ("leave",)
    assert (following.end, following.commit, following.buffer) == (200, 50, (len(data), 0))


def test_what_is_not_on_disk_is_not_reported() -> None:
    buffer = bytearray(1000)
    data = member_frame(200, b"x" * 40, 50) + member_frame(240, b"x" * 30, 50)
    buffer[: len(data)] = data
    following = followed(data, sync=True)
    for at, size in ((200, 40), (240, 30)):
        assert following.next(buffer, 0, True, 200)[2:] == (size, at)
        following.appended(size, True)
    assert following.next(buffer, 0, True, 200) == ("publish", 270)
    assert following.next(buffer, 0, True, 200) == ("flush", 270)
    assert following.next(buffer, 0, True, 200) == ("ring",)
    following.rang(True, 0)
    assert following.next(buffer, 0, True, 200)[0] == "wait"
    assert following.next(buffer, 0, True, 240) == ("report", 240, MEMBER_REPORT.pack(2, 240))
    following.sent_report(MEMBER_REPORT.size, 9)
    assert following.reported == (240, 9)
    assert following.next(buffer, 0, True, 290) == ("report", 270, MEMBER_REPORT.pack(2, 270))


# With system calls


class Pair:
    """A master's and a slave's replicator, each in a thread, over a log that the test writes."""

    def __init__(
        self, root: Path, stack: contextlib.ExitStack, *, majority: bool = False, flush: str = "async"
    ) -> None:
        self.master = stack.enter_context(MasterLog(root / "master", file_size=1 << 22))
        self.majority = majority
        self.beat()
        if majority:
            self.master.page.ha_dialect = DIALECT
            begin_epoch(self.master.root, self.master.page, 1, 0)
            (root / "slave").mkdir()
            with contextlib.closing(SharedPage.open(root / "slave")) as page:
                page.ha_dialect, page.broker_id = DIALECT, MEMBER
        self.master.append(5)
        self.replicators: list[Replicator] = []
        self.threads: list[threading.Thread] = []
        self.turns: dict[str, int] = {}
        options = ReplicatorOptions(role="master", store=str(root / "master"), port=0)
        self.feed = self.add(stack, root / "master", options, MasterRole)
        port = self.feed.loop.page.ha_port
        options = ReplicatorOptions(
            role="slave",
            store=str(root / "slave"),
            master_ha=f"127.0.0.1:{port}",
            commitlog_file_size=1 << 22,
            flush=flush,  # type: ignore[arg-type]
        )
        self.slave = self.add(stack, root / "slave", options, SlaveRole)

    def add(
        self, stack: contextlib.ExitStack, root: Path, options: ReplicatorOptions, role: Any
    ) -> Replicator:
        """Start a replicator."""
        (root / "whimbrel").mkdir(parents=True, exist_ok=True)
        loop = stack.enter_context(contextlib.closing(Loop(root, Machine(lane=lane_or_skip()))))
        replicator = stack.enter_context(Replicator(loop, options))
        made: Role = role(loop, options)
        replicator.start(made)
        if isinstance(made, MasterRole):
            assert made.feeder is not None
            made.feeder.ack_timer = AckTimes()
        turn = loop.turn

        def counted(timeout: float, idle: Any) -> None:
            self.turns[made.name] = self.turns.get(made.name, 0) + 1
            turn(timeout, idle)

        loop.turn = counted  # type: ignore[method-assign]
        thread = threading.Thread(target=replicator.run)
        thread.start()

        def stop() -> None:
            loop.stop()
            loop.wake()
            thread.join(DEADLINE_S)

        stack.callback(stop)
        return replicator

    def beat(self) -> None:
        """Beat as a leader's broker does."""
        self.master.page.broker_beat_ns = time.monotonic_ns()

    def caught_up(self, end: int) -> None:
        """Wait until the slave has acknowledged an end."""
        event = threading.Event()
        for _ in range(DEADLINE_S * 1000):
            self.beat()
            if max(self.feed.loop.page.acks) == end:
                return
            event.wait(0.001)
        raise AssertionError(f"{max(self.feed.loop.page.acks)} of {end} is acknowledged")


def test_a_log_is_replicated_with_system_calls(tmp_path: Path) -> None:
    with contextlib.ExitStack() as stack:
        pair = Pair(tmp_path, stack)
        for _ in range(3):
            pair.caught_up(pair.master.append(1))
        before = dict(pair.turns)
        rng = random.Random(1)
        for count in range(600):
            end = pair.master.append(rng.choice([1, 1, 1, 30]), body_bytes=rng.choice([10, 900, 60_000]))
            if count % 3 == 0 or count > 550:
                pair.caught_up(end)
        pair.caught_up(end)
        assert pair.slave.loop.page.written == end
        assert not pair.slave.loop.page.trouble
        assert pair.slave.loop.page.replica_pass == pair.feed.loop.page.replica_pass == 0
        for name, turns in pair.turns.items():  # files end, and sockets are full; else it is the lane's
            assert turns - before[name] < 400, name
        assert isinstance(pair.feed.role, MasterRole)
        assert pair.feed.role.feeder is not None
        timer = pair.feed.role.feeder.ack_timer
        assert isinstance(timer, AckTimes)
        assert timer.latency.count > 150
    assert same_log(tmp_path / "master", tmp_path / "slave", end)


@pytest.mark.parametrize(("majority", "flush"), [(True, "sync"), (True, "async"), (False, "sync")], ids=str)
def test_members_and_synchronous_slaves_follow_with_system_calls(
    tmp_path: Path, majority: bool, flush: str
) -> None:
    with contextlib.ExitStack() as stack:
        pair = Pair(tmp_path, stack, majority=majority, flush=flush)
        page, slave = pair.feed.loop.page, pair.slave.loop.page
        for _ in range(3):
            pair.caught_up(pair.master.append(1))
        page.commit_saw = page.newest_connection()
        before = dict(pair.turns)
        for _ in range(150):
            end = pair.master.append(1)
            pair.caught_up(end)
            if flush == "sync":
                assert slave.flushed >= end
            page.commit = end
            if page.replica_sleeping:
                pair.master.bell.ring("replicator")
        for _ in polls(DEADLINE_S, every_s=0.001):
            if not majority or slave.heard_commit == end:
                break
        assert slave.heard_commit == (end if majority else 0)
        assert dict(page.member_acks()) == ({MEMBER: end} if majority else {})
        for name, turns in pair.turns.items():
            assert turns - before[name] < 60, name
    assert same_log(tmp_path / "master", tmp_path / "slave", end)


def test_a_fault_of_the_lane_ends_its_connections_and_python_goes_on(tmp_path: Path) -> None:
    with contextlib.ExitStack() as stack:
        pair = Pair(tmp_path, stack)
        pair.caught_up(pair.master.append(3))
        for replicator in (pair.feed, pair.slave):
            lane = replicator.loop.machine.lane
            native = lane.native
            assert native is not None

            def panics(native: Any, *_: Any) -> None:
                native.panic("on purpose")

            replicator.loop.feed = replicator.loop.follow = panics  # type: ignore[method-assign, assignment]
        event = threading.Event()
        for _ in range(DEADLINE_S * 100):
            pair.caught_up(pair.master.append(1))
            if not (pair.feed.loop.machine.lane.active or pair.slave.loop.machine.lane.active):
                break
            event.wait(0.01)
        assert pair.feed.loop.machine.lane.failures == pair.slave.loop.machine.lane.failures == 1
        pair.caught_up(end := pair.master.append(10))
    assert same_log(tmp_path / "master", tmp_path / "slave", end)


def test_a_slaves_log_goes_on_where_its_mark_stands_after_a_fault(slave: test_follower.Stage) -> None:
    native = slave.loop.machine.lane.native
    assert native is not None
    follow = slave.loop.follow

    def panics(native: Any, *arguments: Any) -> None:
        follow(native, *arguments)
        if slave.loop.page.written > 100:
            native.panic("on purpose")

    slave.loop.follow = panics  # type: ignore[method-assign, assignment]
    slave.send(frame(100, b"b" * 50))
    slave.turns(lambda: not slave.loop.machine.lane.active)
    assert (slave.log.end, slave.loop.page.written) == (150, 150)
    slave.log.append_raw(150, b"c")
    assert slave.log.read(100, 51) == b"b" * 50 + b"c"


def test_a_process_that_died_within_is_followed_by_one_without(tmp_path: Path) -> None:
    (tmp_path / "whimbrel").mkdir()
    options = ReplicatorOptions(role="master", store=str(tmp_path), port=0)
    for expected in (False, True):
        machine = Machine(lane=lane_or_skip())
        with contextlib.closing(Loop(tmp_path, machine)) as loop:
            if not expected:
                loop.page.replica_pass = 1
            with Replicator(loop, options):
                assert (machine.lane.active, loop.page.replica_pass) == (expected, 0)


def test_a_slave_that_flushes_synchronously_reports_what_is_on_disk(tmp_path: Path) -> None:
    stage = test_follower.Stage(tmp_path, flush="sync", lane=lane_or_skip())
    stage.connect()
    stage.send(frame(0, b"a" * 100))
    stage.reported(100)
    flush = stage.log.flush
    held: list[int] = []
    stage.log.flush = lambda: None  # type: ignore[method-assign]
    stage.log.flusher.work = lambda: held.append(stage.log.page.written)  # type: ignore[attr-defined]
    stage.send(frame(100, b"b" * 100))
    stage.turns(lambda: stage.log.end == 200 and bool(held))
    stage.turns(idle_for(stage, 20))
    assert (stage.shell.bodies, held[0], stage.reports[-1]) == (1, 200, 100)
    assert isinstance(stage.follower, Follower)
    flush()
    stage.reported(200)
    assert stage.log.flushed == 200
    stage.log.flush = flush  # type: ignore[method-assign]
    stage.close()


def test_what_a_run_has_appended_is_flushed_while_it_lasts(tmp_path: Path) -> None:
    stage = test_follower.Stage(tmp_path, flush="sync", lane=lane_or_skip())
    stage.connect()
    stage.send(frame(0, b"a" * 100))
    stage.reported(100)
    assert isinstance(stage.log, LogWriter)
    stage.log.lend()
    stage.loop.page.written = 160  # as the run shows it; the log itself has not heard of it
    stage.log.flush()
    assert (stage.log.end, stage.log.flushed, stage.log.replicated) == (100, 160, True)
    stage.log.grown(160)
    assert (stage.log.end, stage.log.lent) == (160, False)
    stage.loop.page.written = 170
    stage.log.flush()
    assert stage.log.flushed == 160
    stage.close()
