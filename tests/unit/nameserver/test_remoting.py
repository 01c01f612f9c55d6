"""What a nameserver answers by the remoting protocol. Numbers are those of the gateway's checklist."""

from dataclasses import replace
from typing import Any

import pytest

from support.remoting.handlers import FakePeer
from support.remoting.tables import Later, command, json_of
from unit.nameserver.test_registry import MASTER, OLD, OTHER, SLAVE, broker, first, queues, registry
from unit.nameserver.test_route_bodies import LINES
from whimbrel.deferred import Deferred
from whimbrel.errors import (
    BadRequest,
    Forbidden,
    NotSupported,
    StoreError,
    Throttled,
    WhimbrelError,
)
from whimbrel.nameserver.kv_file import KvStore
from whimbrel.nameserver.kv_table import ORDER_NAMESPACE, KvTable
from whimbrel.nameserver.registry import TopicsChange, Update
from whimbrel.nameserver.remoting import ADMIN_CODES, DELETE_WAIT_S, DELETES_MAX, NameRequests
from whimbrel.rpc.remoting.admin_access import AdminAccess
from whimbrel.rpc.remoting.codes import RequestCode, ResponseCode
from whimbrel.rpc.remoting.handlers import Reply

LOOPBACK = FakePeer("127.0.0.1:5000", "127.0.0.1:9876")
STRANGER = FakePeer("10.0.0.50:5000", "10.0.0.9:9876")
OWN = ("127.0.0.1", "10.0.0.9")


class NameServer:
    """Handlers over tables with a master, its slave, and another master."""

    def __init__(self, *, admin: AdminAccess = "loopback", registered: bool = True, now: float = OLD) -> None:
        self.registry, self.kv, self.later, self.now = registry(), KvStore(), Later(), now
        self.requests = NameRequests(
            self.registry,
            self.kv,
            own=lambda: OWN,
            now=lambda: self.now,
            later=self.later,
            admin=admin,
            shown={"listenPort": "9876", "bindAddress": "h"},
        )
        if registered:
            self.registry.update("m", first(MASTER, T=queues(), TBW102=queues(8, 7)), 0.0)
            self.registry.update("s", first(SLAVE, T=queues()), 0.0)
            self.registry.update("o", first(OTHER, T=queues(2), U=queues()), 0.0)

    def ask(
        self,
        code: int,
        peer: FakePeer = LOOPBACK,
        *,
        version: int = 399,
        language: str = "JAVA",
        **fields: str,
    ) -> Any:
        request = replace(command(code, b"", **fields), version=version, language=language)
        return self.requests.service.handles[code](peer, request)

    def addresses(self, peer: FakePeer = LOOPBACK, *, topic: str = "T", language: str = "JAVA") -> Any:
        """Return addresses by broker name and id."""
        route = json_of(self.ask(105, peer, version=479, language=language, topic=topic))
        return {group["brokerName"]: group["brokerAddrs"] for group in route["brokerDatas"]}


@pytest.fixture
def server() -> NameServer:
    return NameServer()


# 105


def test_a_route_lists_all_members_and_the_queues_of_each_broker(server: NameServer) -> None:
    """6.1/4: all members; version 399 unquoted keys, 479 quoted."""
    reply = server.ask(105, topic="T")
    assert reply.code == 0
    assert b"".join(reply.body) == (
        b'{"brokerDatas":[{"brokerAddrs":{0:"10.0.0.1:8091",1:"10.0.0.2:8091"},"brokerName":"a","cluster":"C"},'
        b'{"brokerAddrs":{0:"10.0.0.3:8091"},"brokerName":"b","cluster":"C"}],"filterServerTable":{},'
        b'"queueDatas":[{"brokerName":"a","perm":6,"readQueueNums":4,"topicSysFlag":0,"writeQueueNums":4},'
        b'{"brokerName":"b","perm":6,"readQueueNums":2,"topicSysFlag":0,"writeQueueNums":2}]}'
    )
    for asked in (server.ask(105, topic="T", version=479), server.ask(105, topic="T", version=401)):
        assert b'"brokerAddrs":{"0":"10.0.0.1:8091","1":"10.0.0.2:8091"}' in b"".join(asked.body)
    assert server.ask(105, topic="T", version=400).body == reply.body
    asked = server.ask(105, topic="T", acceptStandardJsonOnly="true")
    assert json_of(asked)["brokerDatas"][0]["brokerAddrs"] == {"0": "10.0.0.1:8091", "1": "10.0.0.2:8091"}


