"""Rules that acknowledgements, changes of the invisible time and forwards to dead letters can break.

A rule changes a case (`AckCase`, `ChangeCase`, `ForwardCase`) before it is made: the request, the receipt
handle, what has become of the message since its delivery, the broker, or what comes while the answer waits.
`settle_outcome` makes it and says in one line what was answered, and what has changed: what the group holds
and where it stands, dead letters, topics that were made, and what a receive gets that waits for it.

Queue 0 of the topic has messages (`cases.py`), all of which the group holds for 10 s by one delivery. The
message that is asked about is number 0; of acknowledgements, which begin with another one, number 2.
"""

from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Final

from support.cluster.broker_api import as_messages
from support.engine.cases import (
    DAMAGE_RULES,
    GROUP_RULES,
    TOPIC_RULES,
    Started,
    drafts_of,
    put,
    set_up,
    store_all,
)
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
    handle_of,
    handle_text,
    hold,
    side_effects,
    topic_goes,
)
from support.engine.rules import Rule, combinations, each_once
from support.engine.take_rules import TakeCase, begin_take
from support.engine.turned import TurnedMaster
from whimbrel.broker.consume.dead_letters import dead_letter
from whimbrel.broker.consume.receipts import RECEIPT_CHARS_MAX, ReceiptHandle
from whimbrel.deferred import Deferred
from whimbrel.errors import CorruptRecord, IllegalOffset
from whimbrel.model.limits import ACK_ENTRIES_MAX, ATTEMPT_MAX, INVISIBLE_MS_MAX
from whimbrel.model.topic import GroupConfig, TopicConfig
from whimbrel.pb.apache.rocketmq.v2 import definition_pb2 as v2
from whimbrel.pb.apache.rocketmq.v2 import service_pb2 as messaging
from whimbrel.rpc.server.responses import status_of
from whimbrel.store.codec import decode_record

__all__ = [
    "SETTLE_RULES", "AckCase", "ChangeCase", "ForwardCase", "SettleCase", "settle_combinations",
    "settle_outcome",
]  # fmt: skip

TIME: Final[Steps] = (("+4", 4), ("+7", 7))

Since = Callable[[TurnedMaster, Any], object]


@dataclass
class SettleCase(LeaseCase):
    """A request about a message that was delivered.

    Attributes:
        target: the message's number.
        lease: how the group holds all messages, or (`alone`) that one; None: it never got any. See `hold`.
        since: what has become of it since the handle was made.
        handle: changes of the handle. text: what there is instead of one; None: the handle.
        polls: a receive of the group waits. copied: a dead letter of the message is there already.
        letters_topic: the topic of dead letters as it is there; None: it is not.
    """

    target: int = 0
    lease: dict[str, Any] | None = field(default_factory=dict)
    since: Since = lambda side, case: None
    handle: Callable[[Any, ReceiptHandle], ReceiptHandle] = lambda case, handle: handle
    text: str | None = None
    polls: bool = False
    copied: bool = False
    letters_topic: dict[str, Any] | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        self.comes = "confirmed"

    def begin(self, side: TurnedMaster, handle: str) -> Started:
        """Make the request."""
        raise NotImplementedError

    def call(self, side: TurnedMaster, name: str, request: Any, show: Callable[[Any], str]) -> Started:
        """Call a method of topic, group and more."""
        request.topic.name, request.group.name = self.asked_topic, self.asked_group
        found = side.broker.call(name, request)
        if not isinstance(found, Deferred):
            return Started(show(found))

        def failed(error: Exception) -> str:
            return status_text(status_of(error))

        return Started(None, found, show, failed)


def status_text(status: v2.Status) -> str:
    """Say what a status is."""
    return f"{status.code} {status.message}"


@dataclass
class AckCase(SettleCase):
    """An AckMessage.

    Attributes:
        entries: which messages; None stands for the one with the handle that a rule breaks.
    """

    target: int = 2
    entries: tuple[int | None, ...] = (0, None)

    def begin(self, side: TurnedMaster, handle: str) -> Started:
        """See `SettleCase`."""
        request = messaging.AckMessageRequest()
        sound = {each: handle_of(side, self, each).encode() for each in set(self.entries) if each is not None}
        for number, each in enumerate(self.entries):
            request.entries.add(
                message_id=f"m{number}", receipt_handle=handle if each is None else sound[each]
            )

        def show(found: Any) -> str:
            [response] = as_messages(messaging.AckMessageResponse, [found])
            told: list[list[Any]] = []
            for entry, asked in zip(response.entries, request.entries, strict=bool(response.entries)):
                same = (entry.message_id, entry.receipt_handle) == (asked.message_id, asked.receipt_handle)
                text = status_text(entry.status) + ("" if same else " of another")
                if told and told[-1][1] == text:
                    told[-1][0] += 1
                else:
                    told.append([1, text])
            return f"{status_text(response.status)} [{', '.join(f'{count} {text}' for count, text in told)}]"

        return self.call(side, "AckMessage", request, show)


