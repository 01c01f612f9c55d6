"""When a leader that was elected may lead, and with which tables."""

from pathlib import Path

import pytest

from whimbrel.broker.cluster import leader_state
from whimbrel.broker.cluster.leader_state import LeaderState, MemberStream
from whimbrel.broker.tables.metadata_version import MetadataVersion, MetadataVersionFile
from whimbrel.errors import BadRequest, NotReady, StoreFull
from whimbrel.model.group_record import GroupRecord, Voters

GROUP = "0" * 31 + "1"
NEVER = MetadataVersion()


def seat(member: int) -> str:
    return f"{member:032x}"


def voters(*members: int) -> Voters:
    return tuple((member, seat(member)) for member in members)


class Rig:
    """Member 1 leads epoch 5; its tables are those of epoch 3, its third change."""

    def __init__(self, root: Path, *, prior: Voters = (), members: tuple[int, ...] = (1, 2, 3)) -> None:
        self.taken: list[bytes] = []
        self.news = 0
        self.durable = 7
        self.file = MetadataVersionFile(root)
        self.file.save(MetadataVersion(3, 3))
        term = GroupRecord(
            group=GROUP, epoch=5, leader=1, voters=voters(*members), acks=len(members) // 2 + 1,
            prior=prior, prior_acks=len(prior) // 2 + 1 if prior else 0,
        )  # fmt: skip
        self.state = LeaderState(
            term, 1, seat(1), leases=lambda: 7, leases_durable=lambda: self.durable, file=self.file,
            take_tables=self.taken.append, clock=lambda: 0.0, timeout_s=3.0, on_change=self.changed,
        )  # fmt: skip

    def changed(self) -> None:
        self.news += 1

    def hello(
        self, member: int, version: MetadataVersion = NEVER, *, of: str = "", epoch: int = 5
    ) -> MemberStream:
        return self.state.hello(member, of or seat(member), epoch, version)

    def merged(self, member: int) -> MemberStream:
        stream = self.hello(member)
        self.state.heard(stream, leases_done=True)
        return stream


def test_a_leader_waits_for_as_many_as_meet_every_majority(tmp_path: Path) -> None:
    rig = Rig(tmp_path)
    assert "too few members have told what was acknowledged there: 1. 2 of 3" in rig.state.missing()
    rig.merged(3)
    assert not rig.state.missing() and rig.news == 1


def test_half_a_state_is_none(tmp_path: Path) -> None:
    rig = Rig(tmp_path)
    stream = rig.hello(3)
    rig.state.heard(stream, leases_done=False)
    assert rig.state.missing()
    rig.state.gone(stream)
    assert rig.state.missing()


def test_what_a_member_has_handed_over_counts_after_it_is_gone(tmp_path: Path) -> None:
    rig = Rig(tmp_path)
    rig.state.gone(rig.merged(3))
    assert not rig.state.missing()


def test_five_need_three(tmp_path: Path) -> None:
    rig = Rig(tmp_path, members=(1, 2, 3, 4, 5))
    rig.merged(4)
    assert rig.state.missing()
    rig.merged(2)
    assert not rig.state.missing()


def test_who_has_promised_another_epoch_is_refused(tmp_path: Path) -> None:
    """Q1: it may go on to report to that one's leader, after it has handed its state over here."""
    rig = Rig(tmp_path)
    for epoch in (4, 6):
        with pytest.raises(NotReady, match=f"leads epoch 5, that one has promised {epoch}"):
            rig.hello(2, epoch=epoch)
    assert rig.state.missing()


def test_a_member_of_an_earlier_version_follows_and_does_not_count(tmp_path: Path) -> None:
    rig = Rig(tmp_path)
    stream = rig.hello(2, epoch=0)
    rig.state.heard(stream, leases_done=True, stored=7)
    assert "of an earlier version, to be upgraded: 2" in rig.state.missing()
    assert "earlier version" in rig.state.trouble
    rig.merged(2)
    assert not rig.state.missing() and not rig.state.trouble


