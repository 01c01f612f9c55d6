"""Where the queues of deleted topics ended: a topic of the same name goes on there.

Queue offsets are never given twice. The log still holds the records of a deleted topic, and a slave, or a
start that builds the queues anew, takes each record's queue offset for its place: a second record of the same
place would be passed over, although it was acknowledged. (RocketMQ begins again at 0, and loses it there.)

`STORE/whimbrel/queue-floors.json`, and the text that slaves are told: `{"topic":{"queue id":offset}}`.
Entries below an offset are not shown. Only ever grows; one entry for each queue that was deleted.
"""

import json
import logging
from collections.abc import Callable, Mapping
from pathlib import Path

from whimbrel.errors import StoreError
from whimbrel.store.jsonconfig import save

__all__ = ["DeletedQueueOffsets"]

logger = logging.getLogger(__name__)


class DeletedQueueOffsets:
    """The first offset that counts, by topic and queue id.

    Attributes:
        on_change: called after a change was written.
    """

    def __init__(self, root: Path) -> None:
        """Read the file.

        Raises:
            StoreError: it is damaged.
        """
        self.path = root / "whimbrel" / "queue-floors.json"
        self.on_change: list[Callable[[], None]] = []
        self.by_topic: dict[str, dict[int, int]] = {}
        if self.path.exists():
            self.by_topic = self.decode(self.path.read_text(encoding="utf-8", errors="replace"))

    def get(self, topic: str, queue_id: int) -> int:
        """Return a queue's first offset that counts, 0 when it was never deleted."""
        return self.by_topic.get(topic, {}).get(queue_id, 0)

    @property
    def text(self) -> str:
        """Return all of them as text."""
        return json.dumps(self.by_topic, sort_keys=True, separators=(",", ":"))

    def decode(self, text: str) -> dict[str, dict[int, int]]:
        """Return what a text says.

        Raises:
            StoreError: it can't be such a text.
        """
        try:
            return {
                topic: {int(queue_id): int(floor) for queue_id, floor in queues.items()}
                for topic, queues in json.loads(text).items()
            }
        except (ValueError, AttributeError, TypeError) as error:
            raise StoreError(
                f"{self.path} is damaged ({error}); remove it to start: deleted topics then begin anew"
            ) from error

    def merge(self, other: Mapping[str, Mapping[int, int]]) -> bool:
        """Take over what is higher there; return whether anything was.

        Raises:
            StoreFull: it can't be written; nothing has changed.
        """
        before = self.by_topic
        after = {topic: dict(queues) for topic, queues in before.items()}
        for topic, queues in other.items():
            mine = after.setdefault(topic, {})
            for queue_id, floor in queues.items():
                mine[queue_id] = max(floor, mine.get(queue_id, 0))
        if after == before:
            return False
        self.by_topic = after
        try:
            save(self.path, self.text)
        except BaseException:
            self.by_topic = before
            raise
        for told in self.on_change:
            told()
        return True
