"""Puts the messages of source queues back, in a task: in order, once each, in batches.

    rows of a source queue, by rising offset ─► passed over by kind, or batched ─► AppendPreserved ─► counted
                     '── at the first row: how far did an earlier run come? Up to there they are skipped

A batch is sent again until its broker says what became of it; the broker leaves out what it has. A task that
is run again, a job that is run again, a broker that was killed: none of them stores a message twice, and what
a failover took back makes the task fail, since only its source can give those rows again.

**A hole** is what no later run would notice: rows before the first message of an earlier run, or between its
last one and the first row of this run. "Up to the last offset" is all that is known of a queue, so they would
count as stored. Each is told as a finding when it is made; with `strict` it is an error before anything goes.

What is passed over (`kind_of`): messages that the brokers keep for themselves, or that would come twice or at
a wrong time. Delayed ones wait in SCHEDULE_TOPIC_XXXX; those delivered already stand in their topic, still
with a DELAY in their text.
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
from whimbrel.model.names import DEAD_LETTER_PREFIX, RETRY_PREFIX, is_system_topic
from whimbrel.rpc.api.calls import Outbound, perform_blocking
from whimbrel.rpc.api.replay_calls import (
    ReplayResult,
    ReplayState,
    SourceMessage,
    SourceQueue,
    append_preserved,
    describe_preserved,
)
from whimbrel.rpc.client.channel import open_channel
from whimbrel.spark.masters import Masters, NoTarget
from whimbrel.store.codec import property_of

__all__ = [
    "COLUMNS",
    "REPORT",
    "Hole",
    "Pace",
    "Report",
    "Restorer",
    "Target",
    "kind_of",
    "report_batch",
    "restore",
]

log = logging.getLogger(__name__)

COLUMNS = (
    "topic", "brokerName", "queueId", "queueOffset", "msgId", "bornTimestamp", "bornHost", "flag", "sysFlag",
    "propertiesText", "body",
)  # fmt: skip
REFUSALS_SHOWN = 3  # of a queue, in its finding
PIECE_ROWS = 512  # of a batch of Spark's that become Python objects at a time
T = TypeVar("T")

SCHEDULE, HALF, OP = "SCHEDULE_TOPIC_XXXX", "RMQ_SYS_TRANS_HALF_TOPIC", "RMQ_SYS_TRANS_OP_HALF_TOPIC"
TIMERS = (b"TIMER_DELAY_SEC", b"TIMER_DELAY_MS", b"TIMER_DELIVER_MS")
TRANSACTION, PREPARED, ROLLBACK, INNER_BATCH = 0x0C, 0x04, 0x0C, 0xC0

REPORT = pa.schema(
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
    """Rows would be left out for good; the text says which, and what to do."""


def kind_of(topic: str, sys_flag: int, properties: bytes) -> str:
    """Return why a message is not put back; "" when it is."""
    if topic == SCHEDULE or topic.startswith("rmq_sys_wheel_timer"):
        return "delayed"
    if topic in (HALF, OP) or sys_flag & TRANSACTION in (PREPARED, ROLLBACK):
        return "transaction"
    if topic.startswith(RETRY_PREFIX):
        return "retry"
    if topic.startswith(DEAD_LETTER_PREFIX):
        return "dead letter"
    if is_system_topic(topic):
        return "system"
    if sys_flag & INNER_BATCH:
        return "inner batch"
    return "delayed" if delayed(properties) else ""


def delayed(properties: bytes) -> bool:
    """Tell whether a message was to be delivered later; DELAY of 0 or below is no delay."""
    if b"DELAY\x01" in properties and property_of(properties, b"DELAY").strip().lstrip(b"0").isdigit():
        return True
    return b"TIMER_" in properties and any(property_of(properties, name) for name in TIMERS)


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """Where messages go, and how.

    Attributes:
        servers: nameservers, HOST:PORT.
        topic: for all of them; empty: a row's own, or its `targetTopic`.
        brokers: source's broker to target's, where the names do not tell.
        selection: single dead letters rather than stretches of queues.
        strict: a hole is an error, not a finding.
        dry: nothing is sent; what would be stored is counted.
        planned: queues of topics that would be made first.
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
class Report:
    """What became of the rows of one source queue on their way to one topic."""

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
        """Note a message that can't be stored."""
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


def report_batch(reports: list[Report]) -> pa.RecordBatch:
    """Return reports as a batch."""
    return pa.RecordBatch.from_pylist([report.row() for report in reports], schema=REPORT)


