"""`lag`: the lag of consumer groups over time, from the snapshots that `whimbrel.spark.snapshots` records.

A row for each period, group and topic; `by = "queue"` has one for each queue:

    period, group, topic, queues | broker, queue, snapshots, incomplete (by group only),
    lag_min, lag_avg, lag_max, lag_last, consumed_per_s, produced_per_s, catch_up_s, resets, gap_s, finding

    lag          messages; of a topic: the sum over its queues in one snapshot. A snapshot in which a broker
                 did not answer is *incomplete*: its sums would be too small and are not used; its single
                 queues are.
    *_per_s      how far the committed offset and the queue's end moved from one snapshot to the next, over
                 the time between them; the sum over queues. A move back (`resets`: a group that was reset, a
                 log that was truncated) counts as no move.
    catch_up_s   time to work off lag_last at the period's rates: 0 without lag, null where the group is not
                 faster than its producers.
    gap_s        seconds of the record's gaps that end in this period. A gap is more than `GAP_INTERVALS`
                 intervals between two snapshots; gaps are reported as progress as well.

**Finding: lag only grows.** In each of the last `GROWING_PERIODS` periods with a lag, the smallest lag is
larger than in the period before. So a group without lag at any moment of a period, or one that gains on its
producers, is no finding; one that is slower than its producers, or stopped while they go on, becomes a
finding after so many periods. The finding is in the last row of the group and topic, or of the queue; by
group it also names queues whose lag only grows while that of their topic does not.
"""

from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from whimbrel.spark import plots
from whimbrel.spark.jobs.dataframes import computed, path_named, period, read_at, step_for
from whimbrel.spark.reporting import JobError, ProgressCallback, ignore_progress
from whimbrel.spark.snapshots import VERSION

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

__all__ = ["GAP_INTERVALS", "GROWING_PERIODS", "By", "LagOptions", "lag"]

By = Literal["group", "queue"]

SCHEMA = (
    "v int, kind string, at bigint, every_ms bigint, silent array<string>, group string, topic string,"
    " broker string, queue int, committed bigint, end bigint, lag bigint, _corrupt string"
)
GAP_INTERVALS = 3  # a late snapshot, or one that was left out, is no gap
GROWING_PERIODS = 3  # two could be chance
GAPS_REPORTED_MAX = 10
QUEUE, TOPIC = ("group", "topic", "broker", "queue"), ("group", "topic")
MEASURES = (
    "lag_min", "lag_avg", "lag_max", "lag_last", "consumed_per_s", "produced_per_s", "catch_up_s", "resets",
)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class LagOptions:
    """What is read, and what is reported.

    Attributes:
        snapshots: the folder of a record.
        groups: only these; empty for all.
        topics: only these; empty for all.
        per_s: seconds of a period.
        by: a row of the report is for each group and topic, or each queue, and each period.
        html: path of a page with lag and rates; None for none.
    """

    snapshots: str
    groups: tuple[str, ...] = ()
    topics: tuple[str, ...] = ()
    per_s: int = 3600
    by: By = "group"
    html: Path | None = None


def lag(
    session: "SparkSession", options: LagOptions, on_progress: ProgressCallback = ignore_progress
) -> "DataFrame":
    """Return the report.

    Raises:
        JobError: there is no snapshot, one of another version, or none of the groups and topics.
        NoPlotly: a page is wanted, and plotly is missing.
    """
    from pyspark.sql import functions as F

    if options.html is not None:
        plots.check_plotly()
    with path_named(options.snapshots, "; --record makes one"):
        read = computed(snapshot_lines(session, options.snapshots))
    check_record(read, options.snapshots, on_progress)
    heads = read.where("kind = 'snapshot'").withColumn("silent", F.size("silent") > 0)
    queues = read.where("kind = 'queue'")
    for name, chosen in (("group", options.groups), ("topic", options.topics)):
        if chosen:
            queues = queues.where(F.col(name).isin(*chosen))
    if (options.groups or options.topics) and queues.isEmpty():
        wanted = ", ".join((*options.groups, *options.topics))
        raise JobError(
            f"{options.snapshots}: no snapshot has anything of {wanted}; leave them out to see all"
        )
    gaps = gaps_of(heads)
    report_gaps(heads, gaps, on_progress)
    steps = computed(with_moves(queues, heads))
    report = computed(report_of(steps, gaps, options))
    if options.html is not None:
        plots.page(options.html, f"Lag of groups: {options.snapshots}", charts(steps), [read_at()])
        on_progress(f"lag and rates are in {options.html}")
    return report


