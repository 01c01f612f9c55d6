"""What a member reports to its leader: what is on its disk, of the epoch that it has promised."""

from pathlib import Path

import pytest

from support.broker.consumption import FakeJournal
from whimbrel.broker.cluster.follower_state import FollowerState
from whimbrel.broker.consume.lease_codec import EntryEncoder
from whimbrel.broker.consume.lease_store import LeaseStore
from whimbrel.broker.tables.metadata_version import MetadataVersion, MetadataVersionFile
from whimbrel.errors import NotReady


class Rig:
    def __init__(self, root: Path) -> None:
        self.journal = FakeJournal()
        self.leases = LeaseStore(self.journal, broker_id=2, now_ms=lambda: 1_700_000_000_000)
        self.leases.open()
        self.file = MetadataVersionFile(root)
        self.epoch, self.news = 5, 0
        self.state = FollowerState(
            self.leases, self.file, promised=lambda: self.epoch, seat=lambda: "seat", tables=lambda: b""
        )
        assert self.state.begin(self.note) == 5

    def note(self) -> None:
        self.news += 1

    def take(self, offset: int, number: int) -> None:
        self.leases.merge(EntryEncoder("g", "t", 0).done(0, 0, offset))
        self.state.took(number)


def test_a_message_is_reported_once_it_is_on_the_disk(tmp_path: Path) -> None:
    rig = Rig(tmp_path)
    rig.take(3, 40)
    rig.take(4, 41)
    assert rig.state.report() == (0, 0)
    rig.journal.synced = 2
    assert rig.state.report() == (40, 0)
    rig.journal.synced = 3
    assert rig.state.report() == (41, 0)
    assert rig.state.report() == (0, 0)


def test_what_was_known_already_waits_for_its_own_sync(tmp_path: Path) -> None:
    """A leader sends it again; what was written then may not be on the disk yet."""
    rig = Rig(tmp_path)
    rig.take(3, 40)
    rig.state.begin(rig.note)
    rig.take(3, 7)
    assert rig.state.report() == (0, 0)
    rig.journal.synced = 2
    assert rig.state.report() == (7, 0)


def test_nothing_is_reported_while_a_change_is_in_memory_only(tmp_path: Path) -> None:
    rig = Rig(tmp_path)
    rig.journal.full = True
    rig.take(3, 40)
    rig.journal.full = False
    rig.take(4, 41)
    rig.journal.synced = rig.journal.appended
    assert rig.state.report() == (0, 0)
    rig.leases.beat()  # a journal that can write all anew does
    rig.journal.synced = rig.journal.appended
    assert rig.state.report() == (0, 0)  # this one can't


def test_another_promise_ends_the_stream(tmp_path: Path) -> None:
    rig = Rig(tmp_path)
    rig.take(3, 40)
    rig.journal.synced = 2
    rig.epoch = 6
    with pytest.raises(NotReady, match="another epoch is promised"):
        rig.state.report()


def test_metadata_is_reported_with_its_version_on_the_disk(tmp_path: Path) -> None:
    rig = Rig(tmp_path)
    rig.state.check(MetadataVersion(5, 3))
    rig.state.applied(MetadataVersion(5, 3))
    assert MetadataVersionFile(tmp_path).version == MetadataVersion(5, 3)
    assert rig.state.report() == (0, 3)
    assert rig.state.report() == (0, 0)
    rig.state.begin(rig.note)
    assert rig.state.report() == (0, 3)  # a new stream knows nothing


def test_metadata_of_a_leader_that_is_followed_no_more_is_refused(tmp_path: Path) -> None:
    """Else it would come over newer tables, which this member has reported."""
    rig = Rig(tmp_path)
    with pytest.raises(NotReady, match="epoch 4"):
        rig.state.check(MetadataVersion(4, 9))


def test_versions_of_other_epochs_are_not_this_leaders(tmp_path: Path) -> None:
    rig = Rig(tmp_path)
    rig.file.save(MetadataVersion(4, 9))
    assert rig.state.report() == (0, 0)


def test_what_was_lost_is_there_again_with_all_that_a_leader_has_begun_with(tmp_path: Path) -> None:
    rig = Rig(tmp_path)
    rig.file.save(MetadataVersion(4, 1))
    rig.file.lose_leases("damage")
    rig.file.forget()
    rig.take(3, 40)
    rig.journal.synced = 2
    rig.state.synced()
    assert rig.file.lost == {"leases", "tables"}, "its leader may still lack some itself"
    rig.leases.merge(EntryEncoder("g", "t", 0).done(0, 0, 4))
    rig.state.took(41, begun=True)
    assert rig.file.lost == {"leases", "tables"}, "it is not on the disk"
    rig.journal.synced = 3
    rig.state.synced()
    assert rig.file.lost == {"tables"}
    rig.state.applied(MetadataVersion(5, 1))
    assert not rig.file.lost
    assert not MetadataVersionFile(tmp_path).lost
