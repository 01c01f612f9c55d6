"""`whimbrel replication`: who follows whom, how far, and what is wrong; who leads, and who is to."""

import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from itertools import zip_longest
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from whimbrel.cli import cuts
from whimbrel.cli.asking import YesOption, ask, counted
from whimbrel.cli.endpoint import EndpointOption, resolve_endpoint
from whimbrel.cli.lazy import examples, group
from whimbrel.cli.output import Format, OutputOption, emit, note, plain, print_table, size_text
from whimbrel.cli.unasked import saying_what_lacks
from whimbrel.errors import BadRequest, WhimbrelError
from whimbrel.model.health import (
    NO_BROKER,
    UNSETTLED,
    Missing,
    View,
    advice_without_master,
    groups_without_master,
    leads,
    log_ends,
    master_state,
    missing_brokers,
    newest_records,
    problem_of,
    slave_lag,
    slave_state,
    step,
    what_may_be_lost,
)
from whimbrel.model.unasked import Unasked, left_out, lost_at

if TYPE_CHECKING:
    from whimbrel.client import BrokerStatus, Cluster, ReplicationStatus, SlaveStatus, sync
    from whimbrel.model.elections import FailoverPlan

__all__ = ["COLUMNS", "OPTIONAL", "app", "rows_of"]

app = group("Show who follows whom, and how far; have another member lead; mend a group.")
app.add_typer(cuts.app, name="cut")

COLUMNS = (
    "broker",
    "role",
    "state",
    "lag",
    "peer",
    "log end",
    "confirmed",
    "flushed",
    "dispatched",
    "acknowledged",
    "sends",
)
OPTIONAL = ("sends", "dispatched", "flushed", "acknowledged", "confirmed", "log end")
WATCH_S = 1.0  # between two polls of --watch
CALL_S, SUMS_S_MAX = 10.0, 3600.0  # the sums of a log of a terabyte take a while
SUMS_BYTES = 64 << 20  # of a piece
SWITCHOVER_S, LOOK_S = 15.0, 0.1  # until the next leader takes messages


@app.command(
    epilog=examples(
        "whimbrel replication status",
        "whimbrel replication status --watch",
        "whimbrel replication status -o json",
        "whimbrel replication status > /dev/null || echo 'look at it'",
    )
)
def status(
    watch: Annotated[
        bool, typer.Option("--watch", "-w", help="Show it again every second, whatever it says.")
    ] = False,
    endpoint: EndpointOption = "",
    output: OutputOption = Format.TABLE,
) -> None:
    """Show each broker's log, its slaves, and what is wrong; exit code 1 if anything is.

    Wrong is: no broker, a group without a master, a broker that does not answer, a master that takes no
    messages or has fewer slaves than it is to have, a slave that is not connected, a dead replicator. A slave
    that is merely behind is not.
    """
    from whimbrel.client import sync

    with sync.Admin(resolve_endpoint(endpoint)) as admin:
        if watch:
            watch_views(admin, output)
        elif not show(*look(admin), output):
            raise typer.Exit(1)


HISTORY_COLUMNS = ("broker", "epoch", "leader", "since", "why")

NameArgument = Annotated[
    str, typer.Argument(metavar="NAME", help="Broker name, as `whimbrel cluster` shows it.")
]


