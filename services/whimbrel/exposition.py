"""Serves a process's metrics over HTTP in Prometheus's format; imported only where they are switched on.

    families ──► observable instruments ─┐
             ──► ready-made points ──────┴─► reader (Prometheus) ──► GET /metrics

Families with fixed labels are observable instruments of OpenTelemetry. The others are added, as points of
OpenTelemetry's data model, to what a reader collects: histograms, which are aggregated already, and families
whose labels come and go. Instruments would keep each of their series for ever, and after 2000 of them put
every new group or topic into an overflow series. `adding` makes any reader do that, so a reader that exports
to an OTLP collector gets the same numbers.

The thread that serves runs the families' `read`; `metrics.py` says what that may access. Scrapes run one at a
time, and a process that stops ends them before it closes what they read. The port (`http_port.py`) answers
`/healthz` and `/readyz`, too (`probes.py`).
"""

import logging
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from opentelemetry.exporter.prometheus import PrometheusMetricReader
from opentelemetry.metrics import CallbackOptions, Meter, Observation
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import (
    AggregationTemporality,
    Gauge,
    HistogramDataPoint,
    Metric,
    MetricReader,
    MetricsData,
    NumberDataPoint,
    ResourceMetrics,
    ScopeMetrics,
    Sum,
)
from opentelemetry.sdk.metrics.export import Histogram as HistogramData
from opentelemetry.sdk.resources import Resource
from prometheus_client import CollectorRegistry, ProcessCollector
from prometheus_client.exposition import make_wsgi_app

from whimbrel import __version__
from whimbrel.http_port import Answer, HttpPort, Request, text_answer
from whimbrel.metrics import Family, Histogram, Labels
from whimbrel.probes import Probes

__all__ = ["Exposition", "adding", "serve_metrics"]

PATH = "/metrics"
SCOPE = "whimbrel"

logger = logging.getLogger(__name__)


def instrument(meter: Meter, family: Family, common: dict[str, str]) -> None:
    """Make a family an observable instrument."""

    def observe(_: CallbackOptions) -> list[Observation]:
        return [
            Observation(value, attributes(family, labels, common))
            for labels, value in family.read()
            if not isinstance(value, Histogram)
        ]

    create = meter.create_observable_counter if family.kind == "counter" else meter.create_observable_gauge
    create(family.name, [observe], family.unit, family.help)


def attributes(family: Family, labels: Labels, common: dict[str, str]) -> dict[str, str]:
    """Return the labels of one series."""
    return common | dict(zip(family.labels, labels, strict=True))


def ready_made(families: Iterable[Family], common: dict[str, str], started_ns: int) -> list[Metric]:
    """Return points of families in OpenTelemetry's data model; a family that fails is left out and logged."""
    now_ns = time.time_ns()
    found = []
    for family in families:
        try:
            points = list(family.read())
        except Exception:  # the other families must still be served
            logger.exception("the metric %s can't be read", family.name)
            continue
        if points:
            data = data_of(family, points, common, started_ns, now_ns)
            found.append(Metric(family.name, family.help, family.unit, data))
    return found


def data_of(
    family: Family, points: Sequence[Any], common: dict[str, str], started_ns: int, now_ns: int
) -> Sum | Gauge | HistogramData:
    """Return a family's points as its kind of data."""
    if family.kind == "histogram":
        made = [
            histogram_point(value, attributes(family, labels, common), started_ns, now_ns)
            for labels, value in points
        ]
        return HistogramData(made, AggregationTemporality.CUMULATIVE)
    numbers = [
        NumberDataPoint(attributes(family, labels, common), started_ns, now_ns, value)
        for labels, value in points
    ]
    if family.kind == "counter":
        return Sum(numbers, AggregationTemporality.CUMULATIVE, is_monotonic=True)
    return Gauge(numbers)


def histogram_point(
    value: Histogram, labels: dict[str, str], started_ns: int, now_ns: int
) -> HistogramDataPoint:
    """Return a histogram as a point, without minimum and maximum, which are not kept."""
    counts = value.counts.copy()
    return HistogramDataPoint(
        attributes=labels,
        start_time_unix_nano=started_ns,
        time_unix_nano=now_ns,
        count=sum(counts),
        sum=value.total,
        bucket_counts=counts,
        explicit_bounds=value.bounds,
        min=None,  # type: ignore[arg-type]  # optional in the protocol
        max=None,  # type: ignore[arg-type]
    )


