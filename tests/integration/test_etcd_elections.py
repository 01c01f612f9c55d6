"""A group that elects its leader by an etcd, as processes: faults of etcd's, and of the group's meanwhile.

Times are printed, and never asserted.
"""

import json
import re
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from support.cluster.elections import ElectedGroup, Member, bodies_of, loaded
from support.cluster.processes import COMMAND, environment
from support.systems.etcd import Etcd
from support.waiting import until
from whimbrel.pb.apache.rocketmq.v2 import definition_pb2 as v2

pytestmark = pytest.mark.process

Note = Callable[[str], None]
KEY = "/whimbrel/DefaultCluster/broker-a/group"


@pytest.fixture
def etcd(tmp_path: Path) -> Iterator[Etcd]:
    with Etcd(tmp_path / "etcd", members=3) as running:
        yield running


@pytest.fixture
def group(tmp_path: Path, etcd: Etcd) -> Iterator[ElectedGroup]:
    with ElectedGroup(tmp_path / "group", coordinator=etcd.setting) as running:
        running.await_sending()
        yield running


def epoch_of(group: ElectedGroup) -> int:
    """Return the epoch that the leader's record has."""
    return known_epoch(group.await_leader())


def known_epoch(member: Member) -> int:
    """Return the epoch of the record that a member has read, 0 before it has read one."""
    view = member.view()
    return int(json.loads(view.election.record)["epoch"]) if view and view.election.record else 0


def trouble(member: Member) -> str:
    """Return what a member says of its coordinator."""
    view = member.view()
    return "" if view is None else str(view.election.coordinator_trouble)


def await_trouble(group: ElectedGroup, expected: str) -> None:
    """Wait until all members that answer say it; an empty text: until none says anything."""

    def found() -> bool:
        said = [trouble(member) for member in group.members.values() if member.broker.running]
        return all(re.search(expected, each) if expected else not each for each in said)

    until(found, timeout=15, what=lambda: str([trouble(member) for member in group.members.values()]))


def status(group: ElectedGroup) -> "subprocess.CompletedProcess[str]":
    """Run `whimbrel replication status`."""
    words = ["replication", "status", "--endpoint", group.endpoint]
    return subprocess.run(
        [sys.executable, "-c", COMMAND, *words],
        env=environment(), check=False, capture_output=True, text=True, timeout=30,
    )  # fmt: skip


def await_bodies(group: ElectedGroup, *bodies: bytes) -> None:
    """Wait until all members show the same messages, and these are among them."""
    peers = [member.peer for member in group.members.values()]

    def equal() -> bool:
        first, *others = (bodies_of(peer) for peer in peers)
        return all(other == first for other in others) and set(bodies) <= set(first)

    until(equal, timeout=15, what="the same messages on all members")


@pytest.mark.slow
def test_leaders_of_both_are_lost_and_none_of_the_messages(
    group: ElectedGroup, etcd: Etcd, measured: Note
) -> None:
    with loaded(group) as load:
        before = epoch_of(group)
        lost = etcd.leader()
        began = time.monotonic()
        lost.kill()
        load.await_count(100)
        measured(f"etcd's leader killed: no send is acknowledged for {load.longest_pause(began):.2f} s")
        assert epoch_of(group) == before
        leader = group.await_leader()
        began = time.monotonic()
        leader.kill()  # with two of three members of etcd
        group.await_leader(leader)
        load.await_count(20)
        measured(f"then the group's: for {load.longest_pause(began):.2f} s")
        leader.start()
    await_bodies(group, *(body for _, body in load.acknowledged))
    record = json.loads(etcd.value(KEY))
    assert record["epoch"] == before + 1 and record["leader"] == group.await_leader().number


@pytest.mark.parametrize("fault", [signal.SIGSTOP, pytest.param(signal.SIGKILL, marks=pytest.mark.slow)])
def test_without_etcd_sends_go_on_and_nobody_is_elected(
    group: ElectedGroup, etcd: Etcd, fault: signal.Signals, measured: Note
) -> None:
    leader, before = group.await_leader(), epoch_of(group)
    with loaded(group) as load:
        began = time.monotonic()
        etcd.signal(fault)
        await_trouble(group, "the coordinator does not answer: no member of etcd can be asked")
        load.await_count(100)
        measured(
            f"{fault.name} of all of etcd: no send is acknowledged for {load.longest_pause(began):.2f} s"
        )
        assert (group.await_leader(), epoch_of(group)) == (leader, before)
        shown = status(group)
        assert shown.returncode == 1 and "until then nobody is elected" in shown.stdout + shown.stderr
    leader.kill()
    with pytest.raises(AssertionError, match="a leader"):
        group.await_leader(timeout=5)
    if fault is signal.SIGKILL:
        for member in etcd.members:
            member.kill()
            member.start()
    etcd.signal(signal.SIGCONT)
    began = time.monotonic()
    group.await_sending()
    measured(f"etcd goes on after {fault.name}: the group sends again {time.monotonic() - began:.2f} s later")
    leader.start()
    await_trouble(group, "")
    await_bodies(group, *(body for _, body in load.acknowledged))


