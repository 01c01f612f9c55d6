"""The record of the commitlog and the entry of the consume queue, as bytes: encode, decode, hash.

Pure: no files, no clock. All integers are big-endian. B and S are the lengths of the hosts, 8 for IPv4 and 20
for IPv6.

    0       i32  size of the whole record         48      B    born host: address, then the port as i32
    4       u32  magic                            48+B    i64  store timestamp, ms
    8       i32  CRC-32 of the body, top bit off  56+B    S    store host
    12      i32  queue id                         56+B+S  i32  reconsume times
    16      i32  flag                             60+B+S  i64  prepared transaction offset
    20      i64  queue offset                     68+B+S  i32  body length, then the body
    28      i64  physical offset                  ...     u8   topic length (V2: u16), then the topic
    36      i32  system flag                      ...     u16  properties length, then the properties
    40      i64  born timestamp, ms

A blank ends a file that has no room for the next record: i32 bytes left, u32 magic, then undefined bytes.
Every finished file ends with one, so a record fits only when 8 bytes are left behind it.

An entry of a consume queue (RocketMQ: CqUnit; `unit` in names) is i64 physical offset, i32 size, i64 tags
code (Java hash of the tag, sign-extended).

Properties are text: `name 0x01 value 0x02 name 0x01 value`, with or without a final 0x02.

The CRC in the head is of the body alone. A record may also be **sealed** (RocketMQ 5.x with
enabledAppendPropCRC): the last 20 bytes of its properties are `__CRC32# 0x01`, ten decimal digits, the lowest
first, and 0x02. They are the CRC-32 of the record without these 20 bytes, top bit off. Whoever reads a sealed
record checks it. One wrong byte in the fixed part of a seal does not unseal a record: it is damaged.

RocketMQ: CommitLog.MessageExtEncoder.encode, MessageDecoder.decode, MessageDecoder.createCrc32, ConsumeQueue.
"""

import ipaddress
import struct
import zlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import accumulate, repeat
from operator import eq, mul
from typing import TYPE_CHECKING, NamedTuple

from whimbrel.errors import CorruptRecord, IllegalTopic, PropertiesTooLarge
from whimbrel.model.properties import DELAY, KEYS, TAGS, UNIQ_KEY

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer

__all__ = [
    "BLANK_MAGIC",
    "BLANK_SIZE_MIN",
    "BODY_LENGTHS",
    "BORN_V6",
    "COMPRESSED",
    "COMPRESSION_BITS",
    "COMPRESSOR_MASK",
    "COMPRESSOR_SHIFT",
    "CRC_MASK",
    "FILLER_SIZE",
    "HEAD_SIZES",
    "HOST_V4_SIZE",
    "HOST_V6_SIZE",
    "IDENTITY",
    "MAGIC_V1",
    "MAGIC_V2",
    "PHYSICAL_OFFSET",
    "PREFIX",
    "PROPERTIES_BYTES_MAX",
    "QUEUED_FIELDS_V4",
    "RAW_DELAY",
    "RAW_KEYS",
    "RAW_TAGS",
    "RAW_UNIQ_KEY",
    "RECORD_BYTES_MAX",
    "RECORD_BYTES_MIN",
    "RECORD_MAGICS",
    "SEAL_BEGIN",
    "SEAL_REST",
    "SEAL_SIZE",
    "SIZE_AND_MAGIC",
    "STORE_TIMES",
    "STORE_V6",
    "SYS_FLAG",
    "TRANSACTION_COMMIT",
    "TRANSACTION_MASK",
    "TRANSACTION_PREPARED",
    "TRANSACTION_ROLLBACK",
    "U16",
    "UNIT",
    "UNIT_SIZE",
    "V6_MASK",
    "RecordDraft",
    "StoredMessage",
    "decode_record",
    "encode_record",
    "encode_sealed",
    "format_properties",
    "index_key_hash",
    "index_key_hashes",
    "java_hash",
    "keys_of",
    "offset_message_id",
    "pack_host",
    "parse_properties",
    "property_of",
    "record_fault",
    "record_size",
    "seal_fault",
    "store_time_of",
    "tag_key",
    "tag_keys_of",
    "tags_code",
    "topic_and_properties",
    "topic_field",
    "unpack_host",
    "without_seal",
]

