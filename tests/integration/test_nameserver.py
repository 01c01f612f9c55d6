"""A real nameserver process, with the broker's own registration at the other end."""

import asyncio
import os
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import grpc.aio
import pytest

from integration.registering import facts_of
from support.cluster.processes import Cluster, Process, program
from support.waiting import until, until_async
from whimbrel.broker.cluster.registration import Registration
from whimbrel.client import sync
from whimbrel.model.message import Message
from whimbrel.model.registration import BrokerFacts, Member
from whimbrel.pb.apache.rocketmq.v2 import definition_pb2 as v2
from whimbrel.pb.apache.rocketmq.v2 import service_pb2 as messaging
from whimbrel.pb.whimbrel.registry.v1 import registry_service_pb2 as registry_pb
from whimbrel.rpc.client.channel import open_aio_channel
from whimbrel.testing.signals import send_signal

pytestmark = pytest.mark.process

LEASE_S = 1.0
CLIENT = (("x-mq-client-id", "test@1"),)
STAND_IN = Path(__file__).with_name("registering.py")


@pytest.fixture
def nameserver(tmp_path: Path) -> Iterator[Process]:
    with Process(tmp_path, "nameserver", "nameserver", lease_s=LEASE_S, renew_s=0.2) as process:
        yield process


@pytest.fixture
def stand_in(nameserver: Process, tmp_path: Path) -> Iterator[subprocess.Popen[bytes]]:
    child = program([STAND_IN, nameserver.grpc, "a", "0", "9001"], tmp_path / "stand-in.log")
    yield child
    child.kill()
    child.wait()


class Client:
    """Asks as an SDK does whose access point is the nameserver."""

    def __init__(self, address: str) -> None:
        host, _, port = address.rpartition(":")
        self.endpoints = v2.Endpoints(scheme=v2.IPv4, addresses=[v2.Address(host=host, port=int(port))])
        self.channel = open_aio_channel(address)

    async def call(self, name: str, **fields: Any) -> Any:
        request, response = getattr(messaging, f"{name}Request"), getattr(messaging, f"{name}Response")
        method: Any = self.channel.unary_unary(
            f"/apache.rocketmq.v2.MessagingService/{name}",
            request_serializer=request.SerializeToString,
            response_deserializer=response.FromString,
        )
        metadata = fields.pop("metadata", CLIENT)
        return await method(request(**fields), metadata=metadata, timeout=5)

    async def route(self, topic: str, *, namespace: str = "", **fields: Any) -> Any:
        fields = {"endpoints": self.endpoints} | fields
        fields["topic"] = v2.Resource(name=topic, resource_namespace=namespace)
        return await self.call("QueryRoute", **fields)

    async def code(self, topic: str, **fields: Any) -> int:
        return int((await self.route(topic, **fields)).status.code)

    async def cluster(self) -> Any:
        method: Any = self.channel.unary_unary(
            "/whimbrel.registry.v1.RegistryService/DescribeCluster",
            request_serializer=registry_pb.DescribeClusterRequest.SerializeToString,
            response_deserializer=registry_pb.DescribeClusterResponse.FromString,
        )
        return await method(registry_pb.DescribeClusterRequest(access_host="localhost"), timeout=5)


@asynccontextmanager
async def asking(process: Process) -> Any:
    client = Client(process.grpc)
    try:
        yield client
    finally:
        await client.channel.close()


