"""Rules that calls about positions can break, by each protocol, and which of them are broken at once.

    gRPC       UpdateOffset, GetOffset, QueryOffset; ResetOffsets, which is an administrator's
    remoting   14, 15, 29 to 32 (`remoting/positions.py`), 222 (`remoting/resets.py`), 314, which clones
               positions (`remoting/consume_stats.py`)

The call is a rule itself: the first of each combination. Queue 0 of the topic has messages (`cases.py`), each
stored some time after the one before; queue 2 has one; calls are about queue 0, the offset 3, and the time of
the third message. A clone goes from another group (`source`), which stands at 4, to the case's.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final
from unittest import mock

from support.engine.admin_cases import (
    AGAIN_RULE,
    FAULT_RULES,
    MEMBER_RULES,
    POLL_RULES,
    STRANGER_RULE,
    AdminCase,
    AdminSide,
    Before,
    does,
    fields,
)
from support.engine.cases import DAMAGE_RULES, GROUP_RULES, TOPIC_RULES, Started, put
from support.engine.lease_cases import ALONE, finish, hold
from support.engine.rules import Rule, combinations, each_once
from whimbrel.errors import StoreFull
from whimbrel.model.limits import LOG_END_MAX
from whimbrel.model.topic import TopicConfig
from whimbrel.model.wire import ADMIN_SERVICE, MESSAGING_SERVICE
from whimbrel.pb.apache.rocketmq.v2 import service_pb2 as messaging
from whimbrel.pb.whimbrel.admin.v1 import admin_service_pb2 as admin

__all__ = ["ADMIN_CALLS", "REMOTING_CALLS", "V2_CALLS", "PositionCase", "position_combinations"]

LONG_MAX = (1 << 63) - 1


@dataclass
class PositionCase(AdminCase):
    """A call about positions.

    Attributes:
        queue_id: None: a reset of all queues.
        offset: None: a reset by the time.
        at: a time, by those of the messages of queue 0; None: the request has none.
        policy: of QueryOffset. target: of ResetOffsets. forced: of 222.
        topic_named: 314 names the topic. source_at: where the group stands whose positions are cloned.
    """

    queue_id: int | None = 0
    offset: int | None = 3
    at: Callable[[list[int]], int] | None = lambda times: times[2] if times else 0
    policy: int = messaging.TIMESTAMP
    target: str = "offset"
    forced: bool = True
    topic_named: bool = True
    source_at: int | None = 4

    @property
    def source(self) -> str:
        """The group whose positions are cloned."""
        return f"from-{self.number:05}-"

    @property
    def at_ms(self) -> int | None:
        """The time that is asked for."""
        return None if self.at is None else self.at(self.times)

    def begin(self, side: AdminSide) -> Started:
        """See `AdminCase`."""
        return CALLS[self.call](side, self)


def set_time(stamp: Any, at_ms: int | None) -> None:
    """Set a timestamp of a request."""
    if at_ms is not None:
        stamp.seconds, stamp.nanos = at_ms // 1000, at_ms % 1000 * 1_000_000 + 1


# Calls of gRPC


def of_queue(case: PositionCase, request: Any) -> Any:
    """Name queue and group in a request of `apache.rocketmq.v2`."""
    request.message_queue.topic.name, request.message_queue.id = case.asked_topic, case.queue_id or 0
    if hasattr(request, "group"):
        request.group.name = case.asked_group
    return request


def status_and_offset(found: Any) -> str:
    """Say what a call about an offset was answered."""
    offset = f" offset {found.offset}" if hasattr(found, "offset") else ""
    return f"{found.status.code} {found.status.message}{offset}"


def update_offset(side: AdminSide, case: PositionCase) -> Started:
    """Call UpdateOffset."""
    request = of_queue(case, messaging.UpdateOffsetRequest(offset=case.offset))
    return case.by_grpc(side, MESSAGING_SERVICE, "UpdateOffset", request, status_and_offset)


def get_offset(side: AdminSide, case: PositionCase) -> Started:
    """Call GetOffset."""
    request = of_queue(case, messaging.GetOffsetRequest())
    return case.by_grpc(side, MESSAGING_SERVICE, "GetOffset", request, status_and_offset)


def query_offset(side: AdminSide, case: PositionCase) -> Started:
    """Call QueryOffset."""
    request = of_queue(case, messaging.QueryOffsetRequest())
    request.query_offset_policy = case.policy
    if case.at is not None:
        set_time(request.timestamp, case.at_ms)
    return case.by_grpc(side, MESSAGING_SERVICE, "QueryOffset", request, status_and_offset)


def progress_text(found: Any) -> str:
    """Say what ResetOffsets was answered."""
    return "OK " + ", ".join(
        f"{row.queue_id}@{row.committed_offset} next {row.next_offset} of {row.max_offset}"
        f" held {row.in_flight} lag {row.lag}"
        for row in found.progress
    )


def reset_offsets(side: AdminSide, case: PositionCase) -> Started:
    """Call ResetOffsets."""
    request = admin.ResetOffsetsRequest(
        group=case.asked_group, topic=case.asked_topic, queue_id=case.queue_id
    )
    if case.target in ("earliest", "latest"):
        setattr(request, case.target, True)
    elif case.target == "timestamp":
        set_time(request.timestamp, case.at_ms)
    elif case.target == "offset":
        request.offset = case.offset or 0
    return case.by_grpc(side, ADMIN_SERVICE, "ResetOffsets", request, progress_text)


# Requests of the remoting protocol


def about_queue(code: int, *more: str) -> Callable[[AdminSide, PositionCase], Started]:
    """Return what makes a request about a queue; `more` are fields besides topic and queue."""

    def begin(side: AdminSide, case: PositionCase) -> Started:
        every = {
            "consumerGroup": case.asked_group, "commitOffset": case.offset, "timestamp": case.at_ms,
        }  # fmt: skip
        header = {"topic": case.asked_topic, "queueId": case.queue_id}
        return case.by_remoting(side, code, header | {name: every[name] for name in more})

    return begin


def reset(side: AdminSide, case: PositionCase) -> Started:
    """Make a request 222."""
    header = {
        "topic": case.asked_topic, "group": case.asked_group, "timestamp": case.at_ms,
        "isForce": str(case.forced).lower(), "queueId": case.queue_id, "offset": case.offset,
    }  # fmt: skip
    return case.by_remoting(side, 222, header)


def clone(side: AdminSide, case: PositionCase) -> Started:
    """Make a request 314."""
    header = {"srcGroup": case.source, "destGroup": case.asked_group}
    return case.by_remoting(side, 314, header | ({"topic": case.asked_topic} if case.topic_named else {}))


V2_CALLS: Final = ("UpdateOffset", "GetOffset", "QueryOffset")
REMOTING_CALLS: Final = ("14", "15", "29", "30", "31", "32")
ADMIN_CALLS: Final = ("ResetOffsets", "222", "314")
CALLS: Final[dict[str, Callable[[AdminSide, PositionCase], Started]]] = {
    "UpdateOffset": update_offset,
    "GetOffset": get_offset,
    "QueryOffset": query_offset,
    "ResetOffsets": reset_offsets,
    "14": about_queue(14, "consumerGroup"),
    "15": about_queue(15, "consumerGroup", "commitOffset"),
    "29": about_queue(29, "timestamp"),
    "30": about_queue(30),
    "31": about_queue(31),
    "32": about_queue(32),
    "222": reset,
    "314": clone,
}


# What was before


def stands(offset: int, queue_id: int = 0) -> Before:
    """Return what has the group stand there, or at the queue's end before that."""

    def before(side: AdminSide, case: PositionCase) -> None:
        end = side.store.queue_range(case.name, queue_id)[1]
        side.consumption.positions.update_offset(case.group, case.name, queue_id, min(offset, end))

    return before


