"""Calls that wait for a message, by what they wait for. Decides when each is looked at again.

    parked --its line may have something--> looked at again --some--> answered
       |                                       '--none for it--> parked on
       |----deadline--> looked at once more, and answered
       |----its caller leaves--> gone
       '----the role ends--> answered as its kind says

What waits stands in *lines*, first come first, one for each queue that is read, and one for each group that
receives from a topic. All of a line are looked at together, by who parked them: several reads of one queue
are each answered; receives of a group compete, and what got nothing keeps its place. A line is looked at

    a message has come to a queue    in the loop's next iteration, once for all: that queue's, and the groups'
    one may be free again            the same, the groups' of the topic (`wake`)
    one becomes visible              at that time (`visit`)

A deadline comes up to the grain of its kind late. What a line is looked at for is the caller's to know.

| Kind | Who | Grain | In all | Of one reader | When the role ends |
|---|---|---|---|---|---|
| `POLLS` | receives and pulls of `apache.rocketmq.v2` | 1 ms | `POLLS_MAX` | | nothing was found |
| `EARLY_RECEIVES` | receives before this broker serves them | 1 ms | `POLLS_MAX` | | nothing was found |
| `HELD_PULLS` | pulls by the remoting protocol | 1 s | 100,000, as RocketMQ's pull pool | 2,000 | NotReady |

RocketMQ's grain of held pulls is 5 s: a poll of 15 s is answered after 15 to 20 s there, and after 15 to 16 s
here. What finds no room is refused, and its client comes back after some seconds.

Times are milliseconds of a clock that only grows.
"""

import heapq
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum
from math import inf
from typing import Any, Final, Protocol, TypeAlias

from whimbrel.deferred import Deferred
from whimbrel.errors import CorruptRecord, NotReady, Throttled, WhimbrelError

__all__ = ["EARLY_RECEIVES", "HELD_PULLS", "POLLS", "POLLS_MAX", "Kind", "Line", "Waiting", "Waits", "When"]

# A parked poll keeps a stream of the transport, about 20 KiB; the bound limits that memory. RocketMQ: 100,000
# (`maxPopPollingSize`), its streams being cheaper; 1024 for each queue.
POLLS_MAX: Final = 4096
DEADLINES_FEW = 64  # that are kept although nothing is answered then any more

# A topic, and the id of a queue or the name of a group.
Line: TypeAlias = tuple[str, int | str]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Kind:
    """What waits alike.

    Attributes:
        grain_ms: deadlines are multiples of it.
        most: how many may wait in all. each: how many of one reader, where that is known.
        refusal: says that there is no room, of `{count}` in all and `{own}` of the reader.
        told: when the role ends each is answered with an error; else with nothing.
    """

    grain_ms: int
    most: int
    each: int
    refusal: str
    told: bool


POLLS: Final = Kind(
    grain_ms=1, most=POLLS_MAX, each=POLLS_MAX, refusal="polling full: {count} polls are parked", told=False
)
EARLY_RECEIVES: Final = Kind(
    grain_ms=1,
    most=POLLS_MAX,
    each=POLLS_MAX,
    refusal="{count} receives wait for this broker to be ready",
    told=False,
)
HELD_PULLS: Final = Kind(
    grain_ms=1_000,
    most=100_000,
    each=2_000,
    refusal="{count} pulls are held here, {own} of this connection: poll again later",
    told=True,
)


class When(Enum):
    """Why something is looked at: its line may have something, its time is over, or the role ends.

    In the latter two cases it is to be answered now.
    """

    CHANGED = "CHANGED"
    OVER = "OVER"
    ENDED = "ENDED"


@dataclass(slots=True)
class Room:
    """How many may wait, and how many do."""

    most: int
    taken: int = 0


class Due:
    """All that is to be done at once: whose time is over, and lines to look at."""

    __slots__ = ("at", "places", "waits")

    def __init__(self, at: int) -> None:
        self.at = at
        self.waits: dict[Waits, None] = {}
        self.places: dict[Place, None] = {}


class Place:
    """A line that something stands in.

    Attributes:
        line: which one.
        waits: what stands there; a dict as an ordered set.
        visit: when it is to be looked at; None: when something is new.
    """

    __slots__ = ("line", "visit", "waits")

    def __init__(self, line: Line) -> None:
        self.line = line
        self.waits: dict[Waits, None] = {}
        self.visit: Due | None = None


class Waits(Deferred[Any]):
    """Something that waits, and its answer.

    Attributes:
        kind: how it waits. place: where. reader: whose it is, for the bound of one reader; None: nobody's.
        what: the request. render: makes the answer of it and of what was found. The caller's, both.
        looker: looks at it again.
        due: with what else it is answered; None while it does not wait. waiting: owns it.
    """

    __slots__ = ("due", "kind", "looker", "place", "reader", "render", "waiting", "what")

    def __init__(
        self,
        waiting: "Waiting",
        kind: Kind,
        what: Any,
        render: Callable[[Any, Any], Any],
        looker: "Looker",
        reader: object | None,
    ) -> None:
        super().__init__()
        self.waiting, self.kind, self.what, self.render = waiting, kind, what, render
        self.looker, self.reader = looker, reader
        self.place: Place
        self.due: Due | None = None

    def cancel(self) -> None:
        """Wait no longer: the caller has left."""
        super().cancel()
        self.waiting.remove(self)


