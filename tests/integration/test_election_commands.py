"""`whimbrel replication` on a group that elects its leader: who leads, and who is to."""

import json
import shutil
import signal
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from support.cluster.broker_api import message
from support.cluster.elections import ElectedGroup, Member, bodies_of
from support.pages import Page, Places, Written
from support.waiting import until
from whimbrel.cli.main import main
from whimbrel.pb.apache.rocketmq.v2 import definition_pb2 as v2
from whimbrel.store.seat_file import SeatFile

pytestmark = pytest.mark.process

COMMANDS = Page("docs/commands.md")
FAILOVER = Page("docs/failover.md")
NAME = "broker-a"
A_CUT = "3-00000000000000001200-00000000000000004800"  # on the pages
A_STORE = "/var/lib/whimbrel/broker-a"  # there, too


@pytest.fixture
def group(tmp_path: Path) -> Iterator[ElectedGroup]:
    with ElectedGroup(tmp_path) as running:
        leader = running.await_leader()
        until(lambda: leader.peer.send("t", b"first").status.code == v2.OK, timeout=10)
        yield running


@dataclass
class Result:
    """What a command printed, and its exit code."""

    code: int
    out: str
    err: str


class Replication:
    """Runs `whimbrel replication` against a group."""

    def __init__(self, capsys: pytest.CaptureFixture[str], group: ElectedGroup) -> None:
        self.capsys, self.group = capsys, group

    def __call__(self, *arguments: str) -> Result:
        self.capsys.readouterr()
        code = main(("replication", *arguments, "--endpoint", self.group.endpoint))
        captured = self.capsys.readouterr()
        assert "Traceback" not in captured.err
        return Result(code, captured.out, " ".join(captured.err.split()))

    def page(self, written: Written, places: Places | None = None, *more: str) -> Result:
        """Run a command of a page, with our places for those of the page."""
        program, name, *words = written.words(places)
        assert (program, name) == ("whimbrel", "replication")
        return self(*words, *more)


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str], group: ElectedGroup) -> Replication:
    return Replication(capsys, group)


def turns(run: Replication) -> list[tuple[int, int, str]]:
    result = run.page(COMMANDS["whimbrel replication history broker-a"], None, "-o", "json")
    assert result.code == 0, result.err
    return [(turn["epoch"], turn["leader"], turn["why"]) for turn in json.loads(result.out)]


def other(group: ElectedGroup, *leaders: Member) -> Member:
    return next(member for member in group.members.values() if member not in leaders)


def test_status_says_who_leads_and_why_and_history_who_did(group: ElectedGroup, run: Replication) -> None:
    group.await_leader()
    until(lambda: run("status").code == 0, timeout=10, what="a group in order")
    result = run("status")
    # 1, since the group was made, unless the machine was so busy that a leader seemed to hang.
    epoch, number, why = turns(run)[0]
    leader = group.members[number]
    assert f"member {number} leads epoch {epoch} since" in result.err
    assert f"({why}); members 1, 2, 3 vote, 2 of them commit" in result.err
    assert f"master {number}" in result.out
    assert "in a failover nothing that was answered;" in result.err
    leader.kill()
    successor = group.await_leader()
    status = run("status")
    (last, *earlier) = turns(run)
    assert status.code == 1 and f"member {successor.number} leads epoch {last[0]}" in status.err
    assert last[0] > epoch and last[1] == successor.number
    assert earlier[-1][0] == 1 and earlier[-1][2] == "the group was made"
    assert run("history", "nobody").code == 1
    successor.kill()
    third = other(group, leader, successor)
    until(lambda: "nobody leads" in run("status").err, timeout=10)
    status = run("status")
    assert status.code == 1 and f"of its members {third.number} is there" in status.err


def test_another_member_takes_over_on_request(group: ElectedGroup, run: Replication) -> None:
    leader = group.await_leader()
    chosen = other(group, leader)
    epoch = turns(run)[0][0]
    result = run.page(COMMANDS["whimbrel replication switchover broker-a --to 2"], {"2": chosen.number})
    assert result.code == 0, result.err
    assert f"member {chosen.number} leads" in result.err
    assert chosen.peer.send("t", b"second").status.code == v2.OK
    assert set(bodies_of(chosen.peer)) == {b"first", b"second"}
    found, number, why = turns(run)[0]
    assert found > epoch and (number, why) == (chosen.number, "the leader has resigned")
    assert run("switchover", NAME).code == 0
    assert group.await_leader() is not chosen
    refused = run("switchover", NAME, "--to", "9")
    assert refused.code == 1 and "member 9 can't take over" in refused.err
    unknown = run("switchover", "broker-x")
    assert unknown.code == 1 and "broker-x" in unknown.err


