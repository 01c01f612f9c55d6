"""Offsets below which a queue gives none any more: what no entry shows has to be written down.

No queue offset is given twice. A queue's entries say how far it came, but not where they are gone:

    deleted   the topic was deleted, and its entries with it         `deleted_queue_offsets.py`
    given     no message is left in this member's log: retention     `GivenQueueOffsets`, here
              removed them, or the log of a slave begins behind them

Each is a file in `STORE/whimbrel/` with the text `{"topic":{"queue id":offset}}`. Offsets only grow, but for
those of deleted topics where members elect their leader (`deleted_queue_offsets.py`). The text is on disk
before anything relies on it.

**Given offsets.** At each round of retention a queue without a message left in the log is written down, once;
its own last file says the same, until it is lost. A slave that began with an empty store never had such a
file: its master tells it how far all queues had come at a place in the log, the begin of the log's last file,
and tells it anew when that has moved. The slave takes them over when its own log has come to that place: what
is then missing in its queues lies before the begin of its log, so that no message to come can have an offset
below. Queues that hold messages need nothing of this: their entries know. Where an offset is known, a queue
without entries goes on there (`ConsumeQueue.go_on_at`), on a slave as on a master.

RocketMQ keeps none of this: there, offsets of such queues are given again.
"""

import json
import logging
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import ClassVar

from whimbrel.errors import StoreError
from whimbrel.machine import FILES, Files
from whimbrel.store.codec import UNIT_SIZE
from whimbrel.store.jsonconfig import save

__all__ = ["GivenQueueOffsets", "QueueFloors", "encode"]

QUEUE_ID_MAX = (1 << 31) - 1  # an int32 in records
OFFSET_MAX = (
    (1 << 63) - 1
) // UNIT_SIZE  # a queue's files are named by the byte offsets of their first entries

logger = logging.getLogger(__name__)


class QueueFloors:
    """Offsets by topic and queue id, in a file.

    Attributes:
        on_change: called after a change was written.
        by_topic: topic to queue id to offset.
    """

    FILE: ClassVar[str]
    ADVICE: ClassVar[str]  # what removing a damaged file means

    def __init__(self, root: Path, files: Files = FILES) -> None:
        """Read the file.

        Raises:
            StoreError: it is damaged.
        """
        self.path, self.files = root / "whimbrel" / self.FILE, files
        self.on_change: list[Callable[[], None]] = []
        self.by_topic: dict[str, dict[int, int]] = {}
        if files.exists(self.path):
            self.by_topic = self.decode(files.read_bytes(self.path).decode("utf-8", "replace"))

    def get(self, topic: str, queue_id: int) -> int:
        """Return a queue's offset, 0 when there is none."""
        return self.by_topic.get(topic, {}).get(queue_id, 0)

    @property
    def text(self) -> str:
        """The offsets as text, as in the file."""
        return encode(self.by_topic)

    def decode(self, text: str) -> dict[str, dict[int, int]]:
        """Return the offsets of a text.

        Raises:
            StoreError: it can't be parsed, or names what no queue can be.
        """
        try:
            found = {
                topic: {int(queue_id): int(offset) for queue_id, offset in queues.items()}
                for topic, queues in json.loads(text).items()
            }
            for topic, queues in found.items():
                if not topic or "/" in topic or topic in (".", ".."):
                    raise ValueError(f"no topic is called {topic!r}")
                for queue_id, offset in queues.items():
                    if not (0 <= queue_id <= QUEUE_ID_MAX and 0 <= offset <= OFFSET_MAX):
                        raise ValueError(f"offset {offset} of queue {queue_id}")
        except (ValueError, AttributeError, TypeError, OverflowError, RecursionError) as error:
            raise StoreError(
                f"{self.path} is damaged ({error}); remove it to start: {self.ADVICE}"
            ) from error
        return found

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
        self.put(after)
        return True

    def put(self, offsets: dict[str, dict[int, int]]) -> None:
        """Have other offsets, lower ones among them.

        Raises:
            StoreFull: it can't be written; nothing has changed.
        """
        save(self.path, encode(offsets), self.files)
        self.by_topic = offsets
        for callback in self.on_change:
            callback()


class GivenQueueOffsets(QueueFloors):
    """The offsets at which queues without entries go on."""

    FILE = "queue-offsets.json"
    ADVICE = "queues whose messages have all expired then begin where their files say, or anew"


def encode(offsets: Mapping[str, Mapping[int, int]]) -> str:
    """Return offsets as text."""
    return json.dumps(offsets, sort_keys=True, separators=(",", ":"))
