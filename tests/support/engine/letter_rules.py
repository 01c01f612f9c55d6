"""Rules that calls about dead letters can break, and which of them are broken at once.

    ListDeadLetters, ReplayDeadLetters, DropDeadLetters       by gRPC, of administrators

The call is a rule itself: the first of each combination. Queue 0 of the topic has messages (`cases.py`), the
first three of which the group has given up: queue 0 of its dead letters has three, and calls are about the
first two of them. The time for an answer of ReplayDeadLetters comes at once, unless it is to be safe later.
"""

import hashlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any, Final
from unittest import mock

from support.engine.admin_cases import (
    AGAIN_RULE,
    FAULT_RULES,
    AdminCase,
    AdminSide,
    Before,
    does,
    store_messages,
)
from support.engine.cases import GROUP_RULES, Started, damaged, put, store_all
from support.engine.lease_cases import (
    LEASE_GROUP_RULES,
    Step,
    Steps,
    case_text,
    confirm,
    delete_group,
    delete_topic,
    fill_journal,
)
from support.engine.position_rules import names_of
from support.engine.rules import Rule, combinations, each_once
from support.engine.turned import TurnedMaster
from whimbrel.deferred import Deferred
from whimbrel.model.limits import DEAD_LETTERS_MAX
from whimbrel.model.names import SETTLED_PREFIX
from whimbrel.model.topic import GroupConfig, TopicConfig
from whimbrel.model.wire import DEAD_LETTER_SERVICE
from whimbrel.pb.whimbrel.admin.v1 import dead_letter_service_pb2 as letters
from whimbrel.store.codec import decode_record

__all__ = ["LETTER_CALLS", "LetterCase", "letter_combinations"]

LETTER_CALLS: Final = ("ListDeadLetters", "ReplayDeadLetters", "DropDeadLetters")
LARGE = 700_000  # bytes of a body, of which one fits into an answer
HUGE = 1_100_000  # of one that has an answer of its own
WHOLE: Final = "UNIQ_KEY\x01{id}\x02KEYS\x01k1\x02TAGS\x01A\x02"
TOLD: Final = (
    "RETRY_TOPIC\x01{origin}\x02DLQ_ORIGIN_TOPIC\x01{origin}\x02DLQ_ORIGIN_MESSAGE_ID\x01{id}\x02"
    "ORIGIN_MESSAGE_ID\x01{place}\x02DEAD_AFTER_ATTEMPTS\x0116\x02"
)


