"""Chooses the delivery policy of a subscription, a group on a topic, by the group's configuration.

A policy is kept for as long as the group's configuration stays the same object; a change makes another one,
between two plans. What a policy must know for longer belongs into the lease state.
"""

from collections.abc import Callable

from whimbrel.broker.consume.dead_letters import attempts_max, dead_letter_rule
from whimbrel.broker.consume.grouped_policy import GroupedPolicy
from whimbrel.broker.consume.ordered_policy import OrderedPolicy, always
from whimbrel.broker.consume.policy import DeliveryPolicy, UnorderedPolicy
from whimbrel.broker.tables.groups import GroupTable
from whimbrel.model.retry import DEFAULT_POLICY
from whimbrel.model.topic import GroupConfig, OrderedBy

__all__ = ["Policies"]


class Policies:
    """Makes policies; the planner's `PolicyFactory`."""

    def __init__(self, groups: GroupTable, *, may_order: Callable[[], bool] = always) -> None:
        """Take the groups, and what tells whether this broker may deliver in order now."""
        self.groups = groups
        self.may_order = may_order

    def __call__(self, group: str, topic: str) -> DeliveryPolicy:
        """Return a new policy for a group on a topic."""
        config = self.groups.get(group) or GroupConfig(name=group)
        rule = dead_letter_rule(config)
        if not config.fifo:
            return UnorderedPolicy(rule, delivers_up_to=attempts_max(config))
        ordered = GroupedPolicy if config.ordered_by is OrderedBy.MESSAGE_GROUP else OrderedPolicy
        return ordered(hand_on=rule, delivers_up_to=attempts_max(config), allowed=self.may_order)

    def basis(self, group: str) -> GroupConfig | None:
        """Return what the policies of a group depend on: another object means that they are made anew."""
        return self.groups.rows.get(group)

    def wait_ms(self, group: str, attempt: int) -> int:
        """Return how long a message of the group waits after an attempt that failed."""
        config = self.groups.get(group)
        return (DEFAULT_POLICY if config is None else config.retry_policy).wait_ms(attempt)
