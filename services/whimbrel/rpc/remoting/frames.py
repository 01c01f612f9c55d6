"""Frames of the remoting protocol: bytes in, commands out, and back. No I/O.

    length 4 | kind of the header 1 | length of the header 3 | header | body

Big-endian. The length is that of all that follows it. The kind is 0 for JSON (`json_header.py`), 1 for
RocketMQ's own form (`binary_header.py`). The body is what is left; none has no bytes. There is no handshake:
both ends may begin with a request, and answer in any order.

Bounds: `FRAME_BYTES_MAX` (RocketMQ: `com.rocketmq.remoting.frameMaxLength`), `HEADER_BYTES_MAX`, which is
larger than the 64 KiB that properties can have as JSON: their separators take six bytes each. A reader keeps
at most one frame that is not whole.
"""

import struct
from collections.abc import Callable, Iterator
from typing import Final

from whimbrel.rpc.remoting.binary_header import decode_binary
from whimbrel.rpc.remoting.command import Command
from whimbrel.rpc.remoting.errors import FrameLengthError, HeaderLengthError, SerializationError
from whimbrel.rpc.remoting.json_header import decode_json, encode_json

__all__ = ["FRAME_BYTES_MAX", "HEADER_BYTES_MAX", "FrameReader", "decode_frame", "encode_frame", "head_of"]

FRAME_BYTES_MAX: Final = 16 << 20  # with its length
HEADER_BYTES_MAX: Final = 256 << 10
JSON, ROCKETMQ = 0, 1
HEAD: Final = struct.Struct(">II")
LENGTH: Final = struct.Struct(">I")
LENGTH_BYTES, HEAD_BYTES = LENGTH.size, HEAD.size


def head_of(header: bytes, body_bytes: int) -> bytes:
    """Return what stands before the body: lengths, and a header as JSON."""
    return HEAD.pack(LENGTH_BYTES + len(header) + body_bytes, len(header)) + header


def encode_frame(command: Command) -> bytes:
    """Return a command as a frame, its header as JSON."""
    return head_of(encode_json(command), len(command.body)) + command.body


def decode_frame(frame: bytes) -> Command:
    """Return the command of a whole frame, whose length is right.

    Raises:
        RemotingError: it is none.
    """
    (word,) = LENGTH.unpack_from(frame, LENGTH_BYTES)
    kind, length = word >> 24, word & 0xFFFFFF
    end = HEAD_BYTES + length
    if end > len(frame) or length > HEADER_BYTES_MAX:
        raise HeaderLengthError(
            f"a header of {length} bytes in a frame of {len(frame)}; {HEADER_BYTES_MAX} are the most"
        )
    if kind == JSON:
        return decode_json(frame[HEAD_BYTES:end], frame[end:])
    if kind == ROCKETMQ:
        return decode_binary(frame[HEAD_BYTES:end], frame[end:])
    raise SerializationError(f"a header of kind {kind}: 0 is JSON, 1 is RocketMQ's own")


class FrameReader:
    """Cuts what a peer sends into commands.

    Attributes:
        decode: makes a command of a whole frame; raises RemotingError.
    """

    def __init__(self, decode: Callable[[bytes], Command] = decode_frame) -> None:
        self.decode = decode
        self.partial = bytearray()  # a frame that is not whole yet
        self.wanted = LENGTH_BYTES  # bytes of it, before anything can be said of it again

    @property
    def held(self) -> int:
        """Bytes of a frame that is not whole yet."""
        return len(self.partial)

    def feed(self, data: bytes) -> Iterator[Command]:
        """Yield the commands that are whole now; to be iterated to its end, or until it raises.

        Raises:
            RemotingError: the bytes are no frames; the reader is of no use any more.
        """
        return self.commands(self.joined(data))

    def joined(self, data: bytes) -> bytes:
        """Return bytes from the begin of a frame on, the latest of them; none while more are needed."""
        partial = self.partial
        if not partial:
            return data
        partial += data
        if len(partial) < self.wanted:
            return b""
        data = bytes(partial)
        partial.clear()
        return data

    def commands(self, data: bytes) -> Iterator[Command]:
        """Yield the commands of what `joined` has returned, or of a part that begins with a frame; as `feed`.

        Raises:
            RemotingError: the bytes are no frames.
        """
        at, end = 0, len(data)
        while end - at >= LENGTH_BYTES:
            (length,) = LENGTH.unpack_from(data, at)
            if not LENGTH_BYTES <= length <= FRAME_BYTES_MAX - LENGTH_BYTES:
                raise FrameLengthError(
                    f"a frame of {length} bytes; 4 are the least, {FRAME_BYTES_MAX} the most"
                )
            stop = at + LENGTH_BYTES + length
            if stop > end:
                self.keep(data[at:], LENGTH_BYTES + length)
                return
            yield self.decode(data[at:stop])
            at = stop
        if at < end:
            self.keep(data[at:], LENGTH_BYTES)

    def keep(self, data: bytes | memoryview, wanted: int) -> None:
        """Keep the begin of a frame, of which so many bytes are needed to go on."""
        self.partial += data
        self.wanted = wanted
