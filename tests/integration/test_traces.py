"""Traces across real processes: the whole tree of spans of a message, as `telemetry.TREE` draws it.

Spans of all processes come to an OTLP receiver of the test; those of the client stay in its memory. The story
that docs/tracing.md shows is written by `test_docs_show_a_story_as_it_is_told` when
WHIMBREL_TEST_WRITE_DOCS=1.
"""

import asyncio
import json
import os
import re
import signal
import subprocess
import sys
import time
import urllib.request
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from support.cluster.broker_api import message
from support.cluster.elections import ElectedGroup
from support.cluster.processes import COMMAND, Cluster, dev, environment
from support.cluster.spans import Receiver, memory_provider
from support.history.sdk_notes import SdkLoad
from support.remoting.wire import Wire
from support.waiting import until
from whimbrel.cli.message_trace import MessageTrace, Span, lines, structure, trace_of
from whimbrel.client import (
    Admin,
    Consumer,
    ConsumerOptions,
    Message,
    MessageType,
    Producer,
    ProducerOptions,
    Resolution,
)
from whimbrel.model.message import ReceivedMessage
from whimbrel.pb.apache.rocketmq.v2 import definition_pb2 as v2
from whimbrel.telemetry import (
    APPEND,
    COMMIT,
    DISPATCH,
    ELECTION,
    FRAME,
    SLAVE_COMMIT,
    STAGES,
    TREE,
    Attribute,
)

pytestmark = pytest.mark.process

DOCS = Path(__file__).resolve().parents[2] / "docs" / "tracing.md"
TOLD_S = 20.0  # spans leave within a second; a machine with all cores taken needs longer


class Traced:
    """A cluster whose spans come here, beside those of a client."""

    def __init__(self, cluster: Cluster, receiver: Receiver) -> None:
        self.cluster, self.receiver = cluster, receiver
        self.provider, self.own = memory_provider()

    def spans(self) -> list[Span]:
        return [*self.own(), *self.receiver.spans()]

    def trace(self, message_id: str, complete: Callable[[MessageTrace], bool]) -> MessageTrace:
        """Return the story of a message once it is complete."""

        def told() -> MessageTrace | None:
            found = trace_of(message_id, self.spans())
            return found if found is not None and complete(found) else None

        try:
            trace: MessageTrace = until(told, timeout=TOLD_S, what="the whole story")
        except AssertionError:
            found = trace_of(message_id, self.spans())
            print(lines(found) if found else f"nothing of {len(self.spans())} spans is about {message_id}")
            raise
        return trace

    async def send(self, *messages: Message) -> list[str]:
        """Send a message, or a batch; return the ids."""
        options = ProducerOptions(tracer_provider=self.provider)
        async with Producer(self.cluster.endpoint, options=options) as producer:
            return [receipt.message_id for receipt in await producer.send_batch(messages)]

    async def consume(self, count: int, topic: str = "orders") -> None:
        """Have a handler called for so many messages, and acknowledge them."""
        enough, seen = asyncio.Event(), []

        async def handle(message: ReceivedMessage) -> None:
            seen.append(message)
            if len(seen) == count:
                enough.set()

        options = ConsumerOptions(tracer_provider=self.provider)
        async with Consumer(self.cluster.endpoint, "readers", [topic], options=options) as consumer:
            consuming = asyncio.create_task(consumer.run(handle))
            async with asyncio.timeout(30):
                await enough.wait()
            consuming.cancel()
            await asyncio.gather(consuming, return_exceptions=True)


@contextmanager
def traced_cluster(root: Path, *, ratio: float = 0.0, slaves: int = 1, **broker: object) -> Iterator[Traced]:
    with Receiver() as receiver:
        settings: dict[str, object] = {"trace_to": receiver.target}
        master_only = {"trace_ratio": ratio} if ratio else {}
        with Cluster(
            root, slaves=slaves, broker={**settings, **master_only, **broker}, replicator=settings
        ) as cluster:
            cluster.wait_usable()
            yield Traced(cluster, receiver)


