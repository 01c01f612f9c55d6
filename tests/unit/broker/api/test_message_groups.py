"""Whose a message group is on a topic of several brokers, and what becomes of its sends."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from whimbrel.broker.api.message_groups import MessageGroups
from whimbrel.broker.produce.admission import Admission, MessageExtras, SendTarget, born_host_of
from whimbrel.broker.produce.placement import owner_of_group, queue_of_group
from whimbrel.broker.tables.topics import TopicTable
from whimbrel.deferred import Deferred
from whimbrel.errors import BadRequest, QueueNotFound
from whimbrel.model.topic import MessageType, TopicConfig
from whimbrel.pb.apache.rocketmq.v2 import service_pb2 as messaging
from whimbrel.rpc.server.forwarder import TO_OWNER, Hop, Target
from whimbrel.rpc.server.handlers import Call

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
        admission = Admission(topics, None, cluster="c", store_host=bytes(8), clock=lambda: 1)  # type: ignore[arg-type]
        sharing: Any = SimpleNamespace(
            name="b", others={"t": others} if others else {}, address=lambda name: f"{name}:1"
        )
        self.forwards = Forwards()
        forwarder: Any = self.forwards
        self.groups = MessageGroups(sharing, admission, forwarder)
        self.draft = SimpleNamespace(born_host=b"")

    def place(self, *names: str, kind: MessageType = MessageType.FIFO, **headers: str) -> Any:
        call = Call("m", "10.0.0.1:5", {name.replace("_", "-"): text for name, text in headers.items()}, None)
        extras = [MessageExtras(kind=kind, message_group=name) for name in names]
        drafts: Any = [self.draft]
        return self.groups.place(call, messaging.SendMessageRequest(), SendTarget(TOPIC), extras, drafts)


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
            how = rig.forwards.asked.pop()
            assert isinstance(found, Deferred)
            assert how["target"] == Target(owner, f"{owner}:1")
            assert how["headers"] == (("whimbrel-queue-id", str(queue_id)),)
    assert not rig.forwards.asked


def test_the_index_runs_over_the_queues_of_all_brokers_by_name() -> None:
    for number in range(100):
        index = queue_of_group(f"g{number}", 14)
        expected = ("a", index) if index < 4 else ("b", index - 4) if index < 6 else ("c", index - 6)
        assert owner_of_group(f"g{number}", {"c": 8, "a": 4, "b": 2}) == expected


def test_what_was_handed_on_is_not_handed_on_again(tmp_path: Path) -> None:
    rig = Rig(tmp_path, {"a": 400})
    hop: dict[str, Any] = {"whimbrel_hops": "owner", "x_whimbrel_client_peer": "10.9.9.9:77"}
    assert rig.place("g", whimbrel_queue_id="3", **hop) == 3
    assert rig.draft.born_host == born_host_of("10.9.9.9:77")
    with pytest.raises(QueueNotFound):
        rig.place("g", whimbrel_queue_id="4", **hop)


def test_several_groups_are_refused(tmp_path: Path) -> None:
    with pytest.raises(BadRequest):
        Rig(tmp_path, {"a": 4}).place("g", "h")


def test_without_any_writable_queue_the_broker_itself_says_so(tmp_path: Path) -> None:
    rig = Rig(tmp_path, {"a": 0})
    call = Call("m", "p:1", {}, None)
    read_only = SendTarget(
        TopicConfig(name="t", read_queues=4, write_queues=4, permission=TOPIC.permission & 4)
    )
    extras = [MessageExtras(kind=MessageType.FIFO, message_group="g")]
    assert rig.groups.place(call, messaging.SendMessageRequest(), read_only, extras, []) is None
