"""SQL filters and priorities at one broker process, call by call, with raw stubs."""

import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest

from support.cluster.broker_api import Api, Received, duration, message, queue
from support.cluster.processes import Process, lone_broker
from whimbrel.pb.apache.rocketmq.v2 import definition_pb2 as v2
from whimbrel.pb.whimbrel.admin.v1 import admin_service_pb2 as admin

pytestmark = pytest.mark.process

numbers = itertools.count()


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Process]:
    with lone_broker(tmp_path_factory.mktemp("broker"), index_entries=2000, metrics_port=0) as running:
        yield running


@pytest.fixture(scope="module")
def api(broker: Process) -> Iterator[Api]:
    with grpc.insecure_channel(broker.grpc) as opened:
        api = Api(opened)
        api.administer("CreateGroup", group=admin.Group(name="group"))
        yield api


@pytest.fixture
def topic(api: Api) -> str:
    """Return a topic of its own with one queue."""
    name = f"topic-{next(numbers)}"
    api.administer("CreateTopic", topic=admin.Topic(name=name, read_queues=1, write_queues=1))
    return name


def send(api: Api, topic: str, body: bytes, **properties: str) -> None:
    """Send a message with properties."""
    response = api("SendMessage", messages=[message(topic, body, properties=properties)])
    assert response.status.code == v2.OK, response


def sql(text: str) -> Any:
    return v2.FilterExpression(type=v2.SQL, expression=text)


def bodies(received: Received) -> list[bytes]:
    return [one.body for one in received.messages]


def test_receive_gets_exactly_what_matches(api: Api, topic: str) -> None:
    """Checklist 75: what does not match counts as consumed."""
    for number in range(6):
        send(api, topic, b"%d" % number, price=str(number * 5), color="red" if number % 2 else "blue")
    send(api, topic, b"none")
    send(api, topic, b"words", price="cheap", color="red")
    got = api.receive(
        topic, "group", poll_s=5, filter_expression=sql("price > 10 AND color IN ('red', 'green')")
    )
    assert bodies(got) == [b"3", b"5"]
    api.ack(topic, "group", *got.handles)
    assert api.receive(topic, "group").code == v2.MESSAGE_NOT_FOUND
    position = api("GetOffset", group=v2.Resource(name="group"), message_queue=queue(topic, 0))
    assert position.offset == 8


def test_stored_properties_can_be_named(api: Api, topic: str) -> None:
    """Checklist 73."""
    api.send(topic, b"one", message_id="ID1", tag="x", keys=["k1", "k2"])
    api.send(topic, b"two", message_id="ID2", tag="x", keys=["k1", "k2"])
    text = "UNIQ_KEY = 'ID2' AND TAGS = 'x' AND KEYS CONTAINS 'k2' AND CLUSTER IS NOT NULL"
    assert bodies(api.receive(topic, "group", poll_s=5, filter_expression=sql(text))) == [b"two"]


def test_poll_goes_on_past_what_does_not_match(api: Api, topic: str) -> None:
    """Checklist 75: a parked poll is answered by the first message that matches, not before."""
    parked = api.start(
        "ReceiveMessage",
        group=v2.Resource(name="group"),
        message_queue=queue(topic, -1),
        batch_size=4,
        invisible_duration=duration(30),
        long_polling_timeout=duration(8),
        filter_expression=sql("n >= 3"),
    )
    for number in range(4):
        send(api, topic, b"%d" % number, n=str(number))
    assert bodies(Received(list(parked))) == [b"3"]


def test_long_stretch_without_a_match_is_passed_by_one_poll(api: Api, topic: str) -> None:
    """Checklist 75: more than one scan's budget of messages that do not match."""
    for _ in range(20):
        api("SendMessage", messages=[message(topic, b"no") for _ in range(50)])
    send(api, topic, b"yes", n="1")
    assert bodies(api.receive(topic, "group", poll_s=8, filter_expression=sql("n = 1"))) == [b"yes"]


