"""What the tests of columns share: records and logs of any kind, written by `struct` alone, and what a table
has to show of them, told by the plain decoder record by record.

Imports neither numpy nor pyarrow.
"""

import struct
import zlib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

from whimbrel.errors import CorruptRecord
from whimbrel.store.codec import (
    BLANK_MAGIC,
    BORN_V6,
    MAGIC_V1,
    MAGIC_V2,
    STORE_V6,
    StoredMessage,
    decode_record,
    pack_host,
    record_fault,
)

__all__ = [
    "HOST_V4",
    "HOST_V6",
    "SYSTEM",
    "Log",
    "Row",
    "borders",
    "expected_row",
    "ghosts",
    "inflated",
    "joined",
    "kind_of",
    "plain",
    "plain_positions",
    "reader",
    "record",
    "table_rows",
]

Row = dict[str, Any]

HOST_V4 = pack_host("10.1.2.3", 54321)
HOST_V6 = pack_host("2001:db8::7", 10911)
US_MAX_MS = (2**63 - 1) // 1000


def record(
    place: int,
    *,
    topic: bytes = b"topic",
    body: bytes = b"body",
    properties: bytes = b"",
    version: int = 1,
    queue_id: int = 0,
    queue_offset: int = 0,
    born_ms: int = 1_700_000_000_000,
    stored_ms: int = 1_700_000_000_001,
    born_host: bytes = HOST_V4,
    store_host: bytes = HOST_V4,
    flag: int = 0,
    sys_flag: int = 0,
    reconsume_times: int = 0,
    prepared_offset: int = 0,
    crc: int | None = None,
) -> bytes:
    """Write a record field by field."""
    sys_flag &= ~(BORN_V6 | STORE_V6)
    sys_flag |= (BORN_V6 if len(born_host) == 20 else 0) | (STORE_V6 if len(store_host) == 20 else 0)
    behind = b"".join(
        (
            struct.pack(">i", queue_id),
            struct.pack(">iqqi", flag, queue_offset, place, sys_flag),
            struct.pack(">q", born_ms) + born_host,
            struct.pack(">q", stored_ms) + store_host,
            struct.pack(">iq", reconsume_times, prepared_offset),
            struct.pack(">i", len(body)) + body,
            struct.pack(">B" if version == 1 else ">H", len(topic)) + topic,
            struct.pack(">H", len(properties)) + properties,
        )
    )
    crc = zlib.crc32(body) & 0x7FFFFFFF if crc is None else crc
    magic = MAGIC_V1 if version == 1 else MAGIC_V2
    return struct.pack(">iIi", 12 + len(behind), magic, crc) + behind


@dataclass(slots=True)
class Log:
    """A log of files of one size, made as a broker makes it.

    Attributes:
        remains: makes so many bytes for behind a blank, from a place on: undefined bytes in life.
        positions: of the records.
    """

    file_size: int
    remains: Callable[[int, int], bytes] = field(default=lambda place, room: bytes(room))
    data: bytearray = field(default_factory=bytearray)
    positions: list[int] = field(default_factory=list)

    def add(self, make: Callable[[int], bytes]) -> None:
        """Append a record; `make` gets its place. One that does not fit ends the file."""
        room = self.file_size - len(self.data) % self.file_size
        if len(make(0)) + 8 > room:
            self.data += struct.pack(">iI", room, BLANK_MAGIC) + self.remains(len(self.data) + 8, room - 8)
        self.positions.append(len(self.data))
        self.data += make(len(self.data))

    @property
    def end(self) -> int:
        """Where the log ends."""
        return len(self.data)

    def sizes(self) -> list[int]:
        """How long each record is."""
        return [struct.unpack_from(">i", self.data, position)[0] for position in self.positions]


def ghosts(place: int, room: int) -> bytes:
    """Fill the room behind a blank with the rest of an older log, whose records name their places rightly.

    That is what a cut log leaves when it is gone on with.
    """
    filled = b"\0" * min(5, room)
    while len(filled) + 110 < room:
        filled += record(place + len(filled), topic=b"ghost", body=b"", properties=b"TAGS\x01g")
    left = room - len(filled)
    if left < 8:
        return filled + bytes(left)
    return filled + struct.pack(">iI", left, BLANK_MAGIC) + bytes(left - 8)


def reader(data: bytes, file_size: int) -> Callable[[int, int], bytes]:
    """Give what reads a log's bytes as `Segments.read` does: not beyond the end of a file."""

    def read(offset: int, length: int) -> bytes:
        return bytes(data[offset : min(offset + length, offset - offset % file_size + file_size)])

    return read


def borders(data: bytes, file_size: int) -> Callable[[int], str]:
    """Give what says by plain means what stands at an offset: `record`, `blank` or "" for neither."""

    def kind(at: int) -> str:
        file_end = min(len(data), at - at % file_size + file_size)
        if file_end - at < 8:
            return ""
        size, magic = struct.unpack_from(">iI", data, at)
        if magic == BLANK_MAGIC:
            return "blank"
        if magic not in (MAGIC_V1, MAGIC_V2) or not 91 <= size <= file_end - at:
            return ""
        return "" if record_fault(bytes(data[at : at + size]), 0, at, check_crc=False) else "record"

    return kind


