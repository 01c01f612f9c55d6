"""Header fields of requests and responses: what makes them malformed (RFC 9113, section 8). Pure."""

import re

from whimbrel.rpc.http2.errors import Code, ProtocolError, StreamError
from whimbrel.rpc.http2.hpack import Field, HpackError, value_of
from whimbrel.rpc.http2.stream import Stream

__all__ = ["check_fields", "check_length", "stays_valid"]

NAMES_KEPT = 4096
NAME = re.compile(rb"[!#$%&'*+\-.^_`|~0-9a-z]+")
OF_CONNECTIONS = frozenset(
    (b"connection", b"proxy-connection", b"keep-alive", b"transfer-encoding", b"upgrade")
)
WITH_RULES = frozenset((b"te", b"content-length"))
DIGITS_MAX = 18
REQUEST_PSEUDO = frozenset((b":method", b":scheme", b":path", b":authority"))
REQUIRED = 3  # of them: method, scheme and path


def check_length(stream: Stream) -> None:
    """Refuse a stream that has not as much data as its content-length says."""
    if stream.declared >= 0 and stream.declared != stream.received:
        raise StreamError(
            Code.PROTOCOL_ERROR, f"content-length {stream.declared}, and {stream.received} bytes came"
        )


NAMES_OK: set[bytes] = set()  # legal names that came before


def check_fields(fields: list[Field], stream: Stream, *, request: bool, trailers: bool) -> None:
    """Refuse fields that are malformed (RFC 9113, section 8)."""
    pseudo: list[bytes] = []
    regular = trailers
    for field in fields:
        name = field[0]
        if name[:1] == b":":
            if regular:
                raise StreamError(Code.PROTOCOL_ERROR, "a pseudo field behind others, or in trailers")
            if name in pseudo or (name not in REQUEST_PSEUDO if request else name != b":status"):
                raise StreamError(
                    Code.PROTOCOL_ERROR, f"the pseudo field {name[:40]!r} is unknown, or there twice"
                )
            if name == b":path" and not field[1]:
                raise StreamError(Code.PROTOCOL_ERROR, "an empty path")
            pseudo.append(name)
            continue
        regular = True
        if name not in NAMES_OK:
            check_name(name)
        if name in WITH_RULES:
            check_value(field, stream)
    if not trailers and len(pseudo) - (b":authority" in pseudo) != (REQUIRED if request else 1):
        raise StreamError(Code.PROTOCOL_ERROR, "a pseudo field is missing")


def stays_valid(fields: list[Field], varying: frozenset[bytes]) -> bool:
    """Return whether checked fields need no second check when only values of `varying` change."""
    if any(name[:1] == b":" or name in WITH_RULES for name in varying):
        return False
    return all(field[0] != b"content-length" for field in fields)


def check_name(name: bytes) -> None:
    """Refuse an illegal field name."""
    if not NAME.fullmatch(name) or name in OF_CONNECTIONS:
        raise StreamError(Code.PROTOCOL_ERROR, f"the field {name[:40]!r} may not be in a stream")
    if len(NAMES_OK) < NAMES_KEPT:
        NAMES_OK.add(name)


def check_value(field: Field, stream: Stream) -> None:
    """Check the value of a field that has rules; note a declared length."""
    try:
        value = value_of(field)
    except HpackError as error:
        raise ProtocolError(Code.COMPRESSION_ERROR, str(error)) from error
    if field[0] == b"te":
        if value != b"trailers":
            raise StreamError(Code.PROTOCOL_ERROR, "the field te says something else than trailers")
        return
    if not value.isdigit() or len(value) > DIGITS_MAX or stream.declared not in (-1, int(value)):
        raise StreamError(Code.PROTOCOL_ERROR, "the field content-length is no number, or there twice")
    stream.declared = int(value)
