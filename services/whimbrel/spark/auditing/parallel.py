"""Work on a list of things, spread over the tasks of a Spark job.

Nothing but the list and a function of a module travels to a task, so this runs wherever a session runs: in
one process, in a cluster, through Spark Connect.
"""

import pickle
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

import pyarrow as pa

from whimbrel.spark.reporting import JobError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

__all__ = ["TASKS_MAX", "ask_each", "parallelize"]

T = TypeVar("T")
R = TypeVar("R")

TASKS_MAX = 10_000  # of a stage: each costs some 27 ms; with more things than these, a task has several
TASKS_MIN = 4  # where there are as many things, however small
TASK_BYTES = 64 << 20  # a fair part of a second
ANSWER = "answer binary"


def parallelize(
    session: "SparkSession",
    things: Sequence[T],
    work: Callable[[T], Iterable[pa.RecordBatch]],
    schema: str,
    *,
    size: int | None = None,
) -> "DataFrame":
    """Return what `work` yields for all things, spread over tasks.

    Args:
        work: a function of a module.
        schema: of what it yields, as Spark writes it.
        size: bytes that all things have together, when they are small and a task can do several; None when
            each is worth a task.
    """

    def run(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for number in batch.column(0).to_pylist():
                yield from work(things[number])

    tasks = len(things) if size is None else min(len(things), max(size // TASK_BYTES, TASKS_MIN))
    tasks = max(min(tasks, TASKS_MAX), 1)
    return session.range(0, len(things), 1, tasks).mapInArrow(run, schema)


def ask_each(session: "SparkSession", things: Sequence[T], question: Callable[[T], R]) -> list[R]:
    """Return what `question` returns for each thing, in their order; for answers that are few and small.

    Raises:
        JobError: a question raised a `JobError`; the first one's text.
    """

    def answer(numbered: tuple[int, T]) -> Iterator[pa.RecordBatch]:
        number, thing = numbered
        found: Any
        try:
            found = (number, question(thing), "")
        except JobError as error:  # an exception of a task is tried again, and printed with all its frames
            found = (number, None, str(error))
        yield pa.record_batch([pa.array([pickle.dumps(found)], pa.binary())], names=["answer"])

    rows = parallelize(session, list(enumerate(things)), answer, ANSWER).collect()
    answers = sorted((pickle.loads(bytes(row["answer"])) for row in rows), key=lambda found: int(found[0]))
    for _, _, problem in answers:
        if problem:
            raise JobError(problem)
    return [found for _, found, _ in answers]
