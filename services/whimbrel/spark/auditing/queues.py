"""Compares consume queues with the log: sums by bucket first, then the entries of buckets that differ.

log     splits, a task each ──► units that should be there ──► sums by bucket ─┐
files   queue files ──► units that are there ──► sums by bucket ────────────────┴─► buckets that differ
those   units of both sides, joined: wrong, missing, without a record
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from whimbrel.model.names import SCHEDULE_TOPIC
from whimbrel.spark.auditing.bucket_sums import QUEUE_BITS, mix_bits, sum_by_bucket
from whimbrel.spark.auditing.comparison import BUCKETS_MAX, LogSplit, Row, batch, touched
from whimbrel.spark.auditing.derived_files import DerivedFiles, QueueFile, queue_units, scan
from whimbrel.spark.auditing.entries import units_of
from whimbrel.spark.auditing.parallel import parallelize
from whimbrel.spark.reporting import ProgressCallback

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

__all__ = ["queue_rows"]

QUEUE_SUMS = (
    "topic string, queueId int, bucket long, count long, low long, high long, least long, greatest long,"
    " behind long, firstBehind long, fault string"
)
UNITS = "topic string, queueId int, number long, physical_offset long, size int, tags long"


@dataclass(frozen=True, slots=True)
class QueueFilePart:
    """A queue file; `wanted` as in `LogSplit`."""

    view: DerivedFiles
    file: QueueFile
    wanted: frozenset[Any] | None = None


def expected_sums(part: LogSplit) -> Iterator[pa.RecordBatch]:
    """Sum up the units that a split of the log should have; damage gives further rows."""
    view = part.view
    walk, found = scan(view, part.begin, part.end)
    for records in found:
        units = units_of(records)
        queues = units.topic_ids << 32 | units.queue_ids
        kinds, which = np.unique(queues, return_inverse=True)
        deleted_offsets = np.array(
            [
                view.deleted_offsets.get((units.topics[kind >> 32], kind & 0xFFFFFFFF), 0)
                for kind in kinds.tolist()
            ],
            np.int64,
        )
        due = units.physical_offsets < view.entries_due
        due &= units.numbers >= deleted_offsets[which] if len(kinds) else due
        rows = []
        if due.any():
            numbers, physical_offsets, sizes, tags = (
                values[due] for values in (units.numbers, units.physical_offsets, units.sizes, units.tags)
            )
            queues = which[due]
            buckets = numbers >> QUEUE_BITS
            _, keys = np.unique(np.stack([queues, buckets]), axis=1, return_inverse=True)
            sums = sum_by_bucket(
                keys.reshape(-1), mix_bits(numbers, physical_offsets, sizes, tags), physical_offsets
            )
            for row, *values in zip(
                sums.first.tolist(),
                sums.counts.tolist(),
                sums.low.tolist(),
                sums.high.tolist(),
                sums.least.tolist(),
                sums.greatest.tolist(),
                strict=True,
            ):
                kind = int(kinds[queues[row]])
                queue = units.topics[kind >> 32], kind & 0xFFFFFFFF
                rows.append((*queue, int(buckets[row]), *values, 0, None, None))
        yield batch(QUEUE_SUMS, rows)
    faults = [(None, None, fault.offset, 0, 0, 0, None, None, 0, None, fault.what) for fault in walk.faults]
    if faults:
        yield batch(QUEUE_SUMS, faults)


def found_sums(part: QueueFilePart) -> Iterator[pa.RecordBatch]:
    """Sum up the units of a queue file."""
    view, file = part.view, part.file
    numbers, units = queue_units(view, file)
    physical_offsets, sizes = units["physical_offset"].astype(np.int64), units["size"].astype(np.int64)
    tags = units["tags"].astype(np.int64) if file.topic != SCHEDULE_TOPIC else np.zeros(len(units), np.int64)
    rows = []
    inside = (physical_offsets >= view.begin) & (physical_offsets < view.entries_due)
    if inside.any():
        chosen = [values[inside] for values in (numbers, physical_offsets, sizes, tags)]
        sums = sum_by_bucket(chosen[0] >> QUEUE_BITS, mix_bits(*chosen), chosen[1])
        for row, *values in zip(
            sums.first.tolist(),
            sums.counts.tolist(),
            sums.low.tolist(),
            sums.high.tolist(),
            sums.least.tolist(),
            sums.greatest.tolist(),
            strict=True,
        ):
            rows.append(
                (file.topic, file.queue_id, int(chosen[0][row]) >> QUEUE_BITS, *values, 0, None, None)
            )
    behind = numbers[physical_offsets >= view.end] if not view.live else numbers[:0]
    if len(behind):
        first = int(behind[0])
        rows.append(
            (file.topic, file.queue_id, first >> QUEUE_BITS, 0, 0, 0, None, None, len(behind), first, None)
        )
    if rows:
        yield batch(QUEUE_SUMS, rows)


def expected_units(part: LogSplit) -> Iterator[pa.RecordBatch]:
    """Yield the units that records of the wanted buckets should have."""
    view = part.view
    assert part.wanted is not None, "some buckets are wanted"
    for records in scan(view, part.begin, part.end)[1]:
        units = units_of(records)
        rows = []
        names, buckets = units.topics, units.numbers >> QUEUE_BITS
        for row in np.flatnonzero(units.physical_offsets < view.entries_due).tolist():
            queue = names[units.topic_ids[row]], int(units.queue_ids[row])
            if (*queue, int(buckets[row])) in part.wanted and units.numbers[row] >= view.deleted_offsets.get(
                queue, 0
            ):
                values = (units.numbers[row], units.physical_offsets[row], units.sizes[row], units.tags[row])
                rows.append((*queue, *map(int, values)))
        yield batch(UNITS, rows)


def found_units(part: QueueFilePart) -> Iterator[pa.RecordBatch]:
    """Yield the units of a queue file that are in the wanted buckets."""
    file = part.file
    assert part.wanted is not None, "some buckets are wanted"
    numbers, units = queue_units(part.view, file)
    buckets = np.array(
        [
            bucket
            for topic, queue_id, bucket in part.wanted
            if (topic, queue_id) == (file.topic, file.queue_id)
        ]
    )
    chosen = np.isin(numbers >> QUEUE_BITS, buckets)
    schedule = file.topic == SCHEDULE_TOPIC
    rows = [
        (file.topic, file.queue_id, number, physical_offset, size, 0 if schedule else tags)
        for number, (physical_offset, size, tags) in zip(
            numbers[chosen].tolist(), units[chosen].tolist(), strict=True
        )
    ]
    yield batch(UNITS, rows)


def queue_rows(
    session: "SparkSession",
    view: DerivedFiles,
    splits: Sequence[tuple[int, int]],
    on_progress: ProgressCallback,
) -> list[Row]:
    """Return a row for each queue, and one for the log if it is damaged."""
    buckets = buckets_of(session, view, splits).cache()
    try:
        queues = buckets.filter("topic IS NOT NULL")
        totals = queue_totals(queues)
        unequal = queues.filter("expected <> found OR low <> 0 OR high <> 0")
        differing = unequal.orderBy("topic", "queueId", "bucket").limit(BUCKETS_MAX + 1).collect()
        damaged = buckets.filter("fault IS NOT NULL").orderBy("bucket")
        faults = damaged.limit(2).collect()
        fault_count = damaged.count() if faults else 0
    finally:
        buckets.unpersist()
    details = queue_details(session, view, splits, differing[:BUCKETS_MAX], on_progress)
    more = {(row["topic"], row["queueId"]) for row in differing[BUCKETS_MAX:]}
    rows = [log_row(view, faults, fault_count)] if faults or (view.fault and not view.live) else []
    rows += [
        queue_row(view, queue, total, details.get(queue, (0, 0, 0, 0, None)), more=queue in more)
        for queue, total in totals.items()
    ]
    for queue, problem in sorted(view.broken.items()):
        if queue not in totals:
            rows.append(("queue", f"{queue[0]}/{queue[1]}", 0, 0, 0, 0, 0, None, problem))
    return rows


def buckets_of(session: "SparkSession", view: DerivedFiles, splits: Sequence[tuple[int, int]]) -> "DataFrame":
    """Return the buckets with the sums of both sides: what the log expects, and what the files have."""
    from pyspark.sql import functions as f

    expected = parallelize(session, [LogSplit(view, *split) for split in splits], expected_sums, QUEUE_SUMS)
    files = [QueueFilePart(view, file) for file in view.queues]
    found = parallelize(session, files, found_sums, QUEUE_SUMS, size=queue_bytes(view.queues))
    sides = expected.withColumn("side", f.lit(1)).unionByName(found.withColumn("side", f.lit(0)))

    def sum_of(side: int, name: str) -> "Column":
        return f.sum(f.when(f.col("side") == side, f.col(name)).otherwise(0))

    return sides.groupBy("topic", "queueId", "bucket").agg(
        sum_of(1, "count").alias("expected"),
        sum_of(0, "count").alias("found"),
        (sum_of(1, "low") - sum_of(0, "low")).alias("low"),
        (sum_of(1, "high") - sum_of(0, "high")).alias("high"),
        f.min(f.when(f.col("side") == 1, f.col("least"))).alias("least"),
        f.max(f.when(f.col("side") == 1, f.col("greatest"))).alias("greatest"),
        f.sum("behind").alias("behind"),
        f.min("firstBehind").alias("firstBehind"),
        f.min("fault").alias("fault"),
    )


def queue_totals(buckets: "DataFrame") -> dict[tuple[str, int], tuple[int, int, int, int | None]]:
    """Return by queue the entries expected, found, and behind the log's end, and the first of those."""
    from pyspark.sql import functions as f

    rows = (
        buckets.groupBy("topic", "queueId")
        .agg(f.sum("expected"), f.sum("found"), f.sum("behind"), f.min("firstBehind"))
        .orderBy("topic", "queueId")
        .collect()
    )
    return {(row[0], row[1]): (row[2], row[3], row[4], row[5]) for row in rows}


