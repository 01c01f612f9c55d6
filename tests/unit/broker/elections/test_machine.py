"""The machine of a member, alone: what it does at each event, and when it does nothing."""

from dataclasses import replace
from typing import Any

import pytest

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
from whimbrel.broker.elections.group_view import EPOCH_STEP_MAX
from whimbrel.broker.elections.machine import REST_S, Election
from whimbrel.broker.elections.pre_vote import (
    BETTER_S,
    LEAST_SILENT_S,
    LED_S,
    OPENING_S,
    PREFER_S,
    silent_s,
)
from whimbrel.broker.elections.seals import GIVE_WAY_APART_S, SEALING_S
from whimbrel.model.elections import SealAnswer, Suspicion
from whimbrel.model.group_record import NOBODY, GroupRecord

SEATS = {member: f"{member:032x}" for member in range(1, 8)}
GROUP = "f" * 32
RECORD = GroupRecord(
    group=GROUP, epoch=5, leader=2, voters=tuple((member, SEATS[member]) for member in (1, 2, 3)), acks=2
)
FACTS = Facts(
    now=100.0,
    wall_ms=1_795_000_000_000,
    heard_at=100.0,
    connected=True,
    leaderless=False,
    promised=5,
    promised_to=2,
    last_epoch=5,
    end=1000,
    votes=True,
    seat=SEATS[1],
    group=GROUP,
)
GONE = replace(FACTS, connected=False, leaderless=True)


def election(record: GroupRecord | None = RECORD, **facts: Any) -> Election:
    found = Election(1, frozenset({1, 2, 3}))
    found.begin(90.0)
    found.learned(record, 7 if record is not None else 0, replace(FACTS, **facts))
    return found


def suspicion(member: int, **values: Any) -> Suspicion:
    known: dict[str, Any] = {
        "silent": True, "epoch": 5, "last_epoch": 5, "log_end": 1000, "votes": True, "seat": SEATS[member],
        "group": GROUP, "member": member,
    }  # fmt: skip
    return Suspicion(**known | values)


def seal(member: int, epoch: int, candidate: int = 1, **values: Any) -> SealAnswer:
    known: dict[str, Any] = {
        "sealed": True, "promised": epoch, "promised_to": candidate, "last_epoch": 5, "log_end": 1000,
        "seat": SEATS[member], "why": "", "member": member, "votes": True,
    }  # fmt: skip
    return SealAnswer(**known | values)


def sealing(record: GroupRecord = RECORD) -> Election:
    """Return a machine that gathers seals of epoch 6; its own promise is on disk."""
    found = election(record)
    found.tick(GONE)
    (swap,) = found.suspected(suspicion(3), GONE)
    assert isinstance(swap, Swap) and swap.revision == 7 and swap.record.epoch == 6
    promise, ask = found.swapped(True, swap.record, 8, GONE)
    assert promise == Promise(6, 1) and ask == AskSeals((2, 3), 6)
    assert found.promised(seal(1, 6), GONE) == []
    return found


def leading() -> Election:
    found = sealing()
    (opening,) = found.sealed(seal(3, 6), GONE)
    assert isinstance(opening, Open) and found.state.value == "opening"
    assert found.opened(GONE) == [] and found.state.value == "leading"
    return found


def ticked(found: Election, facts: Facts) -> list[Action]:
    """Return what a leader that reaches its coordinator does besides asking whether others answer."""
    found.reached(facts.now)
    return [action for action in found.tick(facts) if not isinstance(action, AskSuspicions)]


def test_a_member_that_hears_its_leader_does_nothing() -> None:
    found = election()
    for second in range(20):
        now = 100.0 + second
        assert found.tick(replace(FACTS, now=now, heard_at=now - 0.5)) == []
    assert found.state is State.FOLLOWING


def test_members_differ_in_how_long_they_wait() -> None:
    waits = [silent_s(member) for member in range(1, 12)]
    assert len(set(waits)) == len(waits)
    assert all(1.99 < wait < 3.01 for wait in waits)


def test_silence_makes_it_ask_and_enough_silent_others_make_it_stand() -> None:
    found = election()
    late = replace(FACTS, now=100.0 + silent_s(1))
    assert found.tick(replace(FACTS, now=late.now - 0.01)) == []
    assert found.tick(late) == [AskSuspicions((2, 3))]
    assert found.suspected(suspicion(2, silent=False, epoch=4), late) == []
    (swap,) = found.suspected(suspicion(3), late)
    assert isinstance(swap, Swap)
    assert (swap.record.epoch, swap.record.leader, swap.record.voters) == (6, 1, RECORD.voters)
    assert "silent" in swap.record.history[0].why and swap.record.history[0].at_ms == FACTS.wall_ms


def test_who_is_asked_agrees_sooner_than_it_would_stand() -> None:
    found = election()
    assert LEAST_SILENT_S <= min(map(silent_s, range(1, 64)))
    assert not found.agrees(replace(FACTS, now=99.9 + LEAST_SILENT_S))
    late = replace(FACTS, now=100.0 + LEAST_SILENT_S)
    assert found.agrees(late) and not found.silent(late) and found.tick(late) == []
    # Not where the leader is new, and was not heard yet.
    sealed = election()
    sealed.asked_to_seal(6, 3, FACTS)
    sealed.learned(replace(RECORD, epoch=6, leader=3), 8, FACTS)
    assert not sealed.agrees(late) and sealed.agrees(replace(FACTS, now=100.0 + silent_s(1)))
    told = election()
    told.learned(replace(RECORD, epoch=6, leader=3), 8, replace(FACTS, now=100.1))
    assert not told.agrees(replace(FACTS, now=100.1 + LEAST_SILENT_S))
    assert not leading().agrees(replace(GONE, now=200.0))


