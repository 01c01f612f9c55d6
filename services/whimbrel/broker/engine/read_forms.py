"""How reads give messages: decoded, or as whole records of the log; by the compiled lane where it can.

    decoded_messages   messages of which the filter's text is true, each a `StoredMessage`; the lane makes
                       responses of the first ones, `PackedMessages`, up to one that is not plain
    whole_records      pieces of the log, each some whole records, by the hashes of their tags; where
                       properties decide (SQL) the records that match, one by one

Both are one scan of the queue (`store/scan.py`, `store/runs.py`), which is bounded in entries, messages and
bytes; the first message may have more of them. RocketMQ gives 8 messages and 64 KiB of what lies far behind
the end, which we do not: reads of the page cache and of the disk cost the same calls here.
"""

from contextlib import suppress
from typing import Any

from whimbrel.broker.engine.read import Read, Reads, Run, Status
from whimbrel.errors import CorruptRecord, RangeGone
from whimbrel.model.limits import RECEIVE_BATCH_MAX
from whimbrel.store.codec import FILLER_SIZE, RECORD_BYTES_MAX, RECORD_BYTES_MIN, decode_record
from whimbrel.store.runs import GAP_BYTES_MAX, SPAN_BYTES_MAX, RecordRuns, cut_by_lane
from whimbrel.store.scan import Scan, Unit

__all__ = ["decoded_messages", "whole_records"]


def scan_of(reads: Reads, read: Read, *, passes_holes: bool) -> Scan:
    """Return a scan within the bounds of a read and its rules."""
    rules = read.rules
    return Scan(
        reads.store,
        read.topic,
        read.wanted,
        read.messages,
        bytes_max=min(read.bytes, rules.bytes_max),
        entries_max=rules.entries_max,
        passes_holes=passes_holes,
    )


def decoded_messages(reads: Reads, read: Read, low: int, high: int) -> Run:
    """Read messages; a record that can't be read ends the answer, or is its error where it comes first."""
    queue_id, position = read.queue_id, read.offset
    scan = scan_of(reads, read, passes_holes=False)
    run = Run(Status.FOUND, position, low, high)
    parts: list[Any] = []
    run.parts = parts
    namespace = read.namespace if scan.by_lane else None
    while namespace is not None and position < high and scan.room > 0 and scan.entries_left > 0:
        stop = min(position + scan.fetch_count(), high)
        done = scan.walk_packed(queue_id, position, stop, namespace)
        if done is not None and done.messages:
            parts.append(done)
            run.messages, run.size = run.messages + done.messages, run.size + done.size
            run.last_place = done.last_place
        position = scan.reached
        if position < stop:
            namespace = None  # what follows is Python's
    for _, offset, _, _, _, found in scan.pieces(queue_id, position, high):
        if isinstance(found, list):
            parts += found
            run.messages += len(found)
            for message in found:
                run.size += message.size
                run.last_place = message.physical_offset
        elif parts:
            run.next_offset = offset
            return run
        else:
            raise found
    run.next_offset = scan.reached
    if not parts:
        run.status, run.waits = Status.NO_MATCHED_MESSAGE, scan.entries_left > 0
    return run


