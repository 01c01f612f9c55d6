"""Rules that a pull can break, by each protocol, and what a broker makes of those that break some.

A rule changes a case (`V2PullCase`, `RemotingPullCase`) before it is made: the request, what there is to be
pulled, the broker, or what comes while the pull waits. `pull_outcome` makes it and says in one line what was
answered, and what has changed: topics and groups that were made, positions, what counts as delivered, how
many pulls wait.

Queue 0 of the topic has messages (`cases.py`), all others are empty.
"""

import hashlib
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any, Final

from support.cluster.broker_api import as_messages
from support.engine.cases import (
    DAMAGE_RULES,
    FILTERS,
    GROUP_RULES,
    PLACES,
    TOPIC_RULES,
    BrokenCase,
    Started,
    creations_of,
    damaged,
    drafts_of,
    put,
    runs,
    set_up,
    store_all,
)
from support.engine.pull_sides import Side, pull_call
from support.engine.rules import Rule, combinations, plain
from support.remoting.handlers import FakePeer, messages_in
from whimbrel.broker.engine.waiting import HELD_PULLS, POLLS
from whimbrel.broker.tables.remoting_clients import Consumes, Identity
from whimbrel.deferred import Deferred
from whimbrel.errors import WhimbrelError
from whimbrel.model.topic import GroupConfig
from whimbrel.model.wire import NAMESPACE_HEADER
from whimbrel.pb.apache.rocketmq.v2 import definition_pb2 as v2
from whimbrel.pb.apache.rocketmq.v2 import service_pb2 as messaging
from whimbrel.rpc.remoting.command import Command
from whimbrel.rpc.remoting.handlers import Reply, reply_to_error
from whimbrel.rpc.server.handlers import Call

__all__ = [
    "REMOTING_PULL_RULES",
    "V2_PULL_RULES",
    "PullCase",
    "RemotingPullCase",
    "V2PullCase",
    "pull_combinations",
    "pull_outcome",
    "slave_combinations",
]

PASS_S = (4, 13, 10, 40)  # while a pull waits; 15 s are usual, 20 s and a minute the most that pulls may wait

Offset = Callable[[int, int], int]
Step = Callable[[Side, Any], object]


@dataclass
class PullCase(BrokenCase):
    """A pull that is to be made.

    Attributes:
        offset: from there on, by the begin and the end of queue 0.
        memory: bytes of the log that count as in memory, where slaves are read from; None: they are not.
        full: no more pulls may wait.
        position: where the group stands; None: nowhere. reset: it was reset to there.
        comes: what comes while the pull waits; see `COMES`.
        wanted: a tag that the filter admits.
    """

    queue_id: int = 0
    offset: Offset = lambda low, high: 0
    memory: int | None = None
    full: bool = False
    position: int | None = None
    reset: int | None = None
    comes: str = "messages"
    wanted: str = "A"
    peer: FakePeer = field(default_factory=FakePeer)

    def begin(self, side: Side) -> Started:
        """Make the pull."""
        raise NotImplementedError


# The pull, and what was answered


def v2_text(case: PullCase, call: Call, responses: Any) -> str:
    """Say what a PullMessage was answered; of messages their offsets, and a digest of all that they are."""
    texts: list[str] = []
    offsets: list[int] = []
    digest = hashlib.sha256()

    def end_messages() -> None:
        if offsets:
            texts.append(f"[{runs(offsets)} #{digest.hexdigest()[:8]}]")
            offsets.clear()

    for one in as_messages(messaging.PullMessageResponse, responses):
        if one.WhichOneof("content") == "message":
            message = one.message
            assert message.topic.name == case.name
            message.topic.name = "TOPIC"
            digest.update(message.SerializeToString(deterministic=True))
            offsets.append(message.system_properties.queue_offset)
            continue
        end_messages()
        if one.WhichOneof("content") == "status":
            texts.append(f"{one.status.code} {one.status.message}")
        else:
            texts.append(f"next {one.next_offset}")
    end_messages()
    return " ".join([*texts, *(f"({name} {text})" for name, text in call.trailers)])