def test_an_unknown_topic_is_not_there_whatever_a_send_would_make(server: NameServer) -> None:
    """6.1/3: 17, never the inherited route."""
    assert server.registry.route("new", OLD), "gRPC's clients are told where it may be made"
    reply = server.ask(105, topic="new")
    (theirs,) = [line for line in LINES if line["code"] == 105 and line["answer"] == 17]
    assert (reply.code, reply.body) == (17, ())
    assert reply.remark == theirs["remark"].splitlines()[0].replace("nope", "new")


def test_what_is_missing_at_all_is_told_with_an_unknown_topic() -> None:
    reply = NameServer(registered=False).ask(105, topic="T" * 10_000)
    assert reply.code == 17
    assert reply.remark.endswith(", and no broker is registered with this nameserver")
    assert len(reply.remark) < 300


def test_the_template_is_told_of_brokers_that_let_topics_be_made() -> None:
    """6.1/3: TBW102 is 17 with auto-create off."""
    server = NameServer()
    route = json_of(server.ask(105, topic="TBW102", version=479))
    assert [(row["brokerName"], row["perm"]) for row in route["queueDatas"]] == [("a", 7)]
    server.registry.update("m", Update(topics={"TBW102": queues(8, 6)}, version=(2, 0)), OLD)
    assert server.ask(105, topic="TBW102").code == 17


def test_before_it_is_settled_only_topics_that_are_known_are_told() -> None:
    """6.1/3: unsettled: 1, TBW102 too."""
    server = NameServer(now=0.5)
    assert server.ask(105, topic="T").code == 0
    for topic in ("new", "TBW102"):
        reply = server.ask(105, topic=topic)
        assert (reply.code, reply.body) == (1, ())
        assert "has just started" in reply.remark
    server.now = OLD
    assert [server.ask(105, topic=topic).code for topic in ("new", "TBW102")] == [17, 0]


def test_a_route_without_a_master_has_the_acting_slave_under_key_0_and_takes_no_writes(
    server: NameServer,
) -> None:
    server.registry.leave("m")
    route = json_of(server.ask(105, topic="T", version=479))
    assert route["brokerDatas"][0]["brokerAddrs"] == {"0": "10.0.0.2:8091"}
    assert [row["perm"] for row in route["queueDatas"]] == [4, 6]
    cluster = b"".join(server.ask(106).body)
    assert b'"a":{"brokerAddrs":{1:"10.0.0.2:8091"}' in cluster, "tools are told who it is"


def test_members_of_a_group_that_elects_stand_under_their_ids_and_the_leader_under_0() -> None:
    server = NameServer(registered=False)
    for session, member in (("1", 1), ("2", 2), ("3", 3)):
        who = broker(
            id_=0 if member == 2 else member, peer=f"10.0.1.{member}", member_id=member, epoch=3, voters=3
        )
        server.registry.update(session, first(who, T=queues()), OLD)
    assert server.addresses() == {"a": {"0": "10.0.1.2:8091", "1": "10.0.1.1:8091", "3": "10.0.1.3:8091"}}
    server.registry.leave("2")
    assert server.addresses() == {"a": {"0": "10.0.1.1:8091", "3": "10.0.1.3:8091"}}


