"""Which failures are repeated, and where."""

import pytest

from whimbrel.client.retry import GIVE_UP, RetryPolicy, backoff_s, decide
from whimbrel.errors import (
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
