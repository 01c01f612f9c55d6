"""Transactions of a producer against a fake cluster: their ends, and what brokers ask about them."""

import asyncio
import threading
from collections.abc import Callable
from functools import partial

import pytest

from fakecluster import FakeCluster, running, running_in_thread
from waiting import eventually
from whimbrel.client import Message, Producer, ProducerOptions, ReceivedMessage, Resolution, RetryPolicy
from whimbrel.client.sync import Producer as BlockingProducer
from whimbrel.errors import ClientError, InvalidTransactionId, MessageTypeConflict, NotWritable
from whimbrel.pb.apache.rocketmq.v2 import definition_pb2 as v2

FAST = ProducerOptions(retry=RetryPolicy(initial_s=0.001, max_s=0.002))
PAID = Message(topic="t", body=b"paid", message_group="account-7")


def unknown(message: ReceivedMessage) -> Resolution:
    return Resolution.UNKNOWN


async def listening(producer: Producer) -> None:
    """Wait until a broker has answered on the producer's stream."""
    await eventually(lambda: any(event.is_set() for event in producer.session.informed.values()))


def fewer(things: list[object], count: int) -> bool:
    return len(things) < count


def bodies(cluster: FakeCluster) -> list[bytes]:
    return [message.body for message in cluster.topics["t"][0]]


async def test_a_message_is_delivered_when_its_transaction_is_committed() -> None:
    async with running() as cluster, Producer(cluster.address, check=unknown) as producer:
        cluster.topics["t"] = [[]]
        transaction = await producer.send_in_transaction(PAID, recovery_s=60)
        half = cluster.halves[transaction.receipt.transaction_id]
        assert half.system_properties.message_type == v2.TRANSACTION
        assert half.system_properties.message_group == "account-7"
        assert half.system_properties.orphaned_transaction_recovery_duration.seconds == 60
        assert transaction.resolution.value == "unknown"
        assert bodies(cluster) == []
        await transaction.commit()
        assert transaction.resolution.value == "commit"
        assert bodies(cluster) == [b"paid"]
        assert cluster.ended == [(transaction.receipt.transaction_id, v2.COMMIT, v2.SOURCE_CLIENT)]


async def test_a_block_commits_at_its_end_and_rolls_back_when_it_raises() -> None:
    async with running() as cluster, Producer(cluster.address, check=unknown) as producer:
        cluster.topics["t"] = [[]]
        async with producer.transaction(PAID):
            assert bodies(cluster) == []
        assert bodies(cluster) == [b"paid"]
        with pytest.raises(KeyError):
            async with producer.transaction(PAID):
                raise KeyError
        async with producer.transaction(PAID) as transaction:
            await transaction.rollback()
        assert [resolution for _, resolution, _ in cluster.ended] == [v2.COMMIT, v2.ROLLBACK, v2.ROLLBACK]
        assert bodies(cluster) == [b"paid"]


async def test_an_end_without_an_answer_is_repeated_and_a_refused_one_is_not() -> None:
    async with running() as cluster, Producer(cluster.address, check=unknown, options=FAST) as producer:
        cluster.topics["t"] = [[]]
        transaction = await producer.send_in_transaction(PAID)
        cluster.failures["EndTransaction"] += [NotWritable("soon"), v2.INTERNAL_SERVER_ERROR]
        await transaction.commit()
        assert bodies(cluster) == [b"paid"]
        with pytest.raises(InvalidTransactionId, match="no such transaction"):
            await transaction.rollback()
        assert cluster.count("EndTransaction") == 4


async def test_a_failed_rollback_does_not_hide_the_error_of_the_block() -> None:
    async with running() as cluster, Producer(cluster.address, check=unknown, options=FAST) as producer:
        cluster.topics["t"] = [[]]
        with pytest.raises(KeyError):
            async with producer.transaction(PAID):
                cluster.halves.clear()
                raise KeyError


async def test_a_transaction_needs_a_check_and_one_kind_of_message() -> None:
    async with running() as cluster:
        cluster.topics["t"] = [[]]
        async with Producer(cluster.address) as producer:
            with pytest.raises(ClientError, match="check"):
                await producer.send_in_transaction(PAID)
        async with Producer(cluster.address, check=unknown) as producer:
            with pytest.raises(MessageTypeConflict):
                await producer.send_in_transaction(Message(topic="t", body=b"x", delay_s=3))


