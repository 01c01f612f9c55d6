"""`verify-index`: compares a store's consume queues and index with its log.

    log     splits, a task each ──► entries that should be there ──► sums by bucket ─┐
    files   queues and index, a task each ──► entries that are ──► sums by bucket ────┴─► buckets that differ
    those   entries of both sides, joined: wrong, missing, without a record

Only buckets whose sums differ (`auditing/bucket_sums.py`) are read a second time and joined. So of an intact
store no entries are moved between tasks, and of one with some damage few. `auditing/derived_files.py` says
which entries are verified: the same as by `whimbrel store verify`, which does this in one process.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from whimbrel.spark.auditing.comparison import Row
from whimbrel.spark.auditing.derived_files import DerivedFiles, describe_derived_files
from whimbrel.spark.auditing.findings import bytes_text
from whimbrel.spark.auditing.index import index_rows
from whimbrel.spark.auditing.parallel import run_each
from whimbrel.spark.auditing.queues import queue_rows
from whimbrel.spark.reporting import JobError, ProgressCallback, ignore_progress

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

__all__ = ["Fault", "VerifyOptions", "faults_of", "verify_index"]

SPLIT_BYTES = 128 << 20
REPORT = (
    "what string, name string, expected long, found long, wrong long, missing long, surplus long,"
    " firstBad long, finding string"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class VerifyOptions:
    """What is verified.

    Attributes:
        store: the directory with commitlog/ in it.
        index_slots: slots of an index file; 0 for RocketMQ's rule, a quarter of its entries.
        split_bytes: of the log, read by one task.
    """

    store: Path
    index_slots: int = 0
    split_bytes: int = SPLIT_BYTES

    def __post_init__(self) -> None:
        """Raise JobError for a size that is none."""
        if self.split_bytes < 1:
            raise JobError("--split-bytes is at least 1")


@dataclass(frozen=True, slots=True)
class Fault:
    """A finding, with where it begins.

    Attributes:
        queue: TOPIC/ID; "" for the index and the log.
        first_bad: the first queue offset, or the physical offset of the first record.
    """

    queue: str
    first_bad: int | None
    finding: str


def verify_index(
    session: "SparkSession", options: VerifyOptions, on_progress: ProgressCallback = ignore_progress
) -> "DataFrame":
    """Compare queues and index with the log: a row for each queue and each index file.

    Raises:
        JobError: there is no store.
    """
    return session.createDataFrame(report(session, options, on_progress), REPORT)


def faults_of(
    session: "SparkSession", options: VerifyOptions, on_progress: ProgressCallback = ignore_progress
) -> list[Fault]:
    """Return the findings only."""
    return [
        Fault(row[1] if row[0] == "queue" else "", row[7], row[8])
        for row in report(session, options, on_progress)
        if row[8] is not None
    ]


def report(session: "SparkSession", options: VerifyOptions, on_progress: ProgressCallback) -> list[Row]:
    """Return the rows."""
    view = run_each(session, [(options.store, options.index_slots)], describe_store)[0]
    splits = view.splits(options.split_bytes, view.begin, view.end)
    on_progress(f"{view.root}: {bytes_text(view.end - view.begin)} of log, {len(view.queues)} queue files")
    return [*queue_rows(session, view, splits, on_progress), *index_rows(session, view, splits, on_progress)]


def describe_store(arguments: tuple[Path, int]) -> DerivedFiles:
    """Describe a store's files; runs in a task."""
    return describe_derived_files(*arguments)
