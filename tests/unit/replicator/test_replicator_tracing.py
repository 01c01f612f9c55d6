"""What a master's replicator records of frames, slaves and reports."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from support.cluster.spans import memory_tracer
from whimbrel.cli.message_trace import Span
from whimbrel.model.trace import TraceContext, TracedRecord
from whimbrel.replicator import tracing
from whimbrel.replicator.options import ReplicatorOptions
from whimbrel.replicator.tracing import FRAME_LINKS_MAX, FRAMES_MAX, FeederTraces, FollowerTraces, Recent
from whimbrel.telemetry import ACKNOWLEDGE, FRAME, SLAVE_APPEND, SLAVE_COMMIT, TRANSFER, Attribute

SIZE = 100


class Rig:
    """Traces of a log in which every record of 100 bytes is sampled."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        tracer, self.spans = memory_tracer()
        monkeypatch.setattr(tracing, "open_tracer", lambda *_: tracer)
        page: Any = SimpleNamespace(broker_name="broker-a", broker_id=0)
        self.traces = FeederTraces(ReplicatorOptions(store="s", trace_to="file:f"), page)
        self.end = 0

    def grow(self, count: int = 1) -> None:
        for _ in range(count):
            self.traces.recent.append(Recent(traced(self.end)))
            self.end += SIZE

    def connect(self, host: str = "10.0.0.2", port: int = 1) -> Any:
        connection: Any = ConnectionStub(f"{host}:{port}")
        self.traces.connected(connection)
        return connection

    def send(self, connection: Any, offset: int, size: int) -> None:
        connection.on_frame(offset, size, 5)
        self.traces.end_turn(self.end)

    def named(self, name: str) -> list[Span]:
        return [span for span in self.spans() if span.name == name]


class ConnectionStub:
    def __init__(self, peer: str) -> None:
        self.peer = peer
        self.on_frame: Any = None


def traced(offset: int) -> TracedRecord:
    return TracedRecord(
        context=TraceContext(1 + offset, 7, sampled=True),
        offset=offset,
        size=SIZE,
        topic="orders",
        queue_id=0,
        queue_offset=0,
        message_id=f"m{offset}",
    )


@pytest.fixture
def rig(monkeypatch: pytest.MonkeyPatch) -> Rig:
    return Rig(monkeypatch)


def test_a_record_is_transferred_with_the_frame_in_which_it_ends(rig: Rig) -> None:
    connection = rig.connect()
    rig.grow(3)
    rig.send(connection, 0, 150)
    assert [span.attributes[Attribute.OFFSET] for span in rig.named(TRANSFER)] == [0]
    rig.send(connection, 150, 150)
    assert [span.attributes[Attribute.OFFSET] for span in rig.named(TRANSFER)] == [0, 100, 200]
    last = rig.named(TRANSFER)[-1]
    assert (last.attributes[Attribute.FRAME_OFFSET], last.attributes[Attribute.FRAME_SIZE]) == (150, 150)
    assert (last.trace_id, last.parent_id) == (f"{201:032x}", f"{7:016x}")
    assert last.attributes[Attribute.SLAVE] == "10.0.0.2:1"
    assert last.start_ns == 5


def test_a_frame_is_a_trace_of_its_own_with_a_bounded_number_of_links(rig: Rig) -> None:
    connection = rig.connect()
    rig.grow(FRAME_LINKS_MAX + 5)
    rig.send(connection, 0, rig.end)
    (frame,) = rig.named(FRAME)
    assert frame.parent_id == ""
    assert frame.trace_id not in {span.trace_id for span in rig.named(TRANSFER)}
    assert frame.links == tuple((f"{1 + at * SIZE:032x}", f"{7:016x}") for at in range(FRAME_LINKS_MAX))
    assert frame.attributes[Attribute.FRAME_RECORDS] == FRAME_LINKS_MAX + 5


