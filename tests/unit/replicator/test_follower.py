"""A slave's replicator beside a master that is played by the test, over a real connection."""

import itertools
import random
import socket
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from support.lane.logs import lane_or_skip
from support.replication.replica_shell import play
from support.store.master_log import HOST
from whimbrel.errors import StoreFull
from whimbrel.ha.frames import FRAME_HEADER, REPORT
from whimbrel.ha.protocol import COMPARE_BYTES
from whimbrel.lane import Lane
from whimbrel.machine import Machine
from whimbrel.replicator.buffers import RECEIVE_BYTES
from whimbrel.replicator.follower import RING_INTERVAL_MIN_S, Follower
from whimbrel.replicator.loop import Loop
from whimbrel.replicator.options import ReplicatorOptions
from whimbrel.store.codec import RecordDraft, encode_record
from whimbrel.store.commitlog import LogWriter
from whimbrel.store.options import StoreOptions

FILE = 1 << 22
TURNS_MAX = 2000


class Stage:
    """The follower, its log, and the master's end of the connection."""

    def __init__(
        self,
        root: Path,
        *,
        flush: str = "async",
        compare_bytes: int = COMPARE_BYTES,
        lane: Lane | None = None,
    ) -> None:
        self.now, self.step_s, self.wait_s = 1000.0, 0.01, 0.02
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.listener.settimeout(10)
        port = self.listener.getsockname()[1]
        options = ReplicatorOptions(
            role="slave",
            store=str(root),
            master_ha=f"127.0.0.1:{port}",
            flush=flush,  # type: ignore[arg-type]
            compare_bytes=compare_bytes,
        )
        self.loop = Loop(root, Machine(lane=lane or Lane("off")))
        self.shell = play(self.loop, lambda: self.now)
        store = StoreOptions(commitlog_file_size=FILE, flush=options.flush, flush_interval_ms=3_600_000)
        self.log = LogWriter.open(root, store)
        self.follower = Follower(self.loop, options, self.log, clock=lambda: self.now)
        self.reports: list[int] = []

    def turns(self, done: Callable[[], bool]) -> None:
        """Run the follower until something is so."""
        for _ in range(TURNS_MAX):
            if done():
                return
            by_lane = self.follower.run_lane(self.now)
            self.follower.step(self.now)
            if not by_lane:
                self.loop.turn(min(self.follower.wait_timeout(self.now), self.wait_s), self.follower.idle)
            self.now += self.step_s
        raise AssertionError("it never happened")

    def connect(self) -> None:
        """Let the follower connect; its first report is the first of `reports`."""
        self.turns(lambda: self.follower.core is not None)
        self.master, _ = self.listener.accept()
        self.master.setblocking(False)
        self.turns(lambda: self.heard() > 0)

    def heard(self) -> int:
        """Take the reports that have come in; return how many came so far."""
        try:
            data = self.master.recv(1 << 16)
        except BlockingIOError:
            return len(self.reports)
        assert len(data) % REPORT.size == 0
        self.reports += [offset for (offset,) in REPORT.iter_unpack(data)]
        return len(self.reports)

    def send(self, data: bytes) -> None:
        """Send bytes, running the follower whenever the connection is full."""
        view = memoryview(data)
        while view:
            try:
                view = view[self.master.send(view) :]
            except BlockingIOError:
                self.follower.step(self.now)
                self.loop.turn(0.01, self.follower.idle)

    def reported(self, offset: int) -> None:
        """Run until this end is reported."""

        def done() -> bool:
            self.heard()
            return self.reports[-1] == offset

        self.turns(done)

    def close(self) -> None:
        """End it all."""
        self.follower.disconnect("the test is over", 10)
        self.log.close(clean=False)
        self.loop.close()
        self.listener.close()


@pytest.fixture(params=["python", "lane"])
def stage(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Stage]:
    made = Stage(tmp_path, lane=lane_or_skip() if request.param == "lane" else None)
    yield made
    made.close()


def frame(offset: int, body: bytes) -> bytes:
    return FRAME_HEADER.pack(offset, len(body)) + body


def framed(data: bytes, size: int, start: int = 0) -> bytes:
    """Cut a piece of a log into frames."""
    return b"".join(frame(start + at, data[at : at + size]) for at in range(0, len(data), size))


def records(size: int, *, seed: int = 1, start: int = 0) -> bytes:
    """Return a log of records, its last one cut."""
    chance, log = random.Random(seed), bytearray()
    while len(log) < size:
        draft = RecordDraft(
            topic="t",
            queue_id=0,
            body=chance.randbytes(900),
            properties=b"",
            born_timestamp=1,
            born_host=HOST,
            store_host=HOST,
        )
        log += encode_record(draft, physical_offset=start + len(log), queue_offset=0, store_timestamp=1)
    return bytes(log[:size])


def test_the_first_report_goes_out_at_once(stage: Stage) -> None:
    stage.connect()
    assert stage.reports == [0]


