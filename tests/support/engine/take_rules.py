"""Rules that a receive can break, and what a broker makes of those that break some.

A rule changes a case (`TakeCase`) before it is made: the request, what there is to be received, what the
group holds already, the broker, or what comes while the receive waits. `take_outcome` makes it and says in
one line what was answered, and what has changed: topics and groups that were made, what the group holds and
where it stands, dead letters, what counts as delivered, how many receives wait.

Queue 0 of the topic has messages (`cases.py`), queue 2 has one more, and queue 1 of a topic of priorities
another one. Names of rules are short: each stands in
the record a hundred times.
"""

import hashlib
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any, Final

from support.cluster.broker_api import as_messages
from support.engine.cases import (
    CONTENTS,
    DAMAGE_RULES,
    FILTERS,
    GROUP_RULES,
    TOPIC_RULES,
    Started,
    creations_of,
    damaged,
    drafts_of,
    put,
    runs,
    set_up,
    store_all,
)
from support.engine.in_process import CLIENT, PEER
from support.engine.lease_cases import (
    ALONE,
    FAULT_RULES,
    LEASE_GROUP_RULES,
    LeaseCase,
    Steps,
    acknowledge,
    after_steps,
    begin_case,
    case_text,
    change,
    confirm,
    delete_group,
    delete_topic,
    faults,
    fill_journal,
    finish,
    handle_text,
    held_now,
    hold,
    now_s,
    side_effects,
    topic_goes,
)
from support.engine.rules import Rule, combinations, each_once
from support.engine.turned import TurnedMaster
from support.remoting.handlers import FakePeer
from whimbrel.broker.consume.lease_codec import ATTEMPT_ID_BYTES_MAX
from whimbrel.broker.engine.waiting import EARLY_RECEIVES, POLLS, POLLS_MAX
from whimbrel.broker.tables.remoting_clients import Consumes, Identity
from whimbrel.deferred import Deferred
from whimbrel.errors import WhimbrelError
from whimbrel.model.limits import INVISIBLE_MS_MAX
from whimbrel.model.topic import GroupConfig, MessageType, TopicConfig
from whimbrel.model.wire import CLIENT_ID_HEADER, MESSAGING_SERVICE, NAMESPACE_HEADER
from whimbrel.pb.apache.rocketmq.v2 import definition_pb2 as v2
from whimbrel.pb.apache.rocketmq.v2 import service_pb2 as messaging
from whimbrel.rpc.server.handlers import Call
from whimbrel.store.codec import RecordDraft

__all__ = ["TAKE_RULES", "TakeCase", "begin_take", "take_combinations", "take_outcome"]

RECEIVE = f"/{MESSAGING_SERVICE}/ReceiveMessage"
PASS_S = (4, 7, 5, 5)  # while a receive waits; 10 s are held, 15 s are usual, 20 s the most that it may wait
GROUPS = ("X", "Y", "X", "Y", "", "X")  # of messages in order
BESIDE_TIMES = 3  # that RocketMQ redelivered what it left in a retry topic

Before = Callable[[TurnedMaster, Any], object]


@dataclass
class TakeCase(LeaseCase):
    """A ReceiveMessage.

    Attributes:
        done: the group has finished all that there is.
        holds: what the group holds.
        full: no more receives may wait.
        held_back: this broker does not lead: `until it leads`, `for long`, or `with too many others`.
        pulled: members of the group pull these queues.
        beside: the joint in the name of a retry topic that RocketMQ left.
        wanted: a tag that the filter admits.
    """

    request: Any = None
    headers: dict[str, str] = field(default_factory=dict)
    deadline_s: float | None = None
    done: bool = False
    holds: Before = lambda side, case: None
    full: bool = False
    held_back: str = ""
    pulled: tuple[int, ...] = ()
    beside: str = ""
    wanted: str = "A"
    peer: FakePeer = field(default_factory=FakePeer)

    def __post_init__(self) -> None:
        super().__post_init__()
        self.comes = "messages"
        self.request = messaging.ReceiveMessageRequest(batch_size=32)
        self.request.filter_expression.type = v2.TAG
        self.request.filter_expression.expression = "*"
        self.request.invisible_duration.seconds = 30
        self.request.long_polling_timeout.seconds = 15

    @property
    def retry_topic(self) -> str:
        """The topic of redeliveries that RocketMQ left; empty for none, as where its name were too long."""
        return f"%RETRY%{self.group}{self.beside}{self.name}" if self.beside and not self.long else ""


