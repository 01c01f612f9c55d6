"""Which failures are repeated, and where."""

import pytest

from whimbrel.client.retry import FIRST_CONTACT_S, GIVE_UP, FirstContact, RetryPolicy, backoff_s, decide
from whimbrel.errors import (
    ClientError,
    ClusterUnreachable,
    CorruptRecord,
    FlushTimeout,
    IllegalTopic,
    InvalidReceiptHandle,
    MessageTooLarge,
    NoReplica,
    NotSupported,
    NotWritable,
    ReplicaTimeout,
    RequestTimeout,
    StoreFull,
    Throttled,
    TopicNotFound,
    Unavailable,
    WhimbrelError,
)

POLICY = RetryPolicy()


@pytest.mark.parametrize("kind", [IllegalTopic, MessageTooLarge, InvalidReceiptHandle, NotSupported])
def test_a_bad_request_is_never_repeated(kind: type[WhimbrelError]) -> None:
    assert decide(kind("x"), 1, POLICY, repeatable=True) == GIVE_UP


@pytest.mark.parametrize("kind", [NotWritable, StoreFull, NoReplica, Throttled])
def test_a_refusal_is_repeated_elsewhere_since_nothing_was_stored(kind: type[WhimbrelError]) -> None:
    decision = decide(kind("x"), 1, RetryPolicy(duplicates=False), repeatable=False)
    assert decision.again
    assert decision.elsewhere
    assert decision.fresh_route


@pytest.mark.parametrize("kind", [FlushTimeout, ReplicaTimeout])
def test_a_stored_message_is_not_sent_again(kind: type[WhimbrelError]) -> None:
    assert not decide(kind("x"), 1, POLICY, repeatable=False).again
    assert decide(kind("x"), 1, RetryPolicy(stored_again=True), repeatable=False).again


@pytest.mark.parametrize("kind", [Unavailable, RequestTimeout])
def test_a_lost_answer_is_sent_again_only_where_duplicates_are_accepted(kind: type[WhimbrelError]) -> None:
    assert decide(kind("x"), 1, POLICY, repeatable=False).again
    assert not decide(kind("x"), 1, RetryPolicy(duplicates=False), repeatable=False).again
    assert decide(kind("x"), 1, RetryPolicy(duplicates=False), repeatable=True).again


def test_a_fault_inside_the_server_is_repeated_for_reads_only() -> None:
    assert decide(WhimbrelError("x"), 1, POLICY, repeatable=True).again
    assert not decide(WhimbrelError("x"), 1, POLICY, repeatable=False).again
    assert not decide(CorruptRecord("x"), 1, POLICY, repeatable=False).again


def test_an_unknown_topic_is_asked_for_once_more() -> None:
    first = decide(TopicNotFound("x"), 1, POLICY, repeatable=False)
    assert first.again
    assert first.fresh_route
    assert not decide(TopicNotFound("x"), 2, POLICY, repeatable=False).again


def test_attempts_are_bounded() -> None:
    assert decide(Unavailable("x"), 4, POLICY, repeatable=True).again
    assert decide(Unavailable("x"), 5, POLICY, repeatable=True) == GIVE_UP


def test_pauses_grow_up_to_their_bound() -> None:
    policy = RetryPolicy(initial_s=0.1, max_s=1.0, multiplier=2.0)
    assert [backoff_s(n, policy) for n in range(1, 7)] == pytest.approx([0.1, 0.2, 0.4, 0.8, 1.0, 1.0])
    assert backoff_s(10**9, policy) == 1.0


REFUSED = Unavailable("no answer from h:1: connection refused")


def test_a_first_contact_ends_after_the_attempts_of_one_call() -> None:
    contact = FirstContact(POLICY)
    now = 100.0
    for attempt in range(1, POLICY.attempts_max):
        assert contact.timeout_s(now, 1) == pytest.approx(FIRST_CONTACT_S - (now - 100.0))
        error = contact.fail([REFUSED], now, now)
        assert type(error) is Unavailable
        assert decide(error, attempt, POLICY, repeatable=True).again
        now += backoff_s(attempt, POLICY)
    error = contact.fail([REFUSED], now, now)
    assert isinstance(error, ClusterUnreachable)
    assert str(error) == "no answer from h:1: connection refused (tried 5 times, for 1.5 s)"
    assert decide(error, 1, POLICY, repeatable=True) == GIVE_UP


def test_a_first_contact_ends_when_its_time_is_over() -> None:
    contact = FirstContact(POLICY)
    contact.timeout_s(0.0, 1)
    error = contact.fail([RequestTimeout("no answer from h:1 within 2 s")], 0.0, FIRST_CONTACT_S)
    assert isinstance(error, ClusterUnreachable)
    assert "(tried once, for 2.0 s)" in str(error)
    assert contact.timeout_s(10.0, 1) == pytest.approx(FIRST_CONTACT_S)  # the next call begins anew


def test_several_nameservers_share_the_time_of_a_first_contact() -> None:
    contact = FirstContact(POLICY)
    assert contact.timeout_s(0.0, 3) == pytest.approx(FIRST_CONTACT_S / 3)
    assert contact.timeout_s(FIRST_CONTACT_S / 3, 2) == pytest.approx(FIRST_CONTACT_S / 3)


def test_calls_that_fail_side_by_side_count_once_and_are_given_up_together() -> None:
    contact = FirstContact(RetryPolicy(attempts_max=2))
    contact.timeout_s(0.0, 1)
    for _ in range(10):
        assert type(contact.fail([REFUSED], 0.0, 0.1)) is Unavailable
    assert isinstance(contact.fail([REFUSED], 0.2, 0.3), ClusterUnreachable)
    assert isinstance(contact.fail([REFUSED], 0.2, 0.3), ClusterUnreachable)


def test_a_more_patient_policy_has_a_longer_first_contact() -> None:
    assert FirstContact(RetryPolicy(attempts_max=60)).within_s > 50


def test_a_closed_client_is_not_tried_again() -> None:
    assert decide(ClientError("closed"), 1, POLICY, repeatable=True) == GIVE_UP