@app.command(epilog=examples("whimbrel replication history", "whimbrel replication history broker-a -o json"))
def history(
    name: Annotated[
        str, typer.Argument(metavar="[NAME]", help="Broker name; without, all that elect their leaders.")
    ] = "",
    endpoint: EndpointOption = "",
    output: OutputOption = Format.TABLE,
) -> None:
    """Show who led a group when and why, the newest first; the last 20 of each are known."""
    from whimbrel.client import sync

    with sync.Admin(resolve_endpoint(endpoint)) as admin:
        known, views = look(admin)
    found = {broker: record for broker, record in newest_records(views).items() if name in ("", broker)}
    turns = [(broker, turn) for broker, record in sorted(found.items()) for turn in record.history]
    objects = [{"broker_name": broker} | asdict(turn) for broker, turn in turns]
    rows = [
        (broker, turn.epoch, f"member {turn.leader}", moment(turn.at_ms), turn.why) for broker, turn in turns
    ]
    emit(objects, output, columns=HISTORY_COLUMNS, rows=rows)
    with saying_what_lacks() as unasked:
        unasked += [one for one in unknown_history(known, views, set(found)) if name in ("", one.broker_name)]
        if not turns and not unasked:
            note(f"{name or 'no group here'}: nobody is elected" + (" in this group" if name else ""))
            raise typer.Exit(1)


def unknown_history(known: "Cluster", views: "Sequence[View]", found: set[str]) -> list[Unasked]:
    """Return the groups whose history nobody has told, though they may have one."""
    why = {
        view[0].broker_name: str(view[1])
        for view in views
        if isinstance(view, tuple) and view[0].broker_name not in found
    }
    elected = {one.broker_name for one in known.brokers if one.member_id}
    elected |= {one.broker_name for one in known.absent if one.member_id}
    unasked = [Unasked(name, why[name]) for name in sorted(why) if name in elected]
    here = {one.broker_name for one in known.brokers}
    return unasked + [
        one for one in left_out(known) if not one.broker_name or (one.broker_name in elected - found - here)
    ]


def moment(at_ms: int) -> str:
    """Return a time for people."""
    return f"{datetime.fromtimestamp(at_ms / 1000, UTC):%Y-%m-%d %H:%M:%S} UTC"


@app.command(
    epilog=examples(
        "whimbrel replication switchover broker-a",
        "whimbrel replication switchover broker-a --to 2",
    )
)
def switchover(
    name: NameArgument,
    to: Annotated[
        int | None,
        typer.Option(
            "--to",
            min=1,
            max=63,
            help="Member id. Default: whose log goes on furthest.",
            show_default=False,
        ),
    ] = None,
    endpoint: EndpointOption = "",
) -> None:
    """Have another member of a group lead: before its leader's machine goes down, for instance.

    The leader takes no sends until that member holds all that it does, then resigns; sends go on within a
    second or two. Nothing is lost.
    """
    from whimbrel.client import sync

    with sync.Admin(resolve_endpoint(endpoint)) as admin:
        member = admin.switchover(name, to or 0)
        if await_leader(admin, name, member):
            note(f"{name}: member {member} leads")
            return
    note(f"{name}: the leader has resigned, and member {member} does not take messages yet; see its log")
    raise typer.Exit(1)


@app.command(epilog=examples("whimbrel replication pause broker-a"))
def pause(name: NameArgument, endpoint: EndpointOption = "") -> None:
    """Have nobody stand for election, during work on the network for instance; a leader goes on."""
    set_paused(name, endpoint, paused=True)
    note(f"{name}: nobody stands for election until `whimbrel replication resume {name}`")


@app.command(epilog=examples("whimbrel replication resume broker-a"))
def resume(name: NameArgument, endpoint: EndpointOption = "") -> None:
    """Allow elections again."""
    set_paused(name, endpoint, paused=False)
    note(f"{name}: members may stand for election again")


def set_paused(name: str, endpoint: str, *, paused: bool) -> None:
    """Pause or resume the elections of a group."""
    from whimbrel.client import sync

    with sync.Admin(resolve_endpoint(endpoint)) as admin:
        admin.pause_elections(name, paused=paused)