def source_stands(side: AdminSide, case: PositionCase) -> None:
    """Have the source stand where the case says."""
    if case.source_at is not None:
        end = side.store.queue_range(case.name, 0)[1]
        side.consumption.positions.update_offset(case.source, case.name, 0, min(case.source_at, end))


def was_reset(offset: int) -> Before:
    """Return what has the group be reset, so that members are sent there."""

    def before(side: AdminSide, case: PositionCase) -> None:
        side.reset(case.group, case.name, 0, min(offset, side.store.queue_range(case.name, 0)[1]))

    return before


def long_ago(side: AdminSide, case: PositionCase) -> None:
    """Have the time be over in which members are sent to where the group was reset."""
    redirected = side.broker.role.client_positions.redirected
    place = case.group, case.name, 0
    redirected[place] = redirected[place][0], -1.0


def began_here(side: AdminSide, case: PositionCase) -> None:
    """Have the group have no position before a member commits 4, just after the broker has begun."""
    positions = side.broker.role.client_positions
    positions.unheard_until = side.clock.monotonic() + 1
    end = side.store.queue_range(case.name, 0)[1]
    positions.commit(case.group, case.name, 0, min(4, end), owned=True)


def elsewhere(side: AdminSide, case: PositionCase) -> None:
    """Have the source stand on another topic as well."""
    other = f"other-{case.number:05}-"
    side.topics.put(TopicConfig(name=other, read_queues=1, write_queues=1))
    side.consumption.positions.update_offset(case.source, other, 0, 0)


