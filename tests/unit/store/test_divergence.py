"""What the leader's log does not have is saved aside and cut off: bytes, crashes, refusals (R13, I10)."""

import errno
import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sim.disk import SimDisk
from sim.machine import SimHost
from sim.scheduler import Scheduler
from support.store.crash_points import STRIDE, CrashScene, crash_everywhere
from support.store.stores import FILE, OPTIONS, make_draft, open_log, open_master
from whimbrel.errors import StoreError, StoreFull
from whimbrel.ha.epochs import Epochs
from whimbrel.machine import MACHINE, Files, Machine
from whimbrel.store import cut
from whimbrel.store.commitlog import LogWriter
from whimbrel.store.cut import cut_directory, list_cuts
from whimbrel.store.divergence import DRAFT, cut_aside, finish_cut
from whimbrel.store.epoch_file import EpochFile
from whimbrel.store.failed_sync import read_marker, set_marker
from whimbrel.store.locking import StoreLock
from whimbrel.store.log_reader import LogReader
from whimbrel.store.master_store import MasterStore
from whimbrel.store.recovery_marks import LogMark
from whimbrel.store.seat_file import Seat, cutting
from whimbrel.store.segment import segment_name
from whimbrel.store.shared_page import SharedPage
from whimbrel.store.slave_store import SlaveStore

ROOT = Path("/store")
SMALL = replace(OPTIONS, consumequeue_file_size=400, index_slots=20, index_entries=80)
BODY = 4000  # bytes of a message, of which a log file takes 15
RECORDS = 40
REASON = "the log went on otherwise than the leader's"
SEAT = Seat(uuid="1" * 32, member=2)


def make_log(first: int, count: int = RECORDS) -> tuple[bytes, list[int]]:
    """Return a log, and where its records begin, then its end; bodies tell numbers from `first` on."""
    host = SimHost(Scheduler(0))
    host.disk.format(ROOT)
    process = host.process()
    store = MasterStore.open(ROOT, SMALL, clock=process.wall_ms, machine=process)
    places = [store.append([make_draft(first + number, size=BODY)])[0] for number in range(count)]
    log = b"".join(store.read_log(start, FILE) for start in range(0, store.written, FILE))[: store.written]
    process.kill()
    return log, [*(place.physical_offset for place in places), places[-1].end]


OURS, BORDERS = make_log(100)
THEIRS, THEIR_BORDERS = make_log(500)
END = len(OURS)
IN_FIRST, AT_BORDER, IN_SECOND, IN_LAST = BORDERS[9], FILE, BORDERS[22], BORDERS[38]
assert AT_BORDER in BORDERS
assert THEIR_BORDERS == BORDERS
EPOCHS: Epochs = ((1, 0), (2, BORDERS[5]), (4, BORDERS[20]))
LEADERS: Epochs = ((1, 0), (2, BORDERS[5]), (5, BORDERS[22]))


def receive(log: LogWriter, source: bytes, end: int) -> None:
    """Append a leader's bytes up to an offset, as a replicator does."""
    while log.end < end:
        step = min(9000, end - log.end, FILE - log.end % FILE)
        log.append_raw(log.end, source[log.end : log.end + step])
        log.publish()


def ours(root: Path, *, end: int = END, clean: bool = True, machine: Machine = MACHINE) -> None:
    """Leave a closed log with our bytes and list of epochs."""
    root.mkdir(exist_ok=True)
    log = LogWriter.open(root, SMALL, machine=machine)
    receive(log, OURS, end)
    log.flush()
    EpochFile(root, machine.files).save(tuple(entry for entry in EPOCHS if entry[1] < end))
    log.close(clean=clean)


def aside(root: Path, point: int, end: int = END, *, machine: Machine = MACHINE, **more: int) -> Path | None:
    return cut_aside(root, point, end, epochs=LEADERS, reason=REASON, machine=machine, **more)


