"""Topics in which RocketMQ keeps a group's redeliveries: what to read beside a topic in stores of its.

RocketMQ 5 appends a message that was not acknowledged in time to a topic of the group and the message's
topic, with one more in its count of redeliveries. Here nothing is appended for a redelivery, but what such
topics hold when we take a store over is delivered as messages of the topic proper:

    %RETRY%<group>_<topic>     the default; names may hold `_` as well, so a name may stand for several pairs
    %RETRY%<group>+<topic>     with RocketMQ's `enableRetryTopicV2`

`%RETRY%<group>`, where RocketMQ keeps what its 4.x consumers send back, for all topics in one, is not read
so: those consumers subscribe to it themselves.
"""

from collections.abc import Container, Mapping
from typing import TypeAlias

from whimbrel.model.names import RETRY_PREFIX

__all__ = ["Pair", "RetryTopics", "retry_topics"]

Pair: TypeAlias = tuple[str, str]  # group, topic
# What else a receive reads, and how many queues of it.
RetryTopics: TypeAlias = Mapping[Pair, tuple[tuple[str, int], ...]]


def retry_topics(
    kept: Mapping[str, int], topics: Container[str], groups: Container[str]
) -> dict[Pair, tuple[tuple[str, int], ...]]:
    """Return which retry topics belong to a group on a topic, and how many queues each has.

    Args:
        kept: names of groups' retry topics, with their numbers of queues.
        topics: names of all topics.
        groups: names of all groups.
    """
    found: dict[Pair, tuple[tuple[str, int], ...]] = {}
    for name, queues in kept.items():
        rest = name.removeprefix(RETRY_PREFIX)
        for place, joint in enumerate(rest):
            group, topic = rest[:place], rest[place + 1 :]
            if joint in "_+" and topic in topics and group in groups:
                found[group, topic] = (*found.get((group, topic), ()), (name, queues))
    return found
