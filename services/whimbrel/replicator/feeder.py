"""The master's side: feeds the commitlog to up to 16 slaves and publishes what they acknowledge.

The broker moves the page's `written` mark and rings; the feeder sends what is new to every slave, from the
log's files straight into the sockets, and writes their reports into the page. It does not parse the log.

When the page's epoch changes, the broker has recovered the log again and its end may have moved back: all
connections are closed, and slaves come back with their own ends. While the epoch is 0 nobody is let in.
"""

import contextlib
import logging
import selectors
import socket
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from whimbrel.errors import IllegalOffset, PeerError, StoreError
from whimbrel.ha.protocol import MasterProtocol, OutOfRange
from whimbrel.replicator.loop import Loop
from whimbrel.replicator.options import ReplicatorOptions
from whimbrel.replicator.slave_connection import SendResult, SlaveConnection
from whimbrel.replicator.sockets import advertised_host, named, tune
from whimbrel.store.commitlog import LogReader
from whimbrel.store.shared_page import SLAVES_MAX
from whimbrel.wakeup import WAKE_POLL_S

if TYPE_CHECKING:
    from whimbrel.replicator.tracing import FeederTraces

__all__ = ["Feeder"]

logger = logging.getLogger(__name__)

ACCEPTS_MAX = 16  # connections taken in one turn
TROUBLE_S = (
    30.0  # a refused slave comes back every few seconds; when it no longer does, nothing is shown of it
)
REPEAT_S = 60.0  # the same refusal is logged once in so long


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
    """

    def __init__(
        self,
        loop: Loop,
        options: ReplicatorOptions,
        *,
        after_epoch: int = 0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Listen; slaves are let in once the log has an epoch.

        Args:
            after_epoch: of the log that this process wrote itself, 0 when it did not. That epoch is over.
        """
        self.loop, self.page, self.options = loop, loop.page, options
        self.clock = clock
        self.root = Path(options.store)
        self.listener = loop.network.listen(options.host, options.port)
        self.port: int = self.listener.getsockname()[1]
        self.connections: dict[int, SlaveConnection] = {}  # by slot
        self.log: LogReader | None = None
        self.epoch = after_epoch
        self.begin = self.end = 0
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
        self.page.connected = 0
        self.page.trouble = ""
        self.page.ha_host = advertised_host(options.advertise_host, options.host)
        self.page.ha_port = self.port

    def step(self, now: float) -> None:
        """Do what the marks and the timers ask for."""
        if self.page.epoch != self.epoch:
            self.change_epoch()
        self.begin, self.end = self.page.begin, self.page.written
        if self.ack_timer is not None:
            self.ack_timer.written(self.end, now)
        self.busy = self.send_all(now)
        if self.acks_moved:
            self.acks_moved = False
            self.loop.ring_broker()
        if self.traces is not None:
            self.traces.end_turn(self.end)

    def idle(self) -> bool:
        """Whether the marks are as they were."""
        return self.page.written == self.end and self.page.epoch == self.epoch and not self.acks_moved

    def wait_timeout(self, now: float) -> float:
        """Return how long nothing is due."""
        if self.busy:
            return 0.0
        deadlines = [connection.deadline for connection in self.connections.values()]
        return max(min(deadlines, default=now + WAKE_POLL_S) - now, 0.001)

    def change_epoch(self) -> None:
        """Start to feed a recovered log, or stop feeding one that is being recovered."""
        epoch = self.page.epoch
        if self.log is not None:
            logger.info("the log is being recovered again: closing %d connections", len(self.connections))
        for slot in list(self.connections):
            self.drop(slot, "the log was recovered again")
        if self.log is not None:
            self.log.close()
            self.log = None
        self.epoch = epoch
        if epoch:
            self.log = LogReader.open(self.root, page=self.page, machine=self.loop.machine)
            logger.info("feeding the log [%d, %d), epoch %d", self.page.begin, self.page.written, epoch)
            if self.traces is not None:
                self.traces.recovered(self.log.read, self.page.written, self.log.file_size)
        self.loop.watch(self.listener, selectors.EVENT_READ if epoch else 0, self.accept)

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

    def add_slave(self, sock: socket.socket, peer: str) -> None:
        """Give a new connection a slot."""
        assert self.log is not None
        slot = next((slot for slot in range(SLAVES_MAX) if slot not in self.connections), None)
        if slot is None:
            logger.warning("slave %s refused: %d are connected already", peer, SLAVES_MAX)
            sock.close()
            return
        try:
            tune(sock)
        except OSError as error:
            logger.info("slave %s left at once: %s", peer, error)
            sock.close()
            return
        core = MasterProtocol(
            file_size=self.log.file_size,
            frame_bytes_max=self.options.frame_bytes_max,
            first_offset=self.options.first_offset,
            now=self.clock(),
            heartbeat_s=self.options.heartbeat_ms / 1000,
            silence_s=self.options.housekeeping_ms / 1000,
        )
        connection = self.connections[slot] = SlaveConnection(self.loop.network, sock, peer, slot, core)
        self.page.set_slave(slot, peer, self.loop.machine.wall_ms())
        self.loop.watch(sock, selectors.EVENT_READ, lambda mask: self.ready(connection, mask))
        if self.traces is not None:
            self.traces.connected(connection)
        logger.info("slave %s connected, slot %d", peer, slot)

    def ready(self, connection: SlaveConnection, mask: int) -> None:
        """A slave has reported, left, or takes more."""
        if mask & selectors.EVENT_WRITE:
            self.set_blocked(connection, blocked=False)
        if not mask & selectors.EVENT_READ:
            return
        first = connection.core.acknowledged < 0
        # A report may be about what was written after this turn began: the marks are read anew.
        begin, end = self.page.begin, self.page.written
        try:
            if not connection.receive(begin=begin, end=end, now=self.clock()):
                return
        except OutOfRange as error:
            self.refuse(connection, error)
        except PeerError as error:
            self.drop(connection.slot, str(error))
        else:
            self.page.set_ack(connection.slot, connection.core.acknowledged)
            self.acks_moved = True
            if self.traces is not None:
                self.traces.acknowledged(connection, connection.core.acknowledged)
            if self.ack_timer is not None:
                self.ack_timer.acknowledged(connection.core.acknowledged, self.clock())
            if first:
                core = connection.core
                logger.info(
                    "slave %s has the log up to %d, is fed from %d; ours is [%d, %d)",
                    connection.peer,
                    core.acknowledged,
                    core.next_offset,
                    begin,
                    end,
                )

    def send_all(self, now: float) -> bool:
        """Send every slave what it lacks; return whether there is more to send at once."""
        busy = False
        if self.log is None:
            return busy
        for connection in list(self.connections.values()):
            try:
                connection.core.check_silence(now)
                if connection.blocked:
                    continue
                before = connection.sent_bytes
                result = connection.send(self.log, begin=self.begin, end=self.end, now=now)
            except OutOfRange as error:
                self.refuse(connection, error)
                continue
            except (PeerError, IllegalOffset) as error:
                self.drop(connection.slot, str(error))
                continue
            except StoreError as error:
                logger.error("slave %s: %s", connection.peer, error)
                self.drop(connection.slot, str(error))
                continue
            if connection.sent_bytes != before:
                self.sent_bytes += connection.sent_bytes - before
                self.page.set_sent(connection.slot, connection.core.next_offset, connection.sent_bytes)
            if result is SendResult.BLOCKED:
                self.set_blocked(connection, blocked=True)
            busy |= result is SendResult.BUSY
        if now - self.trouble_at > TROUBLE_S and self.trouble_at > 0:
            self.trouble_at = float("-inf")
            self.page.trouble = ""
        return busy

    def set_blocked(self, connection: SlaveConnection, *, blocked: bool) -> None:
        """Wait for a socket to take more, or no longer."""
        connection.blocked = blocked
        events = selectors.EVENT_READ | (selectors.EVENT_WRITE if blocked else 0)
        self.loop.watch(connection.sock, events, lambda mask: self.ready(connection, mask))

    def refuse(self, connection: SlaveConnection, error: OutOfRange) -> None:
        """Disconnect a slave whose log is not a part of ours, and show people why."""
        now = self.clock()
        host = connection.peer.rpartition(":")[0]
        if error.ahead:
            self.page.refused_peer = host
            self.page.refused_offset = error.offset
            self.page.refused_at_ns = self.loop.machine.monotonic_ns()
            self.page.refused_count += 1
            self.loop.ring_broker()
        text = f"slave {host} refused: {error}"
        self.page.trouble, self.trouble_at = text, now
        repeated = text == self.logged and now - self.logged_at < REPEAT_S
        if not repeated:
            self.logged, self.logged_at = text, now
        logger.log(logging.DEBUG if repeated else logging.WARNING, "%s", text)
        self.drop(connection.slot, "refused", level=logging.DEBUG)

    def drop(self, slot: int, why: str, *, level: int = logging.INFO) -> None:
        """Close a connection."""
        connection = self.connections.pop(slot)
        self.loop.watch(connection.sock, 0, self.accept)
        with contextlib.suppress(OSError):
            connection.sock.close()
        if self.traces is not None:
            self.traces.disconnected(connection)
        acknowledged = connection.core.acknowledged
        self.page.set_slave(slot, "", 0)
        self.acks_moved = True  # the broker counts the slaves
        logger.log(level, "slave %s gone: %s; it had acknowledged %d", connection.peer, why, acknowledged)

    def close(self, why: str) -> None:
        """Close everything."""
        for slot in list(self.connections):
            self.drop(slot, why)
        self.loop.watch(self.listener, 0, self.accept)
        self.listener.close()
        self.page.ha_port = 0
        self.loop.ring_broker()
        if self.log is not None:
            self.log.close()
            self.log = None
        if self.traces is not None:
            self.traces.close()
