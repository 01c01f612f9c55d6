"""Cases of calls about positions, and of administrators: how they are made, and what they do.

    gRPC       AdminCase.by_grpc(side, service, name, request)      a method of one answer of any service
    remoting   AdminCase.by_remoting(side, code, fields, body)      a request, of a peer on this machine

`admin_outcome` makes a case's call and says in one line what was answered, and what has changed: rows of the
tables with their files, where groups stand, positions that members are sent to, what members are told, and
what receives and pulls are answered that wait meanwhile. A broker is a master that runs, or a slave
(`turned_slave`), which has what a master had in its store before.
"""

import hashlib
import re
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final
from unittest import mock

from support.engine.cases import Started, creations_of, drafts_of, put, set_up, store_all
from support.engine.in_process import CLIENT, PEER, InProcess, in_process
from support.engine.lease_cases import (
    LeaseCase,
    Steps,
    after_steps,
    begin_case,
    case_text,
    faults,
    fill_journal,
    hold,
    lease_text,
)
from support.engine.pull_rules import RemotingPullCase
from support.engine.pull_sides import MasterSide
from support.engine.rules import Rule
from support.engine.take_rules import TakeCase, begin_take
from support.engine.turned import TurnedClock, turned_master
from support.remoting.handlers import FakePeer
from whimbrel.broker.consume.client_positions import UNHEARD_S
from whimbrel.broker.roles.slave import SlaveRole
from whimbrel.broker.tables import versioned
from whimbrel.broker.tables.remoting_clients import Consumes, Identity
from whimbrel.deferred import Deferred
from whimbrel.errors import StoreFull, WhimbrelError
from whimbrel.model.names import TEMPLATE_TOPIC
from whimbrel.model.wire import CLIENT_ID_HEADER
from whimbrel.rpc.remoting.command import Command
from whimbrel.rpc.remoting.handlers import reply_to_error
from whimbrel.rpc.server.handlers import Call, UnaryMethod
from whimbrel.store.codec import decode_record

__all__ = [
    "AGAIN_RULE", "FAULT_RULES", "MEMBER_RULES", "POLL_RULES", "STRANGER_RULE", "AdminCase", "AdminSide",
    "Before", "admin_outcome", "admin_side", "does", "fields", "master_outcomes",
    "member", "slave_outcomes", "store_messages", "turned_slave",
]  # fmt: skip

HERE, STRANGER = "127.0.0.1:5000", "10.0.0.9:5000"
APART_MS = 10  # between the messages of queue 0
# Files of a store: brokers come and go, and each case has queues.
SMALL: Final[dict[str, Any]] = {
    "commitlog_file_size": 4 << 20, "consumequeue_file_size": 4000, "lease_file_size": 1 << 20,
    "index_slots": 50, "index_entries": 200,
}  # fmt: skip
# What else a handler may raise, which no server turns into an answer of its own.
FAULTS = (ValueError, ArithmeticError, LookupError, TypeError, AttributeError, AssertionError)

Before = Callable[["AdminSide", Any], object]
During = Callable[["AdminSide", Any], AbstractContextManager[None]]


Cases = Sequence[tuple[str, Any]]


class AdminSide(MasterSide):
    """A broker that runs, a master or a slave."""

    @property
    def follows(self) -> bool:
        """Whether it is a slave."""
        return isinstance(self.broker.role, SlaveRole)

    def unary(self, service: str, name: str) -> UnaryMethod:
        """Return a method of one answer."""
        found = next(
            each
            for one in self.broker.broker.services
            if one.name == service
            for each in one.methods
            if each.name == name
        )
        assert isinstance(found, UnaryMethod)
        return found


class SlaveInProcess(InProcess):
    """A slave on the test's own loop."""

    @property
    def role(self) -> Any:
        """The role that serves."""
        return self.broker.role


@asynccontextmanager
async def admin_side(root: Path) -> AsyncIterator[AdminSide]:
    """Start a master, and stop it in the end."""
    async with turned_master(root, **SMALL) as master:
        yield AdminSide(master.broker, master.clock)


@asynccontextmanager
async def turned_slave(root: Path, fill: Callable[[AdminSide], object]) -> AsyncIterator[AdminSide]:
    """Start a slave over the store of a master that has stopped; stop it in the end.

    Args:
        root: an empty directory for its store.
        fill: fills the store while it is the master's.
    """
    async with admin_side(root) as master:
        fill(master)
        now_ms = master.clock.now_ms
    clock = TurnedClock(now_ms)
    async with in_process(root, machine=clock, metrics_port=0, role="slave", id=1, **SMALL) as broker:
        yield AdminSide(SlaveInProcess(broker.broker), clock)


