"""Header blocks of a client's requests: repeated fields are numbers of the peer's table. Pure.

    :method POST, :scheme http                                numbers of the static table
    path, authority, te, content-type, user-agent             into the table at their first use
    timeout, metadata                                         the first VALUES_KEPT values of a name as well

Nothing is ever evicted: an entry goes in as long as there is room, so its number is known from the count of
entries behind it. A name whose values all differ (an id of each call) takes VALUES_KEPT entries; from then on
the name is sent as a number, and the value in full. So a block of our client has some 90 bytes instead of
400, and the server decodes two fields of ten.

A block that can't be encoded leaves entries here that the peer does not have. Then, and when the peer takes a
smaller table, the next block empties the table and fills it anew.
"""

import base64
import re
from collections.abc import Iterable, Sequence

from whimbrel.rpc.http2.hpack import ENTRY_BYTES, NUMBERS, TABLE_BYTES, prefixed

__all__ = ["HeaderEncoder", "Pair"]

Pair = tuple[str, str | bytes]

VALUES_KEPT = 2  # of a name
PATHS_KEPT = 24
DYNAMIC = 62  # the number of the newest entry
SHORT_MAX = 126  # bytes of a value whose length is one byte
ENTRIES_MAX = TABLE_BYTES // ENTRY_BYTES

NAME = re.compile(r"[0-9a-z_.\-]+")
PSEUDO = frozenset((":path", ":authority"))
POST_HTTP = b"\x83\x86"


def integer(value: int, mask: int, flags: int) -> bytes:
    """Return an integer with flags in its first byte."""
    coded = prefixed(value, mask)
    return bytes((coded[0] | flags,)) + coded[1:]


# By age: the newest entry first.
WHOLE = tuple(integer(DYNAMIC + age, 0x7F, 0x80) for age in range(ENTRIES_MAX))
NAMED = tuple(integer(DYNAMIC + age, 0x0F, 0) for age in range(ENTRIES_MAX))
LENGTHS = tuple(bytes((length,)) for length in range(SHORT_MAX + 1))


class HeaderEncoder:
    """Encodes the requests of one connection, in their order.

    Attributes:
        table: the number of each entry, counted from the first one.
        names: the number of an entry with that name.
        literal: the same, of names whose other values are sent in full.
        room: bytes that are left in the table.
        due: begin of the next block, which changes the table's size.
        kept: entries by name.
        heads: by path, the begin of a block and the entries that it counts on.
    """

    __slots__ = ("capacity", "count", "due", "heads", "kept", "literal", "names", "room", "table")

    def __init__(self) -> None:
        self.capacity = TABLE_BYTES
        self.due = b""  # what the next block begins with
        self.clear()

    def clear(self) -> None:
        """Forget the table."""
        self.table: dict[Pair, int] = {}
        self.names: dict[str, int] = {}
        self.literal: dict[str, int] = {}
        self.kept: dict[str, int] = {}
        self.heads: dict[str, tuple[int, bytes]] = {}
        self.count, self.room = 0, self.capacity

    def restart(self, capacity: int) -> None:
        """Empty the peer's table with the next block, and use at most `capacity` bytes of it from then on."""
        self.capacity = min(capacity, TABLE_BYTES)
        self.due = b"\x20" + integer(self.capacity, 0x1F, 0x20)
        self.clear()

    def request(self, path: str, head: Sequence[Pair], more: Iterable[Pair]) -> bytes:
        """Return the block of a request.

        Args:
            path: `/package.Service/Method`.
            head: fields that all requests of the connection have.
            more: its other fields.

        Raises:
            ValueError: a field can't be sent.
        """
        begin = self.due
        known = self.heads.get(path)
        try:
            if known is None or known[0] != self.count:
                pairs = ((":path", path), *head)
                parts = [begin, POST_HTTP, *map(self.field, pairs)]
                # Such a block serves again once all of it is in the table, and as long as nothing is added.
                if all(pair in self.table for pair in pairs):
                    self.heads[path] = self.count, POST_HTTP + b"".join(map(self.field, pairs))
            else:
                parts = [begin, known[1]] if begin else [known[1]]
            table, literal = self.table, self.literal
            for pair in more:
                number = table.get(pair)
                if number is not None:
                    parts.append(WHOLE[self.count - number])
                    continue
                name, value = pair
                number = literal.get(name)
                if number is None or len(value) > SHORT_MAX or type(value) is not str or not printable(value):
                    parts.append(self.field(pair))
                else:
                    parts.append(NAMED[self.count - number] + LENGTHS[len(value)] + value.encode())
        except ValueError:
            self.restart(self.capacity)
            raise
        self.due = b""
        return b"".join(parts)

    def field(self, pair: Pair) -> bytes:
        """Return one field.

        Raises:
            ValueError: it can't be sent.
        """
        number = self.table.get(pair)
        if number is not None:
            return WHOLE[self.count - number]
        name, value = pair
        if name not in self.kept and not NAME.fullmatch(name) and name not in PSEUDO:
            raise ValueError(f"{name!r} can't be a name of metadata: use a-z, 0-9, `-`, `_` and `.`")
        raw = raw_value(name, value)
        size = len(name) + len(raw) + ENTRY_BYTES
        kept = self.kept.get(name, 0)
        if kept < (PATHS_KEPT if name == ":path" else VALUES_KEPT) and size <= self.room:
            static = NUMBERS.get(name.encode(), 0)
            coded = integer(static, 0x3F, 0x40)
            self.count += 1
            self.room -= size
            self.kept[name] = kept + 1
            self.table[pair] = self.names[name] = self.count
            if kept + 1 == VALUES_KEPT and name[-4:] != "-bin" and name != ":path":
                self.literal[name] = self.count
        else:
            named = self.names.get(name)
            if named is not None:
                return NAMED[self.count - named] + prefixed(len(raw), 0x7F) + raw
            static = NUMBERS.get(name.encode(), 0)
            coded = integer(static, 0x0F, 0)
        if not static:
            coded += prefixed(len(name), 0x7F) + name.encode()
        return coded + prefixed(len(raw), 0x7F) + raw


def raw_value(name: str, value: str | bytes) -> bytes:
    """Return a field's value in its form on the wire.

    Raises:
        ValueError: it has other characters than printable ASCII.
    """
    if name.endswith("-bin"):
        return base64.b64encode(value if isinstance(value, bytes) else value.encode()).rstrip(b"=")
    text = value.decode("latin-1") if isinstance(value, bytes) else value
    if not printable(text):
        raise ValueError(f"the value of {name} is no printable ASCII: send it in a name that ends in -bin")
    return text.encode()


def printable(text: str) -> bool:
    """Return whether a value can be sent as text."""
    return text.isascii() and text.isprintable()
