"""What a member makes of what its coordinator says, and how often it asks."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from support.waiting import eventually
from whimbrel.broker.elections.actions import ReadRecord, StartStream, State, StopStream
from whimbrel.broker.elections.elector import Elector
from whimbrel.broker.elections.peers import AGAIN_S
from whimbrel.broker.elections.pre_vote import LEAST_SILENT_S
from whimbrel.broker.elections.self_view import REPLICA_BEAT_S
from whimbrel.broker.elections.service import later
from whimbrel.broker.elections.tasks import OPERATIONS_MAX
from whimbrel.broker.options import BrokerOptions
from whimbrel.errors import NotReady, RemoteProtocolError, Throttled, Unavailable, WhimbrelError
from whimbrel.ha.switching import BEAT_S
from whimbrel.machine import MACHINE
from whimbrel.model.group_record import NOBODY, GroupRecord
from whimbrel.model.registration import BrokerRole, Member
from whimbrel.wakeup import Doorbell

VOTERS = tuple((member, f"{member:032x}") for member in (1, 2, 3))
RECORD = GroupRecord(group="ab" * 16, epoch=3, leader=1, voters=VOTERS, acks=2)

Answer = tuple[GroupRecord | None, int] | WhimbrelError


class FakeCoordinator:
    """Answers what it is given, the last of it again and again."""

    def __init__(self, *answers: Answer) -> None:
        self.answers, self.asked = list(answers), 0
        self.trouble = ""
        self.quiet = asyncio.Event()  # watches that have nothing new wait for it

    async def read(self) -> tuple[GroupRecord | None, int]:
        self.asked += 1
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        if isinstance(answer, WhimbrelError):
            raise answer
        return answer

    async def watch(self, revision: int) -> tuple[GroupRecord | None, int]:
        found, number = await self.read()
        if number == revision:
            await self.quiet.wait()
        return found, number

    async def swap(self, record: GroupRecord, revision: int) -> tuple[bool, GroupRecord | None, int]:
        raise Unavailable("nobody swaps here")

    async def close(self) -> None:
        pass


@pytest.fixture
def bell(tmp_path: Path) -> Iterator[Doorbell]:
    (tmp_path / "whimbrel").mkdir()
    made = Doorbell(tmp_path, "broker")
    yield made
    made.close()


def member(tmp_path: Path, bell: Doorbell, coordinator: FakeCoordinator) -> Elector:
    options = BrokerOptions(
        store=str(tmp_path), role="elected", id=1, coordinator="nameserver", replication="majority",
        voters=("1", "2", "3"),
    )  # fmt: skip

    async def switch(role: BrokerRole) -> None:
        raise AssertionError(f"it becomes {role}")

    async def drain() -> None:
        raise AssertionError("it drains")

    async def reopen(work: Callable[[], Awaitable[None]]) -> None:
        raise AssertionError("its store is emptied")

    return Elector(
        options,
        bell=bell,
        machine=MACHINE,
        switch=switch,
        drain=drain,
        reopen=reopen,
        coordinator=coordinator,
    )


@pytest.mark.parametrize(
    ("last", "says"),
    [
        ((None, 0), "the coordinator has lost the record of the group: put the newest one back"),
        (Unavailable("x"), "the coordinator does not answer: x"),
        (NotReady("x"), "the coordinator can't be used: x"),
    ],
)
async def test_trouble_is_told_and_it_asks_again_after_a_while_only(
    tmp_path: Path, bell: Doorbell, last: Answer, says: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    pauses: list[float] = []
    stopped, sleep = asyncio.Event(), asyncio.sleep

    async def pause(delay_s: float) -> None:
        if delay_s:
            pauses.append(delay_s)
            await stopped.wait()
        await sleep(0)

    coordinator = FakeCoordinator((RECORD, 5), last)
    elector = member(tmp_path, bell, coordinator)
    monkeypatch.setattr(asyncio, "sleep", pause)
    watching = asyncio.create_task(elector.questions.watch())
    await eventually(lambda: pauses)
    assert elector.questions.trouble == says
    assert (coordinator.asked, pauses) == (2, [AGAIN_S])
    watching.cancel()
    elector.release()


async def test_what_a_readable_coordinator_would_refuse_is_told_and_the_record_is_learned_and_logged_once(
    tmp_path: Path, bell: Doorbell, caplog: pytest.LogCaptureFixture
) -> None:
    coordinator = FakeCoordinator((RECORD, 5))
    coordinator.trouble = "it is full"
    elector = member(tmp_path, bell, coordinator)
    with caplog.at_level(logging.INFO):
        watching = asyncio.create_task(elector.questions.watch())
        await eventually(lambda: coordinator.asked == 2)
    assert elector.questions.trouble == "the coordinator can't be used: it is full"
    assert (elector.machine.view.record, elector.machine.view.revision) == (RECORD, 5)
    (line,) = [text for text in caplog.messages if "group record: " in text]
    assert GroupRecord.decode(line.partition("group record: ")[2].encode()) == RECORD
    watching.cancel()
    elector.release()


def found(address: str, number: int) -> Member:
    return Member(broker_id=number, address=address, ha_address="", log_begin=0, log_end=0, member_id=number)


def leading(elector: Elector) -> None:
    """Have it lead epoch 3, over the log's epoch 7."""
    elector.machine.learned(RECORD, 5, elector.own.facts())
    elector.machine.candidacy, elector.machine.state = RECORD, State.OPENING
    elector.takeover.term = RECORD
    page = elector.own.page
    page.leader_epoch, page.leader_log, page.epoch = RECORD.epoch, 7, 7
    elector.machine.opened(elector.own.facts())


