"""Whose a message group is on a topic of several brokers, and what becomes of its sends."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from support.remoting.handlers import StoreAppender
from whimbrel.broker.api.send import V2_SENDS, SendService
from whimbrel.broker.engine import send_checks as checks
from whimbrel.broker.engine.message import MessageExtras, born_host_of
from whimbrel.broker.engine.send import Elsewhere, Send, Sends
from whimbrel.broker.engine.targets import SendTarget
from whimbrel.broker.produce.placement import owner_of_group, queue_of_group
from whimbrel.broker.tables.group_creation import GroupCreation
from whimbrel.broker.tables.groups import GroupTable
from whimbrel.broker.tables.topics import TopicTable
from whimbrel.deferred import Deferred
from whimbrel.errors import BadRequest, QueueNotFound
from whimbrel.model.topic import MessageType, TopicConfig
from whimbrel.pb.apache.rocketmq.v2 import definition_pb2 as v2
from whimbrel.pb.apache.rocketmq.v2 import service_pb2 as messaging
from whimbrel.rpc.server.forwarder import TO_OWNER, Hop, Target
from whimbrel.rpc.server.handlers import Call
from whimbrel.store.codec import RecordDraft

TOPIC = TopicConfig(name="t", read_queues=4, write_queues=4).with_type(MessageType.FIFO)


class Forwards:
    """Keeps what is handed on."""

    def __init__(self) -> None:
        self.asked: list[dict[str, Any]] = []

    def forward(
        self, call: Call, request: Any, targets: list[Target], hop: Hop, decode: Any, *, headers: Any
    ) -> Deferred[Any]:
        assert hop is TO_OWNER
        (target,) = targets
        self.asked.append({"target": target, "headers": headers})
        return Deferred()


class Rig:
    def __init__(self, tmp_path: Path, others: dict[str, int]) -> None:
        topics = TopicTable(tmp_path, cluster="c", broker_name="b", auto_create=False, clock=lambda: 1)
        topics.put(TOPIC)
        groups = GroupTable(tmp_path, auto_create=False, clock=lambda: 1)
        self.sharing: Any = SimpleNamespace(
            name="b", others={"t": others} if others else {}, address=lambda name: f"{name}:1"
        )
        self.sends = Sends(
            topics,
            GroupCreation(topics, groups, master=True, clock=lambda: 0.0),
            StoreAppender(None),
            cluster="c",
            store_host=bytes(8),
            clock=lambda: 1,
            sharing=cast(Any, self.sharing),
        )
        self.forwards = Forwards()
        forwarder: Any = self.forwards
        self.service = SendService(self.sends, lambda: 1, owners=self.sharing, forwarder=forwarder)
        self.draft = RecordDraft("t", 0, b"", b"", 0, b"", b"")

    def place(
        self,
        *names: str,
        kind: MessageType = MessageType.FIFO,
        target: SendTarget | None = None,
        queue: int = -1,
        handed_on: bytes | None = None,
    ) -> Any:
        """Return the queue here, whose it is else, or None where nothing was looked up."""
        send = Send(V2_SENDS, "t", [], b"", queue=queue)
        send.target, send.drafts, send.handed_on = target or SendTarget(TOPIC), [self.draft], handed_on
        send.special = [(MessageExtras(kind=kind, message_group=name), b"") for name in names]
        checks.HERE.run(self.sends, send)
        if send.handed_on is not None:
            checks.QUEUE.run(self.sends, send)
        return send.elsewhere or (None if send.queue_id < 0 else send.queue_id)


def test_a_topic_of_one_broker_needs_no_look_up(tmp_path: Path) -> None:
    assert Rig(tmp_path, {}).place("g") is None


def test_messages_of_transactions_stay(tmp_path: Path) -> None:
    assert Rig(tmp_path, {"a": 4, "c": 4}).place("g", kind=MessageType.TRANSACTION) is None


def test_groups_go_to_their_owner_and_the_others_stay(tmp_path: Path) -> None:
    rig = Rig(tmp_path, {"a": 4, "c": 8})
    for number in range(50):
        owner, queue_id = owner_of_group(f"g{number}", {"a": 4, "b": 4, "c": 8})
        found = rig.place(f"g{number}")
        if owner == "b":
            assert found == queue_id
        else:
            assert found == Elsewhere(owner, queue_id)


def test_a_request_goes_to_the_owner_of_its_group(tmp_path: Path) -> None:
    rig = Rig(tmp_path, {"a": 400})
    owner, queue_id = owner_of_group("g", {"a": 400, "b": 4})
    message = v2.Message(body=b"x")
    message.topic.name = "t"
    message.system_properties.message_id, message.system_properties.message_group = "id", "g"
    call = Call("m", "10.0.0.1:5", {}, None)
    found = rig.service.send(call, messaging.SendMessageRequest(messages=[message]))
    (how,) = rig.forwards.asked
    assert isinstance(found, Deferred) and owner == "a"
    assert how["target"] == Target(owner, f"{owner}:1")
    assert how["headers"] == (("whimbrel-queue-id", str(queue_id)),)


def test_the_index_runs_over_the_queues_of_all_brokers_by_name() -> None:
    for number in range(100):
        index = queue_of_group(f"g{number}", 14)
        expected = ("a", index) if index < 4 else ("b", index - 4) if index < 6 else ("c", index - 6)
        assert owner_of_group(f"g{number}", {"c": 8, "a": 4, "b": 2}) == expected


def test_what_was_handed_on_is_not_handed_on_again(tmp_path: Path) -> None:
    rig = Rig(tmp_path, {"a": 400})
    there = born_host_of("10.9.9.9:77")
    assert rig.place("g", queue=3, handed_on=there) == 3
    assert rig.draft.born_host == there
    with pytest.raises(QueueNotFound):
        rig.place("g", queue=4, handed_on=there)


def test_several_groups_are_refused(tmp_path: Path) -> None:
    with pytest.raises(BadRequest):
        Rig(tmp_path, {"a": 4}).place("g", "h")


def test_without_any_writable_queue_the_broker_itself_says_so(tmp_path: Path) -> None:
    rig = Rig(tmp_path, {"a": 0})
    read_only = SendTarget(
        TopicConfig(name="t", read_queues=4, write_queues=4, permission=TOPIC.permission & 4)
    )
    assert rig.place("g", target=read_only) is None