def test_another_store_of_a_voter_does_not_count(tmp_path: Path) -> None:
    """R9a: what the voter had stored is gone with its disk."""
    rig = Rig(tmp_path)
    stream = rig.hello(2, of=seat(99))
    rig.state.heard(stream, leases_done=True, stored=7)
    assert rig.state.missing() and not rig.state.leases.reached


def test_prior_voters_hand_over_as_well_and_do_not_store(tmp_path: Path) -> None:
    rig = Rig(tmp_path, prior=voters(1, 8, 9))
    rig.merged(2)
    assert rig.state.missing()
    stream = rig.merged(8)
    assert not rig.state.missing()
    rig.state.heard(stream, leases_done=True, stored=7)
    assert not rig.state.leases.reached


def test_the_newest_tables_win_by_epoch_first(tmp_path: Path) -> None:
    """A leader that is lost has counted on to 9, and its successor has changed less since."""
    rig = Rig(tmp_path)
    late, new = rig.hello(2, MetadataVersion(2, 9)), rig.hello(3, MetadataVersion(4, 1))
    rig.state.heard(late, leases_done=True)
    rig.state.take_piece(new, b"tables of ", done=False)
    rig.state.take_piece(new, b"epoch 4", done=True)
    rig.state.heard(new, leases_done=False)
    assert rig.taken == [b"tables of epoch 4"]
    assert rig.file.version == MetadataVersion(4, 1)
    assert rig.state.merged == {(1, seat(1)), (2, seat(2))}


def test_a_member_with_newer_tables_has_handed_nothing_over_without_them(tmp_path: Path) -> None:
    rig = Rig(tmp_path)
    stream = rig.hello(3, MetadataVersion(3, 4))
    rig.state.heard(stream, leases_done=True)
    assert rig.state.missing()
    rig.state.take_piece(stream, b"tables", done=True)
    rig.state.heard(stream, leases_done=True)
    assert not rig.state.missing()


def test_older_tables_are_left(tmp_path: Path) -> None:
    rig = Rig(tmp_path)
    rig.state.take_piece(rig.hello(3, MetadataVersion(3, 2)), b"older", done=True)
    assert not rig.taken and rig.file.version == MetadataVersion(3, 3)


def test_tables_come_too_late_once_a_leader_has_begun(tmp_path: Path) -> None:
    """Q5: nobody was told of what a majority had not, and others build on its absence."""
    rig = Rig(tmp_path)
    rig.merged(2)
    rig.state.begin()
    stream = rig.hello(3, MetadataVersion(4, 7))
    rig.state.take_piece(stream, b"too late", done=True)
    assert not rig.taken and rig.file.version == MetadataVersion(5, 1)


