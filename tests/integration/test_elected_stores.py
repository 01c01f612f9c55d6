"""Stores of members that are put back, moved, or exported, by the commands of docs/backup.md."""

import json
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from integration.test_election_commands import NAME, Replication, Result, other
from support.cluster.elections import ElectedGroup, Member, bodies_of
from support.cluster.processes import COMMAND, environment
from support.pages import Page
from support.waiting import until
from whimbrel.pb.apache.rocketmq.v2 import definition_pb2 as v2
from whimbrel.store.seat_file import SeatFile

pytestmark = pytest.mark.process

PAGE = Page("docs/backup.md")
BACKUP, STORE, NAMESERVER = "/backup/broker-a", "/data/a1", "127.0.0.1:8081"  # on the page


@pytest.fixture
def group(tmp_path: Path) -> Iterator[ElectedGroup]:
    with ElectedGroup(tmp_path) as running:
        running.await_sending()
        yield running


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str], group: ElectedGroup) -> Replication:
    return Replication(capsys, group)


def command(*words: object) -> Result:
    """Run a command line of whimbrel's."""
    done = subprocess.run(
        [sys.executable, "-c", COMMAND, *map(str, words)], env=environment(), capture_output=True, text=True,
        check=False, timeout=60,
    )  # fmt: skip
    return Result(done.returncode, done.stdout, " ".join(done.stderr.split()))


def restore(backup: Path, store: Path) -> Result:
    """Put a backup back, as the page says."""
    written = PAGE["whimbrel restore /backup/broker-a /data/a1"]
    return command(*written.words({BACKUP: backup, STORE: store})[1:])


def store_of(member: Member) -> Path:
    return Path(str(member.broker.store))


def stop(member: Member) -> None:
    """End both processes in order."""
    for process in member.processes:
        process.stop()


def send(member: Member, *bodies: bytes) -> None:
    for body in bodies:
        assert member.peer.send("t", body).status.code == v2.OK


def copy(source: Path, target: Path) -> None:
    """Copy a store as people do."""
    subprocess.run(["cp", "-a", "--sparse=always", source, target], check=True)


def set_aside(member: Member) -> Path:
    """Move a member's store away, as a disk that is lost; return where it is."""
    gone = store_of(member).with_suffix(".gone")
    store_of(member).rename(gone)
    return gone


def test_a_member_that_is_restored_votes_again_when_it_is_named(
    group: ElectedGroup, run: Replication
) -> None:
    """F1: the leader and the restored one had acknowledged what the third one and the backup lack."""
    leader = group.await_leader()
    restored = other(group, leader)
    away = other(group, leader, restored)
    stop(restored)
    backup = group.root / "backup"
    copy(store_of(restored), backup)
    restored.start()
    until(lambda: run("status").code == 0, timeout=15, what="a group in order")
    away.kill()
    later = [b"later-%d" % number for number in range(20)]
    send(leader, *later)
    restored.kill()
    set_aside(restored)
    done = restore(backup, store_of(restored))
    assert done.code == 0 and "it does not vote" in done.err, done.err
    leader.kill()
    restored.start()
    away.start()
    # Neither may lead: what only the leader and the lost disk had is not given up by anybody.
    until(lambda: "nobody leads" in run("status").err, timeout=10)
    assert not restored.view().election.may_lead
    leader.start()
    again = group.await_leader()
    assert sorted(bodies_of(again.peer)) == sorted([b"first", *later])
    until(
        lambda: restored.view().log_end == again.view().log_end, timeout=15, what="a log that has caught up"
    )
    assert not restored.view().election.may_lead, "a restored store is another seat"
    voters = PAGE["whimbrel replication voters broker-a --set 1,2,3"]
    until(lambda: run.page(voters).code == 0, timeout=15)
    until(lambda: restored.view().election.may_lead, timeout=10, what="its vote")
    until(lambda: run("status").code == 0, timeout=15, what="a group in order")
    away.kill()
    again.kill()
    away.start()
    now = group.await_leader(again)
    assert sorted(bodies_of(now.peer)) == sorted([b"first", *later])


