"""A group that elects its leader, as processes: whatever ends or hangs, sends go on, and none is lost.

Times are printed, and never asserted.
"""

import asyncio
import itertools
import shutil
import signal
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import pytest

from chaos.group import Group
from support.cluster.elections import ElectedGroup, Member, bodies_of, loaded
from support.cluster.processes import StartFailed
from support.waiting import until
from whimbrel.client import Consumer, Message, Producer, sync
from whimbrel.pb.apache.rocketmq.v2 import definition_pb2 as v2
from whimbrel.store.cut import list_cuts
from whimbrel.store.epoch_file import EpochFile
from whimbrel.store.seat_file import SeatFile
from whimbrel.store.shared_page import SharedPage

pytestmark = pytest.mark.process

Note = Callable[[str], None]


@pytest.fixture
def group(tmp_path: Path) -> Iterator[ElectedGroup]:
    with ElectedGroup(tmp_path) as running:
        running.await_sending()
        yield running


def await_equal(group: ElectedGroup, *bodies: bytes) -> None:
    """Wait until all members show the same messages, and these are among them, once each."""
    peers = [member.peer for member in group.members.values()]

    def equal() -> bool:
        first, *others = (bodies_of(peer) for peer in peers)
        return all(other == first for other in others) and set(bodies) <= set(first)

    until(equal, timeout=15, what="the same messages on all members")
    found = [body for body in bodies_of(peers[0]) if body != b"first"]
    assert len(found) == len(set(found))
    lists = [EpochFile(member.broker.store).load() for member in group.members.values()]
    assert lists[0] == lists[1] == lists[2]


HANG, WAKE = signal.SIGSTOP, signal.SIGCONT


def kill(member: Member) -> None:
    member.kill()


def kill_broker(member: Member) -> None:
    member.broker.kill()


def kill_replicator(member: Member) -> None:
    member.replicator.kill()


def hang(member: Member) -> None:
    member.signal(HANG)


def hang_broker(member: Member) -> None:
    member.broker.signal(HANG)


def hang_replicator(member: Member) -> None:
    member.replicator.signal(HANG)


def stop(member: Member) -> None:
    assert member.broker.stop() == 0
    assert member.replicator.stop() == 0


@pytest.mark.parametrize(
    "fault",
    [kill, kill_broker, kill_replicator, hang, hang_broker, hang_replicator, stop],
    ids=lambda f: f.__name__,
)
def test_sends_go_on_without_the_leader_and_none_is_lost(
    group: ElectedGroup, fault: Callable[[Member], None], measured: Note
) -> None:
    with loaded(group) as load:
        for _ in range(2):
            leader = group.await_leader()
            load.await_count(20)
            began = time.monotonic()
            fault(leader)
            successor = group.await_leader(leader)
            load.await_count(20)
            pause = load.longest_pause(began)
            measured(f"{fault.__name__} of the leader: no send is acknowledged for {pause:.2f} s")
            leader.signal(WAKE)
            for process in leader.processes:
                if not process.running:
                    process.start()
            await_follower(leader, successor)
    await_equal(group, *(body for _, body in load.acknowledged))


