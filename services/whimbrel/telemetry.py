"""Names of spans and attributes, log lines, and the file that reports a process as ready.

**One message, one story.** `TREE` is drawn here and nowhere else; `whimbrel trace` prints a message's story
in this form and the tests compare with it. The root is the span in which the message was created, and the
context of that span travels in the message's properties, so every process that handles the record finds it
there; nothing is added to the HA stream. Spans of the broker and of replicators exist for sampled records
only. Below the root stand the stages of replication, in the order of `STAGES`; consumers' spans, and the
frames that carry the log, are traces of their own that link to the root:

    create {topic}           in place of `send`: made by the broker for a message without a context that it
                             samples; by our client for each message of a batch, whose `send` links to them
    whimbrel.store.append    checked and written to the master's log: topic, queue, offsets, size
    whimbrel.store.flush     from there until it is on the master's disk
    whimbrel.ha.transfer     its bytes are handed to a slave's connection; `whimbrel.attempt` counts those
    whimbrel.ha.append       received and written to the slave's log
    whimbrel.ha.acknowledge  from the transfer until the slave's report covers it
    whimbrel.store.dispatch  the slave's consume queue has it: it can be received there

Those from the transfer on need a slave: the append says how many were connected (`whimbrel.slaves`).
Where a majority commits there are two more (`MAJORITY_TREE`), and the append names the leader's epoch:

    whimbrel.store.commit    from the append until a majority holds it: it can be received from the leader
    whimbrel.ha.commit       from the slave's append until the slave's replicator has heard of that

A message of several records has these stages for each of them, in the same story: a delayed one as it waits,
as it is rolled, and as it is delivered; the half of a transaction and its commit; a message and its dead
letter. What the broker stores by itself keeps the context of what it came from. Its append names more:

    delivered, rolled    `whimbrel.delay.due_ms`, `whimbrel.delay.late_ms`: below 0 where it goes on waiting
    dead letter          `messaging.consumer.group.name`, the group that could not consume it

A recall has no message of its own and no story; that of the message which it recalls ends with its waiting.

Attribute names of `messaging.*` are OpenTelemetry's semantic conventions for messaging (marked Development,
version 1.37); all others begin with `whimbrel.`.

**Log lines** go to the standard error. A JSON line is one object: time, level, logger, process, message,
`error` with the traceback when there is one, and `trace_id` and `span_id` where the line is about a traced
message. Durations, offsets and names stand in the message; there are no further fields. Names may be of
others' choice, so control characters are escaped here, whatever is logged; the lines of a traceback are
indented, which no line's beginning is.
"""

import json
import logging
import os
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal, TextIO

from whimbrel.escapes import printable, printable_json

__all__ = [
    "ACK",
    "ACKNOWLEDGE",
    "APPEND",
    "BROKER_SERVICE",
    "CLIENT_SERVICE",
    "COMMIT",
    "CREATE",
    "DISPATCH",
    "ELECTION",
    "FLUSH",
    "FRAME",
    "MAJORITY_STAGES",
    "MAJORITY_TREE",
    "PROCESS",
    "RECEIVE",
    "REPLICATOR_SERVICE",
    "SEND",
    "SLAVE_APPEND",
    "SLAVE_COMMIT",
    "SLAVE_STAGES",
    "STAGES",
    "TRANSFER",
    "TREE",
    "Attribute",
    "LogLevel",
    "check_trace_target",
    "setup_logging",
    "write_ready_file",
]

TREE = """\
send {topic}                producer  client
├─ whimbrel.store.append    internal  master broker
├─ whimbrel.store.flush     internal  master broker
├─ whimbrel.ha.transfer     internal  master replicator
├─ whimbrel.ha.append       internal  slave replicator
├─ whimbrel.ha.acknowledge  internal  master replicator
└─ whimbrel.store.dispatch  internal  slave broker
linked: whimbrel.ha.frame   internal  master replicator
linked: receive {topic}     client    client
linked: process {topic}     consumer  client
linked: ack {topic}         client    client
"""

