"""RocketMQ 4's delayed messages: levels, each with a queue of SCHEDULE_TOPIC_XXXX and a position in it.

    queue (level - 1) --due by the entry's tags code--> REAL_TOPIC --durable--> position of the level

A queue holds one delay, so its head is due first. A level's messages go out in order, up to `BATCH_MAX` at a
time; its position moves when all of them are durable, and one that was refused is tried again with those
behind it. `config/delayOffset.json` has the positions, by level (RocketMQ: ScheduleMessageService).

A delivered record names its cause, as those of the timer do (`records.py`). The file is written now and then,
so after a start, and after an append that was not confirmed, the log is asked before each append whether the
message was delivered already.

**A position may be ahead of its log.** Under asynchronous flush, what was delivered is gone with the power,
and the file is not; a slave has the master's positions, and perhaps less of its log; RocketMQ 4.9.3 notes
positions before what it has delivered. So whoever begins to deliver looks back first: from the position on, a
level goes back to before the first message whose delivery is not in the log, and is done when BATCH_MAX in a
row, as many as are under way at a time, were delivered. What has no id counts as delivered.

A time further ahead than the level's delay means that the clock was set back: the message is due. Those that
go to the half topic are passed over, as RocketMQ does. Masters only; slaves copy the file.

On the loop's thread; only the file is written in a worker's, every `SAVE_S` while positions move.
"""

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass

from whimbrel.broker.produce.internal_append import InternalAppender
from whimbrel.broker.tables.offset_files import DelayOffsets
from whimbrel.broker.timing import records
from whimbrel.broker.timing.effects import find_effect
from whimbrel.broker.timing.timers import TICK_S, Timers
from whimbrel.broker.timing.waiting import read_waiting
from whimbrel.errors import StoreError, StoreFull, WhimbrelError
from whimbrel.machine import Worker
from whimbrel.model.names import HALF_TOPIC, SCHEDULE_TOPIC
from whimbrel.model.properties import REAL_QUEUE_ID, REAL_TOPIC, UNIQ_KEY
from whimbrel.store.codec import StoredMessage
from whimbrel.store.store import MessageStore

__all__ = ["Levels"]

logger = logging.getLogger(__name__)

BATCH_MAX = 32  # of a level, under way
STEP_S = 0.005  # of work, before other callers have their turn
RETRY_S = 0.5  # after an append that was refused or not confirmed
SAVE_S = 10.0  # RocketMQ: flushDelayOffsetInterval


@dataclass(slots=True)
class Level:
    """One level: where its next message stands, and what of it is under way, up to `end`."""

    queue_id: int
    position: int
    end: int = 0
    in_flight: int = 0
    failed: bool = False
    asked_below: int = 0  # for messages that stand below this in the log, the log is asked
    retry_at: float = 0.0
    back: int = 0  # messages from here to the position were looked at
    delivered: int = 0  # of these, so many in a row, the first ones
    trusted: bool = False  # nothing before the position is to be delivered any more


