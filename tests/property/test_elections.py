"""The production machine of a member, three of them, under whatever Hypothesis thinks of.

The machines (`broker/elections/machine.py`) and lists of epochs (`ha/epochs.py`) are those of production.
What is around them is as small as the rules allow (`tests/models/rules.py`): a coordinator that compares
and sets, promises on disks, logs of numbers, streams that copy them. Each record is one byte of a log. Calls
are under way until they are delivered or dropped, in any order; members end and start again, lose the page
cache with the power or their disks, are cut off, get other voters. Hypothesis shrinks what fails.

    I1  an epoch is begun by one member, once
    I2  who begins an epoch has all that is committed
    I3  what is committed stands where it stood, for ever
    I5  nobody cuts off what is committed

The last tests switch rules off, and Hypothesis has to notice.
"""

import itertools
from collections.abc import Callable, Collection
from dataclasses import dataclass, field, replace
from functools import partial

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from whimbrel.broker.elections import pre_vote
from whimbrel.broker.elections.actions import (
    Action,
    AskSeals,
    AskSuspicions,
    Close,
    Facts,
    Open,
    Promise,
    ReadRecord,
    StartStream,
    State,
    StopStream,
    Swap,
)
from whimbrel.broker.elections.contact import CONTACT_APART_S, CONTACTS, ISOLATED_S
from whimbrel.broker.elections.machine import Election
from whimbrel.broker.elections.pre_vote import BETTER_S, silent_s
from whimbrel.broker.elections.seals import Seals
from whimbrel.ha.epochs import Epochs, adopted, consistent_point, cut
from whimbrel.model.elections import SealAnswer, Suspicion
from whimbrel.model.group_record import NOBODY, GroupRecord, majority

MEMBERS = (1, 2, 3)
GROUP = "f" * 32
UNDER_WAY_MAX = 60
LONG_S = 1.3 * max(map(silent_s, MEMBERS))  # nobody has heard anything for as long as it takes to stand

members = st.sampled_from(MEMBERS)
leaders = st.integers(0, len(MEMBERS) - 1)  # one of those that lead


class Broken(AssertionError):
    """An invariant does not hold."""


@dataclass
class Leading:
    """What a member that leads knows: one incarnation of one epoch; `streams` are there for others."""

    epoch: int
    start: int
    record: GroupRecord
    acked: dict[int, int] = field(default_factory=dict)  # by voter, in this epoch
    streams: bool = True


@dataclass
class Member:
    """A member: its machine is a process, all else its disk; a power cut leaves `flushed` of the log."""

    number: int
    seat: str
    machine: Election
    log: list[int] = field(default_factory=list)
    epochs: Epochs = ()
    flushed: int = 0
    promised: int = 0
    promised_to: int = NOBODY
    votes: bool = True
    up: bool = True
    replaced: bool = False
    incarnation: int = 0
    follows: Leading | None = None
    heard_at: float = float("-inf")
    leading: Leading | None = None


@dataclass
class Call:
    """Something that is under way to a member's process, or from one; it is lost with that process."""

    member: int
    incarnation: int
    deliver: Callable[[], None]
    lose: Callable[[], None]
    text: str