def saved_bytes(path: Path, files: Files) -> bytes:
    """Return what a directory has of the log, its files joined where they join."""
    names = [name for name in files.names(path) if name != "why.json"]
    data = b""
    for name in names:
        assert int(name) == int(names[0]) + len(data), names
        data += files.read_bytes(path / name)
    return data


def log_bytes(log: LogWriter) -> bytes:
    return b"".join(log.read(at, min(FILE, log.end - at)) for at in range(0, log.end, FILE))


POINTS = {
    "in the first file": IN_FIRST,
    "at a border": AT_BORDER,
    "in the middle": IN_SECOND,
    "in the last file": IN_LAST,
    "at the begin": 0,
    "at the end": END,
}


@pytest.mark.parametrize("clean", [True, False], ids=["closed", "killed"])
@pytest.mark.parametrize("point", POINTS.values(), ids=POINTS)
def test_the_log_ends_at_the_point_and_goes_on_there_and_the_rest_is_saved(
    point: int, clean: bool, tmp_path: Path
) -> None:
    root = tmp_path / "s"
    ours(root, clean=clean)
    kept = aside(root, point)
    assert EpochFile(root).load() == tuple(entry for entry in EPOCHS if entry[1] < point)
    if point == END:
        assert kept is None
        assert not cut_directory(root).exists()
    else:
        assert kept is not None
        assert saved_bytes(kept, MACHINE.files) == OURS[point:]
    assert not (root / "whimbrel" / DRAFT).exists()
    log = open_log(root, SMALL)
    assert log.end == log.flushed == log.page.written == point
    receive(log, THEIRS, END)
    assert log_bytes(log) == OURS[:point] + THEIRS[point:]
    log.close()
    log = open_log(root, SMALL)
    assert log_bytes(log) == OURS[:point] + THEIRS[point:]
    log.close()
    assert len(list_cuts(root)) == (point != END)


def test_what_is_saved_is_laid_out_as_the_module_says(tmp_path: Path) -> None:
    root = tmp_path / "s"
    ours(root)
    before = MACHINE.wall_ms()
    kept = aside(root, IN_SECOND)
    assert kept == root / "whimbrel" / "cut" / f"4-{IN_SECOND:020d}-{END:020d}"
    assert sorted(path.name for path in kept.iterdir()) == [
        f"{IN_SECOND:020d}",
        f"{2 * FILE:020d}",
        "why.json",
    ]
    assert (kept / f"{IN_SECOND:020d}").read_bytes() == OURS[IN_SECOND : 2 * FILE]
    assert (kept / f"{2 * FILE:020d}").read_bytes() == OURS[2 * FILE :]
    why = json.loads((kept / "why.json").read_bytes())
    assert before <= why.pop("time_ms") <= MACHINE.wall_ms()
    assert why == {
        "version": 1,
        "reason": REASON,
        "point": IN_SECOND,
        "end": END,
        "records": RECORDS - 22,
        "ours": [list(entry) for entry in EPOCHS],
        "theirs": [list(entry) for entry in LEADERS],
    }


@pytest.mark.parametrize(("point", "epoch"), [(0, 1), (BORDERS[5], 2), (BORDERS[20], 4), (BORDERS[19], 2)])
def test_a_directory_is_named_by_the_epoch_of_its_first_byte(point: int, epoch: int, tmp_path: Path) -> None:
    root = tmp_path / "s"
    ours(root)
    kept = aside(root, point)
    assert kept is not None
    assert kept.name.startswith(f"{epoch}-{point:020d}-")


def test_before_the_first_epoch_there_is_epoch_0(tmp_path: Path) -> None:
    root = tmp_path / "s"
    ours(root)
    EpochFile(root).save(())
    kept = aside(root, IN_FIRST)
    assert kept is not None
    assert kept.name.startswith("0-")


