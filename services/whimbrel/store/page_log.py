"""The log's progress in the page of marks: where it begins and ends, what is on disk, and in which epoch.

    at    cells                                                                         written by
      64  epoch, begin, written, flushed, file size, pid, beat, epochs so far           the log's writer
    4080  replaced, doubtful                                                            the log's writer

The log's writer is a master's broker, or a slave's replicator.

**Epochs.** The log's writer calls `recovering()` (epoch 0), recovers, then calls `recovered(...)`, which
makes the epoch one more than any before it. The other process waits for an epoch above 0; when the epoch
changes, the log's end may have moved back.

**Replaced** counts the log files that were written again under their old names (`failed_sync.py`): a reader
that has such a file open must open it anew before it reads what was appended since. **Doubtful** is 0, or one
more than the log offset from which on a failed sync leaves it open what is on disk. Processes of an earlier
version have neither cell.
"""

from whimbrel.store.page_cells import Cell, Part

__all__ = ["LOG", "LogProgress"]

LOG, FILES = 64, 4080
LOG_BEGIN, LOG_WRITTEN, REPLACED = (LOG + 8) // 8, (LOG + 16) // 8, FILES // 8  # numbers of cells


class LogProgress(Part):
    """The cells of the log's writer."""

    epoch = Cell(LOG)  # 0: the log is not recovered
    begin = Cell(LOG + 8)  # start of the log's first file
    written = Cell(LOG + 16)  # end of the log: bytes below may be read, replicated, dispatched
    flushed = Cell(LOG + 24)  # bytes below are on disk
    file_size = Cell(LOG + 32)
    log_pid = Cell(LOG + 40)
    log_beat_ns = Cell(LOG + 48)  # time.monotonic_ns() of the writer's last turn
    epoch_count = Cell(LOG + 56)  # the highest epoch so far; only `recovered` changes it
    replaced = Cell(FILES)  # log files that were written again under their names; moves before `written`
    doubtful = Cell(FILES + 8)  # offset + 1 from which the log may not be on disk although synced; 0: none

    def recovering(self) -> None:
        """Mark the log as being recovered: its cells may not be relied on."""
        self.epoch = 0

    def recovered(self, *, begin: int, written: int, flushed: int, file_size: int, pid: int) -> int:
        """Publish a recovered log and start its epoch.

        Returns:
            The new epoch.
        """
        self.begin, self.written, self.flushed = begin, written, flushed
        self.file_size, self.log_pid = file_size, pid
        self.epoch_count = epoch = self.epoch_count + 1
        self.epoch = epoch  # last: a process that sees it sees the other cells
        return epoch

    def log_range(self) -> tuple[int, int, int]:
        """Return begin, written and replaced, looked at in this order: for each read of the log."""
        cells = self.cells
        return cells[LOG_BEGIN], cells[LOG_WRITTEN], cells[REPLACED]