MAGIC_V1 = 0xDAA320A7
MAGIC_V2 = 0xDAA320AB  # topics of more than 127 bytes (RocketMQ 5.x); read, never written
RECORD_MAGICS = (MAGIC_V1, MAGIC_V2)
BLANK_MAGIC = 0xCBD43194
BLANK_SIZE_MIN = 8

UNIT = struct.Struct(">qiq")
UNIT_SIZE = UNIT.size
FILLER_SIZE = 0x7FFFFFFF  # size field of an entry that stands for nothing; its physical offset is 0

# Bits of the system flag.
COMPRESSED = 0x01  # the body
COMPRESSOR_SHIFT, COMPRESSOR_MASK = 8, 0x7  # RocketMQ: CompressionType
COMPRESSION_BITS = COMPRESSED | COMPRESSOR_MASK << COMPRESSOR_SHIFT
BORN_V6 = 0x10
STORE_V6 = 0x20
V6_MASK = BORN_V6 | STORE_V6
TRANSACTION_MASK = 0x0C
TRANSACTION_PREPARED = 0x04
TRANSACTION_COMMIT = 0x08
TRANSACTION_ROLLBACK = 0x0C

TOPIC_BYTES_MAX = 127
PROPERTIES_BYTES_MAX = 32767
# Readers of a whole log (`columns/scan.py`) take a larger size for damage. The largest body that a client may
# send makes a record of 4 MiB and a little; in RocketMQ that limit can be raised.
RECORD_BYTES_MAX = 16 * 1024 * 1024
HOST_V4_SIZE, HOST_V6_SIZE = 8, 20
CRC_MASK = 0x7FFFFFFF

HEAD_V4 = struct.Struct(">iIiiiqqiq8sq8siqi")
HEADS = {
    bits: struct.Struct(
        f">iIiiiqqiq{HOST_V6_SIZE if bits & BORN_V6 else HOST_V4_SIZE}s"
        f"q{HOST_V6_SIZE if bits & STORE_V6 else HOST_V4_SIZE}siqi"
    )
    for bits in (0, BORN_V6, STORE_V6, V6_MASK)
}
HEAD_SIZES = {bits: head.size for bits, head in HEADS.items()}
RECORD_BYTES_MIN = HEAD_V4.size + 3  # no body, no topic, no properties

# Single fields, counted from the begin of a record. Where a field's place depends on the hosts, there is one
# struct for each value of the system flag's V6_MASK bits.
SIZE_AND_MAGIC = struct.Struct(">iI")  # of a blank, too
PREFIX = struct.Struct(">iI28xi")  # size, magic, system flag
CRC = struct.Struct(">8xi")
IDENTITY = struct.Struct(">iI20xq")  # size, magic, physical offset
PHYSICAL_OFFSET = struct.Struct(">28xq")
SYS_FLAG = struct.Struct(">36xi")
STORE_TIMES = {
    bits: struct.Struct(f">{48 + (HOST_V6_SIZE if bits & BORN_V6 else HOST_V4_SIZE)}xq") for bits in HEADS
}
BODY_LENGTHS = {bits: struct.Struct(f">{size - 4}xi") for bits, size in HEAD_SIZES.items()}
PLACE_AND_BODY = {bits: struct.Struct(f">28xq{size - 40}xi") for bits, size in HEAD_SIZES.items()}
# Of a record with IPv4 hosts, what makes its queue entry: size, magic, queue id, queue offset, physical
# offset, system flag, body length.
QUEUED_FIELDS_V4 = struct.Struct(">iI4xi4xqqi44xi")
U16 = struct.Struct(">H")

