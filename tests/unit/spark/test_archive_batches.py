"""A batch that is stopped at any step: nothing is seen twice, and the next run makes it whole."""

from pathlib import Path

import pytest

pytest.importorskip("pyarrow")

from support.store.archives import Stopped, StoppingDisk, rows_of, seen, write_batch
from whimbrel.spark.archiving.batches import Batch
from whimbrel.spark.archiving.files import BatchTarget, write_task
from whimbrel.spark.archiving.folder import ArchiveError, Disk, Folder
from whimbrel.spark.archiving.manifests import ManifestEntry

FIRST = [("orders", 0, 0, 10), ("orders", 1, 0, 5), ("%RETRY%g", 0, 3, 7)]
SECOND = [("orders", 0, 10, 20), ("orders", 1, 5, 9)]
STEPS_MAX = 60


def folder_of(root: Path, disk: Disk | None = None) -> Folder:
    folder = Folder(root, disk)
    folder.create()
    return folder


def everything(root: Path) -> list[str]:
    return sorted(str(path.relative_to(root)) for path in root.rglob("*") if path.is_file())


@pytest.mark.parametrize("tasks_then", [1, 2])
def test_a_batch_that_is_stopped_at_any_step_stands_once_when_it_is_run_again(
    tmp_path: Path, tasks_then: int
) -> None:
    stops = 0
    for step in range(STEPS_MAX):
        root = tmp_path / str(step)
        write_batch(folder_of(root), "q1", 0, FIRST)
        try:
            write_batch(folder_of(root, StoppingDisk(step)), "q1", 1, SECOND, tasks=2)
        except Stopped:
            stops += 1
        else:
            break
        while_down = seen(root)
        assert len(while_down) == len(set(while_down))
        assert set(rows_of(FIRST)) <= set(while_down)
        write_batch(folder_of(root), "q1", 1, SECOND, tasks=tasks_then)
        assert seen(root) == sorted(rows_of([*FIRST, *SECOND]))
        assert not [name for name in everything(root) if name.rpartition("/")[2].startswith("_")]
        assert {entry.path for entry in folder_of(root).entries()} == {
            name for name in everything(root) if name.endswith(".parquet")
        }
    assert stops > 8


def test_recovery_that_is_stopped_itself_is_made_up_for(tmp_path: Path) -> None:
    for step in range(STEPS_MAX):
        root = tmp_path / str(step)
        with pytest.raises(Stopped):
            write_batch(folder_of(root, StoppingDisk(6)), "q1", 0, FIRST)
        try:
            write_batch(folder_of(root, StoppingDisk(step)), "q1", 0, FIRST, tasks=3)
        except Stopped:
            found = seen(root)
            assert len(found) == len(set(found))
        else:
            break
        write_batch(folder_of(root), "q1", 0, FIRST, tasks=2)
        assert seen(root) == sorted(rows_of(FIRST))


def test_a_batch_that_the_archive_has_writes_nothing(tmp_path: Path) -> None:
    folder = folder_of(tmp_path)
    write_batch(folder, "q1", 0, FIRST)
    before = everything(tmp_path)
    assert write_batch(folder_of(tmp_path), "q1", 0, FIRST, tasks=3) is None
    assert everything(tmp_path) == before


def test_files_of_an_attempt_that_does_not_count_are_never_seen(tmp_path: Path) -> None:
    folder = folder_of(tmp_path)
    from support.store.archives import batch_of

    with folder.locked("q1"):
        batch = Batch(folder, "q1", 0)
        assert batch.begin()
        target = BatchTarget(tmp_path, "q1", 0)
        list(write_task(target, [batch_of("orders", 0, 0, 6)]))  # lost, with its last words
        staged = list(write_task(target, [batch_of("orders", 0, 0, 6)]))
        assert seen(tmp_path) == []
        batch.finish(staged)
    assert seen(tmp_path) == list(rows_of([("orders", 0, 0, 6)]))
    assert not [name for name in everything(tmp_path) if ".tmp" in name]


