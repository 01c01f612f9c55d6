"""What clients are told of the tables."""

from dataclasses import replace
from typing import Any

from whimbrel.nameserver.addresses import BrokerAddress
from whimbrel.nameserver.registry import BrokerIdentity, QueueCounts, Registry, Update
from whimbrel.nameserver.resolver import Resolver
from whimbrel.nameserver.routes_service import RoutesService
from whimbrel.pb.apache.rocketmq.v2 import definition_pb2 as v2
from whimbrel.pb.apache.rocketmq.v2 import service_pb2 as messaging
from whimbrel.rpc.server.handlers import Call

NOW = 1000.0  # long after the start
QUEUES = QueueCounts(read_queues=4, write_queues=4, permission=6)


def update(id_: int, port: int) -> Update:
    address = BrokerAddress(
        advertised_host="",
        advertised_explicitly=False,
        port=port,
        host_name="h",
        nameserver_host="127.0.0.1",
        peer_host="127.0.0.1",
    )
    broker = BrokerIdentity(cluster="C", name="a", id=id_, master=id_ == 0, address=address)
    return Update(broker=broker, topics={"T": QUEUES}, version=(1, 0))


def assigned(registry: Registry) -> list[tuple[int, int, int]]:
    """Return queue id, broker id and port of each assignment."""
    service = RoutesService(registry, own=lambda: ("127.0.0.1",), resolver=Resolver(), now=lambda: NOW)
    endpoints = v2.Endpoints(scheme=v2.IPv4, addresses=[v2.Address(host="127.0.0.1", port=8081)])
    request = messaging.QueryAssignmentRequest(
        topic=v2.Resource(name="T"), group=v2.Resource(name="g"), endpoints=endpoints
    )
    response: Any = service.query_assignment(Call("m", "p", {"x-mq-client-id": "c"}, None), request).result
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
