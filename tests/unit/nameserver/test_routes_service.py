"""What clients are told of the tables."""

from dataclasses import replace
from typing import Any

import pytest

from whimbrel.nameserver.addresses import BrokerAddress
from whimbrel.nameserver.registry import BrokerIdentity, QueueCounts, Registry, Update
from whimbrel.nameserver.resolver import Resolver
from whimbrel.nameserver.routes_service import RoutesService
from whimbrel.pb.apache.rocketmq.v2 import definition_pb2 as v2
from whimbrel.pb.apache.rocketmq.v2 import service_pb2 as messaging
from whimbrel.rpc.server.handlers import Call

NOW = 1000.0  # long after the start
QUEUES = QueueCounts(read_queues=4, write_queues=4, permission=6)


def update(id_: int, port: int, *, peer: str = "127.0.0.1", host: str = "", member: int = 0) -> Update:
    address = BrokerAddress(
        advertised_host=host,
        advertised_explicitly=bool(host),
        port=port,
        host_name="h",
        nameserver_host="127.0.0.1",
        peer_host=peer,
    )
    broker = BrokerIdentity(
        cluster="C",
        name="a",
        id=id_,
        master=id_ == 0,
        address=address,
        member_id=member,
        epoch=3 if member else 0,
        voters=3 if member else 0,
    )
    return Update(broker=broker, topics={"T": QUEUES}, version=(1, 0))


def assigned(
    registry: Registry,
    *,
    peer: str = "p",
    access: str = "127.0.0.1",
    route_members: bool = True,
    said: dict[str, str] | None = None,
) -> list[tuple[int, int, int]]:
    """Return queue id, broker id and port of each assignment."""
    service = RoutesService(
        registry,
        own=lambda: ("127.0.0.1", "10.0.0.9"),
        resolver=Resolver(),
        now=lambda: NOW,
        route_members=route_members,
    )
    scheme = v2.DOMAIN_NAME if access == "localhost" else v2.IPv4
    endpoints = v2.Endpoints(scheme=scheme, addresses=[v2.Address(host=access, port=8081)])
    request = messaging.QueryAssignmentRequest(
        topic=v2.Resource(name="T"), group=v2.Resource(name="g"), endpoints=endpoints
    )
    headers = {"x-mq-client-id": "c"} | (said or {})
    response: Any = service.query_assignment(Call("m", peer, headers, None), request).result
    queues = [assignment.message_queue for assignment in response.assignments]
    return [(queue.id, queue.broker.id, queue.broker.endpoints.addresses[0].port) for queue in queues]


def test_assignment_at_a_slave_has_another_queue_id_than_at_its_master() -> None:
    registry = Registry(lease_s=8.0, renew_s=2.0, started=0.0)
    registry.update("m", update(0, 8091), NOW)
    registry.update("s", update(1, 8092), NOW)
    assert assigned(registry) == [(-1, 0, 8091)]
    registry.leave("m")
    assert assigned(registry) == [(-2, 0, 8092)]


def test_forwarded_question_counts_as_coming_from_the_client() -> None:
    registry = Registry(lease_s=8.0, renew_s=2.0, started=0.0)
    away = update(0, 8091)
    assert away.broker is not None
    address = replace(away.broker.address, peer_host="10.0.0.2", nameserver_host="10.0.0.1")
    registry.update("m", replace(away, broker=replace(away.broker, address=address)), NOW)
    service = RoutesService(
        registry, own=lambda: ("127.0.0.1", "10.0.0.1"), resolver=Resolver(), now=lambda: NOW
    )
    endpoints = v2.Endpoints(scheme=v2.IPv4, addresses=[v2.Address(host="127.0.0.1", port=8081)])
    request = messaging.QueryAssignmentRequest(
        topic=v2.Resource(name="T"), group=v2.Resource(name="g"), endpoints=endpoints
    )
    for client, host in (("10.0.0.1:5", "10.0.0.2"), ("10.0.0.9:5", "127.0.0.1")):
        metadata = {"x-mq-client-id": "c", "x-whimbrel-client-peer": client}
        response: Any = service.query_assignment(Call("m", "10.0.0.2:7", metadata, None), request).result
        assert response.assignments[0].message_queue.broker.endpoints.addresses[0].host == host


