"""The page that a broker and its replicator share: `STORE/whimbrel/watermark`, mapped by both.

Each cell is one aligned, native int64 with exactly one writing process, so it needs no lock: a reader sees
the old value or the new one. **The cells are the truth**; the doorbell (`whimbrel.wakeup`) only saves a poll.

    at    cells                                                                         written by
       0  layout version, boot id (16 bytes), inode of the page's file                  the first opener
      64  epoch, begin, written, flushed, file size, pid, beat, epochs so far           the log's writer
     128  HA port, pid, beat, sleeping, connected, refused: count, offset, time         the replicator
     192  16 acknowledged offsets (-1: no live connection)                              the replicator
     320  16 offsets up to which frames were sent                                       the replicator
     448  16 counts of bytes sent                                                       the replicator
     576  16 times of connecting, epoch ms                                              the replicator
     704  16 peers, text of 64 bytes each                                               the replicator
    1728  sleeping, dispatched, confirmed, pid, beat, broker id, writable, lane pass    the broker
    1792  address of the master's replicator, text of 320 bytes                         the broker
    2112  why replication does not work, text of 320 bytes                              the replicator
    2432  host of the slave refused last, text of 64 bytes                              the replicator
    2496  host at which the master's replicator is reached, text of 320 bytes           the replicator
    2816  broker name, text of 136 bytes                                                the broker
    3072  epoch of the log that the slots' acknowledgements are about, lane pass,       the replicator
          flush mode, whether the seat is bound, retention, 3 free cells
    3136  16 times of connecting: negative until the connection's reports count         the replicator
    3264  16 slaves: time of connecting * 256 + broker id                               the broker
    3392  address from which a slave's replicator is connected, text of 64 bytes        the replicator
    3456  hosts of known slaves, text of 512 bytes                                      the broker
    4080  replaced, doubtful                                                            the log's writer
    4096  layout version and boot id once more                                          the first opener
    4160  dialect, leader's epoch, its start, its log, voters, 3 free cells             the broker
    4224  16 members: time of connecting * 256 + member id + 1                          the replicator
    4352  commit, flush mode, begin of the leader's log, retention, size of its files,  the broker
          3 free cells
    4416  commit heard, epoch heard, time of the last frame, higher epoch,               the replicator
          last epoch of the log, quorum lost, 2 free cells
    4480  role of the replicator, promise asked for, elected master,                     the broker
          newest connection seen, emptying asked for, waived, 2 free cells
    4544  promise in force, last epoch and end then, may vote, emptied,                  the replicator
          3 free cells
    4608  uuid of the group, text of 48 bytes                                           the broker
    4656  uuid of the seat, text of 48 bytes; of its group, text of 48 bytes             the replicator
    4752  seats of the voters, text of 320 bytes                                        the broker

A text is a sequence lock: an int64 that is odd while the text changes, then UTF-8 bytes ended by a zero
byte or the end of the field. A writer that is killed in between leaves an odd number; the text then reads as
empty until it is written again.

**Epochs.** The log's writer calls `recovering()` (epoch 0), recovers, then calls `recovered(...)`, which
makes the epoch one more than any before it. The other process waits for an epoch above 0; when the epoch
changes, the log's end may have moved back. A page of another boot of the machine, or of another layout, is
zeroed by the first process that opens it: its cells describe a page cache that is gone. So is one whose file
is not the one that was mapped: it came with a copy of the store, perhaps later than the log did, and its
cells describe the store that was copied. An earlier version leaves the inode 0, which tells nothing.

**Slaves.** A slot shows a connection of a slave; `counted_slaves.py` says which of them count, each slave
once. What a connection reports first acknowledges nothing (`ha/protocol.py`), and an acknowledgement is about
the log of one epoch. The columns from 3072 on repeat the time of connecting, so that nothing there is taken
for another connection's, nor for one of an earlier version's replicator, which does not write them: its slots
count from their first report on, as they did. An earlier version's broker reads the columns below and counts
connections.

**Members** are those of a group that commits by majority; `ha/switching.py` has their dialect. A process of
an earlier version maps the first 4,096 bytes only, and zeroes no more for a new boot: so the second half has
a header of its own. The leader's epoch and start are about the log whose epoch `leader_log` names: the
broker sets them after it has recovered that log, and the replicator lets members in only then. A member cell
repeats the time of connecting, which no two connections share, so it is a sequence lock: who reads it, the
acknowledgement, and finds it unchanged, has an acknowledgement of that member.

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

**Replaced** counts the log files that were written again under their old names (`failed_sync.py`): a reader
that has such a file open must open it anew before it reads what was appended since. **Doubtful** is 0, or one
more than the log offset from which on a failed sync leaves it open what is on disk. Processes of an earlier
version have neither cell.

**Sleeping.** A process that is about to wait sets its flag, reads the cells once more, and only then waits; a
process that moves a cell reads the other's flag afterwards and rings. That order needs a full memory barrier
between the store and the load on both sides: the flag's accessors have one.
"""

