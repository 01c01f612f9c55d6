"""The two messages of the HA protocol; both big-endian and signed.

    slave to master, a report:  i64 end of the slave's log
    master to slave, a frame:   i64 offset of the body's first byte | i32 length n | n bytes of the commitlog

A frame without a body is a heartbeat; its offset is where the next body will start. A body never crosses the
border of a commitlog file, but starts and ends anywhere within records. There is no greeting, no version
and no checksum (RocketMQ: HAConnection, HAService.HAClient).
"""

import struct
from dataclasses import dataclass

__all__ = [
    "CLASSIC_FRAME_BYTES_MAX",
    "FRAME_BYTES_MAX",
    "FRAME_HEADER",
    "RECEIVE_BUFFER_BYTES",
    "REPORT",
    "Frame",
    "whole_frames",
]

REPORT = struct.Struct(">q")
FRAME_HEADER = struct.Struct(">qi")

# A slave of RocketMQ collects a frame in a buffer of this size, and waits for ever when it does not fit.
RECEIVE_BUFFER_BYTES = 4 * 1024 * 1024
FRAME_BYTES_MAX = RECEIVE_BUFFER_BYTES - FRAME_HEADER.size
CLASSIC_FRAME_BYTES_MAX = 32 * 1024  # what a RocketMQ master sends (haTransferBatchSize)


@dataclass(frozen=True, slots=True)
class Frame:
    """A frame to be sent: its header, and which bytes of the log follow it."""

    offset: int
    size: int  # 0: a heartbeat

    @property
    def header(self) -> bytes:
        """The 12 bytes before the body."""
        return FRAME_HEADER.pack(self.offset, self.size)

    @property
    def end(self) -> int:
        """Where the next frame starts."""
        return self.offset + self.size


def whole_frames(
    data: memoryview, at: int = 0, head: struct.Struct = FRAME_HEADER, header_bytes: int = FRAME_HEADER.size
) -> tuple[int, int]:
    """Return where the last whole frame in `data` ends, and how many bytes the one after it lacks.

    Args:
        data: bytes of a stream.
        at: where the first frame starts.
        head: two fields that a header begins with, the second of which is the body's length.
        header_bytes: of a whole header.

    Returns:
        (end, lacking); `lacking` is 0 when not even a header follows. A frame of negative length counts as
        whole, so that the protocol's core finds it.
    """
    size = len(data)
    while at + header_bytes <= size:
        _, length = head.unpack_from(data, at)
        end = at + header_bytes + max(length, 0)
        if end > size:
            return at, end - size
        at = end
    return at, 0
