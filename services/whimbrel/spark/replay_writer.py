"""Replays the messages of source queues into topics, in a task: in order, each once, in batches.

    rows of a source queue, by rising offset ─► passed over by kind, or batched ─► AppendPreserved ─► counted
                     '── at the first row: how far did an earlier run come? Rows up to there are skipped

A batch is sent again until its broker has answered; the broker leaves out the messages that it has. So no
message is stored twice if a task or a job is run again, or a broker was killed. If a failover took back what
was answered, the task fails, since only its source can give those rows again.

**A hole** would not be noticed by later runs: rows before the first message of an earlier run, or between its
last one and the first row of this run. Of a queue, only the last replayed offset is known, so those rows
would count as stored. A hole becomes a finding when it is made; with `strict`, an error before anything is
sent.

Messages are passed over (`kind_of`) that belong to brokers, and those that wait: halves of transactions and
delayed messages. A broker would have to be told what is left to wait; the sink does that (docs/replay.md).
"""

import logging
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import TypeVar

import grpc
import pyarrow as pa
import pyarrow.compute as pc

from whimbrel.errors import NotReady, WhimbrelError
from whimbrel.model.limits import REPLAY_BATCH_MAX, REPLAY_BYTES_MAX, REPLAY_SELECTION_MAX
from whimbrel.model.names import is_system_topic
from whimbrel.rpc.api.calls import Outbound, perform_blocking
from whimbrel.rpc.api.replay_calls import (
    ReplayResult,
    ReplayState,
    SourceMessage,
    SourceQueue,
    append_replay,
    describe_replay,
)
from whimbrel.rpc.client.channel import open_channel
from whimbrel.spark.masters import Masters, NoTarget
from whimbrel.store.columns.kinds import kind_of_topic

__all__ = [
    "COLUMNS",
    "REPORT_SCHEMA",
    "Hole",
    "Pace",
    "QueueReport",
    "ReplayTarget",
    "ReplayWriter",
    "kind_of",
    "replay_rows",
    "report_batch",
]

logger = logging.getLogger(__name__)

COLUMNS = (
    "topic", "brokerName", "queueId", "queueOffset", "msgId", "bornTimestamp", "bornHost", "flag", "sysFlag",
    "propertiesText", "body",
)  # fmt: skip
REFUSALS_SHOWN = 3  # of a queue, in its finding
SLICE_ROWS = 512  # of a batch of Spark's, made Python objects at a time
T = TypeVar("T")

TRANSACTION, PREPARED, ROLLBACK, INNER_BATCH = 0x0C, 0x04, 0x0C, 0xC0

REPORT_SCHEMA = pa.schema(
    [
        ("topic", pa.string()),
        ("broker", pa.string()),
        ("queue", pa.int32()),
        ("target", pa.string()),
        ("read", pa.int64()),
        ("stored", pa.int64()),
        ("skipped", pa.int64()),
        ("passedOver", pa.string()),
        ("refused", pa.int64()),
        ("sourceOffsets", pa.string()),
        ("targetOffsets", pa.string()),
        ("finding", pa.string()),
    ]
)


class Hole(RuntimeError):
    """Rows would be left out by every later run; the text says which rows, and what to do."""


def kind_of(topic: str, sys_flag: int) -> str:
    """Return the kind of a message that is passed over; "" of one that is replayed.

    Words are those of the column `type`, and besides SYSTEM in other topics of brokers, HALF for a half in
    a topic of users, INNER_BATCH for several messages in one record. What else is in a topic of users was
    delivered there, so it is replayed, also if it once was delayed.
    """
    kind = kind_of_topic(topic)
    if kind:
        return kind
    if is_system_topic(topic):
        return "SYSTEM"
    if sys_flag & TRANSACTION in (PREPARED, ROLLBACK):
        return "HALF"
    return "INNER_BATCH" if sys_flag & INNER_BATCH else ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayTarget:
    """Where messages go, and how.

    Attributes:
        servers: nameservers, HOST:PORT.
        topic: for all messages; empty: a row's `targetTopic`, or its own topic.
        brokers: the source's broker and that of the target, where names do not tell.
        selection: single dead letters, not ranges of queues.
        strict: a hole is an error, not a finding.
        dry: nothing is sent; messages that would be stored are counted.
        planned: topics that would be created first, and their number of queues.
        rate: messages a second that a task may send; 0 for no bound.
        batch_bytes: of a call, at most REPLAY_BYTES_MAX.
        retries, retry_s: how often a call is repeated, and the pause before.
    """

    servers: tuple[str, ...]
    topic: str = ""
    brokers: tuple[tuple[str, str], ...] = ()
    selection: bool = False
    strict: bool = False
    dry: bool = False
    planned: tuple[tuple[str, int], ...] = ()
    rate: float = 0.0
    batch_bytes: int = REPLAY_BYTES_MAX
    timeout_s: float = 30.0
    retries: int = 60
    retry_s: float = 0.5


