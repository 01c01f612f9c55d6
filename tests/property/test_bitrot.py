"""Bits that flip at rest in the log, one at a time: what a start says, and what consumers and queries get.

`make bitrot` flips 10,000 in sealed records and 10,000 in unsealed ones; a plain run flips some hundred.
After each flip

- recovery looks at the log, as a start would: it refuses it, since all of it was on disk, or notices nothing;
- the messages around the flip are read as receives and pulls read them (`Scan`), and their keys looked up and
  the records found read, as queries do;
- the bulk decoder reads the log with its checks, as Spark's readers of stores do.

Sealed: no message is delivered changed, by none of them. Unsealed: no body is, and a table tells of each
other field how often a flip was noticed by the start, and how often it was delivered. In both, no other
message is lost to readers, and none is cut off silently.
"""

import dataclasses
import os
import random
from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from support.provenance import commit, seed
from support.store.stores import FILE, OPTIONS, make_draft, open_master
from whimbrel.broker.consume.filters import compile_filter
from whimbrel.errors import CorruptRecord, IllegalOffset
from whimbrel.store.codec import SEAL_SIZE, StoredMessage, decode_record
from whimbrel.store.master_store import Appended, MasterStore
from whimbrel.store.recovery import recover_log
from whimbrel.store.recovery_marks import LogMark
from whimbrel.store.scan import Scan
from whimbrel.store.segment import segment_name

FLIPS = int(os.environ.get("WHIMBREL_BITROT_FLIPS", "200"))
COUNT = 150
FIELDS = (
    ("size", 4), ("magic", 4), ("body CRC", 4), ("queue id", 4), ("flag", 4), ("queue offset", 8),
    ("physical offset", 8), ("system flag", 4), ("born time", 8), ("born host", 8), ("store time", 8),
    ("store host", 8), ("reconsume times", 4), ("prepared offset", 8), ("body length", 4),
)  # fmt: skip
NEAR = 8  # messages read on either side of the one that is hurt
ALL = compile_filter("tag", "*")
OPEN = dataclasses.replace(OPTIONS, index_slots=1000, index_entries=4000)


class Rig:
    """A store with messages of many sizes, open for reading, whose log file can be hurt."""

    def __init__(self, root: Path, *, sealed: bool) -> None:
        self.root = root
        self.store = self.filled(sealed)
        self.answers = self.written
        self.starts = [answer.physical_offset for answer in self.answers]
        self.originals = [self.read(answer) for answer in self.answers]
        self.sealed = sealed
        self.end = self.answers[-1].end
        self.mark = LogMark.load(root)
        self.fds = {
            start: os.open(root / "commitlog" / segment_name(start), os.O_RDWR)
            for start in range(0, self.end, FILE)
        }

    def filled(self, sealed: bool) -> MasterStore:
        options = dataclasses.replace(OPEN, append_property_crc=sealed)
        store = open_master(self.root, options)
        chance = random.Random(5)
        drafts = [make_draft(number, size=chance.choice((0, 8, 100, 1000))) for number in range(COUNT)]
        for draft in drafts:
            draft.properties += b"\x02name\x01" + b"value" * chance.randrange(1, 60)
        self.written: list[Appended] = [store.append([draft])[0] for draft in drafts]
        store.close()
        return open_master(self.root, options)

    def read(self, answer: Appended) -> StoredMessage:
        return decode_record(self.store.read(answer.physical_offset, answer.size))

    def flip(self, bit: int) -> None:
        """Flip a bit of the log, in its file."""
        place = bit // 8
        fd = self.fds[place - place % FILE]
        (byte,) = os.pread(fd, 1, place % FILE)
        os.pwrite(fd, bytes([byte ^ 1 << bit % 8]), place % FILE)

    def field_at(self, place: int) -> tuple[int, str]:
        """Return the number of the message at a place of the log, and the field; -1 behind a file's last."""
        number = bisect_right(self.starts, place) - 1
        answer = self.answers[number]
        if place >= answer.end:
            header = place < answer.end + 8
            return -1, "blank" if header else "behind a blank"
        at = place - answer.physical_offset
        for name, size in FIELDS:
            if at < size:
                return number, name
            at -= size
        message = self.originals[number]
        seal = SEAL_SIZE if self.sealed else 0
        for name, size in (
            ("body", len(message.body)),
            ("topic length", 1),
            ("topic", len(message.topic)),
            ("properties length", 2),
            ("properties", len(message.properties_raw) - seal),
        ):
            if at < size:
                return number, name
            at -= size
        return number, "seal"

    def refused(self) -> bool:
        """Return whether a start would refuse the log; it must not find an end below it otherwise."""
        segments = self.store.writer.segments
        state = recover_log(segments.read, segments.starts, FILE, clean=True, mark=self.mark, checkpoint=None)
        assert state.lost == (state.end < self.end), "an end below what was on disk is never silent"
        return state.lost

    def received(self, first: int, end: int) -> dict[int, StoredMessage | Exception]:
        """Return what receives and pulls get of a range, by queue offset."""
        found: dict[int, StoredMessage | Exception] = {}
        while first + len(found) < end:
            at = first + len(found)
            for begin, start, stop, _, _, messages in Scan(self.store, "topic", ALL, 32).walk(0, at, end):
                assert begin == start
                if isinstance(messages, list):
                    found.update(enumerate(messages, start))
                else:
                    assert stop == start + 1
                    found[start] = messages
            assert first + len(found) > at
        return found

    def queried(self, number: int) -> list[StoredMessage]:
        """Return what a query for a message's key gets."""
        found = []
        for place in self.store.find_by_key("topic", f"key-{number}"):
            size = int.from_bytes(self.store.read_log(place, 4), "big")
            try:
                found.append(decode_record(self.store.read(place, size)))
            except (CorruptRecord, IllegalOffset):
                continue
        return found