@dataclass
class AdminCase(LeaseCase):
    """A call.

    Attributes:
        call: which one; see the `CALLS` of each kind.
        fields: of the remoting protocol's header, beside those that the call has; None takes one out.
        peer: who asks by the remoting protocol. members: peers that are members of the group, who are told.
        before: what was done before, in this order.
        during: holds while the call is made, besides.
        unwritable: the table that can't be written, `topics` or `groups`. crowded: no table takes more rows.
        unheard: the broker has just begun to serve, and has heard no heartbeats.
        polls: what waits of the group's: `receive`, `pull`.
        times: when the messages of queue 0 were stored.
        stored: the topic's messages were stored before.
        alone: its topic and group are in the tables only while it goes on, with no other case's.
        steps: what comes while the answer waits.
    """

    call: str = ""
    fields: dict[str, Any] = field(default_factory=dict)
    peer: FakePeer = field(default_factory=lambda: FakePeer(HERE))
    members: list[FakePeer] = field(default_factory=list)
    before: list[Before] = field(default_factory=list)
    during: list[During] = field(default_factory=list)
    unwritable: str = ""
    crowded: bool = False
    unheard: bool = False
    polls: str = ""
    times: list[int] = field(default_factory=list)
    stored: bool = False
    alone: bool = False
    steps: Steps = ()

    @property
    def stands_at(self) -> tuple[tuple[str, str], ...]:
        """Groups and topics: where these stand on those is told besides."""
        return ()

    def fill(self, side: AdminSide) -> None:
        """Store what is there before."""
        if self.topic is not None:
            store_messages(side, self)

    def begin(self, side: AdminSide) -> Started:
        """Make the call."""
        raise NotImplementedError

    def by_grpc(
        self, side: AdminSide, service: str, name: str, request: Any, show: Callable[[Any], str]
    ) -> Started:
        """Call a method of gRPC."""
        method = side.unary(service, name)
        call = Call(f"/{service}/{name}", PEER, {CLIENT_ID_HEADER: CLIENT}, None)

        def failed(error: Exception) -> str:
            if not isinstance(error, WhimbrelError):
                return f"raises {type(error).__name__}"
            if method.fail is not None:
                return show(method.fail(call, error))
            return f"{error.grpc} {error.reason} {error}"

        return started_by(lambda: method.handle(call, request), show, failed)

    def by_remoting(self, side: AdminSide, code: int, header: dict[str, Any], body: bytes = b"") -> Started:
        """Make a request of the remoting protocol."""
        texts = {name: str(value) for name, value in (header | self.fields).items() if value is not None}

        def failed(error: Exception) -> str:
            if not isinstance(error, WhimbrelError):
                return f"raises {type(error).__name__}"
            return reply_text(reply_to_error(error))

        return started_by(lambda: side.request(self.peer, Command(code, 7, texts, body)), reply_text, failed)


def started_by(
    ask: Callable[[], Any], show: Callable[[Any], str], failed: Callable[[Exception], str]
) -> Started:
    """Make a call; return how it goes."""
    try:
        found = ask()
    except (WhimbrelError, *FAULTS) as error:
        return Started(failed(error))
    return Started(None, found, show, failed) if isinstance(found, Deferred) else Started(show(found))


QUEUES = re.compile(rb'\{"brokerName":"broker-a","queueId":(\d+),"topic":"([^"]*)"\}')


def body_text(body: bytes) -> str:
    """Return a body with queues in short: `0 of TOPIC`, the case's own ones as `0`."""
    return QUEUES.sub(rb"\1 of \2", body).decode("utf-8", "replace")


def reply_text(reply: Any) -> str:
    """Say what a request of the remoting protocol was answered."""
    if reply is None:
        return "no answer"
    parts = [str(int(reply.code)), reply.remark or ""]
    parts += [f"{name} {value}" for name, value in reply.fields.items()]
    parts += [body_text(b"".join(reply.body))]
    return " ".join(filter(None, parts))


# Before


def store_messages(side: AdminSide, case: AdminCase) -> None:
    """Store what the case's topic has, each message some time after the one before."""
    drafts = drafts_of(case)
    for draft in drafts:
        case.times.append(side.clock.now_ms)
        store_all(side, [draft])
        side.put_forward(APART_MS)
    if drafts:
        store_all(side, [case.draft("E", "A", 9, 2)])
    case.stored = True


