"""What a member knows of itself: its life, and what its page of marks, its bell and the clock say.

    takes part --`stop`--> stopped: nothing new is begun, the role is left as it is
               --`release`--> closed: the page is gone, and there are no facts any more

A replicator is there while it answers at its bell and beats: only then is its store known, and its stream.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Final

from whimbrel.broker.elections.actions import Facts
from whimbrel.broker.elections.machine import Election
from whimbrel.broker.elections.roster import Roster
from whimbrel.broker.options import BrokerOptions
from whimbrel.errors import NotReady
from whimbrel.machine import Machine
from whimbrel.model.group_record import NOBODY
from whimbrel.store.seat_file import FLUSH_MODES
from whimbrel.store.shared_page import SharedPage
from whimbrel.wakeup import Doorbell

__all__ = ["SelfView"]

# A replicator that has not beaten for so long hangs; it beats every `WAKE_POLL_S`. Known before its followers
# ask (`LEAST_SILENT_S`, less a beat of `BEAT_S`): its leader must not tell them then that it leads.
REPLICA_BEAT_S: Final = 1.5


class SelfView:
    """What one member knows of itself.

    Attributes:
        stopped, closed: it takes part no longer; the page is gone.
        state_holders: returns the members that hold all that this leader has beside the log; set by its role.
    """

    def __init__(
        self, options: BrokerOptions, bell: Doorbell, host: Machine, machine: Election, roster: Roster
    ) -> None:
        """Open the page of marks.

        Raises:
            StoreError: the page can't be had.
        """
        self.options, self.bell, self.host, self.machine, self.roster = options, bell, host, machine, roster
        self.page = SharedPage.open(Path(options.store), host)
        self.stopped = self.closed = False
        self.state_holders: Callable[[], frozenset[int]] = frozenset
        self.page.empty_asked = 0  # of a broker that was killed: the operator will ask again
        self.page.broker_flush = FLUSH_MODES.index(options.flush)  # before anything is promised

    def facts(self) -> Facts:
        """Return what this member knows of itself now.

        Raises:
            NotReady: it takes part no longer; its server still ends.
        """
        if self.closed:
            raise NotReady("this broker is stopping")
        page, host = self.page, self.host
        beat_s = (host.monotonic_ns() - page.replica_beat_ns) / 1e9
        alive = beat_s < REPLICA_BEAT_S and self.bell.answers("replicator")
        promised, promised_to = page.sealed
        leading = self.machine.owns_log
        return Facts(
            now=host.monotonic(),
            wall_ms=host.wall_ms(),
            heard_at=page.heard_ns / 1e9 if page.heard_ns else float("-inf"),
            connected=bool(page.connected) and alive,
            leaderless=self.roster.leaderless,
            promised=promised,
            promised_to=promised_to,
            last_epoch=page.leader_epoch if leading else page.last_epoch,
            end=page.written,
            votes=bool(page.votes),
            seat=page.seat if alive else "",
            group=page.seat_group,
            adopted=self.adopted() if leading else 0,
            present=frozenset(member for member, _ in page.member_ends()) if leading else frozenset(),
            alone=bool(page.quorum_lost) and alive,
        )

    @property
    def acks(self) -> dict[int, int]:
        """By voter that has acknowledged this member's epoch, up to where."""
        record = self.machine.view.record
        voters = set(dict(record.voters)) if record is not None else set()
        return {member: end for member, end in self.page.member_acks() if member in voters}

    def adopted(self) -> int:
        """Return how many voters besides this member have acknowledged its epoch, and hold its state."""
        return len((self.acks.keys() - {self.options.id}) & self.state_holders())

    def furthest(self) -> int:
        """Return the member whose log goes on furthest of those that acknowledge; NOBODY without one."""
        return max(((end, member) for member, end in self.acks.items()), default=(0, NOBODY))[1]

    def join(self) -> None:
        """Have the store belong to the group that the record is of, unless it belongs to one."""
        record, page = self.machine.view.record, self.page
        if record is not None and page.group != record.group and page.seat_group in ("", record.group):
            page.group = record.group