def test_a_leader_that_says_that_it_leads_is_asked_again_soon() -> None:
    found = election()
    late = replace(FACTS, now=100.0 + silent_s(1))
    found.tick(late)
    assert found.suspected(suspicion(2, silent=False), late) == []
    assert found.state is State.FOLLOWING and not found.agrees(late)
    assert found.tick(replace(late, now=late.now + LED_S - 0.01)) == []
    again = replace(late, now=late.now + LED_S)
    assert found.tick(again) == [AskSuspicions((2, 3))] and found.agrees(again)


def test_a_leader_that_is_gone_is_not_waited_for() -> None:
    assert election().tick(GONE) == [AskSuspicions((2, 3))]
    assert election().tick(replace(GONE, leaderless=False)) == []
    assert election().tick(replace(GONE, connected=True)) == []


def test_a_leader_that_is_cut_off_from_its_followers_keeps_none_from_standing() -> None:
    found = leading()
    assert not found.silent(replace(GONE, now=200))
    assert "too few" in found.silent(replace(GONE, now=200, alone=True))
    assert ticked(found, replace(GONE, now=200, alone=True)) == []  # it leads on until another one does
    follower = election()
    late = replace(FACTS, now=100.0 + silent_s(1))
    follower.tick(late)
    assert follower.suspected(suspicion(2, epoch=5), late)  # its leader says so


def test_a_member_that_alone_is_cut_off_disturbs_nobody() -> None:
    found = election()
    assert found.tick(GONE)
    for second in range(10):
        facts = replace(GONE, now=100.0 + second)
        found.suspected(suspicion(3, silent=False), facts)
        assert not [action for action in found.tick(facts) if isinstance(action, Swap)]
    assert found.suspected(suspicion(2, silent=False, epoch=5), replace(GONE, now=110)) == []
    assert found.state is State.FOLLOWING and "leads" in found.why


@pytest.mark.parametrize("no_vote", [{"votes": False}, {"seat": "9" * 32}])
def test_it_does_not_stand_by_those_whose_seals_do_not_count(no_vote: dict[str, Any]) -> None:
    found = election()
    assert found.tick(GONE)
    for step in range(1, 50):
        now = replace(GONE, now=100.0 + step / 10)
        assert all(isinstance(action, AskSuspicions) for action in found.tick(now))
        assert all(
            isinstance(action, AskSuspicions) for action in found.suspected(suspicion(3, **no_vote), now)
        )
    assert found.state is State.ASKING  # so the record stays what it is, and an operator may accept a loss
    assert isinstance(found.suspected(suspicion(2), now)[0], Swap)


def test_a_better_log_is_let_first_for_a_while() -> None:
    found = election()
    found.tick(GONE)
    assert not [a for a in found.suspected(suspicion(3, log_end=1001), GONE) if isinstance(a, Swap)]
    later = replace(GONE, now=100.0 + BETTER_S)
    assert isinstance(found.tick(later)[0], Swap)


def test_a_leader_that_lets_others_lead_is_not_waited_for_though_its_log_is_the_longest() -> None:
    late = replace(FACTS, now=100.0 + silent_s(1))
    ahead = suspicion(2, log_end=5000)  # of epoch 5, which it leads, and too few report to it
    for connected, waits in (
        (True, False),
        (False, True),
    ):  # without a stream it may have restarted, and stand
        found = election()
        facts = replace(late, connected=connected)
        found.tick(facts)
        assert bool(found.suspected(ahead, facts)) != waits
        assert (found.state is State.ASKING) == waits


@pytest.mark.parametrize(
    ("record", "facts", "why"),
    [
        (RECORD, {"votes": False}, "may have lost"),
        (RECORD, {"seat": SEATS[4]}, "not the one that votes"),
        (RECORD, {"group": "e" * 32}, "belongs to group"),
        (replace(RECORD, paused=True), {}, "paused"),
    ],
)
def test_who_may_not_lead_does_not_stand(record: GroupRecord, facts: dict[str, Any], why: str) -> None:
    found = election(record)
    assert found.tick(replace(GONE, now=200.0, **facts)) == []
    assert why in found.why


def test_nobody_stands_before_the_coordinator_and_the_replicator_have_told() -> None:
    found = Election(1, frozenset({1, 2, 3}))
    found.begin(0.0)
    assert found.tick(GONE) == []
    assert election().tick(replace(GONE, seat="")) == []


def test_the_record_decides_between_two_candidates() -> None:
    found = election()
    found.tick(GONE)
    (swap,) = found.suspected(suspicion(3), GONE)
    assert isinstance(swap, Swap)
    other = replace(RECORD, epoch=6, leader=3)
    assert found.swapped(False, other, 8, GONE) == []
    assert found.state is State.FOLLOWING and found.view.record == other


