"""Chooses the delivery policy of a subscription, a group on a topic, by the group's configuration.

A policy is kept for as long as the group's configuration stays the same object; a change makes another one,
between two plans. What a policy must know for longer belongs into the lease state.
"""

from whimbrel.broker.consume.policy import DeliveryPolicy, UnorderedPolicy
from whimbrel.broker.tables.groups import GroupTable
from whimbrel.model.topic import GroupConfig

__all__ = ["Policies"]


class Policies:
    """Makes policies; the planner's `PolicyFactory`."""

    def __init__(self, groups: GroupTable) -> None:
        """Take the groups."""
        self.groups = groups

    def __call__(self, group: str, topic: str) -> DeliveryPolicy:
        """Return a new policy for a group on a topic."""
        return UnorderedPolicy()

    def basis(self, group: str) -> GroupConfig | None:
        """Return what the policies of a group depend on: another object means that they are made anew."""
        return self.groups.rows.get(group)