@pytest.mark.slow
def test_a_member_of_etcd_hangs_while_the_groups_leader_is_lost(
    group: ElectedGroup, etcd: Etcd, measured: Note
) -> None:
    with loaded(group) as load:
        for hangs in (etcd.members[0], etcd.leader()):
            hangs.signal(signal.SIGSTOP)
            leader = group.await_leader()
            load.await_count(20)
            began = time.monotonic()
            leader.kill()
            group.await_leader(leader)
            load.await_count(20)
            measured(f"one of etcd hangs, leader killed: no send for {load.longest_pause(began):.2f} s")
            hangs.signal(signal.SIGCONT)
            leader.start()
            etcd.wait_serving()
    await_bodies(group, *(body for _, body in load.acknowledged))


@pytest.mark.slow
def test_what_strangers_do_to_the_key_is_told_and_can_be_put_right(group: ElectedGroup, etcd: Etcd) -> None:
    newest = etcd.value(KEY)
    for value in (
        "hello",
        "x" * 20_000,
        newest.replace('"epoch":1', '"epoch":9', 1).replace('"group":"', '"group":"0'),
    ):
        etcd.ctl("put", KEY, value)
        await_trouble(group, "can't be the group's record")
        assert status(group).returncode == 1
        etcd.ctl("put", KEY, newest)
        await_trouble(group, "")
    etcd.ctl("del", KEY)
    await_trouble(group, f"there is no key {KEY} of etcd any more")
    etcd.ctl("put", KEY, logged_record(group))
    await_trouble(group, "")
    leader = group.await_leader()
    leader.kill()
    group.await_leader(leader)


def logged_record(group: ElectedGroup) -> str:
    """Return the newest record that a member has logged, as an operator would find it."""
    return str(re.findall(r"group record: (\{.*\})", group.members[1].broker.log.read_text())[-1])


@pytest.mark.slow
def test_a_full_database_is_told_and_all_goes_on(tmp_path: Path) -> None:
    with (
        Etcd(tmp_path / "etcd", words=["--quota-backend-bytes", "400000"]) as etcd,
        ElectedGroup(tmp_path / "group", coordinator=etcd.setting) as group,
    ):
        leader = group.await_sending()
        while etcd.run("put", "/big", "x" * 100_000).returncode == 0:
            pass
        await_trouble(group, "the coordinator can't be used: etcd takes no writes, .*alarm NOSPACE")
        assert status(group).returncode == 1
        assert leader.peer.send("t", b"full").status.code == v2.OK
        leader.kill()
        with pytest.raises(AssertionError, match="a leader"):
            group.await_leader(timeout=4)
        newest = json.loads(etcd.ctl("get", "/big", "-w", "json"))["header"]["revision"]
        etcd.ctl("compaction", "--physical", str(newest))
        etcd.ctl("defrag")
        etcd.ctl("alarm", "disarm")
        group.await_leader(leader)
        leader.start()
        await_trouble(group, "")
        await_bodies(group, b"full")


@pytest.mark.slow
def test_an_empty_etcd_elects_nobody_before_the_record_is_put_there(tmp_path: Path) -> None:
    first = Etcd(tmp_path / "first")
    with first as etcd, ElectedGroup(tmp_path / "group", coordinator=etcd.setting) as group:
        group.await_sending()
        etcd.kill()
        with Etcd(tmp_path / "second", cluster="another", ports=first.ports) as empty:
            for member in group.members.values():
                assert member.broker.stop() == 0
                member.broker.start()
            with pytest.raises(AssertionError, match="a leader"):
                group.await_leader(timeout=4)
            empty.ctl("put", KEY, logged_record(group))
            group.await_sending()
            await_trouble(group, "")


@pytest.mark.slow
def test_a_backup_is_refused_and_taken_by_brokers_that_are_restarted(tmp_path: Path) -> None:
    """The record in it is older than the last elections; members have promised more, and go on above that."""
    first, snapshot = Etcd(tmp_path / "first"), tmp_path / "snapshot"
    with first as etcd:
        with ElectedGroup(tmp_path / "group", coordinator=etcd.setting) as group:
            group.await_sending()
            etcd.ctl("snapshot", "save", str(snapshot))
            leader = group.await_leader()
            leader.kill()
            group.await_leader(leader)
            leader.start()
            before = epoch_of(group)
            # One that has met no etcd since its start takes the first that answers.
            until(lambda: known_epoch(leader) == before, what="the record at the one that was away")
            second = etcd.restored(snapshot, tmp_path / "second", cluster="another")
            etcd.kill()
            with second as restored:
                await_trouble(group, "it is of cluster .* restart the brokers one after the other")
                peer = group.await_leader().peer
                assert peer.send("t", b"meanwhile").status.code == v2.OK
                assert status(group).returncode == 1
                for member in group.members.values():
                    assert member.broker.stop() == 0
                    member.broker.start()
                group.await_sending()
                await_trouble(group, "")
                assert epoch_of(group) > before
                assert json.loads(restored.value(KEY))["epoch"] > before
                await_bodies(group, b"first", b"meanwhile")


@pytest.mark.slow
def test_twenty_leaders_are_killed(group: ElectedGroup, measured: Note) -> None:
    pauses = []
    with loaded(group) as load:
        for _ in range(20):
            leader = group.await_leader()
            load.await_count(20)
            began = time.monotonic()
            leader.kill()
            group.await_leader(leader)
            load.await_count(20)
            pauses.append(load.longest_pause(began))
            leader.start()
    measured(f"20 leaders killed: median {statistics.median(pauses):.2f} s, worst {max(pauses):.2f} s")
    await_bodies(group, *(body for _, body in load.acknowledged))