def test_a_swap_without_an_answer_leads_nowhere() -> None:
    found = election()
    found.tick(GONE)
    found.suspected(suspicion(3), GONE)
    assert found.swapped(False, None, 0, GONE) == []
    assert found.state is State.FOLLOWING


def test_it_leads_with_enough_seals_of_voters_and_its_own() -> None:
    found = election()
    found.tick(GONE)
    (swap,) = found.suspected(suspicion(3), GONE)
    assert isinstance(swap, Swap)
    found.swapped(True, swap.record, 8, GONE)
    assert found.sealed(seal(3, 6), GONE) == []  # its own promise is not on disk yet
    (opening,) = found.promised(seal(1, 6), GONE)
    assert opening == Open(swap.record)


@pytest.mark.parametrize(
    "answer",
    [
        seal(3, 6, sealed=False),
        seal(3, 6, votes=False),
        seal(3, 6, seat=SEATS[4]),
        seal(3, 6, candidate=2),
        seal(3, 5),
        seal(4, 6),
    ],
)
def test_what_is_no_seal_of_a_voter_does_not_count(answer: SealAnswer) -> None:
    found = sealing()
    assert found.sealed(answer, GONE) == []
    assert found.state is State.SEALING


def test_a_higher_promise_ends_a_candidacy() -> None:
    found = sealing()
    assert found.sealed(seal(3, 9, candidate=2), GONE) == []
    assert found.state is State.FOLLOWING and found.view.known_epoch == 9


def test_a_candidate_lets_a_better_log_lead() -> None:
    found = sealing()
    (swap,) = found.sealed(seal(3, 6, log_end=1001), GONE)
    assert isinstance(swap, Swap)
    assert (swap.record.leader, swap.record.prefer, swap.record.epoch) == (NOBODY, 3, 6)
    assert found.state is State.FOLLOWING
    # A later epoch matters more than a longer log.
    assert isinstance(sealing().sealed(seal(3, 6, last_epoch=4, log_end=9999), GONE)[0], Open)


def test_the_best_log_of_a_member_that_may_not_lead_does_not_matter() -> None:
    found = sealing()
    found.sealed(seal(2, 6, log_end=5000, votes=False), GONE)
    assert isinstance(found.sealed(seal(3, 6), GONE)[0], Open)


def test_the_preferred_one_stands_at_once_and_others_wait() -> None:
    resigned = replace(RECORD, epoch=6, leader=NOBODY, prefer=1)
    found = election()
    sealed = replace(FACTS, promised=6, promised_to=2)
    why, actions = found.asked_to_seal(6, 2, FACTS)
    assert not why and actions == [Promise(6, 2)]
    found.learned(resigned, 8, sealed)
    assert found.tick(sealed) == [AskSuspicions((2, 3))]
    assert found.silent(sealed)

    other = election()
    other.asked_to_seal(6, 2, FACTS)
    other.learned(replace(resigned, prefer=3), 8, sealed)
    assert other.tick(sealed) == []
    assert other.silent(sealed)  # it does not keep the preferred one from standing
    assert other.tick(replace(sealed, now=100.0 + PREFER_S)) == [AskSuspicions((2, 3))]


def test_who_was_promised_gets_time_to_open_its_log() -> None:
    found = election()
    found.asked_to_seal(6, 3, GONE)
    found.learned(replace(RECORD, epoch=6, leader=3), 8, GONE)
    promised = replace(GONE, promised=6, promised_to=3)
    assert found.tick(promised) == [] and not found.silent(promised)
    assert found.tick(replace(promised, now=100.0 + OPENING_S)) == [AskSuspicions((2, 3))]


def test_who_has_opened_its_log_and_is_gone_is_not_waited_for() -> None:
    found = election()
    found.asked_to_seal(6, 3, GONE)
    found.learned(replace(RECORD, epoch=6, leader=3), 8, GONE)
    heard = replace(GONE, promised=6, promised_to=3, now=100.5, heard_at=100.4)
    assert found.tick(heard) == [AskSuspicions((2, 3))]


def test_of_two_voters_who_was_just_named_gets_time_to_open_its_log() -> None:
    two = replace(RECORD, voters=RECORD.voters[:2])  # either needs no seal but its own
    found = election(two)
    assert isinstance(found.tick(GONE)[0], Swap)  # whoever was named long ago is gone
    found = election(two)
    named = two.led_by(2, 6, at_ms=0, why="")
    assert found.learned(named, 8, GONE) == []
    for step in range(19):
        assert found.tick(replace(GONE, now=100.0 + step / 10)) == []
    assert isinstance(found.tick(replace(GONE, now=100.0 + OPENING_S))[0], Swap)
    again = election(named)  # what it finds at its start says nothing of when that was
    assert isinstance(again.tick(GONE)[0], Swap)


def test_a_candidate_gives_up_after_a_while() -> None:
    found = sealing()
    assert found.tick(replace(GONE, now=100.0 + SEALING_S)) == [AskSeals((2, 3), 6)]
    assert found.tick(replace(GONE, now=100.1 + SEALING_S)) == []
    assert found.state is State.FOLLOWING


def test_promises_are_kept() -> None:
    found = election()
    assert found.asked_to_seal(4, 3, FACTS)[0]
    assert found.asked_to_seal(5, 3, FACTS)[0]  # of epoch 5 to member 2
    assert found.asked_to_seal(5, 2, FACTS) == ("", [])  # it has it already
    assert found.asked_to_seal(6, 3, FACTS) == ("", [Promise(6, 3)])