import fcntl
import mmap
import os
import struct
import threading
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import ClassVar, NamedTuple

from whimbrel.errors import StoreError
from whimbrel.machine import MACHINE, Machine
from whimbrel.store.counted_slaves import CountedSlave, Slot, count_slaves
from whimbrel.store.options import Retention

__all__ = ["BEAT_MAX_NS", "BOUND", "NOT_TOLD", "PAGE_BYTES", "SLAVES_MAX", "UNBOUND", "Counted", "SharedPage"]

PAGE_FILE = Path("whimbrel") / "watermark"  # in a store directory
PAGE_BYTES = 8192
SECOND = 4096  # where the half begins that earlier versions do not have
SLAVES_MAX = 16  # connections that a master's replicator serves
# A process whose beat is older is taken for dead. Each beats at every turn of its loop, many times a second.
BEAT_MAX_NS = 3_000_000_000
BOUND, UNBOUND = 1, 2  # whether a copy of the seat's file is told from it
NOT_TOLD = (1 << 63) - 1  # the begin of the log of a leader of an earlier version

LAYOUT = 0x5748494D_00000001  # "WHIM", then the version
HEADER = struct.Struct("=q16s")
INODE = struct.Struct("=q")

LOG, REPLICA, BROKER = 64, 128, 1728
ACKS, SENT, SENT_BYTES, CONNECTED_AT = 192, 320, 448, 576
PEERS, PEER_BYTES = 704, 64
MASTER_HA, TROUBLE, TEXT_BYTES = 1792, 2112, 320
REFUSED_PEER = 2432
HA_HOST = 2496
BROKER_NAME, NAME_BYTES = 2816, 136
FED_EPOCH, PROVEN_AT, SLAVE_IDS = 3072, 3136, 3264
COLUMN_BYTES = 8 * SLAVES_MAX
ID_BITS = 8  # broker ids are below 64
LOCAL_HA = 3392
KNOWN_HOSTS, KNOWN_HOSTS_BYTES = 3456, 512
FILES = 4080
LEADER, MEMBERS, COMMIT, HEARD = 4160, 4224, 4352, 4416
ELECTION, SEALED = 4480, 4544
GROUP, SEAT, SEAT_GROUP, UUID_BYTES = 4608, 4656, 4704, 48
SEATS, SEATS_BYTES = 4752, 320
LOG_BEGIN, LOG_WRITTEN, REPLACED = (LOG + 8) // 8, (LOG + 16) // 8, FILES // 8  # numbers of cells
RATIO_BITS, RATIO_UNIT = 15, 10_000
TEXT_READS_MAX = 100  # a text that is still changing after so many reads has a dead writer


class Cell:
    """One int64 of the page as an attribute."""

    __slots__ = ("index",)

    def __init__(self, at: int) -> None:
        self.index = at // 8

    def __get__(self, page: "SharedPage", owner: type | None = None) -> int:
        return page.cells[self.index]

    def __set__(self, page: "SharedPage", value: int) -> None:
        page.cells[self.index] = value


