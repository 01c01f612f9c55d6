"""The consumer against a fake cluster: receive, acknowledge, hide, and the subscription loop."""

import asyncio
import contextlib
import socket
import zlib
from collections.abc import AsyncIterator

import pytest

from support.systems.fake_cluster import FakeCluster, running
from support.waiting import eventually
from whimbrel.client import (
    Consumer,
    ConsumerOptions,
    Message,
    Producer,
    PullConsumer,
    ReceivedMessage,
    RetryPolicy,
    SqlFilter,
    consumer,
    producer,
)
from whimbrel.client.subscription_loop import SubscriptionLoop
from whimbrel.errors import (
    BadRequest,
    ClientError,
    ClusterUnreachable,
    InvalidReceiptHandle,
    NotSupported,
    Unavailable,
)
from whimbrel.model.limits import INFLATED_BYTES_MAX
from whimbrel.pb.apache.rocketmq.v2 import definition_pb2 as v2

FAST = ConsumerOptions(retry=RetryPolicy(initial_s=0.001, max_s=0.002), close_grace_s=1.0)


@contextlib.asynccontextmanager
async def filled(count: int, queues: int = 2) -> AsyncIterator[FakeCluster]:
    async with running() as cluster:
        cluster.topics["t"] = [[] for _ in range(queues)]
        async with Producer(cluster.address) as producer:
            for number in range(count):
                await producer.send(Message(topic="t", body=b"%d" % number, tag="g", keys=("k",)))
        cluster.calls.clear()
        cluster.commands.clear()
        yield cluster


async def test_received_messages_come_as_they_were_sent() -> None:
    async with filled(1, queues=1) as cluster, Consumer(cluster.address, "g", {"t": "*"}) as consumer:
        (message,) = await consumer.receive()
        assert message.body == b"0"
        assert message.tag == "g"
        assert message.keys == ("k",)
        assert message.delivery_attempt == 1
        assert message.stored_at == 1_700_000_000
        assert (message.queue_id, message.queue_offset) == (0, 0)
        assert message.queue.broker_name == "broker-a"


def damage(cluster: FakeCluster, *numbers: int) -> None:
    """Have messages of the first queue say that their bodies are compressed."""
    for number in numbers:
        cluster.topics["t"][0][number].system_properties.body_encoding = v2.GZIP


BAD_BODIES = {
    "no zlib stream": b"\x78\x9cgarbage",
    "a stream that breaks off": zlib.compress(bytes(1000))[:-5],
    "a bomb": zlib.compress(bytes(INFLATED_BYTES_MAX + 1)),
}


@pytest.mark.parametrize("body", BAD_BODIES.values(), ids=BAD_BODIES)
async def test_one_bad_body_is_marked_and_takes_no_other_message_with_it(body: bytes) -> None:
    async with filled(32, queues=1) as cluster, Consumer(cluster.address, "g", ["t"]) as consumer:
        cluster.topics["t"][0][7].body = body
        damage(cluster, 7)
        messages = await consumer.receive(32)
        assert [one.queue_offset for one in messages if one.corrupted] == [7]
        assert messages[7].body == body  # as it is stored
        assert [one.body for one in messages if not one.corrupted] == [b"%d" % n for n in range(32) if n != 7]
        async with PullConsumer(cluster.address, "g") as reader:
            (queue,) = await reader.queues("t")
            pulled = await reader.pull(queue, 0, count=32)
            assert [one.queue_offset for one in pulled.messages if one.corrupted] == [7]


async def test_a_handler_gets_no_corrupted_message() -> None:
    handled: list[bytes] = []

    async def handler(message: ReceivedMessage) -> None:
        handled.append(message.body)

    async with (
        filled(3, queues=1) as cluster,
        Consumer(cluster.address, "g", ["t"], options=FAST) as consumer,
    ):
        damage(cluster, 1)
        async with consuming(consumer, handler):
            await eventually(lambda: cluster.count("ChangeInvisibleDuration") == 1 and len(handled) == 2)
        assert sorted(handled) == [b"0", b"2"] and len(cluster.acked) == 2


async def test_a_corrupted_message_of_an_ordered_group_is_given_up_at_once() -> None:
    async with ordered("aa") as cluster, Consumer(cluster.address, "g", ["t"], options=FAST) as consumer:
        damage(cluster, 0)
        handled: list[bytes] = []

        async def handle(message: ReceivedMessage) -> None:
            handled.append(message.body)

        async with consuming(consumer, handle):
            await eventually(lambda: len(cluster.acked) == 1)
        assert handled == [b"1"]
        assert cluster.dead == [cluster.topics["t"][0][0].system_properties.message_id]