def log_row(view: DerivedFiles, faults: Sequence[Any], count: int) -> Row:
    """Return the row of a damaged log."""
    if faults:
        first, what = faults[0]["bucket"], faults[0]["fault"]
        more = f" (and {count - 1} more)" if count > 1 else ""
    else:
        first, what, more = view.end, view.fault, ""
    return (
        "log",
        "commitlog",
        None,
        None,
        None,
        None,
        None,
        first,
        f"the log is damaged at {first}: {what}{more}",
    )


def queue_row(
    view: DerivedFiles,
    queue: tuple[str, int],
    totals: tuple[int, int, int, int | None],
    detail: tuple[int, int, int, int, int | None],
    *,
    more: bool,
) -> Row:
    """Return the row of a queue."""
    due, there, after, first_after = totals
    wrong, tags, missing, surplus, first = detail
    reasons = []
    if missing == due > 0 and not there:
        reasons.append("it is missing, although the log has records of it")
    elif missing:
        reasons.append(f"{missing} records have no entry")
    if wrong:
        reasons.append(f"{wrong} entries name another record")
    if tags:
        reasons.append(f"{tags} entries have a wrong tags code")
    if surplus:
        reasons.append(f"{surplus} entries have no record")
    if after:
        first = first_after if first is None else min(first, first_after or first)
        reasons.append(f"{after} entries are of records behind the log's end at {view.end}")
    if more:
        reasons.append("there is more that differs than was looked into")
    if problem := view.broken.get(queue):
        reasons.append(problem)
    name = f"{queue[0]}/{queue[1]}"
    return (
        "queue",
        name,
        due,
        there,
        wrong + tags,
        missing,
        surplus + after,
        first,
        "; ".join(reasons) or None,
    )


