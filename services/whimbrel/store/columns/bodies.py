"""Bodies as a consumer sees them: decompressed, and compared with their CRCs.

The compressor is in the system flag (RocketMQ: CompressionType): 0 and 3 are zlib, 1 LZ4 frames, 2 Zstandard.
A body that the gRPC SDKs label GZIP may have either wrapper of the deflate format. An empty body is not
compressed, whatever its flag.

The CRC is that of the stored bytes, compressed or not. A sealed record (`codec.py`) is compared with its
seal, too.
"""

import zlib

import numpy as np
import pyarrow as pa

from whimbrel.errors import CorruptRecord
from whimbrel.model.limits import INFLATED_BYTES_MAX
from whimbrel.store.codec import (
    COMPRESSED,
    COMPRESSOR_MASK,
    COMPRESSOR_SHIFT,
    CRC_MASK,
    SEAL_BEGIN,
    SEAL_REST,
    SEAL_SIZE,
    U16,
    seal_fault,
)
from whimbrel.store.columns.records import Ints, Mask, Records, gather

__all__ = ["compressed", "crc_good", "inflate", "seal_fault_of"]

ZLIB = (0, 3)
ARROW_NAMES = {1: "lz4", 2: "zstd"}
GZIP_OR_ZLIB = 47  # window bits: both wrappers are recognised
PIECE_BYTES_MIN = 64 * 1024


def crc_good(records: Records) -> Mask:
    """Return for each record whether its body matches its CRC, and a sealed one its seal."""
    crc, data = zlib.crc32, records.data
    found = [
        crc(data[start:end])
        for start, end in zip(records.body_start.tolist(), records.body_end.tolist(), strict=True)
    ]
    stored = records.ints("body_crc") & CRC_MASK
    good: Mask = np.array(found, dtype=np.int64) & CRC_MASK == stored
    seals = records.ends - SEAL_SIZE
    rows = np.flatnonzero(seals >= records.topic_end + U16.size)
    starts = seals[rows]
    sealed = gather(data, starts, ">u4") == int.from_bytes(SEAL_BEGIN)
    sealed |= gather(data, starts + len(SEAL_BEGIN), ">u4") == int.from_bytes(SEAL_REST)
    for row in rows[sealed].tolist():
        if seal_fault_of(records, row):
            good[row] = False
    return good


def seal_fault_of(records: Records, row: int) -> str:
    """Return what is wrong with a record's seal, "" for nothing, also when it has none."""
    return seal_fault(records.data, int(records.positions[row]), int(records.ends[row]))


def compressed(records: Records) -> Ints:
    """Return the numbers of the records that have a compressed body."""
    labelled = (records.head["sys_flag"] & COMPRESSED) != 0
    return np.flatnonzero(labelled & (records.body_end > records.body_start))


def inflate(body: memoryview, sys_flag: int) -> bytes:
    """Decompress a body.

    Raises:
        CorruptRecord: it is not what its flag names, or inflates to more than `INFLATED_BYTES_MAX`.
    """
    compressor = sys_flag >> COMPRESSOR_SHIFT & COMPRESSOR_MASK
    try:
        if compressor in ZLIB:
            plain = inflate_zlib(body)
        elif compressor in ARROW_NAMES:
            plain = inflate_frames(body, ARROW_NAMES[compressor])
        else:
            raise CorruptRecord(f"the body is compressed by {compressor}, which is unknown")
    except (zlib.error, OSError) as error:
        raise CorruptRecord(f"the body does not decompress: {error}") from error
    if len(plain) > INFLATED_BYTES_MAX:
        raise CorruptRecord(f"the body inflates to over {INFLATED_BYTES_MAX} bytes")
    return plain


def inflate_frames(body: memoryview, name: str) -> bytes:
    """Decompress frames by one of Arrow's decompressors, piece by piece: frames need not hold their size."""
    step = max(PIECE_BYTES_MIN, 4 * len(body))
    pieces: list[bytes] = []
    total = 0
    with pa.CompressedInputStream(pa.BufferReader(body), name) as stream:
        while total <= INFLATED_BYTES_MAX and (piece := stream.read(step)):
            pieces.append(piece)
            total += len(piece)
    return b"".join(pieces)


def inflate_zlib(body: memoryview) -> bytes:
    """Decompress one deflate stream; bytes behind it are ignored, as Java does."""
    engine = zlib.decompressobj(GZIP_OR_ZLIB)
    plain = engine.decompress(body, INFLATED_BYTES_MAX + 1)
    if not engine.eof and len(plain) <= INFLATED_BYTES_MAX:
        raise CorruptRecord("the body does not decompress: it is cut off")
    return plain