async def test_what_is_acknowledged_is_done() -> None:
    async with filled(3) as cluster, Consumer(cluster.address, "g", ["t"]) as consumer:
        messages = await consumer.receive(3)
        await consumer.ack(messages[0])
        assert await consumer.ack_all(messages[1:]) == [None, None]
        assert sorted(cluster.acked) == sorted(message.message_id for message in messages)


async def test_a_void_receipt_is_an_error_of_its_own() -> None:
    async with filled(2) as cluster, Consumer(cluster.address, "g", ["t"]) as consumer:
        one, other = await consumer.receive(2)
        await consumer.ack(one)
        with pytest.raises(InvalidReceiptHandle):
            await consumer.ack(one)
        outcome = await consumer.ack_all([one, other])
        assert isinstance(outcome[0], InvalidReceiptHandle)
        assert outcome[1] is None
        assert await consumer.ack_all([]) == []


async def test_a_hidden_message_carries_its_new_receipt() -> None:
    async with filled(1) as cluster, Consumer(cluster.address, "g", ["t"]) as consumer:
        (message,) = await consumer.receive()
        hidden = await consumer.change_invisible(message, 0)
        assert hidden.receipt_handle != message.receipt_handle
        (again,) = await consumer.receive()
        assert again.delivery_attempt == 2


async def test_receive_waits_no_longer_than_told() -> None:
    async with filled(0) as cluster, Consumer(cluster.address, "g", ["t"]) as consumer:
        assert await consumer.receive(wait_s=0) == []
        assert cluster.count("ReceiveMessage") == 1


async def test_receive_asks_with_filter_count_and_times() -> None:
    async with filled(1) as cluster, Consumer(cluster.address, "g", {"t": "a || b"}) as consumer:
        await consumer.receive(7, wait_s=1.5, invisible_s=42)
        request = next(request for name, _, request in cluster.calls if name == "ReceiveMessage")
        assert request.filter_expression.expression == "a || b"
        assert request.batch_size == 7
        assert request.invisible_duration.seconds == 42
        assert not request.auto_renew
        assert request.long_polling_timeout.seconds == 1
        assert request.message_queue.id == -1


async def test_a_failed_receive_is_repeated_and_then_raised() -> None:
    async with filled(1) as cluster, Consumer(cluster.address, "g", ["t"], options=FAST) as consumer:
        cluster.failures["ReceiveMessage"] += [v2.INTERNAL_SERVER_ERROR, v2.TOO_MANY_REQUESTS]
        assert len(await consumer.receive()) == 1
        cluster.failures["ReceiveMessage"].append(v2.NOT_IMPLEMENTED)
        with pytest.raises(NotSupported):
            await consumer.receive()


async def test_a_failed_acknowledgement_is_repeated() -> None:
    async with filled(1) as cluster, Consumer(cluster.address, "g", ["t"], options=FAST) as consumer:
        (message,) = await consumer.receive()
        cluster.failures["AckMessage"] += [v2.INTERNAL_SERVER_ERROR, Unavailable("restarting")]
        await consumer.ack(message)
        assert cluster.acked == [message.message_id]


def test_a_member_that_hangs_costs_no_more_than_five_seconds() -> None:
    assert consumer.MEMBER_POLL_S + consumer.MEMBER_MARGIN_S < 5 and producer.MEMBER_TIMEOUT_S < 5


