"""When a master that has started begins to lead, and when it stops writing. Pure.

    waiting --settled, and all slaves have reported--> leading        it never waits again
    leading --another master in our place--> leading, but refusing writes --gone--> leading
    ... before its first write: --a slave ahead--> leading, but refusing writes --gone--> leading

`WriteAdmission` has the rules by which writes are refused.

**Waiting.** A nameserver says which members of the group are alive. Then every slave reports what was
acknowledged there meanwhile, and how far its log goes. The wait is bounded, since a slave that does not
connect must not stop the group: by `MERGE_WAIT_S` for slaves that are configured but not registered, by
`LIVE_WAIT_S` for those that nameservers hold to be alive. A master that was elected waits for as many as
`unmerged` asks for, however long that takes (`leader_state.py`).
"""

import logging
from collections.abc import Callable

from whimbrel.broker.cluster.write_admission import WriteAdmission
from whimbrel.model.registration import Member

__all__ = ["LIVE_WAIT_S", "MERGE_WAIT_S", "REST_WAIT_S", "Leadership"]

logger = logging.getLogger(__name__)

MERGE_WAIT_S = 3.0  # slaves come back to a restarted master within a second; longer and they are in trouble
LIVE_WAIT_S = 10.0  # a hung slave is out of the nameservers' tables by then, one cut off has renewed there

# For live members besides those without which a leader that was elected may not lead. What only they have was
# answered to nobody: without it messages that are being consumed come again.
REST_WAIT_S = 0.5