def topic_is_not(side: AdminSide, case: PositionCase) -> None:
    """Take the topic out of the table; positions stay."""
    side.topics.remove(case.name)


def forgotten(side: AdminSide, case: PositionCase) -> None:
    """Have the group be deleted and made anew after it stood at 4: it has an epoch, and no position."""
    stands(4)(side, case)
    side.consumption.delete_group(case.group)


@contextmanager
def journal_full_later(side: AdminSide, case: PositionCase) -> Iterator[None]:
    """Have the disk take one more change about leases, and then none."""
    journal = side.consumption.lease_store.journal
    append, took = journal.append, list[bytes]()

    def once(entries: bytes) -> None:
        if took:
            raise StoreFull("the journal is full")
        took.append(entries)
        append(entries)

    with mock.patch.object(journal, "append", once):
        yield


def holds_first(side: AdminSide, case: PositionCase) -> None:
    """Have the group hold the first message."""
    hold(side, case, 0, 1)


def does_third(side: AdminSide, case: PositionCase) -> None:
    """Have the group be done with the third message."""
    finish(side, case, 2, 3)


@contextmanager
def far_back(side: AdminSide, case: PositionCase) -> Iterator[None]:
    """Have the queue's first message stand further back in the log than what fits in memory."""
    units = side.store.queue_units

    def queue_units(topic: str, queue_id: int, offset: int, count: int) -> list[tuple[int, int, int]]:
        return [
            (place - LOG_END_MAX, size, code) for place, size, code in units(topic, queue_id, offset, count)
        ]

    with mock.patch.object(side.store, "queue_units", queue_units):
        yield


# The rules

POSITION_RULES: Final[list[Rule]] = [*TOPIC_RULES, *GROUP_RULES]


def rule(name: str, what: str, apply: Callable[[Any], object]) -> None:
    """Add a rule."""
    POSITION_RULES.append(Rule(name, what, apply))


rule("one queue to write", "queues", lambda case: case.change(write_queues=1))
rule("6 queues to write", "queues", lambda case: case.change(write_queues=6))
rule("queue 1", "queue", put(queue_id=1))
rule("queue 2", "queue", put(queue_id=2))
rule("queue 4", "queue", put(queue_id=4))
rule("queue -1", "queue", put(queue_id=-1))
rule("queue 70000", "queue", put(queue_id=70_000))
rule("no queue", "queue", put(queue_id=None))
for number in (-1, 0, 1, 4, 5, 6, LONG_MAX):
    rule(f"offset {number if number != LONG_MAX else 'max'}", "offset", put(offset=number))
rule("no offset", "offset", put(offset=None))
for title, at in (
    ("time of the first", lambda times: times[0] if times else 0),
    ("time between", lambda times: times[2] + 5 if times else 0),
    ("time after all", lambda times: times[-1] + 1000 if times else 1),
    ("time 0", lambda times: 0),
    ("time -1", lambda times: -1),
    ("time -2", lambda times: -2),
    ("time far ahead", lambda times: 1 << 52),
):  # fmt: skip
    rule(title, "time", put(at=at))
rule("no time", "time", put(at=None))
rule("policy BEGINNING", "policy", put(policy=messaging.BEGINNING))
rule("policy END", "policy", put(policy=messaging.END))
rule("policy 7", "policy", put(policy=7))
for target in ("earliest", "latest", "timestamp", "nowhere"):
    rule(target, "target", put(target=target))
