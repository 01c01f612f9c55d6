"""The client API of one broker process, call by call, with raw stubs: the checklist's items that need no SDK.

The broker has no nameserver, so it is settled at once, and creates neither topics nor groups by itself.
"""

import itertools
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from hashlib import md5
from pathlib import Path
from typing import Any

import grpc
import pytest

from support.cluster.broker_api import STREAMS, Api, duration, message, queue
from support.cluster.processes import Process, lone_broker
from support.waiting import until
from whimbrel.pb.apache.rocketmq.v2 import definition_pb2 as v2
from whimbrel.pb.apache.rocketmq.v2 import service_pb2 as messaging
from whimbrel.pb.whimbrel.admin.v1 import admin_service_pb2 as admin

pytestmark = pytest.mark.process

_numbers = itertools.count()


def settings_of(kind: str) -> Any:
    settings = v2.Settings(client_type=v2.PRODUCER if kind == "producer" else v2.PUSH_CONSUMER)
    if kind == "producer":
        settings.publishing.topics.add(name="normal")
    elif kind == "consumer":
        settings.subscription.group.name = "group"
        entry = settings.subscription.subscriptions.add()
        entry.topic.name, entry.expression.expression = "normal", "a||b"
    return messaging.TelemetryCommand(settings=settings)


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Process]:
    with lone_broker(tmp_path_factory.mktemp("broker"), index_entries=2000, metrics_port=0) as running:
        yield running


@pytest.fixture(scope="module")
def channel(broker: Process) -> Iterator[grpc.Channel]:
    limit = [("grpc.max_receive_message_length", -1), ("grpc.max_send_message_length", -1)]
    with grpc.insecure_channel(broker.grpc, options=limit) as opened:
        setup = Api(opened)
        kinds: tuple[tuple[str, Any], ...] = (
            ("normal", 1),
            ("fifo", 2),
            ("delay", 3),
            ("transaction", 4),
            ("mixed", 5),
        )
        for name, kind in kinds:
            setup.administer("CreateTopic", topic=admin.Topic(name=name, read_queues=2, message_type=kind))
        setup.administer("CreateTopic", topic=admin.Topic(name="readonly", permission=4))
        setup.administer("CreateTopic", topic=admin.Topic(name="writeonly", permission=2))
        setup.administer("CreateGroup", group=admin.Group(name="group"))
        setup.administer("CreateGroup", group=admin.Group(name="ordered", fifo=True, max_attempts=3))
        yield opened


def parked(broker: Process) -> float:
    """Return how many receives wait at the broker."""
    return broker.metric("whimbrel_long_polls_held")


@pytest.fixture
def api(channel: grpc.Channel) -> Api:
    return Api(channel)


@pytest.fixture
def topic(api: Api) -> str:
    """Return a topic of its own with one queue, so that no other test's messages stand in it."""
    name = f"topic-{next(_numbers)}"
    api.administer("CreateTopic", topic=admin.Topic(name=name, read_queues=1, write_queues=1))
    return name


UNARY = sorted(
    {name.removesuffix("Request") for name in dir(messaging) if name.endswith("Request")} - STREAMS
)


@pytest.mark.parametrize("name", UNARY)
def test_call_without_a_client_id_is_told_so_in_the_body(channel: grpc.Channel, name: str) -> None:
    assert Api(channel, None)(name).status.code == v2.CLIENT_ID_REQUIRED
    assert Api(channel, "  ")(name).status.code == v2.CLIENT_ID_REQUIRED


def test_streams_without_a_client_id_are_told_so_too(channel: grpc.Channel) -> None:
    nobody = Api(channel, None)
    assert nobody("ReceiveMessage")[0].status.code == v2.CLIENT_ID_REQUIRED
    assert nobody("PullMessage")[0].status.code == v2.CLIENT_ID_REQUIRED
    commands = list(nobody.telemetry(iter([settings_of("producer")])))
    assert [command.status.code for command in commands] == [v2.CLIENT_ID_REQUIRED]