class EpochOf:
    """An epoch and the member id of its leader or candidate in one cell, so that nobody reads one without
    the other."""

    __slots__ = ("index",)

    def __init__(self, at: int) -> None:
        self.index = at // 8

    def __get__(self, page: "SharedPage", owner: type | None = None) -> tuple[int, int]:
        return divmod(page.cells[self.index], 1 << ID_BITS)

    def __set__(self, page: "SharedPage", value: tuple[int, int]) -> None:
        page.cells[self.index] = value[0] << ID_BITS | value[1]


class SleepCell(Cell):
    """A sleeping flag: a memory barrier stands before each read and after each write."""

    __slots__ = ()
    barrier: ClassVar = threading.Lock()  # taking a lock is an atomic operation, hence a full barrier

    def __get__(self, page: "SharedPage", owner: type | None = None) -> int:
        with self.barrier:
            pass
        return page.cells[self.index]

    def __set__(self, page: "SharedPage", value: int) -> None:
        page.cells[self.index] = value
        with self.barrier:
            pass


class RetentionCell:
    """How long a process is told to keep log files, in one cell: seconds of age and the two ratios in ten
    thousandths, each greater by 1 than it is; 0 where it is not told, which is what is there at first."""

    __slots__ = ("index",)

    def __init__(self, at: int) -> None:
        self.index = at // 8

    def __get__(self, page: "SharedPage", owner: type | None = None) -> Retention:
        seconds, ratios = divmod(page.cells[self.index], 1 << 2 * RATIO_BITS)
        used, clean = divmod(ratios, 1 << RATIO_BITS)
        return Retention(
            (seconds - 1) / 3600 if seconds else None,
            (used - 1) / RATIO_UNIT if used else None,
            (clean - 1) / RATIO_UNIT if clean else None,
        )

    def __set__(self, page: "SharedPage", value: Retention) -> None:
        told = (
            (value.reserved_hours, 3600, (1 << 31) - 1),
            (value.disk_used_ratio_max, RATIO_UNIT, RATIO_UNIT),
            (value.disk_clean_ratio, RATIO_UNIT, RATIO_UNIT),
        )
        cell = 0
        for number, unit, limit in told:
            cell <<= RATIO_BITS
            cell |= 0 if number is None else 1 + min(round(number * unit), limit)
        page.cells[self.index] = cell


class Text:
    """A sequence-locked text of the page as an attribute."""

    __slots__ = ("at", "size")

    def __init__(self, at: int, size: int) -> None:
        self.at, self.size = at, size

    def __get__(self, page: "SharedPage", owner: type | None = None) -> str:
        return page.read_text(self.at, self.size)

    def __set__(self, page: "SharedPage", value: str) -> None:
        page.write_text(self.at, self.size, value)


