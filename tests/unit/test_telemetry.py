"""Log lines and the ready file."""

import io
import json
import logging
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from support.cluster.spans import memory_provider
from whimbrel.telemetry import setup_logging, write_ready_file


@pytest.fixture(autouse=True)
def root_logger() -> Iterator[None]:
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    yield
    root.handlers[:] = handlers
    root.setLevel(level)


def test_text_line_has_time_level_process_message_and_logger() -> None:
    stream = io.StringIO()
    setup_logging("INFO", "text", process="broker-a", stream=stream)
    logging.getLogger("whimbrel.broker.api.messaging").info("log end %d", 7)
    logging.getLogger("whimbrel.broker.api.messaging").debug("unseen")
    assert re.fullmatch(
        r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z INFO    broker-a log end 7 \[broker\.api\.messaging\]\n",
        stream.getvalue(),
    )


def test_json_line_is_one_object_with_the_traceback_inside() -> None:
    stream = io.StringIO()
    setup_logging("INFO", "json", process="nameserver", stream=stream)
    try:
        raise KeyError("gone")
    except KeyError:
        logging.getLogger("whimbrel.x").exception("failed")
    (line,) = stream.getvalue().splitlines()
    fields = json.loads(line)
    assert (fields["level"], fields["process"], fields["message"]) == ("ERROR", "nameserver", "failed")
    assert "KeyError: 'gone'" in fields["error"]


def test_ready_file_appears_whole(tmp_path: Path) -> None:
    path = tmp_path / "ready.json"
    write_ready_file(str(path), {"grpc": "127.0.0.1:5", "name": "nameserver"})
    fields = json.loads(path.read_text())
    assert fields["grpc"] == "127.0.0.1:5"
    assert fields["pid"] > 0
    assert list(tmp_path.iterdir()) == [path]
    write_ready_file("", {})


def test_a_line_about_a_traced_message_carries_its_ids() -> None:
    stream = io.StringIO()
    setup_logging("INFO", "json", process="broker-a", stream=stream)
    logging.getLogger("whimbrel.x").info("stored", extra={"trace_id": "a" * 32, "span_id": "b" * 16})
    logging.getLogger("whimbrel.x").info("plain")
    about, plain = map(json.loads, stream.getvalue().splitlines())
    assert (about["trace_id"], about["span_id"]) == ("a" * 32, "b" * 16)
    assert not {"trace_id", "span_id"} & set(plain)


@pytest.mark.parametrize("style", ["text", "json"])
def test_a_line_inside_a_span_carries_the_ids_of_the_span(style: str) -> None:
    provider, spans = memory_provider()
    stream = io.StringIO()
    setup_logging("INFO", style, process="shop", stream=stream)
    with provider.get_tracer("app").start_as_current_span("work"):
        logging.getLogger("app").info("hello")
    (span,) = spans()
    (line,) = stream.getvalue().splitlines()
    assert span.trace_id in line
    if style == "json":
        assert json.loads(line)["span_id"] == span.span_id


FORGED = "a\n2026-01-01T00:00:00.000Z INFO    broker-a all is well [broker]\x1b[2J\x9b1m\u2028"


@pytest.mark.parametrize("style", ["text", "json"])
def test_a_name_forges_no_line_and_reaches_no_terminal(style: str) -> None:
    stream = io.StringIO()
    setup_logging("INFO", style, process="nameserver", stream=stream)
    logging.getLogger("whimbrel.x").info("%s registered", FORGED)
    (line,) = stream.getvalue().split("\n")[:-1]
    assert line.isprintable()
    if style == "json":
        assert json.loads(line)["message"] == f"{FORGED} registered"


@pytest.mark.parametrize("style", ["text", "json"])
def test_the_lines_of_a_traceback_can_t_be_taken_for_others(style: str) -> None:
    stream = io.StringIO()
    setup_logging("INFO", style, process="nameserver", stream=stream)
    try:
        raise ValueError(FORGED)
    except ValueError:
        logging.getLogger("whimbrel.x").exception("failed")
    first, *further = stream.getvalue().split("\n")[:-1]
    assert all(line.isprintable() for line in (first, *further))
    assert all(line.startswith("    ") for line in further)
    assert bool(further) == (style == "text")