def test_a_leader_gives_its_log_back_before_it_promises() -> None:
    found = leading()
    led = replace(GONE, promised=6, promised_to=1)
    assert found.asked_to_seal(6, 3, led)[0]
    assert found.state is State.LEADING
    why, actions = found.asked_to_seal(7, 3, led)
    assert why and isinstance(actions[0], Close) and found.state.value == "closing"
    assert found.asked_to_seal(7, 3, led)[0]
    found.closed(led)
    assert found.asked_to_seal(7, 3, led) == ("", [Promise(7, 3)])


def test_a_leader_stops_when_the_record_names_another_one() -> None:
    found = leading()
    assert found.learned(replace(RECORD, epoch=7, leader=3), 9, GONE) == [Close(found.why)]
    opening = sealing()
    opening.sealed(seal(3, 6), GONE)
    assert opening.learned(replace(RECORD, epoch=7, leader=3), 9, GONE) == []
    assert isinstance(opening.opened(GONE)[0], Close)


def test_a_log_that_could_not_be_opened_is_followed_with() -> None:
    found = sealing()
    found.sealed(seal(3, 6), GONE)
    found.open_failed(GONE)
    found.closed(GONE, "the disk is full")
    assert found.state is State.FOLLOWING and found.why == "the disk is full"
    assert found.candidacy is None
    assert found.tick(GONE) == []  # others may do better
    assert found.tick(replace(GONE, now=100.0 + REST_S)) == [AskSuspicions((2, 3))]


def test_a_leader_whose_log_is_lost_resigns_in_favour_of_whoever_can() -> None:
    found = leading()
    swap, close = found.log_lost(FACTS)
    assert isinstance(swap, Swap) and (swap.record.leader, swap.record.prefer) == (NOBODY, NOBODY)
    assert isinstance(close, Close)
    assert found.state is State.CLOSING
    assert found.log_lost(FACTS) == []
    assert election().log_lost(FACTS) == []


def test_prior_voters_must_seal_as_well() -> None:
    prior = tuple((member, SEATS[member]) for member in (1, 4, 5))
    found = election(replace(RECORD, prior=prior, prior_acks=2))
    found.tick(GONE)
    assert not [a for a in found.suspected(suspicion(3), GONE) if isinstance(a, Swap)]
    (swap,) = found.suspected(suspicion(4), GONE)
    assert isinstance(swap, Swap) and swap.record.prior == prior
    found.swapped(True, swap.record, 8, GONE)
    found.promised(seal(1, 6), GONE)
    assert found.sealed(seal(3, 6), GONE) == []
    assert isinstance(found.sealed(seal(4, 6), GONE)[0], Open)


def test_a_late_answer_to_an_earlier_candidacy_leads_nowhere() -> None:
    found = election()
    found.tick(GONE)
    (first,) = found.suspected(suspicion(3), GONE)
    assert isinstance(first, Swap)
    found.asked_to_seal(5, 2, GONE)
    later = replace(GONE, now=200.0)
    found.tick(later)
    (second,) = found.suspected(suspicion(3), later)
    assert isinstance(second, Swap) and found.state is State.SWAPPING
    other = replace(second, record=replace(second.record, epoch=9))
    found.candidacy = other.record
    assert found.swapped(True, first.record, 8, later) == []
    assert found.state.value == "following"


class TestALeaderThatReachesNobody:
    """Its broker alone is cut off, while its replicator, which members hear, is not."""

    ASK, READ = AskSuspicions((2, 3)), ReadRecord()
    ROUND_S = max(CONTACT_APART_S, ISOLATED_S / CONTACTS) + 0.01

    @staticmethod
    def after(seconds: float, **values: Any) -> Facts:
        return replace(GONE, now=100.0 + seconds, **values)

    def isolated(self) -> Election:
        found = leading()
        for asked in range(CONTACTS):
            assert StopStream() not in found.tick(self.after(asked * self.ROUND_S))
        assert found.tick(self.after(CONTACTS * self.ROUND_S)) == [StopStream(), self.ASK, self.READ]
        return found

    def test_asks_the_others_and_then_the_coordinator(self) -> None:
        found = leading()
        assert found.tick(self.after(0.0)) == [self.ASK]
        assert found.tick(self.after(CONTACT_APART_S - 0.1)) == []
        assert found.tick(self.after(self.ROUND_S)) == [self.ASK, self.READ]
        assert found.suspected(suspicion(3), self.after(self.ROUND_S)) == []
        assert found.tick(self.after(2 * self.ROUND_S)) == [self.ASK]

    def test_ends_the_streams_and_leads_on(self) -> None:
        found = self.isolated()
        assert found.state is State.LEADING and "neither" in found.why
        assert "reaches nobody" in found.silent(self.after(2)) and found.agrees(self.after(2))
        last_s = CONTACTS * self.ROUND_S
        assert found.tick(self.after(last_s + 0.1)) == []
        assert found.tick(self.after(last_s + self.ROUND_S)) == [self.ASK, self.READ]

    @pytest.mark.parametrize("who", ["a member", "the coordinator"])
    def test_begins_them_again_when_anybody_answers(self, who: str) -> None:
        found = self.isolated()
        answered = self.after(60.0)
        again = [StartStream(), self.READ]
        if who == "a member":
            assert found.suspected(suspicion(3), answered) == again
        else:
            assert found.reached(answered.now) == again
        assert not found.silent(answered) and not found.why
        assert found.reached(answered.now) == []

    def test_goes_on_while_anybody_answers(self) -> None:
        for who in ("a member", "the coordinator"):
            found = leading()
            for tenth in range(200):
                facts = self.after(tenth / 10)
                assert StopStream() not in found.tick(facts)
                if tenth % 11 == 0:
                    found.suspected(suspicion(3), facts) if who == "a member" else found.reached(facts.now)
        alone = tuple(voter for voter in RECORD.voters if voter[0] == 1)
        single = leading()
        single.view.record = replace(RECORD, epoch=6, leader=1, voters=alone, acks=1)
        assert not any(single.tick(self.after(second)) for second in range(20))

    def test_a_broker_that_has_slept_asks_first(self) -> None:
        found = leading()
        found.tick(self.after(0.0))
        found.reached(100.1)
        for tenth in range(CONTACTS):
            assert StopStream() not in found.tick(self.after(60.0 + tenth * self.ROUND_S))

    def test_a_leader_of_another_epoch_begins_anew(self) -> None:
        found = self.isolated()
        found.learned(replace(RECORD, epoch=7, leader=3), 9, self.after(3))
        assert found.state.value == "closing"
        assert found.reached(104.0) == []  # there is no stream to begin again
        assert not found.contact.isolated

    def test_takes_nobody_out_meanwhile(self) -> None:
        found = self.isolated()
        found.leadership.copies_min = 1
        for second in range(2, 40):
            assert not [a for a in found.tick(self.after(second)) if isinstance(a, Swap)]
        assert found.reached(140.0) == [StartStream(), self.READ]
        assert ticked(found, self.after(41, present=frozenset())) == []  # they come back in a moment


