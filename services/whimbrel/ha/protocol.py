"""The two ends of a replication connection as state machines, without any input or output of their own.

The shell around a core reads and writes the socket, keeps the log, and tells the time: every call that needs
it takes `now`, in seconds of a clock that never goes back. A core raises `RemoteProtocolError` when the peer
breaks the protocol; the shell then closes the connection, and a new one gets a new core.

    master                                         slave
    WAITING    nothing is sent                     the first report goes out at once
       | the first report: where the slave's log ends
    STREAMING  frames go out, reports acknowledge  frames are appended, each that grew it is reported

**What RocketMQ 4.9.3 does and these cores do as well.** A report of 0 means an empty log. All others are
taken literally. Within a connection nothing is sent twice. An idle master sends a heartbeat after 5 s, an
idle slave repeats its report after 5 s, either closes after 20 s of silence. A slave with an empty log takes
the offset of the first frame it gets, heartbeats included, as the start of its log.

**What they do better.** RocketMQ's master believes any offset it is told (the first report always, later ones
in most versions), so that stray bytes on the port confirm messages no slave has: `MasterProtocol` refuses a
report past the log's end or past what it has sent. Its slaves outside the master's range get heartbeats for
ever: ours are refused with both ranges named. It feeds an empty slave from its last file on: ours starts at
the first, `first_offset="last-file"` brings the old rule back. Its slave stays silent for 5 s after
connecting: ours reports at once, which its masters accept.

Reports are all checked, also when several came in one read (RocketMQ looks at the newest only), so that how
the stream is cut into reads makes no difference.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final, Literal

from whimbrel.errors import LocalProtocolError, RemoteProtocolError
from whimbrel.ha.frames import FRAME_BYTES_MAX, FRAME_HEADER, REPORT, Frame

__all__ = [
    "HEARTBEAT_S",
    "SILENCE_S",
    "Append",
    "FirstOffset",
    "FrameReceived",
    "MasterProtocol",
    "OutOfRange",
    "Reported",
    "SlaveEvent",
    "SlaveProtocol",
]

HEARTBEAT_S: Final = 5.0  # haSendHeartbeatInterval
SILENCE_S: Final = 20.0  # haHousekeepingInterval

FirstOffset = Literal["log", "last-file"]


class OutOfRange(RemoteProtocolError):
    """The end of a slave's log lies outside the master's log, or past what was sent to it.

    Attributes:
        offset: what the slave reported.
        end: the master's log end at that moment.
    """

    reason = "SLAVE_OUT_OF_RANGE"

    def __init__(self, message: str, *, offset: int, end: int) -> None:
        super().__init__(message)
        self.offset = offset
        self.end = end

    @property
    def ahead(self) -> bool:
        """Whether the slave claims more than the master holds."""
        return self.offset > self.end


@dataclass(frozen=True, slots=True)
class Reported:
    """Master: the slave's log ends at `offset`."""

    offset: int
    first: bool  # it asks where to start; the others acknowledge


