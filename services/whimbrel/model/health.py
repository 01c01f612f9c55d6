"""What is wrong with a cluster, if anything is, from what its members say of themselves. Pure.

    nameserver    answers, and is settled: every broker had the time to register
    group         has a master; a group that slaves alone have registered has lost it
    master        answers, takes messages; its replicator lives; as many slaves are connected as are to be
    slave         answers; its replicator lives and is connected to the master's
    who is not there   each voter of a group's record, each slave that is connected to its master, and each
                  broker that the nameserver remembers, is registered

An advice that a broker gives is a problem, too. **A slave that is merely behind is none**: it is told, and
catches up. One that does not catch up is for an alert over time (`docs/alarms.md`), not for one look.

A group of which no broker is registered is missed as long as a nameserver remembers it.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

from whimbrel.errors import WhimbrelError
from whimbrel.model.cluster import (
    AbsentBroker,
    BrokerStatus,
    Cluster,
    ElectionStatus,
    ReplicationStatus,
    Takes,
)
from whimbrel.model.group_record import GroupRecord
from whimbrel.model.unasked import left_out, lost_at, since_text

__all__ = [
    "NO_BROKER",
    "STEP_BYTES",
    "UNSETTLED",
    "Check",
    "Missing",
    "View",
    "advice_without_master",
    "broker_checks",
    "groups_without_master",
    "leads",
    "log_ends",
    "master_state",
    "masters_down",
    "missing_brokers",
    "nameserver_check",
    "problem_of",
    "slave_lag",
    "slave_state",
    "step",
    "what_may_be_lost",
]

View = ReplicationStatus | tuple[BrokerStatus, WhimbrelError]  # or why it could not be asked

STEP_BYTES = 1 << 20  # a slave with no more lag is in step: under load some of the log is always in flight
NO_BROKER = (
    "no broker is registered with this nameserver: start one, with this nameserver among its nameservers"
)
UNSETTLED = "the nameserver has just started: brokers may still be missing"
DRAIN_UNDONE_BY = "`whimbrel broker drain {name} --undo` has it take messages again"
NO_REPLICATOR = "the replicator beside this broker does not run: start it"


@dataclass(frozen=True, slots=True)
class Check:
    """One component of a cluster.

    Attributes:
        component: what it is, for people.
        healthy: nothing is wrong with it.
        state: in a few words.
        advice: what is wrong and what to do, in one sentence; empty when all is well.
        note: what is worth knowing though nothing is wrong; empty without such.
    """

    component: str
    healthy: bool
    state: str
    advice: str = ""
    note: str = ""


@dataclass(frozen=True, slots=True)
class Missing:
    """A broker that should be registered and is not.

    Attributes:
        who: it is, for people: `slave 1`, `member 3`, `master`.
        broker_id: its id; a member's in a group that elects its leader.
        state: in a few words.
        advice: what is wrong and what to do, in one sentence.
    """

    broker_name: str
    who: str
    broker_id: int
    state: str
    advice: str


def nameserver_check(
    address: str, answer: Cluster | WhimbrelError, others: Collection[BrokerStatus] = ()
) -> Check:
    """Return the check of one nameserver.

    Args:
        address: `host:port`.
        answer: the brokers that it knows, or why it could not be asked.
        others: brokers that the other nameservers know.
    """
    component = f"nameserver {address}"
    if isinstance(answer, WhimbrelError):
        return Check(component, False, "no answer", str(answer))
    if not answer.settled:
        return Check(component, False, "not settled", UNSETTLED)
    known = set(map(place, answer.brokers))
    lacking = sorted(
        {label(one.broker_name, one.role, one.broker_id) for one in others if place(one) not in known}
    )
    if lacking:
        return Check(
            component,
            False,
            f"does not know {', '.join(lacking)}",
            f"another nameserver knows {', '.join(lacking)}: is this one among that broker's nameservers, and"
            " reached from there? Who asks here is told nothing of it",
        )
    count = len(answer.brokers)
    return Check(component, True, f"settled, knows {count} broker{'' if count == 1 else 's'}")


def broker_checks(
    brokers: Sequence[BrokerStatus], views: Sequence[View], absent: Sequence[AbsentBroker] = ()
) -> list[Check]:
    """Return the checks of all groups: those without a master first, then each broker, then who is missing.

    Args:
        brokers: as a nameserver knows them.
        views: what each of them says of itself.
        absent: who is away, as far as the nameserver remembers.
    """
    missing = [
        Check(f"{one.broker_name} {one.who}", False, one.state, one.advice)
        for one in missing_brokers(brokers, views, absent)
    ]
    if not brokers:
        return [Check("brokers", False, "none", NO_BROKER), *missing]
    ends = log_ends(views)
    checks = [
        Check(f"{name} master", False, "missing", advice_without_master(slaves, lost_at(name, absent)))
        for name, slaves in groups_without_master(brokers).items()
    ]
    for view in views:
        if isinstance(view, tuple):
            broker, error = view
            name = label(broker.broker_name, broker.role, broker.broker_id)
            checks.append(Check(name, False, "no answer", str(error)))
        elif view.role == "master":
            checks += master_checks(view)
        else:
            checks += slave_checks(view, ends.get(view.broker_name))
    return checks + missing


def missing_brokers(
    brokers: Sequence[BrokerStatus], views: Sequence[View], absent: Sequence[AbsentBroker] = ()
) -> list[Missing]:
    """Return who should be registered and is not, by name and id.

    In a group that elects its leader its voters should be, as its record has them: who has left for good
    votes no longer. In another one the slaves that are connected to the master, and those that the nameserver
    remembers. A master that slaves alone are left of is `groups_without_master`'s.

    Args:
        brokers: as a nameserver knows them.
        views: what each of them says of itself.
        absent: who is away, as far as the nameserver remembers.
    """
    there = set(map(place, brokers))
    since = {(one.broker_name, one.member_id or one.broker_id): one.since for one in absent}
    records = newest_records(views)
    found: dict[tuple[str, int], Missing] = {}
    for name, record in records.items():
        for member, _ in record.voters:
            found[name, member] = missing_member(name, member, since.get((name, member)))
    for view in views:
        if not isinstance(view, tuple) and view.role == "master" and view.broker_name not in records:
            for slave in view.slaves:
                if slave.broker_id and not slave.uncounted:
                    key = view.broker_name, slave.broker_id
                    found[key] = missing_slave(*key, since.get(key), connected=True)
    left = {one.broker_name for one in brokers}
    for one in absent:
        key = one.broker_name, one.member_id or one.broker_id
        if one.broker_name in records or key in found:
            continue
        if one.member_id:
            found[key] = missing_member(*key, one.since)
        elif one.broker_id:
            found[key] = missing_slave(*key, one.since, connected=False)
        elif one.broker_name not in left:
            found[key] = missing_master(one.broker_name, one.since)
    return [found[key] for key in sorted(found) if key not in there]


def missing_member(name: str, member: int, since: float | None) -> Missing:
    """Return that a member of a group which elects its leader is missing."""
    return Missing(
        name,
        f"member {member}",
        member,
        f"not registered{since_text(since)}",
        f"member {member} is to be there, and its broker is not registered{since_text(since)}: start it and"
        f" its replicator; if it never comes back, `whimbrel replication voters {name} --set IDS` without it",
    )


def missing_slave(name: str, broker_id: int, since: float | None, *, connected: bool) -> Missing:
    """Return that a slave is missing; `connected`: its replicator is."""
    how = ", while its replicator is connected to the master's" if connected else ""
    last = (
        "" if connected else f"; if it never comes back, `whimbrel broker forget {name} --member {broker_id}`"
    )
    return Missing(
        name,
        f"slave {broker_id}",
        broker_id,
        f"not registered{since_text(since)}",
        f"the broker of slave {broker_id} is not registered{since_text(since)}{how}: nobody can read from it,"
        f" and it can't take over; start it{last}",
    )


def missing_master(name: str, since: float | None) -> Missing:
    """Return that a master is missing, and all of its slaves."""
    return Missing(
        name,
        "master",
        0,
        f"not registered{since_text(since)}",
        f"no broker of {name} is registered{since_text(since)}: what it holds can be"
        " neither read nor written; start its broker and replicator; if it never comes back,"
        f" `whimbrel broker forget {name}`",
    )


def newest_records(views: Sequence[View]) -> dict[str, GroupRecord]:
    """Return the newest record of each group that elects its leader, as its members know it."""
    newest: dict[str, GroupRecord] = {}
    for view in views:
        if not isinstance(view, tuple) and view.election is not None and view.election.record is not None:
            known = newest.get(view.broker_name)
            if known is None or known.epoch < view.election.record.epoch:
                newest[view.broker_name] = view.election.record
    return newest


def place(broker: BrokerStatus) -> tuple[str, int]:
    """Return what tells a broker from others: its name, and its id as a member or as a slave."""
    return broker.broker_name, broker.member_id or broker.broker_id


def master_checks(view: ReplicationStatus) -> list[Check]:
    """Return the checks of a master, its slaves as it sees them, and its replicator."""
    name = f"{view.broker_name} master"
    checks = [
        broker_check(name, view, taking(view), view.writable, other_advice(view), drain_note(view)),
        replicator_check(name, view),
    ]
    if view.slaves or view.expected_slaves:
        lack = lacking_slaves(view)
        count = f"{counted_slaves(view)} connected"
        count += f", {view.expected_slaves} expected" if view.expected_slaves else ""
        checks.append(Check(f"{view.broker_name} slaves", not lack, count, lack))
    return checks


def slave_checks(view: ReplicationStatus, master_end: int | None) -> list[Check]:
    """Return the checks of a slave and its replicator."""
    name = label(view.broker_name, view.role, view.broker_id)
    problem = problem_of(view) if view.replicator_alive else ""
    lag = slave_lag(view, master_end)
    state = slave_state(view, lag) if view.replicator_alive else "serves what it has"
    return [broker_check(name, view, state, True, problem), replicator_check(name, view)]


def drain_note(view: ReplicationStatus) -> str:
    """Return how a drained broker takes messages again; empty for another one."""
    return f"{DRAIN_UNDONE_BY.format(name=view.broker_name)}" if view.takes is Takes.DRAINED else ""


def broker_check(
    name: str, view: ReplicationStatus, state: str, serves: bool, problem: str, note: str = ""
) -> Check:
    """Return the check of a broker itself, with what it has of the compiled lane, and notes."""
    without = view.lane.startswith("off")
    lane = "" if not view.lane else ", lane off" if without else ", lane on"
    notes = [note] if note else []
    notes += [f"lane {view.lane}"] if without else []
    return Check(name, serves and not problem, f"{state}{lane}", problem, "; ".join([*notes, *view.notes]))


def replicator_check(broker: str, view: ReplicationStatus) -> Check:
    alive = view.replicator_alive
    return Check(f"{broker} replicator", alive, "runs" if alive else "dead", "" if alive else NO_REPLICATOR)


def problem_of(view: View) -> str:
    """Return what is wrong with a broker and what to do, in one sentence; empty when all is well."""
    if isinstance(view, tuple):
        return f"could not be asked: {view[1]}"
    if not view.replicator_alive:
        return NO_REPLICATOR
    if view.advice:
        return view.advice
    if view.election is not None and (problem := election_problem(view.election)):
        return problem
    if view.role == "master":
        return lacking_slaves(view) if view.writable else "takes no messages; its log says why"
    if not view.connected:
        where = f"at {view.ha_address}" if view.ha_address else "whose address nobody has told it yet"
        return f"not connected to the master {where}: is that replicator running, and reached from here?"
    return ""


def election_problem(election: ElectionStatus) -> str:
    """Return what keeps a member from doing its part in elections; empty when nothing does."""
    record = election.record
    if election.coordinator_trouble:
        return f"{election.coordinator_trouble}; until then nobody is elected"
    if record is None:
        return election.why or "the group is not made yet"
    if record.paused:
        return "elections are paused: `whimbrel replication resume` allows them again"
    if election.member not in record.members:
        return ""  # it only follows, as it is to
    if not election.may_lead:
        return (
            f"member {election.member} does not vote: its store is another one than the voter's, or may have"
            " lost what it acknowledged; the second passes once it holds all that is committed, for the first"
            " see `whimbrel replication voters`"
        )
    if record.out and election.member == record.leader:
        out, all_ = numbers(record.out), numbers({*record.members, *record.out})
        return (
            f"member {out} was away, and votes no longer (`--copies-min`): once it follows again,"
            f" `whimbrel replication voters NAME --set {all_}`"
        )
    if record.loss:
        return (
            "an operator has accepted a loss, and the voters have not adopted an epoch yet: until then all of"
            " them are needed to elect; start them, or repeat `whimbrel replication failover` without those"
            " that are gone"
        )
    if record.prior:
        return "the voters are being changed: the new ones have not adopted the epoch yet"
    return ""


def numbers(members: Collection[int]) -> str:
    """Return ids as commands take them."""
    return ",".join(map(str, sorted(members)))


def masters_down(known: Cluster, views: Sequence[View]) -> dict[str, str]:
    """Return by name which groups take no messages: since when, why, and what to do; in a sentence each.

    Args:
        known: what a nameserver knows.
        views: what the masters say of themselves.
    """
    found: dict[str, str] = {}
    alone = groups_without_master(known.brokers)
    for one in left_out(known):
        if one.away:
            since = lost_at(one.broker_name, known.absent)
            slaves = alone.get(one.broker_name)
            advice = (
                missing_master(one.broker_name, since).advice
                if slaves is None
                else advice_without_master(slaves, since)
            )
            found[one.broker_name] = f"{one.broker_name}: {advice}"
    for view in views:
        if isinstance(view, tuple):
            broker, error = view
            found[broker.broker_name] = (
                f"the master of {broker.broker_name} at {broker.address} is silent ({error}); the nameserver"
                f" heard of it last{at_text(broker.renewed_at)}: does its process run, and what is the last"
                " line of its log"
            )
        elif view.takes is not Takes.MESSAGES:
            advice = drain_note(view) or problem_of(view)
            found[view.broker_name] = f"{view.broker_name}: {view.takes}; {advice}"
    return found


def at_text(at: float | None) -> str:
    """Return ` at ...`, in UTC, or that it is not known when."""
    return " at a time that is not known" if at is None else since_text(at).replace(" since", " at", 1)


def leads(views: Sequence[View]) -> list[str]:
    """Return a sentence for each group that elects its leader: who leads, since when, why, and who votes."""
    newest = newest_records(views)
    return [f"{name}: {leading(record)}" for name, record in sorted(newest.items())]


def leading(record: GroupRecord) -> str:
    """Return who leads by a record, since when and why, and who votes, in one sentence."""
    who = f"member {record.leader} leads epoch {record.epoch}" if record.leader else "nobody leads"
    if record.history:
        turn = record.history[0]
        since = datetime.fromtimestamp(turn.at_ms / 1000, UTC)
        who += f" since {since:%Y-%m-%d %H:%M:%S} UTC ({turn.why})"
    voters = ", ".join(str(member) for member, _ in record.voters)
    text = f"{who}; members {voters} vote, {record.acks} of them commit"
    if record.loss:
        text += "; an operator has accepted a loss, and they have not adopted this epoch yet"
    if record.prior:
        text += f"; until now {', '.join(str(member) for member, _ in record.prior)} did"
    return text


def other_advice(view: ReplicationStatus) -> str:
    """Return a master's advice, as far as it is not about its replicator."""
    if view.replicator_alive or not view.writable:
        return view.advice or ("" if view.writable else "takes no messages; its log says why")
    return ""