SHORT: Final = {
    "suggestWhichBrokerId": "ask", "nextBeginOffset": "next", "minOffset": "min", "maxOffset": "max",
}  # fmt: skip


def remoting_text(side: Side, case: PullCase, reply: Reply) -> str:
    """Say what a pull was answered; of records their offsets, and whether they are the log's bytes."""
    fields = " ".join(f"{SHORT.get(name, name)} {value}" for name, value in reply.fields.items())
    text = f"{int(reply.code)} {reply.remark} {fields}".rstrip()
    body = b"".join(reply.body)
    if not body:
        return text
    messages = messages_in([body])
    same = body == b"".join(side.store.read_log(one.physical_offset, one.size) for one in messages)
    assert all(one.topic == case.name for one in messages)
    offsets = runs([one.queue_offset for one in messages])
    return f"{text} [{offsets}{'' if same else ', not as they stand in the log'}]"


@dataclass
class V2PullCase(PullCase):
    """A PullMessage."""

    request: Any = None
    headers: dict[str, str] = field(default_factory=dict)
    deadline_s: float | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        self.request = messaging.PullMessageRequest(batch_size=32)
        self.request.filter_expression.type = v2.TAG
        self.request.filter_expression.expression = "*"
        self.request.long_polling_timeout.seconds = 15

    def begin(self, side: Side) -> Started:
        """Make the pull."""
        request = self.request
        request.message_queue.topic.name, request.group.name = self.asked_topic, self.asked_group
        request.message_queue.id = self.queue_id
        request.offset = self.offset(*side.store.queue_range(self.name, 0))
        deadline = None if self.deadline_s is None else time.monotonic() + self.deadline_s
        call = pull_call(self.headers, deadline)

        def show(found: Any) -> str:
            return v2_text(self, call, found)

        def failed(error: Exception) -> str:
            return show(side.fail(call, error))

        try:
            found = side.pull(call, request)
        except WhimbrelError as error:
            return Started(failed(error))
        except ValueError as error:
            return Started(f"raises {type(error).__name__}")
        return Started(None, found, show, failed) if isinstance(found, Deferred) else Started(show(found))


@dataclass
class RemotingPullCase(PullCase):
    """A pull by the remoting protocol.

    Attributes:
        member: says by a heartbeat what a member wants; None: there is none.
    """

    fields: dict[str, Any] = field(default_factory=dict)
    code: int = 11
    version: int = 399
    flags: int = 7
    member: Consumes | None = None
    expression: str = "*"
    sql: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        self.fields = {
            "maxMsgNums": 32, "commitOffset": 1, "suspendTimeoutMillis": 15_000, "subVersion": 5,
        }  # fmt: skip

    def joins(self, side: Side, version: int, expression: str, *, sql: bool = False, topic: str = "") -> None:
        """Have a member say what it wants."""
        topic = topic or self.name
        one = side.clients.subscription(topic, version, expression, sql=sql)
        member = replace(self.member or Consumes(group="", topics=None), topics={topic: one})
        member = replace(member, group=self.asked_group)
        side.clients.consumes(self.peer, Identity("c", "JAVA", 399), member, time.monotonic())

    def begin(self, side: Side) -> Started:
        """Make the pull."""
        fields = {
            "consumerGroup": self.asked_group,
            "topic": self.asked_topic,
            "queueId": self.queue_id,
            "queueOffset": self.offset(*side.store.queue_range(self.name, 0)),
            "sysFlag": self.flags,
            "subscription": self.expression,
            "expressionType": "SQL92" if self.sql else "TAG",
        } | self.fields
        texts = {name: str(value) for name, value in fields.items() if value is not None}
        try:
            found = side.request(self.peer, Command(self.code, 7, texts, b"", version=self.version))
        except WhimbrelError as error:
            found = reply_to_error(error)

        def show(reply: Any) -> str:
            return remoting_text(side, self, reply)

        def failed(error: Exception) -> str:
            assert isinstance(error, WhimbrelError)
            return show(reply_to_error(error))

        return Started(None, found, show, failed) if isinstance(found, Deferred) else Started(show(found))


