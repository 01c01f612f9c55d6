"""Rules that calls about a whole broker can break, and which of them are broken at once.

    DrainBroker, ForgetBroker      by gRPC, of administrators
    25                             settings, one of which drains, by remoting (`remoting/runtime.py`)

The call is a rule itself: the first of each combination. The case's topic is the only one of clients: queue 0
has messages (`cases.py`), queue 2 has one, and no group has read them. Another broker, `broker-b`, has queues
of that topic, and is away.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any, Final
from unittest import mock

from support.engine.admin_cases import (
    AGAIN_RULE,
    POLL_RULES,
    STRANGER_RULE,
    AdminCase,
    AdminSide,
    does,
    store_messages,
)
from support.engine.cases import Started, put
from support.engine.lease_cases import hold
from support.engine.position_rules import names_of, stands
from support.engine.rules import Rule, combinations, each_once
from support.engine.table_rules import drained_elsewhere, drained_topic, read_all, with_topic
from whimbrel.errors import BadRequest, StoreFull
from whimbrel.model.registration import SharedTopics
from whimbrel.model.topic import TopicConfig
from whimbrel.model.wire import ADMIN_SERVICE
from whimbrel.pb.whimbrel.admin.v1 import admin_service_pb2 as admin

__all__ = ["UPKEEP_CALLS", "UpkeepCase", "upkeep_combinations"]

UPKEEP_CALLS: Final = ("DrainBroker", "ForgetBroker", "25")
HOURS: Final = 72.0  # for which log files are kept


@dataclass
class UpkeepCase(AdminCase):
    """A call about a broker.

    Attributes:
        drain: what DrainBroker asks for; None: it only looks.
        broker: whom ForgetBroker is about.
        nameserver: one has told of the others. masters: those that it knows. others: who has the topic.
        settings: the lines of 25.
    """

    alone: bool = True
    drain: bool | None = True
    broker: str = "broker-b"
    nameserver: bool = True
    masters: Mapping[str, str] = field(default_factory=lambda: {"broker-c": "10.0.0.3:8081"})
    others: Mapping[str, int] = field(default_factory=lambda: {"broker-b": 4, "broker-c": 2})
    settings: str = "brokerPermission=4"

    def begin(self, side: AdminSide) -> Started:
        """See `AdminCase`."""
        return CALLS[self.call](side, self)


def drain_text(found: Any) -> str:
    """Say what DrainBroker was answered."""
    unread = [f"{one.topic} {one.messages}" for one in found.unread]
    return (
        f"OK {found.drained_topics} drained, undelivered {found.undelivered}, in flight {found.in_flight},"
        f" delayed {found.delayed}, open {found.open_transactions}, unread {', '.join(unread) or 'none'}"
    )


def drain_broker(side: AdminSide, case: UpkeepCase) -> Started:
    """Call DrainBroker."""
    request = admin.DrainBrokerRequest(drain=case.drain)
    return case.by_grpc(side, ADMIN_SERVICE, "DrainBroker", request, drain_text)


def forget_broker(side: AdminSide, case: UpkeepCase) -> Started:
    """Call ForgetBroker."""
    request = admin.ForgetBrokerRequest(broker_name=case.broker)
    sharing, before = side.broker.role.sharing, ""
    if sharing is not None:
        before = sharing.text

    def show(found: Any) -> str:
        return f"OK {'known' if found.known else 'not known'} {', '.join(found.topics)}".rstrip()

    started = case.by_grpc(side, ADMIN_SERVICE, "ForgetBroker", request, show)
    if sharing is not None and sharing.text != before:
        kept = sharing.path.read_text() if sharing.saved else "not saved"
        same = sharing.saved and "".join(kept.split()) == sharing.text
        started.shown = f"{started.shown} | sharing {sharing.text}{'' if same else ' not in the file'}"
    return started


def change_settings(side: AdminSide, case: UpkeepCase) -> Started:
    """Make a request 25."""
    started = case.by_remoting(side, 25, {}, case.settings.encode())
    if not side.follows and (hours := side.store.writer.options.reserved_hours) != HOURS:
        started.shown = f"{started.shown} | kept for {hours:g} h"
    return started


CALLS: Final[dict[str, Callable[[AdminSide, UpkeepCase], Started]]] = {
    "DrainBroker": drain_broker,
    "ForgetBroker": forget_broker,
    "25": change_settings,
}


# What was before


def shared(side: AdminSide, case: UpkeepCase) -> None:
    """Have a nameserver tell which topics the other brokers have, and who is registered."""
    sharing = side.broker.role.sharing
    if sharing is None:
        return
    sharing.masters.clear()
    sharing.take({})
    queues = {case.name: case.others} if case.others else {}
    sharing.told("n1", SharedTopics(queues=queues, masters=case.masters))
    if not case.nameserver:
        sharing.lost("n1")


def forgotten(side: AdminSide, case: UpkeepCase) -> None:
    """Have the broker be let go of before, where that can be done."""
    if side.broker.role.sharing is not None:
        with suppress(BadRequest):
            side.broker.role.sharing.forget(case.broker)


def another_topic(side: AdminSide, case: UpkeepCase) -> None:
    """Have there be a topic more, which has no messages, and that of the group's redeliveries."""
    side.topics.put(TopicConfig(name=f"other-{case.number:05}-", read_queues=1, write_queues=1))
    side.topics.put(TopicConfig(name=f"%RETRY%{case.group}", read_queues=1, write_queues=1))


