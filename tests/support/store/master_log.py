"""A master's commitlog without a broker: real records, appended and shown the way a broker does it.

with MasterLog(tmp_path / "master", file_size=65536) as master:
    master.append(100, body_bytes=1000)
    master.end, master.page
"""

import random
import struct
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import Self

from whimbrel.store.codec import RecordDraft, encode_record, pack_host, record_size
from whimbrel.store.commitlog import LogWriter
from whimbrel.store.options import StoreOptions
from whimbrel.store.shared_page import SharedPage
from whimbrel.wakeup import Doorbell

__all__ = ["HOST", "MasterLog", "log_files", "records_in_log", "same_log"]

BLANK = 0xCBD43194  # magic of the record that ends a file
HOST = pack_host("127.0.0.1", 8091)


class MasterLog:
    """The log of a store directory, open for writing as a broker would have it."""

    def __init__(self, root: Path, *, file_size: int, seed: int = 1) -> None:
        self.root, self.file_size = root, file_size
        self.chance = random.Random(seed)
        self.count = 0
        self.page = SharedPage.open(root)
        self.bell = Doorbell(root, "broker")
        self.open()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.log.close(clean=False)
        self.bell.close()

    def open(self) -> None:
        """Recover the log: a new epoch."""
        options = StoreOptions(commitlog_file_size=self.file_size)
        self.log = LogWriter.open(self.root, options)

    def reopen(self) -> None:
        """End as a killed broker does, and come back."""
        self.log.close(clean=False)
        self.open()

    @property
    def end(self) -> int:
        """End of the log."""
        return self.log.end

    def append(self, count: int, *, body_bytes: int = 500) -> int:
        """Append so many records, then move the mark and ring as at the end of a broker's tick."""
        for _ in range(count):
            draft = RecordDraft(
                topic="interop",
                queue_id=0,
                body=self.chance.randbytes(body_bytes),
                properties=b"KEYS\x01k%d\x02" % self.count,
                born_timestamp=1_700_000_000_000,
                born_host=HOST,
                store_host=HOST,
            )
            offset = self.log.reserve(record_size(draft))
            self.log.put(
                encode_record(
                    draft,
                    physical_offset=offset,
                    queue_offset=self.count,
                    store_timestamp=1_700_000_000_000 + self.count,
                )
            )
            self.count += 1
        self.log.publish()
        if self.page.replica_sleeping:
            self.bell.ring("replicator")
        return self.end


def records_in_log(store: Path) -> Iterator[bytes]:
    """Yield the records of a commitlog, without what ends its files; reads the bytes with nothing of ours."""
    for path in sorted((store / "commitlog").iterdir()):
        data = path.read_bytes()
        position = 0
        while position + 8 <= len(data):
            size, magic = struct.unpack_from(">iI", data, position)
            if magic == BLANK or size <= 0:
                break
            yield data[position : position + size]
            position += size


def log_files(root: Path) -> dict[int, Path]:
    """Return the log files of a store by the offset they start at."""
    return {int(path.name): path for path in sorted((root / "commitlog").iterdir())}


def same_log(master: Path, slave: Path, end: int) -> bool:
    """Tell whether the slave's log holds the master's bytes from the slave's first byte to `end`."""
    ours, theirs = log_files(master), log_files(slave)
    checked = 0
    for start, path in theirs.items():
        if start >= end:
            continue
        size = min(path.stat().st_size, end - start)
        with path.open("rb") as copy, ours[start].open("rb") as original:
            if copy.read(size) != original.read(size):
                return False
        checked = start + size
    return checked == end