def test_a_whole_group_is_restored_from_backups(group: ElectedGroup, run: Replication) -> None:
    until(lambda: run("status").code == 0, timeout=15, what="a group in order")
    for member in group.members.values():
        stop(member)
    backups = {number: group.root / f"backup-{number}" for number in group.members}
    for number, member in group.members.items():
        store_of(member).rename(backups[number])
        assert restore(backups[number], store_of(member)).code == 0
        member.start()
    until(lambda: "nobody leads" in run("status").err, timeout=10)
    until(lambda: all(member.view() is not None for member in group.members.values()), timeout=10)
    shown = PAGE["whimbrel replication failover broker-a --to 1"]
    refused = [number for number in "123" if "goes on further" in run.page(shown, {"1": number}).err]
    (best, *_) = set("123") - set(refused)
    accept = PAGE["whimbrel replication failover broker-a --to 1 --accept-loss --yes"]
    accepted = run.page(accept, {"1": best})
    assert accepted.code == 0, accepted.err
    leader = group.await_leader()
    assert bodies_of(leader.peer) == [b"first"]
    send(leader, b"second")
    until(lambda: run("status").code == 0, timeout=15, what="a group in order")
    leader.kill()
    now = group.await_leader(leader)
    assert sorted(bodies_of(now.peer)) == [b"first", b"second"]


@pytest.mark.parametrize("said", [True, False])
def test_a_store_that_was_moved_keeps_its_vote_when_that_is_said(
    group: ElectedGroup, run: Replication, *, said: bool
) -> None:
    until(lambda: run("status").code == 0, timeout=15, what="a group in order")
    leader = group.await_leader()
    moved = other(group, leader)
    stop(moved)
    gone = set_aside(moved)
    copy(gone, store_of(moved))  # as `mv` does to another file system
    seat = SeatFile(store_of(moved))
    assert seat.load() is not None
    if not seat.was_copied:
        pytest.skip("the file system here has nothing that tells a file from its copy")
    shutil.rmtree(gone)
    if said:
        written = PAGE["whimbrel store moved /data/a1 --endpoint 127.0.0.1:8081"]
        places = {STORE: store_of(moved), NAMESERVER: group.endpoint}
        done = command(*written.words(places)[1:], "--yes")
        assert done.code == 0 and "as it was" in done.err, done.err
    moved.start()
    until(lambda: moved.view().connected, timeout=10, what="a stream")
    if said:
        until(lambda: moved.view().election.may_lead, timeout=10, what="its vote")
    else:
        until(lambda: moved.view().log_end == leader.view().log_end, timeout=10)
        assert not moved.view().election.may_lead
        assert run("voters", NAME, "--set", "1,2,3").code == 0
        until(lambda: moved.view().election.may_lead, timeout=10, what="its vote")


def test_an_old_copy_is_not_taken_for_a_store_that_was_moved(group: ElectedGroup, run: Replication) -> None:
    until(lambda: run("status").code == 0, timeout=15, what="a group in order")
    follower = other(group, group.await_leader())
    stop(follower)
    old = group.root / "old"
    copy(store_of(follower), old)
    follower.start()
    until(lambda: run("status").code == 0, timeout=15, what="a group in order")
    until(lambda: run("switchover", NAME, "--to", str(follower.number)).code == 0, timeout=15)
    if not (seat := SeatFile(old)).load() or not seat.was_copied:
        pytest.skip("the file system here has nothing that tells a file from its copy")
    done = command("store", "moved", old, "--yes", "--endpoint", group.endpoint)
    assert done.code == 1 and "it is an older copy" in done.err, done.err


def test_a_members_store_is_exported_as_far_as_it_is_committed(group: ElectedGroup, run: Replication) -> None:
    leader = group.await_leader()
    send(leader, b"second")
    until(lambda: run("status").code == 0, timeout=15, what="a group in order")
    others = [member for member in group.members.values() if member is not leader]
    for member in others:
        member.kill()
    peer = leader.peer
    assert peer.send("t", b"never committed").status.code != v2.OK
    stop(leader)
    store, exported = store_of(leader), group.root / "exported"
    before = SeatFile(store).load()
    assert command("store", "export", store).code == 1
    done = command("store", "export", store, "--to", exported)
    assert done.code == 0, done.err
    assert SeatFile(store).load() == before and not SeatFile(exported).load()
    dumped = command("store", "dump", exported).out
    found = [json.loads(line) for line in dumped.splitlines()]
    assert [row["queueOffset"] for row in found if row["topic"] == "t"].count(0) in (1, 2)
    assert len([row for row in found if row["topic"] == "t"]) == 2
