"""Spans of producers and consumers: names, kinds, parents and links, by the messaging conventions."""

import asyncio
from typing import Any

import pytest
from opentelemetry import trace

from support.cluster.spans import memory_provider
from support.systems.fake_cluster import running
from whimbrel.client import (
    Consumer,
    ConsumerOptions,
    Message,
    Producer,
    ProducerOptions,
    PullConsumer,
    RetryPolicy,
)
from whimbrel.errors import MessageTooLarge
from whimbrel.model.message import ReceivedMessage
from whimbrel.model.trace import parse_context
from whimbrel.pb.apache.rocketmq.v2 import definition_pb2 as v2
from whimbrel.telemetry import Attribute

GIVEN = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
LINK = tuple(GIVEN.split("-")[1:3])
FAST = RetryPolicy(initial_s=0.001, max_s=0.002)


def contexts(cluster: Any, topic: str = "t") -> list[str]:
    """Return the contexts of what was sent."""
    return [message.system_properties.trace_context for message in cluster.topics[topic][0]]


async def test_a_send_continues_the_current_trace_and_travels_with_the_message() -> None:
    provider, spans = memory_provider()
    async with running() as cluster:
        cluster.topics["t"] = [[]]
        async with Producer(cluster.address, options=ProducerOptions(tracer_provider=provider)) as producer:
            with provider.get_tracer("app").start_as_current_span("checkout"):
                await producer.send(Message(topic="t", body=b"abc", tag="new", keys=("k",)))
        send, checkout = spans()
        assert (send.name, send.kind, send.parent_id) == ("send t", "producer", checkout.span_id)
        assert contexts(cluster) == [f"00-{send.trace_id}-{send.span_id}-01"]
        expected = {
            Attribute.SYSTEM: "rocketmq",
            Attribute.OPERATION: "send",
            Attribute.OPERATION_TYPE: "send",
            Attribute.TOPIC: "t",
            Attribute.BODY_SIZE: 3,
            Attribute.TAG: "new",
        }
        assert expected.items() <= send.attributes.items()
        assert Attribute.MESSAGE_ID in send.attributes


async def test_each_message_of_a_batch_has_a_creation_to_which_the_send_links() -> None:
    provider, spans = memory_provider()
    async with running() as cluster:
        cluster.topics["t"] = [[]]
        async with Producer(cluster.address, options=ProducerOptions(tracer_provider=provider)) as producer:
            given = Message(topic="t", body=b"2", trace_context=GIVEN)
            await producer.send_batch([Message(topic="t", body=b"1"), given, Message(topic="t", body=b"3")])
        first, third, send = spans()
        assert [first.name, third.name, send.name] == ["create t", "create t", "send t"]
        assert (first.kind, send.kind) == ("producer", "client")
        own = [f"00-{span.trace_id}-{span.span_id}-01" for span in (first, third)]
        assert contexts(cluster) == [own[0], GIVEN, own[1]]
        assert send.links == ((first.trace_id, first.span_id), LINK, (third.trace_id, third.span_id))
        assert send.attributes[Attribute.BATCH_COUNT] == 3


async def test_a_context_that_the_program_gave_is_kept() -> None:
    provider, spans = memory_provider()
    async with running() as cluster:
        cluster.topics["t"] = [[]]
        async with Producer(cluster.address, options=ProducerOptions(tracer_provider=provider)) as producer:
            await producer.send(Message(topic="t", body=b"1", trace_context=GIVEN))
            await producer.send(Message(topic="t", body=b"2", properties={"traceparent": GIVEN}))
        assert contexts(cluster) == [GIVEN, ""]
        assert [(span.kind, span.links) for span in spans()] == [("client", (LINK,))] * 2


