"""What a slave keeps because its master does."""

from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

from whimbrel.broker.cluster.kept_log import KeptLog
from whimbrel.ha.switching import DIALECT
from whimbrel.replicator.follower import Follower
from whimbrel.store.page_elections import NOT_TOLD
from whimbrel.store.shared_page import SharedPage


class Slave:
    def __init__(self, page: SharedPage) -> None:
        self.page, self.end, self.master_ha = page, 1000, ""
        self.kept = KeptLog(page, lambda: self.end)

    def removes_below(self, wanted: int, *, elects: bool) -> int:
        """Return up to where its replicator removes files, all of whose log is committed."""
        self.page.heard_commit = self.end
        self.page.ha_dialect = DIALECT if elects else 0
        replicator = SimpleNamespace(
            page=self.page,
            promises=object() if elects else None,
            options=SimpleNamespace(master_ha=self.master_ha),
        )
        return Follower.before_removal(replicator, wanted)  # type: ignore[arg-type]


@pytest.fixture
def slave(tmp_path: Path) -> Iterator[Slave]:
    page = SharedPage.open(tmp_path)
    page.leader_begin = 777  # of an earlier master
    yield Slave(page)
    page.close()


def test_before_anything_is_told_nothing_is_removed_but_below_rocketmqs_master(slave: Slave) -> None:
    assert slave.removes_below(900, elects=True) == slave.removes_below(900, elects=False) == 0
    slave.master_ha = "rocketmq:10912"
    assert slave.removes_below(900, elects=False) == 900


@pytest.mark.parametrize("elects", [True, False])
def test_a_master_whose_log_begins_at_0_has_told_as_well(slave: Slave, elects: bool) -> None:
    slave.master_ha = "" if elects else "whimbrel:10912"
    slave.kept.learn((0, 1000))
    assert slave.removes_below(900, elects=elects) == 0


@pytest.mark.parametrize("elects", [True, False])
def test_it_keeps_what_its_master_keeps(slave: Slave, elects: bool) -> None:
    slave.kept.learn((500, 1000))
    assert slave.removes_below(900, elects=elects) == 500
    assert slave.removes_below(400, elects=elects) == 400


def test_a_begin_counts_once_the_log_has_come_to_where_the_masters_ended_then(slave: Slave) -> None:
    slave.kept.learn((100, 1000))
    slave.kept.learn((500, 1200))
    assert slave.removes_below(900, elects=True) == 100
    slave.end = 1100
    slave.kept.learn((500, 1300))  # what was told first holds: the master's end goes on and on
    slave.end = 1200
    slave.kept.look()
    assert slave.removes_below(900, elects=True) == 500


def test_another_master_that_keeps_more_is_heard_at_once(slave: Slave) -> None:
    slave.kept.learn((500, 1000))
    slave.kept.learn((800, 2000))
    slave.kept.learn((200, 3000))
    assert slave.removes_below(900, elects=True) == 200
    slave.end = 2500
    slave.kept.look()
    assert slave.removes_below(900, elects=True) == 200


def test_below_a_master_of_an_earlier_version_only_its_own_settings_count(slave: Slave) -> None:
    slave.kept.learn((500, 2000))
    slave.kept.learn(None)
    slave.end = 2000
    slave.kept.look()
    assert slave.page.leader_begin == NOT_TOLD
    assert slave.removes_below(900, elects=True) == slave.removes_below(900, elects=False) == 900


def test_nothing_is_removed_that_is_not_committed(slave: Slave) -> None:
    slave.kept.learn((900, 1000))
    slave.end = 600
    assert slave.removes_below(900, elects=True) == 600
    assert slave.removes_below(900, elects=False) == 900, "nobody commits"
