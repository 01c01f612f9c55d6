"""Draining and forgetting brokers, over a real store and real tables."""

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any, cast

import pytest

from support.broker.consumption import FakeClock, FakeJournal
from support.store.stores import NOW, OPTIONS, make_draft
from whimbrel.broker.api.admin import AdminService
from whimbrel.broker.consume.group_consumption import GroupConsumption
from whimbrel.broker.consume.unread_queues import UnreadQueues
from whimbrel.broker.engine.tables import TableChanges
from whimbrel.broker.tables.clients import Clients
from whimbrel.broker.tables.groups import GroupTable
from whimbrel.broker.tables.shared_topics import TopicSharing
from whimbrel.broker.tables.topics import TopicTable
from whimbrel.errors import BadRequest, NotWritable, WouldHide
from whimbrel.model.names import TEMPLATE_TOPIC
from whimbrel.model.registration import SharedTopics
from whimbrel.model.topic import READ, WRITE, GroupConfig, TopicConfig
from whimbrel.pb.whimbrel.admin.v1 import admin_service_pb2 as admin
from whimbrel.rpc.server.handlers import Call
from whimbrel.store.master_store import MasterStore

CALL = cast(Call, None)


class Rig:
    """The service of a broker called `a`, without the broker."""

    def __init__(self, root: Path, *, master: bool = True) -> None:
        (root / "store").mkdir()
        self.store = MasterStore.open(root / "store", OPTIONS, clock=lambda: NOW)
        self.topics = TopicTable(
            root / "config", cluster="c", broker_name="a", auto_create=True, clock=lambda: NOW
        )
        self.groups = GroupTable(root / "config", auto_create=False, clock=lambda: NOW)
        clock = FakeClock()
        self.consumption = GroupConsumption(
            self.store, FakeJournal(), clock.waiting(), broker_name="a", broker_id=0,
            now_ms=lambda: clock.now, schedule=clock.schedule, client_alive=lambda *_: False,
        )  # fmt: skip
        self.consumption.open()
        self.waiting = (0, 0)
        self.sharing = TopicSharing(self.topics, "a", root)
        self.service = AdminService(
            TableChanges(
                self.topics, self.groups, self.consumption, self.store,
                master=master, waiting=lambda: self.waiting, sharing=self.sharing,
            ),
            cast(Clients, None), replication=cast(Any, None), wall_ms=lambda at: NOW,
        )  # fmt: skip
        self.unread = UnreadQueues(self.topics, self.consumption.positions, self.store)

    def topic(self, name: str, permission: int = READ | WRITE) -> None:
        self.topics.put(TopicConfig(name=name, read_queues=2, write_queues=2, permission=permission))

    def fill(self, topic: str, count: int) -> None:
        for number in range(count):
            self.store.append([make_draft(number, topic=topic, queue_id=number % 2)])

    def drain(self, **fields: bool) -> admin.DrainBrokerResponse:
        return cast(
            admin.DrainBrokerResponse, self.service.drain_broker(CALL, admin.DrainBrokerRequest(**fields))
        )

    def forget(self, name: str) -> admin.ForgetBrokerResponse:
        request = admin.ForgetBrokerRequest(broker_name=name)
        return cast(admin.ForgetBrokerResponse, self.service.forget_broker(CALL, request))

    def writable(self, name: str) -> bool:
        topic = self.topics.get(name)
        assert topic is not None
        return bool(topic.permission & WRITE)


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[Rig]:
    made = Rig(tmp_path)
    with closing(made.store):
        yield made


def test_a_drain_takes_the_write_bit_from_topics_of_clients_and_gives_it_back(rig: Rig) -> None:
    rig.topic("orders")
    rig.topic("closed", READ)
    assert rig.drain(drain=True).drained_topics == 2, "the one that was writable, and the template"
    assert [rig.writable(name) for name in ("orders", "closed", TEMPLATE_TOPIC)] == [False, False, False]
    rig.service.create_topic(CALL, admin.CreateTopicRequest(topic=admin.Topic(name="late")))
    assert not rig.writable("late")
    assert rig.drain().drained_topics == 3, "a question changes nothing"
    assert rig.drain(drain=False).drained_topics == 0
    assert [rig.writable(name) for name in ("orders", "late", TEMPLATE_TOPIC)] == [True, True, True]
    assert not rig.writable("closed"), "it was not before"


