"""Commands in these tests see neither the profiles nor the cluster of whoever runs the tests."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from support.cluster.command_line import Shell
from support.systems.fake_cluster import FakeCluster, running_in_thread


@pytest.fixture(autouse=True)
def nobodys_home(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Path:
    home = tmp_path_factory.mktemp("home")
    monkeypatch.setenv("XDG_CONFIG_HOME", str(home / "config"))
    monkeypatch.setenv("XDG_STATE_HOME", str(home / "state"))
    for name in ("WHIMBREL_ENDPOINT", "WHIMBREL_PROFILE", "WHIMBREL_DEV_DIR"):
        monkeypatch.delenv(name, raising=False)
    return home


@pytest.fixture
def shell(capsys: pytest.CaptureFixture[str]) -> Shell:
    return Shell(capsys)


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeCluster]:
    with running_in_thread() as running:
        monkeypatch.setenv("WHIMBREL_ENDPOINT", running.address)
        yield running
