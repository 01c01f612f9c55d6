"""`dlq`: dead letters by group, origin and reason; a selection of them can be replayed into topics.

A broker does not record why it gave up on a message; the record tells how often it was delivered:

    attempts    RECONSUMETIMES reached MAX_RECONSUME_TIMES, or RocketMQ's default of 16
    forwarded   one at most, and it has DLQ_ORIGIN_TOPIC: a consumer forwarded it after its first delivery, or
                it was of a group in order, whose redeliveries the record does not count
    early       it was delivered again, but less often: its consumer gave up, or its group allows fewer
    unknown     none of these

`times` is how often it was delivered: DEAD_AFTER_ATTEMPTS, else the record's number, which may be one more.
The origin topic is RETRY_TOPIC, else DLQ_ORIGIN_TOPIC; the group is in the topic's name, %DLQ%GROUP. Replayed
dead letters are identified by id and origin, so replaying a selection twice, or one that overlaps another,
stores no message twice. Dead letters are no finding: the table says how many there are.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING

from pyspark.sql import Window
from pyspark.sql import functions as F

from whimbrel.model.limits import RETRY_MAX_DEFAULT
from whimbrel.model.names import DEAD_LETTER_PREFIX
from whimbrel.model.properties import (
    DEAD_AFTER_ATTEMPTS,
    DLQ_ORIGIN_MESSAGE_ID,
    DLQ_ORIGIN_TOPIC,
    KEYS,
    RETRY_TOPIC,
    TAGS,
)
from whimbrel.spark.before import check_source
from whimbrel.spark.jobs.replay import Source, replay_frame, rows_of, servers_of, source_options
from whimbrel.spark.replay_writer import ReplayTarget
from whimbrel.spark.reporting import JobError, ProgressCallback, ignore_progress
from whimbrel.store.columns.kinds import DEAD_LETTER

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

__all__ = ["ORIGIN", "REASONS", "DlqOptions", "check", "dlq"]

REASONS = ("attempts", "early", "forwarded", "unknown")
ORIGIN = "ORIGIN"  # in place of a topic's name: each message into its origin topic
NOWHERE = "(unknown)"
TOP_KEYS = 3
BODY_BYTES_SHOWN = 60


@dataclass(frozen=True, slots=True, kw_only=True)
class DlqOptions:
    """Which dead letters are selected, and what is done with them.

    Attributes:
        endpoint: nameservers of the cluster, HOST:PORT; empty when an archive or a store is only read.
        archive, store: read these instead of the cluster.
        group: of this consumer group only.
        reason: one of REASONS; empty for all.
        since: stored at or after this time.
        messages: list single messages.
        replay_to: replay the selection into a topic; ORIGIN: each into its origin topic.
        rate: messages a second; 0 for no bound.
        dry_run: with replay_to, store nothing.
        brokers: with replay_to, as in `replay`.
        allow_partial: of brokers, read what is there.
    """

    endpoint: str = ""
    archive: str = ""
    store: str = ""
    group: str = ""
    reason: str = ""
    since: datetime | None = None
    messages: bool = False
    replay_to: str = ""
    rate: float = 0.0
    dry_run: bool = False
    brokers: tuple[tuple[str, str], ...] = ()
    allow_partial: bool = False


def check(options: DlqOptions) -> None:
    """Raise why the job can't run, as far as that is known without reading messages, and without Spark.

    Raises:
        JobError: the options contradict each other.
        ValueError, LookupError, RuntimeError, WhimbrelError: as reading raises them.
    """
    check_together(options)
    check_source(source_options(source_of(options)))


def check_together(options: DlqOptions) -> None:
    """Raise JobError for options that contradict each other."""
    if options.reason not in ("", *REASONS):
        raise JobError(f"--reason {options.reason!r} is not one of {', '.join(REASONS)}")
    if options.messages and options.replay_to:
        raise JobError("--messages and --replay-to: list them first, then put them back")


def dlq(
    session: "SparkSession", options: DlqOptions, on_progress: ProgressCallback = ignore_progress
) -> "DataFrame":
    """Return a row for each group and origin topic; or for each message; or the report of a replay.

    Raises:
        JobError: the options contradict each other, or messages that are to be replayed have no origin.
        WhimbrelError: a broker refuses, or does not answer.
    """
    check_together(options)
    found = selected(letters(rows_of(session, source_of(options))), options)
    if options.replay_to:
        return replayed(session, found, options, on_progress)
    return listed(session, found) if options.messages else grouped(session, found)


def source_of(options: DlqOptions) -> Source:
    """Return where dead letters are read from."""
    servers = "" if options.archive or options.store else options.endpoint
    topic = DEAD_LETTER_PREFIX + options.group if options.group else ""
    pattern = "" if topic else f"{DEAD_LETTER_PREFIX}.*"
    return Source(
        archive=options.archive,
        store=options.store,
        servers=servers,
        topic=topic,
        pattern=pattern,
        allow_partial=options.allow_partial,
    )


def property_of(name: str) -> "Column":
    """Return a property of the stored text; the last one of equal names, null without one."""
    text = F.col("propertiesText").cast("string")
    found = F.regexp_extract(text, f"(?s)^(?:.*\x02)?{name}\x01([^\x02]*)", 1)
    return F.nullif(found, F.lit(""))


def letters(rows: "DataFrame") -> "DataFrame":
    """Return rows with group, origin, reason, keys and tags."""
    forwarded = property_of(DLQ_ORIGIN_TOPIC)
    most = F.coalesce(property_of("MAX_RECONSUME_TIMES").try_cast("int"), F.lit(RETRY_MAX_DEFAULT))
    times = F.col("reconsumeTimes")
    reason = (
        F.when(times >= most, "attempts")
        .when((times <= 1) & forwarded.isNotNull(), "forwarded")
        .when(times > 0, "early")
        .otherwise("unknown")
    )
    return rows.withColumns(
        {
            "group": F.substring("topic", len(DEAD_LETTER_PREFIX) + 1, 1000),
            "originTopic": F.coalesce(property_of(RETRY_TOPIC), forwarded, F.lit(NOWHERE)),
            "originId": F.coalesce(property_of("ORIGIN_MESSAGE_ID"), property_of(DLQ_ORIGIN_MESSAGE_ID)),
            "reason": reason,
            "times": F.coalesce(property_of(DEAD_AFTER_ATTEMPTS).try_cast("int"), times),
            "keys": property_of(KEYS),
            "tags": property_of(TAGS),
        }
    )


def selected(frame: "DataFrame", options: DlqOptions) -> "DataFrame":
    """Return the rows that the options select."""
    if options.reason:
        frame = frame.filter(F.col("reason") == options.reason)
    return frame if options.since is None else frame.filter(F.col("storeTimestamp") >= F.lit(options.since))


def computed(session: "SparkSession", frame: "DataFrame") -> "DataFrame":
    """Return a small table with its rows collected, so that the topics are not read again."""
    return session.createDataFrame(frame.collect(), frame.schema)


def grouped(session: "SparkSession", frame: "DataFrame") -> "DataFrame":
    """Return a row for each group and origin topic."""
    by = ("group", "originTopic")
    columns = frame.select(*by, "reason", "times", "storeTimestamp", "keys")
    counts: Mapping[str, Column] = {name: F.count_if(F.col("reason") == name) for name in REASONS}
    age = F.timestamp_diff("SECOND", F.min("storeTimestamp"), F.current_timestamp())
    table = columns.groupBy(*by).agg(
        F.count(F.lit(1)).alias("messages"),
        *(count.alias(name) for name, count in counts.items()),
        F.max("times").alias("timesMax"),
        F.min("storeTimestamp").alias("oldest"),
        F.max("storeTimestamp").alias("newest"),
        age.alias("oldestAgeS"),
    )
    key_counts = columns.select(*by, F.explode(F.split("keys", " ")).alias("key")).groupBy(*by, "key").count()
    place = F.row_number().over(Window.partitionBy(*by).orderBy(F.desc("count"), "key"))
    shown = F.struct(
        "place", F.concat("key", F.lit(" ("), F.col("count").cast("string"), F.lit(")")).alias("text")
    )
    top = (
        key_counts.withColumn("place", place)
        .filter(F.col("place") <= TOP_KEYS)
        .groupBy(*by)
        .agg(F.concat_ws(", ", F.sort_array(F.collect_list(shown)).getField("text")).alias("topKeys"))
    )
    return computed(session, table.join(top, list(by), "left").orderBy(F.desc("messages"), *by))


def listed(session: "SparkSession", frame: "DataFrame") -> "DataFrame":
    """Return a row for each message, the oldest first."""
    body = F.expr(f"substring(body, 1, {BODY_BYTES_SHOWN})")
    return frame.orderBy("storeTimestamp", "brokerName", "topic", "queueOffset").select(
        "group",
        "originTopic",
        "reason",
        "times",
        "storeTimestamp",
        "bornTimestamp",
        "msgId",
        "keys",
        "tags",
        F.concat_ws("/", "brokerName", F.col("queueOffset").cast("string")).alias("place"),
        body.alias("body"),
    )


def replayed(
    session: "SparkSession", frame: "DataFrame", options: DlqOptions, on_progress: ProgressCallback
) -> "DataFrame":
    """Replay the selection."""
    if options.replay_to == ORIGIN:
        lost = frame.filter(F.col("originTopic") == NOWHERE).count()
        if lost:
            raise JobError(
                f"{lost} of these messages do not tell where they came from: name a topic with"
                " --replay-to TOPIC, or leave them out"
            )
        frame = frame.withColumn("targetTopic", F.col("originTopic"))
    else:
        frame = frame.withColumn("targetTopic", F.lit(options.replay_to))
    target = ReplayTarget(
        servers=servers_of(options.endpoint),
        brokers=options.brokers,
        selection=True,
        dry=options.dry_run,
        rate=options.rate,
    )
    return replay_frame(session, frame, frame, target, on_progress, included=frozenset({DEAD_LETTER}))
