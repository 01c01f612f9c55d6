"""A replicator that holds a role, and can be given another one while it runs.

Loop, doorbell, page of marks, signals and the metrics port belong to the process and stay. What a role owns
comes and goes with it (`roles.py`). A switch is asked for at any time and made between two turns:

    RUNNING    turns of the role
       | switch(role)
    STOPPING   the metrics of the role are taken away, then it stops
                 master  listener closed, slaves disconnected, their slots and the HA port cleared in the page
                 slave   disconnected; the log flushed and closed cleanly, its lock released last
       |
    WAITING    nothing is served; the heartbeat in the page goes on
                 to be a slave   until the broker has released the lock of the log
                 to be a master  not at all
       |
    STARTING   the new role starts, then its metrics are shown
                 slave   lock, epoch 0, recovery, epoch + 1; then the follower connects
                 master  the listener is bound; slaves are let in once the broker has recovered the log, in an
                         epoch after that of the log this process wrote
       |
    RUNNING    turns of the new role

The broker beside changes its role in its own time; the page is all that both share. Who writes the log sets
epoch 0, recovers, then raises the epoch; the other waits for an epoch that it has not seen yet. The lock of
the log decides which of the two writes: one must release it before the other can recover the log.

A switch that fails ends the process, as a start that fails does.

Where the group elects its leader (`role` elected), the broker says in the page which role this is, and the
switch is made as soon as it says another one. A log that has to be repaired before the role can go on
(`Repair`) is a switch to the same role.
"""

import logging
import time
from collections.abc import Callable
from types import TracebackType
from typing import Self

from whimbrel.probes import Probes
from whimbrel.replicator.loop import Loop
from whimbrel.replicator.metrics import MetricsPort
from whimbrel.replicator.options import ReplicatorOptions
from whimbrel.replicator.promises import Repair
from whimbrel.replicator.roles import MasterRole, Role, SlaveRole, Worker
from whimbrel.wakeup import WAKE_POLL_S

__all__ = ["Replicator"]

logger = logging.getLogger(__name__)


class Replicator:
    """One store's end of the replication.

    Attributes:
        role: what it is now; None while a switch waits, and in the end.
        next_role: what it is to become, None when no switch is under way.
    """

    def __init__(
        self, loop: Loop, options: ReplicatorOptions, *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.loop, self.clock = loop, clock
        self.probes = Probes("replicator", clock=clock)
        self.metrics = MetricsPort(options, self.probes)
        self.role: Role | None = None
        self.next_role: Role | None = None
        self.worker: Worker | None = None
        self.log_epoch = 0  # of the log that the last role wrote
        self.elected: dict[int, Role] = {}  # by `replica_role`, where the broker says which role it is
        if loop.page.replica_pass:
            loop.page.replica_pass = 0
            loop.machine.lane.died_within()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.metrics.close()
        self.stop_role("the replicator stops", clean=kind is None)

    def start(self, role: Role) -> None:
        """Take the first role.

        Raises:
            StoreError: the store can't be used, or an address is taken.
            OSError: the metrics port can't be had.
        """
        self.start_role(role)

    def start_elected(self, master: MasterRole, slave: SlaveRole) -> None:
        """Take the role that the broker beside says, now and from then on.

        Raises:
            StoreError, OSError: as `start`.
        """
        self.elected = {1: master, 2: slave}
        role = self.named_role()
        if role.may_start():
            self.start_role(role)
        else:
            self.next_role = role

    def named_role(self) -> Role:
        """Return the role that the broker beside says; a slave's before it has said any."""
        return self.elected.get(self.loop.page.replica_role, self.elected[2])

    def switch(self, role: Role) -> None:
        """Take another role at the next turn; may be called from any thread."""
        self.next_role = role
        self.loop.wake()

    def run(self) -> None:
        """Serve until the loop is stopped.

        Raises:
            StoreError: the disk refused a sync, or the next role can't start.
        """
        while not self.loop.stopping:
            self.turn()

    def turn(self) -> None:
        """Do what is due, then wait until there is something to do."""
        if self.elected and self.named_role() is not (self.next_role or self.role):
            self.next_role = self.named_role()
        if self.next_role is not None:
            self.change_role(self.next_role)
        worker = self.worker
        now = self.probes.turned_at = self.clock()
        if worker is None:
            self.loop.turn(WAKE_POLL_S, lambda: True)
            return
        try:
            by_lane = worker.run_lane(now)
            now = self.clock()
            worker.step(now)
            if not by_lane:
                self.loop.turn(worker.wait_timeout(now), self.idle)
        except Repair as repair:
            logger.warning("%s", repair)
            self.next_role = self.role

    def idle(self) -> bool:
        """Whether nobody asks for anything: the marks, or the broker for another role."""
        worker = self.worker
        if self.next_role is not None or worker is None:
            return False
        return worker.idle() and not (self.elected and self.named_role() is not self.role)

    def change_role(self, role: Role) -> None:
        """Stop the role that is held, and start the next one as soon as it may."""
        if self.role is not None:
            logger.info("from %s to %s", self.role.name, role.name)
            self.metrics.show(role.name, list)  # nothing may read what is closed now
            self.stop_role(f"the replicator becomes a {role.name}", clean=True)
        if not role.may_start():
            return
        self.next_role = None
        self.start_role(role)

    def start_role(self, role: Role) -> None:
        """Start a role and show what it measures."""
        self.role = role
        self.worker = role.start(self.log_epoch)
        self.probes.serve(role.name, role.readiness)
        self.metrics.show(role.name, role.families)

    def stop_role(self, why: str, *, clean: bool) -> None:
        """Stop the role that is held, if there is one."""
        self.probes.withdraw()
        role, self.role, self.worker = self.role, None, None
        if role is not None:
            self.log_epoch = role.stop(why, clean=clean)