async def test_a_failed_send_says_why() -> None:
    provider, spans = memory_provider()
    options = ProducerOptions(tracer_provider=provider, retry=FAST)
    async with running() as cluster, Producer(cluster.address, options=options) as producer:
        cluster.topics["t"] = [[]]
        cluster.failures["SendMessage"].append(v2.MESSAGE_BODY_TOO_LARGE)
        with pytest.raises(MessageTooLarge):
            await producer.send(Message(topic="t", body=b"1"))
        (send,) = spans()
        assert send.failed
        assert send.attributes[Attribute.ERROR] == MessageTooLarge.reason


async def test_without_a_provider_nothing_is_added() -> None:
    async with running() as cluster, Producer(cluster.address) as producer:
        cluster.topics["t"] = [[]]
        await producer.send(Message(topic="t", body=b"1"))
        assert contexts(cluster) == [""]


async def test_receive_and_ack_are_traces_of_their_own_with_links() -> None:
    provider, spans = memory_provider()
    async with running() as cluster:
        cluster.topics["t"] = [[]]
        async with Producer(cluster.address) as producer:
            await producer.send(Message(topic="t", body=b"1", trace_context=GIVEN))
        options = ConsumerOptions(tracer_provider=provider)
        async with Consumer(cluster.address, "g", ["t"], options=options) as consumer:
            with provider.get_tracer("app").start_as_current_span("around"):
                (message,) = await consumer.receive(wait_s=1)
                await consumer.ack(message)
            await consumer.receive(wait_s=0)  # an empty one leaves nothing
        receive, ack, around = spans()
        assert (receive.name, receive.kind) == ("receive t", "client")
        assert (ack.name, ack.kind, ack.attributes[Attribute.OPERATION_TYPE]) == ("ack t", "client", "settle")
        assert receive.parent_id == ack.parent_id == ""
        assert len({span.trace_id for span in (receive, ack, around)}) == 3
        assert receive.links == ack.links == (LINK,)
        assert receive.attributes[Attribute.GROUP] == "g"
        assert receive.attributes[Attribute.MESSAGE_ID] == message.message_id


async def test_the_handler_runs_inside_its_span() -> None:
    provider, spans = memory_provider()
    current: list[Any] = []
    loop, twice = asyncio.get_running_loop(), asyncio.Event()

    def handle(message: ReceivedMessage) -> None:
        current.append(trace.get_current_span().get_span_context())
        if len(current) == 1:
            raise ValueError("not yet")
        loop.call_soon_threadsafe(twice.set)

    async with running() as cluster:
        cluster.topics["t"] = [[]]
        async with Producer(cluster.address) as producer:
            await producer.send(Message(topic="t", body=b"1", trace_context=GIVEN))
        options = ConsumerOptions(tracer_provider=provider, long_polling_s=0.05)
        async with Consumer(cluster.address, "g", ["t"], options=options) as consumer:
            consuming = asyncio.create_task(consumer.run(handle))
            async with asyncio.timeout(10):
                await twice.wait()
            consuming.cancel()  # what is in hand is finished, and acknowledged
            await asyncio.gather(consuming, return_exceptions=True)
    first, second = (span for span in spans() if span.name == "process t")
    assert [f"{context.span_id:016x}" for context in current] == [first.span_id, second.span_id]
    assert (first.kind, first.parent_id, first.links) == ("consumer", "", (LINK,))
    assert (first.failed, first.attributes[Attribute.ERROR], second.failed) == (True, "ValueError", False)
    assert "change_invisible t" in {span.name for span in spans()}


async def test_a_pull_is_a_receive() -> None:
    provider, spans = memory_provider()
    async with running() as cluster:
        cluster.topics["t"] = [[]]
        async with Producer(cluster.address) as producer:
            await producer.send(Message(topic="t", body=b"1", trace_context=GIVEN))
        options = ConsumerOptions(tracer_provider=provider)
        async with PullConsumer(cluster.address, "g", options=options) as reader:
            (queue,) = await reader.queues("t")
            result = await reader.pull(queue, 0)
    (span,) = spans()
    assert (span.name, span.links) == ("receive t", (LINK,))
    assert parse_context(result.messages[0].trace_context or "") == parse_context(GIVEN)
