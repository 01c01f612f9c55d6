"""Work on the items of a list, in the tasks of a Spark job.

Tasks get the list and a function of a module, and nothing else. So this runs wherever a session runs: in one
process, in a cluster, through Spark Connect.
"""

import pickle
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

import pyarrow as pa

from whimbrel.spark.reporting import JobError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

__all__ = ["TASKS_MAX", "parallelize", "run_each"]

T = TypeVar("T")
R = TypeVar("R")

TASKS_MAX = 10_000  # of a stage: each has a fixed cost; with more items, a task has several
TASKS_MIN = 4  # of so many items or more, however small they are
TASK_BYTES = 64 << 20  # work for a fraction of a second
RESULT = "result binary"


def parallelize(
    session: "SparkSession",
    items: Sequence[T],
    work: Callable[[T], Iterable[pa.RecordBatch]],
    schema: str,
    *,
    size: int | None = None,
) -> "DataFrame":
    """Return what `work` yields for all items, computed in tasks.

    Args:
        work: a function of a module.
        schema: of what it yields, as Spark writes it.
        size: total bytes of small items, of which a task can do several; None: each item has its own task.
    """

    def run(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for number in batch.column(0).to_pylist():
                yield from work(items[number])

    tasks = len(items) if size is None else min(len(items), max(size // TASK_BYTES, TASKS_MIN))
    tasks = max(min(tasks, TASKS_MAX), 1)
    return session.range(0, len(items), 1, tasks).mapInArrow(run, schema)


def run_each(session: "SparkSession", items: Sequence[T], work: Callable[[T], R]) -> list[R]:
    """Return what `work` returns for each item, in their order; for results that are few and small.

    Raises:
        JobError: `work` raised one; that of the first item.
    """

    def run_one(numbered: tuple[int, T]) -> Iterator[pa.RecordBatch]:
        number, item = numbered
        found: Any
        try:
            found = (number, work(item), "")
        except JobError as error:  # Spark would run the task again, and print the whole stack
            found = (number, None, str(error))
        yield pa.record_batch([pa.array([pickle.dumps(found)], pa.binary())], names=["result"])

    rows = parallelize(session, list(enumerate(items)), run_one, RESULT).collect()
    results = sorted((pickle.loads(bytes(row["result"])) for row in rows), key=lambda found: int(found[0]))
    for _, _, problem in results:
        if problem:
            raise JobError(problem)
    return [found for _, found, _ in results]
