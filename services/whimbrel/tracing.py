"""Exports a process's spans to a file or a collector. Imported only where tracing is switched on.

    loop's thread ── record() ──► queue of SPANS_MAX ── exporter's thread ──► OTLP lines in a file
                                                                         └──► a collector, OTLP over gRPC

The serving thread never waits for either: a full queue drops its oldest spans, and their number is logged.
Ending a process waits `CLOSE_S` at most for what is still queued.

A file holds one JSON object a line, an `ExportTraceServiceRequest` in OTLP's JSON form, as the
OpenTelemetry Collector's file exporter writes and its `otlpjsonfile` receiver reads. It is renamed to `.1`
when it reaches `FILE_BYTES_MAX`; one generation is kept. Source: OTLP 1.5, "JSON Protobuf Encoding": ids are
hexadecimal, 64-bit numbers are text.

Sampling is parent-based: callers of `record` have a sampled parent, or made the decision. So spans are made
finished, without OpenTelemetry's tracer, at a fifth of the cost; the export is OpenTelemetry's own.
"""

import contextlib
import json
import logging
import os
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from random import getrandbits
from typing import Any, Literal

from opentelemetry import trace
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan, SpanProcessor, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter, SpanExportResult
from opentelemetry.sdk.trace.sampling import ParentBased, TraceIdRatioBased
from opentelemetry.sdk.util.instrumentation import InstrumentationScope

import whimbrel
from whimbrel.model.trace import TraceContext, TracedRecord
from whimbrel.telemetry import Attribute

__all__ = [
    "FileExporter",
    "Kind",
    "Tracer",
    "identity",
    "new_context",
    "open_tracer",
    "otlp_object",
    "tracing_to",
]

logger = logging.getLogger(__name__)

SPANS_MAX = 8192  # queued; about 10 MB. At 1 % of 30 k messages a second and 5 spans each: 5 seconds
EXPORT_MAX = 512  # spans in one export
EXPORT_MS = 250  # how long a span waits for others
COLLECTOR_S = 5.0  # one export, with its retries
CLOSE_S = 2.0
FILE_BYTES_MAX = 64 * 1024 * 1024
REPEAT_S = 60.0  # between two complaints of one kind of the exporter

Kind = Literal["internal", "producer", "consumer", "client"]
KINDS = {
    "internal": trace.SpanKind.INTERNAL,
    "producer": trace.SpanKind.PRODUCER,
    "consumer": trace.SpanKind.CONSUMER,
    "client": trace.SpanKind.CLIENT,
}
OTLP_KINDS = {
    trace.SpanKind.INTERNAL: 1,
    trace.SpanKind.SERVER: 2,
    trace.SpanKind.CLIENT: 3,
    trace.SpanKind.PRODUCER: 4,
    trace.SpanKind.CONSUMER: 5,
}
SAMPLED, UNSAMPLED = trace.TraceFlags(trace.TraceFlags.SAMPLED), trace.TraceFlags()
UNSET = trace.Status(trace.StatusCode.UNSET)
SCOPE = InstrumentationScope("whimbrel", whimbrel.__version__)
Attributes = Mapping[str, str | int]


