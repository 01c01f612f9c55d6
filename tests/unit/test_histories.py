"""The checker of histories: a history that shows each kind of finding, and a neighbour that does not."""

import pytest

from support.history.histories import History, Outcome, Place, Sent, outcome_of
from whimbrel.errors import FlushTimeout, TopicNotFound

TOPIC = "orders"


def at(offset: int, queue: int = 0) -> Place:
    return TOPIC, queue, offset


def send(
    history: History, message: bytes, outcome: Outcome, place: Place | None = None, began: float = 0.0
) -> Sent:
    """Note a send by "p" that was answered a second later."""
    sent = history.send(message, "p", TOPIC, began)
    sent.outcome, sent.place, sent.ended = outcome, place, began + 1.0
    return sent


def kinds(history: History, complete: list[tuple[Place, bytes]] | None = None, *groups: str) -> list[str]:
    return [finding.kind for finding in history.check(complete=complete, groups=groups)]


def test_nothing_is_found_in_what_nobody_did_and_in_what_is_right() -> None:
    history = History()
    assert kinds(history, []) == []
    send(history, b"a", "ok", at(0))
    send(history, b"b", "ok", at(1), 1.0)
    history.read("r", at(0), b"a")
    history.deliver("g", b"a", at(0), 2.0)
    history.ack("g", at(0), 2.1)
    history.deliver("g", b"b", at(1), 2.2)
    assert kinds(history, [(at(0), b"a"), (at(1), b"b")], "g") == []


@pytest.mark.parametrize("outcome", ["stored", "unknown", "none"])
def test_lost_is_what_was_acknowledged_and_is_not_there(outcome: Outcome) -> None:
    history = History()
    sent = send(history, b"a", "ok", at(0))
    assert kinds(history, []) == ["lost"]
    assert "b'a', acknowledged at 1.000" in str(history.check(complete=[])[0])
    assert kinds(history) == []  # nobody looked
    sent.outcome, sent.place = outcome, None
    assert kinds(history, []) == []


def test_aborted_is_what_was_refused_and_is_there() -> None:
    history = History()
    sent = send(history, b"a", "none")
    assert kinds(history, [(at(0), b"a")]) == ["aborted"]
    sent.tries_unknown = True  # the last of its tries was refused, an earlier one may have come
    assert kinds(history, [(at(0), b"a")]) == []


def test_phantom_is_what_nobody_sent() -> None:
    history = History()
    history.deliver("g", b"a", at(0), 1.0)
    assert kinds(history) == ["phantom"]
    send(history, b"a", "unknown")
    assert kinds(history) == []


@pytest.mark.parametrize("outcome", ["stored", "unknown"])
def test_gone_is_what_somebody_read_and_is_not_there_in_the_end(outcome: Outcome) -> None:
    history = History()
    send(history, b"a", outcome)
    history.read("r", at(0), b"a")
    assert kinds(history, []) == ["gone"]
    assert kinds(history, [(at(0), b"a")]) == []
    assert kinds(history) == []  # nobody looked
    history.losses.append(0.5)
    assert kinds(history, []) == []


def test_gone_is_called_lost_where_it_was_acknowledged() -> None:
    history = History()
    send(history, b"a", "ok", at(0))
    history.deliver("g", b"a", at(0), 1.0)
    assert kinds(history, []) == ["lost"]


def test_duplicate_is_at_two_places_without_a_try_that_may_have_come_unseen() -> None:
    history = History()
    sent = send(history, b"a", "ok", at(0))
    twice = [(at(0), b"a"), (at(1), b"a")]
    assert kinds(history, twice) == ["duplicate"]
    sent.tries_unknown = True
    assert kinds(history, twice) == []
    sent.tries_unknown, sent.outcome, sent.place = False, "unknown", None
    assert kinds(history, twice) == []


def test_moved_is_a_place_with_two_contents() -> None:
    history = History()
    send(history, b"a", "ok", at(0))
    send(history, b"b", "unknown")
    history.deliver("g", b"b", at(0), 1.0)
    assert kinds(history) == ["moved"]
    history.losses.append(0.5)  # b was there, unacknowledged, before the power was lost
    assert kinds(history) == []


def test_moved_is_a_place_that_two_receipts_name() -> None:
    history = History()
    send(history, b"a", "ok", at(0))
    second = send(history, b"b", "ok", at(0), 2.0)
    assert kinds(history) == ["moved"]
    second.place = at(1)
    assert kinds(history) == []


@pytest.mark.parametrize("tries_unknown", [False, True])
def test_moved_is_a_receipt_that_names_a_place_where_nothing_is(tries_unknown: bool) -> None:
    history = History()
    send(history, b"a", "ok", at(5)).tries_unknown = tries_unknown
    assert kinds(history, [(at(6), b"a")]) == ["moved"]
    assert kinds(history, [(at(5), b"a")]) == []


def test_order_is_of_sends_that_did_not_overlap() -> None:
    history = History()
    send(history, b"a", "ok", at(1), 0.0)
    second = send(history, b"b", "ok", at(0), 1.5)
    assert kinds(history) == ["order"]
    second.began = 0.5
    assert kinds(history) == []
    second.began, second.place = 1.5, at(0, queue=1)
    assert kinds(history) == []
    second.place, second.producer = at(0), "other"
    assert kinds(history) == []