# What comes while a pull waits


def elsewhere(side: Side, case: PullCase) -> None:
    """Store a message in another queue."""
    store_all(side, [case.draft("X", case.wanted, 5, (case.queue_id + 1) % 4)])


def other(side: Side, case: PullCase) -> None:
    """Store one that most filters do not admit."""
    store_all(side, [case.draft("Y", "BB", -1, case.queue_id)])


def wanted(side: Side, case: PullCase) -> None:
    """Store one that filters admit which admit any."""
    store_all(side, [case.draft("Z", case.wanted, 5, case.queue_id)])


def both(side: Side, case: PullCase) -> None:
    """Store both at once."""
    store_all(
        side, [case.draft("Y", "BB", -1, case.queue_id), case.draft("Z", case.wanted, 5, case.queue_id)]
    )


def corrupt(side: Side, case: PullCase) -> None:
    """Store one whose entry is damaged before anybody reads it."""
    wanted(side, case)
    end = side.store.queue_range(case.name, case.queue_id)[1]
    damaged(side, case, end - 1, "corrupt", case.queue_id)


def leaves(side: Side, case: PullCase) -> None:
    """Have the caller leave; what it is answered is not asked any more."""


def reading_off(side: Side, case: PullCase) -> None:
    """Switch the group's reading off."""
    side.groups.put(
        replace(side.groups.get(case.group) or GroupConfig(name=case.group), consume_enabled=False)
    )


def group_goes(side: Side, case: PullCase) -> None:
    """Delete the group."""
    side.groups.remove(case.group)


def topic_goes(side: Side, case: PullCase) -> None:
    """Take the topic out of the table; its queues stay."""
    side.topics.remove(case.name)


def reset(side: Side, case: PullCase) -> None:
    """Reset the group to the begin of the queue."""
    side.reset(case.asked_group, case.name, case.queue_id, 0)


def overloaded(side: Side, case: PullCase) -> None:
    """Have the peer read nothing any more."""
    case.peer.overloaded = True


def topic_deleted(side: Side, case: PullCase) -> None:
    """Delete the topic with its queues."""
    side.topics.remove(case.name)
    side.store.delete_topic(case.name)


def hears_of_b(side: Side, case: Any) -> None:
    """Have a member say that it wants B, in a newer version than all others."""
    if isinstance(case, RemotingPullCase):
        case.joins(side, 99, "B")


Steps = tuple[tuple[str, Step | int], ...]
TIME: Final[Steps] = tuple((f"+{seconds} s", seconds) for seconds in PASS_S)
COMES: Final[dict[str, Steps]] = {
    "messages": (("elsewhere", elsewhere), ("another", other), ("wanted", wanted), *TIME),
    "nothing": TIME,
    "both": (("both", both), *TIME),
    "corrupt": (("corrupt", corrupt), *TIME),
    "leaves": (("leaves", leaves), ("wanted", wanted), *TIME),
    "reading off": (("reading off", reading_off), ("wanted", wanted), *TIME),
    "group goes": (("group goes", group_goes), ("wanted", wanted), *TIME),
    "topic goes": (("topic goes", topic_goes), ("wanted", wanted), *TIME),
    "topic is deleted": (("topic is deleted", topic_deleted), ("wanted", wanted), *TIME),
    "reset": (("reset", reset), *TIME),
    "overloaded": (("overloaded", overloaded), ("both", both), *TIME),
    "heartbeat": (("heartbeat", hears_of_b), ("wanted", wanted), *TIME),
}  # fmt: skip


