"""From compared chunks to the rows of the report. Pure.

A report has a row for each file of the log and each slave, and below it a row for each record that differs.
Faults have a text in `finding`. States that are no fault have none: a slave that is behind, files that
retention has removed on one side.

    EQUAL                all that was compared is equal
    DIFFERS              some chunks differ
    MISSING ON X         the file is gone, and files before it are not
    SHORT ON X           it ends too early
    TOO LONG ON X        it has bytes behind its end
    REMOVED ON X         it is gone, with all files before it: by retention, most likely
    BEHIND n             the slave's confirmed log ends n bytes before the master's
    AHEAD n              the master's ends before the slave's: the master has lost its end
    DAMAGED ON X         recovery would end the log there
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from whimbrel.spark.auditing.differences import SINGLE_MAX, Difference
from whimbrel.spark.auditing.members import MemberState
from whimbrel.spark.auditing.ranges import LogRange

__all__ = ["COLUMNS", "SCHEMA", "Counts", "ReportRow", "bytes_text", "record_rows", "segment_rows"]

SCHEMA = (
    "slave string, segment long, equal int, differs int, short int, missing int, state string,"
    " physicalOffset long, topic string, queueId int, queueOffset long, records long, bytes long,"
    " masterCrc string, slaveCrc string, finding string"
)
COLUMNS = tuple(word.split()[0] for word in SCHEMA.split(","))

ReportRow = tuple[
    str,
    int | None,
    int | None,
    int | None,
    int | None,
    int | None,
    str | None,
    int | None,
    str | None,
    int | None,
    int | None,
    int | None,
    int | None,
    str | None,
    str | None,
    str | None,
]


@dataclass(frozen=True, slots=True)
class Counts:
    """The chunks of one file, compared with the master's.

    Attributes:
        differs: both sides have the chunk.
        short: one file ends within the chunk.
        slave_lacks, master_lacks: one side does not have the chunk.
    """

    equal: int = 0
    differs: int = 0
    short: int = 0
    slave_lacks: int = 0
    master_lacks: int = 0

    @property
    def total(self) -> int:
        """Number of chunks that were compared."""
        return self.equal + self.differs + self.short + self.slave_lacks + self.master_lacks


def bytes_text(count: int) -> str:
    """Return a number of bytes with a unit."""
    for unit, size in (("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)):
        if count >= size:
            return f"{count / size:.1f} {unit}"
    return f"{count} B"


def segment_rows(
    master: MemberState,
    slave: MemberState,
    span: LogRange,
    counts: dict[int, Counts],
    examined: int | None = None,
) -> list[ReportRow]:
    """Return the rows of a slave's files, and those about the whole log.

    Args:
        counts: by the offset at which the file begins.
        examined: how many chunks that differ were examined; None for all.
    """
    size = master.file_size or slave.file_size
    rows = general_rows(master, slave, span)
    removed = removed_files(counts)
    ends = {slave.end - slave.end % size if size else 0}
    last = max([*(at for at in ends if at in counts), *list(counts)[-1:]], default=None)
    for segment in sorted(counts):
        found = counts[segment]
        states, reasons = [], []
        if found.slave_lacks == found.total and segment in removed[0]:
            states.append("REMOVED ON SLAVE")
        elif found.master_lacks == found.total and segment in removed[1]:
            states.append("REMOVED ON MASTER")
        else:
            for name, member, lacks in (
                ("SLAVE", slave, found.slave_lacks),
                ("MASTER", master, found.master_lacks),
            ):
                state, text = fault_of(name, member, segment, size, lacks, found)
                states += state
                reasons += text
            if found.differs:
                states.insert(0, "DIFFERS")
                reasons.insert(0, f"{found.differs} of {found.total} chunks differ")
        if segment == last and span.end and slave.end < master.end:
            states.append(f"BEHIND {bytes_text(master.end - slave.end)}")
        rows.append(
            (
                slave.member.text,
                segment,
                found.equal,
                found.differs,
                found.short,
                found.slave_lacks + found.master_lacks,
                ", ".join(states) or "EQUAL",
                *(None,) * 8,
                "; ".join(reasons) or None,
            )
        )
    if last is None and slave.end < master.end:
        rows.append(general_row(slave, slave.end, f"BEHIND {bytes_text(master.end - slave.end)}", None))
    unequal = sum(found.total - found.equal for found in counts.values())
    if examined is not None and examined < unequal:
        what = f"only {examined} of {unequal} chunks that differ were looked into: their records follow"
        rows.append(general_row(slave, None, "", what))
    return rows


def fault_of(
    name: str, member: MemberState, segment: int, size: int, lacks: int, found: Counts
) -> tuple[list[str], list[str]]:
    """Return states and sentences about what one member's file lacks, or has in excess."""
    states, reasons = [], []
    state = member.files.get(segment)
    if lacks and (state is None and lacks == found.total):
        states.append(f"MISSING ON {name}")
        reasons.append(f"the {name.lower()} has no file {segment:020d}")
    elif state is not None and (state.size < size or lacks):
        states.append(f"SHORT ON {name}")
        reasons.append(f"the {name.lower()}'s file {segment:020d} has {state.size} bytes of {size}")
    elif lacks:
        states.append(f"MISSING ON {name}")
        reasons.append(f"the {name.lower()} lacks {lacks} of {found.total} chunks")
    if state is not None and state.size > size:
        states.append(f"TOO LONG ON {name}")
        reasons.append(
            f"the {name.lower()}'s file {segment:020d} has {state.size - size} bytes behind its end"
        )
    return states, reasons


