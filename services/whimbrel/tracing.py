"""Spans of a process, on their way to a file or a collector. Imported only where tracing is switched on.

    loop's thread ── record() ──► queue of SPANS_MAX ── exporter's thread ──► OTLP lines in a file
                                                                         └──► a collector, OTLP over gRPC

The thread that serves never waits for either: what the queue can't hold is dropped, oldest first, and counted
in the log. Ending a process waits `CLOSE_S` at most for what is still queued.

A file holds one JSON object a line, an `ExportTraceServiceRequest` in OTLP's JSON form, as the
OpenTelemetry Collector's file exporter writes and its `otlpjsonfile` receiver reads. It is put aside as `.1`
when it reaches `FILE_BYTES_MAX`; one generation is kept. Source: OTLP 1.5, "JSON Protobuf Encoding": ids are
hexadecimal, 64-bit numbers are text.

Sampling is parent-based: who calls `record` has a sampled parent, or decided itself.
"""

import contextlib
import json
import logging
import os
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from opentelemetry import context as otel_context
from opentelemetry import trace
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter, SpanExportResult
from opentelemetry.sdk.trace.sampling import ParentBased, TraceIdRatioBased

import whimbrel
from whimbrel.model.trace import TraceContext, TracedRecord
from whimbrel.telemetry import Attribute

__all__ = [
    "FileExporter",
    "Kind",
    "Tracer",
    "identity",
    "open_provider",
    "open_tracer",
    "otlp_object",
    "span_context",
    "tracing_to",
]

log = logging.getLogger(__name__)

SPANS_MAX = 8192  # queued; about 10 MB. At 1 % of 30 k messages a second and 5 spans each: 5 seconds
EXPORT_MAX = 512  # spans in one export
EXPORT_MS = 250  # how long a span waits for others
COLLECTOR_S = 5.0  # one export, with its retries
CLOSE_S = 2.0
FILE_BYTES_MAX = 64 * 1024 * 1024
REPEAT_S = 60.0  # the exporter's own complaints: one of a kind in so long

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
ROOT = otel_context.Context()  # without a parent, whatever span is current
Attributes = Mapping[str, str | int]


class Tracer:
    """Makes finished spans for one process."""

    def __init__(self, provider: TracerProvider) -> None:
        self.provider = provider
        self.tracer = provider.get_tracer("whimbrel", whimbrel.__version__)

    def record(
        self,
        name: str,
        parent: TraceContext | None,
        start_ns: int,
        end_ns: int,
        attributes: Attributes,
        *,
        links: Sequence[TraceContext] = (),
    ) -> None:
        """Record something that has happened; times are nanoseconds since the epoch."""
        span = self.tracer.start_span(
            name,
            ROOT if parent is None else trace.set_span_in_context(remote(parent), ROOT),
            attributes={Attribute.SYSTEM: "rocketmq", **attributes},
            links=[trace.Link(remote(context).get_span_context()) for context in links],
            start_time=start_ns,
        )
        span.end(end_ns)

    def stage(
        self, name: str, record: TracedRecord, start_ns: int, end_ns: int, attributes: Attributes
    ) -> None:
        """Record a stage of a stored message; `attributes` come on top of those of the record."""
        common: dict[str, str | int] = {
            Attribute.TOPIC: record.topic,
            Attribute.QUEUE: str(record.queue_id),
            Attribute.MESSAGE_ID: record.message_id,
            Attribute.OFFSET: record.offset,
            Attribute.RECORD_SIZE: record.size,
            Attribute.QUEUE_OFFSET: record.queue_offset,
        }
        self.record(name, record.context, start_ns, end_ns, {**common, **attributes})
        log.debug(
            "%s of message %s at %d",
            name,
            record.message_id,
            record.offset,
            extra={
                "trace_id": f"{record.context.trace_id:032x}",
                "span_id": f"{record.context.span_id:016x}",
            },
        )

    def begin(self, name: str, kind: Kind, attributes: Attributes) -> trace.Span:
        """Begin a trace; the caller ends the span."""
        return self.tracer.start_span(
            name, ROOT, KINDS[kind], attributes={Attribute.SYSTEM: "rocketmq", **attributes}
        )

    @staticmethod
    def error_status(text: str) -> trace.Status:
        """Return the status of a span whose work failed."""
        return trace.Status(trace.StatusCode.ERROR, text)

    def close(self) -> None:
        """Send what is queued, for `CLOSE_S` at most."""
        closing = threading.Thread(target=self.provider.shutdown, name="traces-close", daemon=True)
        closing.start()
        closing.join(CLOSE_S)
        if closing.is_alive():
            log.warning("the last spans could not be sent within %g s", CLOSE_S)


