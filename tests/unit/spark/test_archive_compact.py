"""Small files into large ones, in a new root and in place, stopped at any step."""

import dataclasses
from pathlib import Path

import pytest

pytest.importorskip("pyarrow")

from support.store.archives import DAY_MS, NOON, Stopped, StoppingDisk, batch_of, rows_of, seen, write_batch
from whimbrel.spark.archiving import compacting
from whimbrel.spark.archiving.batches import Batch
from whimbrel.spark.archiving.compacting import COMPACT, plan
from whimbrel.spark.archiving.files import BatchTarget, write_task
from whimbrel.spark.archiving.folder import ArchiveError, Disk, Folder
from whimbrel.spark.archiving.layout import BEGUN
from whimbrel.spark.archiving.manifests import ManifestEntry, QueueRange
from whimbrel.spark.archiving.ranges import by_key, gaps

RANGES = [[("orders", 0, 0, 10), ("orders", 1, 0, 5)], [("orders", 0, 10, 20)], [("orders", 1, 5, 9)]]
TOMORROW = "2030-01-01"
EVERY = [each for ranges in RANGES for each in ranges]
STEPS_MAX = 60


def entry(
    path: str, *queues: tuple[int, int, int], size: int = 1000, day: str = "2023-11-14"
) -> ManifestEntry:
    parts = tuple(QueueRange(number, first, end, end - first) for number, first, end in queues)
    return ManifestEntry(
        path=path,
        topic="orders",
        broker="broker-a",
        day=day,
        rows=sum(part.rows for part in parts),
        size=size,
        crc=0,
        log_bytes=0,
        groups=1,
        queues=parts,
        first_stored=NOON,
        last_stored=NOON,
    )


def archive(root: Path) -> Folder:
    folder = Folder(root)
    folder.create()
    for number, ranges in enumerate(RANGES):
        write_batch(folder, "q1", number, ranges)
    return folder


def in_place(root: Path, disk: Disk | None = None) -> None:
    """Do what the job does, in this process."""
    folder = Folder(root, disk)
    compacting.recover(folder)
    with folder.locked(COMPACT, alone=True):
        for query, number in folder.under_way():
            if query == COMPACT:
                compacting.undo(folder, number)
        outputs = plan(folder.entries(), before=TOMORROW, in_place=True)
        if not outputs:
            return
        number = compacting.next_number(folder)
        folder.disk.put(folder.mark_path(COMPACT, number, BEGUN), "")
        target = BatchTarget(root, COMPACT, number)
        staged = [compacting.merge(root, target, at, each, "a") for at, each in enumerate(outputs)]
        compacting.switch(folder, number, staged, {p.path for each in outputs for p in each.slices})


def test_a_plan_goes_queue_by_queue_and_cuts_at_the_size() -> None:
    entries = [
        entry("b", (0, 10, 20), (1, 0, 10), size=2000),
        entry("a", (0, 0, 10), size=1000),
        entry("today", (0, 20, 30), day="2024-01-01"),
    ]
    (whole,) = plan(entries, before="2024-01-01", target_bytes=1 << 20)
    assert [(p.path, p.queue_id, p.first, p.end) for p in whole.slices] == [
        ("a", 0, 0, 10),
        ("b", 0, 10, 20),
        ("b", 1, 0, 10),
    ]
    cut = plan(entries, before="2024-01-01", target_bytes=1500)
    assert [[p.first for p in each.slices] for each in cut] == [[0, 10], [0]]


def test_only_what_the_target_lacks_is_taken() -> None:
    held = [entry("old", (0, 0, 12))]
    entries = [entry("a", (0, 0, 10)), entry("b", (0, 10, 20))]
    (output,) = plan(entries, before=TOMORROW, have=held)
    assert [(p.path, p.first, p.end) for p in output.slices] == [("b", 12, 20)]
    assert plan(entries, before=TOMORROW, have=[*held, entry("new", (0, 12, 20))]) == []


def test_in_place_leaves_single_and_large_files_alone() -> None:
    assert plan([entry("a", (0, 0, 10))], before=TOMORROW, in_place=True) == []
    large = [entry("a", (0, 0, 10), size=900), entry("b", (0, 10, 20), size=800)]
    assert plan(large, before=TOMORROW, in_place=True, target_bytes=1000) == []


def test_an_archive_that_has_messages_twice_is_not_compacted() -> None:
    with pytest.raises(ArchiveError, match="offsets 5 to 10 stand in both a and b"):
        plan([entry("a", (0, 0, 10)), entry("b", (0, 5, 12))], before=TOMORROW)


