"""All consume queues of a store, by topic and number."""

import logging
from collections.abc import Iterator
from pathlib import Path

from whimbrel.store.consumequeue import ConsumeQueue
from whimbrel.store.deleted_queue_offsets import DeletedQueueOffsets

__all__ = ["ConsumeQueues"]

logger = logging.getLogger(__name__)


class ConsumeQueues:
    """The table of queues; those on disk are there from the start, others come with their first entry.

    Attributes:
        by_key: (topic, queue id) to queue.
        by_field: the topic as records hold it (length byte first), then the queue id, to queue.
    """

    queue_class: type[ConsumeQueue] = ConsumeQueue

    def __init__(self, root: Path, file_size: int) -> None:
        self.directory = root / "consumequeue"
        self.scratch = root / "whimbrel"
        self.file_size = file_size
        self.floors = DeletedQueueOffsets(root)
        self.by_key: dict[tuple[str, int], ConsumeQueue] = {}
        self.by_field: dict[bytes, dict[int, ConsumeQueue]] = {}

    @classmethod
    def load(cls, root: Path, file_size: int) -> "ConsumeQueues":
        """List the queues on disk. Their ranges are unknown until `cut`."""
        queues = cls(root, file_size)
        for topic, queue_id, directory in list_queues(queues.directory):
            queues.add(cls.queue_class.load(directory, topic, queue_id, file_size, queues.scratch))
        return queues

    def __iter__(self) -> Iterator[ConsumeQueue]:
        """Go through the queues in no order."""
        return iter(self.by_key.values())

    def get(self, topic: str, queue_id: int) -> ConsumeQueue | None:
        """Return a queue, None when it is not there."""
        return self.by_key.get((topic, queue_id))

    def need(self, topic: str, queue_id: int) -> ConsumeQueue:
        """Return a queue, making one when it is not there; its file comes with the first entry.

        One that was deleted goes on where it ended.

        Raises:
            StoreFull: there is no room for the file that this takes.
        """
        queue = self.by_key.get((topic, queue_id))
        if queue is None:
            queue = self.queue_class(
                self.directory / topic / str(queue_id), topic, queue_id, self.file_size, self.scratch
            )
            queue.begin_at_floor(self.floors.get(topic, queue_id))
            self.add(queue)
        return queue

    def add(self, queue: ConsumeQueue) -> None:
        """Put a queue into the table."""
        queue.floor = self.floors.get(queue.topic, queue.queue_id)
        self.by_key[(queue.topic, queue.queue_id)] = queue
        self.by_field.setdefault(field_of(queue.topic), {})[queue.queue_id] = queue

    def cut(self, below: int, *, scrub: bool = False) -> None:
        """Keep only the entries of records below a physical offset."""
        for queue in self:
            queue.cut(below, scrub=scrub)
            queue.begin_at_floor(queue.floor)

    def totals(self) -> tuple[int, int]:
        """Return how many queues have entries, and the sum of their ends."""
        ends = [queue.max for queue in self if queue.max]
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
        """Return (files, directories) to sync for all entries so far to be on disk."""
        files: set[Path] = set()
        directories: set[Path] = set()
        for queue in self:
            if queue.dirty or queue.created or queue.left:
                more_files, more_directories = queue.take_dirty()
                files.update(more_files)
                directories.update(more_directories)
        return files, directories

    def retire_topic(self, topic: str) -> None:
        """Delete all queues of a topic, and remember where they ended.

        Raises:
            StoreFull: that can't be written; nothing was deleted.
        """
        ends = {queue.queue_id: queue.max for queue in self if queue.topic == topic and queue.max}
        if ends:
            self.floors.merge({topic: ends})
        self.remove_topic(topic)

    def raise_floors(self, text: str) -> None:
        """Take over where deleted queues ended on the master: what is below goes, or is not shown any more.

        Raises:
            StoreError: the text is none.
            StoreFull: it can't be written; nothing has changed.
        """
        if not self.floors.merge(self.floors.decode(text)):
            return
        for queue in self:
            queue.floor = self.floors.get(queue.topic, queue.queue_id)
        for topic in self.floors.by_topic:
            queues = [queue for queue in self if queue.topic == topic]
            if queues and all(queue.max <= queue.floor for queue in queues):
                self.remove_topic(topic)

    def remove_topic(self, topic: str) -> None:
        """Delete all queues of a topic."""
        for key in [key for key in self.by_key if key[0] == topic]:
            self.by_key.pop(key).remove()
        self.by_field.pop(field_of(topic), None)
        directory = self.directory / topic
        if directory.is_dir():
            directory.rmdir()

    def close(self) -> None:
        """Unmap everything."""
        for queue in self:
            queue.unmap()


def field_of(topic: str) -> bytes:
    """Return the topic as records hold it; a topic too long for that (RocketMQ 5.x) gets a length of 255."""
    data = topic.encode()
    return bytes((min(len(data), 255),)) + data


def list_queues(directory: Path) -> list[tuple[str, int, Path]]:
    """Return (topic, queue id, directory) of the queues that have files, sorted."""
    if not directory.is_dir():
        return []
    found = [
        (topic.name, int(queue.name), queue)
        for topic in directory.iterdir()
        if topic.is_dir()
        for queue in topic.iterdir()
        if queue.is_dir() and queue.name.isdigit()
    ]
    return sorted(found)
