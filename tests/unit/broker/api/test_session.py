"""Settings, heartbeats, and commands to clients."""

from pathlib import Path
from typing import Any

import pytest
from google.protobuf.message import Message

from whimbrel.broker.api.session import (
    CLIENT_STREAMS_MAX,
    COMMAND_TIMEOUT_S,
    COMMANDS_PENDING_MAX,
    RECONNECT_AFTER_S,
    REPEAT_AFTER_S,
    SessionService,
)
from whimbrel.broker.tables.clients import SILENT_S, Clients
from whimbrel.broker.tables.groups import GroupTable
from whimbrel.errors import BadRequest, ClientIdRequired, IllegalFilter, IllegalGroup, Throttled
from whimbrel.model.retry import Customized
from whimbrel.model.topic import GroupConfig
from whimbrel.pb.apache.rocketmq.v2 import definition_pb2 as v2
from whimbrel.pb.apache.rocketmq.v2 import service_pb2 as messaging
from whimbrel.rpc.server.handlers import Call
from whimbrel.rpc.server.settings import SETTINGS_BYTES_MAX


class FakeConsumer:
    def __init__(self) -> None:
        self.released: list[tuple[str, str | None]] = []

    def release_client(self, client_id: str, group: str | None) -> None:
        self.released.append((client_id, group))


class FakeOutbox:
    def __init__(self) -> None:
        self.sent: list[Any] = []
        self.closed = False
        self.full = False

    def send(self, message: Any) -> bool:
        if self.full:
            return False
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
            self.consumer.release_client,
            clock=lambda: self.now,
        )

    def call(self, client: str = "c", **headers: str) -> Call:
        return Call("m", "p", {"x-mq-client-id": client, **headers}, None)

    def open(self, client: str = "c", **headers: str) -> tuple[Any, FakeOutbox]:
        outbox = FakeOutbox()
        return self.session.open_telemetry(self.call(client, **headers), outbox), outbox


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


@pytest.mark.parametrize("expression", ["a > 1", "a >"])
def test_sql_filters_are_left_for_the_receive_to_refuse(rig: Rig, expression: str) -> None:
    stream, outbox = rig.open()
    stream.received(consumer_settings(expression=expression, kind=v2.SQL))
    assert len(outbox.sent) == 1


def test_empty_sql_filter_ends_the_stream(rig: Rig) -> None:
    stream, _ = rig.open()
    with pytest.raises(IllegalFilter):
        stream.received(consumer_settings(expression="", kind=v2.SQL))


def test_changed_group_is_sent_to_its_clients_only(rig: Rig) -> None:
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
    rig.now += RECONNECT_AFTER_S + 1
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
    first, second = (sent.settings for sent in outbox.sent)
    assert second.backoff_policy == first.backoff_policy
    first.subscription.ClearField("subscriptions")
    assert second.subscription == first.subscription


def test_leaving_and_silent_consumers_give_back_what_they_hold(rig: Rig) -> None:
    group = v2.Resource(name="g")
    rig.session.heartbeat(rig.call("a"), messaging.HeartbeatRequest(group=group))
    rig.session.heartbeat(rig.call("b"), messaging.HeartbeatRequest(group=group))
    rig.session.terminate(rig.call("a"), messaging.NotifyClientTerminationRequest(group=group))
    assert rig.consumer.released == [("a", "g")]
    rig.now += SILENT_S + 1
    rig.session.sweep()
    assert rig.consumer.released == [("a", "g"), ("b", None)]


# Commands to clients


def verify() -> Any:
    command = messaging.TelemetryCommand()
    command.verify_message_command.message.body = b"look"
    return command


def stack_trace() -> Any:
    return messaging.TelemetryCommand(
        print_thread_stack_trace_command=messaging.PrintThreadStackTraceCommand()
    )


def verified(nonce: str) -> Any:
    return messaging.TelemetryCommand(verify_message_result=messaging.VerifyMessageResult(nonce=nonce))


class Answers:
    """Takes answers."""

    def __init__(self) -> None:
        self.found: list[tuple[str, Any]] = []

    def __call__(self, client_id: str, answer: Any) -> None:
        self.found.append((client_id, answer))


def test_command_goes_to_every_stream_of_a_client_and_to_no_other_one(rig: Rig) -> None:
    (_, first), (_, second), (_, other) = rig.open("a"), rig.open("a"), rig.open("b")
    command = verify()
    assert rig.session.send_command(command, client_id="a") == 2
    assert first.sent == second.sent and other.sent == []
    sent = first.sent[0]
    assert sent.verify_message_command.message.body == b"look" and sent.verify_message_command.nonce
    assert command == verify()  # the caller's own stays as it is