def test_nobody_stands_while_elections_are_paused(group: ElectedGroup, run: Replication) -> None:
    leader = group.await_leader()
    assert run("pause", NAME).code == 0
    status = run("status")
    assert status.code == 1 and "elections are paused" in status.err
    assert leader.peer.send("t", b"goes on").status.code == v2.OK
    leader.kill()
    with pytest.raises(AssertionError, match="a leader"):
        group.await_leader(timeout=4)
    assert run("resume", NAME).code == 0
    group.await_leader()


def test_a_replaced_disk_votes_once_it_is_made_a_voter_again(group: ElectedGroup, run: Replication) -> None:
    leader = group.await_leader()
    replaced = other(group, leader)
    last = other(group, leader, replaced)
    replaced.kill()
    shutil.rmtree(replaced.broker.store)
    replaced.start()
    until(lambda: "does not vote" in run("status").err, timeout=10, what="a sentence on it")
    assert run("status").code == 1
    epoch = turns(run)[0][0]  # 1, unless the machine was so busy that a leader seemed to hang
    result = run.page(COMMANDS["whimbrel replication voters broker-a --set 1,2,3"])
    assert result.code == 0, result.err
    assert f"vote from epoch {epoch + 1} on" in result.err, turns(run)
    until(lambda: run("status").code == 0, timeout=15, what="a group in order")
    assert "these members vote already" in run("voters", NAME, "--set", "1,2,3").err
    last.kill()  # now the replaced one's copies count
    now = group.await_leader()
    until(lambda: now.peer.send("t", b"with the new disk").status.code == v2.OK, timeout=10)
    wrong = run("voters", NAME, "--set", "1,x")
    assert wrong.code == 2 and "ids from 1 to 63" in wrong.err


def test_a_group_shrinks_and_grows(group: ElectedGroup, run: Replication) -> None:
    leader = group.await_leader()
    gone = other(group, leader)
    stay = sorted(member.number for member in group.members.values() if member is not gone)
    result = run("voters", NAME, "--set", ",".join(map(str, stay)))
    assert result.code == 0, result.err
    until(lambda: "vote, 2 of them commit" in run("status").err, timeout=10)
    until(lambda: "until now" not in run("status").err, timeout=10, what="the end of the change")
    gone.kill()
    until(lambda: group.await_leader().peer.send("t", b"with two").status.code == v2.OK, timeout=10)
    absent = run("voters", NAME, "--set", "1,2,3")
    assert absent.code == 1 and f"member {gone.number}" in absent.err
    gone.start()
    until(lambda: run("voters", NAME, "--set", "1,2,3").code == 0, timeout=10)
    until(lambda: run("status").code == 0, timeout=15, what="a group in order")


def send(member: Member, topic: str, body: bytes, message_id: str, **properties: object) -> int:
    """Send a message with an id of our choice; return the answer's code."""
    one = message(topic, body, message_id=message_id, **properties)
    return int(member.peer("SendMessage", messages=[one]).status.code)