def snapshot_lines(session: "SparkSession", path: str) -> "DataFrame":
    """Return the lines of all files of a record."""
    return (
        session.read.schema(SCHEMA)
        .option("columnNameOfCorruptRecord", "_corrupt")
        .option("pathGlobFilter", "*.jsonl")
        .option("recursiveFileLookup", "true")
        .json(path)
    )


def check_record(read: "DataFrame", path: str, on_progress: ProgressCallback) -> None:
    """Check that the lines are a record, and report those that are left out.

    Raises:
        JobError: there is no snapshot, or one of another version.
    """
    from pyspark.sql import functions as F

    counts = read.agg(
        F.count("*").alias("all"),
        F.count_if(F.col("kind") == "snapshot").alias("snapshots"),
        F.count_if(F.col("kind").isNull()).alias("other"),
        F.min("v").alias("lowest"),
        F.max("v").alias("highest"),
    ).first()
    assert counts is not None, "an aggregate has a row"
    if not counts["snapshots"]:
        raise JobError(
            f"{path}: no snapshot among {counts['all']} lines of files *.jsonl;"
            " `whimbrel spark lag --snapshots FOLDER --record` writes them"
        )
    for version in (counts["lowest"], counts["highest"]):
        if version != VERSION:
            raise JobError(f"{path}: snapshots of version {version}, and this program knows {VERSION}")
    if counts["other"]:
        on_progress(f"{counts['other']} lines are no part of a snapshot, and are left out")


def gaps_of(heads: "DataFrame") -> "DataFrame":
    """Return the gaps of the record: from, to (milliseconds)."""
    from pyspark.sql import Window
    from pyspark.sql import functions as F

    # All in one partition: there are as many rows as snapshots.
    order = Window.partitionBy(F.lit(1)).orderBy("at")
    before, every = F.lag("at").over(order), F.lag("every_ms").over(order)
    return (
        heads.select("at", "every_ms", before.alias("from"), every.alias("every"))
        .where(F.col("at") - F.col("from") > GAP_INTERVALS * F.greatest("every_ms", "every"))
        .select("from", F.col("at").alias("to"))
    )


def report_gaps(heads: "DataFrame", gaps: "DataFrame", on_progress: ProgressCallback) -> None:
    """Report how much the record holds, and its gaps."""
    from pyspark.sql import functions as F

    whole = heads.agg(
        F.count("*").alias("count"),
        F.count_if("silent").alias("incomplete"),
        clock(F.min("at")).alias("first"),
        clock(F.max("at")).alias("last"),
    ).first()
    assert whole is not None, "an aggregate has a row"
    text = f"{whole['count']} snapshots from {whole['first']} to {whole['last']}"
    on_progress(f"{text}, {whole['incomplete']} of them incomplete" if whole["incomplete"] else text)
    found = gaps.orderBy("from").select(clock("from"), clock("to")).take(GAPS_REPORTED_MAX + 1)
    for begin, end in found[:GAPS_REPORTED_MAX]:
        on_progress(f"no snapshot between {begin} and {end}")
    if len(found) > GAPS_REPORTED_MAX:
        on_progress("there are more gaps: see gap_s")


def clock(at_ms: "Column | str") -> "Column":
    """Return a time as text, in UTC."""
    from pyspark.sql import functions as F

    at = F.col(at_ms) if isinstance(at_ms, str) else at_ms
    return F.date_format(F.timestamp_millis(at), "yyyy-MM-dd HH:mm:ss")


