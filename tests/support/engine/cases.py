"""What recorded cases have in common: a topic and a group, what is stored, what is damaged, what is broken.

A case has a topic and a group of its own, so that none hears of another one. A queue has messages 0 to 4,
with the tags A, B, Aa, BB (the hash of which is that of Aa) and none, and with their numbers as the property
n (`CONTENTS` tells of others).
"""

import re
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, Final, Protocol

from support.engine.rules import Rule
from support.remoting.handlers import NOW
from whimbrel.broker.consume.filters import FILTER_CHARS_MAX
from whimbrel.deferred import Deferred
from whimbrel.model.topic import GroupConfig, TopicConfig
from whimbrel.store.codec import COMPRESSED, FILLER_SIZE, UNIT, UNIT_SIZE, RecordDraft, pack_host

__all__ = [
    "CONTENTS", "CREATIONS", "DAMAGE_RULES", "FILTERS", "GROUP_RULES", "PLACES", "TOPIC_RULES", "BrokenCase",
    "BrokerSide", "Started", "creations_of", "damaged", "drafts_of", "no_group", "put", "runs",
    "set_up", "store_all",
]  # fmt: skip

CREATIONS = 200.0  # that a broker has room for at once
HOST = pack_host("127.0.0.1", 10911)
TAGS = ("A", "B", "Aa", "BB", "")
COMPRESSED_AT, FOREIGN_AT = 1, 3  # among the unusual messages


class BrokerSide(Protocol):
    """What cases are set up in."""

    topics: Any
    groups: Any
    store: Any
    creation: Any


@dataclass
class BrokenCase:
    """A request that is to be made.

    Attributes:
        topic, config: topic and group; None: there is none.
        made: requests make groups, as many as there is room for (`creations`).
        topics_made: sends make topics.
        asked_topic, asked_group: as the request names them.
        contents: of queue 0; see `CONTENTS`.
        begins: the first offset of that queue.
        damage: of one of its entries: its number, and what it is instead; see `damaged`.
    """

    number: int
    topic: TopicConfig | None = None
    config: GroupConfig | None = None
    made: bool = False
    creations: float = CREATIONS
    topics_made: bool = False
    asked_topic: str = ""
    asked_group: str = ""
    contents: str = "usual"
    begins: int = 0
    damage: tuple[int, str] | None = None

    def __post_init__(self) -> None:
        self.topic = TopicConfig(name=self.name, read_queues=4, write_queues=4)
        self.config = GroupConfig(name=self.group)
        self.asked_topic, self.asked_group = self.name, self.group

    @property
    def name(self) -> str:
        """The topic's name, which is as long as all others: sizes of records depend on it."""
        return f"case-{self.number:05}-"

    @property
    def group(self) -> str:
        """The group's name."""
        return f"group-{self.number:05}-"

    def change(self, **fields: Any) -> None:
        """Change the topic, if there is one."""
        if self.topic is not None:
            self.topic = replace(self.topic, **fields)

    def change_group(self, **fields: Any) -> None:
        """Change the group, if there is one."""
        if self.config is not None:
            self.config = replace(self.config, **fields)

    def draft(self, message: str, tag: str, n: int, queue_id: int = 0, **more: Any) -> RecordDraft:
        """Return a message."""
        properties = f"UNIQ_KEY\x01{message}\x02KEYS\x01k1 k2\x02n\x01{n}\x02"
        properties += f"TAGS\x01{tag}\x02" if tag else ""
        fields: dict[str, Any] = {
            "body": f"body of {message}".encode(), "properties": properties.encode(), "born_timestamp": NOW,
            "born_host": HOST, "store_host": HOST,
        } | more  # fmt: skip
        return RecordDraft.from_properties(topic=self.name, queue_id=queue_id, **fields)