async def pull_outcome(side: Side, case: Any) -> str:
    """Make a case's pull; return what was answered, and what has changed.

    Topic and group of the case are in the tables already.
    """
    side.begin()
    topics, groups, splitting = side.topics, side.groups, side.reads.splitting
    waits = side.reads.waiting
    polls, held = waits.rooms[POLLS], waits.rooms[HELD_PULLS]
    if case.topic is not None:
        store_all(side, drafts_of(case))
    prepare(side, case)
    side.counted.delivered.by_labels.clear()
    counts = side.counts()
    before = polls.most, splitting.enabled, splitting.memory
    if case.memory is not None:
        splitting.enabled, splitting.memory = True, case.memory
    if case.full:
        polls.most, waits.by_reader[case.peer] = 0, HELD_PULLS.each

    def changes() -> list[str]:
        found = [f"topic {topic.bean()}" for name, topic in topics.rows.items() if name not in made[0]]
        found += [f"group {name}" for name in groups.rows if name not in made[1]]
        for queue_id in range(4):
            place = case.asked_group, case.asked_topic, queue_id
            if (position := side.position(*place)) is not None:
                found.append(f"position {queue_id} {position}")
            if (target := side.redirected(*place)) is not None:
                found.append(f"redirected {queue_id} {target}")
        found += [
            f"delivered {' '.join(labels)} {sent.messages} of {sent.bytes} bytes"
            for labels, sent in side.counted.delivered.items()
        ]
        shared = side.shared_out(case.asked_group, case.asked_topic)
        found += [f"members pull {shared}"] if shared else []
        now = side.counts()
        found += [f"counted {now[0] - counts[0]}/{now[1] - counts[1]}"] if now != counts else []
        return found

    def waiting() -> list[str]:
        parked = polls.taken, held.taken
        return [f"waiting {parked[0]}/{parked[1]}"] if any(parked) else []

    try:
        with set_up(side, case):
            made = set(topics.rows), set(groups.rows)
            started = case.begin(side)
            texts = [started.state, *creations_of(side, case)]
            first = changes()
            texts += first + waiting()
            if started.waits:
                texts += await waited(side, case, started)
                texts += [change for change in changes() if change not in first] + waiting()
                if started.waits and started.deferred is not None:
                    started.deferred.cancel()
    finally:
        polls.most, splitting.enabled, splitting.memory = before
        waits.by_reader.pop(case.peer, None)
        side.clients.closed(case.peer)
    text = " | ".join(texts).replace(case.name, "TOPIC").replace(case.group, "GROUP")
    return plain(PLACES.sub("PLACES", text))


def prepare(side: Side, case: Any) -> None:
    """Bring about what was before the pull."""
    queue = side.store.queues.get(case.name, 0)
    if queue is not None:
        queue.min = min(case.begins, queue.max)
    end = side.store.queue_range(case.name, 0)[1]
    if case.position is not None:
        side.consumption.positions.update_offset(case.group, case.name, 0, min(case.position, end))
    if case.reset is not None:
        side.reset(case.group, case.name, 0, min(case.reset, end))
    if isinstance(case, RemotingPullCase) and case.member is not None:
        for topic, one in (case.member.topics or {}).items():
            case.joins(side, one.version, one.expression, sql=one.sql, topic=topic)


async def waited(side: Side, case: Any, started: Started) -> list[str]:
    """Have come what comes while a pull waits; return what it is answered after each step."""
    texts = []
    for name, step in COMES[case.comes]:
        if isinstance(step, int):
            await side.pass_time(step)
        else:
            if step is leaves:
                assert started.deferred is not None
                started.deferred.cancel()
            step(side, case)
            await side.turn()
        texts.append(f"{name}: {started.state}")
        if not started.waits and step is not leaves:
            break
    return texts


# Rules of both protocols

V2_PULL_RULES: Final[list[Rule]] = []
REMOTING_PULL_RULES: Final[list[Rule]] = []


