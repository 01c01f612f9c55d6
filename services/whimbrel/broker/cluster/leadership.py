"""When a master that has started begins to lead, and when it stops writing. Pure.

`WriteAdmission` knows the rules.

    waiting --settled, and the slaves have told--> leading        it never waits again
    leading --a slave ahead, or another master in our place--> leading, but refusing writes --gone--> leading

**Waiting.** A nameserver tells who of the group is alive. Then every slave tells what was acknowledged there
meanwhile, and how far its log goes. Waiting for that is bounded, since a slave that does not come must not
stop the group: by `MERGE_WAIT_S` for slaves that are configured but not there, by `LIVE_WAIT_S` for those
that nameservers take for alive.
"""

import logging
from collections.abc import Callable

from whimbrel.broker.cluster.write_admission import WriteAdmission
from whimbrel.model.registration import Member

__all__ = ["LIVE_WAIT_S", "MERGE_WAIT_S", "REFUSED_EARLY_S", "Leadership"]

logger = logging.getLogger(__name__)

MERGE_WAIT_S = 3.0  # slaves come back to a restarted master within a second; longer and they are in trouble
LIVE_WAIT_S = 10.0  # a hung slave is out of the nameservers' tables by then, one cut off has renewed there
REFUSED_EARLY_S = 15.0  # after the start: a master that has written for longer is right, whoever knocks


class Leadership:
    """What a master has heard of its group, and what follows from it.

    `now` is in seconds of a clock that never goes back.

    Attributes:
        leads: slaves may take tables and lease states from here, and receives are answered.
        refusal: why writes are refused, in one sentence; empty when they are not.
    """

    def __init__(
        self,
        position: WriteAdmission,
        *,
        name: str,
        expected_slaves: int,
        log_end: Callable[[], int],
        merged: Callable[[], int],
        on_change: Callable[[], None],
    ) -> None:
        """Prepare; `begin` starts the waiting.

        Args:
            position: what role and group allow.
            name: of the broker group.
            expected_slaves: how many are configured.
            log_end: gives the end of our own log.
            merged: gives how many slaves have told all they know.
            on_change: called when `leads` or `refusal` has another value.
        """
        self.position = position
        self.leads = False
        self.refusal = position.refusal or "the broker is starting"
        self.name = name
        self.expected = expected_slaves
        self.log_end, self.merged = log_end, merged
        self.on_change = on_change
        self.started_at = self.settled_at = 0.0
        self.members: dict[str, tuple[Member, ...]] = {}  # by nameserver
        self.twins: dict[str, str] = {}  # by nameserver: who holds our place instead of us
        self.stopped = False

    def begin(self, now: float) -> None:
        """Start to wait; without nameservers there may be nothing to wait for."""
        self.started_at = self.settled_at = now
        self.look(now)

    @property
    def authoritative(self) -> bool:
        """Whether slaves may take tables and lease states from here now."""
        return self.leads and self.position.authoritative

    def heard(self, nameserver: str, members: tuple[Member, ...], *, settled: bool, now: float) -> None:
        """Take a nameserver's answer."""
        self.members[nameserver] = members
        was_settled, was_behind = self.position.settled, self.behind
        group = {member.broker_id: member for known in self.members.values() for member in known}
        self.position.heard(settled=settled, members=group.values(), log_end=self.log_end(), now=now)
        if self.position.settled and not was_settled:
            self.settled_at = now
        self.consider(now, was_behind)

    def lost(self, nameserver: str) -> None:
        """Forget what a nameserver said that is gone."""
        self.twins.pop(nameserver, None)
        self.members.pop(nameserver, None)

    def reported(self, connection: object, slave: Member | None, *, now: float) -> None:
        """Take a slave's own word on how far its log goes; None when its connection is over."""
        was_behind = self.behind
        self.position.reported(connection, slave, log_end=self.log_end(), now=now)
        self.consider(now, was_behind)

    def refused(self, peer: str, offset: int, *, now: float) -> None:
        """Take what our replicator just heard of a slave whose log goes on beyond ours."""
        was_behind = self.behind
        if was_behind or now - self.started_at < REFUSED_EARLY_S:
            self.position.refused(peer, offset, log_end=self.log_end(), now=now)
            self.consider(now, was_behind)

    def displaced(self, nameserver: str, address: str) -> None:
        """Hear who holds our place at a nameserver, "" for nobody: two masters would write two logs."""
        before = self.position.displaced
        self.twins[nameserver] = address
        self.position.displaced = next(filter(None, self.twins.values()), "")
        if self.position.displaced != before:
            twin = f"another broker at {address} has registered with our name and id"
            logger.warning("%s", twin if address else "no other broker holds our name and id any more")
            self.settle_refusal()

    def look(self, now: float) -> None:
        """See what time has changed; to be called now and then, and when a slave has told all it knows."""
        was_behind = self.behind
        self.position.look(log_end=self.log_end(), now=now)
        self.consider(now, was_behind)

    def stop(self) -> None:
        """Change nothing any more: what is said from here on is about a broker that stops."""
        self.stopped = True

    @property
    def behind(self) -> bool:
        return self.position.ahead is not None

    def consider(self, now: float, was_behind: bool) -> None:
        if self.stopped:
            return
        if self.behind != was_behind:
            logger.warning("%s", self.position.refusal or f"no slave is ahead of {self.name} any more")
        if not self.leads and self.position.settled and self.slaves_have_told(now):
            self.leads = True
            self.on_change()
        self.settle_refusal()

    def settle_refusal(self) -> None:
        refusal = self.position.refusal
        if not self.leads:
            refusal = refusal or "the slaves have not told yet what was acknowledged there"
        if refusal != self.refusal and not self.stopped:
            self.refusal = refusal
            self.on_change()

    def slaves_have_told(self, now: float) -> bool:
        """Tell whether all slaves have said what they hold, or have had the time."""
        alive = {member.broker_id for known in self.members.values() for member in known} - {0}
        told, waited = self.merged(), now - self.settled_at
        if told < len(alive):
            return waited >= LIVE_WAIT_S
        return told >= self.expected or waited >= MERGE_WAIT_S