def test_another_query_clears_what_nobody_comes_back_to(tmp_path: Path) -> None:
    for step in range(STEPS_MAX):
        root = tmp_path / str(step)
        try:
            write_batch(folder_of(root, StoppingDisk(step)), "q1", 0, FIRST)
        except Stopped:
            done = folder_of(root).manifest_path("q1", 0).exists()
        else:
            break
        other = [("other", 0, 0, 4)]
        write_batch(folder_of(root), "q2", 0, other)
        assert seen(root) == sorted(rows_of([*FIRST, *other] if done else other))


def test_a_batch_of_another_query_that_is_under_way_is_left_alone(tmp_path: Path) -> None:
    mine, theirs = folder_of(tmp_path), folder_of(tmp_path)
    with theirs.locked("q1"):
        batch = Batch(theirs, "q1", 0)
        batch.begin()
        from support.store.archives import batch_of

        staged = list(write_task(BatchTarget(tmp_path, "q1", 0), [batch_of("orders", 0, 0, 3)]))
        write_batch(mine, "q2", 0, [("other", 0, 0, 2)])
        batch.finish(staged)
    assert seen(tmp_path) == sorted(rows_of([("orders", 0, 0, 3), ("other", 0, 0, 2)]))


def test_ranges_that_another_query_has_archived_are_refused(tmp_path: Path) -> None:
    folder = folder_of(tmp_path)
    write_batch(folder, "q1", 0, FIRST)
    with pytest.raises(ArchiveError, match=r"offsets 8 to 10 are in the archive .* already; .*resume=true"):
        write_batch(folder_of(tmp_path), "q2", 0, [("orders", 0, 8, 12)])
    assert seen(tmp_path) == sorted(rows_of(FIRST))


def test_two_runs_of_one_query_do_not_meet(tmp_path: Path) -> None:
    folder = folder_of(tmp_path)
    with folder.locked("q1"), pytest.raises(ArchiveError, match="another run"):
        write_batch(folder_of(tmp_path), "q1", 0, FIRST)
    with folder.locked("compact", alone=True), pytest.raises(ArchiveError, match="being compacted in place"):
        write_batch(folder_of(tmp_path), "q1", 0, FIRST)


class ListedTable:
    """A table that keeps its list of files in memory."""

    def __init__(self) -> None:
        self.batches: dict[tuple[str, int], list[str]] = {}

    def has(self, query: str, batch: int) -> bool:
        return (query, batch) in self.batches

    def add(self, query: str, batch: int, entries: list[ManifestEntry]) -> None:
        assert (query, batch) not in self.batches, "added twice"
        self.batches[query, batch] = [entry.path for entry in entries]


def test_a_table_lists_each_file_once_whatever_the_step(tmp_path: Path) -> None:
    from support.store.archives import batch_of

    for step in range(STEPS_MAX):
        root, table = tmp_path / str(step), ListedTable()

        def run(disk: Disk | None, root: Path = root, table: ListedTable = table) -> None:
            folder = folder_of(root, disk)
            with folder.locked("q1"):
                batch = Batch(folder, "q1", 0, table)  # type: ignore[arg-type]
                if batch.begin():
                    target = BatchTarget(root, "q1", 0)
                    batch.finish(list(write_task(target, [batch_of("orders", 0, 0, 6)])))

        stopped = True
        try:
            run(StoppingDisk(step))
            stopped = False
        except Stopped:
            pass
        run(None)
        listed = [path for paths in table.batches.values() for path in paths]
        assert listed == [name for name in everything(root) if name.endswith(".parquet")]
        assert seen(root) == list(rows_of([("orders", 0, 0, 6)]))
        if not stopped:
            return
    raise AssertionError("never ran to its end")


def test_a_folder_of_something_else_is_not_taken(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("x")
    with pytest.raises(ArchiveError, match="is no archive and not empty"):
        Folder(tmp_path).create()
    with pytest.raises(ArchiveError, match="is no archive: there is no _manifests"):
        Folder(tmp_path).check()
