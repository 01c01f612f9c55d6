"""Which lease entries count that another process sent, or that stood on the disk: bounds of every field.

An entry outlives whoever made it: it is journalled, sent on to the other brokers and merged, and a maximum
wins every merge. So a value that no broker writes would stay for ever. Entries are judged one by one, and one
that is refused does not keep the others from counting:

    names            not empty, without control characters
    queue id         0 to `QUEUE_ID_MAX`
    epoch            0 to `EPOCH_MAX`; 2^31 resets are left above it
    offsets          first <= end <= `OFFSET_MAX`
    leased offsets   1 to `LEASE_COUNT_MAX` in an entry, and `HELD_MAX` in a queue
    serial           its time is at most `CLOCK_AHEAD_MS` ahead of the clock here
    taken at         likewise
    visible at       at most the longest invisible time later
    revision         0 to `REVISION_MAX`; a lease is renewed 200 times at most
    attempt          0 to `ATTEMPT_MAX`; SDKs read it as a signed number of 32 bits
    attempt id       not empty (255 bytes at most have room); kept for what is held, see `queue_leases.py`

The other broker is not told: its state is as it was, and an offset whose lease is refused here is unread
here, so it is delivered twice rather than never. The log says what was refused, once a minute at most. Bytes
that do not decode as entries are another matter (`lease_codec.py`): nobody knows where the next one begins.
The stream ends with an error that says so, and nothing of its last message counts.

A journal with such entries, of an earlier version of this program for example, is repaired when it is opened:
they are left out, and the snapshot with which the next file begins has none of them.
"""

import logging
from collections.abc import Callable

from whimbrel.broker.consume.lease_codec import (
    LEASE_COUNT_MAX,
    OFFSET_MAX,
    QUEUE_ID_MAX,
    LeaseEntry,
)
from whimbrel.broker.consume.rare_warning import RareWarning
from whimbrel.model.limits import ATTEMPT_MAX, INVISIBLE_MS_MAX
from whimbrel.model.names import CONTROL

__all__ = [
    "CLOCK_AHEAD_MS",
    "EPOCH_MAX",
    "HELD_MAX",
    "REVISION_MAX",
    "EntryChecks",
    "fault_of",
]

# How far the clock of another broker may be ahead: a day, for dates and time zones that are set wrong. A
# serial that much ahead does no harm: all later ones are greater still.
CLOCK_AHEAD_MS = 24 * 3600 * 1000
EPOCH_MAX = 1 << 31
REVISION_MAX = 1 << 20
# Held offsets of one group and queue. Two brokers that were apart may each have handed out as many as one may
# (`INFLIGHT_MAX` of `queue_leases.py`).
HELD_MAX = 40_000
WARN_APART_MS = 60_000

logger = logging.getLogger(__name__)


def fault_of(entry: LeaseEntry, now: int) -> str:
    """Return why an entry does not count, as the end of a sentence; empty when it does."""
    if not entry.group or not entry.topic or CONTROL.search(entry.group) or CONTROL.search(entry.topic):
        return "its names are empty, or hold control characters"
    if not 0 <= entry.queue_id <= QUEUE_ID_MAX:
        return f"queue {entry.queue_id} can't be one"
    if entry.epoch > EPOCH_MAX:
        return f"epoch {entry.epoch} is over {EPOCH_MAX}"
    start, end, lease = entry.start, entry.end, entry.lease
    latest = now + CLOCK_AHEAD_MS
    if entry.order is not None:
        if not entry.order.attempt_id:
            return "its attempt id is empty"
        return fault_of_serial(entry.order.serial, latest)
    only_epoch = end == -1 and not start and lease is None
    if not only_epoch and not 0 <= start <= end <= OFFSET_MAX:
        return f"it covers the offsets {start} to {end}"
    if lease is None:
        return ""
    if not 0 < end - start <= LEASE_COUNT_MAX:
        return f"it holds {end - start} offsets, and {LEASE_COUNT_MAX} are allowed"
    if fault := fault_of_serial(lease.serial, latest):
        return fault
    if not 0 <= lease.taken_at <= latest or not 0 <= lease.visible_at <= latest + INVISIBLE_MS_MAX:
        return f"it was taken at {lease.taken_at} until {lease.visible_at}, which can't be"
    if lease.revision > REVISION_MAX or lease.attempt > ATTEMPT_MAX:
        return f"revision {lease.revision} or attempt {lease.attempt} is too great"
    return ""


def fault_of_serial(serial: int, latest: int) -> str:
    if serial >> 20 > latest:
        return f"serial {serial} is of a time more than {CLOCK_AHEAD_MS // 3_600_000} hours ahead"
    return ""


class EntryChecks:
    """Judges entries, and says in the log what it refuses.

    Attributes:
        refused: how many entries were refused since the start.
    """

    def __init__(self, now_ms: Callable[[], int]) -> None:
        """Take the clock."""
        self.now = now_ms
        self.refused = 0
        self.warning = RareWarning(WARN_APART_MS)

    def judge(self, entry: LeaseEntry, held: int) -> LeaseEntry | None:
        """Return the entry, or None when it does not count; `held` offsets of its queue are held."""
        fault = fault_of(entry, self.now())
        if not fault and entry.lease is not None and held + entry.end - entry.start > HELD_MAX:
            fault = f"{held} offsets of the queue are held already"
        if fault:
            self.refuse(entry, fault)
            return None
        return entry

    def refuse(self, entry: LeaseEntry, fault: str) -> None:
        self.refused += 1
        if count := self.warning.due(1, self.now()):
            logger.warning("%d lease entries are left out, the last one of %r on %r/%d: %s",
                           count, entry.group, entry.topic, entry.queue_id, fault)  # fmt: skip