def with_moves(queues: "DataFrame", heads: "DataFrame") -> "DataFrame":
    """Return a row for each queue and snapshot, with how far its offsets moved since the one before.

    Columns: seconds, consumed, produced (null in the first), resets, incomplete (of the snapshot).
    """
    from pyspark.sql import Window
    from pyspark.sql import functions as F

    order = Window.partitionBy(*QUEUE).orderBy("at")

    def moved(name: str) -> "Column":
        return F.col(name) - F.lag(name).over(order)

    rows = queues.select("at", *QUEUE, "committed", "end", "lag").dropDuplicates(["at", *QUEUE])
    return (
        rows.withColumn("seconds", moved("at") / F.lit(1000))
        .withColumn("committed_moved", moved("committed"))
        .withColumn("end_moved", moved("end"))
        .select(
            "at",
            *QUEUE,
            "lag",
            "seconds",
            F.greatest("committed_moved", F.lit(0)).alias("consumed"),
            F.greatest("end_moved", F.lit(0)).alias("produced"),
            F.coalesce(
                ((F.col("committed_moved") < 0) | (F.col("end_moved") < 0)).cast("int"), F.lit(0)
            ).alias("resets"),
        )
        .join(heads.select("at", F.col("silent").alias("incomplete")).dropDuplicates(["at"]), "at", "left")
    )


def report_of(steps: "DataFrame", gaps: "DataFrame", options: LagOptions) -> "DataFrame":
    """Return the table."""
    from pyspark.sql import functions as F

    steps = steps.withColumn("period_s", period(F.floor(F.col("at") / 1000), options.per_s))
    gap_s = gaps.groupBy(period(F.floor(F.col("to") / 1000), options.per_s).alias("period_s")).agg(
        (F.sum(F.col("to") - F.col("from")) / 1000).alias("gap_s")
    )
    queues = with_growth(by_queue(steps), QUEUE)
    keys: tuple[str, ...] = QUEUE
    extra: tuple[Any, ...] = ("snapshots",)
    rows = queues.withColumn("finding", F.when(F.col("grows"), sentence(options.per_s)))
    if options.by == "group":
        keys, extra = TOPIC, ("queues", "snapshots", "incomplete")
        rows = with_findings(with_growth(by_topic(steps, queues), TOPIC), queues, options.per_s)
    return (
        rows.join(gap_s, "period_s", "left")
        .orderBy(*keys, "period_s")
        .select(
            F.timestamp_seconds("period_s").alias("period"),
            *keys,
            *extra,
            *MEASURES,
            F.coalesce("gap_s", F.lit(0.0)).alias("gap_s"),
            "finding",
        )
    )


def by_queue(steps: "DataFrame") -> "DataFrame":
    """Return the measures of each queue in each period."""
    from pyspark.sql import functions as F

    seconds = F.sum("seconds")
    return with_catch_up(
        steps.groupBy("period_s", *QUEUE).agg(
            F.count("*").alias("snapshots"),
            F.min("lag").alias("lag_min"),
            F.avg("lag").alias("lag_avg"),
            F.max("lag").alias("lag_max"),
            F.max_by("lag", "at").alias("lag_last"),
            F.when(seconds > 0, F.sum("consumed") / seconds).alias("consumed_per_s"),
            F.when(seconds > 0, F.sum("produced") / seconds).alias("produced_per_s"),
            F.sum("resets").alias("resets"),
        )
    )


def by_topic(steps: "DataFrame", queues: "DataFrame") -> "DataFrame":
    """Return the measures of each topic of a group; lag from complete snapshots only."""
    from pyspark.sql import functions as F

    sums = steps.groupBy("period_s", *TOPIC, "at").agg(
        F.sum("lag").alias("all"), F.coalesce(F.max("incomplete"), F.lit(False)).alias("incomplete")
    )
    total = F.when(~F.col("incomplete"), F.col("all"))
    lags = sums.groupBy("period_s", *TOPIC).agg(
        F.count("*").alias("snapshots"),
        F.count_if("incomplete").alias("incomplete"),
        F.min(total).alias("lag_min"),
        F.avg(total).alias("lag_avg"),
        F.max(total).alias("lag_max"),
        F.max_by(total, F.when(~F.col("incomplete"), F.col("at"))).alias("lag_last"),
    )
    rates = queues.groupBy("period_s", *TOPIC).agg(
        F.count("*").alias("queues"),
        F.sum("consumed_per_s").alias("consumed_per_s"),
        F.sum("produced_per_s").alias("produced_per_s"),
        F.sum("resets").alias("resets"),
    )
    return with_catch_up(lags.join(rates, ["period_s", *TOPIC]))


