"""Spans on their way out: the file's form and bound, targets, and an end that waits for no dead collector."""

import json
import logging
import time
from pathlib import Path
from typing import Any

import pytest
from google.protobuf.json_format import MessageToDict
from opentelemetry.exporter.otlp.proto.common.trace_encoder import encode_spans
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace.export import SimpleSpanProcessor, SpanExportResult
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from whimbrel import tracing
from whimbrel.cli.message_trace import spans_of
from whimbrel.model.trace import TraceContext
from whimbrel.telemetry import check_trace_target
from whimbrel.tracing import CLOSE_S, FileExporter, Tracer, open_tracer, otlp_object

PARENT = TraceContext(5, 6, sampled=True)


def test_a_file_holds_otlp_as_the_official_encoder_makes_it(tmp_path: Path) -> None:
    exporter = InMemorySpanExporter()
    tracer = Tracer(SimpleSpanProcessor(exporter), Resource({"service.name": "whimbrel-broker"}))
    tracer.record("stage", PARENT, 10, 20, {"a": "text", "b": 7})
    tracer.record("frame", None, 10, 20, {}, links=[PARENT, TraceContext(8, 9, sampled=True)])
    tracer.record("create", None, 10, 20, {}, own=PARENT, kind="producer", error="it failed")
    odd: Any = {"list": ["x", "y"], "ratio": 0.5, "yes": True}
    tracer.record("odd", PARENT, 10, 20, odd)
    finished = exporter.get_finished_spans()
    assert list(spans_of(otlp_object(finished))) == list(spans_of(MessageToDict(encode_spans(finished))))
    FileExporter(tmp_path / "new" / "spans.jsonl").export(finished)
    (line,) = (tmp_path / "new" / "spans.jsonl").read_text().splitlines()
    assert json.loads(line) == otlp_object(finished)


def test_a_file_is_put_aside_when_it_is_full(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tracing, "FILE_BYTES_MAX", 10)
    exporter = FileExporter(tmp_path / "spans.jsonl")
    for _ in range(3):
        exporter.export([])
    assert sorted(path.name for path in tmp_path.iterdir()) == ["spans.jsonl", "spans.jsonl.1"]


def test_a_file_that_cannot_be_written_is_told_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "file").write_text("")
    exporter = FileExporter(tmp_path / "file" / "spans.jsonl")
    assert [exporter.export([]) for _ in range(3)] == [SpanExportResult.FAILURE] * 3
    assert len([record for record in caplog.records if "spans are lost" in record.message]) == 1


@pytest.mark.parametrize("text", ["", "file:/x/y", "http://localhost:4317"])
def test_targets_that_are_understood(text: str) -> None:
    check_trace_target(text)


@pytest.mark.parametrize(
    "text", ["file:", "/x/y", "localhost:4317", "http:localhost", "ftp://x", "https://x"]
)
def test_any_other_target_is_refused_with_the_forms_there_are(text: str) -> None:
    with pytest.raises(ValueError, match="file:PATH nor http://HOST:PORT"):
        check_trace_target(text)


def test_a_collector_that_is_not_there_costs_one_line_and_little_time(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.WARNING)
    tracer = open_tracer("http://127.0.0.1:1", "whimbrel-broker", {})
    for _ in range(3 * tracing.EXPORT_MAX):
        tracer.record("stage", PARENT, 10, 20, {})
    began = time.monotonic()
    tracer.close()
    assert time.monotonic() - began < 10 * CLOSE_S  # not the minutes that an exporter may try
    assert len([record for record in caplog.records if "export" in record.message]) <= 2