def test_a_topic_says_when_its_sends_are_answered(rig: Rig) -> None:
    def answer_of(response: Any) -> str:
        return str(response.topic.answer)

    create, update = rig.service.create_topic, rig.service.update_topic
    wanted = admin.Topic(name="fast", answer="written")
    assert answer_of(create(CALL, admin.CreateTopicRequest(topic=wanted))) == "written"
    assert answer_of(update(CALL, admin.UpdateTopicRequest(name="fast", read_queues=9))) == "written"
    assert answer_of(update(CALL, admin.UpdateTopicRequest(name="fast", answer="acks=2"))) == "acks=2"
    assert answer_of(update(CALL, admin.UpdateTopicRequest(name="fast", answer="committed"))) == "committed"
    with pytest.raises(BadRequest, match="acks=K"):
        update(CALL, admin.UpdateTopicRequest(name="fast", answer="soon"))
    with pytest.raises(BadRequest, match="acks=K"):
        create(CALL, admin.CreateTopicRequest(topic=admin.Topic(name="other", answer="acks=9")))
    assert "other" not in rig.topics.rows


def test_a_drain_counts_what_groups_have_before_them_and_what_nobody_reads(rig: Rig) -> None:
    rig.topic("orders")
    rig.topic("unread")
    rig.fill("orders", 6)
    rig.fill("unread", 3)
    rig.groups.put(GroupConfig(name="billing"))
    for queue_id, offset in ((0, 1), (1, 3)):
        rig.consumption.positions.reset_offset("billing", "orders", queue_id, offset)
    rig.waiting = (7, 5)
    found = rig.drain(drain=True)
    assert (found.undelivered, found.in_flight) == (2, 0)
    assert (found.delayed, found.open_transactions) == (7, 5)
    assert [(each.topic, each.messages) for each in found.unread] == [("unread", 3)]


def test_an_absent_broker_is_let_go_of_and_its_topics_are_named(rig: Rig) -> None:
    rig.topic("orders")
    with pytest.raises(BadRequest, match="no nameserver says here"):
        rig.forget("b")
    rig.sharing.told("n", SharedTopics(queues={"orders": {"b": 4}}, masters={"b": "b:8091"}))
    for name in ("a", "b"):
        with pytest.raises(BadRequest, match=f"{name} is registered"):
            rig.forget(name)
    rig.sharing.told("n", SharedTopics(queues={}, masters={}))
    done = rig.forget("b")
    assert (list(done.topics), done.known) == (["orders"], True)
    again = rig.forget("b")
    assert (list(again.topics), again.known) == ([], True)
    assert not rig.forget("x").known
    assert rig.sharing.others == {}


def test_a_slave_refuses_both(tmp_path: Path) -> None:
    slave = Rig(tmp_path, master=False)
    with closing(slave.store):
        for ask in (lambda: slave.drain(drain=True), lambda: slave.forget("b")):
            with pytest.raises(NotWritable):
                ask()


# Queues that nobody reads


def shrunk(rig: Rig, topic: str = "orders", **fields: Any) -> admin.Topic:
    request = admin.UpdateTopicRequest(name=topic, **fields)
    return cast(admin.UpdateTopicResponse, rig.service.update_topic(CALL, request)).topic


def read_by(rig: Rig, group: str, queue_id: int, offset: int) -> None:
    rig.groups.add(GroupConfig(name=group)) if rig.groups.get(group) is None else None
    rig.consumption.positions.update_offset(group, "orders", queue_id, offset)


def unfinished(rig: Rig) -> list[int]:
    request = admin.DescribeTopicRequest(name="orders")
    described = cast(admin.DescribeTopicResponse, rig.service.describe_topic(CALL, request))
    return [queue.unfinished for queue in described.queues]


