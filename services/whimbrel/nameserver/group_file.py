"""The file in which a nameserver keeps the records of groups, on disk before anybody is answered.

The setting `keeps_groups` names it:

    FILE         the table (`group_table.py`), replaced as a whole
    FILE.tmp     the next one, until it bears the name; one that is left over is written anew
    FILE.lock    locked (flock) for as long as a nameserver keeps the file: a second one is refused

A save writes the next table, syncs it, renames it, and syncs the directory. Until the rename the old table is
in the file, whatever fails. From there on to the end of the directory's sync nobody knows which of the two a
loss of power would leave: if it fails there, the file is *unsure*, and nothing is to be told of the records
before the table that stands was saved once more (`settle`). Else a record could be told, forgotten, and
replaced by one that was refused. A start syncs what it finds, for the same reason.
"""

import os
from pathlib import Path

from whimbrel.errors import StoreError
from whimbrel.machine import FILES, Files
from whimbrel.nameserver.file_lock import lock
from whimbrel.nameserver.group_table import TABLE_BYTES_MAX, BadTable, GroupTable

__all__ = ["GroupFile"]


class GroupFile:
    """The file, locked. Not thread-safe; its calls block for the time of two syncs.

    Attributes:
        unsure: which table it holds is not known.
    """

    __slots__ = ("fd", "files", "path", "unsure")

    def __init__(self, path: Path, files: Files, fd: int) -> None:
        self.path, self.files, self.fd = path, files, fd
        self.unsure = False

    @classmethod
    def open(cls, path: Path, files: Files = FILES) -> tuple["GroupFile", GroupTable]:
        """Lock the file and read its table; a file that is not there yet is made, without groups.

        Raises:
            StoreError: another nameserver keeps it, it is damaged, or the disk refuses; with what to do.
        """
        rule = "one keeps the records, the others leave the setting empty"
        file = cls(path, files, lock(path, files, "keeps_groups", rule))
        try:
            return file, file.load()
        except BaseException:
            file.close()
            raise

    def load(self) -> GroupTable:
        """Return the table, which is on disk then under the file's name.

        Raises:
            StoreError: see `open`.
        """
        path, files = self.path, self.files
        try:
            if not files.exists(path):
                table = GroupTable()
                self.save(table)
                return table
            if files.size(path) > TABLE_BYTES_MAX:
                raise BadTable(f"it has more than {TABLE_BYTES_MAX} bytes")
            table = GroupTable.decode(files.read_bytes(path))
            sync_file(path, files)
            files.sync_directory(path.parent)
        except BadTable as error:
            raise StoreError(
                f"keeps_groups: {path} is damaged ({error}): put its newest copy there, since an older one"
                " forgets elections; or name a file that does not exist, and make the groups anew"
            ) from error
        except OSError as error:
            raise StoreError(f"keeps_groups: {path} can't be read: {error}") from error
        return table

    def save(self, table: GroupTable) -> None:
        """Replace the table, and wait until it is on disk under the file's name.

        Raises:
            StoreError: the disk refuses. The table before stands, unless the file is `unsure`.
        """
        path, files = self.path, self.files
        new = path.with_name(path.name + ".tmp")
        try:
            files.write_new(new, table.encode())
            self.unsure = True
            files.rename(new, path)
            files.sync_directory(path.parent)
        except OSError as error:
            raise StoreError(f"keeps_groups: {path} can't be written: {error}") from error
        self.unsure = False

    def settle(self, table: GroupTable) -> None:
        """Make sure that the file holds the table that stands, where it is not known.

        Raises:
            StoreError: the disk refuses; nothing is to be told of the records.
        """
        if self.unsure:
            self.save(table)

    def close(self) -> None:
        """Free the lock."""
        self.files.close(self.fd)


def sync_file(path: Path, files: Files) -> None:
    """Put a file's content on disk."""
    fd = files.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        files.fsync(fd)
    finally:
        files.close(fd)
