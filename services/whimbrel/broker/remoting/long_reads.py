"""Requests of tools that take longer the more topics, groups, offsets, members or equal hashes there are.

    request ──► time is left, and nobody waits ──► handled at once
            ──► else it waits ──► handled in its turn, when there is time again
                              ──► Throttled after `WAIT_S`

With 10,000 topics and two groups on each a request for all offsets (43) takes 0.2 s, in which nobody else
is served, and whoever reaches the port may send hundreds in one read. So these requests have `SHARE` of the
loop's time in the long run, and `BURST_S` at once. On most brokers they take less than a millisecond each,
and none waits. What is begun is not interrupted; 317, which looks at all queues, is computed in pieces
(`consume_stats.py`) and not counted here.

Bounds: `WAITING_MAX` requests wait, `PER_PEER_MAX` of one connection, without the bodies that they may have,
of which none is read; others get Throttled.
"""

from collections import Counter, deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

from whimbrel.deferred import Deferred
from whimbrel.errors import NotReady, Throttled
from whimbrel.rpc.remoting.codes import RequestCode
from whimbrel.rpc.remoting.command import Command
from whimbrel.rpc.remoting.handlers import Handle, Outcome, Peer, Reply

__all__ = ["BURST_S", "LONG_READS", "PER_PEER_MAX", "SHARE", "WAITING_MAX", "WAIT_S", "LongReads"]

LONG_READS: Final = frozenset(
    {
        RequestCode.QUERY_MESSAGE,
        RequestCode.GET_ALL_TOPIC_CONFIG,
        RequestCode.GET_ALL_CONSUMER_OFFSET,
        RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG,
        RequestCode.GET_TOPIC_STATS_INFO,
        RequestCode.GET_CONSUMER_CONNECTION_LIST,
        RequestCode.GET_PRODUCER_CONNECTION_LIST,
        RequestCode.GET_CONSUME_STATS,
        RequestCode.QUERY_TOPIC_CONSUME_BY_WHO,
        RequestCode.QUERY_CONSUME_TIME_SPAN,
        RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_BROKER,
        RequestCode.QUERY_CORRECTION_OFFSET,
        RequestCode.CLONE_GROUP_OFFSET,
        RequestCode.GET_ALL_PRODUCER_INFO,
    }
)
SHARE = 0.25  # of the loop's time
BURST_S = 0.05
LATER_S = 0.001  # than there is time again
WAIT_S = 3.0  # tools wait 3 to 5 s for a reply
WAITING_MAX = 128  # 32 MiB with the longest headers
PER_PEER_MAX = 32


@dataclass(slots=True)
class Waiting:
    """A request that waits for its turn until `deadline`, of the clock."""

    handle: Handle
    peer: Peer
    request: Command
    deadline: float
    reply: Deferred[Reply]


class LongReads:
    """Paces these requests, on the loop's thread.

    Attributes:
        room: seconds that are left to them now; below 0 after a long one.
    """

    def __init__(
        self, *, clock: Callable[[], float], later: Callable[[float, Callable[[], None]], object]
    ) -> None:
        """Begin with nothing used. `clock` is a monotonic one, in seconds; `later` calls after so many."""
        self.clock, self.later = clock, later
        self.room, self.at = BURST_S, clock()
        self.waiting: deque[Waiting] = deque()
        self.by_peer: Counter[Peer] = Counter()
        self.scheduled = False

    def paced(self, handles: Mapping[int, Handle]) -> dict[int, Handle]:
        """Return handlers of which those of `LONG_READS` take their turns."""
        return {code: self.pace(each) if code in LONG_READS else each for code, each in handles.items()}

    def pace(self, handle: Handle) -> Handle:
        """Return a handler that does what `handle` does, perhaps later."""

        def in_turn(peer: Peer, request: Command) -> Outcome:
            if self.waiting or not self.has_time():
                return self.wait(handle, peer, request)
            return self.run(handle, peer, request)

        return in_turn

    def has_time(self) -> bool:
        """Return whether a request may begin now."""
        now = self.clock()
        self.room = min(BURST_S, self.room + (now - self.at) * SHARE)
        self.at = now
        return self.room > 0

    def run(self, handle: Handle, peer: Peer, request: Command) -> Outcome:
        """Handle a request, and count its time."""
        began = self.clock()
        try:
            return handle(peer, request)
        finally:
            self.room -= self.clock() - began

    def wait(self, handle: Handle, peer: Peer, request: Command) -> Deferred[Reply]:
        """Have a request wait for its turn.

        Raises:
            Throttled: too many do.
        """
        if len(self.waiting) >= WAITING_MAX or self.by_peer[peer] >= PER_PEER_MAX:
            raise Throttled(
                "requests that read whole tables come faster than this broker takes them: send fewer"
                " at a time"
            )
        reply: Deferred[Reply] = Deferred()
        request.body = b""
        self.waiting.append(Waiting(handle, peer, request, self.clock() + WAIT_S, reply))
        self.by_peer[peer] += 1
        self.schedule()
        return reply

    def schedule(self) -> None:
        """Come back when there is time for the next one."""
        if self.waiting and not self.scheduled:
            self.scheduled = True
            self.later(max(-self.room / SHARE, 0.0) + LATER_S, self.go_on)

    def go_on(self) -> None:
        """Handle what waits, as long as there is time."""
        self.scheduled = False
        while self.waiting and self.has_time():
            self.take(self.waiting.popleft())
        self.schedule()

    def take(self, one: Waiting) -> None:
        """Handle a request whose turn it is."""
        self.forget(one.peer)
        if one.reply.cancelled:
            return
        if self.clock() > one.deadline:
            one.reply.fail(Throttled(f"others' requests that read whole tables took {WAIT_S:g} s: try again"))
            return
        try:
            outcome = self.run(one.handle, one.peer, one.request)
        except Exception as error:  # noqa: BLE001 - the connection makes a reply of it
            one.reply.fail(error)
            return
        if isinstance(outcome, Deferred):
            one.reply.follow(outcome)
        elif outcome is not None:
            one.reply.complete(outcome)

    def forget(self, peer: Peer) -> None:
        """Count one less that waits for a peer."""
        self.by_peer[peer] -= 1
        if not self.by_peer[peer]:
            del self.by_peer[peer]

    def close(self) -> None:
        """Refuse what waits: what it would read is closed next."""
        waiting, self.waiting = self.waiting, deque()
        self.by_peer.clear()
        for one in waiting:
            one.reply.fail(NotReady("this broker stops or changes its role: try again"))