def test_tables_have_a_bound(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(leader_state, "TABLES_BYTES_MAX", 4)
    rig = Rig(tmp_path)
    with pytest.raises(BadRequest, match="more than 4 bytes"):
        rig.state.take_piece(rig.hello(3, MetadataVersion(4, 7)), b"large", done=False)


def test_of_strangers_nothing_is_kept(tmp_path: Path) -> None:
    rig = Rig(tmp_path)
    stream = rig.hello(2, MetadataVersion(9, 9), of=seat(99))
    rig.state.take_piece(stream, b"tables", done=False)
    rig.state.take_piece(stream, b"", done=True)
    assert not stream.tables and not rig.taken
    rig.hello(40, epoch=0)
    assert not rig.state.earlier and not rig.state.trouble


def test_changes_are_taken_once_a_majority_has_what_the_leader_began_with(tmp_path: Path) -> None:
    rig = Rig(tmp_path)
    stream = rig.merged(2)
    rig.state.begin()
    assert "1 of the 2 members that a majority takes have stored" in rig.state.unstored()
    rig.state.heard(stream, leases_done=True, metadata_stored=1)
    assert not rig.state.unstored()


def test_a_change_is_on_our_disk_under_the_leaders_epoch(tmp_path: Path) -> None:
    rig = Rig(tmp_path)
    rig.state.begin()
    rig.state.changed()
    assert MetadataVersionFile(tmp_path).version == MetadataVersion(5, 2)
    assert rig.state.metadata.behind


def test_a_full_disk_is_asked_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rig = Rig(tmp_path)
    rig.state.begin()
    save = rig.file.save

    def refuse(_: MetadataVersion) -> None:
        raise StoreFull("no room")

    monkeypatch.setattr(rig.file, "save", refuse)
    rig.state.changed()
    rig.state.metadata.stored(2, 2)
    assert rig.state.metadata.reached == 1  # ours is one of two copies, and is not there
    monkeypatch.setattr(rig.file, "save", save)
    rig.state.beat()
    assert rig.state.metadata.reached == 2


def test_who_holds_all_is_told_for_changes_of_voters(tmp_path: Path) -> None:
    rig = Rig(tmp_path)
    streams = [rig.merged(2), rig.merged(3)]
    assert not rig.state.holders()
    rig.state.begin()
    rig.state.heard(streams[0], leases_done=True, stored=7, metadata_stored=1)
    rig.state.heard(streams[1], leases_done=True, metadata_stored=1)
    assert rig.state.holders() == {2}


def test_a_leader_that_has_not_written_its_own_state_down_has_no_holders(tmp_path: Path) -> None:
    """Q8a: the prior voters would be forgotten, and with its power the only copy that an election meets."""
    rig = Rig(tmp_path, prior=voters(1, 8, 9))
    rig.durable = 6
    stream = rig.merged(2)
    rig.merged(8)
    rig.state.begin()
    rig.state.heard(stream, leases_done=True, stored=7, metadata_stored=1)
    assert not rig.state.holders()
    rig.durable = 7
    assert rig.state.holders() == {2}


def test_a_member_has_one_stream(tmp_path: Path) -> None:
    """R11: what an older one says after the newer one has come is about a state before."""
    rig = Rig(tmp_path)
    old = rig.hello(2)
    rig.hello(2)
    rig.state.heard(old, leases_done=True, stored=7)
    assert rig.state.missing() and not rig.state.leases.reached
    rig.state.gone(old)
    assert 2 in rig.state.streams


def test_who_may_have_lost_what_it_had_stored_does_not_count_and_is_merged(tmp_path: Path) -> None:
    """Kind 1: two of three had stored an answer; of these one has lost it, and the other one is away."""
    rig = Rig(tmp_path)
    stream = rig.state.hello(2, seat(2), 5, NEVER, lost=True)
    rig.state.heard(stream, leases_done=True)
    assert "have told what was acknowledged there: 1." in rig.state.missing()
    rig.merged(3)
    assert not rig.state.missing()


def test_a_leader_that_may_have_lost_something_needs_all_others_and_has_all_then(tmp_path: Path) -> None:
    file = MetadataVersionFile(tmp_path)
    file.save(MetadataVersion(3, 3))
    file.lose_leases("damage")
    rig = Rig(tmp_path)
    rig.merged(2)
    assert rig.state.missing()
    rig.merged(3)
    assert not rig.state.missing()
    rig.state.begin()
    rig.durable = 6
    rig.state.beat()
    assert rig.file.lost, "what it has taken over is not on its disk"
    rig.durable = 7
    rig.state.beat()
    assert not MetadataVersionFile(tmp_path).lost


def test_where_a_loss_is_accepted_what_there_is_counts(tmp_path: Path) -> None:
    file = MetadataVersionFile(tmp_path)
    file.save(MetadataVersion(3, 3))
    file.lose_leases("damage")
    term = GroupRecord(group=GROUP, epoch=5, leader=1, voters=voters(1), acks=1, loss=5)
    state = LeaderState(
        term, 1, seat(1), leases=lambda: 7, leases_durable=lambda: 7, file=MetadataVersionFile(tmp_path),
        take_tables=lambda _: None, clock=lambda: 0.0, timeout_s=3.0, on_change=lambda: None,
    )  # fmt: skip
    assert term.waives
    assert not state.missing()
