"""Differences of two logs, told by record, and what a person reads of them; without Spark."""

import os
import shutil
import zlib
from collections.abc import Callable
from pathlib import Path

import pytest

pytest.importorskip("pyarrow")

from support.store.stores import FILE, make_draft, open_master
from whimbrel.spark.auditing.checksums import Checksums, sum_up
from whimbrel.spark.auditing.differences import Difference, Side, differences, extra
from whimbrel.spark.auditing.findings import Counts, record_rows, segment_rows
from whimbrel.spark.auditing.known_checksums import KnownChecksums, KnownFile
from whimbrel.spark.auditing.members import (
    FileState,
    Member,
    MemberState,
    agreed_size,
    bytes_between,
    describe_member,
)
from whimbrel.spark.auditing.ranges import FilePart, LogRange, chunks, common_range, parts_of
from whimbrel.spark.jobs import JobError
from whimbrel.store.master_store import Appended

COUNT = 500


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[Appended]]:
    """Give a store at rest, of several files, and where its records are."""
    root = tmp_path_factory.mktemp("audit") / "master"
    store = open_master(root)
    records = [
        store.append(
            [make_draft(number, topic=f"t{number % 2}", queue_id=number % 3, size=400 + 8 * (number % 3))]
        )[0]
        for number in range(COUNT)
    ]
    store.close()
    (root / "whimbrel" / "watermark").unlink()
    return root, records


@pytest.fixture
def copied(original: tuple[Path, list[Appended]], tmp_path: Path) -> Path:
    """Give a copy to be damaged."""
    return Path(shutil.copytree(original[0], tmp_path / "slave"))


def poke(root: Path, offset: int, data: bytes) -> None:
    """Write bytes into a log."""
    with (root / "commitlog" / f"{offset - offset % FILE:020d}").open("r+b") as file:
        file.seek(offset % FILE)
        file.write(data)


def record(root: Path, appended: Appended) -> bytes:
    """Return the bytes of a record."""
    return bytes_between(Member(str(root)), appended.physical_offset, appended.end, FILE)


def compared(master: Path, slave: Path, begin: int, end: int) -> list[Difference]:
    """Compare a range of two logs."""
    sides = []
    for name, root in (("master", master), ("slave", slave)):
        found = describe_member(Member(str(root)))

        def read(low: int, high: int, member: Member = found.member) -> bytes:
            return bytes_between(member, low, high, FILE)

        sides.append(Side(name, read, begin=0, end=max(found.end, end), file_size=FILE))
    return differences(sides[0], sides[1], begin, end)


def only(found: list[Difference]) -> Difference:
    assert len(found) == 1, found
    return found[0]


def test_a_flipped_bit_is_told_by_record_and_by_whose_crc_fails(
    original: tuple[Path, list[Appended]], copied: Path
) -> None:
    root, records = original
    number = 200
    at = records[number].physical_offset
    poke(copied, at + 120, bytes([record(root, records[number])[120] ^ 1]))
    begin = at - at % FILE
    found = only(compared(root, copied, begin, begin + FILE))
    assert (found.at, found.topic, found.queue_id, found.queue_offset) == (
        at,
        "t0",
        2,
        records[number].queue_offset,
    )
    assert (found.count, found.master_crc, found.slave_crc, found.kind) == (1, "ok", "BAD", "differs")
    found = only(compared(copied, root, begin, begin + FILE))
    assert (found.master_crc, found.slave_crc) == ("BAD", "ok")


@pytest.mark.parametrize("border", [1, 100, 300])
def test_a_record_over_the_border_of_two_chunks_is_found_from_both(
    original: tuple[Path, list[Appended]], copied: Path, border: int
) -> None:
    root, records = original
    at = records[300].physical_offset
    poke(copied, at + border - 1, b"\xee\xee")
    segment = at - at % FILE
    found = compared(root, copied, segment, at + border) + compared(root, copied, at + border, segment + FILE)
    assert [(each.at, each.count) for each in found] == [(at, 1), (at, 1)]
    row = record_rows("s", segment, found)
    assert [(each[7], each[11], each[12]) for each in row] == [(at, 1, 2)]


