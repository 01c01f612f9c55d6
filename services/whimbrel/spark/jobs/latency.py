"""`latency`: how long the stages of messages took, from spans; without spans, the time from born to stored.

**From spans** (`whimbrel.spark.spans` reads them), a row for each stage and, of our own stages, broker and
slave. With `per_s`, a row for each of these and each period in which spans began:

    period, stage, broker, broker_id, slave, spans, failed, negative, p50_ms, p95_ms, p99_ms, max_ms,
    mb_per_s, lag_max_bytes

`telemetry.TREE` says what each stage covers. Each is timed by one clock, so differences between clocks do not
matter. A clock that was set back gives negative times, which are counted in `negative` and are part of the
percentiles.

The rows of stage `acknowledge` are about replication, from `broker` to `slave`, the address of a connection.

    mb_per_s         how fast the acknowledged end of the log moved from the first to the last
                     acknowledgement, in 10^6 bytes. It counts the whole log, so a sample gives it as well.
    lag_max_bytes    the most by which the latest end of the log (of an appended record or a sent frame) was
                     ahead of what the slave had acknowledged, between its first and last acknowledgement. The
                     end is known from traced records and frames only: with a sample it is a lower bound.

**From the log**, `storeTimestamp - bornTimestamp`, a row for each topic:

    period, topic, messages, negative, min_ms, p50_ms, p95_ms, p99_ms, max_ms

This compares two clocks, the sender's and the broker's. If the first is ahead, times are too small, or
negative: those are counted in `negative`, and `min_ms` shows the worst. A message that was stored again
later, for a delay or a transaction, keeps its born time.

Percentiles are `percentile_approx`'s.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from whimbrel.spark import plots
from whimbrel.spark.jobs.dataframes import (
    computed,
    counted,
    path_named,
    percentiles,
    period,
    place_of,
    read_at,
    step_for,
)
from whimbrel.spark.reporting import JobError, ProgressCallback, ignore_progress
from whimbrel.spark.spans import GLOB, OURS, STAGES, span_lines, spans_of
from whimbrel.telemetry import ACKNOWLEDGE, APPEND, FRAME

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

__all__ = ["LatencyOptions", "latency"]

COLUMNS = "topic string, bornTimestamp timestamp, storeTimestamp timestamp"
NS = 1_000_000_000
NAMES = ("p50_ms", "p95_ms", "p99_ms")


@dataclass(frozen=True, slots=True, kw_only=True)
class LatencyOptions:
    """What is measured.

    Attributes:
        spans: a file or folder of OTLP JSON lines; empty: the log is read.
        source: options of `format("whimbrel")`, without spans.
        topics: with spans, of these topics only; empty for all. The columns of replication count all topics.
        per_s: seconds of a period; 0 for one row over all.
        html: path of a page with percentiles over time; None for none.
    """

    spans: str = ""
    source: Mapping[str, str] = field(default_factory=dict)
    topics: tuple[str, ...] = ()
    per_s: int = 0
    html: Path | None = None


def latency(
    session: "SparkSession", options: LatencyOptions, on_progress: ProgressCallback = ignore_progress
) -> "DataFrame":
    """Return the report.

    Raises:
        JobError: there is no span, or none is a stage of a message.
        NoPlotly: a page is wanted, and plotly is missing.
    """
    if options.html is not None:
        plots.check_plotly()
    return (
        from_spans(session, options, on_progress)
        if options.spans
        else from_log(session, options, on_progress)
    )


# Spans


def from_spans(
    session: "SparkSession", options: LatencyOptions, on_progress: ProgressCallback
) -> "DataFrame":
    """Return the report of spans; errors as in `latency`."""
    spans = computed(spans_of(checked_lines(session, options.spans, on_progress)))
    check_spans(spans, options.spans, on_progress)
    wanted = spans.where("stage IS NOT NULL AND ms IS NOT NULL")
    if options.topics:
        wanted = wanted.where(wanted["topic"].isin(*options.topics))
        if wanted.isEmpty():
            raise JobError(
                f"{options.spans}: no span is about a message of {', '.join(options.topics)}; without --topic"
                " all are shown"
            )
    report = computed(report_of(wanted, spans, options.per_s))
    if options.html is not None:
        title = f"Stages of messages: {options.spans}"
        plots.page(options.html, title, span_charts(wanted, spans), [read_at()])
        on_progress(f"percentiles over time are in {options.html}")
    return report


def checked_lines(session: "SparkSession", path: str, on_progress: ProgressCallback) -> "DataFrame":
    """Return the lines, and report those that are no JSON.

    Raises:
        JobError: no line has spans.
    """
    from pyspark.sql import functions as F

    with path_named(path):
        found = span_lines(session, path)
        counts = found.agg(
            F.count("*").alias("all"),
            F.count("_corrupt").alias("broken"),
            F.count("resourceSpans").alias("spans"),
        ).first()
    assert counts is not None, "an aggregate has a row"
    if not counts["spans"]:
        raise JobError(
            f"{path}: {counts['all']} lines in files {GLOB}, and none holds spans in OTLP's JSON form;"
            " our processes write them with --trace-to file:PATH, `whimbrel dev --trace 1` below DIR/traces"
        )
    if counts["broken"]:
        on_progress(
            f"{counts['broken']} lines are no JSON, and are left out: the last of a file may be half written"
        )
    return found


def check_spans(spans: "DataFrame", path: str, on_progress: ProgressCallback) -> None:
    """Report how many spans there are, and how many are left out.

    Raises:
        JobError: none is a stage of a message.
    """
    from pyspark.sql import functions as F

    counts = spans.agg(
        F.count("*").alias("all"),
        F.count("stage").alias("stages"),
        F.count_if(F.col("name") == FRAME).alias("frames"),
        F.count_if(F.col("stage").isNotNull() & F.col("ms").isNull()).alias("untimed"),
    ).first()
    assert counts is not None, "an aggregate has a row"
    if not counts["stages"]:
        raise JobError(
            f"{path}: {counts['all']} spans, and none is a stage of a message"
            f" ({', '.join(OURS)}, or an operation with messaging.system = rocketmq)"
        )
    others = counts["all"] - counts["stages"] - counts["frames"]
    on_progress(
        f"{counts['all']} spans: {counts['stages']} of stages, {counts['frames']} of frames,"
        f" {others} of something else"
    )
    if counts["untimed"]:
        on_progress(f"{counts['untimed']} spans lack begin or end, and are left out")


def report_of(wanted: "DataFrame", spans: "DataFrame", per_s: int) -> "DataFrame":
    """Return the table: stages of the `wanted` spans, and how replication did over all `spans`."""
    from pyspark.sql import functions as F

    keys = ["stage", "broker", "broker_id", "slave"]
    ours = F.col("stage").isin(*OURS.values())  # only some spans of clients name a broker
    rows = wanted.select(
        period(F.floor(F.col("begin_ns") / NS), per_s or 1).alias("period_s"),
        "stage",
        *(F.when(ours, F.col(name)).alias(name) for name in keys[1:]),
        "ms",
        "failed",
    )
    grouped = rows.groupBy(*(["period_s"] if per_s else []), *keys).agg(
        F.count("*").alias("spans"),
        F.count_if("failed").alias("failed"),
        F.count_if(F.col("ms") < 0).alias("negative"),
        *percentiles(F.col("ms")),
        F.max("ms").alias("max_ms"),
    )
    way = replication(spans, per_s).withColumn("stage", F.lit(OURS[ACKNOWLEDGE]))
    on = [name for name in (*keys, "period_s") if name in way.columns and name in grouped.columns]
    order: Column = F.array_position(F.array(*(F.lit(name) for name in STAGES)), F.col("stage"))
    return (
        grouped.join(way, on, "left")
        .orderBy(*(["period_s"] if per_s else []), order, "broker", "broker_id", "slave")
        .select(
            *([F.timestamp_seconds("period_s").alias("period")] if per_s else []),
            *keys,
            "spans",
            "failed",
            "negative",
            *NAMES,
            "max_ms",
            "mb_per_s",
            "lag_max_bytes",
        )
    )


def replication(spans: "DataFrame", per_s: int) -> "DataFrame":
    """Return, for each broker and slave and period: mb_per_s, lag_max_bytes."""
    from pyspark.sql import functions as F

    events = lag_events(spans)
    acknowledged = F.col("acknowledged").isNotNull()
    at_ns = F.when(acknowledged, F.col("at_ns"))
    seconds = (F.max(at_ns) - F.min(at_ns)) / NS
    moved = F.max("acknowledged") - F.min("acknowledged")
    keys = ["broker", "slave", *(["period_s"] if per_s else [])]
    return (
        events.withColumn("period_s", period(F.floor(F.col("at_ns") / NS), per_s or 1))
        .groupBy(*keys)
        .agg(
            F.when(seconds > 0, moved / F.lit(1e6) / seconds).alias("mb_per_s"),
            F.max("lag_bytes").alias("lag_max_bytes"),
        )
    )


def lag_events(spans: "DataFrame") -> "DataFrame":
    """Return the events that moved the log's end or an acknowledgement: at_ns, acknowledged, lag_bytes.

    Each slave's events are its acknowledgements and, in between, all ends of its master's log. `lag_bytes` is
    the highest end so far minus the highest acknowledgement so far.
    """
    from pyspark.sql import Window
    from pyspark.sql import functions as F

    acks = spans.where((F.col("name") == ACKNOWLEDGE) & F.col("acknowledged").isNotNull()).select(
        "broker",
        "slave",
        F.col("end_ns").alias("at_ns"),
        F.lit(None).cast("bigint").alias("log_end"),
        "acknowledged",
    )
    slaves = acks.groupBy("broker", "slave").agg(
        F.min("at_ns").alias("first_ns"), F.max("at_ns").alias("last_ns")
    )
    framed = F.col("name") == FRAME
    ends = (
        spans.where(framed | (F.col("name") == APPEND))
        .select(
            "broker",
            F.col("end_ns").alias("at_ns"),
            F.when(framed, F.col("frame_offset") + F.col("frame_size"))
            .otherwise(F.col("offset") + F.col("size"))
            .alias("log_end"),
        )
        .join(slaves, "broker")
        .where(F.col("at_ns") <= F.col("last_ns"))
        .select("broker", "slave", "at_ns", "log_end", F.lit(None).cast("bigint").alias("acknowledged"))
    )
    so_far = (
        Window.partitionBy("broker", "slave")
        .orderBy("at_ns", F.col("acknowledged").asc_nulls_first())
        .rowsBetween(Window.unboundedPreceding, Window.currentRow)
    )
    ahead = F.max("log_end").over(so_far) - F.max("acknowledged").over(so_far)
    return acks.unionByName(ends).withColumn("lag_bytes", F.greatest(ahead, F.lit(0)))


def span_charts(wanted: "DataFrame", spans: "DataFrame") -> list[plots.LineChart | plots.HeatMap]:
    """Return percentiles of each stage over time, and the lag of slaves."""
    from pyspark.sql import functions as F

    ends = wanted.agg(F.min("begin_ns") / NS, F.max("begin_ns") / NS).first()
    assert ends is not None, "an aggregate has a row"
    step_s = step_for(ends[0], ends[1])
    at = period(F.floor(F.col("begin_ns") / NS), step_s).alias("at")
    rows = wanted.groupBy("stage", at).agg(*percentiles(F.col("ms"))).orderBy("at").collect()
    charts: list[plots.LineChart | plots.HeatMap] = [
        plots.LineChart(
            title=f"{stage}, {step_s} s each",
            unit="ms",
            step_s=step_s,
            series={
                name: [(row["at"], row[name]) for row in rows if row["stage"] == stage] for name in NAMES
            },
        )
        for stage in STAGES
        if any(row["stage"] == stage for row in rows)
    ]
    behind: dict[str, list[tuple[float, float | None]]] = {}
    events = lag_events(spans).withColumn("at", period(F.floor(F.col("at_ns") / NS), step_s))
    worst = events.groupBy("broker", "slave", "at").agg(F.max("lag_bytes").alias("lag"))
    for row in worst.where("lag IS NOT NULL").orderBy("at").collect():
        behind.setdefault(f"{row['broker']} to {row['slave']}", []).append((row["at"], row["lag"]))
    if behind:
        charts.append(plots.LineChart(title=f"Most behind, {step_s} s each", unit="bytes", series=behind))
    return charts


# The log


def from_log(session: "SparkSession", options: LatencyOptions, on_progress: ProgressCallback) -> "DataFrame":
    """Return the report of a log's times."""
    from pyspark.sql import functions as F

    messages = session.read.format("whimbrel").options(**options.source).schema(COLUMNS).load()
    ages = messages.select(
        "topic",
        F.unix_seconds("storeTimestamp").alias("at_s"),
        (F.unix_millis("storeTimestamp") - F.unix_millis("bornTimestamp")).cast("double").alias("ms"),
    )
    if options.html is not None:
        ages = computed(ages)  # read once, used three times
    keys: list[Any] = [period(F.col("at_s"), options.per_s).alias("period_s")] if options.per_s else []
    shown = [F.timestamp_seconds("period_s").alias("period")] if options.per_s else []
    report = computed(
        ages.groupBy(*keys, "topic")
        .agg(
            F.count("*").alias("messages"),
            F.count_if(F.col("ms") < 0).alias("negative"),
            F.min("ms").alias("min_ms"),
            *percentiles(F.col("ms")),
            F.max("ms").alias("max_ms"),
        )
        .orderBy(*(["period_s"] if options.per_s else []), "topic")
        .select(*shown, "topic", "messages", "negative", "min_ms", *NAMES, "max_ms")
    )
    if options.html is not None:
        title = f"From born to stored: {place_of(options.source)}"
        about = f"{counted(ages.count(), 'message')}; a time is from the sender's clock to the broker's."
        plots.page(options.html, title, age_charts(ages), [about, read_at()])
        on_progress(f"percentiles over time are in {options.html}")
    report_skew(report, on_progress)
    return report


