"""What calls about positions wait for where the leader is elected: a majority that has the leases."""

from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from support.remoting.handlers import FakePeer
from support.remoting.tables import Broker, command
from whimbrel.broker.api.positions import V2_POSITIONS, PositionService
from whimbrel.broker.api.resets import V2_RESETS, ResetService
from whimbrel.broker.cluster import state_quorum
from whimbrel.broker.cluster.state_quorum import StateQuorum
from whimbrel.broker.engine import resets
from whimbrel.broker.engine.positions import Position, PositionCalls
from whimbrel.broker.engine.resets import Clone, Reset, Resets
from whimbrel.broker.engine.splitting import ReadSplitting
from whimbrel.broker.engine.tables import TableChanges
from whimbrel.broker.remoting.positions import REMOTING_POSITIONS, RemotingPositions
from whimbrel.broker.remoting.resets import REMOTING_RESETS, RemotingResets
from whimbrel.broker.tables.group_creation import GroupCreation
from whimbrel.deferred import Deferred
from whimbrel.errors import (
    BadRequest,
    GroupNotFound,
    IllegalGroup,
    IllegalOffset,
    NotReady,
    NotStored,
    NotWritable,
    OffsetNotFound,
    StoreFull,
    Throttled,
    TopicNotFound,
    WhimbrelError,
)
from whimbrel.pb.apache.rocketmq.v2 import definition_pb2 as v2
from whimbrel.pb.apache.rocketmq.v2 import service_pb2 as messaging
from whimbrel.pb.whimbrel.admin.v1 import admin_service_pb2 as admin
from whimbrel.rpc.remoting.handlers import Reply
from whimbrel.rpc.server.handlers import Call
from whimbrel.rpc.server.responses import OK

BOTH = pytest.mark.parametrize("rules", [V2_POSITIONS, REMOTING_POSITIONS], ids=["v2", "remoting"])
RESETS = pytest.mark.parametrize("rules", [V2_RESETS, REMOTING_RESETS], ids=["v2", "remoting"])
CALL = Call("m", "127.0.0.1:9", {}, None)


class Rig(Broker):
    """A leader of three; topic T has five messages in queue 0, group G stands at 2, and nobody else knows."""

    def __init__(self, root: Path) -> None:
        super().__init__(root, auto_groups=False)
        self.topic()
        self.group()
        self.put(5)
        self.journal: Any = self.consumption.lease_store.journal
        self.quorum = StateQuorum(
            "positions", others=(2, 3), copies=2, newest=lambda: self.journal.appended,
            own=lambda: self.journal.appended, clock=lambda: 0.0, timeout_s=3.0,
        )  # fmt: skip
        self.why = ""
        self.calls = PositionCalls(
            GroupCreation(self.topics, self.groups, master=True, clock=lambda: 0.0),
            self.clients,
            self.positions,
            self.store,
            ReadSplitting(enabled=False, written=lambda: self.store.written),
            majority=self.quorum,
            not_serving=lambda: self.why,
        )
        tables = TableChanges(self.topics, self.groups, self.consumption, self.store, master=True)
        self.resets = Resets(
            tables, self.clients, self.positions, majority=self.quorum, not_serving=lambda: self.why
        )
        self.v2 = PositionService(self.calls)
        self.handles = RemotingPositions(self.calls).handles()
        self.handles |= RemotingResets(self.resets, self.clients, broker_name="b").handles()
        self.positions.commit("G", "T", 0, 2, owned=True)

    def others_know(self) -> None:
        self.quorum.stored(2, self.journal.appended)

    def commit(self, rules: Any, offset: int, group: str = "G", topic: str = "T") -> Deferred[None] | None:
        return self.calls.commit(lambda: Position(rules, topic, 0, group, offset))

    def get(self, rules: Any, group: str = "G", queue_id: int = 0) -> int:
        return self.calls.get(lambda: Position(rules, "T", queue_id, group))

    def reset(self, rules: Any, to: int, group: str = "G", topic: str = "T") -> Any:
        """Reset the group on queue 0; the answer is where it is to stand."""
        asked = Reset(rules, topic, group, lambda: 0, lambda: resets.offset(to))
        return self.resets.reset(lambda: asked, lambda moved: moved.offsets)

    def clone(self, source: str = "G", target: str = "H") -> Deferred[None] | None:
        return self.resets.clone(lambda: Clone(source, target, "T"))

    @property
    def position(self) -> int | None:
        return self.positions.get("G", "T", 0)


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[Rig]:
    found = Rig(tmp_path)
    yield found
    found.close()