def test_a_broker_beside_cuts_its_queues(tmp_path: Path) -> None:
    root = tmp_path / "s"
    root.mkdir()
    log = LogWriter.open(root, SMALL)
    receive(log, OURS, END)
    slave = SlaveStore.open(root, SMALL)
    cuts: list[int] = []
    slave.on_truncated = cuts.append
    assert slave.queue_range("topic", 0) == (0, RECORDS)
    log.close()
    aside(root, IN_FIRST)
    assert slave.page.epoch == 0, "nobody follows a log that is being cut"
    assert not slave.dispatch_ready(1 << 20)
    log = LogWriter.open(root, SMALL)
    receive(log, THEIRS, BORDERS[12])
    while slave.dispatch_ready(1 << 20):
        pass
    assert cuts == [IN_FIRST]
    assert slave.queue_range("topic", 0) == (0, 12)
    assert slave.find_by_key("topic", "key-109") == []
    assert slave.find_by_key("topic", "key-509") == [IN_FIRST]
    assert slave.find_by_key("topic", "key-108") == [BORDERS[8]]
    slave.close()
    log.close()


def test_queues_of_a_broker_that_was_down_are_cut_when_it_starts(tmp_path: Path) -> None:
    root = tmp_path / "s"
    ours(root)
    log = LogWriter.open(root, SMALL)
    slave = SlaveStore.open(root, SMALL)
    slave.close()
    log.close()
    aside(root, IN_SECOND)
    log = LogWriter.open(root, SMALL)
    slave = SlaveStore.open(root, SMALL)
    assert slave.queue_range("topic", 0) == (0, 22)
    slave.close()
    log.close()


def test_the_logs_mark_says_no_more_than_the_point(tmp_path: Path) -> None:
    root = tmp_path / "s"
    ours(root)
    mark = LogMark.load(root)
    assert mark is not None
    assert mark.offset == END
    mark.check = BORDERS[30]
    mark.save(root)
    aside(root, IN_SECOND)
    mark = LogMark.load(root)
    assert mark is not None
    assert (mark.offset, mark.check) == (IN_SECOND, 0)


def test_a_mark_before_the_point_stays(tmp_path: Path) -> None:
    root = tmp_path / "s"
    ours(root)
    mark = LogMark.load(root)
    assert mark is not None
    mark.offset, mark.check = BORDERS[8], BORDERS[3]
    mark.save(root)
    aside(root, IN_SECOND)
    assert LogMark.load(root) == mark


@pytest.mark.parametrize("by", [1, 7, 300])
def test_a_point_within_a_record_ends_the_log_before_that_record(by: int, tmp_path: Path) -> None:
    """A leader's log may end there after its own damage; ours must open all the same."""
    root = tmp_path / "s"
    ours(root)
    kept = aside(root, IN_SECOND + by)
    assert kept is not None
    assert saved_bytes(kept, MACHINE.files) == OURS[IN_SECOND + by :]
    log = open_log(root, SMALL)
    assert log.end == IN_SECOND
    log.close()


def test_without_a_mark_the_log_ends_at_the_point(tmp_path: Path) -> None:
    root = tmp_path / "s"
    ours(root, clean=False)
    (root / "whimbrel" / "log-mark").unlink()
    aside(root, IN_SECOND)
    log = open_log(root, SMALL)
    assert log.end == IN_SECOND
    log.close()


def test_files_that_were_prepared_are_removed_and_nothing_is_saved_of_them(tmp_path: Path) -> None:
    root = tmp_path / "s"
    ours(root, end=IN_SECOND)
    for start in (2 * FILE, 3 * FILE):
        (root / "commitlog" / segment_name(start)).write_bytes(bytes(FILE))
    assert aside(root, IN_SECOND, IN_SECOND) is None
    assert [path.name for path in sorted((root / "commitlog").iterdir())] == [
        segment_name(start) for start in (0, FILE)
    ]
    assert not cut_directory(root).exists()


def test_bytes_behind_the_end_are_saved_as_well(tmp_path: Path) -> None:
    root = tmp_path / "s"
    ours(root)
    last = root / "commitlog" / segment_name(2 * FILE)
    with last.open("r+b") as file:
        file.seek(FILE - 9)
        file.write(b"left over")
    kept = aside(root, IN_LAST)
    assert kept is not None
    data = saved_bytes(kept, MACHINE.files)
    assert data[: END - IN_LAST] == OURS[IN_LAST:]
    assert data[-9:] == b"left over"
    assert not last.read_bytes()[IN_LAST % FILE :].strip(b"\0")


