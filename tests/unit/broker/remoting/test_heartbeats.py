"""What clients of four kinds send as heartbeats, and what is refused."""

import json
from typing import Any

import pytest

from whimbrel.broker.consume.filters import compile_filter
from whimbrel.broker.remoting import heartbeats
from whimbrel.broker.remoting.heartbeats import Heartbeat, read_heartbeat
from whimbrel.broker.tables.remoting_clients import Subscription
from whimbrel.errors import BadRequest

# As recorded.
JAVA = (
    b'{"clientID":"10.0.0.9@1234#5","consumerDataSet":[{"consumeFromWhere":"CONSUME_FROM_FIRST_OFFSET",'
    b'"consumeType":"CONSUME_PASSIVELY","groupName":"g1","messageModel":"BROADCASTING","subscriptionDataSet":'
    b'[{"classFilterMode":false,"codeSet":[2598919],"expressionType":"TAG","subString":"TagA","subVersion":'
    b'1700000000000,"tagsSet":["TagA"],"topic":"TopicA"}],"unitMode":false}],"producerDataSet":'
    b'[{"groupName":"CLIENT_INNER_PRODUCER"}]}'
)
CPP = (
    b'{"clientID":"9321-127.0.0.1@DEFAULT","consumerDataSet":[{"consumeFromWhere":0,"consumeType":1,"groupName":'
    b'"G","messageModel":1,"subscriptionDataSet":[{"codeSet":[0,0],"subString":"A || B","subVersion":'
    b'"1795338174306","tagsSet":["A","B"],"topic":"T"}]}],"producerDataSet":[{"groupName":"P"}]}\n'
)
GO = (
    b'{"clientID":"c","producerDataSet":[],"consumerDataSet":[{"groupName":"G","consumeType":"CONSUME_PASSIVELY",'
    b'"messageModel":"CLUSTERING","consumeFromWhere":"CONSUME_FROM_LAST_OFFSET","subscriptionDataSet":'
    b'[{"classFilterMode":false,"topic":"T","subString":"A || B","tagsSet":["A","B"],"codeSet":["65","66"],'
    b'"subVersion":1795336175824266955,"expressionType":"TAG"}],"unitMode":false}]}'
)


def subscribe(topic: str, version: int, expression: str, sql: bool) -> Subscription:
    return Subscription(topic, version, expression, sql=sql, compile=compile_filter)


def read(body: Any) -> Heartbeat:
    return read_heartbeat(body if isinstance(body, bytes) else json.dumps(body).encode(), subscribe)


def only(beat: Heartbeat) -> Subscription:
    (said,) = beat.consumers
    assert said.topics is not None
    (one,) = said.topics.values()
    return one


def test_javas() -> None:
    beat = read(JAVA)
    assert beat.client_id == "10.0.0.9@1234#5" and beat.producers == ("CLIENT_INNER_PRODUCER",)
    (said,) = beat.consumers
    assert (said.group, said.model, said.begin) == ("g1", "BROADCASTING", "CONSUME_FROM_FIRST_OFFSET")
    assert only(beat) == subscribe("TopicA", 1_700_000_000_000, "TagA", False)


def test_6_1_16_and_18_cpps_with_ordinals_and_codes_that_are_zero() -> None:
    beat = read(CPP)
    (said,) = beat.consumers
    assert (said.model, said.kind) == ("CLUSTERING", "CONSUME_PASSIVELY")
    one = only(beat)
    assert one.version == 1_795_338_174_306
    assert one.filter is not None
    assert [tag for tag in "ABC" if one.filter.admits_code(ord(tag)) and one.filter.admits({}, tag)] == [
        "A",
        "B",
    ]


def test_6_1_17_gos_with_codes_that_are_texts_and_nanoseconds() -> None:
    assert only(read(GO)) == subscribe("T", 1_795_336_175_824_266_955, "A || B", False)


@pytest.mark.parametrize("body", [{}, {"clientID": "c"}, {"clientID": "c", "consumerDataSet": None}])
def test_6_1_18_without_consumers_or_producers(body: Any) -> None:
    beat = read(body)
    assert beat.consumers == () and beat.producers == ()