class Levels:
    """Delivers what waits in levels.

    Attributes:
        levels: those with a queue, by queue id.
    """

    def __init__(
        self,
        store: MessageStore,
        offsets: DelayOffsets,
        timers: Timers,
        internal: InternalAppender,
        *,
        may_deliver: Callable[[], bool],
    ) -> None:
        """Take what is needed.

        Args:
            store: open. offsets: the positions. timers: knows queues of topics. internal: appends.
            may_deliver: whether writes are allowed now.
        """
        self.store, self.machine, self.offsets = store, store.machine, offsets
        self.timers, self.internal, self.may_deliver = timers, internal, may_deliver
        self.levels: dict[int, Level] = {}
        self.saved_at = self.machine.monotonic()
        # Positions by level; replaced, never changed, since a thread reads them.
        self.wanted: dict[int, int] = {}
        self.written = self.wanted
        self.worker: Worker | None = None
        self.doubt_below = store.written

    async def run(self) -> None:
        """Work until cancelled."""
        while True:
            try:
                more = self.step()
            except (StoreError, OSError) as error:
                logger.error("messages of delay levels wait: %s", error)
                more = False
            await asyncio.sleep(0 if more else TICK_S)

    def close(self) -> None:
        """Write the positions."""
        if self.worker is not None:
            self.worker.wait()
            self.worker.stop()
            self.worker = None
        self.wanted = self.positions()
        self.write()

    def waiting(self) -> int:
        """Return how many messages the levels hold that are not delivered."""
        count = 0
        for queue_id in range(len(self.store.delays_ms)):
            low, high = self.store.queue_range(SCHEDULE_TOPIC, queue_id)
            if low < high:
                count += high - self.level(queue_id, low, high).position
        return count

    def step(self) -> bool:
        """Do some milliseconds of work; return whether there is more at once."""
        until = self.machine.monotonic() + STEP_S
        more = False
        if self.may_deliver():
            for queue_id in range(len(self.store.delays_ms)):
                low, high = self.store.queue_range(SCHEDULE_TOPIC, queue_id)
                if low == high:
                    continue
                level = self.level(queue_id, low, high)
                if not level.trusted:
                    more = self.look_back(level, until) or more
                if level.trusted:
                    more = self.deliver(level, until) or more
                if self.machine.monotonic() >= until:
                    break
        if self.machine.monotonic() - self.saved_at >= SAVE_S:
            self.save()
        return more

    def level(self, queue_id: int, low: int, high: int) -> Level:
        """Return a level, at a position that its queue has."""
        found = self.levels.get(queue_id)
        if found is None:
            position = min(max(self.offsets.position(queue_id + 1), low), high)
            found = Level(queue_id, position, asked_below=self.doubt_below, back=position)
            self.levels[queue_id] = found
        found.position = min(max(found.position, low), high)
        return found

    def look_back(self, level: Level, until: float) -> bool:
        """Go back to before what was not delivered; return whether there is more to look at at once."""
        low = self.store.queue_range(SCHEDULE_TOPIC, level.queue_id)[0]
        position = level.position
        while level.back > low and level.delivered < BATCH_MAX:
            if self.machine.monotonic() >= until:
                return True
            begin = max(low, level.back - BATCH_MAX)
            units = list(self.store.queue_units(SCHEDULE_TOPIC, level.queue_id, begin, level.back - begin))
            for place, size, _ in reversed(units):
                level.back -= 1
                if self.is_delivered(place, size):
                    level.delivered += 1
                else:
                    level.delivered, level.position = 0, level.back
        level.trusted = True
        if level.position < position:
            logger.warning(
                "delay level %d: %d messages before its position are not delivered in this log: they are now",
                level.queue_id + 1,
                position - level.position,
            )
        return False

    def is_delivered(self, place: int, size: int) -> bool:
        """Return whether a message is not to be delivered any more, as far as the log tells."""
        message = self.read(place, size)
        if message is None:
            return True
        topic, key = message.properties[REAL_TOPIC], message.properties.get(UNIQ_KEY, "")
        return not key or find_effect(self.store, message, topic, key)

    def deliver(self, level: Level, until: float) -> bool:
        """Deliver some of what is due of a level; return whether there may be more at once."""
        if level.in_flight:
            return False
        if level.failed:
            level.failed, level.asked_below = False, self.store.written
            level.retry_at = self.machine.monotonic() + RETRY_S
        if self.machine.monotonic() < level.retry_at:
            return False
        now, delay_ms = self.machine.wall_ms(), self.store.delays_ms[level.queue_id]
        level.end = level.position
        level.in_flight = 1  # this batch, until all of it was handed in
        try:
            self.hand_out_due(level, now, delay_ms, until)
            return level.end > level.position
        except (StoreError, OSError):
            level.failed = True
            raise
        finally:
            self.done(level)

    def hand_out_due(self, level: Level, now: int, delay_ms: int, until: float) -> None:
        """Hand out what is due of a batch."""
        units = self.store.queue_units(SCHEDULE_TOPIC, level.queue_id, level.position, BATCH_MAX)
        for place, size, due_ms in units:
            if now < due_ms <= now + delay_ms or level.failed:
                break
            message = self.read(place, size)
            if message is not None:
                self.hand_out(level, message)
            level.end += 1
            if self.machine.monotonic() >= until:
                break

    def read(self, place: int, size: int) -> StoredMessage | None:
        """Return a message that waits; None when it is gone, can't be one, or is not to be delivered."""
        message = read_waiting(self.store, SCHEDULE_TOPIC, place, size)
        if message is not None and message.properties[REAL_TOPIC] == HALF_TOPIC:
            logger.error("the record at %d is no delayed message: it is left out", place)
            return None
        return message

    def hand_out(self, level: Level, message: StoredMessage) -> None:
        """Append the record of a message that is due, unless that was done before."""
        properties = message.properties
        topic = properties[REAL_TOPIC]

        def done(error: WhimbrelError | None) -> None:
            if error is not None:
                if not level.failed:
                    logger.warning("messages of delay level %d wait: %s", level.queue_id + 1, error)
                level.failed = True
            self.done(level)

        level.in_flight += 1
        if message.physical_offset < level.asked_below:
            if find_effect(self.store, message, topic, properties.get(UNIQ_KEY, "")):
                self.internal.confirm(self.store.written, done)
                return
        try:
            queue_id = self.timers.slots.queue_of(topic, records.number(properties.get(REAL_QUEUE_ID)))
        except StoreFull as error:
            done(error)
            return
        self.internal.append(records.caused(message, records.Onward(topic, ()), queue_id), done)

    def done(self, level: Level) -> None:
        """Note that one of a batch has ended; with the last one the position moves."""
        level.in_flight -= 1
        if not level.in_flight and not level.failed:
            level.position = level.end

    def positions(self) -> dict[int, int]:
        """Return the positions, by level."""
        return {level.queue_id + 1: level.position for level in self.levels.values()}

    def save(self) -> None:
        """Have the positions written, if one has moved."""
        self.saved_at = self.machine.monotonic()
        self.wanted = self.positions()
        if self.wanted != self.written:
            if self.worker is None:
                self.worker = self.machine.worker("delay-offsets", self.write)
            self.worker.wake()

    def write(self) -> None:
        """Write what is wanted; in the worker's thread."""
        wanted = self.wanted
        try:
            self.offsets.save(wanted, self.machine.wall_ms())
        except (OSError, StoreFull) as error:  # a start asks the log about what was delivered since
            logger.warning("the positions of delay levels can't be written: %s", error)
        else:
            self.written = wanted
