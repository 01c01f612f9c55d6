"""Full disks and settings that differ: nobody's messages go without a word, and who can't follow is named.

The stores lie on small file systems (`test_full_disk.py`), where a test fills them.
"""

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from integration.test_broker_cluster import Peer
from integration.test_election_commands import other
from support.cluster.elections import ElectedGroup, Member, bodies_of
from support.cluster.processes import Process
from support.cluster.small_disk import SmallDisk
from support.waiting import until
from whimbrel.cli.main import main
from whimbrel.pb.apache.rocketmq.v2 import definition_pb2 as v2

pytestmark = pytest.mark.process

MIB = 1 << 20
BODY = bytes(100_000)


def health(capsys: pytest.CaptureFixture[str], endpoint: str) -> tuple[int, str]:
    """Run `whimbrel health`; return its exit code and all that it printed."""
    capsys.readouterr()
    code = main(("health", "--endpoint", endpoint))
    captured = capsys.readouterr()
    return code, " ".join((captured.out + captured.err).split())


class Unequal(ElectedGroup):
    """Member 2 keeps its log for a day, and member 3 has a replicator that keeps it longer."""

    def member(self, number: int, voters: list[int], flush: str, settings: dict[str, object]) -> Member:
        """Describe a member."""
        found = super().member(
            number, voters, flush, settings | ({"reserved_hours": 24} if number == 2 else {})
        )
        if number == 3:
            found.replicator.settings |= {"reserved_hours": 100}
        return found


def test_settings_that_differ_are_warned_of_and_health_repeats_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with Unequal(tmp_path) as group:
        leader = group.await_sending()
        beside = "this broker has reserved_hours 72, the replicator beside it 100: the greater holds"
        until(lambda: beside in group.members[3].broker.log_tail(200), timeout=15, what="its warning")
        differs = "reserved_hours is 24.0 there and 72.0 here"
        if leader.number == 2:
            differs = "reserved_hours is 72.0 there and 24.0 here"
        until(lambda: differs in leader.broker.log_tail(200), timeout=15, what="the leader's warning")
        if leader.number == 2:
            differs = "reserved_hours is 24.0 there and 72.0 here"
        follower = group.members[2] if leader.number != 2 else other(group, leader)
        swapped = "reserved_hours is 72.0 there and 24.0 here" if leader.number != 2 else differs
        until(lambda: swapped in follower.broker.log_tail(200), timeout=15, what="the follower's warning")
        code, said = health(capsys, group.endpoint)
        assert code == 0, "a difference may be meant"
        assert beside in said
        assert "has other settings: reserved_hours is" in said


