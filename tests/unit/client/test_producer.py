"""The producer against a fake cluster."""

import asyncio
import re
import time
from typing import Any

import pytest

from support.systems.fake_cluster import running
from whimbrel.client import ClientOptions, Message, Producer, ProducerOptions, RetryPolicy
from whimbrel.errors import (
    BadRequest,
    ClusterUnreachable,
    FlushTimeout,
    IllegalAccessPoint,
    MessageCorrupted,
    MessageEmpty,
    MessageTooLarge,
    NoBroker,
    NotWritable,
    QueueNotFound,
    Throttled,
    TopicNotFound,
    Unavailable,
)
from whimbrel.pb.apache.rocketmq.v2 import definition_pb2 as v2
from whimbrel.rpc.client.channel import ClientTransport
from whimbrel.rpc.client.native_channel import NativeChannel

FAST = ProducerOptions(retry=RetryPolicy(initial_s=0.001, max_s=0.002))


async def test_a_message_arrives_with_all_that_was_set() -> None:
    async with running() as cluster, Producer(cluster.address) as producer:
        cluster.topics["t"] = [[]]
        message = Message(
            topic="t", body=b"x", tag="g", keys=("k1", "k2"), properties={"a": "b"}, deliver_at=None
        )
        receipt = await producer.send(message)
        stored = cluster.topics["t"][0][0]
        assert stored.body == b"x"
        assert stored.system_properties.tag == "g"
        assert list(stored.system_properties.keys) == ["k1", "k2"]
        assert dict(stored.user_properties) == {"a": "b"}
        assert stored.system_properties.body_encoding == v2.IDENTITY
        assert stored.system_properties.message_type == v2.NORMAL
        assert receipt.message_id == stored.system_properties.message_id
        assert re.fullmatch(r"01[0-9A-F]{32}", receipt.message_id)
        assert receipt.queue_offset == 0
        assert receipt.queue_id == 0


async def test_each_topic_has_turns_of_its_own_and_receipts_tell_the_queue() -> None:
    async with running() as cluster, Producer(cluster.address) as producer:
        cluster.topics |= {"t": [[], []], "u": [[], []]}
        told: dict[str, list[int | None]] = {"t": [], "u": []}
        for _ in range(4):
            for topic, queues in told.items():
                queues.append((await producer.send(Message(topic=topic, body=b"x"))).queue_id)
        assert {topic: sorted(queues, key=str) for topic, queues in told.items()} == {
            "t": [0, 0, 1, 1],
            "u": [0, 0, 1, 1],
        }
        assert [[len(queue) for queue in cluster.topics[topic]] for topic in told] == [[2, 2], [2, 2]]


async def test_the_first_turn_is_anywhere(monkeypatch: pytest.MonkeyPatch) -> None:
    async with running() as cluster:
        cluster.topics["t"] = [[], [], []]
        for first in (2, 0, 1):
            monkeypatch.setattr("whimbrel.client.producer.random.randrange", lambda _, first=first: first)
            async with Producer(cluster.address) as producer:
                assert (await producer.send(Message(topic="t", body=b"x"))).queue_id == first


async def test_a_queue_that_is_gone_is_the_brokers_choice() -> None:
    async with running() as cluster, Producer(cluster.address, options=FAST) as producer:
        cluster.topics["t"] = [[]]
        cluster.failures["SendMessage"].append(QueueNotFound("queue 7 is not one of the 4 of t"))
        assert (await producer.send(Message(topic="t", body=b"x"))).queue_id is None
        assert len(cluster.topics["t"][0]) == 1


async def test_every_call_carries_the_headers() -> None:
    async with running() as cluster, Producer(cluster.address) as producer:
        cluster.topics["t"] = [[]]
        await producer.send(Message(topic="t", body=b"1"))
        await producer.send(Message(topic="t", body=b"2"))
        sends = [call for name, call, _ in cluster.calls if name == "SendMessage"]
        for call in sends:
            assert call.metadata["x-mq-language"] == "PYTHON"
            assert call.metadata["x-mq-protocol"] == "v2"
            assert call.metadata["x-mq-client-id"] == producer.session.client_id
            assert re.fullmatch(r"\d{8}T\d{6}Z", call.metadata["x-mq-date-time"])
        assert len({call.metadata["x-mq-request-id"] for call in sends}) == 2