def test_command_goes_to_the_latest_stream_of_each_client_of_a_group(rig: Rig) -> None:
    outboxes = {}
    for client, group in (("a", "g"), ("b", "g"), ("c", "h")):
        stream, outboxes[client] = rig.open(client)
        stream.received(consumer_settings(group=group))
        outboxes[client].sent.clear()
    _, later = rig.open("a")
    rig.session.heartbeat(rig.call("d"), messaging.HeartbeatRequest(group=v2.Resource(name="g")))  # no stream
    assert rig.session.send_command(stack_trace(), group="g") == 2
    assert [len(outbox.sent) for outbox in (*outboxes.values(), later)] == [0, 1, 0, 1]


def test_command_that_nobody_can_take_is_not_sent(rig: Rig) -> None:
    answers = Answers()
    assert rig.session.send_command(verify(), client_id="nobody", on_answer=answers) == 0
    assert rig.session.send_command(verify(), group="nobody", on_answer=answers) == 0
    stream, outbox = rig.open("a")
    outbox.full = True
    assert rig.session.send_command(verify(), client_id="a", on_answer=answers) == 0
    outbox.full = False
    stream.closed()
    assert rig.session.send_command(verify(), client_id="a", on_answer=answers) == 0
    rig.now += COMMAND_TIMEOUT_S
    rig.session.sweep()
    assert answers.found == []


@pytest.mark.parametrize(
    ("command", "field"),
    [
        (stack_trace(), "print_thread_stack_trace_command"),
        (verify(), "verify_message_command"),
        (
            messaging.TelemetryCommand(reconnect_endpoints_command=messaging.ReconnectEndpointsCommand()),
            "reconnect_endpoints_command",
        ),
    ],
)
def test_each_command_has_a_nonce_of_its_own(rig: Rig, command: Any, field: str) -> None:
    _, outbox = rig.open("a")
    for _ in range(3):
        assert rig.session.send_command(command, client_id="a") == 1
    assert len({getattr(sent, field).nonce for sent in outbox.sent}) == 3


def test_command_without_a_nonce_is_sent_as_it_is(rig: Rig) -> None:
    _, outbox = rig.open("a")
    command = messaging.TelemetryCommand()
    command.recover_orphaned_transaction_command.transaction_id = "t"
    assert rig.session.send_command(command, client_id="a") == 1
    assert outbox.sent == [command]


def test_answers_find_whoever_asked(rig: Rig) -> None:
    (a, sent_a), (b, _), (stranger, _) = rig.open("a"), rig.open("b"), rig.open("x")
    for stream in (a, b):
        stream.received(consumer_settings())
    answers = Answers()
    assert rig.session.send_command(verify(), group="g", on_answer=answers) == 2
    nonce = sent_a.sent[-1].verify_message_command.nonce
    stranger.received(verified(nonce))
    a.received(verified("unknown"))
    b.received(verified(nonce))
    a.received(verified(nonce))
    a.received(verified(nonce))  # once more
    assert answers.found == [("b", verified(nonce)), ("a", verified(nonce))]
    rig.now += COMMAND_TIMEOUT_S
    rig.session.sweep()
    assert len(answers.found) == 2


def test_stack_trace_and_status_of_an_answer_are_handed_on(rig: Rig) -> None:
    stream, outbox = rig.open("a")
    answers = Answers()
    rig.session.send_command(stack_trace(), client_id="a", on_answer=answers)
    answer = messaging.TelemetryCommand(status=v2.Status(code=v2.OK))
    answer.thread_stack_trace.nonce = outbox.sent[-1].print_thread_stack_trace_command.nonce
    answer.thread_stack_trace.thread_stack_trace = "main"
    stream.received(answer)
    assert answers.found == [("a", answer)]


def test_answer_that_does_not_come_is_reported_after_its_time(rig: Rig) -> None:
    (stream, outbox), (_, _) = rig.open("a"), rig.open("b")
    first, second = Answers(), Answers()
    rig.session.send_command(verify(), client_id="a", on_answer=first)
    rig.now += COMMAND_TIMEOUT_S / 2
    rig.session.send_command(verify(), client_id="b", on_answer=second)
    rig.now += COMMAND_TIMEOUT_S / 2
    rig.session.sweep()
    assert (first.found, second.found) == ([("a", None)], [])
    stream.received(verified(outbox.sent[-1].verify_message_command.nonce))
    assert first.found == [("a", None)]
    rig.now += COMMAND_TIMEOUT_S / 2
    rig.session.sweep()
    assert second.found == [("b", None)]


