"""A nameserver process, asked by the remoting protocol. Numbers are those of the gateway's checklist."""

import asyncio
import json
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from integration.registering import facts_of
from integration.test_nameserver import Held, asking, settled
from support.cluster.processes import Process
from support.systems.real_broker import Remoting
from whimbrel.pb.apache.rocketmq.v2 import definition_pb2 as v2

pytestmark = pytest.mark.process

ROUTE, CLUSTER, TOPICS = 105, 106, 206


@pytest.fixture
def nameserver(tmp_path: Path) -> Iterator[Process]:
    settings: dict[str, object] = {
        "lease_s": 2.0,
        "renew_s": 0.2,
        "remoting_port": 0,
        "kv_config": tmp_path / "kvConfig.json",
        "metrics_port": 0,
    }
    with Process(tmp_path, "nameserver", "nameserver", **settings) as process:
        yield process


def alias(process: Process) -> str:
    return str(process.ready["remoting"])


def ask(address: str, code: int, **fields: str) -> tuple[int, dict[str, str], str]:
    """Return code, fields, and body or remark of a response."""
    with Remoting(address) as peer:
        header, body = peer.call(code, fields)
    return header["code"], header.get("extFields", {}), body.decode() or header.get("remark", "")


def queues_of(address: str, topic: str) -> Any:
    """Return the queues of a route by broker name, and the order of the topic."""
    code, _, body = ask(address, ROUTE, topic=topic, acceptStandardJsonOnly="true")
    assert code == 0, body
    route = json.loads(body)
    return {row["brokerName"]: row["perm"] for row in route["queueDatas"]}, route.get("orderTopicConf")


async def test_both_ports_tell_what_brokers_have_registered(nameserver: Process) -> None:
    """6.1/1 and 4: one port serves remoting and gRPC; all members are listed."""
    async with (
        asking(nameserver) as client,
        Held(facts_of("a", 0, 9001, "T"), nameserver.grpc),
        Held(facts_of("a", 1, 9002, "T"), nameserver.grpc),
    ):
        await settled(client)
        expected = '{"brokerDatas":[{"brokerAddrs":{0:"127.0.0.1:9001",1:"127.0.0.1:9002"},"brokerName":"a"'
        for address in (nameserver.grpc, alias(nameserver)):
            code, _, body = ask(address, ROUTE, topic="T")
            assert (code, body[: len(expected)]) == (0, expected)
            assert ask(address, ROUTE, topic="new")[0] == 17
            code, _, body = ask(address, CLUSTER)
            assert body.endswith('"clusterAddrTable":{"C":["a"]}}')
            assert ask(address, TOPICS)[2] == '{"topicList":["T"]}'
        assert ask(alias(nameserver), 103)[0] == 1
        assert ask(alias(nameserver), 999)[0] == 3
    counted = scraped(nameserver)
    for response in ("success", "topic_not_exist"):
        assert any(
            f'response_code="{response}"' in line and 'request_code="get_routeinfo_by_topic"' in line
            for line in counted
        ), counted


def scraped(process: Process) -> list[str]:
    """Return what a process shows of requests of this protocol."""
    with urllib.request.urlopen(f"http://{process.ready['metrics']}/metrics", timeout=10) as answer:
        lines = answer.read().decode().splitlines()
    return [line for line in lines if 'protocol_type="remoting"' in line]


async def test_what_tools_change_shows_in_routes_of_both_protocols(nameserver: Process) -> None:
    """6.1/51: deleteTopic, wipe/addWritePerm, updateOrderConf show in routes."""
    address = alias(nameserver)
    facts = facts_of("a", 0, 9001, "T", "U")
    async with asking(nameserver) as client, Held(facts, nameserver.grpc) as held:
        await settled(client)
        assert ask(address, 100, namespace="ORDER_TOPIC_CONFIG", key="T", value="a:4")[0] == 0
        assert queues_of(address, "T") == ({"a": 6}, "a:4")
        assert ask(address, 205, brokerName="a")[:2] == (0, {"wipeTopicCount": "2"})
        assert queues_of(address, "T") == ({"a": 4}, "a:4")
        assert {queue.permission for queue in (await client.route("T")).message_queues} == {v2.READ}
        assert ask(address, 327, brokerName="a")[:2] == (0, {"addTopicCount": "2"})
        assert queues_of(address, "U") == ({"a": 6}, None)

        refused, _, why = await asyncio.to_thread(ask, address, 216, topic="U")
        assert (refused, why[:31]) == (1, "topic U stays, since brokers ha")
        held.change(facts_of("a", 0, 9001, "T", counter=2))
        assert (await asyncio.to_thread(ask, address, 216, topic="U"))[0] == 0
        assert ask(address, ROUTE, topic="U")[0] == 17


def test_values_are_there_after_a_kill(nameserver: Process) -> None:
    fields = {"namespace": "NSX", "key": "a"}
    assert ask(nameserver.grpc, 100, value="b", **fields)[0] == 0
    nameserver.kill()
    nameserver.start()
    assert ask(nameserver.grpc, 101, **fields)[:2] == (0, {"value": "b"})
    assert ask(nameserver.grpc, 102, **fields)[0] == 0
    assert ask(nameserver.grpc, 101, **fields)[0] == 22


def test_a_nameserver_that_has_just_started_says_so(tmp_path: Path) -> None:
    """6.1/3: unsettled: 1, TBW102 too."""
    with Process(tmp_path, "nameserver", "young", renew_s=60, lease_s=120) as process:
        for topic in ("new", "TBW102"):
            code, _, remark = ask(process.grpc, ROUTE, topic=topic)
            assert (code, "has just started" in remark) == (1, True)
        assert process.ready["remoting"] == ""