def names(trace: MessageTrace) -> Counter[str]:
    return Counter(span.name for span in trace.spans)


def whole(linked: int) -> Callable[[MessageTrace], bool]:
    """Return what tells a story with all stages and so many linked spans."""
    return lambda trace: trace.root is not None and not trace.missing and len(trace.linked) >= linked


def check_times(trace: MessageTrace) -> None:
    """Whatever a span's cause is must have begun before it; all clocks here are one."""
    begins = {span.name: span.start_ns for span in trace.stages}
    order = (STAGES[0], STAGES[2], STAGES[3])
    assert [begins[name] for name in order] == sorted(begins[name] for name in order)
    assert all(span.end_ns >= span.start_ns for span in trace.spans)


@pytest.mark.parametrize("replication", ["sync", "async"])
async def test_the_story_of_a_message_is_the_tree(tmp_path: Path, replication: str) -> None:
    with traced_cluster(tmp_path, replication=replication) as traced:
        (message_id,) = await traced.send(Message(topic="orders", body=b"hello"))
        await traced.consume(1)
        trace = traced.trace(message_id, whole(linked=4))
        found, expected = rows(structure(trace)), rows(TREE.format(topic="orders"))
        if replication == "async":  # a consumer may have the message before the slave gets its frame
            assert in_any_order(found) == in_any_order(expected)
        else:
            assert found == expected
        check_times(trace)
        assert trace.root is not None
        for span in trace.stages:
            assert span.attributes[Attribute.BROKER] == "broker-a"
            assert span.attributes[Attribute.OFFSET] == 0
            assert (span.trace_id, span.parent_id) == (trace.trace_id, trace.root.span_id)
            assert span.attributes.get(Attribute.ATTEMPT, 1) == 1
        assert len({span.trace_id for span in trace.linked} | {trace.trace_id}) == 5  # traces of their own
        if replication == "sync":  # the answer waited for the slave
            assert trace.root.end_ns >= next(s.end_ns for s in trace.stages if s.name == STAGES[3])


def rows(drawn: str) -> list[list[str]]:
    """Return a drawing without its alignment, which depends on the topic's name."""
    return [line.split() for line in drawn.splitlines()]


def in_any_order(drawn: list[list[str]]) -> tuple[list[list[str]], list[list[str]]]:
    """Return the rows of the tree, and those that are linked, sorted."""
    at = next(index for index, row in enumerate(drawn) if row[0] == "linked:")
    return drawn[:at], sorted([drawn[at][1:], *drawn[at + 1 :]])


async def test_a_batch_has_a_story_for_each_message(tmp_path: Path) -> None:
    with traced_cluster(tmp_path) as traced:
        ids = await traced.send(*(Message(topic="orders", body=b"%d" % at) for at in range(3)))
        message_trace = [traced.trace(message_id, whole(linked=2)) for message_id in ids]
        for trace in message_trace:
            assert trace.root is not None
            assert trace.root.name == "create orders"
            # The batch goes out in one frame, and was sent with one call: both link to all three.
            assert names(trace) == Counter(["create orders", *STAGES, FRAME, "send orders"])
        assert len({trace.trace_id for trace in message_trace}) == 3
        assert len({span.span_id for trace in message_trace for span in trace.linked}) == 2
        offsets = [trace.stages[0].attributes[Attribute.OFFSET] for trace in message_trace]
        assert offsets == sorted(set(offsets))


