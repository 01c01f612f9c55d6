"""`stats`: counts, bytes and rates of the messages that topics and queues hold.

Only four header columns and the sizes are decoded, never a body. The log is read once, into counts by topic,
broker, queue and minute of store time; the table and the charts are made from those.

Columns of the report, by `by`:

    queue   topic, broker, queue, then          topic   topic, queues, then       hour   topic, hour, then

    messages, bytes (of the stored records, headers included), average_bytes, first_offset, last_offset (by
    queue only), first_stored, last_stored, per_s, bytes_per_s, busiest_minute, busiest_messages

Rates are counts over the time from the first to the last message, null if that is 0; by hour, counts over the
hour. Times are store times, from the broker's clock, which never go back within a queue. Messages that
retention has removed are not counted.

There are no findings.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from whimbrel.spark import plots
from whimbrel.spark.jobs.dataframes import (
    computed,
    counted,
    period,
    place_of,
    read_at,
    step_for,
    utc_text,
)
from whimbrel.spark.reporting import ProgressCallback, ignore_progress

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

__all__ = ["By", "StatsOptions", "stats"]

By = Literal["topic", "queue", "hour"]

COLUMNS = (
    "topic string, brokerName string, queueId int, queueOffset bigint, size int, storeTimestamp timestamp"
)
MINUTE_S, HOUR_S = 60, 3600
KEYS: Mapping[By, tuple[str, ...]] = {
    "topic": ("topic",),
    "queue": ("topic", "broker", "queue"),
    "hour": ("topic", "hour_s"),
}
OFFSETS = ("first_offset", "last_offset")


@dataclass(frozen=True, slots=True, kw_only=True)
class StatsOptions:
    """What is read, and how it is shown.

    Attributes:
        source: options of `format("whimbrel")`.
        by: a row of the report is for each topic, queue, or hour of a topic.
        html: path of a page with counts and a heat map; None for none.
    """

    source: Mapping[str, str] = field(default_factory=dict)
    by: By = "queue"
    html: Path | None = None


def stats(
    session: "SparkSession", options: StatsOptions, on_progress: ProgressCallback = ignore_progress
) -> "DataFrame":
    """Return the report.

    Raises:
        NoPlotly: a page is wanted, and plotly is missing.
    """
    if options.html is not None:
        plots.check_plotly()
    minutes = by_minute(session.read.format("whimbrel").options(**options.source).schema(COLUMNS).load())
    minutes = computed(minutes)
    report = computed(report_of(minutes, options.by))
    if options.html is not None:
        title = f"Messages of {place_of(options.source)}"
        plots.page(options.html, title, charts(minutes), [totals(minutes), read_at()])
        on_progress(f"charts and a heat map are in {options.html}")
    if report.isEmpty():
        on_progress("no messages: none of the topics holds any")
    return report


def by_minute(messages: "DataFrame") -> "DataFrame":
    """Return counts by queue and minute, from which the report and the charts are made."""
    from pyspark.sql import functions as F

    minute = period(F.unix_seconds("storeTimestamp"), MINUTE_S)
    return messages.groupBy(
        "topic",
        F.col("brokerName").alias("broker"),
        F.col("queueId").alias("queue"),
        minute.alias("minute_s"),
    ).agg(
        F.count("*").alias("messages"),
        F.sum("size").alias("bytes"),
        F.min("queueOffset").alias("first_offset"),
        F.max("queueOffset").alias("last_offset"),
        F.min("storeTimestamp").alias("first_stored"),
        F.max("storeTimestamp").alias("last_stored"),
    )


def report_of(minutes: "DataFrame", by: By) -> "DataFrame":
    """Return the table of a report; `hour_s` is shown as the time `hour`."""
    from pyspark.sql import functions as F

    keys = list(KEYS[by])
    minutes = minutes.withColumn("hour_s", period(F.col("minute_s"), HOUR_S))
    each = minutes.groupBy(*keys, "minute_s").agg(
        F.sum("messages").alias("messages"),
        F.sum("bytes").alias("bytes"),
        F.min("first_offset").alias("first_offset"),
        F.max("last_offset").alias("last_offset"),
        F.min("first_stored").alias("first_stored"),
        F.max("last_stored").alias("last_stored"),
    )
    grouped = each.groupBy(*keys).agg(
        F.sum("messages").alias("messages"),
        F.sum("bytes").alias("bytes"),
        F.min("first_offset").alias("first_offset"),
        F.max("last_offset").alias("last_offset"),
        F.min("first_stored").alias("first_stored"),
        F.max("last_stored").alias("last_stored"),
        # Of equally busy minutes, the earliest.
        F.max(F.struct("messages", -F.col("minute_s"))).alias("busiest"),
    )
    seconds: Column = (F.unix_micros("last_stored") - F.unix_micros("first_stored")) / F.lit(1e6)
    if by == "hour":
        seconds = F.lit(float(HOUR_S))
    seconds = F.when(seconds > 0, seconds)
    shown: list[Any] = [F.timestamp_seconds("hour_s").alias("hour") if k == "hour_s" else k for k in keys]
    if by == "topic":
        queues = minutes.groupBy("topic").agg(F.countDistinct("broker", "queue").alias("queues"))
        grouped = grouped.join(queues, "topic")
        shown.append("queues")
    return grouped.select(
        *shown,
        "messages",
        "bytes",
        (F.col("bytes") / F.col("messages")).alias("average_bytes"),
        *(OFFSETS if by == "queue" else ()),
        "first_stored",
        "last_stored",
        (F.col("messages") / seconds).alias("per_s"),
        (F.col("bytes") / seconds).alias("bytes_per_s"),
        F.timestamp_seconds(-F.col("busiest").getField("col2")).alias("busiest_minute"),
        F.col("busiest").getField("messages").alias("busiest_messages"),
    ).orderBy(*(key.removesuffix("_s") for key in keys))


def totals(minutes: "DataFrame") -> str:
    """Return how much was counted, and of which time."""
    from pyspark.sql import functions as F

    row = minutes.agg(
        F.sum("messages"),
        F.sum("bytes"),
        F.countDistinct("topic"),
        F.countDistinct("topic", "broker", "queue"),
        F.unix_seconds(F.min("first_stored")),
        F.unix_seconds(F.max("last_stored")),
    ).first()
    if row is None or not row[0]:
        return "No messages."
    messages, size, topics, queues, first, last = row
    return (
        f"{counted(messages, 'message')} in {counted(topics, 'topic')} and {counted(queues, 'queue')},"
        f" {size:,} bytes with their headers, stored from {utc_text(first)} to {utc_text(last)}."
    )


def charts(minutes: "DataFrame") -> list[plots.LineChart | plots.HeatMap]:
    """Return the counts of the largest topics, and the messages of the busiest queues by hour."""
    from pyspark.sql import functions as F

    ends = minutes.agg(F.min("minute_s"), F.max("minute_s")).first()
    if ends is None or ends[0] is None:
        return []
    step_s = max(step_for(ends[0], ends[1]), MINUTE_S)
    return [
        plots.LineChart(
            title=f"Messages by topic, in {step_s} s each",
            unit=f"messages in {step_s} s",
            series=sums(minutes, step_s, "messages"),
        ),
        plots.LineChart(
            title=f"Bytes by topic, in {step_s} s each",
            unit=f"bytes in {step_s} s",
            series=sums(minutes, step_s, "bytes"),
        ),
        heat_map(minutes),
    ]


def sums(minutes: "DataFrame", step_s: int, what: str) -> dict[str, list[tuple[float, float | None]]]:
    """Return sums by step of the largest topics, 0 in steps without messages.

    Not rates: of a few messages, those would be fractions that look like 0.
    """
    from pyspark.sql import functions as F

    largest = minutes.groupBy("topic").agg(F.sum(what).alias("all")).orderBy(F.desc("all"), "topic")
    names = [row["topic"] for row in largest.collect()]
    steps = (
        minutes.where(F.col("topic").isin(names[: plots.SERIES_MAX]))
        .groupBy("topic", period(F.col("minute_s"), step_s).alias("at"))
        .agg(F.sum(what).alias("value"))
    )
    found: dict[str, dict[int, float]] = {name: {} for name in names}
    for row in steps.collect():
        found[row["topic"]][row["at"]] = row["value"]
    times = sorted({at for points in found.values() for at in points})
    every = range(times[0], times[-1] + 1, step_s)
    return {
        name: [(float(at), points.get(at, 0.0)) for at in every] if points else []
        for name, points in found.items()
    }


def heat_map(minutes: "DataFrame") -> plots.HeatMap:
    """Return messages by queue and hour, of the busiest queues."""
    from pyspark.sql import functions as F

    label = F.concat_ws(" ", "topic", "broker", "queue").alias("row")
    busiest = minutes.groupBy(label).agg(F.sum("messages").alias("all")).orderBy(F.desc("all"), "row")
    rows = [row["row"] for row in busiest.collect()]
    cells = (
        minutes.groupBy(label, period(F.col("minute_s"), HOUR_S).alias("at"))
        .agg(F.sum("messages").alias("messages"))
        .where(F.col("row").isin(rows[: plots.ROWS_MAX]))
    )
    newest = cells.agg(F.max("at")).first()
    oldest = (newest[0] if newest is not None else 0) - plots.COLUMNS_MAX * HOUR_S
    return plots.HeatMap(
        title="Messages by queue and hour",
        unit="messages",
        rows=rows,
        cells={
            (row["row"], row["at"]): float(row["messages"])
            for row in cells.where(F.col("at") >= oldest).collect()
        },
        step_s=HOUR_S,
    )
