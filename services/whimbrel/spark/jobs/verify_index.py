"""Do a store's consume queues and index say what its log says?

    log     splits, a task each ──► entries that should be there ──► sums by bucket ─┐
    files   queues and index, a task each ──► entries that are ──► sums by bucket ────┴─► buckets that differ
    those   entries of both sides, joined: wrong, missing, without a record

Only buckets whose sums differ (`auditing/sums.py`) are read a second time and joined, so a store in which all
is well moves no entries at all, and one with some damage few. What of a store is looked at is as in `whimbrel
store verify`, which does the same in one process: `auditing/derived.py`.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from whimbrel.spark.auditing.derived import DerivedView, QueueFile, index_part, queue_units, scan, view_of
from whimbrel.spark.auditing.entries import keys_of, units_of
from whimbrel.spark.auditing.spread import asked, spread
from whimbrel.spark.auditing.sums import INDEX_BITS, QUEUE_BITS, grouped, mixed
from whimbrel.spark.jobs import JobError, Tell, silent

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

__all__ = ["Fault", "VerifyOptions", "faults_of", "verify_index"]

SPLIT_BYTES = 128 << 20
BUCKETS_MAX = 20_000  # that differ and are looked into, of the queues and of the index each
REPORT = (
    "what string, name string, expected long, found long, wrong long, missing long, surplus long,"
    " firstBad long, finding string"
)
ROW_TYPES = {
    "string": pa.string(), "long": pa.int64(), "int": pa.int32(), "boolean": pa.bool_(),
}  # fmt: skip

QUEUE_SUMS = (
    "topic string, queueId int, bucket long, count long, low long, high long, least long, greatest long,"
    " behind long, firstBehind long, fault string"
)
INDEX_SUMS = "bucket long, count long, low long, high long"
INDEX_FILES = "name string, count long, begin long, end long, faults long, firstFault long, fault string"
UNITS = "topic string, queueId int, number long, place long, size int, tags long"
KEYS = "place long, hash long, name string"


@dataclass(frozen=True, slots=True, kw_only=True)
class VerifyOptions:
    """What is verified.

    Attributes:
        store: the directory with commitlog/ in it.
        index_slots: of an index file, where RocketMQ's quarter of its entries does not hold; 0 for that.
        split_bytes: of the log, read by a task.
    """

    store: Path
    index_slots: int = 0
    split_bytes: int = SPLIT_BYTES

    def __post_init__(self) -> None:
        """Refuse what can't be split."""
        if self.split_bytes < 1:
            raise JobError("--split-bytes is at least 1")


@dataclass(frozen=True, slots=True)
class Fault:
    """Something that is wrong.

    Attributes:
        queue: TOPIC/ID; "" for the index and the log.
        first_bad: the first queue offset, or the physical offset of the first record.
    """

    queue: str
    first_bad: int | None
    finding: str


Row = tuple[Any, ...]


def verify_index(session: "SparkSession", options: VerifyOptions, tell: Tell = silent) -> "DataFrame":
    """Compare queues and index with the log: a row for each queue and each index file.

    Raises:
        JobError: there is no store.
    """
    return session.createDataFrame(report(session, options, tell), REPORT)


def faults_of(session: "SparkSession", options: VerifyOptions, tell: Tell = silent) -> list[Fault]:
    """Return only what is wrong."""
    return [
        Fault(row[1] if row[0] == "queue" else "", row[7], row[8])
        for row in report(session, options, tell)
        if row[8] is not None
    ]


def report(session: "SparkSession", options: VerifyOptions, tell: Tell) -> list[Row]:
    """Return the rows."""
    view = asked(session, [(options.store, options.index_slots)], look)[0]
    splits = view.splits(options.split_bytes, view.begin, view.end)
    tell(f"{view.root}: {(view.end - view.begin) / (1 << 30):.2f} GiB of log, {len(view.queues)} queue files")
    return [*queue_rows(session, view, splits, tell), *index_rows(session, view, splits, tell)]


def look(question: tuple[Path, int]) -> DerivedView:
    """Look at a store; for a task."""
    return view_of(*question)


def batch(schema: str, rows: Sequence[Row]) -> pa.RecordBatch:
    """Return rows as Spark wants them."""
    fields = [word.split() for word in schema.split(",")]
    columns: list[list[Any]] = (
        [list(column) for column in zip(*rows, strict=True)] if rows else [[]] * len(fields)
    )
    arrays = [pa.array(column, ROW_TYPES[kind]) for column, (_, kind) in zip(columns, fields, strict=True)]
    return pa.record_batch(arrays, names=[name for name, _ in fields])


