"""When a record counts as committed, and what sends and the page are told of it."""

import mmap

import pytest
from hypothesis import given
from hypothesis import strategies as st

from unit.broker.produce.test_appender import FakeLog, FakeLoop
from whimbrel.broker.produce.appender import RING_INTERVAL_MIN_S, Appender, Durability
from whimbrel.broker.produce.commit import UNCOMMITTED_BYTES_MAX, MajorityCommit, commit_offset
from whimbrel.errors import NoReplica, NotCommitted, Throttled, WhimbrelError
from whimbrel.store.shared_page import PAGE_BYTES, SharedPage

FALLBEHIND = 1 << 20


@given(st.lists(st.integers(0, 100), max_size=7), st.integers(1, 7))
def test_so_many_copies_hold_the_log_up_to_the_commit_offset(ends: list[int], copies: int) -> None:
    found = commit_offset(ends, copies)
    if len(ends) < copies:
        assert found == -1
    else:
        assert sum(end >= found for end in ends) >= copies > sum(end > found for end in ends)


class GatedLog(FakeLog):
    """A log of records of 100 bytes each."""

    visible_end = 0

    def commit(self, offset: int) -> bool:
        before, self.visible_end = self.visible_end, max(self.visible_end, offset - offset % 100)
        return self.visible_end != before


class Rig:
    """A master with two slaves, all three voters."""

    def __init__(
        self, *, sync_flush: bool = False, voters: tuple[int, ...] = (0, 1, 2), start: int = 0
    ) -> None:
        self.log, self.loop = GatedLog(), FakeLoop()
        self.page = page = SharedPage(mmap.mmap(-1, PAGE_BYTES))
        self.log.written = self.log.flushed = start
        page.recovered(begin=0, written=start, flushed=start, file_size=1 << 30, pid=1)
        page.fed_epoch = page.leader_log = page.epoch
        page.leader_epoch, page.leader_start = 3, start
        page.replica_beat_ns = int(self.loop.time() * 1e9)
        self.commit = MajorityCommit(
            self.log, page, member=0, voters=voters, sync_flush=sync_flush, fallbehind_max=FALLBEHIND
        )
        self.answers: list[WhimbrelError | None] = []
        self.rings = 0
        self.appender = Appender(
            self.log, page, Durability(sync_flush=sync_flush), self.loop, ring=self.ring, commit=self.commit
        )
        self.appender.refusal = ""

    def ring(self) -> None:
        self.rings += 1

    def connect(self, member: int, slot: int, *, at_ms: int = 0, proven: bool = True, end: int = 0) -> None:
        """Have a member's connection in a slot; one below 0 is a classic slave's."""
        self.page.set_slave(slot, "10.0.0.9:4000", at_ms or 1000 + slot)
        if member >= 0:
            self.page.set_member(slot, member)
        self.page.set_ack(slot, end)
        if proven:
            self.page.set_proven(slot)

    def report(self, slot: int, end: int) -> None:
        self.page.set_ack(slot, end)
        self.appender.complete_waiting()

    def send(self) -> None:
        place = self.appender.append([object()])[-1]
        self.appender.when_durable(place.end, self.answers.append)

    def tick(self, seconds: float = 0.0) -> None:
        self.page.written = self.log.written
        self.page.replica_beat_ns = int((self.loop.now + seconds) * 1e9)
        self.loop.tick(seconds)


def three() -> Rig:
    rig = Rig()
    rig.connect(1, 0)
    rig.connect(2, 1)
    return rig


def test_a_send_is_answered_when_more_than_half_hold_it() -> None:
    rig = three()
    rig.send()
    rig.send()
    rig.tick()
    assert (rig.answers, rig.page.commit) == ([], 0)
    rig.report(1, 100)
    assert (rig.answers, rig.page.commit) == ([None], 100)
    rig.report(0, 200)
    assert (rig.answers, rig.page.commit) == ([None, None], 200)


def test_what_nobody_waits_for_is_committed_too() -> None:
    rig = three()
    rig.appender.append([object()])
    rig.tick()
    assert rig.page.broker_sleeping == 1  # the replicator is to ring
    rig.report(0, 100)
    assert rig.page.commit == 100
    assert rig.page.broker_sleeping == 0


def test_slaves_are_to_hear_of_a_commit_soon_or_with_the_next_record() -> None:
    rig = three()
    rig.page.replica_sleeping = 1
    rig.send()
    rig.tick()
    assert rig.rings == 1
    rig.report(0, 100)
    assert rig.rings == 1
    rig.tick(RING_INTERVAL_MIN_S)
    assert rig.rings == 2
    rig.send()
    rig.tick()
    rig.report(0, 200)
    rig.send()
    rig.tick()  # this ring tells of both
    assert rig.rings == 4
    rig.tick(RING_INTERVAL_MIN_S)
    assert rig.rings == 4