class Group(RuleBasedStateMachine):
    """Three members, all voters at first; the first one leads epoch 1."""

    def __init__(self) -> None:
        super().__init__()
        self.now, self.values = 1000.0, itertools.count(1)
        self.record: GroupRecord | None = None
        self.revision = 0
        self.under_way: list[Call] = []
        self.committed: list[int] = []
        self.begun: dict[int, tuple[int, int]] = {}  # epoch: member and incarnation
        self.reachable = True  # the coordinator
        self.members = {number: self.member(number) for number in MEMBERS}

    @staticmethod
    def member(number: int) -> Member:
        return Member(number, f"{number:032x}", Election(number, frozenset(MEMBERS)))

    @initialize()
    def elect_the_first(self) -> None:
        voters = tuple((one.number, one.seat) for one in self.members.values())
        first = GroupRecord(group=GROUP, epoch=1, leader=1, voters=voters, acks=majority(len(voters)))
        self.record, self.revision = first, 1
        for one in self.members.values():
            one.machine.begin(self.now)
            one.promised, one.promised_to = 1, 1
            self.feed(one, one.machine.learned(first, 1, self.facts(one)))
        leader = self.members[1]
        leader.machine.candidacy, leader.machine.state = first, State.OPENING
        self.open(leader, first)
        for number in (2, 3):
            self.connect(self.members[number])

    # What members see

    def facts(self, one: Member) -> Facts:
        leading = one.leading
        return Facts(
            now=self.now,
            wall_ms=int(self.now * 1000),
            heard_at=one.heard_at,
            connected=one.follows is not None,
            leaderless=False,
            promised=one.promised,
            promised_to=one.promised_to,
            last_epoch=one.epochs[-1][0] if one.epochs else 0,
            end=len(one.log),
            votes=one.votes,
            seat=one.seat,
            group=GROUP,
            adopted=0 if leading is None else len(set(leading.acked) & dict(leading.record.voters).keys()),
            alone=leading is not None
            and not any(other.follows is leading for other in self.members.values()),
        )

    def feed(self, one: Member, actions: list[Action]) -> None:
        """Have what a machine wants under way."""
        for action in actions:
            if isinstance(action, AskSuspicions):
                for number in action.members:
                    self.call(one, partial(self.suspect, one, number), f"asks {number}")
            elif isinstance(action, AskSeals):
                for number in action.members:
                    self.call(one, partial(self.seal, one, number, action.epoch), f"seal {number}")
            elif isinstance(action, Swap):
                swap = partial(self.swap, one, action)
                self.call(one, swap, f"swap {action.record.epoch}", partial(self.unanswered, one))
            elif isinstance(action, Promise):
                self.call(one, partial(self.promise_self, one, action), f"promise {action.epoch}")
            elif isinstance(action, Open):
                self.call(one, partial(self.open, one, action.record), "open")
            elif isinstance(action, Close):
                self.call(one, partial(self.close, one, action.why), "close")
            elif isinstance(action, ReadRecord):
                self.call(one, partial(self.read, one), "read", lambda: None)
            elif isinstance(action, StopStream | StartStream):
                self.stream(one, on=isinstance(action, StartStream))

    def stream(self, one: Member, *, on: bool) -> None:
        """Let the others follow a leader, or end their streams."""
        if one.leading is None:
            return
        one.leading.streams = on
        for other in self.members.values():
            if not on and other.follows is one.leading:
                other.follows = None

    def read(self, one: Member) -> None:
        """The coordinator answers with the record, while it can be reached."""
        if self.reachable:
            self.feed(one, one.machine.reached(self.now))
            self.feed(one, one.machine.learned(self.record, self.revision, self.facts(one)))

    def unanswered(self, one: Member) -> None:
        """The coordinator has not answered a swap."""
        self.feed(one, one.machine.swapped(False, None, 0, self.facts(one)))

    def call(
        self, one: Member, deliver: Callable[[], None], text: str, lose: Callable[[], None] | None = None
    ) -> None:
        """Put something under way; what is done beside a member, without `lose`, is lost with it only."""
        call = Call(one.number, one.incarnation, deliver, lose or deliver, f"{one.number} {text}")
        if len(self.under_way) < UNDER_WAY_MAX:
            self.under_way.append(call)
        else:
            call.lose()

    def answer(self, asker: Member, incarnation: int, take: Callable[[], list[Action]], text: str) -> None:
        """Have an answer under way; it may be lost."""
        if asker.up and asker.incarnation == incarnation:
            self.call(asker, lambda: self.feed(asker, take()), text, lambda: None)

    # Calls

    def suspect(self, asker: Member, number: int) -> None:
        one = self.members[number]
        if not one.up:
            return
        one.machine.view.note_epoch(asker.machine.view.known_epoch)
        facts = self.facts(one)
        said = Suspicion(
            silent=one.machine.agrees(facts), epoch=max(one.machine.named_epoch, one.promised),
            last_epoch=facts.last_epoch, log_end=facts.end, votes=one.votes, seat=one.seat, group=GROUP,
            member=number,
        )  # fmt: skip
        self.answer(
            asker,
            asker.incarnation,
            lambda: asker.machine.suspected(said, self.facts(asker)),
            f"hears {number}",
        )

    def seal(self, asker: Member, number: int, epoch: int) -> None:
        one = self.members[number]
        if not one.up:
            return
        why, actions = one.machine.asked_to_seal(epoch, asker.number, self.facts(one))
        if why:
            self.feed(one, actions)
        elif actions:
            self.promise(one, epoch, asker.number)
        said = self.sealed(one, epoch, asker.number, why)
        self.answer(
            asker,
            asker.incarnation,
            lambda: asker.machine.sealed(said, self.facts(asker)),
            f"seal of {number}",
        )

    def sealed(self, one: Member, epoch: int, candidate: int, why: str = "") -> SealAnswer:
        facts = self.facts(one)
        done = (one.promised, one.promised_to) == (epoch, candidate) and not one.machine.owns_log
        return SealAnswer(
            sealed=done, promised=one.promised, promised_to=one.promised_to,
            last_epoch=facts.last_epoch if done else 0, log_end=facts.end if done else 0, seat=one.seat,
            why=why, member=one.number, votes=one.votes and done,
        )  # fmt: skip

    def promise(self, one: Member, epoch: int, candidate: int) -> bool:
        """Put a promise on disk, and take nothing of lower epochs any more (R3)."""
        mine = (one.promised, one.promised_to)
        if epoch < one.promised or (epoch == one.promised and mine != (epoch, candidate)):
            return False
        if mine != (epoch, candidate):
            one.promised, one.promised_to, one.follows = epoch, candidate, None
        return True

    def promise_self(self, one: Member, action: Promise) -> None:
        if not one.machine.owns_log:
            self.promise(one, action.epoch, action.candidate)
        said = self.sealed(one, action.epoch, action.candidate)
        self.feed(one, one.machine.promised(said, self.facts(one)))

    def swap(self, one: Member, action: Swap) -> None:
        done = self.reachable and action.revision == self.revision
        if done:
            self.record, self.revision = action.record, self.revision + 1
        found = self.record if self.reachable else None
        revision = self.revision if self.reachable else 0
        if self.reachable:
            self.feed(one, one.machine.reached(self.now))
        self.feed(one, one.machine.swapped(done, found, revision, self.facts(one)))

    def open(self, one: Member, record: GroupRecord) -> None:
        """Begin an epoch: the list has it on disk before its first record (R5)."""
        epoch, start = record.epoch, len(one.log)
        if epoch in self.begun:
            raise Broken(f"I1: {one.number} begins epoch {epoch}, which {self.begun[epoch]} has begun")
        self.begun[epoch] = (one.number, one.incarnation)
        if one.log[: len(self.committed)] != self.committed:
            raise Broken(
                f"I2: {one.number} begins epoch {epoch} with {one.log}, committed is {self.committed}"
            )
        one.epochs = (*(entry for entry in one.epochs if entry[1] < start), (epoch, start))
        one.leading, one.follows, one.flushed = Leading(epoch, start, record), None, start
        self.feed(one, one.machine.opened(self.facts(one)))

    def close(self, one: Member, why: str) -> None:
        one.leading = None
        one.flushed = len(one.log)
        self.feed(one, one.machine.closed(self.facts(one), why))

    # Streams

    def connect(self, one: Member) -> None:
        """Follow the newest leader, whose log is compared with ours by the lists of epochs."""
        leaders = [other for other in self.members.values() if other.leading is not None and other is not one]
        if not leaders or one.machine.owns_log or one.leading is not None:
            return
        leader = max(leaders, key=lambda other: other.leading.epoch if other.leading is not None else 0)
        leading = leader.leading
        assert leading is not None
        if not leading.streams or not self.promise(one, leading.epoch, leader.number):
            return
        theirs, end = leader.epochs, len(leader.log)
        point = consistent_point(one.epochs, len(one.log), theirs, end)
        if point is None:  # both are older than all epochs up to there
            point = min(one.epochs[0][1] if one.epochs else len(one.log), theirs[0][1])
        if point < len(one.log):
            if one.epochs and one.epochs[-1][0] == theirs[-1][0]:
                raise Broken(
                    f"R8: {one.number} has {one.log} in epoch {leading.epoch}, its leader {leader.log}"
                )
            if point < len(self.committed) and one.log[: len(self.committed)] == self.committed:
                raise Broken(f"I5: {one.number} cuts its log at {point}, committed is {len(self.committed)}")
            one.epochs = cut(one.epochs, point) if one.epochs else ()
            one.log = one.log[:point]
        one.flushed, one.follows = len(one.log), leading
        self.adopt(one, leader, leading)

    def adopt(self, one: Member, leader: Member, leading: Leading) -> None:
        """Have the leader's epochs as far as our log goes (R6), and report what is on disk (R7)."""
        one.epochs, one.heard_at = adopted(one.epochs, leader.epochs, len(one.log)), self.now
        one.flushed = len(one.log)
        if one.epochs and one.epochs[-1][0] == leading.epoch:
            if (one.number, one.seat) in leading.record.voters:
                leading.acked[one.number] = len(one.log)
            if not one.votes and len(one.log) >= len(self.committed):
                one.votes = True

    def leader_of(self, one: Member) -> Member | None:
        """Return whom a member follows, while that leads."""
        leading = one.follows
        return next((m for m in self.members.values() if leading is not None and m.leading is leading), None)

    # Rules

    @rule(number=members)
    def a_member_looks(self, number: int) -> None:
        one = self.members[number]
        if one.up:
            self.feed(one, one.machine.tick(self.facts(one)))

    @rule(long=st.booleans())
    def time_passes(self, long: bool) -> None:
        self.now += LONG_S if long else 0.2
        for one in self.members.values():
            leader = self.leader_of(one)
            if one.up and leader is not None and leader.up:
                one.heard_at = self.now

    @precondition(lambda self: self.under_way)
    @rule(choice=st.integers(0, UNDER_WAY_MAX), lost=st.sampled_from((False, False, False, True)))
    def one_call(self, choice: int, lost: bool) -> None:
        call = self.under_way.pop(choice % len(self.under_way))
        one = self.members[call.member]
        if one.up and one.incarnation == call.incarnation:
            (call.lose if lost else call.deliver)()

    @precondition(lambda self: self.under_way)
    @rule()
    def all_calls(self) -> None:
        for _ in range(2 * UNDER_WAY_MAX):
            if not self.under_way:
                break
            call = self.under_way.pop(0)
            one = self.members[call.member]
            if one.up and one.incarnation == call.incarnation:
                call.deliver()

    @rule(number=members)
    def a_member_is_told_the_record(self, number: int) -> None:
        one = self.members[number]
        if one.up and self.reachable:
            self.feed(one, one.machine.learned(self.record, self.revision, self.facts(one)))

    @rule(number=members)
    def a_member_follows(self, number: int) -> None:
        one = self.members[number]
        if one.up:
            self.connect(one)

    def leader(self, choice: int) -> Member | None:
        """Return one of those that lead; an old one may not know of the new one."""
        leaders = [one for one in self.members.values() if one.leading is not None]
        return leaders[choice % len(leaders)] if leaders else None

    @rule(choice=leaders, count=st.integers(1, 3))
    def a_leader_takes_records(self, choice: int, count: int) -> None:
        if (one := self.leader(choice)) is not None:
            one.log += itertools.islice(self.values, count)

    @rule(number=members, count=st.integers(1, 3))
    def a_member_gets_records(self, number: int, count: int) -> None:
        one = self.members[number]
        leader = self.leader_of(one)
        if one.up and leader is not None and leader.leading is not None:
            end = len(one.log)
            one.log += leader.log[end : end + count]
            self.adopt(one, leader, leader.leading)

    @rule(choice=leaders)
    def a_leader_commits(self, choice: int) -> None:
        if (one := self.leader(choice)) is None or (leading := one.leading) is None:
            return
        voters = dict(leading.record.voters)
        ends = [end for member, end in leading.acked.items() if member in voters and member != one.number]
        ends += [len(one.log)] * (one.number in voters)
        copies = leading.record.acks
        if len(ends) < copies or (end := sorted(ends, reverse=True)[copies - 1]) < max(leading.start, 1):
            return
        one.flushed, both = max(one.flushed, end), min(end, len(self.committed))
        if one.log[:both] != self.committed[:both]:
            raise Broken(
                f"I3: {one.number} commits {one.log[:end]} in epoch {leading.epoch}, not {self.committed}"
            )
        self.committed = self.committed if end < len(self.committed) else one.log[:end]

    @rule(number=members, power=st.booleans())
    def a_member_ends(self, number: int, power: bool) -> None:
        one = self.members[number]
        if not one.up:
            return
        one.up, one.leading, one.follows = False, None, None
        if power:
            one.log = one.log[: one.flushed]
            one.epochs = tuple(entry for entry in one.epochs if entry[1] <= len(one.log))

    @rule(number=members)
    def a_member_starts(self, number: int) -> None:
        one = self.members[number]
        if one.up:
            return
        one.up, one.incarnation, one.heard_at = True, one.incarnation + 1, float("-inf")
        one.machine = Election(number, frozenset(MEMBERS))
        one.machine.begin(self.now)

    @rule(number=members)
    def a_member_comes_back_with_another_disk(self, number: int) -> None:
        """An empty store; what it had promised is gone with its uuid (R9a)."""
        one = self.members[number]
        if any(other.replaced for other in self.members.values()):
            return  # one of three may lose its disk
        self.a_member_ends(number, power=False)
        one.seat, one.replaced = f"{number + 16:032x}", True
        one.log, one.epochs, one.flushed, one.promised, one.promised_to = [], (), 0, 0, NOBODY
        self.a_member_starts(number)

    @rule()
    def the_coordinator_goes_or_comes(self) -> None:
        self.reachable = not self.reachable

    @rule(choice=leaders, others=st.sets(members, max_size=2), at_once=st.booleans())
    def an_operator_names_voters(self, choice: int, others: set[int], at_once: bool) -> None:
        if (one := self.leader(choice)) is not None:
            chosen = others | {one.number}
            voters = tuple(sorted((member, self.members[member].seat) for member in chosen))
            _, actions = one.machine.change_voters(voters, self.facts(one))
            self.feed(one, actions)
            if at_once:
                self.all_calls()

    @rule(choice=leaders, prefer=members)
    def a_leader_resigns(self, choice: int, prefer: int) -> None:
        """As `switchover` does it."""
        one = self.leader(choice)
        if one is not None and one.machine.state is State.LEADING and one.machine.view.record is not None:
            self.feed(one, [Swap(one.machine.view.record.resigned(prefer), one.machine.view.revision)])

    # What takes many steps otherwise

    @rule(choice=leaders)
    def a_leader_reaches_nobody(self, choice: int) -> None:
        """Its broker alone is cut off: it asks all, and nobody answers."""
        one = self.leader(choice)
        if one is None or not one.up or one.machine.state is not State.LEADING:
            return
        for _ in range(CONTACTS + 1):
            self.now += max(CONTACT_APART_S, ISOLATED_S / CONTACTS)
            actions = one.machine.tick(self.facts(one))
            questions = AskSuspicions | ReadRecord
            self.feed(one, [action for action in actions if not isinstance(action, questions)])
        if one.leading is not None and one.machine.contact.isolated == one.leading.streams:
            raise Broken(f"{one.number} reaches nobody, and feeds others")

    @rule(choice=leaders, other=members, count=st.integers(1, 3))
    def a_leader_commits_with_another(self, choice: int, other: int, count: int) -> None:
        self.a_member_follows(other)
        self.a_leader_takes_records(choice, count)
        for _ in range(5):
            self.a_member_gets_records(other, 3)
        self.a_leader_commits(choice)

    @rule(choice=leaders, other=members, others=st.sets(members, min_size=1, max_size=1))
    def a_leader_commits_with_another_and_voters_change(
        self, choice: int, other: int, others: set[int]
    ) -> None:
        """As by `voters --set`; that of one who lacks what is committed, for instance."""
        self.a_leader_commits_with_another(choice, other, 1)
        self.an_operator_names_voters(choice, others, at_once=True)

    @rule(numbers=st.permutations(MEMBERS))
    def the_leader_is_lost_and_another_stands(self, numbers: list[int]) -> None:
        """Two of three hear nothing, and all calls are answered."""
        self.a_member_ends(numbers[0], power=False)
        self.reachable = True
        for number in numbers[1:]:
            self.a_member_starts(number)
            self.a_member_is_told_the_record(number)
        self.now += LONG_S
        for _ in range(4):
            self.a_member_looks(numbers[1])
            self.all_calls()
            self.now += BETTER_S
        self.a_member_follows(numbers[2])

    @invariant()
    def one_leads_an_epoch(self) -> None:
        leading = [one.leading.epoch for one in self.members.values() if one.leading is not None]
        if len(set(leading)) != len(leading):
            raise Broken(f"I1: epochs that are led: {leading}")


