"""One member in a random history: what it does with messages and timers, as the design says, rule by rule.

A member has a disk (seat, log, epoch list, promise, vote), which outlives it, and all else, which does
not. It speaks with others by `World.send`, with the coordinator's store by `World.read` and `World.swap`,
and counts on neither: each message may be lost, late, doubled or out of order. Where a message came from
is its first argument.

A leader is two processes: the replicator answers handshakes and writes what followers report into cells;
the broker looks at the cells, and publishes a commit offset that follows from its look a little later.
"""

from typing import TYPE_CHECKING, Final, NamedTuple

from models.group import NOBODY, Voters
from models.logs import Epochs, Finding, adopt, consistent_point, last_epoch, majority, seals

if TYPE_CHECKING:
    from models.world import World

__all__ = ["FOLLOWING", "LEADING", "SEALING", "Cell", "Member", "Record", "Stream"]

FOLLOWING: Final = "following"
SEALING: Final = "sealing"
LEADING: Final = "leading"

TICK_S: Final = 0.3  # plus up to 0.2
SILENT_S: Final = 1.2  # plus up to 1.5: after so much without a leader a member stands for election
SEALING_S_MAX: Final = 2.0  # then a candidate gives up
LOOK_S_MAX: Final = 0.01  # how late a broker looks at a cell, and how late it publishes what it saw
ENTRIES_PER_FRAME_MAX: Final = 4


class Record(NamedTuple):
    """The group's record in the store; `prefer` is whom others let go first after a resignation."""

    epoch: int
    leader: int
    prefer: int
    voters: Voters
    prior: Voters


class Cell(NamedTuple):
    """What a replicator wrote of a follower's last report."""

    link: int
    seat: int
    end: int
    adopted: int


class Stream(NamedTuple):
    """A follower's connection, after its handshake."""

    leader: int
    epoch: int
    link: int


