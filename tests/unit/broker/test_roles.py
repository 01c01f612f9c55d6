"""When a master may write."""

from whimbrel.broker.roles import Position
from whimbrel.model.registration import Member


def _member(broker_id: int, log_end: int) -> Member:
    return Member(
        broker_id=broker_id, address=f"10.0.0.{broker_id}:1", ha_address="", log_begin=0, log_end=log_end
    )


def _master(*, expected: int = 0, nameservers: int = 1) -> Position:
    return Position("master", name="a", expected_slaves=expected, nameservers=nameservers)


def test_master_is_unsettled_until_a_nameserver_knows_its_group() -> None:
    position = _master()
    assert "no nameserver has confirmed" in position.refusal
    assert not position.heard(settled=False, members=[], log_end=0)
    assert position.refusal
    assert position.heard(settled=True, members=[], log_end=0)
    assert position.refusal == "" and position.authoritative


def test_expected_slaves_settle_a_master_before_the_renewal_period() -> None:
    position = _master(expected=2)
    position.heard(settled=False, members=[_member(1, 0)], log_end=0)
    assert not position.settled
    position.heard(settled=False, members=[_member(1, 0), _member(2, 0)], log_end=0)
    assert position.settled


def test_master_stays_settled_when_a_young_nameserver_answers() -> None:
    position = _master()
    position.heard(settled=True, members=[], log_end=0)
    position.heard(settled=False, members=[], log_end=0)
    assert position.settled


def test_slave_ahead_stops_writes_until_it_is_gone() -> None:
    position = _master()
    position.heard(settled=True, members=[_member(1, 100)], log_end=100)
    assert position.refusal == ""
    assert position.heard(settled=True, members=[_member(1, 101), _member(2, 300)], log_end=100)
    assert "slave 2 at 10.0.0.2:1" in position.refusal and "byte 300" in position.refusal
    assert "only up to 100" in position.refusal and not position.authoritative
    assert position.heard(settled=True, members=[], log_end=100)
    assert position.refusal == ""


def test_another_master_is_no_slave() -> None:
    position = _master()
    position.heard(settled=True, members=[_member(0, 500)], log_end=100)
    assert position.refusal == ""


def test_slave_never_writes() -> None:
    position = Position("slave", name="a", expected_slaves=0, nameservers=0)
    position.heard(settled=True, members=[_member(0, 0)], log_end=0)
    assert "slave" in position.refusal and not position.authoritative


def test_master_without_nameservers_has_nobody_to_ask() -> None:
    assert _master(nameservers=0).refusal == ""


def test_slaves_own_word_counts_while_it_is_connected() -> None:
    position = _master()
    position.heard(settled=True, members=[_member(1, 0)], log_end=100)  # as of the slave's last renewal
    assert position.reported("stream", _member(1, 150), log_end=100)
    assert "byte 150" in position.refusal
    position.heard(settled=True, members=[_member(1, 0)], log_end=100)
    assert position.refusal
    assert position.reported("stream", None, log_end=100)
    assert position.refusal == ""
