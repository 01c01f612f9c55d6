"""How many messages wait, by how far ahead their time is, up to a day: RocketMQ's `timer_message_snapshot`.

    asked (a scrape, any thread) --> walk (the timer's steps, 4096 slots each) --> shown (the next scrape)

RocketMQ reads the 86,400 slots of a day for each scrape. Here the timer does, some at a step, at its start
and once after each scrape that asks; so a scrape shows what was so after the one before. Nobody asks: nothing
is read.

The walk is the loop's; another thread only reads `shown`, which is replaced as a whole, and sets `asked`.
"""

from whimbrel.store.timer_files import TimerFiles
from whimbrel.store.timer_layout import SECOND_MS

__all__ = ["BOUNDS_S", "Snapshot"]

SLOTS_STEP = 4096
BOUNDS_S = (5, 60, 300, 900, 3600, 14_400, 28_800, 86_400)  # RocketMQ's


class Snapshot:
    """What was found last.

    Attributes:
        asked: somebody has read `shown` since the last walk began.
        shown: messages nearer than each bound, and not than the one before; nothing before the first walk.
    """

    def __init__(self, files: TimerFiles) -> None:
        """Take the timer files; nothing is read."""
        self.files = files
        self.asked = True
        self.shown: list[int] = []
        self.begin_ms = self.next_ms = 0  # of the walk
        self.found: list[int] | None = None

    def ask(self) -> list[int]:
        """Return what was found last, and have it looked up anew; may be called from another thread."""
        self.asked = True
        return self.shown if self.files.wheel >= 0 else [0] * len(BOUNDS_S)

    def step(self, now_ms: int) -> None:
        """Read the next slots, if somebody has asked.

        Args:
            now_ms: a whole second.
        """
        if self.found is None:
            if not self.asked or self.files.wheel < 0:
                return
            self.asked = False
            self.begin_ms = self.next_ms = now_ms
            self.found = [0] * len(BOUNDS_S)
        end_ms = self.begin_ms + BOUNDS_S[-1] * SECOND_MS
        slots, self.next_ms = self.files.used(
            self.next_ms, min(self.next_ms + SLOTS_STEP * SECOND_MS, end_ms)
        )
        bound = 0
        for slot in slots:
            while slot.second - self.begin_ms // SECOND_MS >= BOUNDS_S[bound]:
                bound += 1
            self.found[bound] += slot.messages
        if self.next_ms >= end_ms:
            self.shown, self.found = [max(count, 0) for count in self.found], None
