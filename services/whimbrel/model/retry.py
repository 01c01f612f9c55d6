"""How long a group's consumers wait before a message comes again: RocketMQ's `groupRetryPolicy`, as values.

The bean, as it stands in a group's configuration; times in milliseconds (RocketMQ: GroupRetryPolicy):

    {"type": "CUSTOMIZED"}                                               18 steps, 1 s to 2 h
    {"type": "CUSTOMIZED", "customizedRetryPolicy": {"next": [...]}}
    {"type": "EXPONENTIAL"}                                              5 s, doubled, at most 2 h
    {"type": "EXPONENTIAL", "exponentialRetryPolicy": {"initial": 5000, "max": 7200000, "multiplier": 2}}
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

__all__ = [
    "DEFAULT_POLICY",
    "STEPS_MAX",
    "WAIT_MS_MAX",
    "Customized",
    "Exponential",
    "RetryPolicy",
    "check_policy",
    "policy_from_bean",
]

# RocketMQ's delay levels, which its consumers walk through.
LEVELS_S = (1, 5, 10, 30, 60, 120, 180, 240, 300, 360, 420, 480, 540, 600, 1200, 1800, 3600, 7200)
STEPS_MAX = 64  # of a customized policy: all of them go to every consumer
WAIT_MS_MAX = 24 * 3600 * 1000
MULTIPLIER_MAX = 1000


@dataclass(frozen=True, slots=True)
class Customized:
    """A list of waits; the last one counts for all attempts behind it.

    Attributes:
        waits_ms: one for each attempt, the first one's first.
    """

    waits_ms: tuple[int, ...] = tuple(seconds * 1000 for seconds in LEVELS_S)

    def wait_ms(self, attempt: int) -> int:
        """Return how long to wait after an attempt that failed; the first attempt is 1."""
        return self.waits_ms[min(max(attempt, 1), len(self.waits_ms)) - 1]

    def bean(self) -> dict[str, Any]:
        """Return it in RocketMQ's form."""
        if self == DEFAULT_POLICY:
            return {"type": "CUSTOMIZED"}
        return {"customizedRetryPolicy": {"next": list(self.waits_ms)}, "type": "CUSTOMIZED"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Exponential:
    """A wait that grows by a factor with each attempt."""

    initial_ms: int = 5_000
    max_ms: int = 7_200_000
    multiplier: int = 2

    def wait_ms(self, attempt: int) -> int:
        """Return how long to wait after an attempt that failed; the first attempt is 1."""
        wait = self.initial_ms
        for _ in range(attempt - 1):
            if wait >= self.max_ms or self.multiplier == 1:
                break
            wait *= self.multiplier
        return min(wait, self.max_ms)

    def bean(self) -> dict[str, Any]:
        """Return it in RocketMQ's form."""
        values = {"initial": self.initial_ms, "max": self.max_ms, "multiplier": self.multiplier}
        return {"exponentialRetryPolicy": values, "type": "EXPONENTIAL"}


RetryPolicy: TypeAlias = Customized | Exponential
DEFAULT_POLICY = Customized()


def policy_from_bean(bean: object) -> RetryPolicy:
    """Return the policy of a bean; the default one where it is none that can be followed."""
    if not isinstance(bean, Mapping):
        return DEFAULT_POLICY
    try:
        if bean.get("type") == "EXPONENTIAL":
            values = bean.get("exponentialRetryPolicy") or {}
            plain = Exponential()
            return Exponential(
                initial_ms=checked(values.get("initial", plain.initial_ms), WAIT_MS_MAX),
                max_ms=checked(values.get("max", plain.max_ms), WAIT_MS_MAX),
                multiplier=checked(values.get("multiplier", plain.multiplier), MULTIPLIER_MAX),
            )
        waits = (bean.get("customizedRetryPolicy") or {}).get("next") or ()
        if len(waits) > STEPS_MAX:
            return DEFAULT_POLICY
        return Customized(tuple(checked(wait, WAIT_MS_MAX) for wait in waits)) if waits else DEFAULT_POLICY
    except (AttributeError, TypeError, ValueError):
        return DEFAULT_POLICY


def checked(value: Any, highest: int) -> int:
    """Return a whole number from 1 to `highest`.

    Raises:
        ValueError, TypeError: it is none.
    """
    number = int(value)
    if not 1 <= number <= highest:
        raise ValueError(f"{number} is not between 1 and {highest}")
    return number


def check_policy(policy: RetryPolicy) -> None:
    """Raise ValueError unless all of a policy's values are within bounds."""
    if isinstance(policy, Customized):
        if not 1 <= len(policy.waits_ms) <= STEPS_MAX:
            raise ValueError(f"{len(policy.waits_ms)} waits are not between 1 and {STEPS_MAX}")
        for wait_ms in policy.waits_ms:
            checked(wait_ms, WAIT_MS_MAX)
        return
    checked(policy.initial_ms, WAIT_MS_MAX)
    checked(policy.max_ms, WAIT_MS_MAX)
    checked(policy.multiplier, MULTIPLIER_MAX)
