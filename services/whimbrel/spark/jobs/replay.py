"""`replay`: an archive, a store or another cluster back into topics, in order, each message once.

    count by queue (columns of the head only) ─► targets: are they there, do they take it? ─► tasks
    rows ─► each queue whole into one task, sorted by offset ─► `restoring.restore` ─► a row of the table

A queue is one task's, so its order is kept however many tasks there are; the tasks are filled by how much
each queue has. Running the job again is the way to go on after a crash: what is in is skipped. `rate` is a
bound of the whole job: each task gets its share, so with fewer tasks left at the end it runs below.

How many queues a source topic had is told by the messages: a topic that is made by `create` has as many as
the highest queue with a message asks for.
"""

import heapq
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass, replace
from datetime import datetime
from typing import TYPE_CHECKING

import pyarrow as pa
from pyspark.sql import functions as F
from pyspark.sql.pandas.types import from_arrow_schema

from whimbrel.client.sync import Admin
from whimbrel.errors import AlreadyExists, WhimbrelError
from whimbrel.rpc.api.bulk_calls import describe_queues, open_bulk_channel
from whimbrel.rpc.api.calls import perform_blocking
from whimbrel.rpc.api.replay_calls import SourceQueue, describe_replay
from whimbrel.rpc.client.channel import open_channel
from whimbrel.spark.jobs import JobError, Tell, silent
from whimbrel.spark.masters import Masters
from whimbrel.spark.replaying import COLUMNS, REPORT, Target, kind_of, report_batch, restore

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

__all__ = ["ReplayOptions", "Source", "put_back", "replay", "rows_of"]

PROGRESS_S = 2.0  # how often the brokers are asked how far it is
QUEUES_MAX = 10_000  # of one run: where each goes is part of the plan
HEAD = "topic string, brokerName string, queueId int, queueOffset bigint, storeTimestamp timestamp"
WHOLE = (
    f"{HEAD}, msgId string, bornTimestamp timestamp, bornHost string, flag int, sysFlag int,"
    " reconsumeTimes int, propertiesText binary, body binary"
)

Bound = int | datetime | None
Queue = tuple[str, str, int]  # topic, broker, queue id


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """Where messages are read; exactly one of the three.

    Attributes:
        archive: the root of an archive.
        store: a store directory, ours or RocketMQ's.
        servers: nameservers of a cluster, HOST:PORT.
        topic: read this one; empty: all but the brokers' own, of a store the whole log.
        pattern: read these, the brokers' own too.
    """

    archive: str = ""
    store: str = ""
    servers: str = ""
    topic: str = ""
    pattern: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayOptions:
    """What is put back, and where.

    Attributes:
        endpoint: nameservers of the cluster into which it goes, HOST:PORT.
        source: what is read.
        to: topic; empty: that of each message.
        first, until: offsets, or store times; half open.
        rate: messages a second, of the whole job; 0 for no bound.
        dry_run: store nothing, tell what would be.
        create: make topics that are missing.
        brokers: the source's brokers and into which of the target each goes, where names do not tell.
        tasks: how many at most; 0: as many as Spark runs at a time.
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


def replay(session: "SparkSession", options: ReplayOptions, tell: Tell = silent) -> "DataFrame":
    """Put messages back; the table has a row for each source queue.

    Raises:
        JobError: there is nothing to do, or nowhere to put it.
        WhimbrelError: a broker refuses, or does not answer.
    """
    source = options.source
    if source.topic == "" and options.to:
        raise JobError("--to needs --topic: several topics in one would lose which message was whose")
    if source.servers and servers_of(source.servers) == servers_of(options.endpoint):
        if not options.to or options.to == source.topic:
            raise JobError("source and target are the same topic: name another one with --to")
    head = within(rows_of(session, source, head_only=True), options.first, options.until)
    rows = within(rows_of(session, source), options.first, options.until)
    target = Target(
        servers=servers_of(options.endpoint),
        topic=options.to,
        brokers=options.brokers,
        dry=options.dry_run,
        rate=options.rate,
    )
    return put_back(session, head, rows, target, tell, create=options.create, tasks=options.tasks)


def servers_of(text: str) -> tuple[str, ...]:
    """Return the addresses of a list."""
    return tuple(part.strip() for part in text.replace(";", ",").split(",") if part.strip())


def rows_of(session: "SparkSession", source: Source, *, head_only: bool = False) -> "DataFrame":
    """Return a source's rows: bodies and property texts as stored, or columns of the head only.

    Raises:
        JobError: not exactly one source is named.
    """
    given = [name for name in ("archive", "store", "servers") if getattr(source, name)]
    if len(given) != 1:
        raise JobError("name one source: --archive ROOT, --store DIRECTORY, or --servers HOST:PORT")
    reader = session.read.format("whimbrel").option(given[0], getattr(source, given[0]))
    reader = reader.option("decompress", "false")
    if source.topic:
        reader = reader.option("subscribe", source.topic)
    elif source.pattern or source.servers:
        reader = reader.option("subscribePattern", source.pattern or ".*")
        reader = reader.option("includeSystemTopics", str(bool(source.pattern)).lower())
    return reader.schema(HEAD if head_only else WHOLE).load()


def within(frame: "DataFrame", first: Bound, until: Bound) -> "DataFrame":
    """Return the rows from one bound to another, by offset or by store time."""
    if first is not None:
        frame = frame.filter(bounded(first) >= F.lit(first))
    return frame if until is None else frame.filter(bounded(until) < F.lit(until))


def bounded(bound: int | datetime) -> "Column":
    """Return the column that a bound is about."""
    return F.col("queueOffset" if isinstance(bound, int) else "storeTimestamp")


def put_back(
    session: "SparkSession",
    head: "DataFrame",
    rows: "DataFrame",
    target: Target,
    tell: Tell,
    *,
    create: bool = False,
    tasks: int = 0,
    taken: frozenset[str] = frozenset(),
) -> "DataFrame":
    """Put rows back; see `replay`.

    Args:
        head: topic, brokerName, queueId, and targetTopic if rows have it, of the same rows.
        rows: with the columns of `restoring.COLUMNS`.
        target: where to; its rate is the whole job's.
        taken: kinds of messages that are not passed over.
    """
    names = ["topic", "brokerName", "queueId", *(["targetTopic"] if "targetTopic" in head.columns else [])]
    counted = head.groupBy(*names).count().take(QUEUES_MAX + 1)
    if not counted:
        raise JobError("there is nothing to put back: no message is in the range")
    if len(counted) > QUEUES_MAX:
        raise JobError(f"more than {QUEUES_MAX} queues: replay topic by topic")
    sizes: dict[Queue, int] = {}
    wanted: dict[tuple[str, str], int] = {}  # (source's broker, target topic): queues
    for row in counted:
        queue = (row["topic"], row["brokerName"], row["queueId"])
        sizes[queue] = sizes.get(queue, 0) + row["count"]
        if kind_of(queue[0], 0, b"") in ("", *taken):
            key = (queue[1], target.topic or (row["targetTopic"] if len(names) > 3 else queue[0]))
            wanted[key] = max(wanted.get(key, 0), queue[2] + 1)
    masters = Masters(target.servers, dict(target.brokers), target.timeout_s)
    planned = check_targets(masters, wanted, tell, create=create, dry=target.dry)
    count = max(min(len(sizes), tasks or parallelism(session)), 1)
    tell(f"{sum(sizes.values())} messages of {len(sizes)} queues, in {count} tasks")
    plan = replace(target, rate=target.rate / count, planned=tuple(planned.items()))
    rows = rows.select(*COLUMNS, *names[3:])
    packed = in_tasks(rows, shares(sizes, count), count)
    work = packed.mapInArrow(worker(plan, taken), from_arrow_schema(REPORT))
    topics = {topic for _, topic in wanted}
    watched = nullcontext() if target.dry else progress(masters, topics, sum(sizes.values()), tell)
    with watched:
        found = work.collect()
    ordered = sorted(found, key=lambda row: (row["topic"], row["broker"], row["queue"], row["target"] or ""))
    stored = sum(row["stored"] for row in ordered)
    told = "would be stored, nothing was" if target.dry else "stored"
    tell(f"{stored} {told}, {sum(row['skipped'] for row in ordered)} were there already")
    return session.createDataFrame(ordered, from_arrow_schema(REPORT))


def check_targets(
    masters: Masters, wanted: Mapping[tuple[str, str], int], tell: Tell, *, create: bool, dry: bool
) -> dict[str, int]:
    """Make sure that each topic is there and that its broker takes what is put back.

    Returns:
        The topics that would be made, with their queues, when this is a dry run.
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
    if missing and not dry:
        with Admin(";".join(masters.servers)) as admin:
            for topic, queues in missing.items():
                tell(f"making topic {topic} with {queues} queues")
                with suppress(AlreadyExists):
                    admin.create_topic(topic, queues=queues)
        missing = {}
    for source, topic in wanted:
        if topic in missing:
            continue
        address = masters.address(masters.broker_for(source))
        question = describe_replay(topic, 0, SourceQueue("nobody", "nothing", 0))
        with open_channel(address) as channel:
            perform_blocking(channel, question, (), masters.timeout_s)
    return missing


