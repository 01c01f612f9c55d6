"""The loop under both kinds of replicator: one thread that waits for sockets, the broker's bell, and signals.

Each turn begins with what the marks ask for; then `turn` waits and calls back. Before it waits, it sets the
page's sleeping flag and checks once more whether the marks moved: a broker that moves one after that sees the
flag and rings. A ring that is lost all the same costs `WAKE_POLL_S`.
"""

import contextlib
import selectors
import signal
import socket
from collections.abc import Callable
from pathlib import Path

from whimbrel.machine import MACHINE, Machine
from whimbrel.replicator.sockets import Network
from whimbrel.store.shared_page import SharedPage
from whimbrel.wakeup import WAKE_POLL_S, Doorbell

__all__ = ["Loop"]

Callback = Callable[[int], None]  # takes the selector's event mask


class Loop:
    """Selector, doorbell, page and signals of one replicator.

    Attributes:
        machine, network: where files, clocks, workers and sockets come from.
        stopping: SIGTERM or SIGINT has come; no further turn is to be run.
    """

    def __init__(self, root: Path, machine: Machine = MACHINE) -> None:
        self.machine, self.network = machine, Network()
        self.page = SharedPage.open(root, machine)
        self.bell = Doorbell(root, "replicator")
        self.selector = selectors.DefaultSelector()
        self.inner, self.outer = socket.socketpair()
        for sock in (self.inner, self.outer):
            sock.setblocking(False)
        self.stopping = False
        self.selector.register(self.bell, selectors.EVENT_READ, self.rung)
        self.selector.register(self.inner, selectors.EVENT_READ, self.woken)

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
            self.outer.send(b"!")

    def woken(self, _: int) -> None:
        """Discard the bytes that `wake` and signals wrote."""
        with contextlib.suppress(OSError):
            self.inner.recv(4096)

    def rung(self, _: int) -> None:
        """Discard the broker's rings; what changed is in the marks."""
        self.bell.take()

    def watch(self, sock: socket.socket, events: int, callback: Callback) -> None:
        """Call back whenever `sock` is ready for `events`; with 0, no longer."""
        known = sock.fileno() in self.selector.get_map()
        if not events:
            if known:
                self.selector.unregister(sock)
        elif known:
            self.selector.modify(sock, events, callback)
        else:
            self.selector.register(sock, events, callback)

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
        ready = self.selector.select(min(max(timeout, 0), WAKE_POLL_S))
        page.replica_sleeping = 0
        for key, mask in ready:
            # An earlier callback of this turn may have closed this one's socket.
            if self.selector.get_map().get(key.fd) is key:
                key.data(mask)

    def close(self) -> None:
        """Close everything; the page stays for the broker."""
        if signal.getsignal(signal.SIGTERM) == self.stop:
            signal.set_wakeup_fd(-1)
        self.selector.close()
        self.bell.close()
        self.inner.close()
        self.outer.close()
        self.page.close()