class Held:
    """A registration within this process, whose facts a test may change, with what it was told."""

    def __init__(self, facts: BrokerFacts, *nameservers: str) -> None:
        self.facts = facts
        self.members: dict[str, tuple[Member, ...]] = {}
        self.settled: dict[str, bool] = {}
        self.lost: list[str] = []
        self.displaced_by = ""
        self.registration = Registration(
            nameservers,
            facts=lambda: self.facts,
            on_members=self.told,
            on_lost=self.lost.append,
            on_displaced=self.displaced,
        )

    def told(self, nameserver: str, members: tuple[Member, ...], settled: bool) -> None:
        self.members[nameserver] = members
        self.settled[nameserver] = settled

    def displaced(self, nameserver: str, address: str) -> None:
        self.displaced_by = address

    def change(self, facts: BrokerFacts) -> None:
        self.facts = facts
        self.registration.changed()

    async def __aenter__(self) -> "Held":
        self.registration.start()
        await until_async(lambda: all(self.registration.accepted.values()))
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.registration.stop()


async def settled(client: Client) -> None:
    async def ready() -> bool:
        return bool((await client.cluster()).settled)

    await until_async(ready)


async def test_registered_topic_has_a_route_with_the_broker_s_port(nameserver: Process) -> None:
    async with asking(nameserver) as client, Held(facts_of("a", 0, 9001, "T"), nameserver.grpc):
        got = await client.route("T", namespace="ns")
        assert got.status.code == 20000
        assert [queue.id for queue in got.message_queues] == [0, 1, 2, 3]
        queue = got.message_queues[0]
        assert (queue.topic.name, queue.topic.resource_namespace) == ("T", "ns")
        assert queue.permission == v2.READ_WRITE
        assert list(queue.accept_message_types) == [v2.NORMAL]
        assert (queue.broker.name, queue.broker.id) == ("a", 0)
        assert queue.broker.endpoints.scheme == v2.IPv4
        assert [(a.host, a.port) for a in queue.broker.endpoints.addresses] == [("127.0.0.1", 9001)]


async def test_localhost_and_v6_access_points_get_themselves_back(nameserver: Process) -> None:
    async with asking(nameserver) as client, Held(facts_of("a", 0, 9001, "T"), nameserver.grpc):
        for scheme, host in ((v2.DOMAIN_NAME, "localhost"), (v2.IPv6, "::1")):
            endpoints = v2.Endpoints(scheme=scheme, addresses=[v2.Address(host=host, port=8081)])
            got = await client.route("T", endpoints=endpoints)
            told = got.message_queues[0].broker.endpoints
            assert (told.scheme, [(a.host, a.port) for a in told.addresses]) == (scheme, [(host, 9001)])


async def test_codes_for_bad_questions(nameserver: Process) -> None:
    async with asking(nameserver) as client, Held(facts_of("a", 0, 9001, "T"), nameserver.grpc):
        await settled(client)
        assert await client.code("T", metadata=()) == 40017
        assert await client.code("T", metadata=(("x-mq-client-id", " "),)) == 40017
        assert await client.code("a b") == 40002
        assert await client.code("x" * 128) == 40002
        assert await client.code("rmq_sys_x") == 40002
        assert await client.code("T", endpoints=v2.Endpoints()) == 40001
        two = [v2.Address(host="a", port=1), v2.Address(host="b", port=1)]
        assert await client.code("T", endpoints=v2.Endpoints(scheme=v2.DOMAIN_NAME, addresses=two)) == 40001
        got = await client.route("U")
        assert (got.status.code, len(got.message_queues)) == (40402, 0)


async def test_young_nameserver_says_not_ready_instead_of_not_found(tmp_path: Path) -> None:
    with Process(tmp_path, "nameserver", "young", lease_s=600, renew_s=300) as process:
        async with asking(process) as client, Held(facts_of("a", 0, 9001, "T"), process.grpc) as held:
            assert await client.code("T") == 20000
            got = await client.route("U")
            assert (got.status.code, "just started" in got.status.message) == (50001, True)
            assert held.settled == {process.grpc: False}


@pytest.mark.transport
async def test_session_hears_at_once_that_the_nameserver_is_settled(tmp_path: Path) -> None:
    with Process(tmp_path, "nameserver", "young", lease_s=600, renew_s=1.5) as process:
        async with Held(facts_of("a", 0, 9001, "T"), process.grpc) as held:
            await until_async(lambda: held.settled[process.grpc])


