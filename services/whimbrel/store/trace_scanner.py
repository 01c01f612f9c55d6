"""Finds the records with a sampled trace context in bytes that were just added to the log.

The master's replicator that sends a new piece of the log, the slave's replicator that appends it, and the
slave's broker that dispatches it find here which of its records belong to a trace. The HA stream, which is
RocketMQ's, does not carry that.

    position                                   end
       |---- new piece, at most NEAR_BYTES ----|      searched for the property's name, at C speed
       |--------- more than NEAR_BYTES ----------|    catching up: skipped, position = end

The record around a match begins at the nearest magic number before it whose record names that place as its
own offset and reaches over the match. So a piece may begin and end within a record, as frames do. A record
whose end has not arrived is searched for again from its start. A record of more than `NEAR_BYTES` is not
found.
"""

from collections.abc import Callable

from whimbrel.errors import CorruptRecord, IllegalOffset
from whimbrel.model.trace import (
    CONTEXT_PROPERTY,
    FALLBACK_PROPERTY,
    TraceContext,
    TracedRecord,
    parse_context,
)
from whimbrel.store.codec import (
    PHYSICAL_OFFSET,
    RAW_UNIQ_KEY,
    RECORD_MAGICS,
    SIZE_AND_MAGIC,
    decode_record,
    property_of,
)

__all__ = ["NEAR_BYTES", "ContextScanner", "context_of"]

NEAR_BYTES = 256 * 1024  # a larger piece is a reader that catches up: its records are not traced

NAMES = (CONTEXT_PROPERTY.encode(), FALLBACK_PROPERTY.encode())
NEEDLES = tuple(name + b"\x01" for name in NAMES)
NEEDLE_BYTES_MAX = max(map(len, NEEDLES))
MAGICS = tuple(magic.to_bytes(4, "big") for magic in RECORD_MAGICS)
MAGIC_AT = 4  # in a record


def context_of(properties: bytes) -> TraceContext | None:
    """Return the sampled context in a property text, None when there is none."""
    for name in NAMES:
        text = property_of(properties, name)
        if text:
            context = parse_context(text.decode("utf-8", "replace"))
            return context if context is not None and context.sampled else None
    return None


class ContextScanner:
    """Scans what is added to one log.

    Attributes:
        position: everything before was scanned, or skipped.
    """

    def __init__(self, read: Callable[[int, int], bytes], position: int, file_size: int) -> None:
        """Begin at `position`; `read` gives bytes of the log, fewer at the end of a file."""
        self.read = read
        self.position = position
        self.file_size = file_size

    def advance(self, end: int) -> list[TracedRecord]:
        """Return the sampled records that are whole now, in the log's order; `end` is the log's."""
        if end - self.position > NEAR_BYTES or end < self.position:
            self.position = end
        found: list[TracedRecord] = []
        while self.position < end:
            base = self.position
            try:
                data = self.read(base, end - base)
            except IllegalOffset:  # removed, or truncated, since
                data = b""
            if not data:
                self.position = end
                break
            self.position = self.scan(base, data, found)
            if base + len(data) == end:
                break  # the last record may not be whole yet
            self.position = base + len(data)  # a file ends there, and so does its last record
        return found

    def scan(self, base: int, data: bytes, found: list[TracedRecord]) -> int:
        """Add the records in a piece that stands at `base`; return where the next scan must begin."""
        at = 0
        while (match := next_match(data, at)) >= 0:
            start, whole = self.record_around(base, data, match)
            if start < 0:
                at = match + 1  # the name stands in something that is no record
                continue
            size, _ = SIZE_AND_MAGIC.unpack_from(whole)
            if len(whole) < size:
                return start
            try:
                message = decode_record(whole, check_crc=False)
            except CorruptRecord:
                at = match + 1
                continue
            context = context_of(message.properties_raw)
            if context is not None:
                found.append(
                    TracedRecord(
                        context=context,
                        offset=start,
                        size=size,
                        topic=message.topic,
                        queue_id=message.queue_id,
                        queue_offset=message.queue_offset,
                        message_id=property_of(message.properties_raw, RAW_UNIQ_KEY).decode(
                            "utf-8", "replace"
                        ),
                    )
                )
            at = start + size - base
        # The name may be split between two pieces.
        return base + max(at, len(data) - NEEDLE_BYTES_MAX + 1)

    def record_around(self, base: int, data: bytes, match: int) -> tuple[int, bytes]:
        """Return where the record around a match begins, and the bytes of it that are there; -1 for none."""
        start = record_start(base, data, match)
        if start >= 0:
            size = SIZE_AND_MAGIC.unpack_from(data, start - base)[0]
            return start, data[start - base : start - base + size]
        reach = max(base - base % self.file_size, base - NEAR_BYTES)
        try:
            both = self.read(reach, base - reach) + data
        except IllegalOffset:
            return -1, b""
        start = record_start(reach, both, base - reach + match)
        if start < 0:
            return -1, b""
        size = SIZE_AND_MAGIC.unpack_from(both, start - reach)[0]
        return start, both[start - reach : start - reach + size]


def next_match(data: bytes, at: int) -> int:
    """Return where the first of the names stands from `at` on, -1 without one."""
    matches = [match for needle in NEEDLES if (match := data.find(needle, at)) >= 0]
    return min(matches, default=-1)


def record_start(base: int, data: bytes, match: int) -> int:
    """Return the log offset of the record that reaches over `match`, -1 when none in `data` does."""
    upto = match
    while (magic := max(data.rfind(each, 0, upto) for each in MAGICS)) >= 0:
        start = magic - MAGIC_AT
        if start >= 0 and start + PHYSICAL_OFFSET.size <= len(data):
            own = PHYSICAL_OFFSET.unpack_from(data, start)[0]
            if own == base + start and start + SIZE_AND_MAGIC.unpack_from(data, start)[0] > match:
                return base + start
        upto = magic
    return -1
