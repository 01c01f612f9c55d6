"""Chooses the delivery policy of a subscription, a group on a topic, by the group's configuration.

A policy is kept for as long as the group's configuration stays the same object; a change makes another one,
between two plans. What a policy must know for longer belongs into the lease state.
"""

from whimbrel.broker.consume.dead_letters import attempts_max, dead_letter_rule
from whimbrel.broker.consume.policy import DeliveryPolicy, UnorderedPolicy
from whimbrel.broker.tables.groups import GroupTable
from whimbrel.model.retry import DEFAULT_POLICY
from whimbrel.model.topic import GroupConfig

__all__ = ["Policies"]


class Policies:
    """Makes policies; the planner's `PolicyFactory`."""

    def __init__(self, groups: GroupTable) -> None:
        """Take the groups."""
        self.groups = groups

    def __call__(self, group: str, topic: str) -> DeliveryPolicy:
        """Return a new policy for a group on a topic."""
        config = self.groups.get(group) or GroupConfig(name=group)
        return UnorderedPolicy(dead_letter_rule(config), delivers_up_to=attempts_max(config))

    def basis(self, group: str) -> GroupConfig | None:
        """Return what the policies of a group depend on: another object means that they are made anew."""
        return self.groups.rows.get(group)

    def wait_ms(self, group: str, attempt: int) -> int:
        """Return how long a message of the group waits after an attempt that failed."""
        config = self.groups.get(group)
        return (DEFAULT_POLICY if config is None else config.retry_policy).wait_ms(attempt)