def test_commands_that_await_answers_are_bounded(rig: Rig) -> None:
    _, outbox = rig.open("a")
    answers = Answers()
    for _ in range(COMMANDS_PENDING_MAX):
        assert rig.session.send_command(verify(), client_id="a", on_answer=answers) == 1
    assert rig.session.send_command(verify(), client_id="a", on_answer=answers) == 0
    assert rig.session.send_command(verify(), client_id="a") == 1  # its answer is not awaited
    assert len(outbox.sent) == COMMANDS_PENDING_MAX + 1
    rig.now += COMMAND_TIMEOUT_S
    rig.session.sweep()
    assert len(answers.found) == COMMANDS_PENDING_MAX
    assert rig.session.send_command(verify(), client_id="a", on_answer=answers) == 1


def long_settings(topics: int) -> Any:
    command = consumer_settings()
    for number in range(topics):
        entry = command.settings.subscription.subscriptions.add()
        entry.topic.name, entry.expression.expression = f"t{number}", "*"
    return command


def test_nothing_stays_of_the_lists_in_settings(rig: Rig) -> None:
    rig.groups.add(GroupConfig(name="g"))
    stream, outbox = rig.open()
    stream.received(long_settings(1000))
    assert len(outbox.sent.pop().settings.subscription.subscriptions) == 1001
    assert not [kept for kept in vars(stream).values() if isinstance(kept, Message)]


def test_a_changed_group_sends_what_sdks_read_and_not_the_list_of_topics(rig: Rig) -> None:
    rig.groups.add(GroupConfig(name="g"))
    stream, outbox = rig.open()
    command = long_settings(50)
    command.settings.user_agent.language = v2.NODE_JS
    stream.received(command)
    rig.groups.put(GroupConfig(name="g", retry_max=2, fifo=True))
    first, second = (sent.settings for sent in outbox.sent)
    assert second.subscription.fifo and second.backoff_policy.max_attempts == 3
    assert second.backoff_policy.WhichOneof("strategy") == "exponential_backoff"
    assert (second.client_type, second.subscription.group.name) == (v2.PUSH_CONSUMER, "g")
    assert second.subscription.long_polling_timeout == first.subscription.long_polling_timeout
    assert second.subscription.receive_batch_size == first.subscription.receive_batch_size
    assert second.HasField("metric") == first.HasField("metric")
    assert not second.subscription.subscriptions
    rig.groups.put(GroupConfig(name="g", retry_max=2, fifo=True, consume_enabled=False))
    assert len(outbox.sent) == 2, "nothing of it changed"


def test_a_changed_retry_policy_goes_out_to_consumers(rig: Rig) -> None:
    """Checklist 55."""
    group = GroupConfig(name="g")
    rig.groups.add(group)
    stream, outbox = rig.open()
    stream.received(long_settings(1))
    rig.groups.put(group.with_retry_policy(Customized((2000, 4000))))
    again = outbox.sent[1].settings.backoff_policy
    assert [step.seconds for step in again.customized_backoff.next] == [2, 4]
    rig.groups.put(group.with_retry_policy(Customized((2000, 4000))))
    assert len(outbox.sent) == 2, "nothing of it changed"


def test_settings_of_a_producer_come_again_as_such(rig: Rig) -> None:
    stream, outbox = rig.open(**{"x-mq-language": "HTTP"})
    command = messaging.TelemetryCommand()
    command.settings.publishing.topics.add(name="t")
    stream.received(command)
    rig.now += REPEAT_AFTER_S + 0.1
    rig.session.sweep()
    again = outbox.sent[1].settings
    assert again.WhichOneof("pub_sub") == "publishing"
    assert again.publishing.max_body_size == outbox.sent[0].settings.publishing.max_body_size


def test_settings_beyond_the_bound_end_the_stream_with_a_sentence(rig: Rig) -> None:
    stream, outbox = rig.open()
    with pytest.raises(BadRequest, match=f"at most {SETTINGS_BYTES_MAX} are allowed"):
        stream.received(consumer_settings(expression="a" * SETTINGS_BYTES_MAX))
    assert outbox.sent == [] and stream.answered is None


def test_the_oldest_stream_of_a_client_gives_way(rig: Rig) -> None:
    opened = [rig.open() for _ in range(CLIENT_STREAMS_MAX + 1)]
    assert [box.closed for _, box in opened] == [True] + [False] * CLIENT_STREAMS_MAX
    for stream, _ in opened:
        stream.closed()
    assert (rig.session.stream_count, rig.session.streams) == (0, {})


def test_open_streams_are_bounded(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("whimbrel.broker.api.session.STREAMS_MAX", 2)
    first, _ = rig.open("a")
    rig.open("b")
    with pytest.raises(Throttled, match="no more are taken"):
        rig.open("c")
    first.closed()
    rig.open("c")


@pytest.mark.parametrize("client", ["c\x1b[2J", "c\x9bA", "c" * 256, "\u202ec"])
def test_an_id_that_is_no_name_is_refused(rig: Rig, client: str) -> None:
    with pytest.raises(ClientIdRequired, match="must be a name"):
        rig.session.heartbeat(rig.call(client), messaging.HeartbeatRequest())