def test_filter_applies_to_redeliveries(api: Api, topic: str) -> None:
    """Checklist 61: the filter of the receive that would get it again counts, tag filters and SQL."""
    for number in range(3):
        one = message(topic, b"%d" % number, tag="ab"[number % 2], properties={"n": str(number)})
        api("SendMessage", messages=[one])
    first = api.receive(topic, "group", poll_s=5)
    assert len(first.messages) == 3
    for handle in first.handles:
        api.change(topic, "group", handle, 0)
    again = api.receive(topic, "group", poll_s=5, filter_expression=sql("n > 0"))
    assert [(one.body, one.system_properties.delivery_attempt) for one in again.messages] == [
        (b"1", 2),
        (b"2", 2),
    ]
    for handle in again.handles:
        api.change(topic, "group", handle, 0)
    tagged = api.receive(topic, "group", poll_s=5, filter_expression=v2.FilterExpression(expression="b"))
    assert [(one.body, one.system_properties.delivery_attempt) for one in tagged.messages] == [(b"1", 3)]
    api.ack(topic, "group", *tagged.handles)
    assert api.receive(topic, "group").code == v2.MESSAGE_NOT_FOUND


def test_pull_gets_what_matches_and_goes_past_the_rest(api: Api, topic: str) -> None:
    for number in range(5):
        send(api, topic, b"%d" % number, n=str(number))
    frames = api(
        "PullMessage",
        group=v2.Resource(name="group"),
        message_queue=queue(topic, 0),
        offset=0,
        batch_size=32,
        filter_expression=sql("n BETWEEN 1 AND 2 OR n = 4"),
        long_polling_timeout=duration(5),
    )
    assert [frame.message.body for frame in frames if frame.HasField("message")] == [b"1", b"2", b"4"]
    assert frames[-1].next_offset == 5


@pytest.mark.parametrize(
    "text",
    [
        "",
        "a >",
        "a = NULL",
        "a > 'x'",
        "a BETWEEN 9 AND 1",
        "a IN (1)",
        "a LIKE 'x'",
        "a = 5 junk",
        "a = 5 OR " * 11_000 + "TRUE",
        "a = '" + "x" * 17_000 + "'",
        "(" * 1000 + "a" + ")" * 1000,
    ],
)
def test_what_is_no_sql_is_refused_with_its_code(api: Api, topic: str, text: str) -> None:
    """Checklist 71 and 74."""
    got = api.receive(topic, "group", filter_expression=sql(text))
    assert (got.code, got.messages) == (40010, [])
    frames = api(
        "PullMessage",
        group=v2.Resource(name="group"),
        message_queue=queue(topic, 0),
        offset=0,
        batch_size=32,
        filter_expression=sql(text),
    )
    assert [frame.status.code for frame in frames] == [40010]


def priorities(received: Received) -> list[int]:
    return [one.system_properties.priority for one in received.messages]


def test_greatest_priority_comes_first(api: Api) -> None:
    """Checklist 77 and 78: queues 0 3 1 3 2; one receive of 8 gives 3 9 2 1 0; 0 is there as well."""
    name = f"urgent-{next(numbers)}"
    wanted = admin.Topic(name=name, read_queues=4, write_queues=4, message_type=admin.MESSAGE_TYPE_PRIORITY)
    api.administer("CreateTopic", topic=wanted)
    for priority in (0, 3, 1, 9, 2):
        response = api.send(name, b"%d" % priority, priority=priority, message_type=v2.PRIORITY)
        assert response.status.code == v2.OK
    got = api.receive(name, "group", batch=8, poll_s=5)
    assert priorities(got) == [3, 9, 2, 1, 0]
    assert [one.system_properties.queue_id for one in got.messages] == [3, 3, 2, 1, 0]
    for one in got.messages:
        assert one.system_properties.HasField("priority")
        assert one.system_properties.message_type == v2.PRIORITY
        assert not one.user_properties
    api.change(name, "group", got.handles[0], 0)
    api.send(name, b"later", priority=0, message_type=v2.PRIORITY)
    again = api.receive(name, "group", batch=8, poll_s=5)
    assert [(one.body, one.system_properties.delivery_attempt) for one in again.messages] == [
        (b"later", 1),
        (b"3", 2),
    ]
    assert api.send(name, b"plain").status.code == 40014
    assert api.send(name, b"x", priority=-1, message_type=v2.PRIORITY).status.code == 40000