def test_only_voters_count() -> None:
    rig = Rig(voters=(0, 1, 2, 3, 4))
    for member, slot in ((1, 0), (7, 1), (-1, 2), (3, 4)):
        rig.connect(member, slot)
    rig.send()
    rig.tick()
    for slot in (1, 2):
        rig.report(slot, 100)
    assert rig.page.commit == 0
    rig.report(0, 100)
    assert rig.page.commit == 0
    rig.report(4, 100)
    assert rig.page.commit == 100


def test_a_member_counts_once_and_only_with_proven_reports() -> None:
    rig = Rig(voters=(0, 1, 2, 3, 4))
    rig.connect(1, 0)
    rig.connect(1, 1)
    rig.connect(2, 2, proven=False)
    rig.connect(3, 3)
    rig.send()
    rig.tick()
    for slot in (0, 1, 2):
        rig.report(slot, 100)
    assert rig.page.commit == 0
    rig.page.set_proven(2)
    rig.appender.complete_waiting()
    assert rig.page.commit == 100


def test_a_record_of_an_earlier_epoch_counts_from_where_this_one_begins() -> None:
    """Raft's figure 8: a majority that holds it may still be overruled by a leader which does not."""
    rig = Rig(start=500)
    rig.log.visible_end = 200
    rig.connect(1, 0)
    rig.connect(2, 1)
    rig.report(0, 400)
    rig.report(1, 400)
    assert (rig.log.visible_end, rig.commit.epoch_committed) == (200, False)
    rig.report(1, 500)
    assert (rig.log.visible_end, rig.commit.epoch_committed) == (500, True)


@pytest.mark.parametrize("cell", ["epoch", "fed_epoch", "leader_log"])
def test_acknowledgements_about_another_log_do_not_count(cell: str) -> None:
    rig = three()
    rig.send()
    rig.tick()
    setattr(rig.page, cell, 77)
    rig.report(0, 100)
    assert rig.page.commit == 0


def test_a_slot_that_is_used_again_does_not_pair_two_members() -> None:
    rig = Rig()
    rig.connect(1, 0, at_ms=1000)
    rig.page.set_slave(0, "", 0)
    rig.page.set_slave(0, "10.0.0.7:4000", 2000)  # a classic slave's
    rig.page.set_ack(0, 100)
    rig.page.set_proven(0)
    rig.log.written = rig.page.written = 100
    rig.appender.complete_waiting()
    assert rig.page.commit == 0


def test_with_synchronous_flush_the_masters_copy_is_what_is_on_its_disk() -> None:
    rig = Rig(sync_flush=True)
    rig.connect(1, 0)
    rig.connect(2, 1)
    rig.send()
    rig.tick()
    assert rig.log.flush_wanted == 100
    rig.report(0, 100)
    assert rig.answers == []
    rig.log.flushed = 100
    rig.appender.complete_waiting()
    assert rig.answers == [None]
    rig.send()
    rig.tick()
    rig.report(0, 200)
    rig.report(1, 200)  # two others are more than half as well
    assert rig.answers == [None, None]


def test_without_a_majority_nothing_is_stored() -> None:
    rig = Rig()
    with pytest.raises(NoReplica, match="1 of the 2 members"):
        rig.send()
    rig.connect(2, 1)
    rig.send()
    rig.tick()
    rig.log.written += FALLBEHIND
    with pytest.raises(NoReplica):  # it lacks too much
        rig.send()
    assert rig.log.written == 100 + FALLBEHIND


def test_members_of_a_dead_replicator_are_not_there() -> None:
    rig = three()
    rig.page.replica_beat_ns = 1
    with pytest.raises(NoReplica):
        rig.send()


def test_what_is_not_committed_in_time_is_answered_as_stored() -> None:
    rig = three()
    rig.send()
    rig.tick(3.2)
    assert [type(answer) for answer in rig.answers] == [NotCommitted]
    assert "nobody sees it before" in str(rig.answers[0])
    rig.report(0, 100)
    assert rig.page.commit == 100


def test_what_waits_to_be_committed_is_bounded() -> None:
    rig = three()
    rig.appender.append([object()])
    rig.log.written += UNCOMMITTED_BYTES_MAX
    with pytest.raises(Throttled):
        rig.appender.append([object()])