async def test_a_slave_that_comes_back_is_sent_the_message_again_as_a_further_attempt(tmp_path: Path) -> None:
    with traced_cluster(tmp_path) as traced:
        await traced.send(Message(topic="orders", body=b"first"))
        slave = traced.cluster.slave_replicators[0]
        slave.signal(signal.SIGSTOP)  # its kernel takes the frame, it does not
        (message_id,) = await traced.send(Message(topic="orders", body=b"second"))
        transfers = "whimbrel.ha.transfer"
        traced.trace(message_id, lambda trace: names(trace)[transfers] == 1)
        slave.kill()
        slave.start()
        trace = traced.trace(
            message_id, lambda trace: whole(linked=2)(trace) and names(trace)[transfers] == 2
        )
        attempts = {
            name: [span.attributes[Attribute.ATTEMPT] for span in trace.stages if span.name == name]
            for name in (transfers, "whimbrel.ha.acknowledge")
        }
        assert attempts == {transfers: [1, 2], "whimbrel.ha.acknowledge": [2]}
        assert names(trace)["whimbrel.ha.append"] == names(trace)["whimbrel.store.dispatch"] == 1
        assert len({span.span_id for span in trace.spans}) == len(trace.spans)


async def test_two_slaves_have_a_branch_each(tmp_path: Path) -> None:
    with traced_cluster(tmp_path, slaves=2) as traced:
        (message_id,) = await traced.send(Message(topic="orders", body=b"x"))
        trace = traced.trace(
            message_id,
            lambda trace: not trace.missing and all(names(trace)[name] == 2 for name in STAGES[2:]),
        )
        assert names(trace)[STAGES[0]] == names(trace)[STAGES[1]] == 1
        slaves = {span.attributes[Attribute.SLAVE] for span in trace.stages if span.name == STAGES[2]}
        brokers = {span.attributes[Attribute.BROKER_ID] for span in trace.stages if span.name == STAGES[5]}
        assert (len(slaves), brokers) == (2, {1, 2})


def records(trace: MessageTrace) -> list[tuple[str, tuple[str, ...]]]:
    """Return the topics of a story's records in the order of the log, each with its stages."""
    offsets = sorted({span.attributes[Attribute.OFFSET] for span in trace.stages})
    of = {at: [span for span in trace.stages if span.attributes[Attribute.OFFSET] == at] for at in offsets}
    return [
        (spans[0].attributes[Attribute.TOPIC], tuple(span.name for span in spans)) for spans in of.values()
    ]


def append_of(trace: MessageTrace, topic: str) -> Span:
    """Return the span with which the record of a topic was stored."""
    (span,) = [
        span for span in trace.stages if (span.name, span.attributes[Attribute.TOPIC]) == (STAGES[0], topic)
    ]
    return span


def every_stage_of(*topics: str) -> Callable[[MessageTrace], bool]:
    """Return what tells a story in which each of these records has all of its stages."""
    return lambda trace: records(trace) == [(topic, STAGES) for topic in topics]


async def make(traced: Traced, topic: str, message_type: MessageType) -> None:
    async with Admin(traced.cluster.endpoint) as admin:
        await admin.create_topic(topic, message_type=message_type, queues=1)


async def test_a_delayed_message_is_followed_through_its_waiting_to_the_slave_and_to_its_consumer(
    tmp_path: Path,
) -> None:
    with traced_cluster(tmp_path) as traced:
        await make(traced, "later", MessageType.DELAY)
        due = round(time.time() + 1.5, 3)
        (message_id,) = await traced.send(Message(topic="later", body=b"x", deliver_at=due))
        await traced.consume(1, topic="later")
        stored = every_stage_of("rmq_sys_wheel_timer", "later")
        trace = traced.trace(message_id, lambda trace: stored(trace) and names(trace)["process later"] == 1)
        delivery = append_of(trace, "later").attributes
        assert delivery[Attribute.DUE] == round(due * 1000)
        assert 0 <= delivery[Attribute.LATE] < 10_000
        assert delivery[Attribute.LATE] <= (trace.spans[-1].end_ns / 1e9 - due) * 1000
        told = lines(trace)
        assert "2 records" in told
        assert "topic later, broker broker-a, queue 0, offset 0" in told


