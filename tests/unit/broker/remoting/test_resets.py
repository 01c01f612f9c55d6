"""Resets: where the group stands then, who is told, and what pulls and commits do meanwhile."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from support.engine.reads import make_reads
from support.remoting.handlers import FakePeer
from support.remoting.tables import Broker
from support.store.stores import NOW
from whimbrel.broker.engine.resets import Resets
from whimbrel.broker.engine.tables import TableChanges
from whimbrel.broker.engine.waiting import Waiting
from whimbrel.broker.remoting.pulls import Pulls
from whimbrel.broker.remoting.resets import RemotingResets
from whimbrel.broker.tables.group_creation import GroupCreation
from whimbrel.deferred import Deferred
from whimbrel.rpc.remoting.handlers import Reply


class Rig(Broker):
    """Topic T has two queues, with five messages in queue 0; group G stands at 4 there."""

    def __init__(self, root: Path, *, master: bool = True) -> None:
        super().__init__(root, master=master)
        self.soon: list[Any] = []
        waiting = Waiting(clock=lambda: 0, soon=self.soon.append, later=lambda seconds, callback: None)
        reads = make_reads(
            self.store,
            GroupCreation(self.topics, self.groups, master=master, clock=lambda: 0.0),
            members=self.clients,
            positions=self.positions,
            follows=not master,
            waiting=waiting,
        )
        pulls = Pulls(reads, lambda *, found: None)
        changes = TableChanges(self.topics, self.groups, self.consumption, self.store, master=master)
        decides = Resets(changes, self.clients, self.positions)
        resets = RemotingResets(decides, self.clients, broker_name="broker-a")
        self.positions.wake = reads.waiting.arrived
        self.handles = {**pulls.handles(), **resets.handles()}
        self.topic(queues=2)
        self.group()
        self.put(5)
        self.positions.commit("G", "T", 0, 4, owned=True)

    def reset(self, timestamp: int = 0, *, force: bool = True, group: str = "G", **fields: object) -> Reply:
        sent = {"topic": "T", "group": group, "timestamp": timestamp, "isForce": str(force).lower()} | fields
        return self(222, **sent)

    def pull(self, offset: int, commit: int | None = None) -> Reply | Deferred[Reply]:
        found = self.outcome(
            11, consumerGroup="G", topic="T", queueId=0, queueOffset=offset, maxMsgNums=32,
            sysFlag=2 | (commit is not None), commitOffset=commit or 0, suspendTimeoutMillis=15_000,
            subVersion=1,
        )  # fmt: skip
        assert found is not None
        return found

    @property
    def position(self) -> int | None:
        return self.positions.get("G", "T", 0)


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[Rig]:
    found = Rig(tmp_path)
    yield found
    found.close()


TABLE = (
    b'{"offsetTable":{{"brokerName":"broker-a","queueId":0,"topic":"T"}:0,'
    b'{"brokerName":"broker-a","queueId":1,"topic":"T"}:0}}'
)


def test_6_1_50_the_position_moves_at_once_and_members_are_told(rig: Rig) -> None:
    peer = FakePeer()
    rig.join(peer)
    reply = rig.reset()
    assert reply.code == 0 and reply.body == [TABLE]
    assert rig.position == 0
    fields = {"topic": "T", "group": "G", "timestamp": "0", "isForce": "false"}
    assert peer.pushed == [(220, fields, TABLE)]


def test_6_1_50_a_group_without_members_is_reset_as_well(rig: Rig) -> None:
    assert rig.reset().code == 0 and rig.position == 0


def test_cpp_gets_a_list(rig: Rig) -> None:
    peer = FakePeer()
    rig.join(peer, language="CPP")
    rig.reset()
    (code, _, body) = peer.pushed[0]
    assert code == 220 and body == (
        b'{"offsetTable":[{"brokerName":"broker-a","offset":0,"queueId":0,"topic":"T"},'
        b'{"brokerName":"broker-a","offset":0,"queueId":1,"topic":"T"}]}'
    )


def test_6_1_50_a_pull_from_where_the_client_was_is_sent_to_the_new_position(rig: Rig) -> None:
    rig.join(FakePeer())
    rig.reset()
    moved = rig.pull(5, commit=5)
    assert isinstance(moved, Reply)
    assert (moved.code, moved.fields["nextBeginOffset"]) == (21, "0")
    assert moved.fields.keys() == {"suggestWhichBrokerId", "nextBeginOffset", "minOffset", "maxOffset"}
    assert rig.position == 0, "what it commits with it has no effect"
    found = rig.pull(0)
    assert isinstance(found, Reply) and found.code == 0
    rig.pull(5, commit=3)
    assert rig.position == 3, "it has followed"


def test_6_1_50_a_pull_that_is_held_is_answered_at_once(rig: Rig) -> None:
    rig.join(FakePeer())
    held = rig.pull(5)
    assert isinstance(held, Deferred) and not held.done
    rig.reset()
    for callback in rig.soon:
        callback()
    assert isinstance(held.result, Reply)
    assert (held.result.code, held.result.fields["nextBeginOffset"]) == (21, "0")


def test_members_follow_a_reset_that_came_by_grpc(rig: Rig) -> None:
    rig.join(FakePeer())
    held = rig.pull(5)
    assert isinstance(held, Deferred)
    rig.consumption.positions.reset_offset("G", "T", 0, 1)
    for callback in rig.soon:
        callback()
    assert isinstance(held.result, Reply)
    assert (held.result.code, held.result.fields["nextBeginOffset"]) == (21, "1")
    rig.positions.commit("G", "T", 0, 5, owned=True)
    assert rig.position == 1


def test_members_of_a_broadcast_are_told_and_nothing_moves(rig: Rig) -> None:
    peer = FakePeer()
    rig.join(peer, model="BROADCASTING")
    assert rig.reset().body == [TABLE]
    assert len(peer.pushed) == 1 and rig.position == 4


def test_times_and_the_end(rig: Rig) -> None:
    rig.reset(-1)
    assert rig.position == 5
    rig.reset(NOW)
    assert rig.position == 0
    rig.reset(NOW + 1)
    assert rig.position == 5


def test_without_force_a_position_only_goes_back(rig: Rig) -> None:
    rig.reset(-1, force=False)
    assert rig.position == 4
    rig.reset(0, force=False)
    assert rig.position == 0


def test_5_x_names_a_queue_and_an_offset(rig: Rig) -> None:
    assert json_of_offsets(rig.reset(0, queueId=0, offset=3)) == {0: 3}
    assert rig.position == 3
    assert json_of_offsets(rig.reset(0, queueId=0, offset=99)) == {0: 5}
    assert json_of_offsets(rig.reset(0, queueId=-1, offset=-1)) == {0: 0, 1: 0}


def json_of_offsets(reply: Reply) -> dict[int, int]:
    text = bytes(reply.body[0]).replace(b'"offsetTable":{{', b'"offsetTable":{"').decode()
    found = {}
    for part in text.split('"queueId":')[1:]:
        found[int(part.split(",")[0])] = int(part.split("}:")[1].split(",")[0].rstrip("}"))
    return found


@pytest.mark.parametrize(
    ("fields", "code"),
    [({"topic": "U"}, 1), ({"group": "unknown"}, 26), ({"queueId": 2}, 1), ({"timestamp": "x"}, 1)],
)
def test_what_is_refused_moves_nothing(rig: Rig, fields: dict[str, Any], code: int) -> None:
    assert rig.reset(**fields).code == code
    assert rig.position == 4


def test_a_slave_resets_nothing(tmp_path: Path) -> None:
    rig = Rig(tmp_path, master=False)
    assert rig.reset().code == 14 and rig.position == 4
    rig.close()


def test_a_group_gets_the_positions_of_another_one(rig: Rig) -> None:
    rig.group("H")
    rig.positions.commit("G", "T", 0, 2, owned=False)
    rig.positions.commit("H", "T", 0, 4, owned=True)
    assert rig(314, srcGroup="G", destGroup="H", topic="T", offline="true").code == 0
    assert rig.positions.get("H", "T", 0) == 2
    assert rig(314, srcGroup="G", destGroup="unknown", topic="T").code == 26
