"""What a broker stores and records of messages when it traces, and that it does neither when it does not."""

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from support.cluster.spans import Spans, memory_tracer
from whimbrel.broker.api.send import SendService
from whimbrel.broker.engine.send import Sends
from whimbrel.broker.produce.appender import Appender, Durability
from whimbrel.broker.produce.internal_append import InternalAppender, onward_draft
from whimbrel.broker.record_traces import UNCOMMITTED_MAX, UNFLUSHED_MAX, DispatchTraces, RecordTraces
from whimbrel.broker.tables.group_creation import GroupCreation
from whimbrel.broker.tables.groups import GroupTable
from whimbrel.broker.tables.topics import TopicTable
from whimbrel.broker.timing.records import Onward, delivered, rolled, waiting
from whimbrel.broker.transactions.records import committed_draft, op_draft
from whimbrel.cli.message_trace import Span
from whimbrel.errors import MessageEmpty, NotWritable, ReplicaTimeout
from whimbrel.model.topic import TopicConfig
from whimbrel.model.trace import parse_context
from whimbrel.pb.apache.rocketmq.v2 import definition_pb2 as v2
from whimbrel.pb.apache.rocketmq.v2 import service_pb2 as messaging
from whimbrel.rpc.server.handlers import Call
from whimbrel.store.codec import decode_record, pack_host
from whimbrel.store.master_store import MasterStore
from whimbrel.store.options import StoreOptions
from whimbrel.telemetry import APPEND, COMMIT, DISPATCH, FLUSH, Attribute
from whimbrel.tracing import identity

NOW = 1_800_000_000_000
CONTEXT = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
UNSAMPLED = CONTEXT[:-1] + "0"
TRACE, PARENT = CONTEXT.split("-")[1:3]


class Ticks:
    """An event loop that runs what it is given when it is told to."""

    def __init__(self) -> None:
        self.soon: list[Callable[[], None]] = []

    def time(self) -> float:
        return 0.0

    def call_soon(self, callback: Callable[[], None]) -> None:
        self.soon.append(callback)

    def call_later(self, delay: float, callback: Callable[[], None]) -> "Ticks":
        return self

    def cancel(self) -> None:
        pass


class Rig:
    """A master's send path over a real store."""

    def __init__(self, root: Path, *, ratio: float | None, acks: int = 0) -> None:
        options = StoreOptions(commitlog_file_size=1 << 20, index_slots=100, index_entries=400)
        self.store = MasterStore.open(root, options, clock=lambda: NOW)
        self.topics = TopicTable(
            root / "config", cluster="C", broker_name="broker-a", auto_create=False, clock=lambda: NOW
        )
        self.topics.add(TopicConfig(name="orders", read_queues=1, write_queues=1))
        self.appender = Appender(
            self.store, self.store.page, Durability(acks=acks), Ticks(), ring=lambda: None
        )
        self.appender.refusal = ""
        groups = GroupTable(root / "config", auto_create=False, clock=lambda: NOW)
        self.sends = Sends(
            self.topics,
            GroupCreation(self.topics, groups, master=True, clock=lambda: 0.0),
            self.appender,
            cluster="C",
            store_host=pack_host("127.0.0.1", 1),
            clock=lambda: NOW,
        )
        self.service = SendService(self.sends, lambda: NOW)
        self.flushed = 0
        self.spans: Spans = list
        if ratio is not None:
            tracer, self.spans = memory_tracer()
            self.traces = RecordTraces(
                tracer, identity("broker-a", 0), flushed=lambda: self.flushed, slaves=lambda: 2
            )
            self.sends.trace(self.traces, ratio)

    def send(self, *messages: Any) -> Any:
        return self.service.send(
            Call("m", "10.0.0.9:5", {}, None), messaging.SendMessageRequest(messages=messages)
        )

    def stored(self) -> list[dict[str, str]]:
        """Return the properties of all records."""
        data, at, found = self.store.read_log(0, self.store.written), 0, []
        while at < len(data):
            record = decode_record(data, at)
            found.append(record.properties)
            at += record.size
        return found

    def named(self, name: str) -> list[Span]:
        return [span for span in self.spans() if span.name == name]


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[Callable[..., Rig]]:
    made: list[Rig] = []

    def make(ratio: float | None = 0.0, acks: int = 0) -> Rig:
        made.append(Rig(tmp_path / str(len(made)), ratio=ratio, acks=acks))
        return made[-1]

    yield make
    for one in made:
        one.store.close()


def message(context: str = "", body: bytes = b"x", **user: str) -> Any:
    built = v2.Message(body=body, user_properties=user)
    built.topic.name = "orders"
    built.system_properties.message_id = "01" * 17
    if context:
        built.system_properties.trace_context = context
    return built