async def test_half_commit_and_dead_letter_are_one_story(tmp_path: Path) -> None:
    with traced_cluster(tmp_path) as traced:
        await make(traced, "paid", MessageType.TRANSACTION)
        options = ProducerOptions(tracer_provider=traced.provider)
        async with Producer(
            traced.cluster.endpoint, check=lambda message: Resolution.COMMIT, options=options
        ) as producer:
            transaction = await producer.send_in_transaction(Message(topic="paid", body=b"x"))
            await transaction.commit()
        async with Consumer(
            traced.cluster.endpoint,
            "readers",
            ["paid"],
            options=ConsumerOptions(tracer_provider=traced.provider),
        ) as consumer:
            (message,) = await consumer.receive(wait_s=10)
            await consumer.dead_letter(message)
        stored = every_stage_of("RMQ_SYS_TRANS_HALF_TOPIC", "paid", "%DLQ%readers")
        trace = traced.trace(transaction.receipt.message_id, stored)
        assert append_of(trace, "%DLQ%readers").attributes[Attribute.GROUP] == "readers"
        assert Attribute.GROUP not in append_of(trace, "paid").attributes
        assert names(trace)["receive paid"] == 1


def test_the_brokers_own_samples_follow_messages_of_an_sdk_that_sends_no_context(tmp_path: Path) -> None:
    with traced_cluster(tmp_path, ratio=1.0) as traced:
        load = SdkLoad("send", traced.cluster.endpoint, "orders", tmp_path, "1", "100")
        try:
            load.wait_for(3, "three sends", 30)
        finally:
            load.end()
        for _, _, _, message_id, *_ in load.notes("sent")[:3]:
            trace = traced.trace(message_id, whole(linked=1))
            assert trace.root is not None
            assert (trace.root.name, trace.root.process) == ("create orders", "master broker")
            assert names(trace) == Counter(["create orders", *STAGES, FRAME])


def test_messages_of_4x_clients_are_sampled_too_and_a_context_of_theirs_is_followed(tmp_path: Path) -> None:
    context = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
    with traced_cluster(tmp_path, ratio=1.0) as traced, Wire(traced.cluster.master.grpc) as wire:
        wire.send("orders", b"x", i="UNIQ_KEY\x01SAMPLED")
        wire.send("orders", b"x", i=f"UNIQ_KEY\x01TRACED\x02TRACE_CONTEXT\x01{context}")
        trace = traced.trace("SAMPLED", whole(linked=1))
        assert trace.root is not None and trace.root.name == "create orders"
        assert names(trace) == Counter(["create orders", *STAGES, FRAME])
        traced.trace("TRACED", lambda trace: Counter(STAGES) <= names(trace))


async def test_an_unsampled_context_leaves_no_span_anywhere(tmp_path: Path) -> None:
    with traced_cluster(tmp_path, ratio=1.0) as traced:
        context = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-00"
        await traced.send(Message(topic="orders", body=b"x", trace_context=context))
        (message_id,) = await traced.send(Message(topic="orders", body=b"y"))
        traced.trace(message_id, whole(linked=1))
        assert "4bf92f3577b34da6a3ce929d0e0e4736" not in {span.trace_id for span in traced.spans()}


