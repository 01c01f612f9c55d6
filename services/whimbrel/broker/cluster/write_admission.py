"""When a master may write, as far as its group says. Pure.

    unsettled --a nameserver accepted it, and knows the group--> settled <--> behind a slave
                                              it never becomes unsettled again: members stay known

A nameserver knows the group when it is settled itself (`nameserver/registry.py`), or when the slaves that
were configured are registered. A slave whose log ends beyond ours means that we came back with a shorter log:
writing now would give the same offsets to other messages. So the master serves reads only, gives the reason,
and compares again at every renewal. **That is so before the first write of its term, since its start.**
Afterwards the offsets are given, and a longer log is another one: an old master's that comes back as a slave,
or a lie. It is logged and refused by the replicators, and stops nobody.

How far a slave's log goes is known from three sources: its last renewal at the nameservers, what its broker
reported when it connected to us, and what its replicator reported to ours (`slave_refused`), which needs no
broker beside it, but comes from a host where a slave is known (`known_slaves.py`). **A slave ahead that goes
away counts for `AHEAD_HOLD_S` more**: one that is being restarted must not find its offsets taken when it is
back. Only its own later report of a shorter log ends that sooner.
"""

from collections.abc import Iterable

from whimbrel.model.registration import Member

__all__ = ["AHEAD_HOLD_S", "LOG_END_MAX", "ElectedAdmission", "WriteAdmission"]

# Longer than a supervisor takes to restart a process and that to recover its log, or a nameserver to notice a
# hung one (8 s) ...
AHEAD_HOLD_S = 10.0
# ... and a slave's replicator that was refused is back within 2 s (RocketMQ's: 5 to 10 s).

# No log's end. Text and TLS greetings on the HA port make offsets far beyond, whoever sends them.
LOG_END_MAX = 1 << 50


class WriteAdmission:
    """Whether a master may write.

    `now` is in seconds of a clock that never goes back; `log_end` is the end of our own log, taken after the
    report came: it only grows.
    """

    def __init__(self, *, name: str, expected_slaves: int, nameservers: int, first_end: int) -> None:
        """Begin unsettled; a master without nameservers has nobody to ask and is settled at once.

        `first_end` is where our log ended when the term began.
        """
        self.name = name
        self.expected = expected_slaves
        self.settled = nameservers == 0
        self.first_end = first_end
        self.ahead: Member | None = None
        self.displaced = ""  # address of another broker that has the place of our name and id
        self.log_end = 0  # ours, when `ahead` was found
        self.held_until = 0.0  # `ahead` counts so long, whatever is reported
        self.members: tuple[Member, ...] = ()  # as nameservers know them
        # As the slaves reported themselves, for as long as they are connected.
        self.reports: dict[object, Member] = {}

    def members_changed(self, *, settled: bool, members: Iterable[Member], log_end: int, now: float) -> bool:
        """Take a nameserver's answer; return whether that changed what may be done.

        Args:
            settled: whether the nameserver takes it that all living brokers are registered.
            members: the other live brokers of the group, ourselves left out.
            log_end: see the class.
            now: see the class.
        """
        was_settled = self.settled
        self.members = tuple(member for member in members if member.broker_id > 0)
        known = settled or (self.expected > 0 and len(self.members) >= self.expected)
        self.settled = self.settled or known
        return self.refresh(log_end=log_end, now=now) or self.settled != was_settled

    def slave_reported(self, connection: object, slave: Member | None, *, log_end: int, now: float) -> bool:
        """Take a slave's own report of its log, or None when its connection is over.

        Returns as `members_changed` does.

        What a nameserver knows is as old as the slave's last renewal: a master that lost its tail and is back
        within that time would not see that it did.
        """
        if slave is not None:
            self.reports[connection] = slave
            held = self.ahead
            if held is not None and held.broker_id == slave.broker_id and slave.log_end <= log_end:
                self.held_until = now
        else:
            self.reports.pop(connection, None)
        return self.refresh(log_end=log_end, now=now)

    def slave_refused(self, peer: str, offset: int, *, log_end: int, now: float) -> bool:
        """Take what a slave's replicator reported to ours, which refused it.

        Returns as `members_changed` does.

        Its broker may be dead or hung, so this may be all that is known of that slave.
        """
        before = self.ahead
        if log_end > self.first_end:
            return False
        if log_end < offset <= LOG_END_MAX and (before is None or before.log_end <= offset):
            if before is None or before.log_end < offset:
                self.ahead = Member(broker_id=0, address=peer, ha_address="", log_begin=0, log_end=offset)
                self.log_end = log_end
            self.held_until = now + AHEAD_HOLD_S
        return (before is None) != (self.ahead is None)

    def refresh(self, *, log_end: int, now: float) -> bool:
        """Compare again; to be called periodically. Returns as `members_changed` does."""
        before = self.ahead
        furthest = self.longer(log_end) if log_end == self.first_end else None
        if furthest is not None:
            self.ahead, self.held_until, self.log_end = furthest, now + AHEAD_HOLD_S, log_end
        elif self.ahead is not None and (now >= self.held_until or self.ahead.log_end <= log_end):
            self.ahead = None
        return (before is None) != (self.ahead is None)

    def longer(self, log_end: int) -> Member | None:
        """Return the slave whose log goes on furthest beyond `log_end`, None when none does."""
        slaves = [slave for slave in (*self.members, *self.reports.values()) if slave.log_end <= LOG_END_MAX]
        furthest = max(slaves, key=lambda member: member.log_end, default=None)
        return furthest if furthest is not None and furthest.log_end > log_end else None

    @property
    def authoritative(self) -> bool:
        """Whether slaves may take metadata and leases from this broker.

        A master that is not behind one of them, and the only one.
        """
        return self.settled and self.ahead is None and not self.displaced

    @property
    def refusal(self) -> str:
        """Why writes are refused, and what to do, in one sentence; empty when they are not."""
        if self.displaced:
            return (
                f"another broker at {self.displaced} has the place of the master of {self.name}, and two of"
                " them would write two logs: stop one of the two"
            )
        if self.ahead is not None:
            slave = f"slave {self.ahead.broker_id}" if self.ahead.broker_id else "a slave's replicator"
            return (
                f"{slave} at {self.ahead.address} holds the log of {self.name} up to"
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


class ElectedAdmission(WriteAdmission):
    """Whether a master may write that was elected: whoever sealed its election has said so.

    A log that goes on beyond ours holds what was never committed, and is cut. Who has our place at a
    nameserver was elected after us.
    """

    def __init__(self, *, name: str, expected_slaves: int, nameservers: int, first_end: int) -> None:
        """Begin settled."""
        super().__init__(
            name=name, expected_slaves=expected_slaves, nameservers=nameservers, first_end=first_end
        )
        self.settled = True

    def longer(self, log_end: int) -> Member | None:
        """Nobody's log matters."""
        return None

    def slave_refused(self, peer: str, offset: int, *, log_end: int, now: float) -> bool:
        """Nobody's log matters."""
        return False

    @property
    def refusal(self) -> str:
        """Why writes are refused; empty when they are not."""
        if self.displaced:
            return f"another member of {self.name}, at {self.displaced}, was elected after this one"
        return ""