@BOTH
def test_a_commit_waits_for_leases(rig: Rig, rules: Any) -> None:
    held = rig.commit(rules, 3)
    assert held is not None and not held.done and rig.position == 3
    rig.others_know()
    assert held.done and held.error is None


@BOTH
def test_a_commit_that_moves_nothing_waits_as_well(rig: Rig, rules: Any) -> None:
    """Where the group stands may be known here only."""
    held = rig.commit(rules, 2)
    assert held is not None and not held.done
    rig.others_know()
    assert held.done and held.error is None


@pytest.mark.parametrize("topic", ["T", "unknown"])
def test_a_commit_without_effect_waits_as_well(rig: Rig, topic: str) -> None:
    held = rig.calls.commit(lambda: Position(REMOTING_POSITIONS, topic, 9, "G", 1))
    assert held is not None and not held.done
    rig.others_know()
    assert held.done and held.error is None


@pytest.mark.parametrize(
    ("rules", "group", "topic", "error"),
    [
        (V2_POSITIONS, "G", "unknown", TopicNotFound),
        (V2_POSITIONS, "unknown", "T", GroupNotFound),
        (REMOTING_POSITIONS, "unknown", "T", GroupNotFound),
    ],
)
def test_what_is_gone_is_told_once_a_majority_has_it(
    rig: Rig, rules: Any, group: str, topic: str, error: type[WhimbrelError]
) -> None:
    held = rig.commit(rules, 3, group, topic)
    assert held is not None and not held.done
    rig.others_know()
    assert isinstance(held.error, error)
    with pytest.raises(error):
        rig.commit(rules, 3, group, topic)


@BOTH
def test_answers_leave_at_once_while_a_majority_has_all(rig: Rig, rules: Any) -> None:
    rig.others_know()
    assert rig.commit(rules, 2) is None


@BOTH
def test_refusals_wait_for_nobody(rig: Rig, rules: Any) -> None:
    with pytest.raises(IllegalGroup):
        rig.commit(rules, 3, "no group")
    rig.journal.full = True
    with pytest.raises(StoreFull):
        rig.commit(rules, 3)
    with pytest.raises(IllegalOffset):
        rig.commit(V2_POSITIONS, 9)
    with pytest.raises(BadRequest, match="commitOffset"):
        rig.handles[15](rig.peer, command(15, consumerGroup="G", topic="T", queueId=0))


@BOTH
def test_what_is_asked_waits_for_nobody(rig: Rig, rules: Any) -> None:
    assert rig.get(rules) == 2
    position = Position(rules, "T", 0)
    assert (rig.calls.first(position), rig.calls.end(position), rig.calls.at(position, lambda: 0)) == (
        0,
        5,
        0,
    )
    with pytest.raises(OffsetNotFound):
        rig.get(V2_POSITIONS, "unknown")


@BOTH
def test_nothing_is_told_of_positions_before_the_leader_serves(rig: Rig, rules: Any) -> None:
    """Nor is anything read of the request, or changed."""
    rig.why = "too few members"
    written = rig.journal.appended

    def read() -> Position:
        raise AssertionError("the request is read")

    for ask in (partial(rig.calls.commit, read), partial(rig.calls.get, read)):
        with pytest.raises(NotReady, match="too few members"):
            ask()
    assert rig.journal.appended == written


def test_of_queues_only_the_client_api_tells_nothing_before_the_leader_serves(rig: Rig) -> None:
    """What is in the log, tools of RocketMQ 4 are told of any broker."""
    rig.why = "too few members"
    wanted, asks = Position(V2_POSITIONS, "no topic", 0), rig.calls
    queries: list[Callable[[Position], int]] = [asks.first, asks.end, lambda place: asks.at(place, lambda: 0)]
    for ask in queries:
        with pytest.raises(NotReady, match="too few members"):
            ask(wanted)
    assert [ask(Position(REMOTING_POSITIONS, "T", 0)) for ask in (*queries, asks.first_time)][:3] == [0, 5, 0]


@BOTH
def test_who_waits_for_a_majority_that_does_not_come_is_told_that_nobody_knows(rig: Rig, rules: Any) -> None:
    held = rig.commit(rules, 3)
    rig.quorum.close("the leader stops")
    assert held is not None and isinstance(held.error, NotStored)
    with pytest.raises(NotStored):
        rig.commit(rules, 4)