def test_route_lists_the_queues_under_the_address_that_was_asked(api: Api) -> None:
    response = api.route("normal", namespace="ns1")
    assert response.status.code == v2.OK
    assert [entry.id for entry in response.message_queues] == [0, 1]
    for entry in response.message_queues:
        assert (entry.broker.id, entry.permission) == (0, v2.READ_WRITE)
        assert list(entry.accept_message_types) == [v2.NORMAL]
        assert entry.topic.resource_namespace == "ns1"
        assert entry.broker.endpoints.addresses[0] == v2.Address(host="127.0.0.1", port=8081)
    domain = api.route("normal", v2.DOMAIN_NAME, "example.org").message_queues[0].broker.endpoints
    assert (domain.scheme, len(domain.addresses)) == (v2.DOMAIN_NAME, 1)
    assert {entry.permission for entry in api.route("readonly").message_queues} == {v2.READ}
    assert len(api.route("mixed").message_queues[0].accept_message_types) == 4


@pytest.mark.parametrize(
    ("name", "code"),
    [("unknown", 40402), ("a b", 40002), ("x" * 128, 40002), ("rmq_sys_x", 40002), ("", 40002)],
)
def test_route_of_a_bad_topic_has_its_code_and_no_queues(api: Api, name: str, code: int) -> None:
    response = api.route(name)
    assert response.status.code == code and not response.message_queues


def test_route_wants_an_access_point(api: Api) -> None:
    assert api("QueryRoute", topic=v2.Resource(name="normal")).status.code == v2.ILLEGAL_ACCESS_POINT


def test_producers_settings(api: Api) -> None:
    command = next(api.telemetry(iter([settings_of("producer")])))
    assert command.status.code == v2.OK
    answer = command.settings
    assert (answer.publishing.max_body_size, answer.publishing.validate_message_type) == (4194304, True)
    assert answer.backoff_policy.max_attempts == 3
    assert answer.backoff_policy.WhichOneof("strategy") == "exponential_backoff"
    assert answer.HasField("metric") and not answer.metric.on


def test_consumers_settings_come_from_its_group(api: Api) -> None:
    answer = next(api.telemetry(iter([settings_of("consumer")]))).settings
    assert answer.subscription.receive_batch_size == 32
    assert answer.subscription.long_polling_timeout.seconds == 20
    assert answer.subscription.subscriptions[0].expression.expression == "a||b"
    assert len(answer.backoff_policy.customized_backoff.next) == 18
    assert (answer.subscription.fifo, answer.backoff_policy.max_attempts) == (False, 17)
    ordered = settings_of("consumer")
    ordered.settings.subscription.group.name = "ordered"
    answer = next(api.telemetry(iter([ordered]))).settings
    assert (answer.subscription.fifo, answer.backoff_policy.max_attempts) == (True, 3)


def test_every_settings_command_is_answered(api: Api) -> None:
    commands = list(api.telemetry(iter([settings_of("producer")] * 10)))
    assert len(commands) == 10 and all(command.status.code == v2.OK for command in commands)


def test_changed_group_is_pushed_to_its_clients(api: Api) -> None:
    ended = threading.Event()

    def once() -> Iterator[Any]:
        command = settings_of("consumer")
        command.settings.subscription.group.name = "changing"
        yield command
        ended.wait(5)

    api.administer("CreateGroup", group=admin.Group(name="changing"))
    stream = api.telemetry(once())
    assert next(stream).settings.backoff_policy.max_attempts == 17
    api.administer("UpdateGroup", name="changing", max_attempts=5)
    assert next(stream).settings.backoff_policy.max_attempts == 5
    stream.cancel()
    ended.set()


def test_telemetry_sends_its_metadata_before_anything_is_written(api: Api) -> None:
    ended = threading.Event()

    def nothing() -> Iterator[Any]:
        ended.wait(3)
        yield from ()

    stream = api.telemetry(nothing())
    started = time.monotonic()
    stream.initial_metadata()
    assert time.monotonic() - started < 1
    stream.cancel()
    ended.set()


def test_settings_of_neither_kind_end_the_stream(api: Api) -> None:
    with pytest.raises(grpc.RpcError) as caught:
        list(api.telemetry(iter([settings_of("neither")])))
    assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT


def test_open_streams_and_parked_polls_hold_nobody_up(broker: Process, channel: grpc.Channel) -> None:
    ended = threading.Event()

    def silent() -> Iterator[Any]:
        ended.wait(6)
        yield from ()

    crowd = [Api(channel, f"crowd@{n}") for n in range(60)]
    streams = [one.telemetry(silent()) for one in crowd]
    polls = [
        one.start(
            "ReceiveMessage",
            group=v2.Resource(name="group"),
            message_queue=queue("mixed", 0),
            batch_size=1,
            auto_renew=True,
            long_polling_timeout=duration(8),
        )
        for one in crowd
    ]
    until(lambda: parked(broker) == len(polls), what="parked polls")
    started = time.monotonic()
    assert Api(channel).send("normal", b"x").status.code == v2.OK
    assert time.monotonic() - started < 1
    for call in (*streams, *polls):
        call.cancel()
    ended.set()
    until(lambda: not parked(broker), what="no parked poll")


