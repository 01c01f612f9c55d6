"""A read: entries of one queue from an offset on, without leases; or where to go on.

    front ──► Read ──► checks of its rules, one by one ──► look ──some──► Run ──► rendered by the front
                             │                             │  ▲
                             '──► a Run at once            '──'──waits──► Deferred of what is rendered

Nothing is held or done by a read; where a reader is to go on is its own to know. RocketMQ's two protocols
check differently, are answered outside of a queue differently, and want messages in another form. What
differs is a value, `ReadRules`, which a front passes in: `read_checks.py` has the checks, and
`read_forms.py` how messages are read. Nothing here or there asks which protocol it is.

**What a read finds**, and where the next one begins (RocketMQ: DefaultMessageStore.getMessage):

    NO_MESSAGE_IN_QUEUE     the queue never had a message                              0
    OFFSET_TOO_SMALL        below the first offset                                     the first offset
    OFFSET_OVERFLOW_ONE     at the end                                                 there
    OFFSET_OVERFLOW_BADLY   beyond the end (4.9.3: 0 where the queue begins there)     the end
    FOUND                                                                              behind the last entry
    NO_MATCHED_MESSAGE      what was scanned is filtered out                           behind the last entry
    MESSAGE_WAS_REMOVING    retention has removed the records meanwhile                behind what is gone
    OFFSET_RESET            the group's position was reset                             at the new position

Where the log is another broker's, and may lag behind it, an offset outside the queue stays as it is.

**Waiting** (`waiting.py`): a read that found nothing new, and may wait, is looked at again when its queue has
a message, is reset, or its time is over. It is not looked at for what its checks did when it came: a position
that it carries is committed once.

A reader that leaves much unread gets no messages until it has read: it is told to ask for the same again.
"""

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, Protocol, TypeVar

from whimbrel.broker.consume.client_positions import ClientPositions
from whimbrel.broker.consume.pulled_queues import PulledQueues
from whimbrel.broker.engine.consuming import Consume, ConsumeRules
from whimbrel.broker.engine.splitting import ReadSplitting
from whimbrel.broker.engine.waiting import Waiting, Waits, When
from whimbrel.broker.tables.group_creation import GroupCreation
from whimbrel.broker.tables.topics import TopicTable
from whimbrel.deferred import Deferred
from whimbrel.errors import StoreFull, WhimbrelError
from whimbrel.store.bulk_source import BulkSource
from whimbrel.store.scan import Filter
from whimbrel.store.store import MessageStore

__all__ = ["ConsumerGroups", "Read", "ReadRules", "Reads", "Run", "Status", "unchanged"]

R = TypeVar("R")


class Status(Enum):
    """What a read has found; see above."""

    FOUND = "FOUND"
    NO_MATCHED_MESSAGE = "NO_MATCHED_MESSAGE"
    MESSAGE_WAS_REMOVING = "MESSAGE_WAS_REMOVING"
    NO_MESSAGE_IN_QUEUE = "NO_MESSAGE_IN_QUEUE"
    OFFSET_TOO_SMALL = "OFFSET_TOO_SMALL"
    OFFSET_OVERFLOW_ONE = "OFFSET_OVERFLOW_ONE"
    OFFSET_OVERFLOW_BADLY = "OFFSET_OVERFLOW_BADLY"
    OFFSET_RESET = "OFFSET_RESET"


