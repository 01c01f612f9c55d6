"""Decides whether a failed call is repeated, when, and where. Pure: errors in, decisions out.

    effect of the error   retried?
    none                  when its class says so: nothing was stored, so a repeat does no harm
    unknown               when the call may be repeated without harm, or the policy accepts duplicates
    stored                never, unless the policy accepts duplicates: the message is there, only less safe
                          than asked

After an error that points to a wrong or old route (unknown topic or queue, no server, a broker that takes no
writes) a fresh one is fetched first. An unknown topic or queue is retried once: it may have been created, or
removed, since the nameserver was asked.

A client that no nameserver has ever answered has probably been given a wrong address. `FirstContact` bounds
what all its calls together try, however their retries are nested:

    waiting ──answered──► reached    for good: from now on the retries alone decide
       │  ▲
       │  └──failed, with attempts and time left── (the retries go on)
       └──failed, with neither──► given up, with ClusterUnreachable; the next call begins anew
"""

from collections.abc import Sequence
from dataclasses import dataclass

from whimbrel.errors import (
    ClientError,
    ClusterUnreachable,
    NotSupported,
    QueueNotFound,
    RequestError,
    TopicNotFound,
    Unavailable,
    WhimbrelError,
)

__all__ = ["FIRST_CONTACT_S", "GIVE_UP", "Decision", "FirstContact", "RetryPolicy", "backoff_s", "decide"]

FIRST_CONTACT_S = 2.0  # a command that was given a wrong address ends within 3 s, its own start included


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
    if isinstance(error, ClusterUnreachable) or type(error) is ClientError:
        return GIVE_UP  # all attempts were made already; the client is closed
    if isinstance(error, TopicNotFound | QueueNotFound):
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


class FirstContact:
    """What a client has tried until a nameserver answers. Times are seconds of one monotonic clock.

    Calls of one client that fail side by side count as one attempt, and are given up together.

    Attributes:
        reached: whether a nameserver has answered.
        attempts: rounds over all nameservers that have failed.
    """

    def __init__(self, policy: RetryPolicy) -> None:
        """Take the policy of the retries: one that is more patient than usual is so here, too."""
        pauses = sum(backoff_s(attempt, policy) for attempt in range(1, policy.attempts_max))
        self.policy = policy
        self.within_s = max(FIRST_CONTACT_S, pauses)
        self.reached = False
        self.attempts = 0
        self.began: float | None = None
        self.failed_at = self.given_up_at = float("-inf")

    def timeout_s(self, now: float, untried: int) -> float:
        """Return how long the next nameserver may take; `untried` are left in this round, itself included."""
        if self.began is None:
            self.began = now
        return max(0.0, self.began + self.within_s - now) / untried

    def succeed(self) -> None:
        """Note that a nameserver has answered."""
        self.reached = True

    def fail(self, errors: Sequence[WhimbrelError], began: float, now: float) -> WhimbrelError:
        """Note that the round that began at `began` has failed with these errors; return what to raise."""
        what = "; ".join(dict.fromkeys(str(error) for error in errors))
        if began < self.given_up_at:
            return ClusterUnreachable(f"{what} (given up beside other calls)")
        if began >= self.failed_at:
            self.attempts, self.failed_at = self.attempts + 1, now
        spent = now - (began if self.began is None else self.began)
        times = "once" if self.attempts == 1 else f"{self.attempts} times"
        text = f"{what} (tried {times}, for {spent:.1f} s)"
        pause = backoff_s(self.attempts, self.policy)
        if self.attempts < self.policy.attempts_max and spent + pause < self.within_s:
            return Unavailable(text)
        self.attempts, self.began, self.given_up_at = 0, None, now
        return ClusterUnreachable(text)
