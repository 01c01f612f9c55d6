"""The calls of consumers: held receives, later answers, read splitting, codes that need no store."""

import os
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from support.broker.consumption import FakeClock, FakeStore
from support.cluster.broker_api import as_messages
from support.engine.reads import make_reads
from whimbrel.broker.api.pulls import PullService
from whimbrel.broker.api.receive import ReceiveService
from whimbrel.broker.consume.plan import Delivered, ReceiveRequest
from whimbrel.broker.engine.splitting import ReadSplitting
from whimbrel.broker.engine.take import Take, Takes
from whimbrel.broker.engine.waiting import POLLS_MAX
from whimbrel.broker.tables.group_creation import GroupCreation
from whimbrel.broker.tables.groups import GroupTable
from whimbrel.broker.tables.topics import TopicTable
from whimbrel.deferred import Deferred
from whimbrel.errors import (
    GroupNotFound,
    IllegalInvisibleTime,
    Throttled,
    TopicNotFound,
)
from whimbrel.lane import Lane
from whimbrel.model.topic import GroupConfig, MessageType, TopicConfig
from whimbrel.model.wire import SUGGESTION_TRAILER
from whimbrel.pb.apache.rocketmq.v2 import definition_pb2 as v2
from whimbrel.pb.apache.rocketmq.v2 import service_pb2 as messaging
from whimbrel.rpc.server.handlers import Call
from whimbrel.store.codec import RecordDraft, decode_record, encode_record, pack_host
from whimbrel.store.lane_messages import LaneMessages
from whimbrel.store.lane_passes import LanePasses


def stored(body: bytes = b"x", physical_offset: int = 0) -> Any:
    host = pack_host("127.0.0.1", 1)
    draft = RecordDraft("t", 0, body, b"UNIQ_KEY\x01id\x02", 1, host, host)
    return decode_record(
        encode_record(draft, physical_offset=physical_offset, queue_offset=0, store_timestamp=2)
    )


class FakeConsumption:
    """Settles with what it is told."""

    lease_store = planner = hand_ons = retry_topics = None

    def __init__(self) -> None:
        self.positions = self

    def expect(self, group: str, topic: str) -> None:
        """Nothing is held."""