@pytest.mark.transport
async def test_a_new_leader_takes_the_route_over_and_all_members_stand_in_it(tmp_path: Path) -> None:
    def member(number: int, epoch: int, *, leads: bool = False) -> BrokerFacts:
        facts = facts_of("a", 0 if leads else number, 9000 + number, "T")
        return replace(facts, instance=f"i{number}", epoch=epoch, member_id=number, voters=3)

    # Nothing expires, and nothing is renewed: all goes by changes of registrations.
    nameserver = Process(tmp_path, "nameserver", "elected", lease_s=60, renew_s=30, expected_brokers=3)
    with nameserver:
        async with (
            asking(nameserver) as client,
            Held(member(1, 7, leads=True), nameserver.grpc) as first,
            Held(member(2, 7), nameserver.grpc) as second,
            Held(member(3, 7), nameserver.grpc) as third,
        ):

            async def ports() -> list[int]:
                queues = (await client.route("T")).message_queues
                assert all(queue.permission == v2.READ_WRITE for queue in queues)
                return [address.port for address in queues[0].broker.endpoints.addresses]

            def known() -> list[tuple[int, int, int]]:
                """Return the members of which the third one knows: id, member id and epoch."""
                told = third.members.get(nameserver.grpc, ())
                return [(one.broker_id, one.member_id, one.epoch) for one in told]

            await until_async(lambda: known() == [(0, 1, 7), (2, 2, 7)])
            assert await ports() == [9001, 9002, 9003]
            second.change(member(2, 8, leads=True))
            await until_async(lambda: first.displaced_by.endswith(":9002"))
            assert await ports() == [9002, 9003]
            await until_async(lambda: known() == [(0, 2, 8)])
            first.change(member(1, 8))
            await until_async(lambda: known() == [(0, 2, 8), (1, 1, 8)])
            assert await ports() == [9002, 9001, 9003]
            brokers = (await client.cluster()).brokers
            described = [(one.broker_id, one.member_id, one.epoch) for one in brokers]
            assert described == [(0, 2, 8), (1, 1, 8), (3, 3, 7)]
            assert not first.lost and not second.lost  # all of it in the sessions that they had


async def test_unknown_topic_is_routed_to_brokers_that_would_create_it(nameserver: Process) -> None:
    facts = facts_of("a", 0, 9001)
    template = facts_of("b", 0, 9002, "TBW102")
    inherited = [
        type(topic)(name=topic.name, read_queues=8, write_queues=8, permission=7) for topic in template.topics
    ]
    template = BrokerFacts(
        **{name: getattr(template, name) for name in BrokerFacts.__slots__} | {"topics": inherited}
    )
    async with asking(nameserver) as client, Held(facts, nameserver.grpc), Held(template, nameserver.grpc):
        await settled(client)
        got = await client.route("new")
        assert [(queue.broker.name, queue.id) for queue in got.message_queues] == [
            ("b", number) for number in range(4)
        ]
        assert got.message_queues[0].permission == v2.READ_WRITE


async def test_assignment_names_each_broker_once(nameserver: Process) -> None:
    group = v2.Resource(name="g")
    async with (
        asking(nameserver) as client,
        Held(facts_of("a", 0, 9001, "T"), nameserver.grpc),
        Held(facts_of("b", 0, 9002, "T"), nameserver.grpc),
    ):
        await settled(client)
        fields = {"group": group, "endpoints": client.endpoints}
        got = await client.call("QueryAssignment", topic=v2.Resource(name="T"), **fields)
        again = await client.call("QueryAssignment", topic=v2.Resource(name="T"), **fields)
        queues = [assignment.message_queue for assignment in got.assignments]
        assert [(queue.broker.name, queue.id, queue.permission) for queue in queues] == [
            ("a", -1, v2.READ_WRITE),
            ("b", -1, v2.READ_WRITE),
        ]
        assert got == again
        missing = await client.call("QueryAssignment", topic=v2.Resource(name="U"), **fields)
        assert missing.status.code == 40402