# Queues


@dataclass(frozen=True, slots=True)
class LogPart:
    """A split of the log; `wanted` None sums up, else gives the entries of these buckets."""

    view: DerivedView
    begin: int
    end: int
    wanted: frozenset[Any] | None = None


@dataclass(frozen=True, slots=True)
class FilePart:
    """A queue file; `wanted` as in `LogPart`."""

    view: DerivedView
    file: QueueFile
    wanted: frozenset[Any] | None = None


def expected_sums(part: LogPart) -> Iterator[pa.RecordBatch]:
    """Sum up the units that a split of the log should have; one row more tells of damage."""
    view = part.view
    walk, found = scan(view, part.begin, part.end)
    for records in found:
        units = units_of(records)
        queues = units.topic_ids << 32 | units.queue_ids
        kinds, which = np.unique(queues, return_inverse=True)
        floors = np.array(
            [view.floors.get((units.topics[kind >> 32], kind & 0xFFFFFFFF), 0) for kind in kinds.tolist()],
            np.int64,
        )
        due = units.places < view.entries_due
        due &= units.numbers >= floors[which] if len(kinds) else due
        rows = []
        if due.any():
            numbers, places, sizes, tags = (
                values[due] for values in (units.numbers, units.places, units.sizes, units.tags)
            )
            queues = which[due]
            buckets = numbers >> QUEUE_BITS
            _, keys = np.unique(np.stack([queues, buckets]), axis=1, return_inverse=True)
            sums = grouped(keys.reshape(-1), mixed(numbers, places, sizes, tags), places)
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


def found_sums(part: FilePart) -> Iterator[pa.RecordBatch]:
    """Sum up the units of a queue file."""
    view, file = part.view, part.file
    numbers, units = queue_units(view, file)
    places, sizes = units["place"].astype(np.int64), units["size"].astype(np.int64)
    tags = (
        units["tags"].astype(np.int64)
        if file.topic != "SCHEDULE_TOPIC_XXXX"
        else np.zeros(len(units), np.int64)
    )
    rows = []
    inside = (places >= view.begin) & (places < view.entries_due)
    if inside.any():
        chosen = [values[inside] for values in (numbers, places, sizes, tags)]
        sums = grouped(chosen[0] >> QUEUE_BITS, mixed(*chosen), chosen[1])
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
    behind = numbers[places >= view.end] if not view.live else numbers[:0]
    if len(behind):
        first = int(behind[0])
        rows.append(
            (file.topic, file.queue_id, first >> QUEUE_BITS, 0, 0, 0, None, None, len(behind), first, None)
        )
    if rows:
        yield batch(QUEUE_SUMS, rows)


def expected_units(part: LogPart) -> Iterator[pa.RecordBatch]:
    """Give the units that records of the wanted buckets should have."""
    view = part.view
    assert part.wanted is not None, "some buckets are wanted"
    for records in scan(view, part.begin, part.end)[1]:
        units = units_of(records)
        rows = []
        names, buckets = units.topics, units.numbers >> QUEUE_BITS
        for row in np.flatnonzero(units.places < view.entries_due).tolist():
            queue = names[units.topic_ids[row]], int(units.queue_ids[row])
            if (*queue, int(buckets[row])) in part.wanted and units.numbers[row] >= view.floors.get(queue, 0):
                values = (units.numbers[row], units.places[row], units.sizes[row], units.tags[row])
                rows.append((*queue, *map(int, values)))
        yield batch(UNITS, rows)


def found_units(part: FilePart) -> Iterator[pa.RecordBatch]:
    """Give the units of a queue file that are in the wanted buckets."""
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
    schedule = file.topic == "SCHEDULE_TOPIC_XXXX"
    rows = [
        (file.topic, file.queue_id, number, place, size, 0 if schedule else tags)
        for number, (place, size, tags) in zip(numbers[chosen].tolist(), units[chosen].tolist(), strict=True)
    ]
    yield batch(UNITS, rows)