def test_a_log_without_files_is_cut_at_once(tmp_path: Path) -> None:
    root = tmp_path / "s"
    open_log(root, SMALL).close()
    assert aside(root, 0, 0) is None
    log = open_log(root, SMALL)
    assert log.end == 0
    log.close()


# Again.


def test_what_is_left_of_a_half_cut_log_is_not_saved_over_what_was_whole(tmp_path: Path) -> None:
    root = tmp_path / "s"
    ours(root)
    data = {path: path.read_bytes() for path in (root / "commitlog").iterdir()}
    kept = aside(root, IN_FIRST)
    assert kept is not None
    first = root / "commitlog" / segment_name(0)
    for begin, end in ((IN_FIRST, FILE), (IN_FIRST + 700, IN_FIRST + 3000), (FILE - 4096, FILE)):
        left = bytearray(FILE)  # the zeros before, and the next file, did not reach the disk
        left[:IN_FIRST] = OURS[:IN_FIRST]
        begin, end = begin // 512 * 512, end // 512 * 512
        left[max(begin, IN_FIRST) : end] = data[first][max(begin, IN_FIRST) : end]
        first.write_bytes(left)
        second = root / "commitlog" / segment_name(FILE)
        second.write_bytes(data[second])
        assert aside(root, IN_FIRST) == kept
        assert saved_bytes(kept, MACHINE.files) == OURS[IN_FIRST:]
        assert list(cut_directory(root).iterdir()) == [kept]
        assert not first.read_bytes()[IN_FIRST:].strip(b"\0")
        assert not second.exists()


def test_another_cut_of_the_same_range_is_saved_beside_the_first(tmp_path: Path) -> None:
    root = tmp_path / "s"
    ours(root)
    first = aside(root, IN_SECOND)
    assert first is not None
    log = open_log(root, SMALL)
    receive(log, THEIRS, END)
    log.close()
    EpochFile(root).save(EPOCHS)
    second = aside(root, IN_SECOND)
    assert second == first.with_name(first.name + ".2")
    assert saved_bytes(first, MACHINE.files) == OURS[IN_SECOND:]
    assert saved_bytes(second, MACHINE.files) == THEIRS[IN_SECOND:]
    assert aside(root, IN_SECOND) == second, "it is the one that was made last, and stays"
    assert [one.path for one in list_cuts(root)] == [first, second]


def test_a_cut_that_was_interrupted_is_completed_from_the_intent(tmp_path: Path) -> None:
    root = tmp_path / "s"
    ours(root)
    before = {path: path.read_bytes() for path in (root / "commitlog").iterdir()}
    assert finish_cut(root, SEAT) is None
    assert {path: path.read_bytes() for path in (root / "commitlog").iterdir()} == before
    kept = finish_cut(root, cutting(SEAT, IN_SECOND, END))
    assert kept is not None
    why = json.loads((kept / "why.json").read_bytes())
    assert why["theirs"] is None
    assert "interrupted" in why["reason"]
    log = open_log(root, SMALL)
    assert log.end == IN_SECOND
    log.close()


# Crashes.