def identity(name: str, broker_id: int) -> dict[str, str | int]:
    """Return the attributes that say which broker a span is of."""
    return {Attribute.BROKER: name, Attribute.BROKER_ID: broker_id}


def remote(context: TraceContext) -> trace.NonRecordingSpan:
    """Return the span of another process that a context names."""
    return trace.NonRecordingSpan(
        trace.SpanContext(
            context.trace_id, context.span_id, is_remote=True, trace_flags=trace.TraceFlags(context.sampled)
        )
    )


def span_context(span: trace.Span) -> TraceContext:
    """Return the context that stands for a span."""
    found = span.get_span_context()
    return TraceContext(found.trace_id, found.span_id, found.trace_flags.sampled)


def open_provider(
    target: str, service: str, attributes: Mapping[str, str | int], *, ratio: float = 1.0
) -> TracerProvider:
    """Return a provider that exports to `target` (see `telemetry.check_trace_target`).

    Args:
        service: its `service.name`.
        attributes: further attributes of the process.
        ratio: share of traces without a parent that are sampled.
    """
    resource = Resource.create(
        {
            "service.name": service,
            "service.version": whimbrel.__version__,
            "process.pid": os.getpid(),
            **attributes,
        }
    )
    provider = TracerProvider(
        resource=resource, sampler=ParentBased(TraceIdRatioBased(ratio)), shutdown_on_exit=False
    )
    exporter = open_exporter(target)
    provider.add_span_processor(
        BatchSpanProcessor(
            exporter,
            max_queue_size=SPANS_MAX,
            schedule_delay_millis=EXPORT_MS,
            max_export_batch_size=EXPORT_MAX,
        )
    )
    calm_exporters()
    return provider


def open_tracer(target: str, service: str, attributes: Mapping[str, str | int]) -> Tracer:
    """Return a tracer for one of our processes; arguments as of `open_provider`."""
    tracer = Tracer(open_provider(target, service, attributes))
    log.info("spans go to %s", target)
    return tracer


def open_exporter(target: str) -> SpanExporter:
    """Return what takes spans to a file or a collector."""
    scheme, _, rest = target.partition(":")
    if scheme == "file":
        return FileExporter(Path(rest))
    from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter

    return OTLPSpanExporter(endpoint=target, insecure=True, timeout=COLLECTOR_S)


class FileExporter(SpanExporter):
    """Appends spans to a file, each export in one piece: several processes may share one."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.told = False

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        """Write one line; a file that can't be written is told once, and loses the spans."""
        line = json.dumps(otlp_object(spans), ensure_ascii=False, separators=(",", ":")) + "\n"
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            with contextlib.suppress(FileNotFoundError):
                if self.path.stat().st_size > FILE_BYTES_MAX:
                    self.path.replace(self.path.with_name(f"{self.path.name}.1"))
            with self.path.open("ab", buffering=0) as file:
                file.write(line.encode())
        except OSError as error:
            if not self.told:
                log.warning("spans are lost: %s: %s", self.path, error.strerror)
                self.told = True
            return SpanExportResult.FAILURE
        self.told = False
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
    """Return attributes as OTLP's JSON has them."""
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
        """Return whether the line is news."""
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
    """Trace what the client library does in this process while the block runs; "" traces nothing."""
    if not target:
        yield
        return
    provider = open_provider(target, service, {}, ratio=ratio)
    trace.set_tracer_provider(provider)
    try:
        yield
    finally:
        Tracer(provider).close()
        sys.stderr.flush()
