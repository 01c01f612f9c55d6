"""Compares index files with the log, by sums first, as queues are compared (`queues.py`).

An index may have the tags of some records as keys, and not of others: RocketMQ writes them from 5.4 on. One
that is there must be its record's; none is missed.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from whimbrel.spark.auditing.bucket_sums import INDEX_BITS, mix_bits, sum_by_bucket
from whimbrel.spark.auditing.comparison import BUCKETS_MAX, LogSplit, Row, batch, touched
from whimbrel.spark.auditing.derived_files import DerivedFiles, index_part, scan
from whimbrel.spark.auditing.entries import keys_of
from whimbrel.spark.auditing.parallel import parallelize
from whimbrel.spark.reporting import ProgressCallback

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["index_rows"]

INDEX_SUMS = "bucket long, count long, low long, high long"
INDEX_FILES = "name string, count long, begin long, end long, faults long, firstFault long, fault string"
KEYS = "physical_offset long, hash long, name string"
DUE, KNOWN = "due", "known"
MORE = "there is more that differs than was looked into"


@dataclass(frozen=True, slots=True)
class IndexFilePart:
    """An index file; `wanted` as in `LogSplit`."""

    view: DerivedFiles
    path: Path
    wanted: frozenset[int] | None = None


def expected_key_sums(part: LogSplit) -> Iterator[pa.RecordBatch]:
    """Sum up the keys that a split of the log should have in the index."""
    for records in scan(part.view, part.begin, part.end)[1]:
        keys = keys_of(records, tags=part.view.index_tags)
        due = keys.physical_offsets < part.view.keys_due
        yield key_sums(keys.physical_offsets[due], keys.hashes[due])


def found_key_sums(part: IndexFilePart) -> Iterator[pa.RecordBatch]:
    """Sum up the entries of an index file."""
    found = index_part(part.view, part.path)
    inside = (found.physical_offsets >= part.view.begin) & (found.physical_offsets < part.view.keys_due)
    yield key_sums(found.physical_offsets[inside], found.hashes[inside])


def key_sums(physical_offsets: Any, hashes: Any) -> pa.RecordBatch:
    """Sum up entries by the MiB of the log in which their record is."""
    rows: list[Row] = []
    if len(physical_offsets):
        sums = sum_by_bucket(
            physical_offsets >> INDEX_BITS, mix_bits(physical_offsets, hashes), physical_offsets
        )
        buckets = physical_offsets[sums.first] >> INDEX_BITS
        columns = (buckets, sums.counts, sums.low, sums.high)
        rows = list(zip(*(column.tolist() for column in columns), strict=True))
    return batch(INDEX_SUMS, rows)


def index_files(part: IndexFilePart) -> Iterator[pa.RecordBatch]:
    """Describe an index file."""
    found = index_part(part.view, part.path)
    first, what = found.faults[0] if found.faults else (None, None)
    row = (part.path.name, found.count, found.begin, found.end, len(found.faults), first, what)
    yield batch(INDEX_FILES, [row])


def expected_keys(part: LogSplit) -> Iterator[pa.RecordBatch]:
    """Yield the keys of records in the wanted buckets, as DUE, and once more with tags, as KNOWN."""
    for records in scan(part.view, part.begin, part.end)[1]:
        for name in (DUE, KNOWN):
            keys = keys_of(records, tags=name == KNOWN)
            due = keys.physical_offsets < part.view.keys_due
            yield chosen_keys(keys.physical_offsets[due], keys.hashes[due], part.wanted, name)


def found_keys(part: IndexFilePart) -> Iterator[pa.RecordBatch]:
    """Yield the entries of an index file that are in the wanted buckets."""
    found = index_part(part.view, part.path)
    inside = (found.physical_offsets >= part.view.begin) & (found.physical_offsets < part.view.keys_due)
    yield chosen_keys(found.physical_offsets[inside], found.hashes[inside], part.wanted, part.path.name)


def chosen_keys(
    physical_offsets: Any, hashes: Any, wanted: frozenset[Any] | None, name: str
) -> pa.RecordBatch:
    """Return the entries of some buckets."""
    assert wanted is not None, "some buckets are wanted"
    chosen = np.isin(physical_offsets >> INDEX_BITS, np.array(sorted(wanted), np.int64))
    count = int(chosen.sum())
    arrays = [
        pa.array(physical_offsets[chosen]),
        pa.array(hashes[chosen]),
        pa.array([name] * count, pa.string()),
    ]
    return pa.record_batch(arrays, names=["physical_offset", "hash", "name"])


def index_rows(
    session: "SparkSession",
    view: DerivedFiles,
    splits: Sequence[tuple[int, int]],
    on_progress: ProgressCallback,
) -> list[Row]:
    """Return a row for each index file, and one for keys that no file covers."""
    from pyspark.sql import functions as f

    parts = [IndexFilePart(view, path) for path in view.index]
    files = sorted(
        tuple(row)
        for row in parallelize(session, parts, index_files, INDEX_FILES, size=index_bytes(view)).collect()
    )
    expected = parallelize(
        session, [LogSplit(view, *split) for split in splits], expected_key_sums, INDEX_SUMS
    )
    found = parallelize(session, parts, found_key_sums, INDEX_SUMS, size=index_bytes(view))
    sides = expected.withColumn("sign", f.lit(1)).unionByName(found.withColumn("sign", f.lit(-1)))
    sums = (f.sum(f.col(name) * f.col("sign")).alias(name) for name in ("count", "low", "high"))
    due = f.sum(f.when(f.col("sign") == 1, f.col("count")).otherwise(0)).alias("due")
    buckets = sides.groupBy("bucket").agg(*sums, due).cache()
    try:
        total = (buckets.agg(f.sum("due")).first() or (0,))[0] or 0
        unequal = buckets.filter("count <> 0 OR low <> 0 OR high <> 0").orderBy("bucket")
        differing = [row["bucket"] for row in unequal.limit(BUCKETS_MAX + 1).collect()]
    finally:
        buckets.unpersist()
    missing, wrong = index_details(session, view, splits, differing[:BUCKETS_MAX], on_progress)
    return file_rows(files, total, missing, wrong, more=len(differing) > BUCKETS_MAX)


def index_bytes(view: DerivedFiles) -> int:
    """Return how many bytes the index files have."""
    return len(view.index) * 20 * view.index_entries


def index_details(
    session: "SparkSession",
    view: DerivedFiles,
    splits: Sequence[tuple[int, int]],
    differing: Sequence[int],
    on_progress: ProgressCallback,
) -> tuple[list[tuple[int, int]], dict[str, tuple[int, int]]]:
    """Return missing keys by bucket (least physical offset, count), and by file those of no record."""
    from pyspark.sql import functions as f

    if not differing:
        return [], {}
    on_progress(f"looking into {len(differing)} parts of the index that differ")
    wanted = frozenset(differing)
    spans = [(bucket << INDEX_BITS, ((bucket + 1) << INDEX_BITS) - 1) for bucket in differing]
    parts = [LogSplit(view, *split, wanted) for split in touched(splits, spans)]
    files = [IndexFilePart(view, path, wanted) for path in view.index]
    expected = parallelize(session, parts, expected_keys, KEYS)
    due, known = (expected.filter(f.col("name") == name).drop("name").distinct() for name in (DUE, KNOWN))
    there = parallelize(session, files, found_keys, KEYS, size=index_bytes(view))
    missing = (
        due.join(there.select("physical_offset", "hash").distinct(), ["physical_offset", "hash"], "anti")
        .groupBy(f.shiftright("physical_offset", INDEX_BITS))
        .agg(f.min("physical_offset"), f.count("*"))
    )
    wrong = (
        there.join(known, ["physical_offset", "hash"], "anti")
        .groupBy("name")
        .agg(f.count("*"), f.min("physical_offset"))
    )
    return (
        sorted((row[1], row[2]) for row in missing.collect()),
        {row[0]: (row[1], row[2]) for row in wrong.collect()},
    )


def file_rows(
    files: Sequence[Row],
    total: int,
    missing: Sequence[tuple[int, int]],
    wrong: dict[str, tuple[int, int]],
    *,
    more: bool,
) -> list[Row]:
    """Return a row for each index file; missing keys count for the file in whose range they would be."""
    lacking: dict[str, list[tuple[int, int]]] = {}
    for physical_offset, count in missing:
        covering = [name for name, _, begin, end, *_ in files if begin <= physical_offset <= end]
        lacking.setdefault(covering[0] if covering else "", []).append((physical_offset, count))
    rows: list[Row] = []
    for name, count, _, _, faults, position, fault in files:
        missing_here = lacking.pop(name, [])
        keys = sum(found for _, found in missing_here)
        unknown, first_unknown = wrong.get(name, (0, None))
        reasons = []
        if keys:
            reasons.append(f"{keys} keys are missing")
        if unknown:
            reasons.append(f"{unknown} entries are of no record's key")
        if faults:
            reasons.append(
                f"at byte {position}: {fault}" + (f" (and {faults - 1} more)" if faults > 1 else "")
            )
        first = min(
            [physical_offset for physical_offset, _ in missing_here]
            + ([first_unknown] if first_unknown is not None else []),
            default=None,
        )
        rows.append(("index", name, None, count, unknown, keys, 0, first, "; ".join(reasons) or None))
    beyond = lacking.get("", [])
    keys = sum(found for _, found in beyond)
    what = f"{keys} keys of records are in no index file" if keys else None
    if more:
        what = f"{what}; {MORE}" if what else MORE
    first = min((physical_offset for physical_offset, _ in beyond), default=None)
    rows.append(("index", "(all)", total, sum(row[1] for row in files), 0, keys, 0, first, what))
    return rows