def test_absent_fields_have_javas_defaults() -> None:
    beat = read(
        {"clientID": "c", "consumerDataSet": [{"groupName": "G", "subscriptionDataSet": [{"topic": "T"}]}]}
    )
    (said,) = beat.consumers
    assert (said.model, said.kind, said.begin) == (
        "CLUSTERING",
        "CONSUME_PASSIVELY",
        "CONSUME_FROM_LAST_OFFSET",
    )
    assert only(beat) == subscribe("T", 0, "*", False)


def test_6_1_33_empty_names_are_left_out() -> None:
    beat = read({"clientID": "c", "consumerDataSet": [{"groupName": ""}], "producerDataSet": [{}]})
    assert beat.consumers == () and beat.producers == ()


def test_5_x_may_leave_subscriptions_as_they_are() -> None:
    (said,) = read({"clientID": "c", "withoutSub": True, "consumerDataSet": [{"groupName": "G"}]}).consumers
    assert said.topics is None
    (said,) = read({"clientID": "c", "withoutSub": False, "consumerDataSet": [{"groupName": "G"}]}).consumers
    assert said.topics == {}


def test_sql() -> None:
    row = {"topic": "T", "subString": "n > 2", "subVersion": 7, "expressionType": "SQL92"}
    beat = read({"clientID": "c", "consumerDataSet": [{"groupName": "G", "subscriptionDataSet": [row]}]})
    assert only(beat) == subscribe("T", 7, "n > 2", True)


def consumer(**fields: Any) -> dict[str, Any]:
    return {"clientID": "c", "consumerDataSet": [{"groupName": "G", **fields}]}


def subscribed(**fields: Any) -> dict[str, Any]:
    return consumer(subscriptionDataSet=[{"topic": "T", **fields}])


@pytest.mark.parametrize(
    ("body", "what"),
    [
        (b"", "no JSON"),
        (b"x" * (heartbeats.HEARTBEAT_BYTES_MAX + 1), "bytes"),
        ({"clientID": 7}, "no text"),
        ({"clientID": "c" * 256}, "255 characters"),
        ({"clientID": "a\nb"}, "no name"),
        ({"consumerDataSet": [{"groupName": "G"}]}, "no clientID"),
        ({"producerDataSet": [{"groupName": "G"}]}, "no clientID"),
        ({"clientID": "c", "consumerDataSet": {}}, "no list"),
        ({"clientID": "c", "consumerDataSet": [1]}, "no list"),
        ({"clientID": "c", "producerDataSet": [{"groupName": "P"}] * 1025}, "1024 groups"),
        (consumer(messageModel="X"), "messageModel"),
        (consumer(messageModel=2), "messageModel"),
        (consumer(consumeType=True), "consumeType"),
        (consumer(consumeFromWhere=[]), "consumeFromWhere"),
        (consumer(subscriptionDataSet=[{"topic": "T"}] * 1025), "1024 subscriptions"),
        (consumer(subscriptionDataSet=[{}]), "topic"),
        (consumer(subscriptionDataSet=[{"topic": "T" * 263}]), "topic"),
        (subscribed(subVersion="x"), "subVersion"),
        (subscribed(subVersion=1 << 63), "subVersion"),
        (subscribed(subVersion=1.5), "subVersion"),
        (subscribed(subString=7), "no text"),
        (subscribed(expressionType="XPATH"), "XPATH"),
    ],
)
def test_what_is_refused_is_told_in_a_sentence(body: Any, what: str) -> None:
    with pytest.raises(BadRequest, match=what):
        read(body)


def test_the_bound_of_subscriptions_is_one_of_the_whole_heartbeat() -> None:
    rows = [{"topic": f"T{number}"} for number in range(600)]
    groups = [{"groupName": name, "subscriptionDataSet": rows} for name in "GH"]
    with pytest.raises(BadRequest, match="1024 subscriptions"):
        read({"clientID": "c", "consumerDataSet": groups})