SEAL_START, SEAL_END = b"__CRC32#\x01", 0x02
SEAL_DIGITS = 10
SEAL_SIZE = len(SEAL_START) + SEAL_DIGITS + 1
SEAL_BEGIN, SEAL_REST = SEAL_START[:4], SEAL_START[4:8]  # one wrong bit leaves one of them
# A sector of a page that did not reach the disk reads as zeros. Where no CRC covers it, as in properties, so
# many of them in a row are taken for that.
HOLE_SIZE = 512
HOLE = bytes(HOLE_SIZE)

PRINTABLE_TOPICS_MAX = 4096
printable_topics: set[bytes] = (
    set()
)  # those that recovery has met: few, and asking costs more than looking up

# Names as they stand in a property text.
RAW_UNIQ_KEY, RAW_KEYS, RAW_TAGS, RAW_DELAY = (
    UNIQ_KEY.encode(),
    KEYS.encode(),
    TAGS.encode(),
    DELAY.encode(),
)


@dataclass(slots=True)
class RecordDraft:
    """A record before the log has given it its place: all but physical offset, queue offset and store time.

    Attributes:
        properties: the raw text, stored as it is.
        born_host, store_host: as `pack_host` makes them.
        tags_code: for the consume-queue entry, see `from_properties`.
        keys: for the index, in its order: the unique id, then the words of KEYS.
    """

    topic: str
    queue_id: int
    body: bytes
    properties: bytes
    born_timestamp: int
    born_host: bytes
    store_host: bytes
    flag: int = 0
    sys_flag: int = 0
    reconsume_times: int = 0
    prepared_offset: int = 0
    tags_code: int = 0
    keys: tuple[str, ...] = ()

    @classmethod
    def from_properties(
        cls,
        *,
        topic: str,
        queue_id: int,
        body: bytes,
        properties: bytes,
        born_timestamp: int,
        born_host: bytes,
        store_host: bytes,
        flag: int = 0,
        sys_flag: int = 0,
        reconsume_times: int = 0,
        prepared_offset: int = 0,
    ) -> "RecordDraft":
        """Make a draft with the tags code and the keys of its property text, without the seal of the record
        that the text came from."""
        if SEAL_START in properties:
            properties = without_seal(properties)
        return cls(
            topic,
            queue_id,
            body,
            properties,
            born_timestamp,
            born_host,
            store_host,
            flag,
            sys_flag,
            reconsume_times,
            prepared_offset,
            tag_bytes_code(property_of(properties, RAW_TAGS)),
            keys_of(properties),
        )


@dataclass(slots=True)
class StoredMessage:
    """A decoded record. Nothing changes it after `decode_record`; freezing it would double its cost."""

    physical_offset: int
    size: int
    magic: int
    body_crc: int
    queue_id: int
    flag: int
    queue_offset: int
    sys_flag: int
    born_timestamp: int
    born_host: str
    store_timestamp: int
    store_host: str
    reconsume_times: int
    prepared_offset: int
    body: bytes
    topic: str
    properties_raw: bytes
    store_host_raw: bytes = field(repr=False)
    parsed: dict[str, str] | None = field(default=None, init=False, repr=False, compare=False)

    @property
    def properties(self) -> dict[str, str]:
        """The parsed property text; the same dict at every call, not to be changed."""
        if self.parsed is None:
            self.parsed = parse_properties(self.properties_raw)
        return self.parsed

    @property
    def offset_message_id(self) -> str:
        """The id by which RocketMQ's tools find a record."""
        return offset_message_id(self.store_host_raw, self.physical_offset)


