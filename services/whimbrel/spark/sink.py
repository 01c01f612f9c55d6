"""`df.write.format("whimbrel")` and `df.writeStream.format("whimbrel")`: rows as messages.

    row ─► checked ─► batch of one (topic, queue) ─► lane ─► broker's answer ─► ... ─► all answered: task ends

A lane has one send in flight. Rows that name a queue always take the same lane, so their order is kept; the
others take the lanes in turn. `write` returns when everything is acknowledged. `commit` and `abort` run in
other processes and undo nothing: messages of a failed try stay sent.

Rows that an ordinary send can't carry are refused with the row's number, never left out: reserved property
names, a flag, an empty body. Messages that brokers refuse, such as delayed ones for a topic that takes
ordered ones, fail the task with the broker's text.
"""

import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage

from whimbrel.client.options import ProducerOptions
from whimbrel.client.retry import RetryPolicy
from whimbrel.client.sync import Producer
from whimbrel.errors import RequestError
from whimbrel.model.limits import PROPERTIES_COUNT_MAX
from whimbrel.model.message import Message
from whimbrel.model.names import check_key, check_property, check_tag, check_topic
from whimbrel.model.route import Queue
from whimbrel.spark.options import OptionError
from whimbrel.spark.replay_writer import ReplayTarget, replay_rows
from whimbrel.spark.sink_options import ID_PROPERTY, SinkOptions, check_columns, parse_sink
from whimbrel.spark.workers import without_traceback

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

__all__ = ["BatchWriter", "RowError", "StreamWriter", "batch_writer", "messages_of", "stream_writer"]

logger = logging.getLogger(__name__)

BATCH_MESSAGES_MAX = 512  # of a send: its answer has an entry for each message
SLICE_ROWS = 512  # of a batch of Spark's, made Python objects at a time
# A restart of a broker, or a failover, takes some seconds; a task that fails would send all rows again.
RETRY = RetryPolicy(attempts_max=20, max_s=2.0, stored_again=True)


class RowError(ValueError):
    """A row can't be sent; the text says which, and why."""


@dataclass
class TaskCommit(WriterCommitMessage):
    """How many messages of a task were acknowledged."""

    messages: int = 0


def batch_writer(options: Mapping[str, str], schema: "StructType", *, overwrite: bool) -> "BatchWriter":
    """Return the writer of a batch.

    Raises:
        OptionError: options or columns are wrong.
    """
    if overwrite:
        raise OptionError('mode overwrite: messages can only be added; use .mode("append")')
    return BatchWriter(checked(options, schema, streaming=False))


def stream_writer(options: Mapping[str, str], schema: "StructType", *, overwrite: bool) -> "StreamWriter":
    """Return the writer of a stream; errors as in `batch_writer`."""
    if overwrite:
        raise OptionError('outputMode complete: messages can only be added; use outputMode("append")')
    return StreamWriter(checked(options, schema, streaming=True))


def checked(options: Mapping[str, str], schema: "StructType", *, streaming: bool) -> SinkOptions:
    """Return the options, with the columns checked."""
    parsed = parse_sink(options, streaming=streaming)
    check_columns([(column.name, column.dataType.simpleString()) for column in schema], parsed)
    return parsed


class RowWriter:
    """What writers of batches and of streams share; pickled, so it holds options only."""

    def __init__(self, options: SinkOptions) -> None:
        self.options = options

    @without_traceback
    def write(self, iterator: Iterator[pa.RecordBatch]) -> TaskCommit:
        """Send a task's rows; returns when all are acknowledged."""
        options = self.options
        if options.preserve:
            target = ReplayTarget(
                servers=options.servers,
                topic=options.topic,
                brokers=options.brokers,
                strict=True,
                batch_bytes=min(options.batch_bytes, 1 << 20),
            )
            reports = replay_rows(target, iterator, frozenset())
            for report in reports:
                if report.refused or report.passed_over:
                    raise RowError(
                        f"{report.source}: {'; '.join(report.findings) or dict(report.passed_over)}: filter"
                        " out what can't be put back, or use `whimbrel spark replay`"
                    )
            return TaskCommit(sum(report.stored + report.skipped for report in reports))
        with BatchSender(options) as sender:
            for number, message, queue_id in messages_of(iterator, options, prefix_of(options)):
                sender.put(number, message, queue_id)
            return TaskCommit(sender.finish())


