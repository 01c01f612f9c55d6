"""Header blocks (RFC 7541): a decoder with a table that the peer fills, an encoder without one. Pure.

A field is `(name, value, coded)`. A coded value is still in Huffman's code, and `value_of` decodes it on
demand: of the dozen fields of a call, a server reads three. A field that the peer names by its number in a
table costs a look-up.

    1xxxxxxx  a field of the tables                    decoded already
    01xxxxxx  a field that goes into the table         its value is decoded, as the table counts its length
    001xxxxx  the table's size changes                 at the begin of a block only, at most `table_bytes_max`
    000nxxxx  a field that does not                    its value stays as it came

Nearly every client sends an id of its own with each call, so no two blocks are equal; but those of one client
and method differ in a field or two only. A `Shape` is the constant part: the bytes between the values that
vary. A block of a known shape is compared with these bytes and the values are cut out, which is several times
as fast as decoding field by field. What the constant fields mean is worked out once a shape (`memo`). Clients
that put each id into the table (Go's, Java's) change with each block what the bytes of the next one mean:
their blocks have no shape.

A peer can make this hold: the table, one block's list, and `SHAPES_MAX` shapes of `SHAPE_BYTES_MAX`.

The encoder writes what a gRPC peer sends: fields of the static table by number, others in full, never into
the peer's table. So it has no state, and its blocks can be made once for all connections.
"""

from collections.abc import Iterable
from typing import Any

from whimbrel.rpc.http2.huffman import HuffmanError, decode

__all__ = [
    "ENTRY_BYTES",
    "SHAPES_MAX",
    "STATIC",
    "TABLE_BYTES",
    "Field",
    "HeaderDecoder",
    "HpackError",
    "ListTooLarge",
    "Shape",
    "encode",
    "value_of",
]

Field = tuple[bytes, bytes, bool]

TABLE_BYTES = 4096  # HTTP/2's default, which our settings leave
ENTRY_BYTES = 32  # what an entry counts beside its name and value
INTEGER_BYTES_MAX = 5  # behind the prefix: 2^28 is beyond anything that is allowed
SHORTEST_CODE_BITS = 5
SHAPES_MAX = 8  # of one connection: a client calls a few methods again and again
SHAPE_BYTES_MAX = 1024
VARYING_MAX = 6

STATIC: tuple[tuple[bytes, bytes], ...] = (
    (b":authority", b""), (b":method", b"GET"), (b":method", b"POST"), (b":path", b"/"),
    (b":path", b"/index.html"), (b":scheme", b"http"), (b":scheme", b"https"), (b":status", b"200"),
    (b":status", b"204"), (b":status", b"206"), (b":status", b"304"), (b":status", b"400"),
    (b":status", b"404"), (b":status", b"500"), (b"accept-charset", b""),
    (b"accept-encoding", b"gzip, deflate"),
    (b"accept-language", b""), (b"accept-ranges", b""), (b"accept", b""),
    (b"access-control-allow-origin", b""),
    (b"age", b""), (b"allow", b""), (b"authorization", b""), (b"cache-control", b""),
    (b"content-disposition", b""), (b"content-encoding", b""), (b"content-language", b""),
    (b"content-length", b""), (b"content-location", b""), (b"content-range", b""), (b"content-type", b""),
    (b"cookie", b""), (b"date", b""), (b"etag", b""), (b"expect", b""), (b"expires", b""), (b"from", b""),
    (b"host", b""), (b"if-match", b""), (b"if-modified-since", b""), (b"if-none-match", b""),
    (b"if-range", b""), (b"if-unmodified-since", b""), (b"last-modified", b""), (b"link", b""),
    (b"location", b""), (b"max-forwards", b""), (b"proxy-authenticate", b""), (b"proxy-authorization", b""),
    (b"range", b""), (b"referer", b""), (b"refresh", b""), (b"retry-after", b""), (b"server", b""),
    (b"set-cookie", b""), (b"strict-transport-security", b""), (b"transfer-encoding", b""),
    (b"user-agent", b""), (b"vary", b""), (b"via", b""), (b"www-authenticate", b""),
)  # fmt: skip
STATIC_FIELDS: tuple[Field, ...] = tuple((name, value, False) for name, value in STATIC)
STATIC_COUNT = len(STATIC)


class HpackError(ValueError):
    """A block that can't be decoded; the connection can't be used any more (COMPRESSION_ERROR)."""


class ListTooLarge(HpackError):
    """A block whose fields have too many bytes; it is decoded no further."""


def value_of(field: Field) -> bytes:
    """Return a field's value.

    Raises:
        HpackError: it is wrongly coded.
    """
    if not field[2]:
        return field[1]
    try:
        return decode(field[1])
    except HuffmanError as error:
        raise HpackError(str(error)) from error