def plain_positions(data: bytes, file_size: int) -> tuple[list[int], list[int]]:
    """Return where records stand, and where they should but do not, by trying every byte."""
    kind = borders(data, file_size)
    found: list[int] = []
    faults: list[int] = []
    at = 0
    while at < len(data):
        file_end = at - at % file_size + file_size
        match kind(at):
            case "record":
                found.append(at)
                at += struct.unpack_from(">i", data, at)[0]
            case "blank":
                at = file_end
            case _:
                faults.append(at)
                at += 1
                while at < min(file_end, len(data)) and not stands(data, at, file_end, kind(at)):
                    at += 1
    return found, faults


def stands(data: bytes, at: int, file_end: int, kind: str) -> bool:
    """Tell whether reading can begin here: a blank has to tell its size rightly then."""
    return kind == "record" or (kind == "blank" and struct.unpack_from(">i", data, at)[0] == file_end - at)


def inflated(body: bytes, sys_flag: int) -> bytes:
    """Decompress a zlib body by plain means."""
    return zlib.decompress(body, 47) if sys_flag & 1 and body else body


def microseconds(value: int) -> int | None:
    """Return milliseconds as microseconds, None beyond 64 bits."""
    return value * 1000 if abs(value) <= US_MAX_MS else None


def expected_row(message: StoredMessage, *, broker_name: str = "", body: bytes | None = None) -> Row:
    """Return what a table shows of a record; `body` when it is not the stored one."""
    pairs = message.properties
    plain = inflated(message.body, message.sys_flag) if body is None else body
    keys, stored = pairs.get("KEYS"), microseconds(message.store_timestamp)
    return {
        "topic": message.topic,
        "brokerName": broker_name,
        "queueId": message.queue_id,
        "queueOffset": message.queue_offset,
        "physicalOffset": message.physical_offset,
        "size": message.size,
        "msgId": pairs.get("UNIQ_KEY") or message.offset_message_id,
        "tags": pairs.get("TAGS"),
        "keys": keys,
        "body": plain,
        "bornTimestamp": microseconds(message.born_timestamp),
        "storeTimestamp": stored,
        "bornHost": message.born_host,
        "storeHost": message.store_host,
        "reconsumeTimes": message.reconsume_times,
        "flag": message.flag,
        "sysFlag": message.sys_flag,
        "preparedTransactionOffset": message.prepared_offset,
        "properties": pairs,
        "bodyCrc": message.body_crc,
        "crcOk": zlib.crc32(message.body) & 0x7FFFFFFF == message.body_crc & 0x7FFFFFFF,
        "bodyOk": zlib.crc32(message.body) & 0x7FFFFFFF == message.body_crc & 0x7FFFFFFF,
        "propertiesText": message.properties_raw,
        "type": kind_of(message.topic, pairs),
        "key": None if keys is None else keys.encode(),
        "value": plain,
        "partition": message.queue_id,
        "offset": message.queue_offset,
        "timestamp": stored,
        "timestampType": 1,
        "headers": {name: value.encode() for name, value in pairs.items()} or None,
    }


SYSTEM = {
    "RMQ_SYS_TRANS_HALF_TOPIC": "HALF",
    "RMQ_SYS_TRANS_OP_HALF_TOPIC": "OP",
    "TRANS_CHECK_MAX_TIME_TOPIC": "UNDECIDED",
    "rmq_sys_wheel_timer": "TIMER",
    "SCHEDULE_TOPIC_XXXX": "SCHEDULE",
}


def kind_of(topic: str, properties: dict[str, str]) -> str:
    """Return what kind of message a record is."""
    if topic in SYSTEM:
        return SYSTEM[topic]
    for prefix, kind in (("rmq_sys_REVIVE_LOG_", "POP"), ("%RETRY%", "RETRY"), ("%DLQ%", "DEAD_LETTER")):
        if topic.startswith(prefix):
            return kind
    if "TRAN_MSG" in properties:
        return "TRANSACTION"
    if {"DELAY", "TIMER_DELIVER_MS", "TIMER_DELAY_MS", "TIMER_DELAY_SEC"} & set(properties):
        return "DELAY"
    if "__SHARDINGKEY" in properties:
        return "FIFO"
    return "PRIORITY" if "_SYS_MSG_PRIORITY_" in properties else "NORMAL"


def joined(records: Iterable[bytes]) -> tuple[bytes, list[int]]:
    """Put records side by side; return the bytes and their positions."""
    data, positions = bytearray(), []
    for one in records:
        positions.append(len(data))
        data += one
    return bytes(data), positions


def plain(data: bytes, positions: Iterable[int]) -> Iterator[StoredMessage]:
    """Decode records one by one."""
    for position in positions:
        try:
            yield decode_record(data, position, check_crc=False)
        except CorruptRecord as error:
            raise AssertionError(f"the test's own record at {position} does not decode") from error


def table_rows(batches: Iterable[Any]) -> list[Row]:
    """Return the rows of record batches as plain values; times as microseconds, pairs as a dict."""
    rows: list[Row] = []
    for batch in batches:
        batch.validate(full=True)
        columns = {name: values_of(batch.column(name)) for name in batch.schema.names}
        rows += [dict(zip(columns, values, strict=True)) for values in zip(*columns.values(), strict=True)]
    return rows


def values_of(column: Any) -> list[Any]:
    """Return a column as plain values."""
    kind = str(column.type)
    if kind.startswith("timestamp"):
        return list(column.cast("int64").to_pylist())
    values = column.to_pylist()
    if kind.startswith("map"):
        assert all(len(dict(value)) == len(value) for value in values), "a name stands twice in a map"
        return [dict(value) for value in values]
    if kind.startswith("list"):
        return [value and {entry["key"]: entry["value"] for entry in value} for value in values]
    return list(values)