@dataclass
class ChangeCase(SettleCase):
    """A ChangeInvisibleDuration."""

    invisible_ms: int | None = 20_000
    suspend: bool = False

    def begin(self, side: TurnedMaster, handle: str) -> Started:
        """See `SettleCase`."""
        request = messaging.ChangeInvisibleDurationRequest(receipt_handle=handle, suspend=self.suspend)
        if self.invisible_ms is not None:
            request.invisible_duration.FromMilliseconds(self.invisible_ms)

        def show(found: Any) -> str:
            told = found.receipt_handle
            if told == handle:
                return f"{status_text(found.status)} (the same handle)"
            return f"{status_text(found.status)} (a new handle {handle_text(side, self, told)})"

        return self.call(side, "ChangeInvisibleDuration", request, show)


@dataclass
class ForwardCase(SettleCase):
    """A ForwardMessageToDeadLetterQueue.

    Attributes:
        delivery_attempt, max_delivery_attempts: of the request.
    """

    delivery_attempt: int = 1
    max_delivery_attempts: int = 16

    def begin(self, side: TurnedMaster, handle: str) -> Started:
        """See `SettleCase`."""
        request = messaging.ForwardMessageToDeadLetterQueueRequest(
            receipt_handle=handle,
            message_id="M0",
            delivery_attempt=self.delivery_attempt,
            max_delivery_attempts=self.max_delivery_attempts,
        )
        return self.call(
            side, "ForwardMessageToDeadLetterQueue", request, lambda found: status_text(found.status)
        )


# What has become of the message since, or comes while the answer waits


def again(side: TurnedMaster, case: SettleCase) -> None:
    """Have the message be delivered again."""
    hold(side, case, case.target, case.target + 1, attempt=2)


def acknowledged(side: TurnedMaster, case: SettleCase) -> None:
    """Have it be acknowledged."""
    finish(side, case, case.target, case.target + 1)


def committed(side: TurnedMaster, case: SettleCase) -> None:
    """Have the group's position be committed behind it."""
    finish(side, case, 0, case.target + 1)


def reset(side: TurnedMaster, case: SettleCase) -> None:
    """Reset the group to the begin of the queue, where there is one."""
    if side.store.queue_range(case.name, 0)[1]:
        side.consumption.positions.reset_offset(case.group, case.name, 0, 0)


def reset_and_delivered(side: TurnedMaster, case: SettleCase) -> None:
    """Reset the group, and deliver the message anew."""
    reset(side, case)
    hold(side, case, 0, case.target + 1)


def group_anew(side: TurnedMaster, case: SettleCase) -> None:
    """Delete the group and make it anew."""
    delete_group(side, case)
    side.groups.put(GroupConfig(name=case.group))


def begin_moves(side: TurnedMaster, case: SettleCase) -> None:
    """Have the queue begin behind the message."""
    queue = side.store.queues.get(case.name, 0)
    if queue is not None:
        queue.min = min(case.target + 1, queue.max)


def leaves(side: TurnedMaster, case: SettleCase) -> None:
    """Have the caller leave; its copy goes on."""
    for one in case.waiting:
        if one.deferred is not None:
            one.deferred.cancel()


def fails(side: TurnedMaster, case: SettleCase) -> None:
    """Have the copy not be confirmed."""
    confirm(side, case, fails=True)


def once_more(side: TurnedMaster, case: SettleCase) -> None:
    """Have another caller ask for the same."""
    case.waiting.append(case.begin(side, handle_of(side, case, case.target).encode()))


COMES: Final[dict[str, Steps]] = {
    "confirmed": (("confirmed", confirm), *TIME),
    "fails": (("fails", fails), *TIME),
    "late": (*TIME, ("confirmed", confirm)),
    "again, confirmed": (("again", again), ("confirmed", confirm), *TIME),
    "acked, confirmed": (("acked", acknowledged), ("confirmed", confirm), *TIME),
    "acked, fails": (("acked", acknowledged), ("fails", fails), *TIME),
    "reset, confirmed": (("reset", reset), ("confirmed", confirm), *TIME),
    "group deleted, confirmed": (("deleted", delete_group), ("confirmed", confirm), *TIME),
    "topic deleted, confirmed": (("deleted", delete_topic), ("confirmed", confirm), *TIME),
    "journal fills, confirmed": (("full", fill_journal), ("confirmed", confirm), *TIME),
    "once more, confirmed": (("once more", once_more), ("confirmed", confirm), *TIME),
    "leaves, confirmed": (("leaves", leaves), ("confirmed", confirm), *TIME),
}  # fmt: skip


