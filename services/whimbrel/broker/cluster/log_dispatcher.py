"""Dispatches the log that the replicator of a slave writes, and knows where the master is.

    rung, polled, or more left --> dispatch one slice --> more: again in the next tick
                                                      '-> nothing: sleep flag up, try once more, wait

A slice is bounded, so that the loop goes on serving reads while gigabytes are dispatched.
"""

from collections.abc import Callable, Iterable
from typing import Any, Protocol

from whimbrel.model.registration import Member
from whimbrel.wakeup import WAKE_POLL_S

__all__ = ["SLICE_BYTES", "LogDispatcher", "MasterAddress"]

SLICE_BYTES = 1 << 20  # dispatched in one turn of the loop; other calls are served between two


class Log(Protocol):
    """What is used of the message store."""

    def dispatch_ready(self, budget_bytes: int) -> bool:
        """Dispatch a part of what has arrived; return whether more is there."""


class Marks(Protocol):
    """What is used of the page of marks."""

    broker_sleeping: int
    master_ha: str
    elected: tuple[int, int]


class Timers(Protocol):
    """What is used of the event loop."""

    def call_soon(self, callback: Callable[[], None]) -> Any:
        """Run it in the next tick."""

    def call_later(self, delay: float, callback: Callable[[], None]) -> Any:
        """Run it after a while."""


class LogDispatcher:
    """Keeps queues and index up with the log."""

    def __init__(self, store: Log, page: Marks, loop: Timers) -> None:
        """Prepare; `start` begins."""
        self.store, self.page, self.loop = store, page, loop
        self.pending = False
        self.poll: Any = None
        self.stopped = False
        self.on_step: Callable[[], None] | None = None  # called before each step

    def start(self) -> None:
        """Begin to follow."""
        self.tick()

    def log_grew(self) -> None:
        """Dispatch: the log may have grown."""
        if not self.pending and not self.stopped:
            self.step()

    def tick(self) -> None:
        self.poll = self.loop.call_later(WAKE_POLL_S, self.tick)
        self.log_grew()

    def step(self) -> None:
        self.pending = False
        if self.stopped:
            return
        if self.on_step is not None:
            self.on_step()
        self.page.broker_sleeping = 0
        more = self.store.dispatch_ready(SLICE_BYTES)
        if not more:
            # What arrives from here on rings; what arrived before is found by this second attempt.
            self.page.broker_sleeping = 1
            more = self.store.dispatch_ready(SLICE_BYTES)
        if more:
            self.pending = True
            self.loop.call_soon(self.step)

    def stop(self) -> None:
        """Stop following."""
        self.stopped = True
        self.page.broker_sleeping = 0
        if self.poll is not None:
            self.poll.cancel()


class MasterAddress:
    """The master's address as nameservers reported it last; kept until one reports another.

    Of elected masters the one of the highest epoch counts: nameservers may learn of a new one at different
    times. Its epoch must be plausible, since following a master promises its epoch for good.
    """

    def __init__(self, page: Marks, plausible: Callable[[int], bool] = lambda epoch: True) -> None:
        """Take the page, through which the replicator learns the address of its peer."""
        self.page, self.plausible = page, plausible
        self.grpc = ""

    def update(self, members: Iterable[Member]) -> None:
        """Take the live members of the group."""
        for member in members:
            newest = member.broker_id == 0 and member.epoch >= self.page.elected[0]
            if newest and self.plausible(member.epoch):
                self.grpc = member.address
                if member.ha_address and member.ha_address != self.page.master_ha:
                    self.page.master_ha = member.ha_address
                if member.ha_address and self.page.elected != (member.epoch, member.member_id):
                    self.page.elected = member.epoch, member.member_id