class Pace:
    """Spreads messages over time."""

    def __init__(
        self,
        rate: float,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self.rate, self.clock, self.sleep = rate, clock, sleep
        self.due = clock()

    def wait(self, count: int) -> None:
        """Wait until `count` more messages may go."""
        if self.rate:
            now = self.clock()
            if self.due > now:
                self.sleep(self.due - now)
            self.due = max(self.due, now) + count / self.rate


@dataclass(slots=True)
class Line:
    """A source queue on its way into one queue.

    Attributes:
        last: source offset of its last message there, -1 for none.
        first: of the first one there, when this run began before `last`; -1 when nobody knows.
        lost: offsets of rows that belong before `first`, the first and the last one; None without any.
    """

    source: SourceQueue
    topic: str
    broker: str
    queue_id: int
    report: Report
    last: int = -1
    first: int = -1
    lost: tuple[int, int] | None = None


class Restorer:
    """Puts rows back; one in each task. Use as a context manager, then look at `reports`."""

    def __init__(self, target: Target) -> None:
        self.target = target
        self.masters = Masters(target.servers, dict(target.brokers), target.timeout_s)
        self.pace = Pace(target.rate)
        self.lines: dict[tuple[SourceQueue, str], Line] = {}
        self.reports: dict[tuple[SourceQueue, str], Report] = {}
        self.batch: list[SourceMessage] = []
        self.batch_bytes = 0
        self.current: Line | None = None
        self.channels: dict[str, grpc.Channel] = {}
        count = REPLAY_SELECTION_MAX if target.selection else REPLAY_BATCH_MAX
        self.count_max = max(min(count, int(target.rate) or 1), 1) if target.rate else count

    def __enter__(self) -> "Restorer":
        return self

    def __exit__(self, *error: object) -> None:
        for channel in self.channels.values():
            channel.close()

    # Rows

    def put(self, source: SourceQueue, topic: str, message: SourceMessage, kind: str = "") -> None:
        """Take the next row of a source.

        Args:
            source: its queue.
            topic: where to.
            message: what is put back.
            kind: why it is passed over; "" when it is not.

        Raises:
            Hole: rows would be left out, and that is an error; or they do not come by rising offset.
            NoTarget, WhimbrelError: there is no such queue, or its broker refuses, or does not answer.
        """
        offset = message.source_offset
        report = self.reports.get((source, topic))
        if report is None:
            report = self.reports[source, topic] = Report(source, topic, first_seen=offset)
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
        line = self.lines.get((source, topic))
        if line is None:
            line = self.lines[source, topic] = self.begin(source, topic, report)
        if self.current is not line:
            self.flush()
            self.current = line
        if offset <= line.last and not self.target.selection:
            self.skip(line, offset)
            return
        size = self.batch_bytes + message.size
        if self.batch and (len(self.batch) >= self.count_max or size > self.target.batch_bytes):
            self.flush()
        self.batch.append(message)
        self.batch_bytes += message.size

    def finish(self) -> list[Report]:
        """Send what is left, and return what became of everything."""
        self.flush()
        for line in self.lines.values():
            if line.lost:
                line.report.findings.append(self.lost_text(line))
        return list(self.reports.values())

    # Where a source stands

    def begin(self, source: SourceQueue, topic: str, report: Report) -> Line:
        """Find out where a source goes, and how far it came."""
        broker = self.repeated(lambda: self.masters.broker_for(source.broker))
        queues = self.repeated(lambda: self.masters.queues(broker, topic))
        planned = not queues and self.target.dry
        if planned:
            queues = dict(self.target.planned).get(topic, 0)
        if not queues:
            raise NoTarget(
                f"{broker} has no topic {topic}: create it with as many queues as its source has"
                f" (`whimbrel topic create {topic} --queues N`, or replay with --create)"
            )
        line = Line(source, topic, broker, source.queue_id % queues, report)
        report.target_queue = f"{topic}/{line.queue_id} of {broker}"
        if self.target.selection or planned:
            return line
        line.last = self.described(line, with_first=False).last
        if 0 <= line.last < report.first_seen - 1:
            self.tell(
                report,
                f"offsets {line.last + 1} to {report.first_seen - 1} are left out: an earlier run ended at"
                f" {line.last}, and a later one will take them for stored",
            )
        elif line.last >= report.first_seen:
            line.first = self.described(line, with_first=True).first
        return line

    def described(self, line: Line, *, with_first: bool) -> ReplayState:
        """Ask how far a source came, as often as its broker takes to find that out."""
        question = describe_preserved(line.topic, line.queue_id, line.source, with_first=with_first)
        while not (state := self.asked(line, question)).complete:
            log.info("%s: %d messages are left to look through", line.source, state.left)
        return state

    def skip(self, line: Line, offset: int) -> None:
        """Pass a row that is there already; or that lies before all that is there, and can't get there."""
        if offset >= line.first:
            line.report.skipped += 1
            return
        line.lost = (line.lost[0] if line.lost else offset, offset)
        line.report.left_out += 1
        if self.target.strict:
            raise Hole(self.lost_text(line))

    def lost_text(self, line: Line) -> str:
        """Return what is wrong with rows that come too late."""
        first, last = line.lost or (0, 0)
        return (
            f"{line.source}: offsets {first} to {last} are not stored: an earlier run began at {line.first},"
            " and they belong before it; replay the whole queue into another topic"
        )

    def tell(self, report: Report, finding: str) -> None:
        """Note a hole; with `strict`, fail."""
        if self.target.strict:
            raise Hole(f"{report.source}: {finding}")
        report.findings.append(finding)

    # Calls

    def flush(self) -> None:
        """Send the batch, and note what became of it."""
        batch, line = self.batch, self.current
        if not batch or line is None:
            return
        self.batch, self.batch_bytes = [], 0
        if self.target.dry:
            line.report.stored += len(batch)
            return
        self.pace.wait(len(batch))
        done = self.appended(line, batch)
        report = line.report
        report.stored, report.skipped = report.stored + done.stored, report.skipped + done.skipped
        for offset, why in done.refused:
            report.refuse(offset, why)
        if done.stored:
            refused = {offset for offset, _ in done.refused}
            stored = [one.source_offset for one in batch if one.source_offset not in refused]
            if report.first_target < 0:
                report.first_source, report.first_target = stored[-done.stored], done.first_offset
            report.last_source, report.last_target = stored[-1], done.last_offset
        line.last = done.last

    def appended(self, line: Line, batch: list[SourceMessage]) -> ReplayResult:
        """Make the call; a broker that has begun anew is first made to look how far the source came."""
        call = append_preserved(
            line.topic, line.queue_id, line.source, batch, after=line.last, selection=self.target.selection
        )
        while True:
            try:
                return self.asked(line, call)
            except NotReady:
                self.described(line, with_first=False)

    def asked(self, line: Line, call: Outbound[T]) -> T:
        """Make a call to a line's master, wherever that is by now."""
        return self.repeated(lambda: self.once(line.broker, call))

    def once(self, broker: str, call: Outbound[T]) -> T:
        """Make a call."""
        address = self.masters.address(broker)
        if address not in self.channels:
            self.channels[address] = open_channel(address)
        return perform_blocking(self.channels[address], call, (), self.target.timeout_s)

    def repeated(self, work: Callable[[], T]) -> T:
        """Do something until it works, as often as the target says.

        Both calls may be repeated whatever became of them.
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
                log.warning("try %d of %d: %s", tries + 1, self.target.retries + 1, error)
            time.sleep(self.target.retry_s)
            self.masters.forget()
        raise AssertionError("the last try returns or raises")


def restore(target: Target, batches: Iterable[pa.RecordBatch], taken: frozenset[str]) -> list[Report]:
    """Put the rows of a task back, which have the columns of COLUMNS.

    Args:
        target: where to.
        batches: by rising offset within each source queue.
        taken: kinds of messages that are not passed over.

    Raises:
        Hole, NoTarget, WhimbrelError: as in `Restorer.put`.
    """
    with Restorer(target) as restorer:
        for batch in batches:
            for start in range(0, batch.num_rows, PIECE_ROWS):
                for topic, source, message in messages_of(batch.slice(start, PIECE_ROWS), target.topic):
                    kind = kind_of(source.topic, message.sys_flag, message.properties)
                    restorer.put(source, topic, message, "" if kind in taken else kind)
        return restorer.finish()


def messages_of(batch: pa.RecordBatch, topic: str) -> Iterator[tuple[str, SourceQueue, SourceMessage]]:
    """Yield each row: where to, where from, and the message.

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
                born_ms=born_ms or 0,  # null beyond what microseconds can tell: the year 294 247
                born_host=born_host or "",
                flag=flag or 0,
                sys_flag=sys_flag or 0,
                properties=text,
                body=body,
                message_id=message_id or "",
            ),
        )
