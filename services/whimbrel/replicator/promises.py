"""The promises of a member of a group that elects its leader, as its replicator keeps them.

The broker beside asks in the page of marks. The replicator has the log then, as a
slave's. Before it shows the promise,

    1. the stream of the leader that it followed is closed: nothing of lower epochs is taken any more (R3a)
    2. what the log holds is put on disk, under synchronous flush
    3. the promise is put on disk (`store/seat_file.py`, R3)

and what it shows is the last epoch and the end of the log as they are then, which no stream can move
meanwhile. A promise to the candidate that has it already changes nothing, and a stream goes on (R3c). A
promise of an epoch below, or of the same epoch to somebody else, is not made (R3b); the page goes on to show
the one that holds.

To follow a leader is a promise as well: of its epoch, to it, before anything is said to it.

**Who may vote** (R9). A member that may have lost what it acknowledged does not: under asynchronous flush
after a power cut, or after a sync of the log that failed, since a page cache lets go of what that covered;
and whenever the log ends below what was acknowledged, or known to be on disk. Its vote comes back when its
log has adopted the leader's epoch and holds all up to a commit offset that the leader told over this
connection. The leader's replicator tells none that its broker published before it saw the connection (R11b).
A member whose store is emptied on request has lost all of it, and keeps its promises: the same holds for it
(`store/emptying.py`).

**What was acknowledged** is kept in the seat for that, whether the replicator is a leader's or a follower's:

- up to where: what the broker beside has in its queues, which is committed and ends with a record, once it
  is also acknowledged, where no log file ends there (`outlasts`); at most once a mark (MARK_INTERVAL_S,
  MARK_BYTES), since each costs a sync, in a thread of its own; and as the log is closed
- by which flush mode: the weaker one of this process and of the broker, which counts its own log by its own
  setting as it leads, and says in the page which that is. A weaker one is on disk before the next promise, so
  before the broker leads (R18, R18b)

A seat that was copied is another one (R15): see `seat_file.py`.
"""

import logging
from dataclasses import replace
from pathlib import Path
from typing import Final

from whimbrel.errors import StoreError, WhimbrelError
from whimbrel.ha.epochs import Epochs, reached
from whimbrel.machine import Machine, Worker
from whimbrel.store.cut import list_cuts
from whimbrel.store.divergence import CUT_KEEP_BYTES, cut_aside, finish_cut
from whimbrel.store.emptying import emptied, empty_store, to_be_emptied
from whimbrel.store.epoch_file import EpochFile
from whimbrel.store.offline_vote import own_seat
from whimbrel.store.page_elections import BOUND, UNBOUND
from whimbrel.store.recovery_marks import MARK_BYTES, MARK_INTERVAL_S
from whimbrel.store.seat_file import (
    FLUSH_MODES,
    Seat,
    SeatFile,
    after_cut,
    cutting,
    draw_uuid,
    may_vote,
    weaker,
)
from whimbrel.store.shared_page import SharedPage

__all__ = ["Promises", "Repair"]

logger = logging.getLogger(__name__)

NOBODY: Final = 0


class Repair(WhimbrelError):
    """The slave's role has to stop and start again: before it goes on, it does what the seat says."""

    reason = "REPAIR"
    effect = "none"


