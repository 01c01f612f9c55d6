"""`archive`: topics into Parquet files, and a check of what an archive holds. `compact` has its own module.

The job is a stream of the source, by default one that ends at the messages that are there when it begins
(AvailableNow). Each micro-batch goes through `foreachBatch`: tasks write hidden files (`mapInArrow`), then
the driver makes them visible and writes the manifest (`archiving.batches` says what a kill at any moment
leaves).

The checkpoint is in the archive, `_checkpoints/default`, unless another one is named. Its folder also has
`archive.json`, with the id of the query, which names the files: batches keep it over restarts, and a new
checkpoint gets a new one. A new query begins at the first message that is there. If the archive already has
some of what it would read, it refuses to begin, or with `resume` begins behind that.

A micro-batch takes at most BATCH_BYTES of the log, so a kill costs no more than that.
"""

import json
import signal
import threading
import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from whimbrel.spark.archiving import checking
from whimbrel.spark.archiving.batches import Batch, clear_abandoned
from whimbrel.spark.archiving.compacting import recover
from whimbrel.spark.archiving.files import ARCHIVED, BatchTarget, Staged, write_task
from whimbrel.spark.archiving.folder import ArchiveError, Folder, write_error
from whimbrel.spark.archiving.manifests import Manifest, ManifestEntry
from whimbrel.spark.archiving.tables import TableOptions, open_table
from whimbrel.spark.brokers import away_text
from whimbrel.spark.offsets import AWAY, Key, to_checkpoint
from whimbrel.spark.options import parse
from whimbrel.spark.reporting import JobError, ProgressCallback, ignore_progress

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

__all__ = ["ArchiveOptions", "CheckOptions", "archive", "check"]

BATCH_BYTES = 1 << 30
POLL_S = 0.2  # between polls of the query, for the progress that is reported
CHECK_TASKS_MAX = 1000
STOP_S = 60.0  # in which a batch that is in progress at Ctrl-C may end
CHECKPOINTS, IDENTITY = "_checkpoints", "archive.json"
STAGED = "staged string"


@dataclass(frozen=True, slots=True, kw_only=True)
class ArchiveOptions:
    """What is archived, and how.

    Attributes:
        root: the folder of the archive; the same path on the driver and on all executors.
        source: options of the source, among them `servers` or `store`, and the topics.
        every_s: seconds from one batch to the next, without end; 0: archive what is there now, and end.
        checkpoint: where the query's state is; None: in the archive.
        resume: a new query starts behind what the archive has.
        queues: report by queue.
    """

    root: Path
    source: Mapping[str, str]
    every_s: float = 0.0
    checkpoint: Path | None = None
    resume: bool = False
    table: TableOptions | None = None
    queues: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckOptions:
    """What is checked; `deep` reads the files as well."""

    root: Path
    deep: bool = False
    queues: bool = False


def archive(
    session: "SparkSession", options: ArchiveOptions, on_progress: ProgressCallback = ignore_progress
) -> "DataFrame":
    """Archive topics; the report covers the files of this run, and gaps anywhere in their queues.

    Raises:
        ArchiveError: the archive can't be written, or has some of it already.
        JobError: the options do not go together.
        OptionError: an option of the source is wrong.
    """
    folder = Folder(options.root)
    options = replace(options, root=folder.root)
    folder.create()
    parse(source_options(options, {}), streaming=True)
    query_id, new = identity(options)
    if options.table is not None:
        open_table(folder.root, options.table)  # raises before Spark starts if a library is missing
    recover(folder, on_progress)
    before = {manifest_key(manifest) for manifest in folder.manifests()}
    starting = first_offsets(folder, options, query_id) if new else {}
    reader = session.readStream.format("whimbrel").options(**source_options(options, starting))
    frame = reader.schema(source_schema()).load()
    writer = frame.writeStream.foreachBatch(BatchSink(str(folder.root), query_id, options.table))
    writer = writer.option("checkpointLocation", str(checkpoint_of(options)))
    if options.every_s:
        writer = writer.trigger(processingTime=f"{max(round(options.every_s * 1000), 1)} milliseconds")
    else:
        writer = writer.trigger(availableNow=True)
    query = writer.start()
    run_to_end(query, on_progress)
    every = folder.manifests()
    written = [m for m in every if manifest_key(m) not in before and m.query == query_id]
    entries = [entry for manifest in written for entry in manifest.entries]
    away = away_in(query.recentProgress)
    left_out = f"; without what these have: {away_text(away)}" if away else ""
    on_progress(
        f"{sum(entry.rows for entry in entries)} messages archived, batches: {len(written)}{left_out}"
    )
    lines = checking.report(entries, all_entries=folder.entries(), queues=options.queues)
    return table_of(session, lines)