@app.command(
    epilog=examples(
        "whimbrel replication voters broker-a --set 1,2,4    4 takes the place of 3",
        "whimbrel replication voters broker-a --set 1,2,3    after 3 got another disk",
    )
)
def voters(
    name: NameArgument,
    members: Annotated[str, typer.Option("--set", metavar="IDS", help="All that vote from now on: 1,2,4")],
    endpoint: EndpointOption = "",
) -> None:
    """Say which members of a group vote, each with the store that it has now.

    A member whose disk was replaced follows, and votes only after this command: it has forgotten what it
    promised. All that are named must be there.
    """
    from whimbrel.client import sync

    ids = ids_of(members, "--set")
    with sync.Admin(resolve_endpoint(endpoint)) as admin:
        epoch = admin.set_voters(name, ids)
    if epoch:
        note(f"{name}: members {members} vote from epoch {epoch} on, which the leader stands for now")
    else:
        note(f"{name}: these members vote already")


@app.command(
    epilog=examples(
        "whimbrel replication reinit broker-a --member 2",
        "whimbrel replication reinit broker-a --member 2 --yes",
    )
)
def reinit(
    name: NameArgument,
    member: Annotated[int, typer.Option("--member", min=1, max=63, help="Whose store: its member id.")],
    yes: YesOption = False,
    endpoint: EndpointOption = "",
) -> None:
    """Empty a member's store, so that it follows anew from where the leader's log begins.

    For a member that lacks what the leader no longer has, or whose log is damaged. Its processes go on. It
    keeps what it has promised, and what was cut off its log; it votes again by itself once it has all that is
    committed. Refused for the leader, and while too few others hold what is committed. A member whose broker
    or replicator does not start: `whimbrel store reinit`.
    """
    from whimbrel.client import sync

    ask(f"empty the store of member {member} of {name}, which then follows anew", yes=yes)
    with sync.Admin(resolve_endpoint(endpoint)) as admin:
        admin.reinit(name, member)
    note(
        f"{name}: the store of member {member} is empty, and it follows anew; `whimbrel replication status`"
        " shows how far it is"
    )


@app.command(
    epilog=examples(
        "whimbrel replication failover broker-a --to 3",
        "whimbrel replication failover broker-a --to 3 --accept-loss",
        "whimbrel replication failover broker-a --to 3 --accept-loss --voters 3",
    )
)
def failover(
    name: NameArgument,
    to: Annotated[int, typer.Option("--to", min=1, max=63, help="Who is to lead: its member id.")],
    accept_loss: Annotated[
        bool, typer.Option("--accept-loss", help="What only those hold that do not answer may be lost.")
    ] = False,
    members: Annotated[
        str,
        typer.Option(
            "--voters",
            metavar="IDS",
            help="Who votes afterwards: 2,3. Default: all voters that answer.",
            show_default=False,
        ),
    ] = "",
    yes: YesOption = False,
    endpoint: EndpointOption = "",
    output: OutputOption = Format.TABLE,
) -> None:
    """Have a member lead where no election can succeed any more: too many members are gone for good.

    MESSAGES THAT WERE ANSWERED MAY BE LOST: all that only those members hold that do not answer. Without
    --accept-loss this only shows what would be. Be sure that they are gone, or stopped: if they are only cut
    off from this one, they may go on to take messages, which are lost as well. The member must have the log
    that goes on furthest of all that answer; refused where an election can do without loss. The others vote
    no longer; when they come back they follow, what only they had is cut and kept for
    `whimbrel replication cut`, and `whimbrel replication voters` makes them voters again.
    """
    from whimbrel.client import sync

    voters = ids_of(members, "--voters") if members else set()
    with sync.Admin(resolve_endpoint(endpoint)) as admin:
        plan = admin.failover(name, to, voters)
        if not accept_loss or output is Format.TABLE:
            show_plan(name, to, plan, output)
        if plan.refusal:
            note(f"{name}: this can't be done: {plan.refusal}")
            raise typer.Exit(1)
        if not accept_loss:
            note("nothing was done; --accept-loss does it")
            return
        gone = ", ".join(map(str, plan.missing)) or "nobody"
        ask(f"lose for good what only {gone} may hold, and have member {to} lead", yes=yes)
        done = admin.failover(name, to, voters, accept_loss=True, revision=plan.revision)
        led = await_leader(admin, name, to)
    if output is not Format.TABLE:
        emit(plain(done) | {"leads": led}, output, columns=(), rows=())
    if not led:
        note(
            f"{name}: member {to} stands in epoch {done.epoch}, and does not take messages yet; see"
            " `whimbrel replication status` and its log, and repeat this where another member is gone now"
        )
        raise typer.Exit(1)
    note(f"{name}: member {to} leads epoch {done.epoch}; members {', '.join(map(str, done.voters))} vote")


