"""What tests of archives share: batches as the source gives them, a disk that stops, what readers see."""

from collections.abc import Iterator, Sequence
from pathlib import Path

import pyarrow as pa
import pyarrow.dataset as ds

from support.store.column_records import record
from whimbrel.spark.archiving.batches import Batch, clear_abandoned
from whimbrel.spark.archiving.files import ARCHIVED, BatchTarget, write_task
from whimbrel.spark.archiving.folder import Disk, Folder
from whimbrel.spark.archiving.manifests import Manifest
from whimbrel.store.columns import Decoder, frame

__all__ = ["DAY_MS", "NOON", "Stopped", "StoppingDisk", "batch_of", "rows_of", "seen", "write_batch"]

DAY_MS = 86_400_000
NOON = 1_700_000_000_000 // DAY_MS * DAY_MS + DAY_MS // 2  # of 2023-11-14

Row = tuple[str, str, int, int]
Ranges = Sequence[tuple[str, int, int, int]]  # topic, queue, first offset, end


class Stopped(BaseException):
    """The process died here."""


class StoppingDisk(Disk):
    """A disk whose process dies before its step number `left`."""

    def __init__(self, left: int) -> None:
        self.left = left

    def step(self) -> None:
        if not self.left:
            raise Stopped
        self.left -= 1

    def make(self, folder: Path) -> None:
        self.step()
        super().make(folder)

    def put(self, path: Path, text: str) -> None:
        self.step()
        path.write_text(text[: len(text) // 2])  # died while writing
        self.step()
        super().put(path, text)

    def rename(self, source: Path, target: Path) -> None:
        self.step()
        super().rename(source, target)

    def remove(self, path: Path) -> None:
        self.step()
        super().remove(path)

    def sync(self, folder: Path) -> None:
        super().sync(folder)


def batch_of(
    topic: str,
    queue_id: int,
    first: int,
    end: int,
    *,
    broker: str = "broker-a",
    stored_ms: int = NOON,
    properties: bytes = b"A\x01b",
    body: bytes = b"body",
) -> pa.RecordBatch:
    """Return the rows of a range of one queue as the source gives them."""
    data = bytearray()
    for offset in range(first, end):
        data += record(
            len(data),
            topic=topic.encode(),
            queue_id=queue_id,
            queue_offset=offset,
            stored_ms=stored_ms,
            properties=properties,
            body=body + b"%d" % offset,
        )
    decoder = Decoder(ARCHIVED, broker_name=broker, raw_bodies=True, rows_max=end - first)
    (made,) = decoder.batches(frame(bytes(data)))
    return made


def write_batch(folder: Folder, query: str, number: int, ranges: Ranges, tasks: int = 1) -> Manifest | None:
    """Write a batch as the job does; `tasks` is how many share its ranges."""
    with folder.locked(query):
        clear_abandoned(folder, query)
        batch = Batch(folder, query, number)
        if not batch.begin():
            return None
        target = BatchTarget(folder.root, query, number)
        staged = [
            file
            for task in range(tasks)
            for file in write_task(target, [batch_of(*each) for each in ranges[task::tasks]])
        ]
        return batch.finish(staged)


def seen(root: Path) -> list[Row]:
    """Return what a reader of the folder sees that knows nothing of us."""
    found = ds.dataset(root, format="parquet", partitioning="hive")
    if "queueOffset" not in found.schema.names:
        return []
    rows = found.to_table(columns=["topic", "brokerName", "queueId", "queueOffset"]).to_pylist()
    return sorted((row["topic"], row["brokerName"], row["queueId"], row["queueOffset"]) for row in rows)


def rows_of(ranges: Ranges, broker: str = "broker-a") -> Iterator[Row]:
    """Give the rows of ranges."""
    for topic, queue_id, first, end in ranges:
        for offset in range(first, end):
            yield topic, broker, queue_id, offset