def test_brokers_are_where_the_client_came_in_when_they_are_on_this_machine() -> None:
    server = NameServer(registered=False)
    server.registry.update("m", first(broker(peer="127.0.0.1"), T=queues()), OLD)
    server.registry.update("s", first(broker(id_=1, peer="10.0.0.9", port=8092), T=queues()), OLD)
    server.registry.update("o", first(broker("b", peer="10.0.0.3"), T=queues()), OLD)
    assert server.addresses(LOOPBACK) == {
        "a": {"0": "127.0.0.1:8091", "1": "127.0.0.1:8092"},
        "b": {"0": "10.0.0.3:8091"},
    }
    assert server.addresses(STRANGER) == {
        "a": {"0": "10.0.0.9:8091", "1": "10.0.0.9:8092"},
        "b": {"0": "10.0.0.3:8091"},
    }


def test_a_host_that_an_operator_has_set_wins() -> None:
    server = NameServer(registered=False)
    address = replace(MASTER.address, advertised_host="mq.example", advertised_explicitly=True)
    server.registry.update("m", first(replace(MASTER, address=address), T=queues()), OLD)
    assert server.addresses(LOOPBACK) == server.addresses(STRANGER) == {"a": {"0": "mq.example:8091"}}


def test_ipv6_has_brackets_for_go_alone() -> None:
    server = NameServer(registered=False)
    server.registry.update("m", first(broker(peer="::1"), T=queues()), OLD)
    peer = FakePeer("[::1]:5000", "[::1]:9876")
    assert server.addresses(peer) == {"a": {"0": "::1:8091"}}
    assert server.addresses(peer, language="GO") == {"a": {"0": "[::1]:8091"}}


def test_the_order_of_a_topic_shows_in_its_route(server: NameServer) -> None:
    """6.1/51: updateOrderConf shows in routes."""
    order: dict[str, Any] = {"namespace": ORDER_NAMESPACE, "key": "T"}
    assert server.ask(100, value="a:4;b:2", **order).code == 0
    assert json_of(server.ask(105, topic="T", version=479))["orderTopicConf"] == "a:4;b:2"
    assert "orderTopicConf" not in json_of(server.ask(105, topic="U", version=479))
    assert server.ask(102, **order).code == 0
    assert "orderTopicConf" not in json_of(server.ask(105, topic="T", version=479))
    with pytest.raises(BadRequest, match="order of a topic"):
        server.ask(100, value="T", **order)


# Other reads


def test_the_cluster_has_all_brokers_under_their_ids(server: NameServer) -> None:
    assert b"".join(server.ask(106, version=479).body) == (
        b'{"brokerAddrTable":{"a":{"brokerAddrs":{0:"10.0.0.1:8091",1:"10.0.0.2:8091"},"brokerName":"a",'
        b'"cluster":"C"},"b":{"brokerAddrs":{0:"10.0.0.3:8091"},"brokerName":"b","cluster":"C"}},'
        b'"clusterAddrTable":{"C":["a","b"]}}'
    )
    empty = NameServer(registered=False).ask(106)
    assert json_of(empty) == {"brokerAddrTable": {}, "clusterAddrTable": {}}


def test_topics_are_listed_all_or_by_cluster_or_by_flag() -> None:
    server = NameServer()
    flagged: dict[str, Any] = {f"F{flag}": replace(queues(), system_flag=flag) for flag in range(4)}
    server.registry.update("x", first(broker("x", cluster="D", peer="10.0.0.7"), **flagged), OLD)
    assert json_of(server.ask(206))["topicList"] == ["T", "TBW102", "U", "F0", "F1", "F2", "F3"]
    assert json_of(server.ask(224, cluster="D"))["topicList"] == ["F0", "F1", "F2", "F3"]
    assert json_of(server.ask(224, cluster="nobody's"))["topicList"] == []
    assert [json_of(server.ask(code))["topicList"] for code in (311, 312, 313)] == [
        ["F1", "F3"],
        ["F2", "F3"],
        ["F2"],
    ]
    assert json_of(server.ask(304)) == {"brokerAddr": "10.0.0.1:8091", "topicList": ["a", "b", "x", "C", "D"]}
    assert json_of(NameServer(registered=False).ask(304)) == {"topicList": []}


