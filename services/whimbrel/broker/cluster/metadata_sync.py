"""A slave's copy of its master's metadata: watch, apply, watch again; and the lease stream beside it.

Each text is applied as a whole: build the new table, write it, swap it (`tables/versioned.py`), so the slave
never shows a table with topics missing (RocketMQ's slave empties it first). Of topics and groups the master
sends the whole table first, and then what changes in it; a change about another version than the one that is
here ends the watch, and the next one begins with the whole table. Consumer offsets go into the lease state by
the maximum rule. When the master is gone, what was copied last stays.
"""

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

from whimbrel.broker.cluster.backoff import RETRY_S_MAX, Attempt, Pause, keep_trying
from whimbrel.broker.cluster.metadata import EncodedChange, Metadata
from whimbrel.broker.tables.groups import GroupTable
from whimbrel.broker.tables.metadata_version import MetadataVersion
from whimbrel.broker.tables.offset_files import DelayOffsets, decode_offsets
from whimbrel.broker.tables.shared_topics import TopicSharing
from whimbrel.broker.tables.topics import TopicTable
from whimbrel.broker.tables.versioned import VersionedTable
from whimbrel.errors import StoreFull, WhimbrelError
from whimbrel.model.topic import TableChange
from whimbrel.store import jsonconfig

__all__ = ["LeaseSync", "MetadataSync"]

logger = logging.getLogger(__name__)

Watch = Callable[[str], AsyncIterator[Metadata]]
ImportOffsets = Callable[[dict[tuple[str, str], dict[int, int]]], None]


class MetadataSync:
    """Follows one master; `address` returns where it is now, empty while that is unknown."""

    def __init__(
        self,
        topics: TopicTable,
        groups: GroupTable,
        delays: DelayOffsets,
        *,
        address: Callable[[], str],
        watch: Watch,
        import_offsets: ImportOffsets,
        take_deleted_offsets: Callable[[str], None],
        take_given_offsets: Callable[[int, str], None],
        confirmed: Callable[[int], None],
        timers: Callable[[int, int], None] = lambda read_ms, log_end: None,
        log_begin: Callable[[tuple[int, int] | None], None] = lambda begin: None,
        sharing: TopicSharing | None = None,
        check: Callable[[MetadataVersion], None] = lambda version: None,
        applied: Callable[[MetadataVersion], None] = lambda version: None,
    ) -> None:
        """Take the tables to fill.

        `take_deleted_offsets` takes where the queues of deleted topics ended, `take_given_offsets` how far
        all queues had come at a place in the log, `confirmed` how far the master's log is confirmed,
        `timers` how far it has delivered delayed messages, `log_begin` where the master's log begins
        and ended then, None where it does not say, `sharing` what other brokers have of its topics.
        Of an elected leader's, `check` raises a WhimbrelError where a version is not to be applied, and
        `applied` learns which one is on the disk.
        """
        self.check, self.applied = check, applied
        self.sharing = sharing
        self.timers, self.log_begin = timers, log_begin
        self.take_given_offsets = take_given_offsets
        self.confirmed = confirmed
        self.topics, self.groups, self.delays = topics, groups, delays
        self.address = address
        self.watch = watch
        self.import_offsets = import_offsets
        self.take_deleted_offsets = take_deleted_offsets
        self.synced = False  # whether the master's metadata was applied since it was lost last
        self.got = False  # whether any came in the present attempt
        self.pause, self.attempt = Pause(), Attempt()
        self.trouble = ""  # the last one: each is logged once

    def hurry(self) -> None:
        """Try again at once: a master that has just begun to lead refused the last attempt, or has moved.

        A topic that is not copied is one whose messages this slave holds and can't serve.
        """
        self.pause.end()
        self.attempt.end_unless(self.address())

    async def run(self) -> None:
        """Follow the master until cancelled."""
        await keep_trying(self.follow, self.pause)

    async def follow(self) -> bool:
        """Watch the master until that ends; return whether its metadata came in."""
        address, self.got = self.address(), False
        self.pause.begin()
        try:
            if address:
                await self.attempt.run(address, self.copy(address))
        except WhimbrelError as error:
            if str(error) != self.trouble:
                logger.info("metadata can't be copied from %s: %s", address, error)
            self.trouble = str(error)
        self.synced = False
        return self.got

    async def copy(self, address: str) -> None:
        """Apply what the master sends, for as long as it does."""
        async for metadata in self.watch(address):
            if not self.got or metadata.log_begin is not None:
                self.log_begin(metadata.log_begin)
            self.apply(metadata)
            if not self.synced:
                logger.info("metadata is copied from the master at %s", address)
            self.synced, self.trouble, self.got = True, "", True

    def apply(self, metadata: Metadata) -> None:
        """Take over what changed.

        Raises:
            WhimbrelError: it does not fit what is here, can't be written, or is not to be applied.
        """
        if metadata.version is not None:
            self.check(metadata.version)
        if metadata.confirmed is not None:
            self.confirmed(metadata.confirmed)
        if metadata.topics is not None:
            take_over(self.topics, metadata.topics)
        if metadata.deleted_offsets is not None:
            self.take_deleted_offsets(metadata.deleted_offsets)
        if metadata.given_offsets is not None:
            self.take_given_offsets(*metadata.given_offsets)
        if metadata.timers is not None:
            self.timers(*metadata.timers)
        if metadata.shared_topics is not None and self.sharing is not None:
            self.sharing.replace(metadata.shared_topics)
        if metadata.groups is not None:
            take_over(self.groups, metadata.groups)
        if metadata.offsets is not None:
            self.import_offsets(decode_offsets(jsonconfig.loads(metadata.offsets)))
        if metadata.delay_offsets is not None:
            self.delays.replace(metadata.delay_offsets)
        if metadata.version is not None:
            if self.sharing is not None and not self.sharing.saved:
                raise StoreFull("which topics other brokers have can't be written down")
            self.applied(metadata.version)


def take_over(table: VersionedTable[Any], news: str | EncodedChange) -> None:
    """Take over the master's table, or what has changed in it.

    Raises:
        WhimbrelError: the news are not about what is here, or can't be written.
    """
    if isinstance(news, str):
        table.replace_all(news)
    else:
        rows = table.decode_rows(news.rows)
        table.apply(TableChange(before=news.before, after=news.after, rows=rows, removed=news.removed))


class LeaseSync:
    """Keeps a stream of lease entries to the master."""

    def __init__(self, *, address: Callable[[], str], exchange: Callable[[str], Awaitable[None]]) -> None:
        """`exchange` runs one stream to an address until it ends."""
        self.address = address
        self.exchange = exchange
        self.pause, self.attempt = Pause(), Attempt()
        self.trouble = ""

    def hurry(self) -> None:
        """Try again at once: a nameserver has just named a master, or is settled now, as the master is then.

        A master that has just started takes no writes before our lease state has come in.
        """
        self.pause.end()
        self.attempt.end_unless(self.address())

    async def run(self) -> None:
        """Keep the stream until cancelled."""
        await keep_trying(self.stream, self.pause)

    async def stream(self) -> bool:
        """Run one stream; return whether it lasted."""
        address, started = self.address(), asyncio.get_running_loop().time()
        self.pause.begin()
        try:
            if address:
                await self.attempt.run(address, self.exchange(address))
        except WhimbrelError as error:
            if str(error) != self.trouble:
                logger.info("no lease stream to %s: %s", address, error)
            self.trouble = str(error)
        return asyncio.get_running_loop().time() - started > RETRY_S_MAX