def test_a_report_acknowledges_what_went_out_over_its_connection(rig: Rig) -> None:
    one, other = rig.connect(port=1), rig.connect(host="10.0.0.3")
    rig.grow(2)
    rig.send(one, 0, 200)
    rig.send(other, 0, 100)
    rig.traces.acknowledged(one, 150)
    rig.traces.acknowledged(other, 200)
    told = [
        (span.attributes[Attribute.SLAVE], span.attributes[Attribute.OFFSET])
        for span in rig.named(ACKNOWLEDGE)
    ]
    assert told == [("10.0.0.2:1", 0), ("10.0.0.3:1", 0)]
    rig.traces.acknowledged(one, 200)
    transfer = next(span for span in rig.named(TRANSFER) if span.attributes[Attribute.OFFSET] == 100)
    assert rig.named(ACKNOWLEDGE)[-1].start_ns == transfer.end_ns


def test_a_resend_after_a_reconnect_is_a_further_attempt(rig: Rig) -> None:
    rig.grow()
    first = rig.connect(port=1)
    beside = rig.connect(host="10.0.0.3", port=1)
    rig.send(first, 0, SIZE)
    rig.send(beside, 0, SIZE)
    rig.traces.disconnected(first)
    again = rig.connect(port=2)
    rig.send(again, 0, SIZE)
    rig.traces.acknowledged(again, SIZE)
    attempts = [
        (span.attributes[Attribute.SLAVE], span.attributes[Attribute.ATTEMPT]) for span in rig.named(TRANSFER)
    ]
    assert attempts == [("10.0.0.2:1", 1), ("10.0.0.3:1", 1), ("10.0.0.2:2", 2)]
    (acknowledged,) = rig.named(ACKNOWLEDGE)
    assert acknowledged.attributes[Attribute.ATTEMPT] == 2


def test_two_slaves_on_one_host_are_no_attempts_of_each_other(rig: Rig) -> None:
    rig.grow()
    for port in (1, 2):
        rig.send(rig.connect(port=port), 0, SIZE)
    assert [span.attributes[Attribute.ATTEMPT] for span in rig.named(TRANSFER)] == [1, 1]


def test_a_recovered_log_forgets_its_records(rig: Rig) -> None:
    rig.grow()
    rig.traces.recovered(lambda offset, size: b"", rig.end, 1 << 20)
    rig.send(rig.connect(), 0, SIZE)
    assert rig.spans() == []


def test_frames_of_one_turn_are_bounded(rig: Rig) -> None:
    connection = rig.connect()
    for _ in range(FRAMES_MAX + 1):
        connection.on_frame(0, 1, 0)
    assert len(rig.traces.frames) == FRAMES_MAX


@pytest.mark.parametrize("dialect", [2, 0])
def test_a_slave_tells_of_commits_where_a_majority_makes_them(
    monkeypatch: pytest.MonkeyPatch, dialect: int
) -> None:
    tracer, spans = memory_tracer()
    monkeypatch.setattr(tracing, "open_tracer", lambda *_: tracer)
    page: Any = SimpleNamespace(broker_name="broker-a", broker_id=2, ha_dialect=dialect)
    options = ReplicatorOptions(store="s", trace_to="file:f")
    traces = FollowerTraces(options, page, lambda offset, size: b"", 0, 1 << 20)
    traces.scanner.advance = lambda end: [traced(0), traced(SIZE)]  # type: ignore[method-assign]
    traces.appended(2 * SIZE, 1)
    traces.committed(2 * SIZE - 1)
    appended = [span for span in spans() if span.name == SLAVE_APPEND]
    committed = [span for span in spans() if span.name == SLAVE_COMMIT]
    assert len(appended) == 2
    if not dialect:
        assert not committed and not traces.uncommitted
        return
    (first,) = committed
    assert (first.attributes[Attribute.OFFSET], first.attributes[Attribute.BROKER_ID]) == (0, 2)
    assert first.start_ns == appended[0].end_ns
    traces.committed(2 * SIZE)
    assert not traces.uncommitted


def test_without_a_target_opentelemetry_is_not_imported(tmp_path: Path) -> None:
    import subprocess
    import sys

    code = (
        "import sys, whimbrel.replicator.program, whimbrel.broker.broker, whimbrel.nameserver.program; "
        "import whimbrel.client; print([name for name in sys.modules if name.startswith('opentelemetry')])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