class RecordHead(NamedTuple):
    """The fixed fields, in the order of the bytes."""

    size: int
    magic: int
    body_crc: int
    queue_id: int
    flag: int
    queue_offset: int
    physical_offset: int
    sys_flag: int
    born_timestamp: int
    born_host: bytes
    store_timestamp: int
    store_host: bytes
    reconsume_times: int
    prepared_offset: int
    body_length: int


@lru_cache(maxsize=4096)
def topic_field(topic: str) -> bytes:
    """Return the topic with its length byte before it, as V1 records store it."""
    data = topic.encode()
    if not 0 < len(data) <= TOPIC_BYTES_MAX:
        raise IllegalTopic(f"a topic has 1 to {TOPIC_BYTES_MAX} bytes, this one {len(data)}")
    return bytes((len(data),)) + data


def record_size(draft: RecordDraft) -> int:
    """Return the size of the record that `encode_record` will make of a draft."""
    return (
        74
        + len(draft.born_host)
        + len(draft.store_host)
        + len(topic_field(draft.topic))
        + len(draft.body)
        + len(draft.properties)
    )


def encode_record(draft: RecordDraft, physical_offset: int, queue_offset: int, store_timestamp: int) -> bytes:
    """Return the record's bytes.

    Raises:
        PropertiesTooLarge: the property text has more than 32767 bytes.
        IllegalTopic: the topic has no or more than 127 bytes.
    """
    body = draft.body
    properties = draft.properties
    born_host = draft.born_host
    store_host = draft.store_host
    topic = topic_field(draft.topic)
    body_length = len(body)
    properties_length = len(properties)
    if properties_length > PROPERTIES_BYTES_MAX:
        raise PropertiesTooLarge(
            f"{properties_length} bytes of properties, {PROPERTIES_BYTES_MAX} can be stored"
        )
    hosts_length = len(born_host) + len(store_host)
    sys_flag = draft.sys_flag
    if hosts_length == 2 * HOST_V4_SIZE:
        head, sys_flag = HEAD_V4, sys_flag & ~V6_MASK
    else:
        bits = BORN_V6 if len(born_host) == HOST_V6_SIZE else 0
        if len(store_host) == HOST_V6_SIZE:
            bits |= STORE_V6
        head, sys_flag = HEADS[bits], sys_flag & ~V6_MASK | bits
    return (
        head.pack(
            74 + hosts_length + len(topic) + body_length + properties_length,
            MAGIC_V1,
            zlib.crc32(body) & CRC_MASK,
            draft.queue_id,
            draft.flag,
            queue_offset,
            physical_offset,
            sys_flag,
            draft.born_timestamp,
            born_host,
            store_timestamp,
            store_host,
            draft.reconsume_times,
            draft.prepared_offset,
            body_length,
        )
        + body
        + topic
        + U16.pack(properties_length)
        + properties
    )


def encode_sealed(draft: RecordDraft, physical_offset: int, queue_offset: int, store_timestamp: int) -> bytes:
    """Return the bytes of the record with a seal.

    Raises:
        PropertiesTooLarge, IllegalTopic: as in `encode_record`; the seal counts.
    """
    text = draft.properties
    joint = b"\x02" if text and text[-1] != SEAL_END else b""
    draft.properties = text + joint + bytes(SEAL_SIZE)
    try:
        record = encode_record(draft, physical_offset, queue_offset, store_timestamp)[:-SEAL_SIZE]
    finally:
        draft.properties = text
    return record + seal_of(record)


def seal_of(record: "ReadableBuffer") -> bytes:
    """Return the seal of a record, given all of it but the seal."""
    digits = f"{zlib.crc32(record) & CRC_MASK:010d}"[::-1]
    return SEAL_START + digits.encode() + b"\x02"