def test_client_that_never_reads_stalls_nobody(broker: Process, channel: grpc.Channel) -> None:
    with grpc.insecure_channel(broker.grpc) as own:
        stream = Api(own, "deaf@1").telemetry(iter([settings_of("consumer")] * 10_000))
        started = time.monotonic()
        assert Api(channel).send("normal", b"x").status.code == v2.OK
        assert time.monotonic() - started < 2
        stream.cancel()


def test_unknown_clients_may_beat_and_leave(channel: grpc.Channel) -> None:
    stranger = Api(channel, "stranger@1")
    assert stranger("Heartbeat", client_type=v2.PRODUCER).status.code == v2.OK
    group = v2.Resource(name="group")
    assert stranger("Heartbeat", client_type=v2.PUSH_CONSUMER, group=group).status.code == v2.OK
    assert stranger("NotifyClientTermination").status.code == v2.OK
    assert stranger("NotifyClientTermination", group=group).status.code == v2.OK


def test_odd_headers_are_accepted(channel: grpc.Channel) -> None:
    odd = Api(
        channel,
        x_mq_language="HTTP",
        x_mq_protocol="GRPC_V2",
        x_mq_date_time="2026-11-21T10:00:00+02:00",
        authorization="MQv2-HMAC-SHA1 Credential=,",
    )
    assert odd.send("normal", b"x").status.code == v2.OK


def test_body_limits(api: Api) -> None:
    for body, code in ((b"x" * 4_194_305, 41301), (b"", 41302)):
        response = api.send("normal", body)
        assert response.status.code == code and not response.entries


def test_longest_body_comes_back_intact(api: Api, topic: str) -> None:
    body = bytes(range(256)) * 16_384
    assert api.send(topic, body).status.code == v2.OK
    assert api.receive(topic, "group", poll_s=5).bodies == [body]


def test_batch_answers_each_message_in_order(api: Api, topic: str) -> None:
    response = api("SendMessage", messages=[message(topic, b"x", message_id=f"id-{n}") for n in range(3)])
    assert response.status.code == v2.OK
    assert [(entry.message_id, entry.offset) for entry in response.entries] == [
        ("id-0", 0),
        ("id-1", 1),
        ("id-2", 2),
    ]


@pytest.mark.parametrize(
    ("name", "system", "code"),
    [
        ("normal", {"message_id": " "}, 40009),
        ("normal", {"tag": "a|b"}, 40004),
        ("normal", {"keys": ["  "]}, 40005),
        ("normal", {"properties": {"KEYS": "v"}}, 40007),
        ("normal", {"properties": {"k": "\x01"}}, 40007),
        ("normal", {"properties": {f"k{n}": "v" for n in range(129)}}, 43101),
        ("normal", {"properties": {"k": "v" * 16_384}}, 43101),
        ("fifo", {"message_group": "g" * 64}, 40006),
        ("normal", {"message_group": "g"}, 40014),
        ("fifo", {}, 40014),
        ("unknown", {}, 40402),
        ("readonly", {}, 40300),
        ("TBW102", {}, 40002),
    ],
)
def test_bad_send_has_its_code_and_no_entries(api: Api, name: str, system: dict[str, Any], code: int) -> None:
    response = api.send(name, b"x", **system)
    assert response.status.code == code and not response.entries


def test_mixed_topic_takes_plain_messages(api: Api) -> None:
    assert api.send("mixed", b"x").status.code == v2.OK


def test_empty_and_mixed_requests_are_corrupt(api: Api) -> None:
    assert api("SendMessage").status.code == 40016
    assert api("SendMessage", messages=[message("normal", b"x"), message("mixed", b"x")]).status.code == 40016


def test_received_message_carries_what_sdks_need(api: Api, topic: str) -> None:
    api.send(topic, b"zip", body_encoding=v2.GZIP, tag="t", keys=["k"])
    got = api.receive(topic, "group", poll_s=5).messages[0]
    system = got.system_properties
    assert system.body_digest == v2.Digest(type=v2.MD5, checksum=md5(b"zip").hexdigest().upper())
    assert (system.body_encoding, got.body, got.topic.name) == (v2.GZIP, b"zip", topic)
    assert system.receipt_handle.isascii() and system.receipt_handle
    assert system.HasField("store_timestamp") and system.HasField("queue_offset")
    assert (system.delivery_attempt, system.tag, list(system.keys)) == (1, "t", ["k"])


