"""Transactions of a producer against a fake cluster: their ends, and what brokers ask about them."""

import asyncio
import threading
from collections.abc import Callable
from functools import partial
from typing import cast

import pytest

from support.systems.fake_cluster import FakeCluster, running, running_in_thread
from support.waiting import eventually
from whimbrel.client import (
    Message,
    MessageType,
    Producer,
    ProducerOptions,
    Queue,
    ReceivedMessage,
    Resolution,
    RetryPolicy,
)
from whimbrel.client.session import Session
from whimbrel.client.sync import Producer as BlockingProducer
from whimbrel.client.transactions import Checks
from whimbrel.errors import ClientError, InvalidTransactionId, MessageTypeConflict, NotWritable
from whimbrel.model.route import Endpoint
from whimbrel.pb.apache.rocketmq.v2 import definition_pb2 as v2

FAST = ProducerOptions(retry=RetryPolicy(initial_s=0.001, max_s=0.002))
PAID = Message(topic="t", body=b"paid", message_group="account-7")
ENDPOINT = Endpoint("127.0.0.1", 1)
QUEUE = Queue(
    topic="t", broker_name="a", broker_id=0, queue_id=0, readable=True, writable=True, endpoints=(ENDPOINT,)
)


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


def half_of(number: int, size: int = 1) -> ReceivedMessage:
    return ReceivedMessage(
        topic="t", body=b"x" * size, message_id=f"id-{number}", tag=None, keys=(), properties={},
        type=MessageType.TRANSACTION, queue=QUEUE, queue_id=0, queue_offset=number, born_at=None,
        born_host="", stored_at=None, store_host="",
    )  # fmt: skip


class Gate:
    """A check that answers UNKNOWN when it is told to."""

    def __init__(self) -> None:
        self.seen: list[str] = []
        self.open = asyncio.Semaphore(0)

    async def __call__(self, message: ReceivedMessage) -> Resolution:
        self.seen.append(message.message_id)
        await self.open.acquire()
        return Resolution.UNKNOWN


async def test_some_checks_run_at_a_time_and_others_wait_for_their_turn(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("whimbrel.client.transactions.CHECKS_MAX", 2)
    gate = Gate()
    checks = Checks(cast(Session, None), gate)
    for number in (1, 2, 3, 4, 3, 1):  # a question that is repeated is the same
        checks.asked(ENDPOINT, half_of(number))
    await eventually(lambda: len(gate.seen) == 2)
    assert gate.seen == ["id-1", "id-2"]
    assert list(checks.waiting) == [(ENDPOINT, "id-3"), (ENDPOINT, "id-4")]
    gate.open.release()
    await eventually(lambda: len(gate.seen) == 3)
    for _ in range(3):
        gate.open.release()
    await eventually(lambda: not checks.running)
    assert gate.seen == ["id-1", "id-2", "id-3", "id-4"]
    checks.asked(ENDPOINT, half_of(1))
    await eventually(lambda: gate.seen[4:] == ["id-1"])
    await checks.close()


async def test_what_waits_is_bounded_in_count_and_bytes_and_warned_of_once(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    for name, value in (("CHECKS_MAX", 1), ("WAITING_MAX", 3), ("WAITING_BYTES_MAX", 100)):
        monkeypatch.setattr(f"whimbrel.client.transactions.{name}", value)
    gate = Gate()
    checks = Checks(cast(Session, None), gate)
    for number, size in enumerate((200, 60, 60, 20, 20, 1, 1)):
        checks.asked(ENDPOINT, half_of(number, size))
    assert [message_id for _, message_id in checks.waiting] == ["id-1", "id-3", "id-4"]
    (warning,) = caplog.records
    assert warning.getMessage().endswith("message id-2 first")
    for _ in range(4):
        gate.open.release()
    await eventually(lambda: not checks.running)
    assert (checks.waiting_bytes, checks.overrun) == (0, False)
    await checks.close()


async def test_two_brokers_that_have_one_message_are_both_answered() -> None:
    """A send that was repeated elsewhere."""
    gate = Gate()
    checks = Checks(cast(Session, None), gate)
    for port in (1, 2, 1):
        checks.asked(Endpoint("127.0.0.1", port), half_of(1))
    await eventually(lambda: len(gate.seen) == 2)
    assert len(checks.running) == 2
    await checks.close()


async def test_an_end_forgets_what_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("whimbrel.client.transactions.CHECKS_MAX", 1)
    gate = Gate()
    checks = Checks(cast(Session, None), gate)
    for number in (1, 2):
        checks.asked(ENDPOINT, half_of(number))
    await eventually(lambda: gate.seen)
    await checks.close()
    await asyncio.sleep(0)
    assert (gate.seen, checks.running) == (["id-1"], {})


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