def test_a_head_that_is_damaged_does_not_hide_whose_record_it_was(
    original: tuple[Path, list[Appended]], copied: Path
) -> None:
    root, records = original
    at = records[77].physical_offset
    poke(copied, at, b"\xff" * 8)
    for master, slave in ((root, copied), (copied, root)):
        found = only(compared(master, slave, 0, FILE))
        assert (found.at, found.topic, found.queue_offset) == (at, "t1", records[77].queue_offset)


@pytest.mark.parametrize("apart", [3, 1])
def test_exchanged_records_name_each_other(
    original: tuple[Path, list[Appended]], copied: Path, apart: int
) -> None:
    root, records = original
    one, other = records[30], records[30 + apart]
    if one.size == other.size:
        poke(copied, one.physical_offset, record(root, other))
        poke(copied, other.physical_offset, record(root, one))
        found = compared(root, copied, 0, FILE)
        assert [(each.at, each.kind) for each in found] == [
            (one.physical_offset, "other"),
            (other.physical_offset, "other"),
        ]
        assert f"exchanged with the one of {other.physical_offset}" in found[0].what
    else:  # neighbours of different sizes: both have moved
        poke(copied, one.physical_offset, record(root, other) + record(root, one))
        found = compared(root, copied, 0, FILE)
        assert [each.at for each in found] == [one.physical_offset, other.physical_offset]
        assert found[0].kind == "other"
        assert str(other.physical_offset) in found[0].what


def test_bytes_that_were_put_in_between_show_as_records_that_moved(
    original: tuple[Path, list[Appended]], copied: Path
) -> None:
    root, records = original
    at = records[10].physical_offset
    rest = bytes_between(Member(str(root)), at, FILE - 1000, FILE)
    poke(copied, at, b"x" * 5 + rest)
    found = compared(root, copied, 0, FILE)
    assert found[0].at == at
    assert {each.kind for each in found if each.records == 1} >= {"moved"}
    assert any("+5 bytes" in each.what for each in found)


def test_zeros_within_are_called_zeros(original: tuple[Path, list[Appended]], copied: Path) -> None:
    root, records = original
    poke(copied, records[20].physical_offset, bytes(4096))
    found = compared(root, copied, 0, FILE)
    assert {each.what for each in found} == {"zeros on the slave"}
    assert [each.at for each in found] == [each.physical_offset for each in records[20 : 20 + len(found)]]
    assert 4096 // 600 <= len(found) <= 4096 // 400


def test_what_one_file_lacks_is_told_by_queue(original: tuple[Path, list[Appended]], copied: Path) -> None:
    root, records = original
    inside = [each for each in records if FILE <= each.physical_offset < 2 * FILE]
    for size, kept in ((20_000, 20_000), (0, 0)):
        path = copied / "commitlog" / f"{FILE:020d}"
        os.truncate(path, size)
        found = compared(root, copied, FILE, 2 * FILE)
        missing = [each for each in found if each.kind == "missing"]
        whole = [each for each in inside if each.physical_offset >= FILE + kept]
        assert sum(each.records for each in missing) == len(whole)
        assert len({(each.topic, each.queue_id) for each in missing}) == 6
        assert len([each for each in found if each.kind == "cut off"]) == (1 if kept else 0)


def test_bytes_in_the_void_behind_the_last_record_name_that_record(
    original: tuple[Path, list[Appended]], copied: Path
) -> None:
    root, records = original
    last = max((each for each in records if each.end < FILE), key=lambda each: each.end)
    poke(copied, FILE - 10, b"stray")
    found = only(compared(root, copied, 0, FILE))
    assert (found.kind, found.queue_offset, found.records) == ("no record", last.queue_offset, 0)