def test_closing_answers_what_is_not_committed_as_not_replicated() -> None:
    rig = three()
    rig.send()
    rig.appender.close("the broker stops")
    assert [type(answer) for answer in rig.answers] == [NotCommitted]


def test_a_failed_sync_answers_what_it_covered_before_the_log_is_mended() -> None:
    """What is written again may not be what was sent, as far as no CRC covers it."""
    rig = Rig(sync_flush=True)
    rig.connect(1, 0)
    rig.connect(2, 1)
    rig.send()
    rig.send()
    rig.tick()
    rig.log.answered = rig.answers
    rig.page.set_ack(0, 100)
    rig.page.set_ack(1, 100)
    rig.log.failed = "the disk refused a sync"
    rig.appender.log_failed()
    assert [type(answer) for answer in rig.answers] == [type(None), NotCommitted]  # two others hold the first
    assert "perhaps not on its disk" in str(rig.answers[1])
    assert rig.log.mended_with == [2]


def test_a_call_that_comes_late_finds_a_closed_appender_without_its_page() -> None:
    rig = three()
    rig.send()
    rig.tick()
    rig.appender.close("the broker changes its role")
    rig.page.close()
    rig.appender.complete_waiting()  # as from the flush thread
    assert len(rig.answers) == 1
    assert isinstance(rig.answers[0], WhimbrelError)


def five() -> Rig:
    rig = Rig(voters=(0, 1, 2, 3, 4))
    for member in range(1, 5):
        rig.connect(member, member - 1)
    return rig


def early(rig: Rig, copies: int) -> list[WhimbrelError | None]:
    """Send a message whose answer waits for so many members; return where the answer comes."""
    answers: list[WhimbrelError | None] = []
    place = rig.appender.append([object()])[-1]
    rig.appender.when_held(place.end, copies, answers.append)
    return answers


def test_a_topic_may_ask_for_an_answer_before_the_commit_and_nobody_sees_it_earlier() -> None:
    rig = five()
    written, one, two = early(rig, 0), early(rig, 1), early(rig, 2)
    assert (written, one, two) == ([None], [], [])
    rig.tick()
    rig.report(0, 200)
    assert (one, two, rig.page.commit) == ([None], [], 0)
    rig.report(1, 300)
    assert (two, rig.page.commit) == ([], 200)
    rig.report(2, 300)  # three of five: two besides the leader
    assert (two, rig.page.commit) == ([None], 300)


def test_more_copies_than_a_majority_are_not_waited_for() -> None:
    rig = five()
    answers = early(rig, 4)
    rig.tick()
    rig.report(0, 100)
    rig.report(1, 100)
    assert (answers, rig.page.commit) == ([None], 100)


def test_members_that_do_not_vote_are_no_copies_of_an_early_answer() -> None:
    rig = Rig(voters=(0, 1, 2, 3, 4))
    rig.connect(1, 0)
    rig.connect(2, 1)
    rig.connect(7, 2)
    answers = early(rig, 1)
    rig.tick()
    rig.report(2, 100)
    assert answers == []
    rig.report(0, 100)
    assert answers == [None]


@pytest.mark.parametrize("end", ["late", "closed", "failed"])
def test_an_early_answer_that_does_not_come_is_an_error(end: str) -> None:
    rig = Rig(voters=(0, 1, 2, 3, 4), sync_flush=True)
    for member in range(1, 5):
        rig.connect(member, member - 1)
    answers = early(rig, 1)
    assert rig.appender.waiting_count == 1
    rig.tick()
    if end == "late":
        rig.tick(3.2)
    elif end == "closed":
        rig.appender.close("the broker changes its role")
    else:
        rig.log.answered = answers
        rig.log.failed = "the disk refused a sync"
        rig.appender.log_failed()
        assert rig.log.mended_with == [1]  # it was answered before
    assert [type(answer) for answer in answers] == [NotCommitted]
    assert rig.appender.waiting_count == 0


def test_where_no_majority_commits_answers_are_those_of_the_settings() -> None:
    log, loop = FakeLog(), FakeLoop()
    page = SharedPage(mmap.mmap(-1, PAGE_BYTES))
    page.recovered(begin=0, written=0, flushed=0, file_size=1 << 30, pid=1)
    appender = Appender(log, page, Durability(sync_flush=True), loop, ring=lambda: None)
    appender.refusal = ""
    answers: list[WhimbrelError | None] = []
    appender.when_held(appender.append([object()])[-1].end, 0, answers.append)
    assert answers == []
    log.flushed = log.written
    appender.complete_waiting()
    assert answers == [None]