def test_what_was_cut_is_listed_shown_and_put_back_once(group: ElectedGroup, run: Replication) -> None:
    leader = group.await_leader()
    others = [member for member in group.members.values() if member is not leader]
    assert "nothing was cut" in run("cut", "list").err
    assert main(("topic", "create", "late", "--type", "delay", "--endpoint", group.endpoint)) == 0
    epoch = turns(run)[0][0]
    for member in others:
        member.replicator.signal(signal.SIGSTOP)
    due = datetime.now(UTC) + timedelta(seconds=10)
    with ThreadPoolExecutor() as pool:  # each waits until it is told that it is not committed
        codes = [
            pool.submit(send, leader, "t", b"lost", "id-lost"),
            pool.submit(send, leader, "t", b"sent again", "id-again"),
            pool.submit(
                send, leader, "late", b"later", "id-late", message_type=v2.DELAY, delivery_timestamp=due
            ),
        ]
    assert {code.result() for code in codes} == {v2.SLAVE_PERSISTENCE_TIMEOUT}
    leader.kill()
    for member in others:  # what came to their sockets is gone with them
        member.replicator.kill()
        member.replicator.start()
    successor = group.await_leader()
    until(lambda: send(successor, "t", b"sent again", "id-again") == v2.OK, timeout=10)
    leader.start()
    until(lambda: run("status").code == 0, timeout=15, what="a group in order")
    (cut,) = json.loads(run.page(FAILOVER["whimbrel replication cut list"], None, "-o", "json").out)
    place = {A_CUT: cut["cut"]}
    assert cut["member"] == leader.number and cut["records"] == 3 and cut["replayed"] == "no"
    assert cut["epoch"] == epoch and cut["to"] - cut["from"] == cut["bytes"]
    show = COMMANDS[
        "whimbrel replication cut show 3-00000000000000001200-00000000000000004800 -n 100 -o json"
    ]
    shown = json.loads(run.page(show, {**place, "100": 1}).out)
    rest = json.loads(run("cut", "show", cut["cut"], "--from", str(shown["next"]), "-o", "json").out)
    ids = [each["message_id"] for each in (*shown["records"], *rest["records"])]
    assert sorted(ids) == ["id-again", "id-late", "id-lost"] and rest["next"] == -1
    assert (
        "id-lost"
        in run.page(
            FAILOVER["whimbrel replication cut show 3-00000000000000001200-00000000000000004800"], place
        ).out
    )
    for written in (
        COMMANDS["whimbrel replication cut replay 3-00000000000000001200-00000000000000004800 --dry-run"],
        FAILOVER["whimbrel replication cut replay 3-00000000000000001200-00000000000000004800 --dry-run"],
    ):
        dry = run.page(written, place)
        assert dry.code == 0 and "2 would be put back, 1 are in their topics already" in dry.err
    assert b"lost" not in bodies_of(successor.peer)
    done = run.page(
        FAILOVER["whimbrel replication cut replay 3-00000000000000001200-00000000000000004800 --yes"], place
    )
    assert done.code == 0 and "2 put back, 1 are in their topics already, 0 refused" in done.err
    again = run("cut", "replay", cut["cut"], "--yes")
    assert again.code == 0 and "2 put back, 1 were there, 0 refused; --again goes" in again.err
    repeated = run("cut", "replay", cut["cut"], "--again", "--yes", "-o", "json")
    assert json.loads(repeated.out)["present"] == 3
    of_member = COMMANDS["whimbrel replication cut list --broker broker-a --member 1"]
    (cut,) = json.loads(run.page(of_member, {"1": leader.number}, "-o", "json").out)
    assert cut["replayed"] == "yes"
    assert sorted(bodies_of(successor.peer)) == [b"first", b"lost", b"sent again"]
    until(lambda: bodies_of(successor.peer, "late") == [b"later"], timeout=30, what="the delayed one")
    store = str(leader.broker.store)
    at_rest = COMMANDS["whimbrel replication cut list --store /var/lib/whimbrel/broker-a"]
    (offline,) = json.loads(run.page(at_rest, {A_STORE: store}, "-o", "json").out)
    assert offline["cut"] == cut["cut"] and offline["replayed"] == "yes"
    assert "id-lost" in run("cut", "show", cut["cut"], "--store", store).out
    refused = run("cut", "replay", cut["cut"], "--store", store, "--again", "--yes")
    assert refused.code == 1 and "start it with --accept-replays true" in refused.err
    unknown = run("cut", "show", "1-2-3")
    assert unknown.code == 1 and "cut list" in unknown.err
    nobody = run("cut", "list", "--member", "9")
    assert nobody.code == 1 and "there is no member 9 now; there are broker-a" in nobody.err


