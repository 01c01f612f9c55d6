"""What must hold in a group that elects its master, by the numbers of the design of failover.

The truth is what was committed: whenever a leader moves its commit offset, the bytes up to there are taken
from its log, and never change; unless an operator accepts that something is lost (`accepted`).

    I1    an epoch is begun once, by one member
    I2    the log of who begins an epoch holds all that was committed; so does that of who commits
    I3    what a member's queues show is what was committed at that place, and nothing else
    I4    what is committed is held at that moment by a majority of those that vote under its leader, with the
          stores that they vote with, on their medium where flush is synchronous;
          a send that is answered OK was committed at the place that its receipt names
    I5    no member's log loses a committed byte that it had, but by a loss of power with asynchronous flush,
          with its disk, or where an operator has it emptied
    I6    a member's mark of what is committed never goes back while its machine has power, and its disk room;
          with the same exceptions
    I7    logs with the same epoch from the same offset on have the same bytes up to where it ends in one
    I8    in the committed log a queue's offsets have no gaps and no repeats
    I10   bytes that were cut off a log are in whimbrel/cut
    I12   within LEADER_S after all is healed a leader takes sends

I1, I2, I4 and I10 are checked when it happens, the others after every fault and every half second. `state.py`
has I9 and I11, which are about leases and metadata.

**A loss that was accepted** is what the log of the member lacks that is to lead then, as it is when the
coordinator's record says so. From then on the truth is what it has, and nothing of that may be lost (R14).
Sends that are lost by then become ones of unknown outcome. Members that vote no longer may show it, and say
that it is committed, for as long as they have it.
"""

from bisect import bisect_right
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from sim.cluster import LOG_FILE, ROOT, Cluster, Member
from sim.disk import Directory, File
from sim.elected import Elections
from sim.plan import QUIET_S
from support.history.histories import Sent
from whimbrel.broker.elections.actions import State
from whimbrel.errors import WhimbrelError
from whimbrel.ha.epochs import Epochs, common_epoch, consistent_point, decode_epochs
from whimbrel.model.group_record import GroupRecord, majority
from whimbrel.store.codec import decode_record
from whimbrel.store.cut import directory_range
from whimbrel.store.epoch_file import EPOCH_FILE
from whimbrel.store.segment import segment_name
from whimbrel.store.walk import Walk

__all__ = ["Committed"]

LEADER_S = 10.0
CUT_OFF_S = 25.0  # a member that lost its power was counted by connections that nobody had missed for so long
UNDER_WAY_S = 3.0  # a report of a disk that was replaced meanwhile, over a slow network at most
NOTED_S = 1.0  # between two notes that acknowledgements may be forgotten
Queue = tuple[str, int]
Fail = Callable[[str, str], None]


@dataclass
class Entry:
    """A committed record: where it is in the log, and its text."""

    offset: int
    size: int
    body: bytes


@dataclass
class Seen:
    """What is remembered of a member.

    Attributes:
        held: how much of the committed log it had at the last look.
        confirmed: its mark then.
        role, verified: by queue, how many entries of that role's queues were compared.
        cut: what its log had where it is about to be cut, by point and end.
    """

    generation: tuple[int, int] = (0, 0)
    held: int = 0
    confirmed: int = 0
    role: Any = None
    verified: dict[Queue, int] = field(default_factory=dict)
    cut: dict[tuple[int, int], tuple[tuple[int, int], bytes]] = field(default_factory=dict)


