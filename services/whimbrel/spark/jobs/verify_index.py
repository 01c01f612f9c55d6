"""Do a store's consume queues and index say what its log says?

    log     splits, a task each ──► entries that should be there ──► sums by bucket ─┐
    files   queues and index, a task each ──► entries that are ──► sums by bucket ────┴─► buckets that differ
    those   entries of both sides, joined: wrong, missing, without a record

Only buckets whose sums differ (`auditing/sums.py`) are read a second time and joined, so a store in which all
is well moves no entries at all, and one with some damage few. What of a store is looked at is as in `whimbrel
store verify`, which does the same in one process: `auditing/derived.py`.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from whimbrel.spark.auditing.compared import Row
from whimbrel.spark.auditing.derived import DerivedView, view_of
from whimbrel.spark.auditing.findings import bytes_text
from whimbrel.spark.auditing.index import index_rows
from whimbrel.spark.auditing.queues import queue_rows
from whimbrel.spark.auditing.spread import asked
from whimbrel.spark.jobs import JobError, Tell, silent

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
    tell(f"{view.root}: {bytes_text(view.end - view.begin)} of log, {len(view.queues)} queue files")
    return [*queue_rows(session, view, splits, tell), *index_rows(session, view, splits, tell)]


def look(question: tuple[Path, int]) -> DerivedView:
    """Look at a store; for a task."""
    return view_of(*question)
