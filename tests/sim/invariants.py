"""What must hold in a simulated cluster: after every fault and every half second, at answers, in the end.

    durable        the log below the page's `flushed` is on the medium, byte by byte
    prefix         a slave's log equals its master's as far as both have it, unless the slave says that it has
                   trouble; one that comes back with another log may need time to see that, but nothing is
                   appended meanwhile
    confirmed      the page's mark only grows while its disk lives and its epoch lasts, and slaves hold what
                   is below it (`confirmation.py`)
    error          no process has met an error that nobody caught
    acknowledged   at the moment of an answer OK the promise of the mode holds: the record is on the master's
                   medium (synchronous flush), and in a slave's log (synchronous replication), on its medium
                   where both are synchronous; where a majority commits, that many have it so
    rest           in the end all brokers serve, sends are taken, and the logs of all members end alike
    places         in the end each record is the one that its queue says
    ends           in the end the queues of all members go on at the same offsets, also those without messages
    expired, ...   what `retention.py` says of log files that expire
    deleted        what `lifecycle.py` says of a topic that is deleted
    later, ...     what `kinds.py` says of delayed, transactional, ordered and failing messages
    back, ...      what `positions.py` says of consumer offsets
    history        in the end no finding of `histories.py` stands against what any member has in its queues
    I9, I11, ...   what `state.py` says of leases and metadata of groups that elect their masters
    I1 to I12      what `committed.py` says of groups that elect their masters; prefix, confirmed and what
                   slaves hold is in that

A finding is a line for people; a run stops at the first. Where a person has to replace the master of a plan
that keeps it, the accounts of expiry, deletion and positions end with that, since metadata go to slaves a
moment later than they are answered; where something expires or is deleted, so does that of the history.
"""

from typing import NoReturn

from sim.clients import ReaderClient
from sim.cluster import GROUPS, LOG_FILE, ROOT, Cluster, Member
from sim.committed import Committed
from sim.confirmation import Confirmation
from sim.disk import File
from sim.plan import QUIET_S
from sim.positions import PositionChecks
from sim.retention import RetentionChecks
from sim.state import StateChecks
from sim.upkeep import TRANSIENT, Upkeep
from support.history.histories import Place, Sent
from whimbrel.store.codec import decode_record
from whimbrel.store.segment import segment_name
from whimbrel.store.shared_page import SharedPage

__all__ = ["Invariants", "Violation"]

ACK_WINDOW_S = 12.0  # what is acknowledged is flushed within 0.5 s; a delivery may be on its way for longer
DELIVERY_S = 4.0  # a delivery may be on its way for so long
LATE_S = QUIET_S + 12.0  # sends that begin later must be taken


class Violation(AssertionError):
    """Something that must not happen, has."""


