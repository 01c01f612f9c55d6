"""What a connection and a stream may hold."""

from whimbrel.rpc.server.budget import ConnectionBudget, OutboxQueue, ProcessBudget
from whimbrel.rpc.server.limits import (
    HELD_BYTES_MAX,
    OUTBOX_BYTES_MAX,
    OUTBOX_MESSAGES_MAX,
    UNREAD_BYTES_MAX,
)


def test_incomplete_requests_count_over_all_streams_up_to_the_bound() -> None:
    budget = ConnectionBudget()
    assert budget.reserve(HELD_BYTES_MAX - 10)
    assert budget.reserve(10)
    assert not budget.reserve(1)


def test_a_request_counts_with_what_it_holds_now() -> None:
    budget = ConnectionBudget()
    budget.reserve(100)
    budget.reserve(250, before=100)
    assert budget.held == 250
    budget.reserve(30, before=250)  # a message of the stream was handed on
    assert budget.held == 30
    budget.release(30)
    assert budget.held == 0


def test_a_release_makes_room() -> None:
    budget = ConnectionBudget()
    assert not budget.reserve(HELD_BYTES_MAX + 1)
    budget.release(HELD_BYTES_MAX + 1)
    assert budget.reserve(HELD_BYTES_MAX)


def test_what_a_peer_leaves_unread_is_the_sum_of_all_places() -> None:
    budget = ConnectionBudget()
    budget.responded(UNREAD_BYTES_MAX - 20)
    budget.enqueued(10)
    assert not budget.exceeded()
    assert not budget.exceeded(waiting=10)
    assert budget.exceeded(waiting=11)
    assert budget.unread(waiting=11) == UNREAD_BYTES_MAX + 1


def test_a_write_takes_responses_off_and_leaves_outboxes() -> None:
    budget = ConnectionBudget()
    budget.responded(UNREAD_BYTES_MAX)
    budget.enqueued(7)
    assert budget.exceeded()
    budget.flushed()
    assert budget.unread() == 7
    budget.dequeued(7)
    assert budget.unread() == 0


def test_an_outbox_takes_so_many_messages() -> None:
    queue = OutboxQueue()
    assert all(queue.put(b"") for _ in range(OUTBOX_MESSAGES_MAX))
    assert queue.full() and not queue.put(b"")
    queue.get()
    assert not queue.full() and queue.put(b"")


def test_an_outbox_takes_so_many_bytes_and_one_message_of_any_size() -> None:
    queue = OutboxQueue()
    assert queue.put(bytes(OUTBOX_BYTES_MAX + 1))
    assert not queue.put(b"x")
    assert queue.get() == bytes(OUTBOX_BYTES_MAX + 1)
    assert queue.put(bytes(OUTBOX_BYTES_MAX - 1)) and queue.put(b"x")
    assert not queue.put(b"x")


def test_an_outbox_gives_messages_in_order_and_counts_them() -> None:
    queue = OutboxQueue()
    for message in (b"a", b"bb", b"ccc"):
        assert queue.put(message)
    assert (len(queue), queue.bytes) == (3, 6)
    assert queue.get() == b"a"
    assert queue.clear() == 5
    assert (len(queue), queue.bytes) == (0, 0)


def test_whoever_asks_the_one_that_holds_most_is_to_be_ended() -> None:
    budget: ProcessBudget[str] = ProcessBudget(100)
    assert budget.count("a", 60) is budget.count("b", 30) is budget.count("c", 10) is None
    assert budget.count("c", 11) == "a"
    budget.ended("a")
    assert (budget.total, budget.cut_off, budget.holders) == (41, 1, {"b": 30, "c": 11})
    assert budget.count("d", 59) is None
    assert budget.count("d", 60) == "d"


def test_who_holds_nothing_is_forgotten() -> None:
    budget: ProcessBudget[str] = ProcessBudget(100)
    budget.count("a", 60)
    budget.count("a", 20)
    assert budget.total == 20
    budget.count("a", 0)
    budget.count("b", 0)
    assert (budget.total, budget.holders) == (0, {})
