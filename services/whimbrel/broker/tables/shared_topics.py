"""Which queue of which broker a message group belongs to, for topics that several brokers have.

All brokers choose by one function over all writable queues of the topic, sorted by broker name and queue id
(RocketMQ: SendMessageQueueSelector). So a broker must know the queues of the others, and of those as well
that are away just now: without them it would send their groups elsewhere, and the order would be lost.

    nameserver: topics, masters  -->  others   known queues, by topic and broker name
                                      masters  where they are now

A master that is registered somewhere says itself what it has. One that no nameserver knows keeps the queues
that it had; `STORE/whimbrel/shared-topics.json` keeps them over restarts. To let go of a broker that never
comes back, remove that file on the others and start them again. While no nameserver answers, the others are
taken to be where they were.

    {"orders": {"broker-b": 4}}
"""

import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from whimbrel.broker.tables.topics import TopicTable
from whimbrel.errors import StoreError, StoreFull
from whimbrel.machine import FILES, Files
from whimbrel.model.registration import SharedTopics
from whimbrel.store import jsonconfig

__all__ = ["TopicSharing"]

logger = logging.getLogger(__name__)


class TopicSharing:
    """What other brokers have of our topics; on the loop's thread.

    Attributes:
        others: by topic, the other brokers' writable queues, by broker name.
        masters: by nameserver, where the other masters are; empty texts for those that are away.
        last_seen: where the other masters were when a nameserver was there last.
    """

    def __init__(self, topics: TopicTable, name: str, root: Path, files: Files = FILES) -> None:
        """Read the file; a damaged one counts as missing. `name` is this broker's."""
        self.topics, self.name, self.files = topics, name, files
        self.path = root / "whimbrel" / "shared-topics.json"
        self.others: dict[str, dict[str, int]] = {}
        self.masters: dict[str, Mapping[str, str]] = {}
        self.last_seen: Mapping[str, str] = {}
        try:
            self.others = jsonconfig.open_own(self.path, decoded, files)[0] or {}
        except StoreError as error:
            logger.warning(
                "which topics other brokers have is not known before a nameserver tells: %s", error
            )

    def told(self, nameserver: str, shared: SharedTopics) -> None:
        """Take what a nameserver says; of brokers whose master it does not know it says nothing."""
        self.masters[nameserver] = shared.masters
        others: dict[str, dict[str, int]] = {}
        for topic in (self.others.keys() | shared.queues.keys()) & self.topics.rows.keys():
            kept = {
                broker: queues
                for broker, queues in self.others.get(topic, {}).items()
                if not shared.masters.get(broker)
            }
            if found := kept | dict(shared.queues.get(topic, {})):
                others[topic] = found
        if others != self.others:
            self.others = others
            self.save()

    def lost(self, nameserver: str) -> None:
        """Forget what a nameserver said that is gone."""
        gone = self.masters.pop(nameserver, None)
        if gone is not None and not self.masters:
            self.last_seen = gone

    def address(self, broker: str) -> str:
        """Return where a master is; empty while nobody knows."""
        told = self.masters.values() or (self.last_seen,)
        return next((found for masters in told if (found := masters.get(broker, ""))), "")

    def save(self) -> None:
        """Write the file; a disk that refuses is asked again with the next change."""
        try:
            jsonconfig.save(self.path, jsonconfig.dumps(self.others), self.files)
        except (OSError, StoreFull) as error:
            logger.warning("which topics other brokers have can't be written: %s", error)


def decoded(bean: Any) -> dict[str, dict[str, int]]:
    """Return the file's content.

    Raises:
        StoreError: it is something else.
    """
    try:
        return {
            str(topic): {str(broker): int(queues) for broker, queues in brokers.items()}
            for topic, brokers in bean.items()
        }
    except (AttributeError, TypeError, ValueError) as error:
        raise StoreError(f"not a table of shared topics: {error}") from error
