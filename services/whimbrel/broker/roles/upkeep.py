"""What a leader says of its log's retention, before and after: what a disk that fills will do, what went for
want of space, and for how long there is still what a member lacks that is away.

    disk use near the limit, or there within a day    a WARNING once, a note in `whimbrel health`
    files went that were not old enough               a WARNING each time, advice for `TOLD_S`, metrics
    a voter is away                                   a note: until when the log has what it lacks

The limit is `disk_clean_ratio` where a full disk drops the oldest files, else `disk_full_ratio`.
"""

import logging
from collections.abc import Callable, Collection, Mapping
from datetime import UTC, datetime

from whimbrel.broker.consume.dropped import Dropped, count_messages
from whimbrel.broker.consume.leases import LeaseTable
from whimbrel.machine import Machine
from whimbrel.store.master_store import MasterStore

__all__ = ["NEAR", "LogUpkeep"]

logger = logging.getLogger(__name__)

NEAR = 0.05  # of the disk's use: so far below the limit it is told
SOON_S = 24 * 3600.0  # likewise, when it is reached by then
TOLD_S = 3600.0  # for so long what went is told
COUNT_S = 60.0  # between two counts of what would go next


class LogUpkeep:
    """Watches the retention of a leader's log; on the loop's thread.

    Attributes:
        dropped, unread: messages that went for want of space, and how many groups had not finished.
    """

    def __init__(self, name: str, store: MasterStore, leases: LeaseTable, machine: Machine) -> None:
        """Watch a store; `name` is the group's."""
        self.name, self.store, self.leases, self.machine = name, store, leases, machine
        self.log = store.writer
        self.log.before_dropping = self.before_dropping
        self.dropped = self.unread = 0
        self.recent: tuple[Dropped, float, int] | None = None  # what went, last, by both clocks
        self.next_counted: tuple[float, Dropped] = (float("-inf"), Dropped())
        self.ahead = ""  # what is about to happen
        self.ends: dict[int, int] = {}  # how far members were known to be, by id

    # A disk that fills

    def before_dropping(self, begin: int, end: int) -> None:
        """Count what goes, and say so."""
        found, now = count_messages(self.store.queues, self.leases, begin, end), self.machine.monotonic()
        self.dropped += found.messages
        self.unread += found.unread_messages
        before = self.recent
        together = found if before is None or now - before[1] > TOLD_S else before[0] + found
        self.recent = together, now, self.machine.wall_ms()
        logger.warning(
            "%s drops what is not old enough, since its disk is full: %s; make room, or set full_disk to"
            " refuse",
            self.name,
            found,
        )

    @property
    def limit(self) -> float:
        """How full the disk may be before something happens."""
        options = self.log.kept_options
        return options.disk_clean_ratio if options.full_disk == "drop" else options.disk_full_ratio

    @property
    def limit_s(self) -> float | None:
        """In how many seconds that will be, as the disk has filled lately; None where it does not fill."""
        return self.log.disk_trend.seconds_until(self.limit, self.log.disk)

    def look(self) -> None:
        """See what is ahead; to be called after each round of retention."""
        before, self.ahead = self.ahead, self.disk_ahead()
        if self.ahead and not before:
            logger.warning("%s: %s", self.name, self.ahead)

    def disk_ahead(self) -> str:
        """Return what a disk that fills is about to do, and when; "" while that is far."""
        disk, limit, seconds = self.log.disk, self.limit, self.limit_s
        if disk.ratio <= limit - NEAR and (seconds is None or seconds > SOON_S):
            return ""
        refuses = self.log.kept_options.full_disk == "refuse"
        told = f"the disk is {disk.ratio:.0%} full, the limit is {limit:.0%}:"
        if disk.ratio <= limit:
            room = (limit - disk.ratio) * disk.usable_bytes / (1 << 30)
            when = "" if seconds is None else f", in about {about(seconds)} as it fills now"
            told = f"the disk is {disk.ratio:.0%} full: at {limit:.0%}, after {room:.1f} GiB more{when},"
        elif refuses:
            return ""  # sends are refused, and that is said
        if refuses:
            return f"{told} sends are refused; make room, or set a shorter reserved_hours"
        following = self.would_go()
        which = f" first {following}," if following.messages else ""
        return (
            f"{told} the oldest messages go, whatever their age,{which} 1 log file at a time; make room, or"
            " set full_disk to refuse"
        )

    def would_go(self) -> Dropped:
        """Return what is in the oldest file."""
        counted_at, found = self.next_counted
        now, log = self.machine.monotonic(), self.log
        if now - counted_at > COUNT_S:
            found = Dropped()
            if (end := log.begin + log.file_size) <= log.end:
                found = count_messages(self.store.queues, self.leases, log.begin, end)
            self.next_counted = now, found
        return found

    def advice(self) -> str:
        """Return what went for want of space of late; "" where nothing did."""
        if self.recent is None or self.machine.monotonic() - self.recent[1] > TOLD_S:
            return ""
        found, _, at_ms = self.recent
        return (
            f"the disk is full, and messages went that were not old enough: {found}, the last at"
            f" {told_time(at_ms)}; make room, or set full_disk to refuse"
        )

    # Members that are away

    def seen(self, ends: Mapping[int, int]) -> None:
        """Take how far connected members are."""
        self.ends |= ends

    def away(self, members: Collection[int], reinit: Callable[[int], str]) -> list[str]:
        """Say of members that are not connected until when there is what they lack.

        Args:
            members: ids of those that are away.
            reinit: returns the command by which a member begins anew.
        """
        return [self.kept_for(member, reinit(member)) for member in sorted(members)]

    def kept_for(self, member: int, reinit: str) -> str:
        """Say until when there is what a member lacks that is away."""
        end, begin = self.ends.get(member), self.log.begin
        hours = self.log.kept_options.reserved_hours
        anew = f"then it is to begin anew: `{reinit}`"
        if end is None:
            return (
                f"member {member} is away, and how far its log goes is not known here: what this leader wrote"
                f" is kept for {hours:g} h, and while the disk allows; {anew}"
            )
        if end < begin:
            return f"member {member} is away, and lacks what is gone here: `{reinit}` has it begin anew"
        until_ms = self.log.kept_until_ms(end)
        until = f"for {hours:g} h more" if until_ms is None else f"until {told_time(until_ms)}"
        return (
            f"member {member} is away: what follows its log, which ended at {end}, is kept {until}, and while"
            f" the disk allows; {anew}"
        )


def about(seconds: float) -> str:
    """Return a time span for people."""
    minutes = seconds / 60
    if minutes < 1:
        return "a minute"
    return f"{minutes:.0f} min" if minutes < 120 else f"{minutes / 60:.0f} h"


def told_time(wall_ms: int) -> str:
    """Return a time for people."""
    return f"{datetime.fromtimestamp(wall_ms / 1000, UTC):%Y-%m-%d %H:%M:%S} UTC"
