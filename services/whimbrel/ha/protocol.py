"""The two ends of a replication connection as state machines, without any input or output of their own.

The shell around a core reads and writes the socket, keeps the log, and has the clock: every call that needs
the time takes `now`, in seconds of a monotonic clock. A core raises `RemoteProtocolError` when the peer
breaks the protocol; the shell then closes the connection, and a new one gets a new core.

    master
      WAITING    nothing is sent
         | the first report: where the slave's log ends
      STREAMING  frames go out, reports acknowledge

    slave
      COMPARING  the first report is out; what the slave already holds comes again and must be equal
         | the end of the own log is reached; at once when nothing is compared
      APPENDING  frames are appended, and the ends of whole ones reported

      TELLING    a connection of its own: the own log's end is reported, and any answer ends it

**What RocketMQ 4.9.3 does and these cores do as well.** A report of 0 means an empty log. All others are
taken literally. Within a connection nothing is sent twice. An idle master sends a heartbeat after 5 s, an
idle slave repeats its report after 5 s, either closes after 20 s of silence. A slave with an empty log takes
the offset of the first frame it gets, heartbeats included, as the start of its log.

**Where they differ from RocketMQ.** RocketMQ's master believes any offset that is reported (the first always,
later ones in most versions), so that stray bytes on the port confirm messages no slave has: `MasterProtocol`
refuses a report past the log's end or past what it has sent. Its slaves outside the master's range get
heartbeats for ever: ours are refused with both ranges named. It feeds an empty slave from its last file on:
ours starts at the first, `first_offset="last-file"` brings the old rule back. Its slave stays silent for 5 s
after connecting: ours reports at once, which its masters accept. Its idle master is silent for 5 s: ours
sends a first heartbeat as soon as it has sent all there is, and with it says where its log ends.

Reports are all checked, also when several came in one read (RocketMQ looks at the newest only), so that how
the stream is cut into reads makes no difference.

**The logs are compared before the slave's goes on.** In the protocol nothing distinguishes a master that lost
its tail, and has written something else since, from the one the slave knew. So the first report may name an
offset before the slave's end, `start`, which any master takes for that end, and what the master sends of the
overlap must equal what the slave holds. A heartbeat within the overlap says that the master's log ends there,
since frames come in order: `ShorterMaster`. So that the master hears of it, too, the slave connects once
more, to report its real end and for nothing else (`telling`). On the first connection that report would count
as an acknowledgement of bytes which nobody compared, if the master's log had grown meanwhile.

**A first report acknowledges nothing.** It says what the slave claims to hold, of whatever log. A later one
that lies beyond where the master began to send covers bytes of this master's log, which the slave has
compared or appended: from then on the connection is `proven`.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final, Literal

from whimbrel.errors import ConnectionClosed, LocalProtocolError, RemoteProtocolError
from whimbrel.ha.frames import FRAME_BYTES_MAX, FRAME_HEADER, REPORT, Frame, whole_frames

__all__ = [
    "COMPARE_BYTES",
    "HEARTBEAT_S",
    "SILENCE_S",
    "Append",
    "Compare",
    "FirstOffset",
    "FrameReceived",
    "MasterProtocol",
    "OutOfRange",
    "Reported",
    "ShorterMaster",
    "SlaveEvent",
    "SlaveProtocol",
]

HEARTBEAT_S: Final = 5.0  # haSendHeartbeatInterval
SILENCE_S: Final = 20.0  # haHousekeepingInterval
COMPARE_BYTES: Final = 64 * 1024  # before its end that a slave lets a master show it

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


class ShorterMaster(RemoteProtocolError):
    """The master's log ends within what the slave holds."""

    reason = "MASTER_SHORTER"


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
        fed_from: where the first frame starts, -1 before the first report.
    """

    __slots__ = (
        "acknowledged",
        "end_told",
        "fed_from",
        "file_size",
        "first_offset",
        "frame_bytes_max",
        "heartbeat_s",
        "next_offset",
        "partial",
        "received_at",
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
        self.received_at = self.sent_at = now
        self.partial = b""  # less than one report
        self.acknowledged = -1
        self.next_offset = self.fed_from = -1
        self.end_told = False  # a heartbeat has said where the log ended

    @property
    def proven(self) -> bool:
        """Whether a report has covered bytes that were sent over this connection."""
        return self.acknowledged > self.fed_from >= 0

    @property
    def silence_deadline(self) -> float:
        """When a slave that reports nothing is given up."""
        return self.received_at + self.silence_s

    @property
    def deadline(self) -> float:
        """When `next_frame` and `check_silence` must be called again at the latest.

        While the socket takes nothing, no heartbeat can be sent: then it is `silence_deadline`.
        """
        if self.next_offset < 0:
            return self.silence_deadline
        return min(self.silence_deadline, self.sent_at + self.heartbeat_s)

    def receive(self, data: bytes, *, begin: int, end: int, now: float) -> list[Reported]:
        """Take bytes from the slave and return the reports they complete, oldest first.

        Raises:
            OutOfRange: a report lies outside the log, or past what was sent; nothing of it is acknowledged.
            RemoteProtocolError: a report is negative.
        """
        self.received_at = now
        data = self.partial + data
        whole = len(data) - len(data) % REPORT.size
        self.partial = data[whole:]
        reports = []
        for (offset,) in REPORT.iter_unpack(data[:whole]):
            first = self.next_offset < 0
            if first:
                self.next_offset = self.fed_from = self.start_for(offset, begin, end)
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
            if self.end_told and now - self.sent_at <= self.heartbeat_s:
                return None
            self.end_told, size = True, 0
        self.sent_at = now
        self.next_offset = offset + size
        return Frame(offset, size)

    def check_silence(self, now: float) -> None:
        """Refuse a slave that has not reported for too long.

        Raises:
            RemoteProtocolError: nothing came for `silence_s`.
        """
        if now - self.received_at > self.silence_s:
            raise RemoteProtocolError(f"no report for {now - self.received_at:.0f} s")


@dataclass(frozen=True, slots=True)
class Compare:
    """Slave: the own log has bytes at `offset` already; the shell reads them and calls `compare`."""

    offset: int
    data: memoryview  # the master's, never empty


@dataclass(frozen=True, slots=True)
class Append:
    """Slave: these bytes of the log come next; with none, an empty log starts at `offset`."""

    offset: int
    data: memoryview


@dataclass(frozen=True, slots=True)
class FrameReceived:
    """Slave: a frame that is no heartbeat is complete; once it is appended, `end` may be reported."""

    end: int


SlaveEvent = Compare | Append | FrameReceived


class SlaveProtocol:
    """The slave's end of one connection.

    The shell sends `first_report` at once and calls `receive` with what it read. It answers each `Compare`
    with `compare`, appends what each `Append` carries, and then asks `next_report` what to send: after
    several events the newest report stands for all. It calls `next_report` and `check_silence` no later than
    `deadline`.

    Attributes:
        log_end: where the own log ended when the connection was made.
        end: what was received ends here; None for an empty log that may start anywhere.
        compared_end: up to here the own log equals the master's, as far as it was compared.
        reported: the newest acknowledgement, -1 before the first report.
        answered: whether the master has sent anything.
        header_bytes: how long the header is that comes next, or is coming.
    """

    __slots__ = (
        "answered",
        "body_left",
        "compared_end",
        "end",
        "file_size",
        "header",
        "header_bytes",
        "heartbeat_s",
        "log_end",
        "received_at",
        "reported",
        "reported_at",
        "silence_s",
        "telling",
    )

    def __init__(
        self,
        *,
        end: int,
        file_size: int,
        now: float,
        start: int = -1,
        telling: bool = False,
        heartbeat_s: float = HEARTBEAT_S,
        silence_s: float = SILENCE_S,
    ) -> None:
        """Begin.

        Args:
            end: of the own log, 0 when it is empty.
            start: from where on the master is to show what is held up to `end`; -1: nothing is compared.
            telling: the master is to learn where the own log ends, and nothing else.
        """
        if start < 0 or telling:
            start = end
        if not min(end, 1) <= start <= end:
            raise LocalProtocolError(f"an overlap from {start} on, but the log ends at {end}")
        self.log_end = end
        self.end: int | None = start or None
        self.compared_end = start
        self.telling = telling
        self.file_size = file_size
        self.heartbeat_s = heartbeat_s
        self.silence_s = silence_s
        self.header = bytearray()  # the first bytes of a frame whose header is not complete
        self.header_bytes = FRAME_HEADER.size
        self.body_left = 0
        self.reported = -1
        self.answered = False
        self.received_at = self.reported_at = now

    @property
    def comparing(self) -> bool:
        """Whether the master has still to show a part of the overlap."""
        return self.compared_end < self.log_end

    @property
    def accepted(self) -> bool:
        """Whether the master has answered, and its log is one that the own log can go on from."""
        return self.answered and not self.telling and self.compared_end >= self.log_end

    @property
    def deadline(self) -> float:
        """When the timers must be asked again at the latest."""
        return min(self.received_at + self.silence_s, self.reported_at + self.heartbeat_s)

    def first_report(self, now: float) -> bytes:
        """Return the report that asks for the log: from the own end on, or from the start of the overlap."""
        return self.report(self.end or 0, now)

    def report(self, offset: int, now: float) -> bytes:
        """Return the report that the log ends at `offset`."""
        if offset > (self.end or 0):
            raise LocalProtocolError(f"a report of {offset}, but only {self.end} was received")
        self.reported, self.reported_at = offset, now
        return REPORT.pack(offset)

    def has_grown(self, held: int) -> bool:
        """Return whether `next_report` has a new end to report."""
        return min(held, self.end or 0) > self.reported

    def next_report(self, held: int, now: float) -> bytes:
        """Return the report of a log that has grown, else a repetition that is due, else nothing.

        Args:
            held: up to where the own log may be acknowledged.
        """
        offset = min(held, self.end or 0)
        return self.report(offset, now) if offset > self.reported else self.due_report(now)

    def due_report(self, now: float) -> bytes:
        """Return a repetition of the last report when it is time for one, else nothing."""
        if self.reported < 0 or now - self.reported_at <= self.heartbeat_s:
            return b""
        return self.report(self.reported, now)

    def mark_received(self, now: float) -> None:
        """Note that bytes came in: timers of silence start anew. For bytes that `receive` gets only later."""
        self.answered = True
        self.received_at = now

    def receive(self, data: memoryview, now: float) -> Iterator[SlaveEvent]:
        """Take bytes from the master and yield what they mean, in order.

        Bodies are not collected: the events carry views into `data`, and a frame may yield several. All
        events must be taken before `data` is reused; taking them late is fine (the disk is full, say).

        Raises:
            RemoteProtocolError: a frame does not continue the log, or is none; after the events before it.
            ShorterMaster: the master's log ends before ours.
            ConnectionClosed: the master was to be told our end only, and goes on from there.
            LocalProtocolError: a `Compare` was not answered.
        """
        self.mark_received(now)
        at, size = 0, len(data)
        while at < size:
            if not self.body_left:
                taken = data[at : at + self.header_bytes - len(self.header)]
                self.header += taken
                at += len(taken)
                if len(self.header) == self.header_bytes:
                    yield from self.start_frame()
                continue
            assert self.end is not None
            offset, body = self.end, data[at : at + self.body_left]
            at += len(body)
            self.end += len(body)
            self.body_left -= len(body)
            if offset < self.log_end:
                known = min(self.log_end - offset, len(body))
                yield Compare(offset, body[:known])
                if self.compared_end != offset + known:
                    raise LocalProtocolError(f"{known} bytes at {offset} were not compared")
                offset, body = offset + known, body[known:]
            if body:
                yield Append(offset, body)
            if not self.body_left:
                yield FrameReceived(self.end)

    def compare(self, event: Compare, ours: bytes) -> None:
        """Take what the own log holds where `event` says.

        Raises:
            RemoteProtocolError: the master has other bytes there.
            LocalProtocolError: `ours` is not as long as the master's bytes.
        """
        theirs = event.data
        if len(ours) != len(theirs):
            raise LocalProtocolError(f"{len(ours)} bytes at {event.offset} to compare with {len(theirs)}")
        if theirs != ours:
            at = event.offset + next(at for at in range(len(ours)) if theirs[at] != ours[at])
            raise RemoteProtocolError(
                f"the master's log differs from ours at byte {at}, before our end {self.log_end}:"
                " one side came back with a shorter log and went on; keep the store that is right, and start"
                " the other side with a copy of it or with an empty store"
            )
        self.compared_end = event.offset + len(ours)

    def whole(self, data: memoryview, at: int) -> tuple[int, int]:
        """Return up to where `data` holds whole frames, and what the next one lacks: see `whole_frames`."""
        return whole_frames(data, at)

    def start_frame(self) -> tuple[SlaveEvent, ...]:
        """Take a header that is complete."""
        offset, size = FRAME_HEADER.unpack(self.header)
        self.header.clear()
        return self.begin_body(offset, size)

    def begin_body(self, offset: int, size: int) -> tuple[SlaveEvent, ...]:
        """Check a frame against the log, and start an empty log there."""
        if offset < 0 or size < 0:
            raise RemoteProtocolError(f"a frame of {size} bytes at {offset}: this is no HA master")
        if self.telling:
            raise ConnectionClosed(
                f"its log goes on at our end {self.log_end} now: the logs are compared again"
            )
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
        if not size and offset < self.log_end:
            raise ShorterMaster(
                f"the master's log ends at {offset}, ours {self.log_end - offset} bytes later at"
                f" {self.log_end}: one of the two lost or never had these bytes"
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
        if now - self.received_at > self.silence_s:
            raise RemoteProtocolError(f"nothing came from the master for {now - self.received_at:.0f} s")

    def closed(self, *, begin: int, end: int) -> ConnectionClosed:
        """Return the error that says what it may mean that the master closed the connection.

        Args:
            begin, end: the own log's range now.
        """
        if self.accepted:
            return ConnectionClosed("closed by the master")
        return ConnectionClosed(
            f"closed by the master without a word: our log [{begin}, {end}) is probably not a part of its "
            "log; its own log lines say which part it holds"
        )