def test_two_of_three_are_lost_for_good(group: ElectedGroup, run: Replication) -> None:
    leader = group.await_leader()
    survivor = other(group, leader)
    last = other(group, leader, survivor)
    needless = run("failover", NAME, "--to", str(survivor.number))
    assert needless.code == 1 and "hears a leader" in needless.err
    last.kill()
    until(lambda: survivor.peer.send("t", b"of two").status.code == v2.OK, timeout=10)
    survivor.replicator.signal(signal.SIGSTOP)  # it takes nothing more
    assert send(leader, "t", b"only the leader has it", "id-lost") == v2.SLAVE_PERSISTENCE_TIMEOUT
    leader.kill()
    survivor.replicator.kill()
    survivor.replicator.start()
    with pytest.raises(AssertionError, match="a leader"):
        group.await_leader(timeout=4)
    assert "`whimbrel replication failover` shows what would be lost" in run("status").err
    number = str(survivor.number)
    plan = run.page(COMMANDS["whimbrel replication failover broker-a --to 3"], {"3": number})
    assert plan.code == 0 and "nothing was done" in plan.err and "does not answer" in plan.out
    absent = run("failover", NAME, "--to", str(last.number))
    assert absent.code == 1 and f"member {last.number} of {NAME} is not there" in absent.err
    epoch = turns(run)[0][0]
    accept = COMMANDS["whimbrel replication failover broker-a --to 3 --accept-loss"]
    done = run.page(accept, {"3": number}, "--yes")
    assert done.code == 0, done.err
    assert f"member {number} leads epoch {epoch + 1}; members {number} vote" in done.err
    assert turns(run)[0][2].startswith("an operator accepted")
    assert survivor.peer.send("t", b"goes on").status.code == v2.OK
    for lost in (leader, last):  # they are back after all, and vote no more
        lost.start()
    until(lambda: len(survivor.view().slaves) == 2, timeout=20, what="followers")
    until(lambda: run("voters", NAME, "--set", "1,2,3").code == 0, timeout=10)
    until(lambda: run("status").code == 0, timeout=15, what="a group in order")
    (cut,) = json.loads(run("cut", "list", "-o", "json").out)
    assert cut["member"] == leader.number and cut["records"] == 1
    # On a busy machine the leader may just have changed: who repeats it puts back each message once.
    until(
        lambda: run("cut", "replay", cut["cut"], "--yes").code == 0,
        timeout=10,
        what="a leader that takes it back",
    )
    now = group.await_leader()
    assert sorted(bodies_of(now.peer)) == [b"first", b"goes on", b"of two", b"only the leader has it"]


def test_a_member_whose_store_is_emptied_follows_anew(group: ElectedGroup, run: Replication) -> None:
    leader = group.await_leader()
    emptied = other(group, leader)
    last = other(group, leader, emptied)
    number = str(emptied.number)
    until(lambda: run("status").code == 0, timeout=10, what="a group in order")
    last.replicator.kill()
    until(lambda: len(leader.view().slaves) == 1, timeout=10)
    refused = run("reinit", NAME, "--member", number, "--yes")
    assert refused.code == 1 and "and 2 have to" in refused.err
    last.replicator.start()
    own = run("reinit", NAME, "--member", str(leader.number), "--yes")
    assert own.code == 1 and "have another one lead first" in own.err
    assert "member 9 is not there" in run("reinit", NAME, "--member", "9", "--yes").err
    until(lambda: len(leader.view().slaves) == 2, timeout=10)
    assert leader.peer.send("t", b"second").status.code == v2.OK
    empty = COMMANDS["whimbrel replication reinit broker-a --member 2 --yes"]
    until(lambda: run.page(empty, {"2": number}).code == 0, timeout=10)
    assert "is emptied" in emptied.replicator.log_tail(20)
    until(lambda: run("status").code == 0, timeout=15, what="a group in order")
    assert emptied.view().election.may_lead and sorted(bodies_of(emptied.peer)) == [b"first", b"second"]
    last.kill()  # now its copies count
    until(lambda: leader.peer.send("t", b"after").status.code == v2.OK, timeout=10)