def test_fewer_queues_that_would_hide_messages_are_refused_with_their_number(rig: Rig) -> None:
    rig.topic("orders")
    rig.fill("orders", 7)  # four in queue 0, three in queue 1
    with pytest.raises(WouldHide, match=r"hide 3 messages in queue 1 of orders: no group reads it"):
        shrunk(rig, read_queues=1, write_queues=1)
    topic = rig.topics.get("orders")
    assert topic is not None and (topic.read_queues, topic.write_queues) == (2, 2)
    assert shrunk(rig, write_queues=1).write_queues == 1  # the first of two steps hides nothing
    read_by(rig, "quick", 1, 3)
    read_by(rig, "slow", 1, 1)
    assert unfinished(rig) == [4, 2]
    with pytest.raises(WouldHide, match=r"2 messages in queue 1 .* not all .* \(quick, slow\)"):
        shrunk(rig, read_queues=1)
    read_by(rig, "slow", 1, 3)
    assert shrunk(rig, read_queues=1).read_queues == 1
    assert rig.unread.note() == ""


def test_what_is_told_to_hide_messages_hides_them_and_says_where_they_are(rig: Rig) -> None:
    rig.topic("orders")
    rig.fill("orders", 7)
    assert rig.unread.note() == ""
    assert shrunk(rig, read_queues=1, write_queues=1, hide_messages=True).read_queues == 1
    assert "3 of orders in queue 1; `whimbrel topic update" in rig.unread.note()
    assert unfinished(rig) == [4, 3]
    assert shrunk(rig, read_queues=2).read_queues == 2
    assert rig.unread.note() == ""


def test_positions_are_looked_at_once_for_all_topics(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    """There are as many as groups have read queues, and health asks again and again."""
    looked: list[int] = []
    positions = rig.consumption.positions
    committed = positions.committed_offsets

    def counted() -> dict[tuple[str, str], dict[int, int]]:
        looked.append(1)
        return committed()

    monkeypatch.setattr(positions, "committed_offsets", counted)
    rig.topic("whole")
    assert rig.unread.note() == "" and not looked
    for topic in ("t1", "t2", "t3"):
        rig.topic(topic)
        rig.fill(topic, 4)
        shrunk(rig, topic, read_queues=1, write_queues=1, hide_messages=True)
    looked.clear()
    assert "2 of t1 in queue 1, 2 of t2 in queue 1, 2 of t3 in queue 1" in rig.unread.note()
    assert len(looked) == 1


def test_a_topic_that_is_read_no_more_hides_all_of_it(rig: Rig) -> None:
    rig.topic("orders")
    rig.fill("orders", 7)
    with pytest.raises(WouldHide, match=r"hide 7 messages in queues 0, 1"):
        shrunk(rig, permission=WRITE)
    assert shrunk(rig, permission=WRITE, hide_messages=True).permission == WRITE
    assert "7 of orders in queues 0, 1" in rig.unread.note()


def test_more_queues_to_write_than_to_read_are_refused(rig: Rig) -> None:
    rig.topic("orders")
    with pytest.raises(BadRequest, match=r"sent to queue 2 of orders would be given to nobody: .* 3 .* 2 "):
        shrunk(rig, write_queues=3)
    assert shrunk(rig, write_queues=3, hide_messages=True).write_queues == 3
    assert shrunk(rig, answer="written").write_queues == 3  # as it was before


def test_the_broker_puts_nothing_into_queues_that_nobody_reads_or_writes() -> None:
    for read, write, onward in ((4, 2, 2), (2, 4, 2), (4, 4, 4), (4, 0, 4), (0, 0, 1)):
        assert TopicConfig(name="t", read_queues=read, write_queues=write).onward_queues == onward


def test_a_drained_topic_says_so(rig: Rig) -> None:
    rig.topic("orders")
    rig.drain(drain=True)
    request = admin.DescribeTopicRequest(name="orders")
    described = cast(admin.DescribeTopicResponse, rig.service.describe_topic(CALL, request))
    assert described.topic.drained and described.topic.permission == READ
