"""The reader against fake clusters: offsets, streams, and the way to a suggested slave."""

import asyncio
import socket
from typing import Any

import pytest

from support.systems.fake_cluster import FakeCluster, running
from whimbrel.client import ConsumerOptions, Message, Producer, PullConsumer, RetryPolicy, consumer
from whimbrel.errors import IllegalOffset, RequestTimeout
from whimbrel.model.message import PullResult
from whimbrel.pb.apache.rocketmq.v2 import definition_pb2 as v2

FAST = ConsumerOptions(retry=RetryPolicy(initial_s=0.001, max_s=0.002))


async def fill(cluster: FakeCluster, count: int) -> None:
    cluster.topics["t"] = [[]]
    async with Producer(cluster.address) as producer:
        await producer.send_batch([Message(topic="t", body=b"%d" % number) for number in range(count)])


async def test_a_pull_reads_from_an_offset_on_and_says_where_to_go_on() -> None:
    async with running() as cluster, PullConsumer(cluster.address, "g") as reader:
        await fill(cluster, 5)
        (queue,) = await reader.queues("t")
        result = await reader.pull(queue, 1, count=2)
        assert [message.body for message in result.messages] == [b"1", b"2"]
        assert result.next_offset == 3
        assert result.messages[0].receipt_handle == ""


async def test_a_pull_that_waits_goes_on_at_another_member_where_one_does_not_answer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(consumer, "MEMBER_POLL_S", 0.1)
    monkeypatch.setattr(consumer, "MEMBER_MARGIN_S", 0.2)
    with socket.create_server(("127.0.0.1", 0)) as hanging:
        async with running() as cluster, PullConsumer(cluster.address, "g", options=FAST) as reader:
            await fill(cluster, 3)
            cluster.first_port = hanging.getsockname()[1]
            (queue,) = await reader.queues("t")
            async with asyncio.timeout(10):
                with pytest.raises(RequestTimeout, match="no answer"):
                    await reader.pull(queue, 0, wait_s=20)
                assert (await reader.pull(queue, 0, wait_s=20)).next_offset == 3
                # Who answers at once that there is nothing does not wait, and is not asked again and again.
                assert (await reader.pull(queue, 3, wait_s=20)).messages == ()
            assert cluster.count("PullMessage") == 2


async def test_a_pull_waits_on_by_short_calls_where_there_are_other_members(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(consumer, "MEMBER_POLL_S", 0.05)
    async with running() as cluster, PullConsumer(cluster.address, "g", options=FAST) as reader:
        await fill(cluster, 1)
        cluster.first_port = int(cluster.address.rpartition(":")[2])  # the same broker twice
        (queue,) = await reader.queues("t")
        asked = []

        async def wait(*arguments: Any) -> PullResult:
            asked.append(arguments[3])
            await asyncio.sleep(0.05)
            return PullResult(messages=(), next_offset=1)

        monkeypatch.setattr(reader, "pull_once", wait)
        assert (await reader.pull(queue, 1, wait_s=0.2)).next_offset == 1
        assert len(asked) >= 2 and asked[0] > asked[-1] > 0


async def test_an_offset_outside_the_queue_is_an_error_of_its_own() -> None:
    async with running() as cluster, PullConsumer(cluster.address, "g") as reader:
        await fill(cluster, 1)
        (queue,) = await reader.queues("t")
        with pytest.raises(IllegalOffset):
            await reader.pull(queue, 7)


async def test_a_stream_yields_everything_once_in_order_across_failures() -> None:
    async with running() as cluster, PullConsumer(cluster.address, "g", options=FAST) as reader:
        await fill(cluster, 10)
        (queue,) = await reader.queues("t")
        seen = []
        async for message in reader.stream(queue, 0, count=3, until=10):
            if message.queue_offset == 4:
                cluster.failures["PullMessage"] += [v2.INTERNAL_SERVER_ERROR] * 2
            seen.append(message.queue_offset)
        assert seen == list(range(10))


async def test_offsets_are_asked_for_and_committed() -> None:
    async with running() as cluster, PullConsumer(cluster.address, "g") as reader:
        await fill(cluster, 4)
        (queue,) = await reader.queues("t")
        assert await reader.offset(queue, "earliest") == 0
        assert await reader.offset(queue, "latest") == 4
        assert await reader.committed(queue) is None
        await reader.commit(queue, 3)
        assert await reader.committed(queue) == 3


async def test_a_suggested_slave_is_asked_until_it_is_gone() -> None:
    async with running() as master, running() as slave, PullConsumer(master.address, "g") as reader:
        await fill(master, 4)
        slave.topics = master.topics
        master.slave_address = slave.address
        master.suggest = slave.suggest = "1"
        (queue,) = await reader.queues("t")
        result = await reader.pull(queue, 0, count=1)
        assert result.suggested_broker_id == 1
        assert slave.count("PullMessage") == 0
        result = await reader.pull(queue, 1, count=1)
        assert slave.count("PullMessage") == 1
        assert (await reader.pull(queue, 1, follow=False)).messages
        assert slave.count("PullMessage") == 1

        slave.suggest = "0"
        await reader.pull(queue, 2, count=1)
        assert slave.count("PullMessage") == 2
        await reader.pull(queue, 3, count=1)
        assert slave.count("PullMessage") == 2


async def test_a_suggested_slave_that_is_down_means_the_master_again() -> None:
    async with running() as master, PullConsumer(master.address, "g") as reader:
        await fill(master, 4)
        master.slave_address = "127.0.0.1:1"
        master.suggest = "1"
        (queue,) = await reader.queues("t")
        await reader.pull(queue, 0)
        result = await reader.pull(queue, 1)
        assert len(result.messages) == 3


async def test_a_suggested_broker_that_nobody_knows_means_the_master_again() -> None:
    async with running() as master, PullConsumer(master.address, "g") as reader:
        await fill(master, 2)
        master.suggest = "5"
        (queue,) = await reader.queues("t")
        await reader.pull(queue, 0)
        assert (await reader.pull(queue, 1)).messages