def v2_rule(name: str, what: str, apply: Callable[[V2PullCase], object]) -> None:
    """Add a rule of `apache.rocketmq.v2`."""
    V2_PULL_RULES.append(Rule(name, what, apply))


def remoting_rule(name: str, what: str, apply: Callable[[RemotingPullCase], object]) -> None:
    """Add a rule of the remoting protocol."""
    REMOTING_PULL_RULES.append(Rule(name, what, apply))


def shared(name: str, what: str, apply: Callable[[Any], object]) -> None:
    """Add a rule of both protocols."""
    v2_rule(name, what, apply)
    remoting_rule(name, what, apply)


for rule in TOPIC_RULES:
    shared(rule.name, rule.what, rule.apply)
shared("queue -1", "queue", put(queue_id=-1))
shared("queue 1, which is empty", "queue", put(queue_id=1))
shared("queue 4, which is not there", "queue", put(queue_id=4))
for rule in GROUP_RULES:
    shared(rule.name, rule.what, rule.apply)
shared("empty queue", "contents", put(contents="none"))
shared("40 messages", "contents", put(contents="many"))
shared("more messages than one pull looks at", "contents", put(contents="long"))
shared("more bytes than an answer has", "contents", put(contents="large"))
shared("unusual messages", "contents", put(contents="unusual"))
shared("the queue begins at 2", "begins", put(begins=2))
shared("all messages are gone", "begins", put(begins=99))
shared("offset at the end", "offset", put(offset=lambda low, high: high))
shared("offset behind the end", "offset", put(offset=lambda low, high: high + 1))
shared("offset far behind the end", "offset", put(offset=lambda low, high: 1 << 40))
shared("offset before the begin", "offset", put(offset=lambda low, high: low - 1))
shared("offset -5", "offset", put(offset=lambda low, high: -5))
shared("offset 3", "offset", put(offset=lambda low, high: 3))
for rule in DAMAGE_RULES:
    shared(rule.name, rule.what, rule.apply)
shared("reader lags behind memory", "memory", lambda case: reads_slaves(case, 0))
shared("reader is near the end", "memory", lambda case: reads_slaves(case, 1 << 40))
shared("no more pulls may wait", "full", put(full=True))
for coming in ("nothing", "both", "corrupt", "leaves", "reading off", "group goes", "topic goes",
               "topic is deleted", "reset"):  # fmt: skip
    shared(f"comes: {coming}", "comes", put(comes=coming))


def reads_slaves(case: PullCase, memory: int) -> None:
    """Have slaves be read from, by the group's own ids."""
    case.memory = memory
    case.change_group(broker_id=3, slow_broker_id=5)


def v2_filter(kind: str, text: str, wanted: str) -> Callable[[V2PullCase], object]:
    """Return what sets the filter."""

    def apply(case: V2PullCase) -> None:
        case.request.filter_expression.type = v2.SQL if kind == "sql" else v2.TAG
        case.request.filter_expression.expression, case.wanted = text, wanted

    return apply


for title, kind, text, tag in FILTERS:
    v2_rule(title, "filter", v2_filter(kind, text, tag))
    remoting_rule(title, "filter", put(expression=text, sql=kind == "sql", wanted=tag))
v2_rule("no filter", "filter", lambda case: case.request.ClearField("filter_expression"))


# What pulls by `apache.rocketmq.v2` break


def asks(**fields: Any) -> Callable[[V2PullCase], object]:
    """Return what sets fields of the request; durations are in seconds, and None takes one out."""

    def apply(case: V2PullCase) -> None:
        for name, value in fields.items():
            if name == "long_polling_timeout":
                case.request.ClearField(name)
                if value is not None:
                    case.request.long_polling_timeout.seconds = value
            else:
                setattr(case.request, name, value)

    return apply


