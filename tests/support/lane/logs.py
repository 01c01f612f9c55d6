"""Generated logs for the compiled lane, and what Python and the lane make of them, side by side.

A log is a list of files of one size, as bytes. Each record is of a class; of the plain ones the lane is to do
nearly all (`Outcome.share`), and of all of them the same as Python.
"""

import contextlib
import logging
import os
import random
import struct
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar
from unittest.mock import patch

import pytest

import whimbrel.lane
from support.store.stores import NOW, StoppedClock
from whimbrel.errors import StoreFull
from whimbrel.lane import Lane
from whimbrel.model.names import SCHEDULE_TOPIC
from whimbrel.store.codec import BLANK_MAGIC, MAGIC_V1, MAGIC_V2, UNIT_SIZE
from whimbrel.store.consumequeue import ConsumeQueue
from whimbrel.store.dispatch import Dispatcher
from whimbrel.store.index import HEADER_SIZE, SLOT, SLOT_SIZE, Index
from whimbrel.store.indexer import STEP_BYTES, Indexer
from whimbrel.store.lane_passes import LanePasses
from whimbrel.store.mapped_queues import MAPPED_QUEUES_MAX, MappedQueues
from whimbrel.store.mark_writer import MarkWriter
from whimbrel.store.options import StoreOptions, parse_delay_levels
from whimbrel.store.queues import ConsumeQueues
from whimbrel.store.walk import Walk

__all__ = [
    "FILE_SIZE",
    "ODD",
    "PLAIN",
    "Log",
    "Outcome",
    "compare",
    "derive",
    "lane_or_skip",
    "make_log",
]

FILE_SIZE = 1 << 16
OPTIONS = StoreOptions(
    commitlog_file_size=FILE_SIZE,
    consumequeue_file_size=400,
    index_slots=7,
    index_entries=60,
    index_tags=True,
)
HEAD = struct.Struct(">iIIiiqqiq")  # up to the born timestamp

# Of messages that producers send, by their kind.
PLAIN = (
    "short",
    "long",
    "keys",
    "properties",
    "unicode",
    "v6",
    "no properties",
    "prepared",
    "rollback",
    "v2",
)
ODD = (
    "delayed",
    "bad text",
    "gap",
    "again",
    "bad topic",
    "lengths",
    "misplaced",
    "negative queue",
    "repeated",
)
UNICODE = "äöü 日本語 \U0001f600 ß"


def lane_or_skip() -> Lane:
    """Return the lane; skip the test where it is not built, and fail with REQUIRE_LANE=1.

    With WHIMBREL_LANE_RULES=1 (`lane_rules.py`) it is one of changed sources.
    """
    with contextlib.ExitStack() as stack:
        if os.environ.get("WHIMBREL_LANE_RULES"):
            stack.enter_context(patch.object(whimbrel.lane, "sources", lambda: ""))
        lane = Lane()
    if not lane.active:
        assert not os.environ.get("REQUIRE_LANE"), f"no compiled lane, because {lane.why}"
        pytest.skip(f"no compiled lane, because {lane.why}")
    return lane


@dataclass
class Log:
    """Bytes of a log from offset 0 on.

    Attributes:
        file_size: of each of its files.
        classes: of its records, by physical offset: class and size.
    """

    file_size: int = FILE_SIZE
    data: bytearray = field(default_factory=bytearray)
    classes: dict[int, tuple[str, int]] = field(default_factory=dict)
    ends: dict[tuple[bytes, int], int] = field(default_factory=dict)

    def read(self, offset: int, size: int) -> bytes:
        """Return a piece, as far as it is there."""
        return bytes(self.data[offset : offset + size])

    def add(self, kind: str, rng: random.Random) -> None:
        """Append a record of a class, in the next file where it does not fit."""
        record = make_record(kind, rng, self)
        left = self.file_size - len(self.data) % self.file_size
        if len(record(0)) + 8 > left:
            filler = struct.pack(">iI", left, BLANK_MAGIC) + rng.randbytes(left - 8)
            self.data += filler
        place = len(self.data)
        made = record(place)
        self.classes[place] = kind, len(made)
        self.data += made


