"""What a member keeps of its promises and its acknowledgements, as its replicator does it."""

import logging
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from support.store.cache_disk import CacheDisk
from whimbrel.errors import StoreError
from whimbrel.machine import Files, Machine
from whimbrel.replicator.promises import Promises
from whimbrel.store.epoch_file import EpochFile
from whimbrel.store.page_elections import UNBOUND
from whimbrel.store.recovery_marks import MARK_BYTES, MARK_INTERVAL_S
from whimbrel.store.seat_file import Seat, SeatFile
from whimbrel.store.shared_page import SharedPage

GROUP = "9" * 32
SYNC, ASYNC = 1, 2  # what a broker says of itself
LATER_S = MARK_INTERVAL_S + 1
BOOTS = ("1" * 32, "2" * 32)


class Turned(Machine):
    """A machine whose clock and boots are the test's, and whose threads run when they are woken."""

    def __init__(self, files: Files | None = None) -> None:
        super().__init__(files)
        self.now = 0.0
        self.boot = BOOTS[0]
        self.monotonic = lambda: self.now

    def boot_id(self) -> bytes:
        return bytes.fromhex(self.boot)


class Member:
    """A member's replicator, as far as its seat goes; its log is a number."""

    def __init__(self, root: Path, *, flush: str = "sync", files: Files | None = None) -> None:
        (root / "whimbrel").mkdir(exist_ok=True)
        self.root, self.machine = root, Turned(files)
        self.page = SharedPage.open(root, self.machine)
        self.page.group = GROUP
        self.promises = Promises(root, self.page, self.machine, member=2, flush=flush)

    def opened(self, end: int, *, clean: bool = False, doubtful: bool = False) -> bool:
        """Open a log; return whether it votes."""
        self.promises.opened(end=end, clean=clean, last_epoch=1, doubtful=doubtful)
        return bool(self.page.votes)

    def seat(self) -> Seat:
        """Return what is on disk."""
        if self.promises.marker is not None:
            self.promises.marker.wait()
        found = SeatFile(self.root).load()
        assert found is not None
        return found

    def dispatched(self, offset: int, *, acknowledged: int, after_s: float = LATER_S) -> int:
        """Have the broker beside come so far, and return what the seat says is acknowledged then."""
        self.machine.now += after_s
        self.page.dispatched = offset
        self.promises.note(acknowledged, self.machine.now)
        return self.seat().acknowledged


@pytest.fixture
def member(tmp_path: Path) -> Member:
    return Member(tmp_path)


def power_cut(member: Member, *, flush: str = "sync") -> Member:
    """Return its replicator in the next boot, of which the page knows nothing."""
    (member.root / "whimbrel" / "watermark").unlink()
    found = Member.__new__(Member)
    found.root, found.machine = member.root, Turned()
    found.machine.boot = BOOTS[1]
    found.page = SharedPage.open(member.root, found.machine)
    found.promises = Promises(member.root, found.page, found.machine, member=2, flush=flush)
    return found


def test_what_is_acknowledged_is_the_end_of_a_record_and_no_further_than_what_was_reported(
    member: Member,
) -> None:
    member.opened(1000)
    assert member.dispatched(900, acknowledged=800) == 0, "not reported yet"
    assert member.dispatched(900, acknowledged=950) == 900
    assert member.dispatched(900, acknowledged=2000) == 900, "950 may be within a record"


def test_it_is_kept_once_a_mark(member: Member) -> None:
    member.opened(1000)
    assert member.dispatched(900, acknowledged=900) == 900
    changes = SeatFile(member.root)
    changes.load()
    for number in range(10):
        assert member.dispatched(901 + number, acknowledged=5000, after_s=0.1) == 900
    assert member.dispatched(5000, acknowledged=5000) == 5000
    assert (
        member.dispatched(5000 + MARK_BYTES, acknowledged=5000 + MARK_BYTES, after_s=0.1) == 5000 + MARK_BYTES
    )
    again = SeatFile(member.root)
    again.load()
    assert again.number == changes.number + 2


