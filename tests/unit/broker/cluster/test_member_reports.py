"""What followers tell their leader of themselves."""

from dataclasses import replace

from whimbrel.broker.cluster.agreement import settings_text
from whimbrel.broker.cluster.member_reports import TROUBLE_CHARS_MAX, MemberReport, MemberReports
from whimbrel.broker.options import BrokerOptions
from whimbrel.store.options import Retention
from whimbrel.store.page_cells import SLAVES_MAX

OURS = settings_text(BrokerOptions(store="s"), 1 << 20)
FULL = MemberReport(trouble="replication waits for disk space", settings=OURS)


def test_a_member_stalls_until_its_log_has_come_further_or_it_says_that_it_does_not() -> None:
    reports = MemberReports(OURS)
    assert not reports.stalls(2, 100, 200)
    reports.take(2, FULL, end=100)
    assert reports.stalls(2, 100, 200)
    assert reports.why() == "member 2: replication waits for disk space"
    assert not reports.stalls(2, 101, 200), "it takes more after all"
    assert not reports.stalls(2, 100, 100), "it has all: whoever says otherwise does nothing"
    assert not reports.stalls(3, 100, 200)
    reports.take(2, MemberReport(settings=OURS), end=100)
    assert not reports.stalls(2, 100, 200)
    assert not reports.why()


def test_settings_that_differ_are_told_until_they_do_not() -> None:
    reports = MemberReports(OURS)
    shorter = settings_text(replace(BrokerOptions(store="s"), reserved_hours=24.0), 1 << 20)
    reports.take(2, MemberReport(settings=OURS), 0)
    reports.take(3, MemberReport(settings=shorter), 0)
    (said,) = reports.unequal()
    assert said.startswith("member 3 has other settings: reserved_hours is 24.0")
    assert Retention(24.0, 0.75, 0.85) in reports.retentions()
    reports.take(3, MemberReport(settings=OURS), 0)
    assert not reports.unequal()


def test_what_strangers_can_have_kept_is_bounded() -> None:
    reports = MemberReports(OURS)
    for member in range(1, 60):
        reports.take(member, MemberReport(trouble="\x1b[31m" + "x" * 5000), 0)
    assert len(reports.settings) == len(reports.stalled) == SLAVES_MAX
    assert max(len(text) for text, _ in reports.stalled.values()) < 4 * TROUBLE_CHARS_MAX
    assert "\x1b" not in reports.why()