async def test_a_leader_that_reaches_nobody_feeds_nobody_until_somebody_answers(
    tmp_path: Path, bell: Doorbell
) -> None:
    elector = member(tmp_path, bell, FakeCoordinator((RECORD, 5)))
    leading(elector)
    elector.machine.contact.isolated = True
    elector.feed([StopStream()])
    assert elector.own.page.leader_log == 0
    elector.questions.answered(Unavailable("nobody is there"))
    elector.questions.answered(RemoteProtocolError("no answer of ours"))
    assert elector.own.page.leader_log == 0 and elector.machine.contact.isolated
    elector.questions.answered(NotReady("a refusal is an answer"))
    assert elector.own.page.leader_log == 7 and not elector.machine.contact.isolated
    await eventually(lambda: not elector.tasks.running)  # it has read the record
    elector.feed([StopStream()])
    elector.takeover.term = None  # it leads no longer
    elector.feed([StartStream()])
    assert elector.own.page.leader_log == 0
    elector.release()


async def test_a_coordinator_that_answers_keeps_the_streams(tmp_path: Path, bell: Doorbell) -> None:
    coordinator = FakeCoordinator((RECORD, 5))
    elector = member(tmp_path, bell, coordinator)
    leading(elector)
    elector.machine.contact.reached_at = float("-inf")
    elector.feed([ReadRecord()])
    await eventually(lambda: coordinator.asked and elector.machine.contact.reached_at > 0)
    assert not elector.machine.contact.unanswered and elector.own.page.leader_log == 7
    elector.release()


async def test_channels_to_where_a_member_was_are_closed(
    tmp_path: Path, bell: Doorbell, monkeypatch: pytest.MonkeyPatch
) -> None:
    elector = member(tmp_path, bell, FakeCoordinator((RECORD, 5)))
    forgotten: list[str] = []
    monkeypatch.setattr(elector.peers, "forget", forgotten.append)
    second, third = found("h:2", 2), found("h:3", 3)
    elector.members_changed("n:1", (second, third), True)
    elector.members_changed("n:2", (third,), True)
    assert not forgotten
    elector.members_changed("n:1", (found("h:4", 2), third), True)
    assert forgotten == ["h:2"] and elector.roster.addresses == {2: "h:4", 3: "h:3"}
    elector.members_changed("n:1", (found("h:3", 2), found("h:4", 3)), True)  # both are still in use
    assert forgotten == ["h:2"]
    elector.release()


async def test_a_replicator_that_hangs_is_known_before_its_followers_ask(
    tmp_path: Path, bell: Doorbell
) -> None:
    elector, replicator = (
        member(tmp_path, bell, FakeCoordinator((RECORD, 5))),
        Doorbell(tmp_path, "replicator"),
    )
    elector.own.page.seat = VOTERS[0][1]
    for age_s, seat in ((0.0, VOTERS[0][1]), (REPLICA_BEAT_S, "")):
        elector.own.page.replica_beat_ns = MACHINE.monotonic_ns() - int(age_s * 1e9)
        assert elector.own.facts().seat == seat
    assert REPLICA_BEAT_S + BEAT_S <= LEAST_SILENT_S
    replicator.close()
    elector.release()


@pytest.mark.parametrize(("leader", "prefer"), [(3, NOBODY), (NOBODY, 3), (2, NOBODY), (NOBODY, NOBODY)])
async def test_who_leads_no_longer_says_whether_it_has_handed_over(
    tmp_path: Path, bell: Doorbell, leader: int, prefer: int
) -> None:
    elector = member(tmp_path, bell, FakeCoordinator((RECORD, 5)))
    elector.machine.state = State.FOLLOWING  # while it drained
    elector.machine.view.record = replace(RECORD, epoch=4, leader=leader, prefer=prefer)
    if 3 in (leader, prefer):
        await elector.operations.hand_over(3)
    else:
        with pytest.raises(NotReady, match="this member has ceased to lead meanwhile"):
            await elector.operations.hand_over(3)
    elector.release()


async def test_what_operators_ask_ends_with_the_member(tmp_path: Path, bell: Doorbell) -> None:
    elector = member(tmp_path, bell, FakeCoordinator((RECORD, 5)))
    forever = asyncio.Event()
    answers = [later(elector.tasks.operate, forever.wait(), lambda done: done)]
    await asyncio.sleep(0)
    # It does not come to begin.
    answers.append(later(elector.tasks.operate, forever.wait(), lambda done: done))
    elector.release()
    await eventually(lambda: all(each.done for each in answers) and not elector.tasks.running)
    assert all(isinstance(each.error, NotReady) for each in answers)


async def test_so_many_commands_are_under_way_at_most(tmp_path: Path, bell: Doorbell) -> None:
    elector = member(tmp_path, bell, FakeCoordinator((RECORD, 5)))
    done = asyncio.Event()
    answers = [later(elector.tasks.operate, done.wait(), lambda done: done) for _ in range(OPERATIONS_MAX)]
    with pytest.raises(Throttled, match="16 commands for this member are under way"):
        later(elector.tasks.operate, done.wait(), lambda done: done)
    done.set()
    await eventually(lambda: all(each.result for each in answers) and not elector.tasks.operating)
    later(elector.tasks.operate, done.wait(), lambda done: done)
    elector.release()


async def test_a_fault_in_what_operators_ask_is_logged_and_answered(
    tmp_path: Path, bell: Doorbell, caplog: pytest.LogCaptureFixture
) -> None:
    async def fail() -> None:
        raise ValueError("a fault of ours")

    elector = member(tmp_path, bell, FakeCoordinator((RECORD, 5)))
    answer = later(elector.tasks.operate, fail(), lambda done: done)
    await eventually(lambda: answer.done and not elector.tasks.running)
    assert isinstance(answer.error, NotReady)
    assert "an election's task failed" in caplog.text
    elector.release()