class CutScene(CrashScene):
    """A member with our log, which cuts it.

    Attributes:
        point: where.
    """

    def __init__(self, seed: int, point: int) -> None:
        super().__init__(seed, ROOT, *(ROOT / name for name in ("commitlog", "whimbrel")))
        self.point = point

    def closed(self) -> None:
        ours(ROOT, machine=self.process)
        for directory in (ROOT, ROOT / "whimbrel", ROOT / "commitlog"):
            self.process.files.sync_directory(directory)

    def killed(self) -> None:
        ours(ROOT, clean=False, machine=self.process)
        for directory in (ROOT, ROOT / "whimbrel", ROOT / "commitlog"):
            self.process.files.sync_directory(directory)
        self.process.kill()

    def act(self) -> None:
        aside(ROOT, self.point, machine=self.process)

    def check(self) -> None:
        """The next start completes it; whatever happens then, the log ends there, and the rest is saved."""
        finish_cut(ROOT, cutting(SEAT, self.point, END), machine=self.revive())
        self.check_cut()

    def check_at_once(self) -> None:
        """When it returns, all is on disk."""
        finish_cut(ROOT, cutting(SEAT, self.point, END), machine=self.revive())
        self.host.power_loss(share=0.0)
        self.check_cut()

    def check_cut(self) -> None:
        """The log ends at the point, the rest is saved, and it goes on there."""
        process = self.revive()
        log = LogWriter.open(ROOT, SMALL, machine=process)
        assert log.end == self.point
        self.check_saved()
        self.host.power_loss(share=0.0)
        log = LogWriter.open(ROOT, SMALL, machine=self.revive())
        assert log.end == self.point
        self.check_saved()
        receive(log, THEIRS, END)
        log.flush()
        self.host.power_loss(share=0.0)
        log = LogWriter.open(ROOT, SMALL, machine=self.revive())
        assert log_bytes(log) == OURS[: self.point] + THEIRS[self.point :]
        log.close()

    def check_saved(self) -> None:
        files = self.process.files
        (found,) = [one for one in list_cuts(ROOT, files) if one.epoch is not None]
        assert (found.begin, found.end) == (self.point, END)
        assert saved_bytes(found.path, files) == OURS[self.point :]
        assert found.records == sum(border >= self.point for border in BORDERS[:-1])
        assert EpochFile(ROOT, files).load() == tuple(entry for entry in EPOCHS if entry[1] < self.point)
        assert not files.exists(ROOT / "whimbrel" / DRAFT)

    def check_early(self) -> None:
        """A start that forgets the intent has a log of ours, which ends at the point or behind it."""
        process = self.revive()
        log = LogWriter.open(ROOT, SMALL, machine=process)
        assert self.point <= log.end <= END
        assert log_bytes(log) == OURS[: log.end]
        log.close()
        self.check()


@pytest.mark.parametrize("before", [CutScene.closed, CutScene.killed], ids=["closed", "killed"])
@pytest.mark.parametrize("point", [IN_FIRST, AT_BORDER, IN_LAST])
def test_a_crash_at_any_call_leaves_a_cut_that_the_next_start_completes(
    point: int, before: Callable[[CutScene], None]
) -> None:
    def act(scene: CutScene) -> None:
        scene.act()

    stride = 1 if point == IN_LAST and before is CutScene.closed else STRIDE
    calls = crash_everywhere(
        lambda seed: CutScene(seed, point), before, act, CutScene.check, stride=stride, seeds=1
    )
    assert calls > 50


@pytest.mark.parametrize("point", [AT_BORDER, IN_LAST])
def test_what_was_completed_is_on_disk_before_the_log_is_opened(point: int) -> None:
    crash_everywhere(
        lambda seed: CutScene(seed, point),
        CutScene.closed,
        CutScene.act,
        CutScene.check_at_once,
        stride=1 if point == IN_LAST else STRIDE,
    )


def test_a_crash_in_a_cut_that_is_completed_is_completed_in_turn() -> None:
    def set_up(scene: CutScene) -> None:
        """The power goes while the log is being made zeros."""
        scene.closed()
        fault = scene.host.disk.inject("fsync", path="*/commitlog/*")
        with pytest.raises(StoreError):
            scene.act()
        assert fault.fired
        scene.host.disk.heal()
        scene.host.power_loss()

    def act(scene: CutScene) -> None:
        finish_cut(ROOT, cutting(SEAT, scene.point, END), machine=scene.process)

    crash_everywhere(lambda seed: CutScene(seed, IN_SECOND), set_up, act, CutScene.check, stride=STRIDE)


