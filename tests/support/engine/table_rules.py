"""Rules that calls can break which change topics and groups, by each protocol, and which are broken at once.

    gRPC       CreateTopic, UpdateTopic, DeleteTopic; CreateGroup, UpdateGroup, DeleteGroup
    remoting   17, 215 (`remoting/topics.py`); 200, 207, 401 (`remoting/groups.py`)

The call is a rule itself: the first of each combination. Where a call makes something, it is not there
before; where it changes or deletes something, it is. Queue 0 of a topic that is there has messages
(`cases.py`), and queue 2 has one; no group has read them. What a request asks for besides is set by rules.
"""

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
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
    does,
    fields,
    store_messages,
)
from support.engine.cases import GROUP_RULES, Started, put
from support.engine.lease_cases import delete_topic, finish, hold
from support.engine.position_rules import names_of, stands
from support.engine.rules import Rule, combinations, each_once
from whimbrel.errors import StoreFull
from whimbrel.model.limits import GROUP_CHARS_MAX, TOPIC_CHARS_MAX
from whimbrel.model.retry import Customized, Exponential
from whimbrel.model.topic import GroupConfig, OrderedBy, TopicConfig
from whimbrel.model.wire import ADMIN_SERVICE
from whimbrel.pb.whimbrel.admin.v1 import admin_service_pb2 as admin
from whimbrel.rpc.api.group_policies import retry_policy_message

__all__ = ["GROUP_CALLS", "TOPIC_CALLS", "TableCase", "table_combinations"]


@dataclass
class TableCase(AdminCase):
    """A call that changes a table.

    Attributes:
        asks: fields of a request of gRPC, beside the name.
        bean: what the body of 200 or 401 says beside names. body: what there is instead; None: the bean.
    """

    alone: bool = True
    asks: dict[str, Any] = field(default_factory=dict)
    bean: dict[str, Any] = field(default_factory=dict)
    body: bytes | None = None

    def begin(self, side: AdminSide) -> Started:
        """See `AdminCase`."""
        return CALLS[self.call](side, self)


# Calls


def topic_text(found: Any) -> str:
    """Say what a call about a topic was answered."""
    if not hasattr(found, "topic"):
        return "OK"
    one = found.topic
    told = [f"OK {one.name} {one.read_queues}/{one.write_queues} {one.permission} type {one.message_type}"]
    return " ".join([*told, one.answer, *(["system"] * one.system), *(["drained"] * one.drained)])


def group_text(found: Any) -> str:
    """Say what a call about a group was answered."""
    if not hasattr(found, "group"):
        return "OK"
    one = found.group
    same = one.retry_policy == retry_policy_message(Customized())
    policy = "" if same else " ".join(str(one.retry_policy).split())
    told = [
        f"OK {one.name} {one.max_attempts} attempts, ordered by {one.ordered_by}, {one.priority_percent} %"
    ]
    told += ["fifo"] * one.fifo + ["off"] * (not one.consume_enabled) + [policy] * bool(policy)
    return " ".join(told)


def create_topic(side: AdminSide, case: TableCase) -> Started:
    """Call CreateTopic."""
    asks = {name: value for name, value in case.asks.items() if name != "hide_messages"}
    request = admin.CreateTopicRequest(topic=admin.Topic(name=case.asked_topic, **asks))
    return case.by_grpc(side, ADMIN_SERVICE, "CreateTopic", request, topic_text)


def update_topic(side: AdminSide, case: TableCase) -> Started:
    """Call UpdateTopic."""
    request = admin.UpdateTopicRequest(name=case.asked_topic, **case.asks)
    return case.by_grpc(side, ADMIN_SERVICE, "UpdateTopic", request, topic_text)


def drop_topic(side: AdminSide, case: TableCase) -> Started:
    """Call DeleteTopic."""
    request = admin.DeleteTopicRequest(name=case.asked_topic)
    return case.by_grpc(side, ADMIN_SERVICE, "DeleteTopic", request, topic_text)


