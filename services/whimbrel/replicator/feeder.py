"""The master's side: feeds the commitlog to up to 16 slaves and publishes what they acknowledge.

The broker moves the page's `written` mark and rings; the feeder sends what is new to every slave, from the
log's files straight into the sockets, and writes their reports into the page. It does not parse the log.

When the page's epoch changes, the broker has recovered the log again and its end may have moved back: all
connections are closed, and slaves come back with their own ends. While the epoch is 0 nobody is let in.

    accepted   SILENT_MAX connections that have reported nothing have no slot
       |          silent for SILENT_S: closed; for DISPLACED_AFTER_S: closed when another one wants the place
       | the first report lies within the log
    slot       shown in the page
       | a report covers what was sent over this connection
    proven     acknowledges

**A group that commits by majority** (`ha_dialect` in the page) has members and observers. A connection whose
first eight bytes are a member's goes on in the members' dialect (`ha/switching.py`): a voter's handshake is
answered once the broker has begun its epoch in the log as it is now (`leader_log`), with the list of epochs
from `epochFileCheckpoint`, and after older connections of that member were closed unread. All others are
observers: they are sent what is committed, get no cell of a member, and what they report counts for nothing.

Everybody who reaches the port can connect. So slots are kept for the hosts that the broker knows slaves at
(`SharedPage.known_hosts`): another host gets what they leave free, and gives its slot up for one of them, or
for a member.
"""

import contextlib
import logging
import selectors
import socket
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from whimbrel.errors import IllegalOffset, PeerError, RemoteProtocolError, StoreError
from whimbrel.ha.protocol import MasterProtocol, OutOfRange
from whimbrel.ha.switching import DIALECT, MAGIC_BYTES, NOBODY, SwitchingMaster
from whimbrel.replicator.lane_turns import feed
from whimbrel.replicator.loop import Loop
from whimbrel.replicator.options import ReplicatorOptions
from whimbrel.replicator.promises import Promises
from whimbrel.replicator.slave_connection import SendResult, SlaveConnection
from whimbrel.replicator.sockets import advertised_host, named, tune
from whimbrel.store.counted_slaves import host_of
from whimbrel.store.epoch_file import EpochFile
from whimbrel.store.log_reader import LogReader
from whimbrel.store.page_cells import SLAVES_MAX
from whimbrel.wakeup import WAKE_POLL_S

if TYPE_CHECKING:
    from whimbrel.replicator.tracing import FeederTraces

__all__ = ["Feeder"]

logger = logging.getLogger(__name__)

ACCEPTS_MAX = 16  # connections taken in one turn
SILENT_MAX = 32  # connections that have reported nothing yet; a slave of ours reports at once
SILENT_S = 8.0  # a slave of RocketMQ's speaks up after 5 s
DISPLACED_AFTER_S = 2.0
TROUBLE_S = (
    30.0  # a refused slave comes back every few seconds; when it no longer does, nothing is shown of it
)
# A broker whose beat is older tells members nothing any more. It beats every half second, and one beat may be
# late by as much. Longer stalls cost frames without a body: followers wait for 2 s and more after that.
LEADER_BEAT_MAX_NS = 1_000_000_000
# An elected leader tells members nothing either when for so long too few of them have reported: they would
# not look for another one while a cut lets its frames through, and not their reports. No longer than the
# first of them waits (`broker/elections/pre_vote.py` LEAST_SILENT_S): whom they ask must know by then.
QUORUM_S = 2.0
MASTER = 1  # what the page's `replica_role` says of a leader's replicator
ASYNC = 2  # what its `broker_flush` says of a broker that counts what it has written
BROKER_APART_S = 0.1  # between two looks whether the broker of an elected leader lives
REPEAT_S = 60.0  # the same refusal is logged once in so long, as is that there is no room


class NotServed(RemoteProtocolError):
    """A member asks for what this master can't give it."""

    reason = "MEMBER_NOT_SERVED"


