"""What gRPC adds to HTTP/2: length-prefixed messages, timeouts, statuses, metadata. Pure.

DATA         compressed (1 byte, 0) | length (4 bytes) | message       any number, cut anywhere
grpc-timeout         up to 8 digits and a unit: H M S m u n
grpc-message         percent-encoded UTF-8
NAME-bin             base64, with or without padding
"""

import base64
import re
from collections.abc import Iterator, Mapping, Sequence
from struct import Struct
from typing import Any
from urllib.parse import quote

from whimbrel.rpc.http2.frames import DATA, END_HEADERS, END_STREAM, HEADERS
from whimbrel.rpc.http2.hpack import Field, HpackError, encode, value_of

__all__ = [
    "OK_TRAILERS",
    "PREFIX",
    "RESPONSE_HEADERS",
    "Assembler",
    "CallMetadata",
    "CompressedMessage",
    "MessageTooLong",
    "message_text",
    "prefixed",
    "status_block",
    "timeout_s",
    "unprefixed",
    "whole_response",
]

PREFIX = Struct(">BI")
UNITS_S = {b"H": 3600.0, b"M": 60.0, b"S": 1.0, b"m": 1e-3, b"u": 1e-6, b"n": 1e-9}
TIMEOUT = re.compile(rb"(\d{1,8})([HMSmun])")

CONTENT_TYPE = (b"content-type", b"application/grpc")
RESPONSE_HEADERS = encode([(b":status", b"200"), CONTENT_TYPE])  # before the first message
OK_TRAILERS = encode([(b"grpc-status", b"0")])  # after the last one


class CompressedMessage(ValueError):
    """A compressed message; no encoding was agreed on."""


class MessageTooLong(ValueError):
    """A message beyond the limit."""


def prefixed(message: bytes) -> bytes:
    """Return a message behind its prefix."""
    return PREFIX.pack(0, len(message)) + message


RESPONSE_BEGIN = Struct(
    f">BHBBI{len(RESPONSE_HEADERS)}sBHBBIBI"
)  # HEADERS, DATA's head, the message's prefix
RESPONSE_END = Struct(f">BHBBI{len(OK_TRAILERS)}s")


def whole_response(stream_id: int, message: bytes) -> bytes:
    """Return all frames of a response with one message: headers, data, trailers with OK.

    Two packs for three frames: making the frames one by one takes three times as long.
    """
    size = len(message)
    framed = size + PREFIX.size
    return (
        RESPONSE_BEGIN.pack(
            0, len(RESPONSE_HEADERS), HEADERS, END_HEADERS, stream_id, RESPONSE_HEADERS,
            framed >> 16, framed & 0xFFFF, DATA, 0, stream_id, 0, size,
        )
        + message
        + RESPONSE_END.pack(0, len(OK_TRAILERS), HEADERS, END_HEADERS | END_STREAM, stream_id, OK_TRAILERS)
    )  # fmt: skip


def unprefixed(framed: bytes) -> Iterator[bytes]:
    """Yield messages that are behind their prefixes, one after the other."""
    at = 0
    while at < len(framed):
        end = at + PREFIX.size + PREFIX.unpack_from(framed, at)[1]
        yield framed[at + PREFIX.size : end]
        at = end


class Assembler:
    """Cuts the data of one stream into messages."""

    __slots__ = ("buffer", "limit", "needed")

    def __init__(self, limit: int) -> None:
        self.buffer = bytearray()
        self.limit = limit
        self.needed = PREFIX.size

    def feed(self, data: bytes) -> list[bytes]:
        """Take data; return the messages that are whole.

        Raises:
            CompressedMessage, MessageTooLong: the stream can't go on.
        """
        if self.buffer:
            self.buffer += data
            if len(self.buffer) < self.needed:
                return []
            with memoryview(self.buffer) as whole:  # so that a large message is copied once
                found, at = self.cut(whole)
            del self.buffer[:at]
            return found
        found, at = self.cut(data)
        if at < len(data):
            self.buffer += memoryview(data)[at:]
        return found

    def cut(self, data: bytes | memoryview) -> tuple[list[bytes], int]:
        """Return the messages that are whole, and where they end."""
        found: list[bytes] = []
        at, size = 0, len(data)
        self.needed = PREFIX.size
        while size - at >= PREFIX.size:
            compressed, length = PREFIX.unpack_from(data, at)
            if compressed:
                raise CompressedMessage("the message is compressed, and no encoding was agreed on")
            if length > self.limit:
                raise MessageTooLong(f"a message of {length} bytes, and {self.limit} are allowed")
            end = at + PREFIX.size + length
            if end > size:
                self.needed = end - at
                break
            found.append(bytes(data[at + PREFIX.size : end]))
            at = end
        return found, at


