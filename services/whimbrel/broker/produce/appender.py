"""Append with the durability that was asked for.

A send is refused before anything is stored: the broker is not writable, the disk is full, or synchronous
replication has too few slaves near enough (RocketMQ stores first and answers 50002 afterwards, so that the
SDKs' retries store the message three times). What is appended answers at once, or is parked until

    its end <= flushed                 synchronous flush: within `flush_timeout_s`, else FlushTimeout
    its end <= acknowledged by `acks`  synchronous replication: within `slave_timeout_s`, else ReplicaTimeout

and ReplicaTimeout is told when both failed. Both marks only grow, and parked sends stand in one deque by
their end, so the head is always the next to be answered; deadlines are equally long for all, so it is also
the next to be late.

At the end of a loop tick in which something was appended, the store publishes its `written` mark once, a
flush is asked for once, and the replicator is rung if it sleeps: that is the batch that costs nothing. With
asynchronous replication it is rung at most every `RING_APART_S`: at once when little is sent, and by larger
pieces when much is.
"""

import logging
import math
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from whimbrel.broker.produce.confirmed_offset import in_sync
from whimbrel.errors import FlushTimeout, NoReplica, NotWritable, ReplicaTimeout, Throttled, WhimbrelError
from whimbrel.wakeup import WAKE_POLL_S

__all__ = ["PARKED_BYTES_MAX", "PARKED_MAX", "Durability", "Sender"]

logger = logging.getLogger(__name__)

# sends that wait; at 100 k a second that is 0.2 s, and each holds about 1 KiB besides its message
PARKED_MAX = 20_000
# Bytes of log that they take: the transport keeps the request of each until it is answered, and with 4 MiB
# bodies 20,000 would be 80 GB. A disk or a slave takes a part of a second for this.
PARKED_BYTES_MAX = 64 << 20
INDEX_WITHIN_S = 0.05  # the index takes messages by groups; a few that make none wait no longer
RING_APART_S = 0.001  # asynchronous replication: how often a replicator is woken that sleeps again and again


@dataclass(frozen=True, slots=True, kw_only=True)
class Durability:
    """What an answer promises.

    Attributes:
        sync_flush: the record is on the local disk. acks: so many connected slaves hold it; 0 for
        asynchronous replication. fallbehind_max: bytes; a slave that lacks as many does not count when a send
        asks whether there are enough.
    """

    sync_flush: bool = False
    acks: int = 0
    fallbehind_max: int = 256 * 1024 * 1024
    flush_timeout_s: float = 5.0
    slave_timeout_s: float = 3.0


class Log(Protocol):
    """What the sender needs of the message store."""

    @property
    def written(self) -> int:
        """End of the log."""

    @property
    def flushed(self) -> int:
        """End of what is on disk."""

    def append(self, drafts: Sequence[Any]) -> list[Any]:
        """Append records of one queue, all or none."""

    def end_tick(self) -> bool:
        """Publish the written mark; return whether to be called again soon."""

    def index_rest(self) -> None:
        """Index what the ticks left over."""

    def request_flush(self, end: int) -> None:
        """Have the log flushed up to `end`."""


class Marks(Protocol):
    """What the sender needs of the page of marks."""

    replica_sleeping: int
    broker_sleeping: int

    def live_acks(self) -> list[int]:
        """Acknowledged offsets of the connected slaves."""

    def acknowledged(self, needed: int) -> int:
        """Offset that so many slaves have acknowledged."""

    def replica_alive(self, now_ns: int) -> bool:
        """Whether the replicator beats."""


class Timers(Protocol):
    """What the sender needs of the event loop."""

    def time(self) -> float:
        """Seconds of the monotonic clock."""

    def call_soon(self, callback: Callable[[], None]) -> Any:
        """Run it in the next tick."""

    def call_later(self, delay: float, callback: Callable[[], None]) -> Any:
        """Run it after a while."""


@dataclass(slots=True)
class Parked:
    """A stored message whose answer waits."""

    end: int
    flush_deadline: float
    slave_deadline: float
    answer: Callable[[WhimbrelError | None], None]


