"""Messages for consumers by the compiled lane: from the bytes of the log to those of the answer.

    queue entries ──► `read`: records, read and checked by the lane    those that are not plain are left out
    records       ──► `responses`: gRPC responses, one behind the other
    queue entries ──► `pull`: the responses to a pull at once, up to the first record that is not plain

A record that the lane has read is a `LaneMessage`: a `StoredMessage` that is decoded when somebody asks for
a field that it does not have yet. Most never are: planning asks for a message's size and place, a filter for
its properties.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import fields
from typing import Any, NamedTuple

from whimbrel.errors import CorruptRecord, IllegalOffset
from whimbrel.model.delivered import HIDDEN, RARE
from whimbrel.model.limits import ATTEMPT_MAX, TIME_MS_MAX
from whimbrel.store.codec import RECORD_BYTES_MIN, StoredMessage, decode_record
from whimbrel.store.consumequeue import Unit
from whimbrel.store.lane_passes import LanePasses

__all__ = ["LaneMessage", "LaneMessages", "PackedMessages"]

READ_BYTES_MAX = 1 << 20  # of the log at once; a record may have more, and is read alone
# All but what is made of another one.
FIELDS = tuple(field.name for field in fields(StoredMessage) if field.init)


class PackedMessages(NamedTuple):
    """What the lane has made of some entries of a queue.

    Attributes:
        entries: how many there were, with those that do not match.
        messages: how many of them match. size: bytes of their records.
        last_place: physical offset of the last message; -1 without any.
        framed: a response with each, behind gRPC's prefix.
    """

    entries: int
    messages: int
    size: int
    last_place: int
    framed: bytes


class LaneMessage(StoredMessage):
    """A message that the lane has read.

    Attributes:
        record: what the lane has of it; None for one that is made of fields (`dataclasses.replace`).
    """

    __slots__ = ("record",)

    def __init__(self, *values: Any, **named: Any) -> None:
        super().__init__(*values, **named)
        self.record: Any = None

    def __getattr__(self, name: str) -> Any:
        """Decode the record: a field is not there yet."""
        if name == "parsed":
            self.parsed = self.record.properties()
            return self.parsed
        if name not in FIELDS:
            raise AttributeError(name)
        found = decode_record(self.record.data(), check_crc=False)
        for each in FIELDS:
            setattr(self, each, getattr(found, each))
        return getattr(self, name)

    def __eq__(self, other: object) -> bool:
        """Compare as messages do; that the lane has read one of them is no difference."""
        if not isinstance(other, StoredMessage):
            return NotImplemented
        return all(getattr(self, name) == getattr(other, name) for name in FIELDS)


class LaneMessages:
    """Reads records of a store, and makes responses of them."""

    def __init__(self, passes: LanePasses, read_range: Callable[[int, int], bytes]) -> None:
        """Take what runs the lane, and what reads the log (`MessageStore.read_range`)."""
        self.passes, self.read_range = passes, read_range
        self.native: Any = None

    def deliveries(self) -> Any:
        """Return the lane's part; None where it is not active."""
        native = self.passes.lane.native
        if native is None:
            return None
        if self.native is None:
            self.native = native.Deliveries(
                hidden=[name.encode() for name in HIDDEN],
                rare=[name.encode() for name in RARE],
                time_max_ms=TIME_MS_MAX,
                attempt_max=ATTEMPT_MAX,
            )
        return self.native

    def read(self, units: Sequence[Unit]) -> list[StoredMessage | None]:
        """Return the messages of queue entries, None for those that are Python's; [] without the lane."""
        deliveries = self.deliveries()
        if deliveries is None:
            return []
        found: list[Any] = []
        for group in neighbours(units):
            begin, (last, size, _) = group[0][0], group[-1]
            data = self.piece(begin, last + size - begin) if size >= RECORD_BYTES_MIN else b""
            count = len(found) + len(group)
            self.passes.run(deliveries.records, data, begin, group, found)
            if len(found) < count:
                return []  # it has panicked
        messages: list[StoredMessage | None] = []
        for record, (place, size, _) in zip(found, units, strict=True):
            if record is None:
                messages.append(None)
                continue
            message = LaneMessage.__new__(LaneMessage)
            message.record = record
            message.physical_offset, message.size = place, size
            message.reconsume_times = record.reconsume_times
            messages.append(message)
        return messages

    def piece(self, place: int, size: int) -> bytes:
        """Return bytes of the log, fewer at the end of a file, none where it does not have all of them."""
        try:
            return self.read_range(place, size)
        except (IllegalOffset, CorruptRecord):
            return b""

    def pull(
        self,
        units: bytes,
        budget: tuple[int, int, int],
        tags: tuple[list[int], list[bytes]] | None,
        namespace: str,
    ) -> PackedMessages | None:
        """Return the responses to a pull, up to the first record that is not plain; None without the lane.

        Args:
            units: entries of a queue, packed.
            budget: messages that fit, the size in bytes up to which the next one does, bytes of all records.
            tags: which are wanted: the low 32 bits of their codes, and the texts. None: all messages are.
            namespace: of the topic, as it was asked for.
        """
        deliveries = self.deliveries()
        if deliveries is None:
            return None
        done = self.passes.run(deliveries.pull, units, budget, tags, namespace, self.piece)
        if done is None:
            return None
        packed = PackedMessages(*done)
        self.passes.lane.delivered += packed.messages
        return packed

    def responses(self, wanted: Sequence[tuple[Any, str, int]], namespace: str) -> bytes | None:
        """Return the responses to a receive or a pull, each behind gRPC's prefix; None without the lane.

        Args:
            wanted: `record` of each message, its receipt handle ("" for none) and its attempt.
            namespace: of the topic, as it was asked for.
        """
        deliveries = self.deliveries()
        if deliveries is None:
            return None
        data: bytes | None = self.passes.run(deliveries.responses, wanted, namespace)
        if data is not None:
            self.passes.lane.delivered += len(wanted)
        return data


def neighbours(units: Sequence[Unit]) -> Iterator[list[Unit]]:
    """Yield entries in groups whose records stand one behind the other in the log."""
    group: list[Unit] = []
    end = total = 0
    for unit in units:
        place, size, _ = unit
        if group and (place != end or total + size > READ_BYTES_MAX):
            yield group
            group, total = [], 0
        group.append(unit)
        end, total = place + size, total + size
    if group:
        yield group