@app.command(
    epilog=examples(
        "whimbrel replication repair broker-a --keep 0 --store /var/lib/whimbrel/broker-a --dry-run",
        "whimbrel replication repair broker-a --keep 0 --store /var/lib/whimbrel/broker-a --yes",
    )
)
def repair(
    name: NameArgument,
    keep: Annotated[int, typer.Option("--keep", min=0, max=63, help="Whose log counts: 0, the master's id.")],
    store: Annotated[
        Path, typer.Option("--store", metavar="PATH", help="Store of the slave, at rest, that is to be cut.")
    ],
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only show what would be cut.")] = False,
    yes: YesOption = False,
    endpoint: EndpointOption = "",
    output: OutputOption = Format.TABLE,
) -> None:
    """Cut a slave's log where it goes on otherwise than its master's: for pairs without elections.

    For a slave that refuses to follow because its log differs, or ends behind the master's. Run it on the
    slave's machine, with the slave's broker and replicator stopped. The first byte that differs is found by
    checksums, then the begin of its record; what the master's log is not confirmed to have is cut as well.
    What is cut is kept in the store, see `whimbrel replication cut`; then the slave can be started, and
    follows. The kept log is never changed.
    """
    from whimbrel.client import sync
    from whimbrel.store import log_compare

    with sync.Admin(resolve_endpoint(endpoint)) as admin:
        brokers = admin.members(name)
    kept = next((each for each in brokers if (each.member_id or each.broker_id) == keep), None)
    if kept is None:
        known = ", ".join(str(each.member_id or each.broker_id) for each in brokers)
        raise BadRequest(f"there is no member {keep} of {name} now; there are {known}")
    if kept.role != "master":
        raise BadRequest(
            f"member {keep} is a slave of {name}, and only slaves are cut: make it the master first (docs/"
            "failover.md), then repair the others"
        )
    found = log_compare.find_difference(store, LiveLog(kept.address))
    rows = [(topic, count) for topic, count in found.topics.items()]
    value = asdict(found) | {"bytes": found.end - found.point}
    if found.point == found.end:
        if output is not Format.TABLE:
            emit(value, output, columns=(), rows=())
        note(f"{store}: no difference in [{found.compared[0]}, {found.compared[1]}); nothing is to be cut")
        return
    emit(value, output, columns=("topic", "records"), rows=rows)
    note(
        f"{store} differs from member {keep} at byte {found.at}: {found.records} records,"
        f" {size_text(found.end - found.point)} from {found.point} on, are to be cut"
    )
    if dry_run:
        return
    ask(f"cut {counted(found.records, 'record')} off {store}, and keep them aside", yes=yes)
    path = log_compare.cut_difference(store, found)
    note(f"the log of {store} ends at {found.point} now; what was cut is in {path}; start its processes")


ADOPT_COLUMNS = ("broker id", "role", "log begin", "log end", "compared", "equal", "member id")


