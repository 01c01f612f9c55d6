"""Where the spans of tests go: into memory, or to an OTLP receiver in this process.

    tracer, spans = memory_tracer()          # for what takes a tracer
    provider, spans = memory_provider()      # for the client library's options
    with Receiver() as receiver:             # for processes: --trace-to {receiver.target}
        receiver.spans()

Both give `whimbrel.cli.message_trace.Span`, so that tests read spans as `whimbrel trace` does.
"""

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from types import TracebackType
from typing import Any, Self

import grpc
from google.protobuf.json_format import MessageToDict
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2 as otlp
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2_grpc as otlp_grpc
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from whimbrel.cli.message_trace import Span, spans_of
from whimbrel.tracing import Tracer, otlp_object

__all__ = ["Receiver", "Spans", "memory_provider", "memory_tracer"]

Spans = Callable[[], list[Span]]


def memory_provider(service: str = "shop") -> tuple[TracerProvider, Spans]:
    """Return a provider, and what gives the finished spans in the order of their ends."""
    exporter = InMemorySpanExporter()
    provider = TracerProvider(resource=Resource({"service.name": service}), shutdown_on_exit=False)
    provider.add_span_processor(SimpleSpanProcessor(exporter))

    def finished() -> list[Span]:
        return list(spans_of(otlp_object(exporter.get_finished_spans())))

    return provider, finished


def memory_tracer() -> tuple[Tracer, Spans]:
    """Return a tracer of a broker or replicator, and what gives the finished spans."""
    exporter = InMemorySpanExporter()
    tracer = Tracer(SimpleSpanProcessor(exporter), Resource({"service.name": "whimbrel-broker"}))
    return tracer, lambda: list(spans_of(otlp_object(exporter.get_finished_spans())))


class Receiver(otlp_grpc.TraceServiceServicer):
    """An OTLP gRPC receiver on a free port of loopback."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.received: list[Span] = []
        self.server = grpc.server(ThreadPoolExecutor(2))
        otlp_grpc.add_TraceServiceServicer_to_server(self, self.server)  # type: ignore[no-untyped-call]
        self.port = self.server.add_insecure_port("127.0.0.1:0")

    @property
    def target(self) -> str:
        """What processes are told with --trace-to."""
        return f"http://127.0.0.1:{self.port}"

    def Export(self, request: Any, context: Any) -> Any:
        """Take spans."""
        with self.lock:
            self.received += spans_of(MessageToDict(request))
        return otlp.ExportTraceServiceResponse()

    def spans(self) -> list[Span]:
        """Return what has come so far."""
        with self.lock:
            return list(self.received)

    def __enter__(self) -> Self:
        self.server.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.server.stop(1).wait()
