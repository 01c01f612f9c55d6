"""From compared chunks to what a person reads. Pure.

A report has a line for each file of the log and each slave, and below it a line for each record that is not
the same. What is wrong has a text in `finding`; what only is so has none: a slave that is behind, files that
retention has removed on one side.

    EQUAL                what was compared is
    DIFFERS              some chunks are not equal
    MISSING ON X         the file is gone, and files before it are not
    SHORT ON X           it ends too early
    TOO LONG ON X        it has bytes behind its end
    REMOVED ON X         it is gone, with all before it: by retention, or else nobody can tell
    BEHIND n             the slave's confirmed log ends n bytes before the master's
    AHEAD n              the master's ends before the slave's: the master has lost its end
    DAMAGED ON X         recovery would end the log there
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from whimbrel.spark.auditing.differences import SINGLE_MAX, Difference
from whimbrel.spark.auditing.members import MemberState
from whimbrel.spark.auditing.ranges import LogRange

__all__ = ["COLUMNS", "SCHEMA", "Counts", "ReportRow", "bytes_text", "record_lines", "segment_lines"]

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
        differs: both are there.
        short: one file ends within it.
        slave_lacks, master_lacks: not there at all.
    """

    equal: int = 0
    differs: int = 0
    short: int = 0
    slave_lacks: int = 0
    master_lacks: int = 0

    @property
    def total(self) -> int:
        """How many were compared."""
        return self.equal + self.differs + self.short + self.slave_lacks + self.master_lacks


