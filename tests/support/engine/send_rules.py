"""Rules that a send can break, by each protocol, and what a broker makes of those that break some.

A rule changes a case (`V2Case`, `RemotingCase`) before it is sent: the request, its topic, or the broker.
`outcome` sends it and says in one line what was answered, and what has changed: topics and groups that were
made, how far queues took their turns, what was stored and where, who is known as a producer.

Each case has a topic of its own, so that none hears of another one.
"""

import hashlib
import math
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Final
from unittest.mock import patch

from support.engine.in_process import InProcess
from support.engine.rules import Rule, plain
from support.remoting.handlers import NOW, batch_body, send_fields
from whimbrel.broker.engine.targets import SendTarget
from whimbrel.model.limits import BODY_BYTES_MAX, SEND_MESSAGES_MAX
from whimbrel.model.topic import GroupConfig, MessageType, TopicConfig
from whimbrel.model.wire import QUEUE_HEADER
from whimbrel.pb.apache.rocketmq.v2 import definition_pb2 as v2
from whimbrel.pb.apache.rocketmq.v2 import service_pb2 as messaging
from whimbrel.store.codec import decode_record

__all__ = [
    "REMOTING_RULES",
    "V2_RULES",
    "RemotingCase",
    "V2Case",
    "first_turns",
    "outcome",
]

CREATIONS = 200.0  # that a broker has room for at once
DELIVERY_S = NOW // 1000


@dataclass
class Case:
    """A send that is to be made.

    Attributes:
        topic: its topic; None: there is none.
        auto_create: sends make topics.
        refusal: why the broker takes no writes; "" while it does.
        full: the log has no room.
    """

    number: int
    topic: TopicConfig | None = None
    auto_create: bool = False
    refusal: str = ""
    full: bool = False
    creations: float = CREATIONS
    groups: list[GroupConfig] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.topic = TopicConfig(name=self.name, read_queues=4, write_queues=4)

    @property
    def name(self) -> str:
        """The topic's name."""
        return f"case-{self.number}-"

    @property
    def group(self) -> str:
        """A group's name."""
        return f"group-{self.number}-"

    def typed(self, kind: MessageType) -> None:
        """Have the topic take messages of a kind."""
        if self.topic is not None:
            self.topic = self.topic.with_type(kind)


@dataclass
class V2Case(Case):
    """A SendMessage."""

    messages: list[Any] = field(default_factory=list)
    headers: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        super().__post_init__()
        self.messages = [self.message("M1")]

    def message(self, message_id: str) -> Any:
        """Return a plain message."""
        made = v2.Message(body=b"hello", user_properties={"color": "red"})
        made.topic.name = self.name
        system = made.system_properties
        system.message_id, system.tag, system.born_timestamp.seconds = message_id, "A", DELIVERY_S
        system.keys.append("k1")
        return made

    def add(self) -> Any:
        """Add a message like the first one."""
        made = v2.Message()
        if self.messages:
            made.CopyFrom(self.messages[0])
        made.system_properties.message_id = f"M{len(self.messages) + 1}"
        self.messages.append(made)
        return made

    def send(self, broker: InProcess) -> str:
        """Send it; return the answer."""
        answer = broker.call(
            "SendMessage", messaging.SendMessageRequest(messages=self.messages), self.headers
        )
        found = messaging.SendMessageResponse.FromString(answer.SerializeToString())
        text = f"{found.status.code} {found.status.message}"
        if not found.entries:
            return text
        entries = [
            f"{one.status.code} {one.message_id} {one.offset}"
            f" {one.transaction_id} {one.recall_handle}".rstrip()
            for one in found.entries[:3]
        ]
        return f"{text} ({len(found.entries)}: {', '.join(entries)})"


@dataclass
class RemotingCase(Case):
    """A send by the remoting protocol."""

    fields: dict[str, Any] = field(default_factory=dict)
    properties: dict[str, str] = field(default_factory=dict)
    body: bytes = b"hello"
    version: int = 399
    code: int = 310
    batch: list[tuple[bytes, str]] | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        self.fields = send_fields(self.name, e=1)
        self.properties = {"TAGS": "A", "UNIQ_KEY": "M1", "KEYS": "k1", "color": "red", "WAIT": "true"}

    def send(self, broker: InProcess) -> str:
        """Send it; return the answer."""
        text = "\x02".join(f"{name}\x01{value}" for name, value in self.properties.items())
        body = self.body if self.batch is None else batch_body(*self.batch)
        fields = {"i": text, **{name: value for name, value in self.fields.items() if name != "i"}}
        fields = {name: value for name, value in fields.items() if value is not None}
        reply = broker.request(self.code, fields, body, self.version)
        shown = dict(reply.fields)
        shown["msgId"] = f"{shown.get('msgId', '').count(',') + 1} ids" if shown.get("msgId") else "no id"
        return f"{reply.code} {reply.remark} {shown}"