@dataclass
class LetterCase(AdminCase):
    """A call about dead letters.

    Attributes:
        places: queues and offsets that are asked for.
        listed: fields of ListDeadLetters, besides the group. first: where it begins.
        letters_topic: how the topic of dead letters is in the table; None: it is not.
        count: how many dead letters there are. of: the queue of the originals, and their first offset.
        properties: of the dead letters. body: of those that are there.
    """

    alone: bool = True
    places: tuple[tuple[int, int], ...] = ((0, 0), (0, 1))
    listed: dict[str, Any] = field(default_factory=dict)
    first: tuple[int, int] | None = None
    letters_topic: dict[str, Any] | None = field(default_factory=dict)
    count: int = 3
    of: tuple[int, int] = (0, 0)
    properties: str = WHOLE + TOLD
    origin: str = ""
    body: bytes = b"body of a dead letter"

    @property
    def settled(self) -> str:
        """The group whose progress says which dead letters are settled."""
        return SETTLED_PREFIX + self.group

    @property
    def stands_at(self) -> tuple[tuple[str, str], ...]:
        """See `AdminCase`."""
        return ((self.settled, self.letters),)

    def fill(self, side: AdminSide) -> None:
        """See `AdminCase`."""
        store_messages(side, self)
        queue_id, first = self.of
        drafts = []
        for number in range(self.count):
            place = ""
            for at, size, _ in side.store.queue_units(self.name, queue_id, first + number, 1):
                place = decode_record(side.store.read(at, size)).offset_message_id
            told = {
                "id": f"M{number}",
                "place": place,
                "origin": self.origin or self.name,
                "group": self.group,
            }
            text = self.properties.format(**told).encode()
            draft = self.draft(f"M{number}", "A", number, properties=text, body=self.body, reconsume_times=17)
            draft.topic = self.letters
            drafts.append(draft)
        store_all(side, drafts)

    def begin(self, side: AdminSide) -> Started:
        """See `AdminCase`."""
        if self.call == "ListDeadLetters":
            listing = letters.ListDeadLettersRequest(group=self.asked_group, **self.listed)
            if self.first is not None:
                place = getattr(listing, "from")
                place.queue_id, place.offset = self.first
            return self.by_grpc(side, DEAD_LETTER_SERVICE, self.call, listing, self.list_text)
        request = getattr(letters, f"{self.call}Request")(group=self.asked_group)
        for queue_id, offset in self.places:
            request.places.add(queue_id=queue_id, offset=offset)
        return self.by_grpc(side, DEAD_LETTER_SERVICE, self.call, request, outcomes_text)

    def list_text(self, found: Any) -> str:
        """Say what ListDeadLetters was answered."""
        told: list[str] = []
        digest = hashlib.sha256()
        for one in found.letters:
            system = one.message.system_properties
            system.ClearField("store_timestamp")
            digest.update(case_text(self, str(one.message)).encode())
            body = f" {len(one.message.body)} B" if one.message.body else ""
            told.append(
                f"{system.queue_id}:{system.queue_offset} {system.message_id}"
                f" of {one.origin_topic or 'nobody'} after {one.attempts}"
                f" attempt {system.delivery_attempt}{body}"
            )
        if len(told) > 3:
            told[1:-1] = [f"{len(told) - 2} more"]
        told[-1:] = [f"{each} #{digest.hexdigest()[:8]}" for each in told[-1:]]
        more = f" next {found.next.queue_id}:{found.next.offset}" if found.HasField("next") else ""
        return f"OK {', '.join(told) or 'none'}{more}"


RESULTS: Final = {1: "done", 2: "before", 3: "gone", 4: "refused"}


def outcomes_text(found: Any) -> str:
    """Say what became of dead letters."""
    told = [
        " ".join(filter(None, (
            f"{one.place.queue_id}:{one.place.offset} {RESULTS[one.result]}", one.topic, one.why,
        )))
        for one in found.outcomes
    ]  # fmt: skip
    return f"OK {', '.join(told)}"


# What was before, or comes while an answer waits


def method_owner(side: AdminSide) -> Any:
    """Return what handles calls about dead letters."""
    handle: Any = side.unary(DEAD_LETTER_SERVICE, "ReplayDeadLetters").handle
    return handle.__self__


def make_topic(side: AdminSide, case: LetterCase) -> None:
    """Have the topic of dead letters be in the table, where it is."""
    if case.letters_topic is not None:
        shape = {"read_queues": 1, "write_queues": 1} | case.letters_topic
        side.topics.put(TopicConfig(name=case.letters, **shape))
    # Whose turn it is among queues, where nothing says into which a dead letter goes.
    vars(method_owner(side))["turn"] = 0


def settle(*places: tuple[int, int]) -> Step:
    """Return what has dead letters be settled."""

    def before(side: TurnedMaster, case: LetterCase) -> None:
        side.groups.put(GroupConfig(name=case.settled))
        side.consumption.positions.finish(case.settled, case.letters, places)

    return before


def put_back(side: AdminSide, case: LetterCase) -> None:
    """Put the first two dead letters back, where that can be done, and forget that they are settled."""
    request = letters.ReplayDeadLettersRequest(group=case.group)
    for offset in (0, 1):
        request.places.add(queue_id=0, offset=offset)
    method = side.unary(DEAD_LETTER_SERVICE, "ReplayDeadLetters")
    answer = method.handle(None, request)  # type: ignore[arg-type]
    assert not isinstance(answer, Deferred) or answer.done
    side.store.end_tick()
    side.consumption.delete_group(case.settled)