class BatchWriter(RowWriter, DataSourceArrowWriter):
    """Writes a batch."""

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        """Log how many messages were written; they are acknowledged already."""
        logger.info("%d messages written", total(messages))

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        """Log how many messages stay written: they can't be removed."""
        logger.warning("the write failed; %d messages or more are sent", total(messages))


class StreamWriter(RowWriter, DataSourceStreamArrowWriter):
    """Writes the micro-batches of a stream."""

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        """Log how many messages were written; they are acknowledged already."""
        logger.info("micro-batch %d: %d messages written", batchId, total(messages))

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        """Log how many messages stay written: they can't be removed."""
        logger.warning("micro-batch %d failed; %d messages or more are sent", batchId, total(messages))


def total(messages: Sequence[WriterCommitMessage | None]) -> int:
    """Return how many messages tasks have written."""
    return sum(message.messages for message in messages if isinstance(message, TaskCommit))


def prefix_of(options: SinkOptions) -> str:
    """Return the prefix of the ids of this task's rows; "" where rows have none, or one of their own."""
    if options.delivery != "idempotent" or options.id_column:
        return ""
    from pyspark import TaskContext

    task = TaskContext.get()
    assert task is not None, "a writer runs in a task"
    query, batch = (
        task.getLocalProperty("sql.streaming.queryId"),
        task.getLocalProperty("streaming.sql.batchId"),
    )
    whole = options.run_id or f"{query}:{batch}"
    return f"{whole}:{task.partitionId()}"


def messages_of(
    batches: Iterable[pa.RecordBatch], options: SinkOptions, prefix: str
) -> Iterator[tuple[int, Message, int | None]]:
    """Yield each row's number in its task, its message, and the queue it names.

    Raises:
        RowError: a row can't be sent.
    """
    number = 0
    for batch in batches:
        for start in range(0, batch.num_rows, SLICE_ROWS):
            piece = batch.slice(start, SLICE_ROWS)
            columns = {name: piece.column(name).to_pylist() for name in piece.schema.names}
            for place in range(piece.num_rows):
                row = {name: values[place] for name, values in columns.items()}
                try:
                    message = message_of(row, options, f"{prefix}:{number}" if prefix else "")
                except RequestError as error:
                    raise RowError(
                        f"row {number} of this task can't be sent: {error}{hint_of(error)}"
                    ) from error
                queue_id = row.get("queueId")
                if queue_id is not None and queue_id < 0:
                    raise RowError(f"row {number} of this task can't be sent: queueId {queue_id} is below 0")
                yield number, message, queue_id
                number += 1


def hint_of(error: RequestError) -> str:
    """Return what to do about an error, where that needs an explanation; else ""."""
    if error.reason == "ILLEGAL_MESSAGE_PROPERTY_KEY" and "reserved" in str(error):
        return "; leave it out of the map, or put whole messages back with preserve=true"
    return ""


def message_of(row: dict[str, Any], options: SinkOptions, row_id: str) -> Message:
    """Return a row as a message.

    Raises:
        RequestError: an ordinary send can't carry it.
    """
    body, topic = row["body"], options.topic or row.get("topic")
    if body is None or not len(body):
        raise RequestError("its body is empty: brokers take 1 byte to 4 MiB")
    check_topic(topic or "")
    if row.get("flag"):
        raise RequestError(f"flag {row['flag']}: a send has none, only preserve=true keeps it")
    # A map comes as pairs.
    properties = {str(name): value for name, value in row.get("properties") or () if value is not None}
    for name, value in properties.items():
        check_property(name, value)
    if options.delivery == "idempotent":
        given = row_id or row.get(options.id_column)
        if given is None:
            raise RequestError(f"column {options.id_column} is null")
        properties[ID_PROPERTY] = str(given)
    if len(properties) > PROPERTIES_COUNT_MAX:
        raise RequestError(f"it has {len(properties)} properties; at most {PROPERTIES_COUNT_MAX} are allowed")
    keys = row.get("keys") or ()
    words = tuple(keys.split()) if isinstance(keys, str) else tuple(key for key in keys if key)
    for key in words:
        check_key(key)
    check_tag(row.get("tags") or "")
    if row.get("messageGroup") and row.get("deliveryTimestamp") is not None:
        raise RequestError("messageGroup and deliveryTimestamp: a message has only one of them")
    return Message(
        topic=topic or "",
        body=body.encode() if isinstance(body, str) else bytes(body),
        tag=row.get("tags") or None,
        keys=words,
        properties=properties,
        message_group=row.get("messageGroup") or None,
        deliver_at=seconds_of(row.get("deliveryTimestamp")),
    )