def test_a_file_that_is_too_long_is_told_with_its_last_record(
    original: tuple[Path, list[Appended]], copied: Path
) -> None:
    _, records = original
    with (copied / "commitlog" / f"{FILE:020d}").open("ab") as file:
        file.write(b"more")
    found = describe_member(Member(str(copied)))
    assert (found.file_size, found.files[FILE].size) == (FILE, FILE + 4)

    def read(low: int, high: int) -> bytes:
        return bytes_between(found.member, low, high, FILE)

    side = Side("slave", read, begin=0, end=found.end, file_size=FILE)
    last = max((each for each in records if each.end < 2 * FILE), key=lambda each: each.end)
    told = extra(side, FILE, 4)
    assert (told.kind, told.queue_offset, told.topic is not None) == ("extra", last.queue_offset, True)


def test_the_end_of_a_damaged_store_lies_behind_the_damage(
    original: tuple[Path, list[Appended]], copied: Path
) -> None:
    root, records = original
    assert describe_member(Member(str(root))).end == records[-1].end
    assert describe_member(Member(str(root))).damage == ""
    (copied / "whimbrel" / "log-mark").unlink()
    poke(copied, records[-3].physical_offset + 100, b"\xff\xff")
    found = describe_member(Member(str(copied)))
    assert found.end == records[-1].end
    assert f"recovery would end the log at {records[-3].physical_offset}" in found.damage


def test_a_last_file_that_was_lost_is_missed_by_the_mark(
    original: tuple[Path, list[Appended]], copied: Path
) -> None:
    _, records = original
    files = sorted((copied / "commitlog").iterdir())
    files[-1].unlink()
    assert describe_member(Member(str(copied))).end == records[-1].end
    (copied / "whimbrel" / "log-mark").unlink()
    assert describe_member(Member(str(copied))).end <= int(files[-1].name)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("{}/nowhere", "no such directory"),
        ("{}", "no commitlog directory"),
        ("127.0.0.1:1", "no broker answers"),
    ],
)
def test_what_is_no_member_is_told_in_a_sentence(tmp_path: Path, text: str, words: str) -> None:
    with pytest.raises(JobError, match=words):
        describe_member(Member(text.format(tmp_path)))


def made_look(begin: int, end: int, *, files: dict[int, int] | None = None, text: str = "s") -> MemberState:
    states = {at: FileState(size, 0, 0, 0) for at, size in (files or {}).items()}
    return MemberState(Member(text), begin, end, 100, text, states)


def test_members_are_compared_in_the_same_chunks_up_to_what_both_have_confirmed() -> None:
    master = made_look(0, 1000)
    slaves = [made_look(100, 250), made_look(0, 1000), made_look(400, 2000)]
    spans = [common_range(master, each) for each in slaves]
    assert spans == [LogRange(100, 250), LogRange(0, 1000), LogRange(400, 1000)]
    parts = parts_of(spans, 100)

    def cut(member: int) -> set[tuple[int, int]]:
        pieces = (piece for part in parts if part.member == member for piece in part.pieces)
        return {place for piece in pieces for place in chunks(piece, 16, 100)}

    assert cut(1) < cut(0)
    assert cut(2) == cut(0)
    assert cut(3) < cut(0)
    assert sum(size for _, size in cut(0)) == 1000
    assert all(at % 100 + size <= 100 for at, size in cut(0))
    assert [part.segment for part in parts if part.member == 1 and part.sealed] == [100]


def test_apart_members_leave_out_what_nobody_compares() -> None:
    spans = [LogRange(0, 100), LogRange(500, 600), LogRange(700, 700)]
    assert sorted({part.segment for part in parts_of(spans, 100)}) == [0, 500]


def states(
    slave: MemberState, counts: dict[int, Counts], master: MemberState | None = None
) -> list[tuple[object, object]]:
    master = master or made_look(0, 1000)
    rows = segment_rows(master, slave, common_range(master, slave), counts)
    return [(row[6], row[15]) for row in rows]


