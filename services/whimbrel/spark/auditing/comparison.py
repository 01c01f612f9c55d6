"""Shared by the comparisons of queues and of the index: splits of the log, rows for Spark, bounds."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from whimbrel.spark.auditing.derived_files import DerivedFiles

__all__ = ["BUCKETS_MAX", "LogSplit", "Row", "batch", "touched"]

BUCKETS_MAX = 20_000  # that differ and are examined, of the queues and of the index each
ROW_TYPES = {
    "string": pa.string(), "long": pa.int64(), "int": pa.int32(), "boolean": pa.bool_(),
}  # fmt: skip

Row = tuple[Any, ...]


@dataclass(frozen=True, slots=True)
class LogSplit:
    """A split of the log; without `wanted` it is summed up, else the entries of these buckets are read."""

    view: DerivedFiles
    begin: int
    end: int
    wanted: frozenset[Any] | None = None


def batch(schema: str, rows: Sequence[Row]) -> pa.RecordBatch:
    """Return rows as a record batch of a schema as Spark writes it."""
    fields = [word.split() for word in schema.split(",")]
    columns: list[list[Any]] = (
        [list(column) for column in zip(*rows, strict=True)] if rows else [[]] * len(fields)
    )
    arrays = [pa.array(column, ROW_TYPES[kind]) for column, (_, kind) in zip(columns, fields, strict=True)]
    return pa.record_batch(arrays, names=[name for name, _ in fields])


def touched(splits: Sequence[tuple[int, int]], spans: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
    """Return the splits that overlap any of some ranges, which include their ends."""
    if not spans:
        return []
    found = []
    ordered = sorted(spans)
    at, reach = 0, -1
    for begin, end in splits:
        while at < len(ordered) and ordered[at][0] < end:
            reach = max(reach, ordered[at][1])
            at += 1
        if reach >= begin:
            found.append((begin, end))
    return found