def with_catch_up(rows: "DataFrame") -> "DataFrame":
    """Return rows with the time to work off the lag at their rates."""
    from pyspark.sql import functions as F

    gain = F.col("consumed_per_s") - F.col("produced_per_s")
    return rows.withColumn(
        "catch_up_s",
        F.when(F.col("lag_last") == 0, F.lit(0.0)).when(gain > 0, F.col("lag_last") / gain),
    )


def with_growth(rows: "DataFrame", keys: tuple[str, ...]) -> "DataFrame":
    """Return rows with `grows`, true in the last period if the lag only grows, and `smallest`, its lags."""
    from pyspark.sql import Window
    from pyspark.sql import functions as F

    with_lag = Window.partitionBy(*keys, F.col("lag_min").isNotNull()).orderBy("period_s")
    lags = [F.lag("lag_min", back).over(with_lag) for back in range(GROWING_PERIODS - 1, -1, -1)]
    newest = F.lead("period_s").over(with_lag).isNull()
    rises = [earlier < later for earlier, later in pairwise(lags)]
    grows = newest
    for rise in rises:
        grows = grows & rise
    return rows.withColumn("smallest", F.array(*lags)).withColumn("grows", F.coalesce(grows, F.lit(False)))


def sentence(per_s: int) -> "Column":
    """Return the finding of a row that grows."""
    from pyspark.sql import functions as F

    text = F.array_join(F.col("smallest").cast("array<string>"), ", ")
    return F.concat(
        F.lit("lag only grows: at least "),
        text,
        F.lit(f" messages in the last {GROWING_PERIODS} periods of {per_s} s"),
    )


def with_findings(rows: "DataFrame", queues: "DataFrame", per_s: int) -> "DataFrame":
    """Return rows of topics with findings: about themselves, else about their queues."""
    from pyspark.sql import Window
    from pyspark.sql import functions as F

    growing = (
        queues.where("grows")
        .groupBy(*TOPIC)
        .agg(
            F.count("*").alias("growing"),
            F.min(F.struct("broker", "queue")).alias("first"),
        )
    )
    newest = F.lead("period_s").over(Window.partitionBy(*TOPIC).orderBy("period_s")).isNull()
    of_queues = F.concat(
        F.lit("lag only grows on "),
        F.col("growing").cast("string"),
        F.lit(" of its queues, first on queue "),
        F.col("first").getField("queue").cast("string"),
        F.lit(" of "),
        F.col("first").getField("broker"),
        F.lit("; --by queue shows them"),
    )
    return (
        rows.withColumn("newest", newest)
        .join(growing, list(TOPIC), "left")
        .withColumn("finding", F.when(F.col("grows"), sentence(per_s)).when(F.col("newest"), of_queues))
    )


def charts(steps: "DataFrame") -> list[plots.LineChart | plots.HeatMap]:
    """Return lag and rates over time of the groups and topics with the most lag."""
    from pyspark.sql import functions as F

    ends = steps.agg(F.min("at") / 1000, F.max("at") / 1000).first()
    if ends is None or ends[0] is None:
        return []
    step_s = step_for(ends[0], ends[1])
    at = period(F.floor(F.col("at") / 1000), step_s).alias("step")
    name = F.concat_ws(" on ", "group", "topic").alias("name")
    sums = (
        steps.where(~F.coalesce("incomplete", F.lit(False)))
        .groupBy(name, "at")
        .agg(
            F.sum("lag").alias("lag"),
            F.sum(F.col("consumed") / F.col("seconds")).alias("consumed"),
            F.sum(F.col("produced") / F.col("seconds")).alias("produced"),
        )
    )
    rows = (
        sums.groupBy("name", at)
        .agg(
            F.max("lag").alias("lag"),
            F.avg("consumed").alias("consumed"),
            F.avg("produced").alias("produced"),
        )
        .orderBy("step")
        .collect()
    )
    worst: dict[str, int] = {}
    for row in rows:
        worst[row["name"]] = max(worst.get(row["name"], 0), row["lag"])
    names = sorted(worst, key=lambda each: (-worst[each], each))
    return [
        plots.LineChart(
            title=f"{title}, {step_s} s each",
            unit=unit,
            series={
                each: [(row["step"], row[column]) for row in rows if row["name"] == each] for each in names
            },
        )
        for title, unit, column in (
            ("Most lag", "messages", "lag"),
            ("Consumed", "messages/s", "consumed"),
            ("Produced", "messages/s", "produced"),
        )
    ]