def queue_rows(
    session: "SparkSession", view: DerivedView, splits: Sequence[tuple[int, int]], tell: Tell
) -> list[Row]:
    """Return the rows of the queues, and one of the log when it is damaged."""
    from pyspark.sql import functions as f

    expected = spread(session, [LogPart(view, *split) for split in splits], expected_sums, QUEUE_SUMS)
    found = spread(
        session,
        [FilePart(view, file) for file in view.queues],
        found_sums,
        QUEUE_SUMS,
        size=queue_bytes(view.queues),
    )
    sides = expected.withColumn("side", f.lit(1)).unionByName(found.withColumn("side", f.lit(0)))

    def of(side: int, name: str) -> "Column":
        return f.sum(f.when(f.col("side") == side, f.col(name)).otherwise(0))

    buckets = (
        sides.groupBy("topic", "queueId", "bucket")
        .agg(
            of(1, "count").alias("expected"),
            of(0, "count").alias("found"),
            (of(1, "low") - of(0, "low")).alias("low"),
            (of(1, "high") - of(0, "high")).alias("high"),
            f.min(f.when(f.col("side") == 1, f.col("least"))).alias("least"),
            f.max(f.when(f.col("side") == 1, f.col("greatest"))).alias("greatest"),
            f.sum("behind").alias("behind"),
            f.min("firstBehind").alias("firstBehind"),
            f.min("fault").alias("fault"),
        )
        .cache()
    )
    try:
        totals = (
            buckets.filter("topic IS NOT NULL")
            .groupBy("topic", "queueId")
            .agg(f.sum("expected"), f.sum("found"), f.sum("behind"), f.min("firstBehind"))
            .orderBy("topic", "queueId")
            .collect()
        )
        unequal = buckets.filter("topic IS NOT NULL AND (expected <> found OR low <> 0 OR high <> 0)")
        differing = unequal.orderBy("topic", "queueId", "bucket").limit(BUCKETS_MAX + 1).collect()
        faults = buckets.filter("fault IS NOT NULL").orderBy("bucket").limit(2).collect()
        fault_count = buckets.filter("fault IS NOT NULL").count() if faults else 0
    finally:
        buckets.unpersist()
    details = queue_details(session, view, splits, differing[:BUCKETS_MAX], tell)
    more = {(row["topic"], row["queueId"]) for row in differing[BUCKETS_MAX:]}
    rows = [log_row(view, faults, fault_count)] if faults or (view.fault and not view.live) else []
    seen = set()
    for topic, queue_id, due, there, after, first_after in totals:
        seen.add((topic, queue_id))
        detail = details.get((topic, queue_id), (0, 0, 0, 0, None))
        rows.append(
            queue_row(
                view,
                (topic, queue_id),
                (due, there, after, first_after),
                detail,
                more=(topic, queue_id) in more,
            )
        )
    for queue, problem in sorted(view.broken.items()):
        if queue not in seen:
            rows.append(("queue", f"{queue[0]}/{queue[1]}", 0, 0, 0, 0, 0, None, problem))
    return rows


def log_row(view: DerivedView, faults: Sequence[Any], count: int) -> Row:
    """Return the row of a log that is damaged."""
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
    view: DerivedView,
    queue: tuple[str, int],
    totals: tuple[int, int, int, int | None],
    detail: tuple[int, int, int, int, int | None],
    *,
    more: bool,
) -> Row:
    """Return the row of a queue."""
    due, there, after, first_after = totals
    wrong, tags, missing, surplus, first = detail
    told = []
    if missing == due > 0 and not there:
        told.append("it is missing, although the log has records of it")
    elif missing:
        told.append(f"{missing} records have no entry")
    if wrong:
        told.append(f"{wrong} entries name another record")
    if tags:
        told.append(f"{tags} entries have a wrong tags code")
    if surplus:
        told.append(f"{surplus} entries have no record")
    if after:
        first = first_after if first is None else min(first, first_after or first)
        told.append(f"{after} entries are of records behind the log's end at {view.end}")
    if more:
        told.append("there is more that differs than was looked into")
    if problem := view.broken.get(queue):
        told.append(problem)
    name = f"{queue[0]}/{queue[1]}"
    return ("queue", name, due, there, wrong + tags, missing, surplus + after, first, "; ".join(told) or None)


def queue_bytes(files: Iterable[QueueFile]) -> int:
    """Return how many bytes queue files have."""
    return sum(file.count for file in files) * 20


