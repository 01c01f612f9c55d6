"""What reports have in common: rows by period, and a frame that is computed when it is returned."""

import contextlib
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from whimbrel.spark.reporting import JobError

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

__all__ = [
    "PERCENTILES",
    "PERCENTILE_ACCURACY",
    "POINTS_MAX",
    "computed",
    "path_named",
    "percentiles",
    "period",
    "step_for",
]

PERCENTILES = (0.5, 0.95, 0.99)
PERCENTILE_ACCURACY = 10_000  # of percentile_approx: a rank is at most 1/10,000 of the rows off
POINTS_MAX = 240  # of a line: more can't be told apart on a screen
STEPS_S = (1, 5, 15, 60, 300, 900, 3600, 4 * 3600, 86_400, 7 * 86_400)


def computed(frame: "DataFrame") -> "DataFrame":
    """Compute a frame now, and keep it as long as it is referred to: what comes of it is not computed again.

    `persist` would not do: it gives the rows of any equal plan, and one that reads the same files or topics
    an hour later is equal.
    """
    return frame.localCheckpoint()


@contextlib.contextmanager
def path_named(path: str, hint: str = "") -> Iterator[None]:
    """Turn what Spark says of a path that is not there into a sentence.

    Spark may say it only when rows are asked for: that belongs inside.

    Raises:
        JobError: there is no such path.
    """
    from pyspark.errors import AnalysisException

    try:
        yield
    except AnalysisException as error:
        if error.getCondition() != "PATH_NOT_FOUND":
            raise
        raise JobError(f"{path}: there is no such file or folder{hint}") from error


def period(at_s: "Column", seconds: int) -> "Column":
    """Return the begin of the period in which a time lies, both in seconds since the epoch.

    Periods of whole days begin at midnight UTC; those of weeks on Thursdays, as the epoch did.
    """
    from pyspark.sql import functions as F

    return at_s - F.pmod(at_s, F.lit(seconds))


def step_for(first_s: float, last_s: float) -> int:
    """Return the smallest step, in seconds, with which a range of time is drawn in `POINTS_MAX` points."""
    return next((step for step in STEPS_S if (last_s - first_s) / step <= POINTS_MAX), STEPS_S[-1])


def percentiles(ms: "Column") -> "list[Column]":
    """Return the columns p50_ms, p95_ms, p99_ms of a column of milliseconds, for `agg`."""
    from pyspark.sql import functions as F

    found: Any = F.percentile_approx(ms, list(PERCENTILES), PERCENTILE_ACCURACY)
    return [found[index].alias(f"p{round(100 * share)}_ms") for index, share in enumerate(PERCENTILES)]
