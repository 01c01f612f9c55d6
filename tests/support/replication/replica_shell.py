"""The compiled lane's loops of a replicator with system calls that a test has in its hands.

`Loop.feed` and `Loop.follow` run `native/binding/src/replica.rs`; `Shell` does the same, and asks the same
state machines what to do, but it never waits, and time, sockets and files are what the test says. So what the
lane decides is simulated, and tested with a clock of one's own; only the system calls themselves are not.
"""

import contextlib
import select
from collections.abc import Callable, Sequence
from typing import Any, Protocol

from whimbrel.machine import Files
from whimbrel.replicator.lane_cells import Watched
from whimbrel.replicator.loop import Loop
from whimbrel.store.commitlog import PWRITE_BYTES_MIN
from whimbrel.store.shared_page import SharedPage

__all__ = ["Shell", "play"]


class Watching(Protocol):
    """What a shell needs of a loop."""

    page: SharedPage
    bell: Any
    machine: Any

    def ring_broker(self) -> None: ...


class Shell:
    """Runs the state machines of one replicator.

    Attributes:
        frames, bodies: that were sent, and appended; sent_bytes: of the frames.
    """

    def __init__(
        self,
        loop: Watching,
        files: Files,
        now: Callable[[], float],
        readable: Callable[[Any], bool],
        others: Callable[[Sequence[Any]], bool],
    ) -> None:
        """Take a loop and a machine's files and clock.

        Args:
            readable: whether there is something to read from a socket.
            others: whether something else than these sockets and the bell asks for attention.
        """
        self.loop, self.page, self.files = loop, loop.page, files
        self.now, self.readable, self.others = now, readable, others
        self.frames = self.bodies = self.sent_bytes = 0

    def now_ns(self) -> int:
        """The time, as the lane has it."""
        return int(self.now() * 1e9)

    def beat_ns(self) -> int:
        """When the broker beat last, by this clock: a test's may not be the machine's, which beats go by."""
        age_ns: int = self.loop.machine.monotonic_ns() - self.page.broker_beat_ns
        return self.now_ns() - age_ns

    def settled(self, watched: Watched) -> bool:
        """Whether cells of the page are as they were."""
        return all(self.page.cells[place // 8] == value for place, value in watched)

    def lead(self, watched: Watched) -> tuple[int, int, bool]:
        """What the leader's broker shows, without its beat."""
        saw = self.page.commit_saw
        return saw, self.page.commit, self.settled(watched)

    def feed(
        self,
        native: Any,
        feeding: Any,
        connections: Sequence[Any],
        fd: int,
        start: int,
        watched: Watched,
    ) -> None:
        """See `Loop.feed`; it ends where that would wait."""
        page = self.page
        socks = [connection.sock for connection in connections]
        while True:
            marks = page.epoch, page.begin, page.written, page.replaced
            saw, commit, settled = lead = self.lead(watched)
            beat_ns = self.beat_ns()
            what, *about = feeding.next(marks, self.now_ns(), (saw, commit, beat_ns, settled))
            if what == "leave":
                return
            if what == "send":
                link, at, size, head = about
                body = self.files.pread(fd, size, at - start) if size else b""
                count = 0
                if len(body) == size:
                    with contextlib.suppress(OSError):
                        count = socks[link].send(head + body)
                feeding.sent(link, size, count, self.now_ns())
                state = feeding.links()[link]
                page.set_sent(connections[link].slot, state[0], state[2])
                self.frames += 1
                self.sent_bytes += count
                continue
            self.loop.bell.take()
            page.replica_sleeping = 0
            ready = [number for number, sock in enumerate(socks) if self.readable(sock)]
            plain = not self.others(socks)
            if not ready and plain and page.written == marks[2] and self.lead(watched) == lead:
                return
            feeding.waited(plain)
            for number in ready:
                data = b""
                with contextlib.suppress(OSError):
                    data = socks[number].recv(4096)
                if feeding.received(number, data, page.written, self.now_ns()):
                    page.set_ack(connections[number].slot, feeding.links()[number][1])
            if feeding.moved:
                self.loop.ring_broker()
                feeding.rang(True)

    def follow(self, native: Any, following: Any, sock: Any, buffer: Any, log: Any, watched: Watched) -> None:
        """See `Loop.follow`; it ends where that would wait."""
        page, room = self.page, buffer.buffer
        while True:
            what, *about = following.next(room, self.now_ns(), self.settled(watched), page.flushed)
            if what == "leave":
                return
            if what == "append":
                begin, size, at = about
                segment, body = log.segment, room[begin : begin + size]
                if size < PWRITE_BYTES_MIN:
                    segment.mapped[at - log.base : at - log.base + size] = body
                else:
                    segment.write(at - log.base, body)
                following.appended(size, True)
                self.bodies += 1
            elif what == "publish":
                page.written = about[0]
                page.log_beat_ns = self.now_ns()
            elif what == "flush":
                log.request_flush(about[0])
            elif what == "hear":
                page.heard_ns = self.loop.machine.monotonic_ns()
                page.heard_commit = about[0]
            elif what == "report":
                count = 0
                with contextlib.suppress(OSError):
                    count = sock.send(about[1])
                following.sent_report(count, self.now_ns())
            elif what == "ring":
                self.loop.ring_broker()
                following.rang(True, self.now_ns())
            else:
                self.loop.bell.take()
                ready, plain = self.readable(sock), not self.others([sock])
                if not ready and plain:
                    return
                following.waited(plain)
                if ready:
                    at, count = following.make_room(room), 0
                    with contextlib.suppress(OSError):
                        count = sock.recv_into(room[at:])
                    following.received(count, self.now_ns())


def play(loop: Loop, now: Callable[[], float]) -> Shell:
    """Have the lane of a loop run with a test's clock, over the real sockets; return its shell."""

    def ready() -> dict[int, int]:
        return dict(loop.epoll.poll(0))

    def others(socks: Sequence[Any]) -> bool:
        numbers = {sock.fileno() for sock in socks}
        return any(
            fd != loop.bell.fileno() and (fd not in numbers or mask != select.EPOLLIN)
            for fd, mask in ready().items()
        )

    shell = Shell(loop, loop.machine.files, now, lambda sock: sock.fileno() in ready(), others)
    loop.feed, loop.follow = shell.feed, shell.follow  # type: ignore[method-assign]
    return shell
