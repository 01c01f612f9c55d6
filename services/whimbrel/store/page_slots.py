"""The slots of a master's replicator in the page of marks: connections of slaves, and what they acknowledge.

    at    cells                                                                         written by
     168  refused: count, offset, time                                                  the replicator
     192  16 acknowledged offsets (-1: no live connection)                              the replicator
     320  16 offsets up to which frames were sent                                       the replicator
     448  16 counts of bytes sent                                                       the replicator
     576  16 times of connecting, epoch ms                                              the replicator
     704  16 peers, text of 64 bytes each                                               the replicator
    2432  host of the slave refused last, text of 64 bytes                              the replicator
    3072  epoch of the log that the slots' acknowledgements are about                   the replicator
    3136  16 times of connecting: negative until the connection's reports count         the replicator
    3264  16 slaves: time of connecting * 256 + broker id                               the broker
    3456  hosts of known slaves, text of 512 bytes                                      the broker
    4224  16 members: time of connecting * 256 + member id + 1                          the replicator

**Slaves.** A slot shows a connection of a slave; `counted_slaves.py` says which of them count, each slave
once. What a connection reports first acknowledges nothing (`ha/protocol.py`), and an acknowledgement is about
the log of one epoch. The columns from 3072 on repeat the time of connecting, so that nothing there is taken
for another connection's, nor for one of an earlier version's replicator, which does not write them: its slots
count from their first report on, as they did. An earlier version's broker reads the columns below and counts
connections.

**Members** are those of a group that commits by majority; `ha/switching.py` has their dialect. A member cell
repeats the time of connecting, which no two connections share, so it is a sequence lock: who reads it, the
acknowledgement, and finds it unchanged, has an acknowledgement of that member.
"""

import mmap
from collections.abc import Sequence
from typing import NamedTuple

from whimbrel.store.counted_slaves import CountedSlave, Slot, count_slaves
from whimbrel.store.page_cells import ID_BITS, SLAVES_MAX, Cell, Column, Text
from whimbrel.store.page_elections import LEADER, ElectionMailbox
from whimbrel.store.page_log import LOG, LogProgress

__all__ = ["ACKS", "SENT", "SENT_BYTES", "Counted", "ReplicaSlots"]

REFUSED, REFUSED_PEER = 168, 2432
ACKS, SENT, SENT_BYTES, CONNECTED_AT = 192, 320, 448, 576
PEERS, PEER_BYTES = 704, 64
FED_EPOCH, PROVEN_AT, SLAVE_IDS, MEMBERS = 3072, 3136, 3264, 4224
COLUMN_BYTES = 8 * SLAVES_MAX
KNOWN_HOSTS, KNOWN_HOSTS_BYTES = 3456, 512


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


class ReplicaSlots(LogProgress, ElectionMailbox):
    """The connections, beside what their acknowledgements are about: the log of one epoch, and its leader."""

    refused_count = Cell(REFUSED)  # slaves turned away: their log ends beyond ours; since the page is there
    refused_offset = Cell(REFUSED + 8)  # the last such end
    # time.monotonic_ns() of it; a slave in that state comes back every few seconds.
    refused_at_ns = Cell(REFUSED + 16)
    refused_peer = Text(REFUSED_PEER, PEER_BYTES)  # its host
    acks = Column(ACKS)  # what each slot's connection has reported; -1: a free slot, or no report yet
    sent = Column(SENT)  # offset up to which each slot's slave was sent frames
    sent_bytes = Column(SENT_BYTES)  # bytes sent to each slot's slave since it connected
    connected_at_ms = Column(CONNECTED_AT)  # when each slot's slave connected; 0 is a free slot
    fed_epoch = Cell(FED_EPOCH)  # master: of the log that slaves are fed from, 0 when from none
    proven_at_ms = Column(PROVEN_AT)  # see `set_proven`
    known_hosts_text = Text(KNOWN_HOSTS, KNOWN_HOSTS_BYTES)  # master: see `known_hosts`
    named_members = Column(MEMBERS)  # see `set_member`

    def __init__(self, mapped: mmap.mmap | bytearray) -> None:
        super().__init__(mapped)
        self.counted = Counted(b"", b"", -1, ())
        self.members = Members((), ())

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
        connected, proven = self.connected_at_ms, self.proven_at_ms
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
        acks = self.acks
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
        acks = self.acks
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

    def newest_connection(self) -> int:
        """Return when the newest connection was made that has a slot, epoch ms; each has another time."""
        first = CONNECTED_AT // 8
        return max(self.cells[first : first + SLAVES_MAX])

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
        connected, acks = self.connected_at_ms, self.acks
        return [
            ((named & (1 << ID_BITS) - 1) - 1, acks[slot])
            for slot, named in enumerate(self.named_members)
            if named and named >> ID_BITS == connected[slot] and acks[slot] >= 0
        ]

    def look_at_members(self) -> Members:
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
        proven = self.proven_at_ms
        named = [
            (cell >> ID_BITS, (cell & (1 << ID_BITS) - 1) - 1, ACKS // 8 + slot)
            for slot, cell in enumerate(self.named_members)
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
