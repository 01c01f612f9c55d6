"""Which queue of which broker a message group belongs to, for topics that several brokers have.

All brokers choose by one function over all writable queues of the topic, sorted by broker name and queue id
(RocketMQ: SendMessageQueueSelector). So a broker must know the queues of the others, and of those as well
that are away just now: without them it would send their groups elsewhere, and the order would be lost.

    nameserver: topics, masters  -->  others   known queues, by topic and broker name
                                      masters  where they are now

A master that is registered somewhere says itself what it has. One that no nameserver knows keeps the queues
that it had; `STORE/whimbrel/shared-topics.json` keeps them over restarts, and slaves copy its text with the
metadata, so that one that becomes the master knows them, too. While no nameserver answers, the others are
taken to be where they were.

    {"orders": {"broker-b": 4}, "": {"broker-c": 0}}

A broker that never comes back is let go of by `forget`. No topic has an empty name: under it stand those that
were let go of last, so that the same order may be given again. Earlier versions pass over it. A broker that
registers after all counts again.
"""

import logging
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from whimbrel.broker.tables.topics import TopicTable
from whimbrel.errors import BadRequest, StoreError, StoreFull
from whimbrel.machine import FILES, Files
from whimbrel.model.registration import SharedTopics
from whimbrel.store import jsonconfig

__all__ = ["TopicSharing"]

logger = logging.getLogger(__name__)

FORGOTTEN = ""  # stands in the file where a topic's name does
FORGOTTEN_MAX = 100  # names kept; the oldest one goes first, and then counts as unknown


class TopicSharing:
    """What other brokers have of our topics; on the loop's thread.

    Attributes:
        others: by topic, the other brokers' writable queues, by broker name.
        masters: by nameserver, where the other masters are; empty texts for those that are away.
        last_seen: where the other masters were when a nameserver was there last.
        forgotten: brokers that were let go of and have not registered since, oldest first.
        on_change: called when what the file holds has changed.
        saved: the file holds what is here.
    """

    def __init__(self, topics: TopicTable, name: str, root: Path, files: Files = FILES) -> None:
        """Read the file; a damaged one counts as missing. `name` is this broker's."""
        self.topics, self.name, self.files = topics, name, files
        self.path = root / "whimbrel" / "shared-topics.json"
        self.others: dict[str, dict[str, int]] = {}
        self.masters: dict[str, Mapping[str, str]] = {}
        self.last_seen: Mapping[str, str] = {}
        self.forgotten: list[str] = []
        self.on_change: list[Callable[[], None]] = []
        self.saved = True
        try:
            self.take(jsonconfig.open_own(self.path, decoded, files)[0] or {})
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
        forgotten = [name for name in self.forgotten if name not in shared.masters]
        if (others, forgotten) != (self.others, self.forgotten):
            self.others, self.forgotten = others, forgotten
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

    def forget(self, broker: str) -> list[str] | None:
        """Let go of a broker for good; return the topics whose message groups move by that.

        There are none when it was let go of before; None when nothing is known of it.

        Raises:
            BadRequest: it is ourselves, or it is registered, or no nameserver can say so.
        """
        if broker == self.name or any(broker in masters for masters in self.masters.values()):
            raise BadRequest(f"{broker} is registered: stop its master and its slaves first")
        if not self.masters:
            raise BadRequest(
                f"no nameserver says here whether {broker} is registered: try again when one does"
            )
        topics = sorted(topic for topic, brokers in self.others.items() if broker in brokers)
        if not topics:
            return [] if broker in self.forgotten else None
        others = {
            topic: {name: queues for name, queues in brokers.items() if name != broker}
            for topic, brokers in self.others.items()
        }
        self.others = {topic: brokers for topic, brokers in others.items() if brokers}
        self.forgotten = [*self.forgotten, broker][-FORGOTTEN_MAX:]
        logger.info("%s is let go of: the message groups of %s have other queues now", broker, topics)
        self.save()
        return topics

    @property
    def text(self) -> str:
        """The file's content, for slaves."""
        return jsonconfig.dumps(self.content(), pretty=False)

    def replace(self, text: str) -> None:
        """Take the master's table in the place of ours.

        Raises:
            StoreError: the text is something else.
        """
        table = decoded(jsonconfig.loads(text))
        if table != self.content() or not self.saved:
            self.take(table)
            self.save()

    def take(self, table: dict[str, dict[str, int]]) -> None:
        self.forgotten = list(table.get(FORGOTTEN, ()))[-FORGOTTEN_MAX:]
        self.others = {topic: brokers for topic, brokers in table.items() if topic != FORGOTTEN}

    def content(self) -> dict[str, dict[str, int]]:
        return self.others | ({FORGOTTEN: dict.fromkeys(self.forgotten, 0)} if self.forgotten else {})

    def save(self) -> None:
        """Write the file, and tell of the change; a disk that refuses is asked again with the next one."""
        try:
            jsonconfig.save(self.path, jsonconfig.dumps(self.content()), self.files)
            self.saved = True
        except (OSError, StoreFull) as error:
            self.saved = False
            logger.warning("which topics other brokers have can't be written: %s", error)
        for callback in self.on_change:
            callback()


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