def test_behind_and_removed_are_no_findings_missing_is() -> None:
    assert states(made_look(0, 300), {200: Counts(equal=1)}) == [("BEHIND 700 B", None)]
    gone = {0: Counts(slave_lacks=2), 100: Counts(slave_lacks=2), 200: Counts(equal=2)}
    assert [state for state, _ in states(made_look(0, 1000), gone)] == ["REMOVED ON SLAVE"] * 2 + ["EQUAL"]
    assert all(finding is None for _, finding in states(made_look(0, 1000), gone))
    lost = {0: Counts(equal=2), 100: Counts(slave_lacks=2), 200: Counts(equal=2)}
    assert [state for state, _ in states(made_look(0, 1000), lost)] == ["EQUAL", "MISSING ON SLAVE", "EQUAL"]
    assert states(made_look(200, 1000), {200: Counts(equal=1)})[0] == ("REMOVED ON SLAVE up to 200", None)


@pytest.mark.parametrize(
    ("slave", "words"),
    [
        (made_look(0, 1200), "the master has lost its end"),
        (made_look(1000, 1200), "nothing to compare"),
        (MemberState(Member("s"), 0, 1000, 50, "s"), "its log files have 50 bytes"),
        (
            MemberState(Member("s"), 0, 1000, 100, "s", {}, "recovery would end the log at 7: zeros"),
            "is damaged",
        ),
    ],
)
def test_what_is_wrong_with_a_whole_member_is_a_finding(slave: MemberState, words: str) -> None:
    assert any(words in str(finding) for _, finding in states(slave, {}))


def test_the_size_of_files_is_what_most_members_tell() -> None:
    cut_off = MemberState(Member("a"), 0, 60, 60, "a", {0: FileState(60, 0, 0, 0)})
    assert agreed_size([cut_off, made_look(0, 100, files={0: 100})]) == 100
    assert agreed_size([made_look(0, 0)]) == 100
    assert agreed_size([]) == 0


@pytest.mark.parametrize("change", ["nothing", "bytes", "size", "gone"])
def test_a_known_file_is_trusted_only_as_long_as_it_is_the_same(
    original: tuple[Path, list[Appended]], copied: Path, tmp_path: Path, change: str
) -> None:
    path = copied / "commitlog" / f"{FILE:020d}"
    found = describe_member(Member(str(copied)))
    known = KnownChecksums(
        found.identity, FILE, 1 << 20, {FILE: KnownFile(found.files[FILE], None, (12345,))}
    )
    known.save(tmp_path / "known")
    loaded = KnownChecksums.load(tmp_path / "known", found.identity, FILE, 1 << 20)
    assert loaded == known
    assert KnownChecksums.load(tmp_path / "known", "another", FILE, 1 << 20).files == {}
    assert KnownChecksums.load(tmp_path / "known", found.identity, FILE, 1 << 16).files == {}
    changes: dict[str, Callable[[], object]] = {
        "nothing": lambda: None,
        "bytes": lambda: poke(copied, FILE + 5000, b"\xff"),
        "size": lambda: os.truncate(path, FILE + 1),
        "gone": path.unlink,
    }
    changes[change]()
    part = FilePart(0, FILE, (LogRange(FILE, 2 * FILE),), True)
    task = Checksums(found.member, part, FILE, 1 << 20, loaded.files[FILE], False)
    (batch,) = sum_up(task)
    (row,) = batch.to_pylist()
    assert row["known"] is (change == "nothing")
    real = None if change == "gone" else zlib.crc32(path.read_bytes()[:FILE])
    assert row["crc"] == (12345 if change == "nothing" else real)


def test_known_checksums_that_are_damaged_are_refused_by_name(tmp_path: Path) -> None:
    KnownChecksums("x", 1, 1, {}).save(tmp_path)
    KnownChecksums.path(tmp_path, "x").write_text("{")
    with pytest.raises(JobError, match=r"--known: .* remove it"):
        KnownChecksums.load(tmp_path, "x", 1, 1)