@app.command(
    epilog=examples("whimbrel replication adopt broker-a", "whimbrel replication adopt broker-a -o json")
)
def adopt(name: NameArgument, endpoint: EndpointOption = "", output: OutputOption = Format.TABLE) -> None:
    """Check whether a master and its slaves can become a group that elects its leader, and tell how.

    Compares the confirmed log of each slave with the master's by checksums. Changes nothing: the group is
    made by the members themselves, once all of them are started with the settings that this prints, the
    master last. Exit code 1 when a slave is not fit for it.
    """
    from whimbrel.client import sync

    with sync.Admin(resolve_endpoint(endpoint)) as admin:
        known, views = look(admin)
        brokers = admin.members(name)
    if any(broker.member_id for broker in brokers):
        note(f"{name} elects its leader already")
        return
    if lost := [
        one for one in missing_brokers(known.brokers, views, known.absent) if one.broker_name == name
    ]:
        raise BadRequest(f"{name} is not whole, so this would leave somebody out: {lost[0].advice}")
    masters = [broker for broker in brokers if broker.role == "master"]
    slaves = sorted((broker for broker in brokers if broker.role != "master"), key=lambda one: one.broker_id)
    if len(masters) != 1 or not slaves:
        raise BadRequest(f"{name} has {len(masters)} masters and {len(slaves)} slaves registered: start them")
    free = min(set(range(1, 64)) - {slave.broker_id for slave in slaves})
    ids = [(slave, slave.broker_id) for slave in slaves] + [(masters[0], free)]
    kept = LiveLog(masters[0].address)
    rows: list[tuple[Any, ...]] = []
    problems = []
    for broker, member in ids:
        begin, end, equal = kept.begin, kept.confirmed, True
        if broker is not masters[0]:
            theirs = LiveLog(broker.address)
            begin, end = max(begin, theirs.begin), min(end, theirs.confirmed)
            equal = begin <= end and same_sums(kept, theirs, begin, end)
        if not equal:
            problems.append(
                f"the log of slave {broker.broker_id} is another one than the master's: `whimbrel replication"
                f" repair {name} --keep 0`, on its machine, or give it an empty store"
            )
        compared = "-" if broker is masters[0] else f"{begin} to {end}"
        rows.append(
            (broker.broker_id, broker.role, broker.log_begin, broker.log_end, compared, equal, member)
        )
    objects = [
        dict(zip((each.replace(" ", "_") for each in ADOPT_COLUMNS), row, strict=True)) for row in rows
    ]
    emit(objects, output, columns=ADOPT_COLUMNS, rows=rows)
    for problem in problems:
        note(f"{name}: {problem}")
    if problems:
        raise typer.Exit(1)
    voters = ",".join(str(member) for member in sorted(member for _, member in ids))
    note(
        f"{name}: all that is confirmed is the same. docs/failover.md, From a fixed pair to a group, has the"
        " steps; brokers: --role elected --id N --coordinator nameserver --replication majority --flush sync"
        f" --voters {voters}; replicators: --role elected --id N --flush sync; N is the member id above; the"
        " master last"
    )


def same_sums(one: "LiveLog", other: "LiveLog", begin: int, end: int) -> bool:
    """Return whether a range of two logs has the same checksums."""
    if begin == end:
        return True
    pairs = zip_longest(one.sums(begin, end, SUMS_BYTES), other.sums(begin, end, SUMS_BYTES))
    return all(first == second for first, second in pairs)


class LiveLog:
    """The log of a broker that runs (`log_compare.LogSums`)."""

    def __init__(self, address: str) -> None:
        """Ask how far it goes."""
        from whimbrel.rpc.api.bulk_calls import describe_queues, open_bulk_channel
        from whimbrel.rpc.api.calls import perform_blocking

        self.address = address
        with open_bulk_channel(address) as channel:
            found = perform_blocking(channel, describe_queues(), (), CALL_S)
        self.begin, self.confirmed = found.log_begin, found.log_confirmed

    def sums(self, begin: int, end: int, piece_bytes: int) -> Iterator[tuple[int, int, int]]:
        """Yield (offset, size, CRC-32) of the pieces of a range."""
        from whimbrel.rpc.api.bulk_calls import checksum_log, open_bulk_channel, stream_blocking

        with open_bulk_channel(self.address) as channel:
            call = checksum_log(begin, end, chunk_bytes=piece_bytes)
            for chunk in stream_blocking(channel, call, timeout_s=SUMS_S_MAX):
                yield chunk.offset, chunk.size, chunk.crc32

    def read(self, begin: int, end: int) -> bytes:
        """Return the bytes of a range."""
        from whimbrel.rpc.api.bulk_calls import log_bytes, open_bulk_channel, stream_blocking

        with open_bulk_channel(self.address) as channel:
            call = log_bytes(begin, end)
            return b"".join(data for _, data in stream_blocking(channel, call, timeout_s=CALL_S))


