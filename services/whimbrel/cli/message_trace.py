"""One message's trace, selected from many spans: pure, from OTLP's JSON form to lines of text.

A message's trace has the span in which the message was created, the stages of replication below it
(`telemetry.MAJORITY_STAGES`), record by record, and spans elsewhere that link to it. The creation span may be
missing: only the client could have reported it. Spans are selected by their attributes, parents and links. So
of an OpenTelemetry trace that covers the work of a whole program, only the spans of one message are shown.
"""

import base64
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from whimbrel.telemetry import (
    APPEND,
    BROKER_SERVICE,
    MAJORITY_STAGES,
    REPLICATOR_SERVICE,
    SLAVE_STAGES,
    STAGES,
    Attribute,
)

__all__ = ["MessageTrace", "Span", "lines", "spans_of", "structure", "trace_of"]

KINDS = ("unspecified", "internal", "server", "client", "producer", "consumer")
SERVICES = {BROKER_SERVICE: "broker", REPLICATOR_SERVICE: "replicator"}
TRACE_ID_BYTES, SPAN_ID_BYTES = 16, 8
CREATING = ("producer", "client")  # kinds of spans that can create a message
SHOWN = (  # of each span, behind its times
    (Attribute.SLAVE, "slave"),
    (Attribute.ATTEMPT, "attempt"),
    (Attribute.FRAME_OFFSET, "frame at"),
    (Attribute.FRAME_SIZE, "frame bytes"),
    (Attribute.GROUP, "group"),
    (Attribute.LATE, "late ms"),
    (Attribute.BATCH_COUNT, "messages"),
    (Attribute.EPOCH, "epoch"),
    (Attribute.ERROR, "error"),
)
RECORD = (  # of the record, once
    (Attribute.TOPIC, "topic"),
    (Attribute.BROKER, "broker"),
    (Attribute.QUEUE, "queue"),
    (Attribute.QUEUE_OFFSET, "offset"),
    (Attribute.OFFSET, "log offset"),
    (Attribute.RECORD_SIZE, "bytes"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Span:
    """A finished span; times are ns since the epoch, links are (trace id, span id)."""

    trace_id: str
    span_id: str
    parent_id: str
    name: str
    kind: str
    start_ns: int
    end_ns: int
    attributes: Mapping[str, Any]
    links: tuple[tuple[str, str], ...]
    service: str
    role: str
    failed: bool

    @property
    def process(self) -> str:
        """The process for people: `master broker`; the service's name for processes of others."""
        own = SERVICES.get(self.service)
        return f"{self.role} {own}" if own else self.service


@dataclass(frozen=True, slots=True, kw_only=True)
class MessageTrace:
    """The spans of one message."""

    message_id: str
    trace_id: str
    root: Span | None
    stages: tuple[Span, ...]
    linked: tuple[Span, ...]

    @property
    def missing(self) -> tuple[str, ...]:
        """The stages without a span."""
        seen = {span.name for span in self.stages}
        by_majority = any(Attribute.EPOCH in span.attributes for span in self.stages)
        due: tuple[str, ...] = MAJORITY_STAGES if by_majority else STAGES
        if self.without_slaves:
            due = tuple(name for name in due if name not in SLAVE_STAGES)
        return tuple(name for name in due if name not in seen)

    @property
    def without_slaves(self) -> bool:
        """Whether no slave was connected to the master when the message was stored, each time that it was."""
        appends = [span for span in self.stages if span.name == APPEND]
        return bool(appends) and all(span.attributes.get(Attribute.SLAVES) == 0 for span in appends)

    @property
    def several_slaves(self) -> bool:
        """Whether more than one slave has a part in it."""
        slaves = {span.attributes.get(Attribute.BROKER_ID) for span in self.stages if span.role == "slave"}
        return len(slaves) > 1

    @property
    def record_count(self) -> int:
        """How many records it became: one, or more if it was delayed, for example."""
        return len({span.attributes.get(Attribute.OFFSET) for span in self.stages})

    @property
    def begin_ns(self) -> int:
        """The start of the first span."""
        return min(span.start_ns for span in self.spans)

    @property
    def spans(self) -> tuple[Span, ...]:
        """All spans, in the order in which they are shown."""
        return (*((self.root,) if self.root else ()), *self.stages, *self.linked)


def spans_of(request: Mapping[str, Any]) -> Iterator[Span]:
    """Yield the spans of an `ExportTraceServiceRequest` in OTLP's JSON form.

    Raises:
        KeyError, ValueError, TypeError, AttributeError: it is something else.
    """
    for group in request["resourceSpans"]:
        resource = values_of(group.get("resource", {}).get("attributes", ()))
        for scope in group.get("scopeSpans", ()):
            for span in scope.get("spans", ()):
                yield Span(
                    trace_id=id_of(span["traceId"], TRACE_ID_BYTES),
                    span_id=id_of(span["spanId"], SPAN_ID_BYTES),
                    parent_id=id_of(span.get("parentSpanId", ""), SPAN_ID_BYTES),
                    name=span["name"],
                    kind=kind_of(span.get("kind", 0)),
                    start_ns=int(span["startTimeUnixNano"]),
                    end_ns=int(span["endTimeUnixNano"]),
                    attributes=values_of(span.get("attributes", ())),
                    links=tuple(
                        (id_of(link["traceId"], TRACE_ID_BYTES), id_of(link["spanId"], SPAN_ID_BYTES))
                        for link in span.get("links", ())
                    ),
                    service=str(resource.get("service.name", "")),
                    role=str(resource.get(Attribute.ROLE, "")),
                    failed=span.get("status", {}).get("code") in (2, "STATUS_CODE_ERROR"),
                )


def id_of(text: str, size: int) -> str:
    """Return an id in hexadecimal digits; some programs write base 64, as protobuf's JSON form does."""
    return text.lower() if len(text) in (0, 2 * size) else base64.b64decode(text).hex()


def kind_of(value: int | str) -> str:
    """Return the name of a kind; JSON may have its number or its name."""
    if isinstance(value, str) and not value.isdigit():
        return value.removeprefix("SPAN_KIND_").lower()
    return KINDS[int(value)] if int(value) < len(KINDS) else KINDS[0]


def values_of(attributes: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    """Return attributes as a dict; lists become text."""
    found: dict[str, Any] = {}
    for pair in attributes:
        ((kind, value),) = pair["value"].items() or (("stringValue", ""),)
        found[pair["key"]] = int(value) if kind == "intValue" else value
    return found


def trace_of(message_id: str, spans: Iterable[Span]) -> MessageTrace | None:
    """Return the trace of a message, None if no span is about it."""
    unique = {(span.trace_id, span.span_id): span for span in spans}
    about = [span for span in unique.values() if span.attributes.get(Attribute.MESSAGE_ID) == message_id]
    creation = next((key for span in about if (key := creation_of(span)) is not None), None)
    if creation is None:
        return None
    stages = [
        span for span in about if span.name in MAJORITY_STAGES and (span.trace_id, span.parent_id) == creation
    ]
    linked = [span for span in unique.values() if creation in span.links]
    return MessageTrace(
        message_id=message_id,
        trace_id=creation[0],
        root=unique.get(creation),
        stages=tuple(sorted(stages, key=place_in_story)),
        linked=tuple(sorted(linked, key=lambda span: span.start_ns)),
    )


def place_in_story(span: Span) -> tuple[int, int, int]:
    """Return what sorts stages: by record, by stage, by time."""
    offset = span.attributes.get(Attribute.OFFSET)
    return offset if isinstance(offset, int) else -1, MAJORITY_STAGES.index(span.name), span.start_ns


def creation_of(span: Span) -> tuple[str, str] | None:
    """Return the trace and span id of the creation span, as known from a span of the message."""
    if span.name in MAJORITY_STAGES:
        return span.trace_id, span.parent_id
    if len(span.links) == 1:
        return span.links[0]
    return (span.trace_id, span.span_id) if span.kind in CREATING and not span.links else None


def structure(trace: MessageTrace, *, client: str = "client") -> str:
    """Return the trace as `telemetry.TREE` draws it: names, kinds and processes only."""
    rows = [(label, span.kind, process(span, client)) for label, span in labelled(trace)]
    return table(rows)


def lines(trace: MessageTrace) -> str:
    """Return the trace for people: each span's start after the first one's, its duration, and attributes."""
    several, several_slaves = trace.record_count > 1, trace.several_slaves
    rows = [
        (
            label,
            f"{span.process} {span.attributes.get(Attribute.BROKER_ID, '')}"
            if several_slaves and span.role == "slave"
            else span.process,
            f"{(span.start_ns - trace.begin_ns) / 1e6:10.3f} ms",
            f"{(span.end_ns - span.start_ns) / 1e6:10.3f} ms",
            facts(span, (*RECORD, *SHOWN) if several and span.name == APPEND else SHOWN),
        )
        for label, span in labelled(trace)
    ]
    heading = ("", "process", "       begins", "        takes", "")
    record = facts(trace.stages[0], RECORD) if trace.stages else "not known to be stored"
    if several:
        record = f"{trace.record_count} records"
    title = f"message {trace.message_id}, trace {trace.trace_id}\n{record}\n"
    return title + table([heading, *rows])


def labelled(trace: MessageTrace) -> Iterator[tuple[str, Span]]:
    """Yield each span with its branch of the tree."""
    if trace.root is not None:
        yield trace.root.name, trace.root
    for span in trace.stages:
        yield f"{'└─' if span is trace.stages[-1] else '├─'} {span.name}", span
    for span in trace.linked:
        yield f"linked: {span.name}", span


def process(span: Span, client: str) -> str:
    """Return the process of a span; `client` for all programs of users."""
    return span.process if span.service in SERVICES else client


def facts(span: Span, names: Sequence[tuple[str, str]] = SHOWN) -> str:
    """Return some attributes of a span as text, and whether it failed."""
    known = [f"{word} {span.attributes[name]}" for name, word in names if name in span.attributes]
    return ", ".join([*known, *(["FAILED"] if span.failed else [])])


def table(rows: Sequence[tuple[str, ...]]) -> str:
    """Return rows with aligned columns."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    padded = ("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) for row in rows)
    return "".join(f"{line.rstrip()}\n" for line in padded)
