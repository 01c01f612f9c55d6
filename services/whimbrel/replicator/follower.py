"""The slave's side: takes the master's log into ours and reports how far it has come.

One turn: large reads for as long as they bring much, the whole frames in each appended with one write, the
`written` mark moved, the broker rung; and in the end one report of the newest end. With `flush="sync"` a
report tells what fdatasync has confirmed, and one sync serves all frames that came in meanwhile.

    IDLE        no address known, or waiting before the next attempt
    CONNECTING  the socket is not connected yet, for up to 5 s
    STREAMING   the first report is out
    STALLED     the disk has no room: nothing is read, reports are repeated; tried again every half second

**The two logs are compared before ours goes on.** Nothing in the protocol tells a master that lost its tail
and has written something else since from the one we knew. So a connection asks for the log from up to
`COMPARE_BYTES` before our end, which any master takes for where our log ends, and what comes must equal what
we have. A master that falls silent within that piece has a shorter log: it is told our real end, so that it
knows, and refuses us. A master that is named by `master_ha`, one of RocketMQ's perhaps, hears what a slave of
RocketMQ's would say, unless the setting `compare_bytes` asks for more.

The log is opened, and with that recovered and locked, by whoever makes the follower. Any end of a
connection leads back to IDLE; the wait doubles from 0.1 s to 2 s, and starts anew once frames have come in.
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

from whimbrel.errors import ConnectionClosed, PeerError, RemoteProtocolError, StoreError, StoreFull
from whimbrel.ha.frames import FRAME_HEADER, REPORT, whole_frames
from whimbrel.ha.protocol import Append, FrameReceived, SlaveEvent, SlaveProtocol
from whimbrel.replicator.loop import Loop
from whimbrel.replicator.options import ReplicatorOptions
from whimbrel.replicator.sockets import named, parse_address, resolve, tune
from whimbrel.store.commitlog import LogWriter
from whimbrel.wakeup import WAKE_POLL_S

if TYPE_CHECKING:
    from whimbrel.replicator.tracing import FollowerTraces

__all__ = ["Follower"]

logger = logging.getLogger(__name__)

# A frame of 1 MiB with its header: it is collected, then appended in one piece. Longer ones come in parts.
RECEIVE_BYTES = (1 << 20) + FRAME_HEADER.size
TURN_BYTES_MAX = 4 << 20  # read before the next report
CONNECT_S = 5.0  # RocketMQ's
BACKOFF_MIN_S, BACKOFF_MAX_S = 0.1, 2.0
FULL_RETRY_S = 0.5
NOTHING = memoryview(b"")
RETENTION_S = 10.0  # RocketMQ's cleanResourceInterval
COMPARE_BYTES = 64 * 1024  # of our log's end that a master must show to have as well
SILENT_S = 0.3  # its silence that means that it has no more; masters send at once what they have


class Follower:
    """The connection to the master and the log it goes into.

    Attributes:
        log: ours to write, open and recovered.
        core: of the current connection, None while there is none.
        grown: the newest end to be reported, -1 when it has been.
    """

    def __init__(
        self,
        loop: Loop,
        options: ReplicatorOptions,
        log: LogWriter,
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.loop, self.page, self.options, self.log = loop, loop.page, options, log
        self.clock = clock
        self.root = Path(options.store)
        self.buffer = memoryview(bytearray(RECEIVE_BYTES))
        self.filled = 0  # bytes in the buffer
        self.taken = 0  # of these, handed to the core
        self.lacking = 0  # bytes the frame at the buffer's end lacks; 0: not known
        self.sock: socket.socket | None = None
        self.core: SlaveProtocol | None = None
        self.address = ""  # the master's, as configured or told; what the socket was opened for
        self.peer = ""
        self.attempts = 0
        self.backoff_s = BACKOFF_MIN_S
        self.retry_at = float("-inf")
        self.connect_until = 0.0
        self.received = 0
        self.appended_bytes = 0  # since the start
        self.pending: Iterator[SlaveEvent] | None = None  # stalled: what is still to be taken from the buffer
        self.event: SlaveEvent | None = None  # stalled: the one that could not be dealt with
        self.stalled = False
        self.staging = memoryview(bytearray(RECEIVE_BYTES))
        self.gathered = NOTHING  # bodies to append, a part of the buffer, or of `staging` when several
        self.gathered_at = 0  # where they stand in the log
        self.gathered_end = -1  # end of the last whole frame in them, or before them
        self.staged = False
        self.out = b""  # the rest of a report that the socket did not take whole
        self.grown = -1
        self.compare_bytes = options.compare_bytes
        if options.compare_bytes < 0:
            self.compare_bytes = 0 if options.master_ha else COMPARE_BYTES
        self.known_end = -1  # our log's end, while the master's has not been compared up to there
        self.silent_at = 0.0  # when a master that is still being compared is taken to have no more
        self.retention_at = float("-inf")
        self.logged = ""
        self.traces: FollowerTraces | None = None
        if options.trace_to:
            from whimbrel.replicator import tracing  # OpenTelemetry: 100 ms and 10 MB

            self.traces = tracing.FollowerTraces(options, self.page, log.read, log.end, log.file_size)
        self.page.ha_port = 0
        self.page.clear_slaves()
        self.page.connected = 0
        self.page.trouble = ""
        log.on_flushed = self.flushed

    def run(self) -> None:
        """Follow until the loop is stopped.

        Raises:
            StoreError: the disk refused a sync; what is on it is known only after a restart.
        """
        try:
            while not self.loop.stopping:
                now = self.clock()
                self.step(now)
                self.loop.turn(self.wait_timeout(now), self.nothing_new)
        finally:
            self.disconnect("the replicator stops", logging.INFO)
            if self.traces is not None:
                self.traces.close()

    def step(self, now: float) -> None:
        """Do what time asks for."""
        log = self.log
        if log.failed:
            raise StoreError(log.failed)
        log.publish()
        if now - self.retention_at > RETENTION_S:
            self.retention_at = now
            log.run_retention(time.time_ns() // 1_000_000)
        try:
            if self.sock is not None and self.master_changed():
                raise ConnectionClosed("the master has another address now")
            if self.core is not None:
                if self.pending is not None and now >= self.retry_at:
                    self.take(now)
                if self.known_end >= 0 and now >= self.silent_at:
                    self.report_real_end()
                self.send_reports(now)
                if self.pending is None:
                    self.core.check_silence(now)
            elif self.sock is not None:
                if now > self.connect_until:
                    raise ConnectionClosed(f"no connection within {CONNECT_S:.0f} s")
            elif now >= self.retry_at or self.master_changed():
                self.connect(now)
        except PeerError as error:
            self.fail(error, now)

    def nothing_new(self) -> bool:
        """Whether the broker has nothing new to tell, and the disk neither."""
        if self.sock is None:
            return not self.master_changed()
        return self.core is None or self.reportable() < 0

    def wait_timeout(self, now: float) -> float:
        """Return how long nothing needs to be done by itself."""
        if self.core is not None:
            deadline = self.retry_at if self.pending is not None else self.core.deadline
            if self.known_end >= 0:
                deadline = min(deadline, self.silent_at)
        elif self.sock is not None:
            deadline = self.connect_until
        else:
            deadline = self.retry_at
        return min(max(deadline - now, 0.001), WAKE_POLL_S)

    def master_changed(self) -> bool:
        """Whether the broker names another master than the one we know."""
        return not self.options.master_ha and self.page.master_ha not in ("", self.address)

    def connect(self, now: float) -> None:
        """Start to connect, if an address is known."""
        address = self.options.master_ha or self.page.master_ha
        if address != self.address:
            self.address, self.attempts, self.backoff_s = address, 0, BACKOFF_MIN_S
        if not address:
            self.retry_at = now + WAKE_POLL_S
            return
        try:
            host, port = parse_address(address)
            found = resolve(host, port)
        except (ValueError, OSError) as error:
            raise ConnectionClosed(f"{address}: {error}") from error
        family, target = found[self.attempts % len(found)]
        self.attempts += 1
        self.peer = named(target)
        self.sock = socket.socket(family, socket.SOCK_STREAM)
        try:
            tune(self.sock)
            code = self.sock.connect_ex(target)
        except OSError as error:
            raise ConnectionClosed(f"{self.peer}: {error}") from error
        if code not in (0, errno.EINPROGRESS):
            raise ConnectionClosed(f"{self.peer}: {errno.errorcode.get(code, code)}")
        self.connect_until = now + CONNECT_S
        self.loop.watch(self.sock, selectors.EVENT_WRITE, self.connected)

    def connected(self, _: int) -> None:
        """The attempt to connect has ended; when it succeeded, ask for the log from our end on."""
        assert self.sock is not None
        now = self.clock()
        code = self.sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
        try:
            if code:
                raise ConnectionClosed(f"{self.peer}: {errno.errorcode.get(code, code)}")
            if self.options.flush == "sync":
                self.log.flush()  # the first report acknowledges all that we have
            end = self.log.end
            # Within one file: the master may have removed the one before. Never 0, which means an empty log.
            start = end - min(self.compare_bytes, end % self.log.file_size, max(end - 1, 0))
            self.known_end, self.silent_at = (end if start < end else -1), now + SILENT_S
            self.core = SlaveProtocol(
                end=start,
                file_size=self.log.file_size,
                now=now,
                heartbeat_s=self.options.heartbeat_ms / 1000,
                silence_s=self.options.housekeeping_ms / 1000,
            )
            self.received, self.grown = 0, -1
            logger.info("connected to master %s, asking for the log from %d on", self.peer, end)
            self.page.connected = 1
            self.out = self.core.report(start, now)
            self.send_reports(now)
        except PeerError as error:
            self.fail(error, now)

    def readable(self, mask: int) -> None:
        """Bytes have come in, or the socket takes the rest of a report."""
        now = self.clock()
        try:
            if mask & selectors.EVENT_READ and self.pending is None:
                self.receive(now)
            self.send_reports(now)
        except PeerError as error:
            self.fail(error, now)

    def receive(self, now: float) -> None:
        """Read, and take the frames that are whole.

        Nothing is lost by waiting for a whole frame, since only whole ones are reported; and one large write
        is much cheaper than several small ones. A frame that does not fit into the buffer is taken in parts.
        """
        limit = self.received + TURN_BYTES_MAX
        while self.pending is None and self.received < limit:
            if not self.read(now):
                return

    def read(self, now: float) -> bool:
        """Read once, take what is whole, and return whether more is likely to be there."""
        assert self.sock is not None
        assert self.core is not None
        if self.taken:
            rest = self.filled - self.taken
            self.buffer[:rest] = self.buffer[self.taken : self.filled]
            self.filled, self.taken = rest, 0
        room = self.buffer[self.filled :]
        wanted = self.lacking or len(room)
        try:
            count = self.sock.recv_into(room[:wanted])
        except BlockingIOError:
            return False
        except OSError as error:
            raise ConnectionClosed(f"{error.strerror}") from error
        if not count:
            raise ConnectionClosed(self.parting())
        if not self.received and self.known_end < 0:
            self.trouble("")  # whatever there was: the master talks to us
        self.silent_at = now + SILENT_S
        self.received += count
        self.filled += count
        self.core.heard_at = now
        data = self.buffer[: self.filled]
        whole, self.lacking = whole_frames(data, min(self.core.body_left, self.filled))
        if not whole and self.filled == RECEIVE_BYTES:
            whole, self.lacking = self.filled, 0
        if whole:
            self.taken = whole
            self.pending = self.core.receive(data[:whole], now)
            self.take(now)
        return self.lacking > 0 or count == wanted

    def parting(self) -> str:
        """Return what it may mean that the master has closed the connection."""
        if self.received and self.known_end < 0:
            return "closed by the master"
        return (
            f"closed by the master without a word: our log [{self.log.begin}, {self.log.end}) is probably "
            "not a part of its log; its own log lines say which part it holds"
        )

    def take(self, now: float) -> None:
        """Append what was received, as far as the disk has room, and show it to the broker."""
        log = self.log
        before, stalled = log.end, self.stalled
        began_ns = 0 if self.traces is None else time.time_ns()
        try:
            self.append_pending()
            self.pending = None
            self.stalled = False
        except StoreFull as error:
            self.stall(error, now)
        except PeerError:
            self.pending = None  # what came before the broken frame is ours all the same
            self.event = None
            with contextlib.suppress(StoreFull):
                self.append_gathered()
            raise
        finally:
            if log.end != before:
                log.publish()
                self.loop.ring_broker()
                if self.options.flush == "sync":
                    log.request_flush(log.end)
                if self.traces is not None:
                    self.traces.appended(log.end, began_ns)
        if self.pending is None and log.end != before:
            self.backoff_s = BACKOFF_MIN_S
            if stalled and self.core is not None:
                self.core.heard_at = now  # it was not listened to meanwhile
                logger.info("the disk has room again: the log goes on at %d", before)
                self.trouble("")

    def append_pending(self) -> None:
        """Append what the pending events say; can be called again after it was stopped by a full disk.

        Bodies that follow each other are gathered, so that a read full of RocketMQ's 32 KiB frames becomes
        one write as well.

        Raises:
            StoreFull: there is no room; what is not written is still pending.
            RemoteProtocolError: the master broke the protocol, after what is gathered.
        """
        assert self.pending is not None
        while True:
            event = self.event = self.event or next(self.pending, None)
            if event is None:
                return self.append_gathered()
            if isinstance(event, FrameReceived):
                self.gathered_end = event.end
            else:
                if self.known_end >= 0:
                    event = self.event = self.compared(event)
                    if not event.data:
                        self.event = None
                        continue
                if event.offset % self.log.file_size == 0:
                    self.append_gathered()
                if event.data:
                    self.gather(event)
                else:
                    self.log.append_raw(event.offset, event.data)
            self.event = None

    def compared(self, event: Append) -> Append:
        """Compare bytes that we have already; return what follows them.

        Raises:
            RemoteProtocolError: the master has others there.
        """
        count = min(len(event.data), self.known_end - event.offset)
        theirs, ours = event.data[:count], self.log.read(event.offset, count)
        if theirs != ours:
            at = event.offset + next(at for at in range(count) if theirs[at] != ours[at])
            raise RemoteProtocolError(
                f"the master's log differs from ours at byte {at}, before our end {self.known_end}:"
                " one side came back with a shorter log and went on; keep the store that is right, and start"
                " the other side with a copy of it or with an empty store"
            )
        if event.offset + count == self.known_end:
            self.known_end = -1
            self.trouble("")
        return Append(event.offset + count, event.data[count:])

    def report_real_end(self) -> None:
        """Tell a master that has no more where our log ends: it looks whether its own is shorter."""
        assert self.core is not None
        logger.info(
            "master %s has nothing beyond %d, our log ends at %d",
            self.peer,
            self.core.end or 0,
            self.known_end,
        )
        self.out += REPORT.pack(self.known_end)
        self.silent_at = float("inf")

    def gather(self, event: Append) -> None:
        """Put a body behind those gathered so far; a single one is only pointed at."""
        size = len(self.gathered)
        if not size:
            self.gathered_at, self.gathered = event.offset, event.data
            return
        if not self.staged:
            self.staging[:size] = self.gathered
            self.staged = True
        end = size + len(event.data)
        self.staging[size:end] = event.data
        self.gathered = self.staging[:end]

    def append_gathered(self) -> None:
        """Append the gathered bodies; the frames they end are then to be reported.

        Raises:
            StoreFull: there is no room; they stay gathered.
        """
        if self.gathered:
            self.log.append_raw(self.gathered_at, self.gathered)
            self.appended_bytes += len(self.gathered)
            self.gathered, self.staged = NOTHING, False
        self.grown = max(self.grown, self.gathered_end)

    def stall(self, error: StoreFull, now: float) -> None:
        """Stop reading until there is room; TCP makes the master wait."""
        if not self.stalled:
            self.stalled = True
            text = f"replication waits for disk space at {self.log.end}: {error}"
            logger.error("%s", text)
            self.trouble(text)
        self.retry_at = now + FULL_RETRY_S

    def trouble(self, text: str) -> None:
        """Show people what keeps replication from working; "" when it works."""
        if not text:
            self.logged = ""
        self.page.trouble = text

    def flushed(self, _: int) -> None:
        """More is on disk; called from the flush thread."""
        if self.options.flush == "sync":
            self.loop.wake()

    def reportable(self) -> int:
        """Return the end to report next, -1 when it has been."""
        core = self.core
        assert core is not None
        if self.options.flush == "sync":
            flushed = min(self.log.flushed, core.end or 0)
            return flushed if flushed > core.reported else -1
        return self.grown if self.grown > core.reported else -1

    def send_reports(self, now: float) -> None:
        """Send what there is to report, and wait for the socket if it does not take it."""
        core, sock = self.core, self.sock
        if core is None or sock is None:
            return
        try:
            while True:
                if not self.out:
                    end = self.reportable()
                    self.out = core.report(end, now) if end >= 0 else core.due_report(now)
                if not self.out:
                    break
                self.out = self.out[sock.send(self.out) :]
        except BlockingIOError:
            pass
        except OSError as error:
            raise ConnectionClosed(f"{error.strerror}") from error
        events = selectors.EVENT_READ if self.pending is None else 0
        self.watch(events | (selectors.EVENT_WRITE if self.out else 0))

    def watch(self, events: int) -> None:
        """Wait for these on the connection."""
        assert self.sock is not None
        self.loop.watch(self.sock, events, self.readable)

    def fail(self, error: PeerError, now: float) -> None:
        """Close the connection and wait a little before the next attempt."""
        wrong = isinstance(error, RemoteProtocolError)
        text = f"master {self.address}: {error}"
        news = text != self.logged
        self.logged = text
        if wrong or (self.core is not None and (not self.received or self.known_end >= 0)):
            self.trouble(text)
            self.backoff_s = BACKOFF_MAX_S  # it will not be better at once
        level = logging.ERROR if wrong else logging.WARNING
        self.disconnect(text, level if news else logging.DEBUG)
        self.retry_at = now + self.backoff_s
        self.backoff_s = min(self.backoff_s * 2, BACKOFF_MAX_S)

    def disconnect(self, why: str, level: int) -> None:
        """Close the connection, if there is one; what was received stays."""
        if self.sock is not None:
            self.loop.watch(self.sock, 0, self.readable)
            with contextlib.suppress(OSError):
                self.sock.close()
        self.sock = self.core = self.pending = self.event = None
        self.out = b""
        self.known_end = -1
        self.gathered, self.gathered_end, self.staged, self.stalled = NOTHING, -1, False, False
        self.filled = self.taken = self.lacking = 0
        self.page.connected = 0
        logger.log(level, "%s; our log ends at %d", why, self.log.end)