def show_plan(name: str, to: int, plan: "FailoverPlan", output: Format) -> None:
    """Show who answers, how far their logs go, and what may be lost."""
    rows: list[tuple[Any, ...]] = [
        (one.member, one.last_epoch, one.log_end, "yes" if one.votes else "may have lost something")
        for one in plan.answered
    ]
    rows += [(member, "?", "?", "does not answer") for member in plan.missing]
    emit(plan, output, columns=("member", "last epoch", "log end", "votes"), rows=rows)
    if output is not Format.TABLE or plan.refusal:
        return
    end = plan.answered[0].log_end
    missing = ", ".join(map(str, plan.missing)) or "none"
    note(
        f"{name}: do not answer: {missing}. What only they hold is lost: all behind byte {end}, where the log"
        f" of member {to} ends. As far as that member was told, the log is committed up to {plan.committed};"
        " more may have been, and been answered"
    )


def await_leader(admin: "sync.Admin", name: str, member: int) -> bool:
    """Wait until a member leads and takes messages; return False if it does not come to that."""
    deadline = time.monotonic() + SWITCHOVER_S
    while time.monotonic() < deadline:
        masters = [broker for broker in admin.cluster().masters() if broker.broker_name == name]
        if any(master.member_id == member and master.writable for master in masters):
            return True
        time.sleep(LOOK_S)
    return False


def ids_of(text: str, option: str) -> set[int]:
    """Return the ids that an option names.

    Raises:
        typer.BadParameter: one is no id.
    """
    ids = text.split(",")
    if not all(each.isascii() and each.isdecimal() and 0 < int(each) < 64 for each in ids):
        raise typer.BadParameter(
            f"{text!r}: write ids from 1 to 63 with commas between them", param_hint=option
        )
    return {int(each) for each in ids}


def look(admin: "sync.Admin") -> "tuple[Cluster, list[View]]":
    """Return what a nameserver knows, and what the brokers say of themselves."""
    known = admin.cluster()
    return known, admin.replication(known.brokers)


def watch_views(admin: "sync.Admin", output: Format) -> None:
    """Show the state until interrupted; while the cluster does not answer, poll again."""
    clear = "\x1b[H\x1b[2J" if sys.stdout.isatty() and output is Format.TABLE else ""
    while True:
        try:
            known, views = look(admin)
        except WhimbrelError as error:
            note(str(error))
        else:
            sys.stdout.write(clear)
            sys.stdout.flush()
            show(known, views, output)
            sys.stdout.flush()
        time.sleep(WATCH_S)


def show(known: "Cluster", views: "Sequence[View]", output: Format) -> bool:
    """Show the state; return whether all is well."""
    missing = groups_without_master(known.brokers)
    without = {
        name: advice_without_master(slaves, lost_at(name, known.absent)) for name, slaves in missing.items()
    }
    problems = [f"{name} (master): {advice}" for name, advice in without.items()]
    for view in views:
        if problem := problem_of(view):
            broker = view[0] if isinstance(view, tuple) else view
            problems.append(f"{broker.broker_name} ({broker.role}): {problem}")
    lost = missing_brokers(known.brokers, views, known.absent)
    problems += [f"{one.broker_name} ({one.who}): {one.advice}" for one in lost]
    if not known.brokers:
        problems.append(NO_BROKER)
    if not known.settled:
        problems.append(UNSETTLED)
    if output is Format.TABLE:
        rows = [missing_row(name, slaves) for name, slaves in missing.items()]
        ends = log_ends(views)
        rows += [row for view in views for row in rows_of(view, ends)]
        rows += [(one.broker_name, one.who, one.state, *("-",) * 8) for one in lost]
        if rows:
            print_table(COLUMNS, rows, optional=OPTIONAL)
        for sentence in leads(views):
            note(sentence)
        for view in views:
            if not isinstance(view, tuple) and view.role == "master":
                note(what_may_be_lost(view))
    else:
        objects = [missing_object(name, advice) for name, advice in without.items()]
        emit([*objects, *map(as_object, views), *map(lost_object, lost)], output, columns=(), rows=())
    for problem in problems:
        note(problem)
    return not problems