def seal_fault(data: "ReadableBuffer", at: int, end: int) -> str:
    """Return what is wrong with the seal of the record [at, end), "" for nothing, also when it has none."""
    view = memoryview(data)
    found = bytes(view[end - SEAL_SIZE : end])
    fixed = found[: len(SEAL_START)] + found[-1:]
    same = sum(map(eq, fixed, SEAL_START + b"\x02"))
    if same < len(fixed) - 1:
        return ""  # its properties end in something else
    if found != seal_of(view[at : end - SEAL_SIZE]):
        return "it does not match its CRC"
    return ""


def without_seal(properties: bytes) -> bytes:
    """Return a property text without the seal of the record that it came from."""
    pairs = properties.split(b"\x02")
    return b"\x02".join([pair for pair in pairs if not pair.startswith(SEAL_START)])


def decode_record(buffer: "ReadableBuffer", offset: int = 0, *, check_crc: bool = True) -> StoredMessage:
    """Decode the record that starts at `offset` of `buffer`.

    Raises:
        CorruptRecord: the bytes are not a whole record: wrong magic (a blank too), lengths that do not add
            up, a body or a sealed record that does not match its CRC, or too few bytes.
    """
    view = memoryview(buffer)
    try:
        size, magic, sys_flag = PREFIX.unpack_from(view, offset)
        if magic != MAGIC_V1 and magic != MAGIC_V2:
            raise CorruptRecord(f"magic {magic:#010x} at {offset}")
        head_struct = HEADS[sys_flag & V6_MASK]
        head = RecordHead._make(head_struct.unpack_from(view, offset))
        body_start = offset + head_struct.size
        body_end = body_start + head.body_length
        if head.body_length < 0 or size < head_struct.size:
            raise CorruptRecord(f"size {size}, body length {head.body_length} at {offset}")
        if magic == MAGIC_V1:
            topic_start, topic_length = body_end + 1, view[body_end]
        else:
            topic_start, topic_length = body_end + 2, U16.unpack_from(view, body_end)[0]
        topic_end = topic_start + topic_length
        properties_length = U16.unpack_from(view, topic_end)[0]
    except (struct.error, IndexError) as error:
        raise CorruptRecord(f"the record at {offset} is cut off") from error
    end = topic_end + 2 + properties_length
    if end != offset + size:
        raise CorruptRecord(f"the record at {offset} has {end - offset} bytes, its size says {size}")
    if end > len(view):
        raise CorruptRecord(f"the record at {offset} is cut off")
    body = bytes(view[body_start:body_end])
    properties = bytes(view[topic_end + 2 : end])
    if check_crc:
        if zlib.crc32(body) & CRC_MASK != head.body_crc & CRC_MASK:
            raise CorruptRecord(f"the body of the record at {offset} does not match its CRC")
        if properties_length >= SEAL_SIZE and (
            properties.startswith(SEAL_BEGIN, -SEAL_SIZE)
            or properties.startswith(SEAL_REST, len(SEAL_BEGIN) - SEAL_SIZE)
        ):
            fault = seal_fault(view, offset, end)
            if fault:
                raise CorruptRecord(f"the record at {offset}: {fault}")
    return StoredMessage(
        head.physical_offset,
        size,
        magic,
        head.body_crc,
        head.queue_id,
        head.flag,
        head.queue_offset,
        sys_flag,
        head.born_timestamp,
        unpack_host(head.born_host),
        head.store_timestamp,
        unpack_host(head.store_host),
        head.reconsume_times,
        head.prepared_offset,
        body,
        str(view[topic_start:topic_end], "utf-8", "replace"),
        properties,
        head.store_host,
    )