QUICK = settings(
    max_examples=300,
    stateful_step_count=40,
    deadline=None,
    suppress_health_check=list(HealthCheck),
    database=None,
)
TestElections = Group.TestCase
TestElections.settings = QUICK

Patch = Callable[[pytest.MonkeyPatch], None]


def one_seal_fewer(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(GroupRecord, "seals", property(lambda record: len(record.voters) - record.acks))


def any_log_leads(patch: pytest.MonkeyPatch) -> None:
    best = Seals.best

    def first(seals: Seals, candidacy: GroupRecord, now: float) -> tuple[int, str]:
        mine = seals.given.get(seals.member)
        if mine is not None:
            seals.note(replace(mine, last_epoch=1 << 30))
        return best(seals, candidacy, now)

    patch.setattr(Seals, "best", first)


def any_store_votes(patch: pytest.MonkeyPatch) -> None:
    def sealed_by(seals: Seals, record: GroupRecord) -> bool:
        known, prior = set(seals.given), dict(record.prior)
        return len(known & dict(record.voters).keys()) >= record.seals and (
            len(known & prior.keys()) >= record.prior_seals
        )

    def electable(record: GroupRecord, member: int, seat: str) -> bool:
        return member in record.members

    def enough(record: GroupRecord, quiet: Collection[tuple[int, str]]) -> bool:
        known = {member for member, _ in quiet}
        return len(known & dict(record.voters).keys()) >= record.seals

    patch.setattr(Seals, "sealed_by", sealed_by)
    patch.setattr(GroupRecord, "electable", electable)
    patch.setattr(pre_vote, "enough", enough)


def prior_voters_are_forgotten(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(GroupRecord, "prior_seals", property(lambda record: 0))


@pytest.mark.timeout(400)
@pytest.mark.parametrize(
    "switch_off",
    [one_seal_fewer, any_log_leads, any_store_votes, prior_voters_are_forgotten],
    ids=lambda switch_off: switch_off.__name__,
)
def test_each_rule_that_is_off_is_noticed(switch_off: Patch, monkeypatch: pytest.MonkeyPatch) -> None:
    switch_off(monkeypatch)
    search = settings(
        QUICK,
        max_examples=6000,
        stateful_step_count=25,
        phases=[Phase.generate],
        derandomize=True,
        report_multiple_bugs=False,
    )
    with pytest.raises(Broken, match=r"I[1235]:"):
        run_state_machine_as_test(Group, settings=search)
