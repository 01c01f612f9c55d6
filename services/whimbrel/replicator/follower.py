"""The slave's side: takes the master's log into ours and reports how far it has come.

One turn: large reads for as long as they bring much, the whole frames in each appended with one write, the
`written` mark moved; then one report of the newest end. With `flush="sync"` a report acknowledges what
fdatasync has confirmed, and one sync serves all frames that came in meanwhile. The broker beside is rung
after the report, and at most every `RING_INTERVAL_MIN_S`: nobody's acknowledgement waits for its queues, and
larger pieces of log cost it less a record.

    IDLE        no address known, or waiting before the next attempt
    CONNECTING  the socket is not connected yet, for up to 5 s
    STREAMING   the first report is out
    STALLED     the disk has no room: nothing is read, reports are repeated; tried again every half second

Any end of a connection leads back to IDLE, for as long as `ReconnectBackoff` says. What is asked for,
compared, appended and reported is decided by `SlaveProtocol`, where the comparison starts by `overlap.py`. A
master that the broker named must show the end of our log first; one that is named by `master_ha`, one of
RocketMQ's perhaps, gets the reports that a slave of RocketMQ's would send, unless the setting `compare_bytes`
asks for more. One whose log ends before ours is told our end over the next connection.

When the broker beside says so in the page (`ha_dialect`), the connection speaks the members' dialect
(`ha/switching.py`), and `SwitchingSlave` decides. Then the list of epochs is on disk before an end is
reported that has reached another epoch, and the page shows the leader's commit offset, as far as our log
goes.

**Where the group elects its leader**, `promises.py` says whom this member may follow. It connects to a leader
whose epoch it has promised to follow, or may, which it puts on disk before it says anything; the broker
beside names the leader's address, epoch and member id. When the broker asks for another promise, the stream
is closed first. A log that goes on differently than the leader's is kept aside and cut: the seat says so on
disk, then the role starts anew (`roles.py`). Nothing below what is known to be committed is ever cut.

The role opens the log, and with that locks and recovers it (`roles.py`).
"""

import contextlib
import errno
import logging
import selectors
import socket
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from whimbrel.errors import (
    ConnectionClosed,
    NotWritable,
    PeerError,
    RemoteProtocolError,
    StoreError,
    StoreFull,
)
from whimbrel.ha.backoff import ReconnectBackoff
from whimbrel.ha.epochs import Epochs, reached
from whimbrel.ha.frames import FRAME_HEADER
from whimbrel.ha.protocol import (
    COMPARE_BYTES,
    Append,
    Compare,
    FrameReceived,
    ShorterMaster,
    SlaveEvent,
    SlaveProtocol,
)
from whimbrel.ha.switching import DIALECT, MEMBER_HEADER_BYTES, NOBODY, Diverged, Preface, SwitchingSlave
from whimbrel.model.route import Endpoint
from whimbrel.replicator.buffers import AppendBuffer, ReceiveBuffer
from whimbrel.replicator.lane_turns import follow
from whimbrel.replicator.loop import Loop
from whimbrel.replicator.options import ReplicatorOptions
from whimbrel.replicator.overlap import overlap_start
from whimbrel.replicator.promises import Promises, Repair
from whimbrel.replicator.sockets import named, tune
from whimbrel.store.commitlog import LogWriter
from whimbrel.store.epoch_file import EpochFile
from whimbrel.wakeup import WAKE_POLL_S

if TYPE_CHECKING:
    from whimbrel.replicator.tracing import FollowerTraces

__all__ = ["Follower"]

logger = logging.getLogger(__name__)

TURN_BYTES_MAX = 4 << 20  # read before the next report
CONNECT_S = 5.0  # RocketMQ's
FULL_RETRY_S = 0.5
RETENTION_S = 10.0  # RocketMQ's cleanResourceInterval
MASTER = 1  # what the page's `replica_role` says of a leader's replicator
RING_INTERVAL_MIN_S = 0.001  # between two rings for the broker beside while the log grows


