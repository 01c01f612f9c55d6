"""The table of open transactions, and which part of the op topic is still needed."""

from typing import Any

import pytest

from whimbrel.broker.transactions import table as table_module
from whimbrel.broker.transactions.table import OpenTransaction, OpTrail, Resolution, TransactionTable


def opened(half_offset: int, name: str = "", **fields: Any) -> OpenTransaction:
    return OpenTransaction(
        topic="t",
        queue_id=0,
        transaction_id=name or f"id{half_offset}",
        half_offset=half_offset,
        physical_offset=1000 * half_offset,
        size=100,
        stored_ms=5000,
        **fields,
    )


def test_decision_is_remembered_for_ten_minutes() -> None:
    table, one = TransactionTable(), opened(1)
    table.add(one)
    assert table.find("t", "id1") is one and table.find("other", "id1") is None
    table.close(one, Resolution.COMMIT, now=10.0)
    assert (table.find("t", "id1"), len(table)) == (None, 0)
    assert table.resolution("t", "id1", now=609.0) is Resolution.COMMIT
    assert table.resolution("t", "id1", now=611.0) is None


def test_latest_decisions_are_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(table_module, "REMEMBERED_MAX", 2)
    table = TransactionTable()
    for number in range(3):
        one = opened(number)
        table.add(one)
        table.close(one, Resolution.ROLLBACK, now=0.0)
    known = [table.resolution("t", f"id{number}", now=1.0) for number in range(3)]
    assert known == [None, Resolution.ROLLBACK, Resolution.ROLLBACK]
    last = opened(3)
    table.add(last)
    table.close(last, Resolution.COMMIT, now=700.0)
    assert len(table.decided) == 1  # what is too old goes when the next one comes


def test_newest_of_several_halves_of_one_id_counts() -> None:
    table, first, second = TransactionTable(), opened(1, "id"), opened(2, "id")
    assert table.add(first) is None
    assert table.add(second) is first
    assert (table.find("t", "id"), table.oldest(), len(table)) == (second, second, 1)
    assert table.count_by_topic == {"t": 1}


def test_id_that_is_used_again_is_another_transaction() -> None:
    table, first = TransactionTable(), opened(1, "id")
    table.add(first)
    table.close(first, Resolution.COMMIT, now=0.0)
    table.add(opened(2, "id"))
    assert table.resolution("t", "id", now=1.0) is None


def test_oldest_is_the_one_with_the_lowest_half() -> None:
    table = TransactionTable()
    assert table.oldest() is None
    ones = [opened(number) for number in range(4)]
    for one in ones:
        table.add(one)
    table.close(ones[1], Resolution.COMMIT, now=0.0)
    assert table.oldest() is ones[0]
    table.close(ones[0], Resolution.COMMIT, now=0.0)
    assert table.oldest() is ones[2]
    assert table.count_by_topic == {"t": 2}


def test_transaction_is_due_after_its_own_time_or_the_brokers() -> None:
    assert [opened(1).due(now_ms, 6000) for now_ms in (10_999, 11_000)] == [False, True]
    patient = opened(1, recovery_ms=60_000)
    assert [patient.due(now_ms, 6000) for now_ms in (64_999, 65_000)] == [False, True]


def test_oldest_op_that_is_needed_names_an_undecided_half_or_a_later_one() -> None:
    trail = OpTrail()
    for op, half in ((0, 3), (1, 1), (2, 7), (3, 2), (4, 9)):
        trail.add(op, half)
    assert [trail.position(half, 5) for half in (0, 3, 4, 7, 8, 10)] == [0, 0, 2, 2, 4, 5]


def test_position_of_a_long_trail_may_be_too_low_and_never_too_high(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(table_module, "TRAIL_MAX", 8)
    trail = OpTrail()
    halves = [(number * 7) % 101 for number in range(100)]
    for op, half in enumerate(halves):
        trail.add(op, half)
        assert len(trail.spans) <= 8
    for wanted in range(102):
        needed = next((op for op, half in enumerate(halves) if half >= wanted), 100)
        assert trail.position(wanted, 100) <= needed