class TestOtherVoters:
    VOTERS = tuple((member, SEATS[member]) for member in (1, 2, 4))

    def changing(self) -> tuple[Election, Swap]:
        found = leading()
        found.learned(replace(RECORD, epoch=6, leader=1), 9, GONE)
        why, (swap,) = found.change_voters(self.VOTERS, GONE)
        assert not why and isinstance(swap, Swap)
        assert (swap.record.epoch, swap.record.voters, swap.record.prior) == (7, self.VOTERS, RECORD.voters)
        return found, swap

    def test_they_are_taken_by_an_epoch_that_both_sets_have_sealed(self) -> None:
        found, swap = self.changing()
        (close,) = found.swapped(True, swap.record, 10, GONE)
        assert isinstance(close, Close) and not found.silent(GONE)
        promise, ask = found.closed(GONE)
        assert promise == Promise(7, 1) and ask == AskSeals((2, 3, 4), 7)
        found.promised(seal(1, 7), GONE)
        assert found.sealed(seal(4, 7), GONE) == []  # of the prior voters only one has
        assert found.sealed(seal(2, 7), GONE) == [Open(swap.record)]

    def test_the_prior_ones_are_forgotten_when_new_ones_have_adopted_the_epoch(self) -> None:
        found, swap = self.changing()
        found.swapped(True, swap.record, 10, GONE)
        found.closed(GONE)
        found.promised(seal(1, 7), GONE)
        found.sealed(seal(2, 7), GONE)
        found.opened(GONE)
        later = replace(GONE, now=200.0)
        assert ticked(found, later) == []
        (forget,) = ticked(found, replace(later, adopted=1))
        assert isinstance(forget, Swap) and not forget.record.prior and forget.record.leader == 1

    def test_nothing_else_changes_meanwhile_and_who_leads_stays_a_voter(self) -> None:
        found = leading()
        found.learned(replace(RECORD, epoch=6, leader=1, prior=RECORD.voters, prior_acks=2), 9, GONE)
        assert "not done" in found.change_voters(self.VOTERS, GONE)[0]
        assert "lead first" in leading().change_voters(self.VOTERS[1:], GONE)[0]
        assert "does not lead" in election().change_voters(self.VOTERS, GONE)[0]
        assert leading().change_voters(RECORD.voters, GONE) == ("", [])

    def test_a_change_that_the_coordinator_did_not_take_is_over(self) -> None:
        found, _ = self.changing()
        assert found.swapped(False, None, 0, GONE) == []
        assert found.leadership.change is None and found.state is State.LEADING

    def test_a_leader_that_votes_no_longer_resigns_when_the_change_is_done(self) -> None:
        found = leading()
        found.learned(replace(RECORD, epoch=6, leader=1, voters=self.VOTERS[1:], acks=2), 9, GONE)
        (swap,) = ticked(found, replace(GONE, now=200.0))
        assert isinstance(swap, Swap) and swap.record.leader == NOBODY


def test_what_others_say_of_epochs_raises_ours_by_steps() -> None:
    found = election()
    found.heard_epoch(1 << 30)
    found.heard_epoch(1 << 30)
    assert found.view.known_epoch == 5 + EPOCH_STEP_MAX  # from the record's on: asking often does not help


