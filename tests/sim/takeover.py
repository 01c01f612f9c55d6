"""What a person does for a group whose master is lost, or came back with less, by docs/operating.md.

    promote   the master's machine is lost for good. The slave with the longest log is started again as the
              master, with the master's id; a machine with an empty disk takes the lost one's place later, as
              a slave with an id that nobody had
    rejoin    the master's processes are lost. A slave takes over as above, and the old master comes back as a
              slave with its own disk; where its log is not a part of the new one's, it gets an empty disk
    shorter   the master loses power and comes back. Where it says that a slave is ahead, that slave takes
              over, and the old master comes back with an empty disk

A slave with a log that is not a part of its master's gets an empty disk as well, once a fault of these has
come over its group. Any master that says that a slave is ahead is replaced by that slave: with synchronous
flush, too, slaves may hold what a loss of power took from the master before it was on disk.

**What may be lost** is computed, not guessed. Of each record it is known where it ended in the lost master's
log. With asynchronous replication an acknowledged record that ended behind the promoted slave's log may be
gone, and no other; with synchronous replication none. A master that came back with less, and could hear of
no slave with more, may have lost what ended behind its own new end, where both are asynchronous. Such sends
become ones of unknown outcome.

**A second fault that the modes do not promise to stand is kept away** (`bears`): while a group has no master,
its slaves lose nothing. A master is lost only while all its slaves have power, and one of them holds what the
master had when a slave last lost anything.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from sim.plan import QUIET_S, Fault
from whimbrel.store.codec import decode_record
from whimbrel.store.segment import segment_name
from whimbrel.store.walk import Walk

if TYPE_CHECKING:
    from sim.cluster import Cluster, Member

__all__ = ["Takeover", "Takeovers"]

LATEST_S = QUIET_S - 12.0  # a master is lost no later
LOOK_S = 0.5  # between two looks of the person
QUICK_LOOK_S = 0.02  # between two looks at a master that comes back: it takes no writes for longer
PATIENCE = 4  # looks at a broker in trouble before something is done ...
LONG_PATIENCE = 20  # ... and at a slave that is merely ahead: its master may come to write as much
BACK_S = 2.0  # until a master that was replaced is back
FORGOTTEN_S = 5.0  # between two notes of a time at which acknowledgements may be forgotten
# What a slave's replicator says of a log that differs from its master's, or may go on behind its end.
FOREIGN, AHEAD = "differs from ours", ("bytes later", "not a part of its log")


@dataclass(frozen=True, slots=True)
class Takeover:
    """A slave has become the master.

    Attributes:
        at: virtual seconds.
        end: of its log.
        confirmed: how far the lost master's page said that the log was confirmed.
    """

    group: str
    at: float
    name: str
    end: int
    confirmed: int


@dataclass(slots=True)
class Lost:
    """A master that is lost, or came back with less.

    Attributes:
        ends: of the records that its log had, by message.
        confirmed: its page's mark.
        since: until then the slaves' brokers had its lease state.
        recovered: where its log ended when it was back; -1 before.
        held: where the longest log ended then, its slaves' included.
        disturbed: some slave could not tell it how far its own log goes.
    """

    member: "Member"
    ends: dict[bytes, int]
    confirmed: int
    since: float
    recovered: int = -1
    held: int = 0
    disturbed: bool = False


class Takeovers:
    """The person.

    Attributes:
        done: takeovers.
        open: groups without a master, or with one that came back and has not written yet.
        former: old masters with their own disks that do not follow the new one yet, and their lives.
        told: called after a takeover.
    """

    def __init__(self, cluster: "Cluster") -> None:
        self.cluster = cluster
        self.done: list[Takeover] = []
        self.open: dict[str, Lost] = {}
        self.watched: set[str] = set()
        self.former: set[tuple[str, int]] = set()
        self.risk: dict[
            str, int
        ] = {}  # by group: where the master's log ended when a slave last lost anything
        self.ended: dict[str, int] = {}  # by host: where its log ended when it lost power last
        self.exchanged_at: dict[
            str, float
        ] = {}  # by slave: when its broker had its master's lease state last
        self.troubled: dict[str, int] = {}  # by slave: looks at which its log was not a part of its master's
        self.opened: dict[str, int] = {}  # by slave: the epoch of its log
        self.told: list[Callable[[Takeover], None]] = []
        if not cluster.plan.elected:
            cluster.scheduler.later(LOOK_S, self.look)

    # What may happen

    def bears(self, fault: Fault) -> bool:
        """Return whether the modes promise to stand a fault, as the roles are now."""
        cluster = self.cluster
        member = cluster.members.get(fault.target)
        if member is None:
            return True
        is_open, keeps = member.group in self.open, cluster.plan.flush == "sync"
        match fault.kind:
            case "replace":
                return bool(member.number) and not is_open
            case "power":
                return keeps or (bool(member.number) and not is_open)
            case "sync_error":
                promoted = not member.number and member.name not in cluster.plan.masters
                return not promoted and (keeps or not is_open)
        return True

    def loses(self, member: "Member", *, all_of_it: bool) -> None:
        """Note that a host is about to lose what is not on its disk, or all of it."""
        if member.page is not None:
            self.ended[member.name] = member.page.written
        if member.number and (all_of_it or self.cluster.plan.flush == "async"):
            master = self.cluster.master(member.group)
            end = master.page.written if master.page is not None else self.ended.get(master.name, 0)
            self.risk[member.group] = max(end, self.risk.get(member.group, 0))

    def may_lose(self, group: str) -> bool:
        """Return whether a group can do without its master now."""
        cluster = self.cluster
        if not cluster.master(group).up or cluster.master(group).page is None:
            return False
        ends = []
        for slave in cluster.slaves(group):
            page = slave.page
            if not slave.up or page is None or not page.epoch_count:
                return False
            if page.doubtful and cluster.plan.flush == "async":
                return False
            ends.append(page.written)
        return max(ends) >= self.risk.get(group, 0)

    # What happens

    def lose_master(self, fault: Fault) -> None:
        """Lose a master, as soon as its group can do without it."""
        cluster = self.cluster
        group = cluster.members[fault.target].group
        if not self.may_lose(group):
            if cluster.scheduler.now < LATEST_S:
                cluster.scheduler.later(LOOK_S, lambda: self.lose_master(fault))
            else:
                cluster.note(f"{group} can't do without its master: nothing happens to it")
            return
        old = cluster.master(group)
        page = old.page
        assert page is not None
        slaves = cluster.slaves(group)
        since = min(self.exchanged_at.get(slave.name, 0.0) for slave in slaves)
        self.open[group] = lost = Lost(old, self.records(old), page.confirmed, since)
        self.watched.add(group)
        cluster.note(
            f"{old.name}, the master of {group}, is lost ({fault.kind}); its log ended at {page.written}"
        )
        if cluster.plan.flush == "async":
            for slave in slaves:
                slave.disk.heal()
        match fault.kind:
            case "promote":
                cluster.lose_power(old, None, disk=cluster.new_disk())
            case "rejoin":
                cluster.halt(old)
            case "shorter":
                cluster.lose_power(old, fault.for_s)
                cluster.scheduler.later(QUICK_LOOK_S, lambda: self.await_return(lost, fault))
                return
        cluster.scheduler.later(fault.for_s, lambda: self.take_over(lost, fault))

    def await_return(self, lost: Lost, fault: Fault) -> None:
        """See how a master that came back does: whether it leads, or a slave is ahead."""
        cluster, old = self.cluster, lost.member
        page = old.page if old.up else None
        if lost.recovered < 0 and page is not None and page.epoch:
            lost.recovered = lost.held = page.written
            pages = [slave.page for slave in cluster.slaves(old.group)]
            lost.held = max([lost.held, *(page.written for page in pages if page is not None)])
        if old.up:
            lost.disturbed = lost.disturbed or any(map(self.is_disturbed, cluster.slaves(old.group)))
        if self.is_behind(old):
            cluster.lose_power(old, None, disk=cluster.new_disk())
            self.take_over(lost, fault)
        elif lost.recovered >= 0 and page is not None and page.epoch and page.written > lost.recovered:
            self.settle(lost)
        else:
            cluster.scheduler.later(QUICK_LOOK_S, lambda: self.await_return(lost, fault))

    def settle(self, lost: Lost) -> None:
        """A master that came back writes: what it lost before is gone, where that is allowed."""
        cluster = self.cluster
        del self.open[lost.member.group]
        cluster.note(f"{lost.member.name} goes on from {lost.recovered}")
        if cluster.plan.replication == "async":
            self.give_up(lost, lost.recovered if lost.disturbed else lost.held)

    def take_over(self, lost: Lost, fault: Fault) -> None:
        """Start the slave with the longest log as the master."""
        cluster, old = self.cluster, lost.member
        slaves = cluster.slaves(old.group)
        pages = [slave.page for slave in slaves]
        if not all(slave.up for slave in slaves) or not all(page and page.epoch_count for page in pages):
            cluster.scheduler.later(LOOK_S, lambda: self.take_over(lost, fault))
            return
        ends = [page.written for page in pages if page is not None]
        best = slaves[ends.index(max(ends))]
        now = cluster.scheduler.now
        taken = Takeover(old.group, now, best.name, max(ends), lost.confirmed)
        cluster.note(f"{best.name} becomes the master of {old.group}; its log ends at {taken.end}")
        if cluster.plan.replication == "async":
            self.give_up(lost, taken.end)
        self.forget(lost)
        old.number = max(member.number for member in cluster.group(old.group)) + 1
        self.former.add((old.name, old.lives))
        best.number = 0
        best.disk.heal()
        for node in (best.broker, best.replicator):
            assert node is not None
            node.process.die()
        del self.open[old.group]
        self.risk[old.group] = taken.end  # those that are slaves now may have less
        self.done.append(taken)
        for look in self.told:
            look(taken)
        cluster.scheduler.later(fault.amount, lambda: cluster.power_on(old))

    def give_up(self, lost: Lost, end: int) -> None:
        """Let acknowledged records behind an end be gone."""
        gone = [
            sent
            for sent in self.cluster.history.acknowledged
            if sent.place is not None
            and sent.place[0].startswith(f"{lost.member.group}/")
            and lost.ends.get(sent.id, 0) > end
        ]
        for sent in gone:
            sent.outcome = "unknown"
        if gone:
            self.cluster.note(f"{len(gone)} acknowledged sends may be lost: they ended behind {end}")

    def forget(self, lost: Lost) -> None:
        """Let acknowledgements of consumers be forgotten that no slave's broker had got."""
        losses, at = self.cluster.history.losses, lost.since
        while at < self.cluster.scheduler.now:
            losses.append(at)
            at += FORGOTTEN_S
        losses.append(self.cluster.scheduler.now)

    # What the person sees

    def records(self, member: "Member") -> dict[bytes, int]:
        """Return where each record of a log ends, by its message."""
        page, size = member.page, self.cluster.LOG_FILE
        assert page is not None

        def read(offset: int, length: int) -> bytes:
            content = member.disk.content(
                self.cluster.ROOT / "commitlog" / segment_name(offset // size * size)
            )
            return content[offset % size : offset % size + length]

        found: dict[bytes, int] = {}
        walk = Walk(read, page.begin, page.written, size)
        while (chunk := walk.next_chunk()) is not None:
            base, data, positions = chunk
            for at, end in zip(positions, [*positions[1:], walk.position - base], strict=True):
                found[bytes(decode_record(data[at:end]).body)] = base + end
        return found

    def is_behind(self, member: "Member") -> bool:
        """Return whether a master says that a slave is ahead of it."""
        node = member.broker
        if not member.up or node is None or node.process.dead or node.broker is None:
            return False
        role = node.broker.role
        return role is not None and "holds the log" in role.replication().advice

    def is_disturbed(self, slave: "Member") -> bool:
        """Return whether a slave can't tell its master how far its log goes."""
        cluster = self.cluster
        master = cluster.master(slave.group)
        for node in (slave.broker, slave.replicator, master.broker, master.replicator):
            if node is None or node.process.dead or node.process.paused:
                return True
        return (
            bool(cluster.network.cuts)
            or not slave.up
            or any(
                node is None or node.process.dead or node.process.paused
                for _, _, node in cluster.nameservers.values()
            )
        )

    def look(self) -> None:
        """Look at all slaves."""
        cluster = self.cluster
        for group in cluster.groups:
            if group not in self.open:
                self.look_at_master(cluster.master(group))
        for member in cluster.members.values():
            if member.up and member.number:
                self.look_at_leases(member)
                self.look_at_disk(member)
                if member.group in self.watched and member.group not in self.open:
                    self.look_at_log(member)
        cluster.scheduler.later(LOOK_S, self.look)

    def look_at_master(self, master: "Member") -> None:
        """Replace a master that a slave is ahead of by that slave, unless that was the master before."""
        page = master.page
        following = {slave.broker_id for slave, _ in page.slave_acks()} if page is not None else set()
        for slave in self.cluster.slaves(master.group):
            if slave.number in following:
                self.former.discard((slave.name, slave.lives))
        behind = page is not None and self.is_behind(master)
        looks = self.troubled[master.name] = self.troubled.get(master.name, 0) + 1 if behind else 0
        if looks >= PATIENCE and page is not None:
            cluster, group = self.cluster, master.group
            former = [slave for slave in cluster.slaves(group) if (slave.name, slave.lives) in self.former]
            if former:  # what it has more was given up when another one took its place
                self.empty(former[0], "it was the master, and went another way")
                self.troubled[master.name] = 0
                return
            if not any(slave.page and slave.page.written > page.written for slave in cluster.slaves(group)):
                return  # it does not know yet that the slave has another disk
            since = min(self.exchanged_at.get(slave.name, 0.0) for slave in cluster.slaves(group))
            self.open[group] = lost = Lost(master, {}, page.confirmed, since)
            self.watched.add(group)
            cluster.note(f"{master.name} has less than a slave of {group}")
            cluster.lose_power(master, None, disk=cluster.new_disk())
            self.take_over(lost, Fault(cluster.scheduler.now, "shorter", amount=BACK_S))

    def look_at_leases(self, slave: "Member") -> None:
        """Note when a slave's broker had its master's lease state."""
        cluster, node = self.cluster, slave.broker
        if node is None or node.broker is None or self.is_disturbed(slave):
            return
        if getattr(node.broker.role, "exchanged", False):
            self.exchanged_at[slave.name] = cluster.scheduler.now

    def look_at_disk(self, slave: "Member") -> None:
        """Note that a slave's log may lose something soon, or has just lost it: its disk refuses syncs."""
        page = slave.page
        if page is None:
            return
        opened = self.opened.get(slave.name), page.epoch
        self.opened[slave.name] = page.epoch
        if page.doubtful or opened[0] != opened[1] or any(one.fired < one.times for one in slave.disk.faults):
            self.loses(slave, all_of_it=False)

    def look_at_log(self, slave: "Member") -> None:
        """Give a slave whose log is another one an empty disk."""
        page = slave.page
        if page is None:
            return
        foreign = FOREIGN in page.trouble
        in_trouble = foreign or any(text in page.trouble for text in AHEAD)
        looks = self.troubled[slave.name] = self.troubled.get(slave.name, 0) + 1 if in_trouble else 0
        if looks >= (PATIENCE if foreign else LONG_PATIENCE):
            self.troubled[slave.name] = 0
            self.empty(slave, page.trouble)

    def empty(self, slave: "Member", why: str) -> None:
        """Give a slave an empty disk."""
        self.cluster.note(f"{slave.name} gets an empty disk: {why}")
        self.cluster.lose_power(slave, 0.5, disk=self.cluster.new_disk())