def drafts_of(case: BrokenCase) -> list[RecordDraft]:
    """Return what queue 0 has."""
    many, body = CONTENTS[case.contents]
    drafts = [case.draft(f"M{n}", TAGS[n % 5], n) for n in range(many)]
    for n, draft in enumerate(drafts):
        draft.body = bytes([n % 256]) * body or draft.body
    if case.contents == "long":
        drafts = [case.draft(f"M{n}", "long", n) for n in range(many)]
    if case.contents == "unusual":
        packed = zlib.compress(b"a body that its producer has compressed")
        drafts[COMPRESSED_AT] = case.draft("M1", "B", 1, body=packed, sys_flag=COMPRESSED)
        drafts[FOREIGN_AT] = case.draft("M3", "A", 3, properties=b"UNIQ_KEY\x01M3\x02TAGS\x01A\x02p\x01\xff")
        drafts[0] = case.draft("M0", "A", 0, reconsume_times=2, flag=7)
    return drafts


# How many messages, and of how many bytes; 0: of few.
CONTENTS: Final = {
    "usual": (5, 0),
    "none": (0, 0),
    "many": (40, 0),
    "long": (2_100, 0),  # more than one pull looks at
    "large": (3, 1_500_000),
    "large for remoting": (6, 60_000),
    "unusual": (5, 0),
}


def store_all(side: BrokerSide, drafts: list[RecordDraft]) -> None:
    """Store messages of one queue."""
    for at in range(0, len(drafts), 100):
        side.store.append(drafts[at : at + 100] if len(drafts) > 100 else drafts[at : at + 1])
    if len(drafts) <= 100:
        for draft in drafts[1:]:
            side.store.append([draft])
    side.store.end_tick()


def damaged(side: BrokerSide, case: BrokenCase, number: int, what: str, queue_id: int = 0) -> None:
    """Change an entry of a queue.

    Args:
        what: `corrupt`: no record is there; `small`: no record has that size; `gone`: the log begins behind
            it; `hole`: it stands for a message that this store never had.
    """
    queue = side.store.queues.get(case.name, queue_id)
    if queue is None or not queue.min <= number < queue.max:
        return
    [(place, size, code)] = queue.units(number, 1)
    changed = {
        "corrupt": (place + 4, size, code),
        "small": (place, 9, code),
        "gone": (0, size, code),
        "hole": (0, FILLER_SIZE, 0),
    }[what]
    UNIT.pack_into(queue.mapped, (number - queue.base) * UNIT_SIZE, *changed)


@dataclass
class Started:
    """A request that was made.

    Attributes:
        shown: what it was answered at once, as text; None: it waits.
        show: says what was answered later.
    """

    shown: str | None
    deferred: Deferred[Any] | None = None
    show: Callable[[Any], str] = str
    failed: Callable[[Exception], str] = str

    @property
    def waits(self) -> bool:
        """Whether its answer is still to come."""
        return self.deferred is not None and not self.deferred.done and not self.deferred.cancelled

    @property
    def state(self) -> str:
        """What it is answered, or that it waits."""
        deferred = self.deferred
        if deferred is None:
            return str(self.shown)
        if deferred.error is not None:
            return self.failed(deferred.error)
        if deferred.done:
            return self.show(deferred.result)
        return "its caller has left" if deferred.cancelled else "waits"


def runs(numbers: list[int]) -> str:
    """Return numbers in short: `0..4` for those that follow each other."""
    found: list[list[int]] = []
    for number in numbers:
        if found and number == found[-1][1] + 1:
            found[-1][1] = number
        else:
            found.append([number, number])
    return ",".join(f"{first}..{last}" if first < last else str(first) for first, last in found)


@contextmanager
def set_up(side: BrokerSide, case: BrokenCase) -> Iterator[None]:
    """Have a broker as the case says, and its entry damaged; undo what others would hear of."""
    topics, log = side.topics, side.store.writer
    topics.set_auto_create(enabled=case.topics_made)
    side.groups.auto_create = case.made
    before = log.begin
    if case.damage is not None:
        damaged(side, case, *case.damage)
        log.begin = 1 if case.damage[1] == "gone" else log.begin
    creation = side.creation
    # A little later, so that no room comes while this case goes on.
    creation.room, creation.at = case.creations, creation.clock() + 1.0 * (case.creations < 1)
    try:
        yield
    finally:
        log.begin = before