def seconds_of(at: datetime | int | None) -> float | None:
    """Return a time, or epoch milliseconds, in seconds."""
    if at is None or isinstance(at, int):
        return None if at is None else at / 1000
    return (at if at.tzinfo else at.replace(tzinfo=UTC)).timestamp()


@dataclass(slots=True)
class Lane:
    """Sends batches one after the other."""

    pool: ThreadPoolExecutor = field(default_factory=lambda: ThreadPoolExecutor(1, "whimbrel-sink"))
    in_flight: Future[int] | None = None

    def wait(self) -> int:
        """Wait for the send in flight; return how many messages it had."""
        if self.in_flight is None:
            return 0
        done, self.in_flight = self.in_flight, None
        return done.result()


@dataclass(slots=True)
class PendingBatch:
    """Rows that will go into one send."""

    first_row: int
    messages: list[Message] = field(default_factory=list)
    size: int = 0


SendKey = tuple[str, int | None, str]  # topic, queue, message type: the same for all messages of a send


class BatchSender:
    """The sends of one task. Use as a context manager."""

    def __init__(self, options: SinkOptions) -> None:
        self.options = options
        self.producer = Producer(";".join(options.servers), options=ProducerOptions(retry=RETRY))
        self.lanes = [Lane() for _ in range(options.in_flight)]
        self.pending: dict[SendKey, PendingBatch] = {}
        self.turn = self.acknowledged = self.held = 0

    def __enter__(self) -> "BatchSender":
        self.producer.start()
        return self

    def __exit__(self, *error: object) -> None:
        for lane in self.lanes:
            lane.pool.shutdown(cancel_futures=True)
        self.producer.close()

    def put(self, number: int, message: Message, queue_id: int | None) -> None:
        """Take a row's message."""
        key = (message.topic, queue_id, message.type.value)
        size = len(message.body) + sum(map(len, message.keys)) + 64 * (1 + len(message.properties))
        found = self.pending.get(key)
        if found is not None and (
            found.size + size > self.options.batch_bytes or len(found.messages) >= BATCH_MESSAGES_MAX
        ):
            self.send(key)
            found = None
        if found is None:
            # Together, pending batches take no more than one full batch for each lane.
            while self.pending and self.held + size > self.options.batch_bytes * len(self.lanes):
                self.send(next(iter(self.pending)))
            found = self.pending[key] = PendingBatch(number)
        found.messages.append(message)
        found.size, self.held = found.size + size, self.held + size

    def send(self, key: SendKey) -> None:
        """Hand a batch to a lane, once that has no send in flight."""
        batch = self.pending.pop(key)
        self.held -= batch.size
        topic, queue_id, _ = key
        if queue_id is None:
            self.turn += 1
        lane = self.lanes[(self.turn if queue_id is None else hash((topic, queue_id))) % len(self.lanes)]
        self.acknowledged += lane.wait()
        lane.in_flight = lane.pool.submit(self.send_batch, batch, queue_id)

    def send_batch(self, batch: PendingBatch, queue_id: int | None) -> int:
        """Send a batch; runs in a lane's thread."""
        messages = batch.messages
        selector = None if queue_id is None else queue_selector(queue_id)
        try:
            return len(self.producer.send_batch(messages, selector=selector))
        except RequestError as error:
            rows = f"rows {batch.first_row} and on" if len(messages) > 1 else f"row {batch.first_row}"
            raise RowError(
                f"{rows} of this task, {len(messages)} to {messages[0].topic}, are refused: {error}"
            ) from error

    def finish(self) -> int:
        """Send the pending batches, wait for all sends, and return how many messages are acknowledged."""
        while self.pending:
            self.send(next(iter(self.pending)))
        for lane in self.lanes:
            self.acknowledged += lane.wait()
        return self.acknowledged


def queue_selector(queue_id: int) -> Any:
    """Return what selects a queue by its id; with several brokers, always the same queue for an id.

    Ids count the queues of all brokers, in the order of their names: with two brokers of four queues each, 0
    to 3 are those of the first.
    """

    def select(message: Message, queues: Sequence[Queue]) -> Queue:
        ordered = sorted(queues, key=lambda queue: (queue.broker_name, queue.queue_id))
        if queue_id >= len(ordered):
            raise OptionError(
                f"queueId {queue_id}: topic {message.topic} has {len(ordered)} queues that may be written"
            )
        return ordered[queue_id]

    return select
