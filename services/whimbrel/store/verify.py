"""Checks a store for damage, without changing anything in it.

Checked: every byte of the log, with its CRCs; that each record has its entry in its queue and each entry its
record; that each key finds its record; that the index's chains are chains. A damage is reported once with its
place; its repetitions and consequences are counted in the same line.

What the next start repairs is no damage: after a kill, queues and index may lag behind the log from their
mark on. Of a store that is being written, the newest part is not checked. Nor are records of deleted topics
without their entries: the log keeps them until its files go, and queues begin where they had ended
(`deleted_queue_offsets.py`). RocketMQ writes no such offsets down: there a topic is deleted that its table of
topics does not have, and of which no queue is left.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from whimbrel.errors import CorruptRecord, StoreError
from whimbrel.model.names import SCHEDULE_TOPIC
from whimbrel.model.properties import TAGS
from whimbrel.store.codec import (
    TRANSACTION_MASK,
    TRANSACTION_ROLLBACK,
    UNIT_SIZE,
    decode_record,
    index_key_hash,
    keys_of,
    tags_code,
)
from whimbrel.store.consumequeue import ConsumeQueue, Unit
from whimbrel.store.dispatch import NO_ENTRY
from whimbrel.store.index import Index
from whimbrel.store.jsonconfig import load
from whimbrel.store.queues import ConsumeQueues
from whimbrel.store.recovery import verify_file
from whimbrel.store.recovery_marks import QueueMark
from whimbrel.store.segment import segment_name
from whimbrel.store.view import LogView, check_store, consumequeue_file_size, open_index

__all__ = ["Damage", "verify"]

NO_LIMIT = 2**63 - 1
UNITS_READ = 1000  # entries of a queue read at a time


@dataclass(frozen=True, slots=True)
class Damage:
    """Something that is wrong.

    Attributes:
        path: the file or directory.
        offset: a physical offset for the log, and for missing entries and keys, else a position in the file.
    """

    path: Path
    offset: int
    what: str


def verify(root: Path, *, index_slots: int = 0) -> list[Damage]:
    """Return the damages of a store.

    Raises:
        StoreError: the directory is no store.
    """
    check_store(root)
    try:
        view = LogView.of(root)
    except StoreError as error:
        return [Damage(root / "commitlog", 0, str(error))]
    damages = list(verify_log(view))
    if view.end > view.begin and not (root / "checkpoint").is_file():
        damages.append(Damage(root / "checkpoint", 0, "missing"))
    try:
        queues = ConsumeQueues.load(root, consumequeue_file_size(root))
    except StoreError as error:
        return [*damages, Damage(root / "consumequeue", 0, str(error))]
    try:
        index = open_index(root, index_slots)
    except (StoreError, ValueError, OSError) as error:
        return [*damages, Damage(root / "index", 0, str(error))]
    try:
        crowded = [
            Damage(
                file.path,
                0,
                f"it counts {file.count} entries and has room for {file.entries}: its header is damaged,"
                " or it has another number of slots (--index-slots)",
            )
            for file in index.files
            if file.count > file.entries
        ]
        return damages + (crowded or list(Derived(view, queues, index).verify()))
    finally:
        index.close()


def verify_log(view: LogView) -> Iterator[Damage]:
    """Check every file of the log."""
    segments = view.segments
    for start in segments.starts:
        path = segments.directory / segment_name(start)
        file_end = start + segments.file_size
        if start >= view.end and not view.live:
            if start > view.end and segments.read(start, 8).strip(b"\0"):
                yield Damage(path, start, f"behind the log's end at {view.end}")
            continue
        verdict = verify_file(segments.read, start, file_end)
        if verdict.blank or (view.live and verdict.end >= view.end):
            continue
        if verdict.end < view.end:
            yield Damage(path, verdict.end, verdict.fault or "zeros in the middle of the log")
        elif view.state.fault or view.state.dirty:
            yield Damage(path, view.end, view.state.fault or "bytes behind the last record")
    if view.state.lost:
        synced = view.state.synced
        what = f"the log ends here, although it was on disk up to {synced}: no start takes it as it is"
        yield Damage(segments.directory, view.end, what)


class Cursor:
    """Reads a queue's entries in order, a piece at a time."""

    def __init__(self, queue: ConsumeQueue) -> None:
        self.queue = queue
        self.first = 0
        self.piece: list[Unit] = []
        self.seen = 0  # entries below have their records

    def unit(self, number: int) -> Unit | None:
        """Return an entry, None when it is not there."""
        if not self.first <= number < self.first + len(self.piece):
            self.first, self.piece = number, self.queue.units(number, UNITS_READ)
        return self.piece[number - self.first] if self.piece else None


class KeyCursor:
    """Reads the index beside the records. Both are in the order of the log, so one pass is enough.

    A search for each key would take time that grows with the square of the records that share a key.
    """

    def __init__(self, index: Index) -> None:
        self.index = index
        self.entries = (entry for file in index.files for entry in file.reachable())
        self.following = next(self.entries, None)
        self.offset = -1  # of the record checked last
        self.hashes: set[int] = set()  # of its keys, as the index has them

    def has(self, topic: str, key: str, offset: int) -> bool:
        """Return whether a key of a record leads to it; to be called in the order of the log."""
        if offset != self.offset:
            self.offset = offset
            self.hashes.clear()
            while self.following is not None and self.following[1] <= offset:
                if self.following[1] == offset:
                    self.hashes.add(self.following[0])
                self.following = next(self.entries, None)
        if index_key_hash(topic, key) in self.hashes:
            return True
        # RocketMQ writes some entries twice, out of order.
        return offset in self.index.find(topic, key, begin_ms=0, end_ms=NO_LIMIT)


