"""When a role takes the leases that are there for those of a broker that may have died as it answered."""

from types import SimpleNamespace
from typing import Any

from whimbrel.broker.consume.leases import LeaseTable
from whimbrel.broker.roles.master import MasterRole
from whimbrel.broker.roles.slave import SlaveRole


def test_a_master_does_once_before_it_hands_out_anything() -> None:
    """Not again when writes are allowed again: what it has handed out itself, it renews."""
    table = LeaseTable(origin=1)
    last = table.next_serial(1_000_000)
    released: list[bool] = []
    role: Any = MasterRole.__new__(MasterRole)
    role.state, role.led = None, False
    role.leadership = SimpleNamespace(leads=False, refusal="waits")
    role.appender = SimpleNamespace(refusal="waits")
    role.lease_streams = SimpleNamespace(push=lambda: None)
    role.takes = SimpleNamespace(serve=lambda: released.append(last in table.unsure))
    role.consumption = SimpleNamespace(table=table)
    role.leadership_changed()
    assert last not in table.unsure and not released
    role.leadership.leads = True
    role.leadership_changed()
    assert released == [True]
    ours = table.next_serial(1_001_000)
    role.leadership_changed()
    assert ours not in table.unsure


def test_a_slave_does_when_its_master_is_gone() -> None:
    table = LeaseTable(origin=1)
    role: Any = SlaveRole.__new__(SlaveRole)
    role.group, role.masterless, role.orders = {"n": frozenset({0, 1})}, set(), False
    role.consumption = SimpleNamespace(table=table, renew_policies=lambda: None)
    last = table.next_serial(1_000_000)
    role.note_master("n", registered=True)
    assert last not in table.unsure
    role.note_master("n", registered=False)
    assert last in table.unsure
    ours = table.next_serial(1_001_000)
    role.note_master("n", registered=False)
    assert ours not in table.unsure