def test_lists_change_as_soon_as_the_topics_do(server: NameServer) -> None:
    def lists() -> list[list[str]]:
        return [json_of(reply)["topicList"] for reply in (server.ask(206), server.ask(224, cluster="C"))]

    assert lists() == lists() == [["T", "TBW102", "U"]] * 2
    server.registry.update("m", Update(topics={"T": queues(), "V": queues()}, version=(2, 0)), OLD)
    assert lists() == [["T", "U", "V"]] * 2
    change = TopicsChange(base=(2, 0), topics={"W": queues()}, deleted=frozenset({"V"}))
    server.registry.update("m", Update(change=change, version=(3, 0)), OLD)
    assert lists() == [["T", "U", "W"]] * 2
    server.registry.leave("o")
    assert lists() == [["T", "W"]] * 2
    server.registry.update("x", first(broker("x", peer="10.0.0.7"), X=queues()), OLD)
    assert lists() == [["T", "W", "X"]] * 2


def test_settings_are_shown_and_never_changed(server: NameServer) -> None:
    assert b"".join(server.ask(319).body) == b"bindAddress=h\nlistenPort=9876\n"
    with pytest.raises(NotSupported, match="start it again") as refused:
        server.ask(318)
    assert refused.value.remoting == 1


@pytest.mark.parametrize("code", [103, 104, 322])
def test_a_broker_of_rocketmq_is_told_that_it_can_t_register(server: NameServer, code: int) -> None:
    with pytest.raises(NotSupported, match="brokers of RocketMQ can't register here") as refused:
        server.ask(code, STRANGER)
    assert refused.value.remoting == 1


def test_a_field_that_is_missing_is_named(server: NameServer) -> None:
    for code, field in (
        (105, "topic"),
        (224, "cluster"),
        (101, "namespace"),
        (205, "brokerName"),
        (216, "topic"),
    ):
        with pytest.raises(BadRequest, match=f"request {code} has no field {field}"):
            server.ask(code)


def test_a_peer_that_does_not_read_gets_no_more(server: NameServer) -> None:
    slow = FakePeer()
    slow.overloaded = True
    for code in (105, 106, 206, 219):
        with pytest.raises(Throttled, match="does not read"):
            server.ask(code, slow, topic="T", namespace="n")


# Values


def test_values_are_as_at_rocketmq(server: NameServer) -> None:
    asked = [line for line in LINES if line["code"] in (100, 101, 102, 219) and line["server"] == "4.9.3"]
    assert len(asked) == 7
    for line in asked:
        reply = server.ask(line["code"], **line["ext"])
        found = (reply.code, dict(reply.fields), reply.remark, b"".join(reply.body).decode())
        assert found == (
            line["answer"],
            line.get("fields", {}),
            line.get("remark"),
            line.get("body", ""),
        ), line


def test_a_value_that_is_not_there_is_deleted_without_a_write(server: NameServer) -> None:
    before = server.kv.table
    assert server.ask(102, namespace="n", key="k").code == 0
    assert server.kv.table is before


