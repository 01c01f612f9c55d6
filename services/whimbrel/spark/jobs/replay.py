"""`replay`: an archive, a store or another cluster back into topics, in order, each message once.

    count by queue (columns of the head only) ─► do the targets exist, and accept replays? ─► tasks
    rows ─► each queue whole into one task, sorted by offset ─► `replay_rows` ─► a row of the table

A queue belongs to one task, so its order is kept however many tasks there are; queues are spread over tasks
by their number of messages. After a crash, the job is run again: messages that are stored are skipped. `rate`
is a bound of the whole job, of which each task gets its share; with fewer tasks left at the end, the job runs
below it.

The number of queues of a source topic is known from its messages only: a topic that is made by `create` gets
queues up to the highest one that has a message.
"""

import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass, replace
from datetime import datetime
from types import MappingProxyType
from typing import TYPE_CHECKING

import pyarrow as pa
from pyspark.sql import functions as F
from pyspark.sql.pandas.types import from_arrow_schema

from whimbrel.client.sync import Admin
from whimbrel.errors import AlreadyExists, TopicNotFound, WhimbrelError
from whimbrel.model.message import MessageType
from whimbrel.rpc.api.bulk_calls import describe_queues, open_bulk_channel
from whimbrel.rpc.api.calls import perform_blocking
from whimbrel.rpc.api.replay_calls import describe_replay
from whimbrel.rpc.client.channel import open_channel
from whimbrel.spark.before import NOBODY, check_source, check_target
from whimbrel.spark.masters import Masters
from whimbrel.spark.planning import fill_tasks
from whimbrel.spark.replay_writer import (
    COLUMNS,
    REPORT_SCHEMA,
    ReplayTarget,
    kind_of,
    replay_rows,
    report_batch,
)
from whimbrel.spark.reporting import JobError, ProgressCallback, ignore_progress

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

__all__ = [
    "ReplayOptions",
    "Source",
    "check",
    "replay",
    "replay_frame",
    "rows_of",
    "servers_of",
    "source_options",
]

PROGRESS_S = 2.0  # between two progress reports
QUEUES_MAX = 10_000  # of one run: the task of each is part of the plan
GROUPS_MAX = 8 * QUEUES_MAX  # of them with their targets and kinds
HEAD = "topic string, brokerName string, queueId int, queueOffset bigint, storeTimestamp timestamp"
KINDS = ", type string"  # of the head as well, where topics are made: they take what they are filled with
WHOLE = (
    f"{HEAD}, msgId string, bornTimestamp timestamp, bornHost string, flag int, sysFlag int,"
    " reconsumeTimes int, propertiesText binary, body binary"
)

Bound = int | datetime | None
Queue = tuple[str, str, int]  # topic, broker, queue id


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """Where messages are read: exactly one of the first three is set.

    Attributes:
        archive: the root of an archive.
        store: a store directory, ours or RocketMQ's.
        servers: nameservers of a cluster, HOST:PORT.
        topic: read this one; empty: all but system topics, of a store the whole log.
        pattern: read topics of these names, system topics as well.
        allow_partial: of brokers, read what is there.
    """

    archive: str = ""
    store: str = ""
    servers: str = ""
    topic: str = ""
    pattern: str = ""
    allow_partial: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayOptions:
    """What is replayed, and where.

    Attributes:
        endpoint: nameservers of the target cluster, HOST:PORT.
        source: where messages are read.
        to: target topic; empty: that of each message.
        first, until: offsets, or store times; half open.
        rate: messages a second, of the whole job; 0 for no bound.
        dry_run: store nothing, report what would be stored.
        create: create topics that are missing.
        brokers: the source's brokers and those of the target, where names do not tell.
        tasks: most tasks; 0: as many as Spark runs at a time.
    """

    endpoint: str
    source: Source
    to: str = ""
    first: Bound = None
    until: Bound = None
    rate: float = 0.0
    dry_run: bool = False
    create: bool = False
    brokers: tuple[tuple[str, str], ...] = ()
    tasks: int = 0