async def test_heartbeat_and_termination_are_answered_for_anybody(nameserver: Process) -> None:
    async with asking(nameserver) as client:
        assert (await client.call("Heartbeat", client_type=v2.PRODUCER)).status.code == 20000
        assert (await client.call("NotifyClientTermination")).status.code == 20000
        assert (await client.call("Heartbeat", metadata=())).status.code == 40017


async def test_telemetry_answers_every_settings_and_opens_at_once(nameserver: Process) -> None:
    async with asking(nameserver) as client:
        method: Any = client.channel.stream_stream(
            "/apache.rocketmq.v2.MessagingService/Telemetry",
            request_serializer=messaging.TelemetryCommand.SerializeToString,
            response_deserializer=messaging.TelemetryCommand.FromString,
        )
        call = method(metadata=CLIENT)
        async with asyncio.timeout(5):
            await call.initial_metadata()
        settings = v2.Settings(
            client_type=v2.PRODUCER, publishing=v2.Publishing(topics=[v2.Resource(name="T")])
        )
        for _ in range(10):
            await call.write(messaging.TelemetryCommand(settings=settings))
            answer = await call.read()
            assert answer.status.code == 20000
            assert answer.settings.publishing.max_body_size == 4194304
        await call.write(messaging.TelemetryCommand(settings=v2.Settings(client_type=v2.PRODUCER)))
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await call.read()
        assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT


async def test_killed_broker_is_out_of_the_route_at_once(
    nameserver: Process, stand_in: subprocess.Popen[bytes]
) -> None:
    async with asking(nameserver) as client:
        await until_async(lambda: has_route(client))
        stand_in.kill()
        killed_at = time.monotonic()
        await until_async(lambda: has_no_route(client))
        took = time.monotonic() - killed_at
        print(f"out of the route {took * 1000:.0f} ms after the kill")
        assert took < LEASE_S / 2, "the lease took it out, not the broken stream"


async def test_hung_broker_is_out_of_the_route_when_its_lease_ends(
    nameserver: Process, stand_in: subprocess.Popen[bytes]
) -> None:
    async with asking(nameserver) as client:
        await until_async(lambda: has_route(client))
        send_signal(stand_in.pid, signal.SIGSTOP)
        stopped_at = time.monotonic()
        await until_async(lambda: has_no_route(client), within_s=LEASE_S + 2)
        took = time.monotonic() - stopped_at
        assert took > LEASE_S / 2, "it was the stream that broke"
        os.kill(stand_in.pid, signal.SIGCONT)
        await until_async(lambda: has_route(client))


async def has_route(client: Client) -> bool:
    return await client.code("T") == 20000


async def has_no_route(client: Client) -> bool:
    return await client.code("T") in (40402, 50001)


async def test_slave_takes_the_master_s_place_for_reading(nameserver: Process) -> None:
    async with asking(nameserver) as client, Held(facts_of("a", 1, 9002, "T"), nameserver.grpc) as slave:
        async with Held(facts_of("a", 0, 9001, "T", log_end=500), nameserver.grpc):
            got = (await client.route("T")).message_queues[0]
            assert (got.broker.endpoints.addresses[0].port, got.permission) == (9001, v2.READ_WRITE)
            await until_async(lambda: slave.members[nameserver.grpc])
            (master,) = slave.members[nameserver.grpc]
            assert master == Member(
                broker_id=0, address="127.0.0.1:9001", ha_address="127.0.0.1:10912", log_begin=0, log_end=500
            )
        await until_async(lambda: not slave.members[nameserver.grpc])
        got = (await client.route("T")).message_queues[0]
        assert (got.broker.id, got.broker.endpoints.addresses[0].port, got.permission) == (0, 9002, v2.READ)