def report_skew(report: "DataFrame", on_progress: ProgressCallback) -> None:
    """Report that clocks must differ, if some times are negative."""
    from pyspark.sql import functions as F

    counts = report.agg(F.sum("messages"), F.sum("negative"), F.min("min_ms")).first()
    if counts is None or not counts[0]:
        on_progress("no messages: none of the topics holds any")
    elif counts[1]:
        on_progress(
            f"{counts[1]} of {counts[0]} messages were stored before they were born, by {-counts[2]:.0f} ms"
            " at worst: clocks of senders are ahead of the broker's, and the times are that much too small"
        )


def age_charts(ages: "DataFrame") -> list[plots.LineChart | plots.HeatMap]:
    """Return a chart for each percentile, with a line for each of the largest topics."""
    from pyspark.sql import functions as F

    ends = ages.agg(F.min("at_s"), F.max("at_s")).first()
    if ends is None or ends[0] is None:
        return []
    step_s = step_for(ends[0], ends[1])
    largest = ages.groupBy("topic").agg(F.count("*").alias("all")).orderBy(F.desc("all"), "topic").collect()
    names = [row["topic"] for row in largest]
    rows = (
        ages.where(F.col("topic").isin(names[: plots.SERIES_MAX]))
        .groupBy("topic", period(F.col("at_s"), step_s).alias("at"))
        .agg(*percentiles(F.col("ms")))
        .orderBy("at")
        .collect()
    )
    return [
        plots.LineChart(
            title=f"{name.removesuffix('_ms')}, {step_s} s each",
            unit="ms",
            step_s=step_s,
            series={
                topic: [(row["at"], row[name]) for row in rows if row["topic"] == topic] for topic in names
            },
        )
        for name in NAMES
    ]
