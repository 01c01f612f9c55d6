"""A store of a member of a group that elects, and everybody who opens it who is not that member.

What a member has acknowledged it must still have when it votes (`seat_file.py`). Its own processes keep that:
its replicator, and its broker as the leader that the others have elected. A tool can't: it cuts a log at
damage that it was told to cut at, it closes in order a log that a power cut has shortened, it writes records
that no leader has. So whoever else opens a member's log for writing takes its vote first, on disk, and the
member gets it back as after a power cut: when it holds all that a leader has committed (R9, R16, R17).

    LogWriter.open                         the member's processes say that they are (`by_member`); others take
                                           the vote here: `store repair --set-aside`, and what is to come
    repair.fetch                           writes files without opening the log: takes it as well
    emptying.reinit_offline                takes it with the intent to empty the store
    recover, export                        refuse: the member's own start recovers; an export is of a copy.
                                           Where roles are configured, they do what is not committed
    inspect, verify, backup, cut_reader    only read: seat, `abort` and marks stay

A tool on a copy of a store takes the copy's vote, which is another seat.

A store that was **moved** to another file system looks like a copy: the member's processes would make
another seat of it at their next start. `whimbrel store moved` says before that start that there is no
other one. It can't be known: the backup of a member that was stopped looks the same. So it is refused
where something tells that it is older than what the member has done since: it was not closed in order, its
group's record knows of an epoch that this member has led and this seat has not promised, or its leader
knows that this member held more of the log.
"""

import logging
from dataclasses import replace
from pathlib import Path

from whimbrel.errors import StoreError
from whimbrel.machine import MACHINE, Machine
from whimbrel.store.checkpoint import read_checkpoint
from whimbrel.store.epoch_file import EpochFile
from whimbrel.store.locking import StoreLock, is_locked
from whimbrel.store.seat_file import Seat, SeatFile, copied, draw_uuid
from whimbrel.store.shared_page import SharedPage
from whimbrel.store.view import LogView

__all__ = [
    "check_all_committed",
    "check_no_seat",
    "known_commit",
    "moved_seat",
    "own_seat",
    "take_moved",
    "take_vote",
]

logger = logging.getLogger(__name__)


def own_seat(file: SeatFile, machine: Machine) -> Seat | None:
    """Return the seat of a store, which is a new one where the store was copied; None without one.

    Raises:
        StoreError: it is damaged, or can't be read.
    """
    seat = file.load()
    if seat is None or not file.was_copied:
        return seat
    return copied(seat, draw_uuid(machine.random_bytes))


def take_vote(root: Path, machine: Machine = MACHINE) -> None:
    """Have the seat of a store say that its member does not vote; nothing where there is no seat.

    The caller holds the store's lock, so that the member's replicator has not its log open.

    Raises:
        StoreError: the seat is damaged, or can't be written.
    """
    file = SeatFile(root, machine.files)
    seat = own_seat(file, machine)
    if seat is None or not seat.votes:
        return
    file.save(replace(seat, votes=False))
    logger.warning(
        "%s belongs to member %d of a group that elects its leader: it does not vote until it has followed a"
        " leader as far as that has committed",
        root,
        seat.member,
    )


def check_no_seat(root: Path, what: str, instead: str, machine: Machine = MACHINE) -> None:
    """Refuse to do something to a store that has a seat.

    Args:
        what: is refused, as a noun.
        instead: what to do about it.

    Raises:
        StoreError: it has one, or that can't be read.
    """
    seat = SeatFile(root, machine.files).load()
    if seat is not None:
        raise StoreError(
            f"the store {root} belongs to member {seat.member} of a group that elects its leader, whose vote"
            f" depends on what its log holds: {what} is refused; {instead}"
        )


def known_commit(root: Path, machine: Machine = MACHINE) -> int:
    """Return how far the log of a store at rest is known to be committed; 0 where nothing says that."""
    checkpoint, page = read_checkpoint(root, machine.files), SharedPage.snapshot(root, machine)
    return max(0 if checkpoint is None else checkpoint.committed, 0 if page is None else page.confirmed)


def check_all_committed(root: Path, what: str, instead: str, machine: Machine = MACHINE) -> None:
    """Refuse to open a log for everybody to see that holds what its group may not have committed.

    A store of a group with configured roles that commits by majority has no seat; it has a list of epochs.

    Args:
        what: is refused, as a noun.
        instead: what to do about it.

    Raises:
        StoreError: it goes on behind what is known to be committed.
    """
    committed = known_commit(root, machine)
    if not committed or not EpochFile(root, machine.files).load():
        return
    end = LogView.of(root).end
    if committed < end:
        raise StoreError(
            f"the log of {root} ends at {end}, and its group is known to have committed it up to {committed}:"
            f" what is behind that may be lost elsewhere; {what} is refused; {instead}"
        )


def moved_seat(root: Path, machine: Machine = MACHINE) -> Seat | None:
    """Return the seat of a store that was moved, or copied, since its member ran last; None: it was not.

    Raises:
        StoreError: it has no seat, is in use, or was not closed in order; or the seat can't be read.
    """
    files = machine.files
    if is_locked(root, files):
        raise StoreError(
            f"{root} is in use: this is for a store whose processes have not started in the new place"
        )
    file = SeatFile(root, files)
    seat = file.load()
    if seat is None:
        raise StoreError(f"{root} is no store of a group that elects its leader: it is started as it is")
    if not file.was_copied:
        return None
    if files.exists(root / "abort"):
        raise StoreError(
            f"{root} was not closed in order, so it may have held more than what is here: start it as it is,"
            " and when it has caught up, count it again with `whimbrel replication voters NAME --set ...`"
        )
    return seat


def take_moved(root: Path, *, led: int = 0, held: int = 0, machine: Machine = MACHINE) -> Seat:
    """Take a store for moved, and not copied: its seat stays what it was.

    Args:
        led: the newest epoch of its group that its member is known to have led.
        held: how far that is known to have held the log.

    Raises:
        StoreError: as `moved_seat`, or it has promised, or holds, less than that.
    """
    lock = StoreLock.acquire(root, machine.files)
    try:
        file = SeatFile(root, machine.files)
        seat = file.load()
        assert seat is not None and file.was_copied
        if led > seat.promised:
            raise StoreError(
                f"member {seat.member} has led epoch {led}, of which the store {root} does not know: it is an"
                " older copy; put it there with `whimbrel restore`, which gives it another seat"
            )
        if held > (end := LogView.of(root).end):
            raise StoreError(
                f"member {seat.member} held the log up to {held}, and the store {root} ends at {end}: it is"
                " an older copy; put it there with `whimbrel restore`, which gives it another seat"
            )
        file.rebind()
        file.save(seat)
    finally:
        lock.release()
    return seat
