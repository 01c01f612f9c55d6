"""An appender over a real store that confirms when it is told to, for tests of what the broker appends."""

from collections.abc import Callable
from typing import Any

from whimbrel.errors import NotWritable, WhimbrelError
from whimbrel.store.codec import StoredMessage, decode_record
from whimbrel.store.master_store import MasterStore

__all__ = ["ConfirmedWhenTold", "messages_of"]


class ConfirmedWhenTold:
    """A `RecordAppender`.

    Attributes:
        refusal: why appends are refused; empty while they are taken.
        waiting: ends of the log that are waited for, and who waits.
    """

    def __init__(self, store: MasterStore) -> None:
        """Take the store."""
        self.store, self.waits, self.refusal = store, True, ""
        self.waiting: list[tuple[int, Callable[[WhimbrelError | None], None]]] = []

    def check_writable(self) -> None:
        """See `RecordAppender`."""
        if self.refusal:
            raise NotWritable(self.refusal)

    def append(self, drafts: Any) -> Any:
        """See `RecordAppender`."""
        self.check_writable()
        return self.store.append(drafts)

    def when_durable(self, end: int, answer: Callable[[WhimbrelError | None], None]) -> None:
        """See `RecordAppender`."""
        self.waiting.append((end, answer))

    def complete_waiting(self) -> None:
        """See `RecordAppender`."""

    def confirm(self, error: WhimbrelError | None = None) -> None:
        """Answer all who wait."""
        waiting, self.waiting = self.waiting, []
        for _, answer in waiting:
            answer(error)


def messages_of(store: MasterStore, topic: str, queue_id: int = 0) -> list[StoredMessage]:
    """Return what stands in a queue."""
    low, high = store.queue_range(topic, queue_id)
    units = store.queue_units(topic, queue_id, low, high - low)
    return [decode_record(store.read(*unit[:2])) for unit in units]
