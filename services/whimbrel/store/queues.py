"""All consume queues of a store, by topic and number."""

import logging
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from whimbrel.machine import FILES, Files
from whimbrel.store.consumequeue import ConsumeQueue
from whimbrel.store.deleted_queue_offsets import DeletedQueueOffsets
from whimbrel.store.mapped_queues import MappedQueues
from whimbrel.store.queue_floors import GivenQueueOffsets, encode

__all__ = ["ConsumeQueues"]

logger = logging.getLogger(__name__)


class ConsumeQueues:
    """The table of queues: those on disk, and those created by their first entry since.

    Attributes:
        places: for those that are mapped.
        deleted_offsets: where queues of deleted topics ended.
        given_offsets: where queues without a message in the log go on.
        by_key: (topic, queue id) to queue.
        made: how many queues were put into the table so far.
        by_topic: the topic, then the queue id, to queue.
        by_field: the same by the topic as records hold it (length byte first).
    """

    queue_class: type[ConsumeQueue] = ConsumeQueue

    def __init__(
        self, root: Path, file_size: int, files: Files = FILES, places: MappedQueues | None = None
    ) -> None:
        self.files = files
        self.places = places or MappedQueues()
        self.directory = root / "consumequeue"
        self.scratch = root / "whimbrel"
        self.file_size = file_size
        self.deleted_offsets = DeletedQueueOffsets(root, files)
        self.given_offsets = GivenQueueOffsets(root, files)
        self.by_key: dict[tuple[str, int], ConsumeQueue] = {}
        self.made = 0
        self.by_topic: dict[str, dict[int, ConsumeQueue]] = {}
        self.by_field: dict[bytes, dict[int, ConsumeQueue]] = {}

    @classmethod
    def load(
        cls, root: Path, file_size: int, files: Files = FILES, places: MappedQueues | None = None
    ) -> "ConsumeQueues":
        """List the queues on disk. Their ranges are unknown until `truncate`.

        Raises:
            StoreError: there are files that can't be a part of their queue.
        """
        queues = cls(root, file_size, files, places)
        for topic, queue_id, directory in list_queues(queues.directory, files):
            queues.add(
                cls.queue_class.load(
                    directory, topic, queue_id, file_size, queues.scratch, files, queues.places
                )
            )
        return queues

    def __iter__(self) -> Iterator[ConsumeQueue]:
        """Iterate over the queues, in no order."""
        return iter(self.by_key.values())

    def get(self, topic: str, queue_id: int) -> ConsumeQueue | None:
        """Return a queue, None when it is not there."""
        return self.by_key.get((topic, queue_id))

    def get_or_create(self, topic: str, queue_id: int) -> ConsumeQueue:
        """Return a queue, creating it when it is not there; its file is created with the first entry.

        A queue that was deleted, or whose messages have all expired, continues where it ended.
        """
        queue = self.by_key.get((topic, queue_id))
        if queue is None:
            queue = self.queue_class(
                self.directory / topic / str(queue_id),
                topic,
                queue_id,
                self.file_size,
                self.scratch,
                self.files,
                self.places,
            )
            self.add(queue)
            self.go_on(queue)
        return queue

    def add(self, queue: ConsumeQueue) -> None:
        """Put a queue into the table."""
        queue.deleted_below = self.deleted_offsets.get(queue.topic, queue.queue_id)
        self.made += 1
        self.by_key[(queue.topic, queue.queue_id)] = queue
        by_id = self.by_topic.get(queue.topic)
        if by_id is None:
            field = field_of(queue.topic)
            by_id = self.by_topic[queue.topic] = self.by_field.setdefault(field, {})
        by_id[queue.queue_id] = queue

    def go_on(self, queue: ConsumeQueue) -> None:
        """Have a queue without a message in the log go on where it ended."""
        key = queue.topic, queue.queue_id
        queue.go_on_at(max(self.deleted_offsets.get(*key), self.given_offsets.get(*key)))

    def go_on_all(self) -> None:
        """Have all queues without a message in the log go on where they ended, those without a file, too."""
        for topic, queues in self.given_offsets.by_topic.items():
            for queue_id, offset in queues.items():
                if offset > self.deleted_offsets.get(topic, queue_id):
                    self.get_or_create(topic, queue_id)
        for queue in self:
            self.go_on(queue)

    def truncate(self, below: int, *, scrub: bool = False) -> None:
        """Keep only the entries of records below a physical offset."""
        for queue in self:
            queue.truncate(below, scrub=scrub)
            if not queue.starts:
                self.go_on(queue)

    def restart(self) -> None:
        """Have all queues begin at 0, or where they are to go on; their entries are dispatched anew."""
        for queue in self:
            queue.restart()
            self.go_on(queue)

    def totals(self) -> tuple[int, int]:
        """Return how many queues have files with entries, and the sum of their ends."""
        ends = [queue.max for queue in self if queue.max and queue.starts]
        return len(ends), sum(ends)

    def follow_log(self, log_begin: int, *, drop: bool) -> int:
        """Correct every `min` to the log's begin; `drop` removes files no longer needed and counts them."""
        removed = 0
        for queue in self:
            queue.correct_min(log_begin)
            if drop:
                removed += queue.drop_old_files()
        return removed

    def take_dirty(self) -> tuple[set[Path], set[Path]]:
        """Return (files, directories) to sync for all entries so far to be on disk; begins a collection."""
        self.places.collection += 1
        files: set[Path] = set()
        directories: set[Path] = set()
        for queue in self:
            if queue.dirty or queue.created or queue.rolled:
                more_files, more_directories = queue.take_dirty()
                files.update(more_files)
                directories.update(more_directories)
        return files, directories

    def reserve(self, wanted: Sequence[tuple[ConsumeQueue, int]]) -> bool:
        """Make sure that several queues have room for so many entries each, all at the same time.

        Returns:
            Whether they do. Where there are fewer places for mapped queues, room in one may have been given
            up for another.

        Raises:
            StoreFull: the disk has none.
        """
        places = self.places
        before = places.given_up
        for queue, count in wanted:
            queue.reserve(count)
        if places.given_up == before:
            return True
        for queue, _ in wanted:
            places.keep(queue)
        for queue, count in wanted:
            queue.reserve(count)
        return all(queue.room >= queue.max + count for queue, count in wanted)

    def delete_topic(self, topic: str) -> None:
        """Delete all queues of a topic, and store where they ended.

        Raises:
            StoreFull: that can't be stored; nothing was deleted.
        """
        by_id = self.by_topic.get(topic, {})
        ends = {queue_id: queue.max + queue.uncommitted for queue_id, queue in by_id.items()}
        ends = {queue_id: end for queue_id, end in ends.items() if end}
        if ends:
            self.deleted_offsets.merge({topic: ends})
        self.remove_topic(topic)

    def merge_deleted_offsets(self, text: str) -> None:
        """Take over where deleted queues ended on the master; entries below are deleted or hidden.

        Raises:
            StoreError: the text can't be parsed.
            StoreFull: it can't be stored; nothing has changed.
        """
        if self.deleted_offsets.merge(self.deleted_offsets.decode(text)):
            self.hide_deleted()

    def lower_deleted_offsets(self, offsets: Mapping[str, Mapping[int, int]]) -> set[str]:
        """Return the topics of which queues ended further on than these offsets say."""
        return {
            topic
            for topic, queues in self.deleted_offsets.by_topic.items()
            if any(offset > offsets.get(topic, {}).get(queue_id, 0) for queue_id, offset in queues.items())
        }

    def hide_deleted(self) -> None:
        """Delete or hide what is below where deleted queues ended."""
        for queue in self:
            queue.deleted_below = self.deleted_offsets.get(queue.topic, queue.queue_id)
        for topic in self.deleted_offsets.by_topic:
            queues = self.by_topic.get(topic, {}).values()
            if queues and all(queue.max <= queue.deleted_below for queue in queues):
                self.remove_topic(topic)

    def note_expired(self) -> None:
        """Write down where queues ended that have no message left in the log, as far as that is news.

        Raises:
            StoreFull: that can't be stored yet.
        """
        ended: dict[str, dict[int, int]] = {}
        for queue in self:
            if (
                queue.min
                == queue.max
                > max(self.given_offsets.get(queue.topic, queue.queue_id), queue.deleted_below)
            ):
                ended.setdefault(queue.topic, {})[queue.queue_id] = queue.max
        if ended:
            self.given_offsets.merge(ended)

    def offsets_at(self, place: int) -> str:
        """Return how far all queues had come at a place in the log, as text."""
        found: dict[str, dict[int, int]] = {}
        for queue in self:
            if (offset := queue.first_from(place)) > 0:
                found.setdefault(queue.topic, {})[queue.queue_id] = offset
        return encode(found)

    def merge_given_offsets(self, offsets: Mapping[str, Mapping[int, int]]) -> bool:
        """Take over how far queues had come on the master at a place in the log that ours has reached.

        Of queues that hold messages nothing is taken: see `queue_floors.py`.

        Returns:
            Whether there was news.

        Raises:
            StoreFull: it can't be stored; nothing has changed.
        """
        news: dict[str, dict[int, int]] = {}
        for topic, queues in offsets.items():
            for queue_id, offset in queues.items():
                queue = self.by_key.get((topic, queue_id))
                known = max(
                    self.given_offsets.get(topic, queue_id), self.deleted_offsets.get(topic, queue_id)
                )
                if offset > known and (queue is None or queue.min == queue.max < offset):
                    news.setdefault(topic, {})[queue_id] = offset
        if news:
            self.given_offsets.merge(news)
            self.go_on_all()
        return bool(news)

    def remove_topic(self, topic: str) -> None:
        """Delete all queues of a topic."""
        by_id = self.by_topic.get(topic, {})
        while by_id:
            queue_id, queue = by_id.popitem()
            del self.by_key[topic, queue_id]
            queue.remove()
        self.by_field.pop(field_of(topic), None)
        self.by_topic.pop(topic, None)
        directory = self.directory / topic
        if self.files.exists(directory):
            self.files.rmdir(directory)

    def close(self) -> None:
        """Unmap everything."""
        for queue in self:
            queue.unmap()


def field_of(topic: str) -> bytes:
    """Return the topic as records hold it; a topic too long for that (RocketMQ 5.x) gets a length of 255."""
    data = topic.encode()
    return bytes((min(len(data), 255),)) + data


def list_queues(directory: Path, files: Files = FILES) -> list[tuple[str, int, Path]]:
    """Return (topic, queue id, directory) of the queues that have files, sorted."""
    found = []
    for topic in files.names(directory):
        parent = directory / topic
        found += [
            (topic, int(queue), parent / queue)
            for queue in files.names(parent)
            if queue.isdecimal() and queue.isascii()
        ]
    return sorted(found)