# Making a request


def copy(side: TurnedMaster, case: SettleCase) -> None:
    """Have a dead letter of the message be there already, if it can be read."""
    append = side.consumption.hand_ons.append
    assert append is not None
    for place, size, _ in side.store.queue_units(case.name, 0, case.target, 1):
        with suppress(CorruptRecord, IllegalOffset):
            message = decode_record(side.store.read(place, size))
            target = dead_letter(GroupConfig(name=case.group), message, 1, attempts=1)
            append(message, target, 0, lambda error: None)


def prepare(side: TurnedMaster, case: SettleCase) -> str:
    """Bring about what was before the request; return the receipt handle."""
    if case.lease is not None:
        lease = dict(case.lease)
        span = (case.target, case.target + 1) if lease.pop("alone", False) else (0, 1 << 30)
        hold(side, case, *span, **lease)
    if case.letters_topic is not None:
        side.topics.put(TopicConfig(name=case.letters, **case.letters_topic))
    handle = case.handle(case, handle_of(side, case, case.target))
    text = handle.encode() if case.text is None else case.text
    if case.copied:
        copy(side, case)
        side.store.end_tick()
    if case.polls:
        case.waiting.append(begin_take(side, receive_of(side, case)))
    case.since(side, case)
    return text


def receive_of(side: TurnedMaster, case: SettleCase) -> TakeCase:
    """Return a receive of the same group."""
    receive = TakeCase(case.number, asked_topic=case.name, asked_group=case.group)
    receive.long, receive.asked_group, receive.began_ms = case.long, case.group, case.began_ms
    return receive


async def settle_outcome(side: TurnedMaster, case: SettleCase) -> str:
    """Make a case's request; return what was answered, and what has changed.

    Topic and group of the case are in the tables already.
    """
    begin_case(side, case)
    if case.topic is not None:
        store_all(side, drafts_of(case))
    with set_up(side, case):
        handle = prepare(side, case)
        side.counted.delivered.by_labels.clear()
        side.counted.dead_letters.by_labels.clear()
        polls = list(case.waiting)
        with faults(side, case):
            made = set(side.topics.rows), set(side.groups.rows)
            started = case.begin(side, handle)
            case.waiting.append(started)
            texts = [started.state]
            first = side_effects(side, case, made)
            texts += first
            if case.again:
                second = case.begin(side, handle)
                texts.append(f"again: {second.state}")
                case.waiting += [second] * second.waits
            await side.turn()
            if started.waits:
                texts += await after_steps(side, case, started, COMES[case.comes])
            for poll in polls:
                state = poll.state
                texts += [f"receive: {state}"]
                if poll.waits:
                    texts += await after_steps(side, case, poll, TIME)
            now = side_effects(side, case, made)
            texts += [f"then {' | '.join(each for each in now if each not in first) or '-'}"] * (now != first)
            texts += [f"other: {one.state}" for one in case.waiting if one not in (started, *polls)]
            leaves(side, case)
    return case_text(case, " | ".join(texts))


# The rules

SETTLE_RULES: Final[list[Rule]] = [*TOPIC_RULES, *GROUP_RULES, *LEASE_GROUP_RULES]
ACK_RULES: Final[list[Rule]] = []
CHANGE_RULES: Final[list[Rule]] = []
FORWARD_RULES: Final[list[Rule]] = [*FAULT_RULES[2:]]


def rule(name: str, what: str, apply: Callable[[Any], object]) -> None:
    """Add a rule of all three."""
    SETTLE_RULES.append(Rule(name, what, apply))


def handle(**fields: Any) -> Callable[[SettleCase], object]:
    """Return what changes the receipt handle; a value may be made of the handle."""

    def changed(case: SettleCase, one: ReceiptHandle) -> ReceiptHandle:
        new = {name: value(one) if callable(value) else value for name, value in fields.items()}
        return one._replace(**new)

    return put(handle=changed)


def later(one: ReceiptHandle) -> int:
    """Return the serial of a later delivery."""
    return one.serial + (64 << 6)


