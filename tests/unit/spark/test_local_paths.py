"""Folders of this machine: what has a scheme is none, and is never made one."""

from pathlib import Path

import pytest

pytest.importorskip("pyspark")

from whimbrel.cli.main import main
from whimbrel.spark.archiving.folder import ArchiveError, Folder
from whimbrel.spark.local_paths import RemotePath, local_path
from whimbrel.spark.options import OptionError, parse

S3 = "s3://bucket/x"


@pytest.mark.parametrize(
    ("given", "found"),
    [
        ("/data/archive", "/data/archive"),
        ("archive", "archive"),
        ("a:b/c", "a:b/c"),
        ("dt=2026:/x", "dt=2026:/x"),
        ("file:///data/archive", "/data/archive"),
        ("file:/data/archive", "/data/archive"),
    ],
)
def test_a_path_of_this_machine_is_taken(given: str, found: str) -> None:
    assert local_path(given) == local_path(Path(given)) == Path(found)


@pytest.mark.parametrize("given", [S3, "s3a://b/x", "hdfs://name:8020/x", "HDFS:/x", "gs://b"])
def test_a_path_with_a_scheme_is_refused_in_one_sentence(given: str) -> None:
    for path in (given, Path(given)):
        with pytest.raises(RemotePath, match="is no folder of this machine, and object stores are not"):
            local_path(path)
    for place in ("archive", "store"):
        with pytest.raises(OptionError, match=f"option {place}: .* is no folder of this machine"):
            parse({place: given})
    with pytest.raises(ArchiveError, match="is no folder of this machine"):
        Folder(Path(given))


@pytest.mark.parametrize(
    "words",
    [
        ("archive", S3, "--topic", "t"),
        ("archive", "a", "--topic", "t", "--checkpoint", S3),
        ("archive", "a", "--topic", "t", "--store", S3),
        ("archive", S3, "--check"),
        ("compact", S3, "--in-place"),
        ("compact", "a", S3),
        ("replay", S3),
        ("replay", "--store", S3),
        ("dlq", "--archive", S3),
        ("dlq", "--store", S3),
        ("audit", "--master", S3, "--slave", "127.0.0.1:1"),
        ("audit", "--endpoint", "127.0.0.1:1", "--known", S3),
        ("verify-index", S3),
        ("rebuild-index", "a", "--to", S3),
        ("stats", "--store", S3),
        ("stats", "--archive", S3),
        ("stats", "--store", ".", "--write", S3),
        ("stats", "--store", ".", "--html", S3),
        ("lag", "--record", "--snapshots", S3),
    ],
)
def test_jobs_refuse_it_before_they_make_anything(
    words: tuple[str, ...],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("WHIMBREL_ENDPOINT", "127.0.0.1:1")
    assert main(["spark", *words]) == 2
    said = " ".join(capsys.readouterr().err.replace("│", " ").split())
    assert "is no folder of this machine" in said
    assert not [path for path in tmp_path.rglob("*") if path.name.startswith("s3")]