MAJORITY_TREE = """\
send {topic}                producer  client
├─ whimbrel.store.append    internal  master broker
├─ whimbrel.store.flush     internal  master broker
├─ whimbrel.ha.transfer     internal  master replicator
├─ whimbrel.ha.append       internal  slave replicator
├─ whimbrel.ha.acknowledge  internal  master replicator
├─ whimbrel.store.commit    internal  master broker
├─ whimbrel.ha.commit       internal  slave replicator
└─ whimbrel.store.dispatch  internal  slave broker
"""  # with one slave, and no consumer

# Of the setting `log_level`; WARN and FATAL are other words for WARNING and CRITICAL.
LogLevel = Literal["DEBUG", "INFO", "WARNING", "WARN", "ERROR", "CRITICAL", "FATAL"]

BROKER_SERVICE, REPLICATOR_SERVICE = "whimbrel-broker", "whimbrel-replicator"  # `service.name`
CLIENT_SERVICE = "whimbrel-cli"  # of our command; programs with the client library name themselves
# Operations of clients: a span is named after one and the topic.
SEND, CREATE, RECEIVE, PROCESS, ACK = "send", "create", "receive", "process", "ack"
# Stages of replication.
APPEND, FLUSH, DISPATCH = "whimbrel.store.append", "whimbrel.store.flush", "whimbrel.store.dispatch"
TRANSFER, SLAVE_APPEND, ACKNOWLEDGE = "whimbrel.ha.transfer", "whimbrel.ha.append", "whimbrel.ha.acknowledge"
COMMIT, SLAVE_COMMIT = "whimbrel.store.commit", "whimbrel.ha.commit"  # where a majority commits
FRAME = "whimbrel.ha.frame"
ELECTION = "whimbrel.election"  # a trace of its own, of no message: `broker/elections/election_traces.py`
INDENT = "    "  # of a traceback below its line
STAGES = (APPEND, FLUSH, TRANSFER, SLAVE_APPEND, ACKNOWLEDGE, DISPATCH)
SLAVE_STAGES = (TRANSFER, SLAVE_APPEND, ACKNOWLEDGE, SLAVE_COMMIT, DISPATCH)  # none without a slave
MAJORITY_STAGES = (*STAGES[:-1], COMMIT, SLAVE_COMMIT, DISPATCH)  # where a majority commits; in this order


class Attribute:
    """Names of attributes."""

    SYSTEM = "messaging.system"  # always "rocketmq"
    OPERATION = "messaging.operation.name"
    OPERATION_TYPE = "messaging.operation.type"
    TOPIC = "messaging.destination.name"
    QUEUE = "messaging.destination.partition.id"
    GROUP = "messaging.consumer.group.name"
    MESSAGE_ID = "messaging.message.id"
    BODY_SIZE = "messaging.message.body.size"
    BATCH_COUNT = "messaging.batch.message_count"
    TAG = "messaging.rocketmq.message.tag"
    KEYS = "messaging.rocketmq.message.keys"
    NAMESPACE = "messaging.rocketmq.namespace"
    ERROR = "error.type"  # the `reason` of our errors
    BROKER = "whimbrel.broker.name"
    BROKER_ID = "whimbrel.broker.id"
    ROLE = "whimbrel.role"  # of a process: master or slave
    OFFSET = "whimbrel.physical_offset"
    RECORD_SIZE = "whimbrel.record.size"
    QUEUE_OFFSET = "whimbrel.queue.offset"
    SLAVE = "whimbrel.slave.address"
    ATTEMPT = "whimbrel.attempt"
    FRAME_OFFSET = "whimbrel.frame.offset"
    FRAME_SIZE = "whimbrel.frame.size"
    FRAME_RECORDS = "whimbrel.frame.traced_records"
    ACKNOWLEDGED = "whimbrel.acknowledged_offset"
    EPOCH = "whimbrel.epoch"  # of the leader that appended a record, or of an election
    WHY = "whimbrel.election.why"  # what made a member stand
    DUE = "whimbrel.delay.due_ms"  # when a delayed message is to be delivered, since the epoch
    SLAVES = "whimbrel.slaves"  # how many were connected when a record was appended
    LATE = "whimbrel.delay.late_ms"  # how long after that it was