def make_record(kind: str, rng: random.Random, log: Log) -> Callable[[int], bytes]:
    """Return what makes the bytes of a record, given its place."""
    topic = rng.choice([b"orders", b"t", b"a.b-c_d", b"%RETRY%g"])
    queue_id = rng.randrange(3)
    flag, magic, hosts = 0, MAGIC_V1, (8, 8)
    body = rng.randbytes(rng.choice([0, 1, 100, 1024]))
    pairs = [
        ("UNIQ_KEY", f"{rng.getrandbits(64):016X}"),
        ("CLUSTER", "c"),
        ("TAGS", rng.choice(["a", "Tag"])),
    ]
    if kind == "long":
        body = rng.randbytes(rng.randrange(4000, 20_000))
    elif kind == "keys":
        pairs.append(("KEYS", " ".join(rng.choices(["k", "key-1", "x" * 70, ""], k=4))))
    elif kind == "properties":
        pairs += [(rng.choice(["a", "XTAGS", "TAGS2", "KEYSx"]), "v" * rng.randrange(300)) for _ in range(9)]
    elif kind == "unicode":
        pairs = [("TAGS", UNICODE), ("KEYS", UNICODE), ("UNIQ_KEY", "\U0001f600")]
        topic = rng.choice([topic, "日本".encode()])
    elif kind == "v6":
        hosts = rng.choice([(20, 8), (8, 20), (20, 20)])
    elif kind == "no properties":
        pairs = []
    elif kind in ("prepared", "rollback"):
        flag = 4 if kind == "prepared" else 12
    elif kind == "v2":
        magic, topic = MAGIC_V2, topic.ljust(rng.choice([128, 255]), b"x")
    elif kind == "delayed":
        topic = SCHEDULE_TOPIC.encode()
        pairs.append(("DELAY", rng.choice(["3", "0", "99", "x"])))
    elif kind == "repeated":
        pairs += [("TAGS", ""), ("TAGS", "last"), ("KEYS", "one"), ("KEYS", "two"), ("UNIQ_KEY", "")]
    elif kind == "bad topic":
        topic = rng.choice([b"", b"..", b"a/b", b"\xff\xfe"])
    if topic == SCHEDULE_TOPIC.encode():
        queue_id = 2
    properties = "".join(f"{key}\x01{value}\x02" for key, value in pairs).encode()
    if properties and rng.random() < 0.2:
        properties = properties[:-1]
    if kind == "bad text":
        properties += rng.choice(
            [b"TAGS\x01\xff\x02", b"KEYS\x01ok \xc3\x02", b"UNIQ_KEY\x01\xed\xa0\x80\x02"]
        )
    if kind == "negative queue":
        queue_id = -rng.randrange(1, 5)
    key = (topic, queue_id)
    number = log.ends.get(key, 0)
    if kind == "gap":
        number += rng.randrange(1, 30)
    elif kind == "again":
        number = max(number - rng.randrange(1, 5), 0)
    if flag == 0:
        log.ends[key] = max(number + 1, log.ends.get(key, 0))
    else:
        number = 0
    sys_flag = flag | (0x10 if hosts[0] == 20 else 0) | (0x20 if hosts[1] == 20 else 0)
    stored_ms = NOW + rng.choice([0, 1, 999, 1000, 5_000_000, -3000])
    wrong = rng.randrange(1, 100) if kind == "misplaced" else 0
    less = rng.randrange(1, 9) if kind == "lengths" else 0

    def made(place: int) -> bytes:
        named = bytes((len(topic),)) if magic == MAGIC_V1 else len(topic).to_bytes(2, "big")
        rest = b"".join(
            (
                bytes(hosts[0]),
                struct.pack(">q", stored_ms),
                bytes(hosts[1]),
                struct.pack(">iq", 0, 0),
                struct.pack(">i", len(body)),
                body,
                named,
                topic,
                struct.pack(">H", max(len(properties) - less, 0)),
                properties,
            )
        )
        size = HEAD.size + len(rest)
        return HEAD.pack(size, magic, 0, queue_id, 0, number, place + wrong, sys_flag, NOW) + rest

    return made


def make_log(
    rng: random.Random,
    records: int,
    kinds: tuple[str, ...],
    *,
    damage: int = 0,
    file_size: int = FILE_SIZE,
) -> Log:
    """Make a log of records of these classes, then flip some bits."""
    log = Log(file_size)
    for _ in range(records):
        log.add(rng.choice(kinds), rng)
    for _ in range(damage):
        log.data[rng.randrange(len(log.data))] ^= 1 << rng.randrange(8)
    return log


class SmallQueue(ConsumeQueue):
    """A queue for which the disk has room for so many entries only."""

    room_max: ClassVar[int] = 1 << 30
    taken = 0  # room that the disk has given, also where the queue's mapping was given up since

    def make_room(self) -> None:
        """Refuse what is beyond."""
        if self.max >= self.room_max and self.room >= self.taken:
            raise StoreFull(f"no room for queue {self.queue_id} of {self.topic}")
        super().make_room()
        self.taken = max(self.taken, self.room)


class SmallQueues(ConsumeQueues):
    """Queues of that kind."""

    queue_class = SmallQueue


@dataclass
class Outcome:
    """What became of a log.

    Attributes:
        state: all that Python and the lane must agree on.
        by_lane: bytes of records that the lane has dispatched, and has indexed.
    """

    state: dict[str, Any]
    by_lane: tuple[int, int] = (0, 0)


class CountingDispatcher(Dispatcher):
    """Counts the bytes that the lane has dispatched."""

    counted = 0

    def pass_over(self, walk: Walk, passes: LanePasses) -> bool:
        """See `Dispatcher`."""
        before = walk.position
        done = super().pass_over(walk, passes)
        self.counted += walk.position - before
        return done


