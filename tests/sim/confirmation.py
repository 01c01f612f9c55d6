"""What the mark `confirmed` of a master's page means, checked against what its slaves have.

    grown      a slave that was counted over one connection from one look to the next holds what was confirmed
               meanwhile; where it flushes before it reports, on its disk
    held       some slave holds what is confirmed. Below `risk` (`takeover.py`) slaves may have lost it since;
               with asynchronous replication a master that had no slave for AWAY_S may have gone on alone
    shown      it is not beyond what the page shows as written
    kept       the slave that takes over holds what the lost master's mark said, with the same exceptions

A look passes over a slave whose log is not open, and a master whose log was opened anew since the last one.
"""

from collections.abc import Callable
from dataclasses import dataclass

from sim.cluster import Cluster, Member
from sim.takeover import Takeover
from whimbrel.broker.produce.confirmed_offset import AWAY_S
from whimbrel.store.shared_page import SharedPage

__all__ = ["Confirmation"]

Fail = Callable[[str, str], None]
Connection = tuple[object, ...]


@dataclass(frozen=True, slots=True)
class Look:
    """What was seen of a master.

    Attributes:
        confirmed: its mark.
        counted: the slaves that it counts, each with what tells one connection, and one log of the slave's,
            from the next.
    """

    name: str
    epoch: int
    confirmed: int
    counted: dict[str, Connection]


class Confirmation:
    """Looks at the masters.

    Attributes:
        before: the last look at each group's master.
        counted_at: by group, when its master counted a slave last.
        alone_end: by group, where the log ended when its master had counted none for long.
    """

    def __init__(self, cluster: Cluster, fail: Fail, looked: Callable[[str], None]) -> None:
        self.cluster, self.fail, self.looked = cluster, fail, looked
        self.before: dict[str, Look] = {}
        self.counted_at: dict[str, float] = {}
        self.alone_end: dict[str, int] = {}
        cluster.takeovers.told.append(self.taken_over)

    def step(self) -> None:
        """Look at all groups."""
        for group in self.cluster.groups:
            master = self.cluster.master(group)
            page = master.page if master.up else None
            if page is None or not page.epoch:
                self.before.pop(group, None)
                continue
            if page.confirmed > page.written:
                self.fail("confirmed", f"{master.name} confirms {page.confirmed} of {page.written}")
            counted = self.counted(master, page)
            self.note_alone(group, page, counted)
            before = self.before.get(group)
            if before is not None and (before.name, before.epoch) == (master.name, page.epoch):
                self.check_grown(before, page, counted)
                self.check_held(master, page)
            self.before[group] = Look(master.name, page.epoch, page.confirmed, counted)

    def counted(self, master: Member, page: SharedPage) -> dict[str, Connection]:
        """Return the slaves that a master counts, by name."""
        found: dict[str, Connection] = {}
        for slave, _ in page.slave_acks():
            for member in self.cluster.slaves(master.group):
                known = member.number == slave.broker_id if slave.broker_id else member.address == slave.host
                own = member.page if member.up else None
                if known and own is not None and own.epoch:
                    slots = tuple((slot.number, slot.connected_at_ms) for slot in slave.slots)
                    found[member.name] = (*slots, member.lives, member.disk.losses, own.epoch)
        return found

    def note_alone(self, group: str, page: SharedPage, counted: dict[str, Connection]) -> None:
        """Note how far a master has gone without slaves."""
        now = self.cluster.scheduler.now
        alone_s = now - self.counted_at.get(group, 0.0)
        if alone_s >= AWAY_S - 1.0 and self.cluster.plan.replication == "async":
            self.alone_end[group] = page.written  # also when one is back: it went on until then
        if counted:
            self.counted_at[group] = now

    def check_grown(self, before: Look, page: SharedPage, counted: dict[str, Connection]) -> None:
        """Who was counted while the mark grew holds what is below it."""
        if page.confirmed <= before.confirmed:
            return
        if self.cluster.plan.replication == "majority":
            return  # more than half do, whoever they are: see `check_held`
        for name, connection in counted.items():
            if before.counted.get(name) != connection:
                continue
            self.looked("confirmed held")
            held = self.held(self.cluster.members[name])
            if held is not None and held < page.confirmed:
                self.fail(
                    "confirmed",
                    f"{before.name} confirms {page.confirmed}; {name}, which it counts, holds {held}",
                )

    def check_held(self, master: Member, page: SharedPage) -> None:
        """What is confirmed is with a slave."""
        held = [self.held(slave) for slave in self.cluster.slaves(master.group)]
        if None in held:
            return
        self.looked("confirmed held")
        furthest = max(end for end in held if end is not None)
        if page.confirmed > max(furthest, self.excused(master.group)):
            self.fail("confirmed", f"{master.name} confirms {page.confirmed}; its slaves hold {held}")

    def held(self, slave: Member) -> int | None:
        """Return how far a slave holds the log; None when that can't be seen."""
        page = slave.page if slave.up else None
        if page is None or not page.epoch:
            return None
        return page.flushed if self.cluster.plan.flush == "sync" else page.written

    def excused(self, group: str) -> int:
        """Return below where nobody has to hold what is confirmed."""
        return max(self.cluster.takeovers.risk.get(group, 0), self.alone_end.get(group, 0))

    def taken_over(self, taken: Takeover) -> None:
        """The new master has what the lost one confirmed."""
        self.looked("confirmed kept")
        if taken.confirmed > max(taken.end, self.excused(taken.group)):
            self.fail(
                "confirmed", f"{taken.name} takes over with {taken.end}; {taken.confirmed} was confirmed"
            )
