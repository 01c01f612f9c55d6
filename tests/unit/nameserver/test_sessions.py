"""Producers whose Telemetry stream ends at the nameserver: who is asked for brokers."""

from typing import Any

import pytest

from whimbrel.nameserver import sessions as module
from whimbrel.nameserver.sessions import Sessions, TelemetryHandler
from whimbrel.pb.apache.rocketmq.v2 import definition_pb2 as v2
from whimbrel.pb.apache.rocketmq.v2 import service_pb2 as messaging
from whimbrel.pb.whimbrel.registry.v1 import registry_service_pb2 as registry
from whimbrel.rpc.server.handlers import Call


class Box:
    """An outbox."""

    def __init__(self) -> None:
        self.sent: list[Any] = []
        self.full = False

    def send(self, message: Any) -> bool:
        if not self.full:
            self.sent.append(message)
        return not self.full

    def close(self, error: Exception | None = None) -> None:
        """Nothing."""


def opened(sessions: Sessions, client: str, *topics: str) -> tuple[TelemetryHandler, Box]:
    """Open a producer's stream, and send its settings."""
    box = Box()
    stream = sessions.open(Call("m", "p", {"x-mq-client-id": client} if client else {}, None), box)
    settings = v2.Settings(publishing=v2.Publishing(topics=[v2.Resource(name=name) for name in topics]))
    stream.received(messaging.TelemetryCommand(settings=settings))
    assert box.sent.pop().WhichOneof("command") == "settings"
    return stream, box


def asked(sessions: Sessions, topic: str = "t") -> bool:
    question = messaging.RecoverOrphanedTransactionCommand(transaction_id="x")
    request = registry.AskProducerRequest(topic=topic, question=question)
    return sessions.ask_producer(Call("m", "p", {}, None), request).asked


def test_producers_of_the_topic_are_asked_in_turn_while_they_are_there() -> None:
    sessions = Sessions()
    assert not asked(sessions)
    (first, one), (_, two), (_, other) = (
        opened(sessions, "a", "t"), opened(sessions, "b", "t"), opened(sessions, "c", "u")
    )  # fmt: skip
    assert all(asked(sessions) for _ in range(4))
    assert (len(one.sent), len(two.sent), len(other.sent)) == (2, 2, 0)
    assert one.sent[0].recover_orphaned_transaction_command.transaction_id == "x"
    first.closed()
    assert asked(sessions) and len(two.sent) == 3
    two.full = True
    assert not asked(sessions)


def test_a_client_that_ends_transactions_of_a_topic_is_asked_about_it() -> None:
    sessions = Sessions()
    stream, box = opened(sessions, "a")
    sessions.ended("a", "t")
    sessions.ended("nobody", "u")
    assert asked(sessions) and len(box.sent) == 1 and not asked(sessions, "u")
    newer, _ = opened(sessions, "a")
    stream.closed()  # the older one of the two
    assert asked(sessions)
    newer.closed()
    assert not asked(sessions)


def test_clients_are_bounded_and_the_others_are_served(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "STREAMS_MAX", 2)
    sessions = Sessions()
    for client in ("a", "b", "c", ""):
        opened(sessions, client, "t")
    assert list(sessions.streams) == ["a", "b"]
