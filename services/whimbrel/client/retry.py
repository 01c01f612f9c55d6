"""Decides whether a failed call is repeated, when, and where. Pure: errors in, decisions out.

    effect of the error   retried?
    none                  when its class says so: nothing was stored, so a repeat does no harm
    unknown               when the call may be repeated without harm, or the policy accepts duplicates
    stored                never, unless the policy accepts duplicates: the message is there, only less safe
                          than asked

After an error that points to a wrong or old route (unknown topic, no server, a broker that takes no writes) a
fresh one is fetched first. An unknown topic is retried once: it may have been created since the nameserver
was asked.
"""

from dataclasses import dataclass

from whimbrel.errors import NotSupported, RequestError, TopicNotFound, Unavailable, WhimbrelError

__all__ = ["GIVE_UP", "Decision", "RetryPolicy", "backoff_s", "decide"]


@dataclass(frozen=True, slots=True, kw_only=True)
class RetryPolicy:
    """Bounds of retries.

    Attributes:
        attempts_max: attempts in all. Five with these pauses span 1.5 s, in which a broker restarts.
        initial_s: pause before the second attempt.
        max_s: longest pause.
        multiplier: growth of the pause.
        duplicates: whether a message may be sent again that may have been, or has been, stored: at least once
            instead of at most once when the response is lost. The official SDKs resend, under the same
            message id.
        stored_again: the same for messages that the broker has stored, but not confirmed.
    """

    attempts_max: int = 5
    initial_s: float = 0.1
    max_s: float = 1.0
    multiplier: float = 2.0
    duplicates: bool = True
    stored_again: bool = False


@dataclass(frozen=True, slots=True)
class Decision:
    """What to do after a failure.

    Attributes:
        again: whether to try again.
        pause_s: after how long.
        fresh_route: whether to ask for the route again first.
        elsewhere: whether another broker is the better choice, if there is one.
    """

    again: bool
    pause_s: float = 0.0
    fresh_route: bool = False
    elsewhere: bool = False


GIVE_UP = Decision(again=False)


def backoff_s(attempt: int, policy: RetryPolicy) -> float:
    """Return the pause after the failed attempt number `attempt`, which counts from 1."""
    pause = policy.initial_s
    for _ in range(attempt - 1):
        if pause >= policy.max_s:
            break
        pause *= policy.multiplier
    return min(pause, policy.max_s)


def decide(error: WhimbrelError, attempt: int, policy: RetryPolicy, *, repeatable: bool) -> Decision:
    """Decide after the failed attempt number `attempt`, which counts from 1.

    Args:
        error: the attempt's.
        attempt: number of the failed attempt.
        policy: the bounds.
        repeatable: whether the call may be repeated without harm (reads, acknowledgements), so that an
            unknown effect and a fault inside the server are no reason to stop.
    """
    if attempt >= policy.attempts_max:
        return GIVE_UP
    pause = backoff_s(attempt, policy)
    if isinstance(error, TopicNotFound):
        return Decision(True, pause, fresh_route=True) if attempt == 1 else GIVE_UP
    if isinstance(error, RequestError | NotSupported):
        return GIVE_UP
    lost = isinstance(error, Unavailable)
    if error.effect == "stored" and not policy.stored_again and not repeatable:
        return GIVE_UP
    if error.effect == "unknown" and not repeatable and not (policy.duplicates and error.retry):
        return GIVE_UP
    if error.effect == "none" and not error.retry:
        return GIVE_UP
    refused = error.effect == "none"
    return Decision(True, pause, fresh_route=lost or refused, elsewhere=lost or refused)