def check(options: ReplayOptions) -> None:
    """Raise why a replay can't run, as far as that is known without reading messages, and without Spark.

    Raises:
        JobError: the options contradict each other.
        ValueError: an option of the source is wrong.
        LookupError, RuntimeError, WhimbrelError: as reading and replaying raise them.
    """
    check_together(options)
    source = options.source
    check_source(source_options(source))
    check_target(servers_of(options.endpoint), options.to or source.topic)


def check_together(options: ReplayOptions) -> None:
    """Raise JobError for options that contradict each other."""
    source = options.source
    if source.topic == "" and options.to:
        raise JobError("--to needs --topic: several topics in one would lose which message was whose")
    if source.servers and servers_of(source.servers) == servers_of(options.endpoint):
        if not options.to or options.to == source.topic:
            raise JobError("source and target are the same topic: name another one with --to")


def replay(
    session: "SparkSession", options: ReplayOptions, on_progress: ProgressCallback = ignore_progress
) -> "DataFrame":
    """Replay messages; the table has a row for each source queue.

    Raises:
        JobError: there are no messages, or there is no topic for them.
        WhimbrelError: a broker refuses, or does not answer.
    """
    check_together(options)
    source = options.source
    head_columns = HEAD + KINDS if options.create else HEAD
    head = within_bounds(rows_of(session, source, head_columns), options.first, options.until)
    rows = within_bounds(rows_of(session, source), options.first, options.until)
    target = ReplayTarget(
        servers=servers_of(options.endpoint),
        topic=options.to,
        brokers=options.brokers,
        dry=options.dry_run,
        rate=options.rate,
    )
    return replay_frame(session, head, rows, target, on_progress, create=options.create, tasks=options.tasks)


def servers_of(text: str) -> tuple[str, ...]:
    """Return the addresses of a list."""
    return tuple(part.strip() for part in text.replace(";", ",").split(",") if part.strip())


def rows_of(session: "SparkSession", source: Source, columns: str = WHOLE) -> "DataFrame":
    """Return a source's rows, bodies and property texts as stored.

    Raises:
        JobError: not exactly one source is named.
    """
    reader = session.read.format("whimbrel").options(**source_options(source))
    return reader.schema(columns).load()


def source_options(source: Source) -> dict[str, str]:
    """Return the options of `format("whimbrel")`.

    Raises:
        JobError: not exactly one source is named.
    """
    given = [name for name in ("archive", "store", "servers") if getattr(source, name)]
    if len(given) != 1:
        raise JobError("name one source: ARCHIVE, --store DIRECTORY, or --servers HOST:PORT")
    options = {given[0]: getattr(source, given[0]), "decompress": "false"}
    if source.topic:
        options["subscribe"] = source.topic
    elif source.pattern or source.servers:
        options["subscribePattern"] = source.pattern or ".*"
        options["includeSystemTopics"] = str(bool(source.pattern)).lower()
    if source.allow_partial:
        options["allowPartial"] = "true"
    return options


def within_bounds(frame: "DataFrame", first: Bound, until: Bound) -> "DataFrame":
    """Return the rows from one bound to another, by offset or by store time."""
    if first is not None:
        frame = frame.filter(bound_column(first) >= F.lit(first))
    return frame if until is None else frame.filter(bound_column(until) < F.lit(until))


def bound_column(bound: int | datetime) -> "Column":
    """Return the column that a bound is about."""
    return F.col("queueOffset" if isinstance(bound, int) else "storeTimestamp")


