"""Where the queues of deleted topics ended: a new topic of the same name continues there.

No queue offset is given twice. The log still holds the records of a deleted topic. A slave, and a start that
rebuilds the queues, puts each record at its stored queue offset, and skips a second record for the same
offset, although it was acknowledged. (RocketMQ begins again at 0, and loses such records.)

Kept in `STORE/whimbrel/queue-floors.json` and sent to slaves as the same text:
`{"topic":{"queue id":offset}}`. Entries below an offset are not shown. It only grows, by one offset for each
deleted queue.
"""

import json
import logging
from collections.abc import Callable, Mapping
from pathlib import Path

from whimbrel.errors import StoreError
from whimbrel.machine import FILES, Files
from whimbrel.store.jsonconfig import save

__all__ = ["DeletedQueueOffsets"]

logger = logging.getLogger(__name__)


class DeletedQueueOffsets:
    """The first offset that is shown, by topic and queue id.

    Attributes:
        on_change: called after a change was written.
        by_topic: topic to queue id to offset.
    """

    def __init__(self, root: Path, files: Files = FILES) -> None:
        """Read the file.

        Raises:
            StoreError: it is damaged.
        """
        self.path, self.files = root / "whimbrel" / "queue-floors.json", files
        self.on_change: list[Callable[[], None]] = []
        self.by_topic: dict[str, dict[int, int]] = {}
        if files.exists(self.path):
            self.by_topic = self.decode(files.read_bytes(self.path).decode("utf-8", "replace"))

    def get(self, topic: str, queue_id: int) -> int:
        """Return a queue's first offset that is shown, 0 when it was never deleted."""
        return self.by_topic.get(topic, {}).get(queue_id, 0)

    @property
    def text(self) -> str:
        """The offsets as text, as in the file."""
        return json.dumps(self.by_topic, sort_keys=True, separators=(",", ":"))

    def decode(self, text: str) -> dict[str, dict[int, int]]:
        """Return the offsets of a text.

        Raises:
            StoreError: it can't be parsed.
        """
        try:
            return {
                topic: {int(queue_id): int(offset) for queue_id, offset in queues.items()}
                for topic, queues in json.loads(text).items()
            }
        except (ValueError, AttributeError, TypeError) as error:
            raise StoreError(
                f"{self.path} is damaged ({error}); remove it to start: deleted topics then begin anew"
            ) from error

    def merge(self, other: Mapping[str, Mapping[int, int]]) -> bool:
        """Take over higher offsets; return whether there were any.

        Raises:
            StoreFull: it can't be written; nothing has changed.
        """
        before = self.by_topic
        after = {topic: dict(queues) for topic, queues in before.items()}
        for topic, queues in other.items():
            mine = after.setdefault(topic, {})
            for queue_id, offset in queues.items():
                mine[queue_id] = max(offset, mine.get(queue_id, 0))
        if after == before:
            return False
        self.by_topic = after
        try:
            save(self.path, self.text, self.files)
        except BaseException:
            self.by_topic = before
            raise
        for callback in self.on_change:
            callback()
        return True