@pytest.mark.parametrize("wait_s", [0.0, 20.0])
async def test_another_member_is_asked_where_one_does_not_answer(
    wait_s: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(consumer, "MEMBER_POLL_S", 0.1)
    monkeypatch.setattr(consumer, "MEMBER_MARGIN_S", 0.2)
    with socket.create_server(("127.0.0.1", 0)) as hanging:
        async with filled(1) as cluster, Consumer(cluster.address, "g", ["t"], options=FAST) as consuming:
            cluster.first_port = hanging.getsockname()[1]
            async with asyncio.timeout(10):
                assert [message.body for message in await consuming.receive(wait_s=wait_s)] == [b"0"]


async def test_closing_under_a_waiting_receive_is_an_error_and_no_cancellation() -> None:
    async with filled(0) as cluster:
        consumer = Consumer(cluster.address, "g", ["t"], options=FAST)
        await consumer.start()
        waiting = asyncio.create_task(consumer.receive(wait_s=20.0))
        await eventually(lambda: cluster.parked)
        await consumer.close()
        with pytest.raises(ClientError):
            await waiting


def test_a_consumer_needs_a_topic() -> None:
    with pytest.raises(BadRequest):
        Consumer("h:1", "g", {})


def test_one_topic_may_be_given_as_text() -> None:
    assert Consumer("h:1", "g", "topic").subscriptions == {"topic": "*"}


@contextlib.asynccontextmanager
async def consuming(consumer: Consumer, handler: object) -> AsyncIterator[None]:
    task = asyncio.create_task(consumer.run(handler))  # type: ignore[arg-type]
    try:
        yield
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task


async def test_the_loop_acknowledges_what_its_handler_has_done() -> None:
    done = asyncio.Event()
    seen: list[bytes] = []

    async def handler(message: ReceivedMessage) -> None:
        seen.append(message.body)
        if len(seen) == 5:
            done.set()

    async with filled(5) as cluster, Consumer(cluster.address, "g", ["t"], options=FAST) as consumer:
        async with consuming(consumer, handler), asyncio.timeout(10):
            await done.wait()
        assert sorted(seen) == [b"%d" % number for number in range(5)]
        assert len(cluster.acked) == 5
        receive = next(request for name, _, request in cluster.calls if name == "ReceiveMessage")
        assert receive.auto_renew
        assert receive.attempt_id


async def test_the_loop_acknowledges_in_batches_what_is_done_meanwhile() -> None:
    done = asyncio.Event()
    count = 0

    async def handler(message: ReceivedMessage) -> None:
        nonlocal count
        count += 1
        if count == 30:
            done.set()

    options = ConsumerOptions(concurrency=64, retry=FAST.retry)
    async with filled(30) as cluster, Consumer(cluster.address, "g", ["t"], options=options) as consumer:
        async with consuming(consumer, handler), asyncio.timeout(10):
            await done.wait()
        assert len(set(cluster.acked)) == 30
        assert cluster.count("AckMessage") < 10


async def test_the_loop_gives_up_on_a_void_receipt() -> None:
    handled = asyncio.Event()

    async with filled(1) as cluster, Consumer(cluster.address, "g", ["t"], options=FAST) as consumer:

        async def handler(message: ReceivedMessage) -> None:
            cluster.leased.clear()
            handled.set()

        async with consuming(consumer, handler), asyncio.timeout(10):
            await handled.wait()
        assert cluster.acked == []
        assert cluster.count("AckMessage") == 1


async def test_the_loop_delivers_again_what_its_handler_failed_on() -> None:
    done = asyncio.Event()
    attempts: list[int] = []

    async def handler(message: ReceivedMessage) -> None:
        attempts.append(message.delivery_attempt)
        if message.delivery_attempt == 1:
            raise ValueError("not yet")
        done.set()

    async with filled(1) as cluster, Consumer(cluster.address, "g", ["t"], options=FAST) as consumer:
        async with consuming(consumer, handler), asyncio.timeout(10):
            await done.wait()
        assert attempts == [1, 2]
        assert cluster.count("ChangeInvisibleDuration") == 1


async def test_the_loop_runs_plain_handlers_in_threads_and_keeps_to_its_bound() -> None:
    loop = asyncio.get_running_loop()
    done = asyncio.Event()
    running_now, most, count = 0, 0, 0

    async def slow(message: ReceivedMessage) -> None:
        nonlocal running_now, most, count
        running_now += 1
        most = max(most, running_now)
        await asyncio.sleep(0)
        running_now -= 1
        count += 1
        if count == 20:
            done.set()

    def plain(message: ReceivedMessage) -> None:
        asyncio.run_coroutine_threadsafe(slow(message), loop).result()

    options = ConsumerOptions(concurrency=2, retry=FAST.retry)
    async with filled(20) as cluster, Consumer(cluster.address, "g", ["t"], options=options) as consumer:
        async with consuming(consumer, plain), asyncio.timeout(20):
            await done.wait()
        assert most <= 2
        assert len(set(cluster.acked)) == 20


async def test_the_loop_goes_on_after_failed_polls_and_acknowledgements() -> None:
    done = asyncio.Event()

    async def handler(message: ReceivedMessage) -> None:
        done.set()

    async with filled(1) as cluster, Consumer(cluster.address, "g", ["t"], options=FAST) as consumer:
        cluster.failures["ReceiveMessage"].append(v2.INTERNAL_SERVER_ERROR)
        cluster.failures["AckMessage"] += [v2.INTERNAL_SERVER_ERROR] * 7
        async with consuming(consumer, handler), asyncio.timeout(10):
            await done.wait()
        assert len(cluster.acked) == 1


async def test_a_cancelled_loop_lets_its_handlers_finish() -> None:
    started, go_on = asyncio.Event(), asyncio.Event()

    async def handler(message: ReceivedMessage) -> None:
        started.set()
        await go_on.wait()

    async with filled(1) as cluster, Consumer(cluster.address, "g", ["t"], options=FAST) as consumer:
        task = asyncio.create_task(consumer.run(handler))
        async with asyncio.timeout(10):
            await started.wait()
            task.cancel()
            go_on.set()
            with pytest.raises(asyncio.CancelledError):
                await task
        assert len(cluster.acked) == 1


async def test_closing_ends_the_loop_once_its_handlers_are_done() -> None:
    started, go_on = asyncio.Event(), asyncio.Event()

    async def handler(message: ReceivedMessage) -> None:
        started.set()
        await go_on.wait()

    async with filled(1) as cluster, asyncio.timeout(10):
        consumer = Consumer(cluster.address, "g", ["t"], options=FAST)
        await consumer.start()
        task = asyncio.create_task(consumer.run(handler))
        await started.wait()
        closing = asyncio.create_task(consumer.close())
        go_on.set()
        await closing
        await task
        assert len(cluster.acked) == 1
        assert not consumer.session.started


async def test_messages_without_a_handler_yet_are_given_back_when_the_loop_is_stopped() -> None:
    handled: list[str] = []
    options = ConsumerOptions(concurrency=1, batch_max=32, close_grace_s=5.0, retry=FAST.retry)
    async with filled(6, queues=2) as cluster, asyncio.timeout(10):
        async with Consumer(cluster.address, "g", ["t"], options=options) as consumer:
            taken = await consumer.receive(6)
            loop = SubscriptionLoop(consumer, lambda _: None)

            async def handler(message: ReceivedMessage) -> None:
                handled.append(message.message_id)
                loop.stop()

            loop.handler, loop.plain = handler, False
            for message in taken:
                loop.begin([message])
            await loop.run()
        assert cluster.acked == handled == [taken[0].message_id]
        back = [request.message_id for name, _, request in cluster.calls if name == "ChangeInvisibleDuration"]
        assert sorted(back) == sorted(message.message_id for message in taken[1:])


async def test_a_handler_can_stop_its_consumer_and_is_told_that_it_can_not_close_it() -> None:
    refused: list[str] = []

    async with filled(1) as cluster, asyncio.timeout(10):
        async with Consumer(cluster.address, "g", ["t"], options=FAST) as consumer:

            async def handler(message: ReceivedMessage) -> None:
                try:
                    await consumer.close()
                except ClientError as error:
                    refused.append(str(error))
                    consumer.stop()

            await consumer.run(handler)
        assert refused == ["a handler can't close its own consumer, which waits for it; call stop() instead"]
        assert len(cluster.acked) == 1


async def test_a_loop_that_reaches_no_cluster_says_so() -> None:
    async with Consumer("127.0.0.1:1", "g", ["t"], options=FAST) as consumer, asyncio.timeout(10):
        with pytest.raises(ClusterUnreachable):
            await consumer.run(print)


async def test_a_loop_of_a_consumer_that_is_closed_already_ends_at_once() -> None:
    async with filled(1) as cluster, asyncio.timeout(10):
        consumer = Consumer(cluster.address, "g", ["t"], options=FAST)
        with pytest.raises(ClientError, match="not started"):
            await consumer.run(print)
        await consumer.start()
        await consumer.close()
        await consumer.run(print)
        assert cluster.acked == []


async def test_sql_filters_travel_as_such() -> None:
    wanted = SqlFilter("n > 5")
    async with filled(1) as cluster, Consumer(cluster.address, "g", {"t": wanted}) as consumer:
        await consumer.receive(1)
        (request,) = (one for name, _, one in cluster.calls if name == "ReceiveMessage")
        assert (request.filter_expression.type, request.filter_expression.expression) == (v2.SQL, "n > 5")
        await eventually(lambda: cluster.commands)
        entry = cluster.commands[0].settings.subscription.subscriptions[0]
        assert (entry.expression.type, entry.expression.expression) == (v2.SQL, "n > 5")


async def test_a_message_is_given_up_on_demand() -> None:
    async with filled(1) as cluster, Consumer(cluster.address, "g", ["t"]) as consumer:
        (message,) = await consumer.receive(1)
        await consumer.dead_letter(message)
        assert cluster.dead == [message.message_id]
        (request,) = (one for name, _, one in cluster.calls if name.startswith("Forward"))
        assert (request.delivery_attempt, request.receipt_handle) == (1, message.receipt_handle)


@contextlib.asynccontextmanager
async def ordered(groups: str, *, attempts_max: int = 3) -> AsyncIterator[FakeCluster]:
    """Yield a cluster whose groups are ordered, with a message of each of these message groups."""
    async with running() as cluster:
        cluster.topics["t"] = [[]]
        cluster.fifo, cluster.attempts_max = True, attempts_max
        async with Producer(cluster.address) as producer:
            for number, group in enumerate(groups):
                await producer.send(Message(topic="t", body=b"%d" % number, message_group=group))
        cluster.calls.clear()
        cluster.commands.clear()
        yield cluster


async def test_the_loop_handles_a_message_group_in_order_and_others_beside_it() -> None:
    async with ordered("abaab") as cluster, Consumer(cluster.address, "g", ["t"], options=FAST) as consumer:
        begun: dict[str | None, list[bytes]] = {}
        release = asyncio.Event()

        async def handle(message: ReceivedMessage) -> None:
            begun.setdefault(message.message_group, []).append(message.body)
            await release.wait()

        loop = asyncio.create_task(consumer.run(handle))
        await eventually(lambda: len(begun) == 2)
        assert begun == {"a": [b"0"], "b": [b"1"]}
        release.set()
        await eventually(lambda: len(cluster.acked) == 5)
        assert begun == {"a": [b"0", b"2", b"3"], "b": [b"1", b"4"]}
        consumer.stop()
        await loop


async def test_an_ordered_message_that_fails_is_handled_again_before_the_next_and_then_given_up() -> None:
    async with ordered("aa") as cluster, Consumer(cluster.address, "g", ["t"], options=FAST) as consumer:
        seen: list[tuple[bytes, int]] = []

        async def handle(message: ReceivedMessage) -> None:
            seen.append((message.body, message.delivery_attempt))
            if message.body == b"0":
                raise KeyError

        loop = asyncio.create_task(consumer.run(handle))
        await eventually(lambda: len(cluster.acked) == 1)
        assert seen == [(b"0", 1), (b"0", 2), (b"0", 3), (b"1", 1)]
        assert cluster.dead == [cluster.topics["t"][0][0].system_properties.message_id]
        assert cluster.count("ChangeInvisibleDuration") == 0
        (request,) = (one for name, _, one in cluster.calls if name.startswith("Forward"))
        assert (request.delivery_attempt, request.max_delivery_attempts) == (3, 3)
        consumer.stop()
        await loop


async def test_what_stands_behind_a_lost_lease_is_given_back_unhandled() -> None:
    async with ordered("aaa") as cluster, Consumer(cluster.address, "g", ["t"], options=FAST) as consumer:
        seen: list[bytes] = []

        async def handle(message: ReceivedMessage) -> None:
            seen.append(message.body)
            if len(seen) == 1:
                cluster.leased.pop(message.receipt_handle)

        loop = asyncio.create_task(consumer.run(handle))
        await eventually(lambda: len(cluster.acked) == 2)
        assert seen[:2] == [b"0", b"1"]
        assert cluster.count("ChangeInvisibleDuration") == 2  # the two behind it, which came again
        consumer.stop()
        await loop


async def test_an_ordered_loop_that_is_stopped_gives_back_what_waits_for_its_next_try() -> None:
    async with ordered("aa") as cluster, Consumer(cluster.address, "g", ["t"], options=FAST) as consumer:
        failed = asyncio.Event()

        async def handle(message: ReceivedMessage) -> None:
            failed.set()
            raise KeyError

        consumer.session.describe = lambda session: consumer.settings(session)
        loop = asyncio.create_task(consumer.run(handle))
        await eventually(lambda: consumer.session.informed)
        await failed.wait()
        consumer.stop()
        await loop
        assert cluster.acked == []
        assert cluster.count("ChangeInvisibleDuration") == 2
        assert cluster.dead == []


async def test_a_poll_keeps_its_attempt_id_until_messages_come() -> None:
    async with ordered("a") as cluster, Consumer(cluster.address, "g", ["t"], options=FAST) as consumer:
        cluster.failures["ReceiveMessage"] += [v2.INTERNAL_SERVER_ERROR, v2.MESSAGE_NOT_FOUND]
        loop = asyncio.create_task(consumer.run(lambda _: None))
        await eventually(lambda: cluster.acked and cluster.count("ReceiveMessage") == 4)
        ids = [request.attempt_id for name, _, request in cluster.calls if name == "ReceiveMessage"]
        assert len(set(ids[:3])) == 1
        assert ids[3] != ids[2]
        consumer.stop()
        await loop
