"""Frames of HTTP/2 (RFC 9113, section 4): numbers, layouts, and defaults.

length (3 bytes) | type | flags | 0 and the stream's number (31 bits) | payload
"""

from struct import Struct

__all__ = [
    "ACK",
    "CONTINUATION",
    "DATA",
    "ENABLE_PUSH",
    "END_HEADERS",
    "END_STREAM",
    "FRAME_BYTES_DEFAULT",
    "FRAME_BYTES_LIMIT",
    "FRAME_MAX",
    "GOAWAY",
    "HEAD",
    "HEADERS",
    "HEADER_TABLE_DEFAULT",
    "HEADER_TABLE_SIZE",
    "HEAD_BYTES",
    "INITIAL_WINDOW",
    "LIST_MAX",
    "PADDED",
    "PING",
    "PREFACE",
    "PRIORITIZED",
    "PRIORITY",
    "PUSH_PROMISE",
    "RST_STREAM",
    "SETTING",
    "SETTINGS",
    "STREAMS_MAX",
    "STREAM_ID_MAX",
    "TWO_U32",
    "U32",
    "WINDOW_DEFAULT",
    "WINDOW_MAX",
    "WINDOW_UPDATE",
]

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"

DATA, HEADERS, PRIORITY, RST_STREAM, SETTINGS, PUSH_PROMISE, PING, GOAWAY, WINDOW_UPDATE, CONTINUATION = (
    range(10)
)
END_STREAM, ACK, END_HEADERS, PADDED, PRIORITIZED = 0x1, 0x1, 0x4, 0x8, 0x20
HEADER_TABLE_SIZE, ENABLE_PUSH, STREAMS_MAX, INITIAL_WINDOW, FRAME_MAX, LIST_MAX = range(1, 7)

HEAD = Struct(">BHBBI")  # length in two parts, type, flags, stream
HEAD_BYTES = 9
SETTING = Struct(">HI")
U32 = Struct(">I")
TWO_U32 = Struct(">II")

WINDOW_DEFAULT = 65_535
HEADER_TABLE_DEFAULT = 4096
WINDOW_MAX = 2**31 - 1
STREAM_ID_MAX = 2**31 - 1
FRAME_BYTES_DEFAULT = 16_384
FRAME_BYTES_LIMIT = 2**24 - 1