def test_a_log_that_is_opened_before_the_cut_is_completed_is_none_that_is_refused() -> None:
    crash_everywhere(
        lambda seed: CutScene(seed, IN_SECOND),
        CutScene.closed,
        CutScene.act,
        CutScene.check_early,
        stride=STRIDE,
    )


# A disk that refuses.


def refuse(scene: CutScene, nth: int, *, again: bool) -> bool:
    """Cut while the nth sync fails; then again, in this process or the next; False when there are fewer."""
    scene.closed()
    scene.host.disk.inject("sync", nth=nth)
    try:
        scene.act()
    except StoreError as error:
        assert "can't be" in str(error), error
    else:
        return False
    finally:
        scene.host.disk.heal()
    if not again:
        scene.process.kill()
    return True


@pytest.mark.parametrize("again", [True, False], ids=["same process", "next process"])
@pytest.mark.parametrize("point", [IN_FIRST, AT_BORDER])
def test_a_sync_that_fails_is_told_and_the_next_attempt_trusts_nothing_of_it(point: int, again: bool) -> None:
    for nth in range(1, 100):
        for seed in range(3):
            scene = CutScene(seed, point)
            refused = refuse(scene, nth, again=again)
            scene.check()
        if not refused:
            break
    assert nth > 10


def test_after_a_failed_sync_of_the_zeros_the_log_is_written_again(tmp_path: Path) -> None:
    scene = CutScene(1, IN_FIRST)
    scene.closed()
    scene.host.disk.inject("fsync", path=f"*/commitlog/{0:020d}")
    with pytest.raises(
        StoreError, match=r"can't be cut at .*; see to the disk, then start again, which comp"
    ):
        scene.act()
    scene.host.disk.heal()
    scene.act()
    LogWriter.open(ROOT, SMALL, machine=scene.process)
    scene.host.power_loss(share=0.0)
    data = scene.host.disk.content(ROOT / "commitlog" / segment_name(0))
    assert not data[IN_FIRST:].strip(b"\0"), "no old record is left that could count as one of the new log"


def test_a_marker_of_an_earlier_failed_sync_is_not_moved_up() -> None:
    scene = CutScene(1, IN_SECOND)
    scene.closed()
    page = SharedPage.open(ROOT, scene.process)
    set_marker(ROOT, page, scene.process, 300)
    scene.host.disk.inject("fsync", path=f"*/commitlog/{FILE:020d}")
    with pytest.raises(StoreError, match="can't be cut"):
        scene.act()
    assert read_marker(ROOT, page, scene.process) == 300
    page.close()


def test_bytes_that_no_sync_has_covered_are_doubted_with_the_zeros() -> None:
    """What a killed writer left in the page cache, below the point and above its mark."""
    scene = CutScene(1, IN_SECOND)
    scene.closed()
    mark = LogMark.load(ROOT, scene.process.files)
    assert mark is not None
    mark.offset = mark.check = BORDERS[3]
    mark.save(ROOT, scene.process.files)
    scene.host.disk.inject("fsync", path=f"*/commitlog/{FILE:020d}")
    with pytest.raises(StoreError, match="can't be cut"):
        scene.act()
    page = SharedPage.open(ROOT, scene.process)
    assert read_marker(ROOT, page, scene.process) == BORDERS[3]
    page.close()


@pytest.mark.parametrize("punches", [True, False])
def test_a_file_system_without_holes_gets_zeros(punches: bool) -> None:
    scene = CutScene(1, IN_SECOND)
    scene.host.disk.punches = punches
    scene.closed()
    scene.act()
    scene.check()


def test_a_full_disk_refuses_and_nothing_is_cut() -> None:
    scene = CutScene(1, IN_FIRST)
    scene.closed()
    disk: SimDisk = scene.host.disk
    for room in (0, 4096, 30_000, END - IN_FIRST - 1):
        disk.capacity = None
        disk.capacity = disk.used + room
        with pytest.raises(StoreFull, match=f"no room to save {END - IN_FIRST} bytes of the log of /store"):
            scene.act()
        files = scene.process.files
        assert not files.names(cut_directory(ROOT))
        assert not files.exists(ROOT / "whimbrel" / DRAFT)
        assert EpochFile(ROOT, files).load() == EPOCHS
        log = LogWriter.open(ROOT, SMALL, machine=scene.process)
        assert log_bytes(log) == OURS
        log.close()
    disk.capacity = disk.used + END
    scene.act()
    disk.capacity = None
    scene.check()