def letter_is(what: str, number: int = 0) -> Before:
    """Return what has an entry of the dead letters be damaged; see `damaged`."""

    def before(side: AdminSide, case: LetterCase) -> None:
        damaged(side, SimpleNamespace(name=case.letters), number, what)  # type: ignore[arg-type]

    return before


def letters_begin(offset: int) -> Before:
    """Return what has the queue of dead letters begin later."""

    def before(side: AdminSide, case: LetterCase) -> None:
        queue = side.store.queues.get(case.letters, 0)
        if queue is not None:
            queue.min = min(offset, queue.max)

    return before


def letters_deleted(side: TurnedMaster, case: LetterCase) -> None:
    """Delete the topic of dead letters."""
    delete_topic(side, SimpleNamespace(name=case.letters))  # type: ignore[arg-type]


@contextmanager
def safe_later(side: AdminSide, case: LetterCase) -> Iterator[None]:
    """Have answers wait until a test says that the log is safe."""
    appender = side.broker.role.appender

    def when_durable(end: int, answer: Any) -> None:
        assert end == side.store.written
        case.copies.append(answer)

    with mock.patch.multiple(appender, waits=True, when_durable=when_durable, complete_waiting=lambda: None):
        yield


def settled_deleted(side: TurnedMaster, case: LetterCase) -> None:
    """Delete the group of what is settled."""
    side.groups.remove(case.settled)
    side.consumption.delete_group(case.settled)


COMES: Final[dict[str, Steps]] = {
    "confirmed": (("confirmed", confirm),),
    "fails": (("fails", lambda side, case: confirm(side, case, fails=True)),),
    "group deleted, confirmed": (("deleted", delete_group), ("confirmed", confirm)),
    "settled deleted, confirmed": (("deleted", settled_deleted), ("confirmed", confirm)),
    "letters deleted, confirmed": (("deleted", letters_deleted), ("confirmed", confirm)),
    "journal fills, confirmed": (("full", fill_journal), ("confirmed", confirm)),
    "dropped, confirmed": (("dropped", settle((0, 0))), ("confirmed", confirm)),
}  # fmt: skip


# The rules

LETTER_RULES: Final[list[Rule]] = [
    *(each for each in GROUP_RULES if each.what in ("named", "group") and "made" not in each.name),
    *(each for each in LEASE_GROUP_RULES if each.name == "dead after 1"),
    Rule("name too long for letters", "named", put(asked_group="g" * 250)),
]


def rule(name: str, what: str, apply: Callable[[Any], object]) -> None:
    """Add a rule."""
    LETTER_RULES.append(Rule(name, what, apply))


def asks(*places: tuple[int, int]) -> Callable[[LetterCase], object]:
    """Return what sets the dead letters that are asked for."""
    return put(places=places)


def lists(**fields: Any) -> Callable[[LetterCase], object]:
    """Return what sets fields of ListDeadLetters."""
    return lambda case: case.listed.update(fields)


def topic_is(**fields: Any) -> Callable[[LetterCase], object]:
    """Return what changes the topic of the originals."""
    return lambda case: case.change(**fields)


def as_rocketmq(case: LetterCase) -> None:
    """Have the dead letters name a topic of the group's redeliveries, as RocketMQ 5 does."""
    case.origin = f"%RETRY%{case.group}_{case.name}"


def waits(steps: Steps) -> Callable[[LetterCase], object]:
    """Return what has an answer wait, and something come meanwhile."""

    def apply(case: LetterCase) -> None:
        case.steps = steps
        case.during.append(safe_later)

    return apply


rule("no places", "places", asks())
rule("all places", "places", asks((0, 2), (0, 0), (0, 1)))
rule("the same twice", "places", asks((0, 0), (0, 0)))
rule("place beyond", "places", asks((0, 0), (0, 3)))
rule("place -1", "places", asks((0, -1), (0, 1)))
rule("place in queue 1", "places", asks((1, 0), (0, 0)))
rule("place in queue -1", "places", asks((-1, 0)))
rule("16 places", "places", asks(*((0, each) for each in range(DEAD_LETTERS_MAX))))
rule("17 places", "places", asks(*((0, each) for each in range(DEAD_LETTERS_MAX + 1))))
for title, first in (("from 1", (0, 1)), ("from the end", (0, 3)), ("from queue 1", (1, 0)),
                     ("from -1", (0, -1)), ("from queue -1", (-1, 2))):  # fmt: skip
    rule(title, "from", put(first=first))