class Looker(Protocol):
    """Who has had something wait."""

    def look_again(self, found: Sequence[Waits], when: When) -> None:
        """Look at what waits in one line, in its order; answer what there is something for, or must be."""


class Waiting:
    """All that waits. On the loop's thread.

    Attributes:
        rooms: how many wait, by kind.
        lines: in which something waits. groups: those of groups by topic, dicts as ordered sets.
        dirty: topics with news, and in which queues.
    """

    def __init__(
        self,
        *,
        clock: Callable[[], int],
        soon: Callable[[Callable[[], None]], object],
        later: Callable[[float, Callable[[], None]], object],
    ) -> None:
        """Begin with nothing.

        Args:
            clock: see above. soon: has a function called in the loop's next iteration. later: in so many
                seconds.
        """
        self.clock, self.soon, self.later = clock, soon, later
        self.rooms = {kind: Room(kind.most) for kind in (POLLS, EARLY_RECEIVES, HELD_PULLS)}
        self.lines: dict[Line, Place] = {}
        self.groups: dict[str, dict[Line, None]] = {}
        self.by_reader: dict[object, int] = {}
        self.by_time: dict[int, Due] = {}
        self.times: list[int] = []  # a heap; nothing may be due at some of them any more
        self.dirty: dict[str, dict[Line, None]] = {}
        self.timer_at: float = inf
        self.timer_generation = 0

    def park(
        self,
        kind: Kind,
        line: Line,
        wait_ms: int,
        what: Any,
        render: Callable[[Any, Any], Any],
        looker: Looker,
        reader: object | None = None,
    ) -> Waits:
        """Have something wait for so long at the end of its line; see `Waits`.

        Raises:
            Throttled: there is no room.
        """
        self.check_room(kind, reader)
        waits = Waits(self, kind, what, render, looker, reader)
        self.add(waits, line, -(-(self.clock() + wait_ms) // kind.grain_ms) * kind.grain_ms)
        self.arm_timer()
        return waits

    def move(self, waits: Waits, kind: Kind, line: Line) -> None:
        """Have one wait at the end of another line, as another kind, until the same time.

        Raises:
            Throttled: there is no room.
        """
        due = waits.due
        assert due is not None
        self.check_room(kind, waits.reader)
        self.remove(waits)
        waits.kind = kind
        self.add(waits, line, due.at)

    def check_room(self, kind: Kind, reader: object | None) -> None:
        """Raise Throttled where no more may wait."""
        room, own = self.rooms[kind], self.by_reader.get(reader, 0)
        if room.taken >= room.most or own >= kind.each:
            raise Throttled(kind.refusal.format(count=room.taken, own=own))

    def add(self, waits: Waits, line: Line, at: int) -> None:
        """Have one wait until a time."""
        self.rooms[waits.kind].taken += 1
        if waits.reader is not None:
            self.by_reader[waits.reader] = self.by_reader.get(waits.reader, 0) + 1
        due = waits.due = self.due_at(at)
        due.waits[waits] = None
        place = waits.place = self.lines.get(line) or self.begin_line(line)
        place.waits[waits] = None

    def begin_line(self, line: Line) -> Place:
        """Return a line that nothing stands in yet."""
        place = self.lines[line] = Place(line)
        if isinstance(line[1], str):
            self.groups.setdefault(line[0], {})[line] = None
        return place

    def end_line(self, place: Place) -> None:
        """Forget a line that nothing stands in any more."""
        line = place.line
        del self.lines[line]
        of_topic = self.groups.get(line[0], {})
        if line in of_topic:
            del of_topic[line]
            if not of_topic:
                del self.groups[line[0]]
        self.end_visit(place)

    def due_at(self, at: int) -> Due:
        """Return what is due at a time, to add to it."""
        due = self.by_time.get(at)
        if due is None:
            if len(self.times) > 2 * len(self.by_time) + DEADLINES_FEW:
                self.times = list(self.by_time)
                heapq.heapify(self.times)
            heapq.heappush(self.times, at)
            due = self.by_time[at] = Due(at)
        return due

    def drop(self, due: Due) -> None:
        """Forget a time at which nothing is due any more."""
        if not due.waits and not due.places:
            self.by_time.pop(due.at, None)

    def remove(self, waits: Waits) -> None:
        """Forget one, if it waits; and with the last one of a line when it was to be looked at."""
        due = waits.due
        if due is None:
            return
        waits.due = None
        del due.waits[waits]
        self.drop(due)
        place = waits.place
        del place.waits[waits]
        if not place.waits:
            self.end_line(place)
        self.rooms[waits.kind].taken -= 1
        if waits.reader is not None:
            left = self.by_reader.pop(waits.reader) - 1
            if left:
                self.by_reader[waits.reader] = left

    def answer(self, waits: Waits, found: Any) -> bool:
        """Answer one with what is rendered of what was found; return False when its caller has gone."""
        self.remove(waits)
        try:
            answer = waits.render(waits.what, found)
        except WhimbrelError as error:
            return waits.fail(error)
        except ValueError as error:  # text that a front can't write, in a record of other writers
            return waits.fail(CorruptRecord(f"a record can't be delivered: {error}"))
        if not isinstance(answer, Deferred):
            return waits.complete(answer)
        there = not (waits.done or waits.cancelled)
        waits.follow(answer)
        return there

    def refuse(self, waits: Waits, error: WhimbrelError) -> None:
        """Answer one with an error."""
        self.remove(waits)
        waits.fail(error)

    def left_ms(self, waits: Waits) -> int:
        """Return how long one may still wait; 0 once that is over."""
        return 0 if waits.due is None else max(waits.due.at - self.clock(), 0)

    @property
    def parked(self) -> int:
        """How many receives and pulls of `apache.rocketmq.v2` wait."""
        return self.rooms[POLLS].taken + self.rooms[EARLY_RECEIVES].taken

    def has(self, topic: str, group: str) -> bool:
        """Return whether receives of a group wait for a topic."""
        return (topic, group) in self.lines

    def of(self, line: Line) -> tuple[Waits, ...]:
        """Return what waits in a line, in its order."""
        place = self.lines.get(line)
        return () if place is None else tuple(place.waits)

    def arrived(self, topic: str, queue_id: int) -> None:
        """Look at who waits for a message of a queue: it has a new one, or has changed."""
        line = topic, queue_id
        if topic in self.groups or line in self.lines:
            self.note(topic)[line] = None

    def wake(self, topic: str) -> None:
        """Look at the groups that wait for messages of a topic: one may be free again."""
        if topic in self.groups:
            self.note(topic)

    def wake_all(self) -> None:
        """Look at all groups that wait for messages."""
        for topic in self.groups:
            self.note(topic)

    def note(self, topic: str) -> dict[Line, None]:
        """Have a topic looked at in the loop's next iteration; return its queues that have news."""
        if not self.dirty:
            self.soon(self.look_at_dirty)
        return self.dirty.setdefault(topic, {})

    def look_at_dirty(self) -> None:
        """Look at the lines of queues with news, and at those of the groups of their topics."""
        dirty, self.dirty = self.dirty, {}
        for topic, queues in dirty.items():
            for line in (*queues, *self.groups.get(topic, ())):
                self.look(line)

    def look(self, line: Line) -> None:
        """Look at what waits in a line."""
        if found := self.of(line):
            found[0].looker.look_again(found, When.CHANGED)

    def visit(self, line: Line, in_ms: int) -> None:
        """Look at a line in so many milliseconds, if it is not to be looked at before."""
        place, at = self.lines[line], self.clock() + in_ms
        if place.visit is not None and place.visit.at <= at:
            return
        self.end_visit(place)
        due = place.visit = self.due_at(at)
        due.places[place] = None
        self.arm_timer()

    def end_visit(self, place: Place) -> None:
        """Forget when a line was to be looked at."""
        due, place.visit = place.visit, None
        if due is not None:
            del due.places[place]
            self.drop(due)

    def arm_timer(self) -> None:
        """Have `expire` called when the next thing is due."""
        if self.times and self.times[0] < self.timer_at:
            self.timer_at = self.times[0]
            self.timer_generation = generation = self.timer_generation + 1
            self.later(max(self.timer_at - self.clock(), 0) / 1000, lambda: self.on_timer(generation))

    def on_timer(self, generation: int) -> None:
        """Do what is due, unless another timer was armed, for an earlier time."""
        if generation == self.timer_generation:
            self.timer_at = inf
            self.expire()

    def expire(self) -> None:
        """Look at the lines that are due, and answer those whose time is over."""
        now = self.clock()
        while self.times and self.times[0] <= now:
            due = self.by_time.pop(heapq.heappop(self.times), None)
            if due is None:
                continue
            for place in tuple(due.places):
                self.end_visit(place)
                self.look(place.line)
            for waits in tuple(due.waits):
                if waits.due is not None:
                    waits.looker.look_again((waits,), When.OVER)
        self.arm_timer()

    def close(self, reason: str) -> None:
        """Answer all that wait: the role ends."""
        for line in tuple(self.lines):
            for waits in self.of(line):
                if waits.kind.told:
                    self.refuse(waits, NotReady(reason))
            if found := self.of(line):
                found[0].looker.look_again(found, When.ENDED)
        self.timer_generation += 1