def test_at_most_32_messages_come_at_once(api: Api, topic: str) -> None:
    api.send(topic, *[b"x"] * 50)
    assert len(api.receive(topic, "group", batch=100, poll_s=5).messages) == 32


def test_nothing_to_receive_says_so(api: Api, topic: str) -> None:
    got = api.receive(topic, "group", poll_s=0)
    assert (got.code, got.messages) == (v2.MESSAGE_NOT_FOUND, [])


def test_poll_without_a_time_ends_before_the_deadline(api: Api, topic: str) -> None:
    started = time.monotonic()
    frames = api(
        "ReceiveMessage",
        group=v2.Resource(name="group"),
        message_queue=queue(topic, 0),
        batch_size=1,
        auto_renew=True,
        timeout=4,
    )
    assert frames[0].status.code == v2.MESSAGE_NOT_FOUND and 1 < time.monotonic() - started < 4


@pytest.mark.parametrize(
    ("name", "group", "fields", "code"),
    [
        ("a b", "group", {}, 40002),
        ("normal", "a b", {}, 40003),
        ("normal", "group", {"invisible_s": 13 * 3600}, 40011),
        ("normal", "group", {"invisible_s": 1}, 40011),
        ("unknown", "group", {}, 40402),
        ("normal", "nobody", {}, 40403),
        ("writeonly", "group", {}, 40300),
        ("normal", "group", {"filter_expression": v2.FilterExpression(type=v2.TAG, expression="||")}, 40010),
    ],
)
def test_bad_receive_has_its_code(api: Api, name: str, group: str, fields: dict[str, Any], code: int) -> None:
    got = api.receive(name, group, **fields)
    assert (got.code, got.messages) == (code, [])


def test_acknowledged_message_is_gone_and_a_second_time_is_fine(api: Api, topic: str) -> None:
    api.send(topic, b"x")
    handle = api.receive(topic, "group", poll_s=5).handles[0]
    for _ in range(2):
        response = api.ack(topic, "group", handle)
        assert (response.status.code, response.entries[0].status.code) == (v2.OK, v2.OK)
    assert api.receive(topic, "group").messages == []


def test_bad_handles_are_refused_entry_by_entry(api: Api, topic: str) -> None:
    api.send(topic, b"x")
    handle = api.receive(topic, "group", poll_s=5).handles[0]
    response = api.ack(topic, "group", "junk")
    assert (response.status.code, response.entries[0].status.code) == (40013, 40013)
    response = api.ack(topic, "group", handle, "junk")
    assert response.status.code == v2.MULTIPLE_RESULTS
    assert [entry.status.code for entry in response.entries] == [v2.OK, 40013]
    assert [entry.receipt_handle for entry in response.entries] == [handle, "junk"]
    assert api.ack("unknown", "group", handle).entries[0].status.code == 40013
    assert api.ack(topic, "other", handle).entries[0].status.code == 40013
    assert api("AckMessage", group=v2.Resource(name="g"), topic=v2.Resource(name=topic)).status.code == 40000


def test_change_to_zero_delivers_again_at_once(api: Api, topic: str) -> None:
    api.send(topic, b"x")
    first = api.receive(topic, "group", poll_s=5)
    changed = api.change(topic, "group", first.handles[0], 0)
    assert changed.status.code == v2.OK and changed.receipt_handle not in ("", first.handles[0])
    assert api.ack(topic, "group", first.handles[0]).status.code == 40013
    second = api.receive(topic, "group", poll_s=2)
    assert second.attempts == [2] and second.handles[0] not in (first.handles[0], changed.receipt_handle)


def test_changed_handle_acknowledges(api: Api, topic: str) -> None:
    api.send(topic, b"x")
    handle = api.receive(topic, "group", poll_s=5).handles[0]
    changed = api.change(topic, "group", handle, 20)
    assert api.ack(topic, "group", changed.receipt_handle).status.code == v2.OK


def test_refused_change_still_carries_a_handle(api: Api, topic: str) -> None:
    api.send(topic, b"x")
    handle = api.receive(topic, "group", poll_s=5).handles[0]
    response = api.change(topic, "group", handle, 13 * 3600)
    assert (response.status.code, response.receipt_handle) == (40011, handle)
    response = api.change(topic, "group", "junk", 5)
    assert (response.status.code, response.receipt_handle) == (40013, "junk")