async def test_the_route_is_asked_for_once() -> None:
    async with running() as cluster, Producer(cluster.address) as producer:
        cluster.topics["t"] = [[]]
        for _ in range(5):
            await producer.send(Message(topic="t", body=b"x"))
        assert cluster.count("QueryRoute") == 1


@pytest.mark.parametrize("transport", ["grpcio", "native"])
async def test_the_options_choose_the_transport(transport: ClientTransport) -> None:
    options = ProducerOptions(transport=transport)
    async with running() as cluster, Producer(cluster.address, options=options) as producer:
        cluster.topics["t"] = [[]]
        assert (await producer.send(Message(topic="t", body=b"x"))).queue_offset == 0
        channels = producer.session.channels.values()
        assert {isinstance(channel, NativeChannel) for channel in channels} == {transport == "native"}


async def test_a_chosen_queue_gets_the_message() -> None:
    async with running() as cluster, Producer(cluster.address) as producer:
        cluster.topics["t"] = [[], [], []]
        queues = await producer.queues("t")
        assert (await producer.send(Message(topic="t", body=b"x"), queue=queues[0])).queue_id == 0
        receipt = await producer.send(
            Message(topic="t", body=b"y", keys=("2",)),
            selector=lambda message, queues: queues[int(message.keys[0])],
        )
        assert receipt.queue_id == 2
        assert [len(queue) for queue in cluster.topics["t"]] == [1, 0, 1]


async def test_a_batch_is_one_request_with_a_receipt_each() -> None:
    async with running() as cluster, Producer(cluster.address) as producer:
        cluster.topics["t"] = [[]]
        batch = [Message(topic="t", body=b"%d" % n) for n in range(3)]
        receipts = await producer.send_batch(batch)
        assert [receipt.queue_offset for receipt in receipts] == [0, 1, 2]
        assert cluster.count("SendMessage") == 1


async def test_a_batch_of_two_topics_is_refused_before_it_is_sent() -> None:
    async with running() as cluster, Producer(cluster.address) as producer:
        with pytest.raises(MessageCorrupted):
            await producer.send_batch([Message(topic="a", body=b"x"), Message(topic="b", body=b"x")])
        with pytest.raises(MessageCorrupted):
            await producer.send_batch([])
        with pytest.raises(MessageEmpty):
            await producer.send(Message(topic="a", body=b""))
        assert cluster.calls == []


async def test_a_refused_send_is_repeated_under_the_same_message_id() -> None:
    async with running() as cluster, Producer(cluster.address, options=FAST) as producer:
        cluster.topics["t"] = [[]]
        cluster.failures["SendMessage"] += [v2.HA_NOT_AVAILABLE, v2.TOO_MANY_REQUESTS, NotWritable("slave")]
        receipt = await producer.send(Message(topic="t", body=b"x"))
        ids = {
            request.messages[0].system_properties.message_id
            for name, _, request in cluster.calls
            if name == "SendMessage"
        }
        assert ids == {receipt.message_id}
        assert cluster.count("SendMessage") == 4


async def test_an_error_that_shares_its_code_arrives_as_its_own_class() -> None:
    options = ProducerOptions(retry=RetryPolicy(attempts_max=1))
    async with running() as cluster, Producer(cluster.address, options=options) as producer:
        cluster.topics["t"] = [[]]
        cluster.failures["SendMessage"].append(NotWritable("a slave takes no writes"))
        with pytest.raises(NotWritable, match="a slave takes no writes"):
            await producer.send(Message(topic="t", body=b"x"))


async def test_a_stored_message_is_reported_and_not_sent_again() -> None:
    async with running() as cluster, Producer(cluster.address, options=FAST) as producer:
        cluster.topics["t"] = [[]]
        cluster.failures["SendMessage"].append(v2.MASTER_PERSISTENCE_TIMEOUT)
        with pytest.raises(FlushTimeout) as caught:
            await producer.send(Message(topic="t", body=b"x"))
        assert caught.value.effect == "stored"
        assert cluster.count("SendMessage") == 1


async def test_a_bad_message_is_not_sent_again() -> None:
    async with running() as cluster, Producer(cluster.address, options=FAST) as producer:
        cluster.topics["t"] = [[]]
        cluster.failures["SendMessage"].append(v2.MESSAGE_BODY_TOO_LARGE)
        with pytest.raises(MessageTooLarge, match="as told"):
            await producer.send(Message(topic="t", body=b"x"))
        assert cluster.count("SendMessage") == 1