class Tracer:
    """Makes finished spans of one process."""

    def __init__(self, processor: SpanProcessor, resource: Resource) -> None:
        self.processor = processor
        self.resource = resource

    def record(
        self,
        name: str,
        parent: TraceContext | None,
        start_ns: int,
        end_ns: int,
        attributes: Attributes,
        *,
        own: TraceContext | None = None,
        kind: Kind = "internal",
        links: Sequence[TraceContext] = (),
        error: str = "",
    ) -> None:
        """Record a finished span; times are nanoseconds since the epoch.

        Args:
            parent: None begins a trace.
            own: its context when that was given away before; else it gets a new span id.
            error: why it failed; "" for success.
        """
        if own is None:
            own = TraceContext(new_id(128) if parent is None else parent.trace_id, new_id(64), sampled=True)
        span = ReadableSpan(
            name,
            span_context(own),
            None if parent is None else span_context(parent, remote=True),
            self.resource,
            {Attribute.SYSTEM: "rocketmq", **attributes},
            links=[trace.Link(span_context(context, remote=True)) for context in links],
            kind=KINDS[kind],
            status=trace.Status(trace.StatusCode.ERROR, error) if error else UNSET,
            start_time=start_ns,
            end_time=end_ns,
            instrumentation_scope=SCOPE,
        )
        self.processor.on_end(span)

    def stage(
        self, name: str, record: TracedRecord, start_ns: int, end_ns: int, attributes: Attributes
    ) -> None:
        """Record a stage of a stored message; `attributes` are added to those of the record."""
        context = record.context
        own: dict[str, str | int] = {
            Attribute.TOPIC: record.topic,
            Attribute.QUEUE: str(record.queue_id),
            Attribute.MESSAGE_ID: record.message_id,
            Attribute.OFFSET: record.offset,
            Attribute.RECORD_SIZE: record.size,
            Attribute.QUEUE_OFFSET: record.queue_offset,
        }
        self.record(name, context, start_ns, end_ns, {**own, **attributes})
        if logger.isEnabledFor(logging.DEBUG):
            ids = {"trace_id": f"{context.trace_id:032x}", "span_id": f"{context.span_id:016x}"}
            logger.debug("%s of message %s at %d", name, record.message_id, record.offset, extra=ids)

    def close(self) -> None:
        """Export what is queued, for `CLOSE_S` at most."""
        shut_down(self.processor)


def new_id(bits: int) -> int:
    """Return a random id; 0 stands for none."""
    return getrandbits(bits) or 1


def new_context() -> TraceContext:
    """Return the context of a new trace's first span."""
    return TraceContext(new_id(128), new_id(64), sampled=True)


def span_context(context: TraceContext, *, remote: bool = False) -> trace.SpanContext:
    """Return a context in OpenTelemetry's terms."""
    return trace.SpanContext(
        context.trace_id,
        context.span_id,
        is_remote=remote,
        trace_flags=SAMPLED if context.sampled else UNSAMPLED,
    )


def shut_down(processor: SpanProcessor) -> None:
    """Have a processor export what it holds, and wait `CLOSE_S` at most."""
    closing = threading.Thread(target=processor.shutdown, name="traces-close", daemon=True)
    closing.start()
    closing.join(CLOSE_S)
    if closing.is_alive():
        logger.warning("the last spans could not be sent within %g s", CLOSE_S)


def identity(name: str, broker_id: int) -> dict[str, str | int]:
    """Return the attributes of a broker's identity."""
    return {Attribute.BROKER: name, Attribute.BROKER_ID: broker_id}


def open_processor(target: str) -> BatchSpanProcessor:
    """Return the processor that exports spans to `target`, see `telemetry.check_trace_target`."""
    calm_exporters()
    return BatchSpanProcessor(
        open_exporter(target),
        max_queue_size=SPANS_MAX,
        schedule_delay_millis=EXPORT_MS,
        max_export_batch_size=EXPORT_MAX,
    )


def resource_of(service: str, attributes: Mapping[str, str | int]) -> Resource:
    """Return the attributes that all spans of this process share."""
    common: dict[str, str | int] = {
        "service.name": service,
        "service.version": whimbrel.__version__,
        "process.pid": os.getpid(),
    }
    return Resource.create({**common, **attributes})


def open_tracer(target: str, service: str, attributes: Mapping[str, str | int]) -> Tracer:
    """Return a tracer for one of our processes.

    Args:
        target: of the spans, see `telemetry.check_trace_target`.
        service: its `service.name`.
        attributes: further attributes of the process.
    """
    tracer = Tracer(open_processor(target), resource_of(service, attributes))
    logger.info("spans go to %s", target)
    return tracer


def open_exporter(target: str) -> SpanExporter:
    """Return the exporter to a file or a collector."""
    scheme, _, rest = target.partition(":")
    if scheme == "file":
        return FileExporter(Path(rest))
    from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter

    return OTLPSpanExporter(endpoint=target, insecure=True, timeout=COLLECTOR_S)


