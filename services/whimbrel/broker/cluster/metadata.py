"""What a slave copies from its master besides the commitlog: the texts of RocketMQ's config files.

`MetadataSource` is the master's side: the texts as they are now. Each watch remembers what it has sent, and
sends what differs. Topics and groups go out at once, the whole table first and then what has changed in it
since the version that was sent last; consumer offsets change with every acknowledgement, and the lease stream
carries those, so their text goes with the next full round.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from whimbrel.broker.tables.groups import GroupTable
from whimbrel.broker.tables.metadata_version import MetadataVersion
from whimbrel.broker.tables.offset_files import DelayOffsets, OffsetFile, Offsets
from whimbrel.broker.tables.shared_topics import TopicSharing
from whimbrel.broker.tables.topics import TopicTable
from whimbrel.broker.tables.versioned import VersionedTable
from whimbrel.model.topic import DataVersion
from whimbrel.store.deleted_queue_offsets import DeletedQueueOffsets

__all__ = ["ROUND_S", "EncodedChange", "Known", "Metadata", "MetadataSource"]

ROUND_S = 10.0  # RocketMQ's slaves ask this often


@dataclass(frozen=True, slots=True, kw_only=True)
class EncodedChange:
    """What has changed in a table; see `TableChange`. `rows` is the text of a map by their names."""

    before: DataVersion
    after: DataVersion
    rows: str
    removed: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Known:
    """What a slave has of the tables.

    Attributes:
        topics, groups: the versions that it was sent last; None before the first one.
        takes_changes: it may be told what changed since; those of earlier versions need the whole table.
    """

    topics: DataVersion | None = None
    groups: DataVersion | None = None
    takes_changes: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Metadata:
    """Texts of the config files, and of topics and groups what has changed in them; None: as before."""

    topics: str | EncodedChange | None = None
    groups: str | EncodedChange | None = None
    offsets: str | None = None
    delay_offsets: str | None = None
    deleted_offsets: str | None = None  # not RocketMQ's: where deleted queues ended
    confirmed: int | None = None  # up to where the master's log is confirmed
    given_offsets: tuple[int, str] | None = None  # a place in the log, and how far queues had come there
    shared_topics: str | None = None  # not RocketMQ's: what other brokers have of our topics
    version: MetadataVersion | None = None  # an elected leader's, once this is stored
    timers: tuple[int, int] | None = None  # until when delayed messages are delivered, and the log's end then
    log_begin: tuple[int, int] | None = None  # of the master's log, and its end then; see `kept_log.py`

    def since(self, sent: "Metadata") -> "Metadata":
        """Return what differs from what was sent before; topics and groups are what does already."""
        return Metadata(
            topics=self.topics,
            groups=self.groups,
            offsets=self.offsets if self.offsets != sent.offsets else None,
            delay_offsets=self.delay_offsets if self.delay_offsets != sent.delay_offsets else None,
            deleted_offsets=self.deleted_offsets if self.deleted_offsets != sent.deleted_offsets else None,
            confirmed=self.confirmed if self.confirmed != sent.confirmed else None,
            given_offsets=self.given_offsets if self.given_offsets != sent.given_offsets else None,
            shared_topics=self.shared_topics if self.shared_topics != sent.shared_topics else None,
            timers=self.timers if self.timers != sent.timers else None,
            log_begin=self.log_begin if self.log_begin != sent.log_begin else None,
        )

    def over(self, older: "Metadata") -> "Metadata":
        """Return these texts, and the older ones where these have none; topics and groups are not kept."""
        return Metadata(
            offsets=older.offsets if self.offsets is None else self.offsets,
            delay_offsets=older.delay_offsets if self.delay_offsets is None else self.delay_offsets,
            deleted_offsets=older.deleted_offsets if self.deleted_offsets is None else self.deleted_offsets,
            confirmed=older.confirmed if self.confirmed is None else self.confirmed,
            given_offsets=older.given_offsets if self.given_offsets is None else self.given_offsets,
            shared_topics=older.shared_topics if self.shared_topics is None else self.shared_topics,
            timers=older.timers if self.timers is None else self.timers,
            log_begin=older.log_begin if self.log_begin is None else self.log_begin,
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
        log_begin: Callable[[], tuple[int, int]] | None = None,
    ) -> None:
        """Take the tables.

        `offsets` returns the groups' committed offsets, `confirmed` that of the log, `given_offsets` how far
        all queues had come at a place in the log, cheaply while that place is the same, `timers` how far
        delayed messages are delivered, `sharing` what other brokers have of our topics, `log_begin` where our
        log begins and ends.
        """
        self.sharing = sharing
        self.read_log_begin = log_begin
        self.read_timers = timers
        self.read_confirmed = confirmed
        self.read_given_offsets = given_offsets
        self.callbacks: list[tuple[list[Callable[[], None]], Callable[[], None]]] = []
        self.deleted_queues = deleted_queues
        self.topics, self.groups, self.delays = topics, groups, delays
        self.file, self.offsets = file, offsets

    def on_change(self, tables: Callable[[], None], others: Callable[[], None]) -> None:
        """Have callbacks called, until `close`.

        Args:
            tables: when topics or groups have changed.
            others: when it is where deleted queues ended, or what other brokers have of our topics.
        """
        sources = [(self.topics.on_change, tables), (self.groups.on_change, tables)]
        if self.deleted_queues is not None:
            sources.append((self.deleted_queues.on_change, others))
        if self.sharing is not None:
            sources.append((self.sharing.on_change, others))
        for callbacks, callback in sources:
            callbacks.append(callback)
        self.callbacks += sources

    def close(self) -> None:
        """Call nobody any more."""
        for callbacks, callback in self.callbacks:
            callbacks.remove(callback)
        self.callbacks.clear()

    @property
    def versions(self) -> tuple[DataVersion, DataVersion]:
        """The versions of topics and groups."""
        return self.topics.version, self.groups.version

    def tables(self, known: Known) -> Metadata:
        """Return what a slave has not of topics and groups."""
        return Metadata(
            topics=news_of(self.topics, known.topics, takes_changes=known.takes_changes),
            groups=news_of(self.groups, known.groups, takes_changes=known.takes_changes),
        )

    def others(self) -> Metadata:
        """Return where deleted queues ended, and what other brokers have of our topics."""
        return Metadata(
            deleted_offsets=self.deleted_queues.text if self.deleted_queues is not None else None,
            shared_topics=self.sharing.text if self.sharing is not None else None,
        )

    def confirmed(self) -> Metadata:
        """Return only how far the log is confirmed."""
        return Metadata(confirmed=self.read_confirmed() if self.read_confirmed is not None else None)

    def round(self) -> Metadata:
        """Return all texts but those of topics and groups."""
        return Metadata(
            offsets=self.file.encode(self.offsets(), pretty=False),
            delay_offsets=self.delays.text,
            given_offsets=self.read_given_offsets() if self.read_given_offsets is not None else None,
            timers=self.read_timers() if self.read_timers is not None else None,
            log_begin=self.read_log_begin() if self.read_log_begin is not None else None,
        ).over(self.others().over(self.confirmed()))

    def whole(self) -> Metadata:
        """Return what one leader takes over from another: all tables, and delay offsets."""
        return replace(self.everything(Known(), self.others()), delay_offsets=self.delays.text)

    def everything(self, known: Known, rest: Metadata | None = None) -> Metadata:
        """Return all texts, and of topics and groups what a slave has not; `rest` is that of the round."""
        tables = self.tables(known)
        return replace(rest or self.round(), topics=tables.topics, groups=tables.groups)


def news_of(
    table: VersionedTable[Any], known: DataVersion | None, *, takes_changes: bool
) -> str | EncodedChange | None:
    """Return what a slave that has a version of a table needs to have it as it is; None: nothing."""
    if known == table.version:
        return None
    change = table.change_since(known) if takes_changes and known is not None else None
    if change is None:
        return table.encode(pretty=False)
    return EncodedChange(
        before=change.before,
        after=change.after,
        rows=table.encode_rows(change.rows),
        removed=change.removed,
    )
