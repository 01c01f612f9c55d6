"""Which metadata a member has: a version that tables of it may be newer than, and never older."""

from collections.abc import Callable
from pathlib import Path

import pytest

from whimbrel.broker.tables.groups import GroupTable
from whimbrel.broker.tables.metadata_version import MetadataVersion, MetadataVersionFile
from whimbrel.broker.tables.topics import TopicTable
from whimbrel.model.topic import GroupConfig, TopicConfig

VERSION = MetadataVersion(7, 3)
Open = Callable[[Path, MetadataVersionFile], object]


def topics(root: Path, file: MetadataVersionFile) -> TopicTable:
    return TopicTable(
        root / "config",
        cluster="c",
        broker_name="a",
        auto_create=False,
        clock=lambda: 1,
        on_predecessor=file.forget,
    )


def groups(root: Path, file: MetadataVersionFile) -> GroupTable:
    return GroupTable(root / "config", auto_create=False, clock=lambda: 1, on_predecessor=file.forget)


def fill(root: Path) -> None:
    """Have tables with a change, whose version is written down."""
    file = MetadataVersionFile(root)
    topics(root, file).put(TopicConfig(name="t"))
    groups(root, file).put(GroupConfig(name="strict", fifo=True))
    file.save(MetadataVersion(7, 2))
    file.save(VERSION)


def damage(path: Path) -> None:
    path.write_bytes(b"\0" * 64 + path.read_bytes())


@pytest.mark.parametrize(("name", "table"), [("topics", topics), ("subscriptionGroup", groups)])
@pytest.mark.parametrize("how", [damage, Path.unlink], ids=["damaged", "gone"])
def test_a_table_from_its_predecessor_has_no_version(
    tmp_path: Path, name: str, table: Open, how: Callable[[Path], None]
) -> None:
    """F9: as a leader it would make its older tables everybody's."""
    fill(tmp_path)
    how(tmp_path / "config" / f"{name}.json")
    file = MetadataVersionFile(tmp_path)
    assert file.version == VERSION
    table(tmp_path, file)
    assert file.version == MetadataVersion()
    assert MetadataVersionFile(tmp_path).version == MetadataVersion(), "on disk as well"


def test_whole_tables_keep_their_version(tmp_path: Path) -> None:
    fill(tmp_path)
    file = MetadataVersionFile(tmp_path)
    topics(tmp_path, file)
    groups(tmp_path, file)
    assert file.version == VERSION


@pytest.mark.parametrize("how", [damage, Path.unlink], ids=["damaged", "gone"])
def test_a_version_from_its_predecessor_is_none(tmp_path: Path, how: Callable[[Path], None]) -> None:
    """It may be one that was forgotten since."""
    fill(tmp_path)
    MetadataVersionFile(tmp_path).forget()
    how(tmp_path / "whimbrel" / "metadata.json")
    assert MetadataVersionFile(tmp_path).version == MetadataVersion()


@pytest.mark.parametrize(("name", "table"), [("topics", topics), ("subscriptionGroup", groups)])
def test_a_table_that_is_gone_with_its_predecessor_is_lost(tmp_path: Path, name: str, table: Open) -> None:
    """As a leader it would make an empty table everybody's."""
    fill(tmp_path)
    for path in (tmp_path / "config").glob(f"{name}.json*"):
        path.unlink()
    file = MetadataVersionFile(tmp_path)
    table(tmp_path, file)
    assert (file.version, file.lost) == (MetadataVersion(), frozenset({"tables"}))


def test_what_was_lost_is_remembered_until_it_is_there_again(tmp_path: Path) -> None:
    file = MetadataVersionFile(tmp_path)
    file.lose_leases("nothing was answered for")
    file.forget()
    assert not file.lost, "a member that never belonged to anybody has lost nothing"
    file.save(VERSION)
    file.lose_leases("damage")
    file.forget()
    file = MetadataVersionFile(tmp_path)
    assert (file.version, file.lost) == (MetadataVersion(), frozenset({"tables", "leases"}))
    file.save(MetadataVersion(9, 1))
    assert MetadataVersionFile(tmp_path).lost == {"leases"}
    file.regain_leases()
    file = MetadataVersionFile(tmp_path)
    assert (file.version, file.lost) == (MetadataVersion(9, 1), frozenset())
