"""Families as OpenTelemetry's data, and over HTTP."""

import socket
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator
from typing import Any

import pytest
from opentelemetry.exporter.otlp.proto.common.metrics_encoder import encode_metrics
from opentelemetry.exporter.prometheus import PrometheusMetricReader
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from prometheus_client.parser import text_string_to_metric_families

from whimbrel.exposition import Exposition, provide, serve_metrics
from whimbrel.http_port import PLACES_MAX
from whimbrel.metrics import Family, Histogram, Point, build_info

COMMON = {"node_type": "test"}


class Numbers:
    """Numbers of each kind, which a test may change."""

    def __init__(self) -> None:
        self.topics: dict[str, int] = {"a": 1}
        self.sizes = Histogram((1.0, 2.0))

    def families(self) -> list[Family]:
        def topics() -> Iterator[Point]:
            for topic, count in self.topics.items():
                yield (topic,), count

        return [
            build_info(),
            Family(name="t_sent_bytes_total", kind="counter", unit="By", help="S.", read=lambda: [((), 7)]),
            Family(name="t_lag", kind="gauge", unit="s", help="L.", labels=("topic",), read=topics,
                   fixed=False),
            Family(name="t_size", kind="histogram", help="Sizes.", read=lambda: [((), self.sizes)]),
        ]  # fmt: skip


@pytest.fixture
def numbers() -> Numbers:
    return Numbers()


@pytest.fixture
def served(numbers: Numbers) -> Iterator[Exposition]:
    exposition = serve_metrics(numbers.families(), host="127.0.0.1", port=0, service="t", labels=COMMON)
    yield exposition
    exposition.close()


def fetch(exposition: Exposition, path: str = "/metrics") -> str:
    with urllib.request.urlopen(f"http://{exposition.address}{path}", timeout=10) as answer:
        return str(answer.read().decode())


def samples(text: str) -> dict[str, float]:
    """Return the samples that are ours, as `name{label values}`."""
    found = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            labels = {key: value for key, value in sample.labels.items() if key not in COMMON}
            if sample.name.startswith("t_"):
                found[f"{sample.name}{{{','.join(labels.values())}}}"] = sample.value
    return found


def test_each_kind_is_scraped_under_its_name(served: Exposition, numbers: Numbers) -> None:
    for value in (0.5, 2.0, 9.0):
        numbers.sizes.observe(value)
    assert samples(fetch(served)) == {
        "t_sent_bytes_total{}": 7,
        "t_lag_seconds{a}": 1,
        "t_size_bucket{1.0}": 1,
        "t_size_bucket{2.0}": 2,
        "t_size_bucket{+Inf}": 3,
        "t_size_count{}": 3,
        "t_size_sum{}": 11.5,
    }


def test_every_series_has_the_labels_of_the_process(served: Exposition) -> None:
    for family in text_string_to_metric_families(fetch(served)):
        for sample in family.samples:
            if sample.name.startswith(("t_", "whimbrel_")):
                assert sample.labels["node_type"] == "test"


def test_series_whose_label_is_gone_is_gone(served: Exposition, numbers: Numbers) -> None:
    assert "t_lag_seconds{a}" in samples(fetch(served))
    numbers.topics = {"b": 2}
    found = samples(fetch(served))
    assert ("t_lag_seconds{a}" in found, found["t_lag_seconds{b}"]) == (False, 2)


def test_labels_that_come_and_go_for_ever_never_end_in_an_overflow(
    served: Exposition, numbers: Numbers
) -> None:
    for turn in range(3):
        numbers.topics = {f"t{turn}-{number}": number for number in range(1000)}
        found = samples(fetch(served))
        assert sum(name.startswith("t_lag_seconds") for name in found) == 1000
        assert found[f"t_lag_seconds{{t{turn}-999}}"] == 999


def test_family_that_fails_leaves_the_others(caplog: pytest.LogCaptureFixture) -> None:
    def broken() -> Iterator[Point]:
        raise RuntimeError("no")
        yield  # what makes it a generator

    families = [
        build_info(),
        Family(name="t_bad", kind="gauge", help="Bad.", read=broken, fixed=False),
        Family(name="t_worse", kind="gauge", help="Worse.", read=broken),
        Family(name="t_good", kind="gauge", help="Good.", read=lambda: [((), 1)], fixed=False),
        Family(name="t_better", kind="gauge", help="Better.", read=lambda: [((), 2)]),
    ]
    served = serve_metrics(families, host="127.0.0.1", port=0, service="t", labels=COMMON)
    try:
        assert samples(fetch(served)) == {"t_good{}": 1, "t_better{}": 2}
        assert "t_bad can't be read" in caplog.text
    finally:
        served.close()