def test_a_log_that_ends_below_it_does_not_vote(member: Member) -> None:
    member.opened(1000)
    member.dispatched(900, acknowledged=900)
    assert Member(member.root).opened(900, clean=True)
    assert not Member(member.root).opened(899, clean=True)
    assert not Member(member.root).opened(1000, clean=True), "a log that is long again says nothing"


def test_a_log_that_was_closed_in_order_has_all_that_is_on_disk(member: Member) -> None:
    member.opened(1000)
    member.promises.closed(1000)
    assert not Member(member.root).opened(999, clean=True)


def test_the_weakest_mode_is_on_disk_before_anything_is_promised(member: Member) -> None:
    """F4: a leader counts its log by its broker's setting."""
    member.opened(1000)
    assert member.seat().flush == "sync"
    member.page.broker_flush = ASYNC
    member.promises.promise(3, 2, last_epoch=1, end=1000, flushed=1000)
    assert member.seat().flush == "async"
    assert not power_cut(member).opened(1000)


def test_a_broker_that_is_weaker_is_said_so_once(member: Member, caplog: pytest.LogCaptureFixture) -> None:
    member.opened(1000)
    member.page.broker_flush = ASYNC
    for _ in range(3):
        member.promises.note(0, 0.0)
    assert caplog.text.count("set both alike") == 1
    assert member.seat().flush == "async"


@pytest.mark.parametrize(("first", "then"), [("async", "sync"), ("async", "async")])
def test_after_a_power_cut_the_mode_of_then_is_asked_and_not_the_one_of_now(
    tmp_path: Path, first: str, then: str
) -> None:
    """F10."""
    member = Member(tmp_path, flush=first)
    member.opened(1000)
    after = power_cut(member, flush=then)
    assert not after.opened(1000)
    assert after.seat().flush == then, "the whole log is on disk now"
    assert not power_cut(after, flush="sync").opened(1000), "a vote that is gone comes back by a leader alone"


def test_with_synchronous_flush_all_vote_after_all_have_lost_their_power(member: Member) -> None:
    member.page.broker_flush = SYNC
    member.opened(1000)
    member.dispatched(900, acknowledged=900)
    assert power_cut(member).opened(950)


def test_a_seat_of_an_earlier_version_votes_by_the_setting_at_its_first_start(tmp_path: Path) -> None:
    (tmp_path / "whimbrel").mkdir()
    old = Seat(uuid="1" * 32, group=GROUP, member=2, promised=7, promised_to=2, boot=BOOTS[0])
    SeatFile(tmp_path).save(old)
    assert Member(tmp_path).opened(10)
    assert SeatFile(tmp_path).load() == replace(old, flush="sync")


