"""Delayed messages: from the timer topic into slots, and out of them when their second is over.

    timer topic --enqueue--> a unit in a slot --dequeue--> its topic, or the timer topic again (rolled)
                (q: next                       (R: the slot
                 queue offset)                  that is read next)

One loop does both, 100 ms apart at least, in steps of some milliseconds, so that it never keeps the event
loop for long. A slot is read when its second is over and everything that was sent until then has its unit:

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

A **slave** enqueues what its log holds, and reads no slot. (RocketMQ's stops at the master's offset. There is
no need: units are cut where the log is cut.)

**Clocks.** Set forward, messages come as early as the clock is wrong. Set back, R goes back with it; the
slots that were read already are read once more, and the log is asked.

On the loop's thread; only a flush runs in a worker's.
"""

import asyncio
import logging
from array import array
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import lru_cache

from whimbrel.broker.produce.internal_append import InternalAppender
from whimbrel.broker.tables.topics import TopicTable
from whimbrel.broker.timing import records
from whimbrel.broker.timing.effects import find_effect
from whimbrel.errors import (
    CorruptRecord,
    IllegalOffset,
    PropertiesTooLarge,
    Refused,
    StoreError,
    StoreFull,
    WhimbrelError,
)
from whimbrel.machine import Worker
from whimbrel.model.names import TIMER_TOPIC
from whimbrel.model.properties import (
    REAL_QUEUE_ID,
    REAL_TOPIC,
    TIMER_DELETE_ID,
    TIMER_OUT_MS,
    UNIQ_KEY,
)
from whimbrel.model.topic import MessageType, TopicConfig
from whimbrel.store.codec import (
    StoredMessage,
    decode_record,
    java_hash,
    property_of,
    store_time_of,
    topic_and_properties,
)
from whimbrel.store.consumequeue import is_filler
from whimbrel.store.master_store import Appended
from whimbrel.store.store import MessageStore
from whimbrel.store.timer_files import TimerFiles, TimerFlush
from whimbrel.store.timer_layout import (
    DELETE,
    LOG_FILE_SIZE,
    ORDINARY,
    ROLL,
    SECOND_MS,
    SLOTS,
    UNIT_SIZE,
    floor_second,
    placed,
    roll_after,
)

__all__ = ["TICK_S", "Timers"]

logger = logging.getLogger(__name__)

TICK_S = 0.1
STEP_S = 0.005  # of work, before other callers have their turn
STEP_UNITS = 256  # records or units, likewise
STEP_BEHIND_S = 0.015  # of work while many messages have no unit yet
BEHIND_UNITS = 1000
STEP_BEHIND_UNITS = 1024
FLUSH_S = 1.0
RETRY_S = 0.5  # after an append that was refused
SET_BACK_MS = 2_000  # the clock, before R follows it
AHEAD_MS_MAX = SLOTS // 2 * SECOND_MS  # of R: slots of later times might be taken by units that still wait
EXPIRE_S = 30.0
MOVE_UNITS = 2000  # looked at in one step for retention

RAW_TIMER_TOPIC = TIMER_TOPIC.encode()
RAW_OUT, RAW_TOPIC = TIMER_OUT_MS.encode(), REAL_TOPIC.encode()
RAW_DELETE = TIMER_DELETE_ID.encode()

hash_of = lru_cache(maxsize=4096)(java_hash)


@dataclass(slots=True)
class SlotWork:
    """A slot that is being read.

    Attributes:
        cursor: position of the next unit to collect, -1 at the chain's end.
        units: places, sizes, magics and W of the units collected, the newest first.
        recalled: what the recalls among them name.
        judged: how many units were asked whether they are recalls.
        left: units that are not delivered.
        in_flight: appended, and not confirmed.
        confirm: records of an earlier attempt were found, which may not be confirmed.
        failed: one was not confirmed in time.
    """

    time_ms: int
    cursor: int
    places: "array[int]" = field(default_factory=lambda: array("q"))
    sizes: "array[int]" = field(default_factory=lambda: array("i"))
    magics: bytearray = field(default_factory=bytearray)
    seen: "array[int]" = field(default_factory=lambda: array("q"))
    recalled: set[str] = field(default_factory=set)
    judged: int = 0
    left: int = -1
    in_flight: int = 0
    confirm: bool = False
    confirming: bool = False
    failed: bool = False