async def test_an_unknown_topic_is_an_error_of_its_own() -> None:
    async with running() as cluster, Producer(cluster.address, options=FAST) as producer:
        with pytest.raises(TopicNotFound, match="no topic t"):
            await producer.send(Message(topic="t", body=b"x"))
        assert cluster.count("QueryRoute") == 2


async def test_a_topic_without_writable_queues_is_waited_for_and_then_refused() -> None:
    async with running() as cluster, Producer(cluster.address, options=FAST) as producer:
        cluster.topics["t"] = [[]]
        cluster.writable = False
        with pytest.raises(NotWritable):
            await producer.send(Message(topic="t", body=b"x"))


async def test_a_route_survives_a_nameserver_that_can_not_be_asked() -> None:
    options = ProducerOptions(route_ttl_s=0.0, retry=FAST.retry)
    async with running() as cluster, Producer(cluster.address, options=options) as producer:
        cluster.topics["t"] = [[]]
        await producer.send(Message(topic="t", body=b"x"))
        cluster.failures["QueryRoute"] += [v2.INTERNAL_SERVER_ERROR] * 10
        await producer.send(Message(topic="t", body=b"y"))
        assert len(cluster.topics["t"][0]) == 2


async def test_the_next_nameserver_is_asked_when_one_is_down() -> None:
    async with running() as cluster:
        cluster.topics["t"] = [[]]
        async with Producer(f"127.0.0.1:1;{cluster.address}", options=FAST) as producer:
            await producer.send(Message(topic="t", body=b"x"))
        assert len(cluster.topics["t"][0]) == 1


async def test_no_server_is_a_typed_error_that_names_the_address() -> None:
    async with Producer("127.0.0.1:1", options=FAST) as producer:
        with pytest.raises(Unavailable, match=r"127\.0\.0\.1:1: connection refused"):
            await producer.send(Message(topic="t", body=b"x"))


async def test_a_first_contact_is_tried_as_often_as_one_send_and_tells_what_was_tried() -> None:
    async with Producer("127.0.0.1:1;127.0.0.1:2", options=FAST) as producer:
        for _ in range(2):  # the next send tries anew
            with pytest.raises(ClusterUnreachable) as caught:
                await producer.send(Message(topic="t", body=b"x"))
            assert re.fullmatch(
                r"no answer from 127\.0\.0\.1:1: connection refused;"
                r" no answer from 127\.0\.0\.1:2: connection refused \(tried 5 times, for 0\.\d s\)",
                str(caught.value),
            )


async def test_a_server_that_says_nothing_fails_the_first_contact_in_its_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("whimbrel.client.retry.FIRST_CONTACT_S", 0.05)
    silent = await asyncio.start_server(lambda reader, writer: None, "127.0.0.1", 0)
    address = "{}:{}".format(*silent.sockets[0].getsockname())
    async with silent, Producer(address, options=FAST) as producer:
        with pytest.raises(ClusterUnreachable, match=rf"no answer from {address} within .* \(tried "):
            await producer.send(Message(topic="t", body=b"x"))


async def test_a_client_that_has_reached_the_cluster_is_as_patient_as_before() -> None:
    async with running() as cluster, Producer(cluster.address, options=FAST) as producer:
        cluster.topics["t"] = [[]]
        await producer.send(Message(topic="t", body=b"x"))
        cluster.topics["u"] = [[]]
        cluster.failures["QueryRoute"] += [v2.INTERNAL_SERVER_ERROR] * 12  # of 25, in five sends' tries
        await producer.send(Message(topic="u", body=b"x"))
        assert producer.session.contact.reached


async def test_a_nameserver_without_brokers_is_no_missing_topic() -> None:
    async with running() as cluster, Producer(cluster.address, options=FAST) as producer:
        cluster.master_registered = False
        with pytest.raises(
            NoBroker, match=f"no broker is registered with the nameserver at {cluster.address}"
        ):
            await producer.send(Message(topic="t", body=b"x"))


def test_a_malformed_endpoint_is_refused_at_once() -> None:
    with pytest.raises(IllegalAccessPoint, match="HOST:PORT"):
        Producer("nonsense")