def test_an_epoch_far_beyond_the_record_is_not_promised() -> None:
    found = election()
    assert "too far" in found.asked_to_seal(6 + EPOCH_STEP_MAX, 3, FACTS)[0]
    assert found.asked_to_seal(5 + EPOCH_STEP_MAX, 3, FACTS)[1]
    fresh = election(None)
    assert not fresh.view.plausible(10 + EPOCH_STEP_MAX, 9) and fresh.view.plausible(9 + EPOCH_STEP_MAX, 9)


def test_an_epoch_is_promised_to_the_one_whom_the_record_names() -> None:
    found = election()
    found.learned(replace(RECORD, epoch=6, leader=2), 8, FACTS)
    assert "names member 2" in found.asked_to_seal(6, 3, FACTS)[0]
    assert found.asked_to_seal(6, 2, FACTS) == ("", [Promise(6, 2)])


def test_a_coordinator_that_has_lost_its_file_elects_nobody() -> None:
    found = election()
    assert found.learned(None, 0, FACTS) == []
    assert found.view.record == RECORD and found.view.revision == 7
    fresh = election(None)
    assert fresh.tick(GONE) == [] and "put the newest record back" in fresh.why


class TestAGroupThatIsMade:
    ALONE = replace(GONE, promised=0, promised_to=0, last_epoch=0, end=0, group="")

    def gathering(self) -> Election:
        found = election(None, group="")
        assert found.tick(self.ALONE) == [AskSuspicions((2, 3))]
        return found

    @staticmethod
    def answer(member: int, **values: Any) -> Suspicion:
        return suspicion(member, **{"epoch": 0, "last_epoch": 0, "log_end": 0, "group": ""} | values)

    def test_the_best_log_makes_it_once_all_are_there(self) -> None:
        found = self.gathering()
        assert found.suspected(self.answer(2), self.ALONE) == []
        assert "missing: 3" in found.why
        (swap,) = found.suspected(self.answer(3), self.ALONE)
        assert isinstance(swap, Swap) and swap.revision == 0
        record = swap.record
        assert (record.epoch, record.leader, record.voters, record.acks) == (1, 1, RECORD.voters, 2)
        assert GroupRecord.decode(record.encode()) == record
        # It needs seals as any other leader does.
        promise, asked = found.swapped(True, record, 1, self.ALONE)
        assert promise == Promise(1, 1) and asked == AskSeals((2, 3), 1)

    @pytest.mark.parametrize("longer", [{"log_end": 1}, {"last_epoch": 1}])
    def test_another_one_makes_it_where_its_log_goes_on_further(self, longer: dict[str, Any]) -> None:
        found = self.gathering()
        found.suspected(self.answer(2), self.ALONE)
        assert found.suspected(self.answer(3, **longer), self.ALONE) == []
        assert "member 3 is to make the group" in found.why

    def test_a_member_of_another_group_stops_it(self) -> None:
        found = self.gathering()
        found.suspected(self.answer(2, group=GROUP), self.ALONE)
        assert not [a for a in found.suspected(self.answer(3), self.ALONE) if isinstance(a, Swap)]
        assert "belongs to group" in found.why

    def test_a_record_that_comes_meanwhile_counts(self) -> None:
        found = self.gathering()
        found.learned(RECORD, 1, self.ALONE)
        assert found.state is State.FOLLOWING

    def test_a_record_that_a_late_swap_has_made_is_not_replaced(self) -> None:
        found = self.gathering()
        found.suspected(self.answer(2), self.ALONE)
        (swap,) = found.suspected(self.answer(3), self.ALONE)
        assert isinstance(swap, Swap)
        found.asked_to_seal(1, 2, self.ALONE)
        assert found.tick(self.ALONE) == [AskSuspicions((2, 3))] and found.state.value == "gathering"
        assert found.swapped(True, swap.record, 1, self.ALONE) == []
        found.suspected(self.answer(2), self.ALONE)
        (again,) = found.suspected(self.answer(3), self.ALONE)
        assert isinstance(again, Swap) and again.revision == 0, "the coordinator refuses it"

    def test_no_group_is_made_while_the_own_replicator_is_away(self) -> None:
        found, away = self.gathering(), replace(self.ALONE, seat="")
        assert found.suspected(self.answer(2), away) == [] == found.suspected(self.answer(3), away)
        assert found.why == "the group is made once the replicator of this member is there"
        assert [type(action) for action in found.tick(self.ALONE)] == [Swap]

    def test_who_is_not_to_vote_makes_none(self) -> None:
        found = Election(4, frozenset({1, 2, 3}))
        found.begin(0.0)
        found.learned(None, 0, self.ALONE)
        assert found.tick(self.ALONE) == []


# What an operator asks


LOST = replace(FACTS, connected=False, leaderless=True, votes=False)


def forced(
    answers: dict[int, Suspicion],
    facts: Facts = GONE,
    record: GroupRecord = RECORD,
    chosen: tuple[int, ...] = (),
) -> tuple[Election, str, GroupRecord | None]:
    found = election(record)
    why, changed = found.forced(answers, chosen, facts)
    return found, why, changed


