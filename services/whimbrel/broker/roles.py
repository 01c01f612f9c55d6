"""What a role may do, and when a master may write.

    slave     serves reads, follows its master, never writes master    unsettled --a nameserver accepted it,
    and knows the group--> settled --a slave is ahead--> behind
                  ^                                                          |  ^---no slave is ahead------'
                  '-------------------------- never: once heard, members stay known

A nameserver knows the group when it has run for one renewal period (`settled` in its answer), or when the
slaves that were configured are registered. A slave whose log ends beyond ours means that we came back with a
shorter log: writing now would give the same offsets to other messages. So the master serves reads only, says
why, and looks again at every renewal. Pure.
"""

from collections.abc import Iterable

from whimbrel.model.registration import BrokerRole, Member

__all__ = ["Position"]


class Position:
    """Whether this broker may write, as far as its role and its group say."""

    def __init__(self, role: BrokerRole, *, name: str, expected_slaves: int, nameservers: int) -> None:
        """Begin unsettled; a master without nameservers has nobody to ask and is settled at once."""
        self.role = role
        self._name = name
        self._expected = expected_slaves
        self.settled = role == "master" and nameservers == 0
        self.ahead: Member | None = None
        self.log_end = 0  # ours, when `ahead` was found
        self._members: tuple[Member, ...] = ()  # as nameservers know them
        self._reports: dict[
            object, Member
        ] = {}  # as the slaves said themselves, for as long as they are connected

    def heard(self, *, settled: bool, members: Iterable[Member], log_end: int) -> bool:
        """Take a nameserver's answer; return whether that changed what may be done.

        Args:
            settled: whether the nameserver has run for one renewal period.
            members: the other live brokers of the group, ourselves left out.
            log_end: end of our own log, taken after the answer came: it only grows.
        """
        if self.role == "slave":
            return False
        before = (self.settled, self.ahead is None)
        self._members = tuple(member for member in members if member.broker_id > 0)
        known = settled or (self._expected > 0 and len(self._members) >= self._expected)
        self.settled = self.settled or known
        self._compare(log_end)
        return before != (self.settled, self.ahead is None)

    def reported(self, connection: object, slave: Member | None, *, log_end: int) -> bool:
        """Take a slave's own word on its log, or None when its connection is over; return as `heard` does.

        What a nameserver knows is as old as the slave's last renewal: a master that lost its tail and is back
        within that time would not see that it did.
        """
        before = self.ahead is None
        if slave is not None:
            self._reports[connection] = slave
        else:
            self._reports.pop(connection, None)
        self._compare(log_end)
        return before != (self.ahead is None)

    def _compare(self, log_end: int) -> None:
        slaves = (*self._members, *self._reports.values())
        furthest = max(slaves, key=lambda member: member.log_end, default=None)
        self.ahead = furthest if furthest is not None and furthest.log_end > log_end else None
        self.log_end = log_end

    @property
    def authoritative(self) -> bool:
        """Whether slaves may take metadata and leases from this broker.

        A master that is not behind one of them.
        """
        return self.role == "master" and self.settled and self.ahead is None

    @property
    def refusal(self) -> str:
        """Why writes are refused, and what to do, in one sentence; empty when they are not."""
        if self.role == "slave":
            return f"this is a slave of {self._name} and takes no writes: send to the master"
        if self.ahead is not None:
            return (
                f"slave {self.ahead.broker_id} at {self.ahead.address} holds the log of {self._name} up to"
                f" byte {self.ahead.log_end}, this master only up to {self.log_end}: it came back with a"
                " shorter log and serves reads only; stop it and give it a copy of the slave's store, or stop"
                " that slave for good to go on without what only it holds"
            )
        if not self.settled:
            return (
                "no nameserver has confirmed yet which slaves are alive: this passes after one renewal"
                " period; if it does not, check that the nameservers run and that their addresses are right"
            )
        return ""