for count in (1, 2, -1, 100):
    rule(f"count {count}", "count", lists(count=count))
rule("with bodies", "bodies", lists(with_bodies=True))
rule("large bodies", "body", put(body=b"b" * LARGE))
rule("huge bodies", "body", put(body=b"b" * HUGE, count=2))
rule("no letters' topic", "letters", put(letters_topic=None))
rule("letters in no queue", "letters", put(letters_topic={"read_queues": 0}))
rule("letters in 2 queues", "letters", put(letters_topic={"read_queues": 2, "write_queues": 2}))
rule("letters not to be read", "letters", put(letters_topic={"permission": 2}))
rule("no letters", "count of letters", put(count=0))
rule("80 letters", "count of letters", put(count=80))
rule("letters deleted", "count of letters", does(letters_deleted))
rule("first settled", "settled", does(settle((0, 0))))
rule("second settled", "settled", does(settle((0, 1))))
rule("all settled", "settled", does(settle((0, 0), (0, 1), (0, 2))))
rule("put back already", "settled", does(put_back))
rule("first is gone", "letters begin", does(letters_begin(1)))
rule("all letters are gone", "letters begin", does(letters_begin(9)))
rule("letter is corrupt", "letter", does(letter_is("corrupt")))
rule("letter is too small", "letter", does(letter_is("small")))
rule("letter is a hole", "letter", does(letter_is("hole")))
rule("second letter is corrupt", "letter", does(letter_is("corrupt", 1)))
rule("no such topic", "topic", put(topic=None))
rule("topic not to be written", "topic", topic_is(permission=4))
rule("topic not to be read", "topic", topic_is(permission=2))
rule("no queue to write", "topic", topic_is(write_queues=0))
rule("one queue to write", "topic", topic_is(write_queues=1))
rule("no queue to read", "topic", topic_is(read_queues=0))
rule("drained topic", "topic", lambda case: setattr(case, "topic", case.topic.with_drained(drained=True)))
rule("originals of queue 2", "of", put(of=(2, 0)))
rule("originals unknown", "of", put(of=(3, 7)))
rule("names no topic", "origin", put(properties=WHOLE))
rule("of a system topic", "origin", put(origin="SELF_TEST_TOPIC"))
rule("as RocketMQ 5", "origin", as_rocketmq)
rule("origin in capitals", "origin", put(origin="ELSEWHERE"))
rule("no id", "properties", put(properties=TOLD.replace("{id}", "X")))
rule("priority 1", "properties", put(properties=WHOLE + TOLD + "_SYS_MSG_PRIORITY_\x011\x02"))
rule("priority 9", "properties", put(properties=WHOLE + TOLD + "_SYS_MSG_PRIORITY_\x019\x02"))
rule("priority x", "properties", put(properties=WHOLE + TOLD + "_SYS_MSG_PRIORITY_\x01x\x02"))
rule("message group", "properties", put(properties=WHOLE + TOLD + "__SHARDINGKEY\x01g1\x02"))
rule("replayed before", "properties", put(properties=WHOLE + TOLD + "REPLAYED_FROM\x01b:t:0:0\x02"))
rule("handed on", "properties", put(properties=WHOLE + TOLD + "HANDED_ON_FROM\x01{place}\x02"))
rule("no attempts told", "properties", put(properties=WHOLE + TOLD.partition("DEAD_AFTER")[0]))
rule("all letters of one id", "properties", put(properties=(WHOLE + TOLD).replace("{id}", "SAME")))
LETTER_RULES.extend(FAULT_RULES)
rule("no writes", "writes", put(refusal="writes are refused"))
rule("groups can't be written", "table", put(unwritable="groups"))
rule("tables are full", "crowded", put(crowded=True))
LETTER_RULES.append(AGAIN_RULE)
for name, steps in COMES.items():
    rule(f"safe later: {name}", "safe", waits(steps))