def routed(
    *members: Update,
    access: str = "10.0.0.9",
    route_members: bool = True,
    language: str = "JAVA",
    version: str = "5.2.0",
) -> tuple[int, list[str]]:
    """Return scheme and addresses of the one broker that a client is told, in a group of these members."""
    registry = Registry(lease_s=8.0, renew_s=2.0, started=0.0)
    for session, each in enumerate(members):
        registry.update(session, each, NOW)
    service = RoutesService(
        registry,
        own=lambda: ("10.0.0.9", "127.0.0.1"),
        resolver=Resolver(),
        now=lambda: NOW,
        route_members=route_members,
    )
    endpoints = v2.Endpoints(
        scheme=v2.DOMAIN_NAME if access == "localhost" else v2.IPv4,
        addresses=[v2.Address(host=access, port=8081)],
    )
    request = messaging.QueryRouteRequest(topic=v2.Resource(name="T"), endpoints=endpoints)
    said = {"x-mq-client-id": "c", "x-mq-language": language, "x-mq-client-version": version}
    call = Call("m", "10.0.0.50:7", said, None)
    response: Any = service.query_route(call, request).result
    (broker,) = {(queue.broker.name, queue.broker.id) for queue in response.message_queues}
    assert broker == ("a", 0)
    assert all(queue.permission == v2.READ_WRITE for queue in response.message_queues)
    told = {queue.broker.endpoints.SerializeToString() for queue in response.message_queues}
    (dialled,) = map(v2.Endpoints.FromString, told)
    return dialled.scheme, [f"{address.host}:{address.port}" for address in dialled.addresses]


LEADER = update(0, 8092, peer="10.0.0.2", member=2)
FIRST = update(1, 8091, peer="10.0.0.1", member=1)
THIRD = update(3, 8093, peer="10.0.0.3", member=3)


def test_a_route_names_all_members_and_the_leader_first() -> None:
    everybody = (v2.IPv4, ["10.0.0.2:8092", "10.0.0.1:8091", "10.0.0.3:8093"])
    assert routed(FIRST, LEADER, THIRD) == everybody
    assert routed(LEADER, THIRD) == (v2.IPv4, ["10.0.0.2:8092", "10.0.0.3:8093"])


def test_while_nobody_leads_the_members_are_named_by_their_ids() -> None:
    assert routed(THIRD, FIRST) == (v2.IPv4, ["10.0.0.1:8091", "10.0.0.3:8093"])


def test_the_setting_has_the_leader_named_alone() -> None:
    assert routed(FIRST, LEADER, THIRD, route_members=False) == (v2.IPv4, ["10.0.0.2:8092"])


def test_node_js_is_told_all_members_as_one_grpc_target() -> None:
    told = ["ipv4:10.0.0.2:8092", "10.0.0.1:8091", "10.0.0.3:8093"]
    assert routed(FIRST, LEADER, THIRD, language="HTTP", version="1.0.8") == (v2.IPv4, told)
    assert routed(LEADER, language="HTTP", version="1.0.8") == (v2.IPv4, ["10.0.0.2:8092"])


@pytest.mark.parametrize("version", ["", "1.1.0", "2.0.0"])
def test_a_node_js_that_may_name_addresses_otherwise_is_told_the_leader(version: str) -> None:
    assert routed(FIRST, LEADER, THIRD, language="HTTP", version=version) == (v2.IPv4, ["10.0.0.2:8092"])


def test_node_js_is_told_no_addresses_of_version_6_together() -> None:
    found = routed(
        update(0, 8092, host="fd00::2", member=2),
        update(1, 8091, host="fd00::1", member=1),
        language="HTTP",
        version="1.0.8",
    )
    assert found == (v2.IPv6, ["fd00::2:8092"])