async def asked(cluster: FakeCluster, check: Callable[[ReceivedMessage], object]) -> None:
    """Have a fresh producer, which has sent nothing, asked about a message that another one has left."""
    async with Producer(cluster.address, check=unknown) as leaving:
        transaction = await leaving.send_in_transaction(PAID)
    half = cluster.halves[transaction.receipt.transaction_id]
    async with Producer(cluster.address, topics=["t"], check=check) as producer:  # type: ignore[arg-type]
        await listening(producer)
        cluster.streams[-1].ask(half, transaction.receipt.transaction_id)
        await eventually(
            lambda: producer.checks is not None and cluster.ended and not producer.checks.running
        )


@pytest.mark.parametrize(
    ("resolution", "delivered"), [(Resolution.COMMIT, [b"paid"]), (Resolution.ROLLBACK, [])]
)
async def test_a_producer_that_listens_answers_for_another_one(
    resolution: Resolution, delivered: list[bytes]
) -> None:
    async with running() as cluster:
        cluster.topics["t"] = [[]]
        seen: list[ReceivedMessage] = []

        async def check(message: ReceivedMessage) -> Resolution:
            seen.append(message)
            return resolution

        await asked(cluster, check)
        assert bodies(cluster) == delivered
        (message,) = seen
        assert (message.topic, message.body, message.message_group) == ("t", b"paid", "account-7")
        number = v2.COMMIT if resolution is Resolution.COMMIT else v2.ROLLBACK
        assert cluster.ended == [(message.transaction_id, number, v2.SOURCE_SERVER_CHECK)]


async def test_nothing_is_sent_for_what_is_unknown_or_fails() -> None:
    async with running() as cluster:
        cluster.topics["t"] = [[]]
        answers: list[object] = [Resolution.UNKNOWN, KeyError(), "commit", Resolution.COMMIT]
        async with Producer(cluster.address, check=unknown) as leaving:
            transaction = await leaving.send_in_transaction(PAID)
        half = cluster.halves[transaction.receipt.transaction_id]

        def check(message: ReceivedMessage) -> Resolution:
            answer = answers.pop(0)
            if isinstance(answer, Exception):
                raise answer
            return answer  # type: ignore[return-value]

        async with Producer(cluster.address, topics=["t"], check=check) as producer:
            assert producer.checks is not None
            await listening(producer)
            while answers:
                taken = partial(fewer, answers, len(answers))
                cluster.streams[-1].ask(half, transaction.receipt.transaction_id)
                await eventually(taken)
            await eventually(lambda: cluster.ended)
        assert [resolution for _, resolution, _ in cluster.ended] == [v2.COMMIT]


async def test_checks_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("whimbrel.client.transactions.CHECKS_MAX", 1)
    async with running() as cluster:
        cluster.topics["t"] = [[]]
        release = asyncio.Event()
        calls = 0

        async def check(message: ReceivedMessage) -> Resolution:
            nonlocal calls
            calls += 1
            await release.wait()
            return Resolution.ROLLBACK

        async with Producer(cluster.address, topics=["t"], check=check) as producer:
            transaction = await producer.send_in_transaction(PAID)
            half = cluster.halves[transaction.receipt.transaction_id]
            await listening(producer)
            for _ in range(3):
                cluster.streams[-1].ask(half, transaction.receipt.transaction_id)
            await eventually(lambda: calls)
            release.set()
            await eventually(lambda: cluster.ended)
        assert calls == 1


async def test_brokers_are_told_of_a_topic_whose_transactions_came_later() -> None:
    async with running() as cluster, Producer(cluster.address, topics=["t"], check=unknown) as producer:
        cluster.topics |= {"t": [[]], "u": [[]]}
        await listening(producer)
        await producer.send_in_transaction(Message(topic="u", body=b"x"))
        told = [[topic.name for topic in one.settings.publishing.topics] for one in cluster.commands]
        await eventually(
            lambda: (
                ["t", "u"]
                in [[topic.name for topic in one.settings.publishing.topics] for one in cluster.commands]
            )
        )
        assert told[0] == ["t"]


def test_blocking_transactions_do_what_the_others_do() -> None:
    with running_in_thread() as cluster:
        cluster.topics["t"] = [[]]
        threads: list[threading.Thread] = []

        def check(message: ReceivedMessage) -> Resolution:
            threads.append(threading.current_thread())
            return Resolution.COMMIT

        with BlockingProducer(cluster.address, check=check) as producer:
            with producer.transaction(PAID) as transaction:
                assert transaction.receipt.transaction_id
            assert transaction.resolution is Resolution.COMMIT
            with pytest.raises(KeyError), producer.transaction(PAID):
                raise KeyError
            opened = producer.send_in_transaction(PAID)
            opened.rollback()
            with pytest.raises(InvalidTransactionId):
                opened.commit()
        assert bodies(cluster) == [b"paid"]