class Invariants:
    """Looks at a cluster.

    Attributes:
        looks: how often each was checked, of those that are checked over and over.
        found: the first finding.
    """

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self.looks: dict[str, int] = {}
        self.found: Violation | None = None
        self.confirmation: Confirmation | None = None
        self.committed: Committed | None = None
        self.state: StateChecks | None = None
        if cluster.elections is None:
            self.confirmation = Confirmation(cluster, self.fail, self.looked)
        else:
            self.committed = Committed(cluster, cluster.elections, self.fail, self.looked)
            self.state = StateChecks(cluster, cluster.elections, self.fail, self.looked)
        cluster.after_step.append(self.step)
        cluster.on_ack.append(self.check_acknowledged)
        for topic, history in cluster.histories.items():
            if topic != TRANSIENT:  # acknowledgements are forgotten with their topic
                history.ack_window_s = ACK_WINDOW_S if cluster.elections is None else DELIVERY_S
        self.retention: RetentionChecks | None = None
        self.positions: PositionChecks | None = None
        if cluster.plan.keeps_master:
            self.retention = RetentionChecks(cluster, lambda member: member.page, self.fail)
            self.positions = PositionChecks(cluster, {TRANSIENT}, self.fail)
            for node in cluster.nodes:
                if isinstance(node, ReaderClient):
                    node.on_jump = self.check_jump

    @property
    def overtaken(self) -> bool:
        """Whether a slave has taken over where none was to."""
        return self.retention is not None and bool(self.cluster.takeovers.done)

    def fail(self, kind: str, text: str) -> NoReturn:
        """Stop the run.

        Raises:
            Violation: always.
        """
        error = Violation(f"{kind} at {self.cluster.scheduler.now:.3f}: {text}")
        self.found = self.found or error  # what is checked within production code may be caught there
        raise error

    def looked(self, kind: str) -> None:
        """Count a check."""
        self.looks[kind] = self.looks.get(kind, 0) + 1

    def step(self) -> None:
        """Check what must hold at any time."""
        if self.found is not None:
            raise self.found
        members = [member for member in self.cluster.members.values() if member.up]
        for member in members:
            page = member.page
            if page is None or not page.epoch:
                continue
            self.check_durable(member, page)
            self.check_confirmed(member, page)
        if self.committed is not None:
            self.committed.step()
        if self.state is not None:
            self.state.step()
        if self.confirmation is not None:
            for member in members:
                if member.number:
                    self.check_prefix(member)
            self.confirmation.step()
        self.check_processes()
        if self.retention is not None and self.positions is not None and not self.overtaken:
            self.retention.look()
            self.positions.look()

    def check_durable(self, member: Member, page: SharedPage) -> None:
        """What is flushed is on the medium."""
        disk = member.disk
        generation = (member.lives, disk.losses)
        start = member.seen.get("flushed", 0) if member.seen.get("generation") == generation else 0
        member.seen["generation"] = generation
        flushed = page.flushed
        self.looked("durable")
        position = max(start - LOG_FILE, page.begin) // LOG_FILE * LOG_FILE
        while position < flushed:
            path = ROOT / "commitlog" / segment_name(position)
            length = min(LOG_FILE, flushed - position)
            node = disk.find(path)
            durable = disk.durable(path)
            if isinstance(node, File):
                if durable is None:
                    self.fail(
                        "durable",
                        f"{member.name}: {path.name}, below flushed {flushed}, is not on the medium",
                    )
                if node.cache()[:length] != durable[:length]:
                    content = node.cache()
                    at = next(n for n in range(length) if content[n : n + 1] != durable[n : n + 1])
                    self.fail(
                        "durable",
                        f"{member.name}: flushed is {flushed}, the medium differs at {position + at}",
                    )
            position += LOG_FILE
        member.seen["flushed"] = flushed

    def check_acknowledged(self, sent: Sent) -> None:
        """What is answered OK is as safe as the mode says."""
        cluster, plan = self.cluster, self.cluster.plan
        if sent.place is None:
            return
        if self.committed is not None:
            self.committed.check_answered(sent)
            return
        topic, queue_id, offset = sent.place
        master = cluster.master(topic.partition("/")[0])
        node = master.broker
        if node is None or node.process.dead or node.broker is None:
            return
        role = node.broker.role
        if role is None:
            return
        units = role.store.queue_units(sent.topic, queue_id, offset, 1)
        if not units:
            return
        if any(taken.group == master.group and sent.began < taken.at for taken in cluster.takeovers.done):
            return  # the lost master may have answered it
        if self.retention is not None:
            self.retention.sent(sent, units[0][0])
        self.looked("acknowledged")
        end = units[0][0] + units[0][1]
        if plan.replication == "majority":
            self.check_majority(sent, master.group, end)
            return
        if plan.flush == "sync" and not self.holds(master, end, durable=True):
            self.fail("acknowledged", f"{sent.id!r} ends at {end}, which is not on {master.name}'s medium")
        slaves = cluster.slaves(master.group)
        if plan.replication == "sync" and not any(
            self.holds(slave, end, durable=plan.flush == "sync") or slave.replaced_at > sent.began
            for slave in slaves
        ):
            self.fail("acknowledged", f"{sent.id!r} ends at {end}, which no slave holds")

    def check_majority(self, sent: Sent, group: str, end: int) -> None:
        """More than half of a group's members hold what was answered OK."""
        members = self.cluster.group(group)
        durable = self.cluster.plan.flush == "sync"
        held = sum(
            self.holds(member, end, durable=durable) or member.replaced_at > sent.began for member in members
        )
        if held <= len(members) // 2:
            self.fail("acknowledged", f"{sent.id!r} ends at {end}, which {held} of {len(members)} hold")

    def holds(self, member: Member, end: int, *, durable: bool) -> bool:
        """Return whether a member has the log up to an offset.

        Where its page does not say so, by the record's last bytes: they are not all zero.
        """
        page = member.page
        if page is not None and page.epoch and not durable:
            return page.written >= end
        path = ROOT / "commitlog" / segment_name((end - 1) // LOG_FILE * LOG_FILE)
        content = member.disk.durable(path) if durable else None
        if not durable:
            node = member.disk.find(path)
            content = node.cache() if isinstance(node, File) else None
        at = (end - 1) % LOG_FILE
        return content is not None and content[max(at - 8, 0) : at + 1].strip(b"\0") != b""

    def check_confirmed(self, member: Member, page: SharedPage) -> None:
        """It only grows; what is beyond the log's end was cut, and the broker is about to see that."""
        self.looked("confirmed")
        confirmed = min(page.confirmed, page.written)
        key = (member.lives, member.disk.losses, page.epoch)
        before = member.seen.get("confirmed", (key, 0))
        if before[0] == key and confirmed < before[1]:
            self.fail("confirmed", f"{member.name}: from {before[1]} back to {confirmed}")
        member.seen["confirmed"] = (key, confirmed)

    def check_prefix(self, slave: Member) -> None:
        """A slave's log is a part of its master's, or known to differ."""
        master = self.cluster.master(slave.group)
        if not master.up:
            return
        ours, theirs = slave.page, master.page
        if ours is None or theirs is None or not ours.epoch or not theirs.epoch:
            return
        self.looked("prefix")
        # Of what a failed sync covered, the cache may have let go before it is written again.
        known = theirs.flushed if theirs.doubtful else theirs.written
        begin, end = max(ours.begin, theirs.begin), min(ours.written, known)
        position = begin
        while position < end:
            path = ROOT / "commitlog" / segment_name(position // LOG_FILE * LOG_FILE)
            at = position % LOG_FILE
            length = min(LOG_FILE - at, end - position)
            one, other = slave.disk.find(path), master.disk.find(path)
            if isinstance(one, File) and isinstance(other, File):
                mine, its = one.cache()[at : at + length], other.cache()[at : at + length]
                if (
                    mine != its
                    and not ours.trouble
                    and ours.written > slave.seen.setdefault("other", ours.written)
                ):
                    where = next(n for n in range(length) if mine[n : n + 1] != its[n : n + 1])
                    self.fail(
                        "prefix",
                        f"{slave.name} differs from {master.name} at {position + where}, and says nothing",
                    )
            position += length

    def check_processes(self) -> None:
        """No process has met an error that it did not expect."""
        for process in self.cluster.processes:
            if process.failures:
                self.fail("error", f"{process.name}: {process.failures[0]}")

    # In the end

    def finish(self) -> None:
        """Check what must hold in the end."""
        cluster = self.cluster
        self.step()
        if self.committed is not None and cluster.elections is not None:
            self.committed.forget_lost()
            self.looks["changes of voters"] = cluster.elections.changes
        for member in cluster.members.values():
            if member.broker is None or member.broker.process.dead or member.broker.broker is None:
                self.fail("rest", f"{member.name} has no broker: {member.broker and member.broker.exit}")
        if not any(sent.began > LATE_S for sent in cluster.history.acknowledged):
            self.fail("rest", f"no send that began after {LATE_S:.0f} was taken")
        for group in cluster.groups:
            self.check_ends(group)
            self.check_queue_ends(group)
        if self.overtaken:
            self.looked("overtaken")
            if cluster.plan.upkeep != Upkeep():
                return
        elif self.retention is not None and self.positions is not None:
            self.retention.finish()
            self.positions.finish()
            self.looks |= {
                "expired files": self.retention.removed,
                "emptied slaves": self.retention.emptied,
                "positions": self.positions.looks,
                "deletions": len(cluster.admin.deletions) if cluster.admin is not None else 0,
            }
        cluster.kinds.finish(self.fail)
        if cluster.classic is not None:
            cluster.classic.finish(self.fail)
            self.looks["classic commits"] = cluster.classic.commits
        self.looks |= {f"of {topic}": count for topic, count in cluster.kinds.looks.items()}
        self.looks["dead producers"] = cluster.kinds.deaths
        for topic in cluster.histories:
            held = {member.name: self.read_all(member, topic) for member in cluster.members.values()}
            for member in cluster.members.values():
                others = [cluster.master(group) for group in cluster.groups if group != member.group]
                complete = [entry for one in (member, *others) for entry in held[one.name]]
                self.check_history(member, topic, complete)

    def check_ends(self, group: str) -> None:
        """The logs of a group's members end alike."""
        pages = {member.name: member.page for member in self.cluster.group(group)}
        ends = {name: page.written for name, page in pages.items() if page is not None}
        if len(set(ends.values())) != 1:
            self.fail("rest", f"the logs end at {ends}")

    def check_history(self, member: Member, topic: str, complete: list[tuple[Place, bytes]]) -> None:
        """Nothing stands against what a member, and the other groups' masters, have of a topic."""
        cluster = self.cluster
        history, admin = cluster.histories[topic], cluster.admin
        gone = self.retention.gone(member, history) if self.retention is not None else set()
        gone |= cluster.kinds.may_be_missing(topic)
        if topic == TRANSIENT and admin is not None:
            admin.check(history, member.name, complete, self.fail)
            gone |= admin.may_be_gone(history)
        master = cluster.master(member.group)
        groups = [GROUPS[topic]] if topic in GROUPS and member is master else []
        findings = history.check(complete=complete, groups=groups, gone=gone)
        if findings:
            self.fail(
                "history",
                f"as {member.name} has it: {'; '.join(map(str, findings[:5]))} ({len(findings)} in all)",
            )

    def check_jump(self, topic: str, queue_id: int, offset: int) -> None:
        """A queue begins further on only where what was there has expired."""
        self.looked("jumps")
        if self.retention is not None and not self.retention.may_begin(topic, queue_id, offset):
            self.fail(
                "expired", f"{topic}/{queue_id} begins at {offset}, and the message before should be there"
            )

    def check_queue_ends(self, group: str) -> None:
        """Queues of a group's members go on at the same offsets."""
        ends = {member.name: self.queue_ends(member) for member in self.cluster.group(group)}
        first, *others = ends.items()
        for name, found in others:
            differing = {key: (first[1].get(key), found.get(key)) for key in first[1] | found}
            differing = {key: both for key, both in differing.items() if both[0] != both[1]}
            if differing:
                self.fail("ends", f"queues of {first[0]} and {name} go on at {differing}")

    def queue_ends(self, member: Member) -> dict[tuple[str, int], int]:
        """Return where a member's queues of the plan's topics go on; 0 for none is left out."""
        assert member.broker is not None and member.broker.broker is not None
        role = member.broker.broker.role
        if role is None:
            self.fail("rest", f"{member.name} has no role")
        deleted, given = role.store.queues.deleted_offsets, role.store.queues.given_offsets
        keys = {(queue.topic, queue.queue_id) for queue in role.store.queues}
        keys |= {(topic, number) for topic, queues in deleted.by_topic.items() for number in queues}
        found = {
            (topic, number): max(
                role.store.queue_range(topic, number)[1], deleted.get(topic, number), given.get(topic, number)
            )
            for topic, number in keys
            if topic in self.cluster.histories
        }
        return {key: end for key, end in found.items() if end}

    def read_all(self, member: Member, topic: str) -> list[tuple[Place, bytes]]:
        """Return all messages that a member's store delivers from a topic's queues."""
        assert member.broker is not None and member.broker.broker is not None
        role = member.broker.broker.role
        if role is None:
            self.fail("rest", f"{member.name} has no role")
        store = role.store
        found: list[tuple[Place, bytes]] = []
        with member.broker.process.running():
            for queue_id in sorted(store.topics_on_disk().get(topic, ())):
                low, high = store.queue_range(topic, queue_id)
                for offset, (physical, size, _) in enumerate(
                    store.queue_units(topic, queue_id, low, high - low), low
                ):
                    if physical < store.min_offset:
                        continue  # it has expired since the last round
                    message = decode_record(store.read(physical, size))
                    place: Place = (f"{member.group}/{topic}", queue_id, offset)
                    if message.queue_offset != offset:
                        self.fail(
                            "places", f"{member.name}: the record at {place} says {message.queue_offset}"
                        )
                    found.append((place, bytes(message.body)))
        return found
