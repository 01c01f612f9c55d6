"""Heartbeats, who is told of changes, and what tools are shown, over connections without bytes."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from support.remoting.handlers import FakePeer
from support.remoting.tables import Later, command, json_of, reply_to, tables
from whimbrel.broker.consume.filters import compile_filter
from whimbrel.broker.remoting.clients import TELL_S, RemotingClientService
from whimbrel.broker.tables import group_creation
from whimbrel.broker.tables.group_creation import GroupCreation
from whimbrel.broker.tables.remoting_clients import RemotingClients
from whimbrel.errors import BadRequest, IllegalFilter, IllegalGroup, Throttled
from whimbrel.model.topic import GroupConfig
from whimbrel.rpc.remoting.handlers import Reply


class Service:
    """The handlers over tables in a directory; `routed` is what waits for nameservers."""

    def __init__(self, path: Path, *, master: bool = True, auto_groups: bool = True) -> None:
        self.now = 1000.0
        self.topics, self.groups = tables(path, auto_groups=auto_groups)
        self.clients = RemotingClients(compile_filter)
        self.later = Later()
        self.routed: list[Callable[[], None]] = []
        creation = GroupCreation(self.topics, self.groups, master=master, clock=lambda: self.now)
        self.service = RemotingClientService(
            self.clients,
            self.groups,
            creation,
            clock=lambda: self.now,
            wall_ms=lambda at: int(at * 1000),
            later=self.later,
            once_routed=self.routed.append,
        )
        self.handles = self.service.handles()

    def __call__(self, peer: FakePeer, code: int, body: Any = b"", **fields: object) -> Reply:
        return reply_to(self.handles, peer, command(code, body, **fields))

    def beat(self, peer: FakePeer, group: str = "G", client: str = "c", **more: Any) -> Reply:
        rows = [{"topic": "T", "subString": "A", "subVersion": 1, **more}]
        body = {"clientID": client, "consumerDataSet": [{"groupName": group, "subscriptionDataSet": rows}]}
        return self(peer, 34, body)

    def tell(self) -> None:
        """Let nameservers know what is new, and the round of 40 come."""
        waiting, self.routed = self.routed, []
        for callback in waiting:
            callback()
        self.later.run()


@pytest.fixture
def service(tmp_path: Path) -> Service:
    return Service(tmp_path)


TOLD = (40, {"consumerGroup": "G"}, b"")


def test_6_1_30_the_first_heartbeat_makes_the_group_and_its_retry_topic(service: Service) -> None:
    peer = FakePeer()
    assert service.beat(peer).code == 0
    assert service.groups.get("G") == GroupConfig(name="G")
    retry = service.topics.get("%RETRY%G")
    assert retry is not None
    assert (retry.read_queues, retry.write_queues, retry.permission) == (1, 1, 6)
    assert peer.pushed == [] and service.later.due == [], "nameservers do not route it yet"
    service.tell()
    assert peer.pushed == [TOLD], "the joining member as well"


def test_a_group_that_is_there_gets_its_retry_topic_with_its_own_number_of_queues(service: Service) -> None:
    service.groups.put(GroupConfig(name="G", retry_queues=3))
    service.groups.put(GroupConfig(name="none", retry_queues=0))
    service.beat(FakePeer())
    service.beat(FakePeer(), "none")
    retry = service.topics.get("%RETRY%G")
    assert retry is not None and retry.read_queues == 3
    assert service.topics.get("%RETRY%none") is None


def test_6_1_31_a_second_member_and_one_that_goes_are_told_to_all_who_are_there(service: Service) -> None:
    first, second = FakePeer("a:1"), FakePeer("a:2")
    service.beat(first)
    service.tell()
    service.later.run()
    service.beat(second, client="d")
    assert service.later.run() == [0]
    assert first.pushed == [TOLD] * 2 and second.pushed == [TOLD]
    assert json_of(service(first, 38, consumerGroup="G")) == {"consumerIdList": ["c", "d"]}
    service.service.closed(first)
    service.later.run()  # the time between two rounds is over
    assert second.pushed == [TOLD] * 2 and len(first.pushed) == 2
    assert json_of(service(second, 38, consumerGroup="G")) == {"consumerIdList": ["d"]}


def test_6_1_31_nobody_answers_1(service: Service) -> None:
    assert service(FakePeer(), 38, consumerGroup="G").code == 1


def test_changes_of_a_moment_are_told_in_one_round_and_rounds_have_a_distance(service: Service) -> None:
    peers = [FakePeer(f"a:{number}") for number in range(3)]
    for peer in peers:
        service.beat(peer)
    service.tell()
    assert [peer.pushed for peer in peers] == [[TOLD]] * 3
    assert [seconds for seconds, _ in service.later.due] == [TELL_S]
    service.service.closed(peers[0])
    service.service.closed(peers[1])
    assert len(service.later.due) == 1 and len(peers[2].pushed) == 1, "not before the distance is over"
    service.later.run()
    assert len(peers[2].pushed) == 2
    service.later.run()
    assert service.later.due == [], "nothing is left to be told"


def test_a_repeated_heartbeat_is_told_to_nobody(service: Service) -> None:
    peer = FakePeer()
    service.beat(peer)
    service.tell()
    service.later.run()
    service.beat(peer)
    service.beat(peer, subVersion=2)
    assert service.later.due == [] and service.routed == []


def test_a_group_may_say_that_its_members_are_not_told(service: Service) -> None:
    service.groups.put(GroupConfig(name="G", rest={"notifyConsumerIdsChangedEnable": False}))
    peer = FakePeer()
    service.beat(peer)
    service.tell()
    assert peer.pushed == []


@pytest.mark.parametrize(("language", "told"), [("JAVA", []), ("CPP", [TOLD]), ("GO", [TOLD])])
def test_a_java_client_that_is_alone_is_not_told_that_it_has_come(
    service: Service, language: str, told: list[object]
) -> None:
    first = FakePeer("a:1")
    service.beat(first)
    service.tell()
    service.later.run()
    service.service.closed(first)
    service.later.run()
    peer = FakePeer("a:2")
    body = {"clientID": "c", "consumerDataSet": [{"groupName": "G", "subscriptionDataSet": []}]}
    beat = replace(command(34, body), language=language)
    assert reply_to(service.handles, peer, beat).code == 0
    service.tell()
    assert peer.pushed == told


def test_6_1_32_silent_members_are_closed_and_the_others_told(service: Service) -> None:
    silent, alive = FakePeer("a:1"), FakePeer("a:2")
    service.beat(silent)
    service.now += 100
    service.beat(alive, client="d")
    service.tell()
    service.later.run()
    service.now += 21
    service.service.sweep()
    assert silent.closed and not alive.closed
    service.later.run()
    assert len(alive.pushed) == 2


def test_6_1_33_unregistering_with_an_empty_group_creates_nothing(service: Service) -> None:
    before = dict(service.groups.rows), dict(service.topics.rows)
    assert service(FakePeer(), 35, clientID="c", producerGroup="", consumerGroup="").code == 0
    assert service(FakePeer(), 35, clientID="c").code == 0
    assert (service.groups.rows, service.topics.rows) == before and not service.clients.groups


def test_unregistering_is_told_to_the_rest(service: Service) -> None:
    first, second = FakePeer("a:1"), FakePeer("a:2")
    service.beat(first)
    service.beat(second, client="d")
    service.tell()
    service.later.run()
    assert service(first, 35, clientID="c", consumerGroup="G").code == 0
    service.later.run()
    assert len(first.pushed) == 1 and len(second.pushed) == 2


def test_a_slave_takes_members_and_creates_nothing(tmp_path: Path) -> None:
    service = Service(tmp_path, master=False)
    peer = FakePeer()
    assert service.beat(peer).code == 0
    assert service.groups.get("G") is None and service.topics.get("%RETRY%G") is None
    service.later.run()
    assert peer.pushed == [], "it is alone, and shares queues out by itself"
    service.beat(FakePeer("a:2"), client="d")
    service.later.run()
    assert peer.pushed == [TOLD]
    assert json_of(service(peer, 38, consumerGroup="G")) == {"consumerIdList": ["c", "d"]}


def test_a_broker_that_makes_no_groups_takes_members_all_the_same(tmp_path: Path) -> None:
    service = Service(tmp_path, auto_groups=False)
    assert service.beat(FakePeer()).code == 0, "as RocketMQ: pulls say that there is no such group"
    assert service.groups.get("G") is None and service.topics.get("%RETRY%G") is None
    assert service.clients.group("G") is not None


def test_a_name_that_no_group_may_have_is_refused_and_the_others_are_taken(service: Service) -> None:
    body = {
        "clientID": "c",
        "consumerDataSet": [{"groupName": "a b"}, {"groupName": "G"}],
        "producerDataSet": [{"groupName": "p/q"}, {"groupName": "P"}],
    }
    with pytest.raises(IllegalGroup, match="a b"):
        service(FakePeer(), 34, body)
    assert set(service.clients.groups) == {"G"} and set(service.clients.producers) == {"P"}
    assert service.groups.get("a b") is None


def test_groups_that_are_made_in_a_second_are_bounded(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(group_creation, "BURST", 4.0)
    service.service.creation.room = 4
    peer = FakePeer()
    for number in range(2):
        service.beat(peer, f"G{number}")
    with pytest.raises(Throttled):
        service.beat(peer, "G2")
    assert service.groups.get("G2") is None and service.topics.get("%RETRY%G2") is None
    assert service.beat(peer, "G0").code == 0, "one that is there already goes on"
    service.now += 1
    assert service.beat(peer, "G2").code == 0


@pytest.mark.parametrize("body", [b"", b"junk"])
def test_no_heartbeat_is_refused(service: Service, body: bytes) -> None:
    with pytest.raises(BadRequest):
        service(FakePeer(), 34, body)


def test_an_empty_heartbeat_is_none(service: Service) -> None:
    peer = FakePeer()
    assert service(peer, 34, b"{}").code == 0 and not service.clients.knows(peer)


# Tools


def test_consumers_are_shown_with_their_subscriptions(service: Service) -> None:
    service.beat(FakePeer("10.0.0.1:7"), subString="TagA || 订单")
    found = json_of(service(FakePeer(), 203, consumerGroup="G"))
    assert found == {
        "connectionSet": [{"clientAddr": "10.0.0.1:7", "clientId": "c", "language": "JAVA", "version": 399}],
        "consumeFromWhere": "CONSUME_FROM_LAST_OFFSET",
        "consumeType": "CONSUME_PASSIVELY",
        "messageModel": "CLUSTERING",
        "subscriptionTable": {
            "T": {
                "classFilterMode": False,
                "codeSet": [2598919, 1129459],
                "expressionType": "TAG",
                "subString": "TagA || 订单",
                "subVersion": 1,
                "tagsSet": ["TagA", "订单"],
                "topic": "T",
            }
        },
    }
    assert service(FakePeer(), 203, consumerGroup="H").code == 206


def test_producers_are_shown(service: Service) -> None:
    peer = FakePeer("10.0.0.1:7")
    service(peer, 34, {"clientID": "c", "producerDataSet": [{"groupName": "P"}]})
    connection = {"clientAddr": "10.0.0.1:7", "clientId": "c", "language": "JAVA", "version": 399}
    assert json_of(service(FakePeer(), 204, producerGroup="P")) == {"connectionSet": [connection]}
    assert service(FakePeer(), 204, producerGroup="Q").code == 1
    assert json_of(service(FakePeer(), 328)) == {
        "data": {
            "P": [
                {
                    "clientId": "c",
                    "language": "JAVA",
                    "lastUpdateTimestamp": 1_000_000,
                    "remoteIP": "/10.0.0.1:7",
                    "version": 399,
                }
            ]
        }
    }


def test_sql_that_does_not_compile_is_refused_when_it_is_checked(service: Service) -> None:
    def check(**fields: object) -> Reply:
        row = {"topic": "T", "subVersion": 1, **fields}
        return service(FakePeer(), 46, {"clientId": "c", "group": "G", "subscriptionData": row})

    assert check(expressionType="SQL92", subString="n > 2").code == 0
    assert check(expressionType="TAG", subString="n >").code == 0
    assert service(FakePeer(), 46, b"{}").code == 0
    with pytest.raises(IllegalFilter) as refused:
        check(expressionType="SQL92", subString="n >")
    assert refused.value.remoting == 23


def test_6_1_59_fields_that_nobody_knows_change_nothing(service: Service) -> None:
    body = json.dumps({"clientID": "c", "consumerDataSet": [{"groupName": "G", "x": 1}], "y": []}).encode()
    request = replace(command(34, body), fields={"z": "1"})
    assert reply_to(service.handles, FakePeer(), request).code == 0
