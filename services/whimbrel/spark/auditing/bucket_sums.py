"""Sums over many entries, so that equal ranges need not be compared entry by entry.

Entries are put into buckets (of a queue by number, of the index by the physical offset of the record). Of a
bucket only the count and two sums of mixed bits are kept. They do not depend on the order of the entries, so
several tasks can each sum up a part of a bucket. Two buckets with the same three numbers hold the same
entries, except with a probability of about 2**-60. Only the others are compared entry by entry, so only their
entries go through a shuffle.
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from whimbrel.store.columns.records import Ints

__all__ = ["INDEX_BITS", "QUEUE_BITS", "BucketSums", "mix_bits", "sum_by_bucket"]

QUEUE_BITS = 12  # a bucket of a queue has 4096 entries, 80 KiB of its file
INDEX_BITS = 20  # a bucket of the index has the records of 1 MiB of the log
U64 = np.uint64
LOW = U64(0xFFFFFFFF)


def mix_bits(*columns: Ints) -> npt.NDArray[np.uint64]:
    """Return 64 bits for each row that depend on each bit of each column (the finalizer of SplitMix64)."""
    state = np.zeros(len(columns[0]), U64)
    for column in columns:
        state = (state ^ column.astype(np.int64).view(U64)) + U64(0x9E3779B97F4A7C15)
        state = (state ^ state >> U64(30)) * U64(0xBF58476D1CE4E5B9)
        state = (state ^ state >> U64(27)) * U64(0x94D049BB133111EB)
        state ^= state >> U64(31)
    return state


@dataclass(frozen=True, slots=True, eq=False)
class BucketSums:
    """Rows by bucket.

    Attributes:
        first: number of one row of each bucket.
        counts, low, high: rows, and sums of the lower and upper halves of their mixed bits; halves, so that
            sums do not overflow however many are added.
        least, greatest: of `physical_offsets`.
    """

    first: Ints
    counts: Ints
    low: Ints
    high: Ints
    least: Ints
    greatest: Ints


def sum_by_bucket(keys: Ints, bits: npt.NDArray[np.uint64], physical_offsets: Ints) -> BucketSums:
    """Sum up rows by key; there must be at least one row."""
    order = np.argsort(keys, kind="stable")
    ordered = keys[order]
    borders = np.flatnonzero(np.append(True, ordered[1:] != ordered[:-1]))
    counts = np.diff(np.append(borders, len(keys)))
    bits, physical_offsets = bits[order], physical_offsets[order]
    return BucketSums(
        order[borders].astype(np.int64),
        counts.astype(np.int64),
        np.add.reduceat((bits & LOW).astype(np.int64), borders),
        np.add.reduceat((bits >> U64(32)).astype(np.int64), borders),
        np.minimum.reduceat(physical_offsets, borders),
        np.maximum.reduceat(physical_offsets, borders),
    )
