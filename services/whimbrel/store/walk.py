"""Reads the log record by record, a chunk at a time, for dispatch, indexing, and `store dump` and `verify`.

A walk returns chunks of bytes with the positions of the whole records in them. It stops at its limit, at a
record that goes beyond it, or at something that is no record. The caller decides what to do there: a slave
continues when more of the log has arrived.
"""

from whimbrel.store.codec import BLANK_MAGIC, MAGIC_V1, MAGIC_V2, RECORD_BYTES_MIN, SIZE_AND_MAGIC
from whimbrel.store.recovery import READ_BYTES, ReadAt, blank_fault

__all__ = ["Chunk", "Walk"]

Chunk = tuple[int, bytes, list[int]]  # offset of the chunk, its bytes, positions of records in it


class Walk:
    """A walk over [position, limit).

    Attributes:
        position: a boundary; everything before was returned, or skipped as a blank.
        fault: what stands at `position` when it is no record, "" otherwise.
    """

    def __init__(self, read: ReadAt, position: int, limit: int, file_size: int) -> None:
        self.read, self.position, self.limit, self.file_size = read, position, limit, file_size
        self.fault = ""
        self.blanks: list[tuple[int, int]] = []  # (offset, size field) of skipped blanks, for `store dump`

    def next_chunk(self, bytes_max: int = READ_BYTES) -> Chunk | None:
        """Return the next chunk with at least one record, None at the end or at a fault."""
        want = bytes_max
        while not self.fault:
            base = self.position
            file_end = base - base % self.file_size + self.file_size
            available = min(self.limit, file_end) - base
            if available < 8:
                if available > 0 and self.limit >= file_end:
                    self.fault = "the file ends without a blank"
                return None
            chunk = self.read(base, min(want, available))
            positions, at = self.scan(chunk, base, file_end)
            if positions:
                self.position = base + at
                return base, chunk, positions
            if self.position != base:  # a blank was skipped
                want = bytes_max
                continue
            if self.fault or len(chunk) >= available or len(chunk) < 8:
                return None
            want = SIZE_AND_MAGIC.unpack_from(chunk)[0]  # a record larger than a chunk
        return None

    def scan(self, chunk: bytes, base: int, file_end: int) -> tuple[list[int], int]:
        """Return the positions of whole records at the begin of a chunk, and where they end."""
        positions = []
        at, filled = 0, len(chunk)
        unpack = SIZE_AND_MAGIC.unpack_from
        while filled - at >= 8:
            size, magic = unpack(chunk, at)
            if magic == MAGIC_V1 or magic == MAGIC_V2:
                if size < RECORD_BYTES_MIN or base + at + size > file_end:
                    self.stop(at, f"a record with a size of {size}")
                    break
                if at + size > filled:
                    break
                positions.append(at)
                at += size
                continue
            if magic != BLANK_MAGIC:
                self.stop(at, f"magic {magic:#010x}")
            elif fault := blank_fault(size, base + at, file_end):
                self.stop(at, fault)
            elif not positions and self.limit >= file_end:
                self.blanks.append((base + at, size))
                self.position = file_end
            break
        return positions, at

    def stop(self, at: int, fault: str) -> None:
        """Note a fault, unless records before it are to be returned first: the next call meets it again."""
        if at == 0:
            self.fault = fault

    def skip_file(self) -> bool:
        """Continue at the next file after a fault; return False when there is none below the limit."""
        following = self.position - self.position % self.file_size + self.file_size
        if following >= self.limit:
            return False
        self.position, self.fault = following, ""
        return True