def test_priorities_are_taken_two_at_a_time(api: Api) -> None:
    """Checklist 77: the example of batches of 2."""
    name = f"urgent-{next(numbers)}"
    wanted = admin.Topic(name=name, read_queues=4, write_queues=4, message_type=admin.MESSAGE_TYPE_PRIORITY)
    api.administer("CreateTopic", topic=wanted)
    for priority in (0, 3, 1, 9, 2, 0, 3):
        api.send(name, b"x", priority=priority)
    taken = [priorities(api.receive(name, "group", batch=2, poll_s=5)) for _ in range(4)]
    assert taken == [[3, 9], [3, 2], [1, 0], [0]]


def test_operators_choose_how_priorities_count(api: Api, tmp_path: Path) -> None:
    """Checklist 77: `priority.factor` of a group, and `priorityOrderAsc` of a broker."""
    made = api.administer("CreateGroup", group=admin.Group(name="fair", priority_percent=0)).group
    assert made.HasField("priority_percent") and made.priority_percent == 0
    assert api.administer("UpdateGroup", name="fair", max_attempts=5).group.priority_percent == 0
    assert api.administer("UpdateGroup", name="fair", priority_percent=40).group.priority_percent == 40
    assert api.administer("UpdateGroup", name="fair", priority_percent=100).group.priority_percent == 100
    for percent in (-1, 101):
        with pytest.raises(grpc.RpcError, match="give 0 to 100"):
            api.administer("UpdateGroup", name="fair", priority_percent=percent)
        with pytest.raises(grpc.RpcError, match="give 0 to 100"):
            api.administer("CreateGroup", group=admin.Group(name="unfair", priority_percent=percent))
    settings: dict[str, object] = {"nameservers": "", "priority_order_asc": False, "index_slots": 500}
    with (
        Process(tmp_path, "broker", "up", store=tmp_path / "store", **settings) as other,
        grpc.insecure_channel(other.grpc) as channel,
    ):
        upward = Api(channel)
        upward.administer("CreateGroup", group=admin.Group(name="group"))
        kind = admin.MESSAGE_TYPE_PRIORITY
        upward.administer("CreateTopic", topic=admin.Topic(name="urgent", read_queues=4, message_type=kind))
        for priority in (2, 0, 3, 1):
            upward.send("urgent", b"x", priority=priority)
        assert priorities(upward.receive("urgent", "group", batch=8, poll_s=5)) == [0, 1, 2, 3]


def test_lite_topics_are_refused_and_nothing_hangs(api: Api, topic: str) -> None:
    """Checklist 79."""
    assert api.send(topic, b"x", lite_topic="lt1", message_type=v2.LITE).status.code == 40014
    answer = api("SyncLiteSubscription", group=v2.Resource(name="group"), topic=v2.Resource(name=topic))
    assert answer.status.code == 50500


def test_bookkeeping_that_users_set_is_not_returned(api: Api, topic: str) -> None:
    """Checklist 62: RocketMQ takes these from users, and gives them back as user properties."""
    send(api, topic, b"x", __transactionId__="1", TRANSACTION_CHECK_TIMES="2", own="3")
    (got,) = api.receive(topic, "group", poll_s=5).messages
    assert dict(got.user_properties) == {"own": "3"}