def test_another_reader_gets_the_same_numbers_and_an_otlp_collector_would_too(numbers: Numbers) -> None:
    numbers.sizes.observe(1.5)
    provider, reader = provide(numbers.families(), COMMON, service="t", base=InMemoryMetricReader)
    data: Any = reader.get_metrics_data()
    provider.shutdown()
    metrics = {
        metric.name: metric for scope in data.resource_metrics[0].scope_metrics for metric in scope.metrics
    }
    assert set(metrics) == {family.name for family in numbers.families()}
    assert metrics["t_lag"].data.data_points[0].attributes == {"node_type": "test", "topic": "a"}
    encoded = encode_metrics(data).resource_metrics[0]
    wired = {metric.name: metric for scope in encoded.scope_metrics for metric in scope.metrics}
    point = wired["t_size"].histogram.data_points[0]
    assert (list(point.bucket_counts), point.count, point.sum) == ([0, 1, 0], 1, 1.5)
    assert not point.HasField("min")
    assert wired["t_sent_bytes_total"].sum.is_monotonic


def scraped_name(name: str, kind: str, unit: str) -> str:
    """Return the name that Prometheus shows, without a histogram's `_bucket`, `_sum` and `_count`."""
    base = name.removesuffix("_total") if kind == "counter" else name
    word = {"By": "bytes", "s": "seconds", "ms": "milliseconds", "1": ""}.get(unit, unit)
    if word and not base.endswith(f"_{word}"):
        base = f"{base}_{word}"
    return f"{base}_total" if kind == "counter" else base


@pytest.mark.parametrize(
    ("name", "kind", "unit", "scraped"),
    [
        ("rocketmq_messages_in_total", "counter", "", "rocketmq_messages_in_total"),
        ("rocketmq_rpc_latency", "histogram", "milliseconds", "rocketmq_rpc_latency_milliseconds"),
        ("rocketmq_storage_flush_behind_bytes", "gauge", "bytes", "rocketmq_storage_flush_behind_bytes"),
        ("whimbrel_append_bytes_total", "counter", "By", "whimbrel_append_bytes_total"),
        ("whimbrel_disk_used_ratio", "gauge", "1", "whimbrel_disk_used_ratio"),
        ("x", "gauge", "s", "x_seconds"),
    ],
)
def test_scraped_name_has_unit_and_total_once(name: str, kind: str, unit: str, scraped: str) -> None:
    assert scraped_name(name, kind, unit) == scraped


def test_scraped_name_is_what_the_exporter_makes_of_it(numbers: Numbers, served: Exposition) -> None:
    shown = {name.partition("{")[0] for name in samples(fetch(served))}
    for family in numbers.families()[1:]:
        name = scraped_name(family.name, family.kind, family.unit)
        assert name in shown or f"{name}_count" in shown


def test_other_paths_are_not_found(served: Exposition) -> None:
    with pytest.raises(urllib.error.HTTPError) as caught:
        fetch(served, "/")
    assert caught.value.code == 404
    caught.value.close()


def test_taken_port_is_refused_with_its_address(served: Exposition) -> None:
    port = int(served.address.rpartition(":")[2])
    with pytest.raises(OSError, match=f"127.0.0.1:{port}: is another process there"):
        serve_metrics([build_info()], host="127.0.0.1", port=port, service="t", labels=COMMON)


def test_scrapes_at_the_same_time_get_whole_answers(served: Exposition, numbers: Numbers) -> None:
    numbers.topics = {f"t{number}": number for number in range(200)}
    answers: list[int] = []
    threads = [
        threading.Thread(target=lambda: answers.append(len(samples(fetch(served)))))
        for _ in range(PLACES_MAX)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert answers == [200 + 6] * PLACES_MAX


def test_clients_that_say_nothing_keep_nobody_from_scraping(served: Exposition) -> None:
    host, _, port = served.address.rpartition(":")
    silent = [socket.create_connection((host, int(port))) for _ in range(3 * PLACES_MAX)]
    try:
        assert samples(fetch(served))
    finally:
        for sock in silent:
            sock.close()


def test_replaced_families_are_read_no_more_and_the_address_stays(served: Exposition) -> None:
    address = served.address
    other = Family(name="t_other", kind="gauge", help="Other.", read=lambda: [((), 3)])
    served.replace([build_info(), other], {"node_type": "another"})
    assert served.address == address
    text = fetch(served)
    assert samples(text) == {"t_other{}": 3}
    assert 'node_type="another"' in text and 'node_type="test"' not in text


def test_closed_exposition_reads_nothing_more(numbers: Numbers) -> None:
    reads: list[int] = []
    family = Family(name="t_read", kind="gauge", help="Read.", read=lambda: [((), len(reads))], fixed=False)
    served = serve_metrics([build_info(), family], host="127.0.0.1", port=0, service="t", labels=COMMON)
    assert samples(fetch(served)) == {"t_read{}": 0}
    served.close()
    assert not served.port.thread.is_alive()
    with pytest.raises(OSError):
        fetch(served)


def test_reader_of_prometheus_is_one_of_opentelemetrys() -> None:
    provider, reader = provide([build_info()], COMMON, service="t", base=InMemoryMetricReader)
    assert isinstance(reader, InMemoryMetricReader)
    assert not isinstance(reader, PrometheusMetricReader)
    provider.shutdown()
