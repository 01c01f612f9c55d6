"""Spans of the replicators. Neither protocol nor log hold anything for them but the messages' own properties.

A master's replicator scans, once a turn and after it has sent, what the log has grown by:

    log grown       ──► ContextScanner ──► `recent`, the RECENT_MAX newest sampled records
    frame sent      ──► a transfer span for each record that ends in it, and one for the frame itself,
                        which links to at most FRAME_LINKS_MAX of them
    report received ──► an acknowledgement span for each record sent over its connection that it covers

A record that goes out to a host again, after a connection to it ended, counts a further attempt. (Several
slaves on one host count as one here: the protocol does not identify slaves.)

A slave's replicator scans what it has appended, and in a group that commits by majority it remembers what it
found until it hears that it is committed, the UNCOMMITTED_MAX newest of it.
"""

import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import ClassVar

from whimbrel.model.trace import TracedRecord
from whimbrel.replicator.options import ReplicatorOptions
from whimbrel.replicator.slave_connection import SlaveConnection
from whimbrel.store.shared_page import SharedPage
from whimbrel.store.trace_scanner import ContextScanner
from whimbrel.telemetry import (
    ACKNOWLEDGE,
    FRAME,
    REPLICATOR_SERVICE,
    SLAVE_APPEND,
    SLAVE_COMMIT,
    TRANSFER,
    Attribute,
)
from whimbrel.tracing import identity, open_tracer

__all__ = ["FeederTraces", "FollowerTraces"]

RECENT_MAX = 4096  # sampled records that a slave which lags, or comes back, is still traced for; about 3 MB
FRAMES_MAX = 1024  # frames of one turn that are traced; a turn sends 8 MiB a slave, 32 KiB frames or larger
FRAME_LINKS_MAX = 32
UNCOMMITTED_MAX = 4096  # sampled records of a slave that are not known to be committed
SENT_MAX = 64  # connections remembered of one record; attempts beyond are not counted

Read = Callable[[int, int], bytes]


class Traces:
    """What both ends share: the tracer, and which broker this is beside."""

    role: ClassVar[str]

    def __init__(self, options: ReplicatorOptions, page: SharedPage) -> None:
        self.page = page
        self.tracer = open_tracer(options.trace_to, REPLICATOR_SERVICE, {Attribute.ROLE: self.role})
        self.close = self.tracer.close

    @property
    def broker(self) -> dict[str, str | int]:
        """The attributes that name the broker, as it has written them into the page."""
        return identity(self.page.broker_name, self.page.broker_id)


@dataclass(slots=True)
class Recent:
    """A sampled record, and the connections over which it was sent: (host, connection number)."""

    record: TracedRecord
    sent: deque[tuple[str, int]] = field(default_factory=lambda: deque(maxlen=SENT_MAX))


@dataclass(frozen=True, slots=True)
class FrameSpan:
    """A frame that has been handed to a socket."""

    connection: SlaveConnection
    offset: int
    size: int
    began_ns: int
    ended_ns: int


@dataclass(slots=True)
class Unacknowledged:
    """A record that went out over a connection whose report does not cover it yet."""

    record: TracedRecord
    sent_ns: int
    attempt: int


class TracedConnection:
    """What is remembered of one connection to a slave."""

    def __init__(self, number: int, peer: str) -> None:
        self.number = number
        self.host = peer.rpartition(":")[0]
        self.peer = peer
        self.waiting: deque[Unacknowledged] = deque(maxlen=RECENT_MAX)


