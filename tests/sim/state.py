"""What an elected leader has beside the log: tables, acknowledgements, positions.

    I9     when a leader begins to serve, no lease goes beyond its log: nobody has seen what is not committed.
           It may where power or a sync was lost under asynchronous flush
    I11    a topic or group that was made, changed or deleted, and answered so, is as it was answered at each
           later leader; what was not answered may be so or not
    acks   what a consumer of the main topic has acknowledged, and was answered, is done at each later leader
    resets a consumer group stands where it was reset to, and was answered, at each later leader
    moves  a position whose commit was answered is not further back at a later leader

Checked when a leader begins to serve, I11 and resets every half second as well. Where an operator has
accepted a loss, what was answered since is checked.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from sim.cluster import GROUPS, TOPIC
from sim.elected import Elections
from sim.positions import LEDGER, role_of
from sim.resets import AUDITORS
from whimbrel.broker.elections.actions import State
from whimbrel.broker.roles.master import MasterRole
from whimbrel.model.group_record import GroupRecord

if TYPE_CHECKING:
    from sim.cluster import Cluster, Member

__all__ = ["StateChecks"]

Fail = Callable[[str, str], Any]


class StateChecks:
    """Looks at leaders that serve."""

    def __init__(
        self, cluster: "Cluster", elections: Elections, fail: Fail, looked: Callable[[str], None]
    ) -> None:
        self.cluster, self.elections, self.fail, self.looked = cluster, elections, fail, looked
        elections.watchers.append(self)

    # See `Watcher`

    def stands(self, member: "Member", state: State) -> None:
        """Nothing."""

    def leads(self, member: "Member", epoch: int, end: int) -> None:
        """Nothing."""

    def committed(self, member: "Member", offset: int) -> None:
        """Nothing."""

    def cuts(self, member: "Member", point: int, end: int) -> None:
        """Nothing."""

    def has_cut(self, member: "Member", point: int, end: int) -> None:
        """Nothing."""

    def accepted(self, record: GroupRecord) -> None:
        """Nothing."""

    def empties(self, member: "Member") -> None:
        """Nothing."""

    def has_emptied(self, member: "Member") -> None:
        """Nothing."""

    def serves(self, member: "Member", role: MasterRole) -> None:
        """Check all."""
        if not self.is_newest(role):
            return
        self.looked("I9")
        accepted_at = self.elections.accepted_at
        lossy = self.cluster.plan.flush == "async" or accepted_at > 0
        if role.clamped and not lossy:
            self.fail("I9", f"{member.name} knows leases of {role.clamped} queues beyond its log")
        self.check_tables(member, role)
        self.check_resets(member, role)
        positions = role.consumption.positions
        for (group, place), taken in self.cluster.history.acked.items():
            topic = place[0].partition("/")[2]
            if group != GROUPS[TOPIC] or max(taken) < accepted_at:
                continue
            self.looked("acks")
            if not positions.is_done(group, topic, place[1], place[2]):
                self.fail("acks", f"{member.name} has forgotten that {place} is acknowledged by {group}")
        ledger = self.cluster.ledger
        for queue_id, answered in ({} if ledger is None else ledger.answered).items():
            offset = max((offset for at, offset in answered if at >= accepted_at), default=-1)
            known = positions.table.position(LEDGER, TOPIC, queue_id)
            self.looked("moves")
            if known is None or known[2] < offset:
                self.fail("moves", f"{member.name} has {LEDGER} on {queue_id} at {known}, not {offset}")

    def is_newest(self, role: MasterRole) -> bool:
        """Return whether a role is that of the newest leader."""
        return role.term is not None and role.term.epoch == max(self.elections.epochs, default=0)

    def check_tables(self, member: "Member", role: MasterRole) -> None:
        """I11."""
        tables = self.cluster.tables
        if tables is None:
            return
        self.looked("I11")
        for name, may in tables.topics.items():
            topic = role.context.topics.get(name)
            found = None if topic is None else topic.read_queues
            if found not in may:
                self.fail("I11", f"{member.name} has topic {name} with {found} queues, not {may}")
        for name, may in tables.groups.items():
            group = role.context.groups.get(name)
            found = None if group is None else group.retry_max + 1
            if found not in may:
                self.fail("I11", f"{member.name} has group {name} with {found} attempts, not {may}")

    def check_resets(self, member: "Member", role: MasterRole) -> None:
        """Check where the group that is reset stands."""
        resets = self.cluster.resets
        for queue_id, may in ({} if resets is None else resets.may).items():
            self.looked("resets")
            known = role.consumption.positions.table.position(AUDITORS, TOPIC, queue_id)
            found = -1 if known is None else known[2]
            if found not in may:
                self.fail("resets", f"{member.name} has {AUDITORS} on {queue_id} at {found}, not {may}")

    def step(self) -> None:
        """Look at tables and resets of the leader that serves."""
        for member in self.elections.group:
            role = role_of(member)
            if isinstance(role, MasterRole) and self.is_newest(role) and not role.not_serving():
                self.check_tables(member, role)
                self.check_resets(member, role)
