"""Waits between connections: longer each time, short again after progress."""

from whimbrel.ha.backoff import RECONNECT_MAX_S, RECONNECT_MIN_S, ReconnectBackoff


def waits(backoff: ReconnectBackoff, count: int) -> list[float]:
    """Return how long so many failures in a row make a slave wait."""
    found = []
    for _ in range(count):
        backoff.failed(100.0, lasting=False)
        found.append(round(backoff.retry_at - 100.0, 6))
    return found


def test_the_first_attempt_is_made_at_once() -> None:
    assert ReconnectBackoff().retry_at < 0


def test_waits_double_up_to_the_longest() -> None:
    assert waits(ReconnectBackoff(), 7) == [0.1, 0.2, 0.4, 0.8, 1.6, 2.0, 2.0]


def test_progress_makes_them_short_again() -> None:
    backoff = ReconnectBackoff()
    waits(backoff, 5)
    backoff.reset()
    assert waits(backoff, 1) == [RECONNECT_MIN_S]


def test_a_lasting_failure_waits_longest_at_once() -> None:
    backoff = ReconnectBackoff()
    backoff.failed(0.0, lasting=True)
    assert backoff.retry_at == RECONNECT_MAX_S
