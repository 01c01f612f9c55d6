"""Which metadata a member of a group that elects its leader has: `STORE/whimbrel/metadata.json`.

    {"counter":7,"epoch":3}

The version orders what leaders have made of topics, groups and where deleted queues ended: by the epoch of
the leader, then by its count of changes. It is written after the tables that it is about, so these may be
newer than it says, by a change of which nobody was told that it is stored, and never older. RocketMQ's own
`dataVersion` orders nothing here: two leaders, one of which is lost, may both count on from the same one.

**What a member has lost of it.** A table whose file is damaged or gone goes on with its predecessor, or
empty: it may lack changes that were answered. So it has no version then (`forget`), anybody else's tables
win, and no leader that has such tables makes them everybody's. And until it has a leader's again, this
member does not count among those that have told a new leader what was answered (`lost`): a majority that
has an answer has one member less that knows it. The same holds for a lease journal that is damaged or
gone. Where this file itself is damaged, the version is not known either.
"""

import logging
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from whimbrel.errors import StoreError
from whimbrel.machine import FILES, Files
from whimbrel.store import jsonconfig

__all__ = ["MetadataVersion", "MetadataVersionFile"]

logger = logging.getLogger(__name__)

TABLES, LEASES = "tables", "leases"


@dataclass(frozen=True, slots=True, order=True)
class MetadataVersion:
    """A version; (0, 0) is that of metadata which no elected leader has made."""

    epoch: int = 0
    counter: int = 0


class MetadataVersionFile:
    """The version of this store's tables, in memory and on disk."""

    def __init__(self, store_root: Path, files: Files = FILES) -> None:
        """Read the file, if there is one.

        Raises:
            StoreError: it is damaged, and so is its predecessor.
        """
        self.path, self.files = store_root / "whimbrel" / "metadata.json", files
        found, newest = jsonconfig.open_own(self.path, self.take, files)
        self.version, self.lost = found or (MetadataVersion(), frozenset())
        if found is not None and not newest:
            self.version, self.lost = MetadataVersion(), self.lost | {TABLES}

    def take(self, content: Any) -> tuple[MetadataVersion, frozenset[str]]:
        """Return what a parsed file says."""
        try:
            lost = frozenset(content.get("lost", ())) & {TABLES, LEASES}
            return MetadataVersion(int(content["epoch"]), int(content["counter"])), lost
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise StoreError(f"{self.path} holds no version: {error!r}") from error

    def forget(self) -> None:
        """Take note that a table here is older than the version says, or gone.

        Raises:
            StoreFull: the disk has no room for that; the tables are not to be used.
        """
        if self.version != MetadataVersion():
            logger.warning(
                "the topics or groups here may be older than version %s, which is forgotten: those of any"
                " other member win",
                self.version,
            )
            self.write(MetadataVersion(), self.lost | {TABLES})

    def lose_leases(self, why: str) -> None:
        """Take note that what is known of leases here may lack what was answered.

        A member of no group has answered for nothing by a majority: nothing is noted.

        Raises:
            StoreFull: the disk has no room for that; what is known is not to be used.
        """
        if self.version != MetadataVersion() or self.lost:
            logger.error(
                "this member may have lost acknowledgements and positions that it had answered for: %s; it"
                " does not count as one that knows them until it has all that a leader has",
                why,
            )
            self.write(self.version, self.lost | {LEASES})

    def regain_leases(self) -> None:
        """Take note that all that a leader has of leases is on the disk.

        Raises:
            StoreFull: the disk has no room for that; nothing has changed.
        """
        self.write(self.version, self.lost - {LEASES})

    def regain(self) -> None:
        """Take note that this member leads, and has all that a majority had.

        Raises:
            StoreFull: the disk has no room for that; nothing has changed.
        """
        self.write(self.version, frozenset())

    def save(self, version: MetadataVersion) -> None:
        """Write another version down.

        Raises:
            StoreFull: the disk has no room; the version is as it was.
        """
        self.write(version, self.lost - {TABLES})

    def write(self, version: MetadataVersion, lost: frozenset[str]) -> None:
        """Write both down; raises StoreFull, and then nothing has changed."""
        if (version, lost) == (self.version, self.lost):
            return
        content: dict[str, Any] = {"counter": version.counter, "epoch": version.epoch}
        if lost:
            content["lost"] = sorted(lost)
        jsonconfig.save(self.path, jsonconfig.dumps(content), self.files)
        self.version, self.lost = version, lost