def record_fault(chunk: bytes, at: int, physical_offset: int, *, check_crc: bool = True) -> str:
    """Return what is wrong with the record at `at` of a chunk that holds at least its `size` bytes, "" for
    nothing.

    The caller has checked magic and size (`PREFIX`). Checked here: that the parts add up to the size, and
    that the record's own offset is `physical_offset`; with `check_crc` also that the body matches its CRC,
    and all of the record its seal if it has one, that the topic is text without control characters, and that
    the properties have no hole.
    """
    size, magic, sys_flag = PREFIX.unpack_from(chunk, at)
    head_size = HEAD_SIZES[sys_flag & V6_MASK]
    if size < head_size + 4:
        return f"size {size}"
    place, body_length = PLACE_AND_BODY[sys_flag & V6_MASK].unpack_from(chunk, at)
    body_end = at + head_size + body_length
    end = at + size
    if body_length < 0 or body_end + 4 > end:
        return f"body length {body_length} in a record of {size} bytes"
    if magic == MAGIC_V1:
        topic_at = body_end + 1
        topic_end = topic_at + chunk[body_end]
    else:
        topic_at = body_end + 2
        topic_end = topic_at + (chunk[body_end] << 8) + chunk[body_end + 1]
    if topic_end + 2 > end or topic_end + 2 + (chunk[topic_end] << 8) + chunk[topic_end + 1] != end:
        return f"its parts do not make up its size {size}"
    if place != physical_offset:
        return f"it says that it stands at {place}"
    if check_crc:
        topic = chunk[topic_at:topic_end]
        if topic not in printable_topics and not printable(topic):
            return "its topic is none"
        (stored,) = CRC.unpack_from(chunk, at)
        if zlib.crc32(memoryview(chunk)[at + head_size : body_end]) & CRC_MASK != stored & CRC_MASK:
            return "its body does not match its CRC"
        seal_at = end - SEAL_SIZE
        if chunk.startswith(SEAL_BEGIN, seal_at) or chunk.startswith(SEAL_REST, seal_at + len(SEAL_BEGIN)):
            if seal_at >= topic_end + 2 and (fault := seal_fault(chunk, at, end)):
                return fault
        if end - topic_end > HOLE_SIZE and chunk.find(HOLE, topic_end + 2, end) >= 0:
            return "its properties have a hole of zeros"
    return ""


def printable(topic: bytes) -> bool:
    """Return whether a topic is text that can be printed. RocketMQ admits letters, digits and `%|_-`."""
    try:
        good = topic.decode().isprintable()
    except UnicodeDecodeError:
        return False
    if good and len(printable_topics) < PRINTABLE_TOPICS_MAX:
        printable_topics.add(topic)
    return good


def topic_and_properties(data: bytes, at: int) -> tuple[bytes, bytes]:
    """Return topic and property text of a whole record that stands at `at`.

    Raises:
        CorruptRecord: its parts go beyond its size.
    """
    size, magic, sys_flag = PREFIX.unpack_from(data, at)
    bits, end = sys_flag & V6_MASK, at + size
    body_at = at + HEAD_SIZES[bits]
    length_size = 1 if magic == MAGIC_V1 else 2  # of the topic's length
    body_length = BODY_LENGTHS[bits].unpack_from(data, at)[0] if body_at <= end else -1
    topic_at = body_at + body_length + length_size
    if body_length >= 0 and topic_at <= end:
        topic_end = topic_at + int.from_bytes(data[topic_at - length_size : topic_at], "big")
        if topic_end + 2 <= end:
            return data[topic_at:topic_end], data[topic_end + 2 : end]
    raise CorruptRecord(f"its parts do not make up its size {size}")


def store_time_of(record: bytes) -> int:
    """Return the store time of a whole record, epoch ms."""
    _, _, sys_flag = PREFIX.unpack_from(record)
    (stored_ms,) = STORE_TIMES[sys_flag & V6_MASK].unpack_from(record)
    return int(stored_ms)


def parse_properties(raw: bytes) -> dict[str, str]:
    """Parse property text. The last of several equal names wins; pairs without name or value are ignored."""
    found = {}
    for pair in raw.decode("utf-8", "replace").split("\x02"):
        name, separator, value = pair.partition("\x01")
        if separator and name and value:
            found[name] = value
    return found