@pytest.mark.parametrize(
    ("answers", "facts", "text"),
    [
        ({3: suspicion(3)}, GONE, "without loss"),
        ({}, FACTS, "member 1 hears a leader"),
        ({3: suspicion(3, silent=False)}, LOST, "member 3 hears a leader"),
        ({3: suspicion(3, log_end=1001, votes=False)}, GONE, "to byte 1001 in epoch 5"),
        ({3: suspicion(3, last_epoch=6, votes=False)}, GONE, "name that member instead"),
        ({4: suspicion(4, log_end=1001)}, GONE, "the log of member 4"),
        ({}, replace(GONE, seat=""), "no store of it"),
    ],
)
def test_a_loss_is_not_accepted_without_need_or_with_a_worse_log(
    answers: dict[int, Suspicion], facts: Facts, text: str
) -> None:
    _, why, changed = forced(answers, facts)
    assert text in why and changed is None


def test_who_answers_votes_after_an_accepted_loss_and_all_of_them_have_to_seal() -> None:
    answers = {3: suspicion(3, votes=False, epoch=8), 4: suspicion(4, log_end=0)}
    found, why, changed = forced(answers, LOST)
    assert why == "" and changed is not None
    assert changed.voters == ((1, SEATS[1]), (3, SEATS[3])), "member 4 was no voter"
    assert (changed.epoch, changed.leader, changed.acks, changed.prior) == (9, 1, 2, ())
    assert changed.loss == 9 and changed.waives and changed.seals == 2
    assert found.force(changed, LOST) == [Swap(changed, 7)]
    promise, _ = found.swapped(True, changed, 8, LOST)
    assert promise == Promise(9, 1)
    assert found.promised(seal(1, 9, votes=False), LOST) == [], "one of two"
    (opening,) = found.sealed(seal(3, 9, votes=False), LOST)
    assert opening == Open(changed)


def test_the_voters_may_be_named() -> None:
    _, why, changed = forced({3: suspicion(3, votes=False)}, chosen=(1,))
    assert why == "" and changed is not None and changed.voters == ((1, SEATS[1]),) and changed.acks == 1
    assert "so it has to be one" in forced({3: suspicion(3, votes=False)}, chosen=(3,))[1]
    assert "member 2 does not answer" in forced({}, chosen=(1, 2))[1]
    strangers = suspicion(4, votes=False, group="e" * 32)
    assert "member 4 does not answer, or has no store" in forced({4: strangers}, chosen=(1, 4))[1]


def test_after_an_accepted_loss_who_may_have_lost_something_since_does_not_vote() -> None:
    later = replace(RECORD, epoch=6, leader=3, voters=RECORD.voters[:1] + RECORD.voters[2:], loss=5)
    assert not later.waives
    found = election(later)
    assert found.tick(LOST) == [] and "may have lost" in found.why
    found = election(later)
    found.tick(GONE)
    (swap,) = found.suspected(suspicion(3), GONE)
    assert isinstance(swap, Swap) and swap.record.loss == 5 and not swap.record.waives
    found.swapped(True, swap.record, 8, GONE)
    found.promised(seal(1, 7), GONE)
    assert found.sealed(seal(3, 7, votes=False), GONE) == []
    assert found.sealed(seal(3, 7), GONE) == [Open(swap.record)]


def test_a_leader_without_a_majority_may_go_on_alone() -> None:
    found = leading()
    alone = replace(GONE, alone=True, promised=6, promised_to=1)
    why, changed = found.forced({}, (), alone)
    assert why == "" and changed is not None and changed.epoch == 7
    assert found.force(changed, alone) == [Swap(changed, 8)]
    (close,) = found.swapped(True, changed, 9, alone)
    assert close == Close("the voters change")
    promise, _ = found.closed(alone)
    assert promise == Promise(7, 1)
    (opening,) = found.promised(seal(1, 7), alone)
    assert opening == Open(changed)


def test_a_change_that_can_not_end_is_given_up_by_accepting_a_loss() -> None:
    found = leading()
    two, before = ((1, SEATS[1]), (2, "a" * 32)), ((1, SEATS[1]), (2, SEATS[2]))
    record = replace(RECORD, epoch=6, leader=1, voters=two, prior=before, prior_acks=2)
    found.view.record = record
    alone = replace(GONE, alone=True, promised=6, promised_to=1)
    assert "not done yet" in found.change_voters(before, alone)[0]
    replaced = suspicion(2, seat="b" * 32, log_end=0)  # once more: it is neither of both
    why, changed = found.forced({2: replaced}, (), alone)
    assert why == "" and changed is not None and changed.prior == () and changed.loss == 7
    assert changed.voters == ((1, SEATS[1]), (2, "b" * 32))
    there = suspicion(2, seat="a" * 32, log_end=0)
    assert "enough voters are there" in found.forced({2: there}, (), alone)[0], "it adopts the epoch"


def test_the_loss_is_over_once_enough_have_adopted_an_epoch() -> None:
    found = leading()
    record = replace(found.candidacy or RECORD, loss=6)
    found.learned(record, 9, GONE)
    assert "not done yet" in found.change_voters(RECORD.voters, GONE)[0]
    later = replace(GONE, now=110.0)
    assert ticked(found, later) == []
    (swap,) = ticked(found, replace(later, adopted=1))
    assert isinstance(swap, Swap) and swap.record == replace(record, loss=0)