def test_clients_without_telemetry_are_served(channel: grpc.Channel, api: Api, topic: str) -> None:
    api.send(topic, b"x")
    nobody = Api(channel, "never-said-hello@1")
    got = nobody.receive(topic, "group", poll_s=5)
    assert nobody.ack(topic, "group", got.handles[0]).status.code == v2.OK


def test_cancelled_poll_swallows_nothing(broker: Process, api: Api, topic: str) -> None:
    poll = api.start(
        "ReceiveMessage",
        group=v2.Resource(name="group"),
        message_queue=queue(topic, 0),
        batch_size=1,
        auto_renew=True,
        long_polling_timeout=duration(8),
    )
    until(lambda: parked(broker), what="a parked poll")
    poll.cancel()
    until(lambda: not parked(broker), what="no parked poll")
    api.send(topic, b"x")
    assert api.receive(topic, "group", poll_s=2).bodies == [b"x"]


def test_leaving_consumer_gives_its_messages_back(channel: grpc.Channel, api: Api, topic: str) -> None:
    api.send(topic, b"x")
    leaving = Api(channel, "leaving@1")
    assert leaving.receive(topic, "group", poll_s=5, auto_renew=True).bodies == [b"x"]
    leaving("NotifyClientTermination", group=v2.Resource(name="group"))
    again = api.receive(topic, "group", poll_s=4)
    assert (again.bodies, again.attempts) == ([b"x"], [2])


def test_parked_poll_is_woken_by_a_send(broker: Process, api: Api, topic: str) -> None:
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(api.receive, topic, "group", poll_s=8)
        until(lambda: parked(broker), what="a parked poll")
        started = time.monotonic()
        api.send(topic, b"x")
        assert waiting.result().bodies == [b"x"]
        assert time.monotonic() - started < 1


def test_assignment_is_stable_and_names_the_whole_broker(channel: grpc.Channel, broker: Process) -> None:
    port = int(broker.grpc.rpartition(":")[2])
    endpoints = v2.Endpoints(scheme=v2.IPv4, addresses=[v2.Address(host="127.0.0.1", port=port)])
    group = v2.Resource(name="group")
    answers = [
        Api(channel, f"c@{n % 2}")(
            "QueryAssignment", topic=v2.Resource(name="normal"), group=group, endpoints=endpoints
        )
        for n in range(3)
    ]
    assert answers[0] == answers[1] == answers[2]
    assert [entry.message_queue.id for entry in answers[0].assignments] == [-1]
    unknown = Api(channel)(
        "QueryAssignment", topic=v2.Resource(name="unknown"), group=group, endpoints=endpoints
    )
    assert unknown.status.code == 40402


def test_pulls_and_positions(api: Api, topic: str) -> None:
    api.send(topic, b"0", b"1", b"2")
    group = v2.Resource(name="group")
    frames = api("PullMessage", group=group, message_queue=queue(topic, 0), offset=1, batch_size=10)
    assert [frame.WhichOneof("content") for frame in frames] == [
        "status",
        "message",
        "message",
        "next_offset",
    ]
    assert [frame.message.body for frame in frames[1:3]] == [b"1", b"2"] and frames[3].next_offset == 3
    empty = api("PullMessage", group=group, message_queue=queue(topic, 0), offset=3, batch_size=1)
    assert [frame.WhichOneof("content") for frame in empty] == ["status", "next_offset"]
    beyond = api("PullMessage", group=group, message_queue=queue(topic, 0), offset=9, batch_size=1)
    assert beyond[0].status.code == v2.ILLEGAL_OFFSET
    stream = api.start("PullMessage", group=group, message_queue=queue(topic, 0), offset=0, batch_size=1)
    list(stream)
    assert ("whimbrel-suggest-broker-id", "0") in [tuple(pair) for pair in stream.trailing_metadata()]
    assert api("GetOffset", group=group, message_queue=queue(topic, 0)).status.code == v2.OFFSET_NOT_FOUND
    assert api("UpdateOffset", group=group, message_queue=queue(topic, 0), offset=2).status.code == v2.OK
    assert api("GetOffset", group=group, message_queue=queue(topic, 0)).offset == 2
    begin = api("QueryOffset", message_queue=queue(topic, 0), query_offset_policy=messaging.BEGINNING)
    end = api("QueryOffset", message_queue=queue(topic, 0), query_offset_policy=messaging.END)
    assert (begin.offset, end.offset) == (0, 3)
    assert api("QueryOffset", message_queue=queue("unknown", 0)).status.code == 40402