def counted_slaves(view: ReplicationStatus) -> int:
    """Return how many slaves are connected to a master, each counted once."""
    return sum(not slave.uncounted for slave in view.slaves)


def what_may_be_lost(view: ReplicationStatus) -> str:
    """Return in one sentence what the modes of a master leave open."""
    power = "nothing that was answered" if view.flush == "sync" else "messages of the last moments"
    failover = {
        "sync": "nothing that was answered, when an in-sync slave takes over",
        "majority": "nothing that was answered",
    }.get(view.replication, "messages that the slave lacks")
    if view.replication == "majority" and view.election is None:
        failover += ", when the slave takes over whose log goes on furthest"
    acknowledgements = "wait for neither: those of the last moments are undone, and their messages come again"
    if view.election is not None:
        acknowledgements = "are answered once a majority has them on its disks"
    return (
        f"{view.broker_name} may lose in a power cut {power}, in a failover {failover}; acknowledgements of"
        f" consumers {acknowledgements}"
    )


def lacking_slaves(view: ReplicationStatus) -> str:
    """Return what is wrong when a master has fewer slaves than it is to have."""
    connected = counted_slaves(view)
    if connected >= view.expected_slaves:
        return ""
    members = view.expected_slaves + 1
    few = {"sync": not connected, "majority": connected + 1 <= members // 2}
    refused = " and sends are refused" if few.get(view.replication, False) else ""
    return (
        f"{connected} of {view.expected_slaves} slaves are connected{refused}: start the missing ones,"
        " broker and replicator"
    )


def groups_without_master(brokers: Sequence[BrokerStatus]) -> dict[str, list[BrokerStatus]]:
    """Return the groups that only slaves have registered, by name, with these slaves by id."""
    groups: dict[str, list[BrokerStatus]] = {}
    for broker in sorted(brokers, key=lambda broker: (broker.broker_name, broker.broker_id)):
        groups.setdefault(broker.broker_name, []).append(broker)
    return {
        name: members
        for name, members in groups.items()
        if not any(member.role == "master" for member in members)
    }


def advice_without_master(slaves: Sequence[BrokerStatus], since: float | None = None) -> str:
    """Return what it means and what to do that a group has no master, and since when, if that is known.

    Args:
        slaves: those that are there, ordered by id.
        since: epoch seconds.
    """
    if slaves[0].member_id:
        return advice_without_leader(slaves)
    return (
        f"there is no master{since_text(since)}: slave {slaves[0].broker_id} serves its routes read-only,"
        " and no message can be sent to this group; start the master's broker and replicator again on their"
        " store"
    )


def advice_without_leader(members: Sequence[BrokerStatus]) -> str:
    """Return what it means and what to do that a group which elects its leader has none."""
    there = ", ".join(str(member.member_id) for member in members)
    return (
        f"nobody leads: of its members {there} {'is' if len(members) == 1 else 'are'} there; more than half"
        " of the voters must be, and the coordinator that keeps the group's record: start what is missing; if"
        " too many are gone for good, `whimbrel replication failover` shows what would be lost without them"
    )


def log_ends(views: Sequence[View]) -> dict[str, int]:
    """Return the masters' log ends by name."""
    return {
        view.broker_name: view.log_end
        for view in views
        if not isinstance(view, tuple) and view.role == "master"
    }


def slave_lag(view: ReplicationStatus, master_end: int | None) -> int | None:
    """Return how many bytes a slave lacks; None while its master is not known."""
    return None if master_end is None else max(master_end - view.log_end, 0)


def master_state(view: ReplicationStatus) -> str:
    """Return a master's state in a few words."""
    if not view.replicator_alive:
        return "no replicator"
    return taking(view) if view.slaves else f"{taking(view)}, no slave"


def slave_state(view: ReplicationStatus, lag: int | None) -> str:
    """Return a slave's state in a few words; `lag` is None while its master is not known."""
    if not view.replicator_alive:
        return "no replicator"
    if not view.connected:
        return "not connected"
    return "connected" if lag is None else step(lag)


def step(lag: int) -> str:
    """Return the state of a connected slave that lacks so many bytes."""
    return "in step" if lag <= STEP_BYTES else "catching up"


def taking(view: ReplicationStatus) -> str:
    return view.takes.value


def label(name: str, role: str, broker_id: int) -> str:
    return f"{name} {role}" if role == "master" else f"{name} {role} {broker_id}"