@dataclass(slots=True)
class QueueReport:
    """Counts of the rows of one source queue that go to one topic."""

    source: SourceQueue
    target: str
    first_seen: int = -1
    last_seen: int = -1
    target_queue: str = ""
    read: int = 0
    stored: int = 0
    skipped: int = 0
    refused: int = 0
    left_out: int = 0
    passed_over: Counter[str] = field(default_factory=Counter)
    first_source: int = -1
    last_source: int = -1
    first_target: int = -1
    last_target: int = -1
    findings: list[str] = field(default_factory=list)

    def refuse(self, offset: int, why: str) -> None:
        """Count a message that can't be stored."""
        self.refused += 1
        if self.refused <= REFUSALS_SHOWN:
            self.findings.append(f"offset {offset} refused: {why}")

    def row(self) -> dict[str, object]:
        """Return a row of the job's table."""
        more = self.refused - REFUSALS_SHOWN
        findings = [*self.findings, f"{more} more refused"] if more > 0 else self.findings
        kinds = ", ".join(f"{kind} {count}" for kind, count in sorted(self.passed_over.items()))
        return {
            "topic": self.source.topic,
            "broker": self.source.broker,
            "queue": self.source.queue_id,
            "target": self.target_queue or None,
            "read": self.read,
            "stored": self.stored,
            "skipped": self.skipped,
            "passedOver": kinds or None,
            "refused": self.refused,
            "sourceOffsets": offsets_text(self.first_source, self.last_source),
            "targetOffsets": offsets_text(self.first_target, self.last_target),
            "finding": "; ".join(findings) or None,
        }


def offsets_text(first: int, last: int) -> str | None:
    """Return a range of offsets, both included; None without one."""
    return None if first < 0 else f"{first}..{last}"


def report_batch(reports: list[QueueReport]) -> pa.RecordBatch:
    """Return reports as a batch."""
    return pa.RecordBatch.from_pylist([report.row() for report in reports], schema=REPORT_SCHEMA)