@BOTH
def test_no_more_wait_than_may(rig: Rig, rules: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(state_quorum, "WAITING_MAX", 0)
    with pytest.raises(Throttled):
        rig.commit(rules, 3)


@RESETS
def test_a_reset_waits_for_leases(rig: Rig, rules: Any) -> None:
    held = rig.reset(rules, 1)
    assert not held.done and rig.position == 1
    rig.others_know()
    assert held.done and held.result == {0: 1}


def test_a_clone_waits_for_leases_whether_or_not_it_moves_anything(rig: Rig) -> None:
    rig.group("H")
    held = [rig.clone("unknown"), rig.clone()]
    assert all(one is not None and not one.done for one in held) and rig.positions.get("H", "T", 0) == 2
    rig.others_know()
    assert all(one is not None and one.done and one.error is None for one in held)
    assert rig.clone() is None, "a majority has it"


@RESETS
def test_what_is_gone_is_told_of_resets_once_a_majority_has_it(rig: Rig, rules: Any) -> None:
    held = [rig.reset(rules, 1, "unknown"), rig.clone("G", "unknown")]
    held += [rig.reset(V2_RESETS, 1, topic="unknown")]
    assert not any(one.done for one in held)
    rig.others_know()
    assert [type(one.error) for one in held] == [GroupNotFound, GroupNotFound, TopicNotFound]
    with pytest.raises(GroupNotFound):
        rig.reset(rules, 1, "unknown")


@RESETS
def test_refused_resets_wait_for_nobody(rig: Rig, rules: Any) -> None:
    with pytest.raises(IllegalGroup):
        rig.reset(rules, 1, "no group")
    with pytest.raises(IllegalGroup):
        rig.clone("G", "no group")
    with pytest.raises(IllegalOffset):
        rig.reset(rules, 9)
    with pytest.raises(BadRequest):
        rig.reset(REMOTING_RESETS, 1, topic="unknown")
    rig.journal.full = True
    with pytest.raises(StoreFull):
        rig.reset(rules, 1)
    rig.resets.tables.master = False
    with pytest.raises(NotWritable):
        rig.reset(rules, 1)
    with pytest.raises(NotWritable):
        rig.clone()


@RESETS
def test_nothing_is_reset_before_the_leader_serves(rig: Rig, rules: Any) -> None:
    """Nor is anything read of the request."""
    rig.why = "too few members"
    written = rig.journal.appended

    def read() -> Any:
        raise AssertionError("the request is read")

    for ask in (lambda: rig.resets.reset(read, lambda moved: moved), lambda: rig.resets.clone(read)):
        with pytest.raises(NotReady, match="too few members"):
            ask()
    with pytest.raises(NotReady):
        rig.reset(rules, 1)
    assert rig.journal.appended == written


@RESETS
def test_who_waits_with_a_reset_in_vain_is_told_that_nobody_knows(rig: Rig, rules: Any) -> None:
    held = rig.reset(rules, 1)
    rig.quorum.close("the leader stops")
    assert isinstance(held.error, NotStored)
    with pytest.raises(NotStored):
        rig.clone("G", "G")


def test_members_are_told_at_once_where_to_go_on(rig: Rig) -> None:
    """The position has moved here, whoever knows of it; both protocols answer with what was then."""
    peer = FakePeer()
    rig.join(peer)
    request = admin.ResetOffsetsRequest(group="G", topic="T", earliest=True)
    by_grpc = ResetService(rig.resets).reset(CALL, request)
    by_remoting = rig.handles[222](rig.peer, command(222, topic="T", group="G", timestamp=-1, isForce="true"))
    assert [code for code, *_ in peer.pushed] == [220]
    assert isinstance(by_remoting, Deferred) and not by_grpc.done and not by_remoting.done
    rig.others_know()
    assert [row.committed_offset for row in by_grpc.result.progress] == [0, 0, 0, 0]
    assert isinstance(by_remoting.result, Reply) and by_remoting.result.code == 0


def test_both_protocols_word_the_answer_when_it_leaves(rig: Rig) -> None:
    queue = v2.MessageQueue(topic=v2.Resource(name="T"))
    request = messaging.UpdateOffsetRequest(group=v2.Resource(name="G"), message_queue=queue, offset=3)
    fields = {"consumerGroup": "G", "topic": "T", "queueId": 0, "commitOffset": 4}
    held = [rig.v2.update_offset(CALL, request), rig.handles[15](rig.peer, command(15, **fields))]
    assert not any(one.done for one in held)
    rig.others_know()
    assert [one.result for one in held] == [messaging.UpdateOffsetResponse(status=OK), Reply()]
