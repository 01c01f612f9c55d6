"""Positions of groups to and from RocketMQ's consumerOffset.json, which stands beside the lease state.

    start     the file is read: positions that lie ahead of ours were RocketMQ's, and are adopted, as far as
              the log goes, with what its groups held below them
    then      it is written every `EXPORT_INTERVAL_S`, in a thread, and at the end
    slave     its master's file is adopted in the same way, while the master lives

The lease journal knows what the file knows, unless RocketMQ wrote the file. So a damaged one is no harm where
the journal has positions.
"""

import asyncio
import logging
from pathlib import Path

from whimbrel.broker.consume.popped import REVIVE_GROUP, Held, popped
from whimbrel.broker.consume.positions import Positions
from whimbrel.broker.tables.offset_files import EXPORT_INTERVAL_S, OffsetFile, Offsets
from whimbrel.broker.tables.topics import TopicTable
from whimbrel.errors import StoreError, StoreFull
from whimbrel.machine import Machine
from whimbrel.model.names import POP_PREFIX
from whimbrel.store.store import MessageStore

__all__ = ["OffsetExchange"]

logger = logging.getLogger(__name__)


class OffsetExchange:
    """Adopts positions from the file, and keeps it up to date."""

    def __init__(
        self,
        root: Path,
        store: MessageStore,
        topics: TopicTable,
        positions: Positions,
        file: OffsetFile,
        machine: Machine,
    ) -> None:
        """Take the store at `root`, open, with its topics, the positions of its groups, and the file."""
        self.root, self.store, self.topics = root, store, topics
        self.positions, self.file, self.machine = positions, file, machine
        self.lock = machine.lock()  # a thread may be writing when the last export comes
        self.wanted: Offsets = {}  # the newest; replaced, never changed

    def adopt_file(self) -> None:
        """Take over what the file knows better.

        Raises:
            StoreError: the file is damaged, and so is its predecessor, and nothing else knows the positions.
        """
        stored = self.stored()
        if beyond := self.beyond_log(stored):
            logger.warning(
                "%s holds %d positions beyond what the log holds, as %s: each is taken as its queue's end",
                self.file.path,
                len(beyond),
                beyond[0],
            )
        if self.adopt(stored):
            self.export()  # what groups held under RocketMQ is not to be adopted again

    def adopt(self, offsets: Offsets) -> bool:
        """Take over positions that lie ahead of ours, as far as the log goes.

        Returns:
            Whether groups held messages below them.
        """
        news = [
            (group, topic, queue_id, offset)
            for (topic, group), queues in offsets.items()
            for queue_id, offset in queues.items()
            if self.positions.is_news(group, topic, queue_id, offset)
        ]
        held = self.popped(offsets) if news else {}
        for group, topic, queue_id, offset in news:
            self.positions.import_offset(
                group, topic, queue_id, offset, held.get((group, topic, queue_id), ())
            )
        return bool(held)

    def export(self) -> None:
        """Write consumerOffset.json."""
        self.wanted = self.positions.committed_offsets()
        self.write()

    def write(self) -> None:
        """Write what is wanted by now; in any thread."""
        with self.lock:
            try:
                self.file.save(self.wanted, self.machine.wall_ms())
            except (OSError, StoreFull) as error:  # the lease journal has them as well
                logger.warning("the consumer offsets can't be written: %s", error)

    async def export_forever(self) -> None:
        """Write the file again and again, in a thread."""
        while True:
            await asyncio.sleep(EXPORT_INTERVAL_S)
            self.wanted = self.positions.committed_offsets()
            await asyncio.to_thread(self.write)

    def stored(self) -> dict[tuple[str, str], dict[int, int]]:
        """Return what the file holds; nothing when it is damaged and the journal knows as much."""
        try:
            return self.file.load()
        except StoreError as error:
            if not self.positions.committed_offsets():
                raise  # a store that RocketMQ has used: nothing else knows how far its groups are
            logger.warning("going on with the offsets of the lease journal: %s", error)
            return {}

    def beyond_log(self, offsets: Offsets) -> list[str]:
        """Return, for people, the positions that lie beyond their queues and that the lease journal has not.

        A slave's journal may be ahead of its log, and so may the file that was exported from it.
        """
        known = self.positions.committed_offsets()
        return [
            f"{offset} of {group} on {topic}/{queue_id}, which ends at {end}"
            for (topic, group), queues in offsets.items()
            for queue_id, offset in queues.items()
            if offset > (end := self.store.queue_range(topic, queue_id)[1])
            and offset != known.get((topic, group), {}).get(queue_id)
        ]

    def popped(self, offsets: Offsets) -> dict[tuple[str, str, int], list[Held]]:
        """Return what groups held when RocketMQ used this store last."""
        rows = self.topics.rows.values()
        topics = {row.name: row.read_queues for row in rows if row.name.startswith(POP_PREFIX)}
        if not topics:
            return {}
        path, files = self.root / "config" / "timercheck", self.machine.files
        moved = files.read_bytes(path)[:8] if files.exists(path) else b""
        return popped(
            self.store,
            topics,
            revived=lambda topic, queue_id: offsets.get((topic, REVIVE_GROUP), {}).get(queue_id, -1) + 1,
            moved_ms=int.from_bytes(moved, "big", signed=True),
            now_ms=self.machine.wall_ms(),
        )