class Committed:
    """Looks at the group.

    Attributes:
        log: the committed bytes, from 0 on.
        entries: the committed records, by queue.
        upto: by epoch, up to where its leader has committed what nobody had before.
        ends: of the committed records.
        lost: by queue, what was given up, as an operator has accepted.
        excused: members whose logs may hold it.
        emptying: members whose stores are being emptied.
    """

    def __init__(
        self, cluster: Cluster, elections: Elections, fail: Fail, looked: Callable[[str], None]
    ) -> None:
        self.cluster, self.elections, self.fail, self.looked = cluster, elections, fail, looked
        self.log = bytearray()
        self.upto: dict[int, int] = {}
        self.walked = 0
        self.ends: list[int] = []
        self.entries: dict[Queue, list[Entry]] = {}
        self.seen: dict[str, Seen] = {name: Seen() for name in cluster.members}
        self.same: dict[tuple[str, str], tuple[object, int]] = {}  # by pair: what was compared, how far
        self.lost_power: dict[str, float] = {}
        self.led_at = -1.0  # when a leader last took sends
        self.noted_at = 0.0
        self.lost: dict[Queue, list[Entry]] = {}
        self.excused: set[str] = set()
        self.emptying: set[str] = set()
        elections.watchers.append(self)

    # When it happens

    def stands(self, member: Member, state: State) -> None:
        """Nothing."""

    def leads(self, member: Member, epoch: int, end: int) -> None:
        """I1 and I2."""
        self.looked("I1")
        now = self.cluster.scheduler.now
        led = self.elections.epochs[epoch]
        if (led.name, led.at) != (member.name, now):
            self.fail("I1", f"{member.name} begins epoch {epoch}, which {led.name} began at {led.at:.3f}")
        self.check_leader(member, epoch, end)

    def check_leader(self, member: Member, epoch: int, end: int) -> None:
        """I2: a leader's log, which ends there, holds all that was committed in earlier epochs."""
        self.looked("I2")
        committed = max((upto for earlier, upto in self.upto.items() if earlier < epoch), default=0)
        if (held := min(end, self.held(member, durable=False))) < committed:
            self.fail(
                "I2", f"{member.name} leads epoch {epoch} with {held} of {committed} that are committed"
            )

    def committed(self, member: Member, offset: int) -> None:
        """I2, I4 and I8, and the truth grows."""
        before = len(self.log)
        if offset > before:
            self.log += self.read(member, before, offset)
            self.index()
            self.check_majority(member, before)
            page = member.page
            assert page is not None
            self.upto[page.leader_epoch] = offset
        self.looked("commits")
        end = min(offset, before)
        begin = max(0, end - LOG_FILE)
        if self.read(member, begin, end) != self.log[begin:end]:
            self.fail("I2", f"{member.name} commits up to {offset}, and its log differs below {end}")

    def check_majority(self, leader: Member, begin: int) -> None:
        """I4: what has just been committed, from there on, is held by a majority."""
        self.looked("I4")
        durable = self.cluster.plan.flush == "sync"
        end, now = len(self.log), self.cluster.scheduler.now
        elector = self.elections.elector(leader)
        assert elector is not None and elector.takeover.term is not None
        voters = elector.takeover.term.voters
        holders = [
            member.name
            for member in self.elections.group
            if (member.number, self.elections.seat(member)) in voters  # another disk has no vote (R9a)
            if self.read(member, begin, end, durable=durable) == self.log[begin:end]
            or (not durable and now - self.lost_power.get(member.name, -CUT_OFF_S) < CUT_OFF_S)
        ]
        # What a disk that has just been replaced held is reported still: the report was on its way.
        holders += [
            member.name
            for member in self.elections.group
            if member.name not in holders and member.lives and now - member.replaced_at < UNDER_WAY_S
        ]
        if len(holders) < majority(len(voters)):
            self.fail("I4", f"{leader.name} commits [{begin}, {end}), which only {holders} hold")

    def index(self) -> None:
        """I8: take the records of what was committed since the last time."""
        walk = Walk(self.piece, self.walked, len(self.log), LOG_FILE)
        while (chunk := walk.next_chunk()) is not None:
            base, data, positions = chunk
            for at, end in zip(positions, [*positions[1:], walk.position - base], strict=True):
                record = decode_record(data[at:end])
                queue = self.entries.setdefault((record.topic, record.queue_id), [])
                self.looked("I8")
                if record.queue_offset != len(queue):
                    self.fail(
                        "I8",
                        f"the record at {base + at} is number {record.queue_offset} of {record.topic}/"
                        f"{record.queue_id}, which goes on with {len(queue)}",
                    )
                queue.append(Entry(base + at, record.size, bytes(record.body)))
                self.ends.append(base + end)
        if walk.position != len(self.log):
            self.fail("I8", f"{len(self.log)} is committed, and {walk.position} is no record: {walk.fault}")
        self.walked = walk.position

    def border(self, offset: int) -> int:
        """Return where the last committed record ends that ends at an offset, or before."""
        at = bisect_right(self.ends, offset)
        return self.ends[at - 1] if at else 0

    def piece(self, offset: int, length: int) -> bytes:
        """Return committed bytes, of one file."""
        return bytes(self.log[offset : min(offset + length, offset - offset % LOG_FILE + LOG_FILE)])

    def cuts(self, member: Member, point: int, end: int) -> None:
        """I5, and note what is to be kept."""
        self.looked("cuts")
        held = self.held(member, durable=False)
        if point < self.border(held):  # two records may begin alike
            self.fail("I5", f"{member.name} cuts at {point}, and holds what is committed up to {held}")
        self.seen[member.name].cut[point, end] = self.generation(member), self.read(member, point, end)

    def has_cut(self, member: Member, point: int, end: int) -> None:
        """I10: what was cut is kept."""
        kept = self.seen[member.name].cut.pop((point, end), None)
        if kept is None or kept[0] != self.generation(member):
            return
        self.looked("I10")
        directory = ROOT / "whimbrel" / "cut"
        node = member.disk.find(directory)
        names = list(node.entries) if isinstance(node, Directory) else []
        for name in names:
            found = directory_range(name)
            if found is not None and found[1:] == (point, end) and self.keeps(member, name, point, kept[1]):
                return
        if kept[1].strip(b"\0"):
            self.fail("I10", f"{member.name} has cut [{point}, {end}), and does not keep it: {names}")

    def keeps(self, member: Member, name: str, point: int, content: bytes) -> bool:
        """Return whether a directory has bytes that were cut on the medium, but for zeros at a file's end."""
        position, end = point, point + len(content)
        while position < end:
            upto = min(end, position - position % LOG_FILE + LOG_FILE)
            path = ROOT / "whimbrel" / "cut" / name / segment_name(position)
            saved = member.disk.durable(path) or b""
            if saved.rstrip(b"\0") != content[position - point : upto - point].rstrip(b"\0"):
                return False
            position = upto
        return True

    def serves(self, member: Member, role: Any) -> None:
        """Nothing."""

    def accepted(self, record: GroupRecord) -> None:
        """Give up what the log of who is to lead does not have."""
        leader = next(member for member in self.elections.group if member.number == record.leader)
        end = self.border(self.held(leader, durable=False))
        self.looked("accepted losses")
        voters = dict(record.voters)
        self.excused |= {one.name for one in self.elections.group if one.number not in voters}
        self.cluster.history.losses.append(self.cluster.scheduler.now)
        for queue, known in self.entries.items():
            gone = [entry for entry in known if entry.offset >= end]
            self.lost.setdefault(queue, []).extend(gone)
            for _ in gone:
                self.looked("lost as accepted")
            del known[len(known) - len(gone) :]
        self.cluster.note(f"[{end}, {len(self.log)}) of what was committed is given up")
        del self.log[end:], self.ends[bisect_right(self.ends, end) :]
        self.walked = end
        self.upto = {epoch: min(upto, end) for epoch, upto in self.upto.items()}
        for seen in self.seen.values():
            seen.held, seen.confirmed = min(seen.held, end), min(seen.confirmed, end)
        self.forget_lost()

    def empties(self, member: Member) -> None:
        """Look at nothing that it loses by that."""
        self.emptying.add(member.name)

    def has_emptied(self, member: Member) -> None:
        """Look from here on."""
        self.looked("emptied stores")
        self.emptying.discard(member.name)
        self.seen[member.name].held = self.seen[member.name].confirmed = 0

    def forget_lost(self) -> None:
        """Have the history know that what was given up may be anywhere, or nowhere."""
        for (topic, _), entries in self.lost.items():
            sends = self.cluster.histories[topic].sends if topic in self.cluster.histories else {}
            for entry in entries:
                sent = sends.get(entry.body)
                if sent is not None:
                    sent.outcome, sent.tries_unknown, sent.place = "unknown", True, None

    def has_all(self, member: Member) -> bool:
        """Return whether a member's log is a part of what is committed."""
        page = member.page
        if page is None or not page.epoch or page.confirmed > page.written:
            return False
        return self.held(member, durable=False) >= page.written

    # After every fault, and every half second

    def step(self) -> None:
        """Look at all members."""
        members = self.elections.group
        for member in members:
            self.note_power(member)
            if member.name in self.emptying:
                continue
            self.check_held(member)
            if member.name in self.excused and member.up and self.has_all(member):
                self.excused.remove(member.name)
            if member.up and member.name not in self.excused:
                self.check_mark(member)
                self.check_queues(member)
        for number, member in enumerate(members):
            for other in members[number + 1 :]:
                self.check_epochs(member, other)
        self.look_at_leaders()

    def note_power(self, member: Member) -> None:
        """Notice a loss of power, or of a disk."""
        seen, generation = self.seen[member.name], self.generation(member)
        if seen.generation != generation:
            self.lost_power[member.name] = self.cluster.scheduler.now
            if seen.generation[0] != generation[0] or self.cluster.plan.flush == "async":
                seen.held = 0
            if seen.generation[0] != generation[0]:
                self.emptying.discard(member.name)
            seen.confirmed = 0
            seen.generation = generation

    def generation(self, member: Member) -> tuple[int, int]:
        """Return what is another one after a loss of power, or of a disk."""
        return member.lives, member.disk.losses

    def refused(self, member: Member) -> bool:
        """Return whether a disk has refused a sync: its cache may let go of what that covered."""
        return member.disk.has_refused

    def check_held(self, member: Member) -> None:
        """I5: what a member had of the committed log it has; a cache may lose what a disk refused to sync."""
        if self.cluster.plan.flush == "async" and self.refused(member):
            return
        self.looked("I5")
        seen = self.seen[member.name]
        held = self.border(self.held(member, durable=self.cluster.plan.flush == "sync"))
        if held < seen.held:
            self.fail("I5", f"{member.name} had what is committed up to {seen.held}, and has {held} of it")
        seen.held = held

    def check_mark(self, member: Member) -> None:
        """I6, and no more is said to be committed than is."""
        page = member.page
        if page is None or not page.epoch:
            return
        self.looked("I6")
        seen, confirmed = self.seen[member.name], min(page.confirmed, page.written)
        full = member.disk.capacity is not None  # queues that find no room end before what is committed
        if confirmed < seen.confirmed and not full and not self.refused(member):
            self.fail("I6", f"{member.name}: from {seen.confirmed} back to {confirmed}")
        if page.confirmed > len(self.log):
            self.fail("I6", f"{member.name} says that {page.confirmed} is committed, {len(self.log)} is")
        seen.confirmed = confirmed

    def check_queues(self, member: Member) -> None:
        """I3: what a member shows was committed, and is the same to all, for ever."""
        node = member.broker
        role = None if node is None or node.process.dead or node.broker is None else node.broker.role
        if node is None or role is None or not role.serving:
            return
        seen = self.seen[member.name]
        if seen.role is not role:
            seen.role, seen.verified = role, {}
        store = role.store
        self.looked("I3")
        with node.process.running():
            for queue in store.queues:
                key = queue.topic, queue.queue_id
                first = seen.verified.get(key, store.queue_range(*key)[0])
                end = store.queue_range(*key)[1]
                known = self.entries.get(key, [])
                if end > len(known):
                    self.fail("I3", f"{member.name} shows {end} of {key}, {len(known)} are committed")
                for number, unit in enumerate(store.queue_units(*key, first, end - first), first):
                    entry = known[number]
                    if (unit[0], unit[1]) != (entry.offset, entry.size):
                        self.fail("I3", f"{member.name} shows {unit[:2]} as {key} {number}; it is {entry}")
                seen.verified[key] = max(first, end)

    def check_epochs(self, one: Member, other: Member) -> None:
        """I7: where the lists of two logs say that they are the same, they are."""
        pages = one.page if one.up else None, other.page if other.up else None
        if pages[0] is None or pages[1] is None or not pages[0].epoch or not pages[1].epoch:
            return
        mine, theirs = self.epochs(one), self.epochs(other)
        if common_epoch(mine, theirs) is None:
            return
        point = consistent_point(mine, pages[0].written, theirs, pages[1].written)
        assert point is not None
        self.looked("I7")
        key = mine, theirs, pages[0].epoch, pages[1].epoch, self.generation(one), self.generation(other)
        known, begin = self.same.get((one.name, other.name), (None, 0))
        begin = begin if known == key else 0
        if pages[0].doubtful or pages[1].doubtful:
            return  # of what a failed sync covered, the cache may have let go before it is written again
        if self.read(one, begin, point) != self.read(other, begin, point):
            self.fail("I7", f"{one.name} and {other.name} differ in [{begin}, {point}): {mine}, {theirs}")
        self.same[one.name, other.name] = key, point

    def epochs(self, member: Member) -> Epochs:
        """Return a member's list of epochs."""
        node = member.disk.find(ROOT / EPOCH_FILE)
        try:
            return decode_epochs(node.cache()) if isinstance(node, File) and node.size else ()
        except WhimbrelError as error:
            self.fail("I7", f"{member.name}: {error}")
            return ()

    def look_at_leaders(self) -> None:
        """I12, and note when two lead: the older one may deliver what was acknowledged to the newer."""
        now, leading = self.cluster.scheduler.now, 0
        for member in self.elections.group:
            elector, page = self.elections.elector(member), member.page
            if elector is not None and elector.machine.state is State.LEADING:
                leading += 1
                if page is not None and page.writable:
                    self.led_at = now
        if leading > 1 and now - self.noted_at > NOTED_S:
            self.noted_at = now
            self.cluster.history.takeovers.append(now)
        if now > QUIET_S + LEADER_S and self.led_at < QUIET_S:
            states = {
                member.name: elector.journal.logged if elector is not None else "down"
                for member in self.elections.group
                for elector in [self.elections.elector(member)]
            }
            self.fail("I12", f"no leader takes sends {LEADER_S:.0f} s after all was healed: {states}")

    # At an answer

    def check_answered(self, sent: Sent) -> None:
        """I4: what was answered OK was committed where its receipt says."""
        assert sent.place is not None
        topic, queue_id, offset = sent.place
        given_up = self.lost.get((topic.partition("/")[2], queue_id), [])
        if any(entry.body == sent.id for entry in given_up):
            return
        self.looked("answers")
        known = self.entries.get((topic.partition("/")[2], queue_id), [])
        if offset >= len(known):
            self.fail("I4", f"{sent.id!r} is answered as {sent.place}, of which {len(known)} are committed")
        if known[offset].body != sent.id:
            self.fail("I4", f"{sent.id!r} is answered as {sent.place}, which is {known[offset].body!r}")

    # The logs

    def held(self, member: Member, *, durable: bool) -> int:
        """Return how much of the committed log a member has: on its medium, or as processes see it."""
        position = 0
        while position < len(self.log):
            want = self.log[position : position + LOG_FILE]
            have = self.read(member, position, position + len(want), durable=durable)
            if have != want:
                have = have.ljust(len(want), b"\0")
                return position + next((at for at in range(len(want)) if have[at] != want[at]), len(want))
            position += len(want)
        return position

    def read(self, member: Member, begin: int, end: int, *, durable: bool = False) -> bytes:
        """Return bytes of a member's log, fewer where its files end."""
        found = []
        position = begin
        while position < end:
            start = position - position % LOG_FILE
            path = ROOT / "commitlog" / segment_name(start)
            upto = min(end, start + LOG_FILE)
            if durable:
                content = member.disk.durable(path) or b""
            else:
                node = member.disk.find(path)
                content = node.cache() if isinstance(node, File) else b""
            piece = content[position - start : upto - start]
            found.append(piece)
            if len(piece) < upto - position:
                break
            position = upto
        return b"".join(found)
