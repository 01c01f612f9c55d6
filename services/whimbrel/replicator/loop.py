"""The loop under both kinds of replicator: one thread that waits for sockets, the broker's bell, and signals.

Each turn begins with what the marks ask for; then `turn` waits and calls back. Before it waits, it sets the
page's sleeping flag and checks once more whether the marks moved: a broker that moves one after that sees the
flag and rings. A ring that is lost all the same costs `WAKE_POLL_S`.

It waits by epoll itself: `selectors` would make objects of every event, at more than the wait's own cost.
"""

import contextlib
import select
import selectors
import signal
import socket
from collections.abc import Callable, Sequence
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

from whimbrel.machine import MACHINE, Machine
from whimbrel.replicator.buffers import ReceiveBuffer
from whimbrel.replicator.lane_cells import PLACES, Watched
from whimbrel.replicator.sockets import Network
from whimbrel.store.commitlog import LogWriter
from whimbrel.store.shared_page import SharedPage
from whimbrel.wakeup import WAKE_POLL_S, Doorbell

if TYPE_CHECKING:
    from whimbrel.replicator.slave_connection import SlaveConnection

__all__ = ["Loop"]

Callback = Callable[[int], None]  # takes EVENT_READ and EVENT_WRITE of `selectors`
WAKE, FLUSHED = b"!", b"."  # what `wake` writes; signals write their numbers
READY_MAX = 64  # events taken in one turn; the rest are there in the next


class Loop:
    """Doorbell, sockets, page and signals of one replicator.

    Attributes:
        machine, network: where files, clocks, workers and sockets come from.
        stopping: SIGTERM or SIGINT has come; no further turn is to be run.
    """

    def __init__(self, root: Path, machine: Machine = MACHINE) -> None:
        self.machine, self.network = machine, Network()
        self.page = SharedPage.open(root, machine)
        self.bell = Doorbell(root, "replicator")
        self.epoll = select.epoll()
        self.watched: dict[int, tuple[int, Callback]] = {}  # by descriptor
        self.inner, self.outer = socket.socketpair()
        for sock in (self.inner, self.outer):
            sock.setblocking(False)
        self.stopping = False
        self.watch(self.bell, selectors.EVENT_READ, self.rung)
        self.watch(self.inner, selectors.EVENT_READ, self.woken)

    def catch_signals(self) -> None:
        """Make SIGTERM and SIGINT end the loop instead of the process."""
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self.stop)
        signal.set_wakeup_fd(self.outer.fileno(), warn_on_full_buffer=False)

    def stop(self, *_: object) -> None:
        """End the loop after the current turn."""
        self.stopping = True

    def wake(self) -> None:
        """Make the current or next wait return at once; may be called from any thread."""
        with contextlib.suppress(OSError):  # full: it is awake already
            self.outer.send(WAKE)

    def wake_flushed(self) -> None:
        """As `wake`, since more of the log is on disk: the compiled lane looks at that itself."""
        with contextlib.suppress(OSError):
            self.outer.send(FLUSHED)

    def woken(self, _: int) -> None:
        """Discard the bytes that `wake` and signals wrote."""
        with contextlib.suppress(OSError):
            self.inner.recv(4096)

    def rung(self, _: int) -> None:
        """Discard the broker's rings; what changed is in the marks."""
        self.bell.take()

    def watch(self, source: socket.socket | Doorbell, events: int, callback: Callback) -> None:
        """Call back whenever `source` is ready for `events`; with 0, no longer.

        To be called with 0 before it is closed: another one may get its descriptor.
        """
        fd = source.fileno()
        before = self.watched.get(fd)
        if not events:
            if before is not None:
                del self.watched[fd]
                self.epoll.unregister(fd)
            return
        if before == (events, callback):
            return
        mask = select.EPOLLIN if events & selectors.EVENT_READ else 0
        if events & selectors.EVENT_WRITE:
            mask |= select.EPOLLOUT
        if before is None:
            self.epoll.register(fd, mask)
        elif before[0] != events:
            self.epoll.modify(fd, mask)
        self.watched[fd] = (events, callback)

    def ring_broker(self) -> None:
        """Wake the broker if it sleeps; the mark it is to see must be written before."""
        if self.page.broker_sleeping:
            self.bell.ring("broker")

    def turn(self, timeout: float, idle: Callable[[], bool]) -> None:
        """Wait up to `timeout` seconds, at most `WAKE_POLL_S`, and call back for the sockets that are ready.

        Args:
            idle: whether the marks still ask for nothing; asked after the sleeping flag is set.
        """
        page = self.page
        page.replica_beat_ns = self.machine.monotonic_ns()
        if timeout > 0:
            page.replica_sleeping = 1
            if self.stopping or not idle():
                timeout = 0
        ready = self.epoll.poll(min(max(timeout, 0), WAKE_POLL_S), READY_MAX)
        page.replica_sleeping = 0
        for fd, found, watched in [(fd, found, self.watched[fd]) for fd, found in ready]:
            # An earlier callback of this turn may have closed this one's socket; another may have its number.
            if self.watched.get(fd) is watched:
                events, callback = watched
                # Errors and the end of the connection count as both: to read or write tells which.
                mask = selectors.EVENT_READ if found & ~select.EPOLLOUT else 0
                if found & ~select.EPOLLIN:
                    mask |= selectors.EVENT_WRITE
                callback(mask & events)

    def feed(
        self,
        native: ModuleType,
        feeding: Any,
        connections: Sequence["SlaveConnection"],
        fd: int,
        start: int,
        watched: Watched,
    ) -> None:
        """Feed slaves by the compiled lane from a file of the log, which begins at `start`, until it ends."""
        sockets = [connection.sock.fileno() for connection in connections]
        native.feed(feeding, self.page.mapped, PLACES, self.descriptors(fd), start, sockets, watched)

    def follow(
        self,
        native: ModuleType,
        following: Any,
        sock: socket.socket,
        buffer: ReceiveBuffer,
        log: LogWriter,
        watched: Watched,
    ) -> None:
        """Follow a master by the compiled lane, until it ends."""
        segment = log.segment
        assert segment is not None
        native.follow(
            following,
            self.page.mapped,
            PLACES,
            self.descriptors(segment.fd),
            sock.fileno(),
            buffer.buffer,
            segment.mapped,
            log.base,
            watched,
            log.request_flush,
        )

    def descriptors(self, log_fd: int) -> dict[str, int]:
        """Return what the compiled lane waits for, rings, and reads or writes."""
        return {
            "epoll": self.epoll.fileno(),
            "bell": self.bell.fileno(),
            "broker_bell": self.bell.out_fileno(),
            "wakeup": self.inner.fileno(),
            "log": log_fd,
        }

    def close(self) -> None:
        """Close everything; the page stays for the broker."""
        if signal.getsignal(signal.SIGTERM) == self.stop:
            signal.set_wakeup_fd(-1)
        self.epoll.close()
        self.bell.close()
        self.inner.close()
        self.outer.close()
        self.page.close()