class Member:
    """A member of the group."""

    def __init__(self, world: "World", at: int) -> None:
        self.world = world
        self.at = at
        # On disk.
        self.seat = at
        self.log: list[int] = []
        self.epochs: Epochs = ()
        self.promised = 0
        self.promised_to = NOBODY
        self.votes = True
        self.synced = 0  # entries that a power cut leaves
        self.told = 0  # up to where it shows entries
        # In memory.
        self.up = False
        self.life = 0  # how often it started or stopped: what belongs to an earlier life has no effect
        self.boot()

    @property
    def position(self) -> tuple[int, int]:
        """How far its log goes: last epoch and end."""
        return last_epoch(self.epochs), len(self.log)

    # Life

    def boot(self) -> None:
        """Start, with nothing but the disk."""
        self.up = True
        self.life += 1
        self.role = FOLLOWING
        self.epoch = 0
        self.start = 0
        self.commit = 0
        self.record = self.world.record
        self.revision = 0
        self.seals: dict[int, tuple[int, int, int]] = {}
        self.since = 0.0
        self.heard = self.world.now
        self.heard_epoch = 0
        self.stream: Stream | None = None
        self.asking = 0  # the connection whose handshake has no answer yet
        self.source: Epochs = ()  # the list of the leader that it follows
        self.answers: dict[int, tuple[Epochs, int]] = {}  # the first ones: repeated only where a rule is off
        self.links: dict[int, int] = {}
        self.cells: dict[int, Cell] = {}
        self.told_links: dict[int, int] = {}
        self.looking = False
        self.waiting: dict[int, int] = {}  # position behind an entry: entry that a client waits for
        self.world.after(2 * self.world.random(), self.tick, self)
        if "R1" in self.world.off and self.world.record.leader == self.at:
            self.record, self.revision = self.world.record, self.world.revision
            self.lead(self.record.epoch)

    def stop(self) -> None:
        """End; what a rule has written is forgotten as well where that rule is off."""
        off = self.world.off
        self.up = False
        self.life += 1
        if self.epochs:
            own = self.world.led.get(self.epochs[-1][0]) == self.at
            if ("R5" if own else "R6") in off:
                self.epochs = self.epochs[:-1]
        if "R3" in off:
            self.promised, self.promised_to = last_epoch(self.epochs), NOBODY

    def lose_power(self, kept: int) -> None:
        """End by a power cut that leaves so many entries."""
        if kept < len(self.log):
            del self.log[kept:]
            self.epochs = tuple(entry for entry in self.epochs if entry[1] <= kept)
            self.told = min(self.told, kept)
        self.stop()
        if "R9" not in self.world.off and self.world.plan.flush == "async":
            self.votes = False

    def replace_disk(self, seat: int) -> None:
        """Have an empty disk; it has the old one's seat only where a rule is off."""
        off = self.world.off
        self.votes = "R9a'" not in off
        if not off & {"R9a", "R9a'"}:
            self.seat = seat
        self.log, self.epochs, self.synced, self.told = [], (), 0, 0
        self.promised, self.promised_to = 0, NOBODY

    def tick(self) -> None:
        """Do what is due by time."""
        world = self.world
        world.after(TICK_S + 0.2 * world.random(), self.tick, self)
        if world.plan.flush == "sync" or world.random() < 0.2:
            self.synced = len(self.log)
        if self.role == LEADING:
            for other in world.members:
                if other.at != self.at:
                    world.send(self.at, other.at, Member.on_hello, self.epoch)
            self.consider_change()
            if world.random() < 0.5:
                world.read(self, self.saw)
        elif self.role == SEALING:
            self.ask_seals()
            if world.now - self.since > SEALING_S_MAX:
                self.role, self.heard = FOLLOWING, world.now
        elif self.votes and world.now - self.heard > SILENT_S + 1.5 * world.random():
            world.read(self, self.stand)

    # Elections

    def stand(self, record: Record, revision: int) -> None:
        """Stand for election, as the store has told its record."""
        world = self.world
        electable = record.voters if "R10f" in world.off else (*record.voters, *record.prior)
        if self.role != FOLLOWING or not self.votes or (self.at, self.seat) not in electable:
            return
        if record.prefer not in (NOBODY, self.at) and world.random() < 0.7:
            self.heard = world.now
            return
        epoch = max(record.epoch, self.promised, self.heard_epoch) + 1
        prior = () if "R10c" in world.off else record.prior
        world.swap(self, revision, Record(epoch, self.at, NOBODY, record.voters, prior), self.swapped)

    def swapped(self, record: Record, revision: int) -> None:
        """Gather seals: the record names this member in a new epoch."""
        if self.role != FOLLOWING or record.epoch <= self.promised:
            return
        self.record, self.revision = record, revision
        self.close()
        self.role, self.epoch, self.since = SEALING, record.epoch, self.world.now
        self.promised, self.promised_to = record.epoch, self.at
        self.seals = {self.at: (self.seat, *self.position)}
        self.ask_seals()

    def asked(self) -> set[int]:
        """Return whom an election needs: voters, and prior ones."""
        return {member for member, _ in (*self.record.voters, *self.record.prior)}

    def ask_seals(self) -> None:
        """Ask those voters for seals that have given none, and look whether there are enough."""
        for other in sorted(self.asked() - {*self.seals}):
            self.world.send(self.at, other, Member.on_seal, self.epoch)
        self.look_at_seals()

    def on_seal(self, candidate: int, epoch: int) -> None:
        """Promise to take nothing from lower epochs, and say how far the log goes."""
        off = self.world.off
        other = self.promised_to not in (candidate, NOBODY) and "R3b" not in off
        if epoch < self.promised or (epoch == self.promised and other):
            self.world.send(self.at, candidate, Member.on_higher, self.promised)
            return
        if self.role != FOLLOWING:
            if epoch <= self.epoch:
                return
            self.step_down()
        elif epoch == self.promised and (self.stream or self.asking) and "R3c" not in off:
            if self.promised_to == candidate:
                return
        self.promise(epoch, candidate)
        self.heard = self.world.now
        if self.votes:
            self.world.send(self.at, candidate, Member.on_sealed, epoch, self.seat, *self.position)

    def promise(self, epoch: int, candidate: int) -> None:
        """Write a promise; streams of lower epochs end."""
        if "R3a" not in self.world.off or epoch == self.promised:
            self.close()
        self.promised, self.promised_to = epoch, candidate

    def close(self) -> None:
        """End the stream, or the handshake that has no answer yet."""
        self.stream, self.asking = None, 0

    def on_sealed(self, voter: int, epoch: int, seat: int, last: int, end: int) -> None:
        """Take a seal."""
        if self.role == SEALING and epoch == self.epoch:
            self.seals[voter] = seat, last, end
            self.look_at_seals()

    def on_higher(self, _: int, epoch: int) -> None:
        """Hear of a higher epoch that someone has promised."""
        self.heard_epoch = max(self.heard_epoch, epoch)
        if self.role != FOLLOWING and epoch > self.epoch:
            self.step_down()

    def sealed_by(self, voters: Voters, *, by_id: bool = False) -> bool:
        """Return whether enough of these voters have sealed."""
        count = sum(voter in self.seals and (by_id or self.seals[voter][0] == seat) for voter, seat in voters)
        return count >= seals(len(voters), majority(len(voters))) - ("R2'" in self.world.off)

    def look_at_seals(self) -> None:
        """Lead, or resign, once there are enough seals."""
        off, record = self.world.off, self.record
        enough = self.sealed_by(record.voters)
        if record.prior and "R10" not in off:
            enough = enough and self.sealed_by(record.prior, by_id="R10b" in off)
        if not enough and "R2" not in off:
            return
        best = max(self.seals, key=lambda voter: (self.seals[voter][1:], voter == self.at))
        if best == self.at or "R4" in off:
            self.lead(self.epoch)
        else:
            self.role, self.heard = FOLLOWING, self.world.now
            resigned = record._replace(leader=NOBODY, prefer=best)
            self.world.swap(self, self.revision, resigned, lambda *_: None)

    def lead(self, epoch: int) -> None:
        """Lead: the epoch begins at the end of the log."""
        world = self.world
        self.role, self.epoch, self.start = LEADING, epoch, len(self.log)
        self.commit = self.told
        self.waiting, self.links, self.told_links, self.answers = {}, {}, {}, {}
        if "R7'" not in world.off:
            self.cells = {}
        if last_epoch(self.epochs) != epoch:
            self.epochs = (*self.epochs, (epoch, self.start))
        world.check_leader(self)
        if "R10e" in world.off:
            self.clear_prior()
        self.look()

    def step_down(self) -> None:
        """Follow again; a higher epoch was heard of."""
        self.role, self.heard = FOLLOWING, self.world.now
        self.waiting = {}

    def saw(self, record: Record, revision: int) -> None:
        """Take what the store has told a leader."""
        if self.role != LEADING:
            return
        if record.epoch > self.epoch:
            self.step_down()
        elif (record.epoch, record.leader) == (self.epoch, self.at):
            self.record, self.revision = record, revision

    # Voters

    def consider_change(self) -> None:
        """Now and then name other voters, or the seats that members have by now."""
        world, record = self.world, self.record
        if (record.prior and "R10d" not in world.off) or record.epoch != self.epoch:
            return
        ids = [voter for voter, _ in record.voters]
        if world.plan.changes and world.random() < 0.08:
            ids = world.draw_voters(self.at)
        elif not world.plan.disks or world.random() > 0.3:
            return
        voters = tuple((voter, world.members[voter].seat) for voter in ids)
        if voters != record.voters:
            new = Record(self.epoch + 1, self.at, NOBODY, voters, record.voters)
            world.swap(self, self.revision, new, self.changed)

    def changed(self, record: Record, revision: int) -> None:
        """Stand for the epoch of a change."""
        if self.role == LEADING and record.epoch > self.promised:
            self.step_down()
            self.swapped(record, revision)

    def clear_prior(self) -> None:
        """Have the store forget the prior voters."""
        if self.record.prior:
            self.world.swap(self, self.revision, self.record._replace(prior=()), self.saw)

    # The follower's side of a stream

    def on_hello(self, leader: int, epoch: int) -> None:
        """Hear a leader: report to it, or ask for a handshake on a new connection."""
        off = self.world.off
        other = self.promised_to not in (leader, NOBODY) and "R3b" not in off
        kept = self.stream and (self.stream.leader, self.stream.epoch) == (leader, epoch)
        if (epoch < self.promised or (epoch == self.promised and other)) and not kept:
            self.world.send(self.at, leader, Member.on_higher, self.promised)
            return
        if self.role != FOLLOWING:
            if epoch <= self.epoch:
                return
            self.step_down()
        self.heard = self.world.now
        if kept:
            self.report()
            return
        self.promise(epoch, leader)
        self.close()
        self.asking = self.world.link()
        self.world.send(self.at, leader, Member.on_connect, epoch, self.asking)

    def on_shake(self, leader: int, epoch: int, link: int, epochs: Epochs, end: int) -> None:
        """Take the answer to a handshake: cut where the lists part, and adopt what the log has reached."""
        off = self.world.off
        if self.role != FOLLOWING or (epoch, leader) != (self.promised, self.promised_to):
            return
        if not self.asking or link != self.asking:
            return
        self.stream, self.source = Stream(leader, epoch, self.asking), epochs
        self.asking = 0
        point, kept = consistent_point(self.epochs, len(self.log), epochs, end), self.epochs
        inside = point < len(self.log) and last_epoch(self.epochs) == epoch
        if inside and "R8b" not in off:
            raise Finding("R8", f"{self.at} stops: its leader {leader} has less of epoch {epoch}")
        if "R13" in off:
            point = min(len(self.log), end)
        else:
            kept = tuple(entry for entry in kept if entry[1] <= point and entry in epochs)
        if point < len(self.log):
            self.world.check_cut(self, point)
            del self.log[point:]
            self.synced, self.told = min(self.synced, point), min(self.told, point)
        self.epochs = adopt(kept, epochs, point)
        self.world.check_equal(self, self.world.members[leader])
        self.report()

    def on_frame(self, _: int, stream: Stream, at: int, entries: list[int], commit: int, link: int) -> None:
        """Take entries, and the commit offset that was published once connection `link` had been seen."""
        if self.role != FOLLOWING or self.stream != stream or at != len(self.log):
            return
        world = self.world
        self.heard = world.now
        self.log += entries
        self.epochs = adopt(self.epochs, self.source, len(self.log))
        if world.plan.flush == "sync":
            self.synced = len(self.log)
        if not self.votes and last_epoch(self.epochs) == stream.epoch:
            has_all = len(self.log) >= commit or "R9b" in world.off
            self.votes = has_all and (link == stream.link or "R11b" in world.off)
        world.show(self, min(commit, len(self.log)))
        self.report()

    def report(self) -> None:
        """Tell the leader how far the log goes."""
        assert self.stream
        stream, (last, end) = self.stream, self.position
        self.world.send(self.at, stream.leader, Member.on_report, stream, self.seat, end, last)

    def on_closed(self, _: int, link: int) -> None:
        """Find the connection closed."""
        if self.stream and self.stream.link == link:
            self.close()

    # The leader's side of streams

    def on_connect(self, follower: int, epoch: int, link: int) -> None:
        """Answer a handshake; older connections of the follower are closed before that."""
        if self.role != LEADING or epoch != self.epoch or link < self.links.get(follower, 0):
            return
        self.links[follower] = link
        if "R11" not in self.world.off:
            self.cells.pop(follower, None)
        answer = self.epochs, len(self.log)
        if "R8" in self.world.off:
            answer = self.answers.setdefault(follower, answer)
        self.world.send(self.at, follower, Member.on_shake, epoch, link, *answer)

    def on_report(self, follower: int, stream: Stream, seat: int, end: int, adopted: int) -> None:
        """Write a report into the follower's cell, and send what it lacks."""
        if self.role != LEADING or (stream.epoch != self.epoch and "R7'" not in self.world.off):
            return
        if self.links.get(follower) != stream.link and not self.world.off & {"R11", "R7'"}:
            self.world.send(self.at, follower, Member.on_closed, stream.link)
            return
        before = self.cells.get(follower)
        if before is None or before.link != stream.link or end >= before.end:
            self.cells[follower] = Cell(stream.link, seat, end, adopted)
        if not self.looking:
            self.looking = True
            self.world.after(LOOK_S_MAX * self.world.random(), self.look, self)
        if stream.epoch == self.epoch:
            self.feed(follower, stream, end)

    def feed(self, follower: int, stream: Stream, end: int) -> None:
        """Send a follower what is behind its end."""
        if end <= len(self.log):
            count = 1 + int(ENTRIES_PER_FRAME_MAX * self.world.random())
            told = self.told_links.get(follower, 0)
            body = self.log[end : end + count]
            if body or self.world.random() < 0.2:
                self.world.send(self.at, follower, Member.on_frame, stream, end, body, self.commit, told)

    def look(self) -> None:
        """Have the broker look at the cells; what follows from that is published later."""
        self.looking = False
        delay = LOOK_S_MAX * self.world.random()
        self.world.after(delay, self.publish, self, self.epoch, dict(self.cells), dict(self.links))

    def counts(self, seat: int, cell: Cell) -> bool:
        """Return whether a follower's report counts."""
        if cell.seat != seat:
            return False
        return (cell.adopted == self.epoch and cell.end >= self.start) or bool(self.world.off & {"R7", "R7'"})

    def publish(self, epoch: int, cells: dict[int, Cell], links: dict[int, int]) -> None:
        """Publish the commit offset that follows from these cells, and answer the clients that it covers."""
        if self.role != LEADING or epoch != self.epoch:
            return
        world, voters = self.world, self.record.voters
        ends = [
            cells[voter].end
            for voter, seat in voters
            if voter in cells and voter != self.at and self.counts(seat, cells[voter])
        ]
        if (self.at, self.seat) in voters:
            ends.append(len(self.log))
        if "R12'" in world.off and world.plan.observer:
            ends.append(len(world.observer))
        ends.sort(reverse=True)
        copies = majority(len(voters))
        self.told_links = links
        if len(ends) < copies:
            return
        commit = min(ends[copies - 1], len(self.log))
        if commit > self.commit and (commit >= self.start or world.off & {"R7", "R7'", "R12'"}):
            self.commit = commit
            world.commit(self, commit)
            for position in [position for position in self.waiting if position <= commit]:
                world.answered(self, position, self.waiting.pop(position))
        if self.record.prior and commit >= self.start and world.random() < 0.5:
            self.clear_prior()

    def append(self, entry: int) -> None:
        """Take a client's entry, and send it to those whose reports are near."""
        self.log.append(entry)
        self.waiting[len(self.log)] = entry
        if self.world.plan.flush == "sync":
            self.synced = len(self.log)
        for follower, cell in self.cells.items():
            if cell.end < len(self.log):
                self.feed(follower, Stream(self.at, self.epoch, cell.link), cell.end)
        if not self.looking:
            self.look()
