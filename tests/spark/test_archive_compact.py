"""`compact` as a job, and archives that are Delta or Iceberg tables."""

from pathlib import Path
from typing import Any

import pytest

from spark.test_archive import back, options_of
from spark.topics import bodies, fill
from support.cluster.processes import Cluster
from support.store.archives import rows_of, seen, write_batch
from whimbrel.spark.archiving.folder import Folder
from whimbrel.spark.archiving.tables import TableOptions, open_table
from whimbrel.spark.jobs.archive import CheckOptions, archive, check
from whimbrel.spark.jobs.compact import CompactOptions, compact

pytestmark = [pytest.mark.spark, pytest.mark.timeout(300)]

RANGES = [("orders", queue_id, first, first + 50) for first in range(0, 200, 50) for queue_id in range(3)]


def old_archive(root: Path) -> None:
    """Make an archive of a day that is over, of small files."""
    folder = Folder(root)
    folder.create()
    for number in range(4):
        write_batch(folder, "q1", number, RANGES[number * 3 : number * 3 + 3], tasks=3)


def test_closed_days_are_compacted_into_a_new_root_and_in_place(spark: Any, tmp_path: Path) -> None:
    root, target = tmp_path / "archive", tmp_path / "compacted"
    old_archive(root)
    assert len(Folder(root).entries()) == 12
    fingerprint = "bit_xor(xxhash64(* EXCEPT (properties)))"
    before = back(spark, root).selectExpr(fingerprint).first()
    (row,) = compact(spark, CompactOptions(root=root, target=target)).collect()
    assert (row["topic"], row["messages"], row["files"], row["finding"]) == ("orders", 600, 1, None)
    assert back(spark, target).selectExpr(fingerprint).first() == before
    assert compact(spark, CompactOptions(root=root, target=target)).collect() == []
    compact(spark, CompactOptions(root=root, target=None)).collect()
    assert len(Folder(root).entries()) == 1
    assert back(spark, root).selectExpr(fingerprint).first() == before
    assert seen(root) == seen(target) == sorted(rows_of(RANGES))
    for each in (root, target):
        rows = check(spark, CheckOptions(root=each, deep=True)).collect()
        assert [(row["messages"], row["finding"]) for row in rows] == [(600, None)]
    assert compact(spark, CompactOptions(root=root, target=None, before="2023-11-14")).collect() == []
    with pytest.raises(Exception, match="is the archive itself"):
        compact(spark, CompactOptions(root=root, target=root))


def test_a_lost_file_ends_compacting_in_place_before_anything_is_changed(spark: Any, tmp_path: Path) -> None:
    old_archive(tmp_path)
    lost = sorted(tmp_path.glob("topic=*/*/*.parquet"))[5]
    lost.rename(tmp_path / "kept")
    with pytest.raises(Exception, match="can't be"):
        compact(spark, CompactOptions(root=tmp_path, target=None))
    (tmp_path / "kept").rename(lost)
    assert seen(tmp_path) == sorted(rows_of(RANGES))
    compact(spark, CompactOptions(root=tmp_path, target=None)).collect()
    assert seen(tmp_path) == sorted(rows_of(RANGES))


@pytest.mark.parametrize("kind", ["delta", "iceberg"])
def test_a_table_gives_the_same_rows_and_takes_each_batch_once(
    cluster: Cluster, spark: Any, tmp_path: Path, kind: Any
) -> None:
    pytest.importorskip({"delta": "deltalake", "iceberg": "pyiceberg"}[kind])
    topic = f"%RETRY%{kind}"
    fill(cluster, topic, 300)
    table = TableOptions(kind=kind)
    archive(spark, options_of(cluster, tmp_path, topic, table=table)).collect()
    opened: Any = open_table(tmp_path, table)
    numbers = list(range(300))
    if kind == "delta":
        reader = spark.read.option("basePath", str(tmp_path))
        files = opened.table().file_uris()
        rows = opened.table().to_pyarrow_table()
        assert set(rows["topic"].to_pylist()) == {topic}
    else:
        reader = spark.read
        files = [task.file.file_path for task in opened.table().scan().plan_files()]
        rows = opened.table().scan().to_arrow()
    assert sorted(int(body.as_py()) for body in rows["body"]) == numbers
    frame = reader.parquet(*files)
    assert bodies(frame) == numbers
    assert {row["topic"] for row in frame.select("topic").distinct().collect()} == {topic}
    assert bodies(back(spark, tmp_path)) == numbers
    # The driver dies between the table's commit and the manifest: the batch is not added again.
    folder = Folder(tmp_path)
    last = max(folder.manifests(), key=lambda manifest: manifest.batch)
    checkpoint = tmp_path / "_checkpoints" / "default"
    manifest = folder.manifest_path(last.query, last.batch)
    manifest.rename(folder.mark_path(last.query, last.batch, "prepared"))
    folder.mark_path(last.query, last.batch, "begun").touch()
    for path in checkpoint.glob(f"commits/*{last.batch}*"):
        path.unlink()
    archive(spark, options_of(cluster, tmp_path, topic, table=table)).collect()
    assert manifest.exists()
    again: Any = open_table(tmp_path, table)
    count = again.table().to_pyarrow_table() if kind == "delta" else again.table().scan().to_arrow()
    assert count.num_rows == 300
    assert bodies(back(spark, tmp_path)) == numbers
    with pytest.raises(Exception, match="is a table"):
        compact(spark, CompactOptions(root=tmp_path, target=None))