def check(
    session: "SparkSession", options: CheckOptions, on_progress: ProgressCallback = ignore_progress
) -> "DataFrame":
    """Find gaps, overlaps, lost and stray files; with `deep`, damaged ones.

    Raises:
        ArchiveError: there is no archive.
        ValueError: a manifest can't be read.
    """
    folder = Folder(options.root)
    folder.check()
    manifests, entries = folder.manifests(), folder.entries()
    names = [str(path.relative_to(folder.root)) for path in folder.data_files()]
    replaced = [path for manifest in manifests for path in manifest.replaces]
    left = checking.leftovers(names, entries, replaced, folder.under_way())
    if left.unfinished:
        on_progress(
            f"{len(left.unfinished)} files are of batches that are under way or were cut short"
            f" ({left.unfinished[0]}); they are harmless, and the next run of the same query removes them"
        )
    there = set(names)
    broken = {entry.path: "is gone" for entry in entries if entry.path not in there}
    if options.deep:
        on_progress(
            f"reading {len(entries) - len(broken)} files, {sum(entry.size for entry in entries)} bytes"
        )
        broken |= damaged(session, folder.root, [entry for entry in entries if entry.path in there])
    lines = checking.report(
        entries, all_entries=entries, queues=options.queues, broken=broken, stray=left.stray
    )
    lines += [
        (None, *(None,) * 11, f"compaction {number} in place was cut short: run compact --in-place again")
        for _, number in folder.switching()
    ]
    on_progress(
        f"{len(manifests)} manifests, {len(entries)} files, {sum(entry.rows for entry in entries)} messages"
    )
    return table_of(session, lines)


@dataclass(frozen=True, slots=True)
class BatchSink:
    """Archives a micro-batch; called by Spark on the driver, under Spark Connect on the server."""

    root: str
    query: str
    table: TableOptions | None

    def __call__(self, frame: "DataFrame", number: int) -> None:
        """Write the batch, unless the archive has it."""
        folder = Folder(Path(self.root))
        table = open_table(folder.root, self.table) if self.table is not None else None
        try:
            with folder.locked(self.query):
                clear_abandoned(folder, self.query, table)
                batch = Batch(folder, self.query, number, table)
                if not batch.begin():
                    return
                inside = self.table is not None and self.table.topic_inside
                rows = write_frame(frame, BatchTarget(folder.root, self.query, number, inside))
                batch.finish([Staged.parse(row["staged"]) for row in rows])
        except OSError as error:
            raise write_error(folder.root, error) from error


def write_frame(frame: "DataFrame", target: BatchTarget) -> list[Any]:
    """Have the tasks of a frame write their rows; return a row for each file."""

    def write(batches: "Iterator[pa.RecordBatch]") -> "Iterator[pa.RecordBatch]":
        import pyarrow as pa

        for staged in write_task(target, batches):
            yield pa.RecordBatch.from_arrays([pa.array([staged.text()], pa.string())], ["staged"])

    return list(frame.mapInArrow(write, STAGED).collect())


def source_options(options: ArchiveOptions, starting: Mapping[Key, int]) -> dict[str, str]:
    """Return the options of the stream."""
    fixed = {"decompress": "false", "properties": "map"}
    refused = sorted(name for name in options.source if name.lower() in {*fixed, "tags", "kafkacolumns"})
    if refused:
        raise JobError(
            f"option {', '.join(refused)}: an archive holds whole messages as they are; leave it out"
        )
    given = {"startingOffsets": "earliest", **options.source, **fixed}
    if "maxOffsetsPerTrigger" not in given:
        given.setdefault("maxBytesPerTrigger", str(BATCH_BYTES))
    if starting:
        given["startingOffsets"] = json.dumps(to_checkpoint(starting)["q"])
    return given


def source_schema() -> Any:
    """Return the columns that are archived, as Spark's types."""
    from pyspark.sql.pandas.types import from_arrow_schema

    from whimbrel.store.columns import schema_of

    return from_arrow_schema(schema_of(ARCHIVED))


def checkpoint_of(options: ArchiveOptions) -> Path:
    """Return where the query's state is."""
    return (options.checkpoint or options.root / CHECKPOINTS / "default").absolute()


def identity(options: ArchiveOptions) -> tuple[str, bool]:
    """Return the id of the query that a checkpoint belongs to, and whether it has read nothing yet.

    Raises:
        ArchiveError: the checkpoint belongs to another archive, or can't be written.
    """
    checkpoint = checkpoint_of(options)
    path = checkpoint / IDENTITY
    root = str(options.root.resolve())
    try:
        checkpoint.mkdir(parents=True, exist_ok=True)
        begun = any((checkpoint / "offsets").glob("[0-9]*"))
        if path.exists():
            known = json.loads(path.read_text(encoding="utf-8"))
            if known["root"] != root:
                raise ArchiveError(
                    f"the checkpoint {checkpoint} belongs to the archive {known['root']}, not to {root}: name"
                    " another one with --checkpoint"
                )
            return str(known["query"]), not begun
        if begun:
            raise ArchiveError(
                f"{checkpoint} is the checkpoint of another query: name another one with --checkpoint"
            )
        query = uuid.uuid4().hex[:12]
        disk = Folder(options.root).disk
        waiting = path.with_name(f"_{IDENTITY}.tmp")
        disk.put(waiting, json.dumps({"query": query, "root": root}))
        disk.rename(waiting, path)
        disk.sync(checkpoint)
    except OSError as error:
        raise ArchiveError(
            f"the checkpoint {checkpoint} can't be written: {error.strerror or error}"
        ) from error
    return query, True


