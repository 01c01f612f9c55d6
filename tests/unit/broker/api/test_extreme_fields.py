"""Extreme values in every field of clients' requests: whatever is wrong with them, it is no error of ours.

Each field of a request that is fine otherwise gets each value in turn, nested ones too, and then several at
once. The handlers are the services' own, over a store on disk. They may refuse, with a code that says what is
wrong; anything else would reach the client as 50001, with a traceback in the log.
"""

import random
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from support.broker.consumption import FakeClock, FakeJournal, take_of
from support.engine.reads import make_reads
from support.store.stores import NOW, OPTIONS, make_draft, open_master
from whimbrel.broker.api.positions import PositionService
from whimbrel.broker.api.pulls import PullService
from whimbrel.broker.api.receive import ReceiveService
from whimbrel.broker.api.send import SendService
from whimbrel.broker.api.session import SessionService
from whimbrel.broker.api.settle import SettleService
from whimbrel.broker.consume.client_positions import ClientPositions
from whimbrel.broker.consume.filters import compile_filter
from whimbrel.broker.consume.group_consumption import GroupConsumption
from whimbrel.broker.consume.plan import ReceiveRequest
from whimbrel.broker.engine.positions import PositionCalls
from whimbrel.broker.engine.send import Sends
from whimbrel.broker.engine.settle import Settles
from whimbrel.broker.engine.take import Takes
from whimbrel.broker.tables.clients import Clients
from whimbrel.broker.tables.group_creation import GroupCreation
from whimbrel.broker.tables.groups import GroupTable
from whimbrel.broker.tables.remoting_clients import RemotingClients
from whimbrel.broker.tables.topics import TopicTable
from whimbrel.deferred import Deferred
from whimbrel.errors import WhimbrelError
from whimbrel.model.topic import GroupConfig, MessageType, TopicConfig
from whimbrel.model.wire import CLIENT_ID_HEADER, QUEUE_HEADER
from whimbrel.pb.apache.rocketmq.v2 import definition_pb2 as v2
from whimbrel.pb.apache.rocketmq.v2 import service_pb2 as messaging
from whimbrel.rpc.http2.grpc_format import PREFIX
from whimbrel.rpc.server.calls import framed
from whimbrel.rpc.server.handlers import Call
from whimbrel.store.codec import decode_record, pack_host
from whimbrel.store.master_store import Appended, MasterStore

DIGITS = "9" * 5000
NUMBERS = (0, 1, -1, 999, 1 << 15, (1 << 31) - 1, -(1 << 31), (1 << 62) + 1, (1 << 63) - 1, -(1 << 63))
TEXTS = (
    "", " ", "\x01", "\x02x\x01", "\x1b[2J", "\x00", "²", "١", "0x1", DIGITS, "-" + DIGITS, "a" * 40_000,
    "%41", ":" * 10, "%RETRY%g", "a b", "||", "*", "TAG1 || TAG2", "\U0010ffff",
)  # fmt: skip
BYTES = (b"", b"\x00", b"\xff" * 70_000)
BOOLS = (True, False)
HANDLE_NUMBERS = (
    "",
    "0",
    "-1",
    "x",
    "١",
    "ffffffff",
    "100000000",
    "7fffffffffffffff",
    "ffffffffffffffff",
    "f" * 900,
)


class StoreAppender:
    """Appends to the store at once."""

    waits = False

    def __init__(self, store: MasterStore) -> None:
        self.store = store

    def check_writable(self) -> None:
        pass

    def append(self, drafts: Any) -> list[Appended]:
        return self.store.append(drafts)


