"""The mailbox of elections in the page of marks: roles, promises, seats, leader's epoch, commit offset.

    at    cells                                                                         written by
    3088  flush mode, whether the seat is bound                                         the replicator
    4160  dialect, leader's epoch, its start, its log, voters, 3 free cells             the broker
    4352  commit, flush mode, begin of the leader's log                                 the broker
    4384  size of the files of the leader's log, 3 free cells                           the broker
    4416  commit heard, epoch heard, time of the last frame, higher epoch,               the replicator
          last epoch of the log, quorum lost, 2 free cells
    4480  role of the replicator, promise asked for, elected master,                    the broker
          newest connection seen, emptying asked for, waived, 2 free cells
    4544  promise in force, last epoch and end then, may vote, emptied,                 the replicator
          3 free cells
    4608  uuid of the group, text of 48 bytes                                           the broker
    4656  uuid of the seat, text of 48 bytes; of its group, text of 48 bytes            the replicator
    4752  seats of the voters, text of 320 bytes                                        the broker

**Leader.** The leader's epoch and start are about the log whose epoch `leader_log` names: the broker sets
them after it has recovered that log, and the replicator lets members in only then. What members acknowledge
stands in `page_slots.py`.

**Elections.** Where the group elects its leader, the broker says which role the replicator beside has, and
asks it for promises. A promise, and an elected master, is an epoch * 256 + a member id, in one cell. The
replicator puts a promise on disk (`seat_file.py`), and shows it: 0, then what the log was like, then the
promise. So a reader that finds the same before and after has all of one promise. **Newest connection seen**:
the commit offset follows from cells that were read after that connection was there; a member is told commit
offsets of that sort only (rule R11b).

**Waived.** Of the promise that is asked for: an operator has accepted in this epoch what this member may have
lost, so it votes again (`elections/accepted_loss.py`).

**Emptying.** A broker that has closed its store asks for it with a number that it has not used before. The
replicator shows that number once the store is emptied (`emptying.py`) and its log is open again.
"""

from collections.abc import Iterable

from whimbrel.store.page_cells import Cell, EpochOf, Part, Text

__all__ = ["BOUND", "LEADER", "NOT_TOLD", "UNBOUND", "ElectionMailbox"]

BOUND, UNBOUND = 1, 2  # whether a copy of the seat's file is told from it
NOT_TOLD = (1 << 63) - 1  # the begin of the log of a leader of an earlier version

LEADER, COMMIT, HEARD = 4160, 4352, 4416
ELECTION, SEALED = 4480, 4544
GROUP, SEAT, SEAT_GROUP, UUID_BYTES = 4608, 4656, 4704, 48
SEATS, SEATS_BYTES = 4752, 320


class ElectionMailbox(Part):
    """What broker and replicator ask and tell each other about the leader and about elections."""

    replica_flush = Cell(3088)  # where the group elects: as `broker_flush`, of the replicator
    seat_bound = Cell(3096)  # where the group elects: BOUND or UNBOUND; 0: not told

    ha_dialect = Cell(LEADER)  # 2: the members speak `ha/switching.py`'s, else the classic protocol
    leader_epoch = Cell(LEADER + 8)  # master: of the leader that writes this log, 0 without one
    leader_start = Cell(LEADER + 16)  # master: where the log ended when that epoch began
    leader_log = Cell(LEADER + 24)  # master: the log's `epoch` that both are about
    voter_bits = Cell(LEADER + 32)  # master: see `set_voters`
    commit = Cell(COMMIT)  # master: so many members hold the log up to here that it counts
    broker_flush = Cell(COMMIT + 8)  # the broker's setting: 1 sync, 2 async; 0: an earlier version's, or none
    # Slave: 1 and the begin of the leader's log, as told last; 0: nothing told yet, NOT_TOLD: it never is.
    leader_begin = Cell(COMMIT + 16)
    leader_file_size = Cell(COMMIT + 32)  # slave: of the leader's log, as it has told; 0: it has not
    heard_commit = Cell(HEARD)  # slave: the leader's commit offset, as far as our log goes
    heard_epoch = Cell(HEARD + 8)  # slave: of the leader that we follow, 0 while none
    # Slave: time.monotonic_ns() of the last frame of a leader, 0 before the first.
    heard_ns = Cell(HEARD + 16)
    higher_epoch = Cell(HEARD + 24)  # master: a member was refused that follows this epoch; 0: none was
    last_epoch = Cell(HEARD + 32)  # slave: the last epoch that our log is in, 0: none
    quorum_lost = Cell(HEARD + 40)  # master: 1 while too few members have reported lately

    replica_role = Cell(ELECTION)  # where the group elects: 1 master, 2 slave; 0: as the replicator is told
    promise = EpochOf(ELECTION + 8)  # epoch and candidate that the broker asks for
    elected = EpochOf(ELECTION + 16)  # slave: epoch and member id of the leader at `master_ha`
    commit_saw = Cell(ELECTION + 24)  # master: see "Newest connection seen"
    empty_asked = Cell(ELECTION + 32)  # the store is to be emptied, by a number of this time; 0: it is not
    waived = EpochOf(ELECTION + 40)  # a promise by which the vote comes back; written before it is asked for
    sealed = EpochOf(SEALED)  # epoch and candidate that are promised on disk, (0, 0) while that changes
    sealed_last = Cell(SEALED + 8)  # the last epoch that the log was in then
    sealed_end = Cell(SEALED + 16)  # where the log ended then
    votes = Cell(SEALED + 24)  # 1: this member has lost nothing that it acknowledged
    emptied = Cell(SEALED + 32)  # the number for which it was emptied last
    group = Text(GROUP, UUID_BYTES)  # 32 hex digits, "" without one
    seat = Text(SEAT, UUID_BYTES)  # of this store, "" while the replicator does not elect
    seat_group = Text(SEAT_GROUP, UUID_BYTES)  # the group that this store belongs to, "" for none
    seats_text = Text(SEATS, SEATS_BYTES)  # master: see `set_seats`

    def set_voters(self, members: Iterable[int]) -> None:
        """Broker: publish the ids of the members whose copies count, a bit each."""
        bits = sum(1 << member for member in members)
        self.voter_bits = bits - (bits >> 63 << 64)  # as a signed number

    def is_voter(self, member: int) -> bool:
        """Return whether a member's copy counts."""
        return bool(self.voter_bits >> member & 1)

    def set_seats(self, seats: Iterable[tuple[int, str]]) -> None:
        """Broker: publish the voters' seats, where the group elects; (member id, uuid) each."""
        self.seats_text = " ".join(f"{member}:{seat}" for member, seat in seats)

    def seat_of(self, member: int) -> str:
        """Return the uuid of a voter's seat, "" where the group does not elect."""
        found = (text.partition(":") for text in self.seats_text.split())
        return next((seat for number, _, seat in found if number == str(member)), "")
