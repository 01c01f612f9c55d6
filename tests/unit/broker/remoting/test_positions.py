"""Offsets of groups and queues by the remoting protocol. Statements of the checklist carry their numbers."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from support.remoting.handlers import FakePeer
from support.remoting.tables import Broker
from support.store.stores import NOW
from whimbrel.broker.engine.positions import PositionCalls
from whimbrel.broker.engine.splitting import ReadSplitting
from whimbrel.broker.remoting.positions import RemotingPositions
from whimbrel.broker.tables.group_creation import GroupCreation
from whimbrel.rpc.remoting.handlers import Reply


class Rig(Broker):
    """Topic T has four queues, and three messages in queue 0; there is a group G."""

    def __init__(self, root: Path, *, master: bool = True) -> None:
        super().__init__(root, master=master)
        self.topic()
        self.group()
        self.put(3)
        self.splitting = ReadSplitting(enabled=False, written=lambda: self.store.written)
        self.splitting.memory = 1 << 20
        calls = PositionCalls(
            GroupCreation(self.topics, self.groups, master=master, clock=lambda: 0.0),
            self.clients,
            self.positions,
            self.store,
            self.splitting,
        )
        self.handles = RemotingPositions(calls).handles()

    def query(self, group: str = "G", topic: str = "T", queue_id: int = 0) -> int | None:
        """Return where a group stands; None for 22."""
        reply = self(14, consumerGroup=group, topic=topic, queueId=queue_id)
        assert reply.code in (0, 22)
        return int(reply.fields["offset"]) if reply.code == 0 else None

    def commit(self, offset: int, group: str = "G", topic: str = "T", queue_id: int = 0) -> Reply:
        return self(15, consumerGroup=group, topic=topic, queueId=queue_id, commitOffset=offset)

    def offset(self, code: int, topic: str = "T", queue_id: int = 0, **more: int) -> int:
        reply = self(code, topic=topic, queueId=queue_id, **more)
        assert reply.code == 0
        return int(reply.fields["offset"])


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[Rig]:
    found = Rig(tmp_path)
    yield found
    found.close()


def test_6_1_26_a_new_group_stands_at_0_on_a_young_topic(rig: Rig) -> None:
    assert rig.query() == 0, "its first message is in memory"
    assert rig.query(queue_id=1) == 0, "it has none"
    assert rig.query(topic="unknown") == 0


def test_6_1_26_and_nowhere_when_the_first_message_is_far_back(rig: Rig) -> None:
    rig.splitting.memory = rig.store.written - 1
    assert rig.query() is None
    assert rig.query(queue_id=1) == 0
    rig.commit(2)
    assert rig.query() == 2


def test_6_1_26_and_nowhere_when_messages_are_gone(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rig.store.queues.by_key["T", 0], "min", 1)
    assert rig.query() is None


def test_6_1_27_a_commit_beyond_the_end_is_taken_as_the_end(rig: Rig) -> None:
    assert rig.commit(100).code == 0
    assert rig.query() == 3


@pytest.mark.parametrize(("topic", "queue_id"), [("unknown", 0), ("T", 4), ("T", -1)])
def test_6_1_27_a_commit_for_what_is_not_there_has_no_effect(rig: Rig, topic: str, queue_id: int) -> None:
    assert rig.commit(1, topic=topic, queue_id=queue_id).code == 0
    assert rig.positions.get("G", topic, queue_id) is None


def test_a_commit_for_an_unknown_group_makes_it_where_that_may_be(rig: Rig) -> None:
    assert rig.commit(1, group="new").code == 0 and rig.positions.get("new", "T", 0) == 1
    rig.groups.auto_create = False
    assert rig.commit(1, group="unknown").code == 26
    assert rig.positions.get("unknown", "T", 0) is None


def test_6_1_27_while_a_member_lives_nothing_moves_back(rig: Rig) -> None:
    member = FakePeer()
    rig.join(member)
    rig.commit(3)
    assert rig.commit(1).code == 0
    assert rig.query() == 3, "whichever connection it came by: that of the VIP port is another one"
    rig.clients.closed(member)
    assert rig.commit(1).code == 0
    assert rig.query() == 1, "mqadmin resets a group that is offline so"


def test_members_of_a_broadcast_own_no_positions(rig: Rig) -> None:
    rig.join(FakePeer(), model="BROADCASTING")
    rig.commit(3)
    rig.commit(1)
    assert rig.query() == 1


def test_on_a_slave_nothing_moves_back(tmp_path: Path) -> None:
    rig = Rig(tmp_path, master=False)
    rig.commit(3)
    rig.commit(1)
    assert rig.query() == 3
    rig.close()


def test_ends_and_beginnings_of_queues(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rig.store.queues.by_key["T", 0], "min", 1)
    assert (rig.offset(31), rig.offset(30)) == (1, 3)
    assert (rig.offset(31, queue_id=1), rig.offset(30, queue_id=1)) == (0, 0)
    assert (rig.offset(31, "unknown"), rig.offset(30, "unknown")) == (0, 0)


def test_offsets_by_time(rig: Rig) -> None:
    assert rig.offset(29, timestamp=NOW - 1) == 0
    assert rig.offset(29, timestamp=NOW) == 0
    assert rig.offset(29, timestamp=NOW + 1) == 3, "as 5.x; 4.9.3 gives the last message's"
    assert rig.offset(29, queue_id=1, timestamp=0) == 0


def test_when_the_first_message_was_stored(rig: Rig) -> None:
    assert rig(32, topic="T", queueId=0).fields == {"timestamp": str(NOW)}
    assert rig(32, topic="T", queueId=1).fields == {"timestamp": "-1"}
    assert rig(32, topic="unknown", queueId=0).fields == {"timestamp": "-1"}


@pytest.mark.parametrize("code", [14, 15, 29, 30, 31, 32])
def test_what_is_missing_is_told_in_a_sentence(rig: Rig, code: int) -> None:
    reply = rig(code, consumerGroup="G", topic="T", commitOffset=1, timestamp=1)
    assert reply.code == 1 and "queueId" in (reply.remark or "")
