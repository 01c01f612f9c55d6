"""What retention removes in a simulated cluster, and whether it may.

Each member removes files of its log by itself: a master's broker, a slave's replicator. Looking at their
pages every half second, this knows of each when it closed which file, and where its log begins:

    expired     a file is removed no earlier than `reserved_s` after it was closed; what a wall clock was set
                forward by an amount that retention believes (`JUMP_MS_MAX`) is taken off that. Not checked
                where power was lost: files have times from before it
    begin       an empty log begins no further on than a member's log ever has
    kept        in the end no file is there that should have gone long ago (clocks that were set: not
                checked); of a slave's, none that its master has removed long ago, since it keeps the others
    trimmed     in the end no file of a queue or of the index is left whose records have gone

A message may be missing on a member when its record lay below the greatest begin that the member's log has
had; where a record lay is noted when its send is answered. Where that could not be looked up then, a later
message of its queue must lie below that begin, too.

A slave that was away while its master removed what it lacks needs an empty store; `docs/operating.md` has a
person do that, here it is done at the next look.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NoReturn

from support.history.histories import History, Sent
from whimbrel.store.codec import UNIT_SIZE
from whimbrel.store.retention import JUMP_MS_MAX
from whimbrel.store.shared_page import SharedPage

if TYPE_CHECKING:
    from sim.cluster import Cluster, Member

__all__ = ["RetentionChecks"]

LOG_FILE = 64 * 1024
SEEN_LATE_S = 1.0  # how much later than it happens a file is seen closed, at most
TRIM_S = 12.0  # a round of the broker's, and what it takes
ROUNDS_S = 25.0  # two rounds of retention, and what a restart delays them by
REFILL_S = 1.0  # how long a slave is away whose store is emptied


@dataclass
class LogHistory:
    """Of one member's log on one disk.

    Attributes:
        begin, end: as last seen.
        floor: the greatest begin so far.
        closed_at: by start, when a file was first seen full.
        moves: when the begin moved, and to where.
    """

    begin: int
    end: int
    floor: int
    closed_at: dict[int, float] = field(default_factory=dict)
    moves: list[tuple[float, int]] = field(default_factory=list)


class RetentionChecks:
    """Follows the logs of all members.

    Attributes:
        removed: log files that retention has removed, of all members.
        emptied: slaves that had to begin again, since they lacked what had gone.
    """

    def __init__(
        self,
        cluster: "Cluster",
        page_of: Callable[["Member"], SharedPage | None],
        fail: Callable[[str, str], NoReturn],
    ) -> None:
        self.cluster, self.page_of, self.fail = cluster, page_of, fail
        self.reserved_s = cluster.plan.upkeep.reserved_s
        self.logs: dict[tuple[str, int], LogHistory] = {}
        self.places: dict[bytes, int] = {}
        self.offsets_ms: dict[str, int] = {}
        self.ahead_ms: dict[str, int] = {}
        self.jumped: set[str] = set()
        self.removed = self.emptied = 0

    def look(self) -> None:
        """See what was closed, and removed, since the last look."""
        members = list(self.cluster.members.values())
        for member in members:
            self.see_clock(member)
        for member in members:
            page = self.page_of(member) if member.up else None
            if page is not None and page.epoch:
                self.see_log(member, page)
        self.refill()

    def see_clock(self, member: "Member") -> None:
        """Add up what a wall clock was set forward by, as far as retention believes that."""
        now_ms = member.host.wall_offset_ns // 1_000_000
        moved_ms = now_ms - self.offsets_ms.get(member.name, 0)
        self.offsets_ms[member.name] = now_ms
        if moved_ms:
            self.jumped.add(member.name)
        if 0 < moved_ms <= JUMP_MS_MAX:
            self.ahead_ms[member.name] = self.ahead_ms.get(member.name, 0) + moved_ms

    def see_log(self, member: "Member", page: SharedPage) -> None:
        """Follow one log."""
        now = self.cluster.scheduler.now
        key = member.name, member.lives
        begin, end = page.begin, page.written
        log = self.logs.get(key)
        if log is None or (log.begin == log.end and begin > log.begin):
            known = max((other.floor for other in self.logs.values()), default=0)
            if begin > known:
                self.fail(
                    "begin", f"{member.name}'s new log begins at {begin}, the furthest known is {known}"
                )
            log = self.logs[key] = LogHistory(begin, end, begin, moves=[(now, begin)])
        elif begin > log.floor:
            self.check_age(member, log, begin)
            self.removed += (begin - log.floor) // LOG_FILE
            log.moves.append((now, begin))
        log.begin, log.end, log.floor = begin, end, max(log.floor, begin)
        full = end // LOG_FILE * LOG_FILE
        for start in [start for start in log.closed_at if start >= full]:
            del log.closed_at[start]  # its tail was lost
        for start in range(log.floor // LOG_FILE * LOG_FILE, full, LOG_FILE):
            log.closed_at.setdefault(start, now)

    def check_age(self, member: "Member", log: LogHistory, begin: int) -> None:
        """What is removed now is old enough."""
        if member.disk.losses:
            return
        now = self.cluster.scheduler.now
        needed = self.reserved_s - self.ahead_ms.get(member.name, 0) / 1000 - SEEN_LATE_S
        for start in range(log.floor // LOG_FILE * LOG_FILE, begin, LOG_FILE):
            age = now - log.closed_at.get(start, now)
            if not self.reserved_s or age < needed:
                self.fail(
                    "expired",
                    f"{member.name} has removed the log file at {start}, which was closed {age:.1f} s ago; "
                    f"files stay for {self.reserved_s:.1f} s",
                )

    def refill(self) -> None:
        """Give slaves that lack what their master has removed an empty store."""
        cluster = self.cluster
        master, *slaves = cluster.members.values()
        page = self.page_of(master) if master.up else None
        if page is None or not page.epoch:
            return
        for slave in slaves:
            theirs = self.page_of(slave) if slave.up else None
            if theirs is None or not theirs.epoch or not theirs.written:
                continue
            if theirs.written < page.begin and "empty store" in page.trouble:
                self.emptied += 1
                cluster.note(f"{slave.name} is given an empty store: it ends at {theirs.written}")
                cluster.lose_power(slave, REFILL_S, disk=cluster.new_disk())

    # What may be missing

    def sent(self, sent: Sent, place: int) -> None:
        """Note where the record of a send lies."""
        self.places[sent.id] = place

    def floor(self, member: "Member") -> int:
        """Return the greatest begin that a member's log has had."""
        log = self.logs.get((member.name, member.lives))
        return log.floor if log is not None else 0

    def gone(self, member: "Member", history: History) -> set[bytes]:
        """Return the messages that may be missing on a member."""
        floor = self.floor(member)
        found = set()
        passed: dict[tuple[str, int], int] = {}  # up to which offset a queue's messages may be gone
        for sent in history.acknowledged:
            if self.places.get(sent.id, floor) < floor:
                found.add(sent.id)
                if sent.place is not None:
                    queue = sent.place[:2]
                    passed[queue] = max(passed.get(queue, 0), sent.place[2])
        for sent in history.acknowledged:
            if sent.place is not None and sent.id not in self.places:
                if sent.place[2] < passed.get(sent.place[:2], 0):
                    found.add(sent.id)
        for place, message, _ in history.seen([]):
            if place[2] < passed.get(place[:2], 0):
                found.add(message)
        return found

    def may_begin(self, topic: str, queue_id: int, offset: int) -> bool:
        """Return whether a queue may begin at an offset now: the message before has expired somewhere."""
        self.look()
        floor = max(log.floor for log in self.logs.values())
        place = f"broker-a/{topic}", queue_id, offset - 1
        history = self.cluster.histories[topic]
        before = [sent for sent in history.acknowledged if sent.place == place and sent.id in self.places]
        return all(self.places[sent.id] < floor for sent in before)

    # In the end

    def finish(self) -> None:
        """See that what should have gone has."""
        now = self.cluster.scheduler.now
        for member in self.cluster.members.values():
            log = self.logs[member.name, member.lives]
            old = [
                start
                for start, closed_at in log.closed_at.items()
                if start >= log.floor and now - closed_at > self.reserved_s + ROUNDS_S
            ]
            master = self.cluster.master(member.group)
            if member is not master:
                moves = self.logs[master.name, master.lives].moves
                gone = max((to for at, to in moves if now - at > ROUNDS_S), default=0)
                old = [start for start in old if start < gone]
            if self.reserved_s and old and member.name not in self.jumped:
                self.fail("kept", f"{member.name} still has the log file at {min(old)}")
            self.check_trimmed(member, max([0, *(to for at, to in log.moves if now - at > TRIM_S)]))

    def check_trimmed(self, member: "Member", begin: int) -> None:
        """Nothing is left in queues and index of records below a begin of the log."""
        assert member.broker is not None and member.broker.broker is not None
        role = member.broker.broker.role
        if role is None:
            return
        store = role.store
        with member.broker.process.running():
            for queue in store.queues:
                first = queue.units(queue.min, 1)
                if first and first[0][0] < begin:
                    self.fail(
                        "trimmed",
                        f"{member.name}: {queue.topic}/{queue.queue_id} begins in what has gone",
                    )
                for start in queue.starts[:-1]:
                    last = queue.units((start + queue.file_size) // UNIT_SIZE - 1, 1)
                    if last and last[0][0] < begin:
                        self.fail(
                            "trimmed", f"{member.name}: {queue.topic}/{queue.queue_id} has a file at {start}"
                        )
            if any(file.end_offset < begin for file in store.index.files[:-1]):
                self.fail("trimmed", f"{member.name}: an index file is left whose records have gone")
