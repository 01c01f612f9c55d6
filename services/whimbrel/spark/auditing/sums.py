"""Many entries as a few numbers, so that what is equal needs no further look.

Entries are put into buckets (of a queue by their numbers, of the index by the place of their record), and
of each bucket only the count and two sums of mixed bits are kept. They do not depend on the order in which
entries come, so a bucket can be summed up in parts by several tasks. Two buckets with the same three numbers
hold the same entries, but for one chance in 2**60 or so; only the others are compared entry by entry, and
nothing but these has to go through a shuffle.
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from whimbrel.store.columns.records import Ints

__all__ = ["INDEX_BITS", "QUEUE_BITS", "Groups", "grouped", "mixed"]

QUEUE_BITS = 12  # 4096 entries of a queue, 80 KiB of its file, make a bucket
INDEX_BITS = 20  # and a MiB of the log one of the index
U64 = np.uint64
LOW = U64(0xFFFFFFFF)


def mixed(*columns: Ints) -> npt.NDArray[np.uint64]:
    """Return 64 bits for each row in which each bit of each column tells (the finalizer of SplitMix64)."""
    state = np.zeros(len(columns[0]), U64)
    for column in columns:
        state = (state ^ column.astype(np.int64).view(U64)) + U64(0x9E3779B97F4A7C15)
        state = (state ^ state >> U64(30)) * U64(0xBF58476D1CE4E5B9)
        state = (state ^ state >> U64(27)) * U64(0x94D049BB133111EB)
        state ^= state >> U64(31)
    return state


@dataclass(frozen=True, slots=True, eq=False)
class Groups:
    """Rows by bucket.

    Attributes:
        first: number of one row of each bucket.
        counts, low, high: how many, and the sums of the halves of what they mix to; low and high stay far
            from overflowing, however many are added.
        least, greatest: of `places`.
    """

    first: Ints
    counts: Ints
    low: Ints
    high: Ints
    least: Ints
    greatest: Ints


def grouped(keys: Ints, bits: npt.NDArray[np.uint64], places: Ints) -> Groups:
    """Sum up rows by key; there is at least one."""
    order = np.argsort(keys, kind="stable")
    ordered = keys[order]
    borders = np.flatnonzero(np.append(True, ordered[1:] != ordered[:-1]))
    counts = np.diff(np.append(borders, len(keys)))
    bits, places = bits[order], places[order]
    return Groups(
        order[borders].astype(np.int64),
        counts.astype(np.int64),
        np.add.reduceat((bits & LOW).astype(np.int64), borders),
        np.add.reduceat((bits >> U64(32)).astype(np.int64), borders),
        np.minimum.reduceat(places, borders),
        np.maximum.reduceat(places, borders),
    )
