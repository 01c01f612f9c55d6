"""Commits and resets of clients that own their positions. "6.1/27" is a statement of the checklist."""

import pytest

from support.broker.consumption import Rig, offsets
from whimbrel.broker.consume import client_positions
from whimbrel.broker.consume.client_positions import REDIRECT_S, UNHEARD_S, ClientPositions
from whimbrel.errors import IllegalOffset


class Commits:
    """Group g on topic t, whose queue 0 has ten messages."""

    def __init__(self) -> None:
        self.rig = Rig()
        for _ in range(10):
            self.rig.store.put("t", 0)
        self.positions = self.made()

    def made(self) -> ClientPositions:
        return ClientPositions(self.rig.consumption.positions, monotonic=lambda: self.rig.clock.now / 1000)

    def commit(self, offset: int, *, owned: bool = True) -> int | None:
        self.positions.commit("g", "t", 0, offset, owned=owned)
        return self.position

    @property
    def position(self) -> int | None:
        return self.positions.get("g", "t", 0)

    def redirect(self, offset: int) -> int | None:
        return self.positions.redirect("g", "t", 0, offset)


@pytest.fixture
def commits() -> Commits:
    return Commits()


def test_a_group_has_no_position_until_one_is_committed(commits: Commits) -> None:
    assert commits.position is None
    assert commits.commit(0) == 0, "the beginning is one, too"
    assert commits.commit(4) == 4


def test_6_1_27_what_lies_beyond_the_end_is_the_end(commits: Commits) -> None:
    assert commits.commit(11) == 10
    assert commits.commit(1 << 62) == 10


def test_what_is_negative_is_the_beginning(commits: Commits) -> None:
    assert commits.commit(-1) == 0


def test_6_1_27_a_members_commit_moves_nothing_back(commits: Commits) -> None:
    commits.commit(7)
    assert commits.commit(3) == 7
    assert commits.commit(7) == 7


def test_6_1_27_without_members_it_does(commits: Commits) -> None:
    commits.commit(7)
    assert commits.commit(3, owned=False) == 3


def test_before_members_can_have_told_that_they_live_it_does_not(commits: Commits) -> None:
    """F7: a late commit at a broker that has just taken over."""
    commits.commit(7)
    commits.positions = commits.made()  # of the next role
    assert commits.commit(3, owned=False) == 7
    assert commits.commit(8, owned=False) == 8
    commits.rig.clock.now += int(UNHEARD_S * 1000) - 1
    assert commits.commit(3, owned=False) == 8
    commits.rig.clock.now += 1
    assert commits.commit(3, owned=False) == 3
    assert offsets(commits.rig.take())[0] == 3, "receives go on from there as well"


def test_what_comes_from_another_broker_meanwhile_counts_as_taken_over(commits: Commits) -> None:
    """F7: a leader may have had no positions when it began."""
    commits.rig.consumption.positions.update_offset("g", "t", 0, 7)
    assert commits.commit(8, owned=False) == 8
    assert commits.commit(5, owned=False) == 8


def test_a_commit_further_back_than_what_is_kept_goes_to_the_first_message(commits: Commits) -> None:
    commits.commit(7)
    commits.rig.store.minima["t", 0] = 5
    assert commits.commit(3, owned=False) == 5


def test_6_1_28_a_commit_is_seen_by_receives_and_an_acknowledgement_by_clients(commits: Commits) -> None:
    commits.commit(4)
    taken = commits.rig.take()
    assert offsets(taken) == [4, 5, 6, 7, 8, 9]
    commits.rig.ack(*taken[:2])
    assert commits.position == 6
    commits.commit(8)
    assert [error is None for error in commits.rig.ack(*taken[2:4])] == [True, True], "done already"
    assert commits.position == 8


def test_after_a_reset_clients_are_sent_there_and_their_old_commits_have_no_effect(commits: Commits) -> None:
    commits.commit(8)
    commits.rig.consumption.positions.reset_offset("g", "t", 0, 2)
    assert commits.position == 2
    assert commits.commit(9) == 2, "where the client had read on to"
    assert commits.redirect(9) == 2
    assert commits.commit(2) == 2
    assert commits.redirect(9) == 2, "another member's pull"
    assert commits.redirect(2) is None
    assert commits.redirect(9) is None and commits.commit(5) == 5


def test_a_reset_forward_is_followed_as_well(commits: Commits) -> None:
    commits.commit(1)
    commits.rig.consumption.positions.reset_offset("g", "t", 0, 10)
    assert commits.commit(3) == 10 and commits.redirect(3) == 10


def test_a_redirection_ends_when_the_position_moves_otherwise(commits: Commits) -> None:
    commits.commit(8)
    commits.rig.consumption.positions.reset_offset("g", "t", 0, 2)
    commits.rig.ack(*commits.rig.take()[:1])
    assert commits.position == 3
    assert commits.redirect(9) is None and commits.commit(5) == 5


def test_a_tool_that_commits_is_listened_to_after_a_reset(commits: Commits) -> None:
    commits.commit(8)
    assert commits.commit(2, owned=False) == 2
    assert commits.commit(9) == 2, "a member that has not followed"
    assert commits.commit(5, owned=False) == 5
    assert commits.commit(6) == 6


def test_a_redirection_ends_after_a_while(commits: Commits) -> None:
    commits.commit(8)
    commits.rig.consumption.positions.reset_offset("g", "t", 0, 2)
    commits.rig.clock.advance(int(REDIRECT_S * 1000))
    assert commits.redirect(9) == 2
    commits.rig.clock.advance(1)
    assert commits.redirect(9) is None


def test_a_reset_outside_the_queue_is_refused(commits: Commits) -> None:
    commits.commit(8)
    with pytest.raises(IllegalOffset):
        commits.rig.consumption.positions.reset_offset("g", "t", 0, 11)
    assert commits.position == 8 and commits.redirect(8) is None


def test_redirections_are_bounded(commits: Commits, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client_positions, "REDIRECTED_MAX", 1)
    commits.rig.store.put("t", 1)
    commits.rig.consumption.positions.reset_offset("g", "t", 0, 2)
    commits.rig.consumption.positions.reset_offset("g", "t", 0, 3)
    assert list(commits.positions.redirected) == [("g", "t", 0)] and commits.redirect(9) == 3
    commits.rig.consumption.positions.reset_offset("g", "t", 1, 1)
    assert list(commits.positions.redirected) == [("g", "t", 1)]
