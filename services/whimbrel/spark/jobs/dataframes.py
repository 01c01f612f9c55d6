"""What the reports of jobs share: frames that are computed when they are returned, periods, percentiles."""

import contextlib
import time
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from whimbrel.spark.reporting import JobError

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

__all__ = [
    "PERCENTILES",
    "PERCENTILE_ACCURACY",
    "POINTS_MAX",
    "computed",
    "counted",
    "path_named",
    "percentiles",
    "period",
    "place_of",
    "read_at",
    "step_for",
    "utc_text",
]

PERCENTILES = (0.5, 0.95, 0.99)
PERCENTILE_ACCURACY = 10_000  # of percentile_approx: a rank is off by at most 1/10,000 of the rows
POINTS_MAX = 240  # of a line: more could not be distinguished on a screen
STEPS_S = (1, 5, 15, 60, 300, 900, 3600, 4 * 3600, 86_400, 7 * 86_400)


def computed(frame: "DataFrame") -> "DataFrame":
    """Compute a frame now, and keep it as long as it is referred to: it is not computed again for each use.

    `persist` would not do: it gives its rows to any equal plan, and a plan that reads the same files or
    topics an hour later is equal.
    """
    return frame.localCheckpoint()


@contextlib.contextmanager
def path_named(path: str, hint: str = "") -> Iterator[None]:
    """Turn Spark's error about a path that does not exist into a sentence.

    Spark may raise it only when rows are read, so reading belongs into the block.

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
    """Return the start of the period in which a time lies, both in seconds since the epoch.

    Periods of whole days begin at midnight UTC; weeks on Thursdays, as the epoch did.
    """
    from pyspark.sql import functions as F

    return at_s - F.pmod(at_s, F.lit(seconds))


def step_for(first_s: float, last_s: float) -> int:
    """Return the smallest step, in seconds, with which a time range has at most `POINTS_MAX` points."""
    return next((step for step in STEPS_S if (last_s - first_s) / step <= POINTS_MAX), STEPS_S[-1])


def place_of(source: Mapping[str, str]) -> str:
    """Return which place the options of a source name, for the title of a page."""
    if "servers" in source:
        return f"the cluster at {source['servers']}"
    return f"the store {source['store']}" if "store" in source else f"the archive {source.get('archive', '')}"


def counted(number: int, noun: str) -> str:
    """Return a number of things in words."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def utc_text(at_s: float) -> str:
    """Return a time to the second."""
    return datetime.fromtimestamp(at_s, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")


def read_at() -> str:
    """Return when a page was made: now."""
    return f"Read at {utc_text(time.time())}."


def percentiles(ms: "Column") -> "list[Column]":
    """Return the columns p50_ms, p95_ms, p99_ms of a column of milliseconds, for `agg`."""
    from pyspark.sql import functions as F

    found: Any = F.percentile_approx(ms, list(PERCENTILES), PERCENTILE_ACCURACY)
    return [found[index].alias(f"p{round(100 * share)}_ms") for index, share in enumerate(PERCENTILES)]
