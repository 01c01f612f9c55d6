"""`STORE/epochFileCheckpoint`: the log's list of epochs, on disk before anybody is told of an epoch in it.

The process that writes the log writes the file: the broker of a master before the first record of its epoch,
the replicator of a slave before it reports an end that has reached an epoch's start. The other one reads it.
The text is RocketMQ's (`ha/epochs.py`), and the file is replaced as a whole, so a reader sees the list as it
was before, or as it is now.
"""

from pathlib import Path
from typing import Final

from whimbrel.errors import StoreError
from whimbrel.ha.epochs import TEXT_BYTES_MAX, BadEpochs, Epochs, check_epochs, decode_epochs, encode_epochs
from whimbrel.machine import FILES, Files

__all__ = ["EPOCH_FILE", "EpochFile"]

EPOCH_FILE: Final = "epochFileCheckpoint"


class EpochFile:
    """The file of one store."""

    __slots__ = ("files", "path")

    def __init__(self, root: Path, files: Files = FILES) -> None:
        self.path, self.files = root / EPOCH_FILE, files

    def load(self) -> Epochs:
        """Return the list; an empty one without a file, or from an empty file.

        After a power cut it may name epochs that start behind the end of the log: see `epochs.reached`.

        Raises:
            StoreError: the file is damaged, or can't be read.
        """
        files = self.files
        try:
            if not files.exists(self.path) or not files.size(self.path):
                return ()
            if files.size(self.path) > TEXT_BYTES_MAX:
                raise BadEpochs(f"more than {TEXT_BYTES_MAX} bytes")
            return decode_epochs(files.read_bytes(self.path))
        except BadEpochs as error:
            raise StoreError(
                f"{self.path} is damaged: {error}; begin with a backup that is put back by `whimbrel"
                " restore`, or with an empty store: without this list nobody knows how far the log goes"
            ) from error
        except OSError as error:
            raise StoreError(f"{self.path} can't be read: {error}") from error

    def save(self, epochs: Epochs) -> None:
        """Replace the list, and wait until it is on disk under its name.

        Raises:
            BadEpochs: no log can have such a list.
            StoreError: the disk refuses.
        """
        check_epochs(epochs)
        files, new = self.files, self.path.with_name(EPOCH_FILE + ".tmp")
        try:
            files.write_new(new, encode_epochs(epochs))
            files.rename(new, self.path)
            files.sync_directory(self.path.parent)
        except OSError as error:
            raise StoreError(f"{self.path} can't be written: {error}") from error