class FakeTakes(Takes):
    """Takes what it is told."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.answer: list[Delivered] = []
        self.requests: list[ReceiveRequest] = []

    def taken(self, take: Take, now: int) -> tuple[list[Delivered], bool]:
        assert take.selection is not None
        self.requests.append(take.selection)
        return self.answer, False


class Rig:
    def __init__(
        self, config: Path, *, auto_create: bool = False, master: bool = True, slave_read: bool = False
    ):
        clock = lambda: 1  # noqa: E731
        self.topics = TopicTable(config, cluster="C", broker_name="a", auto_create=auto_create, clock=clock)
        self.groups = GroupTable(config, auto_create=auto_create, clock=clock)
        self.topics.add(TopicConfig(name="t", read_queues=2))
        self.groups.add(GroupConfig(name="g", slow_broker_id=3))
        self.consumption = FakeConsumption()
        self.written = 0
        creation = GroupCreation(self.topics, self.groups, master=master, clock=lambda: 0.0)
        self.clock = FakeClock()
        self.waiting = self.clock.waiting()
        self.takes = FakeTakes(
            self.topics,
            creation,
            self.consumption,
            self.waiting,
            now_ms=clock,
        )
        self.service = ReceiveService(self.takes, clock=clock)
        self.store = FakeStore()
        splitting = ReadSplitting(enabled=slave_read, written=lambda: self.written)
        reads = make_reads(self.store, creation, splitting=splitting)
        self.pulls = PullService(reads, LaneMessages(LanePasses(Lane("off")), lambda place, size: b""))

    def call(self) -> Call:
        return Call("m", "p", {"x-mq-client-id": "c", "x-mq-namespace": "ns"}, None)

    def receive(self, topic: str = "t", group: str = "g", **fields: Any) -> Any:
        fields.setdefault("auto_renew", True)
        fields.setdefault("long_polling_timeout", timedelta())
        request = messaging.ReceiveMessageRequest(
            group=v2.Resource(name=group),
            message_queue=v2.MessageQueue(topic=v2.Resource(name=topic)),
            **fields,
        )
        found = self.service.receive(self.call(), request)
        return found if isinstance(found, Deferred) else as_messages(messaging.ReceiveMessageResponse, found)

    def arrives(self, *messages: Delivered) -> None:
        """Have something come for those who wait."""
        self.takes.answer = list(messages)
        self.waiting.arrived("t", 0)
        self.clock.advance()


@pytest.fixture
def rig(tmp_path: Path) -> Rig:
    return Rig(tmp_path)


def test_all_queues_are_asked_whatever_the_request_names(rig: Rig) -> None:
    rig.receive(batch_size=100)
    request = rig.takes.requests[0]
    assert (request.queue_ids, request.batch, request.invisible_ms, request.client_id) == (
        range(2),
        32,
        None,
        "c",
    )


def test_header_gives_the_namespace_that_node_leaves_out(rig: Rig) -> None:
    rig.takes.answer = [Delivered(stored(), "h", 1)]
    frames = rig.receive()
    assert frames[1].message.topic.resource_namespace == "ns"


def test_invisible_time_is_checked_before_topic_and_group(rig: Rig) -> None:
    with pytest.raises(IllegalInvisibleTime):
        rig.receive("unknown", "nobody", auto_renew=False)
    with pytest.raises(TopicNotFound):
        rig.receive("unknown", "nobody")
    with pytest.raises(GroupNotFound):
        rig.receive("t", "nobody")


def test_unknown_topic_is_waited_for_where_a_send_may_create_it(tmp_path: Path) -> None:
    rig = Rig(tmp_path, auto_create=True)
    frames = rig.receive("later", "new")
    assert frames[0].status.code == v2.MESSAGE_NOT_FOUND
    assert rig.takes.requests[0].queue_ids == range(4)
    assert rig.groups.get("new") is not None and rig.topics.get("later") is None


def test_slave_serves_a_new_group_without_making_it(tmp_path: Path) -> None:
    rig = Rig(tmp_path, auto_create=True, master=False)
    rig.receive("t", "new")
    assert rig.groups.get("new") is None and len(rig.takes.requests) == 1


@pytest.mark.parametrize("invisible_ms", [9_999, 13 * 3600 * 1000])
def test_invisible_time_of_a_receive_is_bounded(rig: Rig, invisible_ms: int) -> None:
    with pytest.raises(IllegalInvisibleTime):
        rig.receive(invisible_duration=timedelta(milliseconds=invisible_ms), auto_renew=False)
    assert rig.takes.requests == []


POLL: dict[str, Any] = {"long_polling_timeout": timedelta(seconds=15)}


def test_waiting_receive_is_answered_in_frames(rig: Rig) -> None:
    waiting = rig.receive(**POLL)
    assert not waiting.done
    rig.arrives(Delivered(stored(), "h", 2))
    frames = as_messages(messaging.ReceiveMessageResponse, waiting.result)
    assert [frame.WhichOneof("content") for frame in frames] == ["status", "message", "delivery_timestamp"]
    assert frames[1].message.system_properties.delivery_attempt == 2


def test_what_goes_out_is_counted_when_it_goes_out(rig: Rig) -> None:
    counted = []
    rig.takes.delivered = lambda *one: counted.append(one)
    rig.receive(**POLL)
    assert counted == []
    message = stored()
    rig.arrives(Delivered(message, "h", 2))
    assert counted == [("t", "g", 1, message.size)]


def test_early_receives_are_served_when_this_broker_serves(rig: Rig) -> None:
    rig.takes.serves = False
    waiting, gone = rig.receive(**POLL), rig.receive(**POLL)
    gone.cancel()
    wrong = rig.receive("unknown", **POLL)
    assert rig.takes.requests == [] and rig.waiting.parked == 2
    rig.takes.answer = [Delivered(stored(), "h", 1)]
    rig.takes.serve()
    assert len(rig.takes.requests) == 1 and not rig.waiting.parked
    assert isinstance(wrong.error, TopicNotFound)
    frames = as_messages(messaging.ReceiveMessageResponse, waiting.result)
    assert frames[1].message.body == b"x"
    assert isinstance(rig.receive(), list)


def test_early_receive_may_go_on_waiting_for_as_long_as_it_was_to(rig: Rig) -> None:
    rig.takes.serves = False
    waiting = rig.receive(**POLL)
    rig.clock.advance(10_000)
    rig.takes.serve()
    assert not waiting.done and rig.waiting.has("t", "g")
    rig.clock.advance(4_999)
    assert not waiting.done
    rig.clock.advance(1)
    assert waiting.result[0].status.code == v2.MESSAGE_NOT_FOUND


def test_early_receive_leaves_where_it_waits_next(rig: Rig) -> None:
    rig.takes.serves = False
    waiting = rig.receive(**POLL)
    rig.takes.serve()
    waiting.cancel()
    assert not rig.waiting.parked


def test_early_receive_ends_with_its_polling_time(rig: Rig) -> None:
    rig.takes.serves = False
    waiting = rig.receive(**POLL)
    rig.clock.advance(14_999)
    assert not waiting.done
    rig.clock.advance(1)
    assert waiting.result[0].status.code == v2.MESSAGE_NOT_FOUND
    rig.takes.serve()
    assert rig.takes.requests == []


def test_early_receives_are_bounded(rig: Rig) -> None:
    rig.takes.serves = False
    for _ in range(POLLS_MAX):
        rig.receive()
    with pytest.raises(Throttled, match="4096 receives wait for this broker to be ready"):
        rig.receive()


@pytest.mark.parametrize(
    ("slave_read", "behind", "broker_id"), [(False, True, 0), (True, False, 0), (True, True, 3)]
)
def test_pull_that_lags_behind_memory_is_sent_to_the_slow_readers_broker(
    tmp_path: Path, slave_read: bool, behind: bool, broker_id: int
) -> None:
    rig = Rig(tmp_path, slave_read=slave_read)
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    rig.written = memory if behind else 100
    rig.store.put("t", 0)
    call = rig.call()
    request = messaging.PullMessageRequest(
        group=v2.Resource(name="g"), message_queue=v2.MessageQueue(topic=v2.Resource(name="t"))
    )
    frames = as_messages(messaging.PullMessageResponse, rig.pulls.pull(call, request))
    assert frames[-1].next_offset == 1
    assert call.trailers == [(SUGGESTION_TRAILER, str(broker_id))]


@pytest.mark.parametrize(
    ("attributes", "fifo", "by_priority"),
    [({}, False, True), ({}, True, False), ({"priority.factor": "0"}, False, False)],
)
def test_topic_of_priorities_is_read_from_its_last_queue_down(
    rig: Rig, attributes: dict[str, str], fifo: bool, by_priority: bool
) -> None:
    """Checklist 77: ordered groups are not concerned, and a group's attribute may switch it off."""
    topic = TopicConfig(name="urgent", read_queues=3).with_type(MessageType.PRIORITY)
    rig.topics.add(topic)
    rig.groups.add(GroupConfig(name="chosen", fifo=fifo, rest={"attributes": attributes}))
    rig.receive("urgent", "chosen")
    request = rig.takes.requests[0]
    assert request.by_priority is by_priority
    assert list(request.queue_ids) == ([2, 1, 0] if by_priority else [0, 1, 2])


def test_broker_may_take_0_for_the_most_urgent(rig: Rig) -> None:
    rig.topics.add(TopicConfig(name="urgent", read_queues=3).with_type(MessageType.PRIORITY))
    rig.takes.greatest_first = False
    rig.receive("urgent")
    (request,) = rig.takes.requests
    assert request.by_priority and list(request.queue_ids) == [0, 1, 2]


def test_group_may_read_by_priority_now_and_then(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    rig.topics.add(TopicConfig(name="urgent").with_type(MessageType.PRIORITY))
    rig.groups.add(GroupConfig(name="chosen").with_priority_percent(30))
    rolled = iter([29, 30])
    monkeypatch.setattr("whimbrel.broker.engine.take_checks.randrange", lambda stop: next(rolled))
    for _ in range(2):
        rig.receive("urgent", "chosen")
    assert [request.by_priority for request in rig.takes.requests] == [True, False]