def v2_rule(name: str, what: str) -> Callable[[Callable[[V2Case], object]], None]:
    """Take a function as a rule of `apache.rocketmq.v2`."""
    return lambda apply: V2_RULES.append(Rule(name, what, apply))


def remoting_rule(name: str, what: str) -> Callable[[Callable[[RemotingCase], object]], None]:
    """Take a function as a rule of the remoting protocol."""
    return lambda apply: REMOTING_RULES.append(Rule(name, what, apply))


V2_RULES: Final[list[Rule]] = []
REMOTING_RULES: Final[list[Rule]] = []


def system(case: V2Case) -> Any:
    """Return the system properties of a case's first message; of one that is nowhere, without any."""
    return case.messages[0].system_properties if case.messages else v2.SystemProperties()


def name_topic(case: V2Case, name: str) -> None:
    """Name another topic in all messages."""
    for message in case.messages:
        message.topic.name = name


def first(case: V2Case) -> Any:
    """Return the first message."""
    return case.messages[0] if case.messages else v2.Message()


def change(case: Case, **fields: Any) -> None:
    """Change the topic, if there is one."""
    if case.topic is not None:
        case.topic = replace(case.topic, **fields)


def shared(name: str, what: str) -> Callable[[Callable[[Any], object]], None]:
    """Take a function as a rule of both protocols."""

    def add(apply: Callable[[Any], object]) -> None:
        for rules in (V2_RULES, REMOTING_RULES):
            rules.append(Rule(name, what, apply))

    return add


shared("no such topic", "topic")(lambda case: setattr(case, "topic", None))


@shared("topic is made", "topic")
def topic_is_made(case: Case) -> None:
    case.topic, case.auto_create = None, True


shared("no permission to write", "permission")(lambda case: change(case, permission=4))
shared("no queue to write", "queues")(lambda case: change(case, write_queues=0))
shared("few queues to write", "queues")(lambda case: change(case, write_queues=1))
shared("drained", "drained")(
    lambda case: setattr(case, "topic", case.topic and case.topic.with_drained(drained=True))
)
for kind in MessageType:
    shared(f"topic of {kind}", "type")(partial(Case.typed, kind=kind))
shared("writes refused", "refusal")(lambda case: setattr(case, "refusal", "not now"))
shared("disk full", "full")(lambda case: setattr(case, "full", True))


# What messages by `apache.rocketmq.v2` break

v2_rule("no message", "count")(lambda case: case.messages.clear())


@v2_rule("too many messages", "count")
def too_many(case: V2Case) -> None:
    for _ in range(SEND_MESSAGES_MAX):
        case.add()