class Front:
    """The client API over a store with a topic `topic` and one held message of the group `g`."""

    def __init__(self, root: Path) -> None:
        clock = lambda: NOW  # noqa: E731
        self.clock = FakeClock()
        self.clock.now = NOW
        self.store = open_master(root / "store", replace(OPTIONS, commitlog_file_size=1 << 20))
        for number in range(3):
            self.store.append([make_draft(number)])
        self.topics = TopicTable(root, cluster="C", broker_name="b", auto_create=True, clock=clock)
        for name, kind in (("topic", MessageType.NORMAL), ("mixed", MessageType.MIXED)):
            self.topics.add(TopicConfig(name=name, read_queues=1, write_queues=1).with_type(kind))
        self.groups = GroupTable(root, auto_create=True, clock=clock)
        self.groups.add(GroupConfig(name="g"))
        self.clients = Clients()
        waiting = self.clock.waiting()
        self.consumption = GroupConsumption(
            self.store,
            FakeJournal(),
            waiting,
            broker_name="b",
            broker_id=0,
            now_ms=clock,
            schedule=self.clock.schedule,
            client_alive=lambda group, client: True,
        )
        self.consumption.open()
        creation = GroupCreation(self.topics, self.groups, master=True, clock=lambda: 0.0)
        self.takes = Takes(self.topics, creation, self.consumption, waiting, now_ms=clock)
        self.handle = self.receive()
        appender: Any = StoreAppender(self.store)
        host = pack_host("127.0.0.1", 1)
        engine = Sends(self.topics, creation, appender, cluster="C", store_host=host, clock=clock)
        sends = SendService(engine, clock)
        receives = ReceiveService(self.takes, clock=clock)
        reads = make_reads(self.store, creation)
        calls = PositionCalls(
            creation,
            RemotingClients(compile_filter),
            ClientPositions(self.consumption.positions, monotonic=lambda: 0.0),
            self.store,
            reads.splitting,
        )
        positions = PositionService(calls)
        settles = SettleService(Settles(self.consumption, self.groups.get))
        pulls = PullService(reads, self.store.lane_messages)
        sessions = SessionService(
            self.clients, self.groups, self.consumption.upkeep.release_client, clock=lambda: NOW / 1000
        )
        topic, group, queue = v2.Resource(name="topic"), v2.Resource(name="g"), v2.MessageQueue(id=0)
        queue.topic.name = "topic"
        plain, mixed = message("topic"), message("mixed")
        acknowledged = messaging.AckMessageEntry(receipt_handle=self.handle)
        self.calls: dict[str, tuple[Callable[[Call, Any], Any], Any]] = {
            "send": (sends.send, messaging.SendMessageRequest(messages=[plain])),
            "send special": (sends.send, messaging.SendMessageRequest(messages=[mixed])),
            "receive": (
                receives.receive,
                messaging.ReceiveMessageRequest(group=group, message_queue=queue, auto_renew=True),
            ),
            "acknowledge": (
                settles.acknowledge,
                messaging.AckMessageRequest(group=group, topic=topic, entries=[acknowledged]),
            ),
            "change": (
                settles.change_invisible,
                messaging.ChangeInvisibleDurationRequest(
                    group=group, topic=topic, receipt_handle=self.handle
                ),
            ),
            "pull": (pulls.pull, messaging.PullMessageRequest(group=group, message_queue=queue)),
            "update offset": (
                positions.update_offset,
                messaging.UpdateOffsetRequest(group=group, message_queue=queue, offset=1),
            ),
            "get offset": (
                positions.get_offset,
                messaging.GetOffsetRequest(group=group, message_queue=queue),
            ),
            "query offset": (
                positions.query_offset,
                messaging.QueryOffsetRequest(message_queue=queue, query_offset_policy=messaging.TIMESTAMP),
            ),
            "heartbeat": (sessions.heartbeat, messaging.HeartbeatRequest(group=group)),
            "terminate": (sessions.terminate, messaging.NotifyClientTerminationRequest(group=group)),
        }

    def receive(self) -> str:
        """Return the receipt handle of a message that is held."""
        request = ReceiveRequest(
            group="g", topic="topic", queue_ids=range(1), filter=compile_filter("tag", "*"), batch=1,
            invisible_ms=None, client_id="c",
        )  # fmt: skip
        held: Any = self.takes.take(take_of(request), lambda take, found: list(found))
        return str(held[0].handle)

    def call(self, name: str, request: Any, headers: dict[str, str] | None = None) -> int:
        """Return the code of the answer; an error of another kind than ours passes through."""
        call = Call("m", "127.0.0.1:9", {CLIENT_ID_HEADER: "c"} | (headers or {}), None)
        try:
            answer = self.calls[name][0](call, request)
        except WhimbrelError as error:
            return error.code
        if isinstance(answer, Deferred):
            answer.cancel()
            return 0
        answers = answer if isinstance(answer, list) else [answer]
        first, *_ = [framed(one) for one in answers]
        end = PREFIX.size + int.from_bytes(first[1 : PREFIX.size], "big")
        return int(messaging.HeartbeatResponse.FromString(first[PREFIX.size : end]).status.code)