class Leadership:
    """What a master knows of its group, and what follows from it.

    `now` is in seconds of a clock that never goes back.

    Attributes:
        leads: slaves may take tables and lease states from here, and receives are answered.
        refusal: why writes are refused, in one sentence; empty when they are not.
    """

    def __init__(
        self,
        admission: WriteAdmission,
        *,
        name: str,
        expected_slaves: int,
        log_end: Callable[[], int],
        merged: Callable[[], int],
        on_change: Callable[[], None],
        uncommitted: Callable[[], str] = str,
        unmerged: Callable[[], str] = str,
        live_wait_s: float = LIVE_WAIT_S,
    ) -> None:
        """Prepare; `begin` starts the waiting.

        Args:
            admission: what the group allows.
            name: of the broker group.
            expected_slaves: how many are configured.
            log_end: gives the end of our own log.
            merged: gives how many slaves have sent all that they know of leases.
            on_change: called when `leads` or `refusal` has another value.
            uncommitted: gives why writes are refused while the log that we began with is not committed, ""
                once it is.
            unmerged: gives why this master may not lead yet, however long it has waited; "" once it may.
            live_wait_s: how long slaves are waited for that nameservers hold to be alive.
        """
        self.admission = admission
        self.leads = False
        self.refusal = admission.refusal or "the broker is starting"
        self.name = name
        self.expected, self.live_wait_s = expected_slaves, live_wait_s
        self.log_end, self.merged = log_end, merged
        self.on_change, self.uncommitted, self.unmerged = on_change, uncommitted, unmerged
        self.holds_for_commit = True  # until all is committed that the log held when we began
        self.started_at = self.settled_at = 0.0
        self.members: dict[str, tuple[Member, ...]] = {}  # by nameserver
        self.displacing: dict[str, str] = {}  # by nameserver: the broker that has our place
        self.stopped = False
        self.other_log: tuple[int, int] | None = None  # a slave's that is longer than ours: its id, its end

    def begin(self, now: float) -> None:
        """Start to wait; without nameservers there may be nothing to wait for."""
        self.started_at = self.settled_at = now
        self.refresh(now)

    @property
    def authoritative(self) -> bool:
        """Whether slaves may take tables and lease states from here now."""
        return not self.stopped and self.leads and self.admission.authoritative

    @property
    def settled(self) -> bool:
        """Whether the group is known."""
        return not self.stopped and self.admission.settled

    def members_changed(
        self, nameserver: str, members: tuple[Member, ...], *, settled: bool, now: float
    ) -> None:
        """Take a nameserver's answer."""
        self.members[nameserver] = members
        was_settled, was_behind = self.admission.settled, self.behind
        group = {member.broker_id: member for known in self.members.values() for member in known}
        self.admission.members_changed(
            settled=settled, members=group.values(), log_end=self.log_end(), now=now
        )
        if self.admission.settled and not was_settled:
            self.settled_at = now
        self.consider(now, was_behind)

    def nameserver_lost(self, nameserver: str) -> None:
        """Forget what a nameserver said that is gone."""
        self.displacing.pop(nameserver, None)
        self.members.pop(nameserver, None)

    def slave_reported(self, connection: object, slave: Member | None, *, now: float) -> None:
        """Take a slave's own report of how far its log goes; None when its connection is over."""
        was_behind = self.behind
        self.admission.slave_reported(connection, slave, log_end=self.log_end(), now=now)
        self.consider(now, was_behind)

    def slave_refused(self, peer: str, offset: int, *, now: float) -> None:
        """Take our replicator's report of a slave that it refused: its log goes on beyond ours."""
        was_behind = self.behind
        self.admission.slave_refused(peer, offset, log_end=self.log_end(), now=now)
        self.consider(now, was_behind)

    def displaced(self, nameserver: str, address: str) -> None:
        """Note which broker has our place at a nameserver, "" for none: two would write two logs."""
        before = self.admission.displaced
        self.displacing[nameserver] = address
        self.admission.displaced = next(filter(None, self.displacing.values()), "")
        if self.admission.displaced != before:
            other = f"another broker at {address} has the place of our name and id"
            logger.warning(
                "%s", other if address else "no other broker has the place of our name and id any more"
            )
            self.settle_refusal()

    def refresh(self, now: float) -> None:
        """Apply what time has changed; to be called periodically, and when a slave has merged."""
        was_behind = self.behind
        self.admission.refresh(log_end=self.log_end(), now=now)
        self.consider(now, was_behind)

    def stop(self) -> None:
        """Change nothing any more: what is reported from here on is about a broker that stops."""
        self.stopped = True

    @property
    def behind(self) -> bool:
        return self.admission.ahead is not None

    def consider(self, now: float, was_behind: bool) -> None:
        if self.stopped:
            return
        if self.behind != was_behind:
            logger.warning("%s", self.admission.refusal or f"no slave is ahead of {self.name} any more")
        self.note_other_log()
        if not self.leads and self.admission.settled and self.slaves_have_reported(now):
            self.leads = True
            self.on_change()
        self.settle_refusal()

    def note_other_log(self) -> None:
        """Log that a slave's log is longer than ours though we have written: it is another one."""
        log_end = self.log_end()
        slave = None if self.behind else self.admission.longer(log_end)
        other = None if slave is None else (slave.broker_id, slave.log_end)
        if slave is not None and other != self.other_log:
            logger.warning(
                "slave %d at %s says that it holds the log of %s up to byte %d, beyond our %d: we wrote"
                " in this term, so that is another log; move its store away and start it with an empty one",
                slave.broker_id,
                slave.address,
                self.name,
                slave.log_end,
                log_end,
            )
        self.other_log = other

    def settle_refusal(self) -> None:
        refusal = self.admission.refusal
        if not self.leads:
            refusal = refusal or self.unmerged() or "the slaves have not told yet what was acknowledged there"
        if self.holds_for_commit:
            uncommitted = self.uncommitted()
            self.holds_for_commit = bool(uncommitted)
            refusal = refusal or uncommitted
        if refusal != self.refusal and not self.stopped:
            self.refusal = refusal
            self.on_change()

    def slaves_have_reported(self, now: float) -> bool:
        """Tell whether all slaves have reported what they hold, or have had the time to."""
        if self.unmerged():
            return False
        alive = {member.broker_id for known in self.members.values() for member in known} - {0}
        reported, waited = self.merged(), now - self.settled_at
        if reported < len(alive):
            return waited >= self.live_wait_s
        return reported >= self.expected or waited >= MERGE_WAIT_S
