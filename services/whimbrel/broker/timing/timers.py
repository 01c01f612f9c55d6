"""Delayed messages: from the timer topic into slots, and out of them when their second is over.

    timer topic --enqueue--> a unit in a slot --dequeue--> its topic, or the timer topic again (rolled)
                (q: next                       (R: the slot
                 queue offset)                  that is read next)

One loop does both, 100 ms apart at least, in steps of some milliseconds, so that it never keeps the event
loop for long. A slot is read when its second is over and everything that was sent until then has its unit,
which where a majority commits is when that is committed:

    collect   its units, from the last to the first, and what its recalls name
    deliver   in the order of sending, through the broker's own appends; refused: the same one again, later
    settle    all are as durable as the broker's mode asks; one is not: the whole slot again, with a look into
              the log before each append
    done      R is the next slot

**Once, whatever crashes.** Until an effect is durable its cause stays: R moves after the slot's records, and
on disk it moves when they are there, too. So at the start some slots may have been delivered already. What
might be an effect's cause is known: its record was in the log at the start, and its time is not after the
last record's store time. For these, and for what rolls, the log is asked for a record that names the cause
(`records.py`).

    start        timer files, cut back to what log and check say; q behind the last unit, R from the check
    no files     q at the begin of the timer topic, R at its first record's time, and the log is asked
    cut          the log was cut, on a slave: units of what is gone are undone
    promotion    the slave has all units; R is what its master told, with the log that it was told for

A **slave** enqueues what its log holds, and delivers nothing: R follows the master's, and what is in slots on
the way no longer counts. (RocketMQ's stops at the master's offset. There is no need: units are cut where the
log is cut.)

**Clocks.** Set forward, messages come as early as the clock is wrong. Set back, R goes back with it; the
slots that were read already are read once more, and the log is asked.

`slots.py` reads a slot, `effects.py` knows what the log is asked about, `moves.py` helps retention, `disk.py`
puts the files on disk. On the loop's thread; only a flush runs in a worker's.
"""

import asyncio
import logging
from collections.abc import Callable
from functools import lru_cache

from whimbrel.broker.produce.internal_append import InternalAppender
from whimbrel.broker.tables.topics import TopicTable
from whimbrel.broker.timing import records
from whimbrel.broker.timing.disk import TimerDisk
from whimbrel.broker.timing.effects import Doubt
from whimbrel.broker.timing.moves import Moves
from whimbrel.broker.timing.recalls import takes_one
from whimbrel.broker.timing.slots import SlotReader
from whimbrel.broker.timing.snapshot import Snapshot
from whimbrel.broker.timing.waiting import properties_waiting, read_waiting
from whimbrel.errors import StoreError, StoreFull
from whimbrel.metrics import Histogram, Series
from whimbrel.model.names import TIMER_TOPIC
from whimbrel.model.properties import REAL_TOPIC, TIMER_DELETE_ID, TIMER_OUT_MS
from whimbrel.store import timer_layout
from whimbrel.store.codec import java_hash, property_of
from whimbrel.store.consumequeue import is_filler
from whimbrel.store.master_store import Appended
from whimbrel.store.store import MessageStore
from whimbrel.store.timer_files import TimerFiles
from whimbrel.store.timer_layout import (
    DELETE,
    LOG_FILE_SIZE,
    ORDINARY,
    SECOND_MS,
    SLOTS,
    floor_second,
    placed,
)

__all__ = ["TICK_S", "Timers"]

logger = logging.getLogger(__name__)

TICK_S = 0.1
STEP_S = 0.005  # of work, before other callers have their turn
STEP_BEHIND_S = 0.015  # of work while many messages have no unit yet
BEHIND_UNITS = 1000
STEP_BEHIND_UNITS = 1024
DELAY_S = (60.0, 600.0, 3600.0, 43_200.0, 86_400.0, 259_200.0)  # RocketMQ's
SET_BACK_MS = 2_000  # the clock, before R follows it
AHEAD_MS_MAX = SLOTS // 2 * SECOND_MS  # of R: slots of later times might be taken by units that still wait

RAW_TIMER_TOPIC = TIMER_TOPIC.encode()
RAW_OUT, RAW_TOPIC = TIMER_OUT_MS.encode(), REAL_TOPIC.encode()
RAW_DELETE = TIMER_DELETE_ID.encode()

hash_of = lru_cache(maxsize=4096)(java_hash)