LISTING: Final = frozenset(("from", "count", "bodies", "body"))
CHANGING: Final = frozenset(("places", "journal", "writes", "table", "crowded", "again", "topic"))
PUTTING: Final = frozenset(("of", "safe"))
STANDING: Final = frozenset((
    "group", "attempts", "letters", "count of letters", "settled", "letters begin", "letter", "origin",
    "properties",
))  # fmt: skip
MATTERS: Final[dict[str, frozenset[str]]] = {
    "ListDeadLetters": LISTING | STANDING | {"named"},
    "ReplayDeadLetters": CHANGING | PUTTING | STANDING | {"named"},
    "DropDeadLetters": CHANGING | STANDING | {"named"},
}
BESIDE: Final = {
    "named": frozenset(
        ("places", "writes", "group", "crowded", "table", "journal", "settled", "count", "again")
    ),
    "attempts": frozenset(("properties", "group")),
    "table": frozenset(("settled", "places", "writes", "crowded", "again")),
    "crowded": frozenset(("settled", "places", "writes", "table", "again")),
}
ALONE: Final = frozenset((
    "blank group", "illegal group", "system group", "long group", "16 places", "80 letters", "large bodies",
    "originals unknown", "letter is too small", "priority x", "handed on", "from queue -1", "count -1",
    "reading is off", "ordered group", "huge bodies",
))  # fmt: skip
BASES: Final[dict[str, tuple[tuple[str, ...], ...]]] = {
    "ListDeadLetters": (("large bodies", "with bodies"), ("count 1", "from 1"), ("80 letters", "count 100"),
                        ("letter is corrupt", "count 1")),
    "ReplayDeadLetters": (("originals unknown", "priority 1"), ("originals unknown", "message group"),
                          ("originals of queue 2", "one queue to write")),
    "DropDeadLetters": (("journal full once", "twice"),),
}  # fmt: skip


def call_rule(call: str) -> Rule:
    """Return the rule that makes a case one of a call."""

    def apply(case: LetterCase) -> None:
        case.call = call
        case.before.append(make_topic)

    return Rule(call, "call", apply)


def every_combination(call: str) -> Iterator[tuple[Rule, ...]]:
    """Return combinations of the rules that matter to a call, some of them twice."""
    rules = [each for each in LETTER_RULES if each.what in MATTERS[call]]
    by_name = {each.name: each for each in rules}
    for broken in combinations(rules, BESIDE):
        if len(broken) < 2 or not set(names_of(broken)) & ALONE:
            yield broken
    if call == "ListDeadLetters":
        yield by_name["huge bodies"], by_name["with bodies"]
    for names in BASES[call]:
        base = tuple(by_name[name] for name in names)
        yield base
        taken = {each.what for each in base}
        for each in rules:
            if each.what not in {*taken, "named"}:
                yield *base, each


def letter_combinations(*, slave: bool = False) -> list[tuple[Rule, ...]]:
    """Return, for each call, no rule, each rule, most pairs of them, and more where it takes several.

    Those of one rule come first. Left out: rules that a call has nothing to do with (`MATTERS`); pairs where
    nothing comes of it (`BESIDE`, `ALONE`). A slave's are those of one rule, and of two when dead letters are
    listed.
    """
    found = [
        (call_rule(call), *broken)
        for call in LETTER_CALLS
        for broken in each_once(every_combination(call))
        if not slave or at_a_slave(call, broken)
    ]
    return sorted(found, key=lambda each: len(each) > 2)


def at_a_slave(call: str, broken: tuple[Rule, ...]) -> bool:
    """Tell whether a slave's answer is recorded."""
    if {each.what for each in broken} & {"safe", "writes", "letter"} or "put back already" in names_of(
        broken
    ):
        return False
    return len(broken) < 2 or (len(broken) == 2 and call == "ListDeadLetters")
