"""When a master may write."""

from whimbrel.broker.cluster.write_admission import AHEAD_HOLD_S, WriteAdmission
from whimbrel.model.registration import Member


def _member(broker_id: int, log_end: int) -> Member:
    return Member(
        broker_id=broker_id, address=f"10.0.0.{broker_id}:1", ha_address="", log_begin=0, log_end=log_end
    )


def _master(*, expected: int = 0, nameservers: int = 1) -> WriteAdmission:
    return WriteAdmission(name="a", expected_slaves=expected, nameservers=nameservers, first_end=100)


def test_master_is_unsettled_until_a_nameserver_knows_its_group() -> None:
    admission = _master()
    assert "no nameserver has confirmed" in admission.refusal
    assert not admission.members_changed(settled=False, members=[], log_end=0, now=0.0)
    assert admission.refusal
    assert admission.members_changed(settled=True, members=[], log_end=0, now=0.0)
    assert admission.refusal == "" and admission.authoritative


def test_expected_slaves_settle_a_master_before_the_renewal_period() -> None:
    admission = _master(expected=2)
    admission.members_changed(settled=False, members=[_member(1, 0)], log_end=0, now=0.0)
    assert not admission.settled
    admission.members_changed(settled=False, members=[_member(1, 0), _member(2, 0)], log_end=0, now=0.0)
    assert admission.settled


def test_master_stays_settled_when_a_young_nameserver_answers() -> None:
    admission = _master()
    admission.members_changed(settled=True, members=[], log_end=0, now=0.0)
    admission.members_changed(settled=False, members=[], log_end=0, now=0.0)
    assert admission.settled


def test_slave_ahead_stops_writes_until_it_is_gone_for_good() -> None:
    admission = _master()
    admission.members_changed(settled=True, members=[_member(1, 100)], log_end=100, now=0.0)
    assert admission.refusal == ""
    assert admission.members_changed(
        settled=True, members=[_member(1, 101), _member(2, 300)], log_end=100, now=0.0
    )
    assert "slave 2 at 10.0.0.2:1" in admission.refusal and "byte 300" in admission.refusal
    assert "only up to 100" in admission.refusal and not admission.authoritative
    # It may be restarting.
    assert not admission.members_changed(settled=True, members=[], log_end=100, now=1.0)
    assert not admission.refresh(log_end=100, now=AHEAD_HOLD_S - 0.1)
    assert admission.refusal
    assert admission.refresh(log_end=100, now=AHEAD_HOLD_S)
    assert admission.refusal == ""


def test_slave_that_was_ahead_and_comes_back_with_less_stops_nothing() -> None:
    admission = _master()
    admission.members_changed(settled=True, members=[_member(1, 300)], log_end=100, now=0.0)
    admission.members_changed(settled=True, members=[], log_end=100, now=1.0)
    assert not admission.slave_reported("other", _member(2, 100), log_end=100, now=2.0)
    assert admission.refusal
    assert admission.slave_reported("stream", _member(1, 100), log_end=100, now=2.0)
    assert admission.refusal == ""


def test_replicator_that_was_refused_stops_writes_for_as_long_as_it_comes_back() -> None:
    admission = _master()
    admission.members_changed(settled=True, members=[], log_end=100, now=0.0)
    assert admission.slave_refused("10.0.0.9", 150, log_end=100, now=1.0)
    assert "a slave's replicator at 10.0.0.9 holds the log of a up to byte 150" in admission.refusal
    assert not admission.slave_refused("10.0.0.9", 150, log_end=100, now=9.0)
    assert not admission.refresh(log_end=100, now=9.0 + AHEAD_HOLD_S - 0.1)
    assert admission.refresh(log_end=100, now=9.0 + AHEAD_HOLD_S)
    assert admission.refusal == ""


def test_slave_known_by_its_broker_is_not_shown_as_a_replicator() -> None:
    admission = _master()
    admission.members_changed(settled=True, members=[_member(1, 150)], log_end=100, now=0.0)
    admission.slave_refused("10.0.0.1", 150, log_end=100, now=1.0)
    assert "slave 1" in admission.refusal


def test_stray_bytes_on_the_replication_port_stop_no_writes() -> None:
    admission = _master()
    admission.members_changed(settled=True, members=[], log_end=100, now=0.0)
    for stray in (b"GET / HT", b"SSH-2.0-", b"\x16\x03\x01\x02\x00\x01\x00\x01"):
        assert not admission.slave_refused("10.0.0.9", int.from_bytes(stray, "big"), log_end=100, now=1.0)
    assert admission.refusal == ""


def test_another_master_is_no_slave() -> None:
    admission = _master()
    admission.members_changed(settled=True, members=[_member(0, 500)], log_end=100, now=0.0)
    assert admission.refusal == ""


def test_master_without_nameservers_has_nobody_to_ask() -> None:
    assert _master(nameservers=0).refusal == ""


def test_slaves_own_word_counts_while_it_is_connected() -> None:
    admission = _master()
    admission.members_changed(
        settled=True, members=[_member(1, 0)], log_end=100, now=0.0
    )  # as of its last renewal
    assert admission.slave_reported("stream", _member(1, 150), log_end=100, now=0.0)
    assert "byte 150" in admission.refusal
    admission.members_changed(settled=True, members=[_member(1, 0)], log_end=100, now=0.0)
    assert admission.refusal
    admission.slave_reported("stream", None, log_end=100, now=0.0)
    assert admission.refresh(log_end=100, now=AHEAD_HOLD_S)
    assert admission.refusal == ""
