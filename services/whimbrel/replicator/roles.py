"""What a replicator does for its store: send the log as a master, or receive and write it as a slave.

A role owns what only it runs, from `start` to `stop`. Both can be started again after they were stopped.

    MasterRole  the listener, the connections to slaves, a reader of the log, and a master's metrics
    SlaveRole   the writer of the log with its lock, the connection to the master, and a slave's metrics

Its `worker` does the work, one step a turn of the loop (`replicator.py`).
"""

import logging
import time
from collections.abc import Callable
from pathlib import Path
from typing import Literal, Protocol

from whimbrel.errors import StoreError
from whimbrel.metrics import SECONDS, Family, Histogram
from whimbrel.probes import NOT_CONNECTED, Condition
from whimbrel.replicator.feeder import Feeder
from whimbrel.replicator.follower import Follower
from whimbrel.replicator.loop import Loop
from whimbrel.replicator.metrics import AckTimes, feeder_families, follower_families
from whimbrel.replicator.options import ReplicatorOptions
from whimbrel.replicator.promises import Promises
from whimbrel.replicator.sockets import named
from whimbrel.store.commitlog import LogWriter
from whimbrel.store.locking import is_locked
from whimbrel.store.options import StoreOptions

__all__ = ["MasterRole", "Role", "SlaveRole", "Worker"]

logger = logging.getLogger(__name__)


class Worker(Protocol):
    """What the loop runs, one turn after the other."""

    def step(self, now: float) -> None:
        """Do what the marks and the timers ask for.

        Raises:
            Repair: the role is to be stopped and started again.
        """

    def run_lane(self, now: float) -> bool:
        """Go on by the compiled lane while all is plain, then a step is due.

        Returns:
            Whether its time was up; else there may be something to be called back for: a turn of the loop.
        """

    def wait_timeout(self, now: float) -> float:
        """Return how long nothing is due."""

    def idle(self) -> bool:
        """Whether the marks still ask for nothing."""


class Role(Protocol):
    """One end of the replication, which can be started and stopped.

    Attributes:
        name: as the setting `role` and the metrics call it.
        address: where slaves reach it, "" when they do not.
    """

    name: Literal["master", "slave"]
    address: str

    def may_start(self) -> bool:
        """Whether what `start` takes is free."""

    def start(self, after_epoch: int) -> Worker:
        """Begin to serve.

        Args:
            after_epoch: of the log that this process has written until now, 0 when it has not.

        Raises:
            StoreError: the store can't be used, or the address is taken.
        """

    def families(self) -> list[Family]:
        """Return what it measures, and begin to measure; only between `start` and `stop`."""

    def readiness(self) -> list[Condition]:
        """Return the conditions under which it is ready; called from other threads, as `families`."""

    def stop(self, why: str, *, clean: bool) -> int:
        """End it, and release all that `start` took.

        Args:
            why: for log lines.
            clean: nothing failed; what was written is whole.

        Returns:
            The epoch of the log that it wrote, 0 when it wrote none.
        """


class MasterRole:
    """Feeds slaves from the log that the broker writes."""

    name: Literal["master", "slave"] = "master"

    def __init__(
        self,
        loop: Loop,
        options: ReplicatorOptions,
        *,
        promises: Promises | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.loop, self.options, self.promises, self.clock = loop, options, promises, clock
        self.address = ""
        self.feeder: Feeder | None = None

    def may_start(self) -> bool:
        """Always: the feeder itself waits for the broker to have recovered the log."""
        return True

    def start(self, after_epoch: int) -> Worker:
        """Listen for slaves."""
        assert self.feeder is None
        self.feeder = Feeder(
            self.loop, self.options, after_epoch=after_epoch, promises=self.promises, clock=self.clock
        )
        self.address = named(self.feeder.listener.getsockname())
        logger.info("listening on %s", self.address)
        return self.feeder

    def families(self) -> list[Family]:
        """Return what it measures."""
        assert self.feeder is not None
        self.feeder.ack_timer = times = AckTimes()
        return feeder_families(self.feeder, times)

    def readiness(self) -> list[Condition]:
        """A master's replicator is ready while it lets slaves in: the broker has recovered the log."""
        met = bool(self.loop.page.epoch)
        return [Condition("feeding", met, "" if met else "the broker beside has not recovered the log")]

    def stop(self, why: str, *, clean: bool) -> int:
        """Close the listener and all connections; it writes no log."""
        if self.feeder is not None:
            self.feeder.close(why)
            self.feeder, self.address = None, ""
        return 0


class SlaveRole:
    """Writes the log that the master sends."""

    name: Literal["master", "slave"] = "slave"

    def __init__(
        self, loop: Loop, options: ReplicatorOptions, *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.loop, self.options, self.clock = loop, options, clock
        self.root = Path(options.store)
        self.address = ""
        self.log: LogWriter | None = None
        self.follower: Follower | None = None
        self.promises: Promises | None = None
        if options.role == "elected":
            self.promises = Promises(
                self.root,
                loop.page,
                loop.machine,
                member=options.id,
                flush=options.flush,
                cut_keep_bytes=options.cut_keep_bytes,
            )

    def may_start(self) -> bool:
        """Whether no process has the log open for writing."""
        return not is_locked(self.root, self.loop.machine.files)

    def start(self, after_epoch: int) -> Worker:
        """Lock and recover the log, then follow the master."""
        assert self.log is None
        if self.promises is not None:
            self.promises.finish_emptying(self.root, self.loop.machine)
            self.promises.finish_cut(self.root, self.loop.machine)
        by_member = self.promises is not None
        self.log = LogWriter.open(
            self.root, self.store_options(), machine=self.loop.machine, by_member=by_member
        )
        if self.promises is not None:
            self.promises.show_emptied()
        options, page = self.options, self.loop.page
        self.log.retentions = lambda: (options.retention, page.broker_retention)
        self.loop.ring_broker()
        self.follower = Follower(self.loop, self.options, self.log, promises=self.promises, clock=self.clock)
        return self.follower

    def store_options(self) -> StoreOptions:
        """Return how the log is written."""
        options = self.options
        size = options.commitlog_file_size or self.loop.page.file_size or StoreOptions().commitlog_file_size
        try:
            return StoreOptions(
                commitlog_file_size=size,
                flush=options.flush,
                # Most of the log is written by system calls, which populated pages would only hinder.
                prefault_bytes=0,
            )
        except ValueError as error:
            raise StoreError(str(error)) from error

    def families(self) -> list[Family]:
        """Return what it measures."""
        assert self.follower is not None
        flushes = Histogram(SECONDS)
        self.follower.log.on_flush_timed = flushes.observe
        return follower_families(self.follower, flushes)

    def readiness(self) -> list[Condition]:
        """A slave's replicator is ready while it is connected to the master's."""
        page = self.loop.page
        met = bool(page.connected)
        return [Condition("connected", met, "" if met else page.trouble or NOT_CONNECTED)]

    def stop(self, why: str, *, clean: bool) -> int:
        """Disconnect, then close the log; the lock goes last."""
        epoch = 0
        follower, self.follower = self.follower, None
        log, self.log = self.log, None
        try:
            if follower is not None:
                follower.close(why)
        finally:
            if log is not None:
                epoch = self.loop.page.epoch
                log.close(clean=clean)
                if self.promises is not None and clean and not log.failed:
                    self.promises.closed(log.mark.offset)
        return epoch
