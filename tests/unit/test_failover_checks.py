"""The checks of failovers find what they are for."""

from types import SimpleNamespace
from typing import cast

import pytest

from chaos.checks import ACK_S, Messages, check_noted, check_ordered, redeliveries, unequal
from chaos.load import DELAYED, PAID, PLAIN, Load, Note
from support.history.histories import History, Outcome, Place
from whimbrel.model.message import Resolution

GROUP = "plain"
PLACE: Place = ("a/Plain", 0, 7)


def at(queue: int, *bodies: bytes) -> Messages:
    """Return messages of a queue, from its begin on."""
    return [(("a/T", queue, offset), body) for offset, body in enumerate(bodies)]


def ordered(*bodies: bytes) -> Load:
    """Return a load that had these acknowledged, in one message group."""
    return cast(Load, SimpleNamespace(ordered={"g0": list(bodies)}))


def test_a_message_group_is_in_one_queue_and_in_order() -> None:
    load = ordered(b"g0-0", b"g0-1", b"g0-2")
    assert check_ordered(load, at(1, b"g0-0", b"g0-1", b"g0-2")) == []
    assert check_ordered(load, at(1, b"g0-0", b"g0-0", b"g0-1", b"g0-0", b"g0-2")) == []  # sent again
    assert "in queues" in str(check_ordered(load, at(1, b"g0-0", b"g0-1") + at(2, b"g0-2")))
    assert "stands at" in str(check_ordered(load, at(1, b"g0-1", b"g0-0", b"g0-2")))


@pytest.mark.parametrize(
    ("outcome", "copies", "found"),
    [
        ("ok", 1, False), ("ok", 0, True), ("ok", 2, True), ("unknown", 0, False), ("unknown", 1, False),
        ("unknown", 2, True), ("none", 1, True), ("none", 0, False), ("stored", 0, False),
    ],
)  # fmt: skip
def test_a_delayed_message_is_there_once(outcome: Outcome, copies: int, found: bool) -> None:
    notes = {b"d-0": Note(outcome=outcome)}
    assert bool(check_noted(DELAYED, notes, at(0, *[b"d-0"] * copies))) is found


@pytest.mark.parametrize(
    ("body", "wish", "copies", "found"),
    [
        (b"t-0", Resolution.COMMIT, 1, False), (b"t-0", Resolution.COMMIT, 0, True),
        (b"t-0", Resolution.COMMIT, 2, True), (b"t-0", Resolution.ROLLBACK, 1, True),
        (b"t-0", Resolution.ROLLBACK, 0, False), (b"t-1", Resolution.UNKNOWN, 1, False),
        (b"t-1", Resolution.UNKNOWN, 0, True), (b"t-2", Resolution.UNKNOWN, 1, True),
    ],
)  # fmt: skip
def test_a_transaction_ends_as_its_producer_or_the_check_said(
    body: bytes, wish: Resolution, copies: int, found: bool
) -> None:
    notes = {body: Note(outcome="ok", wish=wish)}
    assert bool(check_noted(PAID, notes, at(0, *[body] * copies))) is found


def test_what_nobody_sent_is_found() -> None:
    assert check_noted(PAID, {}, at(0, b"t-0"))[0].kind == "phantom"


def acknowledged(acked: float, delivered: float) -> Load:
    """Return a load whose group was delivered a message after its acknowledgement."""
    history = History()
    history.deliver(GROUP, b"p0-0", PLACE, acked - 0.1)
    history.ack(GROUP, PLACE, acked)
    history.deliver(GROUP, b"p0-0", PLACE, delivered)
    return cast(Load, SimpleNamespace(history=history))


def test_an_acknowledgement_is_forgotten_only_where_a_fault_follows_soon() -> None:
    load = acknowledged(100.0, 120.0)
    assert len(redeliveries(load, []).findings) == 1
    assert len(redeliveries(load, [90.0]).findings) == 1
    near = redeliveries(load, [100.5])
    assert (near.findings, near.count, near.oldest_s) == ([], 1, 0.5)
    late = redeliveries(load, [100.1 + ACK_S])
    assert len(late.findings) == 1 and late.count == 1


def test_members_that_differ_are_found() -> None:
    same = {PLAIN: at(0, b"a", b"b")}, b"log"
    assert unequal({1: same, 2: same, 3: same}) == []
    assert "other messages" in str(unequal({1: same, 2: ({PLAIN: at(0, b"b", b"a")}, b"log"), 3: same}))
    assert "the logs" in str(unequal({1: same, 2: same, 3: ({PLAIN: at(0, b"a", b"b")}, b"lop")}))
