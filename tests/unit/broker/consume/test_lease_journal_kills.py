"""A kill between any two writes of the lease journal, while files are turned over: no offset goes back."""

import random
import shutil
from pathlib import Path

import pytest

from whimbrel.broker.consume.lease_journal import LeaseJournal
from whimbrel.broker.consume.lease_store import LeaseStore
from whimbrel.machine import Files

GROUPS, QUEUES = 4, 4


def open_store(root: Path) -> LeaseStore:
    journal = LeaseJournal(root, file_bytes=4096, flush_interval_s=0.001)
    lease_store = LeaseStore(journal, broker_id=0, now_ms=lambda: 1_700_000_000_000)
    lease_store.open()
    return lease_store


def committed(root: Path) -> dict[tuple[str, int], int]:
    """Return the offsets that a broker finds which starts on this directory."""
    lease_store = open_store(root)
    lease_store.close()
    return {(state.group, state.queue_id): state.committed for state in lease_store.table.states()}


@pytest.mark.parametrize("seed", range(3))
def test_offsets_never_go_back_whenever_the_broker_is_killed(
    seed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    dice = random.Random(seed)
    root, copy = tmp_path / "store", tmp_path / "copy"
    sure: dict[tuple[str, int], int] = {}
    kills = 0
    write_all = Files.write_all

    def killed_here() -> None:
        nonlocal kills
        kills += 1
        shutil.rmtree(copy, ignore_errors=True)
        shutil.copytree(root, copy)
        found = committed(copy)
        assert all(found.get(key, 0) >= offset for key, offset in sure.items())

    def write(files: Files, fd: int, data: bytes, position: int) -> None:
        header = position == 0  # of a file that is started over, or its end
        if header or dice.random() < 0.02:
            half = len(data) // 2
            write_all(files, fd, data[:half], position)  # torn
            with monkeypatch.context() as quiet:
                quiet.setattr(Files, "write_all", write_all)
                killed_here()
        write_all(files, fd, data, position)
        if header:
            with monkeypatch.context() as quiet:
                quiet.setattr(Files, "write_all", write_all)
                killed_here()

    lease_store = open_store(root)
    monkeypatch.setattr(Files, "write_all", write)
    try:
        for _ in range(1500):
            group, queue_id = f"group-{dice.randrange(GROUPS)}", dice.randrange(QUEUES)
            state = lease_store.table.state(group, "topic", queue_id)
            offset = state.committed + dice.randrange(1, 4)
            lease_store.commit([(state, 0, offset, None)])
            sure[group, queue_id] = offset
    finally:
        monkeypatch.setattr(Files, "write_all", write_all)
        lease_store.close()
    assert kills > 30
    assert committed(root) == sure