def create_group(side: AdminSide, case: TableCase) -> Started:
    """Call CreateGroup."""
    request = admin.CreateGroupRequest(group=admin.Group(name=case.asked_group, **case.asks))
    return case.by_grpc(side, ADMIN_SERVICE, "CreateGroup", request, group_text)


def update_group(side: AdminSide, case: TableCase) -> Started:
    """Call UpdateGroup."""
    request = admin.UpdateGroupRequest(name=case.asked_group, **case.asks)
    return case.by_grpc(side, ADMIN_SERVICE, "UpdateGroup", request, group_text)


def drop_group(side: AdminSide, case: TableCase) -> Started:
    """Call DeleteGroup."""
    request = admin.DeleteGroupRequest(name=case.asked_group)
    return case.by_grpc(side, ADMIN_SERVICE, "DeleteGroup", request, group_text)


def put_topic(side: AdminSide, case: TableCase) -> Started:
    """Make a request 17."""
    header = {
        "topic": case.asked_topic, "readQueueNums": 4, "writeQueueNums": 4, "perm": 6,
        "topicFilterType": "SINGLE_TAG", "topicSysFlag": 0, "order": "false", "defaultTopic": "TBW102",
    }  # fmt: skip
    return case.by_remoting(side, 17, header)


def remove_topic(side: AdminSide, case: TableCase) -> Started:
    """Make a request 215."""
    return case.by_remoting(side, 215, {"topic": case.asked_topic})


def put_group(side: AdminSide, case: TableCase) -> Started:
    """Make a request 200."""
    bean = {
        name: value for name, value in ({"groupName": case.asked_group} | case.bean).items() if value != ""
    }
    body = json.dumps(bean).encode() if case.body is None else case.body
    return case.by_remoting(side, 200, {}, body)


def set_mode(side: AdminSide, case: TableCase) -> Started:
    """Make a request 401."""
    bean = {"topic": case.asked_topic, "consumerGroup": case.asked_group, "mode": "PULL"} | case.bean
    return case.by_remoting(side, 401, {}, json.dumps(bean).encode() if case.body is None else case.body)


def remove_group(side: AdminSide, case: TableCase) -> Started:
    """Make a request 207."""
    return case.by_remoting(side, 207, {"groupName": case.asked_group})


TOPIC_CALLS: Final = {"grpc": ("CreateTopic", "UpdateTopic", "DeleteTopic"), "remoting": ("17", "215")}
GROUP_CALLS: Final = {
    "grpc": ("CreateGroup", "UpdateGroup", "DeleteGroup"),
    "remoting": ("200", "207", "401"),
}
CALLS: Final[dict[str, Callable[[AdminSide, TableCase], Started]]] = {
    "CreateTopic": create_topic,
    "UpdateTopic": update_topic,
    "DeleteTopic": drop_topic,
    "17": put_topic,
    "215": remove_topic,
    "CreateGroup": create_group,
    "UpdateGroup": update_group,
    "DeleteGroup": drop_group,
    "200": put_group,
    "207": remove_group,
    "401": set_mode,
}
MAKE: Final = frozenset(("CreateTopic", "CreateGroup"))


# What was before


def drained_elsewhere(side: AdminSide, case: TableCase) -> None:
    """Have the broker be drained, as another topic says."""
    side.topics.put(TopicConfig(name=f"other-{case.number:05}-").with_drained(drained=True))


def read_all(*groups: str) -> Callable[[AdminCase], object]:
    """Return what has groups have read all that the topic has; an empty name is the case's own group."""

    def before(side: AdminSide, case: TableCase) -> None:
        for group in groups:
            for queue_id in (0, 2):
                end = side.store.queue_range(case.name, queue_id)[1]
                side.consumption.positions.update_offset(group or case.group, case.name, queue_id, end)

    return does(before)


