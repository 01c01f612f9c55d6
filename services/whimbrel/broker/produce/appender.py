"""Appends records with the durability that was asked for.

A send is refused before anything is stored: the broker is not writable, the disk is full, or synchronous
replication has too few slaves in sync (RocketMQ stores first and answers 50002 afterwards, so that the SDKs'
retries store the message three times). What is appended is answered at once, or waits until

    its end <= flushed                 synchronous flush: within `flush_timeout_s`, else FlushTimeout
    its end <= acknowledged by `acks`  synchronous replication: within `slave_timeout_s`, else ReplicaTimeout
    its end <= the commit offset       majority: within `slave_timeout_s`, else NotCommitted (`commit.py`);
                                       a topic may ask for fewer copies (`early_answers.py`)

A slave counts for the first question by what it says of itself, for the second by what it has acknowledged of
what it was sent (`store/page_slots.py`): one that is connected anew, and up to date, has been sent nothing.

When both are late the answer is ReplicaTimeout. Both offsets only grow and waiting sends stand in one queue
by their end, so the head is always the next to be answered. All have equal timeouts, so the head is also the
next to be late.

A sync that fails is final: sends that waited for it get FlushTimeout at once, before the log is mended and
`flushed` can move on (`log_failed`).

Once for all appends of a read, or of several (`rpc/server/read_end.py` says when), the store publishes its
`written` mark, one flush is requested, and the replicator is woken if it sleeps: they share that cost. With
asynchronous replication it is woken at most every `RING_INTERVAL_MIN_S`.

A slave has a `ReadOnlyAppender`, which refuses everything.
"""

import math
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn, Protocol, TypeAlias

from whimbrel.broker.produce.commit import UNCOMMITTED_BYTES_MAX, MajorityCommit
from whimbrel.broker.produce.confirmed_offset import in_sync
from whimbrel.broker.produce.early_answers import EarlyAnswers
from whimbrel.errors import (
    FlushTimeout,
    NoReplica,
    NotCommitted,
    NotWritable,
    ReplicaTimeout,
    Throttled,
    WhimbrelError,
)
from whimbrel.wakeup import WAKE_POLL_S

__all__ = [
    "WAITING_BYTES_MAX",
    "WAITING_MAX",
    "Appender",
    "Durability",
    "PackedRecords",
    "ReadOnlyAppender",
    "RecordAppender",
]

# Sends that wait; each holds about 1 KiB besides its message.
WAITING_MAX = 20_000
# Bytes of log that they take: the transport keeps the request of each until it is answered, and with 4 MiB
# bodies 20,000 would be 80 GB. A disk or a slave takes a part of a second for this.
WAITING_BYTES_MAX = 64 << 20
# A read has no more; near the bound of what may wait each send is looked at alone.
READ_BYTES_MAX = 4 << 20
# The index takes messages by groups. A group that does not fill up waits no longer than this.
INDEX_DELAY_MAX_S = 0.05
# Asynchronous replication: how often a replicator is woken that falls asleep again and again.
RING_INTERVAL_MIN_S = 0.001


@dataclass(frozen=True, slots=True, kw_only=True)
class Durability:
    """What an answer promises.

    Attributes:
        sync_flush: the record is on the local disk.
        acks: so many connected slaves hold it; 0 for asynchronous replication.
        fallbehind_max: bytes; a slave that lacks as many is not in sync, and does not count when a send asks
            whether there are enough.
    """

    sync_flush: bool = False
    acks: int = 0
    fallbehind_max: int = 256 * 1024 * 1024
    flush_timeout_s: float = 5.0
    slave_timeout_s: float = 3.0


class RecordAppender(Protocol):
    """What services need of an appender, whatever the broker's role.

    Attributes:
        refusal: why writes are refused; empty while they are taken.
        waits: appended records are answered by `when_durable`, not at once.
    """

    refusal: str
    waits: bool

    def check_writable(self) -> None:
        """Raise NotWritable, NoReplica or Throttled when a send must be refused."""

    def append(self, drafts: Sequence[Any]) -> list[Any]:
        """Check and append records of one queue; return where each went."""

    def when_durable(self, end: int, answer: Callable[[WhimbrelError | None], None]) -> None:
        """Have `answer` called once the log up to `end` is as durable as was asked, or with an error."""

    def when_held(self, end: int, copies: int, answer: Callable[[WhimbrelError | None], None]) -> None:
        """Have `answer` called once so many slaves hold the log up to `end`, or it is durable."""

    def complete_waiting(self) -> None:
        """Answer what can be answered now."""