def stored(case: TakeCase) -> list[RecordDraft]:
    """Return what is stored, in their order."""
    if case.contents == "message groups":
        return [
            case.draft(f"M{n}", "A", n, properties=f"UNIQ_KEY\x01M{n}\x02TAGS\x01A\x02n\x01{n}\x02".encode()
                       + (f"__SHARDINGKEY\x01{group}\x02".encode() if group else b""))
            for n, group in enumerate(GROUPS)
        ]  # fmt: skip
    drafts = drafts_of(case)
    if CONTENTS[case.contents] == (5, 0):
        drafts.append(case.draft("E", "A", 9, 2))
        if case.topic is not None and case.topic.message_type is MessageType.PRIORITY:
            drafts.append(case.draft("F", "A", 9, 1))
    return drafts


def begin_take(side: TurnedMaster, case: TakeCase, client: str = CLIENT) -> Started:
    """Make the receive."""
    request = case.request
    request.message_queue.topic.name, request.group.name = case.asked_topic, case.asked_group
    deadline = None if case.deadline_s is None else time.monotonic() + case.deadline_s
    call = Call(RECEIVE, PEER, {CLIENT_ID_HEADER: client, **case.headers}, deadline)
    method = side.stream("ReceiveMessage")
    assert method.fail is not None
    fail = method.fail
    shown: list[str] = []

    def show(found: Any) -> str:
        if not shown:  # once: handles are of no others later
            shown.append(received_text(side, case, found))
        return shown[0]

    def failed(error: Exception) -> str:
        return show(fail(call, error))

    try:
        found = method.handle(call, request)
    except WhimbrelError as error:
        return Started(failed(error))
    except ValueError as error:
        return Started(f"raises {type(error).__name__}")
    if not isinstance(found, Deferred):
        return Started(show(found))
    started = Started(None, found, show, failed)
    case.waiting.append(started)
    return started