class Pace:
    """Limits the rate of messages."""

    def __init__(
        self,
        rate: float,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self.rate, self.clock, self.sleep = rate, clock, sleep
        self.due = clock()

    def wait(self, count: int) -> None:
        """Wait until `count` more messages may be sent."""
        if self.rate:
            now = self.clock()
            if self.due > now:
                self.sleep(self.due - now)
            self.due = max(self.due, now) + count / self.rate


@dataclass(slots=True)
class QueueReplay:
    """The replay of a source queue into one queue of the target.

    Attributes:
        last: source offset of the last message in the target, -1 for none.
        first: source offset of the first message there, if this run began before `last`; -1 if not known.
        lost: first and last offset of the rows that belong before `first`; None without any.
    """

    source: SourceQueue
    topic: str
    broker: str
    queue_id: int
    report: QueueReport
    last: int = -1
    first: int = -1
    lost: tuple[int, int] | None = None


class ReplayWriter:
    """Replays the rows of one task. Use as a context manager; `finish` returns the reports."""

    def __init__(self, target: ReplayTarget) -> None:
        self.target = target
        self.masters = Masters(target.servers, dict(target.brokers), target.timeout_s)
        self.pace = Pace(target.rate)
        self.replays: dict[tuple[SourceQueue, str], QueueReplay] = {}
        self.reports: dict[tuple[SourceQueue, str], QueueReport] = {}
        self.batch: list[SourceMessage] = []
        self.batch_bytes = 0
        self.current: QueueReplay | None = None
        self.channels: dict[str, grpc.Channel] = {}
        count = REPLAY_SELECTION_MAX if target.selection else REPLAY_BATCH_MAX
        self.count_max = max(min(count, int(target.rate) or 1), 1) if target.rate else count

    def __enter__(self) -> "ReplayWriter":
        return self

    def __exit__(self, *error: object) -> None:
        for channel in self.channels.values():
            channel.close()

    # Rows

    def write(self, source: SourceQueue, topic: str, message: SourceMessage, kind: str = "") -> None:
        """Take the next row of a source queue.

        Args:
            source: its queue.
            topic: where it goes.
            message: what is replayed.
            kind: of a message that is passed over; "" for others.

        Raises:
            Hole: rows would be left out, with `strict`; or rows do not come by rising offset.
            NoTarget, WhimbrelError: there is no such queue, or its broker refuses, or does not answer.
        """
        offset = message.source_offset
        report = self.reports.get((source, topic))
        if report is None:
            report = self.reports[source, topic] = QueueReport(source, topic, first_seen=offset)
        report.read += 1
        if kind:
            report.passed_over[kind] += 1
            return
        if offset <= report.last_seen:
            raise Hole(
                f"{source}: offset {offset} comes after {report.last_seen}: put each queue into one task, in"
                " order, with repartition and sortWithinPartitions"
            )
        report.last_seen = offset
        replay = self.replays.get((source, topic))
        if replay is None:
            replay = self.replays[source, topic] = self.begin_replay(source, topic, report)
        if self.current is not replay:
            self.flush()
            self.current = replay
        if offset <= replay.last and not self.target.selection:
            self.skip(replay, offset)
            return
        size = self.batch_bytes + message.size
        if self.batch and (len(self.batch) >= self.count_max or size > self.target.batch_bytes):
            self.flush()
        self.batch.append(message)
        self.batch_bytes += message.size

    def finish(self) -> list[QueueReport]:
        """Send the last batch, and return the report of each source queue and topic."""
        self.flush()
        for replay in self.replays.values():
            if replay.lost:
                replay.report.findings.append(self.lost_text(replay))
        return list(self.reports.values())

    # How far a source came

    def begin_replay(self, source: SourceQueue, topic: str, report: QueueReport) -> QueueReplay:
        """Ask where a source queue goes, and how far it came."""
        broker = self.retried(lambda: self.masters.broker_for(source.broker))
        queues = self.retried(lambda: self.masters.queues(broker, topic))
        planned = not queues and self.target.dry
        if planned:
            queues = dict(self.target.planned).get(topic, 0)
        if not queues:
            raise NoTarget(
                f"{broker} has no topic {topic}: create it with as many queues as its source has"
                f" (`whimbrel topic create {topic} --queues N`, or replay with --create)"
            )
        replay = QueueReplay(source, topic, broker, source.queue_id % queues, report)
        report.target_queue = f"{topic}/{replay.queue_id} of {broker}"
        if self.target.selection or planned:
            return replay
        replay.last = self.describe(replay, with_first=False).last
        if 0 <= replay.last < report.first_seen - 1:
            self.note_hole(
                report,
                f"offsets {replay.last + 1} to {report.first_seen - 1} are left out: an earlier run ended at"
                f" {replay.last}, and a later one will take them for stored",
            )
        elif replay.last >= report.first_seen:
            replay.first = self.describe(replay, with_first=True).first
        return replay

    def describe(self, replay: QueueReplay, *, with_first: bool) -> ReplayState:
        """Ask how far a source queue came, until the broker has looked through all of its messages."""
        call = describe_replay(replay.topic, replay.queue_id, replay.source, with_first=with_first)
        while not (state := self.call_master(replay, call)).complete:
            logger.info("%s: %d messages are left to look through", replay.source, state.left)
        return state

    def skip(self, replay: QueueReplay, offset: int) -> None:
        """Skip a row that the target has, or one that belongs before the first in the target."""
        if offset >= replay.first:
            replay.report.skipped += 1
            return
        replay.lost = (replay.lost[0] if replay.lost else offset, offset)
        replay.report.left_out += 1
        if self.target.strict:
            raise Hole(self.lost_text(replay))

    def lost_text(self, replay: QueueReplay) -> str:
        """Return the finding about rows that come too late."""
        first, last = replay.lost or (0, 0)
        return (
            f"{replay.source}: offsets {first} to {last} are not stored: an earlier run began at"
            f" {replay.first}, and they belong before it; replay the whole queue into another topic"
        )

    def note_hole(self, report: QueueReport, finding: str) -> None:
        """Add a hole to the findings; with `strict`, fail."""
        if self.target.strict:
            raise Hole(f"{report.source}: {finding}")
        report.findings.append(finding)

    # Calls

    def flush(self) -> None:
        """Send the batch, and count what was stored of it."""
        batch, replay = self.batch, self.current
        if not batch or replay is None:
            return
        self.batch, self.batch_bytes = [], 0
        if self.target.dry:
            replay.report.stored += len(batch)
            return
        self.pace.wait(len(batch))
        done = self.append(replay, batch)
        report = replay.report
        report.stored, report.skipped = report.stored + done.stored, report.skipped + done.skipped
        for offset, why in done.refused:
            report.refuse(offset, why)
        if done.stored:
            refused = {offset for offset, _ in done.refused}
            stored = [one.source_offset for one in batch if one.source_offset not in refused]
            if report.first_target < 0:
                report.first_source, report.first_target = stored[-done.stored], done.first_offset
            report.last_source, report.last_target = stored[-1], done.last_offset
        replay.last = done.last

    def append(self, replay: QueueReplay, batch: list[SourceMessage]) -> ReplayResult:
        """Make the call; a broker that was restarted is first made to find out how far the source came."""
        call = append_replay(
            replay.topic,
            replay.queue_id,
            replay.source,
            batch,
            after=replay.last,
            selection=self.target.selection,
        )
        while True:
            try:
                return self.call_master(replay, call)
            except NotReady:
                self.describe(replay, with_first=False)

    def call_master(self, replay: QueueReplay, call: Outbound[T]) -> T:
        """Make a call to the master, whose address may have changed."""
        return self.retried(lambda: self.call_once(replay.broker, call))

    def call_once(self, broker: str, call: Outbound[T]) -> T:
        """Make a call."""
        address = self.masters.address(broker)
        if address not in self.channels:
            self.channels[address] = open_channel(address)
        return perform_blocking(self.channels[address], call, (), self.target.timeout_s)

    def retried(self, work: Callable[[], T]) -> T:
        """Repeat `work` until it works, as often as the target says.

        Both calls may be repeated whatever came of the last try.
        """
        for tries in range(self.target.retries + 1):
            try:
                return work()
            except NotReady:
                raise
            except WhimbrelError as error:
                again = error.retry or error.effect in ("unknown", "stored")
                if not again or tries == self.target.retries:
                    raise
                logger.warning("try %d of %d: %s", tries + 1, self.target.retries + 1, error)
            time.sleep(self.target.retry_s)
            self.masters.forget()
        raise AssertionError("the last try returns or raises")


def replay_rows(
    target: ReplayTarget, batches: Iterable[pa.RecordBatch], included: frozenset[str]
) -> list[QueueReport]:
    """Replay the rows of a task, which have the columns of COLUMNS.

    Args:
        target: where they go.
        batches: by rising offset within each source queue.
        included: kinds of messages that are not passed over.

    Raises:
        Hole, NoTarget, WhimbrelError: as in `ReplayWriter.write`.
    """
    with ReplayWriter(target) as writer:
        for batch in batches:
            for start in range(0, batch.num_rows, SLICE_ROWS):
                for topic, source, message in messages_of(batch.slice(start, SLICE_ROWS), target.topic):
                    kind = kind_of(source.topic, message.sys_flag)
                    writer.write(source, topic, message, "" if kind in included else kind)
        return writer.finish()


def messages_of(batch: pa.RecordBatch, topic: str) -> Iterator[tuple[str, SourceQueue, SourceMessage]]:
    """Yield of each row the topic, the source queue and the message.

    Raises:
        ValueError: a column that is needed is null.
    """
    columns = {name: batch.column(name) for name in batch.schema.names}
    columns["bornTimestamp"] = pc.divide(columns["bornTimestamp"].cast(pa.int64()), 1000)
    lists = {name: column.to_pylist() for name, column in columns.items()}
    targets = lists.get("targetTopic") or lists["topic"]
    needed = [lists[name] for name in COLUMNS]
    for row, target in zip(zip(*needed, strict=True), targets, strict=True):
        name, broker, queue_id, offset, message_id, born_ms, born_host, flag, sys_flag, text, body = row
        if None in (name, broker, queue_id, offset, text, body):
            raise ValueError(
                f"{name}, queue {queue_id} of {broker}, offset {offset}: topic, brokerName, queueId,"
                " queueOffset, propertiesText and body must not be null"
            )
        yield (
            topic or target,
            SourceQueue(broker, name, queue_id),
            SourceMessage(
                source_offset=offset,
                born_ms=born_ms or 0,  # null beyond what microseconds can hold: the year 294 247
                born_host=born_host or "",
                flag=flag or 0,
                sys_flag=sys_flag or 0,
                properties=text,
                body=body,
                message_id=message_id or "",
            ),
        )