def format_properties(pairs: Iterable[tuple[str, str]]) -> bytes:
    """Format property text as RocketMQ 4.9.3 does, without a final 0x02."""
    return "\x02".join([f"{name}\x01{value}" for name, value in pairs]).encode()


def property_of(raw: bytes, name: bytes) -> bytes:
    """Return one value of a property text without parsing the rest; empty when it is missing."""
    found = b""
    start = raw.find(name + b"\x01")
    while start >= 0:
        value_start = start + len(name) + 1
        end = raw.find(b"\x02", value_start)
        if end < 0:
            end = len(raw)
        if end > value_start and (start == 0 or raw[start - 1] == 2):
            found = raw[value_start:end]
        start = raw.find(name + b"\x01", end)
    return found


def keys_of(raw: bytes, *, tags: bool = False) -> tuple[str, ...]:
    """Return the keys that the index has of a property text: UNIQ_KEY, then every word of KEYS, then, if tags
    are keys as well, the tag's."""
    if tags:
        return keys_of(raw) + tag_keys_of(raw)
    unique = property_of(raw, RAW_UNIQ_KEY)
    words = property_of(raw, RAW_KEYS)
    if words:
        keys = [word.decode("utf-8", "replace") for word in words.split(b" ") if word]
        if unique:
            keys.insert(0, unique.decode("utf-8", "replace"))
        return tuple(keys)
    return (unique.decode("utf-8", "replace"),) if unique else ()


def tag_keys_of(raw: bytes) -> tuple[str, ...]:
    """Return the key that RocketMQ's index has of a tag since 5.4, if there is a tag."""
    tag = property_of(raw, RAW_TAGS)
    return (tag_key(tag.decode("utf-8", "replace")),) if tag else ()


def tag_key(tag: str) -> str:
    """Return the key under which an index has a tag."""
    return f"T#{tag}"


# Powers of 31 modulo 2**32: a hash is then one sum of products, which C does faster than a Python loop.
HASH_UNITS_MAX = 256
POWERS = tuple(accumulate(repeat(31, HASH_UNITS_MAX), lambda power, base: power * base % 2**32, initial=1))


@lru_cache(maxsize=1024)
def powers(count: int) -> tuple[int, ...]:
    """Return 31**(count - 1), ..., 31, 1."""
    return POWERS[count - 1 :: -1] if count else ()


def hash_units(text: str) -> bytes | tuple[int, ...]:
    """Return the UTF-16 code units of a text, which is what Java hashes."""
    if text.isascii():
        return text.encode()
    data = text.encode("utf-16-be", "surrogatepass")
    return struct.unpack(f">{len(data) // 2}H", data)


def unsigned_hash(text: str, start: int = 0) -> int:
    """Return Java's String.hashCode modulo 2**32, going on from the hash of what stands before `text`."""
    units = hash_units(text)
    count = len(units)
    if count <= HASH_UNITS_MAX:
        total: int = (sum(map(mul, units, powers(count))) + start * POWERS[count]) & 0xFFFFFFFF
        return total
    for unit in units:
        start = start * 31 + unit & 0xFFFFFFFF
    return start


def signed(value: int) -> int:
    """Read an unsigned 32-bit number as a signed one."""
    return value - 0x100000000 if value >= 0x80000000 else value


def java_hash(text: str) -> int:
    """Return Java's `String.hashCode`."""
    return signed(unsigned_hash(text))


@lru_cache(maxsize=16384)
def tags_code(tags: str | None) -> int:
    """Return the tags code of a TAGS property, 0 for none."""
    return java_hash(tags) if tags else 0


@lru_cache(maxsize=16384)
def tag_bytes_code(tags: bytes) -> int:
    """Return the tags code of a tag as it stands in the property text."""
    return java_hash(tags.decode("utf-8", "replace")) if tags else 0


@lru_cache(maxsize=4096)
def prefix_hash(topic: str) -> int:
    """Return the hash of the part of an index key that stands before the key of the message."""
    return unsigned_hash(topic + "#")