@pytest.mark.parametrize("host", ["third.example", "fd00::3"])
def test_members_of_which_one_has_no_address_of_the_kind_are_not_named(host: str) -> None:
    other = update(3, 8093, host=host, member=3)
    assert routed(FIRST, LEADER, other) == (v2.IPv4, ["10.0.0.2:8092"])


def test_members_with_addresses_of_the_other_kind_are_named() -> None:
    found = routed(
        update(0, 8092, host="fd00::2", member=2),
        update(1, 8091, host="fd00::1", member=1),
        update(3, 8093, host="fd00::3", member=3),
    )
    assert found == (v2.IPv6, ["fd00::2:8092", "fd00::1:8091", "fd00::3:8093"])


def test_a_client_that_dials_by_name_is_told_the_leader() -> None:
    # Through a published port, it dials all of them under the name that it used.
    assert routed(FIRST, LEADER, THIRD, access="localhost") == (v2.DOMAIN_NAME, ["localhost:8092"])


def test_an_address_stands_once_where_members_look_the_same_from_outside() -> None:
    found = routed(
        update(0, 8091, peer="10.0.0.2", member=2),
        update(1, 8091, peer="10.0.0.1", member=1),
        update(3, 8093, peer="10.0.0.3", member=3),
        access="192.0.2.7",
    )
    assert found == (v2.IPv4, ["192.0.2.7:8091", "192.0.2.7:8093"])


def test_a_fixed_pair_is_routed_to_its_master_alone() -> None:
    assert routed(update(0, 8091, peer="10.0.0.1"), update(1, 8092, peer="10.0.0.2")) == (
        v2.IPv4,
        ["10.0.0.1:8091"],
    )


def test_an_assignment_to_all_members_is_the_same_whoever_leads() -> None:
    registry = Registry(lease_s=8.0, renew_s=2.0, started=0.0)
    for session, each in enumerate((FIRST, LEADER, THIRD)):
        registry.update(session, each, NOW)
    assert assigned(registry, peer="10.0.0.50:1", access="10.0.0.9") == [(-1, 0, 8092)]
    registry.leave(1)
    assert assigned(registry, peer="10.0.0.50:1", access="10.0.0.9") == [(-1, 0, 8091)]


def test_an_assignment_to_the_leader_alone_is_another_one_when_another_one_leads() -> None:
    registry = Registry(lease_s=8.0, renew_s=2.0, started=0.0)
    for session, each in enumerate((FIRST, LEADER, THIRD)):
        registry.update(session, each, NOW)
    assert assigned(registry, access="localhost") == [(-3, 0, 8092)]
    registry.leave(1)
    registry.update(0, update(0, 8091, peer="10.0.0.1", member=1), NOW)
    assert assigned(registry, access="localhost") == [(-2, 0, 8091)]


def test_node_js_is_assigned_anew_with_each_leader() -> None:
    registry = Registry(lease_s=8.0, renew_s=2.0, started=0.0)
    for session, each in enumerate((FIRST, LEADER, THIRD)):
        registry.update(session, each, NOW)
    said = {"x-mq-language": "HTTP", "x-mq-client-version": "1.0.8"}
    assert assigned(registry, peer="10.0.0.50:1", access="10.0.0.9", said=said) == [(-3, 0, 8092)]
    registry.leave(1)
    registry.update(0, update(0, 8091, peer="10.0.0.1", member=1), NOW)
    assert assigned(registry, peer="10.0.0.50:1", access="10.0.0.9", said=said) == [(-2, 0, 8091)]


def test_an_assignment_with_the_setting_off_names_the_leader_also_while_it_is_alone() -> None:
    registry = Registry(lease_s=8.0, renew_s=2.0, started=0.0)
    registry.update(0, LEADER, NOW)
    assert assigned(registry, route_members=False) == [(-3, 0, 8092)]