v2_rule("batch 0", "batch", asks(batch_size=0))
v2_rule("batch -1", "batch", asks(batch_size=-1))
v2_rule("batch 1", "batch", asks(batch_size=1))
v2_rule("batch 100", "batch", asks(batch_size=100))
v2_rule("no polling time", "polling", asks(long_polling_timeout=None))
v2_rule("polling for 0 s", "polling", asks(long_polling_timeout=0))
v2_rule("polling for 2 s", "polling", asks(long_polling_timeout=2))
v2_rule("polling for an hour", "polling", asks(long_polling_timeout=3600))
v2_rule("polling for -1 s", "polling", asks(long_polling_timeout=-1))
v2_rule("deadline in 3 s", "deadline", put(deadline_s=3.0))
v2_rule("deadline now", "deadline", put(deadline_s=0.0))
v2_rule("deadline far away", "deadline", put(deadline_s=100.0))
v2_rule(
    "namespace",
    "namespace",
    lambda case: setattr(case.request.message_queue.topic, "resource_namespace", "ns1"),
)
v2_rule("namespace in a header", "namespace", lambda case: case.headers.update({NAMESPACE_HEADER: "ns2"}))


# What pulls by the remoting protocol break


def fields(**changes: Any) -> Callable[[RemotingPullCase], object]:
    """Return what sets fields of the header; None takes one out."""
    return lambda case: case.fields.update(changes)


def flag(bit: int, *, on: bool = False) -> Callable[[RemotingPullCase], object]:
    """Return what sets a bit of the system flag, or takes it out."""

    def apply(case: RemotingPullCase) -> None:
        case.flags = case.flags | bit if on else case.flags & ~bit

    return apply


def member(
    version: int = 5, text: str = "*", *, sql: bool = False, topic: str = "", own: bool = False, **more: Any
) -> Callable[[RemotingPullCase], object]:
    """Return what has a member of the group live, whose subscription counts; `own`: the request's does."""

    def apply(case: RemotingPullCase) -> None:
        name = topic or case.name
        one = Subscribed(version, text, sql=sql)
        case.member = Consumes(group=case.group, topics={name: one}, **more)  # type: ignore[dict-item]
        case.flags = case.flags if own else case.flags & ~4

    return apply


@dataclass(frozen=True)
class Subscribed:
    """What a member wants of a topic, before there is a broker."""

    version: int
    expression: str
    sql: bool = False


def no_broadcast(case: RemotingPullCase) -> None:
    """Have the group's members consume by broadcast, which the group may not."""
    member(model="BROADCASTING")(case)
    if case.config is not None:
        case.change_group(rest={**case.config.rest, "consumeBroadcastEnable": False})


for each in ("consumerGroup", "topic", "queueId", "queueOffset", "maxMsgNums", "sysFlag", "commitOffset",
             "suspendTimeoutMillis", "subVersion"):  # fmt: skip
    remoting_rule(f"{each} missing", each, fields(**{each: None}))
    if each not in ("consumerGroup", "topic"):
        remoting_rule(f"{each} no number", each, fields(**{each: "x"}))
