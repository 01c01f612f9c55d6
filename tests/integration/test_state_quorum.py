"""What an elected leader has answered beside sends is there after it is killed, with real processes."""

import contextlib
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import grpc
import pytest

from support.cluster.broker_api import queue
from support.cluster.elections import ElectedGroup, Member, bodies_of
from support.waiting import until
from whimbrel.pb.apache.rocketmq.v2 import definition_pb2 as v2
from whimbrel.pb.whimbrel.admin.v1 import admin_service_pb2 as admin

pytestmark = pytest.mark.process

ROUNDS = 2
SLOW_ROUNDS = 40
INVISIBLE_S = 10
Note = Callable[[str], None]


@pytest.fixture
def group(tmp_path: Path) -> Iterator[ElectedGroup]:
    with ElectedGroup(tmp_path) as running:
        leader = running.await_leader()
        until(lambda: leader.peer.send("t", b"first").status.code == v2.OK, timeout=10)
        yield running


def kill_after(group: ElectedGroup, leader: Member) -> Member:
    """Kill the leader at once; return the next one, with the old one as its follower."""
    leader.kill()
    successor = group.await_leader(leader)
    leader.start()
    until(lambda: (view := leader.view()) is not None and view.connected, timeout=15, what="a follower")
    return successor


@pytest.mark.parametrize("rounds", [ROUNDS, pytest.param(SLOW_ROUNDS, marks=pytest.mark.slow)])
def test_topics_and_groups_that_were_answered_are_there(group: ElectedGroup, rounds: int) -> None:
    leader = group.await_leader()
    for number in range(rounds):
        peer, name = leader.peer, f"made-{number}"
        made = admin.Topic(name=name, read_queues=3, message_type=admin.MESSAGE_TYPE_FIFO)
        peer.administer("CreateTopic", topic=made)
        peer.administer("CreateGroup", group=admin.Group(name=f"g-{number}", max_attempts=4, fifo=True))
        if number:
            peer.administer("DeleteTopic", name=f"made-{number - 1}")
        peer.administer("UpdateTopic", name=name, write_queues=2)
        leader = kill_after(group, leader)
        topic = leader.peer.administer("DescribeTopic", name=name).topic
        assert (topic.read_queues, topic.write_queues) == (3, 2)
        assert topic.message_type == admin.MESSAGE_TYPE_FIFO
        found = leader.peer.group(f"g-{number}").group
        assert (found.max_attempts, found.fifo) == (4, True)
        assert f"made-{number - 1}" not in leader.peer.topics()


@pytest.mark.parametrize("rounds", [ROUNDS, pytest.param(SLOW_ROUNDS, marks=pytest.mark.slow)])
def test_what_was_acknowledged_does_not_come_again(group: ElectedGroup, rounds: int) -> None:
    leader = group.await_leader()
    for number in range(rounds):
        peer, body = leader.peer, b"%d" % number
        assert peer.send("t", body).status.code == v2.OK
        got = peer.receive("t", "g", poll_s=3, invisible_s=INVISIBLE_S)
        assert body in got.bodies
        assert peer.ack("t", "g", *got.handles).status.code == v2.OK
        answered = peer("UpdateOffset", group=v2.Resource(name="p"), message_queue=queue("t", 0), offset=0)
        assert answered.status.code == v2.OK
        leader = kill_after(group, leader)
        progress = [one for one in leader.peer.group("g").progress if one.topic == "t"]
        assert sum(one.lag for one in progress) == 0 and sum(one.in_flight for one in progress) == 0
        found = leader.peer("GetOffset", group=v2.Resource(name="p"), message_queue=queue("t", 0))
        assert (found.status.code, found.offset) == (v2.OK, 0)
    assert leader.peer.receive("t", "g", poll_s=1).bodies == []


