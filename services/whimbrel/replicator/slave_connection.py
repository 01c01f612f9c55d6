"""One connection to a slave: the frame that is being sent, and the protocol's core."""

import socket
import time
from collections.abc import Callable
from enum import Enum

from whimbrel.errors import ConnectionClosed, StoreError
from whimbrel.ha.frames import FRAME_HEADER
from whimbrel.ha.protocol import MasterProtocol
from whimbrel.ha.switching import SwitchingMaster
from whimbrel.replicator.sockets import Network
from whimbrel.store.log_reader import LogReader

__all__ = ["SendResult", "SlaveConnection"]

SENDFILE_BYTES_MIN = 64 * 1024  # below, one send of header and copied body is cheaper than two system calls
TURN_BYTES_MAX = 8 * 1024 * 1024  # sent to one slave before the others and the reports get their turn
REPORTS_BYTES_MAX = 4096  # 512 reports; a slave sends one a frame


class SendResult(Enum):
    """How an attempt to send ended."""

    IDLE = "all is sent"
    BLOCKED = "the socket takes no more for now"
    BUSY = "there is more, but others wait"


class SlaveConnection:
    """A slave's connection, with the rest of the frame that is being sent.

    Attributes:
        accepted_at: when, in seconds of the core's clock.
        slot: which of the page's slots shows it; -1 before the first report.
        connected_at_ms: when it got the slot, ms since the epoch.
        proven: its reports count as acknowledgements.
        sent_bytes: bodies and headers so far.
        blocked: the socket takes no more until it is writable again.
        held: nothing may be sent for now, no heartbeat either.
        on_frame: called with offset, size and the time of its begin (ns since the epoch) when a frame that
            is no heartbeat has been handed to the socket; None without tracing.
    """

    __slots__ = (
        "accepted_at",
        "blocked",
        "body_at",
        "body_left",
        "by_file",
        "connected_at_ms",
        "core",
        "frame",
        "head",
        "held",
        "network",
        "on_frame",
        "peer",
        "proven",
        "sent_bytes",
        "slot",
        "sock",
    )

    def __init__(
        self,
        network: Network,
        sock: socket.socket,
        peer: str,
        core: MasterProtocol,
        *,
        accepted_at: float = 0.0,
    ) -> None:
        self.network = network
        self.sock, self.peer, self.core = sock, peer, core
        self.accepted_at = accepted_at
        self.slot, self.connected_at_ms, self.proven = -1, 0, False
        self.head = b""  # of the current frame: what is left of its header
        self.body_at = self.body_left = 0
        self.by_file = False
        self.sent_bytes = 0
        self.blocked = self.held = False
        self.on_frame: Callable[[int, int, int], None] | None = None
        self.frame = (0, 0, 0)  # what `on_frame` is called with

    @property
    def deadline(self) -> float:
        """When the timers must be asked again at the latest; a full socket takes no heartbeat."""
        return self.core.silence_deadline if self.blocked or self.held else self.core.deadline

    @property
    def member(self) -> SwitchingMaster | None:
        """The core, where it speaks the members' dialect."""
        core = self.core
        return core if isinstance(core, SwitchingMaster) else None

    def receive(self, *, begin: int, end: int, now: float) -> bool:
        """Take what the slave has sent; return whether what it acknowledges has changed.

        Raises:
            ConnectionClosed: it is gone.
            RemoteProtocolError: it broke the protocol.
        """
        data = self.read()
        return bool(data) and self.take(data, begin=begin, end=end, now=now)

    def read(self) -> bytes:
        """Return what the slave has sent; nothing when nothing is there.

        Raises:
            ConnectionClosed: it is gone.
        """
        try:
            data = self.sock.recv(REPORTS_BYTES_MAX)
        except BlockingIOError:
            return b""
        except OSError as error:
            raise ConnectionClosed(f"{error.strerror}") from error
        if not data:
            raise ConnectionClosed("closed by the slave")
        return data

    def take(self, data: bytes, *, begin: int, end: int, now: float) -> bool:
        """Take bytes of the slave; see `receive`."""
        core = self.core
        before = core.acknowledged
        core.receive(data, begin=begin, end=end, now=now)
        return core.acknowledged != before or (not self.proven and core.proven)

    @property
    def steady(self) -> bool:
        """Whether a frame is what comes next, and reports acknowledge."""
        return (
            self.proven
            and self.core.end_told
            and not self.blocked
            and not self.held
            and not self.head
            and not self.body_left
        )

    def resume(self, offset: int, size: int, sent: int) -> None:
        """Go on with a frame of which so many bytes are sent, header and body."""
        member = self.member
        header = FRAME_HEADER.pack(offset, size) if member is None else member.frame_at(offset, size).header
        body_sent = max(sent - len(header), 0)
        self.head = header[sent:]
        self.body_at, self.body_left = offset + body_sent, size - body_sent
        self.by_file = size >= SENDFILE_BYTES_MIN

    def send(self, log: LogReader, *, begin: int, end: int, now: float) -> SendResult:
        """Send frames until nothing is left, the socket is full, or it is the others' turn.

        Raises:
            ConnectionClosed: the slave is gone.
            OutOfRange: retention has removed what it needs.
        """
        limit = self.sent_bytes + TURN_BYTES_MAX
        while self.sent_bytes < limit:
            if not self.head and not self.body_left:
                frame = self.core.next_frame(begin=begin, end=end, now=now)
                if frame is None:
                    return SendResult.IDLE
                self.head, self.body_at, self.body_left = frame.header, frame.offset, frame.size
                self.by_file = frame.size >= SENDFILE_BYTES_MIN
                if self.on_frame is not None:
                    self.frame = (frame.offset, frame.size, time.time_ns())
            try:
                self.send_some(log)
            except BlockingIOError:
                self.blocked = True
                return SendResult.BLOCKED
            except OSError as error:
                raise ConnectionClosed(f"{error.strerror}") from error
            if self.on_frame is not None and self.frame[1] and not self.head and not self.body_left:
                self.on_frame(*self.frame)
        return SendResult.BUSY

    def send_some(self, log: LogReader) -> None:
        """Send as much of the current frame as one or two system calls take."""
        if self.by_file and self.head:
            sent = self.sock.send(self.head, socket.MSG_MORE)  # leaves with the first bytes of the body
            self.head = self.head[sent:]
            self.sent_bytes += sent
            if self.head:
                return
        body = b""
        if self.body_left:
            fd, position, _ = log.file_for(self.body_at)
            if self.by_file:
                sent = self.network.send_file(self.sock, fd, position, self.body_left)
                if not sent:
                    raise StoreError(f"the log file that holds {self.body_at} is shorter than the marks say")
                self.advance(sent)
                return
            body = log.files.pread(fd, self.body_left, position)
            if len(body) < self.body_left:
                raise StoreError(f"the log file that holds {self.body_at} is shorter than the marks say")
        self.advance(self.sock.send(self.head + body if body else self.head))

    def advance(self, sent: int) -> None:
        """Note that so many bytes of header and body are sent."""
        self.sent_bytes += sent
        header = min(sent, len(self.head))
        self.head = self.head[header:]
        self.body_at += sent - header
        self.body_left -= sent - header
