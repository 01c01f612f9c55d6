"""The confirmed offset: up to here, what is read is on every slave that keeps up.

    master   the smallest acknowledged offset of the in-sync slaves; a slave is in sync while it is less than
             `slave_fallbehind_max_bytes` behind, and connected or gone for less than `AWAY_S`: it is coming
             back, and may be the next master. Without any:
                 asynchronous replication   the written end
                 synchronous                unchanged; but the written end where no slave was ever configured
                                            or connected
    slave    what its master sent last, at most its own end
    majority the commit offset (`commit.py`), on a slave as it came with the log itself

**With synchronous replication a failover to an in-sync slave takes nothing back** of what was confirmed. With
asynchronous replication that holds while slaves are in sync; a master that has none for `AWAY_S` goes on
alone, and what only it holds is lost with it, confirmed or not.

It never goes back, unless recovery cuts the log. It has one meaning wherever it appears: in the shared page
(for readers of a live store's files), in DescribeReplication, in the bulk service, and in what slaves are
sent. The response to a send does not depend on it; that waits as `appender.py` says.

A call to the broker returns it as of that moment. The page's cell is at most `POLL_S` old while messages come
in, else the interval of the broker's beat. A slave gets it through the metadata watch when it has moved,
`POLL_S` apart at least; it stays as it is while the master is gone.

It survives a restart: in the page, and after a reboot in `STORE/whimbrel/confirmed` (the offset, and whether
a slave was ever connected; written every few seconds, so it may be lower than it was, which harms nobody).
"""

import logging
import struct
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Protocol

from whimbrel.machine import FILES, Files
from whimbrel.store import recovery_marks as marks
from whimbrel.store.checkpoint import write_checkpoint
from whimbrel.store.counted_slaves import CountedSlave

__all__ = [
    "AWAY_S",
    "POLL_S",
    "CommittedSlave",
    "ConfirmedFile",
    "MajorityConfirmed",
    "MasterConfirmed",
    "SlaveConfirmed",
    "confirm",
    "in_sync",
]

logger = logging.getLogger(__name__)

POLL_S = 0.05  # between two polls of the slaves' acknowledgements while the log moves
# Longer than a supervisor takes to restart a replicator, and RocketMQ's slaves to come back (10 s).
AWAY_S = 15.0
FRUITLESS_POLLS_MAX = 20  # after which only the broker's beat polls: a slave may hang for long


def in_sync(acknowledged: Sequence[int], written: int, fallbehind_max: int) -> list[int]:
    """Return the offsets of slaves that are near enough to the log's end."""
    return [ack for ack in acknowledged if written - ack < fallbehind_max]


def confirm(
    before: int, *, written: int, acknowledged: Sequence[int], fallbehind_max: int, waits_for_slaves: bool
) -> int:
    """Return a master's confirmed offset.

    Args:
        before: what it was.
        written: the log's end.
        acknowledged: what each slave has acknowledged that is connected or was until lately.
        fallbehind_max: bytes; see the module's text.
        waits_for_slaves: replication is synchronous, and there is, or was, a slave; or one may still come.
    """
    near = in_sync(acknowledged, written, fallbehind_max)
    if near:
        return max(before, min(*near, written))
    return before if waits_for_slaves else max(before, written)


class Marks(Protocol):
    """What is used of the page of marks."""

    confirmed: int
    commit: int

    def slave_acks(self) -> list[tuple[CountedSlave, int]]:
        """The connected slaves that have acknowledged something, with how far."""

    def replica_alive(self, now_ns: int) -> bool:
        """Whether the replicator beats; a killed one leaves its last acknowledgements in the page."""


class Timers(Protocol):
    """What is used of the event loop."""

    def time(self) -> float:
        """Seconds of the monotonic clock."""

    def call_later(self, delay: float, callback: Callable[[], None]) -> Any:
        """Run it after a while."""


class RecentSlaves:
    """What slaves have acknowledged that are connected, or were until `AWAY_S` ago.

    A slave that is connected again counts for its host until its broker has said which one it is.
    """

    def __init__(self) -> None:
        """Begin without any."""
        self.seen: dict[tuple[str, int], tuple[int, float]] = {}  # by host and broker id: offset, when

    def update(self, connected: Sequence[tuple[CountedSlave, int]], now: float) -> list[int]:
        """Take what the connected slaves have acknowledged; return that of all that count."""
        seen = self.seen
        for slave, offset in connected:
            if slave.broker_id and (slave.host, 0) in seen:
                del seen[slave.host, 0]
            seen[slave.host, slave.broker_id] = offset, now
        if len(seen) > len(connected):
            for key, (_, at) in tuple(seen.items()):
                if now - at >= AWAY_S:
                    del seen[key]
        return [offset for offset, _ in seen.values()]


class ConfirmedFile:
    """`STORE/whimbrel/confirmed`, which outlives a reboot."""

    LAYOUT, TAG = struct.Struct("=8sqq"), b"whimcfm1"

    def __init__(self, root: Path, files: Files = FILES) -> None:
        """Read the file; a missing or damaged one counts as offset 0."""
        self.path, self.files = root / "whimbrel" / "confirmed", files
        fields = marks.load(files, self.path, self.LAYOUT, self.TAG)
        self.offset: int = fields[1] if fields else 0
        self.slaves_seen = bool(fields and fields[2])
        self.noted = -1  # the commit offset that was written last

    def note_committed(self, offset: int) -> None:
        """Write a commit offset where RocketMQ looks for it, and who reads the files without a broker."""
        if offset != self.noted:
            try:
                write_checkpoint(self.path.parent.parent, committed=offset, files=self.files)
            except OSError as error:
                logger.warning("how far the log is committed can't be written: %s", error)
                return
            self.noted = offset

    def save(self, offset: int, *, slaves_seen: bool) -> None:
        """Write what changed; on the disk for certain only where it went back."""
        if (offset, slaves_seen) == (self.offset, self.slaves_seen):
            return
        data = self.LAYOUT.pack(self.TAG, offset, slaves_seen)
        try:
            marks.save(self.files, self.path, data, sync=offset < self.offset)
        except OSError as error:
            logger.warning("how far the log is confirmed can't be written: %s", error)
            return
        self.offset, self.slaves_seen = offset, slaves_seen


