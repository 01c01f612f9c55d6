"""Which of a broker's addresses is called."""

from whimbrel.client.addresses import AVOID_S, FAILED_MAX, Addresses
from whimbrel.model.route import Endpoint

A, B, C = (Endpoint("127.0.0.1", port) for port in (1, 2, 3))


def test_the_first_is_called_until_it_fails_and_again_after_a_while() -> None:
    addresses = Addresses()
    assert addresses.choose((A, B), 0) == A
    addresses.failed(A, 1)
    assert addresses.choose((A, B), 1) == B
    assert addresses.choose((A,), 1) == A
    assert addresses.choose((A, B), 1 + AVOID_S) == A


def test_an_address_that_answers_is_called_again() -> None:
    addresses = Addresses()
    addresses.failed(A, 1)
    addresses.answered(A)
    assert addresses.choose((A, B), 1) == A


def test_where_all_have_failed_the_one_that_failed_first_is_called() -> None:
    addresses = Addresses()
    for now, endpoint in enumerate((B, A, C)):
        addresses.failed(endpoint, now)
    assert addresses.choose((A, B, C), 3) == B
    addresses.failed(B, 4)
    assert addresses.choose((A, B, C), 4) == A


def test_what_is_remembered_is_bounded() -> None:
    addresses = Addresses()
    for port in range(1, FAILED_MAX + 10):
        addresses.failed(Endpoint("10.0.0.1", port), port)
    assert len(addresses.failed_at) == FAILED_MAX
    assert addresses.choose((Endpoint("10.0.0.1", 1), A), FAILED_MAX + 10) == Endpoint("10.0.0.1", 1)