class Sender:
    """The only appender. Runs on the loop's thread; `flushed_changed` says how other threads reach it."""

    def __init__(
        self, store: Log, page: Marks, durability: Durability, loop: Timers, *, ring: Callable[[], None]
    ) -> None:
        """Take the store and the page; `ring` wakes the replicator."""
        self.refusal = "the broker has not been accepted by a nameserver yet"  # empty when writes are allowed
        self.waits = durability.sync_flush or durability.acks > 0
        self.on_appended: Callable[[str, Sequence[Any]], None] | None = None  # told of each topic's records
        self.on_tick: Callable[[], None] | None = None  # called at the end of each tick with an append
        self.store = store
        self.page = page
        self.durability = durability
        self.loop = loop
        self.ring = ring
        self.waiting: deque[Parked] = deque()
        self.tick_pending = False
        self.near = False  # enough slaves were near in this tick, within which nothing is heard of them
        self.timer: Any = None
        self.index_timer: Any = None
        self.ring_timer: Any = None
        self.rung_at = 0.0

    def check(self) -> None:
        """Raise NotWritable, NoReplica or Throttled when a send must be refused.

        The store itself raises StoreFull.
        """
        if self.refusal:
            raise NotWritable(self.refusal)
        if not self.waits:
            return
        if len(self.waiting) >= PARKED_MAX:
            raise Throttled(f"{PARKED_MAX} sends wait for the disk or for slaves already")
        if self.waiting and self.store.written - self.waiting[0].end > PARKED_BYTES_MAX:
            raise Throttled(f"sends of {PARKED_BYTES_MAX} bytes wait for the disk or for slaves already")
        needed = self.durability.acks
        if needed and not self.near:
            found = self.near_slaves()
            if found < needed:
                raise NoReplica(
                    f"{found} of {needed} slaves are connected and lack less than"
                    f" {self.durability.fallbehind_max} bytes; nothing was stored"
                )

    @property
    def parked(self) -> int:
        """How many sends wait for the disk or for slaves."""
        return len(self.waiting)

    def near_slaves(self) -> int:
        """Return how many connected slaves lack less than `fallbehind_max` bytes; may run in any thread."""
        if not self.page.replica_alive(int(self.loop.time() * 1e9)):
            return 0  # a killed replicator leaves its last acknowledgements in the page
        return len(in_sync(self.page.live_acks(), self.store.written, self.durability.fallbehind_max))

    def append(self, drafts: Sequence[Any]) -> list[Any]:
        """Check and append; all messages go to one queue. Returns where each went."""
        self.check()
        appended = self.store.append(drafts)
        if self.on_appended is not None:
            self.on_appended(drafts[0].topic, appended)
        if not self.tick_pending:
            self.tick_pending = True
            self.loop.call_soon(self.end_tick)
        self.near = True  # as the check found; the end of this tick forgets it
        return appended

    def park(self, end: int, answer: Callable[[WhimbrelError | None], None]) -> None:
        """Have `answer` called once the log up to `end` is as safe as was asked, or with an error.

        Call it in the tick of the append, in the order of the appends.
        """
        now = self.loop.time()
        durability = self.durability
        self.waiting.append(
            Parked(end, now + durability.flush_timeout_s, now + durability.slave_timeout_s, answer)
        )

    def end_tick(self) -> None:
        self.near = False
        # The index may have more to do than one tick should take.
        self.tick_pending = self.store.end_tick()
        if self.tick_pending:
            self.loop.call_soon(self.end_tick)
        elif self.index_timer is None:
            self.index_timer = self.loop.call_later(INDEX_WITHIN_S, self.index_rest)
        if self.on_tick is not None:
            self.on_tick()
        page = self.page
        if not self.waits:
            if page.replica_sleeping and self.ring_timer is None:
                self.ring_apart()
            return
        if page.replica_sleeping:
            self.ring()
        if self.durability.sync_flush and self.waiting:
            self.store.request_flush(self.waiting[-1].end)
        self.settle()

    def index_rest(self) -> None:
        self.index_timer = None
        self.store.index_rest()

    def ring_apart(self) -> None:
        """Ring now, or once `RING_APART_S` has passed since the last time.

        A wake-up costs more than the append itself, and nobody waits for it.
        """
        now = self.loop.time()
        if now - self.rung_at >= RING_APART_S:
            self.rung_at = now
            self.ring()
        else:
            self.ring_timer = self.loop.call_later(RING_APART_S, self.ring_late)

    def ring_late(self) -> None:
        self.ring_timer = None
        self.rung_at = self.loop.time()
        if self.page.replica_sleeping:
            self.ring()

    def settle(self) -> None:
        """Answer what can be answered now; to be called whenever one of the marks may have moved."""
        parked = self.waiting
        if not parked:
            return
        now = self.loop.time()
        flushed, acknowledged = self.marks()
        self.answer(now, flushed, acknowledged)
        if parked:
            # Ask to be rung first and look again afterwards, so that a mark that moved in between is not
            # missed.
            self.page.broker_sleeping = 1
            self.answer(now, *self.marks())
        if parked:
            self.arm()
        else:
            self.page.broker_sleeping = 0

    def marks(self) -> tuple[float, float]:
        durability = self.durability
        flushed = self.store.flushed if durability.sync_flush else math.inf
        acknowledged = self.page.acknowledged(durability.acks) if durability.acks else math.inf
        return flushed, acknowledged

    def answer(self, now: float, flushed: float, acknowledged: float) -> None:
        parked = self.waiting
        while parked:
            head = parked[0]
            error: WhimbrelError | None = None
            if head.end > acknowledged:
                if now < head.slave_deadline:
                    return
                error = ReplicaTimeout("the message is stored, but too few slaves confirmed it in time")
            elif head.end > flushed:
                if now < head.flush_deadline:
                    return
                error = FlushTimeout("the message is stored, but the disk did not confirm it in time")
            parked.popleft()
            head.answer(error)

    def arm(self) -> None:
        """Look again after `WAKE_POLL_S` at the latest: a lost ring must cost no more."""
        if self.timer is None:
            self.timer = self.loop.call_later(WAKE_POLL_S, self.fired)

    def fired(self) -> None:
        self.timer = None
        self.settle()

    def close(self, reason: str) -> None:
        """Refuse what comes, and answer what waits: it is stored, and nobody will confirm it any more."""
        self.refusal = reason
        for timer in (self.timer, self.index_timer, self.ring_timer):
            if timer is not None:
                timer.cancel()
        if self.tick_pending:
            self.store.end_tick()
        while self.waiting:
            parked = self.waiting.popleft()
            late = ReplicaTimeout if self.durability.acks else FlushTimeout
            parked.answer(late(f"the message is stored, but {reason}"))