def received_text(side: TurnedMaster, case: TakeCase, responses: Any) -> str:
    """Say what a receive was answered; of messages their places, attempts, and a digest of what they are."""
    texts: list[str] = []
    found: list[tuple[str, int]] = []
    digest = hashlib.sha256()

    def end_messages() -> None:
        if found:
            places: dict[str, list[int]] = {}
            for place, offset in found:
                places.setdefault(place, []).append(offset)
            told = " ".join(f"{place}:{runs(offsets)}" for place, offsets in places.items())
            texts.append(f"[{told} #{digest.hexdigest()[:8]}]")
            found.clear()

    for one in as_messages(messaging.ReceiveMessageResponse, responses):
        if one.WhichOneof("content") == "message":
            message, system = one.message, one.message.system_properties
            assert message.topic.name == case.name
            odd = handle_text(side, case, system.receipt_handle)
            place = f"{system.queue_id}x{system.delivery_attempt}" + (f" ({odd})" if odd else "")
            found.append((place, system.queue_offset))
            message.topic.name, system.receipt_handle = "TOPIC", ""
            system.ClearField("store_timestamp")
            digest.update(message.SerializeToString(deterministic=True))
            continue
        end_messages()
        if one.WhichOneof("content") == "status":
            texts.append(f"{one.status.code} {one.status.message}")
        else:
            at = one.delivery_timestamp
            texts.append(now_s(case, at.seconds * 1000 + at.nanos // 1_000_000))
    end_messages()
    return " ".join(texts)


# What comes while a receive waits


def store_one(name: str, tag: str | None, queue_id: int = 0, n: int = 5, count: int = 1) -> Before:
    """Return what stores messages; a tag None is the one that is wanted."""

    def apply(side: TurnedMaster, case: TakeCase) -> None:
        text = case.wanted if tag is None else tag
        store_all(side, [case.draft(f"{name}{each or ''}", text, n, queue_id) for each in range(count)])

    return apply


elsewhere, another, wanted = store_one("X", None, 1), store_one("Y", "BB", n=-1), store_one("Z", None)
many = store_one("Z", None, count=40)


def both(side: TurnedMaster, case: TakeCase) -> None:
    """Store one that most filters do not admit, and one that they do, at once."""
    store_all(side, [case.draft("Y", "BB", -1), case.draft("Z", case.wanted, 5)])


def corrupt(side: TurnedMaster, case: TakeCase) -> None:
    """Store one whose entry is damaged before anybody reads it, and one more."""
    wanted(side, case)
    damaged(side, case, side.store.queue_range(case.name, 0)[1] - 1, "corrupt")
    store_all(side, [case.draft("W", case.wanted, 5)])


def leaves(side: TurnedMaster, case: TakeCase) -> None:
    """Have the caller leave."""
    for one in case.waiting:
        assert one.deferred is not None
        one.deferred.cancel()


def leaves_unseen(side: TurnedMaster, case: TakeCase) -> None:
    """Have the caller leave in the moment in which it is served."""
    for one in case.waiting:
        assert one.deferred is not None
        one.deferred.cancelled = True


def second(side: TurnedMaster, case: TakeCase) -> None:
    """Have another client receive as well."""
    begin_take(side, case, "client@2")


def group_is(**fields: Any) -> Before:
    """Return what changes the group."""

    def apply(side: TurnedMaster, case: TakeCase) -> None:
        side.groups.put(replace(side.groups.get(case.group) or GroupConfig(name=case.group), **fields))

    return apply


def reset(side: TurnedMaster, case: TakeCase) -> None:
    """Reset the group to the begin of queue 0."""
    side.consumption.positions.reset_offset(case.group, case.name, 0, 0)


def commits(side: TurnedMaster, case: TakeCase) -> None:
    """Commit the group's position behind its first message."""
    side.consumption.positions.update_offset(case.group, case.name, 0, 1)


def first_changed(ms: int) -> Before:
    """Return what has the first message that is held come again at a time."""

    def apply(side: TurnedMaster, case: TakeCase) -> None:
        for offset in held_now(side, case)[:1]:
            change(side, case, offset, ms)

    return apply


def leads(side: TurnedMaster, case: TakeCase) -> None:
    """Have this broker lead."""
    side.takes.serve()


TIME: Final[Steps] = tuple((f"+{seconds}", seconds) for seconds in PASS_S)
COMES: Final[dict[str, Steps]] = {
    "messages": (("elsewhere", elsewhere), ("another", another), ("wanted", wanted), *TIME),
    "nothing": TIME,
    "both": (("both", both), *TIME),
    "many": (("many", many), *TIME),
    "corrupt": (("corrupt", corrupt), *TIME),
    "leaves": (("leaves", leaves), ("wanted", wanted), *TIME),
    "leaves unseen": (("leaves", leaves_unseen), ("wanted", wanted), ("second", second), *TIME),
    "second": (("second", second), ("wanted", wanted), ("elsewhere", elsewhere), *TIME),
    "reading off": (("off", group_is(consume_enabled=False)), ("wanted", wanted), *TIME),
    "in order": (("in order", group_is(fifo=True)), ("wanted", wanted), *TIME),
    "not in order": (("not in order", group_is(fifo=False)), *TIME),
    "group deleted": (("deleted", delete_group), ("wanted", wanted), *TIME),
    "topic goes": (("goes", topic_goes), ("wanted", wanted), *TIME),
    "topic deleted": (("deleted", delete_topic), ("wanted", wanted), *TIME),
    "reset": (("reset", reset), *TIME),
    "committed": (("committed", commits), *TIME),
    "acked": (("acked", lambda side, case: acknowledge(side, case, held_now(side, case)[:1])), *TIME),
    "all acked": (("acked", lambda side, case: acknowledge(side, case, held_now(side, case))), *TIME),
    "changed to 0": (("changed", first_changed(0)), *TIME),
    "changed to 2": (("changed", first_changed(2_000)), *TIME),
    "changed to 60": (("changed", first_changed(60_000)), *TIME),
    "journal fills": (("full", fill_journal), ("wanted", wanted), *TIME),
    "copies fail": (("wanted", wanted), ("fails", lambda side, case: confirm(side, case, fails=True)), *TIME),
    "copies done": (("done", confirm), ("wanted", wanted), *TIME),
}  # fmt: skip


# Making a receive


def prepare(side: TurnedMaster, case: TakeCase) -> None:
    """Bring about what was before the receive."""
    begin_case(side, case)
    if case.topic is not None:
        store_all(side, stored(case))
    queue = side.store.queues.get(case.name, 0)
    if queue is not None:
        queue.min = min(case.begins, queue.max)
    if case.done:
        for queue_id in (0, 2):
            finish(side, case, 0, 1 << 30, queue_id)
    case.holds(side, case)
    if case.retry_topic:
        side.topics.put(TopicConfig(name=case.retry_topic, read_queues=1, write_queues=1))
        beside = case.draft("R", "A", 3, reconsume_times=BESIDE_TIMES)
        beside.topic = case.retry_topic
        store_all(side, [beside])
    if case.pulled:
        member = Consumes(group=case.group, topics={})
        side.clients.consumes(case.peer, Identity("c", "JAVA", 399), member, time.monotonic())
        assert side.reads.pulled is not None
        for queue_id in case.pulled:
            side.reads.pulled.note(case.group, case.name, queue_id, side.reads.waiting.clock())


def begin_held(side: TurnedMaster, case: TakeCase) -> Started:
    """Make a receive while this broker does not lead."""
    side.takes.serves = False
    early = side.polls.rooms[EARLY_RECEIVES]
    if case.held_back == "with too many others":
        early.taken = POLLS_MAX
    started = begin_take(side, case)
    if case.held_back == "until it leads":
        leads(side, case)
    return started


async def take_outcome(side: TurnedMaster, case: TakeCase) -> str:
    """Make a case's receive; return what was answered, and what has changed.

    Topic and group of the case are in the tables already.
    """
    prepare(side, case)
    side.counted.delivered.by_labels.clear()
    side.counted.dead_letters.by_labels.clear()
    room, early = side.polls.rooms[POLLS], side.polls.rooms[EARLY_RECEIVES]
    most = room.most
    if case.full:
        room.most = 0
    beside = [case.retry_topic] if case.retry_topic else []
    try:
        with set_up(side, case), faults(side, case):
            made = set(side.topics.rows), set(side.groups.rows)
            started = (begin_held if case.held_back else begin_take)(side, case)
            texts = [started.state, *creations_of(side, case)]
            first = side_effects(side, case, made, *beside)
            texts += first
            if case.again:
                texts.append(f"again: {begin_take(side, case).state}")
            if started.waits or case.copies:
                texts += await after_steps(side, case, started, COMES[case.comes])
            now = side_effects(side, case, made, *beside)
            texts += [f"then {' | '.join(each for each in now if each not in first) or '-'}"] * (now != first)
            texts += [f"other: {one.state}" for one in case.waiting if one is not started]
            leaves(side, case)
    finally:
        room.most, early.taken = most, 0
        side.takes.serve()
        side.clients.closed(case.peer)
    return case_text(case, " | ".join(texts))


# The rules

TAKE_RULES: Final[list[Rule]] = [*TOPIC_RULES, *GROUP_RULES, *LEASE_GROUP_RULES]


def rule(name: str, what: str, apply: Callable[[TakeCase], object]) -> None:
    """Add a rule."""
    TAKE_RULES.append(Rule(name, what, apply))


def holds(*parts: tuple[int, int], **fields: Any) -> Callable[[TakeCase], object]:
    """Return what has the group hold messages of queue 0; see `hold`."""

    def before(side: TurnedMaster, case: TakeCase) -> None:
        for start, end in parts:
            hold(side, case, start, end, **fields)

    return put(holds=before)


def holds_all(side: TurnedMaster, case: TakeCase) -> None:
    """Have the group hold all that there is."""
    hold(side, case, 0, 1 << 30)
    hold(side, case, 0, 1 << 30, queue_id=2)


def holds_some(side: TurnedMaster, case: TakeCase) -> None:
    """Have the group hold one message, be done with the next, and have another one come again."""
    hold(side, case, 0, 1)
    finish(side, case, 1, 2)
    hold(side, case, 2, 3, for_ms=0)


def holds_changed(side: TurnedMaster, case: TakeCase) -> None:
    """Have the group hold two messages by an attempt, one of which was changed since."""
    hold(side, case, 0, 2, by="a1")
    hold(side, case, 1, 2)


def asks(**fields: Any) -> Callable[[TakeCase], object]:
    """Return what sets fields of the request; durations are in milliseconds, and None takes one out."""

    def apply(case: TakeCase) -> None:
        for name, value in fields.items():
            if name in ("long_polling_timeout", "invisible_duration"):
                case.request.ClearField(name)
                if value is not None:
                    getattr(case.request, name).FromMilliseconds(value)
            else:
                setattr(case.request, name, value)

    return apply


def by_filter(kind: str, text: str, tag: str) -> Callable[[TakeCase], object]:
    """Return what sets the filter."""

    def apply(case: TakeCase) -> None:
        case.request.filter_expression.type = v2.SQL if kind == "sql" else v2.TAG
        case.request.filter_expression.expression, case.wanted = text, tag

    return apply


def by_no_priority(case: TakeCase) -> None:
    """Have no receive of the group go by priority."""
    if case.config is not None:
        case.config = case.config.with_priority_percent(0)


def by_priority(case: TakeCase) -> None:
    """Have the topic be one of priorities."""
    if case.topic is not None:
        case.topic = case.topic.with_type(MessageType.PRIORITY)


rule("no receive by priority", "attempts", by_no_priority)
rule("priorities", "type", by_priority)
rule("no messages", "contents", put(contents="none"))
rule("40 messages", "contents", put(contents="many"))
rule("long stretch", "contents", put(contents="long"))
rule("large messages", "contents", put(contents="large"))
rule("unusual messages", "contents", put(contents="unusual"))
rule("message groups", "contents", put(contents="message groups"))
rule("begins at 2", "begins", put(begins=2))
rule("all are gone", "begins", put(begins=99))
TAKE_RULES.extend(DAMAGE_RULES)
TAKE_RULES.extend(FAULT_RULES)
rule("all done", "held", put(done=True))
rule("all held", "held", put(holds=holds_all))
rule("two held by a1", "held", holds((0, 2), by="a1"))
rule("first held by a1", "held", holds((0, 1), by="a1"))
rule("by a1, changed", "held", put(holds=holds_changed))
rule("third held", "held", holds((2, 3)))
rule("some held", "held", put(holds=holds_some))
rule("two visible", "held", holds((0, 2), for_ms=0))
rule("two visible twice", "held", holds((0, 1), (1, 2), for_ms=0, attempt=2))
rule("last attempt", "held", holds((0, 1), for_ms=0, attempt=17))
rule("renewed, over", "held", holds((0, 2), for_ms=0, renewed=True))
rule("left by RocketMQ", "beside", put(beside="_"))
rule("left by RocketMQ, V2", "beside", put(beside="+"))
rule("members pull 0", "pulled", put(pulled=(0,)))
rule("members pull all", "pulled", put(pulled=(0, 1, 2, 3)))
rule("batch 0", "batch", asks(batch_size=0))
rule("batch -1", "batch", asks(batch_size=-1))
rule("batch 1", "batch", asks(batch_size=1))
rule("batch 3", "batch", asks(batch_size=3))
rule("batch 100", "batch", asks(batch_size=100))
rule("no invisible time", "invisible", asks(invisible_duration=None))
rule("invisible for -1 ms", "invisible", asks(invisible_duration=-1))
rule("invisible for 9999 ms", "invisible", asks(invisible_duration=9_999))
rule("invisible for 10 s", "invisible", asks(invisible_duration=10_000))
rule("invisible for 12 h", "invisible", asks(invisible_duration=INVISIBLE_MS_MAX))
rule("invisible for more", "invisible", asks(invisible_duration=INVISIBLE_MS_MAX + 1))
rule("renewed", "renewed", asks(auto_renew=True))
rule("attempt a1", "attempt", asks(attempt_id="a1"))
rule("attempt a2", "attempt", asks(attempt_id="a2"))
rule("long attempt", "attempt", asks(attempt_id="a" * ATTEMPT_ID_BYTES_MAX))
rule("attempt too long", "attempt", asks(attempt_id="ä" + "a" * (ATTEMPT_ID_BYTES_MAX - 1)))
for title, kind, text, tag in FILTERS:
    rule(title, "filter", by_filter(kind, text, tag))
rule("no filter", "filter", lambda case: case.request.ClearField("filter_expression"))
rule("no polling time", "polling", asks(long_polling_timeout=None))
rule("polls for 0", "polling", asks(long_polling_timeout=0))
rule("polls for 2 s", "polling", asks(long_polling_timeout=2_000))
rule("polls for an hour", "polling", asks(long_polling_timeout=3_600_000))
rule("polls for -1 s", "polling", asks(long_polling_timeout=-1_000))
rule("deadline in 3 s", "deadline", put(deadline_s=3.0))
rule("deadline now", "deadline", put(deadline_s=0.0))
rule("deadline far away", "deadline", put(deadline_s=100.0))
rule("namespace", "namespace",
     lambda case: setattr(case.request.message_queue.topic, "resource_namespace", "ns1"))  # fmt: skip
rule("namespace in a header", "namespace", lambda case: case.headers.update({NAMESPACE_HEADER: "ns2"}))
rule("polls full", "full", put(full=True))
rule("held until it leads", "held back", put(held_back="until it leads"))
rule("held for long", "held back", put(held_back="for long"))
rule("held with too many", "held back", put(held_back="with too many others"))
rule("again", "again", put(again=True))
for coming in COMES:
    if coming != "messages":
        rule(coming, "comes", put(comes=coming))

# What is looked at before anything is received; what a receive that waits may be changed by; what makes none
# wait. By what rules set: beside which other rules they are broken.
EARLY: Final = frozenset((
    "name", "named", "invisible", "renewed", "filter", "topic", "permission", "queues", "group", "creations",
    "attempt", "journal", "full", "held back",
))  # fmt: skip
WAITS_WITH: Final = frozenset((
    "topic", "group", "attempts", "type", "journal", "writes", "copies", "beside", "pulled", "batch",
    "renewed", "attempt", "filter", "polling", "deadline", "full", "held back", "again",
))  # fmt: skip
IDLE: Final = frozenset((
    "topic", "contents", "held", "begins", "filter", "polling", "deadline", "full", "held back", "pulled",
    "journal", "invisible", "renewed",
))  # fmt: skip
BESIDE: Final = {
    "name": EARLY,
    "named": EARLY,
    "creations": EARLY,
    "polling": IDLE,
    "deadline": IDLE,
    "full": IDLE | EARLY,
    "namespace": frozenset(("topic", "contents", "beside", "held", "held back", "batch")),
}
# What makes a receive wait, or blocks a group, or has messages given up; and what is broken beside it: all
# rules, or those about some things. What comes is paired with these only.
ALL: Final = frozenset(rule.what for rule in TAKE_RULES)
QUEUE: Final = ("ordered group", "one queue to read")  # all else waits for what the group holds
BASES: Final[tuple[tuple[tuple[str, ...], frozenset[str]], ...]] = (
    (("all done",), frozenset(("comes",))),
    (("all held",), frozenset(("comes", "group", "attempts", "filter", "polling"))),
    ((*QUEUE, "two held by a1"), ALL),
    ((*QUEUE, "by a1, changed"), frozenset(("attempt", "batch", "comes"))),
    ((*QUEUE, "some held"), frozenset(("attempt", "batch", "comes", "damage", "filter", "begins"))),
    (("ordered by message group", "message groups"), ALL),
    (("ordered by message group", "message groups", "first held by a1"), ALL),
    (("ordered by message group", "message groups", "some held"), frozenset(("attempt", "batch", "damage"))),
    (("dead after 1", "two visible"), ALL),
    (("dead after 1", "two visible", "copies later"), frozenset(("comes", "group", "filter", "batch"))),
    (("dead after 1", "two visible", *QUEUE), ALL),
    (("dead after 1", "two visible", *QUEUE, "copies later"), frozenset(("comes", "contents", "damage"))),
    (("dead after 1", "two visible", *QUEUE, "no writes"), frozenset(("comes", "contents", "damage"))),
    (("priorities", "two visible"), frozenset(("group", "attempts", "batch", "filter", "again"))),
    (("two visible", "again"), frozenset(("batch", "group", "attempts", "type", "filter", "journal"))),
    (("journal full once", "again"), frozenset(("held", "group", "contents", "attempt", "damage"))),
    (("journal full once", "again", "ordered group"), frozenset(("held", "attempt"))),
    (("two visible", "batch 1", "again"), frozenset(("group", "type", "journal", "begins"))),
    (("left by RocketMQ", "two visible"), frozenset(("group", "attempts", "batch", "filter", "copies"))),
)  # fmt: skip


def take_combinations() -> Iterator[tuple[Rule, ...]]:
    """Return no rule, each rule, most pairs of them, and more where it takes several to make a difference.

    Left out: pairs with names, namespaces, polling times and deadlines where nothing comes of it (`BESIDE`);
    what comes where no receive waits. Where one waits (`all done`) what comes is paired with each rule of
    `WAITS_WITH`, and where a group is blocked with each attempt id.
    """
    return each_once(every_combination())


def every_combination() -> Iterator[tuple[Rule, ...]]:
    """Return them, some of them twice."""
    named = {rule.name: rule for rule in TAKE_RULES}
    for broken in combinations(TAKE_RULES, BESIDE):
        pair = len(broken) > 1
        if not any(rule.what == "comes" or (pair and rule.name in ALONE) for rule in broken):
            yield broken
    comes = [rule for rule in TAKE_RULES if rule.what == "comes"]
    for names, whats in BASES:
        base = tuple(named[name] for name in names)
        taken = {rule.what for rule in base}
        if len(base) > 2:
            yield base
        for one in TAKE_RULES:
            if one.what not in taken and one.what in whats and (len(base) > 1 or one.what == "comes"):
                yield *base, one
    for one in TAKE_RULES:
        if one.what in WAITS_WITH:
            for coming in comes:
                yield named["all done"], coming, one
    for one in TAKE_RULES:
        if one.what == "attempt":
            for coming in comes:
                yield *(named[name] for name in (*QUEUE, "two held by a1")), coming, one
