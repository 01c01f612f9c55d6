"""Which metadata a member of a group that elects its leader has: `STORE/whimbrel/metadata.json`.

    {"counter":7,"epoch":3}

The version orders what leaders have made of topics, groups and where deleted queues ended: by the epoch of
the leader, then by its count of changes. It is written after the tables that it is about, so these may be
newer than it says, by a change of which nobody was told that it is stored, and never older. RocketMQ's own
`dataVersion` orders nothing here: two leaders, one of which is lost, may both count on from the same one.

A table whose file is damaged goes on with its predecessor, which may lack changes that were answered: it has
no version then (`forget`), so anybody else's tables win, and no leader that has such tables makes them
everybody's. Where this file itself is damaged, the version is not known either.
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
        self.version = found if found is not None and newest else MetadataVersion()

    def take(self, content: Any) -> MetadataVersion:
        """Return what a parsed file says."""
        try:
            return MetadataVersion(int(content["epoch"]), int(content["counter"]))
        except (KeyError, TypeError, ValueError) as error:
            raise StoreError(f"{self.path} holds no version: {error!r}") from error

    def forget(self) -> None:
        """Take note that a table here is older than the version says.

        Raises:
            StoreFull: the disk has no room for that; the tables are not to be used.
        """
        if self.version != MetadataVersion():
            logger.warning(
                "the topics or groups here may be older than version %s, which is forgotten: those of any"
                " other member win",
                self.version,
            )
            self.save(MetadataVersion())

    def save(self, version: MetadataVersion) -> None:
        """Write another version down.

        Raises:
            StoreFull: the disk has no room; the version is as it was.
        """
        if version == self.version:
            return
        text = jsonconfig.dumps({"counter": version.counter, "epoch": version.epoch})
        jsonconfig.save(self.path, text, self.files)
        self.version = version
