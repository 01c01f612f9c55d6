"""Reads that wait for a message, by the queue that they read. Decides when each is looked at again.

    parked --message in its queue, or a change of it--> looked at again --some--> answered
       |                                                   '--none for it--> parked, from behind them on
       |----deadline--> looked at once more, and answered
       |----its caller leaves--> gone
       '----the role ends--> answered as its kind says

Several reads of one queue may wait, of one group as well (broadcast, or two owners during a rebalance): each
is answered. A read is looked at once for all messages of its queue that an iteration of the loop has brought.
A deadline comes up to the grain of its kind late. What it is looked at for is the caller's to know.

| Kind | Who | Grain | In all | Of one reader | When the role ends |
|---|---|---|---|---|---|
| `PULLS` | pulls of `apache.rocketmq.v2` | 1 ms | `POLLS_MAX`, receives among them | | nothing was found |
| `HELD_PULLS` | pulls by the remoting protocol | 1 s | 100,000, as RocketMQ's pull pool | 2,000 | NotReady |

RocketMQ's grain of held pulls is 5 s: a poll of 15 s is answered after 15 to 20 s there, and after 15 to 16 s
here. A read that finds no room is refused, and its client comes back after some seconds.

Times are milliseconds of a clock that only grows.
"""

import heapq
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from math import inf
from typing import Any, Final, Protocol

from whimbrel.broker.consume.long_polls import POLLS_MAX, Room
from whimbrel.deferred import Deferred
from whimbrel.errors import Throttled

__all__ = ["HELD_PULLS", "PULLS", "Kind", "Waiting", "Waits"]

DEADLINES_FEW = 64  # that are kept although nothing is answered then any more


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


PULLS: Final = Kind(
    grain_ms=1, most=POLLS_MAX, each=POLLS_MAX, refusal="polling full: {count} polls are parked", told=False
)
HELD_PULLS: Final = Kind(
    grain_ms=1_000,
    most=100_000,
    each=2_000,
    refusal="{count} pulls are held here, {own} of this connection: poll again later",
    told=True,
)


class Due:
    """All whose time is over at once."""

    __slots__ = ("at", "waits")

    def __init__(self, at: int) -> None:
        self.at = at
        self.waits: dict[Waits, None] = {}


class Waiter(Protocol):
    """What is asked of something that waits."""

    @property
    def kind(self) -> Kind: ...
    @property
    def topic(self) -> str: ...
    @property
    def queue_id(self) -> int: ...
    @property
    def reader(self) -> object | None:
        """Whose it is, for the bound of one reader; a key of dicts, None where nobody is."""


class Waits(Deferred[Any]):
    """Something that waits, and its answer.

    Attributes:
        what: the request. render: makes the answer of it and of what was found. The caller's, both.
        due: with what else it is answered; None while it does not wait. waiting: where it does.
    """

    __slots__ = ("due", "render", "waiting", "what")

    def __init__(self, what: Any, render: Callable[[Any, Any], Any], waiting: "Waiting", due: Due) -> None:
        super().__init__()
        self.what, self.render, self.waiting = what, render, waiting
        self.due: Due | None = due

    def cancel(self) -> None:
        """Wait no longer: the caller has left."""
        super().cancel()
        self.waiting.remove(self)