def first_offsets(folder: Folder, options: ArchiveOptions, query: str) -> dict[Key, int]:
    """Return where a new query starts, as far as its options do not say.

    Raises:
        ArchiveError: the archive has some of what the query would read, without `resume`.
    """
    wanted = parse(source_options(options, {}), streaming=True)
    ends: dict[Key, int] = {}
    for entry in folder.entries():
        for part in entry.queues:
            if wanted.reads_queue(entry.topic, part.queue_id):
                key = entry.topic, entry.broker, part.queue_id
                ends[key] = max(ends.get(key, 0), part.end)
    if options.resume:
        return ends
    if isinstance(wanted.starting, dict):
        ends = {key: end for key, end in ends.items() if 0 <= wanted.starting.get(key, 0) < end}
    if ends:
        topic, broker, queue_id = min(ends)
        raise ArchiveError(
            f"the archive {folder.root} has {topic}, queue {queue_id} of {broker}, up to offset"
            f" {ends[topic, broker, queue_id]} already, and this query is new to it: resume=true (--resume)"
            " starts after what is there"
        )
    return {}


def away_in(progress: Sequence[Any]) -> dict[str, str]:
    """Return the brokers that were away in some batch of a query, and why."""
    found: dict[str, str] = {}
    for each in progress:
        for source in each["sources"]:
            latest = source["latestOffset"]
            newest = json.loads(latest) if isinstance(latest, str) else latest
            found |= (newest or {}).get(AWAY, {})
    return found


def run_to_end(query: Any, on_progress: ProgressCallback) -> None:
    """Wait for a query's end, reporting its batches; Ctrl-C ends it after the batch in progress.

    Raises:
        StreamingQueryException: it failed.
    """
    reported = -1
    with noting_interrupt() as interrupted:
        while not interrupted.is_set() and not query.awaitTermination(POLL_S):
            reported = report_batches(query, reported, on_progress)
        if interrupted.is_set():
            deadline = time.monotonic() + STOP_S
            while query.isActive and query.status["isTriggerActive"] and time.monotonic() < deadline:
                query.awaitTermination(POLL_S)
            query.stop()
    report_batches(query, reported, on_progress)


@contextmanager
def noting_interrupt() -> Iterator[threading.Event]:
    """Note the first Ctrl-C in place of raising it: within a call to Java, that may fail the calls after it.

    Signals reach the main thread alone; in another one nothing changes.
    """
    interrupted = threading.Event()
    if threading.current_thread() is not threading.main_thread():
        yield interrupted
        return
    before = signal.getsignal(signal.SIGINT) or signal.SIG_DFL

    def note(*_: object) -> None:
        interrupted.set()
        signal.signal(signal.SIGINT, before)

    signal.signal(signal.SIGINT, note)
    try:
        yield interrupted
    finally:
        signal.signal(signal.SIGINT, before)


def report_batches(query: Any, reported: int, on_progress: ProgressCallback) -> int:
    """Report the batches behind the last reported one; return the last one now."""
    for progress in query.recentProgress:
        if progress["batchId"] > reported and progress["numInputRows"]:
            reported = progress["batchId"]
            seconds = progress["batchDuration"] / 1000
            on_progress(f"batch {reported}: {progress['numInputRows']} messages in {seconds:.1f} s")
    return reported


def manifest_key(manifest: Manifest) -> tuple[str, int]:
    """Return the identity of a manifest."""
    return manifest.query, manifest.batch


def table_of(session: "SparkSession", lines: list[tuple[object, ...]]) -> "DataFrame":
    """Return the report as a table."""
    from datetime import UTC, datetime

    def at(value: object) -> object:
        return None if value is None else datetime.fromtimestamp(int(str(value)) / 1000, UTC)

    rows = [(*row[:9], at(row[9]), at(row[10]), *row[11:]) for row in lines]
    return session.createDataFrame(rows, checking.COLUMNS)


def damaged(session: "SparkSession", root: Path, entries: list[ManifestEntry]) -> dict[str, str]:
    """Return the faults of files, by path; tasks read the files."""
    if not entries:
        return {}
    wanted = [(entry.path, entry.size, entry.crc) for entry in entries]
    tasks = min(len(wanted), CHECK_TASKS_MAX)

    def check_files(batches: "Iterator[pa.RecordBatch]") -> "Iterator[pa.RecordBatch]":
        import pyarrow as pa

        from whimbrel.spark.archiving.files import fault_of

        for batch in batches:
            for number in batch.column(0).to_pylist():
                found = [
                    (path, fault)
                    for path, size, crc in wanted[number::tasks]
                    if (fault := fault_of(root / path, size, crc))
                ]
                yield pa.RecordBatch.from_arrays(
                    [pa.array([row[at] for row in found], pa.string()) for at in (0, 1)], ["path", "fault"]
                )

    rows = session.range(0, tasks, 1, tasks).mapInArrow(check_files, "path string, fault string").collect()
    return {row["path"]: row["fault"] for row in rows}
