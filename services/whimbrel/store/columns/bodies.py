"""Bodies as a consumer sees them: decompressed, and compared with their CRCs.

What may be compressed, and how, says `store/compression.py`.

The CRC is that of the stored bytes, compressed or not. A sealed record (`codec.py`) is compared with its
seal, too.
"""

import zlib

import numpy as np

from whimbrel.store.codec import (
    COMPRESSED,
    CRC_MASK,
    SEAL_BEGIN,
    SEAL_REST,
    SEAL_SIZE,
    U16,
    seal_fault,
)
from whimbrel.store.columns.records import Ints, Mask, Records, gather

__all__ = ["compressed", "crc_good", "seal_fault_of"]


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
