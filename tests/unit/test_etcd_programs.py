"""Where the programs of etcd come from, and what is said where they can't be had."""

from pathlib import Path

import pytest

import etcd


def made(folder: Path, *names: str) -> Path:
    """Return a folder with programs."""
    folder.mkdir()
    for name in names:
        (folder / name).write_text("#!/bin/sh\n")
        (folder / name).chmod(0o755)
    return folder


def test_a_folder_that_is_named_counts_before_all_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(made(tmp_path / "path", *etcd.PROGRAMS)))
    assert etcd.programs() == tmp_path / "path"
    monkeypatch.setenv("ETCD_BIN", str(made(tmp_path / "named", *etcd.PROGRAMS)))
    assert etcd.programs() == tmp_path / "named"
    monkeypatch.setenv("ETCD_BIN", str(made(tmp_path / "half", "etcd")))
    with pytest.raises(etcd.NoEtcd, match="half has not both of etcd and etcdctl"):
        etcd.programs()


def test_the_cache_counts_before_packages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("ETCD_BIN", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    with pytest.raises(etcd.NoEtcd, match="without apt-get Debian's packages can't be fetched"):
        etcd.programs()
    (tmp_path / "whimbrel").mkdir()
    made(tmp_path / "whimbrel" / "etcd", *etcd.PROGRAMS)
    assert etcd.programs() == tmp_path / "whimbrel" / "etcd"


def test_packages_that_can_not_be_fetched_say_so_and_leave_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tools = made(tmp_path / "tools", "apt-get", "dpkg")
    (tools / "apt-get").write_text("#!/bin/sh\necho E: Unable to locate package\nexit 100\n")
    monkeypatch.setenv("PATH", str(tools))
    monkeypatch.delenv("ETCD_BIN", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    with pytest.raises(etcd.NoEtcd, match="`apt-get update` may help: E: Unable to locate package"):
        etcd.programs()
    assert list((tmp_path / "cache" / "whimbrel").iterdir()) == []