async def test_oneway_sends_are_bounded_and_flushed() -> None:
    options = ProducerOptions(oneway_max=2)
    async with running() as cluster, Producer(cluster.address, options=options) as producer:
        cluster.topics["t"] = [[]]
        producer.send_oneway(Message(topic="t", body=b"1"))
        producer.send_oneway(Message(topic="t", body=b"2"))
        with pytest.raises(Throttled):
            producer.send_oneway(Message(topic="t", body=b"3"))
        await producer.flush()
        assert len(cluster.topics["t"][0]) == 2
        assert producer.oneway_failed == 0


async def test_a_failed_oneway_send_is_counted() -> None:
    async with running() as cluster, Producer(cluster.address, options=FAST) as producer:
        producer.send_oneway(Message(topic="missing", body=b"1"))
        await producer.flush()
        assert producer.oneway_failed == 1


async def test_brokers_learn_the_settings_and_the_end() -> None:
    async with running() as cluster:
        cluster.topics["t"] = [[]]
        async with Producer(cluster.address, topics=["t", "u"]) as producer:
            await producer.send(Message(topic="t", body=b"x"))
            stream = producer.session.streams
            assert len(stream) == 1
            while not producer.session.server.backoff_s:
                await producer.send(Message(topic="t", body=b"x"))
        settings = cluster.commands[0].settings
        assert settings.client_type == v2.PRODUCER
        assert [topic.name for topic in settings.publishing.topics] == ["t", "u"]
        assert settings.user_agent.language == v2.PYTHON
        assert cluster.count("NotifyClientTermination") == 1


async def test_a_closed_producer_refuses_to_send() -> None:
    async with running() as cluster:
        cluster.topics["t"] = [[]]
        producer = Producer(cluster.address, options=FAST)
        await producer.start()
        await producer.send(Message(topic="t", body=b"x"))
        await producer.close()
        await producer.close()
        with pytest.raises(Exception, match="not started, or closed"):
            await producer.send(Message(topic="t", body=b"x"))


def test_options_have_defaults_for_everything() -> None:
    assert ClientOptions().request_timeout_s == 3.0
    assert ProducerOptions().send_timeout_s > 5.0


async def test_a_delayed_message_keeps_its_time_over_all_tries_and_can_be_recalled() -> None:
    async with running() as cluster, Producer(cluster.address, options=FAST) as producer:
        cluster.topics["t"] = [[]]
        cluster.failures["SendMessage"].append(NotWritable("soon"))
        began = time.time()
        receipt = await producer.send(Message(topic="t", body=b"x", delay_s=60))
        sent = [
            request.messages[0].system_properties
            for name, _, request in cluster.calls
            if name == "SendMessage"
        ]
        due = {one.delivery_timestamp.ToMilliseconds() for one in sent}
        assert len(sent) == 2
        assert len(due) == 1
        assert 59 < due.pop() / 1000 - began < 70
        assert sent[0].message_type == v2.DELAY
        assert receipt.recall_handle
        assert await producer.recall("t", receipt.recall_handle) == receipt.message_id
        assert await producer.recall("t", receipt.recall_handle) == receipt.message_id
        with pytest.raises(BadRequest, match="malformed"):
            await producer.recall("t", "nonsense")


async def test_a_priority_leaves_the_queue_to_the_broker() -> None:
    async with running() as cluster, Producer(cluster.address) as producer:
        cluster.topics["t"] = [[], []]
        receipt = await producer.send(Message(topic="t", body=b"x", priority=0))
        (sent,) = (request.messages[0] for name, _, request in cluster.calls if name == "SendMessage")
        assert sent.system_properties.HasField("priority")
        assert sent.system_properties.message_type == v2.PRIORITY
        assert receipt.queue_id is None


@pytest.mark.parametrize(
    "fields",
    [
        {"message_group": "g", "deliver_at": 1.0},
        {"message_group": "g", "priority": 1},
        {"delay_s": 1.0, "deliver_at": 1.0},
        {"delay_s": 1.0, "priority": 1},
        {"priority": -1},
    ],
)
def test_a_message_is_of_one_kind(fields: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"priority is -1|only one of"):
        Message(topic="t", body=b"x", **fields)


@pytest.mark.parametrize("fields", [{"priority": 1.5}, {"delay_s": "10s"}, {"deliver_at": "tomorrow"}])
def test_times_and_priorities_are_numbers(fields: dict[str, Any]) -> None:
    with pytest.raises(TypeError):
        Message(topic="t", body=b"x", **fields)