class Shape:
    """What the blocks of one kind of call have in common; valid as long as the table does not change.

    Attributes:
        pieces: constant bytes, each with the number of the field whose value follows.
        tail: bytes behind the last such value.
        fields: of one such block.
        places: where their values in full stand in it; None for others.
        varying: names of the fields whose values vary.
        room: bytes that those values may have together, decoded, within the limit of a list.
        checked: what they were checked as: fields of a call (False) or trailers (True); None before.
        memo: for the user of the fields: what follows from the constant ones.
    """

    __slots__ = ("checked", "fields", "memo", "pieces", "places", "room", "tail", "varying")

    def __init__(
        self,
        block: bytes,
        fields: list[Field],
        places: list[tuple[int, int] | None],
        vary: set[int],
        room: int,
    ) -> None:
        pieces: list[tuple[bytes, int]] = []
        begin = 0
        for number in sorted(vary):
            place = places[number]
            assert place is not None
            pieces.append((block[begin : place[0]], number))
            begin = place[1]
        self.pieces = tuple(pieces)
        self.tail = block[begin:]
        self.fields, self.places = fields, places
        self.varying = frozenset(fields[number][0] for number in vary)
        stay = sum(len(field[1]) for number, field in enumerate(fields) if number not in vary)
        self.room = room - stay - sum(len(field[0]) + ENTRY_BYTES for field in fields)
        self.checked: bool | None = None
        self.memo: Any = None

    def match(self, block: bytes) -> list[Field] | None:
        """Return the fields of a block of this shape; None for another one.

        Raises:
            HpackError: it begins like one, and can't be decoded.
        """
        at, found = 0, self.fields.copy()
        room = self.room
        for piece, number in self.pieces:
            if not block.startswith(piece, at):
                return None
            raw, coded, at = string(block, at + len(piece))
            room -= len(raw) * 8 // SHORTEST_CODE_BITS if coded else len(raw)
            found[number] = (found[number][0], raw, coded)
        if room < 0 or at + len(self.tail) != len(block) or not block.endswith(self.tail):
            return None
        return found

    def differing(self, fields: list[Field], places: list[tuple[int, int] | None]) -> set[int] | None:
        """Return which fields of a block vary from this one's; None when more than values in full do."""
        if len(fields) != len(self.fields):
            return None
        vary = {number for _, number in self.pieces}
        for number, (field, mine) in enumerate(zip(fields, self.fields, strict=True)):
            if field[0] != mine[0] or (places[number] is None) != (self.places[number] is None):
                return None
            if field[1:] != mine[1:]:
                if places[number] is None:
                    return None
                vary.add(number)
        return vary