def index_key_hash(topic: str, key: str) -> int:
    """Return the hash under which the index files a key: the absolute value of the hash of `topic#key`."""
    return positive(unsigned_hash(key, prefix_hash(topic)))


def positive(value: int) -> int:
    """Return the absolute value of an unsigned 32-bit number read as signed, 0 where Java's overflows."""
    if value < 0x80000000:
        return value
    return 0x100000000 - value & 0x7FFFFFFF


# Many hashes at once: the texts stand side by side in one large integer, each in a lane of LANE_BYTES with
# zeros in front, which do not change a hash. Each step makes of two neighbouring digits one of twice the
# width: high * 31**n + low, for all lanes with one multiplication. Up to 64 bits nothing overflows; from
# there on digits are cut to 32 bits first, which is all that a hash keeps. A key takes less than half the
# time of a single hash.
LANE_BYTES = 64
LANES = 32
LANES_WORTH_IT = 8  # fewer are faster one by one


def digits_mask(digit_bits: int, kept_bits: int) -> int:
    """Return ones in the low `kept_bits` of every second digit of all lanes."""
    pattern = ((1 << kept_bits) - 1).to_bytes(digit_bits // 4, "big")
    return int.from_bytes(pattern * (LANE_BYTES * LANES // len(pattern)), "big")


# (shift to the higher digit, mask, factor)
LANE_STEPS = tuple(
    (bits, digits_mask(bits, min(bits, 32)), pow(31, bits // 8, 2**32)) for bits in (8, 16, 32, 64, 128, 256)
)
LANE_RESULTS = struct.Struct(">" + f"{LANE_BYTES - 4}xI" * LANES)


def index_key_hashes(pairs: Sequence[tuple[str, str]]) -> list[int]:
    """Return `index_key_hash` of each (topic, key)."""
    if len(pairs) < LANES_WORTH_IT:
        return [index_key_hash(topic, key) for topic, key in pairs]
    hashes: list[int] = []
    for first in range(0, len(pairs), LANES):
        some = pairs[first : first + LANES]
        lanes = "".join([f"{topic}#{key}".rjust(LANE_BYTES, "\0") for topic, key in some])
        if len(lanes) != LANE_BYTES * len(some) or not lanes.isascii():
            hashes += [index_key_hash(topic, key) for topic, key in some]
            continue
        digits = int.from_bytes(lanes.encode(), "big")
        for shift, mask, factor in LANE_STEPS:
            digits = (digits >> shift & mask) * factor + (digits & mask)
        found = LANE_RESULTS.unpack(digits.to_bytes(LANE_BYTES * LANES, "big"))
        hashes += [positive(value) for value in found[LANES - len(some) :]]
    return hashes


@lru_cache(maxsize=4096)
def pack_host(host: str, port: int) -> bytes:
    """Pack a numeric address and a port: 8 bytes for IPv4, 20 for IPv6.

    Raises:
        ValueError: `host` is not a numeric address.
    """
    return ipaddress.ip_address(host.strip("[]")).packed + port.to_bytes(4, "big")


@lru_cache(maxsize=4096)
def unpack_host(data: bytes) -> str:
    """Return `ip:port`, `[ip]:port` for IPv6 (written as Java does, without shortening)."""
    port = int.from_bytes(data[-4:], "big", signed=True)
    if len(data) == HOST_V4_SIZE:
        return f"{data[0]}.{data[1]}.{data[2]}.{data[3]}:{port}"
    groups = ":".join(f"{group:x}" for group in struct.unpack(">8H", data[:16]))
    return f"[{groups}]:{port}"


def offset_message_id(store_host: bytes, physical_offset: int) -> str:
    """Return the id made of a packed store host and a physical offset: 32 or 56 hex digits."""
    return (store_host + physical_offset.to_bytes(8, "big", signed=True)).hex().upper()
