"""One scan over consume queues and a filter, within the budgets of one answer. Receives and pulls share it.

    queue entry --admits_code--> read --> decode --admits--> message
         |                        |          |         |
         '--- filtered out        '- gone    '- corrupt '--- filtered out

With the compiled lane, several records are read and checked at once (`RecordSource.read_plain`), as many as
may still get into the answer; what it leaves out is read one by one. For a pull it makes the responses at
once (`walk_packed`), up to the first record that is not plain.

The scan returns what each entry is, in the order of the queue. What that means is the caller's decision: a
receive holds a message and finishes what is filtered out, a pull just goes on.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Protocol, TypeAlias

from whimbrel.errors import CorruptRecord, IllegalOffset
from whimbrel.model.limits import RECEIVE_BATCH_MAX
from whimbrel.store.codec import FILLER_SIZE, RECORD_BYTES_MAX, StoredMessage, decode_record

if TYPE_CHECKING:
    from whimbrel.store.lane_messages import PackedMessages
    from whimbrel.store.lane_passes import LanePasses

__all__ = [
    "ANSWER_BYTES_MAX",
    "FILTERED_UNITS",
    "SCAN_MAX",
    "Filter",
    "Piece",
    "RecordSource",
    "Scan",
    "Unit",
]

# Bytes of records in one answer, apart from its first message: 32 messages of 4 MiB would take 128 MiB of
# memory.
ANSWER_BYTES_MAX = 4 << 20
# Queue entries scanned for one answer, so that a filter which matches little can't hold the loop for long;
# the rest is scanned in a later iteration of the loop.
SCAN_MAX = 2048
# Queue entries fetched at a time when not all of them will match.
FILTERED_UNITS = 256
PACKED_TAGS_MAX = 32  # tags of a filter that the lane compares; it does so one by one
ANY_SIZE, NO_ROOM = 1 << 31, -(1 << 31) - 1  # above and below all sizes that an entry can name

Unit: TypeAlias = tuple[int, int, int]  # of a consume queue: physical offset, size, tags code
# A piece of a queue:
#     begin          what lies from here to the start is filtered out
#     start, end     where the messages stand, next to each other; equal when there is none
#     units, index   the entries that were fetched, and where among them the first message's is
#     found          the messages; or, for one offset, IllegalOffset (the record is no longer in the log) or
#                    CorruptRecord (it does not decode)
Piece: TypeAlias = tuple[
    int, int, int, Sequence[Unit], int, list[StoredMessage] | IllegalOffset | CorruptRecord
]


class Filter(Protocol):
    """What a scan needs of a filter.

    Attributes:
        admits_all: every message matches, so that neither method needs to be called. expression: its text;
        filters of one class and text admit the same messages. weight: what an entry costs, counted in entries
        of which only the tags code is looked at.
        codes: the low 32 bits of the tags codes that may match; None where that does not decide.
        codes_and_texts: both that a tag has to be among, for the lane; None where tags do not decide.
    """

    @property
    def admits_all(self) -> bool: ...
    @property
    def expression(self) -> str: ...
    @property
    def weight(self) -> int: ...
    @property
    def codes(self) -> frozenset[int] | None: ...
    @property
    def codes_and_texts(self) -> tuple[list[int], list[bytes]] | None: ...
    def admits_code(self, code: int) -> bool:
        """Return False when no message with this tags code matches; True when the record must be read."""

    def admits(self, properties: Mapping[str, str], tags: str | None) -> bool:
        """Return whether a message with these properties matches; `tags` is its property TAGS."""


class RecordSource(Protocol):
    """What is read of the store; `MessageStore` implements it."""

    passes: "LanePasses"

    def queue_range(self, topic: str, queue_id: int) -> tuple[int, int]: ...
    def queue_units(self, topic: str, queue_id: int, offset: int, count: int) -> list[Unit]: ...
    def read(self, physical_offset: int, size: int) -> bytes: ...
    def read_plain(self, units: Sequence[Unit]) -> list[StoredMessage | None]: ...
    def pull_plain(
        self,
        topic: str,
        queue_id: int,
        offset: int,
        count: int,
        budget: tuple[int, int, int],
        tags: tuple[list[int], list[bytes]] | None,
        namespace: str,
    ) -> "PackedMessages | None": ...
    def offset_by_time(self, topic: str, queue_id: int, timestamp_ms: int) -> int: ...


class Scan:
    """The scan for one answer, over any number of queues of a topic.

    Attributes:
        room: messages that still fit into the answer. bytes_left: bytes of records that do; the first message
        always fits. entries_left: entries that may still be scanned; 0 or less when that budget ended the
        scan. reached: the offset at which the last walk ended. by_lane: the compiled lane reads ahead.
    """

    __slots__ = (
        "batch",
        "by_lane",
        "bytes_left",
        "entries_left",
        "filter",
        "passes_holes",
        "reached",
        "room",
        "store",
        "topic",
    )

    def __init__(
        self,
        store: RecordSource,
        topic: str,
        filter: Filter,
        batch: int,
        *,
        bytes_max: int = 0,
        entries_max: int = 0,
        passes_holes: bool = False,
    ) -> None:
        """Begin an answer.

        Args:
            store, topic, filter: where, and what is wanted.
            batch, bytes_max, entries_max: messages at most, bytes of their records, and entries that are
                looked at; 0 for as many as receives have.
            passes_holes: entries that stand for no message end no answer that has some already.
        """
        self.store, self.topic, self.filter = store, topic, filter
        self.batch = self.room = batch if batch < RECEIVE_BATCH_MAX else RECEIVE_BATCH_MAX
        self.bytes_left = bytes_max or ANSWER_BYTES_MAX
        self.entries_left = max((entries_max or SCAN_MAX) // filter.weight, 1)
        self.reached = 0
        self.passes_holes = passes_holes
        self.by_lane = store.passes.lane.native is not None

    def fetch_count(self) -> int:
        """Return how many entries to walk next: as many as have room, or more when not all will match."""
        return self.room if self.filter.admits_all else min(self.entries_left, FILTERED_UNITS)

    def pieces(self, queue_id: int, start: int, end: int) -> Iterator[Piece]:
        """Yield what stands at the offsets from `start` on, up to `end` or as far as the budgets go."""
        self.reached = start
        while start < end and self.room > 0 and self.entries_left > 0:
            count = self.room if self.filter.admits_all else min(self.entries_left, FILTERED_UNITS)
            stop = min(start + count, end)
            yield from self.walk(queue_id, start, stop)
            start = self.reached
            if start < stop:
                break  # the answer is full

    def walk(self, queue_id: int, start: int, stop: int) -> list[Piece]:
        """Return what stands at the offsets from `start` on, up to `stop` or as far as the answer has room.

        The messages are in the answer, unless the caller takes them out again. The budget of entries is
        charged here and checked by the caller.
        """
        pieces: list[Piece] = []
        while start < stop:
            units = self.store.queue_units(self.topic, queue_id, start, stop - start)
            if not units:
                break
            self.entries_left -= len(units)
            end = start + len(units)
            start = self.walk_units(start, units, pieces)
            if start < end:
                break  # the answer is full
        self.reached = start
        return pieces

    def walk_packed(self, queue_id: int, start: int, stop: int, namespace: str) -> "PackedMessages | None":
        """Walk as `walk` does, as far as the lane makes the responses; None where it does nothing.

        The budgets are charged as there.

        Args:
            queue_id, start, stop: as of `walk`.
            namespace: of the topic, as it was asked for.
        """
        wanted, tags = self.filter, None
        self.reached = start
        if not wanted.admits_all:
            tags = wanted.codes_and_texts
            if tags is None or len(tags[1]) > PACKED_TAGS_MAX:
                return None
        first_max = ANY_SIZE if self.room == self.batch else self.bytes_left
        packed = self.store.pull_plain(
            self.topic,
            queue_id,
            start,
            stop - start,
            (self.room, first_max, self.bytes_left),
            tags,
            namespace,
        )
        if packed is None or not packed.entries:
            return None
        self.entries_left -= packed.entries
        self.room -= packed.messages
        self.bytes_left -= packed.size
        self.reached = start + packed.entries
        return packed

    def walk_units(self, first: int, units: Sequence[Unit], pieces: list[Piece]) -> int:
        """Add what stands at these entries, of which the first has the offset `first`; return the end."""
        wanted, read = self.filter, self.store.read
        all_wanted = wanted.admits_all
        may_match: dict[int, bool] = {}  # by tags code; few differ, and asking costs more than looking up
        room, bytes_left = self.room, self.bytes_left
        # The size up to which the next message fits.
        limit = NO_ROOM if room <= 0 else ANY_SIZE if room == self.batch else bytes_left
        messages: list[StoredMessage] = []  # from `start` to `offset`
        ahead: dict[int, StoredMessage] = {}  # messages that were read already, by place
        ahead_end = first
        begin = start = offset = first
        for physical_offset, size, code in units:
            if size > limit and not (size == FILLER_SIZE and self.passes_holes):
                break
            found = None
            if not all_wanted and code not in may_match:
                may_match[code] = wanted.admits_code(code)
            if all_wanted or may_match[code]:
                if offset >= ahead_end and self.by_lane:
                    ahead, count = self.read_ahead(units[offset - first :], may_match, limit, room)
                    ahead_end = offset + count
                try:
                    found = ahead.get(physical_offset) or decode_record(read(physical_offset, size))
                except (IllegalOffset, CorruptRecord) as error:
                    if messages:
                        pieces.append((begin, start, offset, units, start - first, messages))
                        begin, messages = offset, []
                    pieces.append((begin, offset, offset + 1, units, offset - first, error))
                    begin = offset = offset + 1
                    continue
                if not all_wanted:
                    properties = found.properties
                    if not wanted.admits(properties, properties.get("TAGS")):
                        found = None
            if found is not None:
                if not messages:
                    start = offset
                messages.append(found)
                room -= 1
                bytes_left -= size
                limit = bytes_left if room > 0 else NO_ROOM
            elif messages:
                pieces.append((begin, start, offset, units, start - first, messages))
                begin, messages = offset, []
            offset += 1
        if begin < offset:
            start = start if messages else offset
            pieces.append((begin, start, offset, units, start - first, messages))
        self.room, self.bytes_left = room, bytes_left
        return offset

    def read_ahead(
        self, units: Sequence[Unit], may_match: dict[int, bool], limit: int, room: int
    ) -> tuple[dict[int, StoredMessage], int]:
        """Read at once what may get into the answer, as far as the lane does that.

        Args:
            units: from the first one on, which is wanted. may_match: by tags code, as far as that is known.
            limit: the size up to which the next message fits. room: messages that still fit.

        Returns:
            Messages by place, and how many of the entries were looked at.
        """
        wanted = self.filter
        all_wanted = wanted.admits_all
        chosen: list[Unit] = []
        count, left = 0, max(min(limit, ANSWER_BYTES_MAX), min(units[0][1], RECORD_BYTES_MAX))
        for unit in units:
            _, size, code = unit
            if not all_wanted and code not in may_match:
                may_match[code] = wanted.admits_code(code)
            if (all_wanted or may_match[code]) and size != FILLER_SIZE:
                if size > left or len(chosen) >= room:
                    break
                left -= size
                chosen.append(unit)
            count += 1
        messages = self.store.read_plain(chosen)
        if not messages:
            return {}, len(units)  # there is no lane
        found = {unit[0]: message for unit, message in zip(chosen, messages, strict=True) if message}
        return found, count

    def leave_out(self, message: StoredMessage) -> None:
        """Take a message out of the answer again."""
        self.room += 1
        self.bytes_left += message.size

    def end_walk(self, pieces: list[Piece], end: int) -> None:
        """End the last walk at `end`: what it found from there on is not in the answer."""
        self.reached = end
        for _, start, _, _, _, found in pieces:
            if isinstance(found, list):
                for message in found[max(end - start, 0) :]:
                    self.leave_out(message)