def start_polls(side: AdminSide, case: AdminCase) -> list[Started]:
    """Have a receive wait, for which the group holds all messages, or a pull at the end."""
    started = []
    if "receive" in case.polls:
        for queue_id in (0, 2):
            hold(
                side,
                case,
                0,
                2 if case.polls == "receive in order" else 1 << 30,
                queue_id=queue_id,
                for_ms=60_000,
            )
        receive = TakeCase(case.number, asked_topic=case.name, asked_group=case.group)
        receive.began_ms = case.began_ms
        started.append(begin_take(side, receive))
        case.waiting += receive.waiting
    if "pull" in case.polls:
        pull = RemotingPullCase(case.number, asked_topic=case.name, asked_group=case.group)
        pull.offset, pull.flags = lambda low, high: high, 6
        started.append(pull.begin(side))
        case.waiting += started[-1:]
    return started


@contextmanager
def broken(side: AdminSide, case: AdminCase) -> Iterator[None]:
    """Have the broker be as the case says."""
    role, tables = side.broker.role, {"topics": side.topics, "groups": side.groups}
    until = side.clock.monotonic() + (UNHEARD_S if case.unheard else -1)
    role.client_positions.unheard_until = until

    def save(*arguments: Any) -> None:
        raise StoreFull("the disk has no room for the table")

    with ExitStack() as stack:
        if side.follows:
            side.groups.auto_create = case.made
            stack.callback(vars(side.consumption.lease_store.journal).pop, "append", None)
            if case.journal_full:
                fill_journal(side, case)
        else:
            if TEMPLATE_TOPIC not in side.topics.rows:
                stack.callback(side.topics.remove, TEMPLATE_TOPIC)  # which is made where sends make topics
            stack.enter_context(set_up(side, case))
            stack.enter_context(faults(side, case))
        if case.unwritable:
            stack.enter_context(mock.patch.object(tables[case.unwritable], "save", save))
        if case.crowded:
            stack.enter_context(mock.patch.object(versioned, "TOPICS_MAX", 0))
        for each in case.during:
            stack.enter_context(each(side, case))
        yield


# After


def row_text(old: Any, new: Any) -> str:
    """Say what of a row is another than before, of a new one than of one of its kind."""
    before = (type(new)(name=new.name) if old is None else old).bean()
    changed = [f"{name} {value}" for name, value in new.bean().items() if before.get(name) != value]
    return " ".join([new.name, *changed])