async def test_changed_topics_are_told_at_once(tmp_path: Path) -> None:
    with Process(tmp_path, "nameserver", "slow", lease_s=600, renew_s=300) as process:
        async with asking(process) as client, Held(facts_of("a", 0, 9001, "T"), process.grpc) as held:
            held.change(facts_of("a", 0, 9001, "U", counter=2))
            await until_async(lambda: is_known(client, "U"))
            assert await client.code("T") != 20000


async def is_known(client: Client, topic: str) -> bool:
    return await client.code(topic) == 20000


async def test_nameservers_share_nothing_and_a_dead_one_delays_nobody(
    nameserver: Process, tmp_path: Path
) -> None:
    with Process(tmp_path, "nameserver", "other", lease_s=LEASE_S, renew_s=0.2) as other:
        async with asking(nameserver) as client, asking(other) as other_client:
            async with Held(facts_of("a", 0, 9001, "T"), nameserver.grpc, other.grpc) as held:
                assert await client.code("T") == await other_client.code("T") == 20000
                async with Held(facts_of("b", 0, 9002, "U"), nameserver.grpc):
                    assert await client.code("U") == 20000
                    assert await other_client.code("U") != 20000
                other.kill()
                await until_async(lambda: held.lost == [other.grpc])
                assert held.registration.accepted == {nameserver.grpc: True, other.grpc: False}
                assert await client.code("T") == 20000


async def test_broker_registers_again_after_the_nameserver_s_restart(nameserver: Process) -> None:
    async with Held(facts_of("a", 0, 9001, "T"), nameserver.grpc) as held:
        nameserver.kill()
        await until_async(lambda: held.lost == [nameserver.grpc])
        nameserver.start()
        async with asking(nameserver) as client:
            await until_async(lambda: has_route(client))
            assert held.registration.accepted == {nameserver.grpc: True}


async def test_cluster_is_described_by_name_and_id(nameserver: Process) -> None:
    async with (
        asking(nameserver) as client,
        Held(facts_of("a", 1, 9002, "T", log_end=7), nameserver.grpc),
        Held(facts_of("a", 0, 9001, "T", log_end=9), nameserver.grpc),
    ):
        got = await client.cluster()
        assert [
            (b.broker_name, b.broker_id, b.address, b.ha_address, b.log_end, b.writable) for b in got.brokers
        ] == [
            ("a", 0, "localhost:9001", "localhost:10912", 9, True),
            ("a", 1, "localhost:9002", "", 7, False),
        ]
        assert abs(got.brokers[0].renewed_at.seconds - time.time()) < 10
        assert got.brokers[0].topic_count == 1


def test_taken_port_is_a_clear_error(nameserver: Process, tmp_path: Path) -> None:
    port = nameserver.grpc.rpartition(":")[2]
    second = Process(tmp_path, "nameserver", "second", port=port).launch()
    assert second.wait() == 1
    assert f"can't listen on 127.0.0.1:{port}" in second.log_tail()


def test_termination_ends_it_with_code_zero(nameserver: Process) -> None:
    assert nameserver.stop() == 0


def test_a_nameserver_that_knows_how_many_brokers_there_are_waits_for_no_period(tmp_path: Path) -> None:
    patient: dict[str, object] = {
        "expected_brokers": 2,
        "renew_s": 60,
        "lease_s": 120,
    }  # longer than this test may take
    with Cluster(tmp_path, slaves=1, nameserver=patient) as cluster:
        with sync.Producer(cluster.endpoint) as producer:
            assert producer.send(Message(topic="new", body=b"x")).message_id
        cluster.nameserver.kill()
        cluster.nameserver.start()
        with sync.Admin(cluster.endpoint) as admin:
            until(lambda: admin.cluster().settled, what="both brokers are back")
        with sync.Producer(cluster.endpoint) as producer:
            assert producer.send(Message(topic="newer", body=b"x")).message_id