class MasterProtocol:
    """The master's end of one connection.

    The shell calls `receive` with what it read, `next_frame` whenever the socket takes more, and both of them
    and `check_silence` no later than `deadline`. `begin` and `end` are the log's range at that moment.

    Attributes:
        acknowledged: the newest report, -1 before the first.
        next_offset: where the next frame starts, -1 before the first report.
    """

    __slots__ = (
        "acknowledged",
        "file_size",
        "first_offset",
        "frame_bytes_max",
        "heard_at",
        "heartbeat_s",
        "next_offset",
        "partial",
        "sent_at",
        "silence_s",
    )

    def __init__(
        self,
        *,
        file_size: int,
        frame_bytes_max: int,
        first_offset: FirstOffset,
        now: float,
        heartbeat_s: float = HEARTBEAT_S,
        silence_s: float = SILENCE_S,
    ) -> None:
        if not 0 < frame_bytes_max <= FRAME_BYTES_MAX:
            raise LocalProtocolError(f"frames of {frame_bytes_max} bytes: the limit is {FRAME_BYTES_MAX}")
        self.file_size = file_size
        self.frame_bytes_max = frame_bytes_max
        self.first_offset = first_offset
        self.heartbeat_s = heartbeat_s
        self.silence_s = silence_s
        self.heard_at = self.sent_at = now
        self.partial = b""  # less than one report
        self.acknowledged = -1
        self.next_offset = -1

    @property
    def deadline(self) -> float:
        """When to look again at the latest, even if nothing happens."""
        heard = self.heard_at + self.silence_s
        return heard if self.next_offset < 0 else min(heard, self.sent_at + self.heartbeat_s)

    def receive(self, data: bytes, *, begin: int, end: int, now: float) -> list[Reported]:
        """Take bytes from the slave and return the reports they complete, oldest first.

        Raises:
            OutOfRange: a report lies outside the log, or past what was sent; nothing of it is acknowledged.
            RemoteProtocolError: a report is negative.
        """
        self.heard_at = now
        data = self.partial + data
        whole = len(data) - len(data) % REPORT.size
        self.partial = data[whole:]
        reports = []
        for (offset,) in REPORT.iter_unpack(data[:whole]):
            first = self.next_offset < 0
            if first:
                self.next_offset = self.start_for(offset, begin, end)
            else:
                self.check_report(offset, begin, end)
            self.acknowledged = offset
            reports.append(Reported(offset, first))
        return reports

    def start_for(self, offset: int, begin: int, end: int) -> int:
        """Return where a slave whose log ends at `offset` is fed from."""
        if offset == 0 and self.first_offset == "last-file":
            return max(begin, end - end % self.file_size)
        if offset == 0:
            return begin
        self.check_report(offset, begin, end)
        if offset < begin:
            raise OutOfRange(
                f"the slave's log ends at {offset}, before this log begins: it holds [{begin}, {end}); "
                "the bytes between are gone, so the slave must start with an empty store",
                offset=offset,
                end=end,
            )
        return offset

    def check_report(self, offset: int, begin: int, end: int) -> None:
        """Refuse an offset that no slave of this log can have."""
        if offset < 0:
            raise RemoteProtocolError(f"a report of {offset}: offsets are never negative")
        if offset > end:
            raise OutOfRange(
                f"the slave's log ends at {offset}, {offset - end} bytes past this log's end: "
                f"it holds [{begin}, {end}); one of the two lost or never had these bytes",
                offset=offset,
                end=end,
            )
        if offset > self.next_offset >= 0:
            raise OutOfRange(
                f"a report of {offset}, but the log was sent up to {self.next_offset} only",
                offset=offset,
                end=end,
            )

    def next_frame(self, *, begin: int, end: int, now: float) -> Frame | None:
        """Return the frame to send next, or None when there is nothing to send yet.

        The shell sends it whole before it asks again, or closes the connection.

        Raises:
            OutOfRange: retention has removed what this slave still needs.
        """
        offset = self.next_offset
        if offset < 0:
            return None
        if offset < begin:
            raise OutOfRange(
                f"the slave fell behind: it needs the log from {offset} on, which now begins at {begin}",
                offset=offset,
                end=end,
            )
        # Frames after the first start at multiples of the longest one: whole, aligned pieces are what page
        # caches take fastest (twice as fast as the same bytes shifted, into a new file on ext4).
        longest = self.frame_bytes_max - offset % self.frame_bytes_max
        size = min(end - offset, self.file_size - offset % self.file_size, longest)
        if size <= 0:
            if now - self.sent_at <= self.heartbeat_s:
                return None
            size = 0
        self.sent_at = now
        self.next_offset = offset + size
        return Frame(offset, size)

    def check_silence(self, now: float) -> None:
        """Refuse a slave that has not reported for too long.

        Raises:
            RemoteProtocolError: nothing came for `silence_s`.
        """
        if now - self.heard_at > self.silence_s:
            raise RemoteProtocolError(f"no report for {now - self.heard_at:.0f} s")


@dataclass(frozen=True, slots=True)
class Append:
    """Slave: these bytes of the log come next; with none, an empty log starts at `offset`."""

    offset: int
    data: memoryview


@dataclass(frozen=True, slots=True)
class FrameReceived:
    """Slave: a frame is complete and the log now ends at `end`, which it did not before: time to report."""

    end: int


SlaveEvent = Append | FrameReceived