class CountingIndexer(Indexer):
    """Counts the bytes that the lane has indexed."""

    counted = 0

    def pass_over(self, walk: Walk, passes: LanePasses, step_bytes: int) -> bool:
        """See `Indexer`."""
        before = walk.position
        done = super().pass_over(walk, passes, step_bytes)
        self.counted += walk.position - before
        return done


class Lines(logging.Handler):
    """Keeps what is logged."""

    def __init__(self) -> None:
        super().__init__()
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        """Keep a line."""
        self.lines.append(record.getMessage())


@contextlib.contextmanager
def logged() -> Iterator[list[str]]:
    """Collect what the store logs."""
    handler, logger = Lines(), logging.getLogger("whimbrel.store")
    logger.addHandler(handler)
    try:
        yield handler.lines
    finally:
        logger.removeHandler(handler)


def derive(
    root: Path,
    log: Log,
    lane: Lane | None,
    steps: list[int],
    *,
    room_max: int = 1 << 30,
    mapped_max: int = MAPPED_QUEUES_MAX,
) -> Outcome:
    """Dispatch and index a log step by step, as far as it goes; `steps` are where it ends meanwhile."""
    passes = None if lane is None else LanePasses(lane)
    machine = StoppedClock(NOW)
    root.mkdir()
    (root / "whimbrel").mkdir()
    places = MappedQueues(mapped_max)
    places.writer = MarkWriter(root, machine)
    queues = SmallQueues(root, OPTIONS.consumequeue_file_size, places=places)
    index = Index(root, OPTIONS, machine, passes)
    dispatcher = CountingDispatcher(queues, parse_delay_levels(OPTIONS.delay_levels), passes)
    indexer = CountingIndexer(index, log.read, log.file_size, machine.monotonic, passes)
    told: dict[tuple[str, int], tuple[int, int]] = {}
    dispatcher.on_arrival = lambda topic, queue_id, number, tags: told.update(
        {(topic, queue_id): (number, tags)}
    )
    ends: list[tuple[int, str, str]] = []
    position = 0
    SmallQueue.room_max = room_max
    with logged() as lines:
        for end in steps:
            walk = Walk(log.read, position, end, log.file_size)
            full = ""
            try:
                dispatcher.run(walk, end - position)
            except StoreFull as error:
                full = str(error)
            position = walk.position
            ends.append((position, walk.fault, full))
            indexer.fall_behind()  # as on a slave: nothing was queued in memory
            while indexer.step(position, step_bytes=STEP_BYTES):
                pass
            if index.files:  # as a group leaves it whose process died before the header counted it
                last = index.files[-1]
                slot_at = HEADER_SIZE + SLOT_SIZE * (position % last.slots)
                SLOT.pack_into(last.mapped, slot_at, last.count + position % 5)
            if walk.fault and walk.skip_file():
                position = walk.position
    SmallQueue.room_max = 1 << 30
    state: dict[str, Any] = {
        "ends": ends,
        "lines": lines,
        "told": told,
        # Where a disk is full, Python's is that of a chunk, and the lane's that of the last record.
        "store time": 0 if any(full for _, _, full in ends) else dispatcher.store_time_ms,
        "index": (index.position, [file.count for file in index.files]),
        "queues": {
            # A mapping that is given up is synced before; when that is depends on how many queues a pass has.
            key: (queue.min, queue.max, queue.dirty, queue.renumbered, len(queue.rolled) * (mapped_max > 2))
            for key, queue in sorted(queues.by_key.items())
        },
        "entries": {key: queue.units(queue.min, queue.max) for key, queue in sorted(queues.by_key.items())},
    }
    assert len(places.mapped) <= mapped_max
    index.close()
    queues.close()
    places.writer.stop()
    for path in sorted(root.rglob("*")):
        if path.is_file():
            data = path.read_bytes()
            assert len(data) % UNIT_SIZE == 0 or "consumequeue" not in path.parts
            state[str(path.relative_to(root))] = data
    return Outcome(state, (dispatcher.counted, indexer.counted))


def compare(
    root: Path,
    log: Log,
    lane: Lane,
    steps: list[int],
    *,
    room_max: int = 1 << 30,
    mapped_max: int = MAPPED_QUEUES_MAX,
) -> tuple[Outcome, Outcome]:
    """Derive a log by Python and by the lane, and fail where the results differ."""
    python = derive(root / "python", log, None, steps, room_max=room_max, mapped_max=mapped_max)
    compiled = derive(root / "lane", log, lane, steps, room_max=room_max, mapped_max=mapped_max)
    assert lane.active, lane.why
    assert compiled.state.keys() == python.state.keys()
    for what, value in python.state.items():
        assert compiled.state[what] == value, what
    return python, compiled
