"""Bodies by the remoting protocol, compared with those of real name servers.

`recorded.jsonl` has what RocketMQ 4.9.3 and 5.3.3 answered with two masters of 4.9.3 and a slave registered:
`version` and `ext` are the request's, `answer`, `fields`, `remark` and `body` the response's.
"""

import json
import re
from pathlib import Path
from typing import Any

import pytest

from whimbrel.nameserver.registry import QueueCounts
from whimbrel.nameserver.route_bodies import (
    STANDARD_VERSION,
    BrokerGroup,
    address_text,
    cluster_info,
    key_values,
    topic_list,
    topic_route,
)

RECORDED = Path(__file__).parent / "recorded.jsonl"
LINES: list[dict[str, Any]] = [json.loads(line) for line in RECORDED.read_text(encoding="utf-8").splitlines()]

A = BrokerGroup("DefaultCluster", "broker-a", {0: "127.0.0.1:18911", 1: "127.0.0.1:18921"})
B = BrokerGroup("DefaultCluster", "broker-b", {0: "127.0.0.1:18931"})


def recorded(server: str, version: int, code: int, **fields: str) -> list[str]:
    """Return the bodies of the answers to a request."""
    return [
        line["body"]
        for line in LINES
        if (line["server"], line["version"], line["code"]) == (server, version, code)
        and line.get("ext", {}) == fields
    ]


def quoted(body: str) -> Any:
    """Return what a body says, its lists sorted: RocketMQ's tables have no order."""
    found = json.loads(re.sub(r"([{,])(\d+):", r'\1"\2":', body))

    def ordered(value: Any) -> Any:
        if isinstance(value, dict):
            return {key: ordered(each) for key, each in value.items()}
        return sorted(map(ordered, value), key=str) if isinstance(value, list) else value

    return ordered(found)


def counts(queues: int, permission: int) -> QueueCounts:
    return QueueCounts(read_queues=queues, write_queues=queues, permission=permission)


# 5.3.3 tells one thing more, which 4.9.3 does not know.
MORE = ',"enableActingMaster":false'


@pytest.mark.parametrize(
    ("server", "version", "permission"),
    [("4.9.3", 399, 7), ("5.3.3", 399, 7), ("5.3.3", 479, 6)],  # 205 and 327 came between the last two
)
def test_a_route_is_what_rocketmq_writes(server: str, version: int, permission: int) -> None:
    """6.1/4: all members are listed, unquoted for 399, quoted for 479."""
    theirs = recorded(server, version, 105, topic="broker-a")[0].replace(MORE, "")
    standard = version >= STANDARD_VERSION
    ours = topic_route([(A, counts(1, permission))], standard=standard).decode()
    assert ours == theirs
    theirs = recorded(server, version, 105, topic="TBW102")[0].replace(MORE, "")
    ours = topic_route([(A, counts(8, permission)), (B, counts(8, 7))], standard=standard).decode()
    assert len(ours) == len(theirs)
    assert quoted(ours) == quoted(theirs)


def test_standard_json_may_be_asked_for() -> None:
    (theirs,) = recorded("5.3.3", 399, 105, topic="broker-a", acceptStandardJsonOnly="true")
    assert topic_route([(A, counts(1, 7))], standard=True).decode() == theirs.replace(MORE, "")


def test_a_route_has_the_order_of_the_topic_where_there_is_one() -> None:
    ordered = topic_route([(B, counts(4, 6))], order="broker-b:4").decode()
    assert '"filterServerTable":{},"orderTopicConf":"broker-b:4","queueDatas":[' in ordered


@pytest.mark.parametrize(("server", "version"), [("4.9.3", 399), ("5.3.3", 399), ("5.3.3", 479)])
def test_the_cluster_is_what_rocketmq_writes_without_quotes_whoever_asks(server: str, version: int) -> None:
    theirs = recorded(server, version, 106)[0].replace(MORE, "")
    ours = cluster_info([A, B]).decode()
    assert len(ours) == len(theirs)
    assert quoted(ours) == quoted(theirs)


def test_lists_of_topics_are_what_rocketmq_writes() -> None:
    for code, fields in ((206, {}), (311, {}), (224, {"cluster": "x"})):
        (theirs,) = recorded("4.9.3", 399, code, **fields)
        assert topic_list(json.loads(theirs)["topicList"]).decode() == theirs
    (theirs,) = recorded("4.9.3", 399, 304)
    found = json.loads(theirs)
    assert topic_list(found["topicList"], found["brokerAddr"]).decode() == theirs


def test_values_of_a_namespace_are_what_rocketmq_writes() -> None:
    (theirs,) = recorded("4.9.3", 399, 219, namespace="ns1")
    assert key_values({"b": 'é\x01"x', "a": "2"}).decode() == theirs


def test_only_go_wants_brackets_around_ipv6() -> None:
    assert address_text("::1", 10911, "GO") == "[::1]:10911"
    assert address_text("::1", 10911, "JAVA") == "::1:10911"
    assert {address_text("10.0.0.1", 1, each) for each in ("GO", "JAVA", "CPP")} == {"10.0.0.1:1"}
