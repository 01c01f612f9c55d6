"""Bodies that producers have compressed: by what, and what they hold.

The compressor is in the system flag (RocketMQ: CompressionType): 0 and 3 are zlib, 1 LZ4 frames, 2 Zstandard.
A body that the gRPC SDKs label GZIP may have either wrapper of the deflate format. An empty body is not
compressed, whatever its flag. Bytes behind the end of a zlib stream are ignored; of the others, frames may
follow one another. Java's readers do the same.

The libraries for LZ4 and Zstandard are imported when the first such body comes.
"""

import sys
import zlib
from typing import Any, Protocol

from whimbrel.errors import CorruptRecord
from whimbrel.store.codec import COMPRESSED, COMPRESSOR_MASK, COMPRESSOR_SHIFT

__all__ = ["inflate", "is_foreign"]

ZLIB, LZ4, ZSTD = (0, 3), 1, 2
GZIP_OR_ZLIB = 47  # window bits: both wrappers are recognised
ZSTD_WINDOW_LOG_MAX = 27  # bits of memory that a stream may ask for: 128 MiB, the default of Zstandard's tool
PIECE_BYTES_MIN = 64 * 1024
FRAMES_MAX = 1024  # in a body; producers make one


class Engine(Protocol):
    """Decompresses one stream."""

    @property
    def eof(self) -> bool: ...

    @property
    def unused_data(self) -> bytes: ...

    def decompress(self, data: Any, max_length: int, /) -> bytes: ...


def is_foreign(sys_flag: int) -> bool:
    """Return whether a body is compressed by what a reader of GZIP does not know."""
    return bool(sys_flag & COMPRESSED) and sys_flag >> COMPRESSOR_SHIFT & COMPRESSOR_MASK not in ZLIB


def engine_of(sys_flag: int) -> tuple[Engine, type[Exception]]:
    """Return what decompresses a body, and what it raises."""
    compressor = sys_flag >> COMPRESSOR_SHIFT & COMPRESSOR_MASK
    if compressor in ZLIB:
        return zlib.decompressobj(GZIP_OR_ZLIB), zlib.error
    if compressor == LZ4:
        import lz4.frame

        return lz4.frame.LZ4FrameDecompressor(), RuntimeError
    if compressor == ZSTD:
        if sys.version_info >= (3, 14):
            from compression import zstd
        else:
            from backports import zstd

        window: dict[int, int] = {zstd.DecompressionParameter.window_log_max: ZSTD_WINDOW_LOG_MAX}
        return zstd.ZstdDecompressor(options=window), zstd.ZstdError
    raise CorruptRecord(f"the body is compressed by {compressor}, which is unknown")


def inflate(body: bytes | memoryview, sys_flag: int, size_max: int) -> bytes:
    """Decompress a body; its size need not stand in it, so this goes piece by piece.

    Raises:
        CorruptRecord: it is not what its flag names, or inflates to more than `size_max` bytes.
    """
    rest: Any = body
    step = max(PIECE_BYTES_MIN, 4 * len(body))
    pieces: list[bytes] = []
    total = 0
    for _ in range(FRAMES_MAX):
        engine, failure = engine_of(sys_flag)
        while not engine.eof:
            try:
                piece = engine.decompress(rest, step)
            except failure as error:
                raise CorruptRecord(f"the body does not decompress: {error}") from error
            rest = getattr(engine, "unconsumed_tail", b"")
            if not piece and not engine.eof:
                raise CorruptRecord("the body does not decompress: it is cut off")
            pieces.append(piece)
            total += len(piece)
            if total > size_max:
                raise CorruptRecord(f"the body inflates to over {size_max} bytes")
        rest = engine.unused_data
        if not rest or not is_foreign(sys_flag):
            return b"".join(pieces)
    raise CorruptRecord(f"the body has more than {FRAMES_MAX} frames")