@pytest.mark.parametrize("size", [100, 32 * 1024, 1 << 20, 3 << 20])
def test_frames_of_any_size_are_appended_and_the_newest_end_reported(stage: Stage, size: int) -> None:
    data = random.Random(size).randbytes(3 << 20 if size > 1000 else 100_000)
    stage.connect()
    stage.send(framed(data, size))
    stage.reported(len(data))
    assert stage.log.end == len(data)
    assert stage.log.read(0, len(data)) == data
    assert stage.reports == sorted(set(stage.reports))


def test_a_frame_is_reported_only_when_it_is_whole(stage: Stage) -> None:
    stage.connect()
    stage.send(frame(0, b"a" * 100) + frame(100, b"b" * 100)[:-1])
    stage.reported(100)
    stage.send(b"b")
    stage.reported(200)


def test_the_broker_is_rung_after_the_report_and_some_time_apart(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    rings: list[tuple[int, float]] = []  # what was reported before each, and when it was
    stage.connect()
    monkeypatch.setattr(stage.loop, "ring_broker", lambda: rings.append((stage.heard(), stage.now)))
    stage.step_s = RING_INTERVAL_MIN_S / 4
    for end in range(100, 2100, 100):
        stage.send(frame(end - 100, b"a" * 100))
        stage.reported(end)
    stage.turns(lambda: not stage.follower.ring_due)
    assert len(stage.reports) == 21
    assert rings[0][0] == 2  # the first report, and that of the first frame
    assert 2 < len(rings) <= 20 / 2  # a turn or more for each report, four to an interval
    apart = [later - earlier for (_, earlier), (_, later) in itertools.pairwise(rings)]
    assert min(apart) > RING_INTERVAL_MIN_S * 0.99


def test_a_frame_longer_than_the_buffer_is_taken_in_parts(stage: Stage) -> None:
    stage.connect()
    data = random.Random(1).randbytes(2 * RECEIVE_BYTES)
    stage.send(frame(0, data)[:-1])
    stage.turns(lambda: stage.log.end >= RECEIVE_BYTES)
    assert stage.reports == [0]
    stage.send(data[-1:])
    stage.reported(len(data))


def test_frames_before_a_broken_one_are_kept_and_the_connection_ends(stage: Stage) -> None:
    stage.connect()
    stage.send(frame(0, b"a" * 100) + frame(999, b"b"))
    stage.turns(lambda: stage.follower.core is None)
    assert stage.log.end == 100
    assert "sends from 999 on, but this log ends at 100" in stage.loop.page.trouble
    assert stage.loop.page.connected == 0


def test_a_full_disk_stops_reading_and_room_starts_it_again(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    create = stage.log.preallocator.create

    def full(start: int) -> None:
        raise StoreFull("no room on disk")

    stage.connect()
    stage.send(frame(0, b"a" * 1000))
    stage.reported(1000)
    monkeypatch.setattr(stage.log.preallocator, "create", full)
    stage.log.preallocator.next = None
    rest = random.Random(2).randbytes(FILE - 1000)
    more = random.Random(3).randbytes(300_000)
    stage.send(framed(rest, 1 << 20, 1000) + framed(more, 32 * 1024, FILE)[:200_000])
    stage.turns(lambda: stage.follower.stalled)
    assert stage.log.end == FILE
    assert "waits for disk space" in stage.loop.page.trouble
    stage.now += 100.0  # far longer than any silence a master allows: the report is repeated, nobody leaves
    before = stage.heard()
    stage.turns(lambda: stage.heard() > before)
    assert stage.follower.core is not None
    monkeypatch.setattr(stage.log.preallocator, "create", create)
    monkeypatch.setattr(stage.log, "retry_at", 0.0)
    stage.send(framed(more, 32 * 1024, FILE)[200_000:])
    stage.reported(FILE + len(more))
    assert stage.loop.page.trouble == ""
    assert stage.log.read(FILE, len(more)) == more


def test_with_synchronous_flush_only_what_is_on_disk_is_reported(tmp_path: Path) -> None:
    stage = Stage(tmp_path, flush="sync")
    try:
        with_lock = stage.log.flush_lock
        stage.connect()
        with with_lock:  # the disk is busy
            stage.send(frame(0, b"a" * 1000) + frame(1000, b"b" * 1000))
            stage.turns(lambda: stage.log.end == 2000)
            stage.follower.step(stage.now)
            assert stage.heard() == 1
        stage.reported(2000)
        assert stage.log.flushed == 2000
    finally:
        stage.close()


def test_a_heartbeat_starts_an_empty_log_at_the_masters_last_file(stage: Stage) -> None:
    stage.connect()
    stage.send(frame(3 * FILE, b""))
    stage.reported(3 * FILE)
    stage.send(frame(3 * FILE, b"abc"))
    stage.reported(3 * FILE + 3)
    assert stage.log.begin == 3 * FILE


def reconnect(stage: Stage) -> None:
    """Break the connection and let the follower come back."""
    stage.master.close()
    stage.turns(lambda: stage.follower.core is None)
    stage.reports.clear()
    stage.connect()


@pytest.mark.parametrize("size", [100, 32 * 1024, 1 << 20])
def test_a_master_shows_the_end_of_our_log_before_it_goes_on(stage: Stage, size: int) -> None:
    data = records(200_000)
    stage.connect()
    stage.send(framed(data[:150_001], 1 << 20))
    stage.reported(150_001)
    reconnect(stage)
    start = 150_001 - COMPARE_BYTES
    assert stage.reports == [start]
    stage.send(framed(data[start:], size, start))
    stage.reported(len(data))
    assert stage.log.read(0, len(data)) == data
    assert stage.follower.page.trouble == ""


def test_a_short_log_is_not_asked_for_as_if_it_were_empty(stage: Stage) -> None:
    stage.connect()
    stage.send(frame(0, b"x" * 1000))
    stage.reported(1000)
    reconnect(stage)
    assert stage.reports == [1]


def test_a_master_given_by_its_address_hears_what_a_slave_of_rocketmq_would_say(tmp_path: Path) -> None:
    stage = Stage(tmp_path, compare_bytes=-1)
    stage.connect()
    stage.send(frame(0, b"x" * 1000))
    stage.reported(1000)
    reconnect(stage)
    assert stage.reports == [1000]
    stage.send(frame(1000, b"y"))
    stage.reported(1001)
    stage.close()


@pytest.mark.parametrize("other", [0, 70_000, 99_999])
def test_a_master_with_another_log_is_refused_and_ours_stays(stage: Stage, other: int) -> None:
    ours = records(100_000)
    stage.connect()
    stage.send(framed(ours, 1 << 20))
    stage.reported(len(ours))
    reconnect(stage)
    start = len(ours) - COMPARE_BYTES
    theirs = ours[:other] + random.Random(2).randbytes(150_000 - other)
    first = next(at for at in range(max(start, other), len(ours)) if ours[at] != theirs[at])
    stage.send(framed(theirs[start:], 32 * 1024, start))
    stage.turns(lambda: stage.follower.core is None)
    assert f"differs from ours at byte {first}" in stage.follower.page.trouble
    assert stage.log.end == len(ours) and stage.log.read(0, len(ours)) == ours
    assert all(offset <= len(ours) for offset in stage.reports)


def test_a_master_that_has_less_is_told_our_real_end_over_a_connection_of_its_own(stage: Stage) -> None:
    ours = records(100_000)
    stage.connect()
    stage.send(framed(ours, 1 << 20))
    stage.reported(len(ours))
    reconnect(stage)
    start = len(ours) - COMPARE_BYTES
    stage.send(frame(start, ours[start:90_000]) + frame(90_000, b""))
    stage.turns(lambda: stage.follower.core is None)
    stage.heard()
    assert max(stage.reports) <= 90_000  # no more than was compared
    stage.reports.clear()
    stage.connect()
    assert stage.reports == [len(ours)]
    stage.master.close()  # refused
    stage.turns(lambda: stage.follower.core is None)
    assert "log ends at 90000, ours 10000 bytes later at 100000" in stage.follower.page.trouble
    stage.reports.clear()
    stage.connect()
    assert stage.reports == [start]  # and the logs are compared again
    assert stage.log.end == len(ours)


def test_a_master_that_has_grown_meanwhile_is_compared_again_and_nothing_is_taken_before(
    stage: Stage,
) -> None:
    ours = records(100_000)
    stage.connect()
    stage.send(framed(ours, 1 << 20))
    stage.reported(len(ours))
    reconnect(stage)
    start = stage.reports[0]
    stage.send(frame(start, b""))
    stage.turns(lambda: stage.follower.core is None)
    stage.reports.clear()
    stage.connect()
    assert stage.reports == [len(ours)]
    stage.send(frame(len(ours), b"something else"))
    stage.turns(lambda: stage.follower.core is None)
    assert stage.log.end == len(ours)
    stage.reports.clear()
    stage.connect()
    assert stage.reports == [start]


def test_a_log_that_ends_at_a_file_border_is_compared_before_it_goes_on(stage: Stage) -> None:
    ours = records(FILE)
    stage.connect()
    stage.send(framed(ours, 1 << 20))
    stage.reported(FILE)
    reconnect(stage)
    assert stage.reports == [FILE - COMPARE_BYTES]
    theirs = records(FILE, seed=2)
    stage.send(frame(FILE - COMPARE_BYTES, theirs[-COMPARE_BYTES:]) + frame(FILE, b"new"))
    stage.turns(lambda: stage.follower.core is None)
    assert "differs from ours at byte" in stage.follower.page.trouble
    assert stage.log.end == FILE