def was_deleted(side: AdminSide, case: TableCase) -> None:
    """Have the topic be there with messages, and be deleted."""
    store_messages(side, case)
    delete_topic(side, case)


def left(side: AdminSide, case: TableCase) -> None:
    """Have the queues be there of a topic that is not."""
    store_messages(side, case)


def holds(side: AdminSide, case: TableCase) -> None:
    """Have the group hold the first message, and be done with the third."""
    hold(side, case, 0, 1)
    finish(side, case, 2, 3)


def on_another(side: AdminSide, case: TableCase) -> None:
    """Have the group stand on another topic as well, and another group on this one."""
    positions = side.consumption.positions
    positions.update_offset(case.group, f"other-{case.number:05}-", 0, 0)
    if side.store.queue_range(case.name, 0)[1]:
        positions.update_offset("another", case.name, 0, 1)


@contextmanager
def queues_stay(side: AdminSide, case: TableCase) -> Iterator[None]:
    """Have no queues be deleted: the disk refuses."""

    def delete(topic: str) -> None:
        raise StoreFull("where queues ended can't be written down")

    with mock.patch.object(side.store.queues, "delete_topic", delete):
        yield


def with_topic(**changes: Any) -> Callable[[AdminCase], object]:
    """Return what has the topic be there, with some fields."""

    def apply(case: AdminCase) -> None:
        case.topic = TopicConfig(**{"name": case.name, "read_queues": 4, "write_queues": 4, **changes})

    return apply


def with_group(
    change: Callable[[GroupConfig], GroupConfig] = lambda group: group,
) -> Callable[[AdminCase], object]:
    """Return what has the group be there, changed."""

    def apply(case: AdminCase) -> None:
        case.config = change(GroupConfig(name=case.group))

    return apply


def with_plus(group: GroupConfig) -> GroupConfig:
    """Return a group with an attribute as RocketMQ's tools write it."""
    return replace(group, rest={**group.rest, "attributes": {"+priority.factor": "30"}})


def drained_topic(case: AdminCase) -> None:
    """Have the topic be there, without its write bit."""
    with_topic()(case)
    assert case.topic is not None
    case.topic = case.topic.with_drained(drained=True)


def named(text: str, length: int) -> Callable[[AdminCase], object]:
    """Return what has the request name something else, of a length; `text` is formatted with the case."""

    def apply(case: AdminCase) -> None:
        asked = text.format(topic=case.name, group=case.group)
        case.asked_topic = case.asked_group = asked + "n" * (length - len(asked))

    return apply


# The rules

TABLE_RULES: Final[list[Rule]] = []


def rule(name: str, what: str, apply: Callable[[Any], object]) -> None:
    """Add a rule."""
    TABLE_RULES.append(Rule(name, what, apply))


def asks(**changes: Any) -> Callable[[TableCase], object]:
    """Return what sets fields of a request of gRPC."""
    return lambda case: case.asks.update(changes)


def says(**changes: Any) -> Callable[[TableCase], object]:
    """Return what sets fields of the body of 200; an empty text takes one out."""
    return lambda case: case.bean.update(changes)


for title, text in (
    ("blank topic", " "), ("no topic named", ""), ("illegal topic", "a b"), ("system topic", "TBW102"),
    ("system topic that is there", "SELF_TEST_TOPIC"), ("broker's topic", "broker-a"),
    ("cluster's topic", "DefaultCluster"), ("reserved prefix", "rmq_sys_x"),
    ("retry topic", "%RETRY%{group}"),
    ("dead letters' topic", "%DLQ%{group}"),
):  # fmt: skip
    rule(title, "name", named(text, 0))
