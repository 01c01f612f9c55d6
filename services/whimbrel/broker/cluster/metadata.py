"""What a slave copies from its master besides the commitlog: the texts of RocketMQ's config files.

`MetadataSource` is the master's side: the texts as they are now. Each watch remembers what it has sent, and
sends what differs. Topics and groups go out at once; consumer offsets change with every acknowledgement, and
the lease stream carries those, so their text goes with the next full round.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from whimbrel.broker.tables.groups import GroupTable
from whimbrel.broker.tables.offset_files import DelayOffsets, OffsetFile, Offsets
from whimbrel.broker.tables.shared_topics import TopicSharing
from whimbrel.broker.tables.topics import TopicTable
from whimbrel.store.deleted_queue_offsets import DeletedQueueOffsets

__all__ = ["ROUND_S", "Metadata", "MetadataSource"]

ROUND_S = 10.0  # RocketMQ's slaves ask this often


@dataclass(frozen=True, slots=True, kw_only=True)
class Metadata:
    """Texts of the config files; None: as before."""

    topics: str | None = None
    groups: str | None = None
    offsets: str | None = None
    delay_offsets: str | None = None
    deleted_offsets: str | None = None  # not RocketMQ's: where deleted queues ended
    confirmed: int | None = None  # up to where the master's log is confirmed
    given_offsets: tuple[int, str] | None = None  # a place in the log, and how far queues had come there
    shared_topics: str | None = None  # not RocketMQ's: what other brokers have of our topics
    timers: tuple[int, int] | None = None  # until when delayed messages are delivered, and the log's end then

    def since(self, sent: "Metadata") -> "Metadata":
        """Return what differs from what was sent before."""
        return Metadata(
            topics=self.topics if self.topics != sent.topics else None,
            groups=self.groups if self.groups != sent.groups else None,
            offsets=self.offsets if self.offsets != sent.offsets else None,
            delay_offsets=self.delay_offsets if self.delay_offsets != sent.delay_offsets else None,
            deleted_offsets=self.deleted_offsets if self.deleted_offsets != sent.deleted_offsets else None,
            confirmed=self.confirmed if self.confirmed != sent.confirmed else None,
            given_offsets=self.given_offsets if self.given_offsets != sent.given_offsets else None,
            shared_topics=self.shared_topics if self.shared_topics != sent.shared_topics else None,
            timers=self.timers if self.timers != sent.timers else None,
        )

    def over(self, older: "Metadata") -> "Metadata":
        """Return these texts, and the older ones where these have none."""
        return Metadata(
            topics=older.topics if self.topics is None else self.topics,
            groups=older.groups if self.groups is None else self.groups,
            offsets=older.offsets if self.offsets is None else self.offsets,
            delay_offsets=older.delay_offsets if self.delay_offsets is None else self.delay_offsets,
            deleted_offsets=older.deleted_offsets if self.deleted_offsets is None else self.deleted_offsets,
            confirmed=older.confirmed if self.confirmed is None else self.confirmed,
            given_offsets=older.given_offsets if self.given_offsets is None else self.given_offsets,
            shared_topics=older.shared_topics if self.shared_topics is None else self.shared_topics,
            timers=older.timers if self.timers is None else self.timers,
        )


class MetadataSource:
    """The texts of this broker."""

    def __init__(
        self,
        topics: TopicTable,
        groups: GroupTable,
        delays: DelayOffsets,
        file: OffsetFile,
        offsets: Callable[[], Offsets],
        deleted_queues: DeletedQueueOffsets | None = None,
        confirmed: Callable[[], int] | None = None,
        given_offsets: Callable[[], tuple[int, str]] | None = None,
        timers: Callable[[], tuple[int, int] | None] | None = None,
        sharing: TopicSharing | None = None,
    ) -> None:
        """Take the tables.

        `offsets` returns the groups' committed offsets, `confirmed` that of the log, `given_offsets` how far
        all queues had come at a place in the log, cheaply while that place is the same, `timers` how far
        delayed messages are delivered, `sharing` what other brokers have of our topics.
        """
        self.sharing = sharing
        self.read_timers = timers
        self.read_confirmed = confirmed
        self.read_given_offsets = given_offsets
        self.callbacks: list[Callable[[], None]] = []
        self.deleted_queues = deleted_queues
        self.topics, self.groups, self.delays = topics, groups, delays
        self.file, self.offsets = file, offsets

    def on_change(self, callback: Callable[[], None]) -> None:
        """Have `callback` called when a table changes, until `close`."""
        for callbacks in self.sources():
            callbacks.append(callback)
        self.callbacks.append(callback)

    def close(self) -> None:
        """Call nobody any more."""
        for callback in self.callbacks:
            for callbacks in self.sources():
                callbacks.remove(callback)
        self.callbacks.clear()

    def sources(self) -> Iterator[list[Callable[[], None]]]:
        """Yield whom the tables call when they change."""
        yield self.topics.on_change
        yield self.groups.on_change
        if self.deleted_queues is not None:
            yield self.deleted_queues.on_change
        if self.sharing is not None:
            yield self.sharing.on_change

    def tables(self) -> Metadata:
        """Return topics and groups, where deleted queues ended, and what other brokers have of our topics."""
        return Metadata(
            topics=self.topics.encode(pretty=False),
            groups=self.groups.encode(pretty=False),
            deleted_offsets=self.deleted_queues.text if self.deleted_queues is not None else None,
            shared_topics=self.sharing.text if self.sharing is not None else None,
        )

    def confirmed(self) -> Metadata:
        """Return only how far the log is confirmed."""
        return Metadata(confirmed=self.read_confirmed() if self.read_confirmed is not None else None)

    def everything(self) -> Metadata:
        """Return all texts."""
        return Metadata(
            offsets=self.file.encode(self.offsets(), pretty=False),
            delay_offsets=self.delays.text,
            given_offsets=self.read_given_offsets() if self.read_given_offsets is not None else None,
            timers=self.read_timers() if self.read_timers is not None else None,
        ).over(self.tables().over(self.confirmed()))