def bytes_text(count: int) -> str:
    """Return a number of bytes with a unit."""
    for unit, size in (("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)):
        if count >= size:
            return f"{count / size:.1f} {unit}"
    return f"{count} B"


def segment_lines(
    master: MemberState,
    slave: MemberState,
    span: LogRange,
    counts: dict[int, Counts],
    looked_at: int | None = None,
) -> list[ReportRow]:
    """Return the lines of the files that a slave was compared in, and of how far it holds the log.

    Args:
        counts: by the begin of the file.
        looked_at: how many chunks that are not equal were looked into; None for all.
    """
    size = master.file_size or slave.file_size
    lines = general_lines(master, slave, span)
    removed = removed_files(counts)
    ends = {slave.end - slave.end % size if size else 0}
    last = max([*(at for at in ends if at in counts), *list(counts)[-1:]], default=None)
    for segment in sorted(counts):
        found = counts[segment]
        states, told = [], []
        if found.slave_lacks == found.total and segment in removed[0]:
            states.append("REMOVED ON SLAVE")
        elif found.master_lacks == found.total and segment in removed[1]:
            states.append("REMOVED ON MASTER")
        else:
            for name, look, lacks in (
                ("SLAVE", slave, found.slave_lacks),
                ("MASTER", master, found.master_lacks),
            ):
                state, text = fault_of(name, look, segment, size, lacks, found)
                states += state
                told += text
            if found.differs:
                states.insert(0, "DIFFERS")
                told.insert(0, f"{found.differs} of {found.total} chunks differ")
        if segment == last and span.end and slave.end < master.end:
            states.append(f"BEHIND {bytes_text(master.end - slave.end)}")
        lines.append(
            (
                slave.member.text,
                segment,
                found.equal,
                found.differs,
                found.short,
                found.slave_lacks + found.master_lacks,
                ", ".join(states) or "EQUAL",
                *(None,) * 8,
                "; ".join(told) or None,
            )
        )
    if last is None and slave.end < master.end:
        lines.append(general(slave, slave.end, f"BEHIND {bytes_text(master.end - slave.end)}", None))
    unequal = sum(found.total - found.equal for found in counts.values())
    if looked_at is not None and looked_at < unequal:
        what = f"only {looked_at} of {unequal} chunks that differ were looked into: their records follow"
        lines.append(general(slave, None, "", what))
    return lines


def fault_of(
    name: str, look: MemberState, segment: int, size: int, lacks: int, found: Counts
) -> tuple[list[str], list[str]]:
    """Return the states and sentences of what one member's file lacks, or has too much."""
    states, told = [], []
    state = look.files.get(segment)
    if lacks and (state is None and lacks == found.total):
        states.append(f"MISSING ON {name}")
        told.append(f"the {name.lower()} has no file {segment:020d}")
    elif state is not None and (state.size < size or lacks):
        states.append(f"SHORT ON {name}")
        told.append(f"the {name.lower()}'s file {segment:020d} has {state.size} bytes of {size}")
    elif lacks:
        states.append(f"MISSING ON {name}")
        told.append(f"the {name.lower()} lacks {lacks} of {found.total} chunks")
    if state is not None and state.size > size:
        states.append(f"TOO LONG ON {name}")
        told.append(f"the {name.lower()}'s file {segment:020d} has {state.size - size} bytes behind its end")
    return states, told


def removed_files(counts: dict[int, Counts]) -> tuple[set[int], set[int]]:
    """Return the files that the slave, and that the master, lacks together with all before them."""
    found: tuple[set[int], set[int]] = set(), set()
    for number in (0, 1):
        for segment in sorted(counts):
            lacks = (counts[segment].slave_lacks, counts[segment].master_lacks)[number]
            if lacks < counts[segment].total:
                break
            found[number].add(segment)
        if len(found[number]) == len(counts):  # nothing at all is there: no retention does that
            found[number].clear()
    return found


def general_lines(master: MemberState, slave: MemberState, span: LogRange) -> list[ReportRow]:
    """Return what is not about one file."""
    lines = []
    if master.file_size and slave.file_size and master.file_size != slave.file_size:
        what = f"its log files have {slave.file_size} bytes, and the master's {master.file_size}"
        return [general(slave, None, "DIFFERS", what)]
    for name, look, other in (("SLAVE", slave, master), ("MASTER", master, slave)):
        if look.damage:
            what = f"the {name.lower()}'s log is damaged: {look.damage}"
            lines.append(general(slave, None, f"DAMAGED ON {name}", what))
        if other.begin < look.begin < other.end:
            lines.append(general(slave, other.begin, f"REMOVED ON {name} up to {look.begin}", None))
    if span.end == span.begin and min(master.end, slave.end) > 0 and slave.end > slave.begin:
        held = f"the master has {master.begin} to {master.end}, the slave {slave.begin} to {slave.end}"
        what = f"nothing to compare: {held}"
        lines.append(general(slave, None, "APART", what))
    if slave.end > master.end:
        what = (
            f"the master's log ends at {master.end}, its slave's at {slave.end}: the master has lost its end"
        )
        lines.append(general(slave, master.end, f"AHEAD {bytes_text(slave.end - master.end)}", what))
    return lines


def general(slave: MemberState, segment: int | None, state: str, finding: str | None) -> ReportRow:
    """Return a line that is about no record."""
    return (slave.member.text, segment, *(None,) * 4, state, *(None,) * 8, finding)


def record_lines(slave: str, segment: int, found: Iterable[Difference]) -> list[ReportRow]:
    """Return the lines of the records of one file; more than `SINGLE_MAX` are put together by queue."""
    joined = together(found)
    if len(joined) > SINGLE_MAX:
        joined = queues_of(joined)
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
    """Return what is told of a difference."""
    if difference.records < 2:
        return difference.what
    return (
        f"{difference.records} records with queue offsets {difference.queue_offset} to"
        f" {difference.last_offset} {difference.what}"
    )


def together(found: Iterable[Difference]) -> list[Difference]:
    """Put together what two chunks tell of one record, and what several tell of one queue."""
    joined: dict[tuple[object, ...], Difference] = {}
    for each in found:
        single = each.records < 2 and each.kind not in ("missing", "missing on master")
        key = (each.at,) if single else (each.kind, each.topic, each.queue_id, each.records > 1)
        joined[key] = sum_of(joined[key], each, records=1 if single else None) if key in joined else each
    return list(joined.values())


def queues_of(found: Sequence[Difference]) -> list[Difference]:
    """Put records together by queue and kind."""
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
    """Return two differences as one."""
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