def test_a_store_is_emptied_for_the_leader_only_and_nobody_stands_or_promises_meanwhile() -> None:
    found = election()
    assert "does not lead epoch 4" in found.begin_emptying(4, 2)
    assert "does not lead epoch 5" in found.begin_emptying(5, 3)
    assert found.begin_emptying(5, 2) == ""
    assert "already" in found.begin_emptying(5, 2)
    assert found.asked_to_seal(6, 3, FACTS) == ("its store is being emptied", [])
    assert found.tick(GONE) == [] and found.why == "its store is being emptied"
    found.emptied()
    assert found.asked_to_seal(6, 3, FACTS) == ("", [Promise(6, 3)])
    candidate = sealing()
    assert "is sealing" in candidate.begin_emptying(6, 1)


BOTH = ((1, SEATS[1]), (2, SEATS[2]))


def surviving(copies_min: int, voters: int) -> tuple[Election, Facts]:
    """Return a leader, and what it knows when the others are just gone."""
    found = leading()
    found.leadership.copies_min = copies_min
    record = replace(
        found.view.record or RECORD,
        voters=tuple((member, SEATS[member]) for member in range(1, voters + 1)),
        acks=voters // 2 + 1,
        leader=1,
        epoch=6,
    )
    found.learned(record, 20, GONE)
    return found, replace(GONE, promised=6, promised_to=1)


def test_a_survivor_takes_out_who_is_away_where_so_few_copies_may_commit() -> None:
    found, facts = surviving(1, 2)
    for second in range(1, 15):
        assert ticked(found, replace(facts, now=100.0 + second)) == []
    (swap,) = ticked(found, replace(facts, now=115.0))
    assert isinstance(swap, Swap)
    record = swap.record
    assert (record.voters, record.acks, record.prior, record.out) == (((1, SEATS[1]),), 1, BOTH, (2,))
    assert record.history[0].why == "member 2 was away for 15 s" and record.epoch == 7
    (close,) = found.swapped(True, record, 21, facts)
    assert isinstance(close, Close)
    found.closed(facts)
    (opening,) = found.promised(seal(1, 7), facts)
    assert opening == Open(record), "the survivor's seal is enough of both"
    found.opened(facts)
    (swap,) = ticked(found, replace(facts, now=130.0))
    assert isinstance(swap, Swap) and swap.record == replace(record, prior=(), prior_acks=0)
    found.swapped(True, swap.record, 22, facts)
    why, (swap,) = found.change_voters(BOTH, replace(facts, now=140.0))
    assert why == "" and isinstance(swap, Swap) and swap.record.out == ()


@pytest.mark.parametrize(
    ("copies_min", "voters", "present"),
    [(0, 2, ()), (2, 2, ()), (1, 2, (2,)), (1, 3, ()), (4, 5, (2, 3)), (5, 7, (2, 3, 4))],
)
def test_nobody_is_taken_out_otherwise(copies_min: int, voters: int, present: tuple[int, ...]) -> None:
    found, facts = surviving(copies_min, voters)
    for second in range(1, 40):
        assert ticked(found, replace(facts, now=100.0 + second, present=frozenset(present))) == []


def test_one_is_taken_out_at_a_time_and_who_comes_back_is_not() -> None:
    found, facts = surviving(2, 5)
    for second in range(1, 10):
        assert ticked(found, replace(facts, now=100.0 + second, present=frozenset({2, 3, 4}))) == []
    for second in range(10, 15):
        assert ticked(found, replace(facts, now=100.0 + second, present=frozenset({2, 3}))) == []
    (swap,) = ticked(found, replace(facts, now=115.0, present=frozenset({2, 3})))
    assert isinstance(swap, Swap) and swap.record.out == (5,), "member 4 was there until lately"
    assert ticked(found, replace(facts, now=117.0, present=frozenset({2, 3}))) == []


def test_of_equal_logs_the_one_gives_way_that_begins_behind_what_waits_in_the_other() -> None:
    found = sealing()
    (swap,) = found.sealed(seal(3, 6, waiting_below=4), GONE)
    assert isinstance(swap, Swap) and (swap.record.leader, swap.record.prefer) == (NOBODY, 3)
    assert found.state is State.FOLLOWING and "member 3 has messages that wait" in found.why


@pytest.mark.parametrize(
    "theirs",
    [
        {"waiting_below": 0},
        {"waiting_below": 4, "log_end": 999},
        {"waiting_below": 4, "last_epoch": 4, "log_end": 2000},
        {"waiting_below": 4, "votes": False, "seat": SEATS[7]},
    ],
)
def test_for_what_waits_only_an_equal_log_is_let_go_first(theirs: dict[str, Any]) -> None:
    found = sealing()
    if theirs.get("votes", True):
        (opening,) = found.sealed(seal(3, 6, **theirs), GONE)
        assert isinstance(opening, Open)
        waiting = theirs["waiting_below"]
        assert found.seals.kept_elsewhere == ({3: waiting} if waiting else {})
    else:  # its seal does not count at all
        assert found.sealed(seal(3, 6, **theirs), GONE) == []


def test_nobody_gives_way_again_to_a_member_that_did_not_stand() -> None:
    found = sealing()
    found.seals.gave_way_at[3] = GONE.now - GIVE_WAY_APART_S + 1
    (opening,) = found.sealed(seal(3, 6, waiting_below=4), GONE)
    assert isinstance(opening, Open) and found.seals.kept_elsewhere == {3: 4}
    again = sealing()
    again.seals.gave_way_at[3] = GONE.now - GIVE_WAY_APART_S
    (swap,) = again.sealed(seal(3, 6, waiting_below=4), GONE)
    assert isinstance(swap, Swap)
