"""Administration against a fake cluster; errors arrive as the classes that the broker raised."""

from dataclasses import replace

import pytest

import whimbrel.client.admin as admin_module
from support.systems.fake_cluster import running
from whimbrel.client import AbsentBroker, Admin, Cluster, MessageType, ReplicationStatus, Unasked
from whimbrel.errors import (
    AlreadyExists,
    GroupNotFound,
    NotSupported,
    NotWritable,
    TopicNotFound,
    Unavailable,
    WouldHide,
)
from whimbrel.pb.apache.rocketmq.v2 import definition_pb2 as v2
from whimbrel.rpc.server.serving import serve


async def test_topics_are_made_listed_described_changed_and_removed() -> None:
    async with running() as cluster, Admin(cluster.address) as admin:
        made = await admin.create_topic("t", queues=4)
        assert (made.read_queues, made.write_queues, made.type) == (4, 4, MessageType.NORMAL)
        with pytest.raises(AlreadyExists, match="topic t exists"):
            await admin.create_topic("t")
        assert [topic.name for topic in await admin.topics()] == ["t"]
        (found,) = await admin.describe_topic("t")
        assert found.broker_name == "broker-a"
        assert [queue.queue_id for queue in found.queues] == [0, 1, 2, 3]
        assert (await admin.update_topic("t", queues=6)).read_queues == 6
        await admin.delete_topic("t")
        with pytest.raises(TopicNotFound):
            await admin.delete_topic("t")
        with pytest.raises(TopicNotFound):
            await admin.describe_topic("t")


