"""Headers in RocketMQ's own form, which peers write where `rocketmq.serialize.type=ROCKETMQ`; for reading.

    code 2 | language 1 | version 2 | opaque 4 | flag 4 | remark: length 4, bytes
    | ext fields: length of all 4, then each: name: length 2, bytes; value: length 4, bytes

Big-endian, signed; texts are UTF-8. A length of 0 stands for no remark, and for no ext fields. Written for
tests and for clients of ours; servers answer in JSON, whatever they were asked in (RocketMQ: in their own
configured form), since librocketmq reads nothing else. Source: RocketMQ 4.9.3, `RocketMQSerializable`.
"""

import struct
from typing import Final

from whimbrel.rpc.remoting.command import LANGUAGES, NO_FIELDS, Command
from whimbrel.rpc.remoting.errors import FieldsError, HeaderError
from whimbrel.rpc.remoting.json_header import FIELDS_MAX

__all__ = ["decode_binary", "encode_binary"]

FIXED: Final = struct.Struct(">hBhii")
SHORT, INT = struct.Struct(">h"), struct.Struct(">i")


def encode_binary(command: Command) -> bytes:
    """Return the header of a command; the body is not in it."""
    language = (
        LANGUAGES.index(command.language) if command.language in LANGUAGES else LANGUAGES.index("OTHER")
    )
    fields = bytearray()
    for name, value in command.fields.items():
        named, valued = name.encode("utf-8", "replace"), value.encode("utf-8", "replace")
        fields += SHORT.pack(len(named)) + named + INT.pack(len(valued)) + valued
    remark = (command.remark or "").encode("utf-8", "replace")
    fixed = FIXED.pack(command.code, language, command.version, command.opaque, command.flag)
    return b"".join((fixed, INT.pack(len(remark)), remark, INT.pack(len(fields)), fields))


def decode_binary(header: bytes, body: bytes) -> Command:
    """Return a command.

    Raises:
        HeaderError: a length is wrong.
        FieldsError: there are too many ext fields.
    """
    try:
        code, language, version, opaque, flag = FIXED.unpack_from(header)
        remark, at = text_at(header, FIXED.size, INT)
        (length,) = INT.unpack_from(header, at)
        at += INT.size
        if length != len(header) - at:
            raise HeaderError(f"the ext fields have {len(header) - at} bytes, and not {length}")
        fields: dict[str, str] = {}
        while at < len(header):
            name, at = text_at(header, at, SHORT)
            fields[name], at = text_at(header, at, INT)
            if len(fields) > FIELDS_MAX:
                raise FieldsError(f"the header has more than {FIELDS_MAX} ext fields")
    except struct.error as error:
        raise HeaderError("the header ends in the middle of a field") from error
    known = LANGUAGES[language] if language < len(LANGUAGES) else ""
    return Command(code, opaque, fields or NO_FIELDS, body, flag, known, version, remark or None)


def text_at(header: bytes, at: int, length_of: struct.Struct) -> tuple[str, int]:
    """Return a text behind its length, and where it ends.

    Raises:
        HeaderError: the length is below zero, or goes beyond the header.
        struct.error: so does the place of the length.
    """
    (length,) = length_of.unpack_from(header, at)
    start = at + length_of.size
    if not 0 <= length <= len(header) - start:
        raise HeaderError(f"a text of {length} bytes at byte {start} of a header of {len(header)}")
    return header[start : start + length].decode("utf-8", "replace"), start + length