def check_trace_target(text: str) -> None:
    """Check the target of spans.

    Raises:
        ValueError: it is neither empty nor one of the two forms.
    """
    scheme, _, rest = text.partition(":")
    if text and not (rest and (scheme == "file" or (scheme == "http" and rest.startswith("//")))):
        raise ValueError(f"trace_to: {text!r} is neither file:PATH nor http://HOST:PORT of a collector")


def setup_logging(level: LogLevel, style: str, *, process: str, stream: TextIO | None = None) -> None:
    """Send this process's log lines to the standard error; `style` is `text` or `json`."""
    handler = logging.StreamHandler(stream or sys.stderr)
    handler.setFormatter(JsonFormatter(process) if style == "json" else TextFormatter(process))
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level)
    # asyncio's lines below WARNING are about its selector, and grpcio repeats what we log about its calls.
    logging.getLogger("asyncio").setLevel(logging.WARNING)


def timestamp(seconds: float) -> str:
    """Return a time as ISO 8601 in UTC with milliseconds."""
    whole = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(seconds))
    return f"{whole}.{int(seconds * 1000) % 1000:03d}Z"


def trace_ids(record: logging.LogRecord) -> dict[str, str]:
    """Return a line's trace ids: its own `extra`, else the current span's, else none."""
    given = getattr(record, "trace_id", None)
    if given:
        return {"trace_id": given, "span_id": getattr(record, "span_id", "")}
    loaded = sys.modules.get("opentelemetry.trace")  # not imported: there can't be a span
    if loaded is None:
        return {}
    context = loaded.get_current_span().get_span_context()
    if not context.is_valid:
        return {}
    return {"trace_id": f"{context.trace_id:032x}", "span_id": f"{context.span_id:016x}"}


class TextFormatter(logging.Formatter):
    """One readable line a record: time, level, process, message, logger."""

    def __init__(self, process: str) -> None:
        super().__init__()
        self.process = process

    def format(self, record: logging.LogRecord) -> str:
        """Return the line, and the traceback on further ones."""
        logger = record.name.removeprefix("whimbrel.")
        start = f"{timestamp(record.created)} {record.levelname:<7} {self.process}"
        ids = trace_ids(record)
        trace = f" trace {ids['trace_id']}" if ids else ""
        text = printable(f"{start} {record.getMessage()}{trace} [{logger}]")
        if not record.exc_info:
            return text
        return "\n".join([text, *(INDENT + printable(line) for line in traceback_lines(self, record))])


def traceback_lines(formatter: logging.Formatter, record: logging.LogRecord) -> list[str]:
    """Return the lines of a record's traceback; the text of its error may hold some of its own."""
    return formatter.formatException(record.exc_info).split("\n") if record.exc_info else []


class JsonFormatter(logging.Formatter):
    """One JSON object a record."""

    def __init__(self, process: str) -> None:
        super().__init__()
        self.process = process

    def format(self, record: logging.LogRecord) -> str:
        """Return the object as one line."""
        fields: dict[str, Any] = {
            "time": timestamp(record.created),
            "level": record.levelname,
            "logger": record.name,
            "process": self.process,
            "message": record.getMessage(),
            **trace_ids(record),
        }
        if record.exc_info:
            fields["error"] = self.formatException(record.exc_info)
        return printable_json(json.dumps(fields, ensure_ascii=False))


def write_ready_file(path: str, facts: Mapping[str, Any]) -> None:
    """Write the ready file, if `path` names one, atomically: a reader sees all of it or nothing."""
    if not path:
        return
    target = Path(path)
    draft = target.with_name(f"{target.name}.{os.getpid()}.tmp")
    draft.write_text(json.dumps({"pid": os.getpid(), **facts}) + "\n", encoding="utf-8")
    draft.replace(target)