class Timers:
    """The delayed messages of one store.

    Attributes:
        read_ms: R.
        queue_offset: q.
        counts: how many wait, by topic; an estimate after a crash.
        enqueued: how many got a unit, by topic, since the start.
        delays: seconds that messages had left when they got their unit, by topic.
        behind_since_ms: since when some messages have had no unit; 0 while all have one.
    """

    def __init__(
        self,
        store: MessageStore,
        *,
        topics: TopicTable,
        file_size: int = LOG_FILE_SIZE,
    ) -> None:
        """Take the store.

        Args:
            store: open.
            topics: the broker's; a topic that is missing is made when a message is due.
            file_size: of the timer log.
        """
        self.store, self.machine = store, store.machine
        self.files = TimerFiles(store.root, store.files, file_size=file_size)
        self.disk = TimerDisk(store, self.files)
        self.doubt = Doubt(store)
        self.moves = Moves(store, self.files, self.doubt)
        self.snapshot = Snapshot(self.files)
        self.topic_of_hash: dict[int, str] = {}  # of topics that have been counted
        self.slots = SlotReader(
            store,
            self.files,
            topics,
            self.doubt,
            topic_of=lambda found: self.topic_of_hash.get(found, ""),
            left=self.count,
            rolled=self.count_when_placed,
            done=self.slot_done,
        )
        self.window_ms = timer_layout.ROLL_WINDOW_MS
        self.may_deliver: Callable[[], bool] = bool
        self.read_ms = self.queue_offset = 0
        self.behind = False  # some messages have no unit, for want of room
        self.counts: dict[str, int] = {}
        self.changes: dict[str, int] = {}  # of counts, once what was rolled has its units
        self.enqueued: dict[str, int] = {}
        self.behind_since_ms = 0
        self.delays: Series[Histogram] = Series(lambda: Histogram(DELAY_S))
        self.offered: tuple[int, int] | None = None
        self.goal_ms = 0  # slave: the master's R
        self.second = 0  # the last one in which slots were looked at
        self.closed_ms = self.closed_end = 0  # slots before are read once the log is committed up to there
        self.load()

    # Start and end

    def load(self) -> None:
        """Take up what the files say."""
        # Units of what is not known to be committed any more are made once it is again.
        if self.files.load(self.store.visible_end) and self.files.check is not None:
            self.read_ms = self.files.check.read_ms
            # Not the check's q: RocketMQ's is of another moment than the end of the log beside it.
            self.queue_offset = self.offset_behind(self.files.last_place)
            for topic, count in self.files.saved_counts().items():
                self.count(topic, count)
            self.doubt.everything(self.read_ms)
        else:
            self.begin_anew(0)
        self.disk.begin(self.read_ms)

    def begin_anew(self, read_ms: int) -> None:
        """Build the files from the timer topic. R is what is known of it, 0 for nothing."""
        low, high = self.store.queue_range(TIMER_TOPIC, 0)
        self.queue_offset = low
        self.slots.slot = None
        self.counts.clear()
        self.changes.clear()
        if not read_ms:
            first = self.store.queue_units(TIMER_TOPIC, 0, low, 1) if low < high else []
            stored = self.store.store_time_of(first[0][0]) if first else 0
            read_ms = floor_second(stored or self.machine.wall_ms())
        self.read_ms = read_ms
        self.doubt.everything(self.read_ms)

    def offset_behind(self, place: int) -> int:
        """Return the first queue offset of the timer topic whose record lies behind a place."""
        low, high = self.store.queue_range(TIMER_TOPIC, 0)
        while low < high:
            middle = (low + high) // 2
            unit = self.store.queue_units(TIMER_TOPIC, 0, middle, 1)
            if unit and unit[0][0] > place:
                high = middle
            else:
                low = middle + 1
        return low

    def lead(self, internal: InternalAppender, may_deliver: Callable[[], bool]) -> None:
        """Deliver from now on, while that is allowed."""
        self.slots.internal, self.may_deliver = internal, may_deliver
        self.slots.slot = None  # it was only counted

    async def run(self) -> None:
        """Work until cancelled."""
        while True:
            try:
                more = self.step()
            except (StoreError, OSError) as error:
                self.damaged(error)
                more = False
            await asyncio.sleep(0 if more else TICK_S)

    def close(self) -> None:
        """Put everything on disk, and close the files."""
        self.count_rolled()
        self.disk.close(self.read_ms, self.queue_offset, self.counts)

    def damaged(self, error: BaseException) -> None:
        """Build the files anew: they do not hold what they should, or a sync of them failed."""
        logger.error("the timer files are made anew: %s", error)
        self.disk.discard()
        self.begin_anew(self.disk.durable_read_ms)

    def cut(self, log_end: int) -> None:
        """Follow a log that was cut."""
        self.disk.wait()
        try:
            self.disk.finish_flush()
            self.files.cut(log_end)
            self.queue_offset = min(self.queue_offset, self.offset_behind(self.files.last_place))
        except (StoreError, OSError) as error:
            self.damaged(error)
        if self.slots.internal is None:
            self.slots.slot = None
        self.disk.changed = True
        self.doubt.everything(self.read_ms)

    # Steps

    def step(self) -> bool:
        """Do some milliseconds of work; return whether there is more."""
        until = self.machine.monotonic() + STEP_S
        self.disk.keep(self.read_ms, self.queue_offset, self.counts)
        now = floor_second(self.machine.wall_ms())
        self.snapshot.step(now)
        internal = self.slots.internal
        if internal is not None and self.read_ms > now + SET_BACK_MS:
            if self.slots.slot is None:
                self.clock_set_back(now)
            else:
                return self.dequeue(until)  # what is new belongs into slots before this one
        if internal is not None and self.moves.wanted() and self.may_deliver():
            refused = self.moves.move_on(internal, self.read_ms, until)
            if refused is not None:
                self.slots.stall(refused)
        more = self.enqueue(until)
        if internal is not None and self.may_deliver() and not more:
            more = self.dequeue(until)
        elif internal is None:
            more = self.follow(until) or more
        return more

    def enqueue(self, until: float) -> bool:
        """Give messages their units; return whether some have none yet."""
        store = self.store
        low, high = store.queue_range(TIMER_TOPIC, 0)
        if self.queue_offset < low or self.queue_offset > high:
            self.queue_offset = min(max(self.queue_offset, low), high)
        self.behind = False
        if self.queue_offset == high:
            self.behind_since_ms = 0
            self.count_rolled()
            return False
        self.behind_since_ms = self.behind_since_ms or self.machine.wall_ms()
        now = floor_second(self.machine.wall_ms())
        earliest = self.earliest()
        if high - self.queue_offset > BEHIND_UNITS:
            # What is sent meanwhile must not keep the rest from being delivered.
            until += STEP_BEHIND_S - STEP_S
        for entry in store.queue_units(TIMER_TOPIC, 0, self.queue_offset, STEP_BEHIND_UNITS):
            place, size, _ = entry
            text, stored_ms = b"", 0
            if not is_filler(entry):
                text, stored_ms = properties_waiting(store, RAW_TIMER_TOPIC, place, size)
            if text and not self.add_unit(text, place, size, stored_ms, now, earliest):
                return False
            self.queue_offset += 1
            if self.machine.monotonic() >= until:
                break
        if self.queue_offset == high:
            self.count_rolled()
        return self.queue_offset < high

    def take(self, text: bytes, place: Appended) -> None:
        """Give a message that was just appended its unit, if all before it have theirs; else it waits.

        A broker that is sent as much as it can take has no time for `enqueue`, and would fall behind. What is
        not committed yet waits for that: it has no place in its queue.
        """
        if place.queue_offset != self.queue_offset or self.behind or place.end > self.store.visible_end:
            return
        now = floor_second(self.machine.wall_ms())
        if self.read_ms > now + SET_BACK_MS:
            return
        earliest = self.earliest()
        try:
            stored_ms = place.store_timestamp
            if self.add_unit(text, place.physical_offset, place.size, stored_ms, now, earliest):
                self.queue_offset += 1
        except (StoreError, OSError) as error:
            self.damaged(error)

    def earliest(self) -> int:
        """Return the first slot that takes units: the one that is being read takes none."""
        slot = self.slots.slot
        return self.read_ms if slot is None else slot.time_ms + SECOND_MS

    def add_unit(self, text: bytes, place: int, size: int, stored_ms: int, now: int, earliest: int) -> bool:
        """Give the record with this property text a unit; return False when it has to wait for that.

        Whether it rolls, and when, follows from its store time, so that a slave, which comes to it later, has
        it in the same slot: R passes there what the master has read.
        """
        out_ms = records.number(property_of(text, RAW_OUT).decode("utf-8", "replace"))
        begin = floor_second(stored_ms)
        if self.slots.internal is not None:
            begin = min(begin, now)  # the clock may have been set back
        slot_ms, rolls = placed(out_ms, begin, earliest, self.window_ms)
        if slot_ms - self.read_ms > AHEAD_MS_MAX and self.slots.internal is not None:
            return False  # a broker that was down for a week reads its slots first
        recalls = DELETE if property_of(text, RAW_DELETE) else 0
        topic = property_of(text, RAW_TOPIC).decode("utf-8", "replace")
        try:
            self.files.append(slot_ms, now, ORDINARY | rolls | recalls, place, size, hash_of(topic))
        except StoreFull as error:
            self.slots.stall(error)
            self.behind = True
            return False
        self.disk.changed = True
        if not recalls:
            self.count(topic, 1)
        else:
            recall = read_waiting(self.store, TIMER_TOPIC, place, size)
            if recall is not None and takes_one(self.store, recall):
                self.count(topic, -1)
        self.enqueued[topic] = self.enqueued.get(topic, 0) + 1
        if not recalls:
            self.delays.at((topic,)).observe(max(out_ms - now, 0) / SECOND_MS)
        return True

    def dequeue(self, until: float) -> bool:
        """Read slots whose second is over; return whether there is more to do at once."""
        if self.machine.monotonic() < self.slots.retry_at:
            return False
        now = floor_second(self.machine.wall_ms())
        while self.machine.monotonic() < until:
            slot = self.slots.slot
            if slot is None:
                if self.read_ms >= now or self.behind or not self.all_committed(now):
                    return False
                self.read_ms = self.files.next_used(self.read_ms, now)
                if self.read_ms < now:
                    self.slots.begin(self.read_ms)
            elif not self.slots.step(slot, until):
                return False
        return True

    def all_committed(self, now: int) -> bool:
        """Return whether all is committed that was stored before a second began: it may recall what is due.

        From then on nothing that is due can be recalled. Where no majority commits, all always is.
        """
        if now != self.second:
            self.second = now
            if self.store.visible_end < self.store.written:
                self.closed_ms, self.closed_end = now, self.store.written
        return self.store.visible_end >= self.closed_end

    def slot_done(self, read_ms: int) -> None:
        """Go on to the next slot."""
        self.read_ms = self.disk.effects_ms = read_ms
        self.disk.changed = True

    def clock_set_back(self, now: int) -> None:
        """Go back with the clock; what was delivered since is found in the log."""
        logger.warning("the clock was set back by %d s", (self.read_ms - now) // SECOND_MS)
        self.doubt.until(self.read_ms)
        self.read_ms = now
        self.disk.safe = now, 0
        self.disk.changed = True

    def enqueue_lag(self) -> int:
        """Return how many messages have no unit yet; may be called from another thread."""
        return max(self.store.queue_range(TIMER_TOPIC, 0)[1] - self.queue_offset, 0)

    def enqueue_ms(self) -> int:
        """Return for how long some messages have had no unit; may be called from another thread."""
        since = self.behind_since_ms
        return max(self.machine.wall_ms() - since, 0) if since and self.enqueue_lag() else 0

    def behind_ms(self) -> int:
        """Return for how long the next slot could have been read; may be called from another thread."""
        if self.slots.internal is None or self.files.wheel < 0:
            return 0
        return max(floor_second(self.machine.wall_ms()) - self.read_ms, 0)

    def count(self, topic: str, change: int) -> None:
        """Count messages that wait."""
        now = self.counts.get(topic, 0) + change
        if now > 0:
            if topic not in self.counts:
                self.topic_of_hash[hash_of(topic)] = topic
            self.counts[topic] = now
        else:
            self.counts.pop(topic, None)

    def count_when_placed(self, topic: str, change: int) -> None:
        """Count messages that were rolled as gone once they count anew: meanwhile they wait, too."""
        self.changes[topic] = self.changes.get(topic, 0) + change

    def count_rolled(self) -> None:
        """Count as gone what was rolled."""
        if self.changes:
            for topic, change in self.changes.items():
                self.count(topic, change)
            self.changes.clear()

    # Recalls and retention

    def is_open(self, time_ms: int) -> bool:
        """Return whether a recall for a slot still comes in time: nothing of it was delivered."""
        if time_ms < max(self.read_ms, self.closed_ms):
            return False
        return self.slots.slot is None or self.slots.slot.time_ms != time_ms

    def before_removal(self, begin: int) -> int:
        """Begin to store messages again that wait below an offset; return below which files may go now."""
        return self.moves.before_removal(begin, self.queue_offset)

    def waiting_below(self, begin: int) -> int:
        """Return how many messages wait whose records stand below an offset; those that are still to get
        their unit are counted, too."""
        unplaced = self.store.count_below(TIMER_TOPIC, 0, self.queue_offset, begin)
        return unplaced + self.moves.waiting_below(begin, self.read_ms)

    # Slaves

    def offer(self, read_ms: int, log_end: int) -> None:
        """Learn a master's R; it counts when our log has come to the end of its records."""
        if self.offered is None:
            self.offered = read_ms, log_end

    def follow(self, until: float) -> bool:
        """Go on to the master's R where our log holds what was delivered until then; return whether there is
        more to do at once. What is in the slots on the way no longer counts."""
        if self.offered is not None and self.store.dispatched >= self.offered[1]:
            self.goal_ms, self.offered = self.offered[0], None
        while self.read_ms < self.goal_ms:
            if self.machine.monotonic() >= until:
                return True
            slot = self.slots.slot
            if slot is not None:
                self.slots.pass_over(slot, until)
                continue
            self.read_ms = self.files.next_used(self.read_ms, self.goal_ms)
            self.disk.changed = True
            if self.read_ms < self.goal_ms:
                self.slots.begin(self.read_ms)
        return False

    def progress(self) -> tuple[int, int] | None:
        """Return R for slaves, and the end of the log that holds what was delivered until then; None while no
        message has ever waited."""
        return (self.read_ms, self.store.written) if self.files.wheel >= 0 else None