def test_a_disk_that_fills_while_it_is_saved_refuses_and_keeps_no_part() -> None:
    scene = CutScene(1, IN_FIRST)
    scene.closed()
    scene.host.disk.inject("write", error=errno.ENOSPC, path="*/cut-draft/*", nth=2)
    with pytest.raises(StoreFull, match=r"the disk is full .no room to save"):
        scene.act()
    assert not scene.process.files.exists(ROOT / "whimbrel" / DRAFT)
    assert not scene.process.files.names(cut_directory(ROOT))
    scene.host.disk.heal()
    scene.check()


def test_a_store_that_is_open_is_refused(tmp_path: Path) -> None:
    root = tmp_path / "s"
    ours(root)
    log = open_log(root, SMALL)
    epoch = log.page.epoch
    with pytest.raises(StoreError, match="is open in this process already"):
        aside(root, IN_FIRST)
    assert log.page.epoch == epoch
    assert log_bytes(log) == OURS
    log.close()
    aside(root, IN_FIRST)
    StoreLock.acquire(root).release()


def test_the_lock_is_given_back_after_a_refusal(tmp_path: Path) -> None:
    root = tmp_path / "s"
    ours(root)
    (root / "epochFileCheckpoint").write_bytes(b"x")
    with pytest.raises(StoreError, match="epochFileCheckpoint is damaged"):
        aside(root, IN_FIRST)
    StoreLock.acquire(root).release()


def test_a_log_that_begins_behind_the_point_is_refused(tmp_path: Path) -> None:
    root = tmp_path / "s"
    ours(root)
    (root / "commitlog" / segment_name(0)).unlink()
    with pytest.raises(StoreError, match=f"begins at {FILE}, behind the point {FILE - 1} at which"):
        aside(root, FILE - 1)
    assert (root / "commitlog" / segment_name(FILE)).read_bytes() == OURS[FILE : 2 * FILE]


# What is kept.


def cut_again(root: Path, point: int) -> Path:
    """Let the log grow to its end again, and cut it once more."""
    log = open_log(root, SMALL)
    receive(log, OURS, END)
    log.close()
    kept = aside(root, point)
    assert kept is not None
    return kept


def names(root: Path) -> list[str]:
    return sorted(path.name for path in cut_directory(root).iterdir())