class Promises:
    """What this member has promised, on disk and in the page.

    Attributes:
        seat: as it is on disk.
        failed: why nothing can be promised any more; "" while it can. Then the member must not follow either.
        refused: what was asked for last and may not be promised.
        cuts_removed: how many older cuts had to go since the start, because of their bytes or number.
    """

    def __init__(
        self,
        root: Path,
        page: SharedPage,
        machine: Machine,
        *,
        member: int,
        flush: str,
        cut_keep_bytes: int = CUT_KEEP_BYTES,
    ) -> None:
        """Read the seat, or make it.

        Args:
            cut_keep_bytes: so much of what is cut off the log is kept.

        Raises:
            StoreError: it is damaged, of another member, or the disk refuses.
        """
        self.page, self.flush, self.cut_keep_bytes = page, flush, cut_keep_bytes
        self.cuts_removed = 0
        self.empty_asked = 0  # the number by which the broker has asked for what is under way
        self.machine = machine
        self.boot = machine.boot_id().hex()
        self.marked_at = machine.monotonic()
        self.mark: Seat | None = None  # that the thread is to write, or writes
        self.marker: Worker | None = None
        self.file, self.epochs = SeatFile(root, machine.files), EpochFile(root, machine.files)
        seat = own_seat(self.file, machine)
        if seat is None:
            seat = Seat(uuid=draw_uuid(machine.random_bytes), member=member)
        elif seat.member != member:
            raise StoreError(
                f"the store {root} is that of member {seat.member}: start it with id {seat.member}, or member"
                f" {member} with another store"
            )
        elif self.file.was_copied:
            logger.warning(
                "the store %s is a copy: its member may have promised and acknowledged more since, so it does"
                " not vote; it follows as a new member's does, and votes after `whimbrel replication voters"
                " --set`; a store that was moved keeps its vote by `whimbrel store moved`",
                root,
            )
        self.seat = seat
        self.failed = ""
        self.refused = (0, 0)
        self.theirs: Epochs | None = None  # of a cut that is under way
        self.why = ""
        self.file.save(seat)  # what was read may not be on disk
        bound = self.file.bound_to is not None
        if not bound:
            logger.warning(
                "the file system of %s does not tell a file from a copy: a copy of this store would vote in"
                " its name; put back copies by `whimbrel restore` only",
                root,
            )
        page.seat, page.seat_group = seat.uuid, seat.group
        page.replica_flush = FLUSH_MODES.index(flush)
        page.seat_bound = BOUND if bound else UNBOUND

    @property
    def asked(self) -> bool:
        """Whether the broker asks for a promise that is not shown."""
        page = self.page
        asked = page.promise
        return bool(asked[0]) and asked not in (page.sealed, self.refused)

    def may_promise(self, epoch: int, candidate: int) -> bool:
        """Return whether a promise may be made; to the same candidate again, it may."""
        seat = self.seat
        same = epoch == seat.promised and candidate == seat.promised_to
        return not self.failed and (epoch > seat.promised or same)

    def holds(self, epoch: int, candidate: int) -> bool:
        """Return whether a promise is on disk already."""
        return (epoch, candidate) == (self.seat.promised, self.seat.promised_to)

    def opened(self, *, end: int, clean: bool, last_epoch: int, doubtful: bool = False) -> None:
        """Take note of a log that has just been opened, and show what is promised.

        Raises:
            StoreError: the disk refuses.
        """
        seat, flush = self.seat, self.weakest_flush()
        epoch = self.epoch_at(seat.acknowledged)
        votes = may_vote(
            seat, end=end, epoch=epoch, boot=self.boot, clean=clean, flush=flush, doubtful=doubtful
        )
        if seat.votes and not votes:
            logger.warning(
                "this member may have lost what it acknowledged: its log ends at %d, %d were known to be on"
                " disk, it had acknowledged %d or more, to epoch %d, where its list of epochs has %d, flush"
                " was %s; it does not vote until it has all that is committed",
                end,
                seat.floor,
                seat.acknowledged,
                seat.acknowledged_epoch,
                epoch,
                seat.flush or flush,
            )
        # The whole log is on disk now: what may be lost from here on is a question of the modes of now.
        self.save(replace(seat, votes=votes, boot=self.boot, flush=flush))
        self.show(last_epoch, end)

    def weakest_flush(self) -> str:
        """Return the weaker flush mode of this process and the broker beside, as far as that has told."""
        return weaker(self.flush, FLUSH_MODES[self.page.broker_flush])

    def note(self, acknowledged: int, now: float) -> None:
        """Keep what is acknowledged, now and then, and a weaker flush mode at once.

        Args:
            acknowledged: how far this member has counted or reported its log.

        Raises:
            StoreError: the disk has refused a change of the seat.
        """
        seat, flush = self.seat, self.weakest_flush()
        if self.failed:
            raise StoreError(self.failed)
        if weaker(seat.flush, flush) != seat.flush:
            logger.warning(
                "the broker beside has flush %s, this replicator %s: the weaker one holds for what this"
                " member acknowledges, so after a power cut it does not vote; set both alike",
                FLUSH_MODES[self.page.broker_flush],
                self.flush,
            )
            self.save(replace(seat, flush=flush))
            return
        settled = self.page.dispatched
        if self.mark is not None or not seat.acknowledged < settled <= acknowledged:
            return
        if not self.outlasts(settled):
            return
        if now - self.marked_at >= MARK_INTERVAL_S or settled - seat.acknowledged >= MARK_BYTES:
            self.marked_at = now
            self.mark = self.seat = self.with_bound(seat, settled)
            self.marker = self.marker or self.machine.worker("seat", self.write_mark)
            self.marker.wake()

    def write_mark(self) -> None:
        """Write what `note` has asked for; in the thread of the worker."""
        if self.mark is None:
            return
        try:
            self.file.save(self.mark)
        except StoreError as error:
            self.failed = str(error)
        finally:
            self.mark = None

    def closed(self, end: int) -> None:
        """Take note that the log was closed in order; its last record on disk ends at `end`.

        Raises:
            StoreError: the disk refuses.
        """
        if end > self.seat.acknowledged and self.outlasts(end):
            self.save(self.with_bound(self.seat, end))

    def with_bound(self, seat: Seat, acknowledged: int) -> Seat:
        """Return a seat that has acknowledged as much."""
        return replace(seat, acknowledged=acknowledged, acknowledged_epoch=self.epoch_at(acknowledged))

    def epoch_at(self, offset: int) -> int:
        """Return the epoch of the byte before an offset, as the list of epochs says; 0 where it does not."""
        try:
            known = reached(self.epochs.load(), offset - 1)
        except StoreError:
            return 0  # whoever follows or leads by the list says so
        return known[-1][0] if known else 0

    def outlasts(self, offset: int) -> bool:
        """Return whether a log that has lost nothing ends there or behind it, after each start.

        Not where a log file ends: what is before may be a blank, which recovery takes off where no file
        follows, as RocketMQ's does. No record ends there.
        """
        return not self.page.file_size or offset % self.page.file_size != 0

    def promise(self, epoch: int, candidate: int, *, last_epoch: int, end: int, flushed: int) -> None:
        """Put a promise on disk and show it; the log is at rest.

        Args:
            last_epoch, end: of the log; under synchronous flush all of it is on disk.
            flushed: the log below is known to be on disk.

        Raises:
            StoreError: the disk refuses; nothing is shown.
        """
        if not self.holds(epoch, candidate):
            waived = self.page.waived == (epoch, candidate)
            self.keep(epoch, candidate, flushed, waived=waived)
            logger.info(
                "epoch %d is promised to member %d; our log ends at %d in epoch %d",
                epoch,
                candidate,
                end,
                last_epoch,
            )
        self.show(last_epoch, end)

    def may_follow(self, epoch: int, leader: int) -> bool:
        """Return whether the leader that the broker names may be followed."""
        return bool(epoch) and leader != NOBODY and self.may_promise(epoch, leader)

    def keep(self, epoch: int, candidate: int, flushed: int, *, waived: bool = False) -> None:
        """Put a promise on disk; `waived`: an operator has accepted what this member may have lost.

        The floor is no higher than what is committed: that is the end of a record, as recovery finds it.
        """
        group = self.seat.group or self.page.group
        known = min(flushed, self.page.heard_commit)
        floor = max(known, self.seat.floor) if self.outlasts(known) else self.seat.floor
        seat = replace(
            self.seat,
            promised=epoch,
            promised_to=candidate,
            group=group,
            floor=floor,
            flush=weaker(self.seat.flush, self.weakest_flush()),
        )
        if waived:
            settled = self.page.dispatched
            acknowledged = settled if settled <= flushed and self.outlasts(settled) else 0
            seat = self.with_bound(replace(seat, votes=True, floor=0), acknowledged)
        self.save(seat)
        self.page.seat_group = group

    def regain_vote(self, commit: int) -> None:
        """Vote again: the log holds all that is committed, up to there.

        Raises:
            StoreError: the disk refuses.
        """
        self.save(self.with_bound(replace(self.seat, votes=True, floor=0), commit))
        self.page.votes = 1
        logger.info("this member holds all that is committed: it votes again")

    def intend_cut(self, point: int, end: int, *, theirs: Epochs, why: str) -> None:
        """Put on disk that the log, which ends at `end`, is about to be cut at `point`.

        Args:
            theirs: the leader's list of epochs, and
            why: a sentence, for people who look at what was cut.

        Raises:
            StoreError: the disk refuses.
        """
        self.save(cutting(self.seat, point, end))
        self.theirs, self.why = theirs, why

    def finish_cut(self, root: Path, machine: Machine) -> None:
        """Cut the closed log where the seat says so, and keep what is cut (`store/divergence.py`).

        Raises:
            StoreError: the disk refuses, or has no room to keep it.
        """
        if self.seat.cut is None:
            return
        keep_bytes, before = self.cut_keep_bytes, cut_paths(root, machine)
        if self.theirs is None:  # another process had begun
            finish_cut(root, self.seat, keep_bytes=keep_bytes, machine=machine)
        else:
            cut_aside(
                root,
                *self.seat.cut,
                epochs=self.theirs,
                reason=self.why,
                keep_bytes=keep_bytes,
                machine=machine,
            )
        self.cuts_removed += len(before - cut_paths(root, machine))
        self.theirs = None
        self.save(after_cut(self.seat))

    @property
    def asked_to_empty(self) -> bool:
        """Whether the broker asks for the store to be emptied, which was not done yet."""
        return self.page.empty_asked not in (0, self.page.emptied)

    def intend_emptying(self) -> None:
        """Put on disk that the store is about to be emptied, and that this member does not vote.

        Raises:
            StoreError: the disk refuses.
        """
        self.page.votes, self.empty_asked = 0, self.page.empty_asked
        self.save(to_be_emptied(self.seat))

    def finish_emptying(self, root: Path, machine: Machine) -> None:
        """Empty the closed store where the seat says so (`store/emptying.py`).

        Raises:
            StoreError: the disk refuses.
        """
        if self.seat.emptying:
            empty_store(root, machine)
            self.save(emptied(self.seat))

    def show_emptied(self) -> None:
        """Tell the broker that the store was emptied, if this process was asked to: its log is open again."""
        if self.empty_asked:
            self.page.emptied, self.empty_asked = self.empty_asked, 0

    def save(self, seat: Seat) -> None:
        """Put a seat on disk, if it is another one.

        Raises:
            StoreError: the disk refuses, now or before: what was promised is not known then.
        """
        if self.marker is not None:
            self.marker.wait()
        if seat == self.seat:
            return
        try:
            self.file.save(seat)
        except StoreError as error:
            self.failed = str(error)
            self.page.sealed = (0, 0)
            raise
        self.seat = seat

    def show(self, last_epoch: int, end: int) -> None:
        """Show the promise that holds, and how far the log went."""
        page, seat = self.page, self.seat
        page.sealed = (0, 0)
        page.sealed_last, page.sealed_end = last_epoch, end
        page.votes, page.last_epoch = seat.votes, last_epoch
        page.sealed = seat.promised, seat.promised_to


def cut_paths(root: Path, machine: Machine) -> frozenset[Path]:
    """Return what is kept of earlier cuts; nothing where the disk can't tell, since it is only counted."""
    try:
        return frozenset(cut.path for cut in list_cuts(root, machine.files))
    except OSError:
        return frozenset()