class SlaveProtocol:
    """The slave's end of one connection.

    The shell sends `report(end)` at once, calls `receive` with what it read, appends what the events say, and
    reports the end of what it has appended. After several events the newest report stands for all. It calls
    `due_report` and `check_silence` no later than `deadline`.

    Attributes:
        end: end of the log with everything received so far; None for an empty log that may start anywhere.
        reported: the newest report, -1 before the first.
    """

    __slots__ = (
        "body_left",
        "end",
        "file_size",
        "header",
        "heard_at",
        "heartbeat_s",
        "reported",
        "reported_at",
        "silence_s",
    )

    def __init__(
        self,
        *,
        end: int,
        file_size: int,
        now: float,
        heartbeat_s: float = HEARTBEAT_S,
        silence_s: float = SILENCE_S,
    ) -> None:
        self.end: int | None = end or None
        self.file_size = file_size
        self.heartbeat_s = heartbeat_s
        self.silence_s = silence_s
        self.header = bytearray()  # the first bytes of a frame whose header is not complete
        self.body_left = 0
        self.reported = -1
        self.heard_at = self.reported_at = now

    @property
    def deadline(self) -> float:
        """When to look again at the latest, even if nothing happens."""
        return min(self.heard_at + self.silence_s, self.reported_at + self.heartbeat_s)

    def report(self, offset: int, now: float) -> bytes:
        """Return the report that the log ends at `offset`."""
        if offset > (self.end or 0):
            raise LocalProtocolError(f"a report of {offset}, but only {self.end} was received")
        self.reported, self.reported_at = offset, now
        return REPORT.pack(offset)

    def due_report(self, now: float) -> bytes:
        """Return a repetition of the last report when it is time for one, else nothing."""
        if self.reported < 0 or now - self.reported_at <= self.heartbeat_s:
            return b""
        return self.report(self.reported, now)

    def receive(self, data: memoryview, now: float) -> Iterator[SlaveEvent]:
        """Take bytes from the master and yield what they mean, in order.

        Bodies are not collected: an `Append` is a view into `data`, and a frame may yield several. All events
        must be taken before `data` is reused; taking them late is fine (the disk is full, say).

        Raises:
            RemoteProtocolError: a frame does not continue the log, or is none; after the events before it.
        """
        self.heard_at = now
        at, size = 0, len(data)
        while at < size:
            if not self.body_left:
                taken = data[at : at + FRAME_HEADER.size - len(self.header)]
                self.header += taken
                at += len(taken)
                if len(self.header) == FRAME_HEADER.size:
                    yield from self.start_frame()
                continue
            assert self.end is not None
            offset, body = self.end, data[at : at + self.body_left]
            at += len(body)
            self.end += len(body)
            self.body_left -= len(body)
            yield Append(offset, body)
            if not self.body_left:
                yield FrameReceived(self.end)

    def start_frame(self) -> tuple[SlaveEvent, ...]:
        """Check a frame's header against the log, and start an empty log there."""
        offset, size = FRAME_HEADER.unpack(self.header)
        self.header.clear()
        if offset < 0 or size < 0:
            raise RemoteProtocolError(f"a frame of {size} bytes at {offset}: this is no HA master")
        if self.end is None and offset % self.file_size:
            raise RemoteProtocolError(
                f"the master starts an empty log at {offset}, which is not the start of a file of "
                f"{self.file_size} bytes: set the master's commitlog file size"
            )
        if self.end is not None and offset != self.end:
            raise RemoteProtocolError(f"the master sends from {offset} on, but this log ends at {self.end}")
        if offset % self.file_size + size > self.file_size:
            raise RemoteProtocolError(
                f"a frame of {size} bytes at {offset} crosses the border of a file of {self.file_size} "
                "bytes: set the master's commitlog file size"
            )
        self.body_left = size
        if self.end is None and (offset or size):
            self.end = offset
            if not size:  # RocketMQ's slaves too start the file at a heartbeat, and report it
                return Append(offset, memoryview(b"")), FrameReceived(offset)
        return ()

    def check_silence(self, now: float) -> None:
        """Give up a master from which nothing has come for too long.

        Raises:
            RemoteProtocolError: nothing came for `silence_s`.
        """
        if now - self.heard_at > self.silence_s:
            raise RemoteProtocolError(f"nothing came from the master for {now - self.heard_at:.0f} s")