class Waiting:
    """All that waits. On the loop's thread.

    Attributes:
        rooms: how many wait, by kind.
        dirty: queues with new messages; a dict as an ordered set.
    """

    def __init__(
        self,
        look: Callable[[Waits, bool], None],
        *,
        clock: Callable[[], int],
        soon: Callable[[Callable[[], None]], object],
        later: Callable[[float, Callable[[], None]], object],
        polls: Room,
    ) -> None:
        """Begin with nothing.

        Args:
            look: looks again at one that waits, and removes it where it is answered; the second argument
                says that it is to be answered now.
            clock: see above. soon: has a function called in the loop's next iteration. later: in so many
                seconds.
            polls: the room that pulls share with receives.
        """
        self.look, self.clock, self.soon, self.later = look, clock, soon, later
        self.rooms = {PULLS: polls, HELD_PULLS: Room(HELD_PULLS.most)}
        self.by_queue: dict[tuple[str, int], dict[Waits, None]] = {}
        self.by_reader: dict[object, int] = {}
        self.by_deadline: dict[int, Due] = {}
        self.deadlines: list[int] = []  # a heap; some may be of none any more
        self.dirty: dict[tuple[str, int], None] = {}
        self.timer_at: float = inf
        self.timer_generation = 0

    def park(self, what: Waiter, render: Callable[[Any, Any], Any], wait_ms: int) -> Waits:
        """Have something wait for so long; see `Waits`.

        Raises:
            Throttled: there is no room.
        """
        kind, reader = what.kind, what.reader
        room, own = self.rooms[kind], self.by_reader.get(reader, 0)
        if room.taken >= room.most or own >= kind.each:
            raise Throttled(kind.refusal.format(count=room.taken, own=own))
        room.taken += 1
        if reader is not None:
            self.by_reader[reader] = own + 1
        at = -(-(self.clock() + wait_ms) // kind.grain_ms) * kind.grain_ms
        due = self.by_deadline.get(at)
        if due is None:
            if len(self.deadlines) > 2 * len(self.by_deadline) + DEADLINES_FEW:
                self.deadlines = list(self.by_deadline)
                heapq.heapify(self.deadlines)
            heapq.heappush(self.deadlines, at)
            due = self.by_deadline[at] = Due(at)
        waits = Waits(what, render, self, due)
        due.waits[waits] = None
        self.by_queue.setdefault((what.topic, what.queue_id), {})[waits] = None
        self.arm_timer()
        return waits

    def remove(self, waits: Waits) -> None:
        """Forget one, if it waits."""
        what, due = waits.what, waits.due
        if due is None:
            return
        waits.due = None
        del due.waits[waits]
        if not due.waits:
            del self.by_deadline[due.at]
        of_queue = self.by_queue[what.topic, what.queue_id]
        del of_queue[waits]
        if not of_queue:
            del self.by_queue[what.topic, what.queue_id]
        self.rooms[what.kind].taken -= 1
        if what.reader is not None:
            left = self.by_reader.pop(what.reader) - 1
            if left:
                self.by_reader[what.reader] = left

    def arrived(self, topic: str, queue_id: int) -> None:
        """Look at those of a queue in the loop's next iteration: it has a new message, or has changed."""
        key = topic, queue_id
        if key in self.by_queue:
            if not self.dirty:
                self.soon(self.look_at_dirty)
            self.dirty[key] = None

    def look_at_dirty(self) -> None:
        """Look at those of queues with new messages."""
        dirty, self.dirty = self.dirty, {}
        for key in dirty:
            for waits in tuple(self.by_queue.get(key, ())):
                if waits.due is not None:
                    self.look(waits, False)

    def arm_timer(self) -> None:
        """Have `expire` called for the next deadline."""
        if self.deadlines and self.deadlines[0] < self.timer_at:
            self.timer_at = self.deadlines[0]
            self.timer_generation = generation = self.timer_generation + 1
            self.later(max(self.timer_at - self.clock(), 0) / 1000, lambda: self.on_timer(generation))

    def on_timer(self, generation: int) -> None:
        """Answer those whose time is over, unless another timer was armed, for an earlier time."""
        if generation == self.timer_generation:
            self.timer_at = inf
            self.expire()

    def expire(self) -> None:
        """Answer those whose time is over."""
        now = self.clock()
        while self.deadlines and self.deadlines[0] <= now:
            due = self.by_deadline.get(heapq.heappop(self.deadlines))
            for waits in () if due is None else tuple(due.waits):
                if waits.due is not None:
                    self.look(waits, True)
        self.arm_timer()

    def all(self) -> Iterator[Waits]:
        """Yield all that waits, by its queues."""
        for of_queue in tuple(self.by_queue.values()):
            yield from tuple(of_queue)

    def close(self) -> None:
        """Have no timer go off any more."""
        self.timer_generation += 1