class HeaderDecoder:
    """Decodes the blocks of one direction of a connection, in their order.

    Attributes:
        shape: the last block's; None when it has none.
        shapes: the known ones, the latest first.
        table: fields that the peer has put there, the newest last.
        size: bytes that they count.
        capacity: bytes that the peer wants to use, at most `table_bytes_max`.
    """

    __slots__ = ("capacity", "list_bytes_max", "shape", "shapes", "size", "table", "table_bytes_max")

    def __init__(self, *, list_bytes_max: int, table_bytes_max: int = TABLE_BYTES) -> None:
        self.table: list[Field] = []
        self.size = 0
        self.capacity = self.table_bytes_max = table_bytes_max
        self.list_bytes_max = list_bytes_max
        self.shape: Shape | None = None
        self.shapes: list[Shape] = []

    def decode(self, block: bytes) -> list[Field]:
        """Return the fields of a block.

        Raises:
            HpackError: it can't be decoded.
            ListTooLarge: its fields have too many bytes.
        """
        for shape in self.shapes:
            fields = shape.match(block)
            if fields is not None:
                if shape is not self.shapes[0]:
                    self.shapes.remove(shape)
                    self.shapes.insert(0, shape)
                self.shape = shape
                return fields
        self.shape = None
        return self.decode_fields(block)

    def decode_fields(self, block: bytes) -> list[Field]:
        """Return the fields of a block of no known shape; learn its shape."""
        fields: list[Field] = []
        places: list[tuple[int, int] | None] = []
        changed = len(block) > SHAPE_BYTES_MAX
        at, end, room = 0, len(block), self.list_bytes_max
        table = self.table
        while at < end:
            byte = block[at]
            place = None
            if byte & 0x80:
                number = byte & 0x7F
                at += 1
                if number == 0x7F:
                    number, at = integer(block, at, 0x7F)
                if 0 < number <= STATIC_COUNT:
                    field = STATIC_FIELDS[number - 1]
                elif 0 < number <= STATIC_COUNT + len(table):
                    field = table[STATIC_COUNT - number]
                else:
                    raise HpackError(f"there is no field {number}")
            elif byte & 0x40:
                field, _, at = self.literal(block, at, 0x3F)
                field = (field[0], value_of(field), False)
                self.insert(field)
                changed = True
            elif byte & 0x20:
                if fields:
                    raise HpackError("the table's size changes behind a field")
                at = self.resize(block, at)
                changed = True
                continue
            else:
                field, begin, at = self.literal(block, at, 0x0F)
                place = (begin, at)
            room -= len(field[0]) + len(field[1]) + ENTRY_BYTES
            if field[2]:
                room -= len(field[1]) * (8 - SHORTEST_CODE_BITS) // SHORTEST_CODE_BITS  # at most
            fields.append(field)
            places.append(place)
            if room < 0:
                room = self.exact_room(fields)
        if not changed:
            self.learn(block, fields, places)
        return fields

    def learn(self, block: bytes, fields: list[Field], places: list[tuple[int, int] | None]) -> None:
        """Note what this block and those like it have in common."""
        vary: set[int] = set()
        for shape in self.shapes:
            found = shape.differing(fields, places)
            if found is not None and len(found) <= VARYING_MAX:
                vary = found
                self.shapes.remove(shape)
                break
        self.shapes.insert(0, Shape(block, fields, places, vary, self.list_bytes_max))
        del self.shapes[SHAPES_MAX:]

    def exact_room(self, fields: Iterable[Field]) -> int:
        """Return what is left of the room for a list, its values decoded.

        Raises:
            ListTooLarge: nothing is left.
        """
        size = sum(len(field[0]) + len(value_of(field)) + ENTRY_BYTES for field in fields)
        if size > self.list_bytes_max:
            raise ListTooLarge(f"the header fields have more than {self.list_bytes_max} bytes")
        return self.list_bytes_max - size

    def literal(self, block: bytes, at: int, mask: int) -> tuple[Field, int, int]:
        """Return a field in full, and where its value begins and ends; its name may be one of a table."""
        number = block[at] & mask
        at += 1
        if number == mask:
            number, at = integer(block, at, mask)
        if number == 0:
            raw, coded, at = string(block, at)
            name = value_of((b"", raw, coded)) if coded else raw
        elif number <= STATIC_COUNT:
            name = STATIC[number - 1][0]
        elif number <= STATIC_COUNT + len(self.table):
            name = self.table[STATIC_COUNT - number][0]
        else:
            raise HpackError(f"there is no field {number} to name another one")
        begin = at
        raw, coded, at = string(block, at)
        return (name, raw, coded), begin, at

    def resize(self, block: bytes, at: int) -> int:
        """Apply a new size of the table; return where it ends in the block."""
        size = block[at] & 0x1F
        at += 1
        if size == 0x1F:
            size, at = integer(block, at, 0x1F)
        if size > self.table_bytes_max:
            raise HpackError(f"a table of {size} bytes, and {self.table_bytes_max} are allowed")
        self.capacity = size
        self.shapes.clear()
        self.evict(0)
        return at

    def insert(self, field: Field) -> None:
        """Put a field into the table; one that is larger than the table empties it."""
        self.shapes.clear()
        size = len(field[0]) + len(field[1]) + ENTRY_BYTES
        self.evict(size)
        if size <= self.capacity:
            self.table.append(field)
            self.size += size

    def evict(self, needed: int) -> None:
        """Drop the oldest fields until `needed` bytes more fit."""
        dropped = 0
        while self.size + needed > self.capacity and dropped < len(self.table):
            name, value, _ = self.table[dropped]
            self.size -= len(name) + len(value) + ENTRY_BYTES
            dropped += 1
        if dropped:
            del self.table[:dropped]


def integer(block: bytes, at: int, prefix: int) -> tuple[int, int]:
    """Return an integer that continues behind a full prefix, and where it ends."""
    value, shift = prefix, 0
    for byte in block[at : at + INTEGER_BYTES_MAX]:
        at += 1
        value += (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
        shift += 7
    raise HpackError("an integer is cut off, or larger than anything that is allowed")


def string(block: bytes, at: int) -> tuple[bytes, bool, int]:
    """Return a string as it came, whether it is coded, and where it ends."""
    if at >= len(block):
        raise HpackError("a block ends before a string")
    byte = block[at]
    length = byte & 0x7F
    at += 1
    if length == 0x7F:
        length, at = integer(block, at, 0x7F)
    end = at + length
    if end > len(block):
        raise HpackError("a block ends within a string")
    return block[at:end], byte >= 0x80, end


NUMBERS: dict[bytes, int] = {}
for _number, (_name, _) in enumerate(STATIC, 1):
    NUMBERS.setdefault(_name, _number)
WHOLE = {pair: number for number, pair in enumerate(STATIC, 1)}


def encode(fields: Iterable[tuple[bytes, bytes]]) -> bytes:
    """Return fields as a block that changes no table."""
    block = bytearray()
    for name, value in fields:
        whole = WHOLE.get((name, value))
        if whole is not None:
            block.append(0x80 | whole)
            continue
        number = NUMBERS.get(name, 0)
        block += prefixed(number, 0x0F)
        if not number:
            block += prefixed(len(name), 0x7F)
            block += name
        block += prefixed(len(value), 0x7F)
        block += value
    return bytes(block)


def prefixed(value: int, prefix: int) -> bytes:
    """Return an integer that begins in the bits of `prefix`."""
    if value < prefix:
        return bytes((value,))
    rest = value - prefix
    found = bytearray((prefix,))
    while rest >= 0x80:
        found.append(rest & 0x7F | 0x80)
        rest >>= 7
    found.append(rest)
    return bytes(found)
