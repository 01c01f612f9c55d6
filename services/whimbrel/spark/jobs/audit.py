"""`audit`: compares a master's log with its slaves': by checksums, then down to the record that differs.

    1  the CRC32 of each chunk of 16 MiB of every member, where the log is      checksums.py
    2  of chunks that differ: the bytes that do, and the records they are in    differences.py
    3  with `deep`: the log of each member against its queues and index         verify_index.py

Each member is a store directory, which the executors read, or a broker, which reads for itself: checksums are
transferred, and of the log only chunks that differ. Logs are compared up to the confirmed end of both sides;
a slave that is behind is reported, and is no finding. Slaves are described before their master, so that none
can seem to be ahead of a master that goes on meanwhile.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa

from whimbrel.spark.auditing import checksums
from whimbrel.spark.auditing.checksums import CHUNK_BYTES, Checksums, sum_up
from whimbrel.spark.auditing.differences import Difference, Side, differences, extra
from whimbrel.spark.auditing.findings import (
    SCHEMA,
    Counts,
    ReportRow,
    bytes_text,
    general_row,
    record_rows,
    segment_rows,
)
from whimbrel.spark.auditing.known_checksums import KnownChecksums, KnownFile
from whimbrel.spark.auditing.members import Member, MemberState, agreed_size, bytes_between, describe_member
from whimbrel.spark.auditing.parallel import parallelize, run_each
from whimbrel.spark.auditing.ranges import FilePart, LogRange, common_range, parts_of
from whimbrel.spark.jobs.verify_index import VerifyOptions, faults_of
from whimbrel.spark.reporting import JobError, ProgressCallback, ignore_progress

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

__all__ = ["AuditOptions", "audit"]

EXAMINED_MAX = 1024  # chunks of each slave: 16 GiB that differ are enough to see what is wrong
DETAIL = (
    "slave int, segment long, at long, topic string, queueId int, queueOffset long, lastOffset long,"
    " records long, count long, masterCrc string, slaveCrc string, kind string, what string"
)
DETAIL_TYPES = (
    pa.int32(), pa.int64(), pa.int64(), pa.string(), pa.int32(), pa.int64(), pa.int64(),
    pa.int64(), pa.int64(), pa.string(), pa.string(), pa.string(), pa.string(),
)  # fmt: skip
DETAIL_NAMES = [word.split()[0] for word in DETAIL.split(",")]
EQUAL, DIFFERS, SHORT, SLAVE_LACKS, MASTER_LACKS = "equal", "differs", "short", "slave_lacks", "master_lacks"


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditOptions:
    """Which members are compared, and how.

    Attributes:
        master: a store directory, or HOST:PORT of a broker.
        slaves: each likewise.
        deep: compare each member's queues and index with its log as well; for directories.
        known: a folder with the checksums that earlier audits have kept; None for none.
        again: read everything, even if its checksum is known, and keep the new checksums.
        chunk_bytes: size of what one checksum covers.
    """

    master: str
    slaves: tuple[str, ...]
    deep: bool = False
    known: Path | None = None
    again: bool = False
    chunk_bytes: int = CHUNK_BYTES

    def __post_init__(self) -> None:
        """Raise JobError for options that exclude each other."""
        if not self.master:
            raise JobError("no master: give --master DIRECTORY or HOST:PORT, or --endpoint and --broker")
        if not self.slaves:
            raise JobError("no slave to compare the master with: give --slave DIRECTORY or HOST:PORT")
        if len(set(self.members)) != len(self.members):
            raise JobError(f"one member is named twice: {', '.join(self.members)}")
        if self.deep and (brokers := [text for text in self.members if Member(text).address]):
            raise JobError(
                f"--deep reads store directories, and {', '.join(brokers)} is a broker: name its store"
            )
        if self.again and self.known is None:
            raise JobError("--again has a meaning with --known FOLDER only")

    @property
    def members(self) -> tuple[str, ...]:
        """All of them, the master first."""
        return (self.master, *self.slaves)


@dataclass(frozen=True, slots=True)
class Chunk:
    """A chunk that differs and is examined; an empty one stands for a file that is too long."""

    master: MemberState
    slave: MemberState
    number: int  # of the slave
    segment: int
    begin: int
    end: int


def audit(
    session: "SparkSession", options: AuditOptions, on_progress: ProgressCallback = ignore_progress
) -> "DataFrame":
    """Compare a master's log with its slaves'.

    Raises:
        JobError: a member is no store, does not answer, or has an empty log while the others have none.
    """
    states = members(session, options)
    master, *slaves = states
    file_size = next((found.file_size for found in states if found.file_size), 0)
    spans = [
        common_range(master, slave) if slave.file_size == master.file_size else LogRange(0, 0)
        for slave in slaves
    ]
    compared = sum(span.end - span.begin for span in spans)
    on_progress(f"comparing {bytes_text(compared)} of {len(slaves)} slave{'s' if len(slaves) > 1 else ''}")
    sums = summed(
        session, states, parts_of(spans, file_size) if file_size else [], file_size, options, on_progress
    )
    try:
        counts = counted(sums, len(slaves))
        chunks = unequal(sums, states)
        if options.known is not None:
            keep(sums, states, file_size, options)
    finally:
        sums.unpersist()
    if chunks:
        on_progress(f"looking into {len(chunks)} chunks that differ")
    details = detailed(session, chunks)
    rows: list[ReportRow] = []
    for number, (slave, span) in enumerate(zip(slaves, spans, strict=True), 1):
        seen = sum(chunk.number == number and chunk.end > chunk.begin for chunk in chunks)
        for row in segment_rows(master, slave, span, counts[number], seen):
            rows.append(row)
            segment = row[1]
            if segment is not None and row[2] is not None:
                rows += record_rows(slave.member.text, segment, details.pop((number, segment), ()))
    if options.deep:
        rows += deep_rows(session, options, on_progress)
    return session.createDataFrame(rows, SCHEMA)


def members(session: "SparkSession", options: AuditOptions) -> list[MemberState]:
    """Describe all members, the master last; return them with the master first.

    If a log has few files and one is cut off, its files do not tell the size that they should have; the other
    members' files do.
    """
    slaves = run_each(session, [Member(text) for text in options.slaves], describe_member)
    states = [*run_each(session, [Member(options.master)], describe_member), *slaves]
    size = agreed_size(states)
    odd = [number for number, each in enumerate(states) if each.files and size and each.file_size != size]
    again = (
        run_each(session, [Member(states[number].member.text, size) for number in odd], describe_member)
        if odd
        else []
    )
    for number, found in zip(odd, again, strict=True):
        states[number] = found
    return states


def summed(
    session: "SparkSession",
    states: Sequence[MemberState],
    parts: Sequence[FilePart],
    file_size: int,
    options: AuditOptions,
    on_progress: ProgressCallback,
) -> "DataFrame":
    """Return the checksums of all members, computed."""
    known: list[KnownChecksums | None] = [None] * len(states)
    if options.known is not None and not options.again:
        known = [
            KnownChecksums.load(options.known, each.identity, file_size, options.chunk_bytes)
            for each in states
        ]
    tasks = [
        Checksums(
            states[part.member].member,
            part,
            file_size,
            options.chunk_bytes,
            found.files.get(part.segment) if part.sealed and (found := known[part.member]) else None,
            options.known is not None and part.sealed and bool(states[part.member].member.address),
        )
        for part in parts
    ]
    size = sum(piece.end - piece.begin for part in parts for piece in part.pieces)
    sums = parallelize(session, tasks, sum_up, checksums.SCHEMA, size=size).cache()
    from pyspark.sql import functions as f

    row = sums.agg(f.count_distinct("member", "segment"), f.count_distinct(f.expr(KNOWN_FILE))).first()
    if options.known is not None and row is not None:
        on_progress(f"{row[1]} of {row[0]} files were known from {options.known}")
    return sums


KNOWN_FILE = "CASE WHEN known THEN struct(member, segment) END"


def side_by_side(sums: "DataFrame") -> "DataFrame":
    """Return each slave's chunks and the kind of each, compared with the master's."""
    from pyspark.sql import functions as f

    ours = sums.filter("member = 0").selectExpr(
        "at", "size", "crc AS master_crc", "trouble AS master_trouble"
    )
    theirs = sums.filter("member > 0").drop("known", "tail")
    kind = (
        f.when(f.expr("master_trouble = 'short' OR trouble = 'short'"), SHORT)
        .when(f.expr("trouble IS NOT NULL AND master_trouble IS NULL"), SLAVE_LACKS)
        .when(f.expr("master_trouble IS NOT NULL AND trouble IS NULL"), MASTER_LACKS)
        .when(f.expr("master_trouble IS NOT NULL"), SLAVE_LACKS)
        .when(f.expr("crc = master_crc"), EQUAL)
        .otherwise(DIFFERS)
    )
    return theirs.join(ours, ["at", "size"]).withColumn("kind", kind)


def counted(sums: "DataFrame", slaves: int) -> dict[int, dict[int, Counts]]:
    """Return how many chunks of each file are of which kind, by slave."""
    found: dict[int, dict[int, Counts]] = {number: {} for number in range(1, slaves + 1)}
    for row in side_by_side(sums).groupBy("member", "segment", "kind").count().collect():
        files = found[row["member"]]
        files[row["segment"]] = replace(files.get(row["segment"], Counts()), **{row["kind"]: row["count"]})
    return found


def unequal(sums: "DataFrame", states: Sequence[MemberState]) -> list[Chunk]:
    """Return the chunks to examine, and the files that are too long."""
    chunks: list[Chunk] = []
    for number, slave in enumerate(states[1:], 1):
        wanted = side_by_side(sums).filter(f"member = {number} AND kind <> '{EQUAL}'").orderBy("at")
        chunks += [
            Chunk(states[0], slave, number, row["segment"], row["at"], row["at"] + row["size"])
            for row in wanted.limit(EXAMINED_MAX).collect()
        ]
        too_long = {
            segment
            for each in (slave, states[0])
            for segment, state in each.files.items()
            if state.size > each.file_size > 0
        }
        chunks += [Chunk(states[0], slave, number, segment, segment, segment) for segment in sorted(too_long)]
    return chunks


def detailed(session: "SparkSession", chunks: Sequence[Chunk]) -> dict[tuple[int, int], list[Difference]]:
    """Return what differs in some chunks, by slave and file."""
    found: dict[tuple[int, int], list[Difference]] = {}
    if not chunks:
        return found
    for row in parallelize(session, chunks, examine, DETAIL, size=len(chunks) * CHUNK_BYTES).collect():
        slave, segment, *fields = row
        found.setdefault((slave, segment), []).append(Difference(*fields))
    return found


def examine(chunk: Chunk) -> Iterator[pa.RecordBatch]:
    """Yield what differs in a chunk; runs in a task."""
    master, slave = (side_of(name, each) for name, each in (("master", chunk.master), ("slave", chunk.slave)))
    if chunk.end > chunk.begin:
        found = differences(master, slave, chunk.begin, chunk.end)
    else:
        found = [
            extra(side, chunk.segment, state.size - each.file_size)
            for side, each in ((master, chunk.master), (slave, chunk.slave))
            if (state := each.files.get(chunk.segment)) and state.size > each.file_size
        ]
    if found:
        rows = [
            (
                chunk.number,
                chunk.segment,
                each.at,
                each.topic,
                each.queue_id,
                each.queue_offset,
                each.last_offset,
                each.records,
                each.count,
                each.master_crc,
                each.slave_crc,
                each.kind,
                each.what,
            )
            for each in found
        ]
        columns = zip(*rows, strict=True)
        arrays = [pa.array(list(values), kind) for values, kind in zip(columns, DETAIL_TYPES, strict=True)]
        yield pa.record_batch(arrays, names=DETAIL_NAMES)


def side_of(name: str, each: MemberState) -> Side:
    """Return a member as a side of a comparison."""

    def read(begin: int, end: int) -> bytes:
        return bytes_between(each.member, begin, end, each.file_size)

    return Side(name, read, begin=each.begin, end=each.end, file_size=each.file_size)


def keep(sums: "DataFrame", states: Sequence[MemberState], file_size: int, options: AuditOptions) -> None:
    """Keep the checksums of full files, in place of those known before."""
    from pyspark.sql import functions as f

    assert options.known is not None, "there is a folder"
    whole = (
        sums.groupBy("member", "segment")
        .agg(
            f.sum("size").alias("bytes"),
            f.count("trouble").alias("troubles"),
            f.max("tail").alias("tail"),
            f.sort_array(f.collect_list(f.struct("at", "crc"))).alias("chunks"),
        )
        .filter(f"bytes = {file_size} AND troubles = 0")
    )
    found: list[dict[int, KnownFile]] = [{} for _ in states]
    for row in whole.collect():
        each, segment = states[row["member"]], row["segment"]
        state = each.files.get(segment)
        cuts = [chunk["at"] for chunk in row["chunks"]]
        aligned = all((at - segment) % options.chunk_bytes == 0 for at in cuts)
        if aligned and (state is not None or row["tail"] is not None):
            crcs = tuple(chunk["crc"] for chunk in row["chunks"])
            found[row["member"]][segment] = KnownFile(state, row["tail"], crcs)
    for each, files in zip(states, found, strict=True):
        before = KnownChecksums.load(options.known, each.identity, file_size, options.chunk_bytes)
        kept = {at: known for at, known in before.files.items() if at >= each.begin}
        replace(before, files={**kept, **files}).save(options.known)


def deep_rows(
    session: "SparkSession", options: AuditOptions, on_progress: ProgressCallback
) -> list[ReportRow]:
    """Return the findings about queues and index of each member."""
    rows: list[ReportRow] = []
    for text in options.members:
        for fault in faults_of(session, VerifyOptions(store=Path(text)), on_progress):
            row = general_row(MemberState(Member(text), 0, 0, 0, ""), None, "DEEP", fault.finding)
            topic = fault.queue.rpartition("/")[0] if fault.queue else None
            queue_id = int(fault.queue.rpartition("/")[2]) if fault.queue else None
            first = None if fault.first_bad is None else fault.first_bad
            rows.append((*row[:8], topic, queue_id, first, *row[11:]))
    return rows
