"""Where records are read from, behind one interface: running brokers, a store directory or an archive.

    on the driver     Backend.describe ──► extents, offsets_by_time, confirmed_end ──► plan ──► tasks, pickled
    in an executor    ReadTask.read ──► Arrow batches

A backend is one answer to the question where the queues stand, and does not change; who wants to know how
they stand later describes them again. It stays on the driver; only its tasks travel.
"""

from abc import ABC, abstractmethod
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import ClassVar, Protocol, Self

import pyarrow as pa

from whimbrel.spark.offsets import Key, Positions
from whimbrel.spark.options import SourceOptions
from whimbrel.spark.planning import Extent, OffsetRange
from whimbrel.spark.push_down import UNRESTRICTED, PushDown

__all__ = ["ON_CORRUPT_HINT", "Backend", "ReadRequest", "ReadTask", "merge_small_batches"]

ON_CORRUPT_HINT = (
    "onCorrupt=flag keeps records of bad bodies, with bodyOk=false, onCorrupt=skip leaves out what is"
    " damaged, and decompress=false reads bodies as they are stored"
)
MERGED_ROWS = 4_000  # with so many rows a batch is not small,
MERGED_BYTES = 4 * 1024 * 1024  # nor with so many bytes


class ReadTask(Protocol):
    """The work of one Spark task. Holds only what can be pickled, and opens everything in `read`."""

    def read(self) -> Iterator[pa.RecordBatch]:
        """Yield the batches.

        Raises:
            DataLoss: records are gone, and the options say that this fails.
            CorruptRecord: a record is damaged, and the options say that this fails.
        """


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadRequest:
    """How a query wants its ranges of queues to be read.

    Attributes:
        columns: those of the query's schema, in its order.
        task_bytes: of the log, read by one task; what the kind of query aims at if the options do not say.
        tasks_max: 0 for no bound.
    """

    columns: tuple[str, ...]
    options: SourceOptions
    push_down: PushDown = UNRESTRICTED
    task_bytes: int
    tasks_max: int = 0


def merge_small_batches(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Merge small batches, those of several queues for instance: each batch costs a transfer to the JVM."""
    held: list[pa.RecordBatch] = []
    rows = size = 0
    for batch in batches:
        held.append(batch)
        rows, size = rows + batch.num_rows, size + batch.nbytes
        if rows >= MERGED_ROWS or size >= MERGED_BYTES:
            yield from merged(held)
            held, rows, size = [], 0, 0
    yield from merged(held)


def merged(batches: Sequence[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Yield several batches as one."""
    if len(batches) < 2:
        yield from batches
    else:
        yield from pa.Table.from_batches(batches).combine_chunks().to_batches()


class Backend(ABC):
    """A place to read records from, as it stood when it was described.

    Attributes:
        has_physical_offsets: it knows where in the log a record stands, so that a filter on that can be
            pushed down.
        shows_empty_queues: it knows queues that never had a message.
        extents: where the queues that are read stand; empty where records are read by their place in the log.
        away: what can't be known now, by broker name, and why: queues of these brokers are not in
            `extents`, or end there where a slave knows them to.
    """

    has_physical_offsets: ClassVar[bool]
    shows_empty_queues: ClassVar[bool]
    extents: Mapping[Key, Extent]
    away: Mapping[str, str] = MappingProxyType({})

    @classmethod
    @abstractmethod
    def describe(
        cls,
        options: SourceOptions,
        *,
        first_contact: bool = False,
        whole: bool = True,
        known: Collection[str] = (),
    ) -> Self:
        """Return how the queues stand now.

        Args:
            options: of the query.
            first_contact: a query begins: who does not answer in seconds is taken for a wrong address.
            whole: nothing may be left out, unless the options allow it; otherwise `away` tells what is.
            known: brokers that had some of what is read: one that is not registered is away.

        Raises:
            Incomplete: `whole`, and something can't be asked for.
            NotThere: a topic that is named is not there.
        """

    @property
    @abstractmethod
    def selects_by_time(self) -> bool:
        """Whether its tasks select records by store time; otherwise times are turned into queue offsets."""

    @abstractmethod
    def offsets_by_time(self, keys: Sequence[Key], at_ms: int) -> Positions:
        """Return the first offset of each queue that was stored at a time or later, else the queue's end.

        Not called where tasks select by time.
        """

    @abstractmethod
    def confirmed_end(self, key: Key) -> int | None:
        """Return where a queue ends for certain; None when that is not known now.

        `extents` may show less for a while: a slave that lags, or a master that waits for its slaves.
        """

    @abstractmethod
    def plan(self, ranges: Sequence[OffsetRange], request: ReadRequest) -> Sequence[ReadTask]:
        """Return the tasks that read some ranges."""