def test_dev_traces_and_the_command_tells_the_story(tmp_path: Path) -> None:
    process = dev(tmp_path / "dev", tmp_path / "log", "--trace", "1", "--metrics")

    def command(*arguments: str) -> str:
        done = subprocess.run(
            [sys.executable, "-c", COMMAND, *arguments],
            env=environment() | {"WHIMBREL_DEV_DIR": str(tmp_path / "dev")},
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    try:
        until(lambda: (tmp_path / "dev" / "cluster.json").exists(), timeout=30, what="the cluster")
        message_id = re.findall(r"01[0-9A-F]{32}", command("send", "orders", "hello"))[0]
        command("receive", "orders", "--group", "readers")
        told = command("trace", message_id, "--wait", "20")
        cluster = json.loads((tmp_path / "dev" / "cluster.json").read_text())
        for entry in cluster["processes"]:
            with urllib.request.urlopen(f"http://{entry['metrics']}/metrics", timeout=10) as scraped:
                assert b"whimbrel_build_info" in scraped.read(), entry["name"]
    finally:
        process.send_signal(signal.SIGINT)
        process.wait(20)
    found = [line for line in told.splitlines() if " ms " in line or line.endswith(" ms")]
    expected = [line for line in TREE.format(topic="orders").splitlines() if "process" not in line]
    assert [line.split("  ")[0] for line in found] == [line.split("  ")[0] for line in expected]


def test_where_a_majority_commits_the_story_has_the_commits_and_elections_are_traces(tmp_path: Path) -> None:
    with Receiver() as receiver, ElectedGroup(tmp_path, trace_to=receiver.target, trace_ratio=1.0) as group:

        def story(number: int) -> MessageTrace:
            """Send a message to the leader; return what is told of it."""
            leader, message_id = group.await_leader(), f"{number:02X}" * 17
            peer = leader.peer
            sent = message("t", b"hello", message_id=message_id)

            def held() -> bool:
                return bool(peer("SendMessage", messages=[sent]).status.code == v2.OK)

            until(held, timeout=10, what="a send that holds")

            def told() -> MessageTrace | None:
                found = trace_of(message_id, receiver.spans())
                return found if found is not None and not found.missing and complete(found) else None

            def complete(found: MessageTrace) -> bool:
                slaves = Counter(span.name for span in found.stages if span.role == "slave")
                return slaves[SLAVE_COMMIT] == slaves[DISPATCH] == len(running) - 1

            running = [member for member in group.members.values() if member.broker.running]
            found: MessageTrace = until(told, timeout=TOLD_S, what="the whole story")
            assert leader.number == named(found, COMMIT)[0].attributes[Attribute.BROKER_ID]
            return found

        first = story(1)
        assert [span.name for span in first.stages if span.name == COMMIT] == [COMMIT]
        slaves = {span.attributes[Attribute.BROKER_ID] for span in named(first, SLAVE_COMMIT)}
        leader = group.await_leader()
        assert slaves == {1, 2, 3} - {leader.number}
        assert named(first, COMMIT)[0].end_ns <= min(span.end_ns for span in named(first, SLAVE_COMMIT))
        leader.kill()
        second = story(2)
        epochs = [named(each, APPEND)[0].attributes[Attribute.EPOCH] for each in (first, second)]

        def elected() -> list[Span]:
            return [
                span
                for span in receiver.spans()
                if span.name == ELECTION and not span.failed and span.attributes[Attribute.EPOCH] == epochs[1]
            ]

        (election,) = until(elected, timeout=TOLD_S, what="the election")
        assert epochs[0] < epochs[1]
        assert election.attributes[Attribute.BROKER_ID] != leader.number
        assert election.attributes[Attribute.WHY]
        steps = [span.name for span in receiver.spans() if span.trace_id == election.trace_id]
        assert sorted(steps) == sorted(
            [ELECTION, *(f"{ELECTION}.{step}" for step in ("asking", "swapping", "sealing", "opening"))]
        )


def named(trace: MessageTrace, name: str) -> list[Span]:
    """Return the stages of one name."""
    return [span for span in trace.stages if span.name == name]


async def test_docs_show_a_story_as_it_is_told(tmp_path: Path) -> None:
    with traced_cluster(tmp_path, replication="sync") as traced:
        for _ in range(20):  # the first messages of a broker pay for caches that are cold
            (message_id,) = await traced.send(Message(topic="orders", body=b"hello"))
        await traced.consume(20)
        told = lines(traced.trace(message_id, whole(linked=4)))
    begin, end = "<!-- story: generated -->\n```\n", "```\n<!-- end -->"
    text = DOCS.read_text(encoding="utf-8")
    before, shown, after = (text.partition(begin)[0], *text.partition(begin)[2].partition(end)[::2])
    if os.environ.get("WHIMBREL_TEST_WRITE_DOCS"):
        DOCS.write_text(before + begin + told + end + after, encoding="utf-8")
        return
    assert first_words(shown) == first_words(told)


def first_words(told: str) -> list[Any]:
    """Return names and processes of a story as people see it."""
    return [re.split(r" {2,}", line)[:2] for line in told.splitlines()[2:]]