def test_a_majority_without_room_has_sends_refused_with_its_members_names(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    disks = [SmallDisk(tmp_path / f"store-{number}", 48 * MIB) for number in (1, 2, 3)]
    with disks[0], disks[1], disks[2], ElectedGroup(tmp_path) as group:
        leader = group.await_sending()
        followers = [member for member in group.members.values() if member is not leader]
        end = leader.view().log_end
        until(lambda: all(member.view().log_end == end for member in followers), what="followers in step")
        for member in followers:
            disks[member.number - 1].fill()
        peer, epoch = leader.peer, leader.view().election.promised
        codes = [v2.OK]
        while codes[-1] == v2.OK and len(codes) < 100:
            refused = peer.send("t", BODY).status
            codes.append(refused.code)
        assert codes[-1] == v2.SLAVE_PERSISTENCE_TIMEOUT, "it waits for members that do not say yet"
        while codes[-1] == v2.SLAVE_PERSISTENCE_TIMEOUT and len(codes) < 110:
            refused = peer.send("t", BODY).status
            codes.append(refused.code)
        assert codes[-1] == v2.HA_NOT_AVAILABLE, refused
        assert any(
            f"member {member.number}: replication waits for disk space" in refused.message
            for member in followers
        ), refused.message
        begun = time.monotonic()
        assert peer.send("t", BODY).status.code == v2.HA_NOT_AVAILABLE
        assert time.monotonic() - begun < 1, "it is refused at once"
        code, said = health(capsys, group.endpoint)
        assert code == 1
        assert "sends are refused, since no majority would hold them: member" in said
        assert leader.view().election.promised == epoch, "who waits for room deposes nobody"
        line = "broker-a refuses sends: 1 of the 2 members"
        until(lambda: line in leader.broker.log_tail(100), what="a line of the leader's")
        for disk in disks:
            disk.empty()
        until(lambda: peer.send("t", b"after").status.code == v2.OK, timeout=30, what="a send that holds")
        until(lambda: "broker-a takes sends again" in leader.broker.log_tail(100), what="a line")
        assert b"after" in bodies_of(peer)
        until(lambda: health(capsys, group.endpoint)[0] == 0, timeout=30, what="a group in order")


def test_of_a_member_that_is_away_it_is_said_until_when_it_finds_what_it_lacks(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with ElectedGroup(tmp_path) as group:
        leader = group.await_sending()
        until(lambda: len(leader.view().slaves) == 2, timeout=10)
        until(lambda: health(capsys, group.endpoint)[0] == 0, timeout=15, what="a group in order")
        away = other(group, leader)
        away.kill()
        said = f"member {away.number} is away"
        until(lambda: said in health(capsys, group.endpoint)[1], timeout=15, what="a note")
        _, told = health(capsys, group.endpoint)
        assert "is kept for 72 h" in told
        assert (
            f"then it is to begin anew: `whimbrel replication reinit broker-a --member {away.number}`" in told
        )


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[SmallDisk]:
    with SmallDisk(tmp_path / "disk", 64 * MIB) as mounted:
        yield mounted


@pytest.mark.parametrize("full_disk", ["drop", "refuse"])
def test_a_full_disk_drops_the_oldest_with_a_word_or_refuses(
    disk: SmallDisk, tmp_path: Path, full_disk: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with (
        Process(tmp_path, "nameserver", "nameserver", renew_s=1, lease_s=8) as names,
        Process(
            tmp_path, "broker", "broker", store=disk.path / "store", nameservers=[names.grpc],
            auto_create_topics=True, auto_create_groups=True, commitlog_file_size=MIB,
            consumequeue_file_size=20_000, index_slots=500, index_entries=2000, full_disk=full_disk,
            disk_used_ratio_max=0.4, disk_clean_ratio=0.5, disk_full_ratio=0.58,
        ) as broker,
        Process(tmp_path, "replicator", "replicator", store=disk.path / "store", role="master"),
    ):  # fmt: skip
        api = Peer(broker)
        until(lambda: api.send("t", b"first").status.code == v2.OK, timeout=10)
        got = api.receive("t", "g", batch=1, poll_s=1)
        assert api.ack("t", "g", *got.handles).status.code == v2.OK
        status = api.send("t", BODY).status
        for _ in range(600):
            if status.code != v2.OK or disk.free < 0.45 * 64 * MIB:
                break
            status = api.send("t", BODY).status
        assert status.code == v2.OK
        if full_disk == "refuse":
            until(lambda: "sends are refused" in health(capsys, names.grpc)[1], timeout=25, what="a note")
            while (status := api.send("t", BODY).status).code == v2.OK:
                pass
            assert "the disk is" in status.message
            until(lambda: "refuses sends: the disk is" in broker.log_tail(100), what="a line of the broker's")
            assert api.administer("DescribeReplication").log_begin == 0, "nothing is dropped"
            return
        until(
            lambda: "drops what is not old enough, since its disk is full" in broker.log_tail(100),
            timeout=25,
            what="its warning",
        )
        assert api.administer("DescribeReplication").log_begin > 0
        code, said = health(capsys, names.grpc)
        assert code == 1
        assert "messages went that were not old enough" in said
        assert "of t by g" in said


class Larger(ElectedGroup):
    """Member 3's log has larger files."""

    def member(self, number: int, voters: list[int], flush: str, settings: dict[str, object]) -> Member:
        """Describe a member."""
        size: dict[str, object] = {"commitlog_file_size": 4 * MIB} if number == 3 else {}
        return super().member(number, voters, flush, settings | size)


def test_no_log_follows_one_with_files_of_another_size(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A leader's blanks would stand within the follower's files, and end its log there after a restart."""
    with Larger(tmp_path) as group:
        leader = group.await_sending()
        until(lambda: "bytes, ours of" in health(capsys, group.endpoint)[1], timeout=20, what="a refusal")
        code, said = health(capsys, group.endpoint)
        assert code == 1
        assert "begin with an empty one and --commitlog-file-size" in said
        peer = leader.peer
        if leader.number == 3:
            assert peer.send("t", b"x").status.code == v2.HA_NOT_AVAILABLE, "nobody follows it"
            return
        for _ in range(15):
            assert peer.send("t", BODY).status.code == v2.OK
        last = group.members[3]
        assert not last.view().connected
        assert last.view().log_end < MIB