def missing_object(name: str, problem: str) -> dict[str, Any]:
    """Return a master that is missing, for JSON."""
    return {"broker_name": name, "broker_id": 0, "role": "master", "error": "missing"} | verdict(problem)


def lost_object(one: Missing) -> dict[str, Any]:
    """Return a broker that should be registered and is not, for JSON."""
    return {
        "broker_name": one.broker_name,
        "broker_id": one.broker_id,
        "role": one.who.partition(" ")[0],
        "error": one.state,
    } | verdict(one.advice)


def as_object(view: View) -> dict[str, Any]:
    """Return a broker's view for JSON, with the verdict on it."""
    if isinstance(view, tuple):
        broker, error = view
        return {
            "broker_name": broker.broker_name,
            "broker_id": broker.broker_id,
            "role": broker.role,
            "error": str(error),
        } | verdict(problem_of(view))
    value = plain(view)
    assert isinstance(value, dict)
    if view.role == "master":
        value["state"] = view.takes.value
        value["may_be_lost"] = what_may_be_lost(view)
    return value | verdict(problem_of(view))


def verdict(problem: str) -> dict[str, Any]:
    return {"healthy": not problem, "problem": problem}


def missing_row(name: str, slaves: "Sequence[BrokerStatus]") -> tuple[Any, ...]:
    """Return the row of a master that is missing."""
    return name, "master", f"missing, slave {slaves[0].broker_id} serves reads", *("-",) * 8


def rows_of(view: View, ends: dict[str, int]) -> list[tuple[Any, ...]]:
    """Return a broker's rows, one for each slave of a master; `ends` has the masters' log ends by name."""
    if isinstance(view, tuple):
        broker = view[0]
        role = "master" if broker.role == "master" else f"slave {broker.broker_id}"
        return [(broker.broker_name, role, "no answer", "?", "?", broker.log_end, *("?",) * 5)]
    if view.role == "master":
        return [master_row(view), *map(peer_row, view.slaves)]
    lag = slave_lag(view, ends.get(view.broker_name))
    return [
        (
            view.broker_name,
            f"slave {view.broker_id}",
            slave_state(view, lag),
            "-" if lag is None else size_text(lag),
            view.ha_address or "unknown master",
            view.log_end,
            "-",
            view.flushed_offset,
            view.dispatched_offset,
            "-",
            "-",
        )
    ]


def master_row(view: "ReplicationStatus") -> tuple[Any, ...]:
    return (
        view.broker_name,
        "master" if view.election is None else f"master {view.broker_id}",
        master_state(view),
        "",
        "",
        view.log_end,
        view.confirmed_offset,
        view.flushed_offset,
        view.dispatched_offset,
        "",
        f"{view.replication}, flush {view.flush}",
    )


def peer_row(slave: "SlaveStatus") -> tuple[Any, ...]:
    """Return the row of a slave's connection as its master sees it."""
    lag = slave.lag_bytes
    whose = f"of slave {slave.broker_id}" if slave.broker_id else ""
    state = "does not count" if slave.uncounted else step(lag)
    return ("", whose, state, size_text(lag), slave.peer, "", "", "", "", slave.acknowledged_offset, "")
