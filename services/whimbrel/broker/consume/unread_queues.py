"""Messages that lie in queues which nobody reads: of a topic that has fewer readable queues than it had.

RocketMQ's way to fewer queues is two steps: fewer writable ones, and once their messages are read, fewer
readable ones. Who does both at once hides what is in between: it is stored, counts as lag, and nobody is
given it. Our own calls refuse that unless they are told to (`engine/table_checks.py`); `mqadmin
updateTopic` does it, as with RocketMQ, and then it is told.
"""

from collections.abc import Sequence

from whimbrel.broker.consume.positions import Positions
from whimbrel.broker.tables.topics import TopicTable
from whimbrel.errors import BadRequest, WouldHide
from whimbrel.model.names import BUILT_IN_GROUPS, GROUP_TOPIC_PREFIXES
from whimbrel.model.topic import READ, TopicConfig
from whimbrel.store.store import MessageStore

__all__ = ["UnreadQueues", "queues_text", "readers_among"]

NAMED_MAX = 8  # queues, groups and topics in a sentence


class UnreadQueues:
    """Looks for such messages. On the loop's thread."""

    def __init__(self, topics: TopicTable, positions: Positions, store: MessageStore) -> None:
        """Take the topics, the positions of groups, and the queues."""
        self.topics, self.positions, self.store = topics, positions, store

    def readers(self) -> dict[str, list[str]]:
        """Return the groups that have read a topic, by name, of each topic; looks at all positions."""
        found: dict[str, list[str]] = {}
        for topic, group in sorted(self.positions.committed_offsets()):
            found.setdefault(topic, []).append(group)
        return {topic: readers_among(groups) for topic, groups in found.items()}

    def unfinished(self, topic: str, queue_id: int, readers: Sequence[str]) -> int:
        """Return how many messages of a queue some reader has not finished; all where there is none."""
        low, high = self.store.queue_range(topic, queue_id)
        if not readers or low == high:
            return high - low
        return min(max(self.positions.unfinished(group, topic, queue_id) for group in readers), high - low)

    def beyond(self, topic: str, count: int, readers: Sequence[str]) -> dict[int, int]:
        """Return how much is unfinished in the queues beyond so many, by id."""
        found = {
            queue_id: self.unfinished(topic, queue_id, readers)
            for queue_id in self.store.queue_ids(topic, 0)
            if queue_id >= count
        }
        return {queue_id: messages for queue_id, messages in found.items() if messages}

    def check(self, before: TopicConfig, after: TopicConfig) -> None:
        """Check a change of a topic.

        Raises:
            WouldHide: it would hide messages.
            BadRequest: it would hide those that are sent next.
        """
        if before.read_queues >= before.write_queues and after.write_queues > after.read_queues:
            beyond = queues_text(range(after.read_queues, after.write_queues))
            raise BadRequest(
                f"messages that are sent to {beyond} of {after.name} would be given to nobody: it would have"
                f" {after.write_queues} queues to write and {after.read_queues} to read"
            )
        first, end = readable_queues(after), readable_queues(before)
        if first >= end:
            return
        readers = self.readers().get(after.name, [])
        held = {
            queue_id: messages
            for queue_id, messages in self.beyond(after.name, first, readers).items()
            if queue_id < end
        }
        if held:
            raise WouldHide(
                f"this would hide {sum(held.values()):,} messages in {queues_text(held)} of {after.name}:"
                f" {who(readers)}"
            )

    def note(self) -> str:
        """Return which topics have such messages, and how many, in a sentence; empty for none."""
        fewer = []
        for topic, by_id in self.store.queues.by_topic.items():
            config = self.topics.get(topic)
            if config is None or self.topics.is_system(topic) or topic.startswith(GROUP_TOPIC_PREFIXES):
                continue
            count = readable_queues(config)
            if max(by_id, default=-1) >= count:
                fewer.append((topic, count))
        readers = self.readers() if fewer else {}
        found = [(topic, self.beyond(topic, count, readers.get(topic, []))) for topic, count in fewer]
        topics = [(topic, held) for topic, held in found if held]
        if not topics:
            return ""
        parts = [
            f"{sum(held.values()):,} of {topic} in {queues_text(held)}" for topic, held in topics[:NAMED_MAX]
        ]
        more = f" and of {len(topics) - NAMED_MAX} other topics" if len(topics) > NAMED_MAX else ""
        return (
            f"messages lie in queues that nobody reads: {', '.join(parts)}{more};"
            " `whimbrel topic update NAME --read-queues N` has them read"
        )


def readers_among(groups: Sequence[str]) -> list[str]:
    """Return those of the groups that have read a topic whose progress counts: not RocketMQ's tools."""
    return [group for group in groups if group not in BUILT_IN_GROUPS]


def readable_queues(topic: TopicConfig) -> int:
    """Return how many queues of a topic may be read."""
    return topic.read_queues if topic.permission & READ else 0


def queues_text(queue_ids: Sequence[int] | dict[int, int] | range) -> str:
    """Return `queue 3`, `queues 2, 3`, or how many more there are."""
    ids = sorted(queue_ids)
    shown = ", ".join(map(str, ids[:NAMED_MAX]))
    more = f" and {len(ids) - NAMED_MAX} more" if len(ids) > NAMED_MAX else ""
    return f"queue{'' if len(ids) == 1 else 's'} {shown}{more}"


def who(readers: Sequence[str]) -> str:
    if not readers:
        return "no group reads it"
    names = ", ".join(readers[:NAMED_MAX])
    more = f" and {len(readers) - NAMED_MAX} more" if len(readers) > NAMED_MAX else ""
    return f"not all of the groups that read it have finished them ({names}{more})"