class AckTimer(Protocol):
    """Measures how long acknowledgements take."""

    def written(self, end: int, now: float) -> None:
        """Note where the log ends."""

    def acknowledged(self, offset: int, now: float) -> None:
        """Note what a slave has acknowledged."""


class Feeder:
    """Listener, connections, and the log they are fed from.

    Attributes:
        port: the bound port.
        epoch: of the log that the connections are fed from; 0 while there is none. After `after_epoch` was
            given, that one until the broker recovers the log.
        busy: there is more to send at once; a slave had its share of the turn.
        majority: the broker beside wants the group to commit by majority.
        leading: besides, it has begun its epoch in the log as it is now.
    """

    def __init__(
        self,
        loop: Loop,
        options: ReplicatorOptions,
        *,
        after_epoch: int = 0,
        promises: Promises | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Listen; slaves are let in once the log has an epoch.

        Args:
            after_epoch: of the log that this process wrote itself, 0 when it did not. That epoch is over.
            promises: of this member, where the group elects.
        """
        self.loop, self.page, self.options = loop, loop.page, options
        self.clock = clock
        self.root = Path(options.store)
        self.listener = loop.network.listen(options.host, options.port)
        self.port: int = self.listener.getsockname()[1]
        self.connections: dict[int, SlaveConnection] = {}  # by slot
        self.silent: list[SlaveConnection] = []  # those without a slot, the one that waits longest first
        self.connected_at_ms = 0  # of the newest slot: each has another
        self.full_logged_at = float("-inf")
        self.log: LogReader | None = None
        self.epoch = after_epoch
        self.begin = self.end = self.commit = self.commit_saw = 0
        self.majority = self.leading = False
        self.elected, self.promises = options.role == "elected", promises
        self.led_since = 0.0  # when the broker had begun its epoch
        self.quorum = True  # enough voters report
        self.broker_lives, self.broker_looked_at = True, float("-inf")
        self.epoch_file = EpochFile(self.root, loop.machine.files)
        self.busy = self.acks_moved = False
        self.sent_bytes = 0  # to all slaves, since the start
        self.ack_timer: AckTimer | None = None  # set where metrics are on
        self.trouble_at = self.logged_at = float("-inf")
        self.logged = ""
        self.traces: FeederTraces | None = None
        if options.trace_to:
            from whimbrel.replicator import tracing  # OpenTelemetry is slow to load, and large

            self.traces = tracing.FeederTraces(options, self.page)
        self.page.clear_slaves()
        self.page.fed_epoch = self.page.quorum_lost = 0
        self.page.connected = 0
        self.page.trouble = ""
        self.page.ha_host = advertised_host(options.advertise_host, options.host)
        self.page.ha_port = self.port

    def step(self, now: float) -> None:
        """Do what the marks and the timers ask for."""
        if self.page.epoch != self.epoch:
            self.change_epoch()
        self.begin, self.end = self.page.begin, self.page.written
        self.majority = self.page.ha_dialect == DIALECT
        if self.elected and now - self.broker_looked_at >= BROKER_APART_S:
            self.broker_looked_at, self.broker_lives = now, self.loop.bell.answers("broker")
        if self.majority or self.leading:
            self.look_at_leader()
        if self.ack_timer is not None:
            self.ack_timer.written(self.end, now)
        if self.promises is not None and self.leading:
            self.promises.note(self.end if self.page.broker_flush == ASYNC else self.page.flushed, now)
        self.busy = self.send_all(now)
        if self.acks_moved:
            self.acks_moved = False
            self.loop.ring_broker()
        if self.traces is not None:
            self.traces.end_turn(self.end)

    def idle(self) -> bool:
        """Whether the marks are as they were."""
        page = self.page
        return (
            page.written == self.end
            and page.epoch == self.epoch
            and not self.acks_moved
            and not (self.majority and self.leader_moved())
        )

    def wait_timeout(self, now: float) -> float:
        """Return how long nothing is due."""
        if self.busy:
            return 0.0
        deadlines = [connection.deadline for connection in self.connections.values()]
        deadlines += [connection.accepted_at + SILENT_S for connection in self.silent[:1]]
        deadlines += [one.deadline for one in self.silent if one.member is not None]
        return max(min(deadlines, default=now + WAKE_POLL_S) - now, 0.001)

    def steady(self) -> bool:
        """Whether there is nothing to do but to send what the log grows by, and to take reports."""
        return (
            self.traces is None
            and self.majority == (self.page.ha_dialect == DIALECT)
            and not self.silent
            and not self.busy
            and not self.acks_moved
            and self.page.epoch == self.epoch
            and all(connection.steady for connection in self.connections.values())
            and (not self.majority or self.leads_steadily())
        )

    def leads_steadily(self) -> bool:
        """Whether members hear that the leader lives, and observers get what is committed in its epoch."""
        page, commit = self.page, self.page.commit
        observers = [one.core for one in self.connections.values() if one.member is None]
        return (
            self.leading
            and page.leader_log == self.epoch
            and (not self.elected or page.replica_role == MASTER)
            and self.quorum
            and self.beats()
            and (not observers or commit >= page.leader_start)
            and all(core.next_offset <= commit for core in observers)
        )

    def run_lane(self, now: float) -> bool:
        """See `Worker`."""
        return feed(self, now)

    def change_epoch(self) -> None:
        """Start to feed a recovered log, or stop feeding one that is being recovered."""
        epoch = self.page.epoch
        if self.log is not None:
            logger.info("the log is being recovered again: closing %d connections", len(self.connections))
        for connection in self.everybody():
            self.drop(connection, "the log was recovered again")
        if self.log is not None:
            self.log.close()
            self.log = None
        self.epoch = self.page.fed_epoch = epoch
        if epoch:
            self.log = LogReader.open(self.root, page=self.page, machine=self.loop.machine)
            logger.info("feeding the log [%d, %d), epoch %d", self.page.begin, self.page.written, epoch)
            if self.traces is not None:
                self.traces.recovered(self.log.read, self.page.written, self.log.file_size)
        self.loop.watch(self.listener, selectors.EVENT_READ if epoch else 0, self.accept)

    def leader_moved(self) -> bool:
        """Whether the broker has begun its epoch, or has moved the commit offset."""
        page = self.page
        return (
            page.commit != self.commit
            or page.commit_saw != self.commit_saw
            or (page.leader_log == self.epoch and self.broker_lives) != self.leading
        )

    def look_at_leader(self) -> None:
        """Take what the broker says of its epoch and of the commit offset."""
        page = self.page
        leading = self.majority and bool(self.epoch) and page.leader_log == self.epoch and self.broker_lives
        if self.leading and not leading:
            for connection in self.everybody():
                if connection.member is not None:
                    self.drop(connection, "the broker beside leads no longer")
        if leading and not self.leading:
            self.led_since = self.clock()
        self.leading, self.commit_saw = leading, page.commit_saw
        self.commit = page.commit  # not before: it may be later than what the broker saw then, never earlier

    def beats(self) -> bool:
        """Whether the broker beside has beaten lately: members must not take a hanging one for idle."""
        return self.loop.machine.monotonic_ns() - self.page.broker_beat_ns < LEADER_BEAT_MAX_NS

    def quorum_rules(self) -> tuple[int, float, int]:
        """Return how old the broker's beat may be, in ns; how old a report, in s; and from how many other
        members there must be one, 0 where leaders are not elected."""
        needed = 0
        if self.elected:
            voters = (self.page.voter_bits % (1 << 64)).bit_count()  # the cell is signed
            needed = max(voters // 2 + 1 - self.page.is_voter(self.options.id), 0)
        return LEADER_BEAT_MAX_NS, QUORUM_S, needed

    def look_for_quorum(self, now: float) -> None:
        """See whether enough voters have reported lately that an elected leader may go on to beat."""
        heard = {
            one.member.member
            for one in self.connections.values()
            if one.member is not None and one.member.counts and now - one.member.received_at < QUORUM_S
        }
        _, _, needed = self.quorum_rules()
        self.quorum = len(heard) >= needed or now - self.led_since < QUORUM_S
        if self.page.quorum_lost == self.quorum:
            self.page.quorum_lost = not self.quorum

    def accept(self, _: int) -> None:
        """Accept connections."""
        for _ in range(ACCEPTS_MAX):
            try:
                sock, address = self.listener.accept()
            except BlockingIOError:
                return
            except OSError as error:  # out of descriptors, or the peer was faster to leave than we to accept
                logger.warning("a connection could not be accepted: %s", error)
                return
            self.add_slave(sock, named(address))

    def everybody(self) -> list[SlaveConnection]:
        """Return all connections, those with a slot first."""
        return [*self.connections.values(), *self.silent]

    def add_slave(self, sock: socket.socket, peer: str) -> None:
        """Take a new connection, which has to report before it gets a slot."""
        assert self.log is not None
        if len(self.silent) >= SILENT_MAX and not self.make_room(host_of(peer)):
            self.turned_away(peer, f"{SILENT_MAX} connections that report nothing are there already")
            sock.close()
            return
        try:
            tune(sock)
        except OSError as error:
            logger.info("slave %s left at once: %s", peer, error)
            sock.close()
            return
        now = self.clock()
        core = MasterProtocol(
            file_size=self.log.file_size,
            frame_bytes_max=self.options.frame_bytes_max,
            first_offset=self.options.first_offset,
            now=now,
            heartbeat_s=self.options.heartbeat_ms / 1000,
            silence_s=self.options.housekeeping_ms / 1000,
        )
        connection = SlaveConnection(self.loop.network, sock, peer, core, accepted_at=now)
        self.silent.append(connection)
        self.loop.watch(sock, selectors.EVENT_READ, lambda mask: self.ready(connection, mask))
        logger.debug("%s connected", peer)

    def make_room(self, host: str) -> bool:
        """Close a connection that has reported nothing, for a new one from `host`; return whether one was."""
        known, now = set(self.page.known_hosts), self.clock()
        strangers = [one for one in self.silent if host_of(one.peer) not in known]
        victim = (strangers or self.silent)[0]
        waited = now - victim.accepted_at
        if waited < DISPLACED_AFTER_S and (host not in known or not strangers):
            return False
        self.drop(victim, f"it reported nothing for {waited:.1f} s, and another one wants the place")
        return True

    def give_slot(self, connection: SlaveConnection) -> bool:
        """Give a connection that has reported a slot; return whether there is one for it."""
        host = host_of(connection.peer)
        known = Counter(self.page.known_hosts)
        if host in known or connection.member is not None:
            if len(self.connections) == SLAVES_MAX:
                self.clear_slot(host, known)
            kept = 0
        else:
            kept = (known - Counter(host_of(one.peer) for one in self.connections.values())).total()
        free = [slot for slot in range(SLAVES_MAX) if slot not in self.connections]
        if len(free) <= kept:
            others = f", {kept} slots are kept for slaves that the broker knows" if kept else ""
            self.turned_away(connection.peer, f"{len(self.connections)} are connected already{others}")
            return False
        self.silent.remove(connection)
        slot = connection.slot = free[0]
        self.connections[slot] = connection
        self.connected_at_ms = max(self.loop.machine.wall_ms(), self.connected_at_ms + 1)
        connection.connected_at_ms = self.connected_at_ms
        self.page.set_slave(slot, connection.peer, self.connected_at_ms)
        if connection.member is not None and connection.member.counts:
            self.page.set_member(slot, connection.member.member)
        if self.traces is not None:
            self.traces.connected(connection)
        return True

    def clear_slot(self, host: str, known: Counter[str]) -> None:
        """Close a connection in favour of a member's or a known host's, if one is there that matters less."""
        everybody = [one for one in self.connections.values() if one.member is None]
        strangers = [one for one in everybody if host_of(one.peer) not in known]
        before = [one for one in everybody if host_of(one.peer) == host]
        if strangers:  # one that has proven nothing rather than one that has, then the newest
            victim = min(strangers, key=lambda one: (one.proven, -one.connected_at_ms))
        elif before:  # half open, probably
            victim = min(before, key=lambda one: one.core.received_at)
        else:
            return
        self.drop(victim, "its slot is needed for a slave that the broker knows")

    def turned_away(self, peer: str, why: str) -> None:
        """Log that there is no room for a connection, now and then."""
        now = self.clock()
        repeated = now - self.full_logged_at < REPEAT_S
        if not repeated:
            self.full_logged_at = now
        logger.log(logging.DEBUG if repeated else logging.WARNING, "slave %s refused: %s", peer, why)

    def ready(self, connection: SlaveConnection, mask: int) -> None:
        """A slave has reported, left, or takes more."""
        if mask & selectors.EVENT_WRITE:
            self.set_blocked(connection, blocked=False)
        if not mask & selectors.EVENT_READ:
            return
        self.take(connection)

    def take(self, connection: SlaveConnection, data: bytes = b"") -> None:
        """Take what a slave has sent: `data`, or what the socket has."""
        # A report may be about what was written after this turn began: the marks are read anew.
        begin, end, now = self.page.begin, self.page.written, self.clock()
        try:
            data = data or connection.read()
            if connection.slot < 0:
                data = self.choose_dialect(connection, data)
            if not data:
                return
            moved = connection.take(data, begin=begin, end=end, now=now)
            if connection.member is not None and connection.member.asked and self.leading:
                self.answer(connection, now)
            if not moved:
                return
        except PeerError as error:
            self.fail(connection, error)
        else:
            if connection.slot < 0:
                self.begin_feeding(connection)
            if connection.slot >= 0:
                self.reported(connection)

    def choose_dialect(self, connection: SlaveConnection, data: bytes) -> bytes:
        """Give a connection that begins as a member's does the core for it; return what its core is to take.

        Raises:
            NotServed: it is a member's, and this is no group of members.
        """
        head = connection.core.partial + data
        if connection.member is not None or head[: len(MAGIC_BYTES)] != MAGIC_BYTES:
            return data
        if not self.majority:
            raise NotServed(
                "it speaks as a member of a group that commits by majority, but this master does not; set"
                " replication=majority here, or sync or async there"
            )
        assert self.log is not None
        connection.core = SwitchingMaster(
            file_size=self.log.file_size,
            frame_bytes_max=self.options.frame_bytes_max,
            first_offset=self.options.first_offset,
            now=self.clock(),
            silence_s=self.options.housekeeping_ms / 1000,
            group=bytes.fromhex(self.page.group) if self.elected and self.page.group else NOBODY,
        )
        return head

    def answer(self, connection: SlaveConnection, now: float) -> None:
        """Answer a member's handshake, as its only connection.

        Raises:
            NotServed: it can't be answered.
            ConnectionClosed: it is gone.
        """
        core, page = connection.member, self.page
        assert core is not None
        assert self.log is not None
        voter = page.is_voter(core.member)
        if self.elected and not (voter and core.preface.seat.hex() == page.seat_of(core.member)):
            core.counts = False  # who does not vote, or has another disk than the voter (R9a), is fed only
            logger.info("member %d does not vote with the store that it has: it only follows", core.member)
        if core.counts and not voter:
            raise NotServed(
                f"member {core.member} is none of the voters of this group; name it among the master's"
                " voters, or give it the id of one that is gone"
            )
        begun = page.leader_epoch, page.leader_start
        if core.counts and core.preface.promised > begun[0]:
            page.higher_epoch = max(page.higher_epoch, core.preface.promised)
            self.loop.ring_broker()
        try:
            epochs = self.epoch_file.load()
        except StoreError as error:
            raise NotServed(str(error)) from error
        if epochs[-1:] != (begun,):
            raise NotServed(f"our list of epochs does not end with epoch {begun[0]} from {begun[1]} on")
        for other in self.everybody():
            if other is not connection and other.member is not None and other.member.member == core.member:
                self.drop(other, f"member {core.member} has a new connection")
        core.answer(epochs, end=page.written, now=now)
        self.send(connection, now)

    def begin_feeding(self, connection: SlaveConnection) -> None:
        """Serve a connection that has said where its log ends."""
        core = connection.core
        if not self.give_slot(connection):
            self.drop(connection, "there is no slot for it", level=logging.DEBUG)
            return
        logger.info(
            "slave %s, slot %d, has the log up to %d, is fed from %d; ours is [%d, %d)",
            connection.peer,
            connection.slot,
            core.acknowledged,
            core.next_offset,
            self.page.begin,
            self.page.written,
        )

    def reported(self, connection: SlaveConnection) -> None:
        """Publish what a slave has reported."""
        offset = connection.core.acknowledged
        self.page.set_ack(connection.slot, offset)
        self.acks_moved = True
        if not connection.proven:
            if not connection.core.proven:
                return
            connection.proven = True
            self.page.set_proven(connection.slot)  # after what it reported: the report before is none
        if self.traces is not None:
            self.traces.acknowledged(connection, offset)
        if self.ack_timer is not None:
            self.ack_timer.acknowledged(offset, self.clock())

    def send_all(self, now: float) -> bool:
        """Send every slave what it lacks; return whether there is more to send at once."""
        busy = False
        if self.log is None:
            return busy
        while self.silent and now - self.silent[0].accepted_at > SILENT_S:
            self.drop(self.silent[0], f"it reported nothing for {SILENT_S:.0f} s")
        if self.majority:
            self.serve_handshakes(now)
            if self.elected:
                self.look_for_quorum(now)
        for connection in list(self.connections.values()):
            try:
                connection.core.check_silence(now)
                if connection.blocked:
                    continue
                busy |= self.send(connection, now)
            except PeerError as error:
                self.fail(connection, error)
            except IllegalOffset as error:
                self.drop(connection, str(error))
            except StoreError as error:
                logger.error("slave %s: %s", connection.peer, error)
                self.drop(connection, str(error))
        if now - self.trouble_at > TROUBLE_S and self.trouble_at > 0:
            self.trouble_at = float("-inf")
            self.page.trouble = ""
        return busy

    def send(self, connection: SlaveConnection, now: float) -> bool:
        """Send a slave what it lacks; return whether there is more to send at once.

        Raises:
            PeerError: it is gone, or retention has removed what it needs.
            StoreError, IllegalOffset: the log can't be read.
        """
        assert self.log is not None
        end = self.end
        if self.majority:
            end = self.end_for(connection)
            if connection.held:
                return False
        before = connection.sent_bytes
        result = connection.send(self.log, begin=self.begin, end=end, now=now)
        if connection.sent_bytes != before:
            self.sent_bytes += connection.sent_bytes - before
            if connection.slot >= 0:
                self.page.set_sent(connection.slot, connection.core.next_offset, connection.sent_bytes)
        if result is SendResult.BLOCKED:
            self.set_blocked(connection, blocked=True)
        return result is SendResult.BUSY

    def end_for(self, connection: SlaveConnection) -> int:
        """Return up to where a connection may be sent the log in a group that commits by majority.

        An observer's is held where nothing is committed that it lacks, until the leader commits in its own
        epoch: what it was sent before may lie beyond the commit offset that the leader begins with, and a
        heartbeat would say that the log ends there.
        """
        core = connection.member
        if core is not None:
            seen = 0 < connection.connected_at_ms <= self.commit_saw  # R11b
            core.lead(commit=self.commit if seen else -1, beating=self.beats() and self.quorum)
            return self.end
        end = min(self.end, self.commit)
        begun = self.leading and self.commit >= self.page.leader_start
        idle = connection.core.next_offset >= end and not connection.head and not connection.body_left
        connection.held = not self.leading or (idle and not begun)
        connection.core.end_told |= not begun  # nor does a heartbeat follow what is sent
        return end

    def serve_handshakes(self, now: float) -> None:
        """Answer members that asked before the broker's epoch began; close those that take too long."""
        for connection in list(self.silent):
            core = connection.member
            if core is None or connection not in self.silent:  # to answer one may have closed another
                continue
            try:
                core.check_silence(now)
                if core.asked and self.leading:
                    self.answer(connection, now)
                elif connection.head and not connection.blocked:
                    self.send(connection, now)
            except PeerError as error:
                self.fail(connection, error)

    def set_blocked(self, connection: SlaveConnection, *, blocked: bool) -> None:
        """Wait for a socket to take more, or no longer."""
        connection.blocked = blocked
        events = selectors.EVENT_READ | (selectors.EVENT_WRITE if blocked else 0)
        self.loop.watch(connection.sock, events, lambda mask: self.ready(connection, mask))

    def fail(self, connection: SlaveConnection, error: PeerError) -> None:
        """Disconnect a slave that has left or broken the protocol, or that can't be served."""
        handshake = connection.slot < 0 and connection.member is not None
        if isinstance(error, OutOfRange):
            self.refuse(connection, error)
        elif isinstance(error, NotServed) or (handshake and isinstance(error, RemoteProtocolError)):
            self.not_served(connection, error)
        else:
            self.drop(connection, str(error))

    def refuse(self, connection: SlaveConnection, error: OutOfRange) -> None:
        """Disconnect a slave whose log is not a part of ours, and show people why."""
        host, known = host_of(connection.peer), self.page.known_hosts
        if error.ahead:
            self.page.refused_count += 1
            if not known or host in known:  # nobody else may take the place of what a slave has to say
                self.page.refused_peer = host
                self.page.refused_offset = error.offset
                self.page.refused_at_ns = self.loop.machine.monotonic_ns()
            self.loop.ring_broker()
        member = connection.member
        if member is not None and not error.ahead and self.page.group and member.member > 0:
            command = f"whimbrel replication reinit {self.page.broker_name} --member {member.member}"
            error = OutOfRange(f"{error}: `{command}` does that", offset=error.offset, end=error.end)
        self.not_served(connection, error)

    def not_served(self, connection: SlaveConnection, error: PeerError) -> None:
        """Disconnect a slave, and show people why."""
        text, now = f"slave {host_of(connection.peer)} refused: {error}", self.clock()
        self.page.trouble, self.trouble_at = text, now
        repeated = text == self.logged and now - self.logged_at < REPEAT_S
        if not repeated:
            self.logged, self.logged_at = text, now
        logger.log(logging.DEBUG if repeated else logging.WARNING, "%s", text)
        self.drop(connection, "refused", level=logging.DEBUG)

    def drop(self, connection: SlaveConnection, why: str, *, level: int = logging.INFO) -> None:
        """Close a connection."""
        self.loop.watch(connection.sock, 0, self.accept)
        with contextlib.suppress(OSError):
            connection.sock.close()
        if self.traces is not None:
            self.traces.disconnected(connection)
        if connection.slot < 0:
            self.silent.remove(connection)
            logger.log(level, "connection of %s closed: %s", connection.peer, why)
            return
        del self.connections[connection.slot]
        acknowledged = connection.core.acknowledged
        self.page.set_slave(connection.slot, "", 0)
        self.acks_moved = True  # the broker counts the slaves
        logger.log(level, "slave %s gone: %s; it had acknowledged %d", connection.peer, why, acknowledged)

    def close(self, why: str) -> None:
        """Close everything."""
        for connection in self.everybody():
            self.drop(connection, why)
        self.loop.watch(self.listener, 0, self.accept)
        self.listener.close()
        self.page.ha_port = 0
        self.loop.ring_broker()
        if self.log is not None:
            self.log.close()
            self.log = None
        if self.traces is not None:
            self.traces.close()
