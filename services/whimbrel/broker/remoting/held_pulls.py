"""Pulls that wait for a message, by the queue that they read. Decides; does no I/O and reads no clock.

    parked --message in its queue--> read again --some--> answered
       |        '--none of them matches--> parked, from behind them on
       |----deadline--> answered: nothing new
       '----its connection ends--> gone

Several pulls of one queue may wait, of one group as well (broadcast, or two owners during a rebalance): each
is answered. A pull is read again once for all messages of its queue that an iteration of the loop has
brought; of one that wants none of them only entries of the queue are read. Its deadline has the grain of
`GRAIN_MS`, as RocketMQ's has: a 15 s poll is answered after 15 to 20 s there, and after 15 to 16 s here.

**Bounds**: `HELD_MAX` in all, `PEER_HELD_MAX` of a connection. One that finds no room is answered with
SYSTEM_BUSY, and its client comes back after some seconds.
"""

from collections.abc import Callable, Iterator
from typing import TypeVar

from whimbrel.deferred import Deferred
from whimbrel.errors import Throttled
from whimbrel.rpc.remoting.handlers import Peer, Reply

__all__ = ["GRAIN_MS", "HELD_MAX", "PEER_HELD_MAX", "HeldPull", "HeldPulls"]

HELD_MAX = 100_000  # RocketMQ's pull pool
PEER_HELD_MAX = 2_000
GRAIN_MS = 1_000

K = TypeVar("K")


class HeldPull(Deferred[Reply]):
    """A pull that waits, and its answer.

    Attributes:
        group, topic, queue_id: whose pull, and of what.
        offset: from there on.
        messages, bytes: it wants no more.
        flags, version, text: as the client sent them (`pulls.py`), for the checks when it is read again.
        sql: what kind of filter `text` is.
    """

    __slots__ = (
        "bytes",
        "codes",
        "flags",
        "group",
        "held",
        "messages",
        "offset",
        "peer",
        "queue_id",
        "sql",
        "text",
        "topic",
        "version",
    )  # fmt: skip

    def __init__(
        self,
        peer: Peer,
        group: str,
        topic: str,
        queue_id: int,
        offset: int,
        messages: int,
        bytes: int,
        flags: int,
        version: int,
        text: str,
        sql: bool,  # as the rest, by position: it is made for each pull that finds nothing
    ) -> None:
        super().__init__()
        self.peer, self.group, self.topic, self.queue_id = peer, group, topic, queue_id
        self.offset, self.messages, self.bytes = offset, messages, bytes
        self.flags, self.version, self.text, self.sql = flags, version, text, sql
        self.held: HeldPulls | None = None

    def cancel(self) -> None:
        """Wait no longer: the connection has ended."""
        super().cancel()
        if self.held is not None:
            self.held.remove(self)


class HeldPulls:
    """The pulls that wait.

    Attributes:
        count: how many there are.
        dirty: queues with new messages; a dict as an ordered set.
    """

    def __init__(self, wake: Callable[[], object]) -> None:
        """Begin with none; `wake` has `woken` called soon."""
        self.wake = wake
        self.by_queue: dict[tuple[str, int], dict[HeldPull, None]] = {}
        self.by_peer: dict[Peer, int] = {}
        self.by_deadline: dict[int, dict[HeldPull, None]] = {}  # in units of the grain
        self.deadlines: dict[HeldPull, int] = {}
        self.dirty: dict[tuple[str, int], None] = {}

    @property
    def count(self) -> int:
        """How many pulls wait."""
        return len(self.deadlines)

    def park(self, pull: HeldPull, until_ms: int) -> None:
        """Have a pull wait, until a time of the clock that `expired` is given.

        Raises:
            Throttled: there is no room.
        """
        peers = self.by_peer.get(pull.peer, 0)
        if self.count >= HELD_MAX or peers >= PEER_HELD_MAX:
            raise Throttled(f"{self.count} pulls are held here, {peers} of this connection: poll again later")
        pull.held = self
        self.by_peer[pull.peer] = peers + 1
        self.by_queue.setdefault((pull.topic, pull.queue_id), {})[pull] = None
        slot = -(-until_ms // GRAIN_MS)
        self.deadlines[pull] = slot
        self.by_deadline.setdefault(slot, {})[pull] = None

    def remove(self, pull: HeldPull) -> None:
        """Forget a pull, if it waits."""
        slot = self.deadlines.pop(pull, None)
        if slot is None:
            return
        pull.held = None
        drop(self.by_deadline, slot, pull)
        drop(self.by_queue, (pull.topic, pull.queue_id), pull)
        left = self.by_peer[pull.peer] - 1
        if left:
            self.by_peer[pull.peer] = left
        else:
            del self.by_peer[pull.peer]

    def on_arrival(self, topic: str, queue_id: int) -> None:
        """Take note of a new message."""
        key = topic, queue_id
        if key in self.by_queue:
            if not self.dirty:
                self.wake()
            self.dirty[key] = None

    def woken(self) -> Iterator[HeldPull]:
        """Yield the pulls of queues with new messages; they wait until they are removed."""
        dirty, self.dirty = self.dirty, {}
        for key in dirty:
            yield from tuple(self.by_queue.get(key, ()))

    def expired(self, now_ms: int) -> Iterator[HeldPull]:
        """Remove and yield the pulls whose deadline has come."""
        now = now_ms // GRAIN_MS
        for slot in sorted(slot for slot in self.by_deadline if slot <= now):
            for pull in tuple(self.by_deadline.get(slot, ())):
                self.remove(pull)
                yield pull

    def all(self) -> list[HeldPull]:
        """Return all pulls that wait."""
        return list(self.deadlines)


def drop(table: dict[K, dict[HeldPull, None]], key: K, pull: HeldPull) -> None:
    """Take a pull out of a table of sets, and an empty set with it."""
    found = table[key]
    del found[pull]
    if not found:
        del table[key]
