"""Stores messages again that still wait when retention wants to remove their records.

Retention asks with `before_removal`, and removes only what lies below the answer; `move_on` works in steps,
one log file at a time, until the answer is what retention wants. On the loop's thread.
"""

from whimbrel.broker.produce.internal_append import InternalAppender
from whimbrel.broker.timing import records
from whimbrel.broker.timing.effects import Doubt, find_effect
from whimbrel.broker.timing.waiting import read_waiting
from whimbrel.errors import WhimbrelError
from whimbrel.model.names import TIMER_TOPIC
from whimbrel.model.properties import UNIQ_KEY
from whimbrel.store.store import MessageStore
from whimbrel.store.timer_files import TimerFiles
from whimbrel.store.timer_layout import UNIT_SIZE

__all__ = ["Moves"]

MOVE_UNITS = 2000  # looked at in one step
COUNTED_MAX = 50_000  # units that are looked at, before a candidate's seal: a tenth of a second


class Moves:
    """How far the messages below an offset of the log are stored again."""

    def __init__(self, store: MessageStore, files: TimerFiles, doubt: Doubt) -> None:
        """Take what is read, and what learns of records that were stored again."""
        self.store, self.files, self.doubt, self.machine = store, files, doubt, store.machine
        self.moving_below = self.moved = self.moved_end = self.move_cursor = 0

    def wanted(self) -> bool:
        """Return whether there is something to do."""
        return self.moving_below > self.moved

    def before_removal(self, begin: int, queue_offset: int) -> int:
        """Begin to store messages again that wait below an offset; return below which files may go now."""
        for place, _, _ in self.store.queue_units(TIMER_TOPIC, 0, queue_offset, 1):
            begin = min(begin, place)  # it has no unit yet
        if self.files.wheel < 0:
            return begin
        if self.moved >= begin and self.store.flushed >= self.moved_end:
            return begin
        if self.moving_below <= self.moved:
            self.moving_below, self.move_cursor = begin, 0
        return self.moved if self.store.flushed >= self.moved_end else 0

    def waiting_below(self, begin: int, read_ms: int) -> int:
        """Return how many messages with a unit wait below an offset; of `COUNTED_MAX` units at most."""
        count = 0
        if self.files.wheel >= 0:
            for _, unit in self.files.units_from(self.files.first_from(self.store.min_offset), COUNTED_MAX):
                if unit.place >= begin:
                    break
                count += unit.slot_ms >= read_ms
        return count

    def move_on(self, internal: InternalAppender, read_ms: int, until: float) -> WhimbrelError | None:
        """Store some messages again whose records retention wants to remove, one log file at a time.

        Returns:
            The error of an append that was refused; the same one comes again with the next step.
        """
        first_end = (self.store.min_offset // self.store.file_size + 1) * self.store.file_size
        for position, unit in self.files.units_from(self.move_cursor, MOVE_UNITS):
            if unit.place >= self.moving_below:
                self.moved = self.moving_below
                return None
            waits = unit.slot_ms >= read_ms and unit.place >= self.store.min_offset
            if waits and unit.place >= first_end:
                self.moved = max(self.moved, first_end)
                return None
            message = read_waiting(self.store, TIMER_TOPIC, unit.place, unit.size) if waits else None
            key = "" if message is None else message.properties.get(UNIQ_KEY, "")
            if message is not None and not find_effect(self.store, message, TIMER_TOPIC, key):
                self.doubt.rolled(first_end)
                errors: list[WhimbrelError | None] = []
                if not internal.append(records.rolled(message), errors.append):
                    assert errors[0] is not None
                    return errors[0]
                self.moved_end = self.store.written
            self.move_cursor = position + UNIT_SIZE
            if self.machine.monotonic() >= until:
                return None
        if self.move_cursor >= self.files.end:
            self.moved = self.moving_below
        return None