async def test_fewer_queues_are_two_steps_and_wait_for_what_would_be_hidden(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(admin_module, "FINISHED_LOOK_S", 0.01)
    async with running() as cluster, Admin(cluster.address) as admin:
        cluster.topics["t"] = [[], [], [1, 2], [3]]
        waits: list[WouldHide] = []

        def waited(error: WouldHide) -> None:
            waits.append(error)
            for queue in cluster.topics["t"][2:]:  # its groups finish them
                queue.clear()

        with pytest.raises(WouldHide, match="hide 3 messages"):
            await admin.update_topic("t", queues=2)
        asked = [request for name, _, request in cluster.calls if name == "UpdateTopic"]
        assert [(one.HasField("read_queues"), one.HasField("write_queues")) for one in asked] == [
            (True, True), (False, True), (True, False),
        ]  # fmt: skip
        assert [one.write_queues for one in asked[:2]] == [2, 2]
        assert (await admin.update_topic("t", queues=2, wait_s=30, on_wait=waited)).read_queues == 2
        assert len(waits) == 1


async def test_messages_are_hidden_where_that_is_said() -> None:
    async with running() as cluster, Admin(cluster.address) as admin:
        cluster.topics["t"] = [[], [1, 2]]
        assert (await admin.update_topic("t", queues=1, hide_messages=True)).read_queues == 1
        assert cluster.count("UpdateTopic") == 1


async def test_a_new_topic_is_waited_for_until_its_route_is_there() -> None:
    async with running() as cluster, Admin(cluster.address) as admin:
        cluster.failures["QueryRoute"] += [v2.TOPIC_NOT_FOUND, v2.INTERNAL_SERVER_ERROR]
        await admin.create_topic("t", queues=4)
        assert cluster.count("QueryRoute") == 3
        await admin.update_topic("t", queues=6)
        assert cluster.count("QueryRoute") == 4


async def test_groups_are_made_listed_described_changed_and_removed() -> None:
    async with running() as cluster, Admin(cluster.address) as admin:
        assert (await admin.create_group("g", fifo=True, max_attempts=3)).fifo
        with pytest.raises(AlreadyExists):
            await admin.create_group("g")
        assert [group.name for group in await admin.groups()] == ["g"]
        (found,) = await admin.describe_group("g")
        assert found.progress[0].lag == 2
        assert found.clients[0].client_id == "c1"
        assert not (await admin.update_group("g", consume_enabled=False)).consume_enabled
        await admin.delete_group("g")
        with pytest.raises(GroupNotFound):
            await admin.describe_group("g")


@pytest.mark.parametrize(
    ("to", "target", "value"),
    [("earliest", "earliest", True), ("latest", "latest", True), (12, "offset", 12)],
)
async def test_offsets_are_reset_to_a_place(to: str | int, target: str, value: object) -> None:
    async with running() as cluster, Admin(cluster.address) as admin:
        await admin.reset_offsets("g", "t", to=to, queue_id=3)
        request = cluster.calls[-1][2]
        assert request.WhichOneof("target") == target
        assert getattr(request, target) == value
        assert request.queue_id == 3


async def test_offsets_are_reset_to_a_time_on_all_queues() -> None:
    async with running() as cluster, Admin(cluster.address) as admin:
        found = await admin.reset_offsets("g", "t", to=1700000000.25)
        request = cluster.calls[-1][2]
        assert (request.timestamp.seconds, request.timestamp.nanos) == (1700000000, 250_000_000)
        assert not request.HasField("queue_id")
        assert list(found) == ["broker-a"]


async def test_the_cluster_and_its_replication_are_shown() -> None:
    async with running() as cluster, Admin(cluster.address) as admin:
        (master,) = (await admin.cluster()).masters()
        assert (master.broker_name, master.role, master.log_end) == ("broker-a", "master", 100)
        assert cluster.calls[-1][2].access_host == "127.0.0.1"
        (view,) = await admin.replication()
        assert isinstance(view, ReplicationStatus)
        assert view.slaves[0].lag_bytes == 10
        assert (view.replication, view.flush, view.role) == ("sync", "async", "master")


async def test_a_broker_that_can_not_be_asked_is_shown_with_its_error() -> None:
    async with running() as cluster, Admin(cluster.address) as admin:
        cluster.slave_address = "127.0.0.1:1"
        view, lost = await admin.replication()
        assert isinstance(view, ReplicationStatus)
        assert isinstance(lost, tuple)
        assert lost[0].broker_id == 1


async def test_a_refusal_keeps_its_class_and_its_sentence() -> None:
    async with running() as cluster, Admin(cluster.address) as admin:
        cluster.failures["CreateTopic"].append(NotWritable("this broker is a slave"))
        with pytest.raises(NotWritable, match="this broker is a slave") as caught:
            await admin.create_topic("t")
        assert caught.value.effect == "none"


async def test_a_server_that_is_no_nameserver_is_named() -> None:
    server = await serve([], host="127.0.0.1", port=0)
    try:
        async with Admin(server.address) as admin:
            with pytest.raises(NotSupported, match=f"{server.address} does not serve whimbrel.registry.v1"):
                await admin.cluster()
    finally:
        await server.stop(grace=0)


async def test_a_brokers_address_is_told_from_a_nameservers() -> None:
    async with running(nameserver=False) as cluster, Admin(cluster.address) as admin:
        with pytest.raises(NotSupported) as caught:
            await admin.topics()
        assert str(caught.value) == (
            f"{cluster.address} is the address of the broker broker-a (master), not of a nameserver:"
            " give the nameserver's"
        )


@pytest.mark.parametrize("address", ["10.0.0.1:²", "", "a\x1b[2J:1"])
async def test_a_broker_without_an_address_is_said_so_in_one_sentence(address: str) -> None:
    async with running() as cluster, Admin(cluster.address) as admin:
        (master, *_) = (await admin.cluster()).brokers
        broker = replace(master, address=address)
        ((_, error),) = await admin.replication([broker])  # type: ignore[misc]
        assert isinstance(error, Unavailable)
        assert str(error).startswith("the nameserver's address of 'broker-a' is none: ")
        assert str(error).isprintable()


def gone(name: str) -> AbsentBroker:
    return AbsentBroker(cluster="c", broker_name=name, broker_id=0, since=0.0)


async def test_a_list_that_lacks_a_group_is_an_error_or_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    async with running() as cluster, Admin(cluster.address) as admin:
        known = await admin.cluster()

        async def lacking() -> Cluster:
            return replace(known, absent=(gone("broker-b"),))

        monkeypatch.setattr(admin, "cluster", lacking)
        await admin.create_topic("t")  # on all that there are
        with pytest.raises(Unavailable, match="broker-b could not be asked, and what it holds is left out"):
            await admin.topics()
        unasked: list[Unasked] = []
        assert [topic.name for topic in await admin.topics(unasked=unasked)] == ["t"]
        assert [one.broker_name for one in unasked] == ["broker-b"]


async def test_one_that_does_not_answer_is_noted_unless_it_is_the_only_one() -> None:
    async with running() as cluster, Admin(cluster.address) as admin:
        cluster.failures["ListTopics"].append(NotWritable("not now"))
        unasked: list[Unasked] = []
        with pytest.raises(NotWritable):
            await admin.topics(unasked=unasked)
        assert [(one.broker_name, one.why) for one in unasked] == [("broker-a", "not now")]