rule("not forced", "forced", put(forced=False))
rule("no topic named", "topic named", put(topic_named=False))
rule("no messages", "contents", put(contents="none"))
rule("begins at 2", "begins", put(begins=2))
rule("all are gone", "begins", put(begins=99))
POSITION_RULES.extend(DAMAGE_RULES)
rule("stands at 0", "stands", does(stands(0)))
rule("stands at 2", "stands", does(stands(2)))
rule("stands at 4", "stands", does(stands(4)))
rule("stands on 2", "stands", does(stands(1, 2)))
rule("holds 0 and 1", "stands", does(lambda side, case: hold(side, case, 0, 2)))
rule("holds 0, done 2", "stands", does(holds_first, does_third))
rule("reset to 1", "stands", does(was_reset(1)))
rule("reset to 1 long ago", "stands", does(was_reset(1), long_ago))
rule("reset to 1, went on", "stands", does(was_reset(1), stands(2)))
rule("began here", "stands", does(began_here))
rule("group made anew", "stands", does(forgotten))
rule("source stands nowhere", "source", put(source_at=None))
rule("source stands at 1", "source", put(source_at=1))
rule("source elsewhere, too", "source", does(elsewhere))
rule("topic goes", "goes", does(topic_is_not))
rule("far back in the log", "memory", lambda case: case.during.append(far_back))
POSITION_RULES.extend(MEMBER_RULES)
rule("not heard yet", "heard", put(unheard=True))
POSITION_RULES.extend(FAULT_RULES)
rule("journal full after one", "journal later", lambda case: case.during.append(journal_full_later))
rule("no writes", "writes", put(refusal="writes are refused"))
POSITION_RULES.extend(POLL_RULES)
POSITION_RULES.append(STRANGER_RULE)
POSITION_RULES.append(AGAIN_RULE)

FIELDS: Final = (
    "topic", "queueId", "consumerGroup", "commitOffset", "timestamp", "group", "srcGroup", "destGroup",
)  # fmt: skip
for name in FIELDS:
    rule(f"{name} missing", f"{name} missing", fields(**{name: None}))
for name, what in (
    ("queueId", "queue"), ("commitOffset", "offset"), ("offset", "offset"), ("timestamp", "time"),
):  # fmt: skip
    rule(f"{name} no number", what, fields(**{name: "x"}))
    rule(f"{name} too great", what, fields(**{name: 1 << 63}))

# What matters to a call, by what rules set; all other rules are not broken with it.
NAMES: Final = frozenset(
    ("name", "topic", "permission", "queues", "queue", "topic missing", "queueId missing")
)
GROUPS: Final = frozenset(("named", "group", "creations", "stands"))
QUEUE: Final = frozenset(("contents", "begins"))
WRITES: Final = frozenset(("journal", "polls", "again", "writes"))
TOLD: Final = frozenset(("members", "heard"))
MATTERS: Final[dict[str, frozenset[str]]] = {
    "UpdateOffset": NAMES | GROUPS | QUEUE | WRITES | TOLD | {"offset"},
    "GetOffset": NAMES | GROUPS | QUEUE,
    "QueryOffset": NAMES | QUEUE | {"policy", "time", "damage"},
    "14": NAMES | GROUPS | QUEUE | {"consumerGroup missing", "memory", "members"},
    "15": NAMES | GROUPS | QUEUE | WRITES | TOLD
    | {"offset", "consumerGroup missing", "commitOffset missing", "peer"},
    "29": NAMES | QUEUE | {"time", "timestamp missing", "damage"},
    "30": NAMES | QUEUE,
    "31": NAMES | QUEUE,
    "32": NAMES | QUEUE | {"damage"},
    "ResetOffsets": NAMES | GROUPS | QUEUE | WRITES | TOLD | {"offset", "target", "time", "journal later"},
    "222": NAMES | GROUPS | QUEUE | WRITES | TOLD | {"offset", "time", "forced", "journal later",
                                                     "group missing", "timestamp missing", "peer"},
    "314": GROUPS | QUEUE | WRITES | TOLD | {"name", "topic", "source", "goes", "topic named", "peer",
                                             "srcGroup missing", "destGroup missing"},
}  # fmt: skip
# Rules of gRPC's requests, and those of the remoting protocol's, that the others have not.
HEADERS: Final = (" missing", " no number", " too great")
READ_FIRST: Final = frozenset(("name", "named", "topic", "group", "queue", "offset", "time", "peer"))
ALONE_HERE: Final = ALONE - {"system topic that is there"} | {
    "queue 70000", "offset max", "time -2", "time far ahead", "holds 0 and 1",
}  # fmt: skip
# Beside which others rules are broken, where not beside all; by what they set.
EARLY: Final = frozenset((
    "name", "named", "topic", "group", "queue", "creations", "permission", "queues", "offset", "peer",
    "target", "policy", "time", "journal",
))  # fmt: skip
BESIDE: Final = {
    "name": EARLY,
    "named": EARLY,
    "creations": frozenset(("group", "stands", "journal", "offset", "queue")),
    "permission": EARLY | {"stands"},
    "queues": EARLY | {"stands"},
    "writes": frozenset(("journal",)),
    "peer": EARLY,
    "journal later": frozenset(("queue", "again", "members", "stands")),
    "damage": frozenset(("time", "begins", "policy", "queue", "contents")),
    "heard": frozenset(("stands", "offset", "members", "source", "begins")),
    "polls": frozenset((
        "group", "stands", "offset", "queue", "members", "begins", "journal", "target", "forced",
    )),
    **dict.fromkeys(map("{} missing".format, FIELDS), EARLY),
}  # fmt: skip
# What takes several rules to make a difference, beside all other rules.
BASES: Final[dict[str, tuple[tuple[str, ...], ...]]] = {
    "15": (("a member", "reset to 1"), ("offset 1", "stands at 2"), ("not heard yet", "began here")),
    "222": (
        ("not forced", "stands at 2"),
        ("no offset", "no queue"),
        ("no offset", "not forced", "stands at 4"),
    ),
    "314": (("source stands at 1", "stands at 2"), ("source stands at 1", "began here")),
    "ResetOffsets": (("timestamp", "no queue"), ("latest", "no queue")),
    "UpdateOffset": (("offset 1", "reset to 1"),),
}