class Counted:
    """The slaves that were counted, and from what; replaced as a whole, since several threads read it.

    Attributes:
        connected, named, epoch: the cells from which they were counted.
        slaves: the slaves.
        single: the cells of their acknowledgements, when each has one connection and that counts; else None.
    """

    __slots__ = ("connected", "epoch", "named", "single", "slaves")

    def __init__(self, connected: bytes, named: bytes, epoch: int, slaves: tuple[CountedSlave, ...]) -> None:
        self.connected, self.named, self.epoch, self.slaves = connected, named, epoch, slaves
        self.single: list[int] | None = None
        if all(len(slave.slots) == 1 and slave.slots[0].proven for slave in slaves):
            self.single = [ACKS // 8 + slave.slots[0].number for slave in slaves]


class Members(NamedTuple):
    """The members' connections, and the cells from which they were found.

    Attributes:
        counted: member id and the number of the acknowledgement's cell, of the connections that count.
    """

    seen: tuple[object, ...]
    counted: tuple[tuple[int, int], ...]


class SharedPage:
    """The mapped page. Attributes are the cells; the module's text says which process sets which."""

    inode = Cell(HEADER.size)  # of the page's file; 0 from an earlier version
    epoch = Cell(LOG)  # 0: the log is not recovered
    begin = Cell(LOG + 8)  # start of the log's first file
    written = Cell(LOG + 16)  # end of the log: bytes below may be read, replicated, dispatched
    flushed = Cell(LOG + 24)  # bytes below are on disk
    file_size = Cell(LOG + 32)
    log_pid = Cell(LOG + 40)
    log_beat_ns = Cell(LOG + 48)  # time.monotonic_ns() of the writer's last turn
    epoch_count = Cell(LOG + 56)  # the highest epoch so far; only `recovered` changes it
    replaced = Cell(FILES)  # log files that were written again under their names; moves before `written`
    doubtful = Cell(FILES + 8)  # offset + 1 from which the log may not be on disk although synced; 0: none

    ha_port = Cell(REPLICA)  # bound port of a master's replicator, else 0
    ha_host = Text(HA_HOST, TEXT_BYTES)  # set before the port; "": not known
    replica_pid = Cell(REPLICA + 8)
    replica_beat_ns = Cell(REPLICA + 16)
    replica_sleeping = SleepCell(REPLICA + 24)
    connected = Cell(REPLICA + 32)  # 1: a slave's replicator is connected to its master
    refused_count = Cell(
        REPLICA + 40
    )  # slaves turned away because their log ends beyond ours, since the page is there
    refused_offset = Cell(REPLICA + 48)  # the last such end
    refused_at_ns = Cell(
        REPLICA + 56
    )  # time.monotonic_ns() of it; a slave in that state comes back every few seconds
    refused_peer = Text(REFUSED_PEER, PEER_BYTES)  # its host
    trouble = Text(TROUBLE, TEXT_BYTES)  # one sentence for people; "" when all is well
    trouble_version = Cell(TROUBLE)  # another one whenever it was written
    fed_epoch = Cell(FED_EPOCH)  # master: of the log that slaves are fed from, 0 when from none
    replica_pass = Cell(FED_EPOCH + 8)  # 1 while the compiled lane decides something in the replicator
    seat_bound = Cell(FED_EPOCH + 24)  # where the group elects: BOUND or UNBOUND; 0: not told
    replica_flush = Cell(FED_EPOCH + 16)  # where the group elects: as `broker_flush`, of the replicator
    replica_retention = RetentionCell(FED_EPOCH + 32)  # as `broker_retention`, of the replicator
    local_ha = Text(LOCAL_HA, PEER_BYTES)  # slave: "host:port" of our end of the connection to the master
    local_ha_version = Cell(LOCAL_HA)  # another one whenever it was written

    broker_sleeping = SleepCell(BROKER)
    dispatched = Cell(BROKER + 8)  # the log up to here stands in the consume queues
    confirmed = Cell(
        BROKER + 16
    )  # every in-sync slave holds the log up to here, see `broker/produce/confirmed_offset.py`
    broker_pid = Cell(BROKER + 24)
    broker_beat_ns = Cell(BROKER + 32)
    broker_id = Cell(BROKER + 40)
    writable = Cell(BROKER + 48)  # 1: a master that takes messages
    lane_pass = Cell(BROKER + 56)  # 1: a pass of the compiled lane is under way, see `lane_passes.py`
    broker_name = Text(BROKER_NAME, NAME_BYTES)
    master_ha = Text(MASTER_HA, TEXT_BYTES)  # slave: "host:port" of the master's replicator, "" = unknown
    master_ha_version = Cell(MASTER_HA)  # another one whenever it was written
    known_hosts_text = Text(KNOWN_HOSTS, KNOWN_HOSTS_BYTES)  # master: see `known_hosts`

    ha_dialect = Cell(LEADER)  # 2: the members speak `ha/switching.py`'s, else the classic protocol
    leader_epoch = Cell(LEADER + 8)  # master: of the leader that writes this log, 0 without one
    leader_start = Cell(LEADER + 16)  # master: where the log ended when that epoch began
    voter_bits = Cell(LEADER + 32)  # master: see `set_voters`
    leader_log = Cell(LEADER + 24)  # master: the log's `epoch` that both are about
    commit = Cell(COMMIT)  # master: so many members hold the log up to here that it counts
    broker_flush = Cell(COMMIT + 8)  # the broker's setting: 1 sync, 2 async; 0: an earlier version's, or none
    # Slave: 1 and the begin of the leader's log, as told last; 0: nothing told yet, NOT_TOLD: it never is.
    leader_begin = Cell(COMMIT + 16)
    leader_file_size = Cell(COMMIT + 32)  # slave: of the leader's log, as it has told; 0: it has not
    broker_retention = RetentionCell(COMMIT + 24)  # the broker's settings; see `store/retention.py`
    heard_commit = Cell(HEARD)  # slave: the leader's commit offset, as far as our log goes
    heard_epoch = Cell(HEARD + 8)  # slave: of the leader that we follow, 0 while none
    heard_ns = Cell(
        HEARD + 16
    )  # slave: time.monotonic_ns() of the last frame of a leader, 0 before the first
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

    def __init__(self, mapped: mmap.mmap | bytearray) -> None:
        self.mapped = mapped
        self.bytes = memoryview(mapped)
        self.cells = self.bytes.cast("q")
        self.counted = Counted(b"", b"", -1, ())
        self.members = Members((), ())

    @classmethod
    def open(cls, store_root: Path, machine: Machine = MACHINE) -> "SharedPage":
        """Map the page of a store; a missing one is created, one of another boot or layout zeroed.

        Raises:
            StoreError: the page can't be created or mapped.
        """
        path, files = store_root / PAGE_FILE, machine.files
        try:
            files.make_directories(path.parent)
            fd = files.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        except OSError as error:
            raise StoreError(f"the page {path} can't be opened: {error}") from error
        try:
            files.flock(fd, fcntl.LOCK_EX)  # two processes that start together must not both zero it
            stat = files.fstat(fd)
            if stat.st_size < PAGE_BYTES or not stat.st_blocks:
                # Otherwise writing to the page on a full disk raises SIGBUS.
                files.posix_fallocate(fd, 0, PAGE_BYTES)
            page = cls(files.map(fd, PAGE_BYTES))
            boot = machine.boot_id()
            if not describes(page.mapped, boot, stat.st_ino):
                page.mapped[:] = bytes(PAGE_BYTES)
                page.clear_slaves()
                HEADER.pack_into(page.mapped, 0, LAYOUT, boot)
            elif HEADER.unpack_from(page.mapped, SECOND) != (LAYOUT, boot):
                page.mapped[SECOND:] = bytes(PAGE_BYTES - SECOND)
            HEADER.pack_into(page.mapped, SECOND, LAYOUT, boot)
            if page.inode != stat.st_ino:
                page.inode = stat.st_ino
        except OSError as error:
            raise StoreError(f"the page {path} can't be mapped: {error}") from error
        finally:
            # Closing is not enough: the mapping holds a copy of the descriptor.
            files.flock(fd, fcntl.LOCK_UN)
            files.close(fd)
        return page

    @classmethod
    def snapshot(cls, store_root: Path, machine: Machine = MACHINE) -> "SharedPage | None":
        """Return a copy of a store's page, None without one of this boot; the page itself is not mapped."""
        path, files = store_root / PAGE_FILE, machine.files
        try:
            data = files.read_bytes(path)
            current = len(data) >= SECOND and describes(data, machine.boot_id(), files.stat(path).st_ino)
        except (FileNotFoundError, StoreError):
            return None
        return cls(bytearray(data[:PAGE_BYTES].ljust(PAGE_BYTES, b"\0"))) if current else None

    def close(self) -> None:
        """Unmap the page; its file stays."""
        self.cells.release()
        self.bytes.release()
        if isinstance(self.mapped, mmap.mmap):
            self.mapped.close()

    @classmethod
    def place(cls, name: str) -> int:
        """Return where the cell of an attribute is, in bytes."""
        cell: Cell | EpochOf = vars(cls)[name]
        return 8 * cell.index

    def recovering(self) -> None:
        """Mark the log as being recovered: its cells may not be relied on."""
        self.epoch = 0

    def recovered(self, *, begin: int, written: int, flushed: int, file_size: int, pid: int) -> int:
        """Publish a recovered log and start its epoch.

        Returns:
            The new epoch.
        """
        self.begin, self.written, self.flushed = begin, written, flushed
        self.file_size, self.log_pid = file_size, pid
        self.epoch_count = epoch = self.epoch_count + 1
        self.epoch = epoch  # last: a process that sees it sees the other cells
        return epoch

    def log_range(self) -> tuple[int, int, int]:
        """Return begin, written and replaced, looked at in this order: for each read of the log."""
        cells = self.cells
        return cells[LOG_BEGIN], cells[LOG_WRITTEN], cells[REPLACED]

    def replica_alive(self, now_ns: int) -> bool:
        """Return whether the replicator has beaten lately."""
        return now_ns - self.replica_beat_ns < BEAT_MAX_NS

    def broker_alive(self, now_ns: int) -> bool:
        """Return whether the broker has beaten lately."""
        return now_ns - self.broker_beat_ns < BEAT_MAX_NS

    def count_slaves(self) -> Counted:
        """Return the connected slaves; counted anew only when slots have changed."""
        counted, mapped, epoch = self.counted, self.mapped, self.cells[LOG // 8]
        connected = mapped[CONNECTED_AT : CONNECTED_AT + COLUMN_BYTES]
        named = mapped[FED_EPOCH : SLAVE_IDS + COLUMN_BYTES]
        if connected != counted.connected or named != counted.named or epoch != counted.epoch:
            slots = self.slots()
            counted = self.counted = Counted(bytes(connected), bytes(named), epoch, count_slaves(slots))
        return counted

    def slots(self) -> list[Slot]:
        """Return the connections that have a slot and are about the log's present epoch."""
        connected, proven = self.column(CONNECTED_AT), self.column(PROVEN_AT)
        current = self.fed_epoch == self.epoch
        found = []
        for number, at_ms in enumerate(connected):
            earlier = abs(proven[number]) != at_ms  # a replicator that knows nothing of proofs and epochs
            if at_ms and (earlier or current):
                counts = earlier or proven[number] > 0
                found.append(Slot(number, self.peer(number), self.slave_id(number), at_ms, counts))
        return found

    def live_acks(self) -> list[int]:
        """Return what the connected slaves have acknowledged, each slave once, in no order."""
        counted = self.counted
        if counted.single is not None:
            cells = self.cells
            acks = [cells[cell] for cell in counted.single]  # before the slots: one may be another's now
            if self.count_slaves() is counted:
                return [ack for ack in acks if ack >= 0]
        return [ack for _, ack in self.slave_acks()]

    def slave_acks(self) -> list[tuple[CountedSlave, int]]:
        """Return the connected slaves that have acknowledged something, with how far."""
        acks = self.column(ACKS)
        found = []
        for slave in self.count_slaves().slaves:
            slot = slave.newest(acks)
            if slot is not None and slot.proven:
                found.append((slave, acks[slot.number]))
        return found

    def reported_ends(self) -> list[int]:
        """Return how far the connected slaves say that they are, each slave once.

        One that has nothing to take at the moment has acknowledged nothing over its connection.
        """
        acks = self.column(ACKS)
        newest = [slave.newest(acks) for slave in self.count_slaves().slaves]
        return [acks[slot.number] for slot in newest if slot is not None]

    def acknowledged(self, needed: int) -> int:
        """Return the offset that `needed` connected slaves have acknowledged, or -1 when there are fewer."""
        acks = self.live_acks()
        if not 0 < needed <= len(acks):
            return -1
        if needed == 1:
            return max(acks)
        acks.sort(reverse=True)
        return acks[needed - 1]

    @property
    def acks(self) -> Sequence[int]:
        """What each slot's connection has reported; -1 is a free slot, or one that has not reported yet."""
        return self.column(ACKS)

    @property
    def sent(self) -> Sequence[int]:
        """Offset up to which each slot's slave was sent frames."""
        return self.column(SENT)

    @property
    def sent_bytes(self) -> Sequence[int]:
        """Bytes sent to each slot's slave since it connected."""
        return self.column(SENT_BYTES)

    @property
    def connected_at_ms(self) -> Sequence[int]:
        """When each slot's slave connected; 0 is a free slot."""
        return self.column(CONNECTED_AT)

    @property
    def peers(self) -> list[str]:
        """Address of each slot's slave; "" is a free slot."""
        return [self.peer(slot) for slot in range(SLAVES_MAX)]

    def peer(self, slot: int) -> str:
        """Return the address of a slot's slave; "" is a free slot."""
        return self.read_text(PEERS + slot * PEER_BYTES, PEER_BYTES)

    def slave_id(self, slot: int) -> int:
        """Return the broker id of a slot's slave, 0 when it is not known."""
        value = self.cells[SLAVE_IDS // 8 + slot]
        return value & (1 << ID_BITS) - 1 if value >> ID_BITS == self.cells[CONNECTED_AT // 8 + slot] else 0

    def set_slave_id(self, slot: int, broker_id: int) -> None:
        """Broker: say whose connection a slot has."""
        self.cells[SLAVE_IDS // 8 + slot] = self.cells[CONNECTED_AT // 8 + slot] << ID_BITS | broker_id

    @property
    def known_hosts(self) -> list[str]:
        """Hosts from which known slaves connect; slots are kept for them."""
        return self.known_hosts_text.split()

    @known_hosts.setter
    def known_hosts(self, hosts: Sequence[str]) -> None:
        """Broker: publish them, as many as have room; the first ones matter most."""
        text = ""
        for host in hosts:
            if len(text) + len(host) + 1 >= KNOWN_HOSTS_BYTES - 8:
                break
            text += f" {host}"
        self.known_hosts_text = text.strip()

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

    def newest_connection(self) -> int:
        """Return when the newest connection was made that has a slot, epoch ms; each has another time."""
        return max(self.column(CONNECTED_AT))

    def set_member(self, slot: int, member: int) -> None:
        """Replicator: say which member's connection a slot has, after `set_slave`."""
        self.cells[MEMBERS // 8 + slot] = self.cells[CONNECTED_AT // 8 + slot] << ID_BITS | member + 1

    def member_acks(self) -> list[tuple[int, int]]:
        """Return what members have acknowledged in the leader's epoch: (member id, offset), in no order.

        Only connections count whose reports are proven and about the log as it is now, and only from where
        the leader's epoch begins: a member has adopted the epoch when it reports that much.
        """
        found = []
        start = self.leader_start
        for member, cell in self.look_at_members().counted:
            if (ack := self.cells[cell]) >= start:
                found.append((member, ack))
        return found if self.members is self.look_at_members() else []

    def member_ends(self) -> list[tuple[int, int]]:
        """Return how far the connected members say that they are: (member id, offset), in no order.

        One that has nothing to take at the moment may have acknowledged nothing over its connection.
        """
        if self.fed_epoch != self.epoch or self.leader_log != self.epoch:
            return []
        connected, acks = self.column(CONNECTED_AT), self.column(ACKS)
        return [
            ((named & (1 << ID_BITS) - 1) - 1, acks[slot])
            for slot, named in enumerate(self.column(MEMBERS))
            if named and named >> ID_BITS == connected[slot] and acks[slot] >= 0
        ]

    def look_at_members(self) -> "Members":
        """Return the members' connections; looked at anew only when one of the cells has changed."""
        members, mapped = self.members, self.mapped
        seen = (
            mapped[LOG : LOG + 8],
            mapped[FED_EPOCH : PROVEN_AT + COLUMN_BYTES],
            mapped[LEADER : MEMBERS + COLUMN_BYTES],
        )
        if seen != members.seen:
            members = self.members = Members(seen, self.counted_members())
        return members

    def counted_members(self) -> tuple[tuple[int, int], ...]:
        """Do the rest of `look_at_members`."""
        epoch = self.epoch
        if not epoch or self.fed_epoch != epoch or self.leader_log != epoch:
            return ()
        proven = self.column(PROVEN_AT)
        named = [
            (cell >> ID_BITS, (cell & (1 << ID_BITS) - 1) - 1, ACKS // 8 + slot)
            for slot, cell in enumerate(self.column(MEMBERS))
            if cell and cell >> ID_BITS == proven[slot]
        ]
        # Of a member's connections the newest counts; the replicator closes older ones.
        return tuple({member: cell for _, member, cell in sorted(named)}.items())

    def set_ack(self, slot: int, offset: int) -> None:
        """Replicator: publish what a slave has reported."""
        self.cells[ACKS // 8 + slot] = offset

    def set_proven(self, slot: int) -> None:
        """Replicator: let a connection's reports count as acknowledgements."""
        self.cells[PROVEN_AT // 8 + slot] = self.cells[CONNECTED_AT // 8 + slot]

    def set_sent(self, slot: int, offset: int, count: int) -> None:
        """Replicator: publish how far a slave was sent the log, and how many bytes went out."""
        self.cells[SENT // 8 + slot] = offset
        self.cells[SENT_BYTES // 8 + slot] = count

    def set_slave(self, slot: int, peer: str, connected_at_ms: int) -> None:
        """Replicator: publish a connection that acknowledged nothing yet; ("", 0) frees the slot."""
        self.cells[MEMBERS // 8 + slot] = 0  # first: who still sees it sees its acknowledgement
        self.cells[ACKS // 8 + slot] = -1
        self.cells[SENT // 8 + slot] = 0
        self.cells[SENT_BYTES // 8 + slot] = 0
        self.write_text(PEERS + slot * PEER_BYTES, PEER_BYTES, peer)
        self.cells[PROVEN_AT // 8 + slot] = -connected_at_ms
        self.cells[CONNECTED_AT // 8 + slot] = connected_at_ms  # last: who sees it sees the others

    def clear_slaves(self) -> None:
        """Replicator: free all slots, at its start: one that was killed leaves its own behind."""
        for slot in range(SLAVES_MAX):
            self.set_slave(slot, "", 0)

    def column(self, at: int) -> list[int]:
        """Return the 16 cells that begin at `at`."""
        return self.cells[at // 8 : at // 8 + SLAVES_MAX].tolist()

    def read_text(self, at: int, size: int) -> str:
        """Return a sequence-locked text, "" when its writer was killed while changing it."""
        for _ in range(TEXT_READS_MAX):
            before = self.cells[at // 8]
            if before & 1:
                continue
            raw = bytes(self.bytes[at + 8 : at + size])
            if self.cells[at // 8] == before:
                return raw.partition(b"\0")[0].decode("utf-8", "replace")
        return ""

    def write_text(self, at: int, size: int, text: str) -> None:
        """Change a sequence-locked text; what is too long is cut."""
        room = size - 8
        odd = self.cells[at // 8] | 1
        self.cells[at // 8] = odd
        self.bytes[at + 8 : at + size] = text.encode()[:room].ljust(room, b"\0")
        self.cells[at // 8] = odd + 1


def describes(data: mmap.mmap | bytearray | bytes, boot: bytes, inode: int) -> bool:
    """Return whether a page is of this boot, and was mapped where it is now."""
    (mapped_as,) = INODE.unpack_from(data, HEADER.size)
    return HEADER.unpack_from(data) == (LAYOUT, boot) and mapped_as in (0, inode)