def test_administration_shows_what_clients_did(channel: grpc.Channel, api: Api, topic: str) -> None:
    api.administer("CreateGroup", group=admin.Group(name=f"{topic}-g"))
    api.send(topic, b"0", b"1", b"2")
    reader = Api(channel, "reader@1", x_mq_language="PYTHON", x_mq_client_version="5.1.2")
    reader("Heartbeat", client_type=v2.SIMPLE_CONSUMER, group=v2.Resource(name=f"{topic}-g"))
    got = reader.receive(topic, f"{topic}-g", batch=2, poll_s=5)
    reader.ack(topic, f"{topic}-g", got.handles[0])
    shown = api.administer("DescribeGroup", name=f"{topic}-g")
    assert [client.client_id for client in shown.clients] == ["reader@1"]
    progress = shown.progress[0]
    assert (progress.committed_offset, progress.next_offset, progress.max_offset) == (1, 2, 3)
    assert (progress.in_flight, progress.lag) == (1, 2)
    described = api.administer("DescribeTopic", name=topic)
    assert [(state.min_offset, state.max_offset) for state in described.queues] == [(0, 3)]
    assert described.queues[0].HasField("last_stored_at") and list(described.groups) == [f"{topic}-g"]
    moved = api.administer("ResetOffsets", group=f"{topic}-g", topic=topic, earliest=True)
    assert [one.committed_offset for one in moved.progress] == [0]
    assert len(api.receive(topic, f"{topic}-g", poll_s=5).messages) == 3
    api.administer("DeleteTopic", name=topic)
    assert api.send(topic, b"x").status.code == 40402


def test_administration_refuses_with_grpc_statuses(api: Api) -> None:
    for name, fields, code in (
        ("CreateTopic", {"topic": admin.Topic(name="normal")}, grpc.StatusCode.ALREADY_EXISTS),
        ("CreateTopic", {"topic": admin.Topic(name="a b")}, grpc.StatusCode.INVALID_ARGUMENT),
        ("CreateTopic", {"topic": admin.Topic(name="DefaultCluster")}, grpc.StatusCode.INVALID_ARGUMENT),
        ("DeleteTopic", {"name": "unknown"}, grpc.StatusCode.NOT_FOUND),
        ("DescribeGroup", {"name": "unknown"}, grpc.StatusCode.NOT_FOUND),
        ("ResetOffsets", {"group": "group", "topic": "normal"}, grpc.StatusCode.INVALID_ARGUMENT),
        ("ResetOffsets", {"group": "group", "topic": "normal", "offset": 9**9}, grpc.StatusCode.OUT_OF_RANGE),
    ):
        with pytest.raises(grpc.RpcError) as caught:
            api.administer(name, **fields)
        assert caught.value.code() is code, name


def test_replication_is_described_without_a_replicator(api: Api) -> None:
    view = api.administer("DescribeReplication")
    assert (view.role, view.writable, view.replicator_alive) == ("MASTER", True, False)
    assert view.log_end > 0 and "replicator" in view.advice


def test_state_survives_kill_and_restart(broker: Process, tmp_path: Path) -> None:
    with grpc.insecure_channel(broker.grpc) as before:
        first = Api(before)
        first.administer("CreateTopic", topic=admin.Topic(name="survives", read_queues=1))
        first.send("survives", b"0", b"1", b"2")
        got = first.receive("survives", "group", batch=2, poll_s=5)
        first.ack("survives", "group", got.handles[0])
    broker.kill()
    broker.start()
    with grpc.insecure_channel(broker.grpc) as after:
        second = Api(after)
        assert second.receive("survives", "group", poll_s=5).bodies == [b"2"]
        assert second.ack("survives", "group", got.handles[1]).status.code == v2.OK
        shown = second.administer("DescribeGroup", name="group")
        mine = [one for one in shown.progress if one.topic == "survives"]
        assert [(one.committed_offset, one.in_flight) for one in mine] == [(2, 1)]


def test_clean_stop_leaves_rocketmqs_offset_file(broker: Process) -> None:
    assert broker.stop() == 0
    text = (broker.store / "config" / "consumerOffset.json").read_text()
    assert '"survives@group":{0:2\n' in text
    assert not (broker.store / "abort").exists()
    broker.start()