rule("longest topic name", "name", named("{topic}", TOPIC_CHARS_MAX))
rule("topic name too long", "name", named("{topic}", TOPIC_CHARS_MAX + 1))
rule("no such topic", "topic", put(topic=None))
rule("topic is there", "topic", with_topic())
rule("topic deleted", "topic", lambda case: (put(topic=None)(case), does(was_deleted)(case)))
rule("queues are left", "topic", lambda case: (put(topic=None)(case), does(left)(case)))
rule("drained topic", "topic", drained_topic)
rule("topic not to be read", "topic", with_topic(permission=2))
rule("topic not to be written", "topic", with_topic(permission=4))
rule("more to write than to read", "topic", with_topic(read_queues=4, write_queues=6))
rule("one queue to write", "topic", with_topic(write_queues=1))
rule(
    "FIFO topic",
    "topic",
    with_topic(attributes={"+message.type": "FIFO", "x": "y"}, rest={"z": 1}, order=True),
)
rule("topic that answers early", "topic", with_topic(attributes={"whimbrel.answer": "written"}))
rule("drained broker", "drained", does(drained_elsewhere))
for number in (0, 1, 2, 8, -1, 4096, 4097):
    rule(f"read {number}", "read", asks(read_queues=number))
    rule(f"write {number}", "write", asks(write_queues=number))
    rule(f"readQueueNums {number}", "readQueueNums", fields(readQueueNums=number))
    rule(f"writeQueueNums {number}", "writeQueueNums", fields(writeQueueNums=number))
for number in (0, 2, 4, 7, 8, -1):
    rule(f"permission {number}", "permission", asks(permission=number))
    rule(f"perm {number}", "perm", fields(perm=number))
for number in (*admin.MessageType.values(), 99):
    rule(f"type {number}", "type", asks(message_type=number))
for text in ("", "committed", "written", "acks=2", "acks=7"):
    rule(f"answer {text}".strip(), "answer", asks(answer=text))
rule("hides messages", "hide", asks(hide_messages=True))
rule("no messages", "contents", put(contents="none"))
rule("begins at 2", "begins", put(begins=2))
rule("all are gone", "begins", put(begins=99))
rule("read by the group", "readers", read_all(""))
rule("read by the group and not another", "readers",
     lambda case: (read_all("")(case), does(on_another)(case)))  # fmt: skip
rule("read by tools", "readers", read_all("TOOLS_CONSUMER"))
rule("stands at 2", "readers", does(stands(2)))
rule("holds 0, done 2", "readers", does(holds))
rule("stands elsewhere, too", "readers", does(on_another))
for name in ("topic", "readQueueNums", "writeQueueNums", "perm", "topicFilterType", "topicSysFlag", "order",
             "groupName"):  # fmt: skip
    rule(f"{name} missing", name, fields(**{name: None}))
    if name not in ("topic", "groupName"):
        rule(f"{name} unreadable", name, fields(**{name: "x"}))
rule("topicFilterType MULTI_TAG", "topicFilterType", fields(topicFilterType="MULTI_TAG"))
rule("topicSysFlag 3", "topicSysFlag", fields(topicSysFlag=3))
rule("order TRUE", "order", fields(order="TRUE"))
for text in (
    "", "+message.type=FIFO", "+message.type= DELAY ", "-message.type", "+message.type=LITE",
    "+message.type=x", "+queue.type=BatchCQ", "+queue.type=SimpleCQ", "+cleanup.policy=COMPACTION", "x", "+x",
    "-x=y", "-x", "+=y", "+message.type=FIFO,,+queue.type=SimpleCQ", "+message.type=FIFO,-message.type",
):  # fmt: skip
    rule(f"attributes {text}", "attributes", fields(attributes=text))
rule("attributes too long", "attributes", fields(attributes="+" * 4097))

