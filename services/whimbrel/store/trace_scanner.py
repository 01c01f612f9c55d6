"""Finds, in bytes that were just added to the log, the records that carry a sampled trace context.

Whoever adds to the log, sends it on or reads it back (two replicators and a slave's broker) asks here which
records of the new piece belong to a trace. Nothing else tells them: the HA stream stays RocketMQ's.

    position                                   end
       |---- new piece, at most NEAR_BYTES ----|      searched for the property's name, at C speed
       |--------- more than NEAR_BYTES ----------|    catching up: skipped, position = end

A match leads back to its record: the nearest magic number before it whose record says that it stands right
there and reaches over the match. So a piece may begin and end within a record, as frames do. A record whose
end is not there yet is looked for again from its start. A record of more than `NEAR_BYTES` is not followed.
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

NEAR_BYTES = 256 * 1024  # a log that grows by more between two looks is being caught up with

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
    """Looks through what is added to one log.

    Attributes:
        position: everything before was looked through, or skipped.
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
            except IllegalOffset:  # removed, or cut, meanwhile
                data = b""
            if not data:
                self.position = end
                break
            self.position = self.scan(base, data, found)
            if base + len(data) == end:
                break  # a record that began before may still be going on
            self.position = base + len(data)  # a file ends there, and no record goes beyond it
        return found

    def scan(self, base: int, data: bytes, found: list[TracedRecord]) -> int:
        """Add the records in a piece that stands at `base`; return where the next look must begin."""
        at = 0
        while (match := next_match(data, at)) >= 0:
            start, whole = self.record_around(base, data, match)
            if start < 0:
                at = match + 1  # the words stand in something that is no record
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
        # The name itself may be cut in two.
        return base + max(at, len(data) - NEEDLE_BYTES_MAX + 1)

    def record_around(self, base: int, data: bytes, match: int) -> tuple[int, bytes]:
        """Return where the record around a match begins, and its bytes as far as there are; -1 for none."""
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
    """Return where the first of the names stands from `at` on, -1 for nowhere."""
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
