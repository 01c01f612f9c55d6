"""Empties the store of a member whose log has to begin anew, without its promises being forgotten.

    1  the intent    the seat says that the store is being emptied, and that the member does not vote (R9)
    2  the files     log, queues, index, timers, list of epochs, marks: all that follows from the log
    3  no intent     the caller clears it; the member still does not vote

Each step is on disk before the next, and can be done again: a kill or a power loss leaves the intent, and the
next start goes on with step 2. What stays is what does not follow from the log, or is a copy of the leader's
that it renews: the seat with its uuid and promises, `config/` but for the timers' files, the lease journals,
where the queues of deleted topics ended, what was cut, the page of marks. Of leases and metadata it has
reported what it stores, so it must not forget them (`broker/cluster/state_quorum.py`).

**Why it may vote again.** A member that is emptied is what one is that has lost all in a power cut, and has
its promises: it breaks none, and does not vote until its log has adopted the epoch of a leader that it
follows, and holds all up to a commit offset that was told over this connection (`seat_file.may_vote`,
`replicator/promises.py`). Another disk, whose promises are gone, needs `voters --set` instead (R9a).
"""

import logging
from dataclasses import replace
from pathlib import Path
from typing import Final

from whimbrel.errors import StoreError
from whimbrel.machine import MACHINE, Machine
from whimbrel.store.locking import StoreLock, is_locked
from whimbrel.store.offline_vote import own_seat
from whimbrel.store.seat_file import Seat, SeatFile
from whimbrel.store.shared_page import SharedPage

__all__ = ["emptied", "empty_store", "reinit_offline", "to_be_emptied"]

logger = logging.getLogger(__name__)

DERIVED: Final = (
    "commitlog",
    "consumequeue",
    "index",
    "timerlog",
    "timerwheel",
    "config/timercheck",
    "config/timermetrics",
    "epochFileCheckpoint",
    "checkpoint",
    "abort",
    "whimbrel/log-mark",
    "whimbrel/queue-mark",
    "whimbrel/confirmed",
    "whimbrel/sync-failed",
    "whimbrel/queue-offsets.json",
    "whimbrel/retention-clock",
)


def to_be_emptied(seat: Seat) -> Seat:
    """Return a seat with the intent to empty its store; nothing that it had counts from then on."""
    return replace(seat, votes=False, floor=0, acknowledged=0, acknowledged_epoch=0, cut=None, emptying=True)


def emptied(seat: Seat) -> Seat:
    """Return a seat whose store is emptied."""
    return replace(seat, emptying=False)


def empty_store(root: Path, machine: Machine = MACHINE) -> None:
    """Remove what follows from the log; the seat says that it is to be done.

    Raises:
        StoreError: the store is open, or the disk refuses; another call completes what this one has begun.
    """
    files = machine.files
    lock = StoreLock.acquire(root, files)
    try:
        page = SharedPage.open(root, machine)
        try:
            page.recovering()
        finally:
            page.close()
        for name in DERIVED:
            files.remove_tree(root / name)
        for directory in (root / "config", root / "whimbrel", root):
            if files.exists(directory):
                files.sync_directory(directory)
    except OSError as error:
        raise StoreError(
            f"the store {root} can't be emptied: {error}; see to the disk, then start again, which goes on"
        ) from error
    finally:
        lock.release()
    logger.warning("the store %s is emptied: its log begins anew where the leader's does", root)


def reinit_offline(root: Path, machine: Machine = MACHINE) -> Seat:
    """Empty the store of a member whose processes do not run; return its seat.

    Raises:
        StoreError: they do, it is no member's store, or the disk refuses.
    """
    file = SeatFile(root, machine.files)
    seat = own_seat(file, machine)
    if seat is None or not seat.group:
        raise StoreError(
            f"{root} is not the store of a member of a group that elects its leader; to begin anew with"
            " another one, stop its broker and replicator, and move it away"
        )
    if is_locked(root, machine.files):
        raise StoreError(f"{root} is in use: stop its broker and its replicator first")
    file.save(to_be_emptied(seat))
    empty_store(root, machine)
    file.save(emptied(to_be_emptied(seat)))
    return seat