def test_a_disk_that_refuses_is_told_without_its_path(
    server: NameServer, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def refuse(after: KvTable) -> None:
        raise StoreError("kv_config: /secret/path can't be written")

    monkeypatch.setattr(server.kv, "change", refuse)
    with pytest.raises(WhimbrelError, match="its log says more") as refused:
        server.ask(100, namespace="n", key="k", value="v")
    assert "/secret" not in str(refused.value)
    assert "/secret/path" in caplog.text


# Permissions


def test_a_wiped_broker_shows_in_routes_and_the_topics_are_counted(server: NameServer) -> None:
    """6.1/51: wipe/addWritePerm show in routes."""

    def permissions() -> list[tuple[str, int]]:
        rows = json_of(server.ask(105, topic="T", version=479))["queueDatas"]
        return [(row["brokerName"], row["perm"]) for row in rows]

    assert server.ask(205, brokerName="a").fields == {"wipeTopicCount": "2"}
    assert permissions() == [("a", 4), ("b", 6)]
    assert server.ask(327, brokerName="a").fields == {"addTopicCount": "2"}
    assert permissions() == [("a", 6), ("b", 6)]
    assert server.ask(205, brokerName="nobody").fields == {"wipeTopicCount": "0"}
    assert server.ask(327, brokerName="nobody").fields == {"addTopicCount": "0"}


# Topics that are deleted


def deleting(server: NameServer, **fields: Any) -> Deferred[Reply]:
    reply = server.ask(216, **fields)
    assert isinstance(reply, Deferred)
    assert not reply.done
    return reply


def test_a_topic_that_no_broker_has_is_deleted(server: NameServer) -> None:
    assert server.ask(216, topic="never").code == 0
    assert server.ask(216, topic="U", clusterName="another").code == 0
    assert not server.later.due


def test_a_deletion_is_answered_once_the_last_broker_has_said_so(server: NameServer) -> None:
    """6.1/51: deleteTopic shows in routes."""
    reply = deleting(server, topic="T")
    server.registry.update("m", Update(topics={}, version=(2, 0)), OLD)
    assert not reply.done
    server.registry.update("o", Update(topics={"U": queues()}, version=(2, 0)), OLD)
    assert reply.result == Reply()
    assert server.ask(105, topic="T").code == 17
    assert server.later.run() == [DELETE_WAIT_S]
    assert not server.requests.deletes


def test_a_deletion_in_a_cluster_waits_for_its_brokers_alone(server: NameServer) -> None:
    server.registry.update("x", first(broker("x", cluster="D", peer="10.0.0.7"), U=queues()), OLD)
    reply = deleting(server, topic="U", clusterName="C")
    server.registry.update("o", Update(topics={}, version=(2, 0)), OLD)
    assert reply.result == Reply()


def test_a_topic_that_brokers_keep_stays_and_they_are_named(server: NameServer) -> None:
    reply = deleting(server, topic="T")
    server.later.run()
    with pytest.raises(BadRequest, match="topic T stays, since brokers have it: a, b"):
        assert reply.error is not None
        raise reply.error
    assert server.ask(105, topic="T").code == 0
    assert not server.requests.deletes


def test_deletions_that_wait_are_bounded(server: NameServer) -> None:
    for _ in range(DELETES_MAX):
        deleting(server, topic="T")
    with pytest.raises(Throttled):
        server.ask(216, topic="T")
    server.later.run()
    deleting(server, topic="T")


# Who may


@pytest.mark.parametrize("code", sorted(ADMIN_CODES))
def test_who_is_not_on_this_machine_changes_nothing(code: int) -> None:
    server = NameServer()
    fields: dict[str, Any] = {"namespace": "n", "key": "k", "value": "v", "brokerName": "a", "topic": "never"}
    with pytest.raises(Forbidden, match="remoting_admin") as refused:
        server.ask(code, STRANGER, **fields)
    assert refused.value.remoting == ResponseCode.NO_PERMISSION
    assert not server.kv.table.namespaces
    assert not server.registry.wiped
    if code != RequestCode.UPDATE_NAMESRV_CONFIG:
        assert NameServer(admin="any").ask(code, STRANGER, **fields).code == 0
        with pytest.raises(Forbidden):
            NameServer(admin="none").ask(code, LOOPBACK, **fields)


def test_everybody_may_read(server: NameServer) -> None:
    reads = set(server.requests.service.handles) - ADMIN_CODES - {103, 104, 322}
    assert reads == {101, 105, 106, 206, 219, 224, 304, 311, 312, 313, 319}
    for code in reads:
        reply = server.ask(code, STRANGER, topic="T", cluster="C", namespace="n", key="k")
        assert reply.code in (0, 22)
