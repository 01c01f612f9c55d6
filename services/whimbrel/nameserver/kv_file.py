"""The file in which a nameserver keeps what RocketMQ's tools put there (`kv_table.py`).

The setting `kv_config` names it:

    FILE         the table, replaced as a whole; RocketMQ's kvConfig.json may be taken over
    FILE.tmp     the next one, until it bears the name
    FILE.lock    locked for as long as a nameserver keeps the file

A change is answered once it is on disk. Without the setting, which is the default, the table is in memory,
and a warning says so at the first change: nearly nobody has such values, and a nameserver has nothing else on
disk that its containers would need a volume for.
"""

import logging
from pathlib import Path

from whimbrel.errors import StoreError
from whimbrel.machine import FILES, Files
from whimbrel.nameserver.file_lock import lock
from whimbrel.nameserver.kv_table import FILE_BYTES_MAX, BadKvTable, KvTable

__all__ = ["KvStore"]

logger = logging.getLogger(__name__)


class KvStore:
    """The table, and where it is kept. Not thread-safe; a change blocks for the time of two syncs.

    Attributes:
        table: what counts.
    """

    def __init__(self, path: Path | None = None, files: Files = FILES, fd: int = -1) -> None:
        self.path, self.files, self.fd = path, files, fd
        self.table = KvTable()
        self.warned = False

    @classmethod
    def open(cls, name: str, files: Files = FILES) -> "KvStore":
        """Lock a file and read its table; one that is not there yet is made with the first change.

        Args:
            name: of the file; empty for none.

        Raises:
            StoreError: another nameserver keeps it, it is damaged, or the disk refuses; with what to do.
        """
        if not name:
            return cls()
        path = Path(name)
        store = cls(path, files, lock(path, files, "kv_config", "each needs a file of its own"))
        try:
            store.load(path)
        except BaseException:
            store.close()
            raise
        return store

    def load(self, path: Path) -> None:
        """Read the table.

        Raises:
            StoreError: see `open`.
        """
        try:
            if not self.files.exists(path):
                return
            if self.files.size(path) > FILE_BYTES_MAX:
                raise BadKvTable(f"it has more than {FILE_BYTES_MAX} bytes")
            self.table = KvTable.decode(self.files.read_bytes(path))
        except BadKvTable as error:
            raise StoreError(
                f"kv_config: {path} can't be used ({error}): mend it, or move it away"
            ) from error
        except OSError as error:
            raise StoreError(f"kv_config: {path} can't be read: {error}") from error

    def change(self, after: KvTable) -> None:
        """Replace the table; with a file, it is on disk then.

        Raises:
            StoreError: the disk refuses. The table before stands; which one a start would read is not known.
        """
        if self.path is None:
            if not self.warned:
                self.warned = True
                logger.warning(
                    "values that RocketMQ's tools put here are in memory, and lost with this process:"
                    " the setting kv_config names a file for them"
                )
            self.table = after
            return
        new = self.path.with_name(self.path.name + ".tmp")
        try:
            self.files.write_new(new, after.encode())
            self.files.rename(new, self.path)
            self.files.sync_directory(self.path.parent)
        except OSError as error:
            raise StoreError(f"kv_config: {self.path} can't be written: {error}") from error
        self.table = after

    def close(self) -> None:
        """Free the lock."""
        if self.fd >= 0:
            self.files.close(self.fd)
            self.fd = -1