class MasterConfirmed:
    """A master's confirmed offset; on the loop's thread."""

    def __init__(
        self,
        page: Marks,
        file: ConfirmedFile,
        loop: Timers,
        *,
        written: Callable[[], int],
        kept: int,
        fallbehind_max: int,
        synchronous: bool,
        expected_slaves: int,
    ) -> None:
        """Begin with what was confirmed before, as far as the log still has it: up to `kept`."""
        self.page, self.file, self.loop = page, file, loop
        self.written = written
        self.fallbehind_max = fallbehind_max
        self.synchronous = synchronous
        self.expected = expected_slaves > 0
        self.slaves_seen = file.slaves_seen
        self.recent = RecentSlaves()
        self.in_sync_at = loop.time()  # when a connected slave was in sync last; at first the start
        page.confirmed = min(max(page.confirmed, file.offset), kept)
        self.on_move: Callable[[], None] | None = None  # called when there is news for slaves
        self.published = -1
        self.timer: Any = None
        self.polls_left = 0
        self.save()

    def refresh(self) -> int:
        """Return the confirmed offset as of now."""
        page, written = self.page, self.written()
        time = self.loop.time()
        connected = page.slave_acks() if page.replica_alive(int(time * 1e9)) else []
        self.slaves_seen = self.slaves_seen or bool(connected)
        if in_sync([offset for _, offset in connected], written, self.fallbehind_max):
            self.in_sync_at = time
        # One that was configured, or was here, may still come back with what it has.
        expected = self.expected or self.slaves_seen
        now = confirm(
            page.confirmed,
            written=written,
            acknowledged=self.recent.update(connected, time),
            fallbehind_max=self.fallbehind_max,
            waits_for_slaves=expected and (self.synchronous or time - self.in_sync_at < AWAY_S),
        )
        if now != page.confirmed:
            page.confirmed = now
        return now

    def log_grew(self) -> None:
        """Poll the acknowledgements for a while: the log has grown."""
        self.polls_left = FRUITLESS_POLLS_MAX
        if self.timer is None:
            self.timer = self.loop.call_later(POLL_S, self.beat)

    def beat(self) -> None:
        """Poll, publish, and poll again soon if something is on its way; to be called periodically."""
        if self.timer is not None:
            self.timer.cancel()
            self.timer = None
        now = self.refresh()
        if now != self.published:
            self.published = now
            self.polls_left = FRUITLESS_POLLS_MAX
            if self.on_move is not None:
                self.on_move()
        if now < self.written() and self.polls_left > 0:
            self.polls_left -= 1
            self.timer = self.loop.call_later(POLL_S, self.beat)

    def save(self) -> None:
        """Write the file, if there is news."""
        self.file.save(self.page.confirmed, slaves_seen=self.slaves_seen)

    def close(self) -> None:
        """Stop polling, and write the file."""
        if self.timer is not None:
            self.timer.cancel()
            self.timer = None
        self.refresh()
        self.save()


class MajorityConfirmed(MasterConfirmed):
    """That of a master whose group commits by majority: the commit offset, which its `kept` must be."""

    def refresh(self) -> int:
        """Return the commit offset as of now."""
        page = self.page
        self.slaves_seen = True
        if page.commit != page.confirmed:
            page.confirmed = page.commit
        return page.confirmed

    def save(self) -> None:
        """Write the files, if there is news."""
        super().save()
        self.file.note_committed(self.page.confirmed)


class SlaveConfirmed:
    """A slave's confirmed offset; on the loop's thread."""

    def __init__(self, page: Marks, file: ConfirmedFile, *, written: Callable[[], int], kept: int) -> None:
        """Begin with what was known before, as far as the log still has it: up to `kept`."""
        self.page, self.file = page, file
        self.written = written
        self.master_offset = min(max(page.confirmed, file.offset), kept)
        self.refresh()
        self.save()

    def learn(self, offset: int) -> None:
        """Take the master's confirmed offset; one that starts anew may know less than it did."""
        self.master_offset = max(self.master_offset, offset)
        self.refresh()

    def cut(self, end: int) -> None:
        """Forget what lies beyond `end`, where the log was cut."""
        self.master_offset = min(self.master_offset, end)
        self.refresh()

    def refresh(self) -> int:
        """Return the confirmed offset as of now."""
        now: int = min(self.master_offset, self.written())
        if now != self.page.confirmed:
            self.page.confirmed = now
        return now

    beat = refresh

    def save(self) -> None:
        """Write the file, if there is news."""
        self.file.save(self.page.confirmed, slaves_seen=self.file.slaves_seen)

    def close(self) -> None:
        """Write the file."""
        self.refresh()
        self.save()


class CommittedSlave(SlaveConfirmed):
    """That of a slave whose group commits by majority: how far its log is committed, as `written` says."""

    def learn(self, offset: int) -> None:
        """Nothing: what the master's broker says is about the master's log, and ours may still be another."""

    def refresh(self) -> int:
        """Return the confirmed offset as of now."""
        now = self.written()
        if now != self.page.confirmed:
            self.page.confirmed = now
        return now

    def save(self) -> None:
        """Write the files, if there is news."""
        super().save()
        self.file.note_committed(self.page.confirmed)

    beat = refresh