class Timers:
    """The delayed messages of one store.

    Attributes:
        read_ms: R.
        queue_offset: q.
        counts: how many wait, by topic; an estimate after a crash.
        delivered: how many were, since the start.
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
        self.store, self.machine, self.topics = store, store.machine, topics
        self.files = TimerFiles(store.root, store.files, file_size=file_size)
        self.window_ms = roll_after(store.options.reserved_hours * 3_600_000)
        self.internal: InternalAppender | None = None
        self.may_deliver: Callable[[], bool] = bool
        self.read_ms = self.queue_offset = 0
        self.effects_ms = 0  # R behind the last slot that had units
        self.behind = False  # some messages have no unit, for want of room
        self.asked_below = self.asked_until_ms = 0
        self.rolled_below = 0  # records below may have been stored again, for retention
        self.moving_below = self.moved = self.moved_end = self.move_cursor = 0
        self.slot: SlotWork | None = None
        self.retry_at = 0.0
        self.counts: dict[str, int] = {}
        self.delivered = self.enqueued = 0
        self.changed = False
        self.flush: TimerFlush | None = None
        self.flush_error: OSError | StoreFull | None = None
        self.flush_done = False  # set by the worker
        self.flushed_at = self.expired_at = 0.0
        self.safe: tuple[int, int] = (0, 0)  # an R, and the log's end that it needs on disk
        self.durable_read_ms = 0
        self.offered: tuple[int, int] | None = None
        self.worker: Worker | None = None
        self.load()

    # Start and end

    def load(self) -> None:
        """Take up what the files say."""
        if self.files.load(self.store.written) and self.files.check is not None:
            self.read_ms = self.files.check.read_ms
            # Not the check's q: RocketMQ's is of another moment than the end of the log beside it.
            self.queue_offset = self.offset_behind(self.files.last_place)
            self.counts = self.files.saved_counts()
            self.doubt()
        else:
            self.begin_anew(0)
        self.safe = self.read_ms, 0
        self.durable_read_ms = self.read_ms

    def begin_anew(self, read_ms: int) -> None:
        """Build the files from the timer topic. R is what is known of it, 0 for nothing."""
        low, high = self.store.queue_range(TIMER_TOPIC, 0)
        self.queue_offset = low
        self.slot = None
        self.counts.clear()
        if not read_ms:
            first = self.store.queue_units(TIMER_TOPIC, 0, low, 1) if low < high else []
            stored = self.store.store_time_of(first[0][0]) if first else 0
            read_ms = floor_second(stored or self.machine.wall_ms())
        self.read_ms = read_ms
        self.doubt()

    def doubt(self) -> None:
        """Ask the log from now on about all that may have had an effect already."""
        self.asked_below = self.store.written
        newest = max(self.store.store_time_ms, self.store.last_store_time(self.store.written))
        self.asked_until_ms = max(self.asked_until_ms, floor_second(newest) + SECOND_MS, self.read_ms)
        if self.store.min_offset + self.store.file_size <= self.store.written:
            self.rolled_below = self.store.min_offset + self.store.file_size

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
        self.internal, self.may_deliver = internal, may_deliver

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
        if self.worker is not None:
            self.worker.wait()
        try:
            self.finish_flush()
            self.store.sync_log()
            self.note_progress()
            if self.store.flushed >= self.store.written:
                self.durable_read_ms = self.read_ms  # else RocketMQ would deliver the last seconds again
            flush = self.begin_flush()
            if flush is not None:
                flush.run()
        except StoreFull as error:  # the next start goes on from the last one
            logger.warning("the timer files can't be put on disk: %s", error)
        except OSError as error:
            logger.error("the next start makes the timer files anew: a sync failed: %s", error)
            self.files.discard()
        if self.worker is not None:
            self.worker.stop()
            self.worker = None
        self.files.close()

    def damaged(self, error: BaseException) -> None:
        """Build the files anew: they do not hold what they should, or a sync of them failed."""
        logger.error("the timer files are made anew: %s", error)
        if self.worker is not None:
            self.worker.wait()
        self.flush, self.flush_error, self.flush_done = None, None, False
        self.files.discard()
        self.begin_anew(self.durable_read_ms)

    def cut(self, log_end: int) -> None:
        """Follow a log that was cut."""
        if self.worker is not None:
            self.worker.wait()
        try:
            self.finish_flush()
            self.files.cut(log_end)
            self.queue_offset = min(self.queue_offset, self.offset_behind(self.files.last_place))
        except (StoreError, OSError) as error:
            self.damaged(error)
        self.changed = True
        self.doubt()

    # Steps

    def step(self) -> bool:
        """Do some milliseconds of work; return whether there is more."""
        until = self.machine.monotonic() + STEP_S
        self.keep_on_disk()
        now = floor_second(self.machine.wall_ms())
        if self.internal is not None and self.read_ms > now + SET_BACK_MS:
            if self.slot is None:
                self.clock_set_back(now)
            else:
                return self.dequeue(until)  # what is new belongs into slots before this one
        if self.moving_below > self.moved and self.internal is not None and self.may_deliver():
            self.move_on(until)
        more = self.enqueue(until)
        if self.internal is not None and self.may_deliver() and not more:
            more = self.dequeue(until)
        elif self.internal is None:
            self.follow()
        return more

    def enqueue(self, until: float) -> bool:
        """Give messages their units; return whether some have none yet."""
        store = self.store
        low, high = store.queue_range(TIMER_TOPIC, 0)
        if self.queue_offset < low or self.queue_offset > high:
            self.queue_offset = min(max(self.queue_offset, low), high)
        self.behind = False
        if self.queue_offset == high:
            return False
        now = floor_second(self.machine.wall_ms())
        earliest = self.read_ms if self.slot is None else self.slot.time_ms + SECOND_MS
        if high - self.queue_offset > BEHIND_UNITS:
            # What is sent meanwhile must not keep the rest from being delivered.
            until += STEP_BEHIND_S - STEP_S
        for entry in store.queue_units(TIMER_TOPIC, 0, self.queue_offset, STEP_BEHIND_UNITS):
            place, size, _ = entry
            text, stored_ms = (b"", 0) if is_filler(entry) else self.properties_of(place, size)
            if text and not self.add_unit(text, place, size, stored_ms, now, earliest):
                return False
            self.queue_offset += 1
            if self.machine.monotonic() >= until:
                break
        return self.queue_offset < high

    def take(self, text: bytes, place: Appended) -> None:
        """Give a message that was just appended its unit, if all before it have theirs; else it waits.

        A broker that is sent as much as it can take has no time for `enqueue`, and would fall behind.
        """
        if place.queue_offset != self.queue_offset or self.behind:
            return
        now = floor_second(self.machine.wall_ms())
        if self.read_ms > now + SET_BACK_MS:
            return
        earliest = self.read_ms if self.slot is None else self.slot.time_ms + SECOND_MS
        try:
            stored_ms = place.store_timestamp
            if self.add_unit(text, place.physical_offset, place.size, stored_ms, now, earliest):
                self.queue_offset += 1
        except (StoreError, OSError) as error:
            self.damaged(error)

    def add_unit(self, text: bytes, place: int, size: int, stored_ms: int, now: int, earliest: int) -> bool:
        """Give the record with this property text a unit; return False when it has to wait for that.

        Whether it rolls, and when, follows from its store time, so that a slave, which comes to it later, has
        it in the same slot: R passes there what the master has read.
        """
        out_ms = records.number(property_of(text, RAW_OUT).decode("utf-8", "replace"))
        begin = floor_second(stored_ms)
        if self.internal is not None:
            begin = min(begin, now)  # the clock may have been set back
        slot_ms, rolls = placed(out_ms, begin, earliest, self.window_ms)
        if slot_ms - self.read_ms > AHEAD_MS_MAX and self.internal is not None:
            return False  # a broker that was down for a week reads its slots first
        recalls = DELETE if property_of(text, RAW_DELETE) else 0
        topic = property_of(text, RAW_TOPIC).decode("utf-8", "replace")
        try:
            self.files.append(slot_ms, now, ORDINARY | rolls | recalls, place, size, hash_of(topic))
        except StoreFull as error:
            self.stall(error)
            self.behind = True
            return False
        self.changed = True
        self.count(topic, 1)
        self.enqueued += 1
        return True

    def properties_of(self, place: int, size: int) -> tuple[bytes, int]:
        """Return property text and store time of a message that waits; no text where it is gone, or none."""
        try:
            data = self.store.read(place, size)
            topic, text = topic_and_properties(data, 0)
        except IllegalOffset:
            return b"", 0
        except CorruptRecord as error:
            logger.error("a delayed message is lost, its record is damaged: %s", error)
            return b"", 0
        if topic != RAW_TIMER_TOPIC or not property_of(text, RAW_TOPIC):
            logger.error("the record at %d is no delayed message: it is left out", place)
            return b"", 0
        return text, store_time_of(data)

    def read(self, place: int, size: int) -> StoredMessage | None:
        """Return a message that waits; None when it is gone, or can't be one."""
        try:
            message = decode_record(self.store.read(place, size), check_crc=False)
        except IllegalOffset:
            return None  # its file was removed: it was stored again before, or delivered
        except CorruptRecord as error:
            logger.error("a delayed message is lost, its record is damaged: %s", error)
            return None
        if message.topic != TIMER_TOPIC or not message.properties.get(REAL_TOPIC):
            logger.error("the record at %d is no delayed message: it is left out", place)
            return None
        return message

    def stall(self, error: WhimbrelError) -> None:
        """Try again in a while."""
        if self.machine.monotonic() >= self.retry_at:
            logger.warning("delayed messages wait: %s", error)
        self.retry_at = self.machine.monotonic() + RETRY_S

    def dequeue(self, until: float) -> bool:
        """Read slots whose second is over; return whether there is more to do at once."""
        if self.machine.monotonic() < self.retry_at:
            return False
        now = floor_second(self.machine.wall_ms())
        while self.machine.monotonic() < until:
            slot = self.slot
            if slot is None:
                if self.read_ms >= now or self.behind:
                    return False
                self.read_ms = self.files.next_used(self.read_ms, now)
                if self.read_ms < now:
                    self.begin_slot()
            elif slot.left < 0:
                self.collect(slot)
            elif slot.left > 0 and not slot.failed:
                if not self.deliver(slot, until):
                    return False
            elif not self.settle(slot):
                return False
        return True

    def clock_set_back(self, now: int) -> None:
        """Go back with the clock; what was delivered since is found in the log."""
        logger.warning("the clock was set back by %d s", (self.read_ms - now) // SECOND_MS)
        self.asked_below = self.store.written
        self.asked_until_ms = max(self.asked_until_ms, self.read_ms)
        self.read_ms = now
        self.safe = now, 0
        self.changed = True

    def begin_slot(self) -> None:
        """Begin to read the slot R."""
        slot = self.files.slot(self.read_ms)
        self.slot = SlotWork(self.read_ms, slot.last if slot is not None else -1)

    def collect(self, slot: SlotWork) -> None:
        """Take up some of the slot's units; then see which of them are recalls."""
        for _ in range(STEP_UNITS):
            if slot.cursor < 0:
                break
            unit = self.files.unit(slot.cursor)
            if unit.slot_ms != slot.time_ms or unit.previous >= slot.cursor:
                raise StoreError(f"the unit at {slot.cursor} of the timer log is of another slot")
            slot.places.append(unit.place)
            slot.sizes.append(unit.size)
            slot.magics.append(unit.magic)
            slot.seen.append(unit.seen_ms)
            slot.cursor = unit.previous
        else:
            return
        for number in range(slot.judged, min(slot.judged + STEP_UNITS, len(slot.places))):
            if slot.magics[number] & (DELETE | ROLL) == DELETE:
                message = self.read(slot.places[number], slot.sizes[number])
                if message is not None:
                    slot.recalled.add(message.properties.get(TIMER_DELETE_ID, ""))
            slot.judged = number + 1
        if slot.judged == len(slot.places):
            slot.left = len(slot.places)

    def deliver(self, slot: SlotWork, until: float) -> bool:
        """Deliver some of the slot's messages; return whether to go on."""
        for _ in range(STEP_UNITS):
            if not slot.left or slot.failed:
                break
            number = slot.left - 1
            if slot.magics[number] & (DELETE | ROLL) != DELETE:
                message = self.read(slot.places[number], slot.sizes[number])
                if message is not None:
                    try:
                        self.hand_out(slot, message, number)
                    except Refused as error:
                        self.stall(error)
                        return False
                    self.count(message.properties[REAL_TOPIC], -1)
            slot.left = number
            if self.machine.monotonic() >= until:
                break
        return True

    def hand_out(self, slot: SlotWork, message: StoredMessage, number: int) -> None:
        """Append the record of a message that leaves its slot, unless that was done before.

        Raises:
            Refused: nothing is stored.
        """
        rolls = bool(slot.magics[number] & ROLL)
        properties = message.properties
        topic, key = properties[REAL_TOPIC], properties.get(UNIQ_KEY, "")
        if not rolls and slot.recalled and not slot.recalled.isdisjoint((f"{topic}+{key}", key)):
            return
        if self.has_effect(slot, message, rolls=rolls):
            slot.confirm = True
            return
        if rolls:
            draft = records.rolled(message)
        else:
            draft = records.delivered(
                message,
                self.queue_of(topic, records.number(properties.get(REAL_QUEUE_ID))),
                seen_ms=slot.seen[number],
                now_ms=self.machine.wall_ms(),
            )
        assert self.internal is not None
        refused: list[WhimbrelError] = []
        appended = False

        def done(error: WhimbrelError | None) -> None:
            if not appended and isinstance(error, WhimbrelError):
                refused.append(error)
                return
            slot.in_flight -= 1
            slot.failed = slot.failed or error is not None

        slot.in_flight += 1
        self.internal.append(draft, done)
        appended = True
        if refused and isinstance(refused[0], PropertiesTooLarge):
            # Two properties more than it waited with: without them it fits.
            draft.properties = message.properties_raw
            refused.clear()
            appended = False
            self.internal.append(draft, done)
            appended = True
        if refused:
            slot.in_flight -= 1
            raise refused[0] if isinstance(refused[0], Refused) else StoreFull(str(refused[0]))
        self.delivered += not rolls

    def queue_of(self, name: str, queue_id: int) -> int:
        """Return the queue of its topic to which a message goes.

        Raises:
            StoreFull: the topic is missing, and can't be written down.
        """
        topic = self.topics.get(name)
        if topic is None:
            topic = TopicConfig(name=name, read_queues=1, write_queues=1).with_type(MessageType.DELAY)
            self.topics.put(topic)
        return queue_id % max(topic.read_queues, 1)

    def has_effect(self, slot: SlotWork, message: StoredMessage, *, rolls: bool) -> bool:
        """Return whether the log holds the record that a message is to become; asked only where it may."""
        properties, place = message.properties, message.physical_offset
        topic, key = properties[REAL_TOPIC], properties.get(UNIQ_KEY, "")
        out_ms = min(slot.time_ms, records.number(properties.get(TIMER_OUT_MS)))
        if place < self.asked_below and (rolls or out_ms <= self.asked_until_ms):
            if find_effect(self.store, message, TIMER_TOPIC if rolls else topic, key):
                return True
        return place < self.rolled_below and not rolls and find_effect(self.store, message, TIMER_TOPIC, key)

    def settle(self, slot: SlotWork) -> bool:
        """Go on to the next slot once all of this one is durable; return whether it is."""
        if slot.in_flight or slot.confirming:
            return False
        if slot.failed:
            self.asked_below = self.store.written
            self.asked_until_ms = max(self.asked_until_ms, slot.time_ms)
            self.slot = None
            self.retry_at = self.machine.monotonic() + RETRY_S
            return False
        if slot.confirm:
            self.confirm(slot)
            return not slot.confirming and not slot.failed
        self.read_ms = self.effects_ms = slot.time_ms + SECOND_MS
        self.slot = None
        self.changed = True
        return True

    def confirm(self, slot: SlotWork) -> None:
        """Wait until what an earlier attempt has stored is durable."""
        assert self.internal is not None
        slot.confirming = True

        def done(error: WhimbrelError | None) -> None:
            slot.confirming = slot.confirm = False
            slot.failed = error is not None

        self.internal.confirm(self.store.written, done)

    def enqueue_lag(self) -> int:
        """Return how many messages have no unit yet; may be called from another thread."""
        return max(self.store.queue_range(TIMER_TOPIC, 0)[1] - self.queue_offset, 0)

    def behind_ms(self) -> int:
        """Return for how long the next slot could have been read; may be called from another thread."""
        if self.internal is None or self.files.wheel < 0:
            return 0
        return max(floor_second(self.machine.wall_ms()) - self.read_ms, 0)

    def count(self, topic: str, change: int) -> None:
        """Count messages that wait."""
        now = self.counts.get(topic, 0) + change
        if now > 0:
            self.counts[topic] = now
        else:
            self.counts.pop(topic, None)

    # Recalls

    def is_open(self, time_ms: int) -> bool:
        """Return whether a recall for a slot still comes in time: nothing of it was delivered."""
        return time_ms >= self.read_ms and (self.slot is None or self.slot.time_ms != time_ms)

    # Retention

    def before_removal(self, begin: int) -> int:
        """Begin to store messages again that wait below an offset; return below which files may go now."""
        for place, _, _ in self.store.queue_units(TIMER_TOPIC, 0, self.queue_offset, 1):
            begin = min(begin, place)  # it has no unit yet
        if self.files.wheel < 0:
            return begin
        if self.moved >= begin and self.store.flushed >= self.moved_end:
            return begin
        if self.moving_below <= self.moved:
            self.moving_below, self.move_cursor = begin, 0
        return self.moved if self.store.flushed >= self.moved_end else 0

    def move_on(self, until: float) -> None:
        """Store some messages again whose records retention wants to remove, one log file at a time."""
        assert self.internal is not None
        first_end = (self.store.min_offset // self.store.file_size + 1) * self.store.file_size
        for position, unit in self.files.units_from(self.move_cursor, MOVE_UNITS):
            if unit.place >= self.moving_below:
                self.moved = self.moving_below
                return
            waits = unit.slot_ms >= self.read_ms and unit.place >= self.store.min_offset
            if waits and unit.place >= first_end:
                self.moved = max(self.moved, first_end)
                return
            message = self.read(unit.place, unit.size) if waits else None
            key = "" if message is None else message.properties.get(UNIQ_KEY, "")
            if message is not None and not find_effect(self.store, message, TIMER_TOPIC, key):
                self.rolled_below = max(self.rolled_below, first_end)
                errors: list[WhimbrelError | None] = []
                if not self.internal.append(records.rolled(message), errors.append):
                    assert errors[0] is not None
                    self.stall(errors[0])
                    return
                self.moved_end = self.store.written
            self.move_cursor = position + UNIT_SIZE
            if self.machine.monotonic() >= until:
                return
        if self.move_cursor >= self.files.end:
            self.moved = self.moving_below

    # Slaves

    def offer(self, read_ms: int, log_end: int) -> None:
        """Learn a master's R; it counts when our log has come to the end of its records."""
        if self.offered is None:
            self.offered = read_ms, log_end
        self.follow()

    def follow(self) -> None:
        """Take over the master's R where our log holds what was delivered until then."""
        if self.offered is not None and self.store.dispatched >= self.offered[1]:
            if self.offered[0] > self.read_ms:
                self.read_ms = self.offered[0]
                self.changed = True
            self.offered = None

    def progress(self) -> tuple[int, int] | None:
        """Return R for slaves, and the end of the log that holds what was delivered until then; None while no
        message has ever waited."""
        return (self.read_ms, self.store.written) if self.files.wheel >= 0 else None

    # On disk

    def note_progress(self) -> None:
        """Let R count on disk as soon as the records of its slots are there."""
        read_ms, end = self.safe
        if self.store.flushed >= end:
            self.durable_read_ms = read_ms
            self.safe = self.read_ms, self.store.written

    def keep_on_disk(self) -> None:
        """Begin a flush when one is due, and take note of one that is done."""
        self.finish_flush()
        now = self.machine.monotonic()
        if now - self.flushed_at < FLUSH_S or self.flush is not None:
            return
        self.flushed_at = now
        self.note_progress()
        if now - self.expired_at >= EXPIRE_S:
            self.expired_at = now
            self.files.expire(self.store.min_offset)
        check = self.files.check
        if not self.changed and (check is None or check.read_ms >= self.durable_read_ms - 60_000):
            return
        self.changed = self.durable_read_ms < self.effects_ms  # then R follows, with a later flush
        self.flush = self.begin_flush()
        if self.flush is not None:
            if self.worker is None:
                self.worker = self.machine.worker("timers", self.run_flush)
            self.worker.wake()

    def begin_flush(self) -> TimerFlush | None:
        """Return what is to be put on disk."""
        now = self.machine.wall_ms()
        return self.files.begin_flush(self.durable_read_ms, self.queue_offset, now, self.counts)

    def run_flush(self) -> None:
        """Put a flush on disk; in the worker's thread."""
        flush = self.flush
        if flush is not None and not self.flush_done:
            try:
                flush.run()
            except (OSError, StoreFull) as error:
                self.flush_error = error
            self.flush_done = True

    def finish_flush(self) -> None:
        """Take note of a flush that is done.

        Raises:
            OSError: a sync failed.
        """
        if self.flush is None or not self.flush_done:
            return
        flush, error = self.flush, self.flush_error
        self.flush, self.flush_error, self.flush_done = None, None, False
        if error is None:
            self.files.end_flush(flush)
        elif isinstance(error, StoreFull):
            self.changed = True
            logger.warning("the timer files can't be put on disk: %s", error)
        else:
            raise error