def removed_files(counts: dict[int, Counts]) -> tuple[set[int], set[int]]:
    """Return the files that the slave, and that the master, lacks together with all files before them."""
    found: tuple[set[int], set[int]] = set(), set()
    for number in (0, 1):
        for segment in sorted(counts):
            lacks = (counts[segment].slave_lacks, counts[segment].master_lacks)[number]
            if lacks < counts[segment].total:
                break
            found[number].add(segment)
        if len(found[number]) == len(counts):  # no file is left: retention does not do that
            found[number].clear()
    return found


def general_rows(master: MemberState, slave: MemberState, span: LogRange) -> list[ReportRow]:
    """Return the rows that are not about one file."""
    rows = []
    if master.file_size and slave.file_size and master.file_size != slave.file_size:
        what = f"its log files have {slave.file_size} bytes, and the master's {master.file_size}"
        return [general_row(slave, None, "DIFFERS", what)]
    for name, member, other in (("SLAVE", slave, master), ("MASTER", master, slave)):
        if member.damage:
            what = f"the {name.lower()}'s log is damaged: {member.damage}"
            rows.append(general_row(slave, None, f"DAMAGED ON {name}", what))
        if other.begin < member.begin < other.end:
            rows.append(general_row(slave, other.begin, f"REMOVED ON {name} up to {member.begin}", None))
    if span.end == span.begin and min(master.end, slave.end) > 0 and slave.end > slave.begin:
        held = f"the master has {master.begin} to {master.end}, the slave {slave.begin} to {slave.end}"
        what = f"nothing to compare: {held}"
        rows.append(general_row(slave, None, "APART", what))
    if slave.end > master.end:
        what = (
            f"the master's log ends at {master.end}, its slave's at {slave.end}: the master has lost its end"
        )
        rows.append(general_row(slave, master.end, f"AHEAD {bytes_text(slave.end - master.end)}", what))
    return rows


def general_row(slave: MemberState, segment: int | None, state: str, finding: str | None) -> ReportRow:
    """Return a row that is not about a record."""
    return (slave.member.text, segment, *(None,) * 4, state, *(None,) * 8, finding)


def record_rows(slave: str, segment: int, found: Iterable[Difference]) -> list[ReportRow]:
    """Return the rows of the records of one file; more than `SINGLE_MAX` are merged by queue."""
    joined = merged(found)
    if len(joined) > SINGLE_MAX:
        joined = merged_by_queue(joined)
    return [
        (
            slave,
            segment,
            *(None,) * 5,
            difference.at,
            difference.topic,
            difference.queue_id if difference.topic is not None else None,
            difference.queue_offset if difference.topic is not None else None,
            difference.records,
            difference.count,
            difference.master_crc,
            difference.slave_crc,
            sentence(difference),
        )
        for difference in sorted(joined, key=lambda difference: (difference.at, difference.queue_offset))
    ]


def sentence(difference: Difference) -> str:
    """Return the finding of a difference."""
    if difference.records < 2:
        return difference.what
    return (
        f"{difference.records} records with queue offsets {difference.queue_offset} to"
        f" {difference.last_offset} {difference.what}"
    )


def merged(found: Iterable[Difference]) -> list[Difference]:
    """Merge what two chunks report about one record, and what several report about one queue."""
    joined: dict[tuple[object, ...], Difference] = {}
    for each in found:
        single = each.records < 2 and each.kind not in ("missing", "missing on master")
        key = (each.at,) if single else (each.kind, each.topic, each.queue_id, each.records > 1)
        joined[key] = sum_of(joined[key], each, records=1 if single else None) if key in joined else each
    return list(joined.values())


def merged_by_queue(found: Sequence[Difference]) -> list[Difference]:
    """Merge records by queue and kind."""
    joined: dict[tuple[object, ...], Difference] = {}
    for each in found:
        key = (each.kind, each.topic, each.queue_id)
        joined[key] = sum_of(joined[key], each) if key in joined else each
    words = {"differs": "differ", "other": "are exchanged with others", "moved": "stand at other places"}
    return [
        Difference(
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
            words.get(each.kind, each.what if each.records < 2 else f"have {each.what}")
            if "missing" not in each.kind
            else each.what,
        )
        for each in joined.values()
    ]


def sum_of(one: Difference, other: Difference, *, records: int | None = None) -> Difference:
    """Return the sum of two differences."""
    return Difference(
        at=min(one.at, other.at),
        topic=one.topic,
        queue_id=one.queue_id,
        queue_offset=min(one.queue_offset, other.queue_offset),
        last_offset=max(one.last_offset, other.last_offset),
        records=one.records + other.records
        if records is None
        else min(records, max(one.records, other.records)),
        count=one.count + other.count,
        master_crc=one.master_crc if one.master_crc == other.master_crc else "-",
        slave_crc=one.slave_crc if one.slave_crc == other.slave_crc else "-",
        kind=one.kind,
        what=one.what,
    )