@pytest.mark.parametrize(
    "fault", [hang, pytest.param(kill, marks=pytest.mark.slow)], ids=lambda f: f.__name__
)
async def test_our_own_client_goes_on_at_other_members(
    group: ElectedGroup, fault: Callable[[Member], None], measured: Note
) -> None:
    sent: list[tuple[float, str]] = []
    got: dict[str, float] = {}
    over = asyncio.Event()

    def missing() -> set[str]:
        return {message_id for _, message_id in sent} - set(got)

    async def send(producer: Producer) -> None:
        while not over.is_set():
            receipt = await producer.send(Message(topic="t", body=b"x"))
            sent.append((time.monotonic(), receipt.message_id))
            await asyncio.sleep(0.01)

    async def receive(consumer: Consumer, sends: asyncio.Task[None]) -> None:
        while not sends.done() or missing():
            for message in await consumer.receive(wait_s=20):
                got[message.message_id] = time.monotonic()
                await consumer.ack(message)

    async def count(more: int) -> None:
        target = len(sent) + more
        await asyncio.to_thread(until, lambda: len(sent) >= target, timeout=30, what=f"{more} sends")

    def pause(times: Iterable[float]) -> float:
        after = [began, *(at for at in times if at > began)]
        return max(later - earlier for earlier, later in itertools.pairwise(after))

    async with Producer(group.endpoint) as producer, Consumer(group.endpoint, "g", ["t"]) as consumer:
        sending = asyncio.create_task(send(producer))
        receiving = asyncio.create_task(receive(consumer, sending))
        await count(30)
        leader = await asyncio.to_thread(group.await_leader)
        await asyncio.to_thread(fault, leader)
        began = time.monotonic()
        await count(30)
        over.set()
        async with asyncio.timeout(40):  # while the old leader is away
            await asyncio.gather(sending, receiving)
    sends, receives = pause(at for at, _ in sent), pause(got.values())
    told = f"our own client sends nothing for {sends:.2f} s, gets nothing for {receives:.2f}"
    measured(f"{fault.__name__} of the leader: {told}")
    assert not missing()
    assert len({message_id for _, message_id in sent}) == len(sent)


def test_a_leader_whose_broker_alone_is_cut_off_is_replaced(tmp_path: Path, measured: Note) -> None:
    with Group(tmp_path, behind=True) as group, sync.Producer(group.endpoint) as producer:
        leader = group.await_in_step()
        producer.send(Message(topic="t", body=b"before"))
        began = time.monotonic()
        group.cut_broker(leader)
        producer.send(Message(topic="t", body=b"meanwhile"))
        measured(f"its broker alone is cut off: no send is acknowledged for {time.monotonic() - began:.2f} s")
        group.mend()
        assert group.await_in_step() is not leader
        await_equal(group, b"before", b"meanwhile")


def await_follower(member: Member, leader: Member) -> None:
    """Wait until a former leader follows."""
    until(lambda: follows(member, leader), timeout=15, what="the former leader as a follower")


def await_epoch(stores: list[Path], epoch: int, leader: int) -> None:
    """Wait until all have promised an epoch to a leader, and have it in their lists."""
    until(lambda: promises(stores) == {(epoch, leader)}, what="all promises")
    # A member whose list is still empty has not adopted it.
    until(lambda: all(dict(EpochFile(store).load()[-1:]).keys() == {epoch} for store in stores), what="lists")


def promises(stores: list[Path]) -> set[tuple[int, int]]:
    """Return what the pages of these stores show as promised."""
    return {page.sealed for store in stores if (page := SharedPage.snapshot(store)) is not None}


def follows(member: Member, leader: Member) -> bool:
    """Whether a member follows that one."""
    view, led = member.view(), leader.view()
    return bool(
        view and led and view.role == "SLAVE" and view.connected and view.log_end >= led.confirmed_offset
    )


def test_what_no_majority_had_is_cut_and_kept_aside(group: ElectedGroup) -> None:
    leader = group.await_leader()
    others = [member for member in group.members.values() if member is not leader]
    for member in others:
        member.replicator.signal(HANG)
    late = leader.peer.send("t", b"nobody else has it")
    assert late.status.code == v2.SLAVE_PERSISTENCE_TIMEOUT
    leader.kill()
    for member in others:  # what came to their sockets is gone with them
        member.replicator.kill()
        member.replicator.start()
    successor = group.await_leader()
    until(lambda: successor.peer.send("t", b"after").status.code == v2.OK, timeout=10)
    leader.start()
    await_follower(leader, successor)
    await_equal(group, b"first", b"after")
    assert b"nobody else has it" not in bodies_of(leader.peer)
    (cut,) = list_cuts(leader.broker.store)
    assert cut.records == 1 and b"nobody else has it" in next(cut.path.glob("0*")).read_bytes()


