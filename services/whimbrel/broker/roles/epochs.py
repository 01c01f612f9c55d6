"""The epoch of a master whose group commits by majority: begun anew at each start.

An epoch is one incarnation of one writer (rule R1 of `tests/models/rules.py`), so a master that comes back
takes another one. An elected leader's is that of its election. Where roles are given by configuration,
nobody hands epochs out: it is the one after the last that this store knows. Its start is on disk, in
`epochFileCheckpoint`, before its first record is (R5), and the page of marks names it before the replicator
lets members in.
"""

import logging
from collections.abc import Collection
from pathlib import Path

from whimbrel.errors import StoreError
from whimbrel.ha.epochs import adopted, reached
from whimbrel.ha.switching import DIALECT
from whimbrel.machine import Machine
from whimbrel.model.group_record import EPOCH_MAX, GroupRecord
from whimbrel.model.limits import BODY_BYTES_MAX
from whimbrel.store.checkpoint import read_checkpoint, write_checkpoint
from whimbrel.store.epoch_file import EpochFile
from whimbrel.store.master_store import MasterStore
from whimbrel.store.shared_page import SharedPage

__all__ = ["begin_epoch", "choose_dialect"]

logger = logging.getLogger(__name__)

# A follower's log may end within a record when it is sealed, or behind a blank: opened, it ends before that.
TORN_BYTES_MAX = 2 * BODY_BYTES_MAX
CLASSIC = 1  # the replication protocol of `ha/protocol.py`


def choose_dialect(root: Path, *, by_majority: bool, machine: Machine) -> None:
    """Tell the replicator beside which dialect the group speaks, before it sees a recovered log.

    Raises:
        StoreError: the page of marks can't be had.
    """
    page = SharedPage.open(root, machine)
    page.ha_dialect = DIALECT if by_majority else CLASSIC
    page.close()
    if not by_majority:  # what another mode had committed says nothing of a log that goes on without it
        checkpoint = read_checkpoint(root, machine.files)
        if checkpoint is not None and checkpoint.committed:
            write_checkpoint(root, committed=0, files=machine.files)


def begin_epoch(store: MasterStore, voters: Collection[int], term: GroupRecord | None = None) -> int:
    """Begin an epoch at the end of a log that has just been opened for writing; return its number.

    Args:
        store: of the log.
        voters: ids of the members whose copies count, where roles are configured.
        term: under which this broker was elected, which says all of that.

    Raises:
        StoreError: the list of epochs can't be read or written, or has no further number; or the log is not
            what the election was about.
    """
    page, file, end = store.page, EpochFile(store.root, store.files), store.written
    known = file.load()
    last = known[-1][0] if known else 0
    epoch = last + 1 if term is None else term.epoch
    if term is not None and (epoch <= last or end < page.sealed_end - TORN_BYTES_MAX):
        raise StoreError(
            f"the log ends at {end} in epoch {last}: it was sealed up to {page.sealed_end}, to lead epoch"
            f" {epoch}"
        )
    if epoch > EPOCH_MAX:
        raise StoreError(f"{file.path} ends with epoch {epoch - 1}, the last there can be")
    # After a power cut the list may name epochs whose start the log has lost.
    file.save(adopted(reached(known, end), ((epoch, end),), end))
    page.leader_epoch, page.leader_start, page.commit = epoch, end, store.visible_end
    seats = () if term is None else term.voters
    page.set_seats(seats)
    page.set_voters(dict(seats) if seats else voters)
    if term is not None:
        page.group = term.group
    page.leader_log = page.epoch  # last: the replicator lets members in now
    logger.info("epoch %d of %s begins at %d; committed up to %d", epoch, store.root, end, page.commit)
    return epoch