def test_order_is_of_the_tries_that_were_answered() -> None:
    history = History()
    send(history, b"a", "ok", at(1), 0.0).tries_unknown = True
    send(history, b"b", "ok", at(0), 1.5)
    assert kinds(history) == ["order"]


def test_order_looks_past_neighbours_that_overlap() -> None:
    history = History()
    send(history, b"late", "ok", at(0), 5.0)
    send(history, b"long", "ok", at(1), 0.0).ended = 9.0
    send(history, b"early", "ok", at(2), 1.0)
    assert kinds(history) == ["order"]


def test_skip_is_what_lies_between_two_reads_and_was_not_read() -> None:
    history = History()
    for number, message in enumerate((b"a", b"b", b"c")):
        send(history, message, "unknown")
        if message != b"b":
            history.read("r", at(number), message)
    assert kinds(history, [(at(0), b"a"), (at(2), b"c")]) == []  # nothing is there
    everything = [(at(0), b"a"), (at(1), b"b"), (at(2), b"c")]
    assert kinds(history, everything) == ["skip"]
    history.read("other", at(1), b"b")
    assert kinds(history, everything) == ["skip"]
    history.read("r", at(1), b"b")
    assert kinds(history, everything) == []


def test_a_skip_is_none_where_a_reader_went_on_at_the_new_begin_of_a_queue() -> None:
    history = History()
    for offset in range(5):
        send(history, b"%d" % offset, "ok", at(offset), float(offset))
    history.read("r", at(0), b"0")
    history.jump("r", TOPIC, 0, range(1, 3))
    history.read("r", at(4), b"4")
    assert [finding.what for finding in history.check()] == ["r got 0, then 4 of orders/0: not [3]"]
    history.jump("r", TOPIC, 0, range(3, 4))
    assert history.check() == []


def test_what_may_be_gone_is_neither_lost_nor_undelivered() -> None:
    history = History()
    send(history, b"a", "ok", at(0))
    send(history, b"b", "ok", at(1), 1.0)
    findings = history.check(complete=[], groups=["g"], gone={b"a"})
    assert [(finding.kind, "b'b'" in finding.what) for finding in findings] == [
        ("lost", True),
        ("undelivered", True),
    ]
    assert history.check(complete=[], groups=["g"], gone={b"a", b"b"}) == []


def test_a_reader_that_reads_something_again_skips_nothing_when_it_goes_on_behind() -> None:
    history = History()
    for number, message in enumerate((b"a", b"b", b"c", b"d")):
        send(history, message, "ok", at(number), float(number))
    for number, message in ((0, b"a"), (1, b"b"), (2, b"c"), (0, b"a"), (3, b"d")):
        history.read("r", at(number), message)
    assert kinds(history) == []


def test_undelivered_is_what_no_member_of_a_group_got() -> None:
    history = History()
    send(history, b"a", "ok", at(0))
    send(history, b"b", "stored")
    history.deliver("other", b"a", at(0), 1.0)
    assert kinds(history, None, "g", "other") == ["undelivered"]
    history.deliver("g", b"a", at(0), 1.0)
    assert kinds(history, None, "g", "other") == []
    assert kinds(history, None, "r") == ["undelivered"]
    history.read("r", at(0), b"a")
    assert kinds(history, None, "r") == []


def redelivery(*, again: float, losses: tuple[float, ...] = (), window: float | None = 5.0) -> History:
    history = History(ack_window_s=window, losses=list(losses))
    send(history, b"a", "ok", at(0))
    history.deliver("g", b"a", at(0), 10.0)
    history.ack("g", at(0), 10.0)
    history.deliver("g", b"a", at(0), again)
    return history


def test_redelivered_is_what_comes_long_after_its_acknowledgement() -> None:
    assert kinds(redelivery(again=16.0)) == ["redelivered"]
    assert kinds(redelivery(again=14.0)) == []  # it may have been on its way
    assert kinds(redelivery(again=16.0, window=None)) == []
    other = redelivery(again=14.0)
    other.deliver("other group", b"a", at(0), 16.0)
    assert kinds(other) == []


def test_a_loss_of_power_near_an_acknowledgement_takes_it_back_and_one_far_from_it_does_not() -> None:
    assert kinds(redelivery(again=16.0, losses=(12.0,))) == []
    assert kinds(redelivery(again=16.0, losses=(9.0,))) == []
    assert kinds(redelivery(again=30.0, losses=(2.0, 18.0))) == ["redelivered"]


def test_a_second_acknowledgement_counts_when_a_loss_took_the_first_one() -> None:
    history = redelivery(again=20.0, losses=(12.0,))
    history.ack("g", at(0), 20.0)
    assert kinds(history) == []
    history.deliver("g", b"a", at(0), 40.0)
    assert kinds(history) == ["redelivered"]


def test_an_outcome_is_what_the_error_says() -> None:
    assert outcome_of(TopicNotFound("orders")) == "none"
    assert outcome_of(FlushTimeout("late")) == "stored"
    assert outcome_of(ConnectionResetError()) == "unknown"


def test_a_history_says_how_much_it_holds() -> None:
    history = History()
    send(history, b"a", "ok", at(0))
    send(history, b"b", "ok", at(1))
    send(history, b"c", "none")
    history.deliver("g", b"a", at(0), 1.0)
    assert history.summary == "a history of 3 sends (2 ok, 1 none), 1 deliveries, 0 reads"