TABLE_RULES.extend(each for each in GROUP_RULES if each.what == "named" and "tools" not in each.name)
rule("group of the tools", "named", put(asked_group="TOOLS_CONSUMER"))
rule("group of transactions", "named", put(asked_group="CID_RMQ_SYS_TRANS"))
rule("longest group name", "named", named("{group}", GROUP_CHARS_MAX))
rule("no such group", "group", put(config=None))
rule("group is there", "group", with_group())
rule("group in order", "group", with_group(lambda group: replace(group, fifo=True)))
rule("reading is off", "group", with_group(lambda group: replace(group, consume_enabled=False)))
rule("no redeliveries", "group", with_group(lambda group: replace(group, retry_max=-1)))
rule("by message group", "group", with_group(lambda group: group.with_ordered_by(OrderedBy.MESSAGE_GROUP)))
rule("with policy", "group", with_group(lambda group: group.with_retry_policy(Exponential())))
rule("with +priority", "group", with_group(with_plus))
rule("of a newer version", "group", with_group(lambda group: replace(group, rest={**group.rest, "new": 1})))
for flag in (False, True):
    rule(f"fifo {flag}", "fifo", asks(fifo=flag))
    rule(f"reading {flag}", "reading", asks(consume_enabled=flag))
for number in (0, 1, 5, -1, (1 << 31) - 1):
    rule(f"attempts {number}", "attempts", asks(max_attempts=number))
for number in (0, 1, 2, 7):
    rule(f"ordered by {number}", "ordered by", asks(ordered_by=number))
for number in (0, 30, 100, 101, -1):
    rule(f"{number} %", "percent", asks(priority_percent=number))
for title, policy in (
    ("policy of no kind", admin.RetryPolicy()),
    ("policy default", admin.RetryPolicy(customized=admin.CustomizedRetries())),
    ("policy 1 s, 2 s", admin.RetryPolicy(customized=admin.CustomizedRetries(waits_ms=[1000, 2000]))),
    ("policy 0 s", admin.RetryPolicy(customized=admin.CustomizedRetries(waits_ms=[0]))),
    ("policy of 100", admin.RetryPolicy(customized=admin.CustomizedRetries(waits_ms=[1] * 100))),
    ("exponential", admin.RetryPolicy(exponential=admin.ExponentialRetries())),
    ("exponential 5 s", admin.RetryPolicy(exponential={"initial_ms": 5000, "max_ms": 9000})),
    ("exponential -1", admin.RetryPolicy(exponential=admin.ExponentialRetries(multiplier=-1))),
):  # fmt: skip
    rule(title, "policy", asks(retry_policy=policy))
for title, body in (("no body", b""), ("no JSON", b"{"), ("a list", b"[1]"), ("too much", b" " * 65_537)):
    rule(title, "body", put(body=body))
for title, what, value in (
    ("no name", "groupName", ""), ("name 7", "groupName", 7), ("name null", "groupName", None),
    ("reading off", "consumeEnable", False), ("reading on", "consumeEnable", True),
    ("reading x", "consumeEnable", "x"), ("reading null", "consumeEnable", None),
    ("in order", "consumeMessageOrderly", True), ("not in order", "consumeMessageOrderly", False),
    ("3 retries", "retryMaxTimes", 3), ("-5 retries", "retryMaxTimes", -5),
    ("x retries", "retryMaxTimes", "x"),
    ("many retries", "retryMaxTimes", 1 << 40), ("1.5 retries", "retryMaxTimes", 1.5),
    ("2 retry queues", "retryQueueNums", 2), ("-2 retry queues", "retryQueueNums", -2),
    ("true retry queues", "retryQueueNums", True),
    ("broker id 3", "brokerId", 3), ("slow broker 4", "whichBrokerWhenConsumeSlowly", 4),
    ("system flag", "groupSysFlag", 1), ("timeout 1", "consumeTimeoutMinute", 1),
    ("timeout x", "consumeTimeoutMinute", "x"), ("no broadcast", "consumeBroadcastEnable", False),
    ("field not known", "fieldNotKnown", 1),
    ("+priority 30", "attributes", {"+priority.factor": "30"}),
    ("priority 30", "attributes", {"priority.factor": "30"}),
    ("priority 101", "attributes", {"priority.factor": "101"}),
    ("priority as number", "attributes", {"priority.factor": 30}),
    ("-priority", "attributes", {"-priority.factor": ""}),
    ("ordered by group", "attributes", {"+whimbrel.ordered.by": "message-group"}),
    ("ordered by x", "attributes", {"+whimbrel.ordered.by": "x"}),
    ("attribute not known", "attributes", {"+x": "y"}), ("takes one away", "attributes", {"-x": ""}),
    ("attributes a list", "attributes", [1]), ("no attributes", "attributes", {}),
    ("retry policy", "groupRetryPolicy", {"type": "EXPONENTIAL", "exponentialRetryPolicy": {"initial": 9}}),
    ("retry policy of no kind", "groupRetryPolicy", {"type": "x"}),
    ("retry policy x", "groupRetryPolicy", "x"),
):  # fmt: skip
    rule(title, f"bean {what}", says(**{what: value}))