def adding(base: type[Any], extra: Callable[[], list[Metric]]) -> type[Any]:
    """Return a kind of metric reader that also gets what `extra` returns with each collection.

    It goes into the scope of the instruments: exporters merge two scopes of one name.
    """
    assert issubclass(base, MetricReader)

    class Adding(base):  # type: ignore[misc]
        def _receive_metrics(self, metrics_data: MetricsData, *args: Any, **kwargs: Any) -> None:
            (found,) = metrics_data.resource_metrics
            (scope,) = found.scope_metrics
            both = ScopeMetrics(scope.scope, [*scope.metrics, *extra()], scope.schema_url)
            joined = ResourceMetrics(found.resource, [both], found.schema_url)
            super()._receive_metrics(MetricsData([joined]), *args, **kwargs)

    return Adding


def provide(
    families: Sequence[Family], common: dict[str, str], *, service: str, base: type[Any], **options: Any
) -> tuple[MeterProvider, Any]:
    """Return a provider that has the families as its instruments, and its reader, a kind of `base`.

    At least one family must be fixed: a provider without instruments never asks its readers to export.
    """
    fixed = [family for family in families if family.fixed and family.kind != "histogram"]
    others = [family for family in families if family not in fixed]
    started_ns = time.time_ns()
    reader = adding(base, lambda: ready_made(others, common, started_ns))(**options)
    resource = Resource({"service.name": service, "service.version": __version__})
    provider = MeterProvider((reader,), resource, shutdown_on_exit=False)
    meter = provider.get_meter(SCOPE, __version__)
    for family in fixed:
        instrument(meter, family, common)
    return provider, reader


class Collection:
    """Families, ready to be asked for by Prometheus."""

    def __init__(self, families: Sequence[Family], service: str, labels: dict[str, str]) -> None:
        registry = CollectorRegistry()
        ProcessCollector(registry=registry)
        self.provider, _ = provide(
            families,
            labels,
            service=service,
            base=PrometheusMetricReader,
            registry=registry,
            scope_info_enabled=False,
        )
        self.answer = make_wsgi_app(registry)


class Exposition:
    """A running server of metrics, and of the process's health.

    Attributes:
        address: `host:port` as bound.
    """

    def __init__(
        self, host: str, port: int, service: str, collection: Collection, probes: Probes | None
    ) -> None:
        self.service, self.collection, self.probes = service, collection, probes
        self.lock = threading.Lock()
        self.closed = False
        self.port = HttpPort(host, port, self.answer, what="metrics")
        self.address = self.port.address

    def answer(self, request: Request) -> Answer:
        """Answer one request."""
        if request.path == PATH:
            with self.lock:  # the reader keeps what it has collected in one queue
                if self.closed:
                    return text_answer(503, "the process stops")
                return self.scrape(request)
        found = None if self.probes is None else self.probes.answer(request)
        return found or text_answer(404, "metrics are at /metrics, health is at /healthz and /readyz")

    def scrape(self, request: Request) -> Answer:
        """Return the metrics, in the format and encoding that the request asks for."""
        begun: list[Any] = []
        environ = {
            "REQUEST_METHOD": "GET",  # of HEAD, the port leaves the body out
            "PATH_INFO": request.path,
            "QUERY_STRING": request.query,
            "HTTP_ACCEPT": request.headers.get("accept", ""),
            "HTTP_ACCEPT_ENCODING": request.headers.get("accept-encoding", ""),
        }
        parts = self.collection.answer(environ, lambda *status_and_headers: begun.extend(status_and_headers))
        status, headers, *_ = begun
        return Answer(int(status.split()[0]), headers, b"".join(parts))

    def replace(self, families: Sequence[Family], labels: dict[str, str]) -> None:
        """Serve other families at the same address; afterwards nothing reads those from before."""
        collection = Collection(families, self.service, labels)
        with self.lock:  # a scrape that still runs
            self.collection.provider.shutdown()
            self.collection = collection

    def close(self) -> None:
        """Stop serving; afterwards nothing reads the families any more."""
        self.closed = True
        self.port.close()
        with self.lock:  # waits for a scrape under way
            self.collection.provider.shutdown()


def serve_metrics(
    families: Sequence[Family],
    *,
    host: str,
    port: int,
    service: str,
    labels: dict[str, str],
    probes: Probes | None = None,
) -> Exposition:
    """Serve families at `http://host:port/metrics` until `close`; port 0 is any free one.

    Args:
        service: OpenTelemetry's name of the service.
        labels: on every series of this process.
        probes: are answered on the same port.

    Raises:
        OSError: the port is taken, or the host is not one of this machine's; the text says so.
    """
    return Exposition(host, port, service, Collection(families, service, labels), probes)