def beside(one: ReceiptHandle) -> int:
    """Return another place in the log."""
    return one.physical_offset + 1


def text_of(text: str) -> Callable[[SettleCase], object]:
    """Return what puts a text in the handle's place, with the names of group and topic."""
    return lambda case: setattr(case, "text", text.format(group=case.group, topic=case.name))


rule("another group asked", "named", lambda case: setattr(case, "asked_group", f"x{case.group}"))
rule("another topic asked", "name", lambda case: setattr(case, "asked_topic", f"x{case.name}"))
rule("no handle", "handle", put(text=""))
rule("no handle of ours", "handle", put(text="AQIDBAUGBwg="))
rule("handle not ASCII", "handle", put(text="W1:ä"))
rule("handle too long", "handle", put(text="W1:" + "a" * RECEIPT_CHARS_MAX))
rule(
    "handle of version 2",
    "handle",
    lambda case: setattr(case, "text", f"W2:broker-a:{case.group}:{case.name}:0:0:0:0:64:1:1"),
)
rule(
    "handle with a name less",
    "handle",
    lambda case: setattr(case, "text", f"W1:broker-a:{case.name}:0:0:0:0:64:1:1"),
)
rule("of another broker", "handle", handle(broker_name="broker-b"))
rule("of another group", "handle", handle(group="other"))
rule("of another topic", "handle", handle(topic="other"))
rule("of queue 1", "handle", handle(queue_id=1))
rule("of queue 4", "handle", handle(queue_id=4))
rule("of no queue", "handle", handle(queue_id=1 << 16))
rule("of the epoch before", "handle", handle(epoch=lambda one: one.epoch + 1))
rule("handle beyond the end", "handle", handle(offset=99))
rule("handle of the last offset", "handle", handle(offset=4, serial=later))
rule(
    "handle of another place",
    "handle",
    handle(physical_offset=beside, serial=later),
)
rule("handle of another size", "handle", handle(size=lambda one: one.size + 1, serial=later))
rule("of another place, held", "handle", handle(physical_offset=beside))
rule("of an earlier delivery", "handle", handle(serial=lambda one: one.serial - 64))
rule("of a later delivery", "handle", handle(serial=later, attempt=3))
rule("of attempt 0", "handle", handle(attempt=0))
rule("of attempt 7", "handle", handle(attempt=7))
rule("of the last attempt", "handle", handle(attempt=ATTEMPT_MAX))
rule("of too many attempts", "handle", handle(attempt=ATTEMPT_MAX + 1))
rule("never held", "lease", put(lease=None))
rule("only it held", "lease", put(lease={"alone": True}))
rule("time is over", "lease", put(lease={"for_ms": 0}))
rule("held for 60 s", "lease", put(lease={"for_ms": 60_000}))
rule("attempt 17", "lease", put(lease={"attempt": 17}))
rule("renewed", "lease", put(lease={"renewed": True, "for_ms": 60_000}))
rule("renewed, over", "lease", put(lease={"renewed": True, "for_ms": 0}))
rule("held by a1", "lease", put(lease={"by": "a1"}))
rule("taken long ago", "lease", put(lease={"ago_ms": 50_000}))
rule("delivered again", "since", put(since=again))
rule("acked", "since", put(since=acknowledged))
rule("committed", "since", put(since=committed))
rule("reset", "since", put(since=reset))
rule("reset, delivered", "since", put(since=reset_and_delivered))
rule("group deleted", "since", put(since=delete_group))
rule("group deleted, made", "since", put(since=group_anew))
rule("topic goes", "since", put(since=topic_goes))
rule("topic deleted", "since", put(since=delete_topic))
rule("begin moves", "since", put(since=begin_moves))
rule("changed", "since", put(since=lambda side, case: change(side, case, case.target, 2_000)))
rule("others acked", "since", put(since=lambda side, case: acknowledge(side, case, (1, 3, 4))))
SETTLE_RULES.extend(DAMAGE_RULES)
SETTLE_RULES.extend(FAULT_RULES[:2])
rule("a receive waits", "polls", put(polls=True))
rule("twice", "again", put(again=True))

for title, entries in (
    ("no entries", ()),
    ("the same twice", (None, None)),
    ("1024 entries", (None,) * ACK_ENTRIES_MAX),
    ("1025 entries", (None,) * (ACK_ENTRIES_MAX + 1)),
    ("that one alone", (None,)),
    ("all", (0, 1, None, 3, 4)),
):
    ACK_RULES.append(Rule(title, "entries", put(entries=entries)))