for mode in ("POP", "x", None):
    rule(f"mode {mode}", "mode", says(mode=mode))
rule("topics can't be written", "table", put(unwritable="topics"))
rule("groups can't be written", "table", put(unwritable="groups"))
rule("tables are full", "crowded", put(crowded=True))
rule("queues can't be deleted", "files", lambda case: case.during.append(queues_stay))
TABLE_RULES.extend((*FAULT_RULES, *POLL_RULES, *MEMBER_RULES, STRANGER_RULE, AGAIN_RULE))
rule("no writes", "writes", put(refusal="writes are refused"))

# What matters to a call, by what rules set.
TOPIC: Final = frozenset(("name", "topic", "table", "again"))
MADE: Final = frozenset(("drained", "crowded"))
SHAPE: Final = frozenset(("read", "write", "permission", "type", "answer"))
HEADER: Final = frozenset((
    "readQueueNums", "writeQueueNums", "perm", "topicFilterType", "topicSysFlag", "order", "attributes",
))  # fmt: skip
GONE: Final = frozenset(("contents", "begins", "readers", "journal", "polls", "files"))
GROUP: Final = frozenset(("named", "group", "table", "again"))
POLICY: Final = frozenset(("fifo", "attempts", "reading", "ordered by", "percent", "policy"))
BEAN: Final = frozenset(one.what for one in TABLE_RULES if one.what.startswith("bean"))
LEASES: Final = frozenset(("readers", "journal", "polls", "members", "contents"))
MATTERS: Final[dict[str, frozenset[str]]] = {
    "CreateTopic": TOPIC | MADE | SHAPE,
    "UpdateTopic": TOPIC | SHAPE | {"hide", "contents", "begins", "readers", "polls", "drained"},
    "DeleteTopic": TOPIC | GONE | {"drained", "writes"},
    "17": TOPIC | MADE | HEADER | {"peer", "contents", "readers", "polls"},
    "215": TOPIC | GONE | {"peer"},
    "CreateGroup": GROUP | POLICY | {"crowded", "journal", "writes"},
    "UpdateGroup": GROUP | POLICY | {"polls", "readers"},
    "DeleteGroup": GROUP | LEASES | {"writes"},
    "200": GROUP | BEAN | {"body", "crowded", "polls", "peer"},
    "207": GROUP | LEASES | {"groupName", "peer"},
    "401": frozenset(("named", "group", "topic", "mode", "body", "peer")),
}
EARLY: Final = frozenset((
    "name", "named", "topic", "group", "peer", "crowded", "table", "read", "readQueueNums", "perm",
    "permission", "type", "attributes", "fifo", "attempts", "body", "bean groupName", "bean retryMaxTimes",
    "bean attributes", "mode",
))  # fmt: skip
BESIDE: Final = {
    "name": EARLY,
    "named": EARLY,
    "peer": EARLY,
    "body": EARLY,
    "table": EARLY | GONE | {"drained", "again", "members"},
    "begins": frozenset(("readers", "read", "topic", "hide", "polls")),
    "polls": EARLY | GONE | {"hide", "write", "ordered by", "reading", "bean consumeMessageOrderly",
                             "bean consumeEnable", "members"},
}  # fmt: skip
ALONE: Final = frozenset((
    "illegal topic", "no topic named", "cluster's topic", "reserved prefix", "dead letters' topic",
    "longest topic name", "blank group", "illegal group", "group of transactions", "longest group name",
    "read 8", "write 8", "readQueueNums 8", "writeQueueNums 8", "read 4096", "write 4096",
    "readQueueNums 4096",
    "writeQueueNums 4096", "permission 8", "perm 8", "attributes -x", "attributes +=y", "attributes x",
    "attributes -x=y", "attributes too long", "exponential -1", "policy of 100", "-1 %",
    "name null", "a list", "no body", "1.5 retries", "x retries", "timeout x", "true retry queues",
    "retry policy x", "attribute not known", "ordered by x", "priority 101",
))  # fmt: skip
# What takes several rules to make a difference, beside all other rules.
BASES: Final[dict[str, tuple[tuple[str, ...], ...]]] = {
    "UpdateTopic": (("read 1", "write 1"), ("read 2", "write 2"), ("read 1", "hides messages"),
                    ("permission 2", "read by the group"), ("read 2", "one queue to write")),
    "17": (("readQueueNums 1", "writeQueueNums 1"), ("drained topic", "perm 4"),
           ("no such topic", "drained broker")),
    "UpdateGroup": (("group in order", "a receive waits in order"),),
    "DeleteTopic": (("holds 0, done 2", "journal full"),),
    "200": (("group in order", "a receive waits in order"),),
}  # fmt: skip
# What a slave looks at before it says that it changes nothing.
AT_A_SLAVE: Final = frozenset((
    "name", "named", "topic", "group", "peer", "body", "groupName", "bean groupName", "attributes", "perm",
    "readQueueNums", "mode",
))  # fmt: skip
NOT_AT_A_SLAVE: Final = frozenset(("polls", "writes", "drained", "crowded", "files"))