class Reader(Protocol):
    """Whose reads they are, as far as that is known; the same object for all of them."""

    @property
    def overloaded(self) -> bool:
        """Whether it leaves so much unread that messages should wait."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadRules(ConsumeRules):
    """How reads of a protocol are decided.

    Attributes:
        checks: in their order; one may answer the read (`Read.answered`).
        again: those for a read that has waited.
        outside: what a read finds outside of its queue, first offset and end given.
        form: reads messages within it, as the front wants them.
        entries_max, bytes_max: of one answer; the first message may have more bytes.
        no_queue: the error of a queue that the topic does not have.
    """

    checks: tuple[Callable[["Reads", "Read"], None], ...]
    again: tuple[Callable[["Reads", "Read"], None], ...]
    outside: Callable[["Reads", "Read", int, int], "Run"]
    form: Callable[["Reads", "Read", int, int], "Run"]
    entries_max: int
    bytes_max: int
    no_queue: type[WhimbrelError]


@dataclass(slots=True, eq=False)
class Read(Consume):
    """A read on its way: what the front says, and, from `answered` on, what the checks have found.

    Attributes:
        rules: of its protocol.
        queue_id, offset: where it begins; behind what was filtered out, once it has waited.
        messages, bytes: it wants no more; both at least 1.
        version: of the subscription that the client has.
        wait_ms: how long it may wait; 0 for not at all.
        commit: returns the position that it carries; None where it carries none.
        reader: whose it is; None where nobody is bounded by it.
        namespace: of the topic, as it was asked for; with it the lane may make responses.
        answered: what a check answers it with.
        waited: it is looked at again.
    """

    rules: ReadRules
    queue_id: int
    offset: int
    messages: int
    bytes: int
    version: int = 0
    wait_ms: int = 0
    commit: Callable[[], int] | None = None
    reader: Reader | None = None
    namespace: str | None = None
    answered: "Run | None" = field(default=None, init=False)
    waited: bool = field(default=False, init=False)


@dataclass(slots=True)
class Run:
    """What a read has found.

    Attributes:
        next_offset: where the next one begins.
        low, high: first offset of the queue, and its end.
        parts: the messages, in the form of the rules.
        messages: how many there are. size: bytes of their records.
        last_place: where the last one stands in the log; None for none.
        waits: nothing is there yet, so that a read that may wait does.
        moved: the reader is to go on elsewhere: its offset is not there.
        broker_id: whom to ask next.
    """

    status: Status
    next_offset: int
    low: int
    high: int
    parts: Sequence[Any] = ()
    messages: int = 0
    size: int = 0
    last_place: int | None = None
    waits: bool = False
    moved: bool = False
    broker_id: int = 0


class Subscription(Protocol):
    """What a group wants of a topic; see `tables/remoting_clients.py`."""

    @property
    def version(self) -> int: ...
    @property
    def sql(self) -> bool: ...
    @property
    def filter(self) -> Filter | None: ...


class ConsumerGroup(Protocol):
    """The members of a group."""

    @property
    def broadcasting(self) -> bool: ...
    def subscription(self, topic: str) -> Subscription | None: ...


class ConsumerGroups(Protocol):
    """Who shares queues out among themselves (the remoting protocol)."""

    def group(self, name: str) -> ConsumerGroup | None: ...
    def owns_positions(self, group: str) -> bool: ...


def unchanged(read: Read, run: Run) -> Run:
    """Render nothing: for those who take what was found as it is."""
    return run


class Reads:
    """Decides reads, on the loop's thread.

    Attributes:
        delivered: told of topic, group, number and bytes of what goes to consumers; None: nobody counts.
    """

    def __init__(
        self,
        topics: TopicTable,
        creation: GroupCreation,
        members: ConsumerGroups,
        positions: ClientPositions,
        store: MessageStore,
        splitting: ReadSplitting,
        waiting: Waiting,
        *,
        follows: bool,
        pulled: PulledQueues | None = None,
        delivered: Callable[[str, str, int, int], None] | None = None,
    ) -> None:
        """Take what is needed.

        Args:
            topics, members: the tables. creation: has groups, and makes them.
            positions: of groups whose members own them. store: the messages.
            splitting: where slow readers go. waiting: where reads wait.
            follows: the log is another broker's; it may lag behind a read's offset, and nothing is committed.
            pulled: takes note of queues that members share out; None where that does not matter.
        """
        self.topics, self.creation, self.members, self.positions = topics, creation, members, positions
        self.store, self.source, self.splitting = store, BulkSource(store), splitting
        self.follows, self.pulled, self.delivered = follows, pulled, delivered
        self.waiting = waiting

    def read(self, read: Read, render: Callable[[Read, Run], R]) -> R | Deferred[R]:
        """Check and read; return the answer, at once or when there is one.

        Args:
            read: what is wanted.
            render: makes the answer of what was found.

        Raises:
            WhimbrelError: a rule is broken, the first one in the order of the rules; or what stands there
                can't be read.
        """
        for check in read.rules.checks:
            check(self, read)
            if read.answered is not None:
                return render(read, read.answered)
        run = self.look(read)
        if read.commit is not None and not self.follows:
            with suppress(StoreFull):  # it comes again with the next read
                self.positions.commit(read.group, read.topic, read.queue_id, read.commit(), owned=True)
        if run.waits and read.wait_ms > 0:
            read.offset, read.commit, read.waited = run.next_offset, None, True
            line = read.topic, read.queue_id
            return self.waiting.park(read.rules.kind, line, read.wait_ms, read, render, self, read.reader)
        return render(read, self.told(read, run))

    def look(self, read: Read) -> Run:
        """Return what a read finds now."""
        rules = read.rules
        low, high = self.store.queue_range(read.topic, read.queue_id)
        if low <= read.offset < high:
            return rules.form(self, read, low, high)
        return rules.outside(self, read, low, high)

    def told(self, read: Read, run: Run) -> Run:
        """Return what a reader is told of what was found."""
        if self.splitting.enabled:
            run.broker_id = self.splitting.suggest(read.config, run.last_place)
        if run.parts:
            if read.reader is not None and read.reader.overloaded:
                run.status, run.next_offset, run.parts = Status.NO_MATCHED_MESSAGE, read.offset, ()
            elif self.delivered is not None:
                self.delivered(read.topic, read.group, run.messages, run.size)
        return run

    def look_again(self, found: Sequence[Waits], when: When) -> None:
        """Look at reads that wait; one that still finds nothing waits on, if it may."""
        for waits in found:
            try:
                run = self.found_now(waits.what, when)
            except WhimbrelError as error:
                self.waiting.refuse(waits, error)
                continue
            if run is not None:
                self.waiting.answer(waits, run)

    def found_now(self, read: Read, when: When) -> Run | None:
        """Return what a read finds that has waited; None while it waits on."""
        if when is When.ENDED:
            return self.told(read, Run(Status.NO_MATCHED_MESSAGE, read.offset, 0, 0))
        for check in read.rules.again:
            check(self, read)
        if read.answered is not None:
            return read.answered
        run = self.look(read)
        if run.waits and when is When.CHANGED:
            read.offset = run.next_offset
            return None
        return self.told(read, run)

    def sweep(self) -> None:
        """Forget pulled queues that no longer count."""
        if self.pulled is not None:
            self.pulled.sweep(self.waiting.clock())