class Seen:
    """What a call may change, as it is before."""

    def __init__(self, side: AdminSide, case: AdminCase) -> None:
        self.side, self.case = side, case
        self.tables = (("topic", side.topics), ("group", side.groups))
        self.rows = [dict(table.rows) for _, table in self.tables]
        self.versions = [table.version.counter for _, table in self.tables]
        groups, topics = (case.group, case.asked_group), (case.name, case.asked_topic)
        self.places = dict.fromkeys(
            [*((group, name) for group in groups for name in topics), *case.stands_at]
        )
        self.ends = self.queue_ends()
        self.stands, self.queues = self.positions(), self.queues_text()
        self.planned = self.is_planned()
        self.frames = side.consumption.lease_store.number
        self.written = side.store.written

    def positions(self) -> dict[str, str]:
        """Return where groups stand, and where members are sent, by group, topic and queue."""
        found = {}
        for group, name in self.places:
            label = "" if (group, name) == (self.case.group, self.case.name) else f"{group} on {name} "
            for queue_id in range(4):
                state = self.side.consumption.table.find(group, name, queue_id)
                if state is not None and (state.started or state.epoch):
                    found[f"{label}{queue_id}"] = label + lease_text(self.case, state)
                target = self.side.redirected(group, name, queue_id)
                if target is not None:
                    found[f"{label}sent {queue_id}"] = f"{label}{queue_id} sent to {target}"
        return found

    def queue_ends(self) -> list[int]:
        """Return where the topic's queues end."""
        return [self.side.store.queue_range(self.case.name, queue_id)[1] for queue_id in range(4)]

    def stored(self) -> list[str]:
        """Say which messages the topic has got, and a digest of all that each is."""
        found = []
        for queue_id, (before, end) in enumerate(zip(self.ends, self.queue_ends(), strict=True)):
            units = self.side.store.queue_units(self.case.name, queue_id, before, max(end - before, 0))
            for number, (place, size, _) in enumerate(units, before):
                one = decode_record(self.side.store.read(place, size))
                told = f"{one.properties_raw.decode()} {one.reconsume_times} {one.born_timestamp} {one.flag} "
                whole = case_text(self.case, told).encode() + one.body
                digest = hashlib.sha256(whole).hexdigest()[:8]
                found.append(f"stored {queue_id}:{number} {one.properties.get('UNIQ_KEY')} #{digest}")
        return found

    def is_planned(self) -> bool:
        """Tell whether the broker keeps a plan of what the group is given of the topic."""
        return (self.case.group, self.case.name) in self.side.consumption.planner.subscriptions

    def queues_text(self) -> str:
        """Say which queues the topic has, where they go, and where deleted ones ended."""
        store, name = self.side.store, self.case.name
        found = [
            f"{queue_id}:{queue.min}..{queue.max}"
            for queue_id, queue in sorted(store.queues.by_topic.get(name, {}).items())
        ]
        ended = store.queues.deleted_offsets.by_topic.get(name)
        found += [f"deleted {ended}"] if ended else []
        found += ["files"] if (self.side.broker.role.root / "consumequeue" / name).exists() else []
        return " ".join(found) or "none"

    def changes(self) -> list[str]:
        """Say what is another now."""
        found: list[str] = []
        for (kind, table), rows, version in zip(self.tables, self.rows, self.versions, strict=True):
            told = [f"-{kind} {name}" for name in rows if name not in table.rows]
            told += [
                f"{'' if name in rows else '+'}{kind} {row_text(rows.get(name), row)}"
                for name, row in table.rows.items()
                if rows.get(name) is not row
            ]
            steps = table.version.counter - version
            found += [*told, f"{kind}s written {steps} times"] if steps != min(len(told), 1) else told
            written = steps or self.case.unwritable
            if written and table.path.read_bytes() != table.encode().encode():
                found.append(f"the file of {kind}s differs")
        stands, queues = self.positions(), self.queues_text()
        found += [text for place, text in stands.items() if self.stands.get(place) != text]
        found += [f"{place} is gone" for place in self.stands if place not in stands]
        stored = self.stored()
        found += stored or ([f"queues {queues}"] if queues != self.queues else [])
        found += ["no plan"] if self.planned and not self.is_planned() else []
        return [*found, *creations_of(self.side, self.case)]

    def frames_text(self) -> list[str]:
        """Say how much was written to the journal of leases; the broker itself writes there, too, later."""
        frames = self.side.consumption.lease_store.number - self.frames
        return [f"frames {frames}"] if frames else []


def told_text(case: AdminCase) -> list[str]:
    """Say what members of the group were told."""
    found = []
    for number, peer in enumerate(case.members):
        for code, header, body in peer.pushed:
            parts = [f"{name} {text}" for name, text in header.items()]
            found.append(" ".join([f"member {number} told {int(code)}", *parts, body_text(body)]))
    return found


STORED_AT = re.compile(r"\b18\d{11}\b")  # epoch milliseconds
TABLE_SIZE = re.compile(r"(?<=json has )\d+")


async def admin_outcome(side: AdminSide, case: AdminCase) -> str:
    """Make a case's call; return what was answered, and what has changed.

    Topic and group of the case are in the tables already, unless it is alone there.
    """
    begin_case(side, case)
    with ExitStack() as stack:
        if case.alone and not side.follows:
            stack.enter_context(own_tables(side, case))
        if not case.stored:
            case.fill(side)
        case.began_ms = side.clock.now_ms
        queue = side.store.queues.get(case.name, 0)
        if queue is not None:
            queue.min = min(case.begins, queue.max)
        for before in case.before:
            before(side, case)
        polls = start_polls(side, case)
        stack.callback(end_polls, side, case)
        stack.enter_context(broken(side, case))
        seen = Seen(side, case)
        started = case.begin(side)
        texts = [started.state, *seen.changes(), *seen.frames_text(), *told_text(case)]
        if case.again:
            second = Seen(side, case)
            texts.append(f"again: {case.begin(side).state}")
            texts += [*second.changes(), *second.frames_text()]
        await side.turn()
        if started.waits:
            first = seen.changes()
            texts += await after_steps(side, case, started, case.steps)
            now = seen.changes()
            texts += [f"then {' | '.join(each for each in now if each not in first) or '-'}"] * (now != first)
        texts += [f"{case.polls.partition(' ')[0]}: {one.state}" for one in polls]
    return case_text(case, TABLE_SIZE.sub("MANY", times_text(case, " | ".join(texts))))


