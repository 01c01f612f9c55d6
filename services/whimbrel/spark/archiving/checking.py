"""Findings about an archive: from its manifests, the names of its files, and faults of the files. Pure.

    gap          offsets between the ranges of a queue that no file holds
    holes        a file has fewer rows of a queue than offsets between its first and last
    overlap      offsets that two files hold
    lost         a manifest names a file that is not there
    stray        a visible file that no manifest names, and that belongs to no batch in progress
    damaged      a file whose size or CRC differs from the manifest's (`--deep`)

A file of a batch that is in progress, or was cut short, is no finding: the retry of the batch removes it. Nor
are hidden files.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from whimbrel.spark.archiving.layout import owner_of, topic_of
from whimbrel.spark.archiving.manifests import ManifestEntry
from whimbrel.spark.archiving.ranges import QueueSpan, by_key, gaps, overlaps

__all__ = ["COLUMNS", "Leftovers", "leftovers", "report", "span_findings"]

COLUMNS = (
    "topic string, broker string, queueId int, messages bigint, bytes bigint, logBytes bigint, files int,"
    " firstOffset bigint, lastOffset bigint, firstStored timestamp, lastStored timestamp, gaps int,"
    " finding string"
)
SHOWN_MAX = 3  # findings of a row that are written out; the others are counted
RowKey = tuple[str, str | None, int | None]


@dataclass(frozen=True, slots=True)
class Leftovers:
    """Files that no manifest names: stray ones, which readers see, and those of unfinished batches."""

    stray: tuple[str, ...]
    unfinished: tuple[str, ...]


@dataclass
class QueueTotals:
    """Totals of a row of the report."""

    messages: int = 0
    size: float = 0
    log_bytes: float = 0
    files: set[str] = field(default_factory=set)
    first: int = 2**63
    last: int = -1
    first_stored: int = 2**62
    last_stored: int = -(2**62)
    gaps: int = 0
    findings: list[str] = field(default_factory=list)


def span_findings(queue: Sequence[QueueSpan]) -> tuple[list[str], int]:
    """Return the findings about the ranges of one queue, which are in order, and the number of gaps."""
    _, broker, queue_id = queue[0].key
    where = f"queue {queue_id} of {broker}"
    missing = gaps(queue)
    found = [f"{where}: offsets {first} to {end} are missing" for first, end in missing]
    found += [
        f"{where}: {span.end - span.first - span.rows} of the offsets {span.first} to {span.end} are missing"
        f" in {span.path}"
        for span in queue
        if span.rows < span.end - span.first
    ]
    found += [
        f"{where}: offsets {first} to {end} stand in both {one.path} and {other.path}"
        for first, end, one, other in overlaps(queue)
    ]
    return found, len(missing)


def leftovers(
    names: Iterable[str],
    entries: Iterable[ManifestEntry],
    replaced: Iterable[str],
    under_way: Iterable[tuple[str, int]],
) -> Leftovers:
    """Return the files that no manifest names."""
    known, open_batches = {entry.path for entry in entries}, set(under_way)
    stray, unfinished = [], []
    gone = set(replaced)
    for name in names:
        if name in known:
            continue
        base = name.rpartition("/")[2]
        if base.startswith("_") or (owner_of(base) in open_batches and name not in gone):
            unfinished.append(name)
        elif base.endswith(".parquet"):
            stray.append(name)
    return Leftovers(tuple(sorted(stray)), tuple(sorted(unfinished)))


def report(
    entries: Sequence[ManifestEntry],
    *,
    all_entries: Sequence[ManifestEntry],
    queues: bool,
    broken: Mapping[str, str] | None = None,
    stray: Iterable[str] = (),
) -> list[tuple[object, ...]]:
    """Return the rows of the report.

    Args:
        entries: the files that the report counts.
        all_entries: all files of the archive, between which gaps are found.
        queues: a row for each queue, else for each topic.
        broken: faults of files, by path.
        stray: files that no manifest names.
    """
    rows: dict[RowKey, QueueTotals] = {}

    def row_of(topic: str, broker: str, queue_id: int) -> QueueTotals:
        return rows.setdefault((topic, broker, queue_id) if queues else (topic, None, None), QueueTotals())

    for entry in entries:
        for part in entry.queues:
            row, share = row_of(entry.topic, entry.broker, part.queue_id), part.rows / max(entry.rows, 1)
            row.messages += part.rows
            row.size += entry.size * share
            row.log_bytes += entry.log_bytes * share
            row.files.add(entry.path)
            row.first, row.last = min(row.first, part.first), max(row.last, part.end - 1)
            row.first_stored = min(row.first_stored, entry.first_stored)
            row.last_stored = max(row.last_stored, entry.last_stored)
            if problem := (broken or {}).get(entry.path):
                text = f"{entry.path} {problem}"
                row.findings += [text] if text not in row.findings else []
    touched = {(entry.topic, entry.broker, part.queue_id) for entry in entries for part in entry.queues}
    for key, queue in by_key(span for entry in all_entries for span in entry.spans()).items():
        if key in touched:
            found, count = span_findings(queue)
            row_of(*key).findings += found
            row_of(*key).gaps += count
    table_rows = [row_of_totals(group, rows[group]) for group in sorted(rows, key=sort_key)]
    return table_rows + [stray_row(path) for path in stray]


def sort_key(group: RowKey) -> tuple[str, str, int]:
    """Return the sort key of a row."""
    return group[0], group[1] or "", group[2] or 0


def row_of_totals(group: RowKey, row: QueueTotals) -> tuple[object, ...]:
    """Return a row of the table; times are microseconds."""
    findings = row.findings
    text = "; ".join(findings[:SHOWN_MAX])
    if len(findings) > SHOWN_MAX:
        text += f"; and {len(findings) - SHOWN_MAX} more"
    numbers = (row.messages, round(row.size), round(row.log_bytes), len(row.files), row.first, row.last)
    return (*group, *numbers, row.first_stored, row.last_stored, row.gaps, text or None)


def stray_row(path: str) -> tuple[object, ...]:
    """Return the row of a stray file."""
    finding = f"{path} is in no manifest: readers see it, and no batch wrote it; move it away"
    return (topic_of(path), *(None,) * 11, finding)