def test_an_ordered_group_goes_on_behind_what_its_last_receive_has_taken(group: ElectedGroup) -> None:
    leader = group.await_leader()
    peer = leader.peer
    peer.administer("CreateTopic", topic=admin.Topic(name="o", read_queues=1))
    peer.administer("CreateGroup", group=admin.Group(name="og", fifo=True))
    for number in range(3):
        assert peer.send("o", b"%d" % number).status.code == v2.OK
    got = peer.receive("o", "og", batch=1, poll_s=3, invisible_s=60)
    assert got.bodies == [b"0"]
    leader = kill_after(group, leader)
    assert leader.peer.receive("o", "og", batch=1, poll_s=1).bodies == []
    assert leader.peer.ack("o", "og", *got.handles).status.code == v2.OK
    assert leader.peer.receive("o", "og", batch=1, poll_s=3).bodies == [b"1"]


def test_a_topic_that_a_send_has_made_keeps_its_queues(group: ElectedGroup) -> None:
    leader = group.await_leader()
    assert leader.peer.send("auto", b"x").status.code == v2.OK
    before = leader.peer.administer("DescribeTopic", name="auto").topic
    leader = kill_after(group, leader)
    assert leader.peer.administer("DescribeTopic", name="auto").topic == before


@pytest.mark.slow
def test_a_deletion_that_is_taken_back_with_its_leader_hides_nothing(group: ElectedGroup) -> None:
    """Q7: that member follows the next leader, in whose tables the topic is, and then leads itself."""

    def shows_all(member: Member) -> bool:
        return sorted(bodies_of(member.peer)) == [b"first", b"second"]

    old = group.await_leader()
    others = [member for member in group.members.values() if member is not old]
    for member in others:
        member.kill()
    with pytest.raises(grpc.RpcError) as caught:
        old.peer.administer("DeleteTopic", name="t")
    assert caught.value.code() is grpc.StatusCode.DEADLINE_EXCEEDED
    assert bodies_of(old.peer) == []
    old.kill()
    for member in others:
        member.start()
    successor = group.await_leader(old)
    until(lambda: successor.peer.send("t", b"second").status.code == v2.OK, timeout=10)
    old.start()
    until(lambda: shows_all(old), timeout=15, what="what was deleted there")
    for _ in range(SLOW_ROUNDS):
        if (leader := group.await_leader()) is old:
            break
        kill_after(group, leader)
    assert old.leads() and shows_all(old)
    until(lambda: all(map(shows_all, group.members.values())), timeout=15, what="the same on all members")


def test_without_a_majority_answers_say_so_in_time_and_the_repeated_call_succeeds_later(
    group: ElectedGroup, measured: Note
) -> None:
    leader = group.await_leader()
    peer = leader.peer
    got = peer.receive("t", "g", poll_s=3, invisible_s=60)
    assert got.bodies == [b"first"]
    others = [member for member in group.members.values() if member is not leader]
    for member in others:
        member.kill()
    began = time.monotonic()
    refused = peer.ack("t", "g", *got.handles)
    again = peer.ack("t", "g", *got.handles)  # done here already, which is not enough
    assert refused.status.code == again.status.code == v2.SLAVE_PERSISTENCE_TIMEOUT
    assert "may not know of this. Try again" in refused.status.message
    with pytest.raises(grpc.RpcError) as caught:
        peer.administer("CreateTopic", topic=admin.Topic(name="alone"))
    assert caught.value.code() is grpc.StatusCode.DEADLINE_EXCEEDED
    measured(f"three calls without a majority are answered in {time.monotonic() - began:.1f} s")
    for member in others:
        member.start()

    def acknowledged() -> bool:
        with contextlib.suppress(grpc.RpcError):
            served = group.await_leader().peer
            return bool(served.ack("t", "g", *got.handles).status.code == v2.OK)
        return False

    until(acknowledged, timeout=20, what="the acknowledgement that is repeated")
    assert group.await_leader().peer.receive("t", "g", poll_s=1).bodies == []
