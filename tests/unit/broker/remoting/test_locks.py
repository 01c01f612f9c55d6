"""41 and 42 with the bodies that clients send, and others."""

from pathlib import Path
from typing import Any

import pytest

from support.remoting.handlers import FakePeer
from support.remoting.tables import command, json_of, reply_to, tables
from whimbrel.broker.remoting.locks import QUEUES_MAX, RemotingLocks
from whimbrel.broker.tables.queue_locks import QueueLocks
from whimbrel.errors import BadRequest, GroupNotFound
from whimbrel.model.topic import GroupConfig, TopicConfig
from whimbrel.rpc.remoting.handlers import Reply


class Locks:
    """Topic T has four queues, and there is a group G."""

    def __init__(self, root: Path) -> None:
        self.now = 0.0
        self.topics, self.groups = tables(root)
        self.topics.put(TopicConfig(name="T", read_queues=4, write_queues=4))
        self.groups.put(GroupConfig(name="G"))
        self.service = RemotingLocks(QueueLocks(), self.topics, self.groups, clock=lambda: self.now)

    def __call__(self, code: int, body: Any) -> Reply:
        return reply_to(self.service.handles(), FakePeer(), command(code, body))

    def lock(self, client: str, *queues: int) -> list[int]:
        held = json_of(self(41, batch(client, *queues)))["lockOKMQSet"]
        assert all(row == queue(row["queueId"]) for row in held)
        return [row["queueId"] for row in held]


def queue(number: int) -> dict[str, Any]:
    return {"brokerName": "broker-a", "queueId": number, "topic": "T"}


def batch(client: str, *queues: int) -> dict[str, Any]:
    return {"clientId": client, "consumerGroup": "G", "mqSet": [queue(number) for number in queues]}


@pytest.fixture
def locks(tmp_path: Path) -> Locks:
    return Locks(tmp_path)


def test_6_1_34_lock_and_unlock(locks: Locks) -> None:
    assert locks.lock("a", 0, 3) == [0, 3]
    assert locks.lock("b", 0, 1) == [1]
    reply = locks(42, batch("a", 0))
    assert reply.code == 0 and not reply.body
    assert locks.lock("b", 0, 1, 3) == [0, 1]


def test_the_answer_is_written_as_java_reads_it(locks: Locks) -> None:
    (body,) = locks(41, batch("a", 3)).body
    assert body == b'{"lockOKMQSet":[{"brokerName":"broker-a","queueId":3,"topic":"T"}]}'


def test_what_is_not_there_is_not_locked(locks: Locks) -> None:
    assert locks.lock("a", 3, 4) == [3]
    body = batch("a", 0)
    body["mqSet"][0]["topic"] = "U"
    assert json_of(locks(41, body)) == {"lockOKMQSet": []}
    with pytest.raises(GroupNotFound):
        locks(41, batch("a", 0) | {"consumerGroup": "unknown"})
    assert len(locks.service.locks) == 1


def test_no_queues_at_all(locks: Locks) -> None:
    assert json_of(locks(41, {})) == {"lockOKMQSet": []}
    assert locks(42, {}).code == 0


def test_what_nobody_refreshes_is_forgotten(locks: Locks) -> None:
    locks.lock("a", 0)
    locks.now = 60
    locks.service.sweep()
    assert len(locks.service.locks) == 0


@pytest.mark.parametrize(
    ("body", "what"),
    [
        (b"", "no JSON"),
        ({"mqSet": {"a": 1}}, "no list"),
        (batch("a", *range(QUEUES_MAX + 1)), "4096 queues"),
        ({"mqSet": [queue(0)], "consumerGroup": "G"}, "clientId"),
        ({"mqSet": [queue(0)], "clientId": "c", "consumerGroup": "g" * 256}, "consumerGroup"),
        (batch("a") | {"mqSet": [7]}, "no object"),
        (batch("a") | {"mqSet": [queue(0) | {"queueId": "x"}]}, "queueId"),
        (batch("a") | {"mqSet": [queue(-1)]}, "queueId"),
        (batch("a") | {"mqSet": [queue(0) | {"topic": None}]}, "topic"),
        (b" " * ((2 << 20) + 1), "bytes"),
    ],
)
def test_what_is_refused_is_told_in_a_sentence(locks: Locks, body: Any, what: str) -> None:
    for code in (41, 42):
        with pytest.raises(BadRequest, match=what):
            locks(code, body)