def whole_records(reads: Reads, read: Read, low: int, high: int) -> Run:
    """Read pieces of the log.

    Raises:
        CorruptRecord: an entry points at no record.
    """
    rules, wanted, offset = read.rules, read.wanted, read.offset
    room = min(read.bytes, rules.bytes_max)
    codes = wanted.codes
    if codes is None and not wanted.admits_all:
        return matching_records(reads, read, low, high)
    source, log_begin = reads.source, reads.store.min_offset
    most = min(read.messages, RECEIVE_BATCH_MAX)
    scanned = most if codes is None else min(max(rules.entries_max, most), high - offset)
    packed = source.near_units(read.topic, read.queue_id, offset, scanned)
    run = Run(Status.FOUND, offset, low, high)
    if reads.store.passes.lane.native is not None and records_by_lane(
        reads, run, packed, codes, most, room, log_begin
    ):
        passed = run.next_offset - offset
    else:
        runs = RecordRuns(source.file_size)
        passed = runs.take(
            packed, codes, records_max=most, first_max=RECORD_BYTES_MAX, room=room, log_begin=log_begin
        )
        size = runs.stopped
        if size is not None and runs.count < most and not RECORD_BYTES_MIN <= size <= RECORD_BYTES_MAX:
            if not runs.count or runs.size + size <= room:
                raise no_record(read, offset + passed, size)
        if runs.count:
            try:
                run.parts = runs.read(source)
            except RangeGone:  # a slave's replicator has just removed the file: the entries are passed next
                run.status = Status.MESSAGE_WAS_REMOVING
                return run
            run.messages, run.size, run.last_place = runs.count, runs.size, runs.last_place
    if not run.messages:
        run.status = Status.NO_MATCHED_MESSAGE
        passed = max(passed, 1)  # a hole in the queue is passed, too
    run.next_offset = offset + passed
    run.waits = read.waited and not run.messages and run.next_offset >= high
    return run


def records_by_lane(
    reads: Reads,
    run: Run,
    packed: bytes,
    codes: frozenset[int] | None,
    most: int,
    room: int,
    log_begin: int,
) -> bool:
    """Have the lane plan a read over entries from `run.next_offset` on, and check what was read for it; put
    the outcome into `run`.

    Returns:
        Whether it did. If not, nothing has changed: there is no lane, or an entry, a record or a read is not
        as it should be.
    """
    source, passes = reads.source, reads.store.passes
    native = passes.lane.native
    assert native is not None
    bounds = source.file_size, GAP_BYTES_MAX, SPAN_BYTES_MAX
    planned = passes.run(native.plan_pull, packed, bounds, codes, room, (most, RECORD_BYTES_MAX), log_begin)
    if planned is None:
        return False
    passed, messages, size, last_place, spans, plan = planned
    if messages:
        records = cut_by_lane(passes, source, plan, spans)
        if records is None:
            return False
        run.parts = [records]
        run.messages, run.size, run.last_place = messages, size, last_place
    run.next_offset += passed
    return True


def matching_records(reads: Reads, read: Read, low: int, high: int) -> Run:
    """Read the records whose properties match; those that are gone are passed."""
    scan = scan_of(reads, read, passes_holes=True)
    run = Run(Status.NO_MATCHED_MESSAGE, read.offset, low, high)
    records: list[bytes] = []
    for _, offset, _, units, index, found in scan.pieces(read.queue_id, read.offset, high):
        if not isinstance(found, list):
            check_gone(reads, read, offset, units[index], found)
            continue
        for message in found:
            records.append(reads.source.span(message.physical_offset, message.physical_offset + message.size))
            run.size += message.size
            run.last_place = message.physical_offset
    if records:
        run.status, run.parts, run.messages = Status.FOUND, records, len(records)
    run.next_offset = max(scan.reached, read.offset + 1)
    run.waits = read.waited and not records and run.next_offset >= high
    return run


def check_gone(reads: Reads, read: Read, offset: int, unit: Unit, why: Exception) -> None:
    """Return where a record that can't be read is gone from the log, or was never there; else raise why."""
    place, size, _ = unit
    if size == FILLER_SIZE:
        return
    if not RECORD_BYTES_MIN <= size <= RECORD_BYTES_MAX:
        raise no_record(read, offset, size)
    with suppress(RangeGone):
        decode_record(reads.source.span(place, place + size))
        raise why


def no_record(read: Read, offset: int, size: int) -> CorruptRecord:
    """Return the error of an entry that can't be one."""
    where = f"{read.topic}/{read.queue_id} at offset {offset}"
    return CorruptRecord(f"{where}: a queue entry tells of a record of {size} bytes")