def call_rule(call: str) -> Rule:
    """Return the rule that makes a case one of a call."""

    def apply(case: TableCase) -> None:
        case.call = call
        if call == "CreateTopic":
            case.topic = None
        if call == "CreateGroup":
            case.config = None

    return Rule(call, "call", apply)


def rules_of(call: str) -> list[Rule]:
    """Return the rules that matter to a call."""
    missing = "topic missing"
    return [
        one for one in TABLE_RULES if one.what in MATTERS[call] and (one.name != missing or call.isdigit())
    ]


def every_combination(call: str) -> Iterator[tuple[Rule, ...]]:
    """Return combinations of the rules that matter to a call, some of them twice."""
    rules = rules_of(call)
    by_name = {one.name: one for one in rules}
    for broken in combinations(rules, BESIDE):
        if len(broken) < 2 or not set(names_of(broken)) & ALONE:
            yield broken
    for names in BASES.get(call, ()):
        base = tuple(by_name[name] for name in names)
        yield base
        taken = {one.what for one in base}
        for one in rules:
            if one.what not in {*taken, "name", "named"}:
                yield *base, one


def table_combinations(calls: tuple[str, ...], *, slave: bool = False) -> list[tuple[Rule, ...]]:
    """Return, for each call, no rule, each rule, most pairs of them, and more where it takes several.

    Those of one rule come first. Left out: rules that a call has nothing to do with (`MATTERS`); pairs where
    nothing comes of it (`BESIDE`), and those of what is refused as another rule is (`ALONE`). A slave's are
    those of one rule, and of two by the remoting protocol, of what it looks at before it says that it
    changes nothing (`AT_A_SLAVE`).
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
    whats = {one.what for one in broken}
    if whats & NOT_AT_A_SLAVE or {"drained topic", "topic deleted", "queues are left"} & set(
        names_of(broken)
    ):
        return False
    return len(broken) < 2 or (len(broken) == 2 and call.isdigit() and whats <= AT_A_SLAVE)