def test_a_sampled_context_is_stored_as_sent_and_has_an_append_span_below_it(rig: Any) -> None:
    one = rig()
    one.send(message(CONTEXT))
    assert one.stored()[0]["TRACE_CONTEXT"] == CONTEXT
    (span,) = one.named(APPEND)
    assert (span.trace_id, span.parent_id) == (TRACE, PARENT)
    assert span.attributes[Attribute.OFFSET] == 0
    assert span.attributes[Attribute.SLAVES] == 2
    assert span.attributes[Attribute.RECORD_SIZE] == one.store.written
    assert span.attributes[Attribute.BROKER] == "broker-a"
    assert (span.attributes[Attribute.TOPIC], span.attributes[Attribute.QUEUE]) == ("orders", "0")


def test_committed_message_is_appended_in_the_story_of_its_half(rig: Any) -> None:
    one = rig()
    one.send(message(CONTEXT))
    place, size, _ = one.store.queue_units("orders", 0, 0, 1)[0]
    half = decode_record(one.store.read(place, size))
    internal = InternalAppender(one.topics, one.appender, store_host=lambda: bytes(8))
    internal.on_appended = one.traces.handed_on
    assert internal.append(committed_draft(half, "orders", 0), lambda error: None)
    assert internal.append(op_draft([0], now_ms=NOW, host=bytes(8)), lambda error: None)
    first, second = one.named(APPEND)
    assert (first.trace_id, first.parent_id) == (second.trace_id, second.parent_id) == (TRACE, PARENT)
    assert second.attributes[Attribute.OFFSET] > first.attributes[Attribute.OFFSET] == 0


def test_deliveries_rolls_and_dead_letters_say_why_they_were_stored(rig: Any) -> None:
    one = rig()
    one.send(message(CONTEXT))
    place, size, _ = one.store.queue_units("orders", 0, 0, 1)[0]
    first = decode_record(one.store.read(place, size))
    draft = waiting(onward_draft(first, Onward("orders", ()), 0, bytes(8)), NOW + 5000)
    draft.properties += b"TIMER_DELIVER_MS\x01%d\x02" % (NOW + 5000)
    (stored,) = one.store.append([draft])
    waits = decode_record(one.store.read(stored.physical_offset, stored.size))
    internal = InternalAppender(one.topics, one.appender, store_host=lambda: bytes(8))
    internal.on_appended = one.traces.handed_on
    for made in (rolled(waits), delivered(waits, 0, seen_ms=NOW, now_ms=NOW + 6000)):
        assert internal.append(made, lambda error: None)
    internal.hand_on(first, Onward("%DLQ%readers", ()), lambda error: None)
    _, roll, delivery, letter = [span.attributes for span in one.named(APPEND)]
    for attributes in (roll, delivery):
        assert attributes[Attribute.DUE] == NOW + 5000
        assert attributes[Attribute.LATE] == pytest.approx(time.time() * 1000 - NOW - 5000, abs=60_000)
    assert letter[Attribute.GROUP] == "readers"
    assert Attribute.LATE not in letter


@pytest.mark.parametrize("text", [UNSAMPLED, "spam", CONTEXT.upper()])
def test_a_context_that_says_no_or_nothing_is_stored_as_sent_and_leaves_no_span(rig: Any, text: str) -> None:
    one = rig(ratio=1.0)
    one.send(message(text))
    assert one.stored()[0]["TRACE_CONTEXT"] == text
    assert one.spans() == []


def test_the_user_property_counts_and_nothing_is_added_beside_it(rig: Any) -> None:
    one = rig(ratio=1.0)
    one.send(message(traceparent=CONTEXT))
    assert "TRACE_CONTEXT" not in one.stored()[0]
    assert [(span.trace_id, span.parent_id) for span in one.spans()] == [(TRACE, PARENT)]


def test_a_message_without_a_context_is_sampled_by_the_ratio(rig: Any) -> None:
    none, all_of_them = rig(ratio=0.0), rig(ratio=1.0)
    for one in (none, all_of_them):
        one.send(message())
    assert "TRACE_CONTEXT" not in none.stored()[0]
    assert none.spans() == []
    added = parse_context(all_of_them.stored()[0]["TRACE_CONTEXT"])
    (created,) = all_of_them.named("create orders")
    (append,) = all_of_them.named(APPEND)
    assert added is not None and added.sampled
    assert created.span_id == f"{added.span_id:016x}" == append.parent_id
    assert created.parent_id == ""
    assert created.kind == "producer"
    assert created.attributes[Attribute.MESSAGE_ID] == "01" * 17


def test_with_tracing_off_the_record_is_what_rocketmq_would_store(rig: Any) -> None:
    off, unsampled = rig(ratio=None), rig(ratio=0.0)
    for one in (off, unsampled):
        one.send(message(), message(CONTEXT), message(traceparent=CONTEXT))
    assert off.store.read_log(0, 1 << 16) == unsampled.store.read_log(0, 1 << 16)
    assert [properties.get("TRACE_CONTEXT") for properties in off.stored()] == [None, CONTEXT, None]