def queue_bytes(files: Iterable[QueueFile]) -> int:
    """Return how many bytes queue files have."""
    return sum(file.count for file in files) * 20


def queue_details(
    session: "SparkSession",
    view: DerivedFiles,
    splits: Sequence[tuple[int, int]],
    differing: Sequence[Any],
    on_progress: ProgressCallback,
) -> dict[tuple[str, int], tuple[int, int, int, int, int | None]]:
    """Return (wrong, wrong tags, missing, surplus, first bad offset) of queues with buckets that differ."""
    from pyspark.sql import functions as f

    if not differing:
        return {}
    on_progress(f"looking into {len(differing)} parts of queues that differ")
    wanted = frozenset((row["topic"], row["queueId"], row["bucket"]) for row in differing)
    spans = [(row["least"], row["greatest"]) for row in differing if row["least"] is not None]
    parts = [LogSplit(view, *split, wanted) for split in touched(splits, spans)]
    queues = {(topic, queue_id) for topic, queue_id, _ in wanted}
    files = [
        QueueFilePart(view, file, wanted) for file in view.queues if (file.topic, file.queue_id) in queues
    ]
    due = parallelize(session, parts, expected_units, UNITS).toDF(
        "topic", "queueId", "number", "due", "dueSize", "dueTags"
    )
    there = parallelize(session, files, found_units, UNITS, size=queue_bytes(part.file for part in files))
    kind = (
        f.when(f.expr("physical_offset IS NULL"), "missing")
        .when(
            f.expr("due IS NULL"),
            f.when(
                f.expr(f"physical_offset >= {view.begin} AND physical_offset < {view.entries_due}"), "surplus"
            ),
        )
        .when(f.expr("physical_offset <> due OR size <> dueSize"), "wrong")
        .when(f.expr("tags <> dueTags"), "tags")
    )
    joined = due.join(there, ["topic", "queueId", "number"], "full").withColumn("kind", kind)
    bad = (
        joined.filter("kind IS NOT NULL")
        .groupBy("topic", "queueId")
        .agg(
            *(f.count_if(f.col("kind") == name) for name in ("wrong", "tags", "missing", "surplus")),
            f.min("number"),
        )
    )
    return {(row[0], row[1]): tuple(row)[2:] for row in bad.collect()}