class Follower:
    """The connection to the master and the log it goes into.

    Attributes:
        log: ours to write, open and recovered.
        core: of the current connection, None while there is none.
        appended_end: end of the last whole frame that was appended over this connection, -1 before the first.
    """

    def __init__(
        self,
        loop: Loop,
        options: ReplicatorOptions,
        log: LogWriter,
        *,
        promises: Promises | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.loop, self.page, self.options, self.log = loop, loop.page, options, log
        self.root = Path(options.store)
        self.promises = promises
        self.leader = (0, 0)  # epoch and member id of the leader that is followed, where one is elected
        self.promise_at = 0.0  # when to try again to make a promise that the log could not be synced for
        self.clock = clock
        self.sync = options.flush == "sync"
        self.epoch_file = EpochFile(Path(options.store), loop.machine.files)
        self.dialect = self.page.ha_dialect  # of the present or the last connection
        self.buffer = ReceiveBuffer()
        self.bodies = AppendBuffer()
        self.sock: socket.socket | None = None
        self.core: SlaveProtocol | None = None
        self.accepted = False  # the core has accepted this master, and the page shows it
        self.address = ""  # the master's, as configured or told; what the socket was opened for
        self.peer = ""
        self.attempts = 0
        self.backoff = ReconnectBackoff()
        self.connect_until = 0.0
        self.telling = False  # the next connection tells a master with a shorter log where ours ends
        self.appended_bytes = 0  # since the start
        self.pending: Iterator[SlaveEvent] | None = None  # stalled: what is still to be taken from the buffer
        self.event: SlaveEvent | None = None  # stalled: the one that could not be dealt with
        self.stalled = False
        self.append_at = 0.0  # stalled: when to try again
        self.unsent = b""  # the rest of a report that the socket did not take whole
        self.appended_end = -1
        self.retention_at = self.clock()  # by the first round the broker has been told what the leader keeps
        self.ring_due = False  # the log has grown since the broker was rung
        self.rung_at = float("-inf")
        self.logged = ""
        self.traces: FollowerTraces | None = None
        if options.trace_to:
            from whimbrel.replicator import tracing  # OpenTelemetry is slow to load, and large

            self.traces = tracing.FollowerTraces(options, self.page, log.read, log.end, log.file_size)
        self.page.ha_port = 0
        self.page.clear_slaves()
        self.page.connected = 0
        self.page.local_ha = ""
        self.page.trouble = ""
        self.page.heard_epoch = self.page.heard_commit = 0  # our log may have been cut since
        self.page.quorum_lost = 0
        log.on_flushed = self.flushed
        log.on_failed = loop.wake
        log.before_removal = self.before_removal
        if promises is not None:
            promises.opened(
                end=log.end,
                clean=log.was_clean,
                last_epoch=self.last_epoch(),
                doubtful=log.was_doubtful,
            )

    def step(self, now: float) -> None:
        """Do what is due.

        Raises:
            StoreError: the disk refused a sync, and what it covered can't be written again without a restart.
        """
        log = self.log
        if log.failed:
            self.mend_log()
        log.publish()
        if self.promises is not None and self.promises.asked_to_empty:
            self.empty(self.promises)
        if self.promises is not None and self.promises.asked and now >= self.promise_at:
            self.promise(self.promises, now)
        if self.promises is not None:
            self.promises.note(self.core.reported if self.core is not None else 0, now)
        if now - self.retention_at > RETENTION_S:
            self.retention_at = now
            log.run_retention(self.loop.machine.wall_ms())
        try:
            if self.sock is not None and self.master_changed():
                raise ConnectionClosed("the master has another address now")
            if self.sock is not None and self.promises is not None and self.leader != self.page.elected:
                raise ConnectionClosed("another leader is named now")
            if self.sock is not None and self.other_file_size:
                self.refuse_file_size()
            if self.sock is not None and self.page.ha_dialect != self.dialect:
                raise ConnectionClosed("the broker beside wants another dialect now")
            if self.core is not None:
                if self.pending is not None and now >= self.append_at:
                    self.take(now)
                self.send_reports(now)
                if self.pending is None:
                    self.core.check_silence(now)
                else:
                    self.stay()
            elif self.sock is not None:
                if now > self.connect_until:
                    raise ConnectionClosed(f"no connection within {CONNECT_S:.0f} s")
            elif now >= self.backoff.retry_at or self.master_changed():
                self.connect(now)
        except PeerError as error:
            self.fail(error, now)
        if self.ring_due and now - self.rung_at >= RING_INTERVAL_MIN_S:
            self.ring_due, self.rung_at = False, now
            self.loop.ring_broker()

    @property
    def other_file_size(self) -> bool:
        """Whether the master's log has files of another size, as far as that is told."""
        return self.page.leader_file_size not in (0, self.log.file_size)

    def refuse_file_size(self) -> None:
        """Follow no master whose log has files of another size: its blanks would stand within our files.

        Raises:
            RemoteProtocolError: always.
        """
        theirs, log = self.page.leader_file_size, self.log
        raise RemoteProtocolError(
            f"its log has files of {theirs} bytes, ours of {log.file_size}: move this store away, and begin"
            f" with an empty one and --commitlog-file-size {theirs}"
        )

    def before_removal(self, begin: int) -> int:
        """Return below which offset retention may remove files (spec R20, R21).

        What the leader keeps stays here as well (`broker/cluster/kept_log.py`): it stores what still waits
        again before it removes a file, and who leads next needs one or the other. Nothing goes before the
        leader has said where its log begins. Nor does what is not committed, where a majority commits: that
        may still be cut, and a log that begins behind where it is to be cut follows nobody.
        """
        page = self.page
        told = page.leader_begin > 0
        if not told and self.promises is None and self.options.master_ha:
            return begin
        committed = max(page.heard_commit, page.confirmed) if page.ha_dialect == DIALECT else begin
        return min(begin, page.leader_begin - 1 if told else 0, committed)

    def empty(self, promises: Promises) -> None:
        """Have the seat say that the store is to be emptied; the role does it.

        Raises:
            Repair: it is to be done now.
            StoreError: the disk refuses.
        """
        self.disconnect("this store is to be emptied", logging.WARNING)
        promises.intend_emptying()
        raise Repair("an operator has asked for it: this store is emptied, and follows anew")

    def last_epoch(self) -> int:
        """Return the last epoch that our log is in, 0 for none.

        Raises:
            StoreError: the list of epochs can't be read.
        """
        known = reached(self.epoch_file.load(), self.log.end)
        return known[-1][0] if known else 0

    def promise(self, promises: Promises, now: float) -> None:
        """Make the promise that the broker asks for, if it may be made.

        Raises:
            StoreError: the disk refuses.
        """
        asked = self.page.promise
        if not promises.may_promise(*asked):
            promises.refused = asked
        elif self.keep_promise(promises, *asked):
            self.backoff.reset()
        else:
            self.promise_at = now + FULL_RETRY_S
        self.loop.ring_broker()

    def keep_promise(self, promises: Promises, epoch: int, candidate: int) -> bool:
        """Put a promise on disk, with our log at rest; return False where that can't be synced now.

        Raises:
            StoreError: the disk refuses the promise.
        """
        log = self.log
        if not promises.holds(epoch, candidate):
            if self.sock is not None:
                self.disconnect(f"epoch {epoch} is promised to member {candidate}", logging.INFO)
            if self.sync and not log.failed:
                log.flush()
            if log.failed:
                return False
            log.publish()
        end = log.flushed if self.sync else log.end
        promises.promise(epoch, candidate, last_epoch=self.last_epoch(), end=end, flushed=log.flushed)
        return True

    def may_connect(self) -> bool:
        """Return whether the leader that the broker names may be followed; the promise is on disk then.

        Raises:
            StoreError: the disk refuses.
        """
        if self.promises is None:
            return True
        self.leader = self.page.elected
        return self.promises.may_follow(*self.leader) and self.keep_promise(self.promises, *self.leader)

    def mend_log(self) -> None:
        """Get over a failed sync of the log; until then nothing is appended, and nothing new acknowledged.

        Raises:
            StoreError: only a restart can.
        """
        log = self.log
        if log.lost:
            raise StoreError(log.failed)
        end = log.end
        log.mend()
        if not log.failed:
            self.show_trouble("")
            if log.end < end:  # within a record, of which no CRC says that its bytes are still right
                self.disconnect(
                    f"the last {end - log.end} bytes of an incomplete record are asked for again",
                    logging.WARNING,
                )
        elif self.page.trouble != log.failed:
            self.show_trouble(log.failed)

    def idle(self) -> bool:
        """Whether neither the broker nor the disk has anything new for us."""
        if self.promises is not None and (
            (self.promises.asked and self.clock() >= self.promise_at)
            or self.leader != self.page.elected
            or self.promises.asked_to_empty
        ):
            return False
        if self.sock is None:
            return not self.master_changed()
        return self.core is None or not self.core.has_grown(self.held)

    def wait_timeout(self, now: float) -> float:
        """Return how long nothing is due."""
        if self.core is not None:
            deadline = self.append_at if self.pending is not None else self.core.deadline
        elif self.sock is not None:
            deadline = self.connect_until
        else:
            deadline = self.backoff.retry_at
        if self.ring_due:
            deadline = min(deadline, self.rung_at + RING_INTERVAL_MIN_S)
        return min(max(deadline - now, 0.001), WAKE_POLL_S)

    def steady(self) -> bool:
        """Whether there is nothing to do but to append what comes, and to report it."""
        core, log = self.core, self.log
        return (
            core is not None
            and self.accepted
            and self.page.ha_dialect == self.dialect
            and not core.body_left
            and not core.header
            and core.end == log.end == self.appended_end
            and (self.sync or core.reported == log.end)
            and self.pending is None
            and not self.unsent
            and self.traces is None
            and not log.failed
            and not self.master_changed()
            and log.end < log.limit
            and (not isinstance(core, SwitchingSlave) or self.follows_steadily(core))
        )

    def follows_steadily(self, core: SwitchingSlave) -> bool:
        """Whether the epoch that our log is in is on disk, and nothing is asked of our promises."""
        promises = self.promises
        settled = promises is None or (
            promises.seat.votes and not promises.asked and self.page.replica_role != MASTER
        )
        return settled and core.vouched and core.to_adopt(self.log.end) is None

    def run_lane(self, now: float) -> bool:
        """See `Worker`."""
        return follow(self, now, RING_INTERVAL_MIN_S)

    def take_received(self, now: float) -> None:
        """Go on with what the lane has left: frames in the buffer, a report that is due."""
        core = self.core
        assert core is not None
        try:
            data = self.buffer.rest()
            if data:
                self.pending = core.receive(data, core.received_at)
                self.take(now)
                if isinstance(core, SwitchingSlave):
                    self.hear(core)
            self.send_reports(now)
        except PeerError as error:
            self.fail(error, now)

    def master_changed(self) -> bool:
        """Whether the broker names another master than the one we know."""
        if self.promises is not None and self.leader != self.page.elected:
            return True
        return not self.options.master_ha and self.page.master_ha not in ("", self.address)

    def connect(self, now: float) -> None:
        """Start to connect, if an address is known."""
        address = self.options.master_ha or self.page.master_ha
        if address != self.address:
            self.address, self.attempts = address, 0
            self.backoff.reset()
        if not self.may_connect() or not address or self.other_file_size:
            self.backoff.retry_at = now + WAKE_POLL_S
            return
        try:
            endpoint = Endpoint.parse(address)
            found = self.loop.network.resolve(endpoint.host, endpoint.port)
        except (ValueError, OSError) as error:
            raise ConnectionClosed(f"{address}: {error}") from error
        family, target = found[self.attempts % len(found)]
        self.attempts += 1
        self.peer = named(target)
        self.sock = self.loop.network.stream(family)
        try:
            tune(self.sock)
            code = self.sock.connect_ex(target)
        except OSError as error:
            raise ConnectionClosed(f"{self.peer}: {error}") from error
        if code not in (0, errno.EINPROGRESS):
            raise ConnectionClosed(f"{self.peer}: {errno.errorcode.get(code, code)}")
        self.connect_until = now + CONNECT_S
        self.dialect = self.page.ha_dialect
        self.loop.watch(self.sock, selectors.EVENT_WRITE, self.connected)

    def connected(self, _: int) -> None:
        """The attempt to connect has ended; when it succeeded, ask for the log."""
        assert self.sock is not None
        now = self.clock()
        code = self.sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
        try:
            if code:
                raise ConnectionClosed(f"{self.peer}: {errno.errorcode.get(code, code)}")
            if self.sync:
                if not self.log.failed:
                    self.log.flush()  # the first report acknowledges all that we have
                if self.log.failed:
                    raise ConnectionClosed(f"our own log can't follow: {self.log.failed}")
            log, self.core = self.log, self.new_core(now)
            self.telling = False
            self.accepted, self.appended_end = False, -1
            logger.info("connected to master %s, asking for the log from %d on", self.peer, log.end)
            self.page.connected = 1
            self.page.local_ha = named(self.sock.getsockname())
            self.loop.ring_broker()  # which tells the master's broker
            self.unsent = self.core.first_report(now)
            self.send_reports(now)
        except PeerError as error:
            self.fail(error, now)

    def new_core(self, now: float) -> SlaveProtocol:
        """Return the core of a new connection, and have the buffer expect its frames.

        Raises:
            ConnectionClosed: our own list of epochs can't be read.
        """
        log, options = self.log, self.options
        silence_s = options.housekeeping_ms / 1000
        if self.dialect != DIALECT:
            core = SlaveProtocol(
                end=log.end,
                file_size=log.file_size,
                now=now,
                start=self.overlap_start(0 if options.master_ha else COMPARE_BYTES),
                telling=self.telling,
                heartbeat_s=options.heartbeat_ms / 1000,
                silence_s=silence_s,
            )
            self.buffer.expect(core.whole, FRAME_HEADER.size)
            return core
        try:
            epochs = reached(self.epoch_file.load(), log.end)
        except StoreError as error:
            text = f"our own log can't follow: {error}"
            self.show_trouble(text)
            raise ConnectionClosed(text) from error
        member = SwitchingSlave(
            end=log.end,
            file_size=log.file_size,
            now=now,
            epochs=epochs,
            member=self.page.broker_id if self.promises is None else options.id,
            preface=self.preface(epochs),
            start=self.overlap_start(COMPARE_BYTES),
            telling=self.telling,
            elected=self.leader[0],
            silence_s=silence_s,
        )
        self.buffer.expect(member.whole, MEMBER_HEADER_BYTES)
        return member

    def preface(self, epochs: Epochs) -> Preface:
        """Return who we are; without elections the last epoch stands for a promise."""
        if self.promises is None:
            return Preface(promised=epochs[-1][0] if epochs else 0)
        seat = self.promises.seat
        group = bytes.fromhex(seat.group) if seat.group else NOBODY
        return Preface(promised=self.leader[0], group=group, seat=bytes.fromhex(seat.uuid))

    def overlap_start(self, usual_bytes: int) -> int:
        """Return from where on the master must show what we hold.

        Args:
            usual_bytes: so much is compared where the settings do not say.
        """
        log, compare_bytes = self.log, self.options.compare_bytes
        if compare_bytes < 0:
            compare_bytes = usual_bytes
        return overlap_start(
            log.read, begin=log.begin, end=log.end, file_size=log.file_size, compare_bytes=compare_bytes
        )

    def ready(self, mask: int) -> None:
        """Bytes have come in, or the socket takes the rest of a report."""
        now = self.clock()
        try:
            if mask & selectors.EVENT_READ and self.pending is None:
                self.receive(now)
            self.send_reports(now)
        except PeerError as error:
            self.fail(error, now)

    def receive(self, now: float) -> None:
        """Read for as long as it brings much, but no more than a turn's share."""
        left = TURN_BYTES_MAX
        while self.pending is None and left > 0:
            count = self.read(now)
            if not count:
                return
            left -= count

    def read(self, now: float) -> int:
        """Read once, take the whole frames; return how many bytes came, 0 when no more are likely there."""
        sock, core = self.sock, self.core
        assert sock is not None
        assert core is not None
        room = self.buffer.room()
        try:
            count = sock.recv_into(room)
        except BlockingIOError:
            return 0
        except OSError as error:
            raise ConnectionClosed(f"{error.strerror}") from error
        if not count:
            raise core.closed(begin=self.log.begin, end=self.log.end)
        core.mark_received(now)
        if not self.accepted:
            self.check_accepted(core)
        data = self.buffer.fill(count, core.body_left)
        if data:
            self.pending = core.receive(data, now)
            self.take(now)
        if isinstance(core, SwitchingSlave):
            self.hear(core)
        return count if self.buffer.missing or count == len(room) else 0

    def take(self, now: float) -> None:
        """Append what was received, as far as the disk has room, and show it to the broker."""
        log = self.log
        before, stalled = log.end, self.stalled
        began_ns = 0 if self.traces is None else time.time_ns()
        try:
            self.append_pending()
            self.pending = None
            self.stalled = False
        except (StoreFull, NotWritable) as error:
            self.stall(error, now)
        except PeerError:
            self.pending = None  # what came before the broken frame is ours all the same
            self.event = None
            with contextlib.suppress(StoreFull, NotWritable):
                self.append_bodies()
            raise
        finally:
            if log.end != before:
                log.publish()
                self.ring_due = True
                if self.sync:
                    log.request_flush(log.end)
                if self.traces is not None:
                    self.traces.appended(log.end, began_ns)
        if self.pending is None and log.end != before:
            self.backoff.reset()
            if stalled and self.core is not None:
                self.core.mark_received(now)  # nothing was read meanwhile
                logger.info("the disk takes more again: the log goes on at %d", before)
                self.show_trouble("")

    def append_pending(self) -> None:
        """Do what the pending events ask for; can be called again after it was stopped by a full disk.

        Bodies that follow each other are collected, so that a read full of RocketMQ's 32 KiB frames becomes
        one write as well.

        Raises:
            StoreFull, NotWritable: the disk takes no more; what is not written is still pending.
            RemoteProtocolError: the master broke the protocol, after what is collected.
        """
        assert self.pending is not None
        bodies, log = self.bodies, self.log
        while True:
            event = self.event = self.event or next(self.pending, None)
            if event is None:
                return self.append_bodies()
            if isinstance(event, FrameReceived):
                bodies.frames_end = event.end
            elif isinstance(event, Append):
                if event.offset % log.file_size == 0:
                    self.append_bodies()
                self.enter_epoch(event.offset)
                if event.data:
                    bodies.add(event.offset, event.data)
                else:
                    log.append_raw(event.offset, event.data)
            else:
                self.compare(event)
            self.event = None

    def enter_epoch(self, offset: int) -> None:
        """Have an epoch on disk before the first byte of it is in the log, else the two would part here.

        Raises:
            StoreFull: the disk takes no more; nothing of the epoch is appended.
        """
        core = self.core
        if isinstance(core, SwitchingSlave) and (epochs := core.to_adopt(offset)) is not None:
            self.append_bodies()
            try:
                self.write_epochs(core, epochs)
            except StoreError as error:
                raise StoreFull(str(error)) from error

    def append_bodies(self) -> None:
        """Append the collected bodies; the frames they end are then to be reported.

        Raises:
            StoreFull, NotWritable: the disk takes no more; they stay collected.
        """
        bodies = self.bodies
        if bodies.data:
            self.log.append_raw(bodies.offset, bodies.data)
            self.appended_bytes += len(bodies.data)
            bodies.appended()
        self.appended_end = max(self.appended_end, bodies.frames_end)

    def compare(self, event: Compare) -> None:
        """Let the core compare what our log has.

        Raises:
            RemoteProtocolError: the master has something else there.
        """
        core = self.core
        assert core is not None
        core.compare(event, self.log.read(event.offset, len(event.data)))
        self.check_accepted(core)

    def check_accepted(self, core: SlaveProtocol) -> None:
        """Withdraw what was shown of the master when the core accepts it: replication works."""
        if core.accepted and not self.accepted:
            self.accepted = True
            self.show_trouble("")

    def hear(self, core: SwitchingSlave) -> None:
        """Show the broker what the leader has said, once our log is known to be a part of its log."""
        self.check_accepted(core)
        if not self.accepted:
            return
        page, commit = self.page, min(core.commit, self.log.end)
        page.heard_epoch = core.leader_epoch
        page.heard_ns = self.loop.machine.monotonic_ns()
        if commit > page.heard_commit:
            page.heard_commit = commit
            self.ring_due = True
        if self.traces is not None:
            self.traces.committed(commit)

    def regain_vote(self, promises: Promises, core: SwitchingSlave) -> None:
        """Vote again once our log, in the leader's epoch, holds all that it has told as committed (R9).

        Raises:
            StoreError: the disk refuses.
        """
        adopted = bool(core.epochs) and core.epochs[-1][0] == core.leader_epoch
        if adopted and 0 <= core.commit <= self.held:
            promises.regain_vote(core.commit)

    def adopt(self, core: SwitchingSlave) -> None:
        """Put the epochs that our log has reached on disk, before an end in them is reported.

        Raises:
            ConnectionClosed: the disk refuses.
        """
        epochs = core.to_adopt(self.log.end)
        if epochs is None:
            return
        try:
            self.write_epochs(core, epochs)
        except StoreError as error:
            self.show_trouble(f"our log can't follow epoch {epochs[-1][0]}: {error}")
            raise ConnectionClosed(str(error)) from error

    def write_epochs(self, core: SwitchingSlave, epochs: Epochs) -> None:
        """Put a list of epochs on disk.

        Raises:
            StoreError: the disk refuses.
        """
        self.epoch_file.save(epochs)
        core.adopt(epochs)
        self.page.last_epoch = epochs[-1][0]
        logger.info("our log is in epoch %d, which starts at %d", *epochs[-1])

    def stall(self, error: StoreFull | NotWritable, now: float) -> None:
        """Stop reading until the disk takes more; TCP makes the master wait."""
        if not self.stalled:
            self.stalled = True
            waits = "replication waits for disk space at"
            if isinstance(error, NotWritable):
                waits = "replication waits for the disk at"
            text = f"{waits} {self.log.end}: {error}"
            logger.error("%s", text)
            self.show_trouble(text)
        self.append_at = now + FULL_RETRY_S

    def stay(self) -> None:
        """Hear the leader while nothing can be read: it lives for us as long as the connection stands.

        What it says waits behind records for which there is no room. To elect another would help nobody:
        this member could not follow that one either.

        Raises:
            ConnectionClosed: it does not stand.
        """
        assert self.sock is not None
        if self.loop.network.ended(self.sock):
            raise ConnectionClosed("the master has closed the connection")
        if self.accepted and self.page.heard_epoch:
            self.page.heard_ns = self.loop.machine.monotonic_ns()

    def show_trouble(self, text: str) -> None:
        """Show people what keeps replication from working; "" when it works."""
        if not text:
            self.logged = ""
        self.page.trouble = text

    def flushed(self, _: int) -> None:
        """More is on disk; called from the flush thread."""
        if self.sync:
            self.loop.wake_flushed()

    @property
    def held(self) -> int:
        """Up to where the log may be acknowledged: what is on disk, or what was appended in whole frames."""
        return self.log.flushed if self.sync else self.appended_end

    def send_reports(self, now: float) -> None:
        """Send what there is to report, and wait for the socket if it does not take it."""
        core, sock = self.core, self.sock
        if core is None or sock is None:
            return
        if isinstance(core, SwitchingSlave):
            self.adopt(core)
            if self.promises is not None and not self.promises.seat.votes:
                self.regain_vote(self.promises, core)
        try:
            while True:
                if not self.unsent:
                    self.unsent = core.next_report(self.held, now)
                if not self.unsent:
                    break
                self.unsent = self.unsent[sock.send(self.unsent) :]
        except BlockingIOError:
            pass
        except OSError as error:
            raise ConnectionClosed(f"{error.strerror}") from error
        events = selectors.EVENT_READ if self.pending is None else 0
        self.loop.watch(sock, events | (selectors.EVENT_WRITE if self.unsent else 0), self.ready)

    def prepare_cut(self, promises: Promises, diverged: Diverged) -> PeerError:
        """Have the seat say that our log is to be cut where it and the leader's part; the role does it.

        Returns:
            Why nothing may be cut.

        Raises:
            Repair: it is to be done now.
            StoreError: the disk refuses.
        """
        log, page = self.log, self.page
        committed = max(page.confirmed, page.heard_commit)
        if not log.begin <= diverged.point or diverged.point < committed:
            return RemoteProtocolError(
                f"our log differs from the leader's from byte {diverged.point} on, and is known to be"
                f" committed up to {committed}: nothing is cut; one of the two stores was replaced by a copy,"
                " or is damaged; keep the one that is right, and start the other member with an empty store"
            )
        self.disconnect(str(diverged), logging.WARNING)
        promises.intend_cut(diverged.point, log.end, theirs=diverged.theirs, why=str(diverged))
        raise Repair(f"{diverged}; they are kept in whimbrel/cut, and cut")

    def fail(self, error: PeerError, now: float) -> None:
        """Close the connection and wait a little before the next attempt.

        Raises:
            Repair: our log is to be cut.
        """
        if self.promises is not None and isinstance(error, Diverged):
            error = self.prepare_cut(self.promises, error)
        core = self.core
        broken = isinstance(error, RemoteProtocolError)
        text = f"master {self.address}: {error}"
        told = core is not None and core.telling  # why has been shown
        news = text != self.logged and not told
        lasting = broken or (core is not None and not core.accepted and not (told and core.answered))
        if not told:
            self.logged = text
            if lasting:
                self.show_trouble(text)
        level = logging.ERROR if broken else logging.WARNING
        self.disconnect(text, level if news else logging.DEBUG)
        self.telling = isinstance(error, ShorterMaster)
        if not self.telling:  # which is done at once: the master must not write before it knows
            self.backoff.failed(now, lasting=lasting)

    def disconnect(self, why: str, level: int) -> None:
        """Close the connection, if there is one; what was received stays."""
        if self.sock is not None:
            self.loop.watch(self.sock, 0, self.ready)
            with contextlib.suppress(OSError):
                self.sock.close()
        self.sock = self.core = self.pending = self.event = None
        self.page.heard_epoch = 0
        self.unsent = b""
        self.stalled = False
        self.bodies.clear()
        self.buffer.clear()
        self.page.connected = 0
        if self.promises is not None:
            self.loop.ring_broker()  # which looks for another leader
        logger.log(level, "%s; our log ends at %d", why, self.log.end)

    def close(self, why: str) -> None:
        """End the connection; the log stays open for its owner to close."""
        self.disconnect(why, logging.INFO)
        if self.traces is not None:
            self.traces.close()
