"""When a master begins to lead, and what stops its writes."""

import pytest

from whimbrel.broker.cluster.leadership import LIVE_WAIT_S, MERGE_WAIT_S, Leadership
from whimbrel.broker.cluster.write_admission import AHEAD_HOLD_S, WriteAdmission
from whimbrel.model.registration import Member

START = 100.0


def slave(log_end: int = 0, broker_id: int = 1) -> Member:
    return Member(broker_id=broker_id, address="10.0.0.1:1", ha_address="", log_begin=0, log_end=log_end)


class Rig:
    """A master with a log of 500 bytes, and how its slaves have told."""

    def __init__(self, *, expected: int = 0, nameservers: int = 1) -> None:
        self.told = self.changes = 0
        self.log_end = 500
        admission = WriteAdmission(name="a", expected_slaves=expected, nameservers=nameservers, first_end=500)
        self.leading = Leadership(
            admission,
            name="a",
            expected_slaves=expected,
            log_end=lambda: self.log_end,
            merged=lambda: self.told,
            on_change=self.changed,
        )
        self.leading.begin(START)

    def changed(self) -> None:
        self.changes += 1

    def members_changed(self, *members: Member, now: float = START, settled: bool = True) -> None:
        self.leading.members_changed("ns", members, settled=settled, now=now)

    @property
    def writes(self) -> bool:
        return not self.leading.refusal


def test_a_master_without_nameservers_and_slaves_leads_at_once() -> None:
    rig = Rig(nameservers=0)
    assert rig.leading.leads and rig.writes and rig.changes


def test_a_master_leads_once_a_nameserver_knows_its_group_and_nobody_is_expected() -> None:
    rig = Rig()
    assert not rig.leading.leads
    rig.members_changed(settled=False)
    assert not rig.leading.leads
    rig.members_changed()
    assert rig.leading.leads and rig.writes


def test_a_slave_that_is_alive_is_waited_for_until_it_has_told() -> None:
    rig = Rig(expected=1)
    rig.members_changed(slave(500))
    assert not rig.leading.leads and "not told yet" in rig.leading.refusal
    rig.leading.refresh(START + LIVE_WAIT_S - 0.1)
    assert not rig.leading.leads
    rig.told = 1
    rig.leading.refresh(START + LIVE_WAIT_S - 0.1)
    assert rig.leading.leads and rig.writes


def test_a_slave_that_is_alive_and_silent_does_not_stop_the_group_for_good() -> None:
    rig = Rig(expected=1)
    rig.members_changed(slave(500))
    rig.leading.refresh(START + LIVE_WAIT_S)
    assert rig.leading.leads and rig.writes


def test_a_configured_slave_that_is_not_there_is_waited_for_a_shorter_time() -> None:
    rig = Rig(expected=1)
    rig.members_changed()
    rig.leading.refresh(START + MERGE_WAIT_S - 0.1)
    assert not rig.leading.leads
    rig.leading.refresh(START + MERGE_WAIT_S)
    assert rig.leading.leads


def test_a_slave_ahead_keeps_a_master_that_leads_from_writing() -> None:
    rig = Rig()
    rig.members_changed()
    rig.members_changed(slave(501))
    assert rig.leading.leads and not rig.writes and not rig.leading.authoritative
    assert "byte 501" in rig.leading.refusal


HOURS = 5 * 3600.0


def claim(rig: Rig, how: str, log_end: int, now: float) -> None:
    """Let a slave claim a log in one of the three ways."""
    if how == "registered":
        rig.members_changed(slave(log_end, 9), now=now)
    elif how == "lease stream":
        rig.leading.slave_reported("stream", slave(log_end, 9), now=now)
    else:
        rig.leading.slave_refused("10.0.0.9", log_end, now=now)


WAYS = pytest.mark.parametrize("how", ["registered", "lease stream", "replicator"])


@WAYS
def test_a_longer_log_stops_nobody_who_has_written_in_this_term(
    how: str, caplog: pytest.LogCaptureFixture
) -> None:
    rig = Rig()
    rig.members_changed()
    rig.log_end += 1
    claim(rig, how, 900, START + HOURS)
    rig.leading.refresh(START + HOURS + 1)
    assert rig.writes and rig.leading.authoritative
    if how != "replicator":  # which logs it itself
        claim(rig, how, 900, START + HOURS + 2)
        said = [line for line in caplog.messages if "that is another log" in line]
        assert len(said) == 1 and "slave 9 at 10.0.0.1:1" in said[0] and "byte 900" in said[0]


@WAYS
def test_a_longer_log_stops_a_master_at_any_time_before_its_first_write(how: str) -> None:
    rig = Rig()
    rig.members_changed()
    claim(rig, how, 900, START + HOURS)
    assert not rig.writes
    rig.members_changed(now=START + HOURS)
    rig.leading.slave_reported("stream", None, now=START + HOURS)
    rig.leading.refresh(START + HOURS + AHEAD_HOLD_S - 0.1)
    assert not rig.writes
    rig.leading.refresh(START + HOURS + AHEAD_HOLD_S)
    assert rig.writes


@WAYS
def test_what_is_no_logs_end_stops_nobody(how: str) -> None:
    rig = Rig()
    rig.members_changed()
    claim(rig, how, 1 << 61, START + 1)
    assert rig.writes


def test_a_displaced_master_writes_again_once_no_nameserver_names_another() -> None:
    rig = Rig()
    rig.members_changed()
    rig.leading.displaced("ns", "10.0.0.7:8091")
    assert "10.0.0.7:8091" in rig.leading.refusal
    rig.leading.displaced("other", "10.0.0.7:8091")
    rig.leading.displaced("ns", "")
    assert not rig.writes
    rig.leading.displaced("other", "")
    assert rig.writes


def test_a_stopped_master_vouches_for_nothing_any_more() -> None:
    rig = Rig(nameservers=0)
    assert rig.leading.settled and rig.leading.authoritative
    rig.leading.stop()
    assert not rig.leading.settled and not rig.leading.authoritative


def test_a_stopping_broker_does_not_become_writable() -> None:
    rig = Rig()
    rig.leading.stop()
    rig.members_changed()
    rig.leading.refresh(START + 60)
    assert not rig.leading.leads and not rig.writes