for title, ms in (
    ("for 0", 0), ("for no time", None), ("for 1 ms", 1), ("for -1 ms", -1), ("for 2 s", 2_000),
    ("for 12 h", INVISIBLE_MS_MAX), ("for more", INVISIBLE_MS_MAX + 1),
):  # fmt: skip
    CHANGE_RULES.append(Rule(title, "time", put(invisible_ms=ms)))
CHANGE_RULES.append(Rule("suspended", "suspend", put(suspend=True)))

for title, what, apply in (
    ("copied already", "copied", put(copied=True)),
    ("dead letters in 2 queues", "letters", put(letters_topic={"read_queues": 2, "write_queues": 2})),
    ("dead letters not to be written", "letters", put(letters_topic={"permission": 4, "write_queues": 1})),
    ("dead letters in no queue", "letters", put(letters_topic={"read_queues": 0, "write_queues": 0})),
    ("attempt 5 of 3", "request", put(delivery_attempt=5, max_delivery_attempts=3)),
    ("40 messages", "contents", put(contents="many")),
    ("large messages", "contents", put(contents="large")),
    ("unusual messages", "contents", put(contents="unusual")),
):  # fmt: skip
    FORWARD_RULES.append(Rule(title, what, apply))
for coming in COMES:
    if coming != "confirmed":
        FORWARD_RULES.append(Rule(coming, "comes", put(comes=coming)))

OWN_RULES: Final = {AckCase: ACK_RULES, ChangeCase: CHANGE_RULES, ForwardCase: FORWARD_RULES}
# What is looked at before anything is changed; what makes a difference to few. By what rules set: beside
# which other rules they are broken.
EARLY: Final = frozenset(("name", "named", "handle", "entries", "time", "topic", "group", "journal"))
STANDING: Final = frozenset(("topic", "group", "lease", "since", "handle"))
BESIDE: Final = {
    "name": EARLY,
    "named": EARLY,
    "permission": STANDING,
    "queues": STANDING,
    "creations": STANDING,
    "attempts": STANDING | {"polls"},
    "handle": EARLY | STANDING | {"damage", "again", "suspend", "polls", "begins"},
    "damage": STANDING | {"begins", "copies", "writes", "journal", "again"},
}
# What makes no difference to what comes while a copy is awaited.
UNPAIRED: Final = frozenset(
    ("name", "named", "comes", "copies", "handle", "topic", "permission", "queues", "letters", "request")
)
# What takes several rules to make a difference, beside all other rules.
BASES: Final[dict[type[SettleCase], tuple[tuple[str, ...], ...]]] = {
    AckCase: (
        ("ordered group", "a receive waits"),
        ("ordered by message group", "a receive waits"),
        ("ordered group", "a receive waits", "only it held"),
    ),
    ChangeCase: (
        ("ordered group", "a receive waits"),
        ("a receive waits", "for 0"),
        ("a receive waits", "for 2 s"),
        ("ordered group", "a receive waits", "only it held"),
    ),
    ForwardCase: (
        ("ordered group", "a receive waits"),
        ("ordered group", "a receive waits", "only it held"),
        ("copied already", "copies later"),
    ),
}


def settle_combinations(kind: type[SettleCase]) -> Iterator[tuple[Rule, ...]]:
    """Return no rule, each rule, each two of them, and more where a receive or an answer waits.

    Left out: what comes where no answer waits; what makes no difference (`BESIDE`, `UNPAIRED`).
    """
    return each_once(every_combination([*SETTLE_RULES, *OWN_RULES[kind]], BASES[kind]))


def every_combination(rules: list[Rule], bases: tuple[tuple[str, ...], ...]) -> Iterator[tuple[Rule, ...]]:
    """Return them, some of them twice."""
    named = {rule.name: rule for rule in rules}
    for broken in combinations(rules, BESIDE):
        pair = len(broken) > 1
        if not any(rule.what == "comes" or (pair and rule.name in ALONE) for rule in broken):
            yield broken
    for names in bases:
        base = tuple(named[name] for name in names)
        taken = {rule.what for rule in base}
        for one in rules:
            if one.what not in {*taken, "name", "named", "comes"}:
                yield *base, one
    comes = [rule for rule in rules if rule.what == "comes"]
    for coming in comes:
        later = named["copies later"]
        yield later, coming
        for one in rules:
            if one.what not in (
                "name",
                "named",
                "comes",
                "copies",
                "handle",
                "topic",
                "permission",
                "queues",
            ):
                yield later, coming, one