def test_two_of_three_are_needed(group: ElectedGroup) -> None:
    first = group.await_leader()
    first.kill()
    second = group.await_leader()
    until(lambda: second.peer.send("t", b"with two").status.code == v2.OK, timeout=10)
    second.kill()
    (third,) = (member for member in group.members.values() if member not in (first, second))
    with pytest.raises(AssertionError, match="a leader"):
        group.await_leader(timeout=4)
    assert b"first" in bodies_of(third.peer)
    second.start()
    leader = group.await_sending()
    assert b"with two" in bodies_of(leader.peer)
    first.start()
    await_equal(group, b"with two")


def test_nothing_is_elected_without_the_coordinator_and_nothing_else_needs_it(group: ElectedGroup) -> None:
    leader = group.await_leader()
    group.nameserver.kill()
    peer = leader.peer
    for number in range(20):
        assert peer.send("t", b"alone %d" % number).status.code == v2.OK
    until(lambda: leader.view().election.coordinator_trouble, timeout=10, what="a sentence on it")
    leader.kill()
    others = [member for member in group.members.values() if member is not leader]
    with pytest.raises(AssertionError, match="a leader"):
        group.await_leader(timeout=4)
    group.nameserver.start()
    successor = group.await_leader()
    assert successor in others
    until(lambda: successor.peer.send("t", b"elected").status.code == v2.OK, timeout=10)
    leader.start()
    await_equal(group, b"alone 19", b"elected")


def test_all_of_them_may_end_at_once(group: ElectedGroup) -> None:
    leader = group.await_leader()
    for number in range(30):
        assert leader.peer.send("t", b"%d" % number).status.code == v2.OK
    for member in group.members.values():
        member.kill()
    group.nameserver.kill()
    group.nameserver.start()
    for member in group.members.values():
        for process in member.processes:
            process.launch()
    for member in group.members.values():
        for process in member.processes:
            process.wait_ready()
    group.await_sending()
    await_equal(group, *(b"%d" % number for number in range(30)))


def test_a_member_with_another_disk_follows_and_does_not_vote(group: ElectedGroup) -> None:
    leader = group.await_leader()
    other, third = (member for member in group.members.values() if member is not leader)
    other.kill()
    seat = SeatFile(other.broker.store).load()
    shutil.rmtree(other.broker.store)
    other.start()
    fresh = SeatFile(other.broker.store).load()
    assert seat and fresh and seat.uuid != fresh.uuid
    until(lambda: leader.peer.send("t", b"with two").status.code == v2.OK, timeout=10)
    until(lambda: b"with two" in bodies_of(other.peer), timeout=10, what="the messages on its new disk")
    third.kill()
    refused = leader.peer.send("t", b"with one")
    assert refused.status.code == v2.HA_NOT_AVAILABLE and not refused.entries
    leader.kill()
    third.start()
    with pytest.raises(AssertionError, match="a leader"):
        group.await_leader(timeout=4)
    leader.start()
    group.await_sending()


def test_a_store_keeps_its_member(group: ElectedGroup) -> None:
    member = group.members[3]
    member.kill()
    member.broker.settings |= {"id": 2}
    member.replicator.settings |= {"id": 2}
    with pytest.raises(StartFailed, match="that of member 3: start it with id 3"):
        member.replicator.start()
    member.broker.settings |= {
        "id": 0,
        "role": "master",
        "coordinator": "none",
        "replication": "async",
        "voters": "",
    }
    with pytest.raises(StartFailed, match="belongs to member 3"):
        member.broker.start()


def test_an_epoch_has_one_leader_and_the_page_shows_the_promise(group: ElectedGroup) -> None:
    for number in range(1, 4):
        leader = group.await_sending()
        stores = [member.broker.store for member in group.members.values()]
        await_epoch(stores, number, leader.number)
        leader.kill()
        group.await_leader()
        leader.start()