def delayed(side: AdminSide, case: UpkeepCase) -> None:
    """Have messages wait for their times."""
    side.broker.role.timers.counts["t"] = 7


def messages_of_nobody(side: AdminSide, case: UpkeepCase) -> None:
    """Have the queues be there of a topic that is not."""
    store_messages(side, case)


@contextmanager
def upkept(side: AdminSide, case: UpkeepCase) -> Iterator[None]:
    """Undo in the end what is of no table."""
    writer: Any
    page, writer = side.store.page, None if side.follows else side.store.writer
    before = page.broker_retention, writer and writer.options
    try:
        yield
    finally:
        side.broker.role.timers.counts.pop("t", None)
        page.broker_retention = before[0]
        if writer is not None:
            writer.options = before[1]


def writes(count: int) -> Callable[[AdminCase], object]:
    """Return what has the table of topics be written so often, and not again."""

    @contextmanager
    def during(side: AdminSide, case: AdminCase) -> Iterator[None]:
        left, save = [count], side.topics.save

        def limited(*arguments: Any) -> None:
            left[0] -= 1
            if left[0] < 0:
                raise StoreFull("the disk has no room for the table")
            save(*arguments)

        with mock.patch.object(side.topics, "save", limited):
            yield

    return lambda case: case.during.append(during)


@contextmanager
def sharing_full(side: AdminSide, case: AdminCase) -> Iterator[None]:
    """Have the file of what brokers share not be written."""
    with mock.patch("whimbrel.store.jsonconfig.save", mock.Mock(side_effect=StoreFull("full"))):
        yield


# The rules

UPKEEP_RULES: Final[list[Rule]] = []


def rule(name: str, what: str, apply: Callable[[Any], object]) -> None:
    """Add a rule."""
    UPKEEP_RULES.append(Rule(name, what, apply))


rule("looks", "drain", put(drain=None))
rule("ends it", "drain", put(drain=False))
rule("no such topic", "topic", put(topic=None))
rule("queues are left", "topic", lambda case: (put(topic=None)(case), does(messages_of_nobody)(case)))
rule("drained topic", "topic", drained_topic)
rule("topic not to be written", "topic", with_topic(permission=4))
rule("topic not to be read", "topic", with_topic(permission=2))
rule("FIFO topic", "topic", with_topic(attributes={"+message.type": "FIFO"}))
rule("two queues to read", "topic", with_topic(read_queues=2))
rule("two topics more", "more", does(another_topic))
rule("sends make topics", "made", put(topics_made=True))
rule("drained broker", "drained", does(drained_elsewhere))
rule("no messages", "contents", put(contents="none"))
rule("begins at 2", "begins", put(begins=2))
rule("read by the group", "readers", read_all(""))
rule("stands at 2", "readers", does(stands(2)))
rule("read by tools", "readers", read_all("TOOLS_CONSUMER"))
rule("read by two", "readers", read_all("", "another"))
rule("holds all", "readers", does(lambda side, case: hold(side, case, 0, 1 << 30)))
rule("no such group", "group", put(config=None))
rule("messages wait", "delayed", does(delayed))
UPKEEP_RULES.extend(each for each in POLL_RULES if each.name != "a receive waits in order")
rule("topics can't be written", "table", put(unwritable="topics"))
rule("topics can be written once", "table", writes(1))
rule("no writes", "writes", put(refusal="writes are refused"))
for title, name in (("this broker", "broker-a"), ("one that is registered", "broker-c"),
                    ("a stranger", "broker-x"), ("nobody", "")):  # fmt: skip
    rule(f"forgets {title}", "broker", put(broker=name))