def test_the_oldest_cuts_make_room_and_never_the_one_being_made(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    root = tmp_path / "s"
    ours(root)
    made = [cut_again(root, point).name for point in (BORDERS[36], BORDERS[34], BORDERS[32])]
    assert names(root) == sorted(made)
    log = open_log(root, SMALL)
    receive(log, OURS, END)
    log.close()
    sizes = {one.path.name: one.size for one in list_cuts(root)}
    kept = aside(root, BORDERS[35], keep_bytes=sizes[made[2]] + END - BORDERS[35] + 2000)
    assert kept is not None
    assert names(root) == sorted([made[2], kept.name])
    assert all(f"{made[number]}: removed, since cuts made later" in caplog.text for number in (0, 1))
    log = open_log(root, SMALL)
    receive(log, OURS, END)
    log.close()
    kept = aside(root, BORDERS[33], keep_bytes=0)
    assert kept is not None
    assert names(root) == [kept.name]
    assert saved_bytes(kept, MACHINE.files) == OURS[BORDERS[33] :]


def test_directories_count_among_the_files_that_recovery_keeps(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cut, "CUT_FILES_MAX", 2)
    root = tmp_path / "s"
    ours(root)
    first = cut_again(root, BORDERS[36]).name
    second = cut_again(root, BORDERS[34]).name
    assert names(root) == sorted([first, second])
    log = open_log(root, SMALL)
    receive(log, OURS, BORDERS[36])
    log.close(clean=False)
    with (root / "commitlog" / segment_name(2 * FILE)).open("r+b") as file:
        file.seek(BORDERS[36] % FILE)
        file.write(b"torn")
    open_log(root, SMALL).close()
    (recovered,) = set(names(root)) - {first, second}
    assert recovered.startswith(f"{BORDERS[36]:020d}-")
    assert names(root) == sorted([second, recovered])


def test_both_kinds_of_cuts_are_listed_the_oldest_first(tmp_path: Path) -> None:
    root = tmp_path / "s"
    assert list_cuts(root) == []
    ours(root)
    directory = cut_directory(root)
    directory.mkdir()
    (directory / f"{700:020d}-20010203T040506.789").write_bytes(b"x" * 55)
    for other in (f"{700:020d}-20019999T040506.789", "notes.txt", f"3-{1:020d}-{2:020d}.txt"):
        (directory / other).write_bytes(b"not ours")
    (directory / f"{1:020d}-20010203T040506.789").mkdir()
    kept = aside(root, IN_LAST)
    assert kept is not None
    first, second = list_cuts(root)
    assert (first.epoch, first.begin, first.end, first.records, first.size) == (None, 700, 755, None, 55)
    assert first.time_ms == 981_173_106_789
    assert first.why == "recovery found that the log ends before it"
    assert (second.path, second.epoch, second.begin, second.end, second.records, second.why) == (
        kept,
        4,
        IN_LAST,
        END,
        2,
        REASON,
    )
    assert second.size == END - IN_LAST + (kept / "why.json").stat().st_size
    (kept / "why.json").write_bytes(b"{")
    second = list_cuts(root)[1]
    assert (second.records, second.why) == (None, f"{kept / 'why.json'} can't be read")


def test_a_directory_whose_removal_was_interrupted_is_none_and_goes_with_the_next_cut(tmp_path: Path) -> None:
    root = tmp_path / "s"
    ours(root)
    first = cut_again(root, BORDERS[36])
    (first / "why.json").unlink()
    assert list_cuts(root) == []
    second = cut_again(root, BORDERS[34])
    assert names(root) == [second.name]


# Any log.


def write_ours(root: Path, sizes: list[int]) -> list[int]:
    """Leave a closed log of records of such bodies; return where they begin, and the end."""
    store = open_master(root)
    places = [store.append([make_draft(number, size=size)])[0] for number, size in enumerate(sizes)]
    store.end_tick()
    store.close()
    return [*(place.physical_offset for place in places), places[-1].end]


@settings(max_examples=40, deadline=None)
@given(
    sizes=st.lists(st.integers(8, 20_000), min_size=1, max_size=20),
    at=st.integers(0, 19),
    marked=st.integers(0, 20),
    checked=st.integers(0, 20),
)
def test_any_log_ends_at_any_border_of_its_records(
    sizes: list[int], at: int, marked: int, checked: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    root = tmp_path_factory.mktemp("any") / "s"
    borders = write_ours(root, sizes)
    end, point = borders[-1], borders[min(at, len(sizes) - 1)]
    mark = LogMark.load(root)
    assert mark is not None
    mark.offset = borders[min(marked, len(sizes))]
    mark.check = min(mark.offset, borders[min(checked, len(sizes))])
    mark.save(root)
    reader = LogReader.open(root, page=SharedPage.open(root))
    data = b"".join(reader.read(start, min(FILE, end - start)) for start in range(0, end, FILE))
    reader.close()
    kept = aside(root, point, end)
    assert kept is not None
    assert saved_bytes(kept, MACHINE.files) == data[point:]
    (found,) = list_cuts(root)
    assert found.records == len(sizes) - min(at, len(sizes) - 1)
    log = open_log(root)
    assert log.end == point
    assert log_bytes(log) == data[:point]
    log.close()