@pytest.fixture(params=[True, False], ids=["sealed", "unsealed"])
def rig(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Rig]:
    made = Rig(tmp_path / "s", sealed=request.param)
    yield made
    made.store.close(clean=False)
    for fd in made.fds.values():
        os.close(fd)


def test_flipped_bits_are_noticed_and_never_delivered_where_a_crc_covers_them(
    rig: Rig, measured: Callable[[str], None]
) -> None:
    used = seed()
    chance = random.Random(used)
    hits: Counter[str] = Counter()
    noticed: Counter[str] = Counter()
    delivered: Counter[str] = Counter()
    withheld: Counter[str] = Counter()
    for _ in range(FLIPS):
        bit = chance.randrange(rig.end * 8)
        number, name = rig.field_at(bit // 8)
        rig.flip(bit)
        hits[name] += 1
        refused = rig.refused()
        noticed[name] += refused
        near = max(bisect_right(rig.starts, bit // 8) - 1, 0)
        got = rig.received(max(near - NEAR, 0), min(near + NEAR, COUNT))
        changed = False
        for offset, message in got.items():
            if offset != number:
                assert message == rig.originals[offset], f"seed {used}, bit {bit}: another message"
            elif isinstance(message, Exception):
                withheld[name] += 1
            else:
                changed = message != rig.originals[number]
                assert message.body == rig.originals[number].body, f"seed {used}, bit {bit}: a body"
        for other in range(max(near - 1, 0), min(near + 2, COUNT)):
            answers = rig.queried(other)
            if other != number:
                assert answers == [rig.originals[other]], f"seed {used}, bit {bit}: a key of another message"
            for answer in answers:
                assert answer.body == rig.originals[other].body, f"seed {used}, bit {bit}: a body"
                changed = changed or answer != rig.originals[other]
        delivered[name] += changed
        if rig.sealed:
            assert not changed, f"seed {used}, bit {bit}: a changed {name} was delivered"
        if number >= 0 and (rig.sealed or name == "body"):
            assert refused, f"seed {used}, bit {bit}: a start does not notice a changed {name}"
        rig.flip(bit)
    kind = "sealed" if rig.sealed else "unsealed"
    measured(
        f"{FLIPS} bits in {kind} records, seed {used}, commit {commit()}, delivered: {delivered.total()}"
    )
    for name, count in sorted(hits.items(), key=lambda pair: -pair[1]):
        measured(
            f"| {name} | {count} flips | {noticed[name]} refused by a start | {withheld[name]} withheld |"
            f" {delivered[name]} delivered changed |"
        )


def test_bulk_readers_notice_what_consumers_do(rig: Rig, measured: Callable[[str], None]) -> None:
    columns: Any = pytest.importorskip("whimbrel.store.columns")
    used = seed()
    chance = random.Random(used)
    flips = missed = 0
    while flips < FLIPS // 3:
        bit = chance.randrange(rig.end * 8)
        number, name = rig.field_at(bit // 8)
        if number < 0 or (not rig.sealed and name != "body"):
            continue
        flips += 1
        rig.flip(bit)
        answer = rig.answers[number]
        data = rig.store.read_log(answer.physical_offset, answer.size)
        decoder = columns.Decoder(["crcOk"], verify_crc=True, on_corrupt="flag")
        try:
            rows = [row for batch in decoder.batches(columns.frame(data)) for row in batch.to_pylist()]
            missed += any(row["crcOk"] for row in rows)
        except CorruptRecord:
            pass
        rig.flip(bit)
    assert not missed
    measured(f"{flips} bits, seed {used}, commit {commit()}: none read as whole")


def test_a_write_torn_at_any_byte_of_the_last_records_is_cut_at_the_last_whole_one(
    rig: Rig, measured: Callable[[str], None]
) -> None:
    """Nothing behind a byte reached the disk, or one sector did not, and what is behind it did."""
    first = rig.answers[-3]
    base, file_start = first.physical_offset, rig.end - rig.end % FILE
    assert file_start <= base
    before = rig.store.read_log(file_start, base - file_start)
    data = rig.store.read_log(base, rig.end - base)
    ends = [answer.end for answer in rig.answers]
    tears = 0

    def end_of(torn: bytes) -> int:
        file = (before + torn).ljust(FILE, b"\0")
        return recover_log(
            lambda offset, length: file[offset - file_start : offset - file_start + length],
            [file_start],
            FILE,
            clean=False,
            mark=None,
            checkpoint=None,
        ).end

    for at in range(len(data)):
        lost = data[at:].strip(b"\0")
        whole = max(end for end in ends if end <= base + at or (end == rig.end and not lost))
        assert end_of(data[:at]) == whole, at
        tears += 1
    for at in range(-base % 512, len(data) - 512, 512):
        torn = data[:at] + bytes(512) + data[at + 512 :]
        assert end_of(torn) == max(end for end in ends if end <= base + at), at
        tears += 1
    measured(f"{tears} torn writes, commit {commit()}: each cut at the last whole record")
