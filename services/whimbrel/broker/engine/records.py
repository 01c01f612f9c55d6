"""A record by where it stands in the log.

What stands there must be a record that begins there: its own field for the physical offset says so.
"""

from typing import Protocol

from whimbrel.errors import CorruptRecord, IllegalOffset, WhimbrelError
from whimbrel.store.codec import (
    RECORD_BYTES_MAX,
    RECORD_BYTES_MIN,
    RECORD_MAGICS,
    SIZE_AND_MAGIC,
    StoredMessage,
    decode_record,
)

__all__ = ["NoRecord", "RecordLog", "read_at"]


class NoRecord(WhimbrelError):
    """No record begins there."""

    reason = "NO_RECORD"
    grpc = "NOT_FOUND"
    effect = "none"


class RecordLog(Protocol):
    """What is read of the store; `MessageStore` implements it."""

    @property
    def min_offset(self) -> int:
        """Begin of the log."""

    @property
    def visible_end(self) -> int:
        """End of what may be delivered."""

    def read_log(self, physical_offset: int, size: int, /) -> bytes: ...
    def read(self, physical_offset: int, size: int) -> bytes: ...
    def find_by_key(
        self, topic: str, key: str, *, limit: int = 64, begin: int = 0, end: int = 2**63 - 1
    ) -> list[int]: ...


def read_at(log: RecordLog, place: int) -> tuple[bytes, StoredMessage]:
    """Return the record that begins at a place in the log, as bytes and decoded.

    Raises:
        NoRecord: there is none.
    """
    try:
        if log.min_offset <= place <= log.visible_end - SIZE_AND_MAGIC.size:
            size, magic = SIZE_AND_MAGIC.unpack(log.read_log(place, SIZE_AND_MAGIC.size))
            whole = RECORD_BYTES_MIN <= size <= min(RECORD_BYTES_MAX, log.visible_end - place)
            if magic in RECORD_MAGICS and whole:
                record = log.read(place, size)
                message = decode_record(record)
                if message.physical_offset == place:
                    return record, message
    except (CorruptRecord, IllegalOffset):
        pass
    begin, end = log.min_offset, log.visible_end
    raise NoRecord(f"no message begins at {place} of the log, which holds {begin} to {end}")