remoting_rule("queueId beyond 32 bits", "queueId", fields(queueId=1 << 32))
remoting_rule("maxMsgNums 0", "maxMsgNums", fields(maxMsgNums=0))
remoting_rule("maxMsgNums -1", "maxMsgNums", fields(maxMsgNums=-1))
remoting_rule("maxMsgNums 1", "maxMsgNums", fields(maxMsgNums=1))
remoting_rule("maxMsgNums 100", "maxMsgNums", fields(maxMsgNums=100))
remoting_rule("maxMsgBytes no number", "maxMsgBytes", fields(maxMsgBytes="x"))
remoting_rule("maxMsgBytes 1", "maxMsgBytes", fields(maxMsgBytes=1))
remoting_rule("maxMsgBytes -1", "maxMsgBytes", fields(maxMsgBytes=-1))
remoting_rule("maxMsgBytes 400", "maxMsgBytes", fields(maxMsgBytes=400))
remoting_rule("messages of 60 KB", "contents", put(contents="large for remoting"))
remoting_rule("commits nothing", "commit", flag(1))
remoting_rule("does not wait", "suspend", flag(2))
remoting_rule("names no subscription", "member", flag(4))
remoting_rule("class filter", "class", flag(8, on=True))
remoting_rule("lite pull", "lite", flag(16, on=True))
remoting_rule("code 361", "code", put(code=361))
remoting_rule("old client", "version", put(version=100))
remoting_rule("commits 3", "commitOffset", fields(commitOffset=3))
remoting_rule("commits beyond the end", "commitOffset", fields(commitOffset=99))
remoting_rule("commits -1", "commitOffset", fields(commitOffset=-1))
remoting_rule("suspended for 0 ms", "suspendTimeoutMillis", fields(suspendTimeoutMillis=0))
remoting_rule("suspended for -1 ms", "suspendTimeoutMillis", fields(suspendTimeoutMillis=-1))
remoting_rule("suspended for 2 s", "suspendTimeoutMillis", fields(suspendTimeoutMillis=2_000))
remoting_rule("suspended for long", "suspendTimeoutMillis", fields(suspendTimeoutMillis=1 << 40))
remoting_rule("an older subscription", "subVersion", fields(subVersion=4))
remoting_rule("a newer subscription", "subVersion", fields(subVersion=6))
remoting_rule("a kind of filter that is not known", "expressionType", fields(expressionType="x"))
remoting_rule("no kind of filter", "expressionType", fields(expressionType=None))
remoting_rule("a member wants all, the request names its own", "member", member(own=True))
remoting_rule("a member wants all", "member", member())
remoting_rule("a member wants A", "member", member(text="A"))
remoting_rule("a member wants A, and said so long ago", "member", member(4, "A"))
remoting_rule("a member wants B, and said so just now", "member", member(6, "B"))
remoting_rule("a member wants by SQL", "member", member(text="n > 2", sql=True))
remoting_rule("a member wanted by SQL", "member", member(4, "n > 2", sql=True))
remoting_rule("a member wants what can't be read", "member", member(text="||"))
remoting_rule("a member wants another topic", "member", member(topic="elsewhere"))
remoting_rule("a member by broadcast", "member", member(model="BROADCASTING"))
remoting_rule("a member by broadcast, which may not be", "member", no_broadcast)
remoting_rule("peer is overloaded", "peer", lambda case: setattr(case.peer, "overloaded", True))
remoting_rule("the group is at 4", "position", put(position=4))
remoting_rule("the group was reset to 3", "position", put(reset=3))
remoting_rule("the group was reset to 0", "position", put(reset=0))
remoting_rule("comes: overloaded", "comes", put(comes="overloaded"))
remoting_rule("comes: heartbeat", "comes", put(comes="heartbeat"))


def pull_combinations(rules: list[Rule]) -> Iterator[tuple[Rule, ...]]:
    """Return what `combinations` does, and, for pulls that wait at the end, what comes with each other rule.

    What comes is paired with nothing that has no pull wait.
    """
    for broken in combinations(rules):
        whats = {rule.what for rule in broken}
        if len(broken) < 2 or "comes" not in whats or whats & {"offset", "contents", "queue", "filter"}:
            yield broken
    at_end = next(rule for rule in rules if rule.name == "offset at the end")
    for coming in (rule for rule in rules if rule.what == "comes"):
        for rule in rules:
            if rule.what not in ("comes", "offset"):
                yield at_end, coming, rule


def slave_combinations(rules: list[Rule]) -> Iterator[tuple[Rule, ...]]:
    """Return no rule, each rule, and each two of them of which one is about the offset.

    What does not fit into a small log is left out.
    """
    for broken in combinations([rule for rule in rules if rule.name != "more bytes than an answer has"]):
        if len(broken) < 2 or any(rule.what == "offset" for rule in broken):
            yield broken