class AppendLog(Protocol):
    """What the appender needs of the message store."""

    @property
    def written(self) -> int:
        """End of the log."""

    @property
    def flushed(self) -> int:
        """End of what is on disk."""

    def append(self, drafts: Sequence[Any]) -> list[Any]:
        """Append records of one queue, all or none."""

    @property
    def store_time_ms(self) -> int:
        """Store time of the last record, in epoch milliseconds."""

    def clock(self) -> int:
        """Epoch milliseconds."""

    def store_time(self, now_ms: int) -> int:
        """The store time of a record now, after a clock that was set back."""

    def room_for_packed(self) -> int:
        """How many bytes of records `append_packed` takes now."""

    def append_packed(self, records: bytes, runs: Sequence[Any], keys: Any, count: int, now_ms: int) -> bool:
        """Append records that the lane has made, all or none."""

    def make_visible(self, runs: Sequence[Any]) -> None:
        """Tell who waits for them."""

    def end_tick(self) -> bool:
        """Publish the written mark; return whether to be called again soon."""

    def index_rest(self) -> None:
        """Index what the ticks left over."""

    def request_flush(self, end: int) -> None:
        """Have the log flushed up to `end`."""

    @property
    def failed(self) -> str:
        """Why nothing is appended since a sync failed; "" normally."""

    def mend(self) -> None:
        """Get over a failed sync, once nobody waits for it any more."""


class AppendCounts(Protocol):
    """Counts what is appended (`broker/metrics.py`)."""

    def appended(self, topic: str, places: Sequence[Any]) -> None:
        """Count records of a topic."""

    def appended_many(self, topic: str, counts: Sequence[int], size: int) -> None:
        """Count records of a topic by the bounds of their sizes, and all their bytes."""


# What the lane has made of sends, for `Appender.append_packed`: records; their entries; their keys, hashed;
# for each topic its name, whose turn was the last, and records by the bounds of their sizes with all their
# bytes; how many records.
PackedRecords: TypeAlias = tuple[bytes, Sequence[Any], Any, Sequence[tuple[str, int, list[int], int]], int]


class AckPage(Protocol):
    """What the appender needs of the shared page."""

    replica_sleeping: int
    broker_sleeping: int

    def reported_ends(self) -> list[int]:
        """How far the connected slaves say that they are, each slave once."""

    def acknowledged(self, needed: int) -> int:
        """Offset that so many slaves have acknowledged, each counted once."""

    def replica_alive(self, now_ns: int) -> bool:
        """Whether the replicator beats."""


class TickLoop(Protocol):
    """What the appender needs of the event loop."""

    def time(self) -> float:
        """Seconds of the monotonic clock."""

    def call_soon(self, callback: Callable[[], None]) -> Any:
        """Run it in the next tick."""

    def call_later(self, delay: float, callback: Callable[[], None]) -> Any:
        """Run it after a while."""


@dataclass(slots=True)
class WaitingSend:
    """A stored message whose answer waits."""

    end: int
    flush_deadline: float
    slave_deadline: float
    answer: Callable[[WhimbrelError | None], None]


class ParkedSends(Protocol):
    """Sends whose answers the compiled lane keeps, in the order of the log.

    Attributes:
        oldest_end, newest_end: where the log ends with the oldest and with the newest; -1 without any.
        oldest_at: when the oldest was parked, by the loop's clock; infinity without any.
    """

    @property
    def oldest_end(self) -> int: ...
    @property
    def newest_end(self) -> int: ...
    @property
    def oldest_at(self) -> float: ...
    def __len__(self) -> int: ...
    def settle(self, durable: int) -> None:
        """Answer those whose records end at or below an offset."""

    def hand_over(self, before: float) -> None:
        """Have those wait here (`Appender.wait`) that were parked before a time of the loop's clock."""