@pytest.mark.slow
def test_a_member_that_lacks_what_its_leader_no_longer_has_is_told_what_to_do(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with ElectedGroup(tmp_path, full_disk="drop", disk_used_ratio_max=0.0, disk_clean_ratio=0.0) as group:
        run = Replication(capsys, group)
        leader = group.await_leader()
        until(lambda: leader.peer.send("t", b"first").status.code == v2.OK, timeout=10)
        behind = other(group, leader)
        last = other(group, leader, behind)
        number = str(behind.number)
        behind.kill()
        until(lambda: leader.peer.send("t", b"x").status.code == v2.OK, timeout=10)
        peer = leader.peer
        for _ in range(30):
            assert peer.send("t", bytes(100_000)).status.code == v2.OK
        until(lambda: leader.view().log_begin > 0, timeout=30, what="a shorter log")
        behind.start()
        until(lambda: f"reinit {NAME} --member {number}` does that" in run("status").err, timeout=30)
        done = run("reinit", NAME, "--member", number, "--yes")
        assert done.code == 0, done.err
        until(lambda: behind.view().log_end == leader.view().log_end, timeout=20)
        assert behind.view().log_begin == leader.view().log_begin
        until(lambda: behind.view().election.may_lead, timeout=10, what="its vote")
        last.kill()  # now its copies and its seal count
        leader.kill()
        last.start()
        now = group.await_leader()
        until(lambda: now.peer.send("u", b"after").status.code == v2.OK, timeout=10)
        assert b"after" in bodies_of(now.peer, "u")


@pytest.mark.slow
def test_the_survivor_of_two_goes_on_alone_where_one_copy_is_enough(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with ElectedGroup(tmp_path, members=2, copies_min=1) as group:
        run = Replication(capsys, group)
        leader = group.await_leader()
        until(lambda: leader.peer.send("t", b"first").status.code == v2.OK, timeout=10)
        leader.kill()
        survivor = other(group, leader)
        until(lambda: survivor.peer.send("t", b"alone").status.code == v2.OK, timeout=40)
        status = run("status")
        assert status.code == 1 and f"member {leader.number} was away, and votes no longer" in status.err
        leader.start()
        until(lambda: len(survivor.view().slaves) == 1, timeout=15, what="a follower")
        # It may be back before the change that took it out is done: a second later.
        until(lambda: run("voters", NAME, "--set", "1,2").code == 0, timeout=10, what="the change before")
        until(lambda: run("status").code == 0, timeout=15, what="a group in order")
        survivor.kill()
        until(lambda: leader.peer.send("t", b"the other one").status.code == v2.OK, timeout=40)
        assert sorted(bodies_of(leader.peer)) == [b"alone", b"first", b"the other one"]


@pytest.mark.slow
def test_members_that_may_all_have_lost_something_go_on_when_an_operator_accepts_it(
    group: ElectedGroup, run: Replication
) -> None:
    leader = group.await_leader()
    for member in group.members.values():
        member.kill()
    for member in group.members.values():  # as after a power cut without synchronous flush
        file = SeatFile(member.broker.store)
        seat = file.load()
        assert seat is not None
        file.save(replace(seat, votes=False))
    for member in group.members.values():
        member.start()
    until(lambda: "may have lost what it acknowledged" in run("status").err, timeout=15)
    with pytest.raises(AssertionError, match="a leader"):
        group.await_leader(timeout=4)
    done = run("failover", NAME, "--to", str(leader.number), "--accept-loss", "--yes", "-o", "json")
    assert done.code == 0, done.err
    assert json.loads(done.out)["voters"] == [1, 2, 3] and json.loads(done.out)["leads"]
    until(lambda: leader.peer.send("t", b"goes on").status.code == v2.OK, timeout=10)
    until(lambda: run("status").code == 0, timeout=15, what="a group in order")
    record = json.loads(leader.view().election.record)
    assert record["loss"] == 0 and record["leader"] == leader.number
    leader.kill()  # the others vote again
    now = group.await_leader()
    assert sorted(bodies_of(now.peer)) == [b"first", b"goes on"]


@pytest.mark.slow
def test_a_member_at_rest_is_emptied(group: ElectedGroup, run: Replication) -> None:
    leader = group.await_leader()
    member = other(group, leader)
    store = str(member.broker.store)
    command = COMMANDS["whimbrel store reinit /var/lib/whimbrel/broker-a --yes"].words({A_STORE: store})[1:]
    assert main(command) == 1, "it runs"
    member.kill()
    assert main(command) == 0
    assert leader.peer.send("t", b"second").status.code == v2.OK
    member.start()
    until(lambda: run("status").code == 0, timeout=15, what="a group in order")
    assert member.view().election.may_lead
    until(lambda: sorted(bodies_of(member.peer)) == [b"first", b"second"], timeout=10)