rule("no nameserver", "nameserver", put(nameserver=False))
rule("slaves are registered", "masters", put(masters={"broker-b": ""}))
rule("is registered", "masters", put(masters={"broker-b": "10.0.0.2:8081"}))
rule("has no queues", "others", put(others={"broker-c": 2}))
rule("alone has queues", "others", put(others={"broker-b": 1}))
rule("forgotten before", "before", does(forgotten))
rule("file can't be written", "file", lambda case: case.during.append(sharing_full))
for text in (
    "brokerPermission=6", "brokerPermission=2", "brokerPermission = 4 ", "autoCreateTopicEnable=true",
    "autoCreateTopicEnable=false", "autoCreateTopicEnable=yes", "fileReservedTime=24", "fileReservedTime=0",
    "fileReservedTime=99999", "fileReservedTime=x", "a=b", "brokerPermission", "", "# nothing\n",
    "brokerPermission=4\na=b",
    "fileReservedTime=5\nbrokerPermission=4", "brokerPermission=4\nbrokerPermission=6",
):  # fmt: skip
    rule(f"sets {text!r}", "settings", put(settings=text))
rule(
    "sets all", "settings", put(settings="brokerPermission=4\nfileReservedTime=5\nautoCreateTopicEnable=true")
)
rule("sets too much", "settings", put(settings="a" * 65_537))
UPKEEP_RULES.extend((STRANGER_RULE, AGAIN_RULE))

TABLES: Final = frozenset(("topic", "more", "made", "drained", "table", "again"))
MATTERS: Final[dict[str, frozenset[str]]] = {
    "DrainBroker": TABLES | {"drain", "contents", "begins", "readers", "group", "delayed", "polls", "writes"},
    "ForgetBroker": frozenset(
        ("broker", "nameserver", "masters", "others", "before", "file", "topic", "again")
    ),
    "25": TABLES | {"settings", "peer", "writes"},
}
BASES: Final[dict[str, tuple[tuple[str, ...], ...]]] = {
    "DrainBroker": (("looks", "drained topic"), ("ends it", "drained topic"),
                    ("two topics more", "drained broker"), ("ends it", "two topics more", "drained broker")),
    "ForgetBroker": (("forgotten before", "twice"),),
    "25": (("two topics more", "sets all"),),
}  # fmt: skip


def call_rule(call: str) -> Rule:
    """Return the rule that makes a case one of a call."""

    def apply(case: UpkeepCase) -> None:
        case.call = call
        case.during.append(upkept)
        if call == "ForgetBroker":
            case.before.append(shared)

    return Rule(call, "call", apply)


def every_combination(call: str) -> Iterator[tuple[Rule, ...]]:
    """Return combinations of the rules that matter to a call, some of them twice."""
    rules = [each for each in UPKEEP_RULES if each.what in MATTERS[call]]
    by_name = {each.name: each for each in rules}
    yield from combinations(rules)
    for names in BASES[call]:
        base = tuple(by_name[name] for name in names)
        yield base
        taken = {each.what for each in base}
        for each in rules:
            if each.what not in taken:
                yield *base, each


def upkeep_combinations(*, slave: bool = False) -> list[tuple[Rule, ...]]:
    """Return, for each call, no rule, each rule, each two of them that matter (`MATTERS`), and some of three.

    Those of one rule come first. A slave's are those of one rule: it refuses.
    """
    found = [
        (call_rule(call), *broken)
        for call in UPKEEP_CALLS
        for broken in each_once(every_combination(call))
        if not slave or at_a_slave(broken)
    ]
    return sorted(found, key=lambda each: len(each) > 2)


def at_a_slave(broken: tuple[Rule, ...]) -> bool:
    """Tell whether a slave's answer is recorded."""
    out = {"polls", "writes", "drained"}
    left = {"queues are left", "drained topic"} & set(names_of(broken))
    return len(broken) < 2 and not left and not {each.what for each in broken} & out