def test_in_place_every_message_stands_once_and_in_one_file(tmp_path: Path) -> None:
    folder = archive(tmp_path)
    in_place(tmp_path)
    assert seen(tmp_path) == sorted(rows_of(EVERY))
    (made,) = folder.entries()
    assert made.queues == (QueueRange(0, 0, 20, 20), QueueRange(1, 0, 9, 9))
    assert [path.name for path in folder.data_files()] == [made.path.rpartition("/")[2]]
    assert write_batch(Folder(tmp_path), "q1", 2, RANGES[2]) is None, "its batches are still known"
    write_batch(Folder(tmp_path), "q1", 3, [("orders", 0, 20, 25)])
    in_place(tmp_path)
    assert len(Folder(tmp_path).entries()) == 1
    assert not [1 for queue in by_key(s for e in folder.entries() for s in e.spans()).values() if gaps(queue)]


def test_in_place_stopped_at_any_step_is_undone_or_finished(tmp_path: Path) -> None:
    stops = 0
    for step in range(STEPS_MAX):
        root = tmp_path / str(step)
        folder = archive(root)
        try:
            in_place(root, StoppingDisk(step))
        except Stopped:
            stops += 1
        else:
            break
        found = seen(root)
        assert len(found) == len(set(found))
        if folder.switching():
            with pytest.raises(ArchiveError, match="cut short"):
                write_batch(Folder(root), "q1", 3, [("orders", 0, 20, 25)])
        if stops % 2:  # the archive job finishes it as well
            compacting.recover(Folder(root))
            write_batch(Folder(root), "q1", 3, [("orders", 0, 20, 25)])
        in_place(root)
        more = [("orders", 0, 20, 25)] if stops % 2 else []
        assert seen(root) == sorted(rows_of([*EVERY, *more]))
        assert len(Folder(root).entries()) == 1
        assert not [path for path in root.rglob("_*") if path.is_file()]
    assert stops > 8


def test_into_a_new_root_is_a_batch_like_any_other(tmp_path: Path) -> None:
    source = archive(tmp_path / "old")
    late = [("orders", 0, 20, 23)]
    for step in range(STEPS_MAX):
        root = tmp_path / str(step)
        try:
            into(source, root, StoppingDisk(step))
        except Stopped:
            into(source, root, None)
        else:
            break
        assert seen(root) == sorted(rows_of(EVERY))
        assert len(Folder(root).entries()) == 1
    write_batch(source, "q1", 3, late)
    into(source, root, None)
    assert seen(root) == sorted(rows_of([*EVERY, *late]))
    assert seen(tmp_path / "old") == sorted(rows_of([*EVERY, *late]))


def into(source: Folder, root: Path, disk: Disk | None) -> None:
    target = Folder(root, disk)
    target.create()
    with target.locked(COMPACT):
        number = compacting.next_number(target)
        outputs = plan(source.entries(), before=TOMORROW, have=target.entries())
        if not outputs:
            return
        batch = Batch(target, COMPACT, number)
        batch.begin()
        wanted = BatchTarget(root, COMPACT, number)
        batch.finish(
            [compacting.merge(source.root, wanted, at, each, "a") for at, each in enumerate(outputs)]
        )


def test_days_are_those_of_the_store_time_in_utc_and_rows_are_sorted(tmp_path: Path) -> None:
    day = NOON - DAY_MS // 2
    before, after = day - 1, day
    batches = [
        batch_of("orders", 1, 5, 8, stored_ms=after),
        batch_of("orders", 0, 0, 4, stored_ms=before),
        batch_of("orders", 1, 0, 5, stored_ms=before),
        batch_of("orders", 0, 4, 9, stored_ms=after),
    ]
    staged = list(write_task(BatchTarget(tmp_path, "q", 0), batches))
    assert [(file.entry.day, file.entry.queues) for file in staged] == [
        ("2023-11-13", (QueueRange(0, 0, 4, 4), QueueRange(1, 0, 5, 5))),
        ("2023-11-14", (QueueRange(0, 4, 9, 5), QueueRange(1, 5, 8, 3))),
    ]
    assert [dataclasses.astuple(file.entry)[-2:] for file in staged] == [(before, before), (after, after)]
    assert staged[0].entry.path == "topic=orders/dt=2023-11-13/q-00000000-broker-a-q0.0-q1.4.parquet"