def creations_of(side: BrokerSide, case: BrokenCase) -> list[str]:
    """Say how many topics and groups were made, if any were."""
    room = round(case.creations - side.creation.room) if case.creations >= 1 else 0
    return [f"creations {room}"] if room > 0 else []


PLACES: Final = re.compile(
    r"(?<= bytes at )\d+|(?<=at byte )\d+|\d+ is outside the log, which is \d+ to \d+"
    r"|(?<=points at )\d+ to \d+; the log ends at \d+"
)


def put(**fields: Any) -> Callable[[Any], object]:
    """Return what sets attributes of a case."""

    def apply(case: Any) -> None:
        for name, value in fields.items():
            setattr(case, name, value)

    return apply


def no_group(**fields: Any) -> Callable[[Any], object]:
    """Return what takes the group away, and sets attributes."""
    return put(config=None, **fields)


# About the topic.
TOPIC_RULES: Final[tuple[Rule, ...]] = (
    Rule("no such topic", "topic", put(topic=None)),
    Rule("no such topic, sends make it", "topic", put(topic=None, topics_made=True)),
    Rule("no permission to read", "permission", lambda case: case.change(permission=2)),
    Rule("no queue to read", "queues", lambda case: case.change(read_queues=0)),
    Rule("one queue to read", "queues", lambda case: case.change(read_queues=1)),
    Rule("blank topic", "name", put(asked_topic=" ")),
    Rule("illegal topic", "name", put(asked_topic="a b")),
    Rule("system topic", "name", put(asked_topic="TBW102")),
    Rule("system topic that is there", "name", put(asked_topic="SELF_TEST_TOPIC")),
    Rule("retry topic", "name", lambda case: setattr(case, "asked_topic", f"%RETRY%{case.group}")),
)

# About the group.
GROUP_RULES: Final[tuple[Rule, ...]] = (
    Rule("no group named", "named", put(asked_group="")),
    Rule("blank group", "named", put(asked_group=" ")),
    Rule("illegal group", "named", put(asked_group="a b")),
    Rule("long group", "named", put(asked_group="g" * 256)),
    Rule("system group", "named", put(asked_group="CID_RMQ_SYS_x")),
    Rule("group of the tools", "named", put(asked_group="TOOLS_CONSUMER")),
    Rule("no such group", "group", no_group()),
    Rule("group is made", "group", no_group(made=True)),
    Rule("no room for groups", "creations", put(creations=0.0)),
    Rule("reading is off", "group", lambda case: case.change_group(consume_enabled=False)),
    Rule("ordered group", "group", lambda case: case.change_group(fifo=True)),
)

# About entries of the queue.
DAMAGE_RULES: Final[tuple[Rule, ...]] = tuple(
    Rule(f"{place} {told}", "damage", put(damage=(number, what)))
    for place, number in (("first", 0), ("third", 2))
    for told, what in (
        ("entry is corrupt", "corrupt"),
        ("entry is too small", "small"),
        ("record is gone", "gone"),
        ("entry is a hole", "hole"),
    )
)

# Name, kind, text, and a tag that it admits.
FILTERS: Final[tuple[tuple[str, str, str, str], ...]] = (
    ("tag A", "tag", "A", "A"),
    ("tags A and B", "tag", " A || B ||", "A"),
    ("tag that is not there", "tag", "none", "A"),
    ("tag with the hash of another", "tag", "Aa", "Aa"),
    ("tags without one", "tag", "||", "A"),
    ("tag with a bar", "tag", "a|b", "A"),
    ("blank tags", "tag", " * ", "A"),
    ("no expression", "tag", "", "A"),
    ("tags that are too long", "tag", "x" * (FILTER_CHARS_MAX + 1), "A"),
    ("SQL", "sql", "n > 2", "A"),
    ("SQL for TAGS", "sql", "TAGS = 'A'", "A"),
    ("SQL that admits nothing", "sql", "n > 1000", "A"),
    ("SQL that is none", "sql", "n >", "A"),
    ("SQL without a text", "sql", "", "A"),
    ("SQL that is too long", "sql", "n = " + "1" * FILTER_CHARS_MAX, "A"),
)
