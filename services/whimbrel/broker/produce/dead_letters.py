"""Appends dead letters, each cause's once.

A message that its group has given up goes to a dead-letter topic, and is done there as soon as its copy is
durable (`consume/dead_letters.py` says what the copy holds, `internal_append.py` appends it). When a crash, a
full disk or a slave that is away comes between the two, the message's turn comes again, and so it does when
an append was reported late and is in the log after all. The log itself then tells what was done before:

    copy of this record, stored since its last delivery    wait until that one is durable; append none
    none                                                   append

A copy is found by the index under its message id, and names the record that it is made of. Older copies do
not count: the group's position was reset since, and the message failed once more. That the index lacks a
copy takes a loss of its files; then there is a second one, as when more than `SAME_ID_MAX` dead letters of a
group have one id.

State here: a count for each group and topic, for metrics.
"""

from collections.abc import Callable
from typing import Protocol

from whimbrel.broker.produce.internal_append import Done, InternalAppender, OnwardTarget
from whimbrel.errors import CorruptRecord, IllegalOffset, WhimbrelError
from whimbrel.model.dead_letter import cause_of
from whimbrel.model.names import DEAD_LETTER_PREFIX
from whimbrel.model.properties import UNIQ_KEY
from whimbrel.store.codec import StoredMessage, decode_record

__all__ = ["CLOCK_SLACK_MS", "SAME_ID_MAX", "DeadLetters", "LetterLog"]

SAME_ID_MAX = 64  # copies of one id that are looked at
# How far the clock may have been set back between a delivery and the copy.
CLOCK_SLACK_MS = 10_000


class LetterLog(Protocol):
    """What is read of the store; `MessageStore` implements it."""

    @property
    def written(self) -> int:
        """End of the log."""

    def find_written(self, topic: str, key: str, *, limit: int = 64, begin: int = 0) -> list[int]: ...
    def read_log(self, physical_offset: int, size: int, /) -> bytes: ...
    def read(self, physical_offset: int, size: int) -> bytes: ...


class DeadLetters:
    """Hands messages on; on the loop's thread."""

    def __init__(
        self,
        internal: InternalAppender,
        store: LetterLog,
        *,
        on_sent: Callable[[str, str], None] | None = None,
    ) -> None:
        """Take what appends; `on_sent` is called with group and topic of each message that has a new copy."""
        self.internal, self.store, self.on_sent = internal, store, on_sent

    def hand_on(self, message: StoredMessage, target: OnwardTarget, since_ms: int, done: Done) -> None:
        """Have the message in its dead-letter topic, once; `done` gets None when the copy is durable.

        Args:
            message: the original.
            target: its dead letter.
            since_ms: copies that were stored before this do not count.
            done: called with None, or with why it is not there for sure; perhaps before this returns.
        """
        if self.has_copy(message, target.topic, since_ms):
            self.internal.confirm(self.store.written, done)
            return

        def appended(error: WhimbrelError | None) -> None:
            if error is None and self.on_sent is not None:
                self.on_sent(target.topic.removeprefix(DEAD_LETTER_PREFIX), message.topic)
            done(error)

        self.internal.hand_on(message, target, appended)

    def has_copy(self, message: StoredMessage, topic: str, since_ms: int) -> bool:
        """Return whether the topic holds a copy of this record, stored since then."""
        cause = message.offset_message_id
        key = message.properties.get(UNIQ_KEY) or cause
        begin = max(since_ms - CLOCK_SLACK_MS, 0)
        for place in self.store.find_written(topic, key, limit=SAME_ID_MAX, begin=begin):
            size = int.from_bytes(self.store.read_log(place, 4), "big")
            try:
                found = decode_record(self.store.read(place, size), check_crc=False)
            except (CorruptRecord, IllegalOffset):
                continue
            if cause_of(found.properties) == cause:
                return True
        return False