def parallelism(session: "SparkSession") -> int:
    """Return how many tasks Spark runs at a time, as far as it says; it does so under Connect as well."""
    return session.range(1 << 20).select(F.spark_partition_id()).distinct().count()


def shares(sizes: Mapping[Queue, int], count: int) -> dict[Queue, int]:
    """Return the task of each queue, so that all have about as many messages."""
    tasks = [(0, number) for number in range(count)]
    found: dict[Queue, int] = {}
    for queue, size in sorted(sizes.items(), key=lambda item: (-item[1], item[0])):
        filled, number = heapq.heappop(tasks)
        found[queue] = number
        heapq.heappush(tasks, (filled + size, number))
    return found


def in_tasks(rows: "DataFrame", tasks: Mapping[Queue, int], count: int) -> "DataFrame":
    """Return the rows with each queue whole in its task, by rising offset.

    A queue that nobody counted, since it is new, goes into the first one.
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


def worker(
    target: Target, taken: frozenset[str]
) -> Callable[[Iterable[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """Return what a task does."""

    def work(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        yield report_batch(restore(target, batches, taken))

    return work


@contextmanager
def progress(masters: Masters, topics: Iterable[str], total: int, tell: Tell) -> Iterator[None]:
    """Tell now and then how many messages the target's topics have gained."""
    done = threading.Event()
    wanted = tuple(sorted(topics))
    before = ends(masters, wanted)

    def watch() -> None:
        while not done.wait(PROGRESS_S):
            with suppress(WhimbrelError):  # the tasks say what is wrong with a broker
                tell(f"{ends(masters, wanted) - before} of at most {total} messages are back")

    thread = threading.Thread(target=watch, name="whimbrel-replay-progress", daemon=True)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join(masters.timeout_s)


def ends(masters: Masters, topics: Sequence[str]) -> int:
    """Return how many messages some topics had in all of their time."""
    found = 0
    for address in list(masters.addresses.values()):
        with open_bulk_channel(address) as channel:
            # All topics: one that is named and that this broker lacks is no error.
            seen = perform_blocking(channel, describe_queues(), (), masters.timeout_s)
        for topic in seen.topics:
            if topic.name in topics:
                found += sum(queue.max_offset for queue in topic.queues)
    return found