class NothingParked:
    """What is parked where there is no lane."""

    oldest_end = newest_end = -1
    oldest_at = math.inf

    def __len__(self) -> int:
        return 0

    def settle(self, durable: int) -> None:
        """Do nothing."""

    def hand_over(self, before: float) -> None:
        """Do nothing."""


class Appender:
    """The only writer of a master's log. Runs on the loop's thread.

    Other threads have `complete_waiting` called there when a flush is done.
    """

    def __init__(
        self,
        store: AppendLog,
        page: AckPage,
        durability: Durability,
        loop: TickLoop,
        *,
        ring: Callable[[], None],
        soon: Callable[[Callable[[], None]], object] | None = None,
        commit: MajorityCommit | None = None,
        counted: AppendCounts | None = None,
    ) -> None:
        """Take the store and the page.

        Args:
            store, page, durability, loop: see the module's text.
            ring: wakes the replicator.
            soon: calls back once for the appends of a read; the loop's `call_soon` without.
            commit: where a majority commits; answers then wait for the commit offset.
            counted: counts what is appended.
        """
        self.refusal = "the broker has not been accepted by a nameserver yet"
        self.commit, self.counted = commit, counted
        self.waits = durability.sync_flush or durability.acks > 0 or commit is not None
        self.on_tick: Callable[[], None] | None = None  # called at the end of each tick with an append
        self.stalled_members: Callable[[], str] = str  # says why members take nothing; "" where all do
        self.on_commit: Callable[[int], None] | None = None  # with the commit offset, after it was looked at
        self.store = store
        self.page = page
        self.durability = durability
        self.loop = loop
        self.ring = ring
        self.soon = soon or loop.call_soon
        self.waiting: deque[WaitingSend] = deque()
        self.parked: ParkedSends = NothingParked()
        self.early = EarlyAnswers()
        self.tick_pending = False
        self.in_sync_checked = False  # enough slaves are in sync; holds until the tick ends
        self.closed = False
        self.timer: Any = None
        self.index_timer: Any = None
        self.ring_timer: Any = None
        self.rung_at = 0.0

    def check_writable(self) -> None:
        """Raise NotWritable, NoReplica or Throttled when a send must be refused.

        The store itself raises StoreFull.
        """
        if self.refusal:
            raise NotWritable(self.refusal)
        if not self.waits:
            return
        if self.waiting_count >= WAITING_MAX:
            raise Throttled(f"{WAITING_MAX} sends wait for the disk or for slaves already")
        if self.waiting_bytes > WAITING_BYTES_MAX:
            raise Throttled(f"sends of {WAITING_BYTES_MAX} bytes wait for the disk or for slaves already")
        needed = self.durability.acks
        if self.commit is not None:
            self.check_commit(self.commit)
        elif needed and not self.in_sync_checked:
            found = self.in_sync_slaves()
            if found < needed:
                raise NoReplica(
                    f"{found} of {needed} slaves are connected and lack less than"
                    f" {self.durability.fallbehind_max} bytes; nothing was stored{self.why_stalled()}"
                )

    def check_commit(self, commit: MajorityCommit) -> None:
        """Raise Throttled or NoReplica where a send could not be committed."""
        if commit.uncommitted_bytes > UNCOMMITTED_BYTES_MAX:
            raise Throttled(f"{UNCOMMITTED_BYTES_MAX} bytes wait to be committed already")
        if not self.in_sync_checked:
            found = commit.near(int(self.loop.time() * 1e9))
            if found < commit.copies:
                raise NoReplica(
                    f"{found} of the {commit.copies} members that a majority takes, this one among them, are"
                    f" connected and lack less than {commit.fallbehind_max} bytes; nothing was stored"
                    f"{self.why_stalled()}"
                )

    def why_stalled(self) -> str:
        """Return why members take nothing, to be added to a sentence."""
        why = self.stalled_members()
        return f"; {why}" if why else ""

    @property
    def waiting_count(self) -> int:
        """How many sends wait for the disk or for slaves."""
        return len(self.waiting) + len(self.parked) + len(self.early)

    @property
    def waiting_bytes(self) -> int:
        """Bytes of the log behind the oldest send that waits."""
        ends = [self.waiting[0].end] if self.waiting else []
        if self.parked:
            ends.append(self.parked.oldest_end)
        return self.store.written - min(ends) if ends else 0

    def in_sync_slaves(self) -> int:
        """Return how many connected slaves lack less than `fallbehind_max` bytes; may run in any thread."""
        if not self.page.replica_alive(int(self.loop.time() * 1e9)):
            return 0  # a killed replicator leaves its last acknowledgements in the page
        return len(in_sync(self.page.reported_ends(), self.store.written, self.durability.fallbehind_max))

    def append(self, drafts: Sequence[Any]) -> list[Any]:
        """Check and append; all messages go to one queue. Returns where each went."""
        if self.refusal or self.waits:
            self.check_writable()
        appended = self.store.append(drafts)
        if self.counted is not None:
            self.counted.appended(drafts[0].topic, appended)
        self.note_appended()
        return appended

    def room_for_packed(self) -> tuple[int, int, int, int, int | None] | None:
        """Return what `append_packed` takes now; None where each send is to be looked at alone.

        Returns:
            Where the log ends, bytes of records that fit there, their store time and the time now, in epoch
            milliseconds; and how many answers may wait, None where none does.
        """
        store, left = self.store, None
        room = store.room_for_packed()
        if not room:
            return None
        if self.refusal or self.waits:
            try:
                self.check_writable()
            except WhimbrelError:
                return None
            if self.waits:
                left = WAITING_MAX - self.waiting_count
                if self.waiting_bytes > WAITING_BYTES_MAX - READ_BYTES_MAX or left <= 0:
                    return None
        now_ms = store_ms = store.clock()
        if now_ms < store.store_time_ms:
            store_ms = store.store_time(now_ms)
        return store.written, room, store_ms, now_ms, left

    def append_packed(self, plan: PackedRecords, now_ms: int) -> bool:
        """Append records that the lane has made, all or none, and tell who waits for them; as `append`.

        Returns:
            Whether they were appended; not where the disk has no room, or refuses to write.
        """
        records, runs, keys, topics, messages = plan
        store = self.store
        if not store.append_packed(records, runs, keys, messages, now_ms):
            return False
        if self.counted is not None:
            for name, _, counts, size in topics:
                self.counted.appended_many(name, counts, size)
        store.make_visible(runs)
        self.note_appended()
        return True

    def note_appended(self) -> None:
        """See to it that what was appended is published soon."""
        if not self.tick_pending:
            self.tick_pending = True
            self.soon(self.end_tick)
        self.in_sync_checked = True

    def when_durable(self, end: int, answer: Callable[[WhimbrelError | None], None]) -> None:
        """Have `answer` called once the log up to `end` is as durable as was asked, or with an error.

        Call it in the tick of the append, in the order of the appends.
        """
        self.waiting.append(self.waiting_send(end, self.loop.time(), answer))

    def when_held(self, end: int, copies: int, answer: Callable[[WhimbrelError | None], None]) -> None:
        """Have `answer` called once so many slaves hold the log up to `end`, or it is committed.

        Where no majority commits it is as `when_durable`, which also says when to call it.
        """
        if self.commit is None or copies >= self.commit.copies - 1:
            self.when_durable(end, answer)
        elif copies:
            self.early.add(copies, end, self.loop.time() + self.durability.slave_timeout_s, answer)
        else:
            answer(None)

    def waiting_send(
        self, end: int, since: float, answer: Callable[[WhimbrelError | None], None]
    ) -> WaitingSend:
        """Return a send that has waited since then."""
        durability = self.durability
        return WaitingSend(
            end, since + durability.flush_timeout_s, since + durability.slave_timeout_s, answer
        )

    def wait(self, end: int, since: float, answer: Callable[[WhimbrelError | None], None]) -> None:
        """Do as `when_durable` for a send that was parked since then; older and newer ones may wait here."""
        newer: list[WaitingSend] = []
        while self.waiting and self.waiting[-1].end > end:
            newer.append(self.waiting.pop())
        self.waiting.append(self.waiting_send(end, since, answer))
        self.waiting.extend(reversed(newer))

    def end_tick(self) -> None:
        if self.closed:
            return
        self.in_sync_checked = False
        # The index may have more to do than one tick should take.
        self.tick_pending = self.store.end_tick()
        if self.tick_pending:
            self.loop.call_soon(self.end_tick)
        elif self.index_timer is None:
            self.index_timer = self.loop.call_later(INDEX_DELAY_MAX_S, self.index_rest)
        if self.on_tick is not None:
            self.on_tick()
        page = self.page
        if not self.waits:
            if page.replica_sleeping and self.ring_timer is None:
                self.ring_limited()
            return
        if page.replica_sleeping:
            self.ring()
        if self.ring_timer is not None:
            self.ring_timer.cancel()
            self.ring_timer = None
        if self.durability.sync_flush and self.commit is not None:
            self.store.request_flush(self.store.written)  # nothing is committed without
        elif self.durability.sync_flush and self.waiting_count:
            newest = self.waiting[-1].end if self.waiting else 0
            self.store.request_flush(max(newest, self.parked.newest_end))
        self.complete_waiting()

    def index_rest(self) -> None:
        self.index_timer = None
        self.store.index_rest()

    def ring_limited(self) -> None:
        """Ring now, or once `RING_INTERVAL_MIN_S` has passed since the last time.

        A wake-up costs more than the append itself, and nobody waits for it.
        """
        now = self.loop.time()
        if now - self.rung_at >= RING_INTERVAL_MIN_S:
            self.rung_at = now
            self.ring()
        else:
            self.ring_timer = self.loop.call_later(RING_INTERVAL_MIN_S, self.ring_delayed)

    def ring_delayed(self) -> None:
        self.ring_timer = None
        self.rung_at = self.loop.time()
        if self.page.replica_sleeping:
            self.ring()

    def complete_waiting(self) -> None:
        """Answer what can be answered now; to be called whenever one of the offsets may have moved.

        A call that comes late, from the flush thread, finds it closed: the page is gone then.
        """
        if self.closed or not self.unfinished:
            return
        now = self.loop.time()
        self.answer_durable(now, *self.durable_offsets())
        if self.unfinished:
            # Ask to be rung first and compare again afterwards, so that an offset that moved in between is
            # not missed.
            self.page.broker_sleeping = 1
            self.answer_durable(now, *self.durable_offsets())
        if self.unfinished:
            self.start_timer()
        else:
            self.page.broker_sleeping = 0

    @property
    def unfinished(self) -> bool:
        """Whether an answer waits, or something is not committed, or a member is to hear what is."""
        if self.waiting or self.parked or self.early:
            return True
        return self.commit is not None and (self.commit.uncommitted_bytes > 0 or self.commit.unseen)

    def durable_offsets(self) -> tuple[float, float]:
        """Return the flushed and the acknowledged offset; infinity for one that is not waited for."""
        durability = self.durability
        if self.commit is not None:
            if self.commit.advance() and self.ring_timer is None:
                # Slaves hear of it with the next record, or by then.
                self.ring_timer = self.loop.call_later(RING_INTERVAL_MIN_S, self.ring_delayed)
            committed = self.commit.store.visible_end
            if self.on_commit is not None:
                self.on_commit(committed)
            return math.inf, committed
        flushed = self.store.flushed if durability.sync_flush else math.inf
        acknowledged = self.page.acknowledged(durability.acks) if durability.acks else math.inf
        return flushed, acknowledged

    def answer_durable(self, now: float, flushed: float, acknowledged: float) -> None:
        waiting, parked = self.waiting, self.parked
        if self.early and self.commit is not None:
            self.early.settle(
                now,
                acknowledged,
                self.commit.held,
                lambda: self.not_replicated("too few members confirmed it"),
            )
        if parked:
            parked.settle(int(min(flushed, acknowledged, self.store.written)))
            since = now - min(self.durability.flush_timeout_s, self.durability.slave_timeout_s)
            if parked.oldest_at <= since:
                parked.hand_over(since)
        while waiting:
            head = waiting[0]
            error: WhimbrelError | None = None
            if head.end > acknowledged:
                if now < head.slave_deadline:
                    return
                error = self.not_replicated("too few slaves confirmed it in time")
            elif head.end > flushed:
                if now < head.flush_deadline:
                    return
                error = FlushTimeout("the message is stored, but the disk did not confirm it in time")
            waiting.popleft()
            head.answer(error)

    def log_failed(self) -> None:
        """Refuse what waits for a sync that has failed, then have the log mended as far as that goes now.

        To be called now and then while the log is failed. Sends that wait only for slaves go on to do so.
        """
        why = self.store.failed
        if not why:
            return
        if self.durability.sync_flush:
            if self.commit is not None:
                self.complete_waiting()  # what slaves hold is committed without this disk
            self.parked.hand_over(math.inf)
            flushed, waiting = self.store.flushed, self.waiting
            refused = [send for send in waiting if send.end > flushed]
            while waiting and waiting[-1].end > flushed:
                waiting.pop()
            self.early.fail(flushed, lambda: self.not_replicated(f"perhaps not on its disk: {why}"))
            for send in refused:
                if self.commit is None:
                    send.answer(FlushTimeout(f"the message is in the log, but perhaps not on disk: {why}"))
                else:
                    send.answer(self.not_replicated(f"perhaps not on its disk: {why}"))
        self.store.mend()

    def start_timer(self) -> None:
        """Compare again after `WAKE_POLL_S` at the latest, so that a lost ring costs no more."""
        if self.timer is None:
            self.timer = self.loop.call_later(WAKE_POLL_S, self.timer_fired)

    def timer_fired(self) -> None:
        self.timer = None
        self.complete_waiting()

    def close(self, reason: str, *, error: type[FlushTimeout] | type[ReplicaTimeout] | None = None) -> None:
        """Refuse further sends, and answer those that wait. The store is not used any more afterwards.

        Args:
            reason: for the texts of both.
            error: what waiting sends are answered with: they are stored, and nobody will confirm them any
                more. By default ReplicaTimeout where slaves are waited for, else FlushTimeout. A switch of
                roles gives ReplicaTimeout: it depends on the next master whether they stay.
        """
        self.refusal = reason
        for timer in (self.timer, self.index_timer, self.ring_timer):
            if timer is not None:
                timer.cancel()
        if self.tick_pending:
            self.store.end_tick()
            if self.page.replica_sleeping:
                self.ring()
        self.parked.hand_over(math.inf)
        self.closed = True
        self.early.fail(-1, lambda: self.not_replicated(reason))
        while self.waiting:
            answer = self.waiting.popleft().answer
            if self.commit is not None or (error is None and self.durability.acks):
                answer(self.not_replicated(reason))
            else:
                answer((error or FlushTimeout)(f"the message is stored, but {reason}"))

    def not_replicated(self, why: str) -> ReplicaTimeout:
        """Return what a send is answered that too few slaves, or no majority, have confirmed."""
        if self.commit is None:
            return ReplicaTimeout(f"the message is stored, but {why}")
        return NotCommitted(
            f"the message is in the master's log, but {why}: nobody sees it before a majority has it, and it"
            " is lost if another master leads first"
        )


class ReadOnlyAppender:
    """The appender of a broker that takes no writes: every append is refused."""

    def __init__(self, refusal: str) -> None:
        """Take why."""
        self.refusal = refusal
        self.waits = False

    def check_writable(self) -> NoReturn:
        """Raise NotWritable."""
        raise NotWritable(self.refusal)

    def append(self, drafts: Sequence[Any]) -> NoReturn:
        """Raise NotWritable."""
        raise NotWritable(self.refusal)

    def when_durable(self, end: int, answer: Callable[[WhimbrelError | None], None]) -> NoReturn:
        """Raise NotWritable: nothing was appended that could be waited for."""
        raise NotWritable(self.refusal)

    def when_held(self, end: int, copies: int, answer: Callable[[WhimbrelError | None], None]) -> NoReturn:
        """Raise NotWritable, as `when_durable`."""
        raise NotWritable(self.refusal)

    def complete_waiting(self) -> None:
        """Do nothing: nothing waits."""
