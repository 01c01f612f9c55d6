"""The slave's two buffers: bytes received and not parsed yet, and bodies collected for one write.

Only whole frames are reported, so nothing is lost by waiting until one is complete; and one large write to
the log costs much less than several small ones.
"""

from collections.abc import Callable

from whimbrel.ha.frames import FRAME_HEADER, whole_frames
from whimbrel.ha.switching import MEMBER_HEADER_BYTES

__all__ = ["RECEIVE_BYTES", "AppendBuffer", "ReceiveBuffer"]

BODY_BYTES = 1 << 20
# A frame of 1 MiB with its header: it is collected, then appended in one piece. Longer ones come in parts.
RECEIVE_BYTES = BODY_BYTES + FRAME_HEADER.size
EMPTY = memoryview(b"")


class ReceiveBuffer:
    """Bytes from the master, handed on in whole frames.

    Attributes:
        missing: bytes that the frame at the end of the buffer lacks; 0 when that is not known.
    """

    __slots__ = ("buffer", "filled", "missing", "parsed", "space", "whole")

    def __init__(self) -> None:
        self.space = memoryview(bytearray(BODY_BYTES + MEMBER_HEADER_BYTES))
        self.filled = self.parsed = self.missing = 0
        self.expect(whole_frames, FRAME_HEADER.size)

    def expect(self, whole: Callable[[memoryview, int], tuple[int, int]], header_bytes: int) -> None:
        """Take frames of another kind from now on; to be called while nothing is in the buffer.

        Args:
            whole: says up to where bytes are whole frames, as `whole_frames`.
            header_bytes: of such a frame.
        """
        self.whole = whole
        self.buffer = self.space[: BODY_BYTES + header_bytes]

    def room(self) -> memoryview:
        """Return where the next bytes go: the rest of an incomplete frame, or as many as fit.

        Views that `fill` returned are overwritten.
        """
        if self.parsed:
            rest = self.filled - self.parsed
            self.buffer[:rest] = self.buffer[self.parsed : self.filled]
            self.filled, self.parsed = rest, 0
        at = self.filled
        return self.buffer[at : at + self.missing] if self.missing else self.buffer[at:]

    def fill(self, count: int, body_left: int) -> memoryview:
        """Count bytes that were put where `room` said; return the whole frames, which are then parsed.

        A frame that is longer than the buffer is handed on in parts.

        Args:
            body_left: how much of a frame is still to come whose begin was parsed already.
        """
        self.filled += count
        data = self.buffer[: self.filled]
        end, self.missing = self.whole(data, min(body_left, self.filled))
        if not end and self.filled == len(self.buffer):
            end, self.missing = self.filled, 0
        self.parsed = end
        return data[:end]

    def rest(self) -> memoryview:
        """Return the whole frames among the bytes that are not parsed, which are then parsed; as `fill`."""
        self.room()
        return self.fill(0, 0)

    def clear(self) -> None:
        """Forget everything."""
        self.filled = self.parsed = self.missing = 0


class AppendBuffer:
    """Bodies that follow each other in the log; a single one is only pointed at, several are copied together.

    Attributes:
        offset: where `data` stands in the log.
        data: what is to be appended.
        frames_end: end of the last whole frame in `data`, or before it; -1 before the first.
    """

    __slots__ = ("copied", "data", "frames_end", "offset", "staging")

    def __init__(self) -> None:
        self.staging = memoryview(bytearray(RECEIVE_BYTES))
        self.data = EMPTY
        self.offset = 0
        self.copied = False  # `data` is in `staging`, not in what was received
        self.frames_end = -1

    def add(self, offset: int, data: memoryview) -> None:
        """Put a body behind those that are there."""
        size = len(self.data)
        if not size:
            self.offset, self.data = offset, data
            return
        if not self.copied:
            self.staging[:size] = self.data
            self.copied = True
        end = size + len(data)
        self.staging[size:end] = data
        self.data = self.staging[:end]

    def appended(self) -> None:
        """Drop the bodies: they are in the log."""
        self.data, self.copied = EMPTY, False

    def clear(self) -> None:
        """Forget everything."""
        self.data, self.copied, self.frames_end = EMPTY, False, -1