class Derived:
    """Compares queues and index with the log."""

    def __init__(self, view: LogView, queues: ConsumeQueues, index: Index) -> None:
        self.view, self.queues, self.index = view, queues, index
        self.root = view.root
        self.entries_due = self.keys_due = view.end  # records below must have their entry, and their keys
        mark = QueueMark.load(view.root)
        if mark is not None and (view.live or (view.root / "abort").exists()):
            self.entries_due, self.keys_due = min(view.end, mark.offset), min(view.end, mark.indexed)
        self.cursors: dict[tuple[str, int], Cursor] = {}
        self.keys = KeyCursor(index)
        self.found: dict[tuple[Path, str], tuple[int, int]] = {}  # (path, what) to (first offset, count)
        self.topics = topics_of(view.root)

    def verify(self) -> Iterator[Damage]:
        """Check everything."""
        for queue in self.queues:
            queue.max = queue.search(NO_LIMIT)
            self.cursors[(queue.topic, queue.queue_id)] = Cursor(queue)
        self.verify_records()
        self.verify_queue_ends()
        self.verify_chains()
        for (path, what), (offset, count) in self.found.items():
            yield Damage(path, offset, what if count == 1 else f"{what} (and {count - 1} more)")

    def note(self, path: Path, offset: int, what: str) -> None:
        """Note a damage; another of the same file and kind is only counted."""
        first, count = self.found.get((path, what), (offset, 0))
        self.found[(path, what)] = (first, count + 1)

    def verify_records(self) -> None:
        """Check entry and keys of every record."""
        walk = self.view.walk()
        while True:
            chunk = walk.next_chunk()
            if chunk is None:
                if not walk.fault or not walk.skip_file():
                    return
                continue
            base, data, positions = chunk
            for at in positions:
                try:
                    message = decode_record(data, at, check_crc=False)
                except CorruptRecord:
                    continue  # reported by `verify_log`
                kind = message.sys_flag & TRANSACTION_MASK
                if kind not in NO_ENTRY:
                    tags = tags_code(message.properties.get(TAGS))
                    self.verify_entry(
                        message.topic, message.queue_id, message.queue_offset, base + at, message.size, tags
                    )
                if kind != TRANSACTION_ROLLBACK and base + at < self.keys_due:
                    self.verify_keys(message.topic, keys_of(message.properties_raw), base + at)

    def verify_entry(self, topic: str, queue_id: int, number: int, offset: int, size: int, tags: int) -> None:
        """Check the entry of a record."""
        if self.deleted(topic, queue_id, number):
            return
        path = self.root / "consumequeue" / topic / str(queue_id)
        cursor = self.cursors.get((topic, queue_id))
        if cursor is None:
            if offset < self.entries_due:
                self.note(path, offset, "missing although the log has records of this queue")
            return
        unit = cursor.unit(number)
        if unit is None:
            if offset < self.entries_due:
                self.note(path, offset, "a record of this queue has no entry")
        elif unit[:2] != (offset, size):
            self.note(path, offset, "the entry of a record names another")
        elif topic != SCHEDULE_TOPIC and unit[2] != tags:
            self.note(path, offset, "the entry of a record has a wrong tags code")
        cursor.seen = max(cursor.seen, number + 1)

    def deleted(self, topic: str, queue_id: int, number: int) -> bool:
        """Return whether a record's topic was deleted after it was stored."""
        if number < self.queues.deleted_offsets.get(topic, queue_id):
            return True
        return self.topics is not None and topic not in self.topics and topic not in self.queues.by_topic

    def verify_keys(self, topic: str, keys: tuple[str, ...], offset: int) -> None:
        """Check that each key of a record leads to it."""
        for key in keys:
            if not self.keys.has(topic, key, offset):
                self.note(self.root / "index", offset, "a key of a record is missing")

    def verify_queue_ends(self) -> None:
        """Check that no queue has entries without records at its end."""
        if self.view.live:
            return
        for (topic, queue_id), cursor in self.cursors.items():
            queue = cursor.queue
            last = queue.units(queue.max - 1, 1)
            if last and last[0][0] >= self.view.end:
                path = self.root / "consumequeue" / topic / str(queue_id)
                first = queue.search(self.view.end)
                what = (
                    f"entries from number {first} on are of records behind the log's end at {self.view.end}"
                )
                self.note(path, first * UNIT_SIZE, what)

    def verify_chains(self) -> None:
        """Check that the index's entries are of the log, in order, and chained backwards."""
        for file in self.index.files:
            for position, what in file.faults(self.view.end if not self.view.live else NO_LIMIT):
                self.note(file.path, position, what)


def topics_of(root: Path) -> frozenset[str] | None:
    """Return the names in a store's table of topics; None where it has none, or that can't be read."""
    table = load(root / "config" / "topics.json")
    rows = table.get("topicConfigTable") if isinstance(table, dict) else None
    return frozenset(rows) if isinstance(rows, dict) else None
