"""Delivers one slot at a time: its units in the order of sending, until all are as durable as the mode asks.

    collect --all units, and what recalls name--> deliver --each in the log--> settle --all durable--> done
                                                  refused: the same, later     one is not: the slot again

A slave, where the master delivers, only counts a slot's messages as gone: `pass_over`.

**Counts.** A message has counted 1 since it got its unit, and the first recall of it -1 (`recalls.py`). So
what leaves a slot counts -1, but for the one message that a recall has taken, and for recalls. It is all
counted at the end, so that a slot that is read again counts once.

On the loop's thread.
"""

import logging
from array import array
from collections.abc import Callable
from dataclasses import dataclass, field

from whimbrel.broker.produce.internal_append import InternalAppender
from whimbrel.broker.tables.topics import TopicTable
from whimbrel.broker.timing import records
from whimbrel.broker.timing.effects import Doubt
from whimbrel.broker.timing.waiting import read_waiting
from whimbrel.errors import Refused, StoreError, StoreFull, WhimbrelError
from whimbrel.model.names import TIMER_TOPIC
from whimbrel.model.properties import (
    REAL_QUEUE_ID,
    REAL_TOPIC,
    TIMER_DELETE_ID,
    TIMER_ROLL_TIMES,
    UNIQ_KEY,
)
from whimbrel.model.topic import MessageType, TopicConfig
from whimbrel.store.codec import StoredMessage
from whimbrel.store.store import MessageStore
from whimbrel.store.timer_files import TimerFiles
from whimbrel.store.timer_layout import DELETE, ROLL, SECOND_MS

__all__ = ["SlotReader", "SlotWork"]

logger = logging.getLogger(__name__)

STEP_UNITS = 256  # records or units, before the clock is looked at
RETRY_S = 0.5  # after an append that was refused
TOLD_APART_S = 60.0