def replay_frame(
    session: "SparkSession",
    head: "DataFrame",
    rows: "DataFrame",
    target: ReplayTarget,
    on_progress: ProgressCallback,
    *,
    create: bool = False,
    tasks: int = 0,
    included: frozenset[str] = frozenset(),
) -> "DataFrame":
    """Replay the rows of a frame; see `replay`.

    Args:
        head: of the same rows, the columns topic, brokerName, queueId, and if they have them targetTopic and
            type: topics are made for what that says.
        rows: with the columns of `replay_writer.COLUMNS`.
        target: where they go; its rate is the whole job's.
        included: kinds of messages that are not passed over.
    """
    sizes, wanted, kinds = count_queues(head, target.topic, included)
    masters = Masters(target.servers, dict(target.brokers), target.timeout_s)
    planned = check_targets(masters, wanted, on_progress, create=create, dry=target.dry, kinds=kinds)
    count = max(min(len(sizes), tasks or parallelism(session)), 1)
    total = sum(sizes.values())
    on_progress(f"{total} messages of {len(sizes)} queues, in {count} tasks")
    plan = replace(target, rate=target.rate / count, planned=tuple(planned.items()))
    rows = rows.select(*COLUMNS, *(name for name in ("targetTopic",) if name in head.columns))
    packed = in_tasks(rows, shares(sizes, count), count)
    work = packed.mapInArrow(task_function(plan, included), from_arrow_schema(REPORT_SCHEMA))
    topics = {topic for _, topic in wanted}
    with nullcontext() if target.dry else progress_reported(masters, topics, total, on_progress):
        found = work.collect()
    ordered = sorted(found, key=lambda row: (row["topic"], row["broker"], row["queue"], row["target"] or ""))
    stored = sum(row["stored"] for row in ordered)
    verb = "would be stored, nothing was" if target.dry else "stored"
    on_progress(f"{stored} {verb}, {sum(row['skipped'] for row in ordered)} were there already")
    return session.createDataFrame(ordered, from_arrow_schema(REPORT_SCHEMA))


def count_queues(
    head: "DataFrame", topic: str, included: frozenset[str]
) -> tuple[dict[Queue, int], dict[tuple[str, str], int], dict[str, set[str]]]:
    """Return how many messages each source queue has, and what each target topic needs.

    Args:
        head: as in `replay_frame`.
        topic: into which all messages go; empty: that of each row.

    Returns:
        Messages by source queue; queues by the source's broker and the target topic; kinds of messages by the
        target topic, none where `head` does not say them.

    Raises:
        JobError: there are no messages, or too many queues.
    """
    targets = [name for name in ("targetTopic", "type") if name in head.columns]
    counted = head.groupBy("topic", "brokerName", "queueId", *targets).count().take(GROUPS_MAX + 1)
    if not counted:
        raise JobError("there is nothing to put back: no message is in the range")
    sizes: dict[Queue, int] = {}
    wanted: dict[tuple[str, str], int] = {}
    kinds: dict[str, set[str]] = {}
    for row in counted:
        queue = (row["topic"], row["brokerName"], row["queueId"])
        sizes[queue] = sizes.get(queue, 0) + row["count"]
        if kind_of(queue[0], 0) in ("", *included):
            key = (queue[1], topic or (row["targetTopic"] if "targetTopic" in targets else queue[0]))
            wanted[key] = max(wanted.get(key, 0), queue[2] + 1)
            if "type" in targets:
                kinds.setdefault(key[1], set()).add(row["type"])
    if len(counted) > GROUPS_MAX or len(sizes) > QUEUES_MAX:
        raise JobError(f"more than {QUEUES_MAX} queues: replay topic by topic")
    return sizes, wanted, kinds


def check_targets(
    masters: Masters,
    wanted: Mapping[tuple[str, str], int],
    on_progress: ProgressCallback,
    *,
    create: bool,
    dry: bool,
    kinds: Mapping[str, Set[str]] = MappingProxyType({}),
) -> dict[str, int]:
    """Make sure that each topic exists and that its broker accepts replays.

    Returns:
        In a dry run, the topics that would be created, with their number of queues.
    """
    missing: dict[str, int] = {}
    for (source, topic), queues in wanted.items():
        if not masters.queues(masters.broker_for(source), topic):
            missing[topic] = max(missing.get(topic, 0), queues)
    if missing and not create:
        topic, queues = next(iter(missing.items()))
        raise JobError(
            f"the target has no topic {', '.join(sorted(missing))}: --create makes it, or"
            f" `whimbrel topic create {topic} --queues {queues}`"
        )
    for source, topic in wanted:
        if topic in missing:  # a refusal must not leave a topic behind
            with suppress(TopicNotFound):
                ask_for_replay(masters, source, topic)
    if missing and not dry:
        with Admin(";".join(masters.servers)) as admin:
            for topic, queues in missing.items():
                on_progress(f"making topic {topic} with {queues} queues")
                with suppress(AlreadyExists):
                    admin.create_topic(topic, queues=queues, message_type=topic_type(kinds.get(topic, set())))
        missing = {}
    for source, topic in wanted:
        if topic in missing:
            continue
        ask_for_replay(masters, source, topic)
    return missing