def test_nothing_is_added_where_the_properties_would_pass_their_limit(rig: Any) -> None:
    text = len("TRACE_CONTEXT") + 2 + len(CONTEXT)
    plain = rig(ratio=None)
    plain.send(message())
    own = len("".join(f"{key}\x01{value}\x02" for key, value in plain.stored()[0].items()).encode())
    room = 32767 - own - text - len("__BORNHOST") - 2
    fits, too_long = message(), message()
    fits.system_properties.born_host = "h" * room  # counts for the record, not for the limit of users
    too_long.system_properties.born_host = "h" * (room + 1)
    one = rig(ratio=1.0)
    one.send(fits)
    one.send(too_long)
    assert ["TRACE_CONTEXT" in properties for properties in one.stored()] == [True, False]
    assert len(one.named("create orders")) == 1


def test_each_message_of_a_batch_has_its_own_context(rig: Any) -> None:
    other = CONTEXT.replace("4bf9", "4bfa")
    one = rig(ratio=1.0)
    one.send(message(CONTEXT), message(), message(other), message(UNSAMPLED))
    contexts = [properties["TRACE_CONTEXT"] for properties in one.stored()]
    assert (contexts[0], contexts[2], contexts[3]) == (CONTEXT, other, UNSAMPLED)
    assert [f"00-{span.trace_id}-{span.parent_id}-01" for span in one.named(APPEND)] == contexts[:3]
    assert len(one.named("create orders")) == 1


def test_a_refused_message_leaves_no_span(rig: Any) -> None:
    one = rig(ratio=1.0)
    with pytest.raises(MessageEmpty):
        one.send(message(), message(body=b""))
    one.appender.refusal = "no"
    with pytest.raises(NotWritable):
        one.send(message())
    one.appender.refusal = ""
    one.send(message())
    assert len(one.named("create orders")) == len(one.named(APPEND)) == 1


def test_the_creation_ends_with_the_answer_and_tells_its_error(rig: Any) -> None:
    one = rig(ratio=1.0, acks=1)
    one.store.page.replica_beat_ns = 0
    one.store.page.fed_epoch = one.store.page.epoch
    one.store.page.set_slave(0, "slave:1", 1)
    one.store.page.set_ack(0, 0)
    deferred = one.send(message())
    assert one.named("create orders") == []
    one.appender.close("it stops")
    (created,) = one.named("create orders")
    assert deferred.done
    assert created.failed
    assert created.attributes[Attribute.ERROR] == ReplicaTimeout.reason


def test_flush_spans_wait_for_the_mark_and_are_bounded(rig: Any) -> None:
    one = rig()
    traces = one.traces
    one.send(message(CONTEXT))
    first = one.store.written
    one.send(message(CONTEXT))
    assert traces.waits
    traces.flushed()
    assert one.named(FLUSH) == []
    one.flushed = first
    traces.flushed()
    (flush,) = one.named(FLUSH)
    (append, _) = one.named(APPEND)
    assert (flush.start_ns, flush.attributes[Attribute.OFFSET]) == (append.end_ns, 0)
    for _ in range(UNFLUSHED_MAX):
        traces.unflushed.append(traces.unflushed[0])
    waiting = len(traces.unflushed)
    one.send(message(CONTEXT))
    assert len(traces.unflushed) == waiting


def test_commit_spans_end_with_the_commit_offset_and_are_bounded(rig: Any) -> None:
    one = rig()
    traces = one.traces
    traces.epoch = 7
    one.send(message(CONTEXT))
    first = one.store.written
    one.send(message(CONTEXT))
    traces.committed(first - 1)
    assert one.named(COMMIT) == []
    traces.committed(first)
    (commit,) = one.named(COMMIT)
    append, _ = one.named(APPEND)
    assert (commit.start_ns, commit.attributes[Attribute.OFFSET]) == (append.end_ns, 0)
    assert append.attributes[Attribute.EPOCH] == 7
    traces.uncommitted.extend([traces.uncommitted[0]] * (UNCOMMITTED_MAX - 1))
    one.send(message(CONTEXT))
    assert len(traces.uncommitted) == UNCOMMITTED_MAX


def test_without_a_majority_no_commit_is_waited_for(rig: Any) -> None:
    one = rig()
    one.send(message(CONTEXT))
    (append,) = one.named(APPEND)
    assert not one.traces.uncommitted
    assert Attribute.EPOCH not in append.attributes


def test_a_slave_tells_of_the_records_that_it_has_dispatched(rig: Any) -> None:
    one = rig()

    class Slave:
        """A store that dispatches two records a step."""

        read_log, file_size, dispatched = one.store.read_log, one.store.file_size, 0

        def dispatch_ready(self, budget_bytes: int) -> bool:
            self.dispatched = one.store.written
            return True

    tracer, spans = memory_tracer()
    slave = Slave()
    traces = DispatchTraces(tracer, slave, name="broker-a", broker_id=1)  # type: ignore[arg-type]
    one.send(message(CONTEXT), message(UNSAMPLED))
    assert traces.dispatch_ready(1)
    assert traces.dispatch_ready(1)
    (span,) = spans()
    assert (span.name, span.trace_id, span.parent_id) == (DISPATCH, TRACE, PARENT)
    assert span.attributes[Attribute.BROKER_ID] == 1