v2_rule("blank topic", "name")(lambda case: name_topic(case, " "))
v2_rule("topic with a space", "name")(lambda case: name_topic(case, "a b"))
v2_rule("system topic", "name")(lambda case: name_topic(case, "TBW102"))
v2_rule("system topic that is there", "name")(lambda case: name_topic(case, "SELF_TEST_TOPIC"))
v2_rule("the cluster's topic", "name")(lambda case: name_topic(case, "DefaultCluster"))
v2_rule("retry topic", "name")(lambda case: name_topic(case, f"%RETRY%{case.group}"))
v2_rule("two messages", "second")(lambda case: case.add())
v2_rule("two topics", "second")(lambda case: setattr(case.add().topic, "name", "another"))
v2_rule("second message empty", "second")(lambda case: case.add().ClearField("body"))
v2_rule("second message of a group", "second")(
    lambda case: setattr(case.add().system_properties, "message_group", "g2")
)
v2_rule("empty body", "body")(lambda case: first(case).ClearField("body"))
v2_rule("large body", "body")(lambda case: setattr(first(case), "body", bytes(BODY_BYTES_MAX + 1)))
v2_rule("gzip", "encoding")(lambda case: setattr(system(case), "body_encoding", v2.GZIP))
v2_rule("many properties", "users")(
    lambda case: first(case).user_properties.update({f"p{n}": "" for n in range(129)})
)
v2_rule("reserved property", "users")(lambda case: first(case).user_properties.update({"KEYS": "x"}))
v2_rule("mark of ours as a property", "users")(
    lambda case: first(case).user_properties.update({"REPLAYED_FROM": "x"})
)
v2_rule("property without a name", "users")(lambda case: first(case).user_properties.update({"": "x"}))
v2_rule("control character in a property", "users")(
    lambda case: first(case).user_properties.update({"p": "\x01"})
)
v2_rule("heavy properties", "users")(lambda case: first(case).user_properties.update({"p": "x" * 17_000}))
v2_rule("unusual properties", "users")(
    lambda case: first(case).user_properties.update({"p": "", "é": "\u2028"})
)
v2_rule("blank tag", "tag")(lambda case: setattr(system(case), "tag", " "))
v2_rule("tag with a bar", "tag")(lambda case: setattr(system(case), "tag", "a|b"))
v2_rule("no tag", "tag")(lambda case: setattr(system(case), "tag", ""))
v2_rule("blank key", "keys")(lambda case: system(case).keys.append(" "))
v2_rule("key with a space", "keys")(lambda case: system(case).keys.append("a b"))
v2_rule("no keys", "keys")(lambda case: system(case).ClearField("keys"))
v2_rule("blank id", "id")(lambda case: setattr(system(case), "message_id", " "))
v2_rule("control character in an id", "id")(lambda case: setattr(system(case), "message_id", "a\n"))
v2_rule("long recovery", "recovery")(
    lambda case: setattr(system(case).orphaned_transaction_recovery_duration, "seconds", 3601)
)
v2_rule("recovery", "recovery")(
    lambda case: setattr(system(case).orphaned_transaction_recovery_duration, "seconds", 60)
)
v2_rule("delivery far ahead", "delivery")(
    lambda case: setattr(system(case).delivery_timestamp, "seconds", 9_000_000_000)
)
v2_rule("delivery soon", "delivery")(
    lambda case: setattr(system(case).delivery_timestamp, "seconds", NOW // 1000 + 60)
)
v2_rule("delivery now", "delivery")(
    lambda case: setattr(system(case).delivery_timestamp, "seconds", NOW // 1000)
)
v2_rule("delivery at 0", "delivery")(lambda case: system(case).delivery_timestamp.SetInParent())
v2_rule("blank message group", "group")(lambda case: setattr(system(case), "message_group", " "))
v2_rule("long message group", "group")(lambda case: setattr(system(case), "message_group", "g" * 65))
v2_rule("message group", "group")(lambda case: setattr(system(case), "message_group", "g1"))
v2_rule("negative priority", "priority")(lambda case: setattr(system(case), "priority", -1))
v2_rule("priority", "priority")(lambda case: setattr(system(case), "priority", 3))
v2_rule("lite topic", "lite")(lambda case: setattr(system(case), "lite_topic", "l"))
v2_rule("transaction", "transaction")(lambda case: setattr(system(case), "message_type", v2.TRANSACTION))
v2_rule("control character in a host", "host")(lambda case: setattr(system(case), "born_host", "a\n"))
v2_rule("host", "host")(lambda case: setattr(system(case), "born_host", "h1"))
v2_rule("context", "context")(lambda case: setattr(system(case), "trace_context", "00-1-1-01"))
v2_rule("control character in a context", "context")(
    lambda case: setattr(system(case), "trace_context", "a\n")
)
v2_rule("context too long for a record", "context")(
    lambda case: setattr(system(case), "trace_context", "x" * 33_000)
)
v2_rule("born in the year 10000", "born")(
    lambda case: setattr(system(case).born_timestamp, "seconds", 260_000_000_000)
)
v2_rule("born before 1970", "born")(lambda case: setattr(system(case).born_timestamp, "seconds", -5))
v2_rule("wrong digest", "digest")(
    lambda case: system(case).body_digest.MergeFrom(v2.Digest(type=v2.CRC32, checksum="1"))
)
v2_rule("right digest", "digest")(
    lambda case: system(case).body_digest.MergeFrom(
        v2.Digest(type=v2.MD5, checksum=hashlib.md5(b"hello").hexdigest())
    )
)
v2_rule("unknown digest", "digest")(lambda case: system(case).body_digest.MergeFrom(v2.Digest(checksum="1")))
v2_rule("queue that is no number", "queue")(lambda case: case.headers.update({QUEUE_HEADER: "x"}))
v2_rule("queue that is not there", "queue")(lambda case: case.headers.update({QUEUE_HEADER: "004"}))
v2_rule("queue 2", "queue")(lambda case: case.headers.update({QUEUE_HEADER: "2"}))


# What messages by the remoting protocol break


def put(**properties: str) -> Callable[[RemotingCase], object]:
    """Return what sets properties."""
    return lambda case: case.properties.update(properties)


def set_field(**fields: Any) -> Callable[[RemotingCase], object]:
    """Return what sets fields of the header; None takes one out."""
    return lambda case: case.fields.update(fields)


def batch_of(*messages: tuple[bytes, str]) -> Callable[[RemotingCase], object]:
    """Return what makes it a batch."""

    def apply(case: RemotingCase) -> None:
        case.fields["m"], case.batch = "true", list(messages)

    return apply


def retried(times: int, **fields: Any) -> Callable[[RemotingCase], object]:
    """Return what sends to a group's retry topic, as often tried; the group has two tries."""

    def apply(case: RemotingCase) -> None:
        case.groups.append(GroupConfig(name=case.group, retry_max=2))
        case.fields.update({"b": f"%RETRY%{case.group}", "j": times, **fields})
        case.properties.update({"RECONSUME_TIME": str(times), "MAX_RECONSUME_TIMES": "2"})

    return apply


remoting_rule("no default topic", "c")(set_field(c=None))
remoting_rule("unknown default topic", "c")(set_field(c="nothing"))
remoting_rule("queues of a made topic", "d")(set_field(d=2))
remoting_rule("queue that is no number", "e")(set_field(e="x"))
remoting_rule("queue that is not there", "e")(set_field(e=4))
remoting_rule("no queue", "e")(set_field(e=-1))
remoting_rule("born in the year 10000", "g")(set_field(g=260_000_000_000_000))
remoting_rule("flag and system flag", "h")(set_field(h=7, f=8 | 1))
remoting_rule("no topic", "b")(set_field(b=""))
remoting_rule("topic of the delay levels", "b")(set_field(b="SCHEDULE_TOPIC_XXXX"))
remoting_rule("topic of the broker's own", "b")(set_field(b="rmq_sys_x"))
remoting_rule("system topic that is there", "b")(set_field(b="SELF_TEST_TOPIC"))
remoting_rule("illegal topic", "b")(set_field(b="a b"))
remoting_rule("retry topic", "b")(retried(1))
remoting_rule("retries are used up", "b")(retried(2))
remoting_rule("retries are used up, by the request", "b")(retried(1, l=1))
remoting_rule("retries are left, by the request", "b")(retried(5, l=9))
remoting_rule("retry topic of no group", "b")(lambda case: case.fields.update(b=f"%RETRY%{case.group}"))
remoting_rule("dead letters of no group", "b")(lambda case: case.fields.update(b=f"%DLQ%{case.group}"))
remoting_rule("old client", "version")(lambda case: setattr(case, "version", 100))
remoting_rule("empty body", "body")(lambda case: setattr(case, "body", b""))
remoting_rule("large body", "body")(lambda case: setattr(case, "body", bytes(BODY_BYTES_MAX + 1)))
remoting_rule("batch that is none", "body")(set_field(m="true"))
remoting_rule("empty batch", "body")(batch_of())
remoting_rule("batch of two", "body")(batch_of((b"a", "TAGS\x01B\x02UNIQ_KEY\x01B1\x02"), (b"b", "")))
remoting_rule("batch with a large body", "body")(batch_of((b"a", ""), (bytes(BODY_BYTES_MAX + 1), "")))
remoting_rule("batch with a delay", "body")(batch_of((b"a", ""), (b"b", "DELAY\x013\x02")))
remoting_rule("batch with a delay that is none", "body")(batch_of((b"a", ""), (b"b", "DELAY\x01x\x02")))
remoting_rule("batch with a half", "body")(batch_of((b"a", ""), (b"b", "TRAN_MSG\x01true\x02")))
remoting_rule("batch with marks", "body")(
    batch_of((b"a", "REPLAYED_FROM\x01x\x02"), (b"b", "DELAY\x010\x02"))
)
remoting_rule("no id", "id")(lambda case: case.properties.pop("UNIQ_KEY"))
remoting_rule("heavy properties", "heavy")(put(p="x" * 33_000))
remoting_rule("marks of ours", "marks")(put(REPLAYED_FROM="x", HANDED_ON_FROM="y"))
remoting_rule("cluster", "cluster")(put(CLUSTER="theirs"))
remoting_rule("does not wait", "wait")(put(WAIT="false"))
remoting_rule("delay that is no number", "delay")(put(DELAY="x"))
remoting_rule("delay of level 0", "delay")(put(DELAY="0"))
remoting_rule("delay of level 3", "delay")(put(DELAY="3"))
remoting_rule("delay of level 99", "delay")(put(DELAY="99"))
remoting_rule("time that is no number", "time")(put(TIMER_DELAY_SEC="x"))
remoting_rule("time too far ahead", "time")(put(TIMER_DELAY_SEC="9000000"))
remoting_rule("time", "time")(put(TIMER_DELIVER_MS=str(NOW + 60_000)))
remoting_rule("time that is over", "time")(put(TIMER_DELIVER_MS="5"))
remoting_rule("half", "half")(put(TRAN_MSG="true", PGROUP="p"))
remoting_rule("context", "context")(put(TRACE_CONTEXT="00-1-1-01"))
remoting_rule("no room for topics", "creations")(lambda case: setattr(case, "creations", 0.0))


def outcome(broker: InProcess, case: Any) -> str:
    """Send a case; return the answer, and what has changed."""
    context, role = broker.context, broker.role
    topics, groups, store = context.topics, context.groups, role.store
    if case.topic is not None:
        topics.put(case.topic)
    groups.put_all(case.groups)
    topics.set_auto_create(enabled=case.auto_create)
    role.creation.room, role.creation.at = case.creations, role.creation.clock()
    role.appender.refusal = case.refusal
    if case.full:
        store.stall_reason, store.retry_at = "the disk is full", math.inf
    made = dict(topics.rows), dict(groups.rows)
    turns = {name: target.turn for name, target in targets_of(role).items()}
    end = store.written
    try:
        answer = case.send(broker)
    finally:
        role.appender.refusal, store.stall_reason = "", ""
    store.end_tick()
    changes = [f"topic {topic.bean()}" for name, topic in topics.rows.items() if name not in made[0]]
    changes += [f"group {name}" for name in groups.rows if name not in made[1]]
    changes += [
        f"turn {name} {target.turn - turns.get(name, 0)}"
        for name, target in targets_of(role).items()
        if target.turn != turns.get(name, 0)
    ]
    room = case.creations - role.creation.room
    changes += [f"creations {round(room)}"] if round(room) > 0 else []
    changes += (
        [f"producer {sorted(context.sessions.producers.by_topic[case.name])}"]
        if case.name in context.sessions.producers.by_topic
        else []
    )
    changes += records(store, end)
    for name in set(topics.rows) - made[0].keys() | {case.name}:
        topics.remove(name)
        targets_of(role).pop(name, None)
    for name in set(groups.rows) - made[1].keys() | {case.group}:
        groups.remove(name)
    text = " | ".join([answer, *changes]).replace(case.name, "TOPIC").replace(case.group, "GROUP")
    return plain(text)


@contextmanager
def first_turns() -> Iterator[None]:
    """Have topics begin their turns with the first queue."""
    with patch.object(sys.modules[SendTarget.__module__], "randrange", lambda count: 0):
        yield


def targets_of(role: Any) -> dict[str, Any]:
    """Return what sends to topics know."""
    targets: dict[str, Any] = role.sends.targets.kept
    return targets


def records(store: Any, at: int) -> list[str]:
    """Return the records from an offset on."""
    found = []
    while at < store.written:
        size = int.from_bytes(store.read_log(at, 4), "big")
        if size == 0 or store.read_log(at + 4, 4) == b"\xcb\xd4\x31\x94":
            break
        one = decode_record(store.read(at, size))
        body = one.body.decode() if len(one.body) < 32 else f"{len(one.body)} bytes"
        properties = (
            one.properties_raw.decode().replace("\x01", "=").replace("\x02", " ").replace("x" * 1000, "X")
        )
        found.append(
            f"record {one.topic} {one.queue_id} {body} {properties}"
            f"{one.born_timestamp} {one.born_host} {one.flag} {one.sys_flag} {one.reconsume_times}"
            f" {one.prepared_offset}"
        )
        at += size
    if len(found) > 3:
        found[2:-1] = [f"{len(found) - 3} more"]
    return found