def topic_type(kinds: Set[str]) -> MessageType:
    """Return the type of a topic that takes messages of these kinds: MIXED for several."""
    known = {MessageType[kind] for kind in kinds if kind in MessageType.__members__}
    if len(known) > 1:
        return MessageType.MIXED
    return known.pop() if known else MessageType.NORMAL


def ask_for_replay(masters: Masters, source: str, topic: str) -> None:
    """Raise what the broker that takes the messages of `source` says against replaying into a topic."""
    with open_channel(masters.address(masters.broker_for(source))) as channel:
        perform_blocking(channel, describe_replay(topic, 0, NOBODY), (), masters.timeout_s)


def parallelism(session: "SparkSession") -> int:
    """Return how many tasks Spark runs at a time, as far as a query can tell, under Connect as well."""
    return session.range(1 << 20).select(F.spark_partition_id()).distinct().count()


def shares(sizes: Mapping[Queue, int], count: int) -> dict[Queue, int]:
    """Return the task of each queue, so that all tasks have about as many messages."""
    tasks = fill_tasks(sorted(sizes), count, lambda queue: sizes[queue])
    return {queue: number for number, task in enumerate(tasks) for queue in task}


def in_tasks(rows: "DataFrame", tasks: Mapping[Queue, int], count: int) -> "DataFrame":
    """Return the rows, each queue whole in its task, by rising offset.

    A queue that appeared after counting goes into the first task.
    """
    entries = [
        F.lit(value)
        for (topic, broker, queue_id), task in tasks.items()
        for value in (f"{topic}\0{broker}\0{queue_id}", task)
    ]
    name = F.concat_ws("\0", "topic", "brokerName", F.col("queueId").cast("string"))
    task = F.coalesce(F.try_element_at(F.create_map(*entries), name), F.lit(0)).cast("int")
    return rows.repartitionById(count, task).sortWithinPartitions(
        "topic", "brokerName", "queueId", "queueOffset"
    )


def task_function(
    target: ReplayTarget, included: frozenset[str]
) -> Callable[[Iterable[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """Return the function of a task."""

    def work(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        yield report_batch(replay_rows(target, batches, included))

    return work


@contextmanager
def progress_reported(
    masters: Masters, topics: Iterable[str], total: int, on_progress: ProgressCallback
) -> Iterator[None]:
    """While the block runs, report every PROGRESS_S how many messages the target's topics have gained."""
    done = threading.Event()
    wanted = tuple(sorted(topics))
    before = ends(masters, wanted)

    def watch() -> None:
        while not done.wait(PROGRESS_S):
            with suppress(WhimbrelError):  # errors of brokers are reported by the tasks
                on_progress(f"{ends(masters, wanted) - before} of at most {total} messages are back")

    thread = threading.Thread(target=watch, name="whimbrel-replay-progress", daemon=True)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join(masters.timeout_s)


def ends(masters: Masters, topics: Sequence[str]) -> int:
    """Return how many messages were ever stored in some topics."""
    found = 0
    for address in list(masters.addresses.values()):
        with open_bulk_channel(address) as channel:
            # All topics: one that is named need not be on this broker.
            seen = perform_blocking(channel, describe_queues(), (), masters.timeout_s)
        for topic in seen.topics:
            if topic.name in topics:
                found += sum(queue.max_offset for queue in topic.queues)
    return found