class FileExporter(SpanExporter):
    """Appends spans to a file, each export in one piece: several processes may share one."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.reported = False

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        """Write one line; a file that can't be written is logged once, and loses the spans."""
        line = json.dumps(otlp_object(spans), ensure_ascii=False, separators=(",", ":")) + "\n"
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            with contextlib.suppress(FileNotFoundError):
                if self.path.stat().st_size > FILE_BYTES_MAX:
                    self.path.replace(self.path.with_name(f"{self.path.name}.1"))
            with self.path.open("ab", buffering=0) as file:
                file.write(line.encode())
        except OSError as error:
            if not self.reported:
                logger.warning("spans are lost: %s: %s", self.path, error.strerror)
                self.reported = True
            return SpanExportResult.FAILURE
        self.reported = False
        return SpanExportResult.SUCCESS


def otlp_object(spans: Sequence[ReadableSpan]) -> dict[str, Any]:
    """Return spans of one process as an `ExportTraceServiceRequest` in OTLP's JSON form."""
    resource = spans[0].resource.attributes if spans else {}
    return {
        "resourceSpans": [
            {
                "resource": {"attributes": key_values(resource)},
                "scopeSpans": [
                    {
                        "scope": {"name": "whimbrel", "version": whimbrel.__version__},
                        "spans": [otlp_span(span) for span in spans],
                    }
                ],
            }
        ]
    }


def otlp_span(span: ReadableSpan) -> dict[str, Any]:
    """Return one span."""
    own = span.context
    assert own is not None
    fields: dict[str, Any] = {
        "traceId": f"{own.trace_id:032x}",
        "spanId": f"{own.span_id:016x}",
        "name": span.name,
        "kind": OTLP_KINDS[span.kind],
        "startTimeUnixNano": str(span.start_time),
        "endTimeUnixNano": str(span.end_time),
        "attributes": key_values(span.attributes or {}),
        "status": {},
    }
    if span.parent is not None:
        fields["parentSpanId"] = f"{span.parent.span_id:016x}"
    if span.links:
        fields["links"] = [
            {"traceId": f"{link.context.trace_id:032x}", "spanId": f"{link.context.span_id:016x}"}
            for link in span.links
        ]
    if span.status.status_code is trace.StatusCode.ERROR:
        fields["status"] = {"code": 2, "message": span.status.description or ""}
    return fields


def key_values(attributes: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return attributes in OTLP's JSON form."""
    return [{"key": key, "value": any_value(value)} for key, value in attributes.items()]


def any_value(value: Any) -> dict[str, Any]:
    """Return an `AnyValue`."""
    if isinstance(value, bool):
        return {"boolValue": value}
    if isinstance(value, int):
        return {"intValue": str(value)}
    if isinstance(value, float):
        return {"doubleValue": value}
    if isinstance(value, Sequence) and not isinstance(value, str):
        return {"arrayValue": {"values": [any_value(item) for item in value]}}
    return {"stringValue": str(value)}


class Calm(logging.Filter):
    """Lets one line of a kind through in `REPEAT_S`: an exporter complains at every attempt."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: dict[str, float] = {}  # by format text, of which the exporters have a dozen

    def filter(self, record: logging.LogRecord) -> bool:
        """Return whether the line may pass."""
        now = time.monotonic()
        if now - self.seen.get(str(record.msg), -REPEAT_S) < REPEAT_S:
            return False
        self.seen[str(record.msg)] = now
        return True


CALM = Calm()
EXPORT_LOGGERS = (
    "opentelemetry.exporter.otlp.proto.grpc.exporter",
    "opentelemetry.sdk._shared_internal",
)


def calm_exporters() -> None:
    """Keep an unreachable collector from filling the log."""
    for name in EXPORT_LOGGERS:
        logging.getLogger(name).addFilter(CALM)


@contextlib.contextmanager
def tracing_to(target: str, service: str, *, ratio: float = 1.0) -> Iterator[None]:
    """Trace what the client library does in this process while the block runs.

    Args:
        ratio: share of traces without a parent that are sampled.
    """
    processor = open_processor(target)
    sampler = ParentBased(TraceIdRatioBased(ratio))
    provider = TracerProvider(resource=resource_of(service, {}), sampler=sampler, shutdown_on_exit=False)
    provider.add_span_processor(processor)
    trace.set_tracer_provider(provider)
    try:
        yield
    finally:
        shut_down(processor)
