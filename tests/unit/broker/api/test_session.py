"""Settings and signs of life."""

from pathlib import Path
from typing import Any

import pytest

from whimbrel.broker.api.session import ASK_AFTER_S, REPEAT_AFTER_S, SessionService
from whimbrel.broker.tables.clients import SILENT_S, Clients
from whimbrel.broker.tables.groups import GroupTable
from whimbrel.errors import BadRequest, IllegalFilter, IllegalGroup
from whimbrel.model.topic import GroupConfig
from whimbrel.pb.apache.rocketmq.v2 import definition_pb2 as v2
from whimbrel.pb.apache.rocketmq.v2 import service_pb2 as messaging
from whimbrel.rpc.server.handlers import Call


class FakeConsumer:
    def __init__(self) -> None:
        self.released: list[tuple[str, str | None]] = []

    def release_client(self, client_id: str, group: str | None = None) -> None:
        self.released.append((client_id, group))


class FakeOutbox:
    def __init__(self) -> None:
        self.sent: list[Any] = []
        self.closed = False

    def send(self, message: Any) -> bool:
        self.sent.append(message)
        return True

    def close(self, error: Exception | None = None) -> None:
        self.closed = True


class Rig:
    def __init__(self, tmp_path: Path) -> None:
        self.now = 100.0
        self.clients = Clients()
        self.groups = GroupTable(tmp_path, auto_create=False, clock=lambda: 1)
        self.consumer = FakeConsumer()
        self.session = SessionService(
            self.clients,
            self.groups,
            release_client=self.consumer.release_client,
            clock=lambda: self.now,
        )

    def call(self, client: str = "c", **headers: str) -> Call:
        return Call("m", "p", {"x-mq-client-id": client, **headers}, None)

    def open(self, **headers: str) -> tuple[Any, FakeOutbox]:
        outbox = FakeOutbox()
        return self.session.open_telemetry(self.call(**headers), outbox), outbox


@pytest.fixture
def rig(tmp_path: Path) -> Rig:
    return Rig(tmp_path)


def consumer_settings(group: str = "g", expression: str = "*", kind: Any = v2.TAG) -> Any:
    command = messaging.TelemetryCommand()
    command.settings.client_type = v2.PUSH_CONSUMER
    command.settings.subscription.group.name = group
    entry = command.settings.subscription.subscriptions.add()
    entry.topic.name = "t"
    entry.expression.type, entry.expression.expression = kind, expression
    return command


def test_settings_make_the_client_known_with_its_group(rig: Rig) -> None:
    stream, outbox = rig.open()
    stream.received(consumer_settings())
    assert outbox.sent[0].status.code == v2.OK
    client = rig.clients.get("c")
    assert client is not None and (client.group, client.client_type) == ("g", v2.PUSH_CONSUMER)


def test_bad_settings_end_the_stream(rig: Rig) -> None:
    stream, _ = rig.open()
    for command, error in (
        (consumer_settings(group="a b"), IllegalGroup),
        (consumer_settings(expression="||"), IllegalFilter),
        (messaging.TelemetryCommand(settings=v2.Settings()), BadRequest),
    ):
        with pytest.raises(error):
            stream.received(command)


def test_sql_filters_are_left_for_the_receive_to_refuse(rig: Rig) -> None:
    stream, outbox = rig.open()
    stream.received(consumer_settings(expression="a > 1", kind=v2.SQL))
    assert len(outbox.sent) == 1


def test_changed_group_is_told_to_its_clients_only(rig: Rig) -> None:
    rig.groups.add(GroupConfig(name="g"))
    mine, outbox = rig.open()
    mine.received(consumer_settings())
    other, other_outbox = rig.open()
    other.received(consumer_settings(group="h"))
    rig.groups.put(GroupConfig(name="g", retry_max=2))
    assert outbox.sent[-1].settings.backoff_policy.max_attempts == 3
    assert len(other_outbox.sent) == 1


def test_stream_without_client_id_gets_a_status_and_ends(rig: Rig) -> None:
    outbox = FakeOutbox()
    stream = rig.session.open_telemetry(Call("m", "p", {}, None), outbox)
    assert [command.status.code for command in outbox.sent] == [v2.CLIENT_ID_REQUIRED] and outbox.closed
    stream.received(consumer_settings())
    stream.closed()
    assert len(outbox.sent) == 1


def test_client_that_goes_on_without_settings_is_asked_to_reconnect_once(rig: Rig) -> None:
    _, outbox = rig.open()
    rig.now += ASK_AFTER_S + 1
    rig.session.sweep()
    assert outbox.sent == []  # it calls nothing, so it misses nothing
    rig.session.heartbeat(rig.call(), messaging.HeartbeatRequest())
    rig.session.sweep()
    rig.session.sweep()
    assert [command.WhichOneof("command") for command in outbox.sent] == ["reconnect_endpoints_command"]


def test_node_gets_its_settings_twice(rig: Rig) -> None:
    stream, outbox = rig.open(**{"x-mq-language": "HTTP"})
    stream.received(consumer_settings())
    rig.now += REPEAT_AFTER_S + 0.1
    rig.session.sweep()
    rig.session.sweep()
    assert len(outbox.sent) == 2 and outbox.sent[0] == outbox.sent[1]


def test_leaving_and_silent_consumers_give_back_what_they_hold(rig: Rig) -> None:
    group = v2.Resource(name="g")
    rig.session.heartbeat(rig.call("a"), messaging.HeartbeatRequest(group=group))
    rig.session.heartbeat(rig.call("b"), messaging.HeartbeatRequest(group=group))
    rig.session.terminate(rig.call("a"), messaging.NotifyClientTerminationRequest(group=group))
    assert rig.consumer.released == [("a", "g")]
    rig.now += SILENT_S + 1
    rig.session.sweep()
    assert rig.consumer.released == [("a", "g"), ("b", None)]