def queue_details(
    session: "SparkSession",
    view: DerivedView,
    splits: Sequence[tuple[int, int]],
    differing: Sequence[Any],
    tell: Tell,
) -> dict[tuple[str, int], tuple[int, int, int, int, int | None]]:
    """Return (wrong, wrong tags, missing, surplus, first bad offset) of queues with buckets that differ."""
    from pyspark.sql import functions as f

    if not differing:
        return {}
    tell(f"looking into {len(differing)} parts of queues that differ")
    wanted = frozenset((row["topic"], row["queueId"], row["bucket"]) for row in differing)
    spans = [(row["least"], row["greatest"]) for row in differing if row["least"] is not None]
    parts = [LogPart(view, *split, wanted) for split in touched(splits, spans)]
    queues = {(topic, queue_id) for topic, queue_id, _ in wanted}
    files = [FilePart(view, file, wanted) for file in view.queues if (file.topic, file.queue_id) in queues]
    due = spread(session, parts, expected_units, UNITS).toDF(
        "topic", "queueId", "number", "due", "dueSize", "dueTags"
    )
    there = spread(session, files, found_units, UNITS, size=queue_bytes(part.file for part in files))
    kind = (
        f.when(f.expr("place IS NULL"), "missing")
        .when(
            f.expr("due IS NULL"),
            f.when(f.expr(f"place >= {view.begin} AND place < {view.entries_due}"), "surplus"),
        )
        .when(f.expr("place <> due OR size <> dueSize"), "wrong")
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


def touched(splits: Sequence[tuple[int, int]], spans: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
    """Return the splits in which any of some spans lies; spans include their ends."""
    if not spans:
        return []
    found = []
    ordered = sorted(spans)
    at, reach = 0, -1
    for begin, end in splits:
        while at < len(ordered) and ordered[at][0] < end:
            reach = max(reach, ordered[at][1])
            at += 1
        if reach >= begin:
            found.append((begin, end))
    return found


# Index


@dataclass(frozen=True, slots=True)
class IndexFilePart:
    """An index file; `wanted` as in `LogPart`."""

    view: DerivedView
    path: Path
    wanted: frozenset[int] | None = None


def expected_key_sums(part: LogPart) -> Iterator[pa.RecordBatch]:
    """Sum up the keys that a split of the log should have in the index."""
    for records in scan(part.view, part.begin, part.end)[1]:
        keys = keys_of(records)
        due = keys.places < part.view.keys_due
        yield key_sums(keys.places[due], keys.hashes[due])


def found_key_sums(part: IndexFilePart) -> Iterator[pa.RecordBatch]:
    """Sum up the entries of an index file."""
    found = index_part(part.view, part.path)
    inside = (found.places >= part.view.begin) & (found.places < part.view.keys_due)
    yield key_sums(found.places[inside], found.hashes[inside])


def key_sums(places: Any, hashes: Any) -> pa.RecordBatch:
    """Sum up entries by the MiB of the log in which their record is."""
    rows: list[Row] = []
    if len(places):
        sums = grouped(places >> INDEX_BITS, mixed(places, hashes), places)
        buckets = places[sums.first] >> INDEX_BITS
        columns = (buckets, sums.counts, sums.low, sums.high)
        rows = list(zip(*(column.tolist() for column in columns), strict=True))
    return batch(INDEX_SUMS, rows)


def index_files(part: IndexFilePart) -> Iterator[pa.RecordBatch]:
    """Tell of an index file."""
    found = index_part(part.view, part.path)
    first, what = found.faults[0] if found.faults else (None, None)
    row = (part.path.name, found.count, found.begin, found.end, len(found.faults), first, what)
    yield batch(INDEX_FILES, [row])


def expected_keys(part: LogPart) -> Iterator[pa.RecordBatch]:
    """Give the keys of records in the wanted buckets."""
    for records in scan(part.view, part.begin, part.end)[1]:
        keys = keys_of(records)
        due = keys.places < part.view.keys_due
        yield chosen_keys(keys.places[due], keys.hashes[due], part.wanted, "")


def found_keys(part: IndexFilePart) -> Iterator[pa.RecordBatch]:
    """Give the entries of an index file that are in the wanted buckets."""
    found = index_part(part.view, part.path)
    inside = (found.places >= part.view.begin) & (found.places < part.view.keys_due)
    yield chosen_keys(found.places[inside], found.hashes[inside], part.wanted, part.path.name)


def chosen_keys(places: Any, hashes: Any, wanted: frozenset[Any] | None, name: str) -> pa.RecordBatch:
    """Return the entries of some buckets."""
    assert wanted is not None, "some buckets are wanted"
    chosen = np.isin(places >> INDEX_BITS, np.array(sorted(wanted), np.int64))
    count = int(chosen.sum())
    arrays = [pa.array(places[chosen]), pa.array(hashes[chosen]), pa.array([name] * count, pa.string())]
    return pa.record_batch(arrays, names=["place", "hash", "name"])


def index_rows(
    session: "SparkSession", view: DerivedView, splits: Sequence[tuple[int, int]], tell: Tell
) -> list[Row]:
    """Return the rows of the index files, and one for keys that no file covers."""
    from pyspark.sql import functions as f

    parts = [IndexFilePart(view, path) for path in view.index]
    files = sorted(
        tuple(row)
        for row in spread(session, parts, index_files, INDEX_FILES, size=index_bytes(view)).collect()
    )
    expected = spread(session, [LogPart(view, *split) for split in splits], expected_key_sums, INDEX_SUMS)
    found = spread(session, parts, found_key_sums, INDEX_SUMS, size=index_bytes(view))
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
    missing, wrong = index_details(session, view, splits, differing[:BUCKETS_MAX], tell)
    return named_rows(files, total, missing, wrong, more=len(differing) > BUCKETS_MAX)


def index_bytes(view: DerivedView) -> int:
    """Return how many bytes the index files have."""
    return len(view.index) * 20 * view.index_entries


def index_details(
    session: "SparkSession",
    view: DerivedView,
    splits: Sequence[tuple[int, int]],
    differing: Sequence[int],
    tell: Tell,
) -> tuple[list[tuple[int, int]], dict[str, tuple[int, int]]]:
    """Return (least place, keys) of what is missing by bucket, and by file what is of no record's."""
    from pyspark.sql import functions as f

    if not differing:
        return [], {}
    tell(f"looking into {len(differing)} parts of the index that differ")
    wanted = frozenset(differing)
    spans = [(bucket << INDEX_BITS, ((bucket + 1) << INDEX_BITS) - 1) for bucket in differing]
    parts = [LogPart(view, *split, wanted) for split in touched(splits, spans)]
    files = [IndexFilePart(view, path, wanted) for path in view.index]
    due = spread(session, parts, expected_keys, KEYS).drop("name")
    there = spread(session, files, found_keys, KEYS, size=index_bytes(view))
    missing = (
        due.distinct()
        .join(there.select("place", "hash").distinct(), ["place", "hash"], "anti")
        .groupBy(f.shiftright("place", INDEX_BITS))
        .agg(f.min("place"), f.count("*"))
    )
    wrong = (
        there.join(due.distinct(), ["place", "hash"], "anti")
        .groupBy("name")
        .agg(f.count("*"), f.min("place"))
    )
    return (
        sorted((row[1], row[2]) for row in missing.collect()),
        {row[0]: (row[1], row[2]) for row in wrong.collect()},
    )


def named_rows(
    files: Sequence[Row],
    total: int,
    missing: Sequence[tuple[int, int]],
    wrong: dict[str, tuple[int, int]],
    *,
    more: bool,
) -> list[Row]:
    """Return a row for each index file; what is missing counts for the file in whose range it would be."""
    lacking: dict[str, list[tuple[int, int]]] = {}
    for place, count in missing:
        covering = [name for name, _, begin, end, *_ in files if begin <= place <= end]
        lacking.setdefault(covering[0] if covering else "", []).append((place, count))
    rows: list[Row] = []
    for name, count, _, _, faults, position, fault in files:
        absent = lacking.pop(name, [])
        keys = sum(found for _, found in absent)
        strange, first_strange = wrong.get(name, (0, None))
        told = []
        if keys:
            told.append(f"{keys} keys are missing")
        if strange:
            told.append(f"{strange} entries are of no record's key")
        if faults:
            told.append(f"at byte {position}: {fault}" + (f" (and {faults - 1} more)" if faults > 1 else ""))
        first = min(
            [place for place, _ in absent] + ([first_strange] if first_strange is not None else []),
            default=None,
        )
        rows.append(("index", name, None, count, strange, keys, 0, first, "; ".join(told) or None))
    beyond = lacking.get("", [])
    keys = sum(found for _, found in beyond)
    what = f"{keys} keys of records are in no index file" if keys else None
    if more:
        what = f"{what}; " if what else "" + "there is more that differs than was looked into"
    first = min((place for place, _ in beyond), default=None)
    rows.append(("index", "(all)", total, sum(row[1] for row in files), 0, keys, 0, first, what))
    return rows