def message(topic: str) -> Any:
    system = v2.SystemProperties(message_id="id", tag="t", keys=["k"], body_digest=v2.Digest(checksum="00"))
    if topic == "topic":
        system.ClearField("body_digest")
    return v2.Message(
        topic=v2.Resource(name=topic), body=b"x", system_properties=system, user_properties={"key": "value"}
    )


def changes(descriptor: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[tuple[Any, ...], Any]]:
    """Yield paths of fields and values for them."""
    for field in descriptor.fields:
        here = (*path, field)
        if field.message_type is not None and field.message_type.GetOptions().map_entry:
            for text in TEXTS:
                yield here, (text, "value")
                yield here, ("key", text)
        elif field.message_type is not None:
            yield from changes(field.message_type, here)
        else:
            values: tuple[Any, ...] = {
                field.CPPTYPE_STRING: BYTES if field.type == field.TYPE_BYTES else TEXTS,
                field.CPPTYPE_BOOL: BOOLS,
            }.get(field.cpp_type, NUMBERS)
            for value in values:
                yield here, value


def change(request: Any, path: tuple[Any, ...], value: Any) -> None:
    """Set one field; a value that the field can't hold is left out."""
    for field in path[:-1]:
        request = getattr(request, field.name)
        if field.is_repeated:
            request = request[0] if request else request.add()
        else:
            request.SetInParent()
    last = path[-1]
    if isinstance(value, tuple):
        getattr(request, last.name)[value[0]] = value[1]
        return
    try:
        if last.is_repeated:
            getattr(request, last.name).append(value)
        else:
            setattr(request, last.name, value)
    except (ValueError, TypeError):
        pass


@pytest.fixture(scope="module")
def front(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Front]:
    front = Front(tmp_path_factory.mktemp("front"))
    yield front
    front.store.close()


NAMES = (
    "send", "send special", "receive", "acknowledge", "change", "pull", "update offset", "get offset",
    "query offset", "heartbeat", "terminate",
)  # fmt: skip


@pytest.mark.parametrize("name", NAMES)
def test_no_value_of_a_single_field_is_an_error_of_ours(name: str, front: Front) -> None:
    fine = front.calls[name][1]
    for path, value in changes(fine.DESCRIPTOR):
        request = type(fine).FromString(fine.SerializeToString())
        change(request, path, value)
        where = ".".join(field.name for field in path)
        assert front.call(name, request) != 50001, f"{where} = {str(value)[:40]!r}"


@pytest.mark.parametrize("name", NAMES)
def test_no_combination_of_values_is_an_error_of_ours(name: str, front: Front) -> None:
    fine, dice = front.calls[name][1], random.Random(name)
    every = list(changes(fine.DESCRIPTOR))
    for _ in range(1000):
        request = type(fine).FromString(fine.SerializeToString())
        chosen = dice.sample(every, min(dice.randrange(2, 5), len(every)))
        for path, value in chosen:
            change(request, path, value)
        assert front.call(name, request) != 50001, chosen


@pytest.mark.parametrize("name", ["acknowledge", "change"])
def test_no_number_in_a_receipt_handle_is_an_error_of_ours(name: str, front: Front) -> None:
    for at in range(11):
        for number in HANDLE_NUMBERS:
            front.store.append([make_draft()])
            parts = front.receive().split(":")
            handle = ":".join((*parts[:at], number, *parts[at + 1 :]))
            request = type(front.calls[name][1])(group={"name": "g"}, topic={"name": "topic"})
            if name == "acknowledge":
                request.entries.add(receipt_handle=handle)
            else:
                request.suspend = number == "0"
                request.receipt_handle = handle
            assert front.call(name, request) != 50001, handle


@pytest.mark.parametrize("number", [*TEXTS, "-1", "4294967296", "0" * 5000])
def test_no_queue_header_is_an_error_of_ours(number: str, front: Front) -> None:
    request = front.calls["send"][1]
    assert front.call("send", request, {QUEUE_HEADER: number}) != 50001


def test_every_message_that_was_taken_can_be_delivered(front: Front) -> None:
    low, high = front.store.queue_range("topic", 0)
    for physical_offset, size, _ in front.store.queue_units("topic", 0, low, high - low):
        stored = decode_record(front.store.read(physical_offset, size))
        assert 0 <= stored.born_timestamp < 253_402_300_800_000  # until the year 9999, as protobuf's times