def test_a_copy_is_another_seat_which_promises_no_less(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """F1: the member that it was copied from may have promised and acknowledged more."""
    (tmp_path / "store").mkdir()
    member = Member(tmp_path / "store")
    member.opened(1000)
    member.promises.promise(5, 1, last_epoch=1, end=1000, flushed=1000)
    shutil.copytree(tmp_path / "store", tmp_path / "backup")
    shutil.rmtree(tmp_path / "store")
    shutil.copytree(tmp_path / "backup", tmp_path / "store")
    copy = Member(tmp_path / "store")
    assert not copy.opened(1000, clean=True)
    assert copy.seat().uuid != member.promises.seat.uuid
    assert not copy.promises.may_promise(5, 3)
    assert not copy.promises.may_promise(4, 1)
    assert copy.promises.may_promise(6, 3)
    assert copy.page.seat == copy.seat().uuid
    assert "is a copy" in caplog.text
    caplog.clear()
    again = Member(tmp_path / "store")
    assert again.seat().uuid == copy.seat().uuid
    assert not again.opened(1000, clean=True)
    assert "is a copy" not in caplog.text, "once"


def test_copies_of_a_store_that_belongs_to_nobody_are_members_of_a_new_group(tmp_path: Path) -> None:
    (tmp_path / "image").mkdir()
    uuids = {Member(tmp_path / "image").seat().uuid}
    for name in ("one", "two"):
        shutil.copytree(tmp_path / "image", tmp_path / name)
        member = Member(tmp_path / name)
        assert member.opened(0, clean=True)
        uuids.add(member.seat().uuid)
    assert len(uuids) == 3


def test_where_nothing_tells_a_copy_the_log_says_so(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    class Shared(Files):
        def identity(self, fd: int) -> None:
            return None

    with caplog.at_level(logging.WARNING):
        member = Member(tmp_path, files=Shared())
    assert member.page.seat_bound == UNBOUND
    assert "does not tell a file from a copy" in caplog.text


def test_a_vote_that_comes_back_counts_from_what_was_committed_then(member: Member) -> None:
    member.opened(1000)
    member.dispatched(900, acknowledged=900)
    short = Member(member.root)
    assert not short.opened(500)
    short.promises.regain_vote(450)
    assert (short.seat().votes, short.seat().acknowledged) == (True, 450)
    assert Member(member.root).opened(450)


def test_an_accepted_loss_gives_the_vote_back_with_what_is_on_disk_then(member: Member) -> None:
    member.opened(1000)
    member.dispatched(900, acknowledged=900)
    short = Member(member.root)
    assert not short.opened(500)
    short.page.dispatched, short.page.waived = 400, (9, 2)
    short.promises.promise(9, 2, last_epoch=1, end=500, flushed=500)
    assert (short.seat().votes, short.seat().acknowledged) == (True, 400)


def test_a_mark_that_the_disk_refuses_ends_the_process_and_promises_nothing_more(tmp_path: Path) -> None:
    disk = CacheDisk()
    member = Member(tmp_path, files=disk)
    member.opened(1000)
    disk.failing = {"whimbrel/seat": 1}
    member.dispatched(900, acknowledged=900)
    assert not member.promises.may_promise(9, 1)
    with pytest.raises(StoreError, match="can't be written"):
        member.promises.note(900, member.machine.now)


def test_a_promise_waits_for_the_mark_that_is_being_written(member: Member) -> None:
    member.opened(1000)
    member.dispatched(900, acknowledged=900)
    member.promises.promise(4, 1, last_epoch=1, end=1000, flushed=1000)
    seat = member.seat()
    assert (seat.promised, seat.acknowledged) == (4, 900)
    assert (member.root / "whimbrel" / "seat").stat().st_size == 8192


def test_the_end_of_a_log_file_is_not_kept_since_a_blank_may_go(member: Member) -> None:
    """A follower whose disk is full stands there; its next start ends before it, and has lost nothing."""
    member.page.file_size = 1000
    member.opened(1000)
    assert member.dispatched(1000, acknowledged=1000) == 0
    member.promises.closed(1000)
    member.page.heard_commit = 1000
    member.promises.promise(3, 1, last_epoch=1, end=1000, flushed=1000)
    assert (member.seat().acknowledged, member.seat().floor) == (0, 0)
    assert Member(member.root).opened(940, clean=True)
    assert member.dispatched(1001, acknowledged=1001) == 1001
    assert not Member(member.root).opened(940, clean=True)


@pytest.mark.parametrize("listed", [((1, 0), (4, 500)), ((1, 0), (3, 500)), ()])
def test_a_list_of_epochs_that_says_less_than_it_did_takes_the_vote(
    member: Member, listed: tuple[tuple[int, int], ...]
) -> None:
    """The list is gone, or yesterday's: the log would be taken for an older one than it is."""
    epochs = EpochFile(member.root)
    epochs.save(((1, 0), (4, 500), (6, 900)))
    member.opened(1000)
    assert member.dispatched(900, acknowledged=900) == 900
    assert member.seat().acknowledged_epoch == 4, "6 has written nothing yet"
    if listed:
        epochs.save(listed)
    else:
        epochs.path.unlink()
    assert Member(member.root).opened(1000, clean=True) is (listed == ((1, 0), (4, 500)))