@dataclass(slots=True)
class SlotWork:
    """A slot that is being read.

    Attributes:
        cursor: position of the next unit to collect, -1 at the chain's end.
        units: places, sizes, magics, W and topics' hashes of the units collected, the newest first.
        recalled: what the recalls among them name, with the place of the first that does.
        taken: of these names, those of which a message has left the slot.
        gone: how many have left that counted, by topic.
        rolled: how many of them go on waiting.
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
    hashes: "array[int]" = field(default_factory=lambda: array("i"))
    recalled: dict[str, int] = field(default_factory=dict)
    taken: set[str] = field(default_factory=set)
    gone: dict[str, int] = field(default_factory=dict)
    rolled: dict[str, int] = field(default_factory=dict)
    judged: int = 0
    left: int = -1
    in_flight: int = 0
    confirm: bool = False
    confirming: bool = False
    failed: bool = False


class SlotReader:
    """The slot that is being read, if one is.

    Attributes:
        delivered: how many messages were, by topic, since the start.
        retry_at: nothing is delivered before.
        internal: appends; set when the broker begins to lead.
    """

    def __init__(
        self,
        store: MessageStore,
        files: TimerFiles,
        topics: TopicTable,
        doubt: Doubt,
        *,
        topic_of: Callable[[int], str],
        left: Callable[[str, int], None],
        rolled: Callable[[str, int], None],
        done: Callable[[int], None],
    ) -> None:
        """Take what is read.

        Args:
            store: open. files: of the timer. doubt: which effects are looked for.
            topics: the broker's; a topic that is missing is made when a message is due.
            topic_of: tells by its hash a topic of which messages wait.
            left, rolled: told a topic and the change of its count, when a slot is over.
            done: told the next R when a slot is over.
        """
        self.store, self.files, self.topics, self.doubt = store, files, topics, doubt
        self.machine = store.machine
        self.topic_of, self.left, self.rolled, self.done = topic_of, left, rolled, done
        self.internal: InternalAppender | None = None
        self.slot: SlotWork | None = None
        self.retry_at = self.told_at = 0.0
        self.delivered: dict[str, int] = {}

    def step(self, slot: SlotWork, until: float) -> bool:
        """Do the slot's next piece of work; return whether to go on at once."""
        if slot.left < 0:
            self.collect(slot, until)
            return True
        if slot.left > 0 and not slot.failed:
            return self.deliver(slot, until)
        return self.settle(slot)

    def read(self, slot: SlotWork, number: int) -> StoredMessage | None:
        """Return the message of a unit; None when it is gone, or can't be one."""
        return read_waiting(self.store, TIMER_TOPIC, slot.places[number], slot.sizes[number])

    def stall(self, error: WhimbrelError) -> None:
        """Try again in a while."""
        now = self.machine.monotonic()
        if now >= self.told_at:
            logger.warning("delayed messages wait: %s", error)
            self.told_at = now + TOLD_APART_S
        self.retry_at = now + RETRY_S

    def begin(self, read_ms: int) -> None:
        """Begin to read the slot R."""
        slot = self.files.slot(read_ms)
        self.slot = SlotWork(read_ms, slot.last if slot is not None else -1)

    def collect(self, slot: SlotWork, until: float) -> None:
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
            slot.hashes.append(unit.topic_hash)
            slot.cursor = unit.previous
        else:
            return
        for number in range(slot.judged, min(slot.judged + STEP_UNITS, len(slot.places))):
            if slot.magics[number] & (DELETE | ROLL) == DELETE:
                message = self.read(slot, number)
                if message is not None:
                    slot.recalled[message.properties.get(TIMER_DELETE_ID, "")] = slot.places[number]
            slot.judged = number + 1
            if self.machine.monotonic() >= until:
                break
        if slot.judged == len(slot.places):
            slot.left = len(slot.places)

    def deliver(self, slot: SlotWork, until: float) -> bool:
        """Deliver some of the slot's messages; return whether to go on."""
        for _ in range(STEP_UNITS):
            if not slot.left or slot.failed:
                break
            number = slot.left - 1
            if slot.magics[number] & (DELETE | ROLL) != DELETE:
                message = self.read(slot, number)
                if message is not None:
                    try:
                        self.hand_out(slot, message, number)
                    except Refused as error:
                        self.stall(error)
                        return False
                self.leave(slot, number, message)
            slot.left = number
            if self.machine.monotonic() >= until:
                break
        return True

    def pass_over(self, slot: SlotWork, until: float) -> None:
        """Count some of the slot's messages as gone, which the master has delivered; go on after the last."""
        if slot.left < 0:
            self.collect(slot, until)
            return
        for number in range(slot.left - 1, max(slot.left - STEP_UNITS, 0) - 1, -1):
            self.leave(slot, number, self.read(slot, number) if slot.recalled else None)
            slot.left = number
            if self.machine.monotonic() >= until:
                break
        if not slot.left:
            self.finish(slot)

    def leave(self, slot: SlotWork, number: int, message: StoredMessage | None) -> None:
        """Count a message that leaves its slot, as the module says. Its record may be gone."""
        if slot.magics[number] & DELETE:
            return
        rolls = slot.magics[number] & ROLL
        name = "" if message is None or rolls else recalled_as(slot, message)
        if message is not None and name and name not in slot.taken:
            # A recall has counted if the message, or what that is a copy of, was there before it.
            if slot.places[number] < slot.recalled[name] or TIMER_ROLL_TIMES in message.properties:
                slot.taken.add(name)
                return
        topic = self.topic_of(slot.hashes[number]) if message is None else message.properties[REAL_TOPIC]
        counted = slot.rolled if rolls else slot.gone
        counted[topic] = counted.get(topic, 0) + 1

    def hand_out(self, slot: SlotWork, message: StoredMessage, number: int) -> None:
        """Append the record of a message that leaves its slot, unless that was done before.

        Raises:
            Refused: nothing is stored.
        """
        rolls = bool(slot.magics[number] & ROLL)
        properties = message.properties
        topic = properties[REAL_TOPIC]
        if not rolls and recalled_as(slot, message):
            return
        if self.doubt.has_effect(message, slot.time_ms, rolls=rolls):
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
        if refused:
            slot.in_flight -= 1
            raise refused[0] if isinstance(refused[0], Refused) else StoreFull(str(refused[0]))
        if not rolls:
            self.delivered[topic] = self.delivered.get(topic, 0) + 1

    def queue_of(self, name: str, queue_id: int) -> int:
        """Return the queue of its topic to which a message goes.

        Raises:
            StoreFull: the topic is missing, and can't be written down.
        """
        topic = self.topics.get(name)
        if topic is None:
            topic = TopicConfig(name=name, read_queues=1, write_queues=1).with_type(MessageType.DELAY)
            self.topics.put(topic)
        return queue_id % topic.onward_queues

    def settle(self, slot: SlotWork) -> bool:
        """Go on to the next slot once all of this one is durable; return whether it is."""
        if slot.in_flight or slot.confirming:
            return False
        if slot.failed:
            self.doubt.until(slot.time_ms)
            self.slot = None
            self.retry_at = self.machine.monotonic() + RETRY_S
            return False
        if slot.confirm:
            self.confirm(slot)
            return not slot.confirming and not slot.failed
        self.finish(slot)
        return True

    def finish(self, slot: SlotWork) -> None:
        """Count what has left the slot, and go on to the next one."""
        self.slot = None
        for topic, messages in slot.gone.items():
            self.left(topic, -messages)
        for topic, messages in slot.rolled.items():
            self.rolled(topic, -messages)
        self.done(slot.time_ms + SECOND_MS)

    def confirm(self, slot: SlotWork) -> None:
        """Wait until what an earlier attempt has stored is durable."""
        assert self.internal is not None
        slot.confirming = True

        def done(error: WhimbrelError | None) -> None:
            slot.confirming = slot.confirm = False
            slot.failed = error is not None

        self.internal.confirm(self.store.written, done)


def recalled_as(slot: SlotWork, message: StoredMessage) -> str:
    """Return how a slot's recalls name a message, nothing where none does."""
    if not slot.recalled:
        return ""
    key = message.properties.get(UNIQ_KEY, "")
    names = (f"{message.properties[REAL_TOPIC]}+{key}", key)
    return next((name for name in names if name in slot.recalled), "")