def times_text(case: AdminCase, text: str) -> str:
    """Return a text with times as they are told from the first message of the case on."""
    first = case.times[0] if case.times else 0

    def told(found: re.Match[str]) -> str:
        after = int(found[0]) - first
        return f"{after:+} ms" if after >= 0 else "before"

    return STORED_AT.sub(told, text)


def end_polls(side: AdminSide, case: AdminCase) -> None:
    """Have those leave that wait, and members."""
    for one in case.waiting:
        if one.deferred is not None:
            one.deferred.cancel()
    for peer in case.members:
        side.clients.closed(peer)


@contextmanager
def own_tables(side: AdminSide, case: AdminCase) -> Iterator[None]:
    """Put a case's topic and group into the tables, and have these be as before in the end."""
    tables = (side.topics, side.groups)
    before = [dict(table.rows) for table in tables]
    make_tables(side, [("", case)])
    try:
        yield
    finally:
        for table, rows in zip(tables, before, strict=True):
            for name in [name for name in table.rows if name not in rows]:
                table.remove(name)
            table.put_all(rows.values())


def make_tables(side: AdminSide, cases: Cases) -> None:
    """Put topics and groups of cases into the tables."""
    side.topics.put_all([case.topic for _, case in cases if case.topic is not None])
    side.groups.put_all([case.config for _, case in cases if case.config is not None])


async def master_outcomes(root: Path, parts: Sequence[Cases]) -> dict[str, str]:
    """Return the outcomes of cases in parts, each on a master of its own."""
    found: dict[str, str] = {}
    for number, part in enumerate(parts):
        async with admin_side(root / str(number)) as side:
            make_tables(side, [each for each in part if not each[1].alone])
            found |= {name: await admin_outcome(side, case) for name, case in part}
    return found


async def slave_outcomes(root: Path, parts: Sequence[Cases]) -> dict[str, str]:
    """Return the outcomes of cases in parts, each on a slave of its own."""
    found: dict[str, str] = {}
    for number, part in enumerate(parts):

        def fill(side: AdminSide, part: Cases = part) -> None:
            make_tables(side, part)
            for _, case in part:
                case.fill(side)

        async with turned_slave(root / str(number), fill) as side:
            found |= {name: await admin_outcome(side, case) for name, case in part}
    return found


# Rules of several kinds of calls


def member(language: str = "JAVA", model: str = "CLUSTERING") -> Callable[[AdminCase], object]:
    """Return what has a member of the group live."""

    def before(side: AdminSide, case: AdminCase) -> None:
        peer = FakePeer(HERE)
        case.members.append(peer)
        said = Consumes(group=case.group, model=model, topics={})
        side.clients.consumes(peer, Identity("c", language, 399), said, side.clock.monotonic())

    return does(before)


def does(*steps: Before) -> Callable[[AdminCase], object]:
    """Return what has something be done before."""
    return lambda case: case.before.extend(steps)


def fields(**changes: Any) -> Callable[[AdminCase], object]:
    """Return what sets fields of the header; None takes one out."""
    return lambda case: case.fields.update(changes)


MEMBER_RULES: Final[tuple[Rule, ...]] = (
    Rule("a member", "members", member()),
    Rule("a member in C++", "members", member("CPP")),
    Rule("a member by broadcast", "members", member(model="BROADCASTING")),
)


def waits_in_order(case: AdminCase) -> None:
    """Have a receive of a group in order wait for the first two messages, which are held."""
    case.change_group(fifo=True)
    case.change(read_queues=1)
    case.polls = "receive in order"


POLL_RULES: Final[tuple[Rule, ...]] = (
    Rule("a receive waits", "polls", put(polls="receive")),
    Rule("a receive waits in order", "polls", waits_in_order),
    Rule("a pull waits", "polls", put(polls="pull")),
)
FAULT_RULES: Final[tuple[Rule, ...]] = (
    Rule("journal full", "journal", put(journal_full=True)),
    Rule("journal full once", "journal", put(journal_full="once")),
)
STRANGER_RULE: Final = Rule("a stranger", "peer", lambda case: setattr(case, "peer", FakePeer(STRANGER)))
AGAIN_RULE: Final = Rule("twice", "again", put(again=True))