NOT_AT_A_SLAVE: Final = frozenset(("damage", "writes", "polls", "memory"))


def rules_of(call: str) -> list[Rule]:
    """Return the rules that matter to a call."""
    remoting = call.isdigit()
    return [
        rule
        for rule in POSITION_RULES
        if rule.what in MATTERS[call] and (remoting or not rule.name.endswith(HEADERS))
    ]


def names_of(broken: tuple[Rule, ...]) -> tuple[str, ...]:
    """Return the names of rules."""
    return tuple(rule.name for rule in broken)


def malformed(broken: tuple[Rule, ...]) -> bool:
    """Tell whether a header can't be read, beside what is looked at later in any case."""
    return any(rule.name.endswith(HEADERS) for rule in broken) and not all(
        rule.what in READ_FIRST or rule.name.endswith(HEADERS) for rule in broken
    )


def call_rule(call: str) -> Rule:
    """Return the rule that makes a case one of a call."""

    def apply(case: PositionCase) -> None:
        case.call = call
        if call == "314":
            case.before.append(source_stands)

    return Rule(call, "call", apply)


def every_combination(call: str) -> Iterator[tuple[Rule, ...]]:
    """Return combinations of the rules that matter to a call, some of them twice."""
    rules = rules_of(call)
    named = {rule.name: rule for rule in rules}
    for broken in combinations(rules, BESIDE):
        if len(broken) < 2 or not (set(names_of(broken)) & ALONE_HERE or malformed(broken)):
            yield broken
    for names in BASES.get(call, ()):
        base = tuple(named[name] for name in names)
        taken = {rule.what for rule in base}
        for one in rules:
            if one.what not in {*taken, "name", "named"}:
                yield *base, one


def position_combinations(calls: tuple[str, ...], *, slave: bool = False) -> list[tuple[Rule, ...]]:
    """Return, for each call, no rule, each rule, most pairs of them, and more where it takes several.

    Those of one rule come first. Left out: rules that a call has nothing to do with (`MATTERS`); pairs with
    names, permissions and fields that are missing where nothing comes of it (`BESIDE`). A slave's are those
    of one rule, and of two of which one is about the offset or where the group stands, where a slave does
    not refuse the call as a whole.
    """
    found = [
        (call_rule(call), *broken)
        for call in calls
        for broken in each_once(every_combination(call))
        if not slave or at_a_slave(call, broken)
    ]
    return sorted(found, key=lambda each: len(each) > 2)


def at_a_slave(call: str, broken: tuple[Rule, ...]) -> bool:
    """Tell whether a slave's answer is recorded."""
    whats = {rule.what for rule in broken}
    if whats & NOT_AT_A_SLAVE or len(broken) > 2:
        return False
    return len(broken) < 2 or (call not in ADMIN_CALLS and bool(whats & {"offset", "stands"}))