class FeederTraces(Traces):
    """The master's side."""

    role = "master"

    def __init__(self, options: ReplicatorOptions, page: SharedPage) -> None:
        super().__init__(options, page)
        self.scanner: ContextScanner | None = None
        self.recent: deque[Recent] = deque(maxlen=RECENT_MAX)
        self.frames: list[FrameSpan] = []
        self.connections: dict[SlaveConnection, TracedConnection] = {}
        self.numbers = 0

    def recovered(self, read: Read, end: int, file_size: int) -> None:
        """Begin with the log's end: it was recovered, and may have been cut."""
        self.scanner = ContextScanner(read, end, file_size)
        self.recent.clear()

    def connected(self, connection: SlaveConnection) -> None:
        """Follow a new connection."""
        self.numbers += 1
        self.connections[connection] = TracedConnection(self.numbers, connection.peer)
        connection.on_frame = lambda offset, size, began_ns: self.sent(connection, offset, size, began_ns)

    def disconnected(self, connection: SlaveConnection) -> None:
        """Forget a connection."""
        self.connections.pop(connection, None)

    def sent(self, connection: SlaveConnection, offset: int, size: int, began_ns: int) -> None:
        """Note a frame that has been sent; spans follow at the end of the turn."""
        if len(self.frames) < FRAMES_MAX:
            self.frames.append(FrameSpan(connection, offset, size, began_ns, time.time_ns()))

    def end_turn(self, end: int) -> None:
        """Scan what is new in the log, then record the frames that held sampled records."""
        if self.scanner is not None and end != self.scanner.position:
            self.recent.extend(Recent(record) for record in self.scanner.advance(end))
        if self.frames:
            frames, self.frames = self.frames, []
            if self.recent:
                for frame in frames:
                    self.record_frame(frame)

    def record_frame(self, frame: FrameSpan) -> None:
        """Record the spans of one frame."""
        traced = self.connections.get(frame.connection)
        end = frame.offset + frame.size
        inside: list[Recent] = []
        for each in reversed(self.recent):  # in the log's order: the newest frames hold the newest records
            if each.record.end <= frame.offset:
                break
            if each.record.end <= end:
                inside.append(each)
        if traced is None or not inside:
            return
        inside.reverse()
        about: dict[str, str | int] = {
            **self.broker,
            Attribute.SLAVE: traced.peer,
            Attribute.FRAME_OFFSET: frame.offset,
            Attribute.FRAME_SIZE: frame.size,
        }
        open_numbers = {each.number for each in self.connections.values()}
        for each in inside:
            attempt = 1 + sum(
                host == traced.host and number not in open_numbers for host, number in each.sent
            )
            each.sent.append((traced.host, traced.number))
            self.tracer.stage(
                TRANSFER, each.record, frame.began_ns, frame.ended_ns, {**about, Attribute.ATTEMPT: attempt}
            )
            traced.waiting.append(Unacknowledged(each.record, frame.ended_ns, attempt))
        self.tracer.record(
            FRAME,
            None,
            frame.began_ns,
            frame.ended_ns,
            {**about, Attribute.FRAME_RECORDS: len(inside)},
            links=[each.record.context for each in inside[:FRAME_LINKS_MAX]],
        )

    def acknowledged(self, connection: SlaveConnection, offset: int) -> None:
        """Record what a report covers."""
        traced = self.connections.get(connection)
        if traced is None:
            return
        now_ns = time.time_ns()
        while traced.waiting and traced.waiting[0].record.end <= offset:
            one = traced.waiting.popleft()
            about: dict[str, str | int] = {
                **self.broker,
                Attribute.SLAVE: traced.peer,
                Attribute.ATTEMPT: one.attempt,
                Attribute.ACKNOWLEDGED: offset,
            }
            self.tracer.stage(ACKNOWLEDGE, one.record, one.sent_ns, now_ns, about)


class FollowerTraces(Traces):
    """The slave's side."""

    role = "slave"

    def __init__(
        self, options: ReplicatorOptions, page: SharedPage, read: Read, end: int, file_size: int
    ) -> None:
        super().__init__(options, page)
        self.scanner = ContextScanner(read, end, file_size)
        self.uncommitted: deque[tuple[TracedRecord, int]] = deque(maxlen=UNCOMMITTED_MAX)

    def appended(self, end: int, began_ns: int) -> None:
        """Record the sampled records that are whole in the log now."""
        now_ns = time.time_ns()
        for record in self.scanner.advance(end):
            self.tracer.stage(SLAVE_APPEND, record, began_ns, now_ns, self.broker)
            if self.page.ha_dialect:
                self.uncommitted.append((record, now_ns))

    def committed(self, end: int) -> None:
        """Record what is known to be committed now."""
        if self.uncommitted and self.uncommitted[0][0].end <= end:
            now_ns, broker = time.time_ns(), self.broker
            while self.uncommitted and self.uncommitted[0][0].end <= end:
                record, began_ns = self.uncommitted.popleft()
                self.tracer.stage(SLAVE_COMMIT, record, began_ns, now_ns, broker)