def timeout_s(text: bytes) -> float | None:
    """Return a timeout in seconds; None for a malformed one, which counts as none."""
    found = TIMEOUT.fullmatch(text)
    return int(found[1]) * UNITS_S[found[2]] if found else None


def message_text(text: str) -> bytes:
    """Return a status message in its form on the wire."""
    return quote(text.encode(), safe=" !\"#$&'()*+,-./:;<=>?@[\\]^_`{|}~").encode()


def status_block(
    code: int, text: str, metadata: Sequence[tuple[str, str | bytes]] = (), *, first: bool = False
) -> bytes:
    """Return the trailers that end a call; `first` when no headers were sent before."""
    fields: list[tuple[bytes, bytes]] = [(b":status", b"200"), CONTENT_TYPE] if first else []
    fields.append((b"grpc-status", b"%d" % code))
    if text:
        fields.append((b"grpc-message", message_text(text)))
    for name, value in metadata:
        if name.endswith("-bin"):
            value = base64.b64encode(value if isinstance(value, bytes) else value.encode()).rstrip(b"=")
        fields.append((name.encode(), value if isinstance(value, bytes) else value.encode()))
    return encode(fields)


KNOWN_MAX = 32  # names that handlers ask for


class CallMetadata(Mapping[str, str]):
    """A call's metadata, decoded on demand; of a repeated name the last value counts.

    `known` caches values for all calls whose fields differ only in the names of `varying`.
    """

    __slots__ = ("fields", "known", "varying")

    def __init__(
        self,
        fields: list[Field],
        known: dict[str, str | None] | None = None,
        varying: frozenset[bytes] = frozenset(),
    ) -> None:
        self.fields = fields
        self.known = known
        self.varying = varying

    def raw(self, name: bytes) -> bytes | None:
        """Return a field's value as bytes; None without it.

        Raises:
            HpackError: it is wrongly coded.
        """
        for field in reversed(self.fields):
            if field[0] == name:
                return value_of(field)
        return None

    def get(self, name: str, default: Any = None) -> Any:
        """Return a value as text, or `default`."""
        known = self.known
        if known is not None and name in known:
            found = known[name]
        else:
            found = self.find(name)
            if known is not None and len(known) < KNOWN_MAX and name.encode() not in self.varying:
                known[name] = found
        return default if found is None else found

    def find(self, name: str) -> str | None:
        """Find a value among the fields."""
        value = self.raw(name.encode())
        return None if value is None or name[:1] == ":" else text_of(name, value)

    def __getitem__(self, name: str) -> str:
        found: str | None = self.get(name)
        if found is None:
            raise KeyError(name)
        return found

    def __iter__(self) -> Iterator[str]:
        seen = {field[0] for field in self.fields if field[0][:1] != b":"}
        return iter(sorted(name.decode("latin-1") for name in seen))

    def __len__(self) -> int:
        return len({field[0] for field in self.fields if field[0][:1] != b":"})

    def check(self) -> None:
        """Decode everything.

        Raises:
            HpackError: something is wrongly coded.
        """
        for field in self.fields:
            value_of(field)


def text_of(name: str, value: bytes) -> str:
    """Return a value as text; base64 of a -bin name is decoded."""
    if name.endswith("-bin"):
        try:
            value = base64.b64decode(value + b"=" * (-len(value) % 4))
        except ValueError as error:
            raise HpackError(f"the field {name} is no base64") from error
    return value.decode("latin-1") if name.endswith("-bin") else value.decode("utf-8", "replace")
